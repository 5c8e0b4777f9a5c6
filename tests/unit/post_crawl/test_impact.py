"""Impact of removing captures: counts, lists, and refusal without --force."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dedupindex.capture import Capture, Evidence, Revisit
from dedupindex.crawls import lifecycle, merge_crawls
from dedupindex.crawls.crawl import CrawlState
from dedupindex.crawls.crawl_captures import add, of_crawl
from dedupindex.crawls.store import Store, Writing
from dedupindex.crawls.stores import make_store
from dedupindex.crawls.stores.lmdb_crawl_store import LmdbStore
from dedupindex.errors import (
    BadInput,
    CrawlEnded,
    Damaged,
    HasDependents,
    IndexUnavailable,
    UnknownCrawl,
)
from dedupindex.index import open_index
from dedupindex.index.engines.lmdb.lmdb_engine import LmdbView
from dedupindex.index.engines.whoosh.whoosh_engine import WhooshView
from dedupindex.index.format import ledger
from dedupindex.index.format.cells import digest_of_key
from dedupindex.index.format.file_names import files_of, is_container, note_file
from dedupindex.index.format.packing import pack
from dedupindex.index.identity import Settings
from dedupindex.indexer import spot_check
from dedupindex.indexer.admission import admission_filter
from dedupindex.post_crawl.purge.impact import (
    DependentRevisit,
    Impact,
    Item,
    RemovedCopy,
    RemovedOriginal,
    RemovedRevisit,
    UnmergedCapture,
)
from dedupindex.post_crawl.purge.remove import PurgeSurvey, purge, survey, unread_as_text
from dedupindex.post_crawl.purge.target import CaptureTarget, Target, TargetKind
from tests.conftest import ENGINES, On
from tests.support.captures import capture, sha1
from tests.support.commands import typed
from tests.support.paths import ROOT
from tests.support.purging import begin, held, load, revisit_of

A, B, C = (b"http://example.com/a", b"http://example.com/b", b"http://example.com/c")
FIRST, SECOND, BACKUP = "/w/first.warc.gz", "/w/second.warc.gz", "/copy/backup.warc.gz"
SETTINGS = Settings()


def container(*names: str) -> Target:
    return Target(TargetKind.CONTAINER, names)


def listed(
    index: Path, target: Target
) -> tuple[PurgeSurvey, list[RemovedOriginal], list[DependentRevisit]]:
    seen: list[Item] = []
    found = survey(index, target, seen.append)
    return (
        found,
        [one for one in seen if isinstance(one, RemovedOriginal)],
        [one for one in seen if isinstance(one, DependentRevisit)],
    )


@pytest.fixture(params=ENGINES)
def index(tmp_path: Path, on: On, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Three payloads of the first file: one also in a second, one at another URL, one nowhere."""
    with on(request.param) as new:
        yield begun(tmp_path, new())


of_files = pytest.mark.parametrize("index", ["lmdb", "whoosh"], indirect=True)


def begun(directory: Path, engine: str) -> Path:
    index = begin(directory, engine)
    first = [capture(number, url, 1, container=FIRST) for number, url in enumerate((A, B, C), 1)]
    load(index, first)
    load(index, [capture(1, A, 2, container=SECOND), capture(2, C, 2, container=SECOND)])
    revisits = [revisit_of(one, one.url, 1 + at, crawl="weekly") for at, one in enumerate(first)]
    load(index, [], [*revisits, revisit_of(first[2], A, 9)])
    return index


def test_impact_lists_successors_and_dependents(index: Path) -> None:
    found, going, depending = listed(index, container("first.warc.gz"))
    impact = found.impact
    assert found.found == {0} and (impact.originals.captures, impact.originals.bytes) == (3, 3006)
    left = {name: (one.captures, one.bytes) for name, one in impact.left.items()}
    assert left == {"same_url": (1, 1001), "other_url": (1, 1002), "nowhere": (1, 1003)}
    assert (impact.dependents.captures, impact.dependents.bytes) == (4, 1001 + 1002 + 2 * 1003)
    assert (impact.broken.captures, impact.broken.bytes) == (2, 2006)
    becomes = {one.capture.url: one.successor and one.successor.container for one in going}
    assert becomes == {A: SECOND, B: None, C: None}
    assert {(one.dependent.url, one.left) for one in depending} == {
        (A, "same_url"), (B, "other_url"), (C, "nowhere"), (A, "nowhere"),
    }  # fmt: skip
    assert all(one.dependent.names_date.startswith(b"2026-11-01") for one in depending)
    assert dict(impact.by_crawl.items()) == {b"weekly": (3, 3006, 0), b"": (1, 1003, 0)}
    assert dict(impact.by_container.items()) == {b"/w/r.warc.gz": (4, 4009, 0)}


