"""CDX files: one line per capture, columns as the header line says (see `cdxlayout`).

Concatenated files repeat headers in the middle, and each rules the lines below it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from operator import itemgetter

from dedupindex.capture import Item, Problem, Refusal, Rows
from dedupindex.digest import FROM_BASE32
from dedupindex.sources.cdx_columns import NO_HEADER, Layout, Row, guess, header, layout_of
from dedupindex.sources.line_source import TextSource
from dedupindex.sources.rows import BARE, RowReader, other_method

_PRINTABLE = bytes(range(0x20, 0x7F))
_BASE32 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_DAY = itemgetter(slice(8))


class CdxSource(TextSource):
    """Captures of a CDX file."""

    def _set_up(self) -> None:
        self._rows = RowReader(self.name, self.options.digest_algorithm)
        self._layout: Layout | None = None
        self._headed = False  # and so knows better than a guess
        self._find: Callable[[bytes], list[Row]] | None = None

    def in_bulk(self) -> Iterator[Rows | list[Item]]:
        """All that `items` gives: the plain rows of a block at once, then its other lines."""
        for number, block in self._blocks():
            block = block if block.endswith(b"\n") else block + b"\n"
            rows, odd = self._take_apart(block)
            if rows is not None:
                yield rows
            if odd:
                lines = block.split(b"\n")
                yield [item for at in odd for item in self._careful(number + at, lines[at])]
        yield list(self._after())

    def _parse(self, number: int, block: bytes) -> Iterator[Item]:
        rows, odd = self._take_apart(block)
        plain = iter(()) if rows is None else rows.captures()
        others = set(odd)
        for at, line in enumerate(block.split(b"\n")[:-1]):
            if at in others:
                yield from self._careful(number + at, line)
            else:
                yield next(plain)

    def _take_apart(self, block: bytes) -> tuple[Rows | None, Sequence[int]]:
        """The plain rows of a block, and the places of all other lines, which go to `_careful`.

        Whatever is unusual about a line (a revisit, a mime or status not seen before, a digest
        in hex, a size of "-") shows as an empty row, a value that is not in memory or a
        `ValueError`. What stands below a header of another layout is not taken for plain.
        """
        rows = self._find(block) if self._find and b"\r" not in block else []
        count = block.count(b"\n")
        if len(rows) != count:
            return None, range(count)
        try:
            return self._columns(rows), ()
        except (KeyError, ValueError):
            memory = self._rows.memory
        plain = [
            url != b""
            and not url.translate(None, _PRINTABLE)
            and date[:8] in memory.days
            and mime in memory.mimes
            and status in memory.statuses
            and not digest.translate(None, _BASE32)
            and container in memory.containers
            for url, date, mime, status, digest, _, _, container, _ in rows
        ]
        if b"CDX" in block:
            lines = block.split(b"\n")
            turns = (at for at, good in enumerate(plain) if not good and self._turns(lines[at]))
            end = next(turns, count)
            plain[end:] = [False] * (count - end)
        some = list(compress(rows, plain))
        odd = [at for at, good in enumerate(plain) if not good]
        return self._columns(some) if some else None, odd

    def _turns(self, line: bytes) -> bool:
        """Whether a line changes how those below it are to be read."""
        stated = header(line)
        return stated is not None and layout_of(*stated) != self._layout

    def _columns(self, rows: list[Row]) -> Rows:
        """Plain rows as columns; `KeyError` or `ValueError` if there is another among them."""
        memory, count = self._rows.memory, len(rows)
        (urls, dates, mimes, statuses, digests, sizes, offsets, containers,
         record_ids) = zip(*rows, strict=True)  # fmt: skip
        learnt = memory.learn_days(set(map(_DAY, dates)))
        learnt &= self._learn_containers(set(containers))
        if not learnt or b"".join(urls).translate(None, _PRINTABLE):
            raise ValueError("not plain")
        kinds = zip(
            map(memory.statuses.__getitem__, statuses),
            map(memory.mimes.__getitem__, mimes),
            strict=True,
        )
        raw = int(b"".join(digests).translate(FROM_BASE32), 32).to_bytes(20 * count)
        return Rows(
            BARE,
            [raw[at : at + 20] for at in range(0, len(raw), 20)],
            urls,
            dates,
            list(kinds),
            list(map(int, sizes)) if sizes[0] else [-1] * count,
            list(map(int, offsets)) if offsets[0] else [-1] * count,
            list(map(memory.containers.__getitem__, containers)),
            record_ids,
        )

    def _learn_containers(self, names: set[bytes]) -> bool:
        """Remember those of `names` that are names; whether all are."""
        memory, layout = self._rows.memory, self._layout
        for name in names - memory.containers.keys():
            if layout and name != b"-" and layout.delimiter not in name:
                memory.container(name)
        return memory.containers.keys() >= names

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
        if layout == self._layout:
            return
        self._layout = layout
        self._find = None
        # Afresh, for a name in its memory may hold the delimiter of this layout.
        self._rows = RowReader(self.name, self.options.digest_algorithm)
        if layout is not None and self.options.digest_algorithm == "sha1":
            self._find = layout.finder()
