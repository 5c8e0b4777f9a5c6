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
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dedupindex.capture import Problem
from dedupindex.errors import BadInput, FormatFromFuture
from dedupindex.post_crawl.manifest.lines import Line, ManifestContainer
from dedupindex.runtime.duckdb import Database, literal, one_thread, write_parquet

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
