"""Values of captures without the captures: one a row, or counted by group.

The functions run where records are read, in the processes of `extract`; rows come in the order of
captures. What is distinct and what is counted is held in temporary databases on disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from warnings import warn

import orjson

from dedupindex.corpus import output
from dedupindex.corpus.enrich import EnrichmentFailed, Entry, plain
from dedupindex.corpus.extract import first_of_each
from dedupindex.corpus.extract_report import CorpusReport
from dedupindex.corpus.lineage import as_first_line
from dedupindex.corpus.select import VERSIONS, VOCABULARY
from dedupindex.errors import BadInput
from dedupindex.expression.evaluate import hostname
from dedupindex.expression.tree import OperandKind
from dedupindex.runtime.bounded_counter import Sums

if TYPE_CHECKING:
    from dedupindex.corpus.archive import Corpus

_PERIODS = {"year": 4, "month": 6}  # by name, the digits of a timestamp
METADATA = (*(name for name in VOCABULARY.attributes if name != VERSIONS), *_PERIODS)
"""The names of metadata by which captures are grouped."""
NUMBERS = tuple(name for name, kind in VOCABULARY.attributes.items() if kind == OperandKind.NUMBER)
"""Those whose values are added up."""
_MAX_AMOUNT = 1 << 40  # so that eight million of them fit a sum


class _Operation(NamedTuple):
    """A function of a value; a flat one returns several values, a test keeps or drops one."""

    kind: str  # map, flat_map or filter
    function: Callable[[Any], Any]


@dataclass(frozen=True)
class Values:
    """The values at a path, one a row; nothing is read until they are counted or saved.

    A capture whose value cannot be computed, or whose function fails, has no row, and is counted
    in the report as an error. Every operation returns new values.
    """

    corpus: Corpus
    path: str
    steps: tuple[_Operation, ...] = ()
    unique: bool = False
    written: tuple[str, ...] = ()  # the steps as they are written in Python, for the lineage

    def map(self, function: Callable[[Any], Any]) -> Values:
        """Return ``function(value)`` of each value; None has no row."""
        return self._with("map", function)

    def flat_map(self, function: Callable[[Any], Iterable[Any]]) -> Values:
        """Return each item of ``function(value)``."""
        return self._with("flat_map", function)

    def filter(self, test: Callable[[Any], object] = bool) -> Values:
        """Keep the values that pass a test."""
        return self._with("filter", test)

    def distinct(self) -> Values:
        """Keep each value once; values are equal if their JSON is."""
        return replace(self, unique=True, written=(*self.written, "distinct()"))

    def __iter__(self) -> Generator[Any, None, None]:
        """Yield the values as `save_as_json` writes them; a Python warning tells of failures."""
        return _loaded(self.lines)

    def count(self) -> int:
        return sum(1 for _ in self)

    def peek(self, count: int = 1) -> str:
        """Return the first values as indented JSON."""
        with closing(iter(self)) as values:
            return "\n".join(
                orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
                for value in islice(values, count)
            )

    def save_as_json(self, path: str | Path) -> CorpusReport:
        """Write a line of JSON for each value, as `Corpus.save_as_json` does."""
        return save_lines(self.corpus, self.lines, self.written, Path(path))

    def lines(self, report: CorpusReport) -> Generator[bytes, None, None]:
        """Yield each value as a line of JSON, without its end."""
        render = partial(_rendered, self.path, self.steps)
        with closing(self.corpus.kept(report, render, (), (self.path,))) as captures:
            found = (line for kept in captures for line in kept.rendered.split(b"\n") if line)
            yield from first_of_each(found, lambda line: line) if self.unique else found

    def _written_as(self, other: Values) -> Values:
        return replace(self, written=other.written)

    def _with(self, kind: str, function: Callable[[Any], Any]) -> Values:
        if self.unique:
            raise BadInput("distinct() comes last: map and filter values before it")
        name = getattr(function, "__qualname__", "a function")
        written = (*self.written, f"{kind}({name})")
        return replace(self, steps=(*self.steps, _Operation(kind, function)), written=written)


@dataclass(frozen=True)
class Groups:
    """The number of captures, and sums of their values, by group.

    A row has the value of each name in `by`, ``count`` and ``sum(NAME)`` for each name in `sums`.
    """

    corpus: Corpus
    by: tuple[str, ...]
    sums: tuple[str, ...] = ()
    written: tuple[str, ...] = ()

    def __iter__(self) -> Generator[dict[str, Any], None, None]:
        """Yield the groups as `save_as_json` writes them; a Python warning tells of failures."""
        return _loaded(self.lines)

    def save_as_json(self, path: str | Path) -> CorpusReport:
        """Write a line of JSON for each group, in the order of the groups' JSON."""
        return save_lines(self.corpus, self.lines, self.written, Path(path))

    def lines(self, report: CorpusReport) -> Generator[bytes, None, None]:
        """Yield each group as a line of JSON, without its end. All captures are read first."""
        sums = Sums(1 + len(self.sums))
        render = partial(_group_of, self.by, self.sums)
        needs = tuple(name for name in (*self.by, *self.sums) if name not in METADATA)
        with closing(self.corpus.kept(report, render, (), needs)) as captures:
            for kept in captures:
                if kept.rendered:
                    key, amounts = kept.rendered.rsplit(b"\n", 1)
                    sums.add(key, 1, *orjson.loads(amounts))
        report.entries = 0
        for key, (count, *totals) in sums.items():
            report.entries += 1
            names = (f"sum({name})" for name in self.sums)
            row = dict(zip(self.by, orjson.loads(key), strict=True))
            yield orjson.dumps(row | {"count": count} | dict(zip(names, totals, strict=True)))


