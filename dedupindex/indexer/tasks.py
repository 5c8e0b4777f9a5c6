"""Which containers a build reads, which it knows already, and how they are parted into tasks."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from blake3 import blake3

from dedupindex.errors import BadSource, ContainerChanged
from dedupindex.index.engine import View
from dedupindex.object_store import RemoteFile, is_remote, redacted
from dedupindex.sources import Expanded, passing
from dedupindex.sources.source import GROWING

_PIECE = 1 << 20
TASK_BYTES = 1 << 30  # of containers; what a task has done is kept when a build is killed


@dataclass(frozen=True)
class Input:
    """One container to read: its absolute path, ``-`` for standard input, or an address."""

    path: str
    size: int  # bytes, 0 where it is no file
    modified: int = 0  # nanoseconds since 1970, or the mark of an object; 0: there is no telling

    @property
    def name(self) -> str:
        """What the container is known by."""
        return redacted(self.path) if is_remote(self.path) else self.path


@dataclass
class BuildPlan:
    """What a build has to do."""

    tasks: list[list[Input]] = field(default_factory=list)
    known: int = 0  # containers indexed before, unchanged
    purged: int = 0  # of these, whose captures were purged
    dropped: set[str] = field(default_factory=set)  # changed ones, whose captures go first


def make_plan(
    expanded: Expanded,
    view: View | None,
    *,
    replace: bool,
    reread: bool,
    jobs: int,
    done: dict[str, tuple[int, int]],
) -> BuildPlan:
    """Part the containers that were found into tasks.

    `done` has size and time of change of those that an earlier run of this build has staged.
    Raises `BadSource`, or `ContainerChanged` before anything is read.
    """
    plan = BuildPlan()
    inputs, known = [], list[Input]()
    found_names = set[str]()
    for path in expanded.paths:
        if passing(path):
            inputs.append(Input(path, 0))
            continue
        found = _input(path, expanded)
        found_names.add(found.name)
        if found.name in done:
            _check_unchanged(found, done[found.name])
            if view is not None:  # of one that takes the place of another, the old captures go
                _known(found, view, plan, replace=replace)
            continue
        if (
            view is not None
            and _known(found, view, plan, replace=replace)
            and not (reread and not _purged(found, view))
        ):
            known.append(found)
        else:
            inputs.append(found)
    if gone := [name for name in done.keys() - found_names if not passing(name)]:
        raise ContainerChanged(
            f"{min(gone)} is not among the sources any more, and the build that is resumed has "
            "read it; run the command without --resume"
        )
    if plan.dropped:  # what had lost to captures that go must be offered again
        inputs += [found for found in known if not _purged(found, view)]
    else:
        plan.known = len(known)
    plan.tasks = _tasks(inputs, jobs)
    return plan


def _check_unchanged(found: Input, staged: tuple[int, int]) -> None:
    """Raise `ContainerChanged` if a container is not what the resumed build has read."""
    if staged != (found.size, found.modified):
        raise ContainerChanged(
            f"{found.name} has changed since the build that is resumed read it; "
            "run the command without --resume"
        )


def _input(path: str, expanded: Expanded) -> Input:
    if path in expanded.elsewhere:
        facts = expanded.elsewhere[path]
        return Input(path, facts.size, facts.mark)
    name = os.path.abspath(path)
    try:
        status = os.stat(name)
    except OSError as error:
        raise BadSource(f"{name} cannot be read: {error.strerror}") from error
    return Input(name, status.st_size, status.st_mtime_ns)


def _known(found: Input, view: View, plan: BuildPlan, *, replace: bool) -> bool:
    """Whether a container was indexed as it is; hashed only if it was touched since."""
    name, size = found.name, found.size
    before = view.container(name)
    if before is None:
        return False
    if before.purged:
        if replace:
            plan.dropped.add(name)
        else:
            plan.purged += 1
        return not replace
    if before.size == size and (
        before.modified == found.modified != 0 or before.content_hash == hash_of(found.path)
    ):
        return True
    if not replace:
        raise ContainerChanged(
            f"{name} was indexed before with other content ({before.size} bytes then, {size} now); "
            "give --replace to put its captures in place of the old ones, or rename it"
        )
    plan.dropped.add(name)
    return False


def _purged(found: Input, view: View | None) -> bool:
    container = view.container(found.name) if view is not None else None
    return container is not None and container.purged


def _tasks(inputs: list[Input], jobs: int) -> list[list[Input]]:
    """Largest first, small ones together, enough tasks to keep all jobs at work to the end."""
    inputs = sorted(inputs, key=lambda item: (-item.size, item.path))
    total = sum(item.size for item in inputs)
    target = min(TASK_BYTES, total // (jobs * 4) if jobs > 1 else TASK_BYTES)
    tasks: list[list[Input]] = []
    weight = 0
    for item in inputs:
        if tasks and weight + item.size <= target:
            tasks[-1].append(item)
            weight += item.size
        else:
            tasks.append([item])
            weight = item.size
    return tasks


def hash_of(path: str) -> str:
    """As `hash_file`, for an address, too."""
    if not is_remote(path):
        return hash_file(Path(path))
    hasher = blake3()
    with RemoteFile(path) as file:
        while data := file.read(_PIECE):
            hasher.update(data)
        if file.changed():
            raise BadSource(f"{file.name} {GROWING}")
    return hasher.hexdigest()


def hash_file(path: Path) -> str:
    """BLAKE3 of a file's bytes in hex: what a container is known by."""
    hasher = blake3()
    try:
        hasher.update_mmap(path)
    except OSError as error:
        raise BadSource(f"{path} cannot be read: {error.strerror}") from error
    return hasher.hexdigest()
