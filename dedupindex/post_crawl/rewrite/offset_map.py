"""Where the records of a rewritten collection are: as CDXJ, or as a map of offsets.

Both are made from manifests and journals, without reading the files. The CDXJ has all responses
and the revisits that were made of them; a response without a media type has ``unk``, as in pywb.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from urllib.parse import quote_from_bytes

import orjson

from dedupindex.post_crawl.manifest.parquet import Line, Manifest, ManifestContainer
from dedupindex.post_crawl.rewrite.journal import Journal, entries, journals
from dedupindex.runtime.external_sort import sorted_lines
from dedupindex.urlkey import urlkey
from dedupindex.warc.record_facts import timestamp14

HEADER = b"file\toffset\tbytes\tnew_offset\tnew_bytes\n"
ROW = b"%b\t%d\t%d\t%d\t%d\n"
_PARAMETERS = re.compile(rb"[;,]")
_SAFE = "/ !#$&'()*+,;=:@[]{}"


def cdxj(
    manifests: Iterable[Manifest], journal: Callable[[ManifestContainer], Journal]
) -> Iterator[bytes]:
    """Yield the lines of the CDXJ, sorted as bytes, in bounded memory."""
    yield from sorted_lines(
        line
        for manifest in manifests
        for container in manifest.containers().values()
        for line in _cdxj_lines(container, manifest.lines(container.number), journal(container))
    )


def _cdxj_lines(
    container: ManifestContainer, lines: Iterator[Line], journal: Journal
) -> Iterator[bytes]:
    revisits = entries(journal.lines) if journal.exists() else iter(())
    entry = next(revisits, None)
    shift = 0
    for line in lines:
        while entry is not None and entry.offset < line.offset:
            shift = entry.new_offset + entry.new_stored - entry.offset - entry.stored
            entry = next(revisits, None)
        digits = timestamp14(line.date)
        if not digits or not line.url:
            continue
        is_revisit = entry is not None and entry.offset == line.offset
        stored = entry.new_stored if is_revisit and entry is not None else line.stored
        mime = _text(_PARAMETERS.split(line.content_type, 1)[0]) or "unk"
        fields = {
            "url": _text(line.url),
            "mime": "warc/revisit" if is_revisit else mime,
            "status": "" if is_revisit or not line.status else str(line.status),
            "digest": _text(line.digest.removeprefix(b"sha1:")) if line.digest else "",
            "length": str(stored),
            "offset": str(line.offset + shift),
            "filename": _text(container.name.encode("utf-8", "surrogateescape")),
        }
        present = {name: value for name, value in fields.items() if value}
        yield b"%b %b %b\n" % (urlkey(line.url), digits, orjson.dumps(present))


def _text(value: bytes) -> str:
    """Decode UTF-8; what is not UTF-8 is percent-encoded, as in URLs."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return "".join(chr(byte) if byte < 128 else f"%{byte:02X}" for byte in value)


def offset_lines(directories: Iterable[Path]) -> Iterator[bytes]:
    """Yield the offsets of all that was rewritten in some directories and not committed.

    The header is followed by a line for each range of a rewritten file. If its sizes differ it is
    a record that became a revisit; else what was at ``offset + n`` is at ``new_offset + n``.
    """
    yield HEADER
    for directory in directories:
        for journal in journals(directory):
            yield from _ranges(journal)


def quoted_name(name: str) -> bytes:
    """Return the name of a file as it is in a map of offsets."""
    return quote_from_bytes(name.encode("utf-8", "surrogateescape"), _SAFE).encode()


def _ranges(journal: Journal) -> Iterator[bytes]:
    before, after = journal.summary()
    name = quoted_name(before.name)
    old = new = 0
    for entry in entries(journal.lines):
        if entry.offset > old:
            yield ROW % (name, old, entry.offset - old, new, entry.offset - old)
        yield ROW % (name, entry.offset, entry.stored, entry.new_offset, entry.new_stored)
        old, new = entry.offset + entry.stored, entry.new_offset + entry.new_stored
    if before.size > old:
        yield ROW % (name, old, before.size - old, new, after.size - new)
