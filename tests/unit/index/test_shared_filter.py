"""The filter in memory that processes share."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import count
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupindex.index import shared_filter
from dedupindex.index.shared_filter import FRESH, LEAST, SharedFilter
from tests.support.captures import sha1


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


Make = Callable[..., SharedFilter]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def file() -> Iterator[int]:
    made = shared_filter.create(1 << 20)
    yield made
    os.close(made)


@pytest.fixture
def make(file: int, clock: Clock) -> Iterator[Make]:
    """Filters of several processes."""
    made: list[SharedFilter] = []

    def make(process: int = 0) -> SharedFilter:
        made.append(SharedFilter(file, process, clock))
        return made[-1]

    yield make
    for one in made:
        one.close()


def start(number: int) -> bytes:
    return b"\x02" + sha1(number).raw


def key(number: int) -> int:
    return int.from_bytes(sha1(number).raw[:8], "big")


def test_it_lacks_what_was_not_added(make: Make, clock: Clock) -> None:
    builder, reader = make(), make(1)
    builder.begin(7, 1000)
    builder.add(map(key, range(1000)))
    assert not any(map(reader.lacks, map(start, range(3000))))  # it is not whole
    builder.renew(clock.now)
    assert not any(map(reader.lacks, map(start, range(1000))))
    lacking = sum(map(reader.lacks, map(start, range(1000, 3000))))
    assert lacking > 1960
    status = builder.status()
    assert 990 < status.digests <= 1000 and status.answered == lacking and status.age == 0
    assert reader.of(7) and not reader.of(8)


def test_an_old_one_answers_nothing(make: Make, clock: Clock) -> None:
    builder, reader = make(), make(1)
    builder.begin(7, 10)
    builder.renew(clock.now)
    clock.now += FRESH
    assert reader.lacks(start(1))
    clock.now += 0.001
    assert not reader.lacks(start(1))
    builder.renew(clock.now)
    assert reader.lacks(start(1))
    builder.stop()
    assert not reader.lacks(start(1)) and builder.status().age is None


def test_what_a_process_stores_is_known_to_the_others_at_once(make: Make, clock: Clock) -> None:
    builder, one, other = make(), make(1), make(2)
    builder.begin(7, 10)
    builder.renew(clock.now)
    assert other.lacks(start(5))
    one.store([start(5)])
    assert not other.lacks(start(5)) and not builder.lacks(start(5))


def test_it_asks_while_a_process_cannot_add(
    make: Make, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder, one, other = make(), make(1), make(2)
    builder.begin(7, 10)
    builder.renew(clock.now)
    monkeypatch.setattr(shared_filter, "_HELD", 0.0)
    with builder._locked(None):
        one.store([start(5)])
    assert not other.lacks(start(6))
    clock.now += FRESH
    builder.renew(clock.now)
    assert other.lacks(start(6))


@given(st.sets(st.integers(0, 5000), max_size=600), st.integers(0, 50))
def test_it_has_all_that_was_added_however_many_were_expected(
    numbers: set[int], expected: int
) -> None:
    file = shared_filter.create(LEAST)
    shared = SharedFilter(file, now=lambda: 0.5)
    try:
        shared.begin(1, expected)
        shared.add(map(key, numbers))
        shared.renew(0.4)
        assert not any(shared.lacks(start(number)) for number in numbers)
    finally:
        shared.close()
        os.close(file)


@pytest.mark.parametrize("maximum", [LEAST, 5 * LEAST])
def test_its_memory_is_bounded(maximum: int) -> None:
    file = shared_filter.create(maximum)
    shared = SharedFilter(file, now=lambda: 0.5)
    count = 5 * maximum // 4
    shared.begin(1, 10)
    shared.add(map(key, range(count)))
    shared.renew(0.4)
    status = shared.status()
    assert maximum - LEAST <= status.size <= maximum == status.maximum
    assert os.fstat(file).st_size == maximum + 4096
    assert not any(shared.lacks(start(number)) for number in range(0, count, 7))
    assert sum(shared.lacks(start(number)) for number in range(count, count + 1000)) > 500
    shared.begin(2, 10)
    assert os.fstat(file).st_blocks * 512 <= 3 * 4096  # what was used is free again
    shared.renew(0.4)
    assert all(shared.lacks(start(number)) for number in range(0, count, 7))
    shared.close()
    os.close(file)


def test_one_that_is_emptied_meanwhile_answers_nothing(make: Make, clock: Clock) -> None:
    builder, reader = make(), make(1)
    builder.begin(7, 10)
    builder.add([key(1)])
    builder.renew(clock.now)

    def emptied(sought: int) -> bool:
        builder.begin(7, 10)
        builder.renew(clock.now)
        return SharedFilter._has(reader, sought)

    reader._has = emptied  # type: ignore[method-assign]
    assert not reader.lacks(start(1))


def at_each_line(emptied: Callable[[], None], then: Callable[[], object]) -> None:
    """Do something before each line of `begin` and `stop`, in the thread that empties a filter."""
    codes = SharedFilter.begin.__code__, SharedFilter.stop.__code__

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code not in codes:
            return None
        if event == "line":
            then()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        emptied()
    finally:
        sys.settrace(before)


def test_lookups_during_each_step_of_emptying_answer_nothing(make: Make, clock: Clock) -> None:
    """They begin before a line, and look at the tables when all lines have been run."""
    builder, reader = make(), make(1)
    fresh, answers = reader.is_fresh, list[bool]()
    for begun in range(100):
        builder.begin(7, 10)
        builder.add([key(1)])
        builder.renew(clock.now)
        lines, paused, done = count(), threading.Event(), threading.Event()
        go = threading.Event()

        def pause() -> None:
            if next(lines) == begun:  # noqa: B023
                paused.set()  # noqa: B023
                assert go.wait(60)  # noqa: B023

        def empty() -> None:
            at_each_line(lambda: builder.begin(7, 10), pause)  # noqa: B023
            done.set()  # noqa: B023
            paused.set()  # noqa: B023

        def looked() -> bool:
            found = fresh()
            go.set()  # noqa: B023
            assert done.wait(60)  # noqa: B023
            return found

        reader.is_fresh = looked  # type: ignore[method-assign]
        thread = threading.Thread(target=empty)
        thread.start()
        assert paused.wait(60)
        if done.is_set():  # there are fewer lines
            break
        answers.append(reader.lacks(start(1)))
        thread.join()
    assert len(answers) > 8 and not any(answers)


def test_tables_that_are_read_while_they_are_laid_out_are_read_again(
    make: Make, clock: Clock
) -> None:
    """By `status`, of which the metrics and the statistics of a server are made."""
    builder, reader = make(), make(1)
    for number in range(100):
        builder.begin(7, 10)
        lines = count()

        def look() -> None:
            if next(lines) == number:  # noqa: B023
                reader.status()

        at_each_line(lambda: builder.begin(7, 100_000), look)  # a larger table
        builder.add([key(1)])
        builder.renew(clock.now)
        assert not reader.lacks(start(1)) and reader.lacks(start(2))
        if next(lines) <= number:
            break
    assert number > 8


_ADDING = """
import sys
from dedupindex.index.shared_filter import SharedFilter
shared = SharedFilter(int(sys.argv[1]))
first = int(sys.argv[2])
for number in range(first, first + 20_000):
    shared.add([number * 2654435761 % 2**32 << 32 | number])
"""


def test_processes_that_add_at_once_lose_nothing(file: int) -> None:
    shared = SharedFilter(file, now=lambda: 0.5)
    shared.begin(1, 10)
    adding = [
        subprocess.Popen([sys.executable, "-c", _ADDING, str(file), str(at)], pass_fds=(file,))
        for at in (0, 20_000)
    ]
    assert [process.wait(60) for process in adding] == [0, 0]
    shared.renew(0.4)
    for number in range(40_000):
        added = number * 2654435761 % 2**32 << 32 | number
        assert not shared.lacks(b"\x02" + added.to_bytes(8, "big"))
    shared.close()
