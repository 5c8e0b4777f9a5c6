"""Restore the records that revisits replaced.

While the dropped members are kept, each file is restored bit for bit. Without them each record is
made from its revisit and its original: the record is the same bit for bit, its gzip member is not.
So a file that is not compressed is restored bit for bit, too.
Each run that rewrote a file left a journal and made the file smaller, so the sizes in the journals
lead from the present size back to the first.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple

from dedupindex.errors import Damaged
from dedupindex.post_crawl.manifest.parquet import ManifestContainer
from dedupindex.post_crawl.rewrite.journal import FileAfter, FileBefore, Journal, name_of
from dedupindex.post_crawl.rewrite.result_place import DirectoryPlace, place_of
from dedupindex.post_crawl.rewrite.undo_directory import (
    DIRECTORY,
    awaited,
    mark_undoing,
    unmark_undoing,
)
from dedupindex.post_crawl.undo_damage import (
    RecordFinding,
    RecordRestorer,
    is_put_back,
    is_rewritten,
    unlisted_revisit,
)
from dedupindex.post_crawl.undo_records import (
    OnOtherHost,
    OriginalFinder,
    RewriteRun,
    checked_entries,
    damaged_text,
    revisits,
    revisits_of_run,
    rewrite_runs,
    write_records,
)
from dedupindex.runtime.atomic_replace import (
    NOT_REPLACED,
    PART_NAME,
    DrySink,
    FileSink,
    Sink,
    Untouched,
    check_free_space,
    content_hash,
    copy_metadata,
    create_file,
    hash_of,
    is_still,
    lock_source,
    open_for_reading,
    open_part,
    part_path,
    remove_stale_parts,
    removing,
    replace_file,
)
from dedupindex.runtime.walk_directories import OnError, names_in, walk_links
from dedupindex.warc.zstd_format import (
    MAGIC,
    MissingDictionary,
    UnreadableFrame,
    content_start,
    is_zstd,
)

_OF_A_PATH = (  # of a name in a damaged journal
    errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EINVAL,
)  # fmt: skip
_AWAITED = (
    "an interrupted run on Spark may have written it, and its journal is not here: run that "
    "command again, with the same sources and options"
)
_RESTORED_ALREADY = (
    f"an interrupted undo restored it and left its journal in {DIRECTORY}/: it stays as it is; "
    "bin/undedup DIR --in-place finishes that undo"
)
REBUILDS = "bin/undedup DIR --out OTHER rebuilds the records from their originals"
_CHANGED = (
    "it is neither the file before the run nor the file after it: it was changed after the run. "
    f"Put one of these back and repeat this; or {REBUILDS}"
)
_RESTORED = "it is the file before the run again: an undo removes what is kept of it"
_PUT_BACK = "it has in full all records that its undo data lists: it is copied as it is"


class Undo(NamedTuple):
    directory: Path  # where its journal is
    name: str
    out: Path | None  # where it goes; None is in place
    hosts: Mapping[str, Path] = {}  # directories with the results of other hosts
    store: str = ""  # address of the file's directory, if it is not that of the journal
    # of `index_originals`: restore each record by itself, as far as the undo data proves it
    database: Path | None = None
    dry: bool = False  # check that it can be restored, and write nothing


@dataclass
class Restored:
    """What became of it."""

    name: str
    # exact (bit for bit), rebuilt (each record is), partial (some records are), copied, existing,
    # committed or left_alone
    state: str
    records: int = 0
    problem: str = ""
    bytes_after: int = 0
    level: str = ""  # of the worst finding of `verify` in what was copied; "" if there is none
    note: str = ""  # what is no problem
    exists: bool = False  # left alone because there is something else of its name
    lacks_host: bool = False  # left alone because an original is on a host that was not named
    findings: list[RecordFinding] = field(default_factory=list)


def rewritten_files(directory: Path) -> tuple[dict[str, bool], dict[Path, str]]:
    """Return the files that have journals: which are committed, and the unreadable journals."""
    names: dict[str, bool] = {}
    problems: dict[Path, str] = {}

    def unreadable(error: OSError) -> None:
        problems[Path(error.filename)] = not_listed(error)

    names_in(directory / DIRECTORY, unreadable)  # `glob` would pass over it
    for pattern in ("*.committed", "*.jsonl"):  # a later run that is not committed counts
        for path in sorted((directory / DIRECTORY).glob(pattern)):
            try:
                names[name_of(path)] = path.suffix == ".committed"
            except (Damaged, OSError) as error:
                problems[path] = str(error)
    return names, problems


def is_of_earlier_run(journal: Journal, scanned: ManifestContainer) -> bool:
    """Return whether a journal is of an earlier run with ``--out``, not of a run in place since.

    A run in place keeps dropped members, describes the file as it was scanned for its plan, and
    makes it smaller. Raises `Damaged`; for want of certainty the answer is no.
    """
    if journal.dropped.exists():
        return False
    with suppress(FileNotFoundError):
        if os.path.getsize(scanned.path) == scanned.size:
            return True
    return journal.summary()[0].content_hash != scanned.content_hash


def not_listed(error: OSError) -> str:
    """Return the problem of a directory that cannot be listed."""
    return f"it cannot be read ({error.strerror}), so what it holds was not restored"


def sets_below(directory: Path, on_error: OnError) -> list[Path]:
    """Return the directories below, following links, with journals of runs in place."""
    found = []
    for folder, below, _ in walk_links(directory, on_error):
        if DIRECTORY in below:
            below.remove(DIRECTORY)
            if Path(folder) != directory and any(
                name.endswith((".dropped", ".committed"))
                for name in names_in(Path(folder, DIRECTORY), on_error)
            ):
                found.append(Path(folder))
        below.sort()
    return found


def check_space_for(tasks: Sequence[Undo], processes: int) -> None:
    """Raise `DedupError` if restoring would fill the disk.

    In place each file needs space only until it has replaced another and its dropped members are
    deleted, and one that is compared with an existing file until then; others need it for good.
    """
    needed: dict[Path, tuple[list[int], list[int]]] = {}
    for task in tasks:
        passing = task.out is None or (task.out / task.name).exists()
        sizes = needed.setdefault(task.out or task.directory, ([], []))
        sizes[passing].append(_restored_size(task))
    for place, (for_good, until_then) in needed.items():
        in_place = all(task.out is None for task in tasks)
        otherwise = "give --jobs 1, which needs less" if in_place else "an --out on another disk"
        check_free_space(place, sum(for_good) + sum(sorted(until_then)[-processes:]), otherwise)


def _restored_size(task: Undo) -> int:
    """Return how many bytes restoring a file will write; 0 if it will only report a problem."""
    path = task.directory / task.name
    try:
        size = path.stat().st_size
        if task.out is None:
            before = Journal(task.directory, task.name).summary()[0].size
            return before if before != size else 0  # equal: restored by a run that was killed
        runs = rewrite_runs(path, size)
        return runs[-1].before.size if runs else size
    except (Damaged, OSError):
        return 0


def marked_as_undo(
    tasks: Sequence[Undo], places: Iterable[Path], results: Iterable[Restored]
) -> Iterator[Restored]:
    """Yield the results of restoring in place; a mark on disk says until the last one to undo.

    `places` are all directories that may have a mark of an interrupted undo. As long as there is a
    mark, `--commit` is refused: it would leave one part of the files undone, and the rest for good.
    """
    marked = {task.directory for task in tasks}
    for directory in marked:
        mark_undoing(directory)
    yield from results
    for directory in marked.union(places):
        unmark_undoing(directory)


class _NothingRestored(Untouched):
    """No record of a file can be restored."""

    def __init__(self, findings: list[RecordFinding]) -> None:
        super().__init__("no record of it can be restored")
        self.findings = findings


class _Exists(Untouched):
    """There is a file of that name, with other content."""


def restore(task: Undo) -> Restored:
    """Restore one file. Raises `OSError` if writing fails; then nothing has changed."""
    return _reported(task, _in_place if task.out is None else _to_directory)


def commit(task: Undo) -> Restored:
    """Delete the dropped members of a file for good; `Restored.bytes_after` is what that frees.

    Each record is first made again from its revisit and its original, without what other files
    have dropped, since that may be deleted next.
    """
    return _reported(task, _commit)


def _reported(task: Undo, work: Callable[[Undo], Restored]) -> Restored:
    """Return what became of a file; raises only errors that concern other files, too."""
    try:
        return work(task)
    except (Untouched, Damaged) as error:
        damaged = isinstance(error, Damaged) and work is _in_place
        problem = f"{error}; nothing was replaced. {REBUILDS}" if damaged else str(error)
        result = Restored(
            task.name, "left_alone", 0, problem, exists=isinstance(error, _Exists),
            lacks_host=isinstance(error.__cause__, OnOtherHost),
        )  # fmt: skip
        if isinstance(error, _NothingRestored):
            result.findings = error.findings
        return result
    except OSError as error:
        of_part = PART_NAME.fullmatch(os.path.basename(str(error.filename)))
        if task.out is None and of_part and error.errno in NOT_REPLACED:
            problem = f"it cannot be replaced: {error.strerror}"
            return Restored(task.name, "left_alone", 0, problem)
        if error.errno == errno.ENOENT:
            return Restored(task.name, "left_alone", 0, f"{error.filename} is not there")
        if error.errno not in (errno.EIO, errno.EACCES, errno.EPERM, *_OF_A_PATH):
            raise
        return Restored(
            task.name, "left_alone", 0, f"{error.filename or 'the disk'}: {error.strerror}"
        )


def _in_place(task: Undo) -> Restored:
    path = task.directory / task.name
    journal = Journal(task.directory, task.name)
    before, after = journal.summary()
    part = part_path(path)
    if not journal.dropped.exists():
        raise Untouched(
            f"{DIRECTORY}/ has no removed records of it: it was written with --out, so its source "
            f"has them, or they were deleted; {REBUILDS}"
        )
    if task.dry:
        with open_for_reading(path) as source, closing(DrySink()) as sink:
            size = os.fstat(source.fileno()).st_size
            if size == before.size:
                _check_is_before(source, before)
                return Restored(task.name, "existing", after.revisits, "", size)
            _check_size_after(size, after)
            size = _write_exact(source, journal, before, sink)
        return Restored(task.name, "exact", after.revisits, "", size)
    with removing(part), open_for_reading(path) as source, open_part(part) as file:
        lock_source(source)
        remove_stale_parts([path])
        size = os.fstat(source.fileno()).st_size
        if size == before.size:
            _check_is_before(source, before)
            journal.clear()  # all that a run that was killed had still to do
            return Restored(task.name, "existing", after.revisits, "", before.size)
        _check_size_after(size, after)
        size = _write_exact(source, journal, before, FileSink(file))
        _finish(source, file, before)
        if not is_still(path, source):
            raise Untouched("it was replaced meanwhile")
        replace_file(part, file, path)
    journal.clear()
    return Restored(task.name, "exact", after.revisits, "", size)


def _check_is_before(source: BinaryIO, before: FileBefore) -> None:
    """Raise `Untouched` if a file of the size before the run is not the file before the run."""
    if content_hash(source) != before.content_hash:
        raise Untouched(_CHANGED)


def _check_size_after(size: int, after: FileAfter) -> None:
    """Raise `Untouched` if a file has not the size of the one that the run wrote."""
    if size != after.size:
        raise Untouched(_CHANGED)


def _write_exact(source: BinaryIO, journal: Journal, before: FileBefore, sink: Sink) -> int:
    """Write the old file with its dropped members, and return its size.

    Raises `Damaged` if the file, its journal or its dropped members do not make the old file.
    """
    path = journal.directory.parent / journal.name
    for _ in checked_entries(journal.lines):  # raises `Damaged`
        pass
    found = ""
    with suppress(Damaged):  # the dropped members were cut
        if isinstance(sink, DrySink):
            found = hash_of(journal.old_content(path))
            sink.size = before.size
        else:
            with open_for_reading(journal.dropped) as dropped:
                for part, offset, count in journal.old_content(path):
                    sink.copy(source if part == path else dropped, offset, count)
            found = content_hash(sink.file)
    if found != before.content_hash:
        raise Damaged(
            damaged_text(journal, str(journal.dropped), source)
            or f"with its removed records ({journal.dropped}) it is not the file before the run"
        )
    return sink.size


def _finish(
    source: BinaryIO, file: BinaryIO, before: FileBefore | None, *, replaces: bool = True
) -> None:
    copy_metadata(source, file, replaces=replaces)
    if before is not None:
        os.utime(file.fileno(), ns=(before.mtime_ns, before.mtime_ns))
    os.fsync(file.fileno())


def _to_directory(task: Undo) -> Restored:
    with place_of(task.store, task.directory).opened(task.name) as source:
        if task.dry:
            with closing(DrySink()) as sink:
                restored, _ = _write(task, source, sink)
                restored.bytes_after = sink.size
            return restored
        return _created(task, source)


def _created(task: Undo, source: BinaryIO) -> Restored:
    """Restore a file to a directory; one that is there already must be the same."""
    assert task.out is not None
    target = task.out / task.name
    target.parent.mkdir(parents=True, exist_ok=True)
    part = part_path(target)
    remove_stale_parts([target])
    if os.path.lexists(target) and not target.is_file():
        raise _Exists(f"{target} exists already, and is no file")
    with removing(part), open_part(part) as file:
        restored, before = _write(task, source, FileSink(file))
        _finish(source, file, before, replaces=False)
        restored.bytes_after = os.fstat(file.fileno()).st_size
        try:
            if DirectoryPlace(task.out).has(file, task.name):
                restored.state = "existing"
            else:
                create_file(part, file, target)
        except FileExistsError as error:  # or written by another process since
            raise _Exists(
                f"{target} exists already, with other content: name another --out (are the "
                "arguments swapped?)"
            ) from error
    return restored


def _write(task: Undo, source: BinaryIO, sink: Sink) -> tuple[Restored, FileBefore | None]:
    """Write a file with its records restored; returns also what its first journal says of it."""
    path, journal = task.directory / task.name, Journal(task.directory, task.name)
    if task.database is not None:
        _check_dictionary(source)
        return _write_each(task, source, sink, task.database), None
    size = os.fstat(source.fileno()).st_size
    runs = rewrite_runs(path, size)
    restored = Restored(task.name, "copied", sum(run.after.revisits for run in runs))
    if not runs:
        restored.note = _why_not_rewritten(path, journal, source)
        sink.copy(source, 0, size)
        return restored, None
    if (offset := unlisted_revisit(path, source, runs)) is not None:
        raise Untouched(
            f"an earlier run wrote the revisit at {offset}, and its journal in {DIRECTORY}/ is "
            "missing"
        )
    if len(runs) == 1 and runs[0].dropped and runs[0].root.samefile(task.directory):
        _write_exact(source, journal, runs[0].before, sink)
        restored.state = "exact"
    else:
        _check_dictionary(source)
        with closing(_finder(task)) as originals:
            exact = write_records(revisits(runs), source, sink, originals)
        # A file that is not compressed comes out as it was, without its dropped members, too.
        restored.state = "exact" if exact and sink.size == runs[-1].before.size else "rebuilt"
    return restored, runs[-1].before


def _check_dictionary(source: BinaryIO) -> None:
    """Raise `Untouched` if a dictionary is missing, without which no record can be read."""
    try:
        if is_zstd(os.pread(source.fileno(), len(MAGIC), 0)):
            content_start(lambda offset, count: os.pread(source.fileno(), count, offset), 1)
    except MissingDictionary as error:
        raise Untouched(f"its frames {error}") from error
    except UnreadableFrame:
        pass  # damaged: other records may be sound


def _why_not_rewritten(path: Path, journal: Journal, source: BinaryIO) -> str:
    """Return what is to be said of a file without runs; raises `Untouched` if it has lost them."""
    if journal.exists():
        before, _ = journal.summary()
        same_size = os.fstat(source.fileno()).st_size == before.size
        if same_size and content_hash(source) == before.content_hash:
            return _RESTORED_ALREADY if journal.dropped.exists() else _PUT_BACK
    if journal.exists() or journal.committed():
        if is_put_back(path, source):
            return _PUT_BACK
        raise Untouched("it is not the file that its journal describes")
    if is_rewritten(path):
        raise Untouched(f"its journal in {DIRECTORY}/ is missing")
    if journal.name in awaited(journal.directory.parent):
        raise Untouched(_AWAITED)
    return ""


def _write_each(task: Undo, source: BinaryIO, sink: Sink, database: Path) -> Restored:
    """Write a file whose undo data is damaged, or whose originals are elsewhere."""
    path = task.directory / task.name
    with (
        closing(_finder(task)) as finder,
        closing(RecordRestorer(path, finder, database)) as restorer,
    ):
        records, stay, findings = restorer.write(source, sink)
    if stay and not records:
        raise _NothingRestored(findings)
    state = "copied" if not records else "partial" if findings else "rebuilt"
    return Restored(task.name, state, records, findings=findings)


def _finder(task: Undo, *, final: bool = False) -> OriginalFinder:
    stores = {task.directory: task.store} if task.store else {}
    return OriginalFinder(task.hosts, stores, final=final)


def _commit(task: Undo) -> Restored:
    path, journal = task.directory / task.name, Journal(task.directory, task.name)
    before, after = journal.summary()
    with open_for_reading(path) as source, closing(DrySink()) as sink:
        size = os.fstat(source.fileno()).st_size
        if size != after.size:
            if size != before.size or content_hash(source) != before.content_hash:
                raise Untouched(_CHANGED)
            raise Untouched(_RESTORED)
        if not journal.dropped.exists():
            raise Untouched(f"its removed records are not in {DIRECTORY}/")
        run = RewriteRun(journal.lines, None)
        with closing(_finder(task, final=True)) as originals:
            write_records(revisits_of_run(run, []), source, sink, originals)
    return Restored(task.name, "committed", after.revisits, "", journal.commit())
