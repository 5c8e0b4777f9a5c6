"""The client that blocks: for crawlers with threads."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from types import TracebackType
from typing import Any, TypeVar

import httpx

from dedupindex.client.answers import Answer, Claim, Question, Reported
from dedupindex.client.breaker import Breaker
from dedupindex.client.core import Core, Steps
from dedupindex.client.counts import Counts
from dedupindex.client.requests import MOST, Ask, Failure, Pause, Reply, authorized

_T = TypeVar("_T")
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=20)
KEPT = 100_000
# What httpx raises for anything that went wrong between here and the server; RuntimeError is its
# word for a client that was closed, by a crawler that is ending.
FAILURES = (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError, RuntimeError, ValueError)


class Client:
    """Asks a dedupindex server; see the package. Safe to share between threads.

    `timeout` is how long a lookup or claim may take, `patience` anything else, in seconds;
    `crawl` is the crawl that asks and reports where a call does not name another. After `failures`
    failures in a row only probes are sent, with pauses of at most `quiet` seconds; see `Breaker`.
    At most `keep` captures that could not be reported are kept in memory. A hit whose original
    spells its digest otherwise than the question is a `Miss`, because replay tools compare that
    text; with `any_spelling` it is a hit, for those who write a revisit with the digest of
    `answer.original`, to the letter. `token` (``bin/token``) and `headers` go with every request;
    proxies and other settings of the environment are not used. `transport` is httpx's.
    """

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
        transport: httpx.BaseTransport | None = None,
        breaker: Breaker | None = None,
    ) -> None:
        breaker = breaker or Breaker(failures, quiet)
        self._core = Core(crawl, (timeout, patience), breaker, keep, any_spelling)
        self._transport = transport or httpx.HTTPTransport(limits=LIMITS, trust_env=False)
        self._http = httpx.Client(  # makes requests; see `_send` for who sends them
            base_url=url,
            headers=authorized(url, token, headers),
            transport=self._transport,
            trust_env=False,
        )

    def lookup(self, digest: str, url: str | bytes = "", **more: Any) -> Answer:
        """Ask whether a payload is stored. Raises nothing; see `Answer`.

        `more` are the other parameters of ``GET /lookup``, such as ``strategy`` and ``crawl``.
        """
        return self._run(self._core.lookup(digest, url, more))

    def lookups(self, questions: Iterable[Question | tuple[str, str]], **more: Any) -> list[Answer]:
        """Ask for many payloads at once; one answer for each, in order. Raises nothing."""
        return self._run(self._core.lookups([Question(*one) for one in questions], more))

    def claim(
        self, digest: str, url: str | bytes = "", *, lease: int | None = None, **more: Any
    ) -> Claim:
        """Look a payload up or, if it is new, claim it for this crawl. Raises nothing."""
        return self._run(self._core.claim(digest, url, lease, more))

    def release(self, digest: str, token: str) -> bool:
        """Give a claim back, of a payload that is not stored after all. Raises nothing."""
        return self._run(self._core.release(digest, token))

    def begin(self, name: str, **settings: Any) -> dict[str, Any]:
        """Begin a crawl; raises `DedupError`.

        `settings` are those of ``POST /crawls``: ``seen_by``, ``digest_covers``, ``strategy``,
        ``policy`` (a list of rules) and ``namespace``.
        `IndexUnavailable` says that nobody answered; the crawl is begun with the first report.
        """
        return self._run(self._core.begin(name, settings))

    def report(self, captures: Iterable[Mapping[str, Any]], *, crawl: str = "") -> Reported:
        """Say what was stored, as ``POST /captures`` has it. Raises nothing.

        Returns when the server has it on disk, or has failed: then it is kept for the next report.
        """
        return self._run(self._core.report(crawl, captures))

    def flush(self) -> Reported:
        """Send what was kept. Raises nothing."""
        return self.report([])

    def commit(self, name: str, exit: str = "") -> dict[str, Any]:
        """Let the captures of a crawl answer everybody; raises `DedupError`."""
        return self._run(self._core.end(name, "commit", exit))

    def cancel(self, name: str, exit: str = "", *, force: bool = False) -> dict[str, Any]:
        """Take back all that a crawl reported; raises `DedupError`.

        `HasDependents` if it has answered others, unless it is forced.
        """
        return self._run(self._core.end(name, "cancel", exit, force=force))

    def tell(self, name: str) -> dict[str, Any]:
        """Tell what this client did not look up and not report for a crawl; raises `DedupError`.

        `commit`, `cancel` and `close` do it, too.
        """
        return self._run(self._core.tell(name))

    def settings(self) -> dict[str, Any]:
        """Read the settings of the index, as ``GET /stats`` shows them; raises `DedupError`."""
        return self._run(self._core.settings())

    @property
    def counts(self) -> Counts:
        """What was asked and reported until now."""
        return self._core.counts

    @property
    def kept(self) -> int:
        """How many captures wait to be reported."""
        return self._core.kept

    def close(self) -> None:
        """Send what was kept, once, and tell what was missed, which is what cannot be sent, too."""
        if self.kept:
            self.flush()
        self._run(self._core.farewell())
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self, steps: Steps[_T]) -> _T:
        came: Reply | Failure | None = None
        while True:
            try:
                step = steps.send(came)
            except StopIteration as done:
                result: _T = done.value
                return result
            came = None
            if isinstance(step, Pause):
                time.sleep(step.seconds)
            else:
                came = self._send(step)

    def _send(self, ask: Ask) -> Reply | Failure:
        """Send a request past `httpx.Client.send`, which logs a line for each at level INFO."""
        end = time.monotonic() + ask.patience
        try:
            if self._http.is_closed:
                return Failure("unreachable", "the client was closed")
            request = self._http.build_request(
                ask.method,
                ask.path,
                content=ask.content or None,
                headers={"Content-Type": ask.type} if ask.content else None,
                timeout=ask.patience,
            )
            with closing(self._transport.handle_request(request)) as response:
                body = bytearray()
                for piece in response.iter_bytes():
                    body += piece
                    if time.monotonic() > end:  # httpx times each wait, not all of them
                        return Failure("timeout", "the answer came too slowly")
                    if len(body) > MOST:
                        return Failure("garbage", "the answer does not end")
                return Reply(response.status_code, bytes(body))
        except httpx.TimeoutException as error:
            return Failure("timeout", f"no answer within {ask.patience:g} s ({error!r})")
        except FAILURES as error:
            refused = isinstance(error, httpx.ConnectError)
            return Failure("unreachable", repr(error), refused)
