"""The base class of text sources: read, hash, inflate and divide a file into blocks of lines.

Text may be plain, one gzip member or many (the blocks of a ZipNum CDXJ). A format parses blocks of
whole lines that are small enough to stay in the processor's cache. Lines are numbered from 1.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from typing import BinaryIO

import blake3
import orjson

from dedupindex.capture import Item, Problem
from dedupindex.errors import BadSource
from dedupindex.object_store import RemoteFile
from dedupindex.sources.cdx_columns import guess, header
from dedupindex.sources.source import DEFAULTS, GROWING, Source, SourceOptions

BLOCK = 1 << 18
GZIP = b"\x1f\x8b"
_LONGEST_LINE = 16 << 20  # bytes
_LONGEST_ROW = 2 << 20  # bytes of a row that may be divided between two gzip members
_OVERLONG = b"\0"  # replaces a line that is too long; no format can parse it
_INFLATE_STEP = 1 << 16  # bytes of input; what follows a member is copied
_INFLATE_MOST = 1 << 20  # bytes of output at a time, so that a gzip bomb stays small


class TextSource(Source):
    """A source made of lines; a format adds `_parse`."""

    def __init__(
        self,
        name: str,
        stream: BinaryIO,
        *,
        size: int = -1,
        options: SourceOptions = DEFAULTS,
        block: int = BLOCK,
    ) -> None:
        super().__init__(name, size)
        self.options = options
        self._stream = stream
        self._position = 0
        self._block = block
        self._line = 1  # the number of the next
        self._damage = ""
        self._set_up()

    def _set_up(self) -> None:
        """Create the state of a format."""

    @property
    def position(self) -> int:
        return self._position

    def items(self) -> Iterator[Item]:
        for number, block in self._blocks():
            if block.endswith(b"\n"):
                yield from self._parse(number, block)
            else:
                yield from self._parse_cut(number, block)
        yield from self._after()

    def _blocks(self) -> Iterator[tuple[int, bytes]]:
        """Yield blocks of whole lines, each with the number of its first line."""
        raw = self._raw()
        try:
            for block in whole_lines(_inflated(raw)):
                yield self._line, block
                self._line += block.count(b"\n")
        except zlib.error as error:
            self._damage = str(error)
        for _ in raw:  # what follows damage is hashed, too
            pass

    def _after(self) -> Iterator[Item]:
        """Yield the problems of the container, after all blocks have been read."""
        number = self._line
        if self._damage:
            message = f"gzip data is damaged after line {number}: {self._damage}"
            yield Problem(self.name, number, message)
        replaced = isinstance(self._stream, RemoteFile) and self._stream.changed()
        if self.size >= 0 and (self.position != self.size or replaced):
            self.changed = True
            yield Problem(self.name, number, GROWING)
        yield from self._further_unreadable(number, "lines")

    def close(self) -> None:
        self._stream.close()

    def _parse(self, number: int, block: bytes) -> Iterator[Item]:
        """Yield the items of whole lines; `number` is that of the first."""
        raise NotImplementedError

    def _parse_cut(self, number: int, line: bytes) -> Iterator[Item]:
        """Yield the items of a last line without a line end."""
        return self._parse(number, line + b"\n")

    def _bad_line(self, number: int, why: str, line: bytes = b"") -> Iterator[Item]:
        """Yield the refusal of a line, and why."""
        start = f": {line[:80].decode('utf-8', 'backslashreplace')!r}" if line else ""
        return self._unreadable(number, f"line {number}: {why}{start}")

    def _raw(self) -> Iterator[bytes]:
        """Read and hash the bytes on disk."""
        running = blake3.blake3()
        try:
            for data in self._read():
                running.update(data)
                self._position += len(data)
                yield data
        except OSError as error:
            raise BadSource(f"{self.name} cannot be read: {error}") from error
        self.content_hash = running.hexdigest()

    def _read(self) -> Iterator[bytes]:
        """Yield the bytes on disk."""
        return iter(partial(self._stream.read, self._block), b"")


def _inflated(raw: Iterator[bytes]) -> Iterator[bytes]:
    """Inflate the blocks if they are gzip."""
    start = b""
    while len(start) < len(GZIP) and (data := next(raw, b"")):
        start += data
    blocks = chain([start], raw) if start else raw
    return parted(gunzip(blocks)) if start.startswith(GZIP) else blocks


def gunzip(blocks: Iterable[bytes]) -> Iterator[bytes | None]:
    """Inflate gzip members, with None after each; raises `zlib.error` for cut or damaged ones.

    Text before the damage is yielded first. Zeros between members are padding.
    """
    inflater = None
    for block in blocks:
        for start in range(0, len(block), _INFLATE_STEP):
            data = block[start : start + _INFLATE_STEP]
            while data:
                if inflater is None:
                    data = data.lstrip(b"\0")
                    if not data:
                        break
                    inflater = zlib.decompressobj(31)
                yield inflater.decompress(data, _INFLATE_MOST)
                data = inflater.unused_data if inflater.eof else inflater.unconsumed_tail
                if inflater.eof:
                    inflater = None
                    yield None
    if inflater is not None:
        yield inflater.flush()
        if not inflater.eof:
            raise zlib.error("the last member is cut short")


def parted(pieces: Iterable[bytes | None]) -> Iterator[bytes]:
    """Yield the text of `gunzip`, and a line end between two rows that lack one.

    Blocks of some ZipNum files do not end with a line end. Other files are divided into members
    anywhere in a line, where nothing must be inserted.
    """
    line = b""  # the last line so far, if it has no end
    held: bytes | None = None  # start of a member after such a line, up to a line end
    try:
        for piece in pieces:
            if piece is None:
                if held:
                    text = _joined(line, held)
                    line = _last_line(line, text)
                    yield text
                held = b"" if line else None
            elif held is None:
                line = _last_line(line, piece)
                yield piece
            else:
                held += piece
                if b"\n" in piece or len(held) > _LONGEST_ROW:
                    text = _joined(line, held)
                    line, held = _last_line(line, text), None
                    yield text
    except zlib.error:  # yield the text before the damage
        if held:
            yield _joined(line, held)
        raise
    if held:
        yield _joined(line, held)


def _joined(line: bytes, following: bytes) -> bytes:
    separate = are_rows(line, following.partition(b"\n")[0])
    return b"\n" + following if separate else following


def _last_line(line: bytes, text: bytes) -> bytes:
    end = text.rfind(b"\n") + 1
    return text[end : end + _LONGEST_ROW] if end else (line + text)[:_LONGEST_ROW]


def are_rows(line: bytes, following: bytes) -> bool:
    """Return whether two pieces of text are a row each, and not one row that was cut.

    A row of CDX has the columns of its layout; a row of CDXJ ends with JSON.
    """
    if guess(following.removesuffix(b"\r")):
        return bool(guess(line) or header(line))
    parts = line.split(b" ", 2)
    if len(parts) < 3 or not line.endswith(b"}"):
        return False
    try:
        orjson.loads(parts[2])
    except orjson.JSONDecodeError:
        return False
    return True


def inflated(head: bytes, most: int) -> bytes:
    """Return `most` bytes, or a little more, of a gzip file that begins with `head`."""
    text = b""
    try:
        for data in parted(gunzip([head])):
            text += data
            if len(text) >= most:
                break
    except zlib.error:  # `head` is cut; the reader reports damage
        pass
    return text


def whole_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Divide text after line ends; a last line without one comes in a block of its own."""
    tail = b""
    overlong, first = False, True
    for block in blocks:
        if overlong:
            end = block.find(b"\n")
            if end < 0:
                continue
            block, overlong = _OVERLONG + block[end:], False
        cut = block.rfind(b"\n") + 1
        if not cut:
            tail += block
            if len(tail) > _LONGEST_LINE:
                tail, overlong = b"", True
            continue
        whole, tail = tail + block[:cut], block[cut:]
        yield _plain(whole, first=first)
        first = False
    if overlong or tail:
        yield _OVERLONG if overlong else _plain(tail, first=first)


def _plain(text: bytes, *, first: bool) -> bytes:
    """Return text without a byte order mark, with Unix line ends."""
    if first:
        text = text.removeprefix(b"\xef\xbb\xbf")
    return text.replace(b"\r\n", b"\n") if b"\r" in text else text
