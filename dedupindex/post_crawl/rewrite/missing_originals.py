"""Results whose originals did not come along: a second look, when all files have been written.

A file can be left alone after others have become revisits of records in it: another process began
to write it, a sector cannot be read, its target has another content. Those others are then copied
whole, so that a folder never refers to what is not in it.
"""

from __future__ import annotations

import errno
import os
import pickle
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from tempfile import TemporaryFile
from typing import BinaryIO

from dedupindex.errors import Damaged, DedupError
from dedupindex.post_crawl.manifest.lines import ManifestContainer
from dedupindex.post_crawl.rewrite.journal import Journal, entries, summary
from dedupindex.post_crawl.rewrite.part_files import new_part, part_of, put
from dedupindex.post_crawl.rewrite.rewrite_file import (
    Left,
    RewriteJob,
    RewriteOutcome,
    check_still,
    check_unchanged,
)
from dedupindex.runtime.atomic_replace import (
    FileSink,
    content_hash,
    keep_metadata,
    open_for_reading,
    written_to,
)
from dedupindex.runtime.files import sync_directory


def settled(job: RewriteJob, outcomes: Iterable[RewriteOutcome]) -> Iterator[RewriteOutcome]:
    """All outcomes of a run to a directory, then what must be added to some of them.

    What is added takes back revisits of originals that are not in the directory.
    """
    numbers = {one.name: number for number, one in job.plan.containers().items()}
    gone: set[int] = set()
    with TemporaryFile() as spool:
        for outcome in outcomes:
            if outcome.state == "left":
                gone.add(numbers[outcome.name])
            elif outcome.leans:
                pickle.dump(outcome, spool)
            yield outcome
        gone = {number for number in gone if not _stands(job, number)}
        taken_back: set[str] = set()
        while gone:
            removed = set()
            for outcome in _spooled(spool):
                if outcome.name in taken_back or gone.isdisjoint(outcome.leans):
                    continue
                taken_back.add(outcome.name)
                yield (added := _taken_back(job, numbers[outcome.name], outcome))
                if added.state == "left":
                    removed.add(numbers[outcome.name])
            gone = removed


def _spooled(spool: BinaryIO) -> Iterator[RewriteOutcome]:
    spool.seek(0)
    while True:
        try:
            yield pickle.load(spool)  # noqa: S301 (nobody else has this file)
        except EOFError:
            return


def _stands(job: RewriteJob, number: int) -> bool:
    """Whether a container that was left alone has its originals in the directory even so."""
    assert job.out is not None
    container = job.plan.place(number)
    try:
        with open_for_reading(job.out / container.name) as there:
            size = os.fstat(there.fileno()).st_size
            if size == container.size:
                return content_hash(there) == container.content_hash
        told = Journal(job.out, container.name).of_size(size, container.size)
        if told is None or summary(told)[0].content_hash != container.content_hash:
            return False
        pinned = set(job.plan.pinned(number))
        return all(entry.offset not in pinned for entry in entries(told))
    except (OSError, ValueError, KeyError, TypeError, Damaged):
        return False


def _taken_back(job: RewriteJob, number: int, outcome: RewriteOutcome) -> RewriteOutcome:
    """Copy a container whole, instead of what was made of it; what that adds to its outcome."""
    added = RewriteOutcome(
        outcome.name, "kept", "", outcome.path, 0, 0, -outcome.revisits, 0,
        outcome.bytes_before - outcome.bytes_after,
        hosts={host: [-made, -saved] for host, (made, saved) in outcome.hosts.items()},
        outside={path: -made for path, made in outcome.outside.items()},
    )  # fmt: skip
    try:
        if not job.dry:
            _copy_whole(job, job.plan.place(number))
        added.refused = Counter({"original-left": outcome.revisits})
    except Left as left:
        added.state = "left"
        added.problem = f"originals of its copies were left alone, and then: {left}"
    except OSError as error:
        raise DedupError(
            f"{outcome.path}: {error.strerror or error}; it refers to files that were left alone: "
            "run the same again to go on"
        ) from error
    return added


def _copy_whole(job: RewriteJob, container: ManifestContainer) -> None:
    """Raises `Left` if the container cannot be copied; then nothing is left of what was made."""
    assert job.out is not None
    target, journal = job.out / container.name, Journal(job.out, container.name)
    part = part_of(target)
    try:
        with new_part(part) as into:
            _copied(container, into)
            journal.clear()
            put(part, into, target)
    except Left:
        journal.clear()
        target.unlink(missing_ok=True)
        raise
    finally:
        part.unlink(missing_ok=True)
        sync_directory(target.parent)


def _copied(container: ManifestContainer, into: BinaryIO) -> None:
    try:
        with closing(open_for_reading(container.path)) as source:
            before = os.fstat(source.fileno())
            check_unchanged(container, source)
            FileSink(into).copy(source, 0, container.size)
            keep_metadata(source, into)
            os.fsync(into.fileno())
            check_still(container, source, before)
            if written_to(source):
                raise Left("some other process began to write to it")
    except (FileNotFoundError, Damaged) as error:
        raise Left(f"it was changed while it was copied: {error}") from error
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise Left(f"the disk fails: {error.strerror}") from error
