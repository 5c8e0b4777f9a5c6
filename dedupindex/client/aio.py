"""The client that awaits: for crawlers with an event loop (asyncio, trio)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import aclosing
from types import TracebackType
from typing import Any, TypeVar

import anyio
import httpx

from dedupindex.client.answers import Answer, Claim, Question, Reported
from dedupindex.client.blocking import FAILURES, KEPT, LIMITS
from dedupindex.client.breaker import Breaker
from dedupindex.client.core import Core, Steps
from dedupindex.client.counts import Counts
from dedupindex.client.requests import MOST, Ask, Failure, Pause, Reply, authorized

_T = TypeVar("_T")


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
        transport: httpx.AsyncBaseTransport | None = None,
        breaker: Breaker | None = None,
    ) -> None:
        breaker = breaker or Breaker(failures, quiet)
        self._core = Core(crawl, (timeout, patience), breaker, keep, any_spelling)
        self._transport = transport or httpx.AsyncHTTPTransport(limits=LIMITS, trust_env=False)
        self._http = httpx.AsyncClient(  # makes requests; see `_exchange` for who sends them
            base_url=url,
            headers=authorized(url, token, headers),
            transport=self._transport,
            trust_env=False,
        )

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
        await self._http.aclose()

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
        while True:
            try:
                step = steps.send(came)
            except StopIteration as done:
                result: _T = done.value
                return result
            came = None
            if isinstance(step, Pause):
                await anyio.sleep(step.seconds)
            else:
                came = await self._send(step)

    async def _send(self, ask: Ask) -> Reply | Failure:
        try:
            with anyio.fail_after(ask.patience):
                return await self._exchange(ask)
        except (httpx.TimeoutException, TimeoutError) as error:
            return Failure("timeout", f"no answer within {ask.patience:g} s ({error!r})")
        except FAILURES as error:
            refused = isinstance(error, httpx.ConnectError)
            return Failure("unreachable", repr(error), refused)

    async def _exchange(self, ask: Ask) -> Reply | Failure:
        """Send a request past `httpx.AsyncClient.send`, which logs a line for each at INFO."""
        if self._http.is_closed:
            return Failure("unreachable", "the client was closed")
        request = self._http.build_request(
            ask.method,
            ask.path,
            content=ask.content or None,
            headers={"Content-Type": ask.type} if ask.content else None,
            timeout=ask.patience,
        )
        async with aclosing(await self._transport.handle_async_request(request)) as response:
            body = bytearray()
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) > MOST:
                    return Failure("garbage", "the answer does not end")
            return Reply(response.status_code, bytes(body))
