"""Find the shards that match a glob, and read their rows, Parquet or CSV."""

from __future__ import annotations

import glob
import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import duckdb

from dedupindex.documents.shard_target import UNFINISHED
from dedupindex.documents.shards import parse_name
from dedupindex.errors import BadInput, BadSource
from dedupindex.object_store import (
    FoundObject,
    download,
    find_objects,
    is_many,
    is_remote,
    list_directory,
    redacted,
)
from dedupindex.runtime.duckdb import Database, literal, quoted

_SHARDS = "give the directory in which bin/hash_documents wrote shards, or a glob of shards"
_MERGED = 1 << 27  # bytes of shards that are read together
_FIELD = rb'(?>"(?:[^"]|"")*+"|[^,\n]*+)'
_RECORD = re.compile(rb"%b(?:,%b)*+\r?\n" % (_FIELD, _FIELD))  # of CSV (RFC 4180)
_MAX_LINE = 1 << 16  # bytes of a CSV line; a path has at most 4,096


class Shard(NamedTuple):
    """All files whose hashes begin with a prefix from `first` to `last`."""

    first: str
    last: str
    files: tuple[Path, ...]


def shards_of(
    pattern: str, runs: Collection[str] | None = None, output: Path | None = None
) -> list[Shard]:
    """Return the shards that match a glob, or are in a directory, in the order of prefixes.

    With `runs` only those of these run ids. If names have no prefix, all files are one shard.
    Raises `BadSource` if nothing matches, `BadInput` if a run in their directory is unfinished or
    `output` is one of the files.
    """
    if is_remote(pattern):
        raise BadSource(
            f"{redacted(pattern)} is elsewhere: with --spark put shards on storage that the driver "
            "and all executors mount"
        )
    path = os.path.expanduser(pattern)
    if os.path.isdir(path):
        path = os.path.join(glob.escape(path), "*_*.*")
    files = [Path(name) for name in glob.iglob(path, recursive=True) if os.path.isfile(name)]
    if runs is not None:
        files = [file for file in files if parse_name(file.name)[1] in runs]
    if not files:
        raise BadSource(f"nothing matches {pattern}: {_SHARDS}")
    if output is not None and output.exists() and any(map(output.samefile, files)):
        raise BadInput(f"{output} is among the shards that {pattern} names: name another")
    for directory in sorted({file.parent for file in files}):
        for marker in sorted(directory.glob(f".*{UNFINISHED}")):
            _check_finished(str(marker), runs)
    return _by_prefix(files)


def fetched_shards(address: str, home: Path) -> list[Shard]:
    """As `shards_of`, for shards in an object store, which are downloaded to `home`.

    The shards of a directory are those directly in it.
    """
    if is_many(address) and not glob.has_magic(address.partition("://")[2]):
        entries = list_directory(f"{address.rstrip('/')}/")
        found = [
            FoundObject(one.address, one.facts)
            for one in entries
            if one.facts is not None and parse_name(os.path.basename(one.address))[1]
        ]
    else:
        found = list(find_objects(address))
    if not found:
        raise BadSource(f"nothing matches {redacted(address)}: {_SHARDS}")
    directories = sorted({one.address.rpartition("/")[0] for one in found})

    def check() -> None:
        for directory in directories:
            for entry in list_directory(f"{directory}/"):
                if entry.address.endswith(UNFINISHED):
                    _check_finished(entry.address, None)

    check()
    files = []
    for number, one in enumerate(sorted(found)):  # shards of several directories may have one name
        files.append(home / str(number) / os.path.basename(one.address))
        files[-1].parent.mkdir()
    download(list(zip(sorted(found), files, strict=True)))
    check()  # a run may have begun to replace them meanwhile
    return _by_prefix(files)


