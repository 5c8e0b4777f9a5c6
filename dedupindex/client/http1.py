"""HTTP/1.1 as both clients speak it: requests as bytes, responses read from bytes. No I/O.

Of HTTP there is what a server of ours, and a proxy before it, may answer. Whatever is not
understood is an error: a lookup is then `NotAsked`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from dedupindex import __version__
from dedupindex.client.requests import Ask, Failure, Reply
from dedupindex.errors import BadInput

if TYPE_CHECKING:
    from ssl import SSLContext

MOST = 64 << 20  # bytes of a body that are read
KEPT_OPEN = 64  # connections that wait for the next request
EXPIRY = 20.0  # seconds that they wait

_MOST_HEAD = 100_000  # bytes of a status line and headers, or of trailers
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: .*)?")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;.*)?")
_BODILESS = (204, 304)
_UNWRITABLE = re.compile(r"[^\t\x20-\x7e\x80-\xff]")


class NotConnected(OSError):
    """No connection could be made, which was known at once."""


class Unanswered(ConnectionError):
    """The connection was closed before the first byte of a response."""


class TooLong(ValueError):
    """A response has more than `MOST` bytes."""


class Server(NamedTuple):
    """Where a server is, read from its URL."""

    secure: bool
    host: str
    port: int
    path: str  # before that of every request, without a slash at its end
    name: str  # for the header Host

    @classmethod
    def parse(cls, url: str) -> Server:
        """Read ``http://host:port/path`` or https; raises `BadInput`."""
        try:
            parts = urlsplit(url)
            host = (parts.hostname or "").encode("idna").decode()
            secure = parts.scheme == "https"
            port = parts.port or (443 if secure else 80)
        except ValueError as error:  # also of a host name that no name can be
            raise BadInput(f"{_shown(url)!r} is no URL of a server: {error}") from error
        path = parts.path.rstrip("/")
        if parts.scheme not in ("http", "https") or not host or not path.isascii() or " " in path:
            raise BadInput(f"{_shown(url)!r} is no URL of a server: write http://host:port")
        name = f"[{host}]" if ":" in host else host
        return cls(secure, host, port, path, f"{name}:{parts.port}" if parts.port else name)

    def context(self, tls: str | Path | SSLContext | None) -> SSLContext | None:
        """What checks the server's certificate, None without TLS; raises `BadInput`.

        `tls` is the file of the authorities to trust; by default those that the system trusts are.
        """
        if not self.secure:
            return None
        import ssl  # takes as long as all else that a client imports

        if isinstance(tls, ssl.SSLContext):
            return tls
        try:
            return ssl.create_default_context(cafile=tls)
        except OSError as error:
            raise BadInput(f"{tls} cannot be read as certificates: {error}") from error


def _shown(url: str) -> str:
    """A URL without the password that it may hold."""
    return re.sub(r"//.*@", "//…@", url)


class Requests:
    """Writes the requests to one server; `headers` go with each."""

    def __init__(self, server: Server, headers: Mapping[str, str]) -> None:
        all_of = {"Host": server.name, "User-Agent": f"dedupindex/{__version__}"}
        all_of |= {name.title(): value for name, value in headers.items()}
        for name, value in all_of.items():
            if _UNWRITABLE.search(value) or not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name):
                raise BadInput(f"the header {name!r} cannot be sent: it has a control character")
        lines = "".join(f"{name}: {value}\r\n" for name, value in all_of.items())
        self._path, self._lines = server.path, lines.encode("latin-1")

    def encode(self, ask: Ask) -> bytes:
        """A request as bytes; its length is always stated, so that a server can tell its end."""
        line = f"{ask.method} {self._path}{ask.path} HTTP/1.1\r\n".encode("ascii")
        if not ask.content:
            return line + self._lines + b"\r\n"
        body = f"Content-Type: {ask.type}\r\nContent-Length: {len(ask.content)}\r\n\r\n".encode()
        return line + self._lines + body + ask.content


