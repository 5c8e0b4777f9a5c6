"""Corpora: selection by metadata, records read, and reports."""

from __future__ import annotations

import gc
import gzip
import json
import os
import signal
import sys
import weakref
import zlib
from pathlib import Path
from typing import Any

import pytest

from dedupindex.corpus import Corpus, CorpusReport, Enrichment, Entry
from dedupindex.errors import BadInput, BadQuery, BadSource
from tests.integration.test_spark_tasks import built
from tests.support.corpora import Page, archive, html
from tests.support.stores import web
from tests.support.warc_cases import chunked, sha1

_opened: list[str] = []
_watching = False


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if _watching and event == "open" and isinstance(arguments[0], str):
        _opened.append(arguments[0])


sys.addaudithook(_note)  # for good: there is no way to take one away


def opened(corpus: Corpus) -> tuple[list[dict[str, Any]], set[str]]:
    """What comes of a corpus, and the WARC files that are opened for it."""
    global _watching
    _opened.clear()
    _watching = True
    try:
        entries = list(corpus.having(jobs=1))
    finally:
        _watching = False
    return entries, {os.path.basename(path) for path in _opened if ".warc" in path}


def _title(entry: dict[str, Any]) -> str | None:
    """The title of a page, or why it has none."""
    title: str | None = entry.get("error") or entry["payload"]["string"]["html"]["title"]
    return title


def urls(corpus: Corpus) -> list[str]:
    return [entry["record"]["originalUrl"] for entry in corpus]


def news(folder: Path) -> Path:
    return archive(
        folder,
        Page("http://news.org/", 1, html("front", "flood in the north")),
        Page("http://news.org/", 3, html("front, again", "calm"), file="b.warc.gz"),
        Page("http://news.org/", 2, html("front", "flood again"), file="b.warc.gz"),
        Page("http://news.org/logo.png", 1, b"\x89PNG\r\n\x1a\n\0\0", "image/png", file="c.warc"),
        Page("http://other.org/gone", 4, html("404"), status=404, file="c.warc"),
    )


def test_files_of_excluded_captures_are_not_opened(tmp_path: Path) -> None:
    corpus = Corpus.from_cdx(news(tmp_path)).enrich("html.title")
    (tmp_path / "c.warc").unlink()
    chosen = corpus.where("hostname == 'news.org' and timestamp == '2026-11-01'")
    entries, files = opened(chosen.where("mime == 'text/html'"))
    assert [entry["payload"]["string"]["html"]["title"] for entry in entries] == ["front"]
    assert files == {"a.warc.gz"}
    assert opened(Corpus.from_cdx(tmp_path / "all.cdx").where("status == 200"))[1] == set()
    assert opened(corpus.where("status == 500")) == ([], set())
    before = corpus.filter("record", lambda record: record["status"] == 500)
    assert opened(before) == ([], set())


def test_only_ranges_are_read(tmp_path: Path) -> None:
    page = Page("http://a.org/", body=html("x"))
    cdx = archive(tmp_path, Page("http://b.org/", body=os.urandom(100_000)), page)
    report = (
        Corpus.from_cdx(cdx)
        .where("hostname == 'a.org'")
        .enrich("string")
        .save_as_json(tmp_path / "o.jsonl")
    )
    assert (report.bytes_read, report.records, report.entries) == (len(page.stored), 1, 1)


def test_a_corpus_is_lazy(tmp_path: Path) -> None:
    corpus = Corpus.from_cdx(tmp_path / "later.cdx").where("status == 200").enrich("response")
    with pytest.raises(BadSource, match=r"later\.cdx"):
        corpus.count()
    news(tmp_path).rename(tmp_path / "later.cdx")
    assert corpus.count() == 4
    assert corpus.where("mime == 'image/png'").count() == 1
    assert corpus.count() == 4


