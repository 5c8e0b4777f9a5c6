"""One container rewritten: revisits for the duplicates, all between them copied as bytes.

The same code makes the dry run, with a sink that keeps nothing. Nothing that stays is inflated.
"""

from __future__ import annotations

import os
import zlib
from collections import Counter
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

from dedupindex.errors import Damaged
from dedupindex.post_crawl.manifest.lines import ManifestContainer
from dedupindex.post_crawl.plan.plan_file import Planned
from dedupindex.post_crawl.rewrite.compare_pair import (
    Judged,
    NotRewritable,
    RecordOnDisk,
    judge,
    rebuilt,
)
from dedupindex.post_crawl.rewrite.journal import JournalEntry, Pin
from dedupindex.post_crawl.rewrite.original_files import OriginalReader, PlanReader
from dedupindex.post_crawl.rewrite.protected_records import key, pinned
from dedupindex.runtime.atomic_replace import Left as Left
from dedupindex.runtime.atomic_replace import Sink, content_hash, identity
from dedupindex.urlkey import host_of
from dedupindex.warc.random_access import ExactRecord, NotExact
from dedupindex.warc.record_facts import Refused

_LEVEL = 9  # of deflate: what is left of a record is small


class RewriteJob(NamedTuple):
    """What is to be done with every container of a plan."""

    plan: PlanReader
    out: Path | None = None  # where the results go; None is in place
    size: int = 0  # bytes of body that are too few to be worth a revisit
    gain: int = 1  # bytes by which a record must get smaller in its file; at least 1
    dry: bool = False  # count, write nothing
    busy: Set[int] = frozenset()  # containers that others held when the run began; in place only
    twice: Set[int] = frozenset()  # containers that are in the plan by several names; in place only
    besides: int = 0  # bytes that will be written to `out` after this, by others

    @property
    def options(self) -> str:
        """What decides, beside the plan, which records become revisits; as it is typed."""
        return f"--min-size {self.size} --min-gain {self.gain}"


