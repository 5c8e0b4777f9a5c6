"""One row of a capture index, whatever the file format: its fields become one item.

CDX and CDXJ say the same in two notations, and both say little: no record id, no transfer coding,
no truncation, often no digest algorithm. A row may therefore only suggest an original; captures
made here say so (`Evidence.ROW`, `Covers.UNKNOWN`).
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache
from typing import NamedTuple, TypeVar

from dedupindex.capture import Capture, Covers, Evidence, Refusal, Revisit
from dedupindex.digest import CANONICAL, Digest, Spelling, parse_spelled, sha1_of_base32
from dedupindex.errors import BadDate, BadDigest
from dedupindex.timestamps import check_digits, date_of_digits
from dedupindex.urlkey import is_http, unbracket

REVISIT_MIME = b"warc/revisit"
METHOD_MARK = b"__wb_method="  # pywb and cdxj-indexer append it to urlkeys of other than GET

BARE = Spelling(0, 0)  # base32 without a label, the usual spelling in CDX

_METHOD = re.compile(rb"__wb_method=([A-Za-z-]*)")
_MIME = re.compile(rb"[^\s;,\"]+")
_STATUS = re.compile(rb"-?\d{1,5}")
_HEX = re.compile(rb"[0-9a-fA-F]+")
_KEPT = 65536  # distinct values remembered of each column
_LONGEST_KEPT = 300  # bytes of such a value
_T = TypeVar("_T")


class Fields(NamedTuple):
    """The columns of a row that say something to us.

    ``-`` where the row has nothing to say, empty where it has no such column.
    """

    url: bytes
    date: bytes
    mime: bytes = b""
    status: bytes = b""
    digest: bytes = b""
    size: bytes = b""
    offset: bytes = b""
    container: bytes = b""
    record_id: bytes = b""


class Memory:
    """Values of columns that repeat, each parsed once: most of why a line takes so little time.

    Only what needs no further thought is in here, so a missing key sends a line the careful way.
    """

    def __init__(self, name: str) -> None:
        self.days: dict[bytes, bytes] = {}  # b"20261120" -> b"2026-11-20T"
        self.minutes = _minutes()  # b"0914" -> b"09:14:"
        self.seconds = _seconds()  # b"17" -> b"17Z"
        self.statuses: dict[bytes, int] = {b"-": 0, b"": 0}
        self.mimes: dict[bytes, bytes] = {b"-": b"", b"": b""}
        self.containers: dict[bytes, str] = {b"": name}

    def date(self, digits: bytes) -> bytes:
        """WARC-Date of 14 or 17 digits, milliseconds kept; raises `BadDate`."""
        try:
            return self.days[digits[:8]] + self.minutes[digits[8:12]] + self.seconds[digits[12:]]
        except KeyError:
            date = date_of_digits(check_digits(digits))
        _keep(self.days, digits[:8], date[:11])
        return date if len(digits) == 14 else date[:-1] + b"." + digits[14:] + b"Z"

    def learn_days(self, days: set[bytes]) -> bool:
        """Know those of `days` that exist; whether all do."""
        for day in days - self.days.keys():
            with suppress(BadDate):
                self.date(day + b"000000")
        return self.days.keys() >= days

    def status(self, text: bytes) -> int:
        """HTTP status, 0 for none, below 0 for failures; `ValueError` for anything else."""
        known = self.statuses.get(text)
        if known is not None:
            return known
        if not _STATUS.fullmatch(text):
            raise ValueError(f"{text[:20]!r} is no status")
        status = int(text)
        if status > 0:
            self.statuses[text] = status
        return status

    def mime(self, text: bytes) -> bytes:
        """The media type, lower case, without parameters."""
        known = self.mimes.get(text)
        if known is not None:
            return known
        match = _MIME.match(text)
        mime = match[0].lower() if match else b""
        if mime != REVISIT_MIME:
            _keep(self.mimes, text, mime)
        return mime

    def container(self, text: bytes) -> str:
        """The name of a file."""
        known = self.containers.get(text)
        if known is not None:
            return known
        name = text.decode("utf-8", "surrogateescape")
        _keep(self.containers, text, name)
        return name


@cache
def _minutes() -> dict[bytes, bytes]:
    pairs = [b"%02d" % number for number in range(60)]
    return {hour + minute: hour + b":" + minute + b":" for hour in pairs[:24] for minute in pairs}


@cache
def _seconds() -> dict[bytes, bytes]:
    return {b"%02d" % second: b"%02dZ" % second for second in range(60)}


def _keep(values: dict[bytes, _T], text: bytes, value: _T) -> None:
    """Remember a value; what is learnt is forgotten when it is too much, what is preset never."""
    if len(text) > _LONGEST_KEPT:
        return
    if len(values) >= _KEPT:
        preset = [(known, values[known]) for known in (b"-", b"") if known in values]
        values.clear()
        values.update(preset)
    values[text] = value


class RowReader:
    """Makes one item of the fields of one row."""

    def __init__(self, name: str, digest_algorithm: str) -> None:
        self.name = name
        self.algorithm = digest_algorithm
        self.memory = Memory(name)

    def item(self, fields: Fields) -> Capture | Revisit | Refusal:
        """What a row says. `ValueError` if a column holds what such a column cannot hold."""
        status = self.memory.status(fields.status)
        size, offset = _number(fields.size), _number(fields.offset)
        url = unbracket(fields.url)
        if not is_http(url):
            return Refusal("not-http")
        if status < 0:
            return Refusal("fetch-failed")
        try:
            date = self.memory.date(fields.date)
            digest, spelling = read_digest(fields.digest, self.algorithm)
        except BadDate:
            return Refusal("bad-date")
        except BadDigest:
            return Refusal("bad-digest")
        mime = self.memory.mime(fields.mime)
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
            self.name if fields.container == b"-" else self.memory.container(fields.container),
            offset,
        )
        return Revisit(capture, None) if revisit else capture


def other_method(urlkey: bytes) -> bool:
    """Whether a row is of a POST or the like: its URL alone does not say what was asked."""
    return any(method.lower() != b"get" for method in _METHOD.findall(urlkey))


def read_digest(text: bytes, algorithm: str) -> tuple[Digest, Spelling]:
    """A digest as rows and logs write it; raises `BadDigest`.

    Without a label it is of `algorithm` if its length allows that, else SHA-256 when it has the
    64 hex digits of one. 32 lower-case hex digits are an MD5 even if they could be base32.
    """
    value = text.removeprefix(b"sha1:")
    labelled = len(value) < len(text)
    if labelled or algorithm == "sha1":
        try:
            return Digest("sha1", sha1_of_base32(value)), CANONICAL if labelled else BARE
        except ValueError:
            pass  # in another spelling, or none at all
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
        raise ValueError(f"{text[:20]!r} is no size or offset")
    return int(text)
