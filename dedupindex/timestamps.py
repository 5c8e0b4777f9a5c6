"""Check and convert dates of WARC, CDX and crawl logs.

A date is kept as the exact WARC-Date (WARC 1.1 section 5.4: W3C-DTF in UTC, up to nine fraction
digits), as revisits repeat it and replay tools look captures up by it. CDX has 14 digits, crawl
logs 17. Dates are never rounded or clamped: an impossible one raises `BadDate`.
"""

from __future__ import annotations

import re
from calendar import timegm
from datetime import date as calendar_date
from datetime import datetime

from dedupindex.errors import BadDate, BadInput

_DATE = re.compile(
    rb"(\d{4})-(\d\d)-(\d\d)T(?:[01]\d|2[0-3]):[0-5]\d:(?:[0-5]\d|60)(?:\.\d{1,9})?Z", re.ASCII
)
_DIGITS = re.compile(rb"\d{8}(?:[01]\d|2[0-3])[0-5]\d(?:[0-5]\d|60)")
_LEAP_SECOND = re.compile(r"(?<=^.{12})60$")
_SECONDS = "%Y%m%d%H%M%S"
_YEAR_START = "00010101000000"
_PART = re.compile(r"[0-9]{4}(?:[0-9]{2}){0,5}")
_KNOWN_DAYS: set[bytes] = set()  # valid days
_DAYS_KEPT = 20_000  # about fifty years


def check_date(text: bytes) -> bytes:
    """Return `text` if it is a full WARC-Date; raises `BadDate`."""
    match = _DATE.fullmatch(text)
    if match is None:
        raise BadDate(f"not a WARC-Date (yyyy-mm-ddThh:mm:ssZ): {_show(text)}")
    day = b"%b%b%b" % match.groups()
    if day not in _KNOWN_DAYS:
        _check_day(day, text)
    return text


def check_digits(text: bytes) -> bytes:
    """Return the first 14 digits of a 14- or 17-digit time; raises `BadDate`."""
    if len(text) != 14 and not (len(text) == 17 and text.isdigit()):
        raise BadDate(f"not a time of 14 digits: {_show(text)}")
    digits = text[:14]
    if _DIGITS.fullmatch(digits) is None:
        raise BadDate(f"not a time of 14 digits: {_show(text)}")
    if digits[:8] not in _KNOWN_DAYS:
        _check_day(digits[:8], text)
    return digits


def date_of_digits(digits: bytes) -> bytes:
    """Return the WARC-Date of 14 checked digits: ``b"2026-11-20T09:14:17Z"``."""
    d = digits
    return b"%b-%b-%bT%b:%b:%bZ" % (d[:4], d[4:6], d[6:8], d[8:10], d[10:12], d[12:14])


def digits_of_date(date: bytes) -> bytes:
    """Return the 14 digits of a checked WARC-Date, without its fraction."""
    return date[:4] + date[5:7] + date[8:10] + date[11:13] + date[14:16] + date[17:19]


def seconds(date: bytes) -> int:
    """Return a checked WARC-Date as seconds since 1970, without its fraction."""
    day = int(date[:4]), int(date[5:7]), int(date[8:10])
    return timegm((*day, int(date[11:13]), int(date[14:16]), int(date[17:19])))


def sort_key(date: bytes) -> bytes:
    """Return a key that sorts checked WARC-Dates of any precision by time."""
    return date[:-1]


def first_digits(typed: str | None) -> bytes:
    """Return the first 14 digits of a year, month, day or second; none of None.

    Raises `BadInput` for anything but a date.
    """
    return _digits_of(typed, "00000101000000")


def last_digits(typed: str | None) -> bytes:
    """As `first_digits`, with digits that no date within the year, month or day exceeds."""
    return _digits_of(typed, "99999999999999")


def _digits_of(typed: str | None, rest: str) -> bytes:
    if typed is None:
        return b""
    digits = re.sub(r"[-T:Z]", "", typed)
    if _PART.fullmatch(digits) is None:
        raise BadInput(f"a date is written 2026, 2026-11, 2026-11-20 or in digits, not {typed!r}")
    try:
        datetime.strptime(_LEAP_SECOND.sub("59", digits) + _YEAR_START[len(digits) :], _SECONDS)
    except ValueError:
        raise BadInput(f"there is no such date as {typed!r}") from None
    return (digits + rest[len(digits) :]).encode("ascii")


def _check_day(day: bytes, text: bytes) -> None:
    try:
        calendar_date(int(day[:4]), int(day[4:6]), int(day[6:8]))
    except ValueError as error:
        raise BadDate(f"{error} in date {_show(text)}") from error
    if b"0001" < day[:4] < b"9999":  # years that broken clocks write
        if len(_KNOWN_DAYS) >= _DAYS_KEPT:
            _KNOWN_DAYS.clear()
        _KNOWN_DAYS.add(day)
        return
    raise BadDate(f"no crawl was made in year {day[:4].decode()}: {_show(text)}")


def _show(text: bytes) -> str:
    return repr(text[:64].decode("utf-8", "backslashreplace"))
