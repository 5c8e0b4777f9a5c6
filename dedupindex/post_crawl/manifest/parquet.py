"""The manifest as a directory: the files that were read, and the lines of each in Parquet.

    manifest.json         format, options, and whether the last run finished
    containers.jsonl      one object for each file that was read; the last object of a number
                          counts, one with "gone" removes it
    containers.parquet    the fields of `ManifestContainer`, for joins; written last
    lines/00000017.parquet         the lines of container 17 in order of offset: `TYPES`
    references/00000017.parquet    the revisits in it and what they refer to, if there are any

A record that can neither become a revisit nor be an original has a line, too, with the reason: so
the counts add up, and manifests from before and after a conversion can be compared.

Bytes are as in the file, without the angle brackets around ids and URLs; those in a VARCHAR are
decoded as Latin-1. DuckDB writes Parquet from a spool file of tab-separated values, where all bytes
are in hex.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from blake3 import blake3

from dedupindex.capture import Problem
from dedupindex.errors import BadInput
from dedupindex.post_crawl.directory_format import read_description
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
from dedupindex.sources.refusal_reasons import OF_RECORDS
from dedupindex.sources.warc_files import is_index

# Format 1 had no references, 2 no revisits and no Content-Type, 3 no hashes of HTTP headers, 4
# other names of columns, 5 no hosts, 6 originals behind damage.
FORMAT = 7
_OLDEST = 5  # that is read: as a manifest without a host
BEHIND_DAMAGE = 7  # the first that knows originals behind damage: older ones of damaged files fail
FILE, CONTAINERS, LINES, REFERENCES = (
    "manifest.json", "containers.jsonl", "lines", "references",
)  # fmt: skip
SAME_CAPTURE = ("url", "replay_key", "strong", "length", "status", "coding", "content_type")
"""Columns that a conversion leaves as they are."""
SAME_RECORD = (*SAME_CAPTURE, "stored", "record_id", "date", "digest", "name")
"""Columns of a record that was copied byte for byte, the name of its file among them."""
_BATCH = 2048  # rows
_HEADER_HASH = 16  # bytes
_SHOWN = 20  # captures of a difference that are named


class ManifestContainer(NamedTuple):
    """A WARC or ARC file as it was when it was read."""

    number: int  # in its manifest; never given to another file
    root: str  # directory, absolute
    name: str  # path below the root
    size: int  # bytes
    mtime_ns: int
    inode: int
    device: int
    content_hash: str  # BLAKE3 of the file, in hex
    host: str = ""  # that has the file; empty for the machine that reads the manifest

    @property
    def path(self) -> str:
        """The path on its host, or the address."""
        return f"{self.root.rstrip('/')}/{self.name}"

    @property
    def place(self) -> str:
        """Host and path, for messages."""
        return f"{self.host}:{self.path}" if self.host else self.path

    @property
    def key(self) -> tuple[bytes, str]:
        """What no other file has; containers are numbered in this order."""
        return os.fsencode(self.path), self.host


class Line(NamedTuple):
    """One response record.

    The body is what follows the HTTP header, as stored; without an HTTP header, the whole block.
    """

    container: int
    offset: int  # of the gzip member, or of the record in a plain file
    stored: int  # bytes of the member, or of the record in a plain file
    record_id: bytes  # without angle brackets
    url: bytes  # without angle brackets
    date: bytes  # WARC-Date as written
    digest: bytes  # WARC-Payload-Digest as written; empty for none
    payload: bytes  # digest taken now, raw, of what `covers` says; of the body if UNKNOWN
    covers: int  # `capture.Covers`: what `digest` is of; UNKNOWN if it does not match
    strong: bytes  # BLAKE3 of the body, raw
    length: int  # bytes of the body
    status: int  # HTTP; 0 for none
    coding: bytes  # Transfer-Encoding, line feed, Content-Encoding: lower case, stripped
    content_type: bytes  # HTTP, whole: lower case, without white space; empty for none
    replay_key: int  # xxh64 of urlkey and 14 digits, by which replay finds a capture; 0: none
    not_rewritable_reason: str  # why it can never become a revisit, of `REASONS`; empty if it can
    not_original_reason: str  # why it can never be an original, of `REASONS`; empty if it can
    header: bytes = b""  # BLAKE3 of the HTTP header, 16 bytes; empty for none, or if unknown


TYPES = {
    "container": "INTEGER", "offset": "BIGINT", "stored": "BIGINT", "record_id": "VARCHAR",
    "url": "VARCHAR", "date": "VARCHAR", "digest": "VARCHAR", "payload": "BLOB",
    "covers": "TINYINT", "strong": "BLOB", "length": "BIGINT", "status": "SMALLINT",
    "coding": "VARCHAR", "content_type": "VARCHAR", "replay_key": "UBIGINT",
    "not_rewritable_reason": "VARCHAR", "not_original_reason": "VARCHAR", "header": "BLOB",
}  # fmt: skip
"""Columns of the Parquet files: the fields of `Line`."""
TEXTS = frozenset(("record_id", "url", "date", "digest", "coding", "content_type"))
"""Fields of bytes that are a VARCHAR in the Parquet files, decoded as Latin-1."""


def header_hash(header: bytes | memoryview) -> bytes:
    """Return `Line.header` for an HTTP header with its blank line."""
    return blake3(header).digest(_HEADER_HASH)


_IS_TEXT = [name in TEXTS for name in TYPES]
DAMAGED = "damaged"  # among the types of records: places in which none could be read


@dataclass
class ManifestEntry:
    """A container that was read, and counts of its records."""

    container: ManifestContainer
    lines: int = 0
    records: dict[str, int] = field(default_factory=dict)  # by type, responses among them
    problems: list[tuple[int, str]] = field(default_factory=list)  # offset and message
    remarks: dict[str, int] = field(default_factory=dict)

    @property
    def damaged(self) -> int:
        """Places in which a record was expected and none could be read."""
        return self.records.get(DAMAGED, 0)

    @property
    def readable(self) -> int:
        """Records of all types."""
        return sum(self.records.values()) - self.damaged

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

    def only(self, paths: Set[str]) -> Manifest:
        """Return a manifest of some of the files; `parquet` and `references` are of all."""
        entries = {
            number: entry for number, entry in self.entries.items() if entry.container.path in paths
        }
        return Manifest(self.path, self.algorithm, entries)

    def containers(self) -> dict[int, ManifestContainer]:
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
    entries = read_entries(top)
    if about["format"] < BEHIND_DAMAGE and any(entry.problems for entry in entries.values()):
        raise BadInput(
            f"the manifest {top} is of an earlier version and has damaged files: run bin/manifest "
            "with it again"
        )
    return Manifest(top, about["algorithm"], entries)


def read_about(top: Path) -> dict[str, Any]:
    """Return ``manifest.json``; raises `BadInput` or `FormatFromFuture`."""
    if not (top / FILE).exists():
        if is_index(top):
            raise BadInput(f"{top} is an index, not a manifest; bin/manifest makes one of archives")
        hint = f"bin/manifest {top} -o MANIFEST makes one"
        if (top / "manifest" / FILE).exists():  # of bin/dedup
            hint = f"{top / 'manifest'} is meant"
        elif (top.parent / "manifest" / FILE).exists():  # a plan of bin/dedup
            hint = f"is {top.parent / 'manifest'} meant?"
        raise BadInput(f"{top} is not a manifest: {hint}")
    about = read_description(top / FILE, f"the manifest {top}", FORMAT)
    if about["format"] < _OLDEST:
        raise BadInput(f"the manifest {top} is of an earlier version: remove it and make it again")
    return about


def is_outdated(top: Path) -> bool:
    """Whether a manifest was made by an earlier version and must be made again."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return int(json.loads((top / FILE).read_bytes())["format"]) < _OLDEST
    return False


