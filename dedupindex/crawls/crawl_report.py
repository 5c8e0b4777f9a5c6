"""The report of a crawl: how much it has saved, from its statistics.

The fields are those of the Processors Report of Heritrix's DeDuplicator, and more.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from heapq import nlargest
from itertools import islice
from typing import Any, NamedTuple

from dedupindex.crawls import statistics
from dedupindex.crawls.crawl import Crawl, CrawlState
from dedupindex.crawls.parse_report import SelfReport, self_report_of
from dedupindex.crawls.statistics_keys import RefusedPayload, StatisticsRow
from dedupindex.crawls.store import Reading
from dedupindex.errors import as_named
from dedupindex.index.engine import View
from dedupindex.lookup.savings import IndexFacts
from dedupindex.lookup.savings_report import (
    DUPLICATES,
    FOUND_BY_CRAWL,
    HANDLED_BY_CRAWL,
    INDEX,
    PARTS,
    as_json,
    bytes_text,
    class_lines,
    duplicate_lines,
    heading,
    index_lines,
    pictures,
    saved_figures,
    sizes_text,
)
from dedupindex.runtime import html_page
from dedupindex.runtime.html_page import Figure
from dedupindex.runtime.report_table import ReportColumn, Shown, Table, Unit, hidden, share_text
from dedupindex.runtime.tables import amount, number, printable, singular

FORMATS = ("text", "json", "csv", "html")
_FEW = 100  # one in so many captures may have no known size, as in `share_of_bytes`
_COUNTED_AFTER = 10  # seconds: the processes of a server write their counts once a second
_UNSAID = "not known (the crawler did not say)"
_OPEN = "The crawl is open: all numbers but 'Reported as stored' may be a second behind."
_DELETED = (
    "What was counted of this crawl was deleted with its captures "
    "(bin/purge --crawl, or DELETE /crawls/NAME). What was read for it since then: bin/list INDEX "
    "--of-crawl NAME."
)
_COUNTS = (  # of a crawl, a strategy or a group
    ReportColumn("lookups", "looked up"),
    *DUPLICATES,
    ReportColumn("stored", "reported"),
    ReportColumn("stored_bytes", "payload reported", Unit.BYTES),
    *FOUND_BY_CRAWL,
    *hidden(
        ReportColumn("handled_bytes", f"payload of {HANDLED_BY_CRAWL}", Unit.BYTES),
        ReportColumn("listed", "listed by URL only"),
        ReportColumn("errors", "lookups that the server answered with an error"),
        ReportColumn("unsized", "hits of unknown size"),
        ReportColumn("stored_unsized", "reported, of unknown size"),
        ReportColumn("stated_bytes", "bytes as the crawler counts", Unit.BYTES),
        ReportColumn("duplicate_stated_bytes", "duplicates as the crawler counts", Unit.BYTES),
        ReportColumn(
            "duplicate_stated_bytes_percent",
            "duplicates as the crawler counts, %",
            Unit.PERCENT,
        ),
        ReportColumn("not_modified", "not modified (304)"),
        ReportColumn("not_modified_bytes", "payload not fetched", Unit.BYTES),
        ReportColumn("not_modified_unsized", "not modified, of unknown size"),
    ),
)
_ENDED = (
    ReportColumn("average_lookup_ms", "average lookup", Unit.MILLISECONDS),
    ReportColumn("p99_lookup_ms", "99 of 100 lookups within", Unit.MILLISECONDS),
    ReportColumn("last_lookup_ms", "duration of the last lookup", Unit.MILLISECONDS),
)
_SELF_REPORT = (  # `NAMES`
    ReportColumn("not_looked_up", "not looked up, as the crawler counts", absent=_UNSAID),
    ReportColumn("not_reported", "stored but not reported, as the crawler counts", absent=_UNSAID),
    ReportColumn("answered_by_filter", "answered by digest filters"),
    ReportColumn("left_out_by_rule", "left out by a rule of the crawler", absent=_UNSAID),
)
_UNKNOWN = (  # `left_unknown`
    ReportColumn("unreported", "without an original, nothing reported"),
    ReportColumn("not_looked_up_nor_reported", "not looked up nor reported", absent=_UNSAID),
)
_TOTALS = Table(
    "All of it",
    (
        ReportColumn("crawl", "crawl", Unit.TEXT),
        ReportColumn("state", "state", Unit.TEXT),
        *_COUNTS,
        *_SELF_REPORT,
        *_UNKNOWN,
        *_ENDED,
    ),
    order="crawl",
)
_FACTS = (
    *(ReportColumn(name, name, Unit.TEXT) for name in ("state", "begun", "ended", "exit")),
    *(column for column in _COUNTS if column.name not in ("stored", "stored_bytes")),
    ReportColumn("captures", "captures reported as stored"),
    ReportColumn("bytes", "payload reported as stored", Unit.BYTES),
    ReportColumn("refused", "reported but refused", Unit.TEXT),
    *_SELF_REPORT,
    *_UNKNOWN,
    ReportColumn("first_lookup", "first lookup", Unit.TEXT),
    ReportColumn("last_lookup", "time of the last lookup", Unit.TEXT),
    *_ENDED,
    ReportColumn("strategy", "strategy", Unit.TEXT),
    ReportColumn("namespace", "namespace", Unit.TEXT),
    ReportColumn("merged", "merged into the index", Unit.TEXT),
    ReportColumn("deleted", "deleted", Unit.TEXT),
)


_MOST = {
    "lookups": "most lookups",
    "duplicates": "most duplicates",
    "duplicate_bytes": "most payload saved",
    "stored": "most captures reported",
    "stored_bytes": "most payload reported",
}  # of `statistics.ORDERS`


def group_table(by: str, order: str = "", not_modified: int = 0) -> Table:
    """Return the groups of a crawl, by one of `statistics.BY`; `order` is their headings' if "".

    What was not modified is shown if there are any of it.
    """
    most = f", {_MOST[order]} first" if order else ""
    shown = ("not_modified", "not_modified_bytes") if not_modified else ()
    counts = (
        column._replace(shown=Shown.EVERYWHERE) if column.name in shown else column
        for column in _COUNTS
    )
    return Table(f"By {heading(by).label}{most}", (heading(by), *counts), order or by)


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
    order: str = ""  # the column by which groups come, "" for their headings
    is_whole: bool = True  # whether all groups are here, not one page of them
    is_read: bool = False  # whether files of the crawl were indexed; for `how_to_learn` only

    def table(self) -> Table | None:
        """Return the table of its groups, if it has any."""
        found = self.summary["not_modified"]
        return group_table(self.by, self.order, found) if self.by else None


def report(reading: Reading, crawl: Crawl, asked: ReportRequest, index: IndexFacts) -> CrawlReport:
    """Make the report of a crawl; raises `BadQuery`. The groups are read as they are iterated."""
    groups: Iterable[statistics.Headed] = ()
    if asked.by and asked.top:
        groups = statistics.largest(reading, crawl, asked.by, asked.top, asked.order)
    elif asked.by:
        groups = statistics.rows(reading, crawl, asked.by, asked.after)
    head = {**summary(reading, crawl), "index": index}
    order = asked.order if asked.top else ""
    return CrawlReport(asked.by, head, islice(groups, asked.most or None), order)


def summary(reading: Reading, crawl: Crawl) -> dict[str, Any]:
    """Return the settings, counts and totals of a crawl."""
    captures, size = statistics.captures(reading, crawl)
    self_report = self_report_of(reading, crawl)
    own, times = self_report._asdict(), statistics.times(reading, crawl)
    total = statistics.total(reading, crawl, self_report)
    reasons = statistics.refused(reading, crawl)
    refused = statistics.refused_payload(reading, crawl, reasons)
    # What a filter answered stated no size to the server.
    unstated = (
        ("stated_bytes", "duplicate_stated_bytes_percent") if own["answered_by_filter"] else ()
    )
    return {
        "crawl": crawl.name,
        **{name: value for name, value in crawl.as_json().items() if name != "name"},
        "captures": captures,
        "bytes": known_bytes(captures, size),
        "refused": reasons,
        **total.as_json(refused),
        **dict.fromkeys(unstated),
        **own,
        **left_unknown(total, refused, self_report),
        "first_lookup": date(times.first),
        "last_lookup": date(times.last),
        "average_lookup_ms": round(1000 * times.average, 4),
        "p99_lookup_ms": round(1000 * times.p99, 4),
        "last_lookup_ms": round(1000 * times.latest, 4),
        "strategies": {
            name.decode(): row.as_json()
            for name, row in statistics.rows(reading, crawl, "strategy")
        },
        "warning": warning(crawl, total, captures),
    }


def warning(crawl: Crawl, total: StatisticsRow, captures: int) -> str | None:
    """Return a warning about a crawl without an answer, none while counts may be missing.

    Its `captures` are known at once, its lookups a second later.
    """
    if total.lookups or crawl.dropped:
        return None
    if total.errors:
        which = "the only lookup" if total.errors == 1 else f"all {total.errors:,} lookups"
        return f"{which} got an error, see the log of the crawler"
    if crawl.state is CrawlState.OPEN:
        return None if captures else "begun, no lookup yet"
    since = time.time() - datetime.fromisoformat(crawl.ended).timestamp()
    return "ended without a lookup" if since > _COUNTED_AFTER else None


def left_unknown(
    total: StatisticsRow, refused: RefusedPayload, told: SelfReport
) -> dict[str, int | None]:
    """Return, by name, of how many responses of a crawl the server cannot know the bytes."""
    return {
        "unreported": _unreported(total, refused),
        "not_looked_up_nor_reported": _not_looked_up_nor_reported(total, refused, told),
    }


def _not_looked_up_nor_reported(
    total: StatisticsRow, refused: RefusedPayload, told: SelfReport
) -> int | None:
    """Return how many responses that a crawler did not look up it did not report either.

    Some crawlers report these, too: then there are more reports than lookups without a hit. What a
    crawler could not report counts as `not_reported` already. None if the crawler did not say.
    """
    if told.not_looked_up is None:
        return None
    reports = total.stored + refused.captures + (told.not_reported or 0)
    unasked = reports - total.new - total.listed
    return told.not_looked_up - min(max(unasked, 0), told.not_looked_up)


def _unreported(total: StatisticsRow, refused: RefusedPayload) -> int:
    """Return for how many lookups without a hit a crawl that reports has reported nothing.

    0 if they are no more than one in `_FEW` lookups, as reports may be on their way, or if it has
    reported nothing: there are crawlers that only ask, and then no share of bytes is known.
    """
    reported = total.stored + refused.captures
    missing = total.new - reported
    return missing if reported and missing * _FEW > total.lookups else 0


def not_asked(head: dict[str, Any]) -> str:
    """Say what was not looked up, reported or taken from a crawl; "" for nothing."""
    failed, missing, found = head["not_looked_up"] or 0, head["not_reported"] or 0, list[str]()
    if failed:
        were = "was" if failed == 1 else "were"
        found.append(f"{failed:,} more {were} not looked up, so stored in full")
    if missing:
        found.append(f"{missing:,} stored {'was' if missing == 1 else 'were'} not reported")
    if head["refused"] and not head["captures"]:
        found.append(all_refused(head["refused"]))
    return ", ".join(found)


def all_refused(refused: Mapping[str, int]) -> str:
    """Say that nothing was taken of what a crawl reported, and why."""
    return f"all that it reported was refused: {refused_text(refused)}"


def _ruled_out(head: dict[str, Any]) -> str:
    """Say how many responses a rule of the crawler has left out; "" for none."""
    count = head["left_out_by_rule"] or 0
    were = "was" if count == 1 else "were"
    return f"{count:,} more {were} left out by a rule of the crawler" if count else ""


def left_out(head: dict[str, Any]) -> str:
    """Return a sentence on what the shares of a crawl leave out; "" if they have everything."""
    if not share_of(head):
        return ""
    which = "those that were looked up" if reports_unasked(head) else "these"
    counts = (
        (head["not_looked_up_nor_reported"], "stored in full without a lookup"),
        (head["left_out_by_rule"], "left out by a rule of the crawler"),
        (head["not_reported"], f"not reported (shares of lookups include {which})"),
        (
            0 if head["not_reported"] else head["unreported"],
            "not found in the index and not reported as stored so far "
            "(shares of lookups include these)",
        ),
    )
    found = ", ".join(f"{count:,} {what}" for count, what in counts if count)
    return f"Responses not in these shares: {found}. Their bytes are not known here."


def how_to_learn(head: dict[str, Any], *, is_read: bool = False) -> str:
    """Return how to learn what a crawl stored that was not reported; "" if nothing is missing."""
    *add, compare = commands_to_learn(head, is_read=is_read) or [""]
    if not compare:
        return ""
    first = f"{add[0]} for its WARCs, the same for those of an earlier crawl, then " if add else ""
    return f"What the crawl stored and saved: {first}{compare}"


def commands_to_learn(head: dict[str, Any], *, is_read: bool = False) -> list[str]:
    """Return the commands of `how_to_learn`; none if nothing is missing.

    `is_read`: files of the crawl were indexed already, so only the last command is needed.
    """
    failed = head["not_looked_up_nor_reported"] or head["not_reported"]
    if not failed or head["namespace"] or head["state"] == CrawlState.CANCELLED.value:
        return []
    name = shlex.quote(printable(head.get("crawl") or head["name"]))
    add = [] if is_read else [f"{as_named('bin/index')} --add --crawl {name} FILE... INDEX"]
    return [*add, f"{as_named('bin/report')} INDEX --crawl {name} --compare EARLIER"]


def has_files(view: View, crawl: str, most: int | None = None) -> bool:
    """Return whether files of a crawl were indexed, by the first `most` files of the index."""
    files = islice(view.containers(), most)
    return any(file.crawl == crawl and not file.purged for file in files)


def share_of(head: Mapping[str, Any]) -> str:
    """Return of what a share of payload is, of a crawl or a sum of crawls; "" if of all of it."""
    names = ("not_looked_up_nor_reported", "left_out_by_rule", "not_reported", "unreported")
    return HANDLED_BY_CRAWL if any(head.get(name) for name in names) else ""


def reports_unasked(head: Mapping[str, Any]) -> bool:
    """Return whether a crawl reports what it did not look up, too."""
    return bool(head["not_looked_up"] != head["not_looked_up_nor_reported"])


def payload_of(head: Mapping[str, Any]) -> str:
    """Return whose payload the bytes of a crawl are."""
    only = share_of(head)
    return f"{HANDLED_BY_CRAWL} only" if only else HANDLED_BY_CRAWL


def reported_as(head: Mapping[str, Any], verb: str = "reported") -> str:
    """Return what the bytes without an original are: reports may be more than lookups."""
    return f"{verb}, with or without a lookup" if reports_unasked(head) else verb


def refused_text(refused: Mapping[str, int]) -> str:
    """Return how many captures were refused, with the reasons, those of most captures first."""
    reasons = sorted(refused.items(), key=lambda item: (-item[1], item[0]))
    more = ", ".join(f"{printable(reason)} {count:,}" for reason, count in reasons)
    return f"{sum(refused.values()):,}" + (f" ({more})" if more else "")


def date(seconds: int) -> str | None:
    """Return seconds since 1970 as a WARC-Date, None for 0."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds)) if seconds else None


