"""A corpus: captures of an archive, what to select and derive, and where to save it."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any
from warnings import warn

import orjson

from dedupindex.corpus import dataframes, extract, output, select
from dedupindex.corpus.cached import CachedCaptures
from dedupindex.corpus.capture_list import CaptureSource, SourceContext
from dedupindex.corpus.cdx_server import CdxServerCaptures, is_server
from dedupindex.corpus.corpus_steps import Distinct, EarlyStep, EmbedsOf, Step, split_steps
from dedupindex.corpus.enrich import (
    Enrichment,
    Entry,
    check_path,
    makers_of,
    named,
    of_value,
    selection,
)
from dedupindex.corpus.extract import (
    DropFailed,
    ExtractionPlan,
    Keep,
    KeptCapture,
    Run,
    nested,
    nothing,
)
from dedupindex.corpus.extract_report import CorpusReport
from dedupindex.corpus.from_cdx import CdxCaptures, list_files
from dedupindex.corpus.from_index import IndexCaptures
from dedupindex.corpus.from_table import reading_tables
from dedupindex.corpus.from_warc import WaczCaptures, WarcCaptures, is_wacz_file
from dedupindex.corpus.from_zipnum import ZipNumCaptures, query_of
from dedupindex.corpus.lineage import KEY, as_first_line, as_text, lineage
from dedupindex.corpus.locate_containers import ContainerLocator
from dedupindex.corpus.output import check_outputs
from dedupindex.corpus.read_records import MAX_RECORD
from dedupindex.corpus.replay import Replay, replay
from dedupindex.corpus.select import (
    ONCE,
    RESOLVE,
    Best,
    Embedded,
    MetadataCondition,
    SpooledChunks,
    best_of,
    choose,
    sample,
)  # fmt: skip
from dedupindex.corpus.url_join import (
    SURT,
    JoinTable,
    UrlList,
    key_line,
    keys_of_list,
    load,
    url_list,
    write_keys,
)  # fmt: skip
from dedupindex.corpus.values import METADATA, NUMBERS, Groups, Values, items_of
from dedupindex.counts import OnProgress
from dedupindex.errors import BadInput, BadSource, Damaged
from dedupindex.index.identity import FILE
from dedupindex.object_store import check_reader, is_many, is_remote, local
from dedupindex.runtime.duckdb import Database, open_database, show_progress
from dedupindex.runtime.files import check_name
from dedupindex.sources.table_columns import NO_NAMES, Names
from dedupindex.sources.warc_files import find
from dedupindex.sources.zipnum import ENDING


def detect(
    sources: Sequence[str], containers: Sequence[str], columns: Names = NO_NAMES
) -> CaptureSource:
    """Detect an index, WACZ files, CDX, CDXJ and Parquet files, or else WARC and ARC files.

    If directories hold both CDX and WARC files, the WARC files are used, because the CDX may be
    incomplete. Raises `BadSource`.
    """
    if any((Path(source) / FILE).is_file() for source in sources):
        if len(sources) > 1:
            raise BadSource("an index is named alone: it knows where its captures are")
        return IndexCaptures(Path(sources[0]), tuple(containers))
    if all(map(is_wacz_file, sources)):
        return WaczCaptures(tuple(sources), tuple(containers))
    directories = [source for source in sources if _is_directory(source)]
    files = [source for source in sources if source not in directories]
    lists = list_files(files or sources, [], columns)[0]
    if lists and (files or not find(directories).files):
        directories = [source for source in map(local, sources) if os.path.isdir(source)]
        return CdxCaptures(tuple(sources), (*containers, *directories), columns)
    return WarcCaptures(tuple(sources), tuple(containers))


def _is_directory(source: str) -> bool:
    return is_many(source) if is_remote(source) else os.path.isdir(local(source))


@dataclass(frozen=True)
class CorpusSettings:
    revisits: str = select.RESOLVE  # one of `select.REVISITS`
    originals: Path | None = None  # an index for originals that the source lacks
    jobs: int = 0  # processes that read records; 0: one per core; 1: only this one
    memory: str = "1GB"  # of DuckDB, which spills to disk beyond it
    max_record: int = MAX_RECORD  # bytes of a record in memory
    stop: bool = False  # end with `Damaged` at the first error
    work: Path | None = None  # a directory for temporary files
    sample: int = 0  # try only about so many captures, all of some URLs; 0: all
    excluded_revisits: Path | None = None  # save those that conditions exclude in this directory
    arguments: tuple[str, ...] = ()  # of bin/corpus, for the lineage
    say_how: bool = False  # begin lines of JSON with the lineage
    publisher: str = ""  # in the warcinfo record of a WARC
    replay: str = ""  # the address of a replay, in place of WARC files
    rate: float = 2.0  # requests to it in a second, of all processes together
    answers: Path | None = None  # keep its answers in this directory
    run: Run | None = None  # reads the records instead of processes of this machine
    on_progress: OnProgress = lambda seen: None

    @property
    def processes(self) -> int:
        return self.jobs or max(len(os.sched_getaffinity(0)), 2)

    @property
    def replay_source(self) -> Replay | None:
        """Where payloads are requested, if not in WARC files; raises `BadInput`."""
        return replay(self.replay, self.rate, self.processes, self.answers) if self.replay else None


@dataclass(frozen=True)
class Corpus:
    """Captures and the operations on them; nothing is read until they are counted or saved.

    Every operation returns a new corpus. Invalid ones raise `BadInput`, `BadSource` or `BadQuery`
    at once.

    >>> corpus = dedupindex.Corpus.from_warcs("warcs").where("status == 200").latest("url")
    >>> [(capture["record"]["originalUrl"], capture["record"]["mime"]) for capture in corpus]
    [('http://example.com/', 'text/html')]
    """

    source: CaptureSource
    settings: CorpusSettings = field(default_factory=CorpusSettings)
    steps: tuple[Step, ...] = ()
    written: tuple[str, ...] = ()  # the steps as they are written in Python

    # --- sources -------------------------------------------------------------------------------

    @classmethod
    def from_cdx(
        cls,
        *sources: str | Path,
        containers: str | Path | tuple[str, ...] = (),
        columns: Names = NO_NAMES,
    ) -> Corpus:
        """Return the captures of CDX and CDXJ files and Parquet tables.

        They are given as files, directories or addresses. `columns` are the columns of tables, by
        the names of Common Crawl's, if they have other names.

        `containers` locates their WARC files if these are elsewhere: directories, which are
        searched recursively, or addresses that end with a slash.
        """
        return cls(CdxCaptures(_names(sources), _names(containers), columns))

    @classmethod
    def from_warcs(cls, *sources: str | Path) -> Corpus:
        """Return the captures of WARC and ARC files, which are read in full."""
        return cls(WarcCaptures(_names(sources)))

    @classmethod
    def from_index(cls, index: str | Path, containers: str | Path | tuple[str, ...] = ()) -> Corpus:
        """Return the originals of an index: each payload once per URL."""
        return cls(IndexCaptures(Path(index), _names(containers)))

    @classmethod
    def from_archive(
        cls, address: str, *, containers: str | Path | tuple[str, ...] = (), **query: str
    ) -> Corpus:
        """Query a CDX server: ``from_archive("https://…/cdx", url="example.com/*", …)``.

        Or a ZipNum cluster, by the path or address of its index, ``….idx``: with `url` and, if
        need be, `matchType` (exact, prefix, host or domain).

        `query` is sent unchanged, with `from_` as ``from``. `containers` locates the WARC files
        that the server names.
        """
        parameters = tuple((name.rstrip("_"), value) for name, value in query.items())
        if address.endswith(ENDING):
            return cls(ZipNumCaptures(local(address), parameters, _names(containers)))
        return cls(CdxServerCaptures(address, parameters, _names(containers)))

    @classmethod
    def of(
        cls,
        *sources: str | Path,
        containers: str | Path | tuple[str, ...] = (),
        columns: Names = NO_NAMES,
    ) -> Corpus:
        """Detect the kind of the sources; a CDX server or ZipNum cluster is given with a query."""
        if len(sources) == 1 and (found := query_of(str(sources[0]))):
            return cls(ZipNumCaptures(*found, _names(containers)))
        if len(sources) == 1 and is_server(str(sources[0])):
            return cls(CdxServerCaptures(str(sources[0]), (), _names(containers)))
        return cls(detect(_names(sources), _names(containers), columns))

    def having(self, **settings: Any) -> Corpus:
        """Return this corpus with other `CorpusSettings`."""
        chosen = replace(self.settings, **settings)
        if chosen.revisits not in select.REVISITS:
            raise BadInput(f"revisits are {', '.join(select.REVISITS)}, not {chosen.revisits!r}")
        if not chosen.publisher.isprintable():
            raise BadInput(f"a publisher is one line of text, not {chosen.publisher!r}")
        if chosen.max_record < 1:
            raise BadInput(f"records have at least 1 byte, not {chosen.max_record}")
        _ = chosen.replay_source  # it is checked
        corpus = replace(self, settings=chosen)
        corpus._split()
        return corpus

    # --- selection -----------------------------------------------------------------------------

    def where(self, condition: str) -> Corpus:
        """Keep captures that meet a condition: ``status == 200 and mime == 'text/html'``."""
        return self._with(f"where({condition!r})", *select.conditions(condition))

    def latest(self, by: str = "url") -> Corpus:
        """Keep the latest capture of each `url`, `surt` or `digest`, of those that pass so far."""
        return self._with(f"latest({by!r})", best_of(by, latest=True))

    def first(self, by: str = "digest") -> Corpus:
        """Keep the first capture of each `digest`, `url` or `surt`, of those that pass so far."""
        return self._with(f"first({by!r})", best_of(by, latest=False))

    def urls(self, file: str | Path, by: str = "url") -> Corpus:
        """Keep the captures of the URLs in a file, one a line, plain or gzipped, of any length.

        `by` is ``url``, as they are written, or ``surt``, in their canonical form.
        """
        step = url_list(file, by)
        return self._with(f"urls({os.fspath(file)!r}, {by!r})", step)

    def embeds(self) -> Corpus:
        """Return what these pages embed, from the same source: images, scripts, styles, frames.

        Of each URL that a page embeds (`html.embeds`, in its canonical form) it is the capture that
        is nearest in time to the page. Settings of the result also apply to the pages.
        """
        if isinstance(self.source, CachedCaptures):
            raise BadInput("what pages embed is not among cached captures: take embeds before")
        steps = (EmbedsOf(self),)
        return replace(self, steps=steps, written=(*self.written, "embeds()"))

    def filter(self, path: str, test: Callable[[Any], object] = bool) -> Corpus:
        """Keep captures whose value at a path passes a test, or cannot be computed."""
        return self._with(f"filter({path!r}, {_name_of(test)})", Keep(path, test))

    def drop_failed(self) -> Corpus:
        """Leave out captures of which a filter or a value so far has failed.

        They are counted as `CorpusReport.dropped`.
        """
        return self._with("drop_failed()", DropFailed(self.paths))

    def distinct(self, path: str) -> Corpus:
        """Keep the first capture of each value at a path, in the order of the output.

        Captures without a value are kept. No other captures are selected after it.
        """
        return self._with(f"distinct({path!r})", Distinct(path))

    def cache(self) -> Corpus:
        """Return a corpus of the captures so far, which are selected and computed only once.

        That is on first use; the result is on disk until the last corpus that uses it is gone.
        After it captures are grouped, filtered and made distinct again.
        """
        steps = self._enrichments
        return replace(
            self, source=CachedCaptures(self), steps=steps, written=(*self.written, "cache()")
        )

    # --- derived values ------------------------------------------------------------------------

    def enrich(self, *enrichments: str | Enrichment) -> Corpus:
        """Add enrichments, by name or object. The values they need are computed, but not output."""
        chosen = [named(one) if isinstance(one, str) else one for one in enrichments]
        return self._with(f"enrich({', '.join(repr(one.name) for one in chosen)})", *chosen)

    def map(self, path: str, name: str, function: Callable[[Any], Any]) -> Corpus:
        """Add ``function(value)`` of the value at a path, as `name` below it."""
        step = Enrichment(name, path, (name,), of_value(function))
        return self._with(f"map({path!r}, {name!r}, {_name_of(function)})", step)

    def select(self, name: str, selector: str, *, first: bool = False) -> Corpus:
        """Add what a selector of CSS finds in pages, at ``payload.string.html.NAME``.

        Those are the texts of all elements, or of the `first`; with ``img::attr(alt)`` their
        attributes, with ``img::url(src)`` these as absolute URLs. Raises `BadInput`.
        """
        written = f"select({name!r}, {selector!r}{', first=True' * first})"
        return self._with(written, selection(name, selector, first=first))

    # --- values without captures ----------------------------------------------------------------

    def map_values(self, path: str, function: Callable[[Any], Any] | None = None) -> Values:
        """Return the values at a path, or ``function(value)`` of each, without the captures."""
        name = f", {_name_of(function)}" if function else ""
        values = self._values(path, f"map_values({path!r}{name})", bare=function is None)
        return values.map(function)._written_as(values) if function else values

    def flat_map(self, path: str, function: Callable[[Any], Iterable[Any]] | None = None) -> Values:
        """Return each item of the values at a path, or of ``function(value)``."""
        name = f", {_name_of(function)}" if function else ""
        values = self._values(path, f"flat_map({path!r}{name})", bare=function is None)
        return values.flat_map(function or items_of)._written_as(values)

    def group(self, *by: str, sums: Sequence[str] = ()) -> Groups:
        """Count captures, and sum up values of whole numbers, by group.

        `by` and `sums` are names of the metadata, such as ``hostname``, ``month`` and ``length``
        (`values.METADATA`), or paths of values. Raises `BadInput`.
        """
        for name in (*by, *sums):
            if name not in METADATA:
                check_path(makers_of(self._enrichments), name, METADATA)
        if texts := [name for name in sums if name in METADATA and name not in NUMBERS]:
            raise BadInput(f"{texts[0]} is not a number, so it has no sum")
        written = f"group({', '.join(map(repr, by))}, sums={tuple(sums)!r})"
        return Groups(self, by, tuple(sums), (*self.written, written))

    def _values(self, path: str, written: str, *, bare: bool) -> Values:
        makers = makers_of(self._enrichments)
        check_path(makers, path)
        if bare and path in makers and makers[path].step:
            raise BadInput(f"{path} is never output itself: give a function of it")
        return Values(self, path, written=(*self.written, written))

    @property
    def _enrichments(self) -> tuple[Enrichment, ...]:
        return tuple(step for step in self.steps if isinstance(step, Enrichment))

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the values that are output."""
        return tuple(path for step in self._enrichments for path in step.paths)

    # --- results -------------------------------------------------------------------------------

    def count(self) -> int:
        """Count the captures; records are read only if metadata do not suffice."""
        return sum(1 for _ in self._seen(nothing))

    def __iter__(self) -> Generator[dict[str, Any], None, None]:
        """Yield the captures as `save_as_json` writes them."""
        for kept in self._seen():
            yield orjson.loads(kept.rendered)

    def peek(self, count: int = 1) -> str:
        """Return the first captures as indented JSON."""
        with closing(iter(self)) as captures:
            return "\n".join(
                orjson.dumps(capture, option=orjson.OPT_INDENT_2).decode()
                for capture in islice(captures, count)
            )

    def save_as_json(self, path: str | Path) -> CorpusReport:
        """Write lines of JSON, compressed if the name ends with ``.gz`` or ``.zst``.

        With the setting `say_how` the first line is not a capture, but the `lineage`.
        """
        first = as_first_line(self.lineage()) if self.settings.say_how else b""

        def write(captures: Iterator[KeptCapture], file: Path) -> None:
            output.write_lines((kept.rendered for kept in captures), file, first=first)

        return self._save(path, write)

    def save_as_parquet(self, path: str | Path) -> CorpusReport:
        """Write a table with a column for each field of the metadata and each value.

        Its metadata have the `lineage`.
        """
        output.check_columns(self.paths)
        settings = self.settings
        made = {KEY: as_text(self.lineage())}
        write = partial(
            output.write_table, work=settings.work, memory=settings.memory, metadata=made
        )
        return self._save(path, write, output.as_row)

    def save_as_cdxj(self, path: str | Path) -> CorpusReport:
        """Write a sorted CDXJ of the captures."""
        return self._save(path, output.write_cdxj, nothing)

    def save_as_cdx(self, path: str | Path) -> CorpusReport:
        """Write a sorted CDX of 11 columns, compressed if the name ends with ``.gz``."""
        return self._save(path, output.write_cdx, nothing)

    def to_dataframe(self, library: str = "", *, spark: Any = None) -> Any:
        """Return a data frame with the columns of `save_as_parquet`, of ``polars`` or ``pandas``.

        By default it is of the first of these that is installed. With a `SparkSession` as `spark`
        it is of PySpark, distributed, and nested as the JSON is.
        """
        if spark is not None:
            return dataframes.spark_frame_of(self, spark)
        return dataframes.frame_of(self, dataframes.check_library(library))

    def to_rdd(self, context: Any) -> Any:
        """Return an RDD of what iterating yields; executors of this `SparkContext` read records.

        The captures are selected at once, and the driver holds their metadata.
        """
        return dataframes.entries_of(self, context)

    def save_as_warc(self, path: str | Path) -> CorpusReport:
        """Write the records themselves, and a CDXJ beside them; see `write_warc`."""
        from dedupindex.corpus import write_warc  # slow: it imports `verify`

        if self.settings.replay:
            raise BadInput("a replay gives no records byte for byte: write .jsonl or .parquet")
        report = CorpusReport()
        write = partial(
            write_warc.write_warc, report=report, max_record=self.settings.max_record,
            made=as_text(self.lineage()), stop=self.settings.stop,
            publisher=self.settings.publisher,
        )  # fmt: skip
        return self._save(path, write, nothing, write_warc.index_of(Path(path)), report=report)

    def lineage(self) -> dict[str, Any]:
        """Return how this corpus is made: sources with sizes and hashes, steps, version.

        All local sources are read for their hashes. Raises `BadSource`.
        """
        settings = self.settings
        return lineage(self.read_files(), self.written, settings.revisits, settings.arguments)

    def read_files(self) -> tuple[str, ...]:
        """The paths and addresses of the sources, and of lists of URLs."""
        lists: tuple[str, ...] = ()
        for step in self.steps:
            if isinstance(step, UrlList):
                lists += (str(step.file),)
            elif isinstance(step, EmbedsOf):
                lists += step.pages.read_files()[len(self.source.sources) :]
        return (*self.source.sources, *lists)

    def _with(self, written: str, *steps: Step) -> Corpus:
        corpus = replace(self, steps=self.steps + steps, written=(*self.written, written))
        corpus._split()
        return corpus

    def _split(self) -> tuple[list[EarlyStep], ExtractionPlan]:
        settings = self.settings
        return split_steps(self.steps, settings.max_record, once=settings.revisits == ONCE)

    def _seen(
        self, render: Callable[[Entry], bytes] = nested
    ) -> Generator[KeptCapture, None, None]:
        """Like `kept`, but without a report: problems of the sources become a warning."""
        report = CorpusReport()
        with closing(self.kept(report, render)) as found:
            first = list(islice(found, 1))
            if report.problems or report.refused:
                warn(report.source_problems(), stacklevel=3)
            yield from chain(first, found)

    def _save(
        self,
        path: str | Path,
        write: Callable[[Iterator[KeptCapture], Path], None],
        render: Callable[[Entry], bytes] = nested,
        *beside: Path,
        report: CorpusReport | None = None,
    ) -> CorpusReport:
        report, outputs = report or CorpusReport(), [Path(path), *beside]
        check_outputs(outputs, (*self.read_files(), *self.source.containers))
        begin = time.monotonic()
        with closing(self.kept(report, render)) as captures:
            write(captures, outputs[0])
        report.seconds = time.monotonic() - begin
        report.bytes = sum(written.stat().st_size for written in outputs)
        return report

    def kept(
        self,
        report: CorpusReport,
        render: Callable[[Entry], bytes] = nested,
        output: tuple[Enrichment, ...] | None = None,
        needs: tuple[str, ...] = (),
    ) -> Generator[KeptCapture, None, None]:
        """Every capture that passes, and what `render` makes of it, with `output` computed.

        Without `output` that are the enrichments of this corpus, none if `render` is `nothing`.
        `needs` are the paths of other values that `render` computes.
        """
        early, plan = self._split()
        if output is None:
            output = () if render is nothing else plan.output
        settings, place = self.settings, self.settings.replay_source
        plan = plan._replace(render=render, output=output, needs=needs, replay=place)
        with tempfile.TemporaryDirectory(prefix=".corpus-", dir=settings.work) as name:
            chunks = SpooledChunks(home := Path(name))
            for number, step in enumerate(early):
                if isinstance(step, UrlList | EmbedsOf):
                    write_keys(self._keys(step, report), home / f"keys_{number}")
            source = self.source.relation(SourceContext(home, settings.processes, report.problems))
            with (
                open_database(home, settings.memory, 0) as (database, _),
                show_progress(database, settings.on_progress) as at,
            ):
                at("reading metadata")
                steps = [
                    _joined(database, step, home / f"keys_{number}")
                    for number, step in enumerate(early)
                ]
                with reading_tables(database, source, self.source.sources):
                    choose(database, source, steps, settings.revisits, settings.originals, report,
                           home, keep_excluded=settings.excluded_revisits is not None)  # fmt: skip
                if settings.sample:
                    sample(database, settings.sample, report.chosen)
                locator = ContainerLocator(self.source.containers, report.problems)
                chunks.fill(database, plan.best, locator, settings.processes, report.chosen)
                if settings.excluded_revisits is not None:
                    excluded = SpooledChunks(settings.excluded_revisits)
                    excluded.fill(database, None, locator, 1, report.revisits, "excluded")
            run = settings.run or partial(extract.extract_locally, settings.processes)
            if settings.stop and (report.problems or report.refused):
                raise Damaged(report.source_problems())
            results, progress = run(plan, chunks), settings.on_progress
            yield from extract.counted(
                results, report, progress, distinct=bool(plan.distinct), stop=settings.stop
            )

    def _keys(self, step: UrlList | EmbedsOf, report: CorpusReport) -> Iterator[bytes]:
        """Yield the keys that captures are joined with; failures of pages are reported."""
        if isinstance(step, UrlList):
            yield from keys_of_list(step)
            return
        revisits = RESOLVE if self.settings.revisits == ONCE else self.settings.revisits
        settings = replace(self.settings, revisits=revisits, excluded_revisits=None)
        of_pages = CorpusReport()
        for kept in replace(step.pages, settings=settings).kept(of_pages, _embed_keys, (EMBEDS,)):
            yield kept.rendered
        report.errors.update(of_pages.errors)
        report.records += of_pages.records
        report.containers += of_pages.containers
        report.bytes_read += of_pages.bytes_read


EMBEDS = named("html.embeds")


def _embed_keys(entry: Entry) -> bytes:
    """Render the keys of what a page embeds."""
    urls = entry.derived().get(EMBEDS.paths[0], ())
    timestamp = entry.capture.timestamp
    return b"".join(key_line(url.encode("utf-8", "replace"), SURT, timestamp) for url in urls)


def _joined(
    database: Database, step: EarlyStep, file: Path
) -> MetadataCondition | Best | JoinTable | Embedded:
    """Load the keys of a join into a table."""
    if isinstance(step, UrlList):
        return load(database, file, file.name, step.by)
    if isinstance(step, EmbedsOf):
        return Embedded(load(database, file, file.name, SURT))
    return step


def _name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function for the lineage."""
    module, name = (getattr(function, what, "") for what in ("__module__", "__qualname__"))
    return f"{module}.{name}" if module and name else "a function"


def _names(paths: Any) -> tuple[str, ...]:
    if isinstance(paths, str | os.PathLike):
        paths = (paths,)
    names = tuple(map(os.fspath, paths))
    for name in names:
        check_name(name)
        if is_remote(name):  # report a missing package here, not for each capture
            check_reader(name)
    return names