def test_a_purge_is_refused_while_others_depend_and_changes_nothing(index: Path) -> None:
    before = held(index)
    with pytest.raises(HasDependents, match="4 revisits"):
        purge(index, container(FIRST), force=False)
    assert held(index) == before
    purge(index, container(FIRST), force=True)
    left = {(one.url, one.container) for _, one in held(index)}
    assert left == {(A, SECOND), (C, SECOND)}
    done = held(index)
    assert not purge(index, container(FIRST), force=False).impact.dependents.captures
    assert held(index) == done


def test_purged_captures_are_not_loaded_again(index: Path) -> None:
    gone = capture(3, C, 1, container=FIRST)
    purge(index, container(FIRST), force=True)
    after = held(index)
    claim = gone._replace(evidence=Evidence.NAMED, container="")
    row = gone._replace(evidence=Evidence.ROW, container="")
    load(index, [gone, claim, row])
    assert held(index) == after
    load(index, [gone._replace(container=BACKUP)])  # another file has the record, too
    assert (str(sha1(3)), BACKUP) in {(digest, one.container) for digest, one in held(index)}


def test_rows_of_a_purged_file_stay_away_by_whatever_name_and_crawl(tmp_path: Path) -> None:
    index = begin(tmp_path)
    inner = "/w/a.wacz/archive/data.warc.gz"
    kept = capture(4, C, 1, container=SECOND)
    load(index, [capture(1, A, 1, container=FIRST), capture(2, B, 1, container=inner), kept])
    rows = [
        capture(number, url, 1, container=name, crawl=crawl, evidence=Evidence.ROW)
        for number, url, names in (
            (1, A, ("first.warc.gz", FIRST, "out/first.warc.gz", "")),
            (2, B, ("data.warc.gz", inner, "a.wacz", "/w/a.wacz", "")),
        )
        for name in names
        for crawl in ("", "other")
    ]
    load(index, rows[5:6])
    told = survey(index, container("data.warc.gz", FIRST)).impact
    assert (told.originals.captures, told.copies.captures) == (2, 0)  # the row lists the record
    purge(index, container("data.warc.gz", FIRST), force=False)
    for row in rows:
        load(index, [row])
    assert held(index) == [(str(sha1(4)), kept)]
    moved = rows[0]._replace(container="/crawls/first.warc.gz")  # where the crawler had the file
    load(index, [moved])
    assert held(index) == [(str(sha1(4)), kept)]
    load(index, [moved._replace(container="/crawls/second.warc.gz")])  # a row of another file
    load(index, [moved._replace(evidence=Evidence.RECORD)])  # no row: the file is read
    assert len(held(index)) == 2


def test_a_row_does_not_hide_the_files_that_hold_its_record() -> None:
    """A relative path may be longer than that of the file, and name any of its copies."""
    for first in (["crawl-data/warc/x.warc.gz"], []):
        names = [*first]
        for name, at in (
            ("/a/x.warc.gz", 0),
            ("/b/x.warc.gz", 1),
            ("crawl-data/warc/x.warc.gz", 0),
        ):
            assert note_file(names, name) == at
        assert names == ["/a/x.warc.gz", "/b/x.warc.gz"]


def test_rows_that_may_list_purged_records_are_reported_and_purged(tmp_path: Path) -> None:
    index = begin(tmp_path)
    one = capture(1, A, 1, container="first.warc.gz", evidence=Evidence.ROW)
    other, copied = one._replace(container=BACKUP), one._replace(container="/b/first.warc.gz")
    load(index, [one, other, copied], [revisit_of(one, B, 2)])
    record = copied._replace(evidence=Evidence.RECORD)
    for _ in range(2):
        impact = survey(index, container(FIRST)).impact
        assert impact.originals.captures + impact.copies.captures == 1
        assert not impact.dependents.captures  # it is in the backup, too
        load(index, [])
    purge(index, container(FIRST), force=False)
    assert [found for _, found in held(index)] == [other]
    load(index, [copied, record])
    assert [found for _, found in held(index)] == [record]  # no row: the file itself


def test_no_copy_of_a_record_with_a_purged_url_comes_back(index: Path) -> None:
    target = Target(TargetKind.URL, (C.decode(),))
    purge(index, target, force=True)
    after = held(index)
    assert all(one.url != C for _, one in after)
    gone = capture(3, C, 1, container=BACKUP)
    load(index, [gone, capture(3, C, 4, evidence=Evidence.NAMED, container="")])
    assert held(index) == after
    load(index, [capture(3, C, 20, container=BACKUP)])  # but another capture of it is no copy
    assert len(held(index)) == len(after) + 1


