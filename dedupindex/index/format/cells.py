"""Encode keys, cells and entries: the bytes that every engine stores.

    key    algorithm | digest  | urlkey hash | URL hash        canonical and exact URLs indexed
           1 byte    | 16..64  | 4           | 5
           algorithm | digest  | URL hash (8)                  without canonical URLs
           algorithm | digest                                  digest only

One ordered keyspace serves every strategy: a digest is a range of keys, a urlkey of a digest a
range in it, an exact URL one key. Keys hold hashes, which may collide: the URL in the entry
decides, and a cell, the value of a key, holds all entries with that key.

    stored cell, then u32 CRC-32 of key and cell, little-endian (`sealed`)
    cell   entry, or 0x80 and then (u32 length, entry) for each of several
    entry  0      flags: bits 0-1 evidence, 2-3 covers, 4 UUID follows, 5 size is of the record,
                  6 extras follow, 7 in reserve, never an answer (SPARE)
           1      spelling of the digest; bit 7: under another digest of the same payload (ALSO);
                  bit 3: the entry was in the index before (BEFORE, only while entries are merged)
           2-7    date, its 14 digits as a number; a fraction is in the extras
           8-11   size        0xFFFFFFFF unknown, 0xFFFFFFFE in the extras
           12-16  offset      all ones unknown
           17-20  container   number of its `ContainerRef`, 0 unknown
           21     media type  index into MIMES, 0 unknown, 255 in the extras
           ..     record id   16 bytes, if it is a UUID
           ..     extras      u16 length of all, then (u8 tag, u16 length, bytes) each
           ..     URL         packed, to the end
    tombstone: the entry of a revisit or a refused record; it ends after the date. Flags: bits 0-1
           set, bit 2 the record itself was read (READ), bit 3 an original was purged (GONE); then
           the number of its container (4 bytes, 0: any) and the hash of its URL (8) follow

Numbers are big-endian, except for the checksum. `identity.FORMAT` is the version of this format.
"""

from __future__ import annotations

import re
import struct
from binascii import a2b_hex
from collections.abc import Callable, Iterator
from typing import NamedTuple

from isal.isal_zlib import crc32
from xxhash import xxh3_64_digest

from dedupindex.capture import Capture, Covers, Evidence
from dedupindex.digest import SIZES, Digest, Spelling
from dedupindex.errors import RESTORE_OR_BUILD, Damaged
from dedupindex.index.format.packing import MIME_CODES, MIMES, pack, unpack
from dedupindex.timestamps import date_of_digits, digits_of_date
from dedupindex.urlkey import urlkey

ALGORITHMS = ("", "md5", "sha1", "sha256", "sha512", "blake3")  # the place is the code
ALSO, BEFORE, SEVERAL, SPARE, READ, GONE = 0x80, 0x08, 0x80, 0x80, 0x04, 0x08
DEPENDENT = 0xFF  # first byte of a dependent, greater than that of any entry: they follow copies
UNKNOWN_SIZE, SIZE_IN_EXTRAS = 0xFFFFFFFF, 0xFFFFFFFE
UNKNOWN_OFFSET = 0xFFFFFFFFFF
_MOST_SIZE, _MOST_STATUS = (1 << 48) - 1, 0xFFFF  # greater ones are not known
LOW = 0xFFFFFFFF
SEAL = 4  # bytes of the checksum behind what is stored
SOUND = 0x2144DF1C  # CRC-32 of anything that ends with its own CRC-32

