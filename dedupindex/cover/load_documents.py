"""Lines of documents on their way to DuckDB: their metadata as JSON, their shingles as text.

Both are spooled, because that is what DuckDB reads fast and without a second library. It is done in
batches, side by side where there are processes for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from secrets import token_hex
from typing import Any, NamedTuple

import orjson

from dedupindex.cover.document import Document, content_of, shingles, terms
from dedupindex.cover.document_lines import document
from dedupindex.expression.evaluate import hostname
from dedupindex.timestamps import date_of_digits, seconds

MOST = 500  # lines of a batch
_MOST_BYTES = 4 << 20  # the same, of longer ones
_KNOWN = 100_000  # texts that are known to have been prepared

Line = tuple[str, bytes]  # where it stands, and what it says


class LineBatch(NamedTuple):
    """Lines; the first is document number `first`."""

    first: int
    lines: list[Line]
    ks: tuple[int, ...]
    run: str  # tells runs apart


class Prepared(NamedTuple):
    """What a batch comes to: rows for `store`."""

    documents: bytes
    shingles: dict[int, bytes]
    lines: int
    empty: int  # documents without text
    size: int  # bytes of these lines


def batches(lines: Iterable[Line], first: int, ks: tuple[int, ...]) -> Iterator[LineBatch]:
    """All lines, so many at a time."""
    run = token_hex()
    held: list[Line] = []
    size = 0
    for line in lines:
        held.append(line)
        size += len(line[1])
        if len(held) >= MOST or size >= _MOST_BYTES:
            yield LineBatch(first, held, ks, run)
            first += len(held)
            held, size = [], 0
    if held:
        yield LineBatch(first, held, ks, run)


_known: set[str] = set()  # contents whose shingles this process has prepared
_run = [""]  # in which run


def prepare(batch: LineBatch) -> Prepared:
    """Do a batch; raises `BadSource`.

    Of equal texts the shingles are wanted of the first; batches come in order, so that it is never
    the first that a process leaves out.
    """
    rows: list[bytes] = []
    spools: dict[int, list[str]] = {k: [] for k in batch.ks}
    empty = size = 0
    if _run != [batch.run] or len(_known) > _KNOWN:
        _run[:] = [batch.run]
        _known.clear()
    for n, (where, line) in enumerate(batch.lines, batch.first):
        size += len(line)
        found = document(line, where)
        words = terms(found.text) if batch.ks else []
        content = content_of(words)
        empty += not words
        row = row_of(n, found, content)
        for k in batch.ks:
            some = shingles(words, k)
            row[f"s{k}"] = len(some)
            if some and content not in _known:
                spools[k].append(f"{n}\t" + f"\n{n}\t".join(some) + "\n")
        if content:
            _known.add(content)
        rows.append(orjson.dumps(row))
    made = {k: "".join(spool).encode() for k, spool in spools.items()}
    return Prepared(b"\n".join(rows) + b"\n", made, len(rows), empty, size)


def row_of(n: int, found: Document, content: str) -> dict[str, Any]:
    """A document as `store` takes it."""
    moment = found.timestamp
    return {
        "n": n,
        "id": _clean(found.id),
        "url": _clean(found.url),
        "hostname": _clean(hostname(found.url)),
        "mime": _clean(found.mime),
        "title": _clean(found.title),
        "timestamp": seconds(date_of_digits(moment.encode())) if moment else None,
        "digits": moment,
        "status": found.status,
        "size": found.size,
        "quality": found.quality,
        "container": _clean(found.container),
        "offset": found.offset,
        "length": found.length,
        "of_container": _clean(found.of[0]) if found.of else None,
        "of_offset": found.of[1] if found.of else None,
        "of_url": _clean(found.names[0]) if found.names else None,
        "of_digits": found.names[1] if found.names else None,
        "digest": found.digest,
        "of_digest": found.of_digest,
        "content": content,
    }


def _clean(text: str | None) -> str | None:
    """Without what JSON or DuckDB cannot hold."""
    if text is None:
        return None
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