def test_the_json_is_that_of_archivespark(tmp_path: Path) -> None:
    body = html("A  title", "words")
    page = Page("http://www.Example.com/x?b=2&a=1", 2, body)
    corpus = Corpus.from_cdx(archive(tmp_path, page))
    record = {
        "surtUrl": "com,example)/x?a=1&b=2",
        "timestamp": "2026-11-02T09:14:17Z",
        "originalUrl": "http://www.Example.com/x?b=2&a=1",
        "mime": "text/html",
        "status": 200,
        "digest": sha1(body).decode().removeprefix("sha1:"),
        "redirectUrl": "-",
        "meta": "-",
        "compressedSize": len(page.stored),
    }
    assert list(corpus) == [{"record": record}]
    assert list(corpus.enrich("html.title")) == [
        {"record": record, "payload": {"string": {"html": {"title": "A title"}}}}
    ]
    (both,) = corpus.enrich("string", "html.title")
    assert both["payload"]["string"] == {"_": body.decode(), "html": {"title": "A title"}}
    (whole,) = corpus.enrich("html.title").enrich("response").enrich("mime")
    assert whole["payload"] == {
        "_": f"bytes(length: {len(body)})",
        "string": {"html": {"title": "A title"}},
        "mime": "text/html",
    }
    assert whole["httpStatusLine"] == "HTTP/1.1 200 X"
    assert whole["httpHeader"] == {"Content-Type": "text/html"}
    assert whole["recordHeader"]["WARC-Target-URI"] == page.url
    assert set(whole) == {"record", "payload", "httpStatusLine", "httpHeader", "recordHeader"}


def test_a_value_is_computed_once(tmp_path: Path) -> None:
    made: list[str] = []

    def words(text: str, entry: Entry) -> list[str]:
        made.append(entry.url)
        return text.split()

    split = Enrichment("words", "payload.string.text", ("words",), words)
    corpus = (
        Corpus.from_cdx(news(tmp_path))
        .having(jobs=1)
        .where("timestamp == '2026-11-01' and mime == 'text/html'")
        .enrich(split)
        .filter("payload.string.text.words", lambda found: "flood" in found)
        .map("payload.string.text.words", "count", len)
        .map("payload.string.text.words", "first", lambda found: found[0])
    )
    (entry,) = corpus
    assert made == ["http://news.org/"]
    assert entry["payload"] == {"string": {"text": {"words": {
        "_": ["flood", "in", "the", "north"], "count": 4, "first": "flood"}}}}  # fmt: skip


def test_several_fields_and_values_of_any_kind(tmp_path: Path) -> None:
    corpus = Corpus.from_cdx(archive(tmp_path, Page("http://a.org/", body=html("x"))))
    odd = Enrichment(
        "odd", "payload", ("a", "b", "c"), lambda data, entry: (b"xy", {1: {2.5}}, None)
    )
    (entry,) = corpus.enrich(odd).map("payload", "d", lambda data: ["\ud800", 1 << 80, object])
    assert entry["payload"] == {
        "a": "bytes(length: 2)", "b": {"1": [2.5]}, "d": ["?", str(1 << 80), str(object)],
    }  # fmt: skip


def _circle(data: bytes) -> list[Any]:
    circle: list[Any] = []
    circle.append(circle)
    return circle


def _deep(data: bytes) -> list[Any]:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    return deep


def _exit(data: bytes) -> None:
    raise SystemExit(0)


@pytest.mark.parametrize("function", [_circle, _deep, _exit])
@pytest.mark.parametrize("save", ["save_as_json", "save_as_parquet"])
def test_errors_of_user_functions_do_not_end_the_run(
    tmp_path: Path, function: Any, save: str
) -> None:
    corpus = Corpus.from_cdx(news(tmp_path)).having(jobs=2).map("payload", "size", len)
    corpus = corpus.map("payload", "odd", function)
    report = getattr(corpus, save)(tmp_path / "out")
    assert (report.entries, report.errors) == (5, {"odd": 5})
    (entry, *_) = corpus
    assert entry["payload"] == {"size": 60} and entry["error"].startswith("odd: ")
    assert corpus.filter("payload.odd").count() == 5
    assert Corpus.from_cdx(tmp_path / "all.cdx").filter("payload", function).count() == 5


