"""What files, disks and other processes do to the stages of deduplication, and hostile input.

Numbers are those of the edge cases in the rules of deduplication, as in `test_post_crawl_cases`.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from isal import isal_zlib

from dedupindex.cli import main
from dedupindex.post_crawl.manifest.parquet import open_manifest
from dedupindex.post_crawl.rewrite import rewrite_file
from tests.integration.test_post_crawl_cases import CASES
from tests.support.budgets import thorough
from tests.support.paths import ROOT
from tests.support.post_crawl import DAY, Case, Run, findings, tree, typed
from tests.support.post_crawl_odd import http
from tests.support.warc_cases import END, HTTP, gz, response, sha1

ELSEWHERE = {  # edge cases that are not about files from end to end, and the test of each
    17: "test_containers.test_case_17_offsets_beyond_four_gibibytes",
    18: "test_rewrite.test_a_long_record_takes_no_memory",
    69: "test_rewrite.test_originals_that_are_gone_or_pinned_records",
    82: "test_policy.test_records_are_never_stored_in_a_namespace",
    86: "test_crawls.test_only_the_crawl_itself_sees_its_captures_before_the_commit",
    87: "test_crawl_api.test_captures_of_a_cancelled_crawl_are_gone",
    88: "test_crawls.test_only_one_of_two_claims_succeeds",
    89: "test_decide.test_a_record_never_finds_itself_but_the_next_best",
    90: "test_server.test_a_digest_that_cannot_be_found_is_no_error",
    91: "test_client.test_a_server_that_drips",
    92: "test_server.test_an_index_that_is_gone_is_never_a_miss",
    93: "test_decide.test_conditions",
    94: "test_server.test_a_url_is_bytes_from_end_to_end",
    95: "test_decide.test_an_answer_has_the_exact_values_of_the_revisit_header",
    96: "test_impact.test_a_purge_is_refused_while_others_depend_and_changes_nothing",
    97: "test_rewrite_in_place.test_a_run_may_be_killed_before_any_write",
    98: "test_rewrite_in_place.test_any_write_may_fail",
    99: "test_rewrite_in_place.test_any_write_of_undo_may_fail",
    100: "test_rewrite_in_place.test_free_space_is_checked_before_anything_is_written",
    101: "test_rewrite_command.test_files_not_rewritten_are_named",
    103: "test_rewrite.test_files_keep_mode_times_and_attributes",
    105: "test_rewrite_in_place.test_files_with_links_or_writers_are_not_rewritten",
    107: "test_compare_files.test_our_own_rewriter_passes",
    113: "test_rewrite_in_place.test_commit_deletes_dropped_records_which_originals_restore",
    116: "test_arc.test_f_dates",
    118: "test_rewrite_stages.test_sigterm_leaves_nothing_behind",
}


def numbers_of(name: str) -> set[int]:
    """The edge cases that a test has in its name."""
    match = re.match(r"test_cases?((?:_\d\d+)+)", name)
    return {int(number) for number in match[1].split("_")[1:]} if match else set()


def test_every_edge_case_has_a_test() -> None:
    tests = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                tests[f"{path.stem}.{node.name}"] = path.stem
    assert set(ELSEWHERE.values()) <= set(tests)
    found = {int(name.split()[0]) for name in CASES} | set(ELSEWHERE)
    for name, module in tests.items():
        if module == "test_post_crawl_operations":
            found |= numbers_of(name.partition(".")[2])
    assert found == set(range(1, 121))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A sound collection: two files, of which the second has copies of what is in the first."""
    one = Case("sound", 7)
    one.file("a.warc.gz", one.original(), one.kept("unique", one.record(2, b"else" * 200)))
    one.file("b.warc.gz", one.copy(3), one.copy(4))
    run = Run(tmp_path)
    one.write(run.source)
    run.__dict__["case"] = one
    return run


def case_of(run: Run) -> Case:
    one = run.__dict__["case"]
    assert isinstance(one, Case)
    return one


