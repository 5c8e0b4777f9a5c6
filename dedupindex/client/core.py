"""The logic of both clients, without I/O.

Each operation is a generator that yields requests and pauses, and is sent the replies. The methods
of the clients run it, with blocking or asynchronous I/O.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from math import ceil
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from dedupindex import errors
from dedupindex.client import requests
from dedupindex.client.answers import (
    SPELLED_OTHERWISE,
    Answer,
    Claim,
    Counts,
    Hit,
    Last,
    Miss,
    NotAsked,
    Question,
    Reported,
    read_answer,
    read_claim,
    read_last,
    read_reported,
    refusal,
)
from dedupindex.client.requests import Ask, Failure, Pause, Reply

if TYPE_CHECKING:
    from ssl import SSLContext

    from dedupindex.client.filter_cache import DigestFilter

SHORTEST = 1.0  # seconds between two probes, at least
SHARE = 10  # the pause before the next probe is a tenth of the outage so far
_LOST = 60.0  # seconds after which another probe may be sent though the last has not ended


class Breaker:
    """A circuit breaker: decides for all threads together whether a request is sent.

    After `failures` failures in a row only probes are sent: the request of one caller, while all
    others get no answer. The first success ends this. The pause between probes is a tenth of the
    outage so far, at least one second and at most `probe_interval` seconds. While connections are
    refused it is one second, as such a probe costs nothing: a restarted server is found at once.
    """

    def __init__(
        self,
        failures: int = 5,
        probe_interval: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most, self._probe_interval, self._clock = failures, probe_interval, clock
        self._failures = 0
        self._since = 0.0  # of the first of the failures
        self._until = 0.0  # when the next probe may be sent
        self._lock = threading.Lock()

    def lets_through(self) -> bool:
        """Return whether to send a request; `succeeded`, `failed` or `abandoned` must follow."""
        with self._lock:
            if self._failures < self._most:
                return True
            now = self._clock()
            if now < self._until:
                return False
            self._until = now + _LOST  # nobody else, until this probe has ended
            return True

    def succeeded(self) -> None:
        """Record that the server has answered."""
        with self._lock:
            self._failures = 0

    def failed(self, *, refused: bool = False) -> None:
        """Record that no readable answer came; `refused`: no connection could be made."""
        with self._lock:
            now = self._clock()
            if not self._failures:
                self._since = now
            self._failures += 1
            pause = SHORTEST if refused else max(SHORTEST, (now - self._since) / SHARE)
            self._until = now + min(pause, self._probe_interval)

    def end_pause(self) -> None:
        """Let the next request through even if the pause before the next probe is not over."""
        with self._lock:
            self._until = self._clock()

    def abandoned(self) -> None:
        """Record that a request was cancelled by its caller, whatever the server does."""
        self.end_pause()


MOST_BYTES = 128 << 20  # of waiting captures, whatever their number
_REQUEST_BYTES = 4 << 20  # of captures in a request; servers take 16 MiB by default


class CaptureBatch(NamedTuple):
    """Captures of one crawl, for one request."""

    crawl: str
    captures: list[bytes]  # as JSON

    def halves(self) -> list[CaptureBatch]:
        """Return the later and the earlier half."""
        middle = len(self.captures) // 2
        return [
            self._replace(captures=self.captures[middle:]),
            self._replace(captures=self.captures[:middle]),
        ]


class ReportQueue:
    """The captures that wait to be reported, of all threads; when full, new ones are dropped."""

    def __init__(self, most: int, batch: int) -> None:
        self._most, self._batch = most, batch
        self._queue: deque[tuple[str, bytes]] = deque()
        self._held = 0  # bytes
        self._sending = Counter[str]()  # captures that were taken, by crawl
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, crawl: str, captures: Iterable[bytes]) -> int:
        """Append captures; return how many were dropped."""
        dropped = 0
        with self._lock:
            for capture in captures:
                if len(self._queue) < self._most and self._held + len(capture) <= MOST_BYTES:
                    self._queue.append((crawl, capture))
                    self._held += len(capture)
                else:
                    dropped += 1
        return dropped

    def take(self) -> CaptureBatch | None:
        """Remove and return the oldest captures of one crawl for a request; None if it is empty."""
        with self._lock:
            if not self._queue:
                return None
            crawl, captures, size = self._queue[0][0], list[bytes](), 0
            while self._queue and self._queue[0][0] == crawl and len(captures) < self._batch:
                size += len(self._queue[0][1])
                if captures and size > _REQUEST_BYTES:  # a longer one goes alone
                    size -= len(self._queue[0][1])
                    break
                captures.append(self._queue.popleft()[1])
            self._held -= size
            self._sending[crawl] += len(captures)
        return CaptureBatch(crawl, captures)

    def done(self, batch: CaptureBatch) -> None:
        """Record that captures that were taken are sent, or dropped."""
        with self._lock:
            self._taken(batch)

    def _taken(self, batch: CaptureBatch) -> None:
        self._sending[batch.crawl] -= len(batch.captures)
        if not self._sending[batch.crawl]:
            del self._sending[batch.crawl]

    def unsent(self, crawl: str) -> int:
        """Return how many captures of a crawl wait or are being sent, by any thread."""
        with self._lock:
            return self._sending[crawl] + sum(crawl == other for other, _ in self._queue)

    def give_back(self, batch: CaptureBatch) -> int:
        """Put captures back at the front; return how many were dropped."""
        with self._lock:
            room = max(self._most - len(self._queue), 0)
            for capture in reversed(batch.captures[:room]):
                self._queue.appendleft((batch.crawl, capture))
                self._held += len(capture)
            self._taken(batch)
        return len(batch.captures[room:])

    def clear(self) -> Counter[str]:
        """Drop everything; return the numbers of captures by crawl."""
        with self._lock:
            counts = Counter(crawl for crawl, _ in self._queue)
            self._queue.clear()
            self._held = 0
        return counts


_T = TypeVar("_T")
_AnswerT = TypeVar("_AnswerT", bound=Claim)
_TransportT = TypeVar("_TransportT")
Steps = Generator[Ask | Pause, Reply | Failure | None, _T]

KEPT = 100_000  # captures that wait to be reported, at most
BATCH = 1000  # lookups or captures in one request
TRIES = 2  # of a report
PAUSE = 0.2  # seconds between them
_MOST_SPLITS = 200  # of a request that is refused, before the rest of it is dropped
_LOST_TOKENS = 10_000  # kept, of claims whose answer was lost
_REASONS = 20  # that are logged, of captures that are not taken or not reported
_log = logging.getLogger("dedupindex.client")


class ClientBase(Generic[_TransportT]):
    """The state of a client and its operations; see `Client` for the parameters."""

    _connections: Callable[..., _TransportT]  # makes the client's own transport

    def __init__(
        self,
        url: str = "http://127.0.0.1:8484",
        *,
        crawl: str = "",
        timeout: float = 2.0,
        request_timeout: float = 10.0,
        failures: int = 5,
        probe_interval: float = 30.0,
        keep: int = KEPT,
        any_spelling: bool = False,
        token: str = "",
        headers: Mapping[str, str] | None = None,
        tls: str | Path | SSLContext | None = None,
        transport: _TransportT | None = None,
        breaker: Breaker | None = None,
        digest_filter: DigestFilter | None = None,
    ) -> None:
        self.counts = Counts()
        """The numbers of lookups and reports so far, and what became of them."""
        self._any_spelling = any_spelling
        self._crawl, self._breaker = crawl, breaker or Breaker(failures, probe_interval)
        self._short, self._long = timeout, request_timeout
        self._queue = ReportQueue(keep, BATCH)
        self._who = token_hex(8)  # each process of a crawl has counts of its own
        self._sent_counts: dict[str, dict[str, Any]] = {}  # the last, by crawl
        self._begun: dict[str, Ask] = {}  # the requests that begin crawls
        self._reasons = set[str]()  # logged, why captures were not taken or not reported
        # Tokens of claims whose answer was lost: claiming again with them is not `Taken`.
        self._lost: dict[tuple[str, str], str] = {}
        authorized = requests.authorized(url, token, headers)
        self._transport = transport or self._connections(url, authorized, tls)
        self._closed = False
        self._filter = digest_filter
        if digest_filter is not None:
            self._start_filter(digest_filter, url, authorized, tls)

    def _start_filter(self, kept: DigestFilter, *server: Any) -> None:
        """Start the thread of the digest filter, on blocking connections to a server."""
        raise NotImplementedError

    @property
    def kept(self) -> int:
        """The number of captures that wait to be reported."""
        return len(self._queue)

    def _lookup(self, digest: str, url: str | bytes, more: Mapping[str, Any]) -> Steps[Answer]:
        """Look one payload up."""
        more = {"crawl": self._crawl, **more}
        if self._is_new(digest, more):
            return Miss()

        def read(value: Any) -> Answer:
            if isinstance(value, dict) and "answers" in value:
                (value,) = value["answers"]
            return read_answer(value)

        answer = yield from self._ask(lambda: requests.lookup(digest, url, more, self._short), read)
        return self._counted(answer, digest, more)

    def _last(self, url: str | bytes, more: Mapping[str, Any]) -> Steps[Last]:
        """Ask for the last capture of a URL."""
        more = {"crawl": self._crawl, **more}

        def read(value: Any) -> Last:
            if isinstance(value, dict) and "answers" in value:
                (value,) = value["answers"]
            return read_last(value)

        found = yield from self._ask(lambda: requests.last(url, more, self._short), read)
        return Last(why=found.why) if isinstance(found, NotAsked) else found

    def _lookups(
        self, questions: Iterable[Question | tuple[str, str]], more: Mapping[str, Any]
    ) -> Steps[list[Answer]]:
        """Look many payloads up; return the answers in order."""
        all_asked = requests.questions(questions)
        more = {"crawl": self._crawl, **more}
        new = [self._is_new(question.digest, more) for question in all_asked]
        asked = [question for question, known in zip(all_asked, new, strict=True) if not known]
        answers = list[Answer]()
        for at in range(0, len(asked), BATCH):
            batch = asked[at : at + BATCH]
            found = yield from self._lookup_batch(batch, more)
            answers += [found] * len(batch) if isinstance(found, NotAsked) else found
        counted = (
            self._counted(answer, question.digest, more)
            for answer, question in zip(answers, asked, strict=True)
        )
        return [Miss() if known else next(counted) for known in new]

    def _is_new(self, digest: str, more: Mapping[str, Any]) -> bool:
        """Return whether the digest filter answers a lookup, with a miss, and count that."""
        new = self._filter is not None and self._filter.lacks(digest, more)
        if new:
            self.counts.answered_by_filter(more["crawl"])
        return new

    def _lookup_batch(
        self, batch: list[Question], more: Mapping[str, Any]
    ) -> Steps[list[Answer] | NotAsked]:
        def make() -> Ask:
            asked = [requests.question(digest, url, {}) for digest, url in batch]
            options = requests.given(more)
            return requests.post("/lookup", {"lookups": asked, **options}, self._short)

        def read(value: Any) -> list[Answer]:
            answers = [read_answer(one) for one in value["answers"]]
            if len(answers) != len(batch):
                raise ValueError(f"{len(batch)} lookups were asked and {len(answers)} answered")
            return answers

        return (yield from self._ask(make, read))

    def _claim(
        self, digest: str, url: str | bytes, lease: int | None, more: Mapping[str, Any]
    ) -> Steps[Claim]:
        """Look one payload up, and claim the right to store it."""
        more = {"crawl": self._crawl, "lease": lease, **more}
        lost = (str(more["crawl"]), digest)
        more["token"] = more.get("token") or self._lost.pop(lost, None) or token_hex(16)
        claim: Claim = yield from self._ask(
            lambda: requests.post("/claims", requests.question(digest, url, more), self._short),
            read_claim,
        )
        if isinstance(claim, NotAsked) and len(self._lost) < _LOST_TOKENS:
            self._lost[lost] = more["token"]
        return self._counted(claim, digest, more)

    def _counted(self, answer: _AnswerT, digest: str, more: Mapping[str, Any]) -> _AnswerT | Miss:
        """Count and return an answer; a hit that replay would not find is a miss.

        A revisit has the digest as its crawler spells it, and replay tools compare that text,
        without its label, with that of the original.
        """
        checked: _AnswerT | Miss = answer
        if isinstance(answer, Hit) and not (self._any_spelling or more.get("bridge")):
            found, wanted = (text.rpartition(":")[2] for text in (answer.original.digest, digest))
            checked = answer if found == wanted else SPELLED_OTHERWISE
        self.counts.answered(checked, more["crawl"])
        return checked

    def _release(self, digest: str, token: str) -> Steps[bool]:
        """Give a claim back; if this fails, it expires by itself."""
        released = yield from self._ask(
            lambda: requests.post(
                "/claims", {"digest": digest, "token": token}, self._short, "DELETE"
            ),
            lambda value: value["released"] is True,
        )
        return released is True

    def _begin(self, name: str, settings: Mapping[str, Any]) -> Steps[dict[str, Any]]:
        """Begin a crawl; if this fails, the first report begins it."""
        wanted = {"name": name, **{n: v for n, v in settings.items() if v is not None}}

        def make() -> Ask:
            self._begun[name] = ask = requests.post("/crawls", wanted, self._long)
            return ask

        return (yield from self._answered(make, f"crawl {name} is not begun"))

    def _end(
        self, name: str, action: str, exit: str, *, force: bool = False
    ) -> Steps[dict[str, Any]]:
        """Commit or cancel a crawl; waiting captures are sent before a commit."""
        if action == "commit":
            yield from self._send_all(name)
        crawl = yield from self._report_counts(name, action, exit=exit, force=force or None)
        self._begun.pop(name, None)
        return crawl

    def _send_all(self, name: str) -> Steps[None]:
        """Send waiting captures before a commit: a committed crawl takes no more.

        Raises `IndexUnavailable` if some still wait, or other threads do not end sending theirs.
        """
        done = yield from self._report("", [])
        pauses = ceil(
            TRIES * (self._long + PAUSE) / PAUSE
        )  # as long as a report takes that is not split
        while not done.kept and pauses and self._queue.unsent(name):
            pauses -= 1
            yield Pause(PAUSE)
            done = yield from self._report("", [])  # what others could not send
        if waiting := done.kept or self._queue.unsent(name):
            raise errors.IndexUnavailable(f"{waiting} captures wait to be reported first")

    def _report_counts(
        self, name: str, action: str = "counts", **more: object
    ) -> Steps[dict[str, Any]]:
        """Send what was not looked up and not reported for a crawl, with an action on it."""
        value = self._missed(name)
        sent = value | requests.given(more)
        make = partial(requests.on_crawl, name, action, sent, self._long)
        crawl = yield from self._answered(make, f"no {action} of {name}")
        self._sent_counts[name] = value
        return crawl

    def _finish(self) -> Steps[None]:
        """Send waiting captures once more, and the counts of all crawls.

        The server is asked once even if it was away a moment ago: there is no later attempt.
        """
        self._breaker.end_pause()
        if self.kept:
            yield from self._report("", [])
        lost = self._queue.clear()
        for crawl, count in lost.items():
            self.counts.reported(crawl, Reported(dropped=count))
        if missing := self.counts.as_json()["not_reported"]:
            _log.warning("captures that could not be reported: %d; index their WARCs", missing)
        for name, value in self._unsent_counts():
            make = partial(requests.on_crawl, name, "counts", value, self._short)
            yield from self._ask(make, dict)

    def _unsent_counts(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for name in self.counts.crawls():
            value = self._missed(name)
            if not self._sent_counts.get(name, {}).items() >= value.items():
                yield name, value

    def _send_counts(self, exchange: Callable[[Ask], Reply]) -> None:
        """Send the counts of all crawls, as the digest filter is renewed."""
        for name, value in self._unsent_counts():
            if exchange(requests.on_crawl(name, "counts", value, self._long)).status == 200:
                self._sent_counts[name] = value

    def _missed(self, name: str) -> dict[str, Any]:
        return {**self.counts.missed(name), "who": self._who}

    def _settings(self) -> Steps[dict[str, Any]]:
        """Return the settings of the index."""
        stats = yield from self._answered(
            lambda: Ask("GET", "/stats", b"", self._long), "the settings of the index are not known"
        )
        settings = stats.get("settings")
        if not isinstance(settings, dict):
            raise errors.IndexUnavailable("the answer of the server has no settings of the index")
        return settings

    def _answered(self, make: Callable[[], Ask], failed: str) -> Steps[dict[str, Any]]:
        """Return the object that the server answers; raises `DedupError` with the text `failed`."""
        done = yield from self._ask(make, lambda value: dict(value))
        if isinstance(done, NotAsked):
            other = errors.IndexUnavailable if done.why in _TRANSIENT else errors.DedupError
            kind = _ERRORS.get(done.why, other)
            raise kind(f"{failed}: {done.why}: {done.message}")
        return done

    def _report(self, crawl: str, captures: Iterable[Mapping[str, Any]]) -> Steps[Reported]:
        """Report captures; waiting ones are sent first. Raises `BadInput` unless it is a list."""
        if isinstance(captures, Mapping | str | bytes):
            raise errors.BadInput(
                f"report takes a list of captures, not a {type(captures).__name__}: "
                "report([capture]) reports one"
            )
        bad, valid = Counter[str](), list[bytes]()
        for capture in captures:
            try:
                encoded = requests.capture(capture)
                if self._filter is not None:
                    self._filter.add(dict(capture))
                valid.append(encoded)
            except (ValueError, TypeError) as error:
                bad[str(error)] += 1
        crawl = crawl or self._crawl
        total = Reported(bad=bad.total(), dropped=self._queue.add(crawl, valid), why=bad)
        self.counts.reported(crawl, total)
        while (batch := self._queue.take()) is not None:
            done, is_sent = yield from self._send_batch(batch)
            total += done
            if not is_sent:
                break
        for reason in total.why:
            self._log_once("captures that are not taken", reason)
        return replace(total, kept=len(self._queue))

    def _send_batch(self, batch: CaptureBatch) -> Steps[tuple[Reported, bool]]:
        """Send captures, in halves if the server takes no request with them all.

        Returns what became of them, and whether all were sent; the others are kept.
        """
        parts, total = [batch], Reported()  # the last part is the next
        splits = _MOST_SPLITS
        try:
            while parts:
                done = yield from self._deliver(parts[-1], is_split=splits > 0)
                if done is None:
                    break
                part = parts.pop()
                if isinstance(done, NotAsked):
                    parts += part.halves()
                    splits -= 1
                else:
                    total += done
                    self._queue.done(part)
        finally:  # also when cancelled: sending twice changes nothing
            total += Reported(dropped=sum(map(self._queue.give_back, parts)))
            self.counts.reported(batch.crawl, total)
        return total, not parts

    def _log_once(self, what: str, reason: str) -> None:
        """Log a reason if it was not logged before, so that a crawl does not fill a log."""
        if reason not in self._reasons and len(self._reasons) < _REASONS:
            self._reasons.add(reason)
            _log.warning("%s (this is said once): %s", what, reason)

    def _deliver(self, batch: CaptureBatch, *, is_split: bool) -> Steps[Reported | NotAsked | None]:
        """Send captures, at most `TRIES` times; return None if they can be sent later.

        With `is_split` a refusal is returned that may be about one of several captures.
        """
        make = partial(requests.captures, batch.crawl, batch.captures, self._long)
        for number in range(TRIES):
            done: Reported | NotAsked = yield from self._ask(make, read_reported)
            if isinstance(done, Reported):
                return done
            if done.why == errors.UnknownCrawl.code and batch.crawl in self._begun:
                yield from self._ask(lambda: self._begun[batch.crawl], dict)
            elif done.why in _OF_A_PART and is_split and len(batch.captures) > 1:
                return done
            elif done.why not in _TRANSIENT:
                self._log_once("captures that are not reported", done.message)
                return Reported(dropped=len(batch.captures))
            elif done.why == "outage":
                break
            elif number + 1 < TRIES:
                yield Pause(PAUSE)
        return None

    def _ask(self, make: Callable[[], Ask], read: Callable[[Any], _T]) -> Steps[_T | NotAsked]:
        """Send one request and read its answer, unless the breaker forbids it."""
        try:
            ask = make()
        except (ValueError, TypeError) as error:
            return NotAsked("invalid", str(error))
        if not self._breaker.lets_through():
            return NotAsked("outage", "the server has failed too often; it is asked again soon")
        try:
            reply = yield ask
        except BaseException:  # a cancelled task, or an interrupted thread
            self._breaker.abandoned()
            raise
        assert reply is not None, "a driver answers every request"
        answer = _read(reply, read)
        if isinstance(answer, NotAsked) and answer.why in _TRANSIENT:
            self._breaker.failed(refused=isinstance(reply, Failure) and reply.refused)
        else:
            self._breaker.succeeded()
        return answer


_TRANSIENT = ("unreachable", "timeout", "status", "garbage", "outage")
_OF_A_PART = ("bad_request", "too_large")  # errors of a body, perhaps for one of its captures
_LATER = (408, 429)  # timeout, too many requests
_ERRORS = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.DedupError)
}


def _read(reply: Reply | Failure, read: Callable[[Any], _T]) -> _T | NotAsked:
    if isinstance(reply, Failure):
        return NotAsked(reply.why, reply.message)
    if reply.status >= 500 or reply.status in _LATER:
        return NotAsked("status", f"the server answered {reply.status}")
    try:
        value = json.loads(reply.body)
        return read(value) if reply.status == 200 else refusal(value)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        return NotAsked("garbage", f"answer {reply.status} cannot be read: {error!r}")
