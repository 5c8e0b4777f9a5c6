"""Parquet tables of captures, such as the columnar index of Common Crawl, in SQL of DuckDB.

DuckDB reads only the columns that a corpus needs. It skips row groups whose statistics exclude all
of their rows if the end of the file proves that every row has a URL and a time, because then no row
has to be counted as refused. So `surt`, `url` and `status` select row groups of sorted tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from dedupindex.corpus.row import COLUMNS, time_of
from dedupindex.errors import BadSource, Damaged, DedupError
from dedupindex.object_store import is_remote, redacted
from dedupindex.object_store.as_filesystem import PREFIX, ObjectFiles
from dedupindex.runtime.duckdb import Database, errors_as, literal, one_thread, quoted
from dedupindex.sources.rows import REVISIT_MIME
from dedupindex.sources.table_columns import Column, Names, find_columns

_READ = "read_parquet("
_REQUIRED = ("url", "fetch_time")
_YEARS = ("0001-01-01", "10000-01-01")  # which 14 digits can state
_SMALL = ("TINYINT", "SMALLINT", "INTEGER", "UTINYINT", "USMALLINT")  # can always be cast
_FIELDS = {  # by our columns; absent ones are not known
    "surt": "url_surtkey", "mime": "content_mime_type", "status": "fetch_status",
    "digest": "content_digest", "redirect": "fetch_redirect", "length": "warc_record_length",
    "offset": "warc_record_offset", "container": "warc_filename",
}  # fmt: skip


def select_tables(paths: Sequence[str], names: Names) -> list[str]:
    """Return a query for the captures of each table; raises `BadSource`."""
    with ExitStack() as opened:
        database = opened.enter_context(one_thread())
        files = ObjectFiles(database) if any(map(is_remote, paths)) else None
        return [_query(path, names, database, files) for path in paths]


@contextmanager
def reading_tables(database: Database, query: str, sources: Sequence[str]) -> Iterator[None]:
    """Let a database read the tables that a query names, also those in object stores.

    Raises `BadSource` if one cannot be read.
    """
    if _READ not in query:
        yield
        return
    files = ObjectFiles(database) if PREFIX in query else None
    try:
        with errors_as(Damaged):
            yield
    except Damaged as error:
        if files is not None and (failure := files.take_failure()):
            raise failure from error
        if str(error).startswith("IO Error"):  # perhaps of temporary files
            raise DedupError(f"DuckDB failed: {error}") from error
        names = ", ".join(map(redacted, sources))
        raise BadSource(f"a Parquet table of {names} cannot be read: {error}") from error


def _query(path: str, names: Names, database: Database, files: ObjectFiles | None) -> str:
    name = redacted(path) if is_remote(path) else path
    place = quoted(PREFIX + path if is_remote(path) else literal(Path(path)))
    table = f"{_READ}{place}, hive_partitioning = false)"
    try:
        with errors_as(Damaged):
            types = database.execute(f"DESCRIBE SELECT * FROM {table}").fetchall()
            found = find_columns(
                name, {column: kind for column, kind, *_ in types}, names, _REQUIRED
            )
            is_good = _is_good(found, place, database)
    except Damaged as error:
        if files is not None and (failure := files.take_failure()):
            raise failure from error
        raise BadSource(f"{name} is no whole Parquet file: {error}") from error
    values = {
        ours: _typed(found[theirs], COLUMNS[ours])
        for ours, theirs in _FIELDS.items()
        if theirs in found
    }
    mime = values.pop("mime", "NULL")
    values |= {
        "url": found["url"].text,
        "timestamp": f"left({found['fetch_time'].digits}, 14)",
        "revisit": f"coalesce({mime} = {quoted(REVISIT_MIME.decode())}, false)",
        "mime": f"CASE WHEN lower({mime}) NOT IN ('warc/revisit', 'unk') THEN lower({mime}) END",
        "origin": quoted(path.rpartition("/")[0]),
        "good": is_good,
    }
    typed = [f'{values.get(name, "NULL")}::{kind} AS "{name}"' for name, kind in COLUMNS.items()]
    return f"SELECT {', '.join(typed)} FROM {table}"


def _typed(column: Column, kind: str) -> str:
    """Return SQL of a value as one of our types; DuckDB sees through casts that cannot fail."""
    if kind == "VARCHAR":
        return column.text
    return column.value if column.kind in _SMALL else f"TRY_CAST({column.text} AS {kind})"


def _is_good(columns: Mapping[str, Column], place: str, database: Database) -> str:
    """Return SQL of whether a row has a URL and a time; ``true`` if that is known of all rows."""
    url, time = columns["url"], columns["fetch_time"]
    if time.is_time:
        (known,) = database.execute(
            "SELECT bool_and(coalesce(stats_null_count = 0 AND CASE WHEN path_in_schema = ? "
            "THEN stats_min_value <> '' ELSE try_cast(stats_min_value AS TIMESTAMP) >= ? "
            "AND try_cast(stats_max_value AS TIMESTAMP) < ? END, false)) "
            f"FROM parquet_metadata({place}) WHERE path_in_schema IN (?, ?)",
            [url.name, *_YEARS, url.name, time.name],
        ).fetchone() or (False,)
        if known:
            return "true"
    digits = f"left({time.digits}, 14)"
    is_time = (
        f"regexp_full_match({time.digits}, '[0-9]{{14}}(?:[0-9]{{3}})?') "
        f"AND {time_of(digits)} IS NOT NULL"
    )
    return f"coalesce({url.text} <> '' AND {is_time}, false)"
