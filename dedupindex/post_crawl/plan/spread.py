"""The parts of a plan, each made on an executor by what makes it here (`run.resolve`)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from dedupindex.errors import BadInput, DedupError, IndexExists
from dedupindex.post_crawl.manifest.parquet import FILE, open_manifest
from dedupindex.post_crawl.plan.make_plan import Resolved, ResolveOptions, resolve
from dedupindex.post_crawl.plan.plan_file import PART, Totals, part_name
from dedupindex.runtime.files import sync_directory
from dedupindex.runtime.spark import Cluster, FilePiece, PieceWriter, pieces


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
