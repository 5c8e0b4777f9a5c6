"""The directory of an index is swapped while a server has its crawls open, at any moment."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import lmdb
import pytest

from dedupindex.crawls import lifecycle
from dedupindex.crawls.store import FILE
from dedupindex.crawls.stores import has_store, make_store
from dedupindex.errors import IndexUnavailable, UnknownCrawl
from server.live_index import LiveIndex
from server.worker_crawls import Crawls
from tests.conftest import MakeIndex
from tests.support.captures import capture, sha1


def begin(index: Path, name: str) -> Path:
    with closing(make_store(index)) as store:
        store.write(partial(lifecycle.begin, name=name))
    return index


@pytest.fixture
def index(make_index: MakeIndex) -> Path:
    """The one that is served, with a crawl "old"."""
    return begin(make_index([capture(1)]), "old")


@pytest.fixture
def swap(index: Path, make_index: MakeIndex) -> Callable[[], None]:
    """Puts another in its place, with a crawl "new", by two renames; once."""
    fresh = begin(make_index([capture(2)]), "new")

    def swap() -> None:
        if fresh.exists():
            index.rename(index.with_name("away"))
            fresh.rename(index)

    return swap


def names(crawls: Crawls) -> list[str]:
    with crawls.reading() as reading:
        return [] if reading is None else [crawl.name for crawl in reading.crawls()]


def test_an_open_store_answers_but_refuses_writes_while_its_directory_is_missing(
    index: Path, swap: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    crawls = Crawls(index)
    assert names(crawls) == ["old"]
    away = index.rename(index.with_name("moved"))
    crawls.refresh()
    assert names(crawls) == ["old"]
    with pytest.raises(IndexUnavailable, match="replaced"):
        crawls.write(partial(lifecycle.begin, name="lost"))
    monkeypatch.setattr("server.worker_crawls.RELOAD_GRACE", 0.0)
    crawls.refresh()
    for _ in range(2):
        with pytest.raises(IndexUnavailable, match="cannot be read"):
            names(crawls)
        crawls.refresh()
    away.rename(index)
    swap()
    crawls.refresh()
    assert names(crawls) == ["new"]


def test_a_server_without_crawls_answers_while_its_directory_is_missing(
    make_index: MakeIndex,
) -> None:
    index = make_index([capture(1)])
    live = LiveIndex(index)
    live.refresh()
    index.rename(index.with_name("moved"))
    live.refresh()
    with live.state(refresh=False) as state:
        assert state.view.any(sha1(1), 10)


def test_a_deleted_file_of_crawls_is_reported(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crawls = Crawls(index)
    crawls.refresh()
    (index / FILE).unlink()  # as `rm -r` does, which takes a while for the rest
    crawls.refresh()
    assert names(crawls) == ["old"]
    shutil.rmtree(index)
    monkeypatch.setattr("server.worker_crawls.RELOAD_GRACE", 0.0)
    crawls.refresh()
    with pytest.raises(IndexUnavailable):
        names(crawls)


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_an_index_replaced_while_the_file_of_crawls_is_opened(
    index: Path, swap: Callable[[], None], late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open store is recognised, so the next check finds the replacement."""
    really = lmdb.open

    def opened(*args: Any, **options: Any) -> Any:
        if not late:
            swap()
        try:
            return really(*args, **options)
        finally:
            swap()

    crawls = Crawls(index)
    with monkeypatch.context() as patched:
        patched.setattr("lmdb.open", opened)
        crawls.refresh()
    crawls.refresh()
    assert names(crawls) == ["new"]
    crawls.write(partial(lifecycle.begin, name="another"))
    with closing(make_store(index.with_name("away"))) as other, other.reading() as reading:
        assert [crawl.name for crawl in reading.crawls()] == ["old"]


def test_a_file_and_its_lock_are_of_one_directory(
    index: Path, swap: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """LMDB opens them one after the other; by path they would be of two."""
    given: list[Path] = []
    really = lmdb.open

    def opened(path: bytes, **options: Any) -> Any:
        swap()
        given.append(Path(path.decode()))
        here = Path(given[-1]).stat().st_ino
        assert here == (index.with_name("away") / given[-1].name).stat().st_ino
        return really(path, **options)

    monkeypatch.setattr("lmdb.open", opened)
    with closing(make_store(index)):
        assert given


def test_an_index_replaced_after_the_check_gets_no_file_of_crawls(
    index: Path, make_index: MakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = make_index([capture(2)])

    def looked(path: Path) -> bool:
        there = has_store(path)
        if bare.exists():
            index.rename(index.with_name("away"))
            bare.rename(index)
        return there

    monkeypatch.setattr("server.worker_crawls.has_store", looked)
    crawls = Crawls(index)
    crawls.refresh()
    assert names(crawls) == []
    with pytest.raises(UnknownCrawl):
        crawls.write(lambda writing: writing.crawl("old"))
    assert not (index / FILE).exists()


def test_files_of_two_directories_are_not_opened_as_one_index(
    index: Path, swap: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    really = lmdb.open

    def opened(*args: Any, **options: Any) -> Any:
        swap()
        return really(*args, **options)

    live = LiveIndex(index)
    with monkeypatch.context() as patched:
        patched.setattr("lmdb.open", opened)
        live.refresh()
        with pytest.raises(IndexUnavailable, match="being replaced"):
            live.opened()
    live.refresh()
    with live.opened().engine.view() as view:
        assert view.any(sha1(2), 10) and not view.any(sha1(1), 10)
