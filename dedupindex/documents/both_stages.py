"""Run both steps on one machine: a process for each glob, then one for each shard."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dedupindex.capture import Problem
from dedupindex.counts import OnProgress, silent
from dedupindex.documents.dedup_shards import HashDedupReport, dedup_shards
from dedupindex.documents.hash_objects import HashOptions, HashReport, hash_documents
from dedupindex.documents.read_shards import Shard, shards_of
from dedupindex.documents.shard_target import require_no_file
from dedupindex.errors import SOURCE_ERRORS, BadInput
from dedupindex.runtime.files import atomic_directory, check_name
from dedupindex.runtime.progress import finished
from dedupindex.runtime.workers import side_by_side

HASHES, UNIQUE = "hashes", "unique"  # directories in the output directory
_MAX_PROBLEMS = 1000  # of a glob, in its result


@dataclass
class PipelineReport:
    hashing: dict[str, HashReport] = field(default_factory=dict)  # by glob
    deduping: dict[str, HashDedupReport] = field(default_factory=dict)  # by output file
    problems: list[Problem] = field(default_factory=list)
    elapsed_time_secs: float = 0.0

    def as_json(self) -> dict[str, Any]:
        totals: Counter[str] = Counter()
        for report in self.deduping.values():
            counts = {name: value for name, value in vars(report).items() if isinstance(value, int)}
            totals.update(counts)
        del totals["shards"]
        return {
            **totals,
            "elapsed_time_secs": self.elapsed_time_secs,
            "hash_documents": _steps(self.hashing),
            "dedup_hashes": _steps(self.deduping),
        }


def _steps(reports: Mapping[str, HashReport | HashDedupReport]) -> list[dict[str, Any]]:
    return [{"name": name, **vars(report)} for name, report in sorted(reports.items())]


def run_pipeline(
    globs: Sequence[str],
    top: Path,
    options: HashOptions,
    *,
    one_by_one: bool = False,
    say: Callable[[str], None] = lambda text: None,
    on_progress: OnProgress = silent,
) -> PipelineReport:
    """Hash each glob into ``top/hashes``, then write a file for each shard to ``top/unique``.

    `options` apply to all processes together; `one_by_one` runs one at a time. Raises what
    `hash_documents` and `dedup_hashes` raise; a further run skips what was done until then.
    """
    if len(set(globs)) < len(globs):
        raise BadInput("a glob is named twice")
    check_name(str(top.absolute()))
    require_no_file(top)
    begin = time.monotonic()
    hashes = top / HASHES
    hashes.mkdir(parents=True, exist_ok=True)
    at_once = 1 if one_by_one else len(globs)
    each = replace(options, jobs=max(1, options.jobs // at_once))
    report = PipelineReport()
    try:
        found = side_by_side(_hash, (hashes, each), globs, at_once)
        for pattern, hashed, problems in finished(found, "hashing", len(globs), on_progress):
            report.hashing[pattern] = hashed
            report.problems += problems
            say(f"hashed {pattern}: {json.dumps(vars(hashed))}")
    except SOURCE_ERRORS:  # remove the directories unless something was hashed
        with suppress(OSError):
            hashes.rmdir()
            top.rmdir()
        raise
    shards = shards_of(str(hashes), {hashed.run for hashed in report.hashing.values()})
    at_once = 1 if one_by_one else min(options.jobs, len(shards))
    with atomic_directory(top / UNIQUE) as hidden:
        shared = (hidden, options, at_once)
        done = side_by_side(_dedup, shared, shards, at_once)
        for name, deduped in finished(done, "grouping", len(shards), on_progress):
            report.deduping[name] = deduped
            say(f"deduplicated {name}: {json.dumps(vars(deduped))}")
    report.elapsed_time_secs = time.monotonic() - begin
    return report


def _hash(shared: tuple[Path, HashOptions], pattern: str) -> tuple[str, HashReport, list[Problem]]:
    top, options = shared
    problems: list[Problem] = []

    def warn(problem: Problem) -> None:
        if len(problems) < _MAX_PROBLEMS:
            problems.append(problem)

    return pattern, hash_documents(pattern, top, options, warn), problems


def _dedup(shared: tuple[Path, HashOptions, int], shard: Shard) -> tuple[str, HashDedupReport]:
    top, options, at_once = shared
    output = top / f"{shard.first or 'all'}.{options.layout.format}"
    threads = max(1, options.jobs // at_once)
    return output.name, dedup_shards([shard], output, options.memory, threads)
