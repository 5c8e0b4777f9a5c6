"""Lines that warcsum or warccollres wrote, beside what a manifest found in the files.

Old lines are hashes that somebody took long ago: whatever they say that is not so today was lost
since, or was wrong then. Nothing else is believed of them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from dedupindex.post_crawl.manifest.lines import TYPES
from dedupindex.post_crawl.manifest.parquet import Manifest, line_of
from dedupindex.post_crawl.manifest.warcsum_format import (
    Hint,
    in_text,
    read_text,
    resolved_line,
    text_line,
)
from dedupindex.post_crawl.plan.group_duplicates import GroupingRule
from dedupindex.post_crawl.plan.manifest_input import Inputs
from dedupindex.post_crawl.plan.plan_writer import STRETCH, copies_file
from dedupindex.runtime.duckdb import Database, literal, number, open_database, quoted

MEMORY = "1GB"
VERDICTS = {  # from the best to the worst: of several files of one name the best counts
    "same": "all that the line says is so",
    "other-algorithm": "a digest of another algorithm than the manifest's",
    "other-bytes": "the manifest's digest is without chunks, the line's perhaps not (see --force)",
    "url": "another URL",
    "date": "another date",
    "length": "another length",
    "digest": "another digest",
    "no-record": "no response begins there",
    "no-file": "no file of that name was read",
}
FINE = ("same", "other-algorithm", "other-bytes", "unlisted")
_FETCHED = 1024
_COLUMNS = {
    "name": "VARCHAR", "offset": "BIGINT", "stored": "BIGINT", "url": "VARCHAR",
    "date": "VARCHAR", "algorithm": "VARCHAR", "digest": "VARCHAR",
}  # fmt: skip


class PlanDifference(NamedTuple):
    """A line that says what is not so."""

    verdict: str  # of `VERDICTS`
    file: str
    offset: int


class Checking:
    """Compares lines of text with a manifest; `counted` has how many came to which verdict.

    Under "unlisted" are the responses in the files that no line names.
    """

    def __init__(self, manifest: Manifest) -> None:
        self.counted: Counter[str] = Counter()
        self._manifest = manifest
        self._lines = f"read_parquet({quoted(manifest.parquet)})"

    @property
    def fine(self) -> bool:
        """Whether nothing was found that is not so."""
        return not set(+self.counted) - set(FINE)

    def run(self, lines: Iterable[bytes]) -> Iterator[PlanDifference]:
        """All differences, in the order of files and offsets; raises `BadInput`."""
        with open_database(self._manifest.path, MEMORY, 0) as (database, home):
            _take(database, home / "hints.tsv", read_text(lines))
            self._join(database, home / "names.tsv")
            counts = database.execute("SELECT verdict, count(*) FROM verdicts GROUP BY verdict")
            names = list(VERDICTS)
            self.counted.update({names[verdict]: count for verdict, count in counts.fetchall()})
            self.counted["unlisted"] = number(
                database,
                f"""SELECT (SELECT count(*) FROM {self._lines}) - count(*) FROM (
                  SELECT DISTINCT container, "offset" FROM here
                  SEMI JOIN hints USING (name, "offset"))""",
            )
            bad = ", ".join(str(at) for at, name in enumerate(names) if name not in FINE)
            found = database.execute(
                f'SELECT verdict, name, "offset" FROM verdicts WHERE verdict IN ({bad}) '
                'ORDER BY name, "offset"'
            )
            while rows := found.fetchmany(_FETCHED):
                for verdict, name, offset in rows:
                    yield PlanDifference(names[verdict], _file(name), offset)

    def _join(self, database: Database, names: Path) -> None:
        """Make ``here``, the responses under the names of their files, and ``verdicts``."""
        with open(names, "w") as stream:
            for place in self._manifest.containers().values():
                name = os.fsencode(os.path.basename(place.name))
                for text in {name, in_text(name)}:
                    stream.write(f"{place.number}\t{text.hex()}\n")
        database.execute(
            f"CREATE TABLE names AS {_csv(names, {'number': 'INTEGER', 'name': 'VARCHAR'})}"
        )
        database.execute(f"""
            CREATE VIEW here AS SELECT name, l.*
            FROM {self._lines} AS l JOIN names ON number = container""")
        algorithm = quoted(self._manifest.algorithm)
        order = {name: at for at, name in enumerate(VERDICTS)}
        database.execute(f"""
            CREATE TABLE verdicts AS
            SELECT hints.name, hints."offset", min(CASE
              WHEN here.name IS NULL THEN if(hints.name IN (SELECT name FROM names),
                {order["no-record"]}, {order["no-file"]})
              WHEN algorithm <> {algorithm} THEN {order["other-algorithm"]}
              WHEN unhex(hints.digest) <> payload
                THEN if(covers = 2, {order["other-bytes"]}, {order["digest"]})
              WHEN hints.stored <> here.stored THEN {order["length"]}
              WHEN decode(unhex(hints.date)) <> here.date AND here.date <> ''
                THEN {order["date"]}
              WHEN decode(unhex(hints.url)) <> here.url AND here.url <> ''
                AND NOT regexp_matches(here.url, '[\\x00-\\x20\\x7f]') THEN {order["url"]}
              ELSE {order["same"]} END) AS verdict
            FROM hints LEFT JOIN here USING (name, "offset")
            GROUP BY line, hints.name, hints."offset\"""")


