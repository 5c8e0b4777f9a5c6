"""A real redis-server with the keys of Browsertrix: written, found, committed, read back."""

from __future__ import annotations

import gc
import gzip
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha1
from hashlib import sha256 as sha
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.connection import Connection

from dedupindex.capture import Capture, Evidence
from dedupindex.digest import Digest
from dedupindex.errors import CrawlExists, DedupError, IndexBusy, UnknownCrawl
from dedupindex.export.browsertrix_redis import (
    LOCK,
    BrowsertrixExport,
    ExportChoice,
    originals,
    writing,
)
from dedupindex.index.identity import Settings
from dedupindex.sources import open_source
from dedupindex.sources.browsertrix import BrowsertrixEntry
from dedupindex.sources.conformance import check_source
from tests.conftest import MakeIndex
from tests.integration.test_server_live import serving
from tests.peers.redis import Crawl, redis_server, state
from tests.peers.replay import check_revisits, records, replay
from tests.support.budgets import examples
from tests.unit.cli.test_cli import dedupindex
from tests.unit.export.test_browsertrix_redis import sha256, stored

pytestmark = pytest.mark.peer
EVERYTHING = Settings(mime=".*", whitelist=True)
PAGE, LOGO = sha256(1).raw.hex(), sha256(2).raw.hex()
CAPTURES = [
    stored(1, b"http://a.example/page", date=b"2026-11-20T09:14:17.125Z", container="/x/a.warc.gz"),
    stored(2, b"http://a.example/logo", 2, container="/x/b.wacz/archive/b.warc.gz"),
    stored(3, b"http://a.example/none", 3, container="", evidence=Evidence.NAMED, size=-1),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with redis_server(tmp_path_factory.mktemp("redis")) as address:
        yield address


@pytest.fixture
def address(server: str) -> Iterator[str]:
    """An empty database."""
    with redis.Redis.from_url(server) as client:
        client.flushdb()
    yield server


@pytest.fixture
def client(address: str) -> Iterator[Any]:
    with redis.Redis.from_url(address) as client:
        yield client


def export(
    address: str, captures: list[Capture], source: bytes = b"/i", **how: Any
) -> BrowsertrixExport:
    """What ``bin/export`` does with an index of these captures."""
    exported = BrowsertrixExport()
    choice = ExportChoice(how.pop("other", "archive"), **how)
    stand = sorted((one.digest, one) for one in captures)
    with writing(address) as database:
        found = originals(stand, lambda name: None, choice, exported)
        database.export(found, source, choice.crawls)
    return exported


def test_the_keys_are_those_of_browsertrix(address: str, client: Any) -> None:
    export(address, CAPTURES)
    entries = {
        PAGE: b"0 20261120091417125 http://a.example/page 1001",
        LOGO: b"1 20261102091417000 http://a.example/logo 1002",
        sha256(3).raw.hex(): b"999999999 20261103091417000 http://a.example/none 1",
    }
    places = {name["filename"]: place for place, name in enumerate(_listed(client, "archive"))}
    assert places.keys() == {"a.warc.gz", "b.warc.gz"}
    for digest, value in entries.items():
        one, found = (
            BrowsertrixEntry.parse(value),
            BrowsertrixEntry.parse(client.hget("h:archive", digest)),
        )
        if one.place < 2:
            one = one._replace(place=places["a.warc.gz" if one.place == 0 else "b.warc.gz"])
        assert found == one
        assert client.hget("alldupes", digest) == b"archive"
    assert client.hlen("h:archive") == client.hlen("alldupes") == 3
    assert client.smembers("allcrawls") == {b"archive"}
    assert client.smembers("src:d") == {b"a.warc.gz", b"b.warc.gz"}
    counts = {b"totalUrls": b"3", b"totalCrawlSize": b"0"}
    assert client.hgetall("h:archive:counts") == client.hgetall("allcounts") == counts
    left = {"h:archive", "h:archive:counts", "c:archive:wacz", "dedupindex:crawls"}
    assert state(client).keys() == left | {"alldupes", "allcrawls", "allcounts", "src:d"}


def test_a_recorded_exchange_from_key_to_lookup(
    address: str, client: Any, make_index: MakeIndex, tmp_path: Path
) -> None:
    """One new page and two duplicates, and the crawl after it; then both are in an index."""
    index = make_index(CAPTURES[:2], EVERYTHING)
    out, talk = dedupindex("export", "--redis", address, index, "--json")
    assert json.loads(out) == {
        "written": 2, "bridged": 0, "crawls": {index.name: 2}, "left_out": {},
    }  # fmt: skip
    new = sha256(4).raw.hex()
    crawl3 = Crawl(client, "crawl3")
    url = "http://127.0.0.1:19301/page1?third=1"
    assert crawl3.response(new, url, "20261121031451390", 597) is None
    assert crawl3.response(new, url, "20261121031451999", 597) == (
        url, "2026-11-21T03:14:51.390Z", "20261121031450842-crawl3.wacz",
    )  # fmt: skip
    assert crawl3.response(PAGE, "http://b.example/", "20261121031452000", 1001) == (
        "http://a.example/page", "2026-11-20T09:14:17.125Z", "a.warc.gz",
    )  # fmt: skip
    target = tmp_path / "back"
    words = ["index", "-w", "-m", ".*", "-i", "browsertrix", address]
    out, _ = dedupindex(*words, target, "--json")
    tally = json.loads(out)
    assert tally["refused"] == {"uncommitted": 1} and tally["added"] == 2
    crawl3.finish()
    crawl3.commit()
    counts = {b"totalUrls": b"5", b"dupeUrls": b"2", b"conservedSize": b"1178"}
    assert client.hgetall("allcounts") == {**counts, b"totalCrawlSize": b"15171"}
    crawl4 = Crawl(client, "crawl4")
    assert crawl4.response(new, "http://c.example/", "20261121041451390", 600) == (
        url, "2026-11-21T03:14:51.390Z", "crawl3.wacz",
    )  # fmt: skip
    out, _ = dedupindex(*words, "--add", target, "--json")
    tally = json.loads(out)
    assert (tally["added"], tally["unchanged"], tally["refused"]) == (1, 2, {})
    with serving(target) as live:
        status, body = live.get(f"/lookup?digest=sha256:{new}&url=http://z.example/")
        original = json.loads(body)["original"]
        assert status == 200
        assert (original["url"], original["date"]) == (url, "2026-11-21T03:14:51.390Z")
        assert (original["digest"], original["container"]) == (f"sha256:{new}", "crawl3.wacz")
        assert (original["evidence"], original["record_size"]) == ("revisit", 597)
    assert json.loads(dedupindex("index", "--check", target, "--json")[0])


@pytest.mark.parametrize("bridge", [False, True])
def test_the_revisit_that_the_crawler_writes_is_replayed(
    address: str, client: Any, tmp_path: Path, bridge: bool
) -> None:
    """Unless it is bridged: then the record states SHA-1, and pywb finds no SHA-256 there."""
    body, index, warcs = b"\x89PNG" + b"archive" * 900, tmp_path / "index", tmp_path / "warcs"
    warcs.mkdir()
    first, second, digest = warcs / "first.warc.gz", warcs / "second.warc.gz", sha(body).hexdigest()
    url, again = "http://a.example/logo.png?b=1&a=%c3%a9", "http://b.example/copy.png"
    head = b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nContent-Length: %d\r\n\r\n" % len(body)
    stated = str(Digest("sha1", sha1(body).digest())) if bridge else f"sha256:{digest}"
    said = {"WARC-Target-URI": url, "WARC-Date": "2026-11-20T09:14:17Z"}
    first.write_bytes(_record("response", {**said, "WARC-Payload-Digest": stated}, head + body))
    words = ["index", "-w", "-m", ".*", "--also-digest", "sha256", "--crawl", "weekly"]
    dedupindex(*words, first, index)
    words = ["export", "--redis", address, index]
    if bridge:
        assert "--bridge" in dedupindex(*words)[1]
        words.append("--bridge")
    assert ("1 are bridged" in dedupindex(*words)[1]) is bridge
    assert client.smembers("allcrawls") == {b"weekly"}
    found = Crawl(client, "crawl").response(digest, again, "20261121031451390", 900)
    assert found == (url, "2026-11-20T09:14:17.000Z", "first.warc.gz")
    said = {
        "WARC-Target-URI": again,
        "WARC-Date": "2026-11-21T03:14:51.390Z",
        "WARC-Payload-Digest": f"sha256:{digest}",
        "WARC-Profile": "http://netpreserve.org/warc/1.1/revisit/identical-payload-digest",
        "WARC-Refers-To-Target-URI": found.url,
        "WARC-Refers-To-Date": found.date,
        "WARC-Refers-To-Container": f"file://{found.container}",
    }
    second.write_bytes(_record("revisit", said, head))
    written = records([second])
    with replay([first, second], tmp_path) as archive:
        if bridge:
            assert archive.get(again, written[0].date).status == 503
        else:
            assert check_revisits(written, archive, {again: body}) == 1


def _record(kind: str, said: dict[str, str], block: bytes) -> bytes:
    lines = {"WARC-Type": kind, "WARC-Record-ID": f"<urn:uuid:{uuid4()}>", **said}
    lines |= {"Content-Type": "application/http; msgtype=response"}
    lines |= {"Content-Length": str(len(block))}
    text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return gzip.compress(f"WARC/1.1\r\n{text}\r\n".encode() + block + b"\r\n\r\n")


def test_it_conforms(address: str, make_index: MakeIndex) -> None:
    dedupindex("export", "--redis", address, make_index(CAPTURES, EVERYTHING))
    assert check_source(lambda: open_source(address))


def test_a_report_takes_a_redis_for_a_crawl(address: str, make_index: MakeIndex) -> None:
    export(address, CAPTURES)
    index = make_index(CAPTURES, EVERYTHING)
    out, _ = dedupindex("report", index, "--against", address, "--json")
    assert json.loads(out)["refused"] == {"status": 3}  # which Redis does not say


def test_commit_and_cancel(address: str, client: Any) -> None:
    export(address, CAPTURES[:1])
    before = state(client)
    words = ["export", "--redis", address]
    killed = Crawl(client, "killed")
    killed.response(LOGO, "http://b.example/", "20261121031451390", 597)
    assert "has no crawl" in dedupindex(*words, "--cancel", "nobody", status=4)[1]
    dedupindex(*words, "--cancel", "killed")
    assert state(client) == before
    killed = Crawl(client, "killed")
    killed.response(LOGO, "http://b.example/", "20261121031451390", 597)
    killed.finish(5)
    out, _ = dedupindex(*words, "--commit", "killed", "--json")
    assert json.loads(out) == {"crawl": "killed", "state": "committed"}
    assert client.hget("alldupes", LOGO) == b"killed"
    assert client.smembers("allcrawls") == {b"archive", b"killed"}
    assert client.hgetall("allcounts") == {b"totalUrls": b"2", b"totalCrawlSize": b"5"}
    done = state(client)
    dedupindex(*words, "--commit", "killed")
    assert state(client) == done
    assert "committed by Browsertrix" in dedupindex(*words, "--cancel", "killed", status=5)[1]
    dedupindex(*words, "--cancel", "archive")
    assert client.hgetall("alldupes") == {LOGO.encode(): b"killed"}
    assert client.hgetall("allcounts") == {b"totalUrls": b"1", b"totalCrawlSize": b"5"}
    assert not client.exists("h:archive", "c:archive:wacz", "h:archive:counts", "dedupindex:crawls")
    assert client.smembers("src:d") == {b"killed.wacz"}


def test_exporting_again_removes_captures_that_the_index_lost(address: str, client: Any) -> None:
    weekly = stored(1, b"http://w.example/", 5, crawl="weekly")
    export(address, [*CAPTURES, weekly])
    again = state(client)
    export(address, [*CAPTURES, weekly])
    assert state(client) == again
    export(address, [CAPTURES[1], weekly])
    assert client.hgetall("alldupes") == {PAGE.encode(): b"weekly", LOGO.encode(): b"archive"}
    assert client.hgetall("allcounts")[b"totalUrls"] == b"2"
    export(address, [CAPTURES[0]], crawls=frozenset(["archive"]))  # weekly is not asked for
    assert client.smembers("allcrawls") == {b"archive", b"weekly"}
    export(address, [CAPTURES[0]])
    assert client.smembers("allcrawls") == {b"archive"}
    assert client.hgetall("alldupes") == {PAGE.encode(): b"archive"}
    export(address, [])
    assert not {key for key in state(client) if key[:2] in ("h:", "c:")}
    assert not client.exists("alldupes", "allcrawls", "src:d", "dedupindex:crawls")


def test_export_does_not_overwrite_crawls_of_others(address: str, client: Any) -> None:
    crawl = Crawl(client, "archive")
    crawl.response(PAGE, "http://b.example/", "20261121031451390", 597)
    for commit in (False, True):
        if commit:
            crawl.commit()
        before = state(client)
        with pytest.raises(CrawlExists, match="--as"):
            export(address, CAPTURES)
        assert state(client) == before
    export(address, CAPTURES, other="mine")
    assert client.hget("alldupes", PAGE) == b"archive"  # who was first stays
    assert client.hget("alldupes", LOGO) == b"mine"
    with pytest.raises(CrawlExists, match="exported from /i"):
        export(address, CAPTURES, b"/other", other="mine")


def test_one_writer_at_a_time(address: str, client: Any) -> None:
    with writing(address) as database:
        with pytest.raises(IndexBusy), writing(address):
            pass
        client.set(LOCK, "somebody")  # this one hung, and its lock has expired
        stand = [(one.digest, one) for one in CAPTURES]
        found = originals(stand, lambda name: None, ExportChoice("archive"), BrowsertrixExport())
        with pytest.raises(DedupError, match="was stalled"):
            database.export(found, b"/i")
    assert client.get(LOCK) == b"somebody"
    assert not client.exists("alldupes", "h:archive")
    client.delete(LOCK)
    with pytest.raises(UnknownCrawl), writing(address) as database:
        database.commit("archive")
    assert not client.exists(LOCK)


class Killed(BaseException):
    pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of the dead
@pytest.mark.parametrize("which", ["first", "again", "cancel"])
def test_a_killed_export_has_no_false_entries_and_is_completed_later(
    address: str, client: Any, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    other = Crawl(client, "other")
    other.response(LOGO, "http://o.example/", "20261101000000000", 9)
    other.commit()
    older = [CAPTURES[0]._replace(url=b"http://old.example/"), stored(7), CAPTURES[1]]

    def run() -> None:
        if which == "cancel":
            with writing(address) as database:
                database.clear_leftovers()
                if client.sismember("allcrawls", "archive"):
                    database.cancel("archive")
        else:
            export(address, CAPTURES)

    def prepare() -> None:
        client.flushdb()
        for key, value in base.items():
            client.restore(key, 0, value)

    if which != "first":
        export(address, older)
    base = {key: client.dump(key) for key in client.scan_iter()}
    run()
    undisturbed = state(client)
    send, sent, allowed = Connection.send_packed_command, 0, 0

    def dying(self: Any, command: Any, check_health: bool = True) -> Any:
        nonlocal sent
        sent += 1
        if sent > allowed:
            raise Killed
        return send(self, command, check_health)

    for allowed in range(1000):
        prepare()
        sent = 0
        client.ping()
        kept = Connection.send_packed_command
        monkeypatch.setattr(Connection, "send_packed_command", dying)
        try:
            run()
            done = True
        except Killed:
            done = False
        monkeypatch.setattr(Connection, "send_packed_command", kept)
        client.delete(LOCK)  # as it lapses
        _check_true(client, CAPTURES + older)
        if done:
            break
        run()
        assert state(client) == undisturbed, allowed
    assert 10 < allowed < 999
    gc.collect()  # what the dead have left is not for another test to be warned of


KILLED = """
import os, signal, sys
from redis.connection import Connection
from dedupindex.cli import main

send, written = Connection.send_packed_command, []

def dying(self, command, check_health=True):
    text = b"".join(command)
    if written:  # and answered
        os.kill(os.getpid(), signal.SIGKILL)
    send(self, command, check_health)
    if b"dedupindex:new:" in text and b"SCAN" not in text:
        written.append(text)

Connection.send_packed_command = dying
sys.exit(main(sys.argv[1:]))
"""


def test_really_killed(address: str, client: Any, make_index: MakeIndex) -> None:
    index = make_index([stored(number) for number in range(30_000)], EVERYTHING)
    words = [sys.executable, "-c", KILLED, "export", "--redis", address, index]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert list(client.scan_iter("dedupindex:new:*"))
    assert not client.exists("alldupes", f"h:{index.name}")
    assert "killed less than" in dedupindex("export", "--redis", address, index, status=6)[1]
    assert 0 < client.ttl(LOCK) <= 30
    client.delete(LOCK)
    dedupindex("export", "--redis", address, index)
    assert client.hlen("alldupes") == 30_000
    assert not list(client.scan_iter("dedupindex:new:*"))


@settings(max_examples=examples(30))
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["export", "cancel", "crawl"]),
            st.sampled_from(["a", "b", "c"]),
            st.sets(st.integers(1, 6), max_size=4),
        ),
        max_size=8,
    )
)
def test_what_is_found_is_what_the_crawls_have(server: str, steps: Any) -> None:
    with redis.Redis.from_url(server) as client:
        client.flushdb()
        for number, (kind, name, digests) in enumerate(steps):
            if kind == "export":
                found = [stored(one, b"http://%d.example/" % number) for one in digests]
                export(server, found, name.encode(), other=name)
            elif kind == "cancel":
                with writing(server) as database:
                    if client.sismember("allcrawls", name):
                        database.cancel(name)
            else:
                crawl = Crawl(client, f"crawl{number}")
                for one in digests:
                    crawl.response(
                        sha256(one).raw.hex(), f"http://{number}.example/", "20261121031451390", 9
                    )
                crawl.commit()
            _check_whole(client)


