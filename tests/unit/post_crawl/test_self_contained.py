"""Self-contained subsets: records copied byte for byte, with all originals of their revisits."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from warcio.archiveiterator import ArchiveIterator

from dedupindex.post_crawl.self_contained import SubsetFilter, SubsetReport, export
from dedupindex.verify.collection import Collection
from dedupindex.verify.issues import REASONS, REMARK
from tests.support.commands import typed
from tests.support.verifying import asked, copy_of, page, write
from tests.support.warc_cases import NOT_MODIFIED, gz, record, record_id, revisit
from tests.unit.warc.test_arc import document, header

INFO = record(b"warcinfo", b"software: x\r\n", number=900, Target_URI=None,
              Content_Type=b"application/warc-fields")  # fmt: skip
OTHER = b"<p>other" * 100


def exported(
    folder: Path,
    wanted: SubsetFilter,
    *sources: Path,
    originals: tuple[Path, ...] = (),
    out: str = "o",
) -> SubsetReport:
    """Export; the output must verify, except for dangling revisits."""
    done = export(list(map(str, sources)), list(map(str, originals)), wanted, folder / out)
    if done.files:
        reasons = {finding.reason for finding in Collection([folder / out]).findings()}
        assert {one for one in reasons if REASONS[one] != REMARK} == set(_unsound(done))
    assert not [path for path in folder.rglob(".*")]
    return done


def _unsound(done: SubsetReport) -> list[str]:
    return [reason for reason in done.findings if REASONS[reason] != REMARK]


def one(number: int) -> SubsetFilter:
    return SubsetFilter(urls=(b"http://example.com/%d" % number,))


def test_a_revisit_brings_its_original(tmp_path: Path) -> None:
    records = [INFO, page(1), asked(1), page(2, OTHER), copy_of(3, 1), asked(3)]
    path = write(tmp_path / "a.warc.gz", records)
    done = exported(tmp_path, one(3), path)
    assert (done.records, done.originals, done.revisits, done.dangling) == (2, 1, 1, 0)
    wanted = b"".join(map(gz, [INFO, page(1), copy_of(3, 1), asked(3)]))
    assert (tmp_path / "o" / "a.warc.gz").read_bytes() == wanted
    exported(tmp_path, one(3), path, out="one.warc.gz")
    assert (tmp_path / "one.warc.gz").read_bytes() == wanted


def test_originals_in_another_place(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    old = write(tmp_path / "in" / "old.warc.gz", [INFO, page(1), page(2, OTHER)])
    new = write(tmp_path / "new.warc.gz", [INFO, copy_of(3, 1)])
    alone = exported(tmp_path, SubsetFilter(), new, out="alone")
    assert (alone.originals, alone.dangling, alone.findings["dangling"]) == (0, 1, 1)
    done = exported(tmp_path, SubsetFilter(), new, originals=(old.parent,), out="both")
    assert (done.records, done.originals, done.dangling, done.findings) == (1, 1, 0, {})
    assert (tmp_path / "both" / "old.warc.gz").read_bytes() == gz(INFO) + gz(page(1))


def test_an_original_that_is_also_wanted_is_copied_once(tmp_path: Path) -> None:
    path = write(tmp_path / "a.warc.gz", [page(1), copy_of(3, 1)])
    done = exported(tmp_path, SubsetFilter(), path, originals=(tmp_path,))
    assert (done.records, done.originals) == (2, 0)
    assert (tmp_path / "o" / "a.warc.gz").read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    "fields",
    [
        {"Refers_To_Target_URI": None, "Refers_To_Date": None},  # wget
        {"Refers_To": None},
        {"Refers_To": None, "Refers_To_Date": None},
        {"Refers_To": None, "Refers_To_Target_URI": None, "Refers_To_Date": None},
        {"Refers_To": record_id(77), "Refers_To_Date": b"2001-01-01T00:00:00Z"},
    ],
)
def test_revisits_with_few_fields(tmp_path: Path, fields: dict[str, Any]) -> None:
    path = write(tmp_path / "a.warc.gz", [page(1), page(2, OTHER), copy_of(3, 1, **fields)])
    done = export([str(path)], [], one(3), tmp_path / "o")
    assert (done.originals, done.dangling) == (1, 0)
    assert (tmp_path / "o" / "a.warc.gz").read_bytes().startswith(gz(page(1)))


def test_what_is_neither_full_nor_a_revisit_is_no_original(tmp_path: Path) -> None:
    """wget's revisits state only an id, and its requests have their URL and second."""
    bare = {"Refers_To_Target_URI": None, "Refers_To_Date": None}
    records = [page(1), copy_of(3, 1, **bare), asked(3)]
    path = write(tmp_path / "a.warc.gz", records)
    done = export([str(path)], [], one(3), tmp_path / "o")
    assert (done.records, done.originals, done.dangling) == (2, 1, 0)
    assert (tmp_path / "o" / "a.warc.gz").read_bytes() == b"".join(map(gz, records))
    away = write(tmp_path / "away.warc.gz", records[1:])
    assert export([str(away)], [], one(3), tmp_path / "p").dangling == 1


