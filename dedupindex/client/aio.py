"""The client for crawlers with an event loop of asyncio, and its connections."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from dedupindex.client.answers import Answer, Claim, Last, Question, Reported
from dedupindex.client.blocking import Connections
from dedupindex.client.core import ClientBase, Steps
from dedupindex.client.http1 import (
    FAILURES,
    ConnectionPool,
    NotConnected,
    ResponseParser,
    Unanswered,
    failure,
)
from dedupindex.client.requests import Ask, Failure, Pause, Reply
from dedupindex.errors import BadInput

if TYPE_CHECKING:
    from ssl import SSLContext

    from dedupindex.client.filter_cache import DigestFilter

_T = TypeVar("_T")


class AsyncTransport(Protocol):
    """As `blocking.Transport`, but the client limits the time of `exchange`."""

    async def exchange(self, ask: Ask) -> Reply: ...
    async def close(self) -> None: ...


class _AsyncConnection(asyncio.Protocol):
    """Closed as soon as the server closes it, or sends something unasked."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.open, self.idle_since = False, 0.0
        self._transport: asyncio.Transport | None = None
        self._response, self._poll = ResponseParser(), select.poll()
        self._complete: asyncio.Future[None] | None = None  # of the current request

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self.open = cast(asyncio.Transport, transport), True
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        if self._complete is None or self._complete.done():
            self.close()
            return
        try:
            if self._response.feed(data):
                self._complete.set_result(None)
        except (OSError, ValueError) as error:
            self._complete.set_exception(error)

    def eof_received(self) -> None:
        self.connection_lost(None)

    def connection_lost(self, error: Exception | None) -> None:
        self.open = False
        if self._complete is not None and not self._complete.done():
            self.data_received(b"")

    async def exchange(self, request: bytes) -> ResponseParser:
        assert self._transport is not None
        self._response, self._complete = ResponseParser(), self.loop.create_future()
        self._transport.write(request)
        await self._complete
        return self._response

    def is_usable(self) -> bool:
        if not self.open or self.loop is not asyncio.get_running_loop():
            return False
        return not self._poll.poll(0)  # the loop may not have read what came

    def close(self) -> None:
        self.open = False
        if self._transport is None:
            return
        if not self.loop.is_closed():
            self._transport.abort()
            return
        with suppress(OSError):  # without its loop, Python closes it when it collects garbage
            self._transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)


class AsyncConnections:
    """Sends requests to one server over connections that it keeps; see `blocking.Connections`."""

    def __init__(
        self, url: str, headers: Mapping[str, str], tls: str | Path | SSLContext | None
    ) -> None:
        self._pool = ConnectionPool[_AsyncConnection](url, headers, tls)

    async def exchange(self, ask: Ask) -> Reply:
        """Send a request and return the response; repeat a GET on a kept connection, as there."""
        request = self._pool.encode(ask)
        connection = self._pool.take()
        if connection is not None:
            try:
                return await self._ask(connection, request)
            except Unanswered:
                if ask.method != "GET":
                    raise
        return await self._ask(await self._open(), request)

    async def _open(self) -> _AsyncConnection:
        loop, server = asyncio.get_running_loop(), self._pool.server
        try:
            _, connection = await loop.create_connection(
                _AsyncConnection, server.host, server.port, ssl=self._pool.context
            )
        except TimeoutError:
            raise
        except OSError as error:
            raise NotConnected(str(error)) from error
        return connection

    async def _ask(self, connection: _AsyncConnection, request: bytes) -> Reply:
        response = None
        try:
            response = await connection.exchange(request)
        finally:  # also when cancelled: a response may still arrive on it
            self._pool.give_back(connection, response)
        return response.reply

    async def close(self) -> None:
        """Close the connections."""
        self._pool.close()
        await asyncio.sleep(0)  # the loop closes the sockets now


class AsyncClient(ClientBase[AsyncTransport]):
    """As `Client`, with the same parameters and coroutines as methods; tasks may share it.

    Close it in the event loop that used it: Python cannot close a connection properly after its
    loop has ended, and says so with a `ResourceWarning` where these are shown.

    >>> import asyncio
    >>> from dedupindex.client import AsyncClient
    >>> async def example():
    ...     async with AsyncClient("http://127.0.0.1:8484") as client:
    ...         return await client.lookup("sha1:G7HRM7BGOKSKMSXZAHMUQTTV53QOFSMK")
    >>> asyncio.run(example()).match
    'digest'
    """

    _connections = AsyncConnections

    def _start_filter(self, kept: DigestFilter, *server: Any) -> None:
        if not isinstance(self._transport, AsyncConnections):
            raise BadInput("a digest filter is fetched over blocking connections: use no transport")
        connections = Connections(*server)
        kept.start(connections.exchange, self._send_counts, connections.close)

    async def lookup(self, digest: str, url: str | bytes = "", **more: Any) -> Answer:
        return await self._run(self._lookup(digest, url, more))

    async def lookups(
        self, questions: Iterable[Question | tuple[str, str]], **more: Any
    ) -> list[Answer]:
        return await self._run(self._lookups(questions, more))

    async def last(self, url: str | bytes, **more: Any) -> Last:
        return await self._run(self._last(url, more))

    async def claim(
        self, digest: str, url: str | bytes = "", *, lease: int | None = None, **more: Any
    ) -> Claim:
        return await self._run(self._claim(digest, url, lease, more))

    async def release(self, digest: str, token: str) -> bool:
        return await self._run(self._release(digest, token))

    async def begin(self, name: str, **settings: Any) -> dict[str, Any]:
        return await self._run(self._begin(name, settings))

    async def report(self, captures: Iterable[Mapping[str, Any]], *, crawl: str = "") -> Reported:
        return await self._run(self._report(crawl, captures))

    async def flush(self) -> Reported:
        return await self.report([])

    async def commit(self, name: str, exit: str = "") -> dict[str, Any]:
        return await self._run(self._end(name, "commit", exit))

    async def cancel(self, name: str, exit: str = "", *, force: bool = False) -> dict[str, Any]:
        return await self._run(self._end(name, "cancel", exit, force=force))

    async def report_counts(self, name: str) -> dict[str, Any]:
        return await self._run(self._report_counts(name))

    async def settings(self) -> dict[str, Any]:
        return await self._run(self._settings())

    async def aclose(self) -> None:
        if self._filter is not None:
            self._filter.close()
            await asyncio.to_thread(self._filter.join)
        await self._run(self._finish())
        self._closed = True
        await self._transport.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _run(self, steps: Steps[_T]) -> _T:
        reply: Reply | Failure | None = None
        try:
            while True:
                step, reply = steps.send(reply), None
                if isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
                else:
                    reply = await self._send(step)
        except StopIteration as done:
            result: _T = done.value
            return result
        finally:  # also when cancelled: captures that were not reported are then kept
            steps.close()

    async def _send(self, ask: Ask) -> Reply | Failure:
        if self._closed:
            return Failure("unreachable", "the client was closed")
        try:
            async with asyncio.timeout(ask.request_timeout):
                return await self._transport.exchange(ask)
        except FAILURES as error:
            return failure(error, ask)
