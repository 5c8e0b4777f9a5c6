"""The digest filter of a client: what is answered without asking, and that nothing else is."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dedupindex.client import Ask, AsyncClient, Client, DigestFilter, Hit, Miss, NotAsked, Reply
from dedupindex.digest_filter import PartInfo
from dedupindex.errors import BadInput
from dedupindex.index.filter_store import FilterStore
from server.app import create_app
from server.config import Config
from server.live_index import LiveIndex
from tests.conftest import MakeIndex
from tests.integration.test_server_live import DEADLINE, serving
from tests.support.captures import capture, sha1
from tests.support.commands import typed
from tests.support.paths import ROOT
from tests.support.transports import AsyncMock, ToApp, of_json

KNOWN, NEW = 50, range(1000, 1100)  # digests of the index, and others
URL = "http://example.com/x"


class Counting:
    """A transport that counts requests by path, and lets a test answer some itself."""

    def __init__(self, app: Any) -> None:
        self._app, self.asked = ToApp(app), Counter[str]()
        self.instead: Callable[[Ask], Reply | None] = lambda ask: None

    def exchange(self, ask: Ask) -> Reply:
        path = ask.path.partition("?")[0]
        self.asked["/digest-filter/part" if path.startswith("/digest-filter/") else path] += 1
        return self.instead(ask) or self._app.exchange(ask)

    def close(self) -> None: ...


@pytest.fixture
def index(make_index: MakeIndex) -> Path:
    index = make_index([capture(number) for number in range(KNOWN)])
    typed("index", "--digest-filter", index)
    return index


@pytest.fixture
def transport(index: Path) -> Counting:
    live = LiveIndex(index)
    live.refresh()
    return Counting(create_app(Config(index), live))


def client_of(transport: Counting, kept: DigestFilter, **more: Any) -> Client:
    client = Client(transport=transport, digest_filter=kept, **more)
    assert kept.ready.wait(DEADLINE)
    return client


def learned(client: Client, transport: Counting, crawl: str = "c") -> None:
    """Wait until the client knows that a crawl is in no namespace."""
    for _ in range(1000):
        before = transport.asked["/lookup"]
        client.lookup(str(sha1(900)), URL, crawl=crawl)
        if transport.asked["/lookup"] == before:
            return
        threading.Event().wait(0.01)
    raise AssertionError("the client asks all the time")


LOADS = """
import sys
from pathlib import Path
from dedupindex.index import open_index
from dedupindex.index.engine import Load
from dedupindex.index.format.cells import Keys, encode
from dedupindex.index.load.runs import RunWriter
from tests.support.captures import capture
index, *loads = sys.argv[1:]
engine = open_index(Path(index), write=True)
for load in loads:
    numbers = range(*map(int, load.split("-")))
    writer = RunWriter(Path(index), "added")
    found = [capture(number) for number in numbers]
    writer.extend([Keys().key_of(one.digest, one.url) + encode(one, 0) for one in found])
    writer.flush()
    engine.load(Load(writer.paths))
    writer.paths[0].unlink()
    print(numbers.stop, flush=True)
