"""Both steps on one machine: a process for each glob, then one for each shard."""

from __future__ import annotations

import json
import time
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

HASHES, UNIQUE = "hashes", "unique"  # directories below the one for the output
_NAMED = 1000  # objects of a glob that are named when they cannot be read

Say = Callable[[str], None]


@dataclass
class StepResult:
    """What a step came to."""

    name: str  # the glob, or the output file
    report: hash_objects.HashReport | dedup_shards.HashDedupReport
    problems: list[Problem]


@dataclass
class PipelineReport:
    """What the pipeline came to."""

    hashing: list[StepResult]
    deduping: list[StepResult]
    elapsed_time_secs: float = 0.0

    def as_json(self) -> dict[str, Any]:
        steps = {"hash_documents": self.hashing, "dedup_hashes": self.deduping}
        said = {
            name: [{"name": done.name, **done.report.as_json()} for done in all_]
            for name, all_ in steps.items()
        }
        totals: dict[str, int] = {}
        for done in self.deduping:
            for name, value in done.report.as_json().items():
                if isinstance(value, int) and name != "shards":
                    totals[name] = totals.get(name, 0) + value
        return {**totals, "elapsed_time_secs": self.elapsed_time_secs, **said}


def run_pipeline(
    globs: Sequence[str],
    top: Path,
    options: hash_objects.HashOptions,
    *,
    one_by_one: bool = False,
    say: Say = lambda text: None,
) -> PipelineReport:
    """Hash each glob into ``top/hashes``, then write a file for each shard to ``top/unique``.

    `options` are of all processes together; `one_by_one` has them wait for each other. Raises what
    `hash_documents` and `dedup_hashes` do; what is done by then is not done again.
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
        for done in side_by_side(_hash, (hashes, each), globs, at_once):
            report.hashing.append(done)
            say(f"hashed {done.name}: {json.dumps(done.report.as_json())}")
    except BadSource:  # nothing that was hashed goes with it
        with suppress(OSError):
            hashes.rmdir()
            top.rmdir()
        raise
    report.hashing.sort(key=lambda done: done.name)
    runs = {
        done.report.run
        for done in report.hashing
        if isinstance(done.report, hash_objects.HashReport)
    }
    shards = shards_of(str(hashes), runs)
    at_once = 1 if one_by_one else min(options.jobs, len(shards))
    with atomic_directory(top / UNIQUE) as beside:
        shared = (beside, options, at_once)
        for done in side_by_side(_dedup, shared, shards, at_once):
            report.deduping.append(done)
            say(f"deduplicated {done.name}: {json.dumps(done.report.as_json())}")
    report.deduping.sort(key=lambda done: done.name)
    report.elapsed_time_secs = time.monotonic() - begin
    return report


def _hash(shared: tuple[Path, hash_objects.HashOptions], pattern: str) -> StepResult:
    top, options = shared
    problems: list[Problem] = []

    def warn(problem: Problem) -> None:
        if len(problems) < _NAMED:
            problems.append(problem)

    return StepResult(pattern, hash_objects.hash_documents(pattern, top, options, warn), problems)


def _dedup(shared: tuple[Path, hash_objects.HashOptions, int], shard: Shard) -> StepResult:
    top, options, at_once = shared
    output = top / f"{shard.first or 'all'}.{options.layout.format}"
    threads = max(1, options.jobs // at_once)
    found = dedup_shards.dedup_shards([shard], output, memory=options.memory, threads=threads)
    return StepResult(output.name, found, [])
