"""How long a body may take: who sends too slowly is cut off, so that it holds no thread for ever.

Reading a body blocks in Granian's code, which has no time limit and does not say on which
connection it waits. When a read lasts too long, what this process has sent tells: on a connection
whose request is under way since then, nothing. Idle connections do not last that long, as Granian
closes them. That connection is closed for reading; the read ends, and an answer can still be sent.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

from server.replies import RequestError

_LAST_SENT = 8 + 4 * 9  # where struct tcp_info has the milliseconds since data was sent, a u32
_INFO = 104  # bytes of it that every Linux has


class Patience:
    """Gives every read of a body so many seconds; the readers are any number of threads."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._reads: set[_Read] = set()

    def start(self) -> None:
        """Begin to watch, in a thread that ends with its process."""
        threading.Thread(target=self._run, name="patience", daemon=True).start()

    def timed(self, environ: dict[str, Any]) -> BinaryIO:
        """The body of a request, as a stream."""
        return cast(BinaryIO, _Body(environ, self._reads, self._seconds))

    def _run(self) -> None:
        pause = threading.Event()
        while not pause.wait(min(1.0, self._seconds / 4)):
            now = time.monotonic()
            late = [read for read in self._reads.copy() if now - read.since > self._seconds]
            if late:
                for read in late:
                    read.late = True
                close_silent({read.address for read in late}, self._seconds)


class _Read:
    """One read that is under way."""

    __slots__ = ("address", "late", "since")

    def __init__(self, address: str) -> None:
        self.address, self.since, self.late = address, time.monotonic(), False


class _Body:
    """A body that is read in no more than its time, and to its end."""

    def __init__(self, environ: dict[str, Any], reads: set[_Read], seconds: float) -> None:
        self._stream, self._reads, self._seconds = environ["wsgi.input"], reads, seconds
        self._address = environ.get("REMOTE_ADDR", "")
        length = environ.get("CONTENT_LENGTH", "")
        self._left = int(length) if length.isascii() and length.isdigit() else -1

    def read(self, size: int = -1) -> bytes:
        """Up to so many bytes, b"" at the end; raises `RequestError`.

        A body of known length that ends before is an error: its sender has gone.
        """
        read = _Read(self._address)
        self._reads.add(read)
        try:
            piece = bytes(self._stream.read() if size < 0 else self._stream.read(size))
        finally:
            self._reads.discard(read)
        if read.late:
            said = f"send each 64 KiB of a body, or its rest, within {self._seconds:g} s"
            raise RequestError("body_timeout", said)
        if self._left >= 0:
            self._left -= len(piece)
            if self._left > 0 and (size < 0 or not piece):
                raise RequestError("bad_request", f"the body ended {self._left} bytes early")
        return piece


def close_silent(addresses: set[str], seconds: float) -> None:
    """Close for reading what comes from these addresses and was sent nothing for so long."""
    if sys.platform != "linux":
        return
    for connection in _connections():
        with connection:
            try:
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO)
                (sent,) = struct.unpack_from("I", info, _LAST_SENT)
                if connection.getpeername()[0] in addresses and sent >= seconds * 1000:
                    connection.shutdown(socket.SHUT_RD)
            except OSError:  # no connection, or it is closed already
                continue


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
