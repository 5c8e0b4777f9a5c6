"""Damaged undo data: what can be proven comes back, all else is named; nothing wrong is written."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from dedupindex.cli import main
from dedupindex.errors import Damaged
from dedupindex.post_crawl.rewrite.journal import Journal, entries
from dedupindex.post_crawl.rewrite.rewrite_all import rewrite
from dedupindex.post_crawl.rewrite.rewrite_file import RewriteJob
from dedupindex.post_crawl.rewrite.undo_directory import DIRECTORY
from dedupindex.post_crawl.undo import Undo, commit
from tests.support.post_crawl import typed
from tests.support.rewriting import LATE, FakePlan, members, run, small_set
from tests.support.warc_cases import IDENTICAL, gz, response, revisit, sha1

NAMES = ("a.warc.gz", "c.warc", "deep/b.warc.gz")
B = "deep/b.warc.gz"


@pytest.fixture(params=["out", "in place", "committed"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A set that was rewritten, beside `before`, its files as they were."""
    small_set(tmp_path / "in")
    shutil.copytree(tmp_path / "in", tmp_path / "before")
    if request.param == "out":
        run(RewriteJob(FakePlan(tmp_path / "in"), tmp_path / "out"))
        return tmp_path / "out"
    run(RewriteJob(FakePlan(tmp_path / "in"), None))
    if request.param == "committed":
        for path in (tmp_path / "in" / DIRECTORY).glob("*.jsonl"):
            path.rename(path.with_suffix(".1.committed"))
        for path in (tmp_path / "in" / DIRECTORY).glob("*.dropped"):
            path.unlink()
    return tmp_path / "in"


def changed_bit(data: bytes, bit: int) -> bytes:
    at = bit // 8
    return data[:at] + bytes([data[at] ^ (1 << bit % 8)]) + data[at + 1 :]


def records_of(path: Path) -> list[bytes]:
    data = path.read_bytes()
    if path.name.endswith(".gz"):
        data = gzip.decompress(data)
    return re.split(rb"(?=WARC/1\.[01]\r\n)", data)[1:]


def records_before(folder: Path, name: str) -> list[bytes]:
    return records_of(folder.parent / "before" / name)


def undo_files(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / DIRECTORY).iterdir() if path.name != "lock")


def check(folder: Path, name: str = "back") -> dict[str, object]:
    """Restore to a directory: each record is as it was, or a revisit that is named."""
    back = folder.parent / name
    result = typed("undedup", folder, "--out", back)
    assert result.status in (0, 7), result.err
    assert "Traceback" not in result.err
    findings = result.totals["findings"]
    for one in NAMES:
        left = sum(not found["restored"] for found in findings if found["file"] == one)
        now, before = records_of(back / one), records_before(folder, one)
        assert len(now) == len(before)
        differing = [new for new, old in zip(now, before, strict=True) if new != old]
        assert len(differing) == left, (one, findings)
        assert all(b"WARC-Type: revisit" in record for record in differing)
    assert result.status == (7 if findings else 0)
    return {**result.totals, "errors": result.err}


def journal_of(folder: Path, name: str) -> Path:
    journal = Journal(folder, name)
    return journal.lines if journal.exists() else journal.committed()[0]


def test_a_line_that_cannot_be_read(made: Path) -> None:
    """The record is made from the revisit and the original: its header is not proven."""
    journal = journal_of(made, B)
    lines = journal.read_bytes().splitlines(keepends=True)
    lines[2] = b"\xff" + lines[2]
    journal.write_bytes(b"".join(lines))
    totals = check(made)
    assert totals["records_not_restored"] == 0
    assert totals["records_unproven"] == 1
    [finding] = totals["findings"]  # type: ignore[misc]
    assert finding["file"] == B
    assert re.search(r"its original is \S+ at \d+$", finding["message"])


def test_a_header_that_was_changed_is_proven_by_its_hash(made: Path) -> None:
    journal = journal_of(made, B)
    journal.write_bytes(
        journal.read_bytes().replace(b"WARC-Type: response", b"WARC-Type: resp0nse", 1)
    )
    totals = check(made)
    assert totals["findings"] == []
    assert totals["left_alone"] == 0


