"""An ARC file in steps from its first byte to its last; nothing stands between two steps.

Whatever is not to the letter makes the whole file `Odd`: it is left alone, not guessed at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from dedupindex.warc.arc import DOCUMENT, ArcFraming
from dedupindex.warc.gzip_members import Damage, Filler, LongMember, Member, members
from dedupindex.warc.headers import BadHead
from dedupindex.warc.reader import START, framing_of, gzip_framing
from dedupindex.warc.record import BrokenRecord, Record
from dedupindex.warc.window import Cursor, Window

_LINE_ENDS = re.compile(rb"[\r\n]+")
_MOST_LINE_ENDS = 1 << 20  # bytes of them between two documents


class Odd(Exception):
    """The ARC file is not what it should be; the text says where and why."""


class MemberBegins(NamedTuple):
    """What follows, up to the next one, is in a gzip member."""

    offset: int


class Zeros(NamedTuple):
    """So many bytes of the file, between members, are zero."""

    size: int


class Text(NamedTuple):
    """Line ends around documents."""

    data: bytes


Step = MemberBegins | Zeros | Text | Record


class _Cursor(Cursor):
    """Remembers the line ends that were passed over."""

    passed = b""

    def skip_line_ends(self) -> int:
        count = 0
        while self.hold(1) and (match := _LINE_ENDS.match(self.buffer, self.at)):
            self.passed += match[0]
            self.at = match.end()
            count += len(match[0])
            if len(self.passed) > _MOST_LINE_ENDS:
                raise BadHead("a mebibyte of line ends")
        return count


def arc_framing(window: Window) -> tuple[ArcFraming, bool] | None:
    """What tells the documents apart, and whether they are gzipped; None if it is no ARC file."""
    framing = gzip_framing(window)
    zipped = framing is not None
    framing = framing or framing_of(window.read(0, START))
    return (framing, zipped) if isinstance(framing, ArcFraming) else None


def walk(window: Window, framing: ArcFraming, *, zipped: bool) -> Iterator[Step]:
    """The steps; a record must be read before the next one is taken. Raises `Odd`."""
    if not zipped:
        yield from _records(_Cursor(_plain(window)), framing, -1)
        return
    for step in members(window):
        if isinstance(step, Damage):
            raise Odd(f"at {step.offset}: {step.message}")
        if isinstance(step, Filler):
            yield Zeros(step.stored)
            continue
        yield MemberBegins(step.offset)
        yield from _records(_in(step), framing, step.offset)
        if isinstance(step, LongMember):
            while step.piece():
                pass
            if step.broken:
                raise Odd(f"at {step.offset}: a gzip member is damaged")


def _in(member: Member | LongMember) -> _Cursor:
    if isinstance(member, Member):
        return _Cursor(bytes, member.data)
    return _Cursor(member.piece, member.start, sound=lambda: not member.broken)


def _records(cursor: _Cursor, framing: ArcFraming, offset: int) -> Iterator[Step]:
    """All that is in a plain file (`offset` -1) or a member."""
    while True:
        begin = cursor.position
        try:
            cursor.skip_line_ends()
            if cursor.passed:
                yield Text(cursor.passed)
                cursor.passed = b""
            if not cursor.hold(1):
                return
            begin = cursor.position
            record = framing.record(cursor, begin if offset < 0 else offset)
            if record.special:
                raise BadHead("a URL record can be read in two ways")
            yield record
            record.finish()
        except (BadHead, BrokenRecord) as error:
            raise Odd(f"at {begin if offset < 0 else offset}: {error}") from error
        if record.type == DOCUMENT:
            closing = record.end - begin - record.start - record.length
            cursor.passed = (b"", b"\n", b"\r\n")[closing] + cursor.passed


def _plain(window: Window) -> Callable[[], bytes]:
    position = 0

    def piece() -> bytes:
        nonlocal position
        data = window.take(position) if position < window.size else b""
        position += len(data)
        return data

    return piece
