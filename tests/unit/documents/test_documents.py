"""Documents: hashes and kept files equal those of a dictionary, even after failures."""

from __future__ import annotations

import csv
import json
import os
import random
import resource
import signal
import time
import traceback
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import duckdb
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupindex.capture import Problem
from dedupindex.documents import hash_objects, read_shards
from dedupindex.documents.dedup_shards import dedup_hashes
from dedupindex.documents.generate import GeneratorOptions, generate
from dedupindex.documents.hash_objects import HashOptions, HashReport, hash_documents
from dedupindex.documents.shard_target import UNFINISHED
from dedupindex.documents.shards import ShardLayout
from dedupindex.errors import BadInput, BadSource, IndexBusy, IndexExists
from dedupindex.runtime.files import exclusive
from tests.support.budgets import examples
from tests.support.commands import typed

ODD = [
    b"plain", b"new\nline", b'quo"te', b"com,ma", b"tab\tand\rreturn", b"\xff\xfe", b"caf\xc3\xa9",
    b" blank ", b"'", b"[a]*?", b"\\", b"%41", b"\x01", b"-", b".hidden", b'"', b'a","b', b"#",
    "日本".encode(),
]  # fmt: skip


@pytest.fixture
def at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that were just made are taken to be at rest."""
    monkeypatch.setattr(hash_objects, "_COARSE", -(10**15))


def bytes_of(path: str) -> bytes:
    """The name of a file, from how it stands in a row."""
    if path.startswith("file://"):
        return unquote_to_bytes(path.removeprefix("file://"))
    return path.encode()


def rows_of(top: Path) -> dict[bytes, bytes]:
    """Path to hash, of all shards in a directory; each is where it must be, in order."""
    found: dict[bytes, bytes] = {}
    for shard in sorted(top.glob("*_*.*")):
        prefix = shard.name.split("_")[0]
        if shard.suffix == ".csv":
            with open(shard, encoding="utf-8", newline="") as stream:
                rows = [(bytes.fromhex(digest), path) for digest, path in csv.reader(stream)]
        else:
            with duckdb.connect() as database:
                query = "SELECT hash, path, size FROM read_parquet(?)"
                all_ = database.execute(query, [str(shard)]).fetchall()
            rows = [(digest, path) for digest, path, _ in all_]
            for _, path, size in all_:
                assert os.stat(bytes_of(path)).st_size == size
        assert rows and [path for _, path in rows] == sorted(path for _, path in rows)
        for digest, path in rows:
            assert digest.hex().startswith(prefix)
            assert bytes_of(path) not in found
            found[bytes_of(path)] = digest
    return found


def model(top: Path) -> dict[bytes, bytes]:
    """The same by way of reading every file."""
    return {
        os.path.join(directory, name): blake3(
            Path(os.fsdecode(os.path.join(directory, name))).read_bytes()
        ).digest()
        for directory, _, names in os.walk(os.fsencode(top))
        for name in names
    }


def kept(path: Path) -> dict[bytes, str]:
    """Hash to path, of a deduplicated file."""
    if path.suffix == ".csv":
        with open(path, encoding="utf-8", newline="") as stream:
            return {bytes.fromhex(digest): name for digest, name in csv.reader(stream)}
    with duckdb.connect() as database:
        rows = database.execute("SELECT hash, path FROM read_parquet(?)", [str(path)]).fetchall()
    assert len(dict(rows)) == len(rows)
    return dict(rows)


def first_of(hashes: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Hash to its first path."""
    groups = defaultdict(list)
    for path, digest in hashes.items():
        groups[digest].append(path)
    return {digest: min(paths) for digest, paths in groups.items()}


def fill(top: Path, files: dict[bytes, bytes]) -> None:
    for name, data in files.items():
        path = Path(os.fsdecode(os.path.join(os.fsencode(top), name)))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def hashed(pattern: object, top: Path, **options: Any) -> tuple[HashReport, list[Problem]]:
    problems: list[Problem] = []
    layout = ShardLayout(options.pop("characters", 1), options.pop("form", "parquet"))
    report = hash_documents(str(pattern), top, HashOptions(layout, **options), problems.append)
    assert report.problems == len(problems)
    assert report.rows == report.num_files_processed + report.known
    return report, problems


