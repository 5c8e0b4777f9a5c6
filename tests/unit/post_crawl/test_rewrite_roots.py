"""One file reached through several folders, and renames that fail in odd ways."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dedupindex.errors import DedupError, IndexBusy
from dedupindex.post_crawl.rewrite import rewrite_file
from dedupindex.post_crawl.rewrite.journal import journals
from dedupindex.post_crawl.rewrite.rewrite_all import rewrite
from dedupindex.post_crawl.rewrite.rewrite_file import RewriteJob, rewrite_container
from dedupindex.post_crawl.rewrite.undo_directory import DIRECTORY
from dedupindex.post_crawl.undo import Undo, restore
from dedupindex.runtime import atomic_replace
from dedupindex.runtime.atomic_replace import (
    Untouched,
    being_written,
    create_file,
    lock_source,
    open_part,
    part_path,
    remove_stale_parts,
    removing,
    replace_file,
)
from dedupindex.runtime.files import exclusive
from tests.support.rewriting import FakePlan, content, records_of, run, small_set


@pytest.fixture
def sub(tmp_path: Path) -> Path:
    """A set in a folder of a folder."""
    small_set(tmp_path / "data" / "sub")
    return tmp_path / "data" / "sub"


def undo(root: Path) -> list[str]:
    return [restore(Undo(root, one.summary()[0].name, None)).state for one in journals(root)]


def in_child(work: Callable[[], bool]) -> bool:
    """Return whether `work` is true in a child process."""
    child = os.fork()
    if not child:
        try:
            os._exit(0 if work() else 1)
        except BaseException:
            os._exit(2)
    return os.waitpid(child, 0)[1] == 0


def test_two_runs_on_one_file_under_different_folders(
    sub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second meets the first just before its rename, and again when that is done."""
    before, top = content(sub), sub.parent
    first, second = FakePlan(top), FakePlan(sub)
    refused: list[bool] = []
    check = rewrite_file.check_still
    (sub / DIRECTORY).mkdir()

    def meet(container: Any, *rest: Any) -> None:
        check(container, *rest)
        other = next(c for c in second.containers().values() if c.path == container.path)
        refused.append(
            in_child(lambda: rewrite_container(RewriteJob(second), other).state == "left_alone")
        )

    monkeypatch.setattr(rewrite_file, "check_still", meet)
    assert [one.state for one in run(RewriteJob(first))] == ["kept", "rewritten", "rewritten"]
    monkeypatch.undo()
    assert refused == [True, True]
    after = content(sub)
    assert len(records_of(sub / "deep" / "b.warc.gz")) == 24
    for dry in (True, False):
        again = run(RewriteJob(second, dry=dry))
        assert [one.state for one in again] == ["kept", "left_alone", "left_alone"]
        assert "a run on" in again[1].problem
    assert content(sub) == after
    assert undo(top) == ["exact", "exact"]
    assert content(sub) == before


def test_undo_leaves_a_locked_file_alone(sub: Path) -> None:
    before = content(sub)
    run(RewriteJob(FakePlan(sub)))
    after = content(sub)
    with open(sub / "c.warc", "rb") as held:
        lock_source(held)
        assert sorted(undo(sub)) == ["exact", "left_alone"]
    assert content(sub)["c.warc"] == after["c.warc"]
    assert undo(sub) == ["exact"]
    assert content(sub) == before


def test_a_part_has_its_own_name_and_is_removed_when_stale(tmp_path: Path) -> None:
    path, long = tmp_path / "a.warc.gz", tmp_path / ("n" * 250)
    parts_of = [part_path(path), part_path(long)]
    with open_part(parts_of[0]), open_part(parts_of[1]):
        assert in_child(lambda: part_path(path) not in parts_of)
        remove_stale_parts([path, long])
        assert all(one.exists() for one in parts_of), "they are being written"
        os.link(parts_of[0], tmp_path / ".b.warc.gz.part")
    remove_stale_parts([path, long])
    assert not any(one.exists() for one in parts_of)
    assert (tmp_path / ".b.warc.gz.part").exists(), "it is of no file that was named"


