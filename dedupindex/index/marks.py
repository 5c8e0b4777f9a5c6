"""Marks: when a digest of a URL was seen as a revisit, or as a record that was refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from dedupindex.capture import Capture, Evidence
from dedupindex.index.cells import BEFORE, READ, encode_revisit

RECORD, ROW, NAMED, REVISIT = range(4)  # as in the flags of an entry
MARKS = 8  # seconds of records that were read, kept under one key


class Marks(NamedTuple):
    """What is remembered of the revisits and refused records under a key."""

    entries: list[bytes]
    since: bytes | None  # the earliest second; from it on claims are chains
    read: list[bytes]  # the earliest seconds of records that were read, in order

    @classmethod
    def of(cls, entries: list[bytes]) -> Marks:
        """The marks among `entries`: those read up to `MARKS`, and one before them all."""
        found: dict[tuple[bytes, bool], bytes] = {}
        for entry in entries:
            if entry[0] & 3 == REVISIT:
                place, mark = (entry[2:8], not entry[0] & READ), unmarked(entry)
                found[place] = min(mark, found.get(place, mark))
        if not found:
            return _UNMARKED
        read = sorted(second for second, unread in found if not unread)[:MARKS]
        kept = [found[second, False] for second in read]
        since, unread = min(found)
        if unread:
            kept.insert(0, found[since, True])
        return cls(kept, since, read)

    def chain(self, claim: bytes) -> bool:
        """Whether what `claim` names is, for all we know, no original itself."""
        return self.since is not None and claim[2:8] >= self.since

    def refute(self, row: bytes) -> bool:
        """Whether the record that `row` tells of was read, and was no original."""
        second, read = row[2:8], self.read
        return second in read or (len(read) == MARKS and second > read[-1])


_UNMARKED = Marks([], None, [])


def denied(entries: Iterable[bytes], capture: Capture) -> bool:
    """Whether marks among `entries`, those of its key, say that `capture` is no original."""
    if capture.evidence is Evidence.RECORD:
        return False
    marks, moment = Marks.of(list(entries)), encode_revisit(capture)
    if capture.evidence is Evidence.NAMED:
        return marks.chain(moment)
    return marks.refute(moment)


def unmarked(entry: bytes) -> bytes:
    return b"%c%c%b" % (entry[0], entry[1] & ~BEFORE, entry[2:]) if entry[1] & BEFORE else entry
