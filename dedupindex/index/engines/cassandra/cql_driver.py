"""A session of cassandra-driver: one thread speaks to the nodes, callers wait."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

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
from cassandra.query import BatchStatement, BatchType, PreparedStatement, tuple_factory

from dedupindex.errors import IndexUnavailable
from dedupindex.index.address import Address
from dedupindex.index.engines.cassandra.cql import (
    HEARTBEAT,
    HEDGE,
    IN_FLIGHT,
    PAGE,
    RECONNECT,
    Row,
    Statement,
    Trust,
    Unclear,
    Use,
    context,
)

_PROTOCOL = 4  # which Cassandra and ScyllaDB speak alike
_BATCH = 10  # rows; nodes warn of batches of more partitions
_BATCH_BYTES = 32 << 10  # after which a batch is sent: nodes refuse those above 50 KiB
_BATCHES_IN_FLIGHT = 32
_FAILURES = (DriverException, NoHostAvailable, ConnectionException, ErrorMessage, OSError)


class DriverSession:
    """A `Session` of cassandra-driver."""

    def __init__(
        self, address: Address, user: str, password: str, tls: Trust | None = None
    ) -> None:
        self._reading = ConsistencyLevel.name_to_value[address.reading]
        self._writing = ConsistencyLevel.name_to_value[address.consistency]
        self._prepared: dict[Statement, PreparedStatement] = {}
        self._preparing = threading.Lock()
        profile = ExecutionProfile(
            load_balancing_policy=TokenAwarePolicy(
                DCAwareRoundRobinPolicy(local_dc=address.datacenter)
            ),
            speculative_execution_policy=ConstantSpeculativeExecutionPolicy(HEDGE, 1),
            request_timeout=address.timeout,
            row_factory=tuple_factory,
            consistency_level=self._writing,
        )
        where = f"no node of {','.join(address.hosts)} answers on port {address.port}"
        try:
            self._cluster = Cluster(
                list(address.hosts),
                port=address.port,
                protocol_version=_PROTOCOL,
                auth_provider=PlainTextAuthProvider(user, password) if user else None,
                ssl_context=context(tls) if tls else None,
                execution_profiles={EXEC_PROFILE_DEFAULT: profile},
                reconnection_policy=ConstantReconnectionPolicy(RECONNECT, None),
                idle_heartbeat_interval=HEARTBEAT,
                idle_heartbeat_timeout=HEARTBEAT,
                connect_timeout=address.timeout,
                control_connection_timeout=address.timeout,
            )
        except UnresolvableContactPoints as error:
            raise IndexUnavailable(f"{where}: no such name is known") from error
        try:
            self._session = self._cluster.connect()
        except _FAILURES as error:
            self._cluster.shutdown()
            raise IndexUnavailable(f"{where}: {_words(error)}") from error

    def execute(self, statement: Statement, *values: Any) -> list[Row]:
        return self._rows(statement, self._send(statement, values))

    def execute_many(self, asked: Iterable[tuple[Statement, Sequence[Any]]]) -> Iterator[list[Row]]:
        sent: deque[tuple[Statement, ResponseFuture]] = deque()
        for statement, values in asked:
            if len(sent) >= IN_FLIGHT:
                yield self._rows(*sent.popleft())
            sent.append((statement, self._send(statement, values)))
        while sent:
            yield self._rows(*sent.popleft())

    def write_many(self, statement: Statement, rows: Iterable[Sequence[Any]]) -> None:
        sent: deque[ResponseFuture] = deque()
        try:
            prepared = self._prepared.get(statement) or self._prepare(statement)
            for batch in self._batches(prepared, rows):
                if len(sent) >= _BATCHES_IN_FLIGHT:
                    sent.popleft().result()
                sent.append(self._session.execute_async(batch))
            while sent:
                sent.popleft().result()
        except _FAILURES as error:
            raise _unavailable(statement, error) from error

    def _batches(
        self, prepared: PreparedStatement, rows: Iterable[Sequence[Any]]
    ) -> Iterator[BatchStatement]:
        """Rows that are stored first on the same node, a few at a time: it need not ask others."""
        replicas = self._cluster.metadata.get_replicas
        open_ones: dict[Any, BatchStatement] = {}
        weights: dict[Any, int] = {}
        for values in rows:
            bound = prepared.bind(values)
            hosts = replicas(bound.keyspace, bound.routing_key)
            host = hosts[0] if hosts else None
            weight = sum(len(one) for one in bound.values if isinstance(one, bytes))
            batch = open_ones.get(host)
            if batch is not None and weights[host] + weight > _BATCH_BYTES:
                yield open_ones.pop(host)
                batch = None
            if batch is None:
                weights[host] = 0
                batch = open_ones[host] = BatchStatement(
                    BatchType.UNLOGGED, consistency_level=self._writing
                )
                batch.is_idempotent = True
            batch.add(bound)
            weights[host] += weight
            if len(batch) >= _BATCH:
                yield open_ones.pop(host)
        yield from open_ones.values()

    def scan(self, statement: Statement, *values: Any) -> Iterator[list[Row]]:
        try:
            result = self._send(statement, values).result()
            while True:
                yield list(result.current_rows)
                if not result.has_more_pages:
                    return
                result.fetch_next_page()
        except _FAILURES as error:
            raise _unavailable(statement, error) from error

    def define(self, text: str) -> None:
        try:
            self._session.execute(text, timeout=60)
        except _FAILURES as error:
            raise IndexUnavailable(f"the cluster refuses {text!r}: {_words(error)}") from error

    def close(self) -> None:
        self._cluster.shutdown()

    def _send(self, statement: Statement, values: Sequence[Any]) -> ResponseFuture:
        try:
            prepared = self._prepared.get(statement) or self._prepare(statement)
            return self._session.execute_async(prepared.bind(values))
        except _FAILURES as error:
            raise _unavailable(statement, error) from error

    def _prepare(self, statement: Statement) -> PreparedStatement:
        with self._preparing:
            prepared = self._prepared.get(statement)
            if prepared is None:
                prepared = self._session.prepare(statement.text)
                use = statement.use
                prepared.consistency_level = (
                    ConsistencyLevel.LOCAL_SERIAL
                    if use is Use.SERIAL
                    else self._reading
                    if use is Use.READ
                    else self._writing
                )
                prepared.serial_consistency_level = ConsistencyLevel.LOCAL_SERIAL
                prepared.is_idempotent = use is not Use.CONDITIONAL
                prepared.fetch_size = PAGE
                self._prepared[statement] = prepared
        return prepared

    def _rows(self, statement: Statement, sent: ResponseFuture) -> list[Row]:
        try:
            return list(sent.result())
        except _FAILURES as error:
            raise _unavailable(statement, error) from error


def _unavailable(statement: Statement, error: Exception) -> IndexUnavailable:
    kind = Unclear if statement.use is Use.CONDITIONAL else IndexUnavailable
    return kind(f"the cluster does not answer: {_words(error)}")


def _words(error: Exception) -> str:
    """An error of the driver in one line; of several nodes' the first."""
    if isinstance(error, NoHostAvailable) and isinstance(error.errors, dict) and error.errors:
        node, first = next(iter(error.errors.items()))
        return f"{node}: {_words(first)}" if isinstance(first, Exception) else f"{node}: {first}"
    return f"{type(error).__name__}: {str(error) or 'no more is known'}"[:300]
