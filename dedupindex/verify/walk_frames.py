"""Walk the frames of a ``.warc.zst`` file, and decompress them with python-zstandard.

Where a frame ends follows from the sizes of its blocks (RFC 8878 section 3.1.1), so every byte of a
sound file belongs to a frame or a skippable frame, whatever the decompressor says. Few blocks are
decompressed at once: memory is bounded, however much a frame expands to.

A dictionary stands in a skippable frame at the beginning of the file, as it is or compressed
(https://iipc.github.io/warc-specifications/specifications/warc-zstd/, section 3.2), or is given.
"""

from __future__ import annotations

import os
import re
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

import zstandard

from dedupindex.verify.file_bytes import Beginnings, File, MemberReader, UnreadableFile, opened
from dedupindex.verify.issues import Broken, Issue

MAGIC = b"\x28\xb5\x2f\xfd"
_DICTIONARY_FRAME = b"\x5d\x2a\x4d\x18"
_SKIPPABLE = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18")
_SKIPPABLE_HEADER = 8  # bytes: its magic number and its size
_LONGEST_HEADER = 18  # bytes of a frame
_BLOCK_HEADER = 3  # bytes
_LARGEST_BLOCK = 1 << 17  # bytes, stored and decompressed
_RLE, _RESERVED = 1, 3  # types of blocks
_BLOCKS = 8  # decompressed at once, to a mebibyte at most
_CHECKSUM = 4  # bytes
_USUAL_WINDOW = 8 << 20  # bytes; more need not be read (section 4 of the specification)
_MAX_WINDOW = 128 << 20  # bytes that a frame may ask the reader to keep, as the zstd program reads
_MAX_DICTIONARY = 8 << 20  # bytes, decompressed
_DICTIONARY_MAGIC = b"\x37\xa4\x30\xec"
_UNKNOWN_SIZE = zstandard.CONTENTSIZE_UNKNOWN
_UNREADABLE_FRAME = "damaged-member"
_VERSION_LINE = re.compile(rb"WARC/[0-9]{1,4}\.[0-9]{1,4}[ \t]*\r?\n", re.IGNORECASE)
VARIABLE = "DEDUPINDEX_ZSTD_DICTIONARY"  # files with further dictionaries, separated by colons
_Dictionary = zstandard.ZstdCompressionDict


@cache
def _given(paths: str) -> dict[int, _Dictionary]:
    """The dictionaries in files, by id; raises `Broken`."""
    found = {}
    for path in filter(None, paths.split(os.pathsep)):
        try:
            with opened(Path(path)) as file:
                dictionary = _read_dictionary(file, 0, file.size)
        except (Broken, UnreadableFile) as error:
            raise Broken("no-dictionary", f"{path} has no zstd dictionary: {error}") from error
        found[dictionary.dict_id()] = dictionary
    return found


def _dictionary(data: bytes) -> _Dictionary:
    if not data.startswith(_DICTIONARY_MAGIC):
        raise Broken(_UNREADABLE_FRAME, "its dictionary is not one of zstd")
    found = _Dictionary(data, dict_type=zstandard.DICT_TYPE_FULLDICT)
    try:
        zstandard.ZstdDecompressor(dict_data=found).decompressobj()
    except zstandard.ZstdError as error:
        raise Broken(_UNREADABLE_FRAME, "its dictionary cannot be loaded") from error
    return found


class _Header(NamedTuple):
    size: int
    window: int
    content_size: int
    dictionary: int  # its id, 0 for none
    checksum: bool


def _read_header(file: File, offset: int) -> _Header:
    data = file.read(offset, _LONGEST_HEADER)
    try:
        facts = zstandard.get_frame_parameters(data)
        size = zstandard.frame_header_size(data)
    except zstandard.ZstdError as error:
        cut = len(data) < _LONGEST_HEADER and data.startswith(MAGIC)
        message = "the file ends within it" if cut else "its frame header is invalid"
        raise Broken(_UNREADABLE_FRAME, message if data else "nothing is there") from error
    return _Header(
        size, facts.window_size, facts.content_size, facts.dict_id, bool(facts.has_checksum)
    )


def _block_end(file: File, offset: int) -> tuple[int, bool]:
    """Return the end of the block at `offset`, and whether it is the last of its frame."""
    number = int.from_bytes(file.read(offset, _BLOCK_HEADER), "little")
    kind, size = number >> 1 & 3, number >> 3
    if file.size < offset + _BLOCK_HEADER:
        raise Broken(_UNREADABLE_FRAME, "the file ends within it")
    if kind == _RESERVED or size > _LARGEST_BLOCK:
        raise Broken(_UNREADABLE_FRAME, "a block of it has an invalid header")
    end = offset + _BLOCK_HEADER + (1 if kind == _RLE else size)
    if end > file.size:
        message = "the file ends within it, or the size of one of its blocks is damaged"
        raise Broken(_UNREADABLE_FRAME, message)
    return end, bool(number & 1)


