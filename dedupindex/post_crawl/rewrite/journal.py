"""What a run did to each file, kept in the directory ``.rewrite/`` beside the files.

    lock                 held while a run writes here
    KEY.jsonl            the journal of one file; KEY is a hash of the file's name
    KEY.dropped          in place only, until ``--commit``: the dropped members, end to end
    KEY.N.committed      the KEY.jsonl of a run whose dropped members are gone
    KEY.pins             what revisits refer to in the file, in whatever file they are

The first line of a journal describes the file before the run, the last line the file after it.
Between them is a line for each record that became a revisit, in order of offset, then one that
counts the records of the plan that stayed, by reason. Everything else was copied, so the journal
also maps old offsets to new ones. A ``.part`` file, and a KEY.dropped without its KEY.jsonl, is
what an interrupted run left, and is ignored.
"""

from __future__ import annotations

import filecmp
import json
import os
from array import array
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from dedupindex.errors import Damaged
from dedupindex.object_store import is_remote
from dedupindex.post_crawl.rewrite.protection import (
    ENTRY_BYTES,
    OriginalFile,
    adopt_protection,
    protect,
    unprotect,
)
from dedupindex.post_crawl.rewrite.undo_directory import DIRECTORY, file_key, names_of
from dedupindex.runtime.atomic_replace import (
    FileSink,
    remove_stale_parts,
)
from dedupindex.runtime.files import sync_directory

_FORMAT = 3  # format 1 has neither the options nor the plan of a run, 2 no hosts
_BATCH = 50_000  # entries that are held before they are written


class FileBefore(NamedTuple):
    name: str
    size: int
    mtime_ns: int
    content_hash: str
    options: str = ""  # of the run, as typed; empty if unknown
    plan: str = ""  # `Plan.made_of` of its plan


class FileAfter(NamedTuple):
    revisits: int
    size: int


class JournalEntry(NamedTuple):
    """A record that became a revisit. Byte strings are written as Latin-1."""

    offset: int
    stored: int  # bytes in the file
    new_offset: int
    new_stored: int
    header: str  # WARC header of the dropped record, with the blank line
    sha256: str  # of the dropped record, decompressed
    root: str  # of the original's file; empty for the directory of this journal on each host
    name: str
    original: int  # offset of the original when its file was scanned
    original_stored: int
    original_size: int  # bytes of the original's file then
    host: str = ""  # of the original's file, if it is another one than that of this journal


