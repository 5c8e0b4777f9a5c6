"""The revisit record that replaces a response: profile identical-payload-digest (WARC 1.1, 6.7.2).

Only what must change is changed: type and length, the digest of a block that is now shorter, and
the fields that name the original, which come last. All other header lines stay byte for byte, and
so does the HTTP header, which is all that the block keeps.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from dedupindex.digest import Spelling, new_hash, parse_spelled

CRLF = b"\r\n"
END = CRLF * 2
PROFILE = b"http://netpreserve.org/warc/%b/revisit/identical-payload-digest"
ADDED = frozenset(
    (
        b"warc-profile", b"warc-truncated", b"warc-refers-to", b"warc-refers-to-target-uri",
        b"warc-refers-to-date",
    )
)  # fmt: skip
"""Fields that a revisit gets, in lower case. A response that has one already is not rewritten."""

_LINES = re.compile(rb"[^\n]*\n(?:[ \t][^\n]*\n)*")
_NAME = re.compile(rb"([^:\n]*):[ \t]*")
_SPACE = b" \t\r"


class Reference(NamedTuple):
    """The original, as a revisit names it."""

    url: bytes  # without angle brackets
    date: bytes  # its WARC-Date, byte for byte
    record_id: bytes = b""  # without angle brackets; empty if it is not to be named
    digest: bytes = b""  # its WARC-Payload-Digest, byte for byte


def revisit(header: bytes, http_header: bytes, reference: Reference) -> bytes:
    """Return the whole revisit record.

    `header` is that of a WARC/1.0 or 1.1 response, from the version line to the blank line, with
    CRLF; `http_header` is the beginning of its block.
    """
    lines = _LINES.findall(header, 0, len(header) - len(CRLF))
    version = lines[0].strip()[len(b"WARC/") :]
    edited = [lines[0]]
    has_digest = False
    for line in lines[1:]:
        match = _NAME.match(line)
        name = match[1].strip(_SPACE).lower() if match else b""
        has_digest = has_digest or name == b"warc-payload-digest"
        value = _new_value(name, line[match.end() :] if match else b"", http_header)
        edited.append(line if match is None or value is None else match[0] + value + CRLF)
    if not has_digest:
        edited.append(b"WARC-Payload-Digest: " + reference.digest + CRLF)
    edited.append(b"WARC-Profile: " + PROFILE % version + CRLF)
    edited.append(b"WARC-Truncated: length" + CRLF)
    if reference.record_id:
        edited.append(b"WARC-Refers-To: <" + reference.record_id + b">" + CRLF)
    edited.append(b"WARC-Refers-To-Target-URI: " + reference.url + CRLF)
    edited.append(b"WARC-Refers-To-Date: " + refers_to_date(header, reference.date) + CRLF)
    return b"".join((*edited, CRLF, http_header, END))


def refers_to_date(header: bytes, date: bytes) -> bytes:
    """Return the date of an original; WARC/1.0 has no fractions of a second."""
    if header.startswith(b"WARC/1.0") and b"." in date:
        return date.partition(b".")[0] + b"Z"
    return date


def _new_value(name: bytes, value: bytes, http_header: bytes) -> bytes | None:
    """Return the value of a field in the revisit; None if it is not changed."""
    if name == b"warc-type":
        return b"revisit"
    if name == b"content-length":
        return b"%d" % len(http_header)
    if name == b"warc-block-digest":
        return respelled(value.strip(_SPACE + CRLF), http_header)
    return None


_parse = lru_cache(256)(parse_spelled)  # of one text for a copy and its original


def respelled(text: bytes, data: bytes) -> bytes:
    """Return the digest of `data` in the algorithm and spelling of `text`; raises `BadDigest`."""
    label, colon, _ = text.rpartition(b":")
    digest, spelling = _parse(text.decode("latin-1"))
    running = new_hash(digest.algorithm)
    running.update(data)
    value = digest._replace(raw=running.digest()).spelled(Spelling(0, spelling.encoding))
    return label + colon + value.encode("latin-1")
