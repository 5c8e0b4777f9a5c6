"""A container rewritten by several runs is restored, even if its originals were rewritten."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

from dedupindex.cli import main
from dedupindex.post_crawl.rewrite.journal import journals
from dedupindex.post_crawl.rewrite.rewrite_file import RewriteJob
from dedupindex.post_crawl.rewrite.undo_directory import DIRECTORY
from dedupindex.post_crawl.undo import Undo, commit, restore
from tests.support.rewriting import FakePlan, members, records_of, run, small_set, total
from tests.support.warc_cases import response


def page(number: int, body: int, year: int) -> bytes:
    url, date = b"http://b/%d" % number, b"%d-01-01T00:00:00Z" % year
    return response(Random(body).randbytes(3000), number=number, Target_URI=url, Date=date)


def add(folder: Path, name: str, kept: Path, *pages: bytes) -> None:
    for place in (folder, kept):
        place.mkdir(exist_ok=True)
        (place / name).write_bytes(members(*pages))


def committed(folder: Path) -> None:
    for one in list(journals(folder)):
        assert commit(Undo(folder, one.summary()[0].name, None)).state == "committed"


def test_committed_rounds(tmp_path: Path) -> None:
    """The last of them is not, and an original moves in each."""
    source, kept = tmp_path / "in", tmp_path / "kept"
    add(
        source, "b.warc.gz", kept,
        page(1, 1, 2021), page(2, 2, 2021), page(3, 1, 2022), page(4, 3, 2022), page(5, 4, 2022),
    )  # fmt: skip
    for turn, (name, body) in enumerate((("0", 5), ("a", 2), ("c", 3)), 1):
        add(source, f"{name}.warc.gz", kept, page(10 + turn, body, 2020), page(20 + turn, 4, 2023))
        assert total(run(RewriteJob(FakePlan(source)))).revisits == 2, turn
        if turn < 3:
            committed(source)
    names = [path.name for path in sorted(kept.iterdir())]
    states = [restore(Undo(source, name, tmp_path / "back")) for name in names]
    assert [one.state for one in states] == ["rebuilt", "rebuilt", "rebuilt", "exact"]
    assert [one.records for one in states] == [1, 1, 3, 1]
    for name in names:
        assert records_of(tmp_path / "back" / name) == records_of(kept / name), name


def test_an_original_that_became_a_revisit(tmp_path: Path) -> None:
    """No run of ours makes it one any more; what was made so comes back even then."""
    kept = tmp_path / "kept"
    for number in (1, 2, 3):
        add(tmp_path / f"r{number}", f"{number}.warc.gz", kept, page(number, 1, 2023 - number))
    words = ["--in-place", "--jobs", "1", "--json", "--work"]
    for first, second in ((1, 2), (2, 3)):
        work = str(tmp_path / f"work{first}")
        folders = [str(tmp_path / f"r{number}") for number in (first, second)]
        assert main(["dedup", *folders, *words, work]) == 0
        if first == 1:
            assert main(["rewrite", f"{work}/plan", "--commit"]) == 0
            for pins in (tmp_path / "r2" / ".rewrite").glob("*.pins"):
                pins.unlink()
    for again in ("dropped", "committed"):
        back = tmp_path / again
        assert main(["undedup", str(tmp_path / "r1"), "--out", str(back)]) == 0
        assert records_of(back / "1.warc.gz") == records_of(kept / "1.warc.gz")
        committed(tmp_path / "r2")


def test_a_file_that_was_renamed_is_named(tmp_path: Path) -> None:
    small_set(tmp_path / "in")
    run(RewriteJob(FakePlan(tmp_path / "in"), tmp_path / "out"))
    (tmp_path / "out" / "c.warc").rename(tmp_path / "out" / "other.warc")
    assert main(["undedup", str(tmp_path / "out"), "--out", str(tmp_path / "back")]) == 7
    shutil.rmtree(tmp_path / "back")
    (tmp_path / "out" / "other.warc").rename(tmp_path / "out" / "c.warc")
    assert main(["undedup", str(tmp_path / "out"), "--out", str(tmp_path / "back")]) == 0


def test_an_original_that_moved_back(tmp_path: Path) -> None:
    """Its file was rewritten and then replaced by the former one: no journal mentions it."""
    first, second, kept = tmp_path / "r1", tmp_path / "r2", tmp_path / "kept"
    add(first, "a.warc.gz", kept, page(1, 1, 2019), page(2, 1, 2020), page(3, 2, 2020))
    add(second, "b.warc.gz", kept, page(4, 2, 2022), page(5, 2, 2023))
    words = ["--in-place", "--jobs", "1", "--json", "--work"]
    assert main(["dedup", str(first), *words, str(tmp_path / "w1")]) == 0
    assert main(["dedup", str(first), str(second), *words, str(tmp_path / "w2")]) == 0
    assert main(["undedup", str(first), "--in-place"]) == 0
    assert (first / "a.warc.gz").read_bytes() == (kept / "a.warc.gz").read_bytes()
    assert main(["rewrite", str(tmp_path / "w2" / "plan"), "--commit"]) == 0
    assert main(["undedup", str(second), "--out", str(tmp_path / "back")]) == 0
    assert records_of(tmp_path / "back" / "b.warc.gz") == records_of(kept / "b.warc.gz")
    add(first, "a.warc.gz", kept, page(1, 1, 2019), page(3, 3, 2020))  # another of that name
    shutil.rmtree(tmp_path / "back")
    assert main(["undedup", str(second), "--out", str(tmp_path / "back")]) == 7
    assert not list((tmp_path / "back").iterdir())


def test_records_that_refer_to_each_other_are_not_committed(tmp_path: Path) -> None:
    """Two runs that knew nothing of each other; each would count on what the other has dropped."""
    for name, years in (("one", (2021, 2022)), ("two", (2022, 2021))):
        for number, year in enumerate(years, 1):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / f"{number}.warc").write_bytes(page(number, 1, year))
        assert total(run(RewriteJob(FakePlan(tmp_path / name)))).revisits == 1
    both = tmp_path / "both"
    for name, kept in (("one", "2"), ("two", "1")):
        (both / DIRECTORY).mkdir(parents=True, exist_ok=True)
        shutil.copy2(tmp_path / name / f"{kept}.warc", both)
        for path in (tmp_path / name / DIRECTORY).glob("*.[jd]*"):
            shutil.copy2(path, both / DIRECTORY)
    for name in ("1.warc", "2.warc"):
        assert commit(Undo(both, name, None)).state == "left_alone"
    for name in ("1.warc", "2.warc"):
        assert restore(Undo(both, name, None)).state == "exact"
