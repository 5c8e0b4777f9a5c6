"""WARC files that are compressed with zstd, whole and damaged; cases by number as for gzip."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from zstandard import ZstdCompressionDict

from dedupindex.warc import gzip_members, window, zstd_format, zstd_frames
from dedupindex.warc.framing import WarcFraming
from dedupindex.warc.gzip_members import Damage, Walk
from dedupindex.warc.reader import read
from dedupindex.warc.record import Record
from dedupindex.warc.window import Window, open_window
from dedupindex.warc.zstd_format import (
    Dictionaries,
    FrameHeader,
    UnreadableFrame,
    ZstdDecompressor,
    content_start,
    frame_header,
    parse_dictionary,
    unpack,
)
from dedupindex.warc.zstd_frames import frame_end
from tests.support import paths
from tests.support.warc_cases import (
    END,
    Answer,
    ask,
    gz,
    record_id,
    response,
)
from tests.support.zstd_files import dictionary_frame, skippable, zst
from tests.unit.warc.test_containers import flipped
from tests.unit.warc.test_properties import SMALL, records

REAL = paths.DATA / "wget-at"
SCRATCH = Path(tempfile.mkdtemp())
A = response(b"first payload", number=1)
B = response(b"second payload", number=2)
C = response(b"third payload", number=3)
GOOD = ["capture", "capture", "capture"]
BAD = ["capture", "problem", "damaged", "capture"]
SAMPLES = [response(b"page %d of many" % n, number=n % 500) for n in range(4000)]


def trained(number: int) -> bytes:
    return zstandard.train_dictionary(4096, SAMPLES, dict_id=number).as_bytes()


ONE, OTHER = trained(70_001), trained(70_002)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.warc.zst"


@pytest.fixture
def given_files(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Give dictionaries as ``--zstd-dictionary`` does."""

    def give(*files: Path) -> None:
        monkeypatch.setenv(zstd_format.VARIABLE, os.pathsep.join(map(str, files)))

    return give


def without_dictionary_id(data: bytes) -> bytes:
    parameters = zstandard.ZstdCompressionParameters(write_dict_id=False, write_checksum=True)
    packer = zstandard.ZstdCompressor(
        dict_data=ZstdCompressionDict(ONE), compression_params=parameters
    )
    return packer.compress(data)


def counts(file: Path) -> Counter[str]:
    with closing(open_window(file.name, file)) as opened:
        return Counter(
            event.type.decode() if isinstance(event, Record) else type(event).__name__
            for event in read(opened)
        )


@pytest.mark.parametrize(
    ("name", "more"),
    [("b-dict", {"Filler": 1}), ("b2-dict-plain", {"Filler": 1}), ("b3-dict-external", {})],
)
def test_files_of_a_real_crawler(
    name: str, more: dict[str, int], given_files: Callable[..., None]
) -> None:
    given_files(REAL / "dict.zstdict")
    kinds = {"request": 249, "response": 248, "warcinfo": 1, "revisit": 1, "metadata": 1}
    assert counts(REAL / f"{name}.warc.zst") == {**kinds, "resource": 1, **more}
    answer = ask(REAL / f"{name}.warc.zst")
    # this crawler cuts digests at zero bytes, see tests/data/wget-at
    words = Counter(answer.words)
    assert (words["capture"], words["cut-digest"], words["empty"]) == (232, 13, 3)
    assert answer.problems == [] and answer.source.remarks == {}


def test_real_file_with_chunked_and_gzipped_responses() -> None:
    answer = ask(REAL / "n-gz.warc.zst")
    assert Counter(answer.words)["capture"] == 2
    assert answer.problems == []


def test_external_dictionary_that_is_missing() -> None:
    answer = ask(REAL / "b3-dict-external.warc.zst")
    assert answer.words == ["problem", "damaged"]
    assert "501 zstd frames need the zstd dictionary 10944513, which is missing" in answer.problem
    assert "--zstd-dictionary" in answer.problem


