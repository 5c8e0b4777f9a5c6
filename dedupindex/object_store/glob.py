"""Find objects by address, directory or glob."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from glob import has_magic
from typing import Any, NamedTuple

from dedupindex.errors import BadSource
from dedupindex.object_store.store_address import S3, WEB, redacted, scheme_of
from dedupindex.object_store.stores import (
    ObjectFacts,
    error_text,
    facts,
    facts_of,
    facts_or_none,
    given_up,
    missing,
    request_info,
    store_of,
    with_retries,
)

AT_ONCE = 16  # concurrent requests


class FoundObject(NamedTuple):
    """An object."""

    address: str
    facts: ObjectFacts


def is_many(address: str) -> bool:
    """Return whether an address is a directory or a glob; raises `BadSource`.

    On a web server the address of a directory ends with a slash; it is a page that links to its
    files. An object whose name is the glob itself is an object.
    """
    if address.endswith("/"):
        return True
    if _is_glob(address):
        return facts_or_none(address) is None
    if scheme_of(address) in WEB:
        return False
    store, path = store_of(address)
    info = with_retries(address, partial(request_info, store, path))
    return bool(info.get("type") == "directory")


def find_objects(address: str) -> Iterator[FoundObject]:
    """Yield the objects at an address, in the order of names; raises `BadSource`."""
    if not is_many(address):
        yield FoundObject(address, facts(address))
        return
    store, path = store_of(address)
    search = store.glob if _is_glob(address) else store.find
    listing = with_retries(address, partial(search, path, detail=True))
    if not listing and _is_glob(address):
        raise BadSource(f"nothing matches {redacted(address)}")
    if not listing and scheme_of(address) not in WEB:
        raise BadSource(f"{redacted(address)} cannot be read: {missing(address)}")
    names = sorted(listing)
    addresses = [address_of(name, address, path) for name in names]
    infos = [listing[name] for name in names]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = (pool.map if scheme_of(address) in WEB else map)(_object, addresses, infos)
        for where, info, one in zip(addresses, infos, found, strict=True):
            if one is not None:
                yield one
            elif info.get("type") == "directory" and _is_glob(address) and "**" not in address:
                yield from find_objects(where.rstrip("/") + "/")


def addresses_below(directory: str) -> set[str]:
    """Return the addresses of all objects below a directory, none if it is not there.

    Raises `BadSource`.
    """
    store, path = store_of(directory)
    listing = with_retries(directory, partial(store.find, path))
    return {address_of(name, directory, path) for name in listing}


def _object(address: str, info: dict[str, Any]) -> FoundObject | None:
    """Return an object of a listing, None for a directory or its placeholder."""
    if info.get("type") == "directory" or _is_placeholder(address, info):
        return None
    return FoundObject(address, _facts(info, address))


def _is_placeholder(address: str, info: dict[str, Any]) -> bool:
    """Return whether this is an empty object that stands for a directory."""
    return address.endswith("/") and not info.get("size")


def _facts(info: dict[str, Any], address: str) -> ObjectFacts:
    """Return the facts of an object from a listing; those of web servers have none."""
    return facts(address) if info.get("size") is None else facts_of(info, address)


def _is_glob(address: str) -> bool:
    if scheme_of(address) in WEB:
        return "*" in address or "[" in address.partition("://")[2].partition("/")[2]
    return has_magic(address)


def address_of(name: str, address: str, path: str) -> str:
    """Return the address of `name`, where the store calls the object at `address` `path`.

    Names of a store are without scheme, and in some stores without host.
    """
    plain, known = address.rstrip("/"), path.rstrip("/")
    return (plain[: len(plain) - len(known)] if plain.endswith(known) else "") + name


# --- directories, which may have millions of entries --------------------------------------------

_PAGE = 1000  # names in a response of S3


class RemoteEntry(NamedTuple):
    """An object, or a directory."""

    address: str
    facts: ObjectFacts | None  # of an object, if they are known
    problem: str = ""  # why they are not

    @property
    def is_directory(self) -> bool:
        return self.facts is None and not self.problem


def list_directory(directory: str) -> Iterator[RemoteEntry]:
    """Yield the entries of a directory, in any order; raises `BadSource`, also after some of them.

    Empty objects that some tools put in place of directories are left out. Listings of S3 are read
    page by page, those of other stores as a whole.
    """
    store, path = store_of(directory)
    if scheme_of(directory) in S3:
        listing = _pages(directory, store, path)
    else:
        listing = iter(with_retries(directory, partial(store.ls, path, detail=True)))
    for info in listing:
        address = address_of(info["name"], directory, path)
        if info.get("type") == "directory":
            yield RemoteEntry(address, None)
        elif not _is_placeholder(address, info) and address != directory.rstrip("/"):
            try:
                yield RemoteEntry(address, _facts(info, address))
            except BadSource as error:
                yield RemoteEntry(address, None, str(error))


def _pages(directory: str, store: Any, path: str) -> Iterator[dict[str, Any]]:
    """Yield the listing of s3fs page by page, while its `ls` reads all of it first."""
    from fsspec.asyn import sync  # an extra

    bucket, key, _ = store.split_path(path)
    listing = store._iterdir(bucket, prefix=f"{key.rstrip('/')}/" if key else "")
    while True:
        try:
            page = sync(store.loop, _next_page, listing)
        except Exception as error:
            message = f"{redacted(directory)} cannot be listed: {error_text(error)}"
            raise given_up(message, error, 1) from error
        yield from page
        if len(page) < _PAGE:
            return


async def _next_page(listing: AsyncIterator[dict[str, Any]]) -> list[dict[str, Any]]:
    page: list[dict[str, Any]] = []
    async for info in listing:
        page.append(info)
        if len(page) == _PAGE:
            break
    return page
