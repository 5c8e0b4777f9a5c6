"""Originals of revisits, of this set or another, are protected from becoming revisits."""

from __future__ import annotations

import fcntl
import json
import tracemalloc
from collections.abc import Callable
from itertools import count
from pathlib import Path
from random import Random

import pytest

from dedupindex.cli import main
from dedupindex.post_crawl.rewrite import journal as journals
from dedupindex.post_crawl.rewrite.journal import (
    FileBefore,
    Journal,
    JournalEntry,
    JournalWriter,
    discard_unfinished,
)
from dedupindex.post_crawl.rewrite.protection import (
    OriginalFile,
    protect,
    protected,
    protection_path,
    record_key,
    unprotect,
)
from dedupindex.post_crawl.rewrite.undo_directory import DIRECTORY
from dedupindex.post_crawl.undo_damage import is_rewritten
from tests.support.rewriting import content, members
from tests.support.warc_cases import response

Run = Callable[..., dict[str, int]]


def page(number: int, year: int, body: int = 1) -> bytes:
    url, date = b"http://b/%d" % number, b"%d-01-01T00:00:00Z" % year
    return response(Random(body).randbytes(3000), number=number, Target_URI=url, Date=date)


@pytest.fixture
def places(tmp_path: Path) -> list[Path]:
    """Three folders with the same payload, the first captured last."""
    found = [tmp_path / f"r{number}" for number in (1, 2, 3)]
    for number, folder in enumerate(found, 1):
        folder.mkdir()
        (folder / "a.warc.gz").write_bytes(members(page(number, 2023 - number)))
    return found


@pytest.fixture
def dedup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    numbers = count(1)

    def typed(*words: object, status: tuple[int, ...] = (0,)) -> dict[str, int]:
        capsys.readouterr()
        work = ("--work", str(tmp_path / f"work{next(numbers)}"), "--jobs", "1", "--json")
        assert main(["dedup", *map(str, words), *work]) in status
        report: dict[str, int] = json.loads(capsys.readouterr().out)
        return report

    return typed


def rewrite(tmp_path: Path, what: str) -> int:
    return main(["rewrite", str(tmp_path / "work1" / "plan"), what])


def test_records_that_another_set_refers_to_stay(
    places: list[Path], dedup: Run, tmp_path: Path
) -> None:
    one, two, three = places
    before = content(two)
    assert dedup(one, two, "--in-place")["revisits"] == 1
    assert rewrite(tmp_path, "--commit") == 0
    dry = dedup(two, three, "--in-place", "--dry-run")
    found = dedup(two, three, "--in-place")
    assert dry["revisits"] == found["revisits"] == 0
    assert dry["refused"] == found["refused"] == {"protected-original": 1}
    assert content(two) == before
    assert main(["verify", *map(str, places)]) == 0


def test_files_of_one_folder_are_other_sets_too(
    places: list[Path], dedup: Run, tmp_path: Path
) -> None:
    folder = tmp_path / "deep" / "er"
    folder.mkdir(parents=True)
    names = [folder / f"{place.name}.warc.gz" for place in places]
    for place, name in zip(places, names, strict=True):
        (place / "a.warc.gz").rename(name)
    assert dedup(*names[:2], "--in-place")["revisits"] == 1
    (tmp_path / "elsewhere").mkdir()
    names[0].rename(tmp_path / "elsewhere" / "a.warc.gz")
    (tmp_path / "link").symlink_to(tmp_path / "deep")
    for root in (tmp_path / "deep", tmp_path / "link", tmp_path / "link" / "er"):
        found = dedup(root, "--in-place", "--dry-run")
        assert found["refused"] == {"protected-original": 1}, root


def test_a_linked_file_is_protected_under_its_own_name(
    places: list[Path], dedup: Run, tmp_path: Path
) -> None:
    one, two, three = places
    (one / "link").symlink_to(two)
    assert dedup(one, "--in-place")["revisits"] == 1
    assert dedup(two, three, "--in-place")["refused"] == {"protected-original": 1}
    assert main(["undedup", str(one), "--in-place"]) == 0
    assert not protected(two / "a.warc.gz")


def test_undo_removes_the_protection(places: list[Path], dedup: Run, tmp_path: Path) -> None:
    one, two, three = places
    assert dedup(one, two, "--in-place")["revisits"] == 1
    assert len(protected(two / "a.warc.gz")) == 1
    assert rewrite(tmp_path, "--undo") == 0
    assert not protected(two / "a.warc.gz")
    assert dedup(two, three, "--in-place")["revisits"] == 1


