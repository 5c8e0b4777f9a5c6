"""What the index holds, in pictures, and the lists of captures to which they lead.

The pictures are of the summary (`server/summaries`), never of the index itself. A list is searched
for by a command in a process of its own, for a few seconds.
"""

from __future__ import annotations

import os
import shlex
from itertools import accumulate
from typing import Any, NamedTuple, cast

import orjson
from flask import Response, redirect, render_template, request, url_for
from werkzeug.datastructures import MultiDict

from dedupindex.errors import BadQuery
from dedupindex.index import content_table, summary
from dedupindex.index.summary import DIMENSIONS, ORDERS, SIZES, Ranking, Row
from dedupindex.runtime.charts import Columns, Values, bar, columns
from dedupindex.runtime.tables import number
from dedupindex.urlkey import typed_host
from server.commands import LARGEST, LONGEST
from server.pages.login import is_own_request
from server.responses import RequestError
from server.services import Handlers

BY = {
    "host": "Hosts", "mime": "Media types", "status": "HTTP statuses", "size": "Sizes of payload",
    "crawl": "Crawls", "year": "Years", "month": "Months",
}  # fmt: skip
HEADINGS = {name: text[:1].upper() + text[1:] for name, text in content_table.HEADINGS.items()}
ORDER_TEXTS = {
    "bytes": "bytes of payload",
    "captures": "captures stored",
    "duplicate_bytes": "bytes stored again",
    "revisit_bytes": "bytes saved by revisits",
}
PARTS = {"first": "stored once", "again": "stored again", "saved": "saved by revisits"}
_TOP, _FEW = 30, 6  # rows of the chosen picture, and of the others
_MONTHS, _UNITS = 72, 100  # a chart has months if they are so few, else years; columns of a chart
LISTED, ENOUGH = 100, 8.0  # captures of a page of a list, and seconds that they are searched for
_GRACE = 20.0  # seconds after which a command is ended that has not ended by itself
DOWNLOADS = {"csv": "text/csv; charset=utf-8", "jsonl": "application/x-ndjson"}


class _ListPage(NamedTuple):
    """One page of a list."""

    rows: list[dict[str, Any]]
    position: str | None  # from which the list goes on; None: at its end, or not known
    is_complete: bool  # whether there are no others before that position


