"""Read crawls on a Cassandra cluster.

There are no transactions: two reads may see different states. Only the list of crawls and their
states is the same throughout a `CassandraReading`.

Captures are rows of the index's own table ``capture``, after what the index has of the same digest:
one row for each entry, whose key ends with the hash of the entry. Two servers that get captures of
the same URL at once write two rows; readers find both. Rows never change.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from functools import reduce
from heapq import merge
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xxhash import xxh3_64_digest, xxh3_64_intdigest

from dedupindex.crawls.crawl import Claim, Crawl
from dedupindex.crawls.statistics_keys import KIND, MOST, Amounts, StatisticsKind
from dedupindex.crawls.store import Held, Reading
from dedupindex.crawls.stores.cassandra_crawl_registry import (
    COUNTS,
    CrawlRegistry,
    codec_of,
    part_of,
    parts_of,
)
from dedupindex.errors import StrategyUnavailable
from dedupindex.index.engine import Finder
from dedupindex.index.engines.cassandra.cql import Call, Row, Statement, Use
from dedupindex.index.format.cells import cell_of, sealed, split_key, unsealed
from dedupindex.index.format.url_index import MISSING
from dedupindex.index.load.runs import in_order

if TYPE_CHECKING:
    from dedupindex.crawls.stores.cassandra_crawl_store import CassandraStore

_CELLS = Statement(
    "SELECT rest, crawl, cell FROM KS.capture WHERE dk = ? AND live = 1 AND rest >= ? AND rest <= ?"
)
_ROW = _CELLS._replace(use=Use.WRITE)
_LISTED = Statement("SELECT key FROM KS.reported WHERE crawl = ? AND part = ?", Use.WRITE)
CLAIMS = Statement("SELECT namespace, crawl, until, secret FROM KS.claim WHERE dk = ?", Use.WRITE)
_STATISTICS = Statement(
    "SELECT heading, amounts FROM KS.statistic "
    "WHERE crawl = ? AND kind = ? AND part = ? AND heading >= ?",
    Use.WRITE,
)
_STATISTIC = Statement(
    "SELECT amounts FROM KS.statistic WHERE crawl = ? AND kind = ? AND part = ? AND heading = ?",
    Use.WRITE,
)
PARTS = 64  # of the list of a crawl's keys
SUFFIX = 8  # bytes of an entry's hash behind the rest of its key
_BEYOND = b"\xff" * 32  # sorts after the rest of any key
_LISTS = (  # kinds that lists of crawls show
    "TOTAL",
    "TIMES",
    "SELF_REPORT",
    "OTHERS",
    "REFUSED",
    "REFUSED_PAYLOAD",
)
_PREFETCHED = (COUNTS, *(StatisticsKind[name].value for name in _LISTS))


def row_key(key: bytes, entry: bytes, number: int) -> tuple[bytes, bytes, int]:
    """Return the primary key of the row of an entry of a crawl."""
    dk, rest = split_key(key)
    return dk, rest + xxh3_64_digest(entry), number


def sealed_row(dk: bytes, rest: bytes, number: int, entry: bytes) -> bytes:
    """Return an entry with its checksum, as its row holds it."""
    return sealed(dk + rest + number.to_bytes(4, "big"), entry)


def unsealed_row(dk: bytes, row: Row) -> Held:
    """Read a row of a partition; raises `Damaged`."""
    rest, number, stored = bytes(row[0]), int(row[1]), bytes(row[2])
    entry = unsealed(dk + rest + number.to_bytes(4, "big"), stored)
    return dk + rest[:-SUFFIX], number, entry


def part_of_key(key: bytes) -> int:
    """Return the partition of a crawl's list of keys that holds a key."""
    return xxh3_64_intdigest(key) % PARTS


