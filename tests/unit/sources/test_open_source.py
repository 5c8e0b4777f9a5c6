"""From names to containers, from first bytes to readers; damage to the file around the lines."""

from __future__ import annotations

import gzip
import io
import os
import socket
import sys
import zipfile
from pathlib import Path

import blake3
import pytest

from dedupindex.capture import Capture, Problem, Refusal
from dedupindex.errors import BadSource
from dedupindex.sources import KINDS, expand, line_source, open_source
from dedupindex.sources.cdx import CdxSource
from dedupindex.sources.cdxj import CdxjSource
from dedupindex.sources.crawl_log import CrawlLogSource
from dedupindex.sources.discover import is_list_name, kind_named, kind_of
from dedupindex.sources.warc_records import WarcSource
from tests.support.text_sources import BASE32, DATA, items
from tests.support.zstd_files import skippable, zst

CDX = f"com,a)/ 20261120091417 http://a.com/ text/html 200 {BASE32} - - 10 20 x.warc.gz\n".encode()
WARC = b"WARC/1.0\r\nWARC-Type: warcinfo\r\nContent-Length: 0\r\n\r\n\r\n\r\n"
LOG = (DATA / "heritrix.log").read_bytes()
ZSTD = b"\x28\xb5\x2f\xfd\0\0\0\0"


def write(path: Path, data: bytes) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return str(path)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (CDX, "cdx"),
        (b"\xef\xbb\xbf CDX a b k\n", "cdx"),
        (b"\n\n" + CDX, "cdx"),
        (b"some words\n" + CDX, "cdx"),
        ((DATA / "pywb.cdxj").read_bytes(), "cdxj"),
        (LOG, "crawllog"),
        (LOG.split(b"\n")[0], "crawllog"),
        ((DATA / "heritrix-2006.log").read_bytes(), "crawllog"),
        (WARC, "warc"),
        (b"\r\n" + WARC, "warc"),
        (b"filedesc://x.arc 0.0.0.0 20050101000000 text/plain 76\n", "warc"),
        (b"<html><p>no</p></html>\n", ""),
        (b"# Files\n\nCDX files are in `cdx/`.\nCDX: see there.\n CDX and WARC\n", ""),
        (b"com,a)/ 20140101000000\tcdx-00000.gz\t0\t1234\t1\n", ""),
        (b'{"a": 1}\n', ""),
        (b"BZh91AY&SY", ""),
        (b"", ""),
        (b"\0" * 100, ""),
    ],
)
def test_kind_is_detected_from_content(data: bytes, kind: str) -> None:
    assert kind_of(data) == kind
    assert kind_of(gzip.compress(data)) == kind
    assert kind_of(gzip.compress(b"") + gzip.compress(data)) == kind
    packed = skippable(b"x") + zst(b"") + zst(data[:3]) + zst(data[3:])
    assert kind_of(packed, io.BytesIO(packed)) == (kind if kind == "warc" else "")
    if len(data) > 100:
        assert kind_of(gzip.compress(data)[:-9]) == kind


def test_names_of_kinds() -> None:
    for kind in KINDS:
        assert kind_named(kind) == ("warc" if kind == "arc" else kind)
    package = "is.landsbokasafn.deduplicator.indexer."
    assert kind_named("WarcIterator") == kind_named(package + "WarcIterator") == "warc"
    assert kind_named("CrawlLogIterator") == kind_named(package + "CrawlLogIterator") == "crawllog"
    with pytest.raises(BadSource, match="sqlite"):
        kind_named("sqlite")


def test_detected_and_forced_kinds(tmp_path: Path) -> None:
    for data, reader in ((CDX, CdxSource), (LOG, CrawlLogSource), (WARC, WarcSource)):
        with open_source(write(tmp_path / "any.name", data)) as source:
            assert isinstance(source, reader)
    path = write(tmp_path / "x", b"# no kind at all\n" + LOG)
    with open_source(path, "is.landsbokasafn.deduplicator.indexer.CrawlLogIterator") as source:
        assert isinstance(source, CrawlLogSource)
    with open_source(write(tmp_path / "x", CDX), "cdxj") as source:
        assert isinstance(source, CdxjSource)
        assert list(source.items())[1:] == [Refusal("bad-line")]


