"""Read what an index needs of archived HTTP headers.

The header is searched, never parsed into fields or normalised: archived headers fold, end in bare
line feeds, repeat and contain anything. Of a repeated field the first counts.
"""

from __future__ import annotations

import re
from typing import NamedTuple

LONGEST = 1 << 20  # bytes of a header
_STATUS = re.compile(rb"HTTP/[0-9.]+[ \t]+([0-9]{3})(?![0-9])")
_MEDIA_TYPE = re.compile(rb"[ \t]*([^\s;,\"]+)")
_PLAIN_CHUNK = re.compile(rb"([0-9a-fA-F]{1,8})\r\n")
_CHUNK = re.compile(rb"[ \t]*([0-9a-fA-F]{1,15})[ \t]*(?:;[^\n]*)?")
_OTHER = rb"(?:[^CcTt\r\n].*\n|[CcTt](?!(?i:ontent-(?:type|range):|ransfer-encoding:)).*\n)"
_TYPE = rb"(?i:content-type:)(.*)\n%b{0,200}+" % _OTHER
_CHUNKED = rb"(?i:transfer-encoding:)[ \t]*((?i:chunked))[ \t]*\r?\n%b{0,200}+" % _OTHER
PLAIN = re.compile(
    rb"HTTP/[0-9.]+[ \t]+([0-9]{3})(?![0-9]).*\n%b{0,200}+(?:%b)?+(?:%b(?:%b)?+)?+\r?\n"
    % (_OTHER, _TYPE, _CHUNKED, _TYPE)
)
"""Matches the header of most responses.

It captures the status, Content-Type, whether the body is chunked, and a Content-Type that follows
that field. Such a header has no Content-Range and no other Transfer-Encoding. The expression takes
a third of the time of `parse`. It never backtracks, and counts lines, so that a body without a
header is not searched far.
"""
_TYPES = re.compile(rb"\ncontent-type[ \t]*:((?:[^\n]*\n[ \t])*[^\n]*)")
_CODING = re.compile(rb"\n(transfer|content)-encoding[ \t]*:((?:[^\n]*\n[ \t])*[^\n]*)")
_LONGEST_LINE = 1 << 16  # bytes of a chunk header or trailer line


class Response(NamedTuple):
    """The header of a stored response."""

    body: int  # where the body begins
    status: int  # 0 if there is none
    mime: bytes  # media type without parameters, lower case
    coding: bytes  # Transfer-Encoding, lower case; empty for none
    partial: bool  # it has a Content-Range
    head: bytes  # status line, fields and blank line, unchanged


def header_end(data: bytes | bytearray, start: int, stop: int) -> int:
    """Return the position after the blank line; -1 if there is none before `stop`.

    Lines may end with CRLF or LF (RFC 9112 section 2.2).
    """
    end = data.find(b"\n\r\n", start, stop)
    bare = data.find(b"\n\n", start, end + 1 if end >= 0 else stop)
    if bare >= 0:
        return bare + 2
    return end + 3 if end >= 0 else -1


def parse(data: bytes, start: int, stop: int) -> Response | None:
    """Parse the response that begins at `start`; None if its header does not end by `stop`."""
    body = data.find(b"\n\r\n", start, stop) + 3
    if body < 3 or data.find(b"\n\n", start, body) >= 0:
        body = header_end(data, start, stop)
        if body < 0:
            return None
    head = data[start:body]
    status = _STATUS.match(head)
    low = head.lower()
    coding = field(low, b"transfer-encoding") if b"\ntransfer-encoding:" in low else b""
    return Response(
        body,
        int(status[1]) if status else 0,
        _mime(low),
        b"" if coding == b"identity" else coding,
        b"\ncontent-range:" in low,
        head,
    )


_LONGEST_CACHED = 300  # bytes of a Content-Type


class MediaTypes(dict[bytes | None, bytes]):
    """A cache from values of Content-Type, None for no such field, to media types."""

    def __missing__(self, line: bytes | None) -> bytes:
        if len(self) >= 4096:
            self.clear()
        match = _MEDIA_TYPE.match(line.lower()) if line is not None else None
        mime = match[1] if match else b""
        if line is None or len(line) <= _LONGEST_CACHED:
            self[line] = mime
        return mime


MEDIA_TYPES = MediaTypes()


