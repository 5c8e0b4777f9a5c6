"""Small collections, and their covers, found by trying every pair."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import orjson
from hypothesis import strategies as st

from dedupindex.cover import result
from dedupindex.cover.find_cover import CoverOptions, CoverReport, run
from dedupindex.cover.relation import Constraint, Relation, parse, shingles, terms
from dedupindex.expression.evaluate import holds, hostname
from dedupindex.expression.tree import Attribute, Leaf, Value
from dedupindex.runtime.duckdb import Database
from dedupindex.timestamps import date_of_digits, seconds

Found = Mapping[str, Any]
JOURNALIST = (
    "containment(k=5) >= 0.7 and timestamp(a) <= timestamp(b) and hostname(a) == hostname(b)"
)


@dataclass
class CoverRun:
    """The results of a run."""

    report: CoverReport
    rows: list[dict[str, Any]]
    pairs: set[tuple[str, str]]
    hosts: list[dict[str, Any]] = field(default_factory=list)

    @property
    def kept(self) -> set[str]:
        return {row["id"] for row in self.rows if row["kept"]}


def lines(documents: Iterable[Found]) -> list[tuple[str, bytes]]:
    return [(f"line {n}", orjson.dumps(document)) for n, document in enumerate(documents, 1)]


def made(
    documents: Sequence[Found],
    relation: str | Relation,
    home: Path,
    options: CoverOptions = CoverOptions(),  # noqa: B008 (it is frozen)
    **more: Any,
) -> CoverRun:
    """Run on documents."""
    parsed = relation if isinstance(relation, Relation) else parse(relation)
    outcome = CoverRun(CoverReport(""), [], set())

    def finish(database: Database, report: CoverReport) -> None:
        outcome.rows = list(result.rows(database, parsed))
        outcome.hosts = result.hosts(database)
        query = "SELECT a.id, b.id FROM live JOIN ids a ON a.n = live.a JOIN ids b ON b.n = live.b"
        outcome.pairs = set(database.execute(query).fetchall())

    outcome.report = run(lines(documents), parsed, options, home, finish, **more)
    return outcome


def all_pairs(documents: Sequence[Found], relation: Relation) -> set[tuple[str, str]]:
    """Return the pairs of a relation, by trying each."""
    sets = {
        (document["id"], k): shingles(terms(document.get("text") or ""), k)
        for document in documents
        for k in relation.ks
    }
    metadata = {document["id"]: values(document) for document in documents}
    pairs = set()
    for a, b in permutations(metadata, 2):

        def attribute_value(leaf: Leaf, a: str = a, b: str = b) -> Value:
            assert isinstance(leaf, Attribute)
            return metadata[a if leaf.side == "a" else b][leaf.name]

        for key in relation.keys:
            name = getattr(key, "name", "")
            if metadata[a][name] is None or metadata[a][name] != metadata[b][name]:
                break
        else:
            is_similar = all(
                sets[a, constraint.k]
                and sets[b, constraint.k]
                and is_met(constraint, sets[a, constraint.k], sets[b, constraint.k])
                for constraint in relation.content
            )
            others = (*relation.of_a, *relation.of_b, *relation.across)
            if is_similar and all(holds(node, attribute_value) for node in others):
                pairs.add((a, b))
    return pairs


def is_met(constraint: Constraint, a: set[str], b: set[str]) -> bool:
    found = constraint.value(len(a & b), len(a), len(b))
    return found > constraint.threshold if constraint.above else found >= constraint.threshold


def values(document: Found) -> dict[str, Value]:
    timestamp = document.get("timestamp")
    return {
        "url": document["url"],
        "hostname": hostname(document["url"]),
        "mime": document.get("mime"),
        "title": document.get("title"),
        "status": document.get("status"),
        "size": document.get("bytes"),
        "timestamp": seconds(date_of_digits(timestamp.encode())) if timestamp else None,
    }


def uncovered(documents: Iterable[str], kept: set[str], pairs: set[tuple[str, str]]) -> set[str]:
    """Return the documents that no kept one covers."""
    return set(documents) - kept - {a for a, b in pairs if b in kept}


def least_cost(costs: Mapping[str, float], pairs: set[tuple[str, str]]) -> float:
    """Return the cost of the cheapest cover, by trying all sets of documents."""
    return min(
        sum(costs[document] for document in kept)
        for count in range(len(costs) + 1)
        for kept in combinations(costs, count)
        if not uncovered(costs, set(kept), pairs)
    )


WORDS = st.sampled_from(["alpha", "beta", "gamma", "delta", "epsilon"])
TEXTS = st.one_of(
    st.lists(WORDS, max_size=12).map(" ".join),
    st.builds(lambda begin, end: " ".join([*"abcdefghi"[begin:], *end]),
              st.integers(0, 6), st.lists(WORDS, max_size=4)),
)  # fmt: skip
DOCUMENTS = st.lists(
    st.fixed_dictionaries(
        {
            "url": st.sampled_from(
                ["http://a.example/1", "http://A.example/2", "http://b.example/1", "urn:none"]
            ),
            "timestamp": st.none()
            | st.sampled_from(["20200101000000", "20200103000000", "20200120120000"]),
            "text": TEXTS,
            "mime": st.sampled_from([None, "text/html", "text/plain"]),
            "title": st.sampled_from([None, "one", "two"]),
            "status": st.sampled_from([None, 200, 404]),
            "bytes": st.integers(1, 9),
        }
    ),
    max_size=9,
).map(lambda documents: [{**document, "id": f"d{n}"} for n, document in enumerate(documents)])
_THRESHOLDS = st.sampled_from(["0.1", "0.3", "0.5", "0.7", "0.9", "1", "0.333333333"])
CONTENT = st.builds(
    lambda measure, k, sign, threshold: (
        f"{measure}(k={k}) {'>=' if threshold == '1' else sign} {threshold}"
    ),
    st.sampled_from(["containment", "jaccard", "dice"]),
    st.integers(1, 4),
    st.sampled_from([">=", ">"]),
    _THRESHOLDS,
)
METADATA = st.sampled_from(
    [
        "hostname(a) == hostname(b)",
        "title(b) == title(a)",
        "timestamp(a) <= timestamp(b)",
        "timestamp(a) >= timestamp(b) - 7d",
        "status(a) == 404",
        "status(b) != 404",
        "size(a) <= 2 * size(b)",
        "mime(a) != mime(b)",
        "not (url(a) =~ '1$' and title(b) == 'one')",
        "(status(a) == 200 or mime(b) == 'text/html')",
    ]
)
RELATIONS = st.builds(
    lambda content, metadata: " and ".join([*content, *metadata]),
    st.lists(CONTENT, min_size=1, max_size=2),
    st.lists(METADATA, max_size=3),
)
