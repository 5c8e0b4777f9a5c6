"""Undo or commit what runs in place have done to objects of a store.

What `undo` does with files: an object is restored bit for bit from the one that is there and the
members that were dropped, and is the one that was scanned, by its BLAKE3. It is written beside the
journal first, read back, and then takes the place of the other, if that has not changed.
"""

from __future__ import annotations

import filecmp
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO, NamedTuple

from dedupindex.errors import BadSource, Damaged, DedupError
from dedupindex.object_store import create_object, facts_or_none, is_object, replace_object
from dedupindex.post_crawl.manifest.parquet import ManifestContainer
from dedupindex.post_crawl.rewrite.journal import FileAfter, FileBefore, Journal, name_of
from dedupindex.post_crawl.rewrite.stored_journal import (
    StoredJournal,
    download,
    journal_sizes,
    locked_prefixes,
    mirror_journals,
    roots_below,
    summary_of,
)
from dedupindex.post_crawl.rewrite.undo_directory import DIRECTORY
from dedupindex.post_crawl.undo import Restored
from dedupindex.post_crawl.undo_records import (
    OriginalFinder,
    RewriteRun,
    damaged_text,
    revisits_of_run,
    write_records,
)
from dedupindex.runtime.atomic_replace import (
    DrySink,
    FileSink,
    Untouched,
    content_hash,
    open_for_reading,
)
from dedupindex.runtime.workers import side_by_side

_CHANGED = (
    "it is neither the object before the run nor that after it: it was changed after the run. Put "
    "one of these back and repeat this"
)
_READS = 3  # of objects that do not fit together, before they are said not to
_ROUNDS = 5  # of a replacement whose reply may be lost


class StoredUndo(NamedTuple):
    root: str
    name: str
    dry: bool = False  # check that it can be restored, and write nothing


def objects_of_plan(containers: Sequence[ManifestContainer]) -> list[StoredUndo]:
    """Return the objects of a plan that have journals."""
    kept = {root: journal_sizes(root) for root in {one.root for one in containers}}
    return [
        StoredUndo(one.root, one.name)
        for one in containers
        if StoredJournal(one.root, one.name).lines.rpartition("/")[2] in kept[one.root]
    ]


def objects_below(addresses: Sequence[str]) -> tuple[list[StoredUndo], list[Restored]]:
    """Return the objects at or below some addresses that have journals, and broken journals."""
    tasks, problems = list[StoredUndo](), list[Restored]()
    for root in sorted({root for address in addresses for root in roots_below(address)}):
        with TemporaryDirectory(prefix="dedupindex-journals-") as beside:
            mirror_journals(root, Path(beside))
            for lines in sorted((Path(beside) / DIRECTORY).glob("*.jsonl")):
                try:
                    tasks.append(StoredUndo(root, name_of(lines)))
                except Damaged as error:
                    problems.append(Restored(root, "left_alone", 0, str(error)))
    return tasks, problems


@contextmanager
def restoring(tasks: Sequence[StoredUndo], processes: int) -> Iterator[Iterator[Restored]]:
    """Lock the prefixes of some objects, and yield what becomes of them as they are restored."""
    with locked_prefixes(task.root for task in tasks if not task.dry):
        yield side_by_side(_restore_object, None, tasks, processes)


def _restore_object(_: None, task: StoredUndo) -> Restored:
    try:
        with TemporaryDirectory(prefix="dedupindex-undo-") as beside:
            stored = StoredJournal(task.root, task.name)
            if not task.dry:
                return _restored(stored, Path(beside))
            found = _OldObject(stored, Path(beside))
            state = "existing" if found.is_there else "exact"
            return Restored(task.name, state, found.after.revisits, "", found.before.size)
    except (Untouched, FileExistsError) as error:
        return Restored(task.name, "left_alone", 0, str(error))
    except OSError as error:
        raise DedupError(
            f"{task.root}/{task.name}: {error.strerror or error}; this object is unchanged: run "
            "the same command again to resume"
        ) from error


def _restored(stored: StoredJournal, beside: Path) -> Restored:
    """Restore one object.

    Its journal is removed only after this call has replaced the object, under a condition, by what
    reads back as the one before the run. That is done even if it seems to be restored: a store
    may answer with what was there before.
    """
    state = ""
    for number in range(_ROUNDS):
        found = _OldObject(stored, beside / str(number))
        with found.opened() as old:
            state = state or ("existing" if found.is_there else "exact")
            create_object(old, stored.restored)
            replaced = replace_object(old, stored.address, found.etag, stored.restored)
            if not replaced:
                continue  # by somebody else, or by a try whose reply was lost
            if not is_object(old, stored.address):
                raise DedupError(
                    f"{stored.address}, read back, is not what was written; {stored.restored} is "
                    "the object before the run: run the same command again to resume. Is the "
                    "store sound?"
                )
        stored.clear()
        return Restored(stored.name, state, found.after.revisits, "", found.before.size)
    raise Untouched("it was changed while it was restored")


