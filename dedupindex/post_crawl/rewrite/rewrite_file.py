"""Rewrite one file, to a directory or in place: revisits for the copies, all else as bytes.

Records that are not rewritten are not decompressed. A dry run uses the same code with a sink that
keeps nothing. A result gets its name when it and its journal are complete and on disk. In place,
the journal keeps the dropped members before the old file is replaced. A run may be interrupted at
each step:

    the new file, KEY.dropped and KEY.jsonl are written under temporary names and forced to disk
    KEY.dropped, then KEY.jsonl are renamed     from here on the next run starts again, or
    the new file replaces the old one           finds that everything is done
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from dedupindex.errors import BadSource, Damaged, DedupError
from dedupindex.object_store import PartialCopy, facts_or_none, is_remote
from dedupindex.post_crawl.manifest.parquet import ManifestContainer
from dedupindex.post_crawl.plan.plan_file import Plan, Planned
from dedupindex.post_crawl.plan.record_reader import ContainerUrls
from dedupindex.post_crawl.rewrite.check_copies import (
    CheckedPart,
    ChecksOfStored,
    CopyChecker,
    EarlierChecks,
    Replacement,
    check_all,
    check_stored,
)
from dedupindex.post_crawl.rewrite.compare_pair import (
    ORIGINAL_ELSEWHERE,
    NotRewritable,
    OriginalFiles,
)
from dedupindex.post_crawl.rewrite.journal import (
    FileBefore,
    Journal,
    JournalEntry,
    JournalSize,
    JournalWriter,
    entries,
)
from dedupindex.post_crawl.rewrite.protection import protected, record_key
from dedupindex.post_crawl.rewrite.result_place import (
    ResultPlace,
    SharedRanges,
    is_as_scanned,
    opened_source,
    other_content,
    place_of,
)
from dedupindex.post_crawl.rewrite.rewrite_outcome import RewriteOutcome, outcome_of
from dedupindex.post_crawl.rewrite.undo_directory import names_of
from dedupindex.runtime.atomic_replace import (
    NOT_REPLACED,
    ComparingSink,
    DrySink,
    FileSink,
    Sink,
    Untouched,
    being_written,
    content_hash,
    copy_metadata,
    has_writer,
    hash_of,
    identity,
    is_still,
    lock_source,
    open_part,
    part_path,
    removing,
    reopen_read_only,
    replace_file,
)
from dedupindex.warc.record_facts import Refused


class RewriteJob(NamedTuple):
    plan: Plan
    out: Path | None = None  # where the results go; None is in place
    min_size: int = 0  # bytes of body; a smaller record is not worth a revisit
    min_gain: int = 1  # bytes that a revisit must save in the file; at least 1
    dry: bool = False  # count, write nothing
    busy: Set[int] = frozenset()  # files that others wrote to when the run began; in place only
    aliased: Mapping[int, str] = {}  # what to do with files of several names; in place only
    real_roots: Set[Path] = frozenset()  # directories, named files; without links; in place only
    reserved: int = 0  # bytes that will be written to `out` afterwards
    searched: Set[str] | None = None  # directories that the scan searched; None: perhaps all
    urls: ContainerUrls = ContainerUrls()  # the name of this host, and where others' files are
    store: str = ""  # address below which results are written; `out` then has the journals

    @property
    def place(self) -> ResultPlace:
        """Where results go; not in place."""
        assert self.out is not None
        return place_of(self.store, self.out)

    @property
    def options(self) -> str:
        """The options that decide which records become revisits, as typed."""
        return f"--min-size {self.min_size} --min-gain {self.min_gain}"

    def containers(self) -> dict[int, ManifestContainer]:
        """Return the files that are rewritten, by number: those of this host."""
        return self.plan.of_host(self.urls.host)

    def wrote(self, outcome: RewriteOutcome) -> bool:
        """Whether a run has made or replaced the result of a file, or would."""
        return outcome.state == "rewritten" or (self.out is not None and outcome.state == "kept")

    @property
    def replaces(self) -> bool:
        """Whether files are replaced, and therefore locked."""
        return self.out is None and not self.dry


def rewrite_container(
    job: RewriteJob, container: ManifestContainer, checked: Sequence[CheckedPart] = ()
) -> RewriteOutcome:
    """Rewrite one file; the outcome says if and why it was left alone.

    `checked` are all its parts if they were checked before; of an object, some. Raises `OSError`
    if the result cannot be written, and `DedupError` if it cannot be renamed or forced to disk.
    """
    if job.out is None or (job.store and not job.dry):
        is_kept = next(iter(job.plan.copies(container.number)), None) is None
        if is_kept and (job.out is None or job.place.copied(container)):
            return outcome_of(container, "kept")
    try:
        with (
            opened_container(job, container) as source,
            record_checker(job, container, source) as checker,
        ):
            if job.replaces:
                lock_source(source)
            before = identity(os.fstat(source.fileno()))
            check = checker.check
            if is_remote(container.path):
                check = ChecksOfStored(checked, source, checker).check
            elif checked and all(part.identity == before for part in checked):
                check = EarlierChecks(checked).check
            return FileRewriter(job, container, source, check).run()
    except Untouched as untouched:
        return outcome_of(container, "left_alone", str(untouched))
    except OSError as error:
        if error.errno != errno.EIO:  # a sector that cannot be read concerns this file only
            raise
        return outcome_of(container, "left_alone", f"the disk fails: {error.strerror}")


def check_part(
    job: RewriteJob, container: ManifestContainer, part: range, spool: Path
) -> CheckedPart:
    """Check the records of a part of a file that is to be rewritten.

    If that fails, the file is to be rewritten without it, which finds out why.
    """
    failed = CheckedPart(container.number, part, spool)
    try:
        with (
            opened_container(job, container) as source,
            record_checker(job, container, source) as checker,
        ):
            before = identity(os.fstat(source.fileno()))
            check_unchanged(container, source)
            if _is_busy(job, source):
                return failed
            check_all(checker, list(job.plan.copies(container.number, part)), spool)
            return failed._replace(identity=before)
    except (Untouched, Damaged, OSError):
        return failed


def check_stored_part(
    job: RewriteJob, container: ManifestContainer, part: range, spool: Path
) -> bool:
    """Check the records of a part of an object by reading no more of it; False if that fails.

    Then the object is to be rewritten without it, which finds out why.
    """
    try:
        found = facts_or_none(container.path)
        if found is None or (found.size, found.version) != (container.size, container.mtime_ns):
            return False
        with (
            closing(PartialCopy(container.path, found)) as copy,
            record_checker(job, container, copy.file, whole=False) as checker,
        ):
            check_stored(checker, copy, list(job.plan.copies(container.number, part)), spool)
    except (BadSource, Damaged, OSError):
        return False
    return True


@contextmanager
def record_checker(
    job: RewriteJob, container: ManifestContainer, source: BinaryIO, *, whole: bool = True
) -> Iterator[CopyChecker]:
    """Yield what checks the records of a file; not `whole`: `source` lacks originals in it."""
    with (
        closing(
            OriginalFiles(
                job.plan,
                locked=job.replaces,
                busy=job.busy,
                urls=job.urls,
                own=(container.number, source) if whole else None,
            )
        ) as originals,
        closing(
            CopyChecker(
                source, originals, job.plan.criteria, min_size=job.min_size, min_gain=job.min_gain
            )
        ) as checker,
    ):
        yield checker


def _is_busy(job: RewriteJob, source: BinaryIO) -> bool:
    """Return whether another process writes to a file, which may have our own lock."""
    return has_writer(source) if job.replaces else being_written(source)


@contextmanager
def opened_container(job: RewriteJob, container: ManifestContainer) -> Iterator[BinaryIO]:
    """Open the source; raises `Untouched` if it cannot be read, or not be replaced safely."""
    with ExitStack() as stack:
        try:
            _check_replaceable(job, container)
            source = stack.enter_context(opened_source(container))
        except OSError as error:
            raise Untouched(f"it cannot be read: {error.strerror}") from error
        yield source


def _check_replaceable(job: RewriteJob, container: ManifestContainer) -> None:
    """Raise `Untouched` if a file cannot be replaced safely, `OSError` if it is gone."""
    if job.out is not None or is_remote(container.path):
        return
    path = Path(container.path)
    if container.number in job.aliased:  # its originals would be in two journals
        raise Untouched(f"the set contains it under several names: {job.aliased[container.number]}")
    if path.is_symlink():
        raise Untouched("it is a symbolic link: name its target")
    if path.stat().st_nlink > 1:
        raise Untouched("it has other names (hard links), which would keep its old content")
    real = path.resolve()
    if job.real_roots.isdisjoint((real, *real.parents)):
        raise Untouched(
            f"a link leads to it, out of the sources: rewrite {real.parent} in a run of its own, "
            "whose journals are there"
        )


class FileRewriter:
    """Rewrites one open file; methods raise `Untouched` where it must be left alone."""

    protects = True  # whether runs on the files of originals are told what revisits refer to

    def __init__(
        self, job: RewriteJob, container: ManifestContainer, source: BinaryIO,
        check: Callable[[Planned], Replacement],
    ) -> None:  # fmt: skip
        """`check` returns the revisit that a record becomes, or raises `Refused`."""
        self._job, self._container, self._source = job, container, source
        self._check = check
        self._journal = Journal(job.out or Path(container.root), container.name)
        self._before = os.fstat(source.fileno())

    def run(self) -> RewriteOutcome:
        job = self._job
        if job.out is None:
            try:
                if done := self._done_before():
                    return done
            except Damaged as error:
                raise Untouched(f"its journal cannot be read: {error}") from error
            self._check_other_roots()
        copied = job.out is not None and not job.dry
        check_unchanged(self._container, self._source, whole=copied)
        if _is_busy(job, self._source):
            raise Untouched("another process is writing to it")
        if job.dry:
            return self._dry()
        return self._in_place() if job.out is None else self._to_directory(job.out)

    def _write(self, sink: Sink, journal: JournalSize) -> RewriteOutcome:
        """Write the new file and the journal; raises `Damaged` if a revisit reads back wrong."""
        job, container = self._job, self._container
        outcome = outcome_of(container, "rewritten")
        position, files = 0, set[int]()
        for planned, is_protected in _with_protection(job.plan, container):
            line, number = planned.line, planned.original.container
            outcome.records += 1
            try:
                if is_protected or line.offset < position:
                    raise NotRewritable("protected-original" if is_protected else "not-exact")
                found = self._check(planned)
            except Refused as refused:
                outcome.refuse(refused.reason, line.stored)
                if refused.reason == ORIGINAL_ELSEWHERE:
                    outcome.elsewhere = outcome.elsewhere or refused.problem
                continue
            sink.copy(self._source, position, line.offset - position)
            start, stored = sink.size, len(found.member)
            file, at = sink.write(found.member)
            if os.pread(file.fileno(), stored, at) != found.member:
                raise Damaged(
                    f"{container.path} at {line.offset}: its revisit, read back, is not what was "
                    "written; nothing was replaced. Is the disk sound?"
                )
            outside = number in job.plan.outside()
            other = found.identity if outside else None
            journal.add(self._entry(planned, found, start), self._source, found.original, other)
            position = line.offset + line.stored
            if job.urls.is_here(job.plan.container(number)):
                files.add(number)
            path = job.plan.container(number).path
            outcome.trusted += found.trusted
            outcome.add_revisit(found.url, line.stored, stored, path, outside=outside)
        outcome.original_files = sorted(files - {container.number, *job.plan.outside()})
        if outcome.revisits or job.out is not None:  # in place, other files are not replaced
            sink.copy(self._source, position, container.size - position)
        if outcome.revisits:
            outcome.bytes_after = sink.size
            journal.refuse(outcome.refused, outcome.refused_bytes)
        else:
            outcome.state = "kept"
        return outcome

    def _entry(self, planned: Planned, found: Replacement, offset: int) -> JournalEntry:
        line, original, job = planned.line, planned.original, self._job
        file = job.plan.container(original.container)
        inside = original.container not in job.plan.outside()
        host = "" if job.urls.is_here(file) else file.host
        here = inside and (job.out is not None or file.root == self._container.root)
        return JournalEntry(
            line.offset, line.stored, offset, len(found.member), found.header, found.sha256,
            "" if here else file.root, file.name, original.offset, original.stored, file.size, host,
        )  # fmt: skip

    def counted(self, into: DrySink | None = None) -> RewriteOutcome:
        journal = JournalSize(
            self._file_before(), keep_dropped=self._job.out is None, protects=self.protects
        )
        with closing(into or DrySink()) as sink:
            outcome = self._write(sink, journal)
        self._finish(journal, outcome)
        return outcome

    def _finish(self, journal: JournalSize, outcome: RewriteOutcome) -> None:
        """Finish the journal of a file that has revisits, and count its bytes."""
        if outcome.revisits:
            journal.finish(outcome.bytes_after)
            outcome.journal = journal.size

    def _dry(self) -> RewriteOutcome:
        """Return what a real run would; that leaves an existing file with another content alone."""
        name = self._container.name
        if self._job.out is None:
            return self.counted()
        try:
            existing = self._job.place.opened(name)
        except FileNotFoundError:
            return self.counted()
        with existing, closing(ComparingSink(existing)) as comparing:
            outcome = self.counted(comparing)
            if not comparing.same:
                raise other_content(self._job.place, name, self._source)
        outcome.state = "existing"
        return outcome

    def _to_directory(self, out: Path) -> RewriteOutcome:
        name, place = self._container.name, self._job.place
        target = out / name
        target.parent.mkdir(parents=True, exist_ok=True)
        part = part_path(target)
        writer = JournalWriter(self._journal, self._file_before(), keep_dropped=False)
        with closing(writer), removing(part), open_part(part) as file:
            outcome = self._write(sink := FileSink(file), writer)
            copy_metadata(self._source, file, replaces=False)
            os.fsync(file.fileno())
            check_settled(self._container, self._source, self._before)
            try:
                if place.has(file, name):
                    outcome.state = "existing"
            except FileExistsError as error:
                raise other_content(place, name, self._source) from error
            self._finish(writer, outcome)
            if outcome.state == "existing":
                return outcome
            try:
                place.create(part, file, name, SharedRanges(self._container, sink.copied))
            except OSError as error:
                if outcome.revisits:
                    self._journal.clear()  # there is no file that it describes
                if isinstance(error, FileExistsError):  # of a run to a folder above or below
                    raise other_content(place, name, self._source) from error
                raise
        return outcome

    def _done_before(self) -> RewriteOutcome | None:
        """Return what an earlier run in place did, if any; remove what an interrupted one left."""
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
                f"its size and time are not those before or after the run in {journal.lines}"
            )
        if old.size != container.size:  # scanned since
            check_unchanged(container, self._source)
            again = self.counted()
            if not again.revisits:
                return again
            raise Untouched("an earlier run has rewritten it: --commit or --undo that first")
        return journaled_outcome(job, container, journal, new.size)

    def _in_place(self) -> RewriteOutcome:
        path, journal = Path(self._container.path), self._journal
        part = part_path(path)
        writer = JournalWriter(journal, self._file_before(), keep_dropped=True)
        with closing(writer), removing(part):
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
                self._finish(writer, outcome)
                try:
                    self._check_undo(part)
                    check_settled(self._container, self._source, self._before)
                except (Untouched, Damaged, OSError):
                    journal.clear()
                    raise
                self._replace(part, reader, path)
            return outcome

    def _replace(self, part: Path, file: BinaryIO, path: Path) -> None:
        """Replace the old file; raises `DedupError` if it may be gone.

        Raises `Untouched` if this file alone cannot be replaced, `OSError` if the disk fails.
        """
        try:
            replace_file(part, file, path)
        except (DedupError, OSError) as error:
            if is_still(path, self._source):
                self._journal.clear()
                if isinstance(error, OSError) and error.errno in NOT_REPLACED:
                    raise Untouched(f"it cannot be replaced: {error.strerror}") from error
            elif isinstance(error, OSError):
                raise DedupError(
                    f"{path}: {error}; the removed records are kept: run the same command again "
                    "to resume"
                ) from error
            raise

    def _check_undo(self, part: Path) -> None:
        """Raise `Damaged` unless the old file can be made again, `Untouched` if it has changed."""
        container = self._container
        if hash_of(self._journal.old_content(part)) == container.content_hash:
            return
        check_unchanged(container, self._source, whole=True)
        raise Damaged(
            f"{container.path}: what was written differs from what was read; nothing was "
            "replaced. Is the disk sound?"
        )

    def _check_other_roots(self) -> None:
        """Check that no run on a folder above or below the root keeps the file's old content."""
        root = Path(self._container.root).resolve()
        for folder, name in names_of(Path(self._container.path)):
            if folder.resolve() != root and Journal(folder, name).dropped.exists():
                raise Untouched(
                    f"a run on {folder} has rewritten it, and can be undone: --commit or --undo "
                    "that first"
                )

    def _file_before(self) -> FileBefore:
        container, job = self._container, self._job
        return FileBefore(
            container.name, container.size, self._before.st_mtime_ns, container.content_hash,
            job.options, job.plan.made_of,
        )  # fmt: skip


