"""Restore the records that revisits replaced.

While the dropped members are kept, each file is restored bit for bit. Without them each record is
made from its revisit and its original: the record is the same bit for bit, its gzip member is not.
Each run that rewrote a file left a journal and made the file smaller, so the sizes in the journals
lead from the present size back to the first.
"""

from __future__ import annotations

import errno
import hashlib
import heapq
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import BinaryIO, NamedTuple

import blake3

from dedupindex.errors import BadSource, Damaged
from dedupindex.object_store import PartialCopy, is_remote
from dedupindex.post_crawl.rewrite.journal import (
    DIRECTORY,
    FileBefore,
    Journal,
    JournalEntry,
    OffsetMap,
    entries,
    name_of,
    names_of,
    summary,
)
from dedupindex.post_crawl.rewrite.result_place import DirectoryPlace, place_of
from dedupindex.post_crawl.rewrite.revisit_record import END
from dedupindex.runtime.atomic_replace import (
    DrySink,
    FileSink,
    Sink,
    Untouched,
    check_free_space,
    content_hash,
    copy_metadata,
    create_file,
    identity,
    is_still,
    lock_source,
    open_for_reading,
    open_part,
    part_path,
    remove_stale_parts,
    removing,
    replace_file,
)
from dedupindex.timestamps import digits_of_date
from dedupindex.urlkey import unbracket
from dedupindex.warc import http
from dedupindex.warc.headers import BadHead, parse
from dedupindex.warc.random_access import ExactRecord, NotExact, dictionaries_of
from dedupindex.warc.reader import read
from dedupindex.warc.record import BrokenRecord, Record
from dedupindex.warc.record_facts import refers_to
from dedupindex.warc.window import open_window

_LEVEL = 6  # as most crawlers compress
_OPEN_FILES = 32
_LONGEST_CHAIN = 100  # originals that became revisits themselves


class RewriteRun:
    def __init__(self, journal: Path, dropped: Path | None) -> None:
        self.journal, self.dropped = journal, dropped
        self.root = journal.parent.parent
        self.before, self.after = summary(journal)

    @cached_property
    def offsets(self) -> OffsetMap:
        return OffsetMap(entries(self.journal))


class WrittenRevisit(NamedTuple):
    """A revisit at its present offset."""

    offset: int
    entry: JournalEntry
    root: Path  # directory of names that have no root of their own
    dropped: tuple[Path, int] | None  # file and offset of the dropped record, if it is kept


def rewrite_runs(path: Path, size: int) -> list[RewriteRun]:
    """Return the runs that rewrote a file of this size, the last first; raises `Damaged`."""
    found = []
    for directory, name in names_of(path):
        journal = Journal(directory, name)
        if journal.exists():
            dropped = journal.dropped if journal.dropped.exists() else None
            found.append(RewriteRun(journal.lines, dropped))
        found += [RewriteRun(lines, None) for lines in reversed(journal.committed())]
    runs = []
    while last := next((run for run in found if run.after.size == size), None):
        runs.append(last)
        found.remove(last)
        size = last.before.size
    return runs


def revisits(runs: list[RewriteRun]) -> Iterator[WrittenRevisit]:
    """Yield the revisits that some runs, the last first, wrote to a file, in order of offset."""
    streams = [revisits_of_run(run, runs[:number]) for number, run in enumerate(runs)]
    return heapq.merge(*streams, key=lambda found: found.offset)


def revisits_of_run(run: RewriteRun, later: list[RewriteRun]) -> Iterator[WrittenRevisit]:
    """Yield the revisits of one run, at their offsets after `later` runs."""
    taken = 0
    for entry in entries(run.journal):
        offset = entry.new_offset
        for after in reversed(later):
            offset = after.offsets.new(offset)
        dropped = (run.dropped, taken) if run.dropped else None
        yield WrittenRevisit(offset, entry, run.root, dropped)
        taken += entry.stored