def _take(database: Database, spool: Path, hints: Iterable[Hint]) -> None:
    """Make the table ``hints``, a row for each line."""
    with open(spool, "w") as stream:
        for hint in hints:
            texts = [text.decode("latin-1").encode().hex() for text in (hint.url, hint.date)]
            stream.write(
                f"{hint.file.hex()}\t{hint.offset}\t{hint.length}\t{texts[0]}\t{texts[1]}\t"
                f"{hint.digest.algorithm}\t{hint.digest.raw.hex()}\n"
            )
    rows = _csv(spool, _COLUMNS)
    database.execute(f"CREATE TABLE hints AS SELECT *, row_number() OVER () AS line FROM ({rows})")


def _csv(path: Path, types: dict[str, str]) -> str:
    columns = ", ".join(f"{quoted(name)}: {quoted(kind)}" for name, kind in types.items())
    return (
        f"SELECT * FROM read_csv({quoted(literal(path))}, auto_detect = false, header = false, "
        f"delim = '\\t', quote = '', escape = '', nullstr = 'NULL', columns = {{{columns}}})"
    )


def _file(name: str) -> str:
    return os.fsdecode(bytes.fromhex(name))


# What a run found as text, in the ten fields of warccollres: with the right references.

_TEXT_FETCHED = 2048  # rows at a time


def write_text(
    database: Database, inputs: Inputs, rule: GroupingRule, part: Path, stream: BinaryIO
) -> None:
    """Write all lines of a part that is written, by file and offset, as warcrefs wants them.

    What stays has copy number 1, as originals have.
    """
    algorithms = inputs.algorithms()
    names = {container.number: container for container in inputs.containers}
    columns = ", ".join(f'l."{name}"' for name in TYPES)
    for index, (lines, first, last) in enumerate(inputs.stretches(STRETCH)):
        copies = quoted(literal(copies_file(part, index)))
        found = database.execute(f"""
            SELECT {columns}, coalesce(e.extension, 1), coalesce(p.copy, 1),
              coalesce(p.original_url, ''), coalesce(p.original_date, '')
            FROM (SELECT * FROM ({lines}) WHERE {rule.of_partition()}) AS l
            LEFT JOIN (
              SELECT place, extension FROM equal JOIN extensions USING (label, form)
              WHERE place BETWEEN {first} AND {last}) AS e USING (place)
            LEFT JOIN read_parquet({copies}) AS p
              ON p.container = l.container AND p."offset" = l."offset"
            ORDER BY l.place""")
        while rows := found.fetchmany(_TEXT_FETCHED):
            for row in rows:
                line, (extension, copy, url, date) = line_of(row[: len(TYPES)]), row[len(TYPES) :]
                six = text_line(names[line.container], line, algorithms[line.container])
                reference = url.encode("latin-1"), date.encode("latin-1")
                stream.write(resolved_line(six, extension, copy, *reference))
