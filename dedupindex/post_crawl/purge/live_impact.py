"""The revisits that depend on what goes of crawls that are not merged, after the index was read.

A crawl may be dropped at any time, so what only crawls have reported keeps no payload of a revisit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, groupby
from typing import NamedTuple

from dedupindex.index.format import cells
from dedupindex.index.format.ledger import split_items
from dedupindex.index.format.tombstones import NAMED, REVISIT, encode_purged
from dedupindex.post_crawl.purge.dependents import KeyChange, LedgerCursor
from dedupindex.post_crawl.purge.survey_impact import ImpactSurvey, size_of


class LiveCell(NamedTuple):
    """The entries of a crawl, by its number, that go under a key."""

    key: bytes
    crawl: int
    taken: list[bytes]


class LiveImpact:
    """Adds to a `survey`, after its `run`, the revisits that depend on entries of crawls.

    With a writer it stages tombstones for them if the target is by URL.
    """

    def __init__(self, survey: ImpactSurvey, going: Callable[[bytes], Iterator[LiveCell]]) -> None:
        """`going` yields what goes of crawls under keys with a prefix, in the order of keys."""
        self._survey, self._target, self._view = survey, survey.target, survey.view
        self._going, self._digest = going, survey.digest

    def add(self, found: list[LiveCell]) -> None:
        """Count for some of what goes; each is given once, in any order."""
        writer = self._survey.writer
        if writer is not None and self._target.by_url:
            for key, _, taken in found:  # else the index would take these when it reads their files
                writer.extend([key + encode_purged(one, anywhere=True) for one in taken])
        prefixes = [one.key[: cells.DIGEST_KEY[one.key[0]]] for one in found]
        with self._digest:
            for one, prefix, known in zip(
                found, prefixes, self._view.in_ledger(prefixes), strict=True
            ):
                if known and self._is_first(one, prefix):
                    self._add_digest(prefix)

    def _is_first(self, one: LiveCell, prefix: bytes) -> bool:
        """Return whether nothing else with the digest goes before: each digest is read once."""
        first = next(self._going(prefix), None)
        return first is not None and first[:2] == one[:2]

    def _add_digest(self, prefix: bytes) -> None:
        """Count the revisits that depend on what goes with a digest."""
        stays, goes = self._of_index(prefix)
        if goes and not stays:  # so all revisits of the digest were counted
            return
        digest = self._digest
        digest.begin(prefix)
        if stays:
            digest.keep()
            keys = (key for key, _ in groupby(self._going(prefix), lambda one: one.key))
        else:
            items = split_items(self._view.ledger(prefix), self._target.keys)
            keys = (key for key, _ in groupby(items, lambda item: item[0]))
        for one in self._going(prefix):
            if any(entry[0] & 3 != NAMED for entry in one.taken):
                digest.remove(max(size_of(one.key, entry) for entry in one.taken))
                break
        for key in keys:
            self._add_key(key)
        digest.end(())

    def _of_index(self, prefix: bytes) -> tuple[bool, bool]:
        """Return whether a stored capture with a digest stays in the index, and whether one goes.

        All that goes need not be known if one stays.
        """
        goes, ledger = False, LedgerCursor(self._view.ledger(prefix))
        for key, cell in self._view.cells(prefix):
            ledger.skip_to(key, prefix, lambda item: None)
            contents = self._survey.contents(key, cell, ledger.copies(key))
            if contents.keeps():
                return True, goes
            goes = goes or contents.removes()
        return False, goes

    def _add_key(self, key: bytes) -> None:
        """Count the revisits whose originals, as they name them, have a key.

        Of captures that the index has, too, the index says whether they go. What only a revisit
        says of an original does not keep it, unless the target takes that as well.
        """
        ledger = LedgerCursor(self._view.ledger(key))
        copies = ledger.copies(key)
        known = list(self._own(key, copies))
        if counted := [one for one in known if self._target.takes(key, one)]:
            captures = _captures(one for one in known if one not in counted)
            change = KeyChange(_sizes(key, counted), captures, {url for _, url in captures})
            self._digest.count(key, ledger.dependents(key), change, counted=True)
            ledger = LedgerCursor(self._view.ledger(key))
            ledger.copies(key)
        captures, taken = _captures(known), [one.taken for one in self._going(key)]
        if not taken:
            for body in ledger.dependents(key):
                self._digest.add_other(key + body)
            return
        sizes = {
            one: size for one, size in _sizes(key, chain(*taken)).items() if one not in captures
        }
        change = KeyChange(sizes, captures, {url for _, url in captures})
        self._digest.count(key, ledger.dependents(key), change)

    def _own(self, key: bytes, copies: Iterable[bytes]) -> Iterator[bytes]:
        """Yield what index and ledger have under a key; claims only if the target is by URL."""
        cell = self._view.cell(key)
        for one in chain(map(cells.strip_flags, cells.entries_of(cell)) if cell else (), copies):
            kind = one[0] & 3
            if kind < NAMED or (kind != REVISIT and self._target.by_url):
                yield one


def _captures(entries: Iterable[bytes]) -> set[tuple[bytes, bytes]]:
    """Return second and packed URL of captures."""
    return {(one[2:8], cells.packed_url(one)) for one in entries}


def _sizes(key: bytes, entries: Iterable[bytes]) -> dict[tuple[bytes, bytes], int]:
    return {(one[2:8], cells.packed_url(one)): size_of(key, one) for one in entries}
