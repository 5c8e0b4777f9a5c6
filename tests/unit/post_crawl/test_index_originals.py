"""Resolving with an index: its other files may have originals."""

from __future__ import annotations

import json
import re
from pathlib import Path
from random import Random

import pytest

from dedupindex.cli import main
from dedupindex.errors import BadSource
from dedupindex.post_crawl.manifest.parquet import open_manifest
from dedupindex.post_crawl.plan.index_originals import read_line
from dedupindex.post_crawl.plan.plan_file import Plan, open_plan
from dedupindex.warc.record import BrokenRecord
from tests.support.commands import typed
from tests.support.warc_cases import gz, record_id, request, response, sha1

BODIES = [b"one" * 100, b"two" * 200, b"three" * 300]


def write(path: Path, day: int, bodies: list[bytes], host: str = "a") -> Path:
    """A file of responses of one day."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as stream:
        for at, body in enumerate(bodies):
            date = b"2026-01-%02dT00:00:%02dZ" % (day, at)
            url = f"http://{host}.test/{at}".encode()
            number = 100 * day + at + 10_000 * ord(host)
            stream.write(gz(response(body, Date=date, Target_URI=url, number=number)))
    return path


def two_crawls(folder: Path, bodies: list[bytes], form: str = "crawl{}.warc.gz") -> Path:
    """Write two files of the same payloads, of two days; return their directory."""
    for day in (2, 3):
        write(folder / form.format(day), day, bodies)
    return folder


def index_of(tmp_path: Path, *sources: Path, options: tuple[str, ...] = ()) -> Path:
    index = tmp_path / "index"
    argv = ["index", *options, "--whitelist", "--mime", ".*", *map(str, sources), str(index)]
    assert main(argv) == 0
    return index


def plan_of(
    tmp_path: Path, sources: Path, index: Path | None, name: str = "plan", *more: str
) -> Plan:
    manifest = str(tmp_path / f"manifest-{name}")
    assert main(["manifest", str(sources), "-o", manifest, "--jobs", "1"]) == 0
    argv = ["resolve", manifest, "-o", str(tmp_path / name), *more]
    assert main([*argv, *(["--index", str(index)] if index else [])]) == 0
    return open_plan(tmp_path / name)


def test_an_original_of_the_index_is_copy_1(tmp_path: Path) -> None:
    old = write(tmp_path / "old/x.warc.gz", 1, BODIES)
    index = index_of(tmp_path, old)
    write(tmp_path / "set/y.warc.gz", 2, BODIES)
    write(tmp_path / "set/z.warc.gz", 3, [*BODIES, b"new"], "b")
    plan = plan_of(tmp_path, tmp_path / "set", index)
    assert [place.path for place in plan.outside().values()] == [str(old)]
    (outside,) = plan.outside()
    assert outside not in plan.containers()
    for number, copy in zip(sorted(plan.containers()), (2, 3), strict=True):
        planned = list(plan.copies(number))
        assert [one.copy for one in planned] == [copy] * 3
        assert {one.original.container for one in planned} == {outside}
        assert [one.original for one in planned] == [
            read_line(str(old), one.original.offset)._replace(container=outside) for one in planned
        ]
    assert (plan.totals.copies, plan.totals.outside, plan.totals.originals) == (6, 6, 0)
    assert plan.totals.lines == 7
    assert plan.totals.unique == 1
    argv = ["resolve", str(tmp_path / "manifest-plan"), "--index", str(index)]
    for part in ("1/2", "2/2"):
        assert main([*argv, "-o", str(tmp_path / "parts"), "--partition", part]) == 0
    whole = open_plan(tmp_path / "parts")
    assert {place.path for place in whole.outside().values()} == {str(old)}
    assert sum(len(list(whole.copies(number))) for number in whole.containers()) == 6


def test_originals_that_are_later_gone_or_changed_are_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    later = write(tmp_path / "old/later.warc.gz", 20, BODIES)
    gone = write(tmp_path / "old/gone.warc.gz", 1, BODIES[:1], "c")
    changed = write(tmp_path / "old/changed.warc.gz", 1, BODIES[1:2], "d")
    index = index_of(tmp_path, later, gone, changed)
    gone.unlink()
    write(changed, 1, [b"owt" * 200], "d")
    write(tmp_path / "set/y.warc.gz", 2, BODIES)
    plan = plan_of(tmp_path, tmp_path / "set", index)
    assert plan.totals.copies == 0
    capsys.readouterr()


def test_originals_behind_damage_are_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The index has them, as it reads on; replay tools do not."""
    old = tmp_path / "old/x.warc.gz"
    data = write(old, 1, BODIES).read_bytes()
    second = data.index(b"\x1f\x8b", 10)
    third = data.index(b"\x1f\x8b", second + 10)
    old.write_bytes(data[: third - 5] + b"?" + data[third - 4 :])
    index = tmp_path / "index"
    assert main(["index", "--whitelist", "--mime", ".*", str(old), str(index)]) == 7
    write(tmp_path / "set/y.warc.gz", 2, BODIES)
    plan = plan_of(tmp_path, tmp_path / "set", index)
    assert plan.totals.copies == plan.totals.outside == 1
    assert [one.original.offset for one in plan.copies(1)] == [0]
    capsys.readouterr()