def read_entries(top: Path) -> dict[int, ManifestEntry]:
    """Return the containers that were read; an incomplete last line is ignored.

    Raises `BadInput` if another line is damaged.
    """
    entries: dict[int, ManifestEntry] = {}
    try:
        for line in (top / CONTAINERS).read_text("ascii").split("\n")[:-1]:
            _take_entry(entries, json.loads(line))
    except FileNotFoundError:
        return entries
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise BadInput(
            f"{top / CONTAINERS} is damaged ({error}): remove the manifest {top} and make it again"
        ) from error
    return entries


def _take_entry(entries: dict[int, ManifestEntry], fields: dict[str, Any]) -> None:
    if fields.get("gone"):
        entries.pop(fields["number"], None)
        return
    problems = [(offset, message) for offset, message in fields.pop("problems")]
    counts = fields.pop("lines"), fields.pop("records"), problems, fields.pop("remarks", {})
    entries[fields["number"]] = ManifestEntry(ManifestContainer(**fields), *counts)


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
        "size BIGINT, mtime_ns BIGINT, inode UBIGINT, device UBIGINT, content_hash VARCHAR, "
        "host VARCHAR)"
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
        columns = list(zip(*lines, strict=True))
        if columns:  # column by column: a third less time than line by line
            texts = [write(column) for write, column in zip(_WRITE, columns, strict=True)]
            rows = map("\t".join, zip(*texts, strict=True))
            self._stream.write("\n".join([*rows, ""]))
            self.lines += len(columns[0])

    def finish(self, database: Database, *, damage: int = -1) -> None:
        """Write the file.

        `damage` is the offset of the first damage, if any: no record of the container is rewritten
        then, and none behind it is an original, as replay tools read no further.
        """
        self._stream.close()
        rows = _select(self._path)
        if damage >= 0:
            stays, unfit = "not_rewritable_reason", "not_original_reason"
            behind = f"""{unfit} = '' AND "offset" > {damage}"""
            damaged, reason = quoted("damaged"), quoted("behind-damage")
            rows = (
                f"SELECT * REPLACE (if({stays} = '', {damaged}, {stays}) AS {stays}, "
                f"if({behind}, {reason}, {unfit}) AS {unfit}) FROM ({rows})"
            )
        write_parquet(database, rows, self._target)
        self.drop()

    def drop(self) -> None:
        self._stream.close()
        self._path.unlink(missing_ok=True)


