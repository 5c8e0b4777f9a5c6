"""Documents and shingles in DuckDB, and the state of a run that a later run continues.

documents(…, fresh, kept, s5, …)   with `COLUMNS`; s5: the number of shingles of 5 terms
contents(content, first, s5, …)    each text once, with the first document that has it
shingles_5(n, shingle)             of these first documents

The state for ``--update`` is a directory with ``state.json``: the settings of the run, and the name
of the directory in it with these tables and the pairs as Parquet files.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import orjson

from dedupindex.cover.load_documents import Prepared
from dedupindex.errors import BadSource, SettingsConflict
from dedupindex.runtime.duckdb import Database, from_json, literal, number, quoted, write_parquet
from dedupindex.runtime.files import sync_directory, write_file

FORMAT = 3
_STATE = "state.json"
_ROWS = 10_000  # fetched from DuckDB at once
MAX_LINE = 1 << 24  # bytes of the metadata of a document, or of a shingle
COLUMNS = {
    "n": "INTEGER",  # number of the document
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
    "digest": "VARCHAR",  # of the payload in the record
    "of_container": "VARCHAR",  # of a revisit: the place of its original
    "of_offset": "BIGINT",
    "of_url": "VARCHAR",  # and the capture that it refers to
    "of_digits": "VARCHAR",
    "of_digest": "VARCHAR",
    "content": "VARCHAR",  # a hash of the terms; empty if there are none
}


@dataclass
class LoadCounts:
    documents: int = 0  # including those of an earlier run
    fresh: int = 0
    repeated: int = 0  # further documents of the same capture
    empty: int = 0  # fresh documents without text, which meet no content constraint
    unsized: int = 0  # documents that do not state their bytes
    urls: int = 0
    versions: dict[str, float] = field(default_factory=dict)  # documents of a URL: mean, deviation
    shingles: dict[str, dict[str, int]] = field(default_factory=dict)  # by k: all, distinct


class Spools:
    """Write prepared batches to files, then make tables of these."""

    def __init__(self, home: Path, ks: Sequence[int], *, elsewhere: bool = False) -> None:
        """Open the files in `home`; with `elsewhere` none for shingles, which are not added."""
        self._home, self._ks = home, tuple(ks)
        self._files = ExitStack()
        kept = () if elsewhere else self._ks
        self._documents, *shingles = (
            self._files.enter_context(open(home / name, "wb"))  # noqa: SIM115
            for name in ("documents.json", *(f"shingles_{k}.tsv" for k in kept))
        )
        self._shingles = dict(zip(kept, shingles, strict=True))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def add(self, prepared: Prepared) -> None:
        self._documents.write(prepared.documents)
        for k, shingles in prepared.shingles.items():
            self._shingles[k].write(shingles)

    def load(self, database: Database, before: Path | None) -> LoadCounts:
        """Make the tables, including the documents of an earlier run whose state is `before`."""
        self._files.close()
        sizes = {f"s{k}": "INTEGER" for k in self._ks}
        rows = from_json([self._home / "documents.json"], {**COLUMNS, **sizes}, MAX_LINE)
        names = ", ".join(f'"{name}"' for name in (*COLUMNS, *sizes))
        old = f"UNION ALL SELECT *, false AS fresh FROM {earlier(before, 'documents')}"
        database.execute(
            f"CREATE TABLE loaded AS SELECT {names}, NULL::BOOLEAN AS kept, true AS fresh "
            f"FROM {rows} {old if before else ''}"
        )
        first = "".join(f", any_value(s{k}) AS s{k}" for k in self._ks)
        old = f"UNION ALL SELECT * FROM {earlier(before, 'contents')}"
        listed = ", ".join(["content", "n AS first", *sizes])
        database.execute(
            f"CREATE TABLE contents AS SELECT content, min(first) AS first{first} FROM "
            f"(SELECT {listed} FROM loaded WHERE fresh {old if before else ''}) GROUP BY content"
        )
        types = "'n': 'INTEGER', 'shingle': 'VARCHAR'"
        for k in self._shingles:
            old = f"UNION ALL SELECT * FROM {earlier(before, f'shingles_{k}')}"
            database.execute(
                f"CREATE TABLE shingles_{k} AS SELECT n, shingle FROM "
                f"(SELECT * FROM {_csv(self._home / f'shingles_{k}.tsv', types)} "
                f"{old if before else ''}) SEMI JOIN contents ON n = first"
            )
        return self._deduplicate(database)

    def _deduplicate(self, database: Database) -> LoadCounts:
        """Keep one document of each capture, by place or metadata: the first that has a text."""
        known = 'container IS NOT NULL AND "offset" IS NOT NULL'
        others = ("id", "url", "digits", "content", "of_url", "of_digits")
        identity = ", ".join(f"if({known}, NULL, {name})" for name in others)
        database.execute(
            "CREATE TABLE documents AS SELECT * FROM loaded QUALIFY row_number() OVER "
            f"(PARTITION BY container, \"offset\", {identity} ORDER BY content = '', n) = 1"
        )
        count, new = number(database, "SELECT count(*) FROM documents"), "documents WHERE fresh"
        loaded = LoadCounts(
            documents=count,
            fresh=number(database, f"SELECT count(*) FROM {new}"),
            repeated=number(database, "SELECT count(*) FROM loaded") - count,
            empty=number(database, f"SELECT count(*) FROM {new} AND content = ''"),
            unsized=number(database, "SELECT count(*) FROM documents WHERE size IS NULL"),
        )
        _count_versions(database, loaded)
        for k in self._ks:
            loaded.shingles[str(k)] = {"all": number(database, f"SELECT sum(s{k}) FROM documents")}
        for k in self._shingles:
            distinct = f"SELECT count(*) FROM (SELECT DISTINCT shingle FROM shingles_{k})"
            loaded.shingles[str(k)]["distinct"] = number(database, distinct)
        database.execute("DROP TABLE loaded")
        return loaded


def _count_versions(database: Database, loaded: LoadCounts) -> None:
    urls, mean, deviation, most = database.execute(
        "SELECT count(*), avg(several), stddev_pop(several), max(several) FROM "
        "(SELECT count(*) AS several FROM documents GROUP BY url)"
    ).fetchall()[0]
    loaded.urls = urls
    if urls:
        loaded.versions = {"mean": round(mean, 3), "deviation": round(deviation, 3), "most": most}


def next_number(before: Path | None) -> int:
    """Return the number of the first document that is added to a state."""
    return 0 if before is None else int(read_state(before)["next"])


def read_state(state: Path) -> dict[str, Any]:
    """Read ``state.json`` of an earlier run; raises `BadSource`, `SettingsConflict`."""
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


def save(database: Database, state: Path, ks: Sequence[int], settings: dict[str, Any]) -> None:
    """Write the state; an earlier one remains valid until ``state.json`` is replaced."""
    state.mkdir(exist_ok=True)
    files = Path(tempfile.mkdtemp(prefix="files-", dir=state))
    try:
        columns = ", ".join(f'd."{name}"' for name in (*COLUMNS, *(f"s{k}" for k in ks)))
        after = number(database, "SELECT max(n) + 1 FROM documents")
        for name, rows in {
            "documents": f"SELECT {columns}, "
            "coalesce(c.kept, true) AS kept FROM documents d LEFT JOIN chosen c ON d.n = c.n",
            "contents": "FROM contents",
            "pairs": "FROM pairs",
            "left_out": "FROM left_out",
            **{f"shingles_{k}": f"FROM shingles_{k}" for k in ks},
        }.items():
            write_parquet(database, rows, files / f"{name}.parquet")
        sync_directory(state)
        content = {"format": FORMAT, "files": files.name, "next": after, **settings}
        write_file(state / _STATE, orjson.dumps(content))
    except BaseException:
        shutil.rmtree(files, ignore_errors=True)
        raise
    sync_directory(state.parent)
    for old in set(state.iterdir()) - {files, state / _STATE}:
        if old.is_dir():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.unlink(missing_ok=True)  # of an interrupted run


def fill(database: Database, table: str, columns: str, path: Path, rows: Iterable[str]) -> None:
    """Make a table of lines of numbers separated by tabs, by way of a temporary file."""
    with open(path, "w", encoding="ascii") as stream:
        stream.writelines(rows)
    types = ", ".join(f"'{name}': '{kind}'" for name, kind in map(str.split, columns.split(",")))
    database.execute(f"CREATE OR REPLACE TABLE {table} AS SELECT * FROM {_csv(path, types)}")
    path.unlink()


def fetch(database: Database, query: str) -> Iterator[Any]:
    """Yield the rows of a query, on a connection of its own."""
    with database.cursor() as cursor:
        rows = cursor.execute(query)
        while batch := rows.fetchmany(_ROWS):
            yield from batch


def _csv(path: Path, types: str) -> str:
    return (
        f"read_csv({quoted(literal(path))}, auto_detect = false, header = false, delim = '\t', "
        "new_line = '\\n', quote = '', escape = '', nullstr = '\x01', "
        f"max_line_size = {MAX_LINE}, buffer_size = {2 * MAX_LINE}, columns = {{{types}}})"
    )


def earlier(state: Path | None, name: str) -> str:
    """Return SQL for a table of an earlier run."""
    files = Path() if state is None else state / read_state(state)["files"]
    return f"read_parquet({quoted(literal(files / f'{name}.parquet'))})"
