"""What reports of crawls show: columns, tables, lines of text and pictures.

`bin/report --against`, `bin/report --crawl`, the server's report and its pages take them from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import orjson

from dedupindex.lookup.conditions import format_age
from dedupindex.lookup.savings import CLASSES, SIZES, IndexFacts
from dedupindex.lookup.validator_report import VALIDATORS
from dedupindex.runtime import html_page
from dedupindex.runtime.html_page import ChartPart, Figure
from dedupindex.runtime.report_table import (
    ReportColumn,
    Row,
    Shown,
    Table,
    Unit,
    exact_percent,
    hidden,
    on_pages,
    rounded_shares,
    share_text,
)
from dedupindex.runtime.tables import UNKNOWN, amount, number
from dedupindex.sources.refusal_reasons import WORDS, in_words

PARTS = (
    ChartPart("exact_url", "same URL"),
    ChartPart("canonical_url", "same canonical URL"),
    ChartPart("digest", "another URL"),
    ChartPart("new", "no original"),
)
"""What a lookup found, in the order and with the colours of all pictures."""
HANDLED_BY_CRAWL = "hits and reported captures"
"""Whose payload the bytes of a crawl are: lookups that found nothing state no size."""
_SAVED, _WOULD_SAVE = "Payload saved", "Payload that would be saved"
HEADINGS = {"mime": "media type", "status": "HTTP status"}
DUPLICATES = (
    ReportColumn("duplicates", "duplicates"),
    ReportColumn("duplicates_percent", "duplicates, %", Unit.PERCENT),
    ReportColumn("duplicate_bytes", "payload saved", Unit.BYTES),
    ReportColumn("duplicate_bytes_percent", "saved, %", Unit.PERCENT),
)
STORED_PARTS = (*PARTS[:-1], ChartPart("new", "stored"))
"""Of what the payload of a crawl is, with the colours of `PARTS`."""


def _found_columns(parts: Iterable[ChartPart]) -> tuple[ReportColumn, ...]:
    """Return the columns of what lookups found; `parts` say of what the bytes are."""
    return tuple(
        column
        for (name, label), (_, payload) in zip(PARTS, parts, strict=True)
        for column in (
            *on_pages(ReportColumn(name, label)),
            *hidden(ReportColumn(f"{name}_bytes", f"{payload}, payload", Unit.BYTES)),
        )
    )


FOUND = _found_columns(PARTS)
FOUND_BY_CRAWL = _found_columns(STORED_PARTS)
_LOOKED_UP = ReportColumn("handled", "looked up")
_PAYLOAD = ReportColumn("handled_bytes", "payload", Unit.BYTES)
_UNSIZED = ReportColumn("unsized", "of unknown size")
STRATEGIES = Table(
    "What each strategy would have saved (each includes the one above it)",
    (
        ReportColumn("strategy", "strategy", Unit.TEXT),
        ReportColumn("captures", "duplicates"),
        ReportColumn("captures_percent", "duplicates, %", Unit.PERCENT),
        ReportColumn("bytes", "payload saved", Unit.BYTES),
        ReportColumn("percent", "saved, %", Unit.PERCENT),
    ),
    order="captures",
)

NOT_LOOKED_UP = Table(
    "Not looked up",
    (ReportColumn("reason", "reason", Unit.TEXT), ReportColumn("records", "records")),
    order="records",
)
REASONS = "docs/formats.md#what-is-refused says more about each reason"


def heading(by: str) -> ReportColumn:
    """Return the column with the headings of groups."""
    return ReportColumn(by, HEADINGS.get(by, by), Unit.TEXT)


def group_table(head: Row) -> Table:
    """Return the groups of what a crawl would have saved, under the order that they have."""
    by = head["by"]
    unsized = (on_pages if head["unsized"] else hidden)(_UNSIZED)
    unsized += hidden(ReportColumn("unsized_duplicates", "duplicates of unknown size"))
    columns = (heading(by), _LOOKED_UP, _PAYLOAD, *DUPLICATES, *FOUND, *unsized)
    order, most = "handled_bytes", "payload"
    if head["handled_bytes"] is None:
        order, most = "handled", "captures"
    return Table(f"By {heading(by).label}, those with the most {most} first", columns, order)


def validator_table(by: str) -> Table:
    """Return the groups of how well validators predict changes."""
    columns = [
        heading(by),
        ReportColumn("compared", "compared"),
        ReportColumn("changed", "changed"),
    ]
    for name, label in VALIDATORS.items():
        fetched = f"{label}, payload not to fetch"
        columns += [
            ReportColumn(f"{name}_stated", f"{label} stated", shown=Shown.ON_PAGES),
            ReportColumn(f"{name}_kept", f"{label} kept"),
            ReportColumn(f"{name}_kept_bytes", fetched, Unit.BYTES, Shown.ON_PAGES),
            ReportColumn(f"{name}_lost", f"{label} lost"),
            ReportColumn(f"{name}_needless", f"{label} needless", shown=Shown.ON_PAGES),
        ]
    return Table(f"By {heading(by).label}, most compared first", tuple(columns), order="compared")


def validator_lines(head: dict[str, Any], groups: Iterable[Row]) -> Iterator[str]:
    """Yield how well validators predict changes as text."""
    yield f"Records read:         {head['records']:,}"
    yield f"Not known before:     {head['first']:,}"
    if head["other_digest"]:
        yield f"Other algorithm:      {head['other_digest']:,}"
    yield f"Compared:             {head['compared']:,}, changed: {head['changed']:,}"
    for name, label in VALIDATORS.items():
        stated, kept, lost, needless = _outcomes(head, name)
        size = amount(head[f"{name}_kept_bytes"])
        yield f"{label + ':':<22}{stated:,} state it"
        yield f"  rightly unchanged:  {kept:,}, bytes not to fetch: {size}"
        yield f"  wrongly unchanged:  {lost:,} (changes that would be lost)"
        yield f"  rightly changed:    {stated - kept - lost - needless:,}"
        yield f"  wrongly changed:    {needless:,}"
    table = validator_table(head["by"])
    yield f"\n{table.title}:"
    yield from table.text_lines(groups)


def _outcomes(head: Row, name: str) -> list[int]:
    return [head[f"{name}_{column}"] for column in ("stated", "kept", "lost", "needless")]


def validator_page(title: str, head: dict[str, Any], groups: Iterable[Row]) -> Iterator[str]:
    """Yield how well validators predict changes as a page."""
    figures = [Figure("Compared", f"{head['compared']:,}", f"{head['changed']:,} changed")]
    figures += [
        Figure(
            f"{label}, changes lost",
            f"{head[f'{name}_lost']:,}",
            f"{head[f'{name}_stated']:,} state it",
        )
        for name, label in VALIDATORS.items()
    ]
    kept = ", ".join(f"{head[f'{name}_kept']:,} by {label}" for name, label in VALIDATORS.items())
    headline = f"Captures that need not be fetched again, of {head['compared']:,}: {kept}."
    table = validator_table(head["by"])

    def body() -> Iterator[str]:
        for name, label in VALIDATORS.items():
            stated, kept, lost, needless = _outcomes(head, name)
            parts = [
                (ChartPart("kept", "rightly unchanged"), kept),
                (ChartPart("damage", "wrongly unchanged"), lost),
                (ChartPart("new", "rightly changed"), stated - kept - lost - needless),
                (ChartPart("covered", "wrongly changed"), needless),
            ]
            yield from html_page.split(f"What {label} says of a capture", parts, table.columns[1])
        yield from table.html_lines(groups)

    return html_page.page(title, headline, figures, body())


def as_json(head: dict[str, Any], table: Table | None, groups: Iterable[Row]) -> Iterator[str]:
    """Yield one JSON object on one line, group by group: they may not fit in memory."""
    content = orjson.dumps(rounded_shares(head)).decode()
    if table is None:
        yield content + "\n"
        return
    yield content[:-1] + ',"groups":['
    yield from table.json_items(groups)
    yield "]}\n"


def duplicate_lines(
    head: Row, handled: str = "", among: str = "", among_bytes: str = "", *, is_made: bool = True
) -> Iterator[str]:
    """Yield the lines of hits and misses, with the names that pages have.

    `handled` says whose bytes the total is, if not those of all that was looked up; `among` and
    `among_bytes`, of what the shares of captures and of bytes are, if that is not all. Without
    `is_made` nothing was saved: it is what would be.
    """
    found = share_text(head["duplicates_percent"])
    yield f"Duplicates:           {head['duplicates']:,} ({found}{among})"
    of_what = f", of {handled}" if handled and head["handled_bytes"] is not None else ""
    yield f"Payload:              {bytes_text(head['handled_bytes'])}{of_what}"
    share = head["duplicate_bytes_percent"]
    percent = "" if share is None else f", {share_text(share)}{among_bytes}"
    label = f"{_SAVED}:       " if is_made else f"{_WOULD_SAVE}:"
    yield f"{label} {bytes_text(head['duplicate_bytes'])}{percent}"


def class_lines(head: Row, new_bytes: str = "bytes") -> Iterator[str]:
    """Yield the lines of misses and of the classes of hits, with their shares of all lookups.

    The last one says from where sizes are known.

    `new_bytes` names the bytes in the line of misses: those of a crawl are what it stored.
    """
    lookups = sum(head[name] for name, _ in PARTS)
    for name, label in PARTS:
        what = new_bytes if name == "new" else "bytes"
        share = share_text(exact_percent(head[name], lookups))
        found = f"{head[name]:,} ({share}), {what}: {number(head[f'{name}_bytes'])}"
        yield f"{label[:1].upper() + label[1:] + ':':<22}{found}"
    sizes = head["sizes"]
    if any(sizes.values()):
        yield f"Sizes of payloads:    {sizes_text(sizes)}"


def sizes_text(sizes: Mapping[str, int]) -> str:
    """Say of how many payloads the size is stated, taken from the original, or not known."""
    stated, original, unknown = (sizes[source] for source in SIZES)
    more = f", {unknown:,} not known (they add no bytes)" if unknown else ""
    return f"{stated:,} stated, {original:,} those of their originals{more}"


def filter_lines(filters: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield what each strategy would have saved, by filter."""
    for row in filters:
        left_out = f"without {row['mime']}" if row["mime"] else "all media types"
        line = f"  {left_out}, from {row['min_size']:,} bytes"
        if row["max_age"] is not None:
            line += f", originals at most {format_age(row['max_age'])} old"
        if len(filters) > 1 and row is filters[0]:
            line += " (all other figures are of these)"
        yield line
        yield from STRATEGIES.text_lines(strategy_rows(row))


