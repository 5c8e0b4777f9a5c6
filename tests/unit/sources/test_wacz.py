"""WACZ files: every WARC in the zip is read, the zip itself never trusted."""

from __future__ import annotations

import io
import json
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile

import blake3
import pytest

from dedupindex.capture import Capture, Item, Problem
from dedupindex.sources.wacz import WaczSource
from dedupindex.warc.wacz_members import place_of
from tests.support.warc_cases import gz, request, response, word

A = gz(request()) + gz(response())
B = response(b"plain")


def wacz(path: Path, files: dict[str, bytes], how: int = ZIP_STORED) -> Path:
    with ZipFile(path, "w", how) as container:
        for name, data in files.items():
            container.writestr(name, data)
    return path


def read(path: Path) -> tuple[WaczSource, list[Item]]:
    with WaczSource(path.name, path) as source:
        return source, list(source.items())


@pytest.mark.parametrize("how", [ZIP_STORED, ZIP_DEFLATED])
def test_every_archived_file(tmp_path: Path, how: int) -> None:
    files = {
        "datapackage.json": b"{}",
        "archive/a.warc.gz": A,
        "pages/pages.jsonl": b"{}",
        "archive/deep/b.warc": B,
        "indexes/x.warc.gz": A,
        "archive/note.txt": b"x",
    }
    path = wacz(tmp_path / "t.wacz", files, how)
    source, items = read(path)
    captures = [item for item in items if isinstance(item, Capture)]
    assert [(capture.container, capture.offset) for capture in captures] == [
        ("t.wacz/archive/a.warc.gz", len(gz(request()))),
        ("t.wacz/archive/deep/b.warc", 0),
    ]
    assert len(items) == 3
    assert source.content_hash == blake3.blake3(path.read_bytes()).hexdigest()
    assert source.size == source.position == path.stat().st_size
    assert not source.changed


def test_damage_inside(tmp_path: Path) -> None:
    path = wacz(tmp_path / "t.wacz", {"archive/a.warc.gz": A + b"garbage", "archive/b.warc": B})
    _, items = read(path)
    assert [word(item) for item in items] == ["request-record", "capture", "problem", "capture"]
    assert isinstance(items[2], Problem)
    assert (items[2].container, items[2].offset) == ("t.wacz/archive/a.warc.gz", len(A))


def test_from_a_stream(tmp_path: Path) -> None:
    path = wacz(tmp_path / "t.wacz", {"archive/a.warc.gz": A})
    source = WaczSource("t.wacz", io.BytesIO(path.read_bytes()))
    assert list(source.items()) == read(path)[1]


@pytest.mark.parametrize("cut", [1, 30, 100, -1, -30])
def test_no_whole_zip(tmp_path: Path, cut: int) -> None:
    path = wacz(tmp_path / "t.wacz", {"archive/a.warc.gz": A})
    path.write_bytes(path.read_bytes()[:cut])
    source, items = read(path)
    assert [word(item) for item in items] == ["problem"]
    assert source.content_hash


def test_wacz_entry_without_a_local_header(tmp_path: Path) -> None:
    path = wacz(tmp_path / "t.wacz", {"archive/a.warc.gz": A, "archive/b.warc": B})
    data = bytearray(path.read_bytes())
    data[:4] = b"XXXX"
    path.write_bytes(data)
    _, items = read(path)
    assert [word(item) for item in items] == ["problem", "capture"]


def test_file_that_would_end_after_the_zip(tmp_path: Path) -> None:
    path = wacz(tmp_path / "x.wacz", {"archive/a.warc": b"x" * 100})
    data = path.read_bytes()
    with ZipFile(path) as container:
        (info,) = (one for one in container.infolist() if one.filename == "archive/a.warc")

    def read(at: int, count: int) -> bytes:
        return data[at : at + count]

    begin, size = place_of(info, read, len(data))
    assert data[begin : begin + size] == b"x" * 100
    assert place_of(info, read, begin + size) == (begin, size)
    with pytest.raises(BadZipFile, match="not where the zip's directory says"):
        place_of(info, read, begin + size - 1)


def test_deflated_file_with_a_flipped_bit(tmp_path: Path) -> None:
    path = wacz(tmp_path / "t.wacz", {"archive/a.warc": B * 50, "archive/b.warc": B}, ZIP_DEFLATED)
    data = bytearray(path.read_bytes())
    data[60] ^= 255
    path.write_bytes(data)
    _, items = read(path)
    assert [word(item) for item in items] == ["problem", "capture"]


def test_same_name_twice(tmp_path: Path) -> None:
    path = tmp_path / "t.wacz"
    with ZipFile(path, "w") as container:
        container.writestr("archive/a.warc", B)
        with pytest.warns(UserWarning, match="Duplicate"):
            container.writestr("archive/a.warc", A)
    assert [word(item) for item in read(path)[1]] == ["capture", "problem"]


@pytest.mark.parametrize(
    "files",
    [
        {"datapackage.json": json.dumps({"resources": [{"path": "other.wacz"}]}).encode()},
        {"archive/other.wacz": b"", "datapackage.json": b"{}"},
    ],
)
def test_wacz_of_waczs_is_refused_by_name(tmp_path: Path, files: dict[str, bytes]) -> None:
    _, (item,) = read(wacz(tmp_path / "t.wacz", files))
    assert isinstance(item, Problem)
    assert "other.wacz" in item.message


@pytest.mark.parametrize("package", [b"{}", b"[]", b"null", b"not json", b'{"resources": 7}'])
def test_nothing_archived(tmp_path: Path, package: bytes) -> None:
    _, items = read(wacz(tmp_path / "t.wacz", {"datapackage.json": package}))
    assert [word(item) for item in items] == ["problem"]


def test_still_being_written(tmp_path: Path) -> None:
    source, items = read(wacz(tmp_path / "t.wacz.open", {"archive/a.warc.gz": A}))
    assert [word(item) for item in items] == ["problem"]
    assert source.changed
    path = wacz(tmp_path / "t.wacz", {"archive/a.warc.gz": A})
    with WaczSource(path.name, path) as source:
        reading = source.items()
        next(reading)
        with open(path, "ab") as stream:
            stream.write(b"x")
        rest = list(reading)
    assert source.changed
    assert word(rest[-1]) == "problem"
