"""Captures and claims of crawls, inside a transaction.

Of captures of one crawl with the same URL and digest, the one that `MergeRule` prefers is kept, so
a capture may be reported any number of times, in any order.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dedupindex.capture import Capture, Evidence
from dedupindex.crawls.crawl import Claim, Crawl, CrawlState
from dedupindex.crawls.store import Held, Reading, Writing
from dedupindex.digest import Digest
from dedupindex.errors import CrawlEnded
from dedupindex.index.format.cells import ALSO, decode, digest_prefix, encode, entries_of
from dedupindex.index.format.visits import Visit
from dedupindex.index.identity import Settings
from dedupindex.index.load.merge_rule import MergeOutcome, MergeRule, mark_before, mark_each

# --- claims: of crawlers that fetch the same new payload at the same time, one stores it ---------

LEASE = 60  # seconds, by default
LONGEST = 3600


def _over(reading: Reading, claim: Claim, now: int) -> bool:
    """Return whether a claim has expired, or its crawl has ended and will report nothing more."""
    if claim.until <= now:
        return True
    crawl = reading.crawl_numbered(claim.crawl)
    return crawl is None or crawl.state is not CrawlState.OPEN


def require_open(crawl: Crawl) -> None:
    """Raise `CrawlEnded` if a crawl has ended."""
    if crawl.state is not CrawlState.OPEN:
        raise CrawlEnded(f"crawl {crawl.name} is {crawl.state.value}: it can claim nothing")


def claim(
    writing: Writing, crawl: Crawl, digest: Digest, now: int, lease: int, token: bytes = b""
) -> tuple[Claim, bool]:
    """Claim a digest for `lease` seconds; return the claim that holds, and whether it is this one.

    A claimant that passes its own `token` of 16 bytes may repeat a request whose answer was lost:
    it is then given its first claim. Raises `CrawlEnded`.
    """
    require_open(crawl)
    token, lease = token or secrets.token_bytes(16), min(lease, LONGEST)
    wanted = Claim(crawl.number, now + 1000 * lease, token.hex())

    def ended(held: Claim) -> bool:
        return _over(writing, held, now)

    held = writing.claim(digest_prefix(digest), crawl.namespace, wanted, lease, ended)
    mine = held.crawl == crawl.number and secrets.compare_digest(held.token, wanted.token)
    return held, mine


def release(writing: Writing, digest: Digest, token: str) -> bool:
    """Give a claim back; return whether there was one with this token."""
    prefix, sought = digest_prefix(digest), token.lower().encode("utf-8", "surrogatepass")

    def wanted(claim: Claim) -> bool:
        held = claim.token.encode()  # text beyond ASCII would raise
        return secrets.compare_digest(held, sought)

    spaces = [namespace for namespace, claim in writing.claims(prefix) if wanted(claim)]
    return any([writing.free_claim(prefix, namespace, wanted) for namespace in spaces])


def fulfil(writing: Writing, crawl: Crawl, digest: Digest) -> None:
    """End the claim of a crawl on a digest that it has stored."""
    number = crawl.number
    writing.free_claim(digest_prefix(digest), crawl.namespace, lambda claim: claim.crawl == number)


# --- captures ---------------------------------------------------------------------------------


@dataclass
class Added:
    """What became of reported captures."""

    added: int = 0
    unchanged: int = 0
    revisits: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    results: list[str] = field(default_factory=list)  # added, unchanged, revisit or the reason
    held: list[Capture] = field(default_factory=list)  # captures that were not held before
    refused_captures: list[Capture] = field(default_factory=list)  # may have been reported before
    not_modified: list[Capture] = field(default_factory=list)  # revisits that were not fetched


def add(
    writing: Writing,
    crawl: Crawl,
    captures: Sequence[Capture],
    settings: Settings,
    refusal_reason: Callable[[Capture], str],
) -> Added:
    """Add captures without a `refusal_reason` to an open crawl; raises `CrawlEnded`.

    Of revisits (`Evidence.REVISIT`), and of what is refused, only the visit is kept.
    """
    if crawl.state is not CrawlState.OPEN:
        raise CrawlEnded(f"crawl {crawl.name} is {crawl.state.value}: nothing can be added to it")
    rule = MergeRule(settings.keys(), settings.keep == "latest", writing.container_ref)
    done, size = Added(), 0
    writing.prefetch(crawl, rule.keys, captures)
    claimed = writing.has_claims()
    numbers = _NumbersByName(writing)
    for capture in captures:
        later = settings.etag and settings.url_index and _put_visit(writing, crawl, capture, rule)
        if capture.evidence == Evidence.REVISIT:
            done.revisits += 1
            done.results.append("revisit")
            if later and capture.status == 304:
                done.not_modified.append(capture)
            continue
        if capture.covers == 0 and crawl.covers:
            capture = capture._replace(covers=crawl.covers)
        if claimed:
            for digest in (capture.digest, *capture.also):  # stored, even if it may be no original
                fulfil(writing, crawl, digest)
        if reason := refusal_reason(capture):
            done.refused[reason] = done.refused.get(reason, 0) + 1
            done.refused_captures.append(capture)
            done.results.append(reason)
            continue
        changed, new = _put(writing, crawl, capture, numbers[capture.container], rule, settings)
        done.added += changed
        done.unchanged += not changed
        done.results.append("added" if changed else "unchanged")
        if new:
            done.held.append(capture)
            size += max(capture.size, 0)
    if done.held:
        writing.count(crawl, len(done.held), size)
    return done


def _put_visit(writing: Writing, crawl: Crawl, capture: Capture, rule: MergeRule) -> bool:
    return writing.put_visit(rule.keys.tail(capture.url), crawl, Visit.of(capture).body())


class _NumbersByName(dict[str, int]):
    """The numbers of containers: the captures of a report lie in one or two."""

    def __init__(self, writing: Writing) -> None:
        super().__init__()
        self._writing = writing

    def __missing__(self, name: str) -> int:
        number = self[name] = self._writing.number_of(name)
        return number


def _put(
    writing: Writing,
    crawl: Crawl,
    capture: Capture,
    number: int,
    rule: MergeRule,
    settings: Settings,
) -> tuple[bool, bool]:
    """Store a capture; return whether anything changed, and whether it is one more."""
    for digest in capture.also:
        entry = encode(capture, number, etag=settings.etag, also=True)
        _put_entry(writing, crawl, rule.keys.key_of(digest, capture.url), entry, rule)
    entry = encode(capture, number, etag=settings.etag)
    key = rule.keys.key_of(capture.digest, capture.url)
    writing.list_url(key)
    return _put_entry(writing, crawl, key, entry, rule)


def _put_entry(
    writing: Writing, crawl: Crawl, key: bytes, entry: bytes, rule: MergeRule
) -> tuple[bool, bool]:
    before = writing.cell(key, crawl)
    if before is None:
        writing.put_cell(key, crawl, entry)
        return True, True
    after = rule.settle(key, [*mark_before(before), entry], MergeOutcome())
    if after is None or after == before:
        return False, False
    writing.put_cell(key, crawl, after)
    return True, len(list(entries_of(after))) > len(list(entries_of(before)))


def drop_entries(
    writing: Writing, crawl: Crawl, key: bytes, gone: list[bytes], rule: MergeRule
) -> None:
    """Remove entries from the cell that a crawl has under a key.

    Its counts stay: they say what it has stored, also when it has been merged and swept.
    """
    before = writing.cell(key, crawl)
    rest = [entry for entry in entries_of(before) if entry not in gone] if before else []
    cell = rule.settle(key, mark_each(rest), MergeOutcome()) if rest else None
    if cell is None:
        writing.drop_cell(key, crawl)
    else:
        writing.put_cell(key, crawl, cell)


class CrawlCapture(NamedTuple):
    """A capture of a crawl as it is stored."""

    crawl: int  # number
    key: bytes
    entry: bytes

    def capture(self, reading: Reading, crawl: str) -> Capture:
        """Return the capture; `crawl` is the name of its crawl."""
        return decode(self.key, self.entry, reading.container_ref)._replace(crawl=crawl)


def with_prefix(reading: Reading, prefix: bytes) -> Iterator[CrawlCapture]:
    """Yield the captures of crawls whose keys have a prefix, in the order of keys."""
    return _captures_in(reading.cells(prefix))


def from_key(reading: Reading, begin: bytes) -> Iterator[CrawlCapture]:
    """Yield the captures of crawls from the key `begin` on, in the order of keys."""
    return _captures_in(reading.cells_from(begin))


def of_crawl(reading: Reading, crawl: Crawl) -> Iterator[CrawlCapture]:
    """Yield the captures of a crawl, in the order of keys."""
    return _captures_in(reading.cells_of(crawl))


def _captures_in(cells: Iterator[Held]) -> Iterator[CrawlCapture]:
    for key, crawl, cell in cells:
        for entry in entries_of(cell):
            yield CrawlCapture(crawl, key, entry)


def at_url(reading: Reading, tail: bytes) -> Iterator[CrawlCapture]:
    """Yield captures of crawls whose keys, after their own digest, begin with `tail`."""
    for prefix in reading.keys_by_url(tail):
        for found in with_prefix(reading, prefix):
            if not found.entry[1] & ALSO:
                yield found