def test_captures_that_stay_as_the_files_of_their_originals_moved_are_counted(
    tmp_path: Path,
) -> None:
    """Also those that only one of several files would save; not those that another one saves."""
    first = write(tmp_path / "run1/x.warc.gz", 1, BODIES[:2])
    more = write(tmp_path / "run1/more.warc.gz", 1, BODIES[:1], "c")
    later = write(tmp_path / "run1/later.warc.gz", 20, BODIES[2:], "d")
    kept = write(tmp_path / "old/kept.warc.gz", 1, [b"kept" * 90], "e")
    index = index_of(tmp_path, first, more, later, kept)
    write(tmp_path / "set/y.warc.gz", 2, [*BODIES, b"kept" * 90])
    write(tmp_path / "set/z.warc.gz", 3, BODIES[:1], "b")
    manifest, plan = tmp_path / "manifest", tmp_path / "plan"
    typed("manifest", tmp_path / "set", "-o", manifest)
    words = ("resolve", manifest, "--index", index, "-o")
    found, said = typed(*words, tmp_path / "before", "--json")
    assert json.loads(found)["copies"] == 4 and json.loads(found)["unread_originals"] == 0
    assert "warning" not in said
    (tmp_path / "run1").rename(tmp_path / "run2")
    text, said = typed(*words, plan)
    assert (
        "warning: captures that may stay whole because their originals cannot be read: 2. " in said
    )
    assert f"the index has them, or not readable: 2 ({more}, {first}). If they moved, run" in said
    assert "\n  lines that may stay as their originals cannot be read, or have changed: 2\n" in text
    assert (open_plan(plan).totals.copies, open_plan(plan).totals.unread_originals) == (2, 2)
    for part in ("1/2", "2/2"):
        typed(*words, tmp_path / "parts", "--partition", part)
    assert open_plan(tmp_path / "parts").totals == open_plan(plan).totals
    (command,) = re.findall(r"run bin/(index --replace NEW INDEX --instead-of OLD)", said)
    places = {"NEW": tmp_path / "run2", "INDEX": index, "OLD": tmp_path / "run1"}
    typed(*(places.get(word, word) for word in command.split()))
    found, said = typed(*words, tmp_path / "after", "--json")
    assert json.loads(found)["copies"] == 4 and "warning" not in said


def test_captures_that_stay_as_the_files_of_their_originals_changed_are_counted(
    tmp_path: Path,
) -> None:
    """As when the index was made after a run in place, and that was undone."""
    *bodies, lost = (Random(number).randbytes(1500) for number in range(4))
    two_crawls(old := tmp_path / "old", bodies)
    typed("dedup", old, "--in-place")
    gone = write(tmp_path / "gone.warc.gz", 1, [lost], "e")
    index = index_of(tmp_path, old, gone)
    write(tmp_path / "set/y.warc.gz", 9, [*bodies, lost], "b")
    words = ("dedup", tmp_path / "set", "--out", tmp_path / "out", "--index", index, "--dry-run")
    found, said = typed(*words, "--json")
    assert json.loads(found)["revisits"] == 4 and "warning" not in said
    typed("rewrite", tmp_path / "old.dedup/plan", "--undo")
    data = (old / "crawl2.warc.gz").read_bytes()
    shift = write(tmp_path / "first.warc.gz", 1, [b"first"], "f").read_bytes()
    (old / "crawl2.warc.gz").write_bytes(shift + data)
    gone.unlink()
    found, said = typed(*words, "--json")
    assert json.loads(found)["revisits"] == 0 and json.loads(found)["unread_originals"] == 4
    assert "because their originals cannot be read: 1. Files that are not where" in said
    changed = f"than when they were indexed: 3. Such files: 1 ({old}/crawl2.warc.gz). Run "
    assert f"{changed}bin/index --replace FILE... INDEX" in said
    typed("index", "--replace", old, index)
    found, said = typed(*words, "--json")
    assert json.loads(found)["revisits"] == 3 and json.loads(found)["unread_originals"] == 1


