"""The page of a capture: all captures that store its payload, and the revisits of them, drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from flask import render_template, request

from dedupindex.capture import Capture
from dedupindex.digest import Digest
from dedupindex.errors import BadQuery
from dedupindex.index.same_payload import RevisitOf, SamePayload, of_digest
from dedupindex.lookup.render_json import original_as_json
from dedupindex.runtime.tables import singular
from dedupindex.timestamps import digits_of_date
from server.services import Handlers

MOST = 2000  # captures and revisits that are read and drawn
_LISTED = 100  # of each kind
_BINS = 40  # of the time that a drawing spans
_MARGIN = 3.0  # per cent at each side
LANES = {"first": "originals", "again": "copies", "saved": "revisits"}
_HEIGHT = {"first": 30, "again": 80, "saved": 130}  # of each lane, in pixels


class Mark(NamedTuple):
    """What happened in one part of the time, as a circle."""

    name: str  # CSS class
    x: float  # per cent
    y: int
    radius: float
    text: str


class CapturePage(Handlers):
    def capture(self) -> str:
        """Show a payload's captures and revisits; those of the URL that was given come first."""
        stated, url = request.args.get("digest", ""), request.args.get("url", "")
        if not stated:
            raise BadQuery("say which payload: lists of captures and lookups lead to this page")
        digest = Digest.parse(stated)
        engine = self._live.opened().engine
        found = of_digest(engine, digest, MOST)
        raw = url.encode("utf-8", "surrogateescape")
        captures = [
            {
                **original_as_json(capture),
                "crawl": capture.crawl,
                "is_original": at in found.originals,
            }
            for at, capture in enumerate(found.captures)
        ]
        revisits = [_revisit(one, raw) for one in found.revisits]
        sizes = {row["size"] for row in captures} - {None}
        return render_template(
            "capture.html",
            digest=stated,
            url=url,
            itself=next(
                (row for row in captures if row["url"] == url and row["is_original"]), None
            ),
            captures=captures[:_LISTED],
            revisits=sorted(revisits, key=lambda row: not row["of_this"])[:_LISTED],
            counts={
                "first": len(found.originals),
                "again": len(captures) - len(found.originals),
                "saved": len(revisits),
            },
            of_this=sum(row["of_this"] for row in revisits),
            saved=max(sizes) * len(revisits) if sizes else None,
            wasted=max(sizes) * max(len(captures) - 1, 0) if sizes else None,
            listed=_LISTED,
            more=found.more,
            has_ledger=bool(self._has_ledger()),
            lanes=LANES,
            drawing=_drawing(found),
        )

    def _has_ledger(self) -> bool:
        with self._live.opened().engine.view() as view:
            return view.has_ledger()


def _revisit(one: RevisitOf, url: bytes) -> dict[str, Any]:
    revisit = one.revisit
    return {
        "url": revisit.url.decode("utf-8", "surrogateescape"),
        "date": revisit.date.decode(),
        "names_url": revisit.names_url.decode("utf-8", "surrogateescape"),
        "names_date": revisit.names_date.decode(),
        "container": one.place.container,
        "crawl": one.place.crawl,
        "of_this": revisit.names_url == url,
    }


def _drawing(found: SamePayload) -> dict[str, Any]:
    """Return a line of time: circles for what happened, and lines from originals to revisits."""
    dates = {
        "first": _dates(found.captures[at] for at in found.originals),
        "again": _dates(one for at, one in enumerate(found.captures) if at not in found.originals),
        "saved": [digits_of_date(one.revisit.date) for one in found.revisits],
    }
    every = [_seconds(date) for lane in dates.values() for date in lane]
    if not every:
        return {"marks": [], "lines": [], "first": "", "last": "", "same_second": []}
    begin, end = min(every), max(every)
    marks = []
    for name, lane in dates.items():
        for place, together in _bins(lane, begin, end):
            radius = round(min(4 + len(together) ** 0.5, 14), 1)
            text = _text(name, together)
            marks.append(Mark(name, _x(place), _HEIGHT[name], radius, text))
    places = {
        date: _x(_bin(_seconds(date), begin, end)) for lane in dates.values() for date in lane
    }
    lines = {
        (places[digits_of_date(one.revisit.names_date)], places[digits_of_date(one.revisit.date)])
        for one in found.revisits
        if one.revisit.names_date and digits_of_date(one.revisit.names_date) in places
    }
    first, last = (
        min(map(min, filter(None, dates.values()))),
        max(map(max, filter(None, dates.values()))),
    )
    return {
        "marks": marks,
        "lines": sorted(lines),
        "first": _day(first),
        "last": _day(last),
        "same_second": _same_second(dates),
    }


def _bins(lane: list[bytes], begin: float, end: float) -> list[tuple[int, list[bytes]]]:
    """Return the parts of the time that have dates, in order, each with its dates."""
    found: dict[int, list[bytes]] = {}
    for date in lane:
        found.setdefault(_bin(_seconds(date), begin, end), []).append(date)
    return sorted(found.items())


def _text(name: str, dates: list[bytes]) -> str:
    """Return how many a circle stands for, and when they were."""
    text = singular(f"{len(dates):,} {LANES[name]} ").rstrip()
    first, last = _day(min(dates)), _day(max(dates))
    if len(set(dates)) > 1:
        return f"{text}, {first}" if first == last else f"{text}, {first} to {last}"
    return f"{text}, {first}" if len(dates) == 1 else f"{text} in the same second, {first}"


def _same_second(dates: dict[str, list[bytes]]) -> list[str]:
    """Return how many originals, copies and revisits are of the second of another one."""
    found = []
    for name, lane in dates.items():
        count = sum(times for times in Counter(lane).values() if times > 1)
        if count:
            found.append(f"{count:,} {LANES[name]}")
    return found


def _dates(captures: Iterable[Capture]) -> list[bytes]:
    return [digits_of_date(capture.date) for capture in captures]


def _seconds(date: bytes) -> float:
    """Return a position in time; dates come from the web, so there may be a 31st of February."""
    year, month, day = int(date[:4]), int(date[4:6]), int(date[6:8])
    return ((year * 12 + month) * 31 + day) * 86400 + int(date[8:10]) * 3600 + int(date[10:12]) * 60


def _bin(seconds: float, begin: float, end: float) -> int:
    return round((_BINS - 1) * (seconds - begin) / (end - begin)) if end > begin else _BINS // 2


def _x(place: int) -> float:
    return round(_MARGIN + (100 - 2 * _MARGIN) * place / (_BINS - 1), 2)


def _day(date: bytes) -> str:
    text = date.decode()
    return f"{text[:4]}-{text[4:6]}-{text[6:8]}"
