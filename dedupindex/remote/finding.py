"""What an address means: an object, all below a directory, or what a glob matches."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from glob import has_magic
from typing import Any, NamedTuple

from dedupindex.errors import BadSource
from dedupindex.remote.address import WEB, kept, scheme_of
from dedupindex.remote.stores import Facts, facts, facts_of, patiently, store_of


class Met(NamedTuple):
    """An object."""

    address: str
    facts: Facts


def is_many(address: str) -> bool:
    """Whether an address names a directory or a glob, not an object; raises `BadSource`.

    On a web server a directory ends with a slash, and is the page that links to its files.
    """
    if _is_glob(address) or address.endswith("/"):
        return True
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
    for name in sorted(listing):
        met = address_of(name, address, path)
        said = listing[name]
        if said.get("type") == "directory":
            if _is_glob(address) and "**" not in address:
                yield from found(met.rstrip("/") + "/")
        elif met.endswith("/"):
            continue  # what some tools put in the place of a directory
        else:
            yield Met(met, facts_in(said, met))


def facts_in(said: dict[str, Any], address: str) -> Facts:
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
