"""The answer to a plain question straight from its cell: no `Capture` is made, no JSON encoded.

A lookup costs a few microseconds, most of them in making Python objects of a cell and JSON of the
objects. Nine lookups in ten of a crawl are one of two plain cases: nothing has the digest, or the
first capture of the digest has exactly the URL that was asked for. `answer` writes these two down
as bytes and leaves every other question, by returning None, to `lookup.find`, to which a property
test holds it equal.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import orjson
from xxhash import xxh3_64_digest

from dedupindex.digest import EMPTY, SIZES, Digest, Spelling, sha1_of_base32
from dedupindex.index.cells import ALGORITHMS, ALSO, UNKNOWN_OFFSET, UNKNOWN_SIZE
from dedupindex.index.mimes import MIMES
from dedupindex.index.urlpack import unpack

NONE = b'{"duplicate":false}'
"""The answer when there is no original."""

_HEAD = struct.Struct(">BBHIIBIIB")
_SHA1 = bytes([ALGORITHMS.index("sha1")])
_BASE32, _HEX = Spelling(1, 0).code, Spelling(1, 2).code
_EMPTY = {_SHA1 + digest.raw for digest in EMPTY if digest.algorithm == "sha1"}
_HEX_DIGITS = frozenset("0123456789abcdef")
_NO_EXTRAS = 0x40 | 0x80  # flags: extras follow; several entries
_OF_RECORD, _UUID, _REVISIT = 32, 16, 3
_MIMES = [orjson.dumps(mime.decode() or None).decode() for mime in MIMES]
_EVIDENCE = ("record", "row", "revisit")
_UNKNOWN_FAR, _UNKNOWN_NEAR = UNKNOWN_OFFSET >> 32, UNKNOWN_OFFSET & 0xFFFFFFFF
_CONTAINERS_KEPT = 100_000


class Asked(NamedTuple):
    """A digest as it was asked for, ready to be sought."""

    prefix: bytes  # of its keys
    spelling: int  # code of the spelling of `text`
    text: str


def read(text: str) -> Asked | None:
    """The digest in `text` if it is a SHA-1 as crawlers write it; None leaves it to `Digest`."""
    if text[:5] != "sha1:":
        return None
    value = text[5:]
    if len(value) == 32:
        try:
            prefix = _SHA1 + sha1_of_base32(value.encode())
        except ValueError:
            return None
        spelling = _BASE32
    elif len(value) == 2 * SIZES["sha1"] and _HEX_DIGITS.issuperset(value):
        prefix, spelling = _SHA1 + bytes.fromhex(value), _HEX
    else:
        return None
    return None if prefix in _EMPTY else Asked(prefix, spelling, text)


class PlainView(Protocol):
    """What a view has that can do this; others are asked through `lookup`."""

    def answer_bytes(self, writer: Writer, asked: Asked, url: bytes) -> bytes | None: ...


class Writer:
    """Writes the answers of one index; keeps container names as JSON. Safe in several threads."""

    def __init__(self) -> None:
        self._containers: dict[int, str] = {0: "null"}

    def answer(
        self, cursor: Any, asked: Asked, url: bytes, name_of: Callable[[int], str]
    ) -> bytes | None:
        """The JSON of `lookup.as_json` for an exact hit or a miss; None for any other case.

        `cursor` is at the captures; `url` is not empty. Keys must end with the hashes of urlkey and
        URL: then none of the strategies prefers another capture to one of the exact URL.
        """
        prefix = asked.prefix
        if not cursor.set_range(prefix):
            return NONE
        key, cell = cursor.item()
        if not key.startswith(prefix):
            return NONE
        if key[-5:] != xxh3_64_digest(url)[:5]:
            return None
        flags, spelling, high, low, size, far, near, container, mime = _HEAD.unpack_from(cell)
        if flags & _NO_EXTRAS or spelling & ALSO or mime == 255 or flags & 3 == _REVISIT:
            return None
        at = 38 if flags & _UUID else 22
        if unpack(cell[at:]) != url:
            return None
        record = "null"
        if at == 38:
            text = cell[22:38].hex()
            record = f'"urn:uuid:{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"'
        known = "null" if size == UNKNOWN_SIZE else size
        sizes = (
            f'null,"record_size":{known}' if flags & _OF_RECORD else f'{known},"record_size":null'
        )
        offset = far << 32 | near
        date = f"{high << 32 | low:014}"
        try:
            quoted = orjson.dumps(url.decode()).decode()
        except UnicodeDecodeError:
            return None
        return (
            f'{{"duplicate":true,"match":"exact_url","original":{{"url":{quoted},"date":"{date[:4]}'
            f"-{date[4:6]}-{date[6:8]}T{date[8:10]}:{date[10:12]}:{date[12:]}Z"
            f'","record_id":{record},"digest":"{self._spelled(asked, spelling)}","size":{sizes},'
            f'"mime":{_MIMES[mime]},"status":200,"container":'
            f"{self._containers.get(container) or self._container(container, name_of)},"
            f'"offset":{"null" if offset == UNKNOWN_OFFSET else offset},'
            f'"evidence":"{_EVIDENCE[flags & 3]}"}}}}'
        ).encode()

    def _container(self, number: int, name_of: Callable[[int], str]) -> str:
        if len(self._containers) >= _CONTAINERS_KEPT:
            self._containers = {0: "null"}
        shown = name_of(number).encode("utf-8", "surrogateescape")  # as `original` does
        name = orjson.dumps(shown.decode("utf-8", "backslashreplace")).decode()
        self._containers[number] = name
        return name

    @staticmethod
    def _spelled(asked: Asked, spelling: int) -> str:
        if spelling == asked.spelling:
            return asked.text
        return Digest("sha1", asked.prefix[1:]).spelled(Spelling.from_code(spelling & 0x77))
