"""Read one record at a known offset: exactly, or by ranges of a file or object."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import BinaryIO, NamedTuple, Protocol

from isal.isal_zlib import decompressobj

from dedupindex.runtime.atomic_replace import identity
from dedupindex.warc import zstd_format
from dedupindex.warc.arc import ArcFraming
from dedupindex.warc.framing import Framing, WarcFraming
from dedupindex.warc.gzip_members import MAGIC, RESERVED, SHORT, IsalError
from dedupindex.warc.headers import BLANK_LINE, LONGEST, BadHead, Head, parse
from dedupindex.warc.reader import inflated_start
from dedupindex.warc.record import CUT, BrokenRecord, Record
from dedupindex.warc.window import Cursor
from dedupindex.warc.zstd_format import (
    LONGEST_HEADER,
    Dictionaries,
    DictionaryCache,
    Read,
    UnreadableFrame,
    frame_header,
)

_END = b"\r\n\r\n"
_LONG = 1 << 23  # bytes in the file above which a record is streamed
_PIECE = 1 << 18  # bytes of a streamed record at a time
_DICTIONARIES = DictionaryCache()


class NotExact(Exception):
    """There is no complete record, or one that tools read differently."""


def dictionaries_of(file: BinaryIO) -> Dictionaries:
    """Return the zstd dictionaries of a file as it is now."""
    return _DICTIONARIES.get(identity(os.fstat(file.fileno())), partial(read_range, file))


def read_range(file: BinaryIO, offset: int, count: int) -> bytes:
    """Return bytes of an open file, fewer only at its end."""
    return os.pread(file.fileno(), count, offset)


class Packer(Protocol):
    """What compresses a record piece by piece; `flush` returns the end."""

    def compress(self, data: bytes | memoryview, /) -> bytes: ...

    def flush(self) -> bytes: ...


class ExactRecord:
    """A record that is alone in its member, or followed by another record in a plain file.

    All lines of its header end with CRLF, and two line ends follow it. `data` is all of a short
    record; `block` streams a long one, whatever the inflated size of its member.
    """

    def __init__(
        self, file: BinaryIO, offset: int, stored: int, *, last: bool = False,
        dictionaries: Dictionaries | None = None,
    ) -> None:  # fmt: skip
        """Read the header; raises `NotExact`. `last`: the file may end after the record.

        `stored` are the bytes of the record, or of its gzip member or zstd frames. `dictionaries`
        are those of zstd frames that stand in another file than the one they were written for.
        Only `block` finds what is wrong after the header of a long record.
        """
        self._file, self.offset, self._stored = file, offset, stored
        if offset < 0 or stored <= 0:
            raise NotExact("there is no such place")
        start = self._read(offset, 4)
        self._gzipped = start.startswith(MAGIC)
        self.dictionaries: Dictionaries | None = None  # of zstd frames
        if start.startswith(zstd_format.MAGIC):
            self.dictionaries = dictionaries or dictionaries_of(file)
        if self._gzipped and (len(start) < 4 or start[3] & RESERVED):
            raise NotExact("its gzip header has reserved flags")
        self.data = self._short()
        self.header = self._header()
        try:
            self.head: Head = parse(self.header[: -len(_END)])
        except BadHead as error:
            raise NotExact(str(error)) from error
        whole = len(self.header) + self.head.length + len(_END)
        if not self.head.crlf:
            raise NotExact("some lines of its header end with a bare line feed")
        if self.data is not None and not (len(self.data) == whole and self.data.endswith(_END)):
            raise NotExact("it is not followed by two line ends and nothing else")
        if not self._gzipped and self.dictionaries is None:
            follows = self._read(offset + stored, 5)
            if stored != whole or not (last or follows in (b"WARC/", b"")):
                raise NotExact("no other record follows it")

    def block(self) -> Iterator[memoryview]:
        """Yield the block in pieces; raises `NotExact` if the record has no proper end."""
        start, left = len(self.header), self.head.length
        if self.data is not None:
            yield memoryview(self.data)[start : start + left]
            return
        closing = b""
        for piece in self._pieces():
            view = memoryview(piece)[start:]
            start = max(start - len(piece), 0)
            block = view[:left]
            left -= len(block)
            if block:
                yield block
            closing += view[len(block) :]
            if len(closing) > len(_END):
                break
        if left or closing != _END:
            raise NotExact("it is not followed by two line ends and nothing else")

    def _short(self) -> bytes | None:
        """Return the inflated record, None if it is too long to be held."""
        if self._stored > _LONG:
            return None
        if self._gzipped:
            held, inflater = self._read(self.offset, self._stored), decompressobj(31)
            with suppress(IsalError):  # `_pieces` says what is wrong
                data = inflater.decompress(held, SHORT)
                if inflater.eof and not inflater.unused_data and len(held) == self._stored:
                    return data
        pieces, length = [], 0
        for piece in self._pieces():
            pieces.append(piece)
            length += len(piece)
            if length > SHORT:
                return None
        return b"".join(pieces)

    def _header(self) -> bytes:
        held = b""
        for piece in [self.data] if self.data is not None else self._pieces():
            held += piece
            end = held.find(_END)
            if end >= 0:
                return held[: end + len(_END)]
            if len(held) > LONGEST:
                break
        raise NotExact("its header has no end")

    def packer(self, size: int, level: int) -> Packer | None:
        """Return what compresses a record of `size` bytes as this one is; None if it is plain.

        `level` is that of gzip. Raises `NotExact`.
        """
        if self._gzipped:
            return zlib.compressobj(level, zlib.DEFLATED, 31)
        if self.dictionaries is None:
            return None
        header = frame_header(self._read(self.offset, LONGEST_HEADER))
        if header is None:
            raise NotExact("its first zstd frame is damaged")
        try:
            compressor = self.dictionaries.compressor(header)
        except UnreadableFrame as error:
            raise NotExact(f"its zstd frames {error}") from error
        compressor.set_pledged_input_size(size)
        return compressor

    def _read(self, offset: int, count: int) -> bytes:
        return read_range(self._file, offset, count)

    def _pieces(self) -> Iterator[bytes]:
        """Yield the inflated record; raises `NotExact` if its member is damaged."""
        if self.dictionaries is not None:
            end = self.offset + self._stored
            try:
                yield from zstd_format.frame_pieces(self._read, self.offset, end, self.dictionaries)
            except UnreadableFrame as error:
                raise NotExact(f"its zstd frames {error}") from error
            return
        inflater = decompressobj(31) if self._gzipped else None
        position, end = self.offset, self.offset + self._stored
        while position < end:
            data = self._read(position, min(end - position, _PIECE))
            if not data:
                raise NotExact("the file is shorter than it was")
            position += len(data)
            if inflater is None:
                yield data
                continue
            try:
                while inflated := inflater.decompress(data, _PIECE):
                    yield inflated
                    data = inflater.unconsumed_tail
                    if inflater.eof:
                        break
            except IsalError as error:
                raise NotExact(f"its gzip member is damaged: {error}") from error
            if inflater.eof:
                break
        if inflater is not None and not (
            inflater.eof and position == end and not inflater.unused_data
        ):
            raise NotExact("its gzip member ends elsewhere")


FIRST = 1 << 15  # bytes read first of a record of unknown length
_LEAST = 64  # bytes of the shortest record
_FED = 256  # bytes of a damaged member that are inflated at once
_HEADER = 1 << 16  # bytes of an ARC file's version block, or of one of its lines, at most
_CLOSING = 4  # bytes of line ends after a record
_LINE_ENDS = re.compile(rb"[\r\n]*")


class Unreadable(Exception):
    """There is no complete record, or it is too long."""


class RecordAt(NamedTuple):
    """A record, and its bytes in the container."""

    record: Record
    raw: bytes  # as stored: of a gzip file the member, of a zstd file the frames
    gzipped: bool
    alone: bool  # whether nothing else is in its member or frames

    def block(self) -> bytes:
        """Return the whole block; raises `Unreadable`."""
        try:
            return b"".join(self.record.pieces())
        except BrokenRecord as error:
            raise Unreadable(str(error)) from error


def record_at(
    read: Read,
    offset: int,
    stored: int,
    most: int,
    dictionaries: Callable[[], Dictionaries] | None = None,
) -> RecordAt:
    """Return the record at `offset`, which takes `stored` bytes (0: unknown).

    At most `most` bytes are held, as stored or inflated. `dictionaries` returns those of the
    container, if they are known. Raises `Unreadable`.
    """
    unpacker = _Unpacker(read, most, dictionaries or partial(Dictionaries.read, read))
    count = min(max(stored, _LEAST) if stored > 0 else FIRST, most)
    while True:
        data = read(offset, count)
        if not data:
            raise Unreadable("its container ends before it")
        found = unpacker.record(offset, data, ended=len(data) < count)
        if found is not None:
            return found
        if len(data) < count:
            raise Unreadable(CUT)
        if count >= most:
            raise _too_long(most)
        count = min(4 * count, most)


def head_at(read: Read, offset: int) -> Head | None:
    """Return the header of the WARC record at `offset`, whose block may be damaged or cut.

    None if its header cannot be read either.
    """
    held = b""
    try:
        for piece in _readable(read, offset):
            held += piece
            blank = BLANK_LINE.search(held)
            if blank is not None:
                return parse(held[: blank.start()].lstrip(b"\r\n"))
            if len(held) > LONGEST:
                break
    except (zlib.error, UnreadableFrame, BadHead):
        pass
    return None


def _readable(read: Read, offset: int) -> Iterator[bytes]:
    """Yield what a container has at `offset`, unpacked; raises what its decompressor raises."""
    data = read(offset, FIRST)
    if data.startswith(MAGIC):
        inflater = zlib.decompressobj(31)
        for at in range(0, len(data), _FED):
            yield inflater.decompress(data[at : at + _FED])
    elif zstd_format.is_zstd(data):
        end = offset + len(data)
        yield from zstd_format.frame_pieces(read, offset, end, Dictionaries.read(read))
    else:
        yield data


class _Unpacker:
    """Finds the record that begins some bytes of a container."""

    def __init__(self, read: Read, most: int, dictionaries: Callable[[], Dictionaries]) -> None:
        self._read, self._most, self._dictionaries = read, most, dictionaries

    def record(self, offset: int, data: bytes, *, ended: bool) -> RecordAt | None:
        """Return the record that begins `data`, None if it does not end in it.

        `ended`: the container ends with `data`.
        """
        packed = data.startswith((MAGIC, zstd_format.MAGIC))
        if packed:
            unpacked = self._unpacked(data, ended=ended)
            if unpacked is None:
                return None
            text, stored = unpacked
        else:
            text, stored = data, len(data)
        framing: Framing = WarcFraming()
        if text.lstrip(b"\r\n")[:5].upper() != b"WARC/":
            framing = _arc(self._read)
        elif not packed:
            end = _end(text)
            if end + _CLOSING > self._most:
                raise _too_long(self._most)
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
            if not packed and (str(error) == CUT or not ended and cursor.held < _HEADER):
                return None  # it is cut, or perhaps a line after it
            raise Unreadable(str(error)) from error
        except BadHead as error:
            if not packed and len(text) < _HEADER:
                return None  # a line of an ARC file may be cut
            raise Unreadable(str(error)) from error
        if not packed and record.end >= 0:
            stored = record.end
        return RecordAt(record, data[:stored], data.startswith(MAGIC), not cursor.held)

    def _unpacked(self, data: bytes, *, ended: bool) -> tuple[bytes, int] | None:
        """Return the content of a gzip member or of zstd frames, and its bytes; None if cut."""
        if data.startswith(MAGIC):
            return _inflated(data, self._most)
        length = WarcFraming().record_length
        try:
            return zstd_format.unpack(data, self._dictionaries(), self._most, length, ended=ended)
        except UnreadableFrame as error:
            raise Unreadable(str(error)) from error


def _inflated(data: bytes, most: int) -> tuple[bytes, int] | None:
    """Return the content of the first gzip member and its stored bytes; None if it is cut."""
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
    """Return where the block of a plain record ends; -1 if its header is cut."""
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
    """Return the framing of an ARC file, with the fields that its version block names."""
    framing = ArcFraming()
    start = read(0, _HEADER)
    if start.startswith(MAGIC):
        start = inflated_start(start)
    elif zstd_format.is_zstd(start):
        with suppress(UnreadableFrame):  # the document is unreadable, too
            start = zstd_format.content_start(read, _HEADER)
    if start.startswith(b"filedesc:"):
        with suppress(BadHead, BrokenRecord):  # the document will be unreadable, too
            framing.record(Cursor(bytes, start), 0)
    return framing


def _too_long(most: int) -> Unreadable:
    return Unreadable(f"it is longer than the {most:,} bytes that may be held of one")
