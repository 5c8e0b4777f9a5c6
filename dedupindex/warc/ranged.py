"""One record at a known place, read by its range, of a file here or an object elsewhere.

`single.Single` believes only to the letter, for who drops bytes. This is for who reads them: a
stated length that is wrong or missing is made up for, and what follows a record is of no concern.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from isal.isal_zlib import decompressobj

from dedupindex.warc.arc import ArcFraming
from dedupindex.warc.cursor import Cursor
from dedupindex.warc.framing import Framing, WarcFraming
from dedupindex.warc.headers import BLANK_LINE, LONGEST, BadHead, parse
from dedupindex.warc.record import CUT, BrokenRecord, Record
from dedupindex.warc.recovery import MAGIC, IsalError

FIRST = 1 << 15  # bytes that are read of a record whose length nobody says
_LEAST = 64  # bytes: no record takes fewer
_HEADER = 1 << 16  # bytes in which the version block of an ARC file ends, and any of its lines
_CLOSING = 4  # bytes of line ends behind a record
_LINE_ENDS = re.compile(rb"[\r\n]*")

Read = Callable[[int, int], bytes]
"""``read(offset, count)``: bytes of a container, fewer only at its end."""


class Unreadable(Exception):
    """There is no whole record, or one that is longer than it may be."""


class Ranged(NamedTuple):
    """A record, and where it stands."""

    record: Record
    raw: bytes  # as the container has it: of a gzip file the member
    gzipped: bool
    alone: bool  # nothing else is in its member

    def block(self) -> bytes:
        """All of it; raises `Unreadable`."""
        try:
            return b"".join(self.record.pieces())
        except BrokenRecord as error:
            raise Unreadable(str(error)) from error


def record_at(read: Read, offset: int, stored: int, most: int) -> Ranged:
    """The record at `offset`, which takes `stored` bytes if that is more than 0.

    No more than `most` bytes are held, as stored or inflated. Raises `Unreadable`.
    """
    count = min(max(stored, _LEAST) if stored > 0 else FIRST, most)
    while True:
        data = read(offset, count)
        if not data:
            raise Unreadable("its container ends before it")
        found = _found(read, offset, data, most, ended=len(data) < count)
        if found is not None:
            return found
        if len(data) < count:
            raise Unreadable(CUT)
        if count >= most:
            raise _too_long(most)
        count = min(4 * count, most)


def _found(read: Read, offset: int, data: bytes, most: int, *, ended: bool) -> Ranged | None:
    """The record that begins `data`; None if its end is not there. `ended`: its container is."""
    gzipped = data.startswith(MAGIC)
    if gzipped:
        inflated = _inflated(data, most)
        if inflated is None:
            return None
        text, stored = inflated
    else:
        text, stored = data, len(data)
    framing: Framing = WarcFraming()
    if text.lstrip(b"\r\n")[:5].upper() != b"WARC/":
        framing = _arc(read)
    elif not gzipped:
        end = _end(text)
        if end + _CLOSING > most:
            raise _too_long(most)
        if end < 0 or end + (0 if ended else _CLOSING) > len(text):
            return None
        closing = _LINE_ENDS.match(text, end, end + _CLOSING)
        assert closing is not None
        stored = closing.end()
        text = text[:stored]
    cursor = Cursor(bytes, text)
    cursor.skip_line_ends()
    try:
        record = framing.record(cursor, offset)
    except BrokenRecord as error:
        if not gzipped and (str(error) == CUT or not ended and cursor.held < _HEADER):
            return None  # or perhaps a line behind it that is cut
        raise Unreadable(str(error)) from error
    except BadHead as error:
        if not gzipped and len(text) < _HEADER:
            return None  # perhaps a line of an ARC file that is cut
        raise Unreadable(str(error)) from error
    if not gzipped and record.end >= 0:
        stored = record.end
    return Ranged(record, data[:stored], gzipped, not cursor.held)


def _inflated(data: bytes, most: int) -> tuple[bytes, int] | None:
    """What the first gzip member holds, and the bytes it takes; None if it goes on."""
    try:
        inflater = decompressobj(31)
        text = inflater.decompress(data, most + 1)
    except IsalError:
        try:  # the reference
            other = zlib.decompressobj(31)
            text = other.decompress(data, most + 1)
        except zlib.error as error:
            raise Unreadable(f"its gzip member is damaged: {error}") from error
        if other.eof:
            return text, len(data) - len(other.unused_data)
    if len(text) > most:
        raise _too_long(most)
    return (text, len(data) - len(inflater.unused_data)) if inflater.eof else None


def _end(text: bytes) -> int:
    """Where the block of a plain record ends; -1 if its header does not end here."""
    blank = BLANK_LINE.search(text)
    if blank is None:
        if len(text) > LONGEST:
            raise Unreadable("its header has no end")
        return -1
    try:
        head = parse(text[: blank.start()].lstrip(b"\r\n"))
    except BadHead as error:
        raise Unreadable(str(error)) from error
    return blank.end() + head.length


def _arc(read: Read) -> ArcFraming:
    """What tells the documents of an ARC file apart: its version block says so."""
    framing = ArcFraming()
    start = read(0, _HEADER)
    if start.startswith(MAGIC):
        try:
            start = zlib.decompressobj(31).decompress(start, _HEADER)
        except zlib.error:
            start = b""
    if start.startswith(b"filedesc:"):
        with suppress(BadHead, BrokenRecord):  # the document will not be read as one either
            framing.record(Cursor(bytes, start), 0)
    return framing


def _too_long(most: int) -> Unreadable:
    return Unreadable(f"it is longer than the {most:,} bytes that may be held of one")
