"""DuckDB with bounds: so much memory and no more, and a directory for what does not fit.

What is made there is of no use to a later run, and goes with the block.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import duckdb

from dedupindex.counts import OnProgress, ProgressUpdate
from dedupindex.errors import BadInput, BadSource, DedupError
from dedupindex.runtime.files import check_name, sync_directory

Database = duckdb.DuckDBPyConnection
_INTERRUPTED = "Query interrupted"  # all that DuckDB tells of a KeyboardInterrupt
_REFUSED = "refused: "  # how an error begins that is ours
_EVERY = 0.5  # seconds between two looks at how far a query is


@contextmanager
def working(beside: Path, memory: str, threads: int) -> Iterator[tuple[Database, Path]]:
    """A database that goes on in a directory of its own below `beside`, and that directory.

    `memory` bounds it, as ``1GB``; threads are of the whole machine with 0. Failures of the
    engine, a full disk among them, are raised as `DedupError`. Tables of joins are built of what
    stands to the right, for the engine cannot know how much is in the Parquet files of a manifest.
    """
    if memory.lstrip().startswith("-"):  # which DuckDB takes for no bound
        raise BadInput(f"--memory {memory}: less than nothing")
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
            with database:
                yield database, home
        except duckdb.Error as error:
            raise _failure(error, memory, home) from error
        except RuntimeError as error:
            if str(error) == _INTERRUPTED:  # Ctrl-C, while a query was at work
                raise KeyboardInterrupt from error
            raise


@contextmanager
def followed(database: Database, on_progress: OnProgress) -> Iterator[Callable[[str], None]]:
    """Tells, from a thread of its own, how far the queries of the block are, each for itself.

    Yields a function that names the phase which begins; before there is one, nothing is told.
    """
    database.execute("SET enable_progress_bar = true")
    database.execute("SET enable_progress_bar_print = false")
    ended, phase = threading.Event(), [""]

    def watch() -> None:
        while not ended.wait(_EVERY):
            percent = database.query_progress()  # below 0 while there is no query
            if phase[0] and percent >= 0:
                on_progress(ProgressUpdate(phase[0], part=percent / 100))

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield lambda name: phase.__setitem__(0, name)
    finally:
        ended.set()
        watching.join()


def one_thread() -> Database:
    """A database for a query of little, which need not be shared out; the caller closes it."""
    return duckdb.connect(config={"threads": 1})


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def number(database: Database, query: str) -> int:
    """The single number that a query yields."""
    found = database.execute(query).fetchone()
    assert found is not None
    return int(found[0] or 0)


def insert(database: Database, table: str, rows: Sequence[tuple[int | str, ...]]) -> None:
    """Add rows of whole numbers and plain words."""
    for start in range(0, len(rows), 1000):
        values = ", ".join(map(_row, rows[start : start + 1000]))
        database.execute(f"INSERT INTO {table} VALUES {values}")


def _row(values: tuple[int | str, ...]) -> str:
    texts = [quoted(value) if isinstance(value, str) else str(value) for value in values]
    return f"({', '.join(texts)})"


def _failure(error: duckdb.Error, memory: str, home: Path) -> DedupError:
    said = _first_line(error)
    if isinstance(error, duckdb.OutOfMemoryException):
        return DedupError(f"{memory} of memory were too little, give more with --memory: {said}")
    if isinstance(error, duckdb.InvalidInputException) and _REFUSED in said:
        return BadSource(said.partition(_REFUSED)[2])
    return DedupError(f"DuckDB gave up in {home}: {said}")


@contextmanager
def placed(target: Path) -> Iterator[Path]:
    """A path beside `target` that DuckDB writes to; it goes to disk, then gets that name.

    Raises `DedupError` if what is written, or read for that, fails.
    """
    beside = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        yield beside
        with open(beside, "rb") as stream:
            os.fsync(stream.fileno())
        os.replace(beside, target)
    except BaseException as error:
        beside.unlink(missing_ok=True)
        if isinstance(error, duckdb.IOException):
            raise DedupError(f"{target} was not made: {_first_line(error)}") from error
        raise
    sync_directory(target.absolute().parent)


def write_parquet(database: Database, rows: str, target: Path) -> None:
    """Write what the query `rows` yields; the file appears whole."""
    with placed(target) as beside:
        to = quoted(str(beside))
        database.execute(f"COPY ({rows}) TO {to} (FORMAT parquet, COMPRESSION zstd)")


def from_json(files: Sequence[Path], columns: Mapping[str, str], longest: int) -> str:
    """SQL for lines of JSON objects of at most so many bytes, by the columns and their types."""
    paths = ", ".join(quoted(literal(path)) for path in files)
    types = ", ".join(f"{quoted(name)}: {quoted(kind)}" for name, kind in columns.items())
    return (
        f"read_json([{paths}], format = 'newline_delimited', maximum_object_size = {longest}, "
        f"columns = {{{types}}})"
    )


def refusal(place: str, what: str) -> str:
    """SQL that ends its query with `BadSource`; `place` is SQL, too."""
    return f"error({quoted(_REFUSED)} || {place} || {quoted(what)})"


def quoted(text: str) -> str:
    """A string as SQL spells it."""
    return "'" + text.replace("'", "''") + "'"


def literal(path: Path) -> str:
    """A path as DuckDB reads one that is no glob; raises `BadInput`."""
    check_name(str(path))
    return "".join(f"[{char}]" if char in "*?[" else char for char in str(path))
