"""A session with a cluster, by cassandra-driver, and what else speaks CQL.

Every error of the driver is raised as `IndexUnavailable`: the answer is not known. A conditional
statement (a lightweight transaction) raises `Unclear`: it may have been applied. All other
statements must be idempotent: the driver repeats them on another node when one fails.
"""

from __future__ import annotations

import os
import ssl
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

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
from dedupindex.index.engine import retry

try:
    from cassandra import ConsistencyLevel, DriverException, UnresolvableContactPoints
    from cassandra.auth import PlainTextAuthProvider
    from cassandra.cluster import (
        EXEC_PROFILE_DEFAULT,
        Cluster,
        ExecutionProfile,
        NoHostAvailable,
        ResponseFuture,
    )
    from cassandra.connection import ConnectionException
    from cassandra.policies import (
        ConstantReconnectionPolicy,
        ConstantSpeculativeExecutionPolicy,
        DCAwareRoundRobinPolicy,
        TokenAwarePolicy,
    )
    from cassandra.protocol import ErrorMessage
    from cassandra.query import (
        BatchStatement,
        BatchType,
        BoundStatement,
        PreparedStatement,
        tuple_factory,
    )
except ImportError as error:
    raise IndexUnavailable(
        "an index on a cluster needs cassandra-driver, which is not installed: "
        f"{to_install('cassandra')}"
    ) from error

IN_FLIGHT = 128  # statements of one `execute_many` that wait for answers
TOGETHER = 25  # partitions that a statement of `several` reads; ScyllaDB refuses more than 100
_SEVERAL_IN_FLIGHT = 16  # such statements
PAGE = 1000  # rows that a scan fetches at once
HEDGE = 1.0  # seconds after which a second node is asked
HEARTBEAT = 3  # seconds between two heartbeats of a connection
RECONNECT = 1.0  # seconds between two attempts to reach a node that is down
_PROTOCOL = 4  # of CQL, which Cassandra and ScyllaDB have in common
# A node takes a third less time for a row in a batch of 30 than in one of 10 (docs/performance.md).
BATCH = 50  # rows
_BATCH_BYTES = 5000  # that a batch of several rows has at most: nodes log each above 5 KiB
_ROW_BYTES = 48  # that nodes count for a row besides its values, about
_BATCHES_IN_FLIGHT = 32
_FAILURES = (DriverException, NoHostAvailable, ConnectionException, ErrorMessage, OSError)

Row = tuple[Any, ...]


class Use(Enum):
    """What a statement is for, which decides its consistency and what a failure means."""

    READ = "read"
    WRITE = "write"
    CONDITIONAL = "conditional"  # IF …: a lightweight transaction
    SERIAL = "serial"  # a read that sees, and completes, all lightweight transactions
    QUORUM = "quorum"  # at LOCAL_QUORUM whatever the address says: a read sees all earlier writes


class Statement(NamedTuple):
    """CQL with ``?`` for values and ``KS.`` for the session's keyspace; prepared at first use."""

    text: str
    use: Use = Use.READ
    several: bool = False  # the first value is a list of partition keys, one of `by_replica`


Call = tuple[Statement, Sequence[Any]]  # with its values


class Unclear(IndexUnavailable):
    """A conditional statement may have been applied, or not."""


