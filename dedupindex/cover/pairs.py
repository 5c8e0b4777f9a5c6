"""Pairs of a covered and a covering document, by an inverted index of shingles in DuckDB.

Documents with the same terms are one unit within a block, which is what the equalities of the
relation leave: nothing is compared across blocks. Of each unit only the rarest of the shingles that
it shares with any other are looked up, as many as the prefix filter asks for; candidates that pass
the length filter and the conditions on metadata are then counted in full. Shingles are compared as
text, not by a hash, so the result is exact. All that is large may go to disk.

Tables that it takes: ``documents``, ``contents`` and, for each k, ``shingles_K`` (see `store`). It
leaves ``pairs(a, b, of_a_K, of_b_K, shared_K, …)``: the numbers of the documents, and for each k
how many shingles each has and how many they share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import floor, sqrt

from dedupindex.cover.relation import Constraint, Relation
from dedupindex.expression.sql import to_sql
from dedupindex.expression.tree import Attribute, Leaf, Node
from dedupindex.runtime.duckdb import Database, number

# Content constraints as SQL, in whole numbers: a threshold is what was written, not its double.


def needed(constraint: Constraint, size: str) -> str:
    """How many shingles `a`, of `size`, must at least share."""
    part, whole = constraint.threshold.numerator, constraint.threshold.denominator
    if constraint.measure == "dice":
        whole = 2 * whole - part
    product = f"{part} * {size}::BIGINT"
    if constraint.above:
        return f"(({product}) // {whole} + 1)"
    return f"(({product} + {whole - 1}) // {whole})"


def needed_of_b(constraint: Constraint, size: str) -> str:
    """The same of `b`, of which containment asks nothing."""
    return "1" if constraint.measure == "containment" else needed(constraint, size)


def lengths(constraint: Constraint, of_a: str, of_b: str) -> str:
    """Whether the sizes alone leave it possible."""
    possible = f"{of_b} >= {needed(constraint, of_a)}"
    if constraint.measure == "containment":
        return possible
    return f"{possible} AND {of_a} >= {needed(constraint, of_b)}"


def holds(constraint: Constraint, shared: str, of_a: str, of_b: str) -> str:
    """Whether sets of these sizes are as like as it asks."""
    part, whole = constraint.threshold.numerator, constraint.threshold.denominator
    sign = ">" if constraint.above else ">="
    count = f"{shared}::BIGINT * {whole}"
    if constraint.measure == "containment":
        return f"({count} {sign} {part} * {of_a}::BIGINT)"
    if constraint.measure == "jaccard":
        return f"({count} {sign} {part} * ({of_a}::BIGINT + {of_b} - {shared}))"
    return f"(2 * {count} {sign} {part} * ({of_a}::BIGINT + {of_b}))"


def measured(constraint: Constraint, shared: str, of_a: str, of_b: str) -> str:
    """The measure itself, to be shown or ordered by."""
    if constraint.measure == "containment":
        return f"({shared} / {of_a}::DOUBLE)"
    if constraint.measure == "jaccard":
        return f"({shared} / ({of_a} + {of_b} - {shared})::DOUBLE)"
    return f"(2 * {shared} / ({of_a} + {of_b})::DOUBLE)"


def driver(constraints: tuple[Constraint, ...]) -> Constraint:
    """The constraint that leaves the fewest candidates: it asks for most of `a`."""

    def asks(constraint: Constraint) -> tuple[float, bool]:
        share = float(constraint.threshold)
        if constraint.measure == "dice":
            share /= 2 - share
        return share, constraint.measure != "containment"

    return max(constraints, key=asks)


# Candidates by MinHash instead of the inverted index: of a bounded size, but not all are found.

HASHES = 128
AIM = 0.97  # of pairs that are just alike enough, as many are to be candidates
SAMPLE = 1000  # units that the recall is measured with
_SALT = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: its multiples differ in many bits


def bands(jaccard: float) -> tuple[int, int]:
    """How many bands of how many rows: the most rows that still reach the aim."""
    for rows in range(HASHES, 1, -1):
        count = HASHES // rows
        if 1 - (1 - jaccard**rows) ** count >= AIM:
            return count, rows
    return HASHES, 1


def enough(jaccard: float, hashes: int) -> int:
    """Of so many hashes, in how many two sets agree that are just alike enough, or bad luck has it.

    Bad luck are three standard deviations, which one pair in 700 has.
    """
    return floor(hashes * jaccard - 3 * sqrt(hashes * jaccard * (1 - jaccard)))


def minhash_candidates(database: Database, constraint: Constraint) -> None:
    """Make ``candidates`` of ``shingled_K``, for sets of about the same size."""
    jaccard = float(constraint.threshold)
    if constraint.measure != "jaccard":
        jaccard /= 2 - jaccard
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
        "CREATE OR REPLACE TABLE bands AS SELECT s.unit, s.key, u.goes, u.covers, u.fresh FROM "
        f"(SELECT unit, unnest([{keys}]) AS key FROM signatures) s JOIN units u ON u.unit = s.unit"
    )
    database.execute(
        "CREATE OR REPLACE TABLE candidates AS SELECT DISTINCT x.unit AS ua, y.unit AS ub "
        "FROM bands x JOIN bands y ON x.key = y.key WHERE x.unit <> y.unit AND x.goes AND y.covers "
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


def few(database: Database) -> str:
    """Make a table of the units that the recall is measured with; returns its name."""
    database.execute(
        "CREATE OR REPLACE TABLE few AS SELECT unit FROM units WHERE goes "
        f"ORDER BY hash(unit) LIMIT {SAMPLE}"
    )
    return "few"


@dataclass
class PairCounts:
    """How many there were of what; `recall` is of the approximate mode, None if nothing tells."""

    blocks: int = 0
    units: int = 0  # texts that differ, in each block
    candidates: int = 0  # pairs of units that were looked at, each way
    pairs: int = 0
    recall: float | None = None
    sampled: int = 0  # exact pairs of units that the recall is measured on


def find(
    database: Database,
    relation: Relation,
    *,
    approximate: bool = False,
    at: Callable[[str], None] = lambda phase: None,
) -> PairCounts:
    """Make the table ``pairs`` of documents of which at least one is fresh.

    `at` is told of each step when it begins.
    """
    work = _Work(database, relation, at)
    work.begin("grouping documents")
    work.group()
    counts = PairCounts(
        blocks=number(database, "SELECT count(DISTINCT block) FROM units"),
        units=number(database, "SELECT count(*) FROM units"),
    )
    found: list[str] = []
    if relation.content:
        work.begin("indexing shingles")
        work.index()
        work.begin("looking for candidates")
        if approximate:
            minhash_candidates(database, driver(relation.content))
        else:
            work.candidates("candidates")
        counts.candidates = number(database, "SELECT count(*) FROM candidates")
        work.begin("comparing candidates")
        found.append(work.verified("candidates", "alike"))
        if approximate:
            work.begin("measuring what was found")
            work.recall(found[0], counts)
    work.begin("writing pairs")
    found.append(work.same())
    work.pairs(found)
    counts.pairs = number(database, "SELECT count(*) FROM pairs")
    for table in work.made:
        database.execute(f"DROP TABLE IF EXISTS {table}")
    return counts


def conditions(nodes: Sequence[Node], names: dict[str, str]) -> str:
    """SQL of conditions that must all hold; `names` are the tables of the sides."""

    def column(leaf: Leaf) -> str:
        assert isinstance(leaf, Attribute)
        return f"{names[leaf.side]}.{leaf.name}"

    return " AND ".join(["true", *(to_sql(node, column) for node in nodes)])


class _Work:
    def __init__(self, database: Database, relation: Relation, at: Callable[[str], None]) -> None:
        self._database, self._relation, self._at = database, relation, at
        self.made: list[str] = []

    def begin(self, phase: str) -> None:
        """All that is made from here on is part of this."""
        self._phase, self._step = phase, 0
        self._at(phase)

    def _make(self, table: str, query: str) -> str:
        self._step += 1
        self._at(f"{self._phase}, step {self._step}")
        self._database.execute(f"CREATE OR REPLACE TABLE {table} AS {query}")
        self.made.append(table)
        return table

    def group(self) -> None:
        """Documents that may be in a pair, by block and unit."""
        relation = self._relation
        goes, covers = (
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
            f"coalesce({goes}, false) AS goes, coalesce({covers}, false) AS covers{columns} "
            f"FROM documents d) WHERE (goes OR covers){text}{known}",
        )
        by = f"GROUP BY {', '.join(names)}" if names else ""
        self._make(
            "blocks",
            "SELECT *, row_number() OVER () AS block FROM "
            f"(SELECT {', '.join(names) or '0 AS none'} FROM able {by} HAVING count(*) > 1 "
            "AND bool_or(fresh) AND bool_or(goes) AND bool_or(covers))",
        )
        on = " AND ".join(f"able.{name} = blocks.{name}" for name in names) or "true"
        self._make(
            "placed", f"SELECT n, content, fresh, goes, covers, block FROM able JOIN blocks ON {on}"
        )
        self._unite()

    def _unite(self) -> None:
        """Units of documents with the same terms."""
        relation = self._relation
        sizes = "".join(f", c.s{k}" for k in relation.ks)
        unit = (
            "SELECT block, content, bool_or(goes) AS goes, bool_or(covers) AS covers, "
            "bool_or(fresh) AS fresh, count(*) AS members FROM placed GROUP BY block, content"
        )
        self._make(
            "units",
            f"SELECT u.*, c.first{sizes}, row_number() OVER () AS unit FROM ({unit}) u "
            "LEFT JOIN contents c ON u.content = c.content",
        )
        self._make(
            "members",
            "SELECT p.n, p.goes, p.covers, p.fresh, u.unit FROM placed p "
            "JOIN units u ON p.block = u.block AND p.content = u.content",
        )

    def index(self) -> None:
        """For each k the shingles that a unit shares with another of its block, as numbers.

        The rarer a shingle is in its block, the smaller its number.
        """
        for k in self._relation.ks:
            self._make(
                f"shingled_{k}",
                f"SELECT u.unit, u.block, s.shingle FROM shingles_{k} s "
                "JOIN units u ON s.n = u.first WHERE u.block IN "
                "(SELECT block FROM units GROUP BY block HAVING count(*) > 1)",
            )
            self._make(
                f"shared_{k}",
                "SELECT block, shingle, row_number() OVER (ORDER BY met) AS id FROM (SELECT block, "
                f"shingle, count(*) AS met FROM shingled_{k} GROUP BY ALL HAVING met > 1)",
            )
            self._make(
                f"postings_{k}",
                f"SELECT s.unit, f.id FROM shingled_{k} s JOIN shared_{k} f "
                "ON s.block = f.block AND s.shingle = f.shingle",
            )
            self._database.execute(f"DROP TABLE shared_{k}")

    def candidates(self, made: str, only: str = "") -> None:
        """Pairs of units that share one of the rarest shingles of each and may be long enough.

        `only` names a table of those that are to be covered.
        """
        chosen = driver(self._relation.content)
        k, size = chosen.k, f"u.s{chosen.k}"
        self._make(
            "ranked",
            "SELECT p.unit, p.id, row_number() OVER (PARTITION BY p.unit ORDER BY p.id) "
            f"+ {size} - count(*) OVER (PARTITION BY p.unit) AS place "
            f"FROM postings_{k} p JOIN units u ON p.unit = u.unit",
        )
        some = f"goes AND u.unit IN (SELECT unit FROM {only})" if only else "goes"
        for table, able, least in (
            ("rare_a", some, needed(chosen, size)),
            ("rare_b", "covers", needed_of_b(chosen, size)),
        ):
            self._make(
                table,
                "SELECT r.id, u.* FROM ranked r JOIN units u ON r.unit = u.unit "
                f"WHERE u.{able} AND r.place <= {size} - {least} + 1",
            )
        possible = " AND ".join(
            lengths(one, f"x.s{one.k}", f"y.s{one.k}") for one in self._relation.content
        )
        self._make(
            made,
            "SELECT DISTINCT x.unit AS ua, y.unit AS ub FROM rare_a x JOIN rare_b y ON x.id = y.id "
            f"WHERE x.unit <> y.unit AND (x.fresh OR y.fresh) AND {possible}",
        )

    def verified(self, candidates: str, made: str) -> str:
        """Of candidates those that are alike, and have documents that metadata let be pairs."""
        relation = self._relation
        wanted = candidates
        if relation.across:
            wanted = self._make(f"{made}_wanted", self._met(candidates))
        columns = ""
        for k in relation.ks:
            alike = " AND ".join(
                holds(one, "c.shared", f"x.s{k}", f"y.s{k}")
                for one in relation.content
                if one.k == k
            )
            wanted = self._make(
                f"{made}_{k}",
                f"SELECT c.* EXCLUDE shared, x.s{k} AS of_a_{k}, y.s{k} AS of_b_{k}, "
                f"c.shared AS shared_{k} FROM (SELECT w.ua, w.ub{columns}, count(*) AS shared "
                f"FROM postings_{k} x JOIN {wanted} w ON x.unit = w.ua JOIN postings_{k} y "
                "ON y.unit = w.ub AND y.id = x.id GROUP BY ALL) c "
                f"JOIN units x ON x.unit = c.ua JOIN units y ON y.unit = c.ub WHERE {alike}",
            )
            columns += f", w.of_a_{k}, w.of_b_{k}, w.shared_{k}"
        return wanted

    def recall(self, found: str, counts: PairCounts) -> None:
        """Count how many of the pairs of some documents were found, all of which are known."""
        self.candidates("sampled", few(self._database))
        exact = self.verified("sampled", "exact")
        counts.sampled = number(self._database, f"SELECT count(*) FROM {exact}")
        if counts.sampled:
            met = f"SELECT count(*) FROM {exact} SEMI JOIN {found} USING (ua, ub)"
            counts.recall = number(self._database, met) / counts.sampled

    def _met(self, candidates: str) -> str:
        return f"SELECT DISTINCT c.ua, c.ub FROM {candidates} c {self._documents('c.ua', 'c.ub')}"

    def _documents(self, ua: str, ub: str) -> str:
        """Joins of a pair of units to the documents that may be pairs, as ``a`` and ``b``."""
        across = conditions(self._relation.across, {"a": "a", "b": "b"})
        return (
            f"JOIN members ma ON ma.unit = {ua} JOIN members mb ON mb.unit = {ub} "
            "JOIN documents a ON a.n = ma.n JOIN documents b ON b.n = mb.n "
            "WHERE ma.goes AND mb.covers AND (ma.fresh OR mb.fresh) AND ma.n <> mb.n "
            f"AND {across}"
        )

    def same(self) -> str:
        """Units of several documents: these share all that they have."""
        sizes = "".join(
            f", s{k} AS of_a_{k}, s{k} AS of_b_{k}, s{k} AS shared_{k}" for k in self._relation.ks
        )
        return self._make(
            "same", f"SELECT unit AS ua, unit AS ub{sizes} FROM units WHERE members > 1"
        )

    def pairs(self, found: Sequence[str]) -> None:
        """Pairs of documents, of pairs of units."""
        columns = "".join(
            f", p.of_a_{k}::INTEGER AS of_a_{k}, p.of_b_{k}::INTEGER AS of_b_{k}, "
            f"p.shared_{k}::INTEGER AS shared_{k}"
            for k in self._relation.ks
        )
        union = " UNION ALL ".join(f"SELECT * FROM {table}" for table in found)
        self._database.execute(
            f"CREATE OR REPLACE TABLE pairs AS SELECT a.n AS a, b.n AS b{columns} "
            f"FROM ({union}) p {self._documents('p.ua', 'p.ub')}"
        )