def test_a_record_of_another_payload_is_no_original(tmp_path: Path) -> None:
    path = write(tmp_path / "a.warc.gz", [page(1, OTHER), copy_of(3, 1)])
    done = exported(tmp_path, one(3), path)
    assert (done.originals, done.dangling) == (0, 1)


def test_chains_are_followed_to_their_end(tmp_path: Path) -> None:
    path = write(tmp_path / "a.warc.gz", [page(1), copy_of(2, 1), copy_of(3, 2)])
    done = exported(tmp_path, one(3), path)
    assert (done.originals, done.revisits) == (2, 2)
    assert (tmp_path / "o" / "a.warc.gz").read_bytes() == path.read_bytes()
    assert set(done.findings) == {"chained"}


def test_what_shares_the_member_of_an_original_brings_its_own(tmp_path: Path) -> None:
    """A gzip member is copied whole, so its revisits need their originals, too."""
    shared, last = tmp_path / "shared.warc.gz", page(4, OTHER)
    shared.write_bytes(gz(page(1) + copy_of(2, 4, OTHER)))
    wanted = write(tmp_path / "a.warc.gz", [copy_of(3, 1)])
    places = (shared, write(tmp_path / "b.warc.gz", [last]))
    done = exported(tmp_path, one(3), wanted, originals=places, out="one.warc.gz")
    assert (done.revisits, done.dangling) == (2, 0)
    assert gz(last) in (tmp_path / "one.warc.gz").read_bytes()


def test_what_shares_the_member_of_a_warcinfo_brings_its_own(tmp_path: Path) -> None:
    shared, last = tmp_path / "a.warc.gz", page(4, OTHER)
    shared.write_bytes(gz(INFO + copy_of(2, 4, OTHER)) + gz(page(1)))
    done = exported(
        tmp_path, one(1), shared, write(tmp_path / "b.warc.gz", [last]), out="o.warc.gz"
    )
    assert (done.revisits, done.dangling) == (1, 0)
    assert gz(last) in (tmp_path / "o.warc.gz").read_bytes()


def test_revisits_of_the_profile_server_not_modified(tmp_path: Path) -> None:
    bare = {"Refers_To_Target_URI": None, "Refers_To_Date": None, "Payload_Digest": None}
    path = write(tmp_path / "a.warc.gz", [page(1), revisit(Profile=NOT_MODIFIED, **bare)])
    done = export([str(path)], [], SubsetFilter(urls=(b"http://example.com/",)), tmp_path / "o")
    assert (done.records, done.revisits, done.dangling) == (2, 0, 0)


@pytest.mark.parametrize("suffix", ["warc.gz", "warc.zst"])
def test_zero_bytes_before_the_first_record(tmp_path: Path, suffix: str) -> None:
    """Its members are copied, not compressed once more."""
    path = write(tmp_path / f"a.{suffix}", [page(1), copy_of(3, 1)])
    members = path.read_bytes()
    path.write_bytes(b"\0" * 16 + members)
    done = exported(tmp_path, SubsetFilter(), path, out="one.warc.gz")
    assert (done.records, done.revisits, done.dangling) == (2, 1, 0)
    records = gzip.decompress((tmp_path / "one.warc.gz").read_bytes())
    assert records == page(1) + copy_of(3, 1)


def test_filters(tmp_path: Path) -> None:
    urls = [b"http://a.example.com/x", b"http://example.com/x", b"http://b.org/x"]
    records = [page(number, Target_URI=url) for number, url in enumerate(urls, 1)]
    path = write(tmp_path / "a.warc.gz", records)
    for number, (wanted, count) in enumerate(
        (
            (SubsetFilter(), 3),
            (SubsetFilter(hosts=(b"example.com",)), 2),
            (SubsetFilter(hosts=(b"example.com",), urls=(b"http://b.",)), 3),
            (SubsetFilter(urls=(b"https://",)), 0),
            (SubsetFilter(begin=b"20261102000000"), 2),
            (SubsetFilter(end=b"20261101999999"), 1),
            (SubsetFilter(begin=b"20261102000000", end=b"20261102999999"), 1),
        )
    ):
        assert exported(tmp_path, wanted, path, out=str(number)).records == count
        assert (tmp_path / str(number)).exists() == bool(count)


def test_plain_files_and_members_of_several_records(tmp_path: Path) -> None:
    plain = write(tmp_path / "a.warc", [INFO, page(1), page(2, OTHER), copy_of(3, 1)], plain=True)
    exported(tmp_path, one(3), plain)
    kept = INFO + page(1) + copy_of(3, 1)
    assert (tmp_path / "o" / "a.warc").read_bytes() == kept
    exported(tmp_path, one(3), plain, out="p.warc.gz")
    assert gzip.decompress((tmp_path / "p.warc.gz").read_bytes()) == kept
    several = tmp_path / "b.warc.gz"
    several.write_bytes(gz(INFO) + gz(page(1)) + gz(page(2, OTHER) + copy_of(3, 1)))
    assert exported(tmp_path, one(3), several, out="q").records == 2
    assert (tmp_path / "q" / "b.warc.gz").read_bytes() == several.read_bytes()


