"""WARC files compressed with zstd give everywhere the same results as with gzip."""

from __future__ import annotations

import json
import shlex
import shutil
import zipfile
from pathlib import Path
from random import Random
from typing import Any

import pytest
import zstandard

from dedupindex.post_crawl.plan.index_originals import read_line
from dedupindex.post_crawl.plan.record_reader import RecordReader
from dedupindex.warc.random_access import ExactRecord, NotExact, record_at
from dedupindex.warc.reader import read
from dedupindex.warc.record import Record
from dedupindex.warc.window import open_window
from dedupindex.warc.zstd_format import VARIABLE
from tests.support import paths
from tests.support.commands import typed
from tests.support.manifests import container
from tests.support.stores import web
from tests.support.warc_cases import END, gz, response
from tests.support.zstd_files import dictionary_frame, zst

REAL = paths.DATA / "wget-at"
DICTIONARY = REAL / "dict.zstdict"
FILES = {
    "own": REAL / "b-dict.warc.zst",
    "plain": REAL / "b2-dict-plain.warc.zst",
    "external": REAL / "b3-dict-external.warc.zst",
    "none": REAL / "n-gz.warc.zst",
}
GIVEN = ("--zstd-dictionary", DICTIONARY)
ALL = ("--whitelist", "--mime", ".*")
_OF_THE_FILE = {"container", "filename", "offset", "length", "compressedSize"}


