"""Turn the fields of a CDX or CDXJ row into an item.

Rows lack much of what a record has: record id, transfer coding, truncation, often the digest
algorithm. Captures from rows are therefore weak evidence (`Evidence.ROW`, `Covers.UNKNOWN`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from operator import itemgetter
from typing import NamedTuple, TypeVar

from dedupindex.capture import Capture, Covers, Evidence, Refusal, Revisit, Rows
from dedupindex.digest import (
    CANONICAL,
    FROM_BASE32,
    Digest,
    Spelling,
    parse_spelled,
    sha1_of_base32,
)
from dedupindex.errors import BadDate, BadDigest
from dedupindex.timestamps import check_digits, date_of_digits
from dedupindex.urlkey import is_http, unbracket

REVISIT_MIME = b"warc/revisit"
METHOD_MARK = b"__wb_method="  # appended by pywb and cdxj-indexer to urlkeys of non-GET requests

UNLABELLED = Spelling(0, 0)  # base32 without a label, the usual spelling in CDX

_METHOD = re.compile(rb"__wb_method=([A-Za-z-]*)")
_MIME = re.compile(rb"[^\s;,\"]+")
_STATUS = re.compile(rb"-?\d{1,5}")
_HEX = re.compile(rb"[0-9a-fA-F]+")
_PRINTABLE = bytes(range(0x20, 0x7F))
_BASE32 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_DAY = itemgetter(slice(8))
_MAX_CACHED = 65536  # distinct values of a column
_LONGEST_CACHED = 300  # bytes of such a value
_T = TypeVar("_T")


class RowFields(NamedTuple):
    """The columns of a row that are used: ``-`` for no value, empty for no such column."""

    url: bytes
    date: bytes
    mime: bytes = b""
    status: bytes = b""
    digest: bytes = b""
    size: bytes = b""
    offset: bytes = b""
    container: bytes = b""
    record_id: bytes = b""
    truncated: bytes = b""  # why the payload is not whole


Row = tuple[bytes, ...]
"""The columns of `RowFields` up to the record id."""


class ColumnValues:
    """A cache of parsed column values, which repeat from row to row.

    It holds only values of plain rows; `CdxSource` parses a row with any other value by itself.
    """

    def __init__(self, name: str) -> None:
        self.days: dict[bytes, bytes] = {}  # b"20261120" -> b"2026-11-20T"
        self.minutes = _minutes()  # b"0914" -> b"09:14:"
        self.seconds = _seconds()  # b"17" -> b"17Z"
        self.statuses: dict[bytes, int] = {b"-": 0, b"": 0}
        self.mimes: dict[bytes, bytes] = {b"-": b"", b"": b""}
        self.containers: dict[bytes, str] = {b"": name}

    def date(self, digits: bytes) -> bytes:
        """Return the WARC-Date of 14 or 17 digits, milliseconds kept; raises `BadDate`."""
        try:
            return self.days[digits[:8]] + self.minutes[digits[8:12]] + self.seconds[digits[12:]]
        except KeyError:
            date = date_of_digits(check_digits(digits))
        _cache(self.days, digits[:8], date[:11])
        return date if len(digits) == 14 else date[:-1] + b"." + digits[14:] + b"Z"

    def add_days(self, days: set[bytes]) -> bool:
        """Cache valid days; return whether all are valid."""
        for day in days - self.days.keys():
            with suppress(BadDate):
                self.date(day + b"000000")
        return self.days.keys() >= days

    def status(self, text: bytes) -> int:
        """Return the HTTP status, 0 for none, negative for failures; raises `ValueError`."""
        cached = self.statuses.get(text)
        if cached is not None:
            return cached
        if not _STATUS.fullmatch(text):
            raise ValueError(f"{text[:20]!r} is not a status")
        status = int(text)
        if status > 0:
            self.statuses[text] = status
        return status

    def mime(self, text: bytes) -> bytes:
        """Return the media type, lower case, without parameters."""
        cached = self.mimes.get(text)
        if cached is not None:
            return cached
        match = _MIME.match(text)
        mime = match[0].lower() if match else b""
        if mime != REVISIT_MIME:
            _cache(self.mimes, text, mime)
        return mime

    def container(self, text: bytes) -> str:
        """Return the name of a file."""
        cached = self.containers.get(text)
        if cached is not None:
            return cached
        name = text.decode("utf-8", "surrogateescape")
        _cache(self.containers, text, name)
        return name


@cache
def _minutes() -> dict[bytes, bytes]:
    pairs = [b"%02d" % number for number in range(60)]
    return {hour + minute: hour + b":" + minute + b":" for hour in pairs[:24] for minute in pairs}


@cache
def _seconds() -> dict[bytes, bytes]:
    return {b"%02d" % second: b"%02dZ" % second for second in range(60)}


def _cache(values: dict[bytes, _T], text: bytes, value: _T) -> None:
    """Add a value to a cache; a full cache is cleared, but for its preset values."""
    if len(text) > _LONGEST_CACHED:
        return
    if len(values) >= _MAX_CACHED:
        preset = [(known, values[known]) for known in (b"-", b"") if known in values]
        values.clear()
        values.update(preset)
    values[text] = value


class RowReader:
    """Turns the fields of rows into items."""

    def __init__(self, name: str, digest_algorithm: str) -> None:
        self.name = name
        self.algorithm = digest_algorithm
        self.values = ColumnValues(name)

    def item(self, fields: RowFields) -> Capture | Revisit | Refusal:
        """Return the item of a row; raises `ValueError` for an invalid number."""
        status = self.values.status(fields.status)
        size, offset = _number(fields.size), _number(fields.offset)
        url = unbracket(fields.url)
        if not is_http(url):
            return Refusal("not-http")
        if status < 0:
            return Refusal("fetch-failed")
        try:
            date = self.values.date(fields.date)
            digest, spelling = read_digest(fields.digest, self.algorithm)
        except BadDate:
            return Refusal("bad-date")
        except BadDigest:
            return Refusal("bad-digest")
        if fields.truncated not in (b"", b"-"):
            return Refusal("truncated")
        mime = self.values.mime(fields.mime)
        revisit = mime == REVISIT_MIME or fields.container == b"-"
        record_id = unbracket(fields.record_id)
        capture = Capture(
            digest,
            spelling,
            url,
            date,
            Evidence.REVISIT if revisit else Evidence.ROW,
            Covers.UNKNOWN,
            status,
            b"" if mime == REVISIT_MIME else mime,
            size,
            size >= 0,
            b"" if record_id == b"-" else record_id,
            self.name if fields.container == b"-" else self.values.container(fields.container),
            -1 if fields.container in (b"", b"-") else offset,
        )
        return Revisit(capture, None) if revisit else capture

    def columns(self, columns: Iterable[Sequence[bytes]]) -> Rows:
        """Return plain rows, given as the columns of `Row`.

        The caller has cached the names of containers, and checked date, size and offset, and that
        digests have 32 characters. Raises `KeyError` or `ValueError` for other rows.
        """
        urls, dates, mimes, statuses, digests, sizes, offsets, containers, record_ids = columns
        values, count = self.values, len(urls)
        if not values.add_days(set(map(_DAY, dates))) or b"".join(urls).translate(None, _PRINTABLE):
            raise ValueError("not plain")
        status_of, mime_of = values.statuses.__getitem__, values.mimes.__getitem__
        names = list(map(values.containers.__getitem__, containers))
        raw = int(b"".join(digests).translate(FROM_BASE32), 32).to_bytes(20 * count)
        return Rows(
            UNLABELLED,
            [raw[at : at + 20] for at in range(0, len(raw), 20)],
            urls,
            dates,
            list(zip(map(status_of, statuses), map(mime_of, mimes), strict=True)),
            list(map(int, sizes)) if sizes[0] else [-1] * count,
            list(map(int, offsets)) if offsets[0] and containers[0] else [-1] * count,
            names,
            record_ids,
        )

    def plain(self, rows: Iterable[Row]) -> list[bool]:
        """Return which rows `columns` accepts."""
        values = self.values
        return [
            url != b""
            and not url.translate(None, _PRINTABLE)
            and date[:8] in values.days
            and mime in values.mimes
            and status in values.statuses
            and not digest.translate(None, _BASE32)
            and container in values.containers
            for url, date, mime, status, digest, _, _, container, _ in rows
        ]


def other_method(urlkey: bytes) -> bool:
    """Return whether a row is of a request other than GET."""
    return any(method.lower() != b"get" for method in _METHOD.findall(urlkey))


def read_digest(text: bytes, algorithm: str) -> tuple[Digest, Spelling]:
    """Return a digest of a row or log, and its spelling; raises `BadDigest`.

    A digest without a label is of `algorithm` if its length allows that, else SHA-256 if it has 64
    hex digits. 32 hex digits are an MD5, even if they could be base32.
    """
    value = text.removeprefix(b"sha1:")
    labelled = len(value) < len(text)
    if labelled or algorithm == "sha1":
        try:
            return Digest("sha1", sha1_of_base32(value)), CANONICAL if labelled else UNLABELLED
        except ValueError:
            pass  # another spelling, or not a digest
    unlabelled = algorithm
    if b":" not in text and _HEX.fullmatch(text):
        if len(text) == 32 and algorithm != "md5":
            raise BadDigest(f"32 hex digits without a label are no {algorithm}: {text.decode()}")
        if len(text) == 64 and algorithm not in ("sha256", "blake3"):
            unlabelled = "sha256"
        if len(text) == 40:
            unlabelled = "sha1"
    try:
        return parse_spelled(text.decode("ascii"), unlabelled=unlabelled)
    except UnicodeDecodeError as error:
        raise BadDigest(f"no digest: {text[:64]!r}") from error


def _number(text: bytes) -> int:
    if text in (b"-", b""):
        return -1
    if not text.isdigit() or len(text) > 18:
        raise ValueError(f"{text[:20]!r} is not a size or offset")
    return int(text)
