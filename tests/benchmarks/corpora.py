"""Jobs of corpora: the three scenarios of the ArchiveSpark paper, and where its way ends to pay."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.benchmarks.measure import ROOT, Failed, Spent, environment, run
from tests.benchmarks.plain import Found, checksum
from tests.benchmarks.suite import Bench, Line, Target, compare
from tests.peers import spark as peer

CORPUS = ROOT / "bin" / "corpus"
_HTML = "mime == 'text/html' and status == 200"
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"  # that digests begin with, one as often as the other
_SHARES = (1, 8, 16, 32)  # of these


def corpus_url(bench: Bench) -> Iterator[Line]:
    """bin/corpus: titles of all captures of one URL, beside loops over all records."""
    archive = _Archive(bench)
    (url, _), *_ = archive.urls.most_common(1)
    yield from archive.scenario("corpus-url", f"url == '{url}'", {"url": url})


def corpus_host(bench: Bench) -> Iterator[Line]:
    """The same of the pages of one host, a hundredth of all if there is such."""
    archive = _Archive(bench)
    fit = archive.urls.total() / 100
    host = min(archive.hosts, key=lambda host: (abs(archive.hosts[host] - fit), host))
    yield from archive.scenario(
        "corpus-host", f"hostname == '{host}' and {_HTML}", {"host": host, "html": True}
    )


def corpus_month(bench: Bench) -> Iterator[Line]:
    """The same of the latest page of each URL in a month."""
    archive = _Archive(bench)
    (month, _), *_ = archive.months.most_common(1)
    yield from archive.scenario(
        "corpus-month", f"timestamp == '{month}' and {_HTML}",
        {"month": month, "html": True, "latest": True}, "--latest", "url",
    )  # fmt: skip


def corpus_share(bench: Bench) -> Iterator[Line]:
    """From which share of records on a loop over all of them is as quick."""
    archive = _Archive(bench)
    contenders: dict[str, Callable[[], Spent]] = {}
    for count in _SHARES:
        letters = _LETTERS[:count]
        wanted = {"digits": letters}
        condition = f"digest =~ '^[{letters}]'"
        contenders[f"ours {count}"] = partial(archive.ours, condition, wanted)
        contenders[f"plain {count}"] = partial(archive.plain, wanted)
    walls = {
        name: median(spent.wall for spent in spents)
        for name, spents in bench.interleaved(contenders).items()
    }
    ratios = [walls[f"plain {count}"] / walls[f"ours {count}"] for count in _SHARES]
    shares = [count / len(_LETTERS) for count in _SHARES]
    pairs = [f"{share:.0%}: {ratio:.2f}" for share, ratio in zip(shares, ratios, strict=True)]
    note = f"of all records; times quicker than warcio at {', '.join(pairs)}"
    yield Line("corpus-share", "break-even", _even(shares, ratios), note=note)


def _even(shares: list[float], ratios: list[float]) -> float:
    """The share at which both take as long; 1 if that is never."""
    points = list(zip(shares, ratios, strict=True))
    for (share, ratio), (more, less) in zip(points, points[1:], strict=False):
        if ratio >= 1 > less:
            return share + (ratio - 1) / (ratio - less) * (more - share)
    return 1.0 if ratios[-1] >= 1 else shares[0]


class _Archive:
    """A harvest, the CDXJ of it, and what is in it."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._files = sorted(bench.inputs.harvest(bench.size).iterdir())
        self._size = sum(path.stat().st_size for path in self._files)
        self._cdx = bench.scratch / "corpus.cdxj"
        if not self._cdx.exists():
            run([CORPUS, *self._files, "-o", self._cdx], bench.cores.both)
        self.urls, self.hosts, self.months = Counter[str](), Counter[str](), Counter[str]()
        with open(self._cdx) as lines:
            for line in lines:
                _, timestamp, text = line.split(" ", 2)
                said = json.loads(text)
                self.urls[said["url"]] += 1
                self.months[timestamp[:6]] += 1
                if said["mime"] == "text/html":
                    self.hosts[urlsplit(said["url"]).hostname or ""] += 1

    def scenario(
        self, job: str, condition: str, wanted: dict[str, Any], *options: str
    ) -> Iterator[Line]:
        """Lines beside warcio, and beside PySpark where that is."""
        contenders = {
            "ours": partial(self.ours, condition, wanted, *options),
            "warcio": partial(self.plain, wanted),
        }
        try:
            # A tiny run starts Spark once, for the scenario with all conditions.
            if self._bench.size.warm or wanted.get("latest"):
                paths = peer.spark()["PYTHONPATH"]
                contenders["PySpark"] = partial(self.plain, wanted, environment(PYTHONPATH=paths))
        except pytest.skip.Exception as skipped:
            self._bench.say(f"{job}: without PySpark: {skipped}")
        rounds = self._bench.interleaved(contenders)
        walls = {name: [spent.wall for spent in spents] for name, spents in rounds.items()}
        report = json.loads(rounds["ours"][-1].out)
        share = report["bytes_read"] / self._size
        note = f"{report['entries']:,} captures of {self.urls.total():,}; {share:.2%} of bytes read"
        for name in list(walls)[1:]:
            amount = self._size / 1e6
            target = Target(1.0) if job != "corpus-month" else None  # where much is read
            yield compare(job, "MB/s", amount, walls["ours"], walls[name], name, target, note)
            note = ""

    def ours(self, condition: str, wanted: dict[str, Any], *options: str) -> Spent:
        out = self._bench.fresh("corpus") / "titles.jsonl"
        out.parent.mkdir()
        words = [CORPUS, self._cdx, "--containers", self._files[0].parent, "--where", condition]
        words += [*options, "--enrich", "html.title", "--jobs", "2", "-o", out, "--json"]
        spent = run(words, self._bench.cores.both)
        self._check(wanted, checksum(_titles(out), latest=False))
        return spent

    def plain(self, wanted: dict[str, Any], env: dict[str, str] | None = None) -> Spent:
        spark = ["--spark", "local[2]"] if env else []
        words = [sys.executable, "-m", "tests.benchmarks.plain", *spark, json.dumps(wanted)]
        spent = run([*words, *self._files], self._bench.cores.both, env=env)
        self._check(wanted, json.loads(spent.out.splitlines()[-1]))
        return spent

    def _check(self, wanted: dict[str, Any], found: dict[str, Any]) -> None:
        """All must find the same."""
        key = self._bench.kept.setdefault(f"corpus {wanted}", Path(json.dumps(found)))
        if str(key) != json.dumps(found):
            raise Failed(f"{wanted}: {found} were found, and {key} before")


def _titles(path: Path) -> Iterator[Found]:
    with open(path, "rb") as lines:
        for line in lines:
            entry = json.loads(line)
            record = entry["record"]
            title = entry.get("payload", {}).get("string", {}).get("html", {}).get("title", "")
            time = "".join(filter(str.isdigit, record["timestamp"]))
            yield record["originalUrl"], time, title
