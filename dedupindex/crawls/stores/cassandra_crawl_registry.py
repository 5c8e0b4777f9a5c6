"""Crawls on a Cassandra cluster as every server has them, at most `AGE` seconds old.

All crawls are one partition with one version. Crawls are written together with the next version, if
the version is still the one that was read; of two servers that change crawls at once, one repeats
its change on what the other wrote. A change is acknowledged after `AGE` seconds, when all servers
have it.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

from xxhash import xxh3_64_intdigest

from dedupindex.cache import MEGABYTE, Cache
from dedupindex.crawls.crawl import Crawl
from dedupindex.crawls.statistics_keys import CODECS, KIND, AmountCodec, Amounts, StatisticsKind
from dedupindex.errors import Damaged, IndexBusy, IndexUnavailable
from dedupindex.index.engine import clock
from dedupindex.index.engines.cassandra.cassandra_schema import NUMBER, PLACE
from dedupindex.index.engines.cassandra.cql import (
    Row,
    Session,
    Statement,
    Use,
    execute_conditional,
)
from dedupindex.index.engines.cassandra.metadata import (
    About,
    key_of,
    number_in,
    place_in,
    put_number,
    put_place,
)
from dedupindex.index.format.cells import ContainerRef, sealed, sealed_text, unsealed_text

AGE = 0.25  # seconds that a list of crawls is used

# Everything but captures is read at the consistency of writes: a reader must see a cancelled crawl.
_VERSION = Statement(
    "SELECT DISTINCT shelf, version, writer FROM KS.crawl WHERE shelf = 0", Use.WRITE
)
_VERSION_SERIAL = _VERSION._replace(use=Use.SERIAL)
_CRAWLS = Statement(
    "SELECT version, writer, number, about FROM KS.crawl WHERE shelf = 0", Use.WRITE
)
_PUT_VERSION = "UPDATE KS.crawl SET version = ?, writer = ? WHERE shelf = 0 IF version = ?;"
_PUT_CRAWL = "UPDATE KS.crawl SET about = ? WHERE shelf = 0 AND number = ?;"
_PUT_STATISTIC = Statement(
    "INSERT INTO KS.statistic (crawl, kind, part, heading, writer, since, amounts) "
    "VALUES (?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ?",
    Use.WRITE,
)


class Overtaken(IndexBusy):
    """Another server has changed crawls meanwhile."""


class CrawlRegistry:
    """All crawls of a version, the oldest first."""

    def __init__(self, version: int, writer: bytes, crawls: Sequence[Crawl]) -> None:
        """`writer`: who wrote the version; those of a new keyspace start at 1 again."""
        self.version, self.writer, self.crawls = version, writer, crawls
        self.by_name = {crawl.name: crawl for crawl in crawls}
        self.by_number = {crawl.number: crawl for crawl in crawls}


class Registry:
    """Reads and changes crawls, for all threads of a process."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._known = CrawlRegistry(0, b"", ())
        self._asked = -AGE  # when what is known was asked for
        self._failed: tuple[float, IndexUnavailable] = (-AGE, IndexUnavailable())
        self._busy = threading.Lock()

    def known(self) -> CrawlRegistry:
        """Return a list of crawls at most `AGE` seconds old; raises `IndexUnavailable`."""
        return self._known if clock() - self._asked <= AGE else self.now()

    def now(self) -> CrawlRegistry:
        """Return the current list of crawls; raises `IndexUnavailable`.

        Threads that call while one reads share the next answer, or the error.
        """
        called = clock()
        with self._busy:
            if self._asked >= called:
                return self._known
            if self._failed[0] >= called:
                raise IndexUnavailable(str(self._failed[1]))
            asked = clock()
            try:
                while not self._read():
                    pass
            except IndexUnavailable as error:
                self._failed = asked, error
                raise
            self._asked = asked
            return self._known

    def _read(self) -> bool:
        """Read the crawls if one has changed; return False if one did so between two pages."""
        found = self._session.execute(_VERSION)
        version = _version(found[0][1:]) if found else (0, b"")
        if version == (self._known.version, self._known.writer):
            return True
        rows = [row for page in self._session.scan(_CRAWLS) for row in page if row[2] is not None]
        if any(_version(row) != _version(rows[0]) for row in rows):
            return False
        crawls = [
            Crawl.restored(json.loads(unsealed_text(_key(number), about)))
            for *_, number, about in rows
        ]
        self._known = CrawlRegistry(*(_version(rows[0]) if rows else version), crawls)
        return True

    def put(self, before: CrawlRegistry, crawls: Sequence[Crawl]) -> None:
        """Write crawls; raises `Overtaken` if any was changed since `before`."""
        token = secrets.token_bytes(16)
        values: list[object] = [before.version + 1, token, before.version or None]
        for crawl in crawls:
            text = sealed_text(_key(crawl.number), json.dumps(crawl.stored()))
            values += [text, crawl.number]
        text = f"BEGIN BATCH {_PUT_VERSION} {len(crawls) * _PUT_CRAWL} APPLY BATCH"
        put = Statement(text, Use.CONDITIONAL), values
        done = execute_conditional(
            self._session, put, (_VERSION_SERIAL, ()), lambda row: bytes(row[2]) == token
        )
        if not done.applied:
            raise Overtaken("another server is beginning or ending crawls; send it again")
        time.sleep(AGE)


def _key(number: int) -> bytes:
    return number.to_bytes(4, "big")


def _version(row: Row) -> tuple[int, bytes]:
    """Return the version and its writer, with which a row begins."""
    return row[0] or 0, bytes(row[1] or b"")


