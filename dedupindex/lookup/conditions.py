"""Parse lookup parameters as people write them: ages, dates, crawl names."""

from __future__ import annotations

import re
from calendar import monthrange

from dedupindex.errors import BadDate, BadInput, BadQuery
from dedupindex.timestamps import check_date, check_digits, date_of_digits

_AGE = re.compile(r"([0-9]{1,12})([smhdy]?)")
_PERIOD = re.compile(rb"([0-9]{4})(?:-?([0-9]{2})(?:-?([0-9]{2}))?)?")
LONGEST_AGE = 10**12 - 1  # seconds, of 12 digits: JSON libraries write no more than 64 bits
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "y": 31_557_600}

MAX_NAME_LENGTH = 200  # characters
_NAME = re.compile(r"[!-.0-~]+")  # safe in a path, a header and a log line


def parse_age(text: str, name: str = "max_age") -> int:
    """Return the seconds of ``90``, ``90s``, ``15m``, ``12h``, ``30d`` or ``2y``.

    Raises `BadQuery` with the `name` of the field, also for more than `LONGEST_AGE`.
    """
    match = _AGE.fullmatch(text)
    if match is None:
        raise BadQuery(f"{name} takes a number and one of s m h d y, not {text[:64]!r}")
    age = int(match[1]) * _UNITS[match[2]]
    if age > LONGEST_AGE:
        raise BadQuery(f"{name} takes at most {LONGEST_AGE:,} seconds, not {text!r}")
    return age


def format_age(seconds: int) -> str:
    """Return an age as `parse_age` reads it, in the largest unit of which it is a multiple."""
    units = (unit for unit in "ydhm" if seconds and seconds % _UNITS[unit] == 0)
    unit = next(units, "s")
    return f"{seconds // _UNITS[unit]:,}{unit}"


def parse_date(text: str, *, days: bool = False) -> bytes:
    """Return a WARC-Date for one or for 14 digits; raises `BadQuery`.

    With `days` also the last moment of a year, month or day: ``2026``, ``2026-11``, ``20261120``.
    """
    value = text.encode("utf-8", "surrogateescape")
    try:
        if days and (period := _PERIOD.fullmatch(value)):
            return _last_moment(int(period[1]), int(period[2] or 12), int(period[3] or 0))
        if value.isdigit():
            return date_of_digits(check_digits(value))
        return check_date(value)
    except BadInput:
        day = "2026, 2026-11, 2026-11-20, " if days else ""
        printable = text[:64].encode("ascii", "backslashreplace").decode()
        raise BadQuery(
            f"a date is written {day}2026-11-20T09:14:17Z or in 14 digits, not {printable!r}"
        ) from None


def _last_moment(year: int, month: int, day: int) -> bytes:
    """Return the last WARC-Date of a day, or of a month if `day` is 0; fractions have 9 digits."""
    try:
        day = day or monthrange(year, month)[1]
    except ValueError as error:
        raise BadDate(f"there is no month {month}") from error
    return check_date(b"%04d-%02d-%02dT23:59:59.999999999Z" % (year, month, day))


def check_crawl_name(name: str, what: str = "crawl") -> str:
    """Return `name` if it is a valid name of a crawl or namespace; raises `BadInput`."""
    if name in (".", ".."):  # clients resolve these before they send a path
        raise BadInput(f"a {what} cannot be called {name!r}, which is a relative step in a path")
    if not _NAME.fullmatch(name) or len(name) > MAX_NAME_LENGTH:
        raise BadInput(
            f"a {what}'s name has 1 to {MAX_NAME_LENGTH} printable ASCII characters, no space and "
            f"no slash, not {name[:64]!r}"
        )
    return name
