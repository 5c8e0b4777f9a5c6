"""The inputs of estimates: ``inputs.toml``, a file of the user, and measured rates."""

from __future__ import annotations

import tempfile
import tomllib
from collections.abc import Callable, Mapping
from datetime import date
from importlib.resources import files
from pathlib import Path
from typing import Any

from dedupindex.counts import OnProgress, silent
from dedupindex.documents import generate, hash_objects
from dedupindex.documents.dedup_shards import dedup_hashes
from dedupindex.errors import BadInput

HOURS_A_MONTH = 730

Table = dict[str, Any]


def load(path: Path | None = None) -> Table:
    """Return the inputs in ``inputs.toml``, overridden by those in a file; raises `BadInput`.

    A list of instances or nodes replaces the default list.
    """
    defaults = files("dedupindex.capacity").joinpath("inputs.toml")
    inputs = tomllib.loads(defaults.read_text("utf-8"))
    if path is None:
        return inputs
    try:
        overrides = tomllib.loads(path.read_text())
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is not TOML: {error}") from error
    for name, value in overrides.items():
        if name not in inputs:
            raise BadInput(f"{path} has {name}, but there are only {', '.join(inputs)}")
        inputs[name] = _override(f"{path}: {name}", inputs[name], value)
    return inputs


def _override(place: str, default: Any, value: Any) -> Any:
    """Return the value merged into the default; raises `BadInput` for another type."""
    if isinstance(default, dict) and isinstance(value, dict):
        if unknown := next((name for name in value if name not in default), None):
            raise BadInput(f"{place} has no {unknown}, but {', '.join(default)}")
        merged = {name: _override(f"{place}.{name}", default[name], value[name]) for name in value}
        return {**default, **merged}
    if isinstance(default, list) and isinstance(value, list) and value:
        return [_override(place, default[0], item) for item in value]
    if isinstance(default, str) and isinstance(value, str):
        return value
    if isinstance(default, int | float) and isinstance(value, int | float) and value >= 0:
        return value
    raise BadInput(f"{place} must be like {default!r}, not {value!r}")


SIZE, ROWS = 1 << 30, 2_000_000  # of the samples: bytes of files, rows


def measure(
    directory: Path,
    jobs: int,
    *,
    size: int = SIZE,
    rows: int = ROWS,
    say: Callable[[str], None] = lambda text: None,
    on_progress: OnProgress = silent,
) -> Table:
    """Measure rates per core with `jobs` processes, for ``[documents]`` of the inputs.

    Both steps process generated samples in a temporary directory; the files are in the page cache.
    """
    with tempfile.TemporaryDirectory(prefix=".plan-", dir=directory) as name:
        top = Path(name)
        say(f"making {size >> 20:,} MiB of files of about 500 KiB")
        generate.generate(top / "corpus", generate.GeneratorOptions(size=size), on_progress)
        say("hashing them")
        hashed = hash_objects.hash_documents(
            str(top / "corpus"), top / "hashes", hash_objects.HashOptions(jobs=jobs),
            on_progress=on_progress,
        )  # fmt: skip
        say(f"deduplicating {rows:,} rows")
        generate.generate_shards(top / "rows", rows)
        deduped = dedup_hashes(
            str(top / "rows"), top / "unique.parquet", threads=jobs, on_progress=on_progress
        )
    return {
        "measured": f"{date.today().isoformat()}, {jobs} cores of this machine",
        "hash_mb_per_core_s": round(hashed.rate_mb_per_sec / jobs, 1),
        "rows_per_core_s": round(deduped.rate_rps / jobs),
    }


def as_toml(rates: Mapping[str, Table]) -> str:
    """Format tables of measured rates as a file for ``--rates``."""
    lines = []
    for name, table in rates.items():
        lines.append(f"[{name}]")
        for key, value in table.items():
            lines.append(f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {value}")
    return "\n".join([*lines, ""])
