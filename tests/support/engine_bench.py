"""What the conformance suite does to an index: stage, load here or in another process, read."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from dedupindex.capture import Capture, Evidence
from dedupindex.digest import Digest
from dedupindex.index import open_index
from dedupindex.index.address import is_cluster
from dedupindex.index.engine import Engine, IndexCounts, IndexedContainer, Load, View
from dedupindex.index.format.cells import NOWHERE, ContainerRef, encode, encode_revisit
from dedupindex.index.identity import Identity, Settings
from dedupindex.index.load.merge_rule import MergeOutcome
from dedupindex.index.load.runs import RunWriter
from dedupindex.runtime.spark import Cluster
from tests.support.paths import ROOT

Held = list[tuple[Digest, Capture]]

# The alarm's default action ends the process at once, as SIGKILL does: nothing is cleaned up.
LOADER = """
import json, signal, sys
from pathlib import Path
from dedupindex.index import open_index
from dedupindex.index.format.cells import ContainerRef
from dedupindex.index.engine import IndexedContainer, Load
index, runs, places, dropped, delay = json.loads(sys.argv[1])
engine = open_index(Path(index), write=True)
load = Load([Path(run) for run in runs], [(n, ContainerRef(*place)) for n, place in places],
            [IndexedContainer("loaded", 1, "00", 1)], frozenset(dropped))
signal.setitimer(signal.ITIMER_REAL, delay)
engine.load(load)
signal.setitimer(signal.ITIMER_REAL, 0)
engine.close()
"""


class Bench:
    """An index of one engine in a directory, and the numbers that its containers have."""

    def __init__(self, directory: Path, engine: str, settings: Settings | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.index = directory / "index"
        self.index.mkdir()
        self.settings = settings or Settings()
        self._runs = directory
        self._staged = 0
        self.engine, self.packs = engine, not is_cluster(engine)
        self.numbers: dict[ContainerRef, int] = {}
        Identity(engine, self.settings).write(self.index)

    def stage(self, captures: Iterable[Capture]) -> list[Path]:
        """Runs of captures, markers and further digests, as a build stages them."""
        keys, staged = self.settings.keys(), []
        for item in captures:
            key = keys.key_of(item.digest, item.url)
            if item.evidence == Evidence.REVISIT:
                staged.append(key + encode_revisit(item, read=item.offset >= 0))
                continue
            place, number = ContainerRef(item.container, item.crawl), 0
            if place != NOWHERE:
                number = self.numbers.setdefault(place, len(self.numbers) + 1)
            staged.append(key + encode(item, number, etag=self.settings.etag))
            for other in item.also:
                entry = encode(item, number, etag=self.settings.etag, also=True)
                staged.append(keys.key_of(other, item.url) + entry)
        self._staged += 1
        writer = RunWriter(self._runs, f"run{self._staged}", run_bytes=200_000)
        writer.extend(staged)
        writer.flush()
        return writer.paths

    def load(
        self,
        captures: Iterable[Capture],
        containers: Iterable[IndexedContainer] = (),
        dropped: Iterable[str] = (),
        metadata: dict[str, object] | None = None,
        cluster: Cluster | None = None,
    ) -> MergeOutcome:
        """Stage and load, on a cluster of Spark if there is one."""
        runs = self.stage(captures)
        places = [(number, place) for place, number in self.numbers.items()]
        load = Load(runs, places, list(containers), frozenset(dropped), metadata or {})
        with self.open(write=True) as engine:
            return engine.load(load) if cluster is None else engine.load_on(load, cluster)

    def load_elsewhere(
        self,
        captures: Iterable[Capture],
        dropped: Iterable[str] = (),
        delay: float = 0,
    ) -> bool:
        """Load in another process; return whether it finished.

        It dies after `delay` seconds if not 0.
        """
        runs = [str(run) for run in self.stage(captures)]
        places = [(number, place) for place, number in self.numbers.items()]
        arguments = json.dumps([str(self.index), runs, places, list(dropped), delay])
        ended = subprocess.run(
            [sys.executable, "-c", LOADER, arguments], cwd=ROOT, capture_output=True, text=True
        )
        assert ended.returncode == 0 or (delay and ended.returncode < 0), ended.stderr
        return ended.returncode == 0

    @contextmanager
    def open(self, *, write: bool = False) -> Iterator[Engine]:
        with closing(open_index(self.index, write=write)) as engine:
            yield engine

    @contextmanager
    def view(self) -> Iterator[View]:
        with self.open() as engine, engine.view() as view:
            yield view

    def held(self) -> Held:
        """All captures."""
        with self.view() as view:
            return list(view.captures())

    def urls(self) -> list[bytes]:
        return sorted(item.url for _, item in self.held())

    def counts(self) -> IndexCounts:
        with self.view() as view:
            return view.counts()

    def seconds_of(self, captures: list[Capture]) -> float:
        """Return the seconds that an undisturbed load takes."""
        start = time.monotonic()
        self.load(captures)
        return time.monotonic() - start
