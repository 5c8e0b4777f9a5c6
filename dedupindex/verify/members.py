"""Gzip members, one at a time, with zlib; and which offsets are certainly where one begins.

A payload may be a gzip file that stands in its record's member as it is, in a stored block. So a
member that inflates well at some offset proves nothing about the file. But a stored block is
65,535 bytes at most (RFC 1951 section 3.2.4), and behind it come bytes of the outer member: an
offset is a member's true beginning if members follow each other from it without a gap for more
than that, or up to the end of the file.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from dedupindex.verify.bytes import File
from dedupindex.verify.finding import Broken

MAGIC = b"\x1f\x8b\x08"
LEAST = 18  # bytes of the shortest member
_FEED = 1 << 15  # bytes deflated
_PIECE = 1 << 20  # bytes inflated: a bomb is never held
_STORED = 65_535 + 5 + 8  # a stored block, the head of the next, a trailer
_MOST_KNOWN = 1 << 20  # offsets remembered for each file


class Member:
    """A member that is inflated piece by piece; `end` is known when the last piece has come."""

    def __init__(self, file: File, offset: int) -> None:
        self.file, self.offset = file, offset
        self.end = -1
        self._inflater = zlib.decompressobj(31)
        self._position = offset  # of the next byte to feed
        self._left = b""
        self._full = False  # whether the inflater may hold more without being fed

    def piece(self) -> bytes:
        """The next bytes; none at the end, when the checksum was right. Raises `Broken`."""
        while not self._inflater.eof:
            feed = self._left or (b"" if self._full else self._feed())
            try:
                data = self._inflater.decompress(feed, _PIECE)
            except zlib.error as error:
                message = str(error).removeprefix("Error ")
                raise Broken("damaged-member", message) from error
            self._left, self._full = self._inflater.unconsumed_tail, len(data) >= _PIECE
            if self._inflater.eof:
                self.end = self._position - len(self._inflater.unused_data)
            if data:
                return data
        return b""

    def _feed(self) -> bytes:
        feed = self.file.read(self._position, _FEED)
        if not feed:
            if self._position == self.offset:
                raise Broken("damaged-member", "nothing is there")
            raise Broken("damaged-member", "the file ends within it")
        self._position += len(feed)
        return feed


def member_end(file: File, offset: int) -> int:
    """Where the member at `offset` ends, inflated to its checksum; raises `Broken`."""
    member = Member(file, offset)
    while member.piece():
        pass
    return member.end


class Beginnings:
    """The offsets of a file that are certainly where a member begins, as far as was asked."""

    def __init__(self, file: File) -> None:
        self.file = file
        self._known = {0}

    def add(self, offset: int) -> None:
        """Remember a true beginning, such as the end of a sound member that truly begins."""
        if len(self._known) >= _MOST_KNOWN:
            self._known = {0}
        self._known.add(offset)

    def known(self, offset: int) -> bool:
        """Whether this was found out before."""
        return offset in self._known

    def certain(self, offset: int) -> bool:
        """Whether a member truly begins at `offset`; see the head of this module."""
        position, passed = offset, [offset]
        while position not in self._known:
            if position == self.file.size or position - offset > _STORED:
                break
            try:
                position = member_end(self.file, position)
            except Broken:
                return False
            passed.append(position)
        for position in passed:
            self.add(position)
        return True


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
