"""Claims: of crawlers that fetch the same new payload at once, one stores it.

Who claims a digest that nobody has stored or claimed gets a lease; the others learn who has it. A
claim ends when a capture of the digest is reported, when it is given back, when its crawl ends, or
when its lease is over: a crawler that died keeps nobody from storing the payload for longer.
"""

from __future__ import annotations

import json
import secrets
import struct
from typing import NamedTuple

from dedupindex.crawls.crawl import Crawl, State
from dedupindex.crawls.store import Reading, Writing
from dedupindex.digest import Digest
from dedupindex.errors import CrawlEnded
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


def _key(digest: Digest, namespace: str) -> bytes:
    """Crawls of different namespaces do not see what the others store, nor wait for it."""
    return digest_prefix(digest) + namespace.encode()


def claim_of(reading: Reading, digest: Digest, now: int, namespace: str = "") -> Claim | None:
    """The claim on a digest at a time in milliseconds, None if there is none or it is over.

    That of a crawl that has ended is over too: it will not report the payload any more.
    """
    value = reading.txn.get(_key(digest, namespace), db=reading.trees.claims)
    if value is None:
        return None
    crawl, until, token = _CLAIM.unpack(value)
    if until <= now or not _is_open(reading, crawl):
        return None
    return Claim(crawl, until, token.hex())


def _is_open(reading: Reading, number: int) -> bool:
    value = reading.txn.get(number.to_bytes(4, "big"), db=reading.trees.crawls)
    return value is not None and Crawl.restored(json.loads(bytes(value))).state is State.OPEN


def require_open(crawl: Crawl) -> None:
    """Raise `CrawlEnded` if a crawl cannot claim any more."""
    if crawl.state is not State.OPEN:
        raise CrawlEnded(f"crawl {crawl.name} is {crawl.state.value}: it can claim nothing")


def claim(
    writing: Writing, crawl: Crawl, digest: Digest, now: int, lease: int, token: bytes = b""
) -> tuple[Claim, bool]:
    """The claim on a digest, and whether it is the asker's; raises `CrawlEnded`.

    One that is made now lasts for `lease` seconds. A claimant that brings its own `token`, of 16
    bytes, may ask again when the answer was lost: the claim that it then finds is its own.
    """
    require_open(crawl)
    held = claim_of(writing, digest, now, crawl.namespace)
    if held is not None:
        mine = held.crawl == crawl.number and secrets.compare_digest(held.token, token.hex())
        return held, mine
    token = token or secrets.token_bytes(16)
    until = now + 1000 * min(lease, LONGEST)
    value = _CLAIM.pack(crawl.number, until, token)
    writing.txn.put(_key(digest, crawl.namespace), value, db=writing.trees.claims)
    return Claim(crawl.number, until, token.hex()), True


def release(writing: Writing, digest: Digest, token: str) -> bool:
    """Give a claim back; whether there was one with this token."""
    prefix, sought = digest_prefix(digest), token.lower().encode("utf-8", "surrogatepass")
    with writing.txn.cursor(db=writing.trees.claims) as cursor:
        if cursor.set_range(prefix):
            for key, value in cursor:
                if not bytes(key).startswith(prefix):
                    break
                held = _CLAIM.unpack(value)[2].hex().encode()  # text beyond ASCII would raise
                if secrets.compare_digest(held, sought):
                    return bool(cursor.delete())
    return False


def fulfil(writing: Writing, crawl: Crawl, digest: Digest) -> None:
    """End the claim of a crawl on a digest of which it has reported a capture."""
    key = _key(digest, crawl.namespace)
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