class OriginalFinder:
    """Finds originals; if `final`, not among members that other files have dropped and kept.

    `hosts` are the directories in which the results of other hosts are mounted, `stores` the
    addresses of results, by the directory of their journals.
    """

    def __init__(
        self, hosts: Mapping[str, Path], stores: Mapping[Path, str], *, final: bool = False
    ) -> None:
        self._hosts, self._final = hosts, final
        self._stores = {os.path.realpath(one): store for one, store in stores.items()}
        self._files = ExitStack()
        self._open: dict[Path, tuple[BinaryIO, list[RewriteRun]]] = {}
        self._copies: dict[Path, PartialCopy] = {}  # of files in stores

    def original(self, written: WrittenRevisit, revisit: ExactRecord) -> ExactRecord:
        """Return the original of a revisit; raises `NotExact`.

        If the original has become a revisit itself, it is what was dropped then, or its original.
        In a file whose journals do not reach back, it is searched by URL and second.
        """
        first = written
        for _ in range(_LONGEST_CHAIN):
            entry = written.entry
            path = self._path(written)
            found = self._find(path, entry)
            if found is None:
                return self._search(path, first.entry, revisit)
            if isinstance(found, ExactRecord):
                return found
            written = found
        raise NotExact("its original is a revisit of a revisit, in a cycle")

    def _root(self, written: WrittenRevisit) -> Path:
        """Return the directory of the original's file; raises `NotExact`."""
        entry = written.entry
        if entry.host:
            if entry.host not in self._hosts:
                raise NotExact(
                    f"its original is on the host {entry.host}, in {entry.name}: name the "
                    f"directory of its results with bin/undedup --host {entry.host}=DIR"
                )
            return self._hosts[entry.host]
        return Path(entry.root) if entry.root else written.root

    def _path(self, written: WrittenRevisit) -> Path:
        """Return the path of the original's file, or what stands for it if that is in a store."""
        entry = written.entry
        if is_remote(entry.root):
            path, address = Path("/", entry.root, entry.name), f"{entry.root}/{entry.name}"
        else:
            root = self._root(written)
            path, store = root / entry.name, self._stores.get(os.path.realpath(root))
            address = f"{store}/{entry.name}" if store else ""
        if address and path not in self._open:
            self._make_room()
            copy = self._files.enter_context(closing(PartialCopy(address)))
            self._copies[path] = copy
            self._open[path] = copy.file, rewrite_runs(path, copy.size)
        return path

    def close(self) -> None:
        self._files.close()
        self._open.clear()
        self._copies.clear()

    def _make_room(self) -> None:
        if len(self._open) >= _OPEN_FILES:
            self.close()

    def opened(self, path: Path) -> tuple[BinaryIO, list[RewriteRun]]:
        """Open a file for reading, and find its runs; it is closed when many others are open."""
        if path not in self._open:
            self._make_room()
            file = self._files.enter_context(open_for_reading(path))
            self._open[path] = file, rewrite_runs(path, os.fstat(file.fileno()).st_size)
        return self._open[path]

    def _find(self, path: Path, entry: JournalEntry) -> ExactRecord | WrittenRevisit | None:
        """Return an original, or the revisit that it became; None if no journal has its offset."""
        file, runs = self.opened(path)
        sizes = [os.fstat(file.fileno()).st_size, *(run.before.size for run in runs)]
        if entry.original_size not in sizes:
            return None
        offset = entry.original
        for run in reversed(runs[: sizes.index(entry.original_size)]):
            if run.offsets.is_revisit(offset):
                return self._replaced(run, offset, file)
            offset = run.offsets.new(offset)
        if path in self._copies:
            self._copies[path].need(offset, entry.original_stored)
        return ExactRecord(file, offset, entry.original_stored)

    def _search(self, path: Path, entry: JournalEntry, revisit: ExactRecord) -> ExactRecord:
        """Return the record that a revisit names, if it makes what was dropped; or `NotExact`."""
        if path in self._copies:
            raise NotExact(f"{entry.name} in the store has a size that no journal has")
        named = refers_to(revisit.head.fields)
        file, _ = self.opened(path)
        places = _places(path, identity(os.fstat(file.fileno())))
        for offset, stored in places.get(_key(named.url, named.date), ()):
            with suppress(NotExact):
                found = ExactRecord(file, offset, stored)
                _check(entry, _pieces(entry, revisit, found))
                return found
        raise NotExact(f"{path} has a size that no journal has, and the original is not in it")

    def _replaced(
        self, run: RewriteRun, offset: int, file: BinaryIO
    ) -> ExactRecord | WrittenRevisit:
        for found in revisits_of_run(run, []):
            if found.entry.offset == offset:
                if found.dropped is None or self._final:
                    return found
                dropped, at = found.dropped
                return ExactRecord(
                    self.opened(dropped)[0], at, found.entry.stored, last=True,
                    dictionaries=dictionaries_of(file),
                )  # fmt: skip
        raise NotExact("its journal has changed")


