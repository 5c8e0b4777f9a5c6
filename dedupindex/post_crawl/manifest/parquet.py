"""The manifest as a directory: the files that were read, and the lines of each in Parquet.

    manifest.json         format, options, and whether the last run finished
    containers.jsonl      one object for each file that was read; the last object of a number
                          counts, one with "gone" removes it
    containers.parquet    the fields of `ManifestContainer`, for joins; written last
    lines/00000017.parquet         the lines of container 17 in order of offset: `TYPES`
    references/00000017.parquet    the revisits in it and what they refer to, if there are any

Bytes in a VARCHAR are decoded as Latin-1, so that nothing is lost. DuckDB writes Parquet from a
spool file of tab-separated values, where all bytes are in hex.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from dedupindex.capture import Problem
from dedupindex.errors import BadInput
from dedupindex.post_crawl.directory_format import read_description
from dedupindex.post_crawl.manifest.lines import TEXTS, TYPES, Line, ManifestContainer
from dedupindex.runtime.duckdb import (
    Database,
    insert,
    literal,
    number,
    one_thread,
    open_database,
    quoted,
    write_parquet,
)

# Format 1 had no references, 2 no revisits and no Content-Type, 3 no hashes of HTTP headers, 4
# other names of columns.
FORMAT = 5
FILE, CONTAINERS, LINES, REFERENCES = (
    "manifest.json", "containers.jsonl", "lines", "references",
)  # fmt: skip
SAME_CAPTURE = ("url", "replay_key", "strong", "length", "status", "coding", "content_type")
"""Columns that a conversion leaves as they are."""
SAME_RECORD = (*SAME_CAPTURE, "stored", "record_id", "date", "digest", "name")
"""Columns of a record that was copied byte for byte, the name of its file among them."""
_IS_TEXT = [name in TEXTS for name in TYPES]
_BATCH = 2048  # rows
_SHOWN = 20  # captures of a difference that are named


@dataclass
class ManifestEntry:
    """A container that was read, and counts of its records."""

    container: ManifestContainer
    lines: int = 0
    records: dict[str, int] = field(default_factory=dict)  # by type, responses among them
    problems: list[tuple[int, str]] = field(default_factory=list)  # offset and message
    remarks: dict[str, int] = field(default_factory=dict)

    def located_problems(self) -> list[Problem]:
        return [Problem(self.container.path, *problem) for problem in self.problems]


class Manifest:
    """A finished manifest."""

    def __init__(self, path: Path, algorithm: str, entries: dict[int, ManifestEntry]) -> None:
        self.path = path
        self.algorithm = algorithm  # of `Line.payload`
        self.entries = entries  # by number

    @property
    def parquet(self) -> str:
        """Glob of all files with lines; there is at least one, which may be empty."""
        return f"{literal(self.path)}/{LINES}/*.parquet"

    @property
    def references(self) -> str:
        """Glob of all files with revisits and what they refer to."""
        return f"{literal(self.path)}/{REFERENCES}/*.parquet"

    def containers(self) -> dict[int, ManifestContainer]:
        """Return the containers by number."""
        return {number: entry.container for number, entry in self.entries.items()}

    def lines(self, container: int) -> Iterator[Line]:
        """Yield the lines of one container in order of offset."""
        with one_thread() as database:
            yield from lines_of(database, lines_file(self.path, container))


def open_manifest(path: str | os.PathLike[str]) -> Manifest:
    """Open a manifest; raises `BadInput` if it is none or not finished, `FormatFromFuture`."""
    top = Path(path)
    about = read_about(top)
    if not about.get("complete"):
        raise BadInput(f"the manifest {top} is not finished: run bin/manifest with it again")
    return Manifest(top, about["algorithm"], read_entries(top))


def read_about(top: Path) -> dict[str, Any]:
    """Return ``manifest.json``; raises `BadInput` or `FormatFromFuture`."""
    if not (top / FILE).exists():
        raise BadInput(f"{top} is not a manifest: bin/manifest {top} -o MANIFEST makes one")
    about = read_description(top / FILE, f"the manifest {top}", FORMAT)
    if about["format"] < FORMAT:
        raise BadInput(f"the manifest {top} is of an earlier version: remove it and make it again")
    return about


def is_outdated(top: Path) -> bool:
    """Whether a manifest was made by an earlier version and must be made again."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return int(json.loads((top / FILE).read_bytes())["format"]) < FORMAT
    return False


def read_entries(top: Path) -> dict[int, ManifestEntry]:
    """Return the containers that were read; an incomplete last line is ignored."""
    entries: dict[int, ManifestEntry] = {}
    try:
        text = (top / CONTAINERS).read_text("ascii")
    except FileNotFoundError:
        return entries
    for line in text.split("\n")[:-1]:
        fields = json.loads(line)
        if fields.get("gone"):
            entries.pop(fields["number"], None)
            continue
        problems = [(offset, message) for offset, message in fields.pop("problems")]
        counts = fields.pop("lines"), fields.pop("records"), problems, fields.pop("remarks", {})
        entries[fields["number"]] = ManifestEntry(ManifestContainer(**fields), *counts)
    return entries


def lines_file(top: Path, container: int) -> Path:
    return top / LINES / f"{container:08d}.parquet"


def references_file(top: Path, container: int) -> Path:
    return top / REFERENCES / f"{container:08d}.parquet"


