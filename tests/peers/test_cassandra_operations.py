"""What operators do with a cluster: nodes join and leave, datacenters, snapshots restored."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from dedupindex.index import refer_to
from dedupindex.index.address import Address
from dedupindex.index.engines.cassandra.cql import connect
from tests.conftest import MakeIndex
from tests.integration.test_crawls_live import known, report, send
from tests.integration.test_server_live import Running, serving
from tests.peers.cassandra import Ring, ring
from tests.peers.test_cassandra_commands import cdx
from tests.peers.test_cassandra_ring import OWN, Crawlers, command, done, patient, status, until
from tests.support.captures import capture, sha1

pytestmark = pytest.mark.peer
FIRST, LOADED = 1_000_000, 2000  # captures that are loaded; crawls report others


def referring(directory: Path, address: str) -> Path:
    """A directory of this machine for the index at an address."""
    directory.mkdir()
    refer_to(directory, Address.parse(address))
    return directory


def test_nothing_is_lost_when_a_node_joins_and_the_other_leaves(
    make_index: MakeIndex, tmp_path: Path
) -> None:
    """There is one copy of everything, so all that is found afterwards has moved."""
    with ring(1, timeout=12) as nodes:
        index = make_index([capture(90)], engine=nodes.address("moving"))
        patient("index", "--add", cdx(tmp_path, FIRST, FIRST + LOADED), index)
        with serving(index, "--workers", "2") as server:
            send(server.port, "POST", "/crawls", {"name": "a"})
            crawlers = Crawlers([server])
            try:
                assert crawlers.more(50)
                loading = command(
                    "index", "--add", cdx(tmp_path, FIRST + LOADED, FIRST + 5 * LOADED), index
                )
                nodes.join()
                done(loading)
                assert crawlers.more(50)
                first, second = nodes.nodes
                first.nodetool("decommission", "--force")
                first.kill()
                assert crawlers.more(50)
            finally:
                crawlers.stop()
            assert crawlers.wrong == []
            assert until(lambda: status(server, "POST", "/crawls/a/commit")[0] == 200)
            assert [number for number in crawlers.acknowledged if not known(server, number)] == []
        nodes.nodes.remove(first)
        left = referring(tmp_path / "left", nodes.address("moving", replication=1))
        assert Address.parse(nodes.address("moving")).hosts == (second.address,)
        found = json.loads(patient("index", "--check", "--json", left))
        assert found["ok"] and found["captures"] == 1 + 5 * LOADED


def looked_up(server: Running, number: int) -> bool | None:
    """Whether a lookup of crawl "a" finds a duplicate; None in an outage."""
    path = f"/lookup?digest={sha1(number)}&crawl=a"
    code, answer = status(server, "GET", path)
    assert code in (200, 503), answer
    return bool(answer["duplicate"]) if code == 200 else None


def answer_after_outage(server: Running, number: int) -> bool | None:
    """The first answer that is no outage; each worker connects again in its own time."""
    found: list[bool | None] = [None]

    def answered() -> bool:
        found[0] = looked_up(server, number)
        return found[0] is not None

    assert until(answered)
    return found[0]


def test_one_datacenter_decides_and_another_answers_without_it(
    make_index: MakeIndex, tmp_path: Path
) -> None:
    copies = {"replication": "dc1:1,dc2:1", "timeout": 12}
    with ring(2, datacenters=("dc1", "dc2"), **copies) as nodes:
        here, there = (nodes.address("both", datacenter=name) for name in ("dc1", "dc2"))
        index = make_index([capture(90)], engine=here)
        other = referring(tmp_path / "other", here)
        reader = referring(tmp_path / "reader", there)
        with serving(index) as one, serving(other) as two, serving(reader) as reads:
            send(one.port, "POST", "/crawls", {"name": "a"})
            send(two.port, "POST", "/captures?crawl=a", report(1))
            assert known(one, 1, "a")
            assert until(lambda: known(reads, 1, "a"))

            # Else the only copy of this datacenter loses what it got in the last moments.
            nodes.nodes[1].nodetool("flush")
            nodes.nodes[1].kill()
            asked = {"digest": str(sha1(5000)), "url": OWN, "crawl": "a"}
            claims = [send(server.port, "POST", "/claims", asked) for server in (one, two)]
            assert [claim["claimed"] for claim in claims] == [True, False]
            send(two.port, "POST", "/captures?crawl=a", report(2))
            assert known(one, 2, "a")
            lookup = f"/lookup?digest={sha1(90)}&url={OWN}"
            assert status(reads, "GET", lookup)[0] == 503
            nodes.mend()
            assert until(lambda: status(reads, "GET", lookup)[0] == 200)
            assert until(lambda: looked_up(reads, 2) is True)  # by hints

            nodes.nodes[0].kill()
            for number in (1, 2):
                assert answer_after_outage(reads, number) is True
            assert answer_after_outage(reads, 3) is False
            for method, path, content in (
                ("GET", lookup, None),
                ("POST", "/captures?crawl=a", report(3)),
                ("POST", "/claims", asked),
            ):
                assert status(one, method, path, content)[0] == 503


def test_a_snapshot_and_a_copy_are_restored_in_an_empty_cluster(
    make_index: MakeIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with ring(1, timeout=12) as nodes:
        index = make_index([capture(90)], engine=nodes.address("kept"))
        patient("index", "--add", cdx(tmp_path, FIRST, FIRST + LOADED), index)
        with serving(index) as server:
            for name in ("done", "open"):
                send(server.port, "POST", "/crawls", {"name": name})
                for number in range(20):
                    number += 100 * (name == "open")
                    send(server.port, "POST", f"/captures?crawl={name}", report(number))
            send(server.port, "POST", "/crawls/done/commit")
        copied = json.loads(patient("index", "--copy", tmp_path / "before", index, "--json"))
        nodes.nodes[0].nodetool("snapshot", "-t", "monday", "kept")
        patient("index", "--add", cdx(tmp_path, FIRST + LOADED, FIRST + LOADED + 10), index)
        saved = saved_tables(nodes, tmp_path / "saved", "monday")
    with ring(1, timeout=12) as nodes:
        address = nodes.address("kept")
        restore(nodes, address, saved)
        again = referring(tmp_path / "again", address)
        found = json.loads(patient("index", "--check", "--json", again))
        assert found["ok"] and found["captures"] == 1 + LOADED
        after = json.loads(patient("index", "--copy", tmp_path / "after", again, "--json"))
        counted = ("content", "captures", "digests", "of_crawls")
        assert [after[name] for name in counted] == [copied[name] for name in counted]
        assert copied["of_crawls"] == 20
        other = nodes.address()  # the other kind of backup
        patient("index", "--copy", other, tmp_path / "before")
        found = json.loads(patient("index", "--check", "--json", other))
        assert found["ok"] and found["captures"] == 1 + LOADED + 20
        with serving(again) as server:
            assert known(server, 5) and known(server, 105, "open") and not known(server, 105)
            send(server.port, "POST", "/captures?crawl=open", report(177))
            send(server.port, "POST", "/crawls/open/commit")
            assert known(server, 105) and known(server, 177) and not known(server, 178)
        patient("index", "--add", cdx(tmp_path, FIRST + LOADED, FIRST + LOADED + 10), again)
        found = json.loads(patient("index", "--check", "--json", again))
        assert found["ok"] and found["captures"] == 1 + LOADED + 10


def saved_tables(nodes: Ring, target: Path, tag: str) -> Sequence[Path]:
    """Copy the snapshots of all tables; return the directories, named after those of the tables."""
    for snapshot in nodes.nodes[0].home.glob(f"data/kept/*/snapshots/{tag}"):
        shutil.copytree(snapshot, target / snapshot.parents[1].name)
    return sorted(target.iterdir())


def restore(nodes: Ring, address: str, saved: Sequence[Path]) -> None:
    """As docs/operations.md says: the schema first, then the files, while the node is down."""
    [node] = nodes.nodes
    with closing(connect(Address.parse(address))) as session:
        replication = "{'class': 'NetworkTopologyStrategy', 'replication_factor': 1}"
        session.define(f"CREATE KEYSPACE kept WITH replication = {replication}")
        for table in saved:
            session.define((table / "schema.cql").read_text())
    node.kill()
    for table in saved:
        home = node.home / "data" / "kept" / table.name
        assert home.is_dir()
        for file in table.iterdir():
            if file.suffix in (".db", ".crc32", ".txt"):
                shutil.copy(file, home)
    node.start(alone=True)
