"""Captures by URL alone, on a cluster: a further table, for an index with the setting `by_url`.

    url   part: of a capture's key the first bytes after the digest, rest: those that follow, and
          dk: the digest. See `byurl`, of which it has all but the order: a row leads to a
          partition of captures, and that decides. One whose capture is gone does no harm.

Each row that is found costs a read of its digest's partition: fewer are looked at than in a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from dedupindex.index.engines.cassandra.cassandra_schema import Statements
from dedupindex.index.engines.cassandra.cql import Session, Statement
from dedupindex.index.format.cells import DIGEST_KEY

LOOKED_AT = 5_000  # keys, about a second
AT_ONCE = 500  # of their digests that are read side by side
_PART = 4  # bytes: with canonical URLs what all URLs of a urlkey have in common
_BEYOND = b"\xff" * 16

_Asked = tuple[Statement, Sequence[Any]]


def row_of(key: bytes) -> tuple[bytes, bytes, bytes]:
    """Where a capture's key is listed."""
    end = DIGEST_KEY[key[0]]
    return key[end : end + _PART], key[end + _PART :], key[:end]


def listing(on: Statements, key: bytes) -> _Asked:
    """What lists a capture's key; nothing changes if it is listed."""
    return on.put_url, row_of(key)


def keys_at(session: Session, on: Statements, sought: bytes) -> Iterator[bytes]:
    """The keys that are listed and whose tail, after the digest, begins with `sought`.

    Looks at no more than `LOOKED_AT`.
    """
    part, rest = sought[:_PART], sought[_PART:]
    for found, dk in session.execute(on.urls, part, rest, rest + _BEYOND, LOOKED_AT):
        yield bytes(dk) + part + bytes(found)


def missing(session: Session, on: Statements, keys: Sequence[bytes]) -> Iterable[bytes]:
    """Of keys those that are not listed."""
    found = session.execute_many((on.url, row_of(key)) for key in keys)
    return (key for key, rows in zip(keys, found, strict=True) if not rows)
