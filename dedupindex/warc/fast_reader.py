"""A fast reader of regular files, with one record in each gzip member or zstd frame.

It yields what `reader.read`, the reference, yields, but None for a GET request: nothing in these is
used. Irregular members are left to the reference.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Literal

from isal.isal_zlib import decompressobj

from dedupindex.warc import gzip_members, reader
from dedupindex.warc.framing import Framing
from dedupindex.warc.gzip_members import (
    MAGIC,
    RESERVED,
    SHORT,
    Inflater,
    IsalError,
    LongGzipMember,
    Member,
    Walk,
)
from dedupindex.warc.headers import NO_FORM
from dedupindex.warc.reader import Event
from dedupindex.warc.record import Record, Sound
from dedupindex.warc.window import Window
from dedupindex.warc.zstd_frames import FrameWalk

_GET, _END = b"GET ", b"\r\n\r\n"
_HEADER = 10  # bytes of a gzip header
_LEAST = 18  # bytes of the shortest member
_SEARCHED = 1 << 12  # bytes in which the end of a member is searched
_FIRST, _LEARNT = 40, 16  # see `_RegularRecords._of_no_form`


def read(window: Window) -> Iterator[Event | None]:
    """See `reader.read`."""
    if (framing := reader.gzip_framing(window)) is not None:
        return _records(window, _RegularRecords(framing))
    if (found := reader.zstd_walk(window)) is not None:
        return _records_of_frames(window, found[0], _RegularRecords(found[1]))
    return reader.read(window)


class _RegularRecords:
    """Recognises the records of a file that have a known form and nothing odd about them."""

    def __init__(self, framing: Framing) -> None:
        self.framing = framing
        self._form, self._request = NO_FORM, NO_FORM.request
        self._unknown = 0  # records whose form was not known

    def event(self, offset: int, stored: int, data: bytes) -> Event | None | Literal[False]:
        """Return the record that is all of `data`, None for a GET request; False if it is odd."""
        form, request = self._form, self._request
        if request is not None and (match := request(data)) is not None:
            begin = match.end()
            if (
                data.startswith(_GET, begin)
                and data.endswith(_END)
                and begin + int(match[1]) + 4 == len(data)
            ):
                self._form = form = form.next
                self._request = form.next.request
                return None
        match = form.next.match(data)
        if match is None and (known := self.framing.form(data)) is not None:
            form.next, match = known
        if match is None:
            return self._of_no_form(offset, stored, data)
        self._form = form = form.next
        self._request = form.next.request
        values = match.group(*form.groups)
        begin, length = match.end(), int(values[-1])
        if begin + length + 4 != len(data) or not data.endswith(_END):
            return False
        made = Sound if form.response else Record
        return made(offset, stored, form.type, values, form.special, data, begin, length)

    def _of_no_form(self, offset: int, stored: int, data: bytes) -> Event | None | Literal[False]:
        """Return the same of a record whose header has no known form.

        Some are left to the reference, which learns forms: the first ones of a file, and then one
        of `_LEARNT`.
        """
        self._unknown += 1
        if self._unknown < _FIRST or self._unknown % _LEARNT == 0:
            return False
        found = self.framing.in_any_order(data)
        if found is None:
            return False
        kind, values, begin = found
        length = int(values[-1])
        if begin + length + 4 != len(data) or not data.endswith(_END):
            return False
        if kind.request and data.startswith(_GET, begin):
            return None
        made = Sound if kind.response else Record
        return made(offset, stored, kind.type, values, kind.special, data, begin, length)


def _records_of_frames(
    window: Window, walk: FrameWalk, regular: _RegularRecords
) -> Iterator[Event | None]:
    framing, position = regular.framing, 0
    while position < window.size:
        frame = walk.frame(position)
        if frame is None:
            position = yield from reader.in_members(walk.irregular(position), framing)
            continue
        offset, stored, data, remark = frame
        event = False if remark else regular.event(offset, stored, data)
        if event is not False:
            position += stored
            yield event
        elif walk.is_whole(data):
            position += stored
            yield from reader.in_member(frame, framing)
        else:
            position = yield from reader.in_members(walk.irregular(position), framing)


def _records(window: Window, regular: _RegularRecords) -> Iterator[Event | None]:
    position = 0
    while position < window.size:
        index, room = position - window.start, window.start + window.filled - position
        if index < 0 or (room < gzip_members.FEED and position + room < window.size):
            window.load(position)
        position, walk = yield from _read_regular(window, regular, position)
        if walk is not None:
            position = yield from reader.in_members(walk, regular.framing)


def _read_regular(
    window: Window, regular: _RegularRecords, position: int
) -> Generator[Event | None, None, tuple[int, Walk | None]]:
    """Yield the records of the members in the window; return where to resume, and how."""
    feed, event_of = gzip_members.FEED, regular.event
    buffer, view, start, filled = window.buffer, window.view, window.start, window.filled
    limit = filled if start + filled >= window.size else filled - feed + 1
    index = position - start
    # most members begin with the same ten bytes, which are found in a third of the time of three
    start_bytes = bytes(view[index : index + _HEADER])
    while index < limit:
        found = buffer.find(start_bytes, index + _LEAST, index + _SEARCHED)
        stop = found if 0 < found < filled and found <= index + feed else min(index + feed, filled)
        offset, inflater = start + index, decompressobj(31)
        try:
            data = inflater.decompress(view[index:stop])
            if not inflater.eof:
                data, stop = _inflate(inflater, data, view, stop, filled)
        except IsalError:
            return offset, gzip_members.irregular(window, offset)
        if not inflater.eof or len(data) > SHORT or buffer[index + 3] & RESERVED:
            return offset, _walk(window, offset, inflater, start + stop, data)
        index = stop - len(inflater.unused_data)
        if found < 0 and index < offset - start + _SEARCHED - _HEADER:
            start_bytes = MAGIC
        stored = start + index - offset
        event = event_of(offset, stored, data)
        if event is not False:
            yield event
        else:
            yield from reader.in_member(Member(offset, stored, data), regular.framing)
    return start + index, None


def _inflate(
    inflater: Inflater, data: bytes, view: memoryview, at: int, filled: int
) -> tuple[bytes, int]:
    """Continue to inflate a member while it is in the window and short.

    `data` is what one feed gave. Returns all data, and where feeding stopped.
    """
    pieces, length = [data], len(data)
    while not inflater.eof and at < filled and length <= SHORT:
        stop = min(at + gzip_members.FEED, filled)
        pieces.append(inflater.decompress(view[at:stop]))
        length += len(pieces[-1])
        at = stop
    return b"".join(pieces), at


def _walk(window: Window, offset: int, inflater: Inflater, at: int, data: bytes) -> Walk:
    """Return the walk over a long member, or one with flags that no other reader accepts."""
    held = window.view[offset - window.start : window.filled]
    if len(held) > 3 and held[3] & RESERVED:
        return gzip_members.irregular(window, offset)
    return gzip_members.long_member(window, LongGzipMember(window, offset, inflater, at), data)
