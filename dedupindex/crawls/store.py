"""The file of the crawls: one LMDB environment beside the index, written by several processes.

``INDEX/crawls.mdb`` holds these trees, all numbers big-endian:

    crawls    number (4)                    -> what is known of the crawl, JSON
    numbers   name                          -> number
    counts    number                        -> u64 captures, u64 bytes of payload
    captures  key of `index.cells`, number  -> cell, as in the index
    files     name of a container           -> its number, and back
    claims    digest prefix, namespace      -> `claims.Claim`
    urls      captures by URL, see `index.byurl`
    statistics  number, kind, heading         -> see `rows`
    meta      "version"                     -> raised whenever a crawl changes its state

A capture's key ends with the number of its crawl, so one seek on a digest finds what all crawls
have of it. LMDB lets one process write at a time and forces every transaction to disk.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import lmdb

from dedupindex.crawls.crawl import LONGEST_NAME, Crawl
from dedupindex.crawls.rows import MOST
from dedupindex.errors import IndexUnavailable, UnknownCrawl
from dedupindex.files import sync_directory
from dedupindex.index import byurl
from dedupindex.index.cells import Place

FILE = "crawls.mdb"
_MAP_SIZE = 1 << 40  # address space, not disk
_COUNTS = struct.Struct(">QQ")
_NAMED, _LOOKED_AT = 5, 1000  # crawls that are named, and looked at for that
_LONGEST_KEY = 400  # bytes of a container's name that a key holds


class Trees(NamedTuple):
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


class Store:
    """The open file. One process opens it once; any number of threads may use it."""

    def __init__(self, index: Path) -> None:
        """Open, and make it if need be; raises `IndexUnavailable`.

        Where nothing can be written, as in a copy on a read-only disk, it can be read.
        """
        self.path = index / FILE
        write = os.access(index, os.W_OK)
        made = not self.path.exists()
        try:
            self._env = lmdb.open(
                os.fsencode(self.path),
                subdir=False,
                map_size=_MAP_SIZE if write else 0,
                readonly=not write,
                lock=write,
                create=write,
                max_dbs=len(Trees._fields),
                max_readers=1024,
                max_spare_txns=32,
                readahead=False,
            )
            names = Trees._fields[:-1]
            trees: list[Any] = [self._env.open_db(name.encode(), create=write) for name in names]
            trees.append(byurl.open_tree(self._env, create=write))
            self.trees = Trees(*trees)
            self._inode = os.stat(self.path).st_ino
            if made:
                sync_directory(index)
        except (lmdb.Error, OSError) as error:
            raise IndexUnavailable(f"{self.path} cannot be opened: {error}") from error

    def in_place(self) -> bool:
        """Whether the file that is open is the one that stands there."""
        try:
            return os.stat(self.path).st_ino == self._inode
        except OSError:
            return False

    def forget_dead_readers(self) -> None:
        """Let go of what processes that were killed were reading, which keeps the file growing."""
        self._env.reader_check()

    @contextmanager
    def reading(self) -> Iterator[Reading]:
        """A consistent state; raises `IndexUnavailable`."""
        with self._explained(), self._env.begin() as txn:
            yield Reading(txn, self.trees)

    @contextmanager
    def writing(self) -> Iterator[Writing]:
        """A transaction that is on disk when the block ends, or never was if it raises."""
        with self._explained(), self._env.begin(write=True) as txn:
            yield Writing(txn, self.trees)

    @contextmanager
    def part(self, whole: Writing) -> Iterator[Writing]:
        """A part of a transaction: undone alone if it raises."""
        with self._explained(), self._env.begin(write=True, parent=whole.txn) as txn:
            yield Writing(txn, self.trees)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except lmdb.Error as error:
            raise IndexUnavailable(f"{self.path}: {error}") from error

    def copy(self, target: Path) -> None:
        """A copy of one consistent state, in another directory."""
        with self._explained(), open(target / FILE, "xb") as stream:
            # Page by page: LMDB 0.9's compacting copy crashes on a large tree of fixed duplicates.
            self._env.copyfd(stream.fileno())
            os.fsync(stream.fileno())

    def close(self) -> None:
        self._env.close()


def open_store(index: Path) -> Store | None:
    """The crawls of an index, None if it never had one."""
    return Store(index) if (index / FILE).exists() else None


class Reading:
    """What can be asked in a transaction."""

    def __init__(self, txn: lmdb.Transaction, trees: Trees) -> None:
        self.txn, self.trees = txn, trees

    def version(self) -> int:
        """Raised whenever a crawl is begun, committed, cancelled or merged."""
        return int.from_bytes(self.txn.get(b"version", db=self.trees.meta) or b"", "big")

    def crawl(self, name: str) -> Crawl:
        """The crawl of a name; raises `UnknownCrawl`."""
        key = name.encode("utf-8", "surrogateescape")
        number = self.txn.get(key, db=self.trees.numbers) if 0 < len(key) <= LONGEST_NAME else None
        if number is None:
            raise UnknownCrawl(f"there is no crawl {name[:200]!r}; begin it with POST /crawls")
        return self._restored(self.txn.get(number, db=self.trees.crawls))

    def reported(self, name: str, sees: Callable[[Crawl], bool] = lambda crawl: True) -> Crawl:
        """The same for who reads of it; `UnknownCrawl` names crawls there are, if they see them."""
        try:
            return self.crawl(name)
        except UnknownCrawl:
            newest = (crawl.name for crawl in islice(self.newest(), _LOOKED_AT) if sees(crawl))
            known = sorted(newest, key=lambda one: -len(os.path.commonprefix([one, name])))[:_NAMED]
            which = (
                f"there are {', '.join(known)}" if known else "there is none that can be read of"
            )
            raise UnknownCrawl(f"there is no crawl {name[:200]!r}; {which}") from None

    def crawls(self) -> Iterator[Crawl]:
        """All crawls, in the order in which they began."""
        for _, value in self.txn.cursor(db=self.trees.crawls):
            yield self._restored(value)

    def newest(self, before: Crawl | None = None) -> Iterator[Crawl]:
        """All crawls, or those that began before one of them, the newest first."""
        with self.txn.cursor(db=self.trees.crawls) as cursor:
            if cursor.last() if before is None else cursor.set_key(_number(before)):
                for key, value in cursor.iterprev():
                    if before is None or key != _number(before):
                        yield self._restored(value)

    def _restored(self, value: bytes | memoryview[int] | None) -> Crawl:
        return Crawl.restored(json.loads(bytes(value or b"")))

    def counts(self, crawl: Crawl) -> tuple[int, int]:
        """Captures of a crawl, and the bytes of their payloads."""
        value = self.txn.get(_number(crawl), db=self.trees.counts)
        captures, size = _COUNTS.unpack(value) if value else (0, 0)
        return captures, size

    def file_of(self, number: int) -> str:
        """The name of a container, "" for number 0."""
        if not number:
            return ""
        name = self.txn.get(b"#" + number.to_bytes(4, "big"), db=self.trees.files)
        if name is None:
            raise KeyError(f"container number {number} has no name")
        return bytes(name).decode("utf-8", "surrogateescape")

    def place_of(self, number: int) -> Place:
        """The same where the crawl is known from elsewhere."""
        return Place(self.file_of(number))


class Writing(Reading):
    """What can be changed in a transaction."""

    def new_number(self) -> int:
        """The next number of a crawl."""
        with self.txn.cursor(db=self.trees.crawls) as cursor:
            return int.from_bytes(cursor.key(), "big") + 1 if cursor.last() else 1

    def put_crawl(self, crawl: Crawl) -> None:
        """Keep what is known of a crawl."""
        key = _number(crawl)
        self.txn.put(key, json.dumps(crawl.stored()).encode(), db=self.trees.crawls)
        self.txn.put(crawl.name.encode(), key, db=self.trees.numbers)
        version = (self.version() + 1).to_bytes(8, "big")
        self.txn.put(b"version", version, db=self.trees.meta)

    def count(self, crawl: Crawl, captures: int, size: int) -> None:
        """Add to the counts of a crawl."""
        before = self.counts(crawl)
        value = _COUNTS.pack(max(before[0] + captures, 0), min(max(before[1] + size, 0), MOST))
        self.txn.put(_number(crawl), value, db=self.trees.counts)

    def number_of(self, name: str) -> int:
        """The number of a container's name, given now if it has none; 0 for no name."""
        if not name:
            return 0
        text = name.encode("utf-8", "surrogateescape")
        key = b"=" + text[:_LONGEST_KEY]
        if len(text) > _LONGEST_KEY:
            key += sha256(text).digest()
        value = self.txn.get(key, db=self.trees.files)
        if value is None:
            value = (self.txn.stat(self.trees.files)["entries"] // 2 + 1).to_bytes(4, "big")
            self.txn.put(key, value, db=self.trees.files)
            self.txn.put(b"#" + value, text, db=self.trees.files)
        return int.from_bytes(value, "big")


def _number(crawl: Crawl) -> bytes:
    return crawl.number.to_bytes(4, "big")
