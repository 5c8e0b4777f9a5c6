"""The list of digests that were lately added to an index on a cluster, for the filters of servers.

Whoever stores captures first lists their digests in the table ``added``, in the epoch that he has
read in the row ``epochs`` of ``about``. Servers with a filter begin an epoch every `EPOCH` seconds,
which is a random token behind those of the epochs before, and read what is listed. Without such a
server there is no epoch, and nothing is listed.

Why nothing is missed, whatever the clocks of the machines say, if all reads and writes here are of
a majority of the replicas:

* A writer acknowledges nothing unless at most `LATEST` seconds have passed since he asked for the
  epoch in which he has listed; else he reads it anew, and lists again in another epoch. So an epoch
  gets nothing that counts later than `LATEST` seconds after a server has seen the next one.
* Who writes without an epoch, because there is none, asks again in the same way. So what is stored
  `LATEST` seconds after a server has begun an epoch is listed, and what was stored before can be
  read then.
* All digests of a report or load are listed, also those that are there: who stored them may have
  been killed before he knew of the epoch.
* Rows expire after `LISTED` seconds. A server that was away for more than `AWAY` seconds, or does
  not find the last epoch that it knows, has missed something, and reads the whole index again.
"""

from __future__ import annotations

import json
import random
import secrets
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import product
from typing import Any, NamedTuple

from dedupindex.digest_filter import key_of
from dedupindex.errors import IndexUnavailable
from dedupindex.index.engine import clock
from dedupindex.index.engines.cassandra.cql import (
    Call,
    Session,
    Statement,
    Use,
    execute_conditional,
)
from dedupindex.index.format.cells import sealed, sealed_text, unsealed, unsealed_text

EPOCH = 10.0  # seconds after which a server begins the next epoch
LATEST = 3.0  # seconds after which a writer asks for the epoch again
KNOWN = 1.0  # seconds that a writer goes without asking
EPOCHS = 180  # that the row has
AWAY = 900.0
LISTED = 6 * 3600
UNUSED = 3600  # seconds after which the last epoch is gone, if no server begins another
PARTS = 8  # of an epoch's list
KEY = 9  # bytes of a digest in the list: its algorithm, and those by which filters know it

_KEYS = 1000  # of a row
_ID = 16  # bytes, random
_TRIES = 20
_ROW = "epochs"
_EPOCHS = Statement("SELECT value FROM KS.about WHERE name = ?", Use.QUORUM)
_EPOCHS_SERIAL = _EPOCHS._replace(use=Use.SERIAL)
_CREATE = Statement(
    "INSERT INTO KS.about (name, value) VALUES (?, ?) IF NOT EXISTS USING TTL ?", Use.CONDITIONAL
)
_CHANGE = Statement(
    "UPDATE KS.about USING TTL ? SET value = ? WHERE name = ? IF value = ?", Use.CONDITIONAL
)
_LIST = Statement(
    "INSERT INTO KS.added (epoch, part, id, keys) VALUES (?, ?, ?, ?) USING TTL ?", Use.QUORUM
)
_LISTED = Statement("SELECT id, keys FROM KS.added WHERE epoch = ? AND part = ?", Use.QUORUM)


class Missed(IndexUnavailable):
    """A filter no longer knows all that was added: it must be made anew."""


class Epoch(NamedTuple):
    """The last epoch as a writer has read it."""

    token: bytes  # b"": there is none
    asked: float  # when, by `clock`


def _no_filter(starts: Collection[bytes]) -> None:
    return


class AddedDigests:
    """Lists what a process adds, for all its threads."""

    def __init__(
        self, session: Session, attempt: Callable[[Callable[[], Any]], Any] = lambda work: work()
    ) -> None:
        """`attempt` calls what reads or writes, perhaps again if that fails."""
        self._session, self._attempt = session, attempt
        self._known = Epoch(b"", float("-inf"))
        self.share: Callable[[Collection[bytes]], None] = _no_filter
        """Is called with what is about to be stored: the filter of this process, if it has one."""

    @contextmanager
    def listing(self, starts: Collection[bytes]) -> Iterator[None]:
        """List digests; the block stores them, and they may be acknowledged after its end.

        `starts` are the digests' parts of keys. Raises `IndexUnavailable`.
        """
        if not starts:
            yield
            return
        epoch = self._known
        if clock() - epoch.asked > KNOWN:
            epoch = self._read()
        self._list(starts, epoch)
        self.share(starts)
        yield
        while clock() - epoch.asked > LATEST:
            before, epoch = epoch, self._read()
            if epoch.token != before.token:
                self._list(starts, epoch)

    def _read(self) -> Epoch:
        asked = clock()
        stored = self._attempt(partial(stored_epochs, self._session))
        epoch = self._known = Epoch(epochs_in(stored)[-1] if stored else b"", asked)
        return epoch

    def _list(self, starts: Collection[bytes], epoch: Epoch) -> None:
        if not epoch.token:
            return
        keys = sorted({start[:KEY] for start in starts})
        calls = [_listed(epoch.token, keys[at : at + _KEYS]) for at in range(0, len(keys), _KEYS)]
        self._attempt(lambda: list(self._session.execute_many(calls)))


