"""What ``bin/export`` writes: the CDX of wget, whole or not at all."""

from __future__ import annotations

import json
import re
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from dedupindex.capture import Capture
from dedupindex.digest import Digest, Spelling
from dedupindex.errors import BadInput
from dedupindex.export.wget_cdx import HEADER, CrawlScope, WgetExport, lines, read_scope
from dedupindex.runtime.files import atomic_file
from tests.conftest import MakeIndex
from tests.support.captures import capture, sha1
from tests.support.commands import typed


def written(*captures: Capture, wanted: CrawlScope | None = None, **how: bool) -> list[bytes]:
    """The URLs that are written."""
    stand = sorted((one.digest, one) for one in captures)
    header, *found = lines(stand, wanted or read_scope(), WgetExport(), **how)
    assert header == HEADER == b" CDX a k u\n"
    return [line.split(b" ")[0] for line in found]


def test_a_line_has_the_columns_that_wget_reads() -> None:
    stand = [(sha1(1), capture(1))]
    _, line = lines(stand, read_scope(), WgetExport())
    value = str(sha1(1)).removeprefix("sha1:")
    record = "<urn:uuid:00000000-0000-4000-8000-000000000101>"
    assert line.decode() == f"http://example.com/a {value} {record}\n"
    assert len(value) == 32 and value == value.upper()


def test_of_several_urls_the_wanted_one_is_written() -> None:
    same = [
        capture(1, b"http://a.example/", 1),
        capture(1, b"http://b.example/", 3),
        capture(1, b"http://www.c.example/x", 2),
    ]
    assert written(*same) == [b"http://b.example/"]  # the last one seen
    assert written(*same, wanted=read_scope([b"http://a.example\r\n"])) == [b"http://a.example/"]
    below = read_scope([], [b"# a comment\n", b"\n", b"C.example\n"])
    assert written(*same, wanted=below) == [b"http://www.c.example/x"]
    both = read_scope([b"http://a.example/#top"], [b"c.example"])
    assert written(*same, wanted=both) == [b"http://a.example/"]
    other_page = read_scope([b"www.c.example/y"])  # its host is crawled
    assert written(*same, wanted=other_page) == [b"http://www.c.example/x"]
    assert written(*same, wanted=read_scope([], [b"xc.example"])) == [b"http://b.example/"]


@pytest.mark.parametrize(
    "line",
    ["/a/img1.png", "//example.com/", "?q=1", ":", "http://", "http://:80/", "mailto:a@b.example",
     "not a url", "\x1f\x8b\x08", "\ufeffhttp://example.com/"],
)  # fmt: skip
def test_a_seed_that_is_no_url_is_refused(line: str) -> None:
    with pytest.raises(BadInput, match="line 2 of the seeds is not a URL: .*give each as wget"):
        read_scope([b"http://[::1]:80/\n", line.encode() + b"\n"])


@pytest.mark.parametrize(
    "seed", ["a.example:8080", "HTTP://user:pw@A.example?q", "ftp://a.example"]
)
def test_seeds_as_wget_takes_them(seed: str) -> None:
    assert read_scope([seed.encode()]).hosts == {b"a.example"}


@pytest.mark.parametrize(
    ("line", "hint"),
    [(b"http://a.example/x", "without scheme, port and path: a.example"),
     (b"*.example", "wildcard"),
     (b"\x1f\x8b\x08", "not a host name"), (b"a..example", "not a host name")],
)  # fmt: skip
def test_a_line_that_is_no_host_is_refused(line: bytes, hint: str) -> None:
    with pytest.raises(BadInput, match=f"line 1 of the hosts.*{hint}"):
        read_scope([], [line])


def test_the_latest_is_found_by_fractions_of_a_second() -> None:
    second = capture(1, b"http://a.example/", date=b"2026-11-20T09:14:17Z")
    later = capture(1, b"http://b.example/", date=b"2026-11-20T09:14:17.5Z")
    assert written(second, later) == written(later, second) == [b"http://b.example/"]
    latest = capture(1, b"http://a.example/", date=b"2026-11-20T09:14:17.75Z")
    assert written(later, latest) == [b"http://a.example/"]


