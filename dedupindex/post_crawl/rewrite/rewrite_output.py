"""One container, from its file to a file of its own beside the results, or in place of itself.

A file gets its name when it is whole, on disk, and its journal too. In place, the journal holds
the dropped members before the old file goes; each of the steps can be the last of a killed run:

    the new file, KEY.dropped and KEY.jsonl are written under other names, and forced to disk
    KEY.dropped, then KEY.jsonl get their names    from here on the next run begins afresh, or
    the new file takes the place of the old        finds that it is done
"""

from __future__ import annotations

import errno
import os
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

from dedupindex.errors import Damaged, DedupError
from dedupindex.post_crawl.manifest.lines import ManifestContainer
from dedupindex.post_crawl.rewrite.journal import Journal, JournalWriter, Was
from dedupindex.post_crawl.rewrite.original_files import OriginalReader
from dedupindex.post_crawl.rewrite.part_files import (
    hold,
    is_still,
    new_part,
    part_of,
    put,
    put_new,
    removed,
    sealed,
)
from dedupindex.post_crawl.rewrite.rewrite_file import (
    Left,
    NoNotes,
    RewriteJob,
    RewriteOutcome,
    build,
    check_still,
    check_unchanged,
)
from dedupindex.runtime.atomic_replace import (
    ComparingSink,
    DrySink,
    FileSink,
    being_written,
    content_hash,
    hash_of,
    keep_metadata,
    open_for_reading,
    same_bytes,
    written_to,
)

ANOTHER = "remove the folder, or name another with --out"


def rewrite_container(job: RewriteJob, container: ManifestContainer) -> RewriteOutcome:
    """Rewrite one container; what is left alone is told in the outcome.

    Raises `OSError` where there is no room or no right to write, and then nothing has changed.
    """
    if job.out is None and next(iter(job.plan.of(container.number)), None) is None:
        size = container.size
        return RewriteOutcome(container.name, "kept", bytes_before=size, bytes_after=size)
    try:
        with _opened(job, container) as source, _originals(job) as originals:
            if job.out is None and not job.dry:
                hold(source)
            if job.out is None and (done := _resumed(job, container, source, originals)):
                return done
            if job.out is None:
                _check_other_roots(container)
            before = os.fstat(source.fileno())
            check_unchanged(container, source)
            check_idle = being_written if job.dry or job.out is not None else written_to
            if check_idle(source):  # a lock in place is our own
                raise Left("some other process is writing to it")
            if job.dry:
                return _dry(job, container, source, originals)
            if job.out is None:
                return _in_place(job, container, source, before, originals)
            return _to_directory(job, container, source, before, originals)
    except Left as left:
        return _left(container, str(left))
    except OSError as error:
        if error.errno != errno.EIO:  # a sector that cannot be read is no matter of other files
            raise
        return _left(container, f"the disk fails: {error.strerror}")


def _originals(job: RewriteJob) -> closing[OriginalReader]:
    return closing(OriginalReader(job.plan, held=job.out is None and not job.dry, busy=job.busy))


def _left(container: ManifestContainer, why: str) -> RewriteOutcome:
    size = container.size
    return RewriteOutcome(container.name, "left", why, bytes_before=size, bytes_after=size)


def _opened(job: RewriteJob, container: ManifestContainer) -> BinaryIO:
    """The source; raises `Left` if it cannot be replaced as it should be."""
    path = Path(container.path)
    try:
        if job.out is None:
            if container.number in job.twice:  # nobody could tell where its originals went
                raise Left("the set has it by several names: name each file once")
            if path.is_symlink():
                raise Left("it is a symbolic link: name what it leads to")
            if path.stat().st_nlink > 1:
                raise Left("it has other names (hard links), which would keep its old content")
        return open_for_reading(path)
    except OSError as error:
        raise Left(f"it cannot be read: {error.strerror}") from error


def _dry(
    job: RewriteJob, container: ManifestContainer, source: BinaryIO, originals: OriginalReader
) -> RewriteOutcome:
    """What a real run would come to, which leaves alone what is there with another content."""
    target = job.out / container.name if job.out is not None else None
    if target is None or not target.exists():
        with closing(DrySink()) as sink:
            return build(job, container, source, sink, NoNotes(), originals)
    with open_for_reading(target) as there, closing(ComparingSink(there)) as comparing:
        outcome = build(job, container, source, comparing, NoNotes(), originals)
        if not comparing.same:
            raise _other_content(target)
    outcome.state = "there"
    return outcome


def _other_content(target: Path) -> Left:
    return Left(f"{target} is there already, with another content: {ANOTHER}")


