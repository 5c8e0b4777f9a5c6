"""Claims: of crawlers that fetch the same new payload at once, one stores it.

Who claims a digest that nobody has stored or claimed gets a lease; the others learn who has it. A
claim ends when a capture of the digest is reported, when it is given back, when its crawl ends, or
when its lease is over: a crawler that died keeps nobody from storing the payload for longer.
"""

from __future__ import annotations

import secrets

from dedupindex.crawls.crawl import Claim, Crawl, CrawlState
from dedupindex.crawls.store import Reading, Writing
from dedupindex.digest import Digest
from dedupindex.errors import CrawlEnded
from dedupindex.index.format.cells import digest_prefix

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
