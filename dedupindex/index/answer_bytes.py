"""The answer to a plain question straight from its cell: no `Capture` is made, no JSON encoded.

A lookup costs a few microseconds, most of them in making Python objects of a cell and JSON of the
objects. Nine lookups in ten of a crawl are one of two plain cases: nothing has the digest, or the
first capture of the digest has exactly the URL that was asked for. `PlainAnswers` writes these two
down as bytes and leaves every other question, by returning None, to `lookup.find`, to which a
property test holds it equal.
"""

from __future__ import annotations

import struct
from binascii import hexlify
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import lmdb
import orjson

from dedupindex.digest import EMPTY, Digest, Spelling, sha1_of_base32
from dedupindex.errors import IndexUnavailable
from dedupindex.index.cells import ALGORITHMS, ALSO, UNKNOWN_OFFSET, UNKNOWN_SIZE
from dedupindex.index.mimes import MIMES
from dedupindex.index.urlpack import unpack

_Text = TypeVar("_Text", str, bytes)

NONE = b'{"duplicate":false}'
"""The answer when there is no original."""

BROKEN = (struct.error, IndexError, KeyError, ValueError)
"""What decoding flipped bits raises."""

_HEAD = struct.Struct(">BBHIIBIIB")
_GROUPS = struct.Struct("8s4s4s4s12s")  # of the 32 hex digits of a UUID
_SHA1 = bytes([ALGORITHMS.index("sha1")])
_EMPTY = _SHA1 + next(digest.raw for digest in EMPTY if digest.algorithm == "sha1")
_HEX_DIGITS = frozenset("0123456789abcdef")
_SPELLED_AS = {37: Spelling(1, 0).code, 45: Spelling(1, 2).code}  # length of the text -> code
_OF_RECORD, _UUID, _REVISIT = 32, 16, 3
_NOT_PLAIN = 0x40 | 0x80  # flags: extras follow; several entries
_BEGINNING = b'{"duplicate":true,"match":"exact_url","original":{"url":'
_EVIDENCE = [f',"evidence":"{name}"}}}}' for name in ("record", "row", "revisit")]
_MIMES = [orjson.dumps(mime.decode() or None).decode() for mime in MIMES]
_KEPT = 200_000  # of each kind of text that is made once: days, times of day, places


def sought(text: str) -> bytes | None:
    """What the keys begin with for a SHA-1 as crawlers write it; None leaves it to `Digest`."""
    if not text.startswith("sha1:"):
        return None
    if len(text) == 37:
        try:
            return _SHA1 + sha1_of_base32(text[5:].encode())
        except ValueError:
            return None
    if len(text) == 45 and _HEX_DIGITS.issuperset(text[5:]):
        return _SHA1 + bytes.fromhex(text[5:])
    return None


class PlainView(Protocol):
    """What a view has that can do this; others are asked through `lookup`."""

    def plain(self) -> PlainAnswers | None: ...
    def cursor(self) -> Any: ...


class PlainAnswers:
    """Answers plain questions to one LMDB file, in any number of threads.

    The keys of the index must end with the hashes of urlkey and URL: then none of the strategies
    prefers another capture to one of the exact URL.
    """

    def __init__(self, env: Any, captures: Any, name_of: Callable[[int], str]) -> None:
        self._begin, self._captures, self._name_of = env.begin, captures, name_of
        self._places: dict[int, str] = {}
        self._days: dict[int, bytes] = {}
        self._times: dict[int, bytes] = {}

    def one(self, prefix: bytes, text: str, url: str) -> bytes | None:
        """As `answer`, in a read transaction of its own. Raises `IndexUnavailable`."""
        try:
            txn = self._begin(db=self._captures)
            try:
                return self.answer(txn.cursor(), prefix, text, url)
            finally:
                txn.abort()
        except BROKEN:
            return None  # asked the other way, it will say what is damaged
        except lmdb.Error as error:
            raise IndexUnavailable(f"the index cannot be read: {error}") from error

    def answer(self, cursor: Any, prefix: bytes, text: str, url: str) -> bytes | None:
        """The JSON of `lookup.as_json` for an exact hit or a miss; None for any other case.

        `prefix` is `sought` of the digest's `text`; `url` is neither empty nor in angle brackets.
        Raises `BROKEN` for a cell that is damaged.
        """
        if not cursor.set_range(prefix):
            return NONE
        key, cell = cursor.item()
        if not key.startswith(prefix):
            return NONE
        flags, spelling, high, low, size, far, near, container, mime = _HEAD.unpack_from(cell)
        if flags & _NOT_PLAIN or spelling & ALSO or mime == 255 or flags & 3 == _REVISIT:
            return None
        if flags & _UUID:
            if unpack(cell[38:]) != url.encode() or prefix == _EMPTY:
                return None
            record = b'","record_id":"urn:uuid:%b-%b-%b-%b-%b","digest":"' % _GROUPS.unpack(
                hexlify(cell[22:38])
            )
        else:
            if unpack(cell[22:]) != url.encode() or prefix == _EMPTY:
                return None
            record = b'","record_id":null,"digest":"'
        if spelling != _SPELLED_AS[len(text)]:
            text = Digest("sha1", prefix[1:]).spelled(Spelling.from_code(spelling & 0x77))
        known: int | str = "null" if size == UNKNOWN_SIZE else size
        sizes = f'{known},"record_size":null'
        if flags & _OF_RECORD:
            sizes = f'null,"record_size":{known}'
        offset: int | str = far << 32 | near
        if offset == UNKNOWN_OFFSET:
            offset = "null"
        place = container << 8 | mime
        place_text = self._places.get(place) or self._place(place)
        rest = f'{text}","size":{sizes}{place_text}{offset}{_EVIDENCE[flags & 3]}'
        day, moment = divmod(high << 32 | low, 1_000_000)
        date = self._days.get(day) or self._day(day)
        clock = self._times.get(moment) or self._time(moment)
        return b"".join((_BEGINNING, orjson.dumps(url), date, clock, record, rest.encode()))

    def _day(self, number: int) -> bytes:
        text = f"{number:08}"
        return _keep(self._days, number, f',"date":"{text[:4]}-{text[4:6]}-{text[6:]}T'.encode())

    def _time(self, number: int) -> bytes:
        text = f"{number:06}"
        return _keep(self._times, number, f"{text[:2]}:{text[2:4]}:{text[4:]}Z".encode())

    def _place(self, number: int) -> str:
        """What follows the size: media type, status and container, up to the offset."""
        container = "null"
        if number >> 8:
            shown = self._name_of(number >> 8).encode("utf-8", "surrogateescape")
            container = orjson.dumps(shown.decode("utf-8", "backslashreplace")).decode()
        text = f',"mime":{_MIMES[number & 255]},"status":200,"container":{container},"offset":'
        return _keep(self._places, number, text)


def _keep(texts: dict[int, _Text], number: int, text: _Text) -> _Text:
    if len(texts) >= _KEPT:
        texts.clear()
    texts[number] = text
    return text
