"""Check what replay tools need of a revisit, alone and compared with its original.

pywb needs WARC-Refers-To-Target-URI without brackets and the same digest text as the original's;
OpenWayback and wabac.js need the date too. Headers come from the revisit and bytes from the
original, so what the headers say of the bytes must be true of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dedupindex.verify.block_facts import Facts, is_date, read_digest, timestamp14
from dedupindex.verify.http_message import HttpHead
from dedupindex.verify.issues import Issue
from dedupindex.verify.parse_records import CheckedRecord, unbracket

_PROFILE = re.compile(
    rb"<?http://netpreserve\.org/warc/(0\.17|0\.18|1\.0|1\.1)/(?:revisit/)?"
    rb"(identical-payload-digest|uri-agnostic-identical-payload-digest|server-not-modified)>?"
)


def not_modified(profile: bytes) -> bool:
    """Whether a revisit stands for "304 Not Modified" rather than for equal bytes."""
    return b"server-not-modified" in profile


def own_issues(record: CheckedRecord, facts: Facts) -> Iterator[Issue]:
    """Yield what is wrong with a revisit, whatever it refers to."""
    yield from _profile(record, facts)
    if facts.to_url.startswith(b"<") or facts.to_url.endswith(b">"):
        yield "refers-to-brackets", "its WARC-Refers-To-Target-URI is in angle brackets"
    if not_modified(facts.profile):
        return
    stated = read_digest(facts.digest)
    if not facts.digest:
        yield "no-payload-digest", "it has no WARC-Payload-Digest"
    elif stated is not None and stated.is_empty:
        yield "empty-digest", "its payload digest is that of no bytes"
    elif stated is not None and stated.is_cut:
        left = len(stated.raw.rstrip(b"\0"))
        message = f"its payload digest was cut: {left} of {len(stated.raw)} bytes are left of it"
        yield "cut-digest", f"{message}, so that its payload may have been another"
    if not unbracket(facts.to_url):
        yield "no-refers-to-uri", "it has no WARC-Refers-To-Target-URI"
    if not facts.to_date:
        yield "no-refers-to-date", "it has no WARC-Refers-To-Date"
    elif not is_date(facts.to_date):
        yield "no-refers-to-date", "its WARC-Refers-To-Date is not a date"
    elif facts.version == b"WARC/1.0" and b"." in facts.to_date:
        yield "date-spelling", "WARC-Refers-To-Date has a fraction, which WARC/1.0 does not know"
    if not facts.to_id:
        yield "no-refers-to", "it has no WARC-Refers-To"
    if record.head.get(b"warc-truncated") != b"length":
        yield "not-truncated", "it does not say WARC-Truncated: length"
    if 300 <= facts.status < 400:
        yield "redirect", f"its status is {facts.status}: pywb shows no body for it"


def _profile(record: CheckedRecord, facts: Facts) -> Iterator[Issue]:
    if not facts.profile:
        yield "no-profile", "it has no WARC-Profile"
        return
    match = _PROFILE.fullmatch(facts.profile)
    shown = facts.profile[:100].decode("utf-8", "replace")
    if match is None:
        yield "unknown-profile", f"its WARC-Profile is {shown!r}"
    elif match[1] != record.head.version[5:] or match[2].startswith(b"uri") or b"<" in match[0]:
        version = record.head.version.decode("ascii", "replace")
        yield "profile-version", f"its WARC-Profile is {shown!r} in a record of {version}"


def http_issues(message: HttpHead | None, facts: Facts) -> Iterator[Issue]:
    """Yield what is wrong with the HTTP header in the block of a revisit."""
    if message is None:
        if facts.length:
            yield "http-headers", "its block is no HTTP header"
        else:
            yield "no-http-headers", "it keeps no HTTP header: replay shows the original's"
        return
    if not message.closed:
        yield "http-headers", "no blank line ends its HTTP header"
    if message.head.count(b"\n") != message.head.count(b"\r\n"):
        yield "http-headers", "its HTTP header has bare line feeds"
    if facts.length and message.closed:
        yield "body-kept", f"{facts.length:,} bytes follow its HTTP header"


def original_issues(revisit: Facts, original: Facts) -> Iterator[Issue]:
    """Yield what is wrong between a revisit and the full record that it refers to."""
    if not_modified(revisit.profile):
        return
    yield from _digests(revisit, original)
    if reason := original.not_original_reason:
        yield "unusable-original", f"its original cannot be used for it: {reason}"
    if revisit.to_id and original.record_id and revisit.to_id != original.record_id:
        name = original.record_id.decode("utf-8", "replace")
        yield "wrong-record-id", f"the record of that URL and date is {name}, not its Refers-To"
    if is_date(revisit.to_date) and not _same_date(revisit, original.date):
        shown = original.date.decode("ascii", "replace")
        yield "date-spelling", f"its original's WARC-Date is written {shown}"
    same_second = timestamp14(revisit.date) == timestamp14(original.date)
    if revisit.url == original.url and same_second and revisit.header_hash != original.header_hash:
        yield "same-second", "it has the URL and second of its original, but another HTTP header"
    if revisit.partial or original.partial:
        yield "partial", "it, or its original, is part of a document (206, Content-Range)"
    if _later(original.date, revisit.date):
        yield "later-original", f"its original is later: {original.date.decode('ascii', 'replace')}"
    if not revisit.has_http or not original.has_http:
        return
    if revisit.coding != original.coding:
        yield "coding", f"{_shown(revisit.coding)} in its header, {_shown(original.coding)} stored"
    stated = revisit.content_length
    expected = (-1, original.length, original.content_length)
    if stated not in expected and not revisit.coding.startswith(b"chunked"):
        message = f"Content-Length: {stated} in its header, {original.length:,} stored"
        yield "claimed-length", message
    if revisit.status != original.status:
        yield "status", f"its status is {revisit.status}, its original's {original.status}"


def _digests(revisit: Facts, original: Facts) -> Iterator[Issue]:
    stated = read_digest(revisit.digest)
    if stated is not None and stated.is_cut:
        return  # it identifies no payload; reported by `own_issues`
    if not original.digest:
        if stated is None or stated.algorithm != "sha1":
            yield "unusable-original", "its original has no digest that replay could find it by"
        elif stated.raw not in original.computed:
            yield "wrong-digest", "its original's payload has another digest"
        elif stated.raw != original.computed[0]:
            yield "unusable-original", "its original is chunked and has no digest of its own"
    elif original.corrupt:
        yield "wrong-digest", "its original has not the payload that it states a digest of"
    elif revisit.digest and revisit.digest != original.digest:
        theirs = read_digest(original.digest)
        shown = original.digest.decode("utf-8", "replace")
        if stated is None or theirs is None or stated.algorithm != theirs.algorithm:
            yield "digest-spelling", f"its original's digest is {shown}, which cannot be compared"
        elif stated.raw == theirs.raw:
            yield "digest-spelling", f"its original's digest is written {shown}"
        else:
            yield "wrong-digest", f"its original has the digest {shown}"


def _same_date(revisit: Facts, date: bytes) -> bool:
    """Whether a revisit states a date as it must: without a fraction in WARC/1.0."""
    if revisit.version == b"WARC/1.0" and b"." in date and b"." not in revisit.to_date:
        date = date.partition(b".")[0] + b"Z"
    return revisit.to_date == date


def _later(one: bytes, other: bytes) -> bool:
    """Whether a date is later than another, of any precision; False if one is invalid."""

    def key(date: bytes) -> tuple[bytes, bytes]:
        return timestamp14(date), date[19:-1].removeprefix(b".").ljust(9, b"0")

    return is_date(one) and is_date(other) and key(one) > key(other)


def _shown(coding: bytes) -> str:
    return coding.replace(b";", b" ").decode("utf-8", "replace").strip() or "no coding"
