"""Two real harvests by wget, indexed and looked up; warcio counts independently.

wget writes target URIs in angle brackets and takes digests of chunked responses with their framing.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from base64 import b32encode
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha1
from pathlib import Path
from typing import NamedTuple

import pytest
from surt import surt
from warcio.archiveiterator import ArchiveIterator

from dedupindex.capture import Covers
from dedupindex.digest import Digest
from dedupindex.index import open_index
from dedupindex.index.identity import Settings
from dedupindex.indexer.pipeline import Build, build
from dedupindex.lookup.decide import Match, Query, Strategy, find
from demo.site import edition, served
from tests.conftest import need
from tests.unit.cli.test_cli import dedupindex

pytestmark = pytest.mark.peer
EVERYTHING = Settings(mime=".*", whitelist=True)


class Response(NamedTuple):
    """A response record, as warcio reads it."""

    url: bytes
    date: bytes
    record_id: bytes
    digest: Digest
    body: bytes


def responses(path: Path) -> Iterator[Response]:
    """Responses with status 200 and a payload, their digest recomputed from the stored body."""
    with open(path, "rb") as stream:
        for record in ArchiveIterator(stream):
            if record.rec_type != "response" or record.http_headers.get_statuscode() != "200":
                continue
            body = record.raw_stream.read()
            header = record.rec_headers.get_header
            digest = header("WARC-Payload-Digest")
            assert digest == "sha1:" + b32encode(sha1(body).digest()).decode()
            if body:
                yield Response(
                    header("WARC-Target-URI").strip("<>").encode(),
                    header("WARC-Date").encode(),
                    header("WARC-Record-ID").strip("<>").encode(),
                    Digest.parse(digest),
                    body,
                )


@pytest.fixture(scope="module")
def harvests(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    need("wget", found=shutil.which("wget") is not None)
    folder = tmp_path_factory.mktemp("wget")
    port = 0
    for number in (1, 2):
        with served(number, port) as port:
            # One fetch for each page: the hosts of the site are told by the Host header alone.
            for place, url in enumerate(edition(number)):
                host, path = url.removeprefix("http://").split("/", 1)
                subprocess.run(
                    [
                        *("wget", "--quiet", "--output-document=/dev/null"),
                        *(f"--header=Host: {host}", "--no-warc-keep-log", "--warc-cdx"),
                        f"--warc-file={folder / f'harvest{number}-{place:02d}'}",
                        f"http://127.0.0.1:{port}/{path}?host={host}",
                    ],
                    check=True,
                    cwd=folder,
                )
    first, second = folder / "first", folder / "second"
    for number, target in ((1, first), (2, second)):
        target.mkdir()
        for file in folder.glob(f"harvest{number}-*"):
            file.rename(target / file.name)
    return first, second


def all_responses(folder: Path) -> list[Response]:
    return [found for path in sorted(folder.glob("*.warc.gz")) for found in responses(path)]


def match_by_hand(record: Response, first: list[Response]) -> Match | None:
    """The class of the best original, found without our code: by bytes and by surt."""
    same = [original.url for original in first if original.body == record.body]
    if record.url in same:
        return Match.EXACT_URL
    if surt(record.url) in [surt(url) for url in same]:
        return Match.CANONICAL_URL
    return Match.DIGEST if same else None


def test_wget_writes_brackets_and_a_chunked_response(harvests: tuple[Path, Path]) -> None:
    """What makes these harvests worth testing with is really in them."""
    raw = b"".join(
        subprocess.run(["gzip", "-dc", str(path)], check=True, capture_output=True).stdout
        for path in sorted(harvests[0].glob("*.warc.gz"))
    )
    assert b"WARC-Target-URI: <http://" in raw
    assert b"Transfer-Encoding: chunked" in raw


def test_a_harvest_is_indexed_to_the_last_record(
    harvests: tuple[Path, Path], tmp_path: Path
) -> None:
    expected = all_responses(harvests[0])
    assert len(expected) == len(edition(1))
    built = build(Build([str(harvests[0] / "*.warc.gz")], tmp_path / "i", EVERYTHING))
    assert built.problems == []
    with closing(open_index(tmp_path / "i")) as engine, engine.view() as view:
        captures = [capture for _, capture in view.captures()]
    assert sorted((c.digest, c.url, c.date, c.record_id, c.size) for c in captures) == sorted(
        (r.digest, r.url, r.date, r.record_id, len(r.body)) for r in expected
    )
    assert {capture.covers for capture in captures} == {Covers.BOTH, Covers.STORED}
    assert built.tally.added == len(expected)


def test_the_second_harvest_is_looked_up(harvests: tuple[Path, Path], tmp_path: Path) -> None:
    first, second = all_responses(harvests[0]), all_responses(harvests[1])
    build(Build([str(harvests[0])], tmp_path / "i", EVERYTHING, kind="warc"))
    with closing(open_index(tmp_path / "i")) as engine, engine.view() as view:
        found = [find(view, EVERYTHING, Query(record.digest, record.url)) for record in second]
        exact = [
            find(view, EVERYTHING, Query(record.digest, record.url, Strategy.EXACT_URL))
            for record in second
        ]
    expected = [match_by_hand(record, first) for record in second]
    assert [answer.match if answer else None for answer in found] == expected
    assert Counter(expected) == {
        Match.EXACT_URL: 8,
        Match.CANONICAL_URL: 1,
        Match.DIGEST: 1,
        None: 2,
    }
    assert [answer is not None for answer in exact] == [
        match is Match.EXACT_URL for match in expected
    ]
    known = {(record.url, record.date, record.record_id, record.body) for record in first}
    for answer, record in zip(found, second, strict=True):
        if answer:
            original = answer.original
            assert (original.url, original.date, original.record_id, record.body) in known


def test_wgets_own_cdx_gives_the_same_originals(
    harvests: tuple[Path, Path], tmp_path: Path
) -> None:
    build(Build([str(harvests[0] / "*.cdx")], tmp_path / "cdx", EVERYTHING))
    build(Build([str(harvests[0] / "*.warc.gz")], tmp_path / "warc", EVERYTHING))
    held = []
    for name in ("cdx", "warc"):
        with closing(open_index(tmp_path / name)) as engine, engine.view() as view:
            held.append(
                [(c.digest, c.url, c.date, c.record_id, c.offset) for _, c in view.captures()]
            )
    assert held[0] == held[1]


def test_the_report_agrees_with_the_count(harvests: tuple[Path, Path], tmp_path: Path) -> None:
    first, second = all_responses(harvests[0]), all_responses(harvests[1])
    dedupindex("index", "-w", "-m", ".*", harvests[0] / "*.warc.gz", tmp_path / "i")
    out, _ = dedupindex("report", tmp_path / "i", "--against", harvests[1] / "*.warc.gz", "--json")
    content = json.loads(out)
    bodies = {record.body for record in first}
    again = [record for record in second if record.body in bodies]
    assert content["handled"] == len(second)
    assert content["duplicates"] == len(again)
    assert [content[name] for name in ("exact_url", "canonical_url", "digest")] == [8, 1, 1]
    assert content["duplicate_bytes"] == sum(len(record.body) for record in again)
    assert content["refused"]["empty"] == 1
