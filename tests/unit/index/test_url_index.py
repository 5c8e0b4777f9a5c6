"""Captures by URL alone: the same as reading all captures and keeping those of the URL."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupindex.capture import Capture, Covers, Evidence
from dedupindex.cli import main
from dedupindex.crawls.combined_view import CombinedView, visible_crawls
from dedupindex.crawls.crawl import Visibility
from dedupindex.crawls.crawl_captures import add
from dedupindex.crawls.lifecycle import begin, cancel, commit
from dedupindex.crawls.merge_crawls import merge, sweep
from dedupindex.crawls.store import FILE, Store
from dedupindex.crawls.stores.lmdb_crawl_state import LmdbWriting
from dedupindex.crawls.stores.lmdb_crawl_store import LmdbStore
from dedupindex.digest import Digest
from dedupindex.errors import StrategyUnavailable
from dedupindex.index import open_index
from dedupindex.index.engine import IndexedContainer, View
from dedupindex.index.engines.lmdb.lmdb_engine import IndexTrees
from dedupindex.index.format import url_index
from dedupindex.index.format.cells import sealed
from dedupindex.index.identity import Settings, read_identity
from dedupindex.indexer.admission import admission_filter
from dedupindex.urlkey import urlkey
from tests.conftest import MakeIndex
from tests.support.budgets import examples
from tests.support.captures import capture, sha1
from tests.support.engine_bench import Bench

A, WWW, UPPER, B = (
    b"http://example.com/a",
    b"https://www.example.com/a",
    b"http://example.com/A",
    b"http://other.org/b",
)
URLS = [A, WWW, UPPER, B, b"http://\xff/", b"http://example.com/a b"]
BY_URL = Settings(by_url=True)


def bench_in(directory: Path, chosen: Settings = BY_URL, engine: str = "lmdb") -> Bench:
    return Bench(directory, engine, chosen)


def agrees(view: View, canonical: bool = True) -> None:
    """The lists of a view are what a pass over all captures finds."""
    held = {one for digest, one in view.captures() if one.digest == digest}
    for url in URLS:
        found = list(view.at_url(url))
        assert len(found) == len(set(found))
        assert set(found) == {one for one in held if one.url == url}
        if canonical:
            found = list(view.at_urlkey(urlkey(url)))
            assert len(found) == len(set(found))
            assert set(found) == {one for one in held if urlkey(one.url) == urlkey(url)}


some = st.lists(
    st.builds(
        lambda number, url, day, container: capture(number, url, day, container=container),
        st.integers(1, 6),
        st.sampled_from(URLS),
        st.integers(1, 9),
        st.sampled_from(["a.warc.gz", "b.warc.gz"]),
    ),
    max_size=12,
)


@given(
    st.lists(some, min_size=1, max_size=4),
    st.sets(st.sampled_from(["a.warc.gz", "b.warc.gz"])),
    st.booleans(),
)
@settings(max_examples=examples(25))
def test_lists_are_right_after_any_loads(
    loads: list[list[Capture]], dropped: Iterable[str], canonical: bool
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        bench = bench_in(Path(directory), Settings(by_url=True, canonical=canonical))
        for load in loads:
            bench.load(load)
            with bench.view() as view:
                agrees(view, canonical)
        bench.load([capture(9, A)], dropped=dropped)
        with bench.open(write=True) as engine, engine.view() as view:
            agrees(view, canonical)
            assert engine.check() == []
        with bench.open(write=True) as engine:
            engine.compact()
            with engine.view() as view:
                agrees(view, canonical)
            assert engine.check() == []
            target = Path(directory) / "copy"
            target.mkdir()
            engine.copy(target)
        with closing(open_index(target)) as engine, engine.view() as view:
            agrees(view, canonical)
        assert not (bench.index / url_index.SCRATCH).exists()


def test_small_loads_list_too(tmp_path: Path) -> None:
    bench = bench_in(tmp_path)
    bench.load(capture(number, b"http://h.org/%d" % number) for number in range(3000))
    generation = read_identity(bench.index).generation
    bench.load([capture(5, A), capture(5, A, 2), capture(6, A)])
    assert read_identity(bench.index).generation == generation
    with bench.view() as view:
        agrees(view)
        assert {one.digest for one in view.at_url(A)} == {sha1(5), sha1(6)}
        assert [one.digest for one in view.at_url(b"http://h.org/7")] == [sha1(7)]


def test_a_capture_under_further_digests_is_listed_once(tmp_path: Path) -> None:
    bench = bench_in(tmp_path)
    further = (Digest("sha256", bytes(32)), Digest("blake3", bytes(32)))
    item = capture(1, A, also=further)
    bench.load([item, capture(2, A)._replace(digest=Digest("sha256", b"1" * 32))])
    with bench.view() as view:
        assert [one.digest for one in view.at_url(A)] == [sha1(1), Digest("sha256", b"1" * 32)]


def test_digests_with_the_same_beginning_are_not_mixed_up(tmp_path: Path) -> None:
    bench = bench_in(tmp_path)
    similar = [Digest("sha1", b"same" + bytes([number]) * 16) for number in range(5)]
    bench.load([capture(1, A)._replace(digest=one) for one in similar])
    bench.load([capture(1, B)._replace(digest=similar[2])])
    with bench.view() as view:
        assert [one.digest for one in view.at_url(A)] == similar
        assert [one.digest for one in view.at_url(B)] == [similar[2]]


def test_tombstones_and_refused_claims_are_not_listed(tmp_path: Path) -> None:
    bench = bench_in(tmp_path)
    bench.load([capture(1, A, 2, evidence=Evidence.NAMED), capture(2, B)])
    bench.load([capture(1, A, 1, evidence=Evidence.REVISIT)])
    with bench.view() as view:
        agrees(view)
        assert list(view.at_url(A)) == []
    with bench.open() as engine:
        assert engine.check() == []


def test_check_finds_unlisted_captures(tmp_path: Path) -> None:
    bench = bench_in(tmp_path)
    bench.load([capture(1, A), capture(2, B)])
    path = next(bench.index.glob("data-*.mdb"))
    with lmdb.open(str(path), subdir=False, max_dbs=5) as env:
        trees = IndexTrees.open(env, by_url=True)
        with env.begin(write=True) as txn:
            with txn.cursor(db=trees.urls) as cursor:
                assert cursor.first() and cursor.delete()
            trees.put(txn, "transaction", txn.id())
    with bench.open() as engine:
        assert [one for one in engine.check() if "not listed by its URL" in one]


@pytest.mark.parametrize("key", [b"#\0\0\0\1", b"\2#", b"\0" + bytes(29)])
def test_a_key_of_another_tree_is_damage(tmp_path: Path, key: bytes) -> None:
    """As where a bit flipped in a page that leads to others: its values have right checksums."""
    bench = bench_in(tmp_path)
    bench.load([capture(1, A), capture(2, B)])
    path = next(bench.index.glob("data-*.mdb"))
    with lmdb.open(str(path), subdir=False, max_dbs=5) as env:
        trees = IndexTrees.open(env, by_url=True)
        with env.begin(write=True) as txn:
            txn.put(key, sealed(key, b"a.warc.gz"), db=trees.captures)
            trees.put(txn, "transaction", txn.id())
    with bench.open() as engine:
        assert engine.check()
    assert main(["impact", str(bench.index), "--crawl", "x"]) == 7


@pytest.mark.parametrize(
    ("engine", "chosen"),
    [("lmdb", Settings()), ("whoosh", Settings()), ("lmdb", Settings(url_index=False))],
)
def test_without_a_list_by_url_a_query_is_an_error(
    tmp_path: Path, engine: str, chosen: Settings
) -> None:
    bench = bench_in(tmp_path, chosen, engine)
    bench.load([capture(1, A)])
    with bench.view() as view:
        for ask in (lambda: view.at_url(A), lambda: view.at_urlkey(urlkey(A))):
            with pytest.raises(StrategyUnavailable, match="--by-url|lmdb"):
                list(ask())


def test_a_list_without_canonical_urls_answers_exact_queries_only(tmp_path: Path) -> None:
    bench = bench_in(tmp_path, Settings(by_url=True, canonical=False))
    bench.load([capture(1, A)])
    with bench.view() as view:
        assert len(list(view.at_url(A))) == 1
        with pytest.raises(StrategyUnavailable, match="no-canonicalized"):
            list(view.at_urlkey(urlkey(A)))


def test_the_list_costs_eleven_bytes_a_capture(tmp_path: Path) -> None:
    sizes = {}
    for by_url in (False, True):
        bench = bench_in(tmp_path / str(by_url), Settings(by_url=by_url))
        items = (capture(n, b"http://h%d.org/p/%d" % (n % 97, n)) for n in range(40_000))
        bench.load(items, [IndexedContainer("/warcs/1.warc.gz", 1, "00", 1)])
        sizes[by_url] = next(bench.index.glob("data-*.mdb")).stat().st_size
    assert (sizes[True] - sizes[False]) / 40_000 < 11


# --- and of crawls -------------------------------------------------------------------------------


def test_a_query_reads_a_limited_number_of_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what is found all is true; the neighbours' captures do not count."""
    bench = bench_in(tmp_path)
    held = [capture(number, A, 1 + number % 28) for number in range(1, 30)]
    bench.load([*held, *(capture(number, B) for number in range(1, 30))])
    monkeypatch.setattr(url_index, "LOOKED_AT", 10)
    with bench.view() as view:
        found = list(view.at_url(A))
        assert len(set(found)) == len(found) == 10 and set(found) <= set(held)
        assert len(list(view.at_urlkey(urlkey(A)))) == 10
        assert len(view.exact(sha1(29), A)) == 1
    with closing(LmdbStore(bench.index)) as store:
        with store.writing() as writing:
            begin(writing, "one", seen=Visibility.OWN, covers=Covers.STORED)
        report(store, "one", *(capture(number, A) for number in range(40, 70)))
        assert len(listed(bench.index, store, A, "one")) == 10 + 10