def _frame_end(file: File, offset: int) -> int:
    """The end of a frame by the sizes of its blocks, without decompressing; raises `Broken`."""
    header = _read_header(file, offset)
    end, last = offset + header.size, False
    while not last:
        end, last = _block_end(file, end)
    end += _CHECKSUM if header.checksum else 0
    if end > file.size:
        raise Broken(_UNREADABLE_FRAME, "the file ends within it")
    return end


class FrameReader(MemberReader):
    """Reads a frame, and those that follow it as long as they continue its record."""

    def __init__(
        self, file: File, offset: int, dictionary_of: Callable[[int], _Dictionary | None]
    ) -> None:
        """`dictionary_of` returns the dictionary of an id; raises `Broken`."""
        self.file, self.offset, self._dictionary_of = file, offset, dictionary_of
        self.end = -1
        self.frames = 1
        self.issues: list[Issue] = []
        self._first_end = -1  # of the first frame
        self._ahead = b""  # of a frame that was begun
        self._begin(offset)

    def _begin(self, offset: int) -> None:
        header = _read_header(self.file, offset)
        if header.window > _MAX_WINDOW:
            message = f"its window is {header.window:,} bytes, and {_MAX_WINDOW:,} at most are read"
            raise Broken(_UNREADABLE_FRAME, message)
        known = self._dictionary_of(header.dictionary)
        decompressor = zstandard.ZstdDecompressor(dict_data=known, max_window_size=_MAX_WINDOW)
        self._decompressor = decompressor.decompressobj()
        self._fed, self._position = offset, offset + header.size
        self._checksum, self._last, self._damage = header.checksum, False, ""
        found = {reason for reason, _ in self.issues}
        self.issues += [issue for issue in _header_issues(header) if issue[0] not in found]

    def piece(self) -> bytes:
        """The next bytes; none at the end. Raises `Broken`, also for a wrong checksum."""
        data, self._ahead = self._ahead, b""
        while not data and not self._last and not self._damage:
            feed = self._feed()
            try:
                data = self._decompressor.decompress(feed)
            except zstandard.ZstdError as error:
                self._damage = str(error).removeprefix("zstd decompressor error: ")
                break
            if self._last:
                if not self._decompressor.eof or self._decompressor.unused_data:
                    self._damage = "it does not end with its last block"
                    break
                self.end = self._position
                self._first_end = self.end if self._first_end < 0 else self._first_end
        if self._damage:  # also if it is asked again
            raise Broken(_UNREADABLE_FRAME, self._damage)
        return data

    def _feed(self) -> bytes:
        """The next blocks, as stored."""
        for _ in range(_BLOCKS):
            self._position, self._last = _block_end(self.file, self._position)
            if self._last:
                break
        if self._last and self._checksum:
            self._position += _CHECKSUM
        start, self._fed = self._fed, self._position
        feed = self.file.read(start, self._position - start)
        if len(feed) < self._position - start:
            self._damage = "the file ends within it"
            raise Broken(_UNREADABLE_FRAME, self._damage)
        return feed

    def proceed(self, continues: Callable[[bytes], bool]) -> bool:
        """Go on with the next frame if it `continues` the record; else stay at the end."""
        state = self.end, self._decompressor, self._fed, self._position, self._checksum
        issues, frames, first = list(self.issues), self.frames, b""
        try:
            while not first and self.file.read(at := _skipped(self.file, self.end), 4) == MAGIC:
                self._begin(at)
                first = self.piece()  # none of an empty frame
                frames += 1
            if first and _VERSION_LINE.match(first) is None and continues(first):
                self._ahead, self.frames = first, frames
                return True
        except Broken:
            pass  # reported when that frame is read for itself
        self.end, self._decompressor, self._fed, self._position, self._checksum = state
        self.issues, self._last, self._damage = issues, True, ""
        return False

    def rewind(self) -> None:
        if self.frames > 1:
            self.end, self._last, self._ahead = self._first_end, True, b""
            self._damage = ""
        super().rewind()


def _header_issues(header: _Header) -> Iterator[Issue]:
    if header.content_size == _UNKNOWN_SIZE:
        yield "no-content-size", "its frame does not state the size of its content"
    if not header.checksum:
        yield "no-checksum", "its frame has no checksum"
    if header.window > _USUAL_WINDOW:
        yield "large-window", f"its frame needs a window of {header.window:,} bytes"


def _skipped(file: File, offset: int, count: int = -1) -> int:
    """The end of the skippable frames at `offset`, `count` at most; raises `Broken`."""
    while count and _SKIPPABLE.fullmatch(file.read(offset, 4)):
        data = file.read(offset + 4, 4)
        end = offset + _SKIPPABLE_HEADER + int.from_bytes(data, "little")
        if len(data) < 4 or end > file.size:
            raise Broken(_UNREADABLE_FRAME, "the file ends within a skippable frame")
        offset, count = end, count - 1
    return offset


