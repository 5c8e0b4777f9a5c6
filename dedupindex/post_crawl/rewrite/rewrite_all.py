"""All containers of a plan, side by side, each in a process of its own at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Protocol, TypeVar

from dedupindex.errors import BadInput, Damaged, DedupError, SettingsConflict
from dedupindex.object_store import check_here
from dedupindex.post_crawl.manifest.lines import ManifestContainer
from dedupindex.post_crawl.rewrite.journal import DIRECTORY, Journal
from dedupindex.post_crawl.rewrite.missing_originals import settled
from dedupindex.post_crawl.rewrite.part_files import sweep
from dedupindex.post_crawl.rewrite.rewrite_file import RewriteJob, RewriteOutcome
from dedupindex.post_crawl.rewrite.rewrite_output import rewrite_container
from dedupindex.runtime.atomic_replace import being_written, check_room, open_for_reading
from dedupindex.runtime.files import exclusive, shared
from dedupindex.runtime.workers import side_by_side

_A = TypeVar("_A")
_B = TypeVar("_B")


def rewrite(
    job: RewriteJob, processes: int = 1, begin: Callable[[], None] = lambda: None
) -> Iterator[RewriteOutcome]:
    """Rewrite every container of the plan; outcomes come as they are ready.

    Calls `begin` once, before the first write and after all that may refuse the run; not in a dry
    run. Raises `BadInput` or `DedupError` before anything is written, `SettingsConflict` if an
    earlier run in place had other options or another plan, `IndexBusy` if another run is at work,
    `DedupError` where writing fails: the containers that are done are done, the others as they
    were, and the same run again resumes it.
    """
    job.plan.hold()
    containers = sorted(job.plan.containers().values(), key=lambda one: -one.size)
    for container in containers:
        check_here(container.path)
    if job.out is not None:
        check_names(containers, job.out)
    else:
        _check_resumed(job, containers)
        job = job._replace(twice=_twice(containers))
    if job.dry:
        yield from _settled(job, side_by_side(_rewrite, job, containers, processes))
        return
    places = [job.out] if job.out else sorted({Path(one.root) for one in containers})
    _check_room(job, containers, processes)
    for place in places:
        (place / DIRECTORY).mkdir(parents=True, exist_ok=True)
    with locked(places), _apart([] if job.out else containers, places):
        begin()
        sweep(job.out / one.name if job.out else Path(one.path) for one in containers)
        if job.out is None:
            job = job._replace(busy=_busy(containers))
        yield from _settled(job, side_by_side(_rewrite, job, containers, processes))


def _check_resumed(job: RewriteJob, containers: list[ManifestContainer]) -> None:
    """Raise `SettingsConflict` if files of the plan were rewritten in place in another way.

    The plan describes such a file as it was before, so its records cannot be looked at again, and
    the set would end up rewritten partly in one way and partly in the other.
    """
    others: list[tuple[str, str]] = []
    for one in containers:
        journal = Journal(Path(one.root), one.name)
        with suppress(OSError, Damaged):  # which is told when its turn comes
            was, ended = journal.summary()
            done = journal.dropped.exists() and os.stat(one.path).st_size == ended.size
            if not done or was.content_hash != one.content_hash or not was.options:
                continue
            if was.plan != job.plan.made_of:
                others.append((one.path, "by another plan"))
            elif was.options != job.options:
                others.append((one.path, f"with {was.options}, not {job.options}"))
    if others:
        path, how = others[0]
        more = f" (and {len(others) - 1:,} more files)" if len(others) > 1 else ""
        raise SettingsConflict(
            f"{path} was rewritten in place {how}{more}; nothing was changed: finish that run "
            "with its own plan and options, or bring the files back with bin/undedup DIR --in-place"
        )


def _twice(containers: list[ManifestContainer]) -> set[int]:
    """Those that are one file: links, or a folder that is mounted or named twice."""
    files: dict[tuple[int, int, str], list[int]] = {}
    for one in containers:
        files.setdefault((one.device, one.inode, one.content_hash), []).append(one.number)
    return {number for numbers in files.values() if len(numbers) > 1 for number in numbers}


def _busy(containers: list[ManifestContainer]) -> set[int]:
    """Those that others write to or have locks on, before this run has locks of its own."""
    found = set()
    for one in containers:
        with suppress(OSError), open_for_reading(one.path) as file:
            if being_written(file):
                found.add(one.number)
    return found


def _settled(job: RewriteJob, outcomes: Iterator[RewriteOutcome]) -> Iterator[RewriteOutcome]:
    return settled(job, outcomes) if job.out is not None else outcomes


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


@contextmanager
def _apart(containers: list[ManifestContainer], places: list[Path]) -> Iterator[None]:
    """Let nobody hold directories above and below, whose locks are seen once ours are held.

    Side by side, one run could take what the other has just made its original.
    """
    own = {place.resolve() for place in places}
    paths = {Path(one.path).parent for one in containers}
    paths |= {path.resolve() for path in paths}
    folders = {folder for path in paths for folder in (path, *path.parents)}
    with ExitStack() as locks:
        for folder in sorted(folders):
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


class Named(Protocol):
    """A file below a folder."""

    @property
    def root(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def path(self) -> str: ...


def check_names(containers: Sequence[Named], out: Path) -> None:
    """Every container must have a name of its own below `out`, and none may be scanned again."""
    names: dict[str, Named] = {}
    for container in containers:
        other = names.setdefault(container.name, container)
        if other is not container:
            raise BadInput(
                f"{container.path} and {other.path} would both become {out / container.name}: "
                "name the folder above both, or rewrite them in two runs"
            )
    above = {out.resolve(), *out.resolve().parents}
    for root in {container.root for container in containers}:
        if Path(root).resolve() in above:
            raise BadInput(f"{out} is inside of {root}, where the next scan would find it")


def _check_room(job: RewriteJob, containers: list[ManifestContainer], processes: int) -> None:
    """Refuse to begin what would fill the disk; raises `DedupError`."""
    largest = sum(one.size for one in containers[:processes])
    if job.out is None:
        needed = {Path(one.root): largest + job.plan.totals.stored for one in containers}
    else:
        there = [job.out / one.name for one in containers]
        written = sum(path.stat().st_size for path in there if path.exists())
        needed = {job.out: sum(one.size for one in containers) - written + job.besides}
    for place, count in needed.items():
        check_room(place, count)
