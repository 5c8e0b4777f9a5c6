"""Temporary databases."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from sqlite3 import Cursor

import pytest

from dedupindex.errors import DedupError
from dedupindex.runtime.scratch_database import open_scratch


@pytest.mark.parametrize("at_once", [True, False])
def test_a_full_disk_is_no_crash(at_once: bool) -> None:
    insert, rows = "INSERT INTO rows VALUES (?)", [(bytes(1000),)] * 100
    with closing(open_scratch()) as database:
        database.execute("PRAGMA max_page_count = 10")  # stands for a file system without room
        database.execute("CREATE TABLE rows (data BLOB)")
        with pytest.raises(DedupError, match="full. Set TMPDIR to a directory with more room"):
            if at_once:
                database.executemany(insert, rows)
            for row in rows:
                database.execute(insert, row)


@pytest.mark.parametrize(
    "fetch",
    [
        list,
        lambda rows: rows.fetchall(),
        lambda rows: rows.fetchmany(3),
        lambda rows: [rows.fetchone() for _ in range(3)],
    ],
)
def test_an_error_while_rows_are_read_is_no_crash(
    fetch: Callable[[Cursor], list[tuple[int]]],
) -> None:
    with closing(open_scratch()) as database:
        database.create_function("fail_at_3", 1, lambda number: 1 // (3 - number))
        rows = database.execute("SELECT fail_at_3(column1) FROM (VALUES (1), (2), (3))")
        with pytest.raises(DedupError, match="temporary files cannot be written or read"):
            fetch(rows)
