"""docs/corpus.md on what ``bin/demo`` leaves, as typed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from dedupindex.corpus import Corpus
from tests.support.corpora import Page, archive, html
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
    assert len(code) == 5
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
    (row, *_) = [entry["payload"]["string"]["html"] for entry in space["rows"]]
    assert row == {"rows": 0}  # the demo has none
    assert len(space["titles"]) == len(lines(demo_files / "titles.jsonl")) == len(entries)
    assert 1 < space["newest"] <= len(entries)
    assert sum(group["count"] for group in space["by_year"]) == len(entries)


_SPACY = """
import re
from types import SimpleNamespace

loaded = []


def load(name, exclude):
    loaded.append((name, tuple(exclude)))
    assert len(loaded) == 1  # in this process
    return lambda text: SimpleNamespace(
        ents=[
            SimpleNamespace(text=word, label_="GPE" if word == "Paris" else "PERSON")
            for word in re.findall(r"[A-Z]\\w+", text)
        ]
    )
"""


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_the_package_for_entities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: str
) -> None:
    """As the page describes it, with a model in the place of spaCy's that knows capital letters."""
    (module,) = (code for code in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
                 if "import spacy" in code)  # fmt: skip
    (project,) = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "my_entities.py").write_text(module)
    (tmp_path / "spacy.py").write_text(_SPACY)
    described = tomllib.loads(project)["project"]
    info = tmp_path / "my_entities-1.dist-info"
    info.mkdir()
    about = f"Metadata-Version: 2.1\nName: {described['name']}\nVersion: 1\n"
    (info / "METADATA").write_text(about)
    (group,) = described["entry-points"]
    names = described["entry-points"][group]
    lines_of = (f"{name} = {value}\n" for name, value in names.items())
    (info / "entry_points.txt").write_text(f"[{group}]\n" + "".join(lines_of))
    pages = [Page(f"http://a.org/{n}", 1, html("Ada in Paris", "so says Grace, Grace says"))
             for n in range(4)]  # fmt: skip
    cdx = archive(tmp_path / "a", *pages, Page("http://a.org/i", 2, b"GIF89a", "image/gif"))
    done = subprocess.run(
        [sys.executable, "-m", "dedupindex", "corpus", cdx, "--enrich", ",".join(names),
         "--jobs", jobs],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, *_, image = map(json.loads, done.stdout.splitlines())
    found = first["payload"]["string"]
    assert found["text"] == {"persons": ["Grace"], "places": [], "organizations": []}
    assert found["html"]["title"] == {"persons": ["Ada"], "places": ["Paris"], "organizations": []}
    assert "payload" not in image


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
