"""Revisits of revisits are re-pointed at the record that has the payload."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dedupindex.cli import main
from dedupindex.verify.collection import Collection
from tests.support.rewriting import records_of
from tests.support.verifying import DAY, HOST, copy_of, page, write
from tests.support.warc_cases import record_id
from tests.support.zstd_files import dictionary_frame, trained, zst

DICTIONARY = trained()


def repointed(
    source: Path, out: Path, capsys: pytest.CaptureFixture[str], status: int = 0
) -> tuple[dict[str, int], str]:
    capsys.readouterr()
    assert main(["convert", "--repoint", str(source), "--out", str(out), "--json"]) == status
    found = capsys.readouterr()
    return json.loads(found.out), found.err


def chained(*places: Path) -> int:
    return sum(one.reason == "chained" for one in Collection(list(places)).findings())


@pytest.mark.parametrize("form", ["gzip", "plain", "zstd"])
def test_chains_of_any_length_over_several_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    write(source / "a.warc.gz", [page(1), copy_of(2, 1)])  # no chain: the file is not written
    chain = [
        copy_of(3, 2), page(9, b"another"), copy_of(4, 3),
        copy_of(5, 4, Refers_To=None),  # by URL and second alone
        copy_of(6, 5, Refers_To_Target_URI=None, Refers_To_Date=None, Refers_To=record_id(5)),
        copy_of(7, 1),
    ]  # fmt: skip
    (source / "deep").mkdir()
    name = {"gzip": "deep/b.warc.gz", "plain": "deep/b.warc", "zstd": "deep/b.warc.zst"}[form]
    if form == "zstd":
        frames = b"".join(zst(one, DICTIONARY) for one in chain)
        (source / name).write_bytes(dictionary_frame(DICTIONARY) + frames)
    else:
        write(source / name, chain, plain=form == "plain")
    assert chained(source) == 4
    found, _ = repointed(source, out, capsys)
    assert (found["repointed"], found["converted"], found["skipped"]) == (4, 1, 1)
    assert [path.name for path in out.rglob("*") if path.is_file()] == [Path(name).name]
    write(out / "a.warc.gz", [page(1), copy_of(2, 1)])
    assert chained(out) == 0
    assert not {one.reason for one in Collection([out]).findings()} & {"dangling", "misdirected"}
    before, after = records_of(source / name), records_of(out / name)
    assert [block for _, block in before] == [block for _, block in after]
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        if number in (1, 5):
            assert old == new
            continue
        head = new[0]
        assert b"WARC-Refers-To-Target-URI: %b1\r\n" % HOST in head
        assert b"WARC-Refers-To-Date: %b\r\n" % (DAY % 1) in head
        assert (b"WARC-Refers-To: <" in head) == (b"WARC-Refers-To: <" in old[0])
        plain = [line for line in old[0].split(b"\r\n") if not line.startswith(b"WARC-Refers-To")]
        assert plain == [
            line for line in head.split(b"\r\n") if not line.startswith(b"WARC-Refers-To")
        ]
    again, _ = repointed(source, out, capsys)
    assert again["existing"] == 1 and again["repointed"] == 4


def test_what_is_not_certain_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    cases = {
        "cycle": [copy_of(2, 3), copy_of(3, 2)],
        "no original": [copy_of(12, 11), copy_of(13, 12)],
        "another payload": [page(1, b"1"), copy_of(4, 1, b"1"), copy_of(5, 4, b"2")],
        "original with another digest": [page(6, b"6"), copy_of(7, 6, b"7"), copy_of(8, 7, b"7")],
        "a wrong original": [
            page(14, b"14", Payload_Digest=b"sha1:" + b"A" * 32),
            copy_of(15, 14, Payload_Digest=b"sha1:" + b"A" * 32),
            copy_of(16, 15, Payload_Digest=b"sha1:" + b"A" * 32),
        ],
        "two payloads of one second": [
            page(17, b"17"), page(18, b"18", Target_URI=HOST + b"17", Date=DAY % 17),
            copy_of(19, 17, b"17"), copy_of(20, 19, b"17"),
        ],
        "two revisits of one second": [
            page(21, b"21"), page(22, b"22"), copy_of(23, 21, b"21"),
            copy_of(24, 22, b"22", Target_URI=HOST + b"23", Date=DAY % 23),
            copy_of(25, 23, b"21", Refers_To=None),
        ],
    }  # fmt: skip
    for name, records in cases.items():
        write(source / f"{name}.warc.gz", records)
    found, error = repointed(source, out, capsys)
    assert found["repointed"] == 0 and not list(out.iterdir())
    assert f"of {len(cases)} files none has a revisit of a revisit" in error
    assert "left as they are, no-certain-original: 8" in error


def test_damage_and_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A damaged file is left alone, and named; so is a target with other content."""
    source, out = tmp_path / "in", tmp_path / "out"
    path = write(source / "a.warc.gz", [page(1), copy_of(2, 1), copy_of(3, 2), page(4, b"4")])
    data = path.read_bytes()
    path.write_bytes(data[:-9] + b"\0" * 9)
    found, error = repointed(source, out, capsys, status=7)
    assert found["left_alone"] == 1 and "was left alone" in error
    path.write_bytes(data)
    write(out / "a.warc.gz", [page(1)])
    found, error = repointed(source, out, capsys, status=7)
    assert found["left_alone"] == 1 and "exists already" in error
    words = ["convert", "--repoint", str(source), "--out", str(out)]
    assert main([*words, "--back"]) == main([*words, "--to", "gzip"]) == 2
    assert not list(out.glob(".repoint*"))