engine.close()
"""


def loading(index: Path, *numbers: range) -> subprocess.Popen[str]:
    """Load captures of these numbers, in another process, as LMDB must be open once in a process.

    It writes the end of each range as soon as that is loaded.
    """
    loads = [f"{one.start}-{one.stop}" for one in numbers]
    words = [sys.executable, "-c", LOADS, str(index), *loads]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def add(index: Path, numbers: range) -> None:
    with loading(index, numbers) as process:
        assert process.wait(DEADLINE) == 0


def test_most_misses_are_not_asked_and_every_hit_is(transport: Counting) -> None:
    with client_of(transport, DigestFilter()) as client:
        for number in range(KNOWN):
            assert isinstance(client.lookup(str(sha1(number)), URL), Hit)
        assert transport.asked["/lookup"] == KNOWN
        assert [client.lookup(str(sha1(number)), URL) for number in NEW] == [Miss()] * len(NEW)
        asked = transport.asked["/lookup"] - KNOWN
        assert asked <= 5
        counts = client.counts.as_json()
        assert (counts["lookups"], counts["hits"], counts["misses"]) == (150, 50, 100)
        assert counts["answered_by_filter"] == 100 - asked
        answers = client.lookups([(str(sha1(n)), URL) for n in (1, 1001, 2, 1002, 1003, 3)])
        assert [type(answer) for answer in answers] == [Hit, Miss, Hit, Miss, Miss, Hit]
    assert transport.asked["/digest-filter"] == transport.asked["/digest-filter/part"] == 1


@pytest.mark.parametrize(
    "more",
    [{"namespace": "news"}, {"explain": True}, {"unlabelled": "sha1"}, {"crawl": "unknown"}],
)
def test_what_a_filter_cannot_know_is_asked(transport: Counting, more: dict[str, Any]) -> None:
    with client_of(transport, DigestFilter()) as client:
        for number in NEW:
            client.lookup(str(sha1(number)), URL, **more)
        for text in ("sha1:" + "A" * 32, "crc32:00", "x", sha1(1000).raw.hex(), None):
            client.lookup(text, URL)  # type: ignore[arg-type]
        claimed = client.claim(str(sha1(1000)), URL)
        assert isinstance(claimed, NotAsked)  # there is no crawl
    assert transport.asked["/lookup"] == len(NEW) + 4 and transport.asked["/claims"] == 1


def test_conditions_that_only_exclude_are_answered(transport: Counting) -> None:
    with client_of(transport, DigestFilter()) as client:
        for number in NEW:
            assert client.lookup(
                str(sha1(number)), URL, strategy="EXACT_URL", max_age="30d", min_size=9, mime="a/b",
                covers="entity", bridge=True, size=3, as_of="2026-11-20", namespace="",
            ) == Miss()  # fmt: skip
    assert transport.asked["/lookup"] <= 5


def test_a_crawl_of_a_namespace_is_always_asked(transport: Counting) -> None:
    with client_of(transport, DigestFilter(), crawl="c") as client:
        client.begin("c")
        client.begin("n", namespace="news")
        learned(client, transport)
        for number in NEW:
            client.lookup(str(sha1(number)), URL, crawl="n")
        for _ in range(1000):
            if transport.asked["/crawls/n"]:
                break
            threading.Event().wait(0.01)
        before = transport.asked["/lookup"]
        for number in NEW:
            client.lookup(str(sha1(number)), URL, crawl="n")
        assert transport.asked["/lookup"] - before == len(NEW)
        assert transport.asked["/crawls/n"] == 1  # and that is remembered


def test_what_this_client_reported_is_asked(transport: Counting) -> None:
    with client_of(transport, DigestFilter(), crawl="c") as client:
        client.begin("c")
        learned(client, transport)
        also = "md5:d3b07384d113edec49eaa6238ad5ff00"
        date = "2026-11-20T09:14:17Z"
        for number in NEW:
            if not isinstance(client.lookup(str(sha1(number)), URL), Hit):
                one = {"digest": str(sha1(number)), "url": URL, "date": date, "status": 200}
                client.report([{**one, "mime": "image/png", "size": 9, "also": [also]}])
        assert all(isinstance(client.lookup(str(sha1(number)), URL), Hit) for number in NEW)
        assert isinstance(client.lookup(also, URL, bridge=True), Hit)
        state = client.commit("c")
        counts = client.counts.as_json()
        assert state["answered_by_filter"] == counts["answered_by_filter"] > 90
        assert state["lookups"] == counts["lookups"]
        report = json.loads(transport.exchange(Ask("GET", "/crawls/c/report?by=host", b"", 9)).body)
        assert (report["lookups"], report["duplicates"]) == (counts["lookups"], 101)
        assert report["new"] == counts["misses"]
        (group,) = report["groups"]
        assert group["lookups"] == report["lookups"] - report["answered_by_filter"]
        text = transport.exchange(Ask("GET", "/crawls/c/report?format=text", b"", 9)).body.decode()
        assert f"Answered by filter:   {counts['answered_by_filter']}" in text


def test_counts_are_sent_while_the_crawl_runs(transport: Counting) -> None:
    kept = DigestFilter(renew=0.05)
    with client_of(transport, kept, crawl="c") as client:
        client.begin("c")
        learned(client, transport)
        for _ in range(500):
            state = json.loads(transport.exchange(Ask("GET", "/crawls/c", b"", 9)).body)
            if state["answered_by_filter"]:
                break
            threading.Event().wait(0.02)
        assert state["answered_by_filter"] == client.counts.as_json()["answered_by_filter"]


def test_a_renewal_fetches_what_is_new_only(
    index: Path, transport: Counting, tmp_path: Path
) -> None:
    add(index, range(5000, 80_000))  # a large part of its own
    folder = tmp_path / "kept"
    kept = DigestFilter(folder)
    with client_of(transport, kept) as client:
        fetched = transport.asked["/digest-filter/part"]
        add(index, NEW)
        kept.renew()
        assert transport.asked["/digest-filter/part"] == fetched + 1
        for number in NEW:
            client.lookup(str(sha1(number)), URL)
        assert client.counts.as_json()["answered_by_filter"] == 0
    names = {part.id for part in FilterStore(index).manifest().parts}
    assert {path.stem for path in folder.iterdir()} == names
    again = DigestFilter(folder)  # of the next run
    with client_of(transport, again) as client:
        assert again.digests == 75_000 + KNOWN + len(NEW)
    assert transport.asked["/digest-filter/part"] == fetched + 1


def test_a_damaged_part_is_fetched_again_or_not_used(
    index: Path, transport: Counting, tmp_path: Path
) -> None:
    (info,) = FilterStore(index).manifest().parts
    folder = tmp_path / "kept"
    folder.mkdir()
    (folder / f"{info.id}.part").write_bytes(b"dedupflt" + bytes(200))
    with client_of(transport, DigestFilter(folder)) as client:
        assert client.lookup(str(sha1(1000)), URL) == Miss()
        assert transport.asked["/digest-filter/part"] == 1
    data = FilterStore(index).path_of(info.id).read_bytes()

    def damaged(ask: Ask) -> Reply | None:
        flipped = data[:100] + bytes([data[100] ^ 1]) + data[101:]
        return Reply(200, flipped) if "?piece=" in ask.path else None

    transport.instead = damaged
    with client_of(transport, DigestFilter()) as client:
        for number in NEW:
            client.lookup(str(sha1(number)), URL)
        assert client.counts.as_json()["answered_by_filter"] == 0


def test_clients_that_share_a_directory_write_files_of_their_own(
    transport: Counting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second fetches a part while the first has mapped it: cutting that kills the process."""
    folder = tmp_path / "kept"
    first, second = DigestFilter(folder, renew=900), DigestFilter(folder, renew=900)
    replace = os.replace

    def renew_second(source: Path, target: Path) -> None:
        monkeypatch.undo()
        mapped = source.stat().st_size
        transport.instead = lambda ask: check(source, mapped)
        second.renew()
        replace(source, target)

    def check(source: Path, mapped: int) -> None:
        assert source.stat().st_size == mapped

    transport.instead = lambda ask: Reply(404, b"")
    with (
        client_of(transport, first),
        client_of(transport, second),
    ):
        transport.instead = lambda ask: None
        monkeypatch.setattr(os, "replace", renew_second)
        first.renew()
        assert first.digests == second.digests == KNOWN
    assert [path.suffix for path in folder.iterdir()] == [".part"]


