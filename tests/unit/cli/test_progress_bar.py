"""How far a run is, and how long the rest may take."""

from __future__ import annotations

import json
import sys
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest

from dedupindex.cli import progress_bar
from dedupindex.corpus import Corpus
from dedupindex.counts import ProgressUpdate
from dedupindex.index.identity import Settings
from dedupindex.runtime import duckdb
from dedupindex.runtime.duckdb import open_database, show_progress
from tests.conftest import MakeIndex
from tests.support.captures import capture
from tests.support.commands import ended
from tests.support.covering import made
from tests.support.terminal import on_terminal, screen
from tests.unit.corpus.test_corpus import news
from tests.unit.indexer.test_pipeline import HEADER, cdx_line


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
        (0, ProgressUpdate("comparing", part=0.0)),  # another query
        (20, ProgressUpdate("comparing", part=0.5)),
    ):
        clock[0] += seconds
        update(seen)
    assert capsys.readouterr().err.splitlines() == [
        "reading: 2.5 MB of 10.0 MB, 5,000 records, 500 records/s, 25%, about 30 s left",
        "reading: 6,000 records, 300 records/s",
        "comparing: 10%, about 1 min 21 s left",
        "comparing: 100%",
        "comparing: 50%, about 20 s left",
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


SEEN = ProgressUpdate("reading documents", 1_200_000_000, 3_000_000_000, 123_456)


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        (20, "reading documents  4"),
        (39, "reading documents  40%  30 s left"),
        (60, "reading documents  40% ██████████░░░░░░░░░░░░░░ 30 s left"),
        (79, "reading documents  40% ██████████░░░░░░░░░░░░░░ 30 s left, 1.2 GB of 3.0 GB"),
    ],
)
def test_a_bar_fits_into_the_terminal(columns: int, line: str) -> None:
    assert progress_bar.bar_line(SEEN, 20, 0.2, columns) == line[:columns]


def test_a_bar_counts_down_and_shows_no_rate_of_a_second() -> None:
    assert "123,456 records, 6,170 records/s" in progress_bar.bar_line(SEEN, 20, 0, 120)
    assert "/s" not in progress_bar.bar_line(SEEN, 1, 0, 120)
    assert " 20 s left" in progress_bar.bar_line(SEEN, 20, 10, 120)
    assert " left" not in progress_bar.bar_line(SEEN, 20, 40, 120)
    assert " left" not in progress_bar.bar_line(SEEN, 4.9, 0, 120)
    assert " left" not in progress_bar.bar_line(ProgressUpdate("x", part=0.04), 60, 0, 120)
    assert " 19 min left" in progress_bar.bar_line(ProgressUpdate("x", part=0.05), 60, 0, 120)
    unknown = ProgressUpdate("asking the index", records=7000)
    assert progress_bar.bar_line(unknown, 10, 2, 120) == (
        "asking the index: 12 s, 7,000 records, 700 records/s"
    )


BUSY = """
import time
from dedupindex.cli import progress_bar
from dedupindex.cli.common import print_result, say
from dedupindex.counts import ProgressUpdate
from dedupindex.runtime import workers
progress_bar._BAR_AFTER = progress_bar._BEAT = 0.01
with progress_bar.show_progress(prints=PRINTS) as update:
    assert workers.count_threads() == 1  # otherwise worker processes would start slowly
    update(ProgressUpdate("reading", part=0.25))
    end = time.monotonic() + 0.1
    while time.monotonic() < end:  # nothing is reported: the timer draws
        time.sleep(0.01)
    say("a message")
    update(ProgressUpdate("reading", part=0.5))
    time.sleep(0.1)
say("the end")
"""


@pytest.mark.parametrize(
    ("terminal", "prints", "drawn"),
    [("xterm", False, True), ("xterm", True, False), ("dumb", False, False), ("", False, False)],
)
def test_a_terminal_has_a_bar_that_leaves_nothing_behind(
    terminal: str, prints: bool, drawn: bool, tmp_path: Path
) -> None:
    script = tmp_path / "busy.py"
    script.write_text(BUSY.replace("PRINTS", str(prints)))
    environment = {"NO_COLOR": "1"} | ({"TERM": terminal} if terminal else {})
    shown = on_terminal([sys.executable, str(script)], 40, environment)
    assert screen(shown) == ["a message", "the end", ""]
    assert ("█" in shown) == drawn
    assert ("reading  50%" in shown) == drawn
    assert drawn or "\x1b" not in shown
    assert "\x1b" not in shown.replace("\x1b[K", "")  # no colours, and no cursor to be restored


