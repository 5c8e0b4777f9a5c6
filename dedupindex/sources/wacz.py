"""WACZ files as sources: the WARC files in a zip, each read like any other.

Each is a container of its own, see `warc.wacz_members`. A WACZ is never rewritten, because its own
index and hashes would be wrong (WACZ 1.1.1).
"""

from __future__ import annotations

from collections.abc import Iterator
from zipfile import ZipFile, ZipInfo

from dedupindex.capture import Item, Problem
from dedupindex.sources.source import DEFAULTS, SourceOptions
from dedupindex.sources.warc_records import ArchiveSource, WarcSource
from dedupindex.warc.wacz_members import BROKEN, archived, is_stored, place_of, why_nothing
from dedupindex.warc.window import Openable, Window, spool


class WaczSource(ArchiveSource):
    """A WACZ file."""

    def __init__(self, name: str, source: Openable, options: SourceOptions = DEFAULTS) -> None:
        super().__init__(name, source)
        self._begin = 0  # of the inner file that is being read
        self._inner: WarcSource | None = None
        self._options = options

    @property
    def position(self) -> int:
        inner = 0 if self._inner is None else self._inner.position
        return min(max(self._begin + inner, self._window.hashed), self.size)

    def _read(self) -> Iterator[list[Item]]:
        try:
            with ZipFile(self._window.file) as container:
                yield from self._read_members(container)
        except BROKEN as error:
            yield [Problem(self.name, 0, f"is no whole zip file: {error}")]

    def _read_members(self, container: ZipFile) -> Iterator[list[Item]]:
        members = archived(container)
        if not members:
            yield [Problem(self.name, 0, why_nothing(container))]
        seen = set()
        for info in members:
            name, begin = f"{self.name}/{info.filename}", info.header_offset
            if name in seen:
                yield [Problem(name, begin, "is in its WACZ twice: the first is read")]
                continue
            seen.add(name)
            self.members.append(name)
            try:
                inner = self._open(container, info, name)
            except BROKEN as error:
                yield [Problem(name, begin, f"cannot be read from its WACZ: {error}")]
                continue
            self._begin, self._inner, inner.damage = begin, inner, self.damage
            with inner:
                yield from inner.batches()
            self._inner = None
            self.remarks += inner.remarks

    def _open(self, container: ZipFile, info: ZipInfo, name: str) -> WarcSource:
        """Open an inner file: in place if it is stored, spooled if it is deflated."""
        if is_stored(info):
            begin, size = place_of(info, self._window.read, self.size)
            window = Window(self._window.file, name, base=begin, size=size)
        else:
            with container.open(info) as packed:
                window = Window(spool(packed), name)
        return WarcSource(name, window, self._options)
