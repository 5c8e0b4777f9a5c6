"""Paths and outputs with names that CSV or DuckDB treat specially."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dedupindex.documents.dedup_shards import dedup_hashes
from tests.support.commands import typed
from tests.unit.documents.test_documents import hashed, kept


@pytest.mark.parametrize("name", ["a\r\nb", "a\nb", 'a"\r\n"b', 'a,"b\r\n', "\r\n"])
def test_shards_whose_first_path_has_line_ends(tmp_path: Path, name: str) -> None:
    for one in (name, "z"):
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / one).write_text("same")
    hashed(tmp_path / "in", tmp_path / "out", form="csv")
    report = dedup_hashes(str(tmp_path / "out"), tmp_path / "u.csv")
    assert (report.total_files, report.unique_files) == (2, 1)
    assert [*kept(tmp_path / "u.csv").values()] == [str(tmp_path / "in" / name)]


def test_an_output_whose_name_is_not_utf_8_is_refused_first(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("x")
    hashed(tmp_path / "in", tmp_path / "h")
    odd = tmp_path / os.fsdecode(b"caf\xe9")
    for words in (
        ("hash_documents", tmp_path / "in", odd),
        ("dedup_hashes", tmp_path / "h", odd),
        ("run_pipeline", tmp_path / "in", odd),
    ):
        assert f"{tmp_path}/caf\\xe9: this name is not UTF-8" in typed(*words, status=4)[1]
    assert not odd.exists()
