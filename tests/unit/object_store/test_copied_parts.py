"""Parts of a new object that a store copies from another one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dedupindex.object_store.copied_parts import PART, ObjectPart, parts_of
from dedupindex.runtime.atomic_replace import CopiedRange

MEBIBYTE = 1 << 20
LEAST, MOST = 5 * MEBIBYTE, 5 << 30  # of a part, as S3 takes them
lengths = st.one_of(
    st.integers(1, 40 * MEBIBYTE), st.integers(1, 3 << 30), st.sampled_from([PART, PART - 1, LEAST])
)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[int, list[CopiedRange]]:
    """The size of a new object, and what of it is in the source, with gaps or without."""
    ranges, at, offset = list[CopiedRange](), 0, 0
    for gap, length, skipped in draw(
        st.lists(st.tuples(st.one_of(st.just(0), lengths), lengths, lengths), max_size=8)
    ):
        at, offset = at + gap, offset + skipped
        ranges.append(CopiedRange(at, offset, length))
        at, offset = at + length, offset + length
    return max(at + draw(st.one_of(st.just(0), lengths)), 1), ranges


@given(layouts())
def test_parts_are_the_object(layout: tuple[int, list[CopiedRange]]) -> None:
    size, ranges = layout
    parts = parts_of(size, ranges)
    at = 0
    for part in parts:
        assert part.start == at
        at += part.length
        if part.offset >= 0:  # of one range, at the place in the source that belongs to it
            assert any(
                one.start <= part.start
                and at <= one.start + one.length
                and part.offset - one.offset == part.start - one.start
                for one in ranges
            )
    assert at == size and len(parts) <= 10_000
    assert all(LEAST <= part.length <= MOST for part in parts[:-1]) and parts[-1].length <= MOST
    in_memory = [part.length for part in parts if part.offset < 0]
    assert max(in_memory, default=0) < 2 * max(PART, -(-size // 3_000))


@given(layouts())
def test_little_of_what_can_be_copied_is_sent(layout: tuple[int, list[CopiedRange]]) -> None:
    size, ranges = layout
    least = max(PART, -(-size // 3_000))
    sent = sum(part.length for part in parts_of(size, ranges) if part.offset < 0)
    short = sum(min(one.length, 2 * least) for one in ranges)
    assert sent <= size - sum(one.length for one in ranges) + short


def test_a_whole_object() -> None:
    assert parts_of(PART, [CopiedRange(0, 0, PART)]) == [ObjectPart(0, PART, 0)]
    assert parts_of(5, []) == [ObjectPart(0, 5)]


def test_a_large_object_has_no_more_parts_than_a_store_takes() -> None:
    size = 5 << 40  # the largest
    assert len(parts_of(size, [])) <= 10_000
    assert len(parts_of(size, [CopiedRange(0, 0, size)])) <= 10_000
    step = size // 100_000
    many = [CopiedRange(at, at, step - 1) for at in range(0, size - step, step)]
    assert len(parts_of(size, many)) <= 10_000
