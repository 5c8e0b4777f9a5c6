"""Crawls against real servers with several workers: merged while asked, killed while written to."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from contextlib import closing, suppress
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import pytest

from dedupindex.crawls import lifecycle
from dedupindex.crawls.crawl_captures import add
from dedupindex.crawls.stores.lmdb_crawl_store import LmdbStore
from dedupindex.errors import DedupError
from dedupindex.index import open_index
from dedupindex.index.identity import Settings
from server import logs
from server.background_merge import EVERY, LONGEST, BackgroundMerge
from server.live_index import LiveIndex
from tests.conftest import MakeIndex
from tests.integration.test_server_live import DEADLINE, Running, serving, until
from tests.support.captures import capture, sha1
from tests.support.commands import typed

WRITERS = 8


def send(port: int, method: str, path: str, content: object = None) -> Any:
    """The answer to a request; raises for any status but 200."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=DEADLINE)) as connection:
        body = None if content is None else json.dumps(content)
        connection.request(method, path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read()
        assert response.status == 200, text
        return json.loads(text)


def report(number: int) -> dict[str, Any]:
    return {
        "digest": str(sha1(number)),
        "url": f"http://example.com/{number}",
        "date": "2026-11-20T09:14:17Z",
        "status": 200,
        "mime": "image/png",
        "size": 10,
        "container": "a.warc.gz",
        "offset": number,
    }


def known(server: Running, number: int, crawl: str = "") -> bool:
    more = f"&crawl={crawl}" if crawl else ""
    return bool(send(server.port, "GET", f"/lookup?digest={sha1(number)}{more}")["duplicate"])


def test_a_crawl_through_several_workers_is_merged_while_it_is_asked_for(
    make_index: MakeIndex,
) -> None:
    index = make_index([capture(90)])
    with serving(index, "--workers", "2") as server:
        send(server.port, "POST", "/crawls", {"name": "a"})
        for number in range(20):  # each request may reach another worker
            send(server.port, "POST", "/captures?crawl=a", report(number))
            assert known(server, number, "a") and not known(server, number)
        send(server.port, "POST", "/crawls/a/commit")
        assert all(known(server, number) for number in range(20))

        def merged() -> bool:
            assert all(known(server, number) for number in range(20))
            return bool(send(server.port, "GET", "/crawls/a")["merged"])

        assert until(merged)
        done = subprocess.run(
            [sys.executable, "-m", "dedupindex", "index", "--stats", "--json", str(index)],
            capture_output=True,
            check=True,
        )
        assert json.loads(done.stdout)["captures"] == 21
    with closing(open_index(index)) as engine:
        assert engine.check() == []


def test_acknowledged_captures_survive_a_kill(make_index: MakeIndex) -> None:
    index = make_index([])
    acknowledged: set[int] = set()
    with serving(index, "--workers", "2") as server:
        send(server.port, "POST", "/crawls", {"name": "a"})

        def write(writer: int) -> None:
            number = writer
            with suppress(OSError, HTTPException):
                while True:
                    send(server.port, "POST", "/captures?crawl=a", report(number))
                    acknowledged.add(number)
                    number += WRITERS

        threads = [threading.Thread(target=write, args=(writer,)) for writer in range(WRITERS)]
        for thread in threads:
            thread.start()
        assert until(lambda: len(acknowledged) > 100)
        for process in children(server.process.pid):
            os.kill(process, signal.SIGKILL)
        server.process.kill()
        for thread in threads:
            thread.join(DEADLINE)
    with closing(LmdbStore(index)) as store, store.reading() as reading:
        held = reading.counts(reading.crawl("a"))[0]
    assert held >= len(acknowledged)
    with serving(index) as server:
        assert all(known(server, number, "a") for number in acknowledged)
        assert send(server.port, "POST", "/crawls/a/commit")["captures"] == held


def children(process: int) -> list[int]:
    """The processes that a process has started."""
    found = Path(f"/proc/{process}/task/{process}/children").read_text()
    return list(map(int, found.split()))


def test_a_copy_of_a_served_index_has_its_crawls(make_index: MakeIndex, tmp_path: Path) -> None:
    index, target = make_index([]), tmp_path / "copy"
    with serving(index) as server:
        send(server.port, "POST", "/crawls", {"name": "a"})
        send(server.port, "POST", "/captures?crawl=a", report(1))
        subprocess.run(
            [sys.executable, "-m", "dedupindex", "index", "--copy", str(target), str(index)],
            capture_output=True,
            check=True,
        )
    with serving(target) as server:
        assert known(server, 1, "a")


def test_a_merge_that_fails_is_tried_ever_more_rarely(
    make_index: MakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, now, tried = make_index([capture(90)]), [1000.0], list[float]()
    live = LiveIndex(index)

    def fail(*_: object) -> None:
        tried.append(now[0] - 1000)
        raise DedupError("the sample is not answered")

    def commit(name: str) -> None:
        live.crawls.write(partial(lifecycle.begin, name=name), make=True)
        live.crawls.write(partial(lifecycle.commit, name=name))

    def look(seconds: float) -> None:
        """As often as the server does."""
        for _ in range(round(seconds / EVERY)):
            with suppress(DedupError):
                upkeep.once()
            now[0] += EVERY

    upkeep = BackgroundMerge(live, lambda: now[0])
    with closing(live):
        with monkeypatch.context() as patch:
            patch.setattr(BackgroundMerge, "_merge", fail)
            commit("a")
            look(3600)
            assert tried[:6] == [0, 2, 6, 14, 30, 62] and 10 < len(tried) < 25
            assert tried[-1] - tried[-2] == LONGEST
            del tried[:]
            commit("b")  # what was wrong may be right now
            look(10)
            assert tried == [3600, 3602, 3606]
        now[0] += LONGEST
        upkeep.once()
        with live.crawls.reading() as reading:
            assert all(crawl.merged for crawl in reading.crawls())


def test_the_log_of_a_merge_says_why_captures_were_refused(
    make_index: MakeIndex, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logs.LOGGER, "propagate", True)
    caplog.set_level(logging.INFO, "dedupindex.server")
    again = capture(1)
    index = make_index([again, capture(90)])
    typed("purge", index, "--url", again.url.decode())
    live = LiveIndex(index)
    with closing(live):
        live.crawls.write(partial(lifecycle.begin, name="a"), make=True)
        live.crawls.write(
            lambda writing: add(
                writing, writing.crawl("a"), [again, capture(2)], Settings(), lambda capture: ""
            )
        )
        live.crawls.write(partial(lifecycle.commit, name="a"))
        BackgroundMerge(live).once()
    assert "1 added, 0 replaced, 0 unchanged, 1 refused (purged 1)" in caplog.text


@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_index_that_is_moved_away_and_back_has_its_crawls(
    make_index: MakeIndex, workers: str
) -> None:
    """Its files are the same, and LMDB opens a file once in a process."""
    index = make_index([capture(1)])
    asked = f"/lookup?digest={sha1(1)}&crawl=a"
    with serving(index, "--workers", workers) as server:
        send(server.port, "POST", "/crawls", {"name": "a"})
        for _ in range(10 * int(workers)):  # counted while the index is away
            assert known(server, 1, "a")
        away = index.rename(index.with_name("away"))
        assert until(lambda: server.get(asked)[0] == server.get("/readyz")[0] == 503)
        with pytest.raises(AssertionError, match="index_unavailable"):
            send(server.port, "POST", "/captures?crawl=a", report(2))
        away.rename(index)
        assert until(lambda: {server.get(asked)[0] for _ in range(20)} == {200})
        assert {server.get("/readyz")[0] for _ in range(20)} == {200}
