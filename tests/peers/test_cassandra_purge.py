"""Purges on a cluster: killed, beside other loads, of old indexes and copies, with a node down."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random

import pytest
from cassandra.timestamps import MonotonicTimestampGenerator

from dedupindex.capture import Capture
from dedupindex.crawls.stores import make_store
from dedupindex.errors import HasDependents, IndexBusy, SettingsConflict
from dedupindex.index import open_index
from dedupindex.index.address import Address
from dedupindex.index.engines.cassandra.cql import Statement, Use, connect
from dedupindex.index.engines.cassandra.metadata import Lease
from dedupindex.post_crawl.purge.remove import purge, survey
from dedupindex.post_crawl.purge.target import Target, TargetKind
from tests.conftest import On
from tests.peers.cassandra import Keyspaces
from tests.support.captures import capture
from tests.support.commands import typed
from tests.support.purging import begin, held, load, revisit_of
from tests.unit.post_crawl.test_impact import FIRST, SECOND, A, B, container, report_captures

pytestmark = pytest.mark.peer
# The command dies before its n-th write.
KILLED = """
import os, signal, sys
from dedupindex.index.engines.cassandra import cql
left = int(sys.argv[1])
def counted(work, writes):
    def counting(session, statement, *given):
        global left
        if writes(statement):
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
        return work(session, statement, *given)
    return counting
cql.Session.write_many = counted(cql.Session.write_many, lambda statement: True)
cql.Session._send = counted(
    cql.Session._send, lambda statement: not statement.text.startswith("SELECT"))
from dedupindex.cli import main
status = main(sys.argv[2:])
print(left)
sys.exit(status)
"""


@pytest.fixture
def address(on: On, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr("dedupindex.crawls.stores.cassandra_crawl_registry.AGE", 0.0)
    with on("cassandra") as new:
        yield new()


def some(index: Path) -> Path:
    """Thirty captures of a file, some in another, too, or of revisits; one more of a crawl."""
    first = [capture(number, A, 1, container=FIRST) for number in range(30)]
    load(index, first)
    again = [one._replace(container=SECOND, date=b"2026-11-02T00:00:00Z") for one in first[::2]]
    load(index, again, [revisit_of(one, B, 9) for one in first[::3]])
    with closing(make_store(index)) as store:
        reported = [capture(90, B, 1, container=Path(FIRST).name)]
        store.write(partial(report_captures, name="a", captures=reported))
    return index


def answering(index: Path) -> set[tuple[str, Capture]]:
    with closing(open_index(index)) as engine, engine.view() as view:
        return {(str(digest), one) for digest, one in view.captures()}


def items(index: Path) -> int:
    with closing(open_index(index)) as engine, engine.view() as view:
        return sum(1 for _ in view.ledger())


def purge_killed(at: int, index: Path) -> subprocess.CompletedProcess[str]:
    words = ["purge", str(index), "--container", FIRST, "--force"]
    line = [sys.executable, "-c", KILLED, str(at), *words]
    return subprocess.run(line, capture_output=True, text=True)


def test_a_purge_that_is_killed_at_any_write_is_completed_by_another(
    on: On, tmp_path: Path, chance: Random, effort: int
) -> None:
    with on("cassandra") as new:
        whole = some(begin(tmp_path / "whole", new()))
        before = answering(whole)
        done = purge_killed(10**6, whole)
        assert done.returncode == 0, done.stderr
        after, left = held(whole), items(whole)
        writes = 10**6 - int(done.stdout.splitlines()[-1])
    for at in chance.sample(range(1, writes + 1), 3 * effort):
        with on("cassandra") as new:  # the same keyspace, emptied: to make one takes seconds
            index = some(begin(tmp_path / f"{at}-{writes}", new()))
            assert purge_killed(at, index).returncode == -signal.SIGKILL
            assert answering(index) <= before | set(after), at
            purge(index, container(FIRST), force=True)
            assert held(index) == after and items(index) == left, at
            assert not survey(index, container(FIRST)).live
            load(index, [capture(number, A, 1, container=FIRST) for number in range(30)])
            assert held(index) == after, at


def test_a_clock_that_is_behind_removes_captures_of_crawls(
    keyspaces: Keyspaces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server that stored them may be another machine; no tombstone stands for a file."""
    monkeypatch.setattr("dedupindex.crawls.stores.cassandra_crawl_registry.AGE", 0.0)
    with keyspaces.some() as new:
        address = new()
        keyspaces.spoiled.add(address)  # of rows from the future
        index, name = begin(tmp_path, address), Path(FIRST).name
        with closing(make_store(index)) as store:
            with monkeypatch.context() as patch:
                patch.setattr(MonotonicTimestampGenerator, "__call__", lambda self: _now(60))
                reported = [capture(number, A, 1, container=name) for number in range(3)]
                store.write(partial(report_captures, name="a", captures=reported))
            purge(index, container(name), force=True)
            with store.reading() as reading:
                crawl = reading.crawl("a")
            assert not any(store.batches()) and not any(store.keys_of(crawl))
        assert not survey(index, container(name)).live


