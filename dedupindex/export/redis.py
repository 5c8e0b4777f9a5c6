"""Crawls written to Redis whole or not at all, committed and cancelled, in Browsertrix' own keys.

All of a crawl is written under keys of our own first, then takes its place in one transaction. Only
then its digests go into ``alldupes``, one by one, as when Browsertrix commits a crawl of its own:
what is found there is true from the first on. Killed before, an export leaves nothing that
answers; killed after, some of its digests answer. Run again, it ends as if undisturbed.

    dedupindex:lock                   string  who writes; lapses
    dedupindex:crawls                 hash    crawl -> the index that it was exported from
    dedupindex:new:WRITER:h:CRAWL     hash    h:CRAWL, while it is written
    dedupindex:new:WRITER:c:CRAWL     list    c:CRAWL:wacz, likewise
    dedupindex:old:CRAWL              hash    the h:CRAWL that a new one has replaced
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from secrets import token_hex
from threading import Event, Thread
from typing import Any

from dedupindex.errors import CrawlExists, DedupError, IndexBusy, UnknownCrawl
from dedupindex.export.browsertrix_redis import NO_PLACE, Written, entry, listed
from dedupindex.sources import browsertrix_part as keys

LOCK, OURS = "dedupindex:lock", "dedupindex:crawls"
LEASE = 30  # seconds after which the lock of a killed export lapses
_NEW, _OLD = "dedupindex:new:", "dedupindex:old:"
# The lock is renewed, or let go, only by the one who holds it.
_RENEW = "return redis.call('get', KEYS[1]) == ARGV[1] and redis.call('expire', KEYS[1], ARGV[2])"
_RELEASE = "return redis.call('get', KEYS[1]) == ARGV[1] and redis.call('del', KEYS[1])"


@dataclass
class _Staged:
    """A crawl that is being written."""

    places: dict[str, int] = field(default_factory=dict)  # of containers in its list
    entries: int = 0
    size: int = 0  # bytes of the containers


class Database:
    """A Redis with Browsertrix' keys, to write to; nobody else of us does meanwhile."""

    def __init__(self, client: Any, name: str, writer: str) -> None:
        self._client, self._name, self._writer = client, name, writer

    def export(self, written: Iterable[Written], source: bytes, wanted: Iterable[str] = ()) -> None:
        """Make the crawls of `written` those that the index at `source` has.

        Crawls that this index wrote before and has no longer are taken away; with `wanted` only
        those of them. Raises `CrawlExists` before anything answers.
        """
        staged: dict[str, _Staged] = {}
        written = iter(written)
        while batch := list(islice(written, keys.AT_ONCE)):
            self._stage(batch, staged, source)
        for crawl, one in staged.items():
            self._replace(crawl, one, source)
            self.commit(crawl)
        for name, owner in self._client.hgetall(OURS).items():
            crawl = name.decode()
            if owner == source and crawl not in staged and (not wanted or crawl in wanted):
                self.cancel(crawl)

    def commit(self, crawl: str) -> None:
        """Let others find what a crawl has stored; of one that is committed, what is new.

        Raises `UnknownCrawl`.
        """
        client = self._client
        self._known(crawl)
        for found in keys.scan(client, keys.entries_key(crawl)):
            with client.pipeline(transaction=False) as pipe:
                for digest, _ in found:
                    pipe.hsetnx(keys.DUPES, digest, crawl)
                pipe.execute()

        def publish(pipe: Any) -> None:
            if pipe.sismember(keys.CRAWLS, crawl):
                pipe.multi()
                return
            counts = pipe.hgetall(keys.counts_key(crawl))
            files = pipe.lrange(keys.files_key(crawl), 0, -1)
            pipe.multi()
            for text in files:
                pipe.sadd(keys.FILES, keys.file_name(text))
            pipe.smove(keys.OPEN, keys.CRAWLS, crawl)
            _add(pipe, counts, 1)

        self._change(publish)
        self._forget(crawl)

    def cancel(self, crawl: str) -> None:
        """Take a crawl away; raises `UnknownCrawl`.

        One that Browsertrix itself has committed stays, and `CrawlExists` is raised.
        """
        if self._known(crawl) and not self._client.hexists(OURS, crawl):
            raise CrawlExists(
                f"crawl {crawl!r} was committed by Browsertrix; its own indexer --remove takes it "
                "away, with all that is no longer in its collection"
            )

        def remove(pipe: Any) -> None:
            counts = pipe.hgetall(keys.counts_key(crawl))
            counts = counts if pipe.sismember(keys.CRAWLS, crawl) else {}
            files = pipe.lrange(keys.files_key(crawl), 0, -1)
            exists = pipe.exists(keys.entries_key(crawl))
            pipe.multi()
            if exists:
                pipe.rename(keys.entries_key(crawl), _OLD + crawl)
            pipe.delete(keys.files_key(crawl), keys.counts_key(crawl))
            for text in files:
                pipe.srem(keys.FILES, keys.file_name(text))
            pipe.srem(keys.OPEN, crawl)
            pipe.srem(keys.CRAWLS, crawl)
            pipe.hdel(OURS, crawl)
            _add(pipe, counts, -1)

        self._change(remove)
        self._forget(crawl)

    def clear_leftovers(self) -> None:
        """Take away what killed exports left behind."""
        for key in self._client.scan_iter(match=_NEW + "*", count=keys.AT_ONCE):
            self._client.unlink(key)
        for key in self._client.scan_iter(match=_OLD + "*", count=keys.AT_ONCE):
            self._forget(key.decode().removeprefix(_OLD))

    def _known(self, crawl: str) -> bool:
        """Whether a crawl is committed; raises `UnknownCrawl`."""
        committed = bool(self._client.sismember(keys.CRAWLS, crawl))
        if not committed and not self._client.sismember(keys.OPEN, crawl):
            raise UnknownCrawl(f"{self._name} has no crawl {crawl!r}")
        return committed

    def _stage(self, batch: list[Written], staged: dict[str, _Staged], source: bytes) -> None:
        for crawl in {one.crawl for one in batch} - staged.keys():
            self._may_write(crawl, source)
            staged[crawl] = _Staged()
        with self._client.pipeline(transaction=False) as pipe:
            for one in batch:
                to, place = staged[one.crawl], NO_PLACE
                if one.file is not None:
                    if one.file.name not in to.places:
                        to.places[one.file.name] = len(to.places)
                        to.size += max(one.file.size, 0)
                        pipe.rpush(self._new("c", one.crawl), listed(one.file))
                    place = to.places[one.file.name]
                to.entries += 1
                pipe.hset(self._new("h", one.crawl), one.digest, bytes(entry(one, place)))
            pipe.execute()

    def _new(self, kind: str, crawl: str) -> str:
        return f"{_NEW}{self._writer}:{kind}:{crawl}"

    def _may_write(self, crawl: str, source: bytes) -> None:
        """Raises `CrawlExists` if a crawl of this name is somebody else's."""
        client = self._client
        owner = client.hget(OURS, crawl)
        if owner is not None:
            if owner != source:
                raise CrawlExists(
                    f"crawl {crawl!r} in {self._name} was exported from "
                    f"{owner.decode('utf-8', 'replace')}; give --as, or --cancel it first"
                )
        elif (
            client.exists(keys.entries_key(crawl), keys.files_key(crawl))
            or client.sismember(keys.CRAWLS, crawl)
            or client.sismember(keys.OPEN, crawl)
        ):
            raise CrawlExists(
                f"{self._name} has a crawl {crawl!r} that was not exported; give --as"
            )

    def _replace(self, crawl: str, one: _Staged, source: bytes) -> None:
        """Put what was written in the place of what a crawl had; nobody sees a part of it."""
        entries, files = keys.entries_key(crawl), keys.files_key(crawl)
        counts = {b"totalUrls": b"%d" % one.entries, b"totalCrawlSize": b"%d" % one.size}
        self._forget(crawl)

        def replace(pipe: Any) -> None:
            exists, committed = pipe.exists(entries), pipe.sismember(keys.CRAWLS, crawl)
            before = pipe.hgetall(keys.counts_key(crawl))
            gone = pipe.lrange(files, 0, -1)
            come = pipe.lrange(self._new("c", crawl), 0, -1)
            pipe.multi()
            if exists:
                pipe.rename(entries, _OLD + crawl)
            pipe.rename(self._new("h", crawl), entries)
            pipe.delete(files, keys.counts_key(crawl))
            if come:
                pipe.rename(self._new("c", crawl), files)
            pipe.hset(keys.counts_key(crawl), mapping=counts)
            pipe.hset(OURS, crawl, source)
            if not committed:
                pipe.sadd(keys.OPEN, crawl)
                return
            _add(pipe, before, -1)
            _add(pipe, counts, 1)
            for text in gone:
                pipe.srem(keys.FILES, keys.file_name(text))
            for text in come:
                pipe.sadd(keys.FILES, keys.file_name(text))

        self._change(replace)

    def _change(self, change: Callable[[Any], None]) -> None:
        """A transaction, if we still are the one who writes."""

        def ours(pipe: Any) -> None:
            if pipe.get(LOCK) != self._writer.encode():
                raise DedupError(
                    f"another export to {self._name} began while this one stood still; run it again"
                )
            change(pipe)

        self._client.transaction(ours, LOCK)

    def _forget(self, crawl: str) -> None:
        """Of what was replaced: digests that a crawl has no longer are another's, or nobody's."""
        client, gone = self._client, _OLD + crawl
        others = [name for name in keys.members(client, keys.CRAWLS) if name != crawl]
        for found in keys.scan(client, gone):
            digests = [digest for digest, _ in found]
            owners = client.hmget(keys.DUPES, digests)
            values = client.hmget(keys.entries_key(crawl), digests)
            lost = [
                digest
                for digest, owner, value in zip(digests, owners, values, strict=True)
                if owner == crawl.encode() and value is None
            ]
            heirs: dict[bytes, str] = {}
            for other in others if lost else ():
                found_there = client.hmget(keys.entries_key(other), lost)
                for digest, value in zip(lost, found_there, strict=True):
                    if value is not None:
                        heirs.setdefault(digest, other)
            with client.pipeline(transaction=False) as pipe:
                for digest in lost:
                    if digest in heirs:
                        pipe.hset(keys.DUPES, digest, heirs[digest])
                    else:
                        pipe.hdel(keys.DUPES, digest)
                pipe.execute()
        client.unlink(gone)


@contextmanager
def writing(address: str) -> Iterator[Database]:
    """The database at an address, for one writer of us at a time; raises `DedupError`.

    `IndexBusy` if another writes, or was killed less than `LEASE` seconds ago.
    """
    name, writer = keys.shown(address), token_hex(8)
    with keys.connected(address, DedupError) as client:
        if not client.set(LOCK, writer, nx=True, ex=LEASE):
            raise IndexBusy(
                f"another export writes to {name}, or was killed less than {LEASE} seconds ago"
            )
        ended = Event()

        def renew() -> None:
            while not ended.wait(LEASE / 3):
                client.eval(_RENEW, 1, LOCK, writer, LEASE)

        keeper = Thread(target=renew, daemon=True)
        keeper.start()
        try:
            database = Database(client, name, writer)
            database.clear_leftovers()
            yield database
        finally:
            ended.set()
            keeper.join()
            client.eval(_RELEASE, 1, LOCK, writer)


def _add(pipe: Any, counts: dict[bytes, bytes], sign: int) -> None:
    """Add a crawl's totals to those of all crawls, or take them off."""
    for name, value in counts.items():
        if value.removeprefix(b"-").isdigit():
            pipe.hincrby(keys.COUNTS, name, sign * int(value))
