"""CDX files: one line per capture, columns as in the header line (see `cdx_columns`).

Concatenated files have several headers, each of which applies to the lines below it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import compress

from dedupindex.capture import Item, Problem, Refusal, Rows
from dedupindex.sources.cdx_columns import (
    NO_HEADER,
    Layout,
    finder,
    guess,
    header,
    lacking,
    layout_of,
)
from dedupindex.sources.line_source import TextSource
from dedupindex.sources.rows import Row, RowFields, RowReader, other_method

_CONTAINER = RowFields._fields.index("container")


class CdxSource(TextSource):
    """Captures of a CDX file."""

    def _set_up(self) -> None:
        self._rows = RowReader(self.name, self.options.digest_algorithm)
        self._layout: Layout | None = None
        self._headed = False  # a header was read, so layouts are not guessed
        self._find: Callable[[bytes], list[Row]] | None = None

    def batches(self) -> Iterator[Rows | list[Item]]:
        """Yield the plain rows of each block as columns, then the items of its other lines."""
        for number, block in self._blocks():
            block = block if block.endswith(b"\n") else block + b"\n"
            rows, others = self._split(block)
            if rows is not None:
                yield rows
            if others:
                lines = block.split(b"\n")
                yield [item for at in others for item in self._parse_line(number + at, lines[at])]
        yield list(self._after())

    def _parse(self, number: int, block: bytes) -> Iterator[Item]:
        rows, indexes = self._split(block)
        plain = iter(()) if rows is None else rows.captures()
        others = set(indexes)
        for at, line in enumerate(block.split(b"\n")[:-1]):
            if at in others:
                yield from self._parse_line(number + at, line)
            else:
                yield next(plain)

    def _split(self, block: bytes) -> tuple[Rows | None, Sequence[int]]:
        """Return the plain rows of a block, and the indexes of all other lines.

        Anything unusual about a line (a revisit, a new media type or status, a digest in hex, a
        size of "-") is an empty row, a value that is not cached, or a `ValueError`. Lines below a
        header of another layout are not plain.
        """
        rows = self._find(block) if self._find and b"\r" not in block else []
        count = block.count(b"\n")
        if len(rows) != count:
            return None, range(count)
        self._add_containers({row[_CONTAINER] for row in rows})
        try:
            return self._rows.columns(zip(*rows, strict=True)), ()
        except (KeyError, ValueError):
            plain = self._rows.plain(rows)
        if b"CDX" in block:
            lines = block.split(b"\n")
            others = (at for at, good in enumerate(plain) if not good)
            end = next((at for at in others if self._changes_layout(lines[at])), count)
            plain[end:] = [False] * (count - end)
        chosen = list(compress(rows, plain))
        indexes = [at for at, good in enumerate(plain) if not good]
        return self._rows.columns(zip(*chosen, strict=True)) if chosen else None, indexes

    def _changes_layout(self, line: bytes) -> bool:
        stated = header(line)
        return stated is not None and layout_of(*stated) != self._layout

    def _add_containers(self, names: set[bytes]) -> None:
        """Cache valid names of containers."""
        values, layout = self._rows.values, self._layout
        for name in names - values.containers.keys():
            if layout and name != b"-" and layout.delimiter not in name:
                values.container(name)

    def _parse_line(self, number: int, line: bytes) -> Iterator[Item]:
        """Yield the items of any line."""
        if not line.strip():
            return
        stated = header(line)
        if stated is not None:
            self._headed = True
            self._use(layout_of(*stated))
            if self._layout is None:
                why = f"line {number}: this header names no {lacking(stated[1])}"
                if set(stated[1]) == set("aku"):
                    why += ", as a list for wget (bin/export --wget)"
                yield Problem(self.name, number, f"{why}, so the lines below it cannot be used")
            return
        if line.startswith(b"@alias "):
            yield Refusal("alias")
            return
        if self._layout is None and not self._headed:
            self._use(guess(line))
        if self._layout is None:
            if self._headed:
                yield Refusal("no-columns")
            else:
                yield from self._bad_line(number, NO_HEADER, line)
            return
        yield from self._parse_row(number, line, self._layout)

    def _parse_row(self, number: int, line: bytes, layout: Layout) -> Iterator[Item]:
        columns = line.split(layout.delimiter)
        width = len(layout.letters)
        if len(columns) != width:
            why = f"{len(columns)} columns instead of {width} (has the URL a space in it?)"
            yield from self._bad_line(number, why, line)
        elif b"\r" in line:
            yield from self._bad_line(number, "a carriage return inside", line)
        elif other_method(line):
            yield Refusal("method")
        else:
            try:
                yield self._rows.item(layout.fields(columns))
            except ValueError as error:
                yield from self._bad_line(number, str(error), line)

    def _use(self, layout: Layout | None) -> None:
        """Parse the lines below with another layout."""
        if layout == self._layout:
            return
        self._layout = layout
        self._find = None
        # a new cache, because a cached name may contain the delimiter of this layout
        self._rows = RowReader(self.name, self.options.digest_algorithm)
        if layout is not None and self.options.digest_algorithm == "sha1":
            self._find = finder(layout)
