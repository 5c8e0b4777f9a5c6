"""The verification of what a deduplication run wrote, by code that has not written it."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from dedupindex.cache import Cache
from dedupindex.errors import Damaged
from dedupindex.object_store import ObjectFacts, facts_or_none, is_remote, task_rows
from dedupindex.post_crawl.manifest.parquet import ManifestContainer
from dedupindex.post_crawl.rewrite.journal import Journal, OffsetMap
from dedupindex.post_crawl.rewrite.result_place import (
    StoredPath,
    StorePlace,
    to_verify,
)
from dedupindex.post_crawl.rewrite.rewrite_file import RewriteJob
from dedupindex.post_crawl.rewrite.stored_journal import StoredJournal, download, stored_offsets
from dedupindex.runtime.atomic_replace import Untouched, hash_of
from dedupindex.runtime.spark import Cluster
from dedupindex.runtime.workers import side_by_side
from dedupindex.verify.block_facts import capture_key, timestamp14
from dedupindex.verify.compare_files import ComparedPart, verify_pair
from dedupindex.verify.file_bytes import Joined, Place, UnreadableFile
from dedupindex.verify.issues import REMARK, Finding
from dedupindex.verify.locate_originals import OriginalHint, OriginalReference, record_places

_NAMED = 100  # findings of a file that are kept, remarks excluded; more are only counted


@dataclass
class Proof:
    """What verification found in one file, or in many."""

    files: int = 0
    size: int = 0  # of the files before, in bytes
    findings: Counter[str] = field(default_factory=Counter)  # by reason
    levels: Counter[str] = field(default_factory=Counter)
    named: list[Finding] = field(default_factory=list)  # the first that are not remarks

    @property
    def sound(self) -> bool:
        """Whether there are only remarks."""
        return set(self.levels) <= {REMARK}

    def add_findings(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            self.findings[finding.reason] += 1
            self.levels[finding.level] += 1
            if finding.level != REMARK and len(self.named) < _NAMED:
                self.named.append(finding)

    def add(self, other: Proof) -> None:
        self.files += other.files
        self.size += other.size
        self.findings.update(other.findings)
        self.levels.update(other.levels)
        self.named = [*self.named, *other.named][:_NAMED]


class VerifyJob(NamedTuple):
    job: RewriteJob
    damaged: frozenset[str]  # paths of files in which not all members could be found
    seen: Cache[int, ObjectFacts] | None = None  # of results in a store, by number; of a process


def verify_containers(
    verify_job: VerifyJob, containers: list[ManifestContainer], jobs: int,
    cluster: Cluster | None = None,
) -> Iterator[Proof]:  # fmt: skip
    """Compare rewritten files with the files before, by code that has not written them.

    Files are divided for `jobs` processes, or large ones for a Spark `cluster`. A file is compared
    again as a whole if more than remarks is found in a part, so that findings do not depend on how
    it was divided; one in a store in any case. Yields one proof for each file, in any order.
    """
    plan = verify_job.job.plan
    parts = {file.number: [range(file.size)] for file in containers}
    numbers = parts.keys()
    parts |= plan.parts(jobs) if cluster is None else plan.task_parts(cluster.cores, numbers)
    tasks = [_VerifyTask(file, part) for file in containers for part in parts[file.number]]
    proofs: defaultdict[int, list[Proof]] = defaultdict(list)
    again = []
    for file, proof in _verified(verify_job, tasks, jobs, cluster):
        found = proofs[file.number]
        found.append(proof)
        if len(found) < len(parts[file.number]):
            continue
        stored = verify_job.job.store or is_remote(file.path)  # a store may err once
        if all(one.sound for one in found) or (len(found) == 1 and not stored):
            yield _proof_of(file, found)
        else:
            again.append(_VerifyTask(file, range(file.size)))
        del proofs[file.number]
    for file, proof in _verified(verify_job, again, jobs, cluster):
        yield _proof_of(file, [proof])


def _proof_of(file: ManifestContainer, parts: Iterable[Proof]) -> Proof:
    whole = Proof(1, file.size)
    for part in parts:
        whole.add(part)
    return whole


class _VerifyTask(NamedTuple):
    container: ManifestContainer
    part: range  # of `Plan.parts`, or of `Plan.task_parts`


def _verified(
    verify_job: VerifyJob, tasks: list[_VerifyTask], jobs: int, cluster: Cluster | None
) -> Iterator[tuple[ManifestContainer, Proof]]:
    """Compare parts of files; facts of objects are requested anew."""
    fresh = verify_job._replace(seen=Cache())
    if cluster is not None:
        return _verify_on(cluster, fresh, tasks)
    return side_by_side(_verify, fresh, tasks, jobs)


def _verify(verify_job: VerifyJob, task: _VerifyTask) -> tuple[ManifestContainer, Proof]:
    """Compare a part of a file; the proof does not count the file."""
    job, proof = verify_job.job, Proof()
    container, part = task
    old: Place | Joined = to_verify(container.path)
    new: Place = Path(container.path)
    with ExitStack() as copies:
        try:
            places = _original_places(verify_job, container, part)
            if job.out is not None:
                new = job.place.verified(container.name)
            else:  # with its dropped members the file must be the one that was scanned
                pair = _pair_in_place(container, copies)
                if pair is None:
                    return container, proof
                new, old = pair
                if not part.start and hash_of(old.ranges) != container.content_hash:
                    message = "with the members in its journal it is not the file that was scanned"
                    proof.add_findings([Finding("bytes-changed", container.path, -1, "", message)])
            ranges = _compared(container, part, places)
            found = verify_pair(old, new, places.find, places.members, ranges)
            if job.out is None and is_remote(container.path):  # copies were compared
                found = (finding._replace(file=container.path) for finding in found)
            proof.add_findings(found)
        except (UnreadableFile, OSError, Untouched, Damaged) as error:
            proof.add_findings([_unreadable(container, error)])
    return container, proof


def _pair_in_place(container: ManifestContainer, copies: ExitStack) -> tuple[Path, Joined] | None:
    """Return a replaced file, and the file before; None if it has no journal.

    An object, and what is kept of it, are copied into temporary files until `copies` are closed.
    """
    if not is_remote(container.path):
        path, journal = Path(container.path), Journal(Path(container.root), container.name)
        return (path, Joined(path, list(journal.old_content(path)))) if journal.exists() else None
    stored = StoredJournal(container.root, container.name)
    if not stored.exists():
        return None
    beside = Path(copies.enter_context(TemporaryDirectory(prefix="dedupindex-verify-")))
    journal = stored.mirrored(beside, dropped=True)
    path = beside / os.path.basename(container.name)
    download(stored.address, path)
    return path, Joined(path, list(journal.old_content(path)))


def _unreadable(container: ManifestContainer, error: Exception) -> Finding:
    message = f"this, or the file before, cannot be compared: {error}"
    return Finding("unreadable", container.path, -1, "", message)


class _StoredPair(NamedTuple):
    """What an executor of Spark needs to compare a part of a file with the file before.

    Both are in stores.
    """

    container: ManifestContainer
    new: Place
    places: _OriginalPlaces
    ranges: ComparedPart


def _verify_on(
    cluster: Cluster, verify_job: VerifyJob, tasks: list[_VerifyTask]
) -> Iterator[tuple[ManifestContainer, Proof]]:
    unreadable: list[tuple[ManifestContainer, Proof]] = []

    def pairs() -> Iterator[_StoredPair]:
        for file, part in tasks:
            try:
                places = _original_places(verify_job, file, part)
            except Damaged as error:
                unreadable.append((file, Proof()))
                unreadable[-1][1].add_findings([_unreadable(file, error)])
                continue
            new = verify_job.job.place.verified(file.name)
            yield _StoredPair(file, new, places, _compared(file, part, places))

    yield from task_rows(cluster, _verify_on_executor, pairs())
    yield from unreadable


def _verify_on_executor(pair: _StoredPair) -> Iterator[tuple[ManifestContainer, Proof]]:
    """Yield the proof of a part of a file, which does not count the file."""
    container, new, places, ranges = pair
    proof = Proof()
    try:
        old = to_verify(container.path)
        proof.add_findings(verify_pair(old, new, places.find, places.members, ranges))
    except (UnreadableFile, OSError) as error:
        proof.add_findings([_unreadable(container, error)])
    yield container, proof


def _compared(file: ManifestContainer, part: range, places: _OriginalPlaces) -> ComparedPart:
    return ComparedPart(part, places.part, part.stop == file.size)


class _FileNow(NamedTuple):
    """Where a file of the plan is now."""

    place: Place
    moved: OffsetMap | None = None  # from its offsets in the plan, if they are others now
    found: dict[bytes, list[int]] | None = None  # its records, if no journal has their offsets


class _OriginalPlaces(NamedTuple):
    """Where the originals of a file's revisits are now, if the plan is right: hints to `verify`."""

    members: list[tuple[int, int]]  # start and end of copies in the file before
    hints: dict[tuple[bytes, bytes], set[OriginalHint]]  # by URL and second
    part: range  # where the part of the file is now

    def find(self, wanted: OriginalReference) -> Iterable[OriginalHint]:
        """See `verify.locate_originals.FindOriginal`."""
        return self.hints.get((wanted.url, timestamp14(wanted.date)), ())