@dataclass
class RewriteOutcome:
    """What became of one container, or of many."""

    name: str = ""
    state: str = ""  # rewritten, kept (nothing to gain), there (done by an earlier run) or left
    problem: str = ""  # why it was left alone
    path: str = ""
    files: int = 1
    records: int = 0  # looked at because the plan names them
    revisits: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    refused: Counter[str] = field(default_factory=Counter)  # records that stay, by reason
    hosts: dict[str, list[int]] = field(default_factory=dict)  # revisits and bytes saved of each
    outside: dict[str, int] = field(default_factory=dict)  # revisits by files of an index
    leans: list[int] = field(default_factory=list)  # containers that its revisits refer to

    def add(self, other: RewriteOutcome) -> None:
        """Count another container."""
        for name in ("files", "records", "revisits", "bytes_before", "bytes_after"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.refused.update(other.refused)

    def as_json(self) -> dict[str, Any]:
        names = ("files", "records", "revisits", "bytes_before", "bytes_after")
        counts = {name: getattr(self, name) for name in names}
        return {**counts, "refused": dict(sorted(self.refused.items()))}


class Notes(Protocol):
    """Where each revisit is noted."""

    def add(self, entry: JournalEntry, source: BinaryIO, pin: Pin) -> None: ...


class NoNotes:
    """For dry runs."""

    def add(self, entry: JournalEntry, source: BinaryIO, pin: Pin) -> None:
        return None


def check_unchanged(container: ManifestContainer, file: BinaryIO) -> None:
    """Raise `Left` unless an open file is what was scanned.

    A copy of it at another place is recognised by its content.
    """
    status = os.fstat(file.fileno())
    if status.st_size != container.size:
        raise Left("its size is not that of when it was scanned")
    if status.st_mtime_ns == container.mtime_ns and status.st_ino == container.inode:
        return
    if content_hash(file) != container.content_hash:
        raise Left("it is not what was scanned")


def check_still(container: ManifestContainer, file: BinaryIO, before: os.stat_result) -> None:
    """Raise `Left` if a file has changed or was replaced since `before`."""
    try:
        now = os.fstat(file.fileno()), os.stat(container.path)
    except OSError as error:
        raise Left(f"it went away: {error.strerror}") from error
    if any(identity(status) != identity(before) for status in now):
        raise Left("it was changed while it was rewritten")


def build(
    job: RewriteJob,
    container: ManifestContainer,
    source: BinaryIO,
    sink: Sink,
    notes: Notes,
    originals: OriginalReader,
) -> RewriteOutcome:
    """Write all of a container to `sink`; raises `Left` or `OSError`."""
    outcome = RewriteOutcome(container.name, "rewritten", bytes_before=container.size)
    status = os.fstat(source.fileno())
    own = status.st_dev, status.st_ino
    position = 0
    leans: set[int] = set()
    for planned, referred in _with_pins(job.plan, container):
        line = planned.line
        outcome.records += 1
        try:
            if referred or line.offset < position:
                raise NotRewritable("pinned" if referred else "not-exact")
            original = originals.place(planned.original)
            place = RecordOnDisk(source, line.offset, line.stored, own)
            judged = judge(planned, place, original, job.plan.alike, minimum=job.size)
            member = _packed(judged)
            if line.stored - len(member) < job.gain:
                raise NotRewritable("no-gain")
        except Refused as refused:
            outcome.refused[refused.reason] += 1
            continue
        sink.copy(source, position, line.offset - position)
        at = sink.size
        _check(container, judged, *sink.write(member), len(member))
        position = line.offset + line.stored
        outcome.revisits += 1
        leans.add(planned.original.container)
        if planned.original.container in job.plan.outside():
            holder = job.plan.place(planned.original.container).path
            outcome.outside[holder] = outcome.outside.get(holder, 0) + 1
        host = outcome.hosts.setdefault(host_of(judged.response.url).decode("latin-1"), [0, 0])
        host[0], host[1] = host[0] + 1, host[1] + line.stored - len(member)
        entry = _entry(job, container, planned, judged, at, len(member))
        notes.add(entry, source, _pin(job, planned, judged, original))
    outcome.leans = sorted(leans - {container.number, *job.plan.outside()})
    if not outcome.revisits:
        outcome.state = "kept"
    if outcome.revisits or job.out is not None:  # in place, what has none simply stays
        sink.copy(source, position, container.size - position)
    outcome.bytes_after = sink.size if outcome.revisits else container.size
    return outcome


def _with_pins(plan: PlanReader, container: ManifestContainer) -> Iterator[tuple[Planned, bool]]:
    """The records to rewrite, and whether something else refers to them, so that they stay.

    That makes it impossible for two runs, or a wrong plan, to take the last copy away.
    """
    others = pinned(Path(container.path))  # by revisits of other sets
    pins = plan.pinned(container.number)
    pin = next(pins, -1)
    for planned in plan.of(container.number):
        while 0 <= pin < planned.line.offset:
            pin = next(pins, -1)
        line = planned.line
        yield planned, pin == line.offset or bool(others) and key(line.url, line.date) in others


def _pin(job: RewriteJob, planned: Planned, judged: Judged, original: RecordOnDisk) -> Pin:
    outside = planned.original.container in job.plan.outside()
    return Pin(
        key(judged.original.url, judged.original.date), original.identity if outside else None
    )


def _packed(judged: Judged) -> bytes:
    """A revisit as it stands in the container: one gzip member, or plain as the rest."""
    if not judged.response.single.gzipped:
        return judged.record
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, 31)
    return packer.compress(judged.record) + packer.flush()


def _check(
    container: ManifestContainer, judged: Judged, file: BinaryIO, offset: int, stored: int
) -> None:
    """Read a revisit back; raises `Damaged` unless it and its original make what was dropped."""
    try:
        sound = rebuilt(ExactRecord(file, offset, stored, last=True), judged)
    except NotExact:
        sound = False
    if not sound:
        place = f"{container.path} at {judged.response.single.offset}"
        raise Damaged(
            f"{place}: the revisit, read back, does not make the record that it stands for; "
            "nothing was replaced. Is the disk sound?"
        )


def _entry(
    job: RewriteJob,
    container: ManifestContainer,
    planned: Planned,
    judged: Judged,
    at: int,
    stored: int,
) -> JournalEntry:
    line, original = planned.line, planned.original
    holder = job.plan.place(original.container)
    inside = original.container not in job.plan.outside()
    here = inside and (job.out is not None or holder.root == container.root)
    return JournalEntry(
        line.offset, line.stored, at, stored,
        judged.response.header.decode("latin-1"), judged.sha256,
        "" if here else holder.root, holder.name, original.offset, original.stored,
        holder.size,
    )  # fmt: skip