def refused(run: Run) -> dict[str, int]:
    result: dict[str, int] = run.results["out"].totals["refused"]
    return result


def test_case_14_zstd_without_records_is_named(run: Run) -> None:
    frame = b"\x28\xb5\x2f\xfd" + bytes(40)
    dictionary = b"\x5d\x2a\x4d\x18" + bytes(40)
    for name, data in (("x.warc.zst", frame), ("y.warc.zst", dictionary)):
        (run.source / name).write_bytes(data)
    run.prepare()
    assert run.results["manifest"].status == 7
    assert run.results["manifest"].err.count("is compressed with zstd and was not read") == 2
    run.to_directory()
    case_of(run).check(run.out)
    assert not (run.out / "x.warc.zst").exists()  # what no manifest has is nobody's to copy
    assert typed("manifest", run.source / "x.warc.zst", "-o", run.top / "m").status == 4


def test_case_16_files_that_are_no_archives_are_named_or_skipped(run: Run) -> None:
    top = run.source
    (top / "empty.warc.gz").write_bytes(b"")
    (top / "two.warc.gz").write_bytes(b"\x1f\x8b")
    (top / "folder.warc.gz").mkdir()
    (top / "text.warc").write_bytes(b"hello\n")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(top / "s.warc"))
        os.mkfifo(top / "pipe.warc.gz")
        run.prepare()
    output = run.results["manifest"].err
    assert run.results["manifest"].status == 7
    for name in ("empty.warc.gz", "s.warc", "pipe.warc.gz"):
        assert f"{top / name}" in output
    run.to_directory()
    case_of(run).check(run.out)


def test_case_16_unreadable(run: Run) -> None:
    if os.geteuid() == 0:
        pytest.skip("nothing is unreadable for root")
    (run.source / "sound" / "b.warc.gz").chmod(0)
    run.prepare()
    assert run.results["manifest"].status == 7 and "b.warc.gz" in run.results["manifest"].err


def test_case_21_a_file_being_written_is_left_out(run: Run) -> None:
    data = (run.source / "sound" / "b.warc.gz").read_bytes()
    (run.source / "c.warc.gz.open").write_bytes(data)
    run.prepare()
    assert run.results["manifest"].totals["files"] == 2
    with open(run.source / "sound" / "b.warc.gz", "ab") as growing:
        run.do("placed", "rewrite", run.plan, "--in-place")  # open, nothing written yet
        assert run.results["placed"].status == 7
        assert "another process is writing to it" in run.results["placed"].err
        growing.write(gz(response(number=99)))
    for words in (["--in-place"], ["--out", run.out]):
        result = run.do("again", "rewrite", run.plan, *words)
        assert result.status == 7 and "its size has changed since it was scanned" in result.err
    assert (run.source / "sound" / "b.warc.gz").read_bytes().startswith(data)


