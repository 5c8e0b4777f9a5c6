"""Standard streams that are closed, or cannot be written to, are no crash."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.conftest import MakeIndex
from tests.support.captures import capture
from tests.support.commands import typed
from tests.support.rewriting import content
from tests.unit.export.test_cdx_file import EVERYTHING
from tests.unit.post_crawl.test_index_originals import two_crawls

URL = "http://example.com/a"
DONE = (
    "dedupindex: standard output: No space left on device: the command has done its work, and "
    "only its answer could not be written"
)


def run(redirections: str, *words: object) -> subprocess.CompletedProcess[str]:
    """Run a command with redirections of a shell."""
    line = ["bash", "-c", f'exec "$@" {redirections}', "bash", sys.executable, "-m", "dedupindex"]
    return subprocess.run([*line, *map(str, words)], capture_output=True, text=True, check=False)


@pytest.fixture
def index(make_index: MakeIndex) -> Path:
    return make_index([capture(1, URL.encode())], EVERYTHING)


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&- <&-"])
def test_closed_streams_are_as_dev_null(index: Path, closed: str, tmp_path: Path) -> None:
    out = tmp_path / "out.cdx"
    for words in (
        ("list", index),
        ("index", "--stats", index),
        ("impact", index, "--url", URL),
        ("export", "--cdx", index),
        ("export", "--cdx", index, "--out", out),
        ("purge", index, "--url", URL, "--force"),
    ):
        done = run(closed, *words)
        assert done.returncode == 0, (words, done.stderr)
        assert "dedupindex:" not in done.stderr
    assert out.read_bytes().count(b"\n") == 2  # what is printed goes into no file
    typed("list", index, status=10)


def test_a_purge_whose_answer_cannot_be_written_says_that_it_is_done(index: Path) -> None:
    done = run(">/dev/full", "purge", index, "--url", URL, "--force")
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1] == DONE
    typed("list", index, status=10)


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_rewriting_whose_answer_cannot_be_written_says_that_it_is_done(
    tmp_path: Path, more: tuple[str, ...]
) -> None:
    """And writes the lists and the page that were asked for."""
    archive = two_crawls(tmp_path / "archive", [Random(1).randbytes(1500)])
    before, page, offsets = content(archive), tmp_path / "page.html", tmp_path / "offsets"
    asked = ("--html", page, "--offsets", offsets)
    done = run(">/dev/full", "dedup", archive, "--in-place", *asked, *more)
    assert done.returncode == 3 and done.stderr.splitlines()[-1] == DONE
    assert content(archive) != before and page.exists() and offsets.read_text()
    done = run(">/dev/full", "undedup", archive, "--in-place", *more)
    assert done.returncode == 3 and done.stderr.splitlines()[-1] == DONE
    assert content(archive) == before


@pytest.mark.parametrize("words", [("list",), ("export", "--cdx"), ("purge", "--list")])
def test_standard_output_is_named_if_it_cannot_be_written_to(
    index: Path, words: tuple[str, ...]
) -> None:
    more = ("--url", URL, "--force") if words[0] == "purge" else ()
    done = run(">/dev/full", *words, index, *more)
    assert done.returncode == 3 and "Traceback" not in done.stderr
    assert done.stderr == "dedupindex: standard output: No space left on device\n"
    assert URL in typed("list", index)[0]  # the list comes before the purge