@pytest.fixture(autouse=True)
def no_dictionary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the environment, in which the option is kept for the processes that are started."""
    monkeypatch.setenv(VARIABLE, "")


@pytest.fixture(params=list(FILES))
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    """A real file, and its records as gzip members; beside each other, of one name."""
    return twins(FILES[request.param], tmp_path)


def twins(file: Path, tmp_path: Path) -> tuple[Path, Path]:
    dictionary = zstandard.ZstdCompressionDict(DICTIONARY.read_bytes())
    names = tmp_path / "zstd" / "t.warc", tmp_path / "gzip" / "t.warc"
    for name in names:
        name.parent.mkdir()
    names[0].write_bytes(file.read_bytes())
    unpacker = zstandard.ZstdDecompressor(dict_data=dictionary)
    data, members = file.read_bytes(), b""
    while data:
        if data[4 - 3 : 4] == b"\x2a\x4d\x18":
            data = data[8 + int.from_bytes(data[4:8], "little") :]
        frame = unpacker.decompressobj()
        members += gz(frame.decompress(data))
        data = frame.unused_data
    names[1].write_bytes(members)
    return names


def places(path: Path) -> list[tuple[int, int, bytes]]:
    """Offset, size and bytes of all records, in order."""
    window, found = open_window(path.name, path), []
    for event in read(window):
        if isinstance(event, Record):
            assert event.data is not None
            found.append((event.offset, event.stored, event.data))
    window.close()
    return found


def cleaned(text: str) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
    for line in lines:
        line["record"] = {k: v for k, v in line["record"].items() if k not in _OF_THE_FILE}
    return lines


def extracted(source: Path, out: Path, *options: object) -> list[dict[str, Any]]:
    typed("corpus", source, "--enrich", "string,mime", *options, "-o", out)
    return cleaned(out.read_text())


def test_index_and_corpus(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """The captures of an index are read by their offsets."""
    counts, found = [], []
    for file in pair:
        index = file.parent / "index"
        out, _ = typed("index", *GIVEN, "--json", "--jobs", "2", *ALL, file, index)
        counts.append(
            {
                key: value
                for key, value in json.loads(out).items()
                if key not in ("seconds", "refused_in")
            }
        )
        for number, source in enumerate((file, index)):
            found.append(extracted(source, file.parent / f"{number}.jsonl", *GIVEN))
    assert counts[0] == counts[1] and counts[0]["added"] > 0
    assert found[0] == found[2] and found[1] == found[3]
    assert found[0] and all("error" not in line for lines in found for line in lines)


def test_reports_of_what_is_known(pair: tuple[Path, Path], tmp_path: Path) -> None:
    typed("index", *ALL, FILES["own"], tmp_path / "index")
    reports = []
    for file in pair:
        out, _ = typed("report", *GIVEN, tmp_path / "index", "--against", file, "--json")
        report = json.loads(out)
        reports.append({name: report[name] for name in report if not name.endswith("_ms")})
    assert reports[0] == reports[1] and reports[0]["handled"] > 0


def test_covers(pair: tuple[Path, Path], tmp_path: Path) -> None:
    relation = paths.ROOT / "conf" / "cover" / "journalist.txt"
    found = []
    for file in pair:
        typed("cover", *GIVEN, file, "--relation", relation, "-o", file.parent / "cover.jsonl")
        lines = map(json.loads, (file.parent / "cover.jsonl").read_text().splitlines())
        found.append([(line["id"], line["component"], line["kept"]) for line in lines])
    assert found[0] == found[1] and found[0]


def test_rehearsals(tmp_path: Path) -> None:
    """Every step passes, with original records in one file and their revisits in another."""
    for name, file in FILES.items():
        (tmp_path / "in" / name).mkdir(parents=True)
        shutil.copy(file, tmp_path / "in" / name / "t.warc.zst")
    out, _ = typed("rehearse", *GIVEN, tmp_path / "in", "--work", tmp_path / "work", "--json")
    steps = {step["step"]: step for step in map(json.loads, out.splitlines())}
    assert all(step["sound"] for step in steps.values()), steps
    assert steps["manifest"]["files"] == len(FILES) and steps["dedup"]["revisits"] > 100
    assert steps["commit"]["undone"] == steps["commit"]["committed"] > 0


def test_rows_of_a_cdx_lead_to_records(pair: tuple[Path, Path]) -> None:
    """The CDXJ of a corpus, which has offset and length of each record, is a source of another."""
    found = []
    for file in pair:
        typed("corpus", *GIVEN, file, "-o", file.parent / "t.cdxj")
        rows = (file.parent / "t.cdxj").read_text()
        assert '"length"' in rows
        found.append(extracted(file.parent / "t.cdxj", file.parent / "2.jsonl", *GIVEN))
        once = file.parent / "once.warc.gz"
        status = 0 if file.stat().st_size < 100_000 else 7  # as above
        typed("corpus", *GIVEN, file.parent / "t.cdxj", "-o", once, status=status)
        assert len(places(once)) > len(found[-1]) // 2
    assert found[0] and found[0] == found[1]


def test_manifest_leaves_them_whole(pair: tuple[Path, Path], tmp_path: Path) -> None:
    reports = []
    for file in pair:
        out, _ = typed("manifest", *GIVEN, "--json", "--jobs", "1", file, "-o", file.parent / "m")
        reports.append(json.loads(out))
    for name in ("lines", "records", "problems"):
        assert reports[0][name] == reports[1][name]


@pytest.fixture(params=["own", "plain", "external"])
def harvests(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    """Two harvests of the same pages, the real one and a later one; once zstd, once gzip."""
    zstd, gzip = twins(FILES[request.param], tmp_path)
    words = DICTIONARY.read_bytes()
    start = b"" if request.param == "external" else dictionary_frame(words)
    later = [
        data.replace(b"\r\nWARC-Date: 2026-", b"\r\nWARC-Date: 2027-", 1).replace(
            b"<urn:uuid:", b"<urn:uuid:later-", 1
        )
        + END
        for _, _, data in places(gzip)
    ]
    (zstd.parent / "u.warc").write_bytes(start + b"".join(zst(one, words) for one in later))
    (gzip.parent / "u.warc").write_bytes(b"".join(gz(one) for one in later))
    return zstd.parent, gzip.parent


def test_dedup_rewrites_them(harvests: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames that stay are the same bytes; revisits have the dictionary of the file."""
    monkeypatch.setenv(VARIABLE, str(DICTIONARY))
    reports, results = [], []
    for source in harvests:
        out = source.with_name(f"{source.name}-out")
        text, _ = typed("dedup", *GIVEN, source, "--out", out, "--json")
        reports.append(json.loads(text))
        results.append(out)
        for name in ("t.warc", "u.warc"):
            before, after = places(source / name), places(out / name)
            assert len(before) == len(after)
            old, new = ((folder / name).read_bytes() for folder in (source, out))
            for (offset, stored, data), (offset_2, stored_2, data_2) in zip(
                before, after, strict=True
            ):
                same = old[offset : offset + stored] == new[offset_2 : offset_2 + stored_2]
                assert same == (data == data_2)
                assert same or b"WARC-Type: revisit" in data_2
            assert old[: before[0][0]] == new[: after[0][0]]  # the dictionary
    for name in ("captures", "originals", "revisits", "refused", "files"):
        assert reports[0][name] == reports[1][name], name
    assert reports[0]["revisits"] > 50 and reports[0]["verified"]["findings"] == {}
    for name in ("t.warc", "u.warc"):
        texts = [[data for _, _, data in places(out / name)] for out in results]
        assert texts[0] == texts[1]


