"""Harvests of several crawlers through all stages: every capture replays in pywb as it did before.

Real ones of wget (chunked, compressed, over several URLs and files), jwarc and warcprox, and made
ones of WARC/1.1 with fractions of seconds. Those of Heritrix are in ``test_heritrix``.
"""

from __future__ import annotations

import gzip
import json
import random
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from dedupindex.verify.collection import Collection
from tests.conftest import need
from tests.peers.heritrix import Page, Site
from tests.peers.proof import Deduplicated, archives, deduplicated, remarks, replayed, verdicts
from tests.peers.replay import free_port, records
from tests.peers.site import COPIES, PAGES, site
from tests.peers.test_jwarc import jwarc
from tests.peers.test_warcprox import fetch, proxying
from tests.peers.test_wget_dedup import harvest
from tests.support import verifying
from tests.support.verifying import DAY, HOST, write
from tests.support.warc_cases import HTTP, chunked, record_id, request, response, sha1
from tests.unit.cli.test_cli import dedupindex

pytestmark = pytest.mark.peer
ENCODED = (("Content-Encoding", "gzip"),)


def prose(seed: int, length: int) -> bytes:
    """Text that does not compress to nothing."""
    return random.Random(seed).randbytes(length).hex()[:length].encode()


def add_traps(site: Site) -> None:
    """Payloads that are the same and yet must not be shown for each other, and some that may."""
    pages = site.pages
    for path in ("/feed.xml", "/copy/feed.xml", "/story.html", "/told/again.html", "/gone.html"):
        pages[path] = pages[path]._replace(body=prose(len(pages[path].body), 3000))
    packed, streamed, feed = (pages[path] for path in ("/data.json", "/streamed.json", "/feed.xml"))
    pages |= {
        "/copy/data.json": packed,
        "/copy/streamed.json": streamed,
        "/unsaid.json": packed._replace(headers=()),  # the same bytes, not called gzip
        "/whole.xml": feed._replace(chunked=False),  # the same feed in one piece
        "/copy/gone.html": pages["/gone.html"],
        "/copy/moved.html": pages["/moved.html"],
        "/copy/empty.bin": pages["/empty.bin"],
        "/as-text.html": pages["/story.html"]._replace(mime="text/plain"),
        "/teapot.html": pages["/story.html"]._replace(status=418),
        "/query?a=1&b=%C3%A9": pages["/logo.png"],
        "/long/" + "x" * 2000: pages["/report.pdf"],
    }


def visit(site: Site, number: int) -> list[str]:
    """Every response says which visit it is for; all URLs."""
    for path, page in site.pages.items():
        rest = [header for header in page.headers if header[0] != "Set-Cookie"]
        headers = (*rest, ("Set-Cookie", f"visit={number}; Path={path}"))
        site.pages[path] = page._replace(headers=headers)
    site.pages["/news.html"] = Page(b"<p>the news of visit %d" % (number % 2) * 60)
    return [site.url + path for path in site.pages]


def next_second() -> None:
    """No tool can distinguish captures of one URL in one second.

    The clock that tools ask for whole seconds is that of the kernel's last tick, up to 10 ms ago.
    """
    time.sleep(1.02 - time.time() % 1)


def wget(folder: Path, name: str, urls: list[str]) -> None:
    """Fetch, into several files."""
    need("wget", found=shutil.which("wget") is not None)
    seeds = folder.parent / f"{name}.txt"
    seeds.write_text("\n".join(urls) + "\n")
    words = ["wget", "--quiet", "--output-document=/dev/null", "--warc-max-size=90K"]
    more = [f"--warc-file={name}", f"--input-file={seeds}", f"--warc-tempdir={folder.parent}"]
    done = subprocess.run([*words, *more], cwd=folder, check=False)
    assert done.returncode == 8  # some pages are errors


