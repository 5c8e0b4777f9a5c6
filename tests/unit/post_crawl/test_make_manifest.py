"""Whole runs of the manifest: its directory, resumed, changed, as text, by the command line."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupindex.digest import Digest
from dedupindex.errors import BadInput, BadSource, FormatFromFuture, IndexBusy, SettingsConflict
from dedupindex.post_crawl.manifest.make_manifest import ManifestReport, make
from dedupindex.post_crawl.manifest.parquet import (
    TYPES,
    Line,
    ManifestContainer,
    ParquetWriter,
    open_manifest,
)
from dedupindex.post_crawl.manifest.record_lines import ManifestOptions
from dedupindex.post_crawl.plan.group_duplicates import GroupingRule
from dedupindex.post_crawl.plan.make_plan import ResolveOptions, resolve
from dedupindex.post_crawl.plan.plan_file import open_plan
from dedupindex.post_crawl.plan.warcsum_format import Hint, read_text, text_line
from dedupindex.runtime.files import exclusive
from tests.support.commands import typed
from tests.support.paths import ROOT
from tests.support.warc_cases import END, URL, gz, record, request, response, revisit, sha1


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Two files of one name in two directories, a plain one, and one that is not a WARC."""
    top = tmp_path / "sources"
    for number, name in enumerate(("a/x.warc.gz", "b/x.warc.gz", "c d\n\udce9.warc")):
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pack = gz if name.endswith("gz") else bytes
        records = (record(b"warcinfo", b"x", number=9), request(), response(number=number * 2 + 10),
                   response(b"other", number=number * 2 + 11), revisit())  # fmt: skip
        path.write_bytes(b"".join(map(pack, records)))
    (top / "notes.txt").write_text("nothing")
    return top


def made(sources: Path, top: Path, **options: object) -> ManifestReport:
    return make([str(sources)], top, ManifestOptions(), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cores", "jobs", "sizes", "expected"),
    [
        (2, 2, [9, 9, 8, 1], 3),  # a third of the time, the third would be read alone
        (2, 2, [9, 9, 9, 9], 2),
        (2, 2, [30, 9, 1, 1], 2),
        (4, 2, [9, 9, 8, 1], 2),  # three would take more than two cores
        (4, 4, [9] * 6, 6),
        (4, 4, [9] * 7, 4),
        (2, 1, [9, 9, 9], 1),
    ],
)
def test_no_core_waits_for_the_last_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    cores: int, jobs: int, sizes: list[int], expected: int,
) -> None:  # fmt: skip
    for number, size in enumerate(sizes):
        path = tmp_path / "in" / f"{number}.warc"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"".join(response(number=number) for _ in range(size)))
    found = []

    def read(read: object, tasks: object, jobs: int, *rest: object) -> Iterator[object]:
        found.append(jobs)
        return iter(())

    monkeypatch.setattr("dedupindex.post_crawl.manifest.make_manifest.read_all", read)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)))
    made(tmp_path / "in", tmp_path / "m", jobs=jobs)
    assert found == [expected]


def lines_of(top: Path) -> dict[str, list[Line]]:
    manifest = open_manifest(top)
    return {each.name: list(manifest.lines(each.number)) for each in manifest.containers().values()}


@pytest.mark.parametrize("jobs", [1, 2])
def test_everything_is_listed(sources: Path, tmp_path: Path, jobs: int) -> None:
    top = tmp_path / "m"
    tally = made(sources, top, jobs=jobs)
    assert (tally.files, tally.known, tally.gone, tally.lines, tally.skipped) == (3, 0, 0, 6, 1)
    assert tally.records == {"warcinfo": 3, "request": 3, "response": 6, "revisit": 3}
    assert tally.problems == [] and tally.bytes == sum(
        path.stat().st_size for path in sources.rglob("*.warc*")
    )
    manifest = open_manifest(top)
    containers = manifest.containers().values()
    assert sorted(each.name for each in containers) == sorted(lines_of(top))
    for container in containers:
        path = sources / container.name
        status = path.stat()
        assert container.root == str(sources) and container.path == str(path)
        assert container[3:7] == (
            status.st_size, status.st_mtime_ns, status.st_ino, status.st_dev,
        )  # fmt: skip
        lines = list(manifest.lines(container.number))
        assert [(line.container, line.digest) for line in lines] == [
            (container.number, sha1(b"payload")), (container.number, sha1(b"other")),
        ]  # fmt: skip
        assert manifest.entries[container.number].lines == len(lines)


