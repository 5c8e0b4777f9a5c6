"""Crawls on a cluster, with servers that do not communicate with each other: races and outages.

What a crawl is by itself, `tests/unit/crawls/test_crawls.py` and its neighbours try on every store.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupindex.capture import Capture
from dedupindex.crawls import crawl_captures, lifecycle, statistics
from dedupindex.crawls.combined_view import CrawlSnapshot
from dedupindex.crawls.counting import LookupCounter, LookupOutcome, add_counted
from dedupindex.crawls.crawl import Claim, Crawl, CrawlState
from dedupindex.crawls.crawl_captures import Added, add, of_crawl
from dedupindex.crawls.store import FILE, Store, Writing
from dedupindex.crawls.stores import make_store
from dedupindex.crawls.stores.cassandra_crawl_store import CassandraStore
from dedupindex.errors import CrawlEnded, IndexUnavailable
from dedupindex.index import open_index
from dedupindex.index.address import Address
from dedupindex.index.engines.cassandra.cql import Row, Session, Statement, Unclear, Use, connect
from dedupindex.index.identity import Settings
from dedupindex.indexer.admission import admission_filter
from server.app import create_app
from server.config import Config
from server.live_index import LiveIndex
from server.worker_crawls import Crawls
from tests.conftest import MakeIndex
from tests.peers.cassandra import Keyspaces
from tests.support.budgets import examples
from tests.support.captures import capture, sha1
from tests.unit.cli.test_cli import dedupindex

pytestmark = pytest.mark.peer
SETTINGS = Settings()
JUDGE = admission_filter(SETTINGS)
THREADS = 12

Servers = Callable[[], CassandraStore]


@pytest.fixture
def engine(keyspaces: Keyspaces, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr("dedupindex.crawls.stores.cassandra_crawl_registry.AGE", 0.0)
    with keyspaces.some() as address:
        yield address()


@pytest.fixture
def index(make_index: MakeIndex, engine: str) -> Path:
    return make_index([capture(90)], engine=engine)


@pytest.fixture
def server(index: Path) -> Iterator[Servers]:
    """Opens the crawls as another server does."""
    with ExitStack() as stack:

        def opened() -> CassandraStore:
            store = make_store(index)
            assert isinstance(store, CassandraStore)
            return stack.enter_context(closing(store))

        yield opened


def begin(store: Store, name: str = "a", **how: Any) -> Crawl:
    return store.write(partial(lifecycle.begin, name=name, **how))


def put(store: Store, name: str, *captures: Capture) -> Added:
    return store.write(lambda writing: add(writing, writing.crawl(name), captures, SETTINGS, JUDGE))


def held(store: Store, name: str) -> list[Capture]:
    with store.reading() as reading:
        crawl = reading.crawl(name)
        return sorted(found.capture(reading, name) for found in of_crawl(reading, crawl))


def at_once(*work: Callable[[], object]) -> list[Any]:
    """What each piece of work came to, all begun together."""
    gate, found = threading.Barrier(len(work)), [None for _ in work]

    def one(place: int) -> None:
        gate.wait()
        try:
            found[place] = work[place]()  # type: ignore[call-overload]
        except Exception as error:
            found[place] = error  # type: ignore[call-overload]

    threads = [threading.Thread(target=one, args=(place,)) for place in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


class Faulty:
    """A session whose conditional statements are lost on the way there, or the answers back."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.there, self.back, self.down = iter(()), iter(()), False  # type: ignore[var-annotated]

    def execute(self, statement: Statement, *values: Any) -> list[Row]:
        if self.down:
            raise IndexUnavailable("down")
        if statement.use is Use.CONDITIONAL:
            if next(self.there, False):
                raise Unclear("lost")
            rows = self.session.execute(statement, *values)
            if next(self.back, False):
                raise Unclear("lost on the way back")
            return rows
        return self.session.execute(statement, *values)

    def execute_many(self, asked: Any) -> Iterator[list[Row]]:
        return (self.execute(statement, *values) for statement, values in asked)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)


def faulty(store: CassandraStore) -> Faulty:
    """Puts faults between a server and the cluster."""
    found = Faulty(store.session)
    store.session = store.registry._session = store.sums._session = found  # type: ignore[assignment]
    return found


def claim(store: Store, number: int, name: str = "a") -> tuple[Claim, bool]:
    return store.write(
        lambda writing: crawl_captures.claim(writing, writing.crawl(name), sha1(number), 1000, 60)
    )


