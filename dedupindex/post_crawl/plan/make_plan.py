"""One run: manifests in, a part of a plan out."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from dedupindex.errors import BadInput, DedupError, IndexExists
from dedupindex.post_crawl.manifest.parquet import FILE, open_manifest
from dedupindex.post_crawl.plan.compare_payloads import Compare, Comparing, Members
from dedupindex.post_crawl.plan.group_duplicates import GroupingRule, group
from dedupindex.post_crawl.plan.manifest_input import Inputs
from dedupindex.post_crawl.plan.plan_file import PART, Totals, check_is_plan, part_name
from dedupindex.post_crawl.plan.plan_writer import write_part
from dedupindex.post_crawl.plan.warccollres_format import write_text
from dedupindex.runtime.duckdb import Database, open_database
from dedupindex.runtime.files import sync_directory
from dedupindex.runtime.spark import Cluster, FilePiece, PieceWriter, pieces


@dataclass(frozen=True)
class ResolveOptions:
    """How a run is done."""

    rule: GroupingRule = field(default_factory=GroupingRule)
    compare: Compare = field(default_factory=Compare)
    index: Path | None = None  # where originals of other files are looked for
    base_urls: tuple[str, ...] = ()  # where containers are that are not here
    memory: str = "1GB"  # for DuckDB; the process takes some more
    threads: int = 0  # as many as there are cores


@dataclass
class Resolved:
    """What a run came to."""

    totals: Totals
    seconds: dict[str, float]  # by step

    def as_json(self) -> dict[str, Any]:
        seconds = {name: round(value, 3) for name, value in self.seconds.items()}
        return {**self.totals.as_json(), "seconds": seconds}


def resolve(
    manifests: Sequence[Path],
    plan: Path,
    options: ResolveOptions,
    say: Callable[[str], None] = lambda text: None,
    text: BinaryIO | None = None,
    warn: Callable[[str], None] | None = None,
) -> Resolved:
    """Make the part of `plan` that the options name; raises `DedupError`.

    `say` hears of every step that may take long; `text` takes all lines as warccollres has them;
    `warn`, by default `say`, hears why there are fewer copies than there might be.
    """
    rule = options.rule
    part = plan / part_name(rule.partition)
    if part.exists():
        raise IndexExists(f"{part} is there already: remove it, or name another plan")
    check_is_plan(plan)
    inputs = Inputs([open_manifest(path) for path in manifests])
    clock = _Clock(say)
    with (
        _made(plan),
        closing(Members(options.base_urls)) as members,
        open_database(plan, options.memory, options.threads) as (database, home),
    ):
        database.execute('CREATE TABLE named (container INTEGER, "offset" BIGINT)')
        _view(database, inputs, rule)
        if options.index is not None:
            from dedupindex.post_crawl.plan.index_originals import (
                consult,  # and with it the engines
            )

            with clock("asking the index"):
                consult(database, inputs, options.index, rule, home, say, warn or say)
                _view(database, inputs, rule)
        with clock("grouping"):
            group(database, rule)
        with clock("comparing"):
            places = {one.number: one for one in (*inputs.containers, *inputs.outside)}
            Comparing(members, places, say).run(database, options.compare)
        clock.seconds["fetching"] = members.fetching
        with clock("writing"):
            about = _about(inputs, options)
            totals = write_part(database, inputs, rule.alike, part, about, members.counted, home)
        if text is not None:
            with clock("text"):
                write_text(database, inputs, rule, part, text)
    return Resolved(totals, clock.seconds)


@contextmanager
def _made(plan: Path) -> Iterator[None]:
    """Make the directory of a plan; it goes again if nothing comes to stand in it."""
    plan.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        with suppress(OSError):  # it is not empty
            plan.rmdir()


def _about(inputs: Inputs, options: ResolveOptions) -> dict[str, Any]:
    """What a part says of itself."""
    rule = options.rule
    together = {"later": rule.later, "alike": rule.alike._asdict()}
    made_of = inputs.made_of(**together, index=options.index is not None)
    return {"partition": list(rule.partition), **together, "made_of": made_of}


def _view(database: Database, inputs: Inputs, rule: GroupingRule) -> None:
    inputs.view(database)
    database.execute(
        f"CREATE OR REPLACE VIEW part AS SELECT * FROM lines WHERE {rule.of_partition()}"
    )


class _Clock:
    """Says what is done, and how long each step took."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.seconds: dict[str, float] = {}
        self._say = say

    @contextmanager
    def __call__(self, step: str) -> Iterator[None]:
        self._say(step)
        begin = time.monotonic()
        yield
        self.seconds[step] = time.monotonic() - begin


# The parts of a plan, each made on an executor by what makes it here (`run.resolve`).


def resolve_on(
    cluster: Cluster,
    manifests: Sequence[Path],
    plan: Path,
    options: ResolveOptions,
    say: Callable[[str], None] = lambda text: None,
) -> Resolved:
    """Make all parts of `plan`, one for each core: equal digests are in one of them.

    The manifests, and an index, are on storage that all executors mount under the same names;
    raises `BadInput` where they are not. Containers are read only to be compared.
    """
    parts = [(part, cluster.cores) for part in range(1, cluster.cores + 1)]
    if plan.exists() and any(plan.glob("part-*")):
        raise IndexExists(f"there are parts in {plan} already: remove them, or name another plan")
    here = [path.resolve() for path in manifests]
    said = [_said(path) for path in here]
    for path in here:
        open_manifest(path)
    work = partial(_resolve, here, said, _elsewhere(options))
    plan.mkdir(parents=True, exist_ok=True)
    together = Resolved(Totals(), {})
    say(f"resolving in {cluster.cores} parts")
    with tempfile.TemporaryDirectory(prefix=".resolve-", dir=plan) as name:
        home = Path(name)
        files = PieceWriter(home)
        for part in parts:
            (home / part_name(part)).mkdir()
        for row in cluster.rows(work, parts):
            if isinstance(row, FilePiece):
                files.take(row)
                continue
            files.finish()
            together.totals.add(row.totals)
            for step, seconds in row.seconds.items():
                together.seconds[step] = together.seconds.get(step, 0.0) + seconds
        for part in parts:
            sync_directory(home / part_name(part))
            os.replace(home / part_name(part), plan / part_name(part))
    sync_directory(plan)
    return together


def _elsewhere(options: ResolveOptions) -> ResolveOptions:
    """The same for an executor: its cores have a part each."""
    index = None if options.index is None else options.index.resolve()
    return replace(options, index=index, threads=options.threads or 1)


def _said(path: Path) -> bytes:
    try:
        return (path / FILE).read_bytes()
    except OSError:
        return b""


def _resolve(
    manifests: list[Path], said: list[bytes], options: ResolveOptions, part: tuple[int, int]
) -> Iterator[FilePiece | Resolved]:
    """Runs on an executor."""
    for path, text in zip(manifests, said, strict=True):
        if _said(path) != text:
            raise BadInput(
                f"an executor does not have the manifest {path} that the driver has: with --spark "
                "manifests are on storage that all mount"
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
