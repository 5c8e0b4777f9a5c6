"""Replace results whose originals are not in the directory of the results by whole copies.

A file can be left alone after others have become revisits of records in it: another process began
to write to it, a sector cannot be read, or its target has another content. The files that refer
to it are then copied whole, so that a directory never refers to records that are not in it.
"""

from __future__ import annotations

import errno
import os
import pickle
from collections import Counter
from collections.abc import Iterable, Iterator
from tempfile import TemporaryFile
from typing import BinaryIO

from dedupindex.errors import Damaged, DedupError
from dedupindex.post_crawl.manifest.lines import ManifestContainer
from dedupindex.post_crawl.rewrite.journal import Journal, entries, summary
from dedupindex.post_crawl.rewrite.rewrite_file import (
    RewriteJob,
    RewriteOutcome,
    check_settled,
    check_unchanged,
)
from dedupindex.runtime.atomic_replace import (
    FileSink,
    Untouched,
    content_hash,
    copy_metadata,
    open_for_reading,
    open_part,
    part_path,
    removing,
    replace_file,
)
from dedupindex.runtime.files import sync_directory


def with_corrections(
    job: RewriteJob, outcomes: Iterable[RewriteOutcome]
) -> Iterator[RewriteOutcome]:
    """Yield the outcomes of a run to a directory, then what must be added to some of them.

    A correction takes back the revisits of a file that refers to a file that was left alone.
    """
    numbers = {one.name: number for number, one in job.plan.containers().items()}
    missing: set[int] = set()
    with TemporaryFile() as spool:
        for outcome in outcomes:
            if outcome.state == "left":
                missing.add(numbers[outcome.name])
            elif outcome.original_files:
                pickle.dump(outcome, spool)
            yield outcome
        missing = {number for number in missing if not _has_originals(job, number)}
        corrected: set[str] = set()
        while missing:
            removed = set()
            for outcome in _spooled(spool):
                if outcome.name in corrected or missing.isdisjoint(outcome.original_files):
                    continue
                corrected.add(outcome.name)
                yield (correction := _correction(job, numbers[outcome.name], outcome))
                if correction.state == "left":
                    removed.add(numbers[outcome.name])
            missing = removed


def _spooled(spool: BinaryIO) -> Iterator[RewriteOutcome]:
    spool.seek(0)
    while True:
        try:
            yield pickle.load(spool)  # noqa: S301 (nobody else has this file)
        except EOFError:
            return


def _has_originals(job: RewriteJob, number: int) -> bool:
    """Whether the directory has the originals of a file that was left alone."""
    assert job.out is not None
    container = job.plan.container(number)
    try:
        with open_for_reading(job.out / container.name) as result:
            size = os.fstat(result.fileno()).st_size
            if size == container.size:
                return content_hash(result) == container.content_hash
        journal = Journal(job.out, container.name).of_size(size, container.size)
        if journal is None or summary(journal)[0].content_hash != container.content_hash:
            return False
        offsets = set(job.plan.protected(number))
        return all(entry.offset not in offsets for entry in entries(journal))
    except (OSError, ValueError, KeyError, TypeError, Damaged):
        return False


def _correction(job: RewriteJob, number: int, outcome: RewriteOutcome) -> RewriteOutcome:
    """Copy a file whole in place of its result; returns what that adds to its outcome."""
    correction = RewriteOutcome(
        outcome.name, "kept", "", outcome.path, 0, 0, -outcome.revisits, 0,
        outcome.bytes_before - outcome.bytes_after,
        hosts={host: [-made, -saved] for host, (made, saved) in outcome.hosts.items()},
        outside={path: -made for path, made in outcome.outside.items()},
    )  # fmt: skip
    try:
        if not job.dry:
            _copy_whole(job, job.plan.container(number))
        correction.refused = Counter({"original-left": outcome.revisits})
    except Untouched as untouched:
        correction.state = "left"
        correction.problem = f"originals of its copies were left alone, and then: {untouched}"
    except OSError as error:
        raise DedupError(
            f"{outcome.path}: {error.strerror or error}; it refers to files that were left alone: "
            "run the same again to go on"
        ) from error
    return correction


def _copy_whole(job: RewriteJob, container: ManifestContainer) -> None:
    """Replace a result by a copy of its source; if that fails, remove it and raise `Untouched`."""
    assert job.out is not None
    target, journal = job.out / container.name, Journal(job.out, container.name)
    part = part_path(target)
    try:
        with removing(part), open_part(part) as file:
            _copy(container, file)
            journal.clear()
            replace_file(part, file, target)
    except Untouched:
        journal.clear()
        target.unlink(missing_ok=True)
        raise
    finally:
        sync_directory(target.parent)


def _copy(container: ManifestContainer, target: BinaryIO) -> None:
    try:
        with open_for_reading(container.path) as source:
            before = os.fstat(source.fileno())
            check_unchanged(container, source)
            FileSink(target).copy(source, 0, container.size)
            copy_metadata(source, target)
            os.fsync(target.fileno())
            check_settled(container, source, before)
    except (FileNotFoundError, Damaged) as error:
        raise Untouched(f"it was changed while it was copied: {error}") from error
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise Untouched(f"the disk fails: {error.strerror}") from error
