"""Connections to a server in an event loop of asyncio, kept open and shared by tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

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


class _Stream(asyncio.Protocol):
    """One connection; closed as soon as the server closes it, or sends what nobody asked for."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.open, self.idle_since = False, 0.0
        self._transport: asyncio.Transport | None = None
        self._response = Response()
        self._whole: asyncio.Future[None] | None = None  # of the request that is under way

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self.open = cast(asyncio.Transport, transport), True

    def data_received(self, data: bytes) -> None:
        if self._whole is None or self._whole.done():
            self.abort()
            return
        try:
            if self._response.feed(data):
                self._whole.set_result(None)
        except (OSError, ValueError) as error:
            self._whole.set_exception(error)

    def eof_received(self) -> None:
        self.connection_lost(None)

    def connection_lost(self, error: Exception | None) -> None:
        self.open = False
        if self._whole is not None and not self._whole.done():
            self.data_received(b"")

    async def exchange(self, request: bytes) -> Response:
        assert self._transport is not None
        self._response, self._whole = Response(), self.loop.create_future()
        self._transport.write(request)
        await self._whole
        return self._response

    def abort(self) -> None:
        self.open = False
        if self._transport is not None and not self.loop.is_closed():
            self._transport.abort()


class Streams:
    """Sends requests to one server; see `connections.Connections`, which it is like."""

    def __init__(
        self, url: str, headers: Mapping[str, str], tls: str | Path | SSLContext | None
    ) -> None:
        self._server = Server.parse(url)
        self._context = self._server.context(tls)
        self._requests = Requests(self._server, headers)
        self._idle: list[_Stream] = []
        self._closed = False

    async def exchange(self, ask: Ask) -> Reply:
        """Send a request and return the answer; a GET again if its kept connection was closed."""
        request = self._requests.encode(ask)
        stream = self._kept()
        if stream is not None:
            try:
                return await self._ask(stream, request)
            except Unanswered:
                if ask.method != "GET":
                    raise
        return await self._ask(await self._connect(), request)

    async def _connect(self) -> _Stream:
        loop, server = asyncio.get_running_loop(), self._server
        try:
            _, stream = await loop.create_connection(
                _Stream, server.host, server.port, ssl=self._context
            )
        except TimeoutError:
            raise
        except OSError as error:
            raise NotConnected(str(error)) from error
        return stream

    async def _ask(self, stream: _Stream, request: bytes) -> Reply:
        response = None
        try:
            response = await stream.exchange(request)
        finally:  # also of a task that is cancelled: an answer may still come over it
            if response is None or not response.reusable or not self._keep(stream):
                stream.abort()
        return response.reply

    def _kept(self) -> _Stream | None:
        """A connection that was kept and still stands, in the loop that runs now."""
        loop = asyncio.get_running_loop()
        while self._idle:
            stream = self._idle.pop()
            if stream.loop is loop and stream.open and loop.time() - stream.idle_since < EXPIRY:
                return stream
            stream.abort()
        return None

    def _keep(self, stream: _Stream) -> bool:
        stream.idle_since = stream.loop.time()
        if self._closed or not stream.open or len(self._idle) >= KEPT_OPEN:
            return False
        self._idle.append(stream)
        if self._idle[0].idle_since + EXPIRY < stream.idle_since:
            self._idle.pop(0).abort()
        return True

    async def close(self) -> None:
        """Let go of the connections."""
        self._closed = True
        while self._idle:
            self._idle.pop().abort()
        await asyncio.sleep(0)  # which the loop does now
