"""Transactions on the LMDB file of crawls. Its trees, all numbers big-endian:

    crawls      number (4)                   -> the crawl, JSON
    numbers     name                         -> number
    counts      number                       -> u64 captures, u64 bytes of payload
    captures    key of `format.cells`, number  -> cell, as in the index
    files       name of a container          -> its number, and back
    claims      digest prefix, namespace     -> `crawl.Claim`
    urls        captures by URL, see `format.url_index`
    visits      number, URL part of a key    -> the body of its last visit, see `format.visits`
                number, URL part, kind       -> the last one of another `kind_key`
    statistics  number, kind, heading        -> see `statistics_keys`
    meta        "version"                    -> raised whenever a crawl changes its state
                "format"                     -> `index.identity.FORMAT`

Values have a checksum (`cells.sealed`), except in `urls`.

The key of a capture ends with the number of its crawl, so one seek on a digest finds the captures
of all crawls.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from itertools import islice
from typing import Any, NamedTuple, cast

import lmdb

from dedupindex.cache import MEGABYTE, Cache
from dedupindex.crawls.crawl import Claim, Crawl
from dedupindex.crawls.statistics_keys import CODECS, KIND, MOST
from dedupindex.crawls.store import FILE, ClaimTest, Held, Reading, Writing
from dedupindex.errors import Damaged
from dedupindex.index.engines.lmdb.lmdb_file import scan
from dedupindex.index.format import url_index
from dedupindex.index.format.cells import container_of, entries_of, is_sound, sealed, unsealed
from dedupindex.index.format.fast_answer import BROKEN
from dedupindex.index.format.tombstones import REVISIT
from dedupindex.index.format.visits import VisitKind
from dedupindex.index.identity import FORMAT
from dedupindex.lookup.conditions import MAX_NAME_LENGTH

NUMBER = 4  # bytes of a crawl's number, at the end of a key
_COUNTS = struct.Struct(">QQ")
_CLAIM = struct.Struct(">IQ16s")  # crawl, end in milliseconds since 1970, token
_SWEPT = 1000  # expired claims that one transaction removes
_FORMAT = b"format"
_LONGEST_KEY = 400  # bytes of a container's name in a key


class CrawlTrees(NamedTuple):
    """The trees of the file."""

    crawls: Any
    numbers: Any
    counts: Any
    captures: Any
    files: Any
    claims: Any
    statistics: Any
    meta: Any
    urls: Any
    visits: Any

    @classmethod
    def open(cls, env: lmdb.Environment, txn: lmdb.Transaction | None = None) -> CrawlTrees:
        """Open the trees of a file; create them in a write transaction `txn`."""
        trees: list[Any] = [
            env.open_db(name.encode(), txn=txn, create=txn is not None) for name in cls._fields[:-2]
        ]
        trees.append(url_index.open_tree(env, txn=txn, create=txn is not None))
        trees.append(env.open_db(b"visits", txn=txn, create=txn is not None))
        return cls(*trees)


class LmdbReading(Reading):
    """A read transaction."""

    def __init__(self, txn: lmdb.Transaction, trees: CrawlTrees) -> None:
        self.txn, self.trees, self.origin = txn, trees, trees

    def _get(self, key: bytes, tree: Any) -> bytes | None:
        """Return the value of a key; raises `Damaged`."""
        stored = self.txn.get(key, db=tree)
        return None if stored is None else unsealed(key, cast(bytes, stored))

    def _scan(
        self, tree: Any, prefix: bytes = b"", start: bytes = b""
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the keys with a prefix, from `prefix + start` on, and their values."""
        for key, stored in scan(self.txn, tree, prefix, start):
            yield key, unsealed(key, stored)

    def version(self) -> int:
        stored = cast(bytes, self.txn.get(b"version", b"", self.trees.meta))
        number = _versions.get(stored)
        if number is None:
            value = unsealed(b"version", stored) if stored else b""
            number = _versions.keep(stored, int.from_bytes(value, "big"))
        return number

    def crawl_named(self, name: str) -> Crawl | None:
        key = name.encode("utf-8", "surrogateescape")
        number = self._get(key, self.trees.numbers) if 0 < len(key) <= MAX_NAME_LENGTH else None
        if number is None:
            return None
        value = self._get(number, self.trees.crawls)
        if value is None:
            raise Damaged(f"the number of crawl {name} refers to no crawl; restore {FILE}")
        return _restored(value)

    def crawl_numbered(self, number: int) -> Crawl | None:
        value = self._get(number.to_bytes(4, "big"), self.trees.crawls)
        return None if value is None else _restored(value)

    def crawls(self) -> Iterator[Crawl]:
        return (_restored(value) for _, value in self._scan(self.trees.crawls))

    def newest(self, before: Crawl | None = None) -> Iterator[Crawl]:
        with self.txn.cursor(db=self.trees.crawls) as cursor:
            if cursor.last() if before is None else cursor.set_key(_number(before)):
                for key, stored in cast(Iterable[tuple[bytes, bytes]], cursor.iterprev()):
                    if before is None or key != _number(before):
                        yield _restored(unsealed(key, stored))

    def counts(self, crawl: Crawl) -> tuple[int, int]:
        value = self._get(_number(crawl), self.trees.counts)
        if value is None:  # it is set when a crawl begins
            raise Damaged(f"the counts of crawl {crawl.name} are lost; restore {FILE}")
        with _as_damage():
            captures, size = _COUNTS.unpack(value)
        return captures, size

    def container_name(self, number: int) -> str:
        if not number:
            return ""
        name = self._get(b"#" + number.to_bytes(4, "big"), self.trees.files)
        if name is None:
            raise Damaged(f"container number {number} has no name; restore {FILE}")
        return name.decode("utf-8", "surrogateescape")

    def cells(self, prefix: bytes = b"") -> Iterator[Held]:
        return map(_held, self._scan(self.trees.captures, prefix))

    def cells_from(self, begin: bytes) -> Iterator[Held]:
        return map(_held, self._scan(self.trees.captures, start=begin))

    def chunk(self, after: bytes, most: int) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        """Return the next `most` places with what is stored, and where to go on (None: the end)."""
        places = scan(self.txn, self.trees.captures, start=after)
        found = list(islice(places, most))
        return found, next((place for place, _ in places), None)

    def cell(self, key: bytes, crawl: Crawl) -> bytes | None:
        return self._get(key + _number(crawl), self.trees.captures)

    def first_cells(self, prefix: bytes, most: int) -> list[Held]:
        cursor = self.txn.cursor(self.trees.captures)
        found: list[Held] = []
        more = cursor.set_range(prefix)
        while more and len(found) < most:
            place, stored = cast(tuple[bytes, bytes], cursor.item())
            if not place.startswith(prefix):
                break
            number = int.from_bytes(place[-NUMBER:], "big")
            found.append((place[:-NUMBER], number, unsealed(place, stored)))
            more = cursor.next()
        return found

    def has_none(self, prefix: bytes) -> bool:
        cursor = self.txn.cursor(self.trees.captures)
        return not (cursor.set_range(prefix) and cast(bytes, cursor.key()).startswith(prefix))

    def keys_by_url(self, tail: bytes) -> Iterator[bytes]:
        return url_index.prefixes(self.txn, self.trees.captures, self.trees.urls, tail)

    def visits(self, crawl: int, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        for key, body in self._scan(self.trees.visits, crawl.to_bytes(NUMBER, "big") + prefix):
            yield key[NUMBER:], body

    def claims(self, prefix: bytes) -> Iterator[tuple[str, Claim]]:
        for key, value in self._scan(self.trees.claims, prefix):
            yield key[len(prefix) :].decode(), _claim(value)

    def has_claims(self) -> bool:
        return self.txn.stat(self.trees.claims)["entries"] > 0

    def statistic(self, key: bytes) -> Sequence[int] | None:
        value = self._get(key, self.trees.statistics)
        with _as_damage():
            return None if value is None else CODECS[key[KIND]].unpack(value)

    def statistics(
        self, prefix: bytes, start: bytes = b""
    ) -> Iterator[tuple[bytes, Sequence[int]]]:
        unpacked = CODECS[prefix[KIND]].unpack
        for key, value in self._scan(self.trees.statistics, prefix, start):
            yield key[len(prefix) :], unpacked(value)

    def problems(self) -> Iterator[str]:
        """Check all values and references; yield sentences about what is damaged."""
        for name, tree in self.trees._asdict().items():
            if name == "urls":
                continue
            for key, stored in scan(self.txn, tree):
                try:
                    self._check(name, key, unsealed(key, stored))
                except Damaged as error:
                    yield f"{name}: {error}"
                except (*BROKEN, OverflowError) as error:
                    yield f"{name}: the value of {key.hex()} belongs to another tree: {error!r}"

    def _check(self, name: str, key: bytes, value: bytes) -> None:
        """Raise `Damaged` if an intact value refers to something that is missing."""
        if name == "captures":
            number = int.from_bytes(key[-NUMBER:], "big")
            for entry in entries_of(value):
                if entry[0] & 3 != REVISIT:
                    self.container_name(container_of(entry))
            # The URL list has no checksums; a flipped bit there hides what it lists.
            own = key[:-NUMBER]
            if url_index.listed(value) and not url_index.holds(self.txn, self.trees.urls, own):
                raise Damaged(f"the capture under {own.hex()} is not listed by its URL")
        elif name in ("counts", "statistics", "visits"):
            number = int.from_bytes(key[:NUMBER], "big")
        elif name == "numbers":
            number = int.from_bytes(value, "big")
        else:
            return
        if self.crawl_numbered(number) is None:
            raise Damaged(f"there is no crawl number {number}, which {key.hex()} refers to")


class LmdbWriting(LmdbReading, Writing):
    """A write transaction."""

    def _put(self, key: bytes, value: bytes, tree: Any) -> None:
        self.txn.put(key, sealed(key, value), db=tree)

    def new_number(self) -> int:
        with self.txn.cursor(db=self.trees.crawls) as cursor:
            if not cursor.last():
                return 1
            key = cast(bytes, cursor.key())
            unsealed(key, cast(bytes, cursor.value()))  # else a number might be given twice
            return int.from_bytes(key, "big") + 1

    def put_crawl(self, crawl: Crawl) -> None:
        key = _number(crawl)
        if self.txn.get(key, db=self.trees.crawls) is None:
            self._put(key, _COUNTS.pack(0, 0), self.trees.counts)
        self._put(key, json.dumps(crawl.stored()).encode(), self.trees.crawls)
        self._put(crawl.name.encode(), key, self.trees.numbers)
        version = (self.version() + 1).to_bytes(8, "big")
        self._put(b"version", version, self.trees.meta)

    def count(self, crawl: Crawl, captures: int, size: int) -> None:
        try:
            before = self.counts(crawl)
        except Damaged:
            return  # readers report the damage; the captures are stored
        value = _COUNTS.pack(max(before[0] + captures, 0), min(max(before[1] + size, 0), MOST))
        self._put(_number(crawl), value, self.trees.counts)

    def number_of(self, name: str) -> int:
        if not name:
            return 0
        text = name.encode("utf-8", "surrogateescape")
        key = b"=" + text[:_LONGEST_KEY]
        if len(text) > _LONGEST_KEY:
            key += sha256(text).digest()
        value = self._get(key, self.trees.files)
        if value is None:
            value = (self.txn.stat(self.trees.files)["entries"] // 2 + 1).to_bytes(4, "big")
            self._put(key, value, self.trees.files)
            self._put(b"#" + value, text, self.trees.files)
        return int.from_bytes(value, "big")

    def put_cell(self, key: bytes, crawl: Crawl, cell: bytes) -> None:
        self._put(key + _number(crawl), cell, self.trees.captures)

    def drop_cell(self, key: bytes, crawl: Crawl) -> None:
        self.txn.delete(key + _number(crawl), db=self.trees.captures)
        if self.has_none(key):
            self.txn.delete(key[:1], url_index.value_of(key), db=self.trees.urls)

    def put_visit(self, key: bytes, crawl: Crawl, body: bytes) -> bool:
        place = _number(crawl) + key
        before = self._get(place, self.trees.visits)
        if before == body:
            return False
        is_later = before is None or body < before  # dates are inverted
        if is_later:
            self._put(place, body, self.trees.visits)
        if before is not None:
            self._put_earlier(place, *((before, body) if is_later else (body, before)))
        return is_later

    def _put_earlier(self, place: bytes, earlier: bytes, last: bytes) -> None:
        """Keep a visit beside a later one of its URL, if it says what no later one does."""
        kind = VisitKind.of(earlier)
        if VisitKind.of(last).makes_needless(kind):
            return
        place += kind_key(kind)
        known = self._get(place, self.trees.visits)
        if known is None or earlier < known:
            self._put(place, earlier, self.trees.visits)

    def drop_visits(self, crawl: Crawl, most: int) -> int:
        return self._drop(self.trees.visits, crawl, most)

    def drop_visit(self, key: bytes, crawl: int) -> None:
        self.txn.delete(crawl.to_bytes(NUMBER, "big") + key, db=self.trees.visits)

    def list_url(self, key: bytes) -> None:
        url_index.put(self.txn, self.trees.urls, key)

    def claim(
        self, prefix: bytes, namespace: str, claim: Claim, lease: int, ended: ClaimTest
    ) -> Claim:
        key = prefix + namespace.encode()
        value = self._get(key, self.trees.claims)
        if value is not None and not ended(held := _claim(value)):
            return held
        value = _CLAIM.pack(claim.crawl, claim.until, bytes.fromhex(claim.token))
        self._put(key, value, self.trees.claims)
        return claim

    def free_claim(self, prefix: bytes, namespace: str, wanted: ClaimTest) -> bool:
        key = prefix + namespace.encode()
        value = self._get(key, self.trees.claims)
        if value is None or not wanted(_claim(value)):
            return False
        return self.txn.delete(key, db=self.trees.claims)

    def sweep_claims(self, now: int) -> None:
        expired = (
            key
            for key, value in scan(self.txn, self.trees.claims)
            # A damaged claim is removed, too: storing a payload twice is safe.
            if not is_sound(key, value) or _claim(unsealed(key, value)).until <= now
        )
        for key in list(islice(expired, _SWEPT)):
            self.txn.delete(key, db=self.trees.claims)

    def add(self, key: bytes, amounts: Sequence[int]) -> None:
        form, tree = CODECS[key[KIND]], self.trees.statistics
        try:
            value = self._get(key, tree)
        except Damaged:
            return  # readers report the damage; other rows are still counted
        after = form.combine(form.unpack(value), amounts) if value else amounts
        self._put(key, form.pack(after), tree)

    def drop_statistics(self, crawl: Crawl, most: int) -> int:
        return self._drop(self.trees.statistics, crawl, most)

    def _drop(self, tree: Any, crawl: Crawl, most: int) -> int:
        prefix, count = _number(crawl), 0
        with self.txn.cursor(db=tree) as cursor:
            found = cursor.set_range(prefix)
            while found and count < most and cast(bytes, cursor.key()).startswith(prefix):
                found = cursor.delete()
                count += 1
        return count


def kind_key(kind: VisitKind) -> bytes:
    """Return what follows the URL part in the key of an earlier visit: digest and `stated`."""
    return kind.digest + bytes([kind.stated])


_crawls = Cache[bytes, Crawl](4 * MEGABYTE)  # by stored value
_versions = Cache[bytes, int]()  # by stored value


def format_of(txn: lmdb.Transaction, meta: Any) -> int:
    """Return the format of a file; the first format was not stored. Raises `Damaged`."""
    stored = cast(bytes | None, txn.get(_FORMAT, db=meta))
    return 1 if stored is None else int.from_bytes(unsealed(_FORMAT, stored), "big")


def put_format(txn: lmdb.Transaction, meta: Any) -> None:
    txn.put(_FORMAT, sealed(_FORMAT, FORMAT.to_bytes(4, "big")), db=meta)


def _restored(value: bytes) -> Crawl:
    crawl = _crawls.get(value)
    if crawl is None:
        with _as_damage():
            restored = Crawl.restored(json.loads(value))
        crawl = _crawls.keep(value, restored, 1000 + 5 * len(value))
    return crawl


@contextmanager
def _as_damage() -> Iterator[None]:
    """Raise `Damaged` for an intact value of another tree: the page of tree names is damaged."""
    try:
        yield
    except (*BROKEN, TypeError) as error:
        raise Damaged("the file of crawls is damaged; restore it from a copy") from error


def _claim(value: bytes) -> Claim:
    with _as_damage():
        crawl, until, token = _CLAIM.unpack(value)
    return Claim(crawl, until, token.hex())


def _held(stored: tuple[bytes, bytes]) -> Held:
    place, cell = stored
    return place[:-NUMBER], int.from_bytes(place[-NUMBER:], "big"), cell


def _number(crawl: Crawl) -> bytes:
    return crawl.number.to_bytes(NUMBER, "big")
