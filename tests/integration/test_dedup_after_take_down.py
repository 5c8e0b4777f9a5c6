"""A run is repeated, or undone, after a record was taken out of its results: it stays out."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dedupindex.errors import DedupError
from dedupindex.post_crawl.rewrite import correct_results
from dedupindex.post_crawl.rewrite.journal import Journal
from dedupindex.post_crawl.rewrite.undo_directory import DIRECTORY, UNCORRECTED, uncorrected
from dedupindex.runtime.files import exclusive
from tests.support.commands import ended, typed
from tests.support.local_spark import run_spark_here
from tests.support.rewriting import content
from tests.support.stores import Bucket
from tests.unit.post_crawl.test_index_originals import write

SECRET = b"http://a.test/0"
A, B, C, D, E = (f"2020/{name}.warc.gz" for name in "abcde")
KINDS = ("directory", "store", "spark")


class Archive:
    """`a` has the originals of all, `b` a copy of the secret page, `c` that page again."""

    def __init__(self, top: Path, bucket: Bucket | None, more: tuple[str, ...] = ()) -> None:
        self.top, self.bucket = top, bucket
        self.state = top / ("state" if bucket else "out")
        self.bodies = [Random(number).randbytes(3000) for number in range(7)]
        for name, day, host, which in (
            (A, 2, "a", (0, 1)), (B, 3, "b", (0, 2, 6)), (C, 4, "a", (0, 3)), (D, 5, "d", (1, 4)),
        ):  # fmt: skip
            self.add(name, day, host, *which)
        self.out = f"{bucket.url}/out" if bucket else str(top / "out")
        source = f"{bucket.url}/in" if bucket else str(top / "in")
        state = ("--state", str(self.state)) if bucket else ()
        self.words = ("dedup", source, "--out", self.out, *state, "--jobs", "1", *more)
        self.undoing = ("undedup", self.out, *state, "--jobs", "1", "--out")

    def add(self, name: str, day: int, host: str, *which: int) -> None:
        path = write(self.top / "in" / name, day, [self.bodies[one] for one in which], host)
        if self.bucket:
            self.bucket.put(f"in/{name}", path.read_bytes())

    def source(self, name: str) -> bytes:
        return (self.top / "in" / name).read_bytes()

    def results(self) -> dict[str, bytes]:
        return self.bucket.content("out") if self.bucket else content(self.top / "out")

    def put(self, name: str, data: bytes) -> None:
        if self.bucket:
            self.bucket.put(f"out/{name}", data)
            return
        (self.top / "out" / name).parent.mkdir(parents=True, exist_ok=True)
        (self.top / "out" / name).write_bytes(data)

    def dedup(self, *more: str, status: int = 0) -> tuple[dict[str, Any], str]:
        output, said = typed(*self.words, *more, "--json", status=status)
        return json.loads(output), said

    def interrupted(self) -> None:
        """Run until all files are written, and none is corrected."""

        def ends(*_: object) -> None:
            raise DedupError("it ends here")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(correct_results, "_corrections", ends)
            assert "it ends here" in ended(*self.words)[2]

    def shown(self, *names: str) -> list[str]:
        return [f"{self.out}/{name}" for name in names]


@pytest.fixture(params=KINDS)
def archive(
    request: pytest.FixtureRequest, tmp_path: Path, buckets: Callable[[], Bucket],
    monkeypatch: pytest.MonkeyPatch,
) -> Archive:  # fmt: skip
    run_spark_here(monkeypatch)
    more = ("--spark", "2") if request.param == "spark" else ()
    return Archive(tmp_path, None if request.param == "directory" else buckets(), more)


@pytest.fixture
def local(tmp_path: Path) -> Archive:
    return Archive(tmp_path, None)


def records(data: bytes) -> list[tuple[bytes, bytes]]:
    """The records of a file, each with its member."""
    found = []
    while data:
        member = zlib.decompressobj(31)
        record = member.decompress(data)
        found.append((record, data[: len(data) - len(member.unused_data)]))
        data = member.unused_data
    return found


def without(data: bytes, url: bytes = SECRET) -> bytes:
    """A file without the records of a URL."""
    line = b"WARC-Target-URI: " + url + b"\r\n"
    return b"".join(member for record, member in records(data) if line not in record)


def packed_otherwise(data: bytes) -> bytes:
    return b"".join(gzip.compress(record, 1, mtime=0) for record, _ in records(data))


def test_nothing_is_replaced(archive: Archive) -> None:
    first, _ = archive.dedup()
    assert first["revisits"] == 3
    archive.put(A, without(archive.results()[A]))
    after = archive.results()
    assert after[A] and b"/secret" not in after[A]
    dry, _ = archive.dedup("--dry-run", status=7)
    again, said = archive.dedup(status=7)
    assert archive.results() == after
    assert again["refer_to_left_alone"] == dry["refer_to_left_alone"] == archive.shown(B, C, D)
    assert again["verified"] == {"files": 0, "findings": {}} and again["revisits"] == 3
    assert "or a record was taken out of it. Keep it in that last case" in said
    assert "3 files exist already and refer to records in files that were left alone" in said
    archive.put(B, packed_otherwise(archive.source(B)))
    archive.put(C, without(packed_otherwise(archive.source(C))))
    after = archive.results()
    again, _ = archive.dedup(status=7)
    assert archive.results() == after
    assert again["refer_to_left_alone"] == archive.shown(D)
    assert not (archive.state / DIRECTORY / UNCORRECTED).exists()


def test_a_new_file_that_refers_to_what_was_changed_is_copied_whole(archive: Archive) -> None:
    archive.dedup()
    archive.put(A, without(archive.results()[A]))
    after = archive.results()
    archive.add(E, 6, "e", 1, 5)
    done, _ = archive.dedup(status=7)
    assert archive.results() == {**after, E: archive.source(E)}
    assert done["refused"]["original-left-alone"] == 1
    assert done["verified"] == {"files": 1, "findings": {}}


def test_an_interrupted_run_is_corrected_when_it_is_resumed(archive: Archive) -> None:
    archive.put(A, packed_otherwise(archive.source(B)))
    archive.interrupted()
    assert archive.results()[B] != archive.source(B)
    done, said = archive.dedup(status=7)
    assert {name: archive.results()[name] for name in (B, C, D)} == {
        name: archive.source(name) for name in (B, C, D)
    }
    assert done["refer_to_left_alone"] == [] and "exist already and refer" not in said
    assert done["refused"]["original-left-alone"] == 3


def test_an_interrupted_run_corrects_its_own_results_only(archive: Archive) -> None:
    """Those of the complete run before it stay, also in the run that resumes."""
    archive.dedup()
    archive.put(A, without(archive.results()[A]))
    after = archive.results()
    archive.add(E, 6, "e", 1, 5)
    archive.interrupted()
    assert archive.results()[E] != archive.source(E)
    done, _ = archive.dedup(status=7)
    assert archive.results() == {**after, E: archive.source(E)}
    assert done["refer_to_left_alone"] == archive.shown(B, C, D)


def test_a_run_that_left_files_alone_has_ended(local: Archive) -> None:
    """It resumed an interrupted one; what it could not process counts as its result, too."""
    local.interrupted()
    with open(local.top / "in" / B, "r+b"):  # somebody writes to it
        local.dedup(status=7)
    assert not uncorrected(local.state)
    for name, data in local.results().items():
        if name in (A, C):
            local.put(name, without(data))
    before = local.results()
    report, _ = local.dedup(status=7)
    assert local.results() == before
    assert report["refer_to_left_alone"] == sorted(local.shown(B, D))


def test_an_index_is_outdated_also_if_all_results_are_whole_copies(local: Archive) -> None:
    local.put(A, packed_otherwise(local.source(B)))
    output, _ = typed(*local.words, status=7)
    assert "0 captures became revisits" in output
    assert f"bin/index --replace {local.out} INDEX --instead-of" in output
    plan = f"{local.state}.dedup/plan"
    output, said = typed("rewrite", plan, "--out", local.top / "other")
    assert "next: an index" in output
    (local.top / "other" / A).write_bytes(without(local.source(A)))
    _, said = typed("rewrite", plan, "--out", local.top / "other", status=7)
    assert "3 files exist already and refer to records in files that were left alone" in said


def test_a_second_run_is_refused_before_it_sends_requests(
    tmp_path: Path, buckets: Callable[[], Bucket]
) -> None:
    bucket = buckets()
    archive = Archive(tmp_path, bucket)
    archive.dedup()
    work = tmp_path / "state.dedup"
    for held in (work / "lock", archive.state / DIRECTORY / "lock"):
        bucket.server.requests.clear()
        with exclusive(held, "it"):
            status, _, said = ended(*archive.words)
        assert (status, bucket.server.requests) == (6, []) and "another process" in said


@pytest.mark.parametrize("kind", KINDS[:2])
def test_undoing_copies_what_was_put_back(
    kind: str, tmp_path: Path, buckets: Callable[[], Bucket]
) -> None:
    archive = Archive(tmp_path, buckets() if kind == "store" else None)
    archive.dedup()
    typed(*archive.undoing, tmp_path / "all")
    restored = content(tmp_path / "all")
    archive.put(B, packed_otherwise(restored[B]))
    _, said = typed(*archive.undoing, tmp_path / "b")
    assert f"{B}: it has in full all records that its undo data lists" in said
    assert content(tmp_path / "b") == {**restored, B: packed_otherwise(restored[B])}
    archive.put(A, without(archive.results()[A]))
    archive.put(C, without(packed_otherwise(restored[C])))  # its only revisit is not there
    output, said = typed(*archive.undoing, tmp_path / "c", "--json", status=7)
    assert f"{C} at" in said and "NOT RESTORED: the undo data lists a revisit there" in said
    assert f"{C}: copied as it is: " in said and json.loads(output)["left_alone"] == 0
    now = archive.results()
    assert {n: (tmp_path / "c" / n).read_bytes() for n in (A, B, C)} == {
        n: now[n] for n in (A, B, C)
    }
    typed("verify", "--against", tmp_path / "in" / D, tmp_path / "c" / D, "--records")
    again, _ = typed(*archive.undoing, tmp_path / "c", "--json", status=7)
    assert json.loads(again)["existing"] == 4
    Journal(archive.state, C).lines.unlink()  # as docs/post-crawl-in-stores.md says
    typed(*archive.undoing, tmp_path / "less")
    assert (tmp_path / "less" / C).read_bytes() == now[C]


def test_the_bytes_of_the_source_may_be_put_back(local: Archive) -> None:
    """No undo in place was interrupted: the results were written with --out."""
    local.dedup()
    local.put(B, local.source(B))
    _, said = typed(*local.undoing, local.top / "back")
    assert f"{B}: it has in full all records" in said and "interrupted" not in said


def test_what_is_still_a_revisit_is_restored(local: Archive) -> None:
    """One of two revisits was taken out of a file, with its record in no other place."""
    local.add(D, 5, "d", 1, 0, 4)
    assert local.dedup()[0]["revisits"] == 4
    local.put(D, without(local.results()[D], b"http://d.test/0"))
    output, _ = typed(*local.undoing, local.top / "back", "--json", status=7)
    found = json.loads(output)
    assert (found["partial"], found["records_not_restored"]) == (1, 1)
    expected = [record for record, _ in records(without(local.source(D), b"http://d.test/0"))]
    assert [record for record, _ in records((local.top / "back" / D).read_bytes())] == expected
