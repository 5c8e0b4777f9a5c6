"""Executors load their shares into a cluster: it then has what a load by one machine leaves."""

from __future__ import annotations

import base64
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupindex.capture import Capture, Evidence
from dedupindex.counts import ProgressUpdate
from dedupindex.errors import Damaged, DedupError, IndexUnavailable
from dedupindex.index import open_index
from dedupindex.index.address import Address
from dedupindex.index.engine import IndexedContainer
from dedupindex.index.engines.cassandra import executor_load, metadata
from dedupindex.index.engines.cassandra.cql import Session, Statement, Use, connect
from dedupindex.index.engines.cassandra.executor_load import SharedLoad, together, whole_digests
from dedupindex.index.engines.cassandra.metadata import About, executors_end
from dedupindex.index.format.cells import DIGEST_KEY
from dedupindex.index.identity import Settings
from dedupindex.index.load.runs import RunWriter, merge_files, read_run
from tests.integration.test_spark_tasks import collection
from tests.peers.cassandra import DEADLINE, Keyspaces
from tests.peers.spark import spark_session
from tests.peers.test_spark import _session, _words
from tests.support.captures import capture, sha1
from tests.support.commands import ended
from tests.support.engine_bench import Bench
from tests.support.local_spark import Here, Rows
from tests.support.stores import Bucket

pytestmark = pytest.mark.peer
__all__ = ["collection"]
A, B = b"http://example.com/a", b"http://other.org/b"
TABLES = {
    "capture": "dk, live, rest, crawl, cell",
    "ledger": "dk, rest, id, body",
    "url": "part, rest, dk",
    "place": "number, container, crawl",
    "number": "place, number",
    "container": "name, about",
}


class TwiceRows(Rows):
    """Rows of which each is lost and computed again, and what reads them runs again then.

    What has read those that were lost is not gone, and ends last.
    """

    def __init__(
        self, parts: Iterable[Iterable[Any]], again: Callable[[], Rows] | None = None
    ) -> None:
        super().__init__(parts)
        self._again = again

    def mapPartitionsWithIndex(self, work: Callable[[int, Iterator[Any]], Iterable[Any]]) -> Rows:
        def made() -> Rows:
            return Rows.mapPartitionsWithIndex(self, work)

        lost, done = self.parts, made().parts
        if self._again is not None:
            self.parts = self._again().parts
            done = made().parts
            self.parts = lost
            made()
        return TwiceRows(done, made)


