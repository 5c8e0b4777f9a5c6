"""What a run did to each file, kept in the directory ``.rewrite/`` beside the files.

    lock                 held while a run writes here
    KEY.jsonl            the journal of one file; KEY is a hash of the file's name
    KEY.dropped          in place only, until ``--commit``: the dropped members, end to end
    KEY.N.committed      the KEY.jsonl of a run whose dropped members are gone
    KEY.pins             what revisits refer to in the file (`rewrite.protected_records`)

The first line of a journal describes the file before the run, the last line the file after it.
Between them is a line for each record that became a revisit, in order of offset. Everything else
was copied, so the journal also maps old offsets to new ones. A ``.part`` file, and a KEY.dropped
without its KEY.jsonl, is what an interrupted run left, and is ignored.
"""

from __future__ import annotations

import json
import os
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import blake3

from dedupindex.errors import Damaged
from dedupindex.post_crawl.rewrite.protected_records import (
    OriginalFile,
    ProtectionWriter,
    unprotect,
)
from dedupindex.runtime.atomic_replace import FileSink
from dedupindex.runtime.files import sync_directory

DIRECTORY = ".rewrite"
_FORMAT = 2  # format 1 has neither the options nor the plan of a run


class FileBefore(NamedTuple):
    """A file before it was rewritten."""

    name: str
    size: int
    mtime_ns: int
    content_hash: str
    options: str = ""  # of the run, as typed; empty if unknown
    plan: str = ""  # `Plan.made_of` of its plan


class FileAfter(NamedTuple):
    """A file after it was rewritten."""

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
    root: str  # of the original's file; empty for the directory of this journal
    name: str
    original: int  # offset of the original when its file was scanned
    original_stored: int
    original_size: int  # bytes of the original's file then


class Protection(NamedTuple):
    """The record that a revisit refers to, see `rewrite.protected_records`."""

    key: bytes
    outside: tuple[int, int] | None  # device and inode of its file, if that is not of the set


class Journal:
    """The journal of one file."""

    def __init__(self, directory: Path, name: str) -> None:
        key = blake3.blake3(name.encode("utf-8", "surrogateescape")).hexdigest()[:32]
        self.name = name
        self.directory = directory / DIRECTORY
        self.lines = self.directory / f"{key}.jsonl"
        self.dropped = self.directory / f"{key}.dropped"

    def exists(self) -> bool:
        return self.lines.exists()

    def summary(self) -> tuple[FileBefore, FileAfter]:
        return summary(self.lines)

    def of_size(self, after: int, before: int) -> Path | None:
        """Return the journal, committed or not, of the run between these sizes of the file."""
        for path in (self.lines, *self.committed()):
            if path.exists():
                old, new = summary(path)
                if (old.size, new.size) == (before, after):
                    return path
        return None

    def committed(self) -> list[Path]:
        """Return the journals of runs whose dropped members are gone."""
        return sorted(self.directory.glob(f"{self.lines.stem}.*.committed"))

    def clear(self) -> None:
        """Remove the journal of a file that has no revisits any more."""
        if not self.committed():  # else there are still revisits, and what they refer to
            with suppress(FileNotFoundError, Damaged):
                originals = {OriginalFile(entry.root, entry.name) for entry in entries(self.lines)}
                unprotect(self.directory.parent, self.name, originals)
        self.lines.unlink(missing_ok=True)
        sync_directory(self.directory)
        self.dropped.unlink(missing_ok=True)

    def discard_parts(self) -> None:
        """Remove what an interrupted run left."""
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


class JournalWriter:
    """Writes the journal of a file; it is valid once `finish` has returned."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._lines: FileSink | None = None
        self._dropped: FileSink | None = None
        self._count = 0
        self._protection = ProtectionWriter(journal.directory.parent, journal.name)

    def begin(self, before: FileBefore, *, keep_dropped: bool) -> None:
        """Open the files under temporary names."""
        self._journal.directory.mkdir(exist_ok=True)
        self._lines = _new(self._journal.lines)
        self._put({"format": _FORMAT, **before._asdict()})
        if keep_dropped:
            self._dropped = _new(self._journal.dropped)

    def add(self, entry: JournalEntry, source: BinaryIO, protection: Protection) -> None:
        """Write an entry; copies the dropped member from `source`."""
        self._put(entry._asdict())
        original = OriginalFile(entry.root, entry.name, protection.outside)
        self._protection.add(original, protection.key)
        self._count += 1
        if self._dropped is not None:
            self._dropped.copy(source, entry.offset, entry.stored)

    def finish(self, size: int) -> None:
        """Force everything to disk and rename it; `size` is that of the new file in bytes.

        Raises `Untouched` if an original outside of the set is being rewritten or was replaced.
        """
        self._protection.flush()
        self._put(FileAfter(self._count, size)._asdict())
        journal = self._journal
        for sink, path in ((self._dropped, journal.dropped), (self._lines, journal.lines)):
            if sink is not None:
                os.fsync(sink.file.fileno())
                os.replace(_part(path), path)
        sync_directory(journal.directory)
        self._protection.commit()

    def close(self) -> None:
        """Close the files, and remove what was not finished."""
        for sink in (self._lines, self._dropped):
            if sink is not None:
                sink.file.close()
        if not self._journal.exists() and not self._journal.committed():
            self._protection.close()
        self._journal.discard_parts()

    def _put(self, value: dict[str, Any]) -> None:
        assert self._lines is not None
        self._lines.write(json.dumps(value).encode("ascii") + b"\n")


def _new(path: Path) -> FileSink:
    return FileSink(open(_part(path), "wb", buffering=0))


def _part(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def entries(path: Path) -> Iterator[JournalEntry]:
    """Yield the revisits in a journal, in order of offset; raises `Damaged`."""
    with open(path, "rb") as lines:
        next(lines)
        for line in lines:
            try:
                fields = json.loads(line)
                if "offset" not in fields:
                    return
                entry = JournalEntry(**fields)
            except (ValueError, TypeError) as error:
                raise Damaged(f"{path} has a line that cannot be read: {error}") from error
            yield entry


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
        raise Damaged(f"{path} is no whole journal: {error}") from error
    raise Damaged(f"{path} is no journal that this version can read")


def unfinished(directory: Path) -> Iterator[Journal]:
    """Yield the journals that interrupted runs began in a directory."""
    for part in sorted((directory / DIRECTORY).glob("*.jsonl.part")):
        with open(part, "rb") as lines:
            first = lines.readline()
        if first.endswith(b"\n"):  # otherwise the run has created no other file
            with suppress(ValueError, TypeError, LookupError):
                yield Journal(directory, json.loads(first)["name"])


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
        raise Damaged(f"{path} is no journal: {error}") from error


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
