"""The captures of crawls, inside a transaction: added, taken away, read.

Of two captures of one crawl with the same URL and digest the one that `settle.Rule` prefers stays,
so that a capture may be reported any number of times, in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from dedupindex.capture import Capture
from dedupindex.crawls.claims import fulfil
from dedupindex.crawls.crawl import Crawl, CrawlState
from dedupindex.crawls.store import Reading, Writing
from dedupindex.digest import Digest
from dedupindex.errors import CrawlEnded
from dedupindex.index.format.cells import ALSO, Keys, decode, encode, entries_of
from dedupindex.index.identity import Settings
from dedupindex.index.load.merge_rule import MergeOutcome, MergeRule, mark_before, mark_each


@dataclass
class Added:
    """What became of captures that were reported, one by one and in all."""

    added: int = 0
    unchanged: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    results: list[str] = field(default_factory=list)  # "added", "unchanged", or why refused
    held: list[Capture] = field(default_factory=list)  # that were not held before


def add(
    writing: Writing,
    crawl: Crawl,
    captures: Sequence[Capture],
    settings: Settings,
    judge: Callable[[Capture], str],
) -> Added:
    """Take captures of an open crawl; raises `CrawlEnded`."""
    if crawl.state is not CrawlState.OPEN:
        raise CrawlEnded(f"crawl {crawl.name} is {crawl.state.value}: nothing can be added to it")
    rule = MergeRule(settings.keys(), settings.keep == "latest", writing.place_of)
    done, held, size = Added(), 0, 0
    writing.expect(crawl, partial(_keys, captures, rule.keys), partial(_digests, captures))
    for capture in captures:
        if capture.covers == 0 and crawl.covers:
            capture = capture._replace(covers=crawl.covers)
        for digest in (capture.digest, *capture.also):  # stored, even where it may be no original
            fulfil(writing, crawl, digest)
        reason = judge(capture)
        if reason:
            done.refused[reason] = done.refused.get(reason, 0) + 1
            done.results.append(reason)
            continue
        changed, more = _put(writing, crawl, capture, rule, settings)
        done.added += changed
        done.unchanged += not changed
        done.results.append("added" if changed else "unchanged")
        held += more
        if more:
            done.held.append(capture)
        size += max(capture.size, 0) * more
    if held:
        writing.count(crawl, held, size)
    return done


def _digests(captures: Sequence[Capture]) -> list[Digest]:
    return [digest for capture in captures for digest in (capture.digest, *capture.also)]


def _keys(captures: Sequence[Capture], keys: Keys) -> list[bytes]:
    """Under which all of them stand."""
    return [keys.of(digest, one.url) for one in captures for digest in (one.digest, *one.also)]


def _put(
    writing: Writing, crawl: Crawl, capture: Capture, rule: MergeRule, settings: Settings
) -> tuple[bool, int]:
    """Whether something changed, and how many captures there are more."""
    number = writing.number_of(capture.container)
    for digest in capture.also:
        entry = encode(capture, number, etag=settings.etag, also=True)
        _put_entry(writing, crawl, rule.keys.of(digest, capture.url), entry, rule)
    entry = encode(capture, number, etag=settings.etag)
    key = rule.keys.of(capture.digest, capture.url)
    writing.list_url(key)
    return _put_entry(writing, crawl, key, entry, rule)


def _put_entry(
    writing: Writing, crawl: Crawl, key: bytes, entry: bytes, rule: MergeRule
) -> tuple[bool, int]:
    before = writing.cell(key, crawl)
    if before is None:
        writing.put_cell(key, crawl, entry)
        return True, 1
    after = rule.settle(key, [*mark_before(before), entry], MergeOutcome())
    if after is None or after == before:
        return False, 0
    writing.put_cell(key, crawl, after)
    more = len(list(entries_of(after))) - len(list(entries_of(before)))
    return True, more


def put_back(
    writing: Writing, crawl: Crawl, key: bytes, gone: list[bytes], rule: MergeRule
) -> None:
    """Take entries out of a cell that a crawl has, and leave the others."""
    before = writing.cell(key, crawl)
    stay = [entry for entry in entries_of(before) if entry not in gone] if before else []
    cell = rule.settle(key, mark_each(stay), MergeOutcome()) if stay else None
    if cell is None:
        writing.drop_cell(key, crawl)
    else:
        writing.put_cell(key, crawl, cell)
    sizes = [decode(key, entry, writing.place_of).size for entry in gone]
    writing.count(crawl, -len(gone), -sum(size for size in sizes if size > 0))


class CrawlCapture(NamedTuple):
    """A capture of a crawl, with the digest that it stands under."""

    crawl: int  # number
    key: bytes
    entry: bytes

    def capture(self, reading: Reading, crawl: str) -> Capture:
        """The capture itself; `crawl` is its crawl's name."""
        return decode(self.key, self.entry, reading.place_of)._replace(crawl=crawl)


def under(reading: Reading, prefix: bytes) -> Iterator[CrawlCapture]:
    """All that crawls have under the keys that begin so, in the order of keys."""
    for key, crawl, cell in reading.cells(prefix):
        for entry in entries_of(cell):
            yield CrawlCapture(crawl, key, entry)


def of_crawl(reading: Reading, crawl: Crawl) -> Iterator[CrawlCapture]:
    """All captures of a crawl, in the order of keys."""
    for key, number, cell in reading.cells_of(crawl):
        for entry in entries_of(cell):
            yield CrawlCapture(number, key, entry)


def at_url(reading: Reading, sought: bytes) -> Iterator[CrawlCapture]:
    """All that crawls have whose keys, after their own digest, begin so."""
    for prefix in reading.listed(sought):
        for found in under(reading, prefix):
            if not found.entry[1] & ALSO:
                yield found
