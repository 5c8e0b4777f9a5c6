"""The rows of shards, and how they are written.

Parquet has `hash` (32 bytes), `path` and `size` in the order of paths; CSV has lines of the hash in
hex and the path, quoted as RFC 4180 has it, as the seed of this design wrote them.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dedupindex.documents.list_objects import spelled
from dedupindex.runtime.duckdb import Database, atomic_output, literal, open_database, quoted
from dedupindex.runtime.files import sync_directory

# Shards are files ``<first characters of the hash>_<run id>.parquet`` or ``.csv``.

FORMATS = ("parquet", "csv")
CHARACTERS = 4  # at most: 65,536 shards
_NAME = re.compile(r"([0-9a-f]*)_([^_]+)\.(parquet|csv)", re.IGNORECASE)


@dataclass(frozen=True)
class ShardLayout:
    """How shards are written."""

    characters: int = 1
    format: str = "parquet"

    def name(self, prefix: str, run: str) -> str:
        return f"{prefix}_{run}.{self.format}"


def parsed(name: str) -> tuple[str, str] | None:
    """Prefix and format that the name of a shard tells."""
    match = _NAME.fullmatch(name)
    return (match[1].lower(), match[3].lower()) if match else None


def run_of(name: str) -> str:
    """The run id that the name of a shard tells."""
    match = _NAME.fullmatch(name)
    return match[2] if match else ""


def publish(top: Path, run: str, names: list[str]) -> None:
    """Give shards their names, and take away those that the run had before."""
    for name in names:
        os.replace(coming(top, name), top / name)
    for name in set(shards_in(top, run)) - set(names):
        os.unlink(top / name)
    sync_directory(top)


def shards_in(top: Path, run: str) -> list[str]:
    """The shards of a run that are there."""
    with os.scandir(top) as entries:
        return [entry.name for entry in entries if run_of(entry.name) == run]


def clear(top: Path, run: str) -> None:
    """Remove what a killed run has left half done."""
    shutil.rmtree(place(top, run), ignore_errors=True)
    with os.scandir(top) as entries:
        left = [entry.path for entry in entries if _is_left(entry.name, run)]
    for path in left:
        os.unlink(path)


def place(top: Path, run: str) -> Path:
    """Where a run works."""
    return top / f".{run}.work"


def coming(top: Path, name: str) -> Path:
    """A shard before it has its name."""
    return top / f".{name}.new"


def _is_left(name: str, run: str) -> bool:
    return name.startswith(".") and name.endswith(".new") and f"_{run}." in name


_ODD = re.compile('[\x00-\x1f"\x7f]').search
_COLUMNS = "{'hash': 'VARCHAR', 'path': 'VARCHAR', 'size': 'BIGINT', 'odd': 'VARCHAR'}"
_CSV = "FORMAT csv, HEADER false, QUOTE '\"', ESCAPE '\"'"
# Hashes neither repeat nor shrink: to look for what does takes twice the time of all the rest.
_PARQUET = (
    "FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1, DICTIONARY_SIZE_LIMIT 1, "
    "STRING_DICTIONARY_PAGE_SIZE_LIMIT 1000"
)
_LONGEST = 1 << 16  # bytes of a line of the spool; a path has at most 4,096, in hex


def write_shards(
    rows: Iterator[tuple[bytes, int, bytes]], top: Path, run: str, layout: ShardLayout, memory: str
) -> list[str]:
    """Write rows, in the order of paths, into shards with hidden names; returns the final names."""
    names = []
    work = place(top, run)
    work.mkdir()
    with open_database(work, memory, 0) as (database, home):
        spool = home / "rows.tsv"
        with open(spool, "w", encoding="utf-8", newline="") as stream:
            stream.writelines(map(_line, rows))
        count = layout.characters
        database.execute(f"""
            CREATE TABLE rows AS
            SELECT hash, if(odd = '', path, decode(unhex(odd))) AS path, size
            FROM read_csv({quoted(literal(spool))}, auto_detect = false, header = false,
              delim = '\t', new_line = '\\n', quote = '', escape = '', nullstr = '\x01',
              max_line_size = {_LONGEST}, columns = {_COLUMNS})
            ORDER BY hash[:{count}], path""")
        spool.unlink()
        found = database.execute(f"SELECT DISTINCT hash[:{count}] AS prefix FROM rows ORDER BY 1")
        for (prefix,) in found.fetchall():
            name = layout.name(prefix, run)
            _write(database, prefix, coming(top, name), layout.format)
            names.append(name)
    work.rmdir()
    return names


def _write(database: Database, prefix: str, target: Path, form: str) -> None:
    rows = f"FROM rows WHERE hash >= '{prefix}' AND hash < '{prefix}g' ORDER BY path"
    if form == "parquet":
        database.execute(_copy(f"SELECT unhex(hash) AS hash, path, size {rows}", target, _PARQUET))
    else:
        database.execute(_copy(f"SELECT hash, path {rows}", target, _CSV))
    with open(target, "rb") as stream:
        os.fsync(stream.fileno())


def write_rows(database: Database, rows: str, target: Path) -> None:
    """Write what the query `rows` yields, hash (bytes) and path among it; whole or not at all.

    It is CSV if the name ends so.
    """
    with atomic_output(target) as beside:
        if target.suffix.lower() == ".csv":
            rows = f"SELECT lower(hex(hash)), path FROM ({rows})"
            database.execute(_copy(rows, beside, _CSV))
        else:
            database.execute(_copy(rows, beside, _PARQUET))


def _copy(rows: str, target: Path, options: str) -> str:
    return f"COPY ({rows}) TO {quoted(str(target))} ({options})"


def _line(row: tuple[bytes, int, bytes]) -> str:
    """A line of the spool; a path that it cannot hold goes as hex."""
    path, size, digest = spelled(os.fsdecode(row[0])), row[1], row[2]
    if _ODD(path):
        return f"{digest.hex()}\t\t{size}\t{path.encode().hex()}\n"
    return f"{digest.hex()}\t{path}\t{size}\t\n"
