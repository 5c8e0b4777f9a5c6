"""HTTP/1.1 for both clients: encode requests, parse responses, pool connections. No I/O.

It reads what a dedupindex server, or a proxy before it, may answer. Everything else is an error: a
lookup is then `NotAsked`.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

from dedupindex import __version__
from dedupindex.client.requests import Ask, Failure, Reply
from dedupindex.errors import BadInput

if TYPE_CHECKING:
    from ssl import SSLContext

MOST = 64 << 20  # bytes of a body
KEPT_OPEN = 64  # idle connections
EXPIRY = 20.0  # seconds that they are kept

_MOST_HEAD = 100_000  # bytes of a status line and headers, or of trailers
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: .*)?")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;.*)?")
_BODILESS = (204, 304)
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_UNWRITABLE = re.compile(r"[^\t\x20-\x7e\x80-\xff]")


class NotConnected(OSError):
    """No connection could be made."""


class Unanswered(ConnectionError):
    """The connection was closed before the first byte of a response."""


class TooLong(ValueError):
    """A response has more than `MOST` bytes."""


class ServerAddress(NamedTuple):
    """The address of a server."""

    secure: bool
    host: str
    port: int
    path: str  # prefix of every request path, without trailing slash
    name: str  # the Host header

    @classmethod
    def parse(cls, url: str) -> ServerAddress:
        """Read ``http://host:port/path`` or https; raises `BadInput`."""
        try:
            parts = urlsplit(url)
            host = (parts.hostname or "").encode("idna").decode()
            secure = parts.scheme == "https"
            port = parts.port or (443 if secure else 80)
        except ValueError as error:  # also for host names that IDNA refuses
            raise BadInput(f"{_shown(url)!r} is not a URL of a server: {error}") from error
        path = parts.path.rstrip("/")
        if parts.scheme not in ("http", "https") or not host or not path.isascii() or " " in path:
            raise BadInput(f"{_shown(url)!r} is not a URL of a server: write http://host:port")
        name = f"[{host}]" if ":" in host else host
        return cls(secure, host, port, path, f"{name}:{parts.port}" if parts.port else name)

    def context(self, tls: str | Path | SSLContext | None) -> SSLContext | None:
        """Return the TLS context for `tls`, None for plain HTTP; raises `BadInput`."""
        if not self.secure:
            return None
        import ssl  # as slow to import as everything else together

        if isinstance(tls, ssl.SSLContext):
            return tls
        try:
            return ssl.create_default_context(cafile=tls)
        except OSError as error:
            raise BadInput(f"{tls} cannot be read as certificates: {error}") from error


def _shown(url: str) -> str:
    """Return a URL without its password."""
    return re.sub(r"//.*@", "//…@", url)


class Connection(Protocol):
    """An open connection."""

    idle_since: float  # of time.monotonic

    def is_usable(self) -> bool: ...
    def close(self) -> None: ...


_C = TypeVar("_C", bound=Connection)


class ConnectionPool(Generic[_C]):
    """Keeps idle connections to one server, for any number of threads. Raises `BadInput`.

    A forked process makes connections of its own: over a shared one it would read answers to the
    other.
    """

    def __init__(
        self, url: str, headers: Mapping[str, str], tls: str | Path | SSLContext | None
    ) -> None:
        self.server = ServerAddress.parse(url)
        self.context = self.server.context(tls)
        self._lines = _header_lines(self.server, headers)
        self._idle = deque[_C]()  # the last one was used last
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._closed = False

    def encode(self, ask: Ask) -> bytes:
        """Return a request as bytes, always with Content-Length."""
        line = f"{ask.method} {self.server.path}{ask.path} HTTP/1.1\r\n".encode("ascii")
        body = b""
        if ask.content:
            body = f"Content-Type: {ask.type}\r\nContent-Length: {len(ask.content)}\r\n".encode()
        return b"".join((line, self._lines, body, b"\r\n", ask.content))

    def take(self) -> _C | None:
        """Remove and return an idle connection that is still usable, or None."""
        if self._process != os.getpid():  # another thread may have held the lock
            self._process, self._lock, self._idle = os.getpid(), threading.Lock(), deque()
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if time.monotonic() - connection.idle_since < EXPIRY and connection.is_usable():
                return connection
            connection.close()

    def give_back(self, connection: _C, response: ResponseParser | None) -> None:
        """Keep a connection after its response if it can be used again, else close it."""
        connection.idle_since = time.monotonic()
        closing = connection
        with self._lock:
            full = self._closed or len(self._idle) >= KEPT_OPEN
            if response is not None and response.reusable and not full:
                self._idle.append(connection)
                if self._idle[0].idle_since + EXPIRY >= connection.idle_since:
                    return
                closing = self._idle.popleft()
        closing.close()

    def close(self) -> None:
        """Close the idle connections; those in use are closed when they are given back."""
        with self._lock:
            self._closed = True
            while self._idle:
                self._idle.pop().close()


