"""Corpora of a list of URLs, and of what pages embed."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupindex.corpus import Corpus, CorpusReport
from dedupindex.corpus.html_text import embeds, parsed
from dedupindex.corpus.lineage import changed_sources, read_lineage
from dedupindex.errors import BadInput
from tests.support.budgets import examples
from tests.support.commands import typed
from tests.support.corpora import Page, archive, html
from tests.unit.corpus.test_corpus import news, urls


def captures(corpus: Corpus) -> list[tuple[str, str]]:
    """The URL and the day of each capture, sorted."""
    records = [entry["record"] for entry in corpus]
    return sorted((record["originalUrl"], record["timestamp"][8:10]) for record in records)


def listed(folder: Path, *lines: str, name: str = "urls.txt") -> Path:
    data = "".join(f"{line}\n" for line in lines).encode()
    (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return folder / name


@pytest.mark.parametrize("name", ["urls.txt", "urls.txt.gz"])
def test_captures_of_the_urls_in_a_file(tmp_path: Path, name: str) -> None:
    cdx = news(tmp_path)
    file = listed(tmp_path, "\ufeffhttp://news.org/", "", " http://NEWS.org/logo.png\r", name=name)
    corpus = Corpus.from_cdx(cdx)
    assert captures(corpus.urls(file)) == [("http://news.org/", f"0{day}") for day in (1, 2, 3)]
    assert len(captures(corpus.urls(file, "surt"))) == 4
    assert urls(corpus.latest("url").urls(file)) == ["http://news.org/"]
    passed = corpus.filter("record", lambda record: record["status"] == 200).urls(file)
    assert captures(passed.latest("url")) == [("http://news.org/", "03")]
    assert captures(corpus.where("timestamp >= '20261102'").urls(file).first("url")) == [
        ("http://news.org/", "02")
    ]
    with pytest.raises(BadInput, match="name the URLs before"):
        passed.latest("url").urls(file)


def test_lines_that_are_no_captures_are_counted_beside_a_list(tmp_path: Path) -> None:
    cdx = news(tmp_path)
    cdx.write_text(cdx.read_text() + "org,x)/ 2026 damaged\n")
    for by in ("url", "surt"):
        corpus = Corpus.from_cdx(cdx).urls(listed(tmp_path, "http://news.org/"), by)
        report = CorpusReport()
        assert (len(list(corpus.kept(report))), report.refused) == (3, 1)


def test_captures_without_canonical_urls_in_the_metadata(tmp_path: Path) -> None:
    cdx = news(tmp_path)
    lines = [" CDX b a m s k r M S V g", *(line.split(" ", 1)[1] for line in
             cdx.read_text().splitlines()[1:])]  # fmt: skip
    cdx.write_text("\n".join(lines) + "\n")
    file = listed(tmp_path, "https://www.NEWS.org/?", "http://other.org/none")
    corpus = Corpus.from_cdx(cdx)
    assert urls(corpus.urls(file)) == []
    assert captures(corpus.urls(file, "surt")) == [("http://news.org/", f"0{d}") for d in (1, 2, 3)]
    assert urls(corpus.latest("url").urls(file, "surt")) == ["http://news.org/"]


def test_revisits_of_listed_urls_are_read_as_originals_that_are_not_listed(tmp_path: Path) -> None:
    first = Page("http://a.org/", 1, html("first"))
    cdx = archive(tmp_path, first, Page("http://b.org/", 2, of=first))
    corpus = Corpus.from_cdx(cdx).urls(listed(tmp_path, "http://b.org/")).enrich("html.title")
    (entry,) = corpus
    assert entry["payload"]["string"]["html"]["title"] == "first"
    assert len(list(corpus.where("mime == 'text/html'"))) == 1


letters = st.sampled_from(["http://a/", "http://a/x", "http://b/", "http://b/é", "http://A/"])


@given(st.lists(letters, max_size=12), st.lists(letters, max_size=12))
@settings(max_examples=examples(20), deadline=None)
def test_a_list_keeps_what_a_set_would(
    tmp_path_factory: pytest.TempPathFactory, captured: list[str], wanted: list[str]
) -> None:
    home = tmp_path_factory.mktemp("list")
    cdx = archive(home, *(Page(url, day, b"x") for day, url in enumerate(captured, 1)))
    corpus = Corpus.from_cdx(cdx).urls(listed(home, *wanted))
    assert sorted(urls(corpus)) == sorted(url for url in captured if url in set(wanted))


def test_a_list_of_many_urls_fits_in_little_memory(tmp_path: Path) -> None:
    cdx = news(tmp_path)
    with open(tmp_path / "urls.txt", "w") as stream:
        for number in range(500_000):
            stream.write(f"http://news.org/{'x' * 300}/{number}\n")
        stream.write("http://news.org/logo.png\n")
    corpus = Corpus.from_cdx(cdx).having(memory="140MB").urls(tmp_path / "urls.txt", "surt")
    assert urls(corpus) == ["http://news.org/logo.png"]


def test_a_list_that_cannot_be_read(tmp_path: Path) -> None:
    cdx = news(tmp_path)
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"http://a/\n" * 100)[:-9])
    (tmp_path / "long").write_bytes(b"x" * (1 << 21) + b"xx")
    for name, message in (
        ("none", "No such file"), ("cut.gz", "damaged gzip"), ("long", "line 1 is too long"),
    ):  # fmt: skip
        with pytest.raises(BadInput, match=message):
            list(Corpus.from_cdx(cdx).urls(tmp_path / name))
    with pytest.raises(BadInput, match="by url or surt"):
        Corpus.from_cdx(cdx).urls(tmp_path / "cut.gz", "host")


def test_a_list_on_the_command_line_and_in_the_lineage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cdx, file = news(tmp_path), listed(tmp_path, "http://NEWS.org/logo.png")
    monkeypatch.chdir(tmp_path)
    line = ["corpus", cdx.name, "--urls", file.name]
    typed(*line, "-o", "none.jsonl")
    assert Path("none.jsonl").read_bytes() == b""
    typed(*line, "--urls-by", "surt", "-o", "o.jsonl", "--lineage")
    made = read_lineage(tmp_path / "o.jsonl")
    assert made["steps"] == ["urls('urls.txt', 'surt')"]
    assert [Path(source["name"]) for source in made["sources"]] == [cdx, file]
    typed("corpus", "--again", "o.jsonl", "-o", "again.jsonl")
    assert Path("again.jsonl").read_text().count("logo.png") == 2  # and in the lineage: none
    listed(tmp_path, "http://other.org/")
    assert [str(file) in change for change in changed_sources(made)] == [True]
    file.rename("urls.jsonl")
    _, talk = typed("corpus", cdx, "--urls", "urls.jsonl", "-o", "urls.jsonl", status=4)
    assert "is read as a SOURCE" in talk


# --- what pages embed ----------------------------------------------------------------------------


def site(folder: Path) -> Path:
    """Two pages of other days, whose images and styles were captured on several days."""
    page = b"<!doctype html><link rel=stylesheet href='/s.css'><img src=i.png srcset='/j.png 2x'>"
    return archive(
        folder,
        Page("http://a.org/d/", 5, page),
        Page("http://a.org/d/old", 1, page.replace(b"i.png", b"/d/i.png")),
        *(Page("http://a.org/s.css", day, b"b{}%d" % day, "text/css") for day in (2, 9)),
        *(Page("https://a.org/d/i.png", day, b"P%d" % day, "image/png") for day in (3, 7)),
        Page("http://a.org/j.png", 4, b"", status=404),
        Page("http://a.org/unused.png", 5, b"x", "image/png"),
    )


@pytest.mark.parametrize("jobs", [1, 3])
def test_what_pages_embed_nearest_in_time(tmp_path: Path, jobs: int) -> None:
    corpus = Corpus.from_cdx(site(tmp_path)).having(jobs=jobs)
    page = corpus.where("url == 'http://a.org/d/'")
    style, image = ("http://a.org/s.css", "02"), ("https://a.org/d/i.png", "03")
    gone = ("http://a.org/j.png", "04")
    assert captures(page.embeds()) == [gone, style, image]  # of days 3 and 7 the earlier
    assert captures(page.embeds().where("status == 200")) == [style, image]
    assert captures(page.where("status == 404").embeds()) == []
    assert captures(corpus.where("mime == 'text/html' and status == 200").embeds()) == [
        gone, style, image
    ]  # fmt: skip
    late = archive(tmp_path / "late", Page("http://a.org/d/", 6, b"<img src=i.png>"),
                   *(Page("http://a.org/d/i.png", day) for day in (1, 8, 30)))  # fmt: skip
    assert captures(Corpus.from_cdx(late).embeds()) == [("http://a.org/d/i.png", "08")]


def test_embeds_are_derived_from_and_selected_further(tmp_path: Path) -> None:
    corpus = Corpus.from_cdx(site(tmp_path))
    styles = corpus.where("url == 'http://a.org/d/'").enrich("html.title").embeds()
    (entry,) = styles.where("mime == 'text/css'").enrich("string")
    assert entry["payload"] == {"string": "b{}2"}
    assert styles.paths == ()
    assert styles.written == ("where(\"url == 'http://a.org/d/'\")", "enrich('html.title')",
                              "embeds()")  # fmt: skip
    report = styles.save_as_warc(tmp_path / "embeds.warc.gz")
    assert (report.entries, report.whole) == (3, True)


def test_a_page_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    cdx = site(tmp_path)
    corpus = Corpus.from_cdx(cdx).where("url == 'http://a.org/d/'").embeds()
    (tmp_path / "a.warc.gz").write_bytes(b"")
    report = corpus.save_as_json(tmp_path / "o.jsonl")
    assert (report.errors, report.whole) == ({"response": 1}, False)


def test_embeds_on_the_command_line(tmp_path: Path) -> None:
    cdx = site(tmp_path)
    line = ["corpus", cdx, "--where", "url == 'http://a.org/d/'", "--embeds", "--enrich", "mime"]
    typed(*line, "-o", tmp_path / "o.jsonl", "--lineage")
    made = read_lineage(tmp_path / "o.jsonl")
    assert made["steps"][1:] == ["embeds()", "enrich('mime')"]
    lines = [json.loads(one) for one in (tmp_path / "o.jsonl").read_text().splitlines()[1:]]
    assert {one["record"]["mime"] for one in lines} == {"text/css", "image/png", "text/html"}
    typed("corpus", "--again", tmp_path / "o.jsonl", "-o", tmp_path / "again.jsonl")
    first, second = (
        (tmp_path / name).read_bytes().split(b"\n", 1)[1] for name in ("o.jsonl", "again.jsonl")
    )
    assert first == second


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("<img src=a.png#x><img src='a.png'>", ["a.png"]),
        ("<base href=/x/><script src=s.js></script><script>1</script>", ["../x/s.js"]),
        ("<img srcset='a.png 1x, b.png 2x,c,d.png 100w, data:image/png;base64,xx'>",
         ["a.png", "b.png", "c,d.png"]),
        ("<img srcset=',,a.png,, b.png'>", ["a.png", "b.png"]),
        ("<link rel='Shortcut ICON' href=f.ico><link rel=canonical href=no><link href=no>",
         ["f.ico"]),
        ("<style>@import 'a.css'; b{background: URL( \"b.png\" )} c{d:url(c.png)}</style>",
         ["a.css", "b.png", "c.png"]),
        ("<p style='background:url(&quot;d.png&quot;)'>", ["d.png"]),
        ("<video poster=p.jpg><source src=v.mp4></video><object data=o.swf></object>",
         ["p.jpg", "v.mp4", "o.swf"]),
        ("<iframe src=f.html></iframe><input type=image src=in.png><a href=no>x</a>",
         ["f.html", "in.png"]),
        ("<img src='javascript:1'><img src='data:x'><img src=''><img src='http://['><img>", []),
        ("<img src='http://[::1]/x'>", ["http://[::1]/x"]),
        ("", []),
    ],
)  # fmt: skip
def test_what_a_page_embeds(page: str, expected: list[str]) -> None:
    from urllib.parse import urljoin

    base = "http://a.org/d/"
    assert embeds(parsed(page), base) == [urljoin(base, one) for one in expected]


def test_hostile_pages_are_read_in_linear_time() -> None:
    """A quadratic search would take hours."""
    for many in ("url(", 'url("', "@import ", ",", " , ", "url( "):
        for element in (f"<style>{many * 200_000}</style>", f"<img srcset='{many * 200_000}'>"):
            found: list[Any] = embeds(parsed(element), "http://a.org/")
            assert len(found) < 300_000
