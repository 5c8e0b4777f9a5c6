"""The filter of all digests in a server over a cluster: what it lacks is nowhere.

`test_cassandra_ring` kills nodes meanwhile.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dedupindex.crawls import lifecycle
from dedupindex.crawls.stores import make_store
from dedupindex.crawls.stores.cassandra_crawl_store import CassandraStore
from dedupindex.digest import Digest
from dedupindex.errors import BadInput, Damaged, IndexUnavailable
from dedupindex.index import open_index, shared_filter
from dedupindex.index.address import Address
from dedupindex.index.engine import clock
from dedupindex.index.engines.cassandra import added_digests, cluster_filter
from dedupindex.index.engines.cassandra.added_digests import AddedDigests, AddedTail, Missed
from dedupindex.index.engines.cassandra.cassandra_loader import PUT
from dedupindex.index.engines.cassandra.cassandra_view import CassandraView
from dedupindex.index.engines.cassandra.cluster_filter import ClusterFilter
from dedupindex.index.engines.cassandra.cql import Session, Statement, Use, connect
from dedupindex.index.format.cells import digest_prefix, split_key
from dedupindex.index.identity import Identity, Settings
from dedupindex.index.shared_filter import SharedFilter
from server.app import create_app
from server.config import Config
from server.filter_builder import reported
from server.live_index import LiveIndex
from tests.conftest import MakeIndex
from tests.integration.test_crawls_live import report
from tests.integration.test_server_live import COMMAND, Running, serving
from tests.peers.cassandra import DEADLINE, Keyspaces
from tests.peers.test_cassandra_crawls import Faulty, begin, put
from tests.support.captures import capture, sha1
from tests.support.engine_bench import Bench

pytestmark = pytest.mark.peer
MANY = 3000
PAGE = "http://example.com/a"
PER_CLASS = "dedupindex_lookups_total{"


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many epochs in a short time."""
    monkeypatch.setattr("dedupindex.crawls.stores.cassandra_crawl_registry.AGE", 0.0)
    for name, seconds in {"EPOCH": 0.3, "LATEST": 0.3, "KNOWN": 0.1}.items():
        monkeypatch.setattr(added_digests, name, seconds)
    monkeypatch.setattr(cluster_filter, "RENEWED", 0.05)
    monkeypatch.setattr(cluster_filter, "_AGAIN", 0.05)


class Filtering:
    """A filter of an index that is made and renewed in a thread."""

    def __init__(self, index: Path, maximum: int = 1 << 20) -> None:
        self.index, self.said = index, list[str]()
        self._file = shared_filter.create(maximum)
        self.shared, self._built = SharedFilter(self._file), SharedFilter(self._file)
        self._maker = ClusterFilter(index, self._built, self.said.append, partial(reported, index))
        self._thread = threading.Thread(target=self._maker.run)

    def __enter__(self) -> Filtering:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._maker.end()
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive()
        for shared in (self.shared, self._built):
            shared.close()
        os.close(self._file)

    def until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + DEADLINE
        while not condition():
            assert time.monotonic() < end, self.said
            time.sleep(0.005)

    def renewed(self) -> None:
        """Return when it has all that was acknowledged before the call."""
        moment = clock()

        def later() -> bool:
            age = self.shared.status().age
            return age is not None and clock() - age > moment

        self.until(later)

    def lacks(self, number: int) -> bool:
        return self.shared.lacks(start(number))


def start(number: int) -> bytes:
    return digest_prefix(sha1(number))


@pytest.fixture
def engine(keyspaces: Keyspaces) -> Iterator[str]:
    with keyspaces.some() as address:
        yield address()


@pytest.fixture
def index(make_index: MakeIndex, engine: str) -> Path:
    return make_index([capture(number) for number in range(MANY)], engine=engine)


@pytest.fixture
def running(index: Path) -> Iterator[Filtering]:
    with Filtering(index) as one:
        one.renewed()
        yield one


@pytest.fixture
def session(index: Path, engine: str) -> Iterator[Session]:
    with closing(connect(Address.parse(engine))) as session:
        yield session


