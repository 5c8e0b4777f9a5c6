"""What a plan is computed from: ``inputs.toml``, and what a file of the user says otherwise."""

from __future__ import annotations

import tempfile
import tomllib
from collections.abc import Callable
from datetime import date
from importlib.resources import files
from pathlib import Path
from typing import Any

from dedupindex.documents import generate, hash_objects
from dedupindex.documents.dedup_shards import dedup_hashes
from dedupindex.documents.generate import write_rows_of
from dedupindex.errors import BadInput

HOURS_A_MONTH = 730

Table = dict[str, Any]


def default() -> Table:
    """What is measured and assumed here."""
    text = files("dedupindex.capacity").joinpath("inputs.toml").read_text("utf-8")
    return tomllib.loads(text)


def load(path: Path | None) -> Table:
    """The defaults, with what the file `path` says in their place; raises `BadInput`.

    A list of instances or nodes replaces the whole list.
    """
    inputs = default()
    if path is None:
        return inputs
    try:
        said = tomllib.loads(path.read_text())
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is not TOML: {error}") from error
    for name, value in said.items():
        if name not in inputs:
            raise BadInput(f"{path} has {name}, but there are only {', '.join(inputs)}")
        inputs[name] = _merged(f"{path}: {name}", inputs[name], value)
    return inputs


def _merged(place: str, known: Any, said: Any) -> Any:
    """`said` in the place of what is known, if it is of the same kind."""
    if isinstance(known, dict) and isinstance(said, dict):
        for name in said:
            if name not in known:
                raise BadInput(f"{place} has no {name}, but {', '.join(known)}")
        both = {name: _merged(f"{place}.{name}", known[name], said[name]) for name in said}
        return {**known, **both}
    if isinstance(known, list) and isinstance(said, list) and said:
        return [_merged(place, known[0], one) for one in said]
    if isinstance(known, str) and isinstance(said, str):
        return said
    if isinstance(known, int | float) and isinstance(said, int | float) and said >= 0:
        return said
    raise BadInput(f"{place} is to be like {known!r}, not {said!r}")


# The rates of this machine: both steps run on a sample that is made for it.

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
