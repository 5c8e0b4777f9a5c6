"""Large files on Spark are checked and verified in parts: with the result of whole ones."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dedupindex.object_store import RemoteFile, stores
from dedupindex.post_crawl.plan import plan_file
from dedupindex.post_crawl.plan.plan_file import Plan, open_plan
from dedupindex.post_crawl.rewrite import rewrite_on_spark
from dedupindex.post_crawl.rewrite.check_copies import CopyChecker
from dedupindex.post_crawl.rewrite.rewrite_file import RewriteJob
from dedupindex.post_crawl.verify_results import VerifyJob, verify_containers
from dedupindex.runtime import spark as clusters
from tests.integration.test_post_crawl_store import ONE, Stored, journals_of, made
from tests.support.commands import ended, typed
from tests.support.local_spark import Here, run_spark_here
from tests.support.rewriting import all_proofs
from tests.support.stores import Fault

SPARK = ("--spark", "2")
__all__ = ["made"]


@pytest.fixture
def stored(made: Stored, monkeypatch: pytest.MonkeyPatch) -> Stored:
    """Make each part of a copy or two, and each row of results of few bytes."""
    monkeypatch.setattr(stores, "_FIRST_WAIT", 0.001)
    monkeypatch.setattr(plan_file, "_MIN_TASK", 1)
    monkeypatch.setattr(clusters, "PIECE", 700)
    made.bucket.server.faults.clear()
    run_spark_here(monkeypatch, 3000)
    return made


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the offset of each record that is checked."""
    check, offsets = CopyChecker.check, list[int]()

    def counted(self: CopyChecker, planned: Any) -> Any:
        offsets.append(planned.line.offset)
        return check(self, planned)

    monkeypatch.setattr(CopyChecker, "check", counted)
    return offsets