@pytest.fixture
def store(index: Path) -> Iterator[CassandraStore]:
    """The crawls, as another server has them."""
    with closing(make_store(index)) as store:
        assert isinstance(store, CassandraStore)
        yield store


# --- what it has ---------------------------------------------------------------------------------


def test_it_has_what_the_cluster_has_and_lacks_nearly_all_else(running: Filtering) -> None:
    assert not any(map(running.lacks, range(MANY)))
    assert sum(map(running.lacks, range(MANY, 2 * MANY))) > 0.98 * MANY
    status = running.shared.status()
    assert 0.99 * MANY < status.digests <= MANY
    assert any("digests in" in text for text in running.said)


def test_it_learns_what_others_report_and_load(
    running: Filtering, store: CassandraStore, engine: str, tmp_path: Path
) -> None:
    begin(store)
    begin(store, "b", seen=lifecycle.Visibility.ALL)
    begin(store, "n", namespace="some")
    for name, number in (("a", 5001), ("b", 5002), ("n", 5003)):
        put(store, name, capture(number, also=(sha1(number + 100),)))
    Bench(tmp_path / "other", engine).load([capture(5004)])
    running.renewed()
    for number in (5001, 5002, 5003, 5004, 5101, 5102, 5103):
        assert not running.lacks(number), number
    assert running.lacks(5005)


