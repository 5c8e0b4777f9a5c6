"""Why records and rows are not taken as captures, in words for reports.

``docs/formats.md`` has all reasons, with more about each.
"""

from __future__ import annotations

OF_RECORDS = {
    "ambiguous-line": "a URL record of an ARC file that can be read in two ways",
    "chunked-without-digest": "a chunked body, and no digest that shows if it covers the chunks",
    "cut-digest": "a stated digest that its writer cut at its first zero byte",
    "digest-mismatch": "the payload does not have the stated digest",
    "empty": "an empty body",
    "method": "the answer to a request other than GET",
    "no-end-of-headers": "the HTTP header does not end",
    "no-record-id": "no WARC-Record-ID",
    "no-url": "no WARC-Target-URI",
    "not-http": "no HTTP response",
    "partial": "part of a document (206, Content-Range)",
    "repeated-field": "a field that is allowed once occurs twice",
    "segmented": "one segment of a record",
    "shared-member": "several records in one gzip member or zstd frame",
    "truncated": "cut short by the crawler",
    "unknown-version": "a version of WARC other than 1.0 and 1.1",
}
"""Those for which a record is not rewritten either."""
WORDS = {
    **OF_RECORDS,
    "alias": "an @alias line of OutbackCDX",
    "bad-date": "no date, or none that names a second",
    "bad-digest": "no digest, or a text that is none",
    "bad-line": "a line that is not in the format of its file",
    "bad-url": "a URL that no revisit could name exactly",
    "conversion-record": "a WARC conversion record",
    "damaged": "it cannot be read to its end, or is not what it states",
    "fetch-failed": "the fetch failed",
    "metadata-record": "a WARC metadata record",
    "no-columns": "a CDX line under a header without URL, date or digest",
    "no-date": "a log line without a time of fetching",
    "not-payload-digest": "a log line with a digest of stripped text",
    "request-record": "a WARC request record",
    "resource-record": "a WARC resource record",
    "revisit-of-unknown": "a revisit whose original is not in the index",
    "rewritten-url": "a URL of Browsertrix that may differ from that of the record",
    "status": "a status that is not looked up (--status)",
    "uncommitted": "of a crawl of Browsertrix that is not committed",
    "unknown-record-type": "a WARC record of an unknown type",
    "unresolved-revisit": "a revisit that names no original, or not fully",
    "unwritten": "a log line of a capture that was not written",
    "warcinfo-record": "a WARC warcinfo record, or an ARC version block",
}
"""Those of `DuplicationReport.refused`; a source that is a plug-in may have others."""


def in_words(reason: str) -> str:
    """Return a reason with what it means.

    >>> in_words("no-date")
    'no-date: a log line without a time of fetching'
    >>> in_words("of-a-plug-in")
    'of-a-plug-in'
    """
    words = WORDS.get(reason, "")
    return f"{reason}: {words}" if words else reason
