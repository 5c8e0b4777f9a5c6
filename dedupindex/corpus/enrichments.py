"""The enrichments that there are without anything else, and those that other packages bring.

`page` is imported where it is used: it needs Resiliparse, an extra.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from dedupindex.corpus.enrich import ITSELF, KNOWN, Enrichment, Entry
from dedupindex.corpus.read_records import MOST
from dedupindex.errors import BadInput, to_install

PLUGINS = "dedupindex.enrichments"
"""The group of entry points that name `Enrichment` objects of other packages."""

_GZIP = 31  # what zlib calls it
_GZIP_SIGN = b"\x1f\x8b"

NEEDS = f"needs packages: {to_install('corpus')}"


def _response(entry: Entry, _: Entry) -> tuple[Any, ...]:
    return tuple(entry.stored())


def _content(payload: bytes, entry: Entry) -> bytes:
    """The payload without its content coding."""
    data = payload
    for coding in reversed(_codings(field_of(entry, "content-encoding"))):
        data = _decoded(data, coding)
    return data


def field_of(entry: Entry, name: str) -> str:
    """A field of the HTTP header, "" if there is none."""
    fields: dict[str, str] = entry.value("httpHeader") or {}
    return next((value for key, value in fields.items() if key.lower() == name), "")


def _codings(text: str) -> list[str]:
    found = [coding.strip().lower().removeprefix("x-") for coding in text.split(",")]
    return [coding for coding in found if coding not in ("", "identity", "none", "utf-8")]


def _decoded(data: bytes, coding: str) -> bytes:
    """Undo a content coding; what is called gzip and begins otherwise is taken as it is.

    Raises errors of their own for what is not coded as its header says in another way.
    """
    if coding == "gzip":
        return _inflated(data, _GZIP) if data.startswith(_GZIP_SIGN) else data
    if coding == "deflate":
        return _inflated(data, 15 if data[:1] and data[0] & 15 == 8 else -15)
    if coding == "br":
        return _unbrotlied(data)
    if coding == "zstd":
        return _unzstded(data)
    raise ValueError(f"its content coding {coding[:40]!r} is not known")


def _inflated(data: bytes, bits: int) -> bytes:
    """All members of a gzip; what follows them and is none is left out, as gzip itself does."""
    pieces, length = [], 0
    while True:
        inflater = zlib.decompressobj(bits)
        made = inflater.decompress(data, MOST + 1 - length)
        pieces.append(made)
        length += len(made)
        data = inflater.unused_data
        if bits != _GZIP or length > MOST or not data.startswith(_GZIP_SIGN):
            return _within(b"".join(pieces))


def _unbrotlied(data: bytes) -> bytes:
    import brotli  # an extra

    inflater = brotli.Decompressor()
    made = inflater.process(data, output_buffer_limit=MOST + 1)
    pieces, length = [made], len(made)
    while not inflater.is_finished() and not inflater.can_accept_more_data() and length <= MOST:
        made = inflater.process(b"", output_buffer_limit=MOST + 1)
        pieces.append(made)
        length += len(made)
    return _within(b"".join(pieces))


def _unzstded(data: bytes) -> bytes:
    import zstandard  # an extra

    with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as stream:
        return _within(stream.read(MOST + 1))


def _within(data: bytes) -> bytes:
    if len(data) > MOST:
        raise ValueError(f"it inflates to more than {MOST:,} bytes")
    return data


def _string(payload: bytes, entry: Entry) -> str | None:
    from dedupindex.corpus import html_text

    content: bytes = entry.value("payload.content")
    stated = field_of(entry, "content-type")
    return html_text.text_of(content, stated, entry.value("payload.mime"))


def _mime(payload: bytes, entry: Entry) -> str:
    from dedupindex.corpus import html_text

    return html_text.found_mime(entry.value("payload.content"))


def _html(text: str, entry: Entry) -> Any:
    from dedupindex.corpus import html_text

    stated = field_of(entry, "content-type").partition(";")[0].strip().lower()
    return (
        html_text.parsed(text) if html_text.is_html(stated, entry.value("payload.mime")) else None
    )


def _title(tree: Any, entry: Entry) -> str | None:
    from dedupindex.corpus import html_text

    return html_text.title(tree)


def _links(tree: Any, entry: Entry) -> list[dict[str, str]]:
    from dedupindex.corpus import html_text

    return html_text.links(tree, entry.url)


def _main(tree: Any, entry: Entry) -> str:
    from dedupindex.corpus import html_text

    return html_text.main_text(tree)


def _text(string: str, entry: Entry) -> str:
    from dedupindex.corpus import html_text

    tree = entry.value("payload.string.html")
    return string if tree is None else html_text.visible_text(tree)


def _language(text: str, entry: Entry) -> str | None:
    from dedupindex.corpus import html_text

    return html_text.language(text)


_STRING, _HTML = "payload.string", "payload.string.html"
STANDARD = (
    Enrichment(
        "response", "", ("recordHeader", "httpStatusLine", "httpHeader", "payload"), _response
    ),
    Enrichment("content", "payload", ("content",), _content, step=True),
    Enrichment("mime", "payload", ("mime",), _mime),
    Enrichment("string", "payload", ("string",), _string),
    Enrichment("html", _STRING, ("html",), _html, step=True),
    Enrichment("html.title", _HTML, ("title",), _title),
    Enrichment("html.links", _HTML, ("links",), _links),
    Enrichment("html.main", _HTML, ("main",), _main),
    Enrichment("text", _STRING, ("text",), _text),
    Enrichment("language", f"{_STRING}.text", ("language",), _language),
)
_ALONE = frozenset(("response", "content"))  # what needs no package


def named(name: str) -> Enrichment:
    """The enrichment of a name, or of the path of its one value; raises `BadInput`."""
    by_name = {one.name: one for one in STANDARD if not one.step}
    by_path = {one.paths[0]: one for one in by_name.values() if len(one.fields) == 1}
    found = by_name.get(name) or by_path.get(name) or _brought(name)
    if found is None:
        more = sorted(one.name for one in entry_points(group=PLUGINS))
        raise BadInput(f"no enrichment {name!r}; there are {', '.join([*by_name, *more])}")
    return found


def _brought(name: str) -> Enrichment | None:
    """What another package calls so."""
    for found in entry_points(group=PLUGINS, name=name):
        try:
            loaded = found.load()
        except Exception as error:  # of somebody else's module
            told = f"{type(error).__name__}: {error}"
            raise BadInput(
                f"{found.value}, which is called {name!r}, cannot be loaded: {told}"
            ) from error
        if not isinstance(loaded, Enrichment):
            raise BadInput(f"{found.value}, which is called {name!r}, is no Enrichment")
        return loaded
    return None


def check_packages(enrichment: Enrichment) -> None:
    """Raise `BadInput` if packages are missing that an enrichment will need."""
    if enrichment in STANDARD and enrichment.name not in _ALONE and not _has_packages():
        raise BadInput(f"the enrichment {enrichment.name!r} {NEEDS}")


@cache
def _has_packages() -> bool:
    try:
        from dedupindex.corpus import html_text  # noqa: F401
    except ImportError:
        return False
    return True


def makers_of(more: Iterator[Enrichment] | tuple[Enrichment, ...] = ()) -> dict[str, Enrichment]:
    """All that makes values, by their paths; raises `BadInput` where two make the same."""
    makers: dict[str, Enrichment] = {}
    for enrichment in (*STANDARD, *more):
        for field in enrichment.fields:
            if not field or field == ITSELF or "." in field:
                raise BadInput(f"{enrichment.name!r}: a value cannot be called {field!r}")
        for path in enrichment.paths:
            if path.partition(".")[0] in KNOWN:
                raise BadInput(f"nothing can be made at {path}: there stands what is known")
            if makers.setdefault(path, enrichment) != enrichment:
                raise BadInput(f"two enrichments make {path}: call one of the fields otherwise")
    return makers
