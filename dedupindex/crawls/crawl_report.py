"""The report of a crawl: how much it has saved, from its statistics.

The fields are those of the Processors Report of Heritrix's DeDuplicator, and more.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import orjson

from dedupindex.crawls import statistics
from dedupindex.crawls.crawl import Crawl, CrawlState
from dedupindex.crawls.parse_report import NAMES, self_report_of
from dedupindex.crawls.statistics_keys import StatisticsRow
from dedupindex.crawls.store import Reading
from dedupindex.lookup.savings import IndexFacts, index_lines
from dedupindex.runtime.tables import amount, csv_lines, html_lines, printable, singular

FORMATS = ("text", "json", "csv", "html")
UNKNOWN = "unknown"  # shown for an empty heading
_UNSAID = "not known (the crawler did not say)"
COLUMNS = (
    *("lookups", "handled_bytes", "duplicates", "duplicates_percent", "duplicate_bytes"),
    *("duplicate_bytes_percent", "exact_url", "exact_url_bytes", "canonical_url"),
    *("canonical_url_bytes", "digest", "digest_bytes", "listed", "new", "new_bytes", "stored"),
    *("stored_bytes", "errors", "unsized", "stated_bytes", "duplicate_stated_bytes"),
    *("not_modified", "not_modified_bytes"),
)
_READABLE = (  # columns that fit on a page
    *("lookups", "duplicates", "duplicates_percent", "duplicate_bytes"),
    *("exact_url", "canonical_url", "digest", "new", "stored", "stored_bytes"),
)
_LABELS = {
    "exact_url": "Exact URL hits",
    "canonical_url": "Canonical URL hits",
    "digest": "Digest hits",
}


class ReportRequest(NamedTuple):
    by: str = ""  # one of `statistics.BY`, or "" for no groups
    top: int = 0  # only so many groups, the largest first; 0: all, in the order of headings
    order: str = "lookups"  # what `top` sorts by, one of `statistics.ORDERS`
    after: bytes | None = None  # only groups after this heading
    most: int = 0  # groups at most; 0: all


class CrawlReport(NamedTuple):
    """The totals of a crawl, and its groups."""

    by: str
    summary: dict[str, Any]
    groups: Iterator[statistics.Headed]


def report(reading: Reading, crawl: Crawl, asked: ReportRequest, index: IndexFacts) -> CrawlReport:
    """Make the report of a crawl; raises `BadQuery`. The groups are read as they are iterated."""
    groups: Iterable[statistics.Headed] = ()
    if asked.by and asked.top:
        groups = statistics.largest(reading, crawl, asked.by, asked.top, asked.order)
    elif asked.by:
        groups = statistics.rows(reading, crawl, asked.by, asked.after)
    head = {**summary(reading, crawl), "index": index}
    return CrawlReport(asked.by, head, islice(groups, asked.most or None))


def summary(reading: Reading, crawl: Crawl) -> dict[str, Any]:
    """Return the settings, counts and totals of a crawl."""
    captures, size = reading.counts(crawl)
    total, times = statistics.total(reading, crawl), statistics.times(reading, crawl)
    return {
        "crawl": crawl.name,
        **{name: value for name, value in crawl.as_json().items() if name != "name"},
        "captures": captures,
        "bytes": size,
        **total.as_json(),
        **self_report_of(reading, crawl)._asdict(),
        "first_lookup": date(times.first),
        "last_lookup": date(times.last),
        "average_lookup_ms": round(1000 * times.average, 4),
        "p99_lookup_ms": round(1000 * times.p99, 4),
        "last_lookup_ms": round(1000 * times.latest, 4),
        "strategies": {
            name.decode(): row.as_json()
            for name, row in statistics.rows(reading, crawl, "strategy")
        },
        "warning": warning(crawl, total),
    }


def warning(crawl: Crawl, total: StatisticsRow) -> str | None:
    """Return a warning about a crawl that has made no lookup."""
    if total.lookups or crawl.dropped:
        return None
    return "begun, no lookup yet" if crawl.state is CrawlState.OPEN else "ended without a lookup"


def date(seconds: int) -> str | None:
    """Return seconds since 1970 as a WARC-Date, None for 0."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds)) if seconds else None


def group_as_json(by: str, headed: statistics.Headed) -> dict[str, Any]:
    """Return a group with its heading, None if it is not known."""
    heading, row = headed
    return {by: heading.decode("utf-8", "backslashreplace") or None, **row.as_json()}