class Journal:
    def __init__(self, directory: Path, name: str) -> None:
        key, self.name = file_key(name), name
        self.directory = directory / DIRECTORY
        self.lines = self.directory / f"{key}.jsonl"
        self.dropped = self.directory / f"{key}.dropped"

    def exists(self) -> bool:
        return self.lines.exists()

    def summary(self) -> tuple[FileBefore, FileAfter]:
        return summary(self.lines)

    def committed(self) -> list[Path]:
        """Return the journals of runs whose dropped members are gone."""
        return sorted(self.directory.glob(f"{self.lines.stem}.*.committed"))

    def clear(self) -> None:
        """Remove the journal of a file that has no revisits any more."""
        self._unprotect(self.lines)
        self.lines.unlink(missing_ok=True)
        sync_directory(self.directory)
        self.dropped.unlink(missing_ok=True)

    def clear_stale(self, size: int) -> None:
        """Remove the journal if it describes another file than the result, which has this size.

        The result has no revisits of this run. A journal of a run in place is never stale, as its
        dropped members exist nowhere else; one that cannot be read describes nothing.
        """
        if not self.exists() or self.dropped.exists():
            return
        with suppress(Damaged):
            if self.summary()[1].size == size:
                return
        self.clear()

    def _unprotect(self, lines: Path) -> None:
        """Remove the protection by the revisits in a journal, unless the file has other journals.

        Those, also of directories above and below, may have revisits of the same originals.
        """
        originals = set[OriginalFile]()
        with suppress(FileNotFoundError, Damaged):  # the last line of a killed run may be cut
            for entry in entries(lines):
                if not entry.host:
                    originals.add(OriginalFile(entry.root, entry.name))
        if not originals:
            return
        for directory, name in names_of(self.directory.parent / self.name):
            other = Journal(directory, name)
            if other.committed() or (other.exists() and not os.path.samefile(other.lines, lines)):
                return
        unprotect(self.directory.parent, self.name, originals)

    def discard_parts(self) -> None:
        """Remove what an interrupted run left, which has not replaced the file."""
        self._unprotect(_part(self.lines))
        for path in (self.lines, self.dropped):
            _part(path).unlink(missing_ok=True)
        if not self.lines.exists():
            self.dropped.unlink(missing_ok=True)

    def commit(self) -> int:
        """Delete the dropped members for good; returns how many bytes they took."""
        freed = self.dropped.stat().st_size
        self.set_aside()
        self.dropped.unlink()
        return freed

    def set_aside(self) -> None:
        """Rename the journal as a committed one, so that another run can write its own."""
        number = 1
        while (target := self.lines.with_suffix(f".{number}.committed")).exists():
            number += 1
        os.replace(self.lines, target)
        sync_directory(self.directory)

    def old_content(self, new: Path) -> Iterator[tuple[Path, int, int]]:
        """Yield ranges (path, offset, count) of `new` and KEY.dropped that make the old file."""
        taken = position = 0
        for entry in entries(self.lines):
            if entry.new_offset > position:
                yield new, position, entry.new_offset - position
            yield self.dropped, taken, entry.stored
            taken += entry.stored
            position = entry.new_offset + entry.new_stored
        if (size := new.stat().st_size) > position:
            yield new, position, size - position

    def offsets(self) -> OffsetMap:
        return OffsetMap(entries(self.lines))

    def entries(self) -> Generator[JournalEntry, None, None]:
        """Yield the entries in order of offset, as far as they are sound."""
        with suppress(FileNotFoundError, Damaged):
            yield from entries(self.lines)

    def size(self) -> int:
        """Return the bytes that the run which wrote this journal has added."""
        kept = (path.stat().st_size for path in (self.lines, self.dropped) if path.exists())
        return sum(kept) + protections(self.entries()) * ENTRY_BYTES

    def refused(self) -> tuple[Counter[str], Counter[str]]:
        """Return the records of the plan that stayed, by reason, and their bytes in the file.

        There are none in an older journal.
        """
        with open(self.lines, "rb") as lines:
            for line in deque(lines, 2):
                if "refused" in (fields := json.loads(line)):
                    return Counter(fields["refused"]), Counter(fields.get("refused_bytes", {}))
        return Counter(), Counter()


def adopt(directory: Path, name: str, made: Path) -> None:
    """Take over what another machine has recorded of one file in the directory `made`.

    As `JournalWriter`, first what its revisits refer to, then its journal, if it has revisits.
    """
    journal = Journal(directory, name)
    lines = made / DIRECTORY / journal.lines.name
    if journal.exists() and lines.exists() and filecmp.cmp(lines, journal.lines, shallow=False):
        return  # of an earlier run, which has recorded the same
    adopt_protection(directory, name, made)
    if lines.exists():
        os.replace(lines, journal.lines)
        sync_directory(journal.directory)


class JournalSize:
    """Counts the bytes that a `JournalWriter` writes, for a dry run."""

    def __init__(self, before: FileBefore, *, keep_dropped: bool, protects: bool = True) -> None:
        self.size, self._count = 0, 0
        self._keep_dropped, self._protects = keep_dropped, protects
        self._originals = defaultdict[OriginalFile, set[bytes]](set)  # to be protected
        self._put({"format": _FORMAT, **before._asdict()})

    def add(
        self, entry: JournalEntry, source: BinaryIO, original: bytes,
        outside: tuple[int, int] | None,
    ) -> None:  # fmt: skip
        """Write an entry, copy the member from `source`, protect the `record_key` `original`.

        What is on another host is protected by the run there, see `protect_for_others`. `outside`
        is device and inode of the original's file if that is not of the set.
        """
        self._put(entry._asdict())
        if self._protects and _is_protected(entry):
            self._originals[OriginalFile(entry.root, entry.name, outside)].add(original)
        self._count += 1
        if self._count % _BATCH == 0:
            self._protect()
        self.size += entry.stored if self._keep_dropped else 0

    def refuse(self, refused: Counter[str], stored: Counter[str]) -> None:
        """Write which records of the plan stayed, after the last entry.

        `stored` are the bytes that they take in the file, by reason as well.
        """
        self._put({"refused": refused, "refused_bytes": stored})

    def finish(self, size: int) -> None:
        """Force all to disk and rename it; `size` is that of the new file. Raises as `protect`."""
        self._protect()
        self._put(FileAfter(self._count, size)._asdict())

    def _protect(self) -> None:
        self.size += sum(ENTRY_BYTES * len(keys) for keys in self._originals.values())
        self._originals.clear()

    def _put(self, value: dict[str, Any]) -> None:
        self.size += len(_line(value))


