"""A response record becomes a revisit of the profile identical-payload-digest (WARC 1.1, 6.7.2).

Only what must change does: type and length, the digest of a block that is now shorter, and the
fields that name the original, which come last. Every other line stays byte for byte, folded ones
and odd spellings too; so does the HTTP header, which is all that the block keeps.
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
        b"warc-profile",
        b"warc-truncated",
        b"warc-refers-to",
        b"warc-refers-to-target-uri",
        b"warc-refers-to-date",
    )
)
"""Fields, in lower case, that no response may have which is to become a revisit."""

_LINES = re.compile(rb"[^\n]*\n(?:[ \t][^\n]*\n)*")
_NAME = re.compile(rb"([^:\n]*):[ \t]*")
_SPACE = b" \t\r"


class Reference(NamedTuple):
    """The original, as a revisit names it."""

    url: bytes  # without angle brackets
    date: bytes  # its WARC-Date to the letter
    record_id: bytes = b""  # without angle brackets; empty if it is not to be named
    digest: bytes = b""  # WARC-Payload-Digest to the letter


def revisit(header: bytes, kept: bytes, reference: Reference) -> bytes:
    """The whole revisit record.

    `header` is that of a response of WARC/1.0 or 1.1, version line to blank line, with CRLF at
    every end of a line; `kept` is the HTTP header that begins its block.
    """
    lines = _LINES.findall(header, 0, len(header) - len(CRLF))
    version = lines[0].strip()[len(b"WARC/") :]
    edited = [lines[0]]
    digest = False
    for line in lines[1:]:
        found = _NAME.match(line)
        name = found[1].strip(_SPACE).lower() if found else b""
        digest = digest or name == b"warc-payload-digest"
        value = _new_value(name, line[found.end() :] if found else b"", kept)
        edited.append(line if found is None or value is None else found[0] + value + CRLF)
    if not digest:
        edited.append(b"WARC-Payload-Digest: " + reference.digest + CRLF)
    edited.append(b"WARC-Profile: " + PROFILE % version + CRLF)
    edited.append(b"WARC-Truncated: length" + CRLF)
    if reference.record_id:
        edited.append(b"WARC-Refers-To: <" + reference.record_id + b">" + CRLF)
    edited.append(b"WARC-Refers-To-Target-URI: " + reference.url + CRLF)
    edited.append(b"WARC-Refers-To-Date: " + named_date(header, reference.date) + CRLF)
    return b"".join((*edited, CRLF, kept, END))


def named_date(header: bytes, date: bytes) -> bytes:
    """The date of an original, as a revisit with the version of `header` may name it.

    Dates of WARC/1.0 have no fractions. Replay tools look an original up by the second.
    """
    if header.startswith(b"WARC/1.0") and b"." in date:
        return date.partition(b".")[0] + b"Z"
    return date


def _new_value(name: bytes, value: bytes, kept: bytes) -> bytes | None:
    """What a field says in the revisit, None for what it said in the response."""
    if name == b"warc-type":
        return b"revisit"
    if name == b"content-length":
        return b"%d" % len(kept)
    if name == b"warc-block-digest":
        return respelled(value.strip(_SPACE + CRLF), kept)
    return None


spelled = lru_cache(256)(parse_spelled)
"""As `parse_spelled`: a copy and its original have the same text, and it is asked for again."""


def respelled(text: bytes, data: bytes) -> bytes:
    """The digest of `data` in the algorithm of `text`, and spelled like it; raises `BadDigest`."""
    written = text.decode("latin-1")
    label, colon, _ = written.rpartition(":")
    digest, spelling = spelled(written)
    running = new_hash(digest.algorithm)
    running.update(data)
    value = digest._replace(raw=running.digest()).spelled(Spelling(0, spelling.encoding))
    return (label + colon + value).encode("latin-1")
