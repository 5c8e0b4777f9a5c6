"""Records to captures: edge cases 36 to 81 of the WARC reference, by number."""

from __future__ import annotations

import hashlib
import os
from base64 import b32encode, b64encode
from collections.abc import Callable
from pathlib import Path

import pytest

from dedupindex.capture import SKIPPED, Covers, Evidence, RefersTo
from dedupindex.digest import CANONICAL, Digest
from dedupindex.sources.warc_records import _REFUSALS, _UNKNOWN
from dedupindex.warc import gzip_members
from tests.support.warc_cases import (
    CHUNKED_HTTP,
    DATE,
    HTTP,
    NOT_MODIFIED,
    URL,
    Answer,
    ask,
    chunked,
    gz,
    record,
    record_id,
    request,
    response,
    revisit,
    sha1,
)

Ask = Callable[..., Answer]


@pytest.fixture(params=["short", "long"])
def read(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Read some records from a gzip file, held whole or streamed as if they were large."""
    if request.param == "long":
        monkeypatch.setattr("dedupindex.warc.framing.SHORT", 10)
        monkeypatch.setattr(gzip_members, "SHORT", 10)
        monkeypatch.setattr("dedupindex.warc.record.PIECE", 7)
        monkeypatch.setattr(gzip_members, "FEED", 100)

    def ask_records(*records: bytes, **options: object) -> Answer:
        return ask(tmp_path / "t.warc.gz", b"".join(map(gz, records)), **options)

    return ask_records


def test_a_capture_to_the_last_field(read: Ask) -> None:
    body = b"payload"
    answer = read(request(), response(body, number=7))
    assert answer.words == ["request-record", "capture"]
    capture = answer.capture
    assert capture.digest == Digest("sha1", hashlib.sha1(body).digest())
    assert capture.spelling == CANONICAL
    assert (capture.url, capture.date, capture.evidence) == (URL, DATE, Evidence.RECORD)
    assert (capture.covers, capture.status, capture.mime) == (Covers.BOTH, 200, b"text/html")
    assert (capture.size, capture.size_of_record) == (7, False)
    assert capture.record_id == record_id(7)[1:-1]
    assert (capture.container, capture.offset) == ("t.warc.gz", len(gz(request())))
    assert (capture.etag, capture.last_modified, capture.also) == (b"", b"", ())


# 8.3 HTTP


@pytest.mark.parametrize(
    "block", [b"<html>x</html>", b"\x89PNG", b"", b"HTT", b"\r\nHTTP/1.1 200 OK"]
)
def test_case_36_no_http_header(read: Ask, block: bytes) -> None:
    assert read(record(b"response", block)).words == ["not-http"]


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"HTTP/1.1 200", 200),
        (b"HTTP/2 200", 200),
        (b"HTTP/1.0   404 Not Found", 404),
        (b"HTTP/1.1 200 ", 200),
        (b"HTTP/3 301 Moved", 301),
        (b"HTTP/1.1", 0),
        (b"HTTP/1.1 2000 OK", 0),
        (b"HTTP/1.1 OK 200", 0),
    ],
)
def test_case_37_status_lines(read: Ask, line: bytes, status: int) -> None:
    for _ in range(2):
        assert read(response(head=line + b"\r\n\r\n")).capture.status == status


@pytest.mark.parametrize("line", [b"ICY 200 OK", b"HTTP 200 OK", b"\r\n\r\nHTTP/1.1 200 OK"])
def test_case_37_invalid_status_lines(read: Ask, line: bytes) -> None:
    assert read(response(head=line + b"\r\n\r\n")).words == ["not-http"]


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\nContent-Type: Text/HTML ; charset=x\n\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Type: text/html\r\n\n",
        b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Type:text/html\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: caf\xe9\r\ngarbage\r\nX\rY: z\r\ncontent-type: text/html\r\n\r\n",
    ],
)
def test_case_38_odd_http_headers(read: Ask, head: bytes) -> None:
    capture = read(response(b"body\r\n\r\n\n\nmore", head=head)).capture
    assert (capture.mime, capture.size) == (b"text/html", 14)


@pytest.mark.parametrize("block", [b"HTTP/1.1 200 OK", b"HTTP/1.1 200 OK\r\nX: y\r\n", b"HTTP/"])
def test_case_39_no_end_of_headers(read: Ask, block: bytes) -> None:
    assert read(record(b"response", block)).words == ["no-end-of-headers"]


def test_case_39_header_of_two_mebibytes(tmp_path: Path) -> None:
    block = HTTP[:-2] + b"X: " + b"x" * (5 << 20)
    assert ask(tmp_path / "t.warc", record(b"response", block)).words == ["no-end-of-headers"]


def test_case_40_empty_body(read: Ask) -> None:
    assert read(response(b""), response(b"", Payload_Digest=None)).words == ["empty", "empty"]


def test_case_40_empty_in_chunks(read: Ask) -> None:
    for end in (b"0\r\n\r\n", b"000;x=y\r\nTrailer: z\r\n\r\n"):
        assert read(response(end, head=CHUNKED_HTTP)).words == ["empty"]


def test_case_40_digest_of_no_bytes(read: Ask) -> None:
    assert read(response(b"something", Payload_Digest=sha1(b""))).words == [
        "problem",
        "digest-mismatch",
    ]


def test_case_41_http_content_length_is_ignored(read: Ask) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n"
    assert read(response(b"payload", head=head)).capture.size == 7


def test_case_42_transfer_encoding_without_chunks(read: Ask) -> None:
    capture = read(response(b"not chunked at all", head=CHUNKED_HTTP)).capture
    assert capture.covers == Covers.STORED


@pytest.mark.parametrize(
    "body",
    [
        chunked(b"one", b"two"),
        chunked(b"one", b"two", end=b"0\r\nTrailer: x\r\n\r\n"),
        chunked(b"one", b"two", end=b"0;last=yes\r\n\r\n"),
        b"3 ;a=b\r\none\r\n0003\r\ntwo\r\n0\r\n\r\n",
        b"3\none\n3\ntwo\n0\n\n",
    ],
)
def test_case_43_chunked(read: Ask, body: bytes) -> None:
    answer = read(
        response(body, head=CHUNKED_HTTP),
        response(body, head=CHUNKED_HTTP, Payload_Digest=sha1(b"onetwo")),
    )
    assert [capture.covers for capture in answer.captures] == [Covers.STORED, Covers.ENTITY]
    assert {capture.size for capture in answer.captures} == {len(body)}


@pytest.mark.parametrize(
    "body",
    [
        chunked(b"one", b"two", end=b""),
        chunked(b"one", b"two", end=b"0\r\n"),
        chunked(b"one", b"two") + b"more",
        b"4\r\none\r\n0\r\n\r\n",
        b"x\r\none\r\n0\r\n\r\n",
        b"-3\r\none\r\n0\r\n\r\n",
        b"\r\n3\r\none\r\n0\r\n\r\n",
    ],
)
def test_case_43_badly_chunked(read: Ask, body: bytes) -> None:
    answer = read(
        response(body, head=CHUNKED_HTTP),
        response(body, head=CHUNKED_HTTP, Payload_Digest=sha1(b"onetwo")),
        response(body, head=CHUNKED_HTTP, Payload_Digest=sha1(b"one")),
    )
    assert answer.words == ["capture", *["problem", "digest-mismatch"] * 2]
    assert answer.capture.covers == Covers.STORED


def test_cases_44_45_46_same_entity_in_other_bytes(read: Ask) -> None:
    """The values decide: other stored bytes have another digest, or it covers other bytes."""
    whole, pieces = chunked(b"onetwo"), chunked(b"one", b"two")
    answer = read(
        response(whole, head=CHUNKED_HTTP),
        response(pieces, head=CHUNKED_HTTP),
        response(b"onetwo"),
        response(pieces, head=CHUNKED_HTTP, Payload_Digest=sha1(b"onetwo")),
        response(gz(b"onetwo"), head=HTTP[:-2] + b"Content-Encoding: gzip\r\n\r\n"),
    )
    digests = [capture.digest for capture in answer.captures]
    assert len(set(digests)) == 4
    assert digests[2] == digests[3]
    assert [capture.covers for capture in answer.captures] == [1, 1, 3, 2, 3]


@pytest.mark.parametrize("coding", [b"identity", b"Identity "])
def test_identity_is_no_coding(read: Ask, coding: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: " + coding + b"\r\n\r\n"
    assert read(response(head=head)).capture.covers == Covers.BOTH


def test_other_transfer_codings_leave_the_entity_unknown(read: Ask) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"
    body = chunked(gz(b"x"))
    answer = read(response(body, head=head), response(body, head=head, Payload_Digest=None))
    assert answer.words == ["capture", "chunked-without-digest"]
    assert answer.capture.covers == Covers.STORED


@pytest.mark.parametrize("status", [b"404", b"301", b"500", b"200"])
def test_cases_49_50_51_every_status_is_a_capture(read: Ask, status: bytes) -> None:
    head = b"HTTP/1.1 " + status + b" X\r\n\r\n"
    assert read(response(head=head)).capture.status == int(status)


@pytest.mark.parametrize("status", [b"304", b"204", b"100"])
def test_cases_52_54_answers_without_body(read: Ask, status: bytes) -> None:
    assert read(response(b"", head=b"HTTP/1.1 " + status + b" X\r\n\r\n")).words == ["empty"]


def test_case_53_partial_content(read: Ask) -> None:
    ranged = HTTP[:-2] + b"content-range: bytes 0-6/100\r\n\r\n"
    assert read(
        response(head=b"HTTP/1.1 206 Partial Content\r\n\r\n"), response(head=ranged)
    ).words == ["partial", "partial"]


@pytest.mark.parametrize("method", [b"POST", b"HEAD", b"OPTIONS", b"PUT", b"get"])
def test_case_55_other_methods(read: Ask, method: bytes) -> None:
    names_request = (b"WARC-Concurrent-To", record_id(2))
    names_response = (b"WARC-Concurrent-To", record_id(1))
    post = request(method, number=2)
    naming = record(b"request", method + b" / HTTP/1.1\r\n\r\n", names_response, number=2)
    other = response(number=5)
    assert read(post, response(b"x", names_request), other).words == [
        "request-record",
        "method",
        "capture",
    ]
    assert read(naming, response(), other).words == ["request-record", "method", "capture"]
    assert read(other, response(), naming).words == ["capture", "method", "request-record"]
    assert read(response(b"x", names_request), post, other).words == [
        "method",
        "request-record",
        "capture",
    ]
    assert read(revisit(number=1), naming).words == ["method", "request-record"]


def test_case_55_get_changes_nothing(read: Ask) -> None:
    names_request = (b"WARC-Concurrent-To", record_id(2))
    assert read(request(), response(b"x", names_request)).words == ["request-record", "capture"]


@pytest.mark.parametrize(("between", "found"), [(0, True), (60, True), (600, False)])
def test_case_55_within_a_few_records(tmp_path: Path, between: int, found: bool) -> None:
    post = gz(record(b"request", b"POST / HTTP/1.1\r\n\r\n", (b"WARC-Concurrent-To", record_id(1))))
    filler = gz(record(b"metadata", b"x")) * between
    word = "method" if found else "capture"
    path = tmp_path / "t.warc.gz"
    assert ask(path, gz(response()) + filler + post).words[0] == word
    assert ask(path, post + filler + gz(response())).words[-1] == word or not found


def test_case_55_several_concurrent_records(read: Ask) -> None:
    related = [(b"WARC-Concurrent-To", record_id(n)) for n in (9, 2, 8)]
    assert read(request(b"POST"), response(b"x", *related)).words == ["request-record", "method"]


def test_case_56_two_responses_to_one_request(read: Ask) -> None:
    to = (b"WARC-Concurrent-To", record_id(2))
    first = response(b"denied", to, head=b"HTTP/1.1 401 No\r\n\r\n", number=3)
    second = response(b"granted", to, number=4)
    assert read(request(), first, second).words == ["request-record", "capture", "capture"]
    assert read(request(b"POST"), first, second).words == ["request-record", "method", "method"]


def test_case_58_headers_that_browsertrix_renames(read: Ask) -> None:
    head = HTTP[:-2] + b"x-orig-transfer-encoding: chunked\r\nx-orig-content-range: x\r\n\r\n"
    assert read(response(head=head)).capture.covers == Covers.BOTH


def test_etag_and_last_modified_option(read: Ask) -> None:
    head = HTTP[:-2] + b'ETag:  "AbC"\r\nLAST-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n\r\n'
    capture = read(response(head=head), etag=True).capture
    assert capture.etag == b'"AbC"'
    assert capture.last_modified == b"Thu, 01 Jan 2026 00:00:00 GMT"
    assert read(response(head=head)).capture.etag == b""
    again = read(revisit(head), etag=True).revisit.capture
    assert again.etag == b'"AbC"'


# 8.2 again: what a response must not be


def test_truncated(read: Ask) -> None:
    cut = (b"WARC-Truncated", b"length")
    assert read(response(b"x", cut), record(b"metadata", b"x", cut)).words == [
        "truncated",
        "metadata-record",
    ]


def test_no_url(read: Ask) -> None:
    assert read(response(Target_URI=None), response(Target_URI=b"<>")).words == ["no-url"] * 2


# 8.4 Choosing and pointing


@pytest.mark.parametrize(
    "date",
    [
        b"2016-01",
        b"2016-01-02",
        b"2016-01-02T03:04:05+00:00",
        b"2016-01-02T03:04:05z",
        b"0001-01-01T00:00:00Z",
        b"9999-01-01T00:00:00Z",
        b"2016-02-30T00:00:00Z",
        b"2008-10-294T05:21:46-0700",
        b"",
    ],
)
def test_case_66_dates(read: Ask, date: bytes) -> None:
    assert read(response(Date=date)).words == ["bad-date"]


def test_case_65_fractions_of_a_second_are_kept(read: Ask) -> None:
    dates = [b"2016-01-02T03:04:05.123456789Z", b"2016-01-02T03:04:05.1Z"]
    answer = read(*[response(Date=date, version=b"WARC/1.1") for date in dates])
    assert [capture.date for capture in answer.captures] == dates


def test_case_72_no_digest(read: Ask) -> None:
    answer = read(response(Payload_Digest=None))
    assert (answer.capture.digest, answer.capture.spelling, answer.capture.covers) == (
        Digest.parse(sha1(b"payload").decode()),
        CANONICAL,
        Covers.BOTH,
    )
    bare = response(chunked(b"x"), head=CHUNKED_HTTP, Payload_Digest=None)
    assert read(bare).words == ["chunked-without-digest"]


def spellings() -> list[bytes]:
    raw = hashlib.sha1(b"payload").digest()
    b32, hexed = b32encode(raw), raw.hex().encode()
    sha256, md5 = hashlib.sha256(b"payload").digest(), hashlib.md5(b"payload").digest()
    return [
        b"sha1:" + b32,
        b"sha1:" + b32.lower(),
        b"sha1:" + hexed,
        b"sha1:" + hexed.upper(),
        b"SHA1:" + b32,
        b"sha-1:" + b32,
        b"sha1:" + b64encode(raw),
        b"sha256:" + sha256.hex().encode(),
        b"sha-256:" + b32encode(sha256),
        b"md5:" + md5.hex().encode(),
    ]


@pytest.mark.parametrize("text", spellings(), ids=lambda text: text.decode()[:12])
def test_case_73_spellings_are_kept(read: Ask, text: bytes) -> None:
    capture = read(response(Payload_Digest=text)).capture
    assert capture.digest.spelled(capture.spelling).encode() == text


@pytest.mark.parametrize("text", [b"sha1:", b"crc32:AAAA", b"sha1:xyz", b"\xff", b"A" * 32])
def test_unreadable_digest(read: Ask, text: bytes) -> None:
    assert read(response(Payload_Digest=text)).words == ["bad-digest"]


def test_case_74_other_algorithms_option(read: Ask) -> None:
    wanted = ("sha256", "sha1", "md5", "blake3")
    capture = read(response(), also=wanted).capture
    assert [digest.algorithm for digest in capture.also] == ["sha256", "md5", "blake3"]
    assert capture.also[0].raw == hashlib.sha256(b"payload").digest()
    body = chunked(b"pay", b"load")
    stored = read(response(body, head=CHUNKED_HTTP), also=("sha256",)).capture
    assert stored.also[0].raw == hashlib.sha256(body).digest()
    entity = response(body, head=CHUNKED_HTTP, Payload_Digest=sha1(b"payload"))
    assert read(entity, also=("sha256",)).capture.also == capture.also[:1]


def test_case_75_payload_digest_is_wrong(read: Ask) -> None:
    answer = read(response(number=7), response(b"other", Payload_Digest=sha1(b"payload")))
    assert answer.words == ["capture", "problem", "digest-mismatch"]
    ((offset, message),) = answer.problems
    assert offset == len(gz(response(number=7)))
    assert "WARC-Payload-Digest" in message


def test_case_75_block_digest_is_wrong(read: Ask) -> None:
    good, bad = sha1(HTTP + b"payload"), sha1(b"something else")
    answer = read(response(Block_Digest=bad, Payload_Digest=None))
    assert answer.words == ["problem", "digest-mismatch"]
    assert "WARC-Block-Digest" in answer.problem
    assert read(response(Block_Digest=bad)).words == ["capture"]  # the payload digest is right
    assert read(response(Block_Digest=good, Payload_Digest=None)).words == ["capture"]


def test_case_76_digest_of_stripped_text(read: Ask) -> None:
    text = b"SHA1:" + b32encode(hashlib.sha1(b"stripped").digest())
    assert read(response(Payload_Digest=text)).words == ["problem", "digest-mismatch"]


def test_case_77_brackets_around_the_url(read: Ask) -> None:
    assert read(response(Target_URI=b"<http://example.com/>")).capture.url == URL


@pytest.mark.parametrize(
    "url",
    [
        b"http://example.com/a b",
        "http://example.com/ü".encode(),
        b"http://example.com/\xfc",
        b"http://example.com/%zz",
        b"http://example.com/" + b"x" * (1 << 16),
        b"http://example.com/#fragment",
        b"HTTPS://EXAMPLE.com",
        b"http://example.com/>",
    ],
)
def test_case_78_urls_are_bytes(read: Ask, url: bytes) -> None:
    assert read(response(Target_URI=url)).capture.url == url


REFERS_TO = RefersTo(b"http://example.org/first", b"2025-01-01T00:00:00Z", b"urn:uuid:1")


def test_revisit_to_the_last_field(read: Ask) -> None:
    answer = read(revisit(HTTP.replace(b"200", b"404"), Refers_To=b"<urn:uuid:1>", number=9))
    assert answer.words == ["revisit"]
    assert answer.revisit.refers_to == REFERS_TO
    capture = answer.revisit.capture
    assert capture.digest == Digest.parse(sha1(b"payload").decode())
    assert (capture.url, capture.date, capture.evidence) == (URL, DATE, Evidence.REVISIT)
    assert (capture.status, capture.mime, capture.size) == (404, b"text/html", -1)
    assert capture.record_id == record_id(9)[1:-1]


@pytest.mark.parametrize("block", [b"", HTTP, HTTP[:-2], HTTP[:-4], b"HTTP/1.1 200 OK", b"x"])
def test_blocks_of_revisits(read: Ask, block: bytes) -> None:
    capture = read(revisit(block)).revisit.capture
    assert capture.status == (200 if block.startswith(b"HTTP") else 0)


@pytest.mark.parametrize("version", [b"0.18", b"1.0", b"1.1"])
@pytest.mark.parametrize("pattern", [b"%b", b"<%b>"])
def test_spellings_of_the_profile(read: Ask, version: bytes, pattern: bytes) -> None:
    name = b"http://netpreserve.org/warc/%b/revisit/identical-payload-digest" % version
    assert read(revisit(Profile=pattern % name)).revisit.refers_to is not None


@pytest.mark.parametrize(
    "fields",
    [
        {"Profile": NOT_MODIFIED},
        {"Profile": b"http://netpreserve.org/warc/1.0/server-not-modified"},
        {"Profile": None},
        {"Refers_To_Target_URI": None},
        {"Refers_To_Target_URI": b"urn:x"},
        {"Refers_To_Date": None},
        {"Refers_To_Date": b"2025-01-01"},
        {"Refers_To_Target_URI": URL, "Refers_To_Date": DATE},
        {"Refers_To_Target_URI": b"<" + URL + b">", "Refers_To_Date": DATE},
        {"Payload_Digest": sha1(b"")},
    ],
)
def test_revisits_that_cannot_be_resolved(read: Ask, fields: dict[str, bytes | None]) -> None:
    assert read(revisit(**fields)).revisit.refers_to is None


def test_case_81_unknown_profile(read: Ask) -> None:
    answer = read(revisit(Profile=b"http://example.org/my-own-profile"))
    assert answer.revisit.refers_to is None


@pytest.mark.parametrize(
    "fields",
    [{"Payload_Digest": None}, {"Payload_Digest": b"?"}, {"Date": None}, {"Date": b"2016"}],
)
def test_revisits_without_digest_or_original(read: Ask, fields: dict[str, bytes | None]) -> None:
    assert read(revisit(**fields)).words == ["unresolved-revisit"]


def test_case_77_brackets_in_refers_to(read: Ask) -> None:
    refers_to = read(revisit(Refers_To_Target_URI=b"<http://example.org/first>")).revisit.refers_to
    assert refers_to is not None
    assert refers_to.url == b"http://example.org/first"


def test_cases_59_60_61_62_same_record_or_second_twice(read: Ask) -> None:
    """Each is yielded unchanged; the reader does not decide which may be an original."""
    answer = read(response(), response(), response(b"other", number=2))
    assert answer.words == ["capture"] * 3
    assert len({capture.offset for capture in answer.captures}) == 3


def test_large_record_is_streamed(tmp_path: Path) -> None:
    body = os.urandom(9 << 20)
    for data in (gz(response(body), 1), response(body)):
        capture = ask(tmp_path / "t.warc.gz", data, also=("md5",)).capture
        assert capture.size == len(body)
        assert capture.also[0].raw == hashlib.md5(body).digest()
    pieces = chunked(*[body[n : n + 99_999] for n in range(0, len(body), 99_999)])
    data = gz(response(pieces, head=CHUNKED_HTTP, Payload_Digest=sha1(body)), 1)
    assert ask(tmp_path / "t.warc.gz", data).capture.covers == Covers.ENTITY


def test_records_that_are_no_responses_count_as_skipped() -> None:
    reasons = {refusal.reason for refusal in (*_REFUSALS.values(), _UNKNOWN)}
    assert reasons - SKIPPED == {"segmented"}