def forked(work: Callable[[], object]) -> int:
    """The id of a process that does some work, and ends with 0 if that went well."""
    child = os.fork()
    if not child:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return child


@settings(max_examples=examples(8))
@given(
    files=st.dictionaries(
        st.lists(st.sampled_from(ODD), min_size=1, max_size=3, unique=True).map(
            lambda names: b"/".join([*(b"d" + name for name in names[1:]), names[0]])
        ),
        st.binary(max_size=3),
        min_size=1,
        max_size=12,
    ),
    characters=st.integers(1, 4),
    form=st.sampled_from(["parquet", "csv"]),
    output=st.sampled_from(["out.parquet", "out.csv"]),
)
def test_both_steps_agree_with_a_model(
    files: dict[bytes, bytes],
    characters: int,
    form: str,
    output: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    top = tmp_path_factory.mktemp("both")
    fill(top / "in", files)
    report, _ = hashed(top / "in", top / "hashes", characters=characters, form=form)
    expected = model(top / "in")
    assert rows_of(top / "hashes") == expected
    assert report.num_files_processed == len(files)
    assert report.bytes == sum(map(len, files.values()))
    found = dedup_hashes(str(top / "hashes"), top / output)
    chosen = {digest: bytes_of(path) for digest, path in kept(top / output).items()}
    spelled = {os.fsencode(path): path for path in map(os.fsdecode, expected)}
    assert chosen.keys() == set(expected.values())
    for digest, path in chosen.items():
        assert expected[path] == digest
    if all(name.isascii() for name in spelled.values()):
        assert chosen == first_of(expected)
    assert found.unique_files == len(chosen)
    assert found.total_files == len(files) == found.unique_files + found.duplicate_files
    sizes = {digest: len(data) for data in files.values() for digest in [blake3(data).digest()]}
    if form == "parquet":
        assert found.total_bytes == report.bytes
        assert found.bytes_saved == report.bytes - sum(sizes.values())
    else:
        assert found.unsized == len(files)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*", {"a.txt", "b.txt", ".h"}),
        ("*.txt", {"a.txt", "b.txt"}),
        ("[a]*", {"a.txt"}),
        ("?.txt", {"a.txt", "b.txt"}),
        ("**", {"a.txt", "b.txt", ".h", "x/a.txt", "x/y/c.txt", "x/y/d"}),
        ("**/*", {"a.txt", "b.txt", ".h", "x/a.txt", "x/y/c.txt", "x/y/d"}),
        ("**/*.txt", {"a.txt", "b.txt", "x/a.txt", "x/y/c.txt"}),
        ("x/*", {"x/a.txt"}),
        ("*/*", {"x/a.txt", "link/a.txt"}),
        ("**/y/*", {"x/y/c.txt", "x/y/d"}),
        ("x/**/y/**/*.txt", {"x/y/c.txt"}),
        ("a.txt", {"a.txt"}),
        ("x", {"x/a.txt", "x/y/c.txt", "x/y/d"}),
        ("link", {"link/a.txt", "link/y/c.txt", "link/y/d"}),
    ],
)
def test_matches_of_globs(tmp_path: Path, pattern: str, names: set[str]) -> None:
    """A link to a directory is entered where it is named, and not by ``**``."""
    top = tmp_path / "in"
    for name in ("a.txt", "b.txt", ".h", "x/a.txt", "x/y/c.txt", "x/y/d"):
        fill(top, {name.encode(): name.encode()})
    (top / "link").symlink_to("x")
    hashed(top / pattern, tmp_path / "out")
    assert rows_of(tmp_path / "out").keys() == {os.fsencode(top / name) for name in names}