def test_only_parts_are_removed_from_a_directory(transport: Counting, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    others = [folder / name for name in ("film.part", "x.new", f".{'0' * 64}.young.new")]
    gone = [folder / f"{'0' * 64}.part", folder / f".{'0' * 64}.1.new"]
    for path in others + gone:
        path.touch()
    os.utime(gone[1], (0, 0))
    with client_of(transport, DigestFilter(folder)):
        assert all(path.exists() for path in others)
        assert not any(path.exists() for path in gone)


def test_what_is_no_capture_is_bad_with_a_filter_too(transport: Counting) -> None:
    with client_of(transport, DigestFilter(), crawl="c") as client:
        assert client.report([None, 5, "x"]).bad == 3  # type: ignore[list-item]


@pytest.mark.parametrize(
    "reply",
    [
        *(Reply(status, b"{}") for status in (200, 401, 404, 503)),
        Reply(200, b"x"),
        of_json({"version": 2, "parts": []}),
        of_json({"version": 1, "parts": [{"id": "../x"}]}),
    ],
)
def test_without_a_filter_all_is_asked(transport: Counting, reply: Reply) -> None:
    transport.instead = lambda ask: reply if ask.path == "/digest-filter" else None
    with client_of(transport, DigestFilter()) as client:
        for number in NEW:
            assert client.lookup(str(sha1(number)), URL) == Miss()
    assert transport.asked["/lookup"] == len(NEW)


def test_a_filter_that_is_too_large_is_not_fetched(transport: Counting) -> None:
    with client_of(transport, DigestFilter(most_bytes=100)) as client:
        client.lookup(str(sha1(1000)), URL)
    assert transport.asked["/digest-filter/part"] == 0 and transport.asked["/lookup"] == 1


def test_a_filter_that_was_not_renewed_for_long_is_not_used(transport: Counting) -> None:
    now = [1000.0]
    kept = DigestFilter(renew=10, clock=lambda: now[0])
    with client_of(transport, kept) as client:
        transport.instead = lambda ask: Reply(503, b"") if "filter" in ask.path else None
        now[0] = 1059.0
        client.lookup(str(sha1(1000)), URL)
        assert transport.asked["/lookup"] == 0
        now[0] = 1061.0
        client.lookup(str(sha1(1000)), URL)
        assert transport.asked["/lookup"] == 1
        transport.instead = lambda ask: None
        kept.renew()
        client.lookup(str(sha1(1000)), URL)
        assert transport.asked["/lookup"] == 1


def test_parts_that_are_merged_meanwhile_are_asked_for_again(
    index: Path, transport: Counting
) -> None:
    """Loads between the manifest and the part, as often as a client tries less one."""
    loads: Iterator[int] = iter(range(2))

    def merge(ask: Ask) -> Reply | None:
        if "?piece=" in ask.path and (number := next(loads, None)) is not None:
            add(index, range(3000 + number, 3001 + number))
        return None

    transport.instead = merge
    kept = DigestFilter()
    with client_of(transport, kept) as client:
        assert transport.asked["/digest-filter"] == 3 and kept.digests == KNOWN + 2
        client.lookup(str(sha1(3001)), URL)
        assert transport.asked["/lookup"] == 1


def test_nothing_is_denied_while_loads_and_renewals_go_on(index: Path, transport: Counting) -> None:
    """What was in the index before a renewal began is asked for after it, whatever is merged."""
    kept, loads = DigestFilter(renew=1000), [range(n, n + 20) for n in range(10_000, 10_800, 20)]
    renewed = 0
    with client_of(transport, kept) as client, loading(index, *loads) as process:
        assert process.stdout is not None
        for line in process.stdout:
            try:
                kept.renew()
            except Exception:
                continue  # as the thread of a client does; the filter is as it was
            renewed += 1
            for number in range(int(line) - 20, int(line)):
                client.lookup(str(sha1(number)), URL)
        assert process.wait(DEADLINE) == 0
        assert client.counts.as_json()["answered_by_filter"] == 0
    assert renewed > 10


def test_a_filter_is_of_one_client() -> None:
    kept = DigestFilter()
    kept.start(lambda ask: Reply(503, b""), lambda exchange: None)
    with pytest.raises(BadInput):
        kept.start(lambda ask: Reply(503, b""), lambda exchange: None)
    kept.close()
    with pytest.raises(BadInput):
        DigestFilter(renew=0)

    async def answer(ask: Ask) -> Reply:
        return Reply(503, b"")

    with pytest.raises(BadInput, match="transport"):  # another server might have another filter
        AsyncClient(transport=AsyncMock(answer), digest_filter=DigestFilter())


def test_with_asyncio_and_over_real_connections(index: Path) -> None:
    async def asked(url: str) -> dict[str, Any]:
        kept = DigestFilter()
        async with AsyncClient(url, digest_filter=kept) as client:
            assert await asyncio.to_thread(kept.ready.wait, DEADLINE)
            found = await client.lookups([(str(sha1(n)), URL) for n in (1, *NEW)])
            assert isinstance(found[0], Hit) and set(found[1:]) == {Miss()}
            return client.counts.as_json()

    with serving(index) as server:
        url = f"http://127.0.0.1:{server.port}"
        assert asyncio.run(asked(url))["answered_by_filter"] >= 95
        kept = DigestFilter()
        with Client(url, digest_filter=kept) as client:
            assert kept.ready.wait(DEADLINE)
            assert client.lookup(str(sha1(1000)), URL) == Miss()
            assert client.counts.as_json()["answered_by_filter"] == 1
    assert isinstance(FilterStore(index).manifest().parts[0], PartInfo)
