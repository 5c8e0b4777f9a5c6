"""The pages of the index: an overview of its content and lookups, and the list of its files."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from flask import render_template, request

from dedupindex.crawls import statistics
from dedupindex.crawls.crawl import CrawlState
from dedupindex.crawls.crawl_report import left_unknown
from dedupindex.crawls.parse_report import self_report_of
from dedupindex.crawls.statistics_keys import NONE_REFUSED, StatisticsRow
from dedupindex.errors import BadQuery
from dedupindex.index.identity import FORMAT, Settings
from dedupindex.index.load import staging
from dedupindex.runtime.charts import bar
from dedupindex.runtime.files import data_files, size_on_disk
from server.api.crawls import crawl_rows
from server.auth import NamespaceAccess
from server.metrics import CELLS, lookups_by_class
from server.responses import ERRORS
from server.services import Handlers

SIZE = 50  # rows of a page of a long list
_LAST = 1_000_000


def page_number(text: str) -> int:
    """Return the page number of a query; raises `BadQuery`."""
    if not text:
        return 1
    if not text.isascii() or not text.isdigit() or not 0 < int(text[:9]) <= _LAST:
        raise BadQuery(f"the pages of this list are numbered from 1 to {_LAST:,}")
    return int(text[:9])


def paging(number: int, found: int) -> dict[str, Any]:
    """Return what templates need of page `number`, from 1; `found` is `SIZE + 1` if more follow."""
    return {"number": number, "more": found > SIZE, "size": SIZE}


_CRAWLS = 5  # of the latest
_SUMMED = 200  # of the latest, whose payload saved is added up
CLASSES = {
    "exact_url": "same URL",
    "canonical_url": "same canonical URL",
    "digest": "another URL",
    "none": "no original",
    "unknown_algorithm": "unknown digest algorithm",
}


class Overview(Handlers):
    """The views of the served index."""

    def overview(self) -> str:
        engine = self._live.opened().engine
        with engine.view() as view:
            counts = view.counts()
        size, changed = _on_disk(self._live.index)
        visible = NamespaceAccess(self._access, request.environ)
        with self._live.crawls.snapshot() as snapshot:
            known = [crawl for crawl in snapshot.known.crawls if visible.sees(crawl)]
            kept = [crawl for crawl in known if crawl.kept]
            states = Counter(crawl.state for crawl in known)
            total, refused, missing = StatisticsRow(), NONE_REFUSED, dict[str, int]()
            if snapshot.reading is not None:
                latest = kept[-_SUMMED:]
                ready = snapshot.reading.with_statistics(latest)
                reports = [self_report_of(ready, crawl) for crawl in latest]
                for crawl, told in zip(latest, reports, strict=True):
                    own = statistics.total(ready, crawl, told)
                    reasons = statistics.refused(ready, crawl)
                    own_refused = statistics.refused_payload(ready, crawl, reasons)
                    total, refused = total.plus(own), refused.plus(own_refused)
                    # Of what the share is, see `share_of`.
                    left = left_unknown(own, own_refused, told)
                    for name, count in {**told._asdict(), **left}.items():
                        missing[name] = missing.get(name, 0) + (count or 0)
        return render_template(
            "overview.html",
            index=self._live.index.name,
            path=shlex.quote(os.path.abspath(self._live.index)),
            counts=counts,
            size=size,
            changed=changed,
            identity=engine.identity,
            format=FORMAT,
            settings=_settings_text(engine.identity.settings),
            crawls=crawl_rows(self._live, _CRAWLS, sees=visible.sees),
            open=states[CrawlState.OPEN],
            all_crawls=states.total(),
            saved={**total.as_json(refused), **missing},
            summed=_SUMMED if len(kept) > _SUMMED else 0,
            **self._lookups(),
        )

    def _lookups(self) -> dict[str, Any]:
        """Return lookups and errors of all workers since the server started."""
        cells = self._metrics.totals()
        found = dict.fromkeys(CLASSES, 0)
        for (_, match), count in lookups_by_class(cells).items():
            found[match] += count
        errors = {
            text: cells[CELLS[code]] for code, (_, text) in ERRORS.items() if cells[CELLS[code]]
        }
        rows = [(name, CLASSES[name], count) for name, count in found.items()]
        return {
            "lookups": rows,
            "all_lookups": sum(found.values()),
            "bar": bar([(name, count) for name, _, count in rows]),
            "errors": errors,
        }

    def containers(self) -> str:
        """Show the indexed files by name."""
        number = page_number(request.args.get("page", ""))
        start = (number - 1) * SIZE
        with self._live.opened().engine.view() as view:
            rows = list(islice(view.containers(), start, start + SIZE + 1))
            total = view.counts().containers
        pages = paging(number, len(rows))
        return render_template("containers.html", rows=rows[:SIZE], paging=pages, total=total)


def _on_disk(index: Path) -> tuple[int, str]:
    """Return the bytes of an index on disk, and its last change as a WARC-Date, "" for none.

    What a build or one that failed has staged is on the disk, and not yet in the index.
    """
    size, changed = 0, 0.0
    for path, status in data_files(index):
        size += size_on_disk(status)
        if path.relative_to(index).parts[0] not in staging.NAMES:
            changed = max(changed, status.st_mtime)
    latest = datetime.fromtimestamp(changed, UTC)
    return size, latest.strftime("%Y-%m-%dT%H:%M:%SZ") if changed else ""


def _settings_text(settings: Settings) -> list[tuple[str, str]]:
    """Return the settings of an index with their names for people."""
    values = asdict(settings)
    mimes = "taken only" if settings.whitelist else "left out"
    words = {
        "url_index": "Holds URLs",
        "canonical": "Holds canonical URLs",
        "by_url": "Lists captures by URL",
        "mime": f"Media types {mimes}",
        "status": "HTTP status",
        "min_size": "Smallest payload, bytes",
        "keep": "Kept per URL and digest",
        "also_digest": "Digests computed besides",
        "etag": "Keeps ETag and Last-Modified",
    }
    return [(text, _value_text(values[name])) for name, text in words.items()]


def _value_text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) if value != "" else "none"
