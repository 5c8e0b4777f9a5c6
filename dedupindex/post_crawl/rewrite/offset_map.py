"""A CDXJ of what was rewritten, from a manifest and the journals: nothing is inflated for it.

It has what manifests have, all responses, and the revisits that were made of them. A
media type that a response does not say is ``unk``, as pywb writes what it does not know.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol
from urllib.parse import quote_from_bytes

import orjson

from dedupindex.errors import BadDate
from dedupindex.post_crawl.manifest.lines import Line, ManifestContainer
from dedupindex.post_crawl.rewrite.journal import Journal, JournalEntry, entries, journals
from dedupindex.runtime.external_sort import sorted_lines
from dedupindex.timestamps import check_date, digits_of_date
from dedupindex.urlkey import urlkey

_PARAMETERS = re.compile(rb"[;,]")


class Lines(Protocol):
    """What is asked of a `manifest.store.Manifest`."""

    def containers(self) -> dict[int, ManifestContainer]: ...
    def lines(self, container: int, /) -> Iterator[Line]: ...


def cdxj(
    manifests: Iterable[Lines], journal: Callable[[ManifestContainer], Journal]
) -> Iterator[bytes]:
    """The lines of the CDXJ, sorted as bytes; holds a part of them at a time."""
    found = (
        line
        for manifest in manifests
        for container in manifest.containers().values()
        for line in _container(container, manifest.lines(container.number), journal(container))
    )
    yield from sorted_lines(found)


def _container(
    container: ManifestContainer, lines: Iterator[Line], journal: Journal
) -> Iterator[bytes]:
    revisits = entries(journal.lines) if journal.exists() else iter(())
    entry: JournalEntry | None = next(revisits, None)
    shift = 0
    for line in lines:
        while entry is not None and entry.offset < line.offset:
            shift = entry.new_offset + entry.new_stored - entry.offset - entry.stored
            entry = next(revisits, None)
        revisit = entry is not None and entry.offset == line.offset
        try:
            date = digits_of_date(check_date(line.date))
        except BadDate:
            continue
        if line.url:
            stored = entry.new_stored if revisit and entry is not None else line.stored
            yield _line(container, line, date, line.offset + shift, stored, revisit)


def _line(
    container: ManifestContainer, line: Line, date: bytes, offset: int, stored: int, revisit: bool
) -> bytes:
    said = {
        "url": _text(line.url),
        "mime": "warc/revisit" if revisit else _mime(line),
        "status": str(line.status),
        "digest": _text(line.digest.removeprefix(b"sha1:")),
        "length": str(stored),
        "offset": str(offset),
        "filename": _text(container.name.encode("utf-8", "surrogateescape")),
    }
    if revisit or not line.status:
        del said["status"]
    if not line.digest:
        del said["digest"]
    return b"%b %b %b\n" % (urlkey(line.url), date, orjson.dumps(said))


def _mime(line: Line) -> str:
    return _text(_PARAMETERS.split(line.content_type, 1)[0]) or "unk"


def _text(value: bytes) -> str:
    """Bytes in JSON: what is no UTF-8 is escaped as in URLs."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return "".join(chr(byte) if byte < 128 else f"%{byte:02X}" for byte in value)


# Where everything stands now, for catalogues: a line for each stretch of a rewritten container.

HEADER = b"file\toffset\tbytes\tnew_offset\tnew_bytes\n"
_SAFE = "/ !#$&'()*+,;=:@[]{}"


def lines(directories: Iterable[Path]) -> Iterator[bytes]:
    """The map of all that was rewritten there and not committed, header first.

    A stretch whose bytes differ is a record that became a revisit; in the others what stood at
    ``offset + n`` stands at ``new_offset + n``. Files that are not named have not changed.
    """
    yield HEADER
    for directory in directories:
        for journal in journals(directory):
            yield from _offsets_container(journal)


def _offsets_container(journal: Journal) -> Iterator[bytes]:
    was, ended = journal.summary()
    name = quote_from_bytes(was.name.encode("utf-8", "surrogateescape"), _SAFE).encode()
    old = new = 0
    for entry in entries(journal.lines):
        if entry.offset > old:
            yield b"%b\t%d\t%d\t%d\t%d\n" % (name, old, entry.offset - old, new, entry.offset - old)
        yield b"%b\t%d\t%d\t%d\t%d\n" % (
            name, entry.offset, entry.stored, entry.new_offset, entry.new_stored,
        )  # fmt: skip
        old, new = entry.offset + entry.stored, entry.new_offset + entry.new_stored
    if was.size > old:
        yield b"%b\t%d\t%d\t%d\t%d\n" % (name, old, was.size - old, new, ended.size - new)
