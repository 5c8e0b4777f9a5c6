"""Read ranges of files on a web server, over a kept connection: there may be millions."""

from __future__ import annotations

from http.client import BadStatusLine, HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import BinaryIO
from urllib.parse import quote, urljoin
from urllib.request import Request, getproxies, urlopen

from dedupindex.errors import BadInput

TIMEOUT = 60.0  # seconds without a response
_PIECE = 1 << 16
_MOVED = (301, 302, 303, 307, 308)
FAILURES = (OSError, HTTPException, ValueError)  # what `RangeServer.fetch` raises


class RangeServer:
    """A web server with files below a base URL."""

    def __init__(self, base: str) -> None:
        """Raises `BadInput` unless `base` is a URL of HTTP or HTTPS."""
        if not base.startswith(("http://", "https://")):
            raise BadInput(f"--base-url {base} begins neither with http:// nor https://")
        scheme, place = base.split(":")[0], base.split("/")[2]
        self._base = base.rstrip("/")
        self._skipped = len(f"{scheme}://{place}")
        kind = HTTPSConnection if scheme == "https" else HTTPConnection
        try:
            self._connection = kind(place, timeout=TIMEOUT)
        except HTTPException as error:
            raise BadInput(f"--base-url {base}: {error}") from error
        self._direct = scheme not in getproxies()

    def close(self) -> None:
        self._connection.close()

    def url(self, name: bytes) -> str:
        """Return the URL of a file by its path below the base."""
        return f"{self._base}/{quote(name)}"

    def fetch(self, name: bytes, offset: int, stored: int, into: BinaryIO) -> int:
        """Write a range to `into`; return the number of bytes, perhaps more than asked for.

        Raises one of `FAILURES`.
        """
        url = self.url(name)
        span = f"{offset}-{offset + stored - 1}"
        headers = {"Range": f"bytes={span}", "Accept-Encoding": "identity"}
        if self._direct:
            answer = self._answer(url[self._skipped :], headers)
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


def _take(answer: HTTPResponse, span: str, stored: int, into: BinaryIO) -> int:
    if answer.status != 206:
        raise ValueError(f"the server sends no ranges (status {answer.status})")
    content_range = answer.headers.get("Content-Range", "")
    if not content_range.startswith(f"bytes {span}/"):
        raise ValueError(f"another range came: {content_range[:80]}")
    size = 0
    while size <= stored and (piece := answer.read(_PIECE)):
        size += len(piece)
        into.write(piece)
    return size
