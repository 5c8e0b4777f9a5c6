"""The digest filter of an index: its parts (see `dedupindex.digest_filter`) and how they grow.

    INDEX/filter/manifest.json    the parts, in the order in which they were written
    INDEX/filter/<id>.part        a part, as clients get it
    INDEX/filter/<id>.keys        its keys, ascending u64 of this machine, to merge parts

An index has a filter once ``bin/index --digest-filter`` has made one. From then on each load adds
its digests *before* it is committed: a load that is killed, or fails, leaves digests in the filter
that the index does not have, which costs a request each, and never the other way round. Digests
that are purged stay until the filter is made again.

The manifest records the checksum of the index that it covers. If another is found before a load
(a version that knows no filter has loaded something), the filter is made again from the index.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from heapq import merge
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, NamedTuple

from dedupindex.digest_filter import (
    KnownKey,
    Part,
    PartInfo,
    key_of,
    manifest_json,
    mask_of,
    read_manifest,
    write_part,
)
from dedupindex.errors import Damaged, IndexUnavailable
from dedupindex.runtime.files import sync_directory, write_file

DIRECTORY, MANIFEST = "filter", "manifest.json"
SMALL = 1 << 16  # digests of a part that every load merges with its own
FACTOR = 4  # a part is merged if it is at most so many times as large as what is added to it
_SCRATCH = ".new-"
_CHUNK = 1 << 13  # keys in memory, of each file that is read


class StoredManifest(NamedTuple):
    """What ``manifest.json`` has."""

    parts: list[PartInfo]
    algorithms: dict[str, int]  # of a part, by its id
    keys: dict[str, str]  # SHA-256 of the file of keys, by the id of its part
    state: int | None  # the checksum of the index that it covers; None: a load began, or ends


class FilterStore:
    """The filter in the directory of an index. Writers hold the lock of the index."""

    def __init__(self, index: Path) -> None:
        self.directory = index / DIRECTORY

    def exists(self) -> bool:
        return (self.directory / MANIFEST).exists()

    def manifest(self) -> StoredManifest:
        """Return the manifest; raises `Damaged`, `FileNotFoundError` if there is no filter."""
        data = (self.directory / MANIFEST).read_bytes()
        parts = read_manifest(data)
        content = json.loads(data)
        try:
            rows = {row["id"]: row for row in content["parts"]}
            state = content["state"]
            return StoredManifest(
                parts,
                {name: int(row["algorithms"]) for name, row in rows.items()},
                {name: str(row["keys"]) for name, row in rows.items()},
                None if state is None else int(state),
            )
        except (LookupError, TypeError, ValueError) as error:
            raise Damaged(f"{self.directory / MANIFEST} is damaged: {error!r}") from error

    def problems(self) -> list[str]:
        """Return what is wrong with the filter, a sentence each; nothing if there is none."""
        try:
            known = self.manifest() if self.exists() else StoredManifest([], {}, {}, None)
            for part in known.parts:
                Part.open(self.path_of(part.id), part.id)
                _check_keys(self._keys_of(part), known.keys[part.id])
        except (Damaged, OSError) as error:
            return [
                f"the digest filter is damaged: {error}; bin/index --digest-filter makes it anew"
            ]
        return []

    def path_of(self, part_id: str) -> Path:
        return self.directory / f"{part_id}.part"

    def create(self, cell_keys: Iterable[bytes], state: int) -> None:
        """Write the filter of an index anew, from its keys in order."""
        self.directory.mkdir(exist_ok=True)
        with self._errors():
            self._write(StoredManifest([], {}, {}, state), cell_keys)

    def extend(self, staged: Iterable[list[bytes]]) -> None:
        """Add the digests of staged entries, in order, as a load is about to begin."""
        with self._errors():
            keys = (entry for batch in staged for entry in batch)
            self._write(self.manifest()._replace(state=None), keys)

    def commit(self, state: int) -> None:
        """Record the checksum of the index after a load."""
        with self._errors():
            self._put(self.manifest()._replace(state=state))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise IndexUnavailable(
                f"the digest filter in {self.directory} cannot be written: {error}"
            ) from error

    def _write(self, known: StoredManifest, keys: Iterable[bytes]) -> None:
        """Add the digests of index keys, in order, to the parts of a manifest, and store it."""
        for left in self.directory.glob(f"{_SCRATCH}*"):  # by a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        with TemporaryDirectory(dir=self.directory, prefix=_SCRATCH) as made, ExitStack() as stack:
            scratch = Path(made)
            try:
                seen = [stack.enter_context(_KnownPart.open(self, part)) for part in known.parts]
            except FileNotFoundError as error:
                raise Damaged(f"a file of the digest filter is missing: {error}") from error
            files = _split(keys, scratch, seen)
            count = sum(path.stat().st_size // 8 for _, path in files)
            merged = _to_merge(known.parts, count) if count else []
            for part in merged:
                _check_keys(self._keys_of(part), known.keys[part.id])
            if count:
                known = self._merge(known, merged, files, scratch)
            self._put(known)
        kept = {part.id for part in known.parts}
        for path in self.directory.iterdir():
            if path.suffix in (".part", ".keys") and path.stem not in kept:
                path.unlink(missing_ok=True)

    def _merge(
        self,
        known: StoredManifest,
        merged: list[PartInfo],
        files: list[tuple[int, Path]],
        scratch: Path,
    ) -> StoredManifest:
        """Write one part of some parts and of new keys, and return the manifest that names it."""
        sources = [path for _, path in files] + [self._keys_of(part) for part in merged]
        count = sum(path.stat().st_size // 8 for path in sources)
        algorithms = 0
        for code in [1 << code for code, _ in files] + [known.algorithms[p.id] for p in merged]:
            algorithms |= code
        generation = 1 + max((part.generation for part in known.parts), default=0)
        with open(scratch / "part", "w+b") as stream, open(scratch / "keys", "w+b") as beside:
            keys = _copied(_distinct(merge(*map(_read_keys, sources))), beside)
            part = write_part(stream, keys, count, algorithms, generation)
            for file in (stream, beside):
                file.flush()
                os.fsync(file.fileno())
            beside.seek(0)
            checksum = _checksum(beside)
        os.replace(scratch / "keys", self._keys_of(part))
        os.replace(scratch / "part", self.path_of(part.id))
        sync_directory(self.directory)
        return StoredManifest(
            [old for old in known.parts if old not in merged] + [part],
            {**known.algorithms, part.id: algorithms},
            {**known.keys, part.id: checksum},
            known.state,
        )

    def _keys_of(self, part: PartInfo) -> Path:
        return self.directory / f"{part.id}.keys"

    def _put(self, known: StoredManifest) -> None:
        content: dict[str, Any] = manifest_json(known.parts)
        for row in content["parts"]:
            row |= {"algorithms": known.algorithms[row["id"]], "keys": known.keys[row["id"]]}
        content["state"] = known.state
        write_file(self.directory / MANIFEST, json.dumps(content).encode() + b"\n")


class _KnownPart:
    """A part and its keys, to see which digests it has."""

    def __init__(self, part: Part, keys: mmap.mmap) -> None:
        self._part, self._mapped = part, keys
        self._keys = memoryview(keys).cast("Q")

    @classmethod
    @contextmanager
    def open(cls, store: FilterStore, info: PartInfo) -> Iterator[_KnownPart]:
        with open(store.directory / f"{info.id}.keys", "rb") as stream:
            if os.fstat(stream.fileno()).st_size != 8 * info.digests:
                raise Damaged(f"the keys of part {info.id} of the digest filter are cut")
            part = Part.open(store.path_of(info.id), info.id)
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                known = cls(part, mapped)
                try:
                    yield known
                finally:
                    known._keys.release()

    def has(self, sought: KnownKey) -> bool:
        """Return whether it has a digest; a digest of which only the filter says so is added."""
        if not self._part.may_have(sought):
            return False
        at = bisect_left(self._keys, sought.key)
        return at < len(self._keys) and self._keys[at] == sought.key


def _split(keys: Iterable[bytes], scratch: Path, seen: list[_KnownPart]) -> list[tuple[int, Path]]:
    """Write the digests of index keys that no part has, a file for each algorithm's number."""
    files: list[tuple[int, Path]] = []
    last, code, stream = b"", 0, None
    pending = array("Q")
    with ExitStack() as stack:
        for key in keys:
            digest = key[1:9]
            if key[0] == code and digest == last:
                continue
            if key[0] != code:
                if stream is not None:
                    pending.tofile(stream)
                code, pending = key[0], array("Q")
                files.append((code, scratch / f"new-{code}"))
                stream = stack.enter_context(open(files[-1][1], "wb"))
            last = digest
            if seen:
                number = key_of(digest)
                sought = KnownKey(number, mask_of(number), 1 << code)
                if any(part.has(sought) for part in seen):
                    continue
            pending.append(key_of(digest))
            if len(pending) >= _CHUNK and stream is not None:
                pending.tofile(stream)
                pending = array("Q")
        if stream is not None:
            pending.tofile(stream)
    return [(code, path) for code, path in files if path.stat().st_size]


