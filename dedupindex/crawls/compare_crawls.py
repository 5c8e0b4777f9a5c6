"""Two crawls of an index compared: what is new, gone, the same and changed, by host.

Compared is, for each URL, what it answered last in each of the two crawls, stored in full or as a
revisit. Index and ledger are read once, in the order of digests; what they have of the two crawls
is then sorted by URL, on disk, so that memory does not grow.

A crawl that asks while it runs reports what it stores; its revisits are known when its files are
read. Without them a URL that has not changed looks as if it were gone, so that is a warning.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass
from itertools import chain, count, groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

from xxhash import xxh3_128_hexdigest

from dedupindex.counts import OnProgress, silent
from dedupindex.crawls import statistics
from dedupindex.crawls.crawl import CrawlState
from dedupindex.crawls.crawl_report import left_unknown
from dedupindex.crawls.parse_report import self_report_of
from dedupindex.crawls.store import Store, some_of
from dedupindex.crawls.stores import indexed_crawl_names, open_store, removed_in
from dedupindex.crawls.unread_crawls import absent_files, read_for_others
from dedupindex.errors import BadQuery, UnknownCrawl, as_named
from dedupindex.index import open_index
from dedupindex.index.engine import IndexedContainer, View, reread
from dedupindex.index.format import cells
from dedupindex.index.format.file_names import last_name
from dedupindex.index.same_payload import by_key, revisits, stored
from dedupindex.runtime.bounded_counter import Sums
from dedupindex.runtime.external_sort import sorted_lines
from dedupindex.runtime.progress import watched
from dedupindex.runtime.report_table import exact_percent, rounded_shares
from dedupindex.runtime.tables import names_text, singular
from dedupindex.timestamps import date_of_digits, digits_of_date
from dedupindex.urlkey import counted_host

CHANGES = ("new", "gone", "same", "changed")  # of URLs, from the first crawl to the second
_SIDES = ("first", "second")
_OF_EACH = ("stored", "stored_bytes", "revisits", "revisit_bytes")
COLUMNS = (
    *(name for change in CHANGES for name in (change, f"{change}_bytes")),
    *(f"first_{name}" for name in _OF_EACH),
    *(f"second_{name}" for name in _OF_EACH),
    "unsized",  # captures and revisits whose payload has no known size: they add no bytes
)
_SIZES = {
    **{change: f"{change}_bytes" for change in CHANGES},
    **{f"{side}_stored": f"{side}_stored_bytes" for side in _SIDES},
    **{f"{side}_revisits": f"{side}_revisit_bytes" for side in _SIDES},
}  # of counts, the columns with their bytes
SHARES = tuple(f"{change}_percent" for change in CHANGES)  # of all URLs, in per cent
ORDERS = ("second_stored_bytes", "first_stored_bytes", *COLUMNS[:8])
_COLUMN = {name: place for place, name in enumerate(COLUMNS)}
MOST = 10_000  # hosts by name
_HELD = 10_000  # captures and revisits of one digest in memory
_LONGEST = 255  # bytes of a host
_NAMED = 5  # files in a sentence
_PERHAPS_READ = (
    "If all its WARCs were read, no revisit is missing, and the numbers are right: its crawler has "
    "stored these in full, or asked twice for a URL in one second, which counts once. If not, read "
    "the others:"
)
_CRAWLS = 10  # of them in a sentence


class CrawlComparison(NamedTuple):
    first: str
    second: str
    total: dict[str, Any]
    hosts: int
    rows: list[dict[str, Any]]  # the largest hosts
    others: dict[str, Any] | None  # the sums of all other hosts, exact
    # Sentences on files that were not read, or purged; if there are any, `CHANGES` are not known.
    warnings: list[str]
    remarks: list[str]  # on files of which some records could not be read, and wrong order

    def as_json(self) -> dict[str, Any]:
        return dict(rounded_shares(self._asdict()))


class _SeenUrl(NamedTuple):
    """What a URL answered in one of the crawls."""

    side: int  # 0 in the first crawl, 1 in the second
    date: bytes  # 14 digits
    digest: bytes
    size: int  # bytes of payload, -1 unknown
    is_revisit: bool


@dataclass
class _Side:
    """What was read of one of the crawls."""

    refused: int = 0  # revisits of payloads that the index refuses
    earliest: bytes = b"99991231235959"  # date of a capture or revisit, 14 digits
    latest: bytes = b""

    def add(self, date: bytes) -> None:
        self.earliest, self.latest = min(self.earliest, date), max(self.latest, date)


def compare(
    index: Path, first: str, second: str, order: str, top: int, on_progress: OnProgress = silent
) -> CrawlComparison:
    """Compare two crawls; `top` hosts by one of `ORDERS`, at most `MOST` (0: as many).

    Raises `UnknownCrawl` if the index has nothing of one of them, and `BadQuery`.
    """
    if order not in ORDERS:
        raise BadQuery(f"there is no order {order[:64]!r}; there are {', '.join(ORDERS)}")
    if first == second:
        raise BadQuery("name two crawls: these are the same")
    with ExitStack() as stack:
        store = open_store(index)
        if store is not None:
            stack.enter_context(closing(store))
        engine = stack.enter_context(closing(open_index(index)))
        view = stack.enter_context(engine.view())
        sides = _sides(view, store, first, second)
        sums, total, seen = Sums(len(COLUMNS)), [0] * len(COLUMNS), (_Side(), _Side())
        keys = engine.identity.settings.keys()
        known = watched(by_key(view, keys), "reading", view.counts().captures, on_progress)
        lines = _sorted(_lines(view, known, sides, seen), on_progress)
        for _, group in groupby(lines, key=lambda line: line[:32]):
            host, amounts = _changes(group)
            sums.add(host, *amounts)
            for column, amount in enumerate(amounts):
                total[column] += amount
        for side, name in zip(_SIDES, (first, second), strict=True):
            if not total[_COLUMN[f"{side}_stored"]] + total[_COLUMN[f"{side}_revisits"]]:
                _require_known(view, store, name)
        warnings = [] if store is None else _unread(view, store, {
            first: total[_COLUMN["first_revisits"]] + seen[0].refused,
            second: total[_COLUMN["second_revisits"]] + seen[1].refused,
        })  # fmt: skip
        warnings += _purged(view, store, first, second)
        remarks = _damaged(view, first, second)
        if seen[0].earliest > seen[1].latest > b"":
            remarks.append(_later(first, second, seen[1].latest))
    largest = list(sums.largest(min(top or MOST, MOST), _COLUMN[order]))
    rows: list[dict[str, Any]] = [
        {"host": host.decode("utf-8", "backslashreplace") or None, **_named(amounts)}
        for host, amounts in largest
    ]
    hosts = len(sums)
    rest = [whole - sum(part[at] for _, part in largest) for at, whole in enumerate(total)]
    return CrawlComparison(
        first, second, _named(total), hosts, rows,
        {"hosts": hosts - len(rows), **_named(rest)} if hosts > len(rows) else None,
        warnings, remarks,
    )  # fmt: skip


def _named(amounts: list[int] | tuple[int, ...]) -> dict[str, Any]:
    """Return amounts by name, with shares; bytes are None if the size of no payload is known.

    No payload that is counted is empty.
    """
    named: dict[str, Any] = dict(zip(COLUMNS, amounts, strict=True))
    for counted, size in _SIZES.items():
        if named[counted] and not named[size]:
            named[size] = None
    urls = sum(named[change] for change in CHANGES)
    shares = (exact_percent(named[change], urls) for change in CHANGES)
    return {**named, **dict(zip(SHARES, shares, strict=True))}


def _sides(view: View, store: Store | None, first: str, second: str) -> dict[int, int]:
    """Return the container numbers of two crawls, and whether each is of the second."""
    names = {first: 0, second: 1}
    sides, known = dict[int, int](), set[str]()
    for number, place in view.places():
        if place.crawl in names:
            sides[number] = names[place.crawl]
        known.add(place.crawl)
    for name in names:
        if name not in known:
            raise _unknown(name, view, store)
    return sides


def _require_known(view: View, store: Store | None, name: str) -> None:
    """Raise `UnknownCrawl` for a name that only files had that are of another crawl now."""
    if any(container.crawl == name for container in view.containers()):
        return
    with store.reading() if store is not None else nullcontext() as reading:
        if reading is None or reading.crawl_named(name) is None:
            raise _unknown(name, view, store)


def _unknown(name: str, view: View, store: Store | None) -> UnknownCrawl:
    with store.reading() if store is not None else nullcontext() as reading:
        crawl = reading.crawl_named(name) if reading is not None else None
        if crawl is not None and crawl.cancelled:
            read = f"bin/index --add --crawl {shlex.quote(name)} WARCS INDEX"
            return UnknownCrawl(
                f"{crawl.cancelled}. If it wrote WARCs, read them: {as_named(read)}"
            )
        if reading is not None and crawl is not None:
            found = statistics.total(reading, crawl).duplicates
            if found and crawl.state is not CrawlState.OPEN:
                duplicates = singular(f"{found:,} duplicates")
                files = absent_files(view, reading, crawl)
                others = read_for_others(view, reading, crawl)
                named = f" Files that it reported: {_named_files(files)}." if files else ""
                unread = f", and what it wrote of them was not read.{named}"
                if others:
                    unread = f"; {_misfiled(others)}.{named}"
                advice = _advice(name, "Read its WARCs, and compare then:", files, others)
                return UnknownCrawl(as_named(
                    f"the index has no capture of the crawl {name!r}: its lookups found "
                    f"{duplicates}{unread} {advice}"
                ))  # fmt: skip
        asked = [] if reading is None else [one.name for one in reading.newest()]
        there = indexed_crawl_names(view) - {"", name} - removed_in(view, reading).keys()
    newest = [one for one in asked if one in there]  # the first of them
    listed = some_of([*newest, *sorted(there.difference(newest), reverse=True)], _CRAWLS) or "none"
    return UnknownCrawl(
        f"the index has nothing of a crawl {name[:200]!r}; it has captures of {listed}. "
        "A crawl is in it when its files were indexed with --crawl, or what it reported "
        "was committed and merged"
    )


def _unread(view: View, store: Store, revisits: dict[str, int]) -> list[str]:
    """Return a warning for each crawl that wrote more than the index knows.

    `revisits` are those that the index knows, by crawl.
    """
    read = {container.crawl for container in view.containers()}
    warnings = []
    with store.reading() as reading:
        for name, known in revisits.items():
            crawl = reading.crawl_named(name)
            if crawl is None:
                continue
            row, told = statistics.total(reading, crawl), self_report_of(reading, crawl)
            missing = row.duplicates + row.not_modified - known
            files = absent_files(view, reading, crawl) if missing > 0 else []
            refused = statistics.refused_payload(reading, crawl, statistics.refused(reading, crawl))
            unasked = left_unknown(row, refused, told)["not_looked_up_nor_reported"] or 0
            stored = unasked + (told.not_reported or 0)
            lacks = missing > 0 or (stored and name not in read)
            others = read_for_others(view, reading, crawl) if lacks else []
            found = []
            advice = "Read its WARCs:"
            if missing > 0 and name in read:
                found.append(
                    f"duplicates found by its lookups that have no revisit in the files read: "
                    f"{missing:,}"
                )
                advice = "Read them:" if files else _PERHAPS_READ
            elif missing > 0:
                of_it = " for it" if others else ""
                found.append(f"revisits that were not read{of_it}: {missing:,}")
            if stored and name not in read:
                found.append(f"captures that it did not report: {stored:,}")
            if files:
                found.append(
                    f"files that have its captures and were not read: {_named_files(files)}"
                )
            if others:
                found.append(_misfiled(others))
            if found:
                advice = _advice(name, advice, files, others)
                warnings.append(as_named(f"crawl {name}: {', '.join(found)}. {advice}"))
    return warnings


def _misfiled(others: Sequence[IndexedContainer]) -> str:
    """Name files of a crawl that were read for other ones, and these."""
    crawls = sorted({f"crawl {file.crawl}" if file.crawl else "no crawl" for file in others})
    files = _named_files([last_name(file.name) for file in others])
    return f"files that seem to be of it and were read for {names_text(crawls, _NAMED)}: {files}"


def _advice(
    crawl: str, advice: str, files: Sequence[str], others: Sequence[IndexedContainer]
) -> str:
    """Return the commands that read what a crawl wrote: first files that `others` have.

    `advice` is what to do if there are none of these, and `files` are those that nobody has read.
    """
    add = f"bin/index --add --crawl {shlex.quote(crawl)} WARCS INDEX"
    if not others:
        return f"{advice} {add}"
    named = [file.name for file in others] if len(others) <= _NAMED else ["FILE..."]
    move = f"If it wrote them, move them to it: {reread('INDEX', named, crawl)}"
    return f"{move}; then read the others: {add}" if files else move


def _named_files(files: Sequence[str]) -> str:
    return f"{len(files):,} ({names_text(files, _NAMED)})"


def _purged(view: View, store: Store | None, *crawls: str) -> list[str]:
    """Return a warning for each crawl of which files, or all that it reported, were purged."""
    files: dict[str, list[bool]] = {name: [] for name in crawls}
    for container in view.containers():
        if container.crawl in files:
            files[container.crawl].append(container.purged)
    with store.reading() if store is not None else nullcontext() as reading:
        found = [reading.crawl_named(name) for name in crawls] if reading is not None else []
    dropped = {crawl.name for crawl in found if crawl is not None and crawl.dropped}
    warnings = []
    for name, purged in files.items():
        if any(purged):
            count = f"{sum(purged):,} of {len(purged):,}"
            warnings.append(f"crawl {name}: files whose captures were purged: {count}")
        elif name in dropped and not purged:
            warnings.append(f"crawl {name}: its captures were purged")
    return warnings


def _damaged(view: View, *crawls: str) -> list[str]:
    """Return a remark for each crawl that has files of which some records could not be read."""
    files: dict[str, list[str]] = {name: [] for name in crawls}
    for container in view.containers():
        if container.damaged and container.crawl in files:
            files[container.crawl].append(last_name(container.name))
    return [
        f"crawl {name}: files of which something could not be read: {len(damaged):,} "
        f"({names_text(damaged, _NAMED)}). What they lack is counted as new or gone, or not at all."
        for name, damaged in files.items()
        if damaged
    ]


def _later(first: str, second: str, latest: bytes) -> str:
    """Return a remark for crawls that are named in the wrong order."""
    return (
        f"crawl {first}, named as the earlier one, began after the last capture of {second} "
        f"({date_of_digits(latest).decode()}). So new means what only the older crawl has. For the "
        f"usual order give --crawl {shlex.quote(first)} --compare {shlex.quote(second)}"
    )


def _sorted(lines: Iterator[bytes], on_progress: OnProgress) -> Iterator[bytes]:
    """Yield the lines by URL, and report how many of all have been compared."""
    counted = count()
    found = sorted_lines(line for line, _ in zip(lines, counted, strict=False))
    first = list(islice(found, 1))  # after which all are counted
    yield from watched(chain(first, found), "comparing URLs", next(counted), on_progress)


def _lines(
    view: View,
    known: Iterable[tuple[bytes, bytes, list[bytes]]],
    sides: dict[int, int],
    seen: Sequence[_Side],
) -> Iterator[bytes]:
    """Yield a line for each capture and revisit of the two crawls, with its size if any has it.

    `known` is what `by_key` yields of the whole index.
    Revisits of payloads that the index refuses are left out, as these are; `seen` counts them.
    """
    digest, size, held = b"", -1, list[tuple[bytes, _SeenUrl]]()

    def place_of(number: int) -> cells.ContainerRef:
        return view.place_of(number) if number else cells.NOWHERE

    for key, cell, ledger in known:
        prefix = key[: cells.DIGEST_KEY[key[0]]]
        if prefix != digest or len(held) >= _HELD:
            yield from (_line(url, answer, size) for url, answer in held)
            held.clear()
        if prefix != digest:
            digest, size = prefix, -1
        for entry in stored(cell, ledger, place_of, sides.get):
            side = sides.get(cells.container_of(entry))
            capture = cells.decode(key, entry, lambda number: cells.NOWHERE)
            size = max(size, -1 if capture.size_of_record else capture.size)
            if side is not None:
                date = digits_of_date(capture.date)
                seen[side].add(date)
                held.append((capture.url, _SeenUrl(side, date, prefix, -1, False)))
        for revisit in revisits(ledger, sides.get):
            side = sides.get(revisit.container)
            size = max(size, revisit.size)
            if side is not None and revisit.refused:
                seen[side].refused += 1
            elif side is not None:
                date = digits_of_date(revisit.date)
                seen[side].add(date)
                held.append((revisit.url, _SeenUrl(side, date, prefix, -1, True)))
    yield from (_line(url, answer, size) for url, answer in held)


def _line(url: bytes, answer: _SeenUrl, size: int) -> bytes:
    host = counted_host(url)[:_LONGEST].replace(b"\n", b"%0A")
    return b"%b %d %b %b %d %d %b\n" % (
        xxh3_128_hexdigest(url).encode(), answer.side, answer.date, answer.digest.hex().encode(),
        size, answer.is_revisit, host,
    )  # fmt: skip


def _changes(lines: Iterator[bytes]) -> tuple[bytes, list[int]]:
    """Return the host of a URL and what it adds; its lines are sorted by crawl and date."""
    amounts = [0] * len(COLUMNS)
    last: dict[int, _SeenUrl] = {}
    host = b""
    for line in lines:
        _, side, date, digest, size, is_revisit, host = line[:-1].split(b" ", 6)
        answer = _SeenUrl(int(side), date, digest, int(size), is_revisit == b"1")
        last[answer.side] = answer
        name = _SIDES[answer.side]
        kind, of_kind = ("revisits", "revisit") if answer.is_revisit else ("stored", "stored")
        amounts[_COLUMN[f"{name}_{kind}"]] += 1
        amounts[_COLUMN[f"{name}_{of_kind}_bytes"]] += max(answer.size, 0)
        amounts[_COLUMN["unsized"]] += answer.size < 0
    change = "new" if 0 not in last else "gone" if 1 not in last else ""
    if not change:
        change = "same" if last[0].digest == last[1].digest else "changed"
    shown = last.get(1) or last[0]
    amounts[_COLUMN[change]] += 1
    amounts[_COLUMN[f"{change}_bytes"]] += max(shown.size, 0)
    return host, amounts