@pytest.mark.parametrize(
    ("data", "kind", "words"),
    [
        (b"<html>\n", None, "no known kind"),
        (WARC, "crawllog", "is warc, not crawllog"),
        (gzip.compress(WARC, mtime=0), "cdx", "is warc, not cdx"),
        (CDX, "warc", "is cdx, not warc"),
        (ZSTD, None, "zstd"),
        (ZSTD, "warc", "zstd and was not read: no WARC or ARC record"),
        (zst(CDX), None, "zstd and was not read: no WARC or ARC record"),
        (b"\x5d\x2a\x4d\x18\0\0", None, "zstd"),
        (CDX, "Lucene", "Lucene"),
    ],
)
def test_sources_that_cannot_be_opened(
    tmp_path: Path, data: bytes, kind: str | None, words: str
) -> None:
    path = write(tmp_path / "some.file", data)
    with pytest.raises(BadSource, match=words) as caught:
        open_source(path, kind)
    assert path in str(caught.value) or "Lucene" in words


def test_sources_that_are_no_files_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        for name in ("fifo", "socket", "missing", ""):
            with pytest.raises(BadSource, match=str(tmp_path / name)):
                open_source(str(tmp_path / name))
        found = expand([str(tmp_path)])
    assert sorted(problem.container for problem in found.problems) == [
        str(tmp_path / "fifo"),
        str(tmp_path / "socket"),
    ]


def test_an_empty_file_is_a_problem(tmp_path: Path) -> None:
    path = write(tmp_path / "empty.warc.gz", b"")
    with open_source(path) as source:
        assert list(source.items()) == [Problem(path, 0, "is empty")]
        assert source.content_hash == blake3.blake3().hexdigest()


def test_a_zip_is_a_wacz_only_if_it_holds_one(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    for name, found in (("word/document.xml", 0), ("archive/data.warc.gz", 1)):
        with zipfile.ZipFile(path, "w") as container:
            container.writestr(name, b"")
        assert len(expand([str(tmp_path)]).paths) == found
    with pytest.raises(BadSource, match="wacz, not cdx"):
        open_source(str(path), "cdx")


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    for data, count in ((CDX * 2000, 2000), (gzip.compress(CDX * 3), 3)):
        pipe = io.BytesIO(data)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(pipe)))  # type: ignore[arg-type]
        with open_source("-") as source:
            assert (source.name, source.size) == ("-", -1)
            found = list(source.items())
        assert len(found) == count
        assert all(isinstance(item, Capture) for item in found)
        assert source.position == len(data)
        assert source.content_hash == blake3.blake3(data).hexdigest()
        assert not pipe.closed
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(WARC)))
    with open_source("-") as source:
        assert list(source.items()) == [Refusal("warcinfo-record")]


def test_expand(tmp_path: Path) -> None:
    for name, data in {
        "b/x.cdx": CDX,
        "b/x.cdx.idx": CDX,
        "b/deep/crawl.log.cp00001-2022": LOG,
        "b/deep/nonfatal-errors.log": LOG,
        "a.warc.gz": gzip.compress(WARC),
        "a.warc.gz.open": WARC,
        "c.cdx.part": CDX,
        ".hidden": CDX,
        ".git/x.cdx": CDX,
        "README": b"words\n",
        "README.md": b"CDX files are in indexes/\n",
        "z.warc.zst": ZSTD,
        "zero.warc": b"",
        "damaged.warc.gz": gzip.compress(WARC)[:12] + b"x" * 99,
        "damaged.warc.gz.md5": b"0123456789abcdef  damaged.warc.gz",
        "index/index.json": b'{"format": 1, "canonicaliser": "surt"}',
        "index/data.cdx": CDX,
    }.items():
        write(tmp_path / name, data)
    (tmp_path / "b" / "deep" / "loop").symlink_to(tmp_path)
    (tmp_path / "broken").symlink_to(tmp_path / "nothing")
    found = expand([str(tmp_path)])
    names = [os.path.relpath(path, tmp_path) for path in found.paths]
    assert names == ["a.warc.gz", "b/x.cdx", "b/deep/crawl.log.cp00001-2022"]
    assert found.skipped == 7
    assert {os.path.basename(problem.container) for problem in found.problems} == {
        "z.warc.zst",
        "zero.warc",
        "broken",
        "damaged.warc.gz",
    }
    assert expand([str(tmp_path)], "CrawlLogIterator").paths == found.paths[2:]


