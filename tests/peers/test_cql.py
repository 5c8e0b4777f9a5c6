"""The driver on a real node: calls, answers, failures."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path

import pytest

from dedupindex.cli import main
from dedupindex.errors import BadInput, DedupError, IndexUnavailable
from dedupindex.index.address import PASSWORD, USER, Address
from dedupindex.index.engine import retry
from dedupindex.index.engines.cassandra import cql
from dedupindex.index.engines.cassandra.cql import (
    BATCH,
    IN_FLIGHT,
    PAGE,
    ConditionalResult,
    Session,
    Statement,
    Unclear,
    Use,
    connect,
    execute_conditional,
)
from dedupindex.index.identity import Identity, Settings
from tests.peers.cassandra import DEADLINE, Ring
from tests.support.ports import refusing_port

pytestmark = pytest.mark.peer


@pytest.fixture(scope="module")
def keyspace(cassandra: Ring) -> str:
    """A keyspace with one table."""
    address = Address.parse(cassandra.address())
    with closing(connect(address)) as session:
        session.define(
            f"CREATE KEYSPACE {address.keyspace} WITH replication = "
            "{'class': 'NetworkTopologyStrategy', 'replication_factor': 1}"
        )
        session.define(
            f"CREATE TABLE {address.keyspace}.t (k blob, n int, v blob, PRIMARY KEY (k, n))"
        )
    return address.keyspace


@pytest.fixture
def session(
    request: pytest.FixtureRequest, cassandra: Ring, keyspace: str
) -> Iterator[tuple[Session, bytes, str]]:
    """A session, a key that no other test uses, and the table."""
    address = Address.parse(cassandra.address(keyspace, timeout=20))
    with closing(connect(address)) as session:
        yield session, request.node.name.encode(), f"{keyspace}.t"


def put(table: str, condition: str = "") -> Statement:
    use = Use.CONDITIONAL if condition else Use.WRITE
    return Statement(f"INSERT INTO {table} (k, n, v) VALUES (?, ?, ?) {condition}", use)


def test_many_statements_are_answered_in_order(session: tuple[Session, bytes, str]) -> None:
    cql, key, table = session
    numbers = range(3 * IN_FLIGHT + 1)
    asked = ((put(table), (key, n, b"%d" % n)) for n in numbers)
    assert list(cql.execute_many(asked)) == [[] for _ in numbers]
    get = Statement(f"SELECT v FROM {table} WHERE k = ? AND n = ?")
    found = cql.execute_many((get, (key, n)) for n in reversed(numbers))
    assert list(found) == [[(b"%d" % n,)] for n in reversed(numbers)]
    assert cql.execute(get, key, -1) == []
    assert list(cql.execute_many([])) == []


def test_a_read_of_any_length_comes_in_pages(session: tuple[Session, bytes, str]) -> None:
    cql, key, table = session
    count = 2 * PAGE + 1
    list(cql.execute_many((put(table), (key, n, b"v")) for n in range(count)))
    of_key = Statement(f"SELECT n FROM {table} WHERE k = ?")
    pages = list(cql.scan(of_key, key))
    assert max(map(len, pages)) <= PAGE
    assert [n for page in pages for (n,) in page] == list(range(count))
    assert [n for (n,) in cql.execute(of_key, key)] == list(range(count))
    assert len(next(cql.execute_many([(of_key, (key,))]))) == count


def test_a_scan_outlives_a_node_that_hangs(cassandra: Ring, keyspace: str) -> None:
    """A scan of hours must not begin anew because one page came too late."""
    key, table, count = b"outlives", f"{keyspace}.t", 2 * PAGE + 1
    (node,) = cassandra.nodes
    with closing(connect(Address.parse(cassandra.address(keyspace, timeout=2)))) as cql:
        retry(partial(cql.write_many, put(table), [(key, n, b"v") for n in range(count)]))
        of_key = Statement(f"SELECT n FROM {table} WHERE k = ?")
        pages = cql.scan(of_key, key)
        rows = retry(partial(next, pages))
        with ThreadPoolExecutor(1) as pool, ExitStack() as hanging:
            hanging.enter_context(node.hanging())
            rest = pool.submit(list, pages)
            with suppress(TimeoutError):
                rest.result(3)  # the page is given up once, and asked for again
            assert not rest.done()
            hanging.close()
            rows += [row for page in rest.result(DEADLINE) for row in page]
    assert [n for (n,) in rows] == list(range(count))


def test_many_rows_are_written_each_with_its_own_timestamp(
    session: tuple[Session, bytes, str],
) -> None:
    cql, key, table = session
    late = Statement(f"INSERT INTO {table} (k, n, v) VALUES (?, ?, ?) USING TIMESTAMP ?", Use.WRITE)
    keys = [key + b"%d" % n for n in range(500)]
    cql.write_many(late, [(one, 1, b"new", 2) for one in keys])
    cql.write_many(late, [(one, 1, b"old", 1) for one in keys[::2]])
    cql.write_many(late, [])
    get = Statement(f"SELECT v, writetime(v) FROM {table} WHERE k = ? AND n = 1")
    assert list(cql.execute_many((get, (one,)) for one in keys)) == [[(b"new", 2)]] * 500


def test_large_rows_are_no_batch_that_nodes_refuse(session: tuple[Session, bytes, str]) -> None:
    cql, key, table = session
    put = Statement(f"INSERT INTO {table} (k, n, v) VALUES (?, ?, ?)", Use.WRITE)
    keys = [b"large" + key + b"%d" % number for number in range(40)]
    cql.write_many(put, [(one, 1, bytes(9000)) for one in keys])
    get = Statement(f"SELECT n FROM {table} WHERE k = ?")
    assert list(cql.execute_many((get, (one,)) for one in keys)) == [[(1,)]] * 40


def test_writing_stops_where_it_may_not_go_on(session: tuple[Session, bytes, str]) -> None:
    """What is called before each batch raises; what was sent by then is written."""
    cql, key, table = session
    keys, batches = [key + b"%03d" % number for number in range(20 * BATCH)], iter(range(3))

    def before() -> None:
        if next(batches, None) is None:
            raise DedupError("no more")

    with pytest.raises(DedupError, match="no more"):
        cql.write_many(put(table), [(one, 1, b"v") for one in keys], before)
    get = Statement(f"SELECT n FROM {table} WHERE k = ?")
    assert sum(map(len, cql.execute_many((get, (one,)) for one in keys))) <= 3 * BATCH


def test_one_of_two_wins(session: tuple[Session, bytes, str]) -> None:
    cql, key, table = session
    back = Statement(f"SELECT v FROM {table} WHERE k = ? AND n = ?", Use.SERIAL)
    insert = put(table, "IF NOT EXISTS")

    def claim(who: bytes) -> ConditionalResult:
        return execute_conditional(
            cql, (insert, (key, 1, who)), (back, (key, 1)), lambda row: row[0] == who
        )

    assert claim(b"a") == (True, None)
    assert claim(b"b") == (False, (b"a",))
    assert claim(b"a") == (True, None)  # as a driver does that sends it twice


def test_an_unknown_outcome_is_read_back() -> None:
    """The three results of a transaction whose answer was lost."""

    class Silent:
        def __init__(self, there: list[tuple[bytes]]) -> None:
            self.there = there

        def execute(self, statement: Statement, *values: object) -> list[tuple[bytes]]:
            if statement.use is Use.CONDITIONAL:
                raise Unclear("timed out")
            return self.there

    for there, expected in (
        ([(b"me",)], (True, None)),
        ([(b"other",)], (False, (b"other",))),
        ([], (False, None)),
    ):
        silent: Session = Silent(there)  # type: ignore[assignment]
        found = execute_conditional(
            silent,
            (put("t", "IF NOT EXISTS"), ()),
            (Statement("", Use.SERIAL), ()),
            lambda row: row[0] == b"me",
        )
        assert found == expected


def test_statements_refused_by_the_cluster_are_outages(session: tuple[Session, bytes, str]) -> None:
    cql, key, _ = session
    with pytest.raises(IndexUnavailable):
        cql.execute(Statement("SELECT n FROM no_such.t WHERE k = ?"), key)
    with pytest.raises(IndexUnavailable, match="(?i)keyspace"):
        cql.define("CREATE TABLE no_such.t (k blob PRIMARY KEY)")


def test_a_node_that_hangs_is_an_outage_and_recovers(cassandra: Ring, keyspace: str) -> None:
    address = Address.parse(cassandra.address(keyspace, timeout=2))
    with closing(retry(partial(connect, address))) as cql:
        hang_and_recover(cql, b"hanging", f"{keyspace}.t", cassandra)


def hang_and_recover(cql: Session, key: bytes, table: str, cassandra: Ring) -> None:
    get = Statement(f"SELECT v FROM {table} WHERE k = ? AND n = ?")
    insert = put(table, "IF NOT EXISTS")
    retry(partial(cql.execute, get, key, 1))  # both are prepared now
    retry(partial(cql.execute, insert, key, 1, b"v"))
    with cassandra.nodes[0].hanging():
        began = time.monotonic()
        with pytest.raises(IndexUnavailable):
            cql.execute(get, key, 1)
        with pytest.raises(IndexUnavailable):
            list(cql.execute_many([(get, (key, 1))] * 3))
        with pytest.raises(Unclear):
            cql.execute(insert, key, 2, b"v")
        assert time.monotonic() - began < 3 * 2 + 14  # which is of a busy machine
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        with suppress(IndexUnavailable):
            assert cql.execute(get, key, 1) == [(b"v",)]
            return
    pytest.fail("it did not recover")


def test_a_node_that_is_silent_for_less_than_the_timeout_is_not_given_up(
    cassandra: Ring, keyspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cql, "HEARTBEAT", 0.2)
    address = Address.parse(cassandra.address(keyspace, timeout=18))  # as no other
    get = Statement("SELECT release_version FROM system.local")
    with closing(retry(partial(connect, address))) as session:
        retry(partial(session.execute, get))
        with cassandra.nodes[0].hanging():
            time.sleep(2)  # a heartbeat is sent, and its answer would be waited for 0.2 seconds
        assert session.execute(get)


def test_connecting_to_a_closed_port_fails() -> None:
    message = "127.0.0.1 answers on port "
    with refusing_port() as port, pytest.raises(IndexUnavailable, match=f"{message}{port}"):
        connect(Address.parse(f"cassandra://127.0.0.1:{port}/k?timeout=1"))


def test_a_node_of_an_unknown_name_is_an_outage() -> None:
    with pytest.raises(IndexUnavailable, match="no node of node.invalid answers on port 9042"):
        connect(Address.parse("cassandra://node.invalid/k?timeout=1"))


def test_a_session_is_shared_and_ends_with_the_last(cassandra: Ring, keyspace: str) -> None:
    address = Address.parse(cassandra.address(keyspace, timeout=19))  # as no other
    get = Statement("SELECT release_version FROM system.local")
    one, other = connect(address), connect(address)
    one.close()
    one.close()
    assert other.execute(get)
    other.close()
    with pytest.raises(IndexUnavailable):
        other.execute(get)
    with closing(connect(address)) as again:
        assert again.execute(get)


# --- addresses -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "cassandra://a/k",
        "cassandra://a,b.example.org,10.0.0.1/k_1",
        "cassandra://a:9043,b:9043/k",
        "cassandra://a/k?consistency=QUORUM&read_consistency=LOCAL_ONE",
        "cassandra://a/k?replication=dc1:3,dc2:2&datacenter=dc1&timeout=0.5",
    ],
)
def test_an_address_is_kept_as_it_was_given(text: str) -> None:
    assert str(Address.parse(text)) == text


def test_defaults_are_not_kept() -> None:
    text = "cassandra://a:9042/k?consistency=local_quorum&replication=3&timeout=5"
    assert str(Address.parse(text)) == "cassandra://a/k"


@pytest.mark.parametrize("driver", ["cassandra-driver", "acsylla"])
def test_a_kept_address_may_name_a_driver(driver: str) -> None:
    """There were two to choose from."""
    assert (
        str(Address.parse(f"cassandra://a/k?driver={driver}&tls=node"))
        == "cassandra://a/k?tls=node"
    )


def test_order_and_options_make_no_other_index() -> None:
    one, other = Address.parse("cassandra://a,b/k"), Address.parse("cassandra://b,a/k?timeout=1")
    assert (one.where, one.slug) == (other.where, other.slug)
    for text in ("cassandra://a,b/l", "cassandra://a:9043,b/k", "cassandra://a/k"):
        assert one.where != Address.parse(text).where


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cassandra://a", "not an address of a cluster"),
        ("cassandra:///k", "not an address of a cluster"),
        ("cassandra://a/Big", "not an address of a cluster"),
        ("cassandra://a/k/l", "not an address of a cluster"),
        ("cassandra://a:0/k", "not a host"),
        ("cassandra://a:99999/k", "not a host"),
        ("cassandra://a b/k", "not a host"),
        ("cassandra://a:1,b:2/k", "one port"),
        ("cassandra://a/k?speed=1", "no option speed"),
        ("cassandra://a/k?consistency=SOME", "LOCAL_QUORUM"),
        ("cassandra://a/k?timeout=soon", "seconds"),
        ("cassandra://a/k?timeout=nan", "seconds"),
        ("cassandra://a/k?replication=0", "copies"),
        ("cassandra://a/k?driver=odbc", "no option driver"),
    ],
)
def test_invalid_addresses_are_refused(text: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        Address.parse(text)


def test_no_password_is_repeated() -> None:
    with pytest.raises(BadInput, match=PASSWORD) as caught:
        Address.parse("cassandra://me:secret@a/k")
    assert USER in str(caught.value) and "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "address",
    [
        "cassandra://a/k?password=SECRET",
        "cassandra://a/k?timeout=soon&password=SECRET",
        "cassandra://a/k?consistency=SOME&SECRET",
        "cassandra://a/Big?password=SECRET",
        "cassandra://a:1,b:2/k?password=SECRET",
        "cassandra://me:SECRET@a/k",
        "cassandra://me:SEC/RET-SECRET@a/k",
        "cassandra://me:?SECRET@a/k",
        "cassandra://me:#SECRET@a/k",
        "cassandra://a/Big#SECRET",
        "CASSANDRA://me:SECRET@a/k",
        "cassandra:/me:SECRET@a/k?password=SECRET",
    ],
)
def test_no_secret_is_repeated_wherever_an_address_is_given(
    address: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    if not address.startswith("cassandra:/me"):  # which is a path
        with pytest.raises(BadInput) as caught:
            Address.parse(address)
        assert "SECRET" not in str(caught.value)
        assert main(["lookup", address, "--digest", "sha1:" + "A" * 32]) != 0
    assert main(["index", str(tmp_path), str(tmp_path / "index"), "--engine", address]) != 0
    assert main(["index", "--stats", str(tmp_path / "index"), "--engine", address]) != 0
    (tmp_path / "kept").mkdir()
    Identity("lmdb", Settings()).write(tmp_path / "kept")
    text = (tmp_path / "kept" / "index.json").read_text().replace('"lmdb"', f'"{address}"')
    (tmp_path / "kept" / "index.json").write_text(text)
    assert main(["index", "--stats", str(tmp_path / "kept")]) != 0
    output = capsys.readouterr()
    assert "SECRET" not in output.out + output.err
