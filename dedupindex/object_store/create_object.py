"""Create objects that exist already nowhere, prove them, and read objects into temporary files.

An object is written whole, in parts if it is large, under the condition that its name is free
(``If-None-Match: *``): of two writers one wins, and nothing is overwritten. Only stores that
speak S3 are written to, because others may ignore the condition; before the first object, a run
calls `check_conditions`, as some that speak S3 do as well.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from tempfile import NamedTemporaryFile, TemporaryFile
from typing import BinaryIO

import blake3

from dedupindex.cache import Cache
from dedupindex.errors import SOURCE_ERRORS, BadSource, Damaged
from dedupindex.object_store.copied_parts import (
    PART,
    CopyRefused,
    CopySource,
    is_refused,
    put_with_copies,
)
from dedupindex.object_store.read_object import MOST, RemoteFile
from dedupindex.object_store.store_address import S3, redacted, scheme_of
from dedupindex.object_store.stores import ObjectFacts, facts_or_none, store_of, with_retries
from dedupindex.object_store.write_object import remove_object
from dedupindex.runtime.atomic_replace import CopiedRange

LARGE = 2 * PART  # bytes; a smaller object is written by one request
_MOST_PARTS = 9_000  # S3 takes 10,000
_FOLLOWS = 16  # bytes after a record, such as "WARC/1.0"
_FRAME = b"\x28\xb5\x2f\xfd"  # how a record in zstd begins
_SKIPPABLE = b"\x5d\x2a\x4d\x18"  # how a .zst with a dictionary begins; its length follows


def check_creatable(address: str) -> None:
    """Raise `BadSource` unless objects can be created below an address; sends nothing."""
    if scheme_of(address) not in S3:
        raise BadSource(
            f"{redacted(address)} is not in a store that speaks S3: results are written to "
            "s3://BUCKET/PREFIX, because other stores may replace an object that somebody else "
            "writes at the same time; write to a directory, and upload that"
        )
    bucket, _, prefix = address.partition("://")[2].partition("/")
    if not bucket or not prefix.strip("/"):
        raise BadSource(f"{redacted(address)}: name a prefix, as s3://BUCKET/PREFIX")
    store_of(address)


def create_object(file: BinaryIO, address: str, source: CopySource | None = None) -> bool:
    """Write a local file as a new object; return False if one of the same content exists.

    The store copies ranges from `source`, if it can. The object is read back. Raises
    `FileExistsError` if there is one with other content, `Damaged` if what was written reads back
    otherwise (it is then removed), and `BadSource`.
    """
    created = facts_or_none(address) is None and _put(file, address, source)
    try:
        if is_object(file, address):
            return created
    except SOURCE_ERRORS:
        if created:  # it is proven, or it is not there
            with suppress(*SOURCE_ERRORS):
                remove_object(address)
        raise
    if not created:
        raise FileExistsError(f"{redacted(address)} exists already, with other content")
    remove_object(address)
    raise Damaged(
        f"{redacted(address)}, read back, is not what was written; it was removed. Is the store "
        "sound?"
    )


def _put(file: BinaryIO, address: str, source: CopySource | None) -> bool:
    """Write an object if its name is free; return whether this call certainly wrote it."""
    store, name = store_of(address)
    size = os.fstat(file.fileno()).st_size
    if source is not None and size >= LARGE and source.ranges:
        with suppress(CopyRefused):
            return put_with_copies(file, size, address, source)
    parts = {"chunksize": max(PART, -(-size // _MOST_PARTS)), "max_concurrency": 2}

    def put() -> bool:
        try:
            store.put_file(f"/proc/self/fd/{file.fileno()}", name, mode="create", **parts)
        except Exception as error:
            if is_refused(error, {}):
                return False
            raise
        return True

    return with_retries(address, put, "written")


def copy_object(source: str, version: int, size: int, address: str, content_hash: str) -> bool:
    """Let the store copy an object; return False if it does not, or if something is at `address`.

    `version` is that of the source, `content_hash` its BLAKE3, in hex. The copy is read back, and
    removed if its content is another. Raises `BadSource`.
    """
    if size < LARGE or facts_or_none(address) is not None:
        return False
    whole = CopiedRange(0, 0, size)
    if (copied_from := copy_source(source, version, [whole])) is None:
        return False
    try:
        created = put_with_copies(None, size, address, copied_from)
    except CopyRefused:
        return False
    sound = False
    try:
        sound = any(_hash_of(address, size) == content_hash for _ in range(2))
    finally:
        if created and not sound:  # it is proven, or it is not there
            with suppress(*SOURCE_ERRORS):
                remove_object(address)
    return sound


def copy_source(address: str, version: int, ranges: Sequence[CopiedRange]) -> CopySource | None:
    """Return what ranges are copied from; None if the object has another version by now."""
    found = facts_or_none(address)
    if found is None or found.version != version:
        return None
    return CopySource(address, found.stamp, ranges)


def _hash_of(address: str, size: int) -> str:
    """Return the BLAKE3 of an object, in hex; empty if it has another size."""
    found, running = facts_or_none(address), blake3.blake3()
    if found is None or found.size != size:
        return ""
    with RemoteFile(address, found, in_order=True) as remote:
        while data := remote.read(MOST):
            running.update(data)
    return running.hexdigest()


def is_object(file: BinaryIO, address: str) -> bool:
    """Whether the object at an address has the content of a local file; reads all of it.

    It is read again before it is said to differ: a store may answer with wrong bytes once.
    """
    return _is_object(file, address) or _is_object(file, address)


def _is_object(file: BinaryIO, address: str) -> bool:
    found = facts_or_none(address)
    size = os.fstat(file.fileno()).st_size
    if found is None or found.size != size:
        return False
    offset = 0
    with RemoteFile(address, found, in_order=True) as remote:
        while data := remote.read(MOST):
            if data != os.pread(file.fileno(), len(data), offset):
                return False
            offset += len(data)
    return offset == size


@contextmanager
def fetched(
    address: str, size: int, version: int | None = None, known: ObjectFacts | None = None
) -> Iterator[BinaryIO]:
    """Yield all of an object as a temporary file without a name, opened for reading.

    Raises `Damaged` unless it has this size, and this version if one is given, before and after.
    `known` saves a request.
    """
    with NamedTemporaryFile(prefix="dedupindex-", buffering=0) as beside:
        with RemoteFile(address, known, in_order=True) as remote:
            if remote.size != size or version not in (None, remote.facts.version):
                raise Damaged("it has changed since it was scanned")
            while data := remote.read(MOST):
                beside.write(data)
            if remote.changed() or beside.tell() != size:
                raise Damaged("it was changed while it was read")
        reader = open(beside.name, "rb", buffering=0)  # noqa: SIM115
        os.fchmod(reader.fileno(), 0o644)  # a result gets the mode of its source
        beside.close()  # nobody sees a writer of what is only read from here on
    with reader:
        yield reader


class PartialCopy:
    """A temporary file of the size of an object, with the ranges of it that were asked for."""

    def __init__(self, address: str, known: ObjectFacts | None = None) -> None:
        """`known` saves a request; raises `BadSource`."""
        self._remote = RemoteFile(address, known)
        self.size, self.version = self._remote.size, self._remote.facts.version
        self.file: BinaryIO = TemporaryFile(prefix="dedupindex-", buffering=0)  # noqa: SIM115
        os.ftruncate(self.file.fileno(), self.size)
        self._started = False
        self._there = Cache[tuple[int, int], bool]()  # ranges that are in the file

    def close(self) -> None:
        self._remote.close()
        self.file.close()

    def need(self, offset: int, count: int) -> None:
        """Read a range, what shows that a record follows it, and the dictionary of one in zstd.

        A range that was read before is not read again. Raises `BadSource`.
        """
        if self._there.get((offset, count)):
            return
        record = self._read(offset, count + _FOLLOWS)
        if record[:4] in (_FRAME, _SKIPPABLE) and not self._started:
            self._started = True
            start = self._read(0, min(8, self.size))
            if start[:4] == _SKIPPABLE:
                self._read(0, 8 + int.from_bytes(start[4:8], "little"))
        self._there.keep((offset, count), value=True)

    def _read(self, offset: int, count: int) -> bytes:
        """Copy a range, and return its first piece."""
        end, first = min(offset + count, self.size), b""
        while offset < end:
            data = self._remote.range(min(MOST, end - offset), offset)
            if not data:
                raise BadSource(f"{self._remote.name} became shorter while it was read")
            os.pwrite(self.file.fileno(), data, offset)
            first = first or data
            offset += len(data)
        return first
