"""Lines held back until no request can change them any more.

What a POST was answered may differ for every body that was posted. Only the request record knows
the method; it stands before or after its response, and either may name the other (WARC 1.1
section 5.7). `sources.vicinity` does the same for captures.
"""

from __future__ import annotations

from collections import deque

from dedupindex.manifest.line import Line
from dedupindex.sources.vicinity import FULL, NEAR, ids_of
from dedupindex.warc.heads import COMMON
from dedupindex.warc.record import Record

_RECORD_ID, _CONCURRENT = (
    COMMON.index(name) for name in (b"WARC-Record-ID", b"WARC-Concurrent-To")
)


class Vicinity:
    """The last lines of a container, which is read in order."""

    def __init__(self) -> None:
        self.lines: list[Line] = []  # to be left to `leave` when there are `FULL` of them
        self._related: list[bytes] = []  # WARC-Concurrent-To of each
        self._others: deque[tuple[frozenset[bytes], frozenset[bytes]]] = deque(maxlen=NEAR)

    @property
    def full(self) -> bool:
        return len(self.lines) >= FULL

    def add(self, line: Line, concurrent: bytes) -> None:
        """Take the line of the next response; `concurrent` are the records made with it."""
        if self._others and any(_belongs(line, concurrent, *other) for other in self._others):
            line = _refused(line)
        self.lines.append(line)
        self._related.append(concurrent)

    def request(self, record: Record) -> None:
        """Look at a request record; other methods than GET concern the responses around it."""
        if record.begins_with(b"GET "):
            return
        other = ids_of(record.values[_RECORD_ID]), ids_of(record.values[_CONCURRENT])
        self._others.append(other)
        for index, line in enumerate(self.lines):
            if _belongs(line, self._related[index], *other):
                self.lines[index] = _refused(line)

    def leave(self, *, everything: bool = False) -> list[Line]:
        """The lines that are settled."""
        count = len(self.lines) if everything else len(self.lines) - NEAR
        settled = self.lines[:count]
        del self.lines[:count], self._related[:count]
        return settled


def _refused(line: Line) -> Line:
    return line._replace(stay=line.stay or "method", unfit=line.unfit or "method")


def _belongs(line: Line, concurrent: bytes, own: frozenset[bytes], named: frozenset[bytes]) -> bool:
    """Whether `line` is what a request was answered, by either's word."""
    return line.record_id in named or not own.isdisjoint(ids_of(concurrent))