LISTING = """
import time
from dedupindex.cli import progress_bar
from dedupindex.cli.common import print_line
from dedupindex.cli.list import show_search
from dedupindex.counts import ProgressUpdate
progress_bar._BAR_AFTER = progress_bar._BEAT = 0.01
with show_search() as update:
    for number in range(3):
        update(ProgressUpdate("reading", part=0.5))
        time.sleep(0.1)
        print_line(f"row {number}")
"""


@pytest.mark.parametrize("target", ["terminal", "file", "pipe"])
def test_a_bar_does_not_mix_with_the_rows_of_a_list(target: str, tmp_path: Path) -> None:
    script = tmp_path / "listing.py"
    script.write_text(LISTING)
    out = tmp_path / "out"
    through = {"terminal": "", "file": f" > {out}", "pipe": f" | cat > {out}"}[target]
    line = ["bash", "-c", f"{sys.executable} {script}{through}"]
    shown = on_terminal(line, 40, {"TERM": "xterm"})
    rows = ["row 0", "row 1", "row 2"]
    assert screen(shown) == ([*rows, ""] if target == "terminal" else [""])
    assert target == "terminal" or out.read_text().splitlines() == rows
    assert ("reading  50%" in shown) == (target != "pipe")  # where a pager may be
    drawn_between = shown.partition("reading")[2].rpartition("reading")[0]
    assert target != "file" or "\x1b[K\r\x1b[K" not in drawn_between  # rows do not erase it


@pytest.mark.parametrize(
    ("words", "phases"),
    [
        ("list INDEX --host example.com", ["reading"]),
        ("list INDEX --url http://example.com/", ["reading"]),
        ("list INDEX --mime x/y --csv", ["reading"]),
        ("lookup INDEX --url http://example.com/1", ["reading"]),
        ("lookup INDEX --batch queries.jsonl", ["looking up"]),
        ("report INDEX --crawl new --compare old", ["reading", "comparing URLs"]),
        ("report INDEX --against crawl.cdx", ["reading"]),
        ("report VISITED --against crawl.cdx --validators", ["reading"]),
        ("search SEARCHED example", ["searching"]),
    ],
)
def test_commands_that_read_much_show_progress(
    words: str,
    phases: list[str],
    make_index: MakeIndex,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dedupindex.cli.report._PROGRESS_EVERY", 1)
    seen: list[ProgressUpdate] = []
    monkeypatch.setattr(progress_bar, "plain", lambda every: seen.append)
    captures = [
        capture(number, f"http://example.com/{number}".encode(), container=crawl, crawl=crawl)
        for number, crawl in enumerate(("old", "new"))
    ]
    Path("queries.jsonl").write_text(f'{{"digest": "{captures[0].digest}"}}\n')
    Path("crawl.cdx").write_text(HEADER + cdx_line(1, 1, 1))
    found = {
        "INDEX": lambda: make_index(captures),
        "VISITED": lambda: make_index(captures, Settings(etag=True)),
        "SEARCHED": lambda: make_index(captures, engine="whoosh"),
    }
    line = [str(found[word]()) if word in found else word for word in words.split()]
    status, _, messages = ended(*line)
    assert status in (0, 10), messages
    assert list(dict.fromkeys(one.phase for one in seen)) == phases, messages
    assert words.startswith("search") or seen[0].share is not None  # so that time left is known


def test_a_command_shows_its_result_once(make_index: MakeIndex) -> None:
    """Typed as by a user; the check runs in a process of its own."""
    shown = on_terminal(["bin/index", "--check", str(make_index())], 40, {"TERM": "xterm"})
    assert screen(shown)[0].endswith("0 originals checked, no problem found")
    assert screen(shown)[1:] == [""]
