"""Refuse what a crawl has reported of its files, and what is not there when the files are read.

A report is on disk before the record is: a crawler that is killed in between, a file that was cut
or damaged, or a wrong digest leave a report whose payload is stored nowhere. Lookups must not be
answered with it. A record of the same URL, second and digest bears a report out; the merge rule
puts it in the place of the report. The others get a tombstone here, as purged captures do.

A crawler may report digests of an algorithm that its files do not state, as SHA-256 for records
with a SHA-1: no record could bear them out, and they are kept. So are reports that name no file
or a whole path, and reports under a further digest. Crawls of a namespace, or on a cluster, are
never merged, so the index has none of their reports; what was merged before an index was copied to
a cluster is kept.
"""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Iterator, Set
from contextlib import closing
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from dedupindex.index import open_index
from dedupindex.index.address import is_cluster
from dedupindex.index.engine import Engine, Load, View
from dedupindex.index.format.cells import (
    ALSO,
    DEPENDENT,
    SEVERAL,
    Keys,
    container_of,
    entries_of,
    packed_url,
)
from dedupindex.index.format.file_names import files_of, is_whole, last_name
from dedupindex.index.format.ledger import split_items
from dedupindex.index.format.tombstones import RECORD, ROW, Tombstones, encode_purged
from dedupindex.index.load.runs import RunWriter, merge_files
from dedupindex.runtime.files import atomic_file

OWED = "comparing"  # file: the crawl whose files a build reads, until its reports are compared
_SCRATCH = "merging"
_RUN_BYTES = 32 << 20  # of tombstones in memory
_CONTAINER = slice(17, 21)  # of an entry: the number of its container
_CONTAINER_OF_TOMBSTONE = slice(8, 12)


def owe(index: Path, crawl: str) -> None:
    """Note, before a build commits, that the reports of a crawl are to be compared."""
    with atomic_file(index / OWED) as stream:
        stream.write(os.fsencode(crawl))


def copy_note(index: Path, target: Path) -> None:
    """Let a copy of an index owe what the index owes."""
    if (index / OWED).exists():
        shutil.copyfile(index / OWED, target / OWED)


def settle(index: Path, read: Set[str] = frozenset()) -> int:
    """Compare what is owed; return how many reports were refused.

    `read` are the names of the files that were read, by default all of the crawl. The caller holds
    the write lock. If this is killed, the next build does it.
    """
    note = index / OWED
    if not note.exists():
        return 0
    with closing(open_index(index, write=True)) as engine:
        count = refuse_disproved(engine, os.fsdecode(note.read_bytes()), index / _SCRATCH, read)
    note.unlink()
    return count


def refuse_disproved(
    engine: Engine, crawl: str, directory: Path, read: Set[str] = frozenset()
) -> int:
    """Refuse the reports of a crawl that its files do not have; return how many there were.

    All files that were read for the crawl are compared, but nothing is done if there are no reports
    of those in `read`. Rows of CDX files that name a file of the crawl count as reports. The index
    is read as a whole. The caller holds the write lock; `directory` is for temporary files, and is
    removed. If this is killed, repeat it.
    """
    if is_cluster(engine.identity.engine) or engine.ledger_gap():
        return 0
    shutil.rmtree(directory, ignore_errors=True)  # of a killed process
    directory.mkdir()
    try:
        with engine.view() as view:
            files = _FilesOfCrawl(view, crawl)
            if not files.have_reports(read):
                return 0
            keys = engine.identity.settings.keys()
            paths, count = _ReportComparison(directory, view, keys, files).run()
        if paths:
            engine.load(Load(paths, own_digests=True))
    finally:
        shutil.rmtree(directory)
    return count


class _FilesOfCrawl:
    """The files that were read for a crawl, and what its captures call them.

    They are compared by their names without directories, which crawlers know. A report that names a
    whole path is of the container that this file is or would be: a tombstone for it would refuse
    the record, too, so it is not compared.
    """

    def __init__(self, view: View, crawl: str) -> None:
        # Also those that were purged: the index has no record of them, nor may it have a report.
        registered = {file.name for file in view.containers() if file.crawl == crawl}
        file_of = {name: name for name in registered}  # -> its file, of those in a WACZ, too
        self.read: dict[int, list[str]] = {}  # numbers of containers that were read, last names
        self.reported: dict[int, str] = {}  # of those that reports name
        for number, place in view.places() if registered else ():
            if place.crawl != crawl:
                continue
            for name in files_of(place.container):
                if name in registered:
                    file_of[place.container] = name
                    self.read[number] = _last_names(place.container)
            if place.container and not is_whole(place.container):
                self.reported[number] = last_name(place.container)
        self._files = defaultdict[str, set[str]](set)  # last name -> files
        for name, file in file_of.items():
            self._files[last_name(name)].add(file)
        self.reported = {
            number: name for number, name in self.reported.items() if name in self._files
        }

    def have_reports(self, files: Set[str]) -> bool:
        """Return whether something was reported of files, of those in `files` if it has any."""
        return any(
            not files or not self._files[name].isdisjoint(files) for name in self.reported.values()
        )


