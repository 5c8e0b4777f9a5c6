"""One pass over all staged entries, which come in order: keys and the cells they leave.

The loop runs once for every capture of an index. What is nearly always the case, one new entry
under each key of a whole batch, is therefore decided at once for all of them, and for a single
key here; all else is decided by `settle.Rule`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dedupindex.index.format.cells import ALSO, BEFORE, DIGEST_KEY
from dedupindex.index.format.tombstones import REVISIT, lives_in, unmarked
from dedupindex.index.load.merge_rule import Outcome, Rule, checksum, mark_before
from dedupindex.index.load.runs import CHUNK

Cells = list[tuple[bytes, bytes]]


def settled(batches: Iterable[list[bytes]], rule: Rule, outcome: Outcome) -> Iterator[Cells]:
    """Keys and cells, in order, of all staged entries, which come in order."""
    lengths = rule.keys.lengths()
    key, digest, group = b"", b"", list[bytes]()
    for batch in batches:
        cells: Cells = []
        if group and not batch[0].startswith(key):
            digest = _close(key, group, digest, rule, outcome, cells)
            key, group = b"", []
        if not group:
            new = _all_new(batch, lengths, digest, outcome)
            if new:
                cells += new
                digest = new[-1][0][: DIGEST_KEY[batch[0][0]]]
                batch = batch[-1:]
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


_CAPTURE = bytes(first for first in range(256) if first & 3 != REVISIT)
_COUNTED = bytes(second for second in range(256) if not second & (ALSO | BEFORE))


def _all_new(batch: list[bytes], lengths: list[int], digest: bytes, outcome: Outcome) -> Cells:
    """The cells of a batch in which each key has one entry, and that a new one; none if not so.

    The last entry is left out, for its key may go on in the next batch. `digest` is the one last
    counted.
    """
    code = batch[0][0]
    length, end = lengths[code], DIGEST_KEY[code]
    if (
        code != batch[-1][0]
        or bytes([staged[length + 1] for staged in batch]).translate(None, _COUNTED)
        or bytes([staged[length] for staged in batch]).translate(None, _CAPTURE)
        or len({staged[:length] for staged in batch}) != len(batch)
    ):
        return []
    digests = {staged[:end] for staged in batch}
    cells = [(staged[:length], staged[length:]) for staged in batch]
    last = cells.pop()[0][:end]
    if not cells or cells[-1][0][:end] != last:
        digests.discard(last)
    outcome.added += len(cells)
    outcome.captures += len(cells)
    outcome.digests += len(digests) - (digest in digests)
    return cells


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
    key: bytes, group: list[bytes], digest: bytes, rule: Rule, outcome: Outcome, cells: Cells
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