def _original_places(
    verify_job: VerifyJob, container: ManifestContainer, part: range
) -> _OriginalPlaces:
    job, damaged, _ = verify_job
    outside = job.plan.outside()
    places = _OriginalPlaces([], {}, _moved(verify_job, container, part))
    files: dict[int, _FileNow] = {}
    for planned in job.plan.copies(container.number, part):
        line, original = planned.line, planned.original
        number = original.container
        places.members.append((line.offset, line.offset + line.stored))
        if number not in files:
            files[number] = _file_now(verify_job, number)
        path, moved, found = files[number]
        hints = places.hints.setdefault((original.url, timestamp14(original.date)), set())
        if found is not None:
            key = capture_key(original.url, original.date)
            hints.update(OriginalHint(path, offset) for offset in found.get(key, ()))
            continue
        sound = number not in outside and job.plan.container(number).path not in damaged
        offset = moved.new(original.offset) if moved else original.offset
        hints.add(OriginalHint(path, offset, sound))
    return places


def _moved(verify_job: VerifyJob, container: ManifestContainer, part: range) -> range:
    """Return where a part of a file is now."""
    if part == range(container.size):
        return part
    moved = _file_now(verify_job, container.number).moved
    return range(moved.new(part.start), moved.new(part.stop)) if moved else part


