"""Make a plan from manifests: all of it, one part, or all parts on a Spark cluster."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from dedupindex.counts import OnProgress, ProgressUpdate, silent
from dedupindex.errors import BadInput, DedupError, IndexExists
from dedupindex.post_crawl.manifest.parquet import FILE, open_manifest
from dedupindex.post_crawl.plan.compare_payloads import Compare, PayloadComparison
from dedupindex.post_crawl.plan.group_duplicates import GroupingRule, group
from dedupindex.post_crawl.plan.manifest_input import ManifestInputs, check_host
from dedupindex.post_crawl.plan.plan_file import PART, Totals, check_is_plan, part_name, write_part
from dedupindex.post_crawl.plan.record_reader import RecordReader, container_urls
from dedupindex.post_crawl.plan.warcsum_format import write_text
from dedupindex.runtime.duckdb import Database, open_database, show_progress
from dedupindex.runtime.files import sync_directory
from dedupindex.runtime.progress import Say
from dedupindex.runtime.spark import Cluster, FilePiece, PieceWriter, pieces

if TYPE_CHECKING:
    from dedupindex.post_crawl.plan.index_originals import UnreadOriginals

_WRITING = "writing the plan"  # no archive is written


@dataclass(frozen=True)
class ResolveOptions:
    rule: GroupingRule = field(default_factory=GroupingRule)
    compare: Compare = field(default_factory=Compare)
    index: Path | None = None  # where originals in other files are looked up
    base_urls: tuple[str, ...] = ()  # where containers are that are not here
    url_table: Path | None = None  # the same, file by file
    host: str = ""  # this machine, if the manifests name hosts
    memory: str = "1GB"  # for DuckDB; the process takes some more
    threads: int = 0  # 0: as many as there are cores


@dataclass
class Resolved:
    totals: Totals
    seconds: dict[str, float]  # by step

    def as_json(self) -> dict[str, Any]:
        seconds = {name: round(value, 3) for name, value in self.seconds.items()}
        return {**self.totals.as_json(), "seconds": seconds}


def resolve(
    manifests: Sequence[Path],
    plan: Path,
    options: ResolveOptions,
    warn: Say = lambda text: None,
    text: BinaryIO | None = None,
    on_progress: OnProgress = silent,
) -> Resolved:
    """Make the part of `plan` that the options name; raises `DedupError`.

    `warn` gets reasons why there are fewer copies than there might be, `text`
    all lines in the format of warccollres.
    """
    rule = options.rule
    part = plan / part_name(rule.partition)
    if part.exists():
        raise IndexExists(f"{part} exists already: remove it, or name another plan")
    check_is_plan(plan)
    inputs = _open_all(manifests, options)
    urls = container_urls(inputs.containers, options.base_urls, options.url_table, options.host)
    clock = Clock(on_progress)
    with (
        _directory(plan),
        closing(RecordReader(urls)) as reader,
        open_database(plan, options.memory, options.threads) as (database, home),
    ):
        database.execute("CREATE TABLE answered (replay_key UBIGINT)")
        _create_views(database, inputs, rule)
        unread: UnreadOriginals | None = None
        if options.index is not None:
            with clock("asking the index"):
                unread = _ask_index(database, inputs, options, home, warn, on_progress)
        with clock("grouping"), show_progress(database, on_progress, "grouping"):
            group(database, rule)
            if unread is not None:
                inputs.unread_originals = unread.count(inputs.first_place, rule, warn)
        with clock("comparing"):
            containers = {one.number: one for one in (*inputs.containers, *inputs.outside)}
            PayloadComparison(reader, containers, on_progress).run(database, options.compare)
        clock.seconds["fetching"] = reader.fetching
        with clock("writing", _WRITING), show_progress(database, on_progress, _WRITING):
            criteria = rule.criteria._asdict()
            common = {"later": rule.later, "criteria": criteria}
            made_of = inputs.made_of(**common, index=options.index is not None)
            about = {"partition": list(rule.partition), **common, "made_of": made_of}
            totals = write_part(database, inputs, rule.criteria, part, about, reader.counts, home)
        if text is not None:
            with clock("text"):
                write_text(database, inputs, rule, part, text)
    return Resolved(totals, clock.seconds)


def _open_all(manifests: Sequence[Path], options: ResolveOptions) -> ManifestInputs:
    inputs = ManifestInputs([open_manifest(path) for path in manifests])
    if options.host:
        check_host(options.host, inputs.hosts, "the manifests")
    if options.index is not None and any(inputs.hosts):
        raise BadInput("--index: an index does not know the hosts of files, and the manifests do")
    return inputs


def _ask_index(
    database: Database, inputs: ManifestInputs, options: ResolveOptions, home: Path, warn: Say,
    on_progress: OnProgress,
) -> UnreadOriginals:  # fmt: skip
    """Add what the index of the options knows, and create the views again."""
    from dedupindex.post_crawl.plan.index_originals import find_originals  # slow

    assert options.index is not None
    rule = options.rule
    unread = find_originals(database, inputs, options.index, rule, home, warn, on_progress)
    _create_views(database, inputs, rule)
    return unread


@contextmanager
def _directory(plan: Path) -> Iterator[None]:
    """Make the directory of a plan; it is removed if it is still empty at the end."""
    plan.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        with suppress(OSError):
            plan.rmdir()


def _create_views(database: Database, inputs: ManifestInputs, rule: GroupingRule) -> None:
    inputs.create_views(database)
    database.execute(
        f"CREATE OR REPLACE VIEW part AS SELECT * FROM lines WHERE {rule.of_partition()}"
    )


class Clock:
    """Reports each step, and measures how long it takes."""

    def __init__(self, on_progress: OnProgress = silent) -> None:
        self.seconds: dict[str, float] = {}
        self._on_progress = on_progress

    @contextmanager
    def __call__(self, step: str, shown: str = "") -> Iterator[None]:
        self._on_progress(ProgressUpdate(shown or step))
        begin = time.monotonic()
        yield
        self.seconds[step] = time.monotonic() - begin


def resolve_on(
    cluster: Cluster,
    manifests: Sequence[Path],
    plan: Path,
    options: ResolveOptions,
    say: Say = lambda text: None,
    on_progress: OnProgress = silent,
) -> Resolved:
    """Make all parts of `plan` on a Spark cluster, one for each core; raises `BadInput`.

    The manifests, and an index, are on storage that all executors mount under the same names.
    """
    parts = [(part, cluster.cores) for part in range(1, cluster.cores + 1)]
    if plan.exists() and any(plan.glob("part-*")):
        raise IndexExists(f"{plan} has parts already: remove them, or name another plan")
    paths = [path.resolve() for path in manifests]
    contents = [_manifest_json(path) for path in paths]
    for path in paths:
        open_manifest(path)
    index = None if options.index is None else options.index.resolve()
    table = None if options.url_table is None else options.url_table.resolve()
    options = replace(options, index=index, url_table=table, threads=options.threads or 1)
    work = partial(_resolve_part, paths, contents, options)
    plan.mkdir(parents=True, exist_ok=True)
    result = Resolved(Totals(), {})
    say(f"resolving in {cluster.cores} parts")
    with (
        tempfile.TemporaryDirectory(prefix=".resolve-", dir=plan) as name,
        cluster.shown("resolving", on_progress),
    ):
        home = Path(name)
        files = PieceWriter(home)
        for part in parts:
            (home / part_name(part)).mkdir()
        for row in cluster.rows(work, parts):
            if isinstance(row, FilePiece):
                files.take(row)
                continue
            files.finish()
            result.totals.add(row.totals)
            for step, seconds in row.seconds.items():
                result.seconds[step] = result.seconds.get(step, 0.0) + seconds
        for part in parts:
            sync_directory(home / part_name(part))
            os.replace(home / part_name(part), plan / part_name(part))
    sync_directory(plan)
    return result


def _manifest_json(path: Path) -> bytes:
    try:
        return (path / FILE).read_bytes()
    except OSError:
        return b""


def _resolve_part(
    manifests: list[Path], contents: list[bytes], options: ResolveOptions, part: tuple[int, int]
) -> Iterator[FilePiece | Resolved]:
    """Make one part on an executor; yields its files, then the result."""
    for path, content in zip(manifests, contents, strict=True):
        if _manifest_json(path) != content:
            raise BadInput(
                f"an executor does not have the same manifest {path} as the driver: with --spark "
                "put manifests on storage that the driver and all executors mount"
            )
    with tempfile.TemporaryDirectory(prefix="dedupindex-") as name:
        home = Path(name)
        try:
            resolved = resolve(
                manifests, home, replace(options, rule=replace(options.rule, partition=part))
            )
        except OSError as error:
            raise DedupError(f"{part_name(part)} was not made: {error}") from error
        made = home / part_name(part)
        for path in sorted(made.iterdir(), key=lambda path: (path.name == PART, path.name)):
            yield from pieces(path, f"{made.name}/{path.name}")
    yield resolved
