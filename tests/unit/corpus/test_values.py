"""Operations beyond filters: failures, distinct values, values alone, groups, elements of pages."""

from __future__ import annotations

import gc
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dedupindex.corpus import Corpus
from dedupindex.corpus.lineage import read_lineage
from dedupindex.errors import BadInput
from tests.support.commands import typed
from tests.support.corpora import Page, archive, html
from tests.unit.corpus.test_corpus import news, urls

TITLE = "payload.string.html.title"


def boom(text: str) -> int:
    if "again" in text or "calm" in text:
        raise ValueError("no")
    return len(text)


def words(text: str) -> list[str]:
    return text.split()


@pytest.mark.parametrize("jobs", [1, 2])
def test_captures_that_failed_are_dropped_and_counted(tmp_path: Path, jobs: int) -> None:
    corpus = Corpus.from_cdx(news(tmp_path)).where("mime == 'text/html'").having(jobs=jobs)
    lengths = corpus.map("payload.string.text", "n", boom)
    report = lengths.drop_failed().save_as_json(tmp_path / "o.jsonl")
    assert (report.chosen, report.entries, report.dropped, report.errors) == (4, 2, 2, {})
    assert not report.whole
    later = lengths.drop_failed().latest("url")  # the latest that works
    found = {entry["record"]["originalUrl"]: entry["record"]["timestamp"] for entry in later}
    assert found["http://news.org/"] == "2026-11-01T09:14:17Z"
    failing = corpus.filter("payload.string.text", boom).drop_failed()
    assert sorted(urls(failing)) == ["http://news.org/", "http://other.org/gone"]
    (tmp_path / "b.warc.gz").unlink()
    assert urls(corpus.enrich("response").drop_failed().where("status == 200")) == [
        "http://news.org/"
    ]


@pytest.mark.parametrize("jobs", [1, 3])
def test_the_first_capture_of_each_value(tmp_path: Path, jobs: int) -> None:
    pages = [Page(f"http://a.org/{n}", 1, html(f"t{n % 3}", str(n))) for n in range(9)]
    image = [Page(f"http://a.org/{n}.png", 1, b"\x89PNG\r\n\x1a\n", "image/png") for n in (1, 2)]
    corpus = Corpus.from_cdx(archive(tmp_path, *pages, *image)).having(jobs=jobs)
    distinct = corpus.distinct(TITLE)
    assert urls(distinct) == [*(f"http://a.org/{n}" for n in range(3)),
                              "http://a.org/1.png", "http://a.org/2.png"]  # fmt: skip
    report = distinct.enrich("html.title").save_as_json(tmp_path / "o.jsonl")
    assert (report.tried, report.entries) == (11, 5)
    with pytest.raises(BadInput, match="last step"):
        distinct.where("status == 200")
    with pytest.raises(BadInput, match="nothing at"):
        corpus.distinct("payload.nothing")
    assert distinct.having(revisits="once").count() == 4  # the images have one payload


def test_values_without_captures(tmp_path: Path) -> None:
    corpus = Corpus.from_cdx(news(tmp_path)).where("status == 200")
    assert sorted(corpus.map_values(TITLE)) == ["front", "front", "front, again"]
    texts = corpus.map_values("payload.string.text", len)
    assert texts.count() == 3
    all_words = corpus.flat_map("payload.string.text", words)
    assert Counter(all_words) == {"flood": 2, "in": 1, "the": 1, "north": 1, "calm": 1, "again": 1}
    assert sorted(all_words.filter(lambda word: len(word) > 3).map(str.upper).distinct()) == [
        "AGAIN", "CALM", "FLOOD", "NORTH"
    ]  # fmt: skip
    assert all_words.peek().startswith('"')
    with pytest.raises(BadInput, match="comes last"):
        all_words.distinct().map(len)
    with pytest.raises(BadInput, match="never output itself"):
        corpus.map_values("payload.string.html")
    tags = corpus.flat_map(
        "payload.string.html", lambda tree: [one.tag for one in tree.body.child_nodes]
    )
    assert set(tags) == {"p"}


def test_values_that_fail_are_reported(tmp_path: Path) -> None:
    corpus = Corpus.from_cdx(news(tmp_path)).where("mime == 'text/html'")
    lengths = corpus.map_values("payload.string.text", boom)
    with pytest.warns(UserWarning, match="values failed for 2 captures"):
        assert len(list(lengths)) == 2
    report = lengths.save_as_json(tmp_path / "o.jsonl")
    assert (report.errors, report.whole) == ({"values": 2}, False)
    assert len((tmp_path / "o.jsonl").read_text().splitlines()) == 2


