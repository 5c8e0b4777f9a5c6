"""The columns of Parquet tables of captures: names, types, and SQL of DuckDB for their values.

Names are those of the columnar index of Common Crawl, or else the keys of a CDXJ. A table with
others is read with ``--columns``, which names the columns by those of Common Crawl:

    url  fetch_time  content_digest  content_mime_type  fetch_status  content_truncated
    warc_filename  warc_record_offset  warc_record_length  warc_record_id
    url_surtkey  fetch_redirect  method
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import BinaryIO, NamedTuple

from dedupindex.errors import BadInput, BadSource

MAGIC = b"PAR1"
_NAMES = {  # that of Common Crawl -> another one, as in a CDXJ
    "url": "url",
    "fetch_time": "timestamp",
    "content_digest": "digest",
    "content_mime_type": "mime",
    "fetch_status": "status",
    "content_truncated": "truncated",
    "warc_filename": "filename",
    "warc_record_offset": "offset",
    "warc_record_length": "length",
    "warc_record_id": "record_id",
    "url_surtkey": "urlkey",
    "fetch_redirect": "redirect",
    "method": "method",
}
_CAPTURE = ("url", "fetch_time", "content_digest")
_NUMBERS = ("fetch_status", "warc_record_offset", "warc_record_length")
_TEXT = ("VARCHAR", "BLOB")
_INTEGERS = (
    *("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT"),
    *("UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"),
)
_TIMES = ("TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE")
_ISO = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d{3})?Z?"
_SECONDS = "%Y%m%d%H%M%S"
_LARGEST_FOOTER = 1 << 28  # bytes
_END = 8  # bytes: the length of the footer, and `MAGIC`

Names = Mapping[str, str]
"""Columns of a table, by those of Common Crawl."""
NO_NAMES: Names = {}


def parse_names(text: str) -> dict[str, str]:
    """Return the columns that ``--columns NAME=COLUMN,…`` names; raises `BadInput`."""
    names = {}
    for pair in filter(None, text.split(",")):
        name, sign, column = pair.partition("=")
        if not (sign and column) or name not in _NAMES:
            raise BadInput(
                f"--columns {pair}: write NAME=COLUMN, with a COLUMN of the table and a NAME of "
                f"{', '.join(_NAMES)}"
            )
        names[name] = column
    return names


class Column(NamedTuple):
    """A column of a table; its values as SQL are NULL where the table has no value."""

    name: str
    kind: str  # its type, in DuckDB

    @property
    def value(self) -> str:
        """SQL of the value."""
        return '"' + self.name.replace('"', '""') + '"'

    @property
    def is_time(self) -> bool:
        return self.kind in _TIMES

    @property
    def text(self) -> str:
        """SQL of the value as text; of bytes that are not UTF-8 it is NULL."""
        if self.kind == "BLOB":
            return f"try(decode({self.value}))"
        return self.value if self.kind == "VARCHAR" else f"CAST({self.value} AS VARCHAR)"

    @property
    def bytes(self) -> str:
        """SQL of the text as bytes, empty where the table has no value."""
        text = self.value if self.kind == "BLOB" else f"encode({self.text})"
        return f"coalesce({text}, ''::BLOB)"

    @property
    def micros(self) -> str:
        """SQL of a time as microseconds since 1970; NULL if it is infinite."""
        return f"epoch_us({self.value})"

    @property
    def digits(self) -> str:
        """SQL of a time as 14 digits, or as 17 if it has milliseconds; other text unchanged."""
        if self.is_time:
            time = f"make_timestamp({self.micros})"  # in UTC, whatever the zone
            return (
                f"CASE WHEN {self.micros} % 1000000 = 0 THEN strftime({time}, '{_SECONDS}') "
                f"ELSE strftime({time}, '{_SECONDS}%g') END"
            )
        if self.kind in _INTEGERS:
            return self.text
        digits = f"regexp_replace({self.text}, '[^0-9]', '', 'g')"
        is_iso = f"regexp_full_match({self.text}, '{_ISO}')"
        return f"CASE WHEN {is_iso} THEN {digits} ELSE {self.text} END"

    def is_number(self, digits: int) -> str:
        """Return SQL of whether the value is a number of at most so many digits, not negative."""
        if self.kind in _INTEGERS:
            return f"({self.value} BETWEEN 0 AND {10**digits - 1})"
        return f"regexp_full_match({self.text}, '[0-9]{{1,{digits}}}')"


def find_columns(
    place: str, types: Mapping[str, str], names: Names, required: Collection[str] = _CAPTURE
) -> dict[str, Column]:
    """Return the columns of a table by the names of Common Crawl.

    `types` are those of all its columns, `names` the columns that the user names. Raises
    `BadSource`, with the `place` of the table, if one of these or of `required` is missing, or a
    type does not fit.
    """
    found = {}
    for name, other in _NAMES.items():
        column = names.get(name) or (name if name in types else other)
        if column not in types:
            if name in names or name in required:
                asked = column if name in names else " or ".join(dict.fromkeys((name, other)))
                raise BadSource(
                    f"{place} is a Parquet table without a column {asked}; it has "
                    f"{', '.join(types)}: say which one it is with --columns {name}=COLUMN"
                )
            continue
        kind = types[column]
        fits: Collection[str] = _TEXT
        if name == "fetch_time":
            fits = (*_TIMES, *_INTEGERS, *_TEXT)
        elif name in _NUMBERS:
            fits = (*_INTEGERS, *_TEXT)
        if kind not in fits:
            raise BadSource(
                f"{place} is a Parquet table whose column {column} cannot be read as {name}: it "
                f"has the type {kind}"
            )
        found[name] = Column(column, kind)
    return found


def read_footer(stream: BinaryIO) -> bytes:
    """Return the end of a Parquet file, which names its columns; empty if it is damaged."""
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(size - _END, 0))
    end = stream.read(_END)
    length = int.from_bytes(end[:4], "little")
    if end[4:] != MAGIC or not 0 < length <= min(size - _END, _LARGEST_FOOTER):
        return b""
    stream.seek(size - _END - length)
    return stream.read(length)


def is_table(stream: BinaryIO, names: Names) -> bool:
    """Return whether a Parquet file may be a table of captures.

    Only its end is read. A damaged file may be one: the reader says what is wrong.
    """
    footer = read_footer(stream)
    return not footer or all(
        _is_named(footer, name, names.get(name) or _NAMES[name], named=name in names)
        for name in _CAPTURE
    )


def _is_named(footer: bytes, name: str, other: str, *, named: bool) -> bool:
    wanted = (other,) if named else (name, other)
    texts = (column.encode() for column in wanted)
    # a name follows its length, of one byte if it is short
    return any((bytes([len(text)]) if len(text) < 128 else b"") + text in footer for text in texts)
