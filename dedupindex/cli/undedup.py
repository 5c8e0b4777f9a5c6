"""``bin/undedup``: restore the records that revisits replaced."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from dedupindex.cli.common import RESUMED, Command, print_result, say
from dedupindex.cli.options import flag, option, path_or_address, shared_options, wants_json
from dedupindex.cli.progress_bar import show_progress
from dedupindex.cli.restored_report import print_restored, was_committed
from dedupindex.cli.result_lists import index_step
from dedupindex.cli.rewrite import (
    Undoable,
    end_undone_run,
    journal_above,
    restore_file,
    undo_all,
    undo_below,
)
from dedupindex.cli.verify import PLACE
from dedupindex.errors import BadInput
from dedupindex.object_store import (
    CountedRequests,
    check_conditions,
    check_creatable,
    counted_requests,
    is_remote,
    redacted,
)
from dedupindex.post_crawl.rewrite.journal import Journal
from dedupindex.post_crawl.rewrite.result_place import (
    NOT_IN_PLACE,
    StoredPath,
    StorePlace,
    place_of,
    store_of_state,
)
from dedupindex.post_crawl.rewrite.rewrite_all import lost_owners
from dedupindex.post_crawl.rewrite.stored_journal import check_replaceable
from dedupindex.post_crawl.rewrite.undo_directory import DIRECTORY
from dedupindex.post_crawl.undo import (
    Restored,
    Undo,
    check_space_for,
    not_listed,
    rewritten_files,
    sets_below,
)
from dedupindex.post_crawl.undo_damage import index_originals, known_hosts
from dedupindex.post_crawl.undo_places import Results, results_in, stored_results
from dedupindex.runtime.atomic_replace import PART_NAME, open_for_reading, removing
from dedupindex.runtime.progress import finished
from dedupindex.runtime.tables import printable
from dedupindex.runtime.walk_directories import OnError, is_file, walk_links
from dedupindex.runtime.workers import side_by_side
from dedupindex.sources.discover import has_working_files
from dedupindex.sources.warc_files import is_index
from dedupindex.verify.block_facts import CUT_AT_ZERO
from dedupindex.verify.collection import Collection, check_exists
from dedupindex.verify.file_bytes import Place
from dedupindex.verify.issues import DAMAGE, LEVELS, Finding
from dedupindex.verify.walk_file import is_named

EXAMPLES = """
bin/undedup /data/warcs --in-place              # as before bin/rewrite --in-place, bit for bit
bin/undedup /data/rewritten --out /data/again   # every record as it was
bin/undedup /data/rewritten --dry-run           # check that all can be restored
bin/undedup /data/rewritten --out /data/again --originals /data/older
bin/undedup s3://bucket/smaller --state ~/state --out s3://bucket/again
bin/undedup s3://bucket/smaller/2020/ --state ~/state --out s3://bucket/again    # a part
bin/undedup s3://bucket/warcs --in-place        # as before bin/dedup --in-place, bit for bit
"""
_FOUND_ELSEWHERE = "its originals on other hosts were found elsewhere"
_NOT_THERE = "its file is not there; a file that was renamed keeps its revisits"
_MEANT = f"name the directory that bin/dedup wrote; a copy of that needs its {DIRECTORY}, too"


@click.command(cls=Command, examples=EXAMPLES, interrupted=RESUMED)
@click.argument("directories", nargs=-1, required=True, type=path_or_address)
@shared_options("--out", "--state")
@shared_options("--in-place", help="Replace the files that were rewritten in place.")
@option(
    "--host", "hosts", multiple=True, metavar="NAME=DIR", setting=False,
    help="With --out: where the results of another host are mounted, for its originals.",
)  # fmt: skip
@option(
    "--originals", multiple=True, metavar="PLACE", type=PLACE, setting=False,
    help="With --out: where originals may be besides DIRECTORIES; repeatable.",
)  # fmt: skip
@flag("--dry-run", help="Check that all can be restored, and write nothing.")
@shared_options("--zstd-dictionary")
@shared_options("--jobs", "--json")
def command(
    directories: tuple[Path | str, ...], out: Path | str | None, state: Path | None,
    in_place: bool, hosts: tuple[str, ...], originals: tuple[Place, ...], dry_run: bool, jobs: int,
) -> int:  # fmt: skip
    """Restore the records that bin/rewrite replaced by revisits below DIRECTORIES.

    As long as the removed records are kept, files are restored bit for bit. Otherwise each record
    is rebuilt from its revisit and its original, in a new gzip member. If undo data is damaged,
    --out restores what can be restored. Damage, and each record that is not proven to be as it
    was, is named; the exit status is then 7.
    """
    if (out is None) != in_place and not (dry_run and out is None):
        raise click.UsageError("give either --out or --in-place")
    if in_place and (originals or hosts):
        raise click.UsageError("--originals and --host go with --out")
    if isinstance(out, str) and not dry_run:
        check_creatable(out)
    if in_place and state is None and check_replaceable(map(str, directories)):
        return undo_below(list(map(str, directories)), jobs, dry=dry_run)
    results = _results_at(directories, state)
    journals = [one.directory for one in results]
    if in_place:
        unreadable = list[Restored]()
        sets = _sets(journals, unreadable)
        if dry_run:
            return _check_in_place(sets, unreadable, jobs)
        status = undo_all(journals, partial(_in_place, sets, unreadable), jobs, locks=sets)
        for name in map(os.path.abspath, () if status else journals):
            end_undone_run(Path(f"{name}.dedup"), [name])
        return status
    for directory in journals:
        _check(directory, out)
    task = Undo(Path(), "", Path(), _mounted(hosts, journals), dry=dry_run)
    with ExitStack() as stack:
        requests = stack.enter_context(counted_requests())
        place = None
        if isinstance(out, str) and not dry_run:
            target = Path(stack.enter_context(TemporaryDirectory(prefix="dedupindex-undedup-")))
            task, place = task._replace(out=target), StorePlace(out, target)
            check_conditions(out)
        elif isinstance(out, Path):
            task = task._replace(out=out)
        status = _restore(results, task, place, originals, jobs, requests)
    if out is not None and not dry_run and not wants_json():
        lines = _next(results, str(out))
        if status:  # something was not restored: what there was before must stay
            lines = islice(lines, 1)
        print_result({}, map(printable, lines))
    return status


def _left_alone(unreadable: list[Restored]) -> OnError:
    """Return what adds a directory that cannot be listed to what was not restored."""

    def add(error: OSError) -> None:
        unreadable.append(Restored(str(error.filename), "left_alone", 0, not_listed(error)))

    return add


def _next(results: Sequence[Results], out: str) -> Iterator[str]:
    """Yield the command that compares restored files, and that which an index needs."""
    part = next((one.part for one in results), "")  # only one place has parts
    cut = f"/{part}".rstrip("/")
    address = f"{out.rstrip('/')}{cut}"
    yield (
        "to compare them (what bin/dedup did not copy is named as file-missing, status 8): "
        f"bin/verify --against BEFORE{cut} {shlex.quote(address)} --records"
    )
    below = cut if part.endswith("/") else cut.rpartition("/")[0]  # of one object, where it is
    places = [f"{one.store or os.path.abspath(one.directory)}{below}" for one in results]
    yield f"next: {index_step([address], places)}"


def _check_in_place(sets: list[Path], unreadable: list[Restored], jobs: int) -> int:
    """Check that files can be restored in place, and write nothing."""
    tasks, not_restorable = _in_place(sets, unreadable)
    tasks = [task._replace(dry=True) for task in tasks]
    results = side_by_side(restore_file, None, tasks, jobs)
    with show_progress() as progress:
        shown = finished(results, "checking", len(tasks), progress)
        return print_restored(chain(not_restorable, shown), dry=True)


def _sets(directories: list[Path], unreadable: list[Restored]) -> list[Path]:
    """Return the directories with journals, and those below them; raises `BadInput`.

    Those that cannot be listed are added to `unreadable`.
    """
    found: dict[Path, Path] = {}  # by where links lead
    for directory in directories:
        if directory.is_file():
            _check(directory, None)  # it names the directory that is meant
        known = len(unreadable)
        below = sets_below(directory, _left_alone(unreadable))
        if not below and len(unreadable) > known and not (directory / DIRECTORY).is_dir():
            continue  # the journals may be there
        if not below or (directory / DIRECTORY).is_dir():
            _check(directory, None)
            if store := store_of_state(directory):
                raise BadInput(NOT_IN_PLACE.format(store))
            below.insert(0, directory)
        for one in below:
            found.setdefault(one.resolve(), one)
    return list(found.values())


def _results_at(directories: tuple[Path | str, ...], state: Path | None) -> list[Results]:
    """Return the results, and where their journals are; raises `UsageError`, `BadInput`."""
    stored = [one for one in directories if isinstance(one, str)]
    if not stored:
        if state is not None:
            raise click.UsageError("--state goes with results in an object store")
        return [results_in(Path(one)) for one in directories]
    if state is None or len(directories) > 1:
        raise click.UsageError(
            f"give {redacted(stored[0])} alone, with --state DIR: the directory of its journals"
        )
    if not (state / DIRECTORY).is_dir():
        raise BadInput(
            f"{state} {'has no journals' if state.is_dir() else 'is no directory'}: name the one "
            "that --state named when the results were written"
        )
    found = stored_results(state, stored[0])
    if found.moved:
        say(
            f"{state} has the journals of {redacted(found.moved)}: taking {redacted(found.store)} "
            "for a copy, as all files are there in the sizes that the journals state; each "
            "restored record is proven by its SHA-256"
        )
    if found.part and not any(map(found.has, rewritten_files(state)[0])):
        say(f"no journal names a file of {found.part}: what is there is copied as it is")
    return [found]


def _restore(
    found: list[Results], meant: Undo, place: StorePlace | None, originals: Sequence[Place],
    jobs: int, requests: CountedRequests,
) -> int:  # fmt: skip
    """Restore all files as `meant`, and from there to a place in a store if one is given."""
    unreadable = list[Restored]()
    on_error = _left_alone(unreadable)
    tasks = [
        meant._replace(directory=one.directory, name=name, store=one.store)
        for one in found
        for name in _files(one, on_error)
    ]
    _check_names(tasks)
    if not meant.dry and meant.out is not None:
        check_space_for(tasks, jobs)
        files = (str(task.directory / task.name) for task in tasks if not task.store)
        if place is None and (lost := lost_owners(files, meant.out)):
            say(f"warning: {lost}")
        meant.out.mkdir(parents=True, exist_ok=True)
    for one in originals:
        check_exists(one)
    results = _results(found, tasks, place, originals, jobs)
    left = chain(unreadable, _without_file(found, tasks))
    return print_restored(chain(left, results), requests, dry=meant.dry)


def _results(
    results: list[Results], tasks: list[Undo], place: StorePlace | None,
    originals: Sequence[Place], jobs: int,
) -> Iterator[Restored]:  # fmt: skip
    """Yield what became of each file; those that fail are tried again, record by record."""
    by_place = {(task.directory, task.name): task for task in tasks}
    failed: list[tuple[Undo, Restored]] = []
    doing = "checking" if tasks and tasks[0].dry else "restoring"
    with show_progress() as progress:
        first = side_by_side(_placed, place, tasks, jobs)
        for task_place, result in finished(first, doing, len(tasks), progress):
            if result.state == "left_alone" and not result.exists:
                failed.append((by_place[task_place], result))
            else:
                yield result
    if not failed:
        return
    with TemporaryDirectory(prefix="dedupindex-originals-") as temporary:
        database = Path(temporary, "originals.sqlite")
        own = (StoredPath(one.store) if one.store else one.directory for one in results)
        mounted = [*failed[0][0].hosts.values()]  # of other hosts
        journals = [one.directory for one in results]
        places = chain(own, originals, mounted)
        index_originals(database, places, [*journals, *mounted], _say_unlisted)
        reasons = {(task.directory, task.name): _why_again(before) for task, before in failed}
        again = [task._replace(database=database) for task, _ in failed]
        with show_progress() as progress:
            second = side_by_side(_placed, place, again, jobs)
            for task_place, result in finished(second, doing, len(again), progress):
                if result.state != "left_alone":
                    result.note = f"{_again_text(result, again[0])}: {reasons[task_place]}"
                yield result


def _say_unlisted(error: OSError) -> None:
    say(f"warning: no original is looked for in {error.filename}: {error.strerror}")


def _again_text(result: Restored, task: Undo) -> str:
    if result.state == "copied":
        return "would be copied as it is" if task.dry else "copied as it is"
    return f"{'can be restored' if task.dry else 'restored'} record by record"


def _why_again(before: Restored) -> str:
    """Return what is said of a file that was restored record by record."""
    return _FOUND_ELSEWHERE if before.lacks_host else before.problem


def _placed(place: StorePlace | None, task: Undo) -> tuple[tuple[Path, str], Restored]:
    return (task.directory, task.name), _checked(place, task)


def _mounted(texts: Sequence[str], directories: Sequence[Path]) -> dict[str, Path]:
    """Return the directories of hosts; raises `UsageError` for hosts that no journal names."""
    hosts: dict[str, Path] = {}
    for text in texts:
        name, equals, directory = text.partition("=")
        if is_remote(directory):
            raise click.UsageError(
                f"--host {text}: results in an object store are read with "
                f"--originals {redacted(directory)}"
            )
        if not (name and equals and Path(directory).is_dir()):
            raise click.UsageError(
                f"--host {text}: write NAME=DIR, with the directory of its results"
            )
        hosts[name] = Path(directory)
    known = known_hosts(directories) if hosts else set()
    for name in hosts:
        if name not in known:
            meant = ", ".join(sorted(known)) or "no other host"
            raise click.UsageError(
                f"--host {name}: no original is on a host of that name; the undo data names {meant}"
            )
    return hosts


def _check(directory: Path, out: Path | str | None) -> None:
    """Raise `BadInput` if a directory has no journal, or `out` is in it."""
    if not directory.exists():
        raise BadInput(f"{directory} does not exist")
    if not (directory / DIRECTORY).is_dir():
        if is_index(directory):
            raise BadInput(f"{directory} is an index; name a directory that bin/dedup wrote")
        meant = journal_above(directory) or _MEANT
        raise BadInput(f"{directory} has no journal ({DIRECTORY}); {meant}")
    if isinstance(out, Path) and directory.resolve() in (out.resolve(), *out.resolve().parents):
        raise BadInput(f"--out {out} is in {directory}, whose own files it would stand among")


def _files(results: Results, on_error: OnError) -> list[str]:
    """Return the relative names of all files, following links as the scan did."""
    if results.store:
        return results.objects()
    found, directory = [], results.directory
    for folder, below, names in walk_links(directory, on_error):
        if os.path.basename(folder) == DIRECTORY or has_working_files(folder):
            below.clear()
            continue
        below.sort(key=lambda name: (name.startswith("."), name))  # in the order of a scan
        paths = (Path(folder, name) for name in names if not PART_NAME.fullmatch(name))
        found += [str(path.relative_to(directory)) for path in paths if is_file(path, on_error)]
    return sorted(found)


def _check_names(tasks: list[Undo]) -> None:
    """Raise `BadInput` if two files would get the same name below `out`."""
    directories: dict[str, Path] = {}
    for task in tasks:
        if (other := directories.setdefault(task.name, task.directory)) != task.directory:
            raise BadInput(
                f"{other} and {task.directory} both have {task.name}: restore them in two runs, "
                "each to a folder of its own"
            )


def _checked(place: StorePlace | None, task: Undo) -> Restored:
    """Restore one file; one that was copied is verified, as its hash is not known."""
    result = _restored(task)
    if place is None or task.dry:
        return result
    assert task.out is not None
    target = task.out / task.name
    if result.state == "left_alone":
        return result
    with removing(target), open_for_reading(target) as file:
        try:
            if place.has(file, task.name):
                return replace(result, state="existing")
            place.create(target, file, task.name)
        except FileExistsError:
            problem = f"{place.shown(task.name)} exists already, with other content"
            return replace(result, state="left_alone", problem=problem, exists=True)
    return result


def _restored(task: Undo) -> Restored:
    result = restore_file(None, task)
    assert task.out is not None
    target: Place = task.out / task.name
    if task.dry:
        local = task.directory / task.name
        target = StoredPath(f"{task.store}/{task.name}") if task.store else local
    if result.state in ("copied", "rebuilt", "partial", "existing") and is_named(target):
        found = [one for one in Collection([target]).findings() if _is_defect(one)]
        if found:
            first = min(found, key=lambda one: LEVELS.index(one.level))
            more = f" (and {len(found) - 1:,} more)" if found[1:] else ""
            result.level = first.level
            result.problem = f"{first.reason} at {first.offset}: {first.message}{more}"
    return result


def _is_defect(finding: Finding) -> bool:
    """Whether bytes cannot be read, or are not those of their digest.

    A digest that its writer cut does not show that.
    """
    if finding.reason in ("block-digest", "payload-digest"):
        return finding.message != CUT_AT_ZERO
    return finding.level == DAMAGE


def _without_file(results: Sequence[Results], tasks: Sequence[Undo]) -> Iterator[Restored]:
    """Yield the files in journals that cannot be restored: unreadable or not found.

    A journal that cannot be read is that of one of the files if it has the name for that. If a
    part is restored, others are not of interest.
    """
    known = {Journal(task.directory, task.name).lines.stem for task in tasks}
    there = {(task.directory, task.name) for task in tasks}
    for one in results:
        names, problems = rewritten_files(one.directory)
        for path, reason in problems.items():
            if not one.part and path.name.partition(".")[0] not in known:
                yield Restored(str(path), "left_alone", 0, reason)
        place = place_of(one.store, one.directory)
        for name in sorted(filter(one.has, names)):
            if (one.directory, name) in there:
                continue
            try:
                why = _NOT_THERE if place.size(name) is None else ""
            except OSError as error:  # as of a directory that cannot be entered
                why = f"its file cannot be read: {error.strerror}"
            if why:
                yield Restored(name, "left_alone", 0, why)


def _in_place(directories: Sequence[Path], unreadable: Sequence[Restored]) -> Undoable:
    """Return the files that were rewritten in place, and those that cannot be restored."""
    tasks, not_restorable = list[Undo](), list(unreadable)
    for directory in directories:
        names, problems = rewritten_files(directory)
        for path, reason in problems.items():
            not_restorable.append(Restored(str(path), "left_alone", 0, reason))
        for name, committed in sorted(names.items()):
            if committed:
                not_restorable.append(Restored(name, "left_alone", 0, was_committed(directory)))
            else:
                tasks.append(Undo(directory, name, None))
    return tasks, not_restorable
