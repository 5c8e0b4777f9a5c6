"""Read and write zstd frames and their dictionaries (RFC 8878).

The IIPC's "Zstandard Compression for WARC Files 1.0" says where the dictionary of a file is: in a
skippable frame at its beginning, as it is or compressed. Some crawlers write it elsewhere; then
users give it, see `VARIABLE`.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from threading import Lock
from typing import Any, BinaryIO, NamedTuple

if sys.version_info >= (3, 14):
    from compression.zstd import (
        CompressionParameter,
        ZstdCompressor,
        ZstdDecompressor,
        ZstdDict,
        ZstdError,
        get_frame_size,
        train_dict,
    )
else:
    from backports.zstd import (
        CompressionParameter,
        ZstdCompressor,
        ZstdDecompressor,
        ZstdDict,
        ZstdError,
        get_frame_size,
        train_dict,
    )

VARIABLE = "DEDUPINDEX_ZSTD_DICTIONARY"
"""The environment variable with the files of further dictionaries, separated by colons.

Processes that this one starts, also those of Spark, find them there.
"""

NEEDS = "need the zstd dictionary"
MAGIC = b"\x28\xb5\x2f\xfd"
DICTIONARY_FRAME = b"\x5d\x2a\x4d\x18"
_DICTIONARY = b"\x37\xa4\x30\xec"
_SKIPPABLE = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18")
_SKIPPABLE_HEADER = 8  # bytes: magic and size
LONGEST_HEADER = 18  # bytes of a frame's header
CHECKSUM, RESERVED = 4, 8  # bits of a frame's fifth byte
LONGEST_BLOCK = 1 << 17
_LONGEST_WINDOW = 1 << 27  # bytes of memory that a frame may ask for
_LONGEST_DICTIONARY = 1 << 23  # bytes, compressed or not
_MOST_KNOWN = 1024  # containers whose dictionary, or that they have none, is remembered
_STEP = 1 << 16  # bytes of a stream that are decompressed at once; what follows a frame is copied
PIECE = 1 << 18  # bytes that are decompressed at a time
_LEVEL = 9  # of the frames that are written: the time of gzip at level 6, and smaller
_DICTIONARY_LEVEL = 19

Read = Callable[[int, int], bytes]
"""``read(offset, count)``: bytes of a container, fewer only at its end."""

LINE_ENDS = 4  # bytes after a record

RecordLength = Callable[[bytes], int]
"""Where the block of the record ends that begins with these bytes.