def test_it_has_what_is_reported_while_it_is_made(index: Path, store: CassandraStore) -> None:
    """From before the first epoch on, through many."""
    begin(store)
    acknowledged: list[tuple[float, int]] = []
    ended = threading.Event()

    def crawl(first: int) -> None:
        for number in range(first, first + 10_000):
            if ended.is_set():
                return
            put(store, "a", capture(number))
            acknowledged.append((clock(), number))

    threads = [threading.Thread(target=crawl, args=(first,)) for first in (100_000, 200_000)]
    for thread in threads:
        thread.start()
    try:
        with Filtering(index) as one:
            for _ in range(25):
                one.renewed()
                moment = clock() - (one.shared.status().age or 0)
                known = [number for acked, number in list(acknowledged) if acked < moment]
                assert not [number for number in known if one.lacks(number)]
            assert len(known) > 20 and one.lacks(50_000)
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def test_a_report_of_what_a_killed_one_has_stored_is_known(
    running: Filtering, index: Path, store: CassandraStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stored without knowing of an epoch, and was killed before it asked again."""
    begin(store)
    with monkeypatch.context() as patched:
        patched.setattr(AddedDigests, "_list", lambda *_: None)
        put(store, "a", capture(6001))
    assert put(store, "a", capture(6001)).unchanged == 1
    running.renewed()
    assert not running.lacks(6001)


def test_a_slow_report_is_listed_in_the_epoch_that_is_read(
    running: Filtering, store: CassandraStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first epoch has ended, and is not read any more, when it lists there."""
    begin(store)
    listed, first = AddedDigests._list, threading.Event()

    def late(self: AddedDigests, *what: Any) -> None:
        if not first.is_set():
            first.set()
            end = time.monotonic() + 6 * (added_digests.EPOCH + added_digests.LATEST)
            while time.monotonic() < end:
                running.renewed()
        listed(self, *what)

    monkeypatch.setattr(AddedDigests, "_list", late)
    put(store, "a", capture(6002))
    running.renewed()
    assert not running.lacks(6002)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_it_has_what_a_killed_load_left(
    running: Filtering,
    engine: str,
    tmp_path: Path,
    share: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(added_digests, "LATEST", 3.0)  # as in the process that is killed
    bench = Bench(tmp_path / "loading", engine)
    bench.load([capture(number) for number in range(10_000, 14_000)])
    began = time.monotonic()
    bench.load([capture(number) for number in range(20_000, 24_000)])
    seconds = time.monotonic() - began + 0.7  # to start a process
    numbers = range(30_000, 34_000)
    bench.load_elsewhere([capture(number) for number in numbers], delay=seconds * share)
    running.renewed()
    with bench.view() as view:
        found = [number for number in numbers if view.any(sha1(number), 1)]
    assert not [number for number in found if running.lacks(number)]
    bench.load([capture(number) for number in numbers])
    running.renewed()
    assert not [number for number in numbers if running.lacks(number)]


def test_two_servers_follow_one_list(
    index: Path, running: Filtering, store: CassandraStore
) -> None:
    begin(store)
    with Filtering(index) as other:
        for number in range(7000, 7030):
            other.renewed()
            put(store, "a", capture(number))
        other.renewed()
        running.renewed()
        for one in (running, other):
            assert not any(map(one.lacks, range(7000, 7030)))
            assert not any("without" in text for text in one.said)


def test_nothing_is_listed_while_no_server_has_a_filter(
    index: Path, store: CassandraStore, session: Session
) -> None:
    begin(store)
    put(store, "a", capture(5001))
    rows = session.execute(Statement("SELECT id FROM KS.added LIMIT 1"))
    assert rows == []


# --- what makes it anew --------------------------------------------------------------------------


def made_anew(one: Filtering, because: str) -> None:
    one.until(lambda: any(because in text for text in one.said))
    one.renewed()


def test_a_keyspace_that_is_loaded_anew_is_another_index(
    running: Filtering, index: Path, engine: str, make_index: MakeIndex
) -> None:
    address = Address.parse(engine)
    with closing(open_index(index)) as before:
        with closing(connect(address)) as session:
            session.define(f"DROP KEYSPACE {address.keyspace}")
        make_index([capture(8001)], engine=engine)
        with closing(open_index(index)) as after:
            made_anew(running, "without")
            assert not running.lacks(8001) and running.lacks(1)
            for opened, lacking in ((before, False), (after, True)):
                with opened.view() as view:
                    view.use_filter(running.shared)
                    used = view._partitions.shared is not None  # type: ignore[attr-defined]
                    assert used is lacking


def test_a_cluster_that_was_restored_is_read_anew(
    running: Filtering, session: Session, store: CassandraStore
) -> None:
    """Of the epochs it has those of the day of the snapshot, or none."""
    old = added_digests.stored_epochs(session)
    running.until(lambda: added_digests.stored_epochs(session) != old)
    middle = added_digests.stored_epochs(session)
    running.until(lambda: added_digests.stored_epochs(session) != middle)
    begin(store)
    for value in (old, None):
        said = len(running.said)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(AddedTail, "_follow", lambda _: (_ for _ in ()).throw(IndexUnavailable))
            if value is None:
                session.execute(Statement("DELETE FROM KS.about WHERE name = 'epochs'", Use.WRITE))
            else:
                session.execute(
                    Statement(
                        "UPDATE KS.about SET value = ? WHERE name = 'epochs' IF EXISTS",
                        Use.CONDITIONAL,
                    ),
                    value,
                )
            with pytest.MonkeyPatch.context() as killed:
                killed.setattr(AddedDigests, "_list", lambda *_: None)
                put(store, "a", capture(8100 + bool(value)))  # as it was in the snapshot
        running.until(lambda said=said: len(running.said) > said)
        running.renewed()
        assert not running.lacks(8100 + bool(value))


def test_a_list_that_is_damaged_is_not_relied_on(running: Filtering, session: Session) -> None:
    stored = added_digests.stored_epochs(session)
    assert stored
    epoch = added_digests.epochs_in(stored)[-1]
    for part in range(added_digests.PARTS):
        session.execute(
            Statement(
                "INSERT INTO KS.added (epoch, part, id, keys) VALUES (?, ?, ?, ?)", Use.WRITE
            ),
            *(epoch, part, secrets.token_bytes(16), b"\x02" + bytes(12)),
        )
    made_anew(running, "damaged")


def test_who_was_away_for_too_long_has_missed_something(
    running: Filtering, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    tail = AddedTail(session, added_digests.join_epochs(session))
    list(tail.read())
    monkeypatch.setattr(added_digests, "AWAY", 0.0)
    with pytest.raises(Missed, match="too long"):
        list(tail.read())


def test_an_index_of_an_earlier_version_gets_the_table(index: Path, session: Session) -> None:
    session.define(f"DROP TABLE {session.keyspace}.added")
    with Filtering(index) as one:
        one.renewed()
        assert not one.lacks(1) and one.lacks(MANY)


@pytest.mark.parametrize("level", ["LOCAL_ONE", "ONE", "TWO"])
def test_less_than_a_majority_is_not_enough(index: Path, engine: str, level: str) -> None:
    Identity(f"{engine}&consistency={level}", Settings(), generation=1).write(index)
    with Filtering(index) as one:
        one.until(lambda: any("LOCAL_QUORUM or more" in text for text in one.said))
        assert not one.lacks(MANY)


def test_copies_in_two_datacenters_are_not_current_enough(
    running: Filtering, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "dedupindex.index.engines.cassandra.cassandra_schema.datacenters",
        lambda session: ["one", "two"],
    )
    running.until(lambda: any("datacenters one, two" in text for text in running.said))
    assert not running.lacks(MANY)


# --- lookups -------------------------------------------------------------------------------------


@pytest.fixture
def live(running: Filtering) -> LiveIndex:
    live = LiveIndex(running.index, shared=running.shared)
    live.refresh()
    return live


@pytest.fixture
def web(live: LiveIndex) -> Any:
    return create_app(Config(live.index), live).test_client()


class Asked:
    """The digests that are read from the cluster, for lookups."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.starts: list[bytes] = []
        execute, execute_many = Session.execute, Session.execute_many

        def seen(statement: Statement, values: Any) -> None:
            if statement.text.startswith("SELECT live"):
                self.starts.append(values[0])
            elif statement.several:
                self.starts += values[0]

        def one(session: Session, statement: Statement, *values: Any) -> Any:
            seen(statement, values)
            return execute(session, statement, *values)

        def many(session: Session, calls: Any) -> Any:
            def noted() -> Any:
                for call in calls:
                    seen(*call)
                    yield call

            return execute_many(session, noted())

        monkeypatch.setattr(Session, "execute", one)
        monkeypatch.setattr(Session, "execute_many", many)

    def numbers(self) -> set[bytes]:
        found, self.starts = set(self.starts), []
        return found


def asked(number: int, **more: str) -> dict[str, str]:
    return {"digest": str(sha1(number)), "url": PAGE, **more}


def test_misses_are_answered_without_the_cluster(
    web: Any, running: Filtering, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Asked(monkeypatch)
    running.renewed()
    new = [number for number in range(MANY, MANY + 100) if running.lacks(number)]
    answered = running.shared.status().answered
    one = web.get("/lookup", query_string=asked(new[0]))
    assert one.json == {"duplicate": False} and cluster.numbers() == set()
    text = web.get("/lookup", query_string=asked(new[1]), headers={"Accept": "text/plain"})
    assert text.status_code == 204 and cluster.numbers() == set()
    batch = web.post("/lookup", json={"lookups": [asked(number) for number in [*new, 5, 6]]}).json
    assert [one["duplicate"] for one in batch["answers"]] == [False] * len(new) + [True, True]
    assert cluster.numbers() == {start(5), start(6)}
    assert running.shared.status().answered == answered + 2 + len(new)
    metrics = web.get("/metrics").text
    assert f"dedupindex_shared_filter_answers_total {answered + 2 + len(new)}" in metrics
    assert "dedupindex_shared_filter_age_seconds 0." in metrics
    told = web.get("/stats").json["filter"]
    assert told["digests"] == running.shared.status().digests and told["age"] < 5


def test_answers_and_counts_are_the_same_with_and_without_it(web: Any, live: LiveIndex) -> None:
    bare = LiveIndex(live.index)
    bare.refresh()
    webs = [web, create_app(Config(live.index), bare).test_client()]
    for name, number, how in (
        ("a", 9001, {}),
        ("b", 9002, {"seen_by": "all"}),
        ("n", 9003, {"namespace": "some"}),
        ("e", 9004, {"strategy": "EXACT_URL"}),
        ("p", 9005, {"policy": [{"never": True}]}),
    ):
        assert web.post("/crawls", json={"name": name, **how}).status_code == 200, name
        assert web.post(f"/captures?crawl={name}", json=report(number)).json["added"] == 1
    live.crawls.counting.take()
    counted: list[Counter[tuple[object, ...]]] = []
    queries = [
        asked(number, **more)
        for number in (1, MANY, 9001, 9002, 9003, 9004)
        for more in (
            *({"crawl": name} for name in ("a", "b", "n", "e", "p", "none")),
            *({"strategy": name} for name in ("EXACT_URL", "CANONICAL_URL", "wrong")),
            *({"covers": "entity", "mime": "text/html", "size": "12", "crawl": "a"}, {}),
            *({"namespace": "some"}, {"explain": "1"}, {"bridge": "1"}),
        )
    ]
    queries += [
        {"digest": "sha1:3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ", "url": PAGE},  # of nothing
        *({"digest": "sha1:" + "A" * 32, "url": PAGE}, {"digest": "sha9:ab", "url": PAGE}),
        *({"digest": str(sha1(MANY)), "url": ""}, {"digest": str(sha1(MANY))}),
    ]
    for query in queries:
        for accept in ("text/plain", "application/json"):
            told = [
                (one.status_code, one.data, one.headers.get("Dedup-Reason"))
                for one in (
                    each.get("/lookup", query_string=query, headers={"Accept": accept})
                    for each in webs
                )
            ]
            assert told[0] == told[1], (query, accept)
    given = [query for query in queries if query.keys() <= {"digest", "url"}]
    given += [{"digest": str(sha1(MANY)), "url": url} for url in ("<http://a/>", "\ud800", 5)]
    given += [{"digest": 5, "url": PAGE}, [], {"digest": str(sha1(MANY)), "x": "1"}, None]
    for options in ({}, {"crawl": "a"}, {"crawl": "e"}, {"crawl": "none"}, {"in_batch": True}):
        for repeated in (given, 300 * given[:4]):
            body = json.dumps({**options, "lookups": repeated}).encode("utf-8", "surrogatepass")
            both = [
                each.post("/lookup", data=body, content_type="application/json") for each in webs
            ]
            assert both[0].data == both[1].data, options
    for each in (live, bare):
        rows: Counter[tuple[object, ...]] = Counter()
        taken = each.crawls.counting.take()
        headed = [(key[:1] + key[2:], row) for key, row in taken.groups.items()]
        for heading, amounts in [*taken.hosts.items(), *headed]:
            for column, amount in enumerate(amounts):
                rows[*heading, column] += amount
        counted.append(+rows)
    assert counted[0] == counted[1] and len(counted[0]) > 10
    lookups = [
        sorted(line for line in each.get("/metrics").text.splitlines() if PER_CLASS in line)
        for each in webs
    ]
    assert lookups[0] == lookups[1]
    assert live.shared is not None and live.shared.status().answered > 20


def test_a_server_knows_at_once_what_it_has_stored(
    web: Any, running: Filtering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AddedTail, "read", lambda self: iter(()))  # nothing comes from the list
    web.post("/crawls", json={"name": "a"})
    web.post("/crawls", json={"name": "b", "seen_by": "all"})
    for crawl, number in (("a", 9001), ("b", 9002)):
        running.renewed()
        assert (
            web.get("/lookup", query_string=asked(number, crawl=crawl)).json["duplicate"] is False
        )
        assert web.post(f"/captures?crawl={crawl}", json=report(number)).json["added"] == 1
        running.renewed()
        assert web.get("/lookup", query_string=asked(number, crawl=crawl)).json["duplicate"]
    assert web.get("/lookup", query_string=asked(9002)).json["duplicate"]
    assert web.get("/lookup", query_string=asked(9001)).json["duplicate"] is False
    assert web.get("/lookup", query_string=asked(9005, crawl="none")).status_code == 404


def test_claims_are_always_decided_by_the_cluster(
    web: Any, running: Filtering, store: CassandraStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AddedTail, "read", lambda self: iter(()))
    begin(store, "b", seen=lifecycle.Visibility.ALL)
    put(store, "b", capture(9001))
    running.renewed()
    assert running.lacks(9001)
    answer = web.post("/claims", json=asked(9001, crawl="b")).json
    assert answer["duplicate"] is True


def test_a_cluster_that_is_away_is_never_a_miss(
    web: Any, live: LiveIndex, running: Filtering, cassandra: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert web.get("/lookup", query_string=asked(MANY)).status_code == 200
    store = live.crawls.store()
    assert isinstance(store, CassandraStore)

    class Down(Faulty):
        def scan(self, *asked: Any) -> Any:
            raise IndexUnavailable("down")

    session = Down(store.session)
    session.down = True
    store.registry._session = session  # type: ignore[assignment]
    for number in (1, MANY):
        assert web.get("/lookup", query_string=asked(number)).status_code == 503
        assert web.post("/lookup", json={"lookups": [asked(number)]}).status_code == 503


def test_a_damaged_cell_is_damage_with_a_filter_too(
    index: Path, session: Session, keyspaces: Keyspaces, engine: str
) -> None:
    keyspaces.spoiled.add(engine)  # of a row from the future
    with closing(open_index(index)) as opened, opened.view() as view:
        assert isinstance(view, CassandraView)
        key, cell = next(iter(view.stored()))
    dk, rest = split_key(key)
    session.execute(PUT, dk, rest, cell[:-1] + bytes([cell[-1] ^ 1]), time.time_ns() // 1000 + 10)
    with Filtering(index) as one, closing(open_index(index)) as opened:
        one.renewed()
        with opened.view() as view:
            view.use_filter(one.shared)
            with pytest.raises(Damaged):
                view.any(Digest("sha1", dk[1:]), 10)
            others = [number for number in range(50) if start(number) != dk]
            assert all(view.any(sha1(number), 1) for number in others)


def test_a_server_keeps_its_filter_when_workers_are_replaced(index: Path) -> None:
    with serving(index, "--workers", "2", "--filter-memory", "1000000") as server:

        def told() -> dict[str, Any]:
            found: dict[str, Any] = json.loads(server.get("/stats")[1])["filter"]
            return found

        def until(condition: Callable[[], bool]) -> None:
            end = time.monotonic() + DEADLINE
            while not condition():
                assert time.monotonic() < end, server.log.read_text()
                time.sleep(0.05)

        def misses() -> None:
            """Return when a miss was answered by the filter."""
            before = told()["answered"]

            def answered() -> bool:
                for number in range(MANY, MANY + 20):
                    code, text = server.get(f"/lookup?digest={sha1(number)}")
                    assert code == 200 and not json.loads(text)["duplicate"]
                return told()["answered"] > before

            until(answered)

        misses()
        [made] = [line for line in server.log.read_text().splitlines() if "digests in" in line]
        workers = children(server)
        for worker in workers[:1]:
            os.kill(worker, signal.SIGKILL)
        until(lambda: len(children(server)) == 2 and children(server) != workers)
        misses()
        server.process.send_signal(signal.SIGHUP)
        until(lambda: len(children(server)) == 2 and not {*children(server)} & {*workers})
        misses()
        assert server.log.read_text().count("digests in") == 1, made


def children(server: Running) -> list[int]:
    """The processes of the workers."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            words = (place / "cmdline").read_text()
            if parent == server.process.pid and "filter_builder" not in words:
                found.append(int(place.name))
    return sorted(found)


def test_an_index_in_a_file_has_no_use_for_it(make_index: MakeIndex) -> None:
    done = subprocess.run(
        [*COMMAND, make_index([]), "--filter-memory", "1000000"], capture_output=True, text=True
    )
    assert done.returncode == BadInput.exit_status and "is for an index on a cluster" in done.stderr
