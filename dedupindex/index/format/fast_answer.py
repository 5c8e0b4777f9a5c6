"""Answer plain lookups with JSON made directly of a cell, without a `Capture` or a JSON encoder.

Nine of ten lookups of a crawl are plain: no capture has the digest, or one of exactly the URL has
it. `PlainAnswers` answers these, and returns None for any other lookup, which is left to
`lookup.decide`; a property test compares the two. Calls are the cost here, so some are inlined.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

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

NONE = b'{"duplicate":false}'  # the answer when there is no original
UNWRITABLE = re.compile(rb"[\x00-\x1f\x7f]")  # in a header line: it could end the line
BROKEN = (struct.error, IndexError, KeyError, ValueError)  # raised by decoding damaged entries


class _Template(NamedTuple):
    """The parts of an answer that entries of the same flags, spelling and media type share."""

    plain: bool
    url_at: int = 0  # offset of the URL in an entry
    uuid: bool = False
    letters: int = 0  # of a digest in this spelling
    spelling: Spelling = Spelling(0, 0)
    label: str = ""  # of the digest
    sizes: str = ""  # up to the size
    rest: str = ""  # between size and container
    end: str = ""  # after the offset


_HEAD = struct.Struct(">HHIIBIIB")  # an entry's, its flags and spelling as one number
_SHORTEST = _HEAD.size + SEAL  # bytes of a stored original
_SHA1 = bytes([ALGORITHMS.index("sha1")])
# The ends of digests that `lookup` refuses or warns of: one of two billion others has them, too.
_LAST_BITS = (1 << 8 * len(CUT)) - 1
_NEVER = (CUT, next(digest.raw[-len(CUT) :] for digest in EMPTY if digest.algorithm == "sha1"))
_NEVER_BITS = tuple(int.from_bytes(last) for last in _NEVER)
_HEX_DIGITS = frozenset("0123456789abcdef")
_BASE32, _HEX = 0, 2  # encodings of a `Spelling`
_LETTERS = {_BASE32: 32, _HEX: 40}  # of a digest without its label
_OF_RECORD, _UUID, _REVISIT = 32, 16, 3
_NOT_PLAIN = 0x40 | 0x80  # flags: extras follow; several entries
_EVIDENCE = ("record", "row", "revisit")
_URLKEY_HASH = slice(21, 25)  # of a key whose digest is a SHA-1
_MINUTE = 10_000  # divides the digits of a date: day and hour, then minutes and seconds
_LAST_HOUR = 9999_12_31_23
_MAX_TEMPLATES = 4096


def sha1_prefix(spelled: str) -> bytes | None:
    """Return the beginning of the keys of a SHA-1 without label; None: `Digest` must parse it."""
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


class PlainHit(NamedTuple):
    """An original of status 200 as the header lines of its revisit, and what statistics count."""

    url: bytes
    urlkey_hash: bytes  # as in keys
    lines: bytes
    size: int  # bytes of payload, -1 if it is not known
    mime: bytes


NO_HIT = PlainHit(b"", b"", b"", -1, b"")


class PlainAnswers:
    """Answers plain lookups from one LMDB file, in any number of threads.

    The index must have canonical URLs: then every strategy prefers a capture of the exact URL.
    """

    def __init__(self, env: Any, captures: Any, keys: Keys, name_of: Callable[[int], str]) -> None:
        self._begin, self._captures, self._name_of = env.begin, captures, name_of
        self._keys = keys
        self._templates: dict[int, _Template] = {}
        self._containers = Cache[int, str](20 * MEGABYTE)
        self._hours = Cache[int, str](4 * MEGABYTE)
        self._minutes: dict[int, str] = {}  # at most 3,660

    def one(self, prefix: bytes, spelled: str, url: str, covers: int = 0) -> bytes | None:
        """Like `answer`, in a read transaction of its own; raises `IndexUnavailable`."""
        try:
            txn = self._begin(db=self._captures)
            try:
                return self.answer(txn.cursor(), prefix, spelled, url, covers)
            finally:
                txn.abort()
        except BROKEN:
            return None  # the full lookup reports the damage
        except lmdb.Error as error:
            raise IndexUnavailable(f"the index cannot be read: {error}") from error

    def answer(
        self, cursor: Any, prefix: bytes, spelled: str, url: str, covers: int = 0
    ) -> bytes | None:
        """Return the JSON of an exact hit or of a miss; None for any other case.

        `prefix` is the `sha1_prefix` of `spelled`; `url` is neither empty nor in angle brackets;
        `covers` as in `Covers`, 0 for any. Raises `BROKEN` for a damaged cell.
        """
        if not cursor.set_range(prefix):
            return NONE
        key, cell = cursor.item()
        if not key.startswith(prefix):
            return NONE
        answer = self._render(key, cell, prefix, spelled, url, covers)
        if answer is None:
            key = self._keys.key_of(Digest("sha1", prefix[1:]), url.encode())
            if cursor.set_key(key):
                answer = self._render(key, cursor.value(), prefix, spelled, url, covers)
        return answer

    def hit(self, prefix: bytes, url: bytes, encoding: int, covers: int = 0) -> PlainHit | None:
        """Return the only capture of a digest, or that of exactly `url`; None for any other case.

        `encoding`: of the digest in the query, which an original must share. A digest that nothing
        has gives `NO_HIT`. Container names are not read, as the lines have none. Raises `BROKEN`
        for a damaged cell, and `IndexUnavailable`.
        """
        try:
            txn = self._begin(db=self._captures)
            try:
                return self._hit_in(txn.cursor(), prefix, url, encoding, covers)
            finally:
                txn.abort()
        except lmdb.Error as error:
            raise IndexUnavailable(f"the index cannot be read: {error}") from error

    def _hit_in(
        self, cursor: Any, prefix: bytes, url: bytes, encoding: int, covers: int
    ) -> PlainHit | None:
        if not cursor.set_range(prefix):
            return NO_HIT
        key, cell = cursor.item()
        if not key.startswith(prefix):
            return NO_HIT
        more = cursor.next() and cursor.key().startswith(prefix)
        hit = self._sound_hit(key, cell, encoding, covers)
        if hit is not None and (not more or hit.url == url):
            return hit
        if more:
            key = self._keys.key_of(Digest("sha1", prefix[1:]), url)
            if cursor.set_key(key):
                hit = self._sound_hit(key, cursor.value(), encoding, covers)
                if hit is not None and hit.url == url:
                    return hit
        return None

    def _sound_hit(self, key: bytes, cell: bytes, encoding: int, covers: int) -> PlainHit | None:
        if crc32(cell, crc32(key)) != SOUND:
            return None  # the full lookup reports the damage
        return self.hit_of(key, cell[:-SEAL], encoding, covers)

    def hit_of(self, key: bytes, cell: bytes, encoding: int, covers: int) -> PlainHit | None:
        """Return the capture of a cell under `key` if it is plain, else None."""
        if len(cell) < _HEAD.size:
            return None  # a tombstone
        kind, high, low, size, _, _, _, mime = _HEAD.unpack_from(cell)
        flags, own = kind >> 8, kind >> 10 & 3
        if flags & _NOT_PLAIN or flags & 3 == _REVISIT or mime == 255 or size == SIZE_IN_EXTRAS:
            return None
        if kind & ALSO or kind & 15 != encoding or (covers and own and not covers & own):
            return None
        packed = cell[38:] if flags & _UUID else cell[22:]
        url = unpack(packed)
        if not packed[0] & SIXES and UNWRITABLE.search(url):
            return None  # the full lookup reports the damage
        hour, minute = divmod(high << 32 | low, _MINUTE)
        date = self._hours.get(hour) or self._hour(hour)
        time = self._minutes.get(minute) or self._minute(minute)
        record = ""
        if flags & _UUID:
            uuid = cell[22:38].hex()
            record = (
                f"WARC-Refers-To: <urn:uuid:{uuid[:8]}-{uuid[8:12]}-{uuid[12:16]}-{uuid[16:20]}"
                f"-{uuid[20:]}>\r\n"
            )
        lines = (
            f"{record}WARC-Refers-To-Target-URI: {url.decode('latin-1')}\r\n"
            f"WARC-Refers-To-Date: {date}{time}\r\n"
        ).encode("latin-1")
        if flags & _OF_RECORD or size == UNKNOWN_SIZE:
            size = -1
        return PlainHit(url, key[_URLKEY_HASH], lines, size, MIMES[mime])

    def _render(
        self, key: bytes, cell: bytes, prefix: bytes, spelled: str, url: str, covers: int
    ) -> bytes | None:
        """Return the answer of a stored cell if it is sound, plain and of `url`."""
        if len(cell) < _SHORTEST:
            return None  # a tombstone
        kind, high, low, size, far, near, container, mime = _HEAD.unpack_from(cell)
        template = self._templates.get(kind << 8 | mime)
        if template is None:
            if len(self._templates) >= _MAX_TEMPLATES:
                self._templates.clear()
            template = self._templates[kind << 8 | mime] = _template(kind >> 8, kind & 255, mime)
        plain, url_at, uuid, letters, spelling, label, sizes, rest, end = template
        if covers and (own := kind >> 10 & 3) and not covers & own:
            return None
        packed = cell[url_at:-SEAL]
        if not plain or size == SIZE_IN_EXTRAS or unpack(packed) != url.encode():
            return None
        if crc32(cell, crc32(key)) != SOUND:
            return None  # the full lookup reports the damage
        json_url = url if packed[0] & SIXES else orjson.dumps(url)[1:-1].decode()
        hour, minute = divmod(high << 32 | low, _MINUTE)
        date = self._hours.get(hour) or self._hour(hour)
        time = self._minutes.get(minute) or self._minute(minute)
        record = "null"
        if uuid:
            hex_ = cell[22:38].hex()
            record = f'"urn:uuid:{hex_[:8]}-{hex_[8:12]}-{hex_[12:16]}-{hex_[16:20]}-{hex_[20:]}"'
        if len(spelled) != letters:
            spelled = Digest("sha1", prefix[1:]).spelled(spelling._replace(label=0))
        bytes_ = "null" if size == UNKNOWN_SIZE else size
        name = self._containers.get(container) or self._container(container)
        offset = far << 32 | near
        at = "null" if offset == UNKNOWN_OFFSET else offset
        return (
            f'{{"duplicate":true,"match":"exact_url","original":{{"url":"{json_url}",'
            f'"date":"{date}{time}","record_id":{record},"digest":"{label}{spelled}",'
            f'{sizes}{bytes_}{rest}{name},"offset":{at}{end}'
        ).encode()

    def _minute(self, number: int) -> str:
        text = self._minutes[number] = f":{number // 100:02}:{number % 100:02}Z"
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
            raise KeyError(number) from error  # the full lookup reports the damage
        text = orjson.dumps(name.decode("utf-8", "backslashreplace") or None)
        return self._containers.keep(number, text.decode())


def _template(flags: int, spelled: int, mime: int) -> _Template:
    spelling = Spelling.from_code(spelled & 0x7F)
    if flags & _NOT_PLAIN or flags & 3 == _REVISIT or spelled & ALSO or mime == 255:
        return _Template(plain=False)
    if spelling.encoding not in _LETTERS:
        return _Template(plain=False)
    media_type = orjson.dumps(MIMES[mime].decode() or None).decode()
    sizes, rest = '"size":', f',"record_size":null,"mime":{media_type},"status":200,"container":'
    if flags & _OF_RECORD:
        sizes, rest = '"size":null,"record_size":', rest.replace(',"record_size":null', "")
    return _Template(
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
