"""CDX in gzip members: blocks of rows (ZipNum) with or without a last line end, or cut anywhere."""

from __future__ import annotations

import gzip
import io
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dedupindex.sources.cdx import CdxSource
from dedupindex.sources.cdxj import CdxjSource
from dedupindex.sources.line_source import TextSource

HEADER = b" CDX N b a m s k r M S V g\n"
ROWS = [
    b"com,example)/%d 20140127171200 http://example.com/%d text/html 200 "
    b"B2LTWWPUOYAH7UIPQ7ZUPQ4VMBSVC36A - - 1046 %d x.warc.gz\n" % (number, number, number)
    for number in range(188)
]
JSON = [
    b'com,example)/%d 20140127171200 {"url":"http://example.com/%d","mime":"text/html",'
    b'"status":"200","digest":"B2LTWWPUOYAH7UIPQ7ZUPQ4VMBSVC36A","length":"7","offset":"%d",'
    b'"filename":"x.warc.gz","more":{"a":{"b":"}{"}}}\n' % (number, number, number)
    for number in range(188)
]
KINDS = pytest.mark.parametrize(
    ("kind", "rows"), [(CdxSource, ROWS), (CdxSource, [HEADER, *ROWS]), (CdxjSource, JSON)],
    ids=["cdx", "cdx with header", "cdxj"],
)  # fmt: skip


def zipnum(rows: list[bytes], each: int) -> bytes:
    """Members of so many rows each, that do not end with a line end."""
    blocks = [b"".join(rows[at : at + each]) for at in range(0, len(rows), each)]
    return b"".join(gzip.compress(block.removesuffix(b"\n"), 1, mtime=0) for block in blocks)


def read(kind: type[TextSource], data: bytes, block: int = 1 << 18) -> list[object]:
    with kind("t", io.BytesIO(data), size=len(data), block=block) as source:
        return list(source.items())


@KINDS
@pytest.mark.parametrize("each", [1, 5, 100])
@pytest.mark.parametrize("block", [7, 1 << 18])
def test_blocks_without_a_last_line_end(
    kind: type[TextSource], rows: list[bytes], each: int, block: int
) -> None:
    found = read(kind, zipnum(rows, each), block)
    assert found == read(kind, b"".join(rows))
    assert len(found) == 188


@KINDS
@given(data=st.data())
@example(data=None)
def test_members_that_are_cut_anywhere(
    kind: type[TextSource], rows: list[bytes], data: st.DataObject | None
) -> None:
    """As bgzip cuts them: in a line, behind it, before its end."""
    text = b"".join(rows[:12])
    cuts = range(len(text)) if data is None else data.draw(st.sets(st.integers(0, len(text))))
    ends = [0, *sorted(cuts), len(text)]
    parts = [text[start:end] for start, end in zip(ends, ends[1:], strict=False)]
    packed = b"".join(gzip.compress(part, 0, mtime=0) for part in parts)
    assert read(kind, packed) == read(kind, text)


@pytest.mark.parametrize("rows", [ROWS, JSON], ids=["cdx", "cdxj"])
def test_commands_read_addresses(tmp_path: Path, rows: list[bytes]) -> None:
    path = tmp_path / "zipnum.cdx.gz"
    path.write_bytes(zipnum(rows, 5))
    index = run("index", "-w", "-m", ".*", "--json", str(path), str(tmp_path / "index"))
    assert b'"records":188,' in index and b'"added":188,' in index and b'"refused":{},' in index
    run("corpus", str(path), "-o", str(tmp_path / "o.cdxj"))
    assert (tmp_path / "o.cdxj").read_bytes().count(b"\n") == 188


def run(*words: str) -> bytes:
    done = subprocess.run(
        [sys.executable, "-m", "dedupindex", *words], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