def test_a_first_line_that_cannot_be_read(made: Path) -> None:
    """All entries can: every record is proven."""
    journal = journal_of(made, B)
    journal.write_bytes(b"x" + journal.read_bytes())
    totals = check(made)
    assert (totals["findings"], totals["left_alone"]) == ([], 0)


@pytest.mark.parametrize("kept", [0, 0.5, 1])
def test_a_truncated_journal(made: Path, kept: float) -> None:
    journal = journal_of(made, B)
    data = journal.read_bytes()
    journal.write_bytes(data[: int(len(data) * kept) - 10 * (kept == 1)])
    totals = check(made)
    assert totals["records_not_restored"] == 0
    assert totals["partial"] == (kept < 1)


def _renamed_field(lines: list[bytes]) -> list[bytes]:
    return [*lines[:2], lines[2].replace(b'"offset"', b'"ogfset"'), *lines[3:]]


def _without_an_entry(lines: list[bytes]) -> list[bytes]:
    return [*lines[:2], *lines[3:]]


def _with_another_last_line(lines: list[bytes]) -> list[bytes]:
    return [*lines[:-1], lines[-1].replace(b'{"revisits": ', b'{"revisits": 1')]


@pytest.mark.parametrize("damaged", [_renamed_field, _without_an_entry, _with_another_last_line])
def test_entries_that_are_not_all_there(
    made: Path, damaged: Callable[[list[bytes]], list[bytes]]
) -> None:
    """The others are not all that a run wrote: no reader takes them for that."""
    journal = journal_of(made, B)
    data = journal.read_bytes()
    lines = damaged(data.splitlines(keepends=True))
    journal.write_bytes(b"".join(lines))
    assert journal.read_bytes() != data
    with pytest.raises(Damaged):
        list(entries(journal))
    check_only = typed("undedup", made, "--dry-run")
    assert check_only.status == 7, check_only.err
    result = typed("undedup", made, "--out", made.parent / "back")
    assert result.status == 7 and result.totals["findings"]
    assert records_of(made.parent / "back" / B) == records_before(made, B)
    if Journal(made, B).dropped.exists():
        kept = Journal(made, B).dropped.read_bytes()
        found = commit(Undo(made, B, None))
        assert found.state == "left_alone"
        assert Journal(made, B).dropped.read_bytes() == kept
        assert typed("undedup", made, "--in-place").totals["left_alone"] == 1


def test_a_damaged_journal_keeps_the_copies_of_its_file(tmp_path: Path) -> None:
    """A run in place that is resumed does not end for it, and does not believe its offsets."""
    top, body = tmp_path / "in", Random(9).randbytes(2000)
    small_set(top)
    copy = response(body, number=60, Target_URI=b"http://example.com/60", Date=LATE)
    (top / "d.warc.gz").write_bytes(members(copy))
    plan = FakePlan(top)
    before = (top / "d.warc.gz").stat(), (top / "d.warc.gz").read_bytes()
    run(RewriteJob(plan, None))
    journal = Journal(top, "d.warc.gz")
    for path in (journal.lines, journal.dropped):  # as if the run had been killed before it
        path.unlink()
    (top / "d.warc.gz").write_bytes(before[1])
    os.utime(top / "d.warc.gz", ns=(0, before[0].st_mtime_ns))
    lines = Journal(top, "c.warc").lines.read_bytes().splitlines(keepends=True)
    Journal(top, "c.warc").lines.write_bytes(b"".join((*lines[:1], *lines[2:])))
    outcomes = {one.name: one for one in rewrite(RewriteJob(plan, None))}
    assert outcomes["d.warc.gz"].refused == {"original-changed": 1}
    assert outcomes["c.warc"].state == "left_alone"


