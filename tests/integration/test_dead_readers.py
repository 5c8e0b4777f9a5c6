"""What processes that were killed while they read leave behind does not make files grow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import lmdb
import pytest

from dedupindex.crawls import lifecycle
from dedupindex.crawls.crawl_captures import add
from dedupindex.crawls.stores import make_store
from dedupindex.index import open_index
from dedupindex.index.identity import Settings
from dedupindex.indexer.admission import admission_filter
from tests.conftest import MakeIndex
from tests.integration.test_server_live import serving, until
from tests.support.captures import capture
from tests.support.paths import ROOT

BIN = ROOT / "bin"

READER = """
import os, signal, sys
from contextlib import closing
from pathlib import Path
from dedupindex.crawls.stores import make_store
from dedupindex.index import open_index
index = Path(sys.argv[1])
with open_index(index).view() as view, make_store(index).reading() as reading:
    view.counts(), reading.version()
    os.kill(os.getpid(), signal.SIGKILL)
"""

IDLE = """
import sys
from pathlib import Path
from dedupindex.crawls.stores import make_store
from dedupindex.index import open_index
index = Path(sys.argv[1])
opened = open_index(index), make_store(index)
print("open", flush=True)
sys.stdin.read()
"""


@contextmanager
def open_elsewhere(index: Path) -> Iterator[None]:
    """A process that has the files open and reads nothing: LMDB keeps the table of readers."""
    with subprocess.Popen(
        [sys.executable, "-c", IDLE, index], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"open\n"
        yield
        process.communicate()


def kill_a_reader(index: Path) -> int:
    """Kill a process, as a worker may be killed, in read transactions; its number."""
    with subprocess.Popen([sys.executable, "-c", READER, index]) as process:
        assert process.wait(60) == -signal.SIGKILL
    return process.pid


def readers(path: Path) -> str:
    """The table of readers of a file."""
    environment = lmdb.open(os.fspath(path), subdir=False, readonly=True, max_dbs=16)
    with closing(environment):
        return str(environment.readers())


def commit(index: Path, name: str, first: int, count: int) -> None:
    """A crawl that has reported captures, and is committed."""
    settings = Settings()
    captures = [capture(number) for number in range(first, first + count)]
    with closing(make_store(index)) as store:
        store.write(lambda writing: lifecycle.begin(writing, name))
        for at in range(0, count, 100):  # as crawlers do; each rewrites what it touches
            some = captures[at : at + 100]
            store.write(
                lambda writing, some=some: add(
                    writing, writing.crawl(name), some, settings, admission_filter(settings)
                )
            )
        store.write(lambda writing: lifecycle.commit(writing, name))


def sizes(index: Path) -> list[int]:
    with closing(open_index(index)) as engine:
        data = index / f"data-{engine.identity.generation}.mdb"
    return [path.stat().st_size for path in (data, index / "crawls.mdb")]


@pytest.fixture
def index(make_index: MakeIndex) -> Path:
    return make_index(capture(number) for number in range(6000))


def test_files_do_not_grow_behind_dead_readers(index: Path) -> None:
    commit(index, "first", 6000, 300)
    grown = []
    with open_elsewhere(index):
        for number in range(8):
            if number == 2:
                kill_a_reader(index)
            commit(index, f"crawl-{number}", 7000 + 300 * number, 300)
            subprocess.run([BIN / "index", "--merge", index], check=True, capture_output=True)
            grown.append(sizes(index))
    data, crawls = ((now - before) / before for before, now in zip(grown[2], grown[7], strict=True))
    # In five merges come 25 percent; where nothing is used again, most pages are written anew in
    # each, and the crawls' file has all that five crawls wrote twice.
    assert data < 0.6, grown
    assert crawls < 1.2, grown


def test_a_server_clears_dead_readers(index: Path) -> None:
    commit(index, "a", 9000, 10)
    files = [index / "data-1.mdb", index / "crawls.mdb"]
    with serving(index, "--workers", "1"):
        dead = str(kill_a_reader(index))
        assert until(lambda: not any(dead in readers(path) for path in files))
