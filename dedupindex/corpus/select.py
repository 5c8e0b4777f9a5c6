"""The first phase: of all captures those that are wanted, by metadata alone, in DuckDB.

What is filtered out is never held. Revisits get the place, media type and status of their originals
before what asks for these is tried; where two passes over the source are needed for that, the
second looks only for the digests that the first has left.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

from dedupindex.corpus.extract_report import CorpusReport
from dedupindex.corpus.filters import Condition
from dedupindex.corpus.from_index import FOUND, found_in
from dedupindex.corpus.locate_containers import Places
from dedupindex.corpus.row import CorpusRow, RecordPlace
from dedupindex.errors import BadInput
from dedupindex.runtime.duckdb import Database, number
from dedupindex.runtime.files import named_errors

RESOLVE, SKIP, ONCE = REVISITS = ("resolve", "skip", "once")
"""What becomes of revisits: read as their originals, left out, or read and each digest once."""

_BASE32 = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_NOTHING = "3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ"  # SHA-1 of no bytes
# SHA-1 in base32 or anything in hex that ends with four zero bytes
_CUT = "(?i)(^|:)([a-z2-7]{25}[aeimquy4]a{6}|[0-9a-f]{24,}0{8})$"
# a CDX says of a revisit only its status; a 304 has none but the digest of nothing, or none
_UNMODIFIED = "(revisit AND coalesce(unmodified, coalesce(status, 0) = 304))"
_UNCERTAIN = f"(unmodified IS NULL AND k = '{_NOTHING}')"
_ITSELF = "'at ' || url || ' ' || \"timestamp\""  # what has no digest is only its own original
_PLACE = ("beside", "container", "offset", "length")


class Best(NamedTuple):
    """One capture of each group stays: the latest, or the first."""

    by: str  # one of `KEYS`
    latest: bool

    @property
    def order(self) -> str:
        """SQL for what comes first in a group; what it is must not depend on how rows came.

        Of one second the later record of a container is the later one.
        """
        way = "DESC" if self.latest else "ASC"
        return f'"timestamp" {way}, revisit, url, container {way}, "offset" {way}'


def digest_key(column: str) -> str:
    """SQL for a digest however it is spelled: SHA-1 as bare base32, others as they are.

    NULL for one that was cut at a zero byte (`digest.CUT`): equal ones are not of equal payloads.
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
    # Some indexers give the digest of nothing to every body without an HTTP header.
    "digest": f"nullif(CASE WHEN revisit THEN payload_key ELSE {digest_key('digest')} END, "
    f"'{_NOTHING}')",
}


def best_of(name: str, *, latest: bool) -> Best:
    """Raises `BadInput` for a group that there is not."""
    if name not in KEYS:
        raise BadInput(f"captures are grouped by {', '.join(KEYS)}, not by {name!r}")
    return Best(name, latest)


Step = Condition | Best


def choose(
    database: Database,
    source: str,
    steps: Sequence[Step],
    revisits: str,
    index: Path | None,
    report: CorpusReport,
    *,
    spared: bool = False,
) -> None:
    """Make the table ``chosen`` of what the relation `source` yields.

    `spared` makes another of this name: the revisits that conditions leave out.
    """
    database.execute(f"CREATE VIEW source AS {source}")
    first = next((at for at, step in enumerate(steps) if isinstance(step, Best)), len(steps))
    early = [step for step in steps[:first] if isinstance(step, Condition)]
    late = [step for step in early if spared or step.of_payload]  # of revisits, once resolved
    wanted = [step.sql for step in early if step not in late]
    if revisits == SKIP:
        wanted += ["NOT revisit", *(step.sql for step in late)]
    elif late:
        wanted.append(f"(revisit OR ({_all(step.sql for step in late)}))")
    where = f"good AND {_all(wanted)}" if wanted else "good"
    database.execute(
        "CREATE TABLE chosen AS SELECT *, to_url AS named_url, to_timestamp AS named_timestamp "
        f"FROM source WHERE ({where}) OR NOT good"
    )
    report.refused += _refused(database)
    if revisits != SKIP:
        report.revisits += number(database, "SELECT count(*) FROM chosen WHERE revisit")
        if report.revisits:
            _resolve(database, index)
    if spared:
        _spare(database, late)
    if report.revisits:
        for condition in late:
            _narrow(database, condition)
    for step in steps[first:]:
        if isinstance(step, Best):
            _best(database, step)
        else:
            _narrow(database, step)
    report.chosen += number(database, "SELECT count(*) FROM chosen")


def _all(conditions: Iterable[str]) -> str:
    return " AND ".join(f"({one})" for one in conditions)


