"""The files that hold originals, opened as they are needed, a bounded number at a time."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Set
from pathlib import Path
from typing import BinaryIO, Protocol

from dedupindex.post_crawl.manifest.lines import Line, ManifestContainer
from dedupindex.post_crawl.plan.plan_file import MatchCriteria, Planned, Totals
from dedupindex.post_crawl.rewrite.compare_pair import NotRewritable, RecordOnDisk
from dedupindex.post_crawl.rewrite.journal import Journal, Offsets
from dedupindex.runtime.atomic_replace import (
    being_written,
    content_hash,
    open_for_reading,
    written_to,
)

_OPEN = 32  # files


class PlanReader(Protocol):
    """What is asked of a `resolve.plan.BuildPlan`."""

    totals: Totals
    alike: MatchCriteria
    made_of: str

    def hold(self) -> None: ...
    def containers(self) -> dict[int, ManifestContainer]: ...
    def place(self, number: int, /) -> ManifestContainer: ...
    def outside(self) -> dict[int, ManifestContainer]: ...
    def of(self, container: int, /) -> Iterator[Planned]: ...
    def pinned(self, container: int, /) -> Iterator[int]: ...


class OriginalReader:
    """Opens what a plan names as originals.

    A container of the set must be as it was scanned, or as its journal says that it was left when
    it was rewritten in place. What is in none, an index has named, which knows no sizes. Nobody
    may be writing to either.
    """

    def __init__(
        self, plan: PlanReader, *, held: bool = False, busy: Set[int] = frozenset()
    ) -> None:
        """`held` says that this run has locks of its own on containers of the set."""
        self._plan, self._held, self._busy = plan, held, busy
        self._open: OrderedDict[int, tuple[BinaryIO, Offsets | None]] = OrderedDict()

    def place(self, line: Line) -> RecordOnDisk:
        """Where an original is now; raises `NotRewritable`."""
        if line.container not in self._open:
            self._open[line.container] = self._opened(line.container)
            if len(self._open) > _OPEN:
                self._open.popitem(last=False)[1][0].close()
        self._open.move_to_end(line.container)
        file, moved = self._open[line.container]
        offset = moved.now(line.offset) if moved else line.offset
        status = os.fstat(file.fileno())
        return RecordOnDisk(file, offset, line.stored, (status.st_dev, status.st_ino))

    def close(self) -> None:
        for file, _ in self._open.values():
            file.close()
        self._open.clear()

    def _opened(self, number: int) -> tuple[BinaryIO, Offsets | None]:
        container = self._plan.place(number)
        try:
            file = open_for_reading(container.path)
        except OSError as error:
            raise NotRewritable("original-gone", f"{container.path}: {error.strerror}") from error
        outside = number in self._plan.outside()
        check = written_to if self._held and not outside else being_written
        if number in self._busy or container.path.endswith(".open") or check(file):
            file.close()
            raise NotRewritable("original-busy", f"some process is writing to {container.path}")
        if outside:
            return file, None
        status = os.fstat(file.fileno())
        if status.st_size == container.size and (
            status.st_mtime_ns == container.mtime_ns or content_hash(file) == container.content_hash
        ):
            return file, None
        journal = Journal(Path(container.root), container.name)
        if journal.exists():
            was, ended = journal.summary()
            now = ended.size, was.mtime_ns
            if was.size == container.size and now == (status.st_size, status.st_mtime_ns):
                return file, journal.offsets()
        file.close()
        raise NotRewritable("original-changed", f"{container.path} is not as it was scanned")