0 if no record begins there, -1 if more bytes are needed to tell.
"""


class UnreadableFrame(Exception):
    """The frame may be sound, but it cannot be decompressed."""


class MissingDictionary(UnreadableFrame):
    """It was compressed with a dictionary that is neither in the file nor was given."""


class FrameHeader(NamedTuple):
    """The header of a frame (RFC 8878 section 3.1.1.1)."""

    size: int  # bytes of the header
    window: int  # bytes of memory that decompressing needs
    dictionary: int  # id, 0 if it is not stated
    checksum: bool


def is_zstd(start: bytes) -> bool:
    """Return whether a file begins with a frame or a skippable frame."""
    return start.startswith(MAGIC) or _SKIPPABLE.match(start) is not None


def is_header(content: bytes) -> bool:
    """Return whether content begins with a WARC header, so that it does not continue another."""
    return content[:5].upper() == b"WARC/"


def frame_header(start: bytes) -> FrameHeader | None:
    """Return the header of the frame that begins `start`; None if there is no whole one."""
    if len(start) < 5 or not start.startswith(MAGIC) or start[4] & RESERVED:
        return None
    flags = start[4]
    single = flags >> 5 & 1  # without a window: the content is held at once
    at = 5 + (1 - single)
    after_id = at + (0, 1, 2, 4)[flags & 3]
    size = after_id + (single, 2, 4, 8)[flags >> 6]
    if len(start) < size:
        return None
    if single:
        window = int.from_bytes(start[after_id:size], "little") + (256 if flags >> 6 == 1 else 0)
    else:
        base = 1 << (10 + (start[5] >> 3))
        window = base + base // 8 * (start[5] & 7)
    dictionary = int.from_bytes(start[at:after_id], "little")
    return FrameHeader(size, window, dictionary, bool(flags & CHECKSUM))


def skippable_end(read: Read, offset: int) -> int:
    """Return where a skippable frame ends as it states; -1 if none begins at `offset`."""
    start = read(offset, _SKIPPABLE_HEADER)
    if len(start) < _SKIPPABLE_HEADER or _SKIPPABLE.match(start) is None:
        return -1
    return offset + _SKIPPABLE_HEADER + int.from_bytes(start[4:], "little")


def dictionary_end(read: Read) -> int:
    """Return where the dictionary at the beginning of a file ends, 0 if there is none."""
    if not read(0, len(MAGIC)).startswith(DICTIONARY_FRAME):
        return 0
    return max(skippable_end(read, 0), 0)


class Dictionaries:
    """The dictionary of a file, and those that users give."""

    def __init__(self, own: ZstdDict | None = None, problem: str = "") -> None:
        """`problem`: why the dictionary of the file cannot be read."""
        self.default = own  # for most frames
        self.size = 0 if own is None else len(own.dict_content)  # bytes
        self.problem = problem

    @classmethod
    def read(cls, read: Read) -> Dictionaries:
        """Return the dictionary at the beginning of a file."""
        end = dictionary_end(read)
        if not end:
            return cls()
        try:
            if end > _SKIPPABLE_HEADER + _LONGEST_DICTIONARY:
                raise UnreadableFrame(f"is longer than {_LONGEST_DICTIONARY:,} bytes")
            data = read(_SKIPPABLE_HEADER, end - _SKIPPABLE_HEADER)
            if len(data) < end - _SKIPPABLE_HEADER:
                raise UnreadableFrame("is cut short")
            return cls(parse_dictionary(data))
        except UnreadableFrame as error:
            return cls(problem=f": that at the beginning of the file {error}")

    def decompressor(self, header: FrameHeader) -> ZstdDecompressor:
        """Return what decompresses a frame; raises `UnreadableFrame`."""
        if header.window > _LONGEST_WINDOW:
            limit = _LONGEST_WINDOW >> 20
            raise UnreadableFrame(
                f"need {header.window >> 20:,} MiB of memory, and at most {limit} are allowed"
            )
        return ZstdDecompressor(self._of(header))

    @classmethod
    def train(cls, samples: Sequence[bytes | bytearray | memoryview], size: int) -> Dictionaries:
        """Return a dictionary of at most `size` bytes; none if there are too few samples.

        It depends only on the samples. Its id is one that nobody registers.
        """
        try:
            return cls(train_dict(samples, size))
        except (ZstdError, ValueError):
            return cls()

    def frame(self) -> bytes:
        """Return the skippable frame with the default dictionary; empty if there is none."""
        if self.default is None:
            return b""
        content = self.default.dict_content
        compressor = _compressor(None, _DICTIONARY_LEVEL)
        compressor.set_pledged_input_size(len(content))
        data = compressor.compress(content, ZstdCompressor.FLUSH_FRAME)
        return DICTIONARY_FRAME + len(data).to_bytes(4, "little") + data

    def compressor(self, like: FrameHeader | None = None) -> ZstdCompressor:
        """Return what compresses frames with a checksum, and the dictionary of the frame `like`.

        Without `like`, with the default dictionary. The caller sets the size of each frame, which
        then states it. Raises `UnreadableFrame`.
        """
        return _compressor(self.default if like is None else self._of(like), _LEVEL)

    def _of(self, header: FrameHeader) -> ZstdDict | None:
        """Return the dictionary of a frame; raises `UnreadableFrame` if it is missing."""
        wanted = header.dictionary
        if wanted and (self.default is None or self.default.dict_id != wanted):
            missing = f"{NEEDS} {wanted}, which is missing (--zstd-dictionary)"
            try:
                found = given_dictionaries().get(wanted)
            except UnreadableFrame as error:
                raise MissingDictionary(f"{missing}: {error}") from error
            if found is None:
                raise MissingDictionary(missing + self.problem)
            if self.default is None:
                self.default = found
            return found
        return self.default


def _compressor(dictionary: ZstdDict | None, level: int) -> ZstdCompressor:
    return ZstdCompressor(
        options={CompressionParameter.compression_level: level,
                 CompressionParameter.checksum_flag: 1},
        zstd_dict=dictionary.as_digested_dict if dictionary is not None else None,
    )  # fmt: skip


def parse_dictionary(data: bytes) -> ZstdDict:
    """Return a dictionary, as it is or compressed with zstd; raises `UnreadableFrame`."""
    try:
        if data.startswith(MAGIC):
            decompressor = ZstdDecompressor()
            data = decompressor.decompress(data, _LONGEST_DICTIONARY + 1)
            if len(data) > _LONGEST_DICTIONARY:
                raise UnreadableFrame(f"is longer than {_LONGEST_DICTIONARY:,} bytes")
            if not decompressor.eof:
                raise UnreadableFrame("is cut short")
        if data.startswith(_DICTIONARY):
            dictionary = ZstdDict(data)
            ZstdDecompressor(dictionary)  # which checks it
            return dictionary
    except (ZstdError, ValueError) as error:
        raise UnreadableFrame(f"is damaged: {error}") from error
    raise UnreadableFrame("is not a zstd dictionary")


def given_dictionaries() -> Mapping[int, ZstdDict]:
    """Return the dictionaries that `VARIABLE` names, by id; raises `UnreadableFrame`."""
    return _given(os.environ.get(VARIABLE, ""))


@cache
def _given(paths: str) -> Mapping[int, ZstdDict]:
    found = {}
    for path in filter(None, paths.split(os.pathsep)):
        try:
            with open(path, "rb") as stream:
                dictionary = parse_dictionary(stream.read(_LONGEST_DICTIONARY + 1))
        except OSError as error:
            raise UnreadableFrame(f"{path} cannot be read: {error.strerror}") from error
        except UnreadableFrame as error:
            raise UnreadableFrame(f"{path} {error}") from error
        found[dictionary.dict_id] = dictionary
    return found


class DictionaryCache:
    """The dictionaries of containers that were used last, for any number of threads."""

    def __init__(self, most: int = 8 * _LONGEST_DICTIONARY) -> None:
        """`most`: bytes of dictionaries that are kept."""
        self._most, self._held = most, 0
        self._known: OrderedDict[Hashable, Dictionaries] = OrderedDict()
        self._busy = Lock()

    def get(self, key: Hashable, read: Read) -> Dictionaries:
        """Return the dictionary of a container, which `read` reads if it is not known.

        `key` stands for the container as it is now.
        """
        with self._busy:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
        found = Dictionaries.read(read)
        with self._busy:
            if key not in self._known:
                self._known[key] = found
                self._held += found.size
            while self._held > self._most or len(self._known) > _MOST_KNOWN:
                self._held -= self._known.popitem(last=False)[1].size
        return found


def frame_pieces(
    read: Read, offset: int, end: int, dictionaries: Dictionaries
) -> Generator[bytes, None, None]:
    """Yield the content of the frames from `offset` to `end` in pieces.

    Raises `UnreadableFrame`, also if no frame ends at `end`.
    """
    at = offset
    while at < end:
        if (skipped := skippable_end(read, at)) >= 0:
            at = skipped
            continue
        header = frame_header(read(at, LONGEST_HEADER))
        if header is None:
            raise UnreadableFrame("have a damaged header")
        decompressor = dictionaries.decompressor(header)
        while not decompressor.eof:
            feed = b""
            if decompressor.needs_input:
                feed = read(at, min(end - at, PIECE))
                at += len(feed)
                if not feed:
                    raise UnreadableFrame("are cut short")
            try:
                data = decompressor.decompress(feed, PIECE)
            except ZstdError as error:
                raise UnreadableFrame(f"are damaged: {error}") from error
            if data:
                yield data
        at -= len(decompressor.unused_data)
    if at != end:
        raise UnreadableFrame("end elsewhere")


class FrameStream(io.RawIOBase):
    """The content of a stream of frames, in as much memory as is read at once.

    Reading raises `OSError` for damage, and `EOFError` for a truncated frame.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._frame: ZstdDecompressor | None = None  # that has begun
        self._rest = b""  # of what was read, behind a frame

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        made = b""
        while not made:
            data = b""
            if self._frame is None or self._frame.needs_input:
                data, self._rest = self._rest or self._stream.read(_STEP), b""
                if not data:
                    if self._frame is not None:
                        raise EOFError("it ends within a compressed frame")
                    return 0
            frame = self._frame = self._frame or ZstdDecompressor()
            try:
                made = frame.decompress(data, len(into))
            except ZstdError as error:
                raise OSError(str(error)) from error
            if frame.eof:
                self._frame, self._rest = None, frame.unused_data
        into[: len(made)] = made
        return len(made)


