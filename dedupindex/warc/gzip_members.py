"""Gzip members: where each begins and ends, what is in it, and what to do when one is damaged.

A short member is fed to the inflater up to the next gzip magic, which nearly always is its very
end, so that nothing is copied back; for longer ones searching costs more than copying. A feed is
at most 32 KiB, so that a bomb stays small. Every byte of
the file belongs to a `Member`, a `LongMember`, a `Filler` or a `Damage` (RFC 1952 section 2.2).

After damage, reading goes on only where that is certain: right behind a member whose deflate data
ends cleanly although its checksum is wrong, or at the first later member from which sound members
follow each other without a gap to the end of the file. A gzip file that is the payload of a
damaged record cannot pass for records in this way.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterator
from typing import NamedTuple, Protocol

from isal import isal_zlib
from isal.isal_zlib import decompressobj

from dedupindex.warc.window import Window

# Where a damaged gzip member ends, and where reading may safely go on behind it.

IsalError: type[Exception] = isal_zlib.IsalError  # type: ignore[assignment]  # of its stub
MAGIC = b"\x1f\x8b\x08"
RESERVED = 0xE0  # bits of the flags in a gzip header
_FEED = 1 << 16
_TRAILER = 8  # bytes: CRC-32 and length
_FEXTRA, _FNAME, _FCOMMENT, _FHCRC = 4, 8, 16, 2
LONGEST_HEADER = 1 << 18


class Verdict(NamedTuple):
    """What zlib makes of a member. `end` is -1 if its deflate data does not end cleanly."""

    end: int
    sound: bool  # checksum and length agree
    cut: bool  # nothing is wrong but that the file ends too early


def judge(window: Window, offset: int) -> Verdict:
    """Inflate the member at `offset` without its wrapper, then compare checksum and length."""
    position = offset + header_length(window.read(offset, LONGEST_HEADER))
    if position < offset:
        return Verdict(-1, sound=False, cut=False)
    inflater = zlib.decompressobj(-15)
    checksum = length = 0
    while not inflater.eof:
        feed = window.read(position, _FEED)
        if not feed:
            return Verdict(-1, sound=False, cut=True)
        try:
            data = inflater.decompress(feed)
        except zlib.error:
            return Verdict(-1, sound=False, cut=False)
        checksum = zlib.crc32(data, checksum)
        length += len(data)
        position += len(feed)
    position -= len(inflater.unused_data)
    trailer = window.read(position, _TRAILER)
    if len(trailer) < _TRAILER:
        return Verdict(-1, sound=False, cut=True)
    stated = int.from_bytes(trailer[:4], "little"), int.from_bytes(trailer[4:], "little")
    return Verdict(position + _TRAILER, stated == (checksum, length & 0xFFFFFFFF), cut=False)


def header_length(start: bytes) -> int:
    """Bytes of the gzip header that `start` begins with; -1 if it is none."""
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
    """Where the run of zero bytes that may stand at `offset` ends."""
    while True:
        feed = window.read(offset, _FEED)
        rest = feed.lstrip(b"\0")
        offset += len(feed) - len(rest)
        if rest or not feed:
            return offset


def begins_cleanly(window: Window, offset: int) -> bool:
    """Whether a member, padding or the end of the file stands at `offset`."""
    start = window.read(offset, len(MAGIC))
    return not start.strip(b"\0") or start == MAGIC


def next_sound(window: Window, offset: int) -> int:
    """The first position from `offset` on from which sound members run to the end of the file.

    The size of the file if there is none. Each byte is inflated once: when the members that
    begin at one candidate break off at some place, those before that place were part of them.
    """
    while True:
        candidate = _find_magic(window, offset)
        if candidate >= window.size:
            return window.size
        broken = _break_of_chain(window, candidate)
        if broken >= window.size:
            return candidate
        offset = max(broken, candidate + 1)


def _find_magic(window: Window, offset: int) -> int:
    while feed := window.read(offset, 1 << 20):
        found = feed.find(MAGIC)
        if found >= 0:
            return offset + found
        if len(feed) < len(MAGIC):
            break
        offset += len(feed) - len(MAGIC) + 1
    return window.size


def _break_of_chain(window: Window, offset: int) -> int:
    """Where the members that begin at `offset` break off; the size of the file if they do not."""
    while offset < window.size:
        end = _end_if_sound(window, offset)
        if end < 0:
            padding = zeros_end(window, offset)
            if padding == offset:
                return offset
            end = padding
        offset = end
    return offset


def _end_if_sound(window: Window, offset: int) -> int:
    inflater = decompressobj(31)
    position = offset
    while not inflater.eof:
        feed = window.read(position, _FEED)
        if not feed:
            return -1
        try:
            inflater.decompress(feed)
        except IsalError:
            return -1
        position += len(feed)
    return position - len(inflater.unused_data)


SHORT = 4 << 20  # bytes inflated: up to here a member is handed over whole
FEED = 1 << 15  # bytes deflated: the most that is inflated in one go
_SEARCHED = 1 << 12  # bytes in which the end of a member is looked for
_LEAST = 18  # bytes of the shortest member
_ERRORS = (IsalError, zlib.error)


class Member(NamedTuple):
    """A sound member, inflated."""

    offset: int
    stored: int  # bytes in the file
    data: bytes


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


class LongMember:
    """A member too large to be held; `piece` inflates it bit by bit."""

    def __init__(self, window: Window, offset: int, inflater: Inflater, position: int) -> None:
        self.offset = offset
        self.end = -1  # in the file, once it is known
        self.broken = False
        self.start = b""  # the first `SHORT` bytes or so, inflated
        self._window = window
        self._inflater = inflater
        self._position = position  # of the next byte to feed
        self._find_end()

    @property
    def stored(self) -> int:
        """Bytes in the file, once the end is known."""
        return self.end - self.offset

    def piece(self) -> bytes:
        """The next inflated bytes; none when the member has ended or is broken."""
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


def members(window: Window) -> Iterator[Step]:
    """Walk the file from its beginning to its end."""
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
        if reserved:  # flags that zlib, and with it every other reader, does not accept
            position = yield from odd(window, position)
            continue
        if inflater.eof:
            stored = stop - index - len(inflater.unused_data)
            yield Member(position, stored, data)
            position += stored
            continue
        member = LongMember(window, position, inflater, position + stop - index)
        position = yield from long_member(window, member, data)


Step = Member | LongMember | Filler | Damage
Walk = Generator[Step, None, int]


def long_member(window: Window, member: LongMember, data: bytes, *, again: bool = False) -> Walk:
    """A member that does not inflate in one piece; returns where to go on.

    What breaks is tried `again` with zlib, once, if zlib finds nothing wrong with it.
    """
    pieces, length = [data], len(data)
    while length <= SHORT and (data := member.piece()):
        pieces.append(data)
        length += len(data)
    whole = b"".join(pieces)
    if member.broken and not again:
        return (yield from odd(window, member.offset))
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
        return (yield from _damaged(window, member.offset, judge(window, member.offset)))
    return member.end


def odd(window: Window, offset: int) -> Walk:
    """What ISA-L cannot inflate; returns where to go on."""
    padding = zeros_end(window, offset)
    if padding > offset:
        yield Filler(offset, padding - offset)
        return padding
    if window.read(offset, len(MAGIC)) != MAGIC:
        start = window.read(offset, 5)
        what = "an uncompressed record" if start.upper() == b"WARC/" else "something else"
        return (yield from _resumed(window, offset, f"{what} stands between gzip members", False))
    verdict = judge(window, offset)
    if verdict.sound:  # ISA-L misreads gzip headers that are cut in two by a feed
        member = LongMember(window, offset, zlib.decompressobj(31), offset)
        return (yield from long_member(window, member, b"", again=True))
    return (yield from _damaged(window, offset, verdict))


def _damaged(window: Window, offset: int, verdict: Verdict) -> Walk:
    if verdict.cut:
        stored = window.size - offset
        message = f"the last gzip member is cut short: its {stored:,} bytes were not used"
        yield Damage(offset, stored, message, record=True)
        return window.size
    if verdict.end >= 0 and begins_cleanly(window, verdict.end):
        stored = verdict.end - offset
        message = f"a gzip member of {stored:,} bytes has a wrong checksum and was left out"
        yield Damage(offset, stored, message, record=True)
        return verdict.end
    return (yield from _resumed(window, offset, "a gzip member is damaged", True))


def _resumed(window: Window, offset: int, what: str, record: bool) -> Walk:
    position = next_sound(window, offset + 1)
    stored = position - offset
    behind = "to the end of the file" if position == window.size else "up to the next sound member"
    yield Damage(offset, stored, f"{what}: {stored:,} bytes {behind} were not read", record)
    return position