def test_unreadable_documents_are_named_and_the_others_hashed(tmp_path: Path) -> None:
    top = tmp_path / "in"
    fill(top, {b"good": b"1", b"also": b"1"})
    (top / "dangling").symlink_to("nowhere")
    (top / "loop").symlink_to("loop")
    os.mkfifo(top / "pipe")
    (top / "linked").symlink_to("good")
    report, problems = hashed(top, tmp_path / "out")
    assert {Path(problem.container).name for problem in problems} == {"dangling", "loop", "pipe"}
    assert report.num_files_processed == 3  # a link to a file is read under its own path
    out, err = typed("hash_documents", top, tmp_path / "out", "--json", status=7)
    assert json.loads(out)["problems"] == 3
    assert "pipe: is not a regular file" in err and "3 objects" in err


@pytest.mark.parametrize("change", ["grow", "rewrite", "truncate"])
def test_a_file_that_changes_while_it_is_hashed_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    top = tmp_path / "in"
    fill(top, {b"busy": bytes(1 << 20), b"calm": b"2"})
    readv = os.readv
    busy = top / "busy"
    os.utime(busy, ns=(1, 1))

    def meanwhile(file: int, buffers: Any) -> int:
        count = readv(file, buffers)
        if count > 1 and busy.stat().st_mtime_ns == 1:
            with open(busy, "r+b") as stream:
                stream.seek(0, os.SEEK_END if change == "grow" else os.SEEK_SET)
                stream.write(b"!")
                if change == "truncate":
                    stream.truncate()
        return count

    monkeypatch.setattr(os, "readv", meanwhile)
    report, problems = hashed(top, tmp_path / "out")
    assert [(Path(one.container).name, one.message) for one in problems] == [
        ("busy", hash_objects.CHANGED)
    ]
    assert rows_of(tmp_path / "out").keys() == {os.fsencode(top / "calm")}
    report, problems = hashed(top, tmp_path / "out")
    assert not problems and rows_of(tmp_path / "out") == model(top)


@pytest.mark.usefixtures("at_rest")
def test_another_run_hashes_new_or_changed_documents_only(tmp_path: Path) -> None:
    top, out = tmp_path / "in", tmp_path / "out"
    fill(top, {b"%d" % number: b"%d" % (number % 7) for number in range(40)})
    first, _ = hashed(top, out, jobs=2)
    assert (first.num_files_processed, first.known, first.gone) == (40, 0, 0)
    fill(top, {b"3": b"something else", b"new": b"new"})
    before = (top / "5").stat()
    (top / "5").write_bytes(b"!")  # as long as before, and as old as before
    os.utime(top / "5", ns=(before.st_atime_ns, before.st_mtime_ns))
    (top / "4").unlink()
    (top / "6").rename(top / "moved")
    again, _ = hashed(top, out, jobs=2, form="csv", characters=2)
    assert (again.num_files_processed, again.known, again.gone) == (4, 36, 2)
    assert again.run == first.run
    assert not list(out.glob("*.parquet")), "the shards before are gone"
    assert rows_of(out) == model(top)