def test_rewritten_files_are_restored(harvests: tuple[Path, Path], tmp_path: Path) -> None:
    """Bit for bit while what was dropped is there; then each record."""
    source, kept = harvests[0], tmp_path / "kept"
    shutil.copytree(source, kept)
    typed("dedup", *GIVEN, source, "--in-place", "--work", tmp_path / "work")
    typed("undedup", *GIVEN, source, "--out", tmp_path / "exact")
    typed("rewrite", *GIVEN, tmp_path / "work" / "plan", "--commit")
    typed("undedup", *GIVEN, source, "--out", tmp_path / "records")
    for name in ("t.warc", "u.warc"):
        before = (kept / name).read_bytes()
        assert (source / name).stat().st_size <= len(before)
        assert (tmp_path / "exact" / name).read_bytes() == before
        again = [data for _, _, data in places(tmp_path / "records" / name)]
        assert again == [data for _, _, data in places(kept / name)]
    assert (source / "u.warc").stat().st_size < (kept / "u.warc").stat().st_size


def test_a_missing_dictionary_is_named_once(tmp_path: Path) -> None:
    file = FILES["external"]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x.warc.zst").write_bytes(file.read_bytes())
    words = "its frames need the zstd dictionary 10944513, which is missing (--zstd-dictionary)"
    _, err = typed("index", tmp_path / "in", tmp_path / "index", status=4)  # nothing else to read
    assert err.count(words) == 1
    typed("index", "--empty", tmp_path / "index")
    _, err = typed("index", "--add", tmp_path / "in", tmp_path / "index", status=7)
    assert err.count(words) == 1 and "1 file was not read (zstd)" in err
    _, err = typed("index", file, tmp_path / "other", status=4)
    assert err.count(words) == 1
    for command, *more in (
        ("manifest", "-o", tmp_path / "m"),
        ("corpus", "-o", tmp_path / "c.jsonl"),
    ):
        _, err = typed(command, file, *more, status=4)
        assert words in err
    out, _ = typed("index", *GIVEN, "--add", tmp_path / "in", tmp_path / "index")
    assert "known before: 0" in out and "files read: 1" in out
    out, err = typed("index", "--add", tmp_path / "in", tmp_path / "index")  # it is known now
    assert "known before: 1" in out and words not in err
    out, err = typed("index", "--replace", tmp_path / "in", tmp_path / "index")
    assert "known before: 1" in out and words not in err


def test_within_a_wacz(tmp_path: Path) -> None:
    zstd, gzip = twins(FILES["own"], tmp_path)
    found = []
    for file, name in ((zstd, "t.warc.zst"), (gzip, "t.warc.gz")):
        wacz = file.parent / "t.wacz"
        with zipfile.ZipFile(wacz, "w") as packed:
            packed.write(file, f"archive/{name}")
        index = file.parent / "index"
        typed("index", *ALL, wacz, index)
        found.append(extracted(index, file.parent / "o.jsonl"))
    assert found[0] == found[1] and len(found[0]) > 200
    assert all("error" not in line for line in found[0])


def test_over_http(tmp_path: Path) -> None:
    zstd, _ = twins(FILES["own"], tmp_path)
    zstd.rename(tmp_path / "zstd" / "t.warc.zst")
    with web(tmp_path / "zstd") as server:
        address = f"{server.url}/t.warc.zst"
        index = tmp_path / "index"
        typed("index", *ALL, address, index)
        found = extracted(index, tmp_path / "o.jsonl")
        assert len(found) > 200 and all("error" not in line for line in found)
        out, _ = typed("manifest", "--json", address, "-o", tmp_path / "m")
        assert json.loads(out)["lines"] >= len(found)


