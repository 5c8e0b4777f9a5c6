"""Every sample file through `open_source`: each line gives exactly the item listed here."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import blake3
import pytest

from dedupindex.capture import Problem
from dedupindex.errors import BadSource
from dedupindex.sources import open_source
from tests.support.text_sources import BASE32, BY_KIND, DATA, HEX, brief, records

A, B = BASE32, "SBRY3NIKXYAIKSCJ5QL2F6AE4GG7P6VR"
SHA256 = "sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
FIRST = "http://example.org/first"
HOME = "http://example.com/ 2026-11-20T09:14:17Z 200 text/html 1043 333 crawl-0.warc.gz"
ARC = "http://example.com/b 2008-11-20T09:14:18Z 200 image/png -1 4333 crawl-0.arc.gz"
LINE = "http://example.com/ 2026-11-20T09:14:26Z"  # what most lines of the logs are about

EXPECTED: dict[str, list[str]] = {
    "usual-11.cdx": [
        f"capture {HOME} {A}",
        "revisit http://example.com/ 2026-11-21T09:14:17Z -> ?",
        "capture http://www.example.com/a%20b 2026-11-20T09:14:18Z 200 text/html 2000 1376 "
        f"crawl-0.warc.gz {B}",
        "capture http://example.com/gone 2026-11-20T09:14:19Z 404 text/html 900 3376 "
        f"crawl-0.warc.gz {A}",
        "capture http://example.com/hex 2026-11-20T09:14:20Z 200 text/html 900 4276 "
        f"crawl-0.warc.gz {HEX}",
        "capture http://example.com/labelled 2026-11-20T09:14:21Z 200 text/html 900 5176 "
        f"crawl-0.warc.gz {SHA256}",
        "refused bad-digest",
        "revisit http://example.com/old-revisit 2026-11-20T09:14:23Z -> ?",
        "refused method",
        "problem 11",
        "refused bad-line",
        "refused bad-date",
        "refused not-http",
    ],
    "usual-9.cdx": [
        f"capture http://example.com/ 2008-11-20T09:14:17Z 200 text/html -1 333 crawl-0.arc.gz {A}",
        f"capture {ARC} {B}",
    ],
    "wget.cdx": [
        "capture http://bootstrap.test:8080/ 2026-11-20T09:14:17Z 200 text/html -1 968 "
        f"harvest0-00000.warc.gz {A}",
        "capture http://bootstrap.test:8080/x.css 2026-11-20T09:14:18Z 200 text/css -1 1667 "
        f"harvest0-00000.warc.gz {B}",
    ],
    "two-layouts.cdx": [
        f"capture {HOME} {A}",
        f"capture {ARC} {B}",
        f"capture https://example.com/a space 2026-11-20T09:14:17Z 0 - -1 -1 two-layouts.cdx {B}",
        "problem 7",
        "refused no-columns",
    ],
    "pywb.cdxj": [
        f"capture {HOME} {A}",
        "revisit http://example.com/ 2026-11-21T09:14:17Z -> ?",
        "refused method",
    ],
    "cdxj-indexer.cdxj": [
        "capture https://example.com/ 2026-11-20T09:14:17.123Z 200 text/html 1043 333 "
        f"crawl-0.warc.gz sha1:{A}",
        "revisit https://example.com/ 2026-11-21T09:14:17Z -> ?",
        "capture https://example.com/n 2026-11-21T09:14:17Z 200 - 335 4300000000 crawl-1.warc.gz "
        f"{SHA256}",
        "refused method",
        "refused bad-digest",
        *("problem 6", "refused bad-line", "problem 7", "refused bad-line"),
        *("problem 8", "refused bad-line"),
        "refused not-http",
    ],
    "heritrix.log": [
        "refused not-http",
        f"capture {LINE} 200 text/html 7951 -1 heritrix.log sha1:{B}",
        "capture http://example.com/x 2026-11-20T09:14:26Z 200 text/html 7951 9912 X.warc.gz "
        f"sha1:{B}",
        f"revisit {LINE} -> ?",
        f"revisit {LINE} -> ?",
        "refused fetch-failed",
        "refused truncated",
        "refused unwritten",
        "capture http://example.com/slow 2026-11-20T09:14:26Z 200 text/html 7951 9912 X.warc.gz "
        f"sha1:{B}",
        "refused not-payload-digest",
        "refused no-date",
        "capture http://example.com/untyped 2026-11-20T09:14:26Z 200 - 7951 -1 heritrix.log "
        f"sha1:{B}",
        *("problem 13", "refused bad-line"),
    ],
    "heritrix-2006.log": [
        "capture http://example.com/ 2006-01-01T12:30:44Z 200 text/html 1234 -1 "
        f"heritrix-2006.log {A}",
        "revisit http://example.com/b 2006-01-01T12:30:45Z -> ?",
        "capture http://example.com/c 2006-01-01T12:30:46Z 200 text/html 1234 -1 "
        f"heritrix-2006.log {A}",
        "revisit http://example.com/d 2006-01-01T12:30:47Z -> ?",
    ],
    "deduplicator.log": [
        f"revisit {LINE} -> {FIRST} 2025-01-02T03:04:05Z",
        f"revisit {LINE} -> ?",
        f"revisit {LINE} -> {FIRST} 2025-01-02T03:04:05Z",
        f"revisit {LINE} -> ?",
        f"revisit {LINE} -> {FIRST} 2025-01-02T03:04:05.678Z",
        f"revisit {LINE} -> ?",
    ],
    "warcprox.log": [
        f"capture {LINE} 200 text/html 7951 0 wp.warc.gz sha1:{HEX}",
        f"revisit {LINE} -> ?",
        "refused method",
        "refused fetch-failed",
    ],
}
KINDS = {".cdx": "cdx", ".cdxj": "cdxj", ".log": "crawllog"}


@pytest.fixture(params=sorted(EXPECTED))
def sample(request: pytest.FixtureRequest) -> Path:
    return DATA / str(request.param)


def read(path: Path) -> tuple[list[str], str]:
    with open_source(str(path)) as source:
        found = [brief(item) for item in source.items()]
        assert source.name == str(path.resolve())
        assert source.position == source.size == path.stat().st_size
        return found, source.content_hash


def test_samples_are_parsed_as_expected(sample: Path) -> None:
    found, content_hash = read(sample)
    assert found == EXPECTED[sample.name]
    assert content_hash == blake3.blake3(sample.read_bytes()).hexdigest()


def test_every_sample_is_expected_or_refused() -> None:
    assert {path.name for path in DATA.iterdir()} == {*EXPECTED, "README.md", "headerless-wget.cdx"}
    assert set((DATA / "README.md").read_text().split("`")) >= EXPECTED.keys()


def test_unknown_layout_is_refused_with_advice() -> None:
    for kind in (None, "cdx"):
        with pytest.raises(BadSource, match="header"):
            open_source(str(DATA / "headerless-wget.cdx"), kind)


@pytest.mark.parametrize("members", [1, 3])
def test_gzip_changes_only_the_content_hash(sample: Path, tmp_path: Path, members: int) -> None:
    data = sample.read_bytes()
    step = len(data) // members + 1
    packed = b"".join(gzip.compress(data[at : at + step]) for at in range(0, len(data), step))
    path = tmp_path / sample.name  # the name does not say that it is gzip
    path.write_bytes(packed)
    found, content_hash = read(path)
    assert found == EXPECTED[sample.name]
    assert content_hash == blake3.blake3(packed).hexdigest()


@pytest.mark.parametrize("block", [1, 2, 7, 64, 333])
def test_blocks_may_end_anywhere(sample: Path, block: int) -> None:
    reader = BY_KIND[KINDS[sample.suffix]]
    whole = reader(sample.name, io.BytesIO(sample.read_bytes()))
    parts = reader(sample.name, io.BytesIO(sample.read_bytes()), block=block)
    assert list(parts.items()) == list(whole.items())
    assert parts.content_hash == whole.content_hash


def test_windows_line_ends_and_byte_order_marks_change_nothing(sample: Path) -> None:
    reader = BY_KIND[KINDS[sample.suffix]]
    data = b"\xef\xbb\xbf" + sample.read_bytes().replace(b"\n", b"\r\n")
    found = list(reader(sample.name, io.BytesIO(data)).items())
    assert [brief(item) for item in found] == EXPECTED[sample.name]


def test_columns_and_lines_yield_the_same(sample: Path) -> None:
    """The first block is read carefully, so the same lines again are read the fast way."""
    reader = BY_KIND[KINDS[sample.suffix]]
    data = sample.read_bytes()
    lines = data.count(b"\n")
    once = list(reader(sample.name, io.BytesIO(data)).items())
    many = list(reader(sample.name, io.BytesIO(data * 4), block=len(data)).items())
    for part in range(4):
        shifted = [
            brief(item._replace(offset=item.offset + part * lines))
            if isinstance(item, Problem)
            else brief(item)
            for item in once
        ]
        assert [brief(item) for item in many[part * len(once) : (part + 1) * len(once)]] == shifted


def test_one_item_for_every_line_that_is_a_row(sample: Path) -> None:
    lines = [
        line
        for line in sample.read_text().splitlines()
        if not line.startswith(("!", " CDX", "\tCDX"))
    ]
    with open_source(str(sample)) as source:
        assert len(records(list(source.items()))) == len(lines)
