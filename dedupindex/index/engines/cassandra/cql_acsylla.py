"""The quick driver, acsylla: the C++ driver under asyncio, whose loop runs in a thread of ours.

It asks no second node while one hangs: with that on, a request to the only node never ended.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import islice
from typing import Any, TypeVar

import acsylla
from acsylla.errors import CassException

from dedupindex.errors import IndexUnavailable
from dedupindex.index.address import Address
from dedupindex.index.engines.cassandra.cql import (
    HEARTBEAT,
    IN_FLIGHT,
    PAGE,
    RECONNECT,
    Row,
    Statement,
    Unclear,
    Use,
)
from dedupindex.index.engines.cassandra.cql_tls import Trust, texts

_Found = TypeVar("_Found")
_Asked = tuple[Statement, Sequence[Any]]
_CHUNK = 4 * IN_FLIGHT  # statements that are handed to the loop's thread at once, or twice
_DEFINING = 60.0  # seconds for a change of the schema
_FAILURES = (CassException, OSError)


_loops: dict[int, asyncio.AbstractEventLoop] = {}  # of this process, by its number: forks differ


def _loop() -> asyncio.AbstractEventLoop:
    """The loop of all sessions of this process; acsylla holds on to it, so it runs to the end."""
    loop = _loops.get(os.getpid())
    if loop is None:
        loop = _loops[os.getpid()] = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, name="acsylla", daemon=True).start()
    return loop


class AcsyllaSession:
    """A `Session` of acsylla."""

    def __init__(
        self, address: Address, user: str, password: str, tls: Trust | None = None
    ) -> None:
        self._reading = getattr(acsylla.Consistency, address.reading)
        self._writing = getattr(acsylla.Consistency, address.consistency)
        # A chunk takes a few rounds, each of which the driver ends in time.
        self._longest = _DEFINING + (2 + 2 * _CHUNK / IN_FLIGHT) * address.timeout
        self._prepared: dict[Statement, Any] = {}
        self._loop = _loop()
        try:
            self._session = self._wait(self._connect(address, user, password, tls))
        except IndexUnavailable as error:
            raise IndexUnavailable(
                f"no node of {','.join(address.hosts)} answers on port {address.port}: {error}"
            ) from error

    async def _connect(self, address: Address, user: str, password: str, tls: Trust | None) -> Any:
        authorities, own, key = texts(tls) if tls else (None, None, None)
        cluster = acsylla.create_cluster(
            list(address.hosts),
            port=address.port,
            username=user or None,
            password=password or None,
            ssl_enabled=tls is not None,
            ssl_trusted_cert=authorities,
            ssl_cert=own,
            ssl_private_key=key,
            ssl_verify_flags=acsylla.SSLVerifyFlags.PEER_CERT,
            connect_timeout=address.timeout,
            request_timeout=address.timeout,
            load_balance_dc_aware=address.datacenter or None,
            constant_reconnect_delay_ms=int(RECONNECT * 1000),
            heartbeat_interval_sec=HEARTBEAT,
            idle_timeout_sec=2 * HEARTBEAT,
            queue_size_io=_CHUNK * 8,
            log_level="disabled",
        )
        return await cluster.create_session()

    def execute(self, statement: Statement, *values: Any) -> list[Row]:
        return self._wait(self._all((statement, values)))

    def execute_many(self, asked: Iterable[_Asked]) -> Iterator[list[Row]]:
        asked = iter(asked)  # a chunk is asked while whoever asks looks at the one before
        begun: deque[Future[list[list[Row]]]] = deque()
        while chunk := list(islice(asked, _CHUNK)):
            begun.append(self._begin(self._side_by_side(chunk)))
            if len(begun) > 1:
                yield from self._end(begun.popleft())
        while begun:
            yield from self._end(begun.popleft())

    def write_many(self, statement: Statement, rows: Iterable[Sequence[Any]]) -> None:
        for _ in self.execute_many((statement, values) for values in rows):
            pass

    def scan(self, statement: Statement, *values: Any) -> Iterator[list[Row]]:
        state: bytes | None = None
        while True:
            rows, state = self._wait(self._page(statement, values, state))
            yield rows
            if state is None:
                return

    def define(self, text: str) -> None:
        statement = acsylla.create_statement(text, timeout=_DEFINING)
        self._wait(self._session.execute(statement))

    def close(self) -> None:
        self._wait(self._session.close())

    def _begin(self, work: Coroutine[Any, Any, _Found]) -> Future[_Found]:
        """Hand it to the loop's thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _wait(self, work: Coroutine[Any, Any, _Found]) -> _Found:
        return self._end(self._begin(work))

    def _end(self, begun: Future[_Found]) -> _Found:
        """What the loop's thread made of it; should it never end, an outage."""
        try:
            return begun.result(self._longest)
        except (*_FAILURES, TimeoutError) as error:
            raise IndexUnavailable(f"the cluster does not answer: {_words(error)}") from error

    async def _side_by_side(self, chunk: list[_Asked]) -> list[list[Row]]:
        found: list[list[Row]] = [[] for _ in chunk]
        numbered = iter(enumerate(chunk))

        async def work() -> None:
            for number, one in numbered:
                found[number] = await self._all(one)

        workers = [asyncio.ensure_future(work()) for _ in range(min(IN_FLIGHT, len(chunk)))]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
        return found

    async def _all(self, one: _Asked) -> list[Row]:
        rows, state = await self._page(*one, None)
        while state is not None:
            more, state = await self._page(*one, state)
            rows += more
        return rows

    async def _page(
        self, statement: Statement, values: Sequence[Any], state: bytes | None
    ) -> tuple[list[Row], bytes | None]:
        try:
            prepared = self._prepared.get(statement) or await self._prepare(statement)
            bound = prepared.bind(
                values, PAGE, state, consistency=self._level(statement),
                serial_consistency=acsylla.Consistency.LOCAL_SERIAL,
            )  # fmt: skip
            bound.set_is_idempotent(statement.use is not Use.CONDITIONAL)
            result = await self._session.execute(bound)
            rows = [row.as_tuple() for row in result]
            return rows, result.page_state() if result.has_more_pages() else None
        except _FAILURES as error:
            kind = Unclear if statement.use is Use.CONDITIONAL else IndexUnavailable
            raise kind(f"the cluster does not answer: {_words(error)}") from error

    def _level(self, statement: Statement) -> Any:
        if statement.use is Use.SERIAL:
            return acsylla.Consistency.LOCAL_SERIAL
        return self._reading if statement.use is Use.READ else self._writing

    async def _prepare(self, statement: Statement) -> Any:
        prepared = await self._session.create_prepared(statement.text)
        return self._prepared.setdefault(statement, prepared)


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error) or 'no more is known'}"[:300]
