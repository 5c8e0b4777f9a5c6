"""Blocking connections to a server, kept open between requests and shared by threads."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from dedupindex.client.http1 import (
    EXPIRY,
    KEPT_OPEN,
    NotConnected,
    Requests,
    Response,
    Server,
    Unanswered,
)
from dedupindex.client.requests import Ask, Reply

if TYPE_CHECKING:
    from ssl import SSLContext

_READ = 1 << 16


class _Connection:
    def __init__(self, server: Server, context: SSLContext | None, end: float) -> None:
        """Connect; raises `NotConnected`, `TimeoutError`."""
        try:
            self._socket = socket.create_connection((server.host, server.port), _left(end))
        except TimeoutError:
            raise
        except OSError as error:
            raise NotConnected(str(error)) from error
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context is not None:
                self._socket.settimeout(_left(end))
                self._socket = context.wrap_socket(self._socket, server_hostname=server.host)
        except TimeoutError:
            self.close()
            raise
        except (OSError, ValueError) as error:
            self.close()
            raise NotConnected(str(error)) from error
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self.idle_since = 0.0

    def stale(self) -> bool:
        """Whether the server has closed it, or sent what nobody asked for."""
        return bool(self._poll.poll(0))

    def exchange(self, request: bytes, end: float) -> Response:
        response = Response()
        self._socket.settimeout(_left(end))
        with suppress(ConnectionError):  # who refuses a long body may answer before it has ended
            self._socket.sendall(request)
        whole = False
        while not whole:
            self._socket.settimeout(_left(end))
            try:
                came = self._socket.recv(_READ)
            except ConnectionError:
                came = b""
            whole = response.feed(came)
        return response

    def close(self) -> None:
        self._socket.close()


def _left(end: float) -> float:
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError("time is up")
    return left


class Connections:
    """Sends requests to one server; see `Transport`. `headers` go with each of them."""

    def __init__(
        self, url: str, headers: Mapping[str, str], tls: str | Path | SSLContext | None
    ) -> None:
        self._server = Server.parse(url)
        self._context = self._server.context(tls)
        self._requests = Requests(self._server, headers)
        self._idle = deque[_Connection]()  # the one that was used last stands last
        self._lock = threading.Lock()
        self._closed = False

    def exchange(self, ask: Ask) -> Reply:
        """Send a request and return the answer.

        A kept connection may be closed by the server just as it is used: a GET is then sent once
        more over a new one. All else is not repeated, nor is a GET of which a byte came back.
        """
        end = time.monotonic() + ask.patience
        request = self._requests.encode(ask)
        connection = self._kept()
        if connection is not None:
            try:
                return self._ask(connection, request, end)
            except Unanswered:
                if ask.method != "GET":
                    raise
        return self._ask(_Connection(self._server, self._context, end), request, end)

    def _ask(self, connection: _Connection, request: bytes, end: float) -> Reply:
        response = None
        try:
            response = connection.exchange(request, end)
        finally:  # also if the thread is interrupted: an answer may still come over it
            if response is None or not response.reusable or not self._keep(connection):
                connection.close()
        return response.reply

    def _kept(self) -> _Connection | None:
        """A connection that was kept and still stands."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if time.monotonic() - connection.idle_since < EXPIRY and not connection.stale():
                return connection
            connection.close()

    def _keep(self, connection: _Connection) -> bool:
        """Keep a connection for the next request; close one that was not needed for long."""
        connection.idle_since = time.monotonic()
        with self._lock:
            if self._closed or len(self._idle) >= KEPT_OPEN:
                return False
            self._idle.append(connection)
            old = self._idle[0].idle_since + EXPIRY < connection.idle_since
            if old:
                self._idle.popleft().close()
        return True

    def close(self) -> None:
        """Let go of the connections."""
        with self._lock:
            self._closed = True
            while self._idle:
                self._idle.pop().close()