ROWS = (
    "timestamp discovered queued downloaded doc/s(avg) KB/s(avg) dl-failures busy-thread",
    "2026-11-29T17:38:11Z 0 0 0 0(NaN) 0(0) 0 0 42102 60416 0 -1 0",
    "2026-11-29T17:38:31Z 254 76 178 6.73(12.84) 18(34) 0 2 78568 130048 1 38 38",
)
STATISTICS = (  # progress-statistics.log of Heritrix
    "\n".join("".join(f"{field:>20}" for field in row.split()) for row in ROWS).encode()
    + b"\n2026-11-29T17:38:43Z CRAWL ENDING - Finished\n"
)


def launch_directory(top: Path) -> Path:
    """What Heritrix leaves of a launch that was rotated by a checkpoint and killed."""
    for name, data in {
        "crawler-beans.cxml": b"<?xml version='1.0'?>\n<beans/>\n",
        "job.log": b"2026-11-29T17:38:11.698Z INFO PREPARING 20261129173810\n",
        "logs/alerts.log": b"",
        "logs/alerts.log.cp00001-20261129173823": b"",
        "logs/alerts.log.lck": b"",
        "logs/crawl.log": LOG,
        "logs/crawl.log.cp00001-20261129173823": LOG,
        "logs/crawl.log.lck": b"",
        "logs/frontier.recover.gz": b"",
        "logs/nonfatal-errors.log": LOG,
        "logs/progress-statistics.log": STATISTICS.partition(b"\n")[2],  # rotated: no header
        "logs/progress-statistics.log.cp00001-20261129173823": STATISTICS,
        "negative-surts.dump": b"",
        "scratch/tt1http.ris": b"",
        "state/je.info.0": b"",
        "state/je.lck": b"",
        "state/00000000.jdb": b"\0" * 2000,
        "surts.dump": b"http://(127.0.0.1:28611)/\n",
        "warcs/a.warc.gz": gzip.compress(WARC),
    }.items():
        write(top / name, data)
    return top


def test_a_launch_directory_of_heritrix_has_crawl_logs_and_warcs(tmp_path: Path) -> None:
    top = launch_directory(tmp_path)
    for sources in ([str(top)], [str(top / "logs" / "*"), str(top / "warcs")]):
        found = expand(sources)
        assert found.problems == []
        assert [os.path.relpath(path, top) for path in found.paths] == [
            "logs/crawl.log",
            "logs/crawl.log.cp00001-20261129173823",
            "warcs/a.warc.gz",
        ]
    assert str(top / "logs" / "progress-statistics.log") in found.skipped_files


def test_damaged_crawl_logs_of_a_directory_are_reported(tmp_path: Path) -> None:
    lost = b"2026-11-29T17:38:31Z 254 76 178 6.73 18 0 2 78568 130048\n"  # no line has a URI
    read = [write(tmp_path / "crawl.log.gz", gzip.compress(lost))]
    read.append(write(tmp_path / "other.log", b"\xff" * 200 + b"\n" + lost + LOG))
    zeros = write(tmp_path / "1" / "crawl.log", bytes(1 << 16))
    empty = [write(tmp_path / name, b"") for name in ("2/crawl.log", "2/x.cdx", "2/x.warc.gz")]
    found = expand([str(tmp_path)])
    assert sorted(found.paths) == read
    said = {problem.container: problem.message for problem in found.problems}
    assert "is named like a crawl log" in said.pop(zeros)
    assert said == dict.fromkeys(empty, "is empty")
    assert expand([str(tmp_path)], "warc").problems == [Problem(empty[2], 0, "is empty")]