# --- counts: each process writes rows of its own ----------------------------------------------

HOST_PARTS = 16  # partitions of the hosts of a crawl
COUNTS = b"k"  # the kind of captures and bytes of a crawl, which may shrink
SINCE = 3600.0  # seconds until a process starts new rows
KEPT = 20_000  # sums of a process, until it starts new rows
_WIDE = 16  # bytes of one of them


def _unpacked(value: bytes | memoryview[int]) -> Amounts:
    places = range(0, len(value), _WIDE)
    return [int.from_bytes(value[at : at + _WIDE], "big", signed=True) for at in places]


def _packed(amounts: Amounts) -> bytes:
    return b"".join(amount.to_bytes(_WIDE, "big", signed=True) for amount in amounts)


_SIGNED = AmountCodec(_unpacked, _packed, lambda one, other: list(map(int.__add__, one, other)))


def codec_of(kind: bytes) -> AmountCodec:
    """Return how amounts of a kind are stored and combined."""
    return _SIGNED if kind == COUNTS else CODECS[kind]


def parts_of(kind: bytes) -> int:
    """Return the number of partitions of a kind: there may be millions of hosts."""
    return HOST_PARTS if kind == StatisticsKind.HOST.value else 1


def part_of(kind: bytes, heading: bytes) -> int:
    """Return the partition of a heading."""
    return xxh3_64_intdigest(heading) % parts_of(kind)


class WriterSums:
    """The sums of one process, for all its threads."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._writer, self._since = secrets.token_bytes(12), int(time.time())
        self._sums: dict[bytes, Amounts] = {}  # by key of `statistics_keys`
        self._written = 0  # microseconds since 1970: the later of two rows wins
        self._busy = threading.Lock()

    def add(self, additions: Iterable[tuple[bytes, Amounts]]) -> None:
        """Add amounts durably; raises `IndexUnavailable`, then nothing is added."""
        added = list(additions)
        with self._busy:
            sums, rows = self._sums_of(len(added)), dict[bytes, Amounts]()
            for key, amounts in added:
                before = sums.get(key)
                after = codec_of(key[KIND]).combine(before, amounts) if before else amounts
                sums[key] = rows[key] = after
            self._written = max(self._written + 1, int(time.time() * 1e6))
            written = [self._row(key, amounts) for key, amounts in rows.items()]
        try:
            for _ in self._session.execute_many((_PUT_STATISTIC, row) for row in written):
                pass
        except BaseException:
            with self._busy:
                for key, amounts in added:
                    if key in sums:
                        sums[key] = _without(key[KIND], sums[key], amounts)
            raise

    def _sums_of(self, more: int) -> dict[bytes, Amounts]:
        now = int(time.time())
        if len(self._sums) + more > KEPT or now - self._since > SINCE:
            self._sums, self._since = {}, max(now, self._since + 1)
        return self._sums

    def _row(self, key: bytes, amounts: Amounts) -> Sequence[Any]:
        kind, heading = key[KIND], key[KIND.stop :]
        packed = sealed(key, codec_of(kind).pack(amounts))
        number, part = int.from_bytes(key[: KIND.start], "big"), part_of(kind, heading)
        return number, kind, part, heading, self._writer, self._since, packed, self._written


def _without(kind: bytes, sums: Amounts, amounts: Amounts) -> Amounts:
    """Subtract amounts from sums; times and self-reports are left, as they do no harm."""
    if kind == StatisticsKind.SELF_REPORT.value:
        return sums
    if kind == StatisticsKind.MINUTE.value:
        rest = list(map(int.__sub__, sums[1:], amounts[1:]))
        return [sums[0], *rest] if sums[0] == amounts[0] else sums
    if kind == StatisticsKind.TIMES.value:
        return [*sums[:2], *map(int.__sub__, sums[2:-1], amounts[2:-1]), sums[-1]]
    return list(map(int.__sub__, sums, amounts))


# --- container numbers: each server assigns them from a block of its own ------------------------

BLOCK = 64  # numbers; crawlers write to few containers at a time
_KEPT = 4 * MEGABYTE  # of memory, for names and for numbers


class ContainerNumbers:
    """Assigns numbers to container names and resolves them, for all threads of a process."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._free = range(0)
        self._busy = threading.Lock()
        self._numbers = Cache[str, int](_KEPT)
        self._names = Cache[int, str](_KEPT)

    def number_of(self, name: str) -> int:
        """Return the number of a container, assigned now if it has none."""
        return self._numbers.get(name) or self._numbers.keep(name, self._number_of(name))

    def name_of(self, number: int) -> str:
        """Return the name of a container; raises `Damaged`."""
        name = self._names.get(number)
        return self._names.keep(number, self._name_of(number)) if name is None else name

    def _number_of(self, name: str) -> int:
        place = ContainerRef(name)
        with self._busy:
            found = self._session.execute(NUMBER, key_of(place))
            if found:
                return number_in(key_of(place), found[0][0])
            if not self._free:
                first = About(self._session).take_numbers(BLOCK)
                self._free = range(first, first + BLOCK)
            number, self._free = self._free[0], self._free[1:]
            # The name first: whoever finds a number must find its name.
            for statement, values in (put_place(number, place), put_number(number, place)):
                self._session.execute(statement, *values)
            return number

    def _name_of(self, number: int) -> str:
        found = self._session.execute(PLACE, number)
        if not found:
            raise Damaged(
                f"container number {number} has no name; bin/index --check says what is damaged"
            )
        return place_in(number, found[0]).container