def _refused(database: Database) -> int:
    """Lines that are no captures, which leave the table."""
    lines = number(database, "SELECT count(*) FROM chosen WHERE NOT good")
    database.execute("DELETE FROM chosen WHERE NOT good")
    known = database.execute(
        "SELECT count(*) FROM duckdb_tables() WHERE table_name = 'reject_errors'"
    ).fetchone()
    if known and known[0]:
        rejected = "SELECT count(DISTINCT (scan_id, file_id, line)) FROM reject_errors"
        lines += number(database, rejected)
    return lines


def _spare(database: Database, conditions: Iterable[Condition]) -> None:
    met = _all(["true", *(step.sql for step in conditions)])
    database.execute(
        f"CREATE TABLE spared AS SELECT * FROM chosen WHERE revisit AND ({met}) IS NOT TRUE"
    )


def _narrow(database: Database, condition: Condition) -> None:
    database.execute(f"DELETE FROM chosen WHERE ({condition.sql}) IS NOT TRUE")


def _best(database: Database, best: Best) -> None:
    """Keep one of each group; what has no key is a group of its own."""
    key = KEYS[best.by]
    database.execute(
        "CREATE TABLE best AS SELECT * EXCLUDE (group_key) FROM "
        f"(SELECT *, {key} AS group_key FROM chosen) QUALIFY group_key IS NULL OR "
        f"row_number() OVER (PARTITION BY group_key ORDER BY {best.order}) = 1"
    )
    database.execute("DROP TABLE chosen")
    database.execute("ALTER TABLE best RENAME TO chosen")


def _resolve(database: Database, index: Path | None) -> None:
    """Give revisits what is known of their originals, found by what they name, then by digest."""
    key = f"coalesce({digest_key('digest')}, {_ITSELF})"
    _key_revisits(database)
    database.execute("CREATE TABLE wanted AS SELECT DISTINCT k FROM repeats WHERE k IS NOT NULL")
    columns = 'url, "timestamp", mime, status, beside, container, "offset", length'
    database.execute(
        f"CREATE TABLE originals AS SELECT {key} AS k, {columns} FROM source "
        f"WHERE good AND NOT revisit AND {key} IN (SELECT k FROM wanted)"
    )
    database.execute(f"CREATE TABLE {FOUND} AS SELECT * FROM originals LIMIT 0")
    if index is not None:
        found_in(index, database)
    _group_originals(database)
    database.execute(f"CREATE TABLE resolved AS {_joined()}")
    database.execute("DELETE FROM chosen WHERE revisit")
    database.execute("INSERT INTO chosen BY NAME SELECT * FROM resolved")
    for table in ("repeats", "wanted", "originals", "named", "placed", "of_url",
                  "of_digest", FOUND, "known", "resolved"):  # fmt: skip
        database.execute(f"DROP TABLE {table}")


