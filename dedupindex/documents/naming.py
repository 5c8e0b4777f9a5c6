"""Shards are files ``<first characters of the hash>_<run id>.parquet`` or ``.csv``."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from dedupindex.runtime.files import sync_directory

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
