"""Documents and shingles in DuckDB, and what a later run takes over from an earlier one.

documents(n, id, url, hostname, mime, title, timestamp, digits, status, size, quality, container,
          offset, length, digest, of_container, of_offset, of_url, of_digits, of_digest, content,
          fresh, kept, s5, …)
                                   n numbers them; s5: how many shingles of 5 terms
contents(content, first, s5, …)    each text once, with the first document that has it
shingles_5(n, shingle)             of those first documents

The state of a run, for ``--update``: a directory with ``state.json``, which says what the run was
asked for and in which directory beside it there are Parquet files of these tables and the pairs.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import orjson

from dedupindex.cover.load_documents import Prepared
from dedupindex.errors import BadSource, SettingsConflict
from dedupindex.runtime.duckdb import Database, from_json, literal, number, quoted, write_parquet
from dedupindex.runtime.files import sync_directory, write_file

FORMAT = 3
_STATE = "state.json"
LONGEST = 1 << 24  # bytes of the metadata of a document, or of a shingle
COLUMNS = {
    "n": "INTEGER",
    "id": "VARCHAR",
    "url": "VARCHAR",
    "hostname": "VARCHAR",
    "mime": "VARCHAR",
    "title": "VARCHAR",
    "timestamp": "BIGINT",  # seconds since 1970
    "digits": "VARCHAR",  # the same in 14 digits
    "status": "BIGINT",
    "size": "BIGINT",
    "quality": "DOUBLE",
    "container": "VARCHAR",
    "offset": "BIGINT",
    "length": "BIGINT",
    "digest": "VARCHAR",  # of the payload that is there
    "of_container": "VARCHAR",  # where the payload of a revisit is
    "of_offset": "BIGINT",
    "of_url": "VARCHAR",  # what it names
    "of_digits": "VARCHAR",
    "of_digest": "VARCHAR",
    "content": "VARCHAR",  # a hash of the terms; empty for none
}


@dataclass
class Loaded:
    """What came in."""

    documents: int = 0  # all, those of an earlier run included
    fresh: int = 0
    repeated: int = 0  # the same capture again
    empty: int = 0  # without text: no content constraint is met


class Spools:
    """Takes what was prepared, then makes tables of it."""

    def __init__(self, home: Path, ks: Sequence[int]) -> None:
        self._home, self._ks = home, tuple(ks)
        # The block closes them.
        self._documents = open(home / "documents.json", "wb")  # noqa: SIM115
        self._shingles = {k: open(home / f"shingles_{k}.tsv", "wb") for k in ks}  # noqa: SIM115
        self.empty = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self._documents, *self._shingles.values()):
            stream.close()

    def add(self, prepared: Prepared) -> None:
        self._documents.write(prepared.documents)
        for k, shingles in prepared.shingles.items():
            self._shingles[k].write(shingles)
        self.empty += prepared.empty

    def load(self, database: Database, before: Path | None) -> Loaded:
        """Make the tables; `before` is the state of an earlier run."""
        self.__exit__()
        sizes = {f"s{k}": "INTEGER" for k in self._ks}
        rows = from_json([self._home / "documents.json"], {**COLUMNS, **sizes}, LONGEST)
        old = f"UNION ALL SELECT *, false AS fresh FROM {earlier(before, 'documents')}"
        database.execute(
            f"CREATE TABLE loaded AS SELECT {_names(sizes)}, NULL::BOOLEAN AS kept, true AS fresh "
            f"FROM {rows} {old if before else ''}"
        )
        first = "".join(f", any_value(s{k}) AS s{k}" for k in self._ks)
        old = f"UNION ALL SELECT * FROM {earlier(before, 'contents')}"
        listed = ", ".join(["content", "n AS first", *sizes])
        database.execute(
            f"CREATE TABLE contents AS SELECT content, min(first) AS first{first} FROM "
            f"(SELECT {listed} FROM loaded WHERE fresh {old if before else ''}) GROUP BY content"
        )
        for k in self._ks:
            old = f"UNION ALL SELECT * FROM {earlier(before, f'shingles_{k}')}"
            database.execute(
                f"CREATE TABLE shingles_{k} AS SELECT n, shingle FROM "
                f"(SELECT * FROM {_text(self._home / f'shingles_{k}.tsv')} "
                f"{old if before else ''}) SEMI JOIN contents ON n = first"
            )
        return self._without_repeated(database)

    def _without_repeated(self, database: Database) -> Loaded:
        """Keep the first of what is the same capture, of those that have a text if one has.

        It is the same if its place is; where that is not known, if id, URL, time and text are.
        """
        known = 'container IS NOT NULL AND "offset" IS NOT NULL'
        others = ("id", "url", "digits", "content", "of_url", "of_digits")
        alike = ", ".join(f"if({known}, NULL, {name})" for name in others)
        database.execute(
            "CREATE TABLE documents AS SELECT * FROM loaded QUALIFY row_number() OVER "
            f"(PARTITION BY container, \"offset\", {alike} ORDER BY content = '', n) = 1"
        )
        count = number(database, "SELECT count(*) FROM documents")
        loaded = Loaded(
            documents=count,
            fresh=number(database, "SELECT count(*) FROM documents WHERE fresh"),
            repeated=number(database, "SELECT count(*) FROM loaded") - count,
            empty=self.empty,
        )
        database.execute("DROP TABLE loaded")
        return loaded


def next_number(before: Path | None) -> int:
    """The number of the first document that is added to a state."""
    if before is None:
        return 0
    return int(asked(before)["next"])


def asked(state: Path) -> dict[str, Any]:
    """What an earlier run was asked for; raises `BadSource`, `SettingsConflict`."""
    try:
        found = orjson.loads((state / _STATE).read_bytes())
    except (OSError, ValueError) as error:
        raise BadSource(
            f"there is no state of a run in {state}: bin/cover leaves one with --updatable"
        ) from error
    if found.get("format") != FORMAT:
        raise SettingsConflict(
            f"{state} has format {found.get('format')}, and this version knows {FORMAT}: run "
            "bin/cover anew on all sources"
        )
    return dict(found)


def save(database: Database, state: Path, ks: Sequence[int], told: dict[str, Any]) -> None:
    """Write the state; until ``state.json`` tells of its files, one that was there is still so."""
    state.mkdir(exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix="files-", dir=state))
    try:
        columns = [*COLUMNS, *(f"s{k}" for k in ks)]
        after = number(database, "SELECT max(n) + 1 FROM documents")
        for name, rows in {
            "documents": f"SELECT {', '.join(f'd.{_quoted(one)}' for one in columns)}, "
            "coalesce(c.kept, true) AS kept FROM documents d LEFT JOIN chosen c ON d.n = c.n",
            "contents": "FROM contents",
            "pairs": "FROM pairs",
            "left_out": "FROM left_out",
            **{f"shingles_{k}": f"FROM shingles_{k}" for k in ks},
        }.items():
            write_parquet(database, rows, beside / f"{name}.parquet")
        sync_directory(state)
        asked = {"format": FORMAT, "files": beside.name, "next": after, **told}
        write_file(state / _STATE, orjson.dumps(asked))
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    sync_directory(state.parent)
    for old in set(state.iterdir()) - {beside, state / _STATE}:
        if old.is_dir():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.unlink(missing_ok=True)  # of a run that was killed


def fill(database: Database, table: str, columns: str, path: Path, rows: Iterable[str]) -> None:
    """Make a table of rows of numbers, separated by tabs, by way of a file that then goes."""
    with open(path, "w", encoding="ascii") as stream:
        stream.writelines(rows)
    types = ", ".join(f"'{name}': '{kind}'" for name, kind in map(str.split, columns.split(",")))
    database.execute(f"CREATE OR REPLACE TABLE {table} AS SELECT * FROM {_csv(path, types)}")
    path.unlink()


def _names(sizes: Iterable[str]) -> str:
    return ", ".join(map(_quoted, [*COLUMNS, *sizes]))


def _quoted(column: str) -> str:
    """`offset` is a word of SQL."""
    return f'"{column}"'


def _text(path: Path) -> str:
    return _csv(path, "'n': 'INTEGER', 'shingle': 'VARCHAR'")


def _csv(path: Path, types: str) -> str:
    return (
        f"read_csv({quoted(literal(path))}, auto_detect = false, header = false, delim = '\t', "
        "new_line = '\\n', quote = '', escape = '', nullstr = '\x01', "
        f"max_line_size = {LONGEST}, buffer_size = {2 * LONGEST}, columns = {{{types}}})"
    )


def earlier(state: Path | None, name: str) -> str:
    """SQL for a table of an earlier run."""
    files = Path() if state is None else state / asked(state)["files"]
    return f"read_parquet({quoted(literal(files / f'{name}.parquet'))})"
