"""`--html FILE` of five commands: one page each, safe with hostile names, written whole or not."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

import pytest

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
    damaged[len(damaged) // 2] ^= 255
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
