"""The captures of crawls, inside a transaction: added, taken away, read.

Of two captures of one crawl with the same URL and digest the one that `settle.Rule` prefers stays,
so that a capture may be reported any number of times, in any order.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from dedupindex.capture import Capture
from dedupindex.crawls.crawl import Claim, Crawl, CrawlState
from dedupindex.crawls.store import Reading, Writing
from dedupindex.digest import Digest
from dedupindex.errors import CrawlEnded
from dedupindex.index.format.cells import ALSO, Keys, decode, digest_prefix, encode, entries_of
from dedupindex.index.identity import Settings
from dedupindex.index.load.merge_rule import MergeOutcome, MergeRule, mark_before, mark_each

# Claims: of crawlers that fetch the same new payload at once, one stores it.

LEASE = 60  # seconds, unless the claimant wants another
LONGEST = 3600


def claim_of(reading: Reading, digest: Digest, now: int, namespace: str = "") -> Claim | None:
    """The claim on a digest at a time in milliseconds, None if there is none or it is over.

    Crawls of different namespaces do not see what the others store, nor wait for it.
    """
    for where, claim in reading.claims(digest_prefix(digest)):
        if where == namespace and not _over(reading, claim, now):
            return claim
    return None


def _over(reading: Reading, claim: Claim, now: int) -> bool:
    """That of a crawl that has ended is over too: it will not report the payload any more."""
    if claim.until <= now:
        return True
    crawl = reading.numbered(claim.crawl)
    return crawl is None or crawl.state is not CrawlState.OPEN


def require_open(crawl: Crawl) -> None:
    """Raise `CrawlEnded` if a crawl cannot claim any more."""
    if crawl.state is not CrawlState.OPEN:
        raise CrawlEnded(f"crawl {crawl.name} is {crawl.state.value}: it can claim nothing")


def claim(
    writing: Writing, crawl: Crawl, digest: Digest, now: int, lease: int, token: bytes = b""
) -> tuple[Claim, bool]:
    """The claim on a digest, and whether it is the asker's; raises `CrawlEnded`.

    One that is made now lasts for `lease` seconds. A claimant that brings its own `token`, of 16
    bytes, may ask again when the answer was lost: the claim that it then finds is its own.
    """
    require_open(crawl)
    token, lease = token or secrets.token_bytes(16), min(lease, LONGEST)
    wanted = Claim(crawl.number, now + 1000 * lease, token.hex())

    def over(held: Claim) -> bool:
        return _over(writing, held, now)

    held = writing.claim(digest_prefix(digest), crawl.namespace, wanted, lease, over)
    mine = held.crawl == crawl.number and secrets.compare_digest(held.token, wanted.token)
    return held, mine


def release(writing: Writing, digest: Digest, token: str) -> bool:
    """Give a claim back; whether there was one with this token."""
    prefix, sought = digest_prefix(digest), token.lower().encode("utf-8", "surrogatepass")

    def wanted(claim: Claim) -> bool:
        held = claim.token.encode()  # text beyond ASCII would raise
        return secrets.compare_digest(held, sought)

    spaces = [namespace for namespace, claim in writing.claims(prefix) if wanted(claim)]
    return any([writing.free(prefix, namespace, wanted) for namespace in spaces])


def fulfil(writing: Writing, crawl: Crawl, digest: Digest) -> None:
    """End the claim of a crawl on a digest of which it has reported a capture."""
    number = crawl.number
    writing.free(digest_prefix(digest), crawl.namespace, lambda claim: claim.crawl == number)


def sweep(writing: Writing, now: int) -> int:
    """Take claims away that are over; how many."""
    return writing.sweep_claims(now)


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