@pytest.mark.parametrize("name", [b"WARC-Block-Digest", b"WARC-Payload-Digest"])
def test_empty_digests(tmp_path: Path, name: bytes) -> None:
    """They are not stated: the copy becomes a revisit, and comes back, also from a lost entry."""
    top, body = tmp_path / "in", Random(9).randbytes(2000)
    small_set(top)
    url = b"http://example.com/60"
    fields: dict[str, bytes | None] = {"Payload_Digest": None} if b"Payload" in name else {}
    copy = response(body, (name, b""), number=60, Target_URI=url, Date=LATE, **fields)
    (top / "d.warc").write_bytes(copy)
    outcomes = {one.name: one for one in rewrite(RewriteJob(FakePlan(top), tmp_path / "out"))}
    assert outcomes["d.warc"].revisits == 1 and sum(one.revisits for one in outcomes.values()) == 20
    result = typed("undedup", tmp_path / "out", "--out", tmp_path / "back")
    assert result.status == 0, result.err
    assert (tmp_path / "back" / "d.warc").read_bytes() == copy
    journal = Journal(tmp_path / "out", "d.warc").lines
    first, *_, last = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(first + last)
    result = typed("undedup", tmp_path / "out", "--out", tmp_path / "again")
    assert result.status == 7 and result.totals["records_unproven"] == 1
    again = (tmp_path / "again" / "d.warc").read_bytes()
    assert again == (
        copy if b"Block" in name else copy.replace(b"Digest: ", b"Digest: " + sha1(body))
    )


def test_a_missing_journal(made: Path) -> None:
    journal_of(made, B).unlink()
    totals = check(made)
    assert totals["records_not_restored"] == 0
    assert totals["partial"] == 1
    assert totals["records_unproven"] == len(totals["findings"]) > 3  # type: ignore[arg-type]
    assert "is missing" in str(totals["errors"])


@pytest.mark.parametrize("committed", [True, False])
def test_a_missing_journal_of_an_earlier_run(tmp_path: Path, committed: bool) -> None:
    """What the last run wrote is restored, and what is left would be said to be as it was."""
    top = tmp_path / "in"
    small_set(top)
    shutil.copytree(top, tmp_path / "before")
    plan = FakePlan(top)
    every = list(plan.found)
    plan.found = every[::2]
    run(RewriteJob(plan, None))
    for path in (top / DIRECTORY).glob("*.jsonl"):
        Journal(top, json.loads(path.read_bytes().splitlines()[0])["name"]).commit()
    run(RewriteJob(FakePlan(top), None))
    if committed:
        for path in (top / DIRECTORY).glob("*.jsonl"):
            Journal(top, json.loads(path.read_bytes().splitlines()[0])["name"]).commit()
    whole = typed("undedup", top, "--out", tmp_path / "whole")
    assert (whole.status, whole.totals["findings"]) == (0, [])
    Journal(top, B).lines.with_suffix(".1.committed").unlink()
    totals = check(top)
    assert totals["records_not_restored"] == 0
    assert {one["file"] for one in totals["findings"]} == {B}  # type: ignore[attr-defined]
    assert "its journal in .rewrite/ is missing" in str(totals["errors"])


def test_flipped_bits(made: Path) -> None:
    """Wherever they are."""
    random = Random(5)
    for turn in range(12):
        path = random.choice([one for one in undo_files(made) if one.stat().st_size])
        data = path.read_bytes()
        path.write_bytes(changed_bit(data, random.randrange(8 * len(data))))
        totals = check(made, f"back{turn}")
        assert totals["records_not_restored"] == 0, path
        assert totals["records_unproven"] <= 1, path  # type: ignore[operator]
        path.write_bytes(data)


def test_files_of_the_undo_data_that_are_truncated(made: Path) -> None:
    for number, path in enumerate(undo_files(made)):
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2])
        assert check(made, f"back{number}")["records_not_restored"] == 0
        path.write_bytes(data)


def test_without_the_original_a_record_is_named(made: Path) -> None:
    """Also its original, by file and offset."""
    for path in (made / DIRECTORY).glob("*.dropped"):
        path.unlink()
    (made / "a.warc.gz").unlink()
    back = made.parent / "back"
    result = typed("undedup", made, "--out", back)
    assert result.status == 7
    lost = {
        name: [one for one in result.totals["findings"] if one["file"] == name] for name in NAMES
    }
    assert len(lost["c.warc"]) + len(lost[B]) == result.totals["records_not_restored"]
    assert len(lost[B]) == 12
    assert all("its original, a.warc.gz at " in one["message"] for one in lost[B] + lost["c.warc"])
    assert not (back / B).exists()  # nothing of it can be restored
    assert (result.totals["partial"], result.totals["records"]) == (1, 1)
    revisits = [one for one in records_of(back / "c.warc") if b"WARC-Type: revisit" in one]
    assert len(revisits) == len(lost["c.warc"]) == 6


