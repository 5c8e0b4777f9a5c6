"""The report of a deduplication: numbers by host, advice, and the page."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from dedupindex.cli.dedup import _text_of
from dedupindex.post_crawl import dedup_page
from dedupindex.post_crawl.dedup_report import (
    DedupReport,
    HostNumbers,
    by_host,
    host_lines,
    refused_table,
)
from dedupindex.post_crawl.reasons import WORDS
from dedupindex.post_crawl.rewrite.result_place import FILE_LEFT
from dedupindex.runtime.duckdb import one_thread, write_parquet
from tests.support.paths import ROOT


def test_hosts_with_unusual_characters_are_counted(tmp_path: Path) -> None:
    spool, lines = tmp_path / "revisits.jsonl", tmp_path / "lines.parquet"
    urls = ('http://a"b/1', 'http://a"b/2', "http://c/")
    with one_thread() as database:
        rows = " UNION ALL ".join(f"SELECT '{url}' AS url" for url in urls)
        write_parquet(database, rows, lines)
    spool.write_bytes(b"".join(host_lines({'a"b': [1, 30], "c": [1, 5], "\t\n": [1, 2]})))
    most = [HostNumbers('a"b', 2, 1, 30), HostNumbers("c", 1, 1, 5)]
    rest = HostNumbers("1 others", 0, 1, 2)
    assert by_host(str(lines), spool, 2, "1GB") == [*most, rest]


def test_hosts_that_save_nothing_are_counted_only() -> None:
    none = [HostNumbers(name, 4, 0, 0) for name in ("b.test", "c.test")]
    none.append(HostNumbers("1,200 others", 4, 0, 0, hosts=1200))
    report = DedupReport(False, hosts=[HostNumbers("a.test", 2, 1, 30), *none])
    lines = list(_text_of(report, []))
    assert "  1,202 others with nothing" in lines
    assert not any("b.test" in line or "200 others" in line for line in lines)
    assert "1,202 hosts that have no revisit" in "".join(dedup_page.lines(report, ["in"]))
    report.hosts = none
    assert "  1,202 hosts with nothing" in _text_of(report, [])


def test_no_smaller_gain_is_advised_than_the_smallest() -> None:
    refused = Counter({"no-gain": 1})
    assert DedupReport(False, refused=refused).refused_rows()[0]["option"] == ""
    rows = DedupReport(False, refused=refused, min_gain=2).refused_rows()
    assert rows[0]["option"] == "a smaller --min-gain"


def test_every_documented_reason_is_reported_in_words() -> None:
    text = (ROOT / "docs/stages.md").read_text()
    tables = re.findall(r"^\| reason \|.*\n\|[-| ]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    first = [row.split("|")[1] for table in tables for row in table.splitlines()]
    codes = {code for cell in first for code in re.findall("`([a-z-]+)`", cell)}
    assert codes | {FILE_LEFT} == WORDS.keys() and len(tables) == 3


def test_the_table_of_reasons_has_options_only_if_there_are_some() -> None:
    for reason, has in (("same-second", False), ("small", True)):
        rows = DedupReport(False, refused=Counter({reason: 1, "unused-original": 2})).refused_rows()
        title, *_ = refused_table(rows, dry_run=True).text_lines(rows)
        assert ("what could change it" in title) is has and "captures, %" in title


def test_the_page_names_what_is_in_the_result_and_what_is_not() -> None:
    report = DedupReport(False, files=2, skipped=1, skipped_files=["in/notes.txt"])
    report.leave("in/cut.warc.gz", "it is damaged")
    report.leave("in/cut.warc.gz", "it is damaged", 812)
    report.revisits_before = 3
    report.leave("in/growing.warc.gz.open", "it is being written")
    report.add_missing("in/growing.warc.gz.open", 9, 0)
    html = "".join(dedup_page.lines(report, ["in"], ["verify: bin/verify --against in out"]))
    assert "Files skipped, neither WARC nor ARC, not copied: 1 (in/notes.txt)." in html
    assert "in/cut.warc.gz</th><td>yes</td>" in html
    assert "at 812: it is damaged" in html and "Revisits that were there before: 3" in html
    assert "not verified, because not readable as archives, or not written: 2 files" in html
    assert "2 files of 0 records." in html
    assert "in/growing.warc.gz.open</th><td>no</td>" in html
    assert "<p>verify: bin/verify --against in out</p>" in html


@pytest.mark.parametrize(("kept", "hinted"), [(900, False), (2000, True)])
def test_revisits_that_save_nothing_lead_to_min_gain(kept: int, hinted: bool) -> None:
    report = DedupReport(False, files=1, captures=2, originals=1, revisits=1, journal=kept)
    report.bytes_before, report.bytes_after = 9000, 8000
    html = "".join(dedup_page.lines(report, ["in"]))
    for shown in ("\n".join(_text_of(report, [])), html):
        assert ("--min-gain 1000 makes no revisit that saves less" in shown) is hinted


def test_the_page_names_the_files_that_revisits_need() -> None:
    report = DedupReport(False, files=1, records=3, outside=Counter({"/old/x.warc.gz": 3}))
    page = "".join(dedup_page.lines(report, ["in"]))
    assert "3 revisits of originals outside, in 1 file to be kept (/old/x.warc.gz)" in page
    assert "1 file of 3 records" in page
