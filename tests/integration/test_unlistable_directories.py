"""A directory that cannot be listed is named by every command that may miss what is in it."""

from __future__ import annotations

import ast
import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dedupindex.capture import Problem
from dedupindex.corpus.locate_containers import ContainerLocator
from dedupindex.errors import BadSource
from dedupindex.post_crawl.rewrite.undo_directory import DIRECTORY
from dedupindex.runtime.walk_directories import matches
from dedupindex.sources.discover import expand
from dedupindex.sources.warc_files import find
from tests.support.commands import ended, typed
from tests.support.paths import ROOT
from tests.support.rewriting import content
from tests.unit.post_crawl.test_index_originals import two_crawls, write

BODIES = [Random(number).randbytes(1500) for number in range(3)]
Close = Callable[..., None]


@pytest.fixture
def close(monkeypatch: pytest.MonkeyPatch) -> Close:
    """Refuse the lists of directories, as to a user who is not root."""
    closed = set[str]()

    def refusing(work: Callable[..., Any]) -> Callable[..., Any]:
        def refuse(path: Any = ".") -> Any:
            if isinstance(path, str | os.PathLike) and os.path.realpath(path) in closed:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
            return work(path)

        return refuse

    for name in ("scandir", "listdir"):
        monkeypatch.setattr(os, name, refusing(getattr(os, name)))
    return lambda *paths: closed.update(map(os.path.realpath, paths))


