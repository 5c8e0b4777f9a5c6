"""ARC files of both versions, and the pitfalls that section 4 of the WARC reference lists."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dedupindex.capture import Covers
from dedupindex.warc import gzip_members
from tests.support.warc_cases import HTTP, Answer, ask, gz

V1 = b"URL IP-address Archive-date Content-type Archive-length"
V2 = (
    b"URL IP-address Archive-date Content-type Result-code Checksum Location Offset Filename "
    b"Archive-length"
)
Pack = Callable[[bytes], bytes]


@pytest.fixture(params=[gz, bytes], ids=["gzip", "plain"])
def pack(request: pytest.FixtureRequest) -> Pack:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.arc"


def header(fields: bytes = V1, extra: bytes = b"", *, wrong: int = 0, end: bytes = b"\n") -> bytes:
    rest = b"1 0 Test\n" + fields + b"\n" + extra
    length = len(rest) + wrong
    return b"filedesc://t.arc 0.0.0.0 20260101000000 text/plain %d\n" % length + rest + end


def document(
    body: bytes = b"payload",
    *,
    url: bytes = b"http://example.com/",
    ip: bytes = b"1.2.3.4",
    date: bytes = b"20261120091417",
    mime: bytes = b"text/html",
    more: bytes = b"",
    head: bytes = HTTP,
    wrong: int = 0,
    end: bytes = b"\n",
) -> bytes:
    block = head + body
    line = b" ".join([url, ip, date, mime]) + more + b" %d\n" % (len(block) + wrong)
    return line + block + end


def test_version_1(path: Path, pack: Pack) -> None:
    answer = ask(path, pack(header()) + pack(document()) + pack(document(b"more")))
    assert answer.words == ["warcinfo-record", "capture", "capture"]
    first, second = answer.captures
    assert (first.url, first.date) == (b"http://example.com/", b"2026-11-20T09:14:17Z")
    assert (first.status, first.mime, first.size) == (200, b"text/html", 7)
    assert first.digest.raw == hashlib.sha1(b"payload").digest()
    assert (first.covers, first.record_id) == (Covers.BOTH, b"")
    assert first.offset == len(pack(header()))
    assert second.offset == len(pack(header()) + pack(document()))


def test_version_2(path: Path, pack: Pack) -> None:
    more = b" 200 abc - 1234 t.arc"
    answer = ask(path, pack(header(V2)) + pack(document(more=more, mime=b"text/html; x=y")))
    assert answer.capture.url == b"http://example.com/"
    assert answer.capture.date == b"2026-11-20T09:14:17Z"


def test_version_block_with_unknown_fields(path: Path, pack: Pack) -> None:
    answer = ask(path, pack(header(b"URL Archive-length")) + pack(document()))
    assert answer.words == ["warcinfo-record", "problem", "damaged"]
    assert "fields" in answer.problem


def test_b_content_type_with_spaces(path: Path, pack: Pack) -> None:
    answer = ask(path, pack(header()) + pack(document(mime=b"text/html; charset=x")))
    assert answer.words == ["warcinfo-record", "capture"]


@pytest.mark.parametrize(
    "url", [b"http://example.com/a b", b"http://example.com/ 1.2.3.4", b"http://x/\xff"]
)
def test_c_url_with_spaces(path: Path, pack: Pack, url: bytes) -> None:
    assert ask(path, pack(header()) + pack(document(url=url))).capture.url == url


def test_line_with_two_anchors_is_ambiguous(path: Path, pack: Pack) -> None:
    url = b"http://example.com/ 5.6.7.8 20200101000000 text/html"
    answer = ask(path, pack(header()) + pack(document(url=url)) + pack(document()))
    assert answer.words == ["warcinfo-record", "ambiguous-line", "capture"]


def test_d_no_http_header(path: Path, pack: Pack) -> None:
    answer = ask(path, pack(header()) + pack(document(head=b"")) + pack(document()))
    assert answer.words == ["warcinfo-record", "not-http", "capture"]


def test_e_dns(path: Path, pack: Pack) -> None:
    dns = document(b"1.2.3.4\n", url=b"dns:example.com", mime=b"text/dns", head=b"")
    assert ask(path, pack(header()) + pack(dns)).words == ["warcinfo-record", "not-http"]


@pytest.mark.parametrize(
    "date", [b"20261120", b"20001332000000", b"20260230000000", b"20140401000000000000", b"0000"]
)
def test_f_dates(path: Path, pack: Pack, date: bytes) -> None:
    answer = ask(path, pack(header()) + pack(document(date=date)) + pack(document()))
    assert answer.words == ["warcinfo-record", "bad-date", "capture"]


def test_f_17_digits_are_cut(path: Path, pack: Pack) -> None:
    answer = ask(path, pack(header()) + pack(document(date=b"20261120091417123")))
    assert answer.capture.date == b"2026-11-20T09:14:17Z"


@pytest.mark.parametrize("wrong", [-1, -5, 2, 3, 5, 100_000])
@pytest.mark.parametrize("body", [b"payload", b"payload\n."])
def test_g_length_off(path: Path, pack: Pack, wrong: int, body: bytes) -> None:
    answer = ask(path, pack(header()) + pack(document(body, wrong=wrong)) + pack(document()))
    assert answer.words == ["warcinfo-record", "problem", "damaged", "capture"]


@pytest.mark.parametrize(("body", "wrong"), [(b"payload", 1), (b"payload\n", -1)])
def test_length_off_by_the_line_end_is_accepted(
    path: Path, pack: Pack, body: bytes, wrong: int
) -> None:
    """As in every reader: it is ambiguous to which record the line end belongs."""
    answer = ask(path, pack(header()) + pack(document(body, wrong=wrong)) + pack(document()))
    assert answer.words == ["warcinfo-record", "capture", "capture"]
    assert answer.source.remarks.total() == 1
    assert answer.captures[0].size == len(b"payload") + (wrong > 0)


@pytest.mark.parametrize("wrong", [-1000, -2, -1, 0])
@pytest.mark.parametrize("end", [b"", b"\n", b"\n\n"])
def test_h_version_block(path: Path, pack: Pack, wrong: int, end: bytes) -> None:
    answer = ask(path, pack(header(wrong=wrong, end=end)) + pack(document()))
    assert answer.words == ["warcinfo-record", "capture"]


def test_version_block_with_a_length_of_thousands_of_digits(path: Path, pack: Pack) -> None:
    long = header().replace(b"text/plain ", b"text/plain " + b"9" * 5000)
    assert ask(path, pack(long) + pack(document())).words == ["problem", "damaged", "capture"]


def test_version_block_with_metadata(path: Path, pack: Pack) -> None:
    data = header(extra=b"<?xml version='1.0'?>\n<arcmetadata/>\n")
    assert ask(path, pack(data) + pack(document())).words == ["warcinfo-record", "capture"]


def test_i_no_version_block(path: Path, pack: Pack) -> None:
    assert ask(path, pack(document()) + pack(document())).words == ["capture", "capture"]


def test_documents_separated_by_a_line_end_before_them(path: Path, pack: Pack) -> None:
    data = b"\n" + document(end=b"")
    assert ask(path, pack(header(end=b"")) + pack(data) * 3).captures
    assert ask(path, pack(header(end=b"")) + pack(data) * 3).words == [
        "warcinfo-record",
        *["capture"] * 3,
    ]


def test_damaged_document_among_others(path: Path) -> None:
    bad = document(wrong=-3)
    answer = ask(path, header() + document() + bad + document() + document())
    assert answer.words == ["warcinfo-record", "capture", "problem", "damaged", *["capture"] * 2]
    assert answer.problems[0][0] == len(header() + document())


def test_cut(path: Path) -> None:
    assert ask(path, header() + document() + document()[:-9]).words == [
        "warcinfo-record",
        "capture",
        "problem",
        "damaged",
    ]


def test_streamed(path: Path, pack: Pack, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("gzip_members", "framing"):
        monkeypatch.setattr(f"dedupindex.warc.{module}.SHORT", 50)
    assert gzip_members.SHORT == 50
    body = os.urandom(300_000) + b"."

    def read(*documents: bytes) -> Answer:
        return ask(path, b"".join(map(pack, (header(), *documents))))

    answer = read(document(body), document())
    assert answer.words == ["warcinfo-record", "capture", "capture"]
    assert answer.captures[0].digest.raw == hashlib.sha1(body).digest()
    assert read(document(body, wrong=-1), document()).words[1:] == ["problem", "damaged", "capture"]
    assert read(document(body, wrong=2), document()).words[1:] == ["problem", "damaged", "capture"]


@pytest.mark.parametrize("line", [b"", b"\n", b"filedesc:", b"filedesc://x\n", b"http://x 1.2.3.4"])
def test_files_that_are_not_arc(path: Path, pack: Pack, line: bytes) -> None:
    assert set(ask(path, pack(line)).words) <= {"problem", "damaged"}
