"""What is asked of all that tells of captures: a relation of DuckDB."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, ClassVar, NamedTuple, Protocol, Self

import orjson

from dedupindex.capture import Problem
from dedupindex.corpus.row import COLUMNS
from dedupindex.errors import BadSource
from dedupindex.object_store import open_anywhere
from dedupindex.runtime.duckdb import from_json
from dedupindex.runtime.files import check_name, named_errors
from dedupindex.sources.kinds import HEAD, kind_of

KINDS = ("cdx", "cdxj")
"""What lists captures, of `sources.KINDS`."""


class SourceContext(NamedTuple):
    """What a source has to work with."""

    home: Path  # an empty directory of its own
    jobs: int
    problems: list[Problem]


class Revisits(Enum):
    """Which revisits of an archive something tells of."""

    ALL = "all"
    LISTED = "listed"  # those that whoever wrote the list has put there
    NONE = "none"


class CaptureSource(Protocol):
    """Where captures are known from."""

    revisits: ClassVar[Revisits]

    def relation(self, work: SourceContext) -> str:
        """SQL that yields `captures.COLUMNS`; it may be run twice. Raises `BadSource`."""

    @property
    def sources(self) -> tuple[str, ...]:
        """What is read for that."""

    @property
    def places(self) -> tuple[str, ...]:
        """Where containers may be that have no path of their own."""


def looked_at(path: str) -> tuple[str, bytes]:
    """What kind of file it is, and how it begins."""
    try:
        with open_anywhere(path) as stream:
            head = stream.read(HEAD)
            return kind_of(head, stream), head
    except OSError as error:
        raise BadSource(f"{path} cannot be read: {error.strerror}") from error


# Captures on their way to DuckDB: lines of JSON, which it reads without another library.

_LONGEST = 1 << 23  # bytes of a line
_BATCH = 1000


class JsonlWriter:
    """Takes captures; what is not known of one is left out."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stream: BinaryIO = open(path, "wb")  # noqa: SIM115 (the block closes it)
        self._lines: list[bytes] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        try:
            self._flush()
        finally:
            with named_errors(self._path):
                self._stream.close()

    def add(self, **values: str | int | bool | None) -> None:
        """Take one; raises `BadInput` for a container that cannot be spelled."""
        try:
            line = orjson.dumps({"revisit": False, "good": True, **values})
        except TypeError:
            check_name(str(values.get("container")))
            raise
        self._lines.append(line + b"\n")
        if len(self._lines) >= _BATCH:
            self._flush()

    def _flush(self) -> None:
        with named_errors(self._path):
            self._stream.write(b"".join(self._lines))
        self._lines.clear()


def relation(spools: Sequence[Path]) -> str:
    """SQL for all that is in spools."""
    return f"SELECT * FROM {from_json(spools, COLUMNS, _LONGEST)}"