def made(folder: Path) -> None:
    """WARC/1.1, compressed and plain: fractions of seconds, digests of two kinds and spellings."""
    plain, entity = prose(7, 960), random.Random(8).randbytes(4000)
    stored = chunked(entity[:1000], entity[1000:])
    packed = gzip.compress(prose(9, 1500), mtime=0)
    heads = {
        "plain": b"HTTP/1.1 200 OK\r\nContent-Length: 960\r\nX-Of: %d\r\n\r\n",
        "chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Of: %d\r\n\r\n",
        "packed": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nX-Of: %d\r\n\r\n",
    }
    bodies = {"plain": plain, "chunked": stored, "packed": packed}
    numbers = count(1)

    def pair(url: str, date: str, kind: str, digest: bytes, head: bytes = b"") -> list[bytes]:
        number, body = next(numbers), bodies[kind]
        head = (head or heads[kind]) % number
        fields = {
            "Target_URI": url.encode(),
            "Date": date.encode(),
            "version": b"WARC/1.1" if "." in date else b"WARC/1.0",
        }
        more = {"Block_Digest": sha1(head + body), "IP_Address": b"192.0.2.1", **fields}
        stored = response(body, head=head, number=number, Payload_Digest=digest, **more)
        asked = request(number=1000 + number, Concurrent_To=record_id(number), **fields)
        return [stored, asked]

    for day, fraction in enumerate((".25", ".123456789", "", ".999999", ".250"), 1):
        made = []
        for place, (kind, body) in enumerate(bodies.items()):
            date = f"2025-01-0{day}T10:00:0{place}{fraction}Z"
            for host in ("made.test", "other.test"):
                digest = sha1(entity) if kind == "chunked" and host == "made.test" else sha1(body)
                made += pair(f"http://{host}/{kind}?v=%E9", date, kind, digest)
        # Twice in one second: with the same payload, and behind an error.
        date = f"2025-01-0{day}T10:00:09{fraction}Z"
        error = b"HTTP/1.1 401 Unauthorized\r\nContent-Type: text/html\r\nX-Of: %d\r\n\r\n"
        for url, status in (("twice", b""), ("login", error)):
            for head in (status, b""):
                made += pair(f"http://made.test/{url}", date, "plain", sha1(plain), head)
        name = f"made-{day}.warc" if day == 2 else f"made-{day}.warc.gz"
        write(folder / name, made, plain=day == 2)


@pytest.fixture(scope="module")
def crawled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """All archives, one folder for each crawler."""
    folder = tmp_path_factory.mktemp("crawled")
    old = folder / "old"
    with closing(Site()) as site:
        add_traps(site)
        for number, name in enumerate(("monday", "tuesday", "wednesday", "thursday")):
            (old / name).mkdir(parents=True)
            next_second()
            urls = visit(site, number)
            if name == "thursday":
                jwarc("fetch", "-o", f"{name}.warc.gz", *urls, folder=old / name)
            else:
                wget(old / name, name, urls)
        next_second()
        good = [path for path, page in site.pages.items() if page.status == 200 and page.body]
        # A server that is down: warcprox stores everything in full.
        with proxying(old / "friday", f"http://127.0.0.1:{free_port()}") as port:
            for path in good:
                fetch(port, site.url + path)
    made(old / "made")
    for left in (*old.rglob("*.pem"), *old.rglob("log")):
        left.unlink()
    yield old


@pytest.fixture(scope="module")
def result(crawled: Path, tmp_path_factory: pytest.TempPathFactory) -> Deduplicated:
    return deduplicated(crawled, tmp_path_factory.mktemp("result"), "--compare", "always")


def test_verify_remarks_nothing_on_files_of_crawlers(crawled: Path) -> None:
    """No false alarms on correct files."""
    assert remarks(crawled) == {}


def test_all_planned_copies_become_revisits(crawled: Path, result: Deduplicated) -> None:
    done = result.done
    assert done["revisits"] + done["refused"].get("no-gain", 0) == result.planned["copies"]
    assert remarks(result.folder) == remarks(crawled)
    now = records(archives(result.folder))
    kinds = {(one.url.partition("/")[2], one.date, one.type) for one in now}
    assert len(kinds) > 100


def test_other_readers_find_nothing_wrong(crawled: Path, result: Deduplicated) -> None:
    count = verdicts(crawled, result.folder)
    assert count > 300


def test_every_capture_replays_as_before(
    crawled: Path, result: Deduplicated, tmp_path: Path
) -> None:
    assert replayed(crawled, result.folder, tmp_path) == result.done["revisits"]


def test_one_command_makes_the_same(crawled: Path, result: Deduplicated, tmp_path: Path) -> None:
    new = tmp_path / "new"
    dry, _ = dedupindex("dedup", crawled, "--out", new, "--dry-run", "--json")
    done, _ = dedupindex("dedup", crawled, "--out", new, "--json")
    numbers = ("revisits", "bytes_before", "bytes_after")
    said = [[json.loads(text)[name] for name in numbers] for text in (dry, done)]
    assert said == [[result.done[name] for name in numbers]] * 2
    assert {path.relative_to(new): path.read_bytes() for path in archives(new)} == {
        path.relative_to(result.folder): path.read_bytes() for path in archives(result.folder)
    }


