"""DuckDB with bounds: so much memory and no more, and a directory for what does not fit.

What is made there is of no use to a later run, and goes with the block.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import duckdb

from dedupindex.errors import BadInput, DedupError
from dedupindex.manifest.spool import quoted

Database = duckdb.DuckDBPyConnection
_INTERRUPTED = "Query interrupted"  # all that DuckDB tells of a KeyboardInterrupt


@contextmanager
def working(beside: Path, memory: str, threads: int) -> Iterator[tuple[Database, Path]]:
    """A database that goes on in a directory of its own below `beside`, and that directory.

    `memory` bounds it, as ``1GB``; threads are of the whole machine with 0. Failures of the
    engine, a full disk among them, are raised as `DedupError`. Tables of joins are built of what
    stands to the right, for the engine cannot know how much is in the Parquet files of a manifest.
    """
    if memory.lstrip().startswith("-"):  # which DuckDB takes for no bound
        raise BadInput(f"--memory {memory}: less than nothing")
    with tempfile.TemporaryDirectory(prefix=".resolve-", dir=beside) as name:
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
        except duckdb.OutOfMemoryException as error:
            raise DedupError(
                f"{memory} of memory were too little, give more with --memory: {_first_line(error)}"
            ) from error
        except duckdb.Error as error:
            raise DedupError(f"DuckDB gave up in {home}: {_first_line(error)}") from error
        except RuntimeError as error:
            if str(error) == _INTERRUPTED:  # Ctrl-C, while a query was at work
                raise KeyboardInterrupt from error
            raise


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
