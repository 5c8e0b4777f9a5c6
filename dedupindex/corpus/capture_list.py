"""The interface of all sources of captures: a relation of DuckDB."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol

import orjson

from dedupindex.capture import Problem
from dedupindex.corpus.row import COLUMNS
from dedupindex.runtime.duckdb import from_json
from dedupindex.runtime.files import check_name, named_errors

KINDS = ("cdx", "cdxj")
"""The kinds of text that list captures, of `sources.discover`."""
TABLE = "parquet"
"""The kind of tables that list captures."""


class SourceContext(NamedTuple):
    home: Path  # an empty directory for temporary files
    jobs: int  # processes
    problems: list[Problem]  # the source appends here


class Revisits(Enum):
    """Which revisits of an archive a source has."""

    ALL = "all"
    LISTED = "listed"  # those in a list, which may be incomplete
    NONE = "none"


class CaptureSource(Protocol):
    """A source of captures."""

    revisits: ClassVar[Revisits]

    def relation(self, context: SourceContext) -> str:
        """Return SQL that yields `row.COLUMNS`, even if executed twice. Raises `BadSource`."""

    @property
    def sources(self) -> tuple[str, ...]:
        """The paths and addresses to read."""

    @property
    def containers(self) -> tuple[str, ...]:
        """Where WARC files may be that the source does not name by path."""


_MAX_LINE = 1 << 23  # bytes of a line of JSON
_BUFFER = 1 << 18  # bytes written at once
AddCapture = Callable[..., None]
"""Takes the values of a capture by the names of `row.COLUMNS`; unknown ones may be omitted."""


@contextmanager
def jsonl_writer(path: Path) -> Iterator[AddCapture]:
    """Yield a function that writes a capture as JSON; it raises `BadInput` for odd file names."""

    def add(**values: str | int | bool | None) -> None:
        try:
            line = orjson.dumps({"revisit": False, "good": True, **values})
        except TypeError:
            check_name(str(values.get("container")))
            raise
        stream.write(line + b"\n")

    with named_errors(path), open(path, "wb", _BUFFER) as stream:
        yield add


def relation(files: Sequence[Path]) -> str:
    """Return SQL of the captures in files of a `jsonl_writer`."""
    return f"SELECT * FROM {from_json(files, COLUMNS, _MAX_LINE)}"
