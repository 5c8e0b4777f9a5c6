"""Small covers by hand, each of which one wrong word in the code would change."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from dedupindex.cli import main
from dedupindex.cover import host_minimum, reduce
from dedupindex.cover.find_cover import CoverOptions
from dedupindex.cover.set_cover import _pruned, _whole
from tests.support.covering import JOURNALIST, CoverRun, least_cost, made
from tests.unit.cover.test_cover import BASE, VERSIONS, page


def drawn(home: Path, costs: Mapping[str, int], pairs: str, **options: Any) -> CoverRun:
    """A run on a graph: ``a>b`` means that `b` covers `a`."""
    documents = [page(one, "20200101000000", "", title="t", quality=costs[one]) for one in costs]
    joined = " or ".join(
        f"(url(a) =~ '/{a}$' and url(b) =~ '/{b}$')"
        for a, b in (pair.split(">") for pair in pairs.split())
    )
    relation = f"title(a) == title(b) and ({joined})"
    return made(documents, relation, home, CoverOptions(cost="quality", **options))


@pytest.fixture
def reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dedupindex.cover.reduce.REDUCED", 0)


@pytest.mark.usefixtures("reduced")
def test_a_more_expensive_document_does_not_replace_a_cheaper(tmp_path: Path) -> None:
    costs = {"p": 1, "x": 1, "y": 10, "z": 1}
    outcome = drawn(tmp_path, costs, "x>y p>y p>x y>z")
    assert outcome.kept == {"x", "z"} and outcome.report.covered.minimal


@pytest.mark.usefixtures("reduced")
def test_a_coverer_of_other_documents_does_not_replace_another(tmp_path: Path) -> None:
    costs = dict.fromkeys(("x", "y", "p1", "p2", "p3", "q1", "q2"), 1)
    outcome = drawn(tmp_path, costs, "p1>x p2>x p3>x x>y p1>y q1>y q2>y")
    assert outcome.kept == {"x", "y"} and outcome.report.covered.minimal


def test_greedy_covers_from_files_are_not_called_least(tmp_path: Path) -> None:
    above = 0
    for seed in range(40):
        chosen = random.Random(seed)
        pairs = sorted(
            {(chosen.randrange(9), chosen.randrange(9)) for _ in range(24)}
            - {(one, one) for one in range(9)}
        )
        costs = {one: float(chosen.randint(1, 3)) for one in range(9)}
        turned = sorted((b, a) for a, b in pairs)
        found = reduce.solve_from_files(0, costs, pairs, turned, tmp_path)
        best = least_cost(
            {str(one): cost for one, cost in costs.items()}, {(str(a), str(b)) for a, b in pairs}
        )
        assert found.bound <= best <= found.cost
        above += found.cost > best
    assert above  # or this would say nothing


def test_the_most_expensive_redundant_document_is_dropped_first() -> None:
    graph = {10: {1, 3}, 20: {2, 3}}, {1: {10}, 2: {20}, 3: {10, 20}}
    assert _pruned([1, 2, 3], *graph, {1: 1.0, 2: 1.0, 3: 5.0}) == [1, 2]
    assert _pruned([1, 2, 3], *graph, {1: 3.0, 2: 3.0, 3: 1.0}) == [3]


@pytest.mark.parametrize(("bound", "whole"), [(3 + 1e-9, 3.0), (2.5, 3.0), (3 - 1e-9, 3.0)])
def test_bounds_of_whole_numbers(bound: float, whole: float) -> None:
    assert _whole(bound, {1: 1.0, 2: 7.0}, [1, 2]) == whole
    assert _whole(bound, {1: 1.0, 2: 7.5}, [1, 2]) == bound


@pytest.mark.parametrize(
    ("measure", "texts"),
    [
        ("containment", ("one two p q", "one two three four five")),
        ("jaccard", ("one two p", "one two q")),
        ("dice", ("one two p q", "one two three four")),
    ],
)
def test_above_is_not_as_much(measure: str, texts: tuple[str, str], tmp_path: Path) -> None:
    """Each likeness is exactly a half; others make what both share the rarest, so it is met."""
    documents = [
        page(str(n), "20200101000000", text, bytes=int(n == 1))
        for n, text in enumerate([*texts, *(f"p q {'x' * n} y z v" for n in range(1, 5))])
    ]
    relation = f"{measure}(k=1) >= 0.5 and size(a) < size(b)"
    assert made(documents, relation, tmp_path).pairs == {("0", "1")}
    assert not made(documents, relation.replace(">=", ">"), tmp_path).pairs


def test_what_if_may_be_asked_in_any_order(tmp_path: Path) -> None:
    text = "jaccard(k=1) >= 0.9 and timestamp(a) <= timestamp(b)"
    documents = [
        page(f"p{n}", f"2020010{n}000000", " ".join(f"w{word}" for word in range(n, n + 10)))
        for n in range(1, 6)
    ]
    wanted = tuple(map(Fraction, ("0.8", "0.3", "0.6")))
    outcome = made(documents, text, tmp_path, CoverOptions(what_if=wanted)).report.what_if
    assert {name: one.pairs for name, one in outcome.items()} == {
        name: made(documents, text.replace("0.9", name), tmp_path).report.covered.pairs
        for name in ("0.8", "0.3", "0.6")
    }
    assert outcome["0.3"].pairs > outcome["0.6"].pairs > outcome["0.8"].pairs


def test_the_minimum_of_a_host_may_have_a_cheaper_solution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`x` alone costs 3; with the cheapest beside it 5, while `p` and `q` cost 4."""
    relation = (
        "hostname(a) == hostname(b) and ((url(a) =~ '/[pq]$' and url(b) =~ '/x$') "
        "or (url(a) =~ '/x$' and url(b) =~ '/p$'))"
    )
    documents = [
        page(one, "20200101000000", "", quality=cost)
        for one, cost in (("x", 3), ("p", 2), ("q", 2))
    ]
    options = CoverOptions(cost="quality", per_host=2)
    outcome = made(documents, relation, tmp_path, options)
    found = outcome.report.covered
    assert outcome.kept == {"p", "q"}
    assert (found.cost, found.bound, found.added, found.minimal) == (4, 4, 1, True)
    with monkeypatch.context() as too_large:
        too_large.setattr(host_minimum, "MOST", 4)
        limited = made(documents, relation, tmp_path, options).report.covered
    greedy = made(documents, relation, tmp_path, replace(options, exact_seconds=0)).report.covered
    for found in (limited, greedy):
        assert (found.cost, found.bound, found.proved) == (5, 4, 0)
    found = made(documents, relation, tmp_path, CoverOptions(per_host=2)).report.covered
    assert (found.cost, found.bound, found.added, found.minimal) == (2, 2, 1, True)


