"""Fixtures are builders: each test makes the files and indexes that it needs."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from dedupindex.capture import Capture
from dedupindex.index import open_index
from dedupindex.index.engine import Load, retry
from dedupindex.index.format.cells import ContainerRef, encode
from dedupindex.index.identity import Identity, Settings
from dedupindex.index.load.runs import RunWriter
from dedupindex.runtime import workers
from tests.support.budgets import FULL
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from tests.peers.cassandra import Keyspaces, Ring
    from tests.peers.spark import Session
    from tests.support.stores import Bucket

settings.register_profile(
    "ours",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,  # the same in each run, so more of them would only take longer
    max_examples=FULL // 2,
)
settings.register_profile(
    "thorough",
    settings.get_profile("ours"),
    derandomize=False,
    print_blob=True,
    max_examples=10 * FULL,
)
settings.load_profile("ours")

MakeIndex = Callable[..., Path]
On = Callable[[str], AbstractContextManager[Callable[[], str]]]
_ended = count(1)  # tests that have ended in this process


def need(command: str, *, found: bool) -> None:
    """Skip in one plain sentence where a program is missing; in CI that is a failure."""
    if found:
        return
    sentence = f"{command} is not installed here, so what needs it was not tested"
    if os.environ.get("CI") == "true":
        pytest.fail(sentence)
    pytest.skip(sentence)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("attacks")
    group.addoption(
        "--effort", type=int, default=1, help="rounds of attacks and faults, times this"
    )
    group.addoption("--seed", type=int, default=0, help="seed of attack tests")


@pytest.fixture(autouse=True)
def server_log() -> Iterator[None]:
    """Put the server's logger back: ``serve`` in this process configures it."""
    logger = logging.getLogger("dedupindex.server")
    handlers, level, propagates = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.propagate = handlers, propagates
    logger.setLevel(level)


_forked_with_threads: list[str] = []


def _check_fork() -> None:
    if workers.count_threads() == 1:
        return
    stack = traceback.extract_stack()[:-1]
    tops = (Path(frame.filename).relative_to(ROOT).parts[0] for frame in reversed(stack)
            if frame.filename.startswith(f"{ROOT}/"))  # fmt: skip
    if next((top for top in tops if top in ("dedupindex", "server", "tests")), "tests") != "tests":
        _forked_with_threads.append("".join(traceback.format_list(stack[-8:])))


os.register_at_fork(before=_check_fork)  # preexec_fn of subprocess is a fork, too
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy starts threads that never end


_most_threads = [1]  # before the last test


def _earlier_threads() -> int:
    """Count the threads beside the main one, without some that are about to end."""
    for _ in range(50):
        if (threads := workers.count_threads()) <= _most_threads[0]:
            break
        time.sleep(0.001)
    _most_threads[0] = threads
    return threads - 1


@pytest.fixture(autouse=True)
def forks_of_one_thread() -> Iterator[None]:
    """Check that the product never forks this process while the test has other threads.

    Threads of pytest-xdist and of earlier tests do not count: for them, too, each pool of worker
    processes would be spawned, which takes long.
    """
    count, others = workers.count_threads, _earlier_threads()
    _forked_with_threads.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "count_threads", lambda: max(count() - others, 1))
        yield
    assert not _forked_with_threads, _forked_with_threads[0]


@pytest.fixture(autouse=True)
def end_fsspec() -> Iterator[None]:
    """End the thread of fsspec after a test, so that later ones can fork."""
    yield
    if "fsspec.asyn" not in sys.modules:
        return
    from fsspec import AbstractFileSystem, asyn

    if asyn.loop[0] is None:
        return
    classes = [AbstractFileSystem]
    for one in classes:
        one.clear_instance_cache()
        classes.extend(one.__subclasses__())
    gc.collect()  # their connections are closed, for which fsspec waits a tenth of a second only
    asyncio.run_coroutine_threadsafe(_tasks_end(), asyn.loop[0]).result()
    asyn.loop[0].call_soon_threadsafe(asyn.loop[0].stop)
    asyn.iothread[0].join()
    asyn.loop[0].close()
    asyn.loop[0] = asyn.iothread[0] = None


async def _tasks_end() -> None:
    """Return when the other tasks of this loop have ended, and what they called soon."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=20)
    await asyncio.sleep(0)


@pytest.fixture(scope="session")
def effort(request: pytest.FixtureRequest) -> int:
    """How many times as many rounds as usual a test of attacks or faults runs."""
    return int(request.config.getoption("--effort"))


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> Random:
    """The random numbers of an attack test: the same in every run with one ``--seed``."""
    name = request.node.nodeid.removesuffix(f"@{_group(request.node)}")
    return Random(f"{request.config.getoption('--seed')} {name}")


LONGEST = [
    "nodes", "peers/test_heritrix", "spark", "cassandra", "peers/test_executor_load",
    "peers/test_heritrix_connections", "peers/test_batch_docs", "benchmarks/test_benchmarks",
]  # fmt: skip
"""Groups of tests that start first, in this order; then other tests with peers, then the rest."""


def _group(item: pytest.Item) -> str:
    """The tests that one process runs: those of a file, or of what is started once for several.

    Tests that start several nodes of Cassandra are one group: two such would be too slow.
    """
    callspec = getattr(item, "callspec", None)
    parameters = callspec.params.values() if callspec else ()
    if "cassandra" in getattr(item, "fixturenames", ()) or "cassandra" in parameters:
        return "cassandra"
    if item.path.stem in ("test_cassandra_operations", "test_cassandra_ring"):
        return "nodes"
    for shared in ("spark", "demo_files"):
        if shared in getattr(item, "fixturenames", ()):
            return shared
    return item.path.relative_to(Path(__file__).parent).with_suffix("").as_posix()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group the tests for pytest-xdist, and put the groups that take longest first."""
    order: dict[str, tuple[int, bool]] = {}
    for item in items:
        group = _group(item)
        item.add_marker(pytest.mark.xdist_group(group))
        place = LONGEST.index(group) if group in LONGEST else len(LONGEST)
        order[item.nodeid] = place, item.get_closest_marker("peer") is None
    items.sort(key=lambda item: order[item.nodeid])


