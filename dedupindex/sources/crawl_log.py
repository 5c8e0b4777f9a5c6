"""Heritrix crawl.log, which warcprox writes too: one line per URI that was tried.

Fields are separated by runs of blanks, ``-`` means no value:

    1 logged at    2 status        3 bytes of payload    4 URI       5 hops     6 via    7 mime
    8 thread       9 fetch began, 17 digits, + duration in ms        10 digest  11 source tag
    12 annotations, joined by commas, may contain blanks
    13 one JSON object, if the crawler logs extra information

A line records what was fetched, not that it was stored: only the annotations mark duplicates (in
eight dialects), truncated and unwritten responses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import orjson

from dedupindex.capture import Capture, Evidence, Item, RefersTo, Refusal, Revisit
from dedupindex.errors import BadDate, BadDigest
from dedupindex.sources.line_source import TextSource
from dedupindex.sources.rows import ColumnValues, read_digest
from dedupindex.timestamps import check_date
from dedupindex.urlkey import is_http, unbracket

_MIN_FIELDS = 10  # the digest is the tenth
_NOT_HTTP = (1, 1001, 2001)  # status codes of Heritrix for a successful DNS or whois lookup
_DUPLICATE = re.compile(
    rb"(?:^|[,\s])(?:duplicate(?=[:,\s]|$)|warcRevisit:|Revisit:IdenticalPayloadDigest)"
)
_NOT_MODIFIED = re.compile(rb"server-not-modified|warcRevisit:notModified")
_TRUNCATED = re.compile(rb"(?:^|[,\s])(?:lenTrunc|timeTrunc|headerTrunc)(?=[,\s]|$)")
_UNWRITTEN = re.compile(rb"(?:^|[,\s])unwritten:")
_BEGAN = re.compile(rb"(\d{14})(?:\d{3})?(?:[+;]\d+)?")
_INTEGER = re.compile(rb"-?\d{1,18}")
_JSON_TRIES = 32  # opening braces tried, from the last one; hostile lines have more
_NOTHING: dict[str, Any] = {}

_FIRST = re.compile(
    rb"(?:\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z|\d{17})\s+-?\d+\s+(?:-|-?\d+)"
    rb"(?:\s+\S+){6}\s+\S+"
)
_WITH_URI = re.compile(rb"(?:\S+\s+){3}<?[A-Za-z][A-Za-z0-9+.-]*:")


def is_crawl_log(line: bytes) -> bool:
    """Return whether the first line of a file is like that of a crawl log."""
    return _FIRST.match(line) is not None


def has_uri(line: bytes) -> bool:
    """Return whether such a line has a URI, as those of Heritrix's other logs have not."""
    return _WITH_URI.match(line) is not None


