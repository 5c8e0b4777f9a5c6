"""CDXJ lines in the dialects of those who write them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupindex.capture import Capture, Evidence, Problem, Refusal, Revisit
from tests.support.text_sources import BASE32, HEX, items, one, records

ROW = {
    "url": "http://a.com/",
    "mime": "text/html",
    "status": "200",
    "digest": BASE32,
    "length": "10",
    "offset": "20",
    "filename": "x.warc.gz",
}


def line(digits: str = "20261120091417", key: str = "com,a)/", **changed: Any) -> str:
    row = {**ROW, **changed}
    return f"{key} {digits} " + json.dumps({k: v for k, v in row.items() if v is not None})


@pytest.mark.parametrize(
    "changed",
    [
        {},  # pywb
        {"status": 200, "length": 10, "offset": 20},  # OutbackCDX
        {"digest": f"sha1:{BASE32}"},  # cdxj-indexer
        {"digest": f"sha1:{HEX}"},  # of warcprox's records
        {"digest": HEX},
        {"method": "get", "mime-detected": "text/x", "metadata": {}, "recordDigest": "sha256:0"},
        {"orig.length": "1", "orig.offset": "2", "orig.filename": "o.warc.gz"},
    ],
)
def test_dialects_yield_the_same_items(changed: dict[str, Any]) -> None:
    plain, other = one("cdxj", line()), one("cdxj", line(**changed))
    assert isinstance(plain, Capture)
    assert isinstance(other, Capture)
    assert other._replace(spelling=plain.spelling) == plain
    assert plain.size_of_record
    assert (plain.size, plain.offset, plain.container) == (10, 20, "x.warc.gz")
    assert plain.evidence == Evidence.ROW


def test_a_truncated_payload() -> None:
    for why in ("length", "time", "disconnect"):  # as in Common Crawl
        assert one("cdxj", line(truncated=why)) == Refusal("truncated")
    for why in ("", "-"):
        assert isinstance(one("cdxj", line(truncated=why)), Capture)


def test_a_place_needs_the_name_of_a_file() -> None:
    found = one("cdxj", line(filename=None))
    assert isinstance(found, Capture)
    assert (found.container, found.offset) == ("source", -1)


def test_missing_values() -> None:
    bare = {key: None for key in ROW if key not in ("url", "digest")}
    for changed in (bare, dict.fromkeys(bare, "-") | {"filename": None}):
        capture = one("cdxj", line(**changed))
        assert isinstance(capture, Capture)
        assert (capture.mime, capture.status, capture.size, capture.offset) == (b"", 0, -1, -1)
        assert not capture.size_of_record
        assert capture.container == "source"


def test_milliseconds_are_kept() -> None:
    capture = one("cdxj", line(digits="20261120091417123"))
    assert isinstance(capture, Capture)
    assert capture.date == b"2026-11-20T09:14:17.123Z"


def test_escapes_and_raw_characters_are_one_url() -> None:
    escaped = one("cdxj", line(url="http://a.com/\u00e9"))
    raw = one("cdxj", line().replace("http://a.com/", "http://a.com/é"))
    assert escaped == raw
    assert isinstance(raw, Capture)
    assert raw.url == "http://a.com/é".encode()


@pytest.mark.parametrize("status", [None, "404", "-"])
def test_revisits(status: str | None) -> None:
    revisit = one("cdxj", line(mime="warc/revisit", status=status))
    assert isinstance(revisit, Revisit)
    assert revisit.refers_to is None
    assert revisit.capture.evidence == Evidence.REVISIT
    assert revisit.capture.mime == b""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (line(method="POST"), "method"),
        (line(method="HEAD"), "method"),
        (line(key="com,a)/?__wb_method=post&a=1"), "method"),
        (line(digest=None), "bad-digest"),
        (line(digest="sha1:"), "bad-digest"),
        (line(digest="sha1:é"), "bad-digest"),
        (line(digits="2026"), "bad-date"),
        (line(url="urn:pageinfo:http://a.com/"), "not-http"),
        ("@alias http://a.com/ http://b.com/", "alias"),
    ],
)
def test_refusals(text: str, reason: str) -> None:
    assert one("cdxj", text) == Refusal(reason)


@pytest.mark.parametrize(
    "text",
    [
        *("x", "a b", "a 20261120091417 {", "a 20261120091417 []", "a 20261120091417 {}"),
        *(line(url=1.5), line(offset=[1]), line(length="ten"), line(status=True), line() + "}"),
        *(line(status="OK"), line(offset=10**20), line(url=""), line().replace("http", "\udc80")),
    ],
)
def test_bad_lines(text: str) -> None:
    data = text.encode("utf-8", "surrogateescape") + b"\n"
    problem, refusal = items("cdxj", data)
    assert isinstance(problem, Problem)
    assert (problem.offset, refusal) == (1, Refusal("bad-line"))


def test_metadata_lines_are_not_rows() -> None:
    data = f'!meta {{"a": 1}}\n{line()}\n!OpenWayback-CDXJ 1.0\n\n'.encode()
    assert len(items("cdxj", data)) == 1


@given(st.binary(max_size=200), st.integers(1, 50))
def test_any_bytes_are_one_refusal_for_every_line(data: bytes, block: int) -> None:
    data = b"x" + data.replace(b"!", b"").replace(b"\r", b"")
    lines = [part for part in data.split(b"\n") if part.strip()]
    found = records(items("cdxj", data, block=block))
    assert found == [Refusal("bad-line")] * len(lines)