def journaled_outcome(
    job: RewriteJob, container: ManifestContainer, journal: Journal, size: int
) -> RewriteOutcome:
    """Return the outcome of a file that an interrupted run has replaced, from its journal.

    That run may have ended before anybody counted the file.
    """
    outside = job.plan.outside()
    done = outcome_of(container, "existing")
    copies = job.plan.copies(container.number)
    for entry in entries(journal.lines):
        planned = next((one for one in copies if one.line.offset == entry.offset), None)
        if planned is None:
            raise Untouched(f"the plan has no copy at {entry.offset}, as {journal.lines} has")
        number, line = planned.original.container, planned.line
        path, is_outside = job.plan.container(number).path, number in outside
        done.add_revisit(line.url, entry.stored, entry.new_stored, path, outside=is_outside)
    done.refused, done.refused_bytes = journal.refused()
    done.journal = journal.size()
    done.records, done.bytes_after = done.revisits + done.refused.total(), size
    return done


def _with_protection(plan: Plan, container: ManifestContainer) -> Iterator[tuple[Planned, bool]]:
    """Yield the records to rewrite, and whether a revisit refers to them, so that they must stay.

    This keeps two runs, or a wrong plan, from removing the last copy of a payload.
    """
    elsewhere = is_remote(container.path)  # no run on this machine records what is needed there
    others = set() if elsewhere else protected(Path(container.path))  # by revisits of other sets
    offsets = plan.protected(container.number)
    offset = next(offsets, -1)
    for planned in plan.copies(container.number):
        line = planned.line
        while 0 <= offset < line.offset:
            offset = next(offsets, -1)
        by_others = bool(others) and record_key(line.url, line.date) in others
        yield planned, offset == line.offset or by_others