@lru_cache(4)
def _places(path: Path, _: tuple[int, int, int, int]) -> dict[bytes, list[tuple[int, int]]]:
    """Return offset and size of the responses of a file, by URL and second."""
    found: dict[bytes, list[tuple[int, int]]] = {}
    last: Record | None = None  # its size is known when the next record begins
    with suppress(BadSource), closing(open_window(path.name, path)) as window:
        for event in chain(read(window), [None]):
            if last is not None:
                url, date = last.values[:2]
                with suppress(BrokenRecord):
                    last.finish()
                    found.setdefault(_key(unbracket(url), date), []).append(
                        (last.offset, last.stored)
                    )
            last = event if isinstance(event, Record) and event.type == b"response" else None
    return found


def _key(url: bytes, date: bytes) -> bytes:
    return blake3.blake3(url + b"\0" + digits_of_date(date)).digest(16)


def write_records(
    revisits: Iterator[WrittenRevisit], source: BinaryIO, sink: Sink, task: Undo,
    *, final: bool = False,
) -> None:  # fmt: skip
    """Write a file with all records restored; raises `Untouched`. See `OriginalFinder`."""
    stores = {task.directory: task.store} if task.store else {}
    position, originals = 0, OriginalFinder(task.hosts, stores, final=final)
    try:
        for found in revisits:
            sink.copy(source, position, found.offset - position)
            try:
                _write(found, source, originals, sink)
            except NotExact as error:
                raise Untouched(
                    f"the record at {found.offset} cannot be restored: {error}"
                ) from error
            position = found.offset + found.entry.new_stored
    finally:
        originals.close()
    sink.copy(source, position, os.fstat(source.fileno()).st_size - position)


def _write(found: WrittenRevisit, source: BinaryIO, originals: OriginalFinder, sink: Sink) -> None:
    """Write one record; raises `NotExact` if it is not as it was."""
    entry = found.entry
    if found.dropped is not None:
        path, at = found.dropped
        dropped, _ = originals.opened(path)
        record = ExactRecord(
            dropped, at, entry.stored, last=True, dictionaries=dictionaries_of(source)
        )
        _check(entry, chain([record.header], record.block(), [END]))
        sink.copy(dropped, at, entry.stored)
        return
    revisit = ExactRecord(source, found.offset, entry.new_stored)
    original = originals.original(found, revisit)
    packer = revisit.packer(_size(entry), _LEVEL)

    def written() -> Iterator[bytes | memoryview]:
        for piece in _pieces(entry, revisit, original):
            sink.write(packer.compress(piece) if packer else bytes(piece))
            yield piece

    _check(entry, written())
    if packer:
        sink.write(packer.flush())


def _size(entry: JournalEntry) -> int:
    """Return the bytes of a dropped record, decompressed; raises `NotExact`."""
    header = entry.header.encode("latin-1")
    try:
        return len(header) + parse(header[: -len(END)]).length + len(END)
    except BadHead as error:
        raise NotExact(str(error)) from error


def _check(entry: JournalEntry, pieces: Iterator[bytes | memoryview]) -> None:
    running = hashlib.sha256()
    for piece in pieces:
        running.update(piece)
    if running.hexdigest() != entry.sha256:
        raise NotExact("with its original it does not make the record that was dropped")


def _pieces(
    entry: JournalEntry, revisit: ExactRecord, original: ExactRecord
) -> Iterator[bytes | memoryview]:
    """Yield the dropped record: its header, the HTTP header of the revisit, the original's body."""
    yield entry.header.encode("latin-1")
    yield from revisit.block()
    held, skip = b"", -1
    for piece in original.block():
        if skip >= 0:
            yield piece
            continue
        held += piece
        skip = http.header_end(held, 0, len(held))
        if skip >= 0:
            yield held[skip:]
    yield END


