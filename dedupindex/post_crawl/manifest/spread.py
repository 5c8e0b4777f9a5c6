"""Containers read on a cluster by the function that reads them here, their lines brought here."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from dedupindex.counts import OnProgress, ProgressUpdate
from dedupindex.object_store import is_remote
from dedupindex.post_crawl.manifest.parquet import LINES, REFERENCES, lines_file, references_file
from dedupindex.post_crawl.manifest.read_manifest import ManifestTask, Read, read_container
from dedupindex.runtime.spark import HINT, Cluster, FilePiece, PieceWriter, pieces


def read_on(
    cluster: Cluster, tasks: list[ManifestTask], total: int, on_progress: OnProgress
) -> Iterator[Read]:
    """Read containers on a cluster, many at a time; what is yielded is on disk here."""
    done = records = 0
    for some in cluster.in_turn(tasks):
        files = PieceWriter(some[0].top)
        for row in cluster.rows(_read, some):
            if isinstance(row, FilePiece):
                files.take(row)
                continue
            files.finish()
            if row.entry is not None:
                done += row.entry.container.size
                records += row.entry.lines
            on_progress(ProgressUpdate("reading", done, total, records))
            yield row


def _read(task: ManifestTask) -> Iterator[FilePiece | Read]:
    """Runs on an executor."""
    with tempfile.TemporaryDirectory(prefix="dedupindex-") as name:
        home = Path(name)
        for directory in (LINES, REFERENCES):
            (home / directory).mkdir()
        read = read_container(task._replace(top=home), lambda length, records: None)
        for file in (lines_file, references_file):
            path = file(home, task.number)
            if path.exists():
                yield from pieces(path, str(path.relative_to(home)))
    if read.entry is None and not is_remote(task.file.path):
        problems = [one._replace(message=f"{one.message} ({HINT})") for one in read.problems]
        read = read._replace(problems=problems)
    yield read
