"""In place: what must be true of the new file, and of originals, before an old file goes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dedupindex.errors import Damaged
from dedupindex.rewrite.container import Job
from dedupindex.rewrite.disk import FileSink
from dedupindex.rewrite.journal import journals
from dedupindex.rewrite.undo import Undo, restore
from tests.rewriting import FakePlan, content, run, small_set


@pytest.fixture
def source(tmp_path: Path) -> Path:
    small_set(tmp_path / "in")
    return tmp_path / "in"


def undo(root: Path) -> list[str]:
    return [restore(Undo(root, one.summary()[0].name, None)).state for one in journals(root)]


def test_a_bit_that_changed_although_the_time_did_not(source: Path) -> None:
    """Of a record that stays, which nobody looks into."""
    plan = FakePlan(source)
    path = source / "c.warc"
    status, data = path.stat(), bytearray(path.read_bytes())
    data[data.find(b"Host: ")] ^= 1
    with open(path, "r+b") as file:
        file.write(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    before = content(source)
    found = {one.name: one for one in run(Job(plan))}
    assert found["c.warc"].state == "left" and "not what was scanned" in found["c.warc"].problem
    assert undo(source) == ["exact"]  # of the other
    assert content(source) == before and list(journals(source)) == []


@pytest.mark.parametrize("dropped", [False, True])
def test_what_the_disk_has_not_kept(
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
    with pytest.raises(Damaged, match="not what was read"):
        run(Job(FakePlan(source)))
    assert content(source) == before and list(journals(source)) == []
