"""Write one file anew: revisits in place of the copies, everything between them copied as bytes.

Records that are not rewritten are not decompressed. A dry run uses the same code with a sink that
keeps nothing.
"""

from __future__ import annotations

import os
import zlib
from collections import Counter, OrderedDict
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from dedupindex.errors import Damaged
from dedupindex.post_crawl.manifest.lines import Line, ManifestContainer
from dedupindex.post_crawl.plan.plan_file import Plan, Planned
from dedupindex.post_crawl.rewrite.compare_pair import (
    CheckedPair,
    NotRewritable,
    RecordOnDisk,
    check_pair,
    restores,
)
from dedupindex.post_crawl.rewrite.journal import (
    Journal,
    JournalEntry,
    JournalWriter,
    OffsetMap,
    Protection,
)
from dedupindex.post_crawl.rewrite.protected_records import protected, record_key
from dedupindex.runtime.atomic_replace import (
    Sink,
    Untouched,
    being_written,
    content_hash,
    has_writer,
    identity,
    open_for_reading,
)
from dedupindex.urlkey import host_of
from dedupindex.warc.random_access import ExactRecord, NotExact
from dedupindex.warc.record_facts import Refused

_DEFLATE_LEVEL = 9  # revisits are small
_OPEN_FILES = 32
_COUNTS = ("files", "records", "revisits", "bytes_before", "bytes_after")


class RewriteJob(NamedTuple):
    """What to do with every file of a plan."""

    plan: Plan
    out: Path | None = None  # where the results go; None is in place
    min_size: int = 0  # bytes of body; a smaller record is not worth a revisit
    min_gain: int = 1  # bytes that a revisit must save in the file; at least 1
    dry: bool = False  # count, write nothing
    busy: Set[int] = frozenset()  # files that others wrote to when the run began; in place only
    aliased: Set[int] = frozenset()  # files that are in the plan by several names; in place only
    reserved: int = 0  # bytes that will be written to `out` afterwards

    @property
    def options(self) -> str:
        """The options that decide which records become revisits, as typed."""
        return f"--min-size {self.min_size} --min-gain {self.min_gain}"


