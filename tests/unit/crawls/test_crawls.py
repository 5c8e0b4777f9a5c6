"""Crawls as transactions: visibility, against a simple model; claims; merging; kills."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from dedupindex.capture import Capture, Covers, Uncommitted
from dedupindex.cli.common import NOTHING_FOUND
from dedupindex.crawls import crawl_captures, lifecycle, merge_crawls
from dedupindex.crawls.combined_view import CombinedView, visible_crawls
from dedupindex.crawls.crawl import Claim, Crawl, CrawlState, Visibility
from dedupindex.crawls.crawl_captures import Added, add
from dedupindex.crawls.store import Reading, Store, Writing
from dedupindex.crawls.stores import cassandra_crawl_registry, make_store
from dedupindex.crawls.stores.lmdb_crawl_state import LmdbWriting
from dedupindex.crawls.stores.lmdb_crawl_store import GroupWriter, LmdbStore
from dedupindex.digest import Digest
from dedupindex.errors import (
    BadInput,
    CrawlEnded,
    CrawlExists,
    IndexBusy,
    IndexUnavailable,
    UnknownCrawl,
)
from dedupindex.index import open_index
from dedupindex.index.format.cells import digest_prefix
from dedupindex.index.identity import Settings
from dedupindex.indexer.admission import admission_filter
from dedupindex.runtime.files import exclusive
from tests.conftest import STORES, MakeIndex, of_files
from tests.support.budgets import examples
from tests.support.captures import capture, sha1
from tests.unit.cli.test_cli import dedupindex

SETTINGS = Settings()
JUDGE = admission_filter(SETTINGS)


@pytest.fixture
def index(make_index: MakeIndex, engine: str) -> Path:
    return make_index([capture(90)], engine=engine)


@pytest.fixture
def store(index: Path) -> Iterator[Store]:
    with closing(make_store(index)) as opened:
        yield opened


def begin(store: Store, name: str = "a", **how: Any) -> None:
    with store.writing() as writing:
        lifecycle.begin(writing, name, **how)


def put(store: Store, name: str, *captures: Capture) -> Added:
    with store.writing() as writing:
        return add(writing, writing.crawl(name), captures, SETTINGS, JUDGE)


def commit(store: Store, name: str = "a") -> None:
    with store.writing() as writing:
        lifecycle.commit(writing, name, "Finished")


def cancel(store: Store, name: str = "a") -> None:
    with store.writing() as writing:
        lifecycle.cancel(writing, name)


def found(
    index: Path, store: Store, number: int, asker: str = "", namespaces: tuple[str, ...] = ()
) -> list[Capture]:
    with closing(open_index(index)) as engine, engine.view() as base, store.reading() as reading:
        visible = visible_crawls(list(reading.crawls()), asker, namespaces)
        return CombinedView(base, reading, visible, SETTINGS.keys()).any(sha1(number), 100)


def test_only_the_crawl_itself_sees_its_captures_before_the_commit(
    index: Path, store: Store
) -> None:
    begin(store)
    begin(store, "b")
    assert put(store, "a", capture(1)).added == 1
    assert found(index, store, 1, "a") == [capture(1, crawl="a")]
    assert isinstance(found(index, store, 1, "a")[0], Uncommitted)
    assert found(index, store, 1, "b") == found(index, store, 1) == []
    commit(store)
    for asker in ("a", "b", ""):
        (seen,) = found(index, store, 1, asker)
        assert seen == capture(1, crawl="a") and not isinstance(seen, Uncommitted)


def test_cells_are_read_from_a_key_on(store: Store) -> None:
    for name in ("a", "b"):
        begin(store, name)
        some = [capture(number, b"http://h%d.example/" % number) for number in range(1, 9)]
        put(store, name, *some, capture(3, b"http://other.example/"))
    with store.reading() as reading:
        whole = sorted(reading.cells())
        assert len(whole) == 18 and list(reading.cells_from(b"")) == whole
        for at in (0, 2, 9, 16):  # keys of two crawls come together
            begin_at = whole[at][0]
            rest = [held for held in whole if held[0] >= begin_at]
            assert list(reading.cells_from(begin_at)) == rest
        assert list(reading.cells_from(b"\xff")) == []


def test_the_command_line_has_the_same_visibility_as_the_server(index: Path, store: Store) -> None:
    begin(store)
    put(store, "a", capture(1))
    store.close()
    words = [sys.executable, "-m", "dedupindex", "lookup", str(index), "--digest", str(sha1(1))]

    def ask(*more: str) -> Any:
        done = subprocess.run([*words, "--json", *more], capture_output=True, check=False)
        answer = json.loads(done.stdout)
        assert done.returncode == (0 if answer["duplicate"] else NOTHING_FOUND), done.stderr
        return answer

    assert ask() == {"duplicate": False}
    assert ask("--crawl", "a")["original"]["committed"] is False
    with closing(make_store(index)) as again:
        commit(again)
    assert ask()["original"]["date"] == "2026-11-01T09:14:17Z"
    failed = subprocess.run([*words, "--crawl", "b"], capture_output=True, check=False)
    assert failed.returncode == BadInput.exit_status and b"no crawl 'b'" in failed.stderr


def test_captures_of_a_shared_crawl_are_seen_by_all_and_marked(index: Path, store: Store) -> None:
    begin(store, seen=Visibility.ALL)
    put(store, "a", capture(1))
    assert isinstance(found(index, store, 1)[0], Uncommitted)
    cancel(store)
    assert found(index, store, 1) == found(index, store, 1, "a") == []


def test_the_index_and_crawls_answer_together(index: Path, store: Store) -> None:
    begin(store)
    put(store, "a", capture(90, b"http://other.example/"))
    assert len(found(index, store, 90, "a")) == 2
    assert len(found(index, store, 90)) == 1


def test_reporting_again_changes_nothing(store: Store) -> None:
    begin(store)
    assert put(store, "a", capture(1), capture(2)).results == ["added", "added"]
    assert put(store, "a", capture(1), capture(2)).results == ["unchanged", "unchanged"]
    assert put(store, "a", capture(1, day=2)).results == ["unchanged"]  # the earlier stays
    assert put(store, "a", capture(1, b"http://b.example/")).results == ["added"]
    with store.reading() as reading:
        assert reading.counts(reading.crawl("a")) == (3, 1001 + 1002 + 1001)


def test_captures_that_cannot_be_originals_are_refused_with_a_reason(store: Store) -> None:
    begin(store)
    done = put(store, "a", capture(1, status=404), capture(2, mime=b"text/html"), capture(3))
    assert done.results == ["status", "mime", "added"]
    assert done.refused == {"status": 1, "mime": 1}


def test_every_step_can_be_repeated(store: Store) -> None:
    begin(store)
    begin(store)
    commit(store)
    commit(store)
    with pytest.raises(CrawlEnded):
        cancel(store)
    with pytest.raises(CrawlEnded):
        put(store, "a", capture(1))
    with pytest.raises(CrawlEnded):
        begin(store)
    begin(store, "b")
    with pytest.raises(CrawlExists):
        begin(store, "b", covers=Covers.ENTITY)
    cancel(store, "b")
    cancel(store, "b")
    with pytest.raises(CrawlEnded):
        commit(store, "b")
    with pytest.raises(UnknownCrawl):
        commit(store, "c")
    for name in ("", "a b", "a/b", "ä", "x" * 201, "a\n", ".", ".."):
        with pytest.raises(BadInput):
            begin(store, name)


def test_the_semantics_of_a_crawl_are_those_of_its_captures(index: Path, store: Store) -> None:
    begin(store, covers=Covers.STORED)
    put(store, "a", capture(1), capture(2, covers=Covers.BOTH))
    assert found(index, store, 1, "a")[0].covers is Covers.STORED
    assert found(index, store, 2, "a")[0].covers is Covers.BOTH


@of_files
def test_merged_captures_keep_their_crawl(index: Path, store: Store) -> None:
    for name in "ab":
        begin(store, name)
        put(store, name, capture(ord(name)), capture(ord(name) + 10, container=""))
        commit(store, name)
    merge_crawls.merge(index, store)
    merge_crawls.sweep(store, 0.0, seen := {})
    merge_crawls.sweep(store, merge_crawls.KEPT, seen)
    for name in "ab":
        for number in (ord(name), ord(name) + 10):
            assert [one.crawl for one in found(index, store, number)] == [name]


@of_files
def test_sweeping_removes_merged_captures_from_the_store(index: Path, store: Store) -> None:
    for name in "abc":
        begin(store, name)
        put(store, name, capture(1, day=ord(name) - 90), capture(ord(name)))
    commit(store, "b")
    cancel(store, "c")
    outcome = merge_crawls.merge(index, store)
    assert outcome is not None and outcome.added == 2
    assert merge_crawls.merge(index, store) is None
    seen: dict[int, float] = {}
    for moment in (0.0, merge_crawls.KEPT + 1):
        assert len({found(index, store, 1)[0] for _ in range(2)}) == 1  # at no time is it gone
        merge_crawls.sweep(store, moment, seen)
    assert found(index, store, 1) == [capture(1, day=8, crawl="b")]
    with store.reading() as reading:
        assert {one.name: one.swept for one in reading.crawls()} == {
            "a": False,
            "b": True,
            "c": True,
        }
        assert reading.txn.stat(reading.trees.captures)["entries"] == 2
    with closing(open_index(index)) as engine:
        assert engine.check() == []


@of_files
def test_an_interrupted_merge_can_be_repeated(index: Path, store: Store) -> None:
    begin(store)
    put(store, "a", capture(1), capture(2))
    commit(store)
    with closing(open_index(index, write=True)) as engine:  # as if killed before it was noted
        directory = index / "merging"
        directory.mkdir()
        with store.reading() as reading:
            load = merge_crawls.staged(engine, store, [reading.crawl("a")], directory)
        engine.load(load)
    outcome = merge_crawls.merge(index, store)
    assert outcome is not None and (outcome.added, outcome.unchanged) == (0, 2)
    with exclusive(index / "lock", "it"):
        begin(store, "b")
        put(store, "b", capture(3))
        commit(store, "b")
        with pytest.raises(IndexBusy):
            merge_crawls.merge(index, store)
    assert found(index, store, 3) == [capture(3, crawl="b")]


KILLED_AFTER_ITS_LOAD = """
import os, signal, sys
from pathlib import Path
from dedupindex.crawls import merge_crawls
from dedupindex.crawls.stores.lmdb_crawl_store import LmdbStore
from dedupindex.index.engines.lmdb.lmdb_engine import LmdbEngine

