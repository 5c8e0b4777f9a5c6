"""What became of a file that was rewritten, or of many."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from dedupindex.object_store import is_remote
from dedupindex.post_crawl.manifest.parquet import ManifestContainer
from dedupindex.runtime.tables import names_text
from dedupindex.sources.warc_files import SourceFile
from dedupindex.urlkey import host_of

_NAMED = 10  # results that a message names
_COUNTS = (
    "files", "records", "revisits", "trusted", "bytes_before", "bytes_after",
)  # fmt: skip


@dataclass
class RewriteOutcome:
    """What became of one file, or of many."""

    name: str = ""
    # rewritten, kept (no gain), existing (an earlier run did it) or left_alone; after all these
    # referring: one that existed, and refers to a file that was left alone
    state: str = ""
    problem: str = ""  # why it was left alone
    path: str = ""
    files: int = 1
    records: int = 0  # that the plan names
    revisits: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    refused: Counter[str] = field(default_factory=Counter)  # records that stay, by reason
    refused_bytes: Counter[str] = field(default_factory=Counter)  # that these take in their files
    elsewhere: str = ""  # why the first original of another host could not be read
    hosts: dict[str, list[int]] = field(default_factory=dict)  # revisits and bytes saved of each
    outside: dict[str, int] = field(default_factory=dict)  # revisits by files of an index
    original_files: list[int] = field(default_factory=list)  # that its revisits refer to
    # revisits in other files, by the file named .zst that has their original
    zstd_originals: Counter[str] = field(default_factory=Counter)
    trusted: int = 0  # revisits whose originals were not read
    journal: int = 0  # bytes that are kept to undo it
    removed: int = 0  # bytes that the records took which became revisits

    def add(self, other: RewriteOutcome) -> None:
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.removed += other.removed
        self.refused.update(other.refused)
        self.refused_bytes.update(other.refused_bytes)
        self.zstd_originals.update(other.zstd_originals)
        self.elsewhere = self.elsewhere or other.elsewhere

    def refuse(self, reason: str, stored: int, records: int = 1) -> None:
        """Count records that stay, and the bytes that they take in their file."""
        self.refused[reason] += records
        self.refused_bytes[reason] += stored

    def add_revisit(
        self, url: bytes, before: int, after: int, original: str, *, outside: bool
    ) -> None:
        """Count a revisit, with the bytes that it and the record before it take.

        `original` is the file of its original, which may be `outside` of the set.
        """
        self.revisits += 1
        self.removed += before
        if is_named_zstd(original) and not is_named_zstd(self.path):
            self.zstd_originals[original] += 1
        if outside:
            self.outside[original] = self.outside.get(original, 0) + 1
        host = self.hosts.setdefault(host_of(url).decode("latin-1"), [0, 0])
        host[0], host[1] = host[0] + 1, host[1] + before - after

    def as_json(self) -> dict[str, Any]:
        counts = {name: getattr(self, name) for name in _COUNTS}
        counts["originals_in_zstd"] = self.zstd_originals.total()
        by_reason = {"refused": self.refused, "refused_bytes": self.refused_bytes}
        return {**counts, **{name: dict(sorted(one.items())) for name, one in by_reason.items()}}


def outcome_of(
    file: ManifestContainer | SourceFile, state: str, problem: str = ""
) -> RewriteOutcome:
    """Return the outcome of a file that is not changed."""
    return RewriteOutcome(file.name, state, problem, file.path, 1, 0, 0, file.size, file.size)


def sized_now(outcome: RewriteOutcome) -> RewriteOutcome:
    """Return an outcome in place with the size that a file has which was not replaced.

    While this run was interrupted, another one may have replaced it.
    """
    if outcome.state in ("kept", "left_alone") and not is_remote(outcome.path):
        with suppress(OSError):
            size = os.path.getsize(outcome.path)
            return replace(outcome, bytes_before=size, bytes_after=size)
    return outcome


def zstd_text(found: Counter[str], *, dry: bool, in_place: bool) -> str:
    """Say what `RewriteOutcome.zstd_originals` mean for replay; empty if there are none."""
    if not (count := found.total()):
        return ""
    refer = "would refer" if dry else "refer"
    one = f"1 revisit in a file that is not zstd {refer if dry else 'refers'} to an original in"
    many = f"{count:,} revisits in files that are not zstd {refer} to originals in"
    undo = "undo this, " if in_place else "delete the results and the working files, "
    return (
        f"{one if count == 1 else many} .zst files, which many replay tools (pywb, warcio) cannot "
        f"read: {names_text(sorted(+found), _NAMED)}. To avoid that, {'' if dry else undo}convert "
        "these files (bin/convert --to gzip FILE... --out DIR), put the converted files in their "
        "place in the source, and repeat this"
    )


def referring_text(results: Sequence[str]) -> str:
    """Say which results existed and refer to files that were left alone; empty if none do."""
    if not results:
        return ""
    files = "1 file exists already and refers"
    if len(results) > 1:
        files = f"{len(results):,} files exist already and refer"
    return (
        f"{files} to records in files that were left alone: {names_text(results, _NAMED)}. Nothing "
        "replaces what is there: bin/verify OUT says whether those records still are. To "
        "deduplicate again after a record was taken out, take it out of SOURCE, too, and name "
        "another --out (in a store, and another --state)"
    )


def is_named_zstd(path: str) -> bool:
    """Return whether a file is named like one that many replay tools cannot read."""
    return path.lower().endswith(".zst")
