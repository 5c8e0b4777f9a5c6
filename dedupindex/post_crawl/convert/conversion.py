"""What all conversions have in common: a file appears whole and verified, or not.

Files of object stores are converted from copies, and results of object stores created from them:
they are proven before they are created, and read back.
"""

from __future__ import annotations

import fcntl
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO, ClassVar, NamedTuple

from dedupindex.errors import BadInput, BadSource, DedupError, IndexBusy
from dedupindex.object_store import (
    FoundObject,
    check_conditions,
    create_object,
    download,
    facts,
    facts_or_none,
    is_object,
    is_remote,
)
from dedupindex.runtime.atomic_replace import (
    being_written,
    check_free_space,
    copy_metadata,
    create_file,
    open_for_reading,
    open_part,
    part_path,
    remove_stale_parts,
    removing,
    reopen_read_only,
)
from dedupindex.runtime.workers import side_by_side
from dedupindex.warc.record import BrokenRecord
from dedupindex.warc.window import Window, open_window

_ENDING = re.compile(r"\.w?arc(\.\w+)?$", re.IGNORECASE)


class ConvertTask(NamedTuple):
    path: str  # or address
    target: Path
    keep: bool = True  # the stored bytes of members that zlib does not reproduce
    size: int = 0  # bytes of the file
    named: bool = True  # `target` is the result, not the directory of a result of any name
    kind: str = ""  # the compression that `recompress` writes
    name: str = ""  # the file in a map of offsets
    offsets: Path | None = None  # where `recompress` writes such a map
    chains: tuple[Path, int] | None = None  # for `repoint`: Parquet file, number of the container


def name_clash(path: str, other: ConvertTask) -> BadInput:
    """Return the error for a file that would become the target of another."""
    endings = [_ENDING.search(one) for one in (path, other.path)]
    one, another = (found[0] if found else "" for found in endings)
    advice = "convert one of them by itself into another directory (--out), and name the others"
    if one and another and one != another:
        advice = (
            f"convert them in two runs, each into another directory: 'SOURCE/**/*{one}' --out OUT, "
            f"then 'SOURCE/**/*{another}' --out OTHER"
        )
    return BadInput(f"{path} and {other.path} would both become {other.target}: {advice}")


@dataclass
class ConvertOutcome:
    """What became of one file."""

    name: str
    state: str  # converted, existing (of an earlier run) or left_alone
    problem: str = ""  # why it was left alone
    records: int = 0  # that `recompress` copied
    repointed: int = 0  # revisits that `repoint` changed
    responses: int = 0
    resources: int = 0
    kept: int = 0  # stored bytes of members that zlib does not reproduce
    bytes_before: int = 0
    bytes_after: int = 0


class NotConverted(Exception):
    """The file cannot be converted; the text says where and why."""


class Conversion(ABC):
    """A conversion of one open file. All methods may raise `NotConverted`."""

    refused_target: ClassVar[str] = "exists already"
    """What to say of a target that fails `check`."""

    def __init__(self, task: ConvertTask, window: Window, outcome: ConvertOutcome) -> None:
        self.task, self.window, self.outcome = task, window, outcome

    @abstractmethod
    def write(self, file: BinaryIO) -> None:
        """Write the result."""

    @abstractmethod
    def check(self, path: Path) -> None:
        """Check that a file is what the conversion makes."""

    def run(self) -> str:
        """Return the state of the outcome."""
        if being_written(self.window.file):
            raise NotConverted("another process is writing to it")
        target = self.task.target
        remove_stale_parts([target])  # remove what interrupted runs left
        if target.exists():
            try:
                self.check(target)
            except NotConverted as error:
                raise NotConverted(f"{target} {self.refused_target}: {error}") from error
            return "existing"
        target.parent.mkdir(parents=True, exist_ok=True)
        part = part_path(target)
        with removing(part):
            with open_part(part, -1) as file:
                self.write(file)
                file.flush()
                copy_metadata(self.window.file, file)
                os.fsync(file.fileno())
                whole = reopen_read_only(part, file)
            with whole:
                self.check(part)
                if self.window.changed():
                    raise NotConverted("it was changed while it was read")
                try:
                    create_file(part, whole, target)
                except FileExistsError as error:  # of another process
                    raise NotConverted(
                        f"{target} was created by another process meanwhile"
                    ) from error
        return "converted"


