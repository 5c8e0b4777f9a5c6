"""The exceptions of dedupindex, with the exit status and HTTP status of each.

    DedupError            exit 3, HTTP 500
      BadInput            exit 4, HTTP 400   BadDigest, BadDate, BadSource, BadQuery,
                                             UnknownCrawl (HTTP 404)
      SettingsConflict    exit 5, HTTP 409   StrategyUnavailable, ContainerChanged, IndexExists,
                                             CrawlEnded, CrawlExists, HasDependents
      IndexUnavailable    exit 6, HTTP 503   IndexBusy, FormatFromFuture, FormatFromPast
      Damaged             exit 7, HTTP 503
      NotAnswered         exit 9, HTTP 500

Exit status 1 is a crash, 2 a usage error. A command that had to leave damaged input out ends with
7, too.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import ClassVar


class DedupError(Exception):
    """The base class; the text says what happened, where, and what to do."""

    exit_status: ClassVar[int] = 3
    http_status: ClassVar[int] = 500
    code: ClassVar[str] = "error"


def to_install(extra: str) -> str:
    """Return the command that installs the packages of an extra.

    In a checkout this is not pip: ``pip install '.[spark]'`` would install a copy of the checkout,
    and commands would run that copy.
    """
    checkout = Path(__file__).resolve().parents[1]
    if (checkout / "bin" / "setup").is_file() and Path(sys.prefix).resolve().parent == checkout:
        return f"bin/setup {extra}"
    return f"pip install 'dedupindex[{extra}]'"


class BadInput(DedupError):
    """A file, option or request is not valid."""

    exit_status = 4
    http_status = 400
    code = "bad_input"


class BadDigest(BadInput):
    """Text is not a digest of a known algorithm."""

    code = "bad_digest"


class BadDate(BadInput):
    """Text is not a WARC-Date or a 14-digit time."""

    code = "bad_date"


class BadSource(BadInput):
    """A source is missing, unreadable or of no known kind."""

    code = "bad_source"


class BadQuery(BadInput):
    """A lookup or search is not valid."""

    code = "bad_query"


class UnknownCrawl(BadInput):
    """There is no crawl with this name."""

    http_status = 404
    code = "unknown_crawl"


class SettingsConflict(DedupError):
    """The index was built with other settings than those asked for."""

    exit_status = 5
    http_status = 409
    code = "settings_conflict"


class StrategyUnavailable(SettingsConflict):
    """The index was built without the URLs that the strategy needs."""

    code = "strategy_unavailable"


class ContainerChanged(SettingsConflict):
    """A file with this name was indexed before with other content."""

    code = "container_changed"


class IndexExists(SettingsConflict):
    """The target of a build is not empty."""

    code = "index_exists"


class CrawlEnded(SettingsConflict):
    """The crawl has been committed or cancelled."""

    code = "crawl_ended"


class CrawlExists(SettingsConflict):
    """A crawl of this name was begun with other settings."""

    code = "crawl_exists"


class HasDependents(SettingsConflict):
    """Revisits refer to captures that would be removed."""

    code = "has_dependents"


class IndexUnavailable(DedupError):
    """The index cannot be read. Never treat this as "no duplicate"."""

    exit_status = 6
    http_status = 503
    code = "index_unavailable"


class IndexBusy(IndexUnavailable):
    """Another process is writing to this index."""

    code = "index_busy"


class FormatFromFuture(IndexUnavailable):
    """The index was written by a newer version."""

    code = "format_from_future"


class FormatFromPast(IndexUnavailable):
    """The index was written by an older version whose format is not read any more."""

    code = "format_from_past"


class Damaged(DedupError):
    """Stored data is damaged."""

    exit_status = 7
    http_status = 503  # a lookup that reads them must not answer "new"
    code = "damaged"


class NotAnswered(DedupError):
    """Lookups do not find what a load, copy, merge or purge has written."""

    exit_status = 9
    code = "not_answered"