def test_back_again(crawled: Path, result: Deduplicated, tmp_path: Path) -> None:
    """In place, and back, bit for bit; as files elsewhere, record for record."""
    place = shutil.copytree(crawled, tmp_path / "place")
    before = {path: path.read_bytes() for path in archives(place)}
    dedupindex("manifest", place, "-o", tmp_path / "m")
    dedupindex("resolve", tmp_path / "m", "-o", tmp_path / "plan")
    dedupindex("rewrite", tmp_path / "plan", "--in-place")
    for path in archives(place):
        name = path.relative_to(place)
        assert path.read_bytes() == (result.folder / name).read_bytes(), name
    dedupindex("rewrite", tmp_path / "plan", "--undo")
    assert {path: path.read_bytes() for path in archives(place)} == before
    dedupindex("undedup", result.folder, "--out", tmp_path / "back")
    was, now = records(archives(crawled)), records(archives(tmp_path / "back"))
    assert now == was


def test_originals_of_wget_revisits_are_kept(tmp_path: Path) -> None:
    """They name their originals by record id alone, and pywb then takes a response of their URL."""
    old = tmp_path / "old"
    old.mkdir()
    with site() as base:
        pages = [base + path for path in PAGES]
        harvest(old, "copies", [base + path for path in COPIES])
        harvest(old, "first", pages)
        dedupindex("index", "-w", "-m", ".*", old / "first.warc.gz", tmp_path / "index")
        dedupindex("export", "--wget", tmp_path / "index", "--out", tmp_path / "dedup.cdx")
        again = harvest(old, "second", pages, f"--warc-dedup={tmp_path / 'dedup.cdx'}")
        next_second()
        harvest(old, "third", pages)
    assert {one.type for one in again} == {"revisit"}
    for left in old.glob("*.txt"):
        left.unlink()
    result = deduplicated(old, tmp_path)
    assert result.planned["kept"]["referred-to"] == len(COPIES)
    verdicts(old, result.folder)
    assert replayed(old, result.folder, tmp_path) == result.done["revisits"] >= len(COPIES)
    said = [
        Counter(one.reason for one in Collection([place]).findings())
        for place in (old, result.folder)
    ]
    assert said[0] == said[1]


def one_second(number: int) -> list[list[bytes]]:
    """The records of one URL, of two harvests and perhaps of one before them, all of one second."""
    at = {"Target_URI": HOST + b"%d" % number, "Date": DAY % 2}
    https = {**at, "Target_URI": HOST.replace(b"http:", b"https:") + b"%d" % number}
    body, other = prose(number, 900), prose(-number - 1, 700)
    served = HTTP.replace(b"\r\n\r\n", b"\r\nServer: b\r\n\r\n")
    denied = HTTP.replace(b"200 OK", b"403 No")
    ids = count(100 * number)

    def stored(payload: bytes = body, **options: Any) -> bytes:
        return verifying.page(next(ids), payload, **{**at, **options})

    before = [stored(Date=DAY % 1)]
    png = HTTP.replace(b"text/html; charset=utf-8", b"image/png")
    kinds: tuple[list[list[bytes]], ...] = (
        [[], [stored()], [stored()]],
        [before, [stored()], [stored()]],
        [[], [stored(), stored()], [stored()]],
        [before, [stored(head=png)], [stored(head=png)]],
        [[], [stored()], [stored(head=served)]],
        [before, [stored()], [stored(head=served)]],
        [before, [stored(head=denied)], [stored()]],
        [[], [stored()], [stored(other)]],
        [before, [stored()], [stored(other)]],
        [[], [stored()], [stored(**https)]],
        [before, [stored(), stored()], [stored(**https)]],
        [[], [stored(**https)], [stored(), stored(**https)]],
    )
    return kinds[number % len(kinds)]


def test_captures_of_one_second_replay_as_before(tmp_path: Path) -> None:
    """Where all of a second are equal, pywb shows the same whichever became revisits."""
    old, moments = tmp_path / "old", [one_second(number) for number in range(120)]
    for harvest_number in range(3):
        found = [record for records in moments for record in records[harvest_number]]
        write(old / f"{harvest_number}.warc.gz", found)
    result = deduplicated(old, tmp_path)
    assert result.done["revisits"] == 10 * (1 + 2 + 2 + 2 + 0 + 0 + 0 + 0 + 0 + 0 + 3 + 1)
    assert result.planned["kept"]["same-second"] == 10 * (1 + 2 + 1 + 1 + 1 + 1)
    assert remarks(result.folder) == remarks(old) == {}
    assert replayed(old, result.folder, tmp_path) == result.done["revisits"]
