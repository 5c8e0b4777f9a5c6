"""Read files at offsets, compare them, and inflate their gzip members with zlib-ng."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from zlib_ng import zlib_ng

from dedupindex.verify.issues import Broken, Issue

_MIN_COMPARED, _MAX_COMPARED = 1 << 11, 1 << 20  # bytes compared at once
MAGIC = b"\x1f\x8b\x08"
_FIRST_FEED, _FEED = 1 << 13, 1 << 15  # bytes inflated at once: the first of a member, the others
_PIECE = 1 << 20  # bytes that inflating yields at once
_STORED = 65_535  # bytes that a stored block can hold
_EXTRA, _NAME, _COMMENT, _CRC = 4, 8, 16, 2  # flags of a gzip header (RFC 1952 section 2.3.1)
_ANY_CONTENT = _EXTRA | _NAME | _COMMENT  # these fields may hold anything
_LONGEST_HEADER = 1 << 17  # bytes of a gzip header that is read
_PEEKED, _START = 1 << 10, 1 << 11  # bytes inflated, and at most inflated to, for a first look
_MAX_KNOWN = 1 << 20  # offsets remembered for each file
_InflateError: type[Exception] = zlib_ng.error  # type: ignore[assignment]  # of its stub


class UnreadableFile(Exception):
    """A file cannot be opened or read; the text says why."""


class Elsewhere(ABC):
    """A file or directory that is on no disk of this machine; a value, which can be hashed."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The last part of its name."""

    @abstractmethod
    def open(self, *, scattered: bool) -> File:
        """Open a file, to read it in order or here and there; raises `UnreadableFile`."""

    @abstractmethod
    def size(self) -> int:
        """The size of a file in bytes, 0 if there is none."""

    @abstractmethod
    def is_dir(self) -> bool:
        """Whether this is a directory; raises `BadSource`."""

    @abstractmethod
    def below(self) -> Iterator[tuple[str, Elsewhere]]:
        """Yield the files below a directory, and their names there; raises `BadSource`."""


Place = Path | Elsewhere


def size_of(path: Place) -> int:
    """Return the size of a file in bytes, 0 if there is none."""
    if isinstance(path, Elsewhere):
        return path.size()
    return path.stat().st_size if path.exists() else 0


