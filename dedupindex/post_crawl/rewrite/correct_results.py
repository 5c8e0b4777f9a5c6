"""Correct results that refer to files which were left alone.

Whole copies take the place of these results, so that a directory of results never refers to records
that are not in it. Only what this run writes is corrected, and what an interrupted one wrote that
it resumes. Results of runs that have ended stay: if one of them is not what a run makes, somebody
may have taken a record out of it on purpose, and copies of the sources could bring that back.
"""

from __future__ import annotations

import errno
import os
import pickle
from collections import Counter
from collections.abc import Iterable, Iterator, Set
from io import BufferedRandom
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO

from dedupindex.errors import Damaged, DedupError
from dedupindex.post_crawl.manifest.parquet import ManifestContainer
from dedupindex.post_crawl.rewrite.journal import Journal, OffsetMap, entries, summary
from dedupindex.post_crawl.rewrite.result_place import opened_source
from dedupindex.post_crawl.rewrite.rewrite_file import RewriteJob, check_settled, check_unchanged
from dedupindex.post_crawl.rewrite.rewrite_outcome import RewriteOutcome
from dedupindex.post_crawl.rewrite.undo_directory import mark_uncorrected, uncorrected
from dedupindex.runtime.atomic_replace import (
    FileSink,
    Untouched,
    content_hash,
    copy_metadata,
    open_part,
    part_path,
    removing,
    same_range,
)
from dedupindex.runtime.files import sync_directory


def with_corrections(
    job: RewriteJob, outcomes: Iterable[RewriteOutcome]
) -> Iterator[RewriteOutcome]:
    """Yield the outcomes of a run to a directory, then what must be added to some of them.

    A correction takes back the revisits of a file that refers to a file that was left alone. A
    result that stays although it refers to one has the state `referring`.
    """
    assert job.out is not None
    numbers = {file.name: number for number, file in job.containers().items()}
    # A run of an earlier version recorded nothing: it counts as one that has ended.
    ours = earlier = uncorrected(job.out)
    if not job.dry:
        ours = earlier | (numbers.keys() - job.place.existing(numbers))
        mark_uncorrected(job.out, ours)
    left: set[str] = set()
    with TemporaryFile() as spool:
        for outcome in outcomes:
            if outcome.state == "left_alone":
                left.add(outcome.name)
            elif outcome.original_files:
                pickle.dump(outcome, spool)
            elif not (outcome.revisits or job.dry):
                Journal(job.out, outcome.name).clear_stale(outcome.bytes_after)
            yield outcome
        yield from _corrections(job, numbers, {numbers[name] for name in left}, ours, spool)
    if not job.dry:  # what was left alone is named, and if it refers to such a file, in each run
        mark_uncorrected(job.out, earlier - numbers.keys())


def _corrections(
    job: RewriteJob, numbers: dict[str, int], missing: set[int], ours: Set[str],
    spool: BufferedRandom,
) -> Iterator[RewriteOutcome]:  # fmt: skip
    """Correct the results that refer to `missing` files, and those that refer to these in turn.

    Of the results that were there only `ours` are corrected.
    """
    referred = _referred(job, numbers, missing, spool)
    missing = {one for one in missing if not _has_originals(job, one, referred[one])}
    seen: set[str] = set()
    while missing:
        removed = set()
        for outcome in _spooled(spool):
            if outcome.name in seen or missing.isdisjoint(outcome.original_files):
                continue
            seen.add(outcome.name)
            if outcome.state == "existing" and outcome.name not in ours:
                yield RewriteOutcome(outcome.name, "referring", path=outcome.path, files=0)
                continue
            yield (correction := _correction(job, numbers[outcome.name], outcome))
            if correction.state == "left_alone":
                removed.add(numbers[outcome.name])
        missing = removed


def _spooled(spool: BufferedRandom) -> Iterator[RewriteOutcome]:
    spool.seek(0)
    while spool.peek(1):
        yield pickle.load(spool)  # noqa: S301 (nobody else has this file)