def rewritten(stored: Stored, name: str, *more: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(typed(*stored.rewriting(name), *ONE, *more, "--json")[0])
    assert stored.results(name) == stored.planned
    return report


@pytest.mark.parametrize("preloaded", [True, False])
def test_each_record_is_checked_once(
    stored: Stored, monkeypatch: pytest.MonkeyPatch, checks: list[int], preloaded: bool
) -> None:
    if not preloaded:
        monkeypatch.setattr(plan_file, "_PRELOADED", 0)
    one, other = f"one-{preloaded}", f"other-{preloaded}"
    expected, expected_checks = rewritten(stored, one), sorted(checks)
    checks.clear()
    parts, tasks = _parts(open_plan(stored.plan)), list[range]()
    check_part = rewrite_on_spark.check_stored_part

    def counted(*words: Any) -> Any:
        tasks.append(words[2])
        return check_part(*words)

    monkeypatch.setattr(rewrite_on_spark, "check_stored_part", counted)
    report = rewritten(stored, other, *SPARK)
    assert sorted(map(len, parts.values())) == [3, 3, 3] and len(tasks) == 9
    assert sorted(checks) == expected_checks and len(checks) == 9
    other_values = {"requests", "work", "problems"}
    assert {key: report[key] for key in report.keys() - other_values} == {
        key: expected[key] for key in expected.keys() - other_values
    }
    states = [stored.top / f"state-{name}" for name in (one, other)]
    assert journals_of(states[0]) == journals_of(states[1]) != {}
    assert not list(states[1].glob(".rewrite-*"))


def test_a_plan_on_disk_has_the_same_parts(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    on_disk, loaded = open_plan(stored.plan), open_plan(stored.plan)
    loaded.preload()
    parts = _parts(on_disk)
    assert parts == _parts(loaded) and len(parts) == 3
    for number, of_file in parts.items():
        assert of_file[0].start == 0 and of_file[-1].stop == on_disk.container(number).size
        for part in of_file:
            found = list(on_disk.copies(number, part))
            assert found == list(loaded.copies(number, part)) != []
            assert found == list(on_disk.of_container(number, part).copies(number))
    monkeypatch.undo()
    assert _parts(on_disk) == {}  # these files are small


def test_parts_that_were_not_checked_are_checked_with_the_file(
    stored: Stored, monkeypatch: pytest.MonkeyPatch, checks: list[int]
) -> None:
    """Because the driver would have to send too much, or because the store failed meanwhile."""
    monkeypatch.setattr(rewrite_on_spark, "_MOST_SENT", 2)
    rewritten(stored, "few", *SPARK)
    assert len(checks) == 9
    check_part = rewrite_on_spark.check_stored_part

    def failing(*words: Any) -> Any:
        stored.bucket.server.faults[:] = [
            Fault(".gz", 9, status=403),
            Fault(".warc", 9, status=403),
        ]
        found = check_part(*words)
        stored.bucket.server.faults.clear()
        return found

    monkeypatch.setattr(rewrite_on_spark, "check_stored_part", failing)
    rewritten(stored, "failed", *SPARK)


def test_a_file_that_changes_after_its_parts_were_checked(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is left alone, as if it had not been checked."""
    name = next(name for name in stored.planned if name.endswith("3/x.warc"))
    before, rewrite_container = stored.expected, rewrite_on_spark.rewrite_container
    data = stored.results("warcs")[name]
    changed = data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]

    def late(*words: Any) -> Any:
        stored.bucket.put(f"warcs/{name}", changed)
        return rewrite_container(*words)

    with monkeypatch.context() as patched:
        patched.setattr(rewrite_on_spark, "rewrite_container", late)
        status, _, said = ended(*stored.rewriting("late"), *ONE, *SPARK)
    stored.bucket.put(f"warcs/{name}", data)
    assert status == 7 and f"{name} was left alone: it has changed since it was scanned" in said
    assert stored.results("late").items() <= before.items()
    assert name not in stored.results("late")


@pytest.mark.parametrize("seed", range(12))
def test_a_byte_that_a_store_sends_wrong_changes_no_result(
    stored: Stored, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Also one of a record that is not compressed, in a header that no digest covers."""
    random, read, calls = Random(seed), RemoteFile.range, list[int]()
    chosen = random.randrange(12)

    def wrong(self: RemoteFile, count: int, offset: int) -> bytes:
        data = read(self, count, offset)
        calls.append(len(data))
        if len(calls) == chosen + 1:
            at = random.randrange(len(data))
            data = data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]
        return data

    monkeypatch.setattr(RemoteFile, "range", wrong)
    rewritten(stored, f"wrong-{seed}", *SPARK)
    assert len(calls) > chosen


def test_a_wrong_http_header_does_not_get_into_a_revisit(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No digest covers it where the block digest is not stated: only its bytes in the file do."""
    read, changed = RemoteFile.range, list[int]()

    def wrong(self: RemoteFile, count: int, offset: int) -> bytes:
        data = read(self, count, offset)
        header, found, rest = data.partition(b"HTTP/1.1 200 OK")
        if found and self.name.endswith("3/x.warc"):
            changed.append(offset)
            data = header + b"HTTP/1.1 200 Ok" + rest
        return data

    monkeypatch.setattr(RemoteFile, "range", wrong)
    rewritten(stored, "header", *SPARK)
    assert changed


@pytest.mark.parametrize("seed", range(6))
def test_damage_is_found_as_in_whole_files(stored: Stored, tmp_path: Path, seed: int) -> None:
    """Results are damaged at random; the proofs are those of one process, which does not divide."""
    random, prefix, state = Random(seed), f"damaged-{seed}", tmp_path / "state"
    out = f"{stored.bucket.url}/{prefix}"
    typed("rewrite", stored.plan, "--out", out, "--state", state, *ONE)
    plan = open_plan(stored.plan)
    job = VerifyJob(RewriteJob(plan, state, store=out), frozenset())
    containers = list(plan.containers().values())
    proofs = [
        all_proofs(verify_containers(job, containers, 1, cluster)) for cluster in (None, Here(2))
    ]
    assert vars(proofs[0]) == vars(proofs[1]) and proofs[0].sound and proofs[0].files == 4
    for name, data in stored.planned.items():
        at = random.randrange(len(data))
        kind = random.randrange(5)
        if kind < 2:
            data = data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]
        elif kind == 2:
            data = data[:at]
        elif kind == 3:
            data += data[at:]
        if kind < 4:
            stored.bucket.put(f"{prefix}/{name}", data)
    proofs = [
        all_proofs(verify_containers(job, containers, 1, cluster)) for cluster in (None, Here(2))
    ]
    assert vars(proofs[0]) == vars(proofs[1])


def _parts(plan: Plan) -> dict[int, list[range]]:
    return plan.task_parts(2, plan.containers().keys())
