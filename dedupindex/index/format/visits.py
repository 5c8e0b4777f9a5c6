"""Visits: what a URL answered when it was fetched, whether it was stored in full or as a revisit.

An index with ``--etag`` keeps them, so that a crawler can be told what it saw last of a URL. The
captures alone do not say this: of those with one payload an index keeps one, and no revisit.

They are items of the ledger, before all others:

    key    0x00, then what follows the digest in the keys of the URL (`cells.Keys.tail`)
    body   0x13 | 14 digits of the date, inverted (6 bytes): the last visit comes first
           flags (1): bit 0 it was stored as a revisit | HTTP status (2), 0 unknown
           algorithm (1) | digest | u16 length, ETag | u16 length, Last-Modified | packed URL

Beside the index, crawls keep the same bodies of what they report: of each URL the last visit, and
of the earlier ones those that `/last` may need, see `latest`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dedupindex.capture import Capture, Evidence
from dedupindex.digest import Digest
from dedupindex.errors import Damaged
from dedupindex.index.format.cells import (
    ALGORITHMS,
    CODES,
    DIGEST_KEY,
    Keys,
    digest_prefix,
    known_status,
    urlkey_hash,
)
from dedupindex.index.format.fast_answer import BROKEN
from dedupindex.index.format.packing import pack, unpack
from dedupindex.timestamps import date_of_digits, digits_of_date

VISIT = 0x13  # first byte of a body: as of a tombstone without container, see `cells.container_of`
CODE = CODES[""]  # first byte of an item
_HEAD = struct.Struct(">B6sBH")
_SHORT = struct.Struct(">H")
_INVERTED = (1 << 48) - 1
_REVISIT = 1
_LONGEST = 1000  # bytes of a validator; a longer one is not kept


class Visit(NamedTuple):
    """What a URL answered at a time. Empty bytes and status 0 mean "not known"."""

    url: bytes
    date: bytes  # WARC-Date, of whole seconds
    digest: Digest  # of the payload; of a revisit, that of its original
    status: int = 0  # HTTP; 304: the server said that its validators had not changed
    etag: bytes = b""
    last_modified: bytes = b""
    revisit: bool = False  # its payload was not stored again

    @classmethod
    def of(cls, capture: Capture) -> Visit:
        """Return the visit of a capture or revisit."""
        return cls(
            capture.url,
            capture.date,
            capture.digest,
            capture.status,
            capture.etag,
            capture.last_modified,
            capture.evidence == Evidence.REVISIT,
        )

    def body(self) -> bytes:
        """Return the visit without its key."""
        inverted = _INVERTED - int(digits_of_date(self.date))
        head = _HEAD.pack(
            VISIT,
            inverted.to_bytes(6, "big"),
            _REVISIT if self.revisit else 0,
            known_status(self.status),
        )
        etag, modified = _kept(self.etag), _kept(self.last_modified)
        return b"".join(
            (head, digest_prefix(self.digest), etag, modified, pack(self.url)),
        )

    def item(self, keys: Keys) -> bytes:
        """Return the item of the ledger."""
        return CODE + keys.tail(self.url) + self.body()

    @classmethod
    def parse(cls, body: bytes) -> Visit:
        """Return the visit of a body; raises `Damaged`."""
        try:
            _, inverted, flags, status = _HEAD.unpack_from(body)
            at = _HEAD.size + DIGEST_KEY[body[_HEAD.size]]
            digest = Digest(ALGORITHMS[body[_HEAD.size]], body[_HEAD.size + 1 : at])
            etag, at = _text(body, at)
            modified, at = _text(body, at)
            digits = _INVERTED - int.from_bytes(inverted, "big")
            date = date_of_digits(b"%014d" % digits)
            return cls(unpack(body[at:]), date, digest, status, etag, modified, bool(flags & 1))
        except BROKEN as error:
            raise Damaged(f"the visit {body[:40].hex()} is damaged: {error!r}") from error


def _kept(text: bytes) -> bytes:
    text = text if len(text) <= _LONGEST else b""
    return _SHORT.pack(len(text)) + text


def _text(body: bytes, at: int) -> tuple[bytes, int]:
    end = at + 2 + _SHORT.unpack_from(body, at)[0]
    return body[at + 2 : end], end


def url_prefix(keys: Keys, url: bytes) -> bytes:
    """Return what the URL parts of keys of a URL begin with."""
    return keys.tail(url)


def urlkey_prefix(key: bytes) -> bytes:
    """Return what the URL parts of keys of a urlkey begin with."""
    return urlkey_hash(key)


class VisitKind(NamedTuple):
    """What `/last` may need of the visits of a URL: of each kind the last one."""

    url: bytes  # packed
    digest: bytes  # its `digest_prefix`
    stated: bool  # whether it has validators

    @classmethod
    def of(cls, item: bytes, start: int = 0) -> VisitKind:
        """Return the kind of a visit, whose body begins at `start`."""
        at = start + _HEAD.size
        end = at + DIGEST_KEY[item[at]]
        digest = item[at:end]
        etag, at = _text(item, end)
        modified, at = _text(item, at)
        return cls(item[at:], digest, bool(etag or modified))

    def makes_needless(self, other: VisitKind) -> bool:
        """Return whether a later visit of this kind replaces one of `other`."""
        return self == other or self == other._replace(stated=True)


def latest(items: Iterable[bytes], length: int) -> Iterator[bytes]:
    """Yield the items that are no visits; of visits only those that `/last` may need.

    These are, of each URL and digest, the last one, and the last one with validators. The items
    are sorted; `length` is that of a visit's key.
    """
    key, kept = b"", set[VisitKind]()
    for item in items:
        if item[:1] != CODE:
            yield item
            continue
        if item[:length] != key:
            key, kept = item[:length], set()
        kind = VisitKind.of(item, length)
        if kind in kept:
            continue
        kept.update({kind, VisitKind(kind.url, kind.digest, stated=False)})
        yield item
