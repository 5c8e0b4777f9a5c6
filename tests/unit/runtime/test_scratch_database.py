"""Temporary databases."""

from __future__ import annotations

from contextlib import closing

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
