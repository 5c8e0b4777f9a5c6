"""Crawls on a cluster as one server reads them: no transaction, each answer is of its own moment.

Only which crawls there are, and what became of them, is the same all through a `CassandraReading`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from functools import reduce
from heapq import merge
from itertools import groupby
from typing import Any, NamedTuple

from xxhash import xxh3_64_digest, xxh3_64_intdigest

from dedupindex.crawls.crawl import Claim, Crawl
from dedupindex.crawls.statistics_keys import KIND, MOST, Amounts, StatisticsKind
from dedupindex.crawls.store import Held, Reading
from dedupindex.crawls.stores.cassandra_crawl_registry import (
    COUNTS,
    CrawlRegistry,
    FileNumbers,
    Registry,
    Tallies,
    form_of,
    part_of,
    parts_of,
)
from dedupindex.crawls.stores.cassandra_crawl_tables import PARTS, SUFFIX, CrawlStatements
from dedupindex.errors import StrategyUnavailable, UnknownCrawl
from dedupindex.index.engine import Finder
from dedupindex.index.engines.cassandra.cassandra_schema import Statements
from dedupindex.index.engines.cassandra.cassandra_view import CassandraView
from dedupindex.index.engines.cassandra.cql import Row, Session, Statement
from dedupindex.index.format.cells import DIGEST_KEY, cell_of, sealed, unsealed
from dedupindex.index.format.url_index import MISSING

_BEYOND = b"\xff" * 32  # greater than what follows in any key
_LISTED = (
    COUNTS,
    *(
        kind.value
        for kind in (
            StatisticsKind.TOTAL,
            StatisticsKind.TIMES,
            StatisticsKind.TOLD,
            StatisticsKind.OTHERS,
        )
    ),
)
_PAGE = 1000  # keys, whose cells are read side by side


class Ground(NamedTuple):
    """What all states of one store share."""

    session: Session
    said: CrawlStatements
    registry: Registry
    files: FileNumbers
    tallies: Tallies
    lists: Statements | None  # where captures are listed by URL


def split(key: bytes) -> tuple[bytes, bytes]:
    """The partition of a key, or of what keys begin with, and the rest."""
    end = DIGEST_KEY[key[0]]
    return key[:end], key[end:]


def rest_of(key: bytes, entry: bytes) -> bytes:
    """Where an entry of a crawl is in the partition of its key."""
    return split(key)[1] + xxh3_64_digest(entry)


def sealed_row(key: bytes, rest: bytes, number: int, entry: bytes) -> bytes:
    """What the row of an entry holds: `rest` is where it is in the partition of its key."""
    return sealed(split(key)[0] + rest + number.to_bytes(4, "big"), entry)


def unsealed_row(dk: bytes, row: Row) -> Held:
    """What a row of a partition says; raises `Damaged`."""
    rest, number, stored = bytes(row[0]), int(row[1]), bytes(row[2])
    entry = unsealed(dk + rest + number.to_bytes(4, "big"), stored)
    return dk + rest[:-SUFFIX], number, entry


def part_of_key(key: bytes) -> int:
    """In which part of the list of a crawl's keys a key is."""
    return xxh3_64_intdigest(key) % PARTS