@pytest.mark.parametrize("size", [True, False])
def test_a_frame_for_each_record(path: Path, size: bool) -> None:
    frames = [zst(one, size=size) for one in (A, B, C)]
    answer = ask(path, b"".join(frames))
    assert answer.words == GOOD and answer.problems == []
    offsets = [0, len(frames[0]), len(frames[0] + frames[1])]
    assert [capture.offset for capture in answer.captures] == offsets
    assert [event.stored for event in answer.events] == list(map(len, frames))
    assert answer.source.position == answer.source.size == path.stat().st_size


@pytest.mark.parametrize("packed", [True, False])
def test_a_dictionary_at_the_beginning(path: Path, packed: bool) -> None:
    start = dictionary_frame(ONE, compressed=packed)
    answer = ask(path, start + zst(A, ONE) + zst(B, ONE, size=False) + zst(C, ONE))
    assert answer.words == GOOD and answer.problems == []
    assert answer.filler == len(start) == answer.captures[0].offset


def test_frames_without_dictionary_id_use_that_of_the_file(path: Path) -> None:
    start = dictionary_frame(ONE, compressed=True)
    assert ask(path, start + b"".join(map(without_dictionary_id, (A, B, C)))).words == GOOD


def test_dictionaries_that_users_give_are_chosen_by_id(
    path: Path, tmp_path: Path, given_files: Callable[..., None]
) -> None:
    for name, dictionary in (("one", ONE), ("other", OTHER)):
        (tmp_path / name).write_bytes(dictionary)
    data = zst(A, OTHER) + zst(B, ONE) + zst(C, OTHER)
    assert ask(path, data).words == ["problem", "damaged"] * 3
    given_files(tmp_path / "one")
    assert ask(path, data).words == ["problem", "damaged", "capture", "problem", "damaged"]
    given_files(tmp_path / "one", tmp_path / "other")
    assert ask(path, data).words == GOOD
    (tmp_path / "one").write_bytes(zst(ONE))
    given_files(tmp_path / "one", tmp_path / "other", tmp_path / "one")
    assert ask(path, dictionary_frame(OTHER, compressed=True) + data).words == GOOD


def test_files_that_hold_no_dictionary(
    path: Path, tmp_path: Path, given_files: Callable[..., None]
) -> None:
    for name, data, reason in (
        ("text", b"text", "is not a zstd dictionary"),
        ("cut", zst(ONE)[:-9], "is cut short"),
        ("damaged", flipped(ONE, 20)[:30], "is damaged"),
        ("missing", None, "cannot be read: No such file"),
        ("bomb", zst(bytes(1 << 24)), "is longer than 8,388,608 bytes"),
    ):
        if data is not None:
            (tmp_path / name).write_bytes(data)
        given_files(tmp_path / name)
        assert f"{tmp_path / name} {reason}" in ask(path, zst(A, ONE)).problem
        if data is not None:
            start = skippable(data, 13)
            problem = ask(path, start + zst(A, ONE)).problem
            assert f"missing (--zstd-dictionary): {tmp_path / name} {reason}" in problem
            given_files()
            problem = ask(path, start + zst(A, ONE)).problem
            assert f"that at the beginning of the file {reason}" in problem
    start = dictionary_frame(ONE, compressed=False)
    assert ask(path, start[:-5]).words == ["problem"]


def test_a_file_of_another_dictionary_is_not_read_with_its_own(path: Path) -> None:
    data = dictionary_frame(ONE, compressed=True) + zst(A, ONE) + zst(B, OTHER) + zst(C, ONE)
    answer = ask(path, data)
    assert answer.words == BAD
    assert "1 zstd frame needs the zstd dictionary 70002, which is missing" in answer.problem


def test_a_second_dictionary_is_filler(path: Path) -> None:
    """Files with dictionaries cannot be concatenated: no offset leads to the second one."""
    frames = dictionary_frame(ONE, compressed=True) + zst(A, ONE)
    assert ask(path, frames + frames + zst(C, ONE)).words == GOOD
    other = dictionary_frame(OTHER, compressed=True) + zst(B, OTHER)
    assert ask(path, frames + other + zst(C, ONE)).words == BAD


