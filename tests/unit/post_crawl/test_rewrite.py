"""Rewriting to a directory: copies become revisits, and no other byte changes."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import tracemalloc
from base64 import b32encode
from dataclasses import replace
from pathlib import Path

import pytest

from dedupindex.errors import BadInput, DedupError
from dedupindex.post_crawl import dedup_all
from dedupindex.post_crawl.rewrite.journal import Journal
from dedupindex.post_crawl.rewrite.rewrite_file import RewriteJob
from dedupindex.post_crawl.rewrite.undo_directory import DIRECTORY
from tests.support.post_crawl import typed
from tests.support.rewriting import (
    EARLY,
    LATE,
    FakePlan,
    content,
    records_of,
    run,
    small_set,
    total,
)
from tests.support.warc_cases import END, HTTP, gz, response


def test_copies_become_revisits_and_nothing_else_changes(tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    small_set(source)
    before = content(source)
    plan = FakePlan(source)
    outcomes = run(RewriteJob(plan, out))
    assert [one.state for one in outcomes] == ["kept", "rewritten", "rewritten"]  # a, c, deep/b
    found = total(outcomes)
    assert found.revisits == len(plan.found) == 19 and not found.refused
    assert content(source) == before
    assert found.bytes_before == sum(map(len, before.values()))
    assert found.bytes_after == sum(map(len, content(out).values()))
    planned = {(p.line.container, p.line.record_id): p for p in plan.found}
    for number, container in plan.containers().items():
        old, new = records_of(source / container.name), records_of(out / container.name)
        assert len(old) == len(new)
        for (header, block), (header_now, block_now) in zip(old, new, strict=True):
            record_id = header.partition(b"WARC-Record-ID: <")[2].partition(b">")[0]
            if (number, record_id) in planned:
                assert b"WARC-Type: revisit\r\n" in header_now
                assert block == block_now + block[len(block_now) :]
                assert block_now.endswith(b"\r\n\r\n")
            else:
                assert (header, block) == (header_now, block_now)
        assert os.stat(out / container.name).st_mtime_ns == container.mtime_ns


@pytest.mark.parametrize("killed", [False, True])
def test_a_result_without_revisits_has_no_journal_of_the_file_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    """Its undo would leave out an intact file. Until the result is there, the journal stays."""
    source, out, name = tmp_path / "in", tmp_path / "out", "deep/b.warc.gz"
    small_set(source)
    run(RewriteJob(FakePlan(source), out))
    journal = Journal(out, name)
    assert journal.exists()
    (out / name).unlink()
    (source / name).write_bytes(gz(response(b"other", number=77, Target_URI=b"http://other/")))
    if killed:
        with monkeypatch.context() as patch:
            patch.setattr(Journal, "clear_stale", lambda self, _: self.name == name and 1 / 0)
            with pytest.raises(ZeroDivisionError):
                run(RewriteJob(FakePlan(source), out))
        assert (out / name).exists() and journal.exists()
    run(RewriteJob(FakePlan(source), out))
    assert not journal.exists()
    done = typed("undedup", out, "--out", tmp_path / "back")
    assert (done.status, done.totals["left_alone"]) == (0, 0), done.err
    assert content(tmp_path / "back").keys() == content(source).keys()
    assert (tmp_path / "back" / name).read_bytes() == (source / name).read_bytes()


def test_a_result_that_a_run_in_place_has_rewritten_keeps_its_journal(tmp_path: Path) -> None:
    source, out, name = tmp_path / "in", tmp_path / "out", "deep/b.warc.gz"
    small_set(out)
    run(RewriteJob(FakePlan(out)))
    (source / "deep").mkdir(parents=True)
    (source / name).write_bytes((out / name).read_bytes())
    kept = kept_below(out)
    [found] = run(RewriteJob(FakePlan(source), out))
    assert (found.state, kept_below(out)) == ("existing", kept)


def kept_below(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (out / DIRECTORY).iterdir()}


@pytest.mark.parametrize("processes", [1, 2])
def test_dry_run_gives_the_same_numbers_and_writes_nothing(tmp_path: Path, processes: int) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    small_set(source)
    plan = FakePlan(source)
    dry = run(RewriteJob(plan, out, dry=True), processes)
    assert not out.exists()
    done = run(RewriteJob(plan, out), processes)
    assert dry == done
    kept = kept_below(out)
    assert sum(one.journal for one in done) == sum(map(len, kept.values())) > 0
    for dry_run in (False, True):
        again = run(RewriteJob(plan, out, dry=dry_run), processes)
        assert again == [replace(one, state="existing") for one in done]
        assert kept_below(out) == kept


def test_files_keep_mode_times_and_attributes(tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    small_set(source)
    path = source / "c.warc"
    path.chmod(0o640)
    os.utime(path, ns=(1_500_000_000_123_456_789, 1_400_000_000_987_654_321))
    try:
        os.setxattr(path, "user.note", b"kept")
    except OSError:
        pytest.skip("the file system has no extended attributes")
    run(RewriteJob(FakePlan(source), out))
    status = os.stat(out / "c.warc")
    assert stat.S_IMODE(status.st_mode) == 0o640
    assert status.st_mtime_ns == 1_400_000_000_987_654_321
    assert os.getxattr(out / "c.warc", "user.note") == b"kept"
    assert status.st_size < os.stat(path).st_size


def test_an_owner_that_cannot_be_kept_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    small_set(source)
    plan = FakePlan(source)

    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "fchmod", refuse)
    with pytest.raises(DedupError, match="Operation not permitted"):
        run(RewriteJob(plan, out))
    assert content(out) == {}


@pytest.fixture
def of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A set of another user's, for one who may not give files away."""
    if os.geteuid() != 0:
        pytest.skip("only root can make it")
    small_set(tmp_path / "in")
    for path in (tmp_path / "in").rglob("*.warc*"):
        os.chown(path, 12345, 12345)

    def refuse(*arguments: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "fchown", refuse)
    return tmp_path / "in"


