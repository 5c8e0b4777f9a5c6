"""Covers on real executors: components by label propagation are those of union-find."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dedupindex.cli import main
from dedupindex.cover.components import connected_components
from tests.peers.spark import Session
from tests.support.covering import JOURNALIST
from tests.unit.cover.test_cover import BASE, page

pytestmark = pytest.mark.peer


def test_cover_on_spark_equals_the_local_cover(
    spark: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chain = [(n, n + 1) for n in range(60)]  # as long as it gets
    pairs = [*chain, (70, 64), (64, 90), (90, 62), (95, 95), (98, 97)]
    documents = [
        page(
            f"{n}", f"202001{n % 28 + 1:02}000000", BASE + f" {n % 3}" * (n % 4), f"{n % 5}.example"
        )
        for n in range(80)
    ]
    source, relation = tmp_path / "pages.jsonl", [JOURNALIST, "--what-if", "0.9"]
    source.write_text("".join(json.dumps(one) + "\n" for one in documents))
    words = [str(source), "--relation", *relation]
    labels = spark.together(pairs)
    told = spark.run("cover", *words, "-o", tmp_path / "there.jsonl")
    components = dict(connected_components(pairs, 99))
    numbers = sorted({number for pair in pairs for number in pair})
    assert labels == [[number, components.get(number, number)] for number in numbers]
    assert main(["cover", *words, "-o", str(tmp_path / "here.jsonl"), "--json"]) == 0
    here = json.loads(capsys.readouterr().out)
    for report in (told, here):
        del report["seconds"]
    assert told == here
    assert (tmp_path / "there.jsonl").read_bytes() == (tmp_path / "here.jsonl").read_bytes()
