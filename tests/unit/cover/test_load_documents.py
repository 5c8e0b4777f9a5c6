"""Lines of documents are read in bounded memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
import zstandard

from dedupindex.cover import load_documents
from dedupindex.cover.load_documents import lines_of, lines_of_part, parts_of
from dedupindex.errors import BadSource


def test_frames_of_zstd_are_read_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "pages.jsonl.zst"
    blanks = zstandard.compress((b" " * (1 << 20) + b"\n") * 64)
    path.write_bytes(blanks + zstandard.compress(b"{}") + zstandard.compress(b"\n") * 2 + blanks)
    tracemalloc.start()
    assert list(lines_of([str(path)])) == [(f"{path} line 65", b"{}\n")]
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 1 << 24


def test_a_line_that_is_too_long_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_documents, "_LONGEST_LINE", 9)
    path = tmp_path / "pages.jsonl"
    path.write_bytes(b"12345678\n" * 2 + b"123456789\n" + b"1\n")
    first, last = parts_of([str(path)], 20)
    with pytest.raises(BadSource, match="line 3 is longer than 9 bytes"):
        list(lines_of_part(first))
    assert [line for _, line in lines_of_part(last)] == [b"1\n"]