class JournalWriter(JournalSize):
    """Writes the journal of a file; it is valid once `finish` has returned."""

    def __init__(
        self, journal: Journal, before: FileBefore, *, keep_dropped: bool, protects: bool = True
    ) -> None:
        """Open the files under temporary names."""
        journal.directory.mkdir(exist_ok=True)
        journal.discard_parts()
        self._journal = journal
        self._recorded = defaultdict[OriginalFile, set[bytes]](set)  # by the journal before
        self._earlier = journal.entries()
        self._last = next(self._earlier, None)
        self._lines = _new(journal.lines)
        self._dropped = None
        try:
            self._dropped = _new(journal.dropped) if keep_dropped else None
            super().__init__(before, keep_dropped=keep_dropped, protects=protects)
        except BaseException:
            self.close()
            raise

    def add(
        self, entry: JournalEntry, source: BinaryIO, original: bytes,
        outside: tuple[int, int] | None,
    ) -> None:  # fmt: skip
        if self._was_recorded(entry):
            self._recorded[OriginalFile(entry.root, entry.name, outside)].add(original)
        super().add(entry, source, original, outside)
        if self._dropped is not None:
            self._dropped.copy(source, entry.offset, entry.stored)

    def _was_recorded(self, entry: JournalEntry) -> bool:
        """Return whether the journal before has the same revisit; both are in order of offset."""
        while self._last is not None and self._last.offset < entry.offset:
            self._last = next(self._earlier, None)
        last = self._last
        return (
            last is not None and last.offset == entry.offset and _original(last) == _original(entry)
        )

    def finish(self, size: int) -> None:
        super().finish(size)
        journal = self._journal
        for sink, path in ((self._dropped, journal.dropped), (self._lines, journal.lines)):
            if sink is not None:
                os.fsync(sink.file.fileno())
                os.replace(_part(path), path)
        sync_directory(journal.directory)

    def close(self) -> None:
        """Close the files, and remove what was not finished."""
        self._earlier.close()
        for sink in (self._lines, self._dropped):
            if sink is not None:
                sink.file.close()
        with suppress(OSError):  # then the next run or undoing does it
            self._journal.discard_parts()

    def _protect(self) -> None:
        if self._originals:  # first what tells the next run which entries to remove
            os.fsync(self._lines.file.fileno())
            sync_directory(self._journal.directory)
        missing = {file: keys - self._recorded[file] for file, keys in self._originals.items()}
        protect(self._journal.directory.parent, self._journal.name, missing)
        self._recorded.clear()
        super()._protect()

    def _put(self, value: dict[str, Any]) -> None:
        super()._put(value)
        self._lines.write(_line(value))


def protections(written: Iterator[JournalEntry]) -> int:
    """Return how many entries that protect originals a run made for some revisits, at most."""
    count = 0
    while batch := list(islice(written, _BATCH)):
        count += len({_original(entry) for entry in batch if _is_protected(entry)})
    return count


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode("ascii") + b"\n"


def _original(entry: JournalEntry) -> tuple[str, str, int]:
    return entry.root, entry.name, entry.original


def _is_protected(entry: JournalEntry) -> bool:
    """Return whether the run protects the original: one in a store or of another host it cannot."""
    return not (entry.host or is_remote(entry.root))