def _read_dictionary(file: File, start: int, end: int) -> _Dictionary:
    """The dictionary between two offsets, as it is or compressed; raises `Broken`."""
    size = end - start
    data = file.read(start, min(size, _MAX_DICTIONARY))
    if data.startswith(MAGIC):
        reader = FrameReader(file, start, lambda number: None)
        data = b""
        while (piece := reader.piece()) and len(data) <= _MAX_DICTIONARY:
            data += piece
        if reader.end != end and len(data) <= _MAX_DICTIONARY:
            raise Broken(_UNREADABLE_FRAME, "its dictionary does not end where its frame ends")
    if max(len(data), size) > _MAX_DICTIONARY:
        message = f"its dictionary has more than {_MAX_DICTIONARY:,} bytes"
        raise Broken(_UNREADABLE_FRAME, message)
    return _dictionary(data)


class ZstdFrames(Beginnings):
    """The frames of a file: where they begin, and what they need to be decompressed.

    From the beginning of the file frames follow each other by their sizes. After damage, an offset
    is certain only if sound frames follow each other from it beyond the end of any uncompressed
    block that may hold it.
    """

    unit = "zstd frame"
    magic = MAGIC

    def __init__(self, file: File) -> None:
        super().__init__(file)
        self._walked = 0  # up to here frames follow each other from the beginning
        self._starts = array("Q")
        self._own: _Dictionary | None = None
        self.dictionary_problem = ""
        if file.read(0, len(_DICTIONARY_FRAME)) == _DICTIONARY_FRAME:
            try:
                end = self.skipped(0, 1)
                self._own = _read_dictionary(file, _SKIPPABLE_HEADER, end)
            except Broken as broken:
                self.dictionary_problem = str(broken)

    def _dictionary_of(self, number: int) -> _Dictionary | None:
        """The dictionary for a frame that names `number`; raises `Broken` if it is missing."""
        if not number or (self._own is not None and self._own.dict_id() == number):
            return self._own
        message = f"the zstd dictionary {number} is needed, which is not in the file"
        try:
            given = _given(os.environ.get(VARIABLE, ""))
        except Broken as broken:
            raise Broken("no-dictionary", f"{message}, and {broken}") from broken
        if number not in given:
            raise Broken("no-dictionary", f"{message} (--zstd-dictionary)")
        return given[number]

    def open(self, offset: int) -> FrameReader:
        return FrameReader(self.file, offset, self._dictionary_of)

    def skipped(self, offset: int, count: int = -1) -> int:
        return _skipped(self.file, offset, count)

    def skipped_issues(self, offset: int) -> Iterator[Issue]:
        is_dictionary = self.file.read(offset, 4) == _DICTIONARY_FRAME
        if offset == 0 and is_dictionary and self.dictionary_problem:
            yield _UNREADABLE_FRAME, self.dictionary_problem
        elif is_dictionary != (offset == 0):
            what = "a dictionary" if is_dictionary else "a skippable frame without a dictionary"
            where = "is not at the beginning" if is_dictionary else "is at the beginning"
            yield "not-exact", f"{what} {where} of the file"

    def end(self, offset: int) -> int:
        """The end of the frame at an offset, by the sizes of its blocks; raises `Broken`."""
        end = self.skipped(offset, 1)
        return end if end > offset else _frame_end(self.file, offset)

    def alike(self, offset: int) -> tuple[int, int]:
        number, count = _read_header(self.file, offset).dictionary, 0
        with suppress(Broken):
            while self.is_at(offset) and _read_header(self.file, offset).dictionary == number:
                offset, count = _frame_end(self.file, offset), count + 1
        return offset, count

    def certain(self, offset: int) -> bool:
        if self.known(offset) or self.reached(0, offset):
            return True
        position = offset
        try:
            while position <= offset + _LARGEST_BLOCK and position < self.file.size:
                reader = self.open(position)
                reader.skip()
                position = self.skipped(reader.end)
        except Broken:
            return False
        self.add(offset)
        return True

    def reached(self, start: int, offset: int) -> bool:
        if start:
            return super().reached(start, offset)
        with suppress(Broken):
            while self._walked < offset:
                end = self.end(self._walked)
                self._starts.append(self._walked)
                self._walked = end
        at = bisect_left(self._starts, offset)
        return offset == self._walked or self._starts[at : at + 1] == array("Q", [offset])

    def starts(self) -> Iterator[tuple[int, bytes]]:
        for offset in self.magics(0, self.file.size):
            with suppress(Broken):
                yield offset, self.open(offset).piece()
