"""An index of files whose results are at another address: it answers with captures in these."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_dedup_index import BODIES, captures, days
from tests.support.commands import ended, typed
from tests.support.local_spark import run_spark_here
from tests.support.stores import Bucket
from tests.unit.post_crawl.test_index_originals import write

ALL = {("a", 2), ("b", 3), ("c", 4)}


class Archive:
    """Three files in a bucket and on a disk, two of them of one crawl, and an index of these."""

    def __init__(self, top: Path, bucket: Bucket, *, local: bool = False) -> None:
        self.top, self.url, self.index = top, bucket.url, top / "index"
        self.set = top / "set" if local else f"{bucket.url}/warcs"
        self.state = ("--state", top / "state")
        self.out = str(top / "smaller") if local else f"{bucket.url}/smaller"
        self.into = ("--out", self.out, *(() if local else self.state))
        for day, host in ((2, "a"), (3, "b"), (4, "c")):
            path = write(top / f"set/2026/{host}.warc.gz", day, BODIES, host)
            bucket.put(f"warcs/2026/{host}.warc.gz", path.read_bytes())
            crawl = () if host == "a" else ("--crawl", "weekly")
            name = f"{self.set}/2026/{host}.warc.gz"
            typed("index", *(("--add",) if host > "a" else ("--all",)), *crawl, name, self.index)
        assert days(self.index) == ALL

    def check(self, top: object) -> None:
        """The originals are answered from `top`, and the revisits are known."""
        assert days(self.index) == {("a", 2)}
        assert {(file, crawl) for _, _, file, crawl in captures(self.index)} == {
            (f"{top}/2026/a.warc.gz", "")
        }
        output, _ = typed("impact", self.index, "--container", "a.warc.gz", "--json")
        found = json.loads(output)
        assert found["dependents"]["captures"] == 6
        assert {one["name"] for one in found["by_container"]} == {
            f"{top}/2026/{host}.warc.gz" for host in "bc"
        }
        assert found["by_crawl"][0]["name"] == "weekly"
        typed("index", "--check", self.index)

    def follow(self, printed: str) -> tuple[str, str]:
        """Run the command that the last line of a report has for an index."""
        (line,) = (line for line in printed.splitlines() if line.startswith("next: "))
        words = shlex.split(line[line.index("/index --replace") :])[1:]
        return typed("index", *(self.index if word == "INDEX" else word for word in words))


@pytest.fixture
def archive(tmp_path: Path, buckets: Callable[[], Bucket]) -> Archive:
    return Archive(tmp_path, buckets())


@pytest.mark.parametrize("how", ["out", "in-place", "spark"])
def test_bin_dedup_updates_an_index_of_objects(
    archive: Archive, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_spark_here(monkeypatch)
    where: dict[str, tuple[Any, ...]] = {
        "out": archive.into,
        "in-place": ("--in-place", "--work", archive.top / "work"),
        "spark": (*archive.into, "--spark", "2"),
    }
    words = ("dedup", archive.set, *where[how], "--index", archive.index, "--jobs", "1")
    output, _ = typed(*words)
    assert "next: repeat this with --update-index" in output and days(archive.index) == ALL
    for _ in range(2):  # repeated, it changes nothing
        output, _ = typed(*words, "--update-index")
        assert f"{archive.index}: read " in output and "next: " not in output
        archive.check(archive.set if how == "in-place" else archive.out)


@pytest.mark.parametrize("command", ["dedup", "rewrite"])
@pytest.mark.parametrize("local", [False, True], ids=["store", "directory"])
def test_the_command_that_a_run_prints_updates_the_index(
    tmp_path: Path, buckets: Callable[[], Bucket], command: str, local: bool
) -> None:
    archive = Archive(tmp_path, buckets(), local=local)
    source: object = archive.set
    if command == "rewrite":
        typed("manifest", archive.set, "-o", tmp_path / "manifest")
        typed("resolve", tmp_path / "manifest", "-o", tmp_path / "plan")
        source = tmp_path / "plan"
    printed, _ = typed(command, source, *archive.into)
    assert f"goes on answering with captures in {archive.set}" in printed
    output, messages = archive.follow(printed)
    assert (
        f"read 3 files in place of those in {archive.set}" in output and "warning" not in messages
    )
    archive.check(archive.out)
    again = tmp_path / "again"  # and back
    printed, _ = typed("undedup", archive.out, *([] if local else archive.state), "--out", again)
    archive.follow(printed)
    assert days(archive.index) == ALL
    files = {(Path(file), crawl) for _, _, file, crawl in captures(archive.index)}
    crawls = {"a": "", "b": "weekly", "c": "weekly"}
    assert files == {(again / f"2026/{host}.warc.gz", crawls[host]) for host in "abc"}


def test_files_without_a_result_are_named(archive: Archive) -> None:
    typed("dedup", archive.set, *archive.into)
    words = ("index", "--replace", f"{archive.out}/2026/b.warc.gz", archive.index, "--instead-of")
    output, messages = typed(*words, f"{archive.set}/2026/", "--json")
    assert json.loads(output)["remaining"] == [
        f"{archive.set}/2026/{host}.warc.gz" for host in "ac"
    ]
    assert "no SOURCE has the result of 2 files that the index has" in messages
    assert days(archive.index) == ALL - {("b", 3)}


def test_what_is_purged_stays_away(archive: Archive) -> None:
    typed("dedup", archive.set, *archive.into)
    typed("purge", archive.index, "--container", f"{archive.set}/2026/a.warc.gz", "--force")
    typed("index", "--replace", archive.out, archive.index, "--instead-of", archive.set)
    assert days(archive.index) == set()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--add",), "--instead-of goes with --replace"),
        (("--replace", "--crawl", "x"), "--crawl has no effect with --instead-of"),
        (("--replace", "--all"), "--all has no effect with --instead-of"),
    ],
)
def test_options_that_do_not_go_together(
    archive: Archive, words: tuple[str, ...], message: str
) -> None:
    code, _, messages = ended("index", *words, archive.set, archive.index, "--instead-of", "x")
    assert code == 2 and message in messages


def test_the_same_place_twice_is_refused(archive: Archive) -> None:
    words = ("index", "--replace", archive.set, archive.index, "--instead-of")
    _, messages = typed(*words, f"{archive.set}/", status=4)
    assert "with --replace alone" in messages


def test_one_result_does_not_take_the_place_of_two_files(archive: Archive) -> None:
    typed("dedup", archive.set, *archive.into)
    path = write(archive.top / "other/2026/a.warc.gz", 5, BODIES, "e")
    typed("index", "--add", path, archive.index)
    words = ("index", "--replace", archive.out, archive.index, "--instead-of", archive.set)
    _, messages = typed(*words, "--instead-of", archive.top / "other", status=4)
    assert "give each --instead-of with its own results" in messages
