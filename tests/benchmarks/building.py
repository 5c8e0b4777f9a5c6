"""Jobs of building an index: beside a bare loop, beside the peers, and ever larger."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

from tests.benchmarks.measure import Failed, Spent, run, size_on_disk, start
from tests.benchmarks.peers import Missing, OutbackCDX, outbackcdx
from tests.benchmarks.suite import EVERYTHING, INDEX, Bench, Line, Target, compare


def index(
    bench: Bench, source: Path, target: Path, *options: str, jobs: int = 1, records: int = 0
) -> Spent:
    """Build an index of everything; `records` is how many it must have read."""
    cores = bench.cores.one if jobs == 1 else bench.cores.both
    command = [INDEX, *EVERYTHING, *options, "--jobs", str(jobs), "--json", source, target]
    spent = run(command, cores)
    tally = json.loads(spent.out)
    if records and tally["added"] + tally["unchanged"] != records:
        raise Failed(f"{source}: {records:,} captures expected, the build says {spent.out}")
    return spent


def warc(bench: Bench) -> Iterator[Line]:
    """WARC to index on one core, every SHA-1 verified, beside a bare FastWARC loop."""
    harvest = bench.inputs.harvest(bench.size)
    files = sorted(harvest.iterdir())
    size = sum(path.stat().st_size for path in files) / 1e6
    loop = [sys.executable, "-m", "tests.benchmarks.loop", *files]

    def theirs() -> Spent:
        spent = run(loop, bench.cores.one)
        report = json.loads(spent.out)
        if report["responses"] != bench.size.responses:
            raise Failed(f"the loop verified {report['responses']:,} responses")
        return spent

    def ours() -> Spent:
        return index(bench, harvest, bench.fresh("warc"), records=bench.size.responses)

    rounds = bench.interleaved({"ours": ours, "loop": theirs})
    wall = {name: [spent.wall for spent in spents] for name, spents in rounds.items()}
    cpu = {name: median([spent.cpu for spent in spents]) for name, spents in rounds.items()}
    alone = median([json.loads(spent.out)["wall"] for spent in rounds["loop"]])
    note = (
        f"by CPU time {cpu['loop'] / cpu['ours']:.2f}; beside the loop alone, "
        f"without its process {alone / median(wall['ours']):.2f}"
    )
    beside = "FastWARC + SHA-1"
    yield compare("warc", "MB/s", size, wall["ours"], wall["loop"], beside, Target(0.85), note)


def warc_two(bench: Bench) -> Iterator[Line]:
    """The same with two processes on two cores, beside itself on one."""
    if len(bench.cores.both) < 2:
        raise Missing("this machine has one core, or gives us one")
    harvest = bench.inputs.harvest(bench.size)
    size = sum(path.stat().st_size for path in harvest.iterdir()) / 1e6

    def with_jobs(jobs: int) -> Callable[[], float]:
        target = f"warc-{jobs}"
        records = bench.size.responses
        return lambda: index(bench, harvest, bench.fresh(target), jobs=jobs, records=records).wall

    walls = bench.interleaved({"two": with_jobs(2), "one": with_jobs(1)})
    yield compare("warc-two", "MB/s", size, walls["two"], walls["one"], "on one core", Target(1.8))


def warc_deduplicator(bench: Bench) -> Iterator[Line]:
    """WARC to index on one core, beside the DeDuplicator's WarcIterator."""
    harvest = bench.inputs.harvest(bench.size)
    yield _deduplicator(bench, "warc-deduplicator", harvest, "WarcIterator", Target(5))


def crawl_log(bench: Bench) -> Iterator[Line]:
    """crawl.log to index on one core, beside the DeDuplicator's CrawlLogIterator."""
    log = bench.inputs.crawl_log(bench.size.lines)
    yield _deduplicator(bench, "crawl-log", log, "CrawlLogIterator", Target(6))


def _deduplicator(bench: Bench, job: str, source: Path, iterator: str, target: Target) -> Line:
    count = bench.size.responses if source.is_dir() else bench.size.lines
    contenders = {"ours": lambda: index(bench, source, bench.fresh(job), records=count).wall}
    note = ""
    try:
        peer = bench.peers.deduplicator()
        contenders["peer"] = lambda: peer.index(source, iterator, bench.cores, records=count).wall
    except Missing as missing:
        note = str(missing)
    walls = bench.interleaved(contenders)
    unit = "records/s" if source.is_dir() else "lines/s"
    return compare(
        job, unit, count, walls["ours"], walls.get("peer"), f"DeDuplicator {iterator}", target, note
    )


