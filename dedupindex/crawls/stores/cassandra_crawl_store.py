"""The store of crawls on a Cassandra cluster, in the keyspace of the index.

A step writes when it ends. Crawls are written first, all at once and only if no other server
changed any; then captures, at the write consistency; then counts; then the removal of claims. If
one of these fails the step is not acknowledged and may be repeated: it finds what it wrote. New
claims are written at once, as the answer depends on them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from time import time_ns
from typing import TypeVar

from dedupindex.capture import Capture
from dedupindex.crawls.crawl import Claim, Crawl
from dedupindex.crawls.crawl_captures import of_crawl
from dedupindex.crawls.statistics_keys import Amounts, StatisticsKind, key_of
from dedupindex.crawls.store import ClaimTest, Held, Store, Writing, cluster_of
from dedupindex.crawls.stores.cassandra_crawl_reading import (
    CLAIMS,
    CassandraReading,
    claim_of,
    held_in,
    part_of_key,
    row_key,
    rows_of,
    sealed_row,
    secret_of,
)
from dedupindex.crawls.stores.cassandra_crawl_registry import (
    COUNTS,
    ContainerNumbers,
    CrawlRegistry,
    Overtaken,
    Registry,
    WriterSums,
    parts_of,
)
from dedupindex.errors import Damaged, DedupError, IndexUnavailable
from dedupindex.index.address import Address
from dedupindex.index.engines.cassandra.added_digests import AddedDigests
from dedupindex.index.engines.cassandra.cassandra_schema import listing, tables_exist
from dedupindex.index.engines.cassandra.cql import Call, Row, Statement, Unclear, Use, connect
from dedupindex.index.engines.cassandra.metadata import About, has_signature, signature_of
from dedupindex.index.format.cells import Keys, container_of, digest_prefix, entries_of, split_key
from dedupindex.index.format.tombstones import REVISIT

_PUT_ROW = Statement(
    "INSERT INTO KS.capture (dk, live, rest, crawl, cell) VALUES (?, 1, ?, ?, ?)", Use.WRITE
)
_DROP_ROW = Statement(
    "DELETE FROM KS.capture USING TIMESTAMP ? WHERE dk = ? AND live = 1 AND rest = ? AND crawl = ?",
    Use.WRITE,
)
_WRITTEN = Statement(  # with the values of `rows_of`
    "SELECT rest, crawl, WRITETIME(cell) FROM KS.capture "
    "WHERE dk = ? AND live = 1 AND rest >= ? AND rest <= ?",
    Use.WRITE,
)
_ENLIST = Statement("INSERT INTO KS.reported (crawl, part, key) VALUES (?, ?, ?)", Use.WRITE)
_UNLIST = Statement(
    "DELETE FROM KS.reported USING TIMESTAMP ? WHERE crawl = ? AND part = ? AND key = ?", Use.WRITE
)
_CLAIM_SERIAL = Statement(
    "SELECT crawl, until, secret FROM KS.claim WHERE dk = ? AND namespace = ?", Use.SERIAL
)
# UPDATE, as the row marker of an INSERT has a time to live of its own: an empty row would be left
# where a shorter claim takes its place.
_PUT_CLAIM = (
    "UPDATE KS.claim USING TTL ? SET crawl = ?, until = ?, secret = ? "
    "WHERE dk = ? AND namespace = ? IF secret ="
)
_MAKE_CLAIM = Statement(f"{_PUT_CLAIM} NULL", Use.CONDITIONAL)
_TAKE_CLAIM = Statement(f"{_PUT_CLAIM} ?", Use.CONDITIONAL)
_DROP_CLAIM = Statement(
    "DELETE FROM KS.claim WHERE dk = ? AND namespace = ? IF secret = ?", Use.CONDITIONAL
)
_DROP_STATISTICS = Statement(
    "DELETE FROM KS.statistic WHERE crawl = ? AND kind = ? AND part = ?", Use.WRITE
)
_THREADS = 32  # of one step
_STEP_TRIES = 20  # of a step that changes crawls, while other servers do
_CLAIM_TRIES = 10  # of a claim, while others make and release theirs
_Place = tuple[bytes, int]  # a key, and the number of a crawl
_Free = tuple[bytes, str, bytes]  # a digest, a namespace, the secret of the claim that ends
_G = TypeVar("_G")
_T = TypeVar("_T")


class CassandraWriting(CassandraReading, Writing):
    """One step of changes."""

    serial = False

    def __init__(self, store: CassandraStore, known: CrawlRegistry) -> None:
        super().__init__(store, known)
        self._before = known
        self._crawls: dict[int, Crawl] = {}
        self._held: dict[_Place, bytes | None] = {}  # as read
        self._cells: dict[_Place, bytes | None] = {}  # to be written
        self._claims: dict[bytes, list[tuple[str, Claim]]] = {}  # read ahead
        self._urls: list[Call] = []
        self._dropped: list[Call] = []  # rows that were not read
        self._unlisted: list[Call] = []
        self._added: list[tuple[bytes, Amounts]] = []
        self._freed: list[_Free] = []
        self._stored: set[bytes] = set()  # the digests' parts of keys, of all that is reported

    def prefetch(self, crawl: Crawl, keys: Keys, captures: Sequence[Capture]) -> None:
        named = [(digest, one.url) for one in captures for digest in (one.digest, *one.also)]
        whole = dict.fromkeys(keys.key_of(digest, url) for digest, url in named)
        prefixes = dict.fromkeys(digest_prefix(digest) for digest, _ in named)
        self._stored.update(prefixes)
        rows = self.session.execute_many(
            [*map(rows_of, whole), *((CLAIMS, (prefix,)) for prefix in prefixes)]
        )
        for key, found in zip(whole, rows, strict=False):
            self._held[key, crawl.number] = held_in(key, found, crawl)
        for prefix, found in zip(prefixes, rows, strict=True):
            self._claims[prefix] = [
                (where, claim_of(prefix, where, claim)) for where, *claim in found
            ]

    def map_concurrently(self, work: Callable[[_G], _T], items: Sequence[_G]) -> list[_T]:
        if len(items) < 2:
            return super().map_concurrently(work, items)
        with ThreadPoolExecutor(min(_THREADS, len(items))) as threads:
            return list(threads.map(work, items))

    def version(self) -> int:
        return self.known.version + bool(self._crawls)

    def new_number(self) -> int:
        return max(self.known.by_number, default=0) + 1

    def put_crawl(self, crawl: Crawl) -> None:
        self._crawls[crawl.number] = crawl
        crawls = {**self._before.by_number, **self._crawls}
        ordered = [crawls[number] for number in sorted(crawls)]
        self.known = CrawlRegistry(self._before.version, self._before.writer, ordered)

    def count(self, crawl: Crawl, captures: int, size: int) -> None:
        self.add(crawl.number.to_bytes(4, "big") + COUNTS, (captures, size))

    def number_of(self, name: str) -> int:
        return self.store.numbers.number_of(name) if name else 0

    def cell(self, key: bytes, crawl: Crawl) -> bytes | None:
        place = key, crawl.number
        if place in self._cells:
            return self._cells[place]
        if place not in self._held:
            self._held[place] = super().cell(key, crawl)
        return self._held[place]

    def put_cell(self, key: bytes, crawl: Crawl, cell: bytes) -> None:
        self.cell(key, crawl)
        self._cells[key, crawl.number] = cell
        self._stored.add(split_key(key)[0])

    def drop_cell(self, key: bytes, crawl: Crawl) -> None:
        self.cell(key, crawl)
        self._cells[key, crawl.number] = None

    def drop_cells(self, crawl: Crawl, keys: Sequence[bytes]) -> None:
        for key, rows in self._rows_written(keys):
            own = [(rest, written) for rest, number, written in rows if number == crawl.number]
            after = _after(written for _, written in own)
            for rest, _ in own:
                place = split_key(key)[0], rest, crawl.number
                self._dropped.append((_DROP_ROW, (after, *place)))
            self._unlisted.append((_UNLIST, (after, crawl.number, part_of_key(key), key)))

    def _rows_written(self, keys: Sequence[bytes]) -> Iterator[tuple[bytes, list[Row]]]:
        """Yield each key with its rows: rest, crawl, and the timestamp that they have."""
        calls = [(_WRITTEN, values) for _, values in map(rows_of, keys)]
        return zip(keys, self.session.execute_many(calls), strict=True)

    def list_url(self, key: bytes) -> None:
        if self.store.by_url:
            self._urls.append(listing(key))

    def claims(self, prefix: bytes) -> Iterator[tuple[str, Claim]]:
        found = self._claims.get(prefix)
        return super().claims(prefix) if found is None else iter(found)

    def claim(
        self, prefix: bytes, namespace: str, claim: Claim, lease: int, ended: ClaimTest
    ) -> Claim:
        """If its outcome is not known the asker has it: storing twice is safe."""
        session, place = self.session, (prefix, namespace)
        new = claim.crawl, claim.until, secret_of(*place, claim)
        first: Call = _MAKE_CLAIM, (lease, *new, *place)
        statement, values = first
        with suppress(IndexUnavailable):
            for _ in range(_CLAIM_TRIES):
                with suppress(Unclear):
                    if session.execute(statement, *values)[0][0]:
                        return claim
                found = session.execute(_CLAIM_SERIAL, *place)
                if not found:
                    statement, values = first
                    continue
                held = claim_of(*place, found[0])
                if not ended(held):
                    return held
                statement = _TAKE_CLAIM
                values = (lease, *new, *place, secret_of(*place, held))
        return claim

    def free_claim(self, prefix: bytes, namespace: str, wanted: ClaimTest) -> bool:
        for where, claim in self.claims(prefix):
            if where == namespace and wanted(claim):
                self._freed.append((prefix, namespace, secret_of(prefix, namespace, claim)))
                if prefix not in self._claims:  # nothing has to be written before
                    self._free()
                return True
        return False

    def _free(self) -> None:
        freed, self._freed = self._freed, []
        with suppress(IndexUnavailable):  # they expire by themselves
            self._all((_DROP_CLAIM, claim) for claim in freed)

    def add(self, key: bytes, amounts: Sequence[int]) -> None:
        self._added.append((key, amounts))

    def drop_statistics(self, crawl: Crawl, most: int) -> int:
        for kind in StatisticsKind:
            for part in range(parts_of(kind.value)):
                self.session.execute(_DROP_STATISTICS, crawl.number, kind.value, part)
        return 0

    def finish(self) -> None:
        """Write everything; raises `Overtaken` before anything is written."""
        if self._crawls:
            self.store.registry.put(self._before, list(self._crawls.values()))
        with self.store.added.listing(self._stored):
            self._write_captures()
            if self._added:
                self.store.sums.add(self._added)
        self._free()

    def _write_captures(self) -> None:
        """List keys before their first capture is written, so that `drop_cells` finds all."""
        listed, unlisted = list[Call](), list(self._unlisted)
        put, dropped = list[Call](), list(self._dropped)
        gone: dict[_Place, set[bytes]] = {}
        for (key, number), cell in self._cells.items():
            held = self._held[key, number]
            before = set(entries_of(held)) if held else set()
            after = set(entries_of(cell)) if cell else set()
            if after and not before:
                listed.append((_ENLIST, (number, part_of_key(key), key)))
            if before - after or not after:
                gone[key, number] = before - after
            for entry in after - before:
                place = row_key(key, entry, number)
                put.append((_PUT_ROW, (*place, sealed_row(*place, entry))))
        rows = dict(self._rows_written(list({key for key, _ in gone})))
        for (key, number), entries in gone.items():
            later = _after(written for _, crawl, written in rows[key] if crawl == number)
            dropped += [(_DROP_ROW, (later, *row_key(key, entry, number))) for entry in entries]
            if not self._cells[key, number]:
                unlisted.append((_UNLIST, (later, number, part_of_key(key), key)))
        for asked in (listed, self._urls, put, dropped, unlisted):
            self._all(asked)

    def _all(self, asked: Iterable[Call]) -> None:
        for _ in self.session.execute_many(asked):
            pass


def _after(written: Iterable[int]) -> int:
    """Return the timestamp of a removal: now, and later than the rows whose timestamps are given.

    These are of the clocks of other machines, which may be ahead of ours.
    """
    return max(time_ns() // 1000, 1 + max(written, default=0))


class CassandraStore(Store):
    """The crawls in a keyspace. Clusters are copied with their own tools, crawls included."""

    is_file = False

    def __init__(self, index: Path, address: Address) -> None:
        """Connect; raises `IndexUnavailable`, also if there is no index yet."""
        self._index, self._address = index, address
        self.session = session = connect(address)
        try:
            if not tables_exist(session):
                raise IndexUnavailable(f"the first build of {address} has not finished")
            self._signature = signature_of(session)
            identity = About(session).identity(str(address))
        except BaseException:
            session.close()
            raise
        self.registry, self.numbers = Registry(session), ContainerNumbers(session)
        self.sums, self.added = WriterSums(session), AddedDigests(session)
        self.by_url = identity is not None and identity.settings.by_url  # see `url_index`

    def share(self, stored: Callable[[Collection[bytes]], None]) -> None:
        self.added.share = stored

    def in_place(self) -> bool:
        """Return whether the directory still names this cluster, and it has the same index."""
        try:
            if cluster_of(self._index) != self._address:
                return False
        except DedupError:
            return False
        try:
            return has_signature(self.session, self._signature)
        except IndexUnavailable:
            return True  # not known; whatever is read next raises the same

    @contextmanager
    def reading(self) -> Iterator[CassandraReading]:
        yield CassandraReading(self, self.registry.known())

    @contextmanager
    def writing(self) -> Iterator[CassandraWriting]:
        step = CassandraWriting(self, self.registry.now())
        yield step
        step.finish()

    def write(self, change: Callable[[Writing], _T]) -> _T:
        for _ in range(_STEP_TRIES - 1):
            with suppress(Overtaken):
                return super().write(change)
        return super().write(change)

    def batches(self) -> Iterator[list[Held]]:
        with self.reading() as reading:
            for crawl in reading.crawls():
                yield from reading.batches_of(crawl)

    def keys_of(self, crawl: Crawl) -> Iterator[list[bytes]]:
        with self.reading() as reading:
            yield from reading.keys_of(crawl)

    def check(self) -> list[str]:
        wrong: list[str] = []
        with self.reading() as reading:
            for crawl in reading.crawls():
                try:
                    for found in of_crawl(reading, crawl):
                        if found.entry[0] & 3 != REVISIT:
                            reading.container_name(container_of(found.entry))
                    for kind in StatisticsKind:
                        for _ in reading.statistics(key_of(crawl.number, kind)):
                            pass
                except Damaged as error:
                    wrong.append(f"crawl {crawl.name}: {error}")
        return wrong

    def close(self) -> None:
        self.session.close()