def test_files_just_written_are_hashed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may change once more within the grain of its time stamps."""
    assert hash_objects._COARSE >= 2 * 10**9
    monkeypatch.setattr(hash_objects, "_COARSE", 600 * 10**9)  # a moment of a busy machine
    fill(tmp_path / "in", {b"a": b"1"})
    hashed(tmp_path / "in", tmp_path / "out")
    again, _ = hashed(tmp_path / "in", tmp_path / "out")
    assert (again.num_files_processed, again.known) == (1, 0)


def test_the_output_may_lie_in_the_input(tmp_path: Path) -> None:
    fill(tmp_path, {b"a": b"1", b"x/b": b"2"})
    for _ in range(2):
        report, _ = hashed(tmp_path, tmp_path / "x" / "out")
        assert report.rows == 2


def test_the_output_needs_a_place_of_its_own(tmp_path: Path) -> None:
    fill(tmp_path, {b"a": b"1"})
    _, err = typed("hash_documents", tmp_path, tmp_path, status=4)
    assert "a directory of their own" in err
    hashed(tmp_path, tmp_path / "out")
    one, out = tmp_path / "out" / "unique.parquet", tmp_path / "out" / "*.parquet"
    dedup_hashes(str(out), one)
    _, err = typed("dedup_hashes", out, one, status=4)
    assert "name another" in err


@pytest.mark.usefixtures("at_rest")
def test_a_killed_run_is_resumed_with_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever it is killed: no shard is seen before all are there, none of it is done twice."""
    from dedupindex.documents import hash_objects as state

    monkeypatch.setattr(state, "_COMMIT_SECONDS", 0.01)
    top, out = tmp_path / "in", tmp_path / "out"
    generate(top, GeneratorOptions(size=400_000, mean=1500, deviation=300, duplicates=0.2))
    hashed(top, tmp_path / "whole", deterministic=True, jobs=2)
    whole = {path.name: path.read_bytes() for path in (tmp_path / "whole").glob("[0-9a-f]_*")}
    begin = time.monotonic()
    hashed(top, tmp_path / "timed", deterministic=True, jobs=2)
    duration = time.monotonic() - begin
    chance, hits, spared, turn = random.Random(1), 0, 0, -1
    while hits < 5 or turn % 3 < 2:
        turn += 1
        assert turn < 90
        child = forked(lambda: hashed(top, out, deterministic=True, jobs=2))
        time.sleep(chance.random() * duration)  # the moment is what is tried
        os.kill(child, signal.SIGKILL)
        hits += os.waitpid(child, 0)[1] != 0
        shards = {path.name: path.read_bytes() for path in out.glob("[0-9a-f]_*")}
        unfinished = list(out.glob(f".*{UNFINISHED}"))
        assert shards == whole or unfinished or not shards
        if shards and unfinished:
            with pytest.raises(BadInput, match="is unfinished"):
                dedup_hashes(str(out), tmp_path / "unique.csv")
        if turn % 3 == 2:
            report = patiently(top, out)
            spared += report.known
            assert {path.name: path.read_bytes() for path in out.glob("[0-9a-f]_*")} == whole
            left = {path.suffix for path in out.iterdir()}
            assert left <= {".parquet", ".state", ".lock"}
            for path in out.iterdir():
                if turn % 2 or not path.name.endswith(".state"):
                    path.unlink()
    assert spared