def test_a_file_that_the_user_names_is_taken_for_what_its_lines_look_like(tmp_path: Path) -> None:
    path = write(tmp_path / "progress-statistics.log", STATISTICS)
    assert expand([path]).paths == [path]
    with open_source(path) as source:
        assert isinstance(source, CrawlLogSource)
    empty = write(tmp_path / "alerts.log", b"")
    assert expand([empty]).paths == [empty]


def test_expand_patterns_and_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = write(tmp_path / "1" / "a.cdx", CDX)
    second = write(tmp_path / "2" / "deep" / "b.cdx", CDX)
    write(tmp_path / "2" / "notes.txt", b"words\n")
    odd = write(tmp_path / "odd [1].cdx", CDX)
    monkeypatch.chdir(tmp_path)
    assert expand(["**/*.cdx"]).paths == [first, second, odd]
    assert expand(["*/*.cdx", "2", "1/a.cdx"]).paths == [first, second]
    assert expand(["[12]"]).paths == [first, second]
    assert expand(["**"]).paths == [first, second, odd]
    assert expand(["odd [1].cdx", "-"]).paths == [odd, "-"]
    assert expand(["2/*.txt"]).skipped == 1
    assert expand(["2/notes.txt"]).paths == [str(tmp_path / "2" / "notes.txt")]
    for missing in ("nothing.cdx", "*.nothing"):
        with pytest.raises(BadSource, match="nothing"):
            expand([missing])


@pytest.mark.parametrize("cut", [1, 8, 30, 200])
def test_cut_gzip_keeps_the_good_part(cut: int) -> None:
    packed = gzip.compress(CDX * 5) + gzip.compress(os.urandom(0) + CDX * 5)[:-cut]
    source = CdxSource("x", io.BytesIO(packed))
    found = list(source.items())
    assert sum(isinstance(item, Capture) for item in found) >= 5
    problems = [item for item in found if isinstance(item, Problem)]
    assert any("cut short" in problem.message for problem in problems) or cut == 200
    assert source.content_hash == blake3.blake3(packed).hexdigest()


def test_damaged_gzip_and_padding_after_members() -> None:
    packed = gzip.compress(CDX * 50)
    assert len(items("cdx", packed + bytes(1000) + packed)) == 100
    assert len(items("cdx", b"".join(gzip.compress(CDX) for _ in range(500)), block=100)) == 500
    garbage = items("cdx", packed + b"garbage")
    assert len(garbage) == 51
    assert isinstance(garbage[50], Problem)
    broken = bytearray(packed)
    broken[-6] ^= 1  # in the CRC
    source = CdxSource("x", io.BytesIO(bytes(broken) + packed))
    assert isinstance(list(source.items())[-1], Problem)
    assert source.content_hash == blake3.blake3(bytes(broken) + packed).hexdigest()


def test_a_line_without_end_is_not_held_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_source, "_LONGEST_LINE", 1000)
    for end in (b"\n" + CDX, b""):
        found = items("cdx", CDX + b"x" * 5000 + end, block=100)
        assert isinstance(found[1], Problem)
        assert (found[1].offset, found[2]) == (2, Refusal("bad-line"))
        assert len(found) == (4 if end else 3)


def test_reading_errors_name_the_file() -> None:
    class Failing(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise OSError(5, "Input/output error")

    with pytest.raises(BadSource, match="some.cdx"):
        list(CdxSource("some.cdx", Failing()).items())


@pytest.mark.parametrize(
    ("name", "is_list"),
    [
        ("crawl.log", True), ("crawl.log.gz", True), ("/x/a.cdxj", True), ("a.warc.gz.cdx", True),
        ("a.warc.gz.log", True), ("a.warc.gz", False), ("crawl.log.warc.gz", False),
        ("data.json.warc", False), ("a.db.arc.gz", False), ("s.json.wacz", False),
    ],
)  # fmt: skip
def test_a_list_of_captures_is_known_by_the_end_of_its_name(name: str, is_list: bool) -> None:
    assert is_list_name(name) is is_list
