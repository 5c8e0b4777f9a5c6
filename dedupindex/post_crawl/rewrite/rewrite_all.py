"""Rewrite all files of a plan, in several processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from dedupindex.errors import BadInput, Damaged, DedupError, SettingsConflict
from dedupindex.object_store import check_local
from dedupindex.post_crawl.manifest.lines import ManifestContainer
from dedupindex.post_crawl.rewrite.journal import DIRECTORY, Journal
from dedupindex.post_crawl.rewrite.missing_originals import with_corrections
from dedupindex.post_crawl.rewrite.rewrite_file import RewriteJob, RewriteOutcome
from dedupindex.post_crawl.rewrite.rewrite_output import rewrite_container
from dedupindex.runtime.atomic_replace import (
    being_written,
    check_free_space,
    open_for_reading,
    remove_stale_parts,
)
from dedupindex.runtime.files import exclusive, shared
from dedupindex.runtime.workers import side_by_side
from dedupindex.sources.warc_files import SourceFile


def rewrite(
    job: RewriteJob, processes: int = 1, begin: Callable[[], None] = lambda: None
) -> Iterator[RewriteOutcome]:
    """Rewrite every file of the plan; yields outcomes in the order in which they are ready.

    `begin` is called once, before the first write and after all checks; not in a dry run. If
    writing fails, finished files stay, all others are unchanged, and the same run resumes.

    Raises:
        BadInput, DedupError: before anything is written.
        SettingsConflict: an earlier run in place had other options or another plan.
        IndexBusy: another run is at work.
        DedupError: writing fails.
    """
    job.plan.preload()
    containers = sorted(job.plan.containers().values(), key=lambda one: -one.size)
    for container in containers:
        check_local(container.path)
    if job.out is not None:
        check_names(containers, job.out)
    else:
        _check_resumed(job, containers)
        job = job._replace(aliased=_aliased(containers))
    if job.dry:
        yield from _outcomes(job, containers, processes)
        return
    places = [job.out] if job.out else sorted({Path(one.root) for one in containers})
    _check_free_space(job, containers, processes)
    for place in places:
        (place / DIRECTORY).mkdir(parents=True, exist_ok=True)
    with locked(places), _related_locked([] if job.out else containers, places):
        begin()
        remove_stale_parts(job.out / one.name if job.out else Path(one.path) for one in containers)
        if job.out is None:
            job = job._replace(busy=_busy(containers))
        yield from _outcomes(job, containers, processes)


def _outcomes(
    job: RewriteJob, containers: list[ManifestContainer], processes: int
) -> Iterator[RewriteOutcome]:
    outcomes = side_by_side(_rewrite, job, containers, processes)
    return outcomes if job.out is None else with_corrections(job, outcomes)


def _rewrite(job: RewriteJob, container: ManifestContainer) -> RewriteOutcome:
    try:
        outcome = rewrite_container(job, container)
        outcome.path = container.path
        return outcome
    except OSError as error:
        raise DedupError(
            f"{container.path}: {error.strerror or error}; this file is as it was, those before it "
            "are done: run the same again to go on"
        ) from error


def _check_resumed(job: RewriteJob, containers: list[ManifestContainer]) -> None:
    """Raise `SettingsConflict` if a file was rewritten in place by other options or another plan.

    The plan describes such a file as it was before, so its records cannot be compared again; the
    set would end up rewritten partly in one way and partly in another.
    """
    others: list[tuple[str, str]] = []
    for one in containers:
        journal = Journal(Path(one.root), one.name)
        with suppress(OSError, Damaged):  # reported when the file is rewritten
            before, after = journal.summary()
            done = journal.dropped.exists() and os.stat(one.path).st_size == after.size
            if not done or before.content_hash != one.content_hash or not before.options:
                continue
            if before.plan != job.plan.made_of:
                others.append((one.path, "by another plan"))
            elif before.options != job.options:
                others.append((one.path, f"with {before.options}, not {job.options}"))
    if others:
        path, how = others[0]
        more = f" (and {len(others) - 1:,} more files)" if len(others) > 1 else ""
        raise SettingsConflict(
            f"{path} was rewritten in place {how}{more}; nothing was changed: finish that run "
            "with its own plan and options, or bring the files back with bin/undedup DIR --in-place"
        )


def _aliased(containers: list[ManifestContainer]) -> set[int]:
    """Return the numbers of entries that are one file: by links, or folders named twice."""
    files: dict[tuple[int, int, str], list[int]] = {}
    for one in containers:
        files.setdefault((one.device, one.inode, one.content_hash), []).append(one.number)
    return {number for numbers in files.values() if len(numbers) > 1 for number in numbers}


def _busy(containers: list[ManifestContainer]) -> set[int]:
    """Return the files that others write to or lock; asked before this run has its own locks."""
    busy = set()
    for one in containers:
        with suppress(OSError), open_for_reading(one.path) as file:
            if being_written(file):
                busy.add(one.number)
    return busy


@contextmanager
def _related_locked(containers: list[ManifestContainer], places: list[Path]) -> Iterator[None]:
    """Hold the existing locks of directories above and below `places`.

    Otherwise two runs side by side could each rewrite what the other refers to.
    """
    own = {place.resolve() for place in places}
    paths = {Path(one.path).parent for one in containers}
    paths |= {path.resolve() for path in paths}
    with ExitStack() as locks:
        for folder in sorted({folder for path in paths for folder in (path, *path.parents)}):
            lock = folder / DIRECTORY / "lock"
            if lock.is_file() and folder.resolve() not in own:
                locks.enter_context(shared(lock, str(folder)))
        yield


@contextmanager
def locked(places: list[Path]) -> Iterator[None]:
    """Hold the locks of directories; raises `IndexBusy`."""
    with ExitStack() as locks:
        for place in places:
            locks.enter_context(exclusive(place / DIRECTORY / "lock", str(place)))
        yield


def check_names(files: Sequence[ManifestContainer | SourceFile], out: Path) -> None:
    """Raise `BadInput` if two files have the same name below `out`, or `out` is in a source."""
    names: dict[str, ManifestContainer | SourceFile] = {}
    for file in files:
        other = names.setdefault(file.name, file)
        if other is not file:
            raise BadInput(
                f"{file.path} and {other.path} would both become {out / file.name}: "
                "name the folder above both, or rewrite them in two runs"
            )
    above = {out.resolve(), *out.resolve().parents}
    for root in {file.root for file in files}:
        if Path(root).resolve() in above:
            raise BadInput(f"{out} is inside of {root}, where the next scan would find it")


def _check_free_space(job: RewriteJob, containers: list[ManifestContainer], processes: int) -> None:
    """Raise `DedupError` if the run would fill the disk."""
    if job.out is None:
        largest = sum(one.size for one in containers[:processes])
        needed = {Path(one.root): largest + job.plan.totals.stored for one in containers}
    else:
        targets = [job.out / one.name for one in containers]
        written = sum(path.stat().st_size for path in targets if path.exists())
        needed = {job.out: sum(one.size for one in containers) - written + job.reserved}
    for place, count in needed.items():
        check_free_space(place, count)