class _OldObject:
    """The object before a run, made again in a temporary file."""

    before: FileBefore
    after: FileAfter

    def __init__(self, stored: StoredJournal, beside: Path) -> None:
        """Raises `Untouched` if what is in the store does not make it."""
        self._stored = stored
        self.is_there, self.etag = False, ""  # whether nothing had to be restored; of what is there
        problem = ""
        for number in range(_READS):
            self._beside = beside / str(number)
            self._beside.mkdir(parents=True)
            try:
                problem = self._made()
            except Damaged as error:
                problem = f"its journal cannot be read: {error}"
            if not problem:
                return
        raise Untouched(problem)

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        with open_for_reading(self._beside / "old") as file:
            yield file

    def _made(self) -> str:
        """Make the old object; return why that is not possible, or nothing."""
        stored, now, old = self._stored, self._beside / "now", self._beside / "old"
        journal = stored.mirrored(self._beside, dropped=False)
        self.before, self.after = journal.summary()
        self.etag = download(stored.address, now)
        if self._is_old(now):
            os.rename(now, old)
            self.is_there = True
            return ""
        if os.path.getsize(now) != self.after.size:
            return _CHANGED
        if facts_or_none(stored.dropped) is None:
            return f"its removed records are not in {DIRECTORY}/"
        download(stored.dropped, journal.dropped)
        if self._joins(journal, now, old):
            return ""
        for address, is_new in ((stored.restored, False), (stored.candidate, True)):
            if facts_or_none(address) is None:
                continue
            kept = self._beside / "kept"  # of a run that was interrupted
            download(address, kept)
            if is_new and self._joins(journal, kept, old):
                return ""
            if not is_new and self._is_old(kept):
                os.rename(kept, old)
                return ""
        return f"{self._damage(journal, now)}; nothing was replaced"

    def _damage(self, journal: Journal, now: Path) -> str:
        """Say why an object and its removed records do not make the old object."""
        found = ""
        with suppress(Damaged, OSError), open_for_reading(now) as source:
            found = damaged_text(journal, self._stored.dropped, source)
        if found:
            return f"{found}: put a sound copy of that object back and repeat this"
        return (
            f"with its removed records ({self._stored.dropped}) it is not the object before the run"
        )

    def _is_old(self, path: Path) -> bool:
        if os.path.getsize(path) != self.before.size:
            return False
        with open_for_reading(path) as file:
            return content_hash(file) == self.before.content_hash

    def _joins(self, journal: Journal, new: Path, old: Path) -> bool:
        """Write the old object; return whether it is that."""
        try:
            with ExitStack() as files:
                sink = FileSink(files.enter_context(open(old, "wb", buffering=0)))
                for path, offset, count in journal.old_content(new):
                    with open_for_reading(path) as source:
                        sink.copy(source, offset, count)
        except (Damaged, TypeError, ValueError):  # a range that is not there, or no range
            return False
        return self._is_old(old)


def commit_objects(tasks: Sequence[StoredUndo]) -> Iterator[Restored]:
    """Delete the dropped members of objects for good; yields what that frees, as `undo.commit`."""
    roots = sorted({task.root for task in tasks})
    with locked_prefixes(roots), TemporaryDirectory(prefix="dedupindex-commit-") as beside:
        mirrors = {root: Path(beside, str(number)) for number, root in enumerate(roots)}
        for root, directory in mirrors.items():
            mirror_journals(root, directory)
        for task in tasks:
            try:
                yield _committed(task, mirrors[task.root], Path(beside))
            except (Untouched, Damaged) as error:
                yield Restored(task.name, "left_alone", 0, str(error))


def _committed(task: StoredUndo, mirror: Path, beside: Path) -> Restored:
    stored, journal = StoredJournal(task.root, task.name), Journal(mirror, task.name)
    _, after = summary_of(journal)
    now = beside / "now"
    download(stored.address, now)
    if facts_or_none(stored.dropped) is None and any(
        filecmp.cmp(journal.lines, one, shallow=False) for one in journal.committed()
    ):  # all that a run that was killed had still to do
        return Restored(task.name, "committed", after.revisits, "", stored.commit(journal))
    if os.path.getsize(now) != after.size:
        raise Untouched("it is not the object after the run: it was restored, or changed since")
    if facts_or_none(stored.dropped) is None:
        raise Untouched(f"its removed records are not in {DIRECTORY}/")
    run = RewriteRun(journal.lines, None)
    finder = OriginalFinder({}, {mirror: stored.root}, final=True)
    try:
        with (
            open_for_reading(now) as source,
            closing(DrySink()) as sink,
            closing(finder) as originals,
        ):
            write_records(revisits_of_run(run, []), source, sink, originals)
    except BadSource as error:  # of an original
        raise Untouched(str(error)) from error
    with open_for_reading(journal.lines) as lines:  # which takes the place of that in the store
        if not is_object(lines, stored.lines):
            raise Untouched("its journal was read wrong: run the same command again")
    freed = stored.commit(journal)
    journal.set_aside()
    return Restored(task.name, "committed", after.revisits, "", freed)
