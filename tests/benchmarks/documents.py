"""Jobs of documents: hashing beside b3sum, deduplication beside DuckDB's bare GROUP BY.

python -m tests.benchmarks.documents GLOB OUTPUT MEMORY    runs that alone
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb

from dedupindex.digest import SIZES, new_hash
from dedupindex.runtime.duckdb import quoted
from tests.benchmarks.measure import ROOT, Failed, Spent, run
from tests.benchmarks.peers import need
from tests.benchmarks.suite import Bench, Line, Target, compare

MEMORY = "1GB"  # that DuckDB may take, for both
_BARE = """
COPY (SELECT hash, min(path) AS path FROM read_parquet({glob}) GROUP BY hash)
TO {output} (FORMAT parquet, COMPRESSION zstd)"""


def hash_documents(bench: Bench) -> Iterator[Line]:
    """bin/hash_documents of files of 500 KiB on two cores, beside b3sum with as many threads."""
    b3sum = need("b3sum", "b3sum")
    files = sorted(bench.inputs.corpus(bench.size.corpus).iterdir())
    size = sum(path.stat().st_size for path in files) / 1e6
    threads = str(len(bench.cores.both))

    def ours() -> Spent:
        out = bench.fresh("hashes")
        command = [ROOT / "bin" / "hash_documents", files[0].parent, out, "--jobs", threads]
        spent = run([*command, "--format", "csv", "--json"], bench.cores.both)
        if json.loads(spent.out)["num_files_processed"] != len(files):
            raise Failed(f"bin/hash_documents says {spent.out}")
        return spent

    def theirs() -> Spent:
        return run([b3sum, "--num-threads", threads, *files], bench.cores.both)

    rounds = bench.interleaved({"ours": ours, "b3sum": theirs})
    lines = {tuple(line.split("  ")) for line in rounds["b3sum"][0].out.splitlines()}
    found = "".join(path.read_text() for path in bench.scratch.glob("hashes/?_*.csv"))
    if {tuple(line.split(",")) for line in found.splitlines()} != lines:
        raise Failed("bin/hash_documents and b3sum do not agree")
    walls = {name: [spent.wall for spent in spents] for name, spents in rounds.items()}
    cpu = {name: min(spent.cpu for spent in spents) for name, spents in rounds.items()}
    rates = [json.loads(spent.out)["rate_mb_per_sec"] for spent in rounds["ours"]]
    note = f"by CPU time {cpu['b3sum'] / cpu['ours']:.2f}, {max(rates):,.0f} MB/s once started"
    yield compare(
        "hash-documents", "MB/s", size, walls["ours"], walls["b3sum"], "b3sum", Target(0.9), note
    )


def digests(bench: Bench) -> Iterator[Line]:
    """The digests that manifests and indexes may have, of bytes in memory, beside SHA-1."""
    piece = bytes(range(256)) * 4096
    count = max(bench.size.corpus // 4 // len(piece), 1)
    seconds: dict[str, list[float]] = {name: [] for name in ("sha1", *SIZES)}
    for _ in range(bench.runs):
        for name, found in seconds.items():
            hasher, begin = new_hash(name), time.process_time()
            for _ in range(count):
                hasher.update(piece)
            hasher.digest()
            found.append(time.process_time() - begin)
    for name, found in seconds.items():
        if name != "sha1":
            size = count * len(piece) / 1e6
            yield compare(f"digest-{name}", "MB/s", size, found, seconds["sha1"], "SHA-1", None)


def dedup_hashes(bench: Bench) -> Iterator[Line]:
    """bin/dedup_hashes of made-up shards on two cores, beside DuckDB's bare GROUP BY of them."""
    count = bench.size.rows
    rows = bench.inputs.rows(count)

    def ours() -> Spent:
        command = [ROOT / "bin" / "dedup_hashes", rows, bench.fresh("unique.parquet")]
        spent = run([*command, "--memory", MEMORY, "--json"], bench.cores.both)
        if json.loads(spent.out)["total_files"] != count:
            raise Failed(f"bin/dedup_hashes says {spent.out}")
        return spent

    def bare() -> Spent:
        words = [f"{rows}/*.parquet", bench.fresh("bare.parquet"), MEMORY]
        command = [sys.executable, "-m", "tests.benchmarks.documents", *words]
        return run(command, bench.cores.both)

    spent = bench.interleaved({"ours": ours, "bare": bare})
    walls = {name: [one.wall for one in all_] for name, all_ in spent.items()}
    cpu = {name: min(one.cpu for one in all_) for name, all_ in spent.items()}
    note = f"{count:,} rows, by CPU time {cpu['bare'] / cpu['ours']:.2f}"
    yield compare(
        "dedup-hashes", "rows/s", count, walls["ours"], walls["bare"], "DuckDB's GROUP BY",
        Target(0.8), note,
    )  # fmt: skip
    yield compare(
        "dedup-hashes", "rows/s", count, walls["ours"], None, "", Target(2_000_000, "ours")
    )
    peak = max(one.rss for one in spent["ours"])
    yield Line("dedup-hashes", "MB memory", peak / 1e6)


def main() -> None:
    glob, output, memory = sys.argv[1:]
    Path(output).unlink(missing_ok=True)
    with duckdb.connect(config={"memory_limit": memory}) as database:
        database.execute(_BARE.format(glob=quoted(glob), output=quoted(output)))


if __name__ == "__main__":
    main()