def patiently(top: Path, out: Path) -> HashReport:
    """As soon as the processes of the killed run are gone."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return hashed(top, out, deterministic=True, jobs=2)[0]
        except IndexBusy:
            assert time.monotonic() < deadline


def test_the_same_input_gives_the_same_files(tmp_path: Path) -> None:
    generate(
        tmp_path / "in", GeneratorOptions(size=100_000, mean=1024, deviation=0, duplicates=0.5)
    )
    for name, jobs in (("a", 1), ("b", 2)):
        hashed(tmp_path / "in", tmp_path / name, deterministic=True, jobs=jobs)
        dedup_hashes(str(tmp_path / name), tmp_path / f"{name}.parquet", threads=jobs)
    a, b = ({p.name: p.read_bytes() for p in (tmp_path / n).glob("[0-9a-f]_*")} for n in "ab")
    assert a == b
    assert kept(tmp_path / "a.parquet") == kept(tmp_path / "b.parquet")
    one, _ = hashed(tmp_path / "in", tmp_path / "c")
    other, _ = hashed(tmp_path / "in", tmp_path / "d")
    assert one.run != other.run


def test_a_large_sparse_file_takes_little_memory(tmp_path: Path) -> None:
    """A GiB of zeros, by several threads; the hash is that of b3sum."""
    tmp_path.joinpath("in").mkdir()
    with open(tmp_path / "in" / "sparse", "wb") as stream:
        stream.truncate(1 << 30)

    def work() -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        report, _ = hashed(tmp_path / "in", tmp_path / "out", jobs=1)
        assert report.bytes == 1 << 30
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000

    child = forked(work)
    assert os.waitpid(child, 0)[1] == 0
    [digest] = rows_of(tmp_path / "out").values()
    reference = blake3(max_threads=2)
    for _ in range(64):
        reference.update(bytes(1 << 24))
    assert digest == reference.digest()


def test_a_locked_output_is_refused(tmp_path: Path) -> None:
    fill(tmp_path / "in", {b"a": b"1"})
    hashed(tmp_path / "in", tmp_path / "out", deterministic=True)
    [lock] = tmp_path.glob("out/.*.lock")
    with exclusive(lock, "it"), pytest.raises(IndexBusy):
        hashed(tmp_path / "in", tmp_path / "out", deterministic=True)
    hashed(tmp_path / "in" / "*", tmp_path / "out", deterministic=True)  # another glob may


def test_nothing_matches(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for pattern in (tmp_path / "in" / "*", tmp_path / "nowhere" / "*"):
        with pytest.raises(BadSource, match="nothing matches"):
            hashed(pattern, tmp_path / "out")
    assert not list(tmp_path.glob(f"out/*{UNFINISHED}"))
    with pytest.raises(BadSource, match="nothing matches"):
        dedup_hashes(str(tmp_path / "out"), tmp_path / "x.csv")


def test_a_damaged_state_is_reported(tmp_path: Path) -> None:
    fill(tmp_path / "in", {b"a": b"1"})
    hashed(tmp_path / "in", tmp_path / "out", deterministic=True)
    [state] = tmp_path.glob("out/.*.state")
    state.write_bytes(b"no database " * 1000)
    _, err = typed("hash_documents", tmp_path / "in", tmp_path / "out", "--deterministic", status=7)
    assert "remove it" in err


def rows(*pairs: tuple[bytes, str]) -> str:
    return "".join(f"{blake3(data).hexdigest()},{path}\n" for data, path in pairs)


def test_csv_as_record_linker_wrote_it(tmp_path: Path) -> None:
    """One file for each first character and run; the choice is the same whatever their order."""
    data = [b"%d" % number for number in range(30)]
    lines: defaultdict[str, str] = defaultdict(str)
    for run in ("Xa3bQ1", "Ab12cd"):
        for number, one in enumerate(data):
            name = f"{blake3(one).hexdigest()[0]}_{run}.csv"
            lines[name] += rows((one, f"/{run}/{30 - number}.txt"), (one, f"/{run}/x{number}.txt"))
    for name, text in lines.items():
        (tmp_path / name).write_text(text)
    report = dedup_hashes(str(tmp_path / "*.csv"), tmp_path / "unique.parquet")
    assert (report.unique_files, report.total_files, report.duplicate_files) == (30, 120, 90)
    assert (report.bytes_saved, report.unsized) == (0, 120)
    assert kept(tmp_path / "unique.parquet") == {
        blake3(one).digest(): f"/Ab12cd/{30 - number}.txt" for number, one in enumerate(data)
    }


def test_globs_that_overlap_count_no_file_twice(tmp_path: Path) -> None:
    fill(tmp_path / "in", {b"%d" % n: b"x" * (n // 3 + 1) for n in range(9)} | {b"a": b"alone"})
    for pattern in ("*", "[0-5]", "[3-9]"):
        hashed(tmp_path / "in" / pattern, tmp_path / "out")
    report = dedup_hashes(str(tmp_path / "out"), tmp_path / "u.parquet")
    assert (report.unique_files, report.duplicate_files, report.repeated) == (4, 6, 12)
    assert (report.total_files, report.total_bytes, report.bytes_saved) == (22, 23, 12)


def test_shards_with_prefixes_of_different_lengths(tmp_path: Path) -> None:
    fill(tmp_path / "in", {b"%d" % number: b"%d" % (number % 50) for number in range(100)})
    hashed(tmp_path / "in" / "?", tmp_path / "out", characters=1)
    hashed(tmp_path / "in" / "??", tmp_path / "out", characters=3, form="csv")
    report = dedup_hashes(str(tmp_path / "out"), tmp_path / "u.csv")
    assert (report.unique_files, report.total_files) == (50, 100)
    assert {d: p.encode() for d, p in kept(tmp_path / "u.csv").items()} == first_of(
        model(tmp_path / "in")
    )


def test_large_shards_are_not_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_shards, "_MERGED", 0)
    fill(tmp_path / "in", {b"%d" % number: b"%d" % (number % 50) for number in range(200)})
    hashed(tmp_path / "in", tmp_path / "out")
    messages: list[str] = []
    report = dedup_hashes(str(tmp_path / "out"), tmp_path / "u.csv", say=messages.append)
    assert len(messages) == len(list(tmp_path.glob("out/?_*"))) > 10
    assert (report.unique_files, report.total_files) == (50, 200)
    one = next(iter(sorted(tmp_path.glob("out/?_*"))))
    one.rename(one.with_name(f"{'f' if one.name[0] == '0' else '0'}_moved.parquet"))
    with pytest.raises(BadInput, match="by its name it is of another shard"):
        dedup_hashes(str(tmp_path / "out"), tmp_path / "u.csv")


@pytest.mark.parametrize(
    "text",
    [
        "abc,/path\n",
        "zz" * 32 + ",/path\n",
        "ab" * 32 + "\n",
        "ab" * 32 + ",/a,b\n",
        "ab" * 31 + ",/x\n",
    ],
)
def test_malformed_csv_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a_run.csv").write_text(rows((b"1", "/good")) + text)
    _, err = typed("dedup_hashes", tmp_path / "a_run.csv", tmp_path / "u.csv", status=4)
    assert "a_run.csv" in err
    assert not (tmp_path / "u.csv").exists()


def test_csv_files_may_differ_in_line_ends(tmp_path: Path) -> None:
    """Line ends are equal within a file, but differ between files."""
    (tmp_path / "one.csv").write_bytes(
        ("hash,path\n" + rows((b"1", "/a"), (b"2", '"/b\n""c"""'))).replace("\n", "\r\n").encode()
    )
    (tmp_path / "two.csv").write_text(rows((b"1", "/b"), (b"3", "/c")))
    report = dedup_hashes(str(tmp_path / "*.csv"), tmp_path / "u.parquet")
    assert (report.unique_files, report.total_files) == (3, 4)
    assert kept(tmp_path / "u.parquet") == {
        blake3(data).digest(): path
        for data, path in ((b"1", "/a"), (b"2", '/b\r\n"c"'), (b"3", "/c"))
    }
    with open(tmp_path / "one.csv", "a") as stream:
        stream.write(rows((b"4", "/d")))
    with pytest.raises(BadInput, match=r"one\.csv.* all shards in one format"):
        dedup_hashes(str(tmp_path / "*.csv"), tmp_path / "v.parquet")


