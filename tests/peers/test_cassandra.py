"""What the Cassandra engine does beyond the conformance suite of all engines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from cassandra import ConsistencyLevel

from dedupindex.capture import Capture, Evidence
from dedupindex.errors import Damaged, IndexBusy, IndexUnavailable, SettingsConflict
from dedupindex.index import open_index
from dedupindex.index.address import Address
from dedupindex.index.engine import IndexedContainer
from dedupindex.index.engines.cassandra import cassandra_loader
from dedupindex.index.engines.cassandra.cassandra_loader import PUT, REMOVE
from dedupindex.index.engines.cassandra.cassandra_view import AT_ONCE, CassandraView
from dedupindex.index.engines.cassandra.cql import Row, Session, Statement, Use, connect
from dedupindex.index.engines.cassandra.metadata import About, Lease
from dedupindex.index.format.cells import DIGEST_KEY, ContainerRef, digest_of_key, digest_prefix
from dedupindex.index.identity import Identity, Settings
from dedupindex.lookup.decide import LIMIT, Query, Strategy, find
from dedupindex.urlkey import urlkey
from tests.peers.cassandra import Keyspaces
from tests.support.captures import capture, sha1
from tests.support.engine_bench import Bench

pytestmark = pytest.mark.peer
A, B = b"http://example.com/a", b"http://other.org/b"

Make = Callable[..., Bench]


@pytest.fixture
def make(keyspaces: Keyspaces, tmp_path: Path) -> Iterator[Make]:
    """Benches on keyspaces of their own, or all on one."""
    with keyspaces.some() as address:
        benches: list[Bench] = []

        def make(on: Bench | None = None) -> Bench:
            engine = on.engine if on is not None else address()
            benches.append(Bench(tmp_path / f"bench-{len(benches)}", engine))
            return benches[-1]

        yield make


@pytest.fixture
def bench(make: Make) -> Bench:
    return make()


def opened(bench: Bench) -> Session:
    """A session, for tests that do what only others would; the fixture's outlives it."""
    with closing(connect(Address.parse(bench.engine))) as session:
        return session


def many(count: int, number: int = 1) -> list[Capture]:
    """Captures of one digest, each with a URL of its own."""
    return [
        capture(number, b"http://h%d.example.com/%d" % (n, n), 1 + n % 20) for n in range(count)
    ]


# --- lookups -------------------------------------------------------------------------------------


def test_a_digest_with_very_many_urls_is_found_by_each(bench: Bench) -> None:
    items = many(3 * AT_ONCE)
    bench.load(items)
    bench.load([capture(1, A, 1), capture(2, A)])
    with bench.view() as view:
        for item in items[::17]:
            assert view.exact(sha1(1), item.url) == [item]
            assert view.canonical(sha1(1), urlkey(item.url), 10) == [item]
        assert view.exact(sha1(1), B) == view.canonical(sha1(1), urlkey(B), 10) == []
        assert len(view.any(sha1(1), LIMIT)) == LIMIT
        assert len(view.any(sha1(1), 250)) == 250
        assert sorted(view.any(sha1(1), 1000)) == sorted([*items, capture(1, A, 1)])
        assert view.counts()[:2] == (3 * AT_ONCE + 2, 2)
    with bench.open() as engine:
        assert engine.check() == []


def test_reported_captures_are_separate_from_indexed_ones(bench: Bench) -> None:
    bench.load([capture(1, A), capture(2, B)])
    session = opened(bench)
    put = Statement(
        "INSERT INTO KS.capture (dk, live, rest, crawl, cell) VALUES (?, 1, ?, ?, ?)",
        Use.WRITE,
    )
    with bench.view() as view:
        key, cell = next(iter(view.cells()))
        held = list(view.captures())
    start, rest = key[: DIGEST_KEY[key[0]]], key[DIGEST_KEY[key[0]] :]
    for crawl in range(1, 2 * AT_ONCE):
        session.execute(put, start, rest, crawl, cell)
        session.execute(put, start, bytes([crawl % 200]) * 9, 7, cell)
    with bench.view() as view:
        [(digest, one), _] = held
        assert list(view.captures()) == held
        assert view.any(digest, 10) == view.exact(digest, one.url) == [one]
        assert view.canonical(digest, urlkey(one.url), 10) == [one]
        assert list(view.cells(start)) == [(key, cell)]
    bench.load([one, capture(5, A)])
    assert bench.counts()[:2] == (3, 3)
    with bench.open() as engine:
        assert engine.check() == []


