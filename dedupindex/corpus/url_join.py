"""Joins of a corpus: with the URLs in a file, and with what pages embed.

Both are tables of keys in DuckDB, which spills to disk, so that they may be of any length. A key
is a URL or its canonical form. Captures without a canonical form in the metadata get it here.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import orjson

from dedupindex.corpus.row import as_text, seconds_of
from dedupindex.errors import BadInput
from dedupindex.runtime.duckdb import Database, from_json
from dedupindex.runtime.files import named_errors
from dedupindex.sources.line_source import GZIP
from dedupindex.urlkey import urlkey

URL, SURT = JOINED_BY = ("url", "surt")
"""How a URL of a list is compared: as it is written, or in its canonical form."""
_MAX_LINE = 1 << 21  # bytes of a URL
_MIN_LINE = 1 << 16  # bytes that DuckDB is to expect
_ROWS = 1000  # fetched from DuckDB at once
_COLUMNS = {"k": "VARCHAR", "t": "VARCHAR"}


class UrlList(NamedTuple):
    """Keep the captures of the URLs in a file, one a line."""

    file: Path
    by: str  # one of `JOINED_BY`


class JoinTable(NamedTuple):
    """A table of keys ``k``, of what pages embed with the times ``t`` of the pages.

    The empty key is in it, so that lines that are not captures are kept, to be counted.
    """

    name: str
    by: str

    @property
    def reading(self) -> str:
        """SQL of a join while captures are read; those without a canonical form are kept."""
        column = "url" if self.by == URL else "surt"
        key = f"CASE WHEN good THEN coalesce({column}, '') ELSE '' END"
        return f"SEMI JOIN {self.name} ON {key} = {self.name}.k"


def url_list(file: str | Path, by: str) -> UrlList:
    """Raises `BadInput` for another way to compare URLs."""
    if by not in JOINED_BY:
        raise BadInput(f"URLs are compared by {' or '.join(JOINED_BY)}, not by {by!r}")
    return UrlList(Path(file), by)


def keys_of_list(urls: UrlList) -> Iterator[bytes]:
    """Yield lines of JSON with the keys of a list; raises `BadInput` if it cannot be read."""
    for url in _lines(urls.file):
        yield key_line(url, urls.by)


def key_line(url: bytes, by: str, timestamp: str | None = None) -> bytes:
    """Return the line of a URL in a table of keys."""
    key = url if by == URL else urlkey(url)
    return orjson.dumps({"k": as_text(key), "t": timestamp}) + b"\n"


def _lines(file: Path) -> Iterator[bytes]:
    """Yield the lines of a file, plain or gzipped, without space around them; none is empty."""
    try:
        with open(file, "rb") as plain:
            packed = plain.peek(2)[:2] == GZIP
            with gzip.open(plain) if packed else plain as stream:
                number = 0
                while line := stream.readline(_MAX_LINE + 1):
                    number += 1
                    if len(line) > _MAX_LINE:
                        raise BadInput(f"{file}: line {number:,} is too long to be a URL")
                    if line := line.removeprefix(b"\xef\xbb\xbf").strip():
                        yield line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadInput(f"{file} is damaged gzip: {error}") from error
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror}") from error


def write_keys(lines: Iterable[bytes], file: Path) -> None:
    """Write the lines of `key_line` to a file, after one with the empty key."""
    with named_errors(file), open(file, "wb") as stream:
        stream.write(orjson.dumps({"k": "", "t": None}) + b"\n")
        stream.writelines(lines)


def load(database: Database, file: Path, name: str, by: str) -> JoinTable:
    """Make a table of the keys in a file of `write_keys`, and remove the file."""
    _load(database, file, name, _COLUMNS)
    return JoinTable(name, by)


def _load(database: Database, file: Path, name: str, columns: Mapping[str, str]) -> None:
    """Make a table of lines of JSON. DuckDB allocates some times the length of the longest."""
    with open(file, "rb") as stream:
        longest = max(map(len, stream), default=0)
    rows = from_json([file], columns, max(longest, _MIN_LINE))
    database.execute(f"CREATE TABLE {name} AS SELECT * FROM {rows}")
    file.unlink()


def complete(database: Database, join: JoinTable, home: Path) -> None:
    """Remove the captures from ``chosen`` that have no canonical form and are of no URL."""
    if join.by == URL:
        return
    _key_urls(database, home)
    database.execute(
        "DELETE FROM chosen WHERE good AND surt IS NULL AND url NOT IN "
        f"(SELECT url FROM keyed_urls SEMI JOIN {join.name} ON keyed_urls.k = {join.name}.k)"
    )
    database.execute("DROP TABLE keyed_urls")


def keep_of_list(database: Database, join: JoinTable, home: Path) -> None:
    """Keep the captures of ``chosen`` that are of a URL of a list."""
    database.execute(f"CREATE TABLE joined AS SELECT chosen.* FROM chosen {join.reading}")
    database.execute("DROP TABLE chosen")
    database.execute("ALTER TABLE joined RENAME TO chosen")
    complete(database, join, home)


def keep_nearest(database: Database, join: JoinTable, home: Path) -> None:
    """Keep the captures of ``chosen`` that are nearest in time to a page that embeds their URL.

    Of two that are equally near the earlier one is kept; within a second one that is no redirect.
    """
    _key_urls(database, home)
    time, page = seconds_of('"timestamp"'), seconds_of("t")
    order = 'status BETWEEN 300 AND 399, revisit, url, container, "offset"'
    database.execute(
        f"CREATE TABLE moments AS SELECT coalesce(surt, keyed_urls.k) AS k, {time} AS t, "
        f"arg_min(chosen.rowid, ({order.replace('url', 'chosen.url')})) AS id FROM chosen "
        "LEFT JOIN keyed_urls ON surt IS NULL AND keyed_urls.url = chosen.url GROUP BY ALL"
    )
    database.execute(
        f"CREATE TABLE pages AS SELECT k, {page} AS t FROM {join.name} WHERE t IS NOT NULL"
    )
    for name, side in (("before", "<="), ("after", ">=")):
        database.execute(
            f"CREATE TABLE {name} AS SELECT p.k, p.t, m.t AS found, m.id FROM pages AS p "
            f"ASOF JOIN moments AS m ON m.k = p.k AND m.t {side} p.t"
        )
    database.execute(
        "CREATE TABLE nearest AS SELECT DISTINCT id FROM (SELECT id FROM "
        "(SELECT * FROM before UNION ALL SELECT * FROM after) QUALIFY "
        "row_number() OVER (PARTITION BY k, t ORDER BY abs(found - t), found) = 1)"
    )
    database.execute("DELETE FROM chosen WHERE rowid NOT IN (SELECT id FROM nearest)")
    for table in ("keyed_urls", "moments", "pages", "before", "after", "nearest"):
        database.execute(f"DROP TABLE {table}")


def _key_urls(database: Database, home: Path) -> None:
    """Make ``keyed_urls``: the canonical form of each URL whose metadata have none."""
    file = home / "urls.keys"
    rows = database.execute("SELECT DISTINCT url FROM chosen WHERE good AND surt IS NULL")
    with named_errors(file), open(file, "wb") as stream:
        while batch := rows.fetchmany(_ROWS):
            for (url,) in batch:
                pair = {"url": url, "k": as_text(urlkey(url.encode()))}
                stream.write(orjson.dumps(pair) + b"\n")
    _load(database, file, "keyed_urls", {"url": "VARCHAR", "k": "VARCHAR"})
