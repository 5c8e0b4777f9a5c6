"""The time limit of bodies: a client that sends too slowly must not hold a thread for ever.

Reading a body blocks in Granian's code, which has no time limit and does not say on which
connection it waits, only the client's address. The kernel knows more: on the connection of a read
that lasts too long, nothing was sent for as long. That also holds for a request that waits long
for its answer; where the two cannot be told apart, the slow one is left until they can. Idle
connections do not last that long, as Granian closes them. A connection is closed for reading only:
the read ends, and an answer can still be sent.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import suppress
from functools import partial
from typing import Any, BinaryIO, cast

from werkzeug.wsgi import ClosingIterator

from server.responses import RequestError

# Offsets in struct tcp_info of the milliseconds since data was sent and received, each a u32.
_LAST_SENT, _LAST_RECEIVED = 8 + 4 * 9, 8 + 4 * 11
_INFO = 104  # bytes of it that every Linux has


class BodyTimeout:
    """Limits the seconds that each read of a body takes; thread-safe."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._requests: set[_TimedRequest] = set()

    def start(self) -> None:
        """Start the daemon thread that watches the reads."""
        threading.Thread(target=self._run, name="body-timeout", daemon=True).start()

    def watched(
        self, environ: dict[str, Any], answer: Callable[[], Iterable[bytes]]
    ) -> Iterable[bytes]:
        """Return what `answer` returns for a request, and watch the request until its end."""
        request = _TimedRequest(environ, self._seconds)
        self._requests.add(request)
        end = partial(self._requests.discard, request)
        try:
            pieces = answer()
        except BaseException:
            end()
            raise
        if isinstance(pieces, list):
            end()
            return pieces
        return ClosingIterator(pieces, end)

    def _run(self) -> None:
        pause = threading.Event()
        while not pause.wait(min(1.0, self._seconds / 4)):
            now = time.monotonic()
            late: Counter[str] = Counter()
            others = set()
            for request in self._requests.copy():
                if request.reading and now - request.reading > self._seconds:
                    request.late = True
                    late[request.address] += 1
                elif now - request.since > self._seconds / 2:  # it may have waited for a thread
                    others.add(request.address)
            if late and sys.platform == "linux":
                _close_silent(late, others, self._seconds * 1000)


class _TimedRequest:
    """A request in progress, and its body: each read is timed, and a short body is an error."""

    __slots__ = ("_left", "_seconds", "_stream", "address", "late", "reading", "since")

    def __init__(self, environ: dict[str, Any], seconds: float) -> None:
        self.address: str = environ.get("REMOTE_ADDR", "")
        self.since = time.monotonic()
        self.reading = 0.0  # when the current read began, 0 if there is none
        self.late = False
        if environ["REQUEST_METHOD"] != "GET":
            length = environ.get("CONTENT_LENGTH", "")
            self._left = int(length) if length.isascii() and length.isdigit() else -1
            self._stream, self._seconds = environ["wsgi.input"], seconds
            environ["wsgi.input"] = cast(BinaryIO, self)

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes, b"" at the end.

        Raises `RequestError` if the client is too slow, or ends a body of known length early.
        """
        self.reading = time.monotonic()
        try:
            piece = bytes(self._stream.read() if size < 0 else self._stream.read(size))
        finally:
            self.reading = 0.0
        if self.late:
            message = f"send each 64 KiB of a body, or its rest, within {self._seconds:g} s"
            raise RequestError("body_timeout", message)
        if self._left >= 0:
            self._left -= len(piece)
            if self._left > 0 and (size < 0 or len(piece) < size):  # Granian fills up a read
                raise RequestError("bad_request", f"the body ended {self._left} bytes early")
        return piece


def _close_silent(late: Counter[str], others: Set[str], least: float) -> None:
    """Close connections for reading on which nothing was sent for `least` milliseconds.

    `late` has the number of late requests by address. Where more connections of an address are
    silent, those that may belong to other requests are left: all of the addresses in `others`,
    whose requests have lasted as long; else those on which something was received.
    """
    silent: dict[str, list[tuple[socket.socket, bool]]] = defaultdict(list)
    for connection in _connections():
        try:
            address = connection.getpeername()[0]
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO)
        except OSError:  # it listens, or is closed already
            address = ""
        if address in late and _milliseconds(info, _LAST_SENT) >= least:
            quiet = _milliseconds(info, _LAST_RECEIVED) >= least
            silent[address].append((connection, quiet))
        else:
            connection.close()
    for address, found in silent.items():
        for connection, quiet in found:
            with connection, suppress(OSError):
                if len(found) <= late[address] or (quiet and address not in others):
                    connection.shutdown(socket.SHUT_RD)


def _milliseconds(info: bytes, place: int) -> int:
    return int(struct.unpack_from("I", info, place)[0])


def _connections() -> Iterator[socket.socket]:
    """Yield the open TCP sockets of this process, each as a duplicate to be closed."""
    for name in os.listdir("/proc/self/fd"):
        try:
            own = os.dup(int(name))
        except OSError:
            continue
        try:
            found = socket.socket(fileno=own)
        except OSError:
            os.close(own)
            continue
        if found.family in (socket.AF_INET, socket.AF_INET6):
            yield found
        else:
            found.close()
