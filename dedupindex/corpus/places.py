"""Where containers are: metadata name them by path, by last name, or as some other machine did."""

from __future__ import annotations

import os
from collections.abc import Sequence

from dedupindex.errors import BadSource
from dedupindex.remote import is_remote, local


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

        `beside` is the directory of what names it, where it is looked for last. Of what is
        elsewhere nobody is asked here whether it is there.
        """
        key = name, beside
        if key not in self._known:
            self._known[key] = self._found(name, beside)
        return self._known[key]

    def _found(self, name: str, beside: str) -> str:
        for place in self._where:
            if found := self._at(place, name):
                return found
        if is_remote(name) or (os.path.isabs(name) and os.path.isfile(name)):
            return name
        if is_remote(beside):
            return f"{beside}/{name}"
        return _below(beside, name) if beside else ""

    def _at(self, place: str, name: str) -> str:
        """A container below one of the places."""
        if is_remote(place):
            if place.endswith("/"):
                return place + (name.rpartition("/")[2] if _is_path(name) else name)
            return place if _last(place) == _last(name) else ""
        if os.path.isfile(place):
            return place if _last(place) == _last(name) else ""
        if found := _below(place, name):
            return found
        if place not in self._below:
            self._below[place] = {
                file: os.path.join(directory, file)
                for directory, _, files in os.walk(place, followlinks=True)
                for file in sorted(files, reverse=True)
            }
        return self._below[place].get(_last(name), "")


def _below(directory: str, name: str) -> str:
    """A file of this path, or else of this last name, in a directory."""
    for relative in (name.lstrip("/"), _last(name)):
        path = os.path.join(directory, relative)
        if os.path.isfile(path):
            return os.path.abspath(path)
    return ""


def _is_path(name: str) -> bool:
    return name.startswith("/") or is_remote(name)


def _last(name: str) -> str:
    return name.partition("?")[0].rpartition("/")[2] if is_remote(name) else os.path.basename(name)
