"""The working files of a run: manifest, plan, and how far it has come.

dedup.json     format, sources, and what a run in place has begun
lock           held while a run is at work
manifest/      for this run, the next, and whoever wants to read it
plan/          of the last run
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dedupindex.errors import BadInput, FormatFromFuture, SettingsConflict
from dedupindex.files import exclusive, write_whole

_FORMAT = 1
_FILE, _LOCK = "dedup.json", "lock"


class Work:
    """A directory of working files, locked."""

    def __init__(self, top: Path, said: dict[str, Any]) -> None:
        self.top = top
        self.manifest, self.plan = top / "manifest", top / "plan"
        self._said = said

    @property
    def begun(self) -> dict[str, Any] | None:
        """The options of a run in place that has not come to its end."""
        found: dict[str, Any] | None = self._said.get("begun")
        return found

    def begin(self, options: dict[str, Any] | None) -> None:
        """Note that a run in place begins, or with None that it has come to its end."""
        self._said["begun"] = options
        self._write()

    def _write(self) -> None:
        write_whole(self.top / _FILE, json.dumps(self._said, indent=1).encode("ascii") + b"\n")


@contextmanager
def working(top: Path, sources: list[str]) -> Iterator[Work]:
    """Make or open the working files of these sources; nobody else can until the block ends.

    Raises `SettingsConflict` if they are of other sources, `BadInput` if `top` is something else,
    `IndexBusy` if another run is at work.
    """
    named = sorted({os.path.abspath(source) for source in sources})
    if top.exists() and not (top / _FILE).exists() and not _is_begun(top):
        raise BadInput(f"{top} holds something else; name another directory with --work")
    top.mkdir(parents=True, exist_ok=True)
    with exclusive(top / _LOCK, f"the working files {top}"):
        said = _read(top)
        if not said:
            work = Work(top, {"format": _FORMAT, "sources": named, "begun": None})
            work.begin(None)
        elif said["sources"] != named:
            raise SettingsConflict(
                f"{top} has the working files of other sources ({', '.join(said['sources'])}): "
                "name those, or another directory with --work"
            )
        else:
            work = Work(top, said)
        yield work


def _is_begun(top: Path) -> bool:
    """Whether there is nothing but what a run begins with before it was killed."""
    return top.is_dir() and all(
        path.name == _LOCK or path.name.startswith(f".{_FILE}.") for path in top.iterdir()
    )


def _read(top: Path) -> dict[str, Any]:
    if not (top / _FILE).exists():
        return {}
    try:
        said: dict[str, Any] = json.loads((top / _FILE).read_bytes())
        number = int(said["format"])
        _ = said["sources"], said["begun"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{top / _FILE} is none of ours: {error}") from error
    if number > _FORMAT:
        raise FormatFromFuture(f"{top} has format {number}, this knows {_FORMAT}")
    return said
