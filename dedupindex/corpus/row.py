"""What is known of a capture before its record is read: the columns of a CDX, and a little more."""

from __future__ import annotations

from typing import Any, NamedTuple

from dedupindex.errors import BadDate
from dedupindex.lookup.render_json import url_as_json
from dedupindex.timestamps import check_digits, date_of_digits
from dedupindex.urlkey import urlkey

COLUMNS = {  # of every relation of captures; what is not known is NULL
    "surt": "VARCHAR",
    "timestamp": "VARCHAR",  # 14 digits
    "url": "VARCHAR",
    "mime": "VARCHAR",
    "status": "INTEGER",
    "digest": "VARCHAR",  # as it is spelled
    "redirect": "VARCHAR",
    "meta": "VARCHAR",
    "length": "BIGINT",  # bytes of the record in its container
    "offset": "BIGINT",
    "container": "VARCHAR",  # its name or path
    "beside": "VARCHAR",  # the directory of what told of it: containers may be named from there
    "revisit": "BOOLEAN",
    "to_url": "VARCHAR",  # what a revisit says that it repeats
    "to_timestamp": "VARCHAR",
    "unmodified": "BOOLEAN",  # a revisit for 304 Not Modified: its digest is not the payload's
    "payload_key": "VARCHAR",  # of a revisit, once its original is looked for: what it repeats
    "at_beside": "VARCHAR",
    "at_container": "VARCHAR",  # where the payload is, if not in the record itself
    "at_offset": "BIGINT",
    "at_length": "BIGINT",
    "good": "BOOLEAN",  # False: a line that could not be read; nothing else of it counts
}
_RECORD = ("surtUrl", "timestamp", "originalUrl", "mime", "status", "digest", "redirectUrl", "meta",
           "compressedSize")  # fmt: skip


class RecordPlace(NamedTuple):
    """Where a record is."""

    container: str  # path or address; empty if that is not known
    offset: int  # -1: not known
    length: int  # -1: not known


class CorpusRow(NamedTuple):
    """One capture as the metadata has it; None is what is not known."""

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
    unmodified: bool
    container: str | None  # as the metadata name it
    record: RecordPlace
    payload: RecordPlace | None  # of a revisit's original, None if there is none
    named_url: str | None = None  # what the record of a revisit names, whatever is read for it
    named_timestamp: str | None = None

    @property
    def key(self) -> str:
        """The URL in its canonical form."""
        return self.surt or urlkey(self.url.encode()).decode("utf-8", "backslashreplace")

    @property
    def revisit_of(self) -> dict[str, str] | None:
        """Which capture a revisit repeats: what it names itself, else what is read for it.

        Who replays it looks for what it names, and an index may have the payload elsewhere.
        """
        url, timestamp = self.named_url, self.named_timestamp
        if not (url and timestamp):
            url, timestamp = self.to_url, self.to_timestamp
        if not (self.revisit and url and timestamp):
            return None
        return {"originalUrl": url, "timestamp": iso(timestamp)}

    def as_json(self) -> dict[str, Any]:
        """The object ``record``, with the names that ArchiveSpark gives it."""
        mime = self.mime or ("warc/revisit" if self.revisit else None)
        values = (
            self.key, iso(self.timestamp), self.url, mime or "-", self.status,
            self.digest or "-", self.redirect or "-", self.meta or "-", self.length,
        )  # fmt: skip
        said: dict[str, Any] = dict(zip(_RECORD, values, strict=True))
        if named := self.revisit_of:
            said["revisitOf"] = named
        return said


def iso(digits: str) -> str:
    """14 digits as ISO 8601 with zone; digits that name no time stay as they are."""
    try:
        return date_of_digits(check_digits(digits.encode())).decode()
    except BadDate:
        return digits


def shown(text: bytes) -> str:
    """Bytes of the web as text: what is no UTF-8 is escaped as in URLs."""
    return url_as_json(text)["url"]