def test_a_copy_of_the_same_record_keeps_its_revisits_whole(tmp_path: Path) -> None:
    index = begin(tmp_path)
    one = capture(1, A, 1, container=FIRST)
    load(index, [one, one._replace(container=BACKUP)], [revisit_of(one, B, 2)])
    found, going, depending = listed(index, container(BACKUP))
    assert found.impact.originals.captures + found.impact.copies.captures == 1
    assert not depending
    purge(index, container(BACKUP), force=False)
    purge(index, container(FIRST), force=True)
    assert held(index) == []


def test_revisits_that_are_purged_too_or_read_twice_are_not_counted_again(tmp_path: Path) -> None:
    index = begin(tmp_path)
    one = capture(1, A, 1, container=FIRST)
    inside, outside = revisit_of(one, B, 2, FIRST), revisit_of(one, B, 3, SECOND)
    load(index, [one], [inside, outside, outside])
    load(index, [], [outside, revisit_of(one, B, 3, BACKUP)])
    assert survey(index, container(FIRST)).impact.dependents.captures == 1
    nameless = Revisit(revisit_of(one, A, 4, SECOND).capture, None)  # it can only mean this
    load(index, [], [nameless])
    assert survey(index, container(FIRST)).impact.dependents.captures == 2
    load(index, [capture(1, A, 5, container=SECOND)])
    assert survey(index, container(FIRST)).impact.dependents.captures == 1


def test_a_capture_that_was_reported_and_then_read_is_no_copy(tmp_path: Path) -> None:
    """A crawler names its file without the directory."""
    index = begin(tmp_path)
    reported = capture(1, A, 1, container="first.warc.gz", crawl="weekly")
    read = reported._replace(container=FIRST)
    found = []
    for added in (reported, read, read._replace(container=BACKUP)):  # the backup answers then
        load(index, [added])
        impact = survey(index, container(FIRST)).impact
        found.append((impact.originals.captures, impact.copies.captures))
    assert found == [(1, 0), (1, 0), (0, 1)]
    both = survey(index, container(FIRST, BACKUP)).impact
    assert (both.originals.captures, both.copies.captures) == (1, 1)
    load(index, [capture(1, A, 2, container=FIRST, crawl="weekly")])  # the payload came again
    assert survey(index, container(FIRST)).impact.copies.captures == 2


def test_containers_are_meant_by_path_and_by_name() -> None:
    assert is_container("/w/a.gz", "/w/a.gz") and is_container("/w/a.gz", "a.gz")
    assert is_container("a.gz", "/w/a.gz") and is_container("a.gz", "a.gz")
    assert not is_container("/w/a.gz", "/x/a.gz") and not is_container("a.gz", "ba.gz")
    assert list(files_of("/archive/a.wacz/archive/archive/w.gz")) == [
        "/archive/a.wacz/archive/archive/w.gz", "/archive/a.wacz/archive", "/archive/a.wacz",
    ]  # fmt: skip
    with pytest.raises(BadInput):
        Target(TargetKind.URL, ("",))


@of_files
def test_single_captures_are_looked_up_by_their_digests(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = list[bytes]()
    # The sample that a purge ends with is of a bounded number of keys, from all over the index.
    monkeypatch.setattr(spot_check, "sample_purge", lambda *_: spot_check.PurgeSample([], []))
    for kind in (LmdbView, WhooshView):
        monkeypatch.setattr(kind, "cells", _noting(kind.cells, looked_at))
    before = sorted((index / "ledger").iterdir())
    gone = purge(
        index, Target(TargetKind.CAPTURE, captures=(CaptureTarget(sha1(9), A),)), force=True
    )
    assert not gone.found and not looked_at
    target = Target(
        TargetKind.CAPTURE, captures=(CaptureTarget(sha1(3), C), CaptureTarget(sha1(2), C))
    )
    found, going, depending = listed(index, target)
    assert found.found == {0, 1} and len(going) == 2 and len(depending) == 2
    assert {digest_of_key(key) for key in looked_at} == {sha1(2), sha1(3)}
    assert purge(index, target, force=True).impact.originals == found.impact.originals
    assert sorted((index / "ledger").iterdir()) == before  # it holds none of them
    purge(index, Target(TargetKind.CAPTURE, captures=(CaptureTarget(sha1(1), A),)), force=True)
    assert sorted((index / "ledger").iterdir()) != before
    assert [found.url for _, found in held(index)] == [B]


def _noting(cells: Any, keys: list[bytes]) -> Any:
    def noting(view: Any, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        for key, cell in cells(view, prefix):
            keys.append(key)
            yield key, cell

    return noting


@of_files
def test_an_index_knows_whether_it_has_further_digests(index: Path) -> None:
    def knows() -> bool:
        with closing(open_index(index)) as engine, engine.view() as view:
            return view.own_digests()

    def compact() -> None:
        with closing(open_index(index, write=True)) as engine:
            engine.compact()

    assert knows()
    compact()
    assert knows()
    load(index, [capture(4, A, also=(sha1(7),))])
    assert not knows()
    load(index, [capture(5, A)])
    compact()
    assert not knows()


def test_single_captures_go_under_all_their_digests(tmp_path: Path) -> None:
    index = begin(tmp_path)
    one = capture(1, A, 1, also=(sha1(7),))
    load(index, [one, capture(1, A, 2)])
    target = Target(
        TargetKind.CAPTURE,
        captures=(CaptureTarget(sha1(1), A, one.date), CaptureTarget(sha1(9), A)),
    )
    assert purge(index, target, force=False).found == {0}
    assert [(digest, found.date[:10]) for digest, found in held(index)] == [
        (str(sha1(1)), b"2026-11-02")
    ]


def run(*words: object, status: int = 0) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "dedupindex", *map(str, words)], capture_output=True, check=False
    )
    assert done.returncode == status, done.stderr
    return done.stdout


