"""The stages one after the other: manifest, plan, rewriting, verification.

A run with `DedupOptions.out` can be killed at any time: the same again resumes it, with files that
are whole. A run in place notes in its working files when it begins to write, with which options and
files. Until it has ended the same plan counts, because the files that it was made of are changing,
and a run with other options or files is refused.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dedupindex.counts import OnProgress, ProgressUpdate
from dedupindex.errors import BadInput, SettingsConflict
from dedupindex.index import open_index
from dedupindex.post_crawl.dedup_files import WorkDirectory, awaited, copy, working
from dedupindex.post_crawl.dedup_report import DedupReport, Proving, prove
from dedupindex.post_crawl.manifest import make_manifest, record_lines
from dedupindex.post_crawl.manifest.parquet import is_of_before, open_manifest
from dedupindex.post_crawl.plan import make_plan as resolving
from dedupindex.post_crawl.plan.compare_payloads import Compare
from dedupindex.post_crawl.plan.group_duplicates import GroupingRule
from dedupindex.post_crawl.plan.plan_file import MatchCriteria, Plan, open_plan
from dedupindex.post_crawl.plan.plan_writer import by_host, spooled
from dedupindex.post_crawl.rewrite.journal import DIRECTORY
from dedupindex.post_crawl.rewrite.rewrite_all import check_names, rewrite
from dedupindex.post_crawl.rewrite.rewrite_file import Left, RewriteJob, RewriteOutcome
from dedupindex.runtime.workers import side_by_side
from dedupindex.sources.discover import is_unfinished
from dedupindex.sources.warc_files import NOTHING, UNFINISHED, SourceFile, Sources, find

_HOSTS, _EVERY_HOST, _OUTCOMES = "hosts.tsv", "hosts.jsonl", "outcomes.jsonl"
_JOURNAL = (".jsonl", ".dropped", ".committed")  # how the names of its files end
_SHOWN = 20  # hosts of a report


@dataclass(frozen=True)
class DedupOptions:
    """How a run is done."""

    out: Path | None = None  # where the results go; None is in place
    work: Path | None = None  # working files; None: beside
    index: Path | None = None
    compare: Compare = field(default_factory=Compare)
    alike: MatchCriteria = MatchCriteria()
    min_size: int = 0
    min_gain: int = 1
    dry: bool = False
    jobs: int = 1
    memory: str = "1GB"  # for DuckDB
    every_host: bool = False  # write `DedupReport.every_host`
    restart: bool = False  # give up a run in place that was interrupted

    def decisive(self) -> dict[str, Any]:
        """What decides which records become revisits, by how the options are typed."""
        compare = {-1: "always", 0: "strong-digest"}
        return {
            "--index": os.path.abspath(self.index) if self.index is not None else "",
            "--compare": compare.get(self.compare.sample, f"sample {self.compare.sample}"),
            "--any-status": self.alike.any_status,
            "--same-type": self.alike.same_type,
            "--other-second": self.alike.other_second,
            "--min-size": self.min_size,
            "--min-gain": self.min_gain,
        }


def dedup(
    sources: list[str],
    options: DedupOptions,
    say: Callable[[str], None] = lambda text: None,
    on_progress: OnProgress = lambda seen: None,
) -> DedupReport:
    """Run all stages; raises `DedupError`. What is left alone is named in the report."""
    found = find(sources)
    roots = sorted({Path(file.root) for file in (*found.files, *found.others)})
    if not roots:
        raise BadInput(NOTHING)
    if options.out is not None:
        check_names([*found.files, *found.others], options.out)
    with working(options.work or _beside(roots, options.out), sources) as work:
        return _Run(found, options, work, say, on_progress).report()


def _beside(roots: list[Path], out: Path | None) -> Path:
    """Where working files go that nobody has named a place for; raises `BadInput`."""
    if out is None and len(roots) > 1:
        raise BadInput("these sources lie in several folders: say with --work where to keep files")
    place = (roots[0] if out is None else out).absolute()
    return place.with_name(f"{place.name}.dedup")


class _Run:
    def __init__(
        self,
        found: Sources,
        options: DedupOptions,
        work: WorkDirectory,
        say: Callable[[str], None],
        on_progress: OnProgress,
    ) -> None:
        self._found, self._options, self._work = found, options, work
        self._say, self._progress = say, on_progress
        self._report = DedupReport(options.dry, skipped=found.skipped, work=work.top)

    def report(self) -> DedupReport:
        """Go through all stages."""
        report, options = self._report, self._options
        for path, offset, message in self._found.problems:
            report.leave(path, message, offset)
        plan = self._planned()
        report.take_manifest(open_manifest(self._work.manifest))
        report.take_plan(plan.totals)
        job = RewriteJob(
            plan, options.out, options.min_size, options.min_gain, options.dry,
            besides=sum(file.size for file in self._found.others if awaited(file, options.out)),
        )  # fmt: skip
        if self._work.begun is None:
            (self._work.top / _OUTCOMES).unlink(missing_ok=True)
        with self._stage("rewriting"):
            done = self._rewritten(job)
            self._beside_them(job, done)
        report.add_up()
        if not options.dry:
            with self._stage("verifying"):
                self._verify(job, done)
        with self._stage("adding up"):
            lines = open_manifest(self._work.manifest).parquet
            spool = self._work.top / _HOSTS
            if options.every_host:
                report.every_host = self._work.top / _EVERY_HOST
            first, rest = by_host(lines, spool, _SHOWN, options.memory, report.every_host)
            report.hosts = [*first, rest] if any(rest[1:]) else first
        if options.out is None and not options.dry:
            self._work.end()
        return report

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        begin = time.monotonic()
        yield
        self._report.seconds[name] = time.monotonic() - begin

    def _planned(self) -> Plan:
        """Read what has changed and plan anew, unless a run in place has begun."""
        work, options = self._work, self._options
        old = is_of_before(work.manifest)
        if work.begun is not None and options.restart:
            self._say("gave up the run in place that was interrupted; planning anew")
            work.end()
        if work.begun is not None:
            if old:
                raise SettingsConflict(
                    f"an earlier version has begun a run in place ({work.top}): let that one end "
                    "it, or bring the files back with bin/undedup --in-place and then remove the "
                    "working files"
                )
            if options.out is not None or options.dry:
                raise SettingsConflict(
                    f"a run in place was interrupted ({work.top}): finish it with the options and "
                    "files that it began with, or give it up with --in-place --restart"
                )
            work.check_same(options.decisive(), (file.path for file in self._found.files))
            self._say("resuming the run in place that was interrupted, with its plan")
            return open_plan(work.plan)
        if old:
            self._say(f"{work.manifest} is of an earlier version: all is read anew")
            shutil.rmtree(work.manifest)
        if options.index is not None:  # which is asked when all sources have been read
            open_index(options.index).close()
        with self._stage("reading"):
            made = make_manifest.make(
                self._found, work.manifest, record_lines.ManifestOptions("sha1", False, False),
                jobs=options.jobs, on_progress=self._progress,
            )  # fmt: skip
        for path, offset, message in made.problems:
            self._report.leave(path, message, offset)
        with self._stage("resolving"):
            shutil.rmtree(work.plan, ignore_errors=True)
            chosen = resolving.ResolveOptions(
                rule=GroupingRule(alike=options.alike),
                compare=options.compare,
                index=options.index,
                memory=options.memory,
            )
            resolving.resolve([work.manifest], work.plan, chosen, warn=self._say)
        return open_plan(work.plan)

    def _begin(self) -> None:
        """Note that a run in place begins to write; nothing refuses it from here on."""
        if self._work.begun is None and self._options.out is None:
            files = (file.path for file in self._found.files)
            self._work.begin(self._options.decisive(), files)

    def _rewritten(self, job: RewriteJob) -> set[str]:
        """Rewrite all; returns the paths of those that were written."""
        total = sum(one.size for one in job.plan.containers().values())
        before = {} if job.out is not None else self._told()
        done, seen = set(), 0
        with (
            open(self._work.top / _HOSTS, "w", encoding="utf-8", newline="") as hosts,
            open(self._work.top / _OUTCOMES, "a", encoding="utf-8") as told,
        ):
            for outcome in rewrite(job, self._options.jobs, self._begin):
                if outcome.state == "there" and outcome.path in before:
                    outcome = before[outcome.path]  # which knows what was refused
                elif job.out is None and not job.dry:
                    told.write(json.dumps(vars(outcome)) + "\n")
                    told.flush()
                self._report.take_file(outcome)
                hosts.writelines(spooled(outcome.hosts))
                seen += outcome.bytes_before
                self._progress(ProgressUpdate("rewriting", seen, total, self._report.revisits))
                if outcome.state in ("rewritten", "there") or (job.out and outcome.state == "kept"):
                    done.add(outcome.path)
                elif outcome.state == "left":
                    done.discard(outcome.path)
        for file in self._found.others:
            if self._other(file, job):
                done.add(file.path)
        return done

    def _beside_them(self, job: RewriteJob, done: set[str]) -> None:
        """Name what is not in the folder of the results, and say how large the journal is."""
        report, out = self._report, job.out
        if not job.dry:
            roots = {out or Path(one.root) for one in job.plan.containers().values()}
            kept = (path for root in roots for path in (root / DIRECTORY).glob("*"))
            sizes = (path.stat().st_size for path in kept if path.suffix in _JOURNAL)
            report.journal = sum(sizes)
        if out is None:
            return
        planned = {one.path for one in job.plan.containers().values()}
        others = {file.path for file in self._found.others}
        for file in (*self._found.files, *self._found.others):
            if file.path in done:
                continue
            if file.path not in planned | others:  # it could not even be read
                size = file.size
                report.take_file(
                    RewriteOutcome(file.name, "kept", bytes_before=size, bytes_after=size)
                )
            target = out / file.name
            report.miss(file.path, file.size, target.stat().st_size if target.is_file() else 0)
        known = {file.path for file in self._found.files} | others
        for path, _, _ in self._found.problems:
            if path not in known:  # a directory that cannot be read
                report.miss(path, 0, 0)

    def _told(self) -> dict[str, RewriteOutcome]:
        """What an earlier part of a run in place has noted of files, by path."""
        found = {}
        with suppress(FileNotFoundError), open(self._work.top / _OUTCOMES, "rb") as lines:
            for line in lines:
                if line.endswith(b"\n"):
                    said = json.loads(line)
                    found[said["path"]] = RewriteOutcome(
                        **{**said, "refused": Counter(said["refused"])}
                    )
        return found

    def _other(self, file: SourceFile, job: RewriteJob) -> bool:
        """Copy what cannot be read as an archive; returns whether it is there then."""
        size = file.size
        kept = RewriteOutcome(
            file.name, "kept", path=file.path, bytes_before=size, bytes_after=size
        )
        self._report.take_file(kept)
        if is_unfinished(file.name):
            self._report.leave(file.path, UNFINISHED)
            return False
        if not self._report.names(file.path):  # it is told better there
            self._report.leave(file.path, "it cannot be read as WARC or ARC")
        if job.out is not None:
            try:
                copy(file, job.out, dry=job.dry)
            except Left as left:
                self._report.leave(file.path, str(left))
                return False
        return True

    def _verify(self, job: RewriteJob, done: set[str]) -> None:
        """Compare all that was written with what it was made of."""
        containers = [one for one in job.plan.containers().values() if one.path in done]
        containers.sort(key=lambda one: -one.size)
        total, seen = sum(one.size for one in containers), 0
        damaged = frozenset(problem.container for problem in self._report.left)
        proving = Proving(job, damaged)
        for proof in side_by_side(prove, proving, containers, self._options.jobs):
            seen += proof.size
            self._report.proof.add(proof)
            self._progress(ProgressUpdate("verifying", seen, total, self._report.revisits))
