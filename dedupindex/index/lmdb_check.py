"""Reading a whole LMDB index back: is what is stored what was written?"""

from __future__ import annotations

import lmdb

from dedupindex.errors import Damaged
from dedupindex.index import byurl
from dedupindex.index.answer_bytes import BROKEN
from dedupindex.index.cells import Place, digest_of_key, digest_prefix
from dedupindex.index.lmdb_trees import key_of
from dedupindex.index.lmdb_view import LmdbView
from dedupindex.index.settle import checksum


def problems(view: LmdbView) -> list[str]:
    """What is wrong, in sentences: order, keys, entries, names and counts are all read back."""
    wrong: list[str] = []
    try:
        _check_captures(view, wrong)
        list(view.containers())
        for key, number in view.txn.cursor(db=view.trees.names):
            if key[:1] in b"=@":
                place = view.place_of(int.from_bytes(number))
                if key not in (key_of(place), key_of(Place(place.container))):
                    wrong.append(f"container number {int.from_bytes(number)} has another name")
    except (lmdb.Error, *BROKEN, TypeError) as error:
        wrong.append(f"the index cannot be read to its end: {error!r}")
    return wrong


def _check_captures(view: LmdbView, wrong: list[str]) -> None:
    last, captures, digests, prefix, total = b"", 0, 0, b"", 0
    urls = view.trees.urls
    for key, cell in view.cells():
        total += checksum([(key, cell)])
        if key <= last:
            wrong.append(f"keys are out of order at {key.hex()}")
        last = key
        try:
            found = view.decoded(key, cell)
            digest = digest_prefix(digest_of_key(key))
            for capture in found:
                if view.keys.of(digest_of_key(key), capture.url) != key:
                    wrong.append(f"the entry under {key.hex()} belongs under another key")
        except (Damaged, *BROKEN) as error:
            wrong.append(f"the entry under {key.hex()} is damaged: {error}")
            continue
        captures += len(found)
        if urls is not None and byurl.listed(cell) and not byurl.holds(view.txn, urls, key):
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
