"""Compare the names of containers: whether a path, a bare file name and a name in a WACZ match."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from dedupindex.cache import Cache

_NONE: frozenset[int] = frozenset()
_RESOLVED = 64 << 20  # bytes of paths and their targets that are kept
_IN_WACZ = "/archive/"  # between the name of a WACZ and that of a file in it


def is_container(text: str, name: str) -> bool:
    """Return whether `text` may name the container `name`.

    CDX files and crawl logs name WARCs without their directory, so a path also matches its bare
    file name, and a bare file name matches that file in any directory.
    """
    if text == name:
        return True
    return last_name(text) == name if "/" in text else text == last_name(name)


def is_whole(name: str) -> bool:
    """Return whether a name is an absolute path or an address."""
    return name.startswith("/") or "://" in name


def last_name(name: str) -> str:
    """Return the name of a container without its directory, which may be one of a store."""
    return name.rpartition("/")[2]


def spellings(text: str) -> tuple[str, ...]:
    """Return the names that a path typed by a user may have: as typed, absolute, links resolved."""
    if "/" not in text:
        return (text,)
    return tuple(dict.fromkeys((text, os.path.abspath(text), os.path.realpath(text))))


def is_too_wide(text: str) -> bool:
    """Return whether a directory that a user typed is the root, or a whole store.

    So `"$DIR/"` does not mean all files there are if the variable is not set.
    """
    if not text.endswith("/"):
        return False
    scheme, mark, rest = text.partition("://")
    if mark and scheme:
        return not rest.strip("/")
    return not all(spelled.rstrip("/") for spelled in spellings(text))


class ContainerNames:
    """Names of containers as a user typed them; one that ends with / means all files below it.

    `note_below` lets a directory mean rows with only the last names of the files in it as well.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._whole = defaultdict[str, set[int]](set)  # by all spellings
        self._last = defaultdict[str, set[int]](set)  # by their last names, those with directories
        self._below = defaultdict[str, set[int]](set)  # directories, without the slash
        self._local = any("/" in text and "://" not in text for text in texts)
        self._resolved = Cache[str, str](_RESOLVED)  # a purge asks for each capture
        for at, text in enumerate(texts):
            for spelled in spellings(text):
                if text.endswith("/"):
                    self._below[spelled.rstrip("/")].add(at)
                    continue
                self._whole[spelled].add(at)
                if "/" in spelled:
                    self._last[last_name(spelled)].add(at)

    def meaning(self, name: str) -> set[int]:
        """Return the positions of the texts that mean a container, also one read through a link."""
        last = last_name(name)
        found = self._exact(name)
        found |= self._last.get(name, _NONE) | self._whole.get(last, _NONE)
        if self._is_path(name) and (self._below or last in self._last):
            found |= self._exact(self._real(name))
        return found

    def note_below(self, names: Iterable[str]) -> None:
        """Take the last names of containers that are below one of the directories."""
        for name in names if self._below else ():
            whole = {name, self._real(name)} if self._is_path(name) else {name}
            if found := set[int]().union(*map(self._above, whole)):
                self._last[last_name(name)] |= found

    def _real(self, name: str) -> str:
        return self._resolved.get(name) or self._resolved.keep(name, os.path.realpath(name))

    def _is_path(self, name: str) -> bool:
        """Return whether links in a name matter: no link leads from a path to a store."""
        return self._local and name.startswith("/")

    def _exact(self, name: str) -> set[int]:
        return self._above(name) | self._whole.get(name, _NONE)

    def _above(self, name: str) -> set[int]:
        """Return the positions of the directories that a file is in or below, but for the root."""
        found, rest = set[int](), name if self._below else ""
        while rest := rest.rpartition("/")[0]:
            found |= self._below.get(rest, _NONE)
        return found


def row_matches(row: str, name: str) -> bool:
    """Return whether a row that names the container `row`, or none, may be of a file `name`.

    Crawlers write relative paths of their own, so of these only the last name counts. An absolute
    path is of that file alone: there may be another one in its directory's place.
    """
    return not row or any(
        is_container(file, row) or (not is_whole(row) and last_name(row) == last_name(file))
        for file in files_of(name)
    )


def row_is_doubtful(row: str, name: str) -> bool:
    """Return whether a row that names the container `row`, or none, is in doubt if `name` lacks it.

    Only the last name counts, as files move from a crawler's directory to the archive. A copy in
    another directory is believed again when its records are read.
    """
    return not row or any(last_name(row) == last_name(file) for file in files_of(name))


def note_file(names: list[str], name: str) -> int:
    """Return the position of a file among the `names` of those that hold a capture; adds a new one.

    One that a crawler or a CDX file names without its directory, or not at all, is that of the
    record that was read: that one's name is kept, a whole path.
    """
    for at, noted in enumerate(names):
        if row_matches(noted, name) or row_matches(name, noted):
            names[at] = max(noted, name, key=lambda one: (is_whole(one), len(one)))
            return at
    names.append(name)
    return len(names) - 1


def files_of(name: str) -> Iterator[str]:
    """Yield a container's name, then the names of the WACZ files that it may be in.

    A plain directory may be called ``archive`` too; only a registered file is a WACZ.
    """
    yield name
    at = name.rfind(_IN_WACZ)
    while at > 0:
        yield name[:at]
        at = name.rfind(_IN_WACZ, 0, at + 1)
