"""A whole run: lock, see what is done, read the rest in one or several processes, finish.

A container counts once its line in ``containers.jsonl`` is on disk, which is after its Parquet file
is. So a run that was killed goes on where it was, and what it left half done is removed.
"""

from __future__ import annotations

import gc
import json
import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dedupindex.capture import Problem
from dedupindex.counts import OnProgress, ProgressUpdate
from dedupindex.errors import BadInput, SettingsConflict
from dedupindex.object_store import is_remote
from dedupindex.post_crawl.manifest.lines import ManifestContainer
from dedupindex.post_crawl.manifest.parquet import (
    CONTAINERS,
    FILE,
    FORMAT,
    LINES,
    REFERENCES,
    ManifestEntry,
    lines_file,
    nothing,
    read_about,
    read_entries,
    references_file,
    write_containers,
)
from dedupindex.post_crawl.manifest.read_manifest import ManifestTask, Read, read_container
from dedupindex.post_crawl.manifest.record_lines import ManifestOptions
from dedupindex.runtime.duckdb import one_thread, write_parquet
from dedupindex.runtime.files import exclusive, sync_directory, write_file
from dedupindex.runtime.spark import HINT, Cluster, FilePiece, PieceWriter, pieces, spark_session
from dedupindex.runtime.workers import read_all
from dedupindex.sources.warc_files import SourceFile, Sources, find, status_of

# Containers read on a cluster by the function that reads them here, their lines brought here.


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


LOCK = "lock"
_OURS = re.compile(r"([0-9]{8,})\.parquet")


@dataclass
class ManifestReport:
    """What a run did, and what the manifest then holds."""

    files: int = 0  # read in this run
    known: int = 0  # read before, unchanged since
    gone: int = 0  # of which the lines were taken out: changed, or no longer there
    bytes: int = 0  # of all files
    lines: int = 0
    records: Counter[str] = field(default_factory=Counter)  # of all files, by kind
    remarks: Counter[str] = field(default_factory=Counter)  # of all files, see `record.REMARKS`
    skipped: int = 0  # files met that are neither WARC nor ARC
    seconds: float = 0.0
    problems: list[Problem] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        said = asdict(self)
        said.update(problems=len(self.problems), seconds=round(self.seconds, 3))
        counts = {"records": self.records, "remarks": self.remarks}
        return {**said, **{name: dict(sorted(count.items())) for name, count in counts.items()}}


def make(
    sources: list[str] | Sources,
    top: Path,
    options: ManifestOptions,
    *,
    jobs: int = 1,
    spark: str = "",
    on_progress: OnProgress = lambda seen: None,
) -> ManifestReport:
    """Make or go on with the manifest in the directory `top`.

    Containers are read by `jobs` processes, or on the cluster whose master is `spark`.
    Raises `BadSource`; `BadInput` if `top` is something else; `SettingsConflict` if it was made
    with other options; `IndexBusy` if another run writes to it.
    """
    begin = time.monotonic()
    found = sources if isinstance(sources, Sources) else find(sources, elsewhere=True)
    _prepare(top, options)
    with exclusive(top / LOCK, f"the manifest {top}"):
        write_about(top, options, complete=False)
        made = ManifestReport(skipped=found.skipped, problems=list(found.problems))
        run = _Run(top, options, made)
        total = sum(file.size for file in run.wanted(found.files))
        reading = (
            _read_on(spark, run.tasks, total, on_progress)
            if spark and run.tasks
            else _read_all(run.tasks, jobs, total, on_progress)
        )
        for read in reading:
            run.take(read)
        gc.unfreeze()  # or the interpreter could not let go of DuckDB, which complains at exit
        run.finish()
    made.seconds = time.monotonic() - begin
    return made


