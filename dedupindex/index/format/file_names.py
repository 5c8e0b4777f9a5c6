"""What names of files mean: whether a path, a last name and a name in a WACZ are the same file."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator

_IN_WACZ = "/archive/"  # what stands between a WACZ and a file in it


def is_container(text: str, name: str) -> bool:
    """Whether `text` means a container.

    Rows of CDX files and crawl logs know WARCs by their last name alone, so a path means that too;
    and a name without a path means files of that name wherever they lie.
    """
    if text == name:
        return True
    last = text.rpartition("/")[2]
    return last == name if "/" in text else last == name.rpartition("/")[2]


def spellings(text: str) -> tuple[str, ...]:
    """What a path that somebody types means: as `bin/index` makes it, and with links followed.

    The text itself is one, too: rows may name files by relative paths.
    """
    if "/" not in text:
        return (text,)
    return tuple(dict.fromkeys((text, os.path.abspath(text), os.path.realpath(text))))


def is_one_of(spelled: Collection[str], name: str) -> bool:
    """Whether `spellings` mean a container; one that was read by way of a link, too."""
    if any(is_container(text, name) for text in spelled):
        return True
    return _linked(spelled, name) and os.path.realpath(name) in spelled


def _linked(spelled: Collection[str], name: str) -> bool:
    """Whether it is worth looking at the disk for a link."""
    last = name.rpartition("/")[2]
    return name.startswith("/") and any(text.endswith(f"/{last}") for text in spelled)


def tells_of(row: str, name: str) -> bool:
    """Whether a row of the container `row`, "" for none, may tell of a capture in `name`."""
    return not row or any(is_container(file, row) for file in files_of(name))


def files_of(name: str) -> Iterator[str]:
    """A container's name, then those of the files that it may be in: of a WARC its WACZ.

    A directory may be called ``archive`` too: only a file that is registered is one.
    """
    yield name
    at = name.rfind(_IN_WACZ)
    while at > 0:
        yield name[:at]
        at = name.rfind(_IN_WACZ, 0, at + 1)
