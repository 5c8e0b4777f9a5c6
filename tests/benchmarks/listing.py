"""Jobs of what comes after a crawl: a manifest beside a bare loop that hashes the same."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from statistics import median

from tests.benchmarks.measure import ROOT, Failed, Spent, run
from tests.benchmarks.peers import Missing
from tests.benchmarks.suite import Bench, Line, Target, compare

MANIFEST = ROOT / "bin" / "manifest"


def manifest(bench: Bench) -> Iterator[Line]:
    """WARC to manifest on one core, beside a FastWARC loop that takes SHA-1 and BLAKE3."""
    harvest = bench.inputs.harvest(bench.size)
    files = sorted(harvest.iterdir())
    size = sum(path.stat().st_size for path in files) / 1e6
    loop = [sys.executable, "-m", "tests.benchmarks.loop", "--strong", *files]

    def theirs() -> Spent:
        spent = run(loop, bench.cores.one)
        if json.loads(spent.out)["responses"] != bench.size.responses:
            raise Failed(f"the loop says {spent.out}")
        return spent

    rounds = bench.interleaved({"ours": lambda: _listed(bench, 1), "loop": theirs})
    wall = {name: [spent.wall for spent in spents] for name, spents in rounds.items()}
    cpu = {name: median([spent.cpu for spent in spents]) for name, spents in rounds.items()}
    note = f"by CPU time {cpu['loop'] / cpu['ours']:.2f}"
    beside = "FastWARC + SHA-1 + BLAKE3"
    yield compare("manifest", "MB/s", size, wall["ours"], wall["loop"], beside, Target(0.85), note)


def manifest_two(bench: Bench) -> Iterator[Line]:
    """The same with two processes on two cores, beside itself on one."""
    if len(bench.cores.both) < 2:
        raise Missing("this machine has one core, or gives us one")
    harvest = bench.inputs.harvest(bench.size)
    size = sum(path.stat().st_size for path in harvest.iterdir()) / 1e6

    def with_jobs(jobs: int) -> Callable[[], float]:
        return lambda: _listed(bench, jobs).wall

    walls = bench.interleaved({"two": with_jobs(2), "one": with_jobs(1)})
    target = Target(1.8)
    yield compare("manifest-two", "MB/s", size, walls["two"], walls["one"], "on one core", target)


def _listed(bench: Bench, jobs: int) -> Spent:
    """Make a manifest of the harvest, with one process a core."""
    cores = bench.cores.one if jobs == 1 else bench.cores.both
    harvest, target = bench.inputs.harvest(bench.size), bench.fresh(f"manifest-{jobs}")
    command = [MANIFEST, harvest, "-o", target, "--jobs", str(jobs), "--json"]
    spent = run(command, cores)
    if json.loads(spent.out)["lines"] != bench.size.responses:
        raise Failed(f"{harvest}: the manifest says {spent.out}")
    return spent