def test_subsets(pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """In one file the records are gzip members, in a directory they stay as they are."""
    monkeypatch.setenv(VARIABLE, str(DICTIONARY))
    texts = []
    for file in pair:
        out = file.parent / "one.warc.gz"
        status = 0 if file.stat().st_size < 100_000 else 8  # cut digests are found in the others
        typed("export", *GIVEN, "--self-contained", file, "-o", out, status=status)
        texts.append([data for _, _, data in places(out)])
        typed("export", *GIVEN, "--self-contained", file, "-o", file.parent / "o", status=status)
        kept = places(file.parent / "o" / file.name)
        assert [data for _, _, data in kept] == [data for _, _, data in places(file)]
    assert texts[0] == texts[1] and texts[0]


def test_records_at_their_offsets(pair: tuple[Path, Path], monkeypatch: Any) -> None:
    monkeypatch.setenv(VARIABLE, str(DICTIONARY))
    zstd, gzip = pair
    data = zstd.read_bytes()
    others = [data for _, _, data in places(gzip)]
    found = places(zstd)
    assert [text for _, _, text in found] == others
    with open(zstd, "rb") as file:
        for offset, stored, text in found:
            for length in (stored, -1, stored // 2, stored + 1000):
                at = record_at(lambda at, count: data[at : at + count], offset, length, 1 << 20)
                assert at.record.data == text and at.raw == data[offset : offset + stored]
                assert not at.gzipped
            exact = ExactRecord(file, offset, stored)
            assert exact.data == text + END
            for wrong in (stored - 1, stored + 1):
                with pytest.raises(NotExact):
                    ExactRecord(file, offset, wrong)


def test_reading_for_comparison(pair: tuple[Path, Path], monkeypatch: Any) -> None:
    monkeypatch.setenv(VARIABLE, str(DICTIONARY))
    zstd, _ = pair
    reader, whole = RecordReader(), container(1, zstd.name, str(zstd.parent))
    for offset, stored, text in places(zstd)[:20]:
        body = text[-10:]
        assert b"".join(reader.body(whole, offset, stored, 10)) == body
    assert reader.counts == {"local": min(20, len(places(zstd)))}


def test_originals_of_an_index(pair: tuple[Path, Path], monkeypatch: Any) -> None:
    monkeypatch.setenv(VARIABLE, str(DICTIONARY))
    found = [
        [read_line(str(file), at) for at, _, data in places(file) if b"Type: response" in data]
        for file in pair
    ]
    assert found[0]
    for one, other in zip(*found, strict=True):
        assert one == other._replace(offset=one.offset, stored=one.stored)


@pytest.mark.parametrize("size", [1, 5 << 20, 9 << 20])
def test_exact_records_of_any_size(size: int, tmp_path: Path) -> None:
    """Long ones are streamed; several frames may hold one record."""
    text = response(bytes(range(256)) * (size // 256) + b"x")
    cut = len(text) // 3
    for frames in (zst(text), zst(text[:cut], size=False) + zst(b"") + zst(text[cut:], size=False)):
        path = tmp_path / "x.warc.zst"
        path.write_bytes(zst(response()) + frames + zst(response()))
        with open(path, "rb") as file:
            record = ExactRecord(file, len(zst(response())), len(frames))
            assert record.header + b"".join(record.block()) + END == text


def test_printed_commands_have_the_dictionary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "")  # which the option sets
    (tmp_path / "in").mkdir()
    for name in ("a", "b"):
        shutil.copy(FILES["external"], tmp_path / "in" / f"{name}.warc.zst")
    text, _ = typed("dedup", *GIVEN, tmp_path / "in", "--out", tmp_path / "out")
    printed = [line for line in text.splitlines() if " bin/" in line]
    assert len(printed) == 3
    assert all(line.endswith(f" --zstd-dictionary {DICTIONARY}") for line in printed)
    monkeypatch.setenv(VARIABLE, "")
    _, said = typed("undedup", tmp_path / "out", "--out", tmp_path / "back", status=7)
    assert "left alone: its frames need the zstd dictionary 10944513, which is miss" in said
    assert "NOT RESTORED" not in said
    typed(*shlex.split(printed[1].partition(" bin/")[2].replace("OTHER", str(tmp_path / "back"))))


def test_revisits_behind_a_damaged_frame_are_restored(tmp_path: Path) -> None:
    bodies = [Random(number).randbytes(1500) for number in range(3)]
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    for day, more in ((1, []), (2, bodies[2:])):
        date = b"2026-11-%02dT00:00:00Z" % day
        frames = [
            zst(
                response(body, number=10 * day + at, Target_URI=b"http://a.test/%d" % at, Date=date)
            )
            for at, body in enumerate([*more, *bodies[:2]])
        ]
        (source / f"{day}.warc.zst").write_bytes(b"".join(frames))
    assert json.loads(typed("dedup", source, "--out", out, "--json")[0])["revisits"] == 2
    data = bytearray((out / "2.warc.zst").read_bytes())
    data[4] ^= 255
    (out / "2.warc.zst").write_bytes(data)
    text, said = typed("undedup", out, "--out", tmp_path / "back", "--json", status=7)
    assert json.loads(text)["records"] == 2, said + text
