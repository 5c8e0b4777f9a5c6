"""Divide a file into zstd frames, and recover from damage.

The steps are those of `gzip_members`. A record may take several frames: frames are joined if the
record that begins in the first one ends, with its line ends, where a later one ends. Skippable
frames, empty frames and zeros are a `Filler`.

After damage, reading resumes only where that is certain: where the headers of a frame's blocks lead
to another frame or to the end of the file, or at the first frame from which sound frames follow
each other to the end of the file. Damage in a frame without a checksum is noticed only if it breaks
the frame or the record.
"""

from __future__ import annotations

import sys
from functools import partial

from dedupindex.warc.gzip_members import (
    FEED,
    SHORT,
    Damage,
    Filler,
    LongMember,
    Member,
    Walk,
    find_bytes,
    first_chain,
    zeros_end,
)
from dedupindex.warc.record import NO_CHECKSUM
from dedupindex.warc.window import Window
from dedupindex.warc.zstd_format import (
    CHECKSUM,
    LINE_ENDS,
    LONGEST_BLOCK,
    LONGEST_HEADER,
    MAGIC,
    PIECE,
    RESERVED,
    Dictionaries,
    RecordLength,
    UnreadableFrame,
    frame_header,
    is_header,
    is_zstd,
    skippable_end,
)

if sys.version_info >= (3, 14):
    from compression.zstd import ZstdDecompressor, ZstdError, get_frame_size
else:
    from backports.zstd import ZstdDecompressor, ZstdError, get_frame_size

_RESERVED_BLOCK, _REPEATED_BLOCK = 3, 1  # types of blocks
_LINE_ENDS_FRAME = 64  # bytes of a frame of line ends, at most
_MOST_WASTED = 1 << 26  # bytes decompressed in vain, in frames that were not one record's


def frame_end(window: Window, offset: int) -> int:
    """Return where a frame ends, from the headers of its blocks, without decompressing it.

    -1 if they are not those of a frame; more than the size of the file if the frame is cut.
    """
    start = window.read(offset, LONGEST_HEADER)
    header = frame_header(start)
    if header is None:
        cut = len(start) < LONGEST_HEADER and not (len(start) > 4 and start[4] & RESERVED)
        return window.size + 1 if cut and MAGIC.startswith(start[:4]) else -1
    at, last = offset + header.size, False
    while not last:
        block = window.read(at, 3)
        if len(block) < 3:
            return window.size + 1
        number = int.from_bytes(block, "little")
        last, kind, size = bool(number & 1), number >> 1 & 3, number >> 3
        if kind == _RESERVED_BLOCK or size > LONGEST_BLOCK:
            return -1
        at += 3 + (1 if kind == _REPEATED_BLOCK else size)
    return at + 4 * header.checksum