def _file_now(verify_job: VerifyJob, number: int) -> _FileNow:
    job = verify_job.job
    container = job.plan.container(number)
    if number in job.plan.outside():
        return _FileNow(to_verify(container.path))
    if job.out is None:
        return _object_now(container) if is_remote(container.path) else _replaced_now(container)
    root, name, place = job.place.state, container.name, job.place
    journal = Journal(root, name)
    path: Place
    if isinstance(place, StorePlace):
        path, size = _result_now(verify_job, place, container)
    else:
        path, size = place.verified(name), place.size(name)
    if size in (None, container.size) or not journal.exists():
        return _FileNow(path)  # a missing file is not looked for among the sources
    now = journal.lines.stat()
    return _FileNow(path, _offsets(root, name, (now.st_ino, now.st_mtime_ns, now.st_size)))


def _replaced_now(container: ManifestContainer) -> _FileNow:
    """Return where a file of this machine is after a run in place.

    While that was interrupted, a run on a directory above or below may have replaced the file, or
    another program: then its originals are looked for in the file as it is.
    """
    path = Path(container.path)
    try:
        now = path.stat()
    except OSError:
        return _FileNow(path)  # what is read of it says why it cannot be read
    if (now.st_size, now.st_mtime_ns) == (container.size, container.mtime_ns):
        return _FileNow(path)
    root, name = Path(container.root), container.name
    journal = Journal(root, name)
    with suppress(FileNotFoundError, Damaged):
        lines, (before, after) = journal.lines.stat(), journal.summary()
        if (before.content_hash, after.size) == (container.content_hash, now.st_size):
            key = lines.st_ino, lines.st_mtime_ns, lines.st_size
            return _FileNow(path, _offsets(root, name, key))
    return _FileNow(path, None, _places_in(path, (now.st_ino, now.st_mtime_ns, now.st_size)))


@lru_cache(4)
def _places_in(path: Path, _: tuple[int, int, int]) -> dict[bytes, list[int]]:
    """Return the offsets of the full records of a file as it is now, by `capture_key`."""
    found: dict[bytes, list[int]] = {}
    for key, offset in record_places(path, references=False):
        found.setdefault(key, []).append(offset)
    return found


def _result_now(
    verify_job: VerifyJob, place: StorePlace, container: ManifestContainer
) -> tuple[Place, int | None]:
    """Return a result in a store and its size; its facts are requested once in a process.

    They are hints: what is read of it must still have its ETag.
    """
    seen = Cache[int, ObjectFacts]() if verify_job.seen is None else verify_job.seen
    known = seen.get(container.number) or place.facts(container.name)
    if known is None:
        return place.verified(container.name), None
    seen.keep(container.number, known)
    return StoredPath(place.shown(container.name), known), known.size


def _object_now(container: ManifestContainer) -> _FileNow:
    """Return an object, and its offsets now if a run in place has replaced it."""
    found, moved = facts_or_none(container.path), None
    if found is not None and found.size != container.size:
        with suppress(LookupError):
            moved = _offsets_now(container, found)
    return _FileNow(to_verify(container.path), moved)


@lru_cache(256)
def _offsets_now(container: ManifestContainer, now: ObjectFacts) -> OffsetMap:
    """Raises `LookupError`, which is not remembered, if there is no journal."""
    with TemporaryDirectory(prefix="dedupindex-verify-") as beside:
        moved = stored_offsets(container, now.size, Path(beside))
    if moved is None:
        raise LookupError(container.path)
    return moved


@lru_cache(256)
def _offsets(root: Path, name: str, _: tuple[int, int, int]) -> OffsetMap:
    """Return the offset map of a file, read once for all files that refer to it."""
    return Journal(root, name).offsets()
