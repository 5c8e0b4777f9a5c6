"""The base class of all sources, and the options that they are read with."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Self

from dedupindex.capture import Item, Problem, Refusal, Rows
from dedupindex.errors import BadInput
from dedupindex.warc import record

GROWING = "is still being written; index it when it is complete"
NO_STATUS = "no-status"
REMARKS = {
    **record.REMARKS,
    NO_STATUS: "its row has no status and media type, so --status and --mime were not applied",
}
"""What is remarkable about records or rows that were read."""

_BATCH = 64  # items, few enough to stay in the processor's cache
_MAX_PROBLEMS = 100  # unreadable lines of a container that are reported; the rest are counted


class Source(ABC):
    """One container, read once from beginning to end; a context manager that closes it.

    Reading it computes its hash, so that no container is read twice.
    """

    reads_records = False  # whether it reads the records themselves, not rows about them

    def __init__(self, name: str, size: int = -1) -> None:
        self.name = name  # the container of captures whose row names no file
        self.size = size  # bytes on disk, -1 for a stream
        self.content_hash = ""  # BLAKE3 in hex of all bytes on disk, once `items` has ended
        # Whether the container was still being written, once `items` has ended. All items must
        # then be dropped; the last one is a problem that says so.
        self.changed = False
        self._unreadable_count = 0
        self.members: list[str] = []  # names of the files in it, once `items` has ended
        self.remarks: Counter[str] = Counter()  # on records that were read, see `REMARKS`
        # Offset of the first damage by container, as far as it was read: replay tools stop there.
        self.damage: dict[str, int] = {}

    @property
    @abstractmethod
    def position(self) -> int:
        """Bytes on disk read so far."""

    @abstractmethod
    def items(self) -> Iterator[Item]:
        """Yield a capture, revisit or refusal for each record or line, and problems between them.

        Raises `BadSource` if the bytes cannot be read.
        """

    def batches(self) -> Iterator[Rows | list[Item]]:
        """Yield all items in batches; captures of plain rows may come as columns."""
        items = self.items()
        return iter(lambda: list(islice(items, _BATCH)), [])

    def _unreadable(self, number: int, message: str) -> Iterator[Item]:
        """Yield a refusal of a line or entry, and a problem unless there were many."""
        self._unreadable_count += 1
        if self._unreadable_count <= _MAX_PROBLEMS:
            yield Problem(self.name, number, message)
        yield Refusal("bad-line")

    def _further_unreadable(self, number: int, what: str) -> Iterator[Item]:
        """Yield a problem that counts what `_unreadable` has not reported."""
        if (more := self._unreadable_count - _MAX_PROBLEMS) > 0:
            yield Problem(self.name, number, f"{more:,} more {what} could not be read")

    def close(self) -> None:  # noqa: B027  # optional
        """Close the container."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


@dataclass(frozen=True)
class SourceOptions:
    """How sources are read; each uses what applies to it."""

    also: tuple[str, ...] = ()  # WARC: compute these digests too
    etag: bool = False  # WARC: keep ETag and Last-Modified
    digest_algorithm: str = "sha1"  # text: algorithm of digests without a label
    revisit_annotation: re.Pattern[bytes] | None = None  # crawl.log: marks further duplicates
    columns: Mapping[str, str] = field(default_factory=dict)  # tables: see `table_columns.Names`


DEFAULTS = SourceOptions()


def annotation(pattern: str) -> re.Pattern[bytes] | None:
    """Return the compiled ``--revisit-annotation``, None for none; raises `BadInput`."""
    try:
        return re.compile(pattern.encode("utf-8", "surrogateescape")) if pattern else None
    except re.error as error:
        raise BadInput(f"--revisit-annotation is not a regular expression: {error}") from error
