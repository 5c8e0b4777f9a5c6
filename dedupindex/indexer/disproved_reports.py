"""Refuse what a crawl has reported of its files, and what is not there when the files are read.

A report is on disk before the record is: a crawler that is killed in between, a file that was cut
or damaged, or a wrong digest leave a report whose payload is stored nowhere. Lookups must not be
answered with it. A record of the same URL, second and digest bears a report out; the merge rule
puts it in the place of the report. The others get a tombstone here, as purged captures do.

A crawler may report digests of an algorithm that its files do not state, as SHA-256 for records
with a SHA-1: no record could bear them out, and they are kept. So are reports that name no file,
and reports under a further digest. Crawls of a namespace, or on a cluster, are never merged, so the
index has none of their reports; what was merged before an index was copied to a cluster is kept.
"""

from __future__ import annotations

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
    ContainerRef,
    Keys,
    entries_of,
    packed_url,
)
from dedupindex.index.format.file_names import files_of, last_name
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
        stream.write(crawl.encode())


def settle(index: Path, read: Set[str] = frozenset()) -> int:
    """Compare what is owed; return how many reports were refused.

    `read` are the names of the files that were read, by default all of the crawl. The caller holds
    the write lock. If this is killed, the next build does it.
    """
    note = index / OWED
    if not note.exists():
        return 0
    with closing(open_index(index, write=True)) as engine:
        count = refuse_disproved(engine, note.read_text("utf-8"), index / _SCRATCH, read)
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
    """The files that were read for a crawl, and the containers that its captures name.

    Files are compared by their names without directories, which crawlers know.
    """

    def __init__(self, view: View, crawl: str) -> None:
        registered = {
            file.name for file in view.containers() if file.crawl == crawl and not file.purged
        }
        places = list[tuple[int, ContainerRef]]()
        if registered:
            places = [
                (number, place)
                for number, place in view.places()
                if place.crawl == crawl and place.container
            ]
        self._file_of = {name: name for name in registered}  # -> its file, of those in a WACZ, too
        self.own = set[int]()  # numbers of containers that were read
        for number, place in places:
            for name in files_of(place.container):
                if name in registered:
                    self._file_of[place.container] = name
                    self.own.add(number)
        names = {last_name(name) for name in self._file_of}
        self.names = {
            number: name
            for number, place in places
            if (name := last_name(place.container)) in names
        }

    def have_reports(self, read: Set[str]) -> bool:
        """Return whether something was reported of files, of those in `read` if it has any.

        What names a whole path is known only when the index is read, and then compared as well.
        """
        reported = {name for number, name in self.names.items() if number not in self.own}
        if read:
            reported &= {last_name(name) for name, file in self._file_of.items() if file in read}
        return bool(reported)


class _ReportComparison:
    """Compares all captures of a crawl that name one of its files; memory is bounded."""

    def __init__(self, directory: Path, view: View, keys: Keys, files: _FilesOfCrawl) -> None:
        self._directory, self._view, self._keys, self._files = directory, view, keys, files
        self._containers = {number.to_bytes(4, "big"): number for number in files.names}
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
            while copies and key_of_copies < key:
                key_of_copies, copies = self._next(groups)
            if copies and key_of_copies == key:
                yield key, [*entries_of(cell), *copies]
            elif cell[0] == SEVERAL or cell[_CONTAINER] in self._containers:
                yield key, list(entries_of(cell))

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
        reports, stored = list[bytes](), set[tuple[bytes, bytes]]()
        for entry in entries:
            kind = entry[0] & 3
            number = self._containers.get(entry[_CONTAINER]) if kind in (RECORD, ROW) else None
            if kind == RECORD:
                stored.add((entry[2:8], packed_url(entry)))
                if number is not None and number in self._files.own:
                    self._algorithms[self._files.names[number]].add(key[0])
            elif number is not None and not entry[1] & ALSO:
                reports.append(entry)
        if not reports:
            return
        tombstones = Tombstones.among(entries)
        self._unproven.extend(
            [
                key + encode_purged(entry, anywhere=False)
                for entry in reports
                if (entry[2:8], packed_url(entry)) not in stored
                and not tombstones.is_purged(entry, self._view.place_of)
            ]
        )

    def _is_disproved(self, staged: bytes) -> bool:
        """Return whether records of its file could have borne a report out.

        Of a file without any record of the index that is any report, but not a row that names no
        file: it is of the listing that it is in.
        """
        body = staged[self._keys.lengths()[staged[0]] :]
        number = self._containers[body[_CONTAINER_OF_TOMBSTONE]]
        algorithms = self._algorithms.get(self._files.names[number])
        if algorithms is None:
            return number not in self._files.own
        return staged[0] in algorithms
