"""The revisit record that replaces a response: profile identical-payload-digest (WARC 1.1, 6.7.2).

Only what must change is changed: type and length, the digest of a block that is now shorter, and
the fields that name the original, which come last. All other header lines stay byte for byte, and
so does the HTTP header, which is all that the block keeps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

from dedupindex.digest import Spelling, new_hash, parse_spelled

CRLF = b"\r\n"
END = CRLF * 2
PROFILE = b"http://netpreserve.org/warc/%b/revisit/identical-payload-digest"
ADDED = frozenset(
    (
        b"WARC-Profile", b"WARC-Truncated", b"WARC-Refers-To", b"WARC-Refers-To-Target-URI",
        b"WARC-Refers-To-Date",
    )
)  # fmt: skip
"""Fields that a revisit gets. A response that has one already is not rewritten."""

_CHANGED = re.compile(
    rb"^(\r*(warc-type|content-length|warc-block-digest|warc-payload-digest)[ \t\r]*:[ \t]*)"
    rb"([^\n]*\n(?:[ \t][^\n]*\n)*)",
    re.IGNORECASE | re.MULTILINE,
)
_SPACE = b" \t\r"
_LAST = re.compile(  # the fields that `revisit` adds, and the field before, which it may have added
    rb"(WARC-Payload-Digest: [^\r\n]*\r\n)?"
    rb"WARC-Profile: http://netpreserve\.org/warc/[^\r\n/]*/revisit/identical-payload-digest\r\n"
    rb"WARC-Truncated: length\r\n(?:WARC-Refers-To: <[^\r\n]*>\r\n)?"
    rb"WARC-Refers-To-Target-URI: [^\r\n]*\r\nWARC-Refers-To-Date: [^\r\n]*\r\n\r\n\Z"
)


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
    version = header[len(b"WARC/") : header.index(b"\n")].strip()
    names = set()

    def changed(match: re.Match[bytes]) -> bytes:
        name = match[2].lower()
        names.add(name)
        value = _new_value(name, match[3].strip(_SPACE + CRLF), http_header, reference)
        return match[0] if value is None else match[1] + value + CRLF

    edited = [_CHANGED.sub(changed, header[: -len(CRLF)])]
    if b"warc-payload-digest" not in names:
        edited.append(b"WARC-Payload-Digest: " + reference.digest + CRLF)
    edited.append(b"WARC-Profile: " + PROFILE % version + CRLF)
    edited.append(b"WARC-Truncated: length" + CRLF)
    if reference.record_id:
        edited.append(b"WARC-Refers-To: <" + reference.record_id + b">" + CRLF)
    edited.append(b"WARC-Refers-To-Target-URI: " + reference.url + CRLF)
    edited.append(b"WARC-Refers-To-Date: " + refers_to_date(header, reference.date) + CRLF)
    return b"".join((*edited, CRLF, http_header, END))


def is_written(header: bytes) -> bool:
    """Whether the header of a revisit ends as `revisit` writes it."""
    return _LAST.search(header) is not None


def headers_before(header: bytes, size: int, hashed: Callable[[str], bytes]) -> Iterator[bytes]:
    """Yield the headers that a response may have had before `revisit` made this one of it.

    The likeliest comes first. `size` is that of the whole block, `hashed` returns its digest in an
    algorithm. Nothing is yielded for a header that `revisit` does not write.
    """
    added = _LAST.search(header)
    if added is None:
        return

    def changed(match: re.Match[bytes]) -> bytes:
        name, text = match[2].lower(), match[3].strip(_SPACE + CRLF)
        if name == b"warc-type":
            return match[1] + b"response" + CRLF
        if name == b"content-length":
            return match[1] + b"%d" % size + CRLF
        if name == b"warc-block-digest" and text:
            digest, spelling = _parse(text.decode("latin-1"))
            label, colon, _ = text.rpartition(b":")
            before = digest._replace(raw=hashed(digest.algorithm))
            value = before.spelled(Spelling(0, spelling.encoding)).encode("latin-1")
            return match[1] + label + colon + value + CRLF
        return match[0]

    kept = _CHANGED.sub(changed, header[: added.start()])
    if added[1]:
        yield kept + added[1] + CRLF
    yield kept + CRLF


def refers_to_date(header: bytes, date: bytes) -> bytes:
    """Return the date of an original; WARC/1.0 has no fractions of a second."""
    if header.startswith(b"WARC/1.0") and b"." in date:
        return date.partition(b".")[0] + b"Z"
    return date


def _new_value(name: bytes, value: bytes, http_header: bytes, reference: Reference) -> bytes | None:
    """Return the value of a field in the revisit; None if it is not changed.

    An empty digest is one that is not stated: that of the payload gets the value of the original.
    """
    if name == b"warc-type":
        return b"revisit"
    if name == b"content-length":
        return b"%d" % len(http_header)
    if name == b"warc-block-digest" and value:
        return respelled(value, http_header)
    if name == b"warc-payload-digest" and not value:
        return reference.digest
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
