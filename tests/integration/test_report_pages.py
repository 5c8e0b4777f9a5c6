"""`--html FILE` of five commands: one page each, safe with hostile names, written whole or not."""

from __future__ import annotations

import re
import shutil
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

import pytest

from dedupindex.post_crawl import dedup_page
from dedupindex.post_crawl.dedup_report import DedupReport
from tests.support.commands import typed
from tests.support.verifying import page, write

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two copies of pages at a hostile host, in a file of a hostile name, and a damaged file."""
    home = tmp_path_factory.mktemp("pages")
    records = [
        page(n, Target_URI=f"http://{HOSTILE}.example/{HOSTILE}?{n}".encode()) for n in range(1, 7)
    ]
    write(home / "in" / "<script>good<&'.warc.gz", records)
    write(home / "bad" / "<script>bad.warc.gz", records)
    damaged = bytearray((home / "bad" / "<script>bad.warc.gz").read_bytes())
    damaged[-6] ^= 255  # of the checksum
    (home / "bad" / "<script>bad.warc.gz").write_bytes(damaged)
    typed("index", "--all", home / "in", home / "index")
    return home


def commands(home: Path, work: Path) -> dict[str, tuple[int, list[object], str]]:
    """Exit status, words and the beginning of the headline of each command."""
    corpus, relation = work / "c.jsonl", "jaccard(k=3) >= 0.9"
    return {
        "report": (0, ["report", home / "index", home / "in"], "83.3 % of the payload"),
        "dedup": (7, ["dedup", home / "in", home / "bad", "--out", work / "out"], "The files are"),
        "verify": (7, ["verify", home / "in", home / "bad"], "1 finding of damage"),
        "corpus": (0, ["corpus", home / "in", "--enrich", "text", "-o", corpus], "6 captures"),
        "cover": (0, ["cover", corpus, "--relation", relation, "-o", work / "cover"], "83.3 %"),
    }


def test_pages_are_safe_and_load_nothing(archive: Path, tmp_path: Path) -> None:
    for name, (status, words, headline) in commands(archive, tmp_path).items():
        target = tmp_path / f"{name}.html"
        typed(*words, "--html", target, status=status)
        html = target.read_text()
        assert "<script" not in html and "&lt;script&gt;" in html, name
        assert f'<p class="headline">{headline}' in html, html[html.index("<body") :][:400]
        assert "<svg" in html and "<table" in html and "not known" not in html
        made = r'</h1>\n<p class="note">2\d{3}-\d\d-\d\d \d\d:\d\d UTC, dedupindex \d'
        assert re.search(made, html), name
        assert "no-repeat local" in html  # the shadow of wide tables
        pages = {"dedup": {"docs/stages.md"}, "verify": {"docs/verify.md"}}
        assert set(re.findall(r"docs/[a-z-]+\.md", html)) == pages.get(name, set()), name
        assert ("its compressed data is damaged" in html) == (name == "verify"), name
        style = b64encode(
            sha256(re.findall("<style>(.*?)</style>", html, re.DOTALL)[0].encode()).digest()
        )
        assert f"default-src 'none'; style-src 'sha256-{style.decode()}'" in html
        assert not re.search(r"<(link|img|iframe|object|form)\b| style=| on\w+=|(src|href)=", html)


def test_pages_do_not_replace_other_files(archive: Path, tmp_path: Path) -> None:
    for _, words, _ in commands(archive, tmp_path).values():
        for target in (archive / "in" / "<script>good<&'.warc.gz", tmp_path / "no" / "page.html"):
            before = target.read_bytes() if target.exists() else None
            typed(*words, "--html", target, status=2)
            assert before == (target.read_bytes() if target.exists() else None)
    assert not list(tmp_path.iterdir())  # nothing was begun


def headline(page: Path) -> str:
    return re.findall('<p class="headline">(.*?)</p>', page.read_text())[0]


def test_a_comparison_claims_no_more_than_it_compared(archive: Path, tmp_path: Path) -> None:
    """A damaged file equals itself: it is called complete, but not sound."""
    target, bad = tmp_path / "verify.html", tmp_path / "bad"
    (tmp_path / "bad").mkdir()
    for path in (archive / "bad").iterdir():
        (bad / "a.warc.gz").write_bytes(path.read_bytes())
    shutil.copytree(bad, tmp_path / "same")
    _, said = typed("verify", "--against", bad, tmp_path / "same", "--html", target)
    assert "1 file: all that" in said and "Damage that both have is not counted" in said
    holds = f"{tmp_path / 'same'} holds everything that {bad} held: 1 file compared."
    assert headline(target) == holds
    assert "Damage that both have is not counted" in target.read_text()
    (tmp_path / "same" / "a.warc.gz").unlink()
    (tmp_path / "same" / "b.warc.gz").write_bytes(b"")
    _, said = typed("verify", "--against", bad, tmp_path / "same", "--html", target, status=8)
    assert '<td class="n">–</td>' in target.read_text()  # no offset in a missing file
    assert "all that" not in said and headline(target).startswith("1 finding of loss")


def test_a_share_is_rounded_once() -> None:
    """A share of 0.1536 % is 0.15 in JSON; headline, figures and legends show 0.2."""
    report = DedupReport(True, files=1, bytes_before=1_000_000, bytes_after=1_000_000 - 1536)
    html = "".join(dedup_page.lines(report, ["in"]))
    assert set(re.findall(r"\b0\.[12] %", html)) == {"0.2 %"}
