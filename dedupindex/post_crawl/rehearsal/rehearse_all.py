"""The seven steps of the execution plan of Bibliotheca Alexandrina, on copies in one directory.

test       what is wrong in the sources already, and whether there is room
manifest   of all sources, WARC and ARC
convert    a copy of them, ARC as WARC
validate   the manifest of the copy beside that of the sources
dedup      the copy to a folder of its own, verified
compare    the manifest of the results: nothing but the revisits is gone; a sample is rebuilt
commit     the copy in place, undone, done again, and its dropped records let go
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dedupindex.counts import OnProgress
from dedupindex.errors import BadInput, DedupError
from dedupindex.post_crawl.convert.convert_files import run as run_conversion
from dedupindex.post_crawl.convert.convert_files import tasks_of
from dedupindex.post_crawl.dedup_all import DedupOptions, dedup
from dedupindex.post_crawl.dedup_files import copy
from dedupindex.post_crawl.dedup_report import DedupReport
from dedupindex.post_crawl.manifest import record_lines
from dedupindex.post_crawl.manifest.make_manifest import make
from dedupindex.post_crawl.manifest.parquet import Manifest, open_manifest
from dedupindex.post_crawl.manifest.read_manifest import (
    SAME_CAPTURE,
    SAME_RECORD,
    ManifestDifference,
    compare,
)
from dedupindex.post_crawl.rehearsal.rehearsal_steps import Step, rebuild, replay, taken
from dedupindex.post_crawl.rewrite.journal import journals
from dedupindex.post_crawl.rewrite.rewrite_all import check_names, locked
from dedupindex.post_crawl.rewrite.rewrite_file import Left
from dedupindex.post_crawl.undo import Restored, Undo, commit, restore
from dedupindex.runtime.atomic_replace import content_hash, open_for_reading, room, same_bytes
from dedupindex.runtime.tables import amount
from dedupindex.sources.warc_files import Sources, find
from dedupindex.verify.collection import Collection
from dedupindex.verify.issues import REMARK


@dataclass(frozen=True)
class RehearseOptions:
    """How a rehearsal is done."""

    work: Path
    sample: int = 100  # revisits to rebuild
    seed: int = 0
    jobs: int = 1
    memory: str = "1GB"


def rehearse(
    sources: list[str],
    options: RehearseOptions,
    say: Callable[[str], None] = lambda text: None,
    on_progress: OnProgress = lambda seen: None,
) -> Iterator[Step]:
    """Go through the steps; each is given when it is done. Nothing is written to the sources.

    Raises `DedupError`; `BadInput` if the directory of work is in use, or not one of a rehearsal.
    """
    yield from _Rehearsal(sources, options, say, on_progress).steps()


class _Rehearsal:
    def __init__(
        self,
        sources: list[str],
        options: RehearseOptions,
        say: Callable[[str], None],
        on_progress: OnProgress,
    ) -> None:
        self._sources, self._found, self._options = sources, find(sources), options
        self._say, self._progress = say, on_progress
        self._top = options.work.absolute()
        self._baseline: Counter[str] = Counter()
        self._done = DedupReport(dry_run=False)
        self._resources = 0  # documents of ARC files that are no HTTP responses

    def steps(self) -> Iterator[Step]:
        """All of them, as long as each leaves something to go on with."""
        files = [*self._found.files, *self._found.others]
        if not files:
            raise BadInput("there is no WARC or ARC file in what was named")
        check_names(files, self._top)
        with taken(self._top, [file.path for file in files]):
            yield from self._each()

    def _each(self) -> Iterator[Step]:
        steps = (
            (self._test, "test", "the sources read to their ends"),
            (self._list, "manifest", "a line for every response of the sources"),
            (self._copy, "convert", "a copy of the sources, ARC as WARC"),
            (self._validate, "validate", "the manifest of the copy beside that of the sources"),
            (self._dedup, "dedup", "the copy to a folder, verified"),
            (self._compare, "compare", "the results beside the copy, and a sample of revisits"),
            (self._commit, "commit", "the copy in place: undone, done again, committed"),
        )
        for run, name, did in steps:
            step = Step(name, did)
            self._say(f"{name}: {did}")
            begin = time.monotonic()
            run(step)
            step.seconds = time.monotonic() - begin
            yield step

    def _test(self, step: Step) -> None:
        size = sum(file.size for file in (*self._found.files, *self._found.others))
        needed = 4 * size  # a copy, the results, and in place the new file beside the dropped
        if (free := room(self._top)) < needed:
            raise DedupError(
                f"{self._top}: a rehearsal may write {amount(needed)}, {amount(free)} are free"
            )
        paths = [Path(file.path) for file in self._found.files]
        collection = Collection(paths)
        for finding in collection.findings():
            if finding.level != REMARK:
                self._baseline[finding.reason] += 1
        step.numbers = {**collection.totals(), "bytes": size, "findings": dict(self._baseline)}

    def _manifest(self, name: str, sources: Sources | list[str]) -> Manifest:
        chosen = record_lines.ManifestOptions("sha1", False, False)
        make(sources, self._top / name, chosen, jobs=self._options.jobs, on_progress=self._progress)
        return open_manifest(self._top / name)

    def _list(self, step: Step) -> None:
        manifest = self._manifest("before", self._found)
        entries = manifest.entries.values()
        step.numbers = {
            "files": len(entries),
            "records": sum(sum(entry.records.values()) for entry in entries),
            "captures": sum(entry.lines for entry in entries),
        }

    def _copy(self, step: Step) -> None:
        copied, folder = 0, self._top / "copy"
        files = [*self._found.files, *self._found.others]
        names = {folder / file.name for file in files}
        tasks, _ = tasks_of(self._sources, folder, keep=True)
        tasks = [task for task in tasks if task.target not in names]
        made = [one for one in run_conversion(tasks, folder, self._options.jobs) if not one.problem]
        converted = {one.name for one in made}
        for file in files:
            if file.path in converted:
                continue
            try:
                copy(file, folder)
                copied += 1
            except Left as left:
                step.fail(f"{file.path}: {left}")
        self._resources = sum(one.resources for one in made)
        step.numbers = {"copied": copied, "converted": len(made), "resources": self._resources}

    def _difference(
        self, step: Step, names: tuple[str, str], columns: tuple[str, ...]
    ) -> ManifestDifference:
        before, after = (open_manifest(self._top / name) for name in names)
        found = compare(before, after, columns, self._top, self._options.memory)
        for url, date in found.new.named:
            step.fail(f"was not there before: {url} {date}", 0)
        return found

    def _validate(self, step: Step) -> None:
        manifest = self._manifest("converted", [str(self._top / "copy")])
        found = self._difference(step, ("before", "converted"), SAME_CAPTURE)
        if found.gone.number != self._resources:  # manifests do not list what is no response
            for url, date in found.gone.named:
                step.fail(f"is gone: {url} {date}", 0)
        step.expect({"gone": (found.gone.number, self._resources), "new": (found.new.number, 0)})
        step.numbers["captures"] = sum(entry.lines for entry in manifest.entries.values())

    def _dedup(self, step: Step) -> None:
        options = self._options
        chosen = DedupOptions(
            out=self._top / "out", work=self._top / "dedup", jobs=options.jobs,
            memory=options.memory,
        )  # fmt: skip
        self._done = dedup([str(self._top / "copy")], chosen, self._say, self._progress)
        step.numbers = _numbers(self._done)
        _note_proof(step, self._done)

    def _compare(self, step: Step) -> None:
        self._manifest("after", [str(self._top / "out")])
        found = self._difference(step, ("converted", "after"), SAME_RECORD)
        step.expect(
            {"gone": (found.gone.number, self._done.revisits), "new": (found.new.number, 0)}
        )
        self._check_collection(step, self._top / "out")
        options = self._options
        out = self._top / "out"
        chosen = rebuild(step, out, options.sample, options.seed, self._top)
        replay(step, self._top / "copy", out, chosen, self._top)

    def _check_collection(self, step: Step, folder: Path) -> None:
        """Nothing may be wrong that was not wrong in the sources."""
        found: Counter[str] = Counter()
        for finding in Collection([folder]).findings():
            if finding.level != REMARK:
                found[finding.reason] += 1
                if found[finding.reason] > self._baseline[finding.reason]:
                    place = f"{finding.file} at {finding.offset}"
                    step.fail(f"{place}: {finding.reason}: {finding.message}")
        step.numbers["findings"] = dict(found)

    def _commit(self, step: Step) -> None:
        before = {
            one.path: one for one in open_manifest(self._top / "converted").containers().values()
        }
        copied = self._top / "copy"
        for turn in ("first", "second"):
            chosen = DedupOptions(
                work=self._top / "in-place" / turn, jobs=self._options.jobs,
                memory=self._options.memory,
            )  # fmt: skip
            report = dedup([str(copied)], chosen, self._say, self._progress)
            _note_proof(step, report)
            step.expect({"revisits": (report.revisits, self._done.revisits)})
            self._same(step, before)
            if turn == "first":
                step.numbers["undone"] = _each(step, copied, restore)
                for path, container in before.items():
                    with open_for_reading(path) as file:
                        if content_hash(file) != container.content_hash:
                            step.fail(f"{path}: undone, it is not what it was")
        step.numbers["committed"] = _each(step, copied, commit)
        self._check_collection(step, copied)

    def _same(self, step: Step, before: Iterable[str]) -> None:
        """In place must give what the folder got."""
        copied, out = self._top / "copy", self._top / "out"
        for path in map(Path, before):
            there = out / path.relative_to(copied)
            try:
                with open_for_reading(path) as mine, open_for_reading(there) as theirs:
                    same = same_bytes(mine, theirs)
            except FileNotFoundError:
                same = False
            if not same:
                step.fail(f"{path} is not what {there} is")


def _numbers(report: DedupReport) -> dict[str, Any]:
    return {
        "files": report.files,
        "captures": report.captures,
        "originals": report.originals,
        "revisits": report.revisits,
        "bytes_before": report.bytes_before,
        "bytes_after": report.bytes_after,
        "refused": dict(sorted(report.refused.items())),
    }


def _note_proof(step: Step, report: DedupReport) -> None:
    for finding in report.proof.named:
        if finding.level != REMARK:
            step.fail(f"{finding.file} at {finding.offset}: {finding.reason}: {finding.message}")


def _each(step: Step, folder: Path, work: Callable[[Undo], Restored]) -> int:
    """Undo or commit what was done in place; returns how many files."""
    count = 0
    with locked([folder] if list(journals(folder)) else []):
        for journal in list(journals(folder)):
            done = work(Undo(folder, journal.summary()[0].name, None))
            if done.state == "left":
                step.fail(f"{folder / done.name}: {done.problem}")
            count += done.state in ("exact", "committed")
    return count
