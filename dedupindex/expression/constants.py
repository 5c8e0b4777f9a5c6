"""Constants as people write them: ``7d``, ``500KB``, ``'2020-05'``."""

from __future__ import annotations

import re
from calendar import isleap, monthrange

from dedupindex.errors import BadDate
from dedupindex.expression.tree import Literal, OperandKind
from dedupindex.timestamps import check_digits, date_of_digits, seconds

SPANS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
SIZES = {
    "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}  # fmt: skip
LARGEST = 1 << 53  # whole numbers up to it are told apart from their neighbours everywhere
_DATE = re.compile(
    r"([0-9]{4})(?:-([0-9]{2})(?:-([0-9]{2})(?:[T ]([0-9]{2})"
    r"(?::([0-9]{2})(?::([0-9]{2}))?)?)?)?)?Z?"
)
_FIRST = "00000101000000"  # what a date lacks at its end
_WHOLE = {8: 86_400, 10: 3600, 12: 60, 14: 1}  # seconds of what so many digits name


def number(text: str, unit: str) -> Literal | None:
    """A number with its unit; None if it is too large, or there is no such unit."""
    value = float(text)
    if unit in SPANS:
        kind, value = OperandKind.SPAN, value * SPANS[unit]
    elif not unit or unit.lower() in SIZES:
        kind, value = OperandKind.NUMBER, value * (SIZES[unit.lower()] if unit else 1)
    else:
        return None
    if value > LARGEST:
        return None
    return Literal(kind, int(value) if value.is_integer() else value)


def advice(kinds: set[OperandKind], *, arithmetic: bool = False) -> str:
    """How a constant is written that makes two kinds go together."""
    if (
        OperandKind.TEXT in kinds
        and kinds & {OperandKind.NUMBER, OperandKind.SPAN}
        and not arithmetic
    ):
        return ": text has quotes and a number has none, as 'text/html', 200, 5KB, 7d"
    if OperandKind.NUMBER in kinds and (
        OperandKind.SPAN in kinds or arithmetic and OperandKind.TEXT not in kinds
    ):
        return ": lengths of time have units, as 7d, 12h, 30m, 45s"
    if OperandKind.TIME in kinds:
        return ": a time is compared with a time or with a date in quotes, as '2020-05'"
    return ""


def moments(text: str) -> tuple[int, int]:
    """The first and the last second of a year, month, day, …, in 4 to 14 digits or as ISO 8601.

    Raises `BadDate`.
    """
    found = _DATE.fullmatch(text)
    digits = "".join(filter(None, found.groups())) if found else text
    if not (digits.isascii() and digits.isdigit() and 4 <= len(digits) <= 14) or len(digits) % 2:
        raise BadDate(f"no date, which is '2020', '2020-05', '2020-05-01T10:30:00': {text[:64]!r}")
    whole = check_digits((digits + _FIRST[len(digits) :]).encode())
    begin = seconds(date_of_digits(whole))
    return begin, begin + _length(digits) - 1


def _length(digits: str) -> int:
    """Seconds of what the digits name."""
    year = int(digits[:4])
    if len(digits) == 4:
        return (365 + isleap(year)) * 86_400
    if len(digits) == 6:
        return monthrange(year, int(digits[4:6]))[1] * 86_400
    return _WHOLE[len(digits)]