def test_a_payload_of_another_digest_is_never_written(made: Path) -> None:
    """The original was replaced by a record with the same URL, date and id."""
    for path in (made / DIRECTORY).glob("*.dropped"):
        path.unlink()
    whole = records_of(made / "a.warc.gz")
    (made / "a.warc.gz").write_bytes(
        members(*(one[:-5] + bytes([one[-5] ^ 1]) + one[-4:] for one in whole))
    )
    journal_of(made, B).unlink()
    back = made.parent / "back"
    result = typed("undedup", made, "--out", back)
    assert result.status == 7
    assert not (back / B).exists()
    before = records_before(made, "c.warc")
    for new, old in zip(records_of(back / "c.warc"), before, strict=True):
        assert new == old or b"WARC-Type: revisit" in new
    assert result.totals["records_not_restored"] > 0


def test_revisits_of_crawlers_stay(tmp_path: Path) -> None:
    """They look otherwise; nothing says that a run wrote them."""
    small_set(tmp_path / "in")
    revisit = response(b"", number=90, Target_URI=b"http://example.com/0").replace(
        b"WARC-Type: response", b"WARC-Type: revisit"
    )
    path = tmp_path / "in" / B
    path.write_bytes(path.read_bytes() + members(revisit))
    shutil.copytree(tmp_path / "in", tmp_path / "before")
    run(RewriteJob(FakePlan(tmp_path / "in"), tmp_path / "out"))
    journal_of(tmp_path / "out", B).unlink()
    assert check(tmp_path / "out")["records_not_restored"] == 0
    assert records_of(tmp_path / "back" / B)[-1] == records_before(tmp_path / "out", B)[-1]


def test_dry_run(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}
    places = sorted(made.parent.iterdir())
    for more in ([], ["--out", str(made.parent / "new")]):
        result = typed("undedup", made, "--dry-run", *more)
        assert result.status == 0, result.err
        assert result.totals["dry_run"] is True
        assert result.totals["records"] > 5
    journal_of(made, B).unlink()
    result = typed("undedup", made, "--dry-run")
    assert result.status == 7
    assert result.totals["partial"] == 1
    assert result.totals["findings"][0]["file"] == B
    del before[journal_of_name(made, before)]
    assert {path: path.read_bytes() for path in made.rglob("*") if path.is_file()} == before
    assert sorted(made.parent.iterdir()) == places
    capsys.readouterr()
    assert main(["undedup", str(made), "--dry-run"]) == 7
    shown = capsys.readouterr().out
    assert "records can be restored" in shown
    assert "not proven to be as they were" in shown


def journal_of_name(folder: Path, files: dict[Path, bytes]) -> Path:
    """Return the journal of B among files that were there."""
    stem = Journal(folder, B).lines.stem
    return next(
        p for p in files if p.stem.startswith(stem) and p.suffix in (".jsonl", ".committed")
    )


def test_dry_run_in_place(tmp_path: Path) -> None:
    small_set(tmp_path / "in")
    run(RewriteJob(FakePlan(tmp_path / "in"), None))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    result = typed("undedup", tmp_path / "in", "--in-place", "--dry-run")
    assert result.status == 0
    assert result.totals["exact"] >= 2
    dropped = Journal(tmp_path / "in", B).dropped
    data = dropped.read_bytes()
    dropped.write_bytes(changed_bit(data, 4 * len(data)))
    result = typed("undedup", tmp_path / "in", "--in-place", "--dry-run")
    assert result.status == 7
    assert result.totals["left_alone"] == 1
    assert result.totals["problems"][0]["file"] == B
    dropped.write_bytes(data)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("dry", [False, True])
@pytest.mark.parametrize("cut", [False, True])
def test_damaged_removed_records_are_named_with_the_remedy(
    tmp_path: Path, *, cut: bool, dry: bool
) -> None:
    small_set(tmp_path / "in")
    before = (tmp_path / "in" / B).read_bytes()
    run(RewriteJob(FakePlan(tmp_path / "in"), None))
    dropped = Journal(tmp_path / "in", B).dropped
    data = dropped.read_bytes()
    dropped.write_bytes(data[:-9] if cut else changed_bit(data, 4 * len(data)))
    words = ("--dry-run",) if dry else ()
    result = typed("undedup", tmp_path / "in", "--in-place", *words)
    assert result.status == 7
    damage = f"1 of 12 removed records in {dropped} are damaged"
    remedy = "undedup DIR --out OTHER rebuilds the records from their originals"
    assert f"{damage}; nothing was replaced. " in result.err and remedy in result.err
    result = typed("undedup", tmp_path / "in", "--out", tmp_path / "back")
    assert f"{B}: restored record by record: {damage}" in result.err
    assert "nothing was replaced" not in result.err and "rebuilds" not in result.err
    restored = gzip.decompress((tmp_path / "back" / B).read_bytes())
    assert restored == gzip.decompress(before)