def content_start(read: Read, most: int, dictionaries: Dictionaries | None = None) -> bytes:
    """Return the first bytes of a file's content, at most `most`, as far as they are sound.

    Raises `UnreadableFrame`.
    """
    dictionaries = dictionaries or Dictionaries.read(read)
    content, at = b"", 0
    while len(content) < most:
        while (skipped := skippable_end(read, at)) >= 0:
            at = skipped
        data = read(at, LONGEST_BLOCK + LONGEST_HEADER + 3)
        header = frame_header(data)
        if header is None:
            break
        try:
            decompressor = dictionaries.decompressor(header)
            content += decompressor.decompress(data, most - len(content))
        except ZstdError:
            break
        if not decompressor.eof:
            break
        at += len(data) - len(decompressor.unused_data)
    return content


def give_dictionaries(paths: Sequence[str]) -> None:
    """Set `VARIABLE` to these files; raises `UnreadableFrame` if one holds no dictionary."""
    if wrong := next((path for path in paths if os.pathsep in path), None):
        raise UnreadableFrame(f"{wrong} has a colon in its name")
    text = os.pathsep.join(paths)
    _given(text)
    os.environ[VARIABLE] = text


class Unpacked(NamedTuple):
    """The content of the frames of a record."""

    data: bytes
    stored: int  # bytes of the frames


