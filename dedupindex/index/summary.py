"""What an index holds, by host, year, month, media type, status, size and crawl.

`summarize` reads index and ledger once, in the order of keys. The numbers of all groups are exact;
the largest groups are kept by name, and the others are the difference to the total. Memory use
does not grow with the index. The result is written to a file in the directory of the index, since
no page can read a large index for each request; `View.state` tells whether it is still current.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from dedupindex.capture import Capture
from dedupindex.counts import OnProgress
from dedupindex.index.engine import Engine, View
from dedupindex.index.format import cells
from dedupindex.index.format.ledger import Dependent
from dedupindex.index.same_payload import by_key, revisits, stored
from dedupindex.runtime.bounded_counter import Sums
from dedupindex.runtime.files import write_file
from dedupindex.runtime.progress import watched
from dedupindex.timestamps import digits_of_date
from dedupindex.urlkey import counted_host

FILE = "summary.json"
FORMAT = 4  # of earlier ones the numbers mean something else: they are counted anew
COLUMNS = (
    "captures",  # stored in full, as far as the index knows
    "bytes",  # of their payloads
    "unsized",  # of these captures, those whose payload has no known size: they add no bytes
    "duplicates",  # captures whose payload is stored by an earlier capture as well
    "duplicate_bytes",
    "duplicates_unsized",  # of these duplicates, those whose payload has no known size
    "revisits",  # records that refer to an original instead of repeating its payload
    "revisit_bytes",  # of payload that they saved, as far as known
    "revisits_unsized",  # of these revisits, those whose payload has no known size
)
DIMENSIONS = ("host", "year", "month", "mime", "status", "size", "crawl")
ORDERS = ("bytes", "captures", "duplicate_bytes", "revisit_bytes")
SIZES = (  # upper bounds of classes, and their names in the order of sizes
    (1_000, "below 1 kB"),
    (10_000, "1 kB to 10 kB"),
    (100_000, "10 kB to 100 kB"),
    (1_000_000, "100 kB to 1 MB"),
    (10_000_000, "1 MB to 10 MB"),
    (100_000_000, "10 MB to 100 MB"),
)
LARGEST, NO_SIZE = "100 MB and more", ""
_TOP, _TOP_OF_TIME = 200, 1200  # groups kept by name, for each of `ORDERS`
_HELD = 10_000  # captures and revisits of one digest in memory
_GROUPS = 50_000  # combinations of headings in memory
_LONGEST = 255  # bytes of a heading
_HOSTS_IN_MEMORY, _OTHERS_IN_MEMORY = 200_000, 20_000

Row = dict[str, Any]


class _Item(NamedTuple):
    """A capture or revisit of the digest that is being read."""

    date: bytes  # 14 digits
    host: bytes
    month: bytes
    mime: bytes
    status: int
    crawl: str
    size: int  # bytes of payload, -1 unknown
    is_revisit: bool


class _Survey:
    """Adds up captures and revisits, digest by digest."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._sums = {
            name: Sums(
                len(COLUMNS),
                keys_in_memory=_HOSTS_IN_MEMORY if name == "host" else _OTHERS_IN_MEMORY,
            )
            for name in DIMENSIONS
        }
        self._groups: dict[tuple[bytes, bytes, int, str, str], list[int]] = {}
        self._digest, self._items, self._size = b"", list[_Item](), -1

    def add(self, key: bytes, cell: bytes, ledger: list[bytes]) -> None:
        """Add what index and ledger have under a key; keys come in order."""
        digest = key[: cells.DIGEST_KEY[key[0]]]
        if digest != self._digest:
            self._end_digest()
            self._digest = digest
        for entry in stored(cell, ledger, self._place):
            self._hold(_item_of(cells.decode(key, entry, self._place)))
        for dependent in revisits(ledger):
            if not dependent.refused:
                self._hold(_item_of_revisit(dependent, self._place(dependent.container).crawl))

    def _place(self, number: int) -> cells.ContainerRef:
        return self._view.place_of(number) if number else cells.NOWHERE

    def _hold(self, item: _Item) -> None:
        self._items.append(item)
        self._size = max(self._size, item.size)
        if len(self._items) >= _HELD:
            self._items = self._count(keep_first=True)

    def _end_digest(self) -> None:
        self._count(keep_first=False)
        self._items, self._size = [], -1

    def _count(self, *, keep_first: bool) -> list[_Item]:
        """Count the items of a digest; the earliest capture is no duplicate.

        With `keep_first` it is returned uncounted, as an earlier one may follow.
        """
        first = min((item for item in self._items if not item.is_revisit), default=None)
        kept = [] if first is None or not keep_first else [first]
        for item in self._items:
            if item is first:
                if not kept:
                    self._add(item, first, is_duplicate=False)
            else:
                self._add(item, first, is_duplicate=True)
        return kept

    def _add(self, item: _Item, first: _Item | None, *, is_duplicate: bool) -> None:
        own = item.size if item.size >= 0 else self._size  # else that of another with the payload
        size, known = max(own, 0), own >= 0
        if item.is_revisit:
            amounts = (0, 0, 0, 0, 0, 0, 1, size, int(not known))
            if first is not None:  # the same payload: a revisit states neither
                item = item._replace(mime=first.mime, status=first.status)
        else:
            again, unsized = int(is_duplicate), int(not known)
            amounts = (1, size, unsized, again, again * size, again * unsized, 0, 0, 0)
        self._sums["host"].add(item.host, *amounts)
        size_class = size_class_of(own)
        group = item.month, item.mime, item.status, size_class, item.crawl
        sums = self._groups.get(group)
        if sums is None:
            if len(self._groups) >= _GROUPS:
                self._flush()
            sums = self._groups[group] = [0] * len(COLUMNS)
        for column, amount in enumerate(amounts):
            sums[column] += amount

    def _flush(self) -> None:
        for (month, mime, status, size, crawl), amounts in self._groups.items():
            headings = {
                "year": month[:4], "month": month, "mime": mime[:_LONGEST],
                "status": str(status or "").encode(), "size": size.encode(),
                "crawl": crawl.encode("utf-8", "surrogateescape"),
            }  # fmt: skip
            for name, heading in headings.items():
                self._sums[name].add(heading, *amounts)
        self._groups = {}

    def result(self) -> dict[str, Any]:
        """Return the total and the largest groups of each dimension."""
        self._end_digest()
        self._flush()
        total = dict.fromkeys(COLUMNS, 0)
        for _, amounts in self._sums["size"].items():
            for name, amount in zip(COLUMNS, amounts, strict=True):
                total[name] += amount
        groups = {name: _largest(name, sums) for name, sums in self._sums.items()}
        return {"total": total, "by": groups}


