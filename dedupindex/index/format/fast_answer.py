"""The answer to a plain question straight from its cell: no `Capture` is made, no JSON encoded.

A lookup costs a few microseconds, most of them in making Python objects of a cell and JSON of the
objects. Nine lookups in ten of a crawl are one of two plain cases: nothing has the digest, or a
capture of the digest has exactly the URL that was asked for. `PlainAnswers` writes these two down
as bytes and leaves every other question, by returning None, to `lookup.find`, to which a property
test holds it equal. Method calls, not data, are what a lookup costs here; so a few stand inline.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import lmdb
import orjson
from isal.isal_zlib import crc32

from dedupindex.cache import MEGABYTE, Cache
from dedupindex.digest import CUT, EMPTY, FROM_BASE32, Digest, Spelling
from dedupindex.errors import Damaged, IndexUnavailable
from dedupindex.index.format.cells import (
    ALGORITHMS,
    ALSO,
    SEAL,
    SIZE_IN_EXTRAS,
    SOUND,
    UNKNOWN_OFFSET,
    UNKNOWN_SIZE,
    Keys,
)
from dedupindex.index.format.packing import MIMES, SIXES, unpack

NONE = b'{"duplicate":false}'
"""The answer when there is no original."""

BROKEN = (struct.error, IndexError, KeyError, ValueError)
"""What decoding flipped bits raises."""


class _Shape(NamedTuple):
    """What the answers to many entries have in common."""

    plain: bool
    url_at: int = 0  # where the URL of an entry begins
    uuid: bool = False
    letters: int = 0  # in a question that spells the digest as they do
    spelling: Spelling = Spelling(0, 0)
    label: str = ""  # of the digest
    sizes: str = ""  # before the size that is known
    rest: str = ""  # between size and container
    end: str = ""  # after the offset


_HEAD = struct.Struct(">HHIIBIIB")  # an entry's, its flags and spelling as one number
_SHORTEST = _HEAD.size + SEAL  # of what is stored of an original
_SHA1 = bytes([ALGORITHMS.index("sha1")])
# How digests end that `lookup` has to say more of, and one other in two billion.
_LAST_BITS = (1 << 8 * len(CUT)) - 1
_NEVER = (CUT, next(digest.raw[-len(CUT) :] for digest in EMPTY if digest.algorithm == "sha1"))
_NEVER_BITS = tuple(int.from_bytes(last) for last in _NEVER)
_HEX_DIGITS = frozenset("0123456789abcdef")
_BASE32, _HEX = 0, 2  # encodings of a `Spelling`
_LETTERS = {_BASE32: 32, _HEX: 40}  # of a digest without its label
_OF_RECORD, _UUID, _REVISIT = 32, 16, 3
_NOT_PLAIN = 0x40 | 0x80  # flags: extras follow; several entries
_EVIDENCE = ("record", "row", "revisit")
_MINUTE = 10_000  # minutes and seconds as digits: above them, a date has its day and hour
_LAST_HOUR = 9999_12_31_23
_SHAPES_KEPT = 4096  # of entries, by their flags, spelling and media type


def sought(spelled: str) -> bytes | None:
    """What the keys begin with for a SHA-1 as crawlers spell it; None leaves it to `Digest`."""
    if len(spelled) == 32:
        try:  # as `digest.sha1_of_base32` does
            number = int(spelled.encode().translate(FROM_BASE32), 32)
        except ValueError:
            return None
        if number & _LAST_BITS in _NEVER_BITS:
            return None
        return _SHA1 + number.to_bytes(20, "big")
    if len(spelled) == 40 and _HEX_DIGITS.issuperset(spelled):
        raw = bytes.fromhex(spelled)
        return None if raw.endswith(_NEVER) else _SHA1 + raw
    return None


class PlainView(Protocol):
    """A view of an index that has `PlainAnswers`."""

    def cursor(self) -> Any: ...


class PlainAnswers:
    """Answers plain questions to one LMDB file, in any number of threads.

    The keys of the index must end with the hashes of urlkey and URL: then none of the strategies
    prefers another capture to one of the exact URL.
    """

    def __init__(self, env: Any, captures: Any, keys: Keys, name_of: Callable[[int], str]) -> None:
        self._begin, self._captures, self._name_of = env.begin, captures, name_of
        self._keys = keys
        self._shapes: dict[int, _Shape] = {}
        self._containers = Cache[int, str](20 * MEGABYTE)
        self._hours = Cache[int, str](4 * MEGABYTE)
        self._moments: dict[int, str] = {}  # there are 3,660

    def one(self, prefix: bytes, spelled: str, url: str, covers: int = 0) -> bytes | None:
        """As `answer`, in a read transaction of its own. Raises `IndexUnavailable`."""
        try:
            txn = self._begin(db=self._captures)
            try:
                return self.answer(txn.cursor(), prefix, spelled, url, covers)
            finally:
                txn.abort()
        except BROKEN:
            return None  # asked the other way, it will say what is damaged
        except lmdb.Error as error:
            raise IndexUnavailable(f"the index cannot be read: {error}") from error

    def answer(
        self, cursor: Any, prefix: bytes, spelled: str, url: str, covers: int = 0
    ) -> bytes | None:
        """The JSON of `lookup.as_json` for an exact hit or a miss; None for any other case.

        `prefix` is `sought` of a digest that the question has `spelled` so, after its label; `url`
        is neither empty nor in angle brackets; `covers` as in `Covers`. Raises `BROKEN` for a cell
        that is damaged.
        """
        if not cursor.set_range(prefix):
            return NONE
        key, cell = cursor.item()
        if not key.startswith(prefix):
            return NONE
        answer = self._told(key, cell, prefix, spelled, url, covers)
        if answer is None:
            key = self._keys.of(Digest("sha1", prefix[1:]), url.encode())
            if cursor.set_key(key):
                answer = self._told(key, cursor.value(), prefix, spelled, url, covers)
        return answer

    def _told(
        self, key: bytes, cell: bytes, prefix: bytes, spelled: str, url: str, covers: int
    ) -> bytes | None:
        """The answer that a stored cell holds if it is sound, plain and of `url`."""
        if len(cell) < _SHORTEST:
            return None  # a mark
        kind, high, low, size, far, near, container, mime = _HEAD.unpack_from(cell)
        shape = self._shapes.get(kind << 8 | mime)
        if shape is None:
            if len(self._shapes) >= _SHAPES_KEPT:
                self._shapes.clear()
            shape = self._shapes[kind << 8 | mime] = _shape(kind >> 8, kind & 255, mime)
        plain, url_at, uuid, letters, spelling, label, sizes, rest, end = shape
        own = kind >> 10 & 3
        if covers and own and not covers & own:
            return None
        packed = cell[url_at:-SEAL]
        if not plain or size == SIZE_IN_EXTRAS or unpack(packed) != url.encode():
            return None
        if crc32(cell, crc32(key)) != SOUND:
            return None  # asked the other way, it is said to be damaged
        shown = url if packed[0] & SIXES else orjson.dumps(url)[1:-1].decode()
        hour, moment = divmod(high << 32 | low, _MINUTE)
        date = self._hours.get(hour) or self._hour(hour)
        clock = self._moments.get(moment) or self._moment(moment)
        record = _uuid(cell[22:38].hex()) if uuid else "null"
        if len(spelled) != letters:
            spelled = Digest("sha1", prefix[1:]).spelled(spelling._replace(label=0))
        known = "null" if size == UNKNOWN_SIZE else size
        name = self._containers.get(container) or self._container(container)
        offset = far << 32 | near
        place = "null" if offset == UNKNOWN_OFFSET else offset
        return (
            f'{{"duplicate":true,"match":"exact_url","original":{{"url":"{shown}",'
            f'"date":"{date}{clock}","record_id":{record},"digest":"{label}{spelled}",'
            f'{sizes}{known}{rest}{name},"offset":{place}{end}'
        ).encode()

    def _moment(self, number: int) -> str:
        text = self._moments[number] = f":{number // 100:02}:{number % 100:02}Z"
        return text

    def _hour(self, number: int) -> str:
        if number > _LAST_HOUR:
            raise ValueError("no date has more than 14 digits")
        text = f"{number:010}"
        return self._hours.keep(number, f"{text[:4]}-{text[4:6]}-{text[6:8]}T{text[8:]}")

    def _container(self, number: int) -> str:
        try:
            name = self._name_of(number).encode("utf-8", "surrogateescape") if number else b""
        except Damaged as error:
            raise KeyError(number) from error  # asked the other way, it is said
        shown = orjson.dumps(name.decode("utf-8", "backslashreplace") or None)
        return self._containers.keep(number, shown.decode())


def _shape(flags: int, spelled: int, mime: int) -> _Shape:
    """The shape of the answers to entries that begin so."""
    spelling = Spelling.from_code(spelled & 0x7F)
    if flags & _NOT_PLAIN or flags & 3 == _REVISIT or spelled & ALSO or mime == 255:
        return _Shape(plain=False)
    if spelling.encoding not in _LETTERS:
        return _Shape(plain=False)
    media_type = orjson.dumps(MIMES[mime].decode() or None).decode()
    sizes, rest = '"size":', f',"record_size":null,"mime":{media_type},"status":200,"container":'
    if flags & _OF_RECORD:
        sizes, rest = '"size":null,"record_size":', rest.replace(',"record_size":null', "")
    return _Shape(
        plain=True,
        url_at=38 if flags & _UUID else 22,
        uuid=bool(flags & _UUID),
        letters=_LETTERS[spelling.encoding],
        spelling=spelling,
        label=Digest("sha1", b"").spelled(spelling),
        sizes=sizes,
        rest=rest,
        end=f',"evidence":"{_EVIDENCE[flags & 3]}"}}}}',
    )


def _uuid(digits: str) -> str:
    """A record id as JSON."""
    return f'"urn:uuid:{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"'
