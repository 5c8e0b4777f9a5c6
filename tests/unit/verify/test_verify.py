"""`bin/verify` over a collection: every defect is found, and correct records pass."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tracemalloc
import zlib
from base64 import b32encode
from collections.abc import Callable
from hashlib import md5, sha256
from hashlib import sha1 as hash1
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupindex.verify.collection import Collection
from dedupindex.verify.file_bytes import GzipMembers, opened
from dedupindex.verify.issues import BROKEN, DAMAGE, LOSS, REASONS, REMARK
from tests.support.budgets import examples
from tests.support.commands import typed
from tests.support.paths import ROOT
from tests.support.verifying import BODY, DAY, HOST, asked, compared, copy_of, page, write
from tests.support.warc_cases import (
    CHUNKED_HTTP,
    DATA,
    HTTP,
    IDENTICAL,
    NOT_MODIFIED,
    chunked,
    gz,
    record,
    record_id,
    request,
    sha1,
)
from tests.support.zstd_files import trained, with_window, zst

IDENTICAL_11 = IDENTICAL.replace(b"1.0", b"1.1")
NEW = b"WARC/1.1"


def found(tmp_path: Path, *records: bytes, plain: bool = False) -> set[str]:
    """The reasons of the findings in an archive of these records."""
    name = "made.warc" if plain else "made.warc.gz"
    path = write(tmp_path / name, [*records], plain=plain)
    return {finding.reason for finding in Collection([path]).findings()}


def raw(tmp_path: Path, data: bytes, name: str = "made.warc.gz") -> set[str]:
    (tmp_path / name).write_bytes(data)
    return {finding.reason for finding in Collection([tmp_path / name]).findings()}


RIGHT: dict[str, list[bytes]] = {
    "recipe": [page(1), asked(1), copy_of(2, 1), asked(2)],
    "sub-second": [
        page(1, Date=b"2026-11-01T09:14:17.123456Z", version=NEW),
        copy_of(
            2, 1, Refers_To_Date=b"2026-11-01T09:14:17.123456Z", version=NEW, Profile=IDENTICAL_11
        ),
    ],
    "WARC/1.0 has no fractions": [
        page(1, Date=b"2026-11-01T09:14:17.25Z", version=NEW),
        copy_of(2, 1),
    ],
    "brackets of wget": [page(1, Target_URI=b"<" + HOST + b"1>"), copy_of(2, 1)],
    "chunked, digest of the stored body": [
        page(1, chunked(b"abc", b"def"), head=CHUNKED_HTTP),
        copy_of(2, 1, chunked(b"abc", b"def"), head=CHUNKED_HTTP),
    ],
    "chunked, digest of the entity": [
        page(1, chunked(b"abc"), head=CHUNKED_HTTP, Payload_Digest=sha1(b"abc")),
        copy_of(2, 1, b"abc", head=CHUNKED_HTTP),
    ],
    "several records name each other": [page(1), copy_of(2, 1), copy_of(3, 1), copy_of(4, 1)],
    "304": [
        page(1),
        record(
            b"revisit",
            b"HTTP/1.1 304 Not Modified\r\n\r\n",
            number=2,
            Profile=NOT_MODIFIED,
            Refers_To=record_id(1),
        ),
    ],
    "original without digest": [page(1, Payload_Digest=None), copy_of(2, 1)],
    "length that was wrong at capture": [
        page(1, head=b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"),
        copy_of(2, 1, head=b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"),
    ],
    "other types": [
        record(b"warcinfo", b"software: x\r\n", Target_URI=None, Content_Type=b"application/x"),
        record(b"metadata", b"a: b\r\n", number=2, Content_Type=b"application/warc-fields"),
        record(b"resource", b"", number=3, Content_Type=b"text/plain"),
        page(4, b"", head=b"HTTP/1.1 204 No Content\r\n\r\n"),
    ],
}


@pytest.mark.parametrize("plain", [False, True], ids=["gzip", "plain"])
@pytest.mark.parametrize("name", list(RIGHT))
def test_correct_archives_have_no_findings(name: str, plain: bool, tmp_path: Path) -> None:
    assert found(tmp_path, *RIGHT[name], plain=plain) == set()


def test_every_spelling_of_a_digest_is_checked(tmp_path: Path) -> None:
    def spellings(data: bytes) -> list[bytes]:
        hexed = hash1(data).hexdigest().encode()
        long = sha256(data)
        return [
            b"sha1:" + hexed,
            b"SHA-1:" + hexed.upper(),
            b"sha1:" + b32encode(hash1(data).digest()).lower(),
            b"md5:" + md5(data).hexdigest().encode(),
            b"sha-256:" + b32encode(long.digest()),
            b"sha256:" + b32encode(long.digest()).rstrip(b"="),
        ]

    right = [page(n, Payload_Digest=text) for n, text in enumerate(spellings(BODY), 1)]
    assert found(tmp_path, *right) == set()
    for number, text in enumerate(spellings(b"other"), 1):
        assert found(tmp_path, page(number, Payload_Digest=text)) == {"payload-digest"}


def test_revisits_as_crawlers_write_them_pass_with_remarks(tmp_path: Path) -> None:
    hexed = b"sha1:" + hash1(BODY).hexdigest().encode()
    warcprox = [page(1, Payload_Digest=hexed), copy_of(2, 1, Payload_Digest=hexed, Truncated=None)]
    assert found(tmp_path, *warcprox) == {"not-truncated"}
    wget = [
        page(1, Target_URI=b"<" + HOST + b"1>"),
        copy_of(2, 1, Target_URI=b"<" + HOST + b"2>"),
    ]
    assert found(tmp_path, *wget) == set()
    heritrix = [page(1), copy_of(2, 1, Refers_To=None, Block_Digest=None)]
    assert found(tmp_path, *heritrix) == {"no-refers-to"}
    jwarc_head = [page(1, version=NEW), copy_of(2, 1, version=NEW)]
    assert found(tmp_path, *jwarc_head) == {"profile-version"}
    for case in (warcprox, heritrix, jwarc_head):
        assert {REASONS[reason] for reason in found(tmp_path, *case)} == {REMARK}


Case = Callable[[Path], set[str]]


def records(*given: bytes) -> Case:
    return lambda tmp_path: found(tmp_path, *given)


def pair(**options: Any) -> Case:
    """A page and a revisit of it in which something is otherwise."""
    return records(page(1), copy_of(2, 1, **options))


def cut(tmp_path: Path) -> set[str]:
    return raw(tmp_path, gz(page(1)) + gz(page(2))[:-9])


def posted(number: int, **options: Any) -> bytes:
    return request(b"POST", number=number, Target_URI=HOST + b"1", Date=DAY % 1, **options)


def posted_elsewhere(tmp_path: Path) -> set[str]:
    """In files by themselves: the request, its answer, the revisit of that."""
    asking = write(tmp_path / "a.warc.gz", [posted(50, Concurrent_To=record_id(1))])
    answers = write(tmp_path / "b.warc.gz", [page(1)])
    made = write(tmp_path / "c.warc.gz", [copy_of(2, 1)])
    return {finding.reason for finding in Collection([made], [asking, answers]).findings()}


def other_payload(number: int, **options: Any) -> bytes:
    """Another page with the URL and the second of one."""
    same = {"Target_URI": HOST + b"%d" % number, "Date": DAY % number}
    return page(number + 60, b"another", **same, **options)


PART = HTTP.replace(b"200 OK", b"206 Partial Content")
revisit_of_other = copy_of(3, 9, BODY[::-1], Target_URI=HOST + b"1", Date=DAY % 1)
SERVED = HTTP.replace(b"\r\n\r\n", b"\r\nServer: b\r\n\r\n")  # another HTTP header
AT_2: dict[str, Any] = {"Target_URI": HOST + b"2", "Date": DAY % 2}
RANGED = HTTP.replace(b"OK\r\n", b"OK\r\ncontent-range: bytes 0-9/99\r\n", 1)


def rotten(number: int, **options: Any) -> bytes:
    """A page with one changed byte."""
    return page(number, **options).replace(b"<html>", b"<HTML>")


def rotten_elsewhere(tmp_path: Path) -> set[str]:
    """The page is not among what is checked, and nothing is said of it but by its revisit."""
    originals = write(tmp_path / "o" / "a.warc", [rotten(1)], plain=True)
    made = write(tmp_path / "n" / "b.warc.gz", [copy_of(2, 1)])
    found = {finding.reason for finding in Collection([made], [originals]).findings()}
    assert found == {"wrong-digest"}
    return found


def vanished(tmp_path: Path) -> set[str]:
    """A file that is there when the run begins, and gone when its turn comes."""
    path = write(tmp_path / "made.warc.gz", [page(1)])
    collection = Collection([path])
    path.rename(tmp_path / "elsewhere")
    return {finding.reason for finding in collection.findings()}


ALONE: dict[str, list[Case]] = {
    "unreadable": [
        lambda path: raw(path, zst(b"text"), "text.zst"),
        lambda path: raw(path, b"\0\0"),
        lambda path: raw(path, gz(b"text"), "some.txt.gz"),
        vanished,
    ],
    "damaged-member": [
        cut,
        lambda path: raw(path, gz(page(1))[:40]),
        lambda path: raw(path, b"\x28\xb5\x2f\xfd zstd"),
    ],
    "no-dictionary": [lambda path: raw(path, zst(page(1), trained()))],
    "no-content-size": [lambda path: raw(path, zst(page(1), size=False))],
    "no-checksum": [lambda path: raw(path, zst(page(1), checksum=False))],
    "large-window": [lambda path: raw(path, with_window(page(1), 24))],
    "not-a-member": [
        lambda path: raw(path, gz(page(1)) + b"\0" * 512),
        lambda path: raw(path, gz(page(1)) + page(2)),
        lambda path: raw(path, zst(page(1)) + gz(page(2))),
    ],
    "misframed": [
        records(page(1, Content_Length=b"99999")),
        records(page(1, Content_Length=b"3")),
        lambda path: found(path, page(1, Content_Length=b"3"), plain=True),
        lambda path: found(path, page(1, end=b"\r\n") + b"garbage", plain=True),
        lambda path: raw(path, gz(page(1)[:-300]) + gz(page(1)[-300:])),
    ],
    "bad-length": [
        records(page(1, Content_Length=None)),
        records(page(1, Content_Length=b"-1")),
        records(page(1).replace(b"Content-Length", b"Content-Length: 5\r\nContent-Length")),
    ],
    "bad-header": [
        records(b"WARC/x\r\nContent-Length: 0\r\n\r\n\r\n\r\n"),
        lambda path: raw(path, gz(page(1)) + gz(b"no record")),
        records(b"WARC/1.0\r\nX: " + b"y" * (1 << 21) + b"\r\n\r\n"),
    ],
    "block-digest": [records(page(1, Block_Digest=sha1(b"other"))), pair(Block_Digest=sha1(b"x"))],
    "payload-digest": [records(page(1, Payload_Digest=sha1(b"other")))],
    "empty-block": [
        records(page(1, b"", head=b"", Payload_Digest=sha1(b"something"), Block_Digest=None)),
        records(page(1, b"", head=b"")),
        records(record(b"request")),
        records(record(b"resource", Content_Type=b"image/png", Payload_Digest=sha1(b"x"))),
    ],
    "no-target-uri": [records(page(1, Target_URI=b"")), records(page(1, Target_URI=b"<>"))],
    "bad-date": [
        records(page(1, Date=date))
        for date in (None, b"2016-01", b"2016-13-01T00:00:00Z", b"2016-01-01T00:00:00+00:00")
    ],
    "runs-on": [
        lambda path: found(path, page(1, end=b"") + page(2), plain=True),
        lambda path: raw(path, gz(page(1, end=b"") + page(2))),
    ],
    "no-record-id": [records(page(1, Record_ID=None))],
    "duplicate-record-id": [records(page(1), page(1))],
    "repeated-field": [records(page(1).replace(b"WARC-Date", b"WARC-Date: x\r\nWARC-Date"))],
    "unknown-version": [records(page(1, version=b"WARC/3.0"))],
    "not-exact": [
        records(page(1, eol=b"\n")),
        records(page(1, end=b"\r\n\r\n\r\n")),
        records(page(1) + page(2)),
        lambda path: raw(path, gz(page(1)) + gz(b"") + gz(page(2))),
    ],
    "digest-not-checked": [
        records(page(1, Payload_Digest=b"xxh3:0123456789abcdef")),
        records(page(1, Block_Digest=b"sha1:short")),
    ],
    "empty-block-digest": [pair(Block_Digest=sha1(b""))],
    "no-profile": [pair(Profile=None)],
    "unknown-profile": [pair(Profile=b"http://example.org/profile")],
    "profile-version": [
        pair(Profile=IDENTICAL_11),
        pair(Profile=IDENTICAL.replace(b"identical", b"uri-agnostic-identical")),
    ],
    "no-payload-digest": [pair(Payload_Digest=None)],
    "empty-digest": [pair(Payload_Digest=sha1(b""))],
    "cut-digest": [pair(Payload_Digest=b"sha1:" + b"A" * 32)],
    "no-refers-to-uri": [pair(Refers_To_Target_URI=None), pair(Refers_To_Target_URI=b"")],
    "no-refers-to-date": [pair(Refers_To_Date=None), pair(Refers_To_Date=b"20261101091417")],
    "no-refers-to": [pair(Refers_To=None)],
    "refers-to-brackets": [pair(Refers_To_Target_URI=b"<" + HOST + b"1>")],
    "not-truncated": [pair(Truncated=None)],
    "no-http-headers": [pair(block=b"")],
    "http-headers": [
        pair(block=HTTP.replace(b"\r\n", b"\n")),
        pair(block=HTTP[:-2]),
        pair(block=b"what is this?"),
    ],
    "body-kept": [pair(block=HTTP + BODY)],
    "redirect": [
        records(
            page(1, head=b"HTTP/1.1 301 Moved\r\n\r\n"),
            copy_of(2, 1, block=b"HTTP/1.1 301 Moved\r\n\r\n"),
        )
    ],
    "self-reference": [
        pair(
            Refers_To=record_id(2), Refers_To_Target_URI=HOST + b"2", Refers_To_Date=DAY % 2
        ),  # warccollres -p
        records(copy_of(2, 2)),
        records(copy_of(2, 2, Refers_To=record_id(9))),  # jwarc with a CDX server: another id
        records(copy_of(2, 2, Refers_To=None)),
    ],
    "chained": [records(page(1), copy_of(2, 1), copy_of(3, 2))],
    "dangling": [
        records(copy_of(2, 1)),
        records(page(1, b"another"), copy_of(3, 2)),
        records(copy_of(2, 1, Refers_To_Target_URI=None, Refers_To_Date=None, Refers_To=None)),
    ],
    "wrong-date": [pair(Refers_To_Date=b"2020-01-01T00:00:00Z")],
    "misdirected": [
        pair(Refers_To_Target_URI=b"http://example.com/elsewhere"),
        pair(Refers_To_Target_URI=b"http://example.com/elsewhere", Refers_To=None),
    ],
    "wrong-record-id": [pair(Refers_To=record_id(77))],
    "wrong-digest": [
        records(page(1, b"another"), copy_of(2, 1)),
        records(page(1, b"another", Payload_Digest=None), copy_of(2, 1)),
        records(rotten(1), copy_of(2, 1)),
        records(rotten(1, Block_Digest=None), copy_of(2, 1)),
        records(rotten(1, Payload_Digest=b"xxh3:12"), copy_of(2, 1, Payload_Digest=b"xxh3:12")),
        rotten_elsewhere,
    ],
    "digest-spelling": [
        pair(Payload_Digest=b"sha1:" + hash1(BODY).hexdigest().encode()),
        pair(Payload_Digest=b"md5:" + md5(BODY).hexdigest().encode()),
    ],
    "later-original": [
        records(copy_of(2, 3), page(3)),
        records(
            copy_of(
                2,
                1,
                Date=b"2026-11-01T09:14:17.1Z",
                Refers_To_Date=b"2026-11-01T09:14:17.25Z",
            ),
            page(1, Date=b"2026-11-01T09:14:17.25Z"),
        ),
    ],
    "date-spelling": [
        records(
            page(1, Date=b"2026-11-01T09:14:17.25Z"),
            copy_of(2, 1, version=NEW, Profile=IDENTICAL_11),
        ),
        records(page(1), copy_of(2, 1, Refers_To_Date=b"2026-11-01T09:14:17.25Z")),
    ],
    "coding": [
        pair(block=b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n"),
        pair(block=CHUNKED_HTTP),
    ],
    "claimed-length": [pair(block=b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")],
    "status": [pair(block=b"HTTP/1.1 404 Not Found\r\n\r\n")],
    "unusable-original": [
        records(page(1, Truncated=b"time"), copy_of(2, 1)),
        records(page(1, b"", Payload_Digest=sha1(BODY)), copy_of(2, 1)),
        records(page(1, Segment_Number=b"1"), copy_of(2, 1)),
        records(
            page(1, chunked(b"abc"), head=CHUNKED_HTTP, Payload_Digest=None),
            copy_of(2, 1, b"abc", head=CHUNKED_HTTP),
        ),
        records(page(1), posted(50, Concurrent_To=record_id(1)), copy_of(2, 1)),
        records(copy_of(2, 1), page(1, Concurrent_To=record_id(50)), posted(50)),
        posted_elsewhere,
    ],
    "ambiguous-original": [
        records(page(1), other_payload(1), copy_of(2, 1)),
        records(other_payload(1, Payload_Digest=None), copy_of(2, 1), page(1)),
        records(other_payload(1), copy_of(2, 1), page(1, Payload_Digest=None)),
        records(page(1), copy_of(2, 1), revisit_of_other),
    ],
    "same-second": [
        records(page(1), copy_of(2, 1, Target_URI=HOST + b"1", Date=DAY % 1, block=SERVED)),
        records(page(1), copy_of(2, 1), copy_of(3, 1, **AT_2, block=SERVED)),
        records(page(1), copy_of(2, 1), page(3, **AT_2, head=SERVED)),
        records(page(1), copy_of(2, 1), page(3, b"another", **AT_2)),
    ],
    "partial": [
        records(page(1, head=PART), copy_of(2, 1, head=PART)),
        records(page(1, head=PART), copy_of(2, 1)),
        records(page(1, head=RANGED), copy_of(2, 1)),
        records(page(1, head=RANGED), copy_of(2, 1, head=RANGED)),
        records(page(1), copy_of(2, 1, head=RANGED)),
        records(page(1, head=RANGED, Payload_Digest=None), copy_of(2, 1)),
    ],
}


@pytest.mark.parametrize("reason", list(ALONE))
def test_it_is_found(reason: str, tmp_path: Path) -> None:
    for number, case in enumerate(ALONE[reason]):
        (tmp_path / str(number)).mkdir()
        assert reason in case(tmp_path / str(number)), number


@pytest.mark.parametrize("pack", [gz, bytes, zst])
def test_an_original_behind_damage_is_unusable(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    """Unless another file has it, too, where it can be read."""
    suffix = {gz: ".gz", zst: ".zst"}.get(pack, "")
    broken = bytearray(pack(page(8)))
    broken[len(broken) // 2 if suffix else 0] ^= 0x55
    bad = tmp_path / f"bad.warc{suffix}"
    bad.write_bytes(pack(page(1)) + bytes(broken) + pack(page(2)))
    made = write(tmp_path / "made.warc.gz", [copy_of(3, 2), copy_of(4, 1)])
    unusable = [one for one in Collection([bad, made]).findings() if one.level != DAMAGE]
    assert [(one.reason, one.offset) for one in unusable] == [("unusable-original", 0)]
    assert "behind damage in its file" in unusable[0].message and str(bad) in unusable[0].message
    whole = write(tmp_path / "whole.warc.gz", [page(2)])
    reasons = {one.reason for one in Collection([bad, made], [whole]).findings()}
    assert "unusable-original" not in reasons


def test_what_revisits_of_wget_lack_is_said(tmp_path: Path) -> None:
    """They state a record id only; the record is elsewhere, and perhaps the payload is here."""
    only = {"Refers_To_Target_URI": None, "Refers_To_Date": None}
    revisits = [copy_of(2, 9, **only), copy_of(3, 9, **only, Refers_To=None)]
    elsewhere = copy_of(4, 9, **only, Payload_Digest=sha1(b"another"))
    made = write(tmp_path / "made.warc.gz", [page(1), *revisits, elsewhere])
    said = [
        finding.message
        for finding in Collection([made]).findings()
        if finding.reason in ("misdirected", "dangling")
    ]
    place = f"but the payload is in {made} at 0"
    named = "the record that it names is not in the places given"
    assert said == [
        f"it states no URL and date, and {named}, {place}",
        f"it states no URL and date, and names no record, {place}",
        f"what it refers to is nowhere in the places given: {record_id(9)[1:-1].decode()}",
    ]


def test_blocks_emptied_by_a_peer_are_a_loss(tmp_path: Path) -> None:
    """warchaeology --lenient: every block is empty, every digest as it was."""
    kept = {"Block_Digest": sha1(HTTP + BODY), "Payload_Digest": sha1(BODY)}
    reasons = found(tmp_path, page(1, b"", head=b"", **kept))
    assert {"empty-block", "block-digest"} <= reasons
    assert REASONS["empty-block"] == REASONS["block-digest"] == LOSS


def test_one_right_digest_proves_a_payload(tmp_path: Path) -> None:
    """Replay takes no header from an original, and a digest of the payload is enough."""
    header = page(1).replace(b"text/html; charset", b"text/htmx; charset")
    assert header != page(1)
    assert found(tmp_path, header, copy_of(2, 1)) == {"block-digest"}
    without = page(1, Payload_Digest=None, Block_Digest=sha1(b"x"))
    assert found(tmp_path, without, copy_of(2, 1)) == {"block-digest"}


def test_a_full_record_of_the_same_second_makes_no_self_reference(tmp_path: Path) -> None:
    twin = page(1).replace(record_id(1), record_id(9))
    same = copy_of(1, 1, Refers_To=record_id(9))
    assert found(tmp_path, twin, same) == set()


def test_equal_captures_of_one_second_may_be_shown_for_each_other(tmp_path: Path) -> None:
    equal = [page(1), copy_of(2, 1), copy_of(3, 1, **AT_2), page(4, **AT_2)]
    assert found(tmp_path, *equal) == set()


def test_originals_that_others_find_as_well_pass(tmp_path: Path) -> None:
    """An answer to GET, one to POST under the same URL, and one payload twice in a second."""
    got = request(number=50, Target_URI=HOST + b"1", Concurrent_To=record_id(1))
    assert found(tmp_path, page(1), got, copy_of(2, 1)) == set()
    of_post = [page(1), posted(50, Concurrent_To=record_id(1)), posted(51)]
    again = copy_of(2, 1, Target_URI=HOST + b"1")
    assert found(tmp_path, *of_post, again) == set()
    twice = page(61, Target_URI=HOST + b"1", Date=DAY % 1)
    assert found(tmp_path, page(1), twice, copy_of(2, 1)) == set()
    unstated = page(61, Target_URI=HOST + b"1", Date=DAY % 1, Payload_Digest=None)
    assert found(tmp_path, page(1), unstated, copy_of(2, 1)) == set()


@pytest.mark.parametrize("stated", [0, 73, 74])  # many are too small
def test_originals_may_be_elsewhere_and_in_arc_files(stated: int, tmp_path: Path) -> None:
    document = HTTP + BODY
    arc = (
        b"filedesc://x.arc 0.0.0.0 20261101000000 text/plain %d\n1 0 Some Archive\n"
        b"URL IP-address Archive-date Content-type Archive-length\n\n"
        % stated
        + b"http://example.com/1 1.2.3.4 20261101091417 text/html %d\n" % len(document)
        + document
        + b"\n"
    )
    places = tmp_path / "places"
    places.mkdir()
    (places / "x.arc").write_bytes(arc)
    new = write(tmp_path / "new.warc.gz", [copy_of(2, 1)])
    assert [f.reason for f in Collection([new]).findings()] == ["dangling"]
    assert list(Collection([new], [places]).findings()) == []
    other = write(tmp_path / "other.warc.gz", [copy_of(2, 1, b"otherwise")])
    assert [f.reason for f in Collection([other], [places]).findings()] == ["wrong-digest"]


def test_records_after_damage_are_read(tmp_path: Path) -> None:
    hurt = bytearray(gz(page(2)))
    hurt[60] ^= 1
    path = tmp_path / "made.warc.gz"
    path.write_bytes(gz(page(1)) + bytes(hurt) + gz(page(3)) + gz(copy_of(4, 3)))
    collection = Collection([path])
    finding, unusable = collection.findings()
    assert (finding.reason, unusable.reason) == ("damaged-member", "unusable-original")
    assert finding.offset == len(gz(page(1)))
    assert (collection.records, collection.revisits) == (3, 1)


def test_an_archive_in_a_damaged_payload_is_not_taken_for_records(tmp_path: Path) -> None:
    inner = gz(page(7)) + gz(page(8))
    stored = bytearray(gz(page(2, inner, head=HTTP), level=0))
    stored[-5] ^= 1  # the checksum of the member that holds it
    path = tmp_path / "made.warc.gz"
    path.write_bytes(gz(page(1)) + bytes(stored) + gz(page(3)))
    collection = Collection([path])
    assert [finding.reason for finding in collection.findings()] == ["damaged-member"]
    assert collection.records == 2


def longer(member: bytes, extra: bytes = b"sl\x08\0\1\2\3\4\5\6\7\0", name: bytes = b"") -> bytes:
    """A member with an extra field, as wget writes all of its, and perhaps with a name."""
    flags = bytes([4 | 8 * bool(name)])
    size = len(extra).to_bytes(2, "little")
    return member[:3] + flags + member[4:10] + size + extra + name + member[10:]


@pytest.mark.parametrize("name", [b"", b"a name\0"])
def test_records_after_damage_are_read_with_any_gzip_header(name: bytes, tmp_path: Path) -> None:
    hurt = bytearray(longer(gz(page(2))))
    hurt[90] ^= 1
    ahead, behind = longer(gz(page(1))), [longer(gz(page(n)), name=name) for n in (3, 4)]
    path = tmp_path / "made.warc.gz"
    path.write_bytes(ahead + hurt + behind[0] + longer(gz(copy_of(5, 3))) + behind[1])
    collection = Collection([path])
    reasons = [finding.reason for finding in collection.findings()]
    assert reasons == ["damaged-member", "unusable-original"]  # the original is behind it, too
    assert (collection.records, collection.revisits) == (4, 1)
    old = write(tmp_path / "old.warc.gz", [page(1), page(2), page(3), page(5), page(6)])
    found = [finding.reason for finding in compared(old, path)]  # what is behind it is compared
    assert found.count("damaged-member") == 1 and "record-missing" in found


def test_a_gzip_header_that_jumps_is_no_proof_of_a_beginning(tmp_path: Path) -> None:
    """Out of a payload onto the data of the next member; and from one stored block to the next."""
    path = tmp_path / "made.warc.gz"
    fake, inner, after = b"\x1f\x8b\x08\x04" + bytes(6), gz(page(7))[10:], gz(page(3))

    def made(size: int, rest: bytes) -> bytes:
        payload = bytes(30_000) + fake + size.to_bytes(2, "little") + rest
        return gz(page(1)) + gz(page(2, payload, head=HTTP), level=0) + after

    for rest, onto in ((b"", after[10:]), (bytes(58_000) + inner + bytes(20_000), inner)):
        whole = made(0, rest)
        offset = whole.index(fake)
        whole = made(whole.rindex(onto) - offset - 12, rest)
        path.write_bytes(whole)
        assert zlib.decompressobj(31).decompress(whole[offset:]).startswith(b"WARC/")
        with opened(path) as file:
            assert GzipMembers(file).certain(offset) is False
            assert GzipMembers(file).certain(file.size - len(after))


def test_real_archives_have_known_findings() -> None:
    assert list(Collection([DATA / "warcfile.warc.gz"]).findings()) == []
    reasons = [finding.reason for finding in Collection([DATA / "example.warc.gz"]).findings()]
    assert sorted(reasons) == ["no-refers-to", "not-truncated", "profile-version"]


ODD = [
    b"",
    b"\x1f\x8b",
    b"WARC/1.0",
    b"WARC/1.0\r\n\r\n",
    b"\r\n" * 5000,
    b"filedesc:",
    gz(b"") * 3 + gz(page(1)),
    gz(b"\r\n\r\n") + gz(page(1)),
    gz(page(1) + b"\r\n" * 5000),
    page(1) + gz(page(2)),
    b"WARC/1.0\r\n" + b"WARC-Date: x\r\n" * 60_000 + b"Content-Length: 0\r\n\r\n\r\n\r\n",
    record(b"response", HTTP + b"\n" * (3 << 20)),
    record(b"response", b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 60_000 + b"\r\n"),
]


@settings(max_examples=examples(150))
@given(st.sampled_from([*ODD, *map(gz, ODD[6:]), gz(page(1)) + gz(copy_of(2, 1))]), st.data())
def test_nothing_makes_it_crash(data: bytes, choice: st.DataObject) -> None:
    at = choice.draw(st.integers(0, len(data)))
    cut = choice.draw(st.integers(0, 20))
    data = data[:at] + choice.draw(st.binary(max_size=20)) + data[at + cut :]
    with TemporaryDirectory() as folder:
        path, same = Path(folder, "made.warc.gz"), Path(folder, "same.warc.gz")
        path.write_bytes(data)
        same.write_bytes(data)
        assert all(finding.level for finding in Collection([path]).findings())
        assert compared(path, same) == []
        same.write_bytes(data[: at // 2] + gz(copy_of(1, 2)) + data[at // 2 + cut :])
        assert compared(path, same) or path.read_bytes() == same.read_bytes()


def test_parallel_reading_has_the_same_findings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 9):
        write(tmp_path / f"{number}.warc.gz", [page(number), copy_of(number + 10, number % 5 + 5)])
    alone = list(Collection([tmp_path]).findings())
    monkeypatch.setattr("dedupindex.verify.collection._WORTH_A_PROCESS", 1)
    assert list(Collection([tmp_path]).findings()) == alone
    assert alone


def test_a_record_larger_than_memory_and_a_bomb_take_little(tmp_path: Path) -> None:
    body = bytes(96 << 20)
    path = write(tmp_path / "made.warc.gz", [page(1, body), copy_of(2, 1, body)])
    del body
    tracemalloc.start()
    assert list(Collection([path]).findings()) == []
    assert tracemalloc.get_traced_memory()[1] < 12 << 20
    tracemalloc.stop()


def test_levels_and_exit_statuses_of_the_command(tmp_path: Path) -> None:
    sound = write(tmp_path / "sound.warc.gz", [page(1), copy_of(2, 1, Truncated=None)])
    page_, talk = typed("verify", "--remarks", sound)
    assert page_.split("\t")[:2] == ["remark", "not-truncated"]
    assert ": 1 remark; " in talk and "100.0 %  remark  not-truncated\n" in talk
    assert "--originals" not in talk
    lost = write(tmp_path / "lost.warc.gz", [copy_of(2, 1)])
    lines, _ = typed("verify", lost, "--json", status=8)
    finding, totals = map(json.loads, lines.splitlines())
    assert (finding["level"], finding["reason"], finding["offset"]) == (LOSS, "dangling", 0)
    assert totals == {"files": 1, "records": 1, "revisits": 1, "findings": {"dangling": 1}}
    hint = "name originals that are elsewhere with --originals"
    assert typed("verify", lost, status=8)[1].startswith(hint)  # before thousands of lines
    assert typed("verify", lost, status=8)[1].count(hint) == 1
    many = write(tmp_path / "many.warc.gz", [copy_of(number, 1) for number in range(2, 30)])
    assert typed("verify", many, status=8)[1].count(hint) == 2  # and after them
    further = typed("verify", many, "--originals", lost, status=8)[1]
    assert hint not in further and further.startswith("originals may be in further places: --or")
    many.unlink()
    typed("verify", lost, "--originals", sound)
    (tmp_path / "cut.warc.gz").write_bytes(gz(page(1))[:-3])
    typed("verify", tmp_path, status=7)
    write(tmp_path / "more.warc.gz", [copy_of(8, 7)])
    typed("verify", tmp_path, status=8)  # something is lost, too
    assert "does not exist" in typed("verify", tmp_path / "none", status=4)[1]


def test_remarks_are_counted_and_do_not_hide_findings(tmp_path: Path) -> None:
    """Warcprox leaves WARC-Truncated out of each revisit: 1,284 lines around one that matters."""
    untruncated = [copy_of(number, 1, Truncated=None) for number in range(2, 20)]
    path = write(tmp_path / "a.warc.gz", [page(1), *untruncated, copy_of(25, 24, BODY[::-1])])
    lines, talk = typed("verify", path, status=8)
    assert [line.split("\t")[:2] for line in lines.splitlines()] == [["loss", "dangling"]]
    assert "1 finding of loss, 18 remarks\n" in talk and "listed with --remarks" in talk
    assert re.search(r"\n +1 +5.3 %  loss    dangling\n +18 .* remark  not-truncated\n", talk)
    *findings, totals = map(json.loads, typed("verify", path, "--json", status=8)[0].splitlines())
    assert [finding["reason"] for finding in findings] == ["dangling"]
    assert totals["findings"] == {"dangling": 1, "not-truncated": 18}
    lines, talk = typed("verify", path, "--remarks", status=8)
    assert len(lines.splitlines()) == 19 and "--remarks" not in talk
    lines, _ = typed("verify", path, "--remarks", "--json", status=8)
    assert len(lines.splitlines()) == 20


def test_nothing_to_read_is_no_success(tmp_path: Path) -> None:
    folder, other = tmp_path / "in", tmp_path / "other"
    folder.mkdir()
    write(other / "a.warc.gz", [page(1)])
    (folder / "notes.txt").write_text("x")
    for words in ((folder,), ("--against", folder, folder), ("--against", folder, other)):
        assert "no WARC or ARC file was found" in typed("verify", *words, status=4)[1]
    hint = f"no file of PLACE has the name of one below {other}: "
    assert hint in typed("verify", "--against", other, folder, status=8)[1]
    (folder / "empty.warc.gz").touch()
    assert "it is empty" in typed("verify", folder, status=7)[0]


def test_reader_that_closes_the_pipe_early(tmp_path: Path) -> None:
    lost = write(tmp_path / "lost.warc.gz", [copy_of(number, 1) for number in range(2, 28)] * 50)
    command = [sys.executable, "-m", "dedupindex", "verify", str(lost)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as done:
        assert done.stdout is not None and done.stderr is not None and done.stdout.readline()
        done.stdout.close()
        hint = b"name originals that are elsewhere with --originals\n"
        assert done.stderr.read() == hint and done.wait() == 141


def test_names_may_be_any_bytes(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"\xff \n")
    write(folder / "a.warc.gz", [copy_of(2, 1), page(3)])
    write(tmp_path / "new" / os.fsdecode(b"\xff \n") / "a.warc.gz", [copy_of(2, 1), page(4)])
    lines, _ = typed("verify", folder, "--json", status=8)
    assert "\\\\udcff" in lines
    typed("verify", "--against", folder, folder)
    lines, _ = typed("verify", "--against", folder, tmp_path / "new" / folder.name, status=8)
    assert len(lines.splitlines()) == 2


def test_every_reason_is_documented_with_its_level() -> None:
    text = (ROOT / "docs" / "verify.md").read_text()
    table = dict(re.findall(r"^\| `([a-z-]+)` \| (\w+) \|", text, re.MULTILINE))
    assert table == REASONS
    assert set(REASONS.values()) == {DAMAGE, LOSS, BROKEN, REMARK}


def test_every_reason_is_used_and_tested() -> None:
    from tests.unit.verify.test_compare_files import CHANGED, FILES

    assert set(ALONE) | set(CHANGED) | FILES == set(REASONS)
    code = "".join(
        path.read_text()
        for path in (ROOT / "dedupindex" / "verify").glob("*.py")
        if path.name != "issues.py"
    )
    for reason in REASONS:
        assert f'"{reason}"' in code, reason
