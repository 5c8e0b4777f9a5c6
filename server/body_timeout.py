"""How long a body may take: who sends too slowly is cut off, so that it holds no thread for ever.

Reading a body blocks in Granian's code, which has no time limit and does not say on which
connection it waits, only from which address it came. What the system knows of connections tells:
nothing was sent on one whose read lasts too long. That holds for a request that waits long for its
answer, too; where the two cannot be told apart, the slow one is left until they can be. Idle
connections do not last that long, as Granian closes them. A connection is closed for reading; the
read ends, and an answer can still be sent.
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
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, BinaryIO, cast

from werkzeug.wsgi import ClosingIterator

from server.responses import RequestError

# Where struct tcp_info has the milliseconds since data was sent and received, each a u32.
_LAST_SENT, _LAST_RECEIVED = 8 + 4 * 9, 8 + 4 * 11
_INFO = 104  # bytes of it that every Linux has


class Patience:
    """Gives every read of a body so many seconds; the readers are any number of threads."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._requests: set[_Request] = set()

    def start(self) -> None:
        """Begin to watch, in a thread that ends with its process."""
        threading.Thread(target=self._run, name="patience", daemon=True).start()

    def watched(
        self, environ: dict[str, Any], answer: Callable[[], Iterable[bytes]]
    ) -> Iterable[bytes]:
        """What `answer` gives for a request, whose body is timed and which is known to its end."""
        request = _Request(environ.get("REMOTE_ADDR", ""))
        if environ["REQUEST_METHOD"] != "GET":
            environ["wsgi.input"] = cast(BinaryIO, _Body(environ, request, self._seconds))
        self._requests.add(request)
        ended = partial(self._requests.discard, request)
        try:
            pieces = answer()
        except BaseException:
            ended()
            raise
        if isinstance(pieces, list):
            ended()
            return pieces
        return ClosingIterator(pieces, ended)

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
                elif now - request.since > self._seconds / 2:  # which may have waited for a thread
                    others.add(request.address)
            if late:
                close_silent(late, others, self._seconds)


class _Request:
    """A request that is under way: since when, and since when a read of its body is, or 0."""

    __slots__ = ("address", "late", "reading", "since")

    def __init__(self, address: str) -> None:
        self.address, self.since, self.reading, self.late = address, time.monotonic(), 0.0, False


class _Body:
    """A body that is read in no more than its time, and to its end."""

    def __init__(self, environ: dict[str, Any], request: _Request, seconds: float) -> None:
        self._stream, self._request, self._seconds = environ["wsgi.input"], request, seconds
        length = environ.get("CONTENT_LENGTH", "")
        self._left = int(length) if length.isascii() and length.isdigit() else -1

    def read(self, size: int = -1) -> bytes:
        """Up to so many bytes, b"" at the end; raises `RequestError`.

        A body of known length that ends before is an error: its sender has gone.
        """
        self._request.reading = time.monotonic()
        try:
            piece = bytes(self._stream.read() if size < 0 else self._stream.read(size))
        finally:
            self._request.reading = 0.0
        if self._request.late:
            said = f"send each 64 KiB of a body, or its rest, within {self._seconds:g} s"
            raise RequestError("body_timeout", said)
        if self._left >= 0:
            self._left -= len(piece)
            if self._left > 0 and (size < 0 or len(piece) < size):  # Granian fills up a read
                raise RequestError("bad_request", f"the body ended {self._left} bytes early")
        return piece


def close_silent(late: Counter[str], others: Set[str], seconds: float) -> None:
    """Close for reading what was sent nothing for so long: by address, so many connections.

    Where there are more, those are left that may be of other requests: all from the addresses of
    `others`, which are under way as long; else those which something was received on.
    """
    if sys.platform != "linux":
        return
    least = seconds * 1000
    with ExitStack() as kept:
        silent: dict[str, list[tuple[socket.socket, bool]]] = defaultdict(list)
        for connection in _connections():
            try:
                address = connection.getpeername()[0]
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO)
            except OSError:  # no connection, or it is closed already
                address = ""
            if address not in late or _number(info, _LAST_SENT) < least:
                connection.close()
                continue
            kept.enter_context(connection)
            silent[address].append((connection, _number(info, _LAST_RECEIVED) >= least))
        for address, found in silent.items():
            clear = len(found) <= late[address]
            for connection, quiet in found:
                if clear or (quiet and address not in others):
                    with suppress(OSError):
                        connection.shutdown(socket.SHUT_RD)


def _number(info: bytes, place: int) -> int:
    return int(struct.unpack_from("I", info, place)[0])


def _connections() -> Iterator[socket.socket]:
    """The open TCP sockets of this process, each by a descriptor of its own."""
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
