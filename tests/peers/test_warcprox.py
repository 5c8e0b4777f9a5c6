"""A real warcprox with our plugin: two crawls, buckets, outages; pywb replays what it wrote."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import threading
import time
from base64 import b32encode
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from hashlib import sha1
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from dedupindex.capture import Capture, Covers
from dedupindex.client import Client
from dedupindex.digest import parse_spelled
from dedupindex.index.identity import Settings
from demo.site import Page
from tests.conftest import MakeIndex
from tests.integration.test_server_live import Running, serving
from tests.integration.test_server_live import until as server_until
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
from tests.support.stub_server import replying, stub_server
from tests.unit.cli.test_cli import dedupindex

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
        *("-z", "-c", folder / "ca.pem", "--certs-dir", folder / "certs"),
    ]
    settings = {
        "PATH": f"{allowed.parent}:{os.environ['PATH']}",
        "PYTHONPATH": "",
        "DEDUPINDEX_URL": server,
        "DEDUPINDEX_CRAWL": crawl,
        **env,
    }
    log = folder / "log"
    with running(words, log, lambda: has_started(port, log), **settings):
        yield port


def has_started(port: int, log: Path) -> bool:
    """Return whether the last of warcprox's processors, which makes no table, has started.

    It accepts connections before it makes the table of its own deduplication, without which it
    drops what it has fetched.
    """
    return b"RunningStats(tid=" in log.read_bytes() and listening(port)


def fetch(
    port: int, url: str, *, method: str = "GET", expected: int = 200, **headers: str
) -> bytes:
    """A URL's body through the proxy."""
    connection = HTTPConnection("127.0.0.1", port, timeout=DEADLINE)
    try:
        connection.request(method, url, headers={"Host": urlsplit(url).netloc, **headers})
        response = connection.getresponse()
        assert response.status == expected, response.read()
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

    assert server_until(lambda: report().get("lookups") == count), report()
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
                0,  # nobody has committed it, but the plugin has told it at its end
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


def test_new_payloads_are_found_in_the_digest_filter(index: Path, tmp_path: Path) -> None:
    """Duplicates within the crawl are found as without it."""
    dedupindex("index", "--digest-filter", index)
    with site() as base, serving(index) as server:

        def has_the_filter() -> bool:
            """Whether the plugin has the filter, and knows that its crawl has no namespace."""
            text = server.get("/metrics")[1].decode()
            routes = ("digest_filter", "show_crawl")
            return all(f'route_seconds_count{{route="{route}"}}' in text for route in routes)

        url, env = f"http://127.0.0.1:{server.port}", {"DEDUPINDEX_COMMIT": "1"}
        with proxying(tmp_path / "w", url, "one", DEDUPINDEX_FILTER="60", **env) as port:
            crawl(port, base, ALL[:1])
            assert server_until(has_the_filter)
            crawl(port, base, ALL[1:])
        report = until_lookups(server, "one", len(ALL))
    counts = counted(tmp_path / "w")
    assert (counts["lookups"], counts["hits"]) == (len(ALL), len(COPIES))
    assert counts["answered_by_filter"] == report["answered_by_filter"] == len(PAGES) - 1
    assert (report["duplicates"], report["stored"]) == (len(COPIES), len(PAGES))
    written = types(tmp_path / "w")
    assert {url for url, kind in written.items() if kind == "revisit"} == {
        base + path for path in COPIES
    }


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


