"""Compare the names of containers: whether a path, a bare file name and a name in a WACZ match."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator

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


def is_one_of(spelled: Collection[str], name: str) -> bool:
    """Return whether `spellings` name the container `name`, also one read through a link."""
    if any(is_container(text, name) for text in spelled):
        return True
    last = last_name(name)
    if not name.startswith("/") or not any(text.endswith(f"/{last}") for text in spelled):
        return False  # no need to look at the disk for a link
    return os.path.realpath(name) in spelled


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
