"""Three nodes, three copies of everything: one is killed while others look up and write."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dedupindex.digest import Digest
from dedupindex.errors import IndexUnavailable
from dedupindex.index import adopt, open_index
from dedupindex.index.address import Address
from dedupindex.lookup import Query, find
from server.app import create_app
from server.config import Config
from server.live import LiveIndex
from tests.peers.cassandra import DEADLINE, Ring, ring
from tests.peers.test_cassandra_commands import JSON, asked, cdx, label

pytestmark = pytest.mark.peer
FIRST, MORE = 1000, 10_000  # captures of the first load, and of the second


@pytest.fixture(scope="module")
def nodes() -> Iterator[Ring]:
    with ring(3) as found:
        yield found


def command(name: str, *words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "dedupindex", name, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def done(process: subprocess.Popen[str]) -> str:
    """What a command says that ends well."""
    out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, err
    return out


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.01)


class Asking:
    """A thread that looks up without pause what was there before it began."""

    def __init__(self, index: Path) -> None:
        self.answers, self.outages = 0, 0
        self.wrong: list[str] = []
        self._index, self._end = index, threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        try:
            with closing(open_index(self._index)) as engine:
                while not self._end.is_set():
                    number = self.answers % FIRST
                    try:
                        with engine.view() as view:
                            query = Query(Digest.parse(f"sha1:{label(number)}"))
                            answer = find(view, engine.identity.settings, query)
                    except IndexUnavailable:
                        self.outages += 1
                        continue
                    self.answers += 1
                    if answer is None:
                        self.wrong.append(f"{number} is new")
        except Exception as error:
            self.wrong.append(repr(error))

    def finish(self) -> None:
        self._end.set()
        self._thread.join(DEADLINE)


def test_a_node_is_killed_while_others_look_up_and_write(nodes: Ring, tmp_path: Path) -> None:
    address = nodes.address("ring", timeout=12)
    index, quick = tmp_path / "index", tmp_path / "quick"
    done(command("index", cdx(tmp_path, 0, FIRST), index, "--engine", address))
    quick.mkdir()
    adopt(quick, Address.parse(f"{address}&driver=acsylla"))
    asking = [Asking(index), Asking(quick)]
    adding = command("index", "--add", cdx(tmp_path, FIRST, FIRST + MORE), index)
    try:
        first = min(range(FIRST, FIRST + MORE), key=lambda n: Digest.parse(f"sha1:{label(n)}"))
        with closing(open_index(quick)) as engine, engine.view() as view:
            until(
                lambda: (
                    bool(view.any(Digest.parse(f"sha1:{label(first)}"), 1)) or view._known.clear()
                )
            )  # type: ignore[attr-defined]
        nodes.nodes[2].kill()
        assert adding.poll() is None, "it was killed too late to be of any meaning"
        killed = [one.answers for one in asking]
        done(adding)
        until(
            lambda: all(
                one.answers > before + 50 for one, before in zip(asking, killed, strict=True)
            )
        )
    finally:
        adding.kill()
        adding.communicate()
        for one in asking:
            one.finish()
    assert [one.wrong for one in asking] == [[], []]
    assert sum(one.outages for one in asking) < 50
    found = json.loads(done(command("index", "--check", "--json", index)))
    assert found["ok"] and found["captures"] == FIRST + MORE

    # Two of three do not answer: nobody can tell.
    live = LiveIndex(index)
    live.refresh()
    web = create_app(Config(index), live).test_client()
    lookups = json.dumps({"lookups": [asked(n) for n in (0, FIRST, FIRST + MORE)]})
    assert web.post("/lookup", data=lookups, headers=JSON).status_code == 200
    nodes.nodes[1].kill()
    for number in (0, FIRST + MORE):
        assert web.get("/lookup", query_string=asked(number)).status_code == 503
    assert web.post("/lookup", data=lookups, headers=JSON).status_code == 503
    adding = command("index", "--add", cdx(tmp_path, 0, 10, "more"), index)
    assert adding.wait(DEADLINE) == IndexUnavailable.exit_status
    adding.communicate()

    # One comes back, which was away while most was written.
    nodes.nodes[2].start(alone=False)
    answer = web.post("/lookup", data=lookups, headers=JSON)
    end = time.monotonic() + DEADLINE
    while answer.status_code == 503 and time.monotonic() < end:
        answer = web.post("/lookup", data=lookups, headers=JSON)
    found = [one["duplicate"] for one in answer.get_json()["answers"]]
    assert found == [True, True, False]
    done(command("index", "--add", cdx(tmp_path, 0, 10, "more"), index))
    found = json.loads(done(command("index", "--check", "--json", index)))
    assert found["ok"] and found["captures"] == FIRST + MORE