def _new(path: Path) -> FileSink:
    return FileSink(open(_part(path), "wb", buffering=0))


def _part(path: Path) -> Path:
    return path.with_name(path.name + ".part")


# The keys of the lines after the entries; the bytes are not in journals of earlier versions.
_CLOSING = ({"refused", "refused_bytes"}, {"refused"}, set(FileAfter._fields))


def entries(path: Path) -> Iterator[JournalEntry]:
    """Yield the revisits in a journal, in order of offset.

    Raises `Damaged`, at its end if it has not as many entries as its last line says.
    """
    count = 0
    with open(path, "rb") as lines:
        next(lines, b"")
        for line in lines:
            try:
                fields = json.loads(line)
                if set(fields) in _CLOSING:
                    break
                entry = JournalEntry(**fields)
            except (ValueError, TypeError) as error:
                raise Damaged(f"{path} has a line that cannot be read: {error}") from error
            count += 1
            yield entry
    _, after = summary(path)
    if count != after.revisits:
        raise Damaged(f"{path} has {count:,} entries, not the {after.revisits:,} of its last line")


def summary(path: Path) -> tuple[FileBefore, FileAfter]:
    """Return the first and the last line of a journal; raises `Damaged`."""
    try:
        with open(path, "rb") as lines:
            first = json.loads(next(lines))
            lines.seek(max(path.stat().st_size - 200, 0))
            last = json.loads(lines.read().splitlines()[-1])
        if first.pop("format") in range(1, _FORMAT + 1):
            return FileBefore(**first), FileAfter(**last)
    except (ValueError, TypeError, LookupError, AttributeError, StopIteration) as error:
        raise Damaged(f"{path} is not a complete journal: {error}") from error
    raise Damaged(f"{path} is not a journal that this version can read")


def unfinished(directory: Path) -> Iterator[Journal]:
    """Yield the journals that interrupted runs began in a directory."""
    for part in sorted((directory / DIRECTORY).glob("*.jsonl.part")):
        with suppress(Damaged):  # without a first line the run has created no other file
            yield Journal(directory, name_of(part))


def discard_unfinished(directory: Path) -> None:
    """Remove what killed runs left in a locked directory; the files themselves are unchanged."""
    for journal in list(unfinished(directory)):
        remove_stale_parts([directory / journal.name])
        journal.discard_parts()
    for kind in ("jsonl", "dropped"):  # of a run that was killed before its first line was there
        for part in (directory / DIRECTORY).glob(f"*.{kind}.part"):
            part.unlink()
    for dropped in (directory / DIRECTORY).glob("*.dropped"):
        if not dropped.with_suffix(".jsonl").exists():
            dropped.unlink()


def journals(directory: Path) -> Iterator[Journal]:
    """Yield all journals of a directory that are not committed; raises `Damaged`."""
    for lines in sorted((directory / DIRECTORY).glob("*.jsonl")):
        yield Journal(directory, name_of(lines))


def name_of(path: Path) -> str:
    """Return the name of the file that a journal is of; raises `Damaged`."""
    try:
        with open(path, "rb") as lines:
            return str(json.loads(next(lines))["name"])
    except (ValueError, TypeError, LookupError, StopIteration) as error:
        raise Damaged(f"{path} is not a journal: {error}") from error


class OffsetMap:
    """Maps offsets of a file before a run to offsets after it."""

    def __init__(self, revisits: Iterable[JournalEntry]) -> None:
        self._starts, self._shifts = array("q"), array("q", [0])
        for entry in revisits:
            self._starts.append(entry.offset)
            self._shifts.append(entry.new_offset + entry.new_stored - entry.offset - entry.stored)

    def new(self, offset: int) -> int:
        """Return the new offset of a record that did not become a revisit."""
        return offset + self._shifts[bisect_left(self._starts, offset)]

    def is_revisit(self, offset: int) -> bool:
        """Whether the record at this old offset became a revisit."""
        index = bisect_left(self._starts, offset)
        return index < len(self._starts) and self._starts[index] == offset
