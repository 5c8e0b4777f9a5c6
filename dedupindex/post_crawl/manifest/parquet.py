"""The manifest as a directory: what was read of which file, and the lines of each in Parquet.

    manifest.json         format, options, and whether the last run came to its end
    containers.jsonl      one object for each file that was read to its end; the last of a number
                          counts, one with "gone" takes it back
    containers.parquet    the fields of `ManifestContainer`, for those who join; written last
    lines/00000017.parquet    the lines of container 17 in order of offset: `TYPES`
    references/00000017.parquet    the revisits in it and what they refer to (`reference`), if any

Parquet is written by DuckDB from a spool of tab-separated text. Text there is the Latin-1 of the
bytes, so that nothing is lost whatever the bytes are.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from dedupindex.capture import Problem
from dedupindex.errors import BadInput, FormatFromFuture
from dedupindex.post_crawl.manifest.lines import TYPES, Line, ManifestContainer
from dedupindex.runtime.duckdb import Database, literal, one_thread, quoted, write_parquet

# 1 did not say what revisits refer to, 2 not where they stand themselves, nor a Content-Type, 3 not
# which HTTP headers are equal.
FORMAT = 4
FILE, CONTAINERS, LINES, REFERENCES = (
    "manifest.json", "containers.jsonl", "lines", "references",
)  # fmt: skip
_FETCHED = 2048  # lines at a time


@dataclass
class ManifestEntry:
    """A container, with what else there was in it."""

    container: ManifestContainer
    lines: int = 0
    records: dict[str, int] = field(default_factory=dict)  # of all kinds, responses among them
    problems: list[tuple[int, str]] = field(default_factory=list)  # offset and message
    remarks: dict[str, int] = field(default_factory=dict)  # on records that were read

    def told(self) -> list[Problem]:
        return [Problem(self.container.path, *problem) for problem in self.problems]


class Manifest:
    """A manifest that a run has finished."""

    def __init__(
        self, path: Path, about: dict[str, Any], entries: dict[int, ManifestEntry]
    ) -> None:
        self.path = path
        self.algorithm: str = about["algorithm"]  # of `Line.payload`
        self.entries = entries  # by number

    @property
    def parquet(self) -> str:
        """A glob of all files with lines; there is at least one, perhaps with nothing in it."""
        return f"{literal(self.path)}/{LINES}/*.parquet"

    @property
    def references(self) -> str:
        """As `parquet`, of revisits and what they refer to."""
        return f"{literal(self.path)}/{REFERENCES}/*.parquet"

    def containers(self) -> dict[int, ManifestContainer]:
        """All that was read, by number."""
        return {number: entry.container for number, entry in self.entries.items()}

    def lines(self, container: int) -> Iterator[Line]:
        """The lines of one container in order of offset."""
        with one_thread() as database:
            yield from lines_of(database, lines_file(self.path, container))


def open_manifest(path: str | os.PathLike[str]) -> Manifest:
    """Raises `BadInput` for what is no manifest or not finished, `FormatFromFuture`."""
    top = Path(path)
    about = read_about(top)
    if not about.get("complete"):
        raise BadInput(f"the manifest {top} is not finished: run bin/manifest with it again")
    return Manifest(top, about, read_entries(top))


def read_about(top: Path) -> dict[str, Any]:
    """What ``manifest.json`` says; raises `BadInput` or `FormatFromFuture`."""
    try:
        about: dict[str, Any] = json.loads((top / FILE).read_bytes())
        number = int(about["format"])
    except FileNotFoundError as error:
        raise BadInput(f"{top} is no manifest: bin/manifest {top} -o MANIFEST makes one") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{top} is no manifest of ours: {error}") from error
    if number > FORMAT:
        raise FormatFromFuture(f"the manifest {top} has format {number}, this knows {FORMAT}")
    if number < FORMAT:
        raise BadInput(f"the manifest {top} is of an earlier version: remove it and make it again")
    return about


def is_of_before(top: Path) -> bool:
    """Whether a manifest was made by an earlier version, and can only be made anew."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return int(json.loads((top / FILE).read_bytes())["format"]) < FORMAT
    return False


def read_entries(top: Path) -> dict[int, ManifestEntry]:
    """What was read to its end; a last line that a kill has cut says nothing."""
    entries: dict[int, ManifestEntry] = {}
    try:
        text = (top / CONTAINERS).read_text("ascii")
    except FileNotFoundError:
        return entries
    for line in text.split("\n")[:-1]:
        said = json.loads(line)
        if said.get("gone"):
            entries.pop(said["number"], None)
            continue
        problems = [(offset, message) for offset, message in said.pop("problems")]
        lines, records = said.pop("lines"), said.pop("records")
        remarks = said.pop("remarks", {})
        entries[said["number"]] = ManifestEntry(
            ManifestContainer(**said), lines, records, problems, remarks
        )
    return entries


def lines_file(top: Path, container: int) -> Path:
    return top / LINES / f"{container:08d}.parquet"


def references_file(top: Path, container: int) -> Path:
    return top / REFERENCES / f"{container:08d}.parquet"


def lines_of(database: Database, parquet: Path) -> Iterator[Line]:
    """The lines in one file, as they stand there."""
    found = database.execute("SELECT * FROM read_parquet(?)", [literal(parquet)])
    while rows := found.fetchmany(_FETCHED):
        for row in rows:
            yield line_of(row)


