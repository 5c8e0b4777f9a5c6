"""Parquet tables of captures, such as the columnar index of Common Crawl, read by DuckDB.

Only the columns that are needed are read, in the order of rows. A row is refused for the reasons
for which a row of a CDX is. If a row group cannot be read, reading continues with the next one.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate, compress
from pathlib import Path
from typing import Any, BinaryIO

from blake3 import blake3

from dedupindex.capture import Item, Problem, Refusal, Rows
from dedupindex.errors import BadSource, Damaged
from dedupindex.object_store import RemoteFile
from dedupindex.object_store.as_filesystem import PREFIX, ObjectFiles
from dedupindex.runtime.duckdb import Database, errors_as, literal, one_thread, quoted
from dedupindex.sources.rows import METHOD_MARK, RowFields, RowReader
from dedupindex.sources.source import DEFAULTS, GROWING, Source, SourceOptions
from dedupindex.sources.table_columns import Column, Names, find_columns, read_footer

_FIELDS = (  # in the order of `RowFields`
    "url", "fetch_time", "content_mime_type", "fetch_status", "content_digest",
    "warc_record_length", "warc_record_offset", "warc_filename", "warc_record_id",
)  # fmt: skip
_BATCH = 512  # rows, few enough to stay in the processor's cache
_HASH_BYTES = 1 << 20
_PLAIN, _TO_CHECK, _METHOD, _TRUNCATED = range(4)  # states of a row
_UUID = "urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_DATE = r"\d{8}(?:[01]\d|2[0-3])[0-5]\d[0-5]\d"
_CONTAINER = RowFields._fields.index("container")
_YEAR_1, _YEAR_9999 = -62135596800_000000, 253402300799_000000  # their first and last second
_DAMAGED = Refusal("damaged")
_ROW_NUMBER = "file_row_number"  # an option of DuckDB, and the column that it adds


class ParquetSource(Source):
    """The captures of a Parquet table."""

    def __init__(
        self, name: str, source: str | BinaryIO, options: SourceOptions = DEFAULTS
    ) -> None:
        """Open a path or a `RemoteFile`; raises `BadSource` if it is not a table of captures."""
        self._object = source if isinstance(source, RemoteFile) else None
        self._opened = _status(source)
        super().__init__(name, self._opened[0])
        self._source = source
        self._position = 0
        self._rows = RowReader(name, options.digest_algorithm)
        self._fast = options.digest_algorithm == "sha1"
        self._damage = self._select = ""
        self._ends: list[int] = []  # rows up to the end of each row group
        self._sizes: list[int] = []  # bytes up to there
        try:
            self._examine(options.columns)
        except Damaged as error:
            self._damage = str(error)
        except BaseException:
            self.close()
            raise

    @property
    def position(self) -> int:
        return self._position

    def close(self) -> None:
        if self._object is not None:
            self._object.close()

    def items(self) -> Iterator[Item]:
        for batch in self.batches():
            yield from batch.captures() if isinstance(batch, Rows) else batch

    def batches(self) -> Iterator[Rows | list[Item]]:
        """Yield the plain rows of each batch as columns, then the items of its other rows."""
        self.content_hash = self._hash()
        if self._damage:
            yield [Problem(self.name, 0, f"is no whole Parquet file: {self._damage}")]
        yield from self._read()
        self._position = self.size
        after = list(self._further_unreadable(self._ends[-1] if self._ends else 0, "rows"))
        changed = self._object.changed() if self._object else _status(self._source) != self._opened
        if changed:
            self.changed = True
            after.append(Problem(self.name, self.size, GROWING))
        yield after

    def _examine(self, names: Names) -> None:
        """Find columns and row groups; raises `Damaged` or `BadSource`."""
        with self._database() as database:
            table = f"read_parquet({self._place}, hive_partitioning = false)"
            types = database.execute(f"DESCRIBE SELECT * FROM {table}").fetchall()
            if taken := [name for name, *_ in types if name.lower() == _ROW_NUMBER]:
                raise BadSource(
                    f"{self.name} is a Parquet table with a column {taken[0]}: rename it, as "
                    "DuckDB numbers rows by that name"
                )
            columns = find_columns(self.name, {name: kind for name, kind, *_ in types}, names)
            groups = database.execute(
                "SELECT row_group_num_rows, sum(total_compressed_size) "
                f"FROM parquet_metadata({self._place}) GROUP BY row_group_id, row_group_num_rows "
                "ORDER BY row_group_id"
            ).fetchall()
        self._select = f"SELECT {', '.join(_values(columns))} FROM {table[:-1]}"
        self._select += f", {_ROW_NUMBER} = true) WHERE {_ROW_NUMBER} "
        self._ends = list(accumulate(rows for rows, _ in groups))
        self._sizes = list(accumulate(int(size) for _, size in groups))

    @contextmanager
    def _database(self) -> Iterator[Database]:
        """Open a database that can read the table; a new one, as damage may leave it unusable."""
        with one_thread() as database:
            files = ObjectFiles(database) if self._object else None
            try:
                with errors_as(Damaged):
                    yield database
            except Damaged as error:
                if files is not None and (failure := files.take_failure()):
                    raise failure from error
                raise

    @property
    def _place(self) -> str:
        """SQL of what DuckDB reads."""
        if self._object is not None:
            return quoted(PREFIX + self._object.address)
        return quoted(literal(Path(str(self._source))))

    def _hash(self) -> str:
        """Return the hash of the file; of an object, that of its end, as not all of it is read."""
        running = blake3()
        if self._object is not None:
            return running.update(read_footer(self._object)).hexdigest()
        try:
            with open(str(self._source), "rb") as stream:
                while data := stream.read(_HASH_BYTES):
                    running.update(data)
        except OSError as error:
            raise BadSource(f"{self.name} cannot be read: {error.strerror}") from error
        return running.hexdigest()

    def _read(self) -> Iterator[Rows | list[Item]]:
        """Read all row groups at once; from damage on, first each one by itself."""
        row, alone = 0, False
        while self._ends and row < self._ends[-1]:
            group = bisect_right(self._ends, row)
            end = self._ends[group if alone else -1]
            try:
                for rows in self._fetch(row, end):
                    yield from self._parse(row, rows)
                    row += len(rows)
                    group = bisect_right(self._ends, row)
                    self._position = self._sizes[group - 1] if group else 0
                if row < end:
                    raise Damaged("rows are missing")
            except Damaged as error:
                if alone:
                    what = f"rows {row + 1:,} to {end:,} cannot be read: {error}"
                    yield [Problem(self.name, row + 1, what), *[_DAMAGED] * (end - row)]
                    row = end
                alone = not alone

    def _fetch(self, begin: int, end: int) -> Iterator[list[tuple[Any, ...]]]:
        """Yield rows in batches; raises `Damaged`."""
        with self._database() as database:
            found = database.execute(f"{self._select} BETWEEN {begin} AND {end - 1}")
            while rows := found.fetchmany(_BATCH):
                yield rows

    def _parse(self, number: int, found: list[tuple[Any, ...]]) -> Iterator[Rows | list[Item]]:
        """Yield the items of rows; `number` is that of the first, from 0."""
        *columns, states = zip(*found, strict=True)
        values = self._rows.values
        for container in set(columns[_CONTAINER]) - values.containers.keys() - {b"-"}:
            values.container(container)
        if self._fast and not any(states):
            try:
                yield self._rows.columns(columns)
                return
            except (KeyError, ValueError):
                pass  # some row is not plain
        plain = [False] * len(found)
        if self._fast:
            known = self._rows.plain(zip(*columns, strict=True))
            plain = [good and state == _PLAIN for good, state in zip(known, states, strict=True)]
        if any(plain):
            yield self._rows.columns([list(compress(column, plain)) for column in columns])
        others = (at for at, good in enumerate(plain) if not good)
        yield [item for at in others for item in self._item(number + at + 1, found[at])]

    def _item(self, number: int, found: tuple[Any, ...]) -> Iterator[Item]:
        *row, state = found
        if state == _METHOD:
            yield Refusal("method")
            return
        fields = RowFields._make([*row, b"truncated" if state == _TRUNCATED else b""])
        try:
            yield self._rows.item(fields)
        except ValueError as error:
            yield from self._unreadable(number, f"row {number:,}: {error}")


def _status(source: str | BinaryIO) -> tuple[int, ...]:
    """Return the size of a file or object, and what changes when it is written to."""
    if isinstance(source, RemoteFile):
        return source.size, *source.version
    try:
        status = os.stat(str(source))
    except OSError as error:
        raise BadSource(f"{source} cannot be read: {error.strerror}") from error
    return status.st_size, status.st_mtime_ns, status.st_ino


def _values(columns: Mapping[str, Column]) -> Iterator[str]:
    """Yield SQL of the fields of a row, as bytes, and of its state."""
    for name in _FIELDS:
        column = columns.get(name)
        if column is None:
            yield "''::BLOB"
        elif name == "fetch_time":
            yield f"coalesce(encode({column.digits}), ''::BLOB)"
        else:
            yield column.bytes
    yield (
        f"CASE WHEN {_other_method(columns)} THEN {_METHOD} WHEN {_is_truncated(columns)} "
        f"THEN {_TRUNCATED} WHEN {' AND '.join(_conditions(columns))} THEN {_PLAIN} "
        f"ELSE {_TO_CHECK} END"
    )


def _other_method(columns: Mapping[str, Column]) -> str:
    """Return SQL of whether a row is of a request other than GET; see `rows.other_method`."""
    tests = ["false"]
    if key := columns.get("url_surtkey"):
        mark = METHOD_MARK.decode()
        others = f"regexp_replace({key.text}, '{mark}(?i:get)([^A-Za-z-]|$)', '', 'g')"
        tests.append(f"(contains({key.text}, '{mark}') AND contains({others}, '{mark}'))")
    if method := columns.get("method"):
        tests.append(f"upper({method.text}) <> 'GET'")
    return " OR ".join(tests)


def _is_truncated(columns: Mapping[str, Column]) -> str:
    column = columns.get("content_truncated")
    return f"{column.text} NOT IN ('', '-')" if column else "false"


def _conditions(columns: Mapping[str, Column]) -> Iterator[str]:
    """Yield SQL of what is true of a plain row, but for its characters and values that repeat."""
    url = columns["url"].text
    yield f"(starts_with({url}, 'http://') OR starts_with({url}, 'https://'))"
    time = columns["fetch_time"]
    if time.is_time:
        yield f"{time.micros} BETWEEN {_YEAR_1} AND {_YEAR_9999}"
        yield f"{time.micros} % 1000000 = 0"
    else:
        yield f"regexp_full_match({time.digits}, '{_DATE}')"
    yield f"length({columns['content_digest'].text}) = 32"
    if size := columns.get("warc_record_length"):
        yield size.is_number(9)  # that an entry of an index can hold, as in a CDX
    if offset := columns.get("warc_record_offset"):
        yield offset.is_number(12)
    if container := columns.get("warc_filename"):
        yield f"{container.text} NOT IN ('', '-')"
    if record_id := columns.get("warc_record_id"):
        yield f"regexp_full_match({record_id.text}, '{_UUID}')"
