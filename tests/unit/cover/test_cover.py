"""Covers of random collections against brute force: pairs, validity, and minimality."""

from __future__ import annotations

import itertools
import random
import tempfile
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupindex.cover import set_cover
from dedupindex.cover.components import connected_components
from dedupindex.cover.document_store import MAX_LINE
from dedupindex.cover.exact import ExactCover
from dedupindex.cover.find_cover import CoverOptions
from dedupindex.cover.pairs import AIM, HASHES, bands
from dedupindex.cover.relation import parse, shingles, terms
from dedupindex.cover.set_cover import FEW, CoverTask, Instance, _replaceable, greedy, solve
from dedupindex.errors import BadInput, BadQuery, BadSource, SettingsConflict
from dedupindex.expression.evaluate import hostname
from tests.support.budgets import examples
from tests.support.covering import (
    DOCUMENTS,
    JOURNALIST,
    RELATIONS,
    all_pairs,
    least_cost,
    made,
    uncovered,
)

_SETTINGS = settings(max_examples=examples(60), deadline=None)
_WHOLE = settings(max_examples=examples(12), deadline=None)  # of whole runs


@_WHOLE
@given(DOCUMENTS.filter(bool), RELATIONS)
def test_pairs_are_those_of_brute_force_and_the_cover_is_valid_and_least(
    documents: list[dict[str, Any]], text: str
) -> None:
    relation = parse(text)
    with tempfile.TemporaryDirectory() as home:
        outcome = made(documents, relation, Path(home))
    expected = all_pairs(documents, relation)
    assert outcome.pairs == expected
    names = {one["id"] for one in documents}
    assert names == {row["id"] for row in outcome.rows}
    assert not uncovered(names, outcome.kept, expected)
    assert outcome.report.covered.minimal
    assert len(outcome.kept) == least_cost(dict.fromkeys(names, 1), expected)
    for row in outcome.rows:
        if row["kept"]:
            assert row["covered_by"] is None
        else:
            assert (row["id"], row["covered_by"]) in expected and row["covered_by"] in outcome.kept


GRAPHS = st.integers(2, 13).flatmap(
    lambda count: st.tuples(
        st.lists(st.sampled_from([1, 1, 2, 5, 0.5]), min_size=count, max_size=count),
        st.lists(
            st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)).filter(
                lambda pair: pair[0] != pair[1]
            ),
            max_size=40,
        ),
    )
)


def task_of(costs: Sequence[float], pairs: Sequence[tuple[int, int]]) -> CoverTask:
    return CoverTask(0, dict(enumerate(map(float, costs))), pairs)


