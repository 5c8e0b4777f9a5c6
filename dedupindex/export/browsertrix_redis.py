"""An index as the keys of Browsertrix: which originals are written, and how each is said.

A crawler that finds a digest there writes a revisit with the URL, the date and the file that stand
beside it, and asks nothing more. So only what may become a revisit is written.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import PurePosixPath
from typing import NamedTuple

from dedupindex.capture import Capture, Covers, Evidence
from dedupindex.digest import CUT_DIGEST, Digest, is_cut
from dedupindex.index.engine import IndexedContainer
from dedupindex.index.format.file_names import files_of
from dedupindex.sources.browsertrix_part import BrowsertrixEntry
from dedupindex.timestamps import digits_of_date

ENCODINGS = {"sha256": 2, "sha1": 0}  # hex, base32: how the crawler spells its digests
NO_PLACE = 999_999_999  # in no list: the revisit then names no file
_UNWRITABLE = re.compile(rb"[\x00-\x20\x7f]")  # would end the URL
_UNNAMEABLE = re.compile(r"[\s:\ud800-\udfff]")  # would end a crawl's name, or begin another key


class Written(NamedTuple):
    """An original as it is written."""

    crawl: str
    digest: bytes
    capture: Capture
    file: IndexedContainer | None  # None: not known


@dataclass
class BrowsertrixExport:
    """What was written, and what was left out, by reason; filled while originals are taken."""

    written: int = 0
    bridged: int = 0  # of them, whose own record has the digest otherwise, or another
    crawls: dict[str, int] = field(default_factory=dict)  # written of each
    left_out: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class ExportChoice:
    """What is to be written, and how."""

    other: str  # the crawl of what is of no crawl
    crawls: frozenset[str] = frozenset()  # only these; none: all
    algorithm: str = "sha256"
    bridge: bool = False  # also originals whose own record spells it otherwise, or states another


class ContainerFiles:
    """The files that containers are in; their names are held in memory."""

    def __init__(self, registered: Callable[[str], IndexedContainer | None]) -> None:
        self._registered = registered
        self._known: dict[str, IndexedContainer | None] = {"": None}

    def of(self, container: str) -> IndexedContainer | None:
        """The file of a capture's container, None if it names none."""
        if container not in self._known:
            files = filter(None, map(self._registered, files_of(container)))
            self._known[container] = next(files, IndexedContainer(container, -1, "", 0))
        return self._known[container]


def originals(
    captures: Iterable[tuple[Digest, Capture]],
    files: ContainerFiles,
    choice: ExportChoice,
    exported: BrowsertrixExport,
) -> Iterator[Written]:
    """What is to be written, of captures in the order of digests; of each digest one for a crawl.

    Holds one digest at a time.
    """
    without = 0
    for digest, group in groupby(captures, itemgetter(0)):
        best: dict[str, Capture] = {}
        for _, capture in group:
            own = capture.digest == digest
            if digest.algorithm != choice.algorithm:
                without += own
                continue
            without -= not own
            crawl = capture.crawl or choice.other
            if reason := _unfit(digest, capture, crawl, choice):
                exported.left_out[reason] += 1
                continue
            before = best.setdefault(crawl, capture)
            if before is not capture:
                exported.left_out["same-digest"] += 1
                best[crawl] = min(before, capture, key=_order)
        for crawl, capture in best.items():
            exported.written += 1
            exported.bridged += not _own(digest, capture)
            exported.crawls[crawl] = exported.crawls.get(crawl, 0) + 1
            yield Written(crawl, _spelled(digest), capture, files.of(capture.container))
    if without > 0:
        exported.left_out[f"no-{choice.algorithm}"] = without


def entry(written: Written, place: int) -> BrowsertrixEntry:
    """What is written beside a digest, `place` being that of the file in its crawl's list."""
    capture = written.capture
    fraction = (capture.date[20:-1] + b"000")[:3]  # milliseconds, as many as the form has
    digits = digits_of_date(capture.date) + fraction
    # After a hit of size 0 the crawler takes its own revisit for an original.
    return BrowsertrixEntry(place, digits, capture.url, max(capture.size, 1))


def listed(file: IndexedContainer) -> bytes:
    """A file as Browsertrix lists it. Its hash would be a SHA-256, which we do not have."""
    value: dict[str, str | int] = {"filename": PurePosixPath(file.name).name}
    if file.size >= 0:
        value["size"] = file.size
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def _order(capture: Capture) -> tuple[Evidence, bytes, bytes]:
    """What was read is better than what stands in a row, the earlier than the later."""
    return capture.evidence, capture.date[:-1], capture.url


def _spelled(digest: Digest) -> bytes:
    text = digest.raw.hex() if digest.algorithm == "sha256" else str(digest).partition(":")[2]
    return text.encode()


def _unfit(digest: Digest, capture: Capture, crawl: str, choice: ExportChoice) -> str:
    """Why Browsertrix cannot use a capture, "" if it can."""
    if choice.crawls and crawl not in choice.crawls:
        return "other-crawl"
    if _UNNAMEABLE.search(crawl):
        return "crawl-name"
    if is_cut(digest.raw):
        return CUT_DIGEST
    if not (choice.bridge or _own(digest, capture)):
        return "spelled-otherwise"
    if capture.status and capture.status // 100 != 2:
        return "status"
    if capture.covers == Covers.STORED:
        return "chunked"  # its digest covers the framing, the crawler's never does
    if _UNWRITABLE.search(capture.url):
        return "url-with-spaces"
    return ""


def _own(digest: Digest, capture: Capture) -> bool:
    """Whether a capture's own record has a digest as the crawler writes it."""
    encoding = ENCODINGS[digest.algorithm]
    return capture.digest == digest and capture.spelling.encoding == encoding
