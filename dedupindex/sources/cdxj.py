"""CDXJ files: ``urlkey timestamp {json}``, as pywb, cdxj-indexer, jwarc and OutbackCDX write them.

They differ in the JSON: numbers as strings or as numbers, digests with or without ``sha1:``,
absent values left out or "-", revisits with or without a status. Lines that begin with ``!`` are
metadata of the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from dedupindex.capture import Item, Refusal
from dedupindex.sources.line_source import TextSource
from dedupindex.sources.rows import RowFields, RowReader, other_method

_KEYS = ("mime", "status", "digest", "length", "offset", "filename")  # in the order of `RowFields`
_TRUNCATED = "truncated"  # Common Crawl: length, time or disconnect


class CdxjSource(TextSource):
    """Captures of a CDXJ file."""

    def _set_up(self) -> None:
        self._rows = RowReader(self.name, self.options.digest_algorithm)

    def _parse(self, number: int, block: bytes) -> Iterator[Item]:
        for line_number, line in enumerate(block.split(b"\n"), number):
            if not line.strip() or line.startswith(b"!"):
                continue
            if line.startswith(b"@alias "):
                yield Refusal("alias")
                continue
            try:
                yield self._item(line)
            except (ValueError, TypeError) as error:
                yield from self._bad_line(line_number, str(error), line)

    def _item(self, line: bytes) -> Item:
        """Return the item of a line; raises `ValueError` or `TypeError` if it is malformed."""
        parts = line.split(b" ", 2)
        if len(parts) != 3:
            raise ValueError("not 'urlkey timestamp {json}'")
        urlkey, digits, text = parts
        try:
            row = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise ValueError(f"bad JSON at its character {error.pos}: {error.msg}") from error
        if not isinstance(row, dict):
            raise ValueError("the third part is no JSON object")
        if other_method(urlkey) or str(row.get("method", "GET")).upper() != "GET":
            return Refusal("method")
        url = _bytes(row.get("url"))
        if not url:
            raise ValueError("no url in the JSON")
        return self._rows.item(self._fields(url, digits, row))

    def _fields(self, url: bytes, digits: bytes, row: dict[str, Any]) -> RowFields:
        """Return the columns of a row; raises `TypeError`."""
        fields = RowFields(url, digits, *[_bytes(row.get(key)) for key in _KEYS])
        return fields._replace(truncated=_bytes(row[_TRUNCATED])) if _TRUNCATED in row else fields


def _bytes(value: Any) -> bytes:
    """Return a value of the JSON as it would be in a CDX."""
    if value is None:
        return b""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, int) and not isinstance(value, bool):
        return b"%d" % value
    raise TypeError(f"{value!r} is neither text nor a whole number")
