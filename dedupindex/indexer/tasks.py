"""Plan a build: which containers to read, which are known already, and in which tasks."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain

from blake3 import blake3

from dedupindex.errors import BadInput, BadSource, ContainerChanged
from dedupindex.index.engine import IndexedContainer, View, for_each_crawl, was_read
from dedupindex.index.format.file_names import last_name
from dedupindex.object_store import RemoteFile, is_remote, redacted
from dedupindex.sources import Expanded, is_stream, service_of
from dedupindex.sources.source import GROWING
from dedupindex.warc.zstd_format import NEEDS

_READ_BYTES = 1 << 20
TASK_BYTES = 1 << 30  # of containers; a killed build keeps its finished tasks
_LEAST_BYTES = 1 << 26  # read in half a second; writing a task to disk takes some 10 milliseconds
_TASKS_OF_JOB = 16  # at least, if they are not smaller than that


@dataclass(frozen=True)
class Input:
    """One container to read: its absolute path, ``-`` for standard input, or an address."""

    path: str
    size: int  # bytes, 0 if it is not a file
    modified: int = 0  # nanoseconds since 1970, or the version of an object; 0: unknown

    @property
    def name(self) -> str:
        """The name under which the container is registered, without credentials."""
        if service := service_of(self.path):
            return service.name
        return redacted(self.path) if is_remote(self.path) else self.path


@dataclass
class BuildPlan:
    """The tasks of a build, and the containers that it does not read."""

    tasks: list[list[Input]] = field(default_factory=list)
    known: int = 0  # unchanged containers
    purged: int = 0  # containers whose captures were purged
    # Unchanged containers of which something was left out when they were read.
    defective: set[str] = field(default_factory=set)
    elsewhere: Counter[str] = field(default_factory=Counter)  # unchanged ones of other crawls
    moved: Counter[str] = field(default_factory=Counter)  # read again, by the crawl they leave
    reported: dict[str, list[str]] = field(default_factory=dict)  # see `Built.reported`
    dropped: set[str] = field(default_factory=set)  # those whose old captures are removed


def make_plan(
    expanded: Expanded,
    view: View | None,
    *,
    replace: bool,
    reread: bool,
    jobs: int,
    crawl: str = "",
    index: str,
    done: dict[str, tuple[int, int]],
    drops: bool = False,
) -> BuildPlan:
    """Divide the containers that were found into tasks, of a build of `index`, as commands name it.

    `done` maps the containers that an interrupted run of this build has staged to size and time of
    change; with `reread`, captures of containers that are read again for another `crawl` go. With
    `drops`, those of other containers may go, so known ones are read again. Before reading, raises
    `BadSource`, `ContainerChanged`, or `BadInput` for containers that would leave their crawl.
    """
    plan = BuildPlan()
    inputs, known = [], list[Input]()  # `known` could be left unread
    moved = dict[str, str]()  # known ones -> their other crawl
    replaced = defaultdict[str, list[str]](list)  # by their crawl
    found_names = set[str]()
    for path in expanded.paths:
        if is_stream(path):
            inputs.append(Input(path, 0))
            continue
        found = _input(path, expanded)
        found_names.add(found.name)
        is_staged = _is_staged(found, done)  # it may replace captures all the same
        before = None if view is None else _known(found, view, plan, replaced, replace=replace)
        if (other := _other_crawl(before, crawl, reread=reread)) is not None:
            moved[found.name] = other
        if is_staged:
            continue
        if before is None:
            inputs.append(found)
        elif before.purged:
            plan.known += 1
        else:
            known.append(found)
    _check_complete(done, found_names)
    _check_crawls(replaced, crawl, index)
    plan.dropped.update(chain.from_iterable(replaced.values()))
    drops = drops or bool(plan.dropped)
    plan.known += _pass_known(expanded, None if reread or drops else view)
    inputs += _read_again(plan, known, moved, reread=reread, drops=drops)
    plan.tasks = _divide(inputs, jobs)
    return plan


def _pass_known(expanded: Expanded, view: View | None) -> int:
    """Take files that the index has, and whose dictionary is missing now, out of the problems.

    They need not be read. Returns how many there are.
    """
    if view is None:
        return 0
    before = len(expanded.problems)
    for problem in [one for one in expanded.problems if NEEDS in one.message]:
        with suppress(BadSource):  # it is gone
            found = _input(problem.container, expanded)
            known = view.container(found.name)
            if known is not None and _is_unchanged(found, known):
                expanded.problems.remove(problem)
    return before - len(expanded.problems)


def _is_unchanged(found: Input, before: IndexedContainer) -> bool:
    return before.size == found.size and (
        before.modified == found.modified != 0 or before.content_hash == hash_of(found.path)
    )


def _read_again(
    plan: BuildPlan, known: list[Input], moved: dict[str, str], *, reread: bool, drops: bool
) -> list[Input]:
    """Return the known containers that are read; note those that are moved or left out."""
    if reread:
        plan.defective.clear()  # these are named again, as below
        plan.dropped.update(moved)
        plan.moved.update(moved.values())
        return known
    again = []
    if drops:  # captures that lost to removed ones must be read again
        again = [item for item in known if item.name not in moved]
        plan.defective.difference_update(item.name for item in again)
    plan.known += len(known) - len(again)
    plan.elsewhere.update(moved.values())
    return again


def _other_crawl(before: IndexedContainer | None, crawl: str, *, reread: bool) -> str | None:
    """Return the crawl of a known container that is given for another `crawl`, "" for none.

    None if it stays. Raises `BadInput` for a container of a crawl that is read again for none.
    """
    if before is None or before.purged or crawl == before.crawl:
        return None
    if reread and not crawl:
        raise BadInput(
            f"{before.name} was read for crawl {before.crawl}, and nothing was read again: "
            f"give --crawl {before.crawl}, with the files of that crawl only"
        )
    return before.crawl if crawl else None


def _check_crawls(replaced: Mapping[str, list[str]], crawl: str, index: str) -> None:
    """Raise `BadInput` for containers of another crawl that are to be replaced.

    What that crawl has reported of them would not be compared with them any more.
    """
    others = sorted(replaced.keys() - {crawl, ""})
    if not others:
        return
    commands = "; ".join(for_each_crawl("--replace", replaced, index))
    raise BadInput(
        f"{replaced[others[0]][0]} was read for crawl {others[0]}, where it has to stay, and "
        f"nothing was read again: {commands}"
    )


def crawls_of_files(plan: BuildPlan, view: View, crawl: str) -> dict[str, list[str]]:
    """Return other crawls that have captures in files of the names of those to be read for `crawl`.

    Each has these files. Not among them are files that were read for it, or of names that `crawl`
    has reported as well. Crawls that are not merged are not known.
    """
    files: dict[str, list[str]] = {}
    for found in chain.from_iterable(plan.tasks):
        files.setdefault(last_name(found.name), []).append(found.name)
    reported = {
        (place.crawl, last_name(place.container))
        for _, place in view.places()
        if place.crawl and last_name(place.container) in files
        and not was_read(view, place.container)
    }  # fmt: skip
    own = {name for reporter, name in reported if reporter == crawl}
    reported = {(other, name) for other, name in reported if name not in own}
    if reported:
        reported -= {(read.crawl, last_name(read.name)) for read in view.containers()}
    crawls: dict[str, list[str]] = {}
    for other, name in sorted(reported):
        crawls.setdefault(other, []).extend(files[name])
    return crawls


def _is_staged(found: Input, done: Mapping[str, tuple[int, int]]) -> bool:
    """Return whether a container was staged; raises `ContainerChanged` if it has changed since."""
    staged = done.get(found.name)
    if staged not in (None, (found.size, found.modified)):
        raise ContainerChanged(
            f"{found.name} has changed since the build that is resumed read it; "
            "run the command without --resume"
        )
    return staged is not None


def _check_complete(done: Mapping[str, tuple[int, int]], found_names: set[str]) -> None:
    """Raise `ContainerChanged` if a container that was staged is not found any more."""
    if missing := [name for name in done.keys() - found_names if not is_stream(name)]:
        raise ContainerChanged(
            f"{min(missing)} is not among the sources any more, and the build that is resumed has "
            "read it; run the command without --resume"
        )


def _input(path: str, expanded: Expanded) -> Input:
    if path in expanded.remote:
        facts = expanded.remote[path]
        return Input(path, facts.size, facts.version)
    name = os.path.abspath(path)
    try:
        status = os.stat(name)
    except OSError as error:
        raise BadSource(f"{name} cannot be read: {error.strerror}") from error
    return Input(name, status.st_size, status.st_mtime_ns)


def _known(
    found: Input, view: View, plan: BuildPlan, replaced: dict[str, list[str]], *, replace: bool
) -> IndexedContainer | None:
    """Return a container that was indexed as it is; hash it only if its time has changed.

    One that is to be replaced is added to `replaced`.
    """
    name, size = found.name, found.size
    before = view.container(name)
    if before is None:
        return None
    if before.purged:
        if replace:
            replaced[before.crawl].append(name)
            return None
        plan.purged += 1
        return before
    if _is_unchanged(found, before):
        if before.damaged:
            plan.defective.add(name)
        return before
    if not replace:
        raise ContainerChanged(
            f"{name} was indexed before with other content ({before.size:,} bytes then, {size:,} "
            "now); give --replace to put its captures in place of the old ones, or rename it"
        )
    replaced[before.crawl].append(name)
    return None


def _divide(inputs: list[Input], jobs: int) -> list[list[Input]]:
    """Return tasks of about equal size, largest containers first, several for each job."""
    inputs = sorted(inputs, key=lambda item: (-item.size, item.path))
    share = sum(item.size for item in inputs) // jobs
    target = min(TASK_BYTES, max(share // _TASKS_OF_JOB, _LEAST_BYTES))
    if jobs > 1:  # or some processes would have nothing to do at the end
        target = min(target, share // 4)
    tasks: list[list[Input]] = []
    left = -1  # bytes that the last task may still take
    for item in inputs:
        if item.size > left:
            tasks.append([])
            left = target
        tasks[-1].append(item)
        left -= item.size
    return tasks


def hash_of(path: str) -> str:
    """Return the BLAKE3 in hex of a file or object, by which a container is known."""
    hasher = blake3()
    if not is_remote(path):
        try:
            return hasher.update_mmap(path).hexdigest()
        except OSError as error:
            raise BadSource(f"{path} cannot be read: {error.strerror}") from error
    with RemoteFile(path) as file:
        while data := file.read(_READ_BYTES):
            hasher.update(data)
        if file.changed():
            raise BadSource(f"{file.name} {GROWING}")
    return hasher.hexdigest()