def test_errors_are_kept_with_their_capture(tmp_path: Path) -> None:
    cdx = archive(
        tmp_path,
        Page("http://a.org/1", body=html("one")),
        Page("http://a.org/2", body=html("two"), file="gone.warc.gz"),
        Page("http://a.org/3", body=html("three")),
        Page("http://a.org/4", body=b"\x1f\x8b", head=b"HTTP/1.1 200 OK\r\n"
             b"Content-Type: text/html\r\nContent-Encoding: sdch\r\n\r\n"),
    )  # fmt: skip
    lines = cdx.read_text().replace(" gone.warc.gz", " nowhere.warc.gz").splitlines()
    third = next(at for at, line in enumerate(lines) if "/3 " in line)
    fields = lines[third].split(" ")
    fields[9] = lines[1].split(" ")[9]  # the offset of the first
    lines[third] = " ".join(fields)
    cdx.write_text("\n".join(lines) + "\n")
    corpus = Corpus.from_cdx(cdx).enrich("html.title").map("payload", "half", lambda data: data / 2)
    report = corpus.save_as_json(tmp_path / "o.jsonl")
    errors = {entry["record"]["originalUrl"]: entry.get("error", "") for entry in corpus}
    assert errors["http://a.org/1"].startswith("half: TypeError: ")
    assert errors["http://a.org/2"] == (
        "response: nowhere.warc.gz was not found: name its directory with --containers, or "
        "containers="
    )
    assert (
        "at the offset in its metadata is another capture: http://a.org/1"
        in errors["http://a.org/3"]
    )
    assert (
        "content: ValueError: its content coding 'sdch' is not known; half"
        in errors["http://a.org/4"]
    )
    assert report.errors == {"half": 2, "response": 2, "content": 1}
    assert report.entries == report.chosen == 4
    titles = [entry.get("payload") for entry in corpus]
    assert {"string": {"html": {"title": "one"}}} in titles
    kept = corpus.filter("payload.string.html.title", lambda title: title == "one")
    assert sorted(urls(kept)) == [f"http://a.org/{n}" for n in (1, 2, 3, 4)]


def test_values_are_released_with_their_capture(tmp_path: Path) -> None:
    class Tree:
        pass

    made: list[weakref.ref[Tree]] = []

    def parse(text: str) -> Tree:
        tree = Tree()
        made.append(weakref.ref(tree))
        return tree

    with web(tmp_path, ranges=False) as there:  # which fsspec says by an error
        cdx = news(tmp_path)
        for where in (str(tmp_path), f"{there.url}/"):
            corpus = Corpus.from_cdx(cdx, containers=where).having(jobs=1)
            made.clear()
            gc.disable()
            try:
                trees = corpus.map("payload.string", "tree", parse)
                entries = list(trees.map("payload.string.tree", "half", lambda tree: tree / 2))
                assert sum("error" in entry for entry in entries) == 4  # an image has no text
                assert len(made) == 4 and not any(tree() for tree in made)
            finally:
                gc.enable()