def test_arc_files(tmp_path: Path) -> None:
    first = document(url=b"http://example.com/1")
    path = tmp_path / "a.arc.gz"
    path.write_bytes(gz(header()) + gz(first) + gz(document(url=b"http://example.com/2")))
    exported(tmp_path, one(1), path)
    assert (tmp_path / "o" / "a.arc.gz").read_bytes() == gz(header()) + gz(first)
    _, talk = typed("export", "--self-contained", path, "-o", tmp_path / "x.warc.gz", status=4)
    assert (
        "give -o a directory instead of a .warc.gz" in talk
        and not (tmp_path / "x.warc.gz").exists()
    )


def test_the_command(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.warc.gz", [INFO, page(1), page(2, OTHER)])
    write(tmp_path / "in" / "b.warc.gz", [copy_of(3, 1), copy_of(4, 9, OTHER + b"!")])
    words = ("export", "--self-contained", tmp_path / "in", "--json", "-o")
    url = ("--url", "http://example.com/3")
    out, talk = typed(*words, tmp_path / "x.warc.gz", *url)
    assert talk == ""
    report = json.loads(out)
    assert (report["records"], report["originals"], report["dangling"], report["files"]) == (
        1,
        1,
        0,
        1,
    )
    typed("verify", tmp_path / "x.warc.gz")
    _, talk = typed(*words, tmp_path / "x.warc.gz", *url, status=4)
    assert "exists already" in talk
    out, talk = typed(*words, tmp_path / "all", "--from", "2026-11-03", status=8)
    assert "b.warc.gz at" in talk and "dangling" in talk
    assert json.loads(out)["dangling"] == 1 and json.loads(out)["originals"] == 1
    assert "http://example.com/9 of 2026-11-09" in talk and "--originals" in talk
    _, talk = typed(*words, tmp_path / "all", status=4)
    assert "exists already" in talk
    for date in ("nonsense", "2026-13", "2026-02-30", "202602302", "2026-02-01T24"):
        typed(*words, tmp_path / "y", "--to", date, status=4)
    _, talk = typed(*words, tmp_path / "y", "--host", "nowhere.test")
    assert "nothing was written" in talk and not (tmp_path / "y").exists()
    none = tuple(word for word in words if word != "--json")
    out, _ = typed(*none, tmp_path / "y", "--host", "nowhere.test")
    assert out == ""
    typed("export", "--self-contained", tmp_path / "in", status=2)
    typed("export", "--wget", tmp_path / "in", "--host", "x", status=2)


def test_revisits_without_an_original_are_all_counted(tmp_path: Path) -> None:
    write(tmp_path / "a.warc.gz", [copy_of(number, 1) for number in range(2, 6)])
    words = [sys.executable, "-m", "dedupindex", "export", "a.warc.gz", "--self-contained"]
    done = subprocess.run(
        [*words, "-o", "x.warc.gz"], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert "4 revisits, 4 of them without an original" in done.stdout and done.returncode == 8
    assert "warning: x.warc.gz at 0: dangling" in done.stderr and ".part" not in done.stderr


def test_damage_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.warc.gz", [page(1), page(2)])
    path.write_bytes(path.read_bytes()[:-5])
    out, talk = typed("export", "--self-contained", path, "-o", tmp_path / "o", "--json", status=7)
    assert json.loads(out)["records"] == 1 and "cut short" in talk
    assert (tmp_path / "o" / "a.warc.gz").read_bytes() == gz(page(1))


@pytest.mark.parametrize("end", [b"", b"\r\n"])
def test_records_without_line_ends_are_separated(tmp_path: Path, end: bytes) -> None:
    """Every reader can separate two adjacent ones in a plain file."""
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "a.warc"
    path.write_bytes(page(1, end=end) + page(2) + page(3, end=end) + page(4, end=end))
    urls = tuple(b"http://example.com/%d" % number for number in (1, 3, 4))
    done = exported(tmp_path, SubsetFilter(urls=urls), path)
    assert (done.records, done.problems) == (3, [])
    with open(tmp_path / "o" / "a.warc", "rb") as stream:
        assert [record.rec_type for record in ArchiveIterator(stream)] == ["response"] * 3
    arc = tmp_path / "in" / "b.arc"
    arc.write_bytes(header() + document(b"first", end=b"") + document(b"second", end=b""))
    done = exported(tmp_path, SubsetFilter(urls=(b"http://example.com/",)), arc, out="arc")
    with open(tmp_path / "arc" / "b.arc", "rb") as stream:
        assert len(list(ArchiveIterator(stream))) == 3