class ContentPages(Handlers):
    """The views of the index's content."""

    def content(self) -> str:
        """Show what the index holds, by one of `BY`, and smaller pictures of the others."""
        known = self._summaries.known()
        by, order = request.args.get("by", "host"), request.args.get("order", "")
        if by not in DIMENSIONS or order not in ("", *ORDERS):
            raise BadQuery("there is no such picture; the page Content lists those that there are")
        shown: dict[str, Any] = {}
        if known.content is not None:
            total = known.content["total"]
            order = order or ("bytes" if total["captures"] > total["unsized"] else "captures")
            small = [name for name in BY if name not in (by, "year", "month")]
            shown = {
                "total": summary.known_bytes(total),
                "chosen": _picture(known.content, by, order, _TOP),
                "table": content_table.content_table(by, order),
                "small": [_picture(known.content, name, order, _FEW) for name in small],
                "growth": _growth(known.content, order),
                "since": known.captures - known.content["counts"]["captures"],
            }
        return render_template(
            "content.html",
            summary=known,
            index=self._live.index.name,
            path=shlex.quote(os.path.abspath(self._live.index)),
            by=by,
            order=order,
            all_by=BY,
            headings=HEADINGS,
            orders=ORDER_TEXTS,
            parts_of=PARTS,
            absent=content_table.absent,
            **shown,
        )

    def captures(self) -> str | Response:
        """List captures of one heading, or of several."""
        given = _filters(request.args)
        if "filter" in request.args and given:  # the address without what the form left empty
            return cast(Response, redirect(url_for("pages.captures", **given), 303))
        if not given:
            raise BadQuery("say what to list: the names on the page Content lead to lists")
        options, after = _list_options(given), request.args.get("after", "")
        allowed = is_own_request(request.environ)
        listing = self._list_page(options, after) if allowed else _ListPage([], None, True)
        return render_template(
            "captures.html",
            given=[
                (HEADINGS[name], text or content_table.absent(name)) for name, text in given.items()
            ],
            link=given,
            filters=[_filter(name, given) for name in given],
            fields={name: text for name, text in HEADINGS.items() if _has_field(name, given)},
            sizes=[*(name for _, name in SIZES), summary.LARGEST],
            listing=listing,
            after=after,
            allowed=allowed,
            seconds=int(ENOUGH),
            longest=LONGEST,
            largest=LARGEST,
            most=LISTED,
            command=self._commands.typed("list", [*options, "--limit=0"]),
        )

    def _list_page(self, options: list[str], after: str) -> _ListPage:
        """Search for the captures of a page, which begins after a position."""
        words = [f"--limit={LISTED}", f"--after={after}", f"--seconds={ENOUGH}", "--json", "--next"]
        output = self._commands.run(
            "list", [*words, *options], lines=LISTED, enough=ENOUGH + _GRACE
        )
        lines = [line for line in (*output.lines, output.last) if line.endswith(b"\n")]
        rows = [orjson.loads(line) for line in lines]
        position = rows.pop()["next"] if rows and "next" in rows[-1] else None
        is_complete = output.is_complete and (position is None or len(rows) == LISTED)
        return _ListPage(rows, position, is_complete)

    def captures_csv(self) -> Response:
        """Send a list of captures as CSV, all of it."""
        return self._download("csv", "--csv")

    def captures_jsonl(self) -> Response:
        """Send a list of captures as lines of JSON, all of it."""
        return self._download("jsonl", "--json")

    def _download(self, ending: str, form: str) -> Response:
        if not is_own_request(request.environ):
            raise RequestError("forbidden", "no page of another server can start a download")
        given = _filters(request.args)
        if not given:
            raise BadQuery("say what to list: the names on the page Content lead to lists")
        words = [form, "--limit=0", *_list_options(given)]
        headers = {
            "Content-Disposition": f'attachment; filename="captures.{ending}"',
            "Cache-Control": "no-store",
        }
        if request.method == "HEAD":  # the length is not known without the list
            return Response(iter(()), content_type=DOWNLOADS[ending], headers=headers)
        content = self._commands.run_to_file("list", words)
        return Response(
            content,
            content_type=DOWNLOADS[ending],
            headers={**headers, "Content-Length": str(content.size)},
            direct_passthrough=True,
        )


def _picture(content: dict[str, Any], by: str, order: str, top: int) -> dict[str, Any]:
    """Return what a picture of a dimension shows: rows with bars on one scale."""
    if by in ("year", "month"):
        top = _UNITS
    found = summary.ranking(content, by, order, top)
    rows = [*found.rows, *([found.others] if found.others else [])]
    most = max((row[order] for row in rows), default=0)
    return {
        **found._asdict(),
        "rows": [_shown(row, found, most, content["total"]) for row in found.rows],
        "others": found.others and _shown(found.others, found, most, content["total"]),
    }


def _shown(row: Row, found: Ranking, most: float, total: Row) -> Row:
    """Return a row with its bar, and the parameters of the list of its captures."""
    heading = row.get(found.by)
    unlisted = "\0" in (heading or "") or (found.by in ("size", "host") and heading is None)
    return {
        **content_table.content_row(row, found.by, found.order, total),
        "bar": bar(_values(row, found.order), most),
        "link": {} if unlisted else {found.by: heading or ""},
    }


def _values(row: Row, order: str) -> Values:
    """Return the parts of a bar or column that is as long as `order` says."""
    if order == "revisit_bytes":
        return [("saved", row["revisit_bytes"])]
    if order == "duplicate_bytes":
        return [("again", row["duplicate_bytes"])]
    again = "duplicates" if order == "captures" else "duplicate_bytes"
    return [("first", row[order] - row[again]), ("again", row[again])]


