"""The logic of both clients, without I/O.

Each operation is a generator: it yields what is to be sent (or waited for) and is sent what came
back. A driver, blocking or not, does the rest.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import replace
from functools import partial
from secrets import token_hex
from typing import Any, NamedTuple, TypeVar

from dedupindex import errors
from dedupindex.client import requests
from dedupindex.client.answers import (
    Answer,
    Claim,
    Counts,
    Miss,
    NotAsked,
    Question,
    Reported,
    read_answer,
    read_claim,
    read_reported,
    refusal,
    usable,
)
from dedupindex.client.requests import Ask, Failure, Pause, Reply

# A circuit breaker: while the server is away only short probes are sent, by one caller at a time.

SHORTEST = 1.0  # seconds between two probes
SHARE = 10  # of an outage: the pause before the next probe is this part of what is over
_LOST = 60.0  # seconds after which a probe that never ended no longer holds back the next


class Breaker:
    """Decides for all threads together whether a request is sent.

    After `failures` failures in a row nothing is sent but probes: requests that one caller makes
    as always, while all others go on without an answer. The first success ends that. The pause
    before the next probe is a tenth of the outage so far, at least a second and at most `quiet`
    seconds. It stays at a second while connections are refused, because such a probe costs
    nothing: a server that was restarted is found within a second however long it was away.
    """

    def __init__(
        self, failures: int = 5, quiet: float = 30.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most, self._quiet, self._clock = failures, quiet, clock
        self._failures = 0
        self._since = 0.0  # when the first of the failures was
        self._until = 0.0  # when the next probe may be sent
        self._lock = threading.Lock()

    def lets_through(self) -> bool:
        """Whether to send a request now; then `succeeded`, `failed` or `abandoned` must follow."""
        with self._lock:
            if self._failures < self._most:
                return True
            now = self._clock()
            if now < self._until:
                return False
            self._until = now + _LOST  # nobody else, until this probe has ended
            return True

    def succeeded(self) -> None:
        """Note that the server has answered."""
        with self._lock:
            self._failures = 0

    def failed(self, *, refused: bool = False) -> None:
        """Note that no readable answer came; `refused`: not even a connection could be made."""
        with self._lock:
            now = self._clock()
            if not self._failures:
                self._since = now
            self._failures += 1
            pause = SHORTEST if refused else max(SHORTEST, (now - self._since) / SHARE)
            self._until = now + min(pause, self._quiet)

    def abandoned(self) -> None:
        """Note that a request was given up by its caller, which says nothing of the server."""
        with self._lock:
            if self._failures >= self._most:
                self._until = self._clock()


# Captures that could not be reported yet: kept in memory, up to a number, oldest first.

MOST_BYTES = 128 << 20  # of captures that wait, whatever their number
_ENOUGH = 4 << 20  # bytes of a request; servers take 16 MiB unless told otherwise


class Parcel(NamedTuple):
    """Captures of one crawl, for one request."""

    crawl: str
    captures: list[bytes]  # as JSON


class Keeping:
    """A queue of captures, for all threads together; when it is full the newest are dropped."""

    def __init__(self, most: int, parcel: int) -> None:
        self._most, self._parcel = most, parcel
        self._queue: deque[tuple[str, bytes]] = deque()
        self._held = 0  # bytes
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, crawl: str, captures: Iterable[bytes]) -> int:
        """Take captures; how many found no room."""
        dropped = 0
        with self._lock:
            for capture in captures:
                if len(self._queue) < self._most and self._held + len(capture) <= MOST_BYTES:
                    self._queue.append((crawl, capture))
                    self._held += len(capture)
                else:
                    dropped += 1
        return dropped

    def take(self) -> Parcel | None:
        """The oldest, as many of one crawl as go together; None when there is nothing."""
        with self._lock:
            if not self._queue:
                return None
            crawl, captures, size = self._queue[0][0], list[bytes](), 0
            while self._queue and self._queue[0][0] == crawl and len(captures) < self._parcel:
                captures.append(self._queue.popleft()[1])
                size += len(captures[-1])
                if size > _ENOUGH:
                    break
            self._held -= size
        return Parcel(crawl, captures)

    def give_back(self, parcel: Parcel) -> int:
        """Put captures back to where they were taken from; how many find no room any more."""
        with self._lock:
            room = max(self._most - len(self._queue), 0)
            for capture in reversed(parcel.captures[:room]):
                self._queue.appendleft((parcel.crawl, capture))
                self._held += len(capture)
        return len(parcel.captures[room:])

    def clear(self) -> Counter[str]:
        """Drop everything; how many there were, by crawl."""
        with self._lock:
            counts = Counter(crawl for crawl, _ in self._queue)
            self._queue.clear()
            self._held = 0
        return counts


_T = TypeVar("_T")
Steps = Generator[Ask | Pause, Reply | Failure | None, _T]

KEPT = 100_000  # captures that wait to be reported, at most
BATCH = 1000  # lookups or captures of one request
TRIES = 2  # of a report
PAUSE = 0.2  # seconds between them
_CORE_LOST = 10_000  # claims whose tokens are kept
_log = logging.getLogger("dedupindex.client")


class Core:
    """What a client knows: its crawl, its counts, what it could not report."""

    def __init__(
        self,
        crawl: str,
        patience: tuple[float, float],
        breaker: Breaker,
        keep: int,
        any_spelling: bool = False,
    ) -> None:
        self.counts = Counts()
        self._any_spelling = any_spelling
        self._crawl, self._breaker = crawl, breaker
        self._short, self._long = patience
        self._kept = Keeping(keep, BATCH)
        self._who = token_hex(8)  # other processes of a crawl count for themselves
        self._told: dict[str, dict[str, Any]] = {}  # the last of each crawl
        self._wanted: dict[str, dict[str, Any]] = {}  # crawls that shall have begun
        # Tokens of claims whose answer was lost: asked for again, they are our own.
        self._lost: dict[tuple[str, str], str] = {}

    @property
    def kept(self) -> int:
        """How many captures wait to be reported."""
        return len(self._kept)

    def lookup(self, digest: str, url: str | bytes, more: Mapping[str, Any]) -> Steps[Answer]:
        """Ask for one payload."""
        more = {"crawl": self._crawl, **more}

        def read(value: Any) -> Answer:
            if isinstance(value, dict) and "answers" in value:
                (value,) = value["answers"]
            return read_answer(value)

        answer = yield from self._ask(lambda: requests.lookup(digest, url, more, self._short), read)
        answer = self._usable(answer, digest, more)
        self.counts.answered(answer, more["crawl"])
        return answer

    def lookups(self, asked: Iterable[Question], more: Mapping[str, Any]) -> Steps[list[Answer]]:
        """Ask for many payloads; one answer for each, in order."""
        asked, answers, more = list(asked), list[Answer](), {"crawl": self._crawl, **more}
        for at in range(0, len(asked), BATCH):
            some = asked[at : at + BATCH]
            found = yield from self._some(some, more)
            answers += [found] * len(some) if isinstance(found, NotAsked) else found
        answers = [
            self._usable(answer, one[0], more) for answer, one in zip(answers, asked, strict=True)
        ]
        for answer in answers:
            self.counts.answered(answer, more["crawl"])
        return answers

    def _some(
        self, some: list[Question], more: Mapping[str, Any]
    ) -> Steps[list[Answer] | NotAsked]:
        def make() -> Ask:
            asked = [requests.question(one[0], one[1], {}) for one in some]
            given = {name: value for name, value in more.items() if value not in (None, "")}
            return requests.post("/lookup", {"lookups": asked, **given}, self._short)

        def read(value: Any) -> list[Answer]:
            answers = [read_answer(one) for one in value["answers"]]
            if len(answers) != len(some):
                raise ValueError(f"{len(some)} lookups were asked and {len(answers)} answered")
            return answers

        return (yield from self._ask(make, read))

    def claim(
        self, digest: str, url: str | bytes, lease: int | None, more: Mapping[str, Any]
    ) -> Steps[Claim]:
        """Ask for one payload, and for the right to store it."""
        more = {"crawl": self._crawl, "lease": lease, **more}
        lost = (str(more["crawl"]), digest)
        more["token"] = more.get("token") or self._lost.pop(lost, None) or token_hex(16)
        claim: Claim = yield from self._ask(
            lambda: requests.post("/claims", requests.question(digest, url, more), self._short),
            read_claim,
        )
        if isinstance(claim, NotAsked) and len(self._lost) < _CORE_LOST:
            self._lost[lost] = more["token"]
        claim = self._usable(claim, digest, more)
        self.counts.answered(claim, more["crawl"])
        return claim

    def _usable(self, answer: _T, digest: str, more: Mapping[str, Any]) -> _T | Miss:
        """Who asks with `bridge` takes originals with other digests."""
        taken = self._any_spelling or more.get("bridge")
        return answer if taken else usable(answer, digest)

    def release(self, digest: str, token: str) -> Steps[bool]:
        """Give a claim back; it lapses by itself where this cannot be said."""
        released = yield from self._ask(
            lambda: requests.post(
                "/claims", {"digest": digest, "token": token}, self._short, "DELETE"
            ),
            lambda value: value["released"] is True,
        )
        return released is True

    def begin(self, name: str, settings: Mapping[str, Any]) -> Steps[dict[str, Any]]:
        """Begin a crawl. Remembered if it fails: a report begins the crawl later."""
        wanted = {"name": name, **{n: v for n, v in settings.items() if v is not None}}
        self._wanted[name] = wanted
        return (yield from self._done("/crawls", wanted, f"crawl {name} is not begun"))

    def end(
        self, name: str, action: str, exit: str, *, force: bool = False
    ) -> Steps[dict[str, Any]]:
        """Commit or cancel a crawl; what was kept is sent before it is committed."""
        if action == "commit":
            done = yield from self.report("", [])
            if done.kept:  # committed without them, the crawl could not take them any more
                raise errors.IndexUnavailable(f"{done.kept} captures wait to be reported first")
        value = self._missed(name) | ({"exit": exit} if exit else {})
        sent = value | ({"force": True} if force else {})
        crawl = yield from self._done(
            requests.of_crawl(name, action), sent, f"no {action} of {name}"
        )
        self._told[name] = value
        self._wanted.pop(name, None)
        return crawl

    def tell(self, name: str) -> Steps[dict[str, Any]]:
        """Tell the server what was not looked up and not reported for a crawl."""
        value = self._missed(name)
        path = requests.of_crawl(name, "counts")
        crawl = yield from self._done(path, value, f"counts of {name} are not told")
        self._told[name] = value
        return crawl

    def farewell(self) -> Steps[None]:
        """Give up what is kept, and tell what was missed; as far as the server still answers."""
        self._give_up()
        for name in self.counts.crawls():
            value = self._missed(name)
            if self._told.get(name, {}).items() >= value.items():
                continue
            yield from self._ask(partial(self._counts, name, value), dict)

    def _counts(self, name: str, value: Any) -> Ask:
        return requests.post(requests.of_crawl(name, "counts"), value, self._short)

    def _missed(self, name: str) -> dict[str, Any]:
        return {**self.counts.missed(name), "who": self._who}

    def settings(self) -> Steps[dict[str, Any]]:
        """Read the settings that the index was built with."""
        stats = yield from self._answered(
            lambda: Ask("GET", "/stats", b"", self._long), "the settings of the index are not known"
        )
        settings = stats.get("settings")
        if not isinstance(settings, dict):
            raise errors.IndexUnavailable("the server did not tell the settings of the index")
        return settings

    def _done(self, path: str, value: Any, failed: str) -> Steps[dict[str, Any]]:
        """What must be done or raise: nobody's response is lost by it."""
        return (yield from self._answered(lambda: requests.post(path, value, self._long), failed))

    def _answered(self, make: Callable[[], Ask], failed: str) -> Steps[dict[str, Any]]:
        """The answer of the server, an object; raises `DedupError`, which begins with `failed`."""
        done = yield from self._ask(make, lambda value: dict(value))
        if isinstance(done, NotAsked):
            other = errors.IndexUnavailable if done.why in _PASSING else errors.DedupError
            kind = _ERRORS.get(done.why, other)
            raise kind(f"{failed}: {done.why}: {done.message}")
        return done

    def report(self, crawl: str, captures: Iterable[Mapping[str, Any]]) -> Steps[Reported]:
        """Say what was stored; what was kept before goes first."""
        bad, sound = 0, list[bytes]()
        for capture in captures:
            try:
                sound.append(requests.capture(capture))
            except (ValueError, TypeError) as error:
                _log.warning("a capture cannot be reported: %s", error)
                bad += 1
        dropped = self._kept.add(crawl or self._crawl, sound)
        self.counts.dropped(crawl or self._crawl, dropped)
        total = Reported(bad=bad, dropped=dropped)
        while (parcel := self._kept.take()) is not None:
            done: Reported | NotAsked | None = None
            try:
                done = yield from self._deliver(parcel)
            finally:  # also of a task that is cancelled meanwhile: to send twice changes nothing
                if not isinstance(done, Reported):
                    dropped = self._kept.give_back(parcel)
                    self.counts.dropped(parcel.crawl, dropped)
                    total += Reported(dropped=dropped)
            if not isinstance(done, Reported):
                break
            total += done
        self.counts.reported(total)
        return replace(total, kept=len(self._kept))

    def _deliver(self, parcel: Parcel) -> Steps[Reported | NotAsked]:
        """Send captures, twice if need be; `NotAsked` if they may be sent again later."""
        ask = requests.captures(parcel.crawl, parcel.captures, self._long)
        for number in range(TRIES):
            done: Reported | NotAsked = yield from self._ask(lambda: ask, read_reported)
            if isinstance(done, Reported):
                return done
            if done.why == errors.UnknownCrawl.code and parcel.crawl in self._wanted:
                begun = requests.post("/crawls", self._wanted[parcel.crawl], self._long)
                yield from self._ask(lambda begun=begun: begun, dict)  # type: ignore[misc]
            elif done.why not in _PASSING:
                _log.warning("%d captures not reported: %s", len(parcel.captures), done.message)
                self.counts.dropped(parcel.crawl, len(parcel.captures))
                return Reported(dropped=len(parcel.captures))
            elif done.why == "quiet":
                break
            elif number + 1 < TRIES:
                yield Pause(PAUSE)
        return done

    def _give_up(self) -> None:
        """Drop what is kept, counted: the client ends."""
        lost = self._kept.clear()
        for crawl, count in lost.items():
            self.counts.dropped(crawl, count)
        if lost:
            self.counts.reported(Reported(dropped=lost.total()))
            _log.warning("%d captures could not be reported; index their WARCs later", lost.total())

    def _ask(self, make: Callable[[], Ask], read: Callable[[Any], _T]) -> Steps[_T | NotAsked]:
        """Send one request and read its answer, unless the breaker forbids."""
        try:
            ask = make()
        except (ValueError, TypeError) as error:
            return NotAsked("unaskable", str(error))
        if not self._breaker.lets_through():
            return NotAsked("quiet", "the server has failed too often; it is asked again soon")
        try:
            reply = yield ask
        except BaseException:  # a task that is cancelled, or an interrupted thread
            self._breaker.abandoned()
            raise
        assert reply is not None, "a driver answers every request"
        answer = _read(reply, read)
        if isinstance(answer, NotAsked) and answer.why in _PASSING:
            self._breaker.failed(refused=isinstance(reply, Failure) and reply.refused)
        else:
            self._breaker.succeeded()
        return answer


_PASSING = ("unreachable", "timeout", "status", "garbage", "quiet")
_LATER = (408, 429)  # too slow, too often: neither says anything about what was asked
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
        value = requests.loaded(reply.body)
        return read(value) if reply.status == 200 else refusal(value)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        return NotAsked("garbage", f"answer {reply.status} cannot be read: {error!r}")