class File:
    """A file of the size that it had when it was opened."""

    path: Place

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise UnreadableFile(f"it cannot be opened: {error.strerror}") from error
        self.size = os.fstat(self._descriptor).st_size

    def close(self) -> None:
        os.close(self._descriptor)

    def end_at(self, size: int) -> None:
        """Hide all bytes from `size` on; raises `UnreadableFile` if there are fewer."""
        if size > self.size:
            raise UnreadableFile("it is shorter than it should be")
        self.size = size

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes, fewer only at the end; raises `UnreadableFile`."""
        wanted = max(min(size, self.size - offset), 0)
        data = b""
        while len(data) < wanted:
            try:
                more = os.pread(self._descriptor, wanted - len(data), offset + len(data))
            except OSError as error:
                raise UnreadableFile(f"it cannot be read: {error.strerror}") from error
            if not more:
                raise UnreadableFile("it became shorter while it was read")
            data = data + more if data else more
        return data


class Joined(NamedTuple):
    """A file that no longer exists, as ranges of others: path, offset and size."""

    path: Path
    ranges: Iterable[tuple[Path, int, int]]


class _JoinedFile(File):
    def __init__(self, joined: Joined) -> None:
        self.path, self.size = joined.path, 0
        self._files: dict[Path, File] = {}
        self._starts: list[int] = []
        self._ranges: list[tuple[File, int, int]] = []
        try:
            for path, offset, count in joined.ranges:
                file = self._files.get(path) or self._files.setdefault(path, File(path))
                self._starts.append(self.size)
                self._ranges.append((file, offset, count))
                self.size += count
        except UnreadableFile:
            self.close()
            raise

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def read(self, offset: int, size: int) -> bytes:
        left = max(min(size, self.size - offset), 0)
        found = []
        number = bisect_right(self._starts, offset) - 1
        while left:
            file, start, count = self._ranges[number]
            skip = offset - self._starts[number]
            wanted = min(left, count - skip)
            piece = file.read(start + skip, wanted)
            if len(piece) < wanted:
                raise UnreadableFile("it became shorter while it was read")
            found.append(piece)
            offset, left, number = offset + len(piece), left - len(piece), number + 1
        return b"".join(found)


def open_file(path: Place, *, scattered: bool = False) -> File:
    """Open a file, to read it in order or here and there; raises `UnreadableFile`."""
    return path.open(scattered=scattered) if isinstance(path, Elsewhere) else File(path)


@contextmanager
def opened(path: Place | Joined, *, scattered: bool = False) -> Iterator[File]:
    file = _JoinedFile(path) if isinstance(path, Joined) else open_file(path, scattered=scattered)
    try:
        yield file
    finally:
        file.close()


def common(old: File, at: int, new: File, there: int) -> int:
    """The number of equal bytes from the offsets `at` and `there` on."""
    length, step = 0, _MIN_COMPARED
    while True:
        mine, theirs = old.read(at + length, step), new.read(there + length, step)
        if mine != theirs or not mine:
            return length + _first_difference(mine, theirs)
        length += len(mine)
        step = min(step * 4, _MAX_COMPARED)


def _first_difference(mine: bytes, theirs: bytes) -> int:
    low, high = 0, min(len(mine), len(theirs))  # all before `low` is equal
    while low < high:
        middle = (low + high + 1) // 2
        if mine[low:middle] == theirs[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class MemberReader(ABC):
    """Reads what a compressed member holds: a gzip member, or zstd frames."""

    file: File
    offset: int
    end: int  # the offset after it, once all was read
    frames = 1  # that hold the record
    issues: Sequence[Issue] = ()

    @abstractmethod
    def piece(self) -> bytes:
        """The next bytes; none at the end. Raises `Broken`, also for a wrong checksum."""

    def skip(self) -> None:
        while self.piece():
            pass

    def proceed(self, continues: Callable[[bytes], bool]) -> bool:
        """Whether it goes on with a further frame, whose first bytes `continues` accepts."""
        return False

    def rewind(self) -> None:
        """Leave the further frames to be read for themselves."""
        self.frames = 1


class Beginnings(ABC):
    """The offsets of a file where a member certainly begins, as far as known."""

    unit: str  # what a member is called
    magic: bytes  # with which each begins

    def __init__(self, file: File) -> None:
        self.file = file
        self._known = {0: -1}  # and the end of that member; -1 until it was read

    def add(self, offset: int) -> None:
        """Add a certain offset, such as the end of a sound member that certainly begins."""
        if len(self._known) >= _MAX_KNOWN:
            self._known = {0: -1}
        self._known.setdefault(offset, -1)

    def learn(self, offset: int, end: int) -> None:
        """Add a certain offset and the end of its member, without a check."""
        self.add(offset)
        self._known[offset] = end
        self.add(end)

    def known(self, offset: int) -> bool:
        return offset in self._known

    def is_at(self, offset: int) -> bool:
        """Whether a member may begin at `offset`."""
        return self.file.read(offset, len(self.magic)) == self.magic

    def skipped(self, offset: int, count: int = -1) -> int:
        """The end of the skippable frames at `offset`, `count` at most; raises `Broken`."""
        return offset

    def only_skippable(self) -> bool:
        """Whether the file has nothing but skippable frames."""
        try:
            return self.skipped(0) == self.file.size
        except Broken:
            return False

    def skipped_issues(self, offset: int) -> Iterable[Issue]:
        """What is wrong with the skippable frame at `offset`."""
        return ()

    def alike(self, offset: int) -> tuple[int, int]:
        """Skip the frames from `offset` on that need the same dictionary: end and number."""
        return offset, 0

    def reached(self, start: int, offset: int) -> bool:
        """Whether members follow each other from the certain offset `start` up to `offset`."""
        try:
            while start < offset:
                start = self.end(start)
        except Broken:
            return False
        return start == offset

    def magics(self, start: int, stop: int) -> Iterator[int]:
        """Yield where a member may begin, from `start` up to `stop`."""
        return find_all(self.file, self.magic, start, stop)

    @abstractmethod
    def open(self, offset: int) -> MemberReader:
        """Return a reader of the member at `offset`; raises `Broken`."""

    @abstractmethod
    def end(self, offset: int) -> int:
        """The end of the member at a certain offset, which is certain too; raises `Broken`."""

    @abstractmethod
    def certain(self, offset: int) -> bool:
        """Whether a member certainly begins at `offset`, reading what must be."""

    @abstractmethod
    def starts(self) -> Iterator[tuple[int, bytes]]:
        """Yield where a member may begin, and its first bytes."""


class GzipReader(MemberReader):
    def __init__(self, file: File, offset: int) -> None:
        self.file, self.offset = file, offset
        self.end = -1  # the offset after it, once all was inflated
        self.flags = 0  # of the gzip header, once something was inflated
        self._inflater = zlib_ng.decompressobj(31)
        self._position = offset  # of the next byte to feed
        self._left = b""
        self._full = False  # whether the inflater may hold more without being fed

    def piece(self) -> bytes:
        while not self._inflater.eof:
            feed = self._left or (b"" if self._full else self._feed())
            try:
                data = self._inflater.decompress(feed, _PIECE)
            except _InflateError as error:
                raise Broken("damaged-member", "its compressed data is damaged") from error
            self._left, self._full = self._inflater.unconsumed_tail, len(data) >= _PIECE
            if self._inflater.eof:
                self.end = self._position - len(self._inflater.unused_data)
            if data:
                return data
        return b""

    def _feed(self) -> bytes:
        first = self._position == self.offset  # most records are short
        feed = self.file.read(self._position, _FIRST_FEED if first else _FEED)
        if not feed:
            message = "nothing is there" if first else "the file ends within it"
            raise Broken("damaged-member", message)
        if first:
            self.flags = feed[3] if len(feed) > 3 else 0
        self._position += len(feed)
        return feed


class GzipMembers(Beginnings):
    """The gzip members of a file.

    A member may itself hold gzip members, in a stored block or in a field of its header. So an
    offset is certain only if members follow each other from it beyond the end of any block or
    field that may hold it, or to another certain offset.
    """

    unit = "gzip member"
    magic = MAGIC

    def open(self, offset: int) -> GzipReader:
        return GzipReader(self.file, offset)

    def end(self, offset: int) -> int:
        end = self._known.get(offset, -1)
        if end < 0:
            member = self.open(offset)
            member.skip()
            end = member.end
            self.learn(offset, end)
        return end

    def certain(self, offset: int) -> bool:
        if offset in self._known:
            return True
        position, until = offset, _stored_blocks_end(self.file, offset)
        passed = []
        while position not in self._known and position <= until and position < self.file.size:
            member = self.open(position)
            try:
                member.skip()
            except Broken:
                return False
            if member.flags & _ANY_CONTENT:
                content = _header_end(self.file, position)
                if content < 0:
                    return False
                until = max(until, _stored_blocks_end(self.file, content))
            passed.append((position, member.end))
            position = member.end
        for position, end in passed:
            self.learn(position, end)
        return True

    def starts(self) -> Iterator[tuple[int, bytes]]:
        """Yield where a member may begin, and its first bytes, at most `_START`."""
        for offset in self.magics(0, self.file.size):
            with suppress(_InflateError):
                inflater = zlib_ng.decompressobj(31)
                yield offset, inflater.decompress(self.file.read(offset, _PEEKED), _START)


def _stored_blocks_end(file: File, offset: int) -> int:
    """The end of the last stored block that may hold the byte at `offset`; `offset` for none.

    A stored block begins with its length and the complement of that, two bytes each. All offsets
    of this kind are found at once, by arithmetic on one long number.
    """
    start = max(offset - _STORED - 4, 0)
    data = file.read(start, offset - start)
    number = int.from_bytes(data, "little")
    complements = (number ^ number >> 16).to_bytes(len(data), "little")
    until, at = offset, complements.find(b"\xff\xff")
    while 0 <= at <= len(data) - 4:
        length = int.from_bytes(data[at : at + 2], "little")
        until = max(until, start + at + 4 + length)
        at = complements.find(b"\xff\xff", at + 1)
    return until


def _header_end(file: File, offset: int) -> int:
    """The end of the gzip header at `offset`; -1 if it is too long, or a member may begin in it."""
    start = file.read(offset, _LONGEST_HEADER)
    flags, at = start[3], 10
    if flags & _EXTRA:
        at += 2 + int.from_bytes(start[at : at + 2], "little")
    for flag in (_NAME, _COMMENT):
        if flags & flag:
            at = start.find(b"\0", at) + 1
            if not at:
                return -1
    at += 2 if flags & _CRC else 0
    if at > len(start) or start.find(MAGIC, 1, at + len(MAGIC) - 1) >= 0:
        return -1
    return offset + at


def candidates(file: File, low: int, high: int) -> Iterator[int]:
    """Yield where a member may begin, from `high` (inclusive) down to `low`."""
    stop, count = min(high + len(MAGIC), file.size), _PEEKED
    while stop > low:
        start, count = max(low, stop - count), _FEED
        data = file.read(start, stop - start)
        at = data.rfind(MAGIC)
        while at >= 0:
            yield start + at
            at = data.rfind(MAGIC, 0, at + len(MAGIC) - 1)
        if start == low:
            break
        stop = start + len(MAGIC) - 1


def find_all(file: File, magic: bytes, start: int, stop: int) -> Iterator[int]:
    """Yield where some bytes are, from `start` up to `stop`."""
    base = start
    while base < stop:
        data = file.read(base, _PIECE)
        at = data.find(magic)
        while at >= 0 and base + at < stop:
            yield base + at
            at = data.find(magic, at + 1)
        if base + len(data) >= file.size:
            break
        base += len(data) - len(magic) + 1