def _to_merge(parts: list[PartInfo], count: int) -> list[PartInfo]:
    """Return the parts to merge with `count` new digests, so that few parts are left."""
    merged: list[PartInfo] = []
    for part in sorted(parts, key=lambda part: part.digests):
        if part.digests > max(FACTOR * count, SMALL):
            break
        merged.append(part)
        count += part.digests
    return merged


def _read_keys(path: Path) -> Iterator[int]:
    with open(path, "rb") as stream:
        while data := stream.read(8 * _CHUNK):
            keys = array("Q")
            keys.frombytes(data)
            yield from keys


def _distinct(keys: Iterable[int]) -> Iterator[int]:
    last = -1
    for key in keys:
        if key != last:
            yield key
        last = key


def _copied(keys: Iterator[int], stream: IO[bytes]) -> Iterator[int]:
    """Yield keys, and write them to a file."""
    while chunk := array("Q", islice(keys, _CHUNK)):
        chunk.tofile(stream)
        yield from chunk


def _checksum(stream: IO[bytes]) -> str:
    checksum = sha256()
    while data := stream.read(1 << 20):
        checksum.update(data)
    return checksum.hexdigest()


def _check_keys(path: Path, expected: str) -> None:
    with open(path, "rb") as stream:
        if _checksum(stream) != expected:
            raise Damaged(f"{path} is damaged")