class _ClusterConnection:
    """A connection to a cluster, shared by the sessions of a process."""

    def __init__(self, key: tuple[int, Address], address: Address) -> None:
        self.key, self.users = key, 0
        self.reading = ConsistencyLevel.name_to_value[address.reading]
        self.writing = ConsistencyLevel.name_to_value[address.consistency]
        self.prepared: dict[tuple[str, Use], dict[Statement, PreparedStatement]] = {}
        self.preparing = threading.Lock()
        profile = ExecutionProfile(
            load_balancing_policy=TokenAwarePolicy(
                DCAwareRoundRobinPolicy(local_dc=address.datacenter)
            ),
            speculative_execution_policy=ConstantSpeculativeExecutionPolicy(HEDGE, 1),
            request_timeout=address.timeout,
            row_factory=tuple_factory,
            consistency_level=self.writing,
        )
        user, password = os.environ.get(USER, ""), os.environ.get(PASSWORD, "")
        where = f"no node of {','.join(address.hosts)} answers on port {address.port}"
        try:
            self.cluster = Cluster(
                list(address.hosts),
                port=address.port,
                protocol_version=_PROTOCOL,
                auth_provider=PlainTextAuthProvider(user, password) if user else None,
                ssl_context=tls_context(address, os.environ),
                execution_profiles={EXEC_PROFILE_DEFAULT: profile},
                reconnection_policy=ConstantReconnectionPolicy(RECONNECT, None),
                idle_heartbeat_interval=HEARTBEAT,
                # A node that was silent for a moment is not given up: a single one would be missed.
                idle_heartbeat_timeout=max(HEARTBEAT, address.timeout),
                connect_timeout=address.timeout,
                control_connection_timeout=address.timeout,
            )
        except UnresolvableContactPoints as error:
            raise IndexUnavailable(f"{where}: no such name is known") from error
        try:
            self.driver = self.cluster.connect()
        except _FAILURES as error:
            self.cluster.shutdown()
            raise IndexUnavailable(f"{where}: {_message(error)}") from error


_CONNECTIONS: dict[tuple[int, Address], _ClusterConnection] = {}
_CONNECTING = threading.Lock()


