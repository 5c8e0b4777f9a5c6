"""Searching: what each field finds, what is refused, and the command."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupindex.capture import Capture, Evidence
from dedupindex.cli import main
from dedupindex.digest import Digest
from dedupindex.errors import BadQuery, IndexUnavailable, StrategyUnavailable
from dedupindex.index.engines.whoosh import whoosh_files
from dedupindex.index.engines.whoosh.whoosh_files import hosts, words
from dedupindex.index.engines.whoosh.whoosh_search import FIELDS, parse, search
from dedupindex.index.identity import Settings
from tests.support.budgets import examples
from tests.support.captures import capture, sha1
from tests.support.engine_bench import Bench
from tests.support.paths import ROOT

FKX = Digest.parse("sha1:FKXGYNOJJ7H3IFO35FPUBC445EPOQRXN")
OTHER = Digest("sha256", b"\x2a" * 32)


def item(number: int, url: str, date: str, **fields: object) -> Capture:
    values = {"date": date.encode() + b"T10:00:00Z", **fields}
    return capture(number, url.encode("utf-8", "surrogateescape"), **values)  # type: ignore[arg-type]


CAPTURES = {
    "report": item(1, "https://www.example.org/Annual_Report-2026.pdf", "2026-10-31"),
    "image": item(2, "http://img.example.org:8080/a/logo.png?v=2", "2026-11-20", size=50_000),
    "page": item(
        3,
        "http://example.co.uk/docs/annual/",
        "2025-02-28",
        mime=b"text/html",
        container="/warcs/CRAWL-2025-00001.warc.gz",
    ),
    "japanese": item(4, "http://ja.example.com/wiki/%E6%97%A5%E6%9C%AC?a=(b)", "2026-11-01"),
    "error": item(5, "http://192.0.2.7/none", "2024-01-01", status=404, size=-1),
    "odd": item(6, "http://example.org/\udcff\x1b[31m", "2026-12-31", mime=b""),
}
CAPTURES["report"] = CAPTURES["report"]._replace(digest=FKX, mime=b"application/pdf")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    bench = Bench(tmp_path_factory.mktemp("search"), "whoosh", Settings(also_digest="sha256"))
    items = list(CAPTURES.values())
    bench.load([items[0]._replace(also=(OTHER,)), *items[1:3]])
    mark = capture(9, b"http://example.org/mark", evidence=Evidence.REVISIT)
    bench.load([*items[3:], mark])
    return bench


def names(bench: Bench, query: str) -> str:
    found = search(bench.index, query, 0)
    assert found.total == len(found.captures)
    assert found.captures == sorted(found.captures, key=lambda capture: capture.date)
    by_url = {capture.url: name for name, capture in CAPTURES.items()}
    return " ".join(sorted(by_url[capture.url] for capture in found.captures))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("annual", "page report"),
        ("ANNUAL report", "report"),
        ("Annual_Report", "report"),
        ("annual pdf", "report"),
        ("annu*", "page report"),
        ("*nual", "page report"),
        ("https", ""),
        ("日本", "japanese"),
        ('"wiki 日本"', "japanese"),
        ("annual NOT docs", "report"),
        ("logo OR docs", "image page"),
        ("(logo OR docs) host:uk", "page"),
        ("host:example.org", "image odd report"),
        ("host:EXAMPLE.org.", "image odd report"),
        ("host:*.example.org", "image odd report"),
        ("host:img.example.org", "image"),
        ("host:org", "image odd report"),
        ("host:co.uk", "page"),
        ("host:ample.org", ""),
        ("host:192.0.2.7", "error"),
        ("host:7", ""),
        ("host:(img.example.org OR co.uk)", "image page"),
        ("mime:image/png", "error image japanese"),
        ("mime:image/*", "error image japanese"),
        ("mime:*/html", "page"),
        ("NOT mime:image/*", "odd page report"),
        ("mime:*", "error image japanese page report"),
        ("status:404", "error"),
        ("status:4??", "error"),
        ("status:4*", "error"),
        ("status:[300 TO 499]", "error"),
        ("date:2026", "image japanese odd report"),
        ("date:2026-11", "image japanese"),
        ("date:20261120", "image"),
        ("date:[2026-10-31 TO 2026-11-01]", "japanese report"),
        ("date:[2026-10 TO 2026-11]", "image japanese report"),
        ("date:{2026-10 TO 2026-12}", "image japanese"),
        ("date:[TO 2024]", "error"),
        ("date:[2026-12 TO]", "odd"),
        ("size:50000", "image"),
        ("size:[10000 TO]", "image"),
        ("size:[TO 1002]", "report"),
        ("digest:sha1:FKXGYNOJJ7H3IFO35FPUBC445EPOQRXN", "report"),
        ("digest:fkxgynojj7h3ifo35fpubc445epoqrxn", "report"),
        ("digest:SHA-1:2aae6c35c94fcfb415dbe95f408b9ce91ee846ed", "report"),
        ("digest:2AAE6C35*", "report"),
        ("digest:2aae6*", "report"),
        ("digest:FKXGYNO*", "report"),
        ("digest:md5:2aae6*", ""),
        (f"digest:{OTHER.raw.hex()}", "report"),
        (f"digest:sha1:{OTHER.raw[:20].hex()}", ""),
        ("http://www.example.org/annual_report-2026.pdf", "report"),
        ("url:www.example.org/annual_report-2026.pdf", "report"),
        ("http://example.co.uk/docs/*", "page"),
        ("http://example.co.uk/doc*", "page"),
        ("http://example.co.uk/docs/a/*", ""),
        ("url:img.example.org:8080/a/logo.png?v=2", "image"),
        ('url:"http://ja.example.com/wiki/%E6%97%A5%E6%9C%AC?a=(b)"', "japanese"),
        ("container:crawl-2025-00001.warc.gz", "page"),
        ("container:CRAWL-2025*", "page"),
        ("container:/warcs/crawl-2025-00001.warc.gz", "page"),
        ("*:*", "error image japanese odd page report"),
    ],
)
def test_what_queries_find(bench: Bench, query: str, expected: str) -> None:
    assert names(bench, query) == expected


@pytest.mark.parametrize(
    ("query", "what"),
    [
        ("", "nothing to search for"),
        ("   ", "nothing to search for"),
        ("x" * 5000, "at most 4096 characters"),
        ("foo:bar", "no field 'foo'; there are"),
        ('"open', "quotation mark is not closed"),
        ("(a OR b", "brackets do not match"),
        ("a) OR (b", "brackets do not match"),
        ("a AND", "nothing after AND"),
        ("OR a", "nothing before OR"),
        ("!!!", "no word in"),
        ("()", "asks for nothing"),
        ("date:yesterday", "date takes 2026"),
        ("date:2026-13", "month must be in 1..12"),
        ("date:2026-02-30", "day"),
        ("date:[2026-12 TO 2026-11]", "2026-12 comes after 2026-11"),
        ("date:[2026", "date takes"),
        ("size:big", "size takes bytes"),
        ("size:1*", "takes no"),
        ("status:ok", "status takes a number"),
        ("mime:[a TO b]", "mime has no ranges"),
        ("digest:hello!", "is not a digest"),
        ("digest:FKXG", "ends with"),
        ("digest:sha3:FK*", "no digest algorithm 'sha3'"),
        ("digest:!*", "begins no digest"),
        ("digest:a*b", "at its end only"),
        ("url:http://a.org/*/b", "at its end only"),
    ],
)
def test_queries_that_cannot_match_are_refused(query: str, what: str) -> None:
    with pytest.raises(BadQuery, match=re.escape(what)):
        parse(query)


pieces = st.sampled_from(
    [*FIELDS, ":", "*", "?", "(", ")", "[", "]", "{", " TO ", '"', "'", " ", "AND", " OR ", " NOT "]
    + ["a", "2026", "http://", "/", "^2", "~", "-", "\\", "é", "\udcff", "\0", "sha1:", "digest:2a"]
)


@settings(max_examples=examples(300))
@given(st.lists(pieces, max_size=10).map("".join) | st.text(max_size=30))
def test_any_text_is_answered_or_refused(bench: Bench, query: str) -> None:
    try:
        found = search(bench.index, query)
    except BadQuery as error:
        assert str(error)
    else:
        assert found.total == len(found.captures) <= len(CAPTURES) + 1


def test_nested_brackets_have_a_limit() -> None:
    with pytest.raises(BadQuery, match="too many brackets"):
        parse("(" * 2000 + "a OR b" + ")" * 2000)


def test_a_limit_shows_the_earliest(bench: Bench) -> None:
    found = search(bench.index, "*:*", 2)
    assert found.total == 6
    assert found.captures == [CAPTURES["error"], CAPTURES["page"]]


def test_an_index_on_another_engine_is_not_searched(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "lmdb")
    bench.load([capture()])
    with pytest.raises(StrategyUnavailable, match="engine lmdb.*--engine whoosh"):
        search(bench.index, "a")
    with pytest.raises(IndexUnavailable, match="there is no index"):
        search(tmp_path / "none", "a")


def test_hosts_and_words() -> None:
    assert hosts(b"http://u:p@WWW.Example.org:80/x") == [b"www.example.org", b"example.org", b"org"]
    assert hosts(b"http://[2001:db8::1]/") == [b"[2001:db8::1]"]
    assert hosts(b"urn:x") == hosts(b"http:///") == []
    assert words(b"http://a.org/B%20c?d=E_1") == {b"a", b"org", b"b", b"c", b"d", b"e", b"1"}
    assert words(b"urn:x:y") == {b"urn", b"x", b"y"}


def test_the_command(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", str(bench.index), "host:example.org", "--limit", "2"]) == 0
    output = capsys.readouterr()
    first, second = output.out.splitlines()
    assert first.split() == [
        "2026-10-31T10:00:00Z",
        "200",
        "application/pdf",
        "1.0",
        "kB",
        "sha1:FKXGYNOJJ7H3IFO35FPUBC445EPOQRXN",
        "https://www.example.org/Annual_Report-2026.pdf",
        "/warcs/1.warc.gz",
    ]
    assert "logo.png" in second
    assert "3 captures match, the earliest 2 are shown" in output.err


def test_the_command_shows_no_control_characters(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["search", str(bench.index), "date:2026-12"]) == 0
    assert r"http://example.org/\xff\x1b[31m" in capsys.readouterr().out


def test_the_command_in_json(bench: Bench, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["search", "--json", str(bench.index), "status:404"]) == 0
    (line,) = capfdbinary.readouterr().out.splitlines()
    answer = json.loads(line)
    assert (answer["url"], answer["status"], answer["size"]) == ("http://192.0.2.7/none", 404, None)


@pytest.mark.parametrize(("query", "status"), [("date:never", 4), ("foo:bar", 4)])
def test_the_command_refuses_in_one_line(
    query: str, status: int, bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["search", str(bench.index), query]) == status
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_every_field_and_example_of_the_documentation_is_understood() -> None:
    page = (ROOT / "docs" / "search.md").read_text()
    for name in FIELDS:
        assert f"`{name}:" in page, name
    examples = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert len(examples) > 15
    for example in examples:
        parse(example.replace(r"\|", "|"))


def test_a_digest_of_two_captures_finds_both(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "whoosh")
    bench.load([capture(1, b"http://a.org/"), capture(1, b"http://b.org/", 2), capture(2)])
    assert search(bench.index, f"digest:{sha1(1)}").total == 2
    assert search(bench.index, f"digest:{sha1(1).raw.hex()[:9]}*").total == 2


def test_a_load_of_several_segments_is_one_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whoosh_files, "SEGMENT", 10)
    bench = Bench(tmp_path, "whoosh")
    captures = [capture(number, b"http://a.org/%d" % number, 2) for number in range(35)]
    bench.load(captures[:33])
    bench.load([*captures, *(item._replace(date=b"2026-01-01T00:00:00Z") for item in captures)])
    assert bench.counts()[:2] == (35, 35)
    assert search(bench.index, "date:2026-01").total == 35
    with bench.open(write=True) as engine:
        assert engine.check() == []
        assert len(list((bench.index / "whoosh").glob("*.seg"))) > 3
        engine.compact()
        assert engine.check() == []
        assert len(list((bench.index / "whoosh").glob("*.seg"))) == 1
    assert bench.counts()[:2] == (35, 35)
