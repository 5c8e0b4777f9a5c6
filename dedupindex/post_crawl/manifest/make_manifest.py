"""Make or update a manifest: read new and changed files, in several processes or on Spark.

A file counts once its line in ``containers.jsonl`` is on disk, which is written after its Parquet
file. So an interrupted run is resumed, and its unfinished files are removed.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from dedupindex.capture import Problem
from dedupindex.counts import OnProgress, ProgressUpdate
from dedupindex.errors import BadSource, SettingsConflict
from dedupindex.object_store import add_task_requests, counting_task, is_remote
from dedupindex.post_crawl.directory_format import check_new_or_ours
from dedupindex.post_crawl.manifest.parquet import (
    BEHIND_DAMAGE,
    CONTAINERS,
    FILE,
    FORMAT,
    LINES,
    REFERENCES,
    ManifestContainer,
    ManifestEntry,
    ParquetWriter,
    lines_file,
    read_about,
    read_entries,
    references_file,
    write_containers,
)
from dedupindex.post_crawl.manifest.record_lines import (
    FileRead,
    ManifestOptions,
    ManifestTask,
    close_database,
    read_container,
)
from dedupindex.runtime.duckdb import one_thread
from dedupindex.runtime.files import exclusive, sync_directory, write_file
from dedupindex.runtime.spark import (
    CREDENTIALS,
    HINT,
    FilePiece,
    PieceWriter,
    pieces,
    spark_session,
)
from dedupindex.runtime.workers import read_all
from dedupindex.sources.warc_files import UNFINISHED, SourceFile, Sources, find, status_of

LOCK = "lock"
_NUMBERED = re.compile(r"([0-9]{8,})\.parquet")


@dataclass
class ManifestReport:
    files: int = 0  # read in this run
    known: int = 0  # read before, unchanged since
    gone: int = 0  # whose lines were removed: changed, or no longer there
    bytes: int = 0  # of all files
    lines: int = 0
    records: Counter[str] = field(default_factory=Counter)  # of all files, by type
    remarks: Counter[str] = field(default_factory=Counter)  # of all files, see `record.REMARKS`
    skipped: int = 0  # files that are neither WARC nor ARC
    seconds: float = 0.0
    problems: list[Problem] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "records": dict(sorted(self.records.items())),
            "remarks": dict(sorted(self.remarks.items())),
            "problems": len(self.problems),
            "seconds": round(self.seconds, 3),
        }


def make(
    sources: list[str] | Sources,
    top: Path,
    options: ManifestOptions,
    *,
    jobs: int = 1,
    spark: str = "",
    on_progress: OnProgress = lambda seen: None,
) -> ManifestReport:
    """Make or update the manifest in `top`, in `jobs` processes or on the Spark cluster `spark`.

    Raises `BadSource`, also if no file could be read; `BadInput` if `top` is something else;
    `SettingsConflict` if it was made with other options; `IndexBusy` if another run writes to it.
    """
    begin = time.monotonic()
    found = sources if isinstance(sources, Sources) else find(sources)
    _prepare(top, options)
    with exclusive(top / LOCK, f"the manifest {top}"):
        _write_about(top, options, complete=False)
        report = ManifestReport(skipped=found.skipped, problems=list(found.problems))
        run = _ManifestRun(top, options, report)
        total = run.plan(found.files)
        if spark and run.tasks:
            results = _read_on_spark(spark, run.tasks, total, on_progress)
        else:
            results = _read_here(run.tasks, jobs, total, on_progress)
        for result in results:
            run.add(result)
        run.finish()
    check_any_read(found, report, spark=spark)
    report.seconds = time.monotonic() - begin
    return report


def check_any_read(found: Sources, report: ManifestReport, *, spark: str = "") -> None:
    """Raise `BadSource` with the first reason if none of the files could be read.

    Empty files are not read. A damaged file was read, and one that is being written is left out.
    """
    whole = [problem for problem in report.problems if problem.offset < 0]
    unread = {problem.container for problem in whole if problem.message != UNFINISHED}
    files = {file.path for file in (*found.files, *found.others) if file.size}
    if not files or not files <= unread:
        return
    first = next(problem for problem in whole if problem.container in files)
    message = first.message
    if not message.startswith(first.container):
        message = f"{first.container}: {message}"
    if spark and found.files and is_remote(first.container):
        message += f" ({CREDENTIALS})"
    count = "the file" if len(files) == 1 else f"any of the {len(files):,} files"
    raise BadSource(f"cannot read {count}: {message}")


class _ManifestRun:
    def __init__(self, top: Path, options: ManifestOptions, report: ManifestReport) -> None:
        self.tasks: list[ManifestTask] = []
        self._top, self._options, self._report = top, options, report
        self._entries = read_entries(top)
        self._last = _clean_up(top, self._entries)
        older = read_about(top)["format"] < BEHIND_DAMAGE
        for number, entry in list(self._entries.items()):
            # somebody removed its lines, or they lack reasons: its file is read again
            if not lines_file(top, number).exists() or (older and entry.problems):
                self._forget(number)

    def plan(self, files: list[SourceFile]) -> int:
        """Make a task for each new or changed file, drop the others; returns the bytes to read."""
        known = {entry.container.path: entry for entry in self._entries.values()}
        new = []
        for file in files:
            entry = known.pop(file.path, None)
            if entry is not None and _same(entry.container, file):
                self._report.known += 1
                self._report.problems += entry.located_problems()
                continue
            if entry is not None:
                self._drop(entry)
            new.append(file)
        for entry in known.values():  # of an earlier run with other sources
            now = status_of(entry.container.path)
            if now is None or not _same(entry.container, now):
                self._drop(entry)
        for file in sorted(new, key=lambda file: -file.size):
            self._last += 1
            self.tasks.append(ManifestTask(self._last, file, self._top, self._options))
        return sum(file.size for file in new)

    def add(self, result: FileRead) -> None:
        self._report.problems += result.problems
        self._report.files += 1
        if (entry := result.entry) is not None:
            self._entries[entry.container.number] = entry
            fields = {name: value for name, value in vars(entry).items() if name != "container"}
            if not entry.remarks:
                del fields["remarks"]
            self._append({**entry.container._asdict(), **fields})

    def finish(self) -> None:
        """Write the files that come last, and add up the counts."""
        with one_thread() as database:
            for empty in (lines_file(self._top, 0), references_file(self._top, 0)):
                if not empty.exists():
                    ParquetWriter(empty).finish(database)
            write_containers(database, self._top, self._entries)
        _write_about(self._top, self._options, complete=True)
        for entry in self._entries.values():
            self._report.bytes += entry.container.size
            self._report.lines += entry.lines
            self._report.records.update(entry.records)
            self._report.remarks.update(entry.remarks)

    def _drop(self, entry: ManifestEntry) -> None:
        self._forget(entry.container.number)
        self._report.gone += 1

    def _forget(self, number: int) -> None:
        self._append({"number": number, "gone": True})
        for file in (lines_file, references_file):
            file(self._top, number).unlink(missing_ok=True)
        del self._entries[number]

    def _append(self, fields: dict[str, Any]) -> None:
        with open(self._top / CONTAINERS, "ab") as stream:
            stream.write(json.dumps(fields).encode("ascii") + b"\n")
            stream.flush()
            os.fsync(stream.fileno())


def _read_here(
    tasks: list[ManifestTask], jobs: int, total: int, on_progress: OnProgress
) -> Iterator[FileRead]:
    try:
        yield from read_all(read_container, tasks, _processes(tasks, jobs), total, on_progress)
    finally:
        close_database()


def _processes(tasks: list[ManifestTask], jobs: int) -> int:
    """Return how many files are read at once.

    If a few more files than `jobs` are most of the work, that is all of these: they share the cores
    evenly, where the last would be read while cores have nothing to do. It never takes more cores.
    """
    total = sum(task.file.size for task in tasks)
    large = sum(4 * jobs * task.file.size > total for task in tasks)
    if jobs < large <= jobs + jobs // 2 and len(os.sched_getaffinity(0)) <= jobs:
        return large
    return jobs


def _read_on_spark(
    master: str, tasks: list[ManifestTask], total: int, on_progress: OnProgress
) -> Iterator[FileRead]:
    """Read files on a cluster and bring their lines here, where they are on disk when yielded."""
    done = records = 0
    with spark_session(master) as cluster:
        for batch in cluster.in_turn(tasks):
            files = PieceWriter(batch[0].top)
            work = partial(counting_task, _read_on_executor)
            rows: Iterator[FilePiece | FileRead] = add_task_requests(cluster.rows(work, batch))
            for row in rows:
                if isinstance(row, FilePiece):
                    files.take(row)
                    continue
                files.finish()
                if row.entry is not None:
                    done += row.entry.container.size
                    records += row.entry.lines
                on_progress(ProgressUpdate("reading", done, total, records))
                yield row


def _read_on_executor(task: ManifestTask) -> Iterator[FilePiece | FileRead]:
    with tempfile.TemporaryDirectory(prefix="dedupindex-") as name:
        home = Path(name)
        for directory in (LINES, REFERENCES):
            (home / directory).mkdir()
        result = read_container(task._replace(top=home), lambda length, records: None)
        for path in (lines_file(home, task.number), references_file(home, task.number)):
            if path.exists():
                yield from pieces(path, str(path.relative_to(home)))
    if result.entry is None and not is_remote(task.file.path):
        problems = [one._replace(message=f"{one.message} ({HINT})") for one in result.problems]
        result = result._replace(problems=problems)
    yield result


def _prepare(top: Path, options: ManifestOptions) -> None:
    """Make the directory, or check that it is a manifest with these options."""
    check_new_or_ours(top / FILE, (LINES, REFERENCES, LOCK), "name a directory that does not exist")
    if (top / FILE).exists():
        about = read_about(top)
        for name, value in options._asdict().items():
            made = about.get(name, "")  # the first formats had no hosts
            if made != value:
                raise SettingsConflict(
                    f"the manifest {top} was made with {name.replace('_', '-')} "
                    f"{'none' if made == '' else made}, not {'none' if value == '' else value}; "
                    "make another"
                )
    for name in (LINES, REFERENCES):
        (top / name).mkdir(parents=True, exist_ok=True)
    sync_directory(top.parent)


def _write_about(top: Path, options: ManifestOptions, *, complete: bool) -> None:
    """Write ``manifest.json``; an update has the format from before until it is complete."""
    known = (top / FILE).exists() and not complete
    number = read_about(top)["format"] if known else FORMAT
    about = {"format": number, **options._asdict(), "complete": complete}
    write_file(top / FILE, json.dumps(about).encode() + b"\n")


def _clean_up(top: Path, entries: dict[int, ManifestEntry]) -> int:
    """Remove what an interrupted run left; returns the highest number that was ever given."""
    last = 0
    for path in top.glob(".*.part"):
        path.unlink()
    for path in [*(top / LINES).iterdir(), *(top / REFERENCES).iterdir()]:
        match = _NUMBERED.fullmatch(path.name)
        number = int(match[1]) if match else -1
        last = max(last, number)
        if number and number not in entries:
            path.unlink()
    last = max([last, *entries])
    text = (top / CONTAINERS).read_bytes() if (top / CONTAINERS).exists() else b""
    if text and not text.endswith(b"\n"):  # cut by a kill
        write_file(top / CONTAINERS, text[: text.rfind(b"\n") + 1])
    return max([last, *map(int, re.findall(rb'"number": ([0-9]+)', text))])


def _same(container: ManifestContainer, file: SourceFile | tuple[int, int, int]) -> bool:
    """Whether a file is as it was read; never without an inode and a time of change."""
    now = file[2:5] if isinstance(file, SourceFile) else file  # devices change with every boot
    return (container.size, container.mtime_ns, container.inode) == now and any(now[1:])