def test_undo_keeps_the_protection_of_committed_runs(
    places: list[Path], dedup: Run, tmp_path: Path
) -> None:
    one, two, _ = places
    assert dedup(one, two, "--in-place")["revisits"] == 1
    assert rewrite(tmp_path, "--commit") == 0
    for number, (place, year) in enumerate(((one, 2022), (two, 2021)), 11):
        pages = (place / "a.warc.gz").read_bytes() + members(page(number, year, 2))
        (place / "a.warc.gz").write_bytes(pages)
    assert dedup(one, two, "--in-place")["revisits"] == 1
    assert len(protected(two / "a.warc.gz")) == 2
    assert main(["undedup", str(one), "--in-place"]) == 0
    assert len(protected(two / "a.warc.gz")) == 2


def test_originals_of_an_index_are_protected(
    places: list[Path], dedup: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two, three = places
    index = str(tmp_path / "index")
    assert main(["index", "--whitelist", "--mime", ".*", str(two), index]) == 0
    with open(two / "a.warc.gz", "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # as a run does that is about to replace it
        assert not dedup(one, "--in-place", "--index", index, status=(0, 7))["revisits"]
        assert not protected(two / "a.warc.gz")
    assert dedup(one, "--out", tmp_path / "out", "--index", index)["revisits"] == 1
    assert dedup(two, three, "--in-place")["refused"] == {"protected-original": 1}
    assert main(["verify", str(tmp_path / "out"), *map(str, places[1:])]) == 0


def test_unprotect_keeps_the_protection_by_other_containers(tmp_path: Path) -> None:
    for name in ("a", "b"):
        records = {record_key(url, b"2020") for url in (b"http://1/", b"http://2/")}
        protect(tmp_path, name, {OriginalFile("", "deep/c"): records})
    path = protection_path(tmp_path, "deep/c")
    assert path.stat().st_size == 4 * 32
    with open(path, "ab") as file:
        file.write(b"torn")
    assert len(protected(tmp_path / "deep" / "c")) == 2
    unprotect(tmp_path, "a", [OriginalFile("", "deep/c"), OriginalFile("", "other")])
    assert len(protected(tmp_path / "deep" / "c")) == 2 and path.stat().st_size == 2 * 32
    unprotect(tmp_path, "b", [OriginalFile("", "deep/c")])
    assert not protected(tmp_path / "deep" / "c")


def test_a_rewritten_file_is_known_where_it_is_and_after_a_move(tmp_path: Path) -> None:
    """By its name, unless a link leads to it: then by its path."""
    top = tmp_path / "top"
    (top / "real").mkdir(parents=True)
    (top / "link").symlink_to("real")
    for name in ("o", "y", "real/x"):
        (top / name).write_bytes(b"")
    for name in ("y", "link/x"):
        protect(top, name, {OriginalFile("", "o"): {record_key(b"http://1/", b"2020")}})
    assert is_rewritten(top / "y") and is_rewritten(top / "real" / "x")
    assert not is_rewritten(top / "o")
    moved = top.rename(tmp_path / "moved")
    assert is_rewritten(moved / "y")
    for name in ("y", "link/x"):  # the path of the latter is another one now
        unprotect(moved, name, [OriginalFile("", "o")])
    assert len(protected(moved / "o")) == 1 and not is_rewritten(moved / "y")


def test_a_repeated_run_records_nothing_twice_in_flat_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "_BATCH", 1000)
    journal, revisits, peaks = Journal(tmp_path, "a"), 20_000, []
    (tmp_path / "a").write_bytes(bytes(10 * revisits))
    for earlier in (False, True):
        tracemalloc.start()
        with open(tmp_path / "a", "rb") as source:
            writer = JournalWriter(
                journal, FileBefore("a", 10 * revisits, 1, ""), keep_dropped=True
            )
            for number in range(revisits):
                place = (10 * number, 10, 5 * number, 5)
                entry = JournalEntry(*place, "", "", "", "deep/c", number, 10, 1 << 20)
                writer.add(entry, source, record_key(b"http://a/%d" % number, b"2020"), None)
            writer.finish(5 * revisits)
            writer.close()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert protection_path(tmp_path, "deep/c").stat().st_size == 32 * revisits, earlier
        assert journal.size() == writer.size
    assert max(peaks) < 1 << 20


@pytest.mark.parametrize("line", ["", '{"name": '])
def test_what_a_run_left_that_was_killed_at_its_first_line_is_removed(
    tmp_path: Path, line: str
) -> None:
    folder = tmp_path / DIRECTORY
    folder.mkdir()
    (folder / "0f.jsonl.part").write_text(line)
    (folder / "0f.dropped.part").touch()
    (folder / "0f.pins").touch()
    discard_unfinished(tmp_path)
    assert [path.name for path in folder.iterdir()] == ["0f.pins"]
