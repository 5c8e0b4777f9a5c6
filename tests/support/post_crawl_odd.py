"""Odd records of many kinds, and what becomes of them as copies and as originals.

Numbers are those of the edge cases in the rules of deduplication.
Every kind makes three pairs: a sound original and an odd copy, an odd original and a sound copy, an
odd one and another of the same kind; once gzipped and once plain.
"""

from __future__ import annotations

import hashlib
from base64 import b16encode, b32encode
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.support.post_crawl import DAY, Case, Piece
from tests.support.warc_cases import CHUNKED_HTTP, HTTP, chunked, record, record_id, sha1

Build = Callable[[Case, int], bytes]
BOTH_UNIQUE = ("unique", "unique")


class Odd(NamedTuple):
    """A kind of odd record, and the outcomes of both records of each of its pairs."""

    build: Build
    behind: tuple[str, str]  # a sound original, an odd copy
    before: tuple[str, str]  # an odd original, a sound copy
    both: tuple[str, str]
    sound: dict[str, Any] = {}  # options of the sound one
    plain: bool = True  # whether it makes sense in a plain file
    remarks: tuple[str, ...] = ()  # of bin/verify, on the revisits


def options(**given: Any) -> Build:
    return lambda case, year: case.record(year, **given)


def unusable(reason: str, build: Build, **more: Any) -> Odd:
    """A kind that becomes neither copy nor original."""
    outcomes = {"behind": ("unused-original", reason), "before": (reason, "unused-original")}
    return Odd(build, **{**outcomes, "both": (reason, reason), **more})


def different(reason: str, build: Build, **more: Any) -> Odd:
    """A kind that becomes neither, and differs from the regular record."""
    return Odd(build, BOTH_UNIQUE, BOTH_UNIQUE, (reason, reason), **more)


def usable(build: Build, **more: Any) -> Odd:
    """A kind that becomes copies and originals as regular records do."""
    outcomes = ("original", "revisit")
    return Odd(build, outcomes, outcomes, outcomes, **more)


def own_kind(build: Build, **more: Any) -> Odd:
    """A kind that becomes copies and originals, but only of its own kind."""
    return Odd(build, BOTH_UNIQUE, BOTH_UNIQUE, ("original", "revisit"), **more)


def http(*fields: bytes, status: bytes = b"200 OK", eol: bytes = b"\r\n") -> bytes:
    return eol.join([b"HTTP/1.1 " + status, *fields]) + eol * 2


def more(*fields: tuple[bytes, bytes], **given: Any) -> Build:
    return options(more=fields, **given)


def digest(spell: Callable[[bytes], bytes], **given: Any) -> Build:
    """A response that states the digest of its body in its own way."""
    return lambda case, year: case.record(year, Payload_Digest=spell(case.body), **given)


def body(make: Callable[[bytes], bytes], **given: Any) -> Build:
    """A response with a body that `make` derives from that of the case."""
    return lambda case, year: case.record(year, make(case.body), **given)


def _url(text: bytes) -> Build:
    return lambda case, year: case.record(
        year, Target_URI=text % {b"n": b"c%d.test/%d" % (case.number, year)}
    )


def _of_kind(kind: bytes, **given: Any) -> Build:
    def build(case: Case, year: int) -> bytes:
        return record(
            kind, HTTP + case.body, number=case.number * 100 + year, Date=DAY % year,
            Target_URI=b"http://c%d.test/%d" % (case.number, year),
            **{"Payload_Digest": sha1(case.body), **given},
        )  # fmt: skip

    return build


def _date(text: bytes, **given: Any) -> Build:
    """A date of its own for each year; ``%d`` is the year."""
    return lambda case, year: case.record(year, Date=text % year if b"%" in text else text, **given)


def hexed(name: str, upper: bool = False) -> Callable[[bytes], bytes]:
    def spell(data: bytes) -> bytes:
        text = b16encode(hashlib.new(name, data).digest())
        return name.encode() + b":" + (text if upper else text.lower())

    return spell