class Twice(Here):
    """A cluster that runs all tasks again, those that write after the first have written."""

    def __init__(self) -> None:
        super().__init__(3)

        def parallelize(tasks: list[Any], count: int) -> Rows:
            return TwiceRows([[one] for one in tasks], lambda: Rows([[one] for one in tasks]))

        self.context = SimpleNamespace(parallelize=parallelize)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let few captures make many shares in this process."""
    monkeypatch.setattr(executor_load, "_LEAST", 40)
    monkeypatch.setattr(executor_load, "_MOST", 100)
    monkeypatch.setattr(executor_load, "_LARGE", 150)
    monkeypatch.setattr(executor_load, "_ROW", 7)
    storage = SimpleNamespace(StorageLevel=SimpleNamespace(DISK_ONLY=""))
    monkeypatch.setitem(sys.modules, "pyspark", storage)  # type: ignore[arg-type]


@pytest.fixture
def addresses(keyspaces: Keyspaces) -> Iterator[Callable[[], str]]:
    with keyspaces.some() as address:
        yield address


def opened(address: str) -> Session:
    return connect(Address.parse(address)).for_changes()


def tables(address: str) -> dict[str, list[Any]]:
    """All rows that a load writes, and the state without its timestamp."""
    with closing(opened(address)) as session:
        found = {
            name: sorted(session.execute(Statement(f"SELECT {columns} FROM KS.{name}")))
            for name, columns in TABLES.items()
        }
        about = About(session)
        assert about.get("loading") is None and about.get(metadata.EXECUTORS) is None
        found["state"] = [asdict(replace(about.state(), written=0)), about.next_number()]
    return found


def urls(count: int, day: int, number: int = 7777) -> list[Capture]:
    """Captures of one digest."""
    return [capture(number, b"http://u.org/%d" % n, day) for n in range(count)]


def loads() -> Iterator[tuple[list[Capture], list[str]]]:
    """Captures of several loads, each with the containers whose captures are dropped."""
    first = [capture(n, A) for n in range(500)] + urls(260, 1) + urls(60, 1, 8888)
    first += [capture(n, B, 2) for n in range(30)] + [capture(n, A, 3) for n in range(40)]
    yield first, []
    more = [capture(n, A, 2) for n in range(450, 700)] + [capture(n, B, 3) for n in range(300)]
    more += urls(200, 2) + urls(300, 3, 9999) + [capture(3, B)]
    more += [capture(n, A, 1, evidence=Evidence.REVISIT) for n in range(20)]
    more += [capture(n, A, 1, evidence=Evidence.NAMED, container="", offset=-1)
             for n in range(10, 60)]  # fmt: skip
    yield more, []
    yield [capture(n, A, 1, size=9) for n in range(200, 250)] + urls(200, 4), ["/warcs/1.warc.gz"]


@pytest.mark.parametrize("settings", [Settings(), Settings(by_url=True, keep="latest")])
def test_tasks_that_run_again_change_nothing(
    tmp_path: Path, addresses: Callable[[], str], settings: Settings
) -> None:
    one = Bench(tmp_path / "one", addresses(), settings)
    many = Bench(tmp_path / "many", addresses(), settings)
    for captures, dropped in loads():
        files = [IndexedContainer(f"/warcs/{day}.warc.gz", 1, "aa", 1) for day in range(1, 5)]
        outcomes = [
            bench.load(captures, files, dropped, cluster=cluster)
            for bench, cluster in ((one, None), (many, Twice()))
        ]
        assert outcomes[0] == outcomes[1]
        assert tables(one.engine) == tables(many.engine)
        with many.open() as engine:
            assert engine.check() == []


def test_an_executor_without_the_lease_writes_nothing(
    tmp_path: Path, addresses: Callable[[], str]
) -> None:
    bench = Bench(tmp_path / "one", addresses())
    bench.load([capture(n, A) for n in range(5)])
    before = tables(bench.engine)
    with closing(opened(bench.engine)) as session:
        written = About(session).state().written + 10
    load = SharedLoad(Address.parse(bench.engine), bench.settings, written, False, "another's")
    runs = bench.stage([capture(n, B, 2) for n in range(50)])
    entries = [staged for run in runs for chunk in read_run(run) for staged in chunk]
    with pytest.raises(DedupError, match="has ended"):
        list(executor_load._fill(load, entries))
    plan = list(executor_load._plan(load, entries))
    with pytest.raises(DedupError, match="has ended"):
        list(executor_load._store(load, iter(plan)))
    with pytest.raises(IndexUnavailable, match=r"nothing was changed.*--resume"):
        executor_load.check_executors(Here(), load.address, "another's")
    assert tables(bench.engine) == before


class Usurped(Here):
    """A cluster whose driver loses its lease when planned writes are about to be executed."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address

    def kept_packed(self, work: Any, tasks: Any) -> Iterator[Any]:
        remove = "DELETE FROM KS.about WHERE name = 'lease' IF EXISTS"
        for kept in super().kept_packed(work, tasks):
            with closing(opened(self._address)) as session:
                session.execute(Statement(remove, Use.CONDITIONAL))
            yield kept


def test_executors_stop_when_their_driver_has_lost_the_lease(
    tmp_path: Path, addresses: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path / "one", addresses())
    monkeypatch.setattr(metadata, "sleep", lambda seconds: None)
    bench.load([capture(n, A) for n in range(20)])
    more = [capture(n, B, 2) for n in range(300)]
    with pytest.raises(IndexUnavailable, match="belongs has ended; to finish it, run the same"):
        bench.load(more, cluster=Usurped(bench.engine))
    assert len(bench.held()) == 20
    bench.load(more, cluster=Here())
    assert bench.counts().captures == len(bench.held()) == 320


class Failing(Twice):
    """A cluster that loses its tasks while planned writes are executed."""

    def kept_packed(self, work: Any, tasks: Any) -> Iterator[Any]:
        for kept in super().kept_packed(work, tasks):
            yield kept
            raise DedupError("no executors are left")