def pytest_collection_finish(session: pytest.Session) -> None:
    """Keep the garbage collector from scanning all modules and tests again and again.

    Fails if pytest-xdist ignores the groups, as with pytest 9.2: each process would start a cluster
    of its own, which doubles the time of a run and fails no test.
    """
    if session.config.getoption("loadgroup", False):
        assert all("@" in item.nodeid for item in session.items), "no groups: see pyproject.toml"
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def collect_garbage() -> Iterator[None]:
    """Close the files that tests left open: each maps a TiB of an address space of 128."""
    yield
    if next(_ended) % 10 == 0:
        gc.collect()


@pytest.fixture(scope="session")
def cassandra() -> Iterator[Ring]:
    """A cluster of one node, for all tests of this process."""
    from tests.peers.cassandra import PATIENCE, ring

    with ring(1, timeout=PATIENCE) as found:
        yield found


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """A session of Spark with two executors, for all tests of this process."""
    from tests.peers.spark import spark_session

    with spark_session(tmp_path_factory.mktemp("spark")) as found:
        yield found


@pytest.fixture(scope="module")
def buckets() -> Iterator[Callable[[], Bucket]]:
    """Makes empty buckets in a local S3 server."""
    from tests.support.stores import object_store

    with object_store() as bucket:
        yield bucket


@pytest.fixture(scope="session")
def demo_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``bin/demo`` leaves: examples of the docs are run on it."""
    out = tmp_path_factory.mktemp("demo") / "out"
    words = [ROOT / "bin" / "demo", "--out", out]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    return out


@pytest.fixture(scope="session")
def keyspaces(cassandra: Ring) -> Iterator[Keyspaces]:
    """Keyspaces of that cluster, each for one index."""
    from tests.peers.cassandra import Keyspaces

    with Keyspaces(cassandra) as found:
        yield found


ENGINES = ["lmdb", "whoosh", pytest.param("cassandra", marks=pytest.mark.peer)]
"""The engines of an index."""


@pytest.fixture(scope="session")
def on(request: pytest.FixtureRequest) -> On:
    """Of the name of an engine, what gives new indexes their engines: for a cluster addresses."""

    def on(engine: str) -> AbstractContextManager[Callable[[], str]]:
        if engine == "cassandra":
            keyspaces: Keyspaces = request.getfixturevalue("keyspaces")
            return keyspaces.some()
        return nullcontext(lambda: engine)

    return on


STORES = ["lmdb", pytest.param("cassandra", marks=pytest.mark.peer)]
"""What crawls that write are kept in."""


@pytest.fixture(params=STORES)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The engine of an index: lmdb, then a cluster, on which crawls are read anew every time."""
    if request.param == "lmdb":
        yield "lmdb"
        return
    keyspaces: Keyspaces = request.getfixturevalue("keyspaces")
    monkeypatch.setattr("dedupindex.crawls.stores.cassandra_crawl_registry.AGE", 0.0)
    with keyspaces.some() as address:
        yield address()


of_files = pytest.mark.parametrize("engine", ["lmdb"], indirect=True)
"""A test of what only crawls in a file do: they lie beside the index, and are merged into it."""


@pytest.fixture
def make_index(tmp_path: Path) -> MakeIndex:
    """Builds an index straight from captures: ``make_index(captures, settings, engine)``."""
    numbers = iter(range(1000))

    def make(
        captures: Iterable[Capture] = (),
        chosen: Settings | None = None,
        engine: str = "lmdb",
    ) -> Path:
        chosen = chosen or Settings()
        index = tmp_path / f"index-{next(numbers)}"
        index.mkdir()
        Identity(engine, chosen).write(index)
        places: dict[ContainerRef, int] = {}
        staged = []
        for capture in captures:
            place = ContainerRef(capture.container, capture.crawl)
            number = places.setdefault(place, len(places) + 1) if capture.container else 0
            key = chosen.keys().key_of(capture.digest, capture.url)
            staged.append(key + encode(capture, number, etag=chosen.etag))
            for digest in capture.also:
                key = chosen.keys().key_of(digest, capture.url)
                staged.append(key + encode(capture, number, etag=chosen.etag, also=True))
        writer = RunWriter(tmp_path, index.name)
        writer.extend(staged)
        writer.flush()
        # A node that others keep busy may be given up for a moment.
        with closing(retry(partial(open_index, index, write=True))) as opened:
            opened.load(Load(writer.paths, [(n, place) for place, n in places.items()], []))
        return index

    return make
