"""Claims: of crawlers that fetch the same new payload at once, one stores it.

Who claims a digest that nobody has stored or claimed gets a lease; the others learn who has it. A
claim ends when a capture of the digest is reported, when it is given back, or when its lease is
over: a crawler that died keeps nobody from storing the payload for longer than that.
"""

from __future__ import annotations

import secrets
import struct
from typing import NamedTuple

from dedupindex.crawls.crawl import Crawl
from dedupindex.crawls.store import Reading, Writing
from dedupindex.digest import Digest
from dedupindex.index.cells import digest_prefix

LEASE = 60  # seconds, unless the claimant wants another
LONGEST = 3600
_CLAIM = struct.Struct(">IQ16s")  # crawl, end in milliseconds since 1970, token
_SWEPT = 1000  # claims that are over, taken away at once


class Claim(NamedTuple):
    """Who may store a payload now."""

    crawl: int  # number
    until: int  # milliseconds since 1970
    token: str  # 32 hex digits, known to the claimant alone


def claim_of(reading: Reading, digest: Digest, now: int) -> Claim | None:
    """The claim on a digest at a time in milliseconds, None if there is none or it is over."""
    value = reading.txn.get(digest_prefix(digest), db=reading.trees.claims)
    if value is None:
        return None
    crawl, until, token = _CLAIM.unpack(value)
    return Claim(crawl, until, token.hex()) if until > now else None


def claim(
    writing: Writing, crawl: Crawl, digest: Digest, now: int, lease: int
) -> tuple[Claim, bool]:
    """The claim on a digest, and whether it was made now, for `lease` seconds."""
    held = claim_of(writing, digest, now)
    if held is not None:
        return held, False
    token = secrets.token_bytes(16)
    until = now + 1000 * min(lease, LONGEST)
    value = _CLAIM.pack(crawl.number, until, token)
    writing.txn.put(digest_prefix(digest), value, db=writing.trees.claims)
    return Claim(crawl.number, until, token.hex()), True


def release(writing: Writing, digest: Digest, token: str) -> bool:
    """Give a claim back; whether there was one with this token."""
    key = digest_prefix(digest)
    value = writing.txn.get(key, db=writing.trees.claims)
    if value is None or not secrets.compare_digest(_CLAIM.unpack(value)[2].hex(), token):
        return False
    return bool(writing.txn.delete(key, db=writing.trees.claims))


def fulfil(writing: Writing, crawl: Crawl, digest: Digest) -> None:
    """End the claim of a crawl on a digest of which it has reported a capture."""
    key = digest_prefix(digest)
    value = writing.txn.get(key, db=writing.trees.claims)
    if value is not None and _CLAIM.unpack(value)[0] == crawl.number:
        writing.txn.delete(key, db=writing.trees.claims)


def sweep(writing: Writing, now: int) -> int:
    """Take claims away that are over; how many."""
    over = []
    with writing.txn.cursor(db=writing.trees.claims) as cursor:
        for key, value in cursor:
            if _CLAIM.unpack(value)[1] <= now:
                over.append(bytes(key))
                if len(over) >= _SWEPT:
                    break
    for key in over:
        writing.txn.delete(key, db=writing.trees.claims)
    return len(over)
