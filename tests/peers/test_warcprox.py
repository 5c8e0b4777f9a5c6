"""A real warcprox with our plugin: two crawls, buckets, outages; pywb replays what it wrote."""

from __future__ import annotations

import json
import os
import re
import threading
from base64 import b32encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import sha1
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dedupindex.capture import Capture, Covers
from dedupindex.client import Client
from dedupindex.digest import parse_spelled
from dedupindex.index.identity import Settings
from tests.conftest import MakeIndex
from tests.peers.environments import DEADLINE, ROOT, WARCPROX, environment, running, until
from tests.peers.proof import remarks
from tests.peers.replay import (
    check_references,
    check_revisits,
    free_port,
    listening,
    records,
    replay,
)
from tests.peers.site import COPIES, PAGES, bodies, site
from tests.test_cli import dedupindex
from tests.test_server_live import Running, serving
from tests.test_server_live import until as server_until

pytestmark = pytest.mark.peer
EVERYTHING = Settings(mime=".*", whitelist=True)
ALL = [*PAGES, *COPIES]


@pytest.fixture
def index(make_index: MakeIndex) -> Path:
    return make_index([], EVERYTHING)


@contextmanager
def proxying(
    folder: Path,
    server: str,
    crawl: str = "",
    script: str = "plugin.sh",
    more: Sequence[str] = (),
    **env: str,
) -> Iterator[int]:
    """warcprox with our plugin, writing to `folder`; when it has ended its WARCs are whole."""
    tools, port = environment("warcprox", WARCPROX), free_port()
    (folder / "bin").mkdir(parents=True)
    allowed = folder / "bin" / "warcprox"  # the command, allowed to fetch from loopback
    main = ROOT / "tests" / "peers" / "warcprox_main.py"
    allowed.write_text(f'#!/bin/sh\nexec "{tools / "python"}" "{main}" "$@"\n')
    allowed.chmod(0o755)
    words = [
        *(ROOT / "conf" / "warcprox" / script, *more),
        *("-b", "127.0.0.1", "-p", str(port), "-d", folder),
        *("-z", "--stats-db-file=/dev/null", "-c", folder / "ca.pem"),
        *("--certs-dir", folder / "certs"),
    ]
    settings = {
        "PATH": f"{allowed.parent}:{os.environ['PATH']}",
        "PYTHONPATH": "",
        "DEDUPINDEX_URL": server,
        "DEDUPINDEX_CRAWL": crawl,
        **env,
    }
    with running(words, folder / "log", lambda: listening(port), **settings):
        yield port


def fetch(port: int, url: str, **headers: str) -> bytes:
    """A URL's body through the proxy."""
    connection = HTTPConnection("127.0.0.1", port, timeout=DEADLINE)
    try:
        connection.request("GET", url, headers={"Host": urlsplit(url).netloc, **headers})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        return response.read()
    finally:
        connection.close()


def crawl(port: int, base: str, paths: Sequence[str], **headers: str) -> None:
    for path in paths:
        assert fetch(port, base + path, **headers) == bodies(base)[base + path]


def warcs(*folders: Path) -> list[Path]:
    return [path for folder in folders for path in sorted(folder.glob("*.warc.gz"))]


def types(folder: Path) -> dict[str, str]:
    """What was written of each URL."""
    found = records(warcs(folder))
    assert len({one.url for one in found}) == len(found)
    return {one.url: one.type for one in found}


def counted(folder: Path) -> dict[str, object]:
    """The counts that the plugin logs when warcprox ends."""
    text = (folder / "log").read_text()
    start = text.rindex("{'lookups'")
    counts = text[start : text.index("}}", start) + 2]
    return dict(json.loads(counts.replace("'", '"')))


def until_lookups(server: Running, name: str, count: int) -> dict[str, object]:
    """The report of a crawl when so many lookups are in it."""

    def report() -> dict[str, object]:
        return dict(json.loads(server.get(f"/crawls/{name}/report")[1]))

    assert server_until(lambda: report()["lookups"] == count), report()
    return report()


