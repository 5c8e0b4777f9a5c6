"""Captures of committed crawls that browsertrix-crawler keeps in Redis.

Redis has as much of a capture as a revisit would: digest, URL, date, file. Status and media type
are unknown (`Evidence.NAMED`). URLs are normalised: the query is sorted and encoded anew, escapes
are in upper case. Only URLs that normalisation cannot have changed are accepted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from blake3 import blake3

from dedupindex.capture import Capture, Evidence, Item, Refusal
from dedupindex.digest import Spelling
from dedupindex.errors import BadDate, BadDigest, BadInput, BadSource, DedupError, to_install
from dedupindex.sources.rows import ColumnValues, read_digest
from dedupindex.sources.source import NO_STATUS, Source
from dedupindex.urlkey import is_http

DUPES, CRAWLS, OPEN = "alldupes", "allcrawls", "uncommittedcrawls"
COUNTS, FILES = "allcounts", "src:d"
AT_ONCE = 1000  # entries of a hash, in one exchange
_NUMBER = re.compile(rb"\d{1,18}")
_SCHEMES = ("redis", "rediss", "unix")
_TIMEOUT = 60.0  # seconds for an answer; Redis does not answer while it writes a large file
_UNCHANGED = re.compile(rb"https?://[^/?#%]+/[^?#%]*(?:\?[\w.*-]+=[\w.*-]+)?")  # by normalisation


class BrowsertrixEntry(NamedTuple):
    """Where a payload is stored: the value of a digest in ``h:CRAWL``."""

    place: int  # of the file in the crawl's list
    digits: bytes  # 17, or 14
    url: bytes
    size: int  # bytes of the compressed record

    @classmethod
    def parse(cls, value: bytes) -> BrowsertrixEntry:
        """Parse a value; raises `ValueError`."""
        parts = value.split(b" ")
        if len(parts) != 4 or not (_NUMBER.fullmatch(parts[0]) and parts[1].isdigit()):
            raise ValueError("not 'place date url size'")
        size = int(parts[3]) if _NUMBER.fullmatch(parts[3]) else -1  # NaN, undefined
        return cls(int(parts[0]), parts[1], parts[2], size)

    def __bytes__(self) -> bytes:
        return b"%d %b %b %d" % self


def entries_key(crawl: str) -> str:
    """Return the key of the hash of a crawl's entries."""
    return f"h:{crawl}"


def counts_key(crawl: str) -> str:
    """Return the key of the hash of a crawl's totals."""
    return f"h:{crawl}:counts"


def files_key(crawl: str) -> str:
    """Return the key of the list of a crawl's files."""
    return f"c:{crawl}:wacz"


def file_name(text: bytes) -> str:
    """Return the file name in an entry of a crawl's list, "" if there is none."""
    try:
        name = json.loads(text)["filename"]
    except (ValueError, KeyError, TypeError):
        return ""
    return name if isinstance(name, str) else ""


def is_redis_address(text: str) -> bool:
    """Return whether `text` is a ``redis://``, ``rediss://`` or ``unix://`` address."""
    scheme, mark, _ = text.partition("://")
    return bool(mark) and scheme in _SCHEMES


def without_password(address: str) -> str:
    """Return an address without user and password."""
    parts = urlsplit(address)
    database = [f"db={number}" for number in parse_qs(parts.query).get("db", [])]
    place = parts.netloc.rpartition("@")[2]
    query = "?" + "&".join(database) if database else ""
    return f"{parts.scheme}://{place}{parts.path}{query}"


@contextmanager
def redis_client(address: str, failure: type[DedupError]) -> Iterator[Any]:
    """Connect to a Redis; its errors are raised as `failure`.

    Commands are never retried: a writer must know whether a command was executed once.
    """
    try:
        import redis  # an optional package
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError as error:
        raise DedupError(f"Redis needs a package: {to_install('redis')}") from error
    try:
        client = redis.Redis.from_url(
            address, protocol=2, socket_timeout=_TIMEOUT, socket_connect_timeout=10.0,
            retry=Retry(NoBackoff(), 0),
        )  # fmt: skip
    except ValueError as error:
        raise BadInput(
            f"{without_password(address)} is not an address of a Redis: {error}"
        ) from error
    try:
        with client:
            client.ping()
            yield client
    except redis.RedisError as error:
        raise failure(f"{without_password(address)}: {error}") from error


def scan(client: Any, key: str) -> Iterator[list[tuple[bytes, bytes]]]:
    """Yield the fields of a hash, many at a time; one that changes may come twice or never."""
    found = client.hscan_iter(key, count=AT_ONCE)
    while batch := list(islice(found, AT_ONCE)):
        yield batch


def members(client: Any, key: str) -> list[str]:
    """Return the names in a set of crawls, sorted."""
    found = {name.decode("utf-8", "replace") for name in client.sscan_iter(key, count=AT_ONCE)}
    return sorted(found)


class BrowsertrixSource(Source):
    """The keys of Browsertrix in one database."""

    def __init__(self, address: str) -> None:
        super().__init__(without_password(address))
        self._address = address
        self._position = 0
        self._values = ColumnValues(self.name)
        self._hash = blake3()

    @property
    def position(self) -> int:
        return self._position

    def items(self) -> Iterator[Item]:
        """See `Source.items`. A crawl that is committed meanwhile may be missed."""
        with redis_client(self._address, BadSource) as client:
            committed = members(client, CRAWLS)
            uncommitted = members(client, OPEN)
            if not committed and not uncommitted:
                raise BadSource(f"{self.name} holds no crawl of Browsertrix; another database?")
            for crawl in committed:
                files = [file_name(text) for text in client.lrange(files_key(crawl), 0, -1)]
                for found in scan(client, entries_key(crawl)):
                    yield from self._items(crawl, files, found)
            for crawl in sorted({*uncommitted} - {*committed}):
                for _ in range(client.hlen(entries_key(crawl))):
                    yield Refusal("uncommitted")
        yield from self._further_unreadable(-1, "entries")
        self.content_hash = self._hash.hexdigest()

    def _items(
        self, crawl: str, files: list[str], found: list[tuple[bytes, bytes]]
    ) -> Iterator[Item]:
        for text, value in found:
            self._hash.update(b"%b %b\n" % (text, value))
            self._position += len(text) + len(value)
            try:
                yield self._item(text, BrowsertrixEntry.parse(value), files)
            except ValueError as error:
                line = (text + b": " + value)[:160].decode("utf-8", "backslashreplace")
                yield from self._unreadable(-1, f"crawl {crawl}: {error}: {line!r}")

    def _item(self, text: bytes, entry: BrowsertrixEntry, files: list[str]) -> Item:
        if not is_http(entry.url):
            return Refusal("not-http")
        if not _UNCHANGED.fullmatch(entry.url):
            return Refusal("rewritten-url")
        try:
            date = self._values.date(entry.digits)
            digest, spelling = read_digest(text, "sha1")
        except BadDate:
            return Refusal("bad-date")
        except BadDigest:
            return Refusal("bad-digest")
        self.remarks[NO_STATUS] += 1
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