class Session:
    """A session with a keyspace of a cluster, for any number of threads.

    Sessions of one cluster share a connection, which does not survive a fork: close them before.
    """

    def __init__(
        self, connection: _ClusterConnection, keyspace: str, reads: Use = Use.READ
    ) -> None:
        self._connection, self.keyspace, self._reads = connection, keyspace, reads
        self._known = connection.prepared.setdefault((keyspace, reads), {})
        self._closed = False

    def for_changes(self) -> Session:
        """Return this session with reads at the consistency of writes; close one of the two."""
        return Session(self._connection, self.keyspace, Use.WRITE)

    def execute(self, statement: Statement, *values: Any) -> list[Row]:
        """Return all rows; the first column of a conditional statement's is whether it applied."""
        return self._rows(statement, self._send(statement, values))

    def execute_many(self, calls: Iterable[Call]) -> Iterator[list[Row]]:
        """Yield the rows of each call, in order; `IN_FLIGHT` are sent ahead of those taken.

        Of statements that read several partitions there are fewer.
        """
        sent: deque[tuple[Statement, ResponseFuture]] = deque()
        for statement, values in calls:
            if len(sent) >= (_SEVERAL_IN_FLIGHT if statement.several else IN_FLIGHT):
                yield self._rows(*sent.popleft())
            sent.append((statement, self._send(statement, values)))
        while sent:
            yield self._rows(*sent.popleft())

    def write_many(
        self,
        statement: Statement,
        rows: Iterable[Sequence[Any]],
        before: Callable[[], None] = lambda: None,
    ) -> None:
        """Write rows, in any order, in batches; `before` is called before each is sent."""
        sent: deque[ResponseFuture] = deque()
        with _failures(statement):
            for batch in self._batches(self._prepared(statement), rows):
                if len(sent) >= _BATCHES_IN_FLIGHT:
                    sent.popleft().result()
                before()
                sent.append(self._connection.driver.execute_async(batch))
            while sent:
                sent.popleft().result()

    def _batches(
        self, prepared: PreparedStatement, rows: Iterable[Sequence[Any]]
    ) -> Iterator[BatchStatement]:
        """Yield batches of rows with the same first replica, which can write them by itself."""
        replicas = self._connection.cluster.metadata.get_replicas
        batches: dict[Any, BatchStatement] = {}
        weights: dict[Any, int] = {}
        for values in rows:
            bound = prepared.bind(values)
            hosts = replicas(bound.keyspace, bound.routing_key)
            host = hosts[0] if hosts else None
            weight = _ROW_BYTES + sum(len(one) for one in bound.values if isinstance(one, bytes))
            batch = batches.get(host)
            if batch is not None and weights[host] + weight > _BATCH_BYTES:
                yield batches.pop(host)
                batch = None
            if batch is None:
                weights[host] = 0
                batch = batches[host] = BatchStatement(
                    BatchType.UNLOGGED, consistency_level=self._connection.writing
                )
                batch.is_idempotent = True
            batch.add(bound)
            weights[host] += weight
            if len(batch) >= BATCH:
                yield batches.pop(host)
        yield from batches.values()

    def by_replica(self, keys: Iterable[bytes]) -> Iterator[list[bytes]]:
        """Yield partition keys in lists of at most `TOGETHER` with the same first replica."""
        replicas = self._connection.cluster.metadata.get_replicas
        lists: dict[Any, list[bytes]] = {}
        for key in keys:
            hosts = replicas(self.keyspace, key)
            host = hosts[0] if hosts else None
            together = lists.setdefault(host, [])
            together.append(key)
            if len(together) >= TOGETHER:
                yield lists.pop(host)
        yield from lists.values()

    def scan(self, statement: Statement, *values: Any) -> Iterator[list[Row]]:
        """Yield the rows of a read of any length, a page at a time.

        A page after the first is fetched again when that fails: a scan of hours outlives a node.
        """
        rows, state = self._page(statement, values, None)
        while True:
            yield rows
            if state is None:
                return
            rows, state = retry(partial(self._page, statement, values, state))

    def _page(
        self, statement: Statement, values: Sequence[Any], state: bytes | None
    ) -> tuple[list[Row], bytes | None]:
        """Return the rows of a page and what the next one is asked for by, None after the last."""
        with _failures(statement):
            bound = self._prepared(statement).bind(values)
            result = self._connection.driver.execute(bound, paging_state=state)
            return list(result.current_rows), result.paging_state

    def token(self, key: bytes) -> Any:
        """Return what scans of a table order its partitions by, before the bytes of their keys."""
        return self._connection.cluster.metadata.token_map.token_class.from_key(key)

    def define(self, text: str) -> None:
        """Change the schema; returns when all nodes agree on it."""
        try:
            self._connection.driver.execute(text, timeout=60)
        except _FAILURES as error:
            raise IndexUnavailable(f"the cluster refuses {text!r}: {_message(error)}") from error

    def close(self) -> None:
        """Release the connection; may be called twice."""
        with _CONNECTING:
            if self._closed:
                return
            self._closed = True
            self._connection.users -= 1
            if self._connection.users:
                return
            del _CONNECTIONS[self._connection.key]
        self._connection.cluster.shutdown()

    def _send(self, statement: Statement, values: Sequence[Any]) -> ResponseFuture:
        with _failures(statement):
            prepared = self._prepared(statement)
            # The driver cannot derive the node from a list of keys.
            route = values[0][0] if statement.several else None
            bound = BoundStatement(prepared, routing_key=route).bind(values)
            return self._connection.driver.execute_async(bound)

    def _prepared(self, statement: Statement) -> PreparedStatement:
        if prepared := self._known.get(statement):
            return prepared
        connection = self._connection
        with connection.preparing:
            if prepared := self._known.get(statement):
                return prepared
            prepared = connection.driver.prepare(statement.text.replace("KS.", f"{self.keyspace}."))
            prepared.consistency_level = {
                Use.SERIAL: ConsistencyLevel.LOCAL_SERIAL,
                Use.QUORUM: ConsistencyLevel.LOCAL_QUORUM,
                Use.READ: connection.reading,
            }.get(self._reads if statement.use is Use.READ else statement.use, connection.writing)
            prepared.serial_consistency_level = ConsistencyLevel.LOCAL_SERIAL
            prepared.is_idempotent = statement.use is not Use.CONDITIONAL
            prepared.fetch_size = PAGE
            self._known[statement] = prepared
            return prepared

    def _rows(self, statement: Statement, sent: ResponseFuture) -> list[Row]:
        with _failures(statement):
            return list(sent.result())


