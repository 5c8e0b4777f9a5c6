"""What names of files mean: whether a path, a last name and a name in a WACZ are the same file."""

from __future__ import annotations

from collections.abc import Iterator

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
