"""One container to its file of lines, in any process."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

from dedupindex.capture import Problem
from dedupindex.errors import BadSource
from dedupindex.post_crawl.manifest.lines import Line, ManifestContainer
from dedupindex.post_crawl.manifest.parquet import (
    Manifest,
    ManifestEntry,
    ParquetWriter,
    lines_file,
    references_file,
)
from dedupindex.post_crawl.manifest.record_lines import ManifestOptions
from dedupindex.post_crawl.manifest.scan_file import Scan
from dedupindex.runtime.duckdb import Database, one_thread, open_database, quoted
from dedupindex.runtime.workers import Count
from dedupindex.sources.warc_files import SourceFile


class ManifestTask(NamedTuple):
    """One container to read."""

    number: int
    file: SourceFile
    top: Path
    options: ManifestOptions


class Read(NamedTuple):
    """How that went; without an entry the container is left out."""

    entry: ManifestEntry | None
    problems: list[Problem]


def read_container(task: ManifestTask, count: Count) -> Read:
    """Read a container and write its lines. What it returns is on disk."""
    path = task.file.path
    try:
        references = ParquetWriter(references_file(task.top, task.number))
        try:
            refer = partial(_one, references)
            with closing(Scan(path, task.number, task.options, refer)) as scan:
                return _written(task, scan, references, count)
        finally:
            references.drop()
    except BadSource as error:
        return Read(None, [Problem(path, -1, str(error))])


def _one(spool: ParquetWriter, line: Line) -> None:
    spool.add([line])


def _written(task: ManifestTask, scan: Scan, references: ParquetWriter, count: Count) -> Read:
    file = task.file
    spool = ParquetWriter(lines_file(task.top, task.number))
    try:
        before = seen = 0
        for lines in scan.lines():
            spool.add(lines)
            count(scan.position - before, spool.lines - seen)
            before, seen = scan.position, spool.lines
        problems = [Problem(file.path, *problem) for problem in scan.problems]
        if scan.changed:
            return Read(None, problems)
        if references.lines:
            references.finish(_database())
        spool.finish(_database(), stay="damaged" if scan.damaged else "")
    finally:
        spool.drop()
    container = ManifestContainer(
        task.number, file.root, file.name, scan.size, *scan.mark, scan.content_hash
    )
    entry = ManifestEntry(
        container, spool.lines, dict(scan.records), scan.problems, dict(scan.remarks)
    )
    return Read(entry, problems)


_databases: list[Database] = []  # of this process, made when it is needed


def _database() -> Database:
    if not _databases:
        _databases.append(one_thread())
    return _databases[0]


# Two manifests beside each other: which captures of one the other does not have.

SAME_CAPTURE = ("url", "moment", "strong", "length", "status", "coding", "content_type")
"""Columns that a conversion leaves as they are."""
SAME_RECORD = (*SAME_CAPTURE, "stored", "record_id", "date", "digest", "name")
"""Columns of a record that was copied as the bytes it is, its file among them."""
_NAMED = 20  # captures of a difference; more are only counted


class MissingCaptures(NamedTuple):
    """Captures that one manifest has and the other has not."""

    number: int
    named: list[tuple[str, str]]  # URL and date of the first


class ManifestDifference(NamedTuple):
    """What two manifests do not have in common."""

    gone: MissingCaptures  # only before
    new: MissingCaptures  # only after


def compare(
    before: Manifest, after: Manifest, columns: tuple[str, ...], beside: Path, memory: str = "1GB"
) -> ManifestDifference:
    """Compare all captures by some columns, out of core in a directory below `beside`."""
    with open_database(beside, memory, 0) as (database, _):
        for name, manifest in (("before", before), ("after", after)):
            containers = quoted(f"{manifest.path}/containers.parquet")
            database.execute(f"""
                CREATE VIEW {name} AS SELECT l.*, c.name
                FROM read_parquet({quoted(manifest.parquet)}) AS l
                JOIN read_parquet({containers}) AS c ON c.number = l.container""")
        chosen = ", ".join(f'"{column}"' for column in columns)
        return ManifestDifference(
            _missing(database, "before", "after", chosen),
            _missing(database, "after", "before", chosen),
        )


def _missing(database: Database, mine: str, theirs: str, columns: str) -> MissingCaptures:
    """Those that `mine` has more often than `theirs`."""
    database.execute(f"""
        CREATE OR REPLACE TABLE missing AS
        SELECT any_value(u) AS url, any_value(d) AS date, sum(mine) AS n
        FROM (SELECT {columns}, url AS u, date AS d, 1 AS mine FROM {mine}
              UNION ALL SELECT {columns}, url AS u, date AS d, -1 FROM {theirs})
        GROUP BY {columns} HAVING sum(mine) > 0""")
    row = database.execute("SELECT sum(n) FROM missing").fetchone()
    named = database.execute(
        f"SELECT url, date FROM missing ORDER BY url, date LIMIT {_NAMED}"
    ).fetchall()
    return MissingCaptures(int(row[0] or 0) if row else 0, named)
