"""Spark's operations in this process: tasks run as they would on executors, without Spark."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from dedupindex.runtime import spark as clusters
from dedupindex.runtime.spark import Cluster


class Rows:
    """Spark's operations on rows, in this process: all rows are pickled, in any order."""

    def __init__(self, parts: Iterable[Iterable[Any]]) -> None:
        self.parts = [_sent(iter(part)) for part in parts]

    def persist(self, level: object) -> Rows:
        return self

    def unpersist(self) -> None:
        self.parts = []

    def mapPartitionsWithIndex(self, work: Callable[[int, Iterator[Any]], Iterable[Any]]) -> Rows:
        work = _sent(work)
        return Rows(work(place, iter(part)) for place, part in enumerate(self.parts))

    def mapPartitions(self, work: Callable[[Iterator[Any]], Iterable[Any]]) -> Rows:
        return Rows(work(iter(part)) for part in self.parts)

    def flatMap(self, work: Callable[[Any], Iterable[Any]]) -> Rows:
        return Rows([new for row in part for new in work(row)] for part in self.parts)

    def filter(self, chosen: Callable[[Any], bool]) -> Rows:
        return Rows(filter(chosen, part) for part in self.parts)

    def values(self) -> Rows:
        return Rows([value for _, value in part] for part in self.parts)

    def coalesce(self, count: int) -> Rows:
        return Rows([row for part in self.parts[at::count] for row in part] for at in range(count))

    def partitionBy(self, count: int, of: Callable[[Any], int]) -> Rows:
        parts: list[list[Any]] = [[] for _ in range(count)]
        for part in reversed(self.parts):
            for key, value in reversed(part):
                parts[of(key) % count].append((key, value))
        return Rows(parts)

    def collect(self) -> list[Any]:
        return [row for part in self.parts for row in part]

    def toLocalIterator(self) -> Iterator[Any]:
        return iter(self.collect())


class Here(Cluster):
    """A cluster without a network: each task runs as it would."""

    def __init__(self, cores: int = 3) -> None:
        self.cores = cores
        tracker = SimpleNamespace(getActiveStageIds=list)
        self.context = SimpleNamespace(
            parallelize=lambda tasks, count: Rows([[one] for one in tasks]),
            statusTracker=lambda: tracker,
        )


def _sent(value: Any) -> Any:
    return pickle.loads(pickle.dumps(list(value) if isinstance(value, Iterator) else value))


def run_spark_here(monkeypatch: pytest.MonkeyPatch, piece: int = 64 << 20) -> None:
    """Let ``--spark N`` run in this process, as on N cores; results come in slices of `piece`."""
    level = SimpleNamespace(DISK_ONLY="on disk")
    monkeypatch.setitem(sys.modules, "pyspark", SimpleNamespace(StorageLevel=level))  # type: ignore[arg-type]
    monkeypatch.setattr(clusters, "SLICE", piece)

    @contextmanager
    def spark_session(master: str) -> Iterator[Cluster]:
        yield Here(int(master))

    for name, module in list(sys.modules.items()):
        if name.startswith("dedupindex.") and hasattr(module, "spark_session"):
            monkeypatch.setattr(module, "spark_session", spark_session)