class CrawlLogSource(TextSource):
    """Captures of a crawl log."""

    def _set_up(self) -> None:
        self._values = ColumnValues(self.name)

    def _parse(self, number: int, block: bytes) -> Iterator[Item]:
        for line_number, line in enumerate(block.split(b"\n"), number):
            if not line.strip():
                continue
            try:
                yield self._item(line)
            except ValueError as error:
                yield from self._bad_line(line_number, str(error), line)

    def _parse_cut(self, number: int, line: bytes) -> Iterator[Item]:
        """Refuse a cut line, which may have lost the annotation of a duplicate."""
        return self._bad_line(number, "the last line is cut short", line)

    def _item(self, line: bytes) -> Item:
        """Return the item of a line; raises `ValueError` if it is malformed."""
        fields = line.split(None, 11)
        if len(fields) < _MIN_FIELDS:
            raise ValueError(f"{len(fields)} fields, a crawl log has at least {_MIN_FIELDS}")
        fields[3] = unbracket(fields[3])
        status, size, url = fields[1], fields[2], fields[3]
        if not _INTEGER.fullmatch(status) or not (size == b"-" or _INTEGER.fullmatch(size)):
            raise ValueError("status or size is not a number")
        annotations, extra = _annotations(fields[11]) if len(fields) > 11 else (b"", _NOTHING)
        reason = _refusal_reason(int(status), size, url, annotations, extra)
        if reason:
            return Refusal(reason)
        duplicate = self._is_duplicate(annotations, extra)
        try:
            capture = self._capture(fields, extra, duplicate=duplicate)
        except BadDate:
            return Refusal("no-date" if fields[8] == b"-" else "bad-date")
        except BadDigest:
            other = fields[9].startswith(b"SHA1:")
            return Refusal("not-payload-digest" if other else "bad-digest")
        if not duplicate:
            return capture
        return Revisit(capture, self._refers_to(annotations, extra))

    def _capture(self, fields: list[bytes], extra: dict[str, Any], *, duplicate: bool) -> Capture:
        began = _BEGAN.fullmatch(fields[8])
        if began is None:
            raise BadDate(f"no time of a fetch: {fields[8]!r}")
        text = fields[9]
        if text.startswith(b"SHA1:"):  # HTTPContentDigest: of stripped text, not of the payload
            raise BadDigest("a digest of HTTPContentDigest")
        digest, spelling = read_digest(text, self.options.digest_algorithm)
        name, offset = extra.get("warcFilename"), extra.get("warcFileOffset")
        return Capture(
            digest,
            spelling,
            fields[3],
            self._values.date(began[1]),
            Evidence.REVISIT if duplicate else Evidence.ROW,
            status=int(fields[1]),
            mime=b"" if fields[6] == b"no-type" else self._values.mime(fields[6]),
            size=int(fields[2]),
            container=name if isinstance(name, str) and name else self.name,
            offset=offset if isinstance(offset, int) and 0 <= offset < 1 << 63 else -1,
        )

    def _is_duplicate(self, annotations: bytes, extra: dict[str, Any]) -> bool:
        if "RevisitProfile" in extra or "RevisitRefersToURI" in extra:
            return True
        expressions = (_DUPLICATE, self.options.revisit_annotation)
        return any(expression and expression.search(annotations) for expression in expressions)

    def _refers_to(self, annotations: bytes, extra: dict[str, Any]) -> RefersTo | None:
        """Return the original that a duplicate names; None if it names none."""
        url, date = extra.get("RevisitRefersToURI"), extra.get("RevisitRefersToDate")
        if not isinstance(url, str) or not isinstance(date, str):
            return None
        exact = unbracket(url.encode())
        if not is_http(exact):
            return None
        if _NOT_MODIFIED.search(annotations) or "not-modified" in str(extra.get("RevisitProfile")):
            return None
        written = date.encode()
        try:
            written = self._values.date(written) if written.isdigit() else check_date(written)
        except BadDate:
            return None
        return RefersTo(exact, written)


def _annotations(rest: bytes) -> tuple[bytes, dict[str, Any]]:
    """Split what follows the source tag into annotations and the JSON object at its end."""
    rest = rest.rstrip()
    brace = len(rest)
    for _ in range(_JSON_TRIES if rest.endswith(b"}") else 0):
        brace = rest.rfind(b"{", 0, brace)
        if brace < 0:
            break
        if not brace or rest[brace - 1] in b" \t":
            with suppress(ValueError):
                return rest[:brace], orjson.loads(rest[brace:])
    return rest, _NOTHING


def _refusal_reason(
    status: int, size: bytes, url: bytes, annotations: bytes, extra: dict[str, Any]
) -> str:
    """Return why a line is not of a capture, "" if it may be."""
    if not is_http(url) or status in _NOT_HTTP:
        return "not-http"
    if status <= 0 or not size.isdigit():
        return "fetch-failed"
    if str(extra.get("method", "GET")).upper() != "GET":
        return "method"
    if _UNWRITTEN.search(annotations):
        return "unwritten"
    return "truncated" if _TRUNCATED.search(annotations) else ""
