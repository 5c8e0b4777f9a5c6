"""Runs: any partition merges to the sorted whole, and damage is never read as data."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupindex.errors import Damaged
from dedupindex.index.load import runs
from dedupindex.index.load.runs import RunWriter, merge, merge_files, read_run, write_run

entries = st.lists(st.binary(min_size=1, max_size=4), max_size=40)


def chunks(staged: list[bytes], size: int) -> list[list[bytes]]:
    return [staged[at : at + size] for at in range(0, len(staged), size)]


@given(st.lists(entries, max_size=6), st.integers(1, 7))
def test_a_merge_is_the_sorted_whole(parts: list[list[bytes]], size: int) -> None:
    merged = merge([iter(chunks(sorted(part), size)) for part in parts])
    assert [entry for batch in merged for entry in batch] == sorted(sum(parts, []))


def test_a_run_with_empty_chunks_merges() -> None:
    assert sum(merge([iter([[], [b"b"], []]), iter([[]]), iter([[b"a"]])]), []) == [b"a", b"b"]


def test_a_writer_bounds_its_memory_and_loses_nothing(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, "task", run_bytes=2000)
    staged = [b"%04d" % (number * 7919 % 1000) for number in range(1000)]
    for batch in chunks(staged, 10):
        writer.extend(batch)
    writer.flush()
    writer.flush()
    assert len(writer.paths) > 10
    assert sum(merge_files(writer.paths, tmp_path), []) == sorted(staged)
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("count", [0, 1, 3, 4, 7, 12])
def test_many_runs_are_merged_in_steps(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "FAN_IN", 3)
    paths = []
    for number in range(count):
        paths.append(tmp_path / f"r-{number}.run")
        write_run(paths[-1], [[b"%d" % number], [b"x%d" % number, b"y"]])
    expected = sorted(part for n in range(count) for part in (b"%d" % n, b"x%d" % n, b"y"))
    assert sum(merge_files(paths, tmp_path), []) == expected


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "a.run"
    write_run(path, [[b"a", b"b"], [b"c"]])
    return path


def test_a_run_is_damaged_wherever_it_is_cut(run: Path) -> None:
    data = run.read_bytes()
    for length in range(len(data)):
        run.write_bytes(data[:length])
        with pytest.raises(Damaged, match="without --resume"):
            list(read_run(run))


def test_a_run_is_damaged_whichever_bit_flips(run: Path) -> None:
    data = run.read_bytes()
    for place in range(len(data)):
        run.write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
        with pytest.raises(Damaged, match="without --resume"):
            list(read_run(run))
