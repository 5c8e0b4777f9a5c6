"""Containers, whole and damaged: edge cases 1 to 21 of the WARC reference, by number."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import blake3
import pytest
from isal import isal_zlib

from dedupindex.capture import Problem
from dedupindex.errors import BadSource
from dedupindex.sources.warc_records import WarcSource
from dedupindex.warc import gzip_members, window
from dedupindex.warc.gzip_members import Damage, Filler
from dedupindex.warc.record import Record
from dedupindex.warc.window import open_window
from tests.support.paths import ROOT
from tests.support.warc_cases import END, HTTP, ask, gz, record_id, request, response, sha1

A = response(b"first payload", number=1)
B = response(b"second payload", number=2)
C = response(b"third payload", number=3)
Pack = Callable[[bytes], bytes]
GOOD = ["capture", "capture", "capture"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.warc.gz"


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]


def test_three_members(path: Path) -> None:
    answer = ask(path, gz(A) + gz(B) + gz(C))
    assert answer.words == GOOD
    assert [capture.offset for capture in answer.captures] == [0, len(gz(A)), len(gz(A) + gz(B))]
    assert answer.source.position == answer.source.size == path.stat().st_size
    assert answer.filler == 0


def test_case_01_uncompressed(path: Path) -> None:
    answer = ask(path, A + B + C)
    assert answer.words == GOOD
    assert [capture.offset for capture in answer.captures] == [0, len(A), len(A + B)]


def test_case_02_whole_file_in_one_member(path: Path) -> None:
    answer = ask(path, gz(A + B + C))
    assert sorted(answer.words) == ["capture", "problem", "shared-member", "shared-member"]
    assert "recompress" in answer.problem
    assert answer.capture.offset == 0


def test_case_02_in_one_large_member(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gzip_members, "SHORT", 100)
    data = gz(b"".join(response(os.urandom(40_000), number=n) for n in range(9)))
    answer = ask(path, data)
    assert answer.words.count("shared-member") == 8
    assert answer.capture.record_id == record_id(0)[1:-1]


@pytest.mark.parametrize("missing", [1, 4, 7, 8])
def test_case_03_last_member_without_its_whole_trailer(path: Path, missing: int) -> None:
    answer = ask(path, (gz(A) + gz(B))[:-missing])
    assert answer.words == ["capture", "problem", "damaged"]
    ((offset, message),) = answer.problems
    assert offset == len(gz(A))
    assert "cut short" in message


@pytest.mark.parametrize("left", [1, 2, 3, 9, 17, 18, 60, 150])
def test_case_04_last_member_cut(path: Path, left: int) -> None:
    answer = ask(path, gz(A) + gz(B)[:left])
    assert answer.words[:2] == ["capture", "problem"]
    assert answer.problems[0][0] == len(gz(A))


def test_case_04_large_member_cut(path: Path) -> None:
    data = gz(A) + gz(response(os.urandom(6 << 20)), level=1)
    answer = ask(path, data[: -(1 << 20)])
    assert answer.words == ["capture", "problem", "damaged"]


@pytest.mark.parametrize("behind", [8, 4])
def test_case_05_checksum_or_length_wrong(path: Path, behind: int) -> None:
    bad = flipped(gz(B), len(gz(B)) - behind)
    answer = ask(path, gz(A) + bad + gz(C))
    assert answer.words == ["capture", "problem", "damaged", "capture"]
    ((offset, message),) = answer.problems
    assert offset == len(gz(A))
    assert "wrong checksum" in message
    assert answer.captures[1].offset == len(gz(A) + bad)


def test_case_05_of_a_large_member(path: Path) -> None:
    large = gz(response(os.urandom(6 << 20)), level=1)
    answer = ask(path, gz(A) + flipped(large, len(large) - 8) + gz(C))
    assert answer.words == ["capture", "problem", "damaged", "capture"]
    assert "wrong checksum" in answer.problem


def test_case_06_bit_flip_in_deflate_data(path: Path) -> None:
    for at in range(10, len(gz(B)) - 8):
        answer = ask(path, gz(A) + flipped(gz(B), at) + gz(C))
        assert answer.words == ["capture", "problem", "damaged", "capture"], at
        assert answer.captures[1].offset == len(gz(A) + gz(B))


def test_case_06_of_a_large_member(path: Path) -> None:
    large = gz(response(b"0123456789abcdef" * 400_000))
    bad = flipped(flipped(large, len(large) // 2), len(large) // 2 + 1)
    answer = ask(path, gz(A) + bad + gz(C))
    assert answer.words == ["capture", "problem", "damaged", "capture"]


def test_case_06_embedded_warc_is_not_read_as_records(path: Path) -> None:
    """A gzipped WARC that is itself the payload, stored, so that its magic shows."""
    inner = gz(response(b"not of this file", number=8)) + gz(response(b"nor this", number=9))
    outer = gz(response(inner), level=0)
    for at in (10, 11, 12):
        answer = ask(path, gz(A) + flipped(outer, at) + gz(C))
        assert answer.words == ["capture", "problem", "damaged", "capture"]
        assert [capture.record_id for capture in answer.captures] == [record_id(1)[1:-1]] + [
            record_id(3)[1:-1]
        ]
    cut = gz(A) + outer[: outer.index(inner) + len(inner)]
    answer = ask(path, cut)
    assert answer.words == ["capture", "problem", "damaged"]


def test_records_between_two_damages_are_left_out(path: Path) -> None:
    bad = flipped(gz(B), 20)
    answer = ask(path, gz(A) + bad + gz(B) + bad + gz(C))
    assert answer.words == ["capture", "problem", "damaged", "capture"]
    assert f"{2 * len(bad) + len(gz(B)):,} bytes" in answer.problem


def test_case_07_empty_gzip_member(path: Path) -> None:
    answer = ask(path, gz(b"") + gz(A) + gz(b"") + gz(b"") + gz(B) + gz(C) + gz(b""))
    assert answer.words == GOOD
    assert answer.filler == 4 * len(gz(b""))


def test_case_08_member_of_line_ends(path: Path) -> None:
    answer = ask(path, gz(A) + gz(END) + gz(B) + gz(b"\n" * 99) + gz(C))
    assert answer.words == GOOD
    assert answer.filler == len(gz(END)) + len(gz(b"\n" * 99))


@pytest.mark.parametrize("zeros", [1, 5, 512, 1 << 20, (1 << 20) + 7])
def test_case_09_zero_padding(path: Path, zeros: int) -> None:
    padding = b"\0" * zeros
    answer = ask(path, gz(A) + padding + gz(B) + gz(C) + padding)
    assert answer.words == GOOD
    assert answer.filler == 2 * zeros
    assert [type(event) for event in answer.events] == [Record, Filler, Record, Record, Filler]


def test_case_09_garbage_between_members(path: Path) -> None:
    answer = ask(path, gz(A) + b"garbage" + gz(B) + gz(C))
    assert answer.words == ["capture", "problem", "capture", "capture"]
    assert answer.events[1] == Damage(len(gz(A)), 7, answer.problem, record=False)


def test_case_09_garbage_at_the_end(path: Path) -> None:
    answer = ask(path, gz(A) + gz(B) + gz(C) + b"garbage")
    assert answer.words == [*GOOD, "problem"]
    assert "7 bytes to the end of the file" in answer.problem


@pytest.mark.parametrize("cut", [-1, -4])
def test_case_10_line_ends_in_a_member_of_their_own(path: Path, cut: int) -> None:
    answer = ask(path, gz(A) + gz(B[:cut]) + gz(B[cut:]) + gz(C))
    assert answer.words == GOOD and answer.problems == []
    assert answer.source.remarks == {"missing-line-ends": 1}


@pytest.mark.parametrize("cut", [10, 100, -5])
def test_case_10_record_over_two_members(path: Path, cut: int) -> None:
    answer = ask(path, gz(A) + gz(B[:cut]) + gz(B[cut:]) + gz(C))
    words = answer.words
    assert (words[0], words[-1]) == ("capture", "capture")
    assert words.count("damaged") == 1
    assert {offset for offset, _ in answer.problems} <= {len(gz(A)), len(gz(A) + gz(B[:cut]))}


def test_case_11_two_records_in_one_member_among_others(path: Path) -> None:
    answer = ask(path, gz(A) + gz(B + request()) + gz(C))
    assert sorted(answer.words) == sorted([*GOOD, "problem", "shared-member"])


def test_case_11_is_reported_once(path: Path) -> None:
    answer = ask(path, gz(A + A) + gz(B + B + B))
    assert answer.words.count("shared-member") == 3
    assert len(answer.problems) == 1


def test_case_12_plain_record_after_members(path: Path) -> None:
    answer = ask(path, gz(A) + B + gz(C))
    assert answer.words == ["capture", "problem", "capture"]
    assert "uncompressed record" in answer.problem


def test_case_12_member_after_plain_records(path: Path) -> None:
    answer = ask(path, A + gz(B) + C)
    assert answer.words[:2] == ["capture", "problem"]
    assert "gzip member is between" in answer.problem


def with_header(data: bytes, *, name: bytes = b"name") -> bytes:
    """A member whose header has all optional fields."""
    member = gz(data)
    header = member[:3] + b"\x1e" + member[4:10] + struct.pack("<H", 8) + b"SL\4\0\0\1\2\3"
    header += name + b"\0comment\0"
    return header + struct.pack("<H", zlib.crc32(header) & 0xFFFF) + member[10:]


@pytest.mark.parametrize("name", [b"x.warc", b"\x1f\x8b\x08" * 9, b"n" * 5000, b"n" * 70_000])
def test_case_13_optional_fields_of_the_gzip_header(path: Path, name: bytes) -> None:
    answer = ask(path, with_header(A, name=name) + gz(B) + with_header(C))
    assert answer.words == GOOD


def test_case_13_with_a_wrong_checksum_of_the_header(path: Path) -> None:
    member = with_header(B)
    bad = flipped(member, member.index(b"comment\0"))
    answer = ask(path, gz(A) + bad + gz(C))
    assert answer.words == ["capture", "problem", "damaged", "capture"]


def test_case_15_the_name_does_not_matter(tmp_path: Path) -> None:
    assert ask(tmp_path / "plain.warc.gz", A + B + C).words == GOOD
    assert ask(tmp_path / "gzipped.warc", gz(A) + gz(B) + gz(C)).words == GOOD


def test_case_16_no_bytes_and_two_bytes(path: Path) -> None:
    assert ask(path, b"").words == ["problem"]
    for data in (b"\x1f\x8b", b"WA", b"\r\n"):
        assert set(ask(path, data).words) <= {"problem", "damaged"}


def test_case_16_not_a_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "missing"):
        with pytest.raises(BadSource, match=path.name):
            WarcSource(str(path), path)


def test_case_17_offsets_beyond_four_gibibytes(path: Path) -> None:
    hole = 5 << 30
    with open(path, "wb") as stream:  # sparse: takes no space
        stream.write(gz(A))
        stream.seek(hole)
        stream.write(gz(B))
    opened = open_window("t", path)
    opened.hashed = hole  # spare the hash
    opened.load(hole)
    assert bytes(opened.view[: opened.filled]) == gz(B)
    assert opened.read(hole, 99) == gz(B)[:99]
    opened.close()


def test_case_18_block_of_more_than_four_gibibytes(tmp_path: Path) -> None:
    """The length in the gzip trailer wraps; it must be compared modulo 2**32, in bounded memory."""
    path = tmp_path / "huge.warc.gz"
    size, piece = (1 << 32) + (1 << 20), bytes(1 << 20)
    head = response(b"", Content_Length=b"%d" % (len(HTTP) + size), Payload_Digest=None, end=b"")
    checksum = isal_zlib.crc32(head)
    packed = []
    for data in (head, piece, END):  # flushed in between, so that a packed piece can be repeated
        packer = zlib.compressobj(9, zlib.DEFLATED, -15)
        flush = zlib.Z_FINISH if data == END else zlib.Z_FULL_FLUSH
        packed.append(packer.compress(data) + packer.flush(flush))
    with open(path, "wb") as stream:
        stream.write(gz(b"")[:10] + packed[0])
        for _ in range(size // len(piece)):
            stream.write(packed[1])
            checksum = isal_zlib.crc32(piece, checksum)
        checksum = isal_zlib.crc32(END, checksum)
        length = (len(head) + size + 4) & 0xFFFFFFFF
        stream.write(packed[2] + struct.pack("<II", checksum, length) + gz(B))
    program = (
        "import re, sys; from dedupindex.sources.warc_records import WarcSource\n"
        "for item in WarcSource('x', sys.argv[1]).items(): print(item.size)\n"
        # not ru_maxrss, in which a child inherits the peak of the process that forked it
        "peak = re.search(r'VmHWM:\\s+(\\d+) kB', open('/proc/self/status').read())\n"
        "print(int(peak[1]) < 300_000)"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, path],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    assert run.stdout.split() == [str(size), "14", "True"]


@pytest.mark.parametrize("pack", [gz, bytes], ids=["gzip", "plain"])
@pytest.mark.parametrize(
    "version", [b"WARC/0.17", b"WARC/0.18", b"WARC/1.0", b"WARC/1.1", b"WARC/1.2", b"warc/1.0"]
)
def test_case_19_versions(path: Path, version: bytes, pack: Pack) -> None:
    data = b"".join(pack(response(b"x", version=version, number=n)) for n in range(9))
    assert ask(path, data).words == ["capture"] * 9


def test_case_19_unknown_versions(path: Path) -> None:
    data = gz(A) + gz(response(b"x", version=b"WARC/3.0")) + gz(B)
    assert ask(path, data).words == ["capture", "unknown-version", "capture"]


@pytest.mark.parametrize("pack", [gz, bytes], ids=["gzip", "plain"])
@pytest.mark.parametrize("end", [END, b"\n\n"])
def test_case_20_headers_with_bare_line_feeds(path: Path, pack: Pack, end: bytes) -> None:
    data = [response(b"x\r\n\r\n", eol=b"\n", end=end, number=n) for n in range(9)]
    answer = ask(path, b"".join(pack(one) for one in data))
    assert answer.words == ["capture"] * 9
    assert {capture.size for capture in answer.captures} == {5}


def test_case_21_name_of_a_file_being_written(tmp_path: Path) -> None:
    answer = ask(tmp_path / "t.warc.gz.open", gz(A))
    assert answer.words == ["problem"]
    assert answer.source.changed
    assert answer.source.content_hash == ""


@pytest.mark.parametrize("change", ["append", "truncate", "replace", "touch"])
def test_case_21_file_that_changes_while_it_is_read(path: Path, change: str) -> None:
    path.write_bytes(gz(A) * 1000)
    with WarcSource(path.name, path) as source:
        items = source.items()
        next(items)
        if change == "append":
            with open(path, "ab") as stream:
                stream.write(gz(B))
        elif change == "truncate":
            os.truncate(path, 500)
        elif change == "replace":
            path.with_suffix(".new").write_bytes(gz(C))
            path.with_suffix(".new").rename(path)
        else:
            os.utime(path, (1, 1))
        last = list(items)[-1]
    assert source.changed
    assert isinstance(last, Problem)
    assert "still being written" in last.message


def test_a_stream_is_read_like_a_file(path: Path) -> None:
    data = gz(A) + gz(b"") + gz(B) + b"garbage" + gz(C)
    expected = ask(path, data)
    with open(path, "rb") as stream:
        source = WarcSource(path.name, stream)
        assert list(source.items()) == expected.items
    assert source.content_hash == expected.source.content_hash
    assert not source.changed


def test_content_hash_is_that_of_all_bytes(path: Path) -> None:
    for data in (gz(A), gz(A) * 20_000, gz(A) + b"garbage" * 400_000, A * 9000, b"\0" * 3_000_000):
        assert ask(path, data).source.content_hash == blake3.blake3(data).hexdigest()


@pytest.mark.parametrize("shift", range(-30, 31, 3))
def test_members_over_the_edge_of_the_window(
    path: Path, shift: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window, "CHUNK", 1 << 17)
    first = response(os.urandom((1 << 17) + shift - 400), number=1)
    answer = ask(path, gz(first, level=0) + gz(B) + gz(C))
    assert answer.words == GOOD
    assert ask(path, first + B + C).words == GOOD


def test_payload_digest_helper() -> None:
    assert sha1(b"") == b"sha1:3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ"