def connect(address: Address) -> Session:
    """Return a session, which the caller closes; raises `IndexUnavailable`."""
    hosts, reading = tuple(sorted(set(address.hosts))), address.reading
    shared = replace(address, hosts=hosts, keyspace="", replication="", read_consistency=reading)
    key = os.getpid(), shared
    with _CONNECTING:
        connection = _CONNECTIONS.get(key) or _ClusterConnection(key, address)
        _CONNECTIONS[key] = connection
        connection.users += 1
    return Session(connection, address.keyspace)


@contextmanager
def _failures(statement: Statement) -> Iterator[None]:
    """Raise an error of the driver as `IndexUnavailable` or `Unclear`."""
    try:
        yield
    except _FAILURES as error:
        kind = Unclear if statement.use is Use.CONDITIONAL else IndexUnavailable
        raise kind(f"the cluster does not answer: {_message(error)}") from error


def _message(error: Exception) -> str:
    """Return an error of the driver in one line; of the errors of several nodes, the first."""
    if isinstance(error, NoHostAvailable) and isinstance(error.errors, dict) and error.errors:
        node, first = next(iter(error.errors.items()))
        return f"{node}: {_message(first) if isinstance(first, Exception) else first}"
    return f"{type(error).__name__}: {str(error) or 'no more is known'}"[:300]


def tls_context(address: Address, environment: Mapping[str, str]) -> ssl.SSLContext | None:
    """Return the TLS context of an address, None without TLS; `BadInput` for unusable files."""
    authority, certificate, key = (
        environment.get(name, "") for name in (AUTHORITY, CERTIFICATE, KEY)
    )
    if not address.tls:
        if authority or certificate:
            raise BadInput(
                f"{AUTHORITY if authority else CERTIFICATE} is set, but the address has no tls, so "
                f"all would go unencrypted: write {SCHEME}…/{address.keyspace}?tls={NODE}, or "
                "unset it"
            )
        return None
    name, path = AUTHORITY, authority
    try:
        context = ssl.create_default_context(cafile=authority or None)
        name, path = CERTIFICATE, certificate
        if certificate:
            context.load_cert_chain(certificate, key or None)
    except OSError as error:
        reason = error.strerror or str(error)
        raise BadInput(f"{path or 'no file'} ({name}): {reason}; it must be a PEM file") from error
    context.check_hostname = address.tls == NODE
    return context


class ConditionalResult(NamedTuple):
    """What became of a conditional statement."""

    applied: bool
    row: Row | None  # if not applied: what `back` found


def execute_conditional(
    session: Session, call: Call, back: Call, mine: Callable[[Row], bool]
) -> ConditionalResult:
    """Execute a conditional statement, and find out whether it was applied.

    `back` reads, at SERIAL, the row that it would have written; `mine` returns whether it has:
    the outcome may be unknown, and a statement that the driver has repeated meets its own row.
    Raises `IndexUnavailable` if `back` cannot be read.
    """
    statement, values = call
    try:
        rows = session.execute(statement, *values)
        if rows and rows[0][0]:
            return ConditionalResult(True, None)
    except Unclear:
        pass
    read, read_values = back
    found = session.execute(read, *read_values)
    if found and mine(found[0]):
        return ConditionalResult(True, None)
    return ConditionalResult(False, found[0] if found else None)


def write_all(
    session: Session, writes: Sequence[Call], before: Callable[[], None] = lambda: None
) -> None:
    """Write all rows; those that fail are retried. `before` is called before each batch."""
    rows: dict[Statement, list[Sequence[Any]]] = {}
    for statement, values in writes:
        rows.setdefault(statement, []).append(values)
    for statement, values_of in rows.items():
        retry(partial(session.write_many, statement, values_of, before))
