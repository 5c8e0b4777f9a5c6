"""Pages of reports (`--html FILE`) in a real browser: light and dark, on a phone and a desk."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.integration.test_server_live import JSON_BODY, serving
from tests.peers.browser import axe_script, browser
from tests.support.paths import ROOT
from tests.support.verifying import BODY, page, write
from tests.support.warc_cases import sha1

pytestmark = pytest.mark.peer

LONG = b"http://images.museum.example.ac.uk/" + b"a" * 190
RELATION = "jaccard(k=3) >= 0.8 and timestamp(a) <= timestamp(b)"
WITHOUT_TEXT = """return [...document.querySelectorAll('img, svg:not([aria-hidden="true"])')]
    .filter((one) => one.getAttribute('role') !== 'img' || !one.ariaLabel?.trim())
    .map((one) => one.outerHTML)"""
CUT = """return [
    ...[...document.querySelectorAll('caption')]
      .filter((one) => one.getBoundingClientRect().right > innerWidth),
    ...[...document.querySelectorAll('.graph')].filter((graph) =>
      [...graph.querySelectorAll('circle')]
        .every((one) => one.getBoundingClientRect().right > innerWidth)),
    ].map((one) => one.textContent)"""  # what cannot be seen without scrolling a table or graph
REQUESTS = "return performance.getEntriesByType('resource').map((one) => one.name)"


def run(name: str, *words: object, status: int = 0) -> None:
    """Run a command of ``bin/`` as a user types it."""
    line = [str(ROOT / "bin" / name), *map(str, words)]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == status, (line, done.stderr)


def pages_of(year: int) -> list[bytes]:
    """Records of a crawl: some pages as in the years before, some changed, and some refused."""

    def record(number: int, url: bytes, body: bytes) -> bytes:
        date = b"%d-11-%02dT09:14:17Z" % (year, number)
        return page(100 * (year % 100) + number, body, Target_URI=url, Date=date)

    texts = [b" ".join(b"word%d" % (60 * n + m) for m in range(60)) for n in range(12)]
    made = [
        record(
            n + 1,
            b"http://host-%d.example/page-%d" % (n % 4, n),
            b"<html><title>%d</title><p>%b%b" % (n, text, b" %d" % year if n % 3 == 0 else b""),
        )
        for n, text in enumerate(texts)
    ]
    small = record(13, b"http://host-1.example/small", b"<p>small")  # a revisit would not be less
    return [*made, small, record(14, LONG, BODY), record(15, LONG[:-3], b"")]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The page of each command, of archives with duplicates, long names, damage and refusals."""
    home = tmp_path_factory.mktemp("reports")
    archive, index, corpus = home / "archive", home / "index", home / "corpus.jsonl"
    years = [write(archive / f"{year}.warc.gz", pages_of(year)) for year in (2024, 2025, 2026)]
    damaged = archive / f"{'damaged' * 20}.warc.gz"
    damaged.write_bytes(years[2].read_bytes()[:-20])
    (archive / "notes.txt").write_text("not an archive")
    run("index", "--all", "--etag", "--crawl", "one", years[0], index)
    run("index", "--add", "--crawl", "two", years[1], index)
    with serving(index, "--workers", "1") as server:
        server.get("/crawls", json.dumps({"name": "weekly"}), **JSON_BODY)
        for body in (BODY, b"<p>small", b"new"):
            server.get(f"/lookup?digest={sha1(body).decode()}&url={quote(LONG)}&crawl=weekly")
        server.get("/crawls/weekly/commit", "{}", **JSON_BODY)
    pages = {}

    def save(name: str, command: str, *words: object, status: int = 0) -> None:
        pages[name] = home / f"{name}.html"
        run(command, *words, "--html", pages[name], status=status)

    save("dry-run", "dedup", archive, "--out", home / "out", "--dry-run", status=7)
    save("dedup", "dedup", archive, "--out", home / "out", status=7)
    save("verify", "verify", archive, status=7)
    save("verify-against", "verify", "--against", archive, home / "out")
    save("corpus", "corpus", *years, "--enrich", "text", "-o", corpus)
    save("cover", "cover", corpus, "--relation", RELATION, "--what-if", "0.9", "-o", home / "cover")
    save("report", "report", index, "--against", years[2])
    save("validators", "report", index, "--against", years[2], "--validators")
    save("compare", "report", index, "--crawl", "two", "--compare", "one")
    save("crawl", "report", index, "--crawl", "weekly", "--by", "host")
    return pages


def test_pages_of_reports_are_accessible_everywhere(
    reports: dict[str, Path], tmp_path: Path
) -> None:
    """axe and the console find nothing, nothing is loaded, pictures have a text, nothing is cut."""
    axe = axe_script()
    with browser(tmp_path / "browser.log") as window:
        for name, file in reports.items():
            for width, dark in ((320, True), (1280, False)):  # no colour depends on the width
                window.show(width, dark=dark)
                window.open(file.as_uri())
                assert window.console_messages() == [], name
                assert window.run(REQUESTS) == [], name
                assert window.width() == width, name
                assert window.run(WITHOUT_TEXT) == [], name
                assert window.run(CUT) == [], name
                assert window.violations(axe) == [], (name, width)
