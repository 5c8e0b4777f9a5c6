"""ZipNum clusters: a CDX or CDXJ, sorted, in gzip blocks, with an index of the blocks.

Each line of the index (``cluster.idx``, ``….idx``) is of one block, named by its first key:

    urlkey timestamp <tab> part <tab> offset <tab> length <tab> number

A file ``….loc`` beside it may say where parts are (``part <tab> path <tab> path …``), else they are
beside it. So pywb, the Wayback Machine and Common Crawl have it.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import BinaryIO, NamedTuple

from dedupindex.capture import Problem
from dedupindex.errors import BadSource
from dedupindex.object_store import RemoteFile, facts, is_remote, open_anywhere, redacted

ENDING = ".idx"
_LOCATIONS = ".loc"
_HEAD = 1 << 12  # bytes in which the first line is
_WINDOW = 1 << 16  # bytes read at once from the index; a line is shorter
_MOST_RUN = 1 << 23  # bytes
_LONGEST_BLOCK = 1 << 28  # bytes; they are held in memory
_NUMBER = re.compile(rb"[0-9]{1,18}")
_MOST_LOCATIONS = 1 << 26  # bytes


class ZipNumBlock(NamedTuple):
    """A block of rows in a part, one or more gzip members."""

    part: str  # as the index names it
    offset: int
    length: int


def is_cluster(path: str) -> bool:
    """Return whether a file is named ``….idx`` and has lines of the index of a cluster."""
    if not path.endswith(ENDING):
        return False
    try:
        with open_anywhere(path) as stream:
            first = stream.read(_HEAD).partition(b"\n")[0]
    except OSError:
        return False  # reading it as a source says why
    return _block(first) is not None


def _block(line: bytes) -> ZipNumBlock | None:
    """Return the block of a line, None if the line is malformed."""
    columns = line.rstrip(b"\r").split(b"\t")
    if len(columns) < 4 or not columns[1] or not all(map(_NUMBER.fullmatch, columns[2:4])):
        return None
    if not 0 < int(columns[3]) <= _LONGEST_BLOCK:
        return None
    name = columns[1].decode("utf-8", "surrogateescape")
    return ZipNumBlock(name, int(columns[2]), int(columns[3]))


class ZipNumCluster:
    """The index of a cluster, of which only what is needed is read; a context manager."""

    def __init__(self, path: str) -> None:
        """Open the index; raises `BadSource`."""
        self.name = redacted(path) if is_remote(path) else path
        self._path = path
        try:
            self._stream: BinaryIO = open_anywhere(path)
        except OSError as error:
            raise BadSource(f"{path} cannot be read: {error.strerror}") from error
        self._size = self._stream.seek(0, os.SEEK_END)
        self._known: dict[str, str] = {}  # paths of parts
        self._locations: dict[str, list[str]] | None = None

    def __enter__(self) -> ZipNumCluster:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stream.close()

    def blocks(self) -> Iterator[ZipNumBlock]:
        """Yield all blocks, in order; raises `BadSource` for a line that is not of a block."""
        for line in self._lines(0):
            yield self._parsed(line)

    def blocks_of(self, prefix: bytes) -> Iterator[ZipNumBlock]:
        """Yield the blocks that can have rows that begin with `prefix`, in order.

        The rows of a prefix may begin in the block before the first one that is named by it. Raises
        `BadSource` if the lines are not sorted.
        """
        before = b""
        for line in self._lines(self._start(prefix)):
            if line < before:
                raise BadSource(f"{self.name} is not sorted (LC_ALL=C): {line[:80]!r} is too late")
            if line > prefix and not line.startswith(prefix):
                if before and before < prefix:  # the rows may be in the block before
                    yield self._parsed(before)
                return
            if before and before < prefix <= line:
                yield self._parsed(before)
            if line >= prefix:
                yield self._parsed(line)
            before = line
        if before and before < prefix:
            yield self._parsed(before)

    def parts(self) -> list[str]:
        """Return the paths or addresses of all parts, in the order of their first block."""
        return [self.path_of(part) for part in dict.fromkeys(block.part for block in self.blocks())]

    def path_of(self, part: str) -> str:
        """Return the path or address of a part; raises `BadSource` if it is not there."""
        if part not in self._known:
            listed = self._listed().get(part, [part])
            folder = self._path.rpartition("/")[0]
            places = [
                place
                if is_remote(place) or place.startswith("/") or not folder
                else f"{folder}/{place}"
                for place in listed
            ]
            found = next(filter(_is_there, places), None)
            if found is None:
                tried = ", ".join(redacted(place) for place in places)
                raise BadSource(f"{self.name} names the part {part}, which is not there: {tried}")
            self._known[part] = found if is_remote(found) else os.path.abspath(found)
        return self._known[part]

    def _listed(self) -> dict[str, list[str]]:
        """Return the paths of parts in the file beside the index, if there is one."""
        if self._locations is None:
            self._locations = {}
            path = self._path.removesuffix(ENDING) + _LOCATIONS
            for place in (path, posixpath.join(posixpath.dirname(path), "loc")):
                if _is_there(place):
                    with open_anywhere(place) as stream:
                        text = stream.read(_MOST_LOCATIONS).decode("utf-8", "surrogateescape")
                    for line in text.splitlines():
                        part, *places = line.split("\t")
                        self._locations.setdefault(part, [place for place in places if place])
                    break
        return self._locations

    def _parsed(self, line: bytes) -> ZipNumBlock:
        block = _block(line)
        if block is None:
            raise BadSource(f"{self.name} has a line that is not of a block: {line[:80]!r}")
        return block

    def _lines(self, start: int) -> Iterator[bytes]:
        """Yield the lines from the one that begins at `start` on, without line ends."""
        tail = b""
        while data := self._read(start, _WINDOW):
            start += len(data)
            *lines, tail = (tail + data).split(b"\n")
            yield from filter(None, lines)
            if len(tail) > _WINDOW:
                raise BadSource(f"{self.name} has a line of more than {_WINDOW:,} bytes")
        if tail:
            yield tail

    def _start(self, prefix: bytes) -> int:
        """Return where the last line before `prefix` begins, or a line before it."""
        low, high = 0, self._size  # `low` begins a line that is before `prefix`, or the file
        while high - low > _WINDOW:
            middle = (low + high) // 2
            data = self._read(middle, 2 * _WINDOW)  # with the whole line that begins in it
            end = data.find(b"\n", 0, _WINDOW) + 1
            if not end:
                raise BadSource(f"{self.name} has a line of more than {_WINDOW:,} bytes")
            begin = middle + end
            if begin >= high or data[end:].partition(b"\n")[0] >= prefix:
                high = middle
            else:
                low = begin
        return low

    def _read(self, offset: int, count: int) -> bytes:
        try:
            self._stream.seek(offset)
            return self._stream.read(min(count, max(self._size - offset, 0)))
        except OSError as error:
            raise BadSource(f"{self.name} cannot be read: {error}") from error


def _is_there(path: str) -> bool:
    if not is_remote(path):
        return os.path.isfile(path)
    with suppress(BadSource):
        facts(path)
        return True
    return False


def read_blocks(
    path: str, blocks: Sequence[ZipNumBlock], problems: list[Problem]
) -> Iterator[tuple[int, bytes]]:
    """Yield each run of adjacent blocks of one part, as offset and stored bytes.

    A run is at most `_MOST_RUN` bytes, unless one block is longer. Blocks beyond the end of the
    part are a problem. Raises `BadSource`.
    """
    with open_anywhere(path) as stream:
        size = stream.seek(0, os.SEEK_END)
        for offset, length in _runs(blocks):
            if offset + length > size:
                what = f"is cut, or not of its index: it ends before {offset + length:,}"
                problems.append(Problem(path, min(offset, size), what))
            if offset >= size:
                continue
            if isinstance(stream, RemoteFile):
                yield offset, stream.range(length, offset)
            else:
                stream.seek(offset)
                yield offset, stream.read(length)


def _runs(blocks: Sequence[ZipNumBlock]) -> Iterator[tuple[int, int]]:
    """Yield offset and length of runs of adjacent blocks."""
    begin = length = 0
    for block in sorted(blocks, key=lambda block: block.offset):
        if length and block.offset == begin + length and length + block.length <= _MOST_RUN:
            length += block.length
            continue
        if length:
            yield begin, length
        begin, length = block.offset, block.length
    if length:
        yield begin, length