class LongFrames(LongMember):
    """The frames of one record, decompressed piece by piece."""

    def __init__(
        self, window: Window, dictionaries: Dictionaries, offset: int, record_length: RecordLength
    ) -> None:
        """Begin the first frame; raises `UnreadableFrame`, also if there is none."""
        super().__init__(offset)
        self.first_end = -1  # of the first frame, once it is known
        self.length = 0  # bytes decompressed
        self.mismatch = False  # whether the frames were found not to be those of one record
        self._window, self._dictionaries = window, dictionaries
        self._record_length = record_length
        self._wanted = -1  # length of the record, once it is known
        self._text = b""  # what was decompressed until then
        self._begin(offset)

    def _begin(self, offset: int) -> None:
        header = frame_header(self._window.read(offset, LONGEST_HEADER))
        if header is None:
            raise UnreadableFrame("have a damaged header")
        if not header.checksum:
            self.remark = NO_CHECKSUM
        self._decompressor = self._dictionaries.decompressor(header)
        self.frame = self._position = offset  # the frame, and the next byte to feed
        self._before = self.length  # bytes of the frames before

    def piece(self) -> bytes:
        while self.end < 0 and not self.broken:
            try:
                data = self._decompress()
                if data and self._belongs(data):
                    return data
                if not data and not self.broken:
                    self._end_frame()
            except (ZstdError, UnreadableFrame):
                self.broken = True
        return b""

    def _decompress(self) -> bytes:
        """Return the next bytes of the frame; none at its end, or if it is broken."""
        decompressor, window = self._decompressor, self._window
        while not decompressor.eof:
            feed: bytes | memoryview = b""
            if decompressor.needs_input:
                index = self._position - window.start
                if not 0 <= index < window.filled:
                    if self._position < window.size:
                        window.load(self._position)
                    if self._position >= window.size:
                        self.broken = True
                        return b""
                    continue
                feed = window.view[index : min(index + FEED, window.filled)]
            data = decompressor.decompress(feed, PIECE)
            self._position += len(feed)
            if decompressor.eof:
                self._position -= len(decompressor.unused_data)
            if data:
                return data
        return b""

    def _belongs(self, data: bytes) -> bool:
        """Return whether `data` goes on with the record; if not, the frames do not belong together.

        The first frame is not judged: there may be more in it than a record.
        """
        if self._wanted < 0:
            if self.length and self.length == self._before and is_header(data):
                self.mismatch = self.broken = True
                return False
            self._text += data
            self._wanted = self._record_length(self._text)
            if self._wanted >= 0:
                self._text = b""
        self.length += len(data)
        excess = self.length - self._wanted
        if self.first_end >= 0 and self._wanted >= 0 and excess > 0:
            self.mismatch = self.broken = data[-excess:].strip(b"\r\n") != b""
        return not self.broken

    def _end_frame(self) -> None:
        end = self._position
        if self.first_end < 0:
            self.first_end = end
        complete = 0 < self._wanted <= self.length
        closed = complete and self.length >= self._wanted + LINE_ENDS
        if not self.length or not self._wanted or closed or (complete and not self._closes(end)):
            self.end = self._position
            return
        try:
            self._begin(self._next_frame(end))
        except UnreadableFrame:  # it is reported where it begins
            self.mismatch = self.broken = True

    def _closes(self, offset: int) -> bool:
        """Return whether the next frame that is not empty has the line ends of the record only."""
        text, missing = b"", self._wanted + LINE_ENDS - self.length
        while not text:
            offset = self._next_frame(offset)
            start = self._window.read(offset, _LINE_ENDS_FRAME)
            header = frame_header(start)
            if header is None:
                return False
            try:
                decompressor = self._dictionaries.decompressor(header)
                text = decompressor.decompress(start, LINE_ENDS + 1)
            except (ZstdError, UnreadableFrame):
                return False
            if not decompressor.eof:
                return False
            offset += len(start) - len(decompressor.unused_data)
        return len(text) <= missing and not text.strip(b"\r\n")

    def _next_frame(self, offset: int) -> int:
        while (skipped := skippable_end(self._window.read, offset)) >= 0:
            offset = skipped
        return offset