def test_captures_of_the_set_that_the_index_has_become_revisits(tmp_path: Path) -> None:
    first = write(tmp_path / "set/y.warc.gz", 2, BODIES)
    second = write(tmp_path / "set/z.warc.gz", 3, BODIES, "b")
    write(tmp_path / "set/zz.warc.gz", 4, BODIES, "b")
    plan = plan_of(tmp_path, tmp_path / "set", index_of(tmp_path, first, second))
    assert (plan.outside(), plan.totals.kept, plan.totals.copies) == ({}, {}, 6)


def test_a_record_of_the_set_is_preferred_to_one_of_its_second_outside(tmp_path: Path) -> None:
    """A copy of the set elsewhere takes no original from it, nor makes one ambiguous."""
    paths = [write(tmp_path / where / "y.warc.gz", 2, BODIES) for where in ("old", "set")]
    other = write(tmp_path / "old/other.warc.gz", 2, [b"other" * 70])
    write(tmp_path / "set/z.warc.gz", 3, [*BODIES, b"other" * 70], "b")
    plan = plan_of(tmp_path, tmp_path / "set", index_of(tmp_path, paths[0], other))
    assert (plan.outside(), plan.totals.kept, plan.totals.copies) == ({}, {}, 3)


def test_rows_that_name_no_directory_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "set/y.warc.gz", 2, BODIES[:1])
    old = write(tmp_path / "old/x.warc.gz", 1, BODIES[:1])
    for number, name in enumerate(("x.warc.gz", "y.warc.gz")):
        (tmp_path / str(number)).mkdir()
        row = cdxj_of(old, 0, "http://a.test/0", 1, BODIES[0], name)
        index = index_of(tmp_path / str(number), row)
        capsys.readouterr()
        assert plan_of(tmp_path, tmp_path / "set", index, f"plan-{number}").totals.copies == 0
        said = "captures in files of which the index knows the name only"
        messages = capsys.readouterr().err
        assert (said in messages) == (name == "x.warc.gz")
        assert ("bin/index --add these files: x.warc.gz\n" in messages) == (name == "x.warc.gz")


def test_another_payload_at_the_same_second_in_the_index_rules_an_original_out(
    tmp_path: Path,
) -> None:
    old = write(tmp_path / "old/x.warc.gz", 1, BODIES)
    other = write(tmp_path / "old/other.warc.gz", 1, [b"other" * 70])
    index = index_of(tmp_path, old, other, options=("--by-url",))
    write(tmp_path / "set/y.warc.gz", 2, BODIES)
    plan = plan_of(tmp_path, tmp_path / "set", index)
    assert plan.totals.copies == 2  # not the first, whose URL and second have two payloads


@pytest.mark.parametrize(
    ("head", "option", "without", "with_it"),
    [
        (b"HTTP/1.1 404 No\r\nContent-Type: text/html; charset=utf-8\r\n\r\n", "any-status", 0, 1),
        (b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n\r\n", "same-type", 1, 0),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/HTML;charset=utf-8\r\n\r\n", "same-type", 1, 1),
    ],
)
def test_options_decide_which_originals_of_the_index_match(
    tmp_path: Path, head: bytes, option: str, without: int, with_it: int
) -> None:
    old = tmp_path / "x.warc.gz"
    old.write_bytes(gz(response(BODIES[0], head=head, Date=b"2025-01-01T00:00:00Z")))
    index = index_of(tmp_path, old, options=("--status", "2xx,404"))
    write(tmp_path / "set/y.warc.gz", 2, BODIES)
    assert plan_of(tmp_path, tmp_path / "set", index).totals.copies == without
    plan = plan_of(tmp_path, tmp_path / "set", index, "other", f"--{option}")
    assert plan.totals.copies == plan.totals.outside == with_it