def test_who_takes_over_waits_for_lost_executors(
    tmp_path: Path, addresses: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may write until they notice; the load is then repeated, and everything is counted."""
    one, many = (Bench(tmp_path / name, addresses()) for name in ("one", "many"))
    slow = replace(Address.parse(many.engine), timeout=45.0)
    lost = Bench(tmp_path / "lost", str(slow))
    waits: list[float] = []
    monkeypatch.setattr(metadata, "sleep", waits.append)
    first, more = [capture(n, A) for n in range(400)], [capture(n, B, 2) for n in range(300, 600)]
    for bench in (one, many):
        bench.load(first)
    with pytest.raises(IndexUnavailable, match=r"no executors are left; .*again with --resume"):
        lost.load(more, cluster=Failing())
    assert len(many.held()) > 400
    assert waits == []
    one.load(more)
    assert waits == []
    many.load(more)
    assert sum(waits) == executors_end(slow) > executors_end(Address.parse(many.engine))
    waits.clear()
    assert tables(many.engine) == tables(one.engine)
    many.load(more, cluster=Twice())
    assert waits == []


def test_how_long_who_takes_over_still_waits_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "sleep", lambda seconds: None)
    seen: list[ProgressUpdate] = []
    held = {metadata.EXECUTORS: 4, "loading": 1 << 60}
    removed: list[tuple[str, int]] = []
    rows = SimpleNamespace(get=held.get, remove=lambda *row: removed.append(row))
    checked: list[None] = []
    lease = SimpleNamespace(check=lambda: checked.append(None))
    metadata.await_executors(rows, lease, seen.append)  # type: ignore[arg-type]
    assert [(one.phase, one.part) for one in seen] == [
        ("waiting for executors of an interrupted load", part) for part in (0, 0.25, 0.5, 0.75)
    ]
    assert checked == [None] and removed == [(metadata.EXECUTORS, (1 << 60) + 1)]


class FailingFirst(Here):
    """A cluster that is lost when a first load was written."""

    def packed_rows(self, work: Any, tasks: Any) -> Iterator[Any]:
        yield from super().packed_rows(work, tasks)
        raise DedupError("no executors are left")


def test_who_has_lost_the_lease_while_waiting_writes_nothing(
    tmp_path: Path, addresses: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may have finished the first load, which would be removed as unfinished."""
    where = addresses()
    lost, other = (Bench(tmp_path / name, where) for name in ("lost", "other"))
    with pytest.raises(IndexUnavailable):
        lost.load([capture(1, A)], cluster=FailingFirst())

    def outlived(seconds: float) -> None:
        """The lease ends while its process does not run, and another process loads."""
        monkeypatch.setattr(metadata, "sleep", lambda seconds: None)
        mine.__exit__()
        other.load([capture(2, A)])
        mine._renewed -= 2 * metadata.LEASE

    class Noted(metadata.Lease):
        def __enter__(self) -> metadata.Lease:
            nonlocal mine
            mine = mine or self
            return super().__enter__()

    mine: metadata.Lease | None = None
    monkeypatch.setattr(metadata, "sleep", outlived)
    monkeypatch.setattr("dedupindex.index.engines.cassandra.cassandra_engine.Lease", Noted)
    with pytest.raises(IndexUnavailable, match="the right to write to .* was lost"):
        lost.load([capture(3, A)])
    monkeypatch.undo()
    assert len(other.held()) == 1


def test_damage_that_an_executor_finds_stays_what_it_is() -> None:
    with pytest.raises(Damaged), executor_load._resumable():
        raise Damaged("a cell is damaged")


def test_executors_are_not_used_where_they_may_read_too_little(
    tmp_path: Path, addresses: Callable[[], str]
) -> None:
    where = addresses()
    weak = where + ("&" if "?" in where else "?") + "consistency=ONE"
    bench = Bench(tmp_path / "one", weak)
    bench.load([capture(1, A)], cluster=None)
    bench.load([capture(2, A)], cluster=SimpleNamespace())  # type: ignore[arg-type]
    assert len(bench.held()) == 2


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(1, 60)), max_size=12),
    st.integers(1, 40), st.integers(1, 50),
)  # fmt: skip
def test_shares_have_whole_digests(
    tmp_path_factory: pytest.TempPathFactory, counts: list[tuple[int, int]], step: int, most: int
) -> None:
    entries = sorted(
        b"\1" + sha1(number).raw + b"%03d" % n for number, count in counts for n in range(count)
    )
    batches = [entries[at : at + step] for at in range(0, len(entries), step)]
    scratch = tmp_path_factory.mktemp("runs")
    large = RunWriter(scratch, "large")
    shares = [
        part
        for held in whole_digests(iter(batches), large)
        for part in executor_load._parts(held, most)
    ]
    large.flush()
    alone = [one for batch in merge_files(large.paths, scratch) for one in batch]
    assert sorted([*alone, *(one for share in shares for one in share)]) == entries
    groups = [{one[: DIGEST_KEY[1]] for one in part} for part in (alone, *shares)]
    assert sum(map(len, groups)) == len(set().union(*groups))
    assert all(shares)


def test_small_batches_are_one_task() -> None:
    batches = [[b"%d" % n] * n for n in (1, 2, 5, 0, 1, 2, 1, 1)]
    tasks = list(together(batches, 3))
    assert [len(task) for task in tasks] == [3, 5, 3, 2]
    assert [one for task in tasks for one in task] == [one for batch in batches for one in batch]


# --- with Spark -----------------------------------------------------------------------------------


def loaded(*words: object, engine: str) -> dict[str, Any]:
    """The report of a load by this machine."""
    status, out, err = ended("index", *WORDS, "--engine", engine, "--json", *words)
    assert status in (0, 7), err
    return dict(json.loads(out))


