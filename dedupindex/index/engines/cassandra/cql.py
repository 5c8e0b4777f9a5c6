"""What an engine on a cluster asks of its driver: a few calls.

A `Session` belongs to a process and a cluster, not to a keyspace: statements name theirs. It is
shared by all who `connect` to the same cluster in one process, and closed with the last of them.
Its threads do not outlive a fork: close it before, connect anew after.

Every error of a driver becomes `IndexUnavailable`: whoever asks cannot tell. Of a conditional
statement (a lightweight transaction) it becomes `Unclear`, since it may have been applied. All
other statements must be idempotent: the drivers send them again, to another node, when one fails.
"""

from __future__ import annotations

import os
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from dedupindex.errors import BadInput, IndexUnavailable, to_install
from dedupindex.index.address import (
    AUTHORITY,
    CERTIFICATE,
    KEY,
    NODE,
    PASSWORD,
    SCHEME,
    USER,
    Address,
)

# TLS to the nodes of a cluster, as the address and the environment have it.


class Trust(NamedTuple):
    """Who is believed, and who we are; file names, empty where there is none."""

    authority: str  # PEM: who signs the certificates of nodes; the system's where it is empty
    certificate: str  # PEM: our own
    key: str
    names: bool  # whether a certificate has to name the address of its node


def trust(address: Address, environment: Mapping[str, str]) -> Trust | None:
    """What the address and the environment ask for: nothing, if the address says no ``tls``.

    Raises `BadInput` if the environment has files that would not be used.
    """
    authority, certificate, key = (
        environment.get(name, "") for name in (AUTHORITY, CERTIFICATE, KEY)
    )
    if not address.tls:
        for name, value in ((AUTHORITY, authority), (CERTIFICATE, certificate)):
            if value:
                raise BadInput(
                    f"{name} is set, but the address has no tls, so all would go unencrypted: "
                    f"write {SCHEME}…/{address.keyspace}?tls={NODE}, or unset it"
                )
        return None
    return Trust(authority, certificate, key, address.tls == NODE)


def context(asked: Trust) -> ssl.SSLContext:
    """What the driver connects with. Raises `BadInput` for files that cannot be used."""
    try:
        found = ssl.create_default_context(cafile=asked.authority or None)
    except (OSError, ssl.SSLError) as error:
        raise _unusable(AUTHORITY, asked.authority, error) from error
    found.check_hostname = asked.names
    if asked.certificate:
        try:
            found.load_cert_chain(asked.certificate, asked.key or None)
        except (OSError, ssl.SSLError) as error:
            raise _unusable(CERTIFICATE, asked.certificate, error) from error
    return found


def _unusable(name: str, path: str, error: Exception) -> BadInput:
    reason = getattr(error, "strerror", None) or str(error)
    return BadInput(f"{path or 'no file'} ({name}): {reason}; it must be a PEM file")


Row = tuple[Any, ...]
Result = TypeVar("Result")

IN_FLIGHT = 128  # statements of one `execute_many` that wait for answers
PAGE = 1000  # rows of a scan that are fetched at once
HEDGE = 1.0  # seconds after which another node is asked what one has not answered
HEARTBEAT = 3  # seconds between two signs of life of a connection; without them it is given up
RECONNECT = 1.0  # seconds between two tries to reach a node that is down
ATTEMPTS, PAUSE = 5, 0.5  # of `patiently`; seconds before the second, doubled each time


class Use(Enum):
    """What a statement is for: it decides the consistency, and what a failure means."""

    READ = "read"
    WRITE = "write"
    CONDITIONAL = "conditional"  # IF …: a lightweight transaction
    SERIAL = "serial"  # a read that sees all lightweight transactions, and settles open ones


class Statement(NamedTuple):
    """CQL with ``?`` for values; prepared at its first use."""

    text: str
    use: Use = Use.READ


class Unclear(IndexUnavailable):
    """A conditional statement may have been applied, or not."""


