"""Which files are to be converted, to what names, and the way back."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO

from dedupindex.errors import BadInput, DedupError, IndexBusy
from dedupindex.post_crawl.convert.arc_steps import arc_framing
from dedupindex.post_crawl.convert.arc_to_warc import ConvertOutcome, ConvertTask, convert
from dedupindex.post_crawl.convert.warc_to_arc import NoLayout, NotBack, examine, rebuild
from dedupindex.post_crawl.rewrite.part_files import new_part, part_of, put_new, removed, sweep
from dedupindex.runtime.atomic_replace import (
    check_room,
    keep_metadata,
    open_for_reading,
    same_bytes,
)
from dedupindex.runtime.workers import side_by_side
from dedupindex.sources.warc_files import Sources, find
from dedupindex.warc.window import open_window

_SUFFIX = re.compile(r"\.arc(?:\.gz)?$", re.IGNORECASE)


def tasks_of(sources: Sequence[str], out: Path, *, keep: bool) -> tuple[list[ConvertTask], Sources]:
    """The ARC files that `sources` name, the largest first, and how all was found.

    Raises `BadSource`; `BadInput` if two of them would become one file.
    """
    found = find(sources)
    tasks: dict[Path, ConvertTask] = {}
    sizes = {}
    for file in found.files:
        with closing(open_window(file.path, file.path)) as window:
            framed = arc_framing(window)
        if framed is None:
            found.skipped += 1
            continue
        target = out / (_SUFFIX.sub("", file.name) + (".warc.gz" if framed[1] else ".warc"))
        if target in tasks:
            raise BadInput(
                f"{file.path} and {tasks[target].path} would both become {target}: convert them "
                "in two runs"
            )
        tasks[target] = ConvertTask(file.path, target, keep)
        sizes[target] = file.size
    return sorted(tasks.values(), key=lambda task: -sizes[task.target]), found


def back_tasks_of(sources: Sequence[str], out: Path) -> tuple[list[ConvertTask], Sources]:
    """All files that may have been made of ARC files, in the folders where these are to be."""
    found = find(sources)
    return [ConvertTask(file.path, out / os.path.dirname(file.name)) for file in found.files], found


def run(
    tasks: list[ConvertTask], out: Path, processes: int, *, back: bool = False
) -> Iterator[ConvertOutcome]:
    """Convert files side by side; raises `IndexBusy`, and `DedupError` where writing fails."""
    needed = sum(os.path.getsize(task.path) for task in tasks if not task.target.is_file())
    check_room(out, needed)
    out.mkdir(parents=True, exist_ok=True)
    with _locked(out):
        yield from side_by_side(_guarded, bring_back if back else convert, tasks, processes)


def _guarded(work: Callable[[ConvertTask], ConvertOutcome], task: ConvertTask) -> ConvertOutcome:
    try:
        return work(task)
    except OSError as error:
        raise DedupError(
            f"{task.path}: {error.strerror or error}; what was made before it is whole: run the "
            "same again to go on"
        ) from error


def bring_back(task: ConvertTask) -> ConvertOutcome:
    """Make the ARC file that a WARC file was made of, in the folder `ConvertTask.target`."""
    outcome = ConvertOutcome(task.path, "left")
    path, folder = Path(task.path), task.target
    part = part_of(folder / path.name)
    try:
        outcome.bytes_before = path.stat().st_size
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder) as spool, removed(part):
            examine(path, spool)
            sweep([folder / path.name])  # what a killed run left
            with new_part(part, -1) as file, open_for_reading(path) as source:
                end = rebuild(path, spool, file.write)
                file.flush()
                keep_metadata(source, file)
                os.fsync(file.fileno())
                if not end.name or "/" in end.name or "\0" in end.name or end.name in (".", ".."):
                    raise NotBack(f"{path}: its ARC file had no name that a file can have")
                outcome.state = _placed(part, file, folder / end.name, exact=end.exact)
            outcome.bytes_after = (folder / end.name).stat().st_size
    except NoLayout:
        outcome.state = "skipped"
    except NotBack as error:
        outcome.problem = str(error)
    return outcome


def _placed(part: Path, file: BinaryIO, target: Path, *, exact: bool) -> str:
    """Give a file its name, unless it is there; returns what became of it."""
    try:
        put_new(part, file, target)  # another process may bring back one of that name
    except FileExistsError:
        with open_for_reading(target) as other:
            if not same_bytes(file, other):
                raise NotBack(f"{target} is there already, with another content") from None
        return "there"
    return "exact" if exact else "content"


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    """Hold the directory itself; raises `IndexBusy` if another run does."""
    descriptor = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise IndexBusy(f"another process is writing to {out}; try again later") from error
        yield
    finally:
        os.close(descriptor)
