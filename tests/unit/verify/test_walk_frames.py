"""`bin/verify` over `.warc.zst` files: every byte is in a frame, or there is a finding."""

from __future__ import annotations

import json
import tracemalloc
from collections import Counter
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupindex.verify.collection import Collection
from dedupindex.verify.file_bytes import opened
from dedupindex.verify.issues import DAMAGE, LOSS, REASONS, Broken, Finding
from dedupindex.verify.walk_file import Container
from dedupindex.verify.walk_frames import VARIABLE, ZstdFrames
from tests.support.budgets import examples
from tests.support.commands import typed
from tests.support.paths import DATA
from tests.support.verifying import BODY, asked, compared, copy_of, page, reasons
from tests.support.warc_cases import HTTP
from tests.support.zstd_files import (
    EMPTY_FRAME,
    dictionary_frame,
    raw_frame,
    skippable,
    trained,
    with_window,
    write_zst,
    zst,
)
from tests.unit.verify.test_compare_files import CHANGED, harvest
from tests.unit.verify.test_verify import RIGHT
from tests.unit.warc.test_arc import document as arc_document
from tests.unit.warc.test_arc import header as arc_header

WORDS = trained()
WGET_AT = DATA / "wget-at"


def found(tmp_path: Path, data: bytes, name: str = "made.warc.zst") -> list[tuple[str, int]]:
    """The reasons and offsets of findings in a file."""
    (tmp_path / name).write_bytes(data)
    return [(one.reason, one.offset) for one in Collection([tmp_path / name]).findings()]


def blocks(path: Path) -> list[bytes]:
    """Headers and blocks of the records that are read whole."""
    found = []
    with opened(path) as file:
        for item in Container(file).each():
            if not isinstance(item, Finding):
                try:
                    found.append(b"".join([*item.head.lines, *item.pieces()]))
                except Broken:
                    continue
    return found


@pytest.mark.parametrize("words", [b"", WORDS], ids=["alone", "dictionary"])
@pytest.mark.parametrize("name", list(RIGHT))
def test_correct_archives_have_no_findings(name: str, words: bytes, tmp_path: Path) -> None:
    path = write_zst(tmp_path / "made.warc.zst", RIGHT[name], words)
    assert list(Collection([path]).findings()) == []


def test_the_kind_is_seen_by_content(tmp_path: Path) -> None:
    assert found(tmp_path, zst(page(1)), "odd-name") == []
    assert found(tmp_path, dictionary_frame(WORDS) + zst(page(1), WORDS), "odd-name") == []
    assert found(tmp_path, zst(b"a text"), "text.zst") == [("unreadable", 0)]
    assert found(tmp_path, b"\x28\xb5\x2f\xfd zstd") == [("damaged-member", 0)]


