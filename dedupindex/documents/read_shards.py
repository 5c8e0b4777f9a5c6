"""The shards that a glob names, of both formats, and their rows as one relation."""

from __future__ import annotations

import glob
import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import duckdb

from dedupindex.documents.hash_objects import UNFINISHED
from dedupindex.documents.shards import parsed, run_of
from dedupindex.errors import BadInput, BadSource
from dedupindex.object_store import is_remote, redacted
from dedupindex.runtime.duckdb import Database, literal, quoted

_TOGETHER = 1 << 27  # bytes of files
_LINE = 1 << 16  # bytes of a CSV line: a path has at most 4,096


class Shard(NamedTuple):
    """Files whose hashes begin with these prefixes or what is between, and no others do."""

    first: str
    last: str
    files: tuple[Path, ...]


def shards_of(
    pattern: str, runs: Collection[str] | None = None, output: Path | None = None
) -> list[Shard]:
    """The shards that a glob, or a directory, names, in the order of their prefixes.

    With `runs` only those of such run ids. Files whose names tell no prefix make one shard of all.
    Raises `BadSource` if there is nothing, `BadInput` if a run beside them is not finished, or
    `output` is among them.
    """
    if is_remote(pattern):
        raise BadSource(
            f"{redacted(pattern)} is elsewhere, and shards are read here: download them"
        )
    path = os.path.expanduser(pattern)
    if os.path.isdir(path):
        path = os.path.join(glob.escape(path), "*_*.*")
    files = [Path(name) for name in glob.iglob(path, recursive=True) if os.path.isfile(name)]
    if runs is not None:
        files = [file for file in files if run_of(file.name) in runs]
    if not files:
        raise BadSource(f"nothing matches {pattern}")
    if output is not None and output.exists() and any(map(output.samefile, files)):
        raise BadInput(f"{output} is among the shards that {pattern} names: name another")
    for directory in sorted({file.parent for file in files}):
        for mark in sorted(directory.glob(f".*{UNFINISHED}")):
            if runs is not None and mark.name[1 : -len(UNFINISHED)] not in runs:
                continue
            raise BadInput(
                f"the run {mark.name[1 : -len(UNFINISHED)]} in {directory} has not come to its "
                f"end: run bin/hash_documents again, or remove {mark} to do without it"
            )
    return list(_grouped(files))


def _grouped(files: Sequence[Path]) -> Iterator[Shard]:
    named = {file: parsed(file.name) for file in files}
    lengths = [len(name[0]) if name else 0 for name in named.values()]
    shortest = min(lengths)  # a run may have cut finer than another
    groups: defaultdict[str, list[Path]] = defaultdict(list)
    for file, name in named.items():
        groups[name[0][:shortest] if name else ""].append(file)
    for prefix in sorted(groups):
        yield Shard(prefix, prefix, tuple(sorted(groups[prefix])))


def merged(shards: Iterable[Shard]) -> Iterator[Shard]:
    """Small neighbours as one: each costs the engine some milliseconds."""
    now: Shard | None = None
    size = 0
    for shard in shards:
        more = sum(file.stat().st_size for file in shard.files)
        if now is not None and size + more <= _TOGETHER:
            now, size = Shard(now.first, shard.last, now.files + shard.files), size + more
            continue
        if now is not None:
            yield now
        now, size = shard, more
    if now is not None:
        yield now


def relation(database: Database, shard: Shard) -> str:
    """SQL for the rows of a shard: hash (bytes), path, and size (null if unknown).

    Raises `BadInput` for files of other columns.
    """
    parts = []
    csv = {file: end for file in shard.files if (end := _line_end(file))}
    for end in sorted(set(csv.values())):
        some = [file for file in csv if csv[file] == end]
        # The first line may name the columns, as CSV files of other tools do.
        parts.append(f"""
            SELECT unhex(nullif(hash, 'hash')) AS hash, path, NULL::BIGINT AS size
            FROM read_csv([{_list(some)}], auto_detect = false, header = false, delim = ',',
              quote = '"', escape = '"', new_line = '{end}', max_line_size = {_LINE},
              columns = {{'hash': 'VARCHAR', 'path': 'VARCHAR'}})
            WHERE hash <> 'hash'""")
    kinds: defaultdict[str, list[Path]] = defaultdict(list)
    for file in shard.files:
        if file not in csv:
            kinds[_columns(database, file)].append(file)
    parts += [f"SELECT {kind} FROM read_parquet([{_list(kinds[kind])}])" for kind in kinds]
    return f"({' UNION ALL '.join(parts)})"


def _columns(database: Database, file: Path) -> str:
    """What to select of a Parquet file."""
    try:
        said = database.execute(f"DESCRIBE FROM read_parquet({_list([file])})").fetchall()
    except duckdb.Error as error:
        raise BadInput(f"{file} cannot be read: {str(error).partition(chr(10))[0]}") from error
    types = {name: kind for name, kind, *_ in said}
    if types.get("hash") not in ("BLOB", "VARCHAR") or types.get("path") != "VARCHAR":
        raise BadInput(f"{file} has no hash and path, but {', '.join(types)}")
    digest = "hash" if types["hash"] == "BLOB" else "unhex(hash) AS hash"
    return f"{digest}, path, {'size' if 'size' in types else 'NULL::BIGINT AS size'}"


def _line_end(file: Path) -> str:
    """How the first line of a CSV file ends, as SQL spells it; empty for Parquet."""
    with open(file, "rb") as stream:
        first = stream.readline(_LINE)
    if first.startswith(b"PAR1"):
        return ""
    return r"\r\n" if first.endswith(b"\r\n") else r"\n"


def _list(files: Sequence[Path]) -> str:
    return ", ".join(quoted(literal(file)) for file in files)