class Undo(NamedTuple):
    directory: Path  # where its journal is
    name: str
    out: Path | None  # where it goes; None is in place
    hosts: Mapping[str, Path] = {}  # directories with the results of other hosts
    store: str = ""  # address of the file's directory, if it is not that of the journal


@dataclass
class Restored:
    """What became of it."""

    name: str
    # exact (bit for bit), rebuilt (each record is), copied, existing, committed or left_alone
    state: str
    records: int = 0
    problem: str = ""
    bytes_after: int = 0
    level: str = ""  # of the worst finding of `verify` in what was copied; "" if there is none


def rewritten_files(directory: Path) -> tuple[dict[str, bool], dict[Path, str]]:
    """Return the files that have journals: which are committed, and the unreadable journals."""
    names: dict[str, bool] = {}
    problems: dict[Path, str] = {}
    for pattern in ("*.committed", "*.jsonl"):  # a later run that is not committed counts
        for path in sorted((directory / DIRECTORY).glob(pattern)):
            try:
                names[name_of(path)] = path.suffix == ".committed"
            except (Damaged, OSError) as error:
                problems[path] = str(error)
    return names, problems


def sets_below(directory: Path) -> list[Path]:
    """Return the directories below, following links, with journals of runs in place."""
    found, visited = [], set[tuple[int, int]]()
    for folder, below, _ in os.walk(directory, followlinks=True):
        known = os.stat(folder)
        if (known.st_dev, known.st_ino) in visited:
            below.clear()
            continue
        visited.add((known.st_dev, known.st_ino))
        if DIRECTORY in below:
            below.remove(DIRECTORY)
            kept = Path(folder, DIRECTORY)
            if Path(folder) != directory and any(
                next(kept.glob(pattern), None) for pattern in ("*.dropped", "*.committed")
            ):
                found.append(Path(folder))
        below.sort()
    return found


def check_space_for(tasks: Sequence[Undo], processes: int) -> None:
    """Raise `DedupError` if restoring would fill the disk.

    In place each file needs space only until it has replaced another and its dropped members are
    deleted, and one that is compared with an existing file until then; others need it for good.
    """
    needed: dict[Path, tuple[list[int], list[int]]] = {}
    for task in tasks:
        passing = task.out is None or (task.out / task.name).exists()
        sizes = needed.setdefault(task.out or task.directory, ([], []))
        sizes[passing].append(_restored_size(task))
    for place, (for_good, until_then) in needed.items():
        check_free_space(place, sum(for_good) + sum(sorted(until_then)[-processes:]))


def _restored_size(task: Undo) -> int:
    """Return how many bytes restoring a file will write; 0 if it will only report a problem."""
    path = task.directory / task.name
    try:
        size = path.stat().st_size
        if task.out is None:
            before = Journal(task.directory, task.name).summary()[0].size
            return before if before != size else 0  # equal: restored by a run that was killed
        runs = rewrite_runs(path, size)
        return runs[-1].before.size if runs else size
    except (Damaged, OSError):
        return 0


def restore(task: Undo) -> Restored:
    """Restore one file. Raises `OSError` if writing fails; then nothing has changed."""
    return _reported(task, _in_place if task.out is None else _to_directory)


def commit(task: Undo) -> Restored:
    """Delete the dropped members of a file for good; `Restored.bytes_after` is what that frees.

    Each record is first made again from its revisit and its original, without what other files
    have dropped, since that may be deleted next.
    """
    return _reported(task, _commit)


def _reported(task: Undo, work: Callable[[Undo], Restored]) -> Restored:
    """Return what became of a file; raises only errors that concern other files, too."""
    try:
        return work(task)
    except (Untouched, Damaged) as error:
        return Restored(task.name, "left_alone", 0, str(error))
    except OSError as error:
        if error.errno == errno.ENOENT:
            return Restored(task.name, "left_alone", 0, f"{error.filename} is not there")
        if error.errno not in (errno.EIO, errno.EACCES, errno.EPERM):
            raise
        return Restored(
            task.name, "left_alone", 0, f"{error.filename or 'the disk'}: {error.strerror}"
        )


