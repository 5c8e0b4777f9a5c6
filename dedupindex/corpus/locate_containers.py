"""Where containers are: metadata name them by path, by last name, or as some other machine did."""

from __future__ import annotations

import os
from collections.abc import Sequence

from dedupindex.errors import BadSource
from dedupindex.object_store import is_remote, local, open_anywhere
from dedupindex.warc import wacz_members


class Places:
    """Finds containers below directories and addresses; what it says of a name, it remembers."""

    def __init__(self, where: Sequence[str]) -> None:
        """Raises `BadSource` for a directory or file that is not there."""
        self._where = tuple(map(local, where))
        for place in self._where:
            if not is_remote(place) and not os.path.exists(place):
                raise BadSource(f"{place}, where containers are said to be, is not there")
        self._known: dict[tuple[str, str], str] = {}
        self._below: dict[str, dict[str, str]] = {}  # of each directory: names and paths

    def find(self, name: str, beside: str) -> str:
        """The path or address of a container; "" if it is nowhere.

        `beside` is the directory of what names it, where it is looked for last, or the WACZ, where
        it is looked for first. Of what is elsewhere nobody is asked here whether it is there.
        """
        key = name, beside
        if key not in self._known:
            self._known[key] = self._found(name, beside)
        return self._known[key]

    def _found(self, name: str, beside: str) -> str:
        inside = self._inside(beside)
        for path in (f"{beside}/{name}", f"{beside}/archive/{name}"):  # two may have one last name
            if path in inside.values():
                return path
        if inner := inside.get(os.path.basename(name)):
            return inner
        for place in self._where:
            if found := self._at(place, name):
                return found
        if is_remote(name) or (os.path.isabs(name) and _is_there(name)):
            return name
        if is_remote(beside):
            return f"{beside}/{name}"
        return _below(beside, name) if beside else ""

    def _at(self, place: str, name: str) -> str:
        """A container below one of the places."""
        if place.endswith("/") and is_remote(place):
            return place + (_last(name) if _is_path(name) else name)
        if is_remote(place) or os.path.isfile(place):
            if _last(place) == _last(name):
                return place
            return self._inside(place).get(_last(name), "")
        if found := _below(place, name):
            return found
        if place not in self._below:
            self._below[place] = self._all(place)
        return self._below[place].get(_last(name), "")

    def _all(self, place: str) -> dict[str, str]:
        """Last names and paths of all files below a directory, and of those in a WACZ there."""
        paths = [
            os.path.join(directory, file)
            for directory, _, files in os.walk(place, followlinks=True)
            for file in sorted(files, reverse=True)
        ]
        inner = [self._inside(path) for path in paths if wacz_members.is_wacz(path)]
        found = {_last(path): path for path in paths}
        return {name: path for some in inner for name, path in some.items()} | found

    def _inside(self, path: str) -> dict[str, str]:
        """The containers in a WACZ, by their last names, and after that of the WACZ."""
        if not wacz_members.is_wacz(path):
            return {}
        if path not in self._below:
            try:
                with open_anywhere(path) as file:
                    names = wacz_members.containers(path, file)
            except (*wacz_members.BROKEN, BadSource):
                names = []  # whose captures will have no container
            self._below[path] = {os.path.basename(one): one for one in reversed(names)} | {
                _last(one): one for one in names
            }
        return self._below[path]


def _is_there(path: str) -> bool:
    return os.path.isfile(path) or wacz_members.within(path) is not None


def _below(directory: str, name: str) -> str:
    """A file of this path, or else of this last name, in a directory."""
    for relative in (name.lstrip("/"), _last(name)):
        path = os.path.join(directory, relative)
        if _is_there(path):
            return os.path.abspath(path)
    return ""


def _is_path(name: str) -> bool:
    return name.startswith("/") or is_remote(name)


def _last(name: str) -> str:
    """The last part of a path or an address; of what is in a WACZ from the WACZ's name on."""
    outer, within, inner = name.rpartition(".wacz/archive/")
    if within:
        return _last(outer) + within + inner
    return name.partition("?")[0].rpartition("/")[2] if is_remote(name) else os.path.basename(name)