def _growth(content: dict[str, Any], order: str) -> dict[str, Any]:
    """Return two charts: what was captured in each month or year, and the sums until then."""
    months = sorted(row["month"] for row in content["by"]["month"]["rows"] if row["month"])
    span = _number(months[-1]) - _number(months[0]) if months else 0
    by = "month" if span < _MONTHS else "year"
    rows = [row for row in content["by"][by]["rows"] if row[by]]
    rows = _without_gaps(sorted(rows, key=lambda row: str(row[by])), by)
    units = [row[by] for row in rows]
    sums = list(accumulate(rows, _plus))
    return {
        "unit": by,
        "units": units[-_UNITS:],
        "highest": max((row[order] for row in rows[-_UNITS:]), default=0),
        "sum": sums[-1][order] if sums else 0,
        "each": _columns(rows, units, order),
        "sums": _columns(sums, units, order),
    }


def _columns(rows: list[Row], units: list[str], order: str) -> Columns:
    named = list(zip(units, rows, strict=True))[-_UNITS:]
    return columns(
        [
            (
                f"{unit}: {ORDER_TEXTS[order]} {number(summary.known_bytes(row)[order])}",
                _values(row, order),
            )
            for unit, row in named
        ]
    )  # fmt: skip


def _plus(one: Row, other: Row) -> Row:
    return {name: one[name] + other[name] for name in summary.COLUMNS}


def _without_gaps(rows: list[Row], by: str) -> list[Row]:
    """Return a row for each month or year between the first and the last, if these are few."""
    if not rows:
        return rows
    first, last = (_number(row[by]) for row in (rows[0], rows[-1]))
    if last - first >= _UNITS:  # dates come from the web
        return rows
    known = {_number(row[by]): row for row in rows}
    none = dict.fromkeys(summary.COLUMNS, 0)
    return [known.get(n, {by: _name(n, by), **none}) for n in range(first, last + 1)]


def _number(unit: str) -> int:
    """Return a year, or the number of a month since the year 0."""
    year, _, month = unit.partition("-")
    return int(year) * 12 + int(month) - 1 if month else int(year)


def _name(number: int, by: str) -> str:
    return f"{number // 12:04}-{number % 12 + 1:02}" if by == "month" else f"{number:04}"


def _filters(arguments: MultiDict[str, str]) -> dict[str, Any]:
    """Return the headings whose captures are asked for.

    An empty one means that it is not known; an empty field of the form means nothing, unless it is
    in `absent`.
    """
    given = {name: arguments[name] for name in DIMENSIONS if name in arguments}
    if "filter" in arguments:
        absent = arguments.getlist("absent")
        typed = {name: text.strip() for name, text in given.items()}
        given = {name: text for name, text in typed.items() if text or name in absent}
    if "host" in given:
        given["host"] = typed_host(given["host"].strip())
    return given


def _filter(name: str, given: dict[str, Any]) -> dict[str, str]:
    """Return what the page shows of a filter, with the address of the list without it."""
    others = {other: text for other, text in given.items() if other != name}
    without = url_for("pages.captures", **others) if others else url_for("pages.content", by=name)
    text = given[name] or content_table.absent(name)
    return {"name": name, "heading": HEADINGS[name], "text": text, "without": without}


def _has_field(name: str, given: dict[str, str]) -> bool:
    """Return whether the form has a field of a heading: a month names its year."""
    return name != ("year" if "month" in given else "month")


def _list_options(given: dict[str, str]) -> list[str]:
    """Return the options of ``bin/list`` for headings of the summary."""
    options = []
    for name, text in given.items():
        if name == "size":
            options += _size_options(text)
        elif name in ("year", "month"):
            options += [f"--from={text}", f"--to={text}"]
        else:
            text = (text or "0") if name == "status" else text
            options.append(f"--{'of-crawl' if name == 'crawl' else name}={text}")
    return options


def _size_options(text: str) -> list[str]:
    least = 0
    for bound, name in SIZES:
        if name == text:
            return [f"--min-size={least}", f"--max-size={bound - 1}"]
        least = bound
    if text != summary.LARGEST:
        raise BadQuery(f"there is no size {text[:64]!r}")
    return [f"--min-size={least}"]