def _base32(name: str, pad: bool) -> Callable[[bytes], bytes]:
    def spell(data: bytes) -> bytes:
        text = b32encode(hashlib.new(name, data).digest())
        return name.encode() + b":" + (text if pad else text.rstrip(b"="))

    return spell


def _labelled(label: bytes) -> Callable[[bytes], bytes]:
    return lambda data: label + sha1(data)[4:]


GZIP = http(b"Content-Encoding: gzip")
NOT_FOUND = http(b"Content-Type: text/html", status=b"404 Not Found")
CHUNKS = body(lambda data: chunked(data), head=CHUNKED_HTTP)

ODD: dict[str, Odd] = {
    "19 WARC 1.1": usable(options(version=b"WARC/1.1")),
    "19 WARC 0.17": unusable("unknown-version", options(version=b"WARC/0.17")),
    "19 WARC 0.18": unusable("unknown-version", options(version=b"WARC/0.18")),
    "19 WARC 1.2": unusable("unknown-version", options(version=b"WARC/1.2")),
    "19 lower case": unusable("not-exact", options(version=b"warc/1.0")),
    "20 line feeds": unusable("not-exact", options(eol=b"\n")),
    "20 line feeds at the end too": unusable("not-exact", options(eol=b"\n", end=b"\n\n")),
    "23 no line ends": unusable("not-exact", options(end=b"")),
    "23 one line end": unusable("not-exact", options(end=b"\r\n")),
    "23 bare line feeds": unusable("not-exact", options(end=b"\n\n")),
    "23 many bare line feeds": unusable("not-exact", options(eol=b"\n", end=b"\n" * 5)),
    "23 three line ends": unusable("not-exact", options(end=b"\r\n" * 3)),
    "24 digest twice": unusable(
        "repeated-field",
        lambda case, year: case.record(year, more=[(b"WARC-Payload-Digest", sha1(case.body))]),
    ),
    "24 URL twice": unusable("repeated-field", more((b"warc-target-uri", b"http://x.test/"))),
    "24 concurrent twice": usable(
        more(*[(b"WARC-Concurrent-To", record_id(900_000_000 + n)) for n in (1, 2)])
    ),
    "25 folded field": usable(more((b"X-Folded", b"one\r\n\ttwo"))),
    "25 odd case of names": usable(more((b"wArC-iP-address", b"127.0.0.1"))),
    "25 no space behind colon": usable(more((b"X-Tight:", b"y"), (b"X-Wide ", b"  y  "))),
    "26 no record id": unusable("no-record-id", options(Record_ID=None)),
    "26 no date": unusable("bad-date", options(Date=None)),
    "28 unknown field": usable(more((b"X-Unknown", b"y"), (b"WARC-Future", b"z"))),
    "29 segment": unusable("segmented", more((b"WARC-Segment-Number", b"1"))),
    "29 truncated": unusable("truncated", more((b"WARC-Truncated", b"time"))),
    "34 bytes that are no text": usable(more((b"X-Bytes", bytes(range(128, 256))))),
    "34 a NUL": usable(more((b"X-Nul", b"a\0b"))),
    "34 field of 200 KiB": usable(more((b"X-Long", b"y" * 200_000))),
    "36 HTML without HTTP": different(
        "not-http", lambda case, year: case.record(year, head=b"")
    ),
    "36 PNG without HTTP": different(
        "not-http", body(lambda data: b"\x89PNG\r\n\x1a\n" + data, head=b"")
    ),
    "37 ICY": different("not-http", options(head=b"ICY 200 OK\r\n\r\n")),
    "37 HTTP/2": usable(options(head=b"HTTP/2 200\r\n\r\n")),
    "37 no reason": usable(options(head=b"HTTP/1.0 200\r\nA: b\r\n\r\n")),
    "37 blank lines first": different("not-http", options(head=b"\r\n\r\n" + HTTP)),
    "38 line feeds in HTTP": usable(
        options(head=http(b"A: b", b"C: d", eol=b"\n")), remarks=("http-headers",)
    ),
    "38 mixed line ends": usable(
        options(head=b"HTTP/1.1 200 OK\r\nA: b\nC: d\r\n\r\n"), remarks=("http-headers",)
    ),
    "38 folded, garbage, latin-1": usable(
        options(head=http(b"A: b", b" c", b"garbage", b"\xe9: caf\xe9"))
    ),
    "38 bare carriage return": usable(options(head=http(b"A: b\rc"))),
    "39 no end of headers": different(
        "no-end-of-headers",
        lambda case, year: case.record(
            year, b"X: " + case.body, head=b"HTTP/1.1 200 OK\r\n", Payload_Digest=sha1(case.body)
        ),
    ),
    "40 nothing in the body": unusable(
        "empty", options(body=b""), sound={"body": b"", "Payload_Digest": sha1(b"")}
    )._replace(behind=("empty", "empty"), before=("empty", "empty")),
    "40 no chunks": different("empty", body(lambda data: chunked(), head=CHUNKED_HTTP))._replace(
        behind=("unique", "empty"), before=("empty", "unique")
    ),
    "41 HTTP Content-Length too small": usable(
        options(head=http(b"Content-Length: 5")), remarks=("claimed-length",)
    ),
    "41 HTTP Content-Length too large": usable(
        options(head=http(b"Content-Length: 999999")), remarks=("claimed-length",)
    ),
    "42 said to be chunked": own_kind(options(head=CHUNKED_HTTP)),
    "43 chunked": own_kind(CHUNKS),
    "45 the entity in chunks, under its digest": own_kind(
        lambda case, year: case.record(
            year, chunked(case.body[:50], case.body[50:]), head=CHUNKED_HTTP,
            Payload_Digest=sha1(case.body),
        )
    ),
    "43 trailers": own_kind(
        body(lambda data: chunked(data, end=b"0\r\nX: y\r\n\r\n"), head=CHUNKED_HTTP)
    ),
    "43 chunk extensions": own_kind(
        body(lambda data: b"%x;a=b\r\n%b\r\n0\r\n\r\n" % (len(data), data), head=CHUNKED_HTTP)
    ),
    "43 bad last chunk": own_kind(
        body(lambda data: chunked(data, end=b"0\r\n"), head=CHUNKED_HTTP)
    ),
    "45 other Transfer-Encoding": own_kind(options(head=http(b"Transfer-Encoding: x"))),
    "47 other Content-Encoding": own_kind(options(head=GZIP)),
    "48 other Content-Type": usable(options(head=http(b"Content-Type: image/png"))),
    "49 other status": own_kind(options(head=NOT_FOUND)),
    "50 not found": usable(options(head=NOT_FOUND), sound={"head": NOT_FOUND}),
    "51 redirect": different("redirect", options(head=http(b"Location: /x", status=b"302 Found"))),
    "52 not modified": different("status", options(head=http(status=b"304 Not Modified"))),
    "53 partial": different("partial", options(head=http(status=b"206 Partial Content"))),
    "53 range": unusable("partial", options(head=http(b"Content-Range: bytes 0-9/99"))),
    "54 no content": different("status", options(head=http(status=b"204 No Content"))),
    "54 continue": different("status", options(head=http(status=b"100 Continue"))),
    "54 no status": different("status", options(head=b"HTTP/1.1 OK\r\n\r\n")),
    "57 other cookies": usable(
        lambda case, year: case.record(year, head=http(b"Set-Cookie: a=%d" % year))
    ),
    "58 headers that browsertrix renames": usable(
        options(head=http(b"x-orig-transfer-encoding: chunked", b"x-orig-content-encoding: br"))
    ),
    "65 sub-second": usable(_date(b"20%02d-11-20T09:14:17.123456789Z", version=b"WARC/1.1")),
    "66 month": unusable("bad-date", _date(b"2016-01")),
    "66 day": unusable("bad-date", _date(b"20%02d-01-01")),
    "66 offset": unusable("bad-date", _date(b"20%02d-01-01T00:00:00+00:00")),
    "66 lower-case z": unusable("bad-date", _date(b"20%02d-01-01T00:00:00z")),
    "66 year 1": unusable("bad-date", _date(b"0001-01-%02dT00:00:00Z")),
    "66 year 9999": unusable("bad-date", _date(b"9999-12-%02dT23:59:59Z")),
    "66 year 0": unusable("bad-date", _date(b"0000-12-%02dT23:59:59Z")),
    "66 no such day": unusable("bad-date", _date(b"20%02d-02-31T00:00:00Z")),
    "72 no digest": Odd(
        options(Payload_Digest=None), BOTH_UNIQUE, BOTH_UNIQUE, ("no-digest", "no-digest")
    ),
    "72 no digest, chunked": different(
        "chunked-without-digest",
        body(lambda data: chunked(data), head=CHUNKED_HTTP, Payload_Digest=None),
    ),
    "73 hexadecimal": own_kind(digest(hexed("sha1"))),
    "73 upper-case hexadecimal": own_kind(digest(hexed("sha1", upper=True))),
    "73 lower-case base 32": own_kind(digest(lambda data: sha1(data).lower())),
    "73 other label": own_kind(digest(_labelled(b"sha-1"))),
    "73 MD5 in base 32": own_kind(digest(_base32("md5", pad=False))),
    "74 SHA-256": own_kind(digest(hexed("sha256"))),
    "74 SHA-256 in base 32": own_kind(digest(_base32("sha256", pad=True))),
    "75 wrong payload digest": different("digest-mismatch", digest(lambda data: sha1(data + b"x"))),
    "75 other bytes under the right digest": different(
        "digest-mismatch",
        lambda case, year: case.record(
            year, case.body[:-1] + b"x", Payload_Digest=sha1(case.body)
        ),
    ),
    "75 digest that is none": different("bad-digest", digest(lambda data: b"sha1:1234")),
    "75 unknown algorithm": different("bad-digest", digest(lambda data: b"crc32:12345678")),
    "76 digest of stripped text": different(
        "digest-mismatch", digest(lambda data: _labelled(b"SHA1")(data + b"text"))
    ),
    "77 brackets around the URL": usable(_url(b"<http://%(n)b>")),
    "78 URL with a space": usable(_url(b"http://%(n)b/a b")),
    "78 URL that is no ASCII": usable(_url(b"http://%(n)b/\xe9\xff")),
    "78 URL with bad escapes and a fragment": usable(_url(b"http://%(n)b/%%zz#f")),
    "78 URL of 64 KiB": usable(_url(b"http://%(n)b/" + b"u" * 65536), plain=False),
    "79 host as U-label": usable(_url("http://bücher.%(n)b".encode())),
    "80 https and www": usable(_url(b"https://www.%(n)b")),
}  # fmt: skip


