"""Records and their headers: edge cases 22 to 35 of the WARC reference, by number."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dedupindex.warc import gzip_members
from dedupindex.warc.headers import BadHead, Form, form_of, parse
from tests.support.warc_cases import (
    DATE,
    END,
    URL,
    ask,
    gz,
    record,
    record_id,
    request,
    response,
    revisit,
)

A = response(b"first payload", number=1)
C = response(b"third payload", number=3)
Pack = Callable[[bytes], bytes]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.warc.gz"


@pytest.fixture(params=[gz, bytes], ids=["gzip", "plain"])
def pack(request: pytest.FixtureRequest) -> Pack:
    return request.param  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "length", [b"1", b"-1", b"", b"9x", b"99", b"+90", b"1_0", b"9" * 30, None]
)
def test_case_22_wrong_content_length(path: Path, pack: Pack, length: bytes | None) -> None:
    bad = response(b"second", Content_Length=length)
    answer = ask(path, pack(A) + pack(bad) + pack(C))
    assert answer.words == ["capture", "problem", "damaged", "capture"]
    assert answer.problems[0][0] == len(pack(A))


def test_case_22_content_length_twice(path: Path, pack: Pack) -> None:
    bad = response(b"second", (b"Content-Length", b"65"))
    answer = ask(path, pack(A) + pack(bad) + pack(C))
    assert answer.words == ["capture", "problem", "damaged", "capture"]


def test_case_22_content_length_beyond_the_end(path: Path, pack: Pack) -> None:
    bad = response(b"second", Content_Length=b"5000000")
    answer = ask(path, pack(A) + pack(bad) + pack(C))
    assert answer.words == ["capture", "problem", "damaged", "capture"]


def test_case_22_length_that_ends_at_a_blank_line_of_the_payload(path: Path, pack: Pack) -> None:
    """The frame looks right there, but what follows is not a record."""
    bad = response(b"one", Payload_Digest=None) + b"two" + END
    answer = ask(path, pack(A) + pack(bad) + pack(C))
    assert answer.words == ["capture", "problem", "damaged", "capture"]


def test_case_22_warc_in_a_damaged_payload_is_not_read_as_records(path: Path) -> None:
    inner = b"x\r\n\r\n" + response(b"not of this file", number=8) * 3
    for bad in (response(inner + b"y", Content_Length=b"77"), response(inner, Content_Length=b"x")):
        answer = ask(path, A + bad + C)
        assert answer.words == ["capture", "problem", "damaged", "capture"]
        assert answer.captures[1].record_id == record_id(3)[1:-1]
    answer = ask(path, A + response(inner)[:-5])
    assert answer.words == ["capture", "problem", "damaged"]
    for end in (b"", b"\r", b"\r\n", b"\r\n\r"):  # the last record, but for its line ends
        answer = ask(path, A + response(inner, end=end, number=2))
        assert answer.words == ["capture", "capture"]
        assert answer.captures[1].record_id == record_id(2)[1:-1]


def test_case_22_in_a_large_record(path: Path, pack: Pack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gzip_members, "SHORT", 1000)
    body = os.urandom(3_000_000)
    for wrong in (2_999_000, 3_000_500):
        bad = response(body, Content_Length=b"%d" % wrong)
        answer = ask(path, pack(A) + pack(bad) + pack(C))
        assert answer.words == ["capture", "problem", "damaged", "capture"]


@pytest.mark.parametrize("end", [b"", b"\r\n", b"\n", b"\r\n\r", b"\r", b"\n\n", b"\r\n\n"])
def test_case_23_line_ends_missing(path: Path, pack: Pack, end: bytes) -> None:
    """The block is whole, by its Content-Length and by what follows: it is read, with a remark."""
    answer = ask(path, pack(A) + pack(response(b"second", end=end)) + pack(C))
    assert answer.words == ["capture"] * 3 and answer.problems == []
    remark = "missing-line-ends" if end.count(b"\n") < 2 else "bare-line-feeds"
    assert answer.source.remarks == {remark: 1}


@pytest.mark.parametrize("behind", [b"x", b"WARC", b"WARC/1.0", b"\0", b"\x1f\x8b\x08"])
def test_case_23_line_ends_missing_before_anything_but_a_record(path: Path, behind: bytes) -> None:
    answer = ask(path, A + response(b"second", end=b"\r\n") + behind)
    assert answer.words[:3] == ["capture", "problem", "damaged"]


@pytest.mark.parametrize("extra", [b"\r\n", b"\n", b"\r\n" * 50, b"\n" * 70_000])
def test_case_23_line_ends_too_many(path: Path, pack: Pack, extra: bytes) -> None:
    answer = ask(path, pack(A + extra) + pack(b"" + A + extra) + pack(C))
    assert answer.words == ["capture"] * 3
    assert answer.filler == (2 * len(extra) if pack is bytes else 0)
    assert answer.source.remarks == {"extra-line-ends": 2}


@pytest.mark.parametrize(
    "name",
    [b"WARC-Payload-Digest", b"WARC-Target-URI", b"WARC-Record-ID", b"WARC-Date", b"WARC-Type"],
)
@pytest.mark.parametrize("spell", [bytes, bytes.lower], ids=["same", "lower"])
def test_case_24_repeated_field(path: Path, name: bytes, spell: Pack, pack: Pack) -> None:
    bad = response(b"second", (spell(name), b"another"))
    answer = ask(path, pack(A) + pack(bad) * 9 + pack(C))
    assert answer.words == ["capture"] + ["repeated-field"] * 9 + ["capture"]


def test_case_24_concurrent_to_may_be_repeated(path: Path, pack: Pack) -> None:
    several = [(b"WARC-Concurrent-To", record_id(n)) for n in (7, 8, 9)]
    assert ask(path, pack(response(b"x", *several)) * 9).words == ["capture"] * 9


@pytest.mark.parametrize(
    "fold",
    [
        lambda data: data.replace(b"WARC-Date: ", b"WARC-Date:"),
        lambda data: data.replace(b"WARC-Date: ", b"warc-DATE:  \t"),
        lambda data: data.replace(b"WARC-Date: ", b"WARC-Date:\r\n "),
        lambda data: data.replace(b"WARC-Date: " + DATE, b"WARC-Date: " + DATE + b"  "),
        lambda data: data.replace(URL + b"\r\n", URL + b" \t\r\n"),
        lambda data: data.replace(b"\r\nWARC-Date", b"\r\nno field at all\r\nWARC-Date"),
        lambda data: data.replace(b"\r\nWARC-Date", b"\r\nX-Folded: a\r\n\tb\r\nWARC-Date"),
    ],
)
def test_case_25_odd_spelling_of_fields(path: Path, fold: Pack, pack: Pack) -> None:
    answer = ask(path, b"".join(pack(fold(response(b"x", number=n))) for n in range(9)))
    assert answer.words == ["capture"] * 9
    assert {(capture.url, capture.date) for capture in answer.captures} == {(URL, DATE)}


def test_case_26_no_record_id_or_date(path: Path, pack: Pack) -> None:
    data = pack(response(Record_ID=None)) + pack(response(Date=None)) + pack(A)
    assert ask(path, data).words == ["no-record-id", "bad-date", "capture"]


def test_case_27_duplicate_record_id(path: Path, pack: Pack) -> None:
    """The reader returns both, with different offsets."""
    answer = ask(path, pack(A) + pack(A))
    assert answer.words == ["capture", "capture"]
    assert len({capture.offset for capture in answer.captures}) == 2


def test_case_28_unknown_type_and_header(path: Path, pack: Pack) -> None:
    odd = record(b"unheard-of", b"x") + b""
    data = pack(odd) + pack(response(b"x", (b"X-Unknown", b"y"))) + pack(record(b"x", Type=None))
    assert ask(path, data).words == ["unknown-record-type", "capture", "unknown-record-type"]


def test_case_29_segments(path: Path, pack: Pack) -> None:
    first = response(b"x", (b"WARC-Segment-Number", b"1"))
    rest = record(b"continuation", b"y", (b"WARC-Segment-Number", b"2"))
    assert ask(path, pack(first) + pack(rest) + pack(A)).words == [
        "segmented",
        "segmented",
        "capture",
    ]


@pytest.mark.parametrize("kind", [b"resource", b"conversion", b"metadata", b"warcinfo", b"request"])
def test_cases_30_31_33_other_records(path: Path, pack: Pack, kind: bytes) -> None:
    block = b"GET / HTTP/1.1\r\n\r\n" if kind == b"request" else b"x"
    other = record(kind, block, Payload_Digest=b"sha1:whatever", Filename=b"other.warc.gz")
    assert ask(path, pack(other) + pack(A)).words == [f"{kind.decode()}-record", "capture"]


@pytest.mark.parametrize(
    "url",
    [
        b"dns:example.com",
        b"ftp://example.com/x",
        b"whois://example.com",
        b"gemini://example.com/",
        b"urn:uuid:1",
        b"screenshot:http://example.com/",
        b"metadata://gnu.org/x",
        b"httpx://example.com/",
    ],
)
def test_case_32_other_schemes(path: Path, pack: Pack, url: bytes) -> None:
    assert ask(path, pack(response(Target_URI=url)) + pack(A)).words == ["not-http", "capture"]


def test_case_32_other_content_type(path: Path, pack: Pack) -> None:
    dns = response(Target_URI=b"dns:example.com", Content_Type=b"text/dns")
    odd = response(Content_Type=b"application/httpd")
    none = response(Content_Type=None)
    spaced = response(Content_Type=b"Application/HTTP ; msgtype=response")
    data = pack(dns) + pack(odd) + pack(none) + pack(spaced)
    assert ask(path, data).words == ["not-http", "not-http", "not-http", "capture"]


@pytest.mark.parametrize(
    "junk", [b"\0", b"\xff\xfe\x80", b"\0" * 1000, "Ünïcode".encode("latin-1")]
)
def test_case_34_binary_header_values(path: Path, pack: Pack, junk: bytes) -> None:
    url = b"http://example.com/" + junk
    answer = ask(path, pack(response(b"x", (b"X-" + junk, junk), Target_URI=url)) + pack(A))
    assert answer.words == ["capture", "capture"]
    assert answer.captures[0].url == url


def test_case_34_long_header(path: Path, pack: Pack) -> None:
    nearly = response(b"x", (b"X-Long", b"x" * ((1 << 20) - 500)))
    longer = response(b"x", (b"X-Long", b"x" * (1 << 20)))
    answer = ask(path, pack(nearly) + pack(longer) + pack(A))
    assert answer.words == ["capture", "problem", "damaged", "capture"]
    assert "mebibyte" in answer.problem


def test_case_34_header_without_an_end(path: Path) -> None:
    answer = ask(path, gz(A) + gz(b"WARC/1.0\r\nX: " + b"x" * (30 << 20), 1) + gz(C))
    assert answer.words == ["capture", "problem", "damaged", "capture"]


def test_case_35_revisit_is_a_revisit(path: Path, pack: Pack) -> None:
    assert ask(path, pack(A) + pack(revisit()) + pack(C)).words == ["capture", "revisit", "capture"]


# Headers by themselves


def test_a_form_and_the_parser_agree() -> None:
    for text in (A, C, request(), revisit(), record(b"metadata", b"x", (b"X-Odd", b" "))):
        head_text = text[: text.index(END) + 4]
        head = parse(head_text[:-4])
        form = Form(head)
        match = form.match(text)
        assert match is not None
        assert match.end() == len(head_text)
        assert match.group(*form.groups) == head.values
        assert (form.type, form.special) == (head.type, head.special)


def test_headers_that_repeat_a_field_get_no_form() -> None:
    text = response(b"x", (b"x-any", b"1"), (b"X-Any", b"2"))
    text = text[: text.index(END) + 4]
    assert all(form_of(parse(text[:-4]), text) is None for _ in range(9))


def test_a_form_does_not_match_similar_headers() -> None:
    form = Form(parse(A[: A.index(END)]))
    assert form.match(A.replace(b"\r\nWARC-Date", b"\r\n folded\r\nWARC-Date")) is None
    assert form.match(A.replace(DATE, DATE + b" ")) is None
    assert form.match(A.replace(b"WARC/1.0", b"WARC/1.1")) is None
    assert form.match(A.replace(b"response", b"resource", 1)) is None
    assert form.match(A.replace(b"\r\n", b"\n")) is None


@pytest.mark.parametrize(
    "text", [b"", b"HTTP/1.1 200 OK", b"WARC/1", b"WARC/1.0", b"WARC/1.0x\r\n"]
)
def test_no_header(text: bytes) -> None:
    with pytest.raises(BadHead):
        parse(text)