def _check_finished(marker: str, runs: Collection[str] | None) -> None:
    """Raise `BadInput` for the marker of a run, if it is one of `runs`."""
    directory, _, name = marker.rpartition("/")
    run = name[1 : -len(UNFINISHED)]
    if runs is None or run in runs:
        raise BadInput(
            f"the run {run} in {redacted(directory)} is unfinished: run bin/hash_documents again, "
            f"or remove {redacted(marker)} to do without it"
        )


def _by_prefix(files: list[Path]) -> list[Shard]:
    prefixes = {file: parse_name(file.name)[0] for file in files}
    shortest = min(map(len, prefixes.values()))  # runs may have prefixes of different lengths
    groups: defaultdict[str, list[Path]] = defaultdict(list)
    for file, prefix in prefixes.items():
        groups[prefix[:shortest]].append(file)
    return [Shard(prefix, prefix, tuple(sorted(groups[prefix]))) for prefix in sorted(groups)]


def merged(shards: Iterable[Shard]) -> list[Shard]:
    """Merge small neighbours, because each query takes some milliseconds."""
    result: list[Shard] = []
    size = 0
    for shard in shards:
        more = sum(file.stat().st_size for file in shard.files)
        if result and size + more <= _MERGED:
            result[-1] = Shard(result[-1].first, shard.last, result[-1].files + shard.files)
            size += more
        else:
            result.append(shard)
            size = more
    return result


def relation(database: Database, shard: Shard) -> str:
    """Return SQL for the rows of a shard: hash (BLOB), path, and size (NULL if unknown).

    Raises `BadInput` for files with other columns.
    """
    csv: defaultdict[str, list[Path]] = defaultdict(list)  # by line end
    parquet: defaultdict[str, list[Path]] = defaultdict(list)  # by columns
    for file in shard.files:
        if end := _line_end(file):
            csv[end].append(file)
        else:
            parquet[_columns(database, file)].append(file)
    parts = [  # other tools write a header line
        f"""
            SELECT unhex(nullif(hash, 'hash')) AS hash, path, NULL::BIGINT AS size
            FROM read_csv([{_list(files)}], auto_detect = false, header = false, delim = ',',
              quote = '"', escape = '"', new_line = '{end}', max_line_size = {_MAX_LINE},
              columns = {{'hash': 'VARCHAR', 'path': 'VARCHAR'}})
            WHERE hash <> 'hash'"""
        for end, files in csv.items()
    ]
    parts += [f"SELECT {names} FROM read_parquet([{_list(p)}])" for names, p in parquet.items()]
    return f"({' UNION ALL '.join(parts)})"


def _columns(database: Database, file: Path) -> str:
    """Return the columns to select from a Parquet file."""
    try:
        rows = database.execute(f"DESCRIBE FROM read_parquet({_list([file])})").fetchall()
    except duckdb.Error as error:
        raise BadInput(f"{file} cannot be read: {str(error).partition(chr(10))[0]}") from error
    types = {name: kind for name, kind, *_ in rows}
    if types.get("hash") not in ("BLOB", "VARCHAR") or types.get("path") != "VARCHAR":
        raise BadInput(f"{file} has no hash and path, but {', '.join(types)}")
    digest = "hash" if types["hash"] == "BLOB" else "unhex(hash) AS hash"
    return f"{digest}, path, {'size' if 'size' in types else 'NULL::BIGINT AS size'}"


def _line_end(file: Path) -> str:
    """Return the line end of a CSV file as an SQL literal; empty for Parquet.

    It is that of the first record: a path in quotes may have line ends of its own.
    """
    with open(file, "rb") as stream:
        start = stream.read(_MAX_LINE)
    if start.startswith(b"PAR1"):
        return ""
    record = _RECORD.match(start)
    first = record[0] if record else start.partition(b"\n")[0] + b"\n"
    return r"\r\n" if first.endswith(b"\r\n") else r"\n"


def _list(files: Sequence[Path]) -> str:
    return ", ".join(quoted(literal(file)) for file in files)
