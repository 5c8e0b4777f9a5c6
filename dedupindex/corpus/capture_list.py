"""What is asked of all that tells of captures: a relation of DuckDB."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol

from dedupindex.capture import Problem
from dedupindex.errors import BadSource
from dedupindex.object_store import opened
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
        with opened(path) as stream:
            head = stream.read(HEAD)
            return kind_of(head, stream), head
    except OSError as error:
        raise BadSource(f"{path} cannot be read: {error.strerror}") from error
