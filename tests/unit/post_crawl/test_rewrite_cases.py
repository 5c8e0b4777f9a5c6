"""Unusual records: which of them become revisits, and why the others are kept."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from dedupindex.post_crawl.manifest.parquet import Line
from dedupindex.post_crawl.plan.plan_file import MatchCriteria, Planned
from dedupindex.post_crawl.rewrite.compare_pair import CheckedPair, RecordOnDisk, check_pair
from dedupindex.warc import random_access
from dedupindex.warc.random_access import ExactRecord, NotExact
from dedupindex.warc.record_facts import Refused
from tests.support.rewriting import EARLY
from tests.support.warc_cases import (
    CHUNKED_HTTP,
    DATE,
    HTTP,
    URL,
    chunked,
    gz,
    record,
    record_id,
    response,
    sha1,
)

BODY = b"some body that repeats " * 40
FIRST = b"http://example.org/first"


DEFAULT = MatchCriteria()


def first(body: bytes = BODY, **options: Any) -> bytes:
    """An original."""
    options.setdefault("Target_URI", FIRST)
    options.setdefault("Date", EARLY)
    options.setdefault("number", 9)
    return response(body, **options)


def line(offset: int, stored: int, **fields: Any) -> Line:
    usual = Line(1, offset, stored, b"", URL, DATE, b"", b"", 3, b"", 0, 200, b"\n", b"", 0, "", "")
    return usual._replace(**fields)


def verdicts(
    path: Path,
    candidate: bytes,
    original: bytes | None = None,
    *,
    packed: bool = True,
    seen: dict[str, Any] | None = None,
    criteria: MatchCriteria = DEFAULT,
) -> CheckedPair:
    """Check a record that follows its original; `seen` are fields of its line in the plan."""
    original = first() if original is None else original
    one, two = (gz(original), gz(candidate)) if packed else (original, candidate)
    path.write_bytes(one + two)
    seen = dict(seen or {})
    early = seen.pop("first_date", EARLY)
    with open(path, "rb", buffering=0) as file:
        planned = Planned(
            line(len(one), len(two), **seen),
            2,
            1,
            line(0, len(one), url=FIRST, date=early, record_id=record_id(9)[1:-1]),
        )
        places = (
            RecordOnDisk(file, len(one), len(two), (1, 1)),
            RecordOnDisk(file, 0, len(one), (1, 1)),
        )
        return check_pair(planned, *places, criteria)


def http(*fields: bytes, status: bytes = b"200 OK", eol: bytes = b"\r\n") -> bytes:
    return eol.join([b"HTTP/1.1 " + status, *fields]) + eol * 2


FOLDED = (b"X-Folded", b"one\r\n\ttwo")
STAYS: dict[str, tuple[str, bytes] | tuple[str, bytes, bytes]] = {
    "10 cut record": ("not-exact", response(BODY)[:-700]),
    "11 two records in one member": ("not-exact", response(BODY) + response(BODY, number=5)),
    "19 version 0.18": ("unknown-version", response(BODY, version=b"WARC/0.18")),
    "19 version in lower case": ("unknown-version", response(BODY, version=b"warc/1.0")),
    "20 bare line feeds": ("not-exact", response(BODY, eol=b"\n", end=b"\n\n")),
    "22 length too small": ("not-exact", response(BODY, Content_Length=b"100")),
    "22 length too large": ("not-exact", response(BODY, Content_Length=b"100000")),
    "22 length is not a number": ("not-exact", response(BODY, Content_Length=b"-1")),
    "22 length missing": ("not-exact", response(BODY, Content_Length=None)),
    "22 two lengths": ("not-exact", response(BODY, (b"Content-Length", b"1"))),
    "23 one line end": ("not-exact", response(BODY, end=b"\r\n")),
    "23 three line ends": ("not-exact", response(BODY, end=b"\r\n\r\n\r\n")),
    "24 two digests": ("repeated-field", response(BODY, (b"WARC-Payload-Digest", sha1(BODY)))),
    "24 two URLs": ("repeated-field", response(BODY, (b"warc-target-uri", URL))),
    "24 a profile": ("unexpected-field", response(BODY, (b"WARC-Profile", b"x"))),
    "26 no id": ("no-record-id", response(BODY, Record_ID=None)),
    "26 no date": ("bad-date", response(BODY, Date=None)),
    "26 no URL": ("no-url", response(BODY, Target_URI=None)),
    "29 segment": ("segmented", response(BODY, (b"WARC-Segment-Number", b"1"))),
    "29 truncated": ("truncated", response(BODY, (b"warc-truncated", b"time"))),
    "30 resource": ("not-a-response", record(b"resource", HTTP + BODY)),
    "31 request": ("not-a-response", record(b"request", HTTP + BODY)),
    "32 dns": ("not-http", response(BODY, Target_URI=b"dns:x", Content_Type=b"text/dns")),
    "32 ftp": ("not-http", response(BODY, Target_URI=b"ftp://x/")),
    "34 tab in a URL": ("control-character", response(BODY, Target_URI=b"http://x/\ty")),
    "35 revisit": ("not-a-response", record(b"revisit", HTTP)),
    "36 no HTTP": ("not-http", response(BODY, head=b"", Payload_Digest=sha1(BODY))),
    "39 no end of headers": ("no-end-of-headers", response(BODY, head=b"HTTP/1.1 200 OK\r\n")),
    "40 empty": ("empty", response(b"")),
    "44 other chunks": (
        "body-differs",
        response(chunked(BODY, BODY), head=CHUNKED_HTTP, Payload_Digest=sha1(BODY + BODY)),
        first(chunked(BODY + BODY), head=CHUNKED_HTTP, Payload_Digest=sha1(BODY + BODY)),
    ),
    "45 chunked or not": (
        "coding-differs",
        response(chunked(BODY), head=CHUNKED_HTTP),
        first(chunked(BODY)),
    ),
    "47 other content coding": (
        "coding-differs",
        response(BODY, head=http(b"Content-Encoding: gzip")),
    ),
    "47 content coding with a space": (
        "coding-differs",
        response(BODY, head=http(b"content-encoding : gzip")),
        first(head=http(b"Content-Encoding: br")),
    ),
    "49 other status": ("status-differs", response(BODY, head=http(status=b"404 Not Found"))),
    "51 redirect": ("redirect", response(BODY, head=http(status=b"301 Moved"))),
    "52 not modified": ("redirect", response(BODY, head=http(status=b"304 Not Modified"))),
    "53 partial": ("partial", response(BODY, head=http(status=b"206 Partial"))),
    "53 range": ("partial", response(BODY, head=http(b"Content-Range: bytes 0-9/10"))),
    "54 no content": ("status", response(BODY, head=http(status=b"204 No Content"))),
    "54 no status": ("status", response(BODY, head=b"HTTP/1.1 OK\r\n\r\n")),
    "60 same record elsewhere": ("same-record", response(BODY, number=9)),
    "66 date without a day": ("bad-date", response(BODY, Date=b"2016-01")),
    "70 original is a revisit": (
        "original-not-a-response", response(BODY), record(b"revisit", HTTP),
    ),
    "72 original without digest": (
        "original-no-digest", response(BODY), first(Payload_Digest=None),
    ),
    "73 digest in another spelling": (
        "digest-differs",
        response(BODY, Payload_Digest=sha1(BODY).lower()),
    ),
    "75 wrong payload digest": (
        "digest-mismatch",
        response(BODY, Payload_Digest=sha1(b"x")),
        first(Payload_Digest=sha1(b"x")),
    ),
    "75 wrong block digest": (
        "digest-mismatch",
        response(BODY, (b"WARC-Block-Digest", sha1(b"x"))),
    ),
    "75 block digest that is none": (
        "bad-digest",
        response(BODY, (b"WARC-Block-Digest", b"sha1:1234")),
    ),
    "75 original with a wrong block digest": (
        "original-digest-mismatch", response(BODY), first(Block_Digest=sha1(b"x")),
    ),
    "83 other body": ("body-differs", response(b"S" + BODY[1:], Payload_Digest=sha1(BODY))),
    "original truncated": (
        "original-truncated", response(BODY), first(Truncated=b"length"),
    ),
    "original moved": ("original-changed", response(BODY), first(Target_URI=b"http://other/")),
}  # fmt: skip


@pytest.mark.parametrize("case", STAYS)
def test_copies_that_stay(tmp_path: Path, case: str) -> None:
    reason, *records = STAYS[case]
    seen = {"url": b"http://x/\ty"} if "tab" in case else None
    for packed in (True, False):
        if not packed and case.startswith(("10 ", "11 ", "22 ", "23 ")):
            continue  # in a plain file other bytes follow, see below
        with pytest.raises(Refused) as refused:
            verdicts(tmp_path / "x", *records, packed=packed, seen=seen)
        assert refused.value.reason == reason


@pytest.mark.parametrize(
    ("criteria", "reason"),
    [(MatchCriteria(), "status-differs"), (MatchCriteria(any_status=True), ""),
     (MatchCriteria(True, True), "type-differs"),
     (MatchCriteria(same_type=True), "status-differs")],
)  # fmt: skip
def test_options_decide_which_records_match(
    tmp_path: Path, criteria: MatchCriteria, reason: str
) -> None:
    """48, 49: whatever the plan says, the records that are there now are asked."""
    not_found = response(BODY, head=http(b"Content-Type: x/y", status=b"404 Not Found"))
    if reason:
        with pytest.raises(Refused) as refused:
            verdicts(tmp_path / "x", not_found, criteria=criteria)
        assert refused.value.reason == reason
    else:
        assert (
            b"\r\n\r\nHTTP/1.1 404 Not"
            in verdicts(tmp_path / "x", not_found, criteria=criteria).record
        )


BECOMES: dict[str, tuple[bytes, ...]] = {
    "19 version 1.1": (response(BODY, version=b"WARC/1.1"),),
    "24 made with several": (
        response(BODY, (b"WARC-Concurrent-To", b"<a:1>"), (b"WARC-Concurrent-To", b"<a:2>")),
    ),
    "25 odd spelling": (response(BODY, FOLDED, (b"x-nothing", b""), (b"X-Space ", b" y  ")),),
    "28 unknown field": (response(BODY, (b"X-Field", b"y")),),
    "34 any bytes": (response(BODY, (b"X-Bytes", bytes(range(128, 256)) + b"\0")),),
    "34 long field": (response(BODY, (b"X-Long", b"y" * 500_000)),),
    "37 ICY": (response(BODY, head=b"HTTP/1.1 200\r\n\r\n"),),
    "38 line feeds in HTTP": (response(BODY, head=http(b"A: b", eol=b"\n")),),
    "38 folds in HTTP": (response(BODY, head=http(b"A: b", b" c", b"garbage", b"\xe9: \xff")),),
    "41 wrong Content-Length in HTTP": (response(BODY, head=http(b"Content-Length: 5")),),
    "42 says chunked, is not": (
        response(BODY, head=CHUNKED_HTTP),
        first(head=CHUNKED_HTTP),
    ),
    "43 trailers, and a bad last chunk": (
        response(chunked(BODY, end=b"0\r\nX: y\r\n"), head=CHUNKED_HTTP),
        first(chunked(BODY, end=b"0\r\nX: y\r\n"), head=CHUNKED_HTTP),
    ),
    "43 digest of the entity": (
        response(chunked(BODY), head=CHUNKED_HTTP, Payload_Digest=sha1(BODY)),
        first(chunked(BODY), head=CHUNKED_HTTP, Payload_Digest=sha1(BODY)),
    ),
    "47 same content coding": (
        response(BODY, head=http(b"Content-Encoding:  GZIP ")),
        first(head=http(b"content-encoding: gzip")),
    ),
    "48 other media type": (response(BODY, head=http(b"Content-Type: x/y")),),
    "50 not found": (
        response(BODY, head=http(status=b"404 No")),
        first(head=http(status=b"404 No")),
    ),
    "57 cookies": (response(BODY, head=http(b"Set-Cookie: a=b", b"Date: now")),),
    "65 sub-second": (response(BODY, Date=DATE[:-1] + b".123456789Z", version=b"WARC/1.1"),),
    "65 of WARC/1.0, the original has a fraction": (
        response(BODY),
        first(Date=EARLY[:-1] + b".25Z", version=b"WARC/1.1"),
    ),
    "72 no digest of its own": (response(BODY, Payload_Digest=None),),
    "72 an empty digest": (response(BODY, Payload_Digest=b""),),
    "75 an empty block digest": (response(BODY, (b"WARC-Block-Digest", b" ")),),
    "75 empty digests of both": (
        response(BODY, (b"warc-block-digest", b""), Payload_Digest=None),
        first(Block_Digest=b""),
    ),
    "77 brackets": (response(BODY, Target_URI=b"<" + URL + b">"),),
    "78 long URL": (response(BODY, Target_URI=URL + b"%zz \xff#" + b"x" * 65536),),
}


@pytest.mark.parametrize("case", BECOMES)
@pytest.mark.parametrize("packed", [True, False])
def test_copies_that_become_revisits(tmp_path: Path, case: str, packed: bool) -> None:
    candidate, *rest = BECOMES[case]
    seen: dict[str, Any] = {}
    if "long URL" in case:
        seen["url"] = URL + b"%zz \xff#" + b"x" * 65536
    if "sub-second" in case:
        seen["date"] = DATE[:-1] + b".123456789Z"
    if "has a fraction" in case:
        seen["first_date"] = EARLY[:-1] + b".25Z"
    found = verdicts(tmp_path / "x", candidate, *rest, packed=packed, seen=seen)
    made = found.record
    head, _, block = made.partition(b"\r\n\r\n")
    header, _, old_block = candidate.partition(b"\r\n\r\n")
    kept = block.removesuffix(b"\r\n\r\n")
    assert old_block.startswith(kept) and kept.endswith((b"\n\n", b"\n\r\n"))
    version = b"1.1" if candidate.startswith(b"WARC/1.1") else b"1.0"
    added = [
        b"WARC-Profile: http://netpreserve.org/warc/%b/revisit/identical-payload-digest" % version,
        b"WARC-Truncated: length",
        b"WARC-Refers-To: " + record_id(9),
        b"WARC-Refers-To-Target-URI: " + FIRST,
        b"WARC-Refers-To-Date: " + EARLY,
    ]
    old, new = header.split(b"\r\n"), head.split(b"\r\n")
    stated = b"WARC-Payload-Digest: "
    old = [stated + sha1(BODY) if one == stated else one for one in old]  # it was empty
    assert new[-5:] == added
    changed = (b"WARC-Type:", b"Content-Length:")
    for one, two in zip(old, new, strict=False):
        assert one == two or (one.startswith(changed) and two.startswith(changed))
    assert b"\r\nWARC-Type: revisit\r\n" in head
    assert b"\r\nContent-Length: %d\r\n" % len(kept) in head
    assert head.count(b"\r\nWARC-Payload-Digest: ") == 1


def test_only_records_stored_in_full_are_read(tmp_path: Path) -> None:
    """5, 6: a member with a wrong checksum, and one with a bit that flipped, are not believed."""
    whole = gz(response(BODY))
    for at in (len(whole) - 6, len(whole) // 2):
        broken = bytearray(whole)
        broken[at] ^= 4
        path = tmp_path / "x"
        one = gz(first())
        path.write_bytes(one + broken)
        with open(path, "rb", buffering=0) as file, pytest.raises(Refused, match="not-exact"):
            planned = Planned(line(0, 0), 2, 1, line(0, 0, url=FIRST, date=EARLY))
            check_pair(
                planned,
                RecordOnDisk(file, len(one), len(broken), (1, 1)),
                RecordOnDisk(file, 0, len(one), (1, 1)),
                DEFAULT,
            )


def test_a_record_is_no_revisit_of_itself(tmp_path: Path) -> None:
    """59: by whatever path it is reached."""
    path = tmp_path / "x"
    path.write_bytes(gz(response(BODY)))
    with open(path, "rb", buffering=0) as file, pytest.raises(Refused, match="same-record"):
        place = RecordOnDisk(file, 0, path.stat().st_size, (1, 1))
        check_pair(Planned(line(0, 0), 2, 1, line(0, 0)), place, place, DEFAULT)


def test_same_url_and_second_stay(tmp_path: Path) -> None:
    """61: replay tools could not tell the two apart, unless they say the same."""
    original = first(Target_URI=URL, Date=DATE[:-1] + b".5Z", version=b"WARC/1.1")
    other = response(BODY, head=HTTP.replace(b"OK", b"Fine"))
    one, two = gz(original), gz(other)
    (tmp_path / "x").write_bytes(one + two)
    with (
        open(tmp_path / "x", "rb", buffering=0) as file,
        pytest.raises(Refused, match="same-second"),
    ):
        planned = Planned(line(0, 0), 2, 1, line(0, 0, date=DATE[:-1] + b".5Z"))
        places = (
            RecordOnDisk(file, len(one), len(two), (1, 1)),
            RecordOnDisk(file, 0, len(one), (1, 1)),
        )
        check_pair(planned, *places, DEFAULT)
    equal = gz(response(BODY))
    (tmp_path / "y").write_bytes(one + equal)
    with open(tmp_path / "y", "rb", buffering=0) as file:
        places = (
            RecordOnDisk(file, len(one), len(equal), (1, 1)),
            RecordOnDisk(file, 0, len(one), (1, 1)),
        )
        assert check_pair(planned, *places, DEFAULT).original.date == DATE[:-1] + b".5Z"


def test_a_bomb_is_read_in_pieces(tmp_path: Path) -> None:
    """A small member that is long when inflated is compared piece by piece."""
    body = bytes(20 << 20)
    found = verdicts(tmp_path / "x", response(body), first(body))
    assert found.response.single.data is None and found.response.body_length == len(body)
    with pytest.raises(Refused, match="body-differs"):
        other = body[:-1] + b"x"
        verdicts(tmp_path / "x", response(other, Payload_Digest=sha1(body)), first(body))
    with pytest.raises(Refused, match="not-exact"):
        verdicts(tmp_path / "x", response(body) + response(), first(body))
    assert gzip.decompress((tmp_path / "x").read_bytes())


@pytest.mark.parametrize("piece", [1, 7, 100, 1 << 18])
def test_long_records_are_read_as_short_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    """Piece by piece, whatever the pieces: the same block, and the same damage found."""
    monkeypatch.setattr(random_access, "SHORT", 100)
    monkeypatch.setattr(random_access, "_PIECE", piece)
    path = tmp_path / "x"
    for body in (b"x", BODY, bytes(9000)):
        whole = response(body)
        packed = gz(whole)
        for data in (whole, packed):
            path.write_bytes(data)
            with open(path, "rb", buffering=0) as file:
                found = ExactRecord(file, 0, len(data))
                assert found.data is None and b"".join(found.block()) == HTTP + body
        flipped = packed[:-7] + bytes([packed[-7] ^ 1]) + packed[-6:]
        for data in (packed[:-1], packed + b"x", packed * 2, flipped, gz(whole + b"\r\n"),
                     gz(whole[:-1]), whole[:-1], whole + b"x", gz(whole * 2)):  # fmt: skip
            path.write_bytes(data)
            with open(path, "rb", buffering=0) as file, pytest.raises(NotExact):
                b"".join(ExactRecord(file, 0, len(data)).block())