def test_a_replaced_part_is_not_renamed(tmp_path: Path) -> None:
    path = tmp_path / "a"
    part = part_path(path)
    with open_part(part) as file:
        part.unlink()
        part.write_bytes(b"of somebody else")
        with pytest.raises(DedupError, match="replaced"):
            replace_file(part, file, path)
    assert not path.exists()


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
def test_a_new_file_replaces_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, links: bool
) -> None:
    if not links:

        def refused(*_: object) -> None:
            raise OSError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(os, "link", refused)
    path = tmp_path / "a"
    part = part_path(path)
    with removing(part), open_part(part) as file:
        file.write(b"first")
        create_file(part, file, path)
    with removing(part), open_part(part) as file, pytest.raises(FileExistsError):
        file.write(b"second")
        create_file(part, file, path)
    assert content(tmp_path) == {"a": b"first"}


def test_a_writer_that_appears_at_the_end(sub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process opens a file for writing while it is being rewritten."""
    before, check, opened = content(sub), rewrite_file.check_still, []

    def come(container: Any, *rest: Any) -> None:
        check(container, *rest)
        opened.append(open(container.path, "r+b"))  # noqa: SIM115

    monkeypatch.setattr(rewrite_file, "check_still", come)
    for out in (None, sub.parent.parent / "out"):
        left = [one for one in run(RewriteJob(FakePlan(sub), out)) if one.state == "left_alone"]
        assert left and all("began to write" in one.problem for one in left)
        while opened:
            opened.pop().close()
    assert content(sub) == before and list(journals(sub)) == []


def failing(call: Any, *, done: bool, at: str) -> Any:
    def called(one: Any, *rest: Any) -> None:
        if not str(rest[-1] if rest else one).endswith(at):
            return call(one, *rest)
        if done:
            call(one, *rest)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    return called


@pytest.mark.parametrize("done", [True, False])
def test_a_rename_that_is_reported_as_failed(
    sub: Path, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    """As on NFS, where it may have been done all the same: then its journal is needed."""
    before = content(sub)
    monkeypatch.setattr(os, "replace", failing(os.replace, done=done, at="sub/c.warc"))
    found = {one.name: one.state for one in rewrite(RewriteJob(FakePlan(sub)))}
    monkeypatch.undo()
    assert found["c.warc"] == ("rewritten" if done else "left_alone")
    assert (content(sub)["c.warc"] != before["c.warc"]) == done
    assert undo(sub) == ["exact"] * (1 + done)
    assert content(sub) == before


def test_a_directory_that_cannot_be_forced_to_disk(
    sub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file was replaced by then, and is not reported as not rewritten."""
    before = content(sub)
    plan = FakePlan(sub)
    synced = failing(atomic_replace.sync_directory, done=False, at="deep")
    monkeypatch.setattr(atomic_replace, "sync_directory", synced)
    for out in (sub.parent.parent / "out", None):
        with pytest.raises(DedupError, match="the new file is there, but the disk fails"):
            run(RewriteJob(plan, out))
    monkeypatch.undo()
    assert content(sub) != before
    assert {one.state for one in run(RewriteJob(plan))} >= {"existing"}
    assert undo(sub) == ["exact", "exact"]
    assert content(sub) == before


def test_a_lock_is_reported_and_kept(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    with open(tmp_path / "a", "rb") as one, open(tmp_path / "a", "rb") as other:
        lock_source(one)
        assert being_written(other)
        with pytest.raises(Untouched):
            lock_source(other)


def test_runs_on_nested_directories_do_not_wait(sub: Path) -> None:
    """They may reach the same files, and each would rewrite the original of the other."""
    for one, other in ((sub, sub.parent), (sub.parent, sub), (sub.parent, sub / "deep")):
        (other / DIRECTORY).mkdir(exist_ok=True)
        with exclusive(other / DIRECTORY / "lock", "x"), pytest.raises(IndexBusy):
            run(RewriteJob(FakePlan(one)))
    assert sum(one.revisits for one in run(RewriteJob(FakePlan(sub.parent)))) == 19
