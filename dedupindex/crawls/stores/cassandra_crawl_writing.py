"""Change crawls on a Cassandra cluster, in steps that write when they end.

Crawls are written first, all at once and only if no other server changed any; then captures, at the
write consistency; then counts; then the removal of claims. If one of these fails the step is not
acknowledged and may be repeated: it finds what it wrote. New claims are written at once, as the
answer depends on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from dedupindex.crawls.crawl import Claim, Crawl
from dedupindex.crawls.statistics_keys import Amounts, StatisticsKind
from dedupindex.crawls.store import Digests, Writing
from dedupindex.crawls.stores.cassandra_crawl_reading import (
    CassandraReading,
    StoreContext,
    at,
    claim_of,
    held_in,
    part_of_key,
    rest_of,
    sealed_row,
    secret_of,
    split,
)
from dedupindex.crawls.stores.cassandra_crawl_registry import COUNTS, CrawlRegistry, parts_of
from dedupindex.errors import IndexUnavailable
from dedupindex.index.engines.cassandra.cassandra_schema import listing
from dedupindex.index.engines.cassandra.cql import Statement, Unclear
from dedupindex.index.format.cells import digest_prefix, entries_of

_THREADS = 32  # of one step
_TRIES = 10  # of a claim, while others make and release theirs
_Place = tuple[bytes, int]  # a key, and the number of a crawl
_Free = tuple[bytes, str, bytes]  # a digest, a namespace, the secret of the claim that ends
_G = TypeVar("_G")
_T = TypeVar("_T")
_Asked = tuple[Statement, Sequence[Any]]


class CassandraWriting(CassandraReading, Writing):
    """One step of changes."""

    serial = False

    def __init__(self, context: StoreContext, known: CrawlRegistry) -> None:
        super().__init__(context, known)
        self._before = known
        self._crawls: dict[int, Crawl] = {}
        self._held: dict[_Place, bytes | None] = {}  # as read
        self._cells: dict[_Place, bytes | None] = {}  # to be written
        self._claims: dict[bytes, list[tuple[str, Claim]]] = {}  # read ahead
        self._urls: list[_Asked] = []
        self._dropped: list[_Asked] = []  # rows that were not read
        self._unlisted: list[_Asked] = []
        self._added: list[tuple[bytes, Amounts]] = []
        self._freed: list[_Free] = []

    def prefetch(
        self, crawl: Crawl, keys: Callable[[], Sequence[bytes]], digests: Digests = tuple
    ) -> None:
        statements, sought = self.statements, list(dict.fromkeys(keys()))
        prefixes = list(dict.fromkeys(map(digest_prefix, digests())))
        asked = [at(statements.row, key) for key in sought]
        rows = self.session.execute_many(
            [*asked, *((statements.claims, (prefix,)) for prefix in prefixes)]
        )
        for key, found in zip(sought, rows, strict=False):
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
        return self.context.files.number_of(name) if name else 0

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

    def drop_cell(self, key: bytes, crawl: Crawl) -> None:
        self.cell(key, crawl)
        self._cells[key, crawl.number] = None

    def drop_cells(self, crawl: Crawl, keys: Sequence[bytes]) -> None:
        statements = self.statements
        asked = [at(statements.row, key) for key in keys]
        for key, rows in zip(keys, self.session.execute_many(asked), strict=True):
            for rest, number, _ in rows:
                if number == crawl.number:
                    self._dropped.append((statements.drop_row, (split(key)[0], rest, number)))
            self._unlisted.append((statements.unlist, (crawl.number, part_of_key(key), key)))

    def list_url(self, key: bytes) -> None:
        if self.context.url_list is not None:
            self._urls.append(listing(self.context.url_list, key))

    def claims(self, prefix: bytes) -> Iterator[tuple[str, Claim]]:
        found = self._claims.get(prefix)
        return super().claims(prefix) if found is None else iter(found)

    def claim(
        self, prefix: bytes, namespace: str, claim: Claim, lease: int, over: Callable[[Claim], bool]
    ) -> Claim:
        """If its outcome is not known the asker has it: storing twice is safe."""
        session, statements, place = self.session, self.statements, (prefix, namespace)
        new = claim.crawl, claim.until, secret_of(*place, claim)
        first: _Asked = statements.make_claim, (lease, *new, *place)
        statement, values = first
        with suppress(IndexUnavailable):
            for _ in range(_TRIES):
                with suppress(Unclear):
                    if session.execute(statement, *values)[0][0]:
                        return claim
                found = session.execute(statements.claim_back, *place)
                if not found:
                    statement, values = first
                    continue
                held = claim_of(*place, found[0])
                if not over(held):
                    return held
                statement = statements.take_claim
                values = (lease, *new, *place, secret_of(*place, held))
        return claim

    def free_claim(self, prefix: bytes, namespace: str, wanted: Callable[[Claim], bool]) -> bool:
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
            self._all((self.statements.drop_claim, claim) for claim in freed)

    def sweep_claims(self, now: int) -> int:
        """Do nothing: claims expire by themselves."""
        return 0

    def add(self, key: bytes, amounts: Sequence[int]) -> None:
        self._added.append((key, amounts))

    def drop_statistics(self, crawl: Crawl, most: int) -> int:
        statement = self.statements.drop_statistics
        for kind in StatisticsKind:
            for part in range(parts_of(kind.value)):
                self.session.execute(statement, crawl.number, kind.value, part)
        return 0

    def finish(self) -> None:
        """Write everything; raises `Overtaken` before anything is written."""
        if self._crawls:
            self.context.registry.put(self._before, list(self._crawls.values()))
        self._write_captures()
        if self._added:
            self.context.sums.add(self._added)
        self._free()

    def _write_captures(self) -> None:
        """List keys before their first capture is written, so that `drop_cells` finds all."""
        statements = self.statements
        listed, unlisted = list[_Asked](), list(self._unlisted)
        put, dropped = list[_Asked](), list(self._dropped)
        for (key, number), cell in self._cells.items():
            held = self._held[key, number]
            before = set(entries_of(held)) if held else set()
            after = set(entries_of(cell)) if cell else set()
            dk, _ = split(key)
            if after and not before:
                listed.append((statements.enlist, (number, part_of_key(key), key)))
            if not after:
                unlisted.append((statements.unlist, (number, part_of_key(key), key)))
            for entry in after - before:
                rest = rest_of(key, entry)
                row = sealed_row(key, rest, number, entry)
                put.append((statements.put_row, (dk, rest, number, row)))
            for entry in before - after:
                dropped.append((statements.drop_row, (dk, rest_of(key, entry), number)))
        for asked in (listed, self._urls, put, dropped, unlisted):
            self._all(asked)

    def _all(self, asked: Iterable[_Asked]) -> None:
        for _ in self.session.execute_many(asked):
            pass
