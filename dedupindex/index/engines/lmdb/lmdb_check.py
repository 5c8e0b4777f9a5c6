"""Reading a whole LMDB index back: is what is stored what was written?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import lmdb

from dedupindex.errors import Damaged
from dedupindex.index.engines.lmdb.lmdb_trees import key_of
from dedupindex.index.engines.lmdb.lmdb_view import LmdbView
from dedupindex.index.format import url_index
from dedupindex.index.format.cells import digest_of_key, digest_prefix, unsealed
from dedupindex.index.format.fast_answer import BROKEN
from dedupindex.index.load.merge_rule import checksum


def problems(view: LmdbView) -> list[str]:
    """What is wrong, in sentences: order, keys, entries, names and counts are all read back."""
    wrong: list[str] = []
    try:
        _check_captures(view, wrong)
        for tree in (view.trees.containers, view.trees.meta):
            for _ in _sound(view, tree, wrong):
                pass
        _check_names(view, wrong)
    except (lmdb.Error, Damaged, *BROKEN, TypeError) as error:
        wrong.append(f"the index cannot be read to its end: {error!r}")
    return wrong


def _sound(view: LmdbView, tree: Any, wrong: list[str]) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a tree that have their checksums; the others are named."""
    for key, stored in view.txn.cursor(db=tree):
        if view.txn.get(key, db=tree) != stored:
            wrong.append(f"what is stored under {key.hex()} is not found by its key")
        try:
            yield key, unsealed(key, stored)
        except Damaged as error:
            wrong.append(str(error))


def _check_names(view: LmdbView, wrong: list[str]) -> None:
    for key, value in _sound(view, view.trees.names, wrong):
        number = int.from_bytes(key[1:] if key[:1] == b"#" else value, "big")
        try:
            place = view.place_of(number)
            if key not in (key_of(place), b"#" + number.to_bytes(4, "big")):
                wrong.append(f"container number {number} has another name")
            elif view.number_of(place) != number:
                wrong.append(f"container number {number} is not found by its name")
        except Damaged as error:
            wrong.append(str(error))


def _check_captures(view: LmdbView, wrong: list[str]) -> None:
    last, captures, digests, prefix, total = b"", 0, 0, b"", 0
    urls = view.trees.urls
    for key, stored in view.stored():
        if key <= last:
            wrong.append(f"keys are out of order at {key.hex()}")
        last = key
        if view.txn.get(key) != stored:  # the way there is damaged: readers in order do not see it
            wrong.append(f"what is stored under {key.hex()} is not found by its key")
        try:
            cell = unsealed(key, stored)
            found = view.decoded(key, cell)
            digest = digest_prefix(digest_of_key(key))
            for capture in found:
                if view.keys.of(digest_of_key(key), capture.url) != key:
                    wrong.append(f"the entry under {key.hex()} belongs under another key")
        except (Damaged, *BROKEN) as error:
            wrong.append(f"the entry under {key.hex()} is damaged: {error}")
            continue
        total += checksum([(key, cell)])
        captures += len(found)
        if urls is not None and url_index.listed(cell) and not url_index.holds(view.txn, urls, key):
            wrong.append(f"the capture under {key.hex()} is not listed by its URL")
        digests += bool(found) and digest != prefix
        prefix = digest if found else prefix
    counted = view.counts()
    if (captures, digests) != (counted.captures, counted.digests):
        wrong.append(
            f"{captures} captures of {digests} digests are there, "
            f"{counted.captures} of {counted.digests} were counted"
        )
    if total % (1 << 64) != view.trees.get(view.txn, "checksum"):
        wrong.append("what is stored is not what was written (its checksum is another)")