def _loaded(
    lines: Callable[[CorpusReport], Generator[bytes, None, None]],
) -> Generator[Any, None, None]:
    report = CorpusReport()
    with closing(lines(report)) as found:
        for line in found:
            yield orjson.loads(line)
    if report.problems or report.refused:
        warn(report.source_problems(), stacklevel=3)
    for name, count in sorted(report.errors.items()):
        warn(f"{name} failed for {count:,} captures, which are left out", stacklevel=3)


def save_lines(
    corpus: Corpus,
    lines: Callable[[CorpusReport], Generator[bytes, None, None]],
    written: tuple[str, ...],
    path: Path,
) -> CorpusReport:
    """Write lines to a file, after the lineage if the settings say so."""
    report, begin = CorpusReport(), time.monotonic()
    output.check_outputs([path], corpus.read_files())
    first = as_first_line(replace(corpus, written=written).lineage())
    with closing(lines(report)) as found:
        output.write_lines(found, path, first=first if corpus.settings.say_how else b"")
    report.seconds = time.monotonic() - begin
    report.bytes = path.stat().st_size
    return report


def items_of(value: Any) -> Iterable[Any]:
    """Return the items of a list; another value is the only item."""
    return value if isinstance(value, list | tuple | set | frozenset) else (value,)


def named_value(entry: Entry, name: str) -> Any:
    """Return a value by its path, or by its name in `METADATA`; raises `EnrichmentFailed`."""
    capture = entry.capture
    if name not in METADATA:
        return entry.value(name)
    if digits := _PERIODS.get(name):
        period = capture.timestamp[:digits]
        return period if digits == _PERIODS["year"] else f"{period[:4]}-{period[4:]}"
    if name == "hostname":
        return hostname(capture.url)
    return capture.key if name == "surt" else getattr(capture, name)


def _rendered(path: str, steps: tuple[_Operation, ...], entry: Entry) -> bytes:
    """Render the values of a capture as lines of JSON."""
    try:
        value = entry.value(path)
        values = [] if value is None else [value]
        for kind, function in steps:
            values = _applied(kind, function, values)
        return b"\n".join(orjson.dumps(plain(value)) for value in values)
    except EnrichmentFailed as error:
        entry.fail(error)
    except (Exception, SystemExit) as error:  # of a user's function, or of what it returned
        entry.fail(EnrichmentFailed("values", f"{type(error).__name__}: {error}"))
    return b""


def _applied(kind: str, function: Callable[[Any], Any], values: list[Any]) -> list[Any]:
    if kind == "filter":
        return [value for value in values if function(value)]
    made = [result for value in values if (result := function(value)) is not None]
    return [item for items in made for item in items] if kind == "flat_map" else made


def _group_of(by: tuple[str, ...], sums: tuple[str, ...], entry: Entry) -> bytes:
    """Render the group of a capture, and in a second line what to add to its sums."""
    try:
        key = orjson.dumps([plain(named_value(entry, name)) for name in by])
        amounts = [_amount(entry, name) for name in sums]
    except EnrichmentFailed as error:
        entry.fail(error)
        return b""
    return key + b"\n" + orjson.dumps(amounts)


def _amount(entry: Entry, name: str) -> int:
    value = named_value(entry, name)
    if value is None:
        return 0
    if not isinstance(value, int) or abs(value) > _MAX_AMOUNT:
        what = f"{name} is no whole number up to 2 to the 40th: {str(value)[:100]}"
        raise EnrichmentFailed("sum", what)
    return int(value)
