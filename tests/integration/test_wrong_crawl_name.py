"""A file that was read with a wrong name of its crawl, or with none, is moved by --reread."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import typed
from tests.support.warc_cases import gz, response, revisit, sha1
from tests.unit.post_crawl.test_index_originals import BODIES, write
from tests.unit.post_crawl.test_index_references import asking

TYPES = ("--whitelist", "--mime", ".*")


def second_crawl(path: Path) -> Path:
    """A file with a revisit of each of two payloads of `BODIES`, a copy of one, and a new one."""
    path.parent.mkdir(parents=True)
    with open(path, "wb") as stream:
        for at in range(2):
            url = b"http://a.test/%d" % at
            fields: dict[str, Any] = {
                "Target_URI": url, "Date": b"2026-01-03T00:00:%02dZ" % at, "number": 900 + at,
                "Payload_Digest": sha1(BODIES[at]), "Refers_To_Target_URI": url,
                "Refers_To_Date": b"2026-01-02T00:00:%02dZ" % at,
            }  # fmt: skip
            stream.write(gz(revisit(**fields)))
        for at, body in ((0, BODIES[0]), (2, b"new")):
            date, url = b"2026-01-03T00:00:1%dZ" % at, b"http://c.test/%d" % at
            stream.write(gz(response(body, Date=date, Target_URI=url, number=910 + at)))
    return path


def compared(index: Path) -> tuple[dict[str, int], list[str]]:
    """What the second crawl has, and the warnings of the comparison."""
    found = json.loads(
        typed("report", index, "--crawl", "two", "--compare", "one", "--json", "--by", "host")[0]
    )
    names = ("new", "same", "changed", "second_stored", "second_revisits")
    return {name: found["total"][name] for name in names}, found["warnings"]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return write(tmp_path / "1.warc.gz", 2, BODIES[:2]), second_crawl(tmp_path / "two/2.warc.gz")


@pytest.mark.parametrize("engine", ["lmdb", "whoosh"])
@pytest.mark.parametrize("wrong", ["a-wrong", "wrong", ""])
def test_a_file_is_moved_to_its_crawl_with_all_that_it_has(
    tmp_path: Path, files: tuple[Path, Path], engine: str, wrong: str
) -> None:
    """The name that sorts first wins among captures that differ by nothing else."""
    index, (first, second) = tmp_path / "index", files
    typed("index", *TYPES, "--engine", engine, "--crawl", "one", first, index)
    typed("index", "--add", *(("--crawl", wrong) if wrong else ()), second, index)
    for option in ("--add", "--replace"):
        text, warned = typed("index", option, "--crawl", "two", second, index)
        assert "known before: 1" in text
        stays = f"crawl {wrong}" if wrong else "no crawl"
        assert f"1 known file was not read, and stays in {stays}; if crawl two wrote it: " in warned
        assert f"index --reread --crawl two {second} {index}\n" in warned
    said = json.loads(typed("index", "--add", "--crawl", "two", second, index, "--json")[0])
    assert said["known_of_other_crawls"] == {wrong: 1}

    for moves in (True, False):  # repeated, it changes nothing
        text, warned = typed("index", "--add", "--reread", "--crawl", "two", second, index)
        assert "warning" not in warned
        assert (f"moved from {stays}, with all captures: 1 file\n" in text) == moves
        assert ("moved from" in text) == moves
        assert compared(index) == (
            {"new": 2, "same": 2, "changed": 0, "second_stored": 2, "second_revisits": 2}, []
        )  # fmt: skip
    if wrong:
        words = ("report", index, "--crawl", wrong, "--compare", "one")
        assert "it has captures of two, one." in typed(*words, status=4)[1]
        words = ("report", index, "--crawl", "none", "--compare", "one")
        assert "it has captures of two, one." in typed(*words, status=4)[1]
        for words, status in (
            (("report", index, "--crawl", wrong), 4), (("impact", index, "--crawl", wrong), 10),
            (("list", index, "--of-crawl", wrong), 10),
        ):  # fmt: skip
            said = typed(*words, status=status)[1]
            named = re.search(f"there is no crawl '{wrong}'; there are ([a-z, -]+)", said)
            assert named and sorted(named[1].split(", ")) == ["one", "two"]
    found = json.loads(typed("impact", index, "--container", first, "--json")[0])
    assert [row["name"] for row in found["by_crawl"]] == ["two"]
    typed("index", "--check", index)


@pytest.mark.parametrize("wrong", ["wrong", ""])
def test_a_crawl_that_reported_has_what_was_moved_to_it(
    tmp_path: Path, files: tuple[Path, Path], wrong: str
) -> None:
    index, second = tmp_path / "index", files[1]
    report_second_crawl(index, files)
    added = typed("index", "--add", *(("--crawl", wrong) if wrong else ()), second, index)[1]
    read_for = f"crawl {wrong}" if wrong else "no crawl"
    assert (
        f"1 file was read for {read_for}, and crawl two has captures in a file of that name; "
        f"if it wrote it: bin/index --reread --crawl two {second} {index}\n"
    ) in added
    typed("index", "--add", "--reread", "--crawl", "two", second, index)
    assert compared(index) == (
        {"new": 2, "same": 2, "changed": 0, "second_stored": 2, "second_revisits": 2}, []
    )  # fmt: skip
    same_name = tmp_path / "another" / second.name
    second_crawl(same_name)
    assert "warning" not in typed("index", "--add", same_name, index)[1]  # two was read


@pytest.mark.parametrize("wrong", ["wrong", "one", ""])
def test_a_comparison_names_the_command_that_moves_the_files_of_a_crawl(
    tmp_path: Path, files: tuple[Path, Path], wrong: str
) -> None:
    """--add does nothing for files that were read for another crawl."""
    index, (_, second) = tmp_path / "index", files
    report_second_crawl(index, files)
    typed("index", "--add", *(("--crawl", wrong) if wrong else ()), second, index)
    [warning] = compared(index)[1]
    assert warning == (
        "crawl two: revisits that were not read for it: 2, files that seem to be of it and "
        "were read for "
        f"{f'crawl {wrong}' if wrong else 'no crawl'}: 1 (2.warc.gz). If it wrote them, move them "
        f"to it: bin/index --reread --crawl two {second} INDEX"
    )
    typed("index", "--reread", "--crawl", "two", second, index)
    assert compared(index)[1] == []


def test_the_launch_in_a_path_names_the_crawl_of_files_without_new_captures(
    tmp_path: Path, files: tuple[Path, Path]
) -> None:
    """Such a crawl has reported no file. Heritrix names the directory after the launch."""
    index, first = tmp_path / "index", files[0]
    right, wrong = "small-20261130192502", "small-20261130192439"
    typed("index", *TYPES, "--crawl", wrong, first, index)
    with asking(index) as web:
        web.post("/crawls", json={"name": right})
        for at in range(2):
            asked = f"digest={sha1(BODIES[at]).decode()}&url=http://a.test/{at}"
            assert web.get(f"/lookup?crawl={right}&{asked}").get_json()["duplicate"]
        web.post(f"/crawls/{right}/commit")
    launch = second_crawl(tmp_path / "small/20261130192502/warcs/2.warc.gz")
    words = ("report", index, "--crawl", right, "--compare", wrong)
    assert f"index --add --crawl {right} WARCS INDEX" in typed(*words, status=4)[1]
    latest = tmp_path / "small/latest"
    latest.symlink_to(launch.parent.parent)
    for source in (launch, latest):
        copied = tmp_path / f"copied-{source.name}"
        typed("index", index, "--copy", copied)
        assert (
            f"warning: files were read for crawl {wrong}, and their path has the launch of crawl "
            f"{right}; if it wrote them: bin/index --reread --crawl {right} {source} {copied}\n"
        ) in typed("index", "--add", "--crawl", wrong, source, copied)[1]
        warned = typed("index", "--reread", "--crawl", right, source, copied)[1]
        assert "warning" not in warned
    typed("index", "--add", "--crawl", wrong, launch, index)
    said = typed(*words, status=4)[1]
    assert (
        "its lookups found 2 duplicates; files that seem to be of it and were read for crawl "
        f"{wrong}: 1 (2.warc.gz). If it wrote them, move them to it: bin/index --reread --crawl "
        f"{right} {launch} INDEX\n"
    ) in said
    typed("index", "--reread", "--crawl", right, launch, index)
    found = json.loads(typed(*words, "--json")[0])
    assert found["warnings"] == [] and found["total"]["second_revisits"] == 2


def test_only_the_files_of_a_crawl_are_named(tmp_path: Path, files: tuple[Path, Path]) -> None:
    """A directory of files of two crawls is read for none."""
    index, (first, second) = tmp_path / "index", files
    report_second_crawl(index, files)
    folder = tmp_path / "both"
    folder.mkdir()
    for name in (second.name, "other.warc.gz"):
        write(folder / name, 4, BODIES[:1])
    copied = tmp_path / "copied"
    typed("index", index, "--copy", copied)
    said = typed("index", "--add", folder, copied, "--json")[0]
    assert json.loads(said)["reported_by_crawls"] == {"two": [str(folder / second.name)]}
    warned = typed("index", "--add", folder, index)[1]
    assert f"--reread --crawl two {folder / second.name} {index}\n" in warned
    assert "warning" not in typed("index", "--add", first, index)[1]


def test_a_crawl_that_reported_a_file_of_the_name_may_have_it(
    tmp_path: Path, files: tuple[Path, Path]
) -> None:
    """Some crawlers give the files of each crawl the same names."""
    index, second = tmp_path / "index", files[1]
    report_second_crawl(index, files)
    with asking(index) as web:
        web.post("/crawls", json={"name": "three"})
        reported = {
            "digest": sha1(b"three").decode(), "url": "http://d.test/", "status": 200, "size": 5,
            "date": "2026-01-04T00:00:00Z", "container": second.name,
        }  # fmt: skip
        assert web.post("/captures?crawl=three", json=reported).status_code == 200
        web.post("/crawls/three/commit")
    typed("index", "--merge", index)
    other = write(tmp_path / "three.warc.gz", 4, BODIES[:1]).rename(tmp_path / second.name)
    assert "warning" not in typed("index", "--add", "--crawl", "three", other, index)[1]


def test_a_warc_in_a_wacz_that_was_read_is_known(tmp_path: Path) -> None:
    index, inner = tmp_path / "index", write(tmp_path / "data.warc.gz", 2, BODIES)
    with zipfile.ZipFile(tmp_path / "x.wacz", "w", zipfile.ZIP_STORED) as packed:
        packed.write(inner, "archive/data.warc.gz")
    typed("index", *TYPES, "--crawl", "one", tmp_path / "x.wacz", index)
    (tmp_path / "other").mkdir()
    other = write(tmp_path / "other/data.warc.gz", 3, BODIES)
    assert "warning" not in typed("index", "--add", other, index)[1]


def report_second_crawl(index: Path, files: tuple[Path, Path]) -> None:
    """Let crawl two look up and report what its file has."""
    first, second = files
    typed("index", *TYPES, "--crawl", "one", first, index)
    with asking(index) as web:
        web.post("/crawls", json={"name": "two"})
        for at in range(2):
            asked = f"digest={sha1(BODIES[at]).decode()}&url=http://a.test/{at}"
            assert web.get(f"/lookup?crawl=two&{asked}").get_json()["duplicate"]
        for at, body in ((0, BODIES[0]), (2, b"new")):
            reported = {
                "digest": sha1(body).decode(), "url": f"http://c.test/{at}", "status": 200,
                "date": f"2026-01-03T00:00:1{at}Z", "container": second.name, "size": len(body),
            }  # fmt: skip
            assert web.post("/captures?crawl=two", json=reported).status_code == 200
        web.post("/crawls/two/commit")
    typed("index", "--merge", index)


def test_a_file_stays_in_its_crawl_when_it_is_read_again(
    tmp_path: Path, files: tuple[Path, Path]
) -> None:
    index, (first, second) = tmp_path / "index", files
    typed("index", *TYPES, "--crawl", "one", first, index)
    typed("index", "--add", second, index)
    said = typed("index", "--reread", second, first, index, status=4)[1]
    assert f"{first} was read for crawl one" in said and "give --crawl one" in said
    for words in ([second], ["--crawl", "one", first]):
        typed("index", "--reread", *words, index)
    crawls = json.loads(typed("index", "--stats", "--json", index)[0])["crawls"]
    assert {row["crawl"]: row["files"] for row in crawls} == {"": 1, "one": 1}


def test_two_names_of_a_crawl_are_refused(tmp_path: Path, files: tuple[Path, Path]) -> None:
    words = ("index", "--crawl", "two", files[1], tmp_path / "index")
    assert "--crawl is given twice; it takes one value" in typed(*words, "--crawl=one", status=2)[1]
    assert not (tmp_path / "index").exists()
    typed(*words)
