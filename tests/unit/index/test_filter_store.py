"""`index.filter_store`: whatever is loaded, killed or purged, the filter has what the index has."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dedupindex.capture import Capture, Evidence
from dedupindex.digest import Digest
from dedupindex.digest_filter import KnownKey, Part
from dedupindex.errors import BadInput, Damaged, IndexUnavailable
from dedupindex.index import filter_store
from dedupindex.index.engine import Engine
from dedupindex.index.filter_store import FACTOR, SMALL, FilterStore
from dedupindex.runtime.files import exclusive
from tests.support.budgets import examples
from tests.support.captures import capture, captures, digests, sha1
from tests.support.commands import typed
from tests.support.engine_bench import Bench

stored = st.builds(
    lambda item, also: item._replace(also=tuple(also)), captures, st.lists(digests(), max_size=2)
)
engines = pytest.mark.parametrize("engine", ["lmdb", "whoosh"])


def some(numbers: Iterable[int]) -> list[Capture]:
    return [capture(number, b"http://example.com/%d" % number) for number in numbers]


def make(tmp_path: Path, engine: str, first: Iterable[Capture] = ()) -> tuple[Bench, FilterStore]:
    """An index with some captures and a filter."""
    bench = Bench(tmp_path / "bench", engine)
    bench.load(first)
    make_filter(bench)
    return bench, FilterStore(bench.index)


def make_filter(bench: Bench) -> None:
    with bench.open(write=True) as engine:
        engine.make_filter()


def parts_of(store: FilterStore) -> list[Part]:
    return [Part.open(store.path_of(part.id), part.id) for part in store.manifest().parts]


def lacks(store: FilterStore, bench: Bench) -> list[Digest]:
    """The digests of the index that no part has: none, whatever happened."""
    parts = parts_of(store)
    held = {digest for digest, _ in bench.held()}
    return [one for one in held if not any(part.may_have(KnownKey.of(*one)) for part in parts)]


def held_by(store: FilterStore) -> int:
    return sum(part.digests for part in store.manifest().parts)


@engines
def test_a_filter_has_what_is_loaded_before_and_after(tmp_path: Path, engine: str) -> None:
    bench, store = make(tmp_path, engine, some(range(500)))
    assert store.problems() == [] and held_by(store) == 500 and not lacks(store, bench)
    before = store.manifest()
    bench.load(some(range(400, 700)))  # of which a hundred are known
    after = store.manifest()
    assert held_by(store) == 700 and not lacks(store, bench) and len(after.parts) == 1
    assert after.parts[0].generation > before.parts[0].generation
    assert after.state not in (None, before.state)
    bench.load(some(range(300, 500)))  # nothing new
    assert store.manifest().parts == after.parts
    names = {path.name for path in store.directory.iterdir()}
    assert names == {"manifest.json", *(f"{after.parts[0].id}.{kind}" for kind in ("part", "keys"))}


@engines
def test_an_index_without_a_filter_gets_none(tmp_path: Path, engine: str) -> None:
    bench = Bench(tmp_path / "bench", engine)
    bench.load(some(range(10)))
    assert not FilterStore(bench.index).directory.exists()
    assert FilterStore(bench.index).problems() == []


@settings(
    max_examples=examples(15),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(loads=st.lists(st.lists(stored, min_size=1, max_size=12), min_size=1, max_size=4))
def test_any_loads_are_in_the_filter(
    tmp_path_factory: pytest.TempPathFactory, loads: list[list[Capture]]
) -> None:
    bench, store = make(tmp_path_factory.mktemp("any"), "lmdb", loads[0])
    for load in loads[1:]:
        bench.load(load)
        assert not lacks(store, bench) and store.problems() == []
    digests = {
        digest.raw[:8] for load in loads for item in load for digest in (item.digest, *item.also)
    }
    assert held_by(store) <= len(digests)


def test_small_parts_are_merged_and_large_ones_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filter_store, "SMALL", 16)
    bench, store = make(tmp_path, "lmdb", some(range(2000)))
    large, rng, last = store.manifest().parts[0], random.Random(3), 2000
    for _ in range(60):
        first, last = last, last + rng.randrange(1, 12)
        bench.load(some(range(first, last)))
        sizes = sorted(part.digests for part in store.manifest().parts)
        assert len(sizes) <= 6 and not lacks(store, bench)
        assert all(small * FACTOR < great for small, great in zip(sizes, sizes[1:], strict=False))
    assert large in store.manifest().parts and held_by(store) == last
    assert SMALL == 1 << 16  # the largest filter that is always merged: 100 kB


@engines
def test_a_load_that_fails_leaves_digests_that_are_asked_for_in_vain(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, store = make(tmp_path, engine, some(range(100)))

    def fail(*_: object) -> None:
        raise IndexUnavailable("no room")

    with bench.open(write=True) as opened:
        monkeypatch.setattr(type(opened), "_load", fail)
    with pytest.raises(IndexUnavailable):
        bench.load(some(range(100, 200)))
    monkeypatch.undo()
    assert held_by(store) == 200 and store.manifest().state is None
    bench.load(some(range(150, 300)))
    assert held_by(store) == 300 and not lacks(store, bench)
    assert store.manifest().state is not None


def test_a_load_whose_state_cannot_be_recorded_is_done_nevertheless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, store = make(tmp_path, "lmdb", some(range(10)))

    def fail(*_: object) -> None:
        raise IndexUnavailable("no room")

    monkeypatch.setattr(FilterStore, "commit", fail)
    bench.load(some(range(10, 20)))
    monkeypatch.undo()
    assert len(bench.held()) == 20 and not lacks(store, bench) and store.manifest().state is None
    bench.load(some(range(20, 30)))
    assert not lacks(store, bench) and store.manifest().state is not None


@engines
def test_a_load_by_a_version_without_filters_is_noticed_by_the_next(
    tmp_path: Path, engine: str
) -> None:
    bench, store = make(tmp_path, engine, some(range(50)))
    store.directory.rename(tmp_path / "hidden")
    bench.load(some(range(50, 90)))
    (tmp_path / "hidden").rename(store.directory)
    assert lacks(store, bench)
    bench.load(some(range(90, 100)))
    assert not lacks(store, bench) and held_by(store) == 100


@pytest.mark.parametrize("kind", ["part", "keys", "json"])
@pytest.mark.parametrize("how", ["flipped", "cut", "gone"])
def test_a_damaged_filter_is_reported_and_made_anew(tmp_path: Path, kind: str, how: str) -> None:
    bench, store = make(tmp_path, "lmdb", some(range(50)))
    (path,) = store.directory.glob(f"*.{kind}")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x41
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(data if how == "flipped" else data[:-9])
    gone = kind == "json" and how == "gone"  # then there is no filter
    assert bool(store.problems()) != gone
    bench.load(some(range(50, 60)))
    assert store.problems() == []
    if not gone:
        assert held_by(store) == 60 and not lacks(store, bench)
        make_filter(bench)
        assert store.problems() == [] and held_by(store) == 60


@engines
def test_a_load_that_is_killed_denies_nothing(tmp_path: Path, engine: str) -> None:
    bench, store = make(tmp_path, engine, some(range(300)))
    seconds, first = bench.seconds_of(some(range(300, 2300))), 2300
    for share in (0.1, 0.3, 0.5, 0.7, 0.9):
        last = first + 2000
        while bench.load_elsewhere(some(range(first, last)), delay=seconds * share):
            first, last, share = last, last + 2000, share * 0.7  # it had ended before
        assert store.problems() == [] and not lacks(store, bench)
        first = last
    bench.load(some(range(first, first + 10)))
    assert not lacks(store, bench)
    assert not list(store.directory.glob(".new-*"))  # what killed loads have left


def test_a_cluster_has_none() -> None:
    with pytest.raises(BadInput, match="cluster"):
        Engine.make_filter(None)  # type: ignore[arg-type]


def test_the_digest_of_a_purged_capture_may_stay(tmp_path: Path) -> None:
    bench, store = make(tmp_path, "lmdb", some(range(20)))
    with exclusive(bench.index / "lock", "the index"):
        bench.load([], dropped=["/warcs/1.warc.gz"])
    assert bench.held() == [] or held_by(store) == 20
    key = KnownKey.of(*sha1(3))
    assert any(part.may_have(key) for part in parts_of(store))
    make_filter(bench)
    assert held_by(store) <= 20


@engines
def test_a_filter_has_the_digests_that_are_counted(tmp_path: Path, engine: str) -> None:
    """Not those that only revisits and purged captures have; loads add them when they answer."""
    bench, store = make(tmp_path, engine, some(range(20)))
    revisit = capture(30, b"http://example.com/30")._replace(evidence=Evidence.REVISIT)
    bench.load([revisit])
    typed("purge", bench.index, "--url", "http://example.com/3")
    make_filter(bench)
    with bench.open() as opened, opened.view() as view:
        assert held_by(store) == view.counts().digests == 19
    bench.load(some([30]))
    assert held_by(store) == 20 and not lacks(store, bench)


def test_a_part_that_is_not_there_is_damage(tmp_path: Path) -> None:
    _, store = make(tmp_path, "lmdb", some(range(5)))
    store.path_of(store.manifest().parts[0].id).unlink()
    with pytest.raises(Damaged):
        store.extend([])
