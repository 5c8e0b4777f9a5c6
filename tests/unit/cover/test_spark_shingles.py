"""What executors do for a cover, without Spark: parts of files, their numbers, and conditions."""

from __future__ import annotations

import gzip
import os
import pickle
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupindex.cover import spark_shingles
from dedupindex.cover.load_documents import FilePart, Prepared, lines_of, lines_of_part, parts_of
from dedupindex.cover.relation import ATTRIBUTES, shingles, terms
from dedupindex.cover.spark_shingles import ShingleRow, _are_met, _numbered, _read
from dedupindex.errors import BadSource
from dedupindex.expression.parser import condition
from dedupindex.expression.tree import Vocabulary
from dedupindex.runtime.spark import Cluster
from tests.support.covering import lines
from tests.unit.cover.test_cover import VERSIONS


def run_here(work: Callable[[Any], Iterable[Any]], tasks: Sequence[Any]) -> Iterator[Any]:
    return chain.from_iterable(map(work, tasks))


HERE = cast(Cluster, SimpleNamespace(rows=run_here))


@pytest.mark.parametrize("seed", range(40))
def test_parts_have_every_line_once(tmp_path: Path, seed: int) -> None:
    chosen = random.Random(seed)
    files = []
    for name in ("plain", "packed.gz"):
        data = b"".join(
            b"x" * chosen.randrange(6) + b"\n" * (chosen.random() < 0.95)
            for _ in range(chosen.randrange(30))
        )
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
        files.append(str(tmp_path / name))
    expected = list(lines_of(files))
    for size in (1, 2, 3, 7, 50):
        parts = _numbered(list(parts_of(files, size)), HERE)
        found = [(part.first, list(lines_of_part(part))) for part in parts]
        assert [line for _, of_part in found for line in of_part] == expected
        for first, of_part in found:
            assert of_part == expected[first : first + len(of_part)]


def test_a_file_that_changes_between_its_parts_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pages.jsonl"
    path.write_bytes(b"1\n2\n3\n")
    first, *_, last = parts_of([str(path)], 2)
    assert list(lines_of_part(first))
    path.write_bytes(b"1\n2\n4\n")
    os.utime(path, ns=(0, 0))
    with pytest.raises(BadSource, match="was changed while it was read"):
        list(lines_of_part(last))


def test_rows_have_metadata_and_all_shingles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_shingles, "_ROW", 7)
    path = tmp_path / "pages.jsonl"
    path.write_bytes(b"".join(line + b"\n" for _, line in lines(VERSIONS)))
    rows = list(_read((1, 5), FilePart(str(path), first=3)))
    assert sum(row.lines for row in rows if isinstance(row, Prepared)) == len(VERSIONS)
    for k in (1, 5):
        for n, one in enumerate(VERSIONS, 3):
            some = [row.shingles for row in rows
                    if isinstance(row, ShingleRow) and (row.k, row.n) == (k, n)]  # fmt: skip
            assert all(len(part) <= 7 for part in some)
            assert sorted(chain.from_iterable(some)) == sorted(shingles(terms(one["text"]), k))


@given(st.none() | st.integers(0, 9), st.none() | st.text("ab", max_size=3))
def test_conditions_are_those_of_the_expression(status: int | None, title: str | None) -> None:
    node = condition("status(a) >= 4 or title(b) =~ '^a'", Vocabulary(ATTRIBUTES, ("a", "b")))
    names = (("a", "status"), ("b", "title"))
    nodes, names = pickle.loads(pickle.dumps(((node,), names)))  # as they reach executors
    expected = (status or 0) >= 4 or (title or "").startswith("a")
    assert _are_met(nodes, names, status, title) == expected
