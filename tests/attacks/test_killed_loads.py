"""First loads, adds, copies and merges that are killed at random times and run again.

The whole process group of the command gets SIGKILL. The same command is then run to its end: every
capture is answered, the index is intact, and it holds the same as one that was not disturbed.
Tests that kill at chosen steps are in `test_pipeline` and `peers/test_cassandra_commands`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random

import pytest

from dedupindex.cli.maintenance import UNFINISHED
from dedupindex.crawls import lifecycle
from dedupindex.crawls.crawl_captures import add
from dedupindex.crawls.store import Writing
from dedupindex.crawls.stores import make_store
from dedupindex.index import home_of, open_index
from dedupindex.index.address import is_cluster
from dedupindex.index.identity import FILE, Settings, read_identity
from dedupindex.indexer.admission import admission_filter
from dedupindex.lookup.decide import Match, Query, find
from tests.peers.cassandra import Keyspaces
from tests.support.captures import capture, sha1

COMMAND = Path(__file__).resolve().parents[2] / "bin" / "index"
FIRST, MORE = 3000, 2000  # captures of the first file, and of the second
CRAWLED = range(9000, 9300)  # of a crawl
NewIndex = Callable[[], str]


@pytest.fixture(params=["lmdb", "whoosh", pytest.param("cassandra", marks=pytest.mark.peer)])
def new_index(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[NewIndex]:
    """Give a function that returns new places for indexes: directories or addresses."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("DEDUPINDEX_INDEX_JOBS", "2")
    if request.param == "cassandra":
        keyspaces: Keyspaces = request.getfixturevalue("keyspaces")
        with keyspaces.some() as address:
            yield address
        return
    monkeypatch.setenv("DEDUPINDEX_INDEX_ENGINE", request.param)
    names = iter(range(1000))
    yield lambda: str(tmp_path / f"index-{next(names)}")


@pytest.fixture
def sources(tmp_path: Path) -> list[Path]:
    """Two files of captures, each of a digest of its own, in twenty containers."""
    return [rows(tmp_path / "a.cdx", 0, FIRST), rows(tmp_path / "b.cdx", FIRST, FIRST + MORE)]


def rows(path: Path, first: int, last: int) -> Path:
    lines = [
        f"com,example)/{n} 20261101091417 {url_of(n)} image/png 200 {sha1(n).raw.hex()} - - "
        f"{1000 + n} {n * 100} {n % 20}.warc.gz"
        for n in range(first, last)
    ]
    path.write_text("\n".join([" CDX N b a m s k r M S V g", *lines, ""]))
    return path


def url_of(number: int) -> str:
    return f"http://example.com/{number}"


def run(arguments: list[str]) -> float:
    """Run a command to its end; return the seconds that it took."""
    start = time.monotonic()
    result = subprocess.run([COMMAND, *arguments], capture_output=True, text=True)
    assert result.returncode == 0, f"{arguments}: {result.returncode} {result.stderr}"
    return time.monotonic() - start


