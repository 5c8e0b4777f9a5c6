"""Statistics of crawls against a simple model: over workers, in any order, in bounded memory."""

from __future__ import annotations

import struct
import tempfile
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupindex.crawls import lifecycle, statistics
from dedupindex.crawls.counting import (
    FAILED,
    KEPT,
    LISTED,
    NO_ORIGINAL,
    CountedLookup,
    LookupCounter,
    LookupOutcome,
    add_counted,
    bound_of,
)
from dedupindex.crawls.crawl_captures import add
from dedupindex.crawls.parse_report import NAMES, SelfReport, add_self_report, self_report_of
from dedupindex.crawls.statistics_keys import (
    CODECS,
    MOST,
    NOT_REPORTED,
    StatisticsKind,
    StatisticsRow,
    key_of,
)
from dedupindex.crawls.store import Store
from dedupindex.crawls.stores import lmdb_crawl_state, lmdb_crawl_store, make_store
from dedupindex.crawls.stores.lmdb_crawl_state import LmdbWriting
from dedupindex.crawls.stores.lmdb_crawl_store import LmdbStore
from dedupindex.errors import (
    BadInput,
    BadQuery,
    Damaged,
    DedupError,
    FormatFromFuture,
    FormatFromPast,
)
from dedupindex.index.identity import FORMAT, Settings
from dedupindex.indexer.admission import admission_filter
from dedupindex.urlkey import counted_host
from tests.conftest import MakeIndex, of_files
from tests.support.budgets import examples, thorough
from tests.support.captures import capture

SETTINGS = Settings(mime=".*", whitelist=True)
JUDGE = admission_filter(SETTINGS)
HOSTS = (b"a.example", b"b.example", b"")
CLASSES = ("exact_url", "canonical_url", "digest")
CRAWLS = ("one", "two")
DAY = 86_400


@pytest.fixture
def store(make_index: MakeIndex, engine: str) -> Iterator[Store]:
    with closing(make_store(make_index(engine=engine))) as store:
        for name in CRAWLS:
            with store.writing() as writing:
                lifecycle.begin(writing, name)
        yield store


class Looked(NamedTuple):
    """A lookup, as tests make it."""

    worker: int
    crawl: str
    host: bytes
    strategy: str
    match: str  # or "", "listed", "error"
    size: int
    mime: bytes
    stated: int

    def counted(self) -> CountedLookup:
        url = b"http://" + self.host + b"/" if self.host else b""
        outcome = NO_ORIGINAL
        if self.match in CLASSES and self.size % 2:
            held = capture(1)._replace(size=self.size, mime=self.mime)
            outcome = LookupOutcome.of_hit(self.match, held)
        elif self.match in CLASSES:
            size = None if self.size < 0 else self.size
            held = {"size": size, "mime": self.mime.decode() or None, "status": 200}
            outcome = orjson.dumps({"duplicate": True, "match": self.match, "original": held})
        elif not self.match and self.size % 2:
            outcome = LookupOutcome(mime=self.mime)
        elif self.match:
            outcome = LISTED if self.match == "listed" else FAILED
        return self.crawl, self.strategy, url, outcome, self.stated, 1000

    def row(self) -> StatisticsRow:
        if self.match == "error":
            return StatisticsRow(errors=1)
        hit: dict[str, int] = {}
        if self.match in CLASSES:
            hit = {self.match: 1, f"{self.match}_bytes": max(self.size, 0)}
            hit |= {"unsized": int(self.size < 0), "duplicate_stated_bytes": max(self.stated, 0)}
        elif self.match:
            hit = {"listed": 1}
        return StatisticsRow(lookups=1, stated_bytes=max(self.stated, 0), **hit)

    def headings(self) -> dict[str, bytes]:
        hit = self.match in CLASSES
        return {
            "host": self.host,
            "mime": self.mime if hit or (not self.match and self.size % 2) else b"",
            "status": b"200" if hit else b"",
            "strategy": self.strategy.encode(),
        }


class Stored(NamedTuple):
    """A capture that is reported."""

    worker: int
    crawl: str
    number: int


