"""The client that blocks: for crawlers with threads."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from dedupindex.client.answers import Answer, Claim, Counts, Question, Reported
from dedupindex.client.connections import Connections
from dedupindex.client.core import KEPT, Breaker, Core, Steps
from dedupindex.client.http1 import FAILURES, failure
from dedupindex.client.requests import Ask, Failure, Pause, Reply, authorized

if TYPE_CHECKING:
    from ssl import SSLContext

_T = TypeVar("_T")


class Transport(Protocol):
    """Sends requests; any number of threads may use it."""

    def exchange(self, ask: Ask) -> Reply:
        """Send a request and return the whole answer, within `ask.patience` seconds.

        Raises `TimeoutError` if it comes too late, `http1.NotConnected` where no connection could
        be made, and `OSError` or `ValueError` for all else that keeps it from coming.
        """

    def close(self) -> None:
        """Let go of connections; nothing is sent any more."""


class Client:
    """Asks a dedupindex server; see the package. Safe to share between threads.

    `timeout` is how long a lookup or claim may take, `patience` anything else, in seconds;
    `crawl` is the crawl that asks and reports where a call does not name another. After `failures`
    failures in a row only probes are sent, with pauses of at most `quiet` seconds; see `Breaker`.
    At most `keep` captures that could not be reported are kept in memory. A hit whose original
    spells its digest otherwise than the question is a `Miss`, because replay tools compare that
    text; with `any_spelling` it is a hit, for those who write a revisit with the digest of
    `answer.original`, to the letter. `token` (``bin/token``) and `headers` go with every request.
    `tls` is a PEM file of the authorities that may have signed an https server's certificate, or
    an `ssl.SSLContext`; by default those that the system trusts. Proxies of the environment are not
    used. A `transport` sends the requests in place of the client's own connections; `url`, `token`,
    `headers` and `tls` are then its matter.

    Raises `BadInput` if the URL, a header or the file of authorities cannot be used.

    >>> from dedupindex.client import Client, Hit
    >>> with Client("http://127.0.0.1:8484") as client:
    ...     answer = client.lookup("sha1:G7HRM7BGOKSKMSXZAHMUQTTV53QOFSMK", "http://example.com/")
    >>> isinstance(answer, Hit), answer.match, answer.original.date
    (True, 'exact_url', '2017-03-06T04:02:06Z')
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
        tls: str | Path | SSLContext | None = None,
        transport: Transport | None = None,
        breaker: Breaker | None = None,
    ) -> None:
        breaker = breaker or Breaker(failures, quiet)
        self._core = Core(crawl, (timeout, patience), breaker, keep, any_spelling)
        self._transport = transport or Connections(url, authorized(url, token, headers), tls)
        self._closed = False

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
        self._closed = True
        self._transport.close()

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
        try:
            while True:
                step, came = steps.send(came), None
                if isinstance(step, Pause):
                    time.sleep(step.seconds)
                else:
                    came = self._send(step)
        except StopIteration as done:
            result: _T = done.value
            return result
        finally:  # also if it is cancelled or interrupted: what was not reported is then kept
            steps.close()

    def _send(self, ask: Ask) -> Reply | Failure:
        if self._closed:
            return Failure("unreachable", "the client was closed")
        try:
            return self._transport.exchange(ask)
        except FAILURES as error:
            return failure(error, ask)