def test_a_purge_removes_only_what_was_shown(tmp_path: Path) -> None:
    index = begin(tmp_path)
    load(index, [capture(1, A, 1)])
    words = (index, "--url", A.decode(), "--json")
    shown = json.loads(run("impact", *words))["fingerprint"]
    load(index, [capture(2, A, 2)])
    run("purge", *words, "--expect", shown, status=BadInput.exit_status)
    assert len(held(index)) == 2
    shown = json.loads(run("impact", *words))["fingerprint"]
    assert json.loads(run("purge", *words, "--expect", shown))["fingerprint"] == shown
    assert held(index) == []


@pytest.mark.parametrize(
    ("sizes", "shown", "expected"),
    [
        ((-1, -1), "size unknown", {"captures": 2, "bytes": None, "unsized": 2}),
        ((1500, -1), "1.5 kB and 1 of unknown size", {"captures": 2, "bytes": 1500, "unsized": 1}),
    ],
)
def test_unknown_sizes_are_not_added_as_nothing(
    tmp_path: Path, sizes: tuple[int, int], shown: str, expected: dict[str, int | None]
) -> None:
    index = begin(tmp_path)
    originals = [capture(number, A, 1) for number in (1, 2)]
    load(index, [one._replace(size=size) for one, size in zip(originals, sizes, strict=True)])
    found = json.loads(run("impact", index, "--url", A.decode(), "--json"))
    assert found["originals"] == found["nowhere"] == expected
    text = run("impact", index, "--url", A.decode()).decode()
    assert f"  {shown}  would be removed" in text


def test_crawls_are_listed_if_any_has_a_name(index: Path, tmp_path: Path) -> None:
    """Beside the lines of files, one of all files without a crawl would look like another file."""
    assert b"  in crawl weekly: " in run("impact", index, "--container", FIRST)
    one = capture(1, A, 1, container=FIRST)
    other = begin(tmp_path / "other")
    load(other, [one], [revisit_of(one, B, 4, "/w/later.warc.gz")])
    text = run("impact", other, "--container", FIRST)
    assert b"  in file /w/later.warc.gz: 1 revisit, " in text and b"in crawl" not in text


def test_the_commands_impact_and_purge(index: Path) -> None:
    report = json.loads(run("impact", index, "--container", FIRST, "--container", "x", "--json"))
    assert report["found"] == 1 and report["not_found"] == ["x"]
    assert report["dependents"] == {"captures": 4, "bytes": 4009, "unsized": 0}
    lines = run("impact", index, "--container", FIRST, "--list").splitlines()
    assert sum(line.startswith(b'{"original"') for line in lines) == 3
    assert sum(line.startswith(b'{"dependent"') for line in lines) == 4
    assert list(map(json.loads, lines))  # the counts are not among them: see --help
    run("purge", index, "--container", FIRST, status=HasDependents.exit_status)
    assert len(held(index)) == 4
    done = json.loads(run("purge", index, "--container", FIRST, "--force", "--json"))
    assert done["originals"]["captures"] == 3 and len(held(index)) == 2
    run("impact", index, "--container", "a", "--url", "b", status=2)
    run("impact", index, "--crawl", "a", "--prefix", status=2)


def test_captures_of_a_url_that_are_revisits_are_counted_and_listed(index: Path) -> None:
    first = capture(1, A, 1, container=FIRST)
    again = [revisit_of(first, A, day, f"/w/later-{day}.warc.gz") for day in (4, 5)]
    load(index, [], [*again, revisit_of(first, A, 5, "/copy/later-5.warc.gz")])
    report = json.loads(run("impact", index, "--url", A.decode(), "--json"))
    assert report["revisits"]["captures"] == 5  # two more are in /w/r.warc.gz
    lines = run("impact", index, "--url", A.decode(), "--list").splitlines()
    going = [json.loads(line)["revisit"] for line in lines if line.startswith(b'{"revisit"')]
    files = {one["container"] for one in going}
    assert files == {f"/w/{name}.warc.gz" for name in ("r", "later-4", "later-5")} | {
        "/copy/later-5.warc.gz"
    }
    text = run("purge", index, "--url", A.decode(), "--force").decode()
    assert "revisit records          5" in text and "unchanged" not in text
    run("impact", index, "--url", A.decode(), status=10)


