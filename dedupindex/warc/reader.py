"""Read the records of a WARC or ARC file: plain, or compressed by records with gzip or zstd.

The `stored` bytes of all events add up to the size of the file. Bytes without a record are a
`Filler`. What cannot be read is a `Damage`; reading resumes after it where that is certain.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator, Iterator

from dedupindex.warc import zstd_format
from dedupindex.warc.arc import DOCUMENT, HEADER, ArcFraming
from dedupindex.warc.framing import Framing, WarcFraming, next_framed, skip_line_ends
from dedupindex.warc.gzip_members import (
    MAGIC,
    Damage,
    Filler,
    LongMember,
    Member,
    Step,
    Walk,
    members,
    zeros_end,
)
from dedupindex.warc.headers import BadHead, NoRecord
from dedupindex.warc.record import LEADING, BrokenRecord, Record
from dedupindex.warc.window import Cursor, Window, cursor_at
from dedupindex.warc.zstd_format import Dictionaries
from dedupindex.warc.zstd_frames import FrameWalk

Event = Record | Filler | Damage
START = 1 << 16  # bytes from which the kind of a file is detected


def read(window: Window, dictionaries: Callable[[], Dictionaries] | None = None) -> Iterator[Event]:
    """Yield all records in order, the filler between them, and damage.

    `dictionaries` returns those of the file, if it is compressed with zstd and the window is a
    part of it.
    """
    if (gzipped := gzip_framing(window)) is not None:
        return in_members(members(window), gzipped)
    if (found := zstd_walk(window, dictionaries)) is not None:
        walk, framing = found
        return in_members(walk.steps(), framing)
    return _read_plain(window, framing_of(window.read(0, START)))


def zstd_walk(
    window: Window, dictionaries: Callable[[], Dictionaries] | None = None
) -> tuple[FrameWalk, Framing] | None:
    """Return a walk over zstd frames and the framing of their records; None for other files.

    `dictionaries` is that of `read`.
    """
    if not zstd_format.is_zstd(window.read(0, len(zstd_format.MAGIC))):
        return None
    known = dictionaries() if dictionaries is not None else Dictionaries.read(window.read)
    try:
        framing = framing_of(zstd_format.content_start(window.read, START, known))
    except zstd_format.UnreadableFrame:  # reading reports it
        framing = WarcFraming()
    return FrameWalk(window, framing.record_length, known), framing


def gzip_framing(window: Window) -> WarcFraming | ArcFraming | None:
    """Return the framing of a gzip file; None if it is not a gzip file."""
    start = window.read(0, START).lstrip(b"\0")
    return framing_of(inflated_start(start)) if start.startswith(MAGIC) else None


def inflated_start(start: bytes) -> bytes:
    """Return the first bytes of the first members, as far as they can be inflated."""
    inflated = b""
    try:
        while start and not inflated.strip():
            inflater = zlib.decompressobj(31)
            inflated += inflater.decompress(start, 1 << 16)
            start = inflater.unused_data
    except zlib.error:
        pass
    return inflated


def framing_of(start: bytes) -> WarcFraming | ArcFraming:
    """Return the framing of a stream that begins with `start`."""
    start = start.lstrip(b"\r\n\0")
    if start[:5].upper() != b"WARC/" and ArcFraming.begins(start):
        return ArcFraming()
    return WarcFraming()


def in_members(walk: Walk, framing: Framing) -> Generator[Event, None, int]:
    """Yield the records of a walk over members or frames; return where it ended."""
    end = -1

    def steps() -> Iterator[Step]:
        nonlocal end
        end = yield from walk

    for step in steps():
        if isinstance(step, Member | LongMember):
            yield from in_member(step, framing)
        else:
            yield step
    return end


def in_member(member: Member | LongMember, framing: Framing) -> Iterator[Event]:
    """Yield the records of a member, and its damage."""
    if isinstance(member, Member):
        cursor = Cursor(bytes, member.data)
    else:
        cursor = Cursor(member.piece, member.start, sound=lambda: not member.broken)
    first: Record | None = None
    wrong: Exception | None = None
    line_ends_before = cursor.skip_line_ends()
    try:
        while cursor.hold(1):
            record = framing.record(cursor, member.offset)
            record.shared = first is not None
            if line_ends_before and first is None and record.type not in (HEADER, DOCUMENT):
                record.remark = record.remark or LEADING
            record.remark = record.remark or member.remark
            if first is None and isinstance(member, Member):
                record.stored = member.stored
            yield record
            record.finish()
            first = first or record
    except (BadHead, BrokenRecord) as error:
        wrong = error
    if isinstance(member, LongMember):
        while member.piece():
            pass
        if member.broken:
            return  # `members` reports it
    if first is not None:
        first.stored = member.stored
    elif wrong is None:
        yield Filler(member.offset, member.stored)
    if wrong is not None:
        stored = 0 if first else member.stored
        yield Damage(member.offset, stored, str(wrong), not isinstance(wrong, NoRecord))


def is_padding(window: Window, filler: Filler) -> bool:
    """Return whether a filler is zeros, at which replay tools stop as they do at damage."""
    return window.read(filler.offset, 1) == b"\0"


def _read_plain(window: Window, framing: Framing) -> Generator[Event, None, None]:
    position = 0
    while position < window.size:
        padding = zeros_end(window, position)
        if padding == position:
            padding = skip_line_ends(window, position)
        if padding > position:
            yield Filler(position, padding - position)
            position = padding
        else:
            cursor = cursor_at(window, position, hashed=True)
            position = yield from _read_chain(window, cursor, framing)


def _read_chain(window: Window, cursor: Cursor, framing: Framing) -> Generator[Event, None, int]:
    """Yield records that follow each other; return where something else is."""
    while cursor.hold(1) and cursor.buffer[cursor.at] not in b"\0":
        offset = cursor.position
        try:
            record = framing.record(cursor, offset)
            record.stored = record.end - offset
            yield record
            record.finish()
            record.stored = record.end - offset
        except (BadHead, BrokenRecord) as error:
            cursor.hold(3)
            return (yield from _plain_damage(window, framing, offset, error))
        if cursor.position > record.end:
            yield Filler(record.end, cursor.position - record.end)
    return cursor.position


def _plain_damage(
    window: Window, framing: Framing, offset: int, error: Exception
) -> Generator[Event, None, int]:
    """Report the damage at `offset`; return where a record certainly begins again."""
    message = str(error)
    if window.read(offset, len(MAGIC)) == MAGIC:
        message = "a gzip member is between uncompressed records"
    elif zstd_format.is_zstd(window.read(offset, len(zstd_format.MAGIC))):
        message = "a zstd frame is between uncompressed records"
    position = next_framed(window, framing, offset)
    stored = position - offset
    rest = "to the end of the file" if position == window.size else "up to the next sound record"
    message = f"{message}: {stored:,} bytes {rest} were not read"
    yield Damage(offset, stored, message, not isinstance(error, NoRecord))
    return position
