"""Estimates of what a run counts and takes, from samples. No test looks at a clock."""

from __future__ import annotations

import json
import time
from collections import Counter
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import orjson
import pytest

from dedupindex.cli import main
from dedupindex.cover import estimate
from dedupindex.cover.find_cover import CoverReport
from dedupindex.errors import BadSource
from dedupindex.runtime.tables import duration
from tests.support.corpora import Page, archive, html
from tests.support.covering import JOURNALIST
from tests.unit.cover.test_cover import BASE, page


def written(path: Path, count: int, versions: int) -> Path:
    documents = (
        page(f"{n // versions}", f"202001{1 + n % versions:02}000000", f"{BASE} {n}", bytes=9)
        for n in range(count)
    )
    path.write_text("".join(json.dumps({**one, "id": f"{n}"}) + "\n"
                            for n, one in enumerate(documents)))  # fmt: skip
    return path


def asked(
    capsys: pytest.CaptureFixture[str], folder: Path, source: Path, *words: str
) -> dict[str, Any]:
    out = str(folder / "out.jsonl")
    command = ["cover", str(source), "--relation", JOURNALIST, "-o", out, "--json", *words]
    assert main(command) == 0
    return dict(json.loads(capsys.readouterr().out))


def test_counts_grow_with_the_sample_or_its_square() -> None:
    assert estimate.grown(50, 100, 7) == 700  # within URLs
    assert estimate.grown(25, 100, 7) == 4900  # across
    assert estimate.grown(30 // 2 + 40 // 4, 30 + 40, 10) == 300 + 4000
    assert estimate.grown(5, 100, 7) == 4900 and estimate.grown(90, 100, 7) == 700  # by chance
    assert estimate.grown(0, 0, 7) == 0


def test_steps_grow_with_what_they_depend_on() -> None:
    reports = []
    for factor in (0, 1, 2):  # 1 s to start each step
        report = CoverReport("")
        report.loaded.documents = 100 * factor
        report.found.candidates, report.found.pairs = 10 * factor**2, 4 * factor
        report.found.steps = dict.fromkeys(
            ("indexing shingles", "comparing candidates", "writing pairs"), 1.0 + factor
        )
        report.seconds = {"reading": 1.0 + factor, "covers": 1.0}
        reports.append(report)
    found = estimate.extrapolated(*reports, documents=1000)
    assert (found.sampled, found.candidates, found.pairs) == (200, 1000, 40)
    assert found.seconds == {
        "reading": 11, "indexing shingles": 11, "comparing candidates": 51, "writing pairs": 11,
        "covers": 1,
    }  # fmt: skip


def test_a_sample_has_all_lines_of_its_urls(tmp_path: Path) -> None:
    source = written(tmp_path / "pages.jsonl", 900, 3)
    sample = estimate.sample_lines([str(source)], 100)
    assert sample.total == 900 and 50 < len(sample.lines) <= 200
    several = Counter(orjson.loads(line)["url"] for _, (_, line) in sample.lines)
    assert set(several.values()) == {3}


def test_a_sample_of_one_url_has_any_lines(tmp_path: Path) -> None:
    source = written(tmp_path / "pages.jsonl", 900, 900)
    sample = estimate.sample_lines([str(source)], 100)
    assert sample.total == 900 and 50 < len(sample.lines) <= 200


def test_a_sample_names_the_line_that_is_no_document(tmp_path: Path) -> None:
    source = written(tmp_path / "pages.jsonl", 9, 3)
    for line, message in (("[]", "is no JSON object"), ("{", "is no JSON"), ("{}", "has no url")):
        source.write_text(f'{{"url": "http://a/"}}\n{line}\n')
        with pytest.raises(BadSource, match=f"line 2 .*{message}"):
            estimate.sample_lines([str(source)], 100)


def test_a_small_collection_is_estimated_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = written(tmp_path / "pages.jsonl", 60, 3)
    found = asked(capsys, tmp_path, source, "--estimate")
    assert list(tmp_path.iterdir()) == [source]  # nothing is written
    report = asked(capsys, tmp_path, source)
    for name in ("documents", "candidates", "pairs"):
        assert found[name] == report[name]
    assert found["sampled"] == 60
    assert set(found["seconds"]) == {*report["steps"], "reading", "covers"}


def test_an_estimate_needs_no_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "monotonic", partial(next, count(step=1e-6)))  # however busy it is
    source = written(tmp_path / "pages.jsonl", 6, 3)
    command = ["cover", str(source), "--relation", JOURNALIST]
    assert main([*command, "--estimate"]) == 0
    assert "less than a second for 6 documents\n" in capsys.readouterr().out
    assert main(command) == 2
    assert "give --out RESULT, or --estimate" in capsys.readouterr().err


def test_of_archives_only_the_sample_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = [
        Page(f"http://a.example/{n}", day, html("t", f"{BASE} {day}"))
        for n in range(40) for day in (1, 2)
    ]  # fmt: skip
    source = archive(tmp_path, *pages)
    monkeypatch.setattr(estimate, "SAMPLED", 20)
    found = asked(capsys, tmp_path, source, "--estimate", "--where", "status == 200")
    assert found["documents"] == 80 and 4 <= found["sampled"] < 50
    assert list(found["seconds"])[:3] == ["metadata", "records", "reading"]


@pytest.mark.parametrize("words", [["--spark", "local[1]"], ["--update", "out.jsonl"]])
def test_an_estimate_is_of_this_machine_and_all_sources(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    source = written(tmp_path / "pages.jsonl", 6, 3)
    command = ["cover", str(source), "--relation", JOURNALIST, "-o", str(tmp_path / "o.jsonl")]
    assert main([*command, "--estimate", *words]) == 4
    assert f"leave {words[0]} out" in capsys.readouterr().err
    (tmp_path / "pages.jsonl").write_text("")
    assert main([*command, "--estimate"]) == 4
    assert "there is no document in the sources" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "<1 s"), (59.4, "59 s"), (60, "1 min"), (3599, "59 min 59 s"), (7300, "2 h 1 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
