"""Files as bytes at offsets, and where two of them begin to differ."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from zlib_ng import zlib_ng

from dedupindex.verify.issues import Broken

_LEAST, _MOST = 1 << 14, 1 << 20  # bytes compared in one go


class UnreadableFile(Exception):
    """A file that cannot be opened or read; says why."""


class File:
    """A file that is read at offsets, as long as it was when it was opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise UnreadableFile(f"it cannot be opened: {error.strerror}") from error
        self.size = os.fstat(self._descriptor).st_size

    def close(self) -> None:
        os.close(self._descriptor)

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes, fewer only at the end; raises `UnreadableFile`."""
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
    """A file that is no longer there as one, and the ranges that it was made of."""

    path: Path
    ranges: Iterable[tuple[Path, int, int]]


class _JoinedFile(File):
    """As `File`."""

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
        """See `File`."""
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


@contextmanager
def opened(path: Path | Joined) -> Iterator[File]:
    """The file, closed when the block ends."""
    file = File(path) if isinstance(path, Path) else _JoinedFile(path)
    try:
        yield file
    finally:
        file.close()


def common(old: File, at: int, new: File, there: int) -> int:
    """How many bytes are equal from `at` and `there` on."""
    length, step = 0, _LEAST
    while True:
        mine, theirs = old.read(at + length, step), new.read(there + length, step)
        if mine != theirs or not mine:
            return length + _first_difference(mine, theirs)
        length += len(mine)
        step = min(step * 2, _MOST)


def _first_difference(mine: bytes, theirs: bytes) -> int:
    low, high = 0, min(len(mine), len(theirs))  # equal before low; different somewhere before high
    if mine[:high] == theirs[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if mine[low:middle] == theirs[low:middle]:  # of views it would take ten times as long
            low = middle
        else:
            high = middle
    return low


# Gzip members, one at a time, with zlib-ng; and which offsets are certainly where one begins.

MAGIC = b"\x1f\x8b\x08"
LEAST = 18  # bytes of the shortest member
_FIRST, _FEED = 1 << 13, 1 << 15  # bytes deflated, at first and then
_PIECE = 1 << 20  # bytes inflated: a bomb is never held
_STORED = 65_535  # bytes that a stored block can hold
_EXTRA, _NAME, _COMMENT, _SUM = 4, 8, 16, 2  # flags of a gzip header (RFC 1952 section 2.3.1)
_LONGER = _EXTRA | _NAME | _COMMENT  # these may hold anything
_HEADER = 1 << 17  # bytes of the longest gzip header that can be a proof
_PEEKED, _START = 1 << 10, 1 << 11  # bytes deflated and inflated, to look at a record's header
_MOST_KNOWN = 1 << 20  # offsets remembered for each file
_InflateError: type[Exception] = zlib_ng.error  # type: ignore[assignment]  # of its stub


class MemberReader:
    """A member that is inflated piece by piece; `end` is known when the last piece has come."""

    def __init__(self, file: File, offset: int) -> None:
        self.file, self.offset = file, offset
        self.end = -1
        self.flags = 0  # of the gzip header, once something was inflated
        self._inflater = zlib_ng.decompressobj(31)
        self._position = offset  # of the next byte to feed
        self._left = b""
        self._full = False  # whether the inflater may hold more without being fed

    def piece(self) -> bytes:
        """The next bytes; none at the end, when the checksum was right. Raises `Broken`."""
        while not self._inflater.eof:
            feed = self._left or (b"" if self._full else self._feed())
            try:
                data = self._inflater.decompress(feed, _PIECE)
            except _InflateError as error:
                message = str(error).removeprefix("Error ")
                raise Broken("damaged-member", message) from error
            self._left, self._full = self._inflater.unconsumed_tail, len(data) >= _PIECE
            if self._inflater.eof:
                self.end = self._position - len(self._inflater.unused_data)
            if data:
                return data
        return b""

    def _feed(self) -> bytes:
        first = self._position == self.offset  # most records end soon
        feed = self.file.read(self._position, _FIRST if first else _FEED)
        if not feed:
            if self._position == self.offset:
                raise Broken("damaged-member", "nothing is there")
            raise Broken("damaged-member", "the file ends within it")
        if self._position == self.offset:
            self.flags = feed[3] if len(feed) > 3 else 0
        self._position += len(feed)
        return feed


def member_end(file: File, offset: int) -> int:
    """Where the member at `offset` ends, inflated to its checksum; raises `Broken`."""
    member = MemberReader(file, offset)
    while member.piece():
        pass
    return member.end


class Beginnings:
    """The offsets of a file that are certainly where a member begins, as far as was asked."""

    def __init__(self, file: File) -> None:
        self.file = file
        self._known = {0: -1}  # and where that member ends, once it was inflated

    def add(self, offset: int) -> None:
        """Remember a true beginning, such as the end of a sound member that truly begins."""
        if len(self._known) >= _MOST_KNOWN:
            self._known = {0: -1}
        self._known.setdefault(offset, -1)

    def learn(self, offset: int, end: int) -> None:
        """Take it on trust that a member begins at `offset` and where it ends."""
        self.add(offset)
        self._known[offset] = end
        self.add(end)

    def known(self, offset: int) -> bool:
        """Whether this was found out before."""
        return offset in self._known

    def end(self, offset: int) -> int:
        """Where the member at a true beginning ends, which is one too; raises `Broken`."""
        end = self._known.get(offset, -1)
        if end < 0:
            end = member_end(self.file, offset)
            self.learn(offset, end)
        return end

    def certain(self, offset: int) -> bool:
        """Whether a member truly begins at `offset`; see the head of this module."""
        if offset in self._known:
            return True
        position, until = offset, held_until(self.file, offset)
        passed = []
        while position not in self._known and position <= until and position < self.file.size:
            member = MemberReader(self.file, position)
            try:
                while member.piece():
                    pass
            except Broken:
                return False
            if member.flags & _LONGER:
                behind = _behind_header(self.file, position)
                if behind < 0:
                    return False
                until = max(until, held_until(self.file, behind))
            passed.append((position, member.end))
            position = member.end
        for position, end in passed:
            self.learn(position, end)
        return True

    def reached(self, start: int, offset: int) -> bool:
        """Whether members follow each other from the true beginning `start` up to `offset`."""
        try:
            while start < offset:
                start = self.end(start)
        except Broken:
            return False
        return start == offset


def held_until(file: File, offset: int) -> int:
    """Where the last stored block ends that may hold the byte at `offset`; `offset` for none.

    The head of such a block is its length and the complement of that, two bytes each. All places
    of this kind are found at once, by arithmetic on one long number.
    """
    start = max(offset - _STORED - 4, 0)
    data = file.read(start, offset - start)
    number = int.from_bytes(data, "little")
    alike = (number ^ number >> 16).to_bytes(len(data), "little")
    until, at = offset, alike.find(b"\xff\xff")
    while 0 <= at <= len(data) - 4:
        length = int.from_bytes(data[at : at + 2], "little")
        until = max(until, start + at + 4 + length)
        at = alike.find(b"\xff\xff", at + 1)
    return until


def _behind_header(file: File, offset: int) -> int:
    """Where the gzip header at `offset` ends; -1 if it is too long, or a member may begin in it."""
    start = file.read(offset, _HEADER)
    flags, at = start[3], 10
    if flags & _EXTRA:
        at += 2 + int.from_bytes(start[at : at + 2], "little")
    for flag in (_NAME, _COMMENT):
        if flags & flag:
            at = start.find(b"\0", at) + 1
            if not at:
                return -1
    at += 2 if flags & _SUM else 0
    if at > len(start) or start.find(MAGIC, 1, at + len(MAGIC) - 1) >= 0:
        return -1
    return offset + at


def candidates(file: File, low: int, high: int) -> Iterator[int]:
    """Where a member may begin, from `high` (inclusive) back to `low`, the last first."""
    stop = min(high + len(MAGIC), file.size)
    while stop > low:
        start = max(low, stop - _FEED)
        data = file.read(start, stop - start)
        at = data.rfind(MAGIC)
        while at >= 0:
            yield start + at
            at = data.rfind(MAGIC, 0, at + len(MAGIC) - 1)
        if start == low:
            break
        stop = start + len(MAGIC) - 1


def magics(file: File, start: int, stop: int) -> Iterator[int]:
    """Where a member may begin, from `start` on up to `stop`, in order."""
    base = start
    while base < stop:
        data = file.read(base, _PIECE)
        at = data.find(MAGIC)
        while at >= 0 and base + at < stop:
            yield base + at
            at = data.find(MAGIC, at + 1)
        if base + len(data) >= file.size:
            break
        base += len(data) - len(MAGIC) + 1


def starts(file: File) -> Iterator[tuple[int, bytes]]:
    """Where members may begin, and the first bytes that inflate there; `_START` at the most."""
    base = 0
    while base < file.size:
        data = file.read(base, _PIECE)
        last = base + len(data) >= file.size
        stop = len(data) if last else len(data) - _PEEKED
        at = data.find(MAGIC)
        while 0 <= at < stop:
            try:
                start = zlib_ng.decompressobj(31).decompress(data[at : at + _PEEKED], _START)
                yield base + at, start
            except _InflateError:
                pass
            at = data.find(MAGIC, at + 1)
        if last:
            break
        base += stop
