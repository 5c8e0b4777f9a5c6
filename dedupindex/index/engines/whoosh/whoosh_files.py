"""The files, commits and documents of a Whoosh index.

A document holds an entry, or something else about the index, as bytes, and the terms that find it.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes
from weakref import WeakSet

from whoosh import fields, formats
from whoosh.codec.whoosh3 import W3Codec
from whoosh.filedb.filestore import FileStorage
from whoosh.writing import MERGE_SMALL, OPTIMIZE

from dedupindex.capture import Capture
from dedupindex.errors import Damaged
from dedupindex.index.format.cells import ContainerRef, is_sound, sealed
from dedupindex.runtime.files import sync_directory, write_file
from dedupindex.timestamps import digits_of_date
from dedupindex.urlkey import urlkey

MEMORY = 64  # MB of postings in a sorted run
SEGMENT = 500_000  # documents in a segment; each takes half a kilobyte of memory to write
META = b"meta"
NO_CAPTURE = b"\0"  # first byte of other contents: no algorithm has this code
LONGEST = 1000  # bytes of a term; longer ones are cut, in documents and in queries
SEARCHED = ("url", "word", "host", "mime", "status", "date", "size", "container")

_WORD = re.compile(r"[^\W_]+")
_HOST = re.compile(rb"[^:/?#]*://(?:[^/?#@]*@)?(\[[^\]/?#]*\]|[^/?#:]*)")


class Storage(FileStorage):  # type: ignore[misc]  # Whoosh has no types
    """Files of an index; a table of contents is renamed when all files that it names are on disk.

    Whoosh leaves files open when writing them fails: they are tracked, to be closed.
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
        """Open a file; the checksum of a table of contents, which names deletions, is checked."""
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
                    write_file(segment.with_suffix(".crc"), b"%d" % crc_of(segment))
            path = directory / oldname
            path.write_bytes(sealed(b"", path.read_bytes()))  # Whoosh ignores the end of the file
            sync(path)
        super().rename_file(oldname, newname, safe)
        sync_directory(directory)


class CommitWriter:
    """One atomic commit, in as many segments as needed."""

    def __init__(self, index: Any) -> None:
        self._index = index
        self._full: list[Any] = []  # segments
        self._writer = self._new()

    def _new(self) -> Any:
        codec = W3Codec(compression=0)
        codec.length_stats = False  # only scoring needs them, and they cost a stat() a posting
        # No lock of Whoosh: the caller holds the index's lock.
        return self._index.writer(limitmb=MEMORY, _lk=False, codec=codec)

    def add_document(self, **fields: Any) -> None:
        self._writer.add_document(**fields)
        if self._writer.doc_count() >= SEGMENT:
            full = self._writer
            self._full.append(full._finalize_segment())
            full._finish()
            self._writer = self._new()
            self._writer.segments = full.segments  # which hold the deletions

    def delete_document(self, number: int) -> None:
        """Delete a document of the last commit, by its number there."""
        self._writer.delete_document(number)

    def commit(self, *, optimize: bool = False) -> None:
        """Commit; with `optimize` all older segments are merged into one."""
        policy = OPTIMIZE if optimize else MERGE_SMALL

        def merged(writer: Any, segments: list[Any]) -> list[Any]:
            return [*policy(writer, segments), *self._full]

        self._writer.commit(mergetype=merged)

    def cancel(self) -> None:
        """Give up, and close the files that Whoosh may have left open."""
        with suppress(Exception):  # it may fail as its files did; `clear_leftovers` removes them
            self._writer.cancel()
        self._index.storage.close_written()


def crc_of(path: Path) -> int:
    """Return the CRC-32 of a file."""
    crc = 0
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            crc = zlib.crc32(block, crc)
    return crc


def sync(path: Path) -> None:
    """Force a file to disk."""
    with open(path, "rb") as stream:
        os.fsync(stream.fileno())


