"""What is in a directory of a store, one entry after the other: there may be millions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any, NamedTuple

from dedupindex.errors import BadSource
from dedupindex.object_store.glob import address_of, facts_in, is_mark
from dedupindex.object_store.store_address import kept
from dedupindex.object_store.stores import ObjectFacts, patiently, said_by, store_of

_PAGE = 1000  # names that S3 tells at once


class RemoteEntry(NamedTuple):
    """An object, or a directory."""

    address: str
    facts: ObjectFacts | None  # of an object, if they can be told
    problem: str = ""  # why they cannot

    @property
    def is_directory(self) -> bool:
        return self.facts is None and not self.problem


def entries(directory: str) -> Iterator[RemoteEntry]:
    """What is in a directory, in no order; raises `BadSource`, in the midst of it, too.

    What some tools put in the place of a directory, an object of nothing, is passed over. Of S3 a
    page at a time is held, of other stores the names of the directory.
    """
    store, path = store_of(directory)
    if hasattr(store, "_iterdir"):
        listing = _pages(directory, store, path)
    else:
        listing = iter(patiently(directory, partial(store.ls, path, detail=True)))
    for said in listing:
        met = address_of(said["name"], directory, path)
        if said.get("type") == "directory":
            yield RemoteEntry(met, None)
        elif not is_mark(met, said) and met != directory.rstrip("/"):
            try:
                yield RemoteEntry(met, facts_in(said, met))
            except BadSource as error:
                yield RemoteEntry(met, None, str(error))


def _pages(directory: str, store: Any, path: str) -> Iterator[dict[str, Any]]:
    """The listing of s3fs as it comes, which `ls` would gather first."""
    from fsspec.asyn import sync  # an extra

    bucket, key, _ = store.split_path(path)
    coming = store._iterdir(bucket, prefix=f"{key.rstrip('/')}/" if key else "")
    while True:
        try:
            page = sync(store.loop, _some, coming)
        except Exception as error:
            raise BadSource(f"{kept(directory)} cannot be listed: {said_by(error)}") from error
        yield from page
        if len(page) < _PAGE:
            return


async def _some(coming: AsyncIterator[dict[str, Any]]) -> list[dict[str, Any]]:
    page: list[dict[str, Any]] = []
    async for said in coming:
        page.append(said)
        if len(page) == _PAGE:
            break
    return page