CODES = {name: bytes([code]) for code, name in enumerate(ALGORITHMS)}
HEAD = struct.Struct(">BBHIIBIIB")  # date and offset are split: struct has no 48 or 40 bits
_TOMBSTONE = struct.Struct(">BBHI")
_ITEM = struct.Struct(">BH")
_SHORT = struct.Struct(">H")
_LONG = struct.Struct(">I")
_CHECKSUM = struct.Struct("<I")  # little-endian, so that the CRC-32 of the whole is constant
UUID = re.compile(rb"urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_STATUS, _FRACTION, _RECORD_ID, _MIME, _SIZE, _ETAG, _MODIFIED, _OWN = range(1, 9)  # extras

_SPELLINGS = [Spelling.from_code(code) for code in range(128)]
_EVIDENCE, _COVERS = list(Evidence), list(Covers)
_LONGEST = 4096  # bytes of one extra
_EMPTY = Digest("sha1", b"")

DIGEST_KEY = [1] + [1 + SIZES[name] for name in ALGORITHMS[1:]]  # algorithm -> bytes in a key


def known_status(status: int) -> int:
    """Return a status, or 0, which is not known, if it has no room."""
    return status if 0 <= status <= _MOST_STATUS else 0


def sealed(key: bytes, value: bytes) -> bytes:
    """Return `value` followed by the checksum of key and value, as engines store it."""
    return value + _CHECKSUM.pack(crc32(value, crc32(key)))


def is_sound(key: bytes, stored: bytes) -> bool:
    """Return whether the checksum of a stored value is right."""
    return bool(crc32(stored, crc32(key)) == SOUND)


def unsealed(key: bytes, stored: bytes) -> bytes:
    """Return a stored value without its checksum; raises `Damaged` if that is wrong."""
    if crc32(stored, crc32(key)) != SOUND:
        raise damaged(key)
    return stored[:-SEAL]


def sealed_text(key: bytes, text: str) -> str:
    """Return text followed by "#" and the checksum of key and text in hexadecimal digits."""
    return f"{text}#{crc32(text.encode(), crc32(key)):08x}"


def unsealed_text(key: bytes, stored: str) -> str:
    """Return stored text without its checksum; raises `Damaged` if that is wrong."""
    text = stored[:-9]
    if sealed_text(key, text) != stored:
        raise damaged(key)
    return text


def damaged(key: bytes) -> Damaged:
    """Return the error for a stored value whose checksum is wrong."""
    return Damaged(
        f"what is stored under {key.hex()} is damaged (it does not have its checksum); "
        f"bin/index --check finds all such: {RESTORE_OR_BUILD}"
    )


class ContainerRef(NamedTuple):
    """What a container number stands for: a file by its name, and the crawl that stored it."""

    container: str
    crawl: str = ""


NOWHERE = ContainerRef("")  # number 0


class Keys(NamedTuple):
    """How an index makes keys: with exact and canonical URLs, exact URLs only, or neither."""

    url: bool = True
    canonical: bool = True

    def key_of(self, digest: Digest, url: bytes) -> bytes:
        """Return the key of a capture."""
        algorithm, raw = digest
        if self.canonical:
            found = xxh3_64_digest(urlkey(url))[:4] + xxh3_64_digest(url)[:5]
            return CODES[algorithm] + raw + found
        return CODES[algorithm] + raw + (xxh3_64_digest(url) if self.url else b"")

    def tail(self, url: bytes) -> bytes:
        """Return what follows the digest in all keys of a URL."""
        return self.key_of(_EMPTY, url)[1:]

    def lengths(self) -> list[int]:
        """Return the bytes of a whole key, by algorithm code."""
        tail = 9 if self.canonical else 8 if self.url else 0
        return [length + tail for length in DIGEST_KEY]


def digest_prefix(digest: Digest) -> bytes:
    """Return the beginning of all keys of a digest."""
    return CODES[digest.algorithm] + digest.raw


def canonical_prefix(digest: Digest, key: bytes) -> bytes:
    """Return the beginning of all keys of a digest and a urlkey."""
    return CODES[digest.algorithm] + digest.raw + urlkey_hash(key)


def urlkey_hash(key: bytes) -> bytes:
    """Return the hash of a urlkey as in the keys of an index with canonical URLs."""
    return xxh3_64_digest(key)[:4]


def split_key(key: bytes) -> tuple[bytes, bytes]:
    """Return the part of a key that is the digest's, and the rest."""
    end = DIGEST_KEY[key[0]]
    return key[:end], key[end:]


def digest_of_key(key: bytes) -> Digest:
    """Return the digest at the beginning of a key."""
    return Digest(ALGORITHMS[key[0]], key[1 : DIGEST_KEY[key[0]]])


def encode_revisit(capture: Capture, *, read: bool = False) -> bytes:
    """Return the tombstone of a revisit or refused record; `read`: not only a row of it was."""
    date = int(digits_of_date(capture.date))
    return _TOMBSTONE.pack(3 | READ if read else 3, capture.spelling.code, date >> 32, date & LOW)


def encode(capture: Capture, container: int, *, etag: bool = False, also: bool = False) -> bytes:
    """Return the entry of an original.

    `container`: the number of its container. `etag`: keep ETag and Last-Modified. `also`: the entry
    is stored under one of `capture.also` and holds the capture's own digest.
    """
    date, size, offset, record_id = capture.date, capture.size, capture.offset, capture.record_id
    digits = int(date[:19].translate(None, b"-T:"))
    flags = capture.evidence | capture.covers << 2 | (32 if capture.size_of_record else 0)
    mime = MIME_CODES.get(capture.mime, 255)
    uuid = extras = b""
    if record_id and UUID.fullmatch(record_id):
        flags |= 16
        uuid = a2b_hex(record_id[9:].replace(b"-", b""))
        record_id = b""
    plain = capture.status == 200 and not record_id and mime != 255 and len(date) == 20
    if size > _MOST_SIZE:
        size, capture = -1, capture._replace(size=-1)
    if not plain or size >= SIZE_IN_EXTRAS or etag or also:
        extras = _extras(capture, record_id, mime, etag, also)
        flags |= 64 if extras else 0
    if not 0 <= offset < UNKNOWN_OFFSET:
        offset = UNKNOWN_OFFSET
    head = HEAD.pack(
        flags,
        capture.spelling.code | (ALSO if also else 0),
        digits >> 32,
        digits & LOW,
        UNKNOWN_SIZE if size < 0 else min(size, SIZE_IN_EXTRAS),
        offset >> 32,
        offset & LOW,
        container,
        mime,
    )
    return head + uuid + extras + pack(capture.url)


def _extras(capture: Capture, record_id: bytes, mime: int, etag: bool, also: bool) -> bytes:
    items = []
    if capture.status != 200:
        items.append((_STATUS, _SHORT.pack(known_status(capture.status))))
    if len(capture.date) != 20:
        items.append((_FRACTION, capture.date[20:-1]))
    if record_id:
        items.append((_RECORD_ID, record_id))
    if mime == 255:
        items.append((_MIME, capture.mime))
    if capture.size >= SIZE_IN_EXTRAS:
        items.append((_SIZE, capture.size.to_bytes(8, "big")))
    if etag and capture.etag:
        items.append((_ETAG, capture.etag))
    if etag and capture.last_modified:
        items.append((_MODIFIED, capture.last_modified))
    if also:
        items.append((_OWN, digest_prefix(capture.digest)))
    if not items:
        return b""
    # A value that does not fit is left out: half an identifier would name something else.
    fitting = [(tag, value) for tag, value in items if len(value) <= _LONGEST]
    body = b"".join([_ITEM.pack(tag, len(value)) + value for tag, value in fitting])
    return _SHORT.pack(len(body)) + body


def decode(key: bytes, entry: bytes, place_of: Callable[[int], ContainerRef]) -> Capture:
    """Return the capture of an entry under `key`; `place_of` resolves container numbers."""
    flags, spelling, high, low, size, far, near, number, mime = HEAD.unpack_from(entry)
    date = date_of_digits(b"%014d" % (high << 32 | low))
    at = 22
    record_id = b""
    if flags & 16:
        text = entry[22:38].hex()
        record_id = (
            f"urn:uuid:{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}".encode()
        )
        at = 38
    extras: dict[int, bytes] = {}
    if flags & 64:
        extras, at = _read_extras(entry, at)
        if _FRACTION in extras:
            date = date[:-1] + b"." + extras[_FRACTION] + b"Z"
        record_id = extras.get(_RECORD_ID, record_id)
    if size == UNKNOWN_SIZE:
        size = -1
    elif size == SIZE_IN_EXTRAS:
        size = int.from_bytes(extras[_SIZE], "big")
    offset = far << 32 | near
    own = extras.get(_OWN)
    container, crawl = place_of(number) if number else NOWHERE
    status = extras.get(_STATUS)
    return Capture(
        digest=digest_of_key(own or key),
        spelling=_SPELLINGS[spelling & 0x77],
        url=unpack(entry[at:]),
        date=date,
        evidence=_EVIDENCE[flags & 3],
        covers=_COVERS[flags >> 2 & 3],
        status=200 if status is None else int.from_bytes(status, "big"),
        mime=MIMES[mime] if mime != 255 else extras.get(_MIME, b""),
        size=size,
        size_of_record=bool(flags & 32),
        record_id=record_id,
        container=container,
        offset=-1 if offset == UNKNOWN_OFFSET else offset,
        etag=extras.get(_ETAG, b""),
        last_modified=extras.get(_MODIFIED, b""),
        crawl=crawl,
    )


def _read_extras(entry: bytes, at: int) -> tuple[dict[int, bytes], int]:
    end = at + 2 + _SHORT.unpack_from(entry, at)[0]
    at += 2
    extras = {}
    while at < end:
        tag, length = _ITEM.unpack_from(entry, at)
        extras[tag] = entry[at + 3 : at + 3 + length]
        at += 3 + length
    return extras, end


def answers(entry: bytes) -> bool:
    """Return whether an entry is an original that may be answered: no tombstone, no reserve."""
    return entry[0] & (SPARE | 3) < 3


def url_of(entry: bytes) -> bytes:
    """Return the exact URL of an entry that is not a tombstone."""
    return unpack(packed_url(entry))


def container_of(body: bytes) -> int:
    """Return the container number of an entry, tombstone or dependent (`ledger`), 0 for none."""
    return int.from_bytes(body[_container_slice(body)])


def with_container(body: bytes, number: int) -> bytes:
    """Return an entry, tombstone or dependent with another container number, if it has one."""
    at = _container_slice(body)
    return b"%b%b%b" % (body[: at.start], number.to_bytes(4), body[at.stop :]) if at.stop else body


def _container_slice(body: bytes) -> slice:
    if body[0] & 3 != 3:
        return slice(17, 21)
    if body[0] == DEPENDENT:
        return slice(13, 17)
    return slice(8, 12) if body[0] & GONE else slice(0, 0)


def packed_url(entry: bytes) -> bytes:
    """Return the packed URL of an entry; equal if and only if the URLs are."""
    at = 38 if entry[0] & 16 else 22
    if entry[0] & 64:
        at += 2 + _SHORT.unpack_from(entry, at)[0]
    return entry[at:]


def fraction_of(entry: bytes) -> bytes:
    """Return the fraction of an entry's date, with its dot; empty if it has none."""
    if not entry[0] & 64:
        return b""
    extras, _ = _read_extras(entry, 38 if entry[0] & 16 else 22)
    return b"." + extras[_FRACTION] if _FRACTION in extras else b""


def strip_flags(entry: bytes) -> bytes:
    """Return an entry without the flags of its state in a cell (`SPARE`, `BEFORE`)."""
    if entry[0] & SPARE or entry[1] & BEFORE:
        return b"%c%c%b" % (entry[0] & ~SPARE, entry[1] & ~BEFORE, entry[2:])
    return entry


def entries_of(cell: bytes) -> Iterator[bytes]:
    """Yield the entries of a cell; nearly always one."""
    if cell[0] != SEVERAL:
        yield cell
        return
    at = 1
    while at < len(cell):
        end = at + 4 + _LONG.unpack_from(cell, at)[0]
        yield cell[at + 4 : end]
        at = end


def cell_of(entries: list[bytes]) -> bytes:
    """Return the cell that holds `entries` (at least one)."""
    if len(entries) == 1:
        return entries[0]
    return b"\x80" + b"".join([_LONG.pack(len(entry)) + entry for entry in entries])
