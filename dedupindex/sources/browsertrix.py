"""Captures that browsertrix-crawler remembers in Redis, of the crawls that are committed.

Redis says of a capture as much as a revisit of it would: digest, URL, date, file. Nobody here has
seen the record, and neither its status nor its media type are known (`Evidence.NAMED`).

The URL is kept in a normal form: the query is sorted and written anew, escapes in upper case. That
may be another than the record has, so only URLs that this cannot have changed are taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Self

from blake3 import blake3

from dedupindex.capture import Capture, Evidence, Item, Problem, Refusal
from dedupindex.digest import Spelling
from dedupindex.errors import BadDate, BadDigest, BadSource
from dedupindex.sources import browsertrix_part
from dedupindex.sources.browsertrix_part import BrowsertrixEntry
from dedupindex.sources.rows import Memory, read_digest
from dedupindex.urls import is_http

_LITERAL = re.compile(rb"https?://[^/?#%]+/[^?#%]*(?:\?[\w.*-]+=[\w.*-]+)?")
_PROBLEMS_SHOWN = 100


class BrowsertrixSource:
    """The keys of Browsertrix in one database."""

    def __init__(self, address: str) -> None:
        self.name = browsertrix_part.shown(address)
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
            client = stack.enter_context(browsertrix_part.connected(self._address, BadSource))
            committed = browsertrix_part.members(client, browsertrix_part.CRAWLS)
            going_on = browsertrix_part.members(client, browsertrix_part.OPEN)
            if not committed and not going_on:
                raise BadSource(f"{self.name} holds no crawl of Browsertrix; another database?")
            for crawl in committed:
                listed = client.lrange(browsertrix_part.files_key(crawl), 0, -1)
                files = [browsertrix_part.file_name(text) for text in listed]
                for found in browsertrix_part.scan(client, browsertrix_part.entries_key(crawl)):
                    yield from self._items(crawl, files, found)
            for crawl in sorted({*going_on} - {*committed}):
                for _ in range(client.hlen(browsertrix_part.entries_key(crawl))):
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
