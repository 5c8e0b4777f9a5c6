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
    container_of,
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
    evidence: str = ""  # after the offset


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
    """A capture of status 200 whose entry has no extras, not rendered yet."""

    url: bytes
    date: int  # its 14 digits
    size: int  # bytes of payload, -1 if it is not known
    mime: bytes
    key: bytes
    cell: bytes  # without its checksum
    crawl: int = 0  # number of the crawl that reported it; 0: the index has it

    def urlkey_hash(self) -> bytes:
        """Return the hash of its urlkey, see `cells.urlkey_hash`."""
        return self.key[_URLKEY_HASH]

    def container(self) -> int:
        """Return the number of its container, in the index or the store of crawls."""
        return container_of(self.cell)


_URLKEY_HASH = slice(21, 25)  # of a key whose digest is a SHA-1
ANY_ENCODING = -1


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
        if crc32(cell, crc32(key)) != SOUND:
            return None  # the full lookup reports the damage
        answer = self._render(cell, -SEAL, prefix, spelled, url, covers)
        if answer is None:
            key = self._keys.key_of(Digest("sha1", prefix[1:]), url.encode())
            if cursor.set_key(key):
                cell = cursor.value()
                if crc32(cell, crc32(key)) == SOUND:
                    answer = self._render(cell, -SEAL, prefix, spelled, url, covers)
        return answer

    def hits(self, prefix: bytes, encoding: int, covers: int, most: int) -> list[PlainHit] | None:
        """Return the captures of a digest in the order of keys; None if they are not plain.

        None also for more than `most`. `encoding`: of the digest in the query, which an original
        must share. Raises `IndexUnavailable`, and `BROKEN` for a damaged cell.
        """
        found: list[PlainHit] = []
        try:
            txn = self._begin(db=self._captures)
            try:
                cursor = txn.cursor()
                more = cursor.set_range(prefix)
                while more:
                    key, cell = cursor.item()
                    if not key.startswith(prefix):
                        break
                    if crc32(cell, crc32(key)) != SOUND or len(found) == most:
                        return None  # the full lookup reports the damage
                    hit = hit_of(key, cell[:-SEAL], encoding, covers)
                    if hit is None:
                        return None
                    found.append(hit)
                    more = cursor.next()
            finally:
                txn.abort()
        except lmdb.Error as error:
            raise IndexUnavailable(f"the index cannot be read: {error}") from error
        return found

    def exact_hit(
        self, prefix: bytes, url: bytes, encoding: int, covers: int
    ) -> list[PlainHit] | None:
        """Return the capture of exactly `url` alone, None if it is not plain; raises as `hits`."""
        key = self._keys.key_of(Digest("sha1", prefix[1:]), url)
        try:
            txn = self._begin(db=self._captures)
            try:
                cell = txn.get(key)
            finally:
                txn.abort()
        except lmdb.Error as error:
            raise IndexUnavailable(f"the index cannot be read: {error}") from error
        if cell is None or crc32(cell, crc32(key)) != SOUND:
            return None  # the full lookup reports the damage
        hit = hit_of(key, cell[:-SEAL], encoding, covers)
        return [hit] if hit is not None and hit.url == url else None

    def lines(self, hit: PlainHit) -> bytes | None:
        """Return a hit as the header lines of its revisit, None if they cannot carry it."""
        url, digits, _, _, _, cell, _ = hit
        hour, minute = divmod(digits, _MINUTE)
        date = self._hours.get(hour) or self._hour(hour)
        time = self._minutes.get(minute) or self._minute(minute)
        record, at = "", 22
        if cell[0] & _UUID:
            hex_, at = cell[22:38].hex(), 38
            record = (
                f"WARC-Refers-To: <urn:uuid:{hex_[:8]}-{hex_[8:12]}-{hex_[12:16]}-{hex_[16:20]}"
                f"-{hex_[20:]}>\r\n"
            )
        if not cell[at] & SIXES and UNWRITABLE.search(url):
            return None  # the full lookup reports the damage
        return (
            f"{record}WARC-Refers-To-Target-URI: {url.decode('latin-1')}\r\n"
            f"WARC-Refers-To-Date: {date}{time}\r\n"
        ).encode("latin-1")

    def json(
        self,
        hit: PlainHit,
        prefix: bytes,
        spelled: str,
        match: str,
        *,
        container: str | None = None,
        committed: bool = True,
    ) -> bytes | None:
        """Return a hit as JSON; None if its URL is not UTF-8, or its digest has an odd spelling.

        `container`: the name of its file, None to read it from the index.
        """
        try:
            url = hit.url.decode()
        except UnicodeDecodeError:
            return None
        name = "" if container is None else _json_name(container)
        state = "" if committed else ',"committed":false'
        return self._render(hit.cell, None, prefix, spelled, url, 0, match, name, state)

    def _render(
        self,
        cell: bytes,
        end: int | None,
        prefix: bytes,
        spelled: str,
        url: str,
        covers: int,
        match: str = "exact_url",
        name: str = "",
        state: str = "",
    ) -> bytes | None:
        """Return the JSON of a cell if it is plain and of `url`, which ends at `end`.

        `match`, `name` (of its container, "" to read it from the index) and `state` are JSON.
        """
        if len(cell) < _SHORTEST:
            return None  # a tombstone
        kind, high, low, size, far, near, container, mime = _HEAD.unpack_from(cell)
        template = self._templates.get(kind << 8 | mime)
        if template is None:
            if len(self._templates) >= _MAX_TEMPLATES:
                self._templates.clear()
            template = self._templates[kind << 8 | mime] = _template(kind >> 8, kind & 255, mime)
        plain, url_at, uuid, letters, spelling, label, sizes, rest, evidence = template
        if covers and (own := kind >> 10 & 3) and not covers & own:
            return None
        packed = cell[url_at:end]
        if not plain or size == SIZE_IN_EXTRAS or unpack(packed) != url.encode():
            return None
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
        name = name or self._containers.get(container) or self._container(container)
        offset = far << 32 | near
        at = "null" if offset == UNKNOWN_OFFSET else offset
        return (
            f'{{"duplicate":true,"match":"{match}","original":{{"url":"{json_url}",'
            f'"date":"{date}{time}","record_id":{record},"digest":"{label}{spelled}",'
            f'{sizes}{bytes_}{rest}{name},"offset":{at}{evidence}{state}}}}}'
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
            name = self._name_of(number) if number else ""
        except Damaged as error:
            raise KeyError(number) from error  # the full lookup reports the damage
        return self._containers.keep(number, _json_name(name))


def hit_of(key: bytes, cell: bytes, encoding: int, covers: int, crawl: int = 0) -> PlainHit | None:
    """Return the capture of a cell without checksum under `key` if it is plain, else None.

    `encoding` as in `PlainAnswers.hits`. Raises `BROKEN` for a damaged cell.
    """
    if len(cell) < _HEAD.size:
        return None  # a tombstone
    kind, high, low, size, _, _, _, mime = _HEAD.unpack_from(cell)
    flags, own = kind >> 8, kind >> 10 & 3
    if flags & _NOT_PLAIN or flags & 3 == _REVISIT or mime == 255 or size == SIZE_IN_EXTRAS:
        return None
    if kind & ALSO or (encoding != ANY_ENCODING and kind & 15 != encoding):
        return None
    if covers and own and not covers & own:
        return None
    url = unpack(cell[38:] if flags & _UUID else cell[22:])
    if flags & _OF_RECORD or size == UNKNOWN_SIZE:
        size = -1
    return PlainHit(url, high << 32 | low, size, MIMES[mime], key, cell, crawl)


def _json_name(name: str) -> str:
    """Return the name of a file as JSON, null if it is empty."""
    shown = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return orjson.dumps(shown or None).decode()


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
        evidence=f',"evidence":"{_EVIDENCE[flags & 3]}"',
    )
