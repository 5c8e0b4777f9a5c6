"""The ledger of an index on a cluster: copies and revisits, the items of `format.ledger`.

A digest is a partition of the table ``ledger``, as of ``capture``: scans of both come in one order.

    dk, rest   the key, as in ``capture``
    id         the first bytes of the body, so that copies come before revisits and these come by
               date; and a hash of the body
    body       with its checksum

A load writes what it brings, and what loses to its captures, before the captures; it removes what
it drops after them. A killed load leaves at most items that are in ``capture``, too, or that their
tombstones refuse. Visits are not kept.

An index that another version has loaded may lack items. The row ``ledger`` of ``about`` has the
timestamps of the load up to which it has all, and of the one that is about to end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from xxhash import xxh3_128_digest

from dedupindex.index.engine import IndexedContainer, Load
from dedupindex.index.engines.cassandra.cassandra_schema import has_table
from dedupindex.index.engines.cassandra.cql import Call, Session, Statement, Use
from dedupindex.index.engines.cassandra.metadata import About, IndexState
from dedupindex.index.format import cells
from dedupindex.index.format.cells import Keys, split_key
from dedupindex.index.format.ledger import Drops
from dedupindex.index.format.visits import CODE

_ROW = "ledger"  # of ``about``
_FIRST = 13  # bytes of a body: kind and dates of a revisit
_BEYOND = b"\xff" * 16  # greater than the rest of any key
_ALL = Statement("SELECT dk, rest, id, body FROM KS.ledger")
_SOME = Statement("SELECT dk FROM KS.ledger LIMIT 1")
_BETWEEN = Statement(
    "SELECT dk, rest, id, body FROM KS.ledger WHERE dk = ? AND rest >= ? AND rest <= ?"
)
_FIRST_OF = Statement("SELECT id FROM KS.ledger WHERE dk = ? LIMIT 1")
_PUT = Statement(
    "INSERT INTO KS.ledger (dk, rest, id, body) VALUES (?, ?, ?, ?) USING TIMESTAMP ?", Use.WRITE
)
_REMOVE = Statement(
    "DELETE FROM KS.ledger USING TIMESTAMP ? WHERE dk = ? AND rest = ? AND id = ?", Use.WRITE
)


def has_items(session: Session) -> bool:
    return has_table(session, "ledger") and bool(session.execute(_SOME))


def unordered(session: Session) -> Iterator[bytes]:
    """Yield all items, those of a digest together and in order; raises `Damaged`."""
    if has_table(session, "ledger"):
        for page in session.scan(_ALL):
            for dk, rest, _, body in page:
                yield dk + rest + cells.unsealed(dk + rest, body)


def of_prefix(session: Session, prefix: bytes) -> Iterator[bytes]:
    """Yield the items under a digest, and a part of the rest of keys; raises `Damaged`."""
    start, begin = split_key(prefix)
    if has_table(session, "ledger"):
        for page in session.scan(_BETWEEN, start, begin, begin + _BEYOND):
            for dk, rest, _, body in page:
                yield dk + rest + cells.unsealed(dk + rest, body)


def has_digests(session: Session, prefixes: Sequence[bytes]) -> Iterator[bool]:
    """Yield whether there are items under each digest, many side by side."""
    calls = ((_FIRST_OF, (prefix,)) for prefix in prefixes)
    return map(bool, session.execute_many(calls))


def problems(session: Session) -> list[str]:
    """Read all items; return what is wrong with them, a sentence each."""
    if not has_table(session, "ledger"):
        return []
    return [
        f"of the ledger: {cells.damaged(dk + rest)}"
        for page in session.scan(_ALL)
        for dk, rest, _, body in page
        if not cells.is_sound(dk + rest, body)
    ]


class LedgerTable:
    """What one load writes to the ledger, and removes from it."""

    def __init__(self, session: Session, keys: Keys, written: int) -> None:
        """`written`: the timestamp of removals; the next one is that of what is written."""
        self._session, self._lengths, self._written = session, keys.lengths(), written

    def puts(self, items: Iterable[bytes]) -> list[Call]:
        """Return the calls that write items, without visits."""
        calls = list[Call]()
        for item in items:
            if item[:1] != CODE:
                end = self._lengths[item[0]]
                key, body = item[:end], item[end:]
                row = (*split_key(key), body[:_FIRST] + xxh3_128_digest(body))
                calls.append((_PUT, (*row, cells.sealed(key, body), self._written + 1)))
        return calls

    def removals(self, drops: Drops) -> Iterator[list[Call]]:
        """Yield the calls that remove items, but none that this load has written."""
        for page in self._session.scan(_ALL):
            yield [
                (_REMOVE, (self._written, *row))
                for *row, body in page
                if drops(row[0] + row[1], cells.unsealed(row[0] + row[1], body))
            ]


# --- whether it has all ---------------------------------------------------------------------------


def is_whole(about: About, state: IndexState) -> bool:
    """Return whether the ledger has all that was loaded."""
    return state.written in (about.get(_ROW) or ())


class Completeness(NamedTuple):
    """Whether the ledger had all before a load."""

    before: int  # timestamp of the load before
    whole: bool

    @classmethod
    def of(cls, about: About, state: IndexState, load: Load) -> Completeness:
        """Return that of an index before a load begins."""
        return cls(state.written, not state.generation or is_whole(about, state))

    def write(
        self, about: About, load: Load, registered: Iterable[IndexedContainer], written: int
    ) -> None:
        """Write, before the state, that the ledger has all up to a load, if it does.

        It also does if the load has read all files of the index, `registered`, again.
        """
        if load.ledger_lacks:
            return
        read = {container.name for container in load.containers}
        if self.whole or (read and all(one.name in read or one.purged for one in registered)):
            about.put(_ROW, [self.before, written], written)
