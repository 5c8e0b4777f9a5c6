"""Where everything stands now, for catalogues: a line for each stretch of a rewritten container."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import quote_from_bytes

from dedupindex.post_crawl.rewrite.journal import Journal, entries, journals

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
            yield from _container(journal)


def _container(journal: Journal) -> Iterator[bytes]:
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
