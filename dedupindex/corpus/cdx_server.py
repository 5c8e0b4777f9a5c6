"""Captures from a CDX server, queried over HTTP.

Servers answer with lines of a CDX or CDXJ, lines of JSON objects, or one JSON array of objects or
rows; the first bytes tell which. The caller chooses the parameters: ``url``, ``matchType``,
``from``, ``to``, ``filter`` and ``limit`` mean the same on most servers.

Servers with a compressed index (pywb with a ZipNum cluster, Common Crawl) answer with one page of
results, and reveal the number of pages only on ``showNumPages``. So all pages are fetched.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlencode, urlsplit
from urllib.request import Request, urlopen

import orjson

from dedupindex import __version__
from dedupindex.corpus.capture_list import KINDS, Revisits, SourceContext
from dedupindex.corpus.from_cdx import file_of, select
from dedupindex.corpus.row import as_text
from dedupindex.errors import BadSource
from dedupindex.object_store import is_remote, redacted
from dedupindex.object_store.store_address import WEB
from dedupindex.object_store.stores import is_lasting, limits, with_retries
from dedupindex.sources.discover import HEAD, kind_of
from dedupindex.urlkey import urlkey

_OTHER_NAMES = {  # the names of a CDXJ, by those of other servers
    "original": "url", "mimetype": "mime", "statuscode": "status", "redirecturl": "redirect",
    "file": "filename",
}  # fmt: skip
_MAX_ERROR = 300  # bytes of an error response
_MAX_ARRAY = 1 << 30  # bytes of a JSON array, which is read into memory
_MAX_COUNT = 4096  # bytes of the answer to showNumPages
_LIMITS = frozenset(("page", "limit", "shownumpages"))  # with one of these only one page is read


@dataclass(frozen=True)
class CdxServerCaptures:
    """The answer of a CDX server to a query."""

    revisits: ClassVar[Revisits] = Revisits.LISTED
    address: str
    query: tuple[tuple[str, str], ...]
    containers: tuple[str, ...] = ()

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.address,)

    def relation(self, context: SourceContext) -> str:
        if not is_server(self.address) and not self.query:
            raise BadSource(f"{redacted(self.address)} needs a query with a url")
        parameters = urlencode(self.query)
        separator = ("&" if "?" in self.address else "?") if parameters else ""
        query = self.address + separator + parameters
        answer = context.home / "answer"
        with_retries(query, partial(_fetch, query, answer))
        with open(answer, "rb") as stream:
            head = stream.read(HEAD)
        is_json = not head.strip() or head.lstrip()[:1] in (b"[", b"{")
        kind = "cdxj" if is_json else kind_of(head)
        if kind not in KINDS:
            raise BadSource(
                f"{redacted(query)} answers with no known format of a CDX (perhaps it has "
                f"output=json): {head[:100]!r}"
            )
        lines = context.home / "answer.lines"
        with open(lines, "wb") as stream:
            for page in _pages(query, answer):
                if is_json:
                    stream.writelines(map(_cdxj_line, _rows(page, query)))
                    continue
                with open(page, "rb") as file:
                    shutil.copyfileobj(file, stream, 1 << 20)
                stream.write(b"\n")  # a page may lack the last line end; empty lines are skipped
        return select([file_of(lines, kind, head, "", context.home / "answer.text")])


def is_server(source: str) -> bool:
    """Return whether a source is the address of a query."""
    parts = urlsplit(source) if is_remote(source) else None
    return parts is not None and parts.scheme.lower() in WEB and "url" in parse_qs(parts.query)


class _HttpRefusal(Exception):
    """An error response of the server; `status` decides whether to retry."""

    def __init__(self, status: int, text: bytes) -> None:
        super().__init__(f"HTTP {status}: {text.decode('utf-8', 'replace').strip()}")
        self.status = status


def _pages(query: str, answer: Path) -> Iterator[Path]:
    """Yield the file `answer` for each page, which replaces the one before."""
    yield answer
    parts = urlsplit(query)
    if _LIMITS.isdisjoint(name.lower() for name in parse_qs(parts.query)):
        for number in range(1, with_retries(query, partial(_count, query))):
            page = f"{query}&page={number}"
            with_retries(page, partial(_fetch, page, answer))
            yield answer


def _count(query: str) -> int:
    """Return the number of pages; 1 if the server does not support them."""
    try:
        with _opened(f"{query}&showNumPages=true") as reply:
            counts = orjson.loads(reply.read(_MAX_COUNT))
    except orjson.JSONDecodeError:
        return 1  # the server ignores showNumPages
    except _HttpRefusal as error:
        if is_lasting(error):
            return 1
        raise
    pages = counts.get("pages") if isinstance(counts, dict) else 1
    return pages if isinstance(pages, int) else 1


def _opened(query: str) -> Any:
    """Send a query; raises `_HttpRefusal`."""
    request = Request(query, headers={"User-Agent": f"dedupindex/{__version__}"})
    try:
        return urlopen(request, timeout=limits().timeout)
    except HTTPError as error:
        with error:
            raise _HttpRefusal(error.code, error.read(_MAX_ERROR)) from error


def _fetch(query: str, answer: Path) -> None:
    with _opened(query) as reply, open(answer, "wb") as file:
        shutil.copyfileobj(reply, file, 1 << 20)
        stated = reply.headers.get("Content-Length")
    if stated is not None and answer.stat().st_size != int(stated):
        raise EOFError(f"{answer.stat().st_size:,} bytes came of {stated}")


def _rows(answer: Path, query: str) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of an answer in JSON; raises `BadSource`."""
    for value in _values(answer, query):
        if not isinstance(value, dict):
            what = f"JSON that is not a capture: {str(value)[:100]}"
            raise BadSource(f"{redacted(query)} answers with {what}")
        yield value


def _values(answer: Path, query: str) -> Iterator[Any]:
    """Yield lines of JSON, or the items of an array, whose first row may name the columns."""
    try:
        with open(answer, "rb") as stream:
            if stream.peek(HEAD).lstrip()[:1] != b"[":
                yield from (orjson.loads(line) for line in stream if line.strip())
                return
            if answer.stat().st_size > _MAX_ARRAY:
                what = "more JSON than fits: ask for lines, or less"
                raise BadSource(f"{redacted(query)} answers with {what}")
            found = orjson.loads(stream.read())
    except orjson.JSONDecodeError as error:
        raise BadSource(f"{redacted(query)} answers with invalid JSON: {error}") from error
    if not (found and isinstance(found[0], list)):
        yield from found
        return
    names, *rows = found
    for row in rows:
        yield dict(zip(map(str, names), row, strict=False)) if isinstance(row, list) else row


def _cdxj_line(row: Mapping[str, Any]) -> bytes:
    """Convert a row of the server to a line of a CDXJ."""
    fields = {
        _OTHER_NAMES.get(name.lower(), name.lower()): value
        for name, value in row.items()
        if value not in (None, "", "-")
    }
    surt = fields.get("urlkey") or as_text(urlkey(str(fields.get("url", "")).encode()))
    surt, timestamp = str(surt).replace(" ", "%20"), str(fields.get("timestamp", ""))
    return b"%b %b %b\n" % (surt.encode(), timestamp.encode(), orjson.dumps(fields))
