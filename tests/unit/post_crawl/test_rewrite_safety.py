"""In place: conditions on the new file and on originals before an old file is removed."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from random import Random
from typing import Any, BinaryIO

import pytest

from dedupindex.errors import Damaged
from dedupindex.post_crawl.manifest.parquet import ManifestContainer
from dedupindex.post_crawl.rewrite.journal import journals
from dedupindex.post_crawl.rewrite.rewrite_file import RewriteJob
from dedupindex.post_crawl.undo import Undo, restore
from dedupindex.runtime.atomic_replace import DrySink, FileSink
from tests.support.rewriting import (
    EARLY,
    LATE,
    FakePlan,
    content,
    members,
    records_of,
    run,
    small_set,
)
from tests.support.warc_cases import response


@pytest.fixture
def source(tmp_path: Path) -> Path:
    small_set(tmp_path / "in")
    return tmp_path / "in"


def undo(root: Path) -> list[str]:
    return [restore(Undo(root, one.summary()[0].name, None)).state for one in journals(root)]


def flip(path: Path, offset: int) -> None:
    """Flip a bit of a file, whose size, time and inode stay."""
    status, data = path.stat(), bytearray(path.read_bytes())
    data[offset] ^= 1
    with open(path, "r+b") as file:
        file.write(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("name", ["a.warc.gz", "deep/b.warc.gz", "c.warc"])
def test_a_bit_that_changed_before_a_file_is_copied(
    source: Path, tmp_path: Path, name: str
) -> None:
    """In its last request, whether other records become revisits (all but the first) or not."""
    plan, out = FakePlan(source), tmp_path / "out"
    flip(source / name, -40)
    found = {one.name: one for one in run(RewriteJob(plan, out, dry=True))}
    assert {one.problem for one in found.values()} == {""}  # it does not read whole files
    found = {one.name: one for one in run(RewriteJob(plan, out))}
    changed = found.pop(name)
    assert changed.state == "left_alone" and changed.problem == (
        "its content has changed since it was scanned, although its size and time have not"
    )
    assert {one.problem for one in found.values()} == {""}
    assert found.keys() == content(out).keys() - {journal.name for journal in out.glob(".rewrite")}


def test_a_bit_that_changed_although_the_time_did_not(source: Path) -> None:
    """Unchanged record, which is copied without being inflated."""
    plan = FakePlan(source)
    path = source / "c.warc"
    flip(path, path.read_bytes().find(b"Host: "))
    before = content(source)
    found = {one.name: one for one in run(RewriteJob(plan))}
    assert (
        found["c.warc"].state == "left_alone"
        and "its content has changed" in found["c.warc"].problem
    )
    assert undo(source) == ["exact"]  # of the other
    assert content(source) == before and list(journals(source)) == []


@pytest.mark.parametrize("dropped", [False, True])
def test_a_disk_that_loses_writes(
    source: Path, monkeypatch: pytest.MonkeyPatch, dropped: bool
) -> None:
    """Bytes that were copied, or dropped, are others when they are read again."""
    before, copy = content(source), FileSink.copy

    def bad(self: FileSink, file: object, offset: int, count: int) -> None:
        at = self.size
        copy(self, file, offset, count)  # type: ignore[arg-type]
        if count and str(self.file.name).endswith(".dropped.part") == dropped:
            os.pwrite(self.file.fileno(), b"\0", at + count // 2)

    monkeypatch.setattr(FileSink, "copy", bad)
    with pytest.raises(Damaged, match="differs from what was read"):
        run(RewriteJob(FakePlan(source)))
    assert content(source) == before and list(journals(source)) == []


@pytest.mark.parametrize("sink", [DrySink, FileSink])
@pytest.mark.parametrize("place", ["in place", "out"])
def test_a_revisit_that_reads_back_wrong(
    source: Path, monkeypatch: pytest.MonkeyPatch, sink: type[DrySink | FileSink], place: str
) -> None:
    """In memory, where it is checked, or in the file, where its bytes are compared."""
    before, write = content(source), sink.write

    def bad(self: Any, data: bytes) -> tuple[BinaryIO, int]:
        spoiled = data.startswith((b"\x1f\x8b", b"WARC/"))
        return write(self, data[:-5] + b"!" + data[-4:] if spoiled else data)

    monkeypatch.setattr(sink, "write", bad)
    out = source.parent / "out" if place == "out" else None
    with pytest.raises(Damaged, match="read back"):
        run(RewriteJob(FakePlan(source), out))
    assert content(source) == before and list(journals(source)) == []
    assert out is None or not {*content(out)} & {"c.warc", "deep/b.warc.gz"}


@pytest.mark.parametrize("how", ["writer", "lock"])
@pytest.mark.parametrize("place", ["in place", "in place, two processes", "out", "dry"])
def test_an_original_that_is_being_written(source: Path, how: str, place: str) -> None:
    out = source.parent / "out" if place == "out" else None
    job = RewriteJob(FakePlan(source), out, dry=place == "dry")
    before = content(source)
    with open(source / "a.warc.gz", "r+b" if how == "writer" else "rb") as one:
        if how == "lock":
            fcntl.flock(one, fcntl.LOCK_EX)
        found = {one.name: one for one in run(job, 2 if "two" in place else 1)}
    assert found["deep/b.warc.gz"].refused == {"original-busy": 12}
    assert found["c.warc"].refused == {"original-busy": 6} and found["c.warc"].revisits == 1
    assert {name for name in before if content(source)[name] != before[name]} <= {"c.warc"}


def test_a_locked_file_with_copies_and_originals(source: Path) -> None:
    """In place the run itself has a lock on such a file, and has looked before that."""
    late = {"Target_URI": b"http://late/", "Date": b"2026-12-01T00:00:00Z"}
    record = response(Random(9).randbytes(2000), number=77, **late)
    (source / "d.warc.gz").write_bytes(members(record))
    plan = FakePlan(source)
    with open(source / "c.warc", "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        found = {one.name: one for one in run(RewriteJob(plan))}
    assert found["c.warc"].state == "left_alone"
    assert found["d.warc.gz"].refused == {"original-busy": 1}
    assert sum(one.revisits for one in run(RewriteJob(plan), 2)) == 20


class OutsidePlan(FakePlan):
    """Its originals are in a file that an index has named."""

    name = "a.warc.gz"

    def outside(self) -> dict[int, ManifestContainer]:
        return {1: self._containers[1]}

    def containers(self) -> dict[int, ManifestContainer]:
        return {number: one for number, one in self._containers.items() if number != 1}

    def container(self, number: int) -> ManifestContainer:
        one = self._containers[number]
        return one._replace(name=self.name) if number == 1 else one


def test_an_original_of_an_index_that_is_not_finished(source: Path) -> None:
    plan = OutsidePlan(source)
    assert sum(one.revisits for one in run(RewriteJob(plan, dry=True))) == 19
    with open(source / "a.warc.gz", "r+b"):
        assert sum(one.revisits for one in run(RewriteJob(plan, dry=True))) == 1
    (source / "a.warc.gz").rename(source / "a.warc.gz.open")
    plan.name = "a.warc.gz.open"
    assert run(RewriteJob(plan, dry=True))[1].refused == {"original-busy": 12}


def test_a_rewrite_in_place_of_an_earlier_output_directory(source: Path) -> None:
    """The journal of --out is kept, the later run can be done again, undone and committed."""
    out, body = source.parent / "out", Random(33).randbytes(2000)
    with open(source / "c.warc", "ab") as more:  # behind what becomes revisits
        more.write(response(body, number=78, Target_URI=b"http://late/", Date=LATE))
    before = content(source)
    run(RewriteJob(FakePlan(source), out))
    made = content(out)
    early = response(body, number=77, Target_URI=b"http://early/", Date=EARLY)
    (out / "0.warc.gz").write_bytes(members(early))
    plan = FakePlan(out)
    dry = run(RewriteJob(plan, dry=True))
    assert sum(one.revisits for one in dry) == 1
    for state in ("rewritten", "existing"):
        found = {one.name: one.state for one in run(RewriteJob(plan))}
        assert found == {
            "0.warc.gz": "kept",
            "a.warc.gz": "kept",
            "c.warc": state,
            "deep/b.warc.gz": "kept",
        }
    assert undo(out)
    (out / "0.warc.gz").unlink()
    assert content(out) == made
    for name in before:
        restore(Undo(out, name, source.parent / "back"))
        assert records_of(source.parent / "back" / name) == records_of(source / name)
