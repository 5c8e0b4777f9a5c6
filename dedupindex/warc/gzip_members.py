"""Divide a file into gzip members, and recover from damage (RFC 1952 section 2.2).

Every byte of the file belongs to a `Member`, a `LongMember`, a `Filler` or a `Damage`. A short
member is fed to the inflater up to the next gzip magic, nearly always its end, so that nothing is
copied back. A feed is at most 32 KiB, so that a gzip bomb stays small.

After damage, reading resumes only where that is certain: after a member whose deflate data ends
cleanly although its checksum is wrong, or at the first member from which sound members follow each
other to the end of the file. A gzip file in the payload of a damaged record is therefore not
mistaken for records.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from functools import partial
from typing import NamedTuple, Protocol

from isal import isal_zlib
from isal.isal_zlib import decompressobj

from dedupindex.warc.window import Window

IsalError: type[Exception] = isal_zlib.IsalError  # type: ignore[assignment]  # of its stub
MAGIC = b"\x1f\x8b\x08"
RESERVED = 0xE0  # bits of the flags in a gzip header
_FEED = 1 << 16
_TRAILER = 8  # bytes: CRC-32 and length
_FEXTRA, _FNAME, _FCOMMENT, _FHCRC = 4, 8, 16, 2
LONGEST_HEADER = 1 << 18


class MemberState(NamedTuple):
    """The state of a member. `end` is -1 if its deflate data does not end cleanly."""

    end: int
    sound: bool  # checksum and length agree
    cut: bool  # the file ends too early, and nothing else is wrong


def examine(window: Window, offset: int) -> MemberState:
    """Inflate the member at `offset` with zlib, then compare checksum and length."""
    position = offset + header_length(window.read(offset, LONGEST_HEADER))
    if position < offset:
        return MemberState(-1, sound=False, cut=False)
    inflater = zlib.decompressobj(-15)
    checksum = length = 0
    while not inflater.eof:
        feed = window.read(position, _FEED)
        if not feed:
            return MemberState(-1, sound=False, cut=True)
        try:
            data = inflater.decompress(feed)
        except zlib.error:
            return MemberState(-1, sound=False, cut=False)
        checksum = zlib.crc32(data, checksum)
        length += len(data)
        position += len(feed)
    position -= len(inflater.unused_data)
    trailer = window.read(position, _TRAILER)
    if len(trailer) < _TRAILER:
        return MemberState(-1, sound=False, cut=True)
    stated = int.from_bytes(trailer[:4], "little"), int.from_bytes(trailer[4:], "little")
    return MemberState(position + _TRAILER, stated == (checksum, length & 0xFFFFFFFF), cut=False)


def header_length(start: bytes) -> int:
    """Return the length of the gzip header at the beginning of `start`; -1 if there is none."""
    if not start.startswith(MAGIC) or len(start) < 10 or start[3] & RESERVED:
        return -1
    flags, at = start[3], 10
    if flags & _FEXTRA:
        at += 2 + int.from_bytes(start[at : at + 2], "little")
    for flag in (_FNAME, _FCOMMENT):
        if flags & flag:
            at = start.find(b"\0", at) + 1
            if not at:
                return -1
    return at + 2 if flags & _FHCRC else at


def zeros_end(window: Window, offset: int) -> int:
    """Return the position after any zero bytes at `offset`."""
    while True:
        feed = window.read(offset, _FEED)
        rest = feed.lstrip(b"\0")
        offset += len(feed) - len(rest)
        if rest or not feed:
            return offset


Position = Callable[[int], int]
"""From a position in a file to a later one."""


def first_chain(window: Window, offset: int, find: Position, after: Position) -> int:
    """Return the first position from `offset` on from which members or records run to the end.

    The size of the file if there is none. `find` returns the next candidate; `after` is that of
    `chain_end`. Each byte is examined once: a candidate within a broken chain was part of it.
    """
    while (candidate := find(offset)) < window.size:
        end = chain_end(window, candidate, after)
        if end >= window.size:
            return candidate
        offset = max(end, candidate + 1)
    return window.size


def chain_end(window: Window, offset: int, after: Position) -> int:
    """Return where the members or records that begin at `offset` break off.

    `after` returns the position after the one at a position, -1 if it is not sound.
    """
    while offset < window.size and (following := after(offset)) >= 0:
        offset = following
    return offset


def find_bytes(window: Window, sought: bytes, offset: int) -> int:
    """Return where `sought` is next, the size of the file if it is not there."""
    while feed := window.read(offset, 1 << 20):
        found = feed.find(sought)
        if found >= 0:
            return offset + found
        if len(feed) < len(sought):
            break
        offset += len(feed) - len(sought) + 1
    return window.size


def _after(window: Window, offset: int) -> int:
    """Return the position after a sound member or padding, -1 if neither is at `offset`."""
    inflater = decompressobj(31)
    position = offset
    try:
        while not inflater.eof and (feed := window.read(position, _FEED)):
            inflater.decompress(feed)
            position += len(feed)
        if inflater.eof:
            return position - len(inflater.unused_data)
    except IsalError:
        pass
    padding = zeros_end(window, offset)
    return padding if padding > offset else -1


SHORT = 4 << 20  # inflated bytes up to which a member is held in memory
FEED = 1 << 15  # deflated bytes that are inflated at a time
_SEARCHED = 1 << 12  # bytes in which the end of a member is looked for
_LEAST = 18  # bytes of the shortest member
_ERRORS = (IsalError, zlib.error)


class Member(NamedTuple):
    """A sound member, inflated."""

    offset: int
    stored: int  # bytes in the file
    data: bytes
    remark: str = ""  # a key of `record.REMARKS` that holds for all its records


class Filler(NamedTuple):
    """Bytes that hold no record and do no harm: zeros, empty members, line ends."""

    offset: int
    stored: int


class Damage(NamedTuple):
    """Bytes that could not be read, or not as what they should be."""

    offset: int
    stored: int  # bytes of the file that this accounts for
    message: str
    record: bool  # whether a record was lost that nothing else accounts for


class Inflater(Protocol):
    """What the decompressors of ISA-L and zlib have in common."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: memoryview, /) -> bytes: ...