def test_files_of_copies_are_listed(index: Path) -> None:
    """Each file that stores the payload is named, also if its capture answers nothing."""
    words = (index, "--url", A.decode())
    report = json.loads(run("impact", *words, "--json"))
    assert (report["originals"]["captures"], report["copies"]["captures"]) == (1, 1)
    listed = list(map(json.loads, run("impact", *words, "--list", "--json").splitlines()[:-1]))
    (first,) = (line["original"] for line in listed if "original" in line)
    (copy,) = (line["copy"] for line in listed if "copy" in line)
    assert (first["container"], copy["container"]) == (FIRST, SECOND)
    assert first.keys() == copy.keys() and copy["size"] == first["size"] == 1001
    lines = run("purge", *words, "--force", "--list", "--json").splitlines()[:-1]
    assert list(map(json.loads, lines)) == listed


def test_a_copy_under_further_digests_is_listed_once(tmp_path: Path) -> None:
    index = begin(tmp_path)
    one = capture(1, A, 1, container=FIRST, also=(sha1(7),))
    load(index, [one, one._replace(container=BACKUP), one._replace(container="backup.warc.gz")])
    seen: list[Item] = []
    found = survey(index, Target(TargetKind.URL, (A.decode(),)), seen.append)
    copies = [item.capture.container for item in seen if isinstance(item, RemovedCopy)]
    assert found.impact.copies.captures == len(copies) == 1
    originals = [item.capture.container for item in seen if isinstance(item, RemovedOriginal)]
    assert {*copies, *originals} == {FIRST, BACKUP}


@pytest.mark.parametrize("by_url", [True, False])
def test_a_revisit_that_goes_has_the_size_of_its_original(
    engine: str, tmp_path: Path, by_url: bool
) -> None:
    """Also if another URL has that, or another date; not if nothing of its key is stored."""
    index = begin(tmp_path, engine)
    first, other = capture(1, A, 1, container=FIRST), capture(2, B, 1, container=SECOND)
    unknown = capture(3, A, 1, container=FIRST)._replace(size=-1)
    stated = revisit_of(other, C, 2)
    stated = stated._replace(capture=stated.capture._replace(size=5000))
    later = revisit_of(first._replace(date=b"2026-11-09T00:00:00Z"), C, 3)
    away = [revisit_of(other, C, 4), revisit_of(capture(4, A), C, 5), revisit_of(unknown, C, 6)]
    load(index, [first, other, unknown], [revisit_of(first, C, 1), stated, later, *away])
    target = Target(TargetKind.URL, (C.decode(),)) if by_url else container("/w/r.warc.gz")
    seen: list[Item] = []
    impact = survey(index, target, seen.append).impact
    sizes = {one.dependent.date[8:10]: one.size for one in seen if isinstance(one, RemovedRevisit)}
    assert sizes == {b"01": 1001, b"02": 5000, b"03": 1001, b"04": 1002, b"05": -1, b"06": -1}
    assert (impact.revisits.captures, impact.revisits.unsized) == (6, 2)
    assert impact.revisits.bytes == 1001 + 5000 + 1001 + 1002


def test_a_url_that_has_only_revisits_is_found(index: Path) -> None:
    url = b"http://example.com/only-revisits"
    load(index, [], [revisit_of(capture(2, B, 1, container=FIRST), url, 7)])
    target = Target(TargetKind.URL, (url.decode(),))
    found, going, depending = listed(index, target)
    assert found.found == {0} and found.impact.revisits.captures == 1
    assert not going and not depending
    purge(index, target, force=False)
    assert not survey(index, target).found


@of_files
def test_impact_of_a_copied_and_of_a_compacted_index(index: Path, tmp_path: Path) -> None:
    run("index", "--compact", index)
    run("index", "--copy", tmp_path / "copied", index)
    for one in (index, tmp_path / "copied"):
        assert survey(one, container(FIRST)).impact.dependents.captures == 4
        purge(one, container(FIRST), force=True)
        assert len(held(one)) == 2


def test_captures_without_duplicates_cost_no_ledger(tmp_path: Path) -> None:
    index = begin(tmp_path)
    load(index, [capture(number, A, 1) for number in range(100)])
    load(index, [capture(number, A, 1) for number in range(100)])  # the same again
    assert not (index / ledger.DIRECTORY).exists()


