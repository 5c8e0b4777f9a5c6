"""Every failure this project can explain, and what each front end does with it.

* DedupError            exit 3, HTTP 500   anything below
  + BadInput            exit 4, HTTP 400   a file, option or request says something we cannot read
    - BadDigest                            text that is no digest of a known algorithm
    - BadDate                              text that is no WARC-Date or 14-digit time
    - BadSource                            a source that is missing, unreadable or of no known kind
    - BadQuery                             a lookup or search that cannot be understood
    - UnknownCrawl                         no crawl of this name was begun here
  + SettingsConflict    exit 5, HTTP 409   the index was built with other settings
    - StrategyUnavailable                  the index does not hold what this strategy needs
    - ContainerChanged                     a file of this name was indexed before with other bytes
    - IndexExists                          the target already holds something
    - CrawlEnded                           the crawl was committed or cancelled before
    - CrawlExists                          a crawl of this name was begun otherwise
    - HasDependents                        revisits name what would be purged
  + IndexUnavailable    exit 6, HTTP 503   the answer is unknown, which is not the same as "new"
    - IndexBusy                            another process is writing to this index
    - FormatFromFuture                     the index was written by a newer version
    - FormatFromPast                       the index was written by an older version
  + Damaged             exit 7, HTTP 503   bytes on disk are not what they must be
  + NotAnswered         exit 9, HTTP 500   what was just written is not found by lookups

Exit statuses 1 and 2 stay what Python and the command line parser make them: crash, usage.
A command that did its work but had to leave damaged input out also ends with 7.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import ClassVar


class DedupError(Exception):
    """A failure that a person can act on; its text says what happened, where, and what to do."""

    exit_status: ClassVar[int] = 3
    http_status: ClassVar[int] = 500
    code: ClassVar[str] = "error"


def to_install(extra: str) -> str:
    """The command that installs the packages of an extra: here, or where pip has installed us.

    In a checkout that is no pip: ``pip install '.[spark]'`` would put a copy of the checkout in
    place of the checkout, and commands would run that copy for ever.
    """
    checkout = Path(__file__).resolve().parents[1]
    if (checkout / "bin" / "setup").is_file() and Path(sys.prefix).resolve().parent == checkout:
        return f"bin/setup {extra}"
    return f"pip install 'dedupindex[{extra}]'"


class BadInput(DedupError):
    """A file, option or request says something that cannot be read."""

    exit_status = 4
    http_status = 400
    code = "bad_input"


class BadDigest(BadInput):
    """Text that is not a digest of a known algorithm."""

    code = "bad_digest"


class BadDate(BadInput):
    """Text that is not a WARC-Date or a 14-digit time."""

    code = "bad_date"


class BadSource(BadInput):
    """A source that is missing, unreadable or of no known kind."""

    code = "bad_source"


class BadQuery(BadInput):
    """A lookup or search that cannot be understood."""

    code = "bad_query"


class UnknownCrawl(BadInput):
    """No crawl of this name was begun here."""

    http_status = 404
    code = "unknown_crawl"


class SettingsConflict(DedupError):
    """The index was built with other settings than those asked for."""

    exit_status = 5
    http_status = 409
    code = "settings_conflict"


class StrategyUnavailable(SettingsConflict):
    """The index does not hold what this strategy needs."""

    code = "strategy_unavailable"


class ContainerChanged(SettingsConflict):
    """A container of this name was indexed before with other bytes."""

    code = "container_changed"


class IndexExists(SettingsConflict):
    """The target of a build already holds something."""

    code = "index_exists"


class CrawlEnded(SettingsConflict):
    """The crawl was committed or cancelled before."""

    code = "crawl_ended"


class CrawlExists(SettingsConflict):
    """A crawl of this name was begun with other settings."""

    code = "crawl_exists"


class HasDependents(SettingsConflict):
    """Revisits name captures that would be taken out."""

    code = "has_dependents"


class IndexUnavailable(DedupError):
    """The index cannot tell; never to be taken for "no duplicate"."""

    exit_status = 6
    http_status = 503
    code = "index_unavailable"


class IndexBusy(IndexUnavailable):
    """Another process is writing to this index."""

    code = "index_busy"


class FormatFromFuture(IndexUnavailable):
    """The index was written in a format this version does not know."""

    code = "format_from_future"


class FormatFromPast(IndexUnavailable):
    """The index was written in a format that this version does not read any more."""

    code = "format_from_past"


class Damaged(DedupError):
    """Bytes on disk are not what they must be."""

    exit_status = 7
    http_status = 503  # of a lookup that meets them: it cannot tell, and so must not say "new"
    code = "damaged"


class NotAnswered(DedupError):
    """What a load, copy, merge or purge has written is not answered by lookups as it must be."""

    exit_status = 9
    code = "not_answered"