class CassandraReading(Reading):
    """The crawls on a cluster, to read."""

    needs_merge = False

    def __init__(self, store: CassandraStore, known: CrawlRegistry) -> None:
        self.store, self.session = store, store.session
        self.known, self.origin = known, known
        self._view: Finder | None = None
        self._counted: dict[tuple[int, bytes], list[Row]] = {}  # read ahead: heading, amounts

    def with_view(self, base: Finder) -> CassandraReading:
        reading = copy(self)
        reading._view = base
        return reading

    def with_statistics(self, crawls: Sequence[Crawl]) -> CassandraReading:
        places = [(crawl.number, kind) for crawl in crawls for kind in _PREFETCHED]
        asked = ((_STATISTICS, (*place, 0, b"")) for place in places)
        ready = copy(self)
        rows = self.session.execute_many(asked)
        ready._counted = dict(zip(places, rows, strict=True))
        return ready

    def version(self) -> int:
        return self.known.version

    def crawl_named(self, name: str) -> Crawl | None:
        return self.known.by_name.get(name)

    def crawl_numbered(self, number: int) -> Crawl | None:
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

    def container_name(self, number: int) -> str:
        return self.store.numbers.name_of(number) if number else ""

    def cells(self, prefix: bytes = b"") -> Iterator[Held]:
        if not prefix:
            for crawl in self.crawls():
                yield from self.cells_of(crawl)
            return
        dk, rest = split_key(prefix)
        reported = self._view.reported(dk) if self._view else None
        if reported is not None:
            for row in reported:
                if row[0].startswith(rest):
                    yield unsealed_row(dk, row)
            return
        for page in self.session.scan(_CELLS, dk, rest, rest + _BEYOND):
            for row in page:
                yield unsealed_row(dk, row)

    def cells_from(self, begin: bytes) -> Iterator[Held]:
        """Yield cells as `Reading.cells_from` says; all are read, and sorted on disk."""
        found = (
            b"%b%b%b%c" % (key, number.to_bytes(4, "big"), cell, len(key))
            for key, number, cell in self.cells()
            if key >= begin
        )
        for item in in_order(found, Path(tempfile.gettempdir())):
            end = item[-1]
            yield item[:end], int.from_bytes(item[end : end + 4], "big"), item[end + 4 : -1]

    def cells_of(self, crawl: Crawl) -> Iterator[Held]:
        return chain.from_iterable(self.batches_of(crawl))

    def batches_of(self, crawl: Crawl) -> Iterator[list[Held]]:
        """Yield everything that a crawl has, in batches."""
        for keys in self.keys_of(crawl):
            cells = zip(keys, self.cells_at(crawl, keys), strict=True)
            yield [(key, crawl.number, cell) for key, cell in cells if cell is not None]

    def keys_of(self, crawl: Crawl) -> Iterator[list[bytes]]:
        """Yield the keys that a crawl has, or had, anything under."""
        for part in range(PARTS):
            for page in self.session.scan(_LISTED, crawl.number, part):
                yield [bytes(key) for (key,) in page]

    def cells_at(self, crawl: Crawl, keys: Sequence[bytes]) -> Iterator[bytes | None]:
        """Yield what a crawl has under each key."""
        rows_by_key = self.session.execute_many(map(rows_of, keys))
        for key, rows in zip(keys, rows_by_key, strict=True):
            yield held_in(key, rows, crawl)

    def cell(self, key: bytes, crawl: Crawl) -> bytes | None:
        return next(self.cells_at(crawl, [key]))

    def has_none(self, prefix: bytes) -> bool:
        return next(self.cells(prefix), None) is None

    def keys_by_url(self, tail: bytes) -> Iterator[bytes]:
        """Yield complete keys; the table holds those of crawls and of the index."""
        if self._view is None:
            raise StrategyUnavailable(MISSING)
        return self._view.listed(tail)

    def claims(self, prefix: bytes) -> Iterator[tuple[str, Claim]]:
        for namespace, *claim in self.session.execute(CLAIMS, prefix):
            yield namespace, claim_of(prefix, namespace, claim)

    def statistic(self, key: bytes) -> Amounts | None:
        number, kind, heading = int.from_bytes(key[: KIND.start]), key[KIND], key[KIND.stop :]
        counted = self._counted.get((number, kind))
        if counted is None:
            place = number, kind, part_of(kind, heading), heading
            found = self.session.execute(_STATISTIC, *place)
        else:
            found = [row[1:] for row in counted if row[0] == heading]
        return _joined(kind, [unsealed(key, bytes(row[0])) for row in found]) if found else None

    def statistics(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, Amounts]]:
        kind, number = prefix[KIND], int.from_bytes(prefix[: KIND.start], "big")
        parts = [self._headings(number, kind, part, start) for part in range(parts_of(kind))]
        for heading, rows in groupby(merge(*parts, key=itemgetter(0)), key=itemgetter(0)):
            yield heading, _joined(kind, (packed for _, packed in rows))

    def _headings(
        self, number: int, kind: bytes, part: int, start: bytes
    ) -> Iterator[tuple[bytes, bytes]]:
        pages: Iterable[list[Row]] = [self._counted.get((number, kind), [])]
        if (number, kind) not in self._counted:
            pages = self.session.scan(_STATISTICS, number, kind, part, start)
        for page in pages:
            for heading, packed in page:
                if heading >= start:
                    key = number.to_bytes(4, "big") + kind + bytes(heading)
                    yield bytes(heading), unsealed(key, bytes(packed))


def claim_of(prefix: bytes, namespace: str, row: Sequence[Any]) -> Claim:
    """Read a row of the claim table; raises `Damaged`."""
    crawl, until, secret = row
    token = unsealed(_claim_key(prefix, namespace, crawl, until), bytes(secret))
    return Claim(crawl, until, token.hex())


def secret_of(prefix: bytes, namespace: str, claim: Claim) -> bytes:
    """Return the token of a claim with its checksum, as its row holds it."""
    key = _claim_key(prefix, namespace, claim.crawl, claim.until)
    return sealed(key, bytes.fromhex(claim.token))


def _claim_key(prefix: bytes, namespace: str, crawl: int, until: int) -> bytes:
    return prefix + f"{namespace} {crawl} {until} ".encode()


def _joined(kind: bytes, packed: Iterable[bytes]) -> Amounts:
    codec = codec_of(kind)
    return reduce(codec.combine, map(codec.unpack, packed))


def rows_of(key: bytes) -> Call:
    """Return the call that reads the rows of one key, which differ in the hash of the entry."""
    dk, rest = split_key(key)
    return _ROW, (dk, rest, rest + b"\xff" * SUFFIX)


def held_in(key: bytes, rows: Iterable[Row], crawl: Crawl) -> bytes | None:
    """Return the cell of a crawl from the rows of a key; raises `Damaged`."""
    dk = split_key(key)[0]
    entries = [unsealed_row(dk, row)[2] for row in rows if row[1] == crawl.number]
    return cell_of(entries) if entries else None
