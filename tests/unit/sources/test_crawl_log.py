"""Lines of crawl logs: dialects of duplicates, annotations, failures, cut ends."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupindex.capture import Capture, Evidence, Problem, RefersTo, Refusal, Revisit
from dedupindex.digest import Digest
from dedupindex.sources import SourceOptions
from tests.support.text_sources import BASE32, HEX, items, one, records

NAMES = {
    "RevisitRefersToURI": "http://b.com/first",
    "RevisitRefersToDate": "2025-01-02T03:04:05Z",
}
FIRST = RefersTo(b"http://b.com/first", b"2025-01-02T03:04:05Z")


def line(annotations: str = "-", extra: Any = None, **changed: str) -> str:
    """A line of a log, padded as Heritrix does."""
    fields = {
        "time": "2026-11-20T09:14:27.123Z",
        "status": "200",
        "size": "7951",
        "url": "http://a.com/",
        "hops": "-",
        "via": "-",
        "mime": "text/html",
        "thread": "#029",
        "began": "20261120091426950+364",
        "digest": f"sha1:{BASE32}",
        "tag": "-",
        **changed,
    }
    fields["status"], fields["size"] = f"{fields['status']:>5}", f"{fields['size']:>10}"
    return " ".join([*fields.values(), annotations, *([json.dumps(extra)] if extra else [])])


def test_a_line() -> None:
    capture = one("crawllog", line(extra={"warcFilename": "X.warc.gz", "warcFileOffset": 9912}))
    assert isinstance(capture, Capture)
    assert capture.url == b"http://a.com/"
    assert capture.date == b"2026-11-20T09:14:26Z"  # when the fetch began, not of the log
    assert capture.digest == Digest.parse(f"sha1:{BASE32}")
    assert (capture.status, capture.mime, capture.size) == (200, b"text/html", 7951)
    assert not capture.size_of_record
    assert (capture.container, capture.offset) == ("X.warc.gz", 9912)
    assert capture.evidence == Evidence.ROW


@pytest.mark.parametrize(
    ("annotations", "extra", "to"),
    [
        ("duplicate:digest", None, None),
        ("3t,duplicate:digest,h2", None, None),
        ("duplicate:digest", NAMES, FIRST),
        ("duplicate:uriAgnosticDigest", NAMES, FIRST),
        ("warcRevisit:digest", NAMES, FIRST),
        ("warcRevisit:uriAgnosticDigest", None, None),
        ("Revisit:IdenticalPayloadDigest", NAMES, FIRST),
        ("Revisit:IdenticalPayloadDigest,2t", None, None),
        ("-", NAMES, FIRST),
        ("-", {"RevisitProfile": "x"}, None),
        ("duplicate", None, None),
        ("duplicate,2t", None, None),
        ('duplicate:"a-0.arc.gz,123,20050101000000",3t', None, None),
        ("err=a b,duplicate:digest", None, None),
        ("duplicate:server-not-modified", NAMES, None),
        ("warcRevisit:notModified", NAMES, None),
        ("-", {**NAMES, "RevisitProfile": "http://x/server-not-modified"}, None),
        (
            "duplicate:digest",
            {**NAMES, "RevisitRefersToDate": "20250102030405"},
            FIRST,
        ),
        (
            "duplicate:digest",
            {**NAMES, "RevisitRefersToDate": "20250102030405678"},
            FIRST._replace(date=b"2025-01-02T03:04:05.678Z"),
        ),
        ("duplicate:digest", {**NAMES, "RevisitRefersToDate": "2025-13-02T03:04:05Z"}, None),
        ("duplicate:digest", {**NAMES, "RevisitRefersToDate": 20250102}, None),
        ("duplicate:digest", {**NAMES, "RevisitRefersToURI": "dns:b.com"}, None),
        ("duplicate:digest", {"RevisitRefersToURI": "http://b.com/"}, None),
    ],
)
def test_duplicates(annotations: str, extra: dict[str, Any] | None, to: RefersTo | None) -> None:
    revisit = one("crawllog", line(annotations, extra))
    assert isinstance(revisit, Revisit)
    assert revisit.refers_to == to
    assert revisit.capture.evidence == Evidence.REVISIT


@pytest.mark.parametrize("annotations", ["-", "3t", "duplicates:0", "Q:duplicate?", "h2,browser"])
def test_annotations_similar_to_duplicates(annotations: str) -> None:
    assert isinstance(one("crawllog", line(annotations)), Capture)


def test_duplicate_annotation_of_other_software_is_an_option() -> None:
    assert isinstance(one("crawllog", line("seen:before")), Capture)
    options = SourceOptions(revisit_annotation=re.compile(rb"seen:\w+"))
    assert isinstance(one("crawllog", line("2t,seen:before"), options), Revisit)
    assert isinstance(one("crawllog", line("duplicate:digest"), options), Revisit)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (line(url="dns:a.com", status="1", mime="text/dns"), "not-http"),
        (line(url="ftp://a.com/x"), "not-http"),
        (line(url="whois:a.com", status="1001"), "not-http"),
        (line(status="1"), "not-http"),
        (line(status="2001"), "not-http"),
        (line(status="-9998", size="-", began="-", digest="-"), "fetch-failed"),
        (line(status="0"), "fetch-failed"),
        (line(size="-"), "fetch-failed"),
        (line(size="-1"), "fetch-failed"),
        (line(began="-"), "no-date"),
        (line(began="yesterday"), "bad-date"),
        (line(began="20261320091426950+364"), "bad-date"),
        (line(digest="-"), "bad-digest"),
        (line(digest="sha1:ABC"), "bad-digest"),
        (line(digest=f"SHA1:{BASE32}"), "not-payload-digest"),
        (line("unwritten:size"), "unwritten"),
        (line("2t,unwritten:noAnnotation,duplicate:digest"), "unwritten"),
        (line("lenTrunc"), "truncated"),
        (line("1t,timeTrunc"), "truncated"),
        (line("headerTrunc,3t"), "truncated"),
        (line(extra={"method": "POST"}), "method"),
    ],
)
def test_refusals(text: str, reason: str) -> None:
    assert one("crawllog", text) == Refusal(reason)


@pytest.mark.parametrize("digest", [BASE32, f"sha1:{BASE32}", f"sha1:{HEX}", HEX])
def test_digests_of_every_crawler(digest: str) -> None:
    capture = one("crawllog", line(digest=digest, thread="-"))
    assert isinstance(capture, Capture)
    assert capture.digest == Digest.parse(f"sha1:{BASE32}")
    assert capture.digest.spelled(capture.spelling) == digest


@pytest.mark.parametrize(
    "annotations",
    ["Runtime exceeded 1000ms", "a {b} c", "{", "} {", '{"method":"POST"} x', "{ " * 100],
)
def test_annotations_may_hold_anything(annotations: str) -> None:
    for extra in (None, {"warcFilename": "X.warc.gz", "warcFileOffset": 1, "note": "a {b}"}):
        capture = one("crawllog", line(annotations, extra))
        assert isinstance(capture, Capture)
        assert capture.container == ("X.warc.gz" if extra else "source")


@pytest.mark.parametrize(
    "extra", [{"warcFilename": 5}, {"warcFileOffset": "x"}, {"warcFileOffset": 2**70}, {"a": []}]
)
def test_odd_extra_information_is_not_known(extra: dict[str, Any]) -> None:
    capture = one("crawllog", line(extra=extra))
    assert isinstance(capture, Capture)
    assert (capture.container, capture.offset) == ("source", -1)


@pytest.mark.parametrize("count", [10, 11, 12])
def test_old_logs_have_fewer_fields(count: int) -> None:
    assert isinstance(one("crawllog", " ".join(line().split()[:count])), Capture)


@pytest.mark.parametrize("text", ["x", " ".join(line().split()[:9]), line(status="OK")])
def test_bad_lines(text: str) -> None:
    problem, refusal = items("crawllog", text.encode() + b"\n")
    assert isinstance(problem, Problem)
    assert (problem.offset, refusal) == (1, Refusal("bad-line"))


def test_a_cut_last_line_is_no_original_at_any_length() -> None:
    whole = line("duplicate:digest,2t").encode()
    for length in range(1, len(whole) + 1):
        found = items("crawllog", line().encode() + b"\n" + whole[:length])
        assert isinstance(found[0], Capture)
        assert isinstance(found[1], Problem)
        assert (found[1].offset, found[2:]) == (2, [Refusal("bad-line")])


def test_bytes_that_are_no_utf8_are_kept() -> None:
    data = line().encode().replace(b"http://a.com/", b"http://a.com/caf\xe9") + b"\n"
    capture = items("crawllog", data)[0]
    assert isinstance(capture, Capture)
    assert capture.url == b"http://a.com/caf\xe9"


@given(st.binary(max_size=300), st.integers(1, 50))
def test_any_bytes_are_one_refusal_for_every_line(data: bytes, block: int) -> None:
    data = b"x" + data.replace(b"\r", b"")
    lines = [part for part in data.split(b"\n") if part.strip()]
    found = records(items("crawllog", data, block=block))
    assert found == [Refusal("bad-line")] * len(lines)


@given(st.data())
def test_any_damage_to_a_line_leaves_one_item(data: st.DataObject) -> None:
    good = bytearray(line("2t,duplicate:digest", NAMES).encode())
    for _ in range(data.draw(st.integers(1, 5))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(good).replace(b"\n", b"~").replace(b"\r", b"~") + b"\n"
    assert len(records(items("crawllog", damaged))) == 1
