"""``bin/list``: the captures in an index, as a table, JSON or CSV."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from itertools import chain, islice
from math import inf
from mimetypes import types_map
from pathlib import Path
from time import monotonic
from typing import Any

import click

from dedupindex.api import Index
from dedupindex.api import open as open_api
from dedupindex.capture import Capture
from dedupindex.cli.common import NOTHING_FOUND, Command, print_json, print_line, say
from dedupindex.cli.index_location import index_or_engine, optional_index
from dedupindex.cli.options import COUNT, RealNumber, flag, option, shared_options, wants_json
from dedupindex.cli.progress_bar import show_progress
from dedupindex.counts import OnProgress
from dedupindex.crawls.store import suggestion
from dedupindex.crawls.stores import crawl_named, crawl_names, open_store, removed_crawls
from dedupindex.errors import UnknownCrawl
from dedupindex.lookup.render_json import original_as_json
from dedupindex.runtime.progress import watched
from dedupindex.runtime.tables import amount, csv_lines, printable
from dedupindex.timestamps import digits_of_date, first_digits, last_digits, sort_key
from dedupindex.urlkey import (
    host_name,
    host_of,
    in_idna,
    is_at,
    lacks_scheme,
    meant_host,
    meant_url,
    with_path,
)

LIMIT = 100
_READING = "reading"  # the phase of a search
_LINE = "{:<20}  {:>6}  {:<24}  {:>8}  {}  {}  {}"
_TITLES = _LINE.format("DATE", "STATUS", "MEDIA TYPE", "SIZE", "DIGEST", "URL", "FILE")
_COLUMNS = (
    *("url", "date", "status", "mime", "size", "record_size", "digest", "record_id"),
    *("container", "offset", "evidence"),
)
EXAMPLES = """
bin/list my-index                                    # a hundred captures of any URL
bin/list my-index --url http://example.com/          # all captures of one URL, by date
bin/list my-index --host example.com --from 2026-10 --limit 0 --csv > example.csv
bin/list my-index --mime video/mp4 --min-size 1000000 --of-crawl weekly-7
bin/list my-index --host example.com --seconds 5     # and where the search can go on
bin/list my-index --digest sha1:FKXGYNOJJ7H3IFO35FPUBC445EPOQRXN --json
"""


@click.command(cls=Command, examples=EXAMPLES)
@optional_index
@option("--url", setting=False, help="Captures of exactly this URL, by date.")
@option("--prefix", setting=False, help="Captures of URLs that begin so.")
@option("--host", setting=False, help="Captures of this host and its subdomains.")
@option("--digest", setting=False, help="Captures with this payload digest, as sha1:…, by date.")
@option("--date", setting=False, metavar="DATE", help="Of this year, month, day or second.")
@option("--from", "begin", setting=False, metavar="DATE", help="From this year, day or second on.")
@option("--to", "end", setting=False, metavar="DATE", help="Up to this year, day or second.")
@option(
    "--mime",
    setting=False,
    metavar="TYPE",
    help="Of this media type, or of all such as image/*; '' if not known.",
)
@option("--status", type=COUNT, setting=False, help="Of this HTTP status; 0 if not known.")
@option("--min-size", type=COUNT, setting=False, help="Payloads of so many bytes or more.")
@option("--max-size", type=COUNT, setting=False, help="Payloads of so many bytes or fewer.")
@option("--of-crawl", setting=False, metavar="NAME", help="That this crawl stored; '': unnamed.")
@option("--crawl", metavar="NAME", default="", help="Also what this open crawl has reported.")
@option("--limit", type=COUNT, default=LIMIT, help="Captures to list; 0 for all.")
@option("--after", setting=False, metavar="POSITION", help="Only what follows in the list.")
@option(
    "--seconds", type=RealNumber(0), default=0.0, setting=False, show_default=False,
    help="Search for so long at most.",
)  # fmt: skip
@flag("--next", "follow", setting=False, help="End --json with the POSITION to go on from.")
@flag("--csv", setting=False, help="Lines of CSV, after one with the names of the columns.")
@shared_options("--json", help="One JSON object a capture on stdout.")
def command(
    index: Path | None,
    engine: str,
    url: str | None,
    prefix: str | None,
    digest: str | None,
    crawl: str,
    limit: int,
    after: str | None,
    seconds: float,
    follow: bool,
    csv: bool,
    **conditions: Any,
) -> int:
    """List captures in INDEX: the originals, with where their payload is stored.

    They are listed in the order of their digests, or by date with --url and --digest. It reads the
    whole index until it has found --limit captures, except with --digest, and with --url if the
    index was built with --by-url. The status is 10 if there is no such capture.

    If there are more, or --seconds are over, a message names the POSITION with which --after goes
    on; --next writes it as a last line of --json, {"next": "..."}, which is null at the end.
    """
    if sum(given is not None for given in (url, prefix, digest)) > 1:
        raise click.UsageError("give one of --url, --prefix and --digest")
    if conditions["date"] and (conditions["begin"] or conditions["end"]):
        raise click.UsageError("give either --date, or --from and --to")
    if csv and wants_json():
        raise click.UsageError("give one of --csv and --json")
    if follow and not wants_json():
        raise click.UsageError("--next needs --json")
    if not (url is None and digest is None) and (after is not None or seconds or follow):
        raise click.UsageError("--after, --seconds and --next are not for --url and --digest")
    matches = _matcher(prefix=prefix, **conditions)
    where = index_or_engine(index, engine)
    if crawl and (cancelled := cancelled_crawl(where, crawl)):
        say(f"warning: {cancelled}; listed is what the index has without it")
    with opened_to_list(where, crawl) as (opened, progress):
        if url is not None:
            captures = without_positions(captures_at(opened, url, crawl, progress))
        elif digest is not None:
            captures = without_positions(opened.captures(digest=digest, crawl=crawl))
        else:
            captures = _following(opened, after or "", crawl, progress)
        names = ("host", "mime", "of_crawl")
        typed = {"url": url or prefix, **{name: conditions[name] for name in names}}
        why = partial(why_none, opened, crawl, **{name: text or "" for name, text in typed.items()})
        search = Search(captures, matches, seconds)
        return print_captures(search, limit, why, csv=csv, follow=follow, further=bool(after))


def without_positions(captures: Iterable[Capture]) -> Iterator[tuple[str, Capture]]:
    """Return captures as `Search` takes them, of a list that cannot be continued."""
    return (("", capture) for capture in captures)


class Search:
    """The captures that match, and how far the search for them is.

    It ends early, and `is_complete` is False, when it has taken `seconds`, unless these are 0.
    """

    def __init__(
        self,
        captures: Iterable[tuple[str, Capture]],
        matches: Callable[[Capture], bool] = lambda capture: True,
        seconds: float = 0,
    ) -> None:
        self._captures, self._matches, self.seconds = captures, matches, seconds
        self._end = monotonic() + seconds if seconds else inf
        self.position, self.is_complete = "", True  # the position is that of what was read last

    def __iter__(self) -> Iterator[Capture]:
        for position, capture in self._captures:
            self.position = position
            if self._matches(capture):
                yield capture
            if monotonic() > self._end:
                self.is_complete = False
                return


@contextmanager
def opened_to_list(index: Path, crawl: str) -> Iterator[tuple[Index, OnProgress]]:
    """Open an index whose captures are listed, as `suggesting_crawls` and `show_search` do."""
    with (
        suggesting_crawls(index, crawl),
        closing(open_api(index)) as opened,
        show_search() as progress,
    ):
        yield opened, progress


def show_search() -> AbstractContextManager[OnProgress]:
    """Show progress while captures are searched for and printed: on a terminal between them."""
    return show_progress(prints=not sys.stdout.isatty())


def _following(
    opened: Index, after: str, crawl: str, on_progress: OnProgress
) -> Iterator[tuple[str, Capture]]:
    """Return the captures after a position in the list, and report progress."""
    total = 0 if after else opened.stats()["captures"]  # how many follow is not known
    return watched(opened.captures_after(after, crawl=crawl), _READING, total, on_progress)


def captures_at(opened: Index, url: str, crawl: str, on_progress: OnProgress) -> Iterator[Capture]:
    """Return the captures of a URL that a user typed: if it has none and no path, of its ``/``."""
    typed = _bytes(url)
    captures = _by_date(opened, typed, crawl, on_progress)
    first = next(captures, None)
    if first is not None:
        return chain([first], captures)
    full = with_path(typed)
    return _by_date(opened, full, crawl, on_progress) if full != typed else captures


def _by_date(opened: Index, url: bytes, crawl: str, on_progress: OnProgress) -> Iterator[Capture]:
    """Return the captures of a URL by date, and report progress if the whole index is read."""
    facts = opened.stats()
    if facts["settings"]["by_url"]:
        return opened.captures(url, crawl=crawl)
    known = watched(opened.captures(crawl=crawl), _READING, facts["captures"], on_progress)
    found = (capture for capture in known if capture.url == url)
    return iter(sorted(found, key=lambda capture: sort_key(capture.date)))


@contextmanager
def suggesting_crawls(index: Path, crawl: str) -> Iterator[None]:
    """Name the crawls that there are if one is unknown; the index must be closed then."""
    try:
        yield
    except UnknownCrawl:
        if crawl in crawl_names(index):
            raise UnknownCrawl(
                f"crawl {crawl!r} is known from its WARCs only, which answer every lookup: leave "
                f"--crawl out. bin/list {shlex.quote(str(index))} --of-crawl {shlex.quote(crawl)} "
                "lists its originals"
            ) from None
        store = open_store(index)
        if store is None:
            raise
        with closing(store), store.reading() as reading:
            reading.crawl_or_suggest(crawl)
        raise


def why_none(
    opened: Index,
    crawl: str = "",
    *,
    url: str = "",
    host: str = "",
    mime: str = "",
    of_crawl: str = "",
) -> str:
    """Return why there may be no capture of what was typed, "" if nobody knows.

    It may close the index, for which there is nothing left to list.
    """
    if next(opened.captures(crawl=crawl), None) is None:
        return "the index is empty"
    if scheme := no_scheme(url):
        return scheme
    if host and (name := meant_host(host)):
        return f"--host takes {name}"
    if mime and "/" not in mime:
        known = types_map.get(f".{mime.lower()}", "")
        return f"--mime takes all of a media type{known and f': did you mean {known}?'}"
    if of_crawl:
        opened.close()  # no process may open its files twice
        return _why_no_crawl(opened.path, of_crawl)
    return ""


def no_scheme(url: str) -> str:
    """Return what was meant with a URL that has no scheme, "" if it is empty or has one."""
    if not url or not lacks_scheme(url):
        return ""
    return f"{url} has no scheme: did you mean {meant_url(url)}?"


def _why_no_crawl(index: Path, name: str) -> str:
    """Return that a crawl has no captures, or does not exist and which there are; else ""."""
    if cancelled := cancelled_crawl(index, name):
        return cancelled
    known, removed = crawl_names(index), removed_crawls(index)
    if name in removed:
        return f"captures of crawl {name} were purged"
    return "" if name in known else suggestion(name, sorted(known - {""}), removed)


def cancelled_crawl(index: Path, name: str) -> str:
    """Return that a crawl was cancelled, "" if it was not; the index must be closed then."""
    crawl = crawl_named(index, name)
    return crawl.cancelled if crawl is not None else ""


def _bytes(typed: str) -> bytes:
    return typed.encode("utf-8", "surrogateescape")


def _shown(url: bytes) -> str:
    return url.decode("utf-8", "backslashreplace")


def _matcher(
    *,
    prefix: str | None,
    host: str | None,
    date: str | None,
    begin: str | None,
    end: str | None,
    mime: str | None,
    status: int | None,
    min_size: int | None,
    max_size: int | None,
    of_crawl: str | None,
) -> Callable[[Capture], bool]:
    """Return whether a capture meets all conditions that are given."""
    first, last = first_digits(date or begin), last_digits(date or end)
    if first and last and first > last:
        raise click.UsageError(f"--from {begin} is after --to {end}: no date is meant")
    if min_size is not None and max_size is not None and min_size > max_size:
        raise click.UsageError(f"--min-size {min_size} is more than --max-size {max_size}")
    name, start = host_name(host) if host else b"", _bytes(prefix or "")
    media_type = None if mime is None else mime.encode("utf-8", "surrogateescape")
    kind = media_type[:-1] if media_type and media_type.endswith(b"/*") else None

    def matches(capture: Capture) -> bool:
        size = -1 if capture.size_of_record else capture.size
        return (
            capture.url.startswith(start)
            and (not name or is_at(in_idna(host_of(capture.url)), name))
            and (not first or digits_of_date(capture.date) >= first)
            and (not last or digits_of_date(capture.date) <= last)
            and (capture.mime.startswith(kind) if kind else media_type in (None, capture.mime))
            and status in (None, capture.status)
            and (min_size is None or size >= min_size)
            and (max_size is None or 0 <= size <= max_size)
            and of_crawl in (None, capture.crawl)
        )

    return matches


def print_captures(
    search: Search,
    limit: int,
    why_none: Callable[[], str],
    *,
    csv: bool = False,
    follow: bool = False,
    further: bool = False,
) -> int:
    """Print captures as a table, CSV or JSON lines; returns the exit status.

    `why_none` is asked if there are none, unless these are `further` ones, after a position. With
    `follow`, a last JSON line says where to go on.
    """
    captures = iter(search)
    first = next(captures, None)
    if first is not None:
        _print_rows(islice(chain([first], captures), limit or None), csv=csv)
    position: str | None = search.position
    if first is not None and limit and next(captures, None) is not None:
        listed = "is" if limit == 1 else f"{limit:,} are"
        more = position and f", --after {position} lists the next"
        say(f"only the first {listed} listed; --limit 0 lists all{more}")
    elif not search.is_complete:
        position = search.position
        say(f"the search ended after {search.seconds:g} s; --after {position} goes on")
    else:
        position = None
    if follow:
        print_json({"next": position})
    if first is None and position is None and further:
        say("no further capture matches")
        return NOTHING_FOUND
    if first is None and position is None:
        why = why_none()
        say(f"no capture matches{why and '; '}{why}")
        return NOTHING_FOUND
    return 0


def _print_rows(captures: Iterable[Capture], *, csv: bool) -> None:
    if csv:
        for line in csv_lines(_COLUMNS, map(_as_json, captures)):
            print_line(line, nl=False)
    elif wants_json():
        for capture in captures:
            print_json(_as_json(capture))
    else:
        print_line(_TITLES)
        for capture in captures:
            print_line(line_of(capture))


def _as_json(capture: Capture) -> dict[str, Any]:
    return original_as_json(capture) | {"digest": _labelled(capture)}


def _labelled(capture: Capture) -> str:
    """Return the digest as its record spells it, but always with the label that lookups need."""
    digest = capture.digest.spelled(capture.spelling)
    return digest if ":" in digest else f"{capture.digest.algorithm}:{digest}"


def line_of(capture: Capture) -> str:
    """Return a capture as a line: date, status, mime, size, digest, URL, container."""
    size = amount(capture.size) if capture.size >= 0 and not capture.size_of_record else "-"
    mime = capture.mime.decode("latin-1") or "-"
    digest, url = _labelled(capture), _shown(capture.url)
    date, container = capture.date.decode(), capture.container or "-"
    return printable(_LINE.format(date, capture.status or "-", mime, size, digest, url, container))