@pytest.mark.parametrize(
    "data", [b"", bytes(100_000), gzip.compress(b"")], ids=["empty", "zeros", "gzip of nothing"]
)
def test_a_file_without_a_record_is_reported(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.warc.gz").write_bytes(data)
    report = Corpus.from_warcs(tmp_path / "a.warc.gz").save_as_json(tmp_path / "o.jsonl")
    assert [problem.message for problem in report.problems] == ["holds no record"]


def test_problems_become_a_warning_without_a_report(tmp_path: Path) -> None:
    odd = {"Date": b"2026-13-01T00:00:00Z"}
    pages = [Page(f"http://a.org/{n}", n + 1, html(f"{n}")) for n in range(3)]
    archive(tmp_path, *pages, Page("http://a.org/odd", fields=odd)).unlink()
    corpus = Corpus.from_warcs(tmp_path)
    message = "left out: 1 record without URL or time"
    with pytest.warns(UserWarning, match=message):
        assert len(list(corpus)) == 3
    with pytest.warns(UserWarning, match=message):
        assert corpus.count() == 3
    with pytest.warns(UserWarning, match=message):
        assert "a.org/0" in corpus.peek()
    report = corpus.save_as_json(tmp_path / "o.jsonl")
    assert report.entries == 3 and message in report.problems[0].message
    (tmp_path / "o.cdx").write_text(" CDX N b a m s k r M S V g\nno capture\n")
    with pytest.warns(UserWarning, match="that are no captures: 1"):
        assert Corpus.from_cdx(tmp_path / "o.cdx").count() == 0


def test_a_page_that_kills_its_reader_costs_one_capture(tmp_path: Path) -> None:
    pages = [Page(f"http://a.org/{n}", body=html(f"title {n}")) for n in range(40)]

    def deadly(title: str) -> str:
        if title == "title 17":
            os.kill(os.getpid(), signal.SIGKILL)
        return title.upper()

    corpus = Corpus.from_cdx(archive(tmp_path, *pages)).having(jobs=2)
    entries = list(corpus.map("payload.string.html.title", "big", deadly))
    found = [entry["record"]["originalUrl"] for entry in entries]
    assert found == [page.url for page in pages]
    (failed,) = (entry for entry in entries if "error" in entry)
    assert failed["record"]["originalUrl"] == "http://a.org/17"
    assert "killed the process" in failed["error"]


def test_a_page_that_takes_too_long_costs_one_capture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dedupindex.corpus.extract._SECONDS", 0.2)
    pages = [Page(f"http://a.org/{n}", body=html(f"title {n}")) for n in range(3)]

    def endless(title: str) -> str:
        while title == "title 1":
            pass
        return title.upper()

    corpus = Corpus.from_cdx(archive(tmp_path, *pages)).having(jobs=2)
    entries = list(corpus.map("payload.string.html.title", "big", endless))
    assert ["error" in entry for entry in entries] == [False, True, False]


def test_many_links_take_linear_time(tmp_path: Path) -> None:
    page = Page("http://a.org/", body=html("x") + b"<a href='y'>z</a>" * 20_000)
    (entry,) = Corpus.from_cdx(archive(tmp_path, page)).enrich("html.links")
    links = entry["payload"]["string"]["html"]["links"]
    assert links == [{"url": "http://a.org/y", "text": "z"}] * 20_000


def test_the_latest_that_passes_is_searched_from_the_newest(tmp_path: Path) -> None:
    corpus = Corpus.from_cdx(news(tmp_path)).having(jobs=1).where("mime == 'text/html'")
    latest = {
        "http://news.org/": "2026-11-03T09:14:17Z",
        "http://other.org/gone": "2026-11-04T09:14:17Z",
    }
    assert {e["record"]["originalUrl"]: e["record"]["timestamp"] for e in corpus.latest()} == latest
    about = corpus.filter("payload.string.text", lambda text: "flood" in text)
    (entry,) = about.latest()
    assert entry["record"]["timestamp"] == "2026-11-02T09:14:17Z"
    report = about.where("status == 200").latest("surt").save_as_json(tmp_path / "o.jsonl")
    assert (report.tried, report.chosen, report.records) == (2, 3, 2)  # not the first of all
    (entry,) = about.first("url").enrich("html.title")
    assert entry["record"]["timestamp"] == "2026-11-01T09:14:17Z"
    assert about.latest().where("timestamp < '2026-11-02'").count() == 0
    assert corpus.latest().filter("payload.string.text", lambda text: "flood" in text).count() == 0
    with pytest.raises(BadInput, match="grouped only once"):
        about.latest().first()


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("wanted", [0, 2, 3, 9])
def test_a_long_group_is_read_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int, wanted: int
) -> None:
    """Of ten captures of a URL the newest that passes, whichever it is; older ones are not read."""
    monkeypatch.setattr("dedupindex.corpus.select.MAX_CHUNK", 3)
    urls = [f"http://{name}.org/" for name in "abc"]
    pages = [Page(url, n + 1, html(f"{n}", "old" if n > wanted else "new"))
             for n in range(10) for url in urls[: 2 if n else 3]]  # fmt: skip
    corpus = Corpus.from_cdx(archive(tmp_path, *pages)).having(jobs=jobs)
    best = corpus.filter("payload.string.text", lambda text: "new" in text).latest("url")
    report = best.enrich("html.title").save_as_json(tmp_path / "o.jsonl")
    found = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert [entry["record"]["originalUrl"] for entry in found] == urls
    assert [_title(entry) for entry in found] == [f"{wanted}", f"{wanted}", "0"]
    assert report.tried == 2 * (10 - wanted) + 1


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_result_of_a_chunk_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int
) -> None:
    pages = [Page(f"http://a.org/{n:02d}", body=html(f"{n}")) for n in range(50)]
    corpus = Corpus.from_cdx(archive(tmp_path, *pages)).having(jobs=jobs).enrich("html.title")
    whole = list(corpus)
    for held in (0, 1000):
        monkeypatch.setattr("dedupindex.corpus.extract._MAX_RESULT", held)
        assert list(corpus) == whole

    def deadly(title: str) -> str:
        if title == "17" and jobs > 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return title

    entries = list(corpus.map("payload.string.html.title", "same", deadly))
    assert [entry["record"] for entry in entries] == [entry["record"] for entry in whole]
    assert sum("error" in entry for entry in entries) == (jobs > 1)