def test_duckdb_reads_all_files_at_once(sources: Path, tmp_path: Path) -> None:
    top = tmp_path / "[m]*'"
    made(sources, top)
    with duckdb.connect() as database:
        found = database.execute("SELECT * FROM read_parquet(?)", [open_manifest(top).parquet])
        assert [column[0] for column in found.description or ()] == list(TYPES)
        assert [str(column[1]) for column in found.description or ()] == list(TYPES.values())
        assert len(found.fetchall()) == 6
        containers = database.execute(
            "SELECT number, name FROM read_parquet(?)", [f"{tmp_path}/[[]m][*]'/containers.parquet"]
        ).fetchall()
    assert {number: os.fsdecode(name.encode("latin-1")) for number, name in containers} == {
        number: each.name for number, each in open_manifest(top).containers().items()
    }


def test_an_empty_manifest(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    assert made(tmp_path / "none", tmp_path / "m").lines == 0
    with duckdb.connect() as database:
        rows = database.execute(
            "SELECT * FROM read_parquet(?)", [open_manifest(tmp_path / "m").parquet]
        )
        assert rows.fetchall() == []


def test_only_new_or_changed_files_are_scanned_again(sources: Path, tmp_path: Path) -> None:
    top = tmp_path / "m"
    made(sources, top)
    before = {each.name: each.number for each in open_manifest(top).containers().values()}
    again = made(sources, top)
    assert (again.files, again.known, again.gone, again.lines) == (0, 3, 0, 6)
    with open(sources / "a/x.warc.gz", "ab") as stream:
        stream.write(gz(response(number=77)))
    (sources / "new.warc").write_bytes(response(number=78))
    (sources / "b/x.warc.gz").unlink()
    again = made(sources, top)
    assert (again.files, again.known, again.gone, again.lines) == (2, 1, 2, 6)
    after = {each.name: each.number for each in open_manifest(top).containers().values()}
    assert set(before.values()).isdisjoint({after["a/x.warc.gz"], after["new.warc"]})
    with duckdb.connect() as database:  # lines of what is gone are gone
        numbers = database.execute(
            "SELECT DISTINCT container FROM read_parquet(?)", [open_manifest(top).parquet]
        ).fetchall()
    assert {number for (number,) in numbers} == set(after.values())


def test_a_file_whose_lines_were_removed_is_read_again(sources: Path, tmp_path: Path) -> None:
    top = tmp_path / "m"
    made(sources, top)
    before = {name: len(lines) for name, lines in lines_of(top).items()}
    (top / "lines" / "00000001.parquet").unlink()
    again = made(sources, top)
    assert (again.files, again.known, again.gone, again.lines) == (1, 2, 0, 6)
    assert {name: len(lines) for name, lines in lines_of(top).items()} == before
    assert len(open_manifest(top).entries) == 3
    assert made(sources, top).known == 3


@pytest.mark.parametrize("damage", [b"{", b"\xff", b"[1]", b'{"number": 1}'])
def test_a_damaged_list_of_containers_is_named(
    sources: Path, tmp_path: Path, damage: bytes
) -> None:
    top, plan = tmp_path / "m", tmp_path / "p"
    made(sources, top)
    resolve([top], plan, ResolveOptions(GroupingRule(), threads=1))
    for file, reader in (
        (top / "containers.jsonl", open_manifest),
        (plan / "part-1-of-1" / "containers.jsonl", open_plan),
    ):
        first, rest = file.read_bytes().split(b"\n", 1)
        file.write_bytes(damage + b"\n" + rest)
        with pytest.raises(BadInput, match="make it again") as found:
            reader(file.parent if reader is open_manifest else plan)
        assert str(file) in str(found.value)
        file.write_bytes(first + b"\n" + rest)
    assert len(open_manifest(top).entries) == len(open_plan(plan).containers()) == 3


def test_other_sources_are_added(sources: Path, tmp_path: Path) -> None:
    top = tmp_path / "m"
    made(sources / "a", top)
    assert made(sources / "b", top).lines == 4
    roots = {each.root for each in open_manifest(top).containers().values()}
    assert roots == {str(sources / "a"), str(sources / "b")}


def test_roots_of_files_and_globs(sources: Path, tmp_path: Path) -> None:
    def names(*given: Path) -> list[tuple[str, str]]:
        top = tmp_path / f"m{len(list(tmp_path.iterdir()))}"
        make([str(each) for each in given], top, ManifestOptions())
        return sorted((each.root, each.name) for each in open_manifest(top).containers().values())

    assert names(sources / "a" / "x.warc.gz") == [(str(sources / "a"), "x.warc.gz")]
    assert names(sources / "*" / "x.warc.gz") == [
        (str(sources), "a/x.warc.gz"), (str(sources), "b/x.warc.gz"),
    ]  # fmt: skip
    assert len(names(sources / "a", sources)) == 3  # each once


def test_a_container_that_changes_while_it_is_read_is_left_out(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ParquetWriter.add

    def grow(spool: ParquetWriter, lines: list[Line]) -> None:
        real(spool, lines)
        if any(line.container == growing for line in lines):
            os.utime(sources / "a/x.warc.gz", ns=(1, time.time_ns()))

    growing = 0
    top = tmp_path / "m"
    made(sources, top)
    growing = 4
    os.utime(sources / "a/x.warc.gz", ns=(1, 1))
    monkeypatch.setattr(ParquetWriter, "add", grow)
    tally = made(sources, top)
    (problem,) = tally.problems
    assert problem.container == str(sources / "a/x.warc.gz")
    assert (tally.files, tally.lines) == (1, 4) and "a/x.warc.gz" not in lines_of(top)
    monkeypatch.undo()
    assert made(sources, top).lines == 6


def test_lines_of_a_damaged_file_stay(sources: Path, tmp_path: Path) -> None:
    (sources / "a/x.warc.gz").write_bytes(gz(response()) + gz(response(number=2))[:-3])
    top = tmp_path / "m"
    for _ in range(2):  # what is known is named again
        (problem,) = made(sources, top).problems
        assert problem.container == str(sources / "a/x.warc.gz") and problem.offset > 0
    (line,) = lines_of(top)["a/x.warc.gz"]
    assert (line.not_rewritable_reason, line.not_original_reason) == ("damaged", "")


def between(sources: Path) -> None:
    """Damage the second of three records of a file."""
    found = [gz(response(number=number)) for number in (11, 12, 13)]
    found[1] = found[1][:-6] + b"?" + found[1][-5:]
    (sources / "a/x.warc.gz").write_bytes(b"".join(found))


def test_records_behind_damage_are_no_originals(sources: Path, tmp_path: Path) -> None:
    between(sources)
    made(sources, tmp_path / "m")
    found = [line[-3:-1] for line in lines_of(tmp_path / "m")["a/x.warc.gz"]]
    assert found == [("damaged", ""), ("damaged", "behind-damage")]


def test_an_earlier_manifest_reads_damaged_files_again(sources: Path, tmp_path: Path) -> None:
    """It does not know which records stand behind damage."""
    top = tmp_path / "m"

    def age() -> None:
        about = json.loads((top / "manifest.json").read_text())
        (top / "manifest.json").write_text(json.dumps({**about, "format": 6}))

    made(sources, top)
    age()
    assert len(lines_of(top)) == 3  # as no file is damaged
    between(sources)
    made(sources, top)
    age()
    with pytest.raises(BadInput, match="has damaged files: run bin/manifest"):
        open_manifest(top)
    tally = made(sources, top)
    assert (tally.files, tally.known) == (1, 2) and len(lines_of(top)) == 3
    assert made(sources, top).known == 3


def test_unreadable_sources_are_named(sources: Path, tmp_path: Path) -> None:
    (sources / "empty.warc").write_bytes(b"")
    (sources / "z.warc.zst").write_bytes(b"\x28\xb5\x2f\xfdxxxx")
    tally = made(sources, tmp_path / "m")
    assert sorted(Path(problem.container).name for problem in tally.problems) == [
        "empty.warc", "z.warc.zst",
    ]  # fmt: skip
    for name in ("z.warc.zst", "notes.cdx", "nothing-there"):
        (sources / "notes.cdx").write_text(" CDX N b a m s k r M S V g\n")
        with pytest.raises(BadSource, match=name):
            make([str(sources / name)], tmp_path / "m", ManifestOptions())
    with pytest.raises(BadSource):
        make(["-"], tmp_path / "m", ManifestOptions())


def test_options_and_targets_that_do_not_fit(sources: Path, tmp_path: Path) -> None:
    top = tmp_path / "m"
    made(sources, top)
    with pytest.raises(SettingsConflict, match="algorithm"):
        make([str(sources)], top, ManifestOptions("md5"))
    with pytest.raises(BadInput, match="something else"):
        made(sources, sources)
    with pytest.raises(IndexBusy), exclusive(top / "lock", "it"):
        made(sources, top)
    with pytest.raises(BadInput):
        open_manifest(sources)
    about = json.loads((top / "manifest.json").read_text())
    (top / "manifest.json").write_text(json.dumps({**about, "format": 99}))
    with pytest.raises(FormatFromFuture):
        open_manifest(top)
    (top / "manifest.json").write_text(json.dumps({**about, "format": 1}))
    with pytest.raises(BadInput, match="earlier version"):
        open_manifest(top)
    (top / "manifest.json").write_text(json.dumps({**about, "complete": False}))
    with pytest.raises(BadInput, match="not finished"):
        open_manifest(top)


class Killed(BaseException):
    pass


def test_a_run_stopped_anywhere_is_resumed(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tmp_path / "whole"
    made(sources, whole)
    expected = {
        name: [line._replace(container=0) for line in lines]
        for name, lines in lines_of(whole).items()
    }
    stops = ("fsync", "replace", "unlink")
    for stop in range(80):
        top, calls = tmp_path / f"m{stop}", iter(range(1000))

        def failing(real: object, calls: Iterator[int] = calls, stop: int = stop) -> object:
            def call(*arguments: object, **named: object) -> object:
                if next(calls) == stop:
                    raise Killed
                return real(*arguments, **named)  # type: ignore[operator]

            return call

        with monkeypatch.context() as patch:
            for name in stops:
                patch.setattr(os, name, failing(getattr(os, name)))
            try:
                made(sources, top)
                over = True
            except Killed:
                over = False
        tally = made(sources, top)
        found = {
            name: [line._replace(container=0) for line in lines]
            for name, lines in lines_of(top).items()
        }
        assert found == expected and tally.lines == 6, stop
        for name in ("lines", "references"):
            assert len(list((top / name).iterdir())) == 4, (name, stop)
        if over:
            break
    assert over and stop > 10


def killed_at_work(command: list[str], top: Path) -> bool:
    """Kill a run when its first file is done; return whether that was before its end."""
    shutil.rmtree(top, ignore_errors=True)
    journal = top / "containers.jsonl"
    with subprocess.Popen(
        command, cwd=ROOT, start_new_session=True, stdout=subprocess.PIPE
    ) as process:
        while process.poll() is None and not (journal.exists() and journal.stat().st_size):
            time.sleep(0.001)  # as short as it can be: the run must not end meanwhile
        at_work = process.poll() is None
        if at_work:
            os.killpg(process.pid, signal.SIGKILL)
        # Until nobody has the pipe: a process of the group that is not quite dead has the
        # manifest's lock, too.
        process.communicate()
    return at_work


def test_a_killed_run_is_resumed(sources: Path, tmp_path: Path) -> None:
    """Killed by the kernel while it reads; what was done is not read again."""
    (sources / "large.warc.gz").write_bytes(
        b"".join(gz(response(os.urandom(9000), number=n), 1) for n in range(3000))
    )
    top = tmp_path / "m"
    command = [sys.executable, "-m", "dedupindex", "manifest", str(sources), "-o", str(top)]
    assert any(killed_at_work([*command, "--jobs", "2"], top) for _ in range(5))
    done = subprocess.run([*command, "--json"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["lines"] == 3006 and said["known"] >= 1 and said["known"] + said["files"] == 4


container = ManifestContainer(1, "/x", "below/a b.warc.gz", 1, 2, 3, 4, "")


def test_text_output_equals_that_of_warcsum() -> None:
    data = Line(
        1, 968, 699, b"urn:x", b"http://e.com/a b", b"2026-11-20T09:14:17Z", b"",
        bytes.fromhex("54be26fe81a155c7f0e5a1a46f7953708a62ad2d"), 3, b"", 1, 200, b"\n", b"",
        1, "", "",
    )  # fmt: skip
    assert text_line(container, data, "sha1") == (
        b"a%20b.warc.gz 968 699 http://e.com/a%20b 2026-11-20T09:14:17Z "
        b"sha1:54be26fe81a155c7f0e5a1a46f7953708a62ad2d\n"
    )


TEXT = b"x.warc.gz 968 699 <http://e.com/> 2026-11-20T09:14:17Z sha1:" + b"ab" * 20
HINT = Hint(b"x.warc.gz", 968, 699, b"http://e.com/", b"2026-11-20T09:14:17Z",
            Digest("sha1", b"\xab" * 20))  # fmt: skip


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (TEXT, HINT),
        (TEXT + b" 3", HINT._replace(extension=3)),
        (TEXT + b" 3 1 - -", HINT._replace(extension=3, copy=1)),
        (TEXT + b" 3 2 http://own/ 2026-01-01T00:00:00Z", HINT._replace(extension=3, copy=2)),
        (b"a b " + TEXT, HINT._replace(file=b"a b x.warc.gz")),
        (TEXT.replace(b"sha1:", b"md5:"), HINT),  # warcsum -H md5 prints the SHA-1
        (TEXT.replace(b"sha1:", b"sha256:"), HINT),
        (TEXT.replace(b"968", b"5000000000"), HINT._replace(offset=5_000_000_000)),
        (
            TEXT.replace(b"sha1:" + b"ab" * 20, b"md5:" + b"ab" * 16),
            HINT._replace(digest=Digest("md5", b"\xab" * 16)),
        ),
    ],
)
def test_foreign_text_is_read(text: bytes, hint: Hint) -> None:
    assert list(read_text([text + b"\n"])) == [hint]


@pytest.mark.parametrize(
    "text",
    [b"", b"x.warc.gz 968 http://e.com/ 2026 sha1:" + b"ab" * 20 + b" 1", TEXT[:-1], TEXT + b" 1 2",
     TEXT.replace(b"sha1", b"crc"), TEXT.replace(b" sha1:" + b"ab" * 20, b"")[:4000]],
)  # fmt: skip
def test_text_that_is_cut_or_malformed_is_refused(text: bytes) -> None:
    if text.startswith(b"x") and b"crc" in text:
        assert next(read_text([text])).digest.algorithm == "sha1"  # told by its length
        return
    with pytest.raises(BadInput, match="line 2 "):
        list(read_text([TEXT, text]))


web = st.binary(min_size=1, max_size=30)


@given(web, web, st.integers(0, 2**63 - 1), st.sampled_from(["md5", "sha1", "sha256", "sha512"]))
def test_our_text_is_read_back(name: bytes, url: bytes, offset: int, algorithm: str) -> None:
    where = container._replace(name=os.fsdecode(name.replace(b"/", b"_")))
    raw = hashlib.new(algorithm, url).digest()
    line = Line(1, offset, offset, b"", url, b"d", b"", raw, 3, b"", 1, 200, b"\n", b"", 1, "", "")
    (hint,) = read_text([text_line(where, line, algorithm)])
    assert hint[1:3] == (offset, offset) and hint.digest == Digest(algorithm, raw)


def run(*words: object, status: int = 0) -> tuple[str, str]:
    command = [sys.executable, "-m", "dedupindex", "manifest", *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True)
    assert done.returncode == status, done.stderr
    assert b"Traceback" not in done.stderr and b"leaked" not in done.stderr
    return done.stdout.decode("utf-8", "surrogateescape"), done.stderr.decode()


def test_the_command(sources: Path, tmp_path: Path) -> None:
    top = tmp_path / "m"
    out, _ = run(sources, "-o", top, "--json")
    said = json.loads(out)
    assert (said["files"], said["lines"], said["problems"]) == (3, 6, 0)
    out, _ = run(sources, "-o", top, "--text", "-")
    hints = list(read_text(out.encode("utf-8", "surrogateescape").splitlines(keepends=True)))
    assert len(hints) == 6 and {hint.url for hint in hints} == {URL}
    run(sources, "-o", top, "--text", tmp_path / "t.txt")
    assert (tmp_path / "t.txt").read_bytes() == out.encode("utf-8", "surrogateescape")
    out, talk = run(sources, "-o", top)
    assert "6 lines" in out and talk == ""
    run(sources, "-o", top, "-H", "sha256", status=5)
    run(sources, "-o", top, "--json", "--text", "-", status=2)
    run("-o", top, status=2)
    run(sources / "none", "-o", top, status=4)
    (sources / "bad.warc.gz").write_bytes(gz(response())[:-1])
    _, talk = run(sources, "-o", top, status=7)
    assert "bad.warc.gz" in talk
    out, _ = run(sources, "-o", tmp_path / "five", "-H", "md5", "-f", "-s", "--text", "-", status=7)
    assert " md5:" + hashlib.md5(b"payload").hexdigest() in out


def test_the_command_names_unfinished_archives_and_fails_without_any(tmp_path: Path) -> None:
    place, top = tmp_path / "in", tmp_path / "m"
    place.mkdir()
    (place / "marker.done").touch()
    assert "no WARC or ARC file was found" in typed("manifest", place, "-o", top, status=4)[1]
    assert not top.exists()
    (place / "a.warc.gz").write_bytes(gz(response()))
    assert typed("manifest", place, "-o", top)[1] == ""
    (place / "b.warc.gz.open").write_bytes(gz(response()))
    (place / "c.warc.gz").touch()
    talk = typed("manifest", place, "-o", top, status=7)[1]
    assert "b.warc.gz.open: by its name it is still being written" in talk
    assert talk.count("c.warc.gz") == 1 and "marker" not in talk


def test_known_errors_of_warcsum(tmp_path: Path) -> None:
    """Each of these made it lose a line, write a wrong one, or crash."""
    long = b"http://e.com/" + b"a" * 8000
    records = (
        record(b"warcinfo", b"x", number=9, Type=b"continuation", Segment_Number=b"2"),
        response(version=b"WARC/1.1"),
        response(Payload_Digest=b"md5:" + hashlib.md5(b"payload").hexdigest().encode()),
        response(Payload_Digest=None),
        response(Target_URI=long),
        response(b"payload", (b"X-A-Name-That-Is-Longer-Than-31-Characters", b"x")),
        response(Payload_Digest=sha1(b"wrong")),
        response(b"p\r\n\r\n"),
    )
    cut = gz(response())[:-5]
    for name, data in (
        ("one/x.warc.gz", b"".join(map(gz, records)) + cut),
        ("plain/x.warc", b"".join(records)),
        ("single/x.warc.gz", gz(b"".join(records))),
    ):
        path = tmp_path / "s" / name
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
    for algorithm in ("md5", "sha1", "sha256", "sha512"):
        out, _ = run(tmp_path / "s", "-o", tmp_path / algorithm, "-H", algorithm, "--text", "-",
                     status=7)  # fmt: skip
        hints = list(read_text(out.encode().splitlines()))
        right = [Digest(algorithm, hashlib.new(algorithm, body).digest())
                 for body in [b"payload"] * 6 + [b"p\r\n\r\n"]]  # fmt: skip
        assert [hint.digest for hint in hints] == right * 3
        assert [hint.url for hint in hints[:7]] == [URL] * 3 + [long] + [URL] * 3
    assert len(lines_of(tmp_path / "sha1")) == 3  # names are kept apart by their directories


def test_memory_does_not_grow_with_a_file(tmp_path: Path) -> None:
    """A record of 300 MB, packed a thousandfold, is read in the memory of a small one."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    data = record(b"response", Content_Length=b"300000019").removesuffix(END)
    with open(tmp_path / "bomb.warc.gz", "wb") as stream:
        stream.write(packer.compress(data + b"HTTP/1.1 200 OK\r\n\r\n"))
        for _ in range(300):
            stream.write(packer.compress(bytes(1_000_000)))
        stream.write(packer.compress(END) + packer.flush())
    code = (
        "from dedupindex.cli import main;"
        f"main(['manifest', {str(tmp_path)!r}, '-o', {str(tmp_path / 'm')!r}, '--jobs', '1']);"
        "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert "1 line of" in done.stdout and not done.stderr
    assert int(done.stdout.split()[-1]) < 200_000  # kB


def test_progress_ends_with_all_of_it(sources: Path, tmp_path: Path) -> None:
    seen = []
    made(sources, tmp_path / "m", on_progress=seen.append)
    assert seen[-1].bytes == seen[-1].of and seen[-1].records == 6
