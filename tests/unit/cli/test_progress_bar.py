"""How far a run is, and how long the rest may take."""

from __future__ import annotations

import io
import json
import sys
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest

from dedupindex.cli import progress_bar
from dedupindex.corpus import Corpus
from dedupindex.counts import ProgressUpdate
from dedupindex.runtime import duckdb, workers
from dedupindex.runtime.duckdb import open_database, show_progress
from tests.support.covering import made
from tests.unit.corpus.test_corpus import news


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, in its only element."""
    now = [100.0]
    monkeypatch.setattr("dedupindex.cli.progress_bar.time.monotonic", lambda: now[0])
    return now


def test_lines_estimate_the_remaining_time(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    update = progress_bar.plain(1.0)
    for seconds, seen in (
        (0.5, ProgressUpdate("reading", 1000, 10_000, 5)),  # too early for another line
        (10, ProgressUpdate("reading", 2_500_000, 10_000_000, 5000)),
        (10, ProgressUpdate("reading", 0, 0, 6000)),
        (0, ProgressUpdate("comparing", part=0.0)),
        (9, ProgressUpdate("comparing", part=0.1)),
        (81, ProgressUpdate("comparing", part=1.0)),
    ):
        clock[0] += seconds
        update(seen)
    assert capsys.readouterr().err.splitlines() == [
        "reading: 5,000 records, 2.5 MB of 10.0 MB, 500/s, 25%, about 30 s left",
        "reading: 6,000 records, 300/s",
        "comparing: 10%, about 81 s left",
        "comparing: 100%",
    ]


def test_queries_show_progress_in_named_phases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(duckdb, "_EVERY", 0.001)
    seen: list[ProgressUpdate] = []
    told = threading.Event()

    def update(one: ProgressUpdate) -> None:
        seen.append(one)
        told.set()

    query = "SELECT count(*) FROM range(3000) a, range(30000) b WHERE hash(a.range, b.range) = 1"
    with open_database(tmp_path, "1GB", 2) as (connection, _):
        with show_progress(connection, update) as at:
            connection.execute(query)
            assert not seen
            at("counting")
            while not told.is_set():
                connection.execute(query)
        count = len(seen)
        connection.execute(query)
        assert len(seen) == count  # nobody follows any more
    assert {one.phase for one in seen} == {"counting"}
    assert all(one.share is not None and 0 <= one.share <= 1 for one in seen)
    assert capfd.readouterr() == ("", "")  # DuckDB draws no bar of its own


def test_a_corpus_shows_progress_of_all_captures(tmp_path: Path) -> None:
    seen: list[ProgressUpdate] = []
    corpus = Corpus.from_cdx(news(tmp_path)).having(on_progress=seen.append)
    count = len(list(corpus.enrich("response")))
    assert count > 1
    assert (seen[-1].phase, seen[-1].records, seen[-1].share) == ("reading", count, 1.0)


def test_a_cover_shows_its_phases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    monkeypatch.setattr(
        "dedupindex.cover.find_cover.show_progress", lambda *_: nullcontext(steps.append)
    )
    seen: list[ProgressUpdate] = []
    pages = [{"url": f"http://a.test/{n}", "text": "the same words"} for n in range(3)]
    source = tmp_path / "pages.jsonl"
    source.write_text("".join(json.dumps(page) + "\n" for page in pages))
    made(pages, "jaccard(k=2) >= 0.5", tmp_path, files=[str(source)], on_progress=seen.append)
    phases = list(dict.fromkeys(step.partition(",")[0] for step in steps))
    assert phases == ["loading documents", "grouping documents", "indexing shingles",
                      "looking for candidates", "comparing candidates", "writing pairs",
                      "joining pairs", "writing results"]  # fmt: skip
    assert [one.phase for one in seen] == ["reading documents", "covering components"]
    assert seen[0].records == len(pages) and 0 < (seen[0].share or 0) < 1


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_starts_again_in_each_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar.show_progress(verbose=False) as update:
        assert workers.count_threads() == 1  # otherwise worker processes would start slowly
        update(ProgressUpdate("reading", 80, 100, 5))
        update(ProgressUpdate("comparing", part=0.25))  # what the bar shows when it goes
    shown = terminal.getvalue().rpartition("comparing")[2]
    assert "25 %" in shown and "records/s" not in shown


def test_a_bar_moves_while_it_is_updated(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar.show_progress(verbose=False) as update:
        for percent in (10, 20, 30):
            clock[0] += 1
            update(ProgressUpdate("reading", percent, 100, percent))
            assert f"{percent} %" in terminal.getvalue()
