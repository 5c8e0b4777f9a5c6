"""A corpus: captures of an archive, what is wanted of them, and where that goes."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any
from warnings import warn

import orjson

from dedupindex.corpus import filters, output
from dedupindex.corpus.capture_list import CaptureSource, SourceContext
from dedupindex.corpus.cdx_server import OfServer, is_server
from dedupindex.corpus.enrich import Enrichment, Entry, known
from dedupindex.corpus.enrichments import check_packages, makers_of, named
from dedupindex.corpus.extract import (
    ExtractionPlan,
    Keep,
    KeptCapture,
    Run,
    Test,
    counted,
    here,
    nested,
    nothing,
)
from dedupindex.corpus.extract_report import CorpusReport
from dedupindex.corpus.filters import Condition
from dedupindex.corpus.from_cdx import OfLines, line_files
from dedupindex.corpus.from_index import OfIndex
from dedupindex.corpus.from_warc import OfContainers, OfWacz, is_wacz_file
from dedupindex.corpus.locate_containers import Places
from dedupindex.corpus.output import keep_apart
from dedupindex.corpus.read_records import MOST
from dedupindex.corpus.select import ONCE, RESOLVE, REVISITS, Best, Spooled, best_of, choose
from dedupindex.counts import OnProgress
from dedupindex.errors import BadInput, BadSource
from dedupindex.index.identity import FILE
from dedupindex.object_store import check_reader, is_many, is_remote, local
from dedupindex.runtime.duckdb import open_database, show_progress
from dedupindex.runtime.files import check_name
from dedupindex.sources.warc_files import find

# What is to be done with captures, taken apart: by metadata alone, and then for each capture.

Step = Condition | Best | Enrichment | Keep


def parted(
    steps: Iterable[Step], most: int, *, once: bool
) -> tuple[list[Condition | Best], ExtractionPlan]:
    """What DuckDB does, in order, and what is done for each capture.

    Up to the first filter on values all is for DuckDB. From there on captures are tried one by one;
    they are grouped once at most (`once`: by digest, at the end), and what follows that group has
    to be passed by its best. Raises `BadInput`.
    """
    early: list[Condition | Best] = []
    tests: list[Test] = []
    after: list[Test] = []
    best: Best | None = None
    enrichments = tuple(step for step in steps if isinstance(step, Enrichment))
    deciding = [step for step in steps if not isinstance(step, Enrichment)]
    for step in (*deciding, *((Best("digest", latest=False),) if once else ())):
        if isinstance(step, Best):
            if not tests:
                early.append(step)
            elif best is None:
                best = step
            else:
                raise BadInput("after a filter on values captures are grouped only once, be it by "
                               "latest, first or revisits once: save what there is, and begin "
                               "again with it")  # fmt: skip
        elif best is not None:
            after.append(step)
        elif isinstance(step, Keep):
            tests.append(step)
        else:
            early.append(step)
    makers = makers_of(enrichments)
    return early, ExtractionPlan(
        tuple(tests), best, tuple(after), enrichments, makers, most, nested
    )


# What it is that a user names: an index, CDX files, WARC files or WACZ files.


def recognised(sources: Sequence[str], places: Sequence[str]) -> CaptureSource:
    """What these are: an index, WACZ files, CDX and CDXJ files, or else WARC and ARC files.

    Where directories hold both, the WARC files tell, because nobody knows whether a CDX there is of
    all of them, and of all that is in them. Raises `BadSource`.
    """
    if any((Path(source) / FILE).is_file() for source in sources):
        if len(sources) > 1:
            raise BadSource("an index stands alone: it knows where its captures are")
        return OfIndex(Path(sources[0]), tuple(places))
    if all(map(is_wacz_file, sources)):
        return OfWacz(tuple(sources), tuple(places))
    several = [source for source in sources if _is_directory(source)]
    others = [source for source in sources if source not in several]
    if line_files(others or sources, [])[0] and (others or not find(several, elsewhere=True).files):
        directories = [source for source in map(local, sources) if os.path.isdir(source)]
        return OfLines(tuple(sources), (*places, *directories))
    return OfContainers(tuple(sources), tuple(places))


def _is_directory(source: str) -> bool:
    return is_many(source) if is_remote(source) else os.path.isdir(local(source))


@dataclass(frozen=True)
class CorpusSettings:
    """How a corpus is made, whatever is in it."""

    revisits: str = RESOLVE  # one of `choosing.REVISITS`
    originals: Path | None = None  # an index in which originals of revisits are looked up, too
    jobs: int = 0  # processes that read records; 0: as many as there are cores; 1: none but this
    memory: str = "1GB"  # for DuckDB; more goes to disk
    most: int = MOST  # bytes of a record that are held
    work: Path | None = None  # a directory with room for what does not fit in memory
    spared: Path | None = None  # a directory for `Spooled` revisits that conditions leave out
    run: Run | None = None  # in the place of processes here
    on_progress: OnProgress = lambda seen: None

    @property
    def processes(self) -> int:
        return self.jobs or max(len(os.sched_getaffinity(0)), 2)


@dataclass(frozen=True)
class Corpus:
    """Captures, and what is to be done with them: nothing is read before it is counted or saved.

    Every operation returns another corpus. Raises `BadInput`, `BadSource` and `BadQuery` as soon
    as something cannot be meant.

    >>> corpus = dedupindex.Corpus.from_warcs("warcs").where("status == 200").latest("url")
    >>> [(capture["record"]["originalUrl"], capture["record"]["mime"]) for capture in corpus]
    [('http://example.com/', 'text/html')]
    """

    told: CaptureSource
    settings: CorpusSettings = field(default_factory=CorpusSettings)
    steps: tuple[Step, ...] = ()

    # --- where captures are known from ---------------------------------------------------------

    @classmethod
    def from_cdx(
        cls, *sources: str | Path, containers: str | Path | tuple[str, ...] = ()
    ) -> Corpus:
        """Captures of CDX and CDXJ files, directories or addresses of such.

        `containers` says where their WARC files are, if not beside them: a directory that is
        searched to its bottom, an address that ends with a slash, or several of these.
        """
        return cls(OfLines(_texts(sources), _texts(containers)))

    @classmethod
    def from_warcs(cls, *sources: str | Path) -> Corpus:
        """Captures of WARC and ARC files, which are read through: they are their own metadata."""
        return cls(OfContainers(_texts(sources)))

    @classmethod
    def from_index(cls, index: str | Path, containers: str | Path | tuple[str, ...] = ()) -> Corpus:
        """The originals of an index: each payload once for every URL that had it."""
        return cls(OfIndex(Path(index), _texts(containers)))

    @classmethod
    def from_archive(
        cls, address: str, *, containers: str | Path | tuple[str, ...] = (), **query: str
    ) -> Corpus:
        """What a CDX server tells: ``from_archive("https://…/cdx", url="example.com/*", …)``.

        `query` goes to it as it is (`from_` stands for ``from``). `containers` is where the WARC
        files are whose names it tells.
        """
        asked = tuple((name.rstrip("_"), value) for name, value in query.items())
        return cls(OfServer(address, asked, _texts(containers)))

    @classmethod
    def of(cls, *sources: str | Path, containers: str | Path | tuple[str, ...] = ()) -> Corpus:
        """Whichever of these it is that is named; a CDX server by the address of a whole query."""
        if len(sources) == 1 and is_server(str(sources[0])):
            return cls(OfServer(str(sources[0]), (), _texts(containers)))
        return cls(recognised(_texts(sources), _texts(containers)))

    def having(self, **settings: Any) -> Corpus:
        """The same with other `CorpusSettings`."""
        chosen = replace(self.settings, **settings)
        if chosen.revisits not in REVISITS:
            raise BadInput(f"revisits are {', '.join(REVISITS)}, not {chosen.revisits!r}")
        corpus = replace(self, settings=chosen)
        corpus._parted()
        return corpus

    # --- which are wanted ----------------------------------------------------------------------

    def where(self, condition: str) -> Corpus:
        """Those whose metadata meet a condition: ``status == 200 and mime == 'text/html'``."""
        return self._with(*filters.conditions(condition))

    def latest(self, by: str = "url") -> Corpus:
        """Of all captures with the same `url`, `surt` or `digest` the latest.

        After a `filter` it is the latest of those that pass it.
        """
        return self._with(best_of(by, latest=True))

    def first(self, by: str = "digest") -> Corpus:
        """Of all captures with the same `digest`, `url` or `surt` the first."""
        return self._with(best_of(by, latest=False))

    def filter(self, path: str, test: Callable[[Any], object] = bool) -> Corpus:
        """Those for whose value at a path `test` is true.

        Those that have none are left out. Where an error stands in its place, the capture stays
        and has it: what it is cannot be told.
        """
        known(self._makers(), path)
        self._check(path)
        return self._with(Keep(path, test))

    # --- what is made of them ------------------------------------------------------------------

    def enrich(self, *enrichments: str | Enrichment) -> Corpus:
        """Add what is called so, or one's own `Enrichment`; what it is made of is not output."""
        found = [named(one) if isinstance(one, str) else one for one in enrichments]
        corpus = self._with(*found)
        for one in found:
            check_packages(one)
            if one.of:
                known(corpus._makers(), one.of)
                corpus._check(one.of)
        return corpus

    def map(self, path: str, name: str, function: Callable[[Any], Any]) -> Corpus:
        """Add what `function` makes of the value at a path, as `name` below it."""
        return self.enrich(Enrichment(name, path, (name,), lambda value, entry: function(value)))

    @property
    def paths(self) -> tuple[str, ...]:
        """Where the values stand that are output."""
        enriched = (step for step in self.steps if isinstance(step, Enrichment))
        return tuple(path for step in enriched for path in step.paths)

    # --- what comes of it ----------------------------------------------------------------------

    def count(self) -> int:
        """How many captures there are; no record is read if metadata alone can tell."""
        return sum(1 for _ in self._seen(nothing))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Every capture as it would be saved as JSON."""
        for kept in self._seen():
            yield orjson.loads(kept.made)

    def peek(self, count: int = 1) -> str:
        """The first captures, for people."""
        with closing(self._seen()) as kept:
            shown = [
                orjson.dumps(orjson.loads(one.made), option=orjson.OPT_INDENT_2).decode()
                for one in islice(kept, count)
            ]
        return "\n".join(shown)

    def save_as_json(self, path: str | Path) -> CorpusReport:
        """Lines of JSON; compressed if the name ends with ``.gz`` or ``.zst``."""
        return self._saved(path, output.as_lines)

    def save_as_parquet(self, path: str | Path) -> CorpusReport:
        """A table with a column for each thing that is known, and for each value."""
        return self._saved(path, output.as_parquet)

    def save_as_cdxj(self, path: str | Path) -> CorpusReport:
        """A CDXJ of the captures, sorted."""
        return self._saved(path, output.as_cdxj)

    def save_as_warc(self, path: str | Path) -> CorpusReport:
        """The records themselves, and a CDXJ beside them; see `warcs`."""
        from dedupindex.corpus import write_warc  # and with it all that verifies

        return self._saved(path, write_warc.as_warc, write_warc.index_of(Path(path)))

    # --- how -----------------------------------------------------------------------------------

    def _with(self, *steps: Step) -> Corpus:
        corpus = replace(self, steps=self.steps + steps)
        corpus._parted()
        return corpus

    def _makers(self) -> dict[str, Enrichment]:
        return makers_of(tuple(step for step in self.steps if isinstance(step, Enrichment)))

    def _check(self, path: str) -> None:
        """Raise `BadInput` if packages are missing for what a value is made of."""
        makers = self._makers()
        while path in makers:
            check_packages(makers[path])
            path = makers[path].of

    def _parted(self) -> tuple[list[Condition | Best], ExtractionPlan]:
        settings = self.settings
        return parted(self.steps, settings.most, once=settings.revisits == ONCE)

    def _seen(
        self, render: Callable[[Entry], bytes] = nested
    ) -> Generator[KeptCapture, None, None]:
        """As `kept`, for who is given no report: what is wrong with the sources is a warning."""
        report = CorpusReport()
        with closing(self.kept(report, render)) as found:
            some = list(islice(found, 1))
            if report.problems or report.refused:
                warn(report.told(), stacklevel=3)
            yield from chain(some, found)

    def _saved(self, path: str | Path, save: output.Save, *beside: Path) -> CorpusReport:
        report, path = CorpusReport(), Path(path)
        keep_apart([path, *beside], (*self.told.sources, *self.told.places))
        begin = time.monotonic()
        save(self, path, report)
        report.seconds = time.monotonic() - begin
        return report

    def kept(
        self, report: CorpusReport, render: Callable[[Entry], bytes] = nested
    ) -> Generator[KeptCapture, None, None]:
        """Every capture that passes, and what `render` makes of it."""
        early, plan = self._parted()
        plan = plan._replace(render=render, shown=() if render is nothing else plan.shown)
        settings = self.settings
        with tempfile.TemporaryDirectory(prefix=".corpus-", dir=settings.work) as name:
            home = Path(name)
            source = self.told.relation(SourceContext(home, settings.processes, report.problems))
            with (
                open_database(home, settings.memory, 0) as (database, _),
                show_progress(database, settings.on_progress) as at,
            ):
                at("reading metadata")
                choose(database, source, early, settings.revisits, settings.originals, report,
                       spared=settings.spared is not None)  # fmt: skip
                chunks, places = Spooled(home), Places(self.told.places)
                chunks.fill(database, plan.best, places, settings.processes, report.chosen)
                if settings.spared is not None:
                    held = Spooled(settings.spared)
                    held.fill(database, None, places, 1, report.revisits, "spared")
            run = settings.run or here(settings.processes)
            done = run(plan, chunks)
            yield from counted(done, report, settings.on_progress)


def _texts(paths: Any) -> tuple[str, ...]:
    if isinstance(paths, str | os.PathLike):
        paths = (paths,)
    names = tuple(map(os.fspath, paths))
    for name in names:
        check_name(name)
        if is_remote(name):  # or each capture would say so
            check_reader(name)
    return names
