"""Covers on real executors: pairs, components and covers are those of one machine."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dedupindex.cli import main
from dedupindex.cover.components import connected_components
from tests.peers.spark import Session
from tests.support.budgets import examples
from tests.support.covering import DOCUMENTS, JOURNALIST, RELATIONS
from tests.unit.cover.test_cover import BASE, page

pytestmark = pytest.mark.peer


def check_equal(
    spark: Session, capsys: pytest.CaptureFixture[str], folder: Path, *words: str
) -> dict[str, Any]:
    """Run bin/cover there and here; return the report, which is the same."""
    there, here = folder / "there.jsonl", folder / "here.jsonl"
    found = spark.run("cover", *words, "-o", there)
    capsys.readouterr()
    assert main(["cover", *words, "-o", str(here), "--json"]) == 0
    expected = dict(json.loads(capsys.readouterr().out))
    for report in (found, expected):
        del report["seconds"], report["steps"]
    assert found == expected
    assert there.read_bytes() == here.read_bytes()
    return expected


def test_cover_on_spark_equals_the_local_cover(
    spark: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chained = [(n, n + 1) for n in range(60)]  # as long as it gets
    pairs = [*chained, (70, 64), (64, 90), (90, 62), (95, 95), (98, 97)]
    labels = spark.together(pairs)
    components = dict(connected_components(pairs, 99))
    numbers = sorted({number for pair in pairs for number in pair})
    assert labels == [[number, components.get(number, number)] for number in numbers]
    documents = [
        page(
            f"{n}", f"202001{n % 28 + 1:02}000000", BASE + f" {n % 3}" * (n % 4), f"{n % 5}.example"
        )
        for n in range(80)
    ]
    plain, packed = tmp_path / "pages.jsonl", tmp_path / "more.jsonl.gz"
    lines = [json.dumps(one) + "\n" for one in documents]
    plain.write_text("\n".join(lines[:50]))  # lines, and empty ones
    packed.write_bytes(gzip.compress("".join(lines[50:]).encode()))
    words = [str(plain), str(packed), "--relation", JOURNALIST, "--what-if", "0.9"]
    report = check_equal(spark, capsys, tmp_path, *words, "--min-per-host", "2")
    assert report["documents"] == 80 and report["candidates"] and report["pairs"]
    # shingles stay on the driver for a state
    words += ["--updatable"]
    check_equal(spark, capsys, tmp_path, *words)


@settings(
    max_examples=examples(4), deadline=None, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(st.lists(DOCUMENTS, min_size=5, max_size=12).map(chain.from_iterable).map(list), RELATIONS)
def test_pairs_of_any_collection_are_the_same(
    spark: Session,
    capsys: pytest.CaptureFixture[str],
    documents: Sequence[dict[str, Any]],
    relation: str,
) -> None:
    with TemporaryDirectory() as name:
        source = Path(name) / "pages.jsonl"
        numbered = ({**one, "id": f"d{n}"} for n, one in enumerate(documents))
        first = page("first", "20200101000000", BASE)  # there is one
        source.write_text("".join(json.dumps(one) + "\n" for one in (first, *numbered)))
        check_equal(spark, capsys, Path(name), str(source), "--relation", relation)
