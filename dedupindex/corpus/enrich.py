"""Values derived from a capture, each computed once, on demand.

The dotted path of a value says how it is derived: ``payload.string.html.title``. An `Enrichment`
computes values from another one; an `Entry` is a capture with the values computed so far.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import entry_points
from typing import Any, Protocol

import orjson

from dedupindex.corpus import html_text
from dedupindex.corpus.read_records import MissingRecord, RecordParts
from dedupindex.corpus.row import CorpusRow
from dedupindex.errors import BadInput, to_install

RECORD, ERROR = KNOWN = ("record", "error")
"""The keys of the metadata and of error messages in the output."""
ITSELF = "_"
"""The key of a value in the output if there are others below it."""


class EnrichmentFailed(Exception):
    """A value could not be computed; the message begins with the name of the enrichment."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name}: {why}")
        self.name = name


@dataclass(frozen=True)
class Enrichment:
    """Computes values from another one.

    ``body(value, entry)`` takes the value at the path `of` and returns the value of the one field,
    or a sequence with one for each of several fields; None means that there is none. It may take
    other values from `entry`. An exception becomes the error of the capture.
    """

    name: str  # for users
    of: str  # a dotted path; empty for the record itself
    fields: tuple[str, ...]
    body: Callable[[Any, Entry], Any]
    step: bool = False  # an intermediate value, which is never output

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of its values."""
        return tuple(f"{self.of}.{field}" if self.of else field for field in self.fields)


class PartsReader(Protocol):
    """Reads the records of captures: from WARC files, or from a replay."""

    @property
    def max_record(self) -> int:
        """The most bytes of a record in memory."""

    def stored(self, capture: CorpusRow) -> RecordParts:
        """Return the parts of a record; raises `MissingRecord`."""


Makers = Mapping[str, Enrichment]
"""Enrichments, by the path of each value."""


class Entry:
    """A capture and the values computed from it."""

    def __init__(self, capture: CorpusRow, makers: Makers, reader: PartsReader) -> None:
        self.capture = capture
        self.errors: dict[str, str] = {}  # messages, by the name of what failed
        self.dropped = False  # because something failed
        self._makers, self._reader = makers, reader
        self._values: dict[str, Any] = {}
        self._output: list[str] = []
        if capture.cached is not None:
            self._load(capture.cached)

    def _load(self, cached: str) -> None:
        """Take values that were computed before, unless they are on another machine."""
        at, length, path = cached.split(" ", 2)
        try:
            with open(path, "rb") as stream:
                stream.seek(int(at))
                values, self.errors = pickle.loads(stream.read(int(length)))
        except OSError:
            return
        self._values.update(values)

    def has(self, path: str) -> bool:
        """Return whether a value, or None for none, is computed and has not failed."""
        return path in self._values and not isinstance(self._values[path], EnrichmentFailed)

    @property
    def url(self) -> str:
        return self.capture.url

    @property
    def max_record(self) -> int:
        """The most bytes of a record, or of its content, in memory."""
        return self._reader.max_record

    def stored(self) -> RecordParts:
        """Read its record; raises `MissingRecord`."""
        return self._reader.stored(self.capture)

    def value(self, path: str) -> Any:
        """Return the value at a path, computed once, or None; raises `EnrichmentFailed`."""
        if path == RECORD:
            return self.capture.as_json()
        if path not in self._values:
            self._compute(self._makers[path])
        value = self._values[path]
        if isinstance(value, EnrichmentFailed):
            raise value
        return value

    def _compute(self, enrichment: Enrichment) -> None:
        values: Iterable[Any]
        try:
            of = self.value(enrichment.of) if enrichment.of else self
            result = None if of is None else enrichment.body(of, self)
            if len(enrichment.fields) == 1:
                values = (result,)
            else:
                values = (None,) * len(enrichment.fields) if result is None else result
            self._values.update(zip(enrichment.paths, values, strict=True))
        except EnrichmentFailed as error:  # of the value that it needs
            failed = error
        except MissingRecord as error:
            failed = EnrichmentFailed(enrichment.name, str(error))
        except (Exception, SystemExit) as error:  # of a user's function, or from hostile input
            failed = EnrichmentFailed(enrichment.name, f"{type(error).__name__}: {error}")
        else:
            return
        self._values.update(dict.fromkeys(enrichment.paths, failed))

    def fails(self, paths: Iterable[str]) -> bool:
        """Return whether anything has failed so far, or a value at one of the paths does."""
        for path in paths:
            try:
                self.value(path)
            except EnrichmentFailed as error:
                self.fail(error)
        return bool(self.errors)

    def output(self, enrichment: Enrichment) -> None:
        """Compute values for the output; failures become errors of this capture."""
        for path in enrichment.paths:
            try:
                self.value(path)
            except EnrichmentFailed as error:
                self.fail(error)
            else:
                self._output.append(path)

    def fail(self, error: EnrichmentFailed) -> None:
        self.errors.setdefault(error.name, str(error))

    def check(self) -> None:
        """Replace values that JSON cannot represent (too deep or circular) by errors."""
        for path, value in self.derived().items():
            try:
                orjson.dumps(plain(value))
            except (TypeError, ValueError, RecursionError) as error:
                self.fail(
                    EnrichmentFailed(self._makers[path].name, f"{path} can be no JSON: {error}")
                )
                self._output.remove(path)

    def close(self) -> None:
        """Release all values now.

        Exceptions hold them in reference cycles, and trees of Resiliparse must not be left to the
        garbage collector, which may run in another thread.
        """
        self._values.clear()

    def derived(self) -> dict[str, Any]:
        """Return the values of the output, by path."""
        values = ((path, self._values[path]) for path in self._output)
        return {path: value for path, value in values if value is not None}


def as_json(entry: Entry) -> dict[str, Any]:
    """Return a capture with nested values; one that has others below it has the key ``_``."""
    result: dict[str, Any] = {RECORD: entry.capture.as_json()}
    if entry.errors:
        result[ERROR] = "; ".join(entry.errors.values())
    nodes: dict[str, Any] = {}
    for path, value in entry.derived().items():
        node = nodes
        for name in path.split("."):
            node = node.setdefault(name, {})
        node[_VALUE] = plain(value)
    return {**result, **{name: _folded(node) for name, node in nodes.items()}}


def flat(entry: Entry) -> dict[str, Any]:
    """Return a capture as a table row: its metadata, and every value by its path."""
    metadata = entry.capture.as_json().items()
    return {
        **{name: None if value == "-" else value for name, value in metadata},
        ERROR: "; ".join(entry.errors.values()) or None,
        **{path: plain(value) for path, value in entry.derived().items()},
    }


_VALUE = ""  # the key of a value beside its children, whose names are not empty


def _folded(node: dict[Any, Any]) -> Any:
    children = {name: _folded(child) for name, child in node.items() if name != _VALUE}
    if _VALUE not in node:
        return children
    return {ITSELF: node[_VALUE], **children} if children else node[_VALUE]


def plain(value: Any) -> Any:
    """Convert a value to what JSON can represent."""
    if isinstance(value, bytes | bytearray | memoryview):
        return f"bytes(length: {len(value)})"
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()  # JSON has no lone surrogates
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if -(1 << 63) <= value < 1 << 64 else str(value)
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, Iterable):
        return [plain(item) for item in value]
    return plain(str(value))


def check_path(makers: Makers, path: str, names: tuple[str, ...] = ()) -> None:
    """Raise `BadInput` if there is no value at a path, or if packages are missing for it.

    `names` are what may be given in place of a path.
    """
    while path != RECORD:
        if path not in makers:
            paths = (path for path, maker in makers.items() if not maker.step)
            there = ", ".join((*names, RECORD, *paths))
            raise BadInput(f"there is nothing at {path!r}; there are {there}")
        name = makers[path].name
        of_page = makers[path] in STANDARD and name not in _WITHOUT_PACKAGES
        if of_page and not html_text.is_installed():
            raise BadInput(f"the enrichment {name!r} needs packages: {to_install('corpus')}")
        path = makers[path].of or RECORD


# --- the standard enrichments, and those of other packages ----------------------------------------

PLUGINS = "dedupindex.enrichments"
"""The group of entry points that name `Enrichment` objects of other packages."""

_GZIP_BITS = 31  # the `wbits` of zlib for gzip
_GZIP_MAGIC = b"\x1f\x8b"


def _response(entry: Entry, _: Entry) -> tuple[Any, ...]:
    return tuple(entry.stored())


def _content(payload: bytes, entry: Entry) -> bytes:
    """Undo the content coding of the payload."""
    data = payload
    for coding in reversed(field_of(entry, "content-encoding").split(",")):
        data = _decoded(data, coding.strip().lower().removeprefix("x-"), entry.max_record)
    return data


def field_of(entry: Entry, name: str) -> str:
    """Return a field of the HTTP header, or ""."""
    fields: dict[str, str] = entry.value("httpHeader") or {}
    return next((value for key, value in fields.items() if key.lower() == name), "")


def _decoded(data: bytes, coding: str, most: int) -> bytes:
    """Undo a content coding; data labelled gzip without its magic number are returned unchanged.

    The decoders raise their own errors for other mislabelled data.
    """
    if coding in ("", "identity", "none", "utf-8"):
        return data
    if coding == "gzip":
        return _inflated(data, _GZIP_BITS, most) if data.startswith(_GZIP_MAGIC) else data
    if coding == "deflate":
        return _inflated(data, 15 if data[:1] and data[0] & 15 == 8 else -15, most)
    if coding == "br":
        return _unbrotlied(data, most)
    if coding == "zstd":
        return _unzstded(data, most)
    raise ValueError(f"its content coding {coding[:40]!r} is not known")


def _inflated(data: bytes, bits: int, most: int) -> bytes:
    """Inflate all gzip members; trailing garbage is ignored, as gzip itself does."""
    pieces, length = [], 0
    while True:
        inflater = zlib.decompressobj(bits)
        pieces.append(inflater.decompress(data, most + 1 - length))
        length += len(pieces[-1])
        data = inflater.unused_data
        if bits != _GZIP_BITS or length > most or not data.startswith(_GZIP_MAGIC):
            return _within(b"".join(pieces), most)


def _unbrotlied(data: bytes, most: int) -> bytes:
    import brotli  # an extra

    inflater = brotli.Decompressor()
    pieces = [inflater.process(data, output_buffer_limit=most + 1)]
    length = len(pieces[0])
    while not inflater.is_finished() and not inflater.can_accept_more_data() and length <= most:
        pieces.append(inflater.process(b"", output_buffer_limit=most + 1))
        length += len(pieces[-1])
    return _within(b"".join(pieces), most)


def _unzstded(data: bytes, most: int) -> bytes:
    import zstandard  # most runs need none

    with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as stream:
        return _within(stream.read(most + 1), most)


def _within(data: bytes, most: int) -> bytes:
    if len(data) > most:
        raise ValueError(f"it inflates to more than {most:,} bytes")
    return data


def _string(payload: bytes, entry: Entry) -> str | None:
    content: bytes = entry.value("payload.content")
    stated = field_of(entry, "content-type")
    return html_text.text_of(content, stated, entry.value("payload.mime"))


def _mime(payload: bytes, entry: Entry) -> str:
    return html_text.sniff_mime(entry.value("payload.content"))


def _html(text: str, entry: Entry) -> Any:
    stated = field_of(entry, "content-type").partition(";")[0].strip().lower()
    is_html = html_text.is_html(stated, entry.value("payload.mime"))
    return html_text.parsed(text) if is_html else None


def _links(tree: Any, entry: Entry) -> list[dict[str, str]]:
    return html_text.links(tree, entry.url)


def _embeds(tree: Any, entry: Entry) -> list[str]:
    return html_text.embeds(tree, entry.url)


def _text(string: str, entry: Entry) -> str:
    tree = entry.value("payload.string.html")
    return string if tree is None else html_text.visible_text(tree)


def of_value(function: Callable[[Any], Any]) -> Callable[[Any, Entry], Any]:
    """Return the body of an enrichment that needs only the value."""
    return partial(_of_value, function)


def _of_value(function: Callable[[Any], Any], value: Any, entry: Entry) -> Any:
    return function(value)


_STRING, _HTML = "payload.string", "payload.string.html"
STANDARD = (
    Enrichment(
        "response", "", ("recordHeader", "httpStatusLine", "httpHeader", "payload"), _response
    ),
    Enrichment("content", "payload", ("content",), _content, step=True),
    Enrichment("mime", "payload", ("mime",), _mime),
    Enrichment("string", "payload", ("string",), _string),
    Enrichment("html", _STRING, ("html",), _html, step=True),
    Enrichment("html.title", _HTML, ("title",), of_value(html_text.title)),
    Enrichment("html.links", _HTML, ("links",), _links),
    Enrichment("html.embeds", _HTML, ("embeds",), _embeds),
    Enrichment("html.main", _HTML, ("main",), of_value(partial(html_text.visible_text, main=True))),
    Enrichment("text", _STRING, ("text",), _text),
    Enrichment("language", f"{_STRING}.text", ("language",), of_value(html_text.language)),
)


def selection(name: str, css: str, *, first: bool) -> Enrichment:
    """Return an enrichment by a selector of CSS (`html_text.Selector`); raises `BadInput`."""
    found = partial(_selected, html_text.selector(css, first=first))
    return Enrichment(f"select {name}", _HTML, (name,), found)


def _selected(selector: html_text.Selector, tree: Any, entry: Entry) -> Any:
    return html_text.selected(tree, entry.url, selector)


_WITHOUT_PACKAGES = ("response", "content")


def named(name: str) -> Enrichment:
    """Return an enrichment by its name or the path of its only value; raises `BadInput`."""
    by_name = {one.name: one for one in STANDARD if not one.step}
    by_path = {one.paths[0]: one for one in by_name.values() if len(one.fields) == 1}
    found = by_name.get(name) or by_path.get(name) or _plugin(name)
    if found is None:
        more = sorted(one.name for one in entry_points(group=PLUGINS))
        raise BadInput(f"no enrichment {name!r}; there are {', '.join([*by_name, *more])}")
    return found


def _plugin(name: str) -> Enrichment | None:
    """Load an enrichment of another package; raises `BadInput`."""
    for found in entry_points(group=PLUGINS, name=name):
        try:
            loaded = found.load()
        except Exception as error:  # of a foreign module
            raise BadInput(
                f"{found.value}, which is called {name!r}, cannot be loaded: "
                f"{type(error).__name__}: {error}"
            ) from error
        if not isinstance(loaded, Enrichment):
            raise BadInput(f"{found.value}, which is called {name!r}, is no Enrichment")
        return loaded
    return None


def makers_of(more: Iterable[Enrichment] = ()) -> dict[str, Enrichment]:
    """Return the standard enrichments and `more`; raises `BadInput` on conflicting paths."""
    makers: dict[str, Enrichment] = {}
    for enrichment in (*STANDARD, *more):
        for field in enrichment.fields:
            if not field or field == ITSELF or "." in field:
                raise BadInput(f"{enrichment.name!r}: a value cannot be called {field!r}")
        for path in enrichment.paths:
            if path.partition(".")[0] in KNOWN:
                raise BadInput(f"no value can be added at {path}: this name is reserved")
            if makers.setdefault(path, enrichment) != enrichment:
                raise BadInput(f"two enrichments make {path}: rename one of the fields")
    return makers