def test_revisits(tmp_path: Path) -> None:
    body = html("original")
    one = Page("http://a.org/", 1, body)
    again = Page("http://a.org/", 2, of=one, file="b.warc.gz")
    moved = Page(
        "http://b.org/x", 3, of=one, file="b.warc.gz", head=b"HTTP/1.1 200 OK\r\nX-New: y\r\n\r\n"
    )
    lost = Page("http://c.org/", 4, of=Page("http://c.org/", 1, b"elsewhere"), file="b.warc.gz")
    cdx = archive(tmp_path, one, again, moved, lost)
    for corpus in (Corpus.from_cdx(cdx), Corpus.from_warcs(tmp_path)):
        corpus = corpus.enrich("html.title")
        found = {
            entry["record"]["originalUrl"]: entry
            for entry in corpus.where("timestamp > '2026-11-02'")
        }
        assert found["http://b.org/x"]["payload"]["string"]["html"]["title"] == "original"
        assert found["http://b.org/x"]["record"]["mime"] == "text/html"
        assert found["http://b.org/x"]["record"]["revisitOf"] == {
            "originalUrl": "http://a.org/", "timestamp": "2026-11-01T09:14:17Z",
        }  # fmt: skip
        assert found["http://c.org/"]["error"] == "response: its original is not known"
        assert sorted(urls(corpus.having(revisits="skip"))) == ["http://a.org/"]
        assert sorted(urls(corpus.having(revisits="once"))) == ["http://a.org/", "http://c.org/"]
        late = corpus.having(revisits="once").where("timestamp > '2026-11-01' and status == 200")
        assert [e["record"]["timestamp"] for e in late][:1] == ["2026-11-02T09:14:17Z"]
        assert corpus.where("status == 200 and mime == 'text/html'").count() in (3, 4)
    (entry,) = Corpus.from_warcs(tmp_path).where("hostname == 'b.org'").enrich("response")
    assert entry["httpHeader"] == {"Content-Type": "text/html", "X-New": "y"}
    assert entry["recordHeader"]["WARC-Type"] == "revisit"


def test_originals_of_an_index(tmp_path: Path) -> None:
    body = html("original")
    one = Page("http://a.org/", 1, body)
    archive(tmp_path / "old", one)
    cdx = archive(tmp_path / "new", Page("http://b.org/x", 2, of=one, file="b.warc.gz"))
    built(tmp_path / "index", tmp_path / "old" / "a.warc.gz")
    alone = Corpus.from_cdx(cdx).enrich("html.title")
    assert [entry.get("error") for entry in alone] == ["response: its original is not known"]
    assert alone.where("mime == 'text/html'").count() == 0
    both = alone.having(originals=tmp_path / "index").where("mime == 'text/html'")
    assert [e["payload"]["string"]["html"]["title"] for e in both] == ["original"]
    (entry,) = Corpus.from_index(tmp_path / "index").where("surt =~ '^org'").enrich("html.title")
    assert entry["record"]["digest"] == sha1(body).decode().removeprefix("sha1:")
    assert entry["payload"]["string"]["html"]["title"] == "original"


def test_a_record_with_another_payload_is_no_original(tmp_path: Path) -> None:
    one = Page("http://a.org/", 1, html("original"))
    other = Page("http://b.org/x", 2, of=one, file="b.warc.gz")
    cdx = archive(tmp_path, one, other)
    changed = Page("http://a.org/", 1, html("changed!"))
    archive(tmp_path / "aside", changed)
    assert len(changed.stored) and changed.offset == one.offset
    os.replace(tmp_path / "aside" / "a.warc.gz", tmp_path / "a.warc.gz")
    (entry,) = Corpus.from_cdx(cdx).where("hostname == 'b.org'").enrich("string")
    assert entry["error"] == "response: the record found as its original has another payload"


