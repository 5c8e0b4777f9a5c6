"""Values of lookup parameters as people write them: ages, dates, record ids, crawl names."""

from __future__ import annotations

import re

from dedupindex.errors import BadInput, BadQuery
from dedupindex.timestamps import check_date, check_digits, date_of_digits
from dedupindex.urlkey import unbracket

_AGE = re.compile(r"([0-9]{1,12})([smhdy]?)")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "y": 31_557_600}

LONGEST_NAME = 200  # characters
_NAME = re.compile(r"[!-.0-~]+")  # what fits into a path, a header and a log line
_STEPS = (".", "..")  # which clients resolve before they send a path


def parse_age(text: str) -> int:
    """Seconds of ``90``, ``90s``, ``15m``, ``12h``, ``30d`` or ``2y``; raises `BadQuery`."""
    match = _AGE.fullmatch(text)
    if match is None:
        raise BadQuery(f"max_age takes a number and one of s m h d y, not {text[:64]!r}")
    return int(match[1]) * _UNITS[match[2]]


def parse_moment(text: str) -> bytes:
    """A WARC-Date from a WARC-Date, a day (its end) or 14 digits; raises `BadQuery`."""
    return _date(text, b"T23:59:59Z")


def parse_date(text: str) -> bytes:
    """A WARC-Date from a WARC-Date or 14 digits, to the second; raises `BadQuery`."""
    return _date(text, b"")


def _date(text: str, rest_of_day: bytes) -> bytes:
    value = text.encode("utf-8", "surrogateescape")
    try:
        if value.isdigit():
            return date_of_digits(check_digits(value))
        return check_date(value if b"T" in value else value + rest_of_day)
    except BadInput:
        day = "2026-11-20, " if rest_of_day else ""
        shown = text[:64].encode("ascii", "backslashreplace").decode()
        raise BadQuery(
            f"a date is written {day}2026-11-20T09:14:17Z or in 14 digits, not {shown!r}"
        ) from None


def parse_record_id(text: str) -> bytes:
    """A record id with or without its angle brackets."""
    return unbracket(text.encode("utf-8", "surrogateescape"))


def check_crawl_name(name: str, what: str = "crawl") -> str:
    """Return `name` if a crawl may have it; raises `BadInput`."""
    if name in _STEPS:
        raise BadInput(f"a {what} cannot be called {name!r}: in a path that is no name but a step")
    if not _NAME.fullmatch(name) or len(name) > LONGEST_NAME:
        raise BadInput(
            f"a {what}'s name has 1 to {LONGEST_NAME} printable ASCII characters, no space and no "
            f"slash, not {name[:64]!r}"
        )
    return name
