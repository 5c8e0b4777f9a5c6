"""Run all stages: manifest, plan, rewriting, verification.

An interrupted run is resumed by the same command; all files are complete at any time. A run in
place records its options and files in the `WorkDirectory` before it begins to write. Until it has
finished, its plan is used again, because the files that the plan was made from are changing, and a
run with other options or files is refused.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterable
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from dedupindex.counts import OnProgress, ProgressUpdate
from dedupindex.errors import BadInput, BadSource, Damaged, DedupError, SettingsConflict
from dedupindex.index import open_index
from dedupindex.object_store import check_conditions, is_remote, list_directory, local
from dedupindex.object_store.store_address import S3, scheme_of
from dedupindex.post_crawl.dedup_report import NO_ARCHIVE, DedupReport, by_host, host_lines
from dedupindex.post_crawl.estimate_duplicates import (
    DuplicateEstimate,
    SampledFile,
    draw,
    estimate_duplicates,
)
from dedupindex.post_crawl.manifest.make_manifest import ManifestReport, check_any_read, make
from dedupindex.post_crawl.manifest.parquet import is_outdated, open_manifest
from dedupindex.post_crawl.manifest.record_lines import ManifestOptions
from dedupindex.post_crawl.plan.compare_payloads import Compare
from dedupindex.post_crawl.plan.group_duplicates import GroupingRule
from dedupindex.post_crawl.plan.make_plan import Clock, ResolveOptions, resolve
from dedupindex.post_crawl.plan.plan_file import MatchCriteria, Plan, open_plan
from dedupindex.post_crawl.rewrite.result_place import (
    STORE_FILE,
    ResultPlace,
    check_in_stores,
    is_as_scanned,
    opened_source,
    other_content,
)
from dedupindex.post_crawl.rewrite.rewrite_all import (
    check_names,
    lost_owners,
    needed_space,
    not_writable,
    rewrite,
)
from dedupindex.post_crawl.rewrite.rewrite_file import RewriteJob
from dedupindex.post_crawl.rewrite.rewrite_outcome import outcome_of, sized_now
from dedupindex.post_crawl.rewrite.stored_journal import check_replaceable, journal_sizes
from dedupindex.post_crawl.rewrite.undo_directory import DIRECTORY, LOCK, UNCORRECTED, file_key
from dedupindex.post_crawl.update_index import ChangedFile, update_index
from dedupindex.post_crawl.verify_results import VerifyJob, verify_containers
from dedupindex.post_crawl.work_directory import (
    WorkDirectory,
    check_idle,
    work_directory,
    working,
)
from dedupindex.runtime.atomic_replace import (
    FileSink,
    Untouched,
    being_written,
    copy_metadata,
    identity,
    lack_of_space,
    open_part,
    part_path,
    remove_stale_parts,
    removing,
)
from dedupindex.runtime.duckdb import open_database, quoted
from dedupindex.runtime.files import shared
from dedupindex.runtime.progress import Say
from dedupindex.runtime.spark import Cluster, spark_session
from dedupindex.runtime.tables import amount, singular
from dedupindex.sources.discover import WORKING, is_unfinished
from dedupindex.sources.warc_files import (
    UNFINISHED,
    SourceFile,
    Sources,
    find,
    nothing_found,
    results_of_each,
)

_HOSTS, _ALL_HOSTS = "revisits-by-host.jsonl", "hosts.jsonl"
_SHOWN = 20  # hosts of a report
_UNDO_DATA = (
    "warning: {0} has the undo data of earlier runs ({0}/.rewrite), which the results do not get: "
    "keep {0} to restore those records, or restore them first: bin/undedup {1}"
)
_LINKS = (
    "warning: sources that are links to others of them: {}. Their results are files of their own, "
    "and the sizes before count {} that are not on disk"
)


@dataclass(frozen=True)
class DedupOptions:
    out: Path | None = None  # where the results go; None is in place
    store: str = ""  # address below which they go; `out` then has the journals
    work: Path | None = None  # directory of working files; None: beside the results
    index: Path | None = None
    update_index: bool = False  # tell the index afterwards what has changed
    compare: Compare = field(default_factory=Compare)
    criteria: MatchCriteria = MatchCriteria()
    min_size: int = 0
    min_gain: int = 1
    dry: bool = False
    jobs: int = 1
    spark: str = ""  # the cluster that reads, rewrites and verifies files
    memory: str = "1GB"  # for DuckDB
    every_host: bool = False  # write `DedupReport.all_hosts`
    restart: bool = False  # give up an interrupted run in place

    def decisive(self) -> dict[str, Any]:
        """Return the options that decide which records become revisits, by their typed names."""
        compare = {-1: "always", 0: "strong-digest"}
        return {
            "--index": os.path.abspath(self.index) if self.index is not None else "",
            "--compare": compare.get(self.compare.sample, f"sample {self.compare.sample}"),
            "--any-status": self.criteria.any_status,
            "--same-type": self.criteria.same_type,
            "--other-second": self.criteria.other_second,
            "--min-size": self.min_size,
            "--min-gain": self.min_gain,
        }


def dedup(
    sources: list[str],
    options: DedupOptions,
    say: Say = lambda text: None,
    on_progress: OnProgress = lambda seen: None,
) -> DedupReport:
    """Run all stages; raises `DedupError`. The report names files that were left alone."""
    _check_in_place(sources, options)
    _check_idle(options)
    if options.spark:
        check_in_stores("rewrites", sources)
    found = find(sources)
    files = [*found.files, *found.others]
    roots = sorted({file.root for file in files})
    if not roots:
        raise nothing_found(sources)
    if options.out is not None:
        check_names(files, options.out, found.searched, options.store)
        if options.store:  # a mistake in the address shows before everything is read
            next(list_directory(options.store), None)
        for place in _rewritten_before(files):
            then = " --in-place" if is_remote(place) else " --out OTHER, and run bin/dedup OTHER"
            say(_UNDO_DATA.format(place, shlex.quote(place) + then))
        if options.store and not options.dry:
            check_conditions(options.store)
        if linked := _linked_sizes(files):
            say(singular(_LINKS.format(f"{len(linked):,} files", amount(sum(linked)))))
    _check_work(options.work, found)
    paths = (file.path for file in files)
    if not options.store and (lost := lost_owners(paths, options.out)):
        if options.out is None and not options.dry:
            raise DedupError(f"{lost}; nothing was written")
        say(f"warning: {lost}")
    with working(options.work or work_directory(roots, options.out), sources) as work:
        try:
            report = _DedupRun(found, options, work, say, on_progress).report()
            if options.out is not None:
                absent = {missing.file for missing in report.absent}
                linked = _linked_sizes([file for file in files if file.path not in absent])
                report.linked_files, report.linked_bytes = len(linked), sum(linked)
            if options.out is not None and not options.dry:
                report.comparable = results_of_each(sources, found)
                report.moved = [(file.root, file.name) for file in files]
            return report
        except KeyboardInterrupt:
            say(_interrupted(work, options))
            raise


def estimate(
    sources: list[str], size: str, seed: int, options: DedupOptions,
    on_progress: OnProgress = lambda seen: None,
) -> DuplicateEstimate:  # fmt: skip
    """Read a random sample of the files, and estimate the duplicates of all; raises `DedupError`.

    The lines of the sample stay in the manifest, so that a later run need not read it again.
    """
    _check_in_place(sources, options)
    found = find(sources)
    check_any_read(found, ManifestReport(problems=found.problems))
    _check_work(options.work, found)
    files = [*found.files, *found.others]
    sample = draw(files, size, seed)
    roots = sorted({file.root for file in found.files})
    with working(options.work or work_directory(roots, options.out), sources) as work:
        if work.unfinished_options is not None:
            raise work.interrupted()
        if is_outdated(work.manifest):
            shutil.rmtree(work.manifest)
        unusable = {file.path for file in found.others}
        readable = replace(found, files=[file for file in sample if file.path not in unusable])
        made = make(
            readable, work.manifest, ManifestOptions(), jobs=options.jobs, spark=options.spark,
            on_progress=on_progress,
        )  # fmt: skip
        manifest = open_manifest(work.manifest).only({file.path for file in sample})
        numbers = {one.path: one.number for one in manifest.containers().values()}
        leaves = options.out is not None  # files that are still being written
        sizes = {one.path: one.size for one in files if not (leaves and is_unfinished(one.name))}
        drawn = [SampledFile(numbers.get(one.path, 0), sizes.get(one.path, 0)) for one in sample]
        total, report = sum(sizes.values()), DedupReport(dry_run=True)
        report.add_found(found, made.problems)
        report.add_manifest(manifest)
        with open_database(work.top, options.memory, 0) as (database, _):
            database.execute(
                f"CREATE VIEW lines AS SELECT * FROM read_parquet({quoted(manifest.parquet)})"
            )
            estimated = estimate_duplicates(database, drawn, len(files), total, options.criteria)
        return replace(estimated, sampled_captures=report.captures, left=report.left)


def _linked_sizes(files: list[SourceFile]) -> list[int]:
    """Return the sizes of files that are another name of one of these files."""
    seen, sizes = set[tuple[int, int]](), list[int]()
    for file in files:
        if not is_remote(file.path) and (file.device, file.inode) in seen:
            sizes.append(file.size)
        seen.add((file.device, file.inode))
    return sizes


def _rewritten_before(files: list[SourceFile]) -> list[str]:
    """Return the directories, beside these files and above, that have undo data of one of them.

    In an object store, only the prefixes that the user named are looked at.
    """
    prefixes = {file.root for file in files if scheme_of(file.root) in S3}
    kept = {prefix: _with_undo_data(journal_sizes(prefix)) for prefix in prefixes}
    found = {file.root for file in files if file_key(file.name) in kept.get(file.root, ())}
    own = [Path(file.path) for file in files if not is_remote(file.root)]
    for folder in {path.parent for path in own}:
        for directory in (folder, *folder.parents):
            place = str(directory)
            if place not in kept:
                names = (item.name for item in directory.glob(f"{DIRECTORY}/*"))
                kept[place] = _with_undo_data(names)
    places = {Path(place) for place, keys in kept.items() if keys and not is_remote(place)}
    for path in own if places else ():
        for directory in places.intersection(path.parents):
            if file_key(str(path.relative_to(directory))) in kept[str(directory)]:
                found.add(str(directory))
    return sorted(found)


def _with_undo_data(names: Iterable[str]) -> set[str]:
    """Return the keys of the files that journals are of, from the names of these."""
    return {name.partition(".")[0] for name in names if name.endswith((".jsonl", ".committed"))}


def _check_in_place(sources: list[str], options: DedupOptions) -> None:
    """Raise `BadInput` if these files cannot be replaced by one run; sends and leaves nothing."""
    if options.out is None and check_replaceable(map(local, sources)) and options.work is None:
        raise BadInput(
            "these sources are in an object store: name a directory for working files with --work"
        )


def _check_idle(options: DedupOptions) -> None:
    """Raise `IndexBusy` if another run is at work; later that costs a request for each source."""
    out, work = options.out, options.work
    if work is None and out is not None:
        work = work_directory([], out)
    if work is not None:
        check_idle(work)
    if out is not None and not options.dry:
        with suppress(OSError), shared(out / DIRECTORY / LOCK, str(out)):
            pass


def _check_work(work: Path | None, found: Sources) -> None:
    """Raise `BadInput` if a scan of the sources would read the working files."""
    if work is None:
        return
    for root in found.searched:
        if is_remote(root) or not work.resolve().is_relative_to(top := Path(root).resolve()):
            continue
        below = work.resolve().relative_to(top).parts
        if not any(part.startswith(".") or part.endswith(WORKING) for part in below):
            raise BadInput(
                f"--work {work} is in {root}, where the next scan would read it: name another "
                f"directory, or one that ends in {WORKING}"
            )


def _interrupted(work: WorkDirectory, options: DedupOptions) -> str:
    """Say what an interruption leaves, and how to go on."""
    resume = f"the same command{' without --restart' if options.restart else ''} resumes"
    if options.out is not None or options.dry or work.unfinished_options is None:
        return resume
    undo = f"bin/rewrite {shlex.quote(str(work.plan))} --undo"
    return f"some files may be replaced already; {resume}, and {undo} restores them"


class _DedupRun:
    def __init__(
        self, found: Sources, options: DedupOptions, work: WorkDirectory, say: Say,
        on_progress: OnProgress,
    ) -> None:  # fmt: skip
        self._found, self._options, self._work = found, options, work
        self._say, self._progress = say, on_progress
        self._clock, self._new_journals = Clock(), 0  # bytes of what no earlier run has kept
        self._undoable = 0  # files that this run has journals of
        others = {file.path for file in found.others}  # which are copied, and named
        self._report = DedupReport(
            options.dry, options.out is None, skipped=found.skipped - found.skipped_archives,
            skipped_files=[path for path in found.skipped_files if path not in others],
            work=work.top, state=options.out if options.store else None,
            seconds=self._clock.seconds, min_gain=options.min_gain,
        )  # fmt: skip

    def report(self) -> DedupReport:
        report, options = self._report, self._options
        for path, offset, message in self._found.problems:
            report.leave(path, message, offset)
        plan = self._plan()
        report.add_manifest(open_manifest(self._work.manifest))
        report.add_plan(plan.totals)
        reserved = 0
        if (out := options.out) is not None:
            copied = (file for file in self._found.others if not is_unfinished(file.name))
            reserved = sum(file.size for file in copied if not (out / file.name).exists())
        job = RewriteJob(
            plan, out, options.min_size, options.min_gain, options.dry, reserved=reserved,
            searched=self._found.searched, store=options.store,
        )  # fmt: skip
        with spark_session(options.spark) if options.spark else nullcontext() as cluster:
            with self._clock("rewriting"):
                done = self._rewrite(job, cluster)
                self._report_journals(job)
                self._report_missing(job, done)
            report.count_left()
            if options.dry:
                self._warn_of_refusal(job, 0 if cluster else options.jobs)
            if not options.dry:
                with self._clock("verifying"):
                    self._verify(job, done - report.referring.keys(), cluster)
        with self._clock("adding up"):
            manifest = open_manifest(self._work.manifest)
            report.count_missing(manifest, self._work.top, options.memory)
            if options.every_host:
                report.all_hosts = self._work.top / _ALL_HOSTS
            spool = self._work.top / _HOSTS
            report.hosts = by_host(
                manifest.parquet, spool, _SHOWN, options.memory, report.all_hosts
            )
        if options.update_index and not options.dry and report.proof.sound:
            with self._clock("updating the index"):
                self._update_index(job, done)
        if options.out is None and not options.dry:
            self._work.end()
        return report

    def _plan(self) -> Plan:
        """Update the manifest and make a plan; return the existing one if a run in place began."""
        work, options = self._work, self._options
        old = is_outdated(work.manifest)
        if work.unfinished_options is not None and options.restart:
            self._say("gave up the run in place that was interrupted; making a new plan")
            work.end()
        if work.unfinished_options is not None:
            if old:
                raise SettingsConflict(
                    f"an earlier version started a run in place ({work.top}): let it finish "
                    "that, or restore the files with bin/undedup --in-place and then remove the "
                    "working files"
                )
            if options.out is not None or options.dry:
                raise work.interrupted()
            work.check_same(options.decisive(), (file.path for file in self._found.files))
            self._say("resuming the run in place that was interrupted, with its plan")
            return open_plan(work.plan)
        if old:
            self._say(f"{work.manifest} was made by an earlier version: all files are read again")
            shutil.rmtree(work.manifest)
        if options.index is not None:  # which is asked when all sources have been read
            open_index(options.index).close()
        with self._clock("reading"):
            made = make(
                self._found, work.manifest, ManifestOptions(), jobs=options.jobs,
                spark=options.spark, on_progress=self._progress,
            )  # fmt: skip
        for path, offset, message in made.problems:
            self._report.leave(path, message, offset)
        with self._clock("resolving"):
            shutil.rmtree(work.plan, ignore_errors=True)
            rule = GroupingRule(criteria=options.criteria)
            chosen = ResolveOptions(rule, options.compare, options.index, memory=options.memory)
            resolve([work.manifest], work.plan, chosen, self._say, on_progress=self._progress)
        return open_plan(work.plan)

    def _begin(self) -> None:
        """Record that a run begins to write; all checks have passed."""
        if self._options.out is not None:
            self._work.mark_real()
        if self._work.unfinished_options is None and self._options.out is None:
            files = (file.path for file in self._found.files)
            self._work.begin(self._options.decisive(), files)

    def _rewrite(self, job: RewriteJob, cluster: Cluster | None) -> set[str]:
        """Rewrite all files; returns the paths of those that were written."""
        total = sum(file.size for file in job.plan.containers().values())
        done, seen = set(), 0
        with open(self._work.top / _HOSTS, "wb") as hosts:
            for outcome in rewrite(job, self._options.jobs, self._begin, cluster):
                self._report.add_file(outcome if job.out is not None else sized_now(outcome))
                self._undoable += outcome.journal > 0
                self._new_journals += outcome.journal if outcome.state != "existing" else 0
                hosts.writelines(host_lines(outcome.hosts))
                seen += outcome.bytes_before
                self._progress(ProgressUpdate("rewriting", seen, total, self._report.revisits))
                if wrote := job.wrote(outcome):
                    self._report.written = True
                if wrote or outcome.state == "existing":
                    done.add(outcome.path)
                elif outcome.state == "left_alone":
                    done.discard(outcome.path)
                elif outcome.state == "referring":
                    self._report.referring[outcome.path] = job.place.shown(outcome.name)
        for file in self._found.others:
            if self._copy_unreadable(file, job):
                done.add(file.path)
        return done

    def _warn_of_refusal(self, job: RewriteJob, processes: int) -> None:
        """Say of a dry run that the real one would be refused by the disk."""
        for place, needed in needed_space(job, processes).items():
            if lack := lack_of_space(place, needed):
                self._say(f"warning: {lack}: the real run would write no archive")
        if closed := not_writable(job):
            self._say(f"warning: {closed}: the real run would write no archive")

    def _report_journals(self, job: RewriteJob) -> None:
        """Add the size of all that is kept to undo runs: in a dry run, what would be."""
        report = self._report
        roots = {str(job.out or file.root) for file in job.plan.containers().values()}
        sizes = [pair for root in roots for pair in _kept_sizes(root)]
        undoable = sum(name.endswith(".dropped") for name, _ in sizes)
        report.undoable, report.earlier_undoable = undoable > 0, undoable > self._undoable
        others = (STORE_FILE, UNCORRECTED)
        kept = (size for name, size in sizes if not (name in others or name.endswith(".part")))
        report.journals = sum(kept) + (self._new_journals if job.dry else 0)

    def _report_missing(self, job: RewriteJob, done: set[str]) -> None:
        """Add the files that are not in the directory of results."""
        report, out = self._report, job.out
        if out is None:
            return
        planned = {file.path for file in job.plan.containers().values()}
        others = {file.path for file in self._found.others}
        for file in (*self._found.files, *self._found.others):
            if file.path in done:
                continue
            if file.path not in planned | others:  # it could not be read
                report.add_file(outcome_of(file, "kept"))
            report.add_missing(file.path, file.size, job.place.size(file.name) or 0)
        known = {file.path for file in self._found.files} | others
        for path, _, _ in self._found.problems:
            if path in self._found.unlisted:
                report.add_unlisted(path)
            elif path not in known:  # such as a link that leads nowhere
                report.add_missing(path, 0, 0)
                report.uncounted += 1

    def _copy_unreadable(self, file: SourceFile, job: RewriteJob) -> bool:
        """Copy a file that cannot be read as an archive; returns whether its copy exists."""
        self._report.add_file(outcome_of(file, "kept"))
        if is_unfinished(file.name):
            self._report.leave(file.path, UNFINISHED)
            return False
        if not self._report.names(file.path):  # otherwise there is a better message
            self._report.leave(file.path, NO_ARCHIVE)
        if job.out is not None:
            try:
                copy(file, job.place, dry=job.dry)
            except Untouched as untouched:
                self._report.leave(file.path, str(untouched))
                return False
        return True

    def _verify(self, job: RewriteJob, done: set[str], cluster: Cluster | None) -> None:
        """Compare all files that were written with those they were made from."""
        containers = [file for file in job.plan.containers().values() if file.path in done]
        containers.sort(key=lambda file: -file.size)
        total, seen = sum(file.size for file in containers), 0
        damaged = frozenset(problem.container for problem in self._report.left)
        verify_job = VerifyJob(job, damaged)
        for proof in verify_containers(verify_job, containers, self._options.jobs, cluster):
            seen += proof.size
            self._report.proof.add(proof)
            self._progress(ProgressUpdate("verifying", seen, total))
        entries = open_manifest(self._work.manifest).entries.values()
        without = {entry.container.path for entry in entries if not entry.records}
        self._report.proof.files -= len(without & done & damaged)  # only their bytes are compared

    def _update_index(self, job: RewriteJob, done: set[str]) -> None:
        """Tell the index what has changed; repeated if a run is resumed."""
        assert self._options.index is not None
        entries = open_manifest(self._work.manifest).entries.values()
        files = [entry.container for entry in entries]
        if job.out is not None:
            top = job.store or os.path.abspath(job.out)
            results = (file for file in files if file.path in done)
            changed = [ChangedFile(file.path, f"{top}/{file.name}") for file in results]
            others = list[str]()
        else:  # an index may know files by their last names, and not which of these it has
            revisits = {entry.container.path for entry in entries if "revisit" in entry.records}
            names = {os.path.basename(path) for path in revisits | done}
            of_names = [file.path for file in files if os.path.basename(file.name) in names]
            changed = [ChangedFile(path, path) for path in of_names]
            others = [file.path for file in files if os.path.basename(file.name) not in names]
        updated = update_index(
            self._options.index, changed, others, self._options.jobs, self._progress,
            self._options.spark,
        )  # fmt: skip
        self._report.indexed = updated.read
        for path, offset, message in updated.problems:
            self._report.leave(path, message, offset)


def _kept_sizes(root: str) -> Iterable[tuple[str, int]]:
    """Return name and size of what is kept to undo runs below a directory or prefix."""
    if is_remote(root):
        return journal_sizes(root).items()
    return [(path.name, path.stat().st_size) for path in Path(root, DIRECTORY).glob("*")]


def copy(file: SourceFile, place: ResultPlace, *, dry: bool = False) -> None:
    """Copy a file to a place, whole or not at all; in a dry run, only check whether it can be.

    Raises `Untouched` if it changes meanwhile, cannot be read, or its target has other content.
    """
    with ExitStack() as stack:
        try:
            source = stack.enter_context(opened_source(file))
        except OSError as error:
            raise Untouched(f"it cannot be read: {error.strerror}") from error
        except BadSource as error:
            raise Untouched(str(error)) from error
        if being_written(source):
            raise Untouched("another process is writing to it")
        try:
            if not (place.has(source, file.name) or dry):
                _copy(file, source, place)
        except FileExistsError as error:
            raise other_content(place, file.name, source) from error


def _copy(file: SourceFile, source: BinaryIO, place: ResultPlace) -> None:
    target = place.state / file.name
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_stale_parts([target])  # of a killed run
    part = part_path(target)
    before = os.fstat(source.fileno())
    with removing(part), open_part(part) as into:
        try:
            FileSink(into).copy(source, 0, before.st_size)
        except Damaged as error:
            raise Untouched("it became shorter while it was copied") from error
        copy_metadata(source, into, replaces=False)
        os.fsync(into.fileno())
        same = (
            is_as_scanned(file)
            if is_remote(file.path)
            else identity(os.stat(file.path)) == identity(before)
        )
        if not same:
            raise Untouched("it was changed while it was copied")
        place.create(part, into, file.name)