def _check_whole(client: Any) -> None:
    """Committed crawls are found by each digest that they have, and no other; counts add up."""
    held: dict[bytes, set[bytes]] = {}
    totals: dict[bytes, int] = {}
    for crawl in client.smembers("allcrawls"):
        for digest in client.hkeys(b"h:" + crawl):
            held.setdefault(digest, set()).add(crawl)
        for name, value in client.hgetall(b"h:" + crawl + b":counts").items():
            totals[name] = totals.get(name, 0) + int(value)
    dupes = client.hgetall("alldupes")
    assert dupes.keys() == held.keys()
    assert all(crawl in held[digest] for digest, crawl in dupes.items())
    sums = {name: int(value) for name, value in client.hgetall("allcounts").items()}
    assert {name: value for name, value in sums.items() if value} == {
        name: value for name, value in totals.items() if value
    }


def _check_true(client: Any, captures: list[Capture]) -> None:
    """Whatever a crawl would find names a capture that exists, and the file that it is in."""
    stand = {(one.digest.raw.hex(), one.url): one for one in captures}
    for digest, crawl in client.hgetall("alldupes").items():
        value = client.hget(b"h:" + crawl, digest)
        if value is None or crawl == b"other":
            continue
        found = BrowsertrixEntry.parse(value)
        original = stand[digest.decode(), found.url]
        listed = client.lindex(b"c:" + crawl + b":wacz", found.place)
        name = json.loads(listed)["filename"] if listed else ""
        assert name == original.container.rpartition("/")[2]


