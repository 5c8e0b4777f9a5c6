"""Lines of the manifest, for each condition on revisits and originals."""

from __future__ import annotations

import hashlib
import re
import tempfile
from pathlib import Path

import duckdb
import pytest
from blake3 import blake3
from fastwarc.warc import ArchiveIterator as FastIterator
from fastwarc.warc import WarcRecordType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from warcio.archiveiterator import ArchiveIterator as WarcioIterator

from dedupindex.capture import Covers
from dedupindex.post_crawl.manifest import record_lines
from dedupindex.post_crawl.manifest.parquet import REASONS, Line, ParquetWriter, lines_of
from dedupindex.post_crawl.manifest.record_lines import ManifestOptions, Scan
from dedupindex.sources import refusal_reasons
from dedupindex.warc import http, record_facts
from dedupindex.warc.gzip_members import SHORT
from dedupindex.warc.http import content_types
from tests.support.budgets import examples
from tests.support.paths import ROOT
from tests.support.warc_cases import (
    CHUNKED_HTTP,
    DATA,
    END,
    HTTP,
    URL,
    chunked,
    gz,
    record,
    record_id,
    request,
    response,
    revisit,
    sha1,
)

texts = st.binary(max_size=40) | st.sampled_from([b"", b"\x01", b"a\tb", b'"', b"\xff\x00\r\n"])
codings = st.builds(lambda a, b: a + b"\n" + b, texts, texts)
longs = st.integers(0, 2**63 - 1)
any_lines = st.builds(
    Line, st.integers(0, 2**31 - 1), longs, longs, texts, texts, texts, texts, texts,
    st.integers(0, 3), st.binary(max_size=32), longs, st.integers(0, 999), codings, texts,
    st.integers(0, 2**64 - 1), st.sampled_from(["", "arc"]), st.sampled_from(["", "empty"]),
)  # fmt: skip
RELAXED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
PATH = Path(tempfile.mkdtemp()) / "t.warc"


@settings(RELAXED, max_examples=examples(40))
@given(st.lists(any_lines, max_size=8))
def test_lines_come_back_from_parquet_as_they_were(tmp_path: Path, written: list[Line]) -> None:
    target = tmp_path / "[lines]*.parquet"
    with duckdb.connect(config={"threads": 1}) as database:
        spool = ParquetWriter(target)
        spool.add(written)
        spool.finish(database)
        assert list(lines_of(database, target)) == written
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


def scanned(data: bytes, options: ManifestOptions | None = None) -> tuple[list[Line], Scan]:
    PATH.write_bytes(data)
    scan = Scan(str(PATH), 7, options or ManifestOptions())
    lines = [line for batch in scan.lines() for line in batch]
    scan.close()
    return lines, scan


def line_of(data: bytes, options: ManifestOptions | None = None) -> Line:
    (line,), _ = scanned(data, options)
    return line


def test_the_fields_of_a_line() -> None:
    before, stored = gz(request()), gz(response())
    line = line_of(before + stored)
    assert line[:7] == (
        7, len(before), len(stored), record_id(1)[1:-1], URL, b"2026-11-20T09:14:17Z",
        sha1(b"payload"),
    )  # fmt: skip
    assert line.payload == hashlib.sha1(b"payload").digest()
    assert line.strong == blake3(b"payload").digest()
    assert line[8:9] + line[10:13] == (Covers.BOTH, 7, 200, b"\n")
    assert line[13:-1] == (b"text/html;charset=utf-8", line.replay_key, "", "") and line.replay_key
    assert line.header == blake3(HTTP).digest(16)


def test_the_size_of_a_plain_record_includes_its_line_ends() -> None:
    data = response()
    lines, _ = scanned(data + response(number=2))
    assert [(line.offset, line.stored) for line in lines] == [(0, len(data)), (len(data),) * 2]