def test_empty_csv(tmp_path: Path) -> None:
    (tmp_path / "a_run.csv").write_text("")
    (tmp_path / "b_run.csv").write_text("hash,filepath\n")
    report = dedup_hashes(str(tmp_path), tmp_path / "u.csv")
    assert (report.unique_files, report.total_files) == (0, 0)
    assert (tmp_path / "u.csv").read_bytes() == b""


def test_parquet_with_other_columns_is_refused(tmp_path: Path) -> None:
    with duckdb.connect() as database:
        database.execute(f"COPY (SELECT 1 AS one) TO '{tmp_path / 'a_run.parquet'}'")
    (tmp_path / "b_run.parquet").write_bytes(b"PAR1 and no more")
    for name in ("a_run.parquet", "b_run.parquet"):
        _, err = typed("dedup_hashes", tmp_path / name, tmp_path / "u.csv", status=4)
        assert name in err


def test_parquet_of_others_with_hashes_in_hex(tmp_path: Path) -> None:
    digest = blake3(b"1").hexdigest()
    with duckdb.connect() as database:
        database.execute(
            f"COPY (SELECT '{digest}' AS hash, unnest(['/b', '/a']) AS path) "
            f"TO '{tmp_path / 'a_run.parquet'}'"
        )
        headed = f"SELECT '{digest}' AS hash, '/0' AS path"
        database.execute(f"COPY ({headed}) TO '{tmp_path / 'x.csv'}'")
    dedup_hashes(str(tmp_path / "*"), tmp_path / "out.parquet")
    assert kept(tmp_path / "out.parquet") == {bytes.fromhex(digest): "/0"}


