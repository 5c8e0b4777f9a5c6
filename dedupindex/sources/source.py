"""What every source is to the rest of the project, and what may be asked of one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, Self

from dedupindex.capture import Item
from dedupindex.errors import BadInput

GROWING = "is still being written; index it when it is complete"


class Source(Protocol):
    """One container being read, once, from its beginning to its end; a context that closes it.

    Reading it through is what gives its hash, so a container is never read twice to be known.
    """

    @property
    def name(self) -> str:
        """What captures are said to live in when their row names no file of its own."""

    @property
    def size(self) -> int:
        """Bytes of the container as on disk, -1 for a pipe."""

    @property
    def position(self) -> int:
        """Bytes of the container read so far, for a progress bar."""

    @property
    def content_hash(self) -> str:
        """BLAKE3 in hex of all bytes as on disk; empty until the source is read to its end."""

    @property
    def changed(self) -> bool:
        """Whether the container was still being written: then what `items` gave must be dropped.

        Known when the source is read to its end; its last item is then a problem that says so.
        """

    def items(self) -> Iterator[Item]:
        """One capture, revisit or refusal for every record or line, problems between them.

        Raises `BadSource` if the bytes cannot be read.
        """

    def __enter__(self) -> Self: ...

    def __exit__(self, *exception: object) -> None: ...


@dataclass(frozen=True)
class SourceOptions:
    """How sources are to be read; each takes what concerns it."""

    also: tuple[str, ...] = ()  # WARC: compute these digests as well
    etag: bool = False  # WARC: keep ETag and Last-Modified
    digest_algorithm: str = "sha1"  # text: of digests that carry no label
    revisit_annotation: re.Pattern[bytes] | None = None  # crawl.log: marks duplicates, too


def annotation(pattern: str) -> re.Pattern[bytes] | None:
    """What ``--revisit-annotation`` means; raises `BadInput`."""
    try:
        return re.compile(pattern.encode("utf-8", "surrogateescape")) if pattern else None
    except re.error as error:
        raise BadInput(f"--revisit-annotation is not a regular expression: {error}") from error
