"""Crawlers side by side, each in a thread, which ask before they store and report what they stored.

What they ask with is `dedupindex.client`, as any crawler in Python would.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from warcio.warcwriter import WARCWriter

from dedupindex.client import Client, Hit, Miss, NotAsked, Taken
from dedupindex.client.answers import Claim
from demo.harvest import digest_of, fetch, now, write

PATIENCE = 15.0  # seconds for an answer, on a machine that may be busy
QUIET = 1.0  # seconds of rest after failures in a row
WAIT, TRIES = 0.05, 1200  # seconds, and how often, to wait for whom a payload was left to


def connected(server: str, crawl: str = "") -> Client:
    """A client that is patient."""
    return Client(server, crawl=crawl, timeout=PATIENCE, patience=2 * PATIENCE, quiet=QUIET)


class Stored:
    """What servers have said is there; they must say so ever after."""

    def __init__(self, digests: Iterable[tuple[str, str]]) -> None:
        self._there = dict(digests)  # digest → a URL of it
        self._first = frozenset(self._there.items())
        self._lock = threading.Lock()
        self.wrong: list[str] = []  # what was there, and was answered as if it were new

    def acknowledged(self, captures: Iterable[tuple[str, str]]) -> None:
        with self._lock:
            self._there.update(captures)

    def __contains__(self, digest: str) -> bool:
        with self._lock:
            return digest in self._there

    def first(self, digest: str, url: str) -> bool:
        """Whether it was there from the beginning, at this URL."""
        return (digest, url) in self._first

    def all(self) -> list[tuple[str, str]]:
        """Digests and URLs."""
        with self._lock:
            return list(self._there.items())


class Crawler(threading.Thread):
    """Fetches URLs of a site into a WARC: revisits of what is stored, the rest in full."""

    def __init__(
        self, urls: Iterable[str], port: int, warc: Path, server: str, crawl: str, stored: Stored
    ) -> None:
        super().__init__(daemon=True)
        self._urls, self._port, self._warc = urls, port, warc
        self._server, self._crawl, self._stored = server, crawl, stored
        self._waiting: list[tuple[str, str]] = []  # written, but not acknowledged
        self.counts: Counter[str] = Counter()
        self.asked: list[tuple[str, str]] = []  # digests and URLs

    def run(self) -> None:
        with connected(self._server, self._crawl) as index, open(self._warc, "wb") as stream:
            writer = WARCWriter(stream, gzip=True, warc_version="WARC/1.1")
            writer.write_record(writer.create_warcinfo_record(self._warc.name, {}))
            for url in self._urls:
                head, body, entity = fetch(url, self._port)
                digest, date = digest_of(entity), now()
                answer = self._claim(index, digest, url)
                self.counts[type(answer).__name__] += 1
                offset, original = stream.tell(), None
                if isinstance(answer, Hit):
                    found = answer.original
                    original = {
                        "url": found.url,
                        "date": found.date,
                        "record_id": found.record_id or "",
                    }
                kind, record_id = write(writer, url, date, digest, head, body, original)
                self.counts[kind] += 1
                self.asked.append((digest, url))
                if kind == "response":
                    # Of what the index has at this URL a report adds nothing: in an outage
                    # nobody could tell, so that it had to be stored again.
                    self.counts["again"] += self._stored.first(digest, url)
                    capture = {
                        "digest": digest, "url": url, "date": date, "status": 200,
                        "mime": "text/html", "size": len(entity), "record_id": record_id,
                        "container": str(self._warc), "offset": offset,
                    }  # fmt: skip
                    self._report(index, capture)
            for _ in range(TRIES):
                if not index.kept:
                    break
                time.sleep(WAIT)
                self._report(index)
            self.counts["not acknowledged"] = len(self._waiting)

    def _claim(self, index: Client, digest: str, url: str) -> Claim:
        """What may be done with a payload; who else is storing it is waited for."""
        for _ in range(TRIES):
            there = digest in self._stored
            answer = index.claim(digest, url)
            if there and not isinstance(answer, Hit | NotAsked):
                self._stored.wrong.append(f"{url} was there, and was answered {answer}")
            if not isinstance(answer, Taken):
                break
            self.counts["waited"] += 1
            time.sleep(WAIT)
        return answer

    def _report(self, index: Client, *captures: dict[str, Any]) -> None:
        self._waiting += [(one["digest"], one["url"]) for one in captures]
        index.report(captures)
        if not index.kept:  # it would send what could not be reported with the next report
            self._stored.acknowledged(self._waiting)
            self._waiting.clear()


class Watch(threading.Thread):
    """Asks a server without pause for what is there."""

    def __init__(self, server: str, crawl: str, stored: Stored) -> None:
        super().__init__(daemon=True)
        self._server, self._crawl, self._stored = server, crawl, stored
        self._over = threading.Event()
        self.counts: Counter[str] = Counter()

    def run(self) -> None:
        with connected(self._server, self._crawl) as index:
            while not self._over.is_set():
                for digest, url in self._stored.all():
                    answer = index.lookup(digest, url)
                    self.counts[type(answer).__name__] += 1
                    if isinstance(answer, Miss):
                        self._stored.wrong.append(f"{url} was there, and was answered as new")
                    if self._over.is_set():
                        break

    def finish(self) -> None:
        self._over.set()
        self.join()
