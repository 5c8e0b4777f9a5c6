"""WACZ as a source of captures: the WARC files in a zip, each read like any other.

A WACZ is read only: its own index and hashes would be wrong after any change (WACZ 1.1.1). Each
WARC in it is a container of its own, ``<wacz>/archive/<name>``, with offsets in that inner file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Self
from zipfile import ZipFile, ZipInfo

from dedupindex.capture import Item, Problem
from dedupindex.sources.source import GROWING
from dedupindex.sources.warc import WarcSource
from dedupindex.warc.wacz_members import BROKEN, archived, check, place_of, why_nothing
from dedupindex.warc.window import Openable, Window, open_window, spool


class WaczSource:
    """A WACZ file; see `sources.protocol.Source` and `WarcSource`."""

    def __init__(
        self,
        name: str,
        source: Openable,
        *,
        also: tuple[str, ...] = (),
        etag: bool = False,
        verify_block: bool = False,
    ) -> None:
        """Open the file, or spool the stream; raises `BadSource`."""
        self.name = name
        self.changed = False
        self.content_hash = ""
        self.filler = 0  # bytes in the inner files that hold no record and do no harm
        self.remarks: Counter[str] = Counter()  # see `WarcSource.remarks`
        self._window = open_window(name, source)
        self.size = self._window.size
        self._begin = 0  # of the inner file being read
        self._reading: WarcSource | None = None
        self._also, self._etag, self._verify_block = also, etag, verify_block

    @property
    def position(self) -> int:
        """Bytes of the file read so far."""
        inner = 0 if self._reading is None else self._reading.position
        return min(max(self._begin + inner, self._window.hashed), self.size)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._window.close()

    def items(self) -> Iterator[Item]:
        """See `Source.items`."""
        window = self._window
        if self.name.endswith(".open"):
            self.changed = True
            yield Problem(self.name, 0, GROWING)
            return
        try:
            with ZipFile(window.file) as container:
                yield from self._inner(container)
        except BROKEN as error:
            yield Problem(self.name, 0, f"is no whole zip file: {error}")
        self.content_hash = window.content_hash()
        self.changed = window.changed()
        window.close()
        if self.changed:
            yield Problem(self.name, self.size, GROWING)

    def _inner(self, container: ZipFile) -> Iterator[Item]:
        members = archived(container)
        if not members:
            yield Problem(self.name, 0, why_nothing(container))
        seen = set()
        for info in members:
            name = f"{self.name}/{info.filename}"
            if name in seen:
                yield Problem(
                    name, info.header_offset, "stands twice in its WACZ: the first counts"
                )
                continue
            seen.add(name)
            try:
                inner = self._open(container, info, name)
            except BROKEN as error:
                yield Problem(name, info.header_offset, f"cannot be read from its WACZ: {error}")
                continue
            self._begin, self._reading = info.header_offset, inner
            with inner:
                yield from inner.items()
            self._reading = None
            self.filler += inner.filler
            self.remarks += inner.remarks

    def _open(self, container: ZipFile, info: ZipInfo, name: str) -> WarcSource:
        """A source for one inner file: in place if it is stored, spooled if it is deflated."""
        source: Window
        if check(info):
            begin, size = place_of(info, self._window.read, self.size)
            source = Window(self._window.file, name, base=begin, size=size)
        else:
            with container.open(info) as packed:
                source = Window(spool(packed), name)
        return WarcSource(
            name, source, also=self._also, etag=self._etag, verify_block=self._verify_block
        )
