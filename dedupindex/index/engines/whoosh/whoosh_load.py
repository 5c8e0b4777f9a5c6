"""Loading a Whoosh index: staged entries settled with the documents that are there."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import merge as merge_sorted
from itertools import groupby
from typing import Any

from dedupindex.capture import Capture
from dedupindex.index.engine import Load
from dedupindex.index.engines.whoosh.whoosh_files import (
    META,
    CommitWriter,
    container_key,
    document,
    note_document,
    number_key,
    place_key,
)
from dedupindex.index.engines.whoosh.whoosh_view import WhooshSnapshot
from dedupindex.index.format.cells import DIGEST_KEY, answers, decode, entries_of
from dedupindex.index.format.ledger import Keeper
from dedupindex.index.format.tombstones import lives_in
from dedupindex.index.load.merge_rule import MergeOutcome, MergeRule, checksum, mark_each


class WhooshLoader:
    """One load: what changes goes to `writer`, `before` is what is there (None for nothing).

    Keys come in order, so those of a digest come together: whether a digest is new is asked once
    when its last key has passed.
    """

    def __init__(
        self,
        writer: CommitWriter,
        before: WhooshSnapshot | None,
        rule: MergeRule,
        gone: set[int],
        keeper: Keeper,
    ) -> None:
        self._keeper = keeper
        self._writer, self._before, self._rule, self._gone = writer, before, rule, gone
        self.outcome = MergeOutcome()
        self._digest = b""
        self._held = self._holds = 0
        self._touched: set[int] = set()

    def run(self, batches: Iterable[list[bytes]]) -> MergeOutcome:
        """Take in all staged entries, which come in order."""
        lengths = self._rule.keys.lengths()
        staged = (
            (entry[: lengths[entry[0]]], entry[lengths[entry[0]] :])
            for batch in batches
            for entry in batch
        )
        dropped = ((key, b"") for key in self._keys_of_dropped())
        for key, group in groupby(merge_sorted(staged, dropped), lambda pair: pair[0]):
            if not self._digest or not key.startswith(self._digest):
                self._end_digest()
                self._digest = key[: DIGEST_KEY[key[0]]]
            self._one(key, [entry for _, entry in group if entry])
            self._keeper.take(self.outcome.lost)
        self._end_digest()
        return self.outcome

    def _keys_of_dropped(self) -> list[bytes]:
        """Keys of entries in containers that go, in order."""
        if not self._gone or self._before is None:
            return []
        keys = set()
        for _, content in self._before.contents():
            if content[0]:
                entry = self._before.entry(content)
                if self._goes(entry):
                    keys.add(content[: len(content) - len(entry)])
        return sorted(keys)

    def _goes(self, entry: bytes) -> bool:
        return lives_in(entry, self._gone)

    def _one(self, key: bytes, incoming: list[bytes]) -> None:
        """Settle the entries under one key."""
        old: dict[bytes, int] = {}
        if self._before is not None:
            old = {entry: number for number, entry in self._before.entries(key)}
        held = sum(map(answers, old))
        stay = [entry for entry in old if not (self._gone and self._goes(entry))]
        outcome = self.outcome
        outcome.captures -= held
        count = outcome.captures
        cell = self._rule.settle(key, mark_each(stay) + incoming, outcome)
        new = list(entries_of(cell)) if cell else []
        for entry, number in old.items():
            if entry not in new:
                self._writer.delete_document(number)
                outcome.checksum -= checksum([(key, entry)])
        for entry in new:
            if entry not in old:
                self._add(key, entry)
        self._held += held
        self._holds += outcome.captures - count
        self._touched.update(old.values())

    def _add(self, key: bytes, entry: bytes) -> None:
        capture: Capture | None = None
        if answers(entry):
            capture = decode(key, entry, self._rule.place_of)
        self._writer.add_document(**document(key, entry, capture))
        self.outcome.checksum += checksum([(key, entry)])

    def _end_digest(self) -> None:
        """Count the digest whose keys have all passed."""
        if bool(self._held) != bool(self._holds) and not self._has_others():
            self.outcome.digests += 1 if self._holds else -1
        self._held = self._holds = 0
        self._touched.clear()

    def _has_others(self) -> bool:
        """Whether the digest has captures under keys that this load did not touch."""
        if self._before is None:
            return False
        for key in self._before.keys_from(self._digest):
            for number, entry in self._before.entries(key):
                if number not in self._touched and answers(entry):
                    return True
        return False


def register(
    writer: CommitWriter,
    before: WhooshSnapshot | None,
    load: Load,
    outcome: MergeOutcome,
    ledger: list[str],
) -> None:
    """Write what a load says beside its captures, in the same commit."""
    meta: dict[str, Any] = {"captures": 0, "digests": 0, "containers": 0, "checksum": 0}
    meta |= {"next_number": 1, "note": {}, "own_digests": True}
    if before is not None:
        meta = before.meta()
    for number, place in load.places:
        if before is None or before.about(number_key(number)) is None:
            about = (number_key(number), place_key(place))
            writer.add_document(**note_document(about, [number, *place]))
        meta["next_number"] = max(meta["next_number"], number + 1)
    fresh = {container.name: container for container in load.containers}
    for name in {*load.dropped, *fresh}:
        meta["containers"] -= _forget(writer, before, container_key(name))
    for name, container in fresh.items():
        registration = {"container": container._asdict()}
        writer.add_document(**note_document((container_key(name),), registration))
        meta["containers"] += 1
    for count in ("captures", "digests", "checksum"):
        meta[count] = (meta[count] + getattr(outcome, count)) % (1 << 64)
    if load.note:
        meta["note"] = load.note
    if load.runs and not load.own_digests:
        meta["own_digests"] = False
    meta["ledger"] = ledger
    _forget(writer, before, META)
    writer.add_document(**note_document((META,), meta))


def _forget(writer: CommitWriter, before: WhooshSnapshot | None, about: bytes) -> bool:
    found = before.about(about) if before is not None else None
    if found is not None:
        writer.delete_document(found[0])
    return found is not None