looked = st.builds(
    Looked,
    st.integers(0, 2),
    st.sampled_from((*CRAWLS, "nobody")),
    st.sampled_from(HOSTS),
    st.sampled_from(("DIGEST_ANY", "EXACT_URL")),
    st.sampled_from((*CLASSES, "", "listed", "error")),
    st.integers(-1, 5000),
    st.sampled_from((b"image/png", b"")),
    st.integers(-1, 9000),
)
stored = st.builds(Stored, st.integers(0, 2), st.sampled_from(CRAWLS), st.integers(0, 5))
written = st.tuples(st.integers(0, 2), st.booleans())  # a worker writes, or fails to


@settings(max_examples=examples(50))
@given(st.lists(st.one_of(looked, stored, written), max_size=60))
def test_statistics_do_not_depend_on_the_order_of_events_and_workers(events: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder, closing(LmdbStore(Path(folder))) as store:
        for name in CRAWLS:
            with store.writing() as writing:
                lifecycle.begin(writing, name)
        workers = [LookupCounter(lambda: 10 * DAY) for _ in range(3)]
        model: dict[tuple[str, str, bytes], StatisticsRow] = {}
        known: set[tuple[str, int]] = set()

        def expect(crawl: str, headings: dict[str, bytes], row: StatisticsRow) -> None:
            for by, heading in {**headings, "total": b""}.items():
                before = model.get((crawl, by, heading), StatisticsRow())
                model[crawl, by, heading] = before.plus(row)

        for event in events:
            if isinstance(event, Looked):
                workers[event.worker].count_lookup(event.counted())
                if event.crawl != "nobody":
                    expect(event.crawl, event.headings(), event.row())
            elif isinstance(event, Stored):
                one = capture(event.number)
                with store.writing() as writing:
                    done = add(writing, writing.crawl(event.crawl), [one, one], SETTINGS, JUDGE)
                workers[event.worker].count_stored(event.crawl, done.held)
                if (event.crawl, event.number) not in known:
                    known.add((event.crawl, event.number))
                    headings = {"host": b"example.com", "mime": one.mime, "status": b"200"}
                    expect(event.crawl, headings, StatisticsRow(stored=1, stored_bytes=one.size))
            else:
                write(store, workers[event[0]], fails=event[1])
        for worker in workers:
            write(store, worker)
        check(store, model)


def write(store: Store, worker: LookupCounter, *, fails: bool = False) -> None:
    counted = worker.take()
    if fails:
        worker.give_back(counted)
        return
    with store.writing() as writing:
        add_counted(writing, counted)


def check(store: Store, model: dict[tuple[str, str, bytes], StatisticsRow]) -> None:
    with store.reading() as reading:
        for name in CRAWLS:
            crawl = reading.crawl(name)
            assert statistics.total(reading, crawl) == model.get(
                (name, "total", b""), StatisticsRow()
            )
            for by in ("host", "mime", "status", "strategy"):
                expected = {
                    heading: row
                    for (of, kind, heading), row in model.items()
                    if (of, kind) == (name, by) and (heading or by != "strategy")
                }
                assert dict(statistics.rows(reading, crawl, by)) == expected
            total = model.get((name, "total", b""), StatisticsRow())
            answered = statistics.times(reading, crawl).answered
            assert answered == total.lookups


SITES = (
    "http://A.example",
    "https://a.example:1",
    "http://u:p@b.example",
    "ftp://c.example",
)
ODD = ("", "a", "http:", "http://", "http:///", "HTTP://d.example", "chrome-extension://e", "urn:x")


@given(st.lists(st.tuples(st.sampled_from(SITES + ODD), st.text("/?#@:.ax\udc80é", max_size=4))))
def test_each_url_counts_for_its_own_host(parts: list[tuple[str, str]]) -> None:
    """The host is remembered by the site of a URL, whatever follows."""
    counting, expected = LookupCounter(), Counter[tuple[str, bytes]]()
    for site, rest in parts:
        url = (site + rest).encode("utf-8", "surrogateescape")
        for asked in (url, site + rest):
            counting.count_lookup(("one", "", asked, NO_ORIGINAL, -1, 1))
        expected["one", counted_host(url)] += 2
    assert {host: row[0] for host, row in counting.take().hosts.items()} == expected


def count_hit(counting: LookupCounter, host: bytes, crawl: str = "one", size: int = 10) -> None:
    hit = LookupOutcome.of_hit("exact_url", capture(1)._replace(size=size))
    counting.count_lookup((crawl, "DIGEST_ANY", b"http://" + host + b"/", hit, -1, 1000))


def test_hours_and_days(store: Store) -> None:
    now = [0.0]
    counting = LookupCounter(lambda: now[0])
    for moment in (0, 3600, 3700, DAY + 1, 3 * DAY):
        now[0] = moment
        count_hit(counting, b"a.example")
        counting.gather()
    write(store, counting)
    with store.reading() as reading:
        one, two = reading.crawl("one"), reading.crawl("two")
        days = [(d, row.lookups) for d, row in statistics.rows(reading, one, "day")]
        assert days == [(b"1970-01-01", 3), (b"1970-01-02", 1), (b"1970-01-04", 1)]
        left = [day for day, _ in statistics.rows(reading, one, "day", b"1970-01-01")]
        assert left == [b"1970-01-02", b"1970-01-04"]
        hours = [hour for hour, _ in statistics.rows(reading, one, "hour", b"1970-01-01T01")]
        assert hours == [b"1970-01-02T00", b"1970-01-04T00"]
        over = statistics.over_time(reading, [one, two, one], "day", b"1970-01-02")
        assert [(day, row.lookups) for day, row in over] == [(b"1970-01-02", 2), (b"1970-01-04", 2)]
        times = statistics.times(reading, one)
        assert (times.first, times.last) == (0, 3 * DAY)


def test_largest_hosts_and_pages_of_hosts(store: Store) -> None:
    counting = LookupCounter()
    for number in range(100):
        for _ in range(number % 7 + 1):
            count_hit(counting, b"h%03d.example" % number, size=100 - number)
    write(store, counting)
    with store.reading() as reading:
        crawl = reading.crawl("one")
        everything = list(statistics.rows(reading, crawl, "host"))
        assert [host for host, _ in everything] == [b"h%03d.example" % n for n in range(100)]
        assert list(statistics.rows(reading, crawl, "host", b"h097.example")) == everything[98:]
        largest = statistics.largest(reading, crawl, "host", 5)
        assert [row.lookups for _, row in largest] == [7] * 5
        by_bytes = statistics.largest(reading, crawl, "host", 1, "duplicate_bytes")
        assert by_bytes[0][1].duplicate_bytes == 7 * 94
        assert [c.name for c, _ in statistics.at_host(reading, b"h001.example")] == ["one"]
        with pytest.raises(BadQuery):
            statistics.largest(reading, crawl, "host", 1, "beauty")
        with pytest.raises(BadQuery):
            list(statistics.rows(reading, crawl, "moon"))


def test_a_dropped_crawl_leaves_no_statistics(store: Store) -> None:
    counting = LookupCounter()
    for crawl in CRAWLS:
        for number in range(50):
            count_hit(counting, b"h%d.example" % number, crawl)
    write(store, counting)
    counts = []
    while count := store.write(lambda step: step.drop_statistics(step.crawl("one"), 50)):
        counts.append(count)
    # On a cluster nobody waits for it. Hosts, a minute (or two), hour and so on are rows.
    assert counts in ([50, 7], [50, 8], [])
    with store.reading() as reading:
        assert list(statistics.rows(reading, reading.crawl("one"), "host")) == []
        assert statistics.total(reading, reading.crawl("one")) == StatisticsRow()
        assert len(list(statistics.rows(reading, reading.crawl("two"), "host"))) == 50


@of_files
def test_totals_under_a_flipped_key_are_reported_as_damage(store: Store) -> None:
    counting = LookupCounter()
    count_hit(counting, b"a.example")
    write(store, counting)
    key = key_of(1, StatisticsKind.TOTAL)
    with store.writing() as writing:
        assert isinstance(writing, LmdbWriting)
        stored = writing.txn.pop(key, db=writing.trees.statistics)
        writing.txn.put(
            key_of(1, StatisticsKind.TOTAL, b"\x01"), stored, db=writing.trees.statistics
        )
    with store.reading() as reading:
        with pytest.raises(Damaged, match="crawl one"):
            statistics.total(reading, reading.crawl("one"))
        assert statistics.total(reading, reading.crawl("two")) == StatisticsRow()
    assert store.check()
    store.write(partial(lifecycle.forget, name="one"))
    with store.reading() as reading:
        assert statistics.total(reading, reading.crawl("one")) == StatisticsRow()


def test_percentiles_are_at_most_a_quarter_too_high(store: Store) -> None:
    counting = LookupCounter()
    for taken in (*[1_000_000] * 99, 77_000_000):
        counting.count_lookup(("one", "DIGEST_ANY", b"http://a.example/", NO_ORIGINAL, -1, taken))
        counting.count_lookup(
            ("two", "DIGEST_ANY", b"http://a.example/", NO_ORIGINAL, -1, 77_000_000)
        )
    write(store, counting)
    with store.reading() as reading:
        one = statistics.times(reading, reading.crawl("one"))
        two = statistics.times(reading, reading.crawl("two"))
    assert 0.001 <= one.p99 <= 0.00125 and one.average == pytest.approx(0.00176)
    assert 0.077 <= two.p99 <= 0.077 * 1.25


def test_the_time_of_the_last_lookup_is_kept(store: Store) -> None:
    now = 1_800_000_000
    first, second = LookupCounter(lambda: now), LookupCounter(lambda: now + 5)
    for counting, taken in ((second, 3_000_000), (first, 9_000_000)):  # of two processes
        for number in (1, taken):
            counting.count_lookup(("one", "", b"", NO_ORIGINAL, -1, number))
        write(store, counting)
    with store.reading() as reading:
        times = statistics.times(reading, reading.crawl("one"))
    assert times.latest == pytest.approx(0.003) and (times.first, times.last) == (now, now + 5)


def test_bytes_in_total() -> None:
    row = StatisticsRow(
        lookups=3, digest=2, digest_bytes=20, stated_bytes=60, duplicate_stated_bytes=45
    )
    # What askers count may include headers, and is not payload: nothing is known of the miss.
    stated = row.as_json()
    assert (stated["handled_bytes"], stated["duplicate_bytes_percent"]) == (None, None)
    assert (stated["duplicate_bytes"], stated["duplicate_stated_bytes_percent"]) == (20, 75.0)
    stored = row._replace(stored=1, stored_bytes=80).as_json()
    assert (stored["handled_bytes"], stored["new_bytes"]) == (100, 80)
    assert stored["duplicate_bytes_percent"] == 20.0
    assert stored["sizes"] == {"stated": 1, "of_original": 2, "unknown": 0}
    unsized = row._replace(stored=1, stored_unsized=1, unsized=1).as_json()
    assert unsized["stored_bytes"] is unsized["new_bytes"] is unsized["handled_bytes"] is None
    assert (unsized["duplicate_bytes"], unsized["sizes"]["unknown"]) == (20, 2)
    lost = StatisticsRow(lookups=2, digest=2, unsized=2).as_json()
    assert lost["duplicate_bytes"] is lost["digest_bytes"] is lost["handled_bytes"] is None
    assert lost["exact_url_bytes"] == 0  # there is none
    assert StatisticsRow(lookups=2, digest=2, digest_bytes=20).as_json()["handled_bytes"] == 20
    assert StatisticsRow().as_json()["duplicate_bytes_percent"] == 0.0


@given(st.integers(0, 1 << 45))
def test_every_time_has_a_bucket(taken: int) -> None:
    counting = LookupCounter()
    counting.count_lookup(("one", "", b"", NO_ORIGINAL, -1, taken))
    bucket = counting.take().times["one"][3:].index(1)
    assert taken < bound_of(bucket) or bucket == 127
    assert bucket in (0, 127) or bound_of(bucket) <= taken * 5 / 4 + 1


def test_sums_stop_at_the_largest_number(store: Store) -> None:
    counting = LookupCounter()
    for _ in range(30):
        count_hit(counting, b"a.example", size=10**18 - 1)
    with store.writing() as writing:
        huge = [capture(n)._replace(size=10**18 - 1) for n in range(30)]
        done = add(writing, writing.crawl("one"), huge, SETTINGS, JUDGE)
    counting.count_stored("one", done.held)
    write(store, counting)
    with store.reading() as reading:
        crawl = reading.crawl("one")
        row = statistics.total(reading, crawl)
        assert (row.exact_url_bytes, row.stored_bytes) == (MOST, MOST)
        assert reading.counts(crawl) == (30, MOST)


@given(st.lists(st.tuples(st.sampled_from("pq"), st.sampled_from(NAMES), st.integers(0, 99))))
def test_self_reports_may_be_repeated_in_any_order(said: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder, closing(LmdbStore(Path(folder))) as store:
        greatest: dict[tuple[str, str], int] = {}
        with store.writing() as writing:
            crawl = lifecycle.begin(writing, "one")
            for who, name, number in said:
                add_self_report(writing, crawl, {name: number}, who)
                greatest[who, name] = max(greatest.get((who, name), 0), number)
            sums = Counter[str]()
            for (_, name), number in greatest.items():
                sums[name] += number
            names = {name for _, name in greatest}
            expected = SelfReport(*(sums[name] if name in names else None for name in NAMES))
            assert self_report_of(writing, crawl) == expected


def test_self_reports_without_a_filter_are_stored_as_before() -> None:
    codec = CODECS[StatisticsKind.SELF_REPORT.value]
    before = struct.pack(">QQ", 4, NOT_REPORTED)
    assert codec.pack([4, NOT_REPORTED, NOT_REPORTED, NOT_REPORTED]) == before
    assert list(codec.unpack(before)) == [4, NOT_REPORTED, NOT_REPORTED, NOT_REPORTED]
    assert codec.pack([4, 5, 6, NOT_REPORTED]) == struct.pack(">QQQ", 4, 5, 6)
    for numbers in ([4, 5, 6, 7], [4, 5, NOT_REPORTED, 7]):
        assert list(codec.unpack(codec.pack(numbers))) == numbers


def test_the_number_of_self_reporting_processes_is_limited(store: Store) -> None:
    with store.writing() as writing:
        crawl = writing.crawl("one")
        for number in range(1000):
            add_self_report(writing, crawl, {"not_looked_up": 1}, str(number))
    with store.writing() as writing:
        add_self_report(writing, crawl, {"not_looked_up": 2}, "0")
        with pytest.raises(BadInput):
            add_self_report(writing, crawl, {"not_looked_up": 1}, "one more")


def test_memory_does_not_grow_with_hosts(store: Store) -> None:
    """Very many hosts, written as they come and then read; and as many while no disk takes them."""
    counting = LookupCounter(lambda: 10 * DAY)  # a new minute has rows of its own
    hosts = 60_000 if thorough() or not isinstance(store, LmdbStore) else 40_000  # twice KEPT
    for number in range(hosts):
        count_hit(counting, b"host-%d.example" % number)
        if number % 10_000 == 9_999:
            write(store, counting)
    tracemalloc.start()
    try:
        with store.reading() as reading:
            crawl = reading.crawl("one")
            assert len(statistics.largest(reading, crawl, "host", 20)) == 20
            assert sum(1 for _ in statistics.rows(reading, crawl, "host")) == hosts
            assert statistics.total(reading, crawl).lookups == hosts
        most = 4 << 20 if isinstance(store, LmdbStore) else 16 << 20  # some pages of 16 partitions
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()
    for number in range(hosts):
        count_hit(counting, b"other-%d.example" % number)
        if number % 10_000 == 9_999:
            counting.gather()
    counted = counting.take()
    assert len(counted.hosts) <= KEPT + 1 and len(counted.groups) == 1
    with store.writing() as writing:
        add_counted(writing, counted)
    with store.reading() as reading:
        assert statistics.total(reading, reading.crawl("one")).lookups == 2 * hosts


@pytest.mark.parametrize(("change", "error"), [(-1, FormatFromPast), (1, FormatFromFuture)])
def test_crawls_of_another_version_are_refused(
    change: int, error: type[DedupError], make_index: MakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their rows have other columns: those of format 2 had no counts of unknown sizes."""
    index = make_index()
    with monkeypatch.context() as other:
        other.setattr(lmdb_crawl_state, "FORMAT", FORMAT + change)
        other.setattr(lmdb_crawl_store, "FORMAT", FORMAT + change)
        make_store(index).close()
    with pytest.raises(error, match=r"crawls\.mdb"):
        make_store(index, create=False)
