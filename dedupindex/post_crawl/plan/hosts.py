"""What a run did for each host: captures from the manifest, revisits and bytes from their spool."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import orjson

from dedupindex.runtime.duckdb import Database, literal, quoted, working

_HOST = r"^[A-Za-z][A-Za-z0-9+.-]*://(?:[^/?#]*@)?([^/?#:]+|\[[^\]/?#]*\])"
_OF = f"""coalesce(
  nullif(rtrim(lower(regexp_extract(url, {quoted(_HOST)}, 1)), '.'), ''),
  left(lower(split_part(url, ':', 1)), 255))"""

_ORDER = "ORDER BY saved DESC, captures DESC, host"
_AT_ONCE = 10_000


class Host(NamedTuple):
    """What a host has, and what became of it."""

    host: str
    captures: int
    revisits: int
    bytes_saved: int


def spooled(hosts: Mapping[str, Sequence[int]]) -> Iterable[str]:
    """Lines for the spool: hosts with revisits and bytes."""
    for host, (revisits, saved) in hosts.items():
        if not set(host) & set('\t\r\n"\0'):
            yield f"{host}\t{revisits}\t{saved}\n"


def by_host(
    lines: str, spool: Path, most: int, memory: str, everything: Path | None = None
) -> tuple[list[Host], Host]:
    """The hosts of most bytes saved, and all others together; `lines` is a glob of Parquet.

    All of them go to the file `everything`, a line of JSON for each.
    """
    with working(spool.parent, memory, 0) as (database, _):
        database.execute(f"""
            CREATE TABLE hosts AS
            SELECT coalesce(c.host, r.host) AS host, coalesce(captures, 0) AS captures,
              coalesce(revisits, 0) AS revisits, coalesce(saved, 0) AS saved
            FROM (SELECT {_OF} AS host, count(*) AS captures
                  FROM read_parquet({quoted(lines)}) GROUP BY 1) AS c
            FULL JOIN (
              SELECT host, sum(revisits) AS revisits, sum(saved) AS saved
              FROM read_csv({quoted(literal(spool))}, auto_detect = false, header = false,
                delim = '\t', new_line = '\\n', quote = '', escape = '', nullstr = '\x01',
                columns = {{'host': 'VARCHAR', 'revisits': 'BIGINT', 'saved': 'BIGINT'}})
              GROUP BY 1) AS r ON c.host = r.host""")
        first = list(_hosts(database, f"{_ORDER} LIMIT {most}"))
        if everything is not None:
            with open(everything, "wb") as into:
                for host in _hosts(database, _ORDER):
                    into.write(orjson.dumps(host._asdict()) + b"\n")
        row = database.execute(
            "SELECT sum(captures), sum(revisits), sum(saved), count(*) FROM hosts"
        ).fetchone()
    assert row is not None
    captures, revisits, saved, count = (int(value or 0) for value in row)
    rest = Host(
        f"{max(count - len(first), 0):,} others",
        captures - sum(host.captures for host in first),
        revisits - sum(host.revisits for host in first),
        saved - sum(host.bytes_saved for host in first),
    )
    return first, rest


def _hosts(database: Database, order: str) -> Iterator[Host]:
    found = database.execute(f"SELECT host, captures, revisits, saved FROM hosts {order}")
    while rows := found.fetchmany(_AT_ONCE):
        for host, *counts in rows:
            yield Host(host, *map(int, counts))
