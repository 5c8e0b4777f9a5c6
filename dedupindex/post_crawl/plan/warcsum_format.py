"""Manifests and plans as text, in the format of warcsum and warccollres.

Bibliotheca Alexandrina deduplicates its archive with three tools: warcsum writes a line for each
response, warccollres finds the duplicates among the lines, and warcrefs makes revisits of them.

    FILE OFFSET LENGTH URI DATE ALGORITHM:HEX [EXTENSION [COPY URI DATE]]

Fields are separated by one space; each line ends with a line feed; nothing is quoted. The file is
named without its directory. Space and control characters, which the format cannot hold, are
written as %20 and the like. Lines of others are hints: only what the manifest confirms is used.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from dedupindex.digest import SIZES, Digest
from dedupindex.errors import BadInput
from dedupindex.post_crawl.manifest.parquet import (
    TYPES,
    Line,
    Manifest,
    ManifestContainer,
    fetch_rows,
    line_of,
)
from dedupindex.post_crawl.plan.group_duplicates import GroupingRule
from dedupindex.post_crawl.plan.manifest_input import ManifestInputs
from dedupindex.post_crawl.plan.plan_file import BATCH, LINE, copies_file
from dedupindex.runtime.duckdb import Database, insert, literal, number, open_database, quoted
from dedupindex.urlkey import unbracket

MEMORY = "1GB"
VERDICTS = {  # from best to worst: of several files of one name the best verdict counts
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
_UNSAFE = re.compile(rb"[\x00-\x20\x7f]")
_LINE = re.compile(
    rb"(.+) ([0-9]{1,19}) ([0-9]{1,19}) (\S+) (\S+) ([a-z0-9]+):([0-9a-fA-F]+)"
    rb"(?: ([0-9]{1,18})(?: ([0-9]{1,18}) \S+ \S+)?)?"
)
_COLUMNS = {
    "name": "VARCHAR", "offset": "BIGINT", "stored": "BIGINT", "url": "VARCHAR",
    "date": "VARCHAR", "algorithm": "VARCHAR", "digest": "VARCHAR",
}  # fmt: skip


class Hint(NamedTuple):
    """A line of text about a response."""

    file: bytes  # name without directory, as written
    offset: int
    length: int  # bytes of the record as stored
    url: bytes  # without angle brackets
    date: bytes
    digest: Digest  # of the body
    extension: int = 0  # which of the payloads with this digest, from 1; 0: not stated
    copy: int = 0  # from 1; 0: not stated


def text_line(container: ManifestContainer, line: Line, algorithm: str) -> bytes:
    """Return a line of six fields, as warcsum writes it."""
    name = _escape(os.fsencode(os.path.basename(container.name)))
    return b"%b %d %d %b %b %b:%b\n" % (
        name, line.offset, line.stored, _escape(line.url) or b"-", _escape(line.date) or b"-",
        algorithm.encode(), line.payload.hex().encode(),
    )  # fmt: skip


def _escape(text: bytes) -> bytes:
    return _UNSAFE.sub(lambda match: b"%%%02X" % ord(match[0]), text)


def read_text(lines: Iterable[bytes]) -> Iterator[Hint]:
    """Read lines of 6, 7 or 10 fields; raises `BadInput` with the number of the line.

    Fields 9 and 10 are ignored: warccollres writes each copy's own URI there. A digest of 40 hex
    digits is a SHA-1 whatever its label, which warcsum gets wrong.
    """
    for count, line in enumerate(lines, 1):
        if match := _LINE.fullmatch(line.rstrip(b"\r\n")):
            name, offset, length, url, date, label, digits, *numbers = match.groups()
            algorithm = "sha1" if len(digits) == 2 * SIZES["sha1"] else label.decode()
            if len(digits) == 2 * SIZES.get(algorithm, 0):
                digest = Digest(algorithm, bytes.fromhex(digits.decode()))
                extension, copy = (int(number or 0) for number in numbers)
                url = unbracket(url)
                yield Hint(name, int(offset), int(length), url, date, digest, extension, copy)
                continue
        raise BadInput(
            f"line {count} of the manifest is not FILE OFFSET LENGTH URI DATE DIGEST: {line[:80]!r}"
        )


class TextDifference(NamedTuple):
    """A line that the manifest does not confirm."""

    verdict: str  # of `VERDICTS`
    file: str
    offset: int


class TextCheck:
    """Compares lines with a manifest; `counted` has verdicts, "unlisted" is in no line."""

    def __init__(self, manifest: Manifest) -> None:
        self.counted: Counter[str] = Counter()
        self._manifest = manifest
        self._lines = f"read_parquet({quoted(manifest.parquet)})"

    @property
    def fine(self) -> bool:
        return not set(+self.counted) - set(FINE)

    def run(self, lines: Iterable[bytes]) -> Iterator[TextDifference]:
        """Yield all differences, in the order of files and offsets; raises `BadInput`."""
        with open_database(self._manifest.path, MEMORY, 0) as (database, home):
            _create_hints(database, home / "hints.tsv", read_text(lines))
            self._create_verdicts(database)
            names = list(VERDICTS)
            query = "SELECT verdict, count(*) FROM verdicts GROUP BY verdict"
            for verdict, count in fetch_rows(database, query):
                self.counted[names[verdict]] = count
            self.counted["unlisted"] = number(
                database,
                f"""SELECT (SELECT count(*) FROM {self._lines}) - count(*) FROM (
                  SELECT DISTINCT container, "offset" FROM here
                  SEMI JOIN hints USING (name, "offset"))""",
            )
            bad = ", ".join(str(at) for at, name in enumerate(names) if name not in FINE)
            query = (
                f'SELECT verdict, name, "offset" FROM verdicts WHERE verdict IN ({bad}) '
                'ORDER BY name, "offset"'
            )
            for verdict, name, offset in fetch_rows(database, query):
                yield TextDifference(names[verdict], os.fsdecode(bytes.fromhex(name)), offset)

    def _create_verdicts(self, database: Database) -> None:
        """Create ``here``, the responses with the names of their files, and ``verdicts``."""
        database.execute("CREATE TABLE names (number INTEGER, name VARCHAR)")
        names = {
            (container.number, text.hex())
            for container in self._manifest.containers().values()
            for name in [os.fsencode(os.path.basename(container.name))]
            for text in (name, _escape(name))
        }
        insert(database, "names", list(names))
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


def _create_hints(database: Database, spool: Path, hints: Iterable[Hint]) -> None:
    """Create the table ``hints``, a row for each line."""
    with open(spool, "w") as stream:
        for hint in hints:
            url, date = (text.decode("latin-1").encode().hex() for text in (hint.url, hint.date))
            stream.write(
                f"{hint.file.hex()}\t{hint.offset}\t{hint.length}\t{url}\t{date}\t"
                f"{hint.digest.algorithm}\t{hint.digest.raw.hex()}\n"
            )
    columns = ", ".join(f"{quoted(name)}: {quoted(kind)}" for name, kind in _COLUMNS.items())
    database.execute(f"""
        CREATE TABLE hints AS SELECT *, row_number() OVER () AS line
        FROM read_csv({quoted(literal(spool))}, auto_detect = false, header = false,
          delim = '\\t', quote = '', escape = '', nullstr = 'NULL', columns = {{{columns}}})""")


def write_text(
    database: Database, inputs: ManifestInputs, rule: GroupingRule, part: Path, stream: BinaryIO
) -> None:
    """Write all lines of a finished part in ten fields, by file and offset, as warcrefs reads them.

    Fields 9 and 10 are the original's. Records that stay have copy number 1, as originals have.
    """
    algorithms = inputs.algorithms()
    containers = {container.number: container for container in inputs.containers}
    for lines, places, numbers in inputs.batches(BATCH):
        copies = quoted(literal(copies_file(part, numbers)))
        query = f"""
            SELECT {LINE}, coalesce(e.extension, 1), coalesce(p.copy, 1),
              coalesce(p.original_url, ''), coalesce(p.original_date, '')
            FROM (SELECT * FROM ({lines}) WHERE {rule.of_partition()}) AS l
            LEFT JOIN (
              SELECT place, extension FROM equal JOIN extensions USING (label, form)
              WHERE place >= {places.start} AND place < {places.stop}) AS e USING (place)
            LEFT JOIN read_parquet({copies}) AS p
              ON p.container = l.container AND p."offset" = l."offset"
            ORDER BY l.place"""
        for row in fetch_rows(database, query):
            line, (extension, copy, *reference) = line_of(row[: len(TYPES)]), row[len(TYPES) :]
            six = text_line(containers[line.container], line, algorithms[line.container])
            url, date = (_escape(text.encode("latin-1")) or b"-" for text in reference)
            if copy == 1:
                url = date = b"-"
            stream.write(b"%b %d %d %b %b\n" % (six[:-1], extension, copy, url, date))
