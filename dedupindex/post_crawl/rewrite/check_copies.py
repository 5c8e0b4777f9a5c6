"""Check the records that a plan names, and make the revisits that replace them.

The records of a large file are checked in parts, by several processes or executors of Spark. Each
writes what it found to a file. It counts only if the source is the same when it is rewritten; of an
object, if the record has the same bytes.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from dedupindex.errors import Damaged
from dedupindex.object_store import PartialCopy
from dedupindex.post_crawl.plan.plan_file import MatchCriteria, Planned
from dedupindex.post_crawl.rewrite.compare_pair import (
    ORIGINAL_ELSEWHERE,
    CheckedPair,
    NotRewritable,
    OriginalFiles,
    RecordOnDisk,
    check_pair,
    check_trusted,
    restores,
)
from dedupindex.post_crawl.rewrite.protection import record_key
from dedupindex.runtime.atomic_replace import DrySink, range_hash
from dedupindex.warc.random_access import ExactRecord, NotExact, read_range
from dedupindex.warc.record_facts import Refused

_DEFLATE_LEVEL = 9  # revisits are small
_MOST_READ = 8 << 20  # bytes of an object that are requested at once
_MOST_BETWEEN = 1 << 16  # bytes between two records that are not worth a request
_MOST_FOUND = 16 << 20  # bytes of revisits and headers in a spool of a part of an object


class Replacement(NamedTuple):
    """The revisit that a record becomes, and what the journal keeps of the record."""

    member: bytes  # the revisit, as it is stored
    header: str  # of the record, decoded as Latin-1
    sha256: str  # of the record, decompressed
    url: bytes  # of the record
    original: bytes  # the `record_key` of its original
    identity: tuple[int, int]  # device and inode of the original's file
    trusted: bool = False  # the original was not read
    stored_hash: str = ""  # BLAKE3 of the record as it is stored, of `check_stored` alone


class CopyChecker:
    """Checks the records of one open file."""

    def __init__(
        self, source: BinaryIO, originals: OriginalFiles, criteria: MatchCriteria,
        *, min_size: int, min_gain: int,
    ) -> None:  # fmt: skip
        status = os.fstat(source.fileno())
        self._source, self._device = source, (status.st_dev, status.st_ino)
        self._originals, self._criteria = originals, criteria
        self._min_size, self._min_gain = min_size, min_gain
        self._written = DrySink()

    def close(self) -> None:
        self._written.close()

    def check(self, planned: Planned) -> Replacement:
        """Raises `Refused` if the record must stay, `Damaged` if its revisit reads back wrong."""
        line = planned.line
        copy = RecordOnDisk(self._source, line.offset, line.stored, self._device)
        if trusted := self._originals.is_trusted(planned.original):
            pair = check_trusted(planned, copy, self._criteria, min_size=self._min_size)
            identity = -1, planned.original.container
        else:
            pair, identity = self._compared(planned, copy)
        member = _compressed(pair)
        if line.stored - len(member) < self._min_gain:
            raise NotRewritable("no-gain")
        self._read_back(pair, member)
        return Replacement(
            member, pair.response.header.decode("latin-1"), pair.sha256, pair.response.url,
            record_key(pair.original.url, pair.original.date), identity, trusted,
        )  # fmt: skip

    def _compared(
        self, planned: Planned, copy: RecordOnDisk
    ) -> tuple[CheckedPair, tuple[int, int]]:
        """Compare a record with its original; return device and inode of that as well."""
        original = self._originals.locate(planned.original)
        try:
            pair = check_pair(planned, copy, original, self._criteria, min_size=self._min_size)
        except Refused:
            if not self._originals.forget(planned.original):
                raise
            original = self._originals.locate(planned.original)  # a store may err once
            pair = check_pair(planned, copy, original, self._criteria, min_size=self._min_size)
        return pair, original.identity

    def _read_back(self, pair: CheckedPair, member: bytes) -> None:
        """Raise `Refused` unless a revisit and its original make what is dropped.

        Raises `Damaged` if the revisit is not what was written.
        """
        file, offset = self._written.write(member)
        try:
            dictionaries = pair.response.single.dictionaries
            written = ExactRecord(file, offset, len(member), last=True, dictionaries=dictionaries)
            sound = restores(written, pair)
        except NotExact:
            sound = False
        if not sound and read_range(file, offset, len(member)) == member:
            raise NotRewritable("not-exact", "its revisit does not make the record again")
        if not sound:
            raise Damaged(
                f"{self._source.name} at {pair.response.single.offset}: the revisit, read back, "
                "does not make the record that it stands for; nothing was replaced. Is the disk "
                "sound?"
            )


def _compressed(pair: CheckedPair) -> bytes:
    """Return a revisit as it is stored: compressed as the response is."""
    packer = pair.response.single.packer(len(pair.record), _DEFLATE_LEVEL)
    return packer.compress(pair.record) + packer.flush() if packer else pair.record


class CheckedPart(NamedTuple):
    """The records of a part of a file, as they were checked."""

    number: int  # of the container
    part: range  # of `Plan.parts`
    spool: Path  # has what was found
    identity: tuple[int, int, int, int] | None = None  # of the source; None: it was not checked


_Found = dict[tuple[int, int, int], Replacement | Refused]


def check_all(checker: CopyChecker, planned: Sequence[Planned], spool: Path) -> None:
    """Check some records, and write what was found."""
    found: _Found = {}
    for one in planned:
        try:
            found[_place(one)] = checker.check(one)
        except Refused as refused:
            elsewhere = refused.reason == ORIGINAL_ELSEWHERE
            found[_place(one)] = Refused(refused.reason, refused.problem if elsewhere else "")
    with open(spool, "wb") as stream:
        pickle.dump(found, stream)


def check_stored(
    checker: CopyChecker, source: PartialCopy, planned: Sequence[Planned], spool: Path
) -> None:
    """Check some records of an object, and write which revisits they become.

    A record that must stay is checked again when the object is rewritten, and so are those that
    follow when what was found is much already.
    """
    found: _Found = {}
    size = 0
    for group in _near(planned):
        first, last = group[0].line, group[-1].line
        source.need(first.offset, last.offset + last.stored - first.offset)
        for one in group:
            with suppress(Refused):
                hashed = range_hash(source.file, one.line.offset, one.line.stored)
                found[_place(one)] = made = checker.check(one)._replace(stored_hash=hashed)
                size += len(made.member) + len(made.header)
        if size > _MOST_FOUND:
            break
    with open(spool, "wb") as stream:
        pickle.dump(found, stream)


def _near(planned: Sequence[Planned]) -> Iterator[list[Planned]]:
    """Divide records into groups that are worth one request each."""
    group: list[Planned] = []
    for one in planned:
        if group:
            size = one.line.offset + one.line.stored - group[0].line.offset
            last = group[-1].line
            if size > _MOST_READ or one.line.offset - last.offset - last.stored > _MOST_BETWEEN:
                yield group
                group = []
        group.append(one)
    if group:
        yield group


class EarlierChecks:
    """What was found in all parts of a file."""

    def __init__(self, parts: Sequence[CheckedPart]) -> None:
        self._left = iter(sorted(parts, key=lambda part: part.part.start))
        self._found: _Found = {}

    def check(self, planned: Planned) -> Replacement:
        """As `CopyChecker.check`, of one record after the other."""
        place = _place(planned)
        while place not in self._found:
            self._found = _read_spool(next(self._left).spool)
        found = self._found[place]
        if isinstance(found, Refused):
            raise found
        return found


class ChecksOfStored:
    """What was found in parts of an object, which counts for records of the same bytes."""

    def __init__(
        self, parts: Sequence[CheckedPart], source: BinaryIO, checker: CopyChecker
    ) -> None:
        """`source` is a copy of the object as it was scanned; `checker` checks other records."""
        self._parts = sorted(parts, key=lambda part: part.part.start)
        self._source, self._checker = source, checker
        self._found: _Found = {}

    def check(self, planned: Planned) -> Replacement:
        """As `CopyChecker.check`, of one record after the other."""
        while self._parts and planned.line.offset >= self._parts[0].part.start:
            self._found = _read_spool(self._parts.pop(0).spool)
        found, line = self._found.get(_place(planned)), planned.line
        if isinstance(found, Replacement):
            hashed = range_hash(self._source, line.offset, line.stored)
            if hashed == found.stored_hash:
                return found
        return self._checker.check(planned)


def _read_spool(spool: Path) -> _Found:
    with open(spool, "rb") as stream:
        found: _Found = pickle.load(stream)  # noqa: S301 (this run has written it)
    return found


def _place(planned: Planned) -> tuple[int, int, int]:
    return planned.line.offset, planned.original.container, planned.original.offset