@dataclass
class RewriteOutcome:
    """What became of one file, or of many."""

    name: str = ""
    state: str = ""  # rewritten, kept (nothing to gain), there (done by an earlier run) or left
    problem: str = ""  # why it was left alone
    path: str = ""
    files: int = 1
    records: int = 0  # that the plan names
    revisits: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    refused: Counter[str] = field(default_factory=Counter)  # records that stay, by reason
    hosts: dict[str, list[int]] = field(default_factory=dict)  # revisits and bytes saved of each
    outside: dict[str, int] = field(default_factory=dict)  # revisits by files of an index
    original_files: list[int] = field(default_factory=list)  # that its revisits refer to

    def add(self, other: RewriteOutcome) -> None:
        """Add the counts of another file."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.refused.update(other.refused)

    def as_json(self) -> dict[str, Any]:
        counts = {name: getattr(self, name) for name in _COUNTS}
        return {**counts, "refused": dict(sorted(self.refused.items()))}


class OriginalReader:
    """Opens the files of originals, a bounded number at a time.

    A file of the set must be as it was scanned, or as its journal says that a run in place left
    it. No process may be writing to it.
    """

    def __init__(self, plan: Plan, *, locked: bool = False, busy: Set[int] = frozenset()) -> None:
        """`locked` says that this run holds locks on files of the set."""
        self._plan, self._locked, self._busy = plan, locked, busy
        self._open: OrderedDict[int, tuple[BinaryIO, OffsetMap | None]] = OrderedDict()

    def locate(self, line: Line) -> RecordOnDisk:
        """Return where an original is now; raises `NotRewritable`."""
        if line.container not in self._open:
            self._open[line.container] = self._opened(line.container)
            if len(self._open) > _OPEN_FILES:
                self._open.popitem(last=False)[1][0].close()
        self._open.move_to_end(line.container)
        file, moved = self._open[line.container]
        offset = moved.new(line.offset) if moved else line.offset
        status = os.fstat(file.fileno())
        return RecordOnDisk(file, offset, line.stored, (status.st_dev, status.st_ino))

    def close(self) -> None:
        for file, _ in self._open.values():
            file.close()
        self._open.clear()

    def _opened(self, number: int) -> tuple[BinaryIO, OffsetMap | None]:
        container = self._plan.container(number)
        try:
            file = open_for_reading(container.path)
        except OSError as error:
            raise NotRewritable("original-gone", f"{container.path}: {error.strerror}") from error
        outside = number in self._plan.outside()
        is_busy = has_writer if self._locked and not outside else being_written
        if number in self._busy or container.path.endswith(".open") or is_busy(file):
            file.close()
            raise NotRewritable("original-busy", f"some process is writing to {container.path}")
        if outside:  # the index does not know its size
            return file, None
        status = os.fstat(file.fileno())
        if status.st_size == container.size and (
            status.st_mtime_ns == container.mtime_ns or content_hash(file) == container.content_hash
        ):
            return file, None
        journal = Journal(Path(container.root), container.name)
        if journal.exists():
            before, after = journal.summary()
            expected = container.size, after.size, before.mtime_ns
            if expected == (before.size, status.st_size, status.st_mtime_ns):
                return file, journal.offsets()
        file.close()
        raise NotRewritable("original-changed", f"{container.path} is not as it was scanned")


def write_file(
    job: RewriteJob,
    container: ManifestContainer,
    source: BinaryIO,
    sink: Sink,
    originals: OriginalReader,
    journal: JournalWriter | None = None,
) -> RewriteOutcome:
    """Write the rewritten file to `sink`, and each revisit to the journal if there is one.

    Raises `Untouched`, `OSError`, or `Damaged` if a revisit does not read back as written.
    """
    outcome = RewriteOutcome(container.name, "rewritten", bytes_before=container.size)
    status = os.fstat(source.fileno())
    device = status.st_dev, status.st_ino
    position = 0
    files: set[int] = set()
    for planned, is_protected in _with_protection(job.plan, container):
        line = planned.line
        outcome.records += 1
        try:
            if is_protected or line.offset < position:
                raise NotRewritable("pinned" if is_protected else "not-exact")
            original = originals.locate(planned.original)
            candidate = RecordOnDisk(source, line.offset, line.stored, device)
            pair = check_pair(
                planned, candidate, original, job.plan.criteria, min_size=job.min_size
            )
            member = _compressed(pair)
            if line.stored - len(member) < job.min_gain:
                raise NotRewritable("no-gain")
        except Refused as refused:
            outcome.refused[refused.reason] += 1
            continue
        sink.copy(source, position, line.offset - position)
        start = sink.size
        _check_written(container, pair, *sink.write(member), len(member))
        if journal is not None:
            entry = _entry(job, container, planned, pair, start, len(member))
            journal.add(entry, source, _protection(job.plan, planned, pair, original))
        position = line.offset + line.stored
        files.add(planned.original.container)
        _count(outcome, job.plan, planned, pair, line.stored - len(member))
    outcome.original_files = sorted(files - {container.number, *job.plan.outside()})
    if not outcome.revisits:
        outcome.state = "kept"
    if outcome.revisits or job.out is not None:  # in place, a file without revisits is not replaced
        sink.copy(source, position, container.size - position)
    outcome.bytes_after = sink.size if outcome.revisits else container.size
    return outcome


def _with_protection(plan: Plan, container: ManifestContainer) -> Iterator[tuple[Planned, bool]]:
    """Yield the records to rewrite, and whether a revisit refers to them, so that they must stay.

    This keeps two runs, or a wrong plan, from removing the last copy of a payload.
    """
    others = protected(Path(container.path))  # by revisits of other sets
    offsets = plan.protected(container.number)
    offset = next(offsets, -1)
    for planned in plan.copies(container.number):
        line = planned.line
        while 0 <= offset < line.offset:
            offset = next(offsets, -1)
        by_others = bool(others) and record_key(line.url, line.date) in others
        yield planned, offset == line.offset or by_others


def _compressed(pair: CheckedPair) -> bytes:
    """Return a revisit as it is stored: a gzip member, or plain if the response is plain."""
    if not pair.response.single.gzipped:
        return pair.record
    packer = zlib.compressobj(_DEFLATE_LEVEL, zlib.DEFLATED, 31)
    return packer.compress(pair.record) + packer.flush()


def _check_written(
    container: ManifestContainer, pair: CheckedPair, file: BinaryIO, offset: int, stored: int
) -> None:
    """Read a revisit back; raises `Damaged` unless it and its original make what was dropped."""
    try:
        sound = restores(ExactRecord(file, offset, stored, last=True), pair)
    except NotExact:
        sound = False
    if not sound:
        raise Damaged(
            f"{container.path} at {pair.response.single.offset}: the revisit, read back, does not "
            "make the record that it stands for; nothing was replaced. Is the disk sound?"
        )


def _count(
    outcome: RewriteOutcome, plan: Plan, planned: Planned, pair: CheckedPair, saved: int
) -> None:
    outcome.revisits += 1
    if planned.original.container in plan.outside():
        path = plan.container(planned.original.container).path
        outcome.outside[path] = outcome.outside.get(path, 0) + 1
    host = outcome.hosts.setdefault(host_of(pair.response.url).decode("latin-1"), [0, 0])
    host[0], host[1] = host[0] + 1, host[1] + saved


def _protection(plan: Plan, planned: Planned, pair: CheckedPair, file: RecordOnDisk) -> Protection:
    outside = planned.original.container in plan.outside()
    key = record_key(pair.original.url, pair.original.date)
    return Protection(key, file.identity if outside else None)


def _entry(
    job: RewriteJob, container: ManifestContainer, planned: Planned, pair: CheckedPair,
    offset: int, stored: int,
) -> JournalEntry:  # fmt: skip
    line, original = planned.line, planned.original
    file = job.plan.container(original.container)
    inside = original.container not in job.plan.outside()
    here = inside and (job.out is not None or file.root == container.root)
    return JournalEntry(
        line.offset, line.stored, offset, stored,
        pair.response.header.decode("latin-1"), pair.sha256,
        "" if here else file.root, file.name, original.offset, original.stored, file.size,
    )  # fmt: skip


def check_unchanged(container: ManifestContainer, file: BinaryIO) -> None:
    """Raise `Untouched` unless an open file is what was scanned, or a copy of it."""
    status = os.fstat(file.fileno())
    if status.st_size != container.size:
        raise Untouched("its size is not that of when it was scanned")
    if status.st_mtime_ns == container.mtime_ns and status.st_ino == container.inode:
        return
    if content_hash(file) != container.content_hash:
        raise Untouched("it is not what was scanned")


def check_still(container: ManifestContainer, file: BinaryIO, before: os.stat_result) -> None:
    """Raise `Untouched` if a file has changed or was replaced since `before`."""
    try:
        now = os.fstat(file.fileno()), os.stat(container.path)
    except OSError as error:
        raise Untouched(f"it went away: {error.strerror}") from error
    if any(identity(status) != identity(before) for status in now):
        raise Untouched("it was changed while it was rewritten")


def check_settled(container: ManifestContainer, file: BinaryIO, before: os.stat_result) -> None:
    """Raise `Untouched` if a file has changed since `before`, or somebody is writing to it."""
    check_still(container, file, before)
    if has_writer(file):
        raise Untouched("some other process began to write to it")
