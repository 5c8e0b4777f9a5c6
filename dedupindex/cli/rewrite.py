"""``bin/rewrite``: turn the copies that a plan names into revisits."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from itertools import chain, tee
from pathlib import Path
from typing import Any

import click

from dedupindex.cli.common import RESUMED, Command, count_lines, file_lines, print_result, say
from dedupindex.cli.options import (
    PATH,
    flag,
    option,
    results_of,
    shared_options,
    wants_json,
    with_dictionaries,
)
from dedupindex.cli.progress_bar import show_progress
from dedupindex.cli.restored_report import print_restored, was_committed
from dedupindex.cli.result_lists import (
    INDEX_PAGE,
    absolute,
    check_outputs,
    index_steps,
    names_below,
    reread_step,
    restore_step,
    write_cdxj,
    write_offsets,
)
from dedupindex.cli.sent_requests import NO_CDXJ, SPARK_TO_STORE, SentRequests, sent_requests
from dedupindex.counts import ProgressUpdate
from dedupindex.errors import BadInput, Damaged, DedupError, as_called
from dedupindex.object_store import (
    CountedRequests,
    check_conditions,
    counted_requests,
    redacted,
)
from dedupindex.post_crawl.manifest.parquet import ManifestContainer
from dedupindex.post_crawl.plan.manifest_input import check_host
from dedupindex.post_crawl.plan.plan_file import Plan, open_plan
from dedupindex.post_crawl.plan.record_reader import ContainerUrls, container_urls
from dedupindex.post_crawl.reasons import WORDS
from dedupindex.post_crawl.rewrite.compare_pair import ORIGINAL_ELSEWHERE
from dedupindex.post_crawl.rewrite.journal import Journal, discard_unfinished
from dedupindex.post_crawl.rewrite.result_place import (
    EARLIER,
    FILE_LEFT,
    MissingFile,
    earlier_results_text,
)
from dedupindex.post_crawl.rewrite.rewrite_all import locked, lost_owners, rewrite
from dedupindex.post_crawl.rewrite.rewrite_file import RewriteJob
from dedupindex.post_crawl.rewrite.rewrite_outcome import (
    RewriteOutcome,
    referring_text,
    zstd_text,
)
from dedupindex.post_crawl.rewrite.stored_journal import check_replaceable
from dedupindex.post_crawl.rewrite.undo_directory import DIRECTORY, has_undo_data
from dedupindex.post_crawl.undo import (
    Restored,
    Undo,
    check_space_for,
    commit,
    is_of_earlier_run,
    marked_as_undo,
    restore,
)
from dedupindex.post_crawl.undo_in_store import (
    StoredUndo,
    commit_objects,
    objects_below,
    objects_of_plan,
    restoring,
)
from dedupindex.post_crawl.work_directory import (
    check_finished,
    check_not_unfinished,
    end_undone,
    mark_unfinished,
    unmark_unfinished,
)
from dedupindex.runtime.progress import finished
from dedupindex.runtime.spark import Cluster, spark_session
from dedupindex.runtime.tables import amount, printable, singular
from dedupindex.runtime.workers import side_by_side

Containers = Mapping[int, ManifestContainer]
Undoable = tuple[list[Undo], list[Restored]]  # files to restore, and files that cannot be
_TRUSTED = (
    "before you delete anything, compare with bin/verify --against SOURCE DIR --originals "
    "DIR-OF-THE-OTHER-HOST"
)
EXAMPLES = """
bin/rewrite my-plan --out /data/rewritten --dry-run    # only the numbers
bin/rewrite my-plan --out /data/rewritten --offsets moved.tsv
bin/rewrite my-plan --out /data/rewritten --root /warcs=/mnt/copy    # a second copy of the files
bin/rewrite my-plan --out s3://bucket/smaller --state ~/state
bin/rewrite my-plan --in-place                         # keeps the removed records, to undo it
bin/rewrite my-plan --undo
bin/rewrite my-plan --commit                           # discards it for good
"""


@click.command(cls=Command, examples=EXAMPLES, interrupted=RESUMED)
@click.argument("plan", type=PATH)
@shared_options("--out", "--state", "--in-place")
@flag("--undo", setting=False, help="Restore bit for bit what --in-place replaced.")
@flag("--commit", "discard", setting=False, help="Discard what --undo needs.")
@flag("--dry-run", help="With --out or --in-place: do everything except writing.")
@shared_options("--min-size", "--min-gain")
@shared_options("--host", "--base-url", "--urls")
@flag(
    "--trust-manifests",
    help="Do not read originals of other hosts: the BLAKE3 in their manifests is enough.",
)
@option(
    "--root", "roots", multiple=True, metavar="OLD=NEW",
    help="Rewrite a copy of the files: what was scanned in OLD is in NEW.",
)  # fmt: skip
@shared_options("--offsets", "--cdxj")
@shared_options("--zstd-dictionary")
@shared_options("--jobs", "--spark", "--json")
def command(
    plan: Path,
    out: Path | str | None,
    state: Path | None,
    undo: bool,
    discard: bool,
    dry_run: bool,
    min_size: int,
    min_gain: int,
    host: str,
    roots: tuple[str, ...],
    offsets: Path | None,
    cdxj: Path | None,
    jobs: int,
    spark: str,
    **options: Any,
) -> int:
    """Turn the copies in PLAN into revisits; everything else is copied byte for byte.

    Each copy is read again and compared with its original. Files that have changed, cannot be read
    or are still being written are left alone and named (status 7). Damaged files stay as they are.
    """
    if [out is not None, options["in_place"], undo, discard].count(True) != 1:
        raise click.UsageError("give one of --out, --in-place, --undo and --commit")
    if dry_run and (undo or discard):
        raise click.UsageError("--dry-run goes with --out and --in-place only")
    if spark and not isinstance(out, str):
        raise click.UsageError(SPARK_TO_STORE)
    check_outputs(offsets, cdxj)
    results, store = results_of(out, state)
    opened = open_plan(plan)
    if roots:
        opened.relocate(dict(map(_moved, roots)), host)
    check_host(host, opened.hosts(), "the plan")
    own = opened.of_host(host)
    tops = sorted({one.root for one in own.values()})
    in_stores = not out and check_replaceable(one.path for one in own.values())
    if (store or in_stores) and cdxj is not None:
        raise click.UsageError(NO_CDXJ)
    if undo or discard:
        stored, copy = bool(in_stores), bool(roots)
        return _undo_or_commit(plan, own, jobs, host, undo=undo, stored=stored, copy=copy)
    places = _places(opened, host, options, to_directory=out is not None)
    job = RewriteJob(opened, results, min_size, min_gain, dry_run, urls=places, store=store)
    with counted_requests() as sent, spark_session(spark) if spark else nullcontext() as cluster:
        then = [*_proof_steps(out, state, tops, host), *_index_steps(out, own, spark)]
        status = _rewrite(job, jobs, sent, cluster, then)
    whole = dry_run or _write_lists([str(results)] if results else tops, offsets, cdxj, jobs)
    return status if whole else Damaged.exit_status


def _proof_steps(
    out: Path | str | None, state: Path | None, tops: list[str], host: str
) -> list[str]:
    """Return the lines that say how results elsewhere are verified, and the records restored."""
    if out is None:
        return []
    results, lines = redacted(absolute(str(out))), list[str]()
    if len(tops) == 1 and not host:  # else originals, or sources, are in further places
        places = shlex.join([redacted(tops[0]), results])
        lines.append(
            "each revisit was read back with its original; to compare all once more: "
            f"bin/verify --against {places} (it names files that the manifest left out)"
        )
    lines.append(restore_step(results, state))
    return [with_dictionaries(printable(line)) for line in lines]


def _index_steps(out: Path | str | None, own: Containers, spark: str) -> list[str]:
    """Return the lines that say what an index needs after a run."""
    if out is None:
        tops = shlex.join(sorted({one.root for one in own.values()}))
        return [f"next: {reread_step(tops)} ({INDEX_PAGE})"]
    moved = [(one.root, one.name) for one in own.values()]
    return [f"next: {step}" for step in index_steps(str(out), moved, spark)]


def _places(plan: Plan, host: str, options: dict[str, Any], *, to_directory: bool) -> ContainerUrls:
    """Return where originals of other hosts are read, or that they are not."""
    bases, table, trusted = (options[one] for one in ("base_urls", "urls", "trust_manifests"))
    if trusted and not (to_directory and host and not bases and table is None):
        raise click.UsageError(
            "--trust-manifests goes with --host and --out, not with --base-url or --urls"
        )
    places = container_urls(plan.containers().values(), bases, table, host)
    return places._replace(trusted=trusted)


def _undo_or_commit(
    plan: Path, own: Containers, jobs: int, host: str, *, undo: bool, stored: bool, copy: bool
) -> int:
    """Undo or commit the files of a plan, which may be `stored`, or a `copy` of those scanned."""
    roots = {one.root for one in own.values()}
    if not undo:
        check_not_unfinished(plan, host, roots)
    if stored:
        status = _in_stores(plan, list(own.values()), jobs, undo=undo)
    else:
        tops = sorted({Path(one.root) for one in own.values()})
        status = _on_this_machine(plan, tops, own, jobs, undo=undo)
    if undo and not status:
        unmark_unfinished(plan, host, roots)
        if not copy:
            end_undone_run(plan.resolve().parent)
    return status


def _on_this_machine(
    plan: Path, tops: list[Path], own: Containers, jobs: int, *, undo: bool
) -> int:
    _check_present(tops, "bin/undedup NEWDIR --in-place" if undo else "--root OLD=NEWDIR")
    if not undo:
        return _commit(plan, tops, own)
    before = sum(map(_restored_before, own.values()))
    status = undo_all(tops, lambda: _rewritten(own), jobs, what=" of this plan")
    if before and not wants_json():
        files = "1 file was" if before == 1 else f"{before:,} files were"
        say(f"{files} restored before (same size, another file), as by an undo that was killed")
    return status


def end_undone_run(work: Path, sources: Sequence[str] | None = None) -> None:
    """End an interrupted run that was undone as a whole, see `end_undone`, and say so."""
    if end_undone(work, sources):
        say(f"the run in place that was interrupted ({work}) is given up: all is as before it")


def _restored_before(one: ManifestContainer) -> bool:
    """Return whether another file of the same size is in its place, and nothing undoes that."""
    journal = Journal(Path(one.root), one.name)
    if journal.exists() or journal.committed():
        return False
    with suppress(OSError):
        now = os.stat(one.path)
        return now.st_size == one.size and now.st_ino != one.inode
    return False


def _check_present(tops: list[Path], advice: str) -> None:
    """Raise `BadInput` if a directory that was rewritten is not there any more."""
    for top in tops:
        if not top.exists():
            raise BadInput(
                f"{top}, whose files the plan rewrites, does not exist; if it was moved, give "
                f"{advice}"
            )


def _write_lists(tops: list[str], offsets: Path | None, cdxj: Path | None, jobs: int) -> bool:
    """Write the map and the CDXJ of the results, if wanted; returns whether they are whole."""
    write_offsets(tops, offsets)
    return cdxj is None or write_cdxj(names_below(tops), cdxj, jobs)


def _moved(text: str) -> tuple[str, str]:
    """Return the directories that ``OLD=NEW`` names, absolute."""
    old, equals, new = text.partition("=")
    if not (old and equals and new):
        raise click.UsageError(f"--root {text}: write OLD=NEW, as /warcs=/mnt/copy")
    return os.path.abspath(old), os.path.abspath(new)


class _RewriteReport:
    """What became of the files of a plan, and which of them its directory of results lacks."""

    def __init__(self, job: RewriteJob) -> None:
        self.job, self.found = job, RewriteOutcome(files=0)
        self.left = 0  # files left alone
        self.written = False  # whether results were made, or replaced
        self.absent: list[MissingFile] = []
        self.referring: list[str] = []  # results that existed, and refer to files left alone
        self._files = {file.name: file for file in job.containers().values()}

    def add(self, outcome: RewriteOutcome) -> None:
        """Add an outcome; bytes of a file that is not in the directory count nowhere."""
        self.found.add(outcome)
        self.written |= self.job.wrote(outcome)
        if outcome.state == "referring":
            self.referring.append(self.job.place.shown(outcome.name))
        if outcome.state != "left_alone":
            return
        self.left += 1
        if self.job.out is not None:
            size, there = self._files[outcome.name].size, self.job.place.size(outcome.name) or 0
            self.absent.append(MissingFile(outcome.path, size, there))
            self.found.bytes_before -= size
            self.found.bytes_after -= size

    def finish(self) -> None:
        """Count the records of the plan that are in files which were left alone."""
        found = self.found
        planned = self.job.plan.copies_of(self.job.urls.host)
        found.records = planned.copies
        if self.left and (rest := found.records - found.revisits - found.refused.total()):
            counted = found.removed + found.refused_bytes.total()
            found.refuse(FILE_LEFT, planned.stored - counted, rest)

    def as_json(self) -> dict[str, Any]:
        absent = [file._asdict() for file in self.absent]
        more = {"left_alone": self.left, "not_copied": absent, "dry_run": self.job.dry}
        more["refer_to_left_alone"] = sorted(self.referring)
        return {**self.found.as_json(), **more}

    def lines(self) -> Iterator[str]:
        found, dry = self.found, self.job.dry
        would = "would become" if dry else "became"
        revisits = "a revisit" if found.revisits == 1 else "revisits"
        yield (
            singular(f"{found.files:,} files: of {found.records:,} records in the plan ")
            + f"{found.revisits:,} {would} {revisits}; {amount(found.bytes_before)} {would} "
            f"{amount(found.bytes_after)}"
        )
        kept = [one for one in self.absent if one.existing_bytes]
        if lacking := [one for one in self.absent if not one.existing_bytes]:
            files = singular(f"{len(lacking):,} files")
            words = "WOULD NOT BE COPIED" if dry else "NOT COPIED"
            size = amount(sum(file.bytes for file in lacking))
            yield f"{words}, so keep the source: {files}, {size}"
            yield from file_lines([f"not copied: {one.file}" for one in lacking], len(lacking))
        if kept:
            yield f"{EARLIER}: {earlier_results_text(kept)}"
            yield from file_lines([f"kept: {one.file}" for one in kept], len(kept))
        yield from count_lines("not rewritten: ", found.refused, WORDS, found.refused_bytes)


def _rewrite(
    job: RewriteJob,
    processes: int,
    requests: CountedRequests,
    cluster: Cluster | None,
    then: list[str],
) -> int:
    totals, read = _RewriteReport(job), 0
    found, containers = totals.found, job.containers()
    count, total = len(containers), sum(file.size for file in containers.values())
    paths = (file.path for file in containers.values())
    roots = {file.root for file in containers.values()}
    if job.out is not None and not job.store and (lost := lost_owners(paths, job.out)):
        say(f"warning: {lost}")

    def begin() -> None:
        if job.store:
            check_conditions(job.store)
        elif job.out is None:
            mark_unfinished(job.plan.path, job.urls.host, roots)

    with show_progress() as progress:
        progress(ProgressUpdate("rewriting", 0, total))
        for outcome in rewrite(job, processes, begin, cluster):
            totals.add(outcome)
            read += outcome.bytes_before
            progress(ProgressUpdate("rewriting", read, total))
            if outcome.state == "left_alone":
                say(f"warning: {outcome.name} was left alone: {outcome.problem}")
            elif outcome.state == "rewritten":
                say(
                    f"{found.files:,} of {count:,}: {outcome.name}: "
                    + singular(f"{outcome.revisits:,} revisits, ")
                    + f"{amount(outcome.bytes_before)} to {amount(outcome.bytes_after)}"
                )
    if job.out is None and not job.dry:
        unmark_unfinished(job.plan.path, job.urls.host, roots)
    totals.finish()
    sent = sent_requests(requests)
    lines = [*totals.lines(), *sent.lines()]
    if (found.revisits or totals.written) and not job.dry:
        lines += map(as_called, then)
    print_result({**totals.as_json(), **sent.as_json()}, lines)
    _say_what_to_know(job, totals)
    return Damaged.exit_status if totals.left else 0


def _say_what_to_know(job: RewriteJob, totals: _RewriteReport) -> None:
    """Say what a run could not do, and what its results depend on."""
    found = totals.found
    in_zstd = zstd_text(found.zstd_originals, dry=job.dry, in_place=job.out is None)
    for text in filter(None, (referring_text(totals.referring), in_zstd)):
        say(as_called(f"warning: {text}"))
    if found.trusted:
        say(singular(f"{found.trusted:,} revisits of originals that were not read: {_TRUSTED}"))
    elsewhere = found.refused[ORIGINAL_ELSEWHERE]
    if elsewhere and job.out is not None and not job.urls.reads_elsewhere:
        say(
            singular(f"warning: {elsewhere:,} captures stay whole: their originals are on other ")
            + "hosts. Give --base-url, --urls or --trust-manifests, and another --out"
        )
    if found.elsewhere:
        say(f"the first original of another host that could not be read: {found.elsewhere}")


def undo_all(
    roots: list[Path], find: Callable[[], Undoable], processes: int,
    locks: list[Path] | None = None, what: str = "",
) -> int:  # fmt: skip
    """Undo the rewriting in place below `roots` of the files that `find` returns.

    `locks` are the directories with their journals, if these are not `roots`; `what` says of what
    the files are, for a message.
    """
    places = roots if locks is None else locks
    with _locked_and_cleaned(places):
        tasks, not_restorable = find()
        if not (tasks or not_restorable):
            for root in roots:
                if not has_undo_data(root) and (above := journal_above(root)):
                    raise BadInput(f"nothing was undone: {root} has no journal; {above}")
            say(
                f"there is nothing to undo{what} below {', '.join(map(str, roots))}: nothing was "
                "rewritten there in place, or all of it was undone (bin/undedup DIR --out OTHER "
                "restores what was committed; a run with --out has changed nothing there: to undo "
                "it, delete its results and working files)"
            )
        check_space_for(tasks, processes)
        results = side_by_side(restore_file, None, tasks, processes)
        with show_progress() as progress:
            shown = finished(results, "restoring", len(tasks), progress)
            printed, counted = tee(marked_as_undo(tasks, places, shown))
            status = print_restored(chain(not_restorable, printed))
        if any(one.state != "left_alone" for one in counted) and not wants_json():
            step = reread_step(shlex.join(absolute(str(root)) for root in roots))
            print_result({}, [f"next: {step}"])
        return status


def journal_above(directory: Path) -> str:
    """Say which directory above this one has journals, and what to do with it; "" for none."""
    for one in directory.absolute().parents:
        if has_undo_data(one):
            return (
                f"{one} has: bin/undedup {shlex.quote(str(one))} restores all that is below that, "
                "with --out OTHER to take a part from there"
            )
    return ""


def _rewritten(containers: Containers) -> Undoable:
    """Return the files that a plan has rewritten in place, and those committed since.

    A journal that only an earlier run with ``--out`` left has nothing to undo in place.
    """
    tasks, not_restorable = [], []
    for one in containers.values():
        journal = Journal(Path(one.root), one.name)
        if journal.exists():
            with suppress(Damaged):  # named when the file is restored
                if is_of_earlier_run(journal, one):
                    continue
            tasks.append(Undo(Path(one.root), one.name, None))
        elif journal.committed() and not (
            os.path.exists(one.path) and os.path.getsize(one.path) == one.size
        ):
            not_restorable.append(Restored(one.name, "left_alone", 0, was_committed(one.root)))
    return tasks, not_restorable


@contextmanager
def _locked_and_cleaned(roots: list[Path]) -> Iterator[None]:
    """Lock directories with journals, and remove what killed runs left there."""
    with locked([root for root in roots if (root / DIRECTORY).is_dir()]):
        for root in roots:
            discard_unfinished(root)
        yield


def restore_file(_: None, task: Undo) -> Restored:
    """Restore one file; raises `DedupError` if that fails, the file then unchanged."""
    try:
        return restore(task)
    except OSError as error:
        place = task.directory / task.name
        raise DedupError(
            f"{place}: {error.strerror or error}; this file is unchanged: run the same "
            "command again to resume"
        ) from error


def _in_stores(
    plan: Path, containers: list[ManifestContainer], processes: int, *, undo: bool
) -> int:
    """Restore or commit the objects of a plan; returns the exit status."""
    roots = sorted({one.root for one in containers})
    with counted_requests() as sent:
        tasks = objects_of_plan(containers)
        if undo:
            return _undo_objects(tasks, [], roots, processes, sent)
        check_finished(plan, [])
        with show_progress() as progress:
            done = list(finished(commit_objects(tasks), "committing", len(tasks), progress))
        return _print_committed(done, roots, sent)


def undo_below(addresses: list[str], processes: int, *, dry: bool) -> int:
    """Restore what was rewritten in place below addresses; returns the exit status."""
    with counted_requests() as sent:
        tasks, problems = objects_below(addresses)
        tasks = [task._replace(dry=dry) for task in tasks]
        return _undo_objects(tasks, problems, addresses, processes, sent, dry=dry)


def _undo_objects(
    tasks: list[StoredUndo], not_restorable: list[Restored], places: list[str], processes: int,
    sent: CountedRequests, *, dry: bool = False,
) -> int:  # fmt: skip
    if not (tasks or not_restorable):
        say(
            f"there is nothing to undo below {', '.join(map(redacted, places))}: nothing was "
            "rewritten there in place, or all of it was undone or committed (what was committed in "
            "a store cannot be restored from it)"
        )
    with restoring(tasks, processes) as results, show_progress() as progress:
        shown = finished(results, "checking" if dry else "restoring", len(tasks), progress)
        return print_restored(chain(not_restorable, shown), sent, dry=dry)


def _commit(plan: Path, roots: list[Path], containers: Containers) -> int:
    with _locked_and_cleaned(roots):
        check_finished(plan, roots)
        tasks = _rewritten(containers)[0]
        with show_progress() as progress:
            results = list(finished(map(commit, tasks), "committing", len(tasks), progress))
    return _print_committed(results, roots)


def _print_committed(
    results: list[Restored], roots: Sequence[object], requests: CountedRequests | None = None
) -> int:
    left = [result for result in results if result.state == "left_alone"]
    if not results:
        say(
            "there is nothing to commit: no file of the plan has removed records; they were "
            "committed or undone before, or it was not rewritten in place"
        )
    for result in left:
        say(f"warning: {result.name} keeps its removed records: {result.problem}")
    freed = sum(result.bytes_after for result in results if result.state != "left_alone")
    places = printable(", ".join(map(str, roots)))
    files = singular(f"{len(results) - len(left):,} files, {amount(freed)}")
    content = {"files": len(results), "left_alone": len(left), "bytes": freed}
    sent = sent_requests(requests) if requests else SentRequests({})
    line = f"{places}: discarded the removed records of {files}"
    print_result({**content, **sent.as_json()}, [line, *sent.lines()])
    return Damaged.exit_status if left else 0
