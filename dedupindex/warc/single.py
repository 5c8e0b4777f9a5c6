"""One record at a known place of a container, read on its own and believed only to the letter."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO

from isal.isal_zlib import decompressobj

from dedupindex.warc.heads import BadHead, Head, parse
from dedupindex.warc.members import SHORT
from dedupindex.warc.reader import Event, read
from dedupindex.warc.record import BrokenRecord, Record
from dedupindex.warc.recovery import MAGIC, RESERVED, IsalError
from dedupindex.warc.window import Window

_END = b"\r\n\r\n"
_LONG = 1 << 23  # bytes in the file from which a record is not read at once


class NotExact(Exception):
    """There is no whole record here, or one that not every tool reads alike."""


class Single:
    """A record that is alone in its member, or in a plain file right before the next one.

    Its header ends every line with CRLF, and two line ends close it. `data` is all of a short
    one; a long one is streamed by `block`.
    """

    def __init__(self, file: BinaryIO, offset: int, stored: int, *, last: bool = False) -> None:
        """Find the record; raises `NotExact`. What is wrong behind its header, `block` finds.

        `last`: it ends the file, as far as that is written.
        """
        self._file, self.offset, self._stored = file, offset, stored
        self.gzipped = os.pread(file.fileno(), len(MAGIC), offset) == MAGIC
        self.data = self._short()
        if self.data is None:
            self.header = self._begun()[1].text
        else:
            self.header = self.data[: self.data.find(_END) + len(_END)]
        if not self.header.endswith(_END):
            raise NotExact("its header has no end")
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

    def block(self) -> Iterator[bytes | memoryview]:
        """The block in pieces; raises `NotExact` in place of its end if the record has none."""
        if self.data is not None:
            start = len(self.header)
            yield memoryview(self.data)[start : start + self.head.length]
            return
        events, record = self._begun()
        try:
            yield from record.pieces()
            record.finish()
            if next(events, None) is not None or not record.exact:
                raise NotExact("there is more than one whole record")
        except (BrokenRecord, BadHead) as error:
            raise NotExact(str(error)) from error

    def _short(self) -> bytes | None:
        """The record inflated, None if it is too long to be held."""
        if self._stored > _LONG:
            return None
        data = os.pread(self._file.fileno(), self._stored, self.offset)
        if len(data) < self._stored:
            raise NotExact("the file is shorter than it was")
        if not self.gzipped:
            return data if len(data) <= SHORT else None
        if len(data) > 3 and data[3] & RESERVED:
            raise NotExact("its gzip header has flags that nobody knows")
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

    def _begun(self) -> tuple[Iterator[Event], Record]:
        """The record as the reader has it, and what the reader has to say behind it."""
        window = Window(self._file, self._file.name, base=self.offset, size=self._stored)
        events = read(window)
        record = next(events, None)
        if not isinstance(record, Record):
            raise NotExact("there is no record")
        return events, record

    def _followed(self) -> bool:
        """Whether in a plain file another record or the end stands behind this one."""
        return os.pread(self._file.fileno(), 5, self.offset + self._stored) in (b"WARC/", b"")