@_SETTINGS
@given(GRAPHS, st.sampled_from([0.0, 5.0]), st.integers(0, FEW), st.sampled_from([1, 1e-7, 1e9]))
def test_covers_of_graphs(
    graph: tuple[list[float], list[tuple[int, int]]], seconds: float, few: int, unit: float
) -> None:
    """`unit` is what costs are counted in, which changes nothing."""
    costs, pairs = [cost * unit for cost in graph[0]], graph[1]
    named = {(str(a), str(b)) for a, b in pairs}
    prices = {str(n): float(cost) for n, cost in enumerate(costs)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dedupindex.cover.set_cover.FEW", few)
        found = solve(task_of(costs, pairs), seconds)
    best = least_cost(prices, named)
    kept = set(map(str, found.kept))
    assert not uncovered(prices, kept, named)
    assert found.cost == pytest.approx(sum(prices[one] for one in kept))
    assert found.bound <= best * (1 + 1e-9) <= found.cost * (1 + 2e-9)
    if found.minimal:
        assert found.cost == pytest.approx(best)
    if seconds:
        assert found.minimal


def _drawn(seed: int) -> tuple[list[float], list[tuple[int, int]]]:
    """Costs of a millionth, as of ``1 / quality``."""
    drawn = random.Random(seed)
    costs = [1 / drawn.randint(10**5, 10**7) for _ in range(13)]
    pairs = [(a, b) for a in range(13) for b in range(13) if a != b and drawn.random() < 0.25]
    return costs, pairs


@pytest.mark.parametrize("seed", range(20))
def test_small_costs_are_no_reason_to_stop_early(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dedupindex.cover.set_cover.FEW", 0)
    costs, pairs = _drawn(seed)
    found = solve(task_of(costs, pairs), 5.0)
    best = least_cost(dict(zip(map(str, range(13)), costs, strict=True)),
                 {(str(a), str(b)) for a, b in pairs})  # fmt: skip
    assert found.minimal
    assert found.cost == pytest.approx(best, rel=1e-9)
    assert found.bound <= best * (1 + 1e-9)


@pytest.mark.parametrize(
    ("cost", "bound", "minimal"),
    [
        (2e9 + 1, 2e9, False),  # in bytes one is one
        (2e9, 2e9, True),
        (2e9 + 0.5, 2e9 + 0.4, True),
        (1.5, 1.49, False),
        (1.5e-7, 1.49e-7, False),
    ],
)
def test_costs_that_differ_only_by_rounding(cost: float, bound: float, minimal: bool) -> None:
    assert (set_cover.settled(cost, bound, set_cover.SLACK) == cost) == minimal


@pytest.mark.parametrize(("dearest", "asked"), [(9e6, True), (2e7, False)])
def test_costs_of_too_many_magnitudes_are_not_left_to_the_solver(
    dearest: float, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There its tolerances would be as large as costs are."""
    asking: list[float] = []

    def solved(*_: Any) -> ExactCover:
        asking.append(dearest)
        return ExactCover([], 0.0)

    monkeypatch.setattr(set_cover, "solve_exactly", solved)
    monkeypatch.setattr(set_cover, "FEW", 0)
    ring = [(n, (n + 1) % 5) for n in range(5)] + [((n + 1) % 5, n) for n in range(5)]
    found = solve(task_of([1.0, 1.5, 1.0, 1.5, dearest], ring), 5.0)
    assert bool(asking) == asked and found.how == "greedy"


@_SETTINGS
@given(GRAPHS)
def test_greedy_covers_and_its_bound(graph: tuple[list[float], list[tuple[int, int]]]) -> None:
    costs, pairs = graph
    named = {(str(a), str(b)) for a, b in pairs}
    prices = {str(n): float(cost) for n, cost in enumerate(costs)}
    coverers = {n: {n} for n in range(len(costs))}
    for a, b in pairs:
        coverers[a].add(b)
    instance = Instance(coverers)
    kept, bound = greedy(coverers, instance.covered, dict(enumerate(map(float, costs))))
    assert not uncovered(prices, set(map(str, kept)), named)
    assert bound <= least_cost(prices, named) + 1e-6


def test_a_hard_component_is_solved_exactly_in_time_or_bounded() -> None:
    """Steiner triples: the classic of covers that greedy does not find."""
    points = 45
    pairs = [(a, (a * step + shift) % points) for a in range(points)
             for step, shift in ((1, 1), (2, 5), (4, 11), (7, 3))]  # fmt: skip
    pairs = [(a, b) for a, b in pairs if a != b]
    exactly = solve(task_of([1.0] * points, pairs), 20.0)
    quickly = solve(task_of([1.0] * points, pairs), 0.0)
    assert exactly.minimal
    assert exactly.bound == exactly.cost <= quickly.cost
    assert quickly.bound <= exactly.cost


def test_a_long_chain_is_reduced_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions of a page that changes slowly: each is covered by the next five."""
    versions, looked = 3000, []

    def replaceable(instance: Instance, document: int, costs: Any) -> bool:
        looked.append(document)
        return _replaceable(instance, document, costs)

    monkeypatch.setattr(set_cover, "_replaceable", replaceable)
    pairs = [(a, b) for a in range(versions) for b in range(a + 1, min(versions, a + 6))]
    found = solve(task_of([1.0] * versions, pairs), 0.0)
    assert found.minimal and found.cost == versions / 6
    assert len(looked) <= versions


@_SETTINGS
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=40))
def test_components(pairs: list[tuple[int, int]]) -> None:
    groups = {one: {one} for one in range(31)}
    for a, b in pairs:
        joined = groups[a] | groups[b]
        for one in joined:
            groups[one] = joined
    together = dict(connected_components(pairs, 31))
    assert together == {one: max(group) for one, group in groups.items() if len(group) > 1}


# --- what an option means ----------------------------------------------------------------------


def page(name: str, moment: str, text: str, host: str = "a.example", **more: Any) -> dict[str, Any]:
    return {"id": name, "url": f"http://{host}/{name}", "timestamp": moment, "text": text, **more}


BASE = " ".join(f"word{n}" for n in range(40))
VERSIONS = [
    page("v1", "20200101000000", BASE, bytes=100),
    page("v2", "20200102000000", BASE + " more at the end", bytes=200),
    page("v3", "20200103000000", BASE.replace("word7", "other") + " more at the end", bytes=300),
    page("alone", "20200104000000", "nothing that any other page says in such words", bytes=50),
    page("else", "20200105000000", BASE, "b.example", bytes=400),
]


def test_the_journalist_keeps_the_latest_of_each_host(tmp_path: Path) -> None:
    outcome = made(VERSIONS, JOURNALIST, tmp_path)
    assert outcome.kept == {"v3", "alone", "else"}
    by = {row["id"]: row for row in outcome.rows}
    assert by["v1"]["covered_by"] == "v3" and by["v2"]["covered_by"] == "v3"
    assert by["v1"]["why"] == {"containment(k=5)": 0.8611, "shingles(k=5)": [36, 40, 31]}
    assert by["v1"]["component"] == by["v3"]["component"] != by["alone"]["component"]
    covered = outcome.report.covered
    assert (covered.kept, covered.covered, covered.bytes_kept, covered.bytes_covered) == (
        3, 2, 750, 300,
    )  # fmt: skip
    assert outcome.hosts[0] == {"host": "a.example", "documents": 4, "kept": 2, "covered": 2,
                             "covered_percent": 50.0, "bytes": 650, "covered_bytes": 300,
                             "covered_bytes_percent": 100 * 300 / 650, "unsized": 0}  # fmt: skip
    outcome.report.hosts = outcome.hosts
    assert outcome.report.as_json()["hosts"][0]["covered_bytes_percent"] == 46.15


@_WHOLE
@given(DOCUMENTS.filter(bool))
def test_statistics_of_a_collection(documents: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        text = "containment(k=2) >= 0.5 and jaccard(k=1) >= 0.1"
        loaded = made(documents, text, Path(name)).report.loaded
    several = list(Counter(one["url"] for one in documents).values())
    assert loaded.urls == len(several)
    expected = {"mean": mean(several), "deviation": pstdev(several), "most": max(several)}
    assert loaded.versions == pytest.approx(expected, abs=0.001)
    for k in (1, 2):
        sets = [shingles(terms(one["text"]), k) for one in documents]
        counts = {"all": sum(map(len, sets)), "distinct": len(set().union(*sets))}
        assert loaded.shingles[str(k)] == counts


def test_bytes_that_are_not_stated_are_unknown(tmp_path: Path) -> None:
    documents = [page("a", "20200101000000", BASE), page("b", "20200102000000", BASE, bytes=7)]
    outcome = made(documents, "jaccard(k=5) >= 0.7 and size(a) >= 0", tmp_path)
    assert outcome.pairs == {("b", "a")}  # a comparison with what is unknown is false
    assert [row["bytes"] for row in outcome.rows] == [None, 7]
    assert (outcome.report.covered.bytes_kept, outcome.report.covered.bytes_covered) == (0, 7)
    assert outcome.report.loaded.unsized == 1
    with pytest.raises(BadInput, match="--cost size: that of a is not known"):
        made(documents, JOURNALIST, tmp_path, CoverOptions(cost="size"))


def test_costs_decide_which_documents_are_kept(tmp_path: Path) -> None:
    either = "jaccard(k=5) >= 0.6 and hostname(a) == hostname(b)"
    outcome = made(VERSIONS, either, tmp_path, CoverOptions(cost="size"))
    assert outcome.kept == {"v1", "alone", "else"} or outcome.report.covered.minimal
    assert outcome.report.covered.cost == outcome.report.covered.bound
    documents = [{**one, "quality": n + 1} for n, one in enumerate(VERSIONS)]
    outcome = made(documents, either, tmp_path, CoverOptions(cost="1 / quality"))
    assert "v1" not in outcome.kept and not uncovered({"v1"}, outcome.kept, outcome.pairs)


def test_a_cost_that_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="--cost quality: that of v1 is not known"):
        made(VERSIONS, JOURNALIST, tmp_path, CoverOptions(cost="quality"))
    with pytest.raises(BadInput, match="would be -1, and it must be above 0"):
        made(VERSIONS, JOURNALIST, tmp_path, CoverOptions(cost="0 - 1"))


@settings(max_examples=examples(40), deadline=None)
@given(
    DOCUMENTS.filter(bool), st.integers(1, 4), st.sampled_from(["1", "size"]),
    st.sampled_from([" and hostname(a) == hostname(b)", " and size(a) <= size(b)", ""]),
)  # fmt: skip
def test_the_minimum_of_every_host_is_kept_at_the_least_cost(
    documents: list[dict[str, Any]], count: int, cost: str, more: str
) -> None:
    with tempfile.TemporaryDirectory() as home:
        options = CoverOptions(per_host=count, cost=cost)
        outcome = made(documents, f"containment(k=1) >= 0.3{more}", Path(home), options)
    hosts: dict[str, set[str]] = {}
    for one in documents:
        if host := hostname(one["url"]):
            hosts.setdefault(host, set()).add(one["id"])

    def is_valid(kept: set[str]) -> bool:
        enough = all(len(kept & of_host) >= min(count, len(of_host)) for of_host in hosts.values())
        return enough and not uncovered({one["id"] for one in documents}, kept, outcome.pairs)

    costs = {one["id"]: 1 if cost == "1" else one["bytes"] for one in documents}
    subsets = itertools.chain.from_iterable(
        itertools.combinations(costs, size) for size in range(len(costs) + 1)
    )
    least = min(sum(map(costs.__getitem__, kept)) for kept in subsets if is_valid(set(kept)))
    assert is_valid(outcome.kept)
    assert sum(costs[one] for one in outcome.kept) == least
    assert outcome.report.covered.minimal
    assert outcome.report.covered.cost == outcome.report.covered.bound


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_latest_of_several_is_that_of_time(order: tuple[int, ...], tmp_path: Path) -> None:
    """In any order of input; a document without a time comes last."""
    several = [
        page("2020", "20200101000000", BASE + " one that differs here at its end"),
        page("2022", "20220101000000", BASE + " another that differs there at its end"),
        {**page("when", "", BASE + " third of those which all differ"), "timestamp": None},
    ]
    short = page("short", "20190101000000", BASE)
    documents = [*(several[one] for one in order), short]
    outcome = made(documents, "containment(k=5) >= 0.95", tmp_path)
    assert outcome.kept == {"2020", "2022", "when"}
    row = outcome.rows[-1]
    assert (row["covered_by"], row["covered_by_others"]) == ("2022", 2)

    dated = [page(name, f"{name}0101000000", BASE) for name in ("2020", "2021", "2022")]
    dated = [dated[one] for one in order]
    first = "jaccard(k=5) >= 0.9 and timestamp(a) >= timestamp(b)"
    assert made(dated, first, tmp_path).kept == {"2020"}
    assert made(dated, first, tmp_path, CoverOptions(per_host=2)).kept == {"2020", "2022"}
    dear = [{**one, "quality": 2 if one["id"] == "2022" else 1} for one in dated]
    options = CoverOptions(per_host=2, cost="quality")
    assert made(dear, first, tmp_path, options).kept == {"2020", "2021"}


def test_of_one_time_the_last_in_the_input_covers(tmp_path: Path) -> None:
    moment, host = "20200101000000", "jaccard(k=5) >= 0.9 and title(a) != title(b)"
    sides = [page(name, moment, BASE, title="t") for name in ("one", "two")]
    other = page("other", moment, BASE, title="u", quality=9)
    documents = [{**one, "quality": 1} for one in sides] + [other]
    outcome = made(documents, host, tmp_path, CoverOptions(cost="quality"))
    assert outcome.kept == {"one", "two"} and outcome.rows[-1]["covered_by"] == "two"
    same = [page(f"p{n}", moment, BASE) for n in range(4)]
    first = "jaccard(k=5) >= 0.9 and size(a) >= size(b)"
    sized = [{**one, "bytes": n + 1} for n, one in enumerate(same)]
    assert made(sized, first, tmp_path, CoverOptions(per_host=2)).kept == {"p0", "p3"}


def test_what_if_counts_equal_those_of_separate_runs(tmp_path: Path) -> None:
    wanted = tuple(map(Fraction, ("0.5", "0.8", "0.95")))
    outcome = made(VERSIONS, JOURNALIST, tmp_path, CoverOptions(what_if=wanted))
    assert outcome.report.covered.covered == 2
    for threshold, covered in outcome.report.what_if.items():
        alone = made(VERSIONS, JOURNALIST.replace("0.7", threshold), tmp_path)
        assert (covered.pairs, covered.kept, covered.bytes_covered) == (
            alone.report.covered.pairs,
            alone.report.covered.kept,
            alone.report.covered.bytes_covered,
        )
    with pytest.raises(BadInput, match="--what-if takes a relation with a content constraint"):
        made(VERSIONS, "title(a) == title(b)", tmp_path, CoverOptions(what_if=wanted))


def test_thresholds_that_differ_late_are_not_one(tmp_path: Path) -> None:
    wanted = tuple(map(Fraction, ("0.12345678", "0.12345679", "1/3")))
    outcome = made(VERSIONS, JOURNALIST, tmp_path, CoverOptions(what_if=wanted))
    assert list(outcome.report.what_if) == ["0.12345678", "0.12345679", "1/3"]
    assert str(parse("dice(k=2) > 0.123456789").content[0]) == "dice(k=2) > 0.123456789"
    assert str(parse("dice(k=2) >= 1.0").content[0]) == "dice(k=2) >= 1"


def test_parentheses_of_conditions_may_be_deep() -> None:
    relation = parse(
        "(((containment(k=5) >= 0.7 and url(a) != url(b)) and hostname(a) == hostname(b)) "
        "and status(a) == 200)"
    )
    assert (len(relation.content), len(relation.keys), len(relation.of_a)) == (1, 1, 1)


@pytest.mark.parametrize("name", ["status", "bytes", "offset", "length"])
def test_whole_numbers_may_be_large(name: str, tmp_path: Path) -> None:
    large = (1 << 53) - 1
    outcome = made([{**VERSIONS[0], name: large}, *VERSIONS[1:]], JOURNALIST, tmp_path)
    assert len(outcome.rows) == len(VERSIONS)
    assert name == "status" or outcome.rows[0][name] == large


def test_metadata_alone_make_a_relation(tmp_path: Path) -> None:
    documents = [{**one, "title": "t"} for one in VERSIONS]
    text = "title(a) == title(b) and timestamp(a) < timestamp(b)"
    outcome = made(documents, text, tmp_path)
    assert outcome.kept == {"else"}
    assert outcome.pairs == all_pairs(documents, parse(text))


def test_a_text_may_be_longer_than_a_line_of_metadata(tmp_path: Path) -> None:
    documents = [{**one, "text": "a" * (3 * MAX_LINE)} for one in VERSIONS[:2]]
    assert made(documents, "hostname(a) == hostname(b)", tmp_path).report.loaded.documents == 2


def test_the_same_capture_twice_is_one_document(tmp_path: Path) -> None:
    outcome = made([*VERSIONS, *VERSIONS[:2]], JOURNALIST, tmp_path)
    assert len(outcome.rows) == len(VERSIONS)
    assert outcome.report.loaded.repeated == 2
    again = {**VERSIONS[0], "text": "of the same second and the same address, yet another text"}
    outcome = made([*VERSIONS, again], JOURNALIST, tmp_path)
    assert {row["id"] for row in outcome.rows} >= {"v1", "v1#2"}
    for change in ({"url": "http://else.example/"}, {"timestamp": "20190101000000"}):
        outcome = made([*VERSIONS, {**VERSIONS[0], **change}], JOURNALIST, tmp_path)
        assert len(outcome.rows) == len(VERSIONS) + 1 and outcome.report.loaded.repeated == 0


def test_processes_find_the_same(tmp_path: Path) -> None:
    documents = [
        page(
            f"{n}", f"202001{n % 28 + 1:02}000000", BASE + f" {n % 9}" * (n % 4), f"{n % 7}.example"
        )
        for n in range(1500)
    ]
    one = made(documents, JOURNALIST, tmp_path)
    two = made(documents, JOURNALIST, tmp_path, CoverOptions(jobs=2))
    assert one.rows == two.rows
    assert one.report.covered.covered > 1000


def test_minhash_pairs_are_exact_and_misses_are_measured(tmp_path: Path) -> None:
    chosen = random.Random(7)
    documents = []
    for group in range(60):
        words = [f"g{group}w{chosen.randrange(400)}" for _ in range(200)]
        for version in range(4):
            for _ in range(chosen.randrange(12)):
                words[chosen.randrange(200)] = f"changed{chosen.randrange(1000)}"
            documents.append(
                page(f"{group}-{version}", f"2020010{version + 1}000000", " ".join(words))
            )
    exact = made(documents, JOURNALIST, tmp_path)
    near = made(documents, JOURNALIST, tmp_path, CoverOptions(approximate=True))
    assert near.pairs <= exact.pairs
    recall = near.report.found.recall
    assert recall is not None and near.report.found.sampled > 100
    assert recall >= 0.8
    assert recall == pytest.approx(len(near.pairs) / len(exact.pairs), abs=0.1)
    assert not uncovered({one["id"] for one in documents}, near.kept, exact.pairs)


@pytest.mark.parametrize("jaccard", [0.05, 0.3, 0.54, 0.7, 0.9, 1.0])
def test_bands_reach_the_aim(jaccard: float) -> None:
    count, rows = bands(jaccard)
    assert count * rows <= HASHES
    assert 1 - (1 - jaccard**rows) ** count >= min(AIM, 1 - (1 - jaccard) ** HASHES)


# --- complaints --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("timestamp(a) <= timestamp(b)", "needs a content constraint"),
        ("containment(k=5) >= 1.5", "above 0 and at most 1"),
        ("containment(k=5) > 1", "above 0 and at most 1"),
        ("containment(k=5) >= 0", "above 0 and at most 1"),
        ("containment(k=5) >= 0.12345678901", "at most 9 digits"),
        ("containment(k=5) <= 0.5", r"is written containment\(k=5\) >= 0.7"),
        ("jaccard(k=2) >= 0.5 or title(a) == title(b)", r"is written jaccard\(k=2\) >= 0.7"),
        ("containment(k=500) >= 0.5", "at most 100 terms"),
        ("containment(k=0) >= 0.5", "with whole numbers from 1 on"),
        ("containment(k=5) >= size(a)", r"is written containment\(k=5\) >= 0.7"),
    ],
)
def test_invalid_relations(text: str, message: str) -> None:
    with pytest.raises(BadQuery, match=message):
        parse(text)


