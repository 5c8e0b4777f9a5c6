"""Which crawls there are on a cluster, as every server knows it: at most `AGE` seconds old.

All crawls are one partition with one version. To change some is to write them together with the
next version, if the version is still the one that was read: so of two that change crawls at once
one does it again, with what the other did before its eyes. Who changed one waits `AGE` seconds
before that is acknowledged: whoever is told of it finds it so on every server.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from xxhash import xxh3_64_intdigest

from dedupindex.cache import MEGABYTE, Cache
from dedupindex.crawls.crawl import Crawl
from dedupindex.crawls.statistics_keys import FORMS, KIND, AmountForm, Amounts, StatisticsKind
from dedupindex.crawls.stores.cassandra_crawl_tables import (
    HOST_PARTS,
    CrawlStatements,
    crawls_back,
    put_crawls,
)
from dedupindex.errors import Damaged, IndexBusy, IndexUnavailable
from dedupindex.index.engines.cassandra.cassandra_schema import Statements
from dedupindex.index.engines.cassandra.cql import Row, Session, clock, conditionally
from dedupindex.index.engines.cassandra.metadata import (
    About,
    key_of,
    number_in,
    place_in,
    put_number,
    put_place,
)
from dedupindex.index.format.cells import ContainerRef, sealed, sealed_text, unsealed_text

AGE = 0.25  # seconds


class Overtaken(IndexBusy):
    """Another server changed crawls meanwhile."""


@dataclass(frozen=True)
class CrawlRegistry:
    """All crawls, in the order in which they began."""

    version: int = 0
    writer: bytes = b""  # of this version: a keyspace that was made anew counts from 1 again
    crawls: Sequence[Crawl] = ()
    by_name: dict[str, Crawl] = field(init=False)
    by_number: dict[int, Crawl] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {crawl.name: crawl for crawl in self.crawls})
        object.__setattr__(self, "by_number", {crawl.number: crawl for crawl in self.crawls})


class Registry:
    """Reads and changes crawls, for all threads of a process."""

    def __init__(self, session: Session, keyspace: str, said: CrawlStatements) -> None:
        self._session, self._keyspace, self._said = session, keyspace, said
        self._known = CrawlRegistry()
        self._asked = -AGE  # when what is known was asked for
        self._failed: tuple[float, IndexUnavailable] = (-AGE, IndexUnavailable())
        self._busy = threading.Lock()

    def known(self) -> CrawlRegistry:
        """The crawls as they were `AGE` seconds ago, or later; raises `IndexUnavailable`."""
        return self._known if clock() - self._asked <= AGE else self.now()

    def now(self) -> CrawlRegistry:
        """The crawls as they are; raises `IndexUnavailable`.

        Threads that come while one asks share the next answer, or the outage.
        """
        came = clock()
        with self._busy:
            if self._asked >= came:
                return self._known
            if self._failed[0] >= came:
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
        """Read crawls anew if one has changed; false if one did so between two pages."""
        found = self._session.execute(self._said.version)
        said = _said(found[0][1:]) if found else (0, b"")
        if said == (self._known.version, self._known.writer):
            return True
        rows = [
            row
            for page in self._session.scan(self._said.crawls)
            for row in page
            if row[2] is not None
        ]
        if any(_said(row) != _said(rows[0]) for row in rows):
            return False
        crawls = [
            Crawl.restored(json.loads(unsealed_text(_key(number), about)))
            for *_, number, about in rows
        ]
        self._known = CrawlRegistry(*(_said(rows[0]) if rows else said), crawls)
        return True

    def put(self, before: CrawlRegistry, crawls: Sequence[Crawl]) -> None:
        """Change crawls, or add them; raises `Overtaken` if others were changed since `before`."""
        token = secrets.token_bytes(16)
        values: list[object] = [before.version + 1, token, before.version or None]
        for crawl in crawls:
            text = sealed_text(_key(crawl.number), json.dumps(crawl.stored()))
            values += [text, crawl.number]
        statement = put_crawls(self._keyspace, len(crawls))
        done = conditionally(
            self._session, statement, values, crawls_back(self._keyspace), (),
            lambda row: bytes(row[1]) == token,
        )  # fmt: skip
        if not done.won:
            raise Overtaken("crawls are begun or ended at this moment; send it again")
        time.sleep(AGE)


def _key(number: int) -> bytes:
    return number.to_bytes(4, "big")


def _said(row: Row) -> tuple[int, bytes]:
    """The version with which a row begins, and who made it."""
    return row[0] or 0, bytes(row[1] or b"")


# What a process counts of crawls on a cluster: rows of its own, never changed by another.

COUNTS = b"k"  # the kind of captures and bytes of a crawl, which may shrink
SINCE = 3600.0  # seconds that sums grow for
KEPT = 20_000  # sums, before others begin
_WIDE = 16  # bytes of one of them


def _unpacked(value: bytes | memoryview[int]) -> Amounts:
    places = range(0, len(value), _WIDE)
    return [int.from_bytes(value[at : at + _WIDE], "big", signed=True) for at in places]


def _packed(amounts: Amounts) -> bytes:
    return b"".join(amount.to_bytes(_WIDE, "big", signed=True) for amount in amounts)


_FORM = AmountForm(_unpacked, _packed, lambda one, other: list(map(int.__add__, one, other)))


def form_of(kind: bytes) -> AmountForm:
    """How amounts of a kind are kept and joined."""
    return _FORM if kind == COUNTS else FORMS[kind]


def parts_of(kind: bytes) -> int:
    """In how many partitions the headings of a kind are: there may be millions of hosts."""
    return HOST_PARTS if kind == StatisticsKind.HOST.value else 1


def part_of(kind: bytes, heading: bytes) -> int:
    """The partition of a heading."""
    return xxh3_64_intdigest(heading) % parts_of(kind)


class Tallies:
    """The sums of a process, for all its threads."""

    def __init__(self, session: Session, said: CrawlStatements) -> None:
        self._session, self._said = session, said
        self._writer, self._since = secrets.token_bytes(12), int(time.time())
        self._sums: dict[bytes, Amounts] = {}  # by the key of `rows`
        self._moment = 0  # microseconds since 1970: the later of two rows stays
        self._busy = threading.Lock()

    def add(self, additions: Iterable[tuple[bytes, Amounts]]) -> None:
        """Join amounts to the sums, durably; raises `IndexUnavailable`, then nothing is added."""
        added = list(additions)
        with self._busy:
            sums, rows = self._sums_of(len(added)), dict[bytes, Amounts]()
            for key, amounts in added:
                before = sums.get(key)
                after = form_of(key[KIND]).joined(before, amounts) if before else amounts
                sums[key] = rows[key] = after
            self._moment = max(self._moment + 1, int(time.time() * 1e6))
            written = [self._row(key, amounts) for key, amounts in rows.items()]
        try:
            for _ in self._session.execute_many((self._said.put_statistic, row) for row in written):
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
        packed = sealed(key, form_of(kind).packed(amounts))
        number, part = int.from_bytes(key[: KIND.start], "big"), part_of(kind, heading)
        return number, kind, part, heading, self._writer, self._since, packed, self._moment


def _without(kind: bytes, sums: Amounts, amounts: Amounts) -> Amounts:
    """Sums, but for what was joined to them; moments and what was told stay, and do no harm."""
    if kind == StatisticsKind.TOLD.value:
        return sums
    kept = 2 if kind == StatisticsKind.TIMES.value else 0
    return [*sums[:kept], *map(int.__sub__, sums[kept:], amounts[kept:])]


# Numbers of containers that crawls on a cluster name: each server gives them out of a block.

BLOCK = 64  # numbers; crawlers write to a few containers at once
_KEPT = 4 * MEGABYTE  # of memory, for names and for numbers


class FileNumbers:
    """Gives numbers, for all threads of a process, and says what they stand for."""

    def __init__(self, session: Session, on: Statements) -> None:
        self._session, self._on = session, on
        self._free = range(0)
        self._busy = threading.Lock()
        self._numbers = Cache[str, int](_KEPT)
        self._names = Cache[int, str](_KEPT)

    def number_of(self, name: str) -> int:
        """The number of a container, given now if it has none."""
        return self._numbers.get(name) or self._numbers.keep(name, self._number_of(name))

    def name_of(self, number: int) -> str:
        """The name of a container; raises `Damaged`."""
        name = self._names.get(number)
        return self._names.keep(number, self._name_of(number)) if name is None else name

    def _number_of(self, name: str) -> int:
        place = ContainerRef(name)
        with self._busy:
            found = self._session.execute(self._on.number, key_of(place))
            if found:
                return number_in(key_of(place), found[0][0])
            if not self._free:
                first = About(self._session, self._on).take_numbers(BLOCK)
                self._free = range(first, first + BLOCK)
            number, self._free = self._free[0], self._free[1:]
            # Who finds a number finds its place.
            for statement, values in (
                put_place(self._on, number, place),
                put_number(self._on, number, place),
            ):
                self._session.execute(statement, *values)
            return number

    def _name_of(self, number: int) -> str:
        found = self._session.execute(self._on.place, number)
        if not found:
            raise Damaged(
                f"container number {number} has no name; bin/index --check says what is damaged"
            )
        return place_in(number, found[0]).container