def _now(ahead: int) -> int:
    """Return the microseconds of a clock that is some seconds ahead."""
    return time.time_ns() // 1000 + ahead * 1_000_000


def test_the_last_copy_of_a_payload_is_protected_on_a_cluster(address: str, tmp_path: Path) -> None:
    """Of the index, and then of a crawl, which is never merged there."""
    index, url = begin(tmp_path, address), Target(TargetKind.URL, (B.decode(),))
    first = [capture(number, A, 1, container=FIRST) for number in range(20)]
    last = [one._replace(url=B, container=SECOND) for one in first]
    load(index, first + last[:15], [revisit_of(one, b"http://z.example/", 9) for one in first])
    with closing(make_store(index)) as store:
        reported = [one._replace(container="live.warc.gz") for one in last[15:]]
        store.write(partial(report_captures, name="a", captures=reported))
    assert not survey(index, url).impact.dependents.captures
    purge(index, container(FIRST), force=True)
    for target, count in (
        (container(SECOND), 15),
        (Target(TargetKind.CRAWL, ("a",)), 5),
        (url, 20),
    ):
        impact = survey(index, target).impact
        assert impact.by_digest.captures == impact.dependents.captures == count
        with pytest.raises(HasDependents, match=f"{count} revisits"):
            purge(index, target, force=False)
    purge(index, url, force=True)
    assert held(index) == [] and not survey(index, url).live


def test_a_purge_and_a_load_of_another_machine_exclude_each_other(
    address: str, tmp_path: Path
) -> None:
    index, other = some(begin(tmp_path, address)), tmp_path / "other" / "index"
    begin(tmp_path / "other", address)
    before = held(index)
    with (
        closing(connect(Address.parse(address))) as session,
        Lease(session, address),
        pytest.raises(IndexBusy, match="is writing to"),
    ):
        purge(index, container(FIRST), force=True)
    assert held(index) == before
    refused = list[str]()

    def load_meanwhile(found: object) -> None:
        with pytest.raises(IndexBusy) as error:
            load(other, [capture(70, A, 1)], [revisit_of(capture(1, A), B, 9)])
        refused.append(str(error.value))

    purge(index, container(FIRST), force=True, on_item=load_meanwhile)
    assert refused and "is writing to" in refused[0]
    load(other, [capture(70, A, 1)])
    assert {one.container for _, one in held(index)} == {SECOND, capture(70, A).container}


def test_an_index_of_an_older_version_is_purged_once_its_files_are_read_again(
    address: str, tmp_path: Path
) -> None:
    index = some(begin(tmp_path, address))
    with closing(connect(Address.parse(address))) as session:
        session.execute(Statement("DELETE FROM KS.about WHERE name = 'ledger'", Use.WRITE))
        session.define(f"TRUNCATE {session.keyspace}.ledger")
    for words in (["impact"], ["purge", "--force"]):
        said = typed(
            words[0], index, "--container", FIRST, *words[1:], status=SettingsConflict.exit_status
        )
        assert "bin/index --reread SOURCE... 'cassandra://" in said[1]
    load(index, [capture(7, A, 1, container=FIRST)])  # some of them
    with pytest.raises(SettingsConflict):
        survey(index, container(FIRST))
    names = {FIRST, SECOND, "/w/r.warc.gz"}
    first = [capture(number, A, 1, container=FIRST) for number in range(30)]
    again = [one._replace(container=SECOND, date=b"2026-11-02T00:00:00Z") for one in first[::2]]
    load(index, first + again, [revisit_of(one, B, 9) for one in first[::3]])
    with closing(open_index(index)) as engine, engine.view() as view:
        assert {one.name for one in view.containers()} == names
    impact = survey(index, container(FIRST)).impact
    assert (impact.dependents.captures, impact.left["same_url"].captures) == (10, 15)
    purge(index, container(FIRST), force=True)
    assert {one.container for _, one in held(index)} == {SECOND}


def test_copies_to_and_from_a_cluster_have_the_ledger(address: str, tmp_path: Path) -> None:
    index = some(begin(tmp_path))
    target = tmp_path / "on-cluster"
    typed("index", "--copy", address, index)
    typed("index", "--copy", target, address)
    with closing(open_index(target)) as copied, copied.view() as view:
        assert view.has_ledger()
    for one in (address, target):
        said, _ = typed("impact", one, "--container", FIRST)
        assert " 10 " in said.split("dependents")[1]
        assert typed("purge", one, "--container", FIRST, status=HasDependents.exit_status)
        typed("purge", one, "--container", FIRST, "--force")
    assert {one.container for _, one in held(target)} == {SECOND}