def test_results_of_files_of_others(of_others: Path, tmp_path: Path) -> None:
    """They are written, and that they belong to another is said once; so are those of an undo."""
    (of_others / "deep" / "b.warc.gz").chmod(0o4640)
    before, out, back = content(of_others), tmp_path / "out", tmp_path / "back"
    done = typed("dedup", of_others, "--out", out, "--jobs", 1)
    assert done.status == 0 and done.totals["revisits"] == 19, done.err
    assert done.err.count("the result does not keep the owner") == 1
    assert stat.S_IMODE((out / "deep" / "b.warc.gz").stat().st_mode) == 0o640
    for path in out.rglob("*.warc*"):
        os.chown(path, 12345, 12345)
    undone = typed("undedup", out, "--out", back)
    assert undone.status == 0 and undone.err.count("does not keep the owner") == 1
    assert content(back).keys() == before.keys() and content(back)["c.warc"] == before["c.warc"]


def test_files_of_others_in_place(
    of_others: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is read in vain: the run fails before it begins."""
    before = content(of_others)
    monkeypatch.setattr(dedup_all, "make", lambda *_, **__: 1 / 0)
    done = typed("dedup", of_others, "--in-place", "--work", tmp_path / "work")
    assert done.status == 3 and "may not give a file to that" in done.err
    with pytest.raises(DedupError, match="may not give a file to that"):
        run(RewriteJob(FakePlan(of_others)))
    assert content(of_others) == before
    assert not (of_others / DIRECTORY).exists() and not (tmp_path / "work").exists()


def test_files_are_copied_where_the_kernel_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "in"
    small_set(source)
    plan = FakePlan(source)
    run(RewriteJob(plan, tmp_path / "out"))

    def refuse(*arguments: object) -> int:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "copy_file_range", refuse)
    run(RewriteJob(plan, tmp_path / "other"))
    assert content(tmp_path / "other") == content(tmp_path / "out")


def test_two_files_of_one_name_are_not_mixed_up(tmp_path: Path) -> None:
    small_set(tmp_path / "in")
    plan = FakePlan(tmp_path / "in")
    other = plan.containers()[1]._replace(number=9, root=str(tmp_path / "elsewhere"))
    plan.containers()[9] = other
    with pytest.raises(BadInput, match="would both become"):
        run(RewriteJob(plan, tmp_path / "out"))


def test_originals_that_are_gone_or_pinned_records(tmp_path: Path) -> None:
    """67, 68: copies of originals in a missing file are kept, and originals are never dropped."""
    source = tmp_path / "in"
    small_set(source)
    plan = FakePlan(source)
    (source / "a.warc.gz").unlink()
    found = {one.name: one for one in run(RewriteJob(plan, tmp_path / "out"))}
    assert found["a.warc.gz"].state == "left_alone"
    assert found["deep/b.warc.gz"].refused == {"original-gone": 12}
    assert found["c.warc"].revisits == 1
    small_set(tmp_path / "again")
    plan = FakePlan(tmp_path / "again")
    # A plan that would have two records drop each other's body.
    planned = plan.found[0]
    plan.found = [planned, planned._replace(line=planned.original, original=planned.line)]
    assert total(run(RewriteJob(plan, tmp_path / "none"))).refused == {"protected-original": 2}


def test_limits(tmp_path: Path) -> None:
    small_set(tmp_path / "in")
    plan = FakePlan(tmp_path / "in")
    assert total(run(RewriteJob(plan, dry=True, min_size=1501))).refused == {"small": 18}
    assert total(run(RewriteJob(plan, dry=True, min_gain=1900))).refused == {"no-gain": 19}


def test_the_results_have_nothing_left_to_rewrite(tmp_path: Path) -> None:
    """108: a second round over the results changes no byte."""
    small_set(tmp_path / "in")
    run(RewriteJob(FakePlan(tmp_path / "in"), tmp_path / "out"))
    plan = FakePlan(tmp_path / "out")
    assert plan.found == []
    run(RewriteJob(plan, tmp_path / "again"))
    assert content(tmp_path / "again") == content(tmp_path / "out")


@pytest.mark.parametrize("packed", [True, False])
def test_a_long_record_takes_no_memory(tmp_path: Path, packed: bool) -> None:
    """18: nothing of it is held, in a sparse plain file or a gzip member of a few kilobytes."""
    source, size = tmp_path / "in", 60 << 20
    source.mkdir()
    digest = b"sha1:" + b32encode(hashlib.sha1(bytes(size)).digest())
    heads = [
        response(b"", Payload_Digest=digest, number=number, Target_URI=b"http://x/%d" % number,
                 Date=date, Content_Length=b"%d" % (len(HTTP) + size), end=b"")
        for number, date in ((1, EARLY), (2, LATE))
    ]  # fmt: skip
    path = source / "long.warc"
    with open(path, "wb") as file:
        for head in heads:
            if packed:
                file.write(gz(head + bytes(size) + END))
            else:
                file.write(head)
                file.seek(size, os.SEEK_CUR)
                file.write(END)
    plan = FakePlan(source)
    tracemalloc.start()
    found = total(run(RewriteJob(plan, tmp_path / "out")))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.revisits == 1 and peak < 20 << 20
    (_, block), (header, kept) = records_of(tmp_path / "out" / "long.warc")
    assert len(block) == len(HTTP) + size and kept == HTTP
    assert b"WARC-Type: revisit" in header
