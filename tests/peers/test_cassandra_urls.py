"""Captures by URL on a cluster: the same as reading all captures and keeping those of the URL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from urllib.parse import urlencode

import pytest

from dedupindex.capture import Covers, Evidence
from dedupindex.crawls import lifecycle
from dedupindex.crawls.crawl import Visibility
from dedupindex.crawls.stores import make_store
from dedupindex.digest import Digest
from dedupindex.errors import BadInput, StrategyUnavailable
from dedupindex.index.address import Address
from dedupindex.index.engines.cassandra import cassandra_schema, cassandra_view
from dedupindex.index.engines.cassandra.cql import Statement, Use, connect
from dedupindex.index.identity import Settings
from dedupindex.urlkey import urlkey
from tests.integration.test_crawls_live import send
from tests.integration.test_server_live import serving
from tests.peers.cassandra import Keyspaces
from tests.peers.test_cassandra_commands import Run, address, cdx, label, run
from tests.support.captures import capture, sha1
from tests.support.engine_bench import Bench
from tests.unit.index.test_url_index import BY_URL, UPPER, WWW, A, B, agrees, listed, report

__all__ = ["address", "run"]  # fixtures
pytestmark = pytest.mark.peer


@pytest.fixture
def engine(keyspaces: Keyspaces) -> Iterator[str]:
    with keyspaces.some() as address:
        yield address()


@pytest.mark.parametrize("canonical", [True, False])
def test_lists_are_right_after_any_loads(engine: str, tmp_path: Path, canonical: bool) -> None:
    bench = Bench(tmp_path, engine, Settings(by_url=True, canonical=canonical))
    first = [capture(n, url, 9 - n, container="a.warc.gz") for n in (1, 2) for url in (A, WWW, B)]
    further = (Digest("sha256", bytes(32)),)
    second = [capture(3, A, also=further), capture(1, A, 2), capture(4, UPPER), capture(1, B, 3)]
    for items, dropped in ((first, ()), (second, ()), ([capture(5, A)], ("a.warc.gz",))):
        bench.load(items, dropped=dropped)
        with bench.view() as view:
            agrees(view, canonical)
            assert list(view.at_url(A))
    with bench.open() as opened:
        assert opened.check() == []
    with bench.view() as view:
        if not canonical:
            with pytest.raises(StrategyUnavailable, match="no-canonicalized"):
                list(view.at_urlkey(urlkey(A)))


def test_marks_are_not_listed_and_missing_rows_are_found(engine: str, tmp_path: Path) -> None:
    bench = Bench(tmp_path, engine, BY_URL)
    bench.load([capture(1, A, 2, evidence=Evidence.NAMED), capture(2, B)])
    bench.load([capture(1, A, 1, evidence=Evidence.REVISIT)])
    with bench.view() as view:
        agrees(view)
        assert list(view.at_url(A)) == []
    with bench.open() as opened:
        assert opened.check() == []
    found = Address.parse(engine)
    with closing(connect(found)) as session:
        part, rest, dk = cassandra_schema.row_of(BY_URL.keys().key_of(sha1(2), B))
        gone = f"DELETE FROM {found.keyspace}.url WHERE part = ? AND rest = ? AND dk = ?"
        session.execute(Statement(gone, Use.WRITE), part, rest, dk)
    with bench.open() as opened:
        assert [one for one in opened.check() if "not listed by its URL" in one]


def test_a_query_reads_a_limited_number_of_values(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, engine, BY_URL)
    held = [capture(number, A, 1 + number % 28) for number in range(1, 30)]
    bench.load(held)
    monkeypatch.setattr(cassandra_view, "DIGESTS_AT_ONCE", 7)
    with bench.view() as view:
        assert set(view.at_url(A)) == set(held)
        monkeypatch.setattr(cassandra_view, "LOOKED_AT", 10)
        found = list(view.at_url(A))
        assert len(set(found)) == len(found) == 10 and set(found) <= set(held)


def test_without_a_list_by_url_a_query_is_an_error(engine: str, tmp_path: Path) -> None:
    bench = Bench(tmp_path, engine)
    bench.load([capture(1, A)])
    with bench.view() as view, pytest.raises(StrategyUnavailable, match="--by-url"):
        list(view.at_url(A))


def test_lists_of_crawls_depend_on_permissions(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dedupindex.crawls.stores.cassandra_crawl_registry.AGE", 0.0)
    bench = Bench(tmp_path, engine, BY_URL)
    bench.load([capture(1, A)])
    with closing(make_store(bench.index)) as store:
        for name, seen in (("own", Visibility.OWN), ("shared", Visibility.ALL)):
            store.write(partial(lifecycle.begin, name=name, seen=seen, covers=Covers.STORED))
        report(store, "own", capture(2, A), capture(1, A), capture(2, B))
        report(store, "shared", capture(3, A), capture(1, A))
        digests = [
            [one.digest for one in listed(bench.index, store, A, who)] for who in ("", "own")
        ]
        assert digests == [sorted(map(sha1, (1, 3))), sorted(map(sha1, (1, 2, 3)))]
        store.write(partial(lifecycle.commit, name="own"))
        store.write(partial(lifecycle.cancel, name="shared"))
        assert [one.digest for one in listed(bench.index, store, A)] == sorted(map(sha1, (1, 2)))
    with bench.open() as opened:
        assert opened.check() == []


def test_clients_of_cdx_servers_are_answered(address: str, run: Run, tmp_path: Path) -> None:
    """From what was copied there, what was added since, and what a crawl reports."""
    index, rows = tmp_path / "index", cdx(tmp_path, 0, 20)
    assert run("index", "--by-url", rows, index)[0] == 0
    assert run("index", "--copy", address, index)[0] == 0
    assert run("index", "--add", cdx(tmp_path, 20, 30), address)[0] == 0
    assert run("index", "--check", address)[0] == 0
    [home] = (tmp_path / "state" / "dedupindex").iterdir()
    with serving(home, "--workers", "1", "--engine", address) as server:

        def lines(number: int, **more: str) -> list[str]:
            asked = {"url": f"http://example.com/{number}", **more}
            status, body = server.get("/cdx?" + urlencode(asked))
            assert status == 200
            return body.decode().splitlines()

        for number in (7, 25):
            [line] = lines(number)
            assert label(number) in line
        assert lines(40) == []
        send(server.port, "POST", "/crawls", {"name": "c", "seen_by": "all"})
        capture = {
            "url": "http://example.com/40",
            "date": "2026-11-22T00:00:00Z",
            "digest": f"sha1:{label(40)}",
            "size": 100,
            "status": 200,
        }
        answer = send(server.port, "POST", "/captures", {"crawl": "c", "captures": [capture]})
        assert answer["added"] == 1, answer
        assert label(40) in lines(40)[0]
        assert len(lines(40, matchType="exact")) == 1
    assert json.loads(run("index", "--stats", "--json", address)[1])["captures"] == 30


def test_whoosh_has_no_such_list(run: Run, tmp_path: Path) -> None:
    words = ["index", "--by-url", "--engine", "whoosh", cdx(tmp_path, 0, 1), tmp_path / "index"]
    status, _, err = run(*words)
    assert status == BadInput.exit_status and "cluster" in err
