"""The manifest as a directory: the files that were read, and the lines of each in Parquet.

    manifest.json         format, options, and whether the last run finished
    containers.jsonl      one object for each file that was read; the last object of a number
                          counts, one with "gone" removes it
    containers.parquet    the fields of `ManifestContainer`, for joins; written last
    lines/00000017.parquet         the lines of container 17 in order of offset: `TYPES`
    references/00000017.parquet    the revisits in it and what they refer to, if there are any

DuckDB writes Parquet from a spool of tab-separated text, where bytes are decoded as Latin-1, so
that nothing is lost whatever the bytes are.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from dedupindex.capture import Problem
from dedupindex.errors import BadInput, FormatFromFuture
from dedupindex.post_crawl.manifest.lines import TYPES, Line, ManifestContainer
from dedupindex.runtime.duckdb import (
    Database,
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
_BATCH = 2048  # lines
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
    try:
        about: dict[str, Any] = json.loads((top / FILE).read_bytes())
        found = int(about["format"])
    except FileNotFoundError as error:
        raise BadInput(f"{top} is no manifest: bin/manifest {top} -o MANIFEST makes one") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{top} is no manifest of ours: {error}") from error
    if found > FORMAT:
        raise FormatFromFuture(f"the manifest {top} has format {found}, this knows {FORMAT}")
    if found < FORMAT:
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


def lines_of(database: Database, parquet: Path) -> Iterator[Line]:
    """Yield the lines of one file in its order."""
    found = database.execute("SELECT * FROM read_parquet(?)", [literal(parquet)])
    while rows := found.fetchmany(_BATCH):
        for row in rows:
            yield line_of(row)


def line_of(row: tuple[Any, ...]) -> Line:
    """Return the line of a row with the columns `TYPES`."""
    (
        container, offset, stored, record_id, url, date, digest, payload, covers, strong, length,
        status, coding, content_type, replay_key, not_rewritable, not_original, header,
    ) = row  # fmt: skip
    return Line(
        container, offset, stored, record_id.encode("latin-1"), url.encode("latin-1"),
        date.encode("latin-1"), digest.encode("latin-1"), payload, covers, strong, length,
        status, coding.encode("latin-1"), content_type.encode("latin-1"), replay_key,
        not_rewritable, not_original, header,
    )  # fmt: skip


def write_containers(database: Database, top: Path, entries: dict[int, ManifestEntry]) -> None:
    """Write ``containers.parquet``; names are bytes decoded as Latin-1, as texts of lines."""
    database.execute(
        "CREATE OR REPLACE TEMP TABLE containers (number INTEGER, root VARCHAR, name VARCHAR, "
        "size BIGINT, mtime_ns BIGINT, inode UBIGINT, device UBIGINT, content_hash VARCHAR)"
    )
    rows = [
        [number, *(os.fsencode(text).decode("latin-1") for text in (root, name)), *rest]
        for number, root, name, *rest in (entry.container for entry in entries.values())
    ]
    for start in range(0, len(rows), _BATCH):
        part = rows[start : start + _BATCH]
        marks = ", ".join(["(?, ?, ?, ?, ?, ?, ?, ?)"] * len(part))
        database.execute(
            f"INSERT INTO containers VALUES {marks}", [value for row in part for value in row]
        )
    write_parquet(database, "SELECT * FROM containers ORDER BY number", top / "containers.parquet")


_ODD = re.compile(rb'[\x00-\x08\x0a-\x1f"\x7f]').search
_TEXTS = ("record_id", "url", "date", "digest", "coding", "content_type")  # bytes from the web
_COLUMNS = {
    **{name: "VARCHAR" if kind == "BLOB" else kind for name, kind in TYPES.items()},
    "odd": "VARCHAR",  # these texts in hex, separated by commas; empty where all are plain
}
_LONGEST = 1 << 22  # bytes of a line: all texts of a header of a mebibyte, in hex
_NO_NULL = "\x01"  # never a value of its own, so that an empty value is not NULL


def _select(spool: Path) -> str:
    """Return SQL for the lines in a spool."""
    values = []
    for name, kind in TYPES.items():
        value = f"unhex({name})" if kind == "BLOB" else f'"{name}"'
        if name in _TEXTS:
            part = f"split_part(odd, ',', {_TEXTS.index(name) + 1})"
            plain = f"replace({name}, '|', chr(10))" if name == "coding" else name
            value = f"CASE WHEN odd = '' THEN {plain} ELSE decode(unhex({part})) END"
        values.append(f'{value} AS "{name}"')
    columns = ", ".join(f"'{name}': '{kind}'" for name, kind in _COLUMNS.items())
    return (
        f"SELECT {', '.join(values)} FROM read_csv({quoted(literal(spool))}, auto_detect = false, "
        f"header = false, delim = '\t', new_line = '\\n', quote = '', escape = '', "
        f"nullstr = '{_NO_NULL}', max_line_size = {_LONGEST}, buffer_size = {2 * _LONGEST}, "
        f"columns = {{{columns}}})"
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


def no_lines() -> str:
    """Return SQL for no lines, with all columns."""
    columns = ", ".join(f'NULL::{kind} AS "{name}"' for name, kind in TYPES.items())
    return f"SELECT {columns} WHERE false"


def _row(line: Line) -> str:
    """Return the line of a spool."""
    (
        container, offset, stored, record_id, url, date, digest, payload, covers, strong, length,
        status, coding, content_type, replay_key, not_rewritable, not_original, header,
    ) = line  # fmt: skip
    text = b"%b\t%b\t%b\t%b" % (record_id, url, date, digest)
    codes = coding.replace(b"\n", b"|", 1)
    odd = ""
    if (
        _ODD(text)
        or text.count(b"\t") != 3
        or (len(codes) > 1 and _odd_codes(codes))
        or (content_type and (_ODD(content_type) or b"\t" in content_type))
    ):
        values = (record_id, url, date, digest, coding, content_type)
        odd = ",".join([value.decode("latin-1").encode().hex() for value in values])
        text, codes, content_type = b"\t\t\t", b"", b""
    return (
        f"{container}\t{offset}\t{stored}\t{text.decode('latin-1')}\t{payload.hex()}\t{covers}\t"
        f"{strong.hex()}\t{length}\t{status}\t{codes.decode('latin-1')}\t"
        f"{content_type.decode('latin-1')}\t{replay_key}\t{not_rewritable}\t{not_original}\t"
        f"{header.hex()}\t{odd}\n"
    )


def _odd_codes(codes: bytes) -> bool:
    return bool(_ODD(codes)) or b"\t" in codes or codes.count(b"|") != 1


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