def unpack(
    data: bytes,
    dictionaries: Dictionaries,
    most: int,
    record_length: RecordLength,
    *,
    ended: bool = False,
) -> Unpacked | None:
    """Return the content of the first frame of `data`, and of those that its record goes on in.

    None if the frames do not end in `data`, or if their content is longer than `most` bytes.
    `ended`: the container ends with `data`. Raises `UnreadableFrame`.
    """
    found: Unpacked | None = None
    view, whole, at, wanted, complete = memoryview(data), bytearray(), 0, -1, False
    while True:
        while (
            skipped := skippable_end(lambda offset, count: data[offset : offset + count], at)
        ) >= 0:
            at = skipped
        start = data[at : at + LONGEST_HEADER]
        if len(start) < LONGEST_HEADER and not ended and frame_header(start) is None:
            return None
        if found is not None and not start.startswith(MAGIC):
            return found
        limit = LINE_ENDS if complete else most - len(whole)
        try:
            text, stored, cut = _unpack_frame(view[at:], dictionaries, limit)
        except UnreadableFrame:
            if complete:
                return found
            raise
        if stored < 0 and (cut or not complete):
            return found if ended else None
        if complete and (stored < 0 or text.strip(b"\r\n")):
            return found  # something else than the line ends of the record
        if found is not None and wanted < 0 and is_header(text):
            return found
        whole += text
        at += stored
        if not text and (complete or found is not None):
            continue
        wanted = record_length(bytes(whole)) if wanted < 0 else wanted
        complete = 0 < wanted <= len(whole)
        if found is None or (complete and not whole[wanted:].strip(b"\r\n")):
            found = Unpacked(bytes(whole), at)
        elif complete:
            return found
        if not wanted or (complete and len(whole) >= wanted + LINE_ENDS):
            return found


def _unpack_frame(
    data: memoryview, dictionaries: Dictionaries, most: int
) -> tuple[bytes, int, bool]:
    """Return the content of the frame that begins `data`, its bytes, and whether it is cut.

    The bytes are -1 if it is cut or its content is longer than `most`. Raises `UnreadableFrame`.
    """
    header = frame_header(bytes(data[:LONGEST_HEADER]))
    with suppress(ZstdError):  # it is cut, or damaged
        data = data[: get_frame_size(data)]  # what is behind it would be copied for each frame
    if header is None:
        raise UnreadableFrame("the header of its zstd frame is damaged")
    try:
        decompressor = dictionaries.decompressor(header)
        text = decompressor.decompress(data, most + 1)
    except ZstdError as error:
        raise UnreadableFrame(f"its zstd frame is damaged: {error}") from error
    except UnreadableFrame as error:
        raise UnreadableFrame(f"its zstd frames {error}") from error
    if decompressor.eof and len(text) <= most:
        return text, len(data) - len(decompressor.unused_data), False
    return text, -1, not decompressor.eof and decompressor.needs_input
