"""An index as the keys of Browsertrix: which originals are written, and how each is said.

A crawler that finds a digest there writes a revisit with the URL, the date and the file that stand
beside it, and asks nothing more. So only what may become a revisit is written.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby, islice
from operator import itemgetter
from pathlib import PurePosixPath
from secrets import token_hex
from threading import Event, Thread
from typing import Any, NamedTuple

from dedupindex.capture import Capture, Covers, Evidence
from dedupindex.digest import CUT_DIGEST, Digest, is_cut
from dedupindex.errors import CrawlExists, DedupError, IndexBusy, UnknownCrawl
from dedupindex.index.engine import IndexedContainer
from dedupindex.index.format.file_names import files_of
from dedupindex.sources import browsertrix as keys
from dedupindex.sources.browsertrix import BrowsertrixEntry
from dedupindex.timestamps import digits_of_date

ENCODINGS = {"sha256": 2, "sha1": 0}  # hex, base32: how the crawler spells its digests
NO_PLACE = 999_999_999  # in no list: the revisit then names no file
_UNWRITABLE = re.compile(rb"[\x00-\x20\x7f]")  # would end the URL
_UNNAMEABLE = re.compile(r"[\s:\ud800-\udfff]")  # would end a crawl's name, or begin another key


class Written(NamedTuple):
    """An original as it is written."""

    crawl: str
    digest: bytes
    capture: Capture
    file: IndexedContainer | None  # None: not known


@dataclass
class BrowsertrixExport:
    """What was written, and what was left out, by reason; filled while originals are taken."""

    written: int = 0
    bridged: int = 0  # of them, whose own record has the digest otherwise, or another
    crawls: dict[str, int] = field(default_factory=dict)  # written of each
    left_out: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class ExportChoice:
    """What is to be written, and how."""

    other: str  # the crawl of what is of no crawl
    crawls: frozenset[str] = frozenset()  # only these; none: all
    algorithm: str = "sha256"
    bridge: bool = False  # also originals whose own record spells it otherwise, or states another


class ContainerFiles:
    """The files that containers are in; their names are held in memory."""

    def __init__(self, registered: Callable[[str], IndexedContainer | None]) -> None:
        self._registered = registered
        self._known: dict[str, IndexedContainer | None] = {"": None}

    def of(self, container: str) -> IndexedContainer | None:
        """The file of a capture's container, None if it names none."""
        if container not in self._known:
            files = filter(None, map(self._registered, files_of(container)))
            self._known[container] = next(files, IndexedContainer(container, -1, "", 0))
        return self._known[container]


def originals(
    captures: Iterable[tuple[Digest, Capture]],
    files: ContainerFiles,
    choice: ExportChoice,
    exported: BrowsertrixExport,
) -> Iterator[Written]:
    """What is to be written, of captures in the order of digests; of each digest one for a crawl.

    Holds one digest at a time.
    """
    without = 0
    for digest, group in groupby(captures, itemgetter(0)):
        best: dict[str, Capture] = {}
        for _, capture in group:
            own = capture.digest == digest
            if digest.algorithm != choice.algorithm:
                without += own
                continue
            without -= not own
            crawl = capture.crawl or choice.other
            if reason := _unfit(digest, capture, crawl, choice):
                exported.left_out[reason] += 1
                continue
            before = best.setdefault(crawl, capture)
            if before is not capture:
                exported.left_out["same-digest"] += 1
                best[crawl] = min(before, capture, key=_order)
        for crawl, capture in best.items():
            exported.written += 1
            exported.bridged += not _own(digest, capture)
            exported.crawls[crawl] = exported.crawls.get(crawl, 0) + 1
            yield Written(crawl, _spelled(digest), capture, files.of(capture.container))
    if without > 0:
        exported.left_out[f"no-{choice.algorithm}"] = without


def entry(written: Written, place: int) -> BrowsertrixEntry:
    """What is written beside a digest, `place` being that of the file in its crawl's list."""
    capture = written.capture
    fraction = (capture.date[20:-1] + b"000")[:3]  # milliseconds, as many as the form has
    digits = digits_of_date(capture.date) + fraction
    # After a hit of size 0 the crawler takes its own revisit for an original.
    return BrowsertrixEntry(place, digits, capture.url, max(capture.size, 1))


def listed(file: IndexedContainer) -> bytes:
    """A file as Browsertrix lists it. Its hash would be a SHA-256, which we do not have."""
    value: dict[str, str | int] = {"filename": PurePosixPath(file.name).name}
    if file.size >= 0:
        value["size"] = file.size
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def _order(capture: Capture) -> tuple[Evidence, bytes, bytes]:
    """What was read is better than what stands in a row, the earlier than the later."""
    return capture.evidence, capture.date[:-1], capture.url


def _spelled(digest: Digest) -> bytes:
    text = digest.raw.hex() if digest.algorithm == "sha256" else str(digest).partition(":")[2]
    return text.encode()


def _unfit(digest: Digest, capture: Capture, crawl: str, choice: ExportChoice) -> str:
    """Why Browsertrix cannot use a capture, "" if it can."""
    if choice.crawls and crawl not in choice.crawls:
        return "other-crawl"
    if _UNNAMEABLE.search(crawl):
        return "crawl-name"
    if is_cut(digest.raw):
        return CUT_DIGEST
    if not (choice.bridge or _own(digest, capture)):
        return "spelled-otherwise"
    if capture.status and capture.status // 100 != 2:
        return "status"
    if capture.covers == Covers.STORED:
        return "chunked"  # its digest covers the framing, the crawler's never does
    if _UNWRITABLE.search(capture.url):
        return "url-with-spaces"
    return ""


def _own(digest: Digest, capture: Capture) -> bool:
    """Whether a capture's own record has a digest as the crawler writes it."""
    encoding = ENCODINGS[digest.algorithm]
    return capture.digest == digest and capture.spelling.encoding == encoding


# Crawls written to Redis whole or not at all, committed and cancelled, in Browsertrix' own keys.

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
