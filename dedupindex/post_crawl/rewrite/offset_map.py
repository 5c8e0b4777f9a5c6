"""Where the records of rewritten files are: a map of offsets, made from journals alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import quote_from_bytes

from dedupindex.post_crawl.rewrite.journal import Journal, entries, journals

HEADER = b"file\toffset\tbytes\tnew_offset\tnew_bytes\n"
ROW = b"%b\t%d\t%d\t%d\t%d\n"
_SAFE = "/ !#$&'()*+,;=:@[]{}"


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