def line_of(row: tuple[Any, ...]) -> Line:
    """The line that a row of Parquet is, its columns being `TYPES`."""
    (container, offset, stored, record_id, url, date, digest, payload, covers, strong, length,
     status, coding, content_type, moment, stay, unfit, header) = row  # fmt: skip
    return Line(
        container, offset, stored, record_id.encode("latin-1"), url.encode("latin-1"),
        date.encode("latin-1"), digest.encode("latin-1"), payload, covers, strong, length,
        status, coding.encode("latin-1"), content_type.encode("latin-1"), moment, stay, unfit,
        header,
    )  # fmt: skip


def write_containers(database: Database, top: Path, entries: dict[int, ManifestEntry]) -> None:
    """Write ``containers.parquet``; names are the Latin-1 of their bytes, as texts of lines are."""
    database.execute(
        "CREATE OR REPLACE TEMP TABLE containers (number INTEGER, root VARCHAR, name VARCHAR, "
        "size BIGINT, mtime_ns BIGINT, inode UBIGINT, device UBIGINT, content_hash VARCHAR)"
    )
    rows = [
        [number, _text(root), _text(name), *rest]
        for number, root, name, *rest in (entry.container for entry in entries.values())
    ]
    for start in range(0, len(rows), _FETCHED):
        part = rows[start : start + _FETCHED]
        marks = ", ".join(["(?, ?, ?, ?, ?, ?, ?, ?)"] * len(part))
        database.execute(
            f"INSERT INTO containers VALUES {marks}", [value for row in part for value in row]
        )
    write_parquet(database, "SELECT * FROM containers ORDER BY number", top / "containers.parquet")


def _text(name: str) -> str:
    return os.fsencode(name).decode("latin-1")


# Lines of one container on their way to Parquet.

_ODD = re.compile(rb'[\x00-\x08\x0a-\x1f"\x7f]').search
_TEXTS = (
    "record_id",
    "url",
    "date",
    "digest",
    "coding",
    "content_type",
)  # of bytes that came from the web
_COLUMNS = {
    **{name: "VARCHAR" if kind == "BLOB" else kind for name, kind in TYPES.items()},
    "odd": "VARCHAR",  # these texts in hex, separated by commas; empty where all is as usual
}
_LONGEST = 1 << 22  # bytes of a line: all values of a header of a mebibyte, in hex
_NO_NULL = "\x01"  # an empty value is one, and what this spells never comes bare


def _select(spool: Path) -> str:
    """SQL for what stands in a spool."""
    values = []
    for name, kind in TYPES.items():
        value = f"unhex({name})" if kind == "BLOB" else f'"{name}"'
        if name in _TEXTS:
            part = f"split_part(odd, ',', {_TEXTS.index(name) + 1})"
            usual = f"replace({name}, '|', chr(10))" if name == "coding" else name
            value = f"CASE WHEN odd = '' THEN {usual} ELSE decode(unhex({part})) END"
        values.append(f'{value} AS "{name}"')
    columns = ", ".join(f"'{name}': '{kind}'" for name, kind in _COLUMNS.items())
    return (
        f"SELECT {', '.join(values)} FROM read_csv({quoted(literal(spool))}, auto_detect = false, "
        f"header = false, delim = '\t', new_line = '\\n', quote = '', escape = '', "
        f"nullstr = '{_NO_NULL}', max_line_size = {_LONGEST}, buffer_size = {2 * _LONGEST}, "
        f"columns = {{{columns}}})"
    )


class ParquetWriter:
    """Takes lines in order of offset; `finish` makes a Parquet file of them that is whole."""

    def __init__(self, target: Path) -> None:
        self.lines = 0
        self._target = target
        self._path = target.with_name(f".{target.name}.{os.getpid()}.tsv")
        self._stream: TextIO = open(  # noqa: SIM115 (`finish` and `drop` close it)
            self._path, "w", encoding="utf-8", newline=""
        )

    def add(self, lines: Iterable[Line]) -> None:
        rows = [row_of(line) for line in lines]
        self.lines += len(rows)
        self._stream.write("".join(rows))

    def finish(self, database: Database, *, stay: str = "") -> None:
        """Write the file; `stay` is the reason of every line that has none yet, if there is one."""
        self._stream.close()
        rows = _select(self._path)
        if stay:
            rows = f"SELECT * REPLACE (if(stay = '', {quoted(stay)}, stay) AS stay) FROM ({rows})"
        write_parquet(database, rows, self._target)
        self.drop()

    def drop(self) -> None:
        self._stream.close()
        self._path.unlink(missing_ok=True)


def nothing() -> str:
    """SQL for no lines, with all their columns."""
    columns = ", ".join(f'NULL::{kind} AS "{name}"' for name, kind in TYPES.items())
    return f"SELECT {columns} WHERE false"


def row_of(line: Line) -> str:
    """A line of the spool."""
    (container, offset, stored, record_id, url, date, digest, payload, covers, strong, length,
     status, coding, content_type, moment, stay, unfit, header) = line  # fmt: skip
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
        f"{content_type.decode('latin-1')}\t{moment}\t{stay}\t{unfit}\t{header.hex()}\t{odd}\n"
    )


def _odd_codes(codes: bytes) -> bool:
    return bool(_ODD(codes)) or b"\t" in codes or codes.count(b"|") != 1
