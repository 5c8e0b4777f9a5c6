"""A revisit that was there before, and what it refers to: that record must stay what it is.

A revisit of a record that becomes a revisit would be found by no replay tool. Nor may a record at
the URL and second of the revisit itself become what those tools could take it for.
"""

from __future__ import annotations

from dedupindex.capture import Covers
from dedupindex.post_crawl.manifest.lines import Line
from dedupindex.post_crawl.manifest.record_lines import moment_of, short
from dedupindex.urls import unbracket
from dedupindex.warc.record import Record
from dedupindex.warc.record_facts import Refused, checked, http_url, refers_to

REVISIT, STANDING = "revisit", "standing"  # what is said of the record meant, and of its own


def reference(container: int, record: Record) -> Line:
    """A line with the place of a revisit, and the record id, URL, date, digest of what it means.

    Empty is what it does not say; the URL is then its own, the moment 0. Its payload is unknown.
    """
    original = refers_to(record.head.fields)
    url = original.url or unbracket(record.values[0])
    return _line(container, record, original.record_id, url, original.date, REVISIT)


def standing(container: int, record: Record) -> Line:
    """A line with the place of a revisit, and its own record id, URL, date and digest."""
    url, date, record_id = record.values[:3]
    return _line(container, record, unbracket(record_id), unbracket(url), date, STANDING)


def _line(
    container: int, record: Record, record_id: bytes, url: bytes, date: bytes, what: str
) -> Line:
    try:
        moment = moment_of(http_url(url), checked(date))
    except Refused:
        moment = 0
    line = Line(
        container, record.offset, 0, record_id, url, date, record.values[4], b"",
        int(Covers.UNKNOWN), b"", 0, 0, b"\n", b"", moment, what, what,
    )  # fmt: skip
    return short(line)._replace(stay=what, unfit=what)
