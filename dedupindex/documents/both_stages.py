"""Run both steps on one machine: a process for each glob, then one for each shard."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dedupindex.capture import Problem
from dedupindex.documents import dedup_shards, hash_objects
from dedupindex.documents.read_shards import Shard, shards_of
from dedupindex.errors import BadInput, BadSource
from dedupindex.runtime.files import atomic_directory
from dedupindex.runtime.workers import side_by_side

HASHES, UNIQUE = "hashes", "unique"  # directories in the output directory
_MAX_PROBLEMS = 1000  # of a glob, in its result


@dataclass
class StepResult:
    name: str  # of the glob, or of the output file
    report: hash_objects.HashReport | dedup_shards.HashDedupReport
    problems: list[Problem]


@dataclass
class PipelineReport:
    hashing: list[StepResult]
    deduping: list[StepResult]
    elapsed_time_secs: float = 0.0

    def as_json(self) -> dict[str, Any]:
        steps = {"hash_documents": self.hashing, "dedup_hashes": self.deduping}
        reports = {
            step: [{"name": result.name, **vars(result.report)} for result in results]
            for step, results in steps.items()
        }
        totals: Counter[str] = Counter()
        for report in reports["dedup_hashes"]:
            numbers = (item for item in report.items() if isinstance(item[1], int))
            totals.update({name: value for name, value in numbers if name != "shards"})
        return {**totals, "elapsed_time_secs": self.elapsed_time_secs, **reports}


def run_pipeline(
    globs: Sequence[str],
    top: Path,
    options: hash_objects.HashOptions,
    *,
    one_by_one: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> PipelineReport:
    """Hash each glob into ``top/hashes``, then write a file for each shard to ``top/unique``.

    `options` apply to all processes together; `one_by_one` runs one at a time. Raises what
    `hash_documents` and `dedup_hashes` raise; a further run skips what was done until then.
    """
    if len(set(globs)) < len(globs):
        raise BadInput("a glob is named twice")
    begin = time.monotonic()
    hashes = top / HASHES
    hashes.mkdir(parents=True, exist_ok=True)
    at_once = 1 if one_by_one else len(globs)
    each = replace(options, jobs=max(1, options.jobs // at_once))
    report = PipelineReport([], [])
    try:
        for result in side_by_side(_hash, (hashes, each), globs, at_once):
            report.hashing.append(result)
            say(f"hashed {result.name}: {json.dumps(vars(result.report))}")
    except BadSource:  # remove the directories unless something was hashed
        with suppress(OSError):
            hashes.rmdir()
            top.rmdir()
        raise
    report.hashing.sort(key=lambda result: result.name)
    reports = (result.report for result in report.hashing)
    runs = {found.run for found in reports if isinstance(found, hash_objects.HashReport)}
    shards = shards_of(str(hashes), runs)
    at_once = 1 if one_by_one else min(options.jobs, len(shards))
    with atomic_directory(top / UNIQUE) as hidden:
        shared = (hidden, options, at_once)
        for result in side_by_side(_dedup, shared, shards, at_once):
            report.deduping.append(result)
            say(f"deduplicated {result.name}: {json.dumps(vars(result.report))}")
    report.deduping.sort(key=lambda result: result.name)
    report.elapsed_time_secs = time.monotonic() - begin
    return report


def _hash(shared: tuple[Path, hash_objects.HashOptions], pattern: str) -> StepResult:
    top, options = shared
    problems: list[Problem] = []

    def warn(problem: Problem) -> None:
        if len(problems) < _MAX_PROBLEMS:
            problems.append(problem)

    return StepResult(pattern, hash_objects.hash_documents(pattern, top, options, warn), problems)


def _dedup(shared: tuple[Path, hash_objects.HashOptions, int], shard: Shard) -> StepResult:
    top, options, at_once = shared
    output = top / f"{shard.first or 'all'}.{options.layout.format}"
    threads = max(1, options.jobs // at_once)
    report = dedup_shards.dedup_shards([shard], output, options.memory, threads)
    return StepResult(output.name, report, [])