class LongMember(ABC):
    """A member too large to be held."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.end = -1  # in the file, once it is known
        self.broken = False
        self.start = b""  # the first `SHORT` bytes or so, inflated
        self.remark = ""  # as of `Member`

    @property
    def stored(self) -> int:
        """Bytes in the file, once the end is known."""
        return self.end - self.offset

    @abstractmethod
    def piece(self) -> bytes:
        """Return the next inflated bytes; none when the member has ended or is broken."""


class LongGzipMember(LongMember):
    """A gzip member too large to be held."""

    def __init__(self, window: Window, offset: int, inflater: Inflater, position: int) -> None:
        super().__init__(offset)
        self._window = window
        self._inflater = inflater
        self._position = position  # of the next byte to feed
        self._find_end()

    def piece(self) -> bytes:
        window = self._window
        while self.end < 0 and not self.broken:
            index = self._position - window.start
            if not 0 <= index < window.filled:
                if self._position < window.size:
                    window.load(self._position)
                self.broken = self._position >= window.size
                continue
            stop = min(index + FEED, window.filled)
            try:
                data = self._inflater.decompress(window.view[index:stop])
            except _ERRORS:
                self.broken = True
                break
            self._position += stop - index
            self._find_end()
            if data:
                return data
        return b""

    def _find_end(self) -> None:
        if self._inflater.eof:
            self.end = self._position - len(self._inflater.unused_data)


def members(window: Window) -> Walk:
    """Yield all members of the file, and what is between them; return its size."""
    position = 0
    buffer, view = window.buffer, window.view
    while position < window.size:
        index = position - window.start
        room = window.filled - index
        if index < 0 or (room < FEED and position + room < window.size):
            window.load(position)
            continue
        stop = index + (FEED if room > FEED else room)
        found = buffer.find(MAGIC, index + _LEAST, index + _SEARCHED)
        if 0 < found < stop:
            stop = found
        inflater = decompressobj(31)
        try:
            data = inflater.decompress(view[index:stop])
            reserved = room > 3 and buffer[index + 3] & RESERVED
        except IsalError:
            reserved = True
        if reserved:  # zlib, and so every other reader, rejects these flags
            position = yield from irregular(window, position)
        elif inflater.eof:
            stored = stop - index - len(inflater.unused_data)
            yield Member(position, stored, data)
            position += stored
        else:
            member = LongGzipMember(window, position, inflater, position + stop - index)
            position = yield from long_member(window, member, data)
    return position


Step = Member | LongMember | Filler | Damage
Walk = Generator[Step, None, int]


def long_member(
    window: Window, member: LongGzipMember, data: bytes, *, again: bool = False
) -> Walk:
    """Yield a member that does not inflate in one piece; return where to resume.

    If ISA-L fails and zlib does not, it is inflated `again` with zlib.
    """
    pieces, length = [data], len(data)
    while length <= SHORT and (data := member.piece()):
        pieces.append(data)
        length += len(data)
    whole = b"".join(pieces)
    if member.broken and not again:
        return (yield from irregular(window, member.offset))
    if member.end >= 0:
        yield Member(member.offset, member.stored, whole)
        return member.end
    if not member.broken:
        member.start = whole
        del pieces, data, whole
        yield member
        while member.piece():
            pass
    if member.broken:
        return (yield from _damaged(window, member.offset, examine(window, member.offset)))
    return member.end


def irregular(window: Window, offset: int) -> Walk:
    """Yield what ISA-L cannot inflate at `offset`; return where to resume."""
    padding = zeros_end(window, offset)
    if padding > offset:
        yield Filler(offset, padding - offset)
        return padding
    if window.read(offset, len(MAGIC)) != MAGIC:
        start = window.read(offset, 5)
        what = "an uncompressed record" if start.upper() == b"WARC/" else "something else"
        return (yield from _resumed(window, offset, f"{what} is between gzip members", False))
    state = examine(window, offset)
    if state.sound:  # ISA-L misreads gzip headers that are divided between two feeds
        member = LongGzipMember(window, offset, zlib.decompressobj(31), offset)
        return (yield from long_member(window, member, b"", again=True))
    return (yield from _damaged(window, offset, state))


def _damaged(window: Window, offset: int, state: MemberState) -> Walk:
    if state.cut:
        stored = window.size - offset
        message = f"the last gzip member is cut short: its {stored:,} bytes were not used"
        yield Damage(offset, stored, message, record=True)
        return window.size
    follows = window.read(state.end, len(MAGIC)) if state.end >= 0 else b"?"
    if follows == MAGIC or not follows.strip(b"\0"):  # a member, padding or the end of the file
        stored = state.end - offset
        message = f"a gzip member of {stored:,} bytes has a wrong checksum and was not read"
        yield Damage(offset, stored, message, record=True)
        return state.end
    return (yield from _resumed(window, offset, "a gzip member is damaged", True))


def _resumed(window: Window, offset: int, what: str, record: bool) -> Walk:
    find, after = partial(find_bytes, window, MAGIC), partial(_after, window)
    position = first_chain(window, offset + 1, find, after)
    stored = position - offset
    rest = "to the end of the file" if position == window.size else "up to the next sound member"
    yield Damage(offset, stored, f"{what}: {stored:,} bytes {rest} were not read", record)
    return position
