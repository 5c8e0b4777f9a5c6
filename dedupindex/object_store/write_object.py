"""Write objects to stores, and copy objects from there to files, several at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from dedupindex.errors import BadSource
from dedupindex.object_store.glob import FoundObject
from dedupindex.object_store.store_address import WEB, redacted, scheme_of
from dedupindex.object_store.stores import facts, store_of, with_retries

_AT_ONCE = 16  # objects that are transferred at the same time
T = TypeVar("T")


def check_writable(address: str) -> None:
    """Raise `BadSource` for an address that cannot be written to; sends nothing."""
    if scheme_of(address) in WEB:
        raise BadSource(f"{redacted(address)} is on a web server, where nothing can be written")
    store_of(address)


def upload(files: Sequence[tuple[Path, str]]) -> None:
    """Write files as objects of one store; raises `BadSource`. Each object appears whole."""
    for batch in _batches(files):
        store, _ = store_of(batch[0][1])
        paths = [str(path) for path, _ in batch]
        names = [store_of(address)[1] for _, address in batch]
        with_retries(batch[0][1], partial(store.put, paths, names), "written")
        for path, address in batch:
            size, expected = facts(address).size, path.stat().st_size
            if size != expected:
                raise BadSource(f"{redacted(address)} has {size:,} bytes instead of {expected:,}")


def download(files: Sequence[tuple[FoundObject, Path]]) -> None:
    """Copy objects of one store to files; raises `BadSource`, also if one changes meanwhile."""
    for batch in _batches(files):
        store, _ = store_of(batch[0][0].address)
        names = [store_of(one.address)[1] for one, _ in batch]
        paths = [str(path) for _, path in batch]
        with_retries(batch[0][0].address, partial(store.get, names, paths))
        for one, path in batch:
            if path.stat().st_size != one.facts.size or facts(one.address) != one.facts:
                raise BadSource(f"{redacted(one.address)} changed while it was read: try again")


def _batches(files: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(files), _AT_ONCE):
        yield files[start : start + _AT_ONCE]


def write_marker(address: str) -> None:
    """Write an object of one byte; raises `BadSource`."""
    store, name = store_of(address)
    with_retries(address, partial(store.pipe_file, name, b"\n"), "written")


def remove_object(address: str) -> None:
    """Delete an object, if it exists; raises `BadSource`."""
    store, name = store_of(address)

    def remove() -> None:
        try:
            store.rm_file(name)
        except FileNotFoundError:
            return

    with_retries(address, remove, "deleted")