def test_the_files_of_a_ledger_are_few_however_many_loads(tmp_path: Path) -> None:
    index = begin(tmp_path)
    for number in range(40):
        load(index, [], [revisit_of(capture(number), A, 1)])
    files = list((index / ledger.DIRECTORY).iterdir())
    assert len(files) <= 8
    with closing(open_index(index)) as engine, engine.view() as view:
        found = list(view.ledger())
        assert isinstance(view, LmdbView)
        assert sorted(path.name for path in files) == sorted(view.ledger_files())
        one = capture(7)
        key = engine.identity.settings.keys().key_of(one.digest, one.url)
        assert list(view.ledger(key)) == [item for item in found if item.startswith(key)]
    assert len(found) == 40
    (index / ledger.DIRECTORY / "orphan.led").write_bytes(b"x")
    load(index, [])
    assert not (index / ledger.DIRECTORY / "orphan.led").exists()


@of_files
def test_damage_of_a_ledger_is_found(index: Path) -> None:
    (path, *_) = (index / ledger.DIRECTORY).iterdir()
    whole = path.read_bytes()
    for at in (3, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with closing(open_index(index)) as engine:
            assert any(str(path) in problem for problem in engine.check())
        with pytest.raises(Damaged, match="restore"):
            survey(index, container(FIRST))
    path.write_bytes(whole[:5])
    with pytest.raises(Damaged, match="restore"):
        survey(index, container(FIRST))
    path.unlink()
    with closing(open_index(index)) as engine:
        assert any("ask again" in problem for problem in engine.check())
    remedy = "restore the index from a copy, or build it again in another directory\n"
    for words in (
        ("impact", index, "--container", "x"), ("index", "--copy", index.parent / "copy", index),
        ("index", "--add", ROOT / "tests/data/warc/example.warc.gz", index),
    ):  # fmt: skip
        said = typed(*words, status=6)[1]
        assert f"{path} is missing" in said and said.endswith(remedy), words


def test_an_index_that_was_built_anew_during_a_copy_is_not_called_damaged(tmp_path: Path) -> None:
    """Whoever copies has the old data file open, and the files of its ledger are merged away."""
    source, index = tmp_path / "in", tmp_path / "index"
    source.mkdir()
    for name in ("a.warc.gz", "b.warc.gz"):
        shutil.copy(ROOT / "tests/data/warc/example.warc.gz", source / name)
    typed("index", "--all", source, index)
    with closing(open_index(index)) as engine:
        shutil.copy(ROOT / "tests/data/warc/warcfile.warc.gz", source / "b.warc.gz")
        line = [sys.executable, "-m", "dedupindex", "index", "--replace", source, index]
        subprocess.run(line, check=True, capture_output=True)
        (tmp_path / "copy").mkdir()
        with pytest.raises(IndexUnavailable, match="if another process has just written to the"):
            engine.copy(tmp_path / "copy")
    typed("index", "--copy", tmp_path / "later", index)


def report(store: Store, name: str, *captures: Capture) -> None:
    with store.writing() as writing:
        report_captures(writing, name, captures)


def report_captures(writing: Writing, name: str, captures: Sequence[Capture]) -> None:
    crawl = lifecycle.begin(writing, name)
    reported = [one._replace(evidence=max(one.evidence, Evidence.ROW)) for one in captures]
    add(writing, crawl, reported, SETTINGS, admission_filter(SETTINGS))


def test_captures_of_crawls_are_purged_too(tmp_path: Path) -> None:
    index = begin(tmp_path)
    with closing(LmdbStore(index)) as store:
        report(store, "a", capture(1, A, 1, container="x.warc.gz"), capture(2, B, 1))
        report(store, "b", capture(1, A, 2, container="y.warc.gz"))
    seen: list[Item] = []
    found = survey(index, container("x.warc.gz"), seen.append)
    assert found.live == 1 and found.found == {0}
    (unmerged,) = seen
    assert isinstance(unmerged, UnmergedCapture)
    assert (unmerged.capture.url, unmerged.capture.container) == (A, "x.warc.gz")
    assert purge(index, container("x.warc.gz"), force=False).live == 1
    assert purge(index, Target(TargetKind.URL, (B.decode(),)), force=False).live == 1
    with closing(LmdbStore(index)) as store:
        with store.reading() as reading:
            assert not list(of_crawl(reading, reading.crawl("a")))
            assert reading.counts(reading.crawl("a"))[0] == 2  # it has stored them
        with store.writing() as writing:
            lifecycle.commit(writing, "b")
        merge_crawls.merge(index, store)
    assert [one.crawl for _, one in held(index)] == ["b"]
    target = Target(TargetKind.CRAWL, ("b", "none"))
    assert survey(index, target).impact.originals.captures == 1
    assert purge(index, target, force=False).found == {0}
    assert held(index) == []
    with closing(LmdbStore(index)) as store, store.reading() as reading:  # nothing left to answer
        assert reading.crawl("b").swept


def test_revisits_of_what_only_a_crawl_has_reported_are_counted(
    engine: str, tmp_path: Path
) -> None:
    """Crawls on a cluster are never merged: the index has only what the revisits say of these."""
    index = begin(tmp_path, engine)
    going = [capture(number, A, 1, container="x.warc.gz") for number in (1, 2, 3)]
    with closing(make_store(index)) as store:
        store.write(partial(report_captures, name="a", captures=going))
    own = going[1]._replace(container="/w/y.warc.gz", offset=0)
    claims = [one._replace(evidence=Evidence.NAMED, container="") for one in going[:2]]
    load(index, [own, *claims], [revisit_of(one, B, 2) for one in going[:2]])
    for target in (container("x.warc.gz"), Target(TargetKind.CRAWL, ("a",))):
        found, _, depending = listed(index, target)
        assert found.live == 3 and [one.digest for one in depending] == [sha1(1)]
        assert found.impact.dependents.captures == found.impact.broken.captures == 1
        with pytest.raises(HasDependents, match="1 revisit of other captures depends"):
            purge(index, target, force=False)
    target = Target(TargetKind.URL, (A.decode(),))
    assert survey(index, target).impact.dependents.captures == 2
    purge(index, target, force=True)
    assert held(index) == [] and survey(index, target).live == 0
    load(index, [going[2]])  # whose file is read later
    assert held(index) == []


@pytest.mark.parametrize("merged", [False, True])
def test_a_crawl_keeps_no_copies_until_their_warcs_are_read(tmp_path: Path, merged: bool) -> None:
    """As the documentation says: what was reported of a copy is gone, what is read of it counts."""
    index = begin(tmp_path)
    copy = capture(1, A, 2, container="/w/y.warc.gz")
    with closing(LmdbStore(index)) as store:
        report(store, "a", capture(1, A, 1, container="/w/x.warc.gz"), copy)
        with store.writing() as writing:
            lifecycle.commit(writing, "a")
        if merged:
            merge_crawls.merge(index, store)
    purge(index, container("x.warc.gz"), force=False)
    with closing(LmdbStore(index)) as store:
        merge_crawls.merge(index, store)
    assert held(index) == []
    load(index, [copy])
    assert [one.container for _, one in held(index)] == ["/w/y.warc.gz"]


def test_a_crawl_is_dropped_unless_the_index_has_it(tmp_path: Path) -> None:
    index = begin(tmp_path)
    with closing(LmdbStore(index)) as store:
        for name in ("open", "committed", "merged"):
            report(store, name, capture(1, A, 1))
        with store.writing() as writing:
            lifecycle.commit(writing, "merged")
        merge_crawls.merge(index, store)
        with store.writing() as writing:
            lifecycle.commit(writing, "committed")
            for name in ("open", "committed", "open"):
                assert lifecycle.drop(writing, name).state is CrawlState.CANCELLED
            with pytest.raises(CrawlEnded, match="bin/purge INDEX --crawl merged"):
                lifecycle.drop(writing, "merged")
            with pytest.raises(UnknownCrawl):
                lifecycle.drop(writing, "none")
        assert merge_crawls.merge(index, store) is None


@pytest.mark.parametrize("engine", ["lmdb", "whoosh"])
def test_a_killed_purge_takes_effect_wholly_or_not_at_all(tmp_path: Path, engine: str) -> None:
    index = begin(tmp_path, engine)
    first = [capture(number, A, 1, container=FIRST) for number in range(300)]
    load(index, first, [revisit_of(one, B, 2) for one in first])
    load(index, [capture(number, A, 2, container=SECOND) for number in range(300)])
    before = held(index)
    words = [sys.executable, "-m", "dedupindex", "purge", str(index), "--container", FIRST]
    for pause in (0.2, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.8):
        process = subprocess.Popen([*words, "--force"], stdout=subprocess.DEVNULL)
        with suppress(subprocess.TimeoutExpired):  # any moment will do: what follows holds at each
            process.wait(pause)
        process.kill()
        process.wait()
        now = held(index)
        assert now == before or {one.container for _, one in now} == {SECOND}
    purge(index, container(FIRST), force=True)
    now = held(index)
    assert len(now) == 300 and {one.container for _, one in now} == {SECOND}
    assert not survey(index, container(FIRST)).impact.originals.captures


@pytest.mark.parametrize("engine", ["lmdb", "whoosh"])
@pytest.mark.parametrize(
    "target",
    [
        Target(TargetKind.URL, (A.decode(),)),
        Target(TargetKind.PREFIX, (A.decode(),)),
        Target(TargetKind.CAPTURE, captures=(CaptureTarget(sha1(1), A), CaptureTarget(sha1(2), A))),
    ],
    ids=lambda target: target.kind.value,
)
def test_purged_captures_of_a_crawl_are_not_merged(
    tmp_path: Path, engine: str, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = begin(tmp_path, engine)
    one, other = capture(1, A, 1, container="x.warc.gz", also=(sha1(7),)), capture(2, A, 2)
    kept = capture(3, B, 1)
    with closing(LmdbStore(index)) as store:
        report(store, "open", one, kept)
        report(store, "committed", other)
        with store.writing() as writing:
            lifecycle.commit(writing, "committed")

    def fail(*given: object) -> None:
        raise OSError("the power went")

    with monkeypatch.context() as patched:
        patched.setattr("dedupindex.post_crawl.purge.remove.remove_live", fail)
        with pytest.raises(OSError, match="power"):
            purge(index, target, force=False)
    done = purge(index, target, force=False)  # all of it is there to be found again
    assert done.live == 2 and done.found == set(range(max(len(target.captures), 1)))
    with closing(LmdbStore(index)) as store:
        with store.writing() as writing:
            lifecycle.commit(writing, "open")
        merge_crawls.merge(index, store)
    load(index, [one._replace(container=FIRST), other._replace(container=SECOND)])
    assert [found.url for _, found in held(index)] == [B]
    load(index, [capture(1, A, 3, container=FIRST)])  # another capture
    assert len(held(index)) == 2


@pytest.mark.parametrize("engine", ["lmdb", "whoosh"])
def test_docs_list_where_a_purged_url_remains(tmp_path: Path, engine: str) -> None:
    index, url = begin(tmp_path, engine), b"http://example.com/xqzjvkwy"
    gone, other = capture(1, url, 1), capture(2, A, 1)
    named = [revisit_of(gone, B, 2), revisit_of(gone, url, 3), revisit_of(other, url, 4)]
    load(index, [gone, other], named)
    load(index, [capture(1, url, 2)])
    with closing(LmdbStore(index)) as store:
        report(store, "c", capture(3, url, 1))
    purge(index, Target(TargetKind.URL, (url.decode(),)), force=True)
    with closing(open_index(index)) as engine_, engine_.view() as view:
        lengths = engine_.identity.settings.keys().lengths()
        left = [item[lengths[item[0]] :] for item in view.ledger()]
    assert [ledger.Dependent.of(item)[:1] for item in left] == [(B,)]
    assert ledger.Dependent.of(left[0]).names_url == url
    run("index", "--compact", index)
    text = pack(url)[-8:]  # as the data has it
    holds = {
        path.parent.name if path.parent != index else path.name
        for path in index.rglob("*")
        if path.is_file() and text in path.read_bytes()
    }
    assert holds - {ledger.DIRECTORY} == {"crawls.mdb"}


def test_one_lookup_of_a_crawl_that_was_not_read_is_said_in_the_singular() -> None:
    for count, text in ((1, "1 lookup of crawls"), (2, "2 lookups of crawls")):
        said = unread_as_text(PurgeSurvey(Impact(), 0, set(), {"weekly": count}))
        assert said.startswith(text) and f"weekly ({count})" in said
        assert (" was answered" in said) is (count == 1)
        assert "commit or cancel those that are open, and read their WARCs first" in said


def test_nothing_found_is_reported_in_a_line(index: Path) -> None:
    load(index, [capture(9, C, 3, container="/w/weekly.warc.gz", crawl="weekly")])
    before = held(index)
    for command in ("impact", "purge"):
        for option, name, hint in (
            ("--container", "*.warc.gz", "no wildcards: give --container for each"),
            ("--container", "frist.warc.gz", f"(did you mean {FIRST}?)"),
            ("--crawl", "week*", "no wildcards: give --crawl for each"),
            ("--crawl", "wekly", "(there is no crawl 'wekly'; there are weekly)"),
            ("--url", "http://example.com/*", "no wildcards: with --prefix"),
            ("--url", "http://no.example", "did you mean http://no.example/?"),
            ("--url", "no.example/a", "it has no scheme: did you mean http://no.example/a?"),
            ("--url", "http://example.com/?q=1", f"{index} --host example.com lists those"),
            ("--url", "urn:example:none", ""),
            ("--container", "ghost.warc.gz", ""),
            ("--host", "no.example", ""),
            ("--host", "http://no.example/a", "without scheme, port and path: no.example"),
            ("--host", "*.example.com", "no wildcards: a host means all below it, too"),
        ):
            out, talk = typed(command, index, option, name, status=10)
            assert out == "nothing found: the index has nothing of it\n"
            assert talk.startswith(f"not found: {name}") and hint in talk
            assert (" (" in talk) == bool(hint)
    assert held(index) == before
    assert "would be removed" in typed("impact", index, "--url", A.decode())[0]
