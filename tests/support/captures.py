"""Captures for tests: plain ones by hand, any ones by hypothesis."""

from __future__ import annotations

import hashlib
from datetime import datetime

from hypothesis import strategies as st

from dedupindex.capture import Capture, Covers, Evidence
from dedupindex.digest import CANONICAL, SIZES, Digest, Spelling


def sha1(number: int) -> Digest:
    """The digest of some payload, another one for every number."""
    return Digest("sha1", hashlib.sha1(b"%d" % number).digest())


def capture(
    number: int = 1, url: bytes = b"http://example.com/a", day: int = 1, **fields: object
) -> Capture:
    """A capture of day `day` of November 2026."""
    values: dict[str, object] = {
        "date": b"2026-11-%02dT09:14:17Z" % day,
        "status": 200,
        "mime": b"image/png",
        "size": 1000 + number,
        "record_id": b"urn:uuid:00000000-0000-4000-8000-%012d" % (number * 100 + day),
        "container": f"/warcs/{day}.warc.gz",
        "offset": number * 1000,
        **fields,
    }
    return Capture(sha1(number), CANONICAL, url, **values)  # type: ignore[arg-type]


@st.composite
def digests(draw: st.DrawFn) -> Digest:
    algorithm = draw(st.sampled_from(sorted(SIZES)))
    size = SIZES[algorithm]
    return Digest(algorithm, draw(st.binary(min_size=size, max_size=size)))


dates = st.builds(
    lambda moment, fraction: (
        moment.strftime("%Y-%m-%dT%H:%M:%S").encode()
        + (b"." + fraction if fraction else b"")
        + b"Z"
    ),
    st.datetimes(datetime(1990, 1, 1), datetime(2090, 1, 1)),
    st.sampled_from([b"", b"", b"1", b"123", b"000000001"]),
)

urls = st.one_of(
    st.from_regex(
        rb"https?://(www\.)?[a-z]{1,8}\.(com|org)(/[a-zA-Z0-9._~%-]{0,8}){0,3}", fullmatch=True
    ),
    st.binary(min_size=1, max_size=40),
)

captures = st.builds(
    Capture,
    digest=digests(),
    spelling=st.builds(Spelling, st.integers(0, 4), st.integers(0, 5)),
    url=urls,
    date=dates,
    evidence=st.sampled_from([Evidence.RECORD, Evidence.ROW, Evidence.NAMED]),
    covers=st.sampled_from(list(Covers)),
    status=st.integers(0, 999),
    mime=st.sampled_from([b"", b"text/html", b"image/png", b"x-odd/type"]),
    size=st.one_of(st.just(-1), st.integers(0, 1 << 44)),
    size_of_record=st.booleans(),
    record_id=st.one_of(
        st.just(b""),
        st.uuids().map(lambda value: b"urn:uuid:" + str(value).encode()),
        st.from_regex(rb"[a-z]{1,20}:[!-~]{1,30}", fullmatch=True),
    ),
    container=st.sampled_from(["", "a.warc.gz", "b.warc.gz"]),
    crawl=st.sampled_from(["", "", "weekly", "daily"]),
    offset=st.one_of(st.just(-1), st.integers(0, 1 << 39)),
)
