"""One record at a known place of a container, read on its own and believed only to the letter."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO

from isal.isal_zlib import decompressobj

from dedupindex.warc.gzip_members import SHORT
from dedupindex.warc.headers import LONGEST, BadHead, Head, parse
from dedupindex.warc.recovery import MAGIC, RESERVED, IsalError

_END = b"\r\n\r\n"
_LONG = 1 << 23  # bytes in the file from which a record is not read at once
_PIECE = 1 << 18  # bytes of a long one that are held


class NotExact(Exception):
    """There is no whole record here, or one that not every tool reads alike."""


class Single:
    """A record that is alone in its member, or in a plain file right before the next one.

    Its header ends every line with CRLF, and two line ends close it. `data` is all of a short
    one; a long one is read by `block` piece by piece, however much its member inflates to.
    """

    def __init__(self, file: BinaryIO, offset: int, stored: int, *, last: bool = False) -> None:
        """Find the record; raises `NotExact`. What is wrong behind its header, `block` finds.

        `last`: it ends the file, as far as that is written.
        """
        self._file, self.offset, self._stored = file, offset, stored
        if offset < 0 or stored <= 0:
            raise NotExact("there is no such place")
        start = os.pread(file.fileno(), 4, offset)
        self.gzipped = start.startswith(MAGIC)
        if self.gzipped and (len(start) < 4 or start[3] & RESERVED):
            raise NotExact("its gzip header has flags that nobody knows")
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
        if not self.gzipped and (self._stored != whole or not (last or self._followed())):
            raise NotExact("no other record follows it")

    def block(self) -> Iterator[memoryview]:
        """The block in pieces; raises `NotExact` in place of its end if the record has none."""
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
        """The record inflated, None if it is too long to be held."""
        if self._stored > _LONG:
            return None
        data = os.pread(self._file.fileno(), self._stored, self.offset)
        if len(data) < self._stored:
            raise NotExact("the file is shorter than it was")
        if not self.gzipped:
            return data if len(data) <= SHORT else None
        inflater = decompressobj(31)
        try:
            inflated = inflater.decompress(data, SHORT)
        except IsalError as error:
            raise NotExact(f"its gzip member is damaged: {error}") from error
        if inflater.eof and inflater.unused_data:
            raise NotExact("its gzip member ends too early")
        if not inflater.eof and len(inflated) < SHORT:
            raise NotExact("its gzip member does not end")
        return inflated if inflater.eof else None

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

    def _pieces(self) -> Iterator[bytes]:
        """The whole record, inflated; raises `NotExact` if its member is not sound to its end."""
        inflater = decompressobj(31) if self.gzipped else None
        position, end = self.offset, self.offset + self._stored
        while position < end:
            data = os.pread(self._file.fileno(), min(end - position, _PIECE), position)
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

    def _followed(self) -> bool:
        """Whether in a plain file another record or the end stands behind this one."""
        return os.pread(self._file.fileno(), 5, self.offset + self._stored) in (b"WARC/", b"")