def with_exact_shares(report: dict[str, Any]) -> dict[str, Any]:
    """Return a report read from JSON, with exact shares, which are to be rounded once.

    Those of its first filter, too, which is the one that is shown.
    """

    def exact(row: dict[str, Any], shares: Mapping[str, tuple[str, Row, str]]) -> dict[str, Any]:
        made = {
            name: exact_percent(row[part] or 0, of[whole] or 0)
            for name, (part, of, whole) in shares.items()
            if row[name] is not None
        }
        return {**row, **made}

    def of_row(row: dict[str, Any]) -> dict[str, Any]:
        shares = {
            "duplicates_percent": ("duplicates", row, "handled"),
            "duplicate_bytes_percent": ("duplicate_bytes", row, "handled_bytes"),
        }
        return exact(row, shares)

    strategy = {
        "captures_percent": ("captures", report, "handled"),
        "percent": ("bytes", report, "handled_bytes"),
    }
    first, *others = report["filters"]  # the others handle other captures than the report says
    rows = {name: exact(row, strategy) for name, row in first["strategies"].items()}
    filters = [{**first, "strategies": rows}, *others]
    return {**of_row(report), "filters": filters, "groups": list(map(of_row, report["groups"]))}


def strategy_rows(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of `STRATEGIES` of one filter of a report."""
    return [{"strategy": name, **saving} for name, saving in row["strategies"].items()]


def not_looked_up_rows(refused: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the rows of `NOT_LOOKED_UP`, most records first, from their numbers by reason."""
    ordered = sorted(refused.items(), key=lambda one: (-one[1], one[0]))
    return [{"reason": in_words(reason), "records": count} for reason, count in ordered]


def against_lines(head: dict[str, Any], groups: Iterable[Row]) -> Iterator[str]:
    """Yield what a crawl would have saved as text, with all that the DeDuplicator reports."""
    yield f"Records read:         {head['records']:,}"
    for name, count in head["refused"].items():
        yield f"  not looked up: {name:<26}{count:>12,}  {WORDS.get(name, '')}".rstrip()
    yield f"Looked up:            {head['handled']:,}"
    yield from duplicate_lines(head, is_made=False)
    full, full_bytes = head["stored_duplicates"], head["stored_duplicates_bytes"]
    revisits, size = head["duplicates"] - full, head["duplicate_bytes"]
    if size is not None:
        size -= full_bytes or 0
        size = None if revisits and not size else size
    yield f"  of these stored as revisits: {revisits:,}, bytes: {number(size)}"
    yield f"  of these stored in full:     {full:,}, bytes: {number(full_bytes)}"
    yield from class_lines(head)
    yield f"Average lookup time:  {head['average_lookup_ms']} ms"
    for name, count in head["refused_by_policy"].items():
        yield f"Stored by a policy:   {count:,} ({name})"
    if head["skipped_by_policy"]:
        yield f"Not even a revisit:   {head['skipped_by_policy']:,} (blackout)"
    yield f"\n{STRATEGIES.title}:"
    yield from filter_lines(head["filters"])
    table = group_table(head)
    yield f"\n{table.title}:"
    yield from table.text_lines(groups)
    yield ""
    yield from index_lines(head["index"], "all, calculated from one lookup")


def against_page(title: str, head: dict[str, Any], groups: Iterable[Row]) -> Iterator[str]:
    """Yield what a crawl would have saved as a page."""
    groups = iter(groups)
    largest = list(islice(groups, html_page.MOST))
    by = heading(head["by"]).label
    sizes = sizes_text(head["sizes"])
    would = "would not have been stored again"
    if head["already_indexed"]:  # what it would have been then is not known
        would = "has an original in the index, which has captures of this crawl already"
    headline = (
        f"{_share(head, 'payload')} {would}: "
        f"{head['duplicates']:,} of {head['handled']:,} captures are duplicates."
    )

    def body() -> Iterator[str]:
        for warning in head["warnings"]:
            yield f"<p><strong>Warning:</strong> {html_page.text(warning)}.</p>\n"
        yield from pictures(head, largest, by)
        for row in head["filters"]:
            left_out = f", without {row['mime']}" if row["mime"] else ""
            least = f", from {row['min_size']:,} bytes" if row["min_size"] else ""
            age = f", originals at most {format_age(row['max_age'])} old" if row["max_age"] else ""
            table = Table(STRATEGIES.title + left_out + least + age, STRATEGIES.columns, "captures")
            yield from table.html_lines(strategy_rows(row))
        yield from group_table(head).html_lines(chain(largest, groups))
        yield from html_page.facts("In all", _FACTS, head)
        if refused := not_looked_up_rows(head["refused"]):
            yield from NOT_LOOKED_UP.html_lines(refused)
            yield html_page.note(f"{REASONS}.")
        yield from html_page.facts("The index", INDEX, head["index"])

    return html_page.page(
        title,
        headline,
        saved_figures(head, saved=_WOULD_SAVE),
        body(),
        f"Sizes of payloads: {sizes}.",
    )


def pictures(
    head: Row, groups: Sequence[Row], by: str, looked_up: str = "handled"
) -> Iterator[str]:
    """Yield the pictures of what lookups found: how many, payload, and groups."""
    what = "Captures" if looked_up == "handled" else "Lookups"
    yield from html_page.split(
        f"{what} by what was found", [(part, head[part.name] or 0) for part in PARTS], _LOOKED_UP
    )
    if head["handled_bytes"]:
        of_crawl = looked_up == "lookups"
        drawn_parts = STORED_PARTS if of_crawl else PARTS
        parts = [(part, head[f"{part.name}_bytes"]) for part in drawn_parts]
        shares = head["duplicate_bytes_percent"] is not None
        title = f"Payload of {HANDLED_BY_CRAWL}" if of_crawl else "Payload by what was found"
        yield from html_page.split(title, parts, _PAYLOAD, with_shares=shares)
    groups = groups[: html_page.MOST]
    drawn, names = drawn_columns(groups if looked_up == "handled" else [])
    rows = [
        (
            str(group[by_name(group)] or UNKNOWN),
            [group[name] for name in names],
            _of_group(group, looked_up),
        )
        for group in groups
    ]
    drawn = drawn if looked_up == "handled" else what
    yield from html_page.ranking(f"{drawn} by {by}", PARTS, rows)


def drawn_columns(rows: Sequence[Row]) -> tuple[str, list[str]]:
    """Return what bars of rows show, and its columns: captures where a size is not known."""
    names = [f"{part.name}_bytes" for part in PARTS]
    if rows and all(row[name] is not None for row in rows for name in names):
        return "Payload", names
    return "Captures", [part.name for part in PARTS]


def by_name(group: Row) -> str:
    """Return the name of the column with the heading of a group, its first."""
    return next(iter(group))


def _of_group(group: Row, looked_up: str) -> str:
    saved = group["duplicate_bytes"]
    share = f"{group['duplicates']:,} of {group[looked_up]:,}"
    return share if saved is None else f"{share}, {amount(saved)} saved"


def saved_figures(
    head: Row,
    of_what: str = "captures",
    new_bytes: str = "of payload",
    handled: str = "",
    saved: str = _SAVED,
) -> list[Figure]:
    """Return the figures of a page: what was saved, or would be, in per cent and bytes."""
    of = share_of_handled(head, handled)
    new = "" if head["new_bytes"] is None else f"{amount(head['new_bytes'])} {new_bytes}"
    captures = f"{share_text(head['duplicates_percent'])} of {of_what}"
    return [
        Figure(saved, amount(head["duplicate_bytes"]), of),
        Figure("Duplicates", f"{head['duplicates']:,}", captures),
        Figure("No original", f"{head['new']:,}", new),
    ]


def share_of_handled(head: Row, handled: str = "") -> str:
    """Return the share of payload saved and of how many bytes, "" if it is not known.

    `handled` is that of `duplicate_lines`.
    """
    share = head["duplicate_bytes_percent"]
    if share is None:
        return ""
    of_what = f", of {handled}" if handled else ""
    return f"{share_text(share)} of {amount(head['handled_bytes'])}{of_what}"


def _share(head: Row, what: str) -> str:
    """Say which share is saved: of the bytes if they are known, else of the captures."""
    share = head["duplicate_bytes_percent"]
    if share is None:
        return f"{share_text(head['duplicates_percent'])} of the captures"
    return f"{share_text(share)} of the {what}"


_FACTS = (
    ReportColumn("records", "records read"),
    _LOOKED_UP,
    _PAYLOAD,
    *(
        column._replace(label=_WOULD_SAVE) if column.label == _SAVED.lower() else column
        for column in DUPLICATES
    ),
    ReportColumn("already_revisits", "already stored as revisits"),
    ReportColumn("already_revisits_bytes", "already stored as revisits, payload", Unit.BYTES),
    ReportColumn("stored_duplicates", "duplicates stored in full"),
    ReportColumn("stored_duplicates_bytes", "duplicates stored in full, payload", Unit.BYTES),
    *(ReportColumn(f"{match.value}_bytes", f"{label}, payload", Unit.BYTES)
      for match, (_, label) in zip(CLASSES, PARTS, strict=False)),
    ReportColumn("new_bytes", "no original, payload", Unit.BYTES),
    _UNSIZED,
    ReportColumn("average_lookup_ms", "average lookup", Unit.MILLISECONDS),
)  # fmt: skip
INDEX = (
    ReportColumn("records_in_index", "originals in the index"),
    ReportColumn("url_indexed", "URLs", Unit.TEXT),
    ReportColumn("canonical_url_available", "canonical URLs", Unit.TEXT),
    ReportColumn("digest_indexed", "digests", Unit.TEXT),
    ReportColumn("digest_includes_algorithm", "digests with their algorithm", Unit.TEXT),
)


def index_lines(facts: IndexFacts, strategy: str, note: str = "") -> Iterator[str]:
    """Yield the lines on an index, and how it was searched, as the DeDuplicator's report has."""
    flags = {name: "yes" if value else "no" for name, value in facts.items()}
    yield "Index:"
    yield f"  URL indexed:        {flags['url_indexed']}"
    yield f"  Digest indexed:     {flags['digest_indexed']}"
    yield f"  Canonical URL available: {flags['canonical_url_available']}"
    yield f"  Search strategy:    {strategy}"
    yield f"  Digest in index includes hashing algorithm: {flags['digest_includes_algorithm']}"
    yield f"  Originals in index: {facts['records_in_index']:,}{note and f' ({note})'}"


def bytes_text(count: int | None) -> str:
    """Return a number of bytes exactly, and as people read it."""
    return UNKNOWN if count is None else f"{count:,} ({amount(count)})"
