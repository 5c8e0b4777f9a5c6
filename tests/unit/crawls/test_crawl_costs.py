"""Costs of refreshing crawls and of lookups in them; no capture is missed in between."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from io import BytesIO
from pathlib import Path
from typing import Any

import orjson
import pytest

from dedupindex.cli import lookup as cli
from dedupindex.crawls import combined_view, crawl_captures, merge_crawls
from dedupindex.crawls import crawl_captures as claims
from dedupindex.crawls.combined_view import CombinedView, visible_crawls
from dedupindex.crawls.crawl import Crawl, Visibility
from dedupindex.crawls.store import Store
from dedupindex.crawls.stores import lmdb_crawl_store
from dedupindex.crawls.stores.lmdb_crawl_state import LmdbWriting
from dedupindex.crawls.stores.lmdb_crawl_store import LmdbStore
from dedupindex.errors import CrawlEnded, Damaged, IndexUnavailable
from dedupindex.index import open_index
from dedupindex.index.format.cells import sealed
from dedupindex.post_crawl.purge.remove import purge
from dedupindex.post_crawl.purge.target import Target, TargetKind
from tests.conftest import MakeIndex
from tests.support.captures import capture, sha1
from tests.unit.crawls.test_crawls import SETTINGS, begin, cancel, commit, found, put


@pytest.fixture
def index(make_index: MakeIndex) -> Path:
    return make_index([capture(90)])


@pytest.fixture
def store(index: Path) -> Iterator[Store]:
    with closing(LmdbStore(index)) as opened:
        yield opened


def held(store: Store) -> int:
    with store.reading() as reading:
        return int(reading.txn.stat(reading.trees.captures)["entries"])


def test_captures_are_read_and_dropped_in_batches(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        begin(store, name)
        put(store, name, *(capture(number) for number in range(25)))
    cancel(store)
    with store.reading() as reading:
        crawl = reading.crawl("a")
    with monkeypatch.context() as patched:
        patched.setattr(lmdb_crawl_store, "CELLS_PER_READ", 7)
        steps = list(store.keys_of(crawl))
        assert sum(map(len, store.batches())) == 50
    assert len(steps) == 8 and sum(map(len, steps)) == 25
    assert max(map(len, steps)) <= 4  # half of what was looked at
    drop, done = LmdbWriting.drop_cells, list[int]()

    def dying(writing: Any, crawl: Any, keys: list[bytes]) -> None:
        if len(done) == 2:
            raise IndexUnavailable("killed")
        done.append(len(keys))
        drop(writing, crawl, keys)

    monkeypatch.setattr(merge_crawls, "DROPPED_AT_ONCE", 10)
    with monkeypatch.context() as patched, pytest.raises(IndexUnavailable):
        patched.setattr(LmdbWriting, "drop_cells", dying)
        merge_crawls.sweep(store, 0.0, {})
    with store.reading() as reading:
        assert not reading.crawl("a").swept
    assert done == [10, 10] and held(store) == 30
    merge_crawls.sweep(store, 0.0, {})
    with store.reading() as reading:
        assert reading.crawl("a").swept and held(store) == 25
        assert not reading.crawl("b").swept


def flip(store: Store, number: int) -> None:
    """Flip a bit in a capture of the first crawl."""
    with store.writing() as writing:
        assert isinstance(writing, LmdbWriting)
        place = SETTINGS.keys().key_of(sha1(number), capture().url) + (1).to_bytes(4, "big")
        stored = bytearray(writing.txn.get(place, db=writing.trees.captures))
        stored[9] ^= 1
        writing.txn.put(place, bytes(stored), db=writing.trees.captures)


def test_a_committed_crawl_with_a_damaged_cell_can_be_dropped(index: Path) -> None:
    with closing(LmdbStore(index)) as store:
        for name in "ab":
            begin(store, name)
            put(store, name, *(capture(number) for number in range(5)))
            commit(store, name)
        flip(store, 3)
        with pytest.raises(Damaged):  # and so is every merge, also of the other one
            merge_crawls.merge(index, store)
    assert purge(index, Target(TargetKind.CRAWL, ("a",)), force=True).live == 5
    with closing(LmdbStore(index)) as store:
        outcome = merge_crawls.merge(index, store)
        assert outcome is not None and outcome.added == 5 and store.check() == []


def test_crawls_with_a_damaged_cell_are_swept(store: Store) -> None:
    for name in "abc":
        begin(store, name)
        put(store, name, *(capture(number) for number in range(5)))
    for name in "ac":
        cancel(store, name)
    flip(store, 3)
    assert len(store.check()) == 1
    merge_crawls.sweep(store, 0.0, {})
    with store.reading() as reading:
        assert [reading.crawl(name).swept for name in "abc"] == [True, False, True]
    assert held(store) == 5 and store.check() == []


def test_a_value_of_another_tree_is_reported_as_damage(store: Store) -> None:
    """As where a bit flips in the page that says where each tree begins."""
    begin(store, "a")
    with store.writing() as writing:
        assert isinstance(writing, LmdbWriting)
        key, trees, txn = (1).to_bytes(4, "big"), writing.trees, writing.txn
        values = {tree: bytes(txn.get(key, db=tree)) for tree in (trees.crawls, trees.counts)}
        txn.put(key, values[trees.counts], db=trees.crawls)
        txn.put(key, values[trees.crawls], db=trees.counts)
        long = b"x" * 9
        txn.put(b"a", sealed(b"a", long), db=trees.numbers)
    with store.reading() as reading:
        for ask in (lambda: list(reading.crawls()), lambda: reading.counts(Crawl(1, "a", ""))):
            with pytest.raises(Damaged):
                ask()
    assert len(store.check()) == 2


def test_a_damaged_key_never_assigns_a_crawl_number_twice(store: Store) -> None:
    for name in "abc":
        begin(store, name)
    with store.writing() as writing:
        stored = writing.txn.pop((3).to_bytes(4, "big"), db=writing.trees.crawls)
        assert writing.txn.delete((2).to_bytes(4, "big"), db=writing.trees.crawls)
        writing.txn.put((2).to_bytes(4, "big"), stored, db=writing.trees.crawls)
    with pytest.raises(Damaged):
        begin(store, "d")


def test_swept_crawls_are_not_searched(index: Path, store: Store) -> None:
    begin(store)
    put(store, "a", capture(1))
    commit(store)
    with store.reading() as reading:
        assert visible_crawls(list(reading.crawls()))
    merge_crawls.merge(index, store)
    seen: dict[int, float] = {}
    merge_crawls.sweep(store, 0.0, seen)
    merge_crawls.sweep(store, merge_crawls.KEPT + 1, seen)
    with store.reading() as reading:
        assert not visible_crawls(list(reading.crawls()), "a")
    assert found(index, store, 1) == [capture(1, crawl="a")]


def test_hidden_captures_do_not_count_towards_the_limit(index: Path, store: Store) -> None:
    urls = [b"http://example.com/%d" % number for number in range(60)]
    begin(store, "own")
    begin(store, "shared", seen=Visibility.ALL)
    put(store, "own", *(capture(1, url) for url in urls))
    put(store, "shared", *(capture(1, url) for url in urls[:5]))
    with closing(open_index(index)) as engine, engine.view() as base, store.reading() as reading:
        both = CombinedView(base, reading, visible_crawls(list(reading.crawls())), SETTINGS.keys())
        assert len(both.any(sha1(1), 3)) == 3
        assert len(both.any(sha1(1), 100)) == 5


def test_the_number_of_skipped_hidden_captures_is_limited(
    index: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(store, "own")
    begin(store, "shared", seen=Visibility.ALL)
    put(store, "own", *(capture(1, b"http://example.com/%d" % number) for number in range(60)))
    put(store, "shared", *(capture(1, b"http://b.example/%d" % number) for number in range(60)))
    passed = list[Any]()

    def counted(*given: Any) -> Iterator[Any]:
        for one in crawl_captures.with_prefix(*given):
            passed.append(one)
            yield one

    monkeypatch.setattr(combined_view, "with_prefix", counted)
    monkeypatch.setattr(combined_view, "MAX_HIDDEN", 30)
    with closing(open_index(index)) as engine, engine.view() as base, store.reading() as reading:
        own = visible_crawls([reading.crawl("own")])  # which nobody else sees
        assert CombinedView(base, reading, own, SETTINGS.keys()).any(sha1(1), 10) == []
    assert len(passed) <= 31


def test_a_claim_ends_with_its_crawl(store: Store) -> None:
    for name in "abc":
        begin(store, name)
    token = bytes(range(16))
    with store.writing() as writing:
        a, b = writing.crawl("a"), writing.crawl("b")
        first, mine = claims.claim(writing, a, sha1(1), 1000, 60, token)
        assert mine and first.token == token.hex()
        assert claims.claim(writing, a, sha1(1), 2000, 60, token) == (first, True)
        assert claims.claim(writing, b, sha1(1), 2000, 60, token) == (first, False)
        assert claims.claim(writing, a, sha1(1), 2000, 60) == (first, False)
        assert claims.claim(writing, b, sha1(2), 1000, 60)[1]
    cancel(store, "a")
    commit(store, "b")
    with store.writing() as writing:
        for name in "ab":
            with pytest.raises(CrawlEnded):
                claims.claim(writing, writing.crawl(name), sha1(3), 1000, 60)
        for number in (1, 2):
            assert claims.claim(writing, writing.crawl("c"), sha1(number), 2000, 60)[1]


class _Pipe(BytesIO):
    """A stream whose lines are made when they are read."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        super().__init__()
        self._lines = lines

    def __next__(self) -> bytes:
        return next(self._lines)


def test_a_command_line_batch_finds_captures_that_are_merged_meanwhile(
    index: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    with closing(LmdbStore(index)) as store:
        begin(store)
        put(store, "a", capture(1))
        commit(store)
    question = orjson.dumps({"digest": str(sha1(1))}) + b"\n"

    def lines() -> Iterator[bytes]:
        for _ in range(cli._CHUNK):
            yield question
        with closing(LmdbStore(index)) as store:
            merge_crawls.merge(index, store)
            seen: dict[int, float] = {}
            merge_crawls.sweep(store, 0.0, seen)
            merge_crawls.sweep(store, merge_crawls.KEPT + 1, seen)
            assert held(store) == 0
        yield question

    assert cli._lookups(index, {}, _Pipe(lines())) == 0
    answers = [orjson.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert len(answers) == cli._CHUNK + 1 and all(one["duplicate"] for one in answers)


def test_an_empty_batch_still_needs_an_index(tmp_path: Path) -> None:
    with pytest.raises(IndexUnavailable):
        cli._lookups(tmp_path / "none", {}, BytesIO())