class FrameWalk:
    """A walk over the frames of a file."""

    def __init__(
        self, window: Window, record_length: RecordLength, dictionaries: Dictionaries
    ) -> None:
        self._window = window
        self._record_length = record_length
        self._dictionaries = dictionaries
        self._wasted = 0

    def steps(self) -> Walk:
        """See `members`."""
        position = 0
        while position < self._window.size:
            frame = self.frame(position)
            if frame is not None and self.is_whole(frame.data):
                yield frame
                position += frame.stored
            else:
                position = yield from self.irregular(position)
        return position

    def frame(self, position: int) -> Member | None:
        """Return the frame at a position; None if it is damaged or long, or there is none."""
        window = self._window
        stored = self._stored(position)
        if not stored and window.start < position and window.start + window.filled < window.size:
            stored = self._stored(position, load=True)
        index = position - window.start
        if not stored or not window.buffer.startswith(MAGIC, index):
            return None
        decompressor = ZstdDecompressor(self._dictionaries.default)
        try:
            data = decompressor.decompress(window.view[index : index + stored], SHORT + 1)
        except ZstdError:
            return None
        if not decompressor.eof or len(data) > SHORT:
            return None
        remark = "" if window.buffer[index + 4] & CHECKSUM else NO_CHECKSUM
        return Member(position, stored, data, remark)

    def _stored(self, position: int, *, load: bool = False) -> int:
        """Return the bytes of the frame at a position, 0 if it does not end in the window."""
        window = self._window
        index = position - window.start
        if load or not 0 <= index < window.filled:
            window.load(position)
            index = 0
        try:
            return get_frame_size(window.view[index : window.filled])
        except ZstdError:
            return 0

    def is_whole(self, content: bytes) -> bool:
        """Return whether no record begins in a frame that may go on in the next one."""
        length = self._record_length(content)
        return length == 0 or 0 < length <= len(content) - LINE_ENDS

    def irregular(self, position: int) -> Walk:
        """Yield what is at a position, in whatever frames; return where to resume."""
        if self._window.read(position, len(MAGIC)) == MAGIC:
            return (yield from self._joined(position))
        return (yield from self._between(position))

    def _joined(self, offset: int, *, joining: bool = True) -> Walk:
        """Yield the frames of a record, or a frame that is not decompressed in one piece.

        Returns where to resume.
        """
        joining = joining and self._wasted <= _MOST_WASTED + offset
        record_length = self._record_length if joining else _no_record
        try:
            member = LongFrames(self._window, self._dictionaries, offset, record_length)
        except UnreadableFrame as error:
            return (yield from self._unreadable(offset, str(error)))
        pieces, length = [b""], 0
        while length <= SHORT and (data := member.piece()):
            pieces.append(data)
            length += len(data)
        whole = b"".join(pieces)
        if member.end >= 0:
            yield Member(offset, member.stored, whole, member.remark)
            return member.end
        if not member.broken:
            member.start = whole
            del pieces, data, whole
            yield member
            while member.piece():
                pass
        if member.end >= 0:
            return member.end
        if member.mismatch:
            self._wasted += member.length
            return (yield from self._joined(offset, joining=False))
        return (yield from self._damaged(offset, member.frame))

    def _between(self, offset: int) -> Walk:
        """Yield what is between frames; return where to resume."""
        window = self._window
        end = zeros_end(window, offset)
        if end == offset:
            end = skippable_end(window.read, offset)
        if offset < end <= window.size and self._frame_follows(end):
            yield Filler(offset, end - offset)
            return end
        start = window.read(offset, 5)
        if MAGIC.startswith(start):
            return (yield from self._damaged(offset, offset))
        what = "an uncompressed record" if start.upper() == b"WARC/" else "something else"
        return (yield from self._resumed(offset, f"{what} is between zstd frames", record=False))

    def _unreadable(self, offset: int, reason: str) -> Walk:
        """Yield the frames that cannot be read for one reason; return where to resume."""
        window, end, count = self._window, offset, 0
        while end < window.size:
            following = frame_end(window, end)
            sound = end < following <= window.size and self._frame_follows(following)
            if not sound or self._reason(end) != reason:
                break
            end, count = following, count + 1
        if not count:
            return (yield from self._damaged(offset, offset))
        what = "1 zstd frame needs" if count == 1 else f"{count:,} zstd frames need"
        message = f"{what}{reason.removeprefix('need')}: {end - offset:,} bytes were not read"
        yield Damage(offset, end - offset, message, record=True)
        return end

    def _reason(self, offset: int) -> str:
        """Return why the frame at `offset` cannot be read, or ""."""
        header = frame_header(self._window.read(offset, LONGEST_HEADER))
        try:
            if header is not None:
                self._dictionaries.decompressor(header)
        except UnreadableFrame as error:
            return str(error)
        return ""

    def _damaged(self, offset: int, frame: int) -> Walk:
        """Yield the damage of a record that begins at `offset`; return where to resume.

        `frame` is where the frame begins that could not be decompressed.
        """
        window = self._window
        end = frame_end(window, frame)
        if end > window.size:
            stored = window.size - offset
            message = (
                "a zstd frame is cut short, or the size of a block in it is damaged: it goes on "
                f"beyond the end of the file, {stored:,} bytes up to there were not used"
            )
            yield Damage(offset, stored, message, record=True)
            return window.size
        if end >= 0 and self._frame_follows(end):
            stored = end - offset
            message = f"a zstd frame is damaged: {stored:,} bytes were left out"
            yield Damage(offset, stored, message, record=True)
            return end
        return (yield from self._resumed(offset, "a zstd frame is damaged", record=True))

    def _frame_follows(self, offset: int) -> bool:
        """Return whether a frame, padding or the end of the file is at `offset`."""
        start = self._window.read(offset, len(MAGIC))
        return is_zstd(start) or not start.strip(b"\0")

    def _resumed(self, offset: int, what: str, *, record: bool) -> Walk:
        window = self._window
        position = first_chain(window, offset + 1, partial(find_bytes, window, MAGIC), self._after)
        stored = position - offset
        at_end = position == window.size
        rest = "to the end of the file" if at_end else "up to the next sound frame"
        yield Damage(offset, stored, f"{what}: {stored:,} bytes {rest} were not read", record)
        return position

    def _after(self, offset: int) -> int:
        """Return the position after a sound frame or filler, -1 if neither is at `offset`."""
        window = self._window
        end = max(skippable_end(window.read, offset), zeros_end(window, offset))
        if end > offset:
            return end if end <= window.size else -1
        try:
            frame = LongFrames(window, self._dictionaries, offset, _no_record)
        except UnreadableFrame:
            return -1
        while frame.piece():
            pass
        return frame.end


def _no_record(data: bytes) -> int:
    """A `RecordLength` with which frames are not joined."""
    return 0