def written(found: CrawlReport, style: str) -> Iterator[str]:
    """Yield the report in one of `FORMATS`; there may be more groups than fit in memory."""
    if style == "json":
        return _json(found)
    rows = ({**group, found.by: group[found.by] or UNKNOWN} for group in _groups(found))
    if style == "text":
        return (line + "\n" for line in _text(found, rows))
    if style == "html":
        facts = {
            name: value
            for name, value in {**found.summary, **found.summary["index"]}.items()
            if value is not None and not isinstance(value, dict | list)
        }
        title = f"Crawl {found.summary['crawl']}"
        return html_lines(title, facts, [found.by, *_READABLE] if found.by else (), rows)
    if not found.by:
        further = (*NAMES, "average_lookup_ms", "p99_lookup_ms", "last_lookup_ms")
        return csv_lines(["crawl", "state", *COLUMNS, *further], [found.summary])
    return csv_lines([found.by, *COLUMNS], rows)


def _groups(found: CrawlReport) -> Iterator[dict[str, Any]]:
    return (group_as_json(found.by, headed) for headed in found.groups)


def _json(found: CrawlReport) -> Iterator[str]:
    head = orjson.dumps(found.summary).decode()
    if not found.by:
        yield head + "\n"
        return
    yield f'{head[:-1]},"by":"{found.by}","groups":['
    for number, group in enumerate(_groups(found)):
        yield ("," if number else "") + orjson.dumps(group).decode()
    yield "]}\n"


def _text(found: CrawlReport, rows: Iterator[dict[str, Any]]) -> Iterator[str]:
    yield from _totals(found.summary)
    if not found.by:
        return
    yield ""
    yield (
        f"{'lookups':>9} {'exact':>8} {'canonical':>9} {'digest':>8} {'saved':>10} "
        f"{'stored':>9} {'bytes':>10}  by {found.by}"
    )
    for row in rows:
        yield (
            f"{row['lookups']:>9,} {row['exact_url']:>8,} {row['canonical_url']:>9,} "
            f"{row['digest']:>8,} {amount(row['duplicate_bytes']):>10} {row['stored']:>9,} "
            f"{amount(row['stored_bytes']):>10}  {printable(row[found.by])}"
        )


def _totals(content: dict[str, Any]) -> Iterator[str]:
    ended = f", ended {content['ended']}" if content["ended"] else ""
    reason = f" ({printable(content['exit'])})" if content["exit"] else ""
    yield f"Crawl:                {content['crawl']}, {content['state']}"
    yield f"                      begun {content['begun']}{ended}{reason}"
    if content["warning"]:
        yield f"Warning:              {content['warning']}"
    yield f"Total handled:        {content['lookups']:,}"
    yield f"Duplicates found:     {content['duplicates']:,} ({content['duplicates_percent']} %)"
    unsized = content["unsized"]
    note = f", and {unsized:,} hits of payloads whose size is not known" if unsized else ""
    handled, share = content["handled_bytes"], content["duplicate_bytes_percent"]
    yield f"Bytes total:          {_UNSAID if handled is None else _bytes(handled)}"
    share = "" if handled is None else f", {share} %"
    yield f"Bytes duplicate:      {_bytes(content['duplicate_bytes'])}{share}{note}"
    if content["stated_bytes"]:
        stated, duplicate = content["stated_bytes"], content["duplicate_stated_bytes"]
        yield f"  as the crawler counts: {_bytes(duplicate)} of {_bytes(stated)}"
    size = "" if handled is None else f", bytes: {content['new_bytes']:,}"
    yield f"New (no hits):        {content['new']:,}{size}"
    for name, label in _LABELS.items():
        yield f"{label + ':':<22}{content[name]:,}, bytes: {content[name + '_bytes']:,}"
    if content["listed"]:
        yield f"Listed by URL only:   {content['listed']:,}"
    yield f"Stored:               {content['captures']:,}, bytes: {_bytes(content['bytes'])}"
    if content["not_modified"]:
        size = _bytes(content["not_modified_bytes"])
        yield f"Not modified (304):   {content['not_modified']:,}, bytes not fetched: {size}"
    if content["answered_by_filter"]:
        yield f"Answered by filter:   {content['answered_by_filter']:,}"
    yield f"Not looked up:        {_count(content['not_looked_up'])}"
    yield f"Not reported:         {_count(content['not_reported'])}"
    yield f"Lookups with errors:  {content['errors']:,}"
    yield f"Average lookup time:  {content['average_lookup_ms']} ms"
    yield f"99 of 100 lookups:    {content['p99_lookup_ms']} ms at most"
    yield f"Last lookup time:     {content['last_lookup_ms']} ms"
    for name, row in content["strategies"].items():
        share = f"{row['duplicates']:,} duplicates ({row['duplicates_percent']} %)"
        yield singular(f"  {name + ':':<20}{row['lookups']:,} lookups, {share}")
    searched = content["strategy"] or "as each lookup states"
    yield from ("", *index_lines(content["index"], searched))


def _bytes(count: int) -> str:
    return f"{count:,} ({amount(count)})"


def _count(number: int | None) -> str:
    return _UNSAID if number is None else f"{number:,}"
