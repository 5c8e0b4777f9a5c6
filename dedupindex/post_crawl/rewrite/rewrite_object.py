"""Replace one object of a store by its rewritten content, with a journal beside it.

The new content and the journal are made in temporary files, and must make the object that was
scanned. Then each is an object that was read back, and only then is the object replaced, if it
still has the ETag of the scan. A run may be interrupted at each request; the same run, repeated,
finds what is there, compares it, and does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

from dedupindex.errors import Damaged, DedupError, SettingsConflict
from dedupindex.object_store import facts_or_none, is_object, remove_object, replace_object
from dedupindex.post_crawl.manifest.parquet import ManifestContainer
from dedupindex.post_crawl.plan.plan_file import Planned
from dedupindex.post_crawl.rewrite.check_copies import Replacement
from dedupindex.post_crawl.rewrite.journal import FileBefore, Journal, JournalWriter
from dedupindex.post_crawl.rewrite.rewrite_file import (
    FileRewriter,
    RewriteJob,
    check_unchanged,
    journaled_outcome,
    opened_container,
    record_checker,
)
from dedupindex.post_crawl.rewrite.rewrite_outcome import RewriteOutcome, outcome_of
from dedupindex.post_crawl.rewrite.stored_journal import (
    StoredJournal,
    check_other_roots,
    download,
    journal_sizes,
    makes_old_file,
    summary_of,
)
from dedupindex.post_crawl.rewrite.undo_directory import DIRECTORY
from dedupindex.runtime.atomic_replace import FileSink, Untouched

_READS = 3  # of an object, before it is said to be another than expected
_EARLIER = "an earlier run has rewritten it: --commit or --undo that first"


def rewrite_object(job: RewriteJob, container: ManifestContainer) -> RewriteOutcome:
    """Replace an object; the outcome says if and why it was left alone.

    Raises `OSError` if temporary files cannot be written, and `DedupError` if the store fails.
    """
    if next(iter(job.plan.copies(container.number)), None) is None:
        return outcome_of(container, "kept")
    stored = StoredJournal(container.root, container.name)
    try:
        with TemporaryDirectory(prefix="dedupindex-in-place-") as beside:
            if stored.exists() and (done := _done_before(job, container, stored, Path(beside))):
                return done
            check_other_roots(container)
            return _rewritten(job, container, Path(beside), ObjectRewriter.replace)
    except Untouched as untouched:
        return outcome_of(container, "left_alone", str(untouched))


def check_resumed_in_store(job: RewriteJob, containers: Iterable[ManifestContainer]) -> None:
    """Raise `SettingsConflict` if objects were replaced by other options or another plan."""
    by_root: dict[str, list[ManifestContainer]] = {}
    for container in containers:
        by_root.setdefault(container.root, []).append(container)
    for root, found in by_root.items():
        kept = journal_sizes(root)
        for container in found:
            stored = StoredJournal(root, container.name)
            if stored.lines.rpartition("/")[2] in kept:
                _check_same_run(job, container, stored)


def _check_same_run(job: RewriteJob, container: ManifestContainer, stored: StoredJournal) -> None:
    try:
        with TemporaryDirectory(prefix="dedupindex-journal-") as beside:
            before, after = stored.mirrored(Path(beside), dropped=False).summary()
    except (Untouched, Damaged):  # reported when the object is rewritten
        return
    now = facts_or_none(container.path)
    if before.content_hash != container.content_hash or now is None or now.size != after.size:
        return
    how = "by another plan" if before.plan != job.plan.made_of else f"with {before.options}"
    if (before.plan, before.options) != (job.plan.made_of, job.options):
        raise SettingsConflict(
            f"{container.path} was rewritten in place {how}; nothing was changed: finish that run "
            f"with its own plan and options, or restore the objects with bin/undedup {stored.root} "
            "--in-place"
        )


def _rewritten(
    job: RewriteJob, container: ManifestContainer, beside: Path,
    work: Callable[[ObjectRewriter], RewriteOutcome],
) -> RewriteOutcome:  # fmt: skip
    with (
        opened_container(job, container) as source,
        record_checker(job, container, source) as checker,
    ):
        return work(ObjectRewriter(job, container, source, checker.check, beside))


def _done_before(
    job: RewriteJob, container: ManifestContainer, stored: StoredJournal, beside: Path
) -> RewriteOutcome | None:
    """Return what an earlier run did; None if it had not replaced the object yet."""
    journal = stored.mirrored(beside / "before", dropped=False)
    old, new = summary_of(journal)
    found = facts_or_none(container.path)
    if found is None:
        raise Untouched("it was removed from the store since it was scanned")
    if old.content_hash != container.content_hash:  # scanned since
        again = _rewritten(job, container, beside, ObjectRewriter.counted)
        if not again.revisits:
            return again
        raise Untouched(_EARLIER)
    if (found.size, found.version) == (container.size, container.mtime_ns):
        if (old.options, old.plan) != (job.options, job.plan.made_of):
            raise Untouched(
                "an interrupted run with another plan or other options began to rewrite it: --undo "
                "that first"
            )
        return None
    if found.size != new.size or not _is_result(stored, beside):
        raise Untouched(
            f"it is neither the object before nor that after the run whose journal is in "
            f"{stored.lines}"
        )
    if not job.dry:
        remove_object(stored.candidate)
    try:
        outcome = journaled_outcome(job, container, journal, new.size)
    except (Damaged, ValueError) as error:
        raise Untouched(f"its journal cannot be read: {error}") from error
    outcome.journal = journal.lines.stat().st_size + _size_of(stored.dropped)
    return outcome


def _size_of(address: str) -> int:
    found = facts_or_none(address)
    return found.size if found else 0


def _is_result(stored: StoredJournal, beside: Path) -> bool:
    """Return whether an object and what is kept of it make the object before the run."""
    for number in range(_READS):
        journal = stored.mirrored(beside / f"read-{number}", dropped=True)
        download(stored.address, beside / "now")
        if makes_old_file(journal, beside / "now"):
            return True
    return False


class ObjectRewriter(FileRewriter):
    """Rewrites an object that was read into a temporary file."""

    protects = False

    def __init__(
        self, job: RewriteJob, container: ManifestContainer, source: BinaryIO,
        check: Callable[[Planned], Replacement], beside: Path,
    ) -> None:  # fmt: skip
        super().__init__(job, container, source, check)
        self._beside = beside / "made"
        self._journal = Journal(self._beside, container.name)
        self._stored = StoredJournal(container.root, container.name)

    def replace(self) -> RewriteOutcome:
        job = self._job
        check_unchanged(self._container, self._source)
        if job.dry:
            return self.counted()
        self._journal.directory.mkdir(parents=True)
        new = self._beside / "new"
        writer = JournalWriter(
            self._journal, self._file_before(), keep_dropped=True, protects=False
        )
        with closing(writer), open(new, "w+b", buffering=0) as file:
            outcome = self._write(FileSink(file), writer)
            if outcome.revisits:
                self._finish(writer, outcome)
                self._check_undo(new)
                self._publish(file, outcome)
        return outcome

    def _publish(self, new: BinaryIO, outcome: RewriteOutcome) -> None:
        """Write journal and new content to the store, then replace the object."""
        container, stored = self._container, self._stored
        address = container.path
        found = facts_or_none(address)
        if found is None or (found.size, found.version) != (container.size, container.mtime_ns):
            raise Untouched("it was changed while it was rewritten")
        try:
            stored.create(self._journal, new)
        except FileExistsError as error:
            raise Untouched(
                f"{DIRECTORY}/ has what another run kept of it ({error}): --undo that first"
            ) from error
        replaced = replace_object(new, address, found.stamp, stored.candidate)
        if not is_object(new, address):
            if replaced:
                raise DedupError(
                    f"{address}, read back, is not what was written; {DIRECTORY}/ has all that "
                    "makes it, and the object before: run the same command again to resume. Is "
                    "the store sound?"
                )
            now = facts_or_none(address)
            if now is not None and now.size not in (container.size, outcome.bytes_after):
                stored.clear()  # somebody else has replaced it: this run has not
            raise Untouched("it was changed while it was rewritten")
        stored.keep(self._journal)  # should a run that took the lock have cleared it meanwhile
        remove_object(stored.candidate)

    def _file_before(self) -> FileBefore:
        return super()._file_before()._replace(mtime_ns=self._container.mtime_ns)