def test_a_generated_corpus_has_the_counts_it_reports(tmp_path: Path) -> None:
    options = ("--size", "300KiB", "--mean", "4KiB", "--deviation", "1KiB", "--duplicates", "0.2")
    report = json.loads(typed("generate_corpus", tmp_path / "c", *options, "--json")[0])
    files = {path.name: path.read_bytes() for path in (tmp_path / "c").iterdir()}
    assert report["files"] == len(files) == report["unique"] + report["duplicates"]
    assert report["bytes"] == sum(map(len, files.values())) >= 300 << 10
    assert report["unique"] == len(set(files.values()))
    assert 0.05 < report["duplicates"] / report["files"] < 0.4
    assert len({len(data) for data in files.values()}) > 20
    typed("generate_corpus", tmp_path / "again", *options)
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()}
    typed("generate_corpus", tmp_path / "other", *options, "--seed", "1")
    assert not files.keys() & {path.name for path in (tmp_path / "other").iterdir()}
    typed("generate_corpus", tmp_path / "c", *options, status=5)
    typed("generate_corpus", tmp_path / "bad", "--size", "many", status=2)
    with pytest.raises(IndexExists):
        generate(tmp_path / "c", GeneratorOptions())


@pytest.mark.parametrize("debug", [(), ("--debug",)])
def test_the_pipeline_does_both_steps(tmp_path: Path, debug: tuple[str, ...]) -> None:
    top = tmp_path / "in"
    generate(top, GeneratorOptions(size=200_000, mean=1500, deviation=300, duplicates=0.2, seed=3))
    globs = f"{top}/[0-7]*, {top}/[89a-f]*"
    out, err = typed("run_pipeline", globs, tmp_path / "out", "--json", "--format", "csv", *debug)
    report = json.loads(out)
    expected = first_of(model(top))
    found: dict[bytes, bytes] = {}
    for path in (tmp_path / "out" / "unique").iterdir():
        some = {digest: bytes_of(name) for digest, name in kept(path).items()}
        assert {digest.hex()[0] for digest in some} == {path.stem}
        found |= some
    assert found == expected
    assert report["unique_files"] == len(expected)
    assert [step["name"] for step in report["hash_documents"]] == globs.split(", ")
    assert ("rate_mb_per_sec" in err) is bool(debug)
    for path in list(top.iterdir())[:100]:
        path.unlink()
    typed("run_pipeline", f"{top}/[89a-f]*", tmp_path / "out")  # of the other glob nothing stays
    left = {path: digest for path, digest in model(top).items() if path.split(b"/")[-1][0] > 55}
    names = [kept(path) for path in (tmp_path / "out" / "unique").iterdir()]
    assert {bytes_of(path) for some in names for path in some.values()} == set(
        first_of(left).values()
    )


def test_the_pipeline_names_unreadable_files(tmp_path: Path) -> None:
    fill(tmp_path / "in", {b"a": b"1"})
    (tmp_path / "in" / "gone").symlink_to("nowhere")
    _, err = typed("run_pipeline", tmp_path / "in", tmp_path / "out", status=7)
    assert "gone" in err
    typed("run_pipeline", f"{tmp_path}/nothing/*", tmp_path / "out", status=4)
    typed("run_pipeline", f"{tmp_path}/in,{tmp_path}/in", tmp_path / "out", status=4)
    typed("run_pipeline", ",", tmp_path / "out", status=2)


def test_the_reports_have_the_fields_of_record_linker(tmp_path: Path) -> None:
    fill(tmp_path / "in", {b"a": b"1", b"b": b"1", b"c": b"22"})
    report = json.loads(typed("hash_documents", tmp_path / "in", tmp_path / "h", "--json")[0])
    assert report.keys() >= {
        "num_files_processed", "elapsed_time_secs", "total_processed_gb", "rate_mb_per_sec"
    }  # fmt: skip
    assert report["num_files_processed"] == 3 and report["total_processed_gb"] == 4e-9
    report = json.loads(typed("dedup_hashes", tmp_path / "h", tmp_path / "u.csv", "--json")[0])
    assert report.keys() >= {"unique_files", "total_files", "elapsed_time_secs", "rate_rps"}
    assert (report["unique_files"], report["total_files"]) == (2, 3)
    assert "2 unique of 3 files" in typed("dedup_hashes", tmp_path / "h", tmp_path / "u.csv")[0]
    assert "1 B of 4 B saved" in typed("dedup_hashes", tmp_path / "h", tmp_path / "u.csv")[0]