def group_as_json(by: str, headed: statistics.Headed) -> dict[str, Any]:
    """Return a group with its heading, None if it is not known."""
    heading, row = headed
    return {by: heading.decode("utf-8", "backslashreplace") or None, **row.as_json()}


def known_bytes(captures: int, size: int) -> int | None:
    """Return the payload of captures, none of which is empty; None if its size is not known."""
    return size if size or not captures else None


def written(found: CrawlReport, style: str) -> Iterator[str]:
    """Yield the report in one of `FORMATS`; there may be more groups than fit in memory."""
    table, groups = found.table(), _groups(found)
    if style == "json":
        head = {**found.summary, "by": found.by} if found.by else found.summary
        return as_json(head, table, groups)
    if style == "text":
        return (line + "\n" for line in _text(found, groups))
    if style == "html":
        return _page(found, list(groups))
    return _TOTALS.csv_lines([found.summary]) if table is None else table.csv_lines(groups)


def _groups(found: CrawlReport) -> Iterator[dict[str, Any]]:
    return (group_as_json(found.by, headed) for headed in found.groups)


def _page(found: CrawlReport, rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the report as a page, with all groups in the order of the picture above them."""
    if found.is_whole and not found.order and found.by not in ("", "hour", "day"):
        found = found._replace(order="lookups")
        rows = sorted(rows, key=lambda row: -row["lookups"])
    head, table = found.summary, found.table()
    share = head["duplicate_bytes_percent"]
    saved = (
        f"{share_text(head['duplicates_percent'])} of its lookups were duplicates"
        if share is None
        else f"{share_text(share)} of the payload of {HANDLED_BY_CRAWL} was not stored again"
    )
    refused = refused_text(head["refused"])
    more = "".join(f"; {part}" for part in (_ruled_out(head), not_asked(head)) if part)
    headline = (
        f"{saved}: "
        + singular(f"{head['duplicates']:,} duplicates in {head['lookups']:,} lookups")
        + f"{more}."
        if head["lookups"]
        else _DELETED
        if head["deleted"]
        else f"This crawl has looked nothing up{more}."
    )
    stored = Figure(
        "Reported as stored", number(head["captures"]), f"{amount(head['bytes'])} of payload"
    )

    def body() -> Iterator[str]:
        if head["warning"]:
            yield f"<p><strong>{html_page.text(head['warning'])}</strong></p>\n"
        yield from pictures(
            head, _by_size(found, rows), heading(found.by or "host").label, "lookups"
        )
        if found.by in ("hour", "day"):
            parts = [(row[found.by], [row[name] for name, _ in PARTS]) for row in rows]
            looked_up = _COUNTS[0]
            yield from html_page.over_time("Lookups over time, UTC", PARTS, parts, looked_up)
        if table is not None:
            yield from table.html_lines(rows)
        yield from html_page.facts("In all", _FACTS, {**head, "refused": refused})
        yield from html_page.facts("The index", INDEX, head["index"])

    sizes = f"Sizes of payloads: {sizes_text(head['sizes'])}."
    learn = how_to_learn(head, is_read=found.is_read)
    sizes = " ".join(filter(None, (sizes, _lag(head), left_out(head), learn)))
    figures = [*saved_figures(head, "lookups", reported_as(head), payload_of(head)), stored]
    return html_page.page(f"Crawl {head['crawl']}", headline, figures, body(), sizes)


def _by_size(found: CrawlReport, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the groups with most lookups; times are in a picture of their own."""
    if found.by in ("hour", "day"):
        return []
    return nlargest(html_page.MOST, rows, key=lambda row: row["lookups"])


def _text(found: CrawlReport, rows: Iterator[dict[str, Any]]) -> Iterator[str]:
    yield from _totals(found.summary, is_read=found.is_read)
    if (table := found.table()) is not None:
        yield f"\n{table.title}:"
        yield from table.text_lines(rows)


def _totals(content: dict[str, Any], *, is_read: bool) -> Iterator[str]:
    yield from _states(content)
    if content["deleted"]:
        yield _DELETED
    else:
        yield from _counts_of(content, is_read=is_read)
    searched = content["strategy"] or "as each lookup states"
    note = "captures of this crawl not included" if content["captures"] else ""
    note = "" if content["merged"] else note
    yield from ("", *index_lines(content["index"], searched, note))


def _states(content: dict[str, Any]) -> Iterator[str]:
    ended = f", ended {content['ended']}" if content["ended"] else ""
    reason = f" ({printable(content['exit'])})" if content["exit"] else ""
    deleted = ", deleted" if content["deleted"] else ""
    yield f"Crawl:                {content['crawl']}, {content['state']}{deleted}"
    yield f"                      begun {content['begun']}{ended}{reason}"
    if lag := _lag(content):
        yield f"                      {lag}"
    if content["warning"]:
        yield f"Warning:              {content['warning']}"


def _lag(content: dict[str, Any]) -> str:
    """Say that lookups are counted later than captures; "" if nothing more can come."""
    is_open = content["state"] == CrawlState.OPEN.value and not content["deleted"]
    return _OPEN if is_open else ""


def _counts_of(content: dict[str, Any], *, is_read: bool) -> Iterator[str]:
    yield f"Looked up:            {content['lookups']:,}"
    is_part = content["not_looked_up"] or content["left_out_by_rule"]
    among = " of what was looked up" if is_part else ""
    known = f" of {only}" if (only := share_of(content)) else ""
    yield from duplicate_lines(content, payload_of(content), among, known)
    if content["left_out_by_rule"] is None:
        yield f"  left out:           {_UNSAID}"
    elif content["left_out_by_rule"]:
        rule = "stored in full: a rule of the crawler on media types or sizes (its own count)"
        yield f"  left out:           {content['left_out_by_rule']:,} more, {rule}"
    more = ""
    if reports_unasked(content) and not content["not_reported"]:
        count = content["not_looked_up"] - content["not_looked_up_nor_reported"]
        more = f", of these reported: {count:,}"
    yield f"  not looked up:      {_of_crawler(content['not_looked_up'], 'stored in full')}{more}"
    yield f"  not reported:       {_of_crawler(content['not_reported'], 'stored')}"
    learn = how_to_learn(content, is_read=is_read)
    yield from (f"  {sentence}" for sentence in (left_out(content), learn) if sentence)
    yield from _stated_lines(content)
    yield from class_lines(content, f"bytes {reported_as(content)}")
    if content["listed"]:
        yield f"Listed by URL only:   {content['listed']:,}"
    yield f"Reported as stored:   {content['captures']:,}, bytes: {bytes_text(content['bytes'])}"
    if content["refused"]:
        none = "" if content["captures"] else "; the index took nothing that it reported"
        yield f"Reported but refused: {refused_text(content['refused'])}{none}"
    if content["not_modified"]:
        size = bytes_text(content["not_modified_bytes"])
        yield f"Not modified (304):   {content['not_modified']:,}, bytes not fetched: {size}"
    if content["answered_by_filter"]:
        yield f"Answered by filter:   {content['answered_by_filter']:,}"
    among = " (by the server; the crawler may count them as not looked up)"
    yield f"Answered with errors: {content['errors']:,}{among if content['errors'] else ''}"
    yield f"Average lookup time:  {content['average_lookup_ms']} ms"
    yield f"99 of 100 lookups:    {content['p99_lookup_ms']} ms at most"
    for name, row in content["strategies"].items():
        share = f"{row['duplicates']:,} duplicates ({share_text(row['duplicates_percent'])})"
        yield singular(f"  {name + ':':<20}{row['lookups']:,} lookups, {share}")


def _stated_lines(content: dict[str, Any]) -> Iterator[str]:
    """Yield the bytes of duplicates as the crawler counts, and of all lookups if known."""
    stated, duplicate = content["stated_bytes"], content["duplicate_stated_bytes"]
    if stated:
        share = share_text(content["duplicate_stated_bytes_percent"])
        yield f"  as the crawler counts: {bytes_text(duplicate)} of {bytes_text(stated)}, {share}"
    elif duplicate:
        yield f"  as the crawler counts: {bytes_text(duplicate)}"


def _of_crawler(count: int | None, and_so: str) -> str:
    """Return what only the crawler can count, of captures that the shares above leave out."""
    if count is None:
        return _UNSAID
    return f"{count:,} more, {and_so} (the crawler's own count)" if count else "0"
