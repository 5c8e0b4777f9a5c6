"""The rule against a model that keeps everything and thinks last."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupindex.capture import Capture, Evidence
from dedupindex.digest import CANONICAL, Digest
from dedupindex.index.format.cells import (
    NOWHERE,
    ContainerRef,
    Keys,
    answers,
    decode,
    digest_of_key,
    encode,
    encode_revisit,
    entries_of,
)
from dedupindex.index.format.tombstones import MAX_READ
from dedupindex.index.load.merge_rule import (
    MergeOutcome,
    MergeRule,
    capture_order,
    settled,
    staged_again,
)
from dedupindex.index.load.runs import merge
from dedupindex.timestamps import digits_of_date
from tests.support.captures import capture

PLACES = [
    NOWHERE,
    ContainerRef("a"),
    ContainerRef("b"),
    ContainerRef("a", "x"),
    ContainerRef("", "x"),
    ContainerRef("", "y"),
]
NUMBERS = {place: number for number, place in enumerate(PLACES)}
DATES = [
    b"2026-11-20T09:14:17Z",
    b"2026-11-20T09:14:17.2Z",
    b"2026-11-20T09:14:17.25Z",
    b"2026-11-20T09:14:18Z",
    b"2026-11-20T09:14:19Z",
    *[b"2026-11-20T09:14:%dZ" % second for second in range(20, 31)],
]
IDS = [
    b"",
    b"urn:uuid:00000000-0000-4000-8000-000000000001",
    b"urn:uuid:00000000-0000-4000-8000-000000000002",
    b"urn:x:3",
]
KEYS = [Keys(), Keys(canonical=False), Keys(url=False, canonical=False)]

conflicting = st.builds(
    Capture,
    digest=st.sampled_from([Digest("sha1", bytes(20)), Digest("md5", b"\2" * 16)]),
    spelling=st.just(CANONICAL),
    url=st.sampled_from([b"http://a.org/", b"http://www.a.org/", b"http://b.org/"]),
    date=st.sampled_from(DATES),
    evidence=st.sampled_from(list(Evidence)),
    status=st.just(200),
    mime=st.just(b""),
    size=st.sampled_from([-1, 5]),
    record_id=st.sampled_from(IDS),
    offset=st.sampled_from([-1, 0, 7]),
    etag=st.just(b""),
    last_modified=st.just(b""),
    also=st.just(()),
).flatmap(lambda item: st.sampled_from(PLACES).map(lambda place: item._replace(**place._asdict())))

Cells = list[tuple[bytes, bytes]]
Held = list[tuple[Digest, Capture]]


def rule_of(keys: Keys, keep: str = "earliest") -> MergeRule:
    return MergeRule(keys, keep == "latest", PLACES.__getitem__)


def place_of(item: Capture) -> ContainerRef:
    return ContainerRef(item.container, item.crawl)


def stage(captures: Iterable[Capture], keys: Keys) -> list[bytes]:
    staged = []
    for item in captures:
        marker = item.evidence == Evidence.REVISIT
        entry = (
            encode_revisit(item, read=was_read(item))
            if marker
            else encode(item, NUMBERS[place_of(item)])
        )
        staged.append(keys.key_of(item.digest, item.url) + entry)
    return sorted(staged)


def load(cells: Cells, captures: Iterable[Capture], rule: MergeRule) -> tuple[Cells, MergeOutcome]:
    """One load: stored and new entries, merged."""
    outcome = MergeOutcome()
    sources = [iter([stage(captures, rule.keys)]), staged_again(cells)]
    batches = settled(merge(sources), rule, outcome)
    return [cell for batch in batches for cell in batch], outcome


def held(cells: Cells) -> Held:
    """What an index of these cells would answer with."""
    return [
        (digest_of_key(key), decode(key, entry, PLACES.__getitem__))
        for key, cell in cells
        for entry in entries_of(cell)
        if answers(entry)
    ]


def handled(outcome: MergeOutcome) -> int:
    kept = outcome.added + outcome.replaced + outcome.unchanged
    return kept + outcome.chained + outcome.contradicted


def second(item: Capture) -> bytes:
    return digits_of_date(item.date)


def model(captures: Iterable[Capture], keys: Keys, keep: str) -> Held:
    """The captures that should be kept, by the documented rule."""
    groups: dict[tuple[bytes, bytes], list[Capture]] = defaultdict(list)
    since: dict[bytes, bytes] = {}
    read: dict[bytes, set[bytes]] = defaultdict(set)
    for item in captures:
        key = keys.key_of(item.digest, item.url)
        if item.evidence == Evidence.REVISIT:
            since[key] = min(since.get(key, b"9"), second(item))
            read[key] |= {second(item)} if was_read(item) else set()
        else:
            groups[key, item.url if keys.url else b""].append(item)
    found = []
    for (key, _), rivals in groups.items():
        rows = [item for item in rivals if item.evidence == Evidence.ROW]
        best = [_best(rows, key, keep)] if rows else []
        seconds = sorted(read[key])
        alive = [item for item in rivals if item.evidence == Evidence.RECORD]
        for row in best:
            last = seconds[MAX_READ - 1] if len(seconds) >= MAX_READ else b"9"
            if second(row) not in seconds and second(row) <= last:
                alive.append(row)
        claims = [
            item
            for item in rivals
            if item.evidence == Evidence.NAMED and second(item) < since.get(key, b"9")
        ]
        if keep == "earliest" or not alive:
            alive += claims
        if alive:
            claimed = all(item.evidence == Evidence.NAMED for item in alive)
            found.append(_best(alive, key, "earliest" if claimed else keep))
    return [(item.digest, item) for item in found]


def was_read(mark: Capture) -> bool:
    return mark.offset >= 0


def _best(alive: list[Capture], key: bytes, keep: str) -> Capture:
    end = max if keep == "latest" else min
    kept = end(map(second, alive))
    alive = [item for item in alive if second(item) == kept]
    best = min(item.evidence for item in alive)
    alive = [item for item in alive if item.evidence == best]
    date = end(item.date[:-1] for item in alive)
    alive = [item for item in alive if item.date[:-1] == date]
    return min(alive, key=lambda item: _last(item, key))


def _last(item: Capture, key: bytes) -> tuple[str, float, bytes, str]:
    offset = item.offset if item.offset >= 0 else float("inf")
    return item.container or "~", offset, encode(item, 0), item.crawl or "~"


def same(one: Held, other: Held) -> bool:
    return sorted(one) == sorted(other)


@pytest.mark.parametrize("keep", ["earliest", "latest"])
@given(st.lists(conflicting, max_size=12), st.sampled_from(KEYS))
def test_one_load_matches_the_model(keep: str, captures: list[Capture], keys: Keys) -> None:
    cells, outcome = load([], captures, rule_of(keys, keep))
    expected = model(captures, keys, keep)
    assert same(held(cells), expected)
    assert outcome.captures == len(expected)
    assert outcome.digests == len({digest for digest, _ in expected})
    originals = sum(item.evidence != Evidence.REVISIT for item in captures)
    counted = handled(outcome)
    assert (counted, outcome.added, outcome.replaced) == (originals, len(expected), 0)


@pytest.mark.parametrize("keep", ["earliest", "latest"])
@given(
    st.lists(conflicting, max_size=24),
    st.sampled_from(KEYS),
    st.lists(st.integers(0, 12), max_size=4),
)
def test_any_splitting_into_loads_matches_the_model(
    keep: str, captures: list[Capture], keys: Keys, cuts: list[int]
) -> None:
    cells: Cells = []
    places = [0, *sorted(cuts), len(captures)]
    for start, end in zip(places, places[1:], strict=False):
        part = captures[start:end]
        cells, outcome = load(cells, part, rule_of(keys, keep))
        counted = handled(outcome)
        assert counted == sum(item.evidence != Evidence.REVISIT for item in part)
        assert outcome.captures == len(held(cells))
    assert same(held(cells), model(captures, keys, keep))
    again, outcome = load(cells, captures, rule_of(keys, keep))
    assert again == cells
    assert (outcome.added, outcome.replaced) == (0, 0)


@pytest.mark.parametrize("keep", ["earliest", "latest"])
@given(st.lists(conflicting, min_size=2, max_size=2))
def test_entries_of_one_second_are_ordered_as_their_captures(
    keep: str, pair: list[Capture]
) -> None:
    """What is compared as bytes is compared as when both are decoded."""
    kind, rule = pair[0].evidence, rule_of(Keys(), keep)
    one, other = (
        item._replace(evidence=kind, date=item.date[:17] + b"17" + item.date[19:]) for item in pair
    )
    if kind == Evidence.REVISIT:
        return
    orders = [capture_order(item, latest=keep == "latest") for item in (one, other)]
    ties = [rule._tie_order(encode(item, NUMBERS[place_of(item)])) for item in (one, other)]
    if orders[0] != orders[1]:
        assert (ties[0] < ties[1]) == (orders[0] < orders[1])
    else:
        assert ties[0][:3] == ties[1][:3]


def test_a_claim_that_proves_to_be_a_chain_loses_to_a_read_record() -> None:
    """The row lost to an earlier claim; when that falls, the row must still be there."""
    rule = rule_of(Keys())
    claim = capture(day=2, evidence=Evidence.NAMED, container="")
    row = capture(day=3, evidence=Evidence.ROW, container="a")
    marker = capture(day=1, evidence=Evidence.REVISIT)
    cells, outcome = load([], [claim, row], rule)
    assert [item.date for _, item in held(cells)] == [claim.date]
    assert outcome.captures == 1
    cells, outcome = load(cells, [marker], rule)
    assert [item.date for _, item in held(cells)] == [row.date]
    assert outcome.captures == 1


@given(st.permutations([(day, kind) for day in range(1, 13) for kind in (1, 3)]), st.integers(1, 9))
def test_more_tombstones_than_are_kept_refute_the_same_in_any_order(
    items: list[tuple[int, int]], size: int
) -> None:
    """Of the rows the best is refuted, and with it all."""
    rule = rule_of(Keys(), "latest")
    captures = [capture(day=day, evidence=Evidence(kind), container="a") for day, kind in items]
    cells: Cells = []
    for start in range(0, len(captures), size):
        cells, _ = load(cells, captures[start : start + size], rule)
    assert held(cells) == []
    tombstones = [entry for _, cell in cells for entry in entries_of(cell) if entry[0] & 3 == 3]
    assert len(tombstones) == MAX_READ
    assert cells == load([], captures, rule)[0]


def test_a_row_of_a_revisit_refutes_no_other_row() -> None:
    """A crawler may fetch twice in a second; the records behind the rows were not read."""
    row = capture(evidence=Evidence.ROW, container="a")
    mark = capture(evidence=Evidence.REVISIT, offset=-1)
    cells, outcome = load([], [row, mark], rule_of(Keys()))
    assert (len(held(cells)), outcome.contradicted) == (1, 0)


def test_a_further_digest_counts_as_held_but_not_as_added() -> None:
    keys = Keys()
    item = capture(container="a", also=(Digest("sha256", bytes(32)),))
    staged = [keys.key_of(item.also[0], item.url) + encode(item, 1, also=True)]
    outcome = MergeOutcome()
    cells = sum(settled(iter([staged]), rule_of(keys), outcome), [])
    assert (outcome.added, outcome.captures, outcome.digests) == (0, 1, 1)
    assert held(cells) == [(item.also[0], item._replace(also=()))]


def test_entries_of_dropped_containers_are_removed_and_tombstones_kept() -> None:
    keys = Keys()
    marker = capture(3, evidence=Evidence.REVISIT)
    captures = [capture(1, container="a"), capture(2, container="b"), marker]
    cells, _ = load([], captures, rule_of(keys))
    rule = rule_of(keys)
    left = sum(settled(staged_again(cells), replace(rule, gone={1}), MergeOutcome()), [])
    assert [item.container for _, item in held(left)] == ["b"]
    assert len(left) == 2


def test_what_comes_in_place_of_a_dropped_entry_is_not_new_to_the_index() -> None:
    keys = Keys()
    cells, _ = load([], [capture(1, container="a"), capture(2, container="a")], rule_of(keys))
    again = [capture(1, container="b"), capture(3, container="b")]
    rule, outcome = replace(rule_of(keys), gone={1}), MergeOutcome()
    batches = settled(merge([iter([stage(again, keys)]), staged_again(cells)]), rule, outcome)
    left = held(sum(batches, []))
    assert [item.container for _, item in left] == ["b", "b"]
    assert (outcome.added, outcome.replaced, outcome.unchanged) == (1, 0, 1)
    assert (outcome.captures, outcome.digests) == (2, 2)


def test_what_wins_only_by_the_name_of_its_file_is_counted_as_such() -> None:
    rule = rule_of(Keys())
    cells, _ = load([], [capture(1, container="b"), capture(2, container="b")], rule)
    equal, earlier = capture(1, container="a"), capture(2, container="a")
    earlier = earlier._replace(date=b"2001-01-01T00:00:00Z")
    cells, outcome = load(cells, [equal, earlier], rule)
    assert [item.container for _, item in held(cells)] == ["a", "a"]
    assert (outcome.replaced, outcome.replaced_by_name) == (2, 1)
    _, outcome = load(cells, [capture(1, container="b"), earlier], rule)  # once more
    assert (outcome.replaced, outcome.replaced_by_name, outcome.unchanged) == (0, 0, 2)
