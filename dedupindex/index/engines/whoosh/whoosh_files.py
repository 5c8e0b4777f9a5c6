"""How the Whoosh engine writes: files on disk before they are named, segments of bounded size."""

from __future__ import annotations

import os
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

from whoosh.codec.whoosh3 import W3Codec
from whoosh.filedb.filestore import FileStorage
from whoosh.writing import MERGE_SMALL, OPTIMIZE

from dedupindex.errors import Damaged
from dedupindex.index.format.cells import is_sound, sealed
from dedupindex.runtime.files import sync_directory, write_whole

MEMORY = 64  # MB of postings before a sorted run of them goes to disk
SEGMENT = 500_000  # documents; writing one takes half a kilobyte of memory for each of them


class Storage(FileStorage):  # type: ignore[misc]  # Whoosh has no types
    """Files of an index; a table of contents appears when all it names is on disk.

    Whoosh leaves files open when writing them fails: those written are remembered, and closed.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._written: WeakSet[Any] = WeakSet()

    def create_file(self, name: str, **options: Any) -> Any:
        stream = super().create_file(name, **options)
        self._written.add(stream)
        return stream

    def temp_storage(self, name: str | None = None) -> Any:
        storage = Storage(super().temp_storage(name).folder)
        storage._written = self._written
        return storage

    def open_file(self, name: str, *args: Any, **options: Any) -> Any:
        """A table of contents tells what is deleted, so all of it is checked first."""
        if name.endswith(".toc"):
            path = Path(self.folder) / name
            if not is_sound(b"", path.read_bytes()):
                raise Damaged(f"{path} is damaged; restore the index from a copy")
        return super().open_file(name, *args, **options)

    def close_written(self) -> None:
        for stream in list(self._written):
            if not stream.is_closed:
                with suppress(OSError):
                    stream.close()

    def rename_file(self, oldname: str, newname: str, safe: bool = False) -> None:
        directory = Path(self.folder)
        if newname.endswith(".toc"):
            for segment in directory.glob("*.seg"):
                if not segment.with_suffix(".crc").exists():
                    sync(segment)
                    write_whole(segment.with_suffix(".crc"), b"%d" % crc_of(segment))
            seal_file(directory / oldname)
            sync(directory / oldname)
        super().rename_file(oldname, newname, safe)
        sync_directory(directory)


class CommitWriter:
    """One commit: what it adds and deletes becomes true together, in as many segments as needed."""

    def __init__(self, index: Any) -> None:
        self._index = index
        self._full: list[Any] = []  # segments
        self._writer = self._new()

    def _new(self) -> Any:
        codec = W3Codec(compression=0)
        codec.length_stats = False  # only scoring needs them, and each posting would take a stat()
        # The index's own lock is held already: that of Whoosh would be a second one.
        return self._index.writer(limitmb=MEMORY, _lk=False, codec=codec)

    def add_document(self, **fields: Any) -> None:
        self._writer.add_document(**fields)
        if self._writer.doc_count() >= SEGMENT:
            full = self._writer
            self._full.append(full._finalize_segment())
            full._finish()
            self._writer = self._new()
            self._writer.segments = full.segments  # which remember what was deleted

    def delete_document(self, number: int) -> None:
        """Delete a document of the state before, by the number it has there."""
        self._writer.delete_document(number)

    def commit(self, *, optimize: bool = False) -> None:
        """Make it true; with `optimize` all segments that were there are merged."""
        policy = OPTIMIZE if optimize else MERGE_SMALL

        def merged(writer: Any, segments: list[Any]) -> list[Any]:
            return [*policy(writer, segments), *self._full]

        self._writer.commit(mergetype=merged)

    def cancel(self) -> None:
        """Give up, and close what Whoosh may have left open."""
        with suppress(Exception):  # it fails as its files did; what it leaves is removed later
            self._writer.cancel()
        self._index.storage.close_written()


def seal_file(path: Path) -> None:
    """Put a checksum of all of it at the end of a file, where Whoosh does not look."""
    data = path.read_bytes()
    path.write_bytes(sealed(b"", data))


def crc_of(path: Path) -> int:
    """CRC-32 of a file."""
    crc = 0
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            crc = zlib.crc32(block, crc)
    return crc


def sync(path: Path) -> None:
    """Force a file to disk."""
    with open(path, "rb") as stream:
        os.fsync(stream.fileno())
