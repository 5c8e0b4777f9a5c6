"""The requests that tasks of executors count."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dedupindex.errors import DedupError
from dedupindex.object_store import ObjectFacts, TaskRequests, counting_task, facts
from tests.support.stores import Bucket


def mappings() -> int:
    return Path("/proc/self/maps").read_text().count("dedupindex-requests-")


def test_a_task_that_has_ended_leaves_no_mapping(buckets: Callable[[], Bucket]) -> None:
    """A Python of Spark's runs tasks for as long as the executor lives."""
    address = buckets().put("warcs/a.warc.gz", b"content")

    def work(task: int) -> Iterator[ObjectFacts]:
        for _ in range(task):
            yield facts(address)

    before = mappings()
    for task in (1, 2, 3):
        *found, requests = counting_task(work, task)
        assert len(found) == task
        assert isinstance(requests, TaskRequests) and requests.totals["head"] == task
    assert mappings() == before


def test_requests_of_a_task_that_fails_are_counted(buckets: Callable[[], Bucket]) -> None:
    address = buckets().put("warcs/a.warc.gz", b"content")

    def work(task: int) -> Iterator[ObjectFacts]:
        yield facts(address)
        raise DedupError("it fails")

    rows = counting_task(work, 1)
    assert isinstance(next(rows), ObjectFacts)
    requests = next(rows)
    assert isinstance(requests, TaskRequests) and requests.totals["head"] == 1
    with pytest.raises(DedupError, match="it fails"):
        next(rows)
