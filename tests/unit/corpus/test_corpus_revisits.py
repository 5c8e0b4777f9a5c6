"""Revisits in corpora: which original they are read as, and what is counted once."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from dedupindex.corpus import Corpus
from dedupindex.errors import BadInput
from tests.integration.test_spark_tasks import built
from tests.support.corpora import Page, archive, html


def _days(corpus: Corpus) -> list[tuple[str, int]]:
    return sorted((e["record"]["originalUrl"], int(e["record"]["timestamp"][8:10])) for e in corpus)


def test_each_digest_that_passes_once(tmp_path: Path) -> None:
    same, other = html("Y"), html("X")
    pages = (Page("http://b.org/", 1, same), Page("http://a.org/", 2, other),
             Page("http://a.org/", 3, same), Page("http://a.org/", 4, other))  # fmt: skip
    once = Corpus.from_cdx(archive(tmp_path, *pages)).having(revisits="once", jobs=1)
    passed = once.filter("record", lambda record: "a.org" in record["originalUrl"])
    assert _days(passed) == [("http://a.org/", 2), ("http://a.org/", 3)]
    assert _days(once.where("hostname == 'a.org'")) == _days(passed)
    titled = once.filter("payload.string.html.title")
    assert _days(titled) == [("http://a.org/", 2), ("http://b.org/", 1)]
    assert _days(once.latest("url")) == [("http://a.org/", 4), ("http://b.org/", 1)]
    with pytest.raises(BadInput, match="grouped only once"):
        titled.latest("url")
    with pytest.raises(BadInput, match="grouped only once"):
        titled.having(revisits="resolve").latest("url").having(revisits="once")


def test_a_stated_place_decides_the_original(tmp_path: Path) -> None:
    body = html("same")
    early = Page("http://early.org/", 1, body)
    one = Page("http://orig.org/", 2, body, file="b.warc.gz")
    again = Page("http://rev.org/", 3, of=one, file="c.warc.gz")
    archive(tmp_path, early, one, again)
    cdxj = tmp_path / "all.cdxj"
    (tmp_path / "o").mkdir()

    def line(page: Page, **more: object) -> str:
        mime = "warc/revisit" if page.of else page.mime
        fields = {"url": page.url, "mime": mime, "digest": page.digest, "filename": page.file,
                "offset": page.offset, "length": len(page.stored), **more}  # fmt: skip
        key = page.url.removeprefix("http://").removesuffix(".org/")
        return f"org,{key})/ {page.timestamp} {orjson.dumps(fields).decode()}\n"

    there = {"orig.length": len(one.stored), "orig.offset": one.offset, "orig.filename": one.file}
    for known in ((early, one), (early,), ()):
        cdxj.write_text("".join(map(line, known)) + line(again, **there))
        corpus = Corpus.from_cdx(cdxj).where("hostname == 'rev.org'")
        (entry,) = corpus.enrich("html.title")
        assert entry["payload"]["string"]["html"]["title"] == "same"
        of = entry["record"].get("revisitOf", {}).get("originalUrl")
        assert of == ("http://orig.org/" if one in known else None)
        name = f"x{len(known)}"
        report = corpus.save_as_warc(tmp_path / "o" / f"{name}.warc.gz")
        assert not report.errors
        lines = (tmp_path / "o" / f"{name}.cdxj").read_text().splitlines()
        assert [text.split(" ")[:2] for text in lines] == [
            ["org,orig)/", one.timestamp], ["org,rev)/", again.timestamp],
        ]  # fmt: skip


NOT_MODIFIED = b"http://netpreserve.org/warc/1.0/revisit/server-not-modified"
NOTHING = b"sha1:3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ"
HEAD = b"HTTP/1.1 304 Not Modified\r\nETag: x\r\n\r\n"


@pytest.mark.parametrize("digest", [NOTHING, None])
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("stated", [True, False])
def test_304_is_read_as_the_original_it_names(
    tmp_path: Path, digest: bytes | None, named: bool, stated: bool
) -> None:
    fields = {} if stated else {"Payload_Digest": None}
    empty = Page("http://empty.org/", 1, b"")
    old = Page("http://a.org/", 2, html("old"), fields=fields)
    right = Page("http://a.org/", 3, html("right"), fields=fields)
    own = {"Payload_Digest": digest, "Profile": NOT_MODIFIED}
    if not named:
        own |= {"Refers_To_Target_URI": None, "Refers_To_Date": None}
    unchanged = Page("http://a.org/", 4, of=right, head=HEAD, fields=own, file="b.warc.gz")
    new = Page("http://a.org/", 5, html("new"), fields=fields)
    cdx = archive(tmp_path, empty, old, right, unchanged, new)
    corpus = Corpus.from_warcs(tmp_path).having(jobs=1)
    (entry,) = corpus.where("status == 304").enrich("html.title")
    assert entry["payload"]["string"]["html"]["title"] == "right"
    assert entry["record"]["revisitOf"]["timestamp"] == "2026-11-03T09:14:17Z"
    once = [day for url, day in _days(corpus.having(revisits="once")) if url == "http://a.org/"]
    assert once == ([2, 3, 5] if stated else [2, 3, 4, 5])  # without a digest they may differ
    text = digest.decode().removeprefix("sha1:") if digest else "-"
    for status in ("304", "-"):
        lines = cdx.read_text().splitlines()
        lines = [
            line.replace(f" - {right.digest}", f" {status} {text}") if "revisit" in line else line
            for line in lines
        ]
        other = tmp_path / "other.cdx"
        other.write_text("".join(f"{line}\n" for line in lines))
        corpus = Corpus.from_cdx(other).where("timestamp == '2026-11-04'").enrich("html.title")
        (entry,) = corpus
        title = entry.get("payload", {}).get("string", {}).get("html", {}).get("title")
        assert title == ("right" if status == "304" else None)
        assert title or "original is not known" in entry["error"]


def test_a_container_is_named_as_metadata_name_it(tmp_path: Path) -> None:
    corpus = Corpus.from_cdx(archive(tmp_path, Page("http://a.org/", 1, html("x"))))
    named = "container == 'a.warc.gz'"
    assert corpus.where(named).count() == 1
    assert corpus.filter("record").latest().where(named).count() == 1


def _read_as(corpus: Corpus) -> str:
    """The URL of what the one revisit on the ninth is read as."""
    (entry,) = corpus.having(jobs=1).where("timestamp == '2026-11-09'").enrich("html.title")
    assert entry["payload"]["string"]["html"]["title"] == "same"
    of: str = entry["record"]["revisitOf"]["originalUrl"]
    return of


def test_the_order_of_originals(tmp_path: Path) -> None:
    """At the place, of the name, of the URL, of the digest, of the index: in this order."""
    body = html("same")
    early, own, named = (
        Page(f"http://{name}.org/", day, body, file=f"{name}.warc.gz")
        for day, name in enumerate(("early", "own", "named"), 1)
    )
    again = Page("http://own.org/", 9, of=named, file="again.warc.gz")
    cdx = archive(tmp_path / "all", early, own, named, again)
    assert _read_as(Corpus.from_warcs(tmp_path / "all")) == "http://named.org/"
    assert _read_as(Corpus.from_cdx(cdx)) == "http://own.org/"  # which names none
    placed = f"{again.cdx().strip()} {len(named.stored)} {named.offset} named.warc.gz\n"
    lines = "".join(f"{one.cdx().strip()} - - -\n" for one in (early, own, named))
    cdx.write_text(lines + placed)
    assert _read_as(Corpus.from_cdx(cdx)) == "http://named.org/"
    again = Page("http://new.org/", 9, of=own, file="again.warc.gz")
    cdx = archive(tmp_path / "some", own, again)
    archive(tmp_path / "old", early)
    built(tmp_path / "index", tmp_path / "old" / "early.warc.gz")
    indexed = Corpus.from_cdx(cdx).having(originals=tmp_path / "index")
    assert _read_as(indexed) == "http://own.org/"
    cdx.write_text(again.cdx())
    assert _read_as(indexed) == "http://early.org/"


@pytest.mark.parametrize("latest", [True, False])
def test_of_one_second_the_original_is_kept(tmp_path: Path, latest: bool) -> None:
    one = Page("http://b.org/", 1, html("same"), file="z.warc.gz")
    again = Page("http://b.org/", 1, of=one, file="a.warc.gz")
    corpus = Corpus.from_cdx(archive(tmp_path, one, again)).having(jobs=1)
    for chosen in (corpus, corpus.filter("record")):
        best = chosen.latest() if latest else chosen.first("url")
        assert best.count() == best.where("container == 'z.warc.gz'").count() == 1


def test_the_type_of_a_payload_is_from_its_own_header(tmp_path: Path) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=latin1\r\n\r\n"
    one = Page("http://a.org/", 1, "<title>ü</title>".encode("latin-1"), head=head)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=koi8-r\r\nX-New: y\r\n\r\n"
    again = Page("http://a.org/", 2, of=one, head=head)
    archive(tmp_path, one, again)
    (entry,) = (
        Corpus.from_warcs(tmp_path)
        .where("timestamp == '2026-11-02'")
        .enrich("html.title", "response")
    )
    assert entry["payload"]["string"]["html"]["title"] == "ü"
    assert entry["httpHeader"] == {"Content-Type": "text/html; charset=latin1", "X-New": "y"}


def test_304_that_names_nothing_is_the_last_of_its_url_even_if_that_is_a_revisit(
    tmp_path: Path,
) -> None:
    one = Page("http://b.org/", 1, html("same"))
    again = Page("http://a.org/", 2, of=one)
    own = {"Payload_Digest": NOTHING, "Profile": NOT_MODIFIED,
           "Refers_To_Target_URI": None, "Refers_To_Date": None}  # fmt: skip
    unchanged = Page("http://a.org/", 3, of=one, head=HEAD, fields=own)
    cdx = archive(tmp_path, one, again, unchanged)
    columns = f"{unchanged.timestamp} http://a.org/ warc/revisit "
    digest = NOTHING.decode().removeprefix("sha1:")
    cdx.write_text(cdx.read_text().replace(f"{columns}- {one.digest}", f"{columns}304 {digest}"))
    for corpus in (Corpus.from_warcs(tmp_path / one.file), Corpus.from_cdx(cdx)):
        (entry,) = corpus.where("timestamp == '2026-11-03'").enrich("html.title")
        assert "error" not in entry
        assert entry["payload"]["string"]["html"]["title"] == "same"


def test_the_cdxj_of_an_archive_has_the_originals_own_fields(tmp_path: Path) -> None:
    """And not those of the revisit for which they were copied."""
    old = Page("http://a.org/", 1, html("old"))
    one = Page("http://a.org/", 2, html("right"), status=203)
    unchanged = Page("http://a.org/", 3, of=one, head=HEAD,
                     fields={"Payload_Digest": NOTHING, "Profile": NOT_MODIFIED})  # fmt: skip
    archive(tmp_path / "in", old, one, unchanged)
    (tmp_path / "o").mkdir()
    wanted = Corpus.from_warcs(tmp_path / "in").where("status == 304")
    assert not wanted.save_as_warc(tmp_path / "o" / "x.warc.gz").errors
    lines = (tmp_path / "o" / "x.cdxj").read_text().splitlines()
    rows = [orjson.loads(line.partition("{")[1] + line.partition("{")[2]) for line in lines]
    values = [(line["mime"], line.get("status"), line["digest"]) for line in rows]
    assert values[0] == ("text/html", "203", one.digest)
    assert values[1][0] == "warc/revisit"