def _last_names(container: str) -> list[str]:
    """Return the last names of a container and of the WACZ files that it may be in."""
    return [last_name(name) for name in files_of(container)]


class _ReportComparison:
    """Compares all captures of a crawl that name one of its files; memory is bounded."""

    def __init__(self, directory: Path, view: View, keys: Keys, files: _FilesOfCrawl) -> None:
        self._directory, self._view, self._keys, self._files = directory, view, keys, files
        every = (*files.read, *files.reported)
        self._containers = {number.to_bytes(4, "big"): number for number in every}
        self._algorithms = defaultdict[str, set[int]](set)  # that the records of a file state
        self._unproven = RunWriter(directory, "unproven", run_bytes=_RUN_BYTES)

    def run(self) -> tuple[list[Path], int]:
        """Return runs of tombstones for the reports that are disproved, and how many these are."""
        for key, entries in self._keys_of_files():
            self._read(key, entries)
        self._unproven.flush()
        chosen, count = RunWriter(self._directory, "disproved", run_bytes=_RUN_BYTES), 0
        if self._unproven.paths:
            for batch in merge_files(self._unproven.paths, self._directory):
                kept = list(filter(self._is_disproved, batch))
                chosen.extend(kept)
                count += len(kept)
        chosen.flush()
        return chosen.paths, count

    def _keys_of_files(self) -> Iterator[tuple[bytes, list[bytes]]]:
        """Yield the keys whose captures may name a file, with all that index and ledger have."""
        items = split_items(self._view.ledger(), self._keys)
        groups = groupby(items, key=itemgetter(0))
        key_of_copies, copies = self._next(groups)
        for key, cell in self._view.cells():
            while copies and key_of_copies < key:  # the record of these is gone
                yield key_of_copies, copies
                key_of_copies, copies = self._next(groups)
            if copies and key_of_copies == key:
                yield key, [*entries_of(cell), *copies]
                key_of_copies, copies = self._next(groups)
            elif cell[0] == SEVERAL or cell[_CONTAINER] in self._containers:
                yield key, list(entries_of(cell))
        while copies:
            yield key_of_copies, copies
            key_of_copies, copies = self._next(groups)

    def _next(
        self, groups: Iterator[tuple[bytes, Iterator[tuple[bytes, bytes]]]]
    ) -> tuple[bytes, list[bytes]]:
        """Return the next key whose copies name a file, and these; b"" and none at the end."""
        for key, found in groups:
            copies = [body for _, body in found if body[0] != DEPENDENT]
            if any(body[_CONTAINER] in self._containers for body in copies):
                return key, copies
        return b"", []

    def _read(self, key: bytes, entries: list[bytes]) -> None:
        reports, records = list[bytes](), list[bytes]()
        for entry in entries:
            kind = entry[0] & 3
            number = self._containers.get(entry[_CONTAINER], 0) if kind in (RECORD, ROW) else 0
            if kind == RECORD:
                records.append(entry)
                for name in self._files.read.get(number, ()):
                    self._algorithms[name].add(key[0])
            elif number in self._files.reported and not entry[1] & ALSO:
                reports.append(entry)
        if not reports:
            return
        stored = {
            (record[2:8], packed_url(record), name)
            for record in records
            for name in _last_names(self._view.place_of(container_of(record)).container)
        }
        tombstones = Tombstones.among(entries)
        self._unproven.extend(
            [
                key + encode_purged(entry, anywhere=False)
                for entry in reports
                if (entry[2:8], packed_url(entry), self._name_in(entry)) not in stored
                and not tombstones.is_purged(entry, self._view.place_of)
            ]
        )

    def _name_in(self, report: bytes) -> str:
        """Return the last name of the file that a report names.

        A record in another file does not bear a report out: it may be purged with its file.
        """
        return self._files.reported[self._containers[report[_CONTAINER]]]

    def _is_disproved(self, staged: bytes) -> bool:
        """Return whether records of its file could have borne a report out.

        Of a file without any record of the index that is any report.
        """
        body = staged[self._keys.lengths()[staged[0]] :]
        number = self._containers[body[_CONTAINER_OF_TOMBSTONE]]
        algorithms = self._algorithms.get(self._files.reported[number])
        return algorithms is None or staged[0] in algorithms
