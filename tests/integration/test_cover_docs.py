"""docs/cover.md on what ``bin/demo`` leaves, as typed, and the relations that ship."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dedupindex.cover.relation import parse
from tests.support.covering import JOURNALIST
from tests.support.paths import ROOT

TEXT = (ROOT / "docs" / "cover.md").read_text()
EXAMPLE = TEXT.split("\n## An example\n")[1].split("\n## ")[0]
_SIZES = re.compile(r"[\d.]+ kB of [\d.]+ kB in files \([\d.]+ %\)")


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_example(demo_files: Path) -> None:
    code = [line[4:] for line in EXAMPLE.splitlines() if line.startswith("    ")]
    typed = [line for line in code if line.startswith("bin/")]
    assert len(typed) == 4
    done = subprocess.run(
        ["bash", "-euc", "\n".join(typed)], cwd=ROOT, env=os.environ | {"demo": str(demo_files)},
        text=True, capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown = [line for line in code if line not in typed and line]
    assert len(shown) == 12
    printed = _SIZES.sub("SIZES", done.stdout.replace(str(demo_files), "DIR")).splitlines()
    for line in shown:
        assert _SIZES.sub("SIZES", line) in printed
    latest, earliest = (
        {row["id"]: row for row in rows(demo_files / f"{name}.jsonl")}
        for name in ("latest", "earliest")
    )
    for name, row in latest.items():
        if not row["kept"]:
            assert earliest[row["covered_by"]]["covered_by"] == name
            assert row["needed_by"] == row["covered_by"]
    with open(demo_files / "earliest.csv", newline="") as stream:
        assert {row["id"] for row in csv.DictReader(stream)} == {
            name for name, row in earliest.items() if not row["kept"]
        }
    assert (demo_files / "latest.html").read_text().count('<svg class="graph"') == 3
    words = rows(demo_files / "words.jsonl")
    # Two stay if a harvest went on into another second, and ended there with a page's namesake.
    assert len(words) == 7 and sum(row["kept"] for row in words) in (1, 2)


def test_the_other_commands_as_typed(demo_files: Path, tmp_path: Path) -> None:
    """With the files that the page names: pages in two lots, archives, a relation of one's own."""
    for name in ("bin", "conf"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "my-warcs").mkdir()
    for name in ("first", "second"):
        shutil.copy(demo_files / f"{name}.warc.gz", tmp_path / "my-warcs")
    line = ["bin/corpus", "my-warcs", "--enrich", "html.title,text", "-o", "all.jsonl"]
    subprocess.run(line, cwd=tmp_path, check=True, capture_output=True)
    documents = (tmp_path / "all.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "pages.jsonl").write_text("".join(documents[::2]))
    (tmp_path / "more.jsonl").write_text("".join(documents[1::2]))
    shutil.copy(ROOT / "conf" / "cover" / "journalist.txt", tmp_path / "r.txt")
    typed = re.findall(r"^    (bin/cover .*)$", TEXT.replace(EXAMPLE, ""), re.MULTILINE)
    assert len(typed) == 5
    kept = 0
    for line in typed:
        words = ["bash", "-euc", line]
        done = subprocess.run(words, cwd=tmp_path, text=True, capture_output=True)
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        kept = sum(row["kept"] for row in rows(tmp_path / "cover.jsonl"))
        assert f"kept: {kept} of " in done.stdout, line
    assert 0 < kept < len(rows(tmp_path / "cover.jsonl")) == len(documents)


def test_relations_that_ship() -> None:
    folder = ROOT / "conf" / "cover"
    assert parse((folder / "journalist.txt").read_text()) == parse(JOURNALIST)
    for path in folder.iterdir():
        assert parse(path.read_text()).content
        assert f"conf/cover/{path.name}" in TEXT


@pytest.mark.parametrize("text", re.findall(r"--relation '(.*?)'", TEXT))
def test_relations_of_the_docs(text: str) -> None:
    relation = parse(text)
    assert relation.content or relation.keys