def test_one_name_and_text_at_two_places_are_two_documents(tmp_path: Path) -> None:
    places = [("a", 5), ("a", 9), ("b", 5), ("a", 5)]
    documents = [{**VERSIONS[0], "container": name, "offset": at} for name, at in places]
    outcome = made(documents, JOURNALIST, tmp_path)
    assert [(row["container"], row["offset"]) for row in outcome.rows] == places[:3]
    assert outcome.report.loaded.repeated == 1


def test_an_update_knows_documents_without_pairs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    for number, one in enumerate(VERSIONS[:2]):
        source = tmp_path / f"{number}.jsonl"
        source.write_text(json.dumps(one))
        how = ["--update", out] if number else ["--updatable"]
        words = ["cover", str(source), "--relation", JOURNALIST, "-o", out, "--json", *how]
        assert main(words) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["changed"] == {"covered_now": 1, "kept_again": 0}


def test_the_main_text_of_a_page_is_preferred(tmp_path: Path) -> None:
    """Menus are in the text of a page, and not in its main part."""
    record = {"originalUrl": "http://a.example/", "mime": "text/html"}
    menu = " ".join(f"menu{n}" for n in range(99))
    corpus = [
        {"record": {**record, "timestamp": f"2020-01-0{n}T00:00:00Z"},
         "payload": {"string": {"text": f"{menu} {text}", "html": {"main": text}}}}
        for n, text in ((1, BASE), (2, "of this page nothing else says anything"))
    ]  # fmt: skip
    assert not made(corpus, JOURNALIST, tmp_path).pairs
