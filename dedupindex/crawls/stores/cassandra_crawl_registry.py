"""Which crawls there are on a cluster, as every server knows it: at most `AGE` seconds old.

All crawls are one partition with one version. To change some is to write them together with the
next version, if the version is still the one that was read: so of two that change crawls at once
one does it again, with what the other did before its eyes. Who changed one waits `AGE` seconds
before that is acknowledged: whoever is told of it finds it so on every server.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from dedupindex.crawls.crawl import Crawl
from dedupindex.crawls.stores.cassandra_crawl_tables import CrawlStatements, crawls_back, put_crawls
from dedupindex.errors import IndexBusy, IndexUnavailable
from dedupindex.index.engines.cassandra.cql import Row, Session, clock, conditionally
from dedupindex.index.format.cells import sealed_text, unsealed_text

AGE = 0.25  # seconds


class Overtaken(IndexBusy):
    """Another server changed crawls meanwhile."""


@dataclass(frozen=True)
class CrawlRegistry:
    """All crawls, in the order in which they began."""

    version: int = 0
    writer: bytes = b""  # of this version: a keyspace that was made anew counts from 1 again
    crawls: Sequence[Crawl] = ()
    by_name: dict[str, Crawl] = field(init=False)
    by_number: dict[int, Crawl] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {crawl.name: crawl for crawl in self.crawls})
        object.__setattr__(self, "by_number", {crawl.number: crawl for crawl in self.crawls})


class Registry:
    """Reads and changes crawls, for all threads of a process."""

    def __init__(self, session: Session, keyspace: str, said: CrawlStatements) -> None:
        self._session, self._keyspace, self._said = session, keyspace, said
        self._known = CrawlRegistry()
        self._asked = -AGE  # when what is known was asked for
        self._failed: tuple[float, IndexUnavailable] = (-AGE, IndexUnavailable())
        self._busy = threading.Lock()

    def known(self) -> CrawlRegistry:
        """The crawls as they were `AGE` seconds ago, or later; raises `IndexUnavailable`."""
        return self._known if clock() - self._asked <= AGE else self.now()

    def now(self) -> CrawlRegistry:
        """The crawls as they are; raises `IndexUnavailable`.

        Threads that come while one asks share the next answer, or the outage.
        """
        came = clock()
        with self._busy:
            if self._asked >= came:
                return self._known
            if self._failed[0] >= came:
                raise IndexUnavailable(str(self._failed[1]))
            asked = clock()
            try:
                while not self._read():
                    pass
            except IndexUnavailable as error:
                self._failed = asked, error
                raise
            self._asked = asked
            return self._known

    def _read(self) -> bool:
        """Read crawls anew if one has changed; false if one did so between two pages."""
        found = self._session.execute(self._said.version)
        said = _said(found[0][1:]) if found else (0, b"")
        if said == (self._known.version, self._known.writer):
            return True
        rows = [
            row
            for page in self._session.scan(self._said.crawls)
            for row in page
            if row[2] is not None
        ]
        if any(_said(row) != _said(rows[0]) for row in rows):
            return False
        crawls = [
            Crawl.restored(json.loads(unsealed_text(_key(number), about)))
            for *_, number, about in rows
        ]
        self._known = CrawlRegistry(*(_said(rows[0]) if rows else said), crawls)
        return True

    def put(self, before: CrawlRegistry, crawls: Sequence[Crawl]) -> None:
        """Change crawls, or add them; raises `Overtaken` if others were changed since `before`."""
        token = secrets.token_bytes(16)
        values: list[object] = [before.version + 1, token, before.version or None]
        for crawl in crawls:
            text = sealed_text(_key(crawl.number), json.dumps(crawl.stored()))
            values += [text, crawl.number]
        statement = put_crawls(self._keyspace, len(crawls))
        done = conditionally(
            self._session, statement, values, crawls_back(self._keyspace), (),
            lambda row: bytes(row[1]) == token,
        )  # fmt: skip
        if not done.won:
            raise Overtaken("crawls are begun or ended at this moment; send it again")
        time.sleep(AGE)


def _key(number: int) -> bytes:
    return number.to_bytes(4, "big")


def _said(row: Row) -> tuple[int, bytes]:
    """The version with which a row begins, and who made it."""
    return row[0] or 0, bytes(row[1] or b"")
