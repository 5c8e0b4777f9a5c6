"""`dedupindex.runtime.bounded_counter`: sums are right however often they leave memory."""

from __future__ import annotations

from collections import Counter
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupindex.runtime.bounded_counter import Sums

rows = st.lists(st.tuples(st.binary(max_size=2), st.integers(-5, 100)))


@given(rows, st.integers(1, 5))
def test_sums_equal_a_plain_counter(added: list[tuple[bytes, int]], in_memory: int) -> None:
    sums, ones, amounts = Sums(2, keys_in_memory=in_memory), Counter[bytes](), Counter[bytes]()
    for key, amount in added:
        sums.add(key, 1, amount)
        ones[key] += 1
        amounts[key] += amount
    expected = [(key, (ones[key], amounts[key])) for key in sorted(ones)]
    assert list(sums.items()) == expected
    assert list(sums.items()) == expected  # reading changes nothing
    largest = sorted(expected, key=lambda row: (-row[1][1], row[0]))
    assert list(sums.largest(0, 1)) == largest
    assert list(sums.largest(2, 1)) == largest[:2]
    assert len(sums) == len(expected)


def test_number_of_keys_in_memory_is_limited() -> None:
    sums = Sums(1, keys_in_memory=100)
    for number in range(1050):
        sums.add(b"%d" % number, 1)
        assert len(sums._sums) <= 100
    assert sum(count for _, (count,) in sums.items()) == 1050


def test_another_thread_may_collect_it() -> None:
    """The collector runs in whatever thread allocates; an error there would be printed."""
    held = [Sums(1)]
    thread = Thread(target=held.clear)
    thread.start()
    thread.join()
    assert not held


@pytest.mark.parametrize("in_memory", [1, 10])
def test_sums_too_large_for_sqlite_are_the_largest_that_it_has(in_memory: int) -> None:
    sums = Sums(1, keys_in_memory=in_memory)
    for key in (b"a", b"b") * 20:
        sums.add(key, 10**18 - 1)
    assert [sum_ for _, (sum_,) in sums.items()] == [(1 << 62) - 1] * 2
