"""One pass over all staged entries, which come in order: keys and the cells they leave.

The loop runs once for every capture of an index. A key with one entry, as nearly all have, is
settled here; all else is decided by `settle.Rule`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dedupindex.index.format.cells import ALSO, BEFORE, DIGEST_KEY
from dedupindex.index.format.tombstones import REVISIT, lives_in, unmarked
from dedupindex.index.load.merge_rule import MergeOutcome, MergeRule, checksum, mark_before
from dedupindex.index.load.runs import CHUNK

Cells = list[tuple[bytes, bytes]]


def settled(
    batches: Iterable[list[bytes]], rule: MergeRule, outcome: MergeOutcome
) -> Iterator[Cells]:
    """Keys and cells, in order, of all staged entries, which come in order."""
    lengths = rule.keys.lengths()
    key, digest, group = b"", b"", list[bytes]()
    for batch in batches:
        cells: Cells = []
        for staged in batch:
            length = lengths[staged[0]]
            if staged[:length] == key:
                group.append(staged[length:])
                continue
            if group:
                digest = _close(key, group, digest, rule, outcome, cells)
            key, group = staged[:length], [staged[length:]]
        outcome.checksum += checksum(cells)
        yield cells
    if group:
        cells = []
        _close(key, group, digest, rule, outcome, cells)
        outcome.checksum += checksum(cells)
        yield cells


def grouped(
    batches: Iterable[list[bytes]], lengths: list[int]
) -> Iterator[tuple[bytes, list[bytes]]]:
    """Keys, each with all its entries, of staged entries, which come in order."""
    key, group = b"", list[bytes]()
    for batch in batches:
        for staged in batch:
            length = lengths[staged[0]]
            if staged[:length] == key:
                group.append(staged[length:])
                continue
            if group:
                yield key, group
            key, group = staged[:length], [staged[length:]]
    if group:
        yield key, group


def _close(
    key: bytes,
    group: list[bytes],
    digest: bytes,
    rule: MergeRule,
    outcome: MergeOutcome,
    cells: Cells,
) -> bytes:
    """Settle the entries under one key; returns the digest last counted."""
    entry = group[0]
    if len(group) == 1:
        mark = entry[1]
        if mark & BEFORE:
            entry = unmarked(entry)
        cells.append((key, entry))
        if entry[0] & 3 == REVISIT:
            return digest
        outcome.added += not mark & (ALSO | BEFORE)
        outcome.captures += 1
    else:
        held = outcome.captures
        cell = rule.settle(key, group, outcome)
        if cell is not None:
            cells.append((key, cell))
        if outcome.captures == held:
            return digest
    if not key.startswith(digest) or not digest:
        digest = key[: DIGEST_KEY[key[0]]]
        outcome.digests += 1
    return digest


def staged_again(cells: Iterable[tuple[bytes, bytes]], gone: set[int]) -> Iterator[list[bytes]]:
    """Stored cells as sorted chunks of staged entries, without those of containers `gone`."""
    chunk: list[bytes] = []
    for key, cell in cells:
        for entry in mark_before(cell):
            if gone and lives_in(entry, gone):
                continue
            chunk.append(key + entry)
        if len(chunk) >= CHUNK:
            chunk.sort()
            yield chunk
            chunk = []
    if chunk:
        chunk.sort()
        yield chunk
