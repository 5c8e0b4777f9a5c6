"""Parquet tables of captures for tests, and the CDX of the same captures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb

from dedupindex.corpus.row import iso
from dedupindex.runtime.duckdb import quoted
from dedupindex.sources.table_columns import NO_NAMES

TYPES = {  # of the columnar index of Common Crawl, in its order
    "url_surtkey": "VARCHAR",
    "url": "VARCHAR",
    "fetch_time": "TIMESTAMP",
    "fetch_status": "SMALLINT",
    "fetch_redirect": "VARCHAR",
    "content_digest": "VARCHAR",
    "content_mime_type": "VARCHAR",
    "content_mime_detected": "VARCHAR",
    "content_truncated": "VARCHAR",
    "warc_filename": "VARCHAR",
    "warc_record_offset": "INTEGER",
    "warc_record_length": "INTEGER",
}
BASE32 = "FKXGYNOJJ7H3IFO35FPUBC445EPOQRXN"
ROW: dict[str, Any] = {
    "url_surtkey": "com,example)/",
    "url": "http://example.com/",
    "fetch_time": "2026-11-20 09:14:17",
    "fetch_status": 200,
    "content_digest": BASE32,
    "content_mime_type": "image/png",
    "content_mime_detected": "image/png",
    "warc_filename": "crawl-data/CC-MAIN-2026-47/segments/1/warc/a.warc.gz",
    "warc_record_offset": 333,
    "warc_record_length": 1043,
}


def write_table(
    path: Path,
    rows: Sequence[Mapping[str, Any]],
    types: Mapping[str, str] = TYPES,
    *,
    group: int = 122_880,
    compression: str = "gzip",
) -> Path:
    """Write a table; values are text, numbers, bytes or None, and are cast to the types."""
    columns = ", ".join(f'"{name}" {kind}' for name, kind in types.items())
    with duckdb.connect(config={"threads": 1}) as database:
        database.execute(f"CREATE TABLE t ({columns})")
        if rows:
            values = ", ".join(
                f"unnest(CAST(? AS {'BLOB' if kind == 'BLOB' else 'VARCHAR'}[]))"
                for kind in types.values()
            )
            database.execute(
                f"INSERT INTO t SELECT {values}",
                [[_value(row.get(name), kind) for row in rows] for name, kind in types.items()],
            )
        database.execute(
            f"COPY t TO {quoted(str(path))} (FORMAT parquet, COMPRESSION {compression}, "
            f"ROW_GROUP_SIZE {group})"
        )
    return path


def damage_group(table: Path, number: int) -> None:
    """Overwrite the data of all columns of a row group."""
    with duckdb.connect(config={"threads": 1}) as database:
        begin, end = database.execute(
            "SELECT min(data_page_offset), "
            "max(data_page_offset) "
            f"FROM parquet_metadata({quoted(str(table))}) WHERE row_group_id = {number}"
        ).fetchone() or (0, 0)
    data = bytearray(table.read_bytes())
    data[begin:end] = b"\xff" * (end - begin)
    table.write_bytes(data)


def _value(value: Any, kind: str) -> Any:
    if value is None or isinstance(value, bytes):
        return value
    return str(value).encode() if kind == "BLOB" else str(value)


def table_of_cdx(cdx: Path, table: Path, names: Mapping[str, str] = NO_NAMES) -> Path:
    """Write the table of a CDX with 11 columns, its columns named as usual or by `names`."""
    rows = []
    for line in cdx.read_text().splitlines():
        columns = line.split(" ")
        if columns[0] == "":
            continue  # the header
        values = {
            "url_surtkey": columns[0], "fetch_time": iso(columns[1]), "url": columns[2],
            "content_mime_type": columns[3], "fetch_status": columns[4],
            "content_digest": columns[5], "warc_record_length": columns[8],
            "warc_record_offset": columns[9], "warc_filename": columns[10],
        }  # fmt: skip
        rows.append(
            {
                names.get(name, name): None if value == "-" else value
                for name, value in values.items()
            }
        )
    types = {names.get(name, name): kind for name, kind in TYPES.items()}
    return write_table(table, rows, types)


def cdx_line(row: Mapping[str, Any]) -> str:
    """Return the line of a CDX with 11 columns for a row of a table."""
    values = {name: "-" if row.get(name) is None else row[name] for name in TYPES}
    digits = "".join(char for char in str(values["fetch_time"]) if char.isdigit())
    return (
        "{url_surtkey} {digits} {url} {content_mime_type} {fetch_status} {content_digest} - - "
        "{warc_record_length} {warc_record_offset} {warc_filename}"
    ).format(**values, digits=digits)