def _key_revisits(database: Database) -> None:
    """Make ``repeats``: the revisits, and as ``k`` what payload each has.

    One for 304 Not Modified has that of the capture which it names, or else of the one before it
    of the same URL; that may be a revisit itself.
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
        "CREATE TABLE repeats AS "
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
    """The earliest original for all that a revisit may be known by."""
    one = 'arg_min(o, ("timestamp", url, container, "offset")) AS o'
    for table, by, source in (
        ("placed", 'k, container, "offset"', "originals"),
        ("named", 'k, url, "timestamp"', "originals"),
        ("of_url", "k, url", "originals"),
        ("of_digest", "k", "originals"),
        ("known", "k", FOUND),
    ):
        query = f"SELECT {by}, {one} FROM {source} AS o GROUP BY {by}"
        database.execute(f"CREATE TABLE {table} AS {query}")


def _joined() -> str:
    """SQL for the revisits with their originals. A place that their metadata say stands."""
    has_place = "c.at_offset IS NOT NULL AND c.at_container IS NOT NULL"
    # the payload is at the place: what else has its digest does not say which capture that is
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
        f"(SELECT *, {_UNCERTAIN} AS uncertain FROM repeats) AS r "
        "LEFT JOIN placed p ON p.k = r.k AND p.container = r.at_container "
        'AND p."offset" = r.at_offset '
        'LEFT JOIN named n ON n.k = r.k AND n.url = r.to_url AND n."timestamp" = r.to_timestamp '
        "LEFT JOIN of_url u ON u.k = r.k AND u.url = r.url "
        "LEFT JOIN of_digest d ON d.k = r.k AND r.uncertain IS NOT TRUE "
        "LEFT JOIN known i ON i.k = r.k AND r.uncertain IS NOT TRUE) AS c"
    )


# What the metadata have left, on disk, in order of containers, to be handed out in chunks.

MOST = 200  # captures of a chunk
_AT_ONCE = 1000  # rows from DuckDB
_CHUNKS = 8  # for each process, if there are captures for so many

Group = list[CorpusRow]  # in the order in which they are tried


class Chunk(NamedTuple):
    """Groups to try; where `then` is not -1, what continues the only one has that number."""

    groups: list[Group]
    then: int = -1


class Chunks(Protocol):
    """All chunks, in order."""

    def __iter__(self) -> Iterator[Chunk]: ...
    def after(self, left: Chunk) -> Chunk | None:
        """What is still to be done of a chunk of which this was left."""


class Spooled:
    """Chunks in the files of a directory."""

    def __init__(self, home: Path) -> None:
        self._first, self._further = home / "first", home / "further"
        self._starts: list[int] = []  # of the pieces in `further`

    def __iter__(self) -> Iterator[Chunk]:
        with open(self._first, "rb") as stream:
            while stream.peek(1):
                yield pickle.load(stream)

    def after(self, left: Chunk) -> Chunk | None:
        """See `Chunks`."""
        if left.groups or left.then < 0:
            return left if left.groups else None
        with open(self._further, "rb") as stream:
            stream.seek(self._starts[left.then])
            chunk: Chunk = pickle.load(stream)
            return chunk

    def fill(
        self, database: Database, best: Best | None, places: Places, jobs: int, count: int,
        table: str = "chosen",
    ) -> None:  # fmt: skip
        """Write what is chosen, `count` captures."""
        size = max(min(count // (jobs * _CHUNKS), MOST), 1)
        with (
            named_errors(self._first.parent),
            open(self._first, "wb") as first,
            open(self._further, "wb") as further,
        ):
            held: list[Group] = []
            pieces = 0  # of the group that is being read
            last: object = None
            for key, capture in _captures(database, best, places, table):
                same = best is not None and key is not None and key == last
                if same and len(held[-1]) >= MOST:  # a long group stands alone
                    if len(held) > 1:
                        pickle.dump(Chunk(held[:-1]), first)
                    self._put(first, further, held[-1:], pieces, more=True)
                    held, pieces = [[]], pieces + 1
                elif not same and held and (pieces or sum(map(len, held)) >= size):
                    self._put(first, further, held, pieces)
                    held, pieces = [], 0
                if not same:
                    held.append([])
                held[-1].append(capture)
                last = key
            if held:
                self._put(first, further, held, pieces)

    def _put(
        self,
        first: BinaryIO,
        further: BinaryIO,
        groups: list[Group],
        pieces: int,
        *,
        more: bool = False,
    ) -> None:
        """Write a chunk, or a further piece of a group of which some were written."""
        if pieces:
            self._starts.append(further.tell())
        pickle.dump(Chunk(groups, len(self._starts) if more else -1), further if pieces else first)


def _captures(
    database: Database, best: Best | None, places: Places, table: str
) -> Iterator[tuple[object, CorpusRow]]:
    """What is chosen, each with what its group has in common."""
    key = KEYS[best.by] if best is not None else "NULL"
    order = f"k, {best.order}" if best is not None else 'container, "offset", url, "timestamp"'
    rows = database.execute(
        f'SELECT surt, "timestamp", url, mime, status, digest, redirect, meta, length, revisit, '
        "to_url, to_timestamp, coalesce(unmodified, false), container, container, beside, "
        '"offset", at_container, at_beside, at_offset, '
        f"at_length, named_url, named_timestamp, {key} AS k FROM {table} ORDER BY {order}"
    )
    while found := rows.fetchmany(_AT_ONCE):
        for row in found:
            yield row[-1], _capture(row, places)


def _capture(row: tuple[Any, ...], places: Places) -> CorpusRow:
    told, (container, beside, offset), there, named = row[:14], row[14:17], row[17:21], row[21:23]
    at_container, at_beside, at_offset, at_length = there
    length, revisit = told[8], told[9]
    record = _place(places, container, beside, offset, length)
    payload = None
    if revisit and at_container is not None and at_offset is not None:
        payload = _place(places, at_container, at_beside or beside, at_offset, at_length)
    return CorpusRow._make((*told, record, payload, *named))


def _place(
    places: Places,
    container: str | None,
    beside: str | None,
    offset: int | None,
    length: int | None,
) -> RecordPlace:
    found = places.find(container, beside or "") if container else ""
    return RecordPlace(found, -1 if offset is None else offset, -1 if length is None else length)