class CassandraReading(Reading):
    """What can be asked of crawls on a cluster."""

    beside = False

    def __init__(self, ground: Ground, known: CrawlRegistry) -> None:
        self.ground, self.known = ground, known
        self.origin = known
        self._view: CassandraView | None = None
        self._counted: dict[tuple[int, bytes], list[Row]] = {}  # as read ahead: heading, amounts

    def along(self, base: Finder) -> CassandraReading:
        if not isinstance(base, CassandraView):
            return self
        beside = copy(self)
        beside._view = base
        return beside

    def ready(self, crawls: Sequence[Crawl]) -> CassandraReading:
        """All of it side by side, so that a list of crawls waits once."""
        places = [(crawl.number, kind) for crawl in crawls for kind in _LISTED]
        asked = ((self.ground.said.statistics, (*place, 0, b"")) for place in places)
        ready = copy(self)
        rows = self.ground.session.execute_many(asked)
        ready._counted = dict(zip(places, rows, strict=True))
        return ready

    def version(self) -> int:
        return self.known.version

    def crawl(self, name: str) -> Crawl:
        crawl = self.known.by_name.get(name)
        if crawl is None:
            raise UnknownCrawl(f"there is no crawl {name[:200]!r}; begin it with POST /crawls")
        return crawl

    def numbered(self, number: int) -> Crawl | None:
        return self.known.by_number.get(number)

    def crawls(self) -> Iterator[Crawl]:
        return iter(self.known.crawls)

    def newest(self, before: Crawl | None = None) -> Iterator[Crawl]:
        return (
            crawl
            for crawl in reversed(self.known.crawls)
            if before is None or crawl.number < before.number
        )

    def counts(self, crawl: Crawl) -> tuple[int, int]:
        captures, size = self.statistic(crawl.number.to_bytes(4, "big") + COUNTS) or (0, 0)
        return max(captures, 0), max(min(size, MOST), 0)

    def file_of(self, number: int) -> str:
        if not number:
            return ""
        return self.ground.files.name_of(number)

    def cells(self, prefix: bytes = b"") -> Iterator[Held]:
        if not prefix:
            for crawl in self.crawls():
                yield from self.cells_of(crawl)
            return
        dk, rest = split(prefix)
        reported = self._view.partition(dk).reported if self._view else None
        if reported is not None:
            for row in reported:
                if row[0].startswith(rest):
                    yield unsealed_row(dk, row)
            return
        for page in self.ground.session.scan(self.ground.said.cells, dk, rest, rest + _BEYOND):
            for row in page:
                yield unsealed_row(dk, row)

    def cells_of(self, crawl: Crawl) -> Iterator[Held]:
        for keys in self.keys_of(crawl):
            for key, cell in zip(keys, self.cells_at(crawl, keys), strict=True):
                if cell is not None:
                    yield key, crawl.number, cell

    def keys_of(self, crawl: Crawl) -> Iterator[list[bytes]]:
        """The keys that a crawl has, or had, something under."""
        for part in range(PARTS):
            for page in self.ground.session.scan(self.ground.said.listed, crawl.number, part):
                yield [bytes(key) for (key,) in page]

    def cells_at(self, crawl: Crawl, keys: Sequence[bytes]) -> Iterator[bytes | None]:
        """What a crawl has under each key."""
        asked = (at(self.ground.said.row, key) for key in keys)
        for key, rows in zip(keys, self.ground.session.execute_many(asked), strict=True):
            yield held_in(key, rows, crawl)

    def cell(self, key: bytes, crawl: Crawl) -> bytes | None:
        return next(self.cells_at(crawl, [key]))

    def silent(self, prefix: bytes) -> bool:
        return next(self.cells(prefix), None) is None

    def listed(self, sought: bytes) -> Iterator[bytes]:
        """Whole keys: those of the index, too, since it has one list of both."""
        if self._view is None:
            raise StrategyUnavailable(MISSING)
        return self._view.listed(sought)

    def claims(self, prefix: bytes) -> Iterator[tuple[str, Claim]]:
        for namespace, *claim in self.ground.session.execute(self.ground.said.claims, prefix):
            yield namespace, claim_of(prefix, namespace, claim)

    def statistic(self, key: bytes) -> Amounts | None:
        number, kind, heading = (
            int.from_bytes(key[: KIND.start], "big"),
            key[KIND],
            key[KIND.stop :],
        )
        counted = self._counted.get((number, kind))
        if counted is None:
            place = number, kind, part_of(kind, heading), heading
            found = self.ground.session.execute(self.ground.said.statistic, *place)
        else:
            found = [row[1:] for row in counted if row[0] == heading]
        return _joined(kind, [unsealed(key, bytes(row[0])) for row in found]) if found else None

    def statistics(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, Amounts]]:
        kind, number = prefix[KIND], int.from_bytes(prefix[: KIND.start], "big")
        parts = [self._headings(number, kind, part, start) for part in range(parts_of(kind))]
        for heading, rows in groupby(merge(*parts, key=_heading), key=_heading):
            yield heading, _joined(kind, (packed for _, packed in rows))

    def _headings(
        self, number: int, kind: bytes, part: int, start: bytes
    ) -> Iterator[tuple[bytes, bytes]]:
        pages: Iterable[list[Row]] = [self._counted.get((number, kind), [])]
        if (number, kind) not in self._counted:
            said = self.ground.said.statistics
            pages = self.ground.session.scan(said, number, kind, part, start)
        for page in pages:
            for heading, packed in page:
                if heading >= start:
                    key = number.to_bytes(4, "big") + kind + bytes(heading)
                    yield bytes(heading), unsealed(key, bytes(packed))


def claim_of(prefix: bytes, namespace: str, row: Sequence[Any]) -> Claim:
    """The claim of a row of the table; raises `Damaged`."""
    crawl, until, secret = row
    token = unsealed(_claim_key(prefix, namespace, crawl, until), bytes(secret))
    return Claim(crawl, until, token.hex())


def secret_of(prefix: bytes, namespace: str, claim: Claim) -> bytes:
    """The token of a claim as its row holds it."""
    key = _claim_key(prefix, namespace, claim.crawl, claim.until)
    return sealed(key, bytes.fromhex(claim.token))


def _claim_key(prefix: bytes, namespace: str, crawl: int, until: int) -> bytes:
    return prefix + f"{namespace} {crawl} {until} ".encode()


def _heading(row: tuple[bytes, bytes]) -> bytes:
    return row[0]


def _joined(kind: bytes, packed: Iterable[bytes]) -> Amounts:
    form = form_of(kind)
    unpacked: Callable[[bytes], Amounts] = form.unpacked
    return reduce(form.joined, (unpacked(bytes(one)) for one in packed))


def at(statement: Statement, key: bytes) -> tuple[Statement, Sequence[Any]]:
    """The rows of one key: nothing but an entry's hash follows."""
    dk, rest = split(key)
    return statement, (dk, rest, rest + b"\xff" * SUFFIX)


def held_in(key: bytes, rows: Iterable[Row], crawl: Crawl) -> bytes | None:
    """What a crawl has, of the rows of a key; raises `Damaged`."""
    dk = split(key)[0]
    entries = [unsealed_row(dk, row)[2] for row in rows if row[1] == crawl.number]
    return cell_of(entries) if entries else None