@pytest.mark.parametrize("cuts", [[1], [10], [100], [200, 300], [-1], [-4], [-10, -3], [5, 9, 30]])
@pytest.mark.parametrize("size", [True, False])
def test_a_record_in_several_frames(path: Path, cuts: list[int], size: bool) -> None:
    """Also its header, and the line ends after it, may be divided."""
    edges = [0, *[cut % len(B) for cut in cuts], len(B)]
    parts = [zst(B[a:b], size=size) for a, b in zip(edges, edges[1:], strict=False)]
    between = [zst(b""), skippable(b"extension"), b""]
    for number in range(3):
        joined = between[number].join(parts)
        answer = ask(path, zst(A) + joined + zst(C))
        assert answer.words == GOOD and answer.problems == []
        assert [event.stored for event in answer.events] == [len(zst(A)), len(joined), len(zst(C))]
        assert answer.captures[1].offset == len(zst(A))


@pytest.mark.parametrize("short", [100, 1000, 4 << 20])
def test_a_long_record_in_several_frames(
    path: Path, short: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("framing", "zstd_frames"):
        monkeypatch.setattr(f"dedupindex.warc.{module}.SHORT", short)
    long = response(os.urandom(3 << 20) * 2, number=2)
    parts = b"".join(
        zst(long[at : at + 700_000], size=False) for at in range(0, len(long), 700_000)
    )
    answer = ask(path, zst(A) + parts + zst(C))
    assert answer.words == GOOD and answer.problems == []
    assert answer.captures[1].size == 6 << 20
    assert answer.captures[2].offset == len(zst(A) + parts)


def test_frames_that_begin_like_records_within_a_record(path: Path) -> None:
    """A WARC file in a payload, each of its records in a frame of its own."""
    inner = [response(b"not of this file", number=n) for n in (7, 8, 9)]
    outer = response(b"".join(inner), number=2)
    start = outer.index(inner[0])
    frames = [outer[:start], *inner[:-1], outer[start + len(inner[0] + inner[1]) :]]
    answer = ask(path, zst(A) + b"".join(map(zst, frames)) + zst(C))
    assert answer.words == GOOD
    assert [one.record_id for one in answer.captures] == [record_id(n)[1:-1] for n in (1, 2, 3)]


@pytest.mark.parametrize("short", [100, 4 << 20])
@pytest.mark.parametrize("more", [5, 99, 500, 1 << 30])
def test_a_record_that_states_more_than_its_frame_holds(
    path: Path, short: int, more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frames after it are records of their own, and none of them is lost."""
    for module in ("framing", "zstd_frames"):
        monkeypatch.setattr(f"dedupindex.warc.{module}.SHORT", short)
    length = b"%d" % (len(A[A.index(b"HTTP/1.1") :]) - 4 + more)
    long = response(b"first payload", Content_Length=length)
    answer = ask(path, zst(long) + zst(B) + zst(C))
    assert answer.words == ["problem", "damaged", "capture", "capture"]
    assert answer.events[0] == Damage(
        0, len(zst(long)), "a record is shorter than its Content-Length", record=True
    )


def test_records_that_are_not_joined_cost_linear_time(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of these states a length that would make its frames those of one record."""
    monkeypatch.setattr(zstd_frames, "_MOST_WASTED", 10_000)
    long = response(b"x", Content_Length=b"1000000")
    data = zst(long) * 300
    path.write_bytes(data)
    answer = ask(path, data)
    assert answer.words == ["problem", "damaged"] * 300
    with closing(open_window(path.name, path)) as opened:
        walk = zstd_frames.FrameWalk(opened, WarcFraming().record_length, Dictionaries())
        for _ in walk.steps():
            pass
        assert walk._wasted < 10_000 + 2 * len(long) * 300


@pytest.mark.parametrize("end", [b"", b"\r\n"])
def test_records_without_line_ends(path: Path, end: bytes) -> None:
    answer = ask(path, zst(response(end=end)) + zst(B) + zst(C))
    assert answer.words == GOOD
    assert answer.source.remarks == {"missing-line-ends": 1}
    answer = ask(path, zst(response(end=b"")) + zst(END) + zst(B) + zst(C))
    assert answer.words == GOOD and answer.source.remarks == {}


def test_frames_without_a_checksum_are_a_remark(path: Path) -> None:
    answer = ask(path, zst(A) + zst(B, checksum=False) + zst(C))
    assert answer.words == GOOD
    assert answer.source.remarks == {"no-checksum": 1}


def test_case_02_whole_file_in_one_frame(path: Path) -> None:
    answer = ask(path, zst(A + B + C))
    assert sorted(answer.words) == ["capture", "problem", "shared-member", "shared-member"]
    assert answer.capture.offset == 0


def test_case_02_in_one_large_frame(path: Path) -> None:
    data = zst(b"".join(response(os.urandom(600_000), number=n) for n in range(9)), size=False)
    answer = ask(path, data)
    assert answer.words.count("shared-member") == 8
    assert answer.capture.record_id == record_id(0)[1:-1]


def test_case_03_and_04_last_frame_cut(path: Path) -> None:
    frame = zst(B)
    for left in range(1, len(frame)):
        answer = ask(path, zst(A) + frame[:left])
        assert answer.words == ["capture", "problem", "damaged"], left
        assert answer.problems[0][0] == len(zst(A))
        assert "cut short" in answer.problem


def test_case_04_large_frame_cut(path: Path) -> None:
    data = zst(A) + zst(response(os.urandom(6 << 20)))
    answer = ask(path, data[: -(1 << 20)])
    assert answer.words == ["capture", "problem", "damaged"]
    assert "cut short" in answer.problem


@pytest.mark.parametrize("body", [b"short", os.urandom(6 << 20)], ids=["short", "long"])
def test_case_05_checksum_wrong(path: Path, body: bytes) -> None:
    good = zst(response(body))
    answer = ask(path, zst(A) + flipped(good, len(good) - 2) + zst(C))
    assert answer.words == BAD
    assert answer.problems[0][0] == len(zst(A))
    assert answer.captures[1].offset == len(zst(A) + good)


def test_case_06_bit_flips(path: Path) -> None:
    """What follows is read, and what is read of the frame itself is what was written."""
    sound = {one.record_id for one in ask(path, zst(A) + zst(B) + zst(C)).captures}
    for at in range(len(zst(B))):
        answer = ask(path, zst(A) + flipped(zst(B), at) + zst(C))
        assert answer.words[0] == "capture", at
        assert {one.record_id for one in answer.captures} <= sound
        assert answer.words.count("problem") == 1
    block = zstandard.frame_header_size(zst(B))
    for at in range(4, len(zst(B))):
        words = ask(path, zst(A) + flipped(zst(B), at) + zst(C)).words
        if not block <= at < block + 3:  # a wrong size of a block may look like the end of the file
            assert words == BAD, at


def test_case_06_embedded_warc_is_not_read_as_records(path: Path) -> None:
    """A zstd WARC that is itself the payload, stored, so that its magic shows."""
    inner = zst(response(b"not of this file", number=8)) + zst(response(b"nor this", number=9))
    outer = zst(response(inner + os.urandom(300)), level=-50)
    assert inner in outer
    ids = [record_id(1)[1:-1], record_id(3)[1:-1]]
    for at in range(4, outer.index(inner)):
        answer = ask(path, zst(A) + flipped(outer, at) + zst(C))
        assert answer.words in (BAD, BAD[:-1])
        assert [one.record_id for one in answer.captures] == ids[: len(answer.captures)]
    cut = zst(A) + outer[: outer.index(inner) + len(inner)]
    assert ask(path, cut).words == ["capture", "problem", "damaged"]


def test_damage_in_a_record_of_several_frames(path: Path) -> None:
    parts = [zst(B[:150]), flipped(zst(B[150:250]), 30), zst(B[250:])]
    answer = ask(path, zst(A) + b"".join(parts) + zst(C))
    assert [one.offset for one in answer.captures][0] == 0
    assert answer.captures[-1].offset == len(zst(A) + b"".join(parts))
    assert len(answer.captures) == 2 and answer.words.count("damaged") == 1


def test_case_07_empty_frames(path: Path) -> None:
    empty = zst(b"")
    answer = ask(path, empty + zst(A) + empty + empty + zst(B) + zst(C) + empty)
    assert answer.words == GOOD
    assert answer.filler == 4 * len(empty)
    assert answer.captures[0].offset == len(empty)


def test_case_08_frame_of_line_ends(path: Path) -> None:
    answer = ask(path, zst(A) + zst(END) + zst(B) + zst(b"\n" * 99) + zst(C))
    assert answer.words == GOOD
    assert answer.filler == len(zst(END)) + len(zst(b"\n" * 99))


@pytest.mark.parametrize("size", [0, 5, 1 << 20, (1 << 20) + 7])
def test_case_09_skippable_frames_and_zeros(path: Path, size: int) -> None:
    for kind in range(16):
        filler = skippable(b"x" * size, kind)
        answer = ask(path, zst(A) + filler + zst(B) + filler + filler + zst(C) + filler)
        assert answer.words == GOOD
        assert answer.filler == 4 * len(filler)
    answer = ask(path, zst(A) + bytes(size) + zst(B) + zst(C) + bytes(size))
    assert answer.words == GOOD and answer.filler == 2 * size


def test_case_09_a_skippable_frame_with_a_wrong_size_hides_no_record(path: Path) -> None:
    for size in (len(zst(B)) // 2, 1 << 30):
        filler = skippable(b"")[:4] + size.to_bytes(4, "little")
        answer = ask(path, zst(A) + filler + zst(B) + zst(C))
        assert [word for word in answer.words if word != "problem"] == GOOD
        assert answer.words.count("problem") == 1


def test_case_09_garbage(path: Path) -> None:
    answer = ask(path, zst(A) + b"garbage" + zst(B) + zst(C))
    assert answer.words == ["capture", "problem", "capture", "capture"]
    assert answer.events[1] == Damage(len(zst(A)), 7, answer.problem, record=False)
    answer = ask(path, zst(A) + zst(B) + zst(C) + b"garbage")
    assert answer.words == [*GOOD, "problem"]
    assert "7 bytes to the end of the file" in answer.problem


@pytest.mark.parametrize("pack", [bytes, gz], ids=["plain", "gzip"])
def test_case_12_records_in_other_forms(path: Path, pack: Callable[[bytes], bytes]) -> None:
    answer = ask(path, zst(A) + pack(B) + zst(C))
    assert answer.words == ["capture", "problem", "capture"]
    assert "between zstd frames" in answer.problem
    assert ask(path, pack(A) + zst(B)).words[:2] == ["capture", "problem"]


def test_case_16_beginnings(path: Path) -> None:
    for data in (b"\x28", b"\x28\xb5\x2f", zst(A)[:4], zst(A)[:9], skippable(b"x")[:6]):
        assert set(ask(path, data).words) <= {"problem", "damaged"}


def test_a_frame_that_needs_much_memory_is_left_out(path: Path) -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=28, write_checksum=True)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    wide = packer.compress(B) + packer.flush()
    answer = ask(path, zst(A) + wide + zst(C))
    assert answer.words == BAD
    assert "1 zstd frame needs 256 MiB of memory, and at most 128 are allowed" in answer.problem


def walk(opened: Window) -> Walk:
    frames = zstd_frames.FrameWalk(opened, lambda start: 0, Dictionaries.read(opened.read))
    return frames.steps()


def test_a_bomb_is_decompressed_in_pieces(path: Path) -> None:
    size = 300 << 20
    head = response(b"", Content_Length=b"%d" % (size + 100), Payload_Digest=None, end=b"")
    packer = zstandard.ZstdCompressor().compressobj()
    data = packer.compress(head) + b"".join(packer.compress(bytes(1 << 20)) for _ in range(300))
    path.write_bytes(data + packer.flush())
    with closing(open_window(path.name, path)) as opened:
        (step,) = walk(opened)
        assert isinstance(step, gzip_members.LongMember)
    with closing(open_window(path.name, path)) as opened:
        for step in walk(opened):
            assert isinstance(step, gzip_members.LongMember)
            assert len(step.start) < 5 << 20
            pieces = list(iter(step.piece, b""))
            assert max(map(len, pieces)) <= 1 << 18
            assert len(step.start) + sum(map(len, pieces)) == len(head) + size


@pytest.mark.parametrize("shift", range(-30, 31, 6))
def test_frames_over_the_edge_of_the_window(
    path: Path, shift: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window, "CHUNK", 1 << 17)
    first = response(os.urandom((1 << 17) + shift - 400), number=1)
    for size in (True, False):
        assert ask(path, zst(first, size=size) + zst(B) + zst(C)).words == GOOD


def framings(made: list[bytes], data: st.DataObject) -> Iterator[bytes]:
    """Frames that hold these records, in any way that the format allows."""
    dictionary = data.draw(st.sampled_from([b"", ONE]))
    if dictionary:
        yield dictionary_frame(dictionary, compressed=data.draw(st.booleans()))
    filler = st.sampled_from([b"", b"", zst(b""), skippable(b"xx"), skippable(b"", 15)])
    for one in made:
        cuts = data.draw(st.lists(st.integers(0, len(one)), max_size=3).map(sorted))
        for start, end in zip([0, *cuts], [*cuts, len(one)], strict=True):
            options = {name: data.draw(st.booleans()) for name in ("size", "checksum")}
            yield zst(one[start:end], dictionary, level=data.draw(st.integers(-5, 9)), **options)
            if not start == end == 0:  # what begins with an empty frame has another offset
                yield data.draw(filler)


@SMALL
@given(records(), st.data())
def test_any_framing_reads_as_gzip(made: list[tuple[str, bytes]], data: st.DataObject) -> None:
    stored = b"".join(framings([one for _, one in made], data))
    other = ask(SCRATCH / "t.warc.gz", b"".join(gz(one) for _, one in made))
    answer = ask(SCRATCH / "t.warc.zst", stored)
    assert not made or answer.words == other.words
    assert facts(answer) == facts(other)


def facts(answer: Answer) -> list[object]:
    return [one._replace(container="", offset=0) for one in answer.captures]


@SMALL
@given(records(), st.data())
def test_damage_anywhere(made: list[tuple[str, bytes]], data: st.DataObject) -> None:
    """Cut or flipped at any place: all before it is kept, and no false record is read."""
    made.append(("capture", response(b"the last", number=99)))
    stored = [zst(one, level=data.draw(st.sampled_from([-50, 3]))) for _, one in made]
    whole = bytearray(b"".join(stored))
    at = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        del whole[at:]
    else:
        whole[at] ^= 1 << data.draw(st.integers(0, 7))
    answer = ask(SCRATCH / "t.warc.zst", bytes(whole))
    sound = 0
    while sound < len(stored) and sum(map(len, stored[: sound + 1])) <= at:
        sound += 1
    assert answer.words[:sound] == [name for name, _ in made][:sound]
    outer = {record_id(number)[1:-1] for number in [*range(len(made) - 1), 99]}
    assert {capture.record_id for capture in answer.captures} <= outer


@SMALL
@given(st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    for start in (b"\x28\xb5\x2f\xfd", b"\x5d\x2a\x4d\x18", b"\x50\x2a\x4d\x18\0\0\0\0"):
        assert ask(SCRATCH / "t.warc.zst", start + data).captures == []


@SMALL
@given(st.binary(max_size=2000), st.integers(-5, 19), st.booleans(), st.booleans())
def test_frame_headers_and_ends(data: bytes, level: int, size: bool, checksum: bool) -> None:
    for dictionary in (b"", ONE):
        frame = zst(data, dictionary, level=level, size=size, checksum=checksum)
        header, peer = frame_header(frame), zstandard.get_frame_parameters(frame)
        assert header is not None
        assert (header.window, header.dictionary) == (peer.window_size, peer.dict_id)
        assert (header.size, header.checksum) == (zstandard.frame_header_size(frame), checksum)
        path = SCRATCH / "one"
        path.write_bytes(b"xx" + frame + b"more than a header is long")
        with closing(open_window("one", path)) as opened:
            assert frame_end(opened, 2) == 2 + len(frame)
        path.write_bytes(b"xx" + frame[:-1])
        with closing(open_window("one", path)) as opened:
            assert frame_end(opened, 2) > opened.size


def test_frames_of_a_record_are_read_once() -> None:
    """Not with all that follows them, which takes minutes if a record has many."""
    fed = 0

    class Counting(Dictionaries):
        def decompressor(self, header: FrameHeader) -> ZstdDecompressor:
            sound = super().decompressor(header)

            class Decompressor:
                eof, needs_input, unused_data = True, True, b""

                def decompress(self, data: memoryview, most: int) -> bytes:
                    nonlocal fed
                    fed += len(data)
                    return sound.decompress(data, most)

            return Decompressor()  # type: ignore[return-value]

    frames = b"".join(zst(bytes([byte])) for byte in A) + zst(B)
    found = unpack(frames, Counting(), 1 << 20, WarcFraming().record_length)
    assert found is not None and found.data == A
    assert fed <= len(frames)


def test_unpack() -> None:
    length = WarcFraming().record_length
    none = Dictionaries()
    frames = zst(A[:100]) + skippable(b"x") + zst(A[100:])
    most = 1 << 20
    assert unpack(frames + zst(B), none, most, length) == (A, len(frames))
    assert unpack(frames, none, most, length) == (A, len(frames))
    assert unpack(zst(A) + zst(B), none, most, length) == (A, len(zst(A)))
    cut = response(b"x", Content_Length=b"600")
    assert unpack(zst(cut) + zst(B) * 3, none, most, length) == (cut, len(zst(cut)))
    for stop in range(len(frames)):
        assert unpack(frames[:stop], none, most, length) is None
    assert unpack(frames, none, len(A) - 1, length) is None
    with pytest.raises(UnreadableFrame, match="is damaged"):
        unpack(flipped(frames, 20), none, most, length)
    with pytest.raises(UnreadableFrame, match="need the zstd dictionary 70001"):
        unpack(zst(A, ONE), none, most, length)
    own = Dictionaries(parse_dictionary(ONE))
    assert unpack(zst(A, ONE), own, most, length) == (A, len(zst(A, ONE)))


def test_content_start() -> None:
    def start(data: bytes, most: int = 1000) -> bytes:
        return content_start(lambda offset, count: data[offset : offset + count], most)

    head = dictionary_frame(ONE, compressed=True) + skippable(b"x") + zst(b"")
    assert start(head + zst(A, ONE), 20) == A[:20]
    assert start(head + zst(A[:7], ONE) + zst(A[7:], ONE) + b"garbage") == A
    assert start(flipped(zst(A), 40)) == b""
    assert start(zst(bytes(1 << 26)), 10) == bytes(10)
    with pytest.raises(UnreadableFrame):
        start(zst(A, ONE))


def test_a_cut_header_is_not_joined_with_the_next_one(path: Path) -> None:
    for cut in (10, 40, 200):
        answer = ask(path, zst(A) + zst(B[:cut]) + zst(C))
        assert answer.words == BAD
        assert answer.captures[1].record_id == record_id(3)[1:-1]


@pytest.mark.parametrize("end", [b"", b"\r\n", b"\n\n", b"\r\n" * 3, b"\r\n" * 999])
@pytest.mark.parametrize("cut", [20, 150, -5])
def test_line_ends_after_records_in_several_frames(path: Path, end: bytes, cut: int) -> None:
    text = response(b"second payload", number=2, end=end)
    stop = cut % len(text.rstrip(b"\r\n"))
    answer = ask(path, zst(A) + zst(text[:stop]) + zst(text[stop:]) + zst(C))
    assert answer.words == GOOD and sum(answer.source.remarks.values()) == 1
    data = b"\r\n" + text
    answer = ask(path, zst(A) + zst(data[:stop]) + zst(data[stop:]) + zst(C))
    assert answer.words == GOOD