class Counted:
    """A session that counts how often a caller waits for it."""

    def __init__(self, session: Session) -> None:
        self.session, self.waits = session, 0

    def __getattr__(self, name: str) -> object:
        self.waits += name != "by_replica"
        return getattr(self.session, name)


def watched(view: CassandraView, session: Counted) -> Counted:
    """Puts a session between a view and the cluster."""
    view._session = view._partitions._session = session  # type: ignore[assignment]
    return session


def test_a_lookup_waits_once_and_a_thousand_wait_as_often(bench: Bench) -> None:
    bench.load([capture(n, A) for n in range(0, 600, 2)])
    with bench.view() as view:
        assert isinstance(view, CassandraView)
        counted = watched(view, Counted(view._session))
        assert find(view, bench.settings, Query(sha1(1), B)) is None
        assert counted.waits == 1
        assert find(view, bench.settings, Query(sha1(2), B)) is not None
        assert counted.waits == 3  # and for the name of its container
    with bench.view() as view:
        assert isinstance(view, CassandraView)
        counted = watched(view, Counted(view._session))
        digests = [sha1(n) for n in range(600)]
        view.prefetch(digests)
        found = [
            find(view, bench.settings, Query(digest, B, strategy))
            for digest in digests
            for strategy in (Strategy.DIGEST_ANY, Strategy.EXACT_URL, Strategy.CANONICAL_URL)
        ]
        assert counted.waits == 2
    assert [answer is not None for answer in found[::3]] == [n % 2 == 0 for n in range(600)]


class Ending(Counted):
    """A session that ends after so many answers, of 25 digests each."""

    left = 6

    def execute_many(self, asked: Any) -> Iterator[list[Row]]:
        self.waits += 1
        for rows in self.session.execute_many(asked):
            if not self.left:
                raise IndexUnavailable("it is away")
            self.left -= 1
            yield rows


def test_an_outage_midway_is_one_for_all_that_is_still_to_come(bench: Bench) -> None:
    bench.load([capture(n, A) for n in range(0, 300, 2)])
    digests = [sha1(n) for n in range(300)]
    with bench.view() as view:
        assert isinstance(view, CassandraView)
        session = watched(view, Ending(view._session))
        view.prefetch(digests)
        told: list[bool | None] = []
        for digest in digests:
            try:
                told.append(find(view, bench.settings, Query(digest, B)) is not None)
            except IndexUnavailable:
                told.append(None)
        known = told.index(None)
        assert 0 < known <= 150 and told[:known] == [n % 2 == 0 for n in range(known)]
        assert told[known:] == [None] * (300 - known)
        assert session.waits == 2  # nobody waits for each of them again
        watched(view, Counted(session.session))
        view.prefetch(digests)
        assert [find(view, bench.settings, Query(one, B)) is not None for one in digests] == [
            n % 2 == 0 for n in range(300)
        ]


def test_missing_state_in_the_cluster_is_an_outage(bench: Bench) -> None:
    bench.load([capture(1, A)])
    session = opened(bench)
    with bench.open() as engine, engine.view() as view:
        about = About(session)
        about.remove("state", about.state().written + 1)
        with pytest.raises(IndexUnavailable, match="gone"):
            view.counts()
    with bench.open() as engine, pytest.raises(IndexUnavailable), engine.view():
        pass


def test_a_capture_whose_container_has_no_name_is_damage(bench: Bench) -> None:
    bench.load([capture(1, A)])
    session = opened(bench)
    session.execute(Statement("DELETE FROM KS.place WHERE number = 1", Use.WRITE))
    with bench.view() as view, pytest.raises(Damaged):
        view.any(sha1(1), 10)
    with bench.open() as engine:
        assert engine.check()


