"""Kinds of sources that other packages add, through the entry points ``dedupindex.sources``.

An entry point is named like its kind. It is a function ``(where, options)`` that yields an item for
each record or row of a file or address. Packages are imported only when their kind is asked for
(docs/sources.md).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from blake3 import blake3

from dedupindex.capture import Capture, Evidence, Item, Problem, Refusal, Revisit
from dedupindex.errors import BadSource, DedupError
from dedupindex.sources.conformance import NotConforming, check_item
from dedupindex.sources.source import GROWING, Source, SourceOptions

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "dedupindex.sources"
Iterate = Callable[[str, SourceOptions], Iterable[Item]]
"""What an entry point is: from a path or address, and how to read it, to items."""

_READ_BYTES = 1 << 20


def plugin_kinds() -> list[str]:
    """Return the kinds that installed packages add, sorted; imports none of them."""
    from importlib.metadata import entry_points  # slow

    return sorted({found.name for found in entry_points(group=GROUP)})


def load_plugin(kind: str) -> tuple[str, Iterate]:
    """Import the function of a kind; returns it and what messages call it. Raises `BadSource`."""
    from importlib.metadata import entry_points

    found = list(entry_points(group=GROUP, name=kind))
    if not found:
        raise BadSource(f"no package adds the kind of source {kind!r}")
    title = f"the kind of source {kind!r} ({' and '.join(sorted(map(_origin, found)))})"
    if len(found) > 1:
        raise BadSource(f"{title} is added by several packages; remove all but one")
    try:
        function = found[0].load()
    except (Exception, SystemExit) as error:  # whatever happens while foreign code is imported
        raise BadSource(f"{title} cannot be loaded: {_described(error)}") from error
    if not callable(function):
        raise BadSource(f"{title} is no function, but {function!r}")
    return title, function


def _origin(found: EntryPoint) -> str:
    package = f"package {found.dist.name} {found.dist.version}, " if found.dist else ""
    return f"{package}{found.value}"


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


class PluginSource(Source):
    """A file or address that a function of another package reads.

    Its captures are evidence of rows: nothing shows that their payloads were verified.
    """

    def __init__(self, kind: str, name: str, where: str, options: SourceOptions) -> None:
        self._title, self._iterate = load_plugin(kind)
        self._is_file = name == where
        super().__init__(name, os.path.getsize(where) if self._is_file else -1)
        self._where, self._options = where, options
        self._position = 0

    @property
    def position(self) -> int:
        return self._position

    def items(self) -> Iterator[Item]:
        """See `Source.items`; raises `BadSource` for whatever the function raises."""
        running = blake3()
        before = os.stat(self._where) if self._is_file else None
        if before:
            with open(self._where, "rb") as stream:
                while data := stream.read(_READ_BYTES):
                    running.update(data)
        for item in self._items():
            if not before:
                running.update(repr(item).encode("utf-8", "backslashreplace"))
                self._position += 1
            yield item
        after = os.stat(self._where) if self._is_file else None
        if before and after:
            self._position = self.size
            if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
                self.changed = True
                yield Problem(self.name, -1, GROWING)
        self.content_hash = running.hexdigest()

    def _items(self) -> Iterator[Item]:
        count = 0
        try:
            for item in self._iterate(self._where, self._options):
                count += 1
                check_item(item)
                yield self._as_row(item)
        except DedupError:
            raise
        except NotConforming as error:
            raise BadSource(f"{self._title}: item {count:,} of {self.name} {error}") from error
        except (Exception, SystemExit) as error:  # whatever happens in foreign code
            raise BadSource(
                f"{self._title} failed after {count:,} items of {self.name}: {_described(error)}"
            ) from error

    def _as_row(self, item: Item) -> Item:
        if isinstance(item, Capture):
            evidence = Evidence.NAMED if item.evidence == Evidence.NAMED else Evidence.ROW
            return item._replace(evidence=evidence, container=self._named(item.container))
        if isinstance(item, Revisit):
            return item._replace(capture=self._as_revisit(item.capture))
        if isinstance(item, Refusal) and item.itself is not None:
            return item._replace(itself=self._as_revisit(item.itself))
        if isinstance(item, Problem):
            return item._replace(container=self._named(item.container))
        return item

    def _as_revisit(self, itself: Capture) -> Capture:
        container = self._named(itself.container)
        return itself._replace(evidence=Evidence.REVISIT, container=container)

    def _named(self, container: str) -> str:
        """Return a container's name; that of the source itself without credentials."""
        return self.name if container in ("", self._where) else container
