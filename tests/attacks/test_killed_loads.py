"""First loads, adds, copies and merges that are killed at random moments, and run again as typed.

The whole process group of the shipped command gets SIGKILL. The same command is then run to its
end: every capture is answered, the index is sound, and it holds what an undisturbed one holds.
What is killed at chosen steps is in `test_pipeline` and `peers/test_cassandra_commands`.
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
    """Gives places for indexes: directories, or addresses on a cluster."""
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


def run(words: list[str]) -> float:
    """Run a command to its end; seconds that it took."""
    start = time.monotonic()
    done = subprocess.run([COMMAND, *words], capture_output=True, text=True)
    assert done.returncode == 0, f"{words}: {done.returncode} {done.stderr}"
    return time.monotonic() - start


def kill(words: list[str], seconds: float) -> bool:
    """Run a command, and kill all its processes after so many seconds; whether it was done."""
    with subprocess.Popen(
        [COMMAND, *words], start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        try:
            process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()  # until nobody of the group has the pipe, and so the locks
    return process.returncode == 0


def disturbed(words: list[str], seconds: float, chance: Random) -> None:
    """Run a command that takes so long, killed a few times, then to its end."""
    for _ in range(chance.randint(1, 3)):
        if kill(words, seconds * chance.uniform(0.3, 1.0)):  # before that it has hardly begun
            return
    if not finished(words):
        run(words)


def finished(words: list[str]) -> bool:
    """Whether a copy was killed when all was done, while its process was about to end.

    To such a copy the same command refuses to copy again.
    """
    if words[0] != "--copy" or not (home(words[1]) / FILE).exists():
        return False
    return (
        read_identity(home(words[1])).generation > 0 and not (home(words[1]) / UNFINISHED).exists()
    )


def home(where: str) -> Path:
    """The directory that an index has here."""
    return home_of(where) if is_cluster(where) else Path(where)


def held(where: str, numbers: list[range]) -> list[object]:
    """What an index holds, when all of it is answered and `--check` finds nothing."""
    done = subprocess.run([COMMAND, "--check", "--json", where], capture_output=True, text=True)
    assert json.loads(done.stdout)["problems"] == [], done.stdout
    with closing(open_index(home(where))) as engine, engine.view() as view:
        wanted = [number for some in numbers for number in some]
        view.prefetch(map(sha1, wanted))
        for number in wanted:
            url = url_of(number).encode()
            answer = find(view, engine.identity.settings, Query(sha1(number), url))
            assert answer is not None and answer.match is Match.EXACT_URL
            assert answer.original.container.endswith(f"{number % 20}.warc.gz")
        counts, containers = view.counts(), [one.name for one in view.containers()]
        return [sorted(view.captures()), counts, containers]


def leftovers(where: str) -> set[str]:
    """What lies in an index's directory beside its data."""
    data = ("data-", "crawls.mdb", "lock", "index.json", "whoosh", "ledger")
    return {path.name for path in home(where).iterdir() if not path.name.startswith(data)}


def test_first_loads_and_adds(
    new_index: NewIndex, sources: list[Path], chance: Random, effort: int
) -> None:
    whole = new_index()
    seconds = [run([str(sources[0]), whole]), run(["--add", str(sources[1]), whole])]
    everything = [range(FIRST + MORE)]
    expected = held(whole, everything)
    for _ in range(effort):
        where = new_index()
        disturbed([str(sources[0]), where], seconds[0], chance)
        disturbed(["--add", str(sources[1]), where], seconds[1], chance)
        assert held(where, everything) == expected
        assert leftovers(where) == set()


def test_copies(
    new_index: NewIndex, sources: list[Path], chance: Random, effort: int, tmp_path: Path
) -> None:
    """To the same engine and to another one; from a cluster and to one."""
    source = new_index()
    run([str(sources[0]), source])
    expected = held(source, [range(FIRST)])
    engine = os.environ.get("DEDUPINDEX_INDEX_ENGINE", "cluster")
    other = ["--engine", {"lmdb": "whoosh"}.get(engine, "lmdb")]
    for number in range(effort):
        one, two = str(tmp_path / f"one-{number}"), str(tmp_path / f"two-{number}")
        pairs = [(["--copy", one, source], one)] if engine != "cluster" else []
        pairs.append((["--copy", two, source, *other], two))
        if engine == "cluster":
            three = new_index()
            pairs.append((["--copy", three, two], three))
        for words, where in pairs:
            seconds = timed(words, where, new_index, tmp_path / f"timed-{number}")
            disturbed(words, seconds, chance)
            assert held(where, [range(FIRST)]) == expected
            assert leftovers(where) == set()


def timed(words: list[str], where: str, new_index: NewIndex, elsewhere: Path) -> float:
    """How long an undisturbed copy takes, to a place like `where`."""
    like = new_index() if is_cluster(where) else str(elsewhere / Path(where).name)
    return run([like if word == where else word for word in words])


def crawled(where: str) -> None:
    """Commit a crawl."""

    def report(writing: Writing) -> None:
        items = [capture(n, url_of(n).encode(), container=f"{n % 20}.warc.gz") for n in CRAWLED]
        add(writing, writing.crawl("weekly"), items, Settings(), admission_filter(Settings()))

    with closing(make_store(Path(where))) as store:
        store.write(partial(lifecycle.begin, name="weekly"))
        store.write(report)
        store.write(partial(lifecycle.commit, name="weekly"))


@pytest.mark.parametrize("new_index", ["lmdb", "whoosh"], indirect=True)
def test_merges(new_index: NewIndex, sources: list[Path], chance: Random, effort: int) -> None:
    """Of crawls in files; on a cluster they are not merged."""
    everything = [range(FIRST), CRAWLED]
    where = [new_index() for _ in range(effort + 1)]
    for one in where:
        run([str(sources[0]), one])
        crawled(one)
    seconds = run(["--merge", where[0]])
    expected = held(where[0], everything)
    for one in where[1:]:
        disturbed(["--merge", one], seconds, chance)
        assert held(one, everything) == expected
        assert leftovers(one) == set()
