"""Locate WARC files, which metadata name by path, by file name, or by a path of another machine."""

from __future__ import annotations

import os
from collections.abc import Sequence

from dedupindex.capture import Problem
from dedupindex.errors import BadSource
from dedupindex.object_store import is_remote, local, open_anywhere
from dedupindex.runtime.walk_directories import walk_links
from dedupindex.warc import wacz_members


class ContainerLocator:
    """Find WARC files below directories and addresses; results are cached."""

    def __init__(self, containers: Sequence[str], problems: list[Problem]) -> None:
        """Directories that cannot be listed are added to `problems`, once they are searched.

        Raises `BadSource` for a directory or file that is not there.
        """
        self._problems = problems
        self._containers = tuple(map(local, containers))
        for container in self._containers:
            if not is_remote(container) and not os.path.exists(container):
                raise BadSource(f"{container}, named as a place of WARC files, does not exist")
        self._known: dict[tuple[str, str], str] = {}
        self._listings: dict[str, dict[str, str]] = {}  # of each directory: paths by file name

    def find(self, name: str, origin: str) -> str:
        """Return the path or address of a WARC file, or "".

        `origin` is the directory of the metadata, which is searched last, or their WACZ, which is
        searched first. Remote files are not checked for existence.
        """
        key = name, origin
        if key not in self._known:
            self._known[key] = self._locate(name, origin)
        return self._known[key]

    def _locate(self, name: str, origin: str) -> str:
        inside = self._inside(origin)
        for path in (f"{origin}/{name}", f"{origin}/archive/{name}"):
            if path in inside.values():  # first, as two files may have the same name
                return path
        if inner := inside.get(os.path.basename(name)):
            return inner
        for container in self._containers:
            if found := self._at(container, name):
                return found
        if is_remote(name) or (os.path.isabs(name) and _is_there(name)):
            return name
        if is_remote(origin):
            return f"{origin}/{name}"
        return _below(origin, name) if origin else ""

    def _at(self, place: str, name: str) -> str:
        if place.endswith("/") and is_remote(place):
            is_path = name.startswith("/") or is_remote(name)
            return place + (_last(name) if is_path else name)
        if is_remote(place) or os.path.isfile(place):
            if _last(place) == _last(name):
                return place
            return self._inside(place).get(_last(name), "")
        if found := _below(place, name):
            return found
        if place not in self._listings:
            self._listings[place] = self._all(place)
        return self._listings[place].get(_last(name), "")

    def _all(self, place: str) -> dict[str, str]:
        """List all files below a directory, and those in WACZ files there, by file name."""
        paths = [
            os.path.join(directory, file)
            for directory, _, files in walk_links(place, self._unreadable)
            for file in sorted(files, reverse=True)
        ]
        inner = [self._inside(path) for path in paths if wacz_members.is_wacz(path)]
        found = {_last(path): path for path in paths}
        return {name: path for listing in inner for name, path in listing.items()} | found

    def _unreadable(self, error: OSError) -> None:
        what = f"unreadable: {error.strerror}, and WARC files are looked for in it"
        self._problems.append(Problem(str(error.filename), -1, what))

    def _inside(self, path: str) -> dict[str, str]:
        """List the WARC files in a WACZ by file name, alone and after that of the WACZ."""
        if not wacz_members.is_wacz(path):
            return {}
        if path not in self._listings:
            try:
                with open_anywhere(path) as file:
                    names = wacz_members.containers(path, file)
            except (*wacz_members.BROKEN, BadSource):
                names = []  # its captures will have no WARC file
            self._listings[path] = {
                **{os.path.basename(inner): inner for inner in reversed(names)},
                **{_last(inner): inner for inner in names},
            }
        return self._listings[path]


def _is_there(path: str) -> bool:
    return os.path.isfile(path) or wacz_members.within(path) is not None


def _below(directory: str, name: str) -> str:
    """Return a file of this path, or else of this name, in a directory."""
    for relative in (name.lstrip("/"), _last(name)):
        path = os.path.join(directory, relative)
        if _is_there(path):
            return os.path.abspath(path)
    return ""


def _last(name: str) -> str:
    """Return the file name of a path or address; inside a WACZ, from the name of the WACZ on."""
    outer, within, inner = name.rpartition(".wacz/archive/")
    if within:
        return _last(outer) + within + inner
    return name.partition("?")[0].rpartition("/")[2] if is_remote(name) else os.path.basename(name)
