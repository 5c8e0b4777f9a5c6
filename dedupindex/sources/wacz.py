"""WACZ as a source of captures: the WARC files in a zip, each read like any other.

A WACZ is read only: its own index and hashes would be wrong after any change (WACZ 1.1.1). Each
WARC in it is a container of its own, ``<wacz>/archive/<name>``, with offsets in that inner file.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from typing import Self
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import orjson

from dedupindex.capture import Item, Problem
from dedupindex.sources.protocol import GROWING
from dedupindex.sources.warc import WarcSource
from dedupindex.warc.window import Openable, Window, open_window, spool

_ARCHIVED = re.compile(r"archive/.+\.(?:w?arc)(?:\.gz)?", re.IGNORECASE)
_MOST_JSON = 16 << 20  # bytes of a datapackage.json that is read
_LOCAL_HEADER = struct.Struct("<4s22xHH")  # mark, lengths of name and extra field
_ENCRYPTED = 1
_BROKEN = (BadZipFile, OSError, ValueError, EOFError, zlib.error, NotImplementedError, RuntimeError)


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
        except _BROKEN as error:
            yield Problem(self.name, 0, f"is no whole zip file: {error}")
        self.content_hash = window.content_hash()
        self.changed = window.changed()
        window.close()
        if self.changed:
            yield Problem(self.name, self.size, GROWING)

    def _inner(self, container: ZipFile) -> Iterator[Item]:
        members = [info for info in container.infolist() if _ARCHIVED.fullmatch(info.filename)]
        if not members:
            yield Problem(self.name, 0, _why_nothing(container))
        seen = set()
        for info in sorted(members, key=lambda info: info.header_offset):
            name = f"{self.name}/{info.filename}"
            if name in seen:
                yield Problem(
                    name, info.header_offset, "stands twice in its WACZ: the first counts"
                )
                continue
            seen.add(name)
            try:
                inner = self._open(container, info, name)
            except _BROKEN as error:
                yield Problem(name, info.header_offset, f"cannot be read from its WACZ: {error}")
                continue
            self._begin, self._reading = info.header_offset, inner
            with inner:
                yield from inner.items()
            self._reading = None
            self.filler += inner.filler

    def _open(self, container: ZipFile, info: ZipInfo, name: str) -> WarcSource:
        """A source for one inner file: in place if it is stored, spooled if it is deflated."""
        source: Window
        if info.flag_bits & _ENCRYPTED:
            raise BadZipFile("it is encrypted")
        if info.compress_type == ZIP_STORED:
            source = Window(self._window.file, name, base=self._data_of(info), size=info.file_size)
        else:
            with container.open(info) as packed:
                source = Window(spool(packed), name)
        return WarcSource(
            name, source, also=self._also, etag=self._etag, verify_block=self._verify_block
        )

    def _data_of(self, info: ZipInfo) -> int:
        """Where the bytes of a stored file begin, behind its local header."""
        header = self._window.read(info.header_offset, _LOCAL_HEADER.size)
        if len(header) < _LOCAL_HEADER.size:
            raise BadZipFile("it is not where the zip's directory says")
        mark, name, extra = _LOCAL_HEADER.unpack(header)
        begin = info.header_offset + _LOCAL_HEADER.size + int(name) + int(extra)
        if mark != b"PK\x03\x04" or begin + info.file_size > self.size:
            raise BadZipFile("it is not where the zip's directory says")
        return begin


def _why_nothing(container: ZipFile) -> str:
    """What to say of a WACZ without a WARC file."""
    names = container.namelist()
    nested = [name for name in names if name.lower().endswith(".wacz")]
    if not nested and "datapackage.json" in names:
        with container.open("datapackage.json") as stream:
            package = orjson.loads(stream.read(_MOST_JSON))
        resources = package.get("resources") if isinstance(package, dict) else None
        resources = resources if isinstance(resources, list) else []
        named = [str(part.get("path", "")) for part in resources if isinstance(part, dict)]
        nested = [path for path in named if path.lower().endswith(".wacz")]
    if nested:
        return f"only names other WACZ files ({nested[0]}, …): give those instead"
    return "holds no WARC file below archive/"
