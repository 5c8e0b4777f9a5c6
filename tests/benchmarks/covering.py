"""The job of covers: pairs of near-equal pages, beside looking at all pairs and beside datasketch.

python -m tests.benchmarks.covering FILE    looks at all pairs of each host
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from dedupindex.cover.relation import shingles, terms
from tests.benchmarks.measure import ROOT, Failed, run
from tests.benchmarks.peers import Missing
from tests.benchmarks.suite import Bench, Line, compare
from tests.peers.environments import environment

RELATION = ROOT / "conf" / "cover" / "journalist.txt"
DATASKETCH = ("datasketch==2.0.0",)
PAPER = {"documents": 50.32, "bytes": 55.46}  # per cent covered, of its scenario A-1
_PER_HOST = 200
_FEWEST = 200
_SKETCHED = ROOT / "tests" / "benchmarks" / "sketched.py"


def write(path: Path, count: int) -> None:
    """Made-up pages: hosts with texts that all their pages share, 2.2 captures of a URL.

    Half of the later captures are equal to the one before, the others differ in up to a third of
    their words.
    """
    chosen = random.Random(1)
    words = [f"w{chosen.randrange(1 << 30):x}" for _ in range(20_000)]

    def some(length: int) -> list[str]:
        return [words[int(len(words) * chosen.random() ** 3)] for _ in range(length)]

    with open(path, "w") as stream:
        made = 0
        while made < count:
            host, frame = made // _PER_HOST, some(60)
            while made < count and made // _PER_HOST == host:
                text = some(int(chosen.lognormvariate(5.3, 0.6)) + 20)
                for version in range(1 + min(int(chosen.expovariate(0.75)), 5)):
                    if version and chosen.random() < 0.5:
                        for _ in range(chosen.randrange(len(text) // 3)):
                            text[chosen.randrange(len(text))] = some(1)[0]
                    body = " ".join([*frame[:40], *text, *frame[40:]])
                    line = {"url": f"http://host{host}.example/{made}", "text": body,
                            "id": str(made), "timestamp": f"2026{version + 1:02}01000000",
                            "bytes": len(body)}  # fmt: skip
                    stream.write(json.dumps(line) + "\n")
                    made += 1


def cover(bench: Bench) -> Iterator[Line]:
    """bin/cover of near-equal pages: pairs/s and growth, beside all pairs and datasketch."""
    count = max(bench.size.responses, _FEWEST)
    files = {}
    for name, size in (("all", count), ("some", count // 4)):
        files[name] = bench.scratch / f"pages-{size}.jsonl"
        write(files[name], size)
    contenders = {
        "ours": partial(_ours, bench, files["all"]),
        "ours some": partial(_ours, bench, files["some"]),
        "minhash": partial(_ours, bench, files["all"], "--approximate"),
        "all pairs": partial(_other, bench, sys.executable, "-m", __name__, files["all"]),
        "all pairs some": partial(_other, bench, sys.executable, "-m", __name__, files["some"]),
    }
    try:
        python = environment("datasketch", DATASKETCH) / "python"
        contenders["datasketch"] = partial(_other, bench, python, _SKETCHED, files["all"])
    except pytest.skip.Exception as skipped:
        bench.say(f"cover without datasketch: {Missing(str(skipped))}")
    told = bench.interleaved(contenders)
    yield from _lines(told, count)


def _lines(told: dict[str, list[dict[str, Any]]], count: int) -> Iterator[Line]:
    first = {name: found[0] for name, found in told.items()}
    walls = {name: [one["wall"] for one in found] for name, found in told.items()}
    pairs = first["ours"]["pairs"]
    if pairs != first["all pairs"]["pairs"]:
        raise Failed(f"bin/cover found {pairs} pairs, and there are {first['all pairs']['pairs']}")
    note = f"{count:,} documents, {pairs:,} pairs"
    yield compare(
        "cover", "pairs/s", pairs, walls["ours"], walls["all pairs"], "all pairs", None, note
    )
    if "datasketch" in first:
        found = first["datasketch"]["pairs"]
        line = compare("cover", "pairs/s", pairs, walls["ours"], None, "", None)
        line.beside, line.reference = "datasketch", found / median(walls["datasketch"])
        line.ratio = line.ours / line.reference
        line.note = f"which finds {found / pairs:.1%} of them"
        yield line
    near = first["minhash"]
    line = compare(
        "cover", "pairs/s", near["pairs"], walls["minhash"], walls["ours"], "exact", None
    )
    line.note = (
        f"--approximate: {near['pairs'] / pairs:.1%} of them, {near['recall'] or 0:.1%} measured"
    )
    yield line
    for name, beside in (("ours", "all pairs"),):
        grown = median(walls[name]) / median(walls[f"{name} some"])
        reference = median(walls[beside]) / median(walls[f"{beside} some"])
        yield Line("cover", "times", grown, beside, reference, reference / grown,
                   note="as long for four times the documents")  # fmt: skip
    covered = first["ours"]
    shares = {
        "documents": 100 * covered["covered"] / covered["documents"],
        "bytes": 100
        * covered["bytes_covered"]
        / (covered["bytes_covered"] + covered["bytes_kept"]),
    }
    for name, share in shares.items():
        yield Line("cover", f"% {name}", share, "the paper's A-1", PAPER[name],
                   note="covered; of another corpus, made up: no comparison")  # fmt: skip


def _ours(bench: Bench, path: Path, *more: str) -> dict[str, Any]:
    out = bench.fresh("cover.jsonl")
    words = [ROOT / "bin" / "cover", path, "--relation", RELATION, "-o", out, "--jobs", "1"]
    spent = run([*words, "--json", *more], bench.cores.one)
    out.unlink()
    return {**json.loads(spent.out), "wall": spent.wall}


def _other(bench: Bench, *words: object) -> dict[str, Any]:
    spent = run(words, bench.cores.one)
    return {**json.loads(spent.out), "wall": spent.wall}


def all_pairs(path: Path) -> int:
    """Pairs of the journalist's relation, by looking at all of a host."""
    hosts = defaultdict(list)
    with open(path) as stream:
        for line in stream:
            page = json.loads(line)
            host = page["url"].split("/")[2]
            hosts[host].append((page["timestamp"], shingles(terms(page["text"]), 5)))
    found = 0
    for pages in hosts.values():
        for place, (moment, one) in enumerate(pages):
            for other_place, (other_moment, other) in enumerate(pages):
                if place != other_place and moment <= other_moment:
                    found += 10 * len(one & other) >= 7 * len(one)
    return found


if __name__ == "__main__":
    begin = time.perf_counter()
    print(
        json.dumps({"pairs": all_pairs(Path(sys.argv[1])), "seconds": time.perf_counter() - begin})
    )