def kill(text: str) -> int:
    import os
    import signal

    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def test_a_function_that_kills_its_process_costs_one_capture(tmp_path: Path) -> None:
    pages = [Page(f"http://a.org/{n}", 1, html("t", str(n))) for n in range(4)]
    corpus = Corpus.from_cdx(archive(tmp_path, *pages)).having(jobs=2)
    report = corpus.map_values("payload.string.text", kill).save_as_json(tmp_path / "o.jsonl")
    assert (report.errors, report.bytes) == ({"process": 4}, 0)
    dropped = corpus.map("payload.string.text", "x", kill).drop_failed()
    report = dropped.save_as_json(tmp_path / "p.jsonl")
    assert (report.dropped, report.entries, report.errors) == (4, 0, {})


def test_captures_are_counted_by_group(tmp_path: Path) -> None:
    cdx = news(tmp_path)
    corpus = Corpus.from_cdx(cdx)
    for file in tmp_path.glob("*.warc*"):
        file.rename(file.with_suffix(".gone"))  # metadata suffice
    assert list(corpus.group("hostname", "status")) == [
        {"hostname": "news.org", "status": 200, "count": 4},
        {"hostname": "other.org", "status": 404, "count": 1},
    ]
    (row,) = corpus.group("year", "month", sums=["length", "status"])
    sizes = sum(entry["record"]["compressedSize"] for entry in corpus)
    expected = {"year": "2026", "month": "2026-11", "count": 5, "sum(length)": sizes}
    assert row == {**expected, "sum(status)": 4 * 200 + 404}
    with pytest.raises(BadInput, match="nothing at 'host'; there are .*hostname, .*year"):
        corpus.group("host")
    with pytest.raises(BadInput, match="digest is not a number"):
        corpus.group("hostname", sums=["length", "digest"])


def test_groups_by_values(tmp_path: Path) -> None:
    corpus = Corpus.from_cdx(news(tmp_path)).where("mime == 'text/html'")
    counted = corpus.map("payload.string.text", "n", len)
    group = counted.group(TITLE, sums=["payload.string.text.n"])
    rows = [(row[TITLE], row["count"], row["sum(payload.string.text.n)"]) for row in group]
    lengths = {text: len(text) for text in corpus.map_values("payload.string.text")}
    assert [row[:2] for row in rows] == [("404", 1), ("front", 2), ("front, again", 1)]
    assert sum(row[2] for row in rows) == sum(
        lengths[text] for text in corpus.map_values("payload.string.text")
    )
    with pytest.warns(UserWarning, match="sum failed for 4 captures"):
        assert list(corpus.group(TITLE, sums=[TITLE])) == []


# --- elements by CSS selector --------------------------------------------------------------------

PAGE = (
    b"<!doctype html><title>t</title><base href=/d/><h1>One <b>two</b>\n three</h1><h2></h2>"
    b"<img src=i.png alt=A><img src='http://['><img alt=''><svg><title>no</title></svg>"
)


@pytest.mark.parametrize(
    ("selector", "first", "expected"),
    [
        ("h1, h2", False, ["One two three", ""]),
        ("h1, h2", True, "One two three"),
        ("img::attr(alt)", False, ["A", ""]),
        ("img::attr( src )", True, "i.png"),
        ("img::url(src)", False, ["http://a.org/d/i.png"]),
        ("img[alt='']::attr(src)", True, None),
        ("video", False, None),
        ("video", True, None),
    ],
)
def test_elements_by_selector(tmp_path: Path, selector: str, first: bool, expected: Any) -> None:
    png = Page("http://a.org/x", 2, b"\x89PNG\r\n\x1a\n", "image/png")
    cdx = archive(tmp_path, Page("http://a.org/p/", 1, PAGE), png)
    corpus = Corpus.from_cdx(cdx).select("it", selector, first=first)
    page, image = list(corpus)
    found = page["payload"]["string"]["html"]["it"] if "payload" in page else None
    assert found == expected
    assert "payload" not in image
    assert "error" not in image
    word = "--select-first" if first else "--select"
    typed("corpus", cdx, word, "it", selector, "-o", tmp_path / "o.jsonl", "--lineage")
    lines = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert lines[1:] == [page, image]
    assert lines[0]["dedupindex-lineage"]["steps"] == list(corpus.written)


def test_a_selector_that_is_none(tmp_path: Path) -> None:
    corpus = Corpus.from_cdx(news(tmp_path))
    for selector in ("a[", "", "::attr(x)", "a::text"):
        with pytest.raises(BadInput, match="not a selector of CSS"):
            corpus.select("x", selector)


# --- the command line ----------------------------------------------------------------------------