@pytest.mark.parametrize("how", ["grows", "is replaced", "goes away"])
def test_case_106_a_file_that_changes_while_it_is_rewritten(
    run: Run, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    run.prepare()
    path, build = run.source / "sound" / "b.warc.gz", rewrite_file.FileRewriter._write
    before = path.read_bytes()

    def disturbed(rewriter: rewrite_file.FileRewriter, *words: object) -> object:
        outcome = build(rewriter, *words)  # type: ignore[arg-type]
        if rewriter._container.name == "sound/b.warc.gz":
            if how == "grows":
                with open(path, "ab") as stream:
                    stream.write(b"more")
            else:
                path.rename(run.top / "moved")
                if how == "is replaced":
                    path.write_bytes(before)
        return outcome

    monkeypatch.setattr(rewrite_file.FileRewriter, "_write", disturbed)
    for words in (["--in-place"], ["--out", run.out]):
        result = run.do("x", "rewrite", run.plan, *words, "--jobs", "1")
        assert result.status == 7 and "b.warc.gz was left alone" in result.err
        assert not [name for name in tree(run.top) if name.endswith(".part")]
        assert how == "goes away" or path.read_bytes().startswith(before)
        if path.exists():
            path.unlink()
        (run.top / "moved").unlink(missing_ok=True)
        path.write_bytes(before)
    assert "sound/b.warc.gz" not in tree(run.out)


@pytest.mark.parametrize("how", ["gone", "moved", "cut", "other bytes"])
def test_case_67_originals_are_read_again_now(run: Run, how: str) -> None:
    run.prepare()
    path = run.source / "sound" / "a.warc.gz"
    data = path.read_bytes()
    if how == "gone":
        path.unlink()
    elif how == "moved":
        path.rename(run.source / "elsewhere.warc.gz")
    elif how == "cut":
        path.write_bytes(data[:300])
    else:
        other = gz(case_of(run).record(1, case_of(run).body[:-1] + b"?"))
        path.write_bytes((other + data[len(other) :])[: len(data)])
    run.do("out", "rewrite", run.plan, "--out", run.out)
    assert run.results["out"].status == 7 and run.results["out"].totals["revisits"] == 0
    assert sum(refused(run).values()) == 2 and set(refused(run)) <= {
        "original-gone", "original-changed",
    }  # fmt: skip
    name = "sound/b.warc.gz"
    assert (run.out / name).read_bytes() == (run.source / name).read_bytes()


def test_case_102_links(run: Run) -> None:
    """Hard links are one file twice: neither is a copy; links in a directory are followed."""
    folder = run.source / "sound"
    os.link(folder / "a.warc.gz", folder / "hard.warc.gz")
    (folder / "soft.warc.gz").symlink_to("b.warc.gz")
    (folder / "loop").symlink_to(folder)
    (folder / "itself.warc.gz").symlink_to("itself.warc.gz")
    (folder / "up").symlink_to("..")
    (folder / "nowhere.warc.gz").symlink_to("none")
    run.prepare()
    assert run.results["manifest"].totals["files"] == 4
    for name in ("itself.warc.gz", "nowhere.warc.gz"):
        assert name in run.results["manifest"].err
    assert run.results["resolve"].totals["kept"]["same-record"] >= 1
    before = tree(run.source / "sound")
    run.do("placed", "rewrite", run.plan, "--in-place")
    result = run.results["placed"]
    assert tree(folder)["a.warc.gz"] == before["a.warc.gz"]
    assert (folder / "soft.warc.gz").is_symlink() and result.status in (0, 7)
    run.do("verify", "verify", "--remarks", run.source)
    found = findings(run.results["verify"], run.source)
    unread = {
        name for name, counts in found.items() if any(one == "unreadable" for one, _ in counts)
    }
    assert unread == {"sound/itself.warc.gz", "sound/nowhere.warc.gz"}
    assert not {reason for name, counts in found.items() if name not in unread
                for reason, _ in counts} - {"duplicate-record-id", "no-refers-to"}  # fmt: skip


def test_case_104_a_directory_that_may_not_be_written(run: Run) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    run.prepare()
    before = tree(run.source)
    (run.source / "sound").chmod(0o555)
    result = run.do("placed", "rewrite", run.plan, "--in-place")
    (run.source / "sound").chmod(0o755)
    assert result.status not in (0, 7) and "Permission denied" in result.err
    assert tree(run.source) == before


def test_case_108_110_a_second_run_finds_nothing_to_do(run: Run) -> None:
    """What the first run left beside the files is not taken for archives."""
    run.prepare()
    run.do("placed", "rewrite", run.plan, "--in-place")
    (run.source / "sound" / ".a.warc.gz.part").write_bytes(gz(response()))
    (run.source / ".rewrite" / "x.warc.gz").write_bytes(gz(response()))
    before = tree(run.source)
    again = Run(run.top / "again")
    again.top.mkdir()
    again.source = run.source
    again.prepare()
    assert again.results["manifest"].totals["files"] == 2
    assert again.results["resolve"].totals["copies"] == 0
    result = again.do("placed", "rewrite", again.plan, "--in-place")
    assert result.totals["revisits"] == 0 and result.status == 0
    after = tree(run.source)
    assert {name: after[name] for name in after if not name.endswith(".part")} == {
        name: before[name] for name in before if not name.endswith(".part")
    }


def test_case_114_reading_at_old_offsets_fails_or_finds_the_same(run: Run) -> None:
    """The map says where everything is now; what reads at an old place gets no other record."""
    run.prepare()
    moved = run.top / "moved.tsv"
    run.do("out", "rewrite", run.plan, "--out", run.out, "--offsets", moved)
    old, new = ((top / "sound" / "b.warc.gz").read_bytes() for top in (run.source, run.out))
    (_, first, *_), (_, second, *_) = (
        line.split("\t") for line in moved.read_text().splitlines()[1:]
    )
    assert old[int(first) :] and int(second) > int(first)
    with pytest.raises(isal_zlib.error):
        inflated = isal_zlib.decompressobj(31)
        inflated.decompress(new[int(second) :])
        assert not inflated.eof
        raise isal_zlib.error


def test_case_117_arc_and_wacz_are_never_rewritten(run: Run) -> None:
    head = b"filedesc://x.arc 0.0.0.0 20010101000000 text/plain 73\n1 0 x\n"
    head += b"URL IP-address Archive-date Content-type Archive-length\n\n"
    body = HTTP + case_of(run).body
    url = b"http://c7.test/arc 1.2.3.4 20010101000000 text/html %d\n" % len(body)
    head = head.replace(b" 73\n", b" %d\n" % len(head.partition(b"\n")[2]), 1)
    arc = gz(head) + gz(url + body + b"\n") + gz(url.replace(b"arc", b"two") + body + b"\n")
    (run.source / "x.arc.gz").write_bytes(arc)
    (run.source / "sound" / "x.wacz").write_bytes(b"PK\x03\x04" + bytes(30))
    run.prepare()
    assert run.results["manifest"].totals["records"]["arc-document"] == 2
    run.to_directory()
    assert (run.out / "x.arc.gz").read_bytes() == arc
    case_of(run).check(run.out)
    before = tree(run.source)["x.arc.gz"]
    run.in_place()
    assert (run.source / "x.arc.gz").read_bytes() == before == arc


def test_case_119_a_dry_run_touches_nothing(run: Run) -> None:
    run.prepare()
    before = {path: path.stat() for path in sorted(run.top.rglob("*")) if path.is_file()}
    for words in (["--in-place"], ["--out", run.out]):
        result = run.do("dry", "rewrite", run.plan, *words, "--dry-run")
        assert result.status == 0 and result.totals["revisits"] == 2
    after = {path: path.stat() for path in sorted(run.top.rglob("*")) if path.is_file()}
    assert [(status.st_mtime_ns, status.st_ino) for status in after.values()] == [
        (status.st_mtime_ns, status.st_ino) for status in before.values()
    ]
    assert after.keys() == before.keys() and not run.out.exists()


PEAK = (
    "import re, sys, time; from dedupindex.cli import main\n"
    "status = main(sys.argv[1:])\n"
    # not ru_maxrss, in which a child inherits the peak of the process that forked it
    "peak = re.search(r'VmHWM:\\s+(\\d+) kB', open('/proc/self/status').read())\n"
    "print(status, int(peak[1]), round(time.process_time()))"
)


def measured(*words: object) -> tuple[dict[str, object], int, int]:
    """What a command says with --json, its most memory, in kB, and its seconds of a processor."""
    run = subprocess.run(
        [sys.executable, "-c", PEAK, *map(str, words), "--json"],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    *_, totals, last = run.stdout.splitlines() or [run.stderr, "1 0 0"]
    status, peak, seconds = map(int, last.split())
    assert status == 0, run.stderr
    found: dict[str, object] = json.loads(totals)
    return found, peak, seconds


def stages(run: Run, most: int) -> None:
    """All stages in processes of their own, none of which may take more than `most` kB."""
    for words in (
        ("manifest", run.source, "-o", run.manifest, "--jobs", 1),
        ("resolve", run.manifest, "-o", run.plan, "--memory", "100MB"),
        ("rewrite", run.plan, "--out", run.out, "--jobs", 1),
        ("verify", "--against", run.source, run.out),
    ):
        totals, peak, seconds = measured(*words)
        assert peak < most, (words, peak)
        assert seconds < 120
        if words[0] == "rewrite":
            assert totals["revisits"] == 1
        if words[0] == "verify":
            assert totals["findings"] == {}


def test_a_bomb_takes_little_memory(tmp_path: Path) -> None:
    """300 MB of zeros in a member of 300 kB, twice: the second becomes a revisit."""
    run, size = Run(tmp_path), 300 << 20
    run.source.mkdir()
    digest = sha1(bytes(size))
    with open(run.source / "x.warc.gz", "wb") as stream:
        for number in (1, 2):
            head = response(
                b"", Payload_Digest=digest, number=number, Date=DAY % number,
                Target_URI=b"http://x.test/%d" % number, end=b"",
                Content_Length=b"%d" % (len(HTTP) + size),
            )  # fmt: skip
            packer = isal_zlib.compressobj(3, isal_zlib.DEFLATED, 31)
            stream.write(packer.compress(head))
            for _ in range(size >> 20):
                stream.write(packer.compress(bytes(1 << 20)))
            stream.write(packer.compress(END) + packer.flush())
    assert (run.source / "x.warc.gz").stat().st_size < size // 100
    stages(run, 300_000)


def test_a_large_record_takes_little_memory(tmp_path: Path) -> None:
    """17: a plain file with a hole in it, larger than the memory that each stage may take.

    A thorough run makes it five gigabytes: what stands behind is beyond four gibibytes.
    """
    run, size = Run(tmp_path), 5 * 10**9 if thorough() else 400 * 10**6
    if shutil.disk_usage(tmp_path).free < 2 * size:
        pytest.skip("there is no room on this disk for a file of 5 GB and its copy")
    run.source.mkdir()
    big = response(
        b"", Payload_Digest=None, number=5, Target_URI=b"http://x.test/5", end=b"",
        Content_Length=b"%d" % (len(HTTP) + size),
    )  # fmt: skip
    body = b"a body of its own" * 50
    small = [
        response(body, number=number, Date=DAY % number, Target_URI=b"http://x.test/%d" % number)
        for number in (1, 2)
    ]
    with open(run.source / "x.warc", "wb") as stream:
        stream.write(small[0] + big)
        stream.seek(size, os.SEEK_CUR)
        stream.write(END + small[1])
    stages(run, 300_000)
    lines = open_manifest(run.manifest)
    assert [line.length for line in lines.lines(1)] == [len(body), size, len(body)]


def test_a_hundred_thousand_header_lines(tmp_path: Path) -> None:
    """Of HTTP and of WARC: converted, or named and left as they are, never a crash."""
    one = Case("many", 3)
    fields = [b"X-%d: y" % number for number in range(60_000)]
    many = http(*fields)
    assert len(many) < 1 << 20
    one.file("http.warc.gz", one.original(head=many), one.copy(head=many))
    concurrent = [(b"WARC-Concurrent-To", b"<x:%d>" % number) for number in range(20_000)]
    one.file("warc.warc.gz", one.copy(3, more=concurrent), one.copy(4))
    too_many = gz(one.record(5, more=[(b"X-%d" % number, b"y" * 4) for number in range(100_000)]))
    one.file("damaged.warc.gz", one.kept("damaged", one.record(6)), too_many, damaged=True)
    longer = http(*[b"X-%d: yyyy" % number for number in range(100_000)])
    one.file("longer.warc.gz", one.copy(7, head=longer))
    run = Run(tmp_path)
    one.write(run.source)
    run.prepare()
    assert run.results["manifest"].status == 7
    assert "damaged.warc.gz" in run.results["manifest"].err
    run.to_directory()
    one.check(run.out)
    run.in_place()
    one.check(run.placed)
    assert main(["verify", "--against", str(run.top / "before"), str(run.source)]) == 0