def _in_place(task: Undo) -> Restored:
    path = task.directory / task.name
    journal = Journal(task.directory, task.name)
    before, after = journal.summary()
    part = part_path(path)
    if not journal.dropped.exists():
        raise Untouched(
            f"{DIRECTORY}/ has no removed records of it: it was written with --out, so its source "
            "has them, or they were deleted; bin/undedup DIR --out OTHER rebuilds the records from "
            "their originals"
        )
    with removing(part), open_for_reading(path) as source, open_part(part) as file:
        lock_source(source)
        remove_stale_parts([path])
        if os.fstat(source.fileno()).st_size == before.size:
            if content_hash(source) != before.content_hash:
                raise Untouched("it is neither the file before the run nor the file after it")
            journal.clear()  # all that a run that was killed had still to do
            return Restored(task.name, "existing", after.revisits, "", before.size)
        size = _write_exact(source, journal, before, file)
        if not is_still(path, source):
            raise Untouched("it was replaced meanwhile")
        replace_file(part, file, path)
    journal.clear()
    return Restored(task.name, "exact", after.revisits, "", size)


def _write_exact(source: BinaryIO, journal: Journal, before: FileBefore, file: BinaryIO) -> int:
    """Write the old file with its dropped members and check its hash; returns its size."""
    sink, path = FileSink(file), journal.directory.parent / journal.name
    with open_for_reading(journal.dropped) as dropped:
        for part, offset, count in journal.old_content(path):
            sink.copy(source if part == path else dropped, offset, count)
    if content_hash(file) != before.content_hash:
        raise Untouched(
            "with its removed records it is not the file before the run; nothing was replaced"
        )
    _finish(source, file, before)
    return sink.size


def _finish(source: BinaryIO, file: BinaryIO, before: FileBefore | None) -> None:
    copy_metadata(source, file)
    if before is not None:
        os.utime(file.fileno(), ns=(before.mtime_ns, before.mtime_ns))
    os.fsync(file.fileno())


def _to_directory(task: Undo) -> Restored:
    assert task.out is not None
    path, target = task.directory / task.name, task.out / task.name
    target.parent.mkdir(parents=True, exist_ok=True)
    part = part_path(target)
    remove_stale_parts([target])
    if os.path.lexists(target) and not target.is_file():
        raise Untouched(f"{target} exists already, and is no file")
    journal, place = Journal(task.directory, task.name), place_of(task.store, task.directory)
    with removing(part), place.opened(task.name) as source, open_part(part) as file:
        size = os.fstat(source.fileno()).st_size
        runs = rewrite_runs(path, size)
        restored = Restored(task.name, "copied", sum(run.after.revisits for run in runs))
        if not runs:
            if journal.exists() or journal.committed():
                raise Untouched("it is not the file that its journal describes")
            FileSink(file).copy(source, 0, size)
            _finish(source, file, None)
        elif len(runs) == 1 and runs[0].dropped and runs[0].root.samefile(task.directory):
            _write_exact(source, journal, runs[0].before, file)
            restored.state = "exact"
        else:
            write_records(revisits(runs), source, FileSink(file), task)
            _finish(source, file, runs[-1].before)
            restored.state = "rebuilt"
        restored.bytes_after = os.fstat(file.fileno()).st_size
        try:
            if DirectoryPlace(task.out).has(file, task.name):
                restored.state = "existing"
            else:
                create_file(part, file, target)
        except FileExistsError as error:  # or written by another process since
            raise Untouched(f"{target} exists already, with other content") from error
    return restored


def _commit(task: Undo) -> Restored:
    path, journal = task.directory / task.name, Journal(task.directory, task.name)
    _, after = journal.summary()
    with open_for_reading(path) as source, closing(DrySink()) as sink:
        size = os.fstat(source.fileno()).st_size
        if size != after.size or not journal.dropped.exists():
            raise Untouched("it is not the file that its journal describes")
        run = RewriteRun(journal.lines, None)
        write_records(revisits_of_run(run, []), source, sink, task, final=True)
    return Restored(task.name, "committed", after.revisits, "", journal.commit())