BODY = b"5\r\nhello\r\n0\r\n\r\n"
REDIRECT = b"HTTP/1.1 301 Moved\r\nLocation: /x\r\n\r\n"
LF_HTTP = b"HTTP/1.1 200 OK\nContent-Type: text/html\n\n"
SEGMENT = (b"WARC-Segment-Number", b"1")
CASES = {  # edge cases by their numbers in the rules: bytes of a record, stay, unfit
    "19 0.18": (response(version=b"WARC/0.18"), "unknown-version", "unknown-version"),
    "19 1.1": (response(version=b"WARC/1.1"), "", ""),
    "19 1.2": (response(version=b"WARC/1.2"), "unknown-version", "unknown-version"),
    "19 1.3": (response(version=b"WARC/1.3"), "unknown-version", "unknown-version"),
    "19 lower case": (response(version=b"warc/1.0"), "not-exact", "not-exact"),
    "20 line feeds": (response(eol=b"\n"), "not-exact", "not-exact"),
    "20 all line feeds": (response(eol=b"\n", end=b"\n\n"), "not-exact", "not-exact"),
    "23 more line ends": (response(end=END + b"\r\n"), "not-exact", "not-exact"),
    "24 digest twice": (
        response(b"payload", (b"WARC-Payload-Digest", sha1(b"payload"))),
        "repeated-field", "repeated-field",
    ),
    "24 url twice": (response(b"payload", (b"warc-target-uri", URL)), "repeated-field",
                     "repeated-field"),
    "24 concurrent twice": (
        response(b"payload", *[(b"WARC-Concurrent-To", record_id(n)) for n in (8, 9)]), "", ""),
    "25 folded": (response(b"payload", (b"X-More", b"a\r\n b")), "", ""),
    "26 no id": (response(Record_ID=None), "no-record-id", "no-record-id"),
    "26 no date": (response(Date=None), "bad-date", "bad-date"),
    "29 segment": (response(b"payload", SEGMENT), "segmented", "segmented"),
    "32 dns": (record(b"response", b"x", Target_URI=b"dns:a.b", Content_Type=b"text/dns"),
               "not-http", "not-http"),
    "34 raw bytes": (response(b"payload", (b"X-More", b"\xff\x01")), "", ""),
    "36 no http": (response(b"<html>x</html>", head=b""), "not-http", "not-http"),
    "37 icy": (response(head=b"ICY 200 OK\r\n\r\n"), "not-http", "not-http"),
    "37 no version": (response(head=b"HTTP/2 200\r\n\r\n"), "", ""),
    "37 no number": (response(head=b"HTTP/1.1 OK\r\n\r\n"), "status", "status"),
    "38 line feeds": (response(head=LF_HTTP), "", ""),
    "39 no end": (response(b"", head=b"HTTP/1.1 200 OK\r\nA: b\r\n"), "no-end-of-headers",
                  "no-end-of-headers"),
    "40 empty": (response(b""), "empty", "empty"),
    "40 no chunks": (response(chunked(), head=CHUNKED_HTTP), "empty", "empty"),
    "42 not chunked": (response(b"plain", head=CHUNKED_HTTP), "", ""),
    "43 bad chunks": (response(b"5\r\nhel", head=CHUNKED_HTTP), "", ""),
    "51 redirect": (response(head=REDIRECT), "redirect", "redirect"),
    "52 304": (response(head=b"HTTP/1.1 304 x\r\n\r\n"), "status", "status"),
    "53 206": (response(head=b"HTTP/1.1 206 x\r\n\r\n"), "partial", "partial"),
    "53 range": (response(head=b"HTTP/1.1 200 x\r\nContent-Range: x\r\n\r\n"), "partial",
                 "partial"),
    "54 204": (response(head=b"HTTP/1.1 204 x\r\n\r\n"), "status", "status"),
    "54 100": (response(head=b"HTTP/1.1 100 x\r\n\r\n"), "status", "status"),
    "66 month": (response(Date=b"2016-01"), "bad-date", "bad-date"),
    "66 year 1": (response(Date=b"0001-01-01T00:00:00Z"), "bad-date", "bad-date"),
    "66 offset": (response(Date=b"2016-01-01T00:00:00+00:00"), "bad-date", "bad-date"),
    "72 no digest": (response(Payload_Digest=None), "no-digest", "no-digest"),
    "72 no digest, chunked": (
        response(BODY, head=CHUNKED_HTTP, Payload_Digest=None),
        "chunked-without-digest", "chunked-without-digest"),
    "75 mismatch": (response(Payload_Digest=sha1(b"other")), "digest-mismatch", "digest-mismatch"),
    "76 SHA1": (response(Payload_Digest=sha1(b"text").replace(b"sha1", b"SHA1")),
                "digest-mismatch", "digest-mismatch"),
    "77 brackets": (response(Target_URI=b"<" + URL + b">"), "", ""),
    "78 a space": (response(Target_URI=b"http://e.com/a b\xe9%zz#f"), "", ""),
    "90 no known digest": (response(Payload_Digest=b"crc32:1"), "bad-digest", "bad-digest"),
    "truncated": (response(Truncated=b"length"), "truncated", "truncated"),
    "no url": (response(Target_URI=None), "no-url", "no-url"),
    "ftp": (response(Target_URI=b"ftp://a/b"), "not-http", "not-http"),
    "404": (response(head=b"HTTP/1.1 404 x\r\n\r\n"), "", ""),
    "long fields": (response(Target_URI=b"http://e.com/" + b"a" * (1 << 18)), "too-long",
                    "too-long"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("packed", [True, False])
def test_reasons_that_one_record_shows(case: str, packed: bool) -> None:
    data, stay, unfit = CASES[case]
    if packed:
        line = line_of(gz(data))
        assert (line.offset, line.stored) == (0, len(gz(data)))
    else:
        line = line_of(data)
    assert (line.not_rewritable_reason, line.not_original_reason) == (stay, unfit)
    assert {stay, unfit} <= {*REASONS, ""}


@pytest.mark.parametrize("case", CASES)
def test_the_fast_path_gives_the_same_lines(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    warm = gz(response(number=1)) + gz(response(number=2)) * 6  # so that forms are known
    data = warm + gz(CASES[case][0]) * 2
    quick, _ = scanned(data)
    monkeypatch.setattr(record_lines.FastLines, "line", lambda self, record: None)
    assert scanned(data)[0] == quick


def test_records_without_a_date_have_no_replay_key() -> None:  # 66
    lines, _ = scanned(gz(response(Date=None)) * 8)
    assert [line.not_rewritable_reason for line in lines] == ["bad-date"] * 8


def test_all_of_a_shared_member_stay() -> None:  # 2, 11
    lines, _ = scanned(gz(response() + response(number=2)) + gz(response(number=3)))
    assert [(line.not_rewritable_reason, line.not_original_reason) for line in lines] == [
        ("shared-member",) * 2
    ] * 2 + [("", "")]
    lines, _ = scanned(gz(response() + response(b"x" * (SHORT + 1), number=2) + b"WARC"))
    assert [line.not_original_reason for line in lines] == ["shared-member"] * len(lines)


def test_line_ends_before_a_record_in_its_member() -> None:
    assert line_of(gz(b"\r\n" + response())).not_rewritable_reason == "not-exact"


def test_fillers_and_padding() -> None:  # 7, 8, 9
    lines, scan = scanned(gz(b"") + gz(response()) + gz(b"\r\n") + gz(response(number=2)))
    assert [line.not_rewritable_reason for line in lines] == ["", ""] and scan.damage == -1
    for data in (gz(response()), response()):
        lines, scan = scanned(data + b"\0" * 9)
        assert scan.damage == scan.problems[0][0] == len(data)


def test_damage_is_named_and_the_rest_is_read() -> None:  # 3, 4, 5, 10, 12
    sound, other = gz(response()), gz(response(number=2))
    bad = bytearray(other)
    bad[-6] ^= 1
    long = gz(response(b"x" * 100))
    for data in (sound + other[:-3], sound + bytes(bad) + sound, sound + response(), sound + b"x",
                 sound + gz(response()[:50]) + gz(response()[50:]), long + other[:20]):  # fmt: skip
        lines, scan = scanned(data)
        assert scan.damage == scan.problems[0][0] > 0
        assert lines[0].not_original_reason == "" and all(
            line.offset != len(sound) for line in lines[1:]
        )


def test_a_growing_file_is_not_read(tmp_path: Path) -> None:  # 21
    path = tmp_path / "a.warc.gz.open"
    path.write_bytes(gz(response()))
    scan = Scan(str(path), 1, ManifestOptions())
    assert [line for batch in scan.lines() for line in batch] == [] and scan.changed
    scan.close()


@pytest.mark.parametrize("method", [b"POST", b"HEAD", b"OPTIONS", b"PUT"])
@pytest.mark.parametrize("behind", [True, False])
def test_answers_to_other_methods_stay(method: bytes, behind: bool) -> None:  # 55
    asked = gz(request(method, number=5, Concurrent_To=record_id(1)))
    answered, other = gz(response()), gz(response(number=3))
    lines, _ = scanned(answered + other + asked if behind else asked + answered + other)
    assert [(line.not_rewritable_reason, line.not_original_reason) for line in lines] == [
        ("method", "method"),
        ("", ""),
    ]


def test_records_of_other_kinds_are_counted_only() -> None:  # 30, 31, 35
    kinds = (b"warcinfo", b"metadata", b"resource", b"conversion", b"continuation", b"nonsense")
    others = b"".join(gz(record(kind, b"x", number=9)) for kind in kinds)
    lines, scan = scanned(others + gz(request()) + gz(revisit()) + gz(response()))
    assert len(lines) == 1
    assert scan.records == {
        "warcinfo": 1, "metadata": 1, "resource": 1, "conversion": 1, "continuation": 1,
        "unknown": 1, "request": 1, "revisit": 1, "response": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("head", "coding"),
    [
        (HTTP, b"\n"),
        (CHUNKED_HTTP, b"chunked\n"),
        (b"HTTP/1.1 200 OK\r\nContent-encoding : GZip \r\n\r\n", b"\ngzip"),
        (b"HTTP/1.1 200 OK\nContent-Encoding:gzip\nTransfer-Encoding:\tChunked\n\n",
         b"chunked\ngzip"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Encoding: br\r\n\r\n",
         b"\ngzip,br"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip,\r\n br\r\n\r\n", b"\ngzip, br"),
        (b"HTTP/1.1 200 OK\r\nX-Content-Encoding: gzip\r\n\r\n", b"\n"),
    ],
)  # fmt: skip
def test_codings_as_the_header_has_them(head: bytes, coding: bytes) -> None:  # 44 to 47
    assert http.codings(head) == coding
    assert line_of(response(b"5\r\nhello\r\n0\r\n\r\n", head=head)).coding == coding


@pytest.mark.parametrize(
    ("fields", "content_type"),
    [
        (b"Content-Type: text/html", b"text/html"),
        (b"content-type :\tText/HTML ; charset=UTF-8 ", b"text/html;charset=utf-8"),
        (b"A: b\r\nContent-Type: text/html;\r\n charset=x\r\nC: d", b"text/html;charset=x"),
        (b"Content-Type: a/b\r\nX: y\r\nCONTENT-TYPE: c/d", b"a/b,c/d"),
        (b'Content-Type: a/b; c="d\xff\x01"', b'a/b;c="d\xff\x01"'),
        (b"X-Content-Type: a/b\r\nContent-Types: c/d", b""),
        (b"Content-Type:", b""),
    ],
)
def test_the_type_as_the_header_has_it(fields: bytes, content_type: bytes) -> None:  # 48
    head = b"HTTP/1.1 200 OK\r\n" + fields + b"\r\n\r\n"
    assert content_types(head) == content_type
    assert line_of(response(BODY, head=head)).content_type == content_type
    chunks = chunked(BODY)
    stated = sha1(BODY)
    head = head[:-2] + b"Transfer-Encoding: chunked\r\n\r\n"
    assert line_of(response(chunks, head=head, Payload_Digest=stated)).content_type == content_type


def test_which_bytes_a_digest_covers() -> None:
    stored, entity = sha1(BODY), sha1(b"hello")
    for stated, covers, raw in (
        (stored, Covers.STORED, BODY), (entity, Covers.ENTITY, b"hello"),
    ):  # fmt: skip
        data = response(BODY, head=CHUNKED_HTTP, Payload_Digest=stated)
        for options in (
            ManifestOptions(),
            ManifestOptions("sha256"),
            ManifestOptions("md5"),
            ManifestOptions("sha512"),
        ):
            line = line_of(data, options)
            assert (line.covers, line.digest, line.not_original_reason) == (covers, stated, "")
            assert line.payload == hashlib.new(options.algorithm, raw).digest()
            assert line.strong == blake3(BODY).digest()
            forced = line_of(data, options._replace(force=True))
            assert forced.payload == hashlib.new(options.algorithm, BODY).digest()
            assert forced.covers == covers
    line = line_of(response(Payload_Digest=sha1(b"other")))
    assert (line.covers, line.payload) == (Covers.UNKNOWN, hashlib.sha1(b"payload").digest())


@pytest.mark.parametrize("spelled", ["hex", "HEX", "base32", "sha256"])
def test_digests_in_any_spelling_are_verified(spelled: str) -> None:
    told = hashlib.sha1(b"payload").hexdigest()
    text = {
        "hex": f"sha1:{told}", "HEX": f"SHA-1:{told.upper()}",
        "base32": sha1(b"payload").decode().lower(),
        "sha256": f"sha256:{hashlib.sha256(b'payload').hexdigest()}",
    }[spelled]  # fmt: skip
    line = line_of(response(Payload_Digest=text.encode()))
    assert (line.digest, line.not_original_reason) == (text.encode(), "")
    assert line.payload == hashlib.sha1(b"payload").digest()


def test_skip_empty() -> None:
    data = gz(response(b"")) + gz(response(number=2))
    lines, scan = scanned(data, ManifestOptions(skip_empty=True))
    assert len(lines) == 1 and scan.records["response"] == 2
    assert len(scanned(data)[0]) == 2


def arc(*documents: tuple[bytes, bytes]) -> bytes:
    about = b"1 0 x\nURL IP-address Archive-date Content-type Archive-length\n"
    data = b"filedesc://a.arc 0.0.0.0 20000101000000 text/plain %d\n" % len(about) + about + b"\n"
    for url, document in documents:
        data += b"%b 1.2.3.4 20000101000000 text/html %d\n%b\n" % (url, len(document), document)
    return data


def test_arc_documents_have_lines_and_never_change() -> None:  # 117
    lines, scan = scanned(arc((URL, HTTP + b"payload"), (b"dns:a.b", b"x"), (URL, HTTP)))
    assert [line.not_rewritable_reason for line in lines] == ["arc"] * 3
    assert [line.not_original_reason for line in lines] == ["no-digest", "not-http", "empty"]
    assert (lines[0].url, lines[0].date, lines[0].length) == (URL, b"2000-01-01T00:00:00Z", 7)
    assert lines[0].strong == blake3(b"payload").digest()
    assert scan.records["arc-document"] == 3


@pytest.mark.parametrize("packed", [True, False])
def test_a_long_response_is_streamed(packed: bool) -> None:  # 18
    body = bytes(range(256)) * (SHORT // 256 + 5)
    for head, stored in ((HTTP, body), (CHUNKED_HTTP, chunked(body, body[:99]))):
        data = response(stored, head=head)
        data += response(number=2) if not packed else b""
        packed_data = gz(data, 1) + gz(response(number=2)) if packed else data
        lines, scan = scanned(packed_data)
        assert (lines[0].length, lines[0].not_original_reason, lines[0].not_rewritable_reason) == (
            len(stored),
            "",
            "",
        )
        assert lines[0].strong == blake3(stored).digest()
        assert lines[0].stored == lines[1].offset and not scan.problems


bodies = st.binary(min_size=1, max_size=80) | st.just(BODY) | st.just(gz(b"x" * 99))
heads = st.sampled_from([HTTP, CHUNKED_HTTP, REDIRECT])


@RELAXED
@given(st.lists(st.tuples(heads, bodies), max_size=8), st.booleans())
def test_other_readers_find_the_same_records(made: list[tuple[bytes, bytes]], packed: bool) -> None:
    pack = gz if packed else bytes
    data = [pack(response(body, head=head, number=n)) for n, (head, body) in enumerate(made)]
    lines, _ = scanned(b"".join(data))
    ours = [(line.offset, line.record_id, line.payload.hex(), line.length) for line in lines]
    with open(PATH, "rb") as stream:
        fast = [
            (each.stream_pos, each.record_id[1:-1].encode(), _sha1_of(each.reader.read()))
            for each in FastIterator(stream, record_types=WarcRecordType.response)
        ]
    assert fast == [line[:3] for line in ours]
    with open(PATH, "rb") as stream:
        found = WarcioIterator(stream)
        warcio = []
        for each in found:
            body = each.raw_stream.read()
            warcio.append((found.get_record_offset(), hashlib.sha1(body).hexdigest(), len(body)))
    assert warcio == [(offset, digest, length) for offset, _, digest, length in ours]


def _sha1_of(body: bytes) -> str:
    return hashlib.sha1(body).hexdigest()


@pytest.mark.parametrize("path", sorted(DATA.glob("*arc*")), ids=lambda path: path.name)
def test_any_file_can_be_scanned(path: Path) -> None:
    scan = Scan(str(path), 1, ManifestOptions())
    lines = [line for batch in scan.lines() for line in batch]
    scan.close()
    assert len(lines) == scan.records["response"] + scan.records["arc-document"]
    assert scan.content_hash == blake3(path.read_bytes()).hexdigest()
    assert [line.offset for line in lines] == sorted(line.offset for line in lines)


def test_every_reason_is_explained() -> None:
    package = Path(record_lines.__file__).parents[1]
    elsewhere = [Path(one.__file__) for one in (record_facts, refusal_reasons)]
    paths = [*package.glob("manifest/*.py"), *elsewhere]
    text = "".join(path.read_text() for path in paths)
    for reason in REASONS:
        assert text.count(f'"{reason}"') > 1, f"nothing says {reason}"
    page = (ROOT / "docs" / "stages.md").read_text().split("\n## Manifest\n")[1]
    rows = re.findall(r"^\| `([a-z-]+)` \| (.*) \|$", page.split("\n##")[0], re.MULTILINE)
    assert dict(rows) == REASONS