def _referred(
    job: RewriteJob, numbers: dict[str, int], missing: set[int], spool: BufferedRandom
) -> dict[int, set[tuple[int, int]]]:
    """Return offset and size of the originals in `missing` files that revisits may refer to."""
    found: dict[int, set[tuple[int, int]]] = {number: set() for number in missing}
    for outcome in _spooled(spool) if missing else ():
        if not missing.isdisjoint(outcome.original_files):
            for planned in job.plan.copies(numbers[outcome.name]):
                if (original := planned.original).container in missing:
                    found[original.container].add((original.offset, original.stored))
    return found


def _has_originals(job: RewriteJob, number: int, originals: set[tuple[int, int]]) -> bool:
    """Whether the directory has `originals` of a file that was left alone, as its source has."""
    container = job.plan.container(number)
    try:
        with job.place.opened(container.name) as result:
            size = os.fstat(result.fileno()).st_size
            if size == container.size:
                return content_hash(result) == container.content_hash
            moved = _moved(job, container, size)
            if moved is None or any(moved.is_revisit(one) for one in job.plan.protected(number)):
                return False
            if not originals:
                return True
            with opened_source(container) as source:
                return all(
                    same_range(source, offset, result, moved.new(offset), stored)
                    for offset, stored in sorted(originals)
                )
    except (OSError, ValueError, KeyError, TypeError, Damaged, Untouched):
        return False


def _moved(job: RewriteJob, container: ManifestContainer, size: int) -> OffsetMap | None:
    """Return the offsets in a result of this size; None if no journal describes it."""
    assert job.out is not None
    journal = Journal(job.out, container.name)
    for lines in filter(Path.exists, (journal.lines, *journal.committed())):
        before, after = summary(lines)
        if (before.size, after.size) == (container.size, size):
            unchanged = before.content_hash == container.content_hash
            return OffsetMap(entries(lines)) if unchanged else None
    return None


def _correction(job: RewriteJob, number: int, outcome: RewriteOutcome) -> RewriteOutcome:
    """Copy a file whole in place of its result; returns what that adds to its outcome."""
    correction = RewriteOutcome(
        outcome.name, "kept", "", outcome.path, 0, 0, -outcome.revisits, 0,
        outcome.bytes_before - outcome.bytes_after,
        hosts={host: [-made, -saved] for host, (made, saved) in outcome.hosts.items()},
        outside={path: -made for path, made in outcome.outside.items()}, journal=-outcome.journal,
        removed=-outcome.removed, trusted=-outcome.trusted,
        zstd_originals=Counter({path: -made for path, made in outcome.zstd_originals.items()}),
    )  # fmt: skip
    try:
        if not job.dry:
            _copy_whole(job, job.plan.container(number))
        correction.refuse("original-left-alone", outcome.removed, outcome.revisits)
    except Untouched as untouched:
        correction.state = "left_alone"
        correction.problem = f"originals of its copies were left alone, and then: {untouched}"
    except OSError as error:
        raise DedupError(
            f"{outcome.path}: {error.strerror or error}; it refers to files that were left alone: "
            "run the same command again to resume"
        ) from error
    return correction


def _copy_whole(job: RewriteJob, container: ManifestContainer) -> None:
    """Replace a result by a copy of its source; if that fails, remove it and raise `Untouched`."""
    assert job.out is not None
    target, journal = job.out / container.name, Journal(job.out, container.name)
    part = part_path(target)
    target.parent.mkdir(parents=True, exist_ok=True)  # of a store, and rewritten elsewhere
    try:
        with removing(part), open_part(part) as file:
            _copy(container, file)
            job.place.replace(part, file, container.name)
        journal.clear()
    except Untouched:
        job.place.remove(container.name)
        journal.clear()
        raise
    finally:
        sync_directory(target.parent)


def _copy(container: ManifestContainer, target: BinaryIO) -> None:
    try:
        with opened_source(container) as source:
            before = os.fstat(source.fileno())
            check_unchanged(container, source)
            FileSink(target).copy(source, 0, container.size)
            copy_metadata(source, target, replaces=False)
            os.fsync(target.fileno())
            check_settled(container, source, before)
    except (FileNotFoundError, Damaged) as error:
        raise Untouched(f"it was changed while it was copied: {error}") from error
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise Untouched(f"the disk fails: {error.strerror}") from error
