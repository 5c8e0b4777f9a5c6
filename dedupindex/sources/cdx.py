"""CDX files: one line per capture, columns as the header line says (see `cdxlayout`).

Concatenated files repeat headers in the middle, and each rules the lines below it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import length_hint

from dedupindex.capture import Capture, Covers, Evidence, Item, Problem, Refusal
from dedupindex.digest import FROM_BASE32, Digest
from dedupindex.sources.cdxlayout import NO_HEADER, Layout, Row, guess, header, layout_of
from dedupindex.sources.rows import BARE, RowReader, other_method, strip
from dedupindex.sources.text import TextSource


class CdxSource(TextSource):
    """Captures of a CDX file."""

    def _set_up(self) -> None:
        self._rows = RowReader(self.name, self.options.digest_algorithm)
        self._layout: Layout | None = None
        self._headed = False  # and so knows better than a guess
        self._find: Callable[[bytes], list[Row]] | None = None

    def _parse(self, number: int, block: bytes) -> Iterator[Item]:
        """The plain majority of lines here, by lookups alone; all others by `_careful`.

        Whatever is unusual about a line (a revisit, a mime or day not seen before, a digest in
        hex, a size of "-") shows as an empty row, a missing key or a `ValueError`.
        """
        rows = self._find(block) if self._find and b"\r" not in block else []
        if len(rows) != block.count(b"\n"):
            yield from self._all_carefully(number, block.split(b"\n"))
            return
        memory = self._rows.memory
        days, minutes, seconds = memory.days, memory.minutes, memory.seconds
        statuses, mimes, containers = memory.statuses, memory.mimes, memory.containers
        new, row, unknown = tuple.__new__, Evidence.ROW, Covers.UNKNOWN
        find, lines = self._find, None
        left = iter(rows)
        for (url, day, minute, second, mime, status, digest, size, offset, container,
             record_id) in left:  # fmt: skip
            try:
                yield new(Capture, (
                    new(Digest, ("sha1", int(digest.translate(FROM_BASE32), 32).to_bytes(20))),
                    BARE, url,
                    days[day] + minutes[minute] + seconds[second], row, unknown, statuses[status],
                    mimes[mime], int(size) if size else -1, size != b"",
                    record_id and strip(record_id), containers[container],
                    int(offset) if offset else -1, b"", b"", (),
                ))  # fmt: skip
            except (KeyError, ValueError):
                lines = lines or block.split(b"\n")
                index = len(rows) - length_hint(left) - 1
                yield from self._careful(number + index, lines[index])
                if self._find is not find:
                    index += 1
                    yield from self._all_carefully(number + index, lines[index:])
                    return

    def _all_carefully(self, number: int, lines: list[bytes]) -> Iterator[Item]:
        for line_number, line in enumerate(lines, number):
            yield from self._careful(line_number, line)

    def _careful(self, number: int, line: bytes) -> Iterator[Item]:
        """The items of any line at all."""
        if not line.strip():
            return
        stated = header(line)
        if stated is not None:
            yield from self._obey(number, *stated)
            return
        if line.startswith(b"@alias "):
            yield Refusal("alias")
            return
        if self._layout is None and not self._headed:
            self._follow(guess(line))
        if self._layout is None:
            if self._headed:
                yield Refusal("no-columns")
            else:
                yield from self._bad_line(number, NO_HEADER, line)
            return
        yield from self._read(number, line, self._layout)

    def _read(self, number: int, line: bytes, layout: Layout) -> Iterator[Item]:
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

    def _obey(self, number: int, delimiter: bytes, letters: list[str]) -> Iterator[Item]:
        """Follow a header from here on."""
        self._headed = True
        self._follow(layout_of(delimiter, letters))
        if self._layout is None:
            why = f"line {number}: this header names no URL (a), date (b) or digest (k)"
            yield Problem(self.name, number, f"{why}, so the lines below it say nothing to us")

    def _follow(self, layout: Layout | None) -> None:
        self._layout = layout
        self._find = None
        if layout is not None and self.options.digest_algorithm == "sha1":
            self._find = layout.finder()
