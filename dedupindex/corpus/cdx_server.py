"""Captures that an archive elsewhere tells of: a CDX server, asked over HTTP.

Servers of one dialect answer in many forms: lines of a CDX or of a CDXJ, lines of JSON objects, one
JSON array of objects or of rows. All are told by their first bytes. What is asked is for the caller
to say: ``url``, ``matchType``, ``from``, ``to``, ``filter``, ``limit`` mean the same to most.

Those with a compressed index, as pywb of a ZipNum cluster (Common Crawl's), answer with one page of
it and say how many there are only when asked with ``showNumPages``. So they are asked, and for all.
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
from dedupindex.corpus.capture_list import JsonlWriter, Revisits, SourceContext, relation
from dedupindex.corpus.from_cdx import CdxFile, select
from dedupindex.corpus.row import COLUMNS, shown
from dedupindex.errors import BadDate, BadSource
from dedupindex.object_store import is_remote, redacted
from dedupindex.object_store.store_address import WEB
from dedupindex.object_store.stores import is_lasting, limits, patiently
from dedupindex.sources.kinds import HEAD, kind_of
from dedupindex.timestamps import check_digits
from dedupindex.urlkey import urlkey

_NAMES = {  # what servers call our columns
    "urlkey": "surt", "timestamp": "timestamp", "url": "url", "original": "url", "mime": "mime",
    "mimetype": "mime", "status": "status", "statuscode": "status", "digest": "digest",
    "redirect": "redirect", "redirecturl": "redirect", "robotflags": "meta", "length": "length",
    "offset": "offset", "filename": "container", "file": "container",
}  # fmt: skip
_NUMBERS = ("status", "length", "offset")
_SHOWN = 300  # bytes of what a server says instead
_HELD = 1 << 30  # bytes of one JSON array: it is read whole
_COUNTED = 4096  # bytes of what a server says of its pages
_LIMITS = frozenset(("page", "limit", "shownumpages"))  # who asks so wants no more than he gets


@dataclass(frozen=True)
class OfServer:
    """What a CDX server answers to a query."""

    revisits: ClassVar[Revisits] = Revisits.LISTED
    address: str
    query: tuple[tuple[str, str], ...]
    places: tuple[str, ...] = ()

    @property
    def sources(self) -> tuple[str, ...]:
        """See `telling.CaptureSource`."""
        return (self.address,)

    def relation(self, work: SourceContext) -> str:
        """See `telling.CaptureSource`."""
        if not is_server(self.address) and not self.query:
            raise BadSource(f"{redacted(self.address)} is asked for no url")
        more = urlencode(self.query)
        asked = self.address + (more and ("&" if "?" in self.address else "?") + more)
        answer = work.home / "answer"
        patiently(asked, partial(_fetch, asked, answer))
        with open(answer, "rb") as stream:
            head = stream.read(HEAD)
        pages = _pages(asked, answer)
        if not head.strip():
            return relation([_spooled(work.home, iter(()))])
        if head.lstrip()[:1] in (b"[", b"{"):
            rows = (row for page in pages for row in _rows(page, asked))
            return relation([_spooled(work.home, rows)])
        kind = kind_of(head)
        if kind not in ("cdx", "cdxj"):
            raise BadSource(f"{redacted(asked)} answers with what is no CDX that is known (perhaps "
                            f"it has output=json): {head[:100]!r}")  # fmt: skip
        lines = work.home / "answer.lines"
        with open(lines, "wb") as stream:
            for page in pages:
                with open(page, "rb") as some:
                    shutil.copyfileobj(some, stream, 1 << 20)
                stream.write(b"\n")  # one may not end its last line; an empty one counts nowhere
        return select([CdxFile(lines, kind, head, "")])


def is_server(source: str) -> bool:
    """Whether this is the address of a query."""
    parts = urlsplit(source) if is_remote(source) else None
    return parts is not None and parts.scheme.lower() in WEB and "url" in parse_qs(parts.query)


class _Refused(Exception):
    """What a server says instead of an answer."""

    def __init__(self, status: int, text: bytes) -> None:
        super().__init__(f"HTTP {status}: {text.decode('utf-8', 'replace').strip()}")
        self.status = status


def _pages(asked: str, answer: Path) -> Iterator[Path]:
    """An answer, and in its place one after the other the further pages of it."""
    yield answer
    parts = urlsplit(asked)
    if _LIMITS.isdisjoint(name.lower() for name in parse_qs(parts.query)):
        for number in range(1, patiently(asked, partial(_count, asked))):
            page = f"{asked}&page={number}"
            patiently(page, partial(_fetch, page, answer))
            yield answer


def _count(asked: str) -> int:
    """How many pages a server has for this; 1 of one that knows none."""
    try:
        with _opened(f"{asked}&showNumPages=true") as reply:
            said = orjson.loads(reply.read(_COUNTED))
    except orjson.JSONDecodeError:
        return 1  # it has answered what it was asked before
    except HTTPError as error:
        with error:
            if is_lasting(error):
                return 1
            raise _Refused(error.code, error.read(_SHOWN)) from error
    pages = said.get("pages") if isinstance(said, dict) else 1
    return pages if isinstance(pages, int) else 1


def _opened(asked: str) -> Any:
    request = Request(asked, headers={"User-Agent": f"dedupindex/{__version__}"})
    return urlopen(request, timeout=limits().timeout)


def _fetch(asked: str, answer: Path) -> None:
    try:
        with _opened(asked) as reply, open(answer, "wb") as file:
            shutil.copyfileobj(reply, file, 1 << 20)
            said = reply.headers.get("Content-Length")
    except HTTPError as error:
        with error:
            raise _Refused(error.code, error.read(_SHOWN)) from error
    if said is not None and answer.stat().st_size != int(said):
        raise EOFError(f"{answer.stat().st_size:,} bytes came of {said}")


def _spooled(home: Path, rows: Iterator[Mapping[str, Any]]) -> Path:
    path = home / "answer.rows"
    with JsonlWriter(path) as spool:
        for row in rows:
            spool.add(**_capture(row))
    return path


def _rows(answer: Path, asked: str) -> Iterator[Mapping[str, Any]]:
    """The objects of an answer in JSON; raises `BadSource`."""
    with open(answer, "rb") as stream:
        if not stream.read(HEAD).strip():
            return
        stream.seek(0)
        if stream.read(1) == b"{":
            stream.seek(0)
            for line in stream:
                if line.strip():
                    yield _object(_parsed(line, asked), asked)
            return
    if answer.stat().st_size > _HELD:
        raise BadSource(
            f"{redacted(asked)} answers with more JSON than fits: ask for lines, or less"
        )
    found = _parsed(answer.read_bytes(), asked)
    if found and isinstance(found[0], list):
        names = list(map(str, found[0]))
        for row in found[1:]:
            named = dict(zip(names, row, strict=False)) if isinstance(row, list) else row
            yield _object(named, asked)
    else:
        yield from (_object(one, asked) for one in found)


def _parsed(text: bytes, asked: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadSource(f"{redacted(asked)} answers with what is no JSON: {error}") from error


def _object(value: Any, asked: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BadSource(
            f"{redacted(asked)} answers with JSON that is no capture: {str(value)[:100]}"
        )
    return value


def _capture(row: Mapping[str, Any]) -> dict[str, str | int | bool | None]:
    """Our columns of a row, whatever the server calls them."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        column = _NAMES.get(name.lower())
        if column and value not in (None, "", "-"):
            found[column] = _number(value, column) if column in _NUMBERS else str(value)
    mime = str(found.get("mime", "")).lower()
    time = str(found.get("timestamp", ""))
    found["revisit"] = mime == "warc/revisit"
    found["mime"] = None if mime in ("warc/revisit", "unk") else mime or None
    found["timestamp"] = time[:14]
    if "surt" not in found and "url" in found:
        found["surt"] = shown(urlkey(found["url"].encode()))
    found["good"] = "url" in found and len(time) in (14, 17) and _is_time(time)
    return found


def _is_time(digits: str) -> bool:
    try:
        check_digits(digits[:14].encode())
    except BadDate:
        return False
    return digits.isascii() and digits.isdigit()


def _number(value: Any, column: str) -> int | None:
    text = str(value)
    most = 9 if COLUMNS[column] == "INTEGER" else 18  # digits
    return int(text) if text.isdigit() and len(text) <= most else None
