"""Refuse what a crawl has reported of its files, and what is not there when the files are read.

A report is on disk before the record is: a crawler that is killed in between, a file that was cut
or damaged, or a wrong digest leave a report whose payload is stored nowhere. Lookups must not be
answered with it. A record of the same URL, second and digest bears a report out; the merge rule
puts it in the place of the report. The others get a tombstone here, as purged captures do.

A crawler may report digests of an algorithm that its files do not state. Of such an algorithm no
report is borne out, and nothing is refused, unless one of the files is damaged. Nor are reports
that name no file, and reports under a further digest. On a cluster crawls are never merged, so the
index has none of their reports.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Set
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from dedupindex.index.address import is_cluster
from dedupindex.index.engine import Engine, Load, View
from dedupindex.index.format.cells import (
    ALSO,
    DEPENDENT,
    SEVERAL,
    Keys,
    entries_of,
    packed_url,
)
from dedupindex.index.format.file_names import last_name
from dedupindex.index.format.ledger import split_items
from dedupindex.index.format.tombstones import RECORD, ROW, Tombstones, encode_purged
from dedupindex.index.load.runs import RunWriter

_RUN_BYTES = 32 << 20  # of tombstones in memory, for each algorithm


def refuse_disproved(
    engine: Engine, crawl: str, directory: Path, names: Set[str] = frozenset()
) -> int:
    """Refuse the reports of a crawl that its files do not have; return how many there were.

    All files that were read for the crawl are looked at, but nothing is done if no report is of
    those that `names` has, without their directories. Rows of CDX files that name such a file
    count as reports. The index is read as a whole. The caller holds the write lock; `directory` is
    for temporary files, and is removed. If this is killed, repeat it.
    """
    if is_cluster(engine.identity.engine):
        return 0
    shutil.rmtree(directory, ignore_errors=True)  # of a killed process
    with engine.view() as view:
        reported = {
            number: place.container
            for number, place in view.places()
            if place.crawl == crawl and place.container
        }
        if names and names.isdisjoint(reported.values()):
            return 0
        files = _files_of(view, crawl, set(reported.values())) if reported else {}
        numbers = {number for number, name in reported.items() if name in files}
        if not numbers:
            return 0
        directory.mkdir()
        found = _Disproved(directory, view, engine.identity.settings.keys(), numbers)
        found.read()
        paths, count = found.chosen(damaged=any(files.values()))
    if paths:
        engine.load(Load(paths, own_digests=True))
    shutil.rmtree(directory)
    return count


def _files_of(view: View, crawl: str, names: Set[str]) -> dict[str, bool]:
    """Return the names of files that were read for a crawl, and whether one was damaged."""
    files: dict[str, bool] = {}
    for file in view.containers():
        name = last_name(file.name)
        if file.crawl == crawl and name in names and not file.purged:
            files[name] = files.get(name, False) or file.damaged
    return files


class _Disproved:
    """The reports that no record bears out, as tombstones by the algorithm of their digest."""

    def __init__(self, directory: Path, view: View, keys: Keys, numbers: Collection[int]) -> None:
        """`numbers` are those of the containers that reports name."""
        self._directory, self._view, self._keys = directory, view, keys
        self._containers = {number.to_bytes(4, "big") for number in numbers}
        self._writers: dict[int, RunWriter] = {}
        self._counts: dict[int, int] = {}
        self._borne_out: set[int] = set()  # algorithms

    def read(self) -> None:
        """Find them in the index, and in the ledger, where most are that a record has replaced.

        What is there lost to an older capture or to a record, as a record of its second did.
        """
        for key, cell in self._view.cells():
            if cell[0] == SEVERAL or cell[17:21] in self._containers:
                entries = list(entries_of(cell))
                self._check(key, entries, entries)
        items = split_items(self._view.ledger(), self._keys)
        for key, found in groupby(items, key=itemgetter(0)):
            copies = [body for _, body in found if body[0] != DEPENDENT]
            if any(body[17:21] in self._containers for body in copies):
                cell = next((cell for one, cell in self._view.cells(key) if one == key), b"")
                self._check(key, copies, [*(entries_of(cell) if cell else ()), *copies])

    def _check(self, key: bytes, entries: list[bytes], known: list[bytes]) -> None:
        """Refuse the reports among entries of a key that no record among `known` bears out."""
        reports = [
            entry
            for entry in entries
            if entry[0] & 3 == ROW and entry[17:21] in self._containers and not entry[1] & ALSO
        ]
        if not reports:
            return
        stored = {(entry[2:8], packed_url(entry)) for entry in known if entry[0] & 3 == RECORD}
        tombstones = Tombstones.among(known)
        for entry in reports:
            if (entry[2:8], packed_url(entry)) in stored:
                self._borne_out.add(key[0])
            elif not tombstones.is_purged(entry, self._view.place_of):
                self._refuse(key, entry)

    def _refuse(self, key: bytes, entry: bytes) -> None:
        algorithm = key[0]
        if algorithm not in self._writers:
            name = f"disproved-{algorithm}"
            self._writers[algorithm] = RunWriter(self._directory, name, run_bytes=_RUN_BYTES)
        self._writers[algorithm].extend([key + encode_purged(entry, anywhere=False)])
        self._counts[algorithm] = self._counts.get(algorithm, 0) + 1

    def chosen(self, *, damaged: bool) -> tuple[list[Path], int]:
        """Return the runs of tombstones to load, and how many there are."""
        paths, count = list[Path](), 0
        for algorithm, writer in self._writers.items():
            if damaged or algorithm in self._borne_out:
                writer.flush()
                paths += writer.paths
                count += self._counts[algorithm]
        return paths, count
