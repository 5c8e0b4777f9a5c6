"""wget-AT, which asks through conf/wget-at/dedupindex.lua and writes `.warc.zst`.

It is in no registry: it is run where a `wget-at` is in DEDUPINDEX_PEERS or on the PATH. LuaSocket
is that of the system (Debian: lua-socket), or one unpacked into DEDUPINDEX_PEERS/lua-socket.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Event
from typing import NamedTuple
from urllib.parse import parse_qs

import pytest

from demo.site import Page
from tests.conftest import need
from tests.integration.test_crawls_live import children
from tests.integration.test_cut_digests import body_whose_digest_is_cut
from tests.integration.test_server_live import serving, until
from tests.peers.environments import DEADLINE, ROOT, built
from tests.peers.replay import (
    Record,
    check_references,
    check_revisits,
    free_port,
    listening,
    records,
    replay,
)
from tests.peers.site import COPIES, PAGES, bodies, site
from tests.support.stub_server import Answer, body_of, handled_by, replying, stub_server
from tests.unit.cli.test_cli import dedupindex

pytestmark = pytest.mark.peer
SCRIPT = ROOT / "conf" / "wget-at" / "crawl.sh"
PATHS = [*PAGES, *COPIES]
SMALL = "/data"  # below --warc-dedup-min-size
LUA = "lua/5.1"


def lua_socket() -> Mapping[str, str]:
    """The environment in which Lua finds LuaSocket; skips where it is not."""
    for home in (Path(os.environ.get("DEDUPINDEX_PEERS", "."), "lua-socket"), Path("/")):
        cores = sorted(home.glob(f"usr/lib/*/{LUA}/socket/core.so"))
        if cores:
            libraries = f"{cores[0].parents[1]}/?.so"
            return {"LUA_PATH": f"{home}/usr/share/{LUA}/?.lua", "LUA_CPATH": libraries}
    pytest.skip("LuaSocket (Debian: lua-socket) is neither installed nor in DEDUPINDEX_PEERS")


@pytest.fixture(params=["luasocket", "curl"])
def transport(request: pytest.FixtureRequest) -> Mapping[str, str]:
    """The environment in which the hook uses LuaSocket, or finds none and runs curl."""
    return lua_socket() if request.param == "luasocket" else {"LUA_PATH": "none", "LUA_CPATH": ""}


class Crawled(NamedTuple):
    """Where the archive of a crawl is, and what was printed."""

    folder: Path
    errors: str

    def records(self) -> list[Record]:
        """Responses and revisits, in an order that warcio reads: of a copy in gzip."""
        target = self.folder.with_name(f"{self.folder.name}-gzip")
        if not target.exists():
            dedupindex("convert", "--to", "gzip", self.folder, "--out", target)
        return records(sorted(target.glob("*.warc.gz")))

    def types(self, base: str) -> dict[str, str]:
        """What was written of each URL of the site."""
        found = [one for one in self.records() if one.url.startswith(base)]
        assert len({one.url for one in found}) == len(found)
        return {one.url.removeprefix(base): one.type for one in found}


Crawler = Callable[..., Crawled]


@pytest.fixture
def crawl(transport: Mapping[str, str], tmp_path: Path) -> Crawler:
    wget = built("wget-at")

    def run(name: str, server: str, *words: str, **environ: str) -> Crawled:
        folder = tmp_path / name
        folder.mkdir()
        given = {
            "PATH": f"{wget.parent}:{os.environ['PATH']}",
            "DEDUPINDEX_URL": server,
            "DEDUPINDEX_CRAWL": name,
            **transport,
            **environ,
        }
        options = ("--no-verbose", "--output-document=/dev/null", "--warc-compression-use-zstd")
        done = subprocess.run(
            [SCRIPT, f"--warc-file={name}", *options, *words],
            cwd=folder, env=given, capture_output=True, text=True, timeout=DEADLINE,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        printed = [line for line in done.stderr.splitlines() if line.startswith("dedupindex: ")]
        return Crawled(folder, "\n".join(printed))

    return run


@pytest.fixture
def index(tmp_path: Path) -> Path:
    index = tmp_path / "index"
    dedupindex("index", "--empty", "-w", "-m", ".*", index)
    return index


def test_the_second_crawl_is_all_revisits_and_replays(
    crawl: Crawler, index: Path, tmp_path: Path
) -> None:
    with site() as base, serving(index, "--workers", "1") as server:
        url, urls = f"http://127.0.0.1:{server.port}", [base + path for path in PATHS]
        first = crawl("first", url, *urls)
        second = crawl("second", url, *urls)
        assert (first.errors, second.errors) == ("", "")
        # within a crawl, too: it sees what it has reported
        assert first.types(base) == dict.fromkeys(PAGES, "response") | dict.fromkeys(
            COPIES, "revisit"
        )
        expected = dict.fromkeys(PATHS, "revisit") | {SMALL: "response"}
        assert second.types(base) == expected
        found = [*first.records(), *second.records()]
        revisits = Counter(one.type for one in found)["revisit"]
        assert check_references(found) == revisits == len(COPIES) + len(PATHS) - 1
        dedupindex("verify", first.folder, second.folder)
        warcs = [next(tmp_path.glob(f"{name}-gzip/*.warc.gz")) for name in ("first", "second")]
        with replay(warcs, tmp_path) as archive:
            assert check_revisits(found, archive, bodies(base)) == revisits
        report = json.loads(server.get("/crawls/second/report")[1])
    assert (report["state"], report["exit"]) == ("committed", "SUCCESS")
    assert (report["not_looked_up"], report["not_reported"]) == (0, 0)
    size = sum(len(page.body) for page in {**PAGES, **COPIES}.values())
    assert (report["stated_bytes"], report["duplicate_bytes"]) == (size, size)


def test_a_server_that_is_killed_costs_no_response(
    crawl: Crawler, index: Path, tmp_path: Path
) -> None:
    """From the third page on all is stored; the index gets it afterwards."""
    order = list(PAGES)
    with site() as base, serving(index) as server:
        url, urls = f"http://127.0.0.1:{server.port}", [base + path for path in order]
        crawl("first", url, *urls)

        class Killing(BaseHTTPRequestHandler):
            """Kills the server when the third page is fetched."""

            def do_GET(self) -> None:
                page = PAGES[self.path]
                if self.path == order[2]:
                    workers = children(server.process.pid)
                    for process in (server.process.pid, *workers):
                        os.kill(process, signal.SIGKILL)
                    assert until(lambda: not listening(server.port))
                replying(200, page.body)(self)

            def log_message(self, format: str, *args: object) -> None: ...

        with handled_by(Killing) as again:
            second = crawl("second", url, *(again + path for path in order))
    expected = dict.fromkeys(order[:2], "revisit") | dict.fromkeys(order[2:], "response")
    assert second.types(again) == expected
    missed = len(order) - 2
    assert f"{missed} responses were not looked up" in second.errors
    assert "crawl second is not committed" in second.errors
    dedupindex("index", "--add", second.folder, index)
    out, _ = dedupindex("index", "--stats", "--json", index)
    # What was stored, and the originals: only two, or all that the first crawl reported, if these
    # were merged before the server was killed.
    assert json.loads(out)["digests"] == len(order)


ACCEPTED = replying(200, b'{"state": "open", "added": 1}')


@pytest.mark.parametrize("answer", [replying(503), replying(200, b"nonsense")])
def test_a_server_that_fails_is_asked_now_and_then(crawl: Crawler, answer: Answer) -> None:
    asked: list[str] = []

    def count(handler: BaseHTTPRequestHandler) -> None:
        asked.append(handler.path)
        (ACCEPTED if handler.path == "/crawls" else answer)(handler)

    pages = {f"/{number}": Page(b"page %d " % number * 30) for number in range(60)}
    with site(pages) as base, stub_server(count) as server:
        done = crawl("weekly", server, *(base + path for path in pages))
    assert done.types(base) == dict.fromkeys(pages, "response")
    assert 5 < len(asked) < 30  # five failures, one every second, and one at the end
    assert "60 responses were not looked up" in done.errors
    assert "the server does not answer" in done.errors


def test_a_lookup_takes_no_longer_than_its_limit(crawl: Crawler) -> None:
    """One is never answered; those after it are."""
    released, counts = Event(), dict[str, list[str]]()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        if handler.path.startswith("/lookup") and "logo.png" in handler.path:
            released.wait(DEADLINE)
        elif handler.path == "/crawls/weekly/commit":
            counts.update(parse_qs(answer_body[-1]))
            ACCEPTED(handler)
        else:
            (replying(204) if handler.path.startswith("/lookup") else ACCEPTED)(handler)

    answer_body: list[str] = []

    def reading(handler: BaseHTTPRequestHandler) -> None:
        answer_body.append(body_of(handler).decode())
        answer(handler)

    with site() as base, stub_server(reading, read=False) as server:
        try:
            done = crawl("weekly", server, *(base + path for path in PAGES))
        finally:
            released.set()
    assert done.types(base) == dict.fromkeys(PAGES, "response")
    assert counts["not_looked_up"] == ["1"] and counts["not_reported"] == ["0"]


def test_pages_whose_digests_are_cut_are_both_stored(crawl: Crawler, index: Path) -> None:
    """wget-AT of 2023 states the same digest of both: that of nothing that was hashed."""
    pages = {f"/{n}": Page(body_whose_digest_is_cut(0, b" long %d" % n * 30)) for n in range(2)}
    assert pages["/0"] != pages["/1"]
    with site(pages) as base, serving(index, "--workers", "1") as server:
        urls = [base + path for path in pages]
        for name in ("first", "second"):
            done = crawl(name, f"http://127.0.0.1:{server.port}", *urls)
            assert done.types(base) == dict.fromkeys(pages, "response")
            digests = {one.digest for one in done.records() if one.url in urls}
            assert digests == {"sha1:" + "A" * 32}
        report = json.loads(server.get("/crawls/second/report")[1])
    assert (report["lookups"], report["duplicates"], report["captures"]) == (2, 0, 0)


def test_a_script_of_ones_own_keeps_its_callbacks(
    crawl: Crawler, index: Path, tmp_path: Path
) -> None:
    script = tmp_path / "own.lua"
    script.write_text(
        "wget.callbacks.write_to_warc = function(url, stat)\n"
        "  return not url.url:match('logo')\n"
        "end\n"
        "wget.callbacks.before_exit = function(status, text)\n"
        "  io.stderr:write('dedupindex: own ' .. text .. '\\n')\n"
        "  return status\n"
        "end\n"
        "dofile(os.getenv('DEDUPINDEX_HOOK'))\n"
    )
    with site() as base, serving(index) as server:
        url = f"http://127.0.0.1:{server.port}"
        crawl("first", url, base + "/")
        urls = [base + path for path in ("/", "/logo.png")]
        done = crawl("second", url, f"--lua-script={script}", *urls, DEDUPINDEX_COMMIT="no")
        state = json.loads(server.get("/crawls/second")[1])
    assert done.types(base) == {"/": "revisit"}
    assert done.errors == "dedupindex: own SUCCESS"
    assert (state["state"], state["not_looked_up"]) == ("open", 0)


def test_without_a_token_lookups_go_on(crawl: Crawler, index: Path) -> None:
    """Which a crawl needs that is to be begun."""
    # Another worker sees the first crawl of an index a quarter of a second after it was begun.
    with site() as base, serving(index, "--workers", "1") as server:
        url = f"http://127.0.0.1:{server.port}"
        token = dedupindex("token", index, "--add", "wget")[0].strip()
        first = crawl("first", url, base + "/", DEDUPINDEX_TOKEN=token)
        done = crawl("second", url, base + "/")
        assert first.errors == "" and "crawl second could not be begun" in done.errors
        assert done.types(base) == {"/": "revisit"}


def test_a_server_that_is_away_from_the_start(crawl: Crawler) -> None:
    with site() as base:
        done = crawl("weekly", f"http://127.0.0.1:{free_port()}", base + "/")
    assert done.types(base) == {"/": "response"}


def test_the_script_needs_the_name_of_the_warc() -> None:
    need("bash", found=Path("/bin/bash").exists())
    done = subprocess.run([SCRIPT, "http://a/"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "give --warc-file=NAME\n")
