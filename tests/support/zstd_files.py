"""Archives of zstd frames, as wget-AT and other writers make them, and as they should not be."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

import zstandard

EMPTY_FRAME = zstandard.ZstdCompressor(write_checksum=True).compress(b"")


def zst(
    data: bytes, words: bytes = b"", level: int = 3, *, checksum: bool = True, size: bool = True
) -> bytes:
    """A frame, compressed with the dictionary `words` unless that is empty."""
    compressor = zstandard.ZstdCompressor(
        level=level,
        dict_data=zstandard.ZstdCompressionDict(words) if words else None,
        write_checksum=checksum,
        write_content_size=size,
    )
    if size:
        return compressor.compress(data)
    stream = compressor.compressobj()
    return stream.compress(data) + stream.flush()


def with_window(data: bytes, log: int) -> bytes:
    """A frame that needs a window of 2 to the power of `log` bytes."""
    parameters = zstandard.ZstdCompressionParameters(window_log=log, write_checksum=True)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return stream.compress(data) + stream.flush()


def raw_frame(data: bytes) -> bytes:
    """A frame without checksum of uncompressed blocks, RFC 8878 section 3.1.1."""
    header = b"\x28\xb5\x2f\xfd" + bytes([0xA0]) + len(data).to_bytes(4, "little")
    size = 1 << 17
    blocks = [data[at : at + size] for at in range(0, max(len(data), 1), size)]
    numbers = [len(block) << 3 | (number == len(blocks) - 1) for number, block in enumerate(blocks)]
    return header + b"".join(
        number.to_bytes(3, "little") + block for number, block in zip(numbers, blocks, strict=True)
    )


def skippable(data: bytes, kind: int = 0) -> bytes:
    """A skippable frame; of `kind` 13 it is a dictionary frame."""
    return bytes([0x50 + kind]) + b"\x2a\x4d\x18" + len(data).to_bytes(4, "little") + data


@cache
def trained(seed: int = 0) -> bytes:
    """A dictionary of records like those of `warc_cases`; another one for each `seed`."""
    texts = [
        b"WARC/1.0\r\nWARC-Type: response\r\nWARC-Record-ID: <urn:uuid:%d>\r\n" % (number + seed)
        + b"WARC-Target-URI: http://example.com/%d\r\nContent-Length: %d\r\n\r\n" % (number, seed)
        + b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n"
        for number in range(500)
    ]
    return zstandard.train_dictionary(2048, texts, dict_id=40_000 + seed).as_bytes()


def dictionary_frame(words: bytes, *, compressed: bool = False) -> bytes:
    return skippable(zst(words) if compressed else words, 13)


def write_zst(path: Path, records: Iterable[bytes], words: bytes = b"") -> Path:
    """A file with a frame for each record, and the dictionary `words` unless that is empty."""
    path.parent.mkdir(parents=True, exist_ok=True)
    start = dictionary_frame(words, compressed=True) if words else b""
    path.write_bytes(start + b"".join(zst(record, words) for record in records))
    return path
