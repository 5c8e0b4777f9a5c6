"""Restore the records that revisits replaced.

While the dropped members are kept, each file is restored bit for bit. Without them each record is
made from its revisit and its original: the record is the same bit for bit, its gzip member is not.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from dedupindex.errors import Damaged
from dedupindex.post_crawl.rewrite.journal import (
    DIRECTORY,
    FileBefore,
    Journal,
    entries,
    name_of,
    unfinished,
)
from dedupindex.post_crawl.undo_records import (
    RewriteRun,
    revisits,
    revisits_of_run,
    rewrite_runs,
    write_records,
)
from dedupindex.runtime.atomic_replace import (
    DrySink,
    FileSink,
    Untouched,
    check_free_space,
    content_hash,
    copy_metadata,
    create_file,
    is_still,
    lock_source,
    open_for_reading,
    open_part,
    part_path,
    remove_stale_parts,
    removing,
    replace_file,
)


class Undo(NamedTuple):
    """One file to restore."""

    directory: Path  # where its journal is
    name: str
    out: Path | None  # where it goes; None is in place


@dataclass
class Restored:
    """What became of it."""

    name: str
    state: str  # exact (bit for bit), records (each bit for bit), copied, there, committed, left
    records: int = 0
    problem: str = ""
    bytes_after: int = 0


def clean(directory: Path) -> None:
    """Remove the temporary files that interrupted runs left in a directory."""
    for journal in list(unfinished(directory)):
        remove_stale_parts([directory / journal.name])
        journal.discard_parts()
    for dropped in (directory / DIRECTORY).glob("*.dropped"):
        if not dropped.with_suffix(".jsonl").exists():
            dropped.unlink()


def rewritten_files(directory: Path) -> tuple[dict[str, bool], dict[Path, str]]:
    """Return the files that have journals: which are committed, and the unreadable journals."""
    names: dict[str, bool] = {}
    problems: dict[Path, str] = {}
    for pattern in ("*.committed", "*.jsonl"):  # a later run that is not committed counts
        for path in sorted((directory / DIRECTORY).glob(pattern)):
            try:
                names[name_of(path)] = path.suffix == ".committed"
            except (Damaged, OSError) as error:
                problems[path] = str(error)
    return names, problems


def check_space_for(tasks: Sequence[Undo], processes: int) -> None:
    """Raise `DedupError` if restoring would fill the disk.

    In place each file needs space only until it has replaced another and its dropped members are
    deleted; in a directory all files do.
    """
    needed: dict[Path, list[int]] = {}
    for task in tasks:
        needed.setdefault(task.out or task.directory, []).append(_restored_size(task))
    at_once = processes if any(task.out is None for task in tasks) else None
    for place, sizes in needed.items():
        check_free_space(place, sum(sorted(sizes, reverse=True)[:at_once]))


def _restored_size(task: Undo) -> int:
    """Return how many bytes restoring a file will write; 0 if it will only report a problem."""
    path = task.directory / task.name
    try:
        size = path.stat().st_size
        if task.out is None:
            before = Journal(task.directory, task.name).summary()[0].size
            return before if before != size else 0  # equal: restored by a run that was killed
        if (task.out / task.name).exists():
            return 0
        runs = rewrite_runs(path, size)
        return runs[-1].before.size if runs else size
    except (Damaged, OSError):
        return 0


def restore(task: Undo) -> Restored:
    """Restore one file. Raises `OSError` if writing fails; then nothing has changed."""
    return _reported(task, _in_place if task.out is None else _to_directory)


def commit(task: Undo) -> Restored:
    """Delete the dropped members of a file for good; `Restored.bytes_after` is what that frees.

    First each record is made once more from its revisit and its original as they are now, without
    what other files have dropped, since that may be deleted next.
    """
    return _reported(task, _commit)


def _reported(task: Undo, work: Callable[[Undo], Restored]) -> Restored:
    """Return what became of a file; raises only errors that concern other files, too."""
    try:
        return work(task)
    except (Untouched, Damaged) as error:
        return Restored(task.name, "left", 0, str(error))
    except OSError as error:
        if error.errno == errno.ENOENT:
            return Restored(task.name, "left", 0, f"{error.filename} is not there")
        if error.errno not in (errno.EIO, errno.EACCES, errno.EPERM):
            raise
        return Restored(task.name, "left", 0, f"{error.filename or 'the disk'}: {error.strerror}")


def _in_place(task: Undo) -> Restored:
    path = task.directory / task.name
    journal = Journal(task.directory, task.name)
    before, after = journal.summary()
    part = part_path(path)
    if not journal.dropped.exists():
        raise Untouched(
            "its dropped members are gone; use --out to make the records of their originals"
        )
    with removing(part), open_for_reading(path) as source, open_part(part) as file:
        lock_source(source)
        remove_stale_parts([path])
        if os.fstat(source.fileno()).st_size == before.size:
            if content_hash(source) != before.content_hash:
                raise Untouched("it is neither what it was nor what it became")
            journal.clear()  # all that a run that was killed had still to do
            return Restored(task.name, "there", after.revisits, "", before.size)
        size = _write_exact(source, journal, before, file)
        if not is_still(path, source):
            raise Untouched("it was replaced meanwhile")
        replace_file(part, file, path)
    journal.clear()
    return Restored(task.name, "exact", after.revisits, "", size)


def _write_exact(source: BinaryIO, journal: Journal, before: FileBefore, file: BinaryIO) -> int:
    """Write the old file with its dropped members and check its hash; returns its size."""
    sink = FileSink(file)
    with open_for_reading(journal.dropped) as dropped:
        position = taken = 0
        for entry in entries(journal.lines):
            sink.copy(source, position, entry.new_offset - position)
            sink.copy(dropped, taken, entry.stored)
            taken += entry.stored
            position = entry.new_offset + entry.new_stored
    sink.copy(source, position, os.fstat(source.fileno()).st_size - position)
    if content_hash(file) != before.content_hash:
        raise Untouched("with its dropped members it is not what it was; nothing was replaced")
    _finish(source, file, before)
    return sink.size


def _finish(source: BinaryIO, file: BinaryIO, before: FileBefore | None) -> None:
    copy_metadata(source, file)
    if before is not None:
        os.utime(file.fileno(), ns=(before.mtime_ns, before.mtime_ns))
    os.fsync(file.fileno())


def _to_directory(task: Undo) -> Restored:
    assert task.out is not None
    path, target = task.directory / task.name, task.out / task.name
    target.parent.mkdir(parents=True, exist_ok=True)
    part = part_path(target)
    remove_stale_parts([target])
    if os.path.lexists(target):
        raise Untouched(f"{target} is there already")
    journal = Journal(task.directory, task.name)
    with removing(part), open_for_reading(path) as source, open_part(part) as file:
        size = os.fstat(source.fileno()).st_size
        runs = rewrite_runs(path, size)
        restored = Restored(task.name, "copied", sum(run.after.revisits for run in runs))
        if not runs:
            if journal.exists() or journal.committed():
                raise Untouched("it is not what its journal says that it became")
            FileSink(file).copy(source, 0, size)
            _finish(source, file, None)
        elif len(runs) == 1 and runs[0].journal == journal.lines and runs[0].dropped:
            _write_exact(source, journal, runs[0].before, file)
            restored.state = "exact"
        else:
            write_records(revisits(runs), source, FileSink(file))
            _finish(source, file, runs[-1].before)
            restored.state = "records"
        restored.bytes_after = os.fstat(file.fileno()).st_size
        try:
            create_file(part, file, target)
        except FileExistsError as error:  # written by another process since
            raise Untouched(f"{target} is there already") from error
    return restored


def _commit(task: Undo) -> Restored:
    path, journal = task.directory / task.name, Journal(task.directory, task.name)
    _, after = journal.summary()
    with open_for_reading(path) as source, closing(DrySink()) as sink:
        size = os.fstat(source.fileno()).st_size
        if size != after.size or not journal.dropped.exists():
            raise Untouched("it is not what its journal says that it became")
        run = RewriteRun(journal.lines, None)
        write_records(revisits_of_run(run, []), source, sink, final=True)
    return Restored(task.name, "committed", after.revisits, "", journal.commit())