def test_one_of_many_concurrent_claims_succeeds(server: Servers) -> None:
    stores = [server(), server()]
    begin(stores[0])
    for number in range(5):
        told = at_once(*(partial(claim, stores[one % 2], number) for one in range(THREADS)))
        assert not [one for one in told if isinstance(one, Exception)]
        winners = {one.token for one, mine in told if mine}
        assert len(winners) == 1
        assert {one.token for one, _ in told} == winners


def test_claimants_wait_only_for_those_that_store(server: Servers) -> None:
    """Whichever messages are lost, some claimants store, and the others are given their tokens."""
    whole, store = server(), server()
    begin(whole)
    session, numbers = faulty(store), iter(range(10_000))

    @settings(max_examples=examples(40), deadline=None)
    @given(st.lists(st.booleans(), max_size=6), st.lists(st.booleans(), max_size=6))
    def check(there: list[bool], back: list[bool]) -> None:
        session.there, session.back = iter(there), iter(back)
        number = next(numbers)
        told = [claim(store, number), claim(whole, number), claim(store, number)]
        storing = {one.token for one, mine in told if mine}
        assert storing and {one.token for one, _ in told} <= storing

    check()


def test_a_claim_that_ends_by_itself_is_free(server: Servers) -> None:
    one, other = server(), server()
    begin(one)
    begin(other, "b")

    def short(writing: Writing) -> tuple[Claim, bool]:
        return crawl_captures.claim(writing, writing.crawl("a"), sha1(1), 1000, 8)

    assert one.write(short)[1]
    assert not claim(other, 1, "b")[1]
    with other.reading() as reading:
        while list(reading.claims(b"\x02" + sha1(1).raw)):  # its time to live is eight seconds
            time.sleep(0.1)  # the node counts the time, and nothing tells of its end
    assert claim(other, 1, "b")[1]


def test_a_short_claim_in_place_of_a_long_one_leaves_nothing(server: Servers) -> None:
    store = server()
    begin(store)
    begin(store, "b")

    def of(name: str, lease: int) -> Callable[[Writing], tuple[Claim, bool]]:
        return lambda writing: crawl_captures.claim(writing, writing.crawl(name), sha1(1), 0, lease)

    assert store.write(of("a", 3600))[1]
    store.write(partial(lifecycle.cancel, name="a"))
    assert store.write(of("b", 1))[1]
    with store.reading() as reading:
        while list(reading.claims(b"\x02" + sha1(1).raw)):  # its time to live is a second
            pass
    assert store.write(of("b", 60))[1]


def test_crawls_that_are_begun_at_once_get_a_number_each(server: Servers) -> None:
    stores = [server() for _ in range(4)]
    names = [f"c{number % 6}" for number in range(THREADS)]
    begun = at_once(*(partial(begin, stores[n % 4], name) for n, name in enumerate(names)))
    assert [crawl.name for crawl in begun] == names
    with stores[0].reading() as reading:
        crawls = list(reading.crawls())
        assert [crawl.number for crawl in crawls] == list(range(1, 7))
        assert {crawl.name: crawl.number for crawl in crawls} == {
            crawl.name: crawl.number for crawl in begun
        }


def test_of_a_commit_and_a_cancel_at_once_one_holds(server: Servers) -> None:
    stores = [server(), server()]
    for number in range(5):
        name = f"c{number}"
        begin(stores[0], name)
        ends = at_once(
            lambda name=name: stores[0].write(partial(lifecycle.commit, name=name)),
            lambda name=name: stores[1].write(partial(lifecycle.cancel, name=name)),
        )
        ended = [one for one in ends if isinstance(one, Crawl)]
        assert len(ended) == 1 and sum(isinstance(one, CrawlEnded) for one in ends) == 1
        for store in stores:
            with store.reading() as reading:
                assert reading.crawl(name).state is ended[0].state


def test_a_change_of_a_crawl_whose_answer_is_lost_is_made_once(server: Servers) -> None:
    store = server()
    session = faulty(store)
    session.back = iter([True, False, True, True])
    assert begin(store).number == 1
    assert begin(store, "b").number == 2
    assert store.write(partial(lifecycle.commit, name="a")).state is CrawlState.COMMITTED
    with server().reading() as reading:
        assert [crawl.name for crawl in reading.crawls()] == ["a", "b"]


