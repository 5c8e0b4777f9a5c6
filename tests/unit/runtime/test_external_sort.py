"""Any number of lines is sorted, with few of them in memory and few files open."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupindex.runtime import external_sort
from dedupindex.runtime.external_sort import sorted_lines


@given(st.lists(st.binary(max_size=4), max_size=60), st.integers(1, 5), st.integers(2, 4))
def test_lines_are_sorted_as_bytes(lines: list[bytes], in_memory: int, runs: int) -> None:
    ended = [line.replace(b"\n", b"") + b"\n" for line in lines]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(external_sort, "_IN_MEMORY", in_memory)
        patch.setattr(external_sort, "_RUNS", runs)
        assert list(sorted_lines(iter(ended))) == sorted(ended)


def test_few_files_are_open_and_none_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def files() -> int:
        return len(os.listdir("/proc/self/fd"))

    monkeypatch.setattr(external_sort, "_IN_MEMORY", 2)
    monkeypatch.setattr(external_sort, "_RUNS", 4)
    before = files()
    most = max(files() for _ in sorted_lines(b"%d\n" % (n * 7 % 1000) for n in range(1000)))
    assert most - before <= 3 * 5  # fewer than 4 runs on each of 5 levels
    for _ in sorted_lines(b"%d\n" % n for n in range(100)):
        break  # by a reader that stops
    assert files() == before
