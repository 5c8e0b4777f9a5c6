"""What the header of a record states, and the refusal of a record that is no capture."""

from __future__ import annotations

import re

from dedupindex.capture import Capture, Evidence, Refusal
from dedupindex.digest import CANONICAL, Digest, Spelling, is_cut, parse_spelled
from dedupindex.errors import BadDate, BadDigest
from dedupindex.timestamps import check_date
from dedupindex.warc.record import Record

_HTTP_URL = re.compile(rb"https?://", re.IGNORECASE)


class Refused(Exception):
    """The record is no capture, for a `reason` that is counted; `problem` is told to the user."""

    def __init__(self, reason: str, problem: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.problem = problem


def refusal(record: Record, reason: str) -> Refusal:
    """The refusal of a record, with what no revisit and no row may make an original of.

    That is a response or revisit of which URL, date and the digest it states are known.
    """
    if record.type not in (b"response", b"revisit") or not record.values[4]:
        return Refusal(reason)
    url, date = record.values[:2]
    try:
        url, date, (digest, spelling) = (
            http_url(url),
            checked(date),
            stated_digest(record.values[4]),
        )
    except Refused:
        return Refusal(reason)
    assert digest is not None
    if is_cut(digest.raw):  # no original can have it
        return Refusal(reason)
    return Refusal(reason, Capture(digest, spelling, url, date, Evidence.REVISIT))


def http_url(url: bytes) -> bytes:
    """The URL without the brackets that wget writes; raises `Refused` if it is not HTTP."""
    if url[:1] == b"<" and url[-1:] == b">":
        url = url[1:-1]
    if not url:
        raise Refused("no-url")
    if _HTTP_URL.match(url) is None:
        raise Refused("not-http")
    return url


def bare(record_id: bytes) -> bytes:
    return record_id[1:-1] if record_id[:1] == b"<" and record_id[-1:] == b">" else record_id


def checked(date: bytes) -> bytes:
    try:
        return check_date(date)
    except BadDate as error:
        raise Refused("bad-date") from error


def stated_digest(text: bytes) -> tuple[Digest | None, Spelling]:
    """The digest that a header states, None if it states none; raises `Refused`."""
    if not text:
        return None, CANONICAL
    try:
        return parse_spelled(text.decode("ascii"))
    except (BadDigest, UnicodeDecodeError) as error:
        raise Refused("bad-digest") from error
