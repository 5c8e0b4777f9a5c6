"""Concurrent clients, whose answers are compared with a model of the allowed ones.

Each request is recorded with the times between which it took effect. A lookup must find what was
acknowledged before it began, and cannot find what was begun after it ended; in between both are
right. A request whose answer was lost may have taken effect or not.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from itertools import count
from math import inf
from pathlib import Path
from random import Random
from typing import Any

from tests.conftest import MakeIndex
from tests.integration.test_crawls_live import children
from tests.integration.test_load import kill
from tests.integration.test_server_live import DEADLINE, SHIPPED, Running, serving, until
from tests.support.captures import capture, sha1

CLIENTS = 6
SECONDS = 2.0  # of each of three parts: at rest, after a worker was killed, after the server was
DIGESTS = 12  # in use at one time: few, so that clients compete
URLS = 3
STORED = 5  # digests that the index has from the beginning
SHARED = "shared"  # first part of the names of crawls that several clients report to
STEPS = (
    *("capture",) * 5, *("lookup",) * 8, *("batch",) * 2, *("claim",) * 4, *("release",) * 2,
    "end", "end of shared",
)  # fmt: skip


@dataclass
class Event:
    """A request, its answer, and the times between which it took effect."""

    kind: str
    crawl: str
    digest: int = 0
    url: int = 0
    id: str = ""  # of the record, or the token of a claim
    begun: float = 0.0
    ended: float = inf  # for ever, if no answer came
    status: int = 0
    answer: dict[str, Any] = field(default_factory=dict)

    @property
    def sure(self) -> float:
        """The time from which it has certainly taken effect; infinite if that is not known."""
        return self.ended if self.status == 200 else inf

    @property
    def possible(self) -> float:
        """The time from which it may have taken effect."""
        return self.begun if self.status in (0, 200) or self.status >= 500 else inf


class World:
    """What the clients share: the server, which may change, and the history."""

    def __init__(self, effort: int) -> None:
        self.port = 0
        self.history: list[Event] = []
        self.open_to_all: set[str] = set()  # crawls begun with seen_by=all
        self.shared = f"{SHARED}-0"
        self.numbers = count(1)
        self.over = threading.Event()
        self.seconds = SECONDS * effort

    def digest(self, chance: Random) -> int:
        """One of the digests of this moment, or of those that the index has."""
        if chance.random() < 0.1:
            return chance.randrange(1, STORED + 1)
        return 100 + len(self.history) // 100 + chance.randrange(DIGESTS)


class Client:
    """One client with crawls of its own, in a thread."""

    def __init__(self, world: World, name: str, chance: Random) -> None:
        self._world, self._name, self._chance = world, name, chance
        self._crawls = count()
        self._crawl = ""
        self._claims: list[Event] = []
        self._connection: HTTPConnection | None = None
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._world.over.is_set():
                if not self._crawl:
                    self._begin(f"{self._name}-{next(self._crawls)}")
                else:
                    self._step(self._chance.choice(STEPS))
        except BaseException as error:
            self.failure = error
        finally:
            self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _ask(self, event: Event, method: str, path: str, content: Any = None) -> Event:
        """Send a request and record it; sometimes on a new connection, to any worker."""
        if self._connection is None or self._chance.random() < 0.05:
            self._disconnect()
            self._connection = HTTPConnection("127.0.0.1", self._world.port, timeout=DEADLINE)
        event.begun = time.monotonic()
        try:
            body = None if content is None else json.dumps(content)
            self._connection.request(method, path, body, {"Content-Type": "application/json"})
            response = self._connection.getresponse()
            event.answer = json.loads(response.read())
            event.ended, event.status = time.monotonic(), response.status
        except (OSError, HTTPException, ValueError):
            self._disconnect()
            time.sleep(0.01)  # the server is away: others need the processor
        self._world.history.append(event)
        return event

    def _begin(self, name: str) -> None:
        seen_by = "all" if self._chance.random() < 0.3 else "own"
        if seen_by == "all":
            self._world.open_to_all.add(name)
        event = Event("begin", name)
        self._ask(event, "POST", "/crawls", {"name": name, "seen_by": seen_by})
        if event.status == 200:
            self._crawl = name

    def _step(self, kind: str) -> None:
        chance, world = self._chance, self._world
        digest, url = world.digest(chance), chance.randrange(URLS)
        crawl = world.shared if chance.random() < 0.3 else self._crawl
        if kind == "capture":
            self._report(crawl, digest, url)
        elif kind == "lookup":
            lookup_crawl = crawl if chance.random() < 0.7 else ""
            path = f"/lookup?digest={sha1(digest)}&url=http%3A%2F%2Fa.example%2F{url}"
            path += f"&crawl={lookup_crawl}" if lookup_crawl else ""
            self._ask(Event(kind, lookup_crawl, digest, url), "GET", path)
        elif kind == "batch":
            self._batch(crawl)
        elif kind == "claim":
            token = f"{next(world.numbers):032x}"
            event = Event(kind, crawl, digest, url, token)
            claim_fields = {"crawl": crawl, "digest": str(sha1(digest)), "token": token}
            lease = chance.choice((1, 60))
            self._ask(event, "POST", "/claims", {**claim_fields, "lease": lease})
            if event.answer.get("claimed"):
                self._claims.append(event)
        elif kind == "release" and self._claims:
            claim = self._claims.pop(chance.randrange(len(self._claims)))
            fields = {"digest": str(sha1(claim.digest)), "token": claim.id}
            self._ask(
                Event(kind, claim.crawl, claim.digest, id=claim.id), "DELETE", "/claims", fields
            )
        elif kind == "end" and chance.random() < 0.4:
            self._end(self._crawl)
            self._crawl = ""
        elif kind == "end of shared" and chance.random() < 0.1:
            self._end(crawl := world.shared)
            name = f"{SHARED}-{self._name}-{next(self._crawls)}"
            if self._ask(Event("begin", name), "POST", "/crawls", {"name": name}).status == 200:
                world.shared = name if world.shared == crawl else world.shared

    def _report(self, crawl: str, digest: int, url: int) -> None:
        number = next(self._world.numbers)
        event = Event("capture", crawl, digest, url, f"urn:uuid:{number:032x}")
        day, second = divmod(number, 86_400)
        content = {
            "digest": str(sha1(digest)), "url": f"http://a.example/{url}", "status": 200,
            "date": time.strftime(f"2026-10-{day + 1:02d}T%H:%M:%SZ", time.gmtime(second)),
            "mime": "image/png", "size": 9, "record_id": event.id,
        }  # fmt: skip
        self._ask(event, "POST", f"/captures?crawl={crawl}", content)
        if event.status == 200:
            assert event.answer["added"] + event.answer["unchanged"] == 1, event

    def _batch(self, crawl: str) -> None:
        """Several lookups in one request: an event for each."""
        digests = [self._world.digest(self._chance) for _ in range(4)]
        lookups = [{"digest": str(sha1(digest))} for digest in digests]
        whole = Event("batch", crawl)
        self._ask(whole, "POST", "/lookup", {"lookups": lookups, "crawl": crawl})
        for digest, answer in zip(digests, whole.answer.get("answers", ()), strict=False):
            self._world.history.append(
                Event("lookup", crawl, digest, -1, "", whole.begun, whole.ended, 200, answer)
            )

    def _end(self, crawl: str) -> None:
        step = "commit" if self._chance.random() < 0.7 else "cancel"
        self._ask(Event(step, crawl), "POST", f"/crawls/{crawl}/{step}", {})


class Model:
    """What was stored according to the history, and which answers that allows."""

    def __init__(self, history: list[Event], open_to_all: set[str]) -> None:
        self._open_to_all = open_to_all
        self.captures: dict[int, list[Event]] = defaultdict(list)  # by digest
        self.claims: dict[int, list[Event]] = defaultdict(list)
        self._records: dict[str, Event] = {}
        self._ends: dict[str, list[Event]] = defaultdict(list)  # by crawl
        self._releases: dict[str, list[Event]] = defaultdict(list)  # by token
        for event in history:
            if event.kind == "capture":
                self.captures[event.digest].append(event)
                self._records[event.id] = event
            elif event.kind == "claim":
                self.claims[event.digest].append(event)
            elif event.kind in ("commit", "cancel"):
                self._ends[event.crawl].append(event)
            elif event.kind == "release":
                self._releases[event.id].append(event)

    def ended(self, crawl: str, *kinds: str) -> tuple[float, float]:
        """The times from which a crawl may have ended, and has certainly ended, in these ways."""
        steps = [event for event in self._ends[crawl] if event.kind in kinds]
        possible = min((event.possible for event in steps), default=inf)
        return possible, min((event.sure for event in steps), default=inf)

    def check_answer(self, event: Event) -> None:
        """Check that a hit was stored, and that a miss was not visible."""
        if event.answer.get("duplicate"):
            self._check_hit(event)
            return
        assert event.digest > STORED, ("the index has it", event)
        for stored in self.captures[event.digest]:
            visible_from = stored.sure
            if stored.crawl != event.crawl and stored.crawl not in self._open_to_all:
                visible_from = max(visible_from, self.ended(stored.crawl, "commit")[1])
            hidden_from = self.ended(stored.crawl, "cancel")[0]
            assert not (visible_from < event.begun and event.ended < hidden_from), (event, stored)

    def _check_hit(self, event: Event) -> None:
        original = event.answer["original"]
        assert original["digest"] == str(sha1(event.digest)), event
        if original["record_id"] not in self._records:
            assert event.digest <= STORED, ("nobody stored this", event)
            return
        stored = self._records[original["record_id"]]
        assert (stored.digest, stored.possible < event.ended) == (event.digest, True), (
            event,
            stored,
        )
        assert original["url"] == f"http://a.example/{stored.url}", (event, stored)
        assert self.ended(stored.crawl, "cancel")[1] > event.begun, ("cancelled", event, stored)
        if stored.crawl != event.crawl and stored.crawl not in self._open_to_all:
            assert self.ended(stored.crawl, "commit")[0] < event.ended, ("not seen", event, stored)

    def _releases_of(self, claim: Event) -> Iterator[Event]:
        """Yield all events that may end a claim before its lease expires."""
        yield from self._releases[claim.id]
        yield from self._ends[claim.crawl]
        for stored in self.captures[claim.digest]:
            if stored.crawl == claim.crawl:
                yield stored

    def check_claim(self, event: Event, clock: float) -> None:
        """Check that one client at a time holds a claim, and that nobody waits for no holder.

        `clock` is added to a time of day to get a time of the history.
        """
        others = [other for other in self.claims[event.digest] if other is not event]
        if event.answer["claimed"]:
            for other in others:
                if other.answer.get("claimed") and other.ended < event.begun:
                    held_until = other.answer["until"] + clock
                    for release in self._releases_of(other):
                        if release.ended > other.begun:
                            held_until = min(held_until, release.possible)
                    assert event.ended >= held_until - 0.002, ("two hold it", event, other)
            return
        for other in others:  # a claim that others may hold
            if (
                other.possible >= event.ended
                or "claimed" not in other.answer
                and other.status == 200
            ):
                continue
            if not other.answer.get("claimed") and other.status == 200:
                continue
            held_until = other.answer["until"] + clock if other.answer else inf
            for release in self._releases_of(other):
                if release.begun > other.ended:
                    held_until = min(held_until, release.sure)
            if held_until >= event.begun - 0.002:
                return
        raise AssertionError(("nobody holds it", event))


def check(world: World, clock: float) -> Counter[str]:
    """Compare each answer with the model; how many there were of each kind."""
    model, counts = Model(world.history, world.open_to_all), Counter[str]()
    for event in world.history:
        assert event.status != 500, event
        counts[f"{event.kind} {event.status}"] += 1
        if event.status == 200 and event.kind in ("lookup", "claim"):
            assert "error" not in event.answer, event
            model.check_answer(event)
            counts[f"{event.kind} {'hit' if event.answer['duplicate'] else 'miss'}"] += 1
            if "claimed" in event.answer:
                model.check_claim(event, clock)
                counts[f"claimed {event.answer['claimed']}"] += 1
        if event.status == 200 and event.kind == "capture":
            ended = model.ended(event.crawl, "commit", "cancel")[1]
            assert event.begun < ended, ("acknowledged for a crawl that had ended", event)
    return counts


def check_final_state(world: World, running: Running) -> None:
    """Check at the end that acknowledged captures are stored once, and cancelled ones are not."""
    model = Model(world.history, world.open_to_all)
    of_crawls: dict[str, list[Event]] = defaultdict(list)
    for stored in (event for events in model.captures.values() for event in events):
        of_crawls[stored.crawl].append(stored)
    for crawl, stored in of_crawls.items():
        status, body = running.get(f"/crawls/{crawl}")
        assert status == 200
        description = json.loads(body)
        least = {(event.digest, event.url) for event in stored if event.status == 200}
        most = {(event.digest, event.url) for event in stored if event.possible < inf}
        if description["state"] == "cancelled":
            assert model.ended(crawl, "cancel")[0] < inf and model.ended(crawl, "commit")[1] == inf
            continue
        assert model.ended(crawl, "cancel")[1] == inf, description
        assert (description["state"] == "committed") >= (model.ended(crawl, "commit")[1] < inf), (
            description
        )
        assert len(least) <= description["captures"] <= len(most), (description, least, most)
        for digest, url in least:
            path = f"/lookup?digest={sha1(digest)}&url=http%3A%2F%2Fa.example%2F{url}"
            answer = json.loads(running.get(f"{path}&strategy=EXACT_URL&crawl={crawl}")[1])
            assert answer["duplicate"], (crawl, digest, url)


def test_answers_to_concurrent_clients_are_consistent(
    make_index: MakeIndex, chance: Random, effort: int
) -> None:
    index = make_index([capture(n, b"http://b.example/%d" % n) for n in range(1, STORED + 1)])
    world = World(effort)
    clients = [Client(world, f"client{n}", Random(chance.random())) for n in range(CLIENTS)]
    threads = [threading.Thread(target=client.run) for client in clients]
    try:
        with serving(index, "--workers", "2", command=SHIPPED) as running:
            world.port = running.port
            clients[0]._ask(Event("begin", world.shared), "POST", "/crawls", {"name": world.shared})
            for thread in threads:
                thread.start()
            let_clients_work(world)
            os.kill(chance.choice(children(running.process.pid)), signal.SIGKILL)
            let_clients_work(world)
            kill(running)
        with serving(index, "--workers", "2", command=SHIPPED) as running:
            world.port = running.port
            let_clients_work(world)
            world.over.set()
            for thread in threads:
                thread.join(DEADLINE)
            assert not any(client.failure for client in clients), [
                client.failure for client in clients
            ]
            counts = check(world, time.monotonic() - time.time())
            check_final_state(world, running)
            check_log(running.log)
    finally:
        world.over.set()
    for kind in ("lookup hit", "lookup miss", "claimed True", "claimed False", "commit 200"):
        assert counts[kind] > 3, counts
    assert counts["cancel 200"] and counts["release 200"], counts


def let_clients_work(world: World) -> None:
    """Wait for a part of the time, and until the clients have made some requests."""
    end, many = time.monotonic() + world.seconds, len(world.history) + 500
    assert until(lambda: time.monotonic() > end and len(world.history) > many, DEADLINE * 10)


def check_log(log: Path) -> None:
    assert "Traceback" not in log.read_text()
