"""Convert ARC files to WARC files, and back, several at once."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO

from dedupindex.errors import BadInput, DedupError, IndexBusy
from dedupindex.post_crawl.convert.arc_to_warc import (
    ConvertOutcome,
    ConvertTask,
    arc_framing,
    convert,
)
from dedupindex.post_crawl.convert.warc_to_arc import NoLayout, NotReproduced, examine, rebuild
from dedupindex.runtime.atomic_replace import (
    check_free_space,
    copy_metadata,
    create_file,
    open_for_reading,
    open_part,
    part_path,
    remove_stale_parts,
    removing,
    same_bytes,
)
from dedupindex.runtime.workers import side_by_side
from dedupindex.sources.warc_files import Sources, find
from dedupindex.warc.window import open_window

_SUFFIX = re.compile(r"\.arc(?:\.gz)?$", re.IGNORECASE)


def conversion_tasks(
    sources: Sequence[str], out: Path, *, keep: bool
) -> tuple[list[ConvertTask], Sources]:
    """Return tasks for the ARC files among `sources`, the largest first, and what was found.

    Raises `BadSource`; `BadInput` if two files would get the same name.
    """
    found = find(sources)
    tasks: dict[Path, ConvertTask] = {}
    for file in found.files:
        with closing(open_window(file.path, file.path)) as window:
            framing, zipped = arc_framing(window)
        if framing is None:
            found.skipped += 1
            continue
        target = out / (_SUFFIX.sub("", file.name) + (".warc.gz" if zipped else ".warc"))
        if target in tasks:
            raise BadInput(
                f"{file.path} and {tasks[target].path} would both become {target}: convert them "
                "in two runs"
            )
        tasks[target] = ConvertTask(file.path, target, keep, file.size)
    return sorted(tasks.values(), key=lambda task: -task.size), found


def restore_tasks(sources: Sequence[str], out: Path) -> tuple[list[ConvertTask], Sources]:
    """Return tasks for all files that may have been ARC files; their targets are directories."""
    found = find(sources)
    return [ConvertTask(file.path, out / os.path.dirname(file.name)) for file in found.files], found


def convert_all(
    tasks: list[ConvertTask], out: Path, processes: int, *, back: bool = False
) -> Iterator[ConvertOutcome]:
    """Convert files side by side; raises `IndexBusy`, and `DedupError` where writing fails."""
    needed = sum(os.path.getsize(task.path) for task in tasks if not task.target.is_file())
    check_free_space(out, needed)
    out.mkdir(parents=True, exist_ok=True)
    with _locked(out):
        yield from side_by_side(_run, back, tasks, processes)


def _run(back: bool, task: ConvertTask) -> ConvertOutcome:
    try:
        return restore_arc(task) if back else convert(task)
    except OSError as error:
        raise DedupError(
            f"{task.path}: {error.strerror or error}; the files before it are complete: run the "
            "same command again to resume"
        ) from error


def restore_arc(task: ConvertTask) -> ConvertOutcome:
    """Make the ARC file again that a WARC file was made of, in the directory `task.target`."""
    outcome = ConvertOutcome(task.path, "left")
    path, folder = Path(task.path), task.target
    part = part_path(folder / path.name)
    try:
        outcome.bytes_before = path.stat().st_size
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder) as spool, removing(part):
            examine(path, spool)
            remove_stale_parts([folder / path.name])  # remove what interrupted runs left
            with open_part(part, -1) as file, open_for_reading(path) as source:
                end = rebuild(path, spool, file.write)
                file.flush()
                copy_metadata(source, file)
                os.fsync(file.fileno())
                if not end.name or "/" in end.name or "\0" in end.name or end.name in (".", ".."):
                    raise NotReproduced(f"{path}: its layout has no valid file name")
                outcome.state = _put(part, file, folder / end.name, exact=end.exact)
            outcome.bytes_after = (folder / end.name).stat().st_size
    except NoLayout:
        outcome.state = "skipped"
    except NotReproduced as error:
        outcome.problem = str(error)
    return outcome


def _put(part: Path, file: BinaryIO, target: Path, *, exact: bool) -> str:
    """Rename a part to `target` unless that exists; returns the state of the outcome."""
    try:
        create_file(part, file, target)
    except FileExistsError:  # perhaps of another process
        with open_for_reading(target) as other:
            if not same_bytes(file, other):
                raise NotReproduced(f"{target} exists already, with other content") from None
        return "there"
    return "exact" if exact else "content"


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