def _header_lines(server: ServerAddress, headers: Mapping[str, str]) -> bytes:
    """Return the header lines of every request; raises `BadInput`."""
    given = {"Host": server.name, "User-Agent": f"dedupindex/{__version__}"}
    given |= {name.title(): value for name, value in headers.items()}
    for name, value in given.items():
        if _UNWRITABLE.search(value) or not _HEADER_NAME.fullmatch(name):
            raise BadInput(f"the header {name!r} cannot be sent: it has a control character")
    return "".join(f"{name}: {value}\r\n" for name, value in given.items()).encode("latin-1")


class ResponseParser:
    """Parses one response from the bytes that a connection receives.

    The connection is `reusable` if the response allows it and no further byte has arrived, which
    would be taken for the next response.
    """

    def __init__(self) -> None:
        self.status = 0
        self.body = bytearray()
        self._data = bytearray()  # not parsed yet
        self._begun = self._kept = self._chunked = False
        self._length = -1  # of the body; -1: until the connection is closed

    @property
    def reusable(self) -> bool:
        return self._kept and not self._data

    @property
    def reply(self) -> Reply:
        return Reply(self.status, bytes(self.body))

    def feed(self, data: bytes) -> bool:
        """Parse received bytes, b"" at the end; return whether the response is complete.

        Raises `Unanswered`, `TooLong`, `ConnectionError` if the response is cut, and `ValueError`
        if it is not HTTP.
        """
        if not data:
            if not self._begun:
                raise Unanswered("the connection was closed before an answer")
            if self.status and self._length < 0 and not self._chunked:
                return True
            raise ConnectionError("the connection was closed within the answer")
        self._begun = True
        self._data += data
        if not self.status and not self._read_head():
            return False
        return self._read_chunks() if self._chunked else self._read_body()

    def _read_head(self) -> bool:
        """Parse status and headers, skipping 1xx responses; return whether they are complete."""
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            first, *lines = bytes(self._data[:end]).split(b"\r\n")
            del self._data[: end + 4]
            found = _STATUS_LINE.fullmatch(first)
            status = int(found[2]) if found else 0
            if not found or status == 101:
                raise ValueError(f"not HTTP: {first[:80]!r}")
            if status < 200:
                continue
            self._kept = found[1] == b"1"
            self._read_headers(lines)
            if status in _BODILESS:
                self._length, self._chunked = 0, False
            self.status = status
            return True
        if len(self._data) > _MOST_HEAD or not self._data.startswith(b"HTTP/1."[: len(self._data)]):
            raise ValueError(f"not HTTP: {bytes(self._data[:80])!r}")
        return False

    def _read_headers(self, lines: list[bytes]) -> None:
        for line in lines:
            name, colon, value = line.partition(b":")
            name, value = name.lower(), value.strip()
            if not colon or not name or name.split() != [name]:
                raise ValueError(f"invalid header line: {line[:80]!r}")
            if name == b"content-length":
                if not value.isdigit() or len(value) > 18 or self._length not in (-1, int(value)):
                    raise ValueError(f"invalid Content-Length: {value[:80]!r}")
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
        wanted = self._length - len(self.body) if self._length >= 0 else len(self._data)
        self.body += self._data[:wanted]
        del self._data[:wanted]
        if len(self.body) > MOST:
            raise TooLong("the answer does not end")
        if self._length < 0:
            self._kept = False
        return len(self.body) == self._length

    def _read_chunks(self) -> bool:
        while (end := self._data.find(b"\r\n")) >= 0:
            line = _CHUNK.fullmatch(self._data[:end])
            if line is None:
                raise ValueError(f"invalid chunk size: {bytes(self._data[:80])!r}")
            size = int(line[1], 16)
            if len(self.body) + size > MOST:
                raise TooLong("the answer does not end")
            if not size:  # trailers, which are not used, and an empty line
                last = self._data.find(b"\r\n\r\n", end)
                if last < 0:
                    break
                del self._data[: last + 4]
                return True
            start, after = end + 2, end + 2 + size
            if len(self._data) < after + 2:
                return False
            if self._data[after : after + 2] != b"\r\n":
                raise ValueError("a chunk is longer than it says")
            self.body += self._data[start:after]
            del self._data[: after + 2]
        if len(self._data) > _MOST_HEAD:
            raise ValueError("no size of a chunk")
        return False


# RuntimeError: of an event loop that has ended while a crawler still asks.
FAILURES = (OSError, ValueError, RuntimeError)


def failure(error: Exception, ask: Ask) -> Failure:
    """Return the failure of a request that raised one of `FAILURES`."""
    if isinstance(error, TimeoutError):
        return Failure("timeout", f"no answer within {ask.request_timeout:g} s ({error!r})")
    if isinstance(error, TooLong):
        return Failure("garbage", str(error))
    return Failure("unreachable", repr(error), isinstance(error, NotConnected))
