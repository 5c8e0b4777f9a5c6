"""Marks: when a digest of a URL was seen as a revisit, as a record that was refused, or purged."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import NamedTuple

from xxhash import xxh3_64_digest

from dedupindex.capture import Capture, Evidence
from dedupindex.index.format.cells import (
    BEFORE,
    GONE,
    NOWHERE,
    READ,
    SPARE,
    ContainerRef,
    container_of,
    encode,
    packed_url,
    renumbered,
)
from dedupindex.index.format.file_names import tells_of

RECORD, ROW, NAMED, REVISIT = range(4)  # as in the flags of an entry
MARKS = 8  # seconds of records that were read, kept under one key


class Marks(NamedTuple):
    """What is remembered of the revisits and refused records under a key."""

    entries: list[bytes]
    since: bytes | None  # the earliest second; from it on claims are chains
    read: list[bytes]  # the earliest seconds of records that were read, in order
    gone: frozenset[bytes] = frozenset()  # of what was purged: second, container, URL, as in marks

    @classmethod
    def of(cls, entries: list[bytes]) -> Marks:
        """The marks among `entries`: those read up to `MARKS`, one before them all, all purged."""
        found: dict[tuple[bytes, bool], bytes] = {}
        gone = set[bytes]()
        for entry in entries:
            if entry[0] & 3 == REVISIT:
                if entry[0] & GONE:
                    gone.add(unmarked(entry))
                    continue
                place, mark = (entry[2:8], not entry[0] & READ), unmarked(entry)
                found[place] = min(mark, found.get(place, mark))
        if not found:
            return cls(sorted(gone), None, [], _places(gone)) if gone else _UNMARKED
        read = sorted(second for second, unread in found if not unread)[:MARKS]
        kept = [found[second, False] for second in read]
        since, unread = min(found)
        if unread:
            kept.insert(0, found[since, True])
        return cls([*kept, *sorted(gone)], since, read, _places(gone))

    def chain(self, claim: bytes) -> bool:
        """Whether what `claim` names was seen to be no original itself."""
        return self.since is not None and claim[2:8] >= self.since

    def purged(self, entry: bytes, place_of: Callable[[int], ContainerRef]) -> bool:
        """Whether the capture of an entry was purged, or that which a claim names.

        What was read is of its own file and crawl. A row may tell of any file that it means, in
        whatever crawl; one that names no container may tell of any, and so may a claim. Of what
        is purged wherever it is, no claim is believed, whatever date it names.
        """
        if not self.gone:
            return False
        url, second, container = url_hash(entry), entry[2:8], entry[17:21]
        if entry[0] & 3 == NAMED:
            return any(
                one[10:] == url and (one[:6] == second or one[6:10] == _ANYWHERE)
                for one in self.gone
            )
        if container == _ANYWHERE:
            return any(one[:6] == second and one[10:] == url for one in self.gone)
        if not self.gone.isdisjoint((second + container + url, second + _ANYWHERE + url)):
            return True
        if entry[0] & 3 != ROW:
            return False
        row = place_of(container_of(entry)).container
        return any(
            tells_of(row, place_of(int.from_bytes(one[6:10], "big")).container)
            for one in self.gone
            if one[:6] == second and one[10:] == url
        )

    def refute(self, row: bytes) -> bool:
        """Whether the record that `row` tells of was read, and was no original."""
        second, read = row[2:8], self.read
        return second in read or (len(read) == MARKS and second > read[-1])


_UNMARKED = Marks([], None, [])
_ANYWHERE = bytes(4)


def _places(gone: set[bytes]) -> frozenset[bytes]:
    return frozenset(mark[2:] for mark in gone)


def denied(entries: Iterable[bytes], capture: Capture) -> bool:
    """Whether marks among `entries`, those of its key, say that `capture` is no original."""
    marks = Marks.of([entry for entry in entries if entry[0] & 3 == REVISIT])
    if marks is _UNMARKED:
        return False
    entry = encode(capture, 0)
    if capture.evidence is Evidence.NAMED:
        return marks.chain(entry) or marks.purged(entry, lambda number: NOWHERE)
    # Whoever reports a capture to a crawl has it, whatever container it was purged from.
    gone = (entry[2:8] + _ANYWHERE + url_hash(entry)) in marks.gone
    return gone or (capture.evidence is Evidence.ROW and marks.refute(entry))


def unmarked(entry: bytes) -> bytes:
    return b"%c%c%b" % (entry[0], entry[1] & ~BEFORE, entry[2:]) if entry[1] & BEFORE else entry


def encode_gone(entry: bytes, *, anywhere: bool) -> bytes:
    """The mark of an entry that is purged: from its container, or wherever else it may be."""
    container = bytes(4) if anywhere or entry[0] & 3 == NAMED else entry[17:21]
    return b"%c\0%b%b%b" % (3 | READ | GONE, entry[2:8], container, url_hash(entry))


def url_hash(entry: bytes) -> bytes:
    """What stands for the URL of an entry in the marks of what was purged."""
    return xxh3_64_digest(packed_url(entry))


def lives_in(entry: bytes, containers: Container[int]) -> bool:
    """Whether an entry is of one of these containers, or a mark of what was purged from them."""
    return container_in(entry) in containers


def is_gone(entry: bytes) -> bool:
    """Whether an entry is the mark of a capture that was purged."""
    return entry[0] & 3 == REVISIT and bool(entry[0] & GONE)


def container_in(entry: bytes) -> int:
    """The container number in an entry or mark, 0 if it has none."""
    if entry[0] & 3 != REVISIT:
        return container_of(entry)
    return int.from_bytes(entry[8:12], "big") if entry[0] & GONE else 0


def with_container(entry: bytes, number: int) -> bytes:
    """An entry or mark that has a container number, with another."""
    if entry[0] & 3 != REVISIT:
        return renumbered(entry, number)
    return b"%b%b%b" % (entry[:8], number.to_bytes(4, "big"), entry[12:])


def bare(entry: bytes) -> bytes:
    """The entry itself, wherever it comes from: not in reserve, not marked as from before."""
    if entry[0] & SPARE or entry[1] & BEFORE:
        return b"%c%c%b" % (entry[0] & ~SPARE, entry[1] & ~BEFORE, entry[2:])
    return entry
