"""HTTP messages in records: the header, and bodies without chunks."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from dedupindex.verify.parse_records import blank_line_end

_STATUS = re.compile(rb"HTTP/[0-9.]+[ \t]+([0-9]{3})(?![0-9])")
_NUMBER = re.compile(rb"[0-9]{1,18}")
_CHUNK = re.compile(rb"[ \t]*([0-9a-fA-F]{1,15})[ \t]*(?:;.*)?")
_LONGEST_LINE = 1 << 16


class HttpHead(NamedTuple):
    head: bytes  # as written, with its blank line
    status: int  # 0 for a request, or without one
    transfer: bytes  # Transfer-Encoding, in lower case without spaces
    coding: bytes  # Content-Encoding, likewise
    content_length: int  # -1 unless it is one number
    partial: bool  # it has Content-Range, or status 206
    closed: bool  # a blank line ends it


def parse_http(start: bytes) -> HttpHead:
    """The header at the beginning of `start`; all of it if there is no blank line."""
    end = blank_line_end(start)
    return _parsed(start[:end] if end >= 0 else start, end >= 0)


@lru_cache(16)  # a revisit, the record that it replaced and its original often share one
def _parsed(head: bytes, closed: bool) -> HttpHead:
    status = _STATUS.match(head)
    code = int(status[1]) if status else 0
    values: dict[bytes, list[bytes]] = {}
    name = b""
    for line in head.split(b"\n")[1:]:
        if line[:1] in (b" ", b"\t") and name:
            values[name][-1] += line.strip()
        elif b":" in line:
            raw, _, value = line.partition(b":")
            name = raw.strip().lower()
            values.setdefault(name, []).append(value.strip())
    lengths = values.get(b"content-length", [])
    one_length = len(set(lengths)) == 1 and _NUMBER.fullmatch(lengths[0])
    return HttpHead(
        head,
        code,
        _joined(values, b"transfer-encoding").removeprefix(b"identity"),
        _joined(values, b"content-encoding"),
        int(lengths[0]) if one_length else -1,
        code == 206 or b"content-range" in values,
        closed,
    )


def _joined(values: dict[bytes, list[bytes]], name: bytes) -> bytes:
    text = b",".join(values.get(name, [])).lower()
    return b"".join(text.split())


class ChunkedDecoder:
    """Decodes the chunked transfer coding, piece by piece (RFC 9112 section 7.1)."""

    def __init__(self) -> None:
        self._rest = b""
        self._left = 0
        self._state = "size"

    @property
    def whole(self) -> bool:
        """Whether the last chunk was read, and nothing follows it."""
        return self._state == "done" and not self._rest

    def feed(self, data: bytes) -> list[bytes]:
        found: list[bytes] = []
        data, at = self._rest + data, 0
        while at < len(data) and self._state not in ("done", "bad"):
            if self._left:
                piece = data[at : at + self._left]
                found.append(piece)
                at += len(piece)
                self._left -= len(piece)
                continue
            end = data.find(b"\n", at)
            if end < 0:
                break
            self._line(data[at:end].removesuffix(b"\r"))
            at = end + 1
        self._rest = data[at:]
        if len(self._rest) > _LONGEST_LINE or self._state == "bad":
            self._state, self._rest = "bad", b""
        return found

    def _line(self, line: bytes) -> None:
        if self._state == "end":
            self._state = "bad" if line else "size"
        elif self._state == "trailer":
            self._state = "trailer" if line else "done"
        elif match := _CHUNK.fullmatch(line):
            self._left = int(match[1], 16)
            self._state = "end" if self._left else "trailer"
        else:
            self._state = "bad"
