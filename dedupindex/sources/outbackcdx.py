"""The captures of a collection that a running OutbackCDX serves: ``outbackcdx+http://host/coll``.

They are read page by page in the order of its keys (its README, "Query API": ``matchType=range``).
An interrupted answer is resumed after the last line. Its option ``-r`` ends answers early without a
word, so the collection is at its end only when nothing follows the last key.

It stores digests as base32 and drops all characters that are not: 30 of the 40 digits of a SHA-1
in hex remain, and are answered as 32 characters. Such a digest is refused. Before index version 5
it stores URLs as ASCII with ``?`` for other characters, but makes the key of the URL as it was: a
URL whose key has more of them than itself is refused.
"""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from dedupindex.capture import Capture, Item, Refusal, Revisit
from dedupindex.errors import BadSource
from dedupindex.sources.cdxj import CdxjSource
from dedupindex.sources.line_source import BLOCK
from dedupindex.sources.rows import RowFields
from dedupindex.sources.source import SourceOptions

PAGE = 50_000  # rows of one answer
ATTEMPTS, PAUSE = 5, 0.5  # without a new row; seconds before the second, doubled each time
_TIMEOUT = 120.0  # seconds without a byte
_LONGEST_LINE = 16 << 20  # bytes
_MOST_DIGITS = 18  # of a time; it has 14
_INCOMPLETE = b"warning: "  # begins the last line of an answer that an error has ended
_QUERY = {"output": "cdxj", "omitSelfRedirects": "false"}
_IN_PATH = "/%:@!$&'()*+,;=~"
_NOT_ASCII = re.compile(rb"%[89a-f][0-9a-f]|xn--", re.IGNORECASE)  # characters, as URLs have them
_HEX_IN_BASE32 = re.compile(rb"[A-F2-7]{24}")  # by chance, one SHA-1 in sixteen billion


class OutbackCdxSource(CdxjSource):
    """A collection of an OutbackCDX."""

    def __init__(self, name: str, address: str, options: SourceOptions) -> None:
        super().__init__(name, io.BytesIO(), options=options)
        self._collection = _CollectionReader(name, address)

    def _read(self) -> Iterator[bytes]:
        block = bytearray()
        for line in self._collection.lines():
            block += line
            if len(block) >= BLOCK:
                yield bytes(block)
                block.clear()
        if block:
            yield bytes(block)

    def close(self) -> None:
        self._collection.close()

    def _item(self, line: bytes) -> Item:
        item = super()._item(line)
        wanted = len(_NOT_ASCII.findall(line.partition(b" ")[0]))
        if wanted and isinstance(item, Capture | Revisit):
            url = item.url if isinstance(item, Capture) else item.capture.url
            if b"?" in url and url.isascii() and len(_NOT_ASCII.findall(url)) < wanted:
                return Refusal("bad-url")
        return item

    def _fields(self, url: bytes, digits: bytes, row: dict[str, Any]) -> RowFields:
        """Return the columns of a row; -1 means unknown, and no file a revisit, as in a CDX."""
        fields = super()._fields(url, digits, row)
        status, offset = (
            b"-" if value == b"-1" else value for value in (fields.status, fields.offset)
        )
        digest = b"" if _HEX_IN_BASE32.match(fields.digest) else fields.digest
        container = fields.container or b"-"
        return fields._replace(status=status, digest=digest, offset=offset, container=container)


class _Interrupted(Exception):
    """An answer that did not come, or not to its end."""