def check_unchanged(container: ManifestContainer, file: BinaryIO, *, whole: bool = False) -> None:
    """Raise `Untouched` unless an open file is what was scanned, or a copy of it.

    With its size, time and inode it is taken for that, unless the `whole` of it is to be read.
    """
    status = os.fstat(file.fileno())
    if status.st_size != container.size:
        raise Untouched("its size has changed since it was scanned")
    same_time = status.st_mtime_ns == container.mtime_ns and status.st_ino == container.inode
    if same_time and not whole:
        return
    if content_hash(file) != container.content_hash:
        also = ", although its size and time have not" if same_time else ""
        raise Untouched(f"its content has changed since it was scanned{also}")


def check_still(container: ManifestContainer, file: BinaryIO, before: os.stat_result) -> None:
    """Raise `Untouched` if a file has changed or was replaced since `before`."""
    if is_remote(container.path):  # `file` is a copy
        if not is_as_scanned(container):
            raise Untouched("it was changed while it was rewritten")
        return
    try:
        now = os.fstat(file.fileno()), os.stat(container.path)
    except OSError as error:
        raise Untouched(f"it was removed: {error.strerror}") from error
    if any(identity(status) != identity(before) for status in now):
        raise Untouched("it was changed while it was rewritten")


def check_settled(container: ManifestContainer, file: BinaryIO, before: os.stat_result) -> None:
    """Raise `Untouched` if a file has changed since `before`, or somebody is writing to it."""
    check_still(container, file, before)
    if has_writer(file):
        raise Untouched("another process began to write to it")
