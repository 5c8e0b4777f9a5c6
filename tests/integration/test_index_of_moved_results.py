"""An index of files whose results are at another address: it answers with captures in these."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
import zstandard

from dedupindex.index import open_index
from dedupindex.indexer import stage
from tests.integration.test_dedup_index import BODIES, captures, days
from tests.support.commands import ended, typed
from tests.support.local_spark import run_spark_here
from tests.support.stores import Bucket
from tests.support.verifying import page
from tests.support.verifying import write as write_records
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
    assert "2 files that the index has, and goes on answering with: no SOURCE has" in messages
    assert days(archive.index) == ALL - {("b", 3)}


def test_a_wrong_place_of_files_that_were_reported_too_is_noticed(tmp_path: Path) -> None:
    """Crawls and CDX files name a file without its directory: that says nothing of a place."""
    (tmp_path / "warcs").mkdir()
    file, index, moved = tmp_path / "warcs/a.warc.gz", tmp_path / "index", tmp_path / "moved"
    write_records(file, [page(1)])
    typed("index", "--all", file, tmp_path / "other")
    typed("export", "--cdxj", tmp_path / "other", "--out", tmp_path / "a.cdxj")
    typed("index", "--all", tmp_path / "a.cdxj", index)
    typed("index", "--add", file, index)
    file.parent.rename(moved)
    for how in ("--replace", "--add"):
        said = typed("index", how, moved, index)[1]
        told = f"--instead-of {file.parent}\n"
        assert said.endswith(told) is (how == "--replace"), said  # it is known then
        assert (f"1 file that the index has is gone, such as {file}" in said) is said.endswith(told)
    for place, count in (("warc", 0), ("warcs", 1)):
        words = ("index", "--replace", moved, index, "--instead-of", tmp_path / place)
        output, said = typed(*words)
        assert f"; replaced {count} file" in output
        assert ("warning: nothing was replaced: the index had no file of" in said) != bool(count)


def test_results_behind_a_link_that_was_indexed_are_not_missing(tmp_path: Path) -> None:
    """As Heritrix's `latest`, as long as it leads there."""
    launch, index = tmp_path / "job/1", tmp_path / "index"
    write_records(launch / "a.warc.gz", [page(1)])
    (tmp_path / "job/latest").symlink_to("1")
    typed("index", "--all", tmp_path / "job/latest", index)
    words = ("index", "--replace", launch, index, "--instead-of", tmp_path / "job/latest")
    output, said = typed(*words)
    assert "; replaced 1 file" in output and "warning" not in said
    [capture] = map(json.loads, typed("list", index, "--json")[0].splitlines())
    assert capture["container"] == str(launch / "a.warc.gz")


def test_lists_do_not_take_the_place_of_others(tmp_path: Path) -> None:
    write_records(tmp_path / "old/a.warc.gz", [page(1)])
    typed("index", "--all", tmp_path / "old", tmp_path / "other")
    typed("export", "--cdxj", tmp_path / "other", "--out", tmp_path / "old/b.cdxj")
    typed("index", "--all", tmp_path / "old", tmp_path / "index")
    (tmp_path / "old").rename(tmp_path / "new")
    words = ("index", "--replace", tmp_path / "new", tmp_path / "index")
    _, said = typed(*words, "--instead-of", tmp_path / "old")
    assert "warning: 1 file that are no archives" not in said and "no SOURCE has" not in said
    assert "1 list, such as a CDX file or a log, stays in the index" in said


