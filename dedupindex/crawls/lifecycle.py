"""Begin, commit, cancel and drop crawls. Every step may be repeated."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from dedupindex.capture import Covers
from dedupindex.crawls import statistics
from dedupindex.crawls.crawl import Crawl, CrawlState, Visibility
from dedupindex.crawls.store import Writing
from dedupindex.errors import CrawlEnded, CrawlExists, HasDependents, IndexBusy
from dedupindex.lookup.conditions import check_crawl_name
from dedupindex.runtime.tables import singular


def begin(
    writing: Writing,
    name: str,
    *,
    seen: Visibility = Visibility.OWN,
    covers: Covers = Covers.UNKNOWN,
    **more: Any,
) -> Crawl:
    """Begin a crawl; return the existing one if it was begun with the same settings.

    `more` may have a strategy, a policy and a namespace; what is left out, as stock crawlers do,
    is not compared. Raises `CrawlExists` if a setting differs, `CrawlEnded` if the crawl has ended.
    """
    check_crawl_name(name)
    crawl = writing.crawl_named(name)
    if crawl is None:
        crawl = Crawl(writing.new_number(), name, _now(), seen=seen, covers=covers, **more)
        writing.put_crawl(crawl)
        return crawl
    if crawl.state is not CrawlState.OPEN:
        ended = crawl.removed or crawl.state.value
        raise CrawlEnded(f"crawl {name} was {ended}; begin another under another name")
    if (crawl.seen, crawl.covers) != (seen, covers):
        raise CrawlExists(
            f"crawl {name} was begun with seen_by {crawl.seen.value} and digest_covers "
            f"{crawl.covers.name.lower()}"
        )
    if other := [name for name, value in more.items() if getattr(crawl, name) != value]:
        raise CrawlExists(f"crawl {name} was begun with another {other[0]}")
    return crawl


def commit(writing: Writing, name: str, exit: str = "") -> Crawl:
    """Make the captures of a crawl answer everybody; raises `CrawlEnded` if it was cancelled."""
    return _end(writing, name, CrawlState.COMMITTED, exit)


def cancel(writing: Writing, name: str, exit: str = "", *, force: bool = False) -> Crawl:
    """Discard everything that a crawl reported; `merge_crawls.sweep` removes it later.

    Raises `CrawlEnded` if it was committed and, unless `force` is set, `HasDependents` if its
    captures have answered lookups of others.
    """
    crawl = writing.crawl(name)
    if crawl.state is CrawlState.COMMITTED:
        raise _committed(crawl)
    _require_unused(writing, crawl, force)
    return _end(writing, name, CrawlState.CANCELLED, exit)


def _committed(crawl: Crawl) -> CrawlEnded:
    """Return the error for a committed crawl: it cannot be cancelled, but its captures can go."""
    if crawl.dropped:
        return CrawlEnded(f"crawl {crawl.name} was {crawl.removed} already")
    if crawl.merged:
        return CrawlEnded(
            f"crawl {crawl.name} is merged, its captures are in the index: "
            f"bin/purge INDEX --crawl {crawl.name} takes them out"
        )
    return CrawlEnded(
        f"crawl {crawl.name} is committed already: DELETE /crawls/{quote(crawl.name, '')} drops "
        f"it before it is merged, bin/purge INDEX --crawl {crawl.name} takes its captures out "
        "afterwards"
    )


def _require_unused(writing: Writing, crawl: Crawl, force: bool) -> None:  # noqa: FBT001
    count = 0 if force or crawl.state is CrawlState.CANCELLED else statistics.others(writing, crawl)
    if count:
        lookups = singular(f"{count:,} lookups")
        raise HasDependents(
            f"captures of crawl {crawl.name} have answered {lookups} of others, who have "
            "probably stored revisits of them; without the crawl these revisits cannot be "
            "replayed. Commit it, or send force=true in the body to cancel it nevertheless"
        )


def drop(writing: Writing, name: str, *, force: bool = True) -> Crawl:
    """Discard everything that a crawl reported, also if it was committed.

    The caller holds the index's write lock, so no merge is running. Raises `CrawlEnded` if the
    crawl is merged, `IndexBusy` if it may be because a merge was killed, and `HasDependents` as
    `cancel` does.
    """
    crawl = writing.crawl(name)
    if crawl.merged:
        raise _committed(crawl)
    if crawl.merging:
        raise IndexBusy(
            f"crawl {name} is being merged, the index may hold its captures already: try again, or "
            f"bin/purge --crawl {name}"
        )
    _require_unused(writing, crawl, force)
    if crawl.state is not CrawlState.CANCELLED:
        writing.put_crawl(replace(crawl, state=CrawlState.CANCELLED, ended=_now(), exit="dropped"))
    return forget(writing, name)


def forget(writing: Writing, name: str) -> Crawl:
    """Stop counting the lookups and captures of a crawl; raises `UnknownCrawl`."""
    crawl = writing.crawl(name)
    if not crawl.dropped:
        crawl = replace(crawl, dropped=True)
        writing.put_crawl(crawl)
    return crawl


def _end(writing: Writing, name: str, state: CrawlState, exit: str) -> Crawl:
    crawl = writing.crawl(name)
    if crawl.state is state:
        return crawl
    if crawl.state is not CrawlState.OPEN:
        raise CrawlEnded(f"crawl {name} is {crawl.state.value} already")
    crawl = replace(crawl, state=state, ended=_now(), exit=exit[:200])
    writing.put_crawl(crawl)
    return crawl


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