def test_character_sets_and_codings(tmp_path: Path) -> None:
    import brotli
    import zstandard

    text = "<title>Grüße, 日本</title>"
    header = b"HTTP/1.1 200 OK\r\nContent-Type: text/html%b\r\n%b\r\n"
    pages = {
        "utf": (text.encode(), header % (b"; charset=utf-8", b"")),
        "bom": (b"\xff\xfe" + text.encode("utf-16-le"), header % (b"; charset=latin1", b"")),
        "latin": ("<title>Grüße</title>".encode("latin-1"), header % (b"; charset='latin1'", b"")),
        "meta": ("<meta charset=sjis><title>日本</title>".encode("shift_jis"), header % (b"", b"")),
        "br": (brotli.compress(text.encode()), header % (b"", b"Content-Encoding: br\r\n")),
        "zstd": (zstandard.compress(text.encode()), header % (b"", b"content-encoding: zstd\r\n")),
        "gzips": (b"".join(gzip.compress(text[at : at + 9].encode()) for at in (0, 9, 18)) + b"\0",
                  header % (b"", b"Content-Encoding: gzip\r\n")),
        "zstds": (zstandard.compress(text[:9].encode()) + zstandard.compress(text[9:].encode()),
                  header % (b"", b"Content-Encoding: zstd\r\n")),
        "twice": (gzip.compress(zlib.compress(text.encode())),
                  header % (b"", b"Content-Encoding: deflate, gzip\r\n")),
        "chunks": (chunked(text.encode()), header % (b"", b"Transfer-Encoding: chunked\r\n")),
        "cut": (chunked(text.encode() + b"and more")[:-12],
                header % (b"", b"Transfer-Encoding: chunked\r\n")),
        "bare": (b"7\r\n" + text.encode(), header % (b"", b"Transfer-Encoding: chunked\r\n")),
    }  # fmt: skip
    cdx = archive(
        tmp_path, *(Page(f"http://a.org/{n}", body=b, head=h) for n, (b, h) in pages.items())
    )
    found = {
        entry["record"]["originalUrl"].rpartition("/")[2]: _title(entry)
        for entry in Corpus.from_cdx(cdx).enrich("html.title")
    }
    whole = "Grüße, 日本"
    assert found == {"utf": whole, "bom": whole, "latin": "Grüße", "meta": "日本", "br": whole,
                     "zstd": whole, "gzips": whole, "zstds": whole, "twice": whole,
                     "chunks": whole, "cut": whole, "bare": whole}  # fmt: skip


def test_enrichments_of_pages(tmp_path: Path) -> None:
    body = (
        b"<html><body><svg><title>not this</title></svg><title> The\n title </title>"
        b"<nav><a href='/menu'>menu</a></nav><p>The "
        b"archive of the web keeps what was said in it, for those who come and want to know.</p>"
        b"<a href='b.html'>a <b>link</b></a><a href='http://['>bad</a>"
        b"<a href=' JavaScript:no()'>no</a><a href='\x01java\tscr&#10;ipt:no()'>no</a>"
        b"<script>no()</script></body>"
    )
    pages = [
        Page("http://a.org/dir/x", body=body),
        Page("http://a.org/plain", body=b"only text, in English, that says no more than a little",
             mime="text/plain"),
        Page("http://a.org/short", body=b'{"a":1}', mime="text/plain"),
        Page("http://a.org/image", body=b"\x89PNG\r\n\x1a\n\0", mime="text/html"),
        Page("http://a.org/silent", body=b"<html><title>x</title><img src=x></html>"),
    ]  # fmt: skip
    corpus = Corpus.from_cdx(archive(tmp_path, *pages))
    names = ("html.title", "html.links", "html.main", "text", "language", "mime")
    found = {e["record"]["originalUrl"]: e["payload"] for e in corpus.enrich(*names)}
    page = found["http://a.org/dir/x"]
    assert page["string"]["html"]["title"] == "The title"
    assert page["string"]["html"]["links"] == [
        {"url": "http://a.org/menu", "text": "menu"},
        {"url": "http://a.org/dir/b.html", "text": "a link"},
    ]  # fmt: skip
    assert "menu" in page["string"]["text"]["_"] and "no()" not in page["string"]["text"]["_"]
    assert "menu" not in page["string"]["html"]["main"]
    assert page["string"]["text"]["language"] == "en"
    assert found["http://a.org/plain"] == {
        "mime": "text/plain", "string": {"text": {"_": pages[1].body.decode(), "language": "en"}},
    }  # fmt: skip
    assert "language" not in found["http://a.org/short"]["string"]["text"]  # it could be any
    assert found["http://a.org/image"] == {"mime": "image/png"}
    silent = found["http://a.org/silent"]["string"]
    assert silent["text"] in ("", {"_": "", "language": None})  # nothing is no English


