"""What Spark costs on one machine, and from what size on several machines would be worth it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median

import pytest

from tests.benchmarks.measure import environment, run
from tests.benchmarks.peers import Missing
from tests.benchmarks.suite import EVERYTHING, INDEX, Bench, Line
from tests.peers import spark as peer

_MACHINES = (2, 10)


def spark(bench: Bench) -> Iterator[Line]:
    """bin/index of WARC files with --spark, beside --jobs, on the same cores of one machine."""
    try:
        env = environment(PYTHONPATH=peer.spark()["PYTHONPATH"])
    except pytest.skip.Exception as skipped:
        raise Missing(str(skipped)) from skipped
    files = sorted(bench.inputs.harvest(bench.size).iterdir())
    parts = {"some": files[: max(len(files) // 4, 1)], "all": files}
    cores = len(bench.cores.both)
    # Executors of their own take ten seconds to start, which the trial does without.
    master = f"local-cluster[{cores},1,1024]" if bench.size.warm else f"local[{cores}]"
    how = {"here": ("--jobs", str(cores)), "there": ("--spark", master)}

    def build(options: tuple[str, ...], sources: list[Path]) -> float:
        target = bench.fresh("spark")
        words = [INDEX, *EVERYTHING, *options, "--json", *sources, target]
        return run(words, bench.cores.both, env=env).wall

    seconds = bench.interleaved(
        {
            f"{place} {part}": partial(build, options, sources)
            for part, sources in parts.items()
            for place, options in how.items()
        }
    )
    sizes = {part: sum(path.stat().st_size for path in paths) for part, paths in parts.items()}
    yield from _told({name: median(found) for name, found in seconds.items()}, sizes)


def _told(seconds: dict[str, float], sizes: dict[str, int]) -> Iterator[Line]:
    """The larger build, what Spark adds whatever the size, and what that comes to.

    From two sizes: seconds = fixed + bytes * rate, here and there.
    """
    here, there = seconds["here all"], seconds["there all"]
    more = max(sizes["all"] - sizes["some"], 1)
    rates = {
        place: max(seconds[f"{place} all"] - seconds[f"{place} some"], 1e-9) / more
        for place in ("here", "there")
    }
    fixed = max(there - rates["there"] * sizes["all"], 1e-9)
    slower = rates["there"] / rates["here"]
    line = Line("spark", "s", there, "processes", here, here / there)
    line.note = f"{sizes['all'] / 1e9:.3g} GB of WARC; {there - here:.1f} s more"
    yield line
    line = Line("spark-fixed", "s", fixed)
    line.note = f"whatever the size; beyond it a byte takes {slower:.2f} of the time"
    yield line
    for count in _MACHINES:
        gain = rates["here"] * (1 - slower / count)
        if gain > 0:
            line = Line(f"spark-on-{count}", "GB", fixed / gain / 1e9)
            line.note = f"computed: from here on {count} such machines are quicker than one"
            yield line