def size_class_of(size: int) -> str:
    """Return the name of a payload's size class, `NO_SIZE` if the size is not known."""
    if size < 0:
        return NO_SIZE
    return next((name for bound, name in SIZES if size < bound), LARGEST)


def _item_of(capture: Capture) -> _Item:
    size = -1 if capture.size_of_record else capture.size
    return _Item(
        digits_of_date(capture.date), counted_host(capture.url)[:_LONGEST], capture.date[:7],
        capture.mime, capture.status, capture.crawl, size, False,
    )  # fmt: skip


def _item_of_revisit(revisit: Dependent, crawl: str) -> _Item:
    host, date = counted_host(revisit.url)[:_LONGEST], revisit.date
    return _Item(digits_of_date(date), host, date[:7], b"", 0, crawl, revisit.size, True)


def _largest(name: str, sums: Sums) -> dict[str, Any]:
    """Return how many groups there are, and the largest by each of `ORDERS`."""
    kept: dict[bytes, tuple[int, ...]] = {}
    for order in ORDERS:
        most = _TOP_OF_TIME if name in ("year", "month") else _TOP
        kept |= dict(sums.largest(most, COLUMNS.index(order)))
    rows = [
        {
            name: heading.decode("utf-8", "backslashreplace") or None,
            **dict(zip(COLUMNS, amounts, strict=True)),
        }
        for heading, amounts in kept.items()
    ]
    return {"groups": len(sums), "rows": rows}


def known_bytes(row: Row) -> Row:
    """Return a row or total whose bytes are None where the size of no payload is known.

    No payload that is counted is empty.
    """
    counted = {"bytes": "captures", "duplicate_bytes": "duplicates", "revisit_bytes": "revisits"}
    unknown = [size for size, count in counted.items() if row[count] and not row[size]]
    return {**row, **dict.fromkeys(unknown)}


class Ranking(NamedTuple):
    """The largest groups of a dimension, and the others together."""

    by: str
    order: str
    rows: list[Row]
    others: Row | None  # the sums of all other groups, exact; None if there are none
    groups: int  # in all


def ranking(summary: dict[str, Any], by: str, order: str, top: int) -> Ranking:
    """Return the `top` largest groups; those of time and size come in their own order."""
    known = summary["by"][by]
    rows = sorted(known["rows"], key=lambda row: (-row[order], row[by] or ""))[:top]
    total, rest = summary["total"], known["groups"] - len(rows)
    others = {name: total[name] - sum(row[name] for row in rows) for name in COLUMNS}
    if by in ("year", "month"):
        rows.sort(key=lambda row: row[by] or "", reverse=True)
    if by == "size":
        names = [*(name for _, name in SIZES), LARGEST, None]
        rows.sort(key=lambda row: names.index(row[by]))
    return Ranking(by, order, rows, {"groups": rest, **others} if rest else None, known["groups"])


def summarize(engine: Engine, on_progress: OnProgress = lambda seen: None) -> dict[str, Any]:
    """Read an index once, and return what it holds."""
    started = time.monotonic()
    with engine.view() as view:
        survey, keys = _Survey(view), engine.identity.settings.keys()
        read = watched(by_key(view, keys), "reading", view.counts().captures, on_progress)
        for key, cell, ledger in read:
            survey.add(key, cell, ledger)
        counts, state = view.counts()._asdict(), view.state()
    return {
        "format": FORMAT,
        "state": state,
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "seconds": round(time.monotonic() - started, 3),
        "counts": counts,
        **survey.result(),
    }


def write_summary(index: Path, summary: dict[str, Any]) -> None:
    """Write a summary beside the data of its index."""
    write_file(index / FILE, orjson.dumps(summary) + b"\n")


def read_summary(index: Path) -> dict[str, Any] | None:
    """Return the last summary of an index, None if there is none that can be read."""
    with suppress(OSError, ValueError):
        content = orjson.loads((index / FILE).read_bytes())
        if isinstance(content, dict) and content.get("format") == FORMAT:
            return content
    return None