ONE, TWO = zst(page(1)), zst(page(2))
SECOND = len(ONE)
FRAMES: dict[str, tuple[bytes, list[tuple[str, int]]]] = {
    "skippable frames": (ONE + skippable(b"x" * 99) + skippable(b"", 15) + TWO, []),
    "a frame cut": (ONE + TWO[:-9], [("damaged-member", SECOND)]),
    "a header cut": (ONE + TWO[:6], [("damaged-member", SECOND)]),
    "a checksum cut": (ONE + TWO[:-1], [("damaged-member", SECOND)]),
    "a skippable frame cut": (ONE + skippable(b"x" * 99)[:-1], [("damaged-member", SECOND)]),
    "an empty frame": (ONE + EMPTY_FRAME + TWO, [("not-exact", SECOND)]),
    "a shared frame": (zst(page(1) + page(2)), [("not-exact", 0)]),
    "trailing bytes": (ONE + b"\0" * 9, [("not-a-member", SECOND)]),
    "bytes between frames": (ONE + b"garbage" + TWO, [("not-a-member", SECOND)]),
    "no record": (ONE + zst(b"text"), [("bad-header", SECOND)]),
    "no content size": (ONE + zst(page(2), size=False), [("no-content-size", SECOND)]),
    "no checksum": (ONE + zst(page(2), checksum=False), [("no-checksum", SECOND)]),
    "a large window": (
        ONE + with_window(page(2), 25),
        [("no-content-size", SECOND), ("large-window", SECOND)],
    ),
    "a window too large": (ONE + with_window(page(2), 28), [("damaged-member", SECOND)]),
    "a skippable frame first": (skippable(b"x") + ONE, [("not-exact", 0)]),
    "a dictionary in the middle": (ONE + dictionary_frame(WORDS) + TWO, [("not-exact", SECOND)]),
    "no dictionary": (
        ONE + zst(page(2), WORDS) + zst(page(3), WORDS) + zst(page(4)),
        [("no-dictionary", SECOND)],
    ),
    "another dictionary": (
        dictionary_frame(trained(5)) + zst(page(1), WORDS),
        [("no-dictionary", len(dictionary_frame(trained(5))))],
    ),
    "no dictionary in the dictionary frame": (
        skippable(b"text", 13) + ONE,
        [("damaged-member", 0)],
    ),
    "a dictionary cut": (
        skippable(WORDS[:99], 13) + zst(page(1), WORDS),
        [("damaged-member", 0), ("no-dictionary", 107)],
    ),
    "bytes behind a dictionary": (
        skippable(zst(WORDS) + b"x", 13) + ONE,
        [("damaged-member", 0)],
    ),
    "a bomb for a dictionary": (
        skippable(zst(bytes(64 << 20)), 13) + ONE,
        [("damaged-member", 0)],
    ),
    "the next record in a block": (
        zst(page(1, Content_Length=b"9999")) + TWO,
        [("misframed", 0)],
    ),
    "a block in two frames": (zst(page(1)[:-400]) + zst(page(1)[-400:]) + TWO, [("not-exact", 0)]),
    "a header in two frames": (zst(page(1)[:40]) + zst(page(1)[40:]) + TWO, [("not-exact", 0)]),
    "line ends in two frames": (zst(page(1)[:-3]) + zst(page(1)[-3:]) + TWO, [("not-exact", 0)]),
    "frames apart": (
        zst(page(1)[:-400]) + skippable(b"x") + zst(page(1)[-400:]) + TWO,
        [("not-exact", 0)],
    ),
    "a version line in three frames": (
        zst(page(1)[:2]) + zst(page(1)[2:6]) + zst(page(1)[6:]) + TWO,
        [("not-exact", 0)],
    ),
    "an empty frame in a header and in a block": (
        EMPTY_FRAME.join(map(zst, (page(1)[:40], page(1)[40:-400], page(1)[-400:]))) + TWO,
        [("not-exact", 0)],
    ),
    "zeros twice, and damage": (
        ONE + bytes(2) + TWO + bytes(3) + zst(page(3)) + TWO[:9],
        [
            ("not-a-member", SECOND),
            ("not-a-member", SECOND + 2 + len(TWO)),
            ("damaged-member", SECOND + 5 + len(TWO + zst(page(3)))),
        ],
    ),
    "half a record": (
        zst(page(1)[:-400]) + TWO,
        [("misframed", 0)],
    ),
    "half a record, and bytes": (
        zst(page(1)[:-400]) + zst(b"x" * 99) + TWO,
        [("misframed", 0), ("bad-header", len(zst(page(1)[:-400])))],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", list(FRAMES))
def test_frames(case: str, tmp_path: Path) -> None:
    data, expected = FRAMES[case]
    assert found(tmp_path, data) == expected


@pytest.mark.parametrize("how", ["flipped", "cut", "a block"])
def test_damage_behind_the_beginning_of_a_long_record(how: str, tmp_path: Path) -> None:
    """It is found after data was read, and costs no other record."""
    long = bytearray(zst(page(1, body=Random(1).randbytes(3 << 20))))
    long[{"flipped": -1, "cut": -1, "a block": 2 << 20}[how]] ^= 1
    data = bytes(long) + TWO if how != "cut" else TWO + bytes(long[:-1])
    assert found(tmp_path, data) == [("damaged-member", 0 if how != "cut" else len(TWO))]
    assert len(blocks(tmp_path / "made.warc.zst")) == 1


def test_every_cut_is_found_unless_it_is_between_frames(tmp_path: Path) -> None:
    frames = [dictionary_frame(WORDS), *(zst(page(number), WORDS) for number in (1, 2))]
    data = b"".join(frames)
    between = {sum(map(len, frames[:count])) for count in (2, 3)}
    ends = {0, 2048, 2056, len(data), *between}
    near = {end + more for end in ends for more in range(-12, 22)}
    for size in sorted(near.intersection(range(1, len(data))).union(range(30, len(data), 97))):
        damaged = {reason for reason, _ in found(tmp_path, data[:size])} & DAMAGES
        assert bool(damaged) == (size not in between), size


DAMAGES = {reason for reason, level in REASONS.items() if level == DAMAGE}


@pytest.mark.parametrize("words", [b"", WORDS], ids=["alone", "dictionary"])
def test_any_flip_is_found_or_changes_no_record(words: bytes, tmp_path: Path) -> None:
    path = write_zst(tmp_path / "made.warc.zst", [page(1), asked(1), copy_of(2, 1)], words)
    data, right = path.read_bytes(), blocks(path)
    assert len(right) == 3

    @settings(max_examples=examples(400))
    @given(st.integers(0, len(data) - 1), st.integers(0, 7))
    def flip(at: int, bit: int) -> None:
        hurt = bytearray(data)
        hurt[at] ^= 1 << bit
        path.write_bytes(hurt)
        assert list(Collection([path]).findings()) or blocks(path) == right, (at, bit)

    flip()


def test_records_after_damage_are_read(tmp_path: Path) -> None:
    hurt = bytearray(zst(page(2)))
    hurt[60] ^= 1
    path = tmp_path / "made.warc.zst"
    path.write_bytes(ONE + hurt + zst(page(3)) + zst(copy_of(4, 3)))
    collection = Collection([path])
    damage, revisit = collection.findings()
    assert (damage.reason, damage.offset) == ("damaged-member", SECOND)
    assert revisit.reason == "unusable-original" and "behind damage" in revisit.message
    assert (collection.records, collection.revisits) == (3, 1)


def test_a_damaged_size_near_the_end_is_not_called_a_cut(tmp_path: Path) -> None:
    """Nobody can tell the two apart; both readers say so, and read nothing behind it."""
    hurt = bytearray(TWO)
    size_at = zstandard.frame_header_size(TWO) + 2
    assert hurt[size_at] < 64
    hurt[size_at] |= 1  # of its only block: 8 KiB more
    path = tmp_path / "made.warc.zst"
    path.write_bytes(ONE + hurt + zst(page(3)))
    (finding,) = Collection([path]).findings()
    assert (finding.reason, finding.offset) == ("damaged-member", SECOND)
    assert "the size of one of its blocks is damaged" in finding.message
    report, talk = typed("index", path, tmp_path / "index", "-w", "-m", ".*", "--json", status=7)
    assert json.loads(report)["added"] == 1
    assert f"at {SECOND}" in talk and "the size of a block in it is damaged" in talk


ARC = [arc_header(), *(arc_document(b"<p>%d" % number) for number in range(3))]


def test_offsets_in_an_arc_file_are_those_of_frames(tmp_path: Path) -> None:
    frames = [*map(zst, ARC)]
    starts = [sum(map(len, frames[:number])) for number in range(len(frames) + 1)]
    hurt = bytearray(frames[2])
    hurt[-6] ^= 1
    whole, divided = b"".join(frames), zst(ARC[1][:60]) + zst(ARC[1][60:])
    assert found(tmp_path, whole, "whole.arc.zst") == []
    damaged = b"".join([*frames[:2], hurt, frames[3]])
    assert found(tmp_path, damaged, "hurt.arc.zst") == [("damaged-member", starts[2])]
    cut = found(tmp_path, whole[:-3], "cut.arc.zst")
    assert cut == [("damaged-member", starts[3])]
    joined = frames[0] + divided + frames[2] + bytes(hurt)
    assert found(tmp_path, joined, "divided.arc.zst") == [
        ("not-exact", starts[1]),
        ("damaged-member", starts[1] + len(divided) + len(frames[2])),
    ]


def test_offsets_of_divided_records_are_those_of_their_first_frames(tmp_path: Path) -> None:
    """Also where the damage is in a later frame of the record."""
    parts = [zst(page(2)[:200]), zst(page(2)[200:-300]), zst(page(2)[-300:])]
    hurt = bytearray(parts[1])
    hurt[-6] ^= 1
    data = ONE + parts[0] + hurt + parts[2] + zst(page(3))
    offsets = {at for _, at in found(tmp_path, data)}
    edges = [SECOND, SECOND + len(parts[0]), SECOND + len(parts[0] + parts[1])]
    assert offsets and offsets <= set(edges) and SECOND in offsets
    wrong = page(2).replace(b"WARC-Block-Digest: sha1:", b"WARC-Block-Digest: sha1:A")
    halves = zst(wrong[:200]) + zst(wrong[200:])
    assert {at for _, at in found(tmp_path, ONE + halves + TWO)} == {SECOND}


def test_an_archive_in_a_damaged_payload_is_not_taken_for_records(tmp_path: Path) -> None:
    whole = raw_frame(page(2, zst(page(7)) + zst(page(8)) + bytes(500), head=HTTP))
    last = TWO.replace(b"zzz", b"zzz")
    path = tmp_path / "made.warc.zst"
    hurt = bytearray(whole)
    hurt[4] ^= 8  # the reserved bit of the frame header
    path.write_bytes(ONE + bytes(hurt) + last)
    collection = Collection([path])
    assert [one.reason for one in collection.findings()] == ["damaged-member"]
    assert collection.records == 2
    with opened(path) as file:
        frames = ZstdFrames(file)
        inner = path.read_bytes().index(zst(page(7)))
        assert not frames.certain(inner)
        assert frames.certain(file.size - len(last))


def test_given_dictionaries_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, one, two = (tmp_path / name for name in ("made.warc.zst", "one", "two"))
    data = zst(page(1), WORDS) + zst(page(2), trained(5))
    one.write_bytes(WORDS)
    two.write_bytes(zst(trained(5)))
    second = len(zst(page(1), WORDS))
    for paths, expected in (
        ("", [("no-dictionary", 0), ("no-dictionary", second)]),
        (str(one), [("no-dictionary", second)]),
        (f"{one}:{two}", []),
        (f"{one}:{tmp_path}/none", [("no-dictionary", 0), ("no-dictionary", second)]),
        (f"{path}:{one}:{two}", [("no-dictionary", 0), ("no-dictionary", second)]),
    ):
        monkeypatch.setenv(VARIABLE, paths)
        assert found(tmp_path, data) == expected


def test_archives_that_wget_at_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with a dictionary that only a file beside them has."""
    cut = "payload-digest", 13
    for name in ("b-dict", "b2-dict-plain", "b3-dict-external", "n-gz"):
        collection = Collection([WGET_AT / f"{name}.warc.zst"])
        if name.endswith("external"):
            (one,) = Collection([WGET_AT / f"{name}.warc.zst"]).findings()
            assert one.reason == "no-dictionary" and "501 frames (206,513 bytes)" in one.message
            monkeypatch.setenv(VARIABLE, str(WGET_AT / "dict.zstdict"))
        counts = Counter(finding.reason for finding in collection.findings())
        records = 7 if name == "n-gz" else 501
        expected = {"no-content-size": records, **({} if name == "n-gz" else dict([cut]))}
        assert (collection.records, counts) == (records, expected)


def test_a_record_larger_than_memory_and_a_bomb_take_little(tmp_path: Path) -> None:
    body = bytes(96 << 20)
    path = write_zst(tmp_path / "made.warc.zst", [page(1, body), copy_of(2, 1, body)])
    bomb = zst(bytes(256 << 20))
    path.write_bytes(path.read_bytes() + bomb)
    size = path.stat().st_size
    assert len(bomb) < 1 << 16
    del body
    tracemalloc.start()
    assert [(one.reason, one.offset) for one in Collection([path]).findings()] == [
        ("bad-header", size - len(bomb))
    ]
    assert tracemalloc.get_traced_memory()[1] < 12 << 20
    tracemalloc.stop()


@settings(max_examples=examples(150))
@given(
    st.sampled_from([data for data, _ in FRAMES.values() if len(data) < 1 << 16]),
    st.data(),
)
def test_nothing_makes_it_crash(data: bytes, choice: st.DataObject) -> None:
    at = choice.draw(st.integers(0, len(data)))
    cut = choice.draw(st.integers(0, 20))
    data = data[:at] + choice.draw(st.binary(max_size=20)) + data[at + cut :]
    with TemporaryDirectory() as folder:
        path, same = Path(folder, "made.warc.zst"), Path(folder, "same.warc.zst")
        path.write_bytes(data)
        same.write_bytes(data)
        assert all(finding.level for finding in Collection([path]).findings())
        assert compared(path, same) == []
        same.write_bytes(data[: at // 2] + zst(copy_of(1, 2)) + data[at // 2 + cut :])
        assert compared(path, same) or path.read_bytes() == same.read_bytes()


@settings(max_examples=examples(60))
@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.data())
def test_any_cut_of_records_into_frames_is_read_or_named(
    numbers: list[int], choice: st.DataObject
) -> None:
    """Frames that end anywhere: whatever is read is what the records are."""
    text = b"".join(page(number) for number in numbers)
    cuts = sorted(choice.draw(st.sets(st.integers(1, len(text) - 1), max_size=4)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    with TemporaryDirectory() as folder:
        path = Path(folder, "made.warc.zst")
        right = blocks(write_zst(path, [page(number) for number in numbers]))
        path.write_bytes(b"".join(map(zst, parts)))
        levels = {finding.level for finding in Collection([path]).findings()}
        assert DAMAGE in levels or blocks(path) == right


# --- --against ------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [b"", WORDS], ids=["alone", "dictionary"])
@pytest.mark.parametrize("size", [400, 70_000, 400_000])
def test_a_right_rewrite_passes(size: int, words: bytes, tmp_path: Path) -> None:
    before, after = harvest(size)
    old = write_zst(tmp_path / "old.warc.zst", before, words)
    new = write_zst(tmp_path / "new.warc.zst", after, words)
    assert compared(old, new) == []
    assert new.stat().st_size < old.stat().st_size


@pytest.mark.parametrize("words", [b"", WORDS], ids=["alone", "dictionary"])
@pytest.mark.parametrize("reason", [name for name in CHANGED if CHANGED[name]])
def test_a_wrong_rewrite_is_found(reason: str, words: bytes, tmp_path: Path) -> None:
    for number, case in enumerate(CHANGED[reason]):
        before, after = case()
        old = write_zst(tmp_path / f"{number}/old.warc.zst", before, words)
        new = write_zst(tmp_path / f"{number}/new.warc.zst", after, words)
        expected = "record-missing" if after == [] and words else reason
        assert expected in reasons(compared(old, new)), number


def test_frames_and_dictionary_must_be_kept_as_bytes(tmp_path: Path) -> None:
    old = write_zst(tmp_path / "old.warc.zst", [page(1), page(2)], WORDS)
    new = tmp_path / "new.warc.zst"
    start = dictionary_frame(WORDS, compressed=True)
    new.write_bytes(start + zst(page(1), WORDS) + zst(page(2), WORDS, level=19))
    assert reasons(compared(old, new)) == {"recompressed"}
    new.write_bytes(dictionary_frame(WORDS) + old.read_bytes()[len(start) :])
    assert reasons(compared(old, new)) == {"bytes-changed"}
    new.write_bytes(start + zst(page(1), WORDS) + skippable(b"new") + zst(page(2), WORDS))
    assert reasons(compared(old, new)) == {"bytes-changed"}
    write_zst(new, [page(1), page(2)])
    assert reasons(compared(old, new)) == {"bytes-changed", "recompressed"}


def test_any_flip_of_a_rewritten_file_is_found(tmp_path: Path) -> None:
    before, after = harvest(150)
    old = write_zst(tmp_path / "old.warc.zst", before, WORDS)
    new = write_zst(tmp_path / "new.warc.zst", after, WORDS)
    data, right = new.read_bytes(), blocks(new)

    @settings(max_examples=examples(250))
    @given(st.integers(0, len(data) - 1), st.integers(0, 7))
    def flip(at: int, bit: int) -> None:
        hurt = bytearray(data)
        hurt[at] ^= 1 << bit
        new.write_bytes(hurt)
        assert compared(old, new) or blocks(new) == right, (at, bit)

    flip()


def test_any_record_dropped_doubled_or_moved_is_found(tmp_path: Path) -> None:
    before, after = harvest()
    old = write_zst(tmp_path / "old.warc.zst", before, WORDS)

    @settings(max_examples=examples(80))
    @given(st.sampled_from(["drop", "double", "move"]), st.data())
    def change(how: str, data: st.DataObject) -> None:
        wrong = list(after)
        at = data.draw(st.integers(0, len(wrong) - 1))
        moved = wrong[at]
        if how != "double":
            del wrong[at]
        if how != "drop":
            there = st.integers(0, len(wrong))
            wrong.insert(data.draw(there if how == "double" else there.filter(at.__ne__)), moved)
        new = write_zst(tmp_path / "new.warc.zst", wrong, WORDS)
        findings = compared(old, new)
        assert {"record-missing", "record-extra"} & reasons(findings)
        assert all(finding.level == LOSS for finding in findings if finding.reason in CHANGED)

    change()


def test_an_original_in_a_payload_does_not_count(tmp_path: Path) -> None:
    held = raw_frame(page(5, zst(page(1))))
    old, new = tmp_path / "old.warc.zst", tmp_path / "new.warc.zst"
    old.write_bytes(held + zst(page(2)) + zst(page(3)))
    new.write_bytes(held + zst(copy_of(2, 1)) + zst(page(3)))
    assert reasons(compared(old, new)) == {"original-missing"}
    other = write_zst(tmp_path / "other.warc.zst", [page(1)], WORDS)
    assert compared(old, new, other) == []


def test_damage_of_the_old_file_is_accepted(tmp_path: Path) -> None:
    hurt = bytearray(zst(page(4, BODY * 9)))
    hurt[300] ^= 1
    tail = bytes(hurt) + zst(page(5)) + b"\0" * 99
    old, new = tmp_path / "old.warc.zst", tmp_path / "new.warc.zst"
    old.write_bytes(zst(page(1)) + zst(page(2)) + tail)
    new.write_bytes(zst(page(1)) + zst(copy_of(2, 1)) + tail)
    assert compared(old, new) == []
    new.write_bytes(zst(page(1)) + zst(copy_of(2, 1)) + tail[:-1])
    assert reasons(compared(old, new)) == {"bytes-changed"}


def test_the_command_compares_records_in_other_compression(tmp_path: Path) -> None:
    write_zst(tmp_path / "old" / "a.warc.zst", [page(1), copy_of(2, 1)])
    write_zst(tmp_path / "new" / "a.warc.zst", [page(1), copy_of(2, 1)], WORDS)
    lines, _ = typed("verify", tmp_path / "new", "--json")
    assert json.loads(lines)["records"] == 2
    frames = zstandard.ZstdCompressor(level=9, write_checksum=True)
    again = b"".join(frames.compress(record) for record in (page(1), copy_of(2, 1)))
    (tmp_path / "new" / "a.warc.zst").write_bytes(again)
    typed("verify", "--against", tmp_path / "old", tmp_path / "new", "--records")