def cdxj_of(path: Path, offset: int, url: str, day: int, body: bytes, filename: str = "") -> Path:
    """A row for a record, as pywb writes it."""
    said = {
        "url": url, "mime": "text/html", "status": "200", "digest": sha1(body).decode(),
        "length": str(path.stat().st_size - offset), "offset": str(offset),
        "filename": filename or str(path),
    }  # fmt: skip
    row = path.with_suffix(".cdxj")
    row.write_text(f"test,a)/0 202601{day:02}000000 {json.dumps(said)}\n")
    return row


def test_the_answer_to_a_post_is_no_original(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row of a CDX does not tell; the file does, once the index is made of it."""
    body = BODIES[0]
    date, url = b"2026-01-01T00:00:00Z", b"http://a.test/0"
    posted = gz(request(b"POST", number=50, Target_URI=url, Concurrent_To=record_id(5)))
    old = tmp_path / "old/x.warc.gz"
    old.parent.mkdir()
    old.write_bytes(posted + gz(response(body, number=5, Target_URI=url, Date=date)))
    row = cdxj_of(old, len(posted), url.decode(), 1, body)
    write(tmp_path / "set/y.warc.gz", 2, [body])
    for number, sources in enumerate([(row,), (row, old), (old,)]):
        (tmp_path / str(number)).mkdir()
        index = index_of(tmp_path / str(number), *sources)
        capsys.readouterr()
        plan = plan_of(tmp_path, tmp_path / "set", index, f"plan-{number}")
        assert plan.totals.copies == 0
        assert ("captures known only from a CDX" in capsys.readouterr().err) == (number == 0)


def test_a_row_of_a_cdx_counts_if_its_file_was_read(tmp_path: Path) -> None:
    old = write(tmp_path / "old/x.warc.gz", 1, BODIES[:1])
    row = cdxj_of(old, 0, "http://a.test/0", 1, BODIES[0])
    write(tmp_path / "set/y.warc.gz", 2, BODIES[:1])
    for number, (sources, copies) in enumerate([((row,), 0), ((row, old), 1)]):
        (tmp_path / str(number)).mkdir()
        index = index_of(tmp_path / str(number), *sources)
        plan = plan_of(tmp_path, tmp_path / "set", index, f"plan-{number}")
        assert plan.totals.copies == copies


def test_the_numbers_of_a_run_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = write(tmp_path / "old/x.warc.gz", 1, BODIES)
    index = index_of(tmp_path, old)
    write(tmp_path / "set/y.warc.gz", 2, BODIES)
    capsys.readouterr()
    plan_of(tmp_path, tmp_path / "set", index, "plan", "--compare", "always", "--json")
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["outside"] == said["copies"] == said["compared"]["equal"] == 3


@pytest.mark.parametrize("packed", [True, False])
def test_a_record_is_read_whatever_its_length(tmp_path: Path, packed: bool) -> None:
    """As in a manifest, also where it is longer than what is looked at first, or just as long."""
    sizes = [10, 130_000, 130_400, 130_500, 130_600, 130_700, 131_072, 400_000, 10, 10]
    path = tmp_path / "set/x.warc"
    path.parent.mkdir()
    with open(path, "wb") as stream:
        for number, size in enumerate(sizes):
            data = response(Random(number).randbytes(size), number=number)
            stream.write(gz(data, 0) if packed else data)
    assert main(["manifest", str(path), "-o", str(tmp_path / "m"), "--jobs", "1"]) == 0
    lines = list(open_manifest(tmp_path / "m").lines(1))
    assert len(lines) == len(sizes)
    for line in lines:
        assert read_line(str(path), line.offset)._replace(container=1) == line
    for wrong in (-1, lines[3].offset + 1, lines[-1].offset + lines[-1].stored, 10**9):
        with pytest.raises((BadSource, BrokenRecord)):
            read_line(str(path), wrong)
    with open(path, "ab") as stream:  # two records in one member
        at = stream.tell()
        stream.write(gz(response(b"a" * 150_000) + response(b"b", number=2)))
        stream.write(gz(response(b"c" * 200_000, number=3), 0))
    if packed:
        with pytest.raises(BadSource, match="share"):
            read_line(str(path), at)
