"""What ``bin/export --warcprox`` writes; a real warcprox reads it in tests/peers."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from dedupindex.capture import Capture, Covers, Evidence
from dedupindex.digest import CUT_DIGEST, Digest, Spelling
from dedupindex.errors import BadInput
from dedupindex.export.warcprox_dedup import WarcproxExport, rows, write_database
from dedupindex.index.identity import Settings
from dedupindex.sources import open_source
from tests.conftest import MakeIndex
from tests.support.captures import capture, sha1
from tests.support.commands import typed

BASE32, LOWER, HEX = Spelling(1, 0), Spelling(1, 1), Spelling(1, 2)


def written(*captures: Capture, bridge: bool = False) -> dict[str, str]:
    """The URL of each key."""
    stand = sorted((one.digest, one) for one in captures)
    found = rows(stand, WarcproxExport(), bridge=bridge)
    return {key: json.loads(value)["url"] for key, value in found}


def key(number: int, spelling: Spelling) -> str:
    return sha1(number).spelled(spelling) + "|"


def test_a_row_is_as_warcprox_writes_it() -> None:
    [(found, value)] = rows([(sha1(1), capture(1)._replace(spelling=HEX))], WarcproxExport())
    assert found == f"sha1:{sha1(1).raw.hex()}|"
    assert value == (
        '{"id":"<urn:uuid:00000000-0000-4000-8000-000000000101>","url":"http://example.com/a",'
        '"date":"2026-11-01T09:14:17Z"}'
    )


def test_of_several_captures_the_earliest_that_was_read_is_written() -> None:
    same = [
        capture(1, b"http://named.example/", 1, evidence=Evidence.NAMED),
        capture(1, b"http://second.example/", 3),
        capture(1, b"http://first.example/", 2),
        capture(1, b"http://hex.example/", 4)._replace(spelling=HEX),
    ]
    by_spelling = {key(1, BASE32): "http://first.example/", key(1, HEX): "http://hex.example/"}
    assert written(*same) == by_spelling
    assert written(*same, bridge=True) == dict.fromkeys(by_spelling, "http://first.example/")


def test_captures_that_warcprox_cannot_use_are_counted_by_reason() -> None:
    cut = Digest("sha1", b"\1" * 10 + bytes(10))
    sha256 = capture(7)._replace(digest=Digest("sha256", b"\2" * 32), spelling=HEX)
    unusable = [
        (cut, capture(1)._replace(digest=cut)),
        (sha1(2), capture(2)._replace(spelling=LOWER)),
        (sha1(3), capture(3, covers=Covers.STORED)),
        (sha1(4), capture(4, record_id=b"")),
        (sha1(7), sha256),  # also of this payload, but its record states SHA-256
        (sha256.digest, sha256),
    ]
    exported = WarcproxExport()
    found = [key for key, _ in rows(unusable, exported)]
    assert found == [f"sha256:{'02' * 32}|"] and exported.written == 1
    assert exported.left_out == {
        CUT_DIGEST: 1, "spelled-otherwise": 2, "chunked": 1, "no-record-id": 1
    }  # fmt: skip
    bridged = {key for key, _ in rows(unusable, WarcproxExport(), bridge=True)}
    assert {key(2, HEX), key(2, BASE32), key(7, HEX)} <= bridged


def test_a_database_is_read_back(make_index: MakeIndex, tmp_path: Path) -> None:
    captures = [
        capture(n, b"http://example.com/\xe9%d" % n)._replace(spelling=HEX) for n in range(1, 40)
    ]
    index, target = make_index(captures, Settings(mime=".*", whitelist=True)), tmp_path / "w.sqlite"
    out, _ = typed("export", "--warcprox", index, "--out", target, "--json")
    assert json.loads(out) == {"written": 39, "left_out": {}}
    with open_source(str(target)) as source:
        found = [one for one in source.items() if isinstance(one, Capture)]
    same = [(one.digest, one.url, one.date, one.record_id) for one in found]
    assert same == sorted((one.digest, one.url, one.date, one.record_id) for one in captures)
    with closing(sqlite3.connect(target)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    before = target.read_bytes()
    _, said = typed("export", "--warcprox", index, "--out", target, status=4)
    assert "name another file" in said and target.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir() if "sqlite" in path.name) == [
        target.name
    ]
    _, said = typed("export", "--warcprox", index, status=2)
    assert "--warcprox needs --out" in said


def test_what_sqlite_refuses_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be written"):
        write_database(tmp_path / "none" / "w.sqlite", [])
