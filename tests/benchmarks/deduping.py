"""Jobs of what follows a manifest: duplicates into revisits, beside those that prove nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

from tests.benchmarks import harvest
from tests.benchmarks.captures import Captures
from tests.benchmarks.measure import ROOT, Failed, Spent, run
from tests.benchmarks.peers import Missing
from tests.benchmarks.suite import Bench, Line, Target, compare

DEDUP, REWRITE = ROOT / "bin" / "dedup", ROOT / "bin" / "rewrite"
_HARVEST = 13_000  # responses: 117 MB, as three harvests of nine sites are
_BODY = 8_000  # bytes of what `rewrite` copies
_AGAIN = 0.01  # of it are duplicates


def dedup(bench: Bench) -> Iterator[Line]:
    """bin/dedup of harvests to a folder, all of it verified, beside peers that verify nothing."""
    yield from _dedup(bench, "dedup", min(bench.size.responses, _HARVEST))


def dedup_tenfold(bench: Bench) -> Iterator[Line]:
    """The same of ten times as much."""
    yield from _dedup(bench, "dedup-tenfold", 10 * min(bench.size.responses, _HARVEST))


def _dedup(bench: Bench, job: str, responses: int) -> Iterator[Line]:
    source = bench.inputs.harvest(replace(bench.size, responses=responses))
    files = sorted(source.iterdir())
    size = sum(path.stat().st_size for path in files) / 1e6
    contenders = {"ours": lambda: _ours(bench, source)}
    for name, peer in (("jwarc", _jwarc), ("warchaeology", _warchaeology), ("warcdedupe", _cat)):
        try:
            contenders[name] = peer(bench, files)
        except Missing as missing:
            bench.say(f"{job}: without {name}: {missing}")
    rounds = bench.interleaved(contenders)
    walls = {name: [spent.wall for spent in spents] for name, spents in rounds.items()}
    said = json.loads(rounds["ours"][-1].out)
    note = f"{said['revisits']:,} revisits, {said['bytes_after'] / 1e6:.1f} MB left"
    targets = {"jwarc": Target(1.0), "warchaeology": Target(1.0), "warcdedupe": None}
    for name, target in targets.items():
        if name in walls or name == "jwarc":
            yield compare(job, "MB/s", size, walls["ours"], walls.get(name), name, target, note)
            note = ""
    peak = max(spent.rss for spent in rounds["ours"])
    yield Line(job, "MB memory", peak / 1e6)


def _ours(bench: Bench, source: Path) -> Spent:
    out = bench.fresh("dedup-out")
    shutil.rmtree(f"{out}.dedup", ignore_errors=True)
    spent = run([DEDUP, source, "--out", out, "--json"], bench.cores.both)
    if json.loads(spent.out)["verified"]["findings"]:
        raise Failed(f"{source}: bin/dedup says {spent.out[-2000:]}")
    return spent


def _jwarc(bench: Bench, files: list[Path]) -> Callable[[], Spent]:
    jar = bench.peers.jwarc()

    def theirs() -> Spent:
        folder = bench.fresh("jwarc")
        folder.mkdir()
        links = [folder / path.name for path in files]
        for link, path in zip(links, files, strict=True):
            link.symlink_to(path)  # it writes beside what it reads
        return run(
            ["java", "-jar", jar, "dedupe", "--cache-size", "1000000", *links], bench.cores.both
        )

    return theirs


def _warchaeology(bench: Bench, files: list[Path]) -> Callable[[], Spent]:
    program = bench.peers.program("warchaeology")

    def theirs() -> Spent:
        out, index = bench.fresh("warchaeology-out"), bench.fresh("warchaeology-index")
        out.mkdir()
        words = ["dedup", "--one-to-one", "--deterministic", "-g", "0", "-w", out]
        return run([program, *words, "--index-dir", index, "-K", *files], bench.cores.both)

    return theirs


def _cat(bench: Bench, files: list[Path]) -> Callable[[], Spent]:
    """warcdedupe knows one file only, so it gets all of them as one."""
    program = bench.peers.program("warcdedupe")
    whole = bench.fresh("whole.warc.gz")
    with open(whole, "wb") as stream:
        for path in files:
            stream.write(path.read_bytes())

    def theirs() -> Spent:
        out = bench.scratch / "warcdedupe.warc.gz"
        out.unlink(missing_ok=True)
        return run([program, "--disable-progress", whole, out], bench.cores.both)

    return theirs


def rewrite(bench: Bench) -> Iterator[Line]:
    """bin/rewrite of 1 GB where one record in a hundred is a duplicate, beside cp."""
    source = bench.inputs.seldom(bench.size)
    work = bench.fresh("rewrite-work")
    run([DEDUP, source, "--out", bench.fresh("rewrite-dry"), "--work", work, "--dry-run"],
        bench.cores.both)  # fmt: skip
    size = sum(path.stat().st_size for path in source.iterdir()) / 1e6

    def ours() -> Spent:
        out = bench.fresh("rewrite-out")
        return run([REWRITE, work / "plan", "--out", out, "--json"], bench.cores.both)

    def copied() -> Spent:
        return run(["cp", "-r", source, bench.fresh("rewrite-cp")], bench.cores.both)

    rounds = bench.interleaved({"ours": ours, "cp": copied})
    walls = {name: [spent.wall for spent in spents] for name, spents in rounds.items()}
    note = f"{json.loads(rounds['ours'][-1].out)['revisits']:,} revisits"
    yield compare("rewrite", "MB/s", size, walls["ours"], walls["cp"], "cp", Target(0.25), note)
    peak = max(spent.rss for spent in rounds["ours"])
    yield Line("rewrite", "MB memory", peak / 1e6, target=Target(300, "ours", most=True))


def write_seldom(directory: Path, *, responses: int, files: int, seed: int = 17) -> None:
    """WARC files of bodies that do not compress, few of which come again."""
    directory.mkdir()
    rng = Random(seed)
    before: list[bytes] = []
    rows = list(Captures(seed=seed, url_length=50).rows(0, responses))
    for number in range(files):
        with open(directory / f"seldom-{number:02d}.warc.gz", "wb") as stream:
            for row in rows[number * responses // files : (number + 1) * responses // files]:
                if before and rng.random() < _AGAIN:
                    body = rng.choice(before)
                else:
                    body = rng.randbytes(_BODY)
                    if len(before) < 5000:
                        before.append(body)
                for record in harvest.exchange(row, harvest.Payload("image/png", body, False)):
                    stream.write(harvest.member(record))
