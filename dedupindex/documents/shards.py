"""Write shards: files ``<first digits of the hash>_<run id>.parquet`` or ``.csv``.

Parquet has the columns `hash` (32 bytes), `path` and `size`; CSV has lines of the hash in hex and
the path, quoted by RFC 4180. Rows are in the order of paths.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dedupindex.documents.list_objects import row_path
from dedupindex.runtime.duckdb import Database, atomic_output, literal, open_database, quoted
from dedupindex.runtime.files import sync_directory

FORMATS = ("parquet", "csv")
CHARACTERS = 4  # at most: 65,536 shards
_NAME = re.compile(r"([0-9a-f]*)_([^_]+)\.(?:parquet|csv)", re.IGNORECASE)


@dataclass(frozen=True)
class ShardLayout:
    characters: int = 1  # of the hash, in the name of a shard
    format: str = "parquet"

    def name(self, prefix: str, run: str) -> str:
        return f"{prefix}_{run}.{self.format}"


def parse_name(name: str) -> tuple[str, str]:
    """Return the prefix and the run id in the name of a shard, empty for other names."""
    match = _NAME.fullmatch(name)
    return (match[1].lower(), match[2]) if match else ("", "")


def publish(top: Path, run: str, names: list[str]) -> None:
    """Rename hidden shards to their final names, and delete earlier shards of the run."""
    for name in names:
        os.replace(hidden_shard(top, name), top / name)
    for name in set(shards_in(top, run)) - set(names):
        os.unlink(top / name)
    sync_directory(top)


def shards_in(top: Path, run: str) -> list[str]:
    """Return the names of the existing shards of a run."""
    with os.scandir(top) as entries:
        return [entry.name for entry in entries if parse_name(entry.name)[1] == run]


def clear(top: Path, run: str) -> None:
    """Remove the temporary files of an interrupted run."""
    shutil.rmtree(_work_directory(top, run), ignore_errors=True)
    for path in list(top.glob(".*.new")):
        if f"_{run}." in path.name:
            path.unlink()


def _work_directory(top: Path, run: str) -> Path:
    return top / f".{run}.work"


def hidden_shard(top: Path, name: str) -> Path:
    """Return where a shard is before it has its name."""
    return top / f".{name}.new"


_ODD = re.compile('[\x00-\x1f"\x7f]').search
_COLUMNS = "{'hash': 'VARCHAR', 'path': 'VARCHAR', 'size': 'BIGINT', 'odd': 'VARCHAR'}"
_CSV = "FORMAT csv, HEADER false, QUOTE '\"', ESCAPE '\"'"
# No dictionaries: hashes are unique, and trying would double the time of writing.
_PARQUET = (
    "FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1, DICTIONARY_SIZE_LIMIT 1, "
    "STRING_DICTIONARY_PAGE_SIZE_LIMIT 1000"
)
_MAX_LINE = 1 << 16  # bytes of a line of the temporary file; a path has at most 4,096, in hex


def write_shards(
    rows: Iterator[tuple[bytes, int, bytes]], top: Path, run: str, layout: ShardLayout, memory: str
) -> list[str]:
    """Write rows, in the order of paths, to hidden shards; return their final names."""
    names = []
    work = _work_directory(top, run)
    work.mkdir()
    with open_database(work, memory, 0) as (database, home):
        lines = home / "rows.tsv"
        with open(lines, "w", encoding="utf-8", newline="") as stream:
            stream.writelines(map(_line, rows))
        count = layout.characters
        database.execute(f"""
            CREATE TABLE rows AS
            SELECT hash, if(odd = '', path, decode(unhex(odd))) AS path, size
            FROM read_csv({quoted(literal(lines))}, auto_detect = false, header = false,
              delim = '\t', new_line = '\\n', quote = '', escape = '', nullstr = '\x01',
              max_line_size = {_MAX_LINE}, columns = {_COLUMNS})
            ORDER BY hash[:{count}], path""")
        lines.unlink()
        found = database.execute(f"SELECT DISTINCT hash[:{count}] AS prefix FROM rows ORDER BY 1")
        for (prefix,) in found.fetchall():
            name = layout.name(prefix, run)
            _write(database, prefix, hidden_shard(top, name), layout.format)
            names.append(name)
    work.rmdir()
    return names


def _write(database: Database, prefix: str, target: Path, form: str) -> None:
    rows = f"FROM rows WHERE hash >= '{prefix}' AND hash < '{prefix}g' ORDER BY path"
    if form == "parquet":
        _copy(database, f"SELECT unhex(hash) AS hash, path, size {rows}", target, _PARQUET)
    else:
        _copy(database, f"SELECT hash, path {rows}", target, _CSV)
    with open(target, "rb") as stream:
        os.fsync(stream.fileno())


def write_rows(database: Database, rows: str, target: Path) -> None:
    """Write the result of a query with hash (BLOB) and path, as CSV or Parquet by the name.

    The file is written whole or not at all.
    """
    with atomic_output(target) as hidden:
        if target.suffix.lower() == ".csv":
            _copy(database, f"SELECT lower(hex(hash)), path FROM ({rows})", hidden, _CSV)
        else:
            _copy(database, rows, hidden, _PARQUET)


def _copy(database: Database, rows: str, target: Path, options: str) -> None:
    database.execute(f"COPY ({rows}) TO {quoted(str(target))} ({options})")


def _line(row: tuple[bytes, int, bytes]) -> str:
    """Return a line of the temporary file; a path with control characters or quotes is in hex."""
    path, size, digest = row_path(os.fsdecode(row[0])), row[1], row[2]
    if _ODD(path):
        return f"{digest.hex()}\t\t{size}\t{path.encode().hex()}\n"
    return f"{digest.hex()}\t{path}\t{size}\t\n"
