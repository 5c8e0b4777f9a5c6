"""Encode keys and entries of many rows or captures column by column: the bytes of `format.cells`.

Each step of encoding is one call for a batch, which takes half the time. What depends only on
status and media type is copied from a sample entry.
"""

from __future__ import annotations

import re
from binascii import a2b_hex
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from operator import itemgetter
from typing import NamedTuple

from xxhash import xxh3_64_digest

from dedupindex.cache import Cache
from dedupindex.capture import Capture, Covers, Evidence, Rows
from dedupindex.digest import CANONICAL, Digest, Spelling
from dedupindex.index.format import cells
from dedupindex.index.format.cells import Keys, encode
from dedupindex.index.format.packing import pack
from dedupindex.urlkey import urlkey

_FOUR, _FIVE = itemgetter(slice(4)), itemgetter(slice(5))
_EXTRAS = slice(cells.HEAD.size, -len(pack(b"")))  # of an entry without a URL and a record id
_UUIDS = re.compile(rb"(?:%b)*" % cells.UUID.pattern)
_UUID_LENGTH, _DATE_LENGTH = 45, 20  # of plain captures
_NONE, _NEITHER = {()}, {b""}
_kinds = Cache[tuple[int, bytes], tuple[int, int, bytes]]()  # see `_kind_of`


class CaptureColumns(NamedTuple):
    """Captures of one or more records or rows, as columns: the fields of `Capture`."""

    digests: Sequence[Digest]
    spellings: Sequence[Spelling]
    urls: Sequence[bytes]
    dates: Sequence[bytes]
    evidence: Sequence[Evidence]
    covers: Sequence[Covers]
    statuses: Sequence[int]
    mimes: Sequence[bytes]
    sizes: Sequence[int]
    of_record: Sequence[bool]
    record_ids: Sequence[bytes]
    containers: Sequence[str]
    offsets: Sequence[int]
    etags: Sequence[bytes]
    last_modified: Sequence[bytes]
    also: Sequence[tuple[Digest, ...]]
    crawls: Sequence[str]

    @classmethod
    def of(cls, captures: list[Capture]) -> CaptureColumns:
        """Return the columns of captures, at least one."""
        return cls(*zip(*captures, strict=True))

    @property
    def plain(self) -> bool:
        """Whether `stage_captures` can encode them, as nearly all that are read from WARC files.

        Plain captures have a date of whole seconds, a UUID, the size of their payload and an
        offset, and no validators and no further digests.
        """
        return (
            set(map(len, self.dates)) == {_DATE_LENGTH}
            and set(map(len, self.record_ids)) == {_UUID_LENGTH}
            and _UUIDS.fullmatch(b"".join(self.record_ids)) is not None
            and not any(self.of_record)
            and 0 <= min(self.sizes) <= max(self.sizes) < cells.SIZE_IN_EXTRAS
            and 0 <= min(self.offsets) <= max(self.offsets) < cells.UNKNOWN_OFFSET
            and not any(self.also)
            and not any(self.etags)
            and not any(self.last_modified)
        )


def stage_captures(
    captures: CaptureColumns, keys: Keys, numbers: Callable[[str], int]
) -> list[bytes]:
    """Return the staged entries of captures that are `plain`; for `numbers` see `stage_rows`."""
    flags, mimes, extras = zip(*map(_kind_of, captures.statuses, captures.mimes), strict=True)
    algorithms, digests = zip(*captures.digests, strict=True)
    digits = b"".join(captures.dates).translate(None, b"-T:Z")
    timestamps = [int(digits[at : at + 14]) for at in range(0, len(digits), 14)]
    spellings = {spelling: spelling.code for spelling in set(captures.spellings)}
    containers = {name: numbers(name) for name in set(captures.containers)}
    heads = map(
        cells.HEAD.pack,
        [
            flag | evidence | covers << 2
            for flag, evidence, covers in zip(
                flags, captures.evidence, captures.covers, strict=True
            )
        ],
        map(spellings.__getitem__, captures.spellings),
        [timestamp >> 32 for timestamp in timestamps],
        [timestamp & cells.LOW for timestamp in timestamps],
        captures.sizes,
        [offset >> 32 for offset in captures.offsets],
        [offset & cells.LOW for offset in captures.offsets],
        map(containers.__getitem__, captures.containers),
        mimes,
    )
    parts: list[Iterable[bytes]] = [
        map(cells.CODES.__getitem__, algorithms),
        digests,
        *_url_hashes(captures.urls, keys),
        heads,
        _uuids(captures.record_ids),
        extras,
        map(pack, captures.urls),
    ]
    return list(map(b"".join, zip(*parts, strict=True)))


