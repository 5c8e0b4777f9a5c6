"""Rewrite one file, to a directory or in place.

A result gets its name when it is complete and on disk, together with its journal. In place, the
journal holds the dropped members before the old file is replaced. A run may be interrupted at each
of these steps:

    the new file, KEY.dropped and KEY.jsonl are written under temporary names and forced to disk
    KEY.dropped, then KEY.jsonl are renamed     from here on the next run starts again, or
    the new file replaces the old one           finds that everything is done
"""

from __future__ import annotations

import errno
import os
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

from dedupindex.errors import Damaged, DedupError
from dedupindex.post_crawl.manifest.lines import ManifestContainer
from dedupindex.post_crawl.rewrite.journal import FileBefore, Journal, JournalWriter
from dedupindex.post_crawl.rewrite.rewrite_file import (
    OriginalReader,
    RewriteJob,
    RewriteOutcome,
    check_settled,
    check_unchanged,
    write_file,
)
from dedupindex.runtime.atomic_replace import (
    ComparingSink,
    DrySink,
    FileSink,
    Untouched,
    being_written,
    content_hash,
    copy_metadata,
    create_file,
    has_writer,
    hash_of,
    is_still,
    lock_source,
    open_for_reading,
    open_part,
    part_path,
    removing,
    reopen_read_only,
    replace_file,
    same_bytes,
)

ANOTHER = "remove the folder, or name another with --out"


def rewrite_container(job: RewriteJob, container: ManifestContainer) -> RewriteOutcome:
    """Rewrite one file; the outcome says if and why it was left alone.

    Raises `OSError` if the result cannot be written, and `DedupError` if it cannot be renamed or
    forced to disk.
    """
    if job.out is None and next(iter(job.plan.copies(container.number)), None) is None:
        return _outcome(container, "kept")
    try:
        with _opened(job, container) as source, closing(_originals(job)) as originals:
            if job.out is None and not job.dry:
                lock_source(source)
            return _Rewriter(job, container, source, originals).run()
    except Untouched as untouched:
        return _outcome(container, "left", str(untouched))
    except OSError as error:
        if error.errno != errno.EIO:  # a sector that cannot be read concerns this file only
            raise
        return _outcome(container, "left", f"the disk fails: {error.strerror}")


def _originals(job: RewriteJob) -> OriginalReader:
    return OriginalReader(job.plan, locked=job.out is None and not job.dry, busy=job.busy)


def _outcome(container: ManifestContainer, state: str, problem: str = "") -> RewriteOutcome:
    size = container.size
    return RewriteOutcome(container.name, state, problem, bytes_before=size, bytes_after=size)


def _opened(job: RewriteJob, container: ManifestContainer) -> BinaryIO:
    """Open the source; raises `Untouched` if it cannot be read, or not be replaced safely."""
    path = Path(container.path)
    try:
        if job.out is None:
            if container.number in job.aliased:  # its originals would be in two journals
                raise Untouched("the set has it by several names: name each file once")
            if path.is_symlink():
                raise Untouched("it is a symbolic link: name what it leads to")
            if path.stat().st_nlink > 1:
                raise Untouched("it has other names (hard links), which would keep its old content")
        return open_for_reading(path)
    except OSError as error:
        raise Untouched(f"it cannot be read: {error.strerror}") from error