def _text_in_hex(text: bytes) -> str:
    return text.hex() if text.isascii() else text.decode("latin-1").encode().hex()


_WRITE: list[Callable[[Iterable[Any]], Iterable[str]]] = [
    partial(map, _text_in_hex if name in TEXTS else bytes.hex if kind == "BLOB" else str)
    for name, kind in TYPES.items()
]


class MissingCaptures(NamedTuple):
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
        names = ", ".join(f'"{name}"' for name in columns)
        database.execute(f"""
            CREATE TABLE differing AS
            SELECT any_value(u) AS url, any_value(d) AS date, sum(less) AS n
            FROM (SELECT {names}, url AS u, date AS d, 1 AS less FROM before
                  UNION ALL SELECT {names}, url AS u, date AS d, -1 FROM after)
            GROUP BY {names} HAVING sum(less) <> 0""")
        return ManifestDifference(_captures(database, "n > 0"), _captures(database, "n < 0"))


def _captures(database: Database, where: str) -> MissingCaptures:
    rows = f"FROM differing WHERE {where}"
    named = fetch_rows(database, f"SELECT url, date {rows} ORDER BY url, date LIMIT {_SHOWN}")
    return MissingCaptures(number(database, f"SELECT abs(sum(n)) {rows}"), [*named])


REASONS = {
    **OF_RECORDS,
    "arc": "an ARC document: ARC files are never rewritten; bin/convert makes WARC files of them",
    "bad-date": "no WARC-Date, or none that names a second",
    "bad-digest": "a WARC-Payload-Digest that is not a digest",
    "behind-damage": "behind damage in its file, where replay tools stop reading",
    "damaged": "the file has damage or padding somewhere, and is left as it is",
    "no-digest": "no WARC-Payload-Digest",
    "not-exact": "not framed exactly, so that tools read it differently",
    "redirect": "a redirect (3xx): replay tools show no body of a revisit to one",
    "status": "a status without a body of its own (1xx, 204, 304), or none at all",
    "too-long": "fields of more than 256 KiB, of which only the beginning is kept",
}
"""Why a record can not become a revisit, or be an original, for readers of reports."""
