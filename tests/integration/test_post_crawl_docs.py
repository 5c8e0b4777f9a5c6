"""The commands of the pages on stages, rewriting in place, verifying and converting, as typed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from tests.support.commands import typed
from tests.support.paths import ROOT
from tests.support.verifying import copy_of, page, write

HOSTS_OF = "http://{host}.example.org"  # commands with it need other hosts: see test_hosts
BY_HOST = ("--host", HOSTS_OF, "a.manifest b.manifest")


def commands(name: str, begin: str = "", end: str = "") -> list[str]:
    """Return the commands that a page shows, from one line of it to another."""
    text = (ROOT / "docs" / name).read_text()
    text = text.partition(begin)[2] if begin else text
    text = text.partition(end)[0] if end else text
    shown = [line[4:] for line in text.splitlines() if re.match(r"    (bin/|\()", line)]
    assert shown
    return [line for line in shown if not any(word in line for word in BY_HOST)]


def run(lines: list[str], top: Path, *, between: str = "") -> None:
    """Type the lines in a directory, of which absolute paths and ~ are parts."""
    (top / "bin").symlink_to(ROOT / "bin")
    lines = [
        re.sub(r"(?<![\w~./:])/(data|warcs|mnt|path/to)\b", rf"{top}/\1", one) for one in lines
    ]
    done = subprocess.run(
        ["bash", "-euc", f"\n{between}\n".join(lines)],
        cwd=top, env={**os.environ, "HOME": str(top)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def archive(top: Path, *days: int) -> Path:
    """Two files with the same payload."""
    for day in days or (1, 2):
        write(top / f"2024-{day}.warc.gz", [page(day)])
    return top


def test_the_commands_of_verify(tmp_path: Path) -> None:
    warcs = archive(tmp_path / "my-warcs")
    write(tmp_path / "new-crawl/c.warc.gz", [copy_of(3, 1)])
    typed("dedup", warcs, "--out", tmp_path / "rewritten")
    typed("undedup", tmp_path / "rewritten", "--out", tmp_path / "again")
    shown = commands("verify.md", "", "\n## A collection\n")
    assert len(shown) == 6
    run(shown, tmp_path)


def test_the_commands_of_rewriting_in_place(tmp_path: Path) -> None:
    warcs = archive(tmp_path / "my-warcs")
    before = (warcs / "2024-2.warc.gz").read_bytes()
    shown = commands("in-place.md", "# ", "\n## Year by year\n")
    assert len(shown) == 4
    run(shown[:3], tmp_path)
    assert (warcs / "2024-2.warc.gz").read_bytes() == before
    (tmp_path / "bin").unlink()
    run([shown[0], shown[3]], tmp_path)
    assert len((warcs / "2024-2.warc.gz").read_bytes()) < len(before)


def test_the_commands_year_by_year(tmp_path: Path) -> None:
    for year in (2023, 2024):
        archive(tmp_path / str(year), year - 2022, year - 2012)
    run(commands("in-place.md", "\n## Year by year\n", "\n## "), tmp_path)
    found = typed("verify", tmp_path / "2024", "--originals", tmp_path / "2023", "--json")[0]
    assert '"revisits":2' in found


def test_the_commands_of_the_stages(tmp_path: Path) -> None:
    """Those that name one plan again show other ways to make it, or what else can be done."""
    archive(tmp_path / "warcs")
    typed("index", "--all", tmp_path / "warcs", tmp_path / "my-index")
    first = commands("stages.md", "# ", "\n## Rewrite\n")
    assert len(first) == 5
    run(first, tmp_path, between="rm -rf warcs.plan")
    (tmp_path / "bin").unlink()
    (tmp_path / "warcs.plan").rename(tmp_path / "of-index")
    typed("resolve", tmp_path / "warcs.manifest", "-o", tmp_path / "warcs.plan")
    shutil.copytree(tmp_path / "warcs", tmp_path / "mnt/warcs")
    rewriting = commands("stages.md", "\n## Rewrite\n", "\n### A second copy")
    assert len(rewriting) == 4
    second = commands("stages.md", "\n### A second copy", "\n## ")
    assert len(second) == 4
    (tmp_path / "path/to").mkdir(parents=True)
    run([*second[:3], "cp sums path/to/", second[3]], tmp_path)
    (tmp_path / "bin").unlink()
    run(rewriting[1:], tmp_path)  # the first one is that of the first copy


def test_the_commands_of_convert(tmp_path: Path) -> None:
    (tmp_path / "data/arcs").mkdir(parents=True)
    shutil.copy(ROOT / "tests/data/warc/example.arc.gz", tmp_path / "data/arcs")
    archive(tmp_path / "plain", 5)
    typed("convert", "--to", "zstd", tmp_path / "plain", "--out", tmp_path / "data/zstd")
    write(tmp_path / "warcs/a.warc.gz", [page(1), copy_of(2, 1)])
    docs = page(4, Target_URI=b"http://example.org/docs/a")
    write(tmp_path / "my-warcs/a.warc.gz", [page(1), docs])
    write(tmp_path / "new-crawl/b.warc.gz", [copy_of(2, 1)])
    shown = commands("convert.md")
    assert len(shown) == 7
    run(shown, tmp_path)
    names = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert {"moved.tsv", "zstd.cdxj", "docs.warc.gz"} <= names


def test_the_commands_of_samples_and_of_the_index_of_results(tmp_path: Path) -> None:
    warcs, index = archive(tmp_path / "warcs", *range(1, 25)), tmp_path / "my-index"
    run(commands("post-crawl.md", "\n### An estimate from a sample\n", "\n### "), tmp_path)
    (tmp_path / "bin").unlink()
    typed("index", "--all", warcs, index)
    typed("dedup", warcs, "--out", tmp_path / "smaller")
    shown = commands("post-crawl.md", "\n### Originals outside of the sources\n", "\n## ")
    local = [line for line in shown if "~/smaller" in line]
    assert len(local) == 1
    run(local, tmp_path)
    assert str(tmp_path / "smaller") in typed("list", index)[0]
