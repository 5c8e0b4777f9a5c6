"""What came out, verified by code that did not write it, with the places of originals as hints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from dedupindex.post_crawl.manifest.lines import ManifestContainer
from dedupindex.post_crawl.rewrite.journal import Journal
from dedupindex.post_crawl.rewrite.moved import Offsets
from dedupindex.post_crawl.rewrite.rewrite_file import RewriteJob
from dedupindex.runtime.atomic_replace import hash_of
from dedupindex.verify.block_facts import moment
from dedupindex.verify.compare_files import verify_pair
from dedupindex.verify.file_bytes import Joined, UnreadableFile
from dedupindex.verify.issues import REMARK, Finding
from dedupindex.verify.locate_originals import OriginalHint, OriginalReference

_NAMED = 100  # findings of a file that are no remarks; more are only counted


@dataclass
class Proof:
    """What was found in one file, or in many."""

    files: int = 0
    size: int = 0  # of the files before, in bytes
    findings: Counter[str] = field(default_factory=Counter)  # by reason
    levels: Counter[str] = field(default_factory=Counter)
    named: list[Finding] = field(default_factory=list)  # the first that are no remarks

    @property
    def sound(self) -> bool:
        """Whether there is nothing but remarks."""
        return set(self.levels) <= {REMARK}

    def take(self, findings: Iterator[Finding]) -> None:
        """Count what was found in a file."""
        for finding in findings:
            self.findings[finding.reason] += 1
            self.levels[finding.level] += 1
            if finding.level != REMARK and len(self.named) < _NAMED:
                self.named.append(finding)

    def add(self, other: Proof) -> None:
        """Count another file."""
        self.files += other.files
        self.size += other.size
        self.findings.update(other.findings)
        self.levels.update(other.levels)
        self.named += islice(other.named, max(_NAMED - len(self.named), 0))


class Proving(NamedTuple):
    """What is proven of each container."""

    job: RewriteJob
    damaged: frozenset[str]  # files of which not all members could be followed


def prove(proving: Proving, container: ManifestContainer) -> Proof:
    """Compare a container with what it was; every revisit that was made must rebuild its record."""
    job, proof = proving.job, Proof(1, container.size)
    originals = _Originals(proving, container)
    try:
        if job.out is not None:
            old, new = Path(container.path), job.out / container.name
            proof.take(verify_pair(old, new, originals.find, originals.members))
        else:
            _prove_in_place(container, originals, proof)
    except (UnreadableFile, OSError) as error:
        message = f"this, or the file before, cannot be compared: {error}"
        proof.take(iter([Finding("unreadable", container.path, -1, "", message)]))
    return proof


def _prove_in_place(container: ManifestContainer, originals: _Originals, proof: Proof) -> None:
    """With its dropped members a container must be the file that was scanned, to the bit."""
    new = Path(container.path)
    journal = Journal(Path(container.root), container.name)
    if not journal.exists():
        return
    ranges = list(journal.stretches(new))
    if hash_of(ranges) != container.content_hash:
        message = "with the members in its journal it is not the file that was scanned"
        proof.take(iter([Finding("bytes-changed", container.path, -1, "", message)]))
    old = Joined(new, ranges)
    proof.take(verify_pair(old, new, originals.find, originals.members))


class _Originals:
    """Where the originals of a container's revisits are now, for `verify`, which reads them.

    It believes that records begin where the plan says: whoever made the manifest has followed them
    from the beginning of each file.
    """

    def __init__(self, proving: Proving, container: ManifestContainer) -> None:
        self._job, self._damaged = job, _ = proving
        self._files: dict[int, tuple[Path, Offsets | None]] = {}
        self._places: dict[tuple[bytes, bytes], set[OriginalHint]] = {}
        self.members: list[tuple[int, int]] = []  # where copies begin and end in the file before
        for planned in job.plan.of(container.number):
            line, original = planned.line, planned.original
            self.members.append((line.offset, line.offset + line.stored))
            place = self._place(original.container, original.offset)
            key = original.url, moment(original.date)
            self._places.setdefault(key, set()).add(place)

    def find(self, wanted: OriginalReference) -> Iterable[OriginalHint]:
        """See `verify.originals.FindOriginal`."""
        return self._places.get((wanted.url, moment(wanted.date)), ())

    def _place(self, number: int, offset: int) -> OriginalHint:
        if number not in self._files:
            self._files[number] = self._file(number)
        path, moved = self._files[number]
        plan = self._job.plan
        followed = number not in plan.outside() and plan.place(number).path not in self._damaged
        return OriginalHint(path, moved.now(offset) if moved else offset, followed)

    def _file(self, number: int) -> tuple[Path, Offsets | None]:
        job = self._job
        holder = job.plan.place(number)
        if number in job.plan.outside():
            return Path(holder.path), None  # an index has named it
        root = Path(holder.root) if job.out is None else job.out
        path, journal = root / holder.name, Journal(root, holder.name)
        if not path.exists():  # nor is the file before an excuse: the results must stand alone
            return path, None
        if path.stat().st_size == holder.size or not journal.exists():
            return path, None
        now = journal.lines.stat()
        return path, _offsets(root, holder.name, (now.st_ino, now.st_mtime_ns, now.st_size))


@lru_cache(256)
def _offsets(root: Path, name: str, _: tuple[int, int, int]) -> Offsets:
    """Where what stood in a container stands now; read once for all that refer to it."""
    return Journal(root, name).offsets()
