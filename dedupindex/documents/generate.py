"""Generate files or rows to test deduplication; the same random seed gives the same content."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from dedupindex.counts import OnProgress, ProgressUpdate
from dedupindex.documents.shards import ShardLayout, write_rows
from dedupindex.errors import BadInput, IndexExists
from dedupindex.runtime.duckdb import open_database
from dedupindex.runtime.files import atomic_directory

MIN_SIZE = 1024  # bytes of a file


@dataclass(frozen=True)
class GeneratorOptions:
    size: int = 2 << 30  # bytes of all files, at least
    duplicates: float = 0.05  # share of the files that are copies of earlier ones
    mean: int = 500 << 10  # bytes of a file
    deviation: int = 5 << 10
    seed: int = 0
    ending: str = ".bin"  # of names


@dataclass
class GeneratedCorpus:
    files: int = 0
    bytes: int = 0
    unique: int = 0
    duplicates: int = 0
    duplicate_bytes: int = 0


def generate(
    top: Path, options: GeneratorOptions, on_progress: OnProgress = lambda seen: None
) -> GeneratedCorpus:
    """Create the directory `top`, whole or not at all; raises `IndexExists` if it is not empty.

    File names are 32 hexadecimal digits, so that globs divide the files evenly.
    """
    if "/" in options.ending or "\0" in options.ending:
        raise BadInput(f"--ending {options.ending} is no ending of a name")
    if top.exists() and (not top.is_dir() or any(top.iterdir())):
        raise IndexExists(f"{top} already exists: remove it, or name another directory")
    chance, corpus = random.Random(options.seed), GeneratedCorpus()
    original: tuple[int, int] | None = None  # number and size of the last file that is no copy
    with atomic_directory(top) as hidden:
        while corpus.bytes < options.size:
            size = max(round(chance.gauss(options.mean, options.deviation)), MIN_SIZE)
            copies = int((corpus.files + 1) * options.duplicates)  # of so many files
            if original is not None and copies > corpus.duplicates:
                number, size = original
                corpus.duplicates += 1
                corpus.duplicate_bytes += size
            else:
                original = number, size = corpus.files, size
                corpus.unique += 1
            name = blake3(f"name {options.seed} {corpus.files}".encode()).hexdigest(16)
            content = blake3(f"content {options.seed} {number}".encode())
            (hidden / f"{name}{options.ending}").write_bytes(content.digest(size))
            corpus.files += 1
            corpus.bytes += size
            on_progress(ProgressUpdate("generating", corpus.bytes, options.size, corpus.files))
    return corpus


_ROWS = """
SELECT unhex(sha256(if(hash(i) % 20 = 0 AND i > 0, i - 1, i)::VARCHAR)) AS hash,
  '/data/corpus/' || left(sha256('path' || i), 32) || '.bin' AS path,
  (500000 + hash(i) % 5000)::BIGINT AS size
FROM range({count}) AS r(i)"""


def generate_shards(top: Path, count: int) -> None:
    """Write `count` rows to 16 shards in the new directory `top`; one in twenty repeats a hash."""
    top.mkdir()
    with open_database(top, "1GB", 0) as (database, _):
        database.execute(f"CREATE TABLE rows AS {_ROWS.format(count=count)}")
        for digit in "0123456789abcdef":
            first_byte = f"hash[:1] BETWEEN unhex('{digit}0') AND unhex('{digit}f')"
            rows = f"SELECT * FROM rows WHERE {first_byte} ORDER BY path"
            write_rows(database, rows, top / ShardLayout().name(digit, "generated"))