def test_the_second_crawl_is_all_revisits_and_replays(index: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    with site() as base:
        with serving(index) as server:
            url = f"http://127.0.0.1:{server.port}"
            with proxying(first, url, "one", DEDUPINDEX_COMMIT="1") as port:
                crawl(port, base, list(PAGES))
            with Client(url) as client:
                state = json.loads(server.get("/crawls/one")[1])
                assert (state["state"], state["captures"]) == ("committed", len(PAGES))
                assert (state["not_looked_up"], state["not_reported"]) == (0, 0)
            with proxying(second, url, "two") as port:
                crawl(port, base, ALL)
            asked = until_lookups(server, "two", len(ALL))
            assert (asked["duplicates"], asked["stored"], asked["not_looked_up"]) == (
                len(ALL),
                0,
                None,  # nobody has committed it, and there was nothing to tell
            )
        assert set(types(first).values()) == {"response"} and len(types(first)) == len(PAGES)
        assert set(types(second).values()) == {"revisit"} and len(types(second)) == len(ALL)
        found = records(warcs(first, second))
        assert check_references(found) == len(ALL)
        others = {one.url: one.refers_to_url for one in found if one.type == "revisit"}
        assert others[base + "/copy/logo.png"] == base + "/logo.png"
        assert client.counts.not_looked_up == 0
        counts = counted(second)
        assert (counts["lookups"], counts["hits"]) == (len(ALL), len(ALL))
        with replay(warcs(first, second), tmp_path) as archive:
            assert check_revisits(found, archive, bodies(base)) == len(ALL)
        assert set(remarks(first, second)) == {"not-truncated"}


def test_where_tokens_are_needed(index: Path, tmp_path: Path) -> None:
    """To look up and to report; with none, all is stored."""
    token = dedupindex("token", index, "--add", "warcprox")[0].strip()
    with site() as base, serving(index, "--private") as server:
        url = f"http://127.0.0.1:{server.port}"
        for number, given in enumerate(("", token, token)):
            env = {"DEDUPINDEX_TOKEN": given, "DEDUPINDEX_COMMIT": "1"}
            with proxying(tmp_path / str(number), url, f"no-{number}", **env) as port:
                crawl(port, base, ["/logo.png"])
    written = [list(types(tmp_path / str(number)).values()) for number in range(3)]
    assert written == [["response"], ["response"], ["revisit"]]
    assert token not in (tmp_path / "1" / "log").read_text()


def test_what_is_asked_without_a_crawl_says_what_its_digests_cover(
    make_index: MakeIndex, tmp_path: Path
) -> None:
    """A chunked original whose digest is of the chunks: what has equal bytes is another payload."""
    with site() as base:
        originals = [
            Capture(
                *parse_spelled("sha1:" + b32encode(sha1(PAGES[path].body).digest()).decode()),
                url=(base + path).encode(),
                date=b"2026-11-01T00:00:00Z",
                covers=covers,
                status=200,
                mime=b"image/png",
                size=len(PAGES[path].body),
            )
            for path, covers in (("/logo.png", Covers.STORED), ("/data", Covers.BOTH))
        ]
        with serving(make_index(originals, EVERYTHING)) as server:
            url = f"http://127.0.0.1:{server.port}"
            for name, headers in (("plain", {}), ("bucket", meta(base="ro"))):
                with proxying(tmp_path / name, url) as port:
                    crawl(port, base, ["/logo.png", "/data"], **headers)
        for name in ("plain", "bucket"):
            kinds = {base + "/logo.png": "response", base + "/data": "revisit"}
            assert types(tmp_path / name) == kinds


def test_a_crawl_finds_its_own(index: Path, tmp_path: Path) -> None:
    """Without a commit, by the name of the crawl; another crawl sees nothing of it."""
    with site() as base, serving(index) as server:
        url = f"http://127.0.0.1:{server.port}"
        for number, name in enumerate(("one", "one", "other")):
            with proxying(tmp_path / str(number), url, name) as port:
                crawl(port, base, ["/logo.png"])
    written = [list(types(tmp_path / str(number)).values()) for number in range(3)]
    assert written == [["response"], ["revisit"], ["response"]]


def meta(**buckets: str) -> dict[str, str]:
    """The header that names buckets."""
    named = {name.replace("_", " "): mode for name, mode in buckets.items()}
    return {"Warcprox-Meta": json.dumps({"dedup-buckets": named})}


def test_buckets_are_namespaces(index: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    with site() as base, serving(index) as server:
        url = f"http://127.0.0.1:{server.port}"
        with proxying(first, url, "one", DEDUPINDEX_COMMIT="1") as port:
            crawl(port, base, ["/"], **meta(news="rw", bad_name="rw"))
            crawl(port, base, ["/data"], **meta(base="ro"))
            crawl(port, base, ["/logo.png"])
        crawls = json.loads(server.get("/crawls")[1])["crawls"]
        told = {one["name"]: (one["namespace"], one["state"], one["captures"]) for one in crawls}
        assert told == {"one.news": ("news", "committed", 1), "one": (None, "committed", 1)}
        assert "bucket 'bad name' is ignored" in (first / "log").read_text()
        with proxying(second, url, "two") as port:
            crawl(port, base, ["/"], **meta(other="rw"))  # what news has committed is not for it
            crawl(port, base, ["/data"], **meta(news="rw"))
            crawl(port, base, ["/logo.png"], **meta(other="rw"))  # in no namespace: for all
            crawl(port, base, ["/copy/logo.png"])
        third = tmp_path / "third"
        with proxying(third, url, "three") as port:
            crawl(port, base, ["/"], **meta(base="ro", news="ro"))
            crawl(port, base, ["/data"])
        crawls = json.loads(server.get("/crawls")[1])["crawls"]
        names = {one["name"] for one in crawls}
        assert names == {"one", "one.news", "two", "two.other", "two.news", "three"}
    assert types(second) == {
        base + "/": "response",
        base + "/data": "response",
        base + "/logo.png": "revisit",
        base + "/copy/logo.png": "revisit",
    }
    assert types(third) == {base + "/": "revisit", base + "/data": "response"}
    found = records(warcs(first, second, third))
    assert check_references(found) == 3


@pytest.mark.parametrize("whose", ["policy", "warcprox"])
def test_in_the_blackout_period_nothing_is_written(whose: str, index: Path, tmp_path: Path) -> None:
    folder = tmp_path / "warcs"
    more = ["--blackout-period=3600"] if whose == "warcprox" else []
    with site() as base, serving(index) as server:
        url = f"http://127.0.0.1:{server.port}"
        with Client(url) as client:
            policy = [{"blackout": "1h"}] if whose == "policy" else []
            client.begin("one", digest_covers="entity", policy=policy)
            with proxying(folder, url, "one", more=more) as port:
                crawl(port, base, ["/logo.png"])
                until(lambda: _captures(server, "one") == 1, None, folder / "log")
                for _ in range(2):
                    crawl(port, base, ["/logo.png"])
                crawl(port, base, ["/copy/logo.png"])
    assert types(folder) == {base + "/logo.png": "response", base + "/copy/logo.png": "revisit"}
    if whose == "policy":
        assert "{'skipped': 2}" in (folder / "log").read_text()


def _captures(server: Running, name: str) -> int:
    return int(json.loads(server.get(f"/crawls/{name}")[1])["captures"])


def test_a_hit_that_replay_would_not_find_is_not_used(index: Path, tmp_path: Path) -> None:
    """Originals in base32, warcprox in hex: pywb compares the text of digests."""
    first, second = tmp_path / "first", tmp_path / "second"
    text = (ROOT / "conf" / "warcprox" / "plugin.sh").read_text()
    in_hex = tmp_path / "in_hex.sh"
    here = f"here={ROOT / 'conf' / 'warcprox'}"
    in_hex.write_text(re.sub("^here=.*$", here, text.replace("--base32 ", ""), flags=re.MULTILINE))
    in_hex.chmod(0o755)
    with site() as base, serving(index) as server:
        url = f"http://127.0.0.1:{server.port}"
        with proxying(first, url, "one", DEDUPINDEX_COMMIT="1") as port:
            crawl(port, base, ["/logo.png"])
        with proxying(second, url, "two", script=str(in_hex)) as port:
            crawl(port, base, ["/logo.png"])
    assert list(types(second).values()) == ["response"]
    assert "run it with --base32" in (second / "log").read_text()


@contextmanager
def refusing() -> Iterator[str]:
    """A server that answers 503 to everything."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(503)

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("outage", ["down", "503"])
def test_in_an_outage_everything_is_stored(outage: str, tmp_path: Path) -> None:
    folder = tmp_path / "warcs"
    with site() as base, refusing() as url:
        if outage == "down":
            url = f"http://127.0.0.1:{free_port()}"
        with proxying(folder, url, "one") as port:
            crawl(port, base, ALL)
    assert types(folder) == dict.fromkeys(bodies(base), "response")
    counts = counted(folder)
    assert counts["lookups"] == counts["not_looked_up"] == counts["not_reported"] == len(ALL)
    assert (counts["hits"], counts["misses"]) == (0, 0)


def test_a_server_that_dies_in_mid_crawl(index: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    with site() as base, serving(index) as server:
        url = f"http://127.0.0.1:{server.port}"
        with proxying(first, url, "one", DEDUPINDEX_COMMIT="1") as port:
            crawl(port, base, list(PAGES))
        before, after = list(PAGES)[:2], ALL[2:]
        with proxying(second, url, "two") as port:
            crawl(port, base, before)
            # Its WARC is still open.
            open_warcs = partial(second.glob, "*.warc.gz.open")
            until(lambda: len(records(open_warcs())) == 2, None, second / "log")
            server.process.terminate()
            server.process.wait(DEADLINE)
            crawl(port, base, after)
    written = types(second)
    assert len(written) == len(ALL)
    assert [written[base + path] for path in before] == ["revisit"] * len(before)
    assert [written[base + path] for path in after] == ["response"] * len(after)
    assert counted(second)["not_looked_up"] == len(after)