KINDS: dict[str, Odd] = {
    "30 resource": Odd(_of_kind(b"resource"), ("unique", ""), ("", "unique"), ("", "")),
    "30 conversion": Odd(_of_kind(b"conversion"), ("unique", ""), ("", "unique"), ("", "")),
    "31 metadata": Odd(_of_kind(b"metadata"), ("unique", ""), ("", "unique"), ("", "")),
    "31 request": Odd(_of_kind(b"request"), ("unique", ""), ("", "unique"), ("", "")),
    "29 continuation": Odd(
        _of_kind(b"continuation", Segment_Number=b"2"), ("unique", ""), ("", "unique"), ("", "")
    ),
    "28 unknown type": Odd(_of_kind(b"novelty"), ("unique", ""), ("", "unique"), ("", "")),
}


def fill(case: Case, odd: Odd) -> None:
    """The pairs of a kind, each with a body of its own, in one file."""
    name, pieces = case.name, []
    case.remarks.update(odd.remarks)
    for pair, (outcomes, years) in enumerate(
        ((odd.behind, (1, 2)), (odd.before, (3, 4)), (odd.both, (5, 6)))
    ):
        case.name = f"{name} {pair}"  # of which the body is made
        first, second = (
            case.record(year, **odd.sound) if place == pair else odd.build(case, year)
            for place, year in enumerate(years)
        )
        pieces += [
            case.kept(outcomes[0], first), Piece(case.pack(second), outcomes[1], second, first)
        ]  # fmt: skip
    case.name = name
    case.file("x.warc", *pieces)
