"""What an address means: an object, all below a directory, or what a glob matches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from glob import has_magic
from typing import Any, NamedTuple

from dedupindex.errors import BadSource
from dedupindex.object_store.store_address import WEB, kept, scheme_of
from dedupindex.object_store.stores import (
    ObjectFacts,
    facts,
    facts_of,
    facts_or_none,
    patiently,
    said_by,
    store_of,
)

AT_ONCE = 16  # objects that are asked for side by side


class Met(NamedTuple):
    """An object."""

    address: str
    facts: ObjectFacts


def is_many(address: str) -> bool:
    """Whether an address names a directory or a glob, not an object; raises `BadSource`.

    On a web server a directory ends with a slash, and is the page that links to its files. What is
    there under the very name of a glob is meant itself.
    """
    if address.endswith("/"):
        return True
    if _is_glob(address):
        return facts_or_none(address) is None
    if scheme_of(address) in WEB:
        return False
    store, path = store_of(address)
    return bool(patiently(address, partial(_is_directory, store, path)))


def found(address: str) -> Iterator[Met]:
    """The objects that an address means, in the order of their names; raises `BadSource`."""
    if not is_many(address):
        yield Met(address, facts(address))
        return
    store, path = store_of(address)
    if _is_glob(address):
        listing = patiently(address, partial(store.glob, path, detail=True))
        if not listing:
            raise BadSource(f"nothing matches {kept(address)}")
    else:
        listing = patiently(address, partial(store.find, path, detail=True))
        if not listing and scheme_of(address) not in WEB:
            raise BadSource(f"{kept(address)} cannot be read: nothing is there")
    names = sorted(listing)
    addresses = [address_of(name, address, path) for name in names]
    said = [listing[name] for name in names]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        met = (pool.map if scheme_of(address) in WEB else map)(_met, addresses, said)
        for where, what, one in zip(addresses, said, met, strict=True):
            if one is not None:
                yield one
            elif what.get("type") == "directory" and _is_glob(address) and "**" not in address:
                yield from found(where.rstrip("/") + "/")


def _met(address: str, said: dict[str, Any]) -> Met | None:
    """An object of a listing; None for a directory, and for what some tools put in its place."""
    if said.get("type") == "directory" or is_mark(address, said):
        return None
    return Met(address, facts_in(said, address))


def is_mark(address: str, said: dict[str, Any]) -> bool:
    """Whether an object only stands for a directory: it has nothing in it."""
    return address.endswith("/") and not said.get("size")


def facts_in(said: dict[str, Any], address: str) -> ObjectFacts:
    """What a listing says of an object; on web servers it says nothing."""
    return facts(address) if said.get("size") is None else facts_of(said, address)


def _is_glob(address: str) -> bool:
    if scheme_of(address) in WEB:
        return "*" in address or "[" in address.partition("://")[2].partition("/")[2]
    return has_magic(address)


def _is_directory(store: Any, path: str) -> bool:
    said: dict[str, Any] = store.info(path)
    return said.get("type") == "directory"


def address_of(name: str, address: str, path: str) -> str:
    """The address of what a store calls `name`, where it calls `address` `path`.

    Names lack the scheme, of some stores the host, too.
    """
    plain, known = address.rstrip("/"), path.rstrip("/")
    return (plain[: len(plain) - len(known)] if plain.endswith(known) else "") + name


# What is in a directory of a store, one entry after the other: there may be millions.

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
