"""What browsertrix-crawler keeps in Redis (or Kvrocks) of the payloads that its crawls have stored.

    alldupes             hash  digest -> crawl, of the crawls that are committed
    h:CRAWL              hash  digest -> "PLACE DATE URL SIZE"
    h:CRAWL:counts       hash  totals of the crawl
    c:CRAWL:wacz         list  {"filename", "hash", "size"}; PLACE counts from its beginning
    uncommittedcrawls    set   crawls that go on
    allcrawls            set   crawls that are committed
    allcounts            hash  totals of these
    src:d                set   file names of these

A digest has no label: SHA-256 is in hex, SHA-1 in base32. DATE has 17 digits, SIZE is that of the
compressed record. The crawler asks ``HGET alldupes DIGEST``, then ``HGET h:CRAWL DIGEST`` with the
answer, or its own crawl if there is none. This module alone speaks to Redis; sources read with it,
exports write.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from dedupindex.errors import BadInput, DedupError, to_install

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