def test_lookups_without_a_crawl_state_their_digest_coverage(
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


def test_a_crawl_finds_its_own_captures_while_it_runs(index: Path, tmp_path: Path) -> None:
    """Of payloads that come many times at once, too: each is written once, the first time.

    warcprox's StatsProcessor, which stands before the plugins, holds captures for half a minute.
    """
    folder, kinds = tmp_path / "warcs", 4
    pages = {
        f"/{number}/{kind}": Page(random.Random(kind).randbytes(4000), "image/png")
        for number in range(10)
        for kind in range(kinds)
    }
    with site(pages) as base, serving(index) as server:
        url = f"http://127.0.0.1:{server.port}"
        with proxying(folder, url, "one", DEDUPINDEX_COMMIT="1") as port:

            def fetched(path: str) -> bool:
                return fetch(port, base + path) == pages[path].body

            with ThreadPoolExecutor(8) as pool:
                assert all(pool.map(fetched, pages))
        crawl = json.loads(server.get("/crawls/one")[1])
        assert (crawl["state"], crawl["captures"]) == ("committed", kinds)
    found = records(warcs(folder))
    written = [one for one in found if one.type == "response"]
    assert len({one.digest for one in written}) == len(written) == kinds
    assert check_references(found) == len(pages) - kinds
    counts = counted(folder)
    assert (counts["lookups"], counts["hits"]) == (len(pages), len(pages) - kinds)
    assert (counts["added"], counts["refused"], counts["not_reported"]) == (kinds, 0, 0)


def test_records_that_the_writer_omits_are_no_originals(index: Path, tmp_path: Path) -> None:
    """Looked up before warcprox decided so; the next time the payload is stored."""
    folder = tmp_path / "warcs"
    leave_out = {"mime-type-filters": [{"type": "REJECT", "regex": "image/.*"}]}
    elsewhere = {"warc-prefix": "-"}
    with (
        site() as base,
        serving(index) as server,
        proxying(folder, f"http://127.0.0.1:{server.port}", "one") as port,
    ):
        for meta in (leave_out, elsewhere):
            crawl(port, base, ["/logo.png"], **{"Warcprox-Meta": json.dumps(meta)})
        crawl(port, base, ["/copy/logo.png", "/logo.png"])
    kinds = {base + "/copy/logo.png": "response", base + "/logo.png": "revisit"}
    assert types(folder) == kinds
    assert counted(folder)["added"] == 1


@pytest.mark.parametrize("status", ["200", "2xx,404"])
def test_only_admissible_records_are_looked_up_and_reported(
    status: str, make_index: MakeIndex, tmp_path: Path
) -> None:
    """Never the answer to a POST, which may be another each time."""
    odd = {
        "/moved": Page(b"moved " * 50, status=302),
        "/gone": Page(b"gone " * 50, status=404),
        "/made": Page(b"made " * 50, status=201),
        "/part": Page(b"part " * 50, status=206),
        "/film": Page(b"film " * 50, "video/mp4"),
        "/short": Page(b"short", "image/png"),
    }
    index = make_index([], replace(EVERYTHING, status=status, mime="(text|image)/", min_size=10))
    folder = tmp_path / "warcs"
    with (
        site(odd) as base,
        serving(index) as server,
        proxying(folder, f"http://127.0.0.1:{server.port}", "one") as port,
    ):
        for path, page in odd.items():
            assert fetch(port, base + path, expected=page.status) == page.body
        assert fetch(port, base + "/logo.png", method="POST") == PAGES["/logo.png"].body
        crawl(port, base, ["/logo.png"])
    assert [one.type for one in records(warcs(folder))] == ["response"] * (len(odd) + 2)
    counts = counted(folder)
    taken = 1 if status == "200" else 3  # the logo; what is gone, and what is made
    assert (counts["lookups"], counts["added"], counts["refused"]) == (taken, taken, 0)


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
def test_no_records_are_written_in_the_blackout_period(
    whose: str, index: Path, tmp_path: Path
) -> None:
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
    return int(_of_crawl(server, name)["captures"])


def _of_crawl(server: Running, name: str) -> dict[str, Any]:
    return dict(json.loads(server.get(f"/crawls/{name}")[1]))


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


@pytest.mark.parametrize("outage", ["down", "503"])
def test_in_an_outage_everything_is_stored(outage: str, tmp_path: Path) -> None:
    folder = tmp_path / "warcs"
    with site() as base, stub_server(replying(503)) as url:
        if outage == "down":
            url = f"http://127.0.0.1:{free_port()}"
        with proxying(folder, url, "one") as port:
            crawl(port, base, ALL)
    assert types(folder) == dict.fromkeys(bodies(base), "response")
    counts = counted(folder)
    assert counts["lookups"] == counts["not_looked_up"] == counts["not_reported"] == len(ALL)
    assert (counts["hits"], counts["misses"]) == (0, 0)
    log = (folder / "log").read_text()
    assert f"stored and not reported: {len(ALL)}; index the WARCs" in log
    assert f"crawl one is begun later, when {url} answers" in log


def test_a_crawl_is_committed_only_if_that_is_wanted(index: Path, tmp_path: Path) -> None:
    """What is stored for a crawl that has ended counts as not reported: nobody knows of it."""
    first, second = tmp_path / "first", tmp_path / "second"
    with site() as base, serving(index) as server:
        url = f"http://127.0.0.1:{server.port}"
        with proxying(first, url, "one", DEDUPINDEX_COMMIT="no") as port:
            crawl(port, base, list(PAGES)[:1])
        assert json.loads(server.get("/crawls/one")[1])["state"] == "open"
        with Client(url) as client:
            client.commit("one", "test")
        with proxying(second, url, "one", DEDUPINDEX_COMMIT="no") as port:
            crawl(port, base, list(PAGES)[1:2])
    counts, log = counted(second), (second / "log").read_text()
    assert (counts["misses"], counts["added"], counts["not_reported"]) == (1, 0, 1)
    assert "crawl one is looked up but not reported to" in log
    assert "stored and not reported: 1; index the WARCs" in log


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("DEDUPINDEX_COMMIT", "perhaps", "DEDUPINDEX_COMMIT: 'perhaps' is not yes or no\n"),
        ("DEDUPINDEX_FILTER", "ten", "DEDUPINDEX_FILTER: 'ten' is not a number of seconds\n"),
        ("DEDUPINDEX_URL", "127.0.0.1:8484", "DEDUPINDEX_URL: '127.0.0.1:8484' is not a URL"),
    ],
)
def test_a_wrong_setting_ends_warcprox_with_a_sentence(
    tmp_path: Path, name: str, value: str, said: str
) -> None:
    tools = environment("warcprox", WARCPROX)
    done = subprocess.run(
        [ROOT / "conf/warcprox/plugin.sh", "-p", "0", "-d", tmp_path / "warcs"],
        env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": "", name: value},
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=DEADLINE,
    )  # fmt: skip
    assert done.returncode == 1 and said in done.stderr and "Traceback" not in done.stderr


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


