"""What a revisit that was there before refers to: that record must stay what it is.

A revisit of a record that becomes a revisit would be found by no replay tool.
"""

from __future__ import annotations

from dedupindex.capture import Covers
from dedupindex.manifest.judge import moment_of, short
from dedupindex.manifest.line import Line
from dedupindex.sources.stated import Refused, bare, checked, http_url
from dedupindex.warc.record import Record

REVISIT = "revisit"


def reference(container: int, record: Record) -> Line:
    """A line with the place of a revisit, and the record id, URL, date, digest of what it means.

    Empty is what it does not say; the URL is then its own, the moment 0. Its payload is unknown.
    """
    fields = record.head.fields
    url = bare(fields.get(b"WARC-Refers-To-Target-URI", b"")) or bare(record.values[0])
    date = fields.get(b"WARC-Refers-To-Date", b"")
    try:
        moment = moment_of(http_url(url), checked(date))
    except Refused:
        moment = 0
    record_id = bare(fields.get(b"WARC-Refers-To", b""))
    line = Line(
        container, record.offset, 0, record_id, url, date, record.values[4], b"",
        int(Covers.UNKNOWN), b"", 0, 0, b"\n", moment, REVISIT, REVISIT,
    )  # fmt: skip
    return short(line)