def _mime(low: bytes) -> bytes:
    at = low.find(b"\ncontent-type:")
    return MEDIA_TYPES[low[at + 14 : low.find(b"\n", at + 14)]] if at >= 0 else b""


def field(head: bytes, name: bytes) -> bytes:
    """Return the value of the first field `name` (lower case), without folded lines."""
    at = head.lower().find(b"\n%b:" % name)
    if at < 0:
        return b""
    at += len(name) + 2
    return head[at : head.find(b"\n", at)].strip()


def content_types(head: bytes) -> bytes:
    """Return all values of Content-Type, comma-separated, lower case, without white space."""
    low = head.lower()
    if low.find(b"\ncontent-type") < 0:
        return b""
    return b",".join(b"".join(value.split()) for value in _TYPES.findall(low))


def codings(head: bytes) -> bytes:
    """Return Transfer-Encoding, a line feed, and Content-Encoding, each comma-separated.

    Values are in order and lower case; white space is one space (RFC 9110 section 8.4).
    """
    low = head.lower()
    if low.find(b"-encoding") < 0:
        return b"\n"
    found: dict[bytes, list[bytes]] = {b"transfer": [], b"content": []}
    for name, value in _CODING.findall(low):
        found[name].append(b" ".join(value.split()))
    return b",".join(found[b"transfer"]) + b"\n" + b",".join(found[b"content"])


def has_chunk(data: bytes, at: int, stop: int) -> bool:
    """Return whether a chunked body certainly has bytes in its first chunk."""
    match = _PLAIN_CHUNK.match(data, at, stop)
    return match is not None and match.end() < stop and int(match[1], 16) > 0


def plain_chunks(data: bytes, at: int, stop: int) -> list[memoryview]:
    """Return the chunks of a regular chunked body; none if anything about it is unusual."""
    view = memoryview(data)
    pieces: list[memoryview] = []
    while (match := _PLAIN_CHUNK.match(data, at, stop)) is not None:
        begin, size = match.end(), int(match[1], 16)
        at = begin + size + 2
        if at > stop or data[at - 2 : at] != b"\r\n":
            break
        if not size:
            return pieces if at == stop else []
        pieces.append(view[begin : begin + size])
    return []


class Dechunker:
    """Removes the chunked transfer coding, piece by piece (RFC 9112 section 7.1).

    Extensions are ignored and trailers dropped. The entity is valid only if it is `complete`.
    """

    def __init__(self) -> None:
        self.bad = False
        self._done = False
        self._left = 0  # bytes of the chunk still to come
        self._line = b""  # of a chunk header, line end or trailer, so far
        self._expect = self._size

    @property
    def complete(self) -> bool:
        """Whether the trailers have ended and nothing follows them."""
        return self._done and not self.bad

    @property
    def cut(self) -> bool:
        """Whether the coding is valid so far, but not complete."""
        rest = self._line.removesuffix(b"\r")
        fits = self._expect == self._trailer or (
            self._expect == self._size and _CHUNK.fullmatch(rest) is not None
        )
        return not (self.bad or self._done) and (not rest or fits)

    def feed(self, data: bytes | memoryview) -> list[memoryview]:
        """Return the pieces of the entity in `data`."""
        view = memoryview(data)
        raw = bytes(data)
        pieces = []
        at = 0
        while at < len(raw) and not self.bad:
            if self._done:
                self.bad = True
            elif self._left:
                piece = view[at : at + self._left]
                pieces.append(piece)
                self._left -= len(piece)
                at += len(piece)
            else:
                end = raw.find(b"\n", at)
                self._line += raw[at : end if end >= 0 else len(raw)]
                self.bad = len(self._line) > _LONGEST_LINE
                if end < 0:
                    break
                at = end + 1
                line, self._line = self._line.removesuffix(b"\r"), b""
                self._expect(line)
        return pieces

    def _size(self, line: bytes) -> None:
        match = _CHUNK.fullmatch(line)
        if match is None:
            self.bad = True
            return
        self._left = int(match[1], 16)
        self._expect = self._end_of_chunk if self._left else self._trailer

    def _end_of_chunk(self, line: bytes) -> None:
        self.bad = bool(line)
        self._expect = self._size

    def _trailer(self, line: bytes) -> None:
        self._done = not line
