"""The contents of a manifest: containers, and one line for each response in them.

All bytes are as in the file, without the angle brackets around ids and URLs. A record that can
neither become a revisit nor be an original has a line, too, with the reason: so the counts add up,
and manifests from before and after a conversion can be compared.
"""

from __future__ import annotations

from typing import NamedTuple

from blake3 import blake3

_HEADER_HASH = 16  # bytes


class ManifestContainer(NamedTuple):
    """A WARC or ARC file as it was when it was read."""

    number: int  # in its manifest; never given to another file
    root: str  # directory, absolute
    name: str  # path below the root
    size: int  # bytes
    mtime_ns: int
    inode: int
    device: int
    content_hash: str  # BLAKE3 of the file, in hex

    @property
    def path(self) -> str:
        return f"{self.root.rstrip('/')}/{self.name}"


class Line(NamedTuple):
    """One response record.

    The body is what follows the HTTP header, as stored; without an HTTP header, the whole block.
    """

    container: int
    offset: int  # of the gzip member, or of the record in a plain file
    stored: int  # bytes of the member, or of the record in a plain file
    record_id: bytes  # without angle brackets
    url: bytes  # without angle brackets
    date: bytes  # WARC-Date as written
    digest: bytes  # WARC-Payload-Digest as written; empty for none
    payload: bytes  # digest taken now, raw, of what `covers` says; of the body if UNKNOWN
    covers: int  # `capture.Covers`: what `digest` is of; UNKNOWN if it does not match
    strong: bytes  # BLAKE3 of the body, raw
    length: int  # bytes of the body
    status: int  # HTTP; 0 for none
    coding: bytes  # Transfer-Encoding, line feed, Content-Encoding: lower case, stripped
    content_type: bytes  # HTTP, whole: lower case, without white space; empty for none
    replay_key: int  # xxh64 of urlkey and 14 digits, by which replay finds a capture; 0: none
    not_rewritable_reason: str  # why it can never become a revisit, of `REASONS`; empty if it can
    not_original_reason: str  # why it can never be an original, of `REASONS`; empty if it can
    header: bytes = b""  # BLAKE3 of the HTTP header, 16 bytes; empty for none, or if unknown


TYPES = {
    "container": "INTEGER", "offset": "BIGINT", "stored": "BIGINT", "record_id": "VARCHAR",
    "url": "VARCHAR", "date": "VARCHAR", "digest": "VARCHAR", "payload": "BLOB",
    "covers": "TINYINT", "strong": "BLOB", "length": "BIGINT", "status": "SMALLINT",
    "coding": "VARCHAR", "content_type": "VARCHAR", "replay_key": "UBIGINT",
    "not_rewritable_reason": "VARCHAR", "not_original_reason": "VARCHAR", "header": "BLOB",
}  # fmt: skip
"""Columns of the Parquet files: the fields of `Line`."""
TEXTS = frozenset(("record_id", "url", "date", "digest", "coding", "content_type"))
"""Fields of bytes that are a VARCHAR in the Parquet files, decoded as Latin-1."""


def header_hash(header: bytes | memoryview) -> bytes:
    """Return `Line.header` for an HTTP header with its blank line."""
    return blake3(header).digest(_HEADER_HASH)


REASONS = {
    "arc": "an ARC document: ARC files are never rewritten",
    "ambiguous-line": "a URL record of an ARC file that can be read in two ways",
    "bad-date": "no WARC-Date, or none that names a second",
    "bad-digest": "a WARC-Payload-Digest that is not a digest",
    "chunked-without-digest": "a chunked body, and no digest that shows if it covers the chunks",
    "cut-digest": "a stated digest that its writer cut at its first zero byte",
    "damaged": "the file has damage or padding somewhere, and is left as it is",
    "digest-mismatch": "the payload does not have the stated digest",
    "empty": "an empty body",
    "method": "the answer to a request other than GET",
    "no-digest": "no WARC-Payload-Digest",
    "no-end-of-headers": "the HTTP header does not end",
    "no-record-id": "no WARC-Record-ID",
    "no-url": "no WARC-Target-URI",
    "not-exact": "not framed exactly, so that tools read it differently",
    "not-http": "no HTTP response",
    "partial": "part of a document (206, Content-Range)",
    "redirect": "a redirect (3xx): replay tools show no body of a revisit to one",
    "repeated-field": "a field that is allowed once occurs twice",
    "segmented": "one segment of a record",
    "shared-member": "several records in one gzip member",
    "status": "a status without a body of its own (1xx, 204, 304), or none at all",
    "too-long": "fields of more than 256 KiB, of which only the beginning is kept",
    "truncated": "cut short by the crawler",
    "unknown-version": "a version of WARC other than 1.0 and 1.1",
}
"""Why a record can not become a revisit, or be an original, for readers of reports."""
