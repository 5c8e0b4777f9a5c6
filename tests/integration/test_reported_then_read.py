"""What a crawler reported stands until its WARC is read; then what the file has counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dedupindex.cli.common import NOTHING_FOUND
from tests.support.commands import ended, typed
from tests.support.warc_cases import gz, response, sha1
from tests.unit.post_crawl.test_index_references import asking

TYPES = ("--whitelist", "--mime", ".*")
BODY, URL, DATE = b"the payload", b"http://a.test/1", b"2026-01-02T00:00:05Z"
DIGEST = sha1(BODY).decode()
names = pytest.mark.parametrize("container", ["", "a.warc.gz"], ids=["unnamed", "named"])
engines = pytest.mark.parametrize("engine", ["lmdb", "whoosh"])
orders = pytest.mark.parametrize("merged_first", [True, False], ids=["merged", "read"])


def written(tmp_path: Path, body: bytes = BODY) -> Path:
    """The file of the crawl, whose record states the digest of BODY."""
    path = tmp_path / "harvest/a.warc.gz"
    path.parent.mkdir()
    record = response(body, Target_URI=URL, Date=DATE, Payload_Digest=DIGEST.encode())
    path.write_bytes(gz(record))
    return path


def begun(tmp_path: Path, engine: str, container: str) -> Path:
    """An index whose crawl `two` has reported the record, and is committed."""
    index, other = tmp_path / "index", tmp_path / "other.warc.gz"
    other.write_bytes(gz(response(b"another", Target_URI=b"http://b.test/", Date=DATE)))
    typed("index", *TYPES, "--engine", engine, "--crawl", "one", other, index)
    with asking(index) as web:
        web.post("/crawls", json={"name": "two"})
        reported: dict[str, Any] = {
            "digest": DIGEST, "url": URL.decode(), "status": 200, "date": DATE.decode(),
            "mime": "text/html", "size": len(BODY),
            **({"container": container} if container else {}),
        }  # fmt: skip
        answer = web.post("/captures?crawl=two", json=reported).get_json()
        assert answer["results"] == ["added"]
        web.post("/crawls/two/commit")
    return index


def originals(index: Path) -> list[str]:
    """The evidence of the originals of the digest, by the command and over HTTP."""
    status, text, _ = ended("list", index, "--digest", DIGEST, "--json")
    listed = [json.loads(line)["evidence"] for line in text.splitlines()]
    assert status == (0 if listed else NOTHING_FOUND)
    with asking(index) as web:
        found = web.get(f"/lookup?digest={DIGEST}&url={URL.decode()}").get_json()
    assert found["duplicate"] == bool(listed)
    return listed


def load_both(index: Path, path: Path, *, merged_first: bool, damaged: bool = False) -> str:
    """Merge the crawl and read its file, in either order; return what was said."""
    steps = [(0, "--merge", index), (7 * damaged, "--add", "--crawl", "two", path, index)]
    in_order = steps if merged_first else steps[::-1]
    return "".join(typed("index", *words, status=status)[0] for status, *words in in_order)


@engines
@names
@orders
def test_the_record_takes_the_place_of_the_report_and_both_are_purged_with_its_file(
    tmp_path: Path, engine: str, container: str, merged_first: bool
) -> None:
    index, path = begun(tmp_path, engine, container), written(tmp_path)
    assert originals(index) == ["row"]
    load_both(index, path, merged_first=merged_first)
    assert originals(index) == ["record"]
    found = json.loads(typed("impact", index, "--container", path, "--json")[0])
    assert found["originals"]["captures"] == found["nowhere"]["captures"] == 1
    assert found["same_url"]["captures"] == found["copies"]["captures"] == 0
    typed("purge", index, "--container", path)
    assert originals(index) == []
    typed("index", "--check", index)


@engines
@names
@orders
def test_a_report_whose_record_is_damaged_is_no_original(
    tmp_path: Path, engine: str, container: str, merged_first: bool
) -> None:
    index, path = begun(tmp_path, engine, container), written(tmp_path, b"the paYload")
    said = load_both(index, path, merged_first=merged_first, damaged=True)
    assert "digest-mismatch" in said
    assert originals(index) == []
    typed("index", "--check", index)


@engines
@names
@pytest.mark.parametrize("damaged", [True, False], ids=["refused", "purged"])
def test_a_crawl_does_not_answer_with_what_was_read_and_refused_or_purged(
    tmp_path: Path, engine: str, container: str, damaged: bool
) -> None:
    """It is committed and not merged, so it answers by itself."""
    index = begun(tmp_path, engine, container)
    path = written(tmp_path, b"the paYload" if damaged else BODY)
    typed("index", "--add", "--crawl", "two", path, index, status=7 * damaged)
    if not damaged:
        assert originals(index)
        typed("purge", index, "--container", path)
    assert originals(index) == []