class Session(Protocol):
    """A connection to a cluster, for any number of threads."""

    def execute(self, statement: Statement, *values: Any) -> list[Row]:
        """All rows. The first column of a conditional statement's row is whether it applied."""

    def execute_many(self, asked: Iterable[tuple[Statement, Sequence[Any]]]) -> Iterator[list[Row]]:
        """The rows of each, in order; some hundreds at most are sent ahead of those taken."""

    def write_many(self, statement: Statement, rows: Iterable[Sequence[Any]]) -> None:
        """Write rows, in no order, as quickly as the driver can."""

    def scan(self, statement: Statement, *values: Any) -> Iterator[list[Row]]:
        """The rows of a read of any length, a page at a time."""

    def define(self, text: str) -> None:
        """Change the schema; returns when all nodes agree on it."""

    def close(self) -> None:
        """Let go; the connection ends with the last who shares it."""


class Settled(NamedTuple):
    """What a conditional statement came to."""

    won: bool
    row: Row | None  # if not won: what `back` found in its place


def conditionally(
    session: Session,
    statement: Statement,
    values: Sequence[Any],
    back: Statement,
    back_values: Sequence[Any],
    mine: Callable[[Row], bool],
) -> Settled:
    """Execute a conditional statement, and find out what became of it.

    `back` reads, at SERIAL, what it would have written, and `mine` says whether that is it: an
    outcome may be unknown, and a driver that sends a statement twice meets its own first try.
    Where nothing is there (`row` None) it was not applied. Raises `IndexUnavailable` when even
    that cannot be told.
    """
    try:
        rows = session.execute(statement, *values)
        if rows and rows[0][0]:
            return Settled(True, None)
    except Unclear:
        pass
    found = session.execute(back, *back_values)
    if found and mine(found[0]):
        return Settled(True, None)
    return Settled(False, found[0] if found else None)


def clock() -> float:
    """Seconds for what is of an age, or ends, in the cluster.

    Those while this machine was suspended are among them, which `time.monotonic` leaves out: a
    lease would seem to be held, and what is known to be fresh, when it woke up.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def patiently(work: Callable[[], Result]) -> Result:
    """Do idempotent work of many statements; a cluster that is away for a moment is waited for."""
    pause = PAUSE
    for _ in range(ATTEMPTS - 1):
        try:
            return work()
        except IndexUnavailable:
            time.sleep(pause)
            pause *= 2
    return work()


def write_all(session: Session, writes: Sequence[tuple[Statement, Sequence[Any]]]) -> None:
    """Write; what a cluster that was away for a moment refused is written again."""
    rows: dict[Statement, list[Sequence[Any]]] = {}
    for statement, values in writes:
        rows.setdefault(statement, []).append(values)
    for statement, values_of in rows.items():
        patiently(partial(session.write_many, statement, values_of))


class _Shared:
    """The sessions of this process, by cluster, and how many hold each."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.held: dict[tuple[Any, ...], tuple[Session, int]] = {}


_SHARED = _Shared()


class _Held:
    """A share in a session."""

    def __init__(self, session: Session, key: tuple[Any, ...]) -> None:
        self._key: tuple[Any, ...] | None = key
        self.execute, self.execute_many = session.execute, session.execute_many
        self.write_many, self.scan = session.write_many, session.scan
        self.define = session.define

    def close(self) -> None:
        with _SHARED.lock:
            if self._key is None:
                return
            key, self._key = self._key, None
            session, count = _SHARED.held[key]
            if count > 1:
                _SHARED.held[key] = session, count - 1
                return
            del _SHARED.held[key]
        session.close()


def connect(address: Address) -> Session:
    """A session with a cluster; the caller closes it. Raises `IndexUnavailable`."""
    key = (
        os.getpid(), frozenset(address.hosts), address.port, address.consistency, address.reading,
        address.datacenter, address.timeout, address.tls,
    )  # fmt: skip
    with _SHARED.lock:
        session, count = _SHARED.held.get(key) or (_open(address), 0)
        _SHARED.held[key] = session, count + 1
    return _Held(session, key)


def _open(address: Address) -> Session:
    user, password = os.environ.get(USER, ""), os.environ.get(PASSWORD, "")
    asked = trust(address, os.environ)
    try:
        from dedupindex.index.engines.cassandra.cql_driver import (
            DriverSession,  # which an extra brings
        )

        return DriverSession(address, user, password, asked)
    except ImportError as error:
        raise IndexUnavailable(
            "an index on a cluster needs cassandra-driver, which is not installed: "
            f"{to_install('cassandra')}"
        ) from error