class Terms(fields.FieldType):  # type: ignore[misc]  # Whoosh has no types
    """A field whose values are terms, as bytes."""

    def __init__(self) -> None:
        super().__init__(formats.Existence(), None)

    def index(self, value: Iterable[bytes], **_: Any) -> list[tuple[bytes, int, float, bytes]]:
        return [(term, 1, 1.0, b"") for term in value]

    def to_bytes(self, value: str | bytes) -> bytes:
        return value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")

    def from_bytes(self, bs: bytes) -> str | bytes:
        return bs.decode("utf-8", "surrogateescape")


class KeyTerms(Terms):
    """Terms that are not text."""

    def from_bytes(self, bs: bytes) -> bytes:
        return bs


SCHEMA = fields.Schema(
    content=fields.COLUMN(),
    key=KeyTerms(),
    about=KeyTerms(),
    **{name: Terms() for name in SEARCHED},
)


def document(key: bytes, entry: bytes, capture: Capture | None) -> dict[str, Any]:
    """Return the fields of an entry; `capture` is its capture, None for a tombstone or reserve."""
    found: dict[str, Any] = {"key": (key,), "content": sealed(b"", key + entry)}
    if capture is None:
        return found
    url = capture.url
    found |= {"url": (urlkey(url)[:LONGEST],), "word": words(url), "host": hosts(url)}
    found["date"] = (digits_of_date(capture.date)[:8],)
    if capture.mime:
        found["mime"] = (capture.mime.lower()[:LONGEST],)
    if capture.status:
        found["status"] = (b"%d" % capture.status,)
    if capture.size >= 0 and not capture.size_of_record:
        found["size"] = (size_term(capture.size),)
    if capture.container:
        found["container"] = container_terms(capture.container)
    return found


def size_term(size: int) -> bytes:
    """Return the term of a size; terms and sizes have the same order, up to 15 digits."""
    return b"%015d" % size


def words(url: bytes) -> set[bytes]:
    """Return the words of a URL without its scheme, in lower case, percent-encoding undone."""
    text = url.partition(b"://")[2] or url
    if b"%" in text:
        text = unquote_to_bytes(text)
    return {word.encode()[:LONGEST] for word in words_of(text.decode("utf-8", "replace"))}


def words_of(text: str) -> list[str]:
    """Return the words of a text, in order and in lower case."""
    return _WORD.findall(text.casefold())


def hosts(url: bytes) -> list[bytes]:
    """Return the host of a URL and all domains that it is in, longest first."""
    match = _HOST.match(url)
    host = match[1].lower().strip(b".")[:LONGEST] if match else b""
    if not host:
        return []
    if host.startswith(b"[") or host.replace(b".", b"").isdigit():
        return [host]
    labels = host.split(b".")
    return [b".".join(labels[at:]) for at in range(len(labels))]


def container_terms(name: str) -> set[bytes]:
    """Return a container's name and the last part of it, in lower case."""
    whole = name.lower().encode("utf-8", "surrogateescape")
    return {whole[-LONGEST:], whole.rpartition(b"/")[2][-LONGEST:]}


def note_document(about: Iterable[bytes], value: Any) -> dict[str, Any]:
    """Return the fields of a document that is not a capture."""
    terms = tuple(about)
    text = json.dumps([[term.hex() for term in terms], value]).encode()
    return {"about": terms, "content": sealed(b"", NO_CAPTURE + text)}


def container_key(name: str) -> bytes:
    """Return the term of the registration of a container."""
    return b"@" + _hash(name)


def place_key(place: ContainerRef) -> bytes:
    """Return the term of the number of a container."""
    return b"=" + _hash(f"{place.crawl}\0{place.container}" if place.crawl else place.container)


def number_key(number: int) -> bytes:
    """Return the term of what a container number stands for."""
    return b"#" + number.to_bytes(4, "big")


def _hash(name: str) -> bytes:
    return blake2b(name.encode("utf-8", "surrogateescape"), digest_size=20).digest()