def convert_file(task: ConvertTask, kind: type[Conversion]) -> ConvertOutcome:
    """Convert one file; raises `OSError` where writing fails, and leaves no file then."""
    outcome = ConvertOutcome(task.path, "left_alone")
    try:
        with closing(open_window(task.path, task.path)) as window:
            outcome.bytes_before = window.size
            outcome.state = kind(task, window, outcome).run()
            outcome.bytes_after = task.target.stat().st_size
    except (NotConverted, BadSource, BrokenRecord) as error:
        outcome.problem = str(error)
    return outcome


Work = Callable[[ConvertTask], ConvertOutcome]
"""Converts one file: `convert`, `restore_arc`, `recompress` or `repoint`."""


class _ConvertJob(NamedTuple):
    work: Work
    out: Path  # in which the targets are
    store: str  # the address below which results go in place of `out`


def convert_all(
    tasks: list[ConvertTask], out: Path, processes: int, work: Work, store: str = ""
) -> Iterator[ConvertOutcome]:
    """Convert files side by side; raises `IndexBusy`, and `DedupError` where writing fails.

    With the address of a `store`, results are created below it, and `out` is only where their names
    begin. Raises `BadSource` if it is a store that ignores conditions.
    """
    sizes = [task.size for task in tasks if store or not task.target.is_file()]
    needed = 3 * sum(sizes[:processes]) if store else sum(sizes)
    fewer = "name fewer files in each of several runs, or an --out on another disk"
    check_free_space(out, needed, "give --jobs 1, which needs less" if store else fewer)
    out.mkdir(parents=True, exist_ok=True)
    with _locked(out):
        if store and tasks:
            check_conditions(store)
        yield from side_by_side(_run, _ConvertJob(work, out, store), tasks, processes)


def _run(job: _ConvertJob, task: ConvertTask) -> ConvertOutcome:
    try:
        if job.store or is_remote(task.path):
            return _run_on_copies(job, task)
        return job.work(task)
    except OSError as error:
        raise DedupError(
            f"{task.path}: {error.strerror or error}; the files before it are complete: run the "
            "same command again to resume"
        ) from error


def _run_on_copies(job: _ConvertJob, task: ConvertTask) -> ConvertOutcome:
    """Convert a copy of a file, create the result from a copy of it, or both."""
    with TemporaryDirectory(prefix="dedupindex-convert-") as name:
        local, results = task, Path(name, "results")
        if is_remote(task.path):
            local = local._replace(path=str(Path(name, os.path.basename(task.path))))
            if not _is_copied(task, local.path):
                problem = "its store does not answer with the same bytes twice"
                return ConvertOutcome(task.path, "left_alone", problem)
        if job.store:
            local = local._replace(target=results / task.target.relative_to(job.out))
            address = f"{job.store}/{task.target.relative_to(job.out)}"
            if task.named and (found := facts_or_none(address)):  # which is compared
                local.target.parent.mkdir(parents=True)
                download([(FoundObject(address, found), local.target)])
        outcome = job.work(local)
        outcome.name = task.path
        outcome.problem = outcome.problem.replace(str(results), job.store)
        outcome.problem = outcome.problem.replace(local.path, task.path)
        if job.store and outcome.state not in ("left_alone", "skipped", "existing"):
            for path in filter(Path.is_file, results.rglob("*")):
                _create(path, f"{job.store}/{path.relative_to(results)}", outcome)
        return outcome


def _is_copied(task: ConvertTask, path: str) -> bool:
    """Copy an object; return whether it has the same bytes when it is read again."""
    download([(FoundObject(task.path, facts(task.path)), Path(path))])
    with open_for_reading(path) as copy:
        return is_object(copy, task.path)


def _create(path: Path, address: str, outcome: ConvertOutcome) -> None:
    with open_for_reading(path) as result:
        try:
            if not create_object(result, address):
                outcome.state = "existing"
        except FileExistsError as error:
            outcome.state, outcome.problem = "left_alone", str(error)


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    """Lock the directory itself; raises `IndexBusy`."""
    descriptor = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise IndexBusy(f"another process is writing to {out}; try again later") from error
    try:
        yield
    finally:
        os.close(descriptor)
