"""The metadata of a capture: the columns of a CDX, and the original of a revisit."""

from __future__ import annotations

from typing import Any, NamedTuple

from dedupindex.errors import BadDate
from dedupindex.lookup.render_json import url_as_json
from dedupindex.timestamps import check_digits, date_of_digits
from dedupindex.urlkey import urlkey

COLUMNS = {  # of every relation of captures; unknown values are NULL
    "surt": "VARCHAR",
    "timestamp": "VARCHAR",  # 14 digits
    "url": "VARCHAR",
    "mime": "VARCHAR",
    "status": "INTEGER",
    "digest": "VARCHAR",  # in the spelling of the source
    "redirect": "VARCHAR",
    "meta": "VARCHAR",
    "length": "BIGINT",  # bytes of the stored record
    "offset": "BIGINT",
    "container": "VARCHAR",  # name or path of the WARC file
    "origin": "VARCHAR",  # the directory of the list: container names may be relative to it
    "revisit": "BOOLEAN",
    "to_url": "VARCHAR",  # WARC-Refers-To of a revisit
    "to_timestamp": "VARCHAR",
    "unmodified": "BOOLEAN",  # a revisit for 304 Not Modified, whose digest is not the payload's
    "payload_key": "VARCHAR",  # of a revisit: the digest of its original, once resolved
    "at_origin": "VARCHAR",  # the place of a revisit's original
    "at_container": "VARCHAR",
    "at_offset": "BIGINT",
    "at_length": "BIGINT",
    "named_url": "VARCHAR",  # of a cached capture: what a revisit refers to, `CorpusRow.named_url`
    "named_timestamp": "VARCHAR",
    "cached": "VARCHAR",  # where its values are: offset, length and path
    "good": "BOOLEAN",  # False: an invalid line, whose other columns are meaningless
}
_RECORD = ("surtUrl", "timestamp", "originalUrl", "mime", "status", "digest", "redirectUrl", "meta",
           "compressedSize")  # fmt: skip


class RecordPlace(NamedTuple):
    container: str  # path or address of the WARC file; empty if unknown
    offset: int  # -1 if unknown
    length: int  # -1 if unknown


class CorpusRow(NamedTuple):
    """A capture with its metadata; unknown values are None."""

    surt: str | None
    timestamp: str
    url: str
    mime: str | None
    status: int | None
    digest: str | None
    redirect: str | None
    meta: str | None
    length: int | None
    revisit: bool
    to_url: str | None
    to_timestamp: str | None
    unmodified: bool | None
    container: str | None  # as the source names it
    named_url: str | None  # what a revisit refers to, which may differ from what is read
    named_timestamp: str | None
    payload_key: str | None  # of a revisit: the digest of its original
    cached: str | None  # where its values are
    record: RecordPlace
    payload: RecordPlace | None  # of the original of a revisit

    @property
    def key(self) -> str:
        """The canonical URL."""
        return self.surt or urlkey(self.url.encode()).decode("utf-8", "backslashreplace")

    @property
    def revisit_of(self) -> dict[str, str] | None:
        """The capture that a revisit refers to, as replay reads it, or else the one read here."""
        url, timestamp = self.named_url, self.named_timestamp
        if not (url and timestamp):
            url, timestamp = self.to_url, self.to_timestamp
        if not (self.revisit and url and timestamp):
            return None
        return {"originalUrl": url, "timestamp": iso(timestamp)}

    def as_json(self) -> dict[str, Any]:
        """Return the object ``record``, with the names of ArchiveSpark."""
        mime = self.mime or ("warc/revisit" if self.revisit else None)
        values = (
            self.key, iso(self.timestamp), self.url, mime or "-", self.status,
            self.digest or "-", self.redirect or "-", self.meta or "-", self.length,
        )  # fmt: skip
        record: dict[str, Any] = dict(zip(_RECORD, values, strict=True))
        if original := self.revisit_of:
            record["revisitOf"] = original
        return record


def iso(digits: str) -> str:
    """Convert 14 digits to ISO 8601 with zone; an invalid time is returned unchanged."""
    try:
        return date_of_digits(check_digits(digits.encode())).decode()
    except BadDate:
        return digits


def time_of(digits: str) -> str:
    """Return SQL of the TIMESTAMP of 14 digits, NULL for other text.

    Second 60 is the first of the next minute, as for `timestamps.seconds`; DuckDB knows none.
    """
    before = f"CASE WHEN substr({digits}, 13) = '60' THEN left({digits}, 12) || '59' END"
    form = "'%Y%m%d%H%M%S'"
    return (
        f"coalesce(try_strptime({digits}, {form}), "
        f"try_strptime({before}, {form}) + INTERVAL 1 SECOND)"
    )


def seconds_of(digits: str) -> str:
    """Return SQL of 14 digits as seconds since 1970; see `time_of`."""
    return f"CAST(epoch({time_of(digits)}) AS BIGINT)"


def as_text(data: bytes) -> str:
    """Decode bytes; those that are not UTF-8 are percent-encoded."""
    return url_as_json(data)["url"]
