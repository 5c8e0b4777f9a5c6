"""Which captures of an index become keys of Browsertrix, and the report of an export."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupindex.capture import Capture, Covers, Evidence
from dedupindex.digest import Digest, Spelling
from dedupindex.export.browsertrix_redis import (
    NO_PLACE,
    BrowsertrixExport,
    ExportChoice,
    ExportedOriginal,
    entry,
    file_entry,
    file_of,
    originals,
)
from dedupindex.index.engine import IndexedContainer
from dedupindex.sources.browsertrix import (
    BrowsertrixEntry,
    file_name,
    is_redis_address,
    without_password,
)
from tests.conftest import MakeIndex
from tests.support.captures import capture, sha1
from tests.support.commands import typed
from tests.unit.cli.test_cli import ROOT

HEX = Spelling(1, 2)  # sha256:0f…


def sha256(number: int) -> Digest:
    return Digest("sha256", hashlib.sha256(b"%d" % number).digest())


def stored(
    number: int = 1, url: bytes = b"http://a.example/", day: int = 1, **more: object
) -> Capture:
    """A capture whose own record states a SHA-256, as Browsertrix writes it."""
    one = capture(number, url, day)._replace(digest=sha256(number), spelling=HEX)
    return one._replace(**more)  # type: ignore[arg-type]


def written(
    *captures: Capture, exported: BrowsertrixExport | None = None, **how: object
) -> list[ExportedOriginal]:
    stand = sorted((one.digest, one) for one in captures)
    choice = ExportChoice("archive", **how)  # type: ignore[arg-type]
    return list(originals(stand, lambda name: None, choice, exported or BrowsertrixExport()))


@given(
    st.integers(0, 1 << 31), st.from_regex(rb"[0-9]{17}", fullmatch=True), st.integers(0, 1 << 50)
)
def test_entries_read_as_they_are_written(place: int, digits: bytes, size: int) -> None:
    one = BrowsertrixEntry(place, digits[:17], b"http://a.example/?x=1", size)
    assert BrowsertrixEntry.parse(bytes(one)) == one


def test_a_recorded_entry_of_browsertrix() -> None:
    text = b"0 20261121031451390 http://127.0.0.1:19301/page1?third=1 597"
    one = BrowsertrixEntry.parse(text)
    assert one == (0, b"20261121031451390", b"http://127.0.0.1:19301/page1?third=1", 597)
    assert bytes(one) == text
    assert BrowsertrixEntry.parse(b"0 20261121031451390 http://a.example/ NaN").size == -1
    assert BrowsertrixEntry.parse(b"0 20261121031451390 http://a.example/ " + b"9" * 20).size == -1


@given(st.binary(max_size=60))
def test_malformed_entries_are_refused(text: bytes) -> None:
    try:
        assert bytes(BrowsertrixEntry.parse(text)).count(b" ") == 3
    except ValueError:
        return


def test_file_names() -> None:
    assert file_name(b'{"filename":"crawl3.wacz","hash":"x","size":15171}') == "crawl3.wacz"
    for text in (b"", b"{", b"[]", b'"x"', b"{}", b'{"filename": 5}', b"\xff"):
        assert file_name(text) == ""
    assert json.loads(file_entry(IndexedContainer("/x/a.wacz", 5, "", 1))) == {
        "filename": "a.wacz",
        "size": 5,
    }
    assert json.loads(file_entry(IndexedContainer("b.warc.gz", -1, "", 1))) == {
        "filename": "b.warc.gz"
    }


def test_an_address_is_shown_without_its_password() -> None:
    assert without_password("redis://me:secret@host:6379/1?password=x") == "redis://host:6379/1"
    assert without_password("unix:///run/redis?db=2&password=x") == "unix:///run/redis?db=2"
    assert is_redis_address("rediss://host") and is_redis_address("unix:///s")
    for path in ("redis", "redis:/x", "/redis://x", "http://a/", "-"):
        assert not is_redis_address(path)


@pytest.mark.parametrize(
    ("date", "digits"),
    [
        (b"2026-11-20T09:14:17Z", b"20261120091417000"),
        (b"2026-11-20T09:14:17.5Z", b"20261120091417500"),
        (b"2026-11-20T09:14:17.123456789Z", b"20261120091417123"),
    ],
)
def test_a_date_has_17_digits(date: bytes, digits: bytes) -> None:
    (one,) = written(stored(date=date))
    assert entry(one, 3) == (3, digits, b"http://a.example/", 1001)


def test_no_size_is_0() -> None:
    """The crawler would take the revisit that it has just written for an original."""
    for size in (-1, 0):
        (one,) = written(stored(size=size, size_of_record=True))
        assert entry(one, 0).size == 1


def test_the_best_capture_of_a_digest_is_written_once_a_crawl() -> None:
    exported = BrowsertrixExport()
    found = written(
        stored(1, b"http://b.example/", 2),
        stored(1, b"http://c.example/", 1, evidence=Evidence.ROW),
        stored(1, b"http://a.example/", 3),
        stored(1, b"http://d.example/", 9, crawl="weekly"),
        stored(2, b"http://e.example/", 1, crawl="weekly"),
        exported=exported,
    )
    assert {(one.crawl, one.capture.url) for one in found} == {
        ("archive", b"http://b.example/"),
        ("weekly", b"http://d.example/"),
        ("weekly", b"http://e.example/"),
    }
    assert {one.digest for one in found} == {
        sha256(1).raw.hex().encode(),
        sha256(2).raw.hex().encode(),
    }
    assert (exported.written, exported.crawls) == (3, {"archive": 1, "weekly": 2})
    assert exported.left_out == {"same-digest": 2}


def test_captures_that_browsertrix_cannot_use_are_counted_by_reason() -> None:
    exported = BrowsertrixExport()
    unusable = [
        stored(1, crawl="a b"),
        stored(2, crawl="x:counts"),
        stored(3, crawl="daily"),
        stored(4, status=404),
        stored(5, covers=Covers.STORED),
        stored(6, b"http://a.example/a b"),
        stored(7, b"http://a.example/\nx"),
        stored(8, spelling=Spelling(1, 0)),
        capture(9),
    ]
    wanted = frozenset(("archive", "a b", "x:counts"))
    assert written(*unusable, exported=exported, crawls=wanted) == []
    assert exported.left_out == {
        "crawl-name": 2, "other-crawl": 1, "status": 1, "chunked": 1, "url-with-spaces": 2,
        "spelled-otherwise": 1, "no-sha256": 1,
    }  # fmt: skip
    assert [one.capture for one in written(*unusable, algorithm="sha1")] == [capture(9)]
    assert written(capture(9), algorithm="sha1")[0].digest.decode() == str(sha1(9))[5:]


def test_digests_that_the_record_does_not_state_are_bridged() -> None:
    stand = [(sha1(1), capture(1)), (sha256(1), capture(1)), (sha1(2), capture(2))]
    for bridge, count in ((False, 0), (True, 1)):
        exported = BrowsertrixExport()
        choice = ExportChoice("archive", bridge=bridge)
        found = list(originals(stand, lambda name: None, choice, exported))
        assert len(found) == count
        left = {} if bridge else {"spelled-otherwise": 1}
        assert exported.left_out == {"no-sha256": 1, **left}  # of the second, which has none


def test_the_file_of_a_record_in_a_wacz_is_the_wacz() -> None:
    known = {name: IndexedContainer(name, 7, "", 1) for name in ("/x/a.wacz", "/x/b.warc.gz")}
    assert file_of(known.get, "/x/a.wacz/archive/data.warc.gz") == known["/x/a.wacz"]
    assert file_of(known.get, "/x/b.warc.gz") == known["/x/b.warc.gz"]
    other = file_of(known.get, "/archive/c.warc.gz")
    assert other and (other.name, other.size) == ("/archive/c.warc.gz", -1)
    assert file_of(known.get, "") is None
    assert NO_PLACE > 1 << 24  # no list is that long


def test_a_digest_of_very_many_urls_takes_no_memory() -> None:
    def many() -> Iterator[tuple[Digest, Capture]]:
        for number in range(50_000):
            yield sha256(1), stored(1, b"http://a.example/%d" % number)

    exported = BrowsertrixExport()
    tracemalloc.start()
    found = list(originals(many(), lambda name: None, ExportChoice("archive"), exported))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found) == 1 and exported.left_out["same-digest"] == 49_999
    assert peak < 1_000_000


def test_wrong_usage_of_the_command(make_index: MakeIndex) -> None:
    index, address = make_index(), "redis://127.0.0.1:1/0"
    assert "--warcprox, --redis and" in typed("export", index, status=2)[1]
    assert "name an INDEX" in typed("export", "--redis", address, status=2)[1]
    for words in (["--cancel", "x", index], ["--cancel", "x", "--commit", "x"]):
        assert "no INDEX" in typed("export", "--redis", address, *words, status=2)[1]
    assert (
        "not for --redis" in typed("export", "--redis", address, "--out", "x", index, status=2)[1]
    )
    assert "address" in typed("export", "--redis", "redis://:p@h:x/0", index, status=4)[1]
    assert "refused" in typed("export", "--redis", address, index, status=3)[1]


def test_a_redis_address_is_read_as_browsertrix_only(make_index: MakeIndex, tmp_path: Path) -> None:
    index, address = make_index(), "redis://:secret@127.0.0.1:1/0"
    messages = typed("index", "--add", address, index, status=4)[1]
    assert "redis://127.0.0.1:1/0" in messages and "secret" not in messages
    messages = typed("index", "--add", "-i", "cdx", address, index, status=4)[1]
    assert "only be read as browsertrix" in messages
    messages = typed("index", "--add", "-i", "browsertrix", __file__, index, status=4)[1]
    assert "redis://" in messages


def test_the_script_sets_the_address_of_the_server(tmp_path: Path) -> None:
    docker = tmp_path / "docker"
    docker.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    docker.chmod(0o755)
    words: list[str | Path] = [ROOT / "conf" / "browsertrix" / "crawl.sh", "--url", "http://a/"]
    chosen = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "DEDUPINDEX_REDIS": "redis://r:1/2"}
    done = subprocess.run(words, env=chosen, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.split("\n")[4:-1] == [
        "webrecorder/browsertrix-crawler:1.14.1", "crawl", "--redisDedupeUrl", "redis://r:1/2",
        "--generateWACZ", "--url", "http://a/",
    ]  # fmt: skip
    del chosen["DEDUPINDEX_REDIS"]
    assert subprocess.run(words, env=chosen, capture_output=True).returncode == 1
