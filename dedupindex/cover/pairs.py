"""Find pairs of a covered and a covering document by an inverted index of shingles in DuckDB.

The equalities of the relation partition documents into blocks; within a block, documents with the
same terms are one unit. Of each unit only the rarest shared shingles are looked up, as many as the
prefix filter requires; candidates that pass the length filter and the conditions on metadata are
then compared in full. Shingles are compared as text, so the result is exact. Tables may spill to
disk.

From ``documents``, ``contents`` and, for each k, ``shingles_K`` (see `document_store`) this makes
``pairs(a, b, of_a_K, of_b_K, shared_K, …)``: the numbers of the documents, and for each k how many
shingles each has and both share.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import floor, sqrt
from typing import Protocol

from dedupindex.cover.relation import Constraint, Relation
from dedupindex.expression.evaluate import to_sql
from dedupindex.expression.tree import Attribute, Leaf, Node
from dedupindex.runtime.duckdb import Database, number

# --- content constraints as SQL of DuckDB and Spark, in whole numbers: doubles would round --------


def _suffices(constraint: Constraint, shared: str, size: str) -> str:
    """Whether `a`, which has `size` shingles, may meet the constraint if it shares so many."""
    numerator, denominator = constraint.threshold.numerator, constraint.threshold.denominator
    if constraint.measure == "dice":
        denominator = 2 * denominator - numerator
    sign = ">" if constraint.above else ">="
    return f"({denominator} * {_big(shared)} {sign} {numerator} * {_big(size)})"


def _big(number: str) -> str:
    return f"CAST({number} AS BIGINT)"


def _possible(constraint: Constraint, of_a: str, of_b: str) -> str:
    """Whether sets of these sizes can meet the constraint."""
    possible = _suffices(constraint, of_b, of_a)
    if constraint.measure == "containment":
        return possible
    return f"{possible} AND {_suffices(constraint, of_a, of_b)}"


def _operands(constraint: Constraint, shared: str, of_a: str, of_b: str) -> tuple[str, str]:
    """Numerator and denominator of the measure."""
    if constraint.measure == "containment":
        return _big(shared), _big(of_a)
    if constraint.measure == "jaccard":
        return _big(shared), f"({_big(of_a)} + {of_b} - {shared})"
    return f"2 * {_big(shared)}", f"({_big(of_a)} + {of_b})"


def satisfied(constraint: Constraint, shared: str, of_a: str, of_b: str) -> str:
    """Whether sets of these sizes meet the constraint."""
    numerator, denominator = _operands(constraint, shared, of_a, of_b)
    sign, threshold = ">" if constraint.above else ">=", constraint.threshold
    return f"({numerator} * {threshold.denominator} {sign} {threshold.numerator} * {denominator})"


def measure(constraint: Constraint, shared: str, of_a: str, of_b: str) -> str:
    """The measure itself, as a DOUBLE."""
    numerator, denominator = _operands(constraint, shared, of_a, of_b)
    return f"({numerator} / ({denominator})::DOUBLE)"


def _most_selective(constraints: tuple[Constraint, ...]) -> Constraint:
    """The constraint with the fewest candidates: it requires the largest share of `a`."""

    def share(constraint: Constraint) -> tuple[float, bool]:
        return _as_jaccard(constraint, ("dice",)), constraint.measure != "containment"

    return max(constraints, key=share)


def _as_jaccard(constraint: Constraint, convert: tuple[str, ...]) -> float:
    """The threshold, converted from Dice to Jaccard for the measures `convert`."""
    share = float(constraint.threshold)
    return share / (2 - share) if constraint.measure in convert else share


# --- approximate candidates by MinHash: of bounded number, but not complete -----------------------

HASHES = 128
AIM = 0.97  # recall of pairs at the threshold
SAMPLE = 1000  # units for which the recall is measured
_SALT = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: its multiples differ in many bits


def bands(jaccard: float) -> tuple[int, int]:
    """Return how many bands of how many rows: the most rows that reach the `AIM`."""
    for rows in range(HASHES, 1, -1):
        count = HASHES // rows
        if 1 - (1 - jaccard**rows) ** count >= AIM:
            return count, rows
    return HASHES, 1


def enough(jaccard: float, hashes: int) -> int:
    """Return how many hashes agree for all but one in 700 pairs at the threshold (3 sigma)."""
    return floor(hashes * jaccard - 3 * sqrt(hashes * jaccard * (1 - jaccard)))


def minhash_candidates(database: Database, constraint: Constraint) -> None:
    """Make ``candidates`` from ``shingled_K``, of sets of about the same size."""
    jaccard = _as_jaccard(constraint, ("dice", "containment"))
    count, rows = bands(jaccard)
    least = ", ".join(
        f"min(hash(xor(h, {(place + 1) * _SALT % (1 << 64)}::UBIGINT))) AS m{place}"
        for place in range(count * rows)
    )
    database.execute(
        f"CREATE OR REPLACE TABLE signatures AS SELECT unit, block, {least} FROM "
        f"(SELECT unit, block, hash(shingle) AS h FROM shingled_{constraint.k}) GROUP BY ALL"
    )
    keys = ", ".join(
        f"hash(block, {band}, {', '.join(f'm{band * rows + row}' for row in range(rows))})"
        for band in range(count)
    )
    database.execute(
        "CREATE OR REPLACE TABLE bands AS SELECT s.unit, s.key, u.coverable, u.covers, u.fresh "
        "FROM "
        f"(SELECT unit, unnest([{keys}]) AS key FROM signatures) s JOIN units u ON u.unit = s.unit"
    )
    database.execute(
        "CREATE OR REPLACE TABLE candidates AS SELECT DISTINCT x.unit AS ua, y.unit AS ub "
        "FROM bands x JOIN bands y ON x.key = y.key WHERE x.unit <> y.unit AND x.coverable "
        "AND y.covers "
        "AND (x.fresh OR y.fresh)"
    )
    agreed = " + ".join(f"(x.m{place} = y.m{place})::INTEGER" for place in range(count * rows))
    database.execute(
        "CREATE OR REPLACE TABLE candidates AS SELECT c.* FROM candidates c "
        "JOIN signatures x ON x.unit = c.ua JOIN signatures y ON y.unit = c.ub "
        f"WHERE {agreed} >= {enough(jaccard, count * rows)}"
    )
    for table in ("signatures", "bands"):
        database.execute(f"DROP TABLE {table}")


class ShingleTables(Protocol):
    """Where shingles are, and the SQL that finds pairs of units runs.

    Tables are made by SQL that DuckDB and Spark understand.
    """

    ranked: str
    """SQL that numbers ``block`` and ``shingle``, the rarest first by ``met``."""

    def open(self) -> None:
        """Have the tables that `_PairSearch.group` makes."""

    def make(self, table: str, query: str) -> None:
        """Make a table, in place of one of that name."""

    def count(self, table: str) -> int:
        """Return the number of rows."""

    def across(self, nodes: Sequence[Node]) -> str:
        """Return SQL of conditions on the documents ``a`` and ``b``."""

    def take(self, table: str, columns: Sequence[str]) -> None:
        """Make a table of whole numbers in DuckDB, too."""

    def drop(self, tables: Sequence[str]) -> None:
        """Drop tables that exist."""


class LocalShingles:
    """Shingles in DuckDB, with all other tables."""

    ranked = "row_number() OVER (ORDER BY met, shingle)"

    def __init__(self, database: Database) -> None:
        self._database = database

    def open(self) -> None:
        pass

    def make(self, table: str, query: str) -> None:
        self._database.execute(f"CREATE OR REPLACE TABLE {table} AS {query}")

    def count(self, table: str) -> int:
        return number(self._database, f"SELECT count(*) FROM {table}")

    def across(self, nodes: Sequence[Node]) -> str:
        return conditions(nodes, {"a": "a", "b": "b"})

    def take(self, table: str, columns: Sequence[str]) -> None:
        pass

    def drop(self, tables: Sequence[str]) -> None:
        for table in tables:
            self._database.execute(f"DROP TABLE IF EXISTS {table}")


@dataclass
class PairCounts:
    blocks: int = 0
    units: int = 0  # different texts, in each block
    candidates: int = 0  # pairs of units that were compared, in each direction
    pairs: int = 0
    recall: float | None = None  # of the approximate mode; None if it is exact or unknown
    sampled: int = 0  # exact pairs of units on which the recall is measured
    steps: dict[str, float] = field(default_factory=dict)  # seconds of each


def find(
    database: Database,
    relation: Relation,
    *,
    approximate: bool = False,
    at: Callable[[str], None] = lambda phase: None,
    shingles: ShingleTables | None = None,
) -> PairCounts:
    """Make ``pairs``, each with a fresh document; `at` is called with the name of each step.

    `shingles` are those of DuckDB by default, and of DuckDB with `approximate`.
    """
    search = _PairSearch(database, relation, at, shingles or LocalShingles(database))
    search.begin("grouping documents")
    search.group()
    counts = PairCounts(
        blocks=number(database, "SELECT count(DISTINCT block) FROM units"),
        units=number(database, "SELECT count(*) FROM units"),
    )
    unit_pairs: list[str] = []
    if relation.content:
        search.begin("indexing shingles")
        search.index()
        search.begin("looking for candidates")
        if approximate:
            minhash_candidates(database, _most_selective(relation.content))
        else:
            search.find_candidates("candidates")
        counts.candidates = search.shingles.count("candidates")
        search.begin("comparing candidates")
        unit_pairs.append(search.compare("candidates", "similar"))
        if approximate:
            search.begin("measuring what was found")
            search.measure_recall(unit_pairs[0], counts)
    search.begin("writing pairs")
    unit_pairs.append(search.identical())
    search.expand(unit_pairs)
    counts.pairs = number(database, "SELECT count(*) FROM pairs")
    search.drop()
    search.begin("")
    counts.steps = search.steps
    return counts


def conditions(nodes: Sequence[Node], names: dict[str, str]) -> str:
    """Return SQL of the conjunction; `names` are the tables of the sides."""

    def column(leaf: Leaf) -> str:
        assert isinstance(leaf, Attribute)
        return f"{names[leaf.side]}.{leaf.name}"

    return " AND ".join(["true", *(to_sql(node, column) for node in nodes)])


class _PairSearch:
    def __init__(
        self, database: Database, relation: Relation, at: Callable[[str], None],
        shingles: ShingleTables,
    ) -> None:  # fmt: skip
        self._database, self._relation, self._at = database, relation, at
        self.shingles, self._here = shingles, LocalShingles(database)
        self._tables: dict[str, ShingleTables] = {}  # where each is
        self.steps: dict[str, float] = {}  # seconds of each, when the next one has begun
        self._phase, self._began = "", 0.0

    def begin(self, phase: str) -> None:
        """Begin a phase; "" ends the last one."""
        now = time.monotonic()
        if self._phase:
            self.steps[self._phase] = round(now - self._began, 3)
        self._phase, self._began, self._step = phase, now, 0
        if phase:
            self._at(phase)

    def _make(self, table: str, query: str, where: ShingleTables | None = None) -> str:
        """Make a table in DuckDB, or `where` the shingles are."""
        self._step += 1
        self._at(f"{self._phase}, step {self._step}")
        self._tables[table] = where or self._here
        self._tables[table].make(table, query)
        return table

    def _find(self, table: str, query: str) -> str:
        return self._make(table, query, self.shingles)

    def drop(self) -> None:
        self._here.drop(list(self._tables))
        self.shingles.drop(list(self._tables))

    def group(self) -> None:
        """Make ``placed``: the documents that may be in a pair, with their blocks."""
        relation = self._relation
        coverable, covers = (
            conditions(nodes, dict.fromkeys(("a", "b"), "d"))
            for nodes in (relation.of_a, relation.of_b)
        )
        keys = [to_sql(key, lambda leaf: f"d.{leaf.name}") for key in relation.keys]
        names = [f"key_{place}" for place in range(len(keys))]
        columns = "".join(f", {key} AS {name}" for key, name in zip(keys, names, strict=True))
        known = "".join(f" AND {name} IS NOT NULL" for name in names)
        content = "content" if relation.content else "''"
        text = " AND content <> ''" if relation.content else ""
        self._make(
            "able",
            f"SELECT * FROM (SELECT n, {content} AS content, fresh, "
            f"coalesce({coverable}, false) AS coverable, "
            f"coalesce({covers}, false) AS covers{columns} "
            f"FROM documents d) WHERE (coverable OR covers){text}{known}",
        )
        by = f"GROUP BY {', '.join(names)}" if names else ""
        self._make(
            "blocks",
            "SELECT *, row_number() OVER () AS block FROM "
            f"(SELECT {', '.join(names) or '0 AS none'} FROM able {by} HAVING count(*) > 1 "
            "AND bool_or(fresh) AND bool_or(coverable) AND bool_or(covers))",
        )
        on = " AND ".join(f"able.{name} = blocks.{name}" for name in names) or "true"
        self._make(
            "placed",
            f"SELECT n, content, fresh, coverable, covers, block FROM able JOIN blocks ON {on}",
        )
        self._unite()

    def _unite(self) -> None:
        """Make ``units`` of documents with the same terms, and their ``members``."""
        relation = self._relation
        sizes = "".join(f", c.s{k}" for k in relation.ks)
        unit = (
            "SELECT block, content, bool_or(coverable) AS coverable, bool_or(covers) AS covers, "
            "bool_or(fresh) AS fresh, count(*) AS members FROM placed GROUP BY block, content"
        )
        self._make(
            "units",
            f"SELECT u.*, c.first{sizes}, row_number() OVER () AS unit FROM ({unit}) u "
            "LEFT JOIN contents c ON u.content = c.content",
        )
        self._make(
            "members",
            "SELECT p.n, p.coverable, p.covers, p.fresh, u.unit FROM placed p "
            "JOIN units u ON p.block = u.block AND p.content = u.content",
        )

    def index(self) -> None:
        """Number the shingles that units of a block share, the rarest first."""
        self.shingles.open()
        for k in self._relation.ks:
            self._find(
                f"shingled_{k}",
                f"SELECT u.unit, u.block, s.shingle FROM shingles_{k} s "
                "JOIN units u ON s.n = u.first WHERE u.block IN "
                "(SELECT block FROM units GROUP BY block HAVING count(*) > 1)",
            )
            self._find(
                f"shared_{k}",
                f"SELECT block, shingle, {self.shingles.ranked} AS id FROM (SELECT block, shingle, "
                f"count(*) AS met FROM shingled_{k} GROUP BY block, shingle HAVING count(*) > 1)",
            )
            self._find(
                f"postings_{k}",
                f"SELECT s.unit, f.id FROM shingled_{k} s JOIN shared_{k} f "
                "ON s.block = f.block AND s.shingle = f.shingle",
            )
            self.shingles.drop([f"shared_{k}"])

    def find_candidates(self, made: str, only: str = "") -> None:
        """Make pairs of units that share one of their rarest shingles and pass the length filter.

        `only` names a table of the covered units to consider.
        """
        chosen = _most_selective(self._relation.content)
        k, size = chosen.k, f"u.s{chosen.k}"
        self._find(
            "ranked",
            "SELECT p.unit, p.id, row_number() OVER (PARTITION BY p.unit ORDER BY p.id) "
            f"+ {size} - count(*) OVER (PARTITION BY p.unit) AS place "
            f"FROM postings_{k} p JOIN units u ON p.unit = u.unit",
        )
        # any set with enough in common has one of the first: this many and more follow others
        prefix = _suffices(chosen, f"({size} - r.place + 1)", size)
        covered = f"coverable AND u.unit IN (SELECT unit FROM {only})" if only else "coverable"
        for table, able, first in (
            ("rare_a", covered, prefix),
            ("rare_b", "covers", "true" if chosen.measure == "containment" else prefix),
        ):
            self._find(
                table,
                "SELECT r.id, u.* FROM ranked r JOIN units u ON r.unit = u.unit "
                f"WHERE u.{able} AND {first}",
            )
        possible = " AND ".join(
            _possible(one, f"x.s{one.k}", f"y.s{one.k}") for one in self._relation.content
        )
        self._find(
            made,
            "SELECT DISTINCT x.unit AS ua, y.unit AS ub FROM rare_a x JOIN rare_b y ON x.id = y.id "
            f"WHERE x.unit <> y.unit AND (x.fresh OR y.fresh) AND {possible}",
        )

    def compare(self, candidates: str, made: str) -> str:
        """Make the table of the candidates that meet all conditions; return its name."""
        relation = self._relation
        wanted = candidates
        if relation.across:
            documents = self._documents("c.ua", "c.ub", self.shingles)
            wanted = self._find(
                f"{made}_wanted", f"SELECT DISTINCT c.ua, c.ub FROM {candidates} c {documents}"
            )
        columns = ["ua", "ub"]
        for k in relation.ks:
            similar = " AND ".join(
                satisfied(one, "c.shared", f"x.s{k}", f"y.s{k}")
                for one in relation.content
                if one.k == k
            )
            before, after = (", ".join(f"{of}.{name}" for name in columns) for of in ("w", "c"))
            wanted = self._find(
                f"{made}_{k}",
                f"SELECT {after}, x.s{k} AS of_a_{k}, y.s{k} AS of_b_{k}, c.shared AS shared_{k} "
                f"FROM (SELECT {before}, count(*) AS shared FROM postings_{k} x "
                f"JOIN {wanted} w ON x.unit = w.ua JOIN postings_{k} y "
                f"ON y.unit = w.ub AND y.id = x.id GROUP BY {before}) c "
                f"JOIN units x ON x.unit = c.ua JOIN units y ON y.unit = c.ub WHERE {similar}",
            )
            columns += [f"of_a_{k}", f"of_b_{k}", f"shared_{k}"]
        self.shingles.take(wanted, columns)
        return wanted

    def measure_recall(self, found: str, counts: PairCounts) -> None:
        """Search a sample of units exactly, and count how many of their pairs were found."""
        sample = f"SELECT unit FROM units WHERE coverable ORDER BY hash(unit) LIMIT {SAMPLE}"
        self.find_candidates("sampled", self._make("sample_units", sample))
        exact = self.compare("sampled", "exact")
        counts.sampled = number(self._database, f"SELECT count(*) FROM {exact}")
        if counts.sampled:
            met = f"SELECT count(*) FROM {exact} SEMI JOIN {found} USING (ua, ub)"
            counts.recall = number(self._database, met) / counts.sampled

    def _documents(self, ua: str, ub: str, where: ShingleTables) -> str:
        """Return SQL that joins pairs of units to their pairs of documents ``a`` and ``b``."""
        across = where.across(self._relation.across)
        return (
            f"JOIN members ma ON ma.unit = {ua} JOIN members mb ON mb.unit = {ub} "
            "JOIN documents a ON a.n = ma.n JOIN documents b ON b.n = mb.n "
            "WHERE ma.coverable AND mb.covers AND (ma.fresh OR mb.fresh) AND ma.n <> mb.n "
            f"AND {across}"
        )

    def identical(self) -> str:
        """Make pairs of each unit of several documents with itself; return the table's name."""
        sizes = "".join(
            f", s{k} AS of_a_{k}, s{k} AS of_b_{k}, s{k} AS shared_{k}" for k in self._relation.ks
        )
        return self._make(
            "same", f"SELECT unit AS ua, unit AS ub{sizes} FROM units WHERE members > 1"
        )

    def expand(self, tables: Sequence[str]) -> None:
        """Make ``pairs`` of documents from tables of pairs of units."""
        columns = "".join(
            f", p.of_a_{k}::INTEGER AS of_a_{k}, p.of_b_{k}::INTEGER AS of_b_{k}, "
            f"p.shared_{k}::INTEGER AS shared_{k}"
            for k in self._relation.ks
        )
        union = " UNION ALL ".join(f"SELECT * FROM {table}" for table in tables)
        self._database.execute(
            f"CREATE OR REPLACE TABLE pairs AS SELECT a.n AS a, b.n AS b{columns} "
            f"FROM ({union}) p {self._documents('p.ua', 'p.ub', self._here)}"
        )
