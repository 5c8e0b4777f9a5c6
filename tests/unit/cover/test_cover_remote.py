"""Sources of bin/cover in an object store and on a web server."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from dedupindex.cli import main
from dedupindex.cover.load_documents import is_lines
from tests.support.corpora import Page, archive, html
from tests.support.covering import JOURNALIST
from tests.support.stores import Bucket, Fault, web
from tests.unit.cover.test_cover import BASE, VERSIONS


@pytest.fixture
def bucket(buckets: Callable[[], Bucket]) -> Bucket:
    return buckets()


def covered(folder: Path, *words: object, status: int = 0) -> list[dict[str, Any]]:
    out = folder / "out.jsonl"
    command = ["cover", *map(str, words), "--relation", JOURNALIST, "-o", str(out)]
    assert main(command) == status
    return [json.loads(line) for line in out.read_text().splitlines()] if not status else []


def lines(documents: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(one) + "\n" for one in documents).encode()


def test_lines_in_a_store(tmp_path: Path, bucket: Bucket) -> None:
    here = tmp_path / "pages.jsonl"
    here.write_bytes(lines(VERSIONS))
    expected = covered(tmp_path, here)
    assert covered(tmp_path, bucket.put("a/pages.jsonl", here.read_bytes())) == expected
    assert covered(tmp_path, f"file://{here}") == expected
    first = bucket.put("b/1.jsonl.gz", gzip.compress(lines(VERSIONS[:1])))
    bucket.put("b/2.jsonl.gz", gzip.compress(lines(VERSIONS[1:2])))
    last = bucket.put("b/3.jsonl.zst", zstandard.compress(lines(VERSIONS[2:])))
    assert covered(tmp_path, f"{bucket.url}/b/*.jsonl.gz", last) == expected
    assert len(covered(tmp_path, first, here)) == len(VERSIONS)  # a document comes again
    with web(tmp_path) as server:
        assert covered(tmp_path, f"{server.url}/pages.jsonl") == expected


def test_lines_are_read_again_where_a_connection_broke(tmp_path: Path, bucket: Bucket) -> None:
    there = bucket.put("pages.jsonl", lines(VERSIONS))
    bucket.server.faults.append(Fault("pages.jsonl", 2, cut=300))
    assert len(covered(tmp_path, there)) == len(VERSIONS)


def test_an_object_that_changes_is_refused(
    tmp_path: Path, bucket: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    there = bucket.put("pages.jsonl", lines(VERSIONS))

    def change() -> None:
        bucket.put("pages.jsonl", lines(VERSIONS[1:]))

    looking = Fault("pages.jsonl", 1)  # whether it is compressed, which shows how long it takes
    bucket.server.faults += [looking, Fault("pages.jsonl", 1, then=change)]
    covered(tmp_path, there, status=4)
    assert "pages.jsonl was changed while it was read" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_there_is_named(
    tmp_path: Path, bucket: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("none.jsonl", "none*.jsonl"):
        covered(tmp_path, f"{bucket.url}/{name}", status=4)
        assert f"{bucket.url}/{name}" in capsys.readouterr().err
    covered(tmp_path, bucket.put("bad.jsonl", b"[]\n"), status=4)
    assert f"{bucket.url}/bad.jsonl line 1 is no JSON object" in capsys.readouterr().err


def test_an_archive_in_a_store(tmp_path: Path, bucket: Bucket) -> None:
    (tmp_path / "warcs").mkdir()
    days = [Page("http://a.example/", day, html("t", f"{BASE} {day}")) for day in (1, 2)]
    archive(tmp_path / "warcs", *days)
    (path,) = (tmp_path / "warcs").glob("*.warc.gz")
    there = bucket.put("x.warc.gz", path.read_bytes())
    rows, expected = covered(tmp_path, there), covered(tmp_path, path)
    assert [row.pop("container") for row in rows] == [there] * 2
    assert rows == [{name: row[name] for name in row if name != "container"} for row in expected]


def test_lines_are_known_by_their_name() -> None:
    assert is_lines("s3://b/x.jsonl") and is_lines("https://h/x.jsonl.zst?X-Amz-Signature=a.warc")
    assert not is_lines("s3://b/x.warc.gz") and not is_lines("https://h/x.warc?name=x.jsonl")
