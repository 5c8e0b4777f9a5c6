"""Crawlers in threads that look up each payload before they store it, and report what they stored.

They use `dedupindex.client`, as any crawler in Python would.
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

TIMEOUT = 15.0  # seconds for an answer, on a machine that may be busy
PROBE_INTERVAL = 1.0  # seconds without lookups after failures in a row
WAIT, TRIES = 0.05, 1200  # seconds between tries, while another crawler has claimed a payload


def connected(server: str, crawl: str = "") -> Client:
    """Return a client with long timeouts."""
    return Client(
        server,
        crawl=crawl,
        timeout=TIMEOUT,
        request_timeout=2 * TIMEOUT,
        probe_interval=PROBE_INTERVAL,
    )


class AcknowledgedPayloads:
    """The payloads whose storing a server has acknowledged; lookups must find them ever after."""

    def __init__(self, digests: Iterable[tuple[str, str]]) -> None:
        self._urls = dict(digests)  # one URL by digest
        self._first = frozenset(self._urls.items())
        self._lock = threading.Lock()
        self.wrong: list[str] = []  # sentences on stored payloads that were answered as new

    def acknowledged(self, captures: Iterable[tuple[str, str]]) -> None:
        with self._lock:
            self._urls.update(captures)

    def __contains__(self, digest: str) -> bool:
        with self._lock:
            return digest in self._urls

    def first(self, digest: str, url: str) -> bool:
        """Whether the payload was stored at this URL before the crawl."""
        return (digest, url) in self._first

    def all(self) -> list[tuple[str, str]]:
        """Digests and URLs."""
        with self._lock:
            return list(self._urls.items())


class Crawler(threading.Thread):
    """Fetches URLs of a site into a WARC: revisits of what is stored, the rest in full."""

    def __init__(
        self,
        urls: Iterable[str],
        port: int,
        warc: Path,
        server: str,
        crawl: str,
        stored: AcknowledgedPayloads,
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
                    url_date = {"url": answer.original.url, "date": answer.original.date}
                    original = {**url_date, "record_id": answer.original.record_id or ""}
                kind, record_id = write(writer, url, date, digest, head, body, original)
                self.counts[kind] += 1
                self.asked.append((digest, url))
                if kind == "response":
                    # Stored again because a lookup failed; the report of a capture that the
                    # index has at this URL adds nothing.
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
        """Claim a payload; waits while another crawler stores it."""
        for _ in range(TRIES):
            stored = digest in self._stored
            answer = index.claim(digest, url)
            if stored and not isinstance(answer, Hit | NotAsked):
                self._stored.wrong.append(f"{url} was stored, and was answered {answer}")
            if not isinstance(answer, Taken):
                break
            self.counts["waited"] += 1
            time.sleep(WAIT)
        return answer

    def _report(self, index: Client, *captures: dict[str, Any]) -> None:
        self._waiting += [(one["digest"], one["url"]) for one in captures]
        index.report(captures)
        if not index.kept:  # captures whose report failed, which the next report repeats
            self._stored.acknowledged(self._waiting)
            self._waiting.clear()


class Watch(threading.Thread):
    """Looks up stored payloads on a server without pause."""

    def __init__(self, server: str, crawl: str, stored: AcknowledgedPayloads) -> None:
        super().__init__(daemon=True)
        self._server, self._crawl, self._stored = server, crawl, stored
        self._finished = threading.Event()
        self.counts: Counter[str] = Counter()

    def run(self) -> None:
        with connected(self._server, self._crawl) as index:
            while not self._finished.is_set():
                for digest, url in self._stored.all():
                    answer = index.lookup(digest, url)
                    self.counts[type(answer).__name__] += 1
                    if isinstance(answer, Miss):
                        self._stored.wrong.append(f"{url} was stored, and was answered as new")
                    if self._finished.is_set():
                        break

    def finish(self) -> None:
        self._finished.set()
        self.join()
