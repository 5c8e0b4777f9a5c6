"""The digest filter: which payload digests an index cannot have; docs/digest-filter.md.

A filter is a list of parts. Each part is a split-block Bloom filter as in the specification of
Apache Parquet, in a file that never changes and is named by its checksum:

    0   magic        8 bytes, b"dedupflt"
    8   version      u32, 1
    12  blocks       u32, at least 1
    16  digests      u64, how many distinct ones were added
    24  algorithms   u32, bits of those that it has: 1 md5, 2 sha1, 3 sha256, 4 sha512, 5 blake3
    28  reserved     u32, 0
    32  generation   u64, greater than that of each part written before
    40  reserved     24 bytes, 0
    64  blocks       32 bytes each: eight u32
    -   checksum     SHA-256 of all bytes before; in hexadecimal digits it is the part's id

Numbers are little-endian. A digest is looked for by its first eight bytes: the first four choose
the block, the other four a bit of each of its words. Digests in ascending order are in ascending
blocks, so a part of any size is written in one pass, in little memory.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from base64 import b64decode
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from dedupindex.errors import Damaged

VERSION = 1
BITS = 12  # of a part for each digest: one new digest in 180 is then taken for a known one
BLOCK, HEADER, CHECKSUM = 32, 64, 32  # bytes
PIECE = 4 << 20  # bytes of a part in one answer of a server
ALGORITHMS = {
    "md5": (1, 16),
    "sha1": (2, 20),
    "sha256": (3, 32),
    "sha512": (4, 64),
    "blake3": (5, 32),
}
"""Label -> number in a header, and bytes of the digest."""

_MAGIC = b"dedupflt"
_HEAD = struct.Struct("<8sIIQIIQ24x")
_SALTS = (
    *(0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D),
    *(0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31),
)
_LANES = sum(salt << (64 * word) for word, salt in enumerate(_SALTS))
_MASKS = [[1 << (32 * word + (low & 31)) for low in range(256)] for word in range(8)]
_WRITTEN = 1 << 20  # bytes of blocks in memory while a part is written


def key_of(raw: bytes) -> int:
    """Return the key of a digest, by its raw bytes."""
    return int.from_bytes(raw[:8], "big")


def mask_of(key: int) -> int:
    """Return the bits of a key in its block, as a little-endian number of 256 bits."""
    # One product has those of the key's low half with all salts; bits 27 to 31 of each count.
    a, b, c, d, e, f, g, h = ((key & 0xFFFFFFFF) * _LANES >> 27).to_bytes(64, "little")[::8]
    first, second, third, fourth, fifth, sixth, seventh, eighth = _MASKS
    return (
        first[a] | second[b] | third[c] | fourth[d] | fifth[e] | sixth[f] | seventh[g] | eighth[h]
    )


class KnownKey(NamedTuple):
    """A digest, as parts are searched for it."""

    key: int
    mask: int
    algorithm: int  # its bit in a header

    @classmethod
    def of(cls, algorithm: str, raw: bytes) -> KnownKey:
        key = key_of(raw)
        return cls(key, mask_of(key), 1 << ALGORITHMS[algorithm][0])


class PartInfo(NamedTuple):
    """A part, as a manifest lists it."""

    id: str
    size: int  # bytes of the file
    digests: int
    generation: int


class Part:
    """The content of a part, in memory or mapped; immutable, for any number of threads."""

    def __init__(self, content: bytes | mmap.mmap, part_id: str = "") -> None:
        """Raises `Damaged` unless everything in it is right, and it is the part of an id."""
        end = len(content) - CHECKSUM
        if end < HEADER or content[:8] != _MAGIC:
            raise Damaged("this is no part of a digest filter")
        with memoryview(content) as view:
            found = sha256(view[:end]).hexdigest()
        _, version, blocks, digests, algorithms, _, generation = _HEAD.unpack(content[:HEADER])
        if found != content[end:].hex() or found != (part_id or found):
            raise Damaged(f"part {part_id or found} of a digest filter does not have its checksum")
        if version != VERSION or not blocks or end != HEADER + BLOCK * blocks:
            raise Damaged(f"part {found} of a digest filter has another version or length")
        self.info = PartInfo(found, len(content), digests, generation)
        self.blocks, self.algorithms = blocks, algorithms
        self._content = content

    @classmethod
    def open(cls, path: Path, part_id: str = "") -> Part:
        """Map a file; raises `Damaged`, `OSError`."""
        with open(path, "rb") as stream:
            if os.fstat(stream.fileno()).st_size < HEADER + CHECKSUM:
                raise Damaged(f"{path} is cut")
            return cls(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ), part_id)

    def may_have(self, sought: KnownKey) -> bool:
        """Return False if the digest was not added."""
        key, mask, algorithm = sought
        if not self.algorithms & algorithm:
            return False
        at = HEADER + BLOCK * ((key >> 32) * self.blocks >> 32)
        return int.from_bytes(self._content[at : at + BLOCK], "little") & mask == mask


class GrowingFilter:
    """Digests that are added one by one: tables of blocks, each twice as large as the one before.

    Threads may search it while one thread adds.
    """

    def __init__(self, first: int = 1 << 16) -> None:
        """`first`: bytes of the first table."""
        self._tables = [bytearray(first)]
        self._room = first * 8 // BITS
        self.size = 0

    def add(self, added: KnownKey) -> None:
        if not self._room:
            self._tables.append(bytearray(2 * len(self._tables[-1])))
            self._room = len(self._tables[-1]) * 8 // BITS
        table = self._tables[-1]
        at = BLOCK * ((added.key >> 32) * (len(table) // BLOCK) >> 32)
        block = int.from_bytes(table[at : at + BLOCK], "little") | added.mask
        table[at : at + BLOCK] = block.to_bytes(BLOCK, "little")
        self._room -= 1
        self.size += 1

    def may_have(self, sought: KnownKey) -> bool:
        """Return False if the digest was not added."""
        for table in self._tables:
            at = BLOCK * ((sought.key >> 32) * (len(table) // BLOCK) >> 32)
            if int.from_bytes(table[at : at + BLOCK], "little") & sought.mask == sought.mask:
                return True
        return False


def write_part(
    stream: BinaryIO, keys: Iterable[int], capacity: int, algorithms: int, generation: int
) -> PartInfo:
    """Write the part of ascending keys to an empty stream that can be read, too.

    `capacity`: how many keys there are, or a few more. The caller forces it to disk.
    """
    blocks = min(-(-max(capacity, 1) * BITS // (8 * BLOCK)), 0xFFFFFFFF)
    stream.write(bytes(HEADER))
    count, at, block, written = 0, 0, 0, bytearray()
    for key in keys:
        place = (key >> 32) * blocks >> 32
        if place != at:
            written += block.to_bytes(BLOCK, "little") + bytes(BLOCK * (place - at - 1))
            at, block = place, 0
            if len(written) >= _WRITTEN:
                stream.write(written)
                written.clear()
        block |= mask_of(key)
        count += 1
    stream.write(written + block.to_bytes(BLOCK, "little"))
    for _ in range(blocks - at - 1):
        stream.write(bytes(BLOCK))
    stream.seek(0)
    stream.write(_HEAD.pack(_MAGIC, VERSION, blocks, count, algorithms, 0, generation))
    stream.seek(0)
    checksum = sha256()
    while data := stream.read(_WRITTEN):
        checksum.update(data)
    stream.write(checksum.digest())
    size = HEADER + BLOCK * blocks + CHECKSUM
    return PartInfo(checksum.hexdigest(), size, count, generation)


# --- manifest -----------------------------------------------------------------------------------


def manifest_json(parts: Iterable[PartInfo]) -> dict[str, Any]:
    """Return the manifest of a filter, as ``GET /digest-filter`` answers it."""
    rows = [
        {"id": part.id, "bytes": part.size, "digests": part.digests, "generation": part.generation}
        for part in parts
    ]
    return {"version": VERSION, "parts": rows, "digests": sum(row["digests"] for row in rows)}


def read_manifest(data: bytes) -> list[PartInfo]:
    """Return the parts of a manifest; raises `Damaged` if anything in it is doubtful."""
    try:
        content = json.loads(data)
        parts = [
            PartInfo(row["id"], row["bytes"], row["digests"], row["generation"])
            for row in content["parts"]
        ]
        numbers = [number for part in parts for number in part[1:]]
        if (
            content["version"] != VERSION
            or any(type(number) is not int or number < 0 for number in numbers)
            or any(len(bytes.fromhex(part.id)) != CHECKSUM for part in parts)
            or any(part.id != part.id.strip().lower() for part in parts)
        ):
            raise ValueError("another version, or an id or a number that is none")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise Damaged(f"the manifest of a digest filter cannot be read: {error!r}") from error
    return parts


# --- digests as text ----------------------------------------------------------------------------

_FROM, _TO = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", b"0123456789ABCDEFGHIJKLMNOPQRSTUV"
# Base32 to what `int` reads in base 32; it refuses the byte that all others become.
_BASE32 = bytes(_TO[_FROM.index(byte)] if byte in _FROM else 0x7E for byte in range(256))


def known_key(text: str) -> KnownKey | None:
    """Return the key of a digest that is written with its label, as `dedupindex.digest` reads it.

    Returns None for all that an index does not simply look up: an unknown label, another length,
    the end of a digest that was cut at a zero byte.
    """
    label, _, value = text.rpartition(":")
    algorithm = label.replace("-", "").lower()
    if algorithm not in ALGORITHMS or not value.isascii():
        return None
    size, unpadded = ALGORITHMS[algorithm][1], value.rstrip("=")
    try:
        if len(unpadded) == len(value) == 2 * size:
            raw = bytes.fromhex(value)
        elif len(unpadded) == -(-8 * size // 5):
            digits = unpadded.upper().encode("ascii").translate(_BASE32)
            raw = (int(digits, 32) >> 5 * len(digits) - 8 * size).to_bytes(size, "big")
        elif len(unpadded) == -(-4 * size // 3):
            raw = b64decode(unpadded + "=" * (-len(unpadded) % 4), validate=True)
        else:
            return None
    except ValueError:
        return None
    return KnownKey.of(algorithm, raw) if len(raw) == size and raw[-4:] != bytes(4) else None
