"""Rewrite all files of a plan, in several processes.

A file can be left alone after others have become revisits of records in it, see `correct_results`.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager, suppress
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import NamedTuple

from dedupindex.errors import BadInput, Damaged, DedupError, SettingsConflict
from dedupindex.object_store import is_remote
from dedupindex.post_crawl.manifest.parquet import ManifestContainer
from dedupindex.post_crawl.plan.manifest_input import check_host
from dedupindex.post_crawl.plan.record_reader import ContainerUrls
from dedupindex.post_crawl.rewrite.check_copies import CheckedPart
from dedupindex.post_crawl.rewrite.correct_results import with_corrections
from dedupindex.post_crawl.rewrite.journal import (
    Journal,
    discard_unfinished,
)
from dedupindex.post_crawl.rewrite.protection import protect_for_others, record_key
from dedupindex.post_crawl.rewrite.result_place import bind_state
from dedupindex.post_crawl.rewrite.rewrite_file import (
    RewriteJob,
    check_part,
    rewrite_container,
)
from dedupindex.post_crawl.rewrite.rewrite_object import check_resumed_in_store, rewrite_object
from dedupindex.post_crawl.rewrite.rewrite_on_spark import check_for_spark, rewrite_on_spark
from dedupindex.post_crawl.rewrite.rewrite_outcome import RewriteOutcome
from dedupindex.post_crawl.rewrite.stored_journal import check_replaceable, locked_prefixes
from dedupindex.post_crawl.rewrite.undo_directory import (
    DIRECTORY,
    LOCK,
    UNCORRECTED,
    await_journals,
    awaited,
    has_undo_data,
    unmark_undoing,
)
from dedupindex.runtime.atomic_replace import (
    being_written,
    check_free_space,
    not_ownable,
    open_for_reading,
    remove_stale_parts,
)
from dedupindex.runtime.files import exclusive, shared
from dedupindex.runtime.spark import Cluster
from dedupindex.runtime.tables import names_text
from dedupindex.runtime.workers import side_by_side
from dedupindex.sources.warc_files import SourceFile

_NAMED = 3  # other names of a file


def rewrite(
    job: RewriteJob, processes: int = 1, begin: Callable[[], None] = lambda: None,
    cluster: Cluster | None = None,
) -> Iterator[RewriteOutcome]:  # fmt: skip
    """Rewrite every file of the plan; yields outcomes in the order in which they are ready.

    It is done in `processes` of this machine, or on a Spark `cluster`. `begin` is called once,
    before the first write and after all checks; not in a dry run. If writing fails, finished files
    stay, all others are unchanged, and the same run resumes.

    Raises:
        BadInput, DedupError: before anything is written; also if the plan is of other hosts.
        SettingsConflict: an earlier run in place had other options or another plan.
        IndexBusy: another run is at work.
        DedupError: writing fails.
    """
    job.plan.preload()
    check_host(job.urls.host, job.plan.hosts(), "the plan")
    containers = sorted(job.containers().values(), key=lambda file: -file.size)
    if job.out is not None:
        check_names(containers, job.out, job.searched, job.store)
    else:
        if check_replaceable(container.path for container in containers):
            yield from _in_stores(job, containers, processes, begin, cluster)
            return
        _check_resumed(job, containers)
        here = ContainerUrls(host=job.urls.host)  # --commit reads no files of other hosts
        job = job._replace(
            aliased=_aliased(containers), real_roots=_real_roots(job, containers), urls=here
        )
    if cluster is not None:
        check_for_spark(job)
        processes = 0  # that need room on this machine
    if job.dry:
        yield from _outcomes(job, containers, processes, cluster)
        return
    places = [job.out] if job.out else sorted({Path(file.root) for file in containers})
    _check_places(job, processes)
    with _made_and_locked(places), _related_locked([] if job.out else containers, places):
        if job.out is not None:
            bind_state(job.out, job.store)
        begin()
        _remove_leftovers(job, containers, places)
        if job.out is None:
            job = job._replace(busy=_busy(containers))
            for place in places:  # of an undo that was interrupted, and is not to be finished
                unmark_undoing(place)
        if job.urls.host:
            _protect_for_others(job)
        yield from _outcomes(job, containers, processes, cluster)


def _in_stores(
    job: RewriteJob, containers: list[ManifestContainer], processes: int,
    begin: Callable[[], None], cluster: Cluster | None,
) -> Iterator[RewriteOutcome]:  # fmt: skip
    """Replace objects of stores; see `rewrite`."""
    if job.urls.host or cluster is not None:
        raise BadInput("--in-place in an object store goes without --host and --spark")
    check_resumed_in_store(job, containers)
    if job.dry:
        yield from _in_parts(job, containers, processes)
        return
    _check_places(job, processes)
    with locked_prefixes(container.root for container in containers):
        begin()
        yield from _in_parts(job, containers, processes)


def _remove_leftovers(
    job: RewriteJob, containers: list[ManifestContainer], places: list[Path]
) -> None:
    """Remove what killed runs left."""
    for place in places:
        discard_unfinished(place)
    remove_stale_parts(job.out / file.name if job.out else Path(file.path) for file in containers)


def _outcomes(
    job: RewriteJob, containers: list[ManifestContainer], processes: int, cluster: Cluster | None
) -> Iterator[RewriteOutcome]:
    if cluster is None:
        outcomes = _in_parts(job, containers, processes)
    else:
        outcomes = rewrite_on_spark(cluster, job, containers)
    if job.store and not job.dry:
        outcomes = _with_awaited(job, containers, outcomes, on_spark=cluster is not None)
    return outcomes if job.out is None else with_corrections(job, outcomes)


def _with_awaited(
    job: RewriteJob, containers: list[ManifestContainer], outcomes: Iterator[RewriteOutcome], *,
    on_spark: bool,
) -> Iterator[RewriteOutcome]:  # fmt: skip
    """Yield the outcomes; what is on disk says whose journals are lost if Spark's driver is killed.

    A file that was left alone may have been written by an earlier run that was killed.
    """
    assert job.out is not None
    earlier, left = awaited(job.out), set[str]()
    names = {container.name for container in containers}
    if on_spark:
        await_journals(job.out, earlier | names)
    for outcome in outcomes:
        if outcome.state == "left_alone":
            left.add(outcome.name)
        yield outcome
    if earlier or on_spark:
        await_journals(job.out, earlier - (names - left))


def _protect_for_others(job: RewriteJob) -> None:
    """Record what copies on other hosts may refer to, whether their host is before or after us."""
    rows = job.plan.referred_elsewhere(job.urls.host)
    for number, group in groupby(rows, key=itemgetter(0)):
        container = job.plan.container(number)
        keys = {record_key(url, date) for _, url, date in group}
        protect_for_others(job.out or Path(container.root), container.name, keys, job.urls.host)


class _RewriteTask(NamedTuple):
    """A part of a file to be checked, or a file to be rewritten."""

    container: ManifestContainer
    part: range | None = None  # of `Plan.parts`, to be checked
    spool: Path = Path()  # for what is found in the part
    checked: tuple[CheckedPart, ...] = ()  # all parts of a file that were checked before


def _in_parts(
    job: RewriteJob, containers: list[ManifestContainer], processes: int
) -> Iterator[RewriteOutcome]:
    """Yield the outcome of each file; records of large files are checked before, in parts."""
    parts, tasks = job.plan.parts(processes), list[_RewriteTask]()
    checked: defaultdict[int, list[CheckedPart]] = defaultdict(list)

    def follow(result: RewriteOutcome | CheckedPart) -> Iterator[_RewriteTask]:
        if isinstance(result, CheckedPart):
            found = checked[result.number]
            found.append(result)
            if len(found) == len(parts[result.number]):
                container = job.plan.container(result.number)
                yield _RewriteTask(container, checked=tuple(checked.pop(result.number)))

    with TemporaryDirectory(prefix="dedupindex-rewrite-") as beside:
        for container in containers:
            if len(parts[container.number]) == 1 or is_remote(container.path):  # read once
                tasks.append(_RewriteTask(container))
                continue
            for part in parts[container.number]:
                tasks.append(_RewriteTask(container, part, Path(beside, str(len(tasks)))))
        for result in side_by_side(_rewrite, job, tasks, processes, follow):
            if isinstance(result, RewriteOutcome):
                yield result


def _rewrite(job: RewriteJob, task: _RewriteTask) -> RewriteOutcome | CheckedPart:
    container = task.container
    if task.part is not None:
        return check_part(job, container, task.part, task.spool)
    try:
        if job.out is None and is_remote(container.path):
            return rewrite_object(job, container)
        return rewrite_container(job, container, task.checked)
    except OSError as error:
        place = f", with its result in {job.out}" if job.out is not None else ""
        raise DedupError(
            f"{container.path}{place}: {error.strerror or error}; this file is unchanged, and "
            "others may be done: run the same command again to resume"
        ) from error


def _check_resumed(job: RewriteJob, containers: list[ManifestContainer]) -> None:
    """Raise `SettingsConflict` if a file was rewritten in place by other options or another plan.

    Its records cannot be compared again, and the set would end up rewritten in two ways.
    """
    others: list[tuple[str, str]] = []
    for file in containers:
        journal = Journal(Path(file.root), file.name)
        with suppress(OSError, Damaged):  # reported when the file is rewritten
            before, after = journal.summary()
            done = journal.dropped.exists() and os.stat(file.path).st_size == after.size
            if not done or before.content_hash != file.content_hash or not before.options:
                continue
            if before.plan != job.plan.made_of:
                others.append((file.path, "by another plan"))
            elif before.options != job.options:
                others.append((file.path, f"with {before.options}, not {job.options}"))
    if others:
        path, how = others[0]
        more = f" (and {len(others) - 1:,} more files)" if len(others) > 1 else ""
        raise SettingsConflict(
            f"{path} was rewritten in place {how}{more}; nothing was changed: finish that run "
            "with its own plan and options, or restore the files with bin/undedup DIR --in-place"
        )


def _aliased(containers: list[ManifestContainer]) -> dict[int, str]:
    """Return, by number, what to do with entries that are one file.

    That is by links, or folders named twice.
    """
    files = defaultdict[tuple[int, int, str], list[ManifestContainer]](list)
    for file in containers:
        files[file.device, file.inode, file.content_hash].append(file)
    return {
        file.number: _alias_text(Path(file.path), [Path(one.path) for one in same if one != file])
        for same in files.values()
        for file in same
        if len(same) > 1
    }


def _alias_text(path: Path, others: list[Path]) -> str:
    """Name the other names of a file, and say which to remove."""
    named = names_text(sorted(map(str, others)), _NAMED)
    links = sorted(str(one) for one in (path, *others) if one.is_symlink())
    if len(links) > len(others):
        return f"also {named}. All are symbolic links: name their target instead"
    if links:
        gone = names_text(links, _NAMED)
        return f"also {named}. Remove or move what is a symbolic link ({gone}), then repeat this"
    with suppress(OSError):  # told when it is opened
        if os.stat(path).st_nlink > 1:
            return (
                f"also {named}. These are hard links: remove all names but one (to move them is "
                "not enough), then repeat this"
            )
    return f"also {named}. Name each file once"


def _real_roots(job: RewriteJob, containers: list[ManifestContainer]) -> set[Path]:
    """Return the searched directories, and the files that were named themselves, without links.

    Such a file is all that was named of its directory.
    """
    roots = {file.root for file in containers}
    if job.searched is not None:
        named = {file.path for file in containers if file.root not in job.searched}
        roots = {root for root in job.searched if not is_remote(root)} | named
    return {Path(root).resolve() for root in roots}


def _busy(containers: list[ManifestContainer]) -> set[int]:
    """Return the files that others write to or lock; asked before this run has its own locks."""
    busy = set()
    for container in containers:
        with suppress(OSError), open_for_reading(container.path) as file:
            if being_written(file):
                busy.add(container.number)
    return busy


@contextmanager
def _related_locked(containers: list[ManifestContainer], places: list[Path]) -> Iterator[None]:
    """Hold the locks of directories above and below, whose runs may rewrite our originals."""
    own = {place.resolve() for place in places}
    paths = {Path(file.path).parent for file in containers}
    paths |= {path.resolve() for path in paths}
    with ExitStack() as locks:
        for folder in sorted({folder for path in paths for folder in (path, *path.parents)}):
            lock = folder / DIRECTORY / LOCK
            if lock.is_file() and folder.resolve() not in own:
                with suppress(FileNotFoundError):  # a run that wrote nothing has removed it
                    locks.enter_context(shared(lock, str(folder)))
        yield


@contextmanager
def locked(places: list[Path]) -> Iterator[None]:
    """Hold the locks of directories; raises `IndexBusy`."""
    with ExitStack() as locks:
        for place in places:
            locks.enter_context(exclusive(place / DIRECTORY / LOCK, str(place)))
        yield


@contextmanager
def _made_and_locked(places: list[Path]) -> Iterator[None]:
    """Make the directories of journals, and hold their locks; raises `IndexBusy`.

    One that was made among other files is removed again if it holds no journal: SOURCE and DIR may
    have been swapped. In a directory of results of its own a run leaves it, as `bin/undedup` asks
    for it even if there is nothing to restore.
    """
    with ExitStack() as homes:
        for place in places:
            homes.enter_context(_home(place))
        yield


@contextmanager
def _home(place: Path) -> Iterator[None]:
    home, made = place / DIRECTORY, False
    with ExitStack() as lock:
        while True:
            among_others = place.is_dir() and any(place.iterdir())
            with suppress(FileExistsError):
                home.mkdir(parents=True)
                made = among_others
            with suppress(FileNotFoundError):  # another run has just removed it
                lock.enter_context(exclusive(home / LOCK, str(place)))
                break
        try:
            yield
        finally:
            if made and not has_undo_data(place):
                for name in (LOCK, UNCORRECTED):
                    (home / name).unlink(missing_ok=True)
                with suppress(OSError):  # another run has made its lock there
                    home.rmdir()


def check_names(
    files: Sequence[ManifestContainer | SourceFile], out: Path, searched: Set[str] | None = None,
    store: str = "",
) -> None:  # fmt: skip
    """Raise `BadInput` if two files have the same name below `out`, or `out` is in a source.

    If results go to a `store`, its address must not be in a source either. Sources are the
    `searched` directories, or the directories of all files. The results of a file that was named
    itself may stand below its directory, but not in it, beside the file.
    """
    names: dict[str, ManifestContainer | SourceFile] = {}
    for file in files:
        other = names.setdefault(file.name, file)
        if other is not file:
            raise BadInput(
                f"{file.path} and {other.path} would both become {out / file.name}: "
                "name the folder above both, or rewrite them into two directories"
            )
    target = out.resolve()
    roots = {file.root for file in files if not is_remote(file.root)}
    for file in files:
        if store and store.rstrip("/") == file.root.rstrip("/"):
            raise BadInput(
                f"{store} is the source itself: name another prefix, or use --in-place without "
                "--state"
            )
        if store and f"{store}/".startswith(f"{file.root.rstrip('/')}/"):
            raise BadInput(f"{store} is in {file.root}, where the next scan would read it")
    if any(Path(root).resolve() == target for root in roots):
        raise BadInput(
            f"{out} has the sources in it: name another directory (bin/dedup and bin/rewrite "
            "rewrite them there with --in-place)"
        )
    for root in roots if searched is None else searched:
        if Path(root).resolve() in (target, *target.parents):
            raise BadInput(f"{out} is in {root}, where the next scan would read it")


def needed_space(job: RewriteJob, processes: int) -> dict[Path, int]:
    """Return the bytes that a run may write at most, by the directories where it does."""
    containers = sorted(job.containers().values(), key=lambda file: -file.size)
    if job.out is None and containers and is_remote(containers[0].path):
        temporary = Path(gettempdir())  # source, new file and dropped members of each process
        return {temporary: 3 * sum(file.size for file in containers[:processes])}
    if job.out is None:
        largest = sum(file.size for file in containers[:processes])
        stored = job.plan.copies_of(job.urls.host).stored
        return {Path(file.root): largest + stored for file in containers}
    if job.store:  # each file of a process, and a copy of its source
        return {job.out: 2 * sum(file.size for file in containers[:processes])}
    targets = [job.out / file.name for file in containers]
    written = sum(path.stat().st_size for path in targets if path.exists())
    return {job.out: sum(file.size for file in containers) - written + job.reserved}


def _check_places(job: RewriteJob, processes: int) -> None:
    """Raise `DedupError` if there is no room for a run, or a directory cannot be written to."""
    fewer = "name fewer SOURCEs in each of several runs, "
    in_parts = job.out is None or job.store  # then space is needed for some files at a time
    fewer += "or give --jobs 1, which needs less" if in_parts else "or an --out on another disk"
    for place, needed in needed_space(job, processes).items():
        check_free_space(place, needed, fewer)
    if closed := not_writable(job):
        raise DedupError(f"{closed}; no archive was written")


def lost_owners(paths: Iterable[str], out: Path | None) -> str:
    """Say that the results of some files, or what replaces them, cannot keep their owner."""
    found = not_ownable((path for path in paths if not is_remote(path)), out)
    if not found:
        return ""
    more = f" (and {len(found) - 1:,} more files)" if found[1:] else ""
    if out is not None:
        return f"{found[0]}{more}: the result does not keep the owner, which this user may not set"
    return (
        f"{found[0]}{more} belongs to another user, and this one may not give a file to that: run "
        "the command as root, or write the results to a directory with --out"
    )


def not_writable(job: RewriteJob) -> str:
    """Say what a run in place cannot write to, or not as its owner; "" if it can write to all."""
    if job.out is not None:
        return ""
    containers = [file for file in job.containers().values() if not is_remote(file.path)]
    journals = {file.root: Path(file.root, DIRECTORY) for file in containers}
    places = {Path(file.path).parent for file in containers}
    places.update(kept if kept.is_dir() else kept.parent for kept in journals.values())
    closed = {place for place in places if not os.access(place, os.W_OK)}
    for file in containers if closed else ():
        if next(iter(job.plan.copies(file.number)), None) is None:
            continue
        kept = journals[file.root]
        for place in (kept if kept.is_dir() else kept.parent, Path(file.path).parent):
            if place in closed:
                return f"{place} cannot be written to, and {file.path} is to be replaced"
    copies = job.plan.copies
    replaced = (file.path for file in containers if next(iter(copies(file.number)), None))
    return lost_owners(replaced, None)