class _Rewriter:
    """Rewrites one open file; methods raise `Untouched` where it must be left alone."""

    def __init__(
        self, job: RewriteJob, container: ManifestContainer, source: BinaryIO,
        originals: OriginalReader,
    ) -> None:  # fmt: skip
        self._job, self._container, self._source = job, container, source
        self._originals = originals
        self._journal = Journal(job.out or Path(container.root), container.name)
        self._before = os.fstat(source.fileno())

    def run(self) -> RewriteOutcome:
        job = self._job
        if job.out is None:
            if done := self._done_before():
                return done
            self._check_other_roots()
        check_unchanged(self._container, self._source)
        is_busy = being_written if job.dry or job.out is not None else has_writer  # ours is locked
        if is_busy(self._source):
            raise Untouched("some other process is writing to it")
        if job.dry:
            return self._dry()
        return self._in_place() if job.out is None else self._to_directory(job.out)

    def _write(
        self, sink: FileSink | DrySink, journal: JournalWriter | None = None
    ) -> RewriteOutcome:
        return write_file(self._job, self._container, self._source, sink, self._originals, journal)

    def _counted(self) -> RewriteOutcome:
        with closing(DrySink()) as sink:
            return self._write(sink)

    def _dry(self) -> RewriteOutcome:
        """Return what a real run would; that leaves an existing file with another content alone."""
        out = self._job.out
        target = out / self._container.name if out is not None else None
        if target is None or not target.exists():
            return self._counted()
        with open_for_reading(target) as existing, closing(ComparingSink(existing)) as comparing:
            outcome = self._write(comparing)
            if not comparing.same:
                raise _other_content(target)
        outcome.state = "there"
        return outcome

    def _to_directory(self, out: Path) -> RewriteOutcome:
        target = out / self._container.name
        target.parent.mkdir(parents=True, exist_ok=True)
        part = part_path(target)
        with closing(JournalWriter(self._journal)) as writer, removing(part):
            writer.begin(self._file_before(), keep_dropped=False)
            with open_part(part) as file:
                outcome = self._write(FileSink(file), writer)
                copy_metadata(self._source, file)
                os.fsync(file.fileno())
                check_settled(self._container, self._source, self._before)
                if target.exists():
                    with open_for_reading(target) as existing:
                        if not same_bytes(file, existing):
                            raise _other_content(target)
                    outcome.state = "there"
                if outcome.revisits:
                    writer.finish(outcome.bytes_after)
                if outcome.state != "there":
                    self._create(part, file, target)
            return outcome

    def _create(self, part: Path, file: BinaryIO, target: Path) -> None:
        try:
            create_file(part, file, target)
        except FileExistsError as error:  # a run to a folder above or below has written it since
            self._journal.clear()
            raise _other_content(target) from error
        except OSError:
            self._journal.clear()  # there is no file that it describes
            raise

    def _done_before(self) -> RewriteOutcome | None:
        """Return what an earlier run in place did to the file; None if it is still to be done.

        Unless dry, removes what an interrupted run left.
        """
        job, container, journal = self._job, self._container, self._journal
        if not job.dry:
            journal.discard_parts()
        if not (journal.exists() and journal.dropped.exists()):  # --out keeps no dropped members
            return None
        old, new = journal.summary()
        now = self._before.st_size, self._before.st_mtime_ns
        if now == (old.size, old.mtime_ns):
            if not job.dry:  # killed before the new file replaced the old, or undone
                journal.clear()
            return None
        if now != (new.size, old.mtime_ns):
            raise Untouched(
                f"it is neither what {journal.lines} says that it was, nor what it became"
            )
        if old.size != container.size:  # scanned since
            check_unchanged(container, self._source)
            again = self._counted()
            if not again.revisits:
                return again
            raise Untouched("an earlier run has rewritten it: --commit or --undo that first")
        counts = new.revisits, new.revisits, old.size, new.size
        return RewriteOutcome(container.name, "there", "", container.path, 1, *counts)

    def _in_place(self) -> RewriteOutcome:
        path, journal = Path(self._container.path), self._journal
        part = part_path(path)
        with closing(JournalWriter(journal)) as writer, removing(part):
            writer.begin(self._file_before(), keep_dropped=True)
            with open_part(part) as file:
                outcome = self._write(FileSink(file), writer)
                if not outcome.revisits:
                    return outcome
                copy_metadata(self._source, file)
                os.fsync(file.fileno())
                reader = reopen_read_only(part, file)
            with reader:
                if journal.exists():
                    journal.set_aside()  # that of a run with --out, needed to undo that
                writer.finish(outcome.bytes_after)
                try:
                    self._check_undo(part)
                    check_settled(self._container, self._source, self._before)
                except (Untouched, Damaged, OSError):
                    journal.clear()
                    raise
                self._replace(part, reader, path)
            return outcome

    def _replace(self, part: Path, file: BinaryIO, path: Path) -> None:
        """Replace the old file; raises `OSError` if it is still there, otherwise `DedupError`."""
        try:
            replace_file(part, file, path)
        except (DedupError, OSError) as error:
            if is_still(path, self._source):
                self._journal.clear()
            elif isinstance(error, OSError):
                raise DedupError(
                    f"{path}: {error}; what was dropped is kept: run the same again to go on"
                ) from error
            raise

    def _check_undo(self, part: Path) -> None:
        """Check that the new file and the dropped members make the file that was scanned.

        Raises `Untouched` if the source is no longer what was scanned, otherwise `Damaged`.
        """
        container = self._container
        if hash_of(self._journal.old_content(part)) == container.content_hash:
            return
        if content_hash(self._source) != container.content_hash:
            raise Untouched("its content is not what was scanned, although its size and time are")
        raise Damaged(
            f"{container.path}: what was written is not what was read; nothing was replaced. Is "
            "the disk sound?"
        )

    def _check_other_roots(self) -> None:
        """Check that no run on a folder above or below the root keeps the file's old content."""
        container = self._container
        root, path = Path(container.root).resolve(), Path(os.path.abspath(container.path))
        for name in {path, path.resolve()}:
            for folder in name.parents:
                journal = Journal(folder, str(name.relative_to(folder)))
                if folder.resolve() != root and journal.dropped.exists():
                    raise Untouched(
                        f"a run on {folder} has rewritten it, and can be undone: --commit or "
                        "--undo that first"
                    )

    def _file_before(self) -> FileBefore:
        container, job = self._container, self._job
        return FileBefore(
            container.name, container.size, self._before.st_mtime_ns, container.content_hash,
            job.options, job.plan.made_of,
        )  # fmt: skip


def _other_content(target: Path) -> Untouched:
    return Untouched(f"{target} is there already, with another content: {ANOTHER}")