def test_operations_on_the_command_line(tmp_path: Path) -> None:
    cdx = news(tmp_path)
    out, _ = typed("corpus", cdx, "--where", "status == 200", "--values", TITLE)
    assert sorted(out.splitlines()) == ['"front"', '"front"', '"front, again"']
    typed("corpus", cdx, "--group", "mime", "--sum", "status", "-o", tmp_path / "g.jsonl",
          "--lineage")  # fmt: skip
    made = read_lineage(tmp_path / "g.jsonl")
    assert made["steps"] == ["group('mime', sums=('status',))"]
    first, *rows = (tmp_path / "g.jsonl").read_text().splitlines()
    assert [json.loads(row) for row in rows] == [
        {"mime": "image/png", "count": 1, "sum(status)": 200},
        {"mime": "text/html", "count": 4, "sum(status)": 1004},
    ]
    typed("corpus", "--again", tmp_path / "g.jsonl", "-o", tmp_path / "h.jsonl")
    assert (tmp_path / "h.jsonl").read_text().splitlines()[1:] == rows
    out, _ = typed("corpus", cdx, "--distinct", TITLE, "--where", "mime == 'text/html'")
    assert len(out.splitlines()) == 3
    (tmp_path / "b.warc.gz").unlink()
    out, talk = typed("corpus", cdx, "--enrich", "response", "--drop-failed", status=7)
    assert len(out.splitlines()) == 3
    assert "2 captures of which something failed are left out" in talk
    for words, message in (
        (["--values", TITLE, "--group", "mime"], "two kinds of output"),
        (["--sum", "length"], "--sum needs --group"),
    ):
        assert message in typed("corpus", cdx, *words, status=2)[1]
    _, talk = typed("corpus", cdx, "--group", "mime", "-o", tmp_path / "g.parquet", status=4)
    assert "are written to .jsonl" in talk


# --- captures that are cached --------------------------------------------------------------------


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_cache_computes_once(tmp_path: Path, jobs: int) -> None:
    """After it the WARC files may even be gone."""
    first = Page("http://a.org/", 1, html("one", "flood"))
    image = Page("http://a.org/i.png", 3, b"\x89PNG\r\n\x1a\n", "image/png")
    pages = [first, Page("http://a.org/", 2, html("two", "flood")), image]
    pages.append(Page("http://b.org/", 4, of=first))
    cdx = archive(tmp_path, *pages, Page("http://c.org/", 5, html("x"), file="gone.warc.gz"))
    (tmp_path / "gone.warc.gz").unlink()
    corpus = Corpus.from_cdx(cdx).having(jobs=jobs).enrich("html.title", "response")
    corpus = corpus.map("payload.string.text", "n", len).where("timestamp < '20261106'")
    cached = corpus.cache()
    expected = list(corpus)
    assert sum("error" in entry for entry in expected) == 1
    assert list(cached) == expected
    cdx.unlink()
    (tmp_path / "a.warc.gz").unlink()
    assert list(cached) == expected
    report = cached.save_as_json(tmp_path / "o.jsonl")
    assert (report.entries, report.records, report.errors) == (5, 0, {"response": 1})
    titles = cached.drop_failed().latest("url")
    assert urls(titles.where("mime == 'text/html'")) == ["http://a.org/", "http://b.org/"]
    assert cached.having(revisits="once").count() == 4  # b.org has the payload of a.org
    assert cached.having(revisits="skip").count() == 4
    (latest,) = cached.where("hostname == 'a.org' and mime == 'text/html'").latest()
    assert latest["payload"]["string"]["html"]["title"] == "two"
    assert cached.written[-1] == "cache()"


def test_what_is_not_cached_is_read(tmp_path: Path) -> None:
    corpus = Corpus.from_cdx(news(tmp_path)).filter("payload.string.text", lambda text: text)
    latest = corpus.latest("url").cache()
    assert latest.first("surt").count() == latest.count() == 2  # grouped twice, after a filter
    enriched = latest.enrich("html.title").distinct(TITLE).cache()
    assert [entry["payload"]["string"]["html"]["title"] for entry in enriched] == [
        entry["payload"]["string"]["html"]["title"] for entry in latest.enrich("html.title")
    ]
    latest.save_as_warc(tmp_path / "o.warc.gz")
    assert sorted(urls(Corpus.of(tmp_path / "o.warc.gz"))) == sorted(urls(latest))
    with pytest.raises(BadInput, match="take embeds before"):
        latest.embeds()


def test_a_cache_tells_what_the_source_lacks(tmp_path: Path) -> None:
    cdx = news(tmp_path)
    cdx.write_text(cdx.read_text() + "damaged\n")
    cached = Corpus.from_cdx(cdx).enrich("mime").cache()
    for _ in range(2):
        with pytest.warns(UserWarning, match="no captures: 1"):
            assert len(list(cached)) == 5


def test_the_files_of_a_cache_are_removed_with_it(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    cached = Corpus.from_cdx(news(tmp_path)).having(work=work).cache()
    assert list(work.iterdir()) == []
    assert cached.count() == 5
    assert len(list(work.iterdir())) == 1
    latest = cached.latest("url")
    del cached
    gc.collect()
    assert latest.count() == 3
    del latest
    gc.collect()
    assert list(work.iterdir()) == []