def _to_directory(
    job: RewriteJob,
    container: ManifestContainer,
    source: BinaryIO,
    before: os.stat_result,
    originals: OriginalReader,
) -> RewriteOutcome:
    assert job.out is not None
    target = job.out / container.name
    target.parent.mkdir(parents=True, exist_ok=True)
    journal = Journal(job.out, container.name)
    part = part_of(target)
    with closing(JournalWriter(journal)) as writer, removed(part):
        writer.begin(_was(job, container, before), keep_dropped=False)
        with new_part(part) as file:
            outcome = build(job, container, source, FileSink(file), writer, originals)
            keep_metadata(source, file)
            os.fsync(file.fileno())
            _check_settled(container, source, before)
            if target.exists():
                with open_for_reading(target) as there:
                    if not same_bytes(file, there):
                        raise _other_content(target)
                outcome.state = "there"
            if outcome.revisits:
                writer.finish(outcome.bytes_after)
            if outcome.state != "there":
                try:
                    put_new(part, file, target)
                except FileExistsError as error:  # by a run to a folder above or below, since
                    journal.clear()
                    raise _other_content(target) from error
                except OSError:
                    journal.clear()  # it is of no file
                    raise
        return outcome


def _resumed(
    job: RewriteJob, container: ManifestContainer, source: BinaryIO, originals: OriginalReader
) -> RewriteOutcome | None:
    """What an earlier run has done to a container in place; None if that is still to be done.

    Removes what a killed run left, if this is no dry run; raises `Left` if that cannot be told.
    """
    journal = Journal(Path(container.root), container.name)
    if not job.dry:
        journal.discard_parts()
    if not (journal.exists() and journal.dropped.exists()):  # what --out wrote has dropped nothing
        return None
    was, ended = journal.summary()
    now = os.fstat(source.fileno())
    if (now.st_size, now.st_mtime_ns) == (was.size, was.mtime_ns):
        if not job.dry:  # killed before the new file took the place of the old, or was undone
            journal.clear()
        return None
    if (now.st_size, now.st_mtime_ns) != (ended.size, was.mtime_ns):
        raise Left(f"it is neither what {journal.lines} says that it was, nor what it became")
    if was.size != container.size:  # scanned since: well, unless it could get still smaller
        check_unchanged(container, source)
        with closing(DrySink()) as sink:
            again = build(job, container, source, sink, NoNotes(), originals)
        if not again.revisits:
            return again
        raise Left("an earlier run has rewritten it: --commit or --undo that first")
    counts = ended.revisits, ended.revisits, was.size, ended.size
    return RewriteOutcome(container.name, "there", "", container.path, 1, *counts)


def _in_place(
    job: RewriteJob,
    container: ManifestContainer,
    source: BinaryIO,
    before: os.stat_result,
    originals: OriginalReader,
) -> RewriteOutcome:
    path = Path(container.path)
    journal = Journal(Path(container.root), container.name)
    part = part_of(path)
    with closing(JournalWriter(journal)) as writer, removed(part):
        writer.begin(_was(job, container, before), keep_dropped=True)
        with new_part(part) as file:
            outcome = build(job, container, source, FileSink(file), writer, originals)
            if not outcome.revisits:
                return outcome
            keep_metadata(source, file)
            os.fsync(file.fileno())
            whole = sealed(part, file)
        with whole:
            if journal.exists():
                journal.set_aside()  # of --out, and still needed to undo that
            writer.finish(outcome.bytes_after)
            try:
                _check_undo(journal, part, container, source)
                _check_settled(container, source, before)
            except (Left, Damaged, OSError):
                journal.clear()
                raise
            _put(part, whole, path, source, journal)
        return outcome


def _put(part: Path, whole: BinaryIO, path: Path, source: BinaryIO, journal: Journal) -> None:
    """Replace the old file; raises `OSError` if it is still there, else `DedupError`."""
    try:
        put(part, whole, path)
    except (DedupError, OSError) as error:
        if is_still(path, source):
            journal.clear()
        elif isinstance(error, OSError):
            raise DedupError(
                f"{path}: {error}; what was dropped is kept: run the same again to go on"
            ) from error
        raise


def _check_undo(
    journal: Journal, part: Path, container: ManifestContainer, source: BinaryIO
) -> None:
    """Raise `Left` or `Damaged` unless the new file and its journal make what was scanned.

    That is true only if all that was copied and dropped is what was scanned, whatever times say.
    """
    if hash_of(journal.stretches(part)) == container.content_hash:
        return
    if content_hash(source) != container.content_hash:
        raise Left("its content is not what was scanned, although its size and time are")
    raise Damaged(
        f"{container.path}: what was written is not what was read; nothing was replaced. Is the "
        "disk sound?"
    )


def _check_settled(container: ManifestContainer, source: BinaryIO, before: os.stat_result) -> None:
    """Raise `Left` if the source is not at rest, just before a file made of it gets its name."""
    check_still(container, source, before)
    if written_to(source):
        raise Left("some other process began to write to it")


def _check_other_roots(container: ManifestContainer) -> None:
    """Raise `Left` if a run on a folder above or below the root has the file's old content."""
    root, path = Path(container.root).resolve(), Path(os.path.abspath(container.path))
    for name in {path, path.resolve()}:
        for folder in name.parents:
            journal = Journal(folder, str(name.relative_to(folder)))
            if folder.resolve() != root and journal.dropped.exists():
                raise Left(
                    f"a run on {folder} has rewritten it, and can be undone: --commit or --undo "
                    "that first"
                )


def _was(job: RewriteJob, container: ManifestContainer, before: os.stat_result) -> Was:
    return Was(
        container.name, container.size, before.st_mtime_ns, container.content_hash,
        job.options, job.plan.made_of,
    )  # fmt: skip
