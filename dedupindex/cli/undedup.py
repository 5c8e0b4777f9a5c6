"""``bin/undedup``: turn revisits back into the records that they stand for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from itertools import chain, islice
from pathlib import Path

import click

from dedupindex.cli.common import Command
from dedupindex.cli.options import jobs_option, json_option
from dedupindex.cli.rewrite import COMMITTED, Found, restored, tell, undone
from dedupindex.errors import BadInput
from dedupindex.post_crawl.rewrite.journal import DIRECTORY
from dedupindex.post_crawl.rewrite.part_files import PART
from dedupindex.post_crawl.undo import Restored, Undo, check_room_of, told_of
from dedupindex.runtime.tables import printable
from dedupindex.runtime.workers import side_by_side
from dedupindex.verify.collection import verify_collection
from dedupindex.verify.issues import DAMAGE
from dedupindex.verify.walk_file import is_named

EXAMPLES = """
bin/undedup /data/warcs --in-place              as before bin/rewrite --in-place, bit for bit
bin/undedup /data/rewritten --out /data/again   every record as it was
"""


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("directories", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Write all files anew, below this.")
@click.option("--in-place", is_flag=True, help="Replace the files that were rewritten in place.")
@jobs_option()
@json_option
def command(
    directories: tuple[Path, ...], out: Path | None, in_place: bool, jobs: int, as_json: bool
) -> int:
    """Turn the revisits that bin/rewrite made below DIRECTORIES back into what they stand for.

    While the dropped records are kept, files come back bit for bit; else each record does, made
    of its revisit and its original, but not its gzip member. What is damaged is named; the exit
    status is then 7.
    """
    if (out is None) != in_place:
        raise click.UsageError("give one of --out and --in-place")
    for directory in directories:
        _check(directory, out)
    processes = jobs
    if out is None:
        find = partial(_in_place, directories)
        return undone(list(directories), find, processes, as_json=as_json)
    tasks = [Undo(one, name, out) for one in directories for name in _files(one)]
    _check_names(tasks)
    check_room_of(tasks, processes)
    out.mkdir(parents=True, exist_ok=True)
    results = side_by_side(_checked, None, tasks, processes)
    status = tell(chain(_without_file(directories), results), as_json=as_json)
    if not as_json:
        again = printable(str(out))
        click.echo(f"beside the files before: bin/verify --against BEFORE {again} --records")
    return status


def _check(directory: Path, out: Path | None) -> None:
    """Raise `BadInput` if nothing is known of a directory, or `out` is in it."""
    if not directory.exists():
        raise BadInput(f"{directory} does not exist")
    if not (directory / DIRECTORY).is_dir():
        above = (one for one in directory.absolute().parents if (one / DIRECTORY).is_dir())
        meant = "".join(f"; {one} is meant" for one in islice(above, 1))
        raise BadInput(f"{directory} has no journal ({DIRECTORY}): nothing is known of it{meant}")
    if out is not None and directory.resolve() in (out.resolve(), *out.resolve().parents):
        raise BadInput(f"--out {out} is in {directory}, whose own files it would stand among")


def _files(directory: Path) -> list[str]:
    """All that is to be restored: every file, links followed as by the scan before."""
    found, visited = [], set[tuple[int, int]]()
    for folder, below, names in os.walk(directory, followlinks=True):
        known = os.stat(folder)
        if (known.st_dev, known.st_ino) in visited or os.path.basename(folder) == DIRECTORY:
            below.clear()
            continue
        visited.add((known.st_dev, known.st_ino))
        below.sort(key=lambda name: (name.startswith("."), name))  # what a scan meets comes first
        paths = (Path(folder, name) for name in names if not PART.fullmatch(name))
        found += [str(path.relative_to(directory)) for path in paths if path.is_file()]
    return sorted(found)


def _check_names(tasks: list[Undo]) -> None:
    """Every file must have a name of its own below the folder for all; raises `BadInput`."""
    directories: dict[str, Path] = {}
    for task in tasks:
        if (other := directories.setdefault(task.name, task.directory)) != task.directory:
            raise BadInput(
                f"{other} and {task.directory} both have {task.name}: restore them in two runs, "
                "each to a folder of its own"
            )


def _checked(_: None, task: Undo) -> Restored:
    """Restore one container, and read what was copied: no hash of that is known."""
    result = restored(None, task)
    assert task.out is not None
    target = task.out / task.name
    if result.state in ("copied", "records") and is_named(target):
        found = [one for one in verify_collection([target]) if one.level == DAMAGE
                 or one.reason in ("block-digest", "payload-digest")]  # fmt: skip
        if found:
            first = found[0]
            more = f" (and {len(found) - 1:,} more)" if found[1:] else ""
            result.problem = f"{first.reason} at {first.offset}: {first.message}{more}"
    return result


def _without_file(directories: tuple[Path, ...]) -> Iterator[Restored]:
    """What was rewritten there and is not there by its name, so that it stays as it is."""
    for directory in directories:
        names, problems = told_of(directory)
        for path, why in problems.items():
            yield Restored(str(path), "left", 0, why)
        for name in sorted(names):
            if not (directory / name).exists():
                yield Restored(name, "left", 0, "it is not there; if renamed, its revisits stay")


def _in_place(directories: tuple[Path, ...]) -> Found:
    """All that was rewritten in place below directories, and what of that cannot come back."""
    tasks, gone = [], []
    for directory in directories:
        names, problems = told_of(directory)
        gone += [Restored(str(path), "left", 0, why) for path, why in problems.items()]
        for name, committed in sorted(names.items()):
            if committed:
                gone.append(Restored(name, "left", 0, COMMITTED))
            else:
                tasks.append(Undo(directory, name, None))
    return tasks, gone