def test_check_finds_every_flipped_byte(bench: Bench) -> None:
    bench.load([capture(7, A, mime=b"x-odd/type", status=404), capture(8, B)])
    session = opened(bench)
    with bench.view() as view:
        key, cell = next(iter(view.stored()))
    end = DIGEST_KEY[key[0]]
    written = time.time_ns() // 1000
    with bench.open() as engine:
        for number in range(len(cell)):
            changed = bytearray(cell)
            changed[number] ^= 1 << number % 8
            session.execute(PUT, key[:end], key[end:], bytes(changed), written + number)
            assert engine.check(), f"byte {number} of {cell.hex()}"
            with engine.view() as changed_view, pytest.raises(Damaged):
                changed_view.any(digest_of_key(key), 10)
        session.execute(PUT, key[:end], key[end:], cell, written + len(cell))
        assert engine.check() == []
        session.execute(REMOVE, written + len(cell) + 1, key[:end], key[end:])
        assert engine.check()


# --- several machines ----------------------------------------------------------------------------


def test_another_machine_sees_the_same_index(make: Make) -> None:
    one = make()
    one.load([capture(1, A)], metadata={"n": 1})
    other = make(one)
    assert other.held() == one.held()
    with other.open() as engine:
        assert engine.identity.generation == 1
        assert engine.metadata() == {"n": 1}
    Identity(one.engine, Settings(keep="latest"), generation=1).write(other.index)
    with pytest.raises(SettingsConflict, match="other settings"):
        open_index(other.index)


def test_equal_container_numbers_of_two_builds_are_resolved(make: Make) -> None:
    one = make()
    one.load([capture(1, A, container="a.warc")])
    other = make(one)
    other.numbers = dict(one.numbers)
    for bench, name in ((one, "b.warc"), (other, "c.warc")):
        bench.load([capture(2, A, container=name), capture(3, name.encode(), container=name)])
    assert (
        one.numbers[ContainerRef("b.warc")] == other.numbers[ContainerRef("c.warc")]
    )  # as they were staged
    assert {item.container for _, item in one.held()} == {"a.warc", "b.warc", "c.warc"}
    with one.open() as engine:
        names = [engine.number_of(ContainerRef(name)) for name in ("a.warc", "b.warc", "c.warc")]
        assert sorted(names) == [1, 2, 3]
        assert engine.next_number() == 4
        assert engine.check() == []


def test_one_loads_at_a_time(make: Make) -> None:
    bench, other = make(), make()
    bench.load([capture(1, A)])
    held = bench.held()
    session = opened(bench)
    with Lease(session, "there") as lease, pytest.raises(IndexBusy, match="is writing to"):
        bench.load([capture(2, A)])
    lease._renewed -= 1000.0
    with pytest.raises(IndexUnavailable, match="right to write"):
        lease.check()
    assert bench.held() == held
    bench.load([capture(2, A)])
    other.load([capture(1, A), capture(2, A)])
    assert bench.held() == other.held()


