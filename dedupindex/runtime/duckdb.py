"""Temporary DuckDB databases, with limited memory and a directory for what does not fit."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import duckdb

from dedupindex.counts import OnProgress, ProgressUpdate
from dedupindex.errors import BadInput, BadSource, DedupError
from dedupindex.runtime.files import atomic_path, check_name

Database = duckdb.DuckDBPyConnection
_INTERRUPTED = "Query interrupted"  # RuntimeError in place of what a signal's handler has raised
_REFUSED = "refused: "  # prefix of errors that `refusal` raises
_EVERY = 0.5  # seconds between two reports of progress


@contextmanager
def open_database(beside: Path, memory: str, threads: int) -> Iterator[tuple[Database, Path]]:
    """Open a database with a temporary directory in `beside`; yield both.

    `memory` is its limit, as ``1GB``; 0 threads are one for each core. Errors of DuckDB, such as a
    full disk, are raised as `DedupError`. Hash joins are built from the right table, as DuckDB does
    not know how many rows the Parquet files of a manifest have.
    """
    if memory.lstrip().startswith("-"):  # DuckDB would take it for no limit
        raise BadInput(f"--memory {memory}: it is negative")
    with tempfile.TemporaryDirectory(prefix=".working-", dir=beside) as name:
        config: dict[str, str | bool | int | float | list[str]] = {
            "memory_limit": memory, "preserve_insertion_order": "false", "temp_directory": name,
            "disabled_optimizers": "join_order,build_side_probe_side",
            **({"threads": threads} if threads else {}),
        }  # fmt: skip
        home = Path(name)
        try:
            database = duckdb.connect(config=config)
        except duckdb.Error as error:
            raise BadInput(f"--memory {memory}: {_first_line(error)}") from error
        try:
            with interruptible(), database:
                yield database, home
        except duckdb.Error as error:
            raise _failure(error, memory, home) from error


@contextmanager
def show_progress(
    database: Database, on_progress: OnProgress, first: str = ""
) -> Iterator[Callable[[str], None]]:
    """Report the progress of each query in the block, from a thread.

    Yields a function that sets the name of the phase; nothing is reported while there is none.
    """
    database.execute("SET enable_progress_bar = true")
    database.execute("SET enable_progress_bar_print = false")
    ended, phase = threading.Event(), [first]

    def report() -> None:
        while not ended.wait(_EVERY):
            percent = database.query_progress()  # negative if no query runs
            if phase[0] and percent >= 0:
                on_progress(ProgressUpdate(phase[0], part=percent / 100))

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield lambda name: phase.__setitem__(0, name)
    finally:
        ended.set()
        thread.join()


@contextmanager
def one_thread() -> Iterator[Database]:
    """Open an in-memory database with one thread, for small queries."""
    with interruptible(), connect_one_thread() as database:
        yield database


def connect_one_thread() -> Database:
    """As `one_thread`; the caller closes it, and makes its queries `interruptible`."""
    return duckdb.connect(config={"threads": 1})


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise `KeyboardInterrupt` if SIGINT or SIGTERM interrupts a query in the block."""
    try:
        yield
    except RuntimeError as error:
        if str(error) == _INTERRUPTED:
            raise KeyboardInterrupt from error
        raise


@contextmanager
def errors_as(failure: type[DedupError]) -> Iterator[None]:
    """Raise errors of DuckDB in the block as `failure`, but a lack of memory as `DedupError`."""
    try:
        with interruptible():
            yield
    except duckdb.OutOfMemoryException as error:
        raise DedupError(f"DuckDB has too little memory: {_first_line(error)}") from error
    except (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException):
        raise  # a mistake in the query
    except duckdb.Error as error:
        raise failure(_first_line(error)) from error


def _first_line(error: Exception) -> str:
    line = str(error).partition("\n")[0]
    return line.replace("IO Error: No files found that match the pattern", "there is no file")


def number(database: Database, query: str) -> int:
    """Return the single number that a query yields."""
    found = database.execute(query).fetchone()
    assert found is not None
    return int(found[0] or 0)


def insert(database: Database, table: str, rows: Sequence[tuple[int | str, ...]]) -> None:
    """Insert rows of integers and text."""
    for start in range(0, len(rows), 1000):
        values = (
            ", ".join(quoted(value) if isinstance(value, str) else str(value) for value in row)
            for row in rows[start : start + 1000]
        )
        database.execute(f"INSERT INTO {table} VALUES ({'), ('.join(values)})")


def _failure(error: duckdb.Error, memory: str, home: Path) -> DedupError:
    text = _first_line(error)
    if isinstance(error, duckdb.OutOfMemoryException):
        return DedupError(f"{memory} of memory are too little; give more with --memory: {text}")
    if isinstance(error, duckdb.InvalidInputException) and _REFUSED in text:
        return BadSource(text.partition(_REFUSED)[2])
    return DedupError(f"DuckDB failed in {home}: {text}")


@contextmanager
def atomic_output(target: Path) -> Iterator[Path]:
    """As `atomic_path`, for DuckDB to write to; raises `DedupError` if it cannot read or write."""
    try:
        with atomic_path(target) as beside:
            yield beside
    except duckdb.IOException as error:
        raise DedupError(f"{target} was not written: {_first_line(error)}") from error


def write_parquet(
    database: Database, rows: str, target: Path, metadata: Mapping[str, str] | None = None
) -> None:
    """Write the result of the query `rows` to a file, which appears complete."""
    pairs = ", ".join(f"{quoted(key)}: {quoted(value)}" for key, value in (metadata or {}).items())
    options = f"FORMAT parquet, COMPRESSION zstd{f', KV_METADATA {{{pairs}}}' if pairs else ''}"
    with atomic_output(target) as beside:
        database.execute(f"COPY ({rows}) TO {quoted(str(beside))} ({options})")


def from_json(files: Sequence[Path], columns: Mapping[str, str], longest: int) -> str:
    """Return SQL that reads lines of JSON of at most `longest` bytes, with columns and types."""
    paths = ", ".join(quoted(literal(path)) for path in files)
    types = ", ".join(f"{quoted(name)}: {quoted(kind)}" for name, kind in columns.items())
    return (
        f"read_json([{paths}], format = 'newline_delimited', maximum_object_size = {longest}, "
        f"columns = {{{types}}})"
    )


def refusal(place: str, what: str) -> str:
    """Return SQL that makes its query raise `BadSource`; `place` is SQL, too."""
    return f"error({quoted(_REFUSED)} || {place} || {quoted(what)})"


def quoted(text: str) -> str:
    """Return a string literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def literal(path: Path) -> str:
    """Return a path that DuckDB does not take for a glob; raises `BadInput`."""
    check_name(str(path))
    return "".join(f"[{char}]" if char in "*?[" else char for char in str(path))
