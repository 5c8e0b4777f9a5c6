"""Jobs of harvests by wget: to index and manifest, beside bare loops and peers."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

from tests.benchmarks.building import index
from tests.benchmarks.fetching import Shape
from tests.benchmarks.measure import ROOT, Failed, Spent, run
from tests.benchmarks.peers import Missing
from tests.benchmarks.suite import Bench, Line, Target, compare

SHAPES = {  # and the share of the bare loop's rate that an index build must reach
    "chunked": (Shape(small=True, port=":8080", copies=4), Target(0.5)),
    "once": (Shape(small=True), Target(0.7)),
    "static": (Shape(small=False), Target(0.8)),
}
MANIFEST, CONVERT = ROOT / "bin" / "manifest", ROOT / "bin" / "convert"

Harvest = tuple[Path, int]  # and its responses
Read = Callable[[Harvest], Spent]


def wget_index(bench: Bench) -> Iterator[Line]:
    """Harvests by wget to index beside a bare FastWARC loop: processor time, start taken off."""

    def ours(harvest: Harvest) -> Spent:
        return index(bench, harvest[0], bench.fresh("wget-index"), records=harvest[1])

    contenders: dict[str, Read] = {"ours": ours, "loop": lambda harvest: bare_loop(bench, harvest)}
    for name, (shape, target) in SHAPES.items():
        yield compared(bench, f"wget-index-{name}", _fetched(bench, shape), contenders, target)
    large = bench.inputs.harvest(bench.size), bench.size.responses
    yield compared(bench, "wget-index-large", large, contenders, Target(0.9))


def wget_manifest(bench: Bench) -> Iterator[Line]:
    """Harvests by wget to manifest beside a bare loop that takes SHA-1 and BLAKE3: the same."""

    def ours(harvest: Harvest) -> Spent:
        target = bench.fresh("wget-manifest")
        spent = run([MANIFEST, harvest[0], "-o", target, "--jobs", "1", "--json"], bench.cores.one)
        if json.loads(spent.out)["lines"] != harvest[1]:
            raise Failed(f"{harvest}: the manifest says {spent.out}")
        return spent

    contenders: dict[str, Read] = {
        "ours": ours, "loop": lambda harvest: bare_loop(bench, harvest, "--strong")
    }  # fmt: skip
    for name, (shape, _) in SHAPES.items():
        harvest = _fetched(bench, shape)
        yield compared(bench, f"wget-manifest-{name}", harvest, contenders, Target(0.7))
    large = bench.inputs.harvest(bench.size), bench.size.responses
    yield compared(bench, "wget-manifest-large", large, contenders, Target(0.85))


def wget_zstd(bench: Bench) -> Iterator[Line]:
    """Static sites as .warc.zst to index, and to convert: MB of the .warc.gz, processor time."""

    def packed(harvest: Harvest) -> Harvest:
        return bench.inputs.zstd(harvest[0]), harvest[1]

    def indexed(harvest: Harvest) -> Spent:
        return index(bench, harvest[0], bench.fresh("wget-zstd"), records=harvest[1])

    def converted(harvest: Harvest) -> Spent:
        words = ["--to", "zstd", harvest[0], "--out", bench.fresh("wget-zstd-out"), "--jobs", "1"]
        return run([CONVERT, *words], bench.cores.one)

    def piped(harvest: Harvest) -> Spent:
        files = sorted(harvest[0].iterdir())
        line = 'gzip -dc "$@" | zstd -9 -q -c > /dev/null'
        return run(["bash", "-c", line, "bash", *files], bench.cores.one)

    static = _fetched(bench, SHAPES["static"][0])
    contenders: dict[str, Read] = {"ours": lambda harvest: indexed(packed(harvest))}
    for name, beside, theirs in (
        ("index", "the same from .warc.gz", indexed),
        ("loop", "the bare loop, of .warc.zst", lambda harvest: bare_loop(bench, packed(harvest))),
    ):
        reads = {**contenders, "loop": theirs}
        yield compared(bench, f"wget-zstd-{name}", static, reads, None, beside)
    if shutil.which("zstd") is None:
        raise Missing("the zstd program is not installed")
    reads = {"ours": converted, "loop": piped}
    beside = "gzip -dc | zstd -9, not verified"
    yield compared(bench, "wget-zstd-convert", static, reads, None, beside)


def wget_peers(bench: Bench) -> Iterator[Line]:
    """Static sites fetched by wget to index, beside what `jwarc cdx` and cdxj-indexer take."""
    source, responses = _fetched(bench, SHAPES["static"][0])
    files = sorted(source.iterdir())
    size = sum(path.stat().st_size for path in files) / 1e6

    def ours() -> float:
        return index(bench, source, bench.fresh("wget-peers"), records=responses).wall

    contenders: dict[str, Callable[[], float]] = {"ours": ours}
    for name, peer in (("jwarc cdx", _jwarc_cdx), ("cdxj-indexer", _cdxj_indexer)):
        try:
            contenders[name] = peer(bench, files)
        except Missing as missing:
            bench.say(f"wget-peers: without {name}: {missing}")
    walls = bench.interleaved(contenders)
    for name, target in {"jwarc cdx": Target(3), "cdxj-indexer": Target(2.5)}.items():
        if name in walls or name == "jwarc cdx":
            yield compare("wget-peers", "MB/s", size, walls["ours"], walls.get(name), name, target)


def _fetched(bench: Bench, shape: Shape) -> Harvest:
    responses = bench.size.by_wget
    return bench.inputs.fetched(shape, responses), responses * shape.copies


def compared(
    bench: Bench, job: str, harvest: Harvest, contenders: dict[str, Read], target: Target | None,
    beside: str = "the bare loop",
) -> Line:  # fmt: skip
    """Compare the processor time of both, without what a harvest of one response takes."""
    least = bench.inputs.fetched(Shape(small=True), 1), 1
    reads: dict[str, Callable[[], Spent]] = {}
    for name, read in contenders.items():
        reads[name] = partial(read, harvest)
        reads[f"{name} of one"] = partial(read, least)
    rounds = bench.interleaved(reads)
    cpu = {name: [spent.cpu for spent in spents] for name, spents in rounds.items()}
    ours, loop = (
        [max(seconds - median(cpu[f"{name} of one"]), 0.001) for seconds in cpu[name]]
        for name in ("ours", "loop")
    )
    size = sum(path.stat().st_size for path in harvest[0].iterdir()) / 1e6
    note = f"{median(ours):.2f} and {median(loop):.2f} s of processor time"
    return compare(job, "MB/s", size, ours, loop, beside, target, note)


def bare_loop(bench: Bench, harvest: Harvest, *options: str) -> Spent:
    files = sorted(harvest[0].iterdir())
    command = [sys.executable, "-m", "tests.benchmarks.loop", *options, *files]
    spent = run(command, bench.cores.one)
    if json.loads(spent.out)["responses"] != harvest[1]:
        raise Failed(f"{harvest}: the loop says {spent.out}")
    return spent


def _jwarc_cdx(bench: Bench, files: list[Path]) -> Callable[[], float]:
    jar = bench.peers.jwarc()
    return lambda: run(["java", "-jar", jar, "cdx", *files], bench.cores.one).wall


def _cdxj_indexer(bench: Bench, files: list[Path]) -> Callable[[], float]:
    program = shutil.which("cdxj-indexer")
    if program is None:
        raise Missing("cdxj-indexer is not on the PATH (pip install cdxj-indexer)")
    return lambda: run([program, "--sort", *files], bench.cores.one).wall
