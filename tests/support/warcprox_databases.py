"""Databases as warcprox 2.13 makes them (warcprox/dedup.py, warcprox/stats.py)."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

from tests.support.text_sources import HEX

ID = "<urn:uuid:12345678-1234-1234-1234-123456789abc>"
URL, DATE = "http://a.example/", "2026-11-20T09:14:17Z"


def value(url: str = URL, date: str = DATE, record_id: str = ID) -> str:
    """Return the column `value` of a capture."""
    return json.dumps({"id": record_id, "url": url, "date": date}, separators=(",", ":"))


def make_database(path: Path, rows: list[tuple[object, object]], *, wal: bool = False) -> str:
    """Make a database with these keys and values, and with the table of statistics."""
    with closing(sqlite3.connect(path)) as database:
        if wal:
            database.execute("PRAGMA journal_mode=WAL")
        database.execute(
            "create table if not exists buckets_of_stats "
            "(bucket varchar(300) primary key, stats varchar(4000));"
        )
        database.execute(
            "create table if not exists dedup "
            "(  key varchar(300) primary key,  value varchar(4000));"
        )
        insert = "insert or replace into dedup (key, value) values (?, ?)"
        database.executemany(insert, rows)
        database.commit()
    return str(path)


USUAL: list[tuple[object, object]] = [
    (f"sha1:{HEX}|", value()),
    (f"sha1:{HEX}|news", value("http://b.example/")),
]