def test_concurrent_reports_to_two_servers_are_all_stored(server: Servers) -> None:
    stores = [server(), server()]
    begin(stores[0])
    for number in range(20):
        days = (2, 1) if number % 2 else (1, 2)
        done = at_once(
            *(partial(put, stores[n], "a", capture(number, day=day)) for n, day in enumerate(days))
        )
        assert all(isinstance(one, Added) for one in done)
        days_held = {one.date for one in held(stores[0], "a") if one.digest == sha1(number)}
        assert capture(number, day=1).date in days_held  # the earlier, which is to stay, stays
    found = {one.digest for one in held(stores[1], "a")}
    assert found == {sha1(number) for number in range(20)}


def test_containers_keep_their_names_whoever_numbers_them(server: Servers) -> None:
    stores = [server() for _ in range(3)]
    begin(stores[0])
    names = [f"/warcs/{number}.warc.gz" for number in range(100)]

    def report(store: Store) -> Added:
        ones = [capture(n, container=name) for n, name in enumerate(names)]
        return put(store, "a", *ones)

    assert not [one for one in at_once(*(partial(report, s) for s in stores)) if not one]
    found = {one.digest: one.container for one in held(server(), "a")}
    assert found == {sha1(n): name for n, name in enumerate(names)}


def test_lookups_during_an_outage_are_counted_once(server: Servers) -> None:
    store, other = server(), server()
    begin(store)
    session = faulty(store)
    for server_counts in (store, other):
        counting = LookupCounter()
        for turn in range(6):
            hit = LookupOutcome.of_hit("exact_url", capture(1))
            counting.count_lookup(("a", "DIGEST_ANY", b"http://a.example/", hit, -1, 1000))
            session.down = server_counts is store and turn % 2 == 0
            counted = counting.take()
            try:
                server_counts.write(partial(add_counted, counted=counted))
            except IndexUnavailable:
                counting.give_back(counted)
    with server().reading() as reading:
        crawl = reading.crawl("a")
        total = statistics.total(reading, crawl)
        assert (total.lookups, total.exact_url_bytes) == (12, 12 * 1001)
        assert statistics.times(reading, crawl).answered == 12
        assert dict(statistics.rows(reading, crawl, "host"))[b"a.example"].lookups == 12


def test_a_report_that_is_not_written_is_not_acknowledged(index: Path, server: Servers) -> None:
    store = server()
    begin(store)
    faulty(store).down = True
    with pytest.raises(IndexUnavailable):
        put(store, "a", capture(1))
    with pytest.raises(IndexUnavailable), store.reading():
        pass
    assert held(server(), "a") == []


def test_a_lookup_reads_a_digest_once_for_index_and_crawls(index: Path, server: Servers) -> None:
    store = server()
    begin(store)
    put(store, "a", capture(90, b"http://other.example/"), capture(5))
    with closing(open_index(index)) as opened, opened.view() as base, store.reading() as reading:
        seen = CrawlSnapshot(reading).view_for(base, SETTINGS.keys(), "a")
        base.prefetch([sha1(90), sha1(5)])
        store.session.execute(  # so that nobody finds it who reads again
            Statement(
                f"DELETE FROM {opened.address.keyspace}.capture WHERE dk = ?",  # type: ignore[attr-defined]
                Use.WRITE,
            ),
            b"\x02" + sha1(5).raw,
        )
        assert len(seen.any(sha1(90), 10)) == 2
        assert [one.crawl for one in seen.any(sha1(5), 10)] == ["a"]


def test_a_page_that_a_crawl_has_at_very_many_urls_is_found_by_each(
    index: Path, server: Servers
) -> None:
    store = server()
    begin(store)
    urls = [b"http://example.com/%d" % number for number in range(300)]
    put(store, "a", *(capture(90, url) for url in urls))
    with closing(open_index(index)) as opened, opened.view() as base, store.reading() as reading:
        seen = CrawlSnapshot(reading).view_for(base, SETTINGS.keys(), "a")
        for url in (*urls[::50], b"http://example.com/a"):
            assert [one.url for one in seen.exact(sha1(90), url)] == [url]
        assert len(seen.any(sha1(90), 200)) == 201
        assert seen.exact(sha1(90), b"http://example.com/none") == []


