"""`bin/convert --to`: the same records in gzip members or zstd frames, whole or not at all."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import pytest
import zstandard
from fastwarc.warc import ArchiveIterator
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupindex.errors import DedupError
from dedupindex.post_crawl.convert import conversion
from dedupindex.post_crawl.convert import recompress as module
from dedupindex.post_crawl.convert.conversion import ConvertOutcome, ConvertTask
from dedupindex.post_crawl.convert.recompress import ENDINGS, GZIP, ZSTD, recompress, train
from dedupindex.runtime import atomic_replace as parts
from dedupindex.urlkey import urlkey
from dedupindex.verify.collection import Collection
from dedupindex.warc.window import open_window
from tests.support import paths
from tests.support.budgets import examples
from tests.support.commands import typed
from tests.support.verifying import asked, copy_of, page
from tests.support.warc_cases import gz
from tests.support.zstd_files import (
    EMPTY_FRAME,
    dictionary_frame,
    raw_frame,
    skippable,
    trained,
    write_zst,
    zst,
)
from tests.unit.post_crawl.test_convert import GOOD

KINDS = list(ENDINGS)


def convert(path: Path, kind: str, folder: Path | None = None) -> ConvertOutcome:
    """What becomes of a file; there is nothing but the result."""
    target = (folder or path.parent / "out") / f"t{ENDINGS[kind]}"
    existed = target.exists()
    outcome = recompress(ConvertTask(str(path), target, kind=kind, name=path.name))
    assert [one for one in path.parent.rglob(".*") if one.is_file()] == []
    assert existed or target.exists() == (outcome.state == "converted")
    assert (outcome.state == "left_alone") == bool(outcome.problem)
    return outcome


def content(path: Path) -> bytes:
    """What a file holds, decompressed by other code than ours: records end to end."""
    data = path.read_bytes()
    if data.startswith(b"\x1f\x8b"):
        return gzip.decompress(data)
    return b"".join(frame.content for frame in frames(data))


class Frame(NamedTuple):
    offset: int
    content: bytes
    parameters: zstandard.FrameParameters


def frames(data: bytes) -> list[Frame]:
    """All frames, decompressed as the draft specification says."""
    dictionary, at = None, 0
    if data.startswith(b"\x5d\x2a\x4d\x18"):
        at = 8 + int.from_bytes(data[4:8], "little")
        dictionary = zstandard.ZstdCompressionDict(zstandard.decompress(data[8:at]))
    found = []
    while at < len(data):
        stream = zstandard.ZstdDecompressor(dict_data=dictionary).decompressobj()
        text = stream.decompress(data[at:])
        assert stream.eof
        found.append(Frame(at, text, zstandard.get_frame_parameters(data[at : at + 18])))
        at = len(data) - len(stream.unused_data)
    return found


def harvest(count: int = 300) -> list[bytes]:
    """Pages that are much alike, their requests, and a few revisits."""
    choice = random.Random(5)
    found = []
    for number in range(1, count + 1):
        body = b"<html><p>" + choice.randbytes(40).hex().encode() + b"</html>"
        found += [page(number % 28 + 1, body), asked(number % 28 + 1)]
    return [*found, copy_of(2, 1)]


def plain(path: Path, records: Iterable[bytes]) -> Path:
    path.write_bytes(b"".join(records))
    return path


@pytest.mark.parametrize("pack", [gz, zst, bytes], ids=["gzip", "zstd", "plain"])
def test_a_file_is_compressed_anew(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    records = harvest()
    source = plain(tmp_path / "t.warc", map(pack, records))
    outcome = convert(source, ZSTD)
    assert (outcome.state, outcome.records) == ("converted", 601)
    path = tmp_path / "out" / "t.warc.zst"
    assert [frame.content for frame in frames(path.read_bytes())] == records
    again = convert(path, GZIP, tmp_path / "again")
    assert (again.state, again.records) == ("converted", 601)
    made = tmp_path / "again" / "t.warc.gz"
    with open(made, "rb") as stream:
        assert len(list(ArchiveIterator(stream, parse_http=False))) == 601
    assert content(made) == b"".join(records)
    assert path.stat().st_size < made.stat().st_size < len(b"".join(records))


def test_frames_are_what_the_draft_specification_demands(tmp_path: Path) -> None:
    convert(plain(tmp_path / "t.warc", harvest()), ZSTD)
    path = tmp_path / "out" / "t.warc.zst"
    data = path.read_bytes()
    assert data.startswith(b"\x5d\x2a\x4d\x18") and data[8:12] == b"\x28\xb5\x2f\xfd"
    own = zstandard.get_frame_parameters(data[8:26])
    assert own.has_checksum and own.content_size < 1 << 23
    ids = set()
    for frame in frames(data):
        assert frame.parameters.content_size == len(frame.content)
        assert frame.parameters.has_checksum and frame.parameters.window_size <= 8 << 20
        ids.add(frame.parameters.dict_id)
    (number,) = ids
    assert 32_768 <= number < 1 << 31
    before, after = (
        [(one.reason, one.record_id) for one in Collection([file]).findings()]
        for file in (tmp_path / "t.warc", path)
    )
    assert before == after
    with open(path, "rb") as stream:
        assert len(list(ArchiveIterator(stream, parse_http=False))) == 601


def dictionary_of(path: Path) -> bytes:
    """The frame with the dictionary that a file gets, empty if it gets none."""
    window = open_window(path.name, path)
    try:
        return train(window).frame()
    finally:
        window.close()


def test_a_dictionary_is_trained_only_where_it_pays(tmp_path: Path) -> None:
    few = plain(tmp_path / "few.warc", harvest(3))
    assert dictionary_of(few) == b""
    assert dictionary_of(plain(tmp_path / "one.warc", [page(1)])) == b""
    choice = random.Random(1)
    large = [page(number, choice.randbytes(90_000)) for number in range(1, 12)]
    assert dictionary_of(plain(tmp_path / "large.warc", large)) == b""
    many = plain(tmp_path / "many.warc", harvest())
    assert len(dictionary_of(many)) > 100 and dictionary_of(many) == dictionary_of(many)
    convert(few, ZSTD)
    assert (tmp_path / "out" / "t.warc.zst").read_bytes().startswith(b"\x28\xb5\x2f\xfd")


RECORDS = [page(1), asked(1), copy_of(2, 1), page(3, b""), page(4, bytes(range(256)) * 900)]
packed = st.sampled_from(
    [gz, lambda data: gz(data, 0), lambda data: gz(data[:-4] + b"\r\n\r\n"),
     lambda data: gz(b"") + gz(data)]
)  # fmt: skip
framed = st.sampled_from(
    [zst, raw_frame, lambda data: zst(data, checksum=False, size=False),
     lambda data: EMPTY_FRAME + zst(data), lambda data: skippable(b"x", 3) + zst(data),
     lambda data: zst(data[:-50]) + zst(data[-50:]), lambda data: zst(data, level=19)]
)  # fmt: skip


@settings(max_examples=examples(80))
@given(
    st.lists(st.sampled_from(RECORDS), min_size=1, max_size=6),
    st.sampled_from(["gzip", "zstd", "dictionary", "plain", "shared"]),
    st.data(),
)
def test_any_framing_is_read_and_the_records_stay(
    tmp_path_factory: pytest.TempPathFactory,
    records: list[bytes],
    form: str,
    choice: st.DataObject,
) -> None:
    folder = tmp_path_factory.mktemp("property")
    source = folder / "t.warc"
    if form == "dictionary":
        write_zst(source, records, trained())
    elif form == "shared":
        source.write_bytes(choice.draw(st.sampled_from([gz, zst]))(b"".join(records)))
    elif form == "plain":
        plain(source, records)
    else:
        pack = packed if form == "gzip" else framed
        first = gz if form == "gzip" else zst  # a skippable frame may not be the first
        plain(source, [first(records[0]), *(choice.draw(pack)(one) for one in records[1:])])
    kinds = choice.draw(st.permutations(KINDS))
    path = source
    for number, kind in enumerate([*kinds, kinds[0]]):
        outcome = convert(path, kind, folder / str(number))
        assert (outcome.problem, outcome.records) == ("", len(records))
        path = folder / str(number) / f"t{ENDINGS[kind]}"
        assert content(path) == b"".join(records)


DAMAGED = {
    "cut gzip": gz(page(1)) + gz(page(2))[:-5],
    "cut zstd": zst(page(1)) + zst(page(2))[:-5],
    "cut record": page(1) + page(2)[:-300],
    "garbage": zst(page(1)) + b"garbage" + zst(page(2)),
    "no dictionary": zst(page(1), trained()),
    "another dictionary": dictionary_frame(trained(5)) + zst(page(1), trained()),
    "a wrong length": gz(page(1, Content_Length=b"99999")),
    "zeros": gz(page(1)) + bytes(512),
    "no record": gz(b""),
    "nothing": b"",
    "a text": b"text",
    "an ARC file": GOOD,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", list(DAMAGED))
def test_damaged_files_are_left_alone(case: str, kind: str, tmp_path: Path) -> None:
    source = tmp_path / "t.warc"
    source.write_bytes(DAMAGED[case])
    assert convert(source, kind).state == "left_alone"


@pytest.mark.parametrize("pack", [gz, zst], ids=["gzip", "zstd"])
def test_any_flip_is_noticed_or_changes_no_record(
    pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    records = [page(1), asked(1), copy_of(2, 1)]
    data, source = b"".join(map(pack, records)), tmp_path / "t.warc"

    @settings(max_examples=examples(120))
    @given(st.integers(0, len(data) - 1), st.integers(0, 7))
    def flip(at: int, bit: int) -> None:
        hurt = bytearray(data)
        hurt[at] ^= 1 << bit
        source.write_bytes(hurt)
        outcome = convert(source, ZSTD)
        made = tmp_path / "out" / "t.warc.zst"
        if outcome.state == "converted":
            assert content(made) == b"".join(records), (at, bit)
            made.unlink()

    flip()


def _wrong(writer: type[module._Writer], change: Callable[[bytes], bytes]) -> Callable[..., None]:
    real = writer.write

    def write(self: module._Writer, pieces: Iterable[bytes], length: int) -> None:
        data = change(b"".join(map(bytes, pieces)))
        real(self, [data], len(data))

    return write


WRONG: dict[str, Callable[[bytes], bytes]] = {
    "a record lost": lambda data: b"" if b"revisit" in data else data,
    "a record twice": lambda data: data * 2 if b"revisit" in data else data,
    "a byte of a block": lambda data: data.replace(b"<html>", b"<hTml>"),
    "a byte of a header": lambda data: data.replace(b"WARC-Date", b"WARC-date"),
    "a version": lambda data: data.replace(b"WARC/1.0\r\n", b"warc/1.0\r\n"),
    "a line end": lambda data: data.replace(b"\r\nWARC-Date", b"\nWARC-Date"),
    "another order": lambda data: data.replace(b"\r\n\r\n", b"\r\nX: y\r\n\r\n", 1),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", list(WRONG))
def test_a_wrong_writer_is_noticed(
    case: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = plain(tmp_path / "t.warc", [page(1), copy_of(2, 1), page(3)])
    writer = module._WRITERS[kind]
    monkeypatch.setattr(writer, "write", _wrong(writer, WRONG[case]))
    assert convert(source, kind).state == "left_alone"


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = plain(tmp_path / "t.warc", harvest(5))
    for names in (("fsync",), ("link", "replace")):
        with monkeypatch.context() as patched:
            for name in names:
                patched.setattr(f"os.{name}", _full)
            with pytest.raises(OSError, match="No space"):
                recompress(ConvertTask(str(source), tmp_path / "out" / "t.warc.gz", kind=GZIP))
        assert list((tmp_path / "out").iterdir()) == []


def _full(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_what_a_killed_run_left_is_removed(tmp_path: Path) -> None:
    """Also where the run had already given the file its name."""
    source = plain(tmp_path / "t.warc", harvest(5))
    (tmp_path / "out").mkdir()
    for state in ("converted", "existing"):
        (tmp_path / "out" / ".t.warc.gz.0123456789ab.part").write_bytes(gz(page(1)))
        assert convert(source, GZIP).state == state


def test_no_existing_file_is_replaced(tmp_path: Path) -> None:
    source = plain(tmp_path / "t.warc", harvest(5))
    assert convert(source, GZIP).state == "converted"
    made = tmp_path / "out" / "t.warc.gz"
    before = made.read_bytes()
    assert convert(source, GZIP).state == "existing"
    for other in (before[:-4], before[: len(gz(page(1)))], gz(page(9)), b""):
        made.write_bytes(other)
        outcome = convert(source, GZIP)
        assert outcome.state == "left_alone" and "exists already" in outcome.problem
        assert made.read_bytes() == other


def test_a_file_created_or_changed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_file = parts.create_file
    source = plain(tmp_path / "t.warc", harvest(5))
    task = ConvertTask(str(source), tmp_path / "out" / "t.warc.gz", kind=GZIP)

    def late(part: Path, file: parts.BinaryIO, path: Path) -> None:
        path.write_bytes(b"of another process")
        create_file(part, file, path)

    def replaced(part: Path, file: parts.BinaryIO, path: Path) -> None:
        part.unlink()
        part.write_bytes(b"something else")
        create_file(part, file, path)

    with monkeypatch.context() as patched:
        patched.setattr(conversion, "create_file", replaced)
        with pytest.raises(DedupError, match="was replaced by another process"):
            recompress(task)
    assert list((tmp_path / "out").iterdir()) == []
    with monkeypatch.context() as patched:
        patched.setattr(conversion, "create_file", late)
        assert "was created by another process" in recompress(task).problem
    task.target.unlink()
    compare = module.compare

    def touched(task: ConvertTask, path: Path) -> int:
        os.utime(source)
        return compare(task, path)

    monkeypatch.setattr(module, "compare", touched)
    assert "was changed while it was read" in recompress(task).problem
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_larger_than_memory_takes_little(kind: str, tmp_path: Path) -> None:
    source = plain(tmp_path / "t.warc", [page(1, bytes(64 << 20)), *harvest(20)])
    tracemalloc.start()
    assert convert(source, kind).state == "converted"
    assert tracemalloc.get_traced_memory()[1] < 24 << 20
    tracemalloc.stop()


def test_each_file_is_in_one_count(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    plain(folder / "whole.warc", [page(1)])
    plain(folder / "cut.warc.gz", [gz(page(1))[:-3]])
    plain(folder / "x.arc", [GOOD])
    (folder / "odd.warc.zst").write_bytes(zst(page(2), trained()))  # its dictionary is elsewhere
    report, talk = typed("convert", "--to", "zstd", folder, "--out", tmp_path / "out", "--json",
                         status=7)  # fmt: skip
    counts = json.loads(report)
    assert (counts["converted"], counts["left_alone"], counts["skipped"]) == (1, 2, 1)
    assert counts["bytes_before"] == (folder / "whole.warc").stat().st_size
    assert "odd.warc.zst" in talk


def test_the_command_writes_a_map_of_offsets(tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    records = harvest(30)
    (folder / "below").mkdir(parents=True)
    plain(folder / "below" / "a b.warc.gz", map(gz, records))
    plain(folder / "c.warc", records)
    plain(folder / "shared.warc.gz", [gz(records[0] + records[1]), gz(records[2])])
    plain(folder / "cut.warc.gz", [gz(page(1))[:-3]])
    plain(folder / "x.arc", [GOOD])
    os.utime(folder / "c.warc", (1, 1))
    words = ["convert", "--to", "zstd", folder, "--out", out, "--json"]
    report, talk = typed(*words, "--offsets", tmp_path / "map", status=7)
    counts = json.loads(report)
    assert (counts["converted"], counts["left_alone"], counts["skipped"]) == (3, 1, 1)
    assert counts["records"] == 2 * len(records) + 3
    assert "cut.warc.gz was left alone" in talk
    made = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert made == {"below/a b.warc.zst", "c.warc.zst", "shared.warc.zst"}
    assert (out / "c.warc.zst").stat().st_mtime == 1
    header, *lines = (tmp_path / "map").read_text().splitlines()
    assert header == "file\toffset\tbytes\tnew_offset\tnew_bytes"
    assert len(lines) == 2 * len(records) + 2
    for line in lines:
        name, *numbers = line.split("\t")
        offset, size, new_offset, new_size = map(int, numbers)
        old = (folder / name).read_bytes()[offset : offset + size]
        path = (out / name.removesuffix(".gz")).with_suffix(".warc.zst")
        if name.startswith("shared"):
            path = out / "shared.warc.zst"
        text = gzip.decompress(old) if name.endswith(".gz") else old
        data = path.read_bytes()
        (one,) = [frame for frame in frames(data) if frame.offset == new_offset]
        ends = [frame.offset for frame in frames(data) if frame.offset > new_offset]
        assert new_offset + new_size == (ends[0] if ends else len(data))
        assert text.startswith(one.content)
        assert text == one.content or name.startswith("shared")
    report, _ = typed(*words, "--offsets", tmp_path / "again", "--jobs", 1, status=7)
    assert json.loads(report)["existing"] == 3
    assert (tmp_path / "again").read_bytes() == (tmp_path / "map").read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_the_command_writes_a_cdxj(kind: str, tmp_path: Path) -> None:
    """Of all captures in the new files, revisits too, at places where their records are."""
    folder, out, index = tmp_path / "in", tmp_path / "out", tmp_path / "new.cdxj"
    (folder / "below").mkdir(parents=True)
    pack = gz if kind == ZSTD else zst
    plain(folder / "below" / "a.warc", map(pack, harvest(20)))
    plain(
        folder / "b.warc", [page(3), page(4, b"", head=b"HTTP/1.1 404 No\r\n\r\n"), copy_of(9, 3)]
    )
    plain(folder / "cut.warc.gz", [zst(page(5))[:-3]])
    words = ["convert", "--to", kind, folder, "--out", out, "--cdxj", index]
    typed(*words, status=7)
    lines = index.read_bytes().splitlines(keepends=True)
    assert lines == sorted(lines) and len(lines) == 21 + 3
    seen = Counter[str]()
    for line in lines:
        key, timestamp, row = line.decode().split(" ", 2)
        capture = json.loads(row)
        at, length = int(capture["offset"]), int(capture["length"])
        path = out / capture["filename"]
        (tmp_path / "one").write_bytes(_with_dictionary(path, at, length))
        text = content(tmp_path / "one")
        assert b"\r\nWARC-Target-URI: %b\r\n" % capture["url"].encode() in text
        assert capture["digest"].encode() in text
        assert key == urlkey(capture["url"].encode()).decode()
        date = text.partition(b"\r\nWARC-Date: ")[2].partition(b"\r\n")[0]
        assert timestamp == re.sub(r"\D", "", date.decode()) and len(timestamp) == 14
        is_revisit = b"\r\nWARC-Type: revisit\r\n" in text
        assert (capture["mime"] == "warc/revisit") == is_revisit
        seen["revisit" if is_revisit else capture["status"]] += 1
        seen[capture["filename"]] += 1
    ending = ENDINGS[kind]
    assert seen == {
        "200": 21, "404": 1, "revisit": 2, f"below/a{ending}": 21, f"b{ending}": 3,
    }  # fmt: skip
    before = index.read_bytes()
    typed(*words, status=7)
    assert index.read_bytes() == before


def _with_dictionary(path: Path, offset: int, length: int) -> bytes:
    """The bytes of a record, after the frame with the dictionary of its file if it has one."""
    data, end = path.read_bytes(), 0
    if data.startswith(b"\x5d\x2a\x4d\x18"):
        end = 8 + int.from_bytes(data[4:8], "little")
    return data[:end] + data[offset : offset + length]


def test_a_cdxj_of_converted_arc_files(tmp_path: Path) -> None:
    plain(tmp_path / "a.arc", [GOOD])
    out, index = tmp_path / "out", tmp_path / "new.cdxj"
    typed("convert", tmp_path / "a.arc", "--out", out, "--cdxj", index)
    rows = [json.loads(line.split(b" ", 2)[2]) for line in index.read_bytes().splitlines()]
    assert rows and {row["filename"] for row in rows} == {"a.warc"}
    data = (out / "a.warc").read_bytes()
    for row in rows:
        at = int(row["offset"])
        text = data[at : at + int(row["length"])]
        assert text.startswith(b"WARC/1.0\r\n") and text.endswith(b"\r\n\r\n")
        assert row["url"].encode() in text


def test_the_command_reads_what_wget_at_wrote(tmp_path: Path) -> None:
    """Also with a dictionary that only another file has."""
    folder, gzipped = paths.DATA / "wget-at", tmp_path / "gzip"
    words = ["convert", "--to", "gzip", folder, "--out", gzipped, "--json"]
    report, talk = typed(*words, status=7)
    assert json.loads(report)["converted"] == 3
    assert "b3-dict-external.warc.zst" in talk and "10944513" in talk
    report, _ = typed(*words, "--zstd-dictionary", folder / "dict.zstdict")
    assert (json.loads(report)["converted"], json.loads(report)["existing"]) == (1, 3)
    assert json.loads(report)["records"] == 3 * 501 + 7
    again, last = tmp_path / "zstd", tmp_path / "last"
    typed("convert", "--to", "zstd", gzipped, "--out", again)
    typed("convert", "--to", "gzip", again, "--out", last)
    for path in sorted(gzipped.iterdir()):
        assert (last / path.name).read_bytes() == path.read_bytes()
        with open(path, "rb") as stream:
            count = len(list(ArchiveIterator(stream, parse_http=False)))
        assert count == (7 if path.name.startswith("n-gz") else 501)
    with open(folder / "b-dict.warc.zst", "rb") as stream:
        theirs = [(r.record_id, r.reader.read()) for r in ArchiveIterator(stream, parse_http=False)]
    with open(again / "b-dict.warc.zst", "rb") as stream:
        ours = [(r.record_id, r.reader.read()) for r in ArchiveIterator(stream, parse_http=False)]
    assert theirs == ours


def test_the_command_refuses_what_has_no_effect(tmp_path: Path) -> None:
    plain(tmp_path / "a.warc", [page(1)])
    out = tmp_path / "out"
    for words in (
        ("--to", "gzip", "--back"),
        ("--to", "zstd", "--content-only"),
        ("--offsets", tmp_path / "map"),
        ("--cdxj", tmp_path / "new.cdxj", "--back"),
        ("--to", "bzip2"),
    ):
        typed("convert", *words, tmp_path, "--out", out, status=2)
    (tmp_path / "in").mkdir()
    plain(tmp_path / "in" / "b.warc.gz", [gz(page(1))])
    _, talk = typed("convert", "--to", "gzip", tmp_path / "in", "--out", out, status=4)
    assert "no plain or zstd WARC file to convert" in talk
    plain(tmp_path / "in" / "b.warc", [page(1)])
    _, talk = typed("convert", "--to", "zstd", tmp_path / "in", "--out", out, status=4)
    assert "would both become" in talk and not out.exists()
    for option in ("--offsets", "--cdxj"):
        words = ("convert", "--to", "zstd", tmp_path / "a.warc", "--out", out, option)
        _, talk = typed(*words, tmp_path / "nowhere" / "file", status=2)
        assert "its directory does not exist" in talk
        _, talk = typed(*words, tmp_path / "a.warc", status=4)
        assert "is not overwritten" in talk
    assert not out.exists() and (tmp_path / "a.warc").read_bytes() == page(1)


def test_a_revisit_still_finds_its_original(tmp_path: Path) -> None:
    source = plain(tmp_path / "t.warc", [page(1), copy_of(2, 1)])
    for kind in KINDS:
        convert(source, kind)
        path = tmp_path / "out" / f"t{ENDINGS[kind]}"
        assert list(Collection([path]).findings()) == []