def listed(index: Path, store: Store, url: bytes, asker: str = "") -> list[Capture]:
    keys = read_identity(index).settings.keys()
    with (
        closing(open_index(index)) as engine,
        engine.view() as base,
        store.reading() as reading,
    ):
        view = CombinedView(base, reading, visible_crawls(list(reading.crawls()), asker), keys)
        found = sorted(view.at_url(url))
        assert found == sorted(one for one in view.at_urlkey(urlkey(url)) if one.url == url)
        return found


def report(store: Store, name: str, *captures: Capture) -> None:
    judge = admission_filter(BY_URL)
    store.write(lambda writing: add(writing, writing.crawl(name), captures, BY_URL, judge))


def test_check_finds_unlisted_captures_of_crawls(make_index: MakeIndex) -> None:
    """As after a flipped bit: the list by URL has no checksums."""
    index = make_index([], BY_URL)
    with closing(LmdbStore(index)) as store:
        with store.writing() as writing:
            begin(writing, "own", seen=Visibility.OWN, covers=Covers.STORED)
        report(store, "own", capture(1, A), capture(2, B))
        assert store.check() == []
        with store.writing() as writing:
            assert isinstance(writing, LmdbWriting)
            with writing.txn.cursor(db=writing.trees.urls) as cursor:
                assert cursor.first() and cursor.delete()
        assert [one for one in store.check() if "not listed by its URL" in one]


