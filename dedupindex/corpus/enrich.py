"""What is derived of a capture: each value once, whatever asks for it, and below what it is of.

A value has a dotted path that says how it came about: ``payload.string.html.title``. `Enrichment`
tells how values are made of another one; `Entry` is a capture with what was made of it so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from dedupindex.corpus.read_records import MissingRecord, Stored
from dedupindex.corpus.row import CorpusRow
from dedupindex.errors import BadInput

RECORD = "record"
"""The path of what is known without the record itself."""
ERROR = "error"
"""Where it stands what failed."""
KNOWN = (RECORD, ERROR)
ITSELF = "_"
"""The name under which a value is output when there are others below it."""


class RecordReader(Protocol):
    """What is asked of `records.Containers`."""

    def stored(self, capture: CorpusRow) -> Stored: ...


class Failed(Exception):
    """A value could not be made; the text begins with the name of what failed."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name}: {why}")
        self.name = name


@dataclass(frozen=True)
class Enrichment:
    """Makes values of another one.

    ``body(value, entry)`` gets the value at the path `of`, and gives that of the one field, or of
    several fields one each; None is "there is nothing of this kind". It may ask `entry` for
    anything else. What it raises is kept with the capture as its error.
    """

    name: str  # what a user calls it
    of: str  # a dotted path; empty for the record itself
    fields: tuple[str, ...]
    body: Callable[[Any, Entry], Any]
    step: bool = False  # what it makes is for others, and never output

    @property
    def paths(self) -> tuple[str, ...]:
        """Where its values stand."""
        return tuple(f"{self.of}.{field}" if self.of else field for field in self.fields)


Makers = Mapping[str, Enrichment]
"""By the path that each makes."""


class Entry:
    """A capture, and the values that were made of it."""

    def __init__(self, capture: CorpusRow, makers: Makers, reader: RecordReader) -> None:
        self.capture = capture
        self.errors: dict[str, str] = {}  # by what failed
        self._makers, self._reader = makers, reader
        self._values: dict[str, Any] = {}
        self._shown: list[str] = []

    @property
    def url(self) -> str:
        return self.capture.url

    def stored(self) -> Stored:
        """What its record says; raises `records.Missing`."""
        return self._reader.stored(self.capture)

    def value(self, path: str) -> Any:
        """The value at a path, made now if it was not; None if there is none. Raises `Failed`."""
        if path == RECORD:
            return self.capture.as_json()
        if path not in self._values:
            self._make(self._makers[path])
        found = self._values[path]
        if isinstance(found, Failed):
            raise found
        return found

    def _make(self, enrichment: Enrichment) -> None:
        values: Iterable[Any]
        try:
            of = self.value(enrichment.of) if enrichment.of else self
            made = None if of is None else enrichment.body(of, self)
            if len(enrichment.fields) == 1:
                values = (made,)
            else:
                values = (None,) * len(enrichment.fields) if made is None else made
            self._values.update(zip(enrichment.paths, values, strict=True))
        except Failed as error:  # of what it is made of
            self._values.update(dict.fromkeys(enrichment.paths, error))
        except MissingRecord as error:
            self._fail(enrichment, str(error))
        except (Exception, SystemExit) as error:  # of somebody's function, or of hostile input
            self._fail(enrichment, f"{type(error).__name__}: {error}")

    def _fail(self, enrichment: Enrichment, why: str) -> None:
        failed = Failed(enrichment.name, why)
        self._values.update(dict.fromkeys(enrichment.paths, failed))

    def show(self, enrichment: Enrichment) -> None:
        """Make values that are to be output; what fails becomes an error of this capture."""
        for path in enrichment.paths:
            try:
                self.value(path)
            except Failed as error:
                self.fail(error)
            else:
                self._shown.append(path)

    def fail(self, error: Failed) -> None:
        self.errors.setdefault(error.name, str(error))

    def check(self) -> None:
        """Let values that JSON cannot have be errors: too deep ones, and circles."""
        for path, value in self.derived().items():
            try:
                orjson.dumps(_plain(value))
            except (TypeError, ValueError, RecursionError) as error:
                self.fail(Failed(self._makers[path].name, f"{path} can be no JSON: {error}"))
                self._shown.remove(path)

    def close(self) -> None:
        """Let go of all values, here and now.

        What failed holds on to all that it was made of in a circle, and what Resiliparse parsed
        must not be left to the collector, which may run in another thread.
        """
        self._values.clear()

    def derived(self) -> dict[str, Any]:
        """Every value that is output, by its path."""
        found = {path: self._values[path] for path in self._shown}
        return {path: value for path, value in found.items() if value is not None}


def as_json(entry: Entry) -> dict[str, Any]:
    """A capture as it is output: values nested below what they were made of.

    Where that is output, too, it stands under ``_``.
    """
    made: dict[str, Any] = {RECORD: entry.capture.as_json()}
    if entry.errors:
        made[ERROR] = "; ".join(entry.errors.values())
    nodes: dict[str, Any] = {}
    for path, value in entry.derived().items():
        node = nodes
        for name in path.split("."):
            node = node.setdefault(name, {})
        node[_VALUE] = _plain(value)
    return {**made, **{name: _folded(node) for name, node in nodes.items()}}


def flat(entry: Entry) -> dict[str, Any]:
    """A capture as a row: what is known of it, and every value by its path."""
    made = {
        name: None if value == "-" else value for name, value in entry.capture.as_json().items()
    }
    made[ERROR] = "; ".join(entry.errors.values()) or None
    return {**made, **{path: _plain(value) for path, value in entry.derived().items()}}


_VALUE = ""  # the key of a value among those of its children, whose names are not empty


def _folded(node: dict[Any, Any]) -> Any:
    children = {name: _folded(child) for name, child in node.items() if name != _VALUE}
    if _VALUE not in node:
        return children
    return {ITSELF: node[_VALUE], **children} if children else node[_VALUE]


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, bytes | bytearray | memoryview):
        return f"bytes(length: {len(value)})"
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()  # JSON has no lone surrogates
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if -(1 << 63) <= value < 1 << 64 else str(value)
    if isinstance(value, Mapping):
        return {str(_plain(key)): _plain(one) for key, one in value.items()}
    if isinstance(value, Iterable):
        return [_plain(one) for one in value]
    return _plain(str(value))


def known(makers: Makers, path: str) -> None:
    """Raise `BadInput` if nothing makes the value at a path."""
    if path != RECORD and path not in makers:
        there = ", ".join(path for path, maker in makers.items() if not maker.step)
        raise BadInput(f"there is nothing at {path!r}; there are {RECORD}, {there}")
