"""A whole collection: each file by a process of its own, then what refers to what."""

from __future__ import annotations

import marshal
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, TypeVar

from dedupindex.counts import OnProgress, ProgressUpdate
from dedupindex.errors import BadSource
from dedupindex.runtime.workers import workers
from dedupindex.verify import revisits
from dedupindex.verify.block_facts import FULL, Facts, Note, checked
from dedupindex.verify.file_bytes import UnreadableFile, opened
from dedupindex.verify.issues import Finding
from dedupindex.verify.parse_records import CheckedRecord
from dedupindex.verify.references import ReferenceRow, References, posted_by
from dedupindex.verify.walk_file import AnyRecord, Container, is_archive

T = TypeVar("T")
R = TypeVar("R")
_BATCH = 1000
_WORTH_A_PROCESS = 8 << 20  # bytes: starting one costs as much as reading so many


class Collection:
    """What is checked, and places where further originals are; counts what was read."""

    def __init__(
        self,
        paths: Iterable[Path],
        originals: Iterable[Path] = (),
        on_progress: OnProgress = lambda seen: None,
    ) -> None:
        self._on_progress = on_progress
        seen: set[tuple[int, int]] = set()
        self._own = list(_archives(paths, seen))
        self._others = list(_archives(originals, seen))
        self.files = len(self._own)
        self.records = 0
        self.revisits = 0

    def findings(self) -> Iterator[Finding]:
        """Everything that is wrong: with records, file by file; then with references."""
        paths = self._own + self._others
        with TemporaryDirectory(prefix="dedupindex-verify-") as beside:
            references = References(Path(beside) / "records.sqlite")
            try:
                spools = [Path(beside) / str(number) for number in range(len(paths))]
                tasks = list(zip(paths, spools, strict=True))
                size, done = size_of(paths), 0
                for number, spool in enumerate(in_order(_read, tasks, size)):
                    own = number < len(self._own)
                    yield from self._take(references, spool, number, own)
                    spool.unlink()
                    done += size_of(paths[number : number + 1])
                    self._on_progress(ProgressUpdate("reading", done, size, self.records))
                yield from references.findings([str(path) for path in paths])
            finally:
                references.close()

    def totals(self) -> dict[str, int]:
        """What was read."""
        return {"files": self.files, "records": self.records, "revisits": self.revisits}

    def _take(
        self, references: References, spool: Path, number: int, own: bool
    ) -> Iterator[Finding]:
        for records, rows, findings, posted in _batches(spool):
            references.add_posted(posted)
            if own:
                self.records += records
                yield from (Finding(*finding) for finding in findings)
            stored = [ReferenceRow(number, offset, Facts(*facts), own) for offset, facts in rows]
            self.revisits += sum(own and row.facts.kind == b"revisit" for row in stored)
            references.add(stored)


def verify_collection(paths: Iterable[Path], originals: Iterable[Path] = ()) -> Iterator[Finding]:
    """Check archives, whoever wrote them; originals may also be in files that are not checked."""
    return Collection(paths, originals).findings()


def _archives(paths: Iterable[Path], seen: set[tuple[int, int]]) -> Iterator[Path]:
    """The archives at or below `paths`, each file once, whatever names it has."""
    for path in paths:
        if not path.exists():
            raise BadSource(f"{path} does not exist")
        for found in archives_below(path):
            status = found.stat()
            if (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                yield found


def archives_below(path: Path, wanted: Callable[[Path], bool] = is_archive) -> Iterator[Path]:
    """A file itself, or the archives below a directory, sorted by name; `wanted` knows them.

    Names that begin with a dot are passed over: journals, and files that are not whole.
    """
    if not path.is_dir():
        if not path.is_file():
            raise BadSource(f"{path} is neither a file nor a folder")
        yield path
        return
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            found = Path(folder, name)
            if not name.startswith(".") and found.is_file() and wanted(found):
                yield found


def size_of(paths: Iterable[Path]) -> int:
    """How large files are together, those that are gone left out."""
    size = 0
    for path in paths:
        with suppress(OSError):
            size += path.stat().st_size
    return size


def in_order(work: Callable[[T], R], tasks: list[T], size: int) -> Iterator[R]:
    """Do the tasks, of `size` bytes together, side by side; results in their order."""
    jobs = min(len(os.sched_getaffinity(0)), len(tasks), size // _WORTH_A_PROCESS)
    if jobs < 2:
        yield from map(work, tasks)
        return
    with workers(jobs) as pool:
        yield from pool.map(work, tasks)


def _read(task: tuple[Path, Path]) -> Path:
    """Examine every record of a file; what is found goes to a spool file."""
    path, spool = task
    with open(spool, "wb") as stream:
        batch = _Batch(stream)
        try:
            with opened(path) as file:
                container = Container(file)
                for item in container.each():
                    if isinstance(item, Finding):
                        batch.findings.append(tuple(item))
                    else:
                        batch.take(container, item)
                    batch.write(at_least=_BATCH)
        except UnreadableFile as error:
            batch.findings.append(tuple(Finding("unreadable", str(path), -1, "", str(error))))
        batch.write()
    return spool


class _Batch:
    """Results on their way to a spool file."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.records = 0
        self.rows: list[tuple[int, tuple[object, ...]]] = []
        self.findings: list[tuple[object, ...]] = []
        self.posted: list[bytes] = []  # see `posted_by`

    def take(self, container: Container, record: AnyRecord) -> None:
        """Examine one record."""
        notes: list[Note] = []
        examined = checked(record, notes)
        if examined is not None:
            facts, message = examined
            if facts.kind in FULL or facts.kind == b"revisit":
                self.rows.append((record.offset, tuple(facts)))
            elif facts.method not in (b"", b"GET"):
                self.posted.extend(posted_by(facts))
            if facts.kind == b"revisit" and isinstance(record, CheckedRecord):
                notes.extend(revisits.alone(record, facts))
                notes.extend(revisits.headers(message, facts))
        self.records += record.kind != b"arc-header"
        for reason, text in notes:
            finding = container.finding(reason, record.offset, text, record.record_id)
            self.findings.append(tuple(finding))

    def write(self, at_least: int = 0) -> None:
        """Write what has gathered, if it is enough."""
        if self.records + len(self.findings) >= at_least:
            batch = self.records, self.rows, self.findings, self.posted
            marshal.dump(batch, self._stream)
            self.records, self.rows, self.findings, self.posted = 0, [], [], []


def _batches(spool: Path) -> Iterator[tuple[int, list[Any], list[Any], list[bytes]]]:
    with open(spool, "rb") as stream:
        while stream.peek(1):
            yield marshal.load(stream)
