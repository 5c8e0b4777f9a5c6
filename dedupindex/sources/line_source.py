"""Text containers: large blocks in, whole lines out, hashed on the way.

CDX, CDXJ and crawl logs are all lines; they come plain, as one gzip member or as many (the blocks
of a zipnum CDXJ). A format is handed a block of many whole lines at a time, small enough to stay in
the processor's cache while it is taken apart. Lines are numbered from 1, as editors do.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import BinaryIO, Self

import blake3
import orjson

from dedupindex.capture import Item, Problem, Refusal
from dedupindex.errors import BadSource
from dedupindex.object_store import RemoteFile
from dedupindex.sources.cdx_columns import guess, header
from dedupindex.sources.source import GROWING, SourceOptions

BLOCK = 1 << 18
GZIP = b"\x1f\x8b"
_LONGEST_LINE = 16 << 20  # bytes; no URL is that long, but a file without line ends may be
_LONGEST_ROW = 2 << 20  # bytes of a row that may stand at the seam of two gzip members
_OVERLONG = b"\0"  # what is handed on in place of such a line: no format can read it
_PROBLEMS_SHOWN = 100  # of lines, per container; the rest is one number
_INFLATE_STEP = 1 << 16  # bytes in: what follows a member is copied, so not too many
_INFLATE_MOST = 1 << 20  # bytes out at a time, so that a bomb stays small


class TextSource:
    """The part that all text formats share; a format adds `_parse`."""

    def __init__(
        self,
        name: str,
        stream: BinaryIO,
        *,
        size: int = -1,
        options: SourceOptions | None = None,
        block: int = BLOCK,
    ) -> None:
        self.name = name
        self.size = size
        self.position = 0
        self.content_hash = ""
        self.changed = False
        self.options = options or SourceOptions()
        self._stream = stream
        self._block = block
        self._bad_lines = 0
        self._line = 1  # the number of the next
        self._damage = ""
        self._set_up()

    def _set_up(self) -> None:
        """Make what a format keeps while it reads."""

    def items(self) -> Iterator[Item]:
        """See `Source.items`."""
        for number, block in self._blocks():
            if block.endswith(b"\n"):
                yield from self._parse(number, block)
            else:
                yield from self._parse_cut(number, block)
        yield from self._after()

    def _blocks(self) -> Iterator[tuple[int, bytes]]:
        """Blocks of whole lines, each with the number of its first."""
        raw = self._raw()
        try:
            for block in _whole_lines(_inflated(raw)):
                yield self._line, block
                self._line += block.count(b"\n")
        except zlib.error as error:
            self._damage = str(error)
        for _ in raw:  # what lies behind damage is hashed all the same
            pass

    def _after(self) -> Iterator[Item]:
        """What is to be said when all blocks have been read."""
        number, damage = self._line, self._damage
        if damage:
            yield Problem(self.name, number, f"gzip data is damaged behind line {number}: {damage}")
        if self.size >= 0 and (self.position != self.size or self._replaced()):
            self.changed = True
            yield Problem(self.name, number, GROWING)
        if self._bad_lines > _PROBLEMS_SHOWN:
            more = self._bad_lines - _PROBLEMS_SHOWN
            yield Problem(self.name, number, f"{more:,} more lines could not be read")

    def _replaced(self) -> bool:
        """Whether an object is another now: blocks of two would make lines that nobody wrote."""
        return isinstance(self._stream, RemoteFile) and self._stream.changed()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stream.close()

    def _parse(self, number: int, block: bytes) -> Iterator[Item]:
        """Items of whole lines with their ends, `number` being that of the first."""
        raise NotImplementedError

    def _parse_cut(self, number: int, line: bytes) -> Iterator[Item]:
        """Items of a last line that has no end."""
        return self._parse(number, line + b"\n")

    def _bad_line(self, number: int, why: str, line: bytes = b"") -> Iterator[Item]:
        """The items of a line that cannot be read: named, but not a million times."""
        self._bad_lines += 1
        if self._bad_lines <= _PROBLEMS_SHOWN:
            start = f": {line[:80].decode('utf-8', 'backslashreplace')!r}" if line else ""
            yield Problem(self.name, number, f"line {number}: {why}{start}")
        yield Refusal("bad-line")

    def _raw(self) -> Iterator[bytes]:
        """The container's bytes as on disk, hashed."""
        running = blake3.blake3()
        try:
            while data := self._stream.read(self._block):
                running.update(data)
                self.position += len(data)
                yield data
        except OSError as error:
            raise BadSource(f"{self.name} cannot be read: {error}") from error
        self.content_hash = running.hexdigest()


def _inflated(raw: Iterator[bytes]) -> Iterator[bytes]:
    """The blocks themselves, or what is in them if they are gzip."""
    start = b""
    for data in raw:
        start += data
        if len(start) >= len(GZIP):
            break
    blocks = chain([start] if start else [], raw)
    return parted(gunzip(blocks)) if start.startswith(GZIP) else iter(blocks)


def gunzip(blocks: Iterable[bytes]) -> Iterator[bytes | None]:
    """Inflate any number of gzip members, None behind each; `zlib.error` for cut or damaged ones.

    What was good before the damage has been yielded by then. Zeros after a member are padding.
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
    """The text of gzip members, with a line end between two rows that stand in two of them.

    The blocks of some ZipNum files do not end with one. Other files are cut into members anywhere
    in a line: there nothing is put in. `pieces` are those of `gunzip`.
    """
    line = b""  # the last one so far, as long as it has no end
    held: bytes | None = None  # of a member that begins behind such a line, up to a line end
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
    except zlib.error:  # what was good before the damage
        if held:
            yield _joined(line, held)
        raise
    if held:
        yield _joined(line, held)


def _joined(line: bytes, following: bytes) -> bytes:
    apart = rows_apart(line, following.partition(b"\n")[0])
    return b"\n" + following if apart else following


def _last_line(line: bytes, text: bytes) -> bytes:
    end = text.rfind(b"\n") + 1
    return text[end : end + _LONGEST_ROW] if end else (line + text)[:_LONGEST_ROW]


def rows_apart(line: bytes, following: bytes) -> bool:
    """Whether two pieces of text are a row each, and not one that was cut in two.

    Rows of CDX have the columns that their number says; a row of CDXJ ends with its JSON.
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
    """What can be inflated of the beginning of a gzip file, `most` bytes or a little more."""
    text = b""
    try:
        for data in parted(gunzip([head])):
            text += data
            if len(text) >= most:
                break
    except zlib.error:  # cut by us, or damaged: the reader will say
        pass
    return text


def _whole_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The same text cut after line ends, so that no line is in two blocks.

    Only a last line without an end comes alone and without one.
    """
    tail = b""
    overlong = False
    first = True
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
    """Without a byte order mark, and with Unix line ends."""
    if first:
        text = text.removeprefix(b"\xef\xbb\xbf")
    return text.replace(b"\r\n", b"\n") if b"\r" in text else text
