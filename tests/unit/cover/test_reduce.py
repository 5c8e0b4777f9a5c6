"""Components of very many pairs: made smaller in DuckDB, or covered from files."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupindex.cover.components import connected_components
from dedupindex.cover.find_cover import CoverOptions
from dedupindex.cover.relation import parse
from tests.support.budgets import examples
from tests.support.covering import (
    DOCUMENTS,
    JOURNALIST,
    RELATIONS,
    CoverRun,
    all_pairs,
    least_cost,
    made,
    uncovered,
)

_WHOLE = settings(max_examples=examples(6), deadline=None)
_FEW_TEXTS = st.lists(st.integers(0, 2), min_size=9, max_size=9)
_COSTS = st.sampled_from(["1", "size"])


def _repeating(documents: list[dict[str, Any]], texts: list[int]) -> list[dict[str, Any]]:
    """The same, of which many have one text."""
    return [
        {**one, "text": documents[which % len(documents)]["text"]}
        for one, which in zip(documents, texts, strict=False)
    ]


def _checked(documents: list[dict[str, Any]], text: str, cost: str, **patched: int) -> CoverRun:
    """Run with bounds that small components are above; what is always true of the result."""
    relation = parse(text)
    with tempfile.TemporaryDirectory() as home, pytest.MonkeyPatch.context() as patch:
        for name, bound in patched.items():
            patch.setattr(f"dedupindex.cover.reduce.{name}", bound)
        outcome = made(documents, relation, Path(home), CoverOptions(cost=cost))
    pairs = all_pairs(documents, relation)
    names = [one["id"] for one in documents]
    assert outcome.pairs == pairs
    assert not uncovered(names, outcome.kept, pairs)
    numbered = ((names.index(a), names.index(b)) for a, b in pairs)
    components = dict(connected_components(numbered, len(names)))
    assert [row["component"] for row in outcome.rows] == [
        components.get(n, n) for n in range(len(names))
    ]
    return outcome


@_WHOLE
@given(DOCUMENTS.filter(bool), _FEW_TEXTS, RELATIONS, _COSTS)
def test_reduced_components_have_minimum_covers(
    documents: list[dict[str, Any]], texts: list[int], text: str, cost: str
) -> None:
    documents = _repeating(documents, texts)
    outcome = _checked(documents, text, cost, REDUCED=0)
    costs = {one["id"]: 1.0 if cost == "1" else float(one["bytes"]) for one in documents}
    assert outcome.report.covered.minimal
    assert sum(costs[one] for one in outcome.kept) == least_cost(costs, outcome.pairs)


@_WHOLE
@given(DOCUMENTS.filter(bool), _FEW_TEXTS, RELATIONS, _COSTS)
def test_covers_from_files_are_valid_and_not_called_better_than_they_are(
    documents: list[dict[str, Any]], texts: list[int], text: str, cost: str
) -> None:
    documents = _repeating(documents, texts)
    outcome = _checked(documents, text, cost, REDUCED=10**9, MOST=0)
    covered = outcome.report.covered
    costs = {one["id"]: 1.0 if cost == "1" else float(one["bytes"]) for one in documents}
    alone = set(costs) - {name for pair in outcome.pairs for name in pair}
    best = least_cost(costs, outcome.pairs) - sum(costs[one] for one in alone)
    assert set(covered.how) <= {"greedy"}
    assert covered.bound <= best + 1e-6 <= covered.cost + 2e-6
    assert covered.cost == sum(costs[one] for one in outcome.kept - alone)
    assert covered.cost == best or not covered.minimal


def test_captures_of_one_text_take_bounded_memory(tmp_path: Path) -> None:
    """An error page that a host has given 2,500 times: three million pairs."""
    count = 2500
    source = tmp_path / "pages.jsonl"
    with open(source, "w") as stream:
        for n in range(count):
            moment = f"20200101{n // 3600:02}{n // 60 % 60:02}{n % 60:02}"
            page = {"url": f"http://a.example/{n}", "timestamp": moment, "text": "not found " * 9}
            stream.write(json.dumps(page) + "\n")
    words = ["cover", str(source), "--relation", JOURNALIST, "-o", str(tmp_path / "out"),
             "--memory", "200MB", "--jobs", "1", "--json"]  # fmt: skip
    code = (
        f"import sys; from dedupindex.cli import main; status = main({words!r}); "
        "print(open('/proc/self/status').read(), file=sys.stderr); sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["kept"], report["covered"], report["minimal"]) == (1, count - 1, True)
    assert report["pairs"] == count * (count - 1) // 2
    most = int(done.stderr.partition("VmHWM:")[2].split()[0]) << 10
    assert most < 450 << 20, f"{most >> 20} MiB"