class Response:
    """Reads one response from what comes over a connection.

    `reusable` is whether the connection may carry another request: the response says so, and no
    byte has come beyond it, which would be taken for the next response.
    """

    def __init__(self) -> None:
        self.status = 0
        self.body = bytearray()
        self._came = bytearray()  # and was not read yet
        self._begun = self._kept = self._chunked = False
        self._length = -1  # of the body; -1: as long as the connection is open

    @property
    def reusable(self) -> bool:
        return self._kept and not self._came

    @property
    def reply(self) -> Reply:
        return Reply(self.status, bytes(self.body))

    def feed(self, data: bytes) -> bool:
        """Take what came, b"" where the connection ended; return whether the response is whole.

        Raises `Unanswered`, `TooLong`, `ConnectionError` if it was cut, `ValueError` if it is not
        HTTP.
        """
        if not data:
            if not self._begun:
                raise Unanswered("the connection was closed before an answer")
            if self.status and self._length < 0 and not self._chunked:
                return True
            raise ConnectionError("the connection was closed within the answer")
        self._begun = True
        self._came += data
        if not self.status and not self._read_head():
            return False
        return self._read_chunks() if self._chunked else self._read_body()

    def _read_head(self) -> bool:
        """Whether the status is known now; interim ones (1xx) are passed over."""
        while (end := self._came.find(b"\r\n\r\n")) >= 0:
            first, *lines = bytes(self._came[:end]).split(b"\r\n")
            del self._came[: end + 4]
            found = _STATUS_LINE.fullmatch(first)
            status = int(found[2]) if found else 0
            if not found or status == 101:
                raise ValueError(f"no HTTP: {first[:80]!r}")
            if status < 200:
                continue
            self._kept = found[1] == b"1"
            self._read_headers(lines)
            if status in _BODILESS:
                self._length, self._chunked = 0, False
            self.status = status
            return True
        if len(self._came) > _MOST_HEAD or not self._came.startswith(b"HTTP/1."[: len(self._came)]):
            raise ValueError(f"no HTTP: {bytes(self._came[:80])!r}")
        return False

    def _read_headers(self, lines: list[bytes]) -> None:
        for line in lines:
            name, colon, value = line.partition(b":")
            name, value = name.lower(), value.strip()
            if not colon or not name or name.split() != [name]:
                raise ValueError(f"no header line: {line[:80]!r}")
            if name == b"content-length":
                if not value.isdigit() or len(value) > 18 or self._length not in (-1, int(value)):
                    raise ValueError(f"no length of a body: {value[:80]!r}")
                self._length = int(value)
                if self._length > MOST:
                    raise TooLong(f"an answer of {self._length} bytes")
            elif name == b"transfer-encoding":
                if value.lower() != b"chunked" or self._chunked:
                    raise ValueError(f"unknown transfer coding {value[:80]!r}")
                self._chunked = True
            elif name == b"connection" and b"close" in value.lower():
                self._kept = False
        if self._chunked:
            self._length = -1

    def _read_body(self) -> bool:
        wanted = self._length - len(self.body) if self._length >= 0 else len(self._came)
        self.body += self._came[:wanted]
        del self._came[:wanted]
        if len(self.body) > MOST:
            raise TooLong("the answer does not end")
        if self._length < 0:
            self._kept = False
        return len(self.body) == self._length

    def _read_chunks(self) -> bool:
        while (end := self._came.find(b"\r\n")) >= 0:
            line = _CHUNK.fullmatch(self._came[:end])
            if line is None:
                raise ValueError(f"no size of a chunk: {bytes(self._came[:80])!r}")
            size = int(line[1], 16)
            if len(self.body) + size > MOST:
                raise TooLong("the answer does not end")
            if not size:  # trailers, which say nothing to us, and an empty line
                last = self._came.find(b"\r\n\r\n", end)
                if last < 0:
                    break
                del self._came[: last + 4]
                return True
            start, after = end + 2, end + 2 + size
            if len(self._came) < after + 2:
                return False
            if self._came[after : after + 2] != b"\r\n":
                raise ValueError("a chunk is longer than it says")
            self.body += self._came[start:after]
            del self._came[: after + 2]
        if len(self._came) > _MOST_HEAD:
            raise ValueError("no size of a chunk")
        return False


# RuntimeError: of an event loop that has ended, with a crawler that still asks.
FAILURES = (OSError, ValueError, RuntimeError)


def failure(error: Exception, ask: Ask) -> Failure:
    """What became of a request that ended with one of `FAILURES`."""
    if isinstance(error, TimeoutError):
        return Failure("timeout", f"no answer within {ask.patience:g} s ({error!r})")
    if isinstance(error, TooLong):
        return Failure("garbage", str(error))
    return Failure("unreachable", repr(error), isinstance(error, NotConnected))
