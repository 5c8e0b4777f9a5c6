"""Select captures by their metadata, in DuckDB, and divide them into chunks.

Revisits get the place, media type and status of their originals before conditions on these are
tested. That may take a second pass over the source, for the digests that the first one left.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby, islice, takewhile
from pathlib import Path
from typing import NamedTuple

from dedupindex.corpus.extract_report import CorpusReport
from dedupindex.corpus.from_index import FOUND, found_in
from dedupindex.corpus.locate_containers import ContainerLocator
from dedupindex.corpus.row import CorpusRow, RecordPlace, seconds_of
from dedupindex.corpus.url_join import JoinTable, complete, keep_nearest, keep_of_list
from dedupindex.errors import BadInput
from dedupindex.expression import tree
from dedupindex.expression.evaluate import holds, hostname, to_sql
from dedupindex.expression.parser import condition
from dedupindex.expression.tree import Leaf, Node, OperandKind, Value, conjuncts, leaves
from dedupindex.runtime.duckdb import Database, number
from dedupindex.runtime.files import named_errors
from dedupindex.timestamps import date_of_digits, seconds

RESOLVE, SKIP, ONCE = REVISITS = ("resolve", "skip", "once")
"""How to treat revisits: read their originals, skip them, or read each digest once."""

_BASE32 = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_EMPTY_DIGEST = "3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ"  # SHA-1 of no bytes
# SHA-1 in base32, or any digest in hex, that ends with four zero bytes
_CUT = "(?i)(^|:)([a-z2-7]{25}[aeimquy4]a{6}|[0-9a-f]{24,}0{8})$"
# a CDX has only the status of a revisit; a 304 has no digest, or that of no bytes
_UNMODIFIED = "(revisit AND coalesce(unmodified, coalesce(status, 0) = 304))"
_UNCERTAIN = f"(unmodified IS NULL AND k = '{_EMPTY_DIGEST}')"
_ITSELF = "'at ' || url || ' ' || \"timestamp\""  # the key of a capture without digest
_PLACE = ("origin", "container", "offset", "length")


# --- conditions ----------------------------------------------------------------------------------

VOCABULARY = tree.Vocabulary(
    {
        **dict.fromkeys(
            ("url", "surt", "hostname", "mime", "digest", "redirect", "meta", "container"),
            OperandKind.TEXT,
        ),
        "timestamp": OperandKind.TIME,
        "status": OperandKind.NUMBER,
        "length": OperandKind.NUMBER,
        "versions": OperandKind.NUMBER,
    }
)
VERSIONS = "versions"
"""The number of captures of the URL that meet the other conditions."""
OF_PAYLOAD = frozenset(("mime", "status"))
"""Fields that a revisit takes from its original."""

_HOSTNAME = tree.Hostname(tree.Attribute("url", OperandKind.TEXT))


class MetadataCondition(NamedTuple):
    """One of several conditions joined by ``and``."""

    node: Node
    sql: str
    of_payload: bool  # a revisit can be tested only after its original is found
    of_versions: bool  # it depends on how many captures of the URL meet the others

    def holds(self, capture: CorpusRow) -> bool:
        return holds(self.node, partial(_value, capture))


def conditions(text: str) -> tuple[MetadataCondition, ...]:
    """Parse conditions joined by ``and``; raises `BadQuery`."""
    found = []
    for node in conjuncts(condition(text, VOCABULARY)):
        names = {leaf.name for leaf in leaves(node)}
        of_payload, of_versions = not names.isdisjoint(OF_PAYLOAD), VERSIONS in names
        found.append(MetadataCondition(node, to_sql(node, _column), of_payload, of_versions))
    return tuple(found)


def _value(capture: CorpusRow, leaf: Leaf) -> Value:
    if leaf.name == "hostname":
        return hostname(capture.url)
    if leaf.name == "timestamp":
        return seconds(date_of_digits(capture.timestamp.encode()))
    value: Value = getattr(capture, leaf.name)
    return value


def _column(leaf: Leaf) -> str:
    if leaf.name == "hostname":
        return to_sql(_HOSTNAME, _column)
    if leaf.name == "timestamp":
        return seconds_of('"timestamp"')
    return f'"{leaf.name}"'


# --- groups and originals -------------------------------------------------------------------------


class Best(NamedTuple):
    """Keep one capture of each group: the latest, or the first."""

    by: str  # one of `KEYS`
    latest: bool

    @property
    def order(self) -> str:
        """SQL of a total order that puts the best of a group first; by place within a second."""
        order = "DESC" if self.latest else "ASC"
        return f'"timestamp" {order}, revisit, url, container {order}, "offset" {order}'


def digest_key(column: str) -> str:
    """Return SQL that normalizes a digest: SHA-1 becomes bare base32, others are unchanged.

    A digest truncated at a zero byte (`digest.CUT`) becomes NULL, as different payloads share it.
    """
    bits = f"CAST(unhex(right({column}, 40)) AS BIT)::VARCHAR"
    value = " + ".join(
        f"{1 << (4 - at)} * CAST(substr(bits, 5 * i + {at + 1}, 1) AS INTEGER)" for at in range(5)
    )
    of_hex = (
        f"list_transform([{bits}], lambda bits: array_to_string(list_transform(range(32), "
        f"lambda i: substr('{_BASE32}', 1 + {value}, 1)), ''))[1]"
    )
    return (
        f"CASE WHEN regexp_matches({column}, '{_CUT}') THEN NULL "
        f"WHEN regexp_full_match({column}, '(?:(?i:sha-?1):)?[A-Z2-7]{{32}}') "
        f"THEN right({column}, 32) "
        f"WHEN regexp_full_match({column}, '(?:(?i:sha-?1):)?[0-9a-fA-F]{{40}}') THEN {of_hex} "
        f"WHEN regexp_full_match({column}, '(?i:sha-?1):[a-z2-7]{{32}}') "
        f"THEN upper(right({column}, 32)) ELSE {column} END"
    )


KEYS = {
    "url": "url",
    "surt": "coalesce(surt, url)",
    # Some indexers give the digest of no bytes to every record without an HTTP header.
    "digest": f"nullif(CASE WHEN revisit THEN payload_key ELSE {digest_key('digest')} END, "
    f"'{_EMPTY_DIGEST}')",
}


def best_of(name: str, *, latest: bool) -> Best:
    """Raises `BadInput` for an unknown key."""
    if name not in KEYS:
        raise BadInput(f"captures are grouped by {', '.join(KEYS)}, not by {name!r}")
    return Best(name, latest)


class Embedded(NamedTuple):
    """Keep what pages embed: of each URL the capture that is nearest in time to the page."""

    join: JoinTable


Step = MetadataCondition | Best | JoinTable | Embedded


def choose(
    database: Database,
    source: str,
    steps: Sequence[Step],
    revisits: str,
    index: Path | None,
    report: CorpusReport,
    home: Path,
    *,
    keep_excluded: bool = False,
) -> None:
    """Make the table ``chosen`` of the captures in `source` that pass the steps.

    With `keep_excluded`, also make ``excluded``: the revisits that conditions exclude.
    """
    database.execute(f"CREATE VIEW source AS {source}")
    first = sum(1 for _ in takewhile(lambda step: not isinstance(step, Best | Embedded), steps))
    before = [step for step in steps[:first] if isinstance(step, MetadataCondition)]
    early = [step for step in before if not step.of_versions]
    late = [step for step in early if keep_excluded or step.of_payload]  # for revisits
    wanted = [step.sql for step in early if step not in late]
    if revisits == SKIP:
        wanted += ["NOT revisit", *(step.sql for step in late)]
    elif late:
        wanted.append(f"(revisit OR ({_all(step.sql for step in late)}))")
    report.refused += _read(database, wanted, _joins(steps, first), home)
    if revisits != SKIP:
        report.revisits += number(database, "SELECT count(*) FROM chosen WHERE revisit")
        if number(database, "SELECT count(*) FROM chosen WHERE revisit AND cached IS NULL"):
            _resolve(database, index)
    if keep_excluded:
        met = _all(["true", *(step.sql for step in late)])
        database.execute(
            f"CREATE TABLE excluded AS SELECT * FROM chosen WHERE revisit AND ({met}) IS NOT TRUE"
        )
    if report.revisits:
        for condition in late:
            _filter(database, condition)
    versions = [step for step in before if step.of_versions]
    _filter_by_versions(database, versions, keep_excluded=keep_excluded)
    _continue(database, steps[first:], home)
    report.chosen += number(database, "SELECT count(*) FROM chosen")


def _read(database: Database, wanted: Sequence[str], joins: Sequence[JoinTable], home: Path) -> int:
    """Make ``chosen`` of the captures that meet conditions; return the number of invalid lines."""
    # one by one, so that DuckDB can test some by the statistics of a table whose rows are all good
    where = _all(f"{condition} OR NOT good" for condition in wanted) or "true"
    database.execute(
        "CREATE TABLE chosen AS SELECT * REPLACE ("
        "CASE WHEN cached IS NULL THEN to_url ELSE named_url END AS named_url, "
        "CASE WHEN cached IS NULL THEN to_timestamp ELSE named_timestamp END AS named_timestamp) "
        f"FROM source {' '.join(join.reading for join in joins)} WHERE {where}"
    )
    refused = _remove_invalid(database)
    for join in joins:
        complete(database, join, home)
    return refused


def _joins(steps: Sequence[Step], first: int) -> list[JoinTable]:
    """Return the joins that are made while captures are read."""
    lists = [step for step in steps[:first] if isinstance(step, JoinTable)]
    return lists + [step.join for step in steps if isinstance(step, Embedded)]


def sample(database: Database, most: int, count: int) -> None:
    """Leave about `most` of the `count` captures in ``chosen``: all captures of some URLs."""
    share = most / max(count, most)
    database.execute(f"DELETE FROM chosen WHERE hash(url) / {(1 << 64) - 1}::DOUBLE > {share!r}")


def _continue(database: Database, steps: Sequence[Step], home: Path) -> None:
    """Execute the steps from the first group on, in order."""
    for _, group in groupby(steps, type):
        counted: list[MetadataCondition] = []
        for step in group:
            if isinstance(step, Best):
                _keep_best(database, step)
            elif isinstance(step, Embedded):
                keep_nearest(database, step.join, home)
            elif isinstance(step, JoinTable):
                keep_of_list(database, step, home)
            elif step.of_versions:
                counted.append(step)
            else:
                _filter(database, step)
        _filter_by_versions(database, counted)


def _all(conditions: Iterable[str]) -> str:
    return " AND ".join(f"({condition})" for condition in conditions)


def _remove_invalid(database: Database) -> int:
    """Delete invalid lines; return their number, with those that DuckDB rejected."""
    lines = number(database, "SELECT count(*) FROM chosen WHERE NOT good")
    database.execute("DELETE FROM chosen WHERE NOT good")
    rejects = "SELECT count(*) FROM duckdb_tables() WHERE table_name = 'reject_errors'"
    if number(database, rejects):
        rejected = "SELECT count(DISTINCT (scan_id, file_id, line)) FROM reject_errors"
        lines += number(database, rejected)
    return lines


def _filter(database: Database, condition: MetadataCondition) -> None:
    database.execute(f"DELETE FROM chosen WHERE ({condition.sql}) IS NOT TRUE")


def _filter_by_versions(
    database: Database, conditions: Sequence[MetadataCondition], *, keep_excluded: bool = False
) -> None:
    """Count the captures of each URL that are left, then keep those that meet the conditions."""
    if not conditions:
        return
    met = _all(condition.sql for condition in conditions)
    database.execute(
        "CREATE TABLE counted AS SELECT c.*, v.versions FROM chosen c JOIN "
        f'(SELECT url, count(DISTINCT ("timestamp", container, "offset")) AS {VERSIONS} '
        "FROM chosen GROUP BY url) v ON c.url = v.url"
    )
    columns = f"* EXCLUDE ({VERSIONS})"
    if keep_excluded:
        database.execute(
            f"INSERT INTO excluded SELECT {columns} FROM counted WHERE revisit "
            f"AND ({met}) IS NOT TRUE"
        )
    database.execute(f"CREATE OR REPLACE TABLE chosen AS SELECT {columns} FROM counted WHERE {met}")
    database.execute("DROP TABLE counted")


def _keep_best(database: Database, best: Best) -> None:
    """Keep one capture of each group; one without a key is a group of its own."""
    key = KEYS[best.by]
    database.execute(
        "CREATE TABLE best AS SELECT * EXCLUDE (group_key) FROM "
        f"(SELECT *, {key} AS group_key FROM chosen) QUALIFY group_key IS NULL OR "
        f"row_number() OVER (PARTITION BY group_key ORDER BY {best.order}) = 1"
    )
    database.execute("DROP TABLE chosen")
    database.execute("ALTER TABLE best RENAME TO chosen")


def _resolve(database: Database, index: Path | None) -> None:
    """Complete revisits by their originals, found by what they refer to, then by digest."""
    key = f"coalesce({digest_key('digest')}, {_ITSELF})"
    _key_revisits(database)
    database.execute(
        "CREATE TABLE wanted AS SELECT DISTINCT k FROM keyed_revisits WHERE k IS NOT NULL"
    )
    columns = 'url, "timestamp", mime, status, origin, container, "offset", length'
    database.execute(
        f"CREATE TABLE originals AS SELECT {key} AS k, {columns} FROM source "
        f"WHERE good AND NOT revisit AND {key} IN (SELECT k FROM wanted)"
    )
    database.execute(f"CREATE TABLE {FOUND} AS SELECT * FROM originals LIMIT 0")
    if index is not None:
        found_in(index, database)
    _group_originals(database)
    database.execute(f"CREATE TABLE resolved AS {_resolved()}")
    database.execute("DELETE FROM chosen WHERE revisit")
    database.execute("INSERT INTO chosen BY NAME SELECT * FROM resolved")
    for table in ("keyed_revisits", "wanted", "originals", "named", "placed", "of_url", "of_digest",
                  FOUND, "of_index", "resolved"):  # fmt: skip
        database.execute(f"DROP TABLE {table}")


def _key_revisits(database: Database) -> None:
    """Make ``keyed_revisits``: the revisits, with ``k``, the key of their payload.

    A revisit for 304 Not Modified has the payload of the capture that it refers to, or else of the
    preceding capture of its URL, which may itself be a revisit.
    """
    key = digest_key("digest")
    database.execute(
        'CREATE TABLE before AS SELECT url AS was_url, "timestamp" AS was, '
        'arg_min(k, (revisit, container, "offset")) AS k FROM '
        f"(SELECT *, CASE WHEN revisit THEN {key} ELSE coalesce({key}, {_ITSELF}) END AS k "
        "FROM source WHERE good AND coalesce(status, 0) <> 304 AND url IN "
        f"(SELECT coalesce(to_url, url) FROM chosen WHERE {_UNMODIFIED})) "
        f"WHERE NOT {_UNMODIFIED} AND NOT (revisit AND coalesce({_UNCERTAIN}, false)) "
        'GROUP BY url, "timestamp"'
    )
    named = "(r.to_url IS NOT NULL AND r.to_timestamp IS NOT NULL)"
    database.execute(
        "CREATE TABLE keyed_revisits AS "
        f"SELECT *, {key} AS k FROM chosen WHERE revisit AND NOT {_UNMODIFIED} "
        "UNION ALL BY NAME SELECT r.* REPLACE (coalesce(r.to_url, b.was_url) AS to_url, "
        "coalesce(r.to_timestamp, b.was) AS to_timestamp), "
        f"CASE WHEN NOT {named} OR b.was = r.to_timestamp THEN b.k END AS k "
        f"FROM (SELECT * FROM chosen WHERE {_UNMODIFIED}) AS r ASOF LEFT JOIN before AS b "
        "ON b.was_url = coalesce(r.to_url, r.url) "
        f'AND b.was <= CASE WHEN {named} THEN r.to_timestamp ELSE r."timestamp" END'
    )
    database.execute("DROP TABLE before")


def _group_originals(database: Database) -> None:
    """Make tables of the earliest original for each way to find one."""
    earliest = 'arg_min(o, ("timestamp", url, container, "offset")) AS o'
    for table, by, source in (
        ("placed", 'k, container, "offset"', "originals"),
        ("named", 'k, url, "timestamp"', "originals"),
        ("of_url", "k, url", "originals"),
        ("of_digest", "k", "originals"),
        ("of_index", "k", FOUND),
    ):
        database.execute(
            f"CREATE TABLE {table} AS SELECT {by}, {earliest} FROM {source} AS o GROUP BY {by}"
        )


def _resolved() -> str:
    """Return SQL of the revisits with their originals; a place that they state is not replaced."""
    has_place = "c.at_offset IS NOT NULL AND c.at_container IS NOT NULL"
    # the payload is at the stated place: another capture of the digest is not its original
    elsewhere = (
        f"({has_place} AND (o.container IS DISTINCT FROM c.at_container "
        'OR o."offset" IS DISTINCT FROM c.at_offset))'
    )
    values = {
        "payload_key": "CASE WHEN c.uncertain IS NOT TRUE THEN c.k END",
        "mime": "coalesce(c.mime, o.mime)",
        "status": "coalesce(c.status, o.status)",
        "to_url": f"CASE WHEN {elsewhere} THEN c.to_url ELSE coalesce(o.url, c.to_url) END",
        "to_timestamp": f"CASE WHEN {elsewhere} THEN c.to_timestamp "
                        'ELSE coalesce(o."timestamp", c.to_timestamp) END',
        **{f"at_{name}": f'CASE WHEN {has_place} THEN c.at_{name} ELSE o."{name}" END'
           for name in _PLACE},
    }  # fmt: skip
    replaced = ", ".join(f"{value} AS {name}" for name, value in values.items())
    return (
        f"SELECT c.* EXCLUDE (k, o, uncertain) REPLACE ({replaced}) FROM "
        "(SELECT r.*, coalesce(p.o, n.o, u.o, d.o, i.o) AS o FROM "
        f"(SELECT *, {_UNCERTAIN} AS uncertain FROM keyed_revisits) AS r "
        "LEFT JOIN placed p ON p.k = r.k AND p.container = r.at_container "
        'AND p."offset" = r.at_offset '
        'LEFT JOIN named n ON n.k = r.k AND n.url = r.to_url AND n."timestamp" = r.to_timestamp '
        "LEFT JOIN of_url u ON u.k = r.k AND u.url = r.url "
        "LEFT JOIN of_digest d ON d.k = r.k AND r.uncertain IS NOT TRUE "
        "LEFT JOIN of_index i ON i.k = r.k AND r.uncertain IS NOT TRUE) AS c"
    )


# --- chunks of the selected captures, on disk, in the order of WARC files ------------------------

MAX_CHUNK = 200  # captures
_ROWS = 1000  # fetched from DuckDB at once
_CHUNKS = 8  # per process, if there are enough captures

Group = list[CorpusRow]  # in the order in which to try them


class Chunk(NamedTuple):
    """Groups to try; if `next` is not -1, the only one continues in the piece of that number."""

    groups: list[Group]
    next: int = -1


class SpooledChunks:
    """All chunks, in order, in the files of a directory."""

    def __init__(self, home: Path) -> None:
        self._first, self._further = home / "first", home / "further"
        self._starts: list[int] = []  # offsets of the pieces in `further`

    def __iter__(self) -> Iterator[Chunk]:
        with open(self._first, "rb") as stream:
            while stream.peek(1):
                yield pickle.load(stream)

    def after(self, left: Chunk | None) -> Chunk | None:
        """Return the rest of a chunk of which `left` was not processed, or its next piece."""
        if left is None or left.groups or left.next < 0:
            return left if left and left.groups else None
        with open(self._further, "rb") as stream:
            stream.seek(self._starts[left.next])
            chunk: Chunk = pickle.load(stream)
            return chunk

    def fill(
        self, database: Database, best: Best | None, locator: ContainerLocator, jobs: int,
        count: int, table: str = "chosen",
    ) -> None:  # fmt: skip
        """Write the `count` captures of a table."""
        size = max(min(count // (jobs * _CHUNKS), MAX_CHUNK), 1)
        with (
            named_errors(self._first.parent),
            open(self._first, "wb") as first,
            open(self._further, "wb") as further,
        ):
            groups: list[Group] = []
            for _, members in groupby(_captures(database, best, locator, table), _group_key):
                captures = (capture for _, capture in members)
                piece = list(islice(captures, MAX_CHUNK))
                rest = list(islice(captures, MAX_CHUNK))
                if groups and (rest or sum(map(len, groups)) >= size):
                    pickle.dump(Chunk(groups), first)
                    groups = []
                if not rest:
                    groups.append(piece)
                    continue
                stream = first  # a long group gets its own chunks, the others in `further`
                while rest:
                    pickle.dump(Chunk([piece], len(self._starts)), stream)
                    self._starts.append(further.tell())
                    stream, piece, rest = further, rest, list(islice(captures, MAX_CHUNK))
                pickle.dump(Chunk([piece]), stream)
            if groups:
                pickle.dump(Chunk(groups), first)


def _group_key(keyed: tuple[object, CorpusRow]) -> object:
    """A capture without a key is a group of its own."""
    return object() if keyed[0] is None else keyed[0]


def _captures(
    database: Database, best: Best | None, locator: ContainerLocator, table: str
) -> Iterator[tuple[object, CorpusRow]]:
    """Yield the captures of a table, each with the key of its group."""
    key = KEYS[best.by] if best is not None else "NULL"
    order = f"k, {best.order}" if best is not None else 'container, "offset", url, "timestamp"'
    metadata = ", ".join(f'"{name}"' for name in CorpusRow._fields[:-2])
    rows = database.execute(
        f'SELECT {metadata}, origin, "offset", at_container, at_origin, at_offset, at_length, '
        f"{key} AS k FROM {table} ORDER BY {order}"
    )
    while batch := rows.fetchmany(_ROWS):
        for *columns, origin, offset, at_container, at_origin, at_offset, at_length, k in batch:
            row = CorpusRow._make((*columns, None, None))
            record = _place(locator, row.container, origin, offset, row.length)
            payload = None
            if row.revisit and at_container is not None and at_offset is not None:
                payload = _place(locator, at_container, at_origin or origin, at_offset, at_length)
            yield k, row._replace(record=record, payload=payload)


def _place(
    locator: ContainerLocator,
    container: str | None,
    origin: str | None,
    offset: int | None,
    length: int | None,
) -> RecordPlace:
    path = locator.find(container, origin or "") if container else ""
    return RecordPlace(path, -1 if offset is None else offset, -1 if length is None else length)