def test_captures_that_wget_cannot_use_are_counted_by_reason() -> None:
    sha256 = capture(1)._replace(digest=Digest("sha256", bytes(32)))
    unusable = [
        (sha256.digest, sha256),
        (sha1(2), sha256),  # stands there too, but its record states SHA-256
        (sha1(3), capture(3)._replace(spelling=Spelling(1, 2))),
        (sha1(4), capture(4, record_id=b"")),
        (sha1(5), capture(5, b"http://example.com/a b")),
        (sha1(6), capture(6, b"http://example.com/\nX")),
    ]
    exported = WgetExport()
    assert list(lines(unusable, read_scope(), exported)) == [HEADER]
    assert exported.left_out == {
        "not-sha1": 1, "spelled-otherwise": 2, "no-record-id": 1, "url-with-spaces": 2,
    }  # fmt: skip
    assert len(list(lines(unusable, read_scope(), WgetExport(), bridge=True))) == 3


def test_why_captures_are_left_out_is_said_in_words(make_index: MakeIndex, tmp_path: Path) -> None:
    index = make_index([capture(1)._replace(spelling=Spelling(1, 2)), capture(2, record_id=b"")])
    _, messages = typed("export", "--wget", index, "--out", tmp_path / "x.cdx")
    for reason, words in (
        ("spelled-otherwise", "state the digest in another form; --bridge includes them"),
        ("no-record-id", "no revisit could name them"),
    ):
        assert re.search(rf"left out: {reason} +1  .*{words}\n", messages), messages


def test_a_digest_of_very_many_urls_takes_no_memory() -> None:
    def many() -> Iterator[tuple[Digest, Capture]]:
        for number in range(50_000):
            yield sha1(1), capture(1, b"http://example.com/%d" % number)

    exported = WgetExport()
    tracemalloc.start()
    assert len(list(lines(many(), read_scope(), exported))) == 2
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert exported.other_urls == 49_999
    assert peak < 1_000_000


@pytest.mark.parametrize("engine", ["lmdb", "whoosh"])
def test_the_command(make_index: MakeIndex, tmp_path: Path, engine: str) -> None:
    captures = [capture(number) for number in range(1, 4)] + [capture(1, b"http://b.example/", 2)]
    index, target = make_index(captures, engine=engine), tmp_path / "dedup.cdx"
    seeds = tmp_path / "seeds"
    seeds.write_text("http://example.com/a\n")
    out, messages = typed("export", "--wget", index, "--out", target, "--seeds", seeds, "--json")
    assert json.loads(out) == {
        "written": 3, "for_seeds": 3, "for_hosts": 0, "other_urls": 1, "left_out": {},
    }  # fmt: skip
    printed, messages = typed("export", "--wget", index, "--seed", seeds)
    assert printed == target.read_text() and printed.count("\n") == 4
    assert "3 originals written, 3 of them with the URL of a seed" in messages
    assert typed("export", index, status=2)[0] == ""
    assert "needs --out" in typed("export", "--wget", index, "--json", status=2)[1]


def test_a_file_is_written_whole_or_not_at_all(make_index: MakeIndex, tmp_path: Path) -> None:
    target = tmp_path / "dedup.cdx"
    target.write_bytes(HEADER)
    with pytest.raises(RuntimeError), atomic_file(target) as stream:
        stream.write(b"half")
        raise RuntimeError
    assert target.read_bytes() == HEADER
    assert [path.name for path in tmp_path.iterdir()] == ["dedup.cdx"]
    typed("export", "--wget", tmp_path / "none", "--out", target, status=6)
    assert target.read_bytes() == HEADER
    missing = tmp_path / "no" / "dedup.cdx"
    _, messages = typed("export", "--wget", make_index([capture()]), "--out", missing, status=2)
    assert f"{missing} cannot be written: its directory does not exist" in messages
    with pytest.raises(FileNotFoundError) as failed, atomic_file(missing):
        pass
    assert failed.value.filename == str(missing)  # not the file that was to be renamed