def test_an_enrichment_of_another_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is known by its name where that package is installed, and loaded only when asked for."""
    (tmp_path / "names.py").write_text(
        "from dedupindex.corpus import Enrichment\n"
        "entities = Enrichment('entities', 'payload.string.text', ('persons', 'places'),\n"
        "    lambda text, entry: ([word for word in text.split() if word.istitle()], None))\n"
    )
    info = tmp_path / "names-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: names\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[dedupindex.enrichments]\n"
        "entities = names:entities\nbad = names:__name__\nno = names.no:x\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    page = Page("http://a.org/", body=html("x", "so says Grace to Ada"))
    corpus = Corpus.from_cdx(archive(tmp_path / "a", page)).having(jobs=1)
    assert "names" not in sys.modules
    (entry,) = corpus.enrich("entities")
    assert entry["payload"]["string"]["text"] == {"persons": ["Grace", "Ada"]}
    with pytest.raises(BadInput, match=r"names:__name__.* is no Enrichment"):
        corpus.enrich("bad")
    with pytest.raises(BadInput, match=r"names.no:x.* cannot be loaded: ModuleNotFoundError"):
        corpus.enrich("no")
    with pytest.raises(BadInput, match="there are response, .*, bad, entities, no"):
        corpus.enrich("others")
    monkeypatch.delitem(sys.modules, "names")


@pytest.mark.parametrize(
    ("ask", "error", "word"),
    [
        (lambda c: c.where("colour == 1"), BadQuery, "colour"),
        (lambda c: c.enrich("string").filter("payload.string").where("versions > 1"), BadInput,
         "before filters on values"),
        (lambda c: c.enrich("html.colour"), BadInput, r"no enrichment .*; there are response"),
        (lambda c: c.filter("payload.colour"), BadInput, "nothing at 'payload.colour'"),
        (lambda c: c.map("payload.colour", "x", len), BadInput, "nothing at 'payload.colour'"),
        (lambda c: c.map("payload", "string", len), BadInput, "two enrichments make"),
        (lambda c: c.map("payload", "_", len), BadInput, "cannot be called '_'"),
        (lambda c: c.map("payload", "", len), BadInput, "cannot be called ''"),
        (lambda c: c.map("payload", "a.b", len), BadInput, "cannot be called 'a.b'"),
        (lambda c: c.enrich(Enrichment("x", "", ("error",), len)), BadInput, "be added at error"),
        (lambda c: c.latest("colour"), BadInput, "grouped by url, surt, digest"),
        (lambda c: c.having(revisits="none"), BadInput, "resolve, skip, once"),
        (lambda c: c.having(memory="lots").count(), BadInput, "--memory lots"),
    ],
)  # fmt: skip
def test_invalid_operations(tmp_path: Path, ask: Any, error: type[Exception], word: str) -> None:
    corpus = Corpus.from_cdx(news(tmp_path))
    with pytest.raises(error, match=word):
        ask(corpus)


def test_peek(tmp_path: Path) -> None:
    corpus = Corpus.from_cdx(news(tmp_path))
    assert corpus.peek().startswith('{\n  "record": {\n    "surtUrl": "org,')
    assert corpus.peek(9).count('"record": {') == 5
    assert CorpusReport().as_json()["entries"] == 0
