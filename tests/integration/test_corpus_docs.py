"""docs/corpus.md on what ``bin/demo`` leaves, as typed."""

from __future__ import annotations

import json
import os
import re
import subprocess
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from dedupindex.corpus import Corpus
from tests.support.paths import ROOT
from tests.unit.corpus.test_corpus_output import lines

TEXT = (ROOT / "docs" / "corpus.md").read_text()
EXAMPLE = TEXT.split("\n## An example\n")[1].split("\n## ")[0]


def test_the_commands(demo_files: Path) -> None:
    typed = re.findall(r"^    (bin/corpus .*)$", EXAMPLE, re.MULTILINE)
    assert len(typed) == 3
    done = subprocess.run(
        ["bash", "-euc", "\n".join(typed)], cwd=ROOT, env=os.environ | {"demo": str(demo_files)},
        text=True, capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (shown,) = re.findall(r"^    (\{.*)$", EXAMPLE, re.MULTILINE)
    for part in shown.split("…"):
        assert part in done.stdout
    assert '"error"' not in done.stdout
    table = Corpus.of(demo_files / "once.cdxj").enrich("response")
    assert len({entry["record"]["digest"] for entry in table}) == table.count() == 13


def test_the_library(demo_files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(demo_files)
    code = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(code) == 4
    space: dict[str, Any] = {}
    with redirect_stdout(StringIO()) as told:
        exec("\n".join(code), space)
    entries = lines(demo_files / "pages.jsonl.gz")
    assert told.getvalue().endswith(
        f"{len(entries)} of 11 captures; {space['report'].records} records read\n"
    )
    latest = {entry["record"]["originalUrl"]: entry for entry in entries}
    assert len(latest) == len(entries) == 7
    today = latest["http://news.test/today"]["payload"]["string"]
    assert today["html"] == {"title": "tuesday"} and today["text"]["words"] == 700
    assert all("revisitOf" in entry["record"] for url, entry in latest.items() if url.endswith("/"))
    assert space["found"].count() == len(entries)
    (row, *_) = [entry["payload"]["string"]["html"] for entry in space["rows"]]
    assert row == {"rows": 0}  # the demo has none
    assert len(space["titles"]) == len(entries)
    assert sum(group["count"] for group in space["by_year"]) == len(entries)


def test_the_notebook(demo_files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cells, run in order, print the output shown below them."""
    monkeypatch.chdir(demo_files)
    book = json.loads((ROOT / "docs" / "corpus.ipynb").read_text())
    space: dict[str, Any] = {}
    cells = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert len(cells) == 8
    for cell in cells:
        with redirect_stdout(StringIO()) as told:
            exec("".join(cell["source"]), space)
        (stored,) = cell["outputs"]
        assert told.getvalue() == "".join(stored["text"])