def _kind_of(status: int, mime: bytes) -> tuple[int, int, bytes]:
    """Return flags, media type code and extras of entries of records with status and media type."""
    kind = status, mime
    known = _kinds.get(kind)
    if known is not None:
        return known
    record_id = b"urn:uuid:00000000-0000-0000-0000-000000000000"
    entry = encode(
        Capture(
            Digest("sha1", b""), CANONICAL, b"", b"2026-11-20T09:14:17Z", Evidence.RECORD,
            Covers.UNKNOWN, status, mime, record_id=record_id,
        ),
        0,
    )  # fmt: skip
    extras = entry[cells.HEAD.size + 16 : -len(pack(b""))]
    return _kinds.keep(kind, (entry[0], entry[21], extras))


def stage_rows(rows: Rows, keys: Keys, numbers: Callable[[str], int]) -> list[bytes]:
    """Return the staged entries of rows; `numbers` returns the number of a container's name."""
    samples = {kind: _sample(rows, *kind) for kind in set(rows.kinds)}
    flags, mimes, extras = zip(*map(samples.__getitem__, rows.kinds), strict=True)
    timestamps = list(map(int, rows.dates))
    sizes: Iterable[int] = rows.sizes if rows.sizes[0] >= 0 else repeat(cells.UNKNOWN_SIZE)
    offsets = rows.offsets if rows.offsets[0] >= 0 else [cells.UNKNOWN_OFFSET] * len(rows.offsets)
    containers = {name: numbers(name) for name in dict.fromkeys(rows.containers)}
    heads = map(
        cells.HEAD.pack,
        flags,
        repeat(rows.spelling.code),
        [timestamp >> 32 for timestamp in timestamps],
        [timestamp & cells.LOW for timestamp in timestamps],
        sizes,
        [offset >> 32 for offset in offsets],
        [offset & cells.LOW for offset in offsets],
        map(containers.__getitem__, rows.containers),
        mimes,
    )
    parts: list[Iterable[bytes]] = [
        repeat(cells.CODES["sha1"]),
        rows.digests,
        *_url_hashes(rows.urls, keys),
        heads,
        map(pack, rows.urls),
    ]
    if rows.record_ids[0]:
        parts.insert(-1, _uuids(rows.record_ids))
    if any(extras):
        parts.insert(-1, extras)
    return list(map(b"".join, zip(*parts, strict=False)))


def _sample(rows: Rows, status: int, mime: bytes) -> tuple[int, int, bytes]:
    """Return flags, media type code and extras of all entries with a status and media type."""
    size = min(rows.sizes[0], 0)
    entry = encode(
        Capture(
            Digest("sha1", b""), rows.spelling, b"", b"2026-11-20T09:14:17Z", Evidence.ROW,
            status=status, mime=mime, size=size, size_of_record=size == 0,
        ),
        0,
    )  # fmt: skip
    return entry[0] | (16 if rows.record_ids[0] else 0), entry[21], entry[_EXTRAS]


def _url_hashes(urls: Sequence[bytes], keys: Keys) -> list[Iterable[bytes]]:
    """Return the columns that end the keys."""
    if not keys.url:
        return []
    hashes = map(xxh3_64_digest, urls)
    if not keys.canonical:
        return [hashes]
    return [map(_FOUR, map(xxh3_64_digest, map(urlkey, urls))), map(_FIVE, hashes)]


def _uuids(record_ids: Sequence[bytes]) -> list[bytes]:
    raw = a2b_hex(b"".join([text[9:] for text in record_ids]).replace(b"-", b""))
    return [raw[at : at + 16] for at in range(0, len(raw), 16)]