def test_a_damaged_result_is_not_called_missing(tmp_path: Path) -> None:
    """The index has not a capture of the file before: it answers with nothing from there."""
    source, out, index = (tmp_path / name for name in ("in", "out", "index"))
    write_records(source / "a.warc.gz", [page(1)])
    whole = write_records(tmp_path / "b.warc.gz", [page(2)]).read_bytes()
    (source / "cut.warc.gz").write_bytes(whole[:-9])
    typed("index", "--all", source, index, status=7)
    typed("dedup", source, "--out", out, status=7)
    words = ("index", "--replace", out, index, "--instead-of", source)
    for _ in range(2):
        _, said = typed(*words, status=7)
        assert "no SOURCE has" not in said and "goes on answering" not in said
        assert "1 file of which the index keeps what it has: the result is damaged at its " in said
    found = json.loads(typed(*words, "--json", status=7)[0])
    assert found["remaining"] == found["unread"] == [str(source / "cut.warc.gz")]


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


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with a set of two files of a crawl, their results, and an index of the set."""
    for day, host in ((3, "b"), (4, "c")):
        write(tmp_path / f"set/{host}.warc.gz", day, BODIES, host)
    index = tmp_path / "index"
    typed("index", "--empty", "--all", index)
    typed("index", "--add", "--crawl", "weekly", tmp_path / "set", index)
    typed("dedup", tmp_path / "set", "--out", tmp_path / "smaller", "--jobs", "1")
    return tmp_path


def put(
    top: Path, *words: object, status: int = 0, old: object = "set"
) -> tuple[dict[str, Any], str]:
    """Read the results in place of the set, or of `old`; return the report and the messages."""
    sources = words or (top / "smaller",)
    old = top / str(old) if old == "set" else old
    line = ("index", "--replace", *sources, top / "index", "--instead-of", old, "--jobs", "1")
    output, messages = typed(*line, "--json", status=status)
    return json.loads(output) if output else {}, messages


@pytest.mark.parametrize("name", ["smaller", "zmaller"])
def test_results_that_were_added_for_no_crawl_get_that_of_the_old_files(
    directory: Path, name: str
) -> None:
    """Whether their names come before those of the old files or not."""
    (directory / "smaller").rename(directory / name)
    typed("index", "--add", directory / name, directory / "index")
    for _ in range(2):
        report, _ = put(directory, directory / name)
        assert report["remaining"] == [] and report["replaced"] == 2
        result = str(directory / name / "b.warc.gz")
        found = {(file, crawl) for _, _, file, crawl in captures(directory / "index")}
        assert found == {(result, "weekly")}
    typed("index", "--check", directory / "index")


def test_update_index_of_results_that_were_added_for_no_crawl(directory: Path) -> None:
    index, out = directory / "index", directory / "smaller"
    typed("index", "--add", out, index)
    words = ("dedup", directory / "set", "--out", out, "--index", index, "--update-index")
    typed(*words, "--jobs", "1")
    found = {(file, crawl) for _, _, file, crawl in captures(index)}
    assert found == {(str(out / "b.warc.gz"), "weekly")}


def test_results_that_were_read_may_be_moved_into_the_place_of_their_sources(
    directory: Path,
) -> None:
    """As docs/crawlers.md has it after an outage: the index names one place, and the crawl."""
    index, old, out = directory / "index", directory / "set", directory / "smaller"
    words = ("dedup", old, "--out", out, "--index", index, "--update-index", "--jobs", "1")
    typed(*words)
    assert {file for _, _, file, _ in captures(index)} == {str(out / "b.warc.gz")}
    old.rename(directory / "before")
    out.rename(old)
    report, messages = put(directory, old, old=out)
    assert (report["replaced"], report["remaining"]) == (2, []) and "warning" not in messages
    found = {(file, crawl) for _, _, file, crawl in captures(index)}
    assert found == {(str(old / "b.warc.gz"), "weekly")}
    with closing(open_index(index)) as engine, engine.view() as view:
        known = {(one.name, one.crawl) for one in view.containers()}
    assert known == {(str(old / f"{host}.warc.gz"), "weekly") for host in "bc"}
    assert days(index) == {("b", 3)}
    typed("index", "--check", index)


@pytest.mark.parametrize(
    ("old", "message"),
    [
        ("{top}/sett", "the index has no file below {top}/sett, so nothing was read: is it the"),
        ("", "--instead-of is empty"),
        ("s3:/bucket/p", "did you mean s3://bucket/p?"),
        ("S3://bucket/p", "did you mean s3://bucket/p?"),
        ("{top}/s*", "give one directory or prefix, not a pattern"),
        ("{top}/set/b.warc.gz", "it is a file of the index: give the directory"),
    ],
)
def test_a_place_that_the_index_does_not_know_is_an_error(
    directory: Path, old: str, message: str
) -> None:
    _, messages = put(directory, old=old.format(top=directory), status=4)
    assert message.format(top=directory) in messages
    assert days(directory / "index") == {("b", 3), ("c", 4)}
    typed("index", "--add", directory / "smaller", directory / "index", "--crawl", "weekly")
    if old.endswith("sett"):  # as in a repeated run, all results are known
        report, messages = put(directory, old=old.format(top=directory))
        assert report["replaced"] == 0 and "nothing was replaced" in messages


def test_an_index_may_know_files_by_their_last_names(directory: Path) -> None:
    typed("index", "--empty", "--all", directory / "other")
    typed("corpus", directory / "set", "-o", directory / "set.cdxj", "--jobs", "1")
    lines = (directory / "set.cdxj").read_text().replace(f"{directory}/set/", "")
    (directory / "set.cdxj").write_text(lines)
    typed("index", "--add", directory / "set.cdxj", directory / "other")
    assert {file for _, _, file, _ in captures(directory / "other")} == {"b.warc.gz", "c.warc.gz"}
    words = ("index", "--replace", directory / "smaller", directory / "other", "--instead-of")
    output, _ = typed(*words, "/gone", "--jobs", "1")
    assert "read 2 files in place of those in /gone; replaced 2 files" in output
    assert days(directory / "other") == {("b", 3)}


@pytest.mark.parametrize("named", [False, True], ids=["directory", "files"])
@pytest.mark.parametrize("damage", ["empty", "beginning", "first-record"])
def test_captures_stay_if_a_result_cannot_be_read(
    directory: Path, damage: str, named: bool
) -> None:
    result = directory / "smaller/c.warc.gz"
    data = bytearray((directory / "set/c.warc.gz").read_bytes())
    data[30:60] = bytes(30)
    broken = {"empty": b"", "beginning": b"garbage!" * 20, "first-record": bytes(data)}
    result.write_bytes(broken[damage])
    sources = [result, directory / "smaller/b.warc.gz"] if named else []
    report, messages = put(directory, *sources, status=7)
    assert report["remaining"] == [str(directory / "set/c.warc.gz")] and report["replaced"] == 1
    assert "1 file of which the index keeps what it has: the result is damaged" in messages
    assert messages.count(f"{result}") == 1
    assert days(directory / "index") >= {("c", 4)}


def test_what_changes_while_it_is_read_replaces_nothing(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = directory / "smaller/c.warc.gz"
    opened = stage.open_source

    def growing(path: str, *more: Any) -> Any:
        source = opened(path, *more)
        if path == str(result):
            with open(result, "ab") as stream:
                stream.write(b"more")
        return source

    monkeypatch.setattr(stage, "open_source", growing)
    report, _ = put(directory, status=7)
    assert report["remaining"] == [str(directory / "set/c.warc.gz")] and report["replaced"] == 1


@pytest.mark.parametrize("command", ["dedup", "rewrite"])
def test_files_of_several_directories_have_a_command_each(directory: Path, command: str) -> None:
    for day, name in ((2, "p/a"), (5, "q/b"), (6, "q/a"), (7, "q/below/d")):
        write(directory / f"{name}.warc.gz", day, BODIES, chr(ord("a") + day))
    index, out = directory / "index", directory / "o2"
    typed("index", "--add", directory / "p", directory / "q", index)
    sources = [directory / f"{name}.warc.gz" for name in ("p/a", "q/b")]
    source: list[object] = [*sources]
    if command == "rewrite":
        typed("manifest", *sources, "-o", directory / "manifest")
        typed("resolve", directory / "manifest", "-o", directory / "plan")
        source = [directory / "plan"]
    printed, _ = typed(command, *source, "--out", out, "--jobs", "1")
    lines = [line for line in printed.splitlines() if line.startswith("next: ")]
    assert len(lines) == 2
    for line in lines:
        words = shlex.split(line[line.index("/index --replace") :])[1:]
        output, _ = typed("index", *(index if word == "INDEX" else word for word in words))
        assert "read 1 file in place of those" in output and "replaced 1 file" in output
    files = {file for _, _, file, _ in captures(index)}
    assert f"{out}/a.warc.gz" in files and f"{directory}/q/a.warc.gz" in files
    assert not files & set(map(str, sources))


@pytest.mark.parametrize("how", ["--out", "--in-place"])
@pytest.mark.parametrize("command", ["dedup", "rewrite"])
def test_the_command_for_an_index_names_dictionaries(
    directory: Path, command: str, how: str
) -> None:
    dictionary, source = directory / "dictionary", directory / "set"
    samples = [Random(number % 7).randbytes(64) * 4 for number in range(200)]
    dictionary.write_bytes(zstandard.train_dictionary(1024, samples).as_bytes())
    if command == "rewrite":
        typed("manifest", source, "-o", directory / "manifest")
        typed("resolve", directory / "manifest", "-o", directory / "plan")
        source = directory / "plan"
    into = ("--out", directory / "again") if how == "--out" else (how,)
    printed, _ = typed(command, source, *into, "--zstd-dictionary", dictionary)
    (line,) = (line for line in printed.splitlines() if line.startswith("next: "))
    assert f"--zstd-dictionary {dictionary}" in line