def test_comments_and_lines_of_a_relation() -> None:
    text = "# near-equal pages\njaccard(k=3) >= 0.8\n  and 0.5 <= dice(k=2)\n"
    relation = parse(text)
    assert [str(one) for one in relation.content] == ["jaccard(k=3) >= 0.8", "dice(k=2) >= 0.5"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "line 7 is no JSON"),
        (b"[]", "line 7 is no JSON object"),
        (b"{}", "line 7 is not a document: it has no url"),
        (b'{"url": 5}', "its url is not text"),
        (b'{"url": "x", "timestamp": "2020"}', "line 7 is not a document: not a time of 14 digits"),
        (b'{"url": "x", "status": "ok"}', "is not a whole number"),
        (b'{"record": {}}', "its record has no originalUrl"),
    ],
)
def test_lines_that_are_no_documents(line: bytes, message: str, tmp_path: Path) -> None:
    from dedupindex.cover.find_cover import run

    with pytest.raises(BadSource, match=message):
        run(
            [("line 7", line)],
            parse(JOURNALIST),
            CoverOptions(),
            tmp_path,
            lambda database, report: None,
        )


def test_no_documents(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="there is no document"):
        made([], JOURNALIST, tmp_path)


def test_hostile_text_is_only_text(tmp_path: Path) -> None:
    hostile = (
        '\'; DROP TABLE documents; -- \t\n "quoted" \x00 \u2028 𝔘𝔫𝔦 é́ 日本語の文章です ไทย ' * 3
    )
    documents = [
        page("'; --", "20200101000000", hostile, title="a\0b\ttab\"'"),
        page("\t\n", "20200102000000", hostile, title="\u2028"),
    ]
    outcome = made(documents, JOURNALIST, tmp_path)
    assert outcome.kept == {"\t\n"}


def test_a_state_of_another_version_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    with pytest.raises(BadSource, match="there is no state of a run"):
        made(VERSIONS, JOURNALIST, tmp_path, before=state)
    (state / "state.json").write_text('{"format": 99}')
    with pytest.raises(SettingsConflict, match="has format 99"):
        made(VERSIONS, JOURNALIST, tmp_path, before=state)
