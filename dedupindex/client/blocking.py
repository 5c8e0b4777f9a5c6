"""The blocking client, for crawlers with threads, and its connections."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from dedupindex.client.answers import Answer, Claim, Last, Question, Reported
from dedupindex.client.core import ClientBase, Steps
from dedupindex.client.http1 import (
    FAILURES,
    ConnectionPool,
    NotConnected,
    ResponseParser,
    ServerAddress,
    Unanswered,
    failure,
)
from dedupindex.client.requests import Ask, Failure, Pause, Reply

if TYPE_CHECKING:
    from ssl import SSLContext

    from dedupindex.client.filter_cache import DigestFilter

_READ = 1 << 16
_T = TypeVar("_T")


class Transport(Protocol):
    """Sends the requests of a `Client`; any number of threads may use it."""

    def exchange(self, ask: Ask) -> Reply:
        """Send a request and return the whole response, within `ask.request_timeout` seconds.

        Raises `TimeoutError` if it takes longer, `http1.NotConnected` if no connection can be
        made, and `OSError` or `ValueError` for every other failure.
        """

    def close(self) -> None:
        """Close the connections; nothing is sent afterwards."""


class _SocketConnection:
    def __init__(self, server: ServerAddress, context: SSLContext | None, end: float) -> None:
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

    def is_usable(self) -> bool:
        """Return False if the server has closed it, or sent something unasked."""
        return not self._poll.poll(0)

    def exchange(self, request: bytes, end: float) -> ResponseParser:
        response = ResponseParser()
        self._socket.settimeout(_left(end))
        with suppress(ConnectionError):  # a server that refuses a long body answers early
            self._socket.sendall(request)
        complete = False
        while not complete:
            self._socket.settimeout(_left(end))
            try:
                data = self._socket.recv(_READ)
            except ConnectionError:
                data = b""
            complete = response.feed(data)
        return response

    def close(self) -> None:
        self._socket.close()


def _left(end: float) -> float:
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError("time is up")
    return left


class Connections(ConnectionPool[_SocketConnection]):
    """Sends requests to one server over connections that it keeps; see `Transport`."""

    def exchange(self, ask: Ask) -> Reply:
        """Send a request and return the response.

        The server may close a kept connection just as it is used: a GET without any response is
        then sent once more over a new connection. Nothing else is repeated.
        """
        end = time.monotonic() + ask.request_timeout
        request = self.encode(ask)
        connection = self.take()
        if connection is not None:
            try:
                return self._ask(connection, request, end)
            except Unanswered:
                if ask.method != "GET":
                    raise
        return self._ask(_SocketConnection(self.server, self.context, end), request, end)

    def _ask(self, connection: _SocketConnection, request: bytes, end: float) -> Reply:
        response = None
        try:
            response = connection.exchange(request, end)
        finally:  # also when interrupted: a response may still arrive on it
            self.give_back(connection, response)
        return response.reply


class Client(ClientBase[Transport]):
    """Asks a dedupindex server during a crawl and reports what was stored; see the package.

    url             of the server; user and password before an ``@`` are sent as Basic credentials
    crawl           the crawl that asks and reports, where a call names no other
    timeout         seconds that a lookup or claim may take
    request_timeout seconds that every other request may take
    failures        after so many failures in a row only probes are sent (see `core.Breaker`)
    probe_interval  seconds between two probes, at most
    keep            captures that could not be reported and are held in memory, at most
    any_spelling    return hits whose original spells its digest in another way than the lookup.
                    Replay tools compare that text, so a crawler that sets this writes the digest of
                    `answer.original` into the revisit. By default such a hit is a `Miss`
    token           sent with every request, see ``bin/token``
    headers         further headers of every request
    tls             a PEM file of trusted certificate authorities, or an `ssl.SSLContext`; by
                    default those of the system
    transport       sends the requests in place of the client's own connections; `url`, `token`,
                    `headers` and `tls` are then not used
    breaker         a `core.Breaker` that several clients share; `failures` and `probe_interval` are
                    not used
    digest_filter   a `DigestFilter`, with which most misses are answered without asking

    Threads may share a client. It is a context manager. Proxies of the environment are not used.
    Raises `BadInput` if the URL, a header or the file of authorities is not valid.

    >>> from dedupindex.client import Client, Hit
    >>> with Client("http://127.0.0.1:8484") as client:
    ...     answer = client.lookup("sha1:G7HRM7BGOKSKMSXZAHMUQTTV53QOFSMK", "http://example.com/")
    >>> isinstance(answer, Hit), answer.match, answer.original.date
    (True, 'exact_url', '2017-03-06T04:02:06Z')
    """

    _connections = Connections

    def _start_filter(self, kept: DigestFilter, *server: Any) -> None:
        kept.start(self._transport.exchange, self._send_counts)

    def lookup(self, digest: str, url: str | bytes = "", **more: Any) -> Answer:
        """Return whether a payload is stored: a `Hit`, a `Miss`, or `NotAsked`. Raises nothing.

        digest  of the payload: "sha1:" or another label, then hex, base32 or base64
        url     of the capture; text is encoded as UTF-8, bytes are sent as they are
        more    the other parameters of ``GET /lookup``, such as `strategy` and `crawl`

        >>> with Client("http://127.0.0.1:8484") as client:
        ...     client.lookup("sha1:FKXGYNOJJ7H3IFO35FPUBC445EPOQRXN", "http://new.example/")
        Miss(why='', original=None)
        """
        return self._run(self._lookup(digest, url, more))

    def lookups(self, questions: Iterable[Question | tuple[str, str]], **more: Any) -> list[Answer]:
        """Look up many payloads, given as (digest, URL); return the answers in the same order.

        `more` applies to all. An answer may be `NotAsked`. Raises only `BadInput`, if the payloads
        are not a list of such pairs.

        >>> digest = "sha1:G7HRM7BGOKSKMSXZAHMUQTTV53QOFSMK"
        >>> with Client("http://127.0.0.1:8484") as client:
        ...     answers = client.lookups([(digest, "http://example.com/"), (digest, "http://b/")])
        >>> [answer.match for answer in answers]
        ['exact_url', 'digest']
        """
        return self._run(self._lookups(questions, more))

    def last(self, url: str | bytes, **more: Any) -> Last:
        """Return what is known last of a URL, to fetch it only if it has changed. Raises nothing.

        Send the header fields `conditions` of the result. If the response `is_confirmed`, write a
        revisit of profile server-not-modified of its `original` and report it, with `revisit`.
        `more` are the other parameters of ``GET /last``. If anything fails, there are no
        conditions: fetch the URL in full.

        >>> with Client("http://127.0.0.1:8484") as client:
        ...     last = client.last("http://new.example/")
        >>> last.known, dict(last.conditions)
        (False, {})
        """
        return self._run(self._last(url, more))

    def claim(
        self, digest: str, url: str | bytes = "", *, lease: int | None = None, **more: Any
    ) -> Claim:
        """Look a payload up and, if it is new, claim the right to store it for this crawl.

        Returns a `Hit`, `Miss` or `NotAsked` as `lookup` does; `Claimed` if this crawl shall store
        the payload within `lease` seconds (60 by default); or `Taken` if another crawler does.
        Raises nothing.

        >>> digest = "sha1:2aae6c35c94fcfb415dbe95f408b9ce91ee846ed"
        >>> with Client("http://127.0.0.1:8484", crawl="claims") as client:
        ...     crawl = client.begin("claims")
        ...     claim = client.claim(digest, "http://new.example/", lease=120)
        ...     type(claim).__name__, client.release(digest, claim.token)
        ('Claimed', True)
        """
        return self._run(self._claim(digest, url, lease, more))

    def release(self, digest: str, token: str) -> bool:
        """Give back the claim with a token; return whether it was held. Raises nothing.

        >>> with Client("http://127.0.0.1:8484") as client:
        ...     client.release("sha1:FKXGYNOJJ7H3IFO35FPUBC445EPOQRXN", "0" * 32)
        False
        """
        return self._run(self._release(digest, token))

    def begin(self, name: str, **settings: Any) -> dict[str, Any]:
        """Begin a crawl; return it as ``POST /crawls`` does. It may be repeated.

        `settings` are those of ``POST /crawls``: `seen_by`, `digest_covers`, `strategy`, `policy`
        (a list of rules) and `namespace`.

        Raises `DedupError`: `IndexUnavailable` if the server does not answer (the crawl is then
        begun with the first report), `CrawlExists` if it was begun with other settings, ….

        >>> with Client("http://127.0.0.1:8484") as client:
        ...     client.begin("news", strategy="EXACT_URL")["state"]
        'open'
        """
        return self._run(self._begin(name, settings))

    def report(self, captures: Iterable[Mapping[str, Any]], *, crawl: str = "") -> Reported:
        """Report captures that were stored; return what became of them.

        `captures` have the fields of ``POST /captures``: `digest`, `url` (text, or bytes), `date`
        (a WARC-Date), `status`, `mime`, `size` (bytes of payload), …. Returns when the server has
        them on disk. If it fails, they are kept for the next report. Why captures were not taken
        is in `Reported.why`, and is logged once for each reason.

        Raises only `BadInput`, if `captures` is one capture instead of a list.

        >>> with Client("http://127.0.0.1:8484", crawl="report") as client:
        ...     crawl = client.begin("report")
        ...     stored = {"digest": "md5:d3b07384d113edec49eaa6238ad5ff00", "status": 200,
        ...               "url": "http://example.com/foo", "date": "2026-11-20T09:14:17Z"}
        ...     client.report([stored]).added
        1
        """
        return self._run(self._report(crawl, captures))

    def flush(self) -> Reported:
        """Send the captures that were kept. Raises nothing.

        >>> with Client("http://127.0.0.1:8484") as client:
        ...     client.flush().kept
        0
        """
        return self.report([])

    def commit(self, name: str, exit: str = "") -> dict[str, Any]:
        """Make the captures of a crawl answer everybody; return the crawl. It may be repeated.

        `exit` is recorded as the reason. Captures that were kept are sent before. Raises
        `DedupError`: `IndexUnavailable` if they cannot be, `UnknownCrawl`, `CrawlEnded`, ….

        >>> with Client("http://127.0.0.1:8484") as client:
        ...     crawl = client.begin("done")
        ...     client.commit("done", "finished")["state"]
        'committed'
        """
        return self._run(self._end(name, "commit", exit))

    def cancel(self, name: str, exit: str = "", *, force: bool = False) -> dict[str, Any]:
        """Discard everything that a crawl reported; return the crawl. It may be repeated.

        Raises `DedupError`: `HasDependents` if its captures have answered others, unless `force`
        is set, `UnknownCrawl`, `CrawlEnded`, ….

        >>> with Client("http://127.0.0.1:8484") as client:
        ...     crawl = client.begin("given-up")
        ...     client.cancel("given-up")["state"]
        'cancelled'
        """
        return self._run(self._end(name, "cancel", exit, force=force))

    def report_counts(self, name: str) -> dict[str, Any]:
        """Send the server what this client could not look up and not report; return the crawl.

        `commit`, `cancel` and `close` do so, too. Raises `DedupError`.

        >>> with Client("http://127.0.0.1:8484") as client:
        ...     crawl = client.begin("counts")
        ...     client.report_counts("counts")["not_looked_up"]
        0
        """
        return self._run(self._report_counts(name))

    def settings(self) -> dict[str, Any]:
        """Return the settings of the index, as in ``GET /stats``; raises `DedupError`.

        >>> with Client("http://127.0.0.1:8484") as client:
        ...     client.settings()["mime"]
        '.*'
        """
        return self._run(self._settings())

    def close(self) -> None:
        """Send kept captures and counts once more, then close the connections.

        >>> client = Client("http://127.0.0.1:8484")
        >>> client.close()
        """
        if self._filter is not None:
            self._filter.close()
            self._filter.join()
        self._run(self._finish())
        self._closed = True
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, steps: Steps[_T]) -> _T:
        reply: Reply | Failure | None = None
        try:
            while True:
                step, reply = steps.send(reply), None
                if isinstance(step, Pause):
                    time.sleep(step.seconds)
                else:
                    reply = self._send(step)
        except StopIteration as done:
            result: _T = done.value
            return result
        finally:  # also when interrupted: captures that were not reported are then kept
            steps.close()

    def _send(self, ask: Ask) -> Reply | Failure:
        if self._closed:
            return Failure("unreachable", "the client was closed")
        try:
            return self._transport.exchange(ask)
        except FAILURES as error:
            return failure(error, ask)