def test_a_machine_that_was_suspended_knows_that_its_lease_is_over(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.load([capture(1, A)])
    session = opened(bench)
    really = time.clock_gettime
    with Lease(session, "there") as lease:
        lease.check()
        monkeypatch.setattr("time.clock_gettime", lambda clock: really(clock) + 1000.0)
        with pytest.raises(IndexUnavailable, match="right to write"):
            lease.check()


def test_loads_read_at_the_consistency_of_writes(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it did not see it would write over; lookups may be content with less."""
    bench.load([capture(1, A)])
    other = Bench(tmp_path / "other", f"{bench.engine}&consistency=ALL&read_consistency=ONE")
    seen: set[int] = set()
    prepared = Session._prepared

    def watched(session: Session, statement: Statement) -> Any:
        found = prepared(session, statement)
        if "FROM KS.capture" in statement.text:
            seen.add(found.consistency_level)
        return found

    monkeypatch.setattr(Session, "_prepared", watched)
    other.load([capture(2, A), *many(AT_ONCE + 5)])
    assert seen == {ConsistencyLevel.ALL}
    with other.view() as view:
        view.any(sha1(1), 1)
    assert seen == {ConsistencyLevel.ALL, ConsistencyLevel.ONE}


def test_threads_get_their_own_prefetched_rows(tmp_path: Path) -> None:
    """As the threads of one claim for many digests do."""

    class Slow:
        def execute_many(self, asked: Iterable[tuple[Statement, Any]]) -> Iterator[list[Row]]:
            for _, (together, _) in asked:
                time.sleep(0)  # others may run
                yield [(key, 1, b"", 1, key) for key in together]

        def by_replica(self, keys: Iterable[bytes]) -> Iterator[list[bytes]]:
            left = iter(keys)
            return iter(lambda: list(islice(left, 25)), [])

    session: Session = Slow()  # type: ignore[assignment]
    view = CassandraView(session, Settings().keys(), {}, tmp_path)
    digests = [sha1(number) for number in range(4000)]
    view.prefetch(digests)

    def rows(key: bytes) -> object:
        reported = view.reported(key)
        return reported and reported[0][2]

    keys = [digest_prefix(digest) for digest in digests]
    with ThreadPoolExecutor(32) as threads:
        assert list(threads.map(rows, keys)) == keys


# --- loads that are killed -----------------------------------------------------------------------


def test_a_load_killed_at_any_step_can_be_repeated(make: Make) -> None:
    first = [capture(n, A) for n in range(500)]
    second = [*[capture(n, A, 2) for n in range(300)], *many(400), capture(3, B)]
    second += [capture(n, A, 1, evidence=Evidence.REVISIT) for n in range(20)]
    gone = [IndexedContainer("/warcs/1.warc.gz", 1, "aa", 1)]
    undisturbed = make()
    undisturbed.load(first, gone)
    seconds = undisturbed.seconds_of(second)
    true = {*undisturbed.held(), *((item.digest, item) for item in first)}
    for share in (0.3, 0.6, 0.9):
        bench = make()
        bench.load(first, gone)
        bench.load_elsewhere(second, delay=seconds * share)
        assert set(bench.held()) <= true
        bench.load(second)
        assert bench.held() == undisturbed.held()
        assert bench.counts()[:2] == undisturbed.counts()[:2]
        with bench.open() as engine:
            assert engine.check() == []


def test_a_load_that_fails_is_run_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.load([capture(n, A) for n in range(10)])
    more = [capture(n, A) for n in range(5, 500)]
    write, calls = cassandra_loader.write_all, iter(range(100))

    def failing(
        session: Session, writes: list[tuple[Statement, tuple[object, ...]]], before: object
    ) -> None:
        write(session, writes[: len(writes) // 2])
        raise IndexUnavailable(f"write {next(calls)} failed")

    with monkeypatch.context() as patched, pytest.raises(IndexUnavailable, match="failed"):
        patched.setattr(cassandra_loader, "write_all", failing)
        bench.load(more)
    assert len(bench.held()) > 10
    bench.load(more)
    assert bench.counts()[:2] == (500, 500)
    with bench.open() as engine:
        assert engine.check() == []


def test_an_older_clock_does_not_lose_a_load(bench: Bench, keyspaces: Keyspaces) -> None:
    """The next loader may be on a machine whose clock is behind, and the last may be killed."""
    keyspaces.spoiled.add(bench.engine)  # of rows from the future
    bench.load([capture(1, A, 5)])
    session = opened(bench)
    about = About(session)
    state = about.state()
    ahead = replace(state, written=state.written + 3_600_000_000)
    about.put("state", ahead.__dict__, ahead.written)
    killed = ahead.written + 1_000_000
    about.put("loading", killed, killed)
    with bench.view() as view:
        [(key, cell)] = view.stored()
    end = DIGEST_KEY[key[0]]
    session.execute(PUT, key[:end], key[end:], cell, killed)
    bench.load([capture(1, A, 4)])
    assert [item.date[:10] for _, item in bench.held()] == [b"2026-11-04"]
    assert about.state().written > killed
    assert about.get("loading") is None