def held(directory: Path) -> tuple[Any, ...]:
    """What an index has, with the names of containers in place of their numbers."""
    with closing(open_index(directory)) as engine, engine.view() as view:
        assert engine.check() == []
        assert engine.ledger_gap() == ""
        ledger = sorted(view.ledger())
        return (
            sorted(map(repr, view.captures())), sorted(map(repr, view.containers())), len(ledger),
            view.counts(),
        )  # fmt: skip


def report_of(report: dict[str, Any]) -> dict[str, Any]:
    return {name: report[name] for name in ("added", "replaced", "unchanged", "records", "refused")}


def rows(start: int, end: int, day: int) -> bytes:
    line = "- 202611{:02d}091417 http://a.test/{} image/png 200 {} - - 5 {} w.warc.gz\n"
    digests = [base64.b32encode(sha1(at // 2).raw).decode() for at in range(start, end)]
    lines = [
        line.format(day, at, one, at) for at, one in zip(range(start, end), digests, strict=True)
    ]
    return "".join([" CDX N b a m s k r M S V g\n", *lines]).encode()


WORDS = ("--whitelist", "--mime", ".*")


def test_an_index_from_a_store_is_the_same(
    tmp_path: Path, collection: Path, buckets: Callable[[], Bucket],
    addresses: Callable[[], str],
) -> None:  # fmt: skip
    """A first load, and one that adds; with revisits, and rows that repeat records."""
    bucket = buckets()
    for path in collection.iterdir():
        bucket.put(f"crawl/{path.name}", path.read_bytes())
    bucket.put("more/x.cdx", rows(0, 3000, 2))
    here, there = addresses(), addresses()
    both = f"{bucket.url}/more/", f"{bucket.url}/crawl/"
    with spark_session(tmp_path) as own:  # in the environment of the store
        for words in ([f"{bucket.url}/crawl/"], ["--add", *both]):
            one = loaded(*words, tmp_path / "here", engine=here)
            many = own.run("index", *WORDS, "--engine", there, *words, tmp_path / "there")
            assert report_of(many) == report_of(one)
            assert held(tmp_path / "there") == held(tmp_path / "here")


# An executor's: the half of some writes, then the death of whom the file ``kill`` says, once.
KILLING = """
import os, signal, sys
from pathlib import Path

if "pyspark.daemon" in sys.orig_argv:
    from dedupindex.index.engines.cassandra import cassandra_loader

    executor, kill = os.getppid(), Path(__file__).with_name("kill")
    write_all, died = cassandra_loader.write_all, kill.with_name("killed")

    def killing(session, writes, before):
        half = len(writes) // 2
        write_all(session, writes[:half], before)
        try:
            kill.rename(died)
        except FileNotFoundError:  # or another task was first
            pass
        else:
            driver = int(died.read_text())
            os.kill(driver or executor, signal.SIGKILL)
            if not driver:
                os.kill(os.getpid(), signal.SIGKILL)
        write_all(session, writes[half:], before)

    cassandra_loader.write_all = killing
"""


def test_executors_and_then_the_driver_are_killed_while_they_load(
    tmp_path: Path, addresses: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is lost, and nothing is counted twice; who takes over waits for the executors."""
    sources = [tmp_path / f"{name}.cdx" for name in "abc"]
    for at, source in enumerate(sources):
        source.write_bytes(rows(2_000 * at, 2_000 * at + 4_000, 3 - at))
    here, there = addresses(), addresses()
    kill = tmp_path / "kill"
    (tmp_path / "sitecustomize.py").write_text(KILLING)
    with spark_session(tmp_path) as own:
        for source, words in zip(sources[:2], ([], ["--add"]), strict=True):
            one = loaded(*words, source, tmp_path / "here", engine=here)
            kill.write_text("0")
            engine = ("--engine", there)
            many = own.run("index", *WORDS, *engine, *words, source, tmp_path / "there")
            assert not kill.exists()
            assert report_of(many) == report_of(one)
            assert held(tmp_path / "there") == held(tmp_path / "here")
        kill.write_text(str(own.pid))
        with pytest.raises(AssertionError):  # it does not answer
            own.run("index", *WORDS, "--engine", there, "--add", sources[2], tmp_path / "there")
        assert not kill.exists()
    await_end(own.pid)
    waits: list[float] = []
    monkeypatch.setattr(metadata, "sleep", waits.append)
    loaded("--add", sources[2], tmp_path / "here", engine=here)
    loaded("--add", "--resume", sources[2], tmp_path / "there", engine=there)
    assert sum(waits) == executors_end(Address.parse(there))
    assert held(tmp_path / "there") == held(tmp_path / "here")


def await_end(session: int) -> None:
    """Return when all processes of a session have ended."""
    end = time.monotonic() + DEADLINE
    while any(
        _session(pid) == session and _words(pid)
        for pid in map(int, filter(str.isdecimal, os.listdir("/proc")))
    ):
        assert time.monotonic() < end
        time.sleep(0.1)