def test_another_file_of_the_size_after_the_run_is_named_with_the_remedy(tmp_path: Path) -> None:
    small_set(tmp_path / "in")
    run(RewriteJob(FakePlan(tmp_path / "in"), None))
    path = tmp_path / "in/c.warc"
    path.write_bytes(path.read_bytes().replace(b"Type: response", b"Type: resource", 1))
    result = typed("undedup", tmp_path / "in", "--in-place")
    dropped = Journal(tmp_path / "in", "c.warc").dropped
    assert f"with its removed records ({dropped}) it is not the file before" in result.err
    assert "undedup DIR --out OTHER rebuilds the records" in result.err


def test_an_undo_that_was_interrupted_is_named(tmp_path: Path) -> None:
    """The file is restored, its journal is still there: that is no damage."""
    small_set(tmp_path / "in")
    shutil.copytree(tmp_path / "in", tmp_path / "before")
    run(RewriteJob(FakePlan(tmp_path / "in"), None))
    shutil.copy2(tmp_path / "before" / B, tmp_path / "in" / B)
    result = typed("undedup", tmp_path / "in", "--out", tmp_path / "back")
    assert result.status == 0, result.err
    assert f"{B}: an interrupted undo restored it" in result.err
    assert (tmp_path / "back" / B).read_bytes() == (tmp_path / "before" / B).read_bytes()
    assert typed("undedup", tmp_path / "in", "--in-place").status == 0
    assert [path.name for path in (tmp_path / "in" / DIRECTORY).iterdir()] == ["lock"]


def test_originals_elsewhere(made: Path) -> None:
    for path in (made / DIRECTORY).glob("*.dropped"):
        path.unlink()
    for path in (made / DIRECTORY).glob(f"{Journal(made, 'a.warc.gz').lines.stem}.*"):
        path.unlink()
    other = made.parent / "other"
    other.mkdir()
    (made / "a.warc.gz").rename(other / "x.warc.gz")
    back = made.parent / "back"
    assert typed("undedup", made, "--out", made.parent / "less").status == 7
    result = typed("undedup", made, "--out", back, "--originals", other)
    assert result.status == 0, result.err
    assert result.totals["findings"] == []
    assert records_of(back / B) == records_before(made, B)
    again = typed("undedup", made, "--out", back, "--originals", other / "x.warc.gz")
    assert again.status == 0
    assert again.totals["existing"] == 2
    missing = typed("undedup", made, "--out", back, "--originals", other / "none")
    assert missing.status == 4
    assert typed("undedup", made, "--in-place", "--originals", other).status == 2


def test_an_unknown_host_is_refused(made: Path) -> None:
    journal = journal_of(made, B)
    lines = journal.read_bytes().splitlines(keepends=True)
    lines[1] = json.dumps({**json.loads(lines[1]), "host": "h7"}).encode() + b"\n"
    journal.write_bytes(b"".join(lines))
    result = typed("undedup", made, "--out", made.parent / "b", "--host", f"h8={made}")
    assert result.status == 2
    assert "h8" in result.err
    assert "names h7" in result.err


def test_a_file_that_lacks_revisits_of_its_journal_is_not_said_to_be_whole(made: Path) -> None:
    """Cut between two members, it is a sound file."""
    path = made / B
    data = path.read_bytes()
    lines = [json.loads(line) for line in journal_of(made, B).read_bytes().splitlines()[1:]]
    last = max(line["new_offset"] for line in lines if "new_offset" in line)
    path.write_bytes(data[:last])
    result = typed("undedup", made, "--out", made.parent / "back")
    assert result.status == 7
    [finding] = result.totals["findings"]
    assert (finding["file"], finding["offset"], finding["restored"]) == (B, last, False)
    assert "is not in the file" in finding["message"] and finding["record_id"]
    kept = journal_of(made, B).read_bytes().splitlines(keepends=True)
    journal_of(made, B).write_bytes(kept[0] + kept[-1])  # no entry can be read, either
    result = typed("undedup", made, "--out", made.parent / "again")
    assert result.status == 7 and "that have no entry" in result.err