class _CollectionReader:
    """Reads all lines of a collection once, in order."""

    def __init__(self, name: str, address: str) -> None:
        self._name = name
        parts = urlsplit(address)
        try:
            host, port = (parts.hostname or "").encode("idna").decode("ascii"), parts.port
        except ValueError as error:
            raise BadSource(f"{name} is not an address: {error}") from error
        if "@" in parts.netloc:
            raise BadSource(f"{name} was given with a password, which command lines show to all")
        if not host or not parts.path.strip("/") or parts.query or parts.fragment:
            raise BadSource(
                f"{name} is not the address of a collection: write "
                "outbackcdx+http://host:port/collection"
            )
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._connection = kind(host, port, timeout=_TIMEOUT)
        self._path = quote(parts.path.rstrip("/"), safe=_IN_PATH)
        self._count = 0  # of lines read; the last of them is where reading goes on:
        self._urlkey, self._timestamp = b"", -1
        self._lines = set[bytes]()  # read of this key and second

    def close(self) -> None:
        self._connection.close()

    def lines(self) -> Iterator[bytes]:
        """Yield every line; raises `BadSource`."""
        attempt = 0
        while True:
            count = self._count
            try:
                yield from self._rest()
                return
            except _Interrupted as error:
                self._connection.close()
                attempt = attempt + 1 if self._count == count else 1
                if attempt >= ATTEMPTS:
                    raise BadSource(f"{self._name} {error}") from error
            time.sleep(PAUSE * 2 ** (attempt - 1))

    def _rest(self) -> Iterator[bytes]:
        """Yield the lines behind the last one."""
        while True:
            count, urlkey = self._count, self._urlkey
            yield from self._page("range", urlkey)
            if self._count == count and urlkey:  # the answer had only rows of this key
                yield from self._page("exact", urlkey, self._timestamp)
            if self._count == count and urlkey:  # there are none behind, or -r hides them
                yield from self._page("exact", urlkey, self._timestamp + 1)
                if self._count > count:
                    raise BadSource(
                        f"{self._name} answers with fewer rows than {urlkey!r} has in one second; "
                        "start it with a larger -r"
                    )
            if self._count == count and urlkey:
                yield from self._page("range", urlkey + b"\x01")  # the next possible key
            if self._count == count:
                return

    def _page(self, match: str, urlkey: bytes, since: int = 0) -> Iterator[bytes]:
        """Yield the new lines of one answer."""
        query = {"urlkey": urlkey, "matchType": match, "limit": PAGE, **_QUERY}
        answer = self._get(query | ({"from": since} if since else {}))
        count = self._count
        for line in _lines_of(answer):
            if line.startswith(_INCOMPLETE):
                raise _Interrupted("could not read its index to the end; see its log")
            found, timestamp = self._position_of(line)
            if match == "exact" and found != urlkey:
                raise BadSource(
                    f"{self._name}: the key {urlkey!r} became an alias while it was read; run the "
                    "command again"
                )
            if self._is_new(found, timestamp, line):
                yield line
            elif self._count > count:
                raise BadSource(f"{self._name} does not answer in order: {line[:80]!r}")

    def _get(self, query: dict[str, Any]) -> HTTPResponse:
        try:
            self._connection.request("GET", f"{self._path}?{urlencode(query)}")
            answer = self._connection.getresponse()
            if answer.status == 200:
                return answer
            text = answer.read(1000).decode("utf-8", "replace").strip().partition("\n")[0]
        except (OSError, HTTPException) as error:
            raise _Interrupted(f"does not answer: {error!r}") from error
        message = f"answers {answer.status}: {text[:200]}"
        if answer.status >= 500:
            raise _Interrupted(message)
        raise BadSource(f"{self._name} {message}")

    def _position_of(self, line: bytes) -> tuple[bytes, int]:
        urlkey, _, rest = line.partition(b" ")
        timestamp, _, row = rest.partition(b" ")
        if not (timestamp.isdigit() and len(timestamp) <= _MOST_DIGITS and row.startswith(b"{")):
            raise BadSource(
                f"{self._name} does not answer in CDXJ, as OutbackCDX does since 2021: "
                f"{line[:80]!r}"
            )
        return urlkey, int(timestamp)

    def _is_new(self, urlkey: bytes, timestamp: int, line: bytes) -> bool:
        """Return whether a line is behind the last one, and make it the last."""
        at, last = (urlkey, timestamp), (self._urlkey, self._timestamp)
        if at < last or (at == last and line in self._lines):
            return False
        if at > last:
            self._urlkey, self._timestamp = at
            self._lines.clear()
        self._lines.add(line)
        self._count += 1
        return True


def _lines_of(answer: HTTPResponse) -> Iterator[bytes]:
    """Yield the lines of an answer; raises `_Interrupted` if it ends too early."""
    tail = b""
    try:
        while data := answer.read(BLOCK):
            *lines, tail = (tail + data).split(b"\n")
            for line in lines:
                yield line + b"\n"
            if len(tail) > _LONGEST_LINE:
                raise _Interrupted(f"sent a line of more than {_LONGEST_LINE:,} bytes")
    except (OSError, HTTPException, ValueError) as error:  # the last: of a chunk's negative size
        raise _Interrupted(f"did not answer to the end: {error!r}") from error
    if tail or answer.length:  # the rest of its Content-Length
        raise _Interrupted("did not answer to the end")
