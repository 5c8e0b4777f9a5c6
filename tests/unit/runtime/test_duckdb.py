"""Databases of DuckDB for one task."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from threading import Timer

import pytest

from dedupindex.runtime.duckdb import one_thread, open_database

ENDLESS = "SELECT sum(a.range * b.range) FROM range(1000000000) a, range(1000000000) b"


@pytest.mark.parametrize("small", [True, False])
def test_an_interrupted_query_is_an_interrupt(small: bool, tmp_path: Path) -> None:
    """DuckDB raises `RuntimeError` for it, which a command would print as a crash."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupt = Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupt.start()
            if small:
                with one_thread() as database:
                    database.execute(ENDLESS)
            with open_database(tmp_path, "100MB", 1) as (database, _):
                database.execute(ENDLESS)
    finally:
        interrupt.join()
        signal.signal(signal.SIGINT, before)