def test_another_file_of_that_name_is_copied_and_named(made: Path) -> None:
    other = members(response(b"of somebody else", Target_URI=b"http://other.test/", number=900))
    (made / B).write_bytes(other)
    result = typed("undedup", made, "--out", made.parent / "back")
    assert result.status == 7 and result.totals["left_alone"] == 0
    assert (made.parent / "back" / B).read_bytes() == other
    assert f"{B}: copied as it is: it is not the file that its journal describes" in result.err
    assert result.totals["records_not_restored"] == len(result.totals["findings"]) > 1


def put_back(made: Path, *more: bytes) -> Path:
    """Put B back with all records in full, packed otherwise, and more records behind them."""
    full = b"".join(gz(record, 1) for record in records_before(made, B))
    (made / B).write_bytes(full + members(*more))
    return made / B


def test_what_was_put_back_with_a_revisit_of_a_run_is_not_passed_over(made: Path) -> None:
    """It is of a run whose journal is missing; a revisit of a crawler may be there."""
    of_crawler = revisit(number=900)
    run_wrote = revisit(
        number=901, Payload_Digest=None, Profile=None, Refers_To_Target_URI=None,
        Refers_To_Date=None, Target_URI=b"http://other.test/",
    ).replace(
        b"\r\n\r\n",
        b"\r\nWARC-Profile: %b\r\nWARC-Truncated: length\r\n"
        b"WARC-Refers-To-Target-URI: http://none.test/\r\n"
        b"WARC-Refers-To-Date: 2025-01-01T00:00:00Z\r\n\r\n" % IDENTICAL,
        1,
    )  # fmt: skip
    path = put_back(made, of_crawler)
    result = typed("undedup", made, "--out", made.parent / "back")
    assert f"{B}: it has in full all records that its undo data lists" in result.err
    assert (result.status, result.totals["findings"]) == (0, [])
    assert (made.parent / "back" / B).read_bytes() == path.read_bytes()
    put_back(made, of_crawler, run_wrote)
    result = typed("undedup", made, "--out", made.parent / "again")
    assert (result.status, result.totals["left_alone"]) == (7, 1)
    assert "it has in full" not in result.err and B in result.err
    assert not (made.parent / "again" / B).exists()


def test_two_equal_entries_need_two_records(made: Path) -> None:
    """The revisits were of two equal records, one of which was put back."""
    journal = journal_of(made, B)
    lines = journal.read_bytes().splitlines(keepends=True)
    listed = [at for at, line in enumerate(lines) if b'"new_offset"' in line]
    first, second = (json.loads(lines[at]) for at in listed[:2])
    lines[listed[1]] = json.dumps({**first, "new_offset": second["new_offset"]}).encode() + b"\n"
    journal.write_bytes(b"".join(lines))
    put_back(made)
    result = typed("undedup", made, "--out", made.parent / "back")
    assert result.status == 7
    [finding] = result.totals["findings"]
    assert finding["offset"] == second["new_offset"] and "is not in the file" in finding["message"]


def test_an_entry_of_another_revisit_at_that_offset_is_not_taken(made: Path) -> None:
    """An earlier run's journal may have one there, with the same HTTP header."""
    journal = journal_of(made, B)
    lines = journal.read_bytes().splitlines(keepends=True)
    entries = [line for line in lines if b'"new_offset"' in line]
    first, second = (json.loads(line) for line in entries[:2])
    second["new_offset"] = first["new_offset"]
    earlier = Journal(made, B).lines.with_suffix(".7.committed")
    earlier.write_bytes(lines[0] + json.dumps(second).encode() + b"\n")
    journal.write_bytes(b"".join(line for line in lines if line != entries[0]))
    result = typed("undedup", made, "--out", made.parent / "back")
    now, before = records_of(made.parent / "back" / B), records_before(made, B)
    wrong = [new for new, old in zip(now, before, strict=True) if new != old]
    assert all(b"WARC-Type: revisit" in record for record in wrong) and result.status == 7