def test_a_copy_on_another_engine_has_committed_captures(
    index: Path, server: Servers, tmp_path: Path
) -> None:
    store = server()
    for number, name in enumerate("abc", 1):
        begin(store, name)
        put(store, name, capture(number), capture(90, b"http://b.example/%d" % number))
    store.write(partial(lifecycle.commit, name="a"))
    store.write(partial(lifecycle.cancel, name="c"))
    copy = tmp_path / "copy"
    dedupindex("index", "--copy", copy, index)
    with closing(open_index(copy)) as opened, opened.view() as view:
        assert [one.crawl for one in view.any(sha1(1), 10)] == ["a"]
        assert view.any(sha1(2), 10) == view.any(sha1(3), 10) == []
        assert len(view.any(sha1(90), 10)) == 2
        assert opened.check() == []


def test_crawls_of_a_directory_that_names_another_index_are_let_go(
    index: Path, make_index: MakeIndex
) -> None:
    live = Crawls(index)
    live.write(partial(lifecycle.begin, name="a"), make=True)
    assert live.crawl("a")
    (make_index([]) / "index.json").replace(index / "index.json")
    live.refresh()
    assert live.crawl("a") is None
    with closing(make_store(index)) as store:
        begin(store)
    assert (index / FILE).exists()


@pytest.mark.parametrize("noticed", [True, False], ids=["while-it-is-away", "afterwards"])
def test_a_keyspace_that_is_dropped_and_loaded_anew_leaves_nothing_behind(
    index: Path, make_index: MakeIndex, engine: str, server: Servers, noticed: bool
) -> None:
    """Numbers and versions begin anew there, and mean something else."""
    live, other = LiveIndex(index), server()
    live.refresh()

    def names() -> list[str]:
        with live.opened().engine.view() as view:
            return [one.container for one in view.any(sha1(90), 10)]

    def report(crawl: str) -> None:
        for number in (1, 2):
            one = capture(number, container=f"{number}.warc.gz")
            live.crawls.write(
                lambda writing, one=one: add(writing, writing.crawl(crawl), [one], SETTINGS, JUDGE)
            )

    assert names() == ["/warcs/1.warc.gz"]
    live.crawls.write(partial(lifecycle.begin, name="a"), make=True)
    report("a")
    with other.reading() as reading:
        assert [crawl.name for crawl in reading.crawls()] == ["a"]
    address = Address.parse(engine)
    with closing(connect(address)) as session:
        session.define(f"DROP KEYSPACE {address.keyspace}")
    if noticed:
        live.refresh()
        for ask in (live.opened, partial(live.crawls.crawl, "a")):
            with pytest.raises(IndexUnavailable):
                ask()
    make_index([capture(89), capture(90, container="/warcs/2.warc.gz")], engine=engine)
    with closing(make_store(index)) as fresh:
        begin(fresh, "b")
    with other.reading() as reading:  # which is of the same version, and knows nothing of it
        assert [crawl.name for crawl in reading.crawls()] == ["b"]
    live.refresh()
    assert names() == ["/warcs/2.warc.gz"]
    assert live.crawls.crawl("a") is None
    report("b")
    with closing(make_store(index)) as fresh:
        assert [one.container for one in held(fresh, "b")] == ["1.warc.gz", "2.warc.gz"]


def test_a_list_of_crawls_waits_for_the_cluster_once(index: Path) -> None:
    live = LiveIndex(index)
    live.refresh()
    web = create_app(Config(index), live).test_client()
    for number in range(12):
        live.crawls.write(partial(lifecycle.begin, name=f"c{number}"), make=True)
        for who in ("one", "two"):
            told = {"who": who, "not_reported": number}
            assert web.post(f"/crawls/c{number}/counts", json=told).status_code == 200
        if number % 2:
            put_number = partial(
                add, captures=[capture(number)], settings=SETTINGS, refusal_reason=JUDGE
            )
            live.crawls.write(
                lambda writing, number=number, put=put_number: put(
                    writing, writing.crawl(f"c{number}")
                )
            )
    store = live.crawls.store()
    assert isinstance(store, CassandraStore)
    before = web.get("/crawls").json
    waits: list[str] = []

    class Counted:
        def __getattr__(self, name: str) -> object:
            waits.append(name)
            return getattr(session, name)

    session = store.session
    store.session = Counted()  # type: ignore[assignment]
    listed = web.get("/crawls").json
    assert listed == before
    assert [one["name"] for one in listed["crawls"]] == [
        f"c{number}" for number in range(11, -1, -1)
    ]
    assert [one["captures"] for one in listed["crawls"]] == [1, 0] * 6
    assert waits == ["execute_many"]
    assert b"dedupindex_crawls_open_captures 6.0" in web.get("/metrics").data
    assert waits == ["execute_many"] * 2
