"""Read ranges of files on a web server, over a kept connection: there may be millions."""

from __future__ import annotations

from collections import OrderedDict
from http.client import BadStatusLine, HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import BinaryIO
from urllib.parse import urljoin, urlsplit
from urllib.request import Request, getproxies, urlopen

TIMEOUT = 60.0  # seconds without a response
_PIECE = 1 << 16
_MOVED = (301, 302, 303, 307, 308)
_CONNECTIONS = 16  # that are kept open
FAILURES = (OSError, HTTPException, ValueError)  # what `HttpRanges.fetch` raises


class HttpRanges:
    """Reads ranges of files by their URLs; the connections to a few servers are kept open."""

    def __init__(self) -> None:
        self._servers: OrderedDict[str, _Server] = OrderedDict()  # by scheme and host

    def close(self) -> None:
        for server in self._servers.values():
            server.close()
        self._servers.clear()

    def fetch(self, url: str, offset: int, stored: int, into: BinaryIO) -> int:
        """Write a range to `into`; return the number of bytes, perhaps more than asked for.

        Raises one of `FAILURES`.
        """
        parts = urlsplit(url)
        origin = f"{parts.scheme}://{parts.netloc}"
        server = self._servers.get(origin)
        if server is None:
            server = self._servers[origin] = _Server(parts.scheme, parts.netloc)
            if len(self._servers) > _CONNECTIONS:
                self._servers.popitem(last=False)[1].close()
        self._servers.move_to_end(origin)
        return server.fetch(url, offset, stored, into)


class _Server:
    """A web server, with a connection to it."""

    def __init__(self, scheme: str, place: str) -> None:
        self._skipped = len(f"{scheme}://{place}")
        kind = HTTPSConnection if scheme == "https" else HTTPConnection
        self._connection = kind(place, timeout=TIMEOUT)
        self._direct = scheme not in getproxies()

    def close(self) -> None:
        self._connection.close()

    def fetch(self, url: str, offset: int, stored: int, into: BinaryIO) -> int:
        """As `HttpRanges.fetch`."""
        span = f"{offset}-{offset + stored - 1}"
        headers = {"Range": f"bytes={span}", "Accept-Encoding": "identity"}
        if self._direct:
            answer = self._answer(url[self._skipped :] or "/", headers)
            try:
                if answer.status not in _MOVED:
                    return _take(answer, span, stored, into)
                url = urljoin(url, answer.headers.get("Location", ""))
            finally:
                self._end(answer)
        with urlopen(Request(url, headers=headers), timeout=TIMEOUT) as followed:
            return _take(followed, span, stored, into)

    def _answer(self, path: str, headers: dict[str, str]) -> HTTPResponse:
        """Send a GET; repeat it if the server has closed the kept connection."""
        kept = self._connection.sock is not None
        try:
            self._connection.request("GET", path, headers=headers)
            return self._connection.getresponse()
        except (ConnectionError, BadStatusLine):
            self._connection.close()
            if not kept:
                raise
        self._connection.request("GET", path, headers=headers)
        return self._connection.getresponse()

    def _end(self, answer: HTTPResponse) -> None:
        """Read the rest of a short response, so that the connection can be used again."""
        try:
            if not answer.isclosed():
                answer.read(_PIECE)
        except FAILURES:
            self._connection.close()
        if not answer.isclosed():
            answer.close()
            self._connection.close()


class RangeRefused(OSError):
    """A web server answers with an error."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the server answers with status {status}")
        self.status = status


def _take(answer: HTTPResponse, span: str, stored: int, into: BinaryIO) -> int:
    if answer.status != 206:
        if answer.status >= 300:
            raise RangeRefused(answer.status)
        raise ValueError(f"the server sends no ranges (status {answer.status})")
    content_range = answer.headers.get("Content-Range", "")
    if not content_range.startswith(f"bytes {span}/"):
        raise ValueError(f"another range came: {content_range[:80]}")
    size = 0
    while size <= stored and (piece := answer.read(_PIECE)):
        size += len(piece)
        into.write(piece)
    return size
