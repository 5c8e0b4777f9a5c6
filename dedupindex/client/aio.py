"""The client that awaits: for crawlers with an event loop of asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from dedupindex.client.answers import Answer, Claim, Counts, Question, Reported
from dedupindex.client.core import KEPT, Breaker, Core, Steps
from dedupindex.client.http1 import FAILURES, failure
from dedupindex.client.requests import Ask, Failure, Pause, Reply, authorized
from dedupindex.client.streams import Streams

if TYPE_CHECKING:
    from ssl import SSLContext

_T = TypeVar("_T")


class AsyncTransport(Protocol):
    """As `sync.Transport`; who calls `exchange` keeps the time."""

    async def exchange(self, ask: Ask) -> Reply: ...
    async def close(self) -> None: ...


class AsyncClient:
    """As `Client`, with coroutines; many tasks may share it."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:8484",
        *,
        crawl: str = "",
        timeout: float = 2.0,
        patience: float = 10.0,
        failures: int = 5,
        quiet: float = 30.0,
        keep: int = KEPT,
        any_spelling: bool = False,
        token: str = "",
        headers: Mapping[str, str] | None = None,
        tls: str | Path | SSLContext | None = None,
        transport: AsyncTransport | None = None,
        breaker: Breaker | None = None,
    ) -> None:
        breaker = breaker or Breaker(failures, quiet)
        self._core = Core(crawl, (timeout, patience), breaker, keep, any_spelling)
        self._transport = transport or Streams(url, authorized(url, token, headers), tls)
        self._closed = False

    async def lookup(self, digest: str, url: str | bytes = "", **more: Any) -> Answer:
        """Ask whether a payload is stored. Raises nothing; see `Client.lookup`."""
        return await self._run(self._core.lookup(digest, url, more))

    async def lookups(
        self, questions: Iterable[Question | tuple[str, str]], **more: Any
    ) -> list[Answer]:
        """Ask for many payloads at once; one answer for each, in order. Raises nothing."""
        return await self._run(self._core.lookups([Question(*one) for one in questions], more))

    async def claim(
        self, digest: str, url: str | bytes = "", *, lease: int | None = None, **more: Any
    ) -> Claim:
        """Look a payload up or, if it is new, claim it for this crawl. Raises nothing."""
        return await self._run(self._core.claim(digest, url, lease, more))

    async def release(self, digest: str, token: str) -> bool:
        """Give a claim back, of a payload that is not stored after all. Raises nothing."""
        return await self._run(self._core.release(digest, token))

    async def begin(self, name: str, **settings: Any) -> dict[str, Any]:
        """Begin a crawl; raises `DedupError`; see `Client.begin`."""
        return await self._run(self._core.begin(name, settings))

    async def report(self, captures: Iterable[Mapping[str, Any]], *, crawl: str = "") -> Reported:
        """Say what was stored. Raises nothing; see `Client.report`."""
        return await self._run(self._core.report(crawl, captures))

    async def flush(self) -> Reported:
        """Send what was kept. Raises nothing."""
        return await self.report([])

    async def commit(self, name: str, exit: str = "") -> dict[str, Any]:
        """Let the captures of a crawl answer everybody; raises `DedupError`."""
        return await self._run(self._core.end(name, "commit", exit))

    async def cancel(self, name: str, exit: str = "", *, force: bool = False) -> dict[str, Any]:
        """Take back all that a crawl reported; raises `DedupError`.

        `HasDependents` if it has answered others, unless it is forced.
        """
        return await self._run(self._core.end(name, "cancel", exit, force=force))

    async def tell(self, name: str) -> dict[str, Any]:
        """Tell what this client did not look up and not report for a crawl; raises `DedupError`.

        `commit`, `cancel` and `close` do it, too.
        """
        return await self._run(self._core.tell(name))

    async def settings(self) -> dict[str, Any]:
        """Read the settings of the index, as ``GET /stats`` shows them; raises `DedupError`."""
        return await self._run(self._core.settings())

    @property
    def counts(self) -> Counts:
        """What was asked and reported until now."""
        return self._core.counts

    @property
    def kept(self) -> int:
        """How many captures wait to be reported."""
        return self._core.kept

    async def aclose(self) -> None:
        """Send what was kept, once, and tell what was missed, which is what cannot be sent, too."""
        if self.kept:
            await self.flush()
        await self._run(self._core.farewell())
        self._closed = True
        await self._transport.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def _run(self, steps: Steps[_T]) -> _T:
        came: Reply | Failure | None = None
        try:
            while True:
                step, came = steps.send(came), None
                if isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
                else:
                    came = await self._send(step)
        except StopIteration as done:
            result: _T = done.value
            return result
        finally:  # also if it is cancelled or interrupted: what was not reported is then kept
            steps.close()

    async def _send(self, ask: Ask) -> Reply | Failure:
        if self._closed:
            return Failure("unreachable", "the client was closed")
        try:
            async with asyncio.timeout(ask.patience):
                return await self._transport.exchange(ask)
        except FAILURES as error:
            return failure(error, ask)