def _listed(epoch: bytes, keys: list[bytes]) -> Call:
    row = secrets.token_bytes(_ID)
    return _LIST, (epoch, row[0] % PARTS, row, sealed(epoch + row, b"".join(keys)), LISTED)


def stored_epochs(session: Session) -> str | None:
    """Return the row of epochs as it is stored, None if there is none."""
    rows = session.execute(_EPOCHS, _ROW)
    return rows[0][0] if rows and rows[0][0] is not None else None


def epochs_in(stored: str) -> list[bytes]:
    """Return the tokens of a row, the last epoch last; raises `Damaged`."""
    return [bytes.fromhex(token) for token in json.loads(unsealed_text(_ROW.encode(), stored))]


def begin_epoch(session: Session, stored: str | None) -> bytes | None:
    """Begin an epoch after those of a row; return its token, None if another server did so."""
    token = secrets.token_bytes(8)
    before = epochs_in(stored) if stored else []
    tokens = [one.hex() for one in [*before, token][-EPOCHS:]]
    value = sealed_text(_ROW.encode(), json.dumps(tokens))
    call: Call = _CREATE, (_ROW, value, UNUSED)
    if stored:
        call = _CHANGE, (UNUSED, value, _ROW, stored)
    back = _EPOCHS_SERIAL, (_ROW,)
    done = execute_conditional(session, call, back, lambda row: row[0] == value)
    return token if done.applied else None


def join_epochs(session: Session) -> bytes:
    """Begin an epoch, from which on all that is listed can be read; return its token."""
    for _ in range(_TRIES):
        if token := begin_epoch(session, stored_epochs(session)):
            return token
    raise IndexUnavailable("other servers are beginning epochs; this is tried again")


class AddedTail:
    """What is listed from an epoch on, as one server reads it."""

    def __init__(self, session: Session, first: bytes) -> None:
        self._session = session
        self._ends: dict[bytes, float | None] = {first: None}
        """The epochs that may still get more; with when the next one was seen, None if none was."""
        self._last, self._due = first, clock() + _until_next()
        self._complete = clock()  # when it was last read to its end

    def read(self) -> Iterator[list[int]]:
        """Yield the keys of all that was listed before the call, some of them again.

        Raises `Missed`, `IndexUnavailable`, `Damaged`.
        """
        began = clock()
        if began - self._complete > AWAY:
            raise Missed("the cluster was not reached for too long")
        self._follow()
        parts = list(product(self._ends, range(PARTS)))
        rows_of = self._session.execute_many((_LISTED, part) for part in parts)
        for (epoch, _), rows in zip(parts, rows_of, strict=True):
            for row, keys in rows:
                listed = unsealed(epoch + bytes(row), bytes(keys))
                yield [key_of(listed[at + 1 : at + KEY]) for at in range(0, len(listed), KEY)]
        ended = [one for one, end in self._ends.items() if end and began - end > LATEST]
        for epoch in ended:
            del self._ends[epoch]
        self._complete = began

    def _follow(self) -> None:
        """Read which epochs there are, and begin the next one if it is time."""
        stored = stored_epochs(self._session)
        known = epochs_in(stored) if stored else []
        if self._last not in known:
            raise Missed("the list of what was added is another one")
        seen = clock()
        for epoch in known[known.index(self._last) + 1 :]:
            self._ends[self._last] = seen
            self._ends[epoch] = None
            self._last, self._due = epoch, seen + _until_next()
        if seen > self._due:
            with suppress(IndexUnavailable):
                begin_epoch(self._session, stored)  # it is known when it is read


def _until_next() -> float:
    """Return the seconds that a server waits for another to begin an epoch."""
    return random.uniform(EPOCH, 1.5 * EPOCH)