def test_it_asks_again_as_soon_as_the_server_is_back(index: Path, tmp_path: Path) -> None:
    """Which it probes every second: a crawler that rested for half a minute would be found out."""
    with site() as base, ExitStack() as servers:
        server = servers.enter_context(serving(index))
        with proxying(tmp_path / "warcs", f"http://127.0.0.1:{server.port}", "one") as port:
            crawl(port, base, ["/"])
            until_lookups(server, "one", 1)
            server.process.terminate()
            server.process.wait(DEADLINE)
            crawl(port, base, ALL)  # enough of them to leave the server alone
            servers.enter_context(serving(index, "--port", str(server.port)))
            back, before = time.monotonic(), _of_crawl(server, "one")["lookups"]

            def is_asked() -> bool:
                crawl(port, base, ["/"])
                return bool(_of_crawl(server, "one")["lookups"] > before)

            until(is_asked, None, tmp_path / "warcs" / "log")
            assert time.monotonic() - back < 15  # about a second, where nothing else runs
            # What was stored meanwhile was kept, and is reported without another capture.
            everything = len({page.body for page in PAGES.values()})
            captures = partial(_captures, server, "one")
            until(lambda: captures() >= everything, None, tmp_path / "warcs" / "log")


def test_its_end_waits_for_a_server_that_is_being_restarted(index: Path, tmp_path: Path) -> None:
    """A crawl is committed with all that it holds."""
    folder = tmp_path / "warcs"
    with site() as base, ExitStack() as servers:
        server = servers.enter_context(serving(index))

        def come_back() -> None:
            log = folder / "log"
            until(lambda: "is committed when the server answers" in log.read_text(), None, log)
            servers.enter_context(serving(index, "--port", str(server.port)))

        again = threading.Thread(target=come_back)
        url = f"http://127.0.0.1:{server.port}"
        with proxying(folder, url, "one", DEDUPINDEX_COMMIT="1") as port:
            crawl(port, base, ["/logo.png"])
            until_lookups(server, "one", 1)
            server.process.terminate()
            server.process.wait(DEADLINE)
            crawl(port, base, ["/data"])
            again.start()
        again.join()
        ended = _of_crawl(server, "one")
        assert (ended["state"], ended["captures"], ended["not_looked_up"]) == ("committed", 2, 1)


HELD = """
import dedupindex_warcprox as plugin

class Url:
    warc_records = None

class Client:
    kept, reported = 0, []
    def report(self, captures, crawl):
        self.reported.append((crawl, len(captures)))

waits = []
now = [0.0]
class Time:
    monotonic = staticmethod(lambda: now[0])
    @staticmethod
    def sleep(seconds):
        waits.append(seconds)
        now[0] += 1

plugin.time = Time
held = plugin.Held(Client())
lost, left_out = Url(), Url()
held.add(lost, "sha1:A", ["one"])
held.settle("sha1:B")
assert waits == []
held.settle("sha1:A")  # the writer has failed: nobody waits for that twice
assert 1 <= len(waits) <= 10
seen = len(waits)
held.settle("sha1:A")
assert len(waits) == seen and len(held) == 1
held.drop(lost)
assert len(held) == 0
held.add(left_out, "sha1:C", ["one"])
left_out.warc_records = ()
held.settle("sha1:C")
assert len(held) == 0 and sum(count for _, count in Client.reported) == 0
for number in range(plugin._HELD + 10):
    held.add(Url(), f"sha1:{number}", ["one"])
assert len(held) == plugin._HELD == len(held._digests)
print("well")
"""


def test_records_never_written_delay_lookups_once() -> None:
    """Nor do they fill the memory, however many there are."""
    python = environment("warcprox", WARCPROX) / "python"
    path = f"{ROOT / 'conf' / 'warcprox'}:{ROOT}"
    words = [python, "-c", HELD]
    done = subprocess.run(words, env={"PYTHONPATH": path}, capture_output=True, text=True)
    assert done.stdout == "well\n", done.stderr