def fetch_rows(
    database: Database, query: str, values: Sequence[object] = ()
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a query, holding few of them in memory."""
    found = database.execute(query, values)
    while rows := found.fetchmany(_BATCH):
        yield from rows


def lines_of(database: Database, parquet: Path) -> Iterator[Line]:
    """Yield the lines of one file in its order."""
    return map(line_of, fetch_rows(database, "SELECT * FROM read_parquet(?)", [literal(parquet)]))


def line_of(row: Sequence[Any]) -> Line:
    """Return the line of a row with the columns `TYPES`."""
    return Line._make(
        [
            value.encode("latin-1") if is_text else value
            for value, is_text in zip(row, _IS_TEXT, strict=True)
        ]
    )


def write_containers(database: Database, top: Path, entries: dict[int, ManifestEntry]) -> None:
    """Write ``containers.parquet``; names are bytes decoded as Latin-1, as texts of lines."""
    database.execute(
        "CREATE OR REPLACE TEMP TABLE containers (number INTEGER, root VARCHAR, name VARCHAR, "
        "size BIGINT, mtime_ns BIGINT, inode UBIGINT, device UBIGINT, content_hash VARCHAR)"
    )
    rows = [
        tuple(
            os.fsencode(value).decode("latin-1") if isinstance(value, str) else value
            for value in entry.container
        )
        for entry in entries.values()
    ]
    insert(database, "containers", rows)
    write_parquet(database, "SELECT * FROM containers ORDER BY number", top / "containers.parquet")


_LONGEST = 1 << 22  # bytes of a line: all texts of a header of a mebibyte, in hex
_NO_NULL = "\x01"  # never a value of its own, so that an empty value is not NULL


def _select(spool: Path) -> str:
    """Return SQL for the lines in a spool file."""
    values, columns = [], []
    for name, kind in TYPES.items():
        value = f"unhex({name})" if kind == "BLOB" else f'"{name}"'
        value = f"decode(unhex({name}))" if name in TEXTS else value
        values.append(f'{value} AS "{name}"')
        columns.append(f"'{name}': '{'VARCHAR' if kind == 'BLOB' else kind}'")
    return (
        f"SELECT {', '.join(values)} FROM read_csv({quoted(literal(spool))}, auto_detect = false, "
        f"header = false, delim = '\t', new_line = '\\n', quote = '', escape = '', "
        f"nullstr = '{_NO_NULL}', max_line_size = {_LONGEST}, buffer_size = {2 * _LONGEST}, "
        f"columns = {{{', '.join(columns)}}})"
    )


class ParquetWriter:
    """Writes a Parquet file of lines, which are added in order of offset."""

    def __init__(self, target: Path) -> None:
        self.lines = 0
        self._target = target
        self._path = target.with_name(f".{target.name}.{os.getpid()}.tsv")
        self._stream: TextIO = open(  # noqa: SIM115 (`finish` and `drop` close it)
            self._path, "w", encoding="utf-8", newline=""
        )

    def add(self, lines: Iterable[Line]) -> None:
        rows = [_row(line) for line in lines]
        self.lines += len(rows)
        self._stream.write("".join(rows))

    def finish(self, database: Database, *, reason: str = "") -> None:
        """Write the file; `reason` is set for every line that has no `not_rewritable_reason`."""
        self._stream.close()
        rows = _select(self._path)
        if reason:
            column = "not_rewritable_reason"
            value = f"if({column} = '', {quoted(reason)}, {column})"
            rows = f"SELECT * REPLACE ({value} AS {column}) FROM ({rows})"
        write_parquet(database, rows, self._target)
        self.drop()

    def drop(self) -> None:
        self._stream.close()
        self._path.unlink(missing_ok=True)


def _row(line: Line) -> str:
    """Return the line of a spool file."""
    return "\t".join([write(value) for write, value in zip(_WRITE, line, strict=True)]) + "\n"


def _text_in_hex(text: bytes) -> str:
    return text.hex() if text.isascii() else text.decode("latin-1").encode().hex()


_WRITE: list[Callable[[Any], str]] = [
    _text_in_hex if name in TEXTS else bytes.hex if kind == "BLOB" else str
    for name, kind in TYPES.items()
]


class MissingCaptures(NamedTuple):
    """Captures that one manifest has and the other does not."""

    number: int
    named: list[tuple[str, str]]  # URL and date of the first


class ManifestDifference(NamedTuple):
    """The difference of two manifests."""

    gone: MissingCaptures  # only before
    new: MissingCaptures  # only after


def compare(
    before: Manifest, after: Manifest, columns: tuple[str, ...], beside: Path, memory: str = "1GB"
) -> ManifestDifference:
    """Compare all captures by some columns; temporary files are in a directory below `beside`."""
    with open_database(beside, memory, 0) as (database, _):
        for name, manifest in (("before", before), ("after", after)):
            containers = quoted(f"{manifest.path}/containers.parquet")
            database.execute(f"""
                CREATE VIEW {name} AS SELECT l.*, c.name
                FROM read_parquet({quoted(manifest.parquet)}) AS l
                JOIN read_parquet({containers}) AS c ON c.number = l.container""")
        return ManifestDifference(
            _missing(database, "before", "after", columns),
            _missing(database, "after", "before", columns),
        )


def _missing(database: Database, left: str, right: str, names: tuple[str, ...]) -> MissingCaptures:
    """Return the captures that `left` has more often than `right`."""
    columns = ", ".join(f'"{name}"' for name in names)
    database.execute(f"""
        CREATE OR REPLACE TABLE missing AS
        SELECT any_value(u) AS url, any_value(d) AS date, sum(more) AS n
        FROM (SELECT {columns}, url AS u, date AS d, 1 AS more FROM {left}
              UNION ALL SELECT {columns}, url AS u, date AS d, -1 FROM {right})
        GROUP BY {columns} HAVING sum(more) > 0""")
    named = database.execute(f"SELECT url, date FROM missing ORDER BY url, date LIMIT {_SHOWN}")
    rows = named.fetchall()
    return MissingCaptures(number(database, "SELECT sum(n) FROM missing"), rows)
