"""What groups came to, written as a part of a plan, whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from dedupindex.post_crawl.manifest.lines import TYPES
from dedupindex.post_crawl.plan.manifest_input import Inputs
from dedupindex.post_crawl.plan.plan_file import (
    CONTAINERS,
    COPIES,
    FORMAT,
    ORIGINALS,
    ORIGINALS_OWN,
    PART,
    MatchCriteria,
    Totals,
)
from dedupindex.runtime.duckdb import Database, literal, number, open_database, quoted
from dedupindex.runtime.files import sync_directory, write_file

_LINE = ", ".join(f'l."{name}"' for name in TYPES)
_ROWS = 20480  # in a row group: so much is read to find one container
STRETCH = 1_000_000  # lines that are joined with what was chosen at once


def write_rows(
    database: Database, inputs: Inputs, alike: MatchCriteria, part: Path, home: Path
) -> None:
    """Write the rows of the plan from ``outcomes`` and ``equal``; they become the view ``planned``.

    All that was chosen is first joined with its originals, which are anywhere, and sorted; then
    with its own lines, some containers at a time. Here lines that have the same hash are asked
    whether they are equal indeed.
    """
    _choose(database)
    same = alike.columns()
    chosen = quoted(literal(home / "chosen.parquet"))
    wanted = ", ".join(
        f'o."{name}" AS original_{name}' for name in dict.fromkeys((*ORIGINALS_OWN, *same))
    )
    database.execute(f"""
        COPY (
          SELECT c.place, c.copy, c.extension, {wanted}
          FROM chosen AS c JOIN (
            SELECT * REPLACE (
              if(hash(record_id) IN (SELECT record FROM shared), '', record_id) AS record_id)
            FROM lines WHERE place IN (SELECT DISTINCT original FROM chosen)) AS o
          ON o.place = c.original ORDER BY c.place)
        TO {quoted(str(home / "chosen.parquet"))} (FORMAT parquet, COMPRESSION lz4_raw)""")
    own = ", ".join(f"c.original_{name}" for name in ORIGINALS_OWN)
    equal = " AND ".join(f"l.{name} = c.original_{name}" for name in same)
    for file, (lines, first, last) in enumerate(inputs.stretches(STRETCH)):
        rows = f"""
            SELECT {_LINE}, c.copy, c.extension, {own} FROM ({lines}) AS l
            JOIN (SELECT * FROM read_parquet({chosen}) WHERE place BETWEEN {first} AND {last}) AS c
            ON l.place = c.place AND {equal}"""
        _copy(database, rows, copies_file(part, file))
    database.execute(
        f"CREATE VIEW planned AS SELECT * FROM read_parquet({quoted(f'{literal(part)}/{COPIES}')})"
    )


def copies_file(part: Path, number: int) -> Path:
    """The file with the copies of a stretch of containers."""
    return part / COPIES.replace("*", f"{number:06d}")


def _choose(database: Database) -> None:
    """Make the tables ``chosen``, of all copies with the places of their originals, and ``shared``.

    The latter has the hashes of record ids of originals that other lines have, too.
    """
    database.execute("""
        CREATE TABLE chosen AS
        SELECT place, original, coalesce(extension, 1) AS extension,
          1 + row_number() OVER (PARTITION BY original ORDER BY key) AS copy
        FROM outcomes LEFT JOIN (
          SELECT place, extension FROM equal JOIN extensions USING (label, form)) USING (place)
        WHERE outcome = 'copy'""")
    database.execute("""
        CREATE TABLE shared AS
        SELECT hash(record_id) AS record FROM lines
        WHERE hash(record_id) IN (
          SELECT record FROM equal WHERE place IN (SELECT DISTINCT original FROM chosen))
        GROUP BY 1 HAVING count(*) > 1""")


def totals_of(database: Database, inputs: Inputs) -> Totals:
    """Count what became of every line of this part that is in the set."""
    totals = Totals()
    ours = f"place >= {inputs.first_place}"
    totals.lines = number(database, f"SELECT count(*) FROM part WHERE {ours}")
    counted = database.execute(
        f"SELECT outcome, count(*) FROM outcomes WHERE {ours} GROUP BY outcome"
    ).fetchall()
    totals.stayed = Counter(dict(counted))
    chosen, hashed = totals.stayed.pop("original", 0), totals.stayed.pop("copy", 0)
    totals.unique = totals.lines - sum(count for _, count in counted)
    row = database.execute(
        f"""
        SELECT count(*), count(*) FILTER (outside), sum(stored),
          count(DISTINCT hash(original_container, original_offset)) FILTER (NOT outside)
        FROM (SELECT *, original_container > {len(inputs.containers)} AS outside FROM planned)"""
    ).fetchone()
    assert row is not None
    totals.copies, totals.outside, totals.stored, totals.originals = (int(n or 0) for n in row)
    totals.stayed["others-stay"] = chosen - totals.originals
    totals.stayed["unlike"] = hashed - totals.copies
    totals.stayed = +totals.stayed
    collisions = database.execute("""
        SELECT count(*) FILTER (NOT reframed), count(*) FILTER (reframed)
        FROM colliding""").fetchone()
    assert collisions is not None
    totals.collisions, totals.reframed = collisions
    totals.collided = number(
        database,
        "SELECT count(*) FROM extensions WHERE label IN "
        "(SELECT label FROM colliding WHERE NOT reframed)",
    )
    return totals


def write_part(
    database: Database,
    inputs: Inputs,
    alike: MatchCriteria,
    part: Path,
    about: dict[str, Any],
    compared: Counter[str],
    home: Path,
) -> Totals:
    """Write the part beside its place and force it to disk; then it appears.

    `home` is a directory for what is needed meanwhile.
    """
    beside = part.with_name(f".{part.name}.{os.getpid()}.part")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        write_rows(database, inputs, alike, beside, home)
        totals = totals_of(database, inputs)
        totals.compared = compared
        stay = """
            SELECT original_container AS container, original_offset AS "offset" FROM planned
            UNION SELECT container, "offset" FROM named"""
        _copy(database, stay, beside / ORIGINALS)
        lines = [
            json.dumps({**container._asdict(), "outside": number > 0})
            for number, places in enumerate((inputs.containers, inputs.outside))
            for container in places
        ]
        write_file(beside / CONTAINERS, "".join(f"{line}\n" for line in lines).encode("ascii"))
        said = {"format": FORMAT, **about, "totals": totals.as_json()}
        write_file(beside / PART, json.dumps(said, indent=1).encode() + b"\n")
        os.rename(beside, part)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    sync_directory(part.parent)
    return totals


def _copy(database: Database, rows: str, target: Path) -> None:
    database.execute(
        f'COPY ({rows} ORDER BY container, "offset") TO {quoted(str(target))} '
        f"(FORMAT parquet, COMPRESSION lz4_raw, ROW_GROUP_SIZE {_ROWS})"
    )
    with open(target, "rb") as stream:
        os.fsync(stream.fileno())


# What a run did for each host: captures from the manifest, revisits and bytes from their spool.

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
    with open_database(spool.parent, memory, 0) as (database, _):
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
