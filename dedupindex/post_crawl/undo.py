"""Revisits back to the records that they stand for.

While the dropped members are kept, every file comes back bit for bit. Without them each record
is made of its revisit and its original: the record is the same to the bit, its gzip member is not.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from dedupindex.errors import Damaged
from dedupindex.post_crawl.rewrite.journal import DIRECTORY, Journal, Was, begun, entries, name_of
from dedupindex.post_crawl.rewrite.part_files import (
    hold,
    is_still,
    new_part,
    part_of,
    put,
    put_new,
    removed,
    sweep,
)
from dedupindex.post_crawl.rewrite.rewrite_file import Left
from dedupindex.post_crawl.undo_records import Round, of_round, revisits, rounds, write_records
from dedupindex.runtime.atomic_replace import (
    DrySink,
    FileSink,
    check_room,
    content_hash,
    keep_metadata,
    open_for_reading,
)


class Undo(NamedTuple):
    """One container to restore."""

    directory: Path  # where its journal is
    name: str
    out: Path | None  # where it goes; None is in place


@dataclass
class Restored:
    """What became of it."""

    name: str
    state: str  # exact (bit for bit), records (each to the bit), copied, there, committed, left
    records: int = 0
    problem: str = ""
    bytes_after: int = 0


def clean(directory: Path) -> None:
    """Remove what killed runs left in a directory: files that never got their names."""
    for journal in list(begun(directory)):
        sweep([directory / journal.name])
        journal.discard_parts()
    for dropped in (directory / DIRECTORY).glob("*.dropped"):
        if not dropped.with_suffix(".jsonl").exists():
            dropped.unlink()


def told_of(directory: Path) -> tuple[dict[str, bool], dict[Path, str]]:
    """Names of all that was rewritten there, if it was committed; what cannot be read, and why."""
    names: dict[str, bool] = {}
    problems: dict[Path, str] = {}
    for pattern in ("*.committed", "*.jsonl"):  # of a later run counts what is not committed
        for path in sorted((directory / DIRECTORY).glob(pattern)):
            try:
                names[name_of(path)] = path.suffix == ".committed"
            except (Damaged, OSError) as error:
                problems[path] = str(error)
    return names, problems


def check_room_of(tasks: Sequence[Undo], processes: int) -> None:
    """Refuse to begin what would fill the disk; raises `DedupError`.

    In place each file needs room until it has taken the place of another, and its dropped members
    are gone; in a folder all of them do.
    """
    needed: dict[Path, list[int]] = {}
    for task in tasks:
        needed.setdefault(task.out or task.directory, []).append(_size_before(task))
    at_once = processes if any(task.out is None for task in tasks) else None
    for place, sizes in needed.items():
        check_room(place, sum(sorted(sizes, reverse=True)[:at_once]))


def _size_before(task: Undo) -> int:
    """Bytes that restoring a container will write; 0 if it will only say what is wrong with it."""
    path = task.directory / task.name
    try:
        size = path.stat().st_size
        if task.out is None:
            before = Journal(task.directory, task.name).summary()[0].size
            return before if before != size else 0  # else a run before was killed behind it
        if (task.out / task.name).exists():
            return 0
        made = rounds(path, size)
        return made[-1].was.size if made else size
    except (Damaged, OSError):
        return 0


def restore(task: Undo) -> Restored:
    """Restore one container. Raises `OSError` where writing fails; then nothing has changed."""
    try:
        if task.out is None:
            return _in_place(task)
        return _to_directory(task, task.out)
    except (Left, Damaged) as left:
        return Restored(task.name, "left", 0, str(left))
    except OSError as error:
        return Restored(task.name, "left", 0, _own_matter(error))


def _own_matter(error: OSError) -> str:
    """What is wrong with one file only; raises what is a matter of the others too."""
    if error.errno == errno.ENOENT:
        return f"{error.filename} is not there"
    if error.errno not in (errno.EIO, errno.EACCES, errno.EPERM):
        raise error
    return f"{error.filename or 'the disk'}: {error.strerror}"


def _in_place(task: Undo) -> Restored:
    path = task.directory / task.name
    journal = Journal(task.directory, task.name)
    was, ended = journal.summary()
    part = part_of(path)
    if not journal.dropped.exists():
        raise Left("its dropped members are gone; use --out to make the records of their originals")
    with removed(part), open_for_reading(path) as source, new_part(part) as file:
        hold(source)
        sweep([path])  # what a killed run left
        if os.fstat(source.fileno()).st_size == was.size:
            if content_hash(source) != was.content_hash:
                raise Left("it is neither what it was nor what it became")
            journal.clear()  # a run before was killed when all was done but this
            return Restored(task.name, "there", ended.revisits, "", was.size)
        size = _exact(source, journal, was, file)
        if not is_still(path, source):
            raise Left("it was replaced meanwhile")
        put(part, file, path)
    journal.clear()
    return Restored(task.name, "exact", ended.revisits, "", size)


def _exact(source: BinaryIO, journal: Journal, was: Was, file: BinaryIO) -> int:
    """Write the file that was, and see that it is; returns its size."""
    sink = FileSink(file)
    with open_for_reading(journal.dropped) as dropped:
        position = taken = 0
        for entry in entries(journal.lines):
            sink.copy(source, position, entry.new_offset - position)
            sink.copy(dropped, taken, entry.stored)
            taken += entry.stored
            position = entry.new_offset + entry.new_stored
    sink.copy(source, position, os.fstat(source.fileno()).st_size - position)
    if content_hash(file) != was.content_hash:
        raise Left("with its dropped members it is not what it was; nothing was replaced")
    _finish(source, file, was)
    return sink.size


def _finish(source: BinaryIO, file: BinaryIO, was: Was | None) -> None:
    keep_metadata(source, file)
    if was is not None:
        os.utime(file.fileno(), ns=(was.mtime_ns, was.mtime_ns))
    os.fsync(file.fileno())


def _to_directory(task: Undo, out: Path) -> Restored:
    target = out / task.name
    target.parent.mkdir(parents=True, exist_ok=True)
    part = part_of(target)
    sweep([target])  # what a killed run left
    if os.path.lexists(target):
        raise Left(f"{target} is there already")
    journal = Journal(task.directory, task.name)
    with (
        removed(part),
        open_for_reading(task.directory / task.name) as source,
        new_part(part) as file,
    ):
        restored = Restored(task.name, "copied")
        made = rounds(task.directory / task.name, os.fstat(source.fileno()).st_size)
        count = sum(one.ended.revisits for one in made)
        if not made and (journal.exists() or journal.committed()):
            raise Left("it is not what its journal says that it became")
        if not made:
            FileSink(file).copy(source, 0, os.fstat(source.fileno()).st_size)
            _finish(source, file, None)
        elif len(made) == 1 and made[0].told == journal.lines and made[0].dropped:
            _exact(source, journal, made[0].was, file)
            restored = Restored(task.name, "exact", count)
        else:
            write_records(revisits(made), source, FileSink(file))
            _finish(source, file, made[-1].was)
            restored = Restored(task.name, "records", count)
        restored.bytes_after = os.fstat(file.fileno()).st_size
        try:
            put_new(part, file, target)
        except FileExistsError as error:  # by another process, since
            raise Left(f"{target} is there already") from error
    return restored


def commit(task: Undo) -> Restored:
    """Let go of the dropped members of a container, for ever, in `Restored.bytes_after`.

    Before that, every record is made of its revisit and its original once more, as these are now,
    and not of what another container has dropped, which may go next.
    """
    path, journal = task.directory / task.name, Journal(task.directory, task.name)
    try:
        _, ended = journal.summary()
        with open_for_reading(path) as source, closing(DrySink()) as sink:
            size = os.fstat(source.fileno()).st_size
            if size != ended.size or not journal.dropped.exists():
                raise Left("it is not what its journal says that it became")
            made = of_round(Round(journal.lines, None), [])
            write_records(made, source, sink, final=True)
        return Restored(task.name, "committed", ended.revisits, "", journal.commit())
    except (Left, Damaged) as left:
        return Restored(task.name, "left", 0, str(left))
    except OSError as error:
        return Restored(task.name, "left", 0, _own_matter(error))
