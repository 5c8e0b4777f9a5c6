"""The rates of this machine: both steps run on a sample that is made for it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from datetime import date
from pathlib import Path

from dedupindex.capacity.rates import Table
from dedupindex.documents import generate, hash_objects
from dedupindex.documents.dedup_shards import dedup_hashes
from dedupindex.documents.sample import write_rows_of

SIZE, ROWS = 1 << 30, 2_000_000  # of the samples: bytes of files, rows to deduplicate


def measure(
    beside: Path,
    jobs: int,
    *,
    size: int = SIZE,
    rows: int = ROWS,
    say: Callable[[str], None] = lambda text: None,
) -> Table:
    """Rates for each of `jobs` cores, as ``[documents]`` of the inputs has them.

    The samples are in a directory below `beside`, and go again. The files are in the page cache.
    """
    with tempfile.TemporaryDirectory(prefix=".plan-", dir=beside) as name:
        top = Path(name)
        say(f"making {size >> 20:,} MiB of files of about 500 KiB")
        generate.generate(top / "corpus", generate.GeneratorOptions(size=size))
        say("hashing them")
        hashed = hash_objects.hash_documents(
            str(top / "corpus"), top / "hashes", hash_objects.HashOptions(jobs=jobs)
        )
        say(f"deduplicating {rows:,} rows")
        write_rows_of(top / "rows", rows)
        found = dedup_hashes(str(top / "rows"), top / "unique.parquet", threads=jobs)
    return {
        "measured": f"{date.today().isoformat()}, {jobs} cores of this machine",
        "hash_mb_per_core_s": round(hashed.rate_mb_per_sec / jobs, 1),
        "rows_per_core_s": round(found.rate_rps / jobs),
    }


def as_toml(rates: Table) -> str:
    """Measured rates as a file for ``--rates``."""
    lines = [
        f'{name} = "{value}"' if isinstance(value, str) else f"{name} = {value}"
        for name, value in rates.items()
    ]
    return "\n".join(["[documents]", *lines, ""])