def cdx(bench: Bench) -> Iterator[Line]:
    """CDX to index on one core, beside a POST of the same file to OutbackCDX on one core."""
    count = bench.size.lines
    source = bench.inputs.cdx(count)
    target = Target(1.2, goal=2)

    def ours() -> float:
        return index(bench, source, bench.fresh("cdx"), records=count).wall

    try:
        jar = bench.peers.outbackcdx()
    except Missing as missing:
        walls = bench.interleaved({"ours": ours})
        yield compare("cdx", "lines/s", count, walls["ours"], None, "", target, str(missing))
        return
    with outbackcdx(jar, bench.scratch / "outbackcdx", bench.cores.one) as peer:
        walls = bench.interleaved({"ours": ours, "peer": _posting(peer, source)})
    beside = "OutbackCDX, POST"
    yield compare("cdx", "lines/s", count, walls["ours"], walls["peer"], beside, target)


_BARE_SCAN = """
import duckdb, sys
with duckdb.connect(config={"threads": 1}) as database:
    columns = "url, fetch_time, content_mime_type, fetch_status, content_digest, " \\
        "warc_record_length, warc_record_offset, warc_filename, url_surtkey"
    query = f"SELECT bit_xor(hash({columns})), count(*) FROM read_parquet(?)"
    print(database.execute(query, [sys.argv[1]]).fetchone()[1])
"""


def parquet(bench: Bench) -> Iterator[Line]:
    """A Parquet table to index on one core, by processor time, beside DuckDB's bare scan of it."""
    count = bench.size.lines
    source = bench.inputs.table(count)
    scan = [sys.executable, "-c", _BARE_SCAN, source]

    def ours() -> Spent:
        return index(bench, source, bench.fresh("parquet"), records=count)

    def theirs() -> Spent:
        spent = run(scan, bench.cores.one)
        if int(spent.out) != count:
            raise Failed(f"the scan says {spent.out}")
        return spent

    rounds = bench.interleaved({"ours": ours, "scan": theirs})
    cpu = {name: [spent.cpu for spent in spents] for name, spents in rounds.items()}
    target, beside = Target(200_000, of="ours"), "DuckDB's scan"
    yield compare("parquet", "rows/s", count, cpu["ours"], cpu["scan"], beside, target)


def _posting(peer: OutbackCDX, source: Path) -> Callable[[], float]:
    return lambda: peer.post(source)


def piped(bench: Bench, count: int, target: Path, *options: str) -> Spent:
    """Build an index on one core from a pipe of made-up CDX lines, which come from another."""
    line = [sys.executable, "-m", "tests.benchmarks.captures", str(count)]
    source = start(line, bench.cores.other, stdout=subprocess.PIPE)
    command = [INDEX, *EVERYTHING, *options, "--jobs", "1", "--json", "-", target]
    try:
        spent = run(command, bench.cores.one, stdin=source.stdout)
    finally:
        assert source.stdout is not None
        source.stdout.close()
        source.wait()
    if json.loads(spent.out)["added"] != count:
        raise Failed(f"{count:,} captures were piped, the build says {spent.out}")
    return spent


def scale(bench: Bench) -> Iterator[Line]:
    """Seconds a capture of a large build, beside those of a small one; and its memory."""
    small, large = bench.size.scale[0], bench.captures
    piped(bench, small, bench.fresh("scale"))
    few = [piped(bench, small, bench.fresh("scale")) for _ in range(bench.runs)]
    target = bench.fresh("scale-large")
    bench.say(f"building an index of {large:,} captures")
    many = piped(bench, large, target)
    each_few, each_many = (
        median([spent.wall for spent in few]) / small * 1e6,
        many.wall / large * 1e6,
    )
    line = Line("scale", "us/capture", each_many, f"at {small:,}", each_few, each_many / each_few)
    line.target = Target(1.3, most=True)
    line.note = f"{large:,} captures in {many.wall:,.0f} s"
    yield line
    limit = Target(1000, of="ours", most=True)
    note = f"of that {many.private / 1e6:,.0f} MB its own, the rest mapped files"
    yield Line("scale-memory", "MB peak", many.rss / 1e6, target=limit, note=note)
    if large == bench.size.served:
        bench.kept["served"] = target


def size(bench: Bench) -> Iterator[Line]:
    """Bytes of index a capture: URLs of 70 characters, record ids, everything stored."""
    count = bench.size.lines
    target = bench.fresh("size")
    index(bench, bench.inputs.cdx_with_ids(count), target, records=count)
    held = size_on_disk(target)
    limit = Target(130, of="ours", most=True)
    yield Line("size", "B/capture", held / count, target=limit, note=f"{count:,} captures")


def add(bench: Bench) -> Iterator[Line]:
    """Seconds that adding 1,000 captures to a large index takes, process start included."""
    large = served_index(bench)
    walls = []
    for number in range(bench.runs):
        more = bench.inputs.more_cdx(bench.size.served + number * 1000, 1000)
        walls.append(index(bench, more, large, "--add", records=1000).wall)
    yield Line("add", "s", median(walls), note=f"1,000 captures to {bench.size.served:,}")


def served_index(bench: Bench) -> Path:
    """An index of as many captures as are served; built once a run."""
    if "served" not in bench.kept:
        target = bench.fresh("served")
        bench.say(f"building an index of {bench.size.served:,} captures")
        piped(bench, bench.size.served, target)
        bench.kept["served"] = target
    return bench.kept["served"]
