"""``bin/bench``: run jobs, print a line for each figure."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from dedupindex import __version__
from tests.benchmarks import (
    asking,
    building,
    clustering,
    corpora,
    covering,
    crawl_requests,
    crawler_harvests,
    crawling,
    deduping,
    documents,
    filtering,
    handing_over,
    listing,
    long_runs,
    profiling,
    proxying,
    resolving,
    spreading,
    wget_harvests,
    writing,
)
from tests.benchmarks.measure import Failed
from tests.benchmarks.peers import Missing
from tests.benchmarks.suite import HEADING, SIZES, Bench, Line

Job = Callable[[Bench], Iterator[Line]]
JOBS: dict[str, Job] = {
    "warc": building.warc,
    "warc-two": building.warc_two,
    "wget-index": wget_harvests.wget_index,
    "wget-manifest": wget_harvests.wget_manifest,
    "wget-zstd": wget_harvests.wget_zstd,
    "wget-peers": wget_harvests.wget_peers,
    "crawler-index": crawler_harvests.crawler_index,
    "cdx": building.cdx,
    "parquet": building.parquet,
    "crawl-log": building.crawl_log,
    "warc-deduplicator": building.warc_deduplicator,
    "size": building.size,
    "scale": building.scale,
    "add": building.add,
    "lookup": asking.lookup,
    "cdx-lookup": asking.cdx_lookup,
    "batch": asking.batch,
    "latency": asking.latency,
    "weight": asking.weight,
    "crawl-lookup": crawl_requests.crawl_lookup,
    "crawl-report": crawl_requests.crawl_report,
    "client": crawl_requests.client,
    "profile": profiling.profile,
    "zeno": handing_over.zeno,
    "wget-export": handing_over.wget_export,
    "browsertrix-export": handing_over.browsertrix_export,
    "filter": filtering.digest_filter,
    "lookup-writing": writing.lookup_writing,
    "captures-batch": writing.captures_batch,
    "captures-single": writing.captures_single,
    "cassandra": clustering.cassandra,
    "resolve": resolving.resolve,
    "spark": spreading.spark,
    "warcprox": proxying.warcprox,
    "heritrix": crawling.heritrix,
    "manifest": listing.manifest,
    "manifest-two": listing.manifest_two,
    "rewrite": deduping.rewrite,
    "dedup": deduping.dedup,
    "dedup-tenfold": deduping.dedup_tenfold,
    "long-run": long_runs.long_run,
    "rewrite-long": long_runs.rewrite_long,
    "corpus-url": corpora.corpus_url,
    "corpus-host": corpora.corpus_host,
    "corpus-month": corpora.corpus_month,
    "corpus-share": corpora.corpus_share,
    "digests": documents.digests,
    "hash-documents": documents.hash_documents,
    "dedup-hashes": documents.dedup_hashes,
    "cover": covering.cover,
}


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bin/bench",
        description="Measure speed and size of dedupindex and of its peers in turn, in one run, on "
        "fixed cores. Figures of different runs or machines cannot be compared; ratios can.",
        epilog="Exit status: 0 done, 1 a target was missed at full size, 2 wrong usage, "
        "3 a measured command failed.",
    )
    add = parser.add_argument
    add("--version", action="version", version=f"dedupindex {__version__}")
    add("jobs", nargs="*", metavar="JOB", help="which jobs (default: all, see --list)")
    add("--list", action="store_true", help="list the jobs and stop")
    add(
        "--size",
        choices=SIZES,
        default="full",
        help="size of the input; tiny only checks that the jobs run",
    )
    add("--runs", type=int, default=3, metavar="N", help="number of rounds; the median counts")
    add(
        "--captures",
        type=int,
        metavar="N",
        help="captures in the large build of the job scale, and in that of long-run",
    )
    add(
        "--responses",
        type=int,
        metavar="N",
        help="responses of the harvest that the job rewrite-long repeats",
    )
    add("--peers", type=Path, metavar="DIR", help="has outbackcdx.jar, deduplicator.tar.gz")
    add(
        "--cluster",
        metavar="ADDRESS",
        default="",
        help="for the job cassandra, with a keyspace that is made and dropped (default: one node "
        "is started)",
    )
    add("--dir", type=Path, metavar="DIR", help="directory for inputs and indexes")
    add("--json", action="store_true", help="one JSON object a line")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the suite; returns the exit status."""
    options = parser().parse_args(argv)
    if options.list:
        for name, job in JOBS.items():
            print(f"{name:<20}{' '.join((job.__doc__ or '').split())}")
        return 0
    if unknown := sorted(set(options.jobs) - set(JOBS)):
        parser().error(f"no job {unknown[0]!r}; there are {', '.join(JOBS)}")
    if not options.peers and os.environ.get("DEDUPINDEX_PEERS"):
        options.peers = Path(os.environ["DEDUPINDEX_PEERS"])
    directory = options.dir or Path(tempfile.gettempdir()) / "dedupindex-bench"
    bench = Bench(
        SIZES[options.size],
        directory.absolute(),
        options.peers,
        runs=max(options.runs, 1),
        captures=options.captures,
        responses=options.responses,
        cluster=options.cluster,
        say=lambda text: print(f"bin/bench: {text}", file=sys.stderr, flush=True),
    )
    missed = failed = False
    if not options.json:
        print(HEADING, flush=True)
    for name in options.jobs or JOBS:
        try:
            for line in JOBS[name](bench):
                missed |= line.verdict == "MISSED"
                _show(line, as_json=options.json)
        except Missing as missing:
            bench.say(f"{name} was not run: {missing}")
        except Failed as failure:
            failed = True
            bench.say(f"{name} failed: {failure}")
    if failed:
        return 3
    return 1 if missed and options.size == "full" else 0


def _show(line: Line, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({**asdict(line), "verdict": line.verdict}), flush=True)
    else:
        print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