def kill(arguments: list[str], seconds: float) -> bool:
    """Run a command and kill all its processes after `seconds`; return whether it succeeded."""
    with subprocess.Popen(
        [COMMAND, *arguments],
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        try:
            process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()  # until nobody of the group has the pipe, and so the locks
    return process.returncode == 0


def run_with_kills(arguments: list[str], seconds: float, chance: Random) -> None:
    """Run a command that takes `seconds`: kill it a few times, then run it to its end."""
    for _ in range(chance.randint(1, 3)):
        if kill(arguments, seconds * chance.uniform(0.3, 1.0)):  # before that it has hardly begun
            return
    if not is_finished_copy(arguments):
        run(arguments)


def is_finished_copy(arguments: list[str]) -> bool:
    """Whether a copy was complete when it was killed.

    The same command refuses to replace such a copy.
    """
    if arguments[0] != "--copy" or not (home_directory(arguments[1]) / FILE).exists():
        return False
    return (
        read_identity(home_directory(arguments[1])).generation > 0
        and not (home_directory(arguments[1]) / UNFINISHED).exists()
    )


def home_directory(index: str) -> Path:
    """Return the directory of an index on this machine."""
    return home_of(index) if is_cluster(index) else Path(index)


def contents(index: str, numbers: list[range]) -> list[object]:
    """Check an index and the answers to all lookups, and return what it holds."""
    checked = subprocess.run([COMMAND, "--check", "--json", index], capture_output=True, text=True)
    assert json.loads(checked.stdout)["problems"] == [], checked.stdout
    with closing(open_index(home_directory(index))) as engine, engine.view() as view:
        every_number = [number for part in numbers for number in part]
        view.prefetch(map(sha1, every_number))
        for number in every_number:
            url = url_of(number).encode()
            answer = find(view, engine.identity.settings, Query(sha1(number), url))
            assert answer is not None and answer.match is Match.EXACT_URL
            assert answer.original.container.endswith(f"{number % 20}.warc.gz")
        counts, containers = view.counts(), [container.name for container in view.containers()]
        return [sorted(view.captures()), counts, containers]


def leftovers(index: str) -> set[str]:
    """Return the names of files in an index's directory that are not data."""
    data = ("data-", "crawls.mdb", "lock", "index.json", "whoosh", "ledger")
    return {path.name for path in home_directory(index).iterdir() if not path.name.startswith(data)}


def test_first_loads_and_adds(
    new_index: NewIndex, sources: list[Path], chance: Random, effort: int
) -> None:
    whole = new_index()
    seconds = [run([str(sources[0]), whole]), run(["--add", str(sources[1]), whole])]
    everything = [range(FIRST + MORE)]
    expected = contents(whole, everything)
    for _ in range(effort):
        index = new_index()
        run_with_kills([str(sources[0]), index], seconds[0], chance)
        run_with_kills(["--add", str(sources[1]), index], seconds[1], chance)
        assert contents(index, everything) == expected
        assert leftovers(index) == set()


def test_copies(
    new_index: NewIndex, sources: list[Path], chance: Random, effort: int, tmp_path: Path
) -> None:
    """To the same engine and to another one; from a cluster and to one."""
    source = new_index()
    run([str(sources[0]), source])
    expected = contents(source, [range(FIRST)])
    engine = os.environ.get("DEDUPINDEX_INDEX_ENGINE", "cluster")
    other = ["--engine", {"lmdb": "whoosh"}.get(engine, "lmdb")]
    for number in range(effort):
        copy, converted = str(tmp_path / f"one-{number}"), str(tmp_path / f"two-{number}")
        pairs = [(["--copy", copy, source], copy)] if engine != "cluster" else []
        pairs.append((["--copy", converted, source, *other], converted))
        if engine == "cluster":
            back = new_index()
            pairs.append((["--copy", back, converted], back))
        for arguments, target in pairs:
            seconds = copy_seconds(arguments, target, new_index, tmp_path / f"timed-{number}")
            run_with_kills(arguments, seconds, chance)
            assert contents(target, [range(FIRST)]) == expected
            assert leftovers(target) == set()


def copy_seconds(arguments: list[str], target: str, new_index: NewIndex, elsewhere: Path) -> float:
    """Return the seconds that an undisturbed copy to a place like `target` takes."""
    index = new_index() if is_cluster(target) else str(elsewhere / Path(target).name)
    return run([index if word == target else word for word in arguments])


def commit_crawl(index: str) -> None:
    """Commit a crawl."""

    def report(writing: Writing) -> None:
        items = [capture(n, url_of(n).encode(), container=f"{n % 20}.warc.gz") for n in CRAWLED]
        add(writing, writing.crawl("weekly"), items, Settings(), admission_filter(Settings()))

    with closing(make_store(Path(index))) as store:
        store.write(partial(lifecycle.begin, name="weekly"))
        store.write(report)
        store.write(partial(lifecycle.commit, name="weekly"))


@pytest.mark.parametrize("new_index", ["lmdb", "whoosh"], indirect=True)
def test_merges(new_index: NewIndex, sources: list[Path], chance: Random, effort: int) -> None:
    """Of crawls in files; on a cluster they are not merged."""
    everything = [range(FIRST), CRAWLED]
    indexes = [new_index() for _ in range(effort + 1)]
    for index in indexes:
        run([str(sources[0]), index])
        commit_crawl(index)
    seconds = run(["--merge", indexes[0]])
    expected = contents(indexes[0], everything)
    for index in indexes[1:]:
        run_with_kills(["--merge", index], seconds, chance)
        assert contents(index, everything) == expected
        assert leftovers(index) == set()
