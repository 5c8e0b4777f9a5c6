"""Tombstones: under a digest and URL, the seconds of revisits, refused records and purged captures.

They are entries without a capture (`cells`), kept in the cell of their key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from xxhash import xxh3_64_digest

from dedupindex.capture import Capture, Evidence
from dedupindex.index.format.cells import (
    BEFORE,
    GONE,
    READ,
    ContainerRef,
    container_of,
    encode,
    packed_url,
)
from dedupindex.index.format.file_names import row_is_doubtful

PURGED, CHAINED, CONTRADICTED = "purged", "chained", "contradicted"  # the answers of `denied`
RECORD, ROW, NAMED, REVISIT = range(4)  # the evidence in the flags of an entry
MAX_READ = 8  # seconds of read records kept under one key
_ANYWHERE = bytes(4)  # in place of a container's number


class Tombstones(NamedTuple):
    """The tombstones under a key."""

    entries: list[bytes]
    since: bytes | None  # the earliest second; from it on, claims of revisits are chains
    read: list[bytes]  # the earliest seconds of records that were read, in order
    purged: frozenset[bytes] = frozenset()  # second (6 bytes), container (4), hash of URL (8)

    @classmethod
    def among(cls, entries: list[bytes]) -> Tombstones:
        """Return those among `entries` that are kept.

        These are the first `MAX_READ` of records that were read, an earlier one if there is one,
        and all of purged captures.
        """
        found: dict[tuple[bytes, bool], bytes] = {}
        purged = set[bytes]()
        for entry in entries:
            if entry[0] & 3 == REVISIT:
                tombstone = unmarked(entry)
                if entry[0] & GONE:
                    purged.add(tombstone)
                    continue
                at = entry[2:8], not entry[0] & READ
                found[at] = min(tombstone, found.get(at, tombstone))
        if not found and not purged:
            return _NO_TOMBSTONES
        read = sorted(second for second, unread in found if not unread)[:MAX_READ]
        since, unread = min(found) if found else (None, False)
        first = [found[since, True]] if since and unread else []
        kept = first + [found[second, False] for second in read]
        bodies = frozenset(tombstone[2:] for tombstone in purged)
        return cls(kept + sorted(purged), since, read, bodies)

    def is_chain(self, claim: bytes) -> bool:
        """Return whether the original that a revisit's claim names is known as a revisit itself."""
        return self.since is not None and claim[2:8] >= self.since

    def is_purged(self, entry: bytes, place_of: Callable[[int], ContainerRef]) -> bool:
        """Return whether the capture of an entry, or the original that a claim names, was purged.

        A record that was read belongs to its own file and crawl. A row may be of any container
        that its name matches, in any crawl; a row without a container, and a claim, of any at all.
        A claim on a capture that was purged from everywhere is refused whatever its date.
        """
        if not self.purged:
            return False
        url, second, container = url_hash(entry), entry[2:8], entry[17:21]
        same_url = [one for one in self.purged if one[10:] == url]
        same_second = [one for one in same_url if one[:6] == second]
        kind = entry[0] & 3
        if kind == NAMED:
            return bool(same_second) or any(one[6:10] == _ANYWHERE for one in same_url)
        if container == _ANYWHERE:
            return bool(same_second)
        if any(one[6:10] in (container, _ANYWHERE) for one in same_second):
            return True
        if kind != ROW or not same_second:
            return False
        row = place_of(container_of(entry)).container
        return any(_may_be_in(one[6:10], row, place_of) for one in same_second)

    def refutes(self, row: bytes) -> bool:
        """Return whether the record behind a row was read, and was no original."""
        second, read = row[2:8], self.read
        return second in read or (len(read) == MAX_READ and second > read[-1])


_NO_TOMBSTONES = Tombstones([], None, [])


def denied(
    entries: Iterable[bytes], capture: Capture, place_of: Callable[[int], ContainerRef]
) -> str:
    """Return why tombstones among the entries of its key deny that `capture` is an original.

    It is `PURGED`, `CHAINED` or `CONTRADICTED`, "" if they do not. A crawl has reported the
    capture, so only tombstones of its own second count, whatever `Tombstones.refutes` says of rows
    when there are many: no order of loading depends on this.
    """
    tombstones = Tombstones.among([entry for entry in entries if entry[0] & 3 == REVISIT])
    if tombstones is _NO_TOMBSTONES:
        return ""
    entry = encode(capture, 0)
    if capture.evidence is Evidence.NAMED:
        if tombstones.is_purged(entry, place_of):
            return PURGED
        return CHAINED if tombstones.is_chain(entry) else ""
    if any(
        one[:6] == entry[2:8]
        and one[10:] == url_hash(entry)
        and _may_be_in(one[6:10], capture.container, place_of)
        for one in tombstones.purged
    ):
        return PURGED
    return CONTRADICTED if entry[2:8] in tombstones.read else ""


def _may_be_in(number: bytes, row: str, place_of: Callable[[int], ContainerRef]) -> bool:
    """Return whether a row that names a container may be of that of a tombstone."""
    if number == _ANYWHERE:
        return True
    return row_is_doubtful(row, place_of(int.from_bytes(number, "big")).container)


def unmarked(entry: bytes) -> bytes:
    """Return an entry without the flag that it was in the index before."""
    return b"%c%c%b" % (entry[0], entry[1] & ~BEFORE, entry[2:]) if entry[1] & BEFORE else entry


def encode_purged(entry: bytes, *, anywhere: bool) -> bytes:
    """Return the tombstone of a purged entry: for its container, or for any."""
    container = _ANYWHERE if anywhere or entry[0] & 3 == NAMED else entry[17:21]
    return _purged(entry[2:8], container, packed_url(entry))


def encode_purged_revisit(second: bytes, url: bytes) -> bytes:
    """Return the tombstone of a purged revisit, of its second and packed URL: for any container.

    It refuses the record that the revisit becomes again if its file is restored.
    """
    return _purged(second, _ANYWHERE, url)


def _purged(second: bytes, container: bytes, url: bytes) -> bytes:
    return b"%c\0%b%b%b" % (3 | READ | GONE, second, container, xxh3_64_digest(url))


def url_hash(entry: bytes) -> bytes:
    """Return the hash of an entry's URL, as in tombstones of purged captures."""
    return xxh3_64_digest(packed_url(entry))


def is_tombstone(entry: bytes) -> bool:
    """Return whether an entry is a tombstone, and no capture."""
    return entry[0] & 3 == REVISIT


def is_purged(entry: bytes) -> bool:
    """Return whether an entry is the tombstone of a purged capture."""
    return is_tombstone(entry) and bool(entry[0] & GONE)
