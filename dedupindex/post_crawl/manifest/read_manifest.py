"""One container to its file of lines, in any process."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

from dedupindex.capture import Problem
from dedupindex.errors import BadSource
from dedupindex.post_crawl.manifest.lines import Line, ManifestContainer
from dedupindex.post_crawl.manifest.parquet import ManifestEntry, lines_file, references_file
from dedupindex.post_crawl.manifest.record_lines import ManifestOptions
from dedupindex.post_crawl.manifest.scan_file import Scan
from dedupindex.post_crawl.manifest.spool import ParquetWriter
from dedupindex.runtime.duckdb import Database, one_thread
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