def test_lists_of_crawls_depend_on_permissions(make_index: MakeIndex) -> None:
    index = make_index([capture(1, A)], BY_URL)
    with closing(LmdbStore(index)) as store:
        with store.writing() as writing:
            for name, seen in (("own", Visibility.OWN), ("shared", Visibility.ALL)):
                begin(writing, name, seen=seen, covers=Covers.STORED)
        report(store, "own", capture(2, A), capture(1, A), capture(2, B))
        report(store, "shared", capture(3, A), capture(1, A))
        digests = [[one.digest for one in listed(index, store, A, who)] for who in ("", "own")]
        assert digests == [sorted(map(sha1, (1, 3))), sorted(map(sha1, (1, 2, 3)))]
        with store.writing() as writing:
            commit(writing, "own")
            cancel(writing, "shared")
        assert [one.digest for one in listed(index, store, A)] == sorted(map(sha1, (1, 2)))
        assert merge(index, store)
        both = listed(index, store, A)
        assert [one.digest for one in both] == sorted(map(sha1, (1, 2)))
        merged: dict[int, float] = {}
        sweep(store, 0.0, merged)
        sweep(store, 100.0, merged)
        assert [one._replace(covers=Covers.UNKNOWN) for one in listed(index, store, A)] == [
            one._replace(covers=Covers.UNKNOWN) for one in both
        ]
        with store.reading() as reading:
            assert reading.txn.stat(reading.trees.urls)["entries"] == 0
    with closing(open_index(index)) as engine:
        assert engine.check() == []
    assert (index / FILE).exists()


def test_a_copy_of_a_long_list(make_index: MakeIndex, tmp_path: Path) -> None:
    """LMDB's own compacting copy crashes on it."""
    index = make_index(
        [capture(number, b"http://h.org/") for number in range(2000)], Settings(by_url=True)
    )
    target = tmp_path / "copy"
    target.mkdir()
    with closing(open_index(index)) as engine:
        engine.copy(target)
    with closing(open_index(target)) as engine:
        assert engine.check() == []