class _Run:
    """The manifest while it is written."""

    def __init__(self, top: Path, options: ManifestOptions, made: ManifestReport) -> None:
        self.tasks: list[ManifestTask] = []
        self._top, self._options, self._made = top, options, made
        self._entries = read_entries(top)
        self._last = _clear(top, self._entries)

    def wanted(self, files: list[SourceFile]) -> list[SourceFile]:
        """The files that are not known as they are; what has changed or is gone is taken out."""
        known = {entry.container.path: entry for entry in self._entries.values()}
        made, left = self._made, []
        for file in files:
            entry = known.pop(file.path, None)
            if entry is not None and _same(entry.container, file):
                made.known += 1
                made.problems += entry.told()
                continue
            if entry is not None:
                self._drop(entry)
            left.append(file)
        for entry in known.values():  # of an earlier run with other sources
            now = status_of(entry.container.path)
            if now is None or not _same(entry.container, now):
                self._drop(entry)
        for file in sorted(left, key=lambda file: -file.size):
            self._last += 1
            self.tasks.append(ManifestTask(self._last, file, self._top, self._options))
        return left

    def take(self, read: Read) -> None:
        """Note a container that was read."""
        self._made.problems += read.problems
        self._made.files += 1
        if read.entry is not None:
            entry = read.entry
            self._entries[entry.container.number] = entry
            rest = {"lines": entry.lines, "records": entry.records, "problems": entry.problems}
            if entry.remarks:
                rest["remarks"] = entry.remarks
            self._note({**entry.container._asdict(), **rest})

    def finish(self) -> None:
        """Write what comes last, and add up."""
        entries, made = self._entries, self._made
        with one_thread() as database:
            for empty in (lines_file(self._top, 0), references_file(self._top, 0)):
                if not empty.exists():
                    write_parquet(database, nothing(), empty)
            write_containers(database, self._top, entries)
        write_about(self._top, self._options, complete=True)
        for entry in entries.values():
            made.bytes += entry.container.size
            made.lines += entry.lines
            made.records.update(entry.records)
            made.remarks.update(entry.remarks)

    def _drop(self, entry: ManifestEntry) -> None:
        number = entry.container.number
        self._note({"number": number, "gone": True})
        for file in (lines_file, references_file):
            file(self._top, number).unlink(missing_ok=True)
        del self._entries[number]
        self._made.gone += 1

    def _note(self, said: dict[str, Any]) -> None:
        with open(self._top / CONTAINERS, "ab") as stream:
            stream.write(json.dumps(said).encode("ascii") + b"\n")
            stream.flush()
            os.fsync(stream.fileno())


def _read_all(
    tasks: list[ManifestTask], jobs: int, total: int, on_progress: OnProgress
) -> Iterator[Read]:
    gc.freeze()  # what is there now stays: collecting would look at all of it again and again
    try:
        threads = any(is_remote(task.file.path) for task in tasks)  # which looked for them
        yield from read_all(read_container, tasks, jobs, total, on_progress, threads=threads)
    finally:
        gc.unfreeze()  # DuckDB's bindings complain of what is there still when Python ends


def _read_on(
    master: str, tasks: list[ManifestTask], total: int, on_progress: OnProgress
) -> Iterator[Read]:
    with spark_session(master) as cluster:
        yield from read_on(cluster, tasks, total, on_progress)


def _prepare(top: Path, options: ManifestOptions) -> None:
    """Make the directory, or see that it is what these options go on with."""
    if top.exists() and not (top / FILE).exists() and not _is_begun(top):
        raise BadInput(f"{top} holds something else; name a directory that is not there yet")
    if (top / FILE).exists():
        about = read_about(top)
        for name, value in options._asdict().items():
            if about.get(name) != value:
                raise SettingsConflict(
                    f"the manifest {top} was made with {name.replace('_', '-')} "
                    f"{about.get(name)}, not {value}; make another"
                )
    for name in (LINES, REFERENCES):
        (top / name).mkdir(parents=True, exist_ok=True)
    sync_directory(top.parent)


def _is_begun(top: Path) -> bool:
    """Whether there is nothing but what a run begins with before it was killed."""
    return top.is_dir() and all(
        path.name in (LINES, REFERENCES, LOCK) or path.name.startswith(f".{FILE}.")
        for path in top.iterdir()
    )


def write_about(top: Path, options: ManifestOptions, *, complete: bool) -> None:
    about = {"format": FORMAT, **options._asdict(), "complete": complete}
    write_file(top / FILE, json.dumps(about).encode() + b"\n")


def _clear(top: Path, entries: dict[int, ManifestEntry]) -> int:
    """Remove what a killed run left; returns the highest number that was ever given."""
    last = 0
    for path in top.glob(".*.part"):
        path.unlink()
    for path in [*(top / LINES).iterdir(), *(top / REFERENCES).iterdir()]:
        match = _OURS.fullmatch(path.name)
        number = int(match[1]) if match else -1
        last = max(last, number)
        if number and number not in entries:
            path.unlink()
    for number in list(entries):
        last = max(last, number)
        if not lines_file(top, number).exists():
            del entries[number]
    text = (top / CONTAINERS).read_bytes() if (top / CONTAINERS).exists() else b""
    if text and not text.endswith(b"\n"):  # a kill has cut it: what follows begins a new line
        write_file(top / CONTAINERS, text[: text.rfind(b"\n") + 1])
    given = re.findall(rb'"number": ([0-9]+)', text)
    return max([last, *map(int, given)])


def _same(container: ManifestContainer, file: SourceFile | tuple[int, int, int]) -> bool:
    """Whether a file is as it was read. The number of its device may change with every boot.

    What has neither inode nor time of change, as some objects, nobody knows to be the same.
    """
    now = file[2:5] if isinstance(file, SourceFile) else file
    return (container.size, container.mtime_ns, container.inode) == now and any(now[1:])
