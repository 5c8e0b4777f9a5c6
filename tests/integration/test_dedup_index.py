"""``bin/dedup --index I --update-index``: lookups never answer with what is a revisit now."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dedupindex.cli import main
from dedupindex.errors import IndexBusy
from dedupindex.index import open_index
from dedupindex.post_crawl import update_index
from tests.support.warc_cases import sha1
from tests.unit.post_crawl.test_index_originals import cdxj_of, index_of, write
from tests.unit.post_crawl.test_index_references import asking

BODIES = [Random(number).randbytes(1500) for number in range(3)]


def captures(index: Path) -> set[tuple[bytes, bytes, str, str]]:
    """URL, date, file and crawl of all captures that an index answers with."""
    with closing(open_index(index)) as engine, engine.view() as view:
        return {(one.url, one.date, one.container, one.crawl) for _, one in view.captures()}


def days(index: Path) -> set[tuple[str, int]]:
    """Host and day of all captures."""
    return {(url[7:8].decode(), int(date[8:10])) for url, date, _, _ in captures(index)}


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """An index of a set of three files, two of them of one crawl."""
    index = index_of(tmp_path, write(tmp_path / "set/y.warc.gz", 2, BODIES))
    for day, host in ((3, "b"), (4, "c")):
        path = write(tmp_path / f"set/{host}.warc.gz", day, BODIES, host)
        assert main(["index", "--add", "--crawl", "weekly", str(path), str(index)]) == 0
    assert days(index) == {("a", 2), ("b", 3), ("c", 4)}
    return index


def dedup(index: Path, *words: object, status: int = 0) -> None:
    argv = ["dedup", index.parent / "set", "--index", index, "--update-index", *words]
    assert main([str(word) for word in argv]) == status


@pytest.mark.parametrize("in_place", [False, True])
def test_the_index_has_the_results(
    tmp_path: Path, index: Path, in_place: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    how = ["--in-place"] if in_place else ["--out", tmp_path / "out"]
    results = tmp_path / ("set" if in_place else "out")
    for _ in range(2):  # repeated, it changes nothing
        dedup(index, *how)
        assert {(file, crawl) for _, _, file, crawl in captures(index)} == {
            (str(results / "y.warc.gz"), "")
        }
        assert days(index) == {("a", 2)}
        capsys.readouterr()
        assert main(["impact", str(index), "--container", "y.warc.gz", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["dependents"]["captures"] == 6
        assert found["by_crawl"][0]["name"] == "weekly"
    assert main(["index", "--check", str(index)]) == 0


@pytest.mark.parametrize("in_place", [False, True])
def test_new_files_without_a_duplicate_are_read_too(
    tmp_path: Path, index: Path, in_place: bool
) -> None:
    """Their captures are originals for the next run."""
    write(tmp_path / "set/n.warc.gz", 6, [Random(9).randbytes(1500)], "n")
    write(tmp_path / "far/f.warc.gz", 7, [Random(8).randbytes(1500)], "f")  # of no SOURCE
    for _ in range(2):
        dedup(index, *(["--in-place"] if in_place else ["--out", tmp_path / "out"]))
        assert days(index) == {("a", 2), ("n", 6)}
    assert main(["index", "--check", str(index)]) == 0


@pytest.mark.parametrize("in_place", [False, True])
def test_an_update_that_failed_is_repeated(
    tmp_path: Path, index: Path, in_place: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: Any) -> None:
        raise IndexBusy("another process writes to the index")

    how = ["--in-place"] if in_place else ["--out", tmp_path / "out"]
    with monkeypatch.context() as patch:
        patch.setattr(update_index, "build", busy)
        dedup(index, *how, status=IndexBusy.exit_status)
    assert days(index) == {("a", 2), ("b", 3), ("c", 4)}
    dedup(index, *how)
    assert days(index) == {("a", 2)}


def test_what_was_deduplicated_before_is_updated_later(tmp_path: Path, index: Path) -> None:
    argv = ["dedup", tmp_path / "set", "--index", index, "--in-place"]
    assert main([str(word) for word in argv]) == 0
    dedup(index, "--in-place")
    assert days(index) == {("a", 2)}


@pytest.mark.parametrize("in_place", [False, True])
def test_captures_that_had_lost_to_a_copy_are_answered(
    tmp_path: Path, index: Path, in_place: bool
) -> None:
    """The index had kept the earlier capture of their URL, which is a revisit now."""
    far = write(tmp_path / "far/w.warc.gz", 5, BODIES, "b")
    assert main(["index", "--add", "--crawl", "daily", str(far), str(index)]) == 0
    assert days(index) == {("a", 2), ("b", 3), ("c", 4)}
    for _ in range(2):
        dedup(index, *(["--in-place"] if in_place else ["--out", tmp_path / "out"]))
        assert days(index) == {("a", 2), ("b", 5)}
        assert {file for _, _, file, crawl in captures(index) if crawl == "daily"} == {str(far)}
    assert main(["index", "--check", str(index)]) == 0


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("indexed", ["link", "set"])
def test_an_index_may_know_the_files_through_a_link(
    tmp_path: Path, in_place: bool, indexed: str
) -> None:
    for day, host in ((2, "a"), (3, "b")):
        write(tmp_path / f"real/{host}.warc.gz", day, BODIES, host)
    for name in ("link", "set"):
        (tmp_path / name).symlink_to(tmp_path / "real")
    index = index_of(tmp_path, tmp_path / indexed)
    assert days(index) == {("a", 2), ("b", 3)}
    dedup(index, *(["--in-place"] if in_place else ["--out", tmp_path / "out"]))
    assert days(index) == {("a", 2)}


@pytest.mark.parametrize("in_place", [False, True])
def test_rows_without_directories_of_files_with_one_name(tmp_path: Path, in_place: bool) -> None:
    """What the index has of the others of that name is answered with their paths."""
    rows = []
    for day, host, body in ((2, "a", BODIES[0]), (3, "b", BODIES[0]), (4, "c", BODIES[1])):
        path = write(tmp_path / f"set/{host}/x.warc.gz", day, [body], host)
        row = cdxj_of(path, 0, f"http://{host}.test/0", day, body, path.name)
        rows.append(row.rename(tmp_path / f"{host}.cdxj"))
    index = tmp_path / "index"
    sources = map(str, rows)
    argv = ["index", "--whitelist", "--mime", ".*", "--crawl", "weekly", *sources, str(index)]
    assert main(argv) == 0
    assert days(index) == {("a", 2), ("b", 3), ("c", 4)}
    dedup(index, *(["--in-place"] if in_place else ["--out", tmp_path / "out"]))
    results = tmp_path / ("set" if in_place else "out")
    assert {(file, crawl) for _, _, file, crawl in captures(index)} == {
        (str(results / name / "x.warc.gz"), "weekly") for name in "ac"
    }


def test_rows_of_cdx_files_and_reports_of_crawlers_are_refuted(tmp_path: Path) -> None:
    """They name files without their directory, and their crawl may not be merged."""
    body = BODIES[0]
    rows = []
    for day, host in ((2, "a"), (3, "b"), (4, "c")):
        path = write(tmp_path / f"set/{host}.warc.gz", day, [body], host)
        row = cdxj_of(path, 0, f"http://{host}.test/0", day, body, path.name)
        rows.append(row.rename(tmp_path / row.name))
    index = index_of(tmp_path, *rows[:2])
    digest, url = sha1(body).decode(), "http://c.test/0"
    lookup = f"/lookup?digest={digest}&url={url}&strategy=EXACT_URL"
    with asking(index) as web:
        web.post("/crawls", json={"name": "live", "seen_by": "all"})
        reported = {
            "digest": digest, "url": url, "date": "2026-01-04T00:00:00Z", "status": 200,
            "mime": "image/png", "container": "c.warc.gz", "size": len(body),
        }  # fmt: skip
        assert web.post("/captures?crawl=live", json=reported).status_code == 200
        assert web.get(lookup).get_json()["duplicate"]
        web.post("/crawls/live/commit")
    dedup(index, "--out", tmp_path / "out")
    assert days(index) == {("a", 2)}
    with asking(index) as web:
        assert not web.get(lookup).get_json()["duplicate"]
        assert web.get(lookup.replace("c.test", "a.test")).get_json()["duplicate"]
        live = web.get("/crawls/live").get_json()
        assert (live["captures"], live["bytes"]) == (1, len(body))  # it has stored it


def test_files_whose_captures_were_purged_stay_away(tmp_path: Path, index: Path) -> None:
    assert main(["purge", str(index), "--container", "c.warc.gz"]) == 0
    for how in (["--out", tmp_path / "out"], ["--in-place"]):
        dedup(index, *how)
        assert days(index) == {("a", 2)}
