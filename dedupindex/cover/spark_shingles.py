"""Shingles on the executors of Apache Spark, and the SQL that finds pairs there.

Executors read the lines themselves, in parts of files. They return the metadata of documents to the
driver and keep the shingles. The driver groups documents into units, which it sends back.

Whatever an executor computes again after a loss is the same: rows depend on the files alone, and
postings are ranked by the number of units and the text of a shingle, not by a number that is given
in some order.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from dedupindex.cover.document_store import LoadCounts, Spools, fetch, fill
from dedupindex.cover.load_documents import (
    FilePart,
    Prepared,
    lines_of_part,
    numbered_lines,
    parts_of,
    shingled,
)
from dedupindex.cover.relation import ATTRIBUTES
from dedupindex.errors import BadSource
from dedupindex.expression.evaluate import holds
from dedupindex.expression.tree import Attribute, Leaf, Node, OperandKind, Value, leaves
from dedupindex.object_store import is_remote
from dedupindex.runtime.duckdb import Database
from dedupindex.runtime.spark import HINT, Cluster, SparkRows, spark_errors

_PART = 16 << 20  # bytes of a file that a task reads
_ROW = 1000  # shingles of a row
_SENT = 50_000  # rows that are sent to the executors at once
_PARTITIONS = 2  # of a shuffle for each part or core; Spark joins small ones
_FUNCTION = "across_documents"


class ShingleRow(NamedTuple):
    """Some shingles of k terms of the document `n`."""

    k: int
    n: int
    shingles: list[str]


class SparkShingles:
    """The shingles of a run on a cluster; see `pairs.ShingleTables`."""

    ranked = "named_struct('met', met, 'block', block, 'shingle', shingle)"

    def __init__(self, cluster: Cluster, ks: Sequence[int], database: Database, home: Path) -> None:
        from pyspark.sql import SparkSession  # an extra

        self._cluster, self._ks, self._database, self._home = cluster, ks, database, home
        self._session = SparkSession(cluster.context)
        self._tables: dict[str, Any] = {}
        self._held = ExitStack()

    def __enter__(self) -> SparkShingles:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(Exception):  # of a context that has died
            self.drop(list(self._tables))
        self._held.close()

    def read(self, files: Sequence[str], spools: Spools) -> None:
        """Read documents on the executors: metadata to `spools`, shingles to tables there."""
        named = [file if is_remote(file) else os.path.abspath(file) for file in files]
        tasks = list(parts_of(named, _PART))
        try:
            tasks = _numbered(tasks, self._cluster)
            work = partial(_read, tuple(self._ks))
            rows: SparkRows[Any] = self._held.enter_context(self._cluster.kept(work, tasks))
            for prepared in rows.filtered(_is_prepared):
                spools.add(prepared)
        except BadSource as error:
            raise BadSource(
                f"{error}; {HINT}" if "No such" in str(error) else str(error)
            ) from error
        partitions = max(len(tasks), self._cluster.cores) * _PARTITIONS
        with spark_errors():
            self._session.conf.set("spark.sql.shuffle.partitions", str(partitions))
            schema = "k INT, n INT, shingles ARRAY<STRING>"
            made = self._session.createDataFrame(rows.mapped(_shingle_rows), schema)
            made.createOrReplaceTempView("shingle_rows")
            for k in self._ks:
                self._session.sql(
                    f"SELECT n, explode(shingles) AS shingle FROM shingle_rows WHERE k = {k}"
                ).createOrReplaceTempView(f"shingles_{k}")

    def count_shingles(self, loaded: LoadCounts) -> None:
        """Add the numbers of distinct shingles."""
        for k in self._ks:
            with spark_errors():
                query = f"SELECT count(DISTINCT shingle) FROM shingles_{k}"
                loaded.shingles[str(k)]["distinct"] = self._session.sql(query).collect()[0][0]

    # --- ShingleTables ---------------------------------------------------------------------------

    def open(self) -> None:
        sizes = "".join(f", s{k} INT" for k in self._ks)
        flags = "coverable BOOLEAN, covers BOOLEAN, fresh BOOLEAN"
        self._send("units", f"unit BIGINT, block BIGINT, first INT, {flags}{sizes}")

    def make(self, table: str, query: str) -> None:
        from pyspark import StorageLevel  # an extra

        with spark_errors():
            made = self._session.sql(query).persist(StorageLevel.DISK_ONLY)
            self._hold(table, made)
            made.count()

    def count(self, table: str) -> int:
        with spark_errors():
            return int(self._tables[table].count())

    def across(self, nodes: Sequence[Node]) -> str:
        """Return a call of `holds`, which gives the same result as SQL of DuckDB."""
        named = sorted(
            {(leaf.side, leaf.name) for node in nodes for leaf in leaves(node)
             if isinstance(leaf, Attribute)}
        )  # fmt: skip
        kinds = {
            name: "STRING" if ATTRIBUTES[name] is OperandKind.TEXT else "BIGINT"
            for _, name in named
        }
        columns = "".join(f", {name} {kind}" for name, kind in kinds.items())
        self._send("documents", f"n INT{columns}", "n IN (SELECT n FROM members)")
        flags = "coverable BOOLEAN, covers BOOLEAN, fresh BOOLEAN"
        self._send("members", f"n INT, unit BIGINT, {flags}")
        with spark_errors():
            work = partial(_are_met, tuple(nodes), tuple(named))
            self._session.udf.register(_FUNCTION, lambda *row: work(*row), "boolean")
        return f"{_FUNCTION}({', '.join(f'{side}.{name}' for side, name in named)})"

    def take(self, table: str, columns: Sequence[str]) -> None:
        with spark_errors():
            rows = self._tables[table].select(*columns).toLocalIterator()
            lines = ("\t".join(map(str, row)) + "\n" for row in rows)
            types = ", ".join(f"{name} BIGINT" for name in columns)
            fill(self._database, table, types, self._home / table, lines)

    def drop(self, tables: Sequence[str]) -> None:
        for table in tables:
            if (made := self._tables.pop(table, None)) is not None:
                self._session.catalog.dropTempView(table)
                made.unpersist()

    def _send(self, table: str, schema: str, condition: str = "true") -> None:
        """Send a table of DuckDB, whose rows the driver holds packed."""
        columns = ", ".join(column.split()[0] for column in schema.split(", "))
        rows = fetch(self._database, f"SELECT {columns} FROM {table} WHERE {condition}")
        context = self._cluster.context
        with spark_errors():
            chunks = []
            while chunk := list(islice(rows, _SENT)):
                chunks.append(context.parallelize(chunk, self._cluster.cores))
            sent = context.union(chunks) if chunks else context.emptyRDD()
            self._hold(table, self._session.createDataFrame(sent, schema, verifySchema=False))

    def _hold(self, table: str, made: Any) -> None:
        self._tables[table] = made
        made.createOrReplaceTempView(table)


def _numbered(parts: list[FilePart], cluster: Cluster) -> list[FilePart]:
    """Count the lines and documents of all parts, and number those before each."""
    counts = list(cluster.rows(_count, parts))
    numbered: list[FilePart] = []
    first = line = 0
    for part, (lines, documents) in zip(parts, counts, strict=True):
        line = line if part.start else 0
        numbered.append(part._replace(line=line, first=first))
        line, first = line + lines, first + documents
    return numbered


def _count(part: FilePart) -> Iterator[tuple[int, int]]:
    lines = documents = 0
    for _, line in numbered_lines(part):
        lines, documents = lines + 1, documents + bool(line.strip())
    yield lines, documents


def _read(ks: tuple[int, ...], part: FilePart) -> Iterator[Prepared | ShingleRow]:
    """Yield the metadata of documents, and their shingles."""
    for n, line in enumerate(lines_of_part(part), part.first):
        row, found = shingled(n, line, ks)
        yield Prepared(orjson.dumps(row) + b"\n", {}, 1, len(line[1]))
        for k, of_text in found.items():
            rest = iter(of_text)
            while some := list(islice(rest, _ROW)):
                yield ShingleRow(k, n, some)


def _is_prepared(row: Any) -> bool:
    return isinstance(row, Prepared)


def _shingle_rows(row: Any) -> Iterator[ShingleRow]:
    if isinstance(row, ShingleRow):
        yield row


def _are_met(nodes: tuple[Node, ...], names: tuple[tuple[str, str], ...], *values: Value) -> bool:
    found = dict(zip(names, values, strict=True))

    def lookup(leaf: Leaf) -> Value:
        assert isinstance(leaf, Attribute)
        return found[leaf.side, leaf.name]

    return all(holds(node, lookup) for node in nodes)
