"""The columns of CDX lines, as a header line states them, or guessed from their number.

A header is a line of a delimiter, ``CDX``, and one letter per column; some tools strip the first
delimiter. A line with longer names is text that mentions CDX. These letters are used (the CDX file
format of archive.org; ``u`` is wget's), all others are ignored:

    a  original URL    b  date, 14 or 17 digits    m  mime          s  status    k  digest
    S  record size     V  offset                   g  file name     u  record id

Without a header the number of columns determines the layout, and values must be valid for it: wget
writes 11 columns too, but other ones than the standard 11.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

from dedupindex.sources.rows import METHOD_MARK, Row, RowFields

NO_HEADER = (
    "not a CDX line of a layout that is recognised without a header line; if another tool wrote "
    "the file, put its header in front (for wget: ' CDX a b a m s k r M V g u')"
)
_BY_WIDTH = {  # columns -> their letters
    7: "N b a m s k S",  # what public CDX servers answer
    9: "N b a m s k r V g",
    10: "N b a m s k r M V g",
    11: "N b a m s k r M S V g",
    14: "N b a m s k r M S V g - - -",  # 11 and size, offset, file of a revisit's original
}
_LETTERS = "abmskSVgu"  # in the order of `RowFields`
_HEADER = re.compile(rb"([^A-Za-z0-9]?)CDX([^A-Za-z0-9])(.+)")
_NO_ROW = rb"(?![^A-Za-z0-9]?CDX[^A-Za-z0-9]|@alias )"  # excludes headers
_DATE = re.compile(rb"\d{14}(?:\d{3})?")
_PATTERNS = {  # letter -> the column on a plain line
    "a": rb"(https?://%b++)",
    "b": rb"(\d{8}(?:[01]\d|2[0-3])[0-5]\d[0-5]\d)",  # `ColumnValues` checks the day
    "k": rb"(.{32})",  # decoding checks it
    "S": rb"(\d{1,9}+)",  # sizes and offsets that an index entry can hold
    "V": rb"(\d{1,12}+)",
    "u": rb"<(urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})>",
}


class Layout(NamedTuple):
    """The columns of a line."""

    delimiter: bytes
    letters: tuple[str, ...]

    def fields(self, columns: Sequence[bytes]) -> RowFields:
        """Return the known columns of a line; of a repeated letter the last counts."""
        named = dict(zip(self.letters, columns, strict=True))
        return RowFields(*[named.get(letter, b"") for letter in _LETTERS])


@lru_cache(16)  # a file can have any number of headers
def finder(layout: Layout) -> Callable[[bytes], list[Row]]:
    """Return a function that parses a block of lines with one regular expression.

    It returns a row for each line end, with empty values if the line is not plain. A row may
    include a malformed line before it: then there are fewer rows than line ends.
    """
    not_delimiter = b"[^%b]" % re.escape(layout.delimiter)
    not_end = b"[^%b\\n]" % re.escape(layout.delimiter)
    used = {letter: column for column, letter in enumerate(layout.letters) if letter in _LETTERS}
    patterns, groups = [], []
    for column, letter in enumerate(layout.letters):
        allowed = not_end if column == len(layout.letters) - 1 else not_delimiter
        if used.get(letter) != column:
            patterns.append(allowed + b"++")
            continue
        pattern = _PATTERNS.get(letter, rb"(%b++)")
        if letter == "g" and allowed is not_end:
            pattern = rb"(.++)"  # faster, and safe: names with a delimiter are never cached
        patterns.append(pattern.replace(b"%b", allowed))
        groups.append(letter)
    absent = [letter for letter in _LETTERS if letter not in used]
    line = _NO_ROW + re.escape(layout.delimiter).join(patterns) + b"()" * len(absent) + rb"\n"
    find_plain = re.compile(line + rb"|[^\n]*+\n").findall
    find_get = re.compile(rb"(?!.*%b)%b|[^\n]*+\n" % (METHOD_MARK, line)).findall
    wanted = list(_LETTERS)
    groups += absent
    reorder = itemgetter(*[groups.index(group) for group in wanted])

    def find(block: bytes) -> list[Row]:
        rows = (find_get if METHOD_MARK in block else find_plain)(block)
        return rows if groups == wanted else list(map(reorder, rows))

    return find


_NEEDED = {"a": "URL (a)", "b": "date (b)", "k": "digest (k)"}


def layout_of(delimiter: bytes, letters: Sequence[str]) -> Layout | None:
    """Return the layout of a header; None if it lacks URL, date or digest."""
    return Layout(delimiter, tuple(letters)) if not lacking(letters) else None


def lacking(letters: Sequence[str]) -> str:
    """Return in words what a header needs and lacks, "" if that is nothing."""
    names = [name for letter, name in _NEEDED.items() if letter not in letters]
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def header(line: bytes) -> tuple[bytes, list[str]] | None:
    """Return delimiter and letters of a header, None if the line is not one."""
    match = _HEADER.fullmatch(line)
    if match is None or match[1] not in (b"", match[2]):
        return None
    names = match[3].decode("latin-1").split(match[2].decode("latin-1"))
    letters = [name for name in names if name]
    return (match[2], letters) if letters and max(map(len, letters)) == 1 else None


def guess(line: bytes) -> Layout | None:
    """Return the layout of a line without a header, None unless its values are valid for it."""
    columns = line.split(b" ")
    letters = _BY_WIDTH.get(len(columns))
    if letters is None:
        return None
    layout = Layout(b" ", tuple(letters.split()))
    fields = layout.fields(columns)
    numbers = (fields.size, fields.offset, fields.status)
    fits = all(text in (b"-", b"") or text.isdigit() for text in numbers)
    return layout if fits and _DATE.fullmatch(fields.date) else None


def is_cdx(line: bytes) -> bool:
    """Return whether a line is a header or a row of a known layout."""
    return bool(header(line) or guess(line))