@pytest.fixture
def shut(monkeypatch: pytest.MonkeyPatch, close: Close) -> Close:
    """Refuse to look up names in directories as well, as of the mode 000."""
    closed = set[str]()

    def refusing(work: Callable[..., Any]) -> Callable[..., Any]:
        def refuse(path: Any, **options: Any) -> Any:
            if isinstance(path, str | os.PathLike) and os.path.dirname(path) in closed:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
            return work(path, **options)

        return refuse

    for name in ("stat", "lstat"):
        monkeypatch.setattr(os, name, refusing(getattr(os, name)))

    def shut(*paths: Path) -> None:
        close(*paths)
        closed.update(map(str, paths))

    return shut


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Two files of the same three payloads, each in a directory of its own."""
    return two_crawls(tmp_path / "archive", BODIES, "d{0}/crawl{0}.warc.gz")


def test_verify_names_it_as_a_finding_of_damage(archive: Path, close: Close) -> None:
    assert "no defects" in typed("verify", archive)[1]
    close(archive / "d3")
    status, out, said = ended("verify", archive)
    assert status == 7 and "no defects" not in said
    assert f"damage\tunreadable\t{archive}/d3\t-1" in out and "Permission denied" in out
    status, out, _ = ended("verify", archive / "d2", "--originals", archive)
    assert status == 7 and f"unreadable\t{archive}/d3" in out
    assert ended("verify", archive / "d3")[0] == 7  # though nothing was read


@pytest.mark.parametrize(
    "form", ["{}", "{}/d*", "{}/*/*.warc.gz", "{}/**", "{}/*/crawl3.warc.gz", "{}/d3/*"]
)
def test_a_comparison_never_says_that_all_is_there(
    archive: Path, tmp_path: Path, shut: Close, form: str
) -> None:
    out = tmp_path / "out"
    typed("dedup", archive, "--out", out)
    shutil.rmtree(out / "d3")
    words = ("verify", "--against", form.format(archive), out)
    status, listed, said = ended(*words)
    assert status == 8 and "file-missing" in listed and "held is there" not in said
    shut(archive / "d3")
    html = tmp_path / "page.html"
    status, listed, said = ended(*words, "--html", html)
    assert status == 7 and "held is there" not in said, said
    assert "holds everything" not in html.read_text()
    assert f"unreadable\t{archive}/d3" in listed and listed.count("unreadable") == 1


def test_nor_if_the_result_cannot_be_listed(archive: Path, tmp_path: Path, close: Close) -> None:
    out = tmp_path / "out"
    typed("dedup", archive, "--out", out)
    close(out / "d3")
    status, listed, said = ended("verify", "--against", archive, out)
    assert status == 8 and "held is there" not in said, said  # its file is not there
    assert f"unreadable\t{out}/d3" in listed and listed.count("unreadable") == 1
    (extra := tmp_path / "extra").mkdir()
    close(extra)
    words = ("verify", "--against", archive / "d2", out / "d2", "--originals", extra)
    status, listed, _ = ended(*words)
    assert status == 7 and f"unreadable\t{extra}" in listed


@pytest.mark.parametrize("words", [["--dry-run"], ["--in-place", "--dry-run"], ["--in-place"]])
def test_undedup_names_it(archive: Path, close: Close, words: list[str]) -> None:
    sets = archive / "d2", archive / "d3"
    for day in (4, 5):
        write(archive / f"d3/again{day}.warc.gz", day, BODIES)
    typed("dedup", archive / "d3", "--in-place")
    before = content(archive / "d3")
    close(sets[1])
    if words == ["--dry-run"]:
        (archive / DIRECTORY).mkdir()
    status, out, said = ended("undedup", archive, *words)
    assert status == 7 and "1 left alone" in out
    assert f"{sets[1]} " in said and "it cannot be read (Permission denied)" in said
    assert all((archive / "d3" / name).read_bytes() == data for name, data in before.items())


def test_undedup_to_a_directory_names_it(archive: Path, tmp_path: Path, close: Close) -> None:
    out, again = tmp_path / "out", tmp_path / "again"
    typed("dedup", archive, "--out", out)
    close(out / "d2")
    status, text, said = ended("undedup", out, "--out", again)
    assert status == 7 and "left alone" in text
    assert f"warning: {out}/d2 was left alone: it cannot be read (Permission denied)" in said


def test_undo_data_that_cannot_be_listed_is_not_none(archive: Path, close: Close) -> None:
    typed("dedup", archive, "--in-place")
    close(archive / DIRECTORY)
    for words in (["--in-place"], ["--in-place", "--dry-run"], ["--dry-run"]):
        status, _, said = ended("undedup", archive, *words)
        assert status == 7 and f"{archive / DIRECTORY} " in said, words
        assert "nothing to undo" not in said


def test_a_rehearsal_fails_where_it_cannot_copy_it(
    archive: Path, tmp_path: Path, close: Close
) -> None:
    close(archive / "d3")
    status, out, said = ended("rehearse", archive, "--work", tmp_path / "work")
    assert status == 8 and "convert: failed: 1 thing" in out
    assert f"! {archive}/d3: unreadable: Permission denied" in out
    assert f"warning: {archive}/d3: unreadable: Permission denied" in said


def test_a_rehearsal_names_what_a_run_leaves_alone(archive: Path, tmp_path: Path) -> None:
    (archive / "d3/crawl3.warc.gz").rename(archive / "d3/crawl3.warc.gz.open")
    (archive / "empty.warc.gz").touch()
    words = ("rehearse", archive, "--work", tmp_path / "work")
    status, out, said = ended(*words)
    dry_status, _, dry = ended("dedup", archive, "--out", tmp_path / "out", "--dry-run")
    named = [line for line in dry.splitlines() if line.startswith("warning: ")]
    assert len(named) == 2 and set(named) <= set(said.splitlines())
    assert status == dry_status == 7 and "failed" not in out
    assert "status 7: bin/dedup would leave the files named above alone" in said
    steps = [json.loads(line) for line in ended(*words, "--json")[1].splitlines()]
    left = {step["step"]: [one["file"] for one in step["left"]] for step in steps}
    assert sorted(left.pop("manifest")) == [
        f"{archive}/d3/crawl3.warc.gz.open", f"{archive}/empty.warc.gz",
    ]  # fmt: skip
    assert not any(left.values())


def test_a_glob_names_where_it_cannot_search(archive: Path, close: Close) -> None:
    close(archive / "d3")
    for pattern in (f"{archive}/*/*.warc.gz", f"{archive}/**/*.gz", f"{archive}/**"):
        found = find([pattern])
        assert [file.name for file in found.files] == ["d2/crawl2.warc.gz"], pattern
        problem = Problem(f"{archive}/d3", -1, "unreadable: Permission denied")
        assert found.problems == [problem], pattern
    with pytest.raises(BadSource, match="nothing matches"):
        expand([f"{archive}/d3", f"{archive}/*.x"])
    errors = list[OSError]()
    close(archive)
    assert matches(f"{archive}/*/*.gz", errors.append) == []
    assert [error.filename for error in errors] == [str(archive)]


def test_a_glob_that_ends_in_a_name_names_where_it_cannot_look(archive: Path, shut: Close) -> None:
    write(archive / "d2/sub/crawl3.warc.gz", 4, BODIES)
    shut(archive / "d3")
    for pattern in ("*/crawl3.warc.gz", "*/sub/*.gz", "d[3]/sub", "*/*/../sub/crawl3.warc.gz"):
        errors = list[OSError]()
        matches(f"{archive}/{pattern}", errors.append)
        assert {error.filename for error in errors} == {str(archive / "d3")}, pattern
    found = find([f"{archive}/*/crawl3.warc.gz", f"{archive}/*/sub/*.gz"])
    assert [file.name for file in found.files] == ["d2/sub/crawl3.warc.gz"]
    assert found.unlisted == {f"{archive}/d3"}


def test_a_glob_of_all_that_is_below_lists_directories_only(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    isdir, asked = os.path.isdir, list[str]()
    monkeypatch.setattr(os.path, "isdir", lambda path: asked.append(str(path)) or isdir(path))
    errors = list[OSError]()
    assert len(matches(f"{archive}/**", errors.append)) == 5 and not errors
    assert not [path for path in asked if path.endswith(".gz")]


def test_what_is_no_file_is_no_directory_either(archive: Path, tmp_path: Path) -> None:
    """Such as links that lead nowhere, and FIFOs, that are named like archives."""
    (archive / "gone.warc.gz").symlink_to("nothing")
    os.mkfifo(archive / "pipe.warc.gz")
    status, out, said = ended("dedup", archive, "--out", tmp_path / "out")
    assert status == 7 and "NOT COPIED, so keep the source: 2 files, 0 B" in out
    assert "it will name what cannot be read (unreadable), with the status 7\n" in out
    assert f"warning: {archive}/gone.warc.gz: cannot be read" in said
    report = json.loads(ended("dedup", archive, "--out", tmp_path / "out", "--json")[1])
    assert report["not_listed"] == [] and len(report["not_copied"]) == 2
    for words in (("--against", archive, tmp_path / "out"), (archive,)):
        status, out, _ = ended("verify", *words)
        assert status == 7 and "all that" not in out and "no defects" not in out
        for name, why in (
            ("gone", "a link that leads nowhere"), ("pipe", "neither a file nor a directory"),
        ):  # fmt: skip
            named = f"damage\tunreadable\t{archive}/{name}.warc.gz\t-1\t\tit cannot be read (it is "
            assert f"{named}{why})" in out
    status, out, said = ended("rehearse", archive, "--work", tmp_path / "work")
    assert status == 7 and "failed" not in out
    assert f"warning: {archive}/gone.warc.gz: cannot be read" in said


def test_a_file_whose_status_is_not_known_is_no_missing_one(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a directory that can be listed, and not be entered."""
    stat = os.stat

    def refuse(path: Any, **options: Any) -> os.stat_result:
        if str(path).endswith("crawl3.warc.gz"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", refuse)
    status, out, _ = ended("verify", archive)
    assert status == 7 and f"unreadable\t{archive}/d3/crawl3.warc.gz" in out


def test_a_place_of_warc_files_is_a_problem_only_if_it_is_searched(
    archive: Path, close: Close
) -> None:
    close(archive / "d3")
    problems = list[Problem]()
    locator = ContainerLocator([str(archive)], problems)
    assert locator.find("d2/crawl2.warc.gz", "") and not problems
    assert locator.find("crawl3.warc.gz", "") == ""
    assert [problem.container for problem in problems] == [f"{archive}/d3"]


def test_all_walks_say_what_becomes_of_errors() -> None:
    """`os.walk` passes over a directory that it cannot list unless it is told otherwise."""
    for package in ("dedupindex", "server"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "os.walk":
                    assert "onerror" in {word.arg for word in node.keywords}, path


def test_a_file_of_a_journal_that_cannot_be_reached_is_named(
    archive: Path, tmp_path: Path, close: Close, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a directory that can neither be listed nor entered; the other files are restored."""
    out = tmp_path / "out"
    typed("dedup", archive, "--out", out)
    close(out / "d3")
    stat = os.stat

    def refuse(path: Any, **options: Any) -> os.stat_result:
        if str(path).startswith(f"{out}/d3/"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", refuse)
    status, _, said = ended("undedup", out, "--out", tmp_path / "again")
    assert status == 7 and (tmp_path / "again/d2/crawl2.warc.gz").is_file()
    assert "warning: d3/crawl3.warc.gz was left alone: its file cannot be read: Permission" in said
