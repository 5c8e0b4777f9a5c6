"""Captures that browsertrix-crawler remembers in Redis, of the crawls that are committed.

Redis says of a capture as much as a revisit of it would: digest, URL, date, file. Nobody here has
seen the record, and neither its status nor its media type are known (`Evidence.NAMED`).

The URL is kept in a normal form: the query is sorted and written anew, escapes in upper case. That
may be another than the record has, so only URLs that this cannot have changed are taken.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qs, urlsplit

from blake3 import blake3

from dedupindex.capture import Capture, Evidence, Item, Problem, Refusal
from dedupindex.digest import Spelling
from dedupindex.errors import BadDate, BadDigest, BadInput, BadSource, DedupError, to_install
from dedupindex.sources.rows import Memory, read_digest
from dedupindex.urlkey import is_http

# What browsertrix-crawler keeps in Redis (or Kvrocks) of the payloads that its crawls have stored.

DUPES, CRAWLS, OPEN = "alldupes", "allcrawls", "uncommittedcrawls"
COUNTS, FILES = "allcounts", "src:d"
AT_ONCE = 1000  # entries of a hash, in one exchange
_SCHEMES = ("redis", "rediss", "unix")
_WAIT = 60.0  # seconds for an answer; Redis answers nobody while it writes a large file


class BrowsertrixEntry(NamedTuple):
    """Where a payload is stored: the value of a digest in ``h:CRAWL``."""

    place: int
    digits: bytes  # 17, or 14
    url: bytes
    size: int  # bytes of the compressed record

    @classmethod
    def of(cls, value: bytes) -> BrowsertrixEntry:
        """What a value says; `ValueError` if it says something else."""
        parts = value.split(b" ")
        if len(parts) != 4 or not (parts[0].isdigit() and parts[1].isdigit()):
            raise ValueError("not 'place date url size'")
        size = int(parts[3]) if parts[3].isdigit() else -1  # NaN, undefined
        return cls(int(parts[0]), parts[1], parts[2], size)

    def __bytes__(self) -> bytes:
        return b"%d %b %b %d" % self


def entries_key(crawl: str) -> str:
    """The hash of what a crawl has stored."""
    return f"h:{crawl}"


def counts_key(crawl: str) -> str:
    """The hash of a crawl's totals."""
    return f"h:{crawl}:counts"


def files_key(crawl: str) -> str:
    """The list of a crawl's files."""
    return f"c:{crawl}:wacz"


def file_name(text: bytes) -> str:
    """The name of a file in a crawl's list, "" where there is none."""
    try:
        name = json.loads(text)["filename"]
    except (ValueError, KeyError, TypeError):
        return ""
    return name if isinstance(name, str) else ""


def is_address(text: str) -> bool:
    """Whether `text` names a Redis and no file: ``redis://``, ``rediss://`` or ``unix://``."""
    scheme, mark, _ = text.partition("://")
    return bool(mark) and scheme in _SCHEMES


def shown(address: str) -> str:
    """An address as it may be printed and kept: without user and password."""
    parts = urlsplit(address)
    database = [f"db={number}" for number in parse_qs(parts.query).get("db", [])]
    place = parts.netloc.rpartition("@")[2]
    query = "?" + "&".join(database) if database else ""
    return f"{parts.scheme}://{place}{parts.path}{query}"


@contextmanager
def connected(address: str, failure: type[DedupError]) -> Iterator[Any]:
    """A client of the Redis at an address; what fails is raised as `failure`.

    Nothing is sent twice: who writes must know whether it was done.
    """
    try:
        import redis  # an extra: most people have none
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError as error:
        raise DedupError(f"Redis needs a package: {to_install('redis')}") from error
    try:
        client = redis.Redis.from_url(
            address, protocol=2, socket_timeout=_WAIT, socket_connect_timeout=10.0,
            retry=Retry(NoBackoff(), 0),
        )  # fmt: skip
    except ValueError as error:
        raise BadInput(f"{shown(address)} is no address of a Redis: {error}") from error
    try:
        with client:
            client.ping()
            yield client
    except redis.RedisError as error:
        raise failure(f"{shown(address)}: {error}") from error


def scan(client: Any, key: str) -> Iterator[list[tuple[bytes, bytes]]]:
    """All fields of a hash, many at a time; what changes meanwhile may come twice or not at all."""
    cursor = 0
    while True:
        cursor, found = client.hscan(key, cursor, count=AT_ONCE)
        if found:
            yield list(found.items())
        if not cursor:
            return


def members(client: Any, key: str) -> list[str]:
    """The names in a set of crawls, in order."""
    found = {name.decode("utf-8", "replace") for name in client.sscan_iter(key, count=AT_ONCE)}
    return sorted(found)


_LITERAL = re.compile(rb"https?://[^/?#%]+/[^?#%]*(?:\?[\w.*-]+=[\w.*-]+)?")
_PROBLEMS_SHOWN = 100


class BrowsertrixSource:
    """The keys of Browsertrix in one database."""

    def __init__(self, address: str) -> None:
        self.name = shown(address)
        self.size = -1
        self.position = 0
        self.content_hash = ""
        self.changed = False
        self._address = address
        self._memory = Memory(self.name)
        self._running = blake3()
        self._problems = 0

    def items(self) -> Iterator[Item]:
        """See `Source.items`. What is committed while this reads may be missed."""
        with ExitStack() as stack:
            client = stack.enter_context(connected(self._address, BadSource))
            committed = members(client, CRAWLS)
            going_on = members(client, OPEN)
            if not committed and not going_on:
                raise BadSource(f"{self.name} holds no crawl of Browsertrix; another database?")
            for crawl in committed:
                listed = client.lrange(files_key(crawl), 0, -1)
                files = [file_name(text) for text in listed]
                for found in scan(client, entries_key(crawl)):
                    yield from self._items(crawl, files, found)
            for crawl in sorted({*going_on} - {*committed}):
                for _ in range(client.hlen(entries_key(crawl))):
                    yield Refusal("uncommitted")
        if self._problems > _PROBLEMS_SHOWN:
            more = self._problems - _PROBLEMS_SHOWN
            yield Problem(self.name, -1, f"{more:,} more entries could not be read")
        self.content_hash = self._running.hexdigest()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Nothing is open but while items are read."""

    def _items(
        self, crawl: str, files: list[str], found: list[tuple[bytes, bytes]]
    ) -> Iterator[Item]:
        for text, value in found:
            self._running.update(b"%b %b\n" % (text, value))
            self.position += len(text) + len(value)
            try:
                yield self._item(text, BrowsertrixEntry.of(value), files)
            except ValueError as error:
                self._problems += 1
                if self._problems <= _PROBLEMS_SHOWN:
                    line = (text + b": " + value)[:160].decode("utf-8", "backslashreplace")
                    yield Problem(self.name, -1, f"crawl {crawl}: {error}: {line!r}")
                yield Refusal("bad-line")

    def _item(self, text: bytes, entry: BrowsertrixEntry, files: list[str]) -> Item:
        if not is_http(entry.url):
            return Refusal("not-http")
        if not _LITERAL.fullmatch(entry.url):
            return Refusal("rewritten-url")
        try:
            date = self._memory.date(entry.digits)
            digest, spelling = read_digest(text, "sha1")
        except BadDate:
            return Refusal("bad-date")
        except BadDigest:
            return Refusal("bad-digest")
        return Capture(
            digest,
            Spelling(1, spelling.encoding),  # its records have the label
            entry.url,
            date,
            Evidence.NAMED,
            size=entry.size or -1,
            size_of_record=entry.size > 0,
            container=files[entry.place] if entry.place < len(files) else "",
        )
