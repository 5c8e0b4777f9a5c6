"""Write the originals of an index to Redis, in the keys that Browsertrix reads.

A crawler that finds a digest there writes a revisit with the URL, date and file of its entry, and
checks nothing more. So only originals that a revisit may refer to are written.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
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

ENCODINGS = {"sha256": 2, "sha1": 0}  # how the crawler spells its digests: hex, base32
NO_PLACE = 999_999_999  # of no file in the list: the revisit then names none
LOCK, OURS = "dedupindex:lock", "dedupindex:crawls"
LEASE = 30  # seconds after which the lock of a killed export expires
_NEW, _OLD = "dedupindex:new:", "dedupindex:old:"
# Only the holder of the lock renews or releases it.
_RENEW = "return redis.call('get', KEYS[1]) == ARGV[1] and redis.call('expire', KEYS[1], ARGV[2])"
_RELEASE = "return redis.call('get', KEYS[1]) == ARGV[1] and redis.call('del', KEYS[1])"
_NOT_IN_URL = re.compile(rb"[\x00-\x20\x7f]")
_NOT_IN_NAME = re.compile(r"[\s:\ud800-\udfff]")  # would end a crawl's name, or begin another key


class ExportedOriginal(NamedTuple):
    """An original to write."""

    crawl: str
    digest: bytes  # as the crawler spells it
    capture: Capture
    file: IndexedContainer | None  # None: not known


@dataclass
class BrowsertrixExport:
    """What was written, and what was left out, by reason; counted while originals are taken."""

    written: int = 0
    bridged: int = 0  # of them, whose record states another digest, or spells it otherwise
    crawls: dict[str, int] = field(default_factory=dict)  # written, by crawl
    left_out: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class ExportChoice:
    """What to write."""

    other: str  # the crawl of captures without one
    crawls: frozenset[str] = frozenset()  # only these; empty: all
    algorithm: str = "sha256"
    bridge: bool = False  # also originals whose record states another digest or spelling


def file_of(
    registered: Callable[[str], IndexedContainer | None], container: str
) -> IndexedContainer | None:
    """Return the file that holds a container, None for "": a WARC file, or the WACZ around it."""
    if not container:
        return None
    files = filter(None, map(registered, files_of(container)))
    return next(files, IndexedContainer(container, -1, "", 0))


def originals(
    captures: Iterable[tuple[Digest, Capture]],
    registered: Callable[[str], IndexedContainer | None],
    choice: ExportChoice,
    exported: BrowsertrixExport,
) -> Iterator[ExportedOriginal]:
    """Yield one original for each digest and crawl, of captures sorted by digest.

    `registered` returns a file of the index by its name. Holds the captures of one digest at a
    time.
    """
    file_in_index = cache(partial(file_of, registered))
    without = 0  # captures that have no digest of the algorithm
    for digest, group in groupby(captures, itemgetter(0)):
        best: dict[str, Capture] = {}
        for _, capture in group:
            own = capture.digest == digest
            if digest.algorithm != choice.algorithm:
                without += own
                continue
            without -= not own
            crawl = capture.crawl or choice.other
            if reason := _unusable_reason(digest, capture, crawl, choice):
                exported.left_out[reason] += 1
                continue
            if crawl in best:
                exported.left_out["same-digest"] += 1
                capture = min(best[crawl], capture, key=_order)
            best[crawl] = capture
        for crawl, capture in best.items():
            exported.written += 1
            exported.bridged += not _is_stated(digest, capture)
            exported.crawls[crawl] = exported.crawls.get(crawl, 0) + 1
            sha256 = digest.algorithm == "sha256"
            text = digest.raw.hex() if sha256 else str(digest).partition(":")[2]
            yield ExportedOriginal(crawl, text.encode(), capture, file_in_index(capture.container))
    if without > 0:
        exported.left_out[f"no-{choice.algorithm}"] = without


def entry(original: ExportedOriginal, place: int) -> BrowsertrixEntry:
    """The entry of a digest; `place` is that of its file in the list of the crawl."""
    capture = original.capture
    fraction = (capture.date[20:-1] + b"000")[:3]  # milliseconds
    digits = digits_of_date(capture.date) + fraction
    # After a hit of size 0 the crawler would take its own revisit for an original.
    return BrowsertrixEntry(place, digits, capture.url, max(capture.size, 1))


def file_entry(file: IndexedContainer) -> bytes:
    """A file as Browsertrix lists it, without its SHA-256, which the index does not have."""
    size = {"size": file.size} if file.size >= 0 else {}
    value = {"filename": PurePosixPath(file.name).name, **size}
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def _order(capture: Capture) -> tuple[Evidence, bytes, bytes]:
    """Sort key: records that were read before CDX rows, then by date."""
    return capture.evidence, capture.date[:-1], capture.url


def _unusable_reason(digest: Digest, capture: Capture, crawl: str, choice: ExportChoice) -> str:
    """Why Browsertrix cannot use a capture, "" if it can."""
    if choice.crawls and crawl not in choice.crawls:
        return "other-crawl"
    if _NOT_IN_NAME.search(crawl):
        return "crawl-name"
    if is_cut(digest.raw):
        return CUT_DIGEST
    if not (choice.bridge or _is_stated(digest, capture)):
        return "spelled-otherwise"
    if capture.status and capture.status // 100 != 2:
        return "status"
    if capture.covers == Covers.STORED:
        return "chunked"  # its digest covers the chunks, the crawler's never does
    if _NOT_IN_URL.search(capture.url):
        return "url-with-spaces"
    return ""


def _is_stated(digest: Digest, capture: Capture) -> bool:
    """Whether the record of a capture states a digest as the crawler writes it."""
    encoding = ENCODINGS[digest.algorithm]
    return capture.digest == digest and capture.spelling.encoding == encoding


@dataclass
class _StagedCrawl:
    """A crawl that is being written."""

    places: dict[str, int] = field(default_factory=dict)  # of files in its list
    entries: int = 0
    size: int = 0  # bytes of the files


class BrowsertrixDatabase:
    """A locked Redis with Browsertrix' keys; each crawl appears whole or not at all."""

    def __init__(self, client: Any, name: str, writer: str) -> None:
        self._client, self._name, self._writer = client, name, writer

    def export(
        self, originals: Iterable[ExportedOriginal], source: bytes, wanted: Iterable[str] = ()
    ) -> None:
        """Write and commit the crawls of the index at `source`.

        Crawls that it wrote before and no longer has are removed; with `wanted` only those among
        them. Raises `CrawlExists` before any crawl is visible.
        """
        staged: dict[str, _StagedCrawl] = {}
        originals = iter(originals)
        while batch := list(islice(originals, keys.AT_ONCE)):
            self._stage(batch, staged, source)
        for name, crawl in staged.items():
            self._replace(name, crawl, source)
            self.commit(name)
        for name, owner in self._client.hgetall(OURS).items():
            old = name.decode()
            if owner == source and old not in staged and (not wanted or old in wanted):
                self.cancel(old)

    def commit(self, crawl: str) -> None:
        """Make the digests of a crawl visible, also new ones of a committed crawl.

        Raises `UnknownCrawl`.
        """
        self._is_committed(crawl)
        for found in keys.scan(self._client, keys.entries_key(crawl)):
            with self._client.pipeline(transaction=False) as pipe:
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
            pipe.smove(keys.OPEN, keys.CRAWLS, crawl)
            _add(pipe, counts, files)

        self._transact(publish)
        self._drop_replaced(crawl)

    def cancel(self, crawl: str) -> None:
        """Remove a crawl.

        Raises `UnknownCrawl`; `CrawlExists` if Browsertrix itself has committed it.
        """
        if self._is_committed(crawl) and not self._client.hexists(OURS, crawl):
            raise CrawlExists(
                f"crawl {crawl!r} was committed by Browsertrix: remove it with Browsertrix's "
                "indexer --remove, which also removes all that is no longer in the collection"
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
            pipe.srem(keys.OPEN, crawl)
            pipe.srem(keys.CRAWLS, crawl)
            pipe.hdel(OURS, crawl)
            _subtract(pipe, counts, files)

        self._transact(remove)
        self._drop_replaced(crawl)

    def clear_leftovers(self) -> None:
        """Remove what killed exports left."""
        for key in self._client.scan_iter(match=_NEW + "*", count=keys.AT_ONCE):
            self._client.unlink(key)
        for key in self._client.scan_iter(match=_OLD + "*", count=keys.AT_ONCE):
            self._drop_replaced(key.decode().removeprefix(_OLD))

    def _is_committed(self, crawl: str) -> bool:
        """Whether a crawl is committed; raises `UnknownCrawl` if it does not exist."""
        committed = bool(self._client.sismember(keys.CRAWLS, crawl))
        if not committed and not self._client.sismember(keys.OPEN, crawl):
            raise UnknownCrawl(f"{self._name} has no crawl {crawl!r}")
        return committed

    def _stage(
        self, batch: list[ExportedOriginal], staged: dict[str, _StagedCrawl], source: bytes
    ) -> None:
        """Write originals to keys that no crawler reads."""
        for name in {original.crawl for original in batch} - staged.keys():
            self._check_owner(name, source)
            staged[name] = _StagedCrawl()
        with self._client.pipeline(transaction=False) as pipe:
            for original in batch:
                name, file, place = original.crawl, original.file, NO_PLACE
                crawl = staged[name]
                if file is not None:
                    if file.name not in crawl.places:
                        crawl.places[file.name] = len(crawl.places)
                        crawl.size += max(file.size, 0)
                        pipe.rpush(self._staging_key("c", name), file_entry(file))
                    place = crawl.places[file.name]
                crawl.entries += 1
                key = self._staging_key("h", name)
                pipe.hset(key, original.digest, bytes(entry(original, place)))
            pipe.execute()

    def _staging_key(self, kind: str, crawl: str) -> str:
        return f"{_NEW}{self._writer}:{kind}:{crawl}"

    def _check_owner(self, crawl: str, source: bytes) -> None:
        """Raise `CrawlExists` if this crawl was not written by the index at `source`."""
        client = self._client
        owner = client.hget(OURS, crawl)
        if owner == source:
            return
        if owner is not None:
            raise CrawlExists(
                f"crawl {crawl!r} in {self._name} was exported from "
                f"{owner.decode('utf-8', 'replace')}; give --as, or --cancel it first"
            )
        known = any(client.sismember(crawls, crawl) for crawls in (keys.CRAWLS, keys.OPEN))
        if known or client.exists(keys.entries_key(crawl), keys.files_key(crawl)):
            raise CrawlExists(
                f"{self._name} has a crawl {crawl!r} that was not exported; give --as"
            )

    def _replace(self, crawl: str, staged: _StagedCrawl, source: bytes) -> None:
        """Replace what a crawl had by what was staged, in one transaction."""
        entries, files = keys.entries_key(crawl), keys.files_key(crawl)
        counts = {b"totalUrls": b"%d" % staged.entries, b"totalCrawlSize": b"%d" % staged.size}
        self._drop_replaced(crawl)

        def replace(pipe: Any) -> None:
            exists, committed = pipe.exists(entries), pipe.sismember(keys.CRAWLS, crawl)
            before = pipe.hgetall(keys.counts_key(crawl))
            old_files = pipe.lrange(files, 0, -1)
            new_files = pipe.lrange(self._staging_key("c", crawl), 0, -1)
            pipe.multi()
            if exists:
                pipe.rename(entries, _OLD + crawl)
            pipe.rename(self._staging_key("h", crawl), entries)
            pipe.delete(files, keys.counts_key(crawl))
            if new_files:
                pipe.rename(self._staging_key("c", crawl), files)
            pipe.hset(keys.counts_key(crawl), mapping=counts)
            pipe.hset(OURS, crawl, source)
            if not committed:
                pipe.sadd(keys.OPEN, crawl)
                return
            _subtract(pipe, before, old_files)
            _add(pipe, counts, new_files)

        self._transact(replace)

    def _transact(self, change: Callable[[Any], None]) -> None:
        """Run a transaction; raises `DedupError` if the lock is lost."""

        def locked(pipe: Any) -> None:
            if pipe.get(LOCK) != self._writer.encode():
                raise DedupError(
                    f"another export to {self._name} started while this one was stalled; "
                    "run it again"
                )
            change(pipe)

        self._client.transaction(locked, LOCK)

    def _drop_replaced(self, crawl: str) -> None:
        """Remove replaced entries; digests that they alone had pass to another crawl, if any."""
        client, replaced = self._client, _OLD + crawl
        others = [name for name in keys.members(client, keys.CRAWLS) if name != crawl]
        for found in keys.scan(client, replaced):
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
                values = client.hmget(keys.entries_key(other), lost)
                for digest, value in zip(lost, values, strict=True):
                    if value is not None:
                        heirs.setdefault(digest, other)
            with client.pipeline(transaction=False) as pipe:
                for digest in lost:
                    if digest in heirs:
                        pipe.hset(keys.DUPES, digest, heirs[digest])
                    else:
                        pipe.hdel(keys.DUPES, digest)
                pipe.execute()
        client.unlink(replaced)


@contextmanager
def writing(address: str) -> Iterator[BrowsertrixDatabase]:
    """Lock the Redis at an address for writing; raises `DedupError`.

    `IndexBusy` if another export writes, or was killed less than `LEASE` seconds ago.
    """
    name, writer = keys.without_password(address), token_hex(8)
    with keys.redis_client(address, DedupError) as client:
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
            database = BrowsertrixDatabase(client, name, writer)
            database.clear_leftovers()
            yield database
        finally:
            ended.set()
            keeper.join()
            client.eval(_RELEASE, 1, LOCK, writer)


def _add(pipe: Any, counts: dict[bytes, bytes], files: Iterable[bytes], sign: int = 1) -> None:
    """Add a crawl's totals and files to those of all crawls."""
    for name, value in counts.items():
        if value.removeprefix(b"-").isdigit():
            pipe.hincrby(keys.COUNTS, name, sign * int(value))
    change = pipe.sadd if sign > 0 else pipe.srem
    for text in files:
        change(keys.FILES, keys.file_name(text))


def _subtract(pipe: Any, counts: dict[bytes, bytes], files: Iterable[bytes]) -> None:
    """Undo what `_add` did."""
    _add(pipe, counts, files, -1)