load = LmdbEngine.load

def killed(self, what):
    load(self, what)
    os.kill(os.getpid(), signal.SIGKILL)

LmdbEngine.load = killed
index = Path(sys.argv[1])
merge_crawls.merge(index, LmdbStore(index))
"""


@pytest.fixture
def cut_off(index: Path, store: Store) -> Store:
    """Crawls of which one is merged into the index, but is not marked as merged."""
    begin(store)
    put(store, "a", capture(1))
    commit(store)
    done = subprocess.run([sys.executable, "-c", KILLED_AFTER_ITS_LOAD, index], check=False)
    assert done.returncode == -signal.SIGKILL
    store.forget_dead_readers()
    return store


def drop(store: Store, name: str = "a") -> None:
    with store.writing() as writing:
        lifecycle.drop(writing, name)


@of_files
def test_a_crawl_with_an_interrupted_merge_cannot_be_dropped(index: Path, cut_off: Store) -> None:
    with pytest.raises(IndexBusy, match="try again, or bin/purge --crawl a"):
        drop(cut_off)
    assert found(index, cut_off, 1)
    merge_crawls.merge(index, cut_off)
    with pytest.raises(CrawlEnded, match="is merged"):
        drop(cut_off)


@of_files
def test_a_crawl_with_an_interrupted_merge_can_be_purged(index: Path, cut_off: Store) -> None:
    dedupindex("purge", index, "--crawl", "a")
    assert found(index, cut_off, 1) == []
    assert merge_crawls.merge(index, cut_off) is None and found(index, cut_off, 1) == []


@of_files
def test_a_merge_holds_the_lock_until_its_crawls_are_marked(
    index: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(store)
    put(store, "a", capture(1))
    commit(store)
    put_crawl, steps = LmdbWriting.put_crawl, list[tuple[bool, bool]]()

    def noted(writing: Writing, crawl: Crawl) -> None:
        with pytest.raises(IndexBusy), exclusive(index / "lock", "it"):
            pass
        steps.append((crawl.merging, crawl.merged))
        put_crawl(writing, crawl)

    monkeypatch.setattr(LmdbWriting, "put_crawl", noted)
    merge_crawls.merge(index, store)
    assert steps == [(True, False), (False, True)]


@of_files
def test_a_copy_made_during_a_merge_keeps_its_crawls(
    index: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(store)
    put(store, "a", capture(1))
    commit(store)
    copy_crawls = LmdbStore.copy

    def then_merged(self: LmdbStore, target: Path) -> None:
        copy_crawls(self, target)
        words = [sys.executable, "-m", "dedupindex", "index", "--merge", str(index)]
        subprocess.run(words, check=True, capture_output=True)

    monkeypatch.setattr(LmdbStore, "copy", then_merged)
    dedupindex("index", "--copy", tmp_path / "copy", index)
    with closing(LmdbStore(tmp_path / "copy")) as copied:
        assert found(tmp_path / "copy", copied, 1)
        with pytest.raises(IndexBusy):
            drop(copied)


def claim_of(reading: Reading, digest: Digest, now: int, namespace: str = "") -> Claim | None:
    """The claim on a digest in a namespace that has not expired."""
    for where, claim in reading.claims(digest_prefix(digest)):
        if where == namespace and claim.until > now:
            return claim
    return None


def test_only_one_of_two_claims_succeeds(store: Store) -> None:
    begin(store, "a")
    begin(store, "b")
    with store.writing() as writing:
        a, b = writing.crawl("a"), writing.crawl("b")
        first, mine = crawl_captures.claim(writing, a, sha1(1), 1000, 60)
        assert mine and first.until == 61_000
        second, mine = crawl_captures.claim(writing, b, sha1(1), 60_999, 60)
        assert not mine and second == first
        assert crawl_captures.claim(writing, b, sha1(2), 1000, 60)[1]
    with store.writing() as writing:
        assert crawl_captures.claim(writing, b, sha1(1), 61_000, 60)[1]  # its lease is over
        assert not crawl_captures.release(writing, sha1(1), first.token)
        held = claim_of(writing, sha1(1), 61_001)
        assert held is not None and crawl_captures.release(writing, sha1(1), held.token)
        assert claim_of(writing, sha1(1), 61_001) is None
    put(store, "a", capture(2))  # not the claimant
    with store.reading() as reading:
        assert claim_of(reading, sha1(2), 1000) is not None
    put(store, "b", capture(2))
    with store.reading() as reading:
        assert claim_of(reading, sha1(2), 1000) is None


def test_claims_hold_within_a_namespace(store: Store) -> None:
    for name, namespace in (("a", "x"), ("b", "y"), ("c", "x"), ("d", "")):
        begin(store, name, namespace=namespace)
    with store.writing() as writing:
        held = {}
        for name in "abd":
            held[name], mine = crawl_captures.claim(writing, writing.crawl(name), sha1(1), 0, 60)
            assert mine
        assert not crawl_captures.claim(writing, writing.crawl("c"), sha1(1), 0, 60)[1]
        assert crawl_captures.release(writing, sha1(1), held["a"].token)
        assert not crawl_captures.release(writing, sha1(1), held["a"].token)
        assert crawl_captures.claim(writing, writing.crawl("c"), sha1(1), 0, 60)[1]
    put(store, "b", capture(1))
    with store.reading() as reading:
        assert claim_of(reading, sha1(1), 0, "y") is None
        assert claim_of(reading, sha1(1), 0, "x") is not None
        assert claim_of(reading, sha1(1), 0) == held["d"]


@of_files
def test_expired_claims_are_swept(store: Store) -> None:
    begin(store)
    with store.writing() as writing:
        for number in range(10):
            crawl_captures.claim(writing, writing.crawl("a"), sha1(number), 0, 10 + number)
    merge_crawls.sweep(store, 15.0, {})
    with store.reading() as reading:
        assert reading.txn.stat(reading.trees.claims)["entries"] == 4


def test_many_threads_write_together(store: Store) -> None:
    begin(store)
    with closing(store.writer()) as writer:

        def post(number: int) -> None:
            done = writer.write(
                lambda writing: add(writing, writing.crawl("a"), [capture(number)], SETTINGS, JUDGE)
            )
            assert done.added == 1
            with pytest.raises(UnknownCrawl):
                writer.write(lambda writing: writing.crawl("nobody"))

        threads = [threading.Thread(target=post, args=(number,)) for number in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with store.reading() as reading:
        assert reading.counts(reading.crawl("a"))[0] == 50


@of_files
def test_a_writer_without_its_file_raises_index_unavailable(store: Store) -> None:
    writer = GroupWriter(store)
    writer.write(lambda writing: lifecycle.begin(writing, "a"))
    store.path.rename(store.path.with_name("moved"))
    with pytest.raises(IndexUnavailable, match="replaced"):
        writer.write(lambda writing: lifecycle.begin(writing, "b"))
    store.path.with_name("moved").rename(store.path)
    writer.write(lambda writing: lifecycle.begin(writing, "c"))
    with pytest.raises(IndexUnavailable):  # what the disk says is no reason to hang
        writer.write(lambda writing: writing.txn.put(b"", b"", db=writing.trees.meta))
    writer.write(lambda writing: lifecycle.begin(writing, "d"))
    writer.close()
    with pytest.raises(IndexUnavailable, match="replaced"):
        writer.write(lambda writing: lifecycle.begin(writing, "e"))


@of_files
def test_crawls_of_a_read_only_copy_are_seen(index: Path, store: Store, tmp_path: Path) -> None:
    begin(store)
    put(store, "a", capture(1))
    commit(store)
    store.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.access", lambda path, mode: False)  # root may write anywhere
        with closing(LmdbStore(index)) as readable:
            assert found(index, readable, 1) == [capture(1, crawl="a")]
            with pytest.raises(IndexUnavailable, match="cannot be written to by the user"):
                begin(readable, "b")


NAMESPACES = ["", "x", "y"]


class Transactions(RuleBasedStateMachine):
    """Crawls a and b, asked in any order, against dictionaries."""

    def __init__(self, make: Callable[..., Path], engine: AbstractContextManager[str]) -> None:
        super().__init__()
        self.engine = engine
        self.index = make(engine=engine.__enter__())
        self.store = make_store(self.index)
        self.own: dict[str, set[int]] = {}
        self.states: dict[str, CrawlState] = {}
        self.of: dict[str, str] = {"": ""}  # crawl -> its namespace
        self.all: dict[str, set[int]] = {name: set() for name in NAMESPACES}
        self.names = 0

    def teardown(self) -> None:
        self.store.close()
        self.engine.__exit__(None, None, None)

    def _open(self) -> list[str]:
        return sorted(name for name, state in self.states.items() if state is CrawlState.OPEN)

    @rule(namespace=st.sampled_from(NAMESPACES))
    def begin(self, namespace: str) -> None:
        self.names += 1
        name = f"c{self.names}"
        begin(self.store, name, **({"namespace": namespace} if namespace else {}))
        self.of[name] = namespace
        self.states[name], self.own[name] = CrawlState.OPEN, set()

    @rule(data=st.data(), number=st.integers(1, 5))
    def put(self, data: st.DataObject, number: int) -> None:
        if names := self._open():
            name = data.draw(st.sampled_from(names))
            changed = put(self.store, name, capture(number)).added
            assert changed == (number not in self.own[name])
            self.own[name].add(number)

    @rule(data=st.data(), keep=st.booleans())
    def end(self, data: st.DataObject, keep: bool) -> None:
        if names := self._open():
            name = data.draw(st.sampled_from(names))
            (commit if keep else cancel)(self.store, name)
            self.states[name] = CrawlState.COMMITTED if keep else CrawlState.CANCELLED
            if keep:
                self.all[self.of[name]] |= self.own[name]

    @rule()
    def merge(self) -> None:
        merge_crawls.merge(self.index, self.store)

    @rule()
    def sweep(self) -> None:
        seen: dict[int, float] = {}
        merge_crawls.sweep(self.store, 0.0, seen)
        merge_crawls.sweep(self.store, merge_crawls.KEPT, seen)

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = make_store(self.index)

    @rule(number=st.integers(1, 5), named=st.sets(st.sampled_from(NAMESPACES[1:])))
    def ask(self, number: int, named: set[str]) -> None:
        for name in ["", *self.states]:
            own = self.own[name] if self.states.get(name) is CrawlState.OPEN else set()
            seen = own.union(*(self.all[one] for one in {"", *named, self.of[name]}))
            answer = found(self.index, self.store, number, name, tuple(named))
            assert bool(answer) == (number in seen)


@pytest.mark.parametrize("kind", STORES)
def test_crawls_match_a_model_in_any_order_of_transactions(
    kind: str,
    make_index: MakeIndex,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cassandra_crawl_registry, "AGE", 0.0)

    @contextmanager
    def engine() -> Iterator[str]:
        if kind == "lmdb":
            yield kind
            return
        with request.getfixturevalue("keyspaces").some() as address:
            yield address()

    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        lambda: Transactions(make_index, engine()),
        settings=hypothesis_settings(
            max_examples=examples(30 if kind == "lmdb" else 8), stateful_step_count=25
        ),
    )