def _listed(client: Any, crawl: str) -> list[dict[str, Any]]:
    return [json.loads(text) for text in client.lrange(f"c:{crawl}:wacz", 0, -1)]


def test_damaged_entries_are_reported_and_the_others_are_read(
    address: str, client: Any, tmp_path: Path
) -> None:
    entries = {
        PAGE: "0 20261121031451390 http://a.example/page 597",
        LOGO: "7 20261121031451390 http://a.example/logo?x=1 NaN",  # no such file
        sha256(3).raw.hex(): "0 20261121031451390 http://a.example/ 1 2",
        sha256(4).raw.hex(): "",
        sha256(5).raw.hex(): "0 20269921031451390 http://a.example/ 1",
        "nodigest": "0 20261121031451390 http://a.example/ 1",
        sha256(6).raw.hex(): "0 20261121031451390 urn:pageinfo:x 1",
        sha256(7).raw.hex(): "0 20261121031451390 http://a.example/?b=1&c=2 1",
        sha256(8).raw.hex(): "0 20261121031451390 http://a.example/%C3%A9 1",
        sha256(9).raw.hex(): "0 20261121031451390 http://a.example/?x= 1",
    }
    client.hset("h:one", mapping=entries)
    client.rpush("c:one:wacz", '{"filename":"one.wacz"}')
    client.sadd("allcrawls", "one")
    client.hset("h:open", mapping=entries)
    client.sadd("uncommittedcrawls", "open", "one")  # a version that only adds to allcrawls
    out, talk = dedupindex(
        "index", "-w", "-m", ".*", address, tmp_path / "index", "--json", status=7
    )
    tally = json.loads(out)
    assert tally["added"] == 2 and tally["problems"] == 2
    assert tally["refused"] == {
        "bad-line": 2, "bad-date": 1, "bad-digest": 1, "not-http": 1, "rewritten-url": 3,
        "uncommitted": 10,
    }  # fmt: skip
    assert "crawl one: not 'place date url size'" in talk
    out, _ = dedupindex("lookup", tmp_path / "index", "--digest", f"sha256:{LOGO}", "--json")
    assert json.loads(out)["original"]["container"] is None


def test_another_database_or_another_kind_of_key(address: str, client: Any, tmp_path: Path) -> None:
    index = tmp_path / "index"
    assert "holds no crawl" in dedupindex("index", address, index, status=4)[1]
    client.set("allcrawls", "x")
    assert "WRONGTYPE" in dedupindex("index", address, index, status=4)[1]
    assert not index.exists()


def test_a_password_is_remembered_nowhere(tmp_path: Path) -> None:
    with redis_server(tmp_path, "geheim") as address:
        export(address, CAPTURES[:1])
        index = tmp_path / "index"
        dedupindex("index", "-w", "-m", ".*", address, index)
        for path in index.rglob("*"):
            assert not path.is_file() or b"geheim" not in path.read_bytes()
        wrong = address.replace("geheim", "falsch")
        talk = dedupindex("export", "--redis", wrong, index, status=3)[1]
        assert "falsch" not in talk and "redis://127.0.0.1" in talk
