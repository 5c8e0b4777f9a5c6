"""Rewriting to a directory: what becomes a revisit, and that nothing else changes by a byte."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dedupindex.rewrite.container import Job
from tests.rewriting import FakePlan, content, records_of, run, small_set, total


def test_copies_become_revisits_and_all_else_stays(tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    small_set(source)
    before = content(source)
    plan = FakePlan(source)
    outcomes = run(Job(plan, out))
    assert [one.state for one in outcomes] == ["kept", "rewritten", "rewritten"]  # a, c, deep/b
    found = total(outcomes)
    assert found.revisits == len(plan.found) == 19 and not found.refused
    assert content(source) == before
    assert found.bytes_before == sum(map(len, before.values()))
    assert found.bytes_after == sum(map(len, content(out).values()))
    planned = {(p.line.container, p.line.record_id): p for p in plan.found}
    for number, container in plan.containers().items():
        old, new = records_of(source / container.name), records_of(out / container.name)
        assert len(old) == len(new)
        for (header, block), (header_now, block_now) in zip(old, new, strict=True):
            record_id = header.partition(b"WARC-Record-ID: <")[2].partition(b">")[0]
            if (number, record_id) in planned:
                assert b"WARC-Type: revisit\r\n" in header_now
                assert block == block_now + block[len(block_now) :]
                assert block_now.endswith(b"\r\n\r\n")
            else:
                assert (header, block) == (header_now, block_now)
        assert os.stat(out / container.name).st_mtime_ns == container.mtime_ns


@pytest.mark.parametrize("processes", [1, 2])
def test_dry_run_gives_the_same_numbers_and_writes_nothing(tmp_path: Path, processes: int) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    small_set(source)
    plan = FakePlan(source)
    dry = run(Job(plan, out, dry=True), processes)
    assert not out.exists()
    assert dry == run(Job(plan, out), processes)
    again = run(Job(plan, out), processes)
    assert [one.state for one in again] == ["there"] * 3
