"""``bin/report``: what a crawl saved, or would have saved."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import click

from dedupindex.api import IndexSnapshot, open_snapshot
from dedupindex.capture import Item
from dedupindex.cli.common import Command, is_typed, print_and_save, say, warn
from dedupindex.cli.index_location import check_order, index_or_engine, optional_index
from dedupindex.cli.options import COUNT, FILE, flag, option, shared_options, wants_json
from dedupindex.cli.progress_bar import show_progress
from dedupindex.counts import OnProgress, ProgressUpdate
from dedupindex.crawls import crawl_report
from dedupindex.crawls.compare_crawls import ORDERS as COMPARED
from dedupindex.crawls.crawl_report import FORMATS, ReportRequest
from dedupindex.crawls.statistics import BY, ORDERS
from dedupindex.crawls.store import marked, suggestion
from dedupindex.crawls.stores import (
    asking_crawl_names,
    crawl_names,
    open_store,
    removed_crawls,
)
from dedupindex.errors import BadSource, Damaged, DedupError, UnknownCrawl
from dedupindex.index import open_index
from dedupindex.indexer.admission import statuses
from dedupindex.lookup.conditions import parse_age
from dedupindex.lookup.decide import Query, Strategy
from dedupindex.lookup.last_capture import require_visits
from dedupindex.lookup.params import NO_DIGEST, parse_namespaces
from dedupindex.lookup.policy import NO_POLICY, read_policy
from dedupindex.lookup.savings import (
    GROUPS,
    DuplicationReport,
    ReportFilter,
    index_facts,
    prefetched,
)
from dedupindex.lookup.savings_report import (
    against_lines,
    against_page,
    as_json,
    group_table,
    validator_lines,
    validator_page,
    validator_table,
)
from dedupindex.lookup.validator_report import ValidatorReport
from dedupindex.runtime.report_table import Row, Table
from dedupindex.runtime.tables import names_text
from dedupindex.sources import (
    KINDS,
    Expanded,
    Source,
    SourceOptions,
    expand,
    is_stream,
    open_source,
)
from dedupindex.sources.source import annotation
from dedupindex.sources.warc_files import is_index
from dedupindex.urlkey import urlkey

EXAMPLES = """
bin/report my-index --crawl weekly-20261120
bin/report my-index --crawl weekly-20261120 --by host --top 50 --order duplicate_bytes --format csv
bin/report my-index --crawl weekly-20261120 --compare weekly-20261113
bin/report my-index --against new-crawl/ --html new-crawl.html
bin/report my-index --against crawl.log --by mime --format csv
bin/report my-index --against new-crawl/ --mime '' --mime '^text/.*' --min-size 0 --min-size 1024
bin/report my-index --against new-crawl/ --validators --by mime
bin/report my-index --against new-crawl/ --policy rules.toml --max-age '' --max-age 90d
"""
_ROWS = 20  # of text
_NAMED = 10  # crawls in a sentence
_BY = list(dict.fromkeys((*GROUPS, *BY)))
_PROGRESS_EVERY = 2048  # records


@click.command(cls=Command, examples=EXAMPLES)
@optional_index
@click.argument("more", nargs=-1, metavar="[SOURCE...]")
@option(
    "--against",
    multiple=True,
    metavar="SOURCE",
    help="Files of the crawl to look up; the same as SOURCE.",
)
@option("-i", "--iterator", metavar="KIND", help=f"Kind of source: {', '.join(KINDS)}.")
@option("--crawl", default="", metavar="NAME", help="A crawl that looked up and reported.")
@option(
    "--compare", default="", setting=False, metavar="NAME",
    help="With --crawl: what is new, gone, the same and changed since this crawl, by host.",
)  # fmt: skip
@option(
    "--by", type=click.Choice(_BY),
    help="Group by. Default: host; with --crawl no groups. strategy and hour: only with --crawl; "
    "year: only with --against.",
)  # fmt: skip
@option(
    "--order", type=click.Choice([*ORDERS, *COMPARED]), default="lookups",
    help="With --crawl: the column that groups are ranked by.",
)  # fmt: skip
@option(
    "-m", "--mime", multiple=True, default=("",),
    help="Leave out these media types; several are compared. Default: none left out.",
)  # fmt: skip
@option(
    "--min-size", multiple=True, type=COUNT, default=(0,),
    help="Smallest payload, in bytes; several are compared. Default: 0.",
)  # fmt: skip
@option(
    "--max-age", multiple=True, default=("",), metavar="AGE",
    help="Oldest original: seconds, or 12h, 30d, 2y; several are compared. Default: any age.",
)  # fmt: skip
@flag("--validators", setting=False, help="Report how well ETag and Last-Modified predict changes.")
@option("--policy", type=FILE, help="Rules for what may become a revisit, as for bin/serve.")
@option("--namespace", default="", metavar="NAMES", help="Namespaces whose crawls may answer too.")
@option("--status", default="200", help="HTTP statuses to look up: 200,203 or 2xx.")
@option(
    "--limit", "--top", type=COUNT,
    help="Largest groups only; 0 for all. Default: 20 in text, else all; hours and days: all.",
)  # fmt: skip
@shared_options("--revisit-annotation", "--columns", "--zstd-dictionary")
@option(
    "--format", type=click.Choice(list(FORMATS)), default="text",
    help="csv has groups only; html is a page.",
)  # fmt: skip
@shared_options("--html")
@shared_options("--json", help="The same as --format json.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    index: Path | None,
    engine: str,
    more: tuple[str, ...],
    **options: Any,
) -> int:
    """Report what a crawl of INDEX saved, or what the crawl in SOURCE would have saved.

    The report is by strategy and by group. With --against it counts duplicates of what INDEX has
    from before each capture, not repeats within SOURCE: bin/dedup --dry-run counts those.
    """
    sources = [*options["against"], *more]
    if not sources and not options["crawl"]:
        raise _no_subject(index_or_engine(index, engine))
    _check_subject(sources, options)
    if wants_json() and options["format"] != "json":
        if is_typed("format"):
            raise click.UsageError(f"give either --json or --format {options['format']}")
        options["format"] = "json"
    if options["compare"]:
        from dedupindex.cli import compare  # other reports need not wait for it

        compare.check(ctx, options)
        return compare.run(index_or_engine(index, engine), **options)
    if options["order"] not in ORDERS:
        raise click.UsageError(f"--order {options['order']} is for --compare")
    by, known = options["by"], BY if options["crawl"] else GROUPS
    if by and by not in known:
        kind = "--crawl" if options["crawl"] else "--against"
        raise click.UsageError(f"a report with {kind} is not by {by}, but by {', '.join(known)}")
    if options["limit"] is None:
        few = options["format"] == "text" and by not in ("hour", "day", "year")
        options["limit"] = _ROWS if few else 0
    index = index_or_engine(index, engine)
    if options["crawl"]:
        return _of_crawl(index, **options)
    check_order(index, sources, "--crawl")
    _check_crawl_names(index, sources)
    return (_validators if options["validators"] else _against)(index, sources, **options)


def _no_subject(index: Path) -> click.UsageError:
    """Return the error for a report on nothing, with the names of crawls if there are any."""
    asking, others = list[str](), list[str]()
    with suppress(DedupError):
        removed = removed_crawls(index)
        asking, others = (marked(names, removed) for names in _crawl_names(index))
    text = "name the crawl: either --crawl NAME or --against SOURCE... for files"
    if asking:
        text += f"; crawls in {index}: {names_text(asking, _NAMED)}"
    if others and len(asking) + len(others) > 1:
        named = names_text(others, _NAMED)
        text += f"; known from their WARCs only, for --crawl NAME --compare OTHER: {named}"
    return click.UsageError(text)


def _crawl_names(index: Path) -> tuple[list[str], list[str]]:
    """Return the crawls that asked, the newest first, and those that are known from files only."""
    asking = asking_crawl_names(index)
    return asking, sorted(crawl_names(index).difference(asking, [""]), reverse=True)


def _check_subject(sources: Sequence[str], options: Mapping[str, Any]) -> None:
    """Raise `UsageError` unless options go with what the report is on: a crawl, or files."""
    if sources and options["crawl"]:
        raise click.UsageError(
            "--crawl NAME reports on a crawl that looked up, --against SOURCE on files: "
            "give only one of them"
        )
    if options["crawl"] and (options["policy"] or options["namespace"] or any(options["max_age"])):
        raise click.UsageError("--max-age, --policy and --namespace are for --against")
    if options["crawl"] and options["validators"]:
        raise click.UsageError("--validators is for --against: it reads the files of the crawl")
    if is_typed("compare") and not options["compare"]:
        raise click.UsageError(
            "--compare '' names no crawl; bin/index --add --reread --crawl NAME FILE... INDEX "
            "gives files that were indexed without --crawl the name of theirs"
        )


def _check_crawl_names(index: Path, sources: Sequence[str]) -> None:
    """Raise `UsageError` if a source that does not exist is the name of a crawl of INDEX."""
    missing = [name for name in sources if "/" not in name and not os.path.lexists(name)]
    for name in missing:
        if name in crawl_names(index):
            raise click.UsageError(f"there is no file {name}; did you mean --crawl {name}?")


def _of_crawl(index: Path, *, crawl: str, format: str, html: Path | None, **options: Any) -> int:
    """Print what a crawl looked up and reported until a second ago."""
    with closing(open_index(index)) as engine, engine.view() as view:
        facts = index_facts(engine.identity.settings, view.counts().captures)
    store = open_store(index)
    if store is None:
        raise _without_lookups(index, crawl)
    request = ReportRequest(options["by"] or "", options["limit"], options["order"])
    with ExitStack() as stack:
        stack.enter_context(closing(store))
        reading = stack.enter_context(store.reading())
        known = reading.crawl_named(crawl)
        if known is None:
            stack.close()
            raise _without_lookups(index, crawl)

        def written(style: str) -> Iterator[str]:
            found = crawl_report.report(reading, known, request, facts)
            if style != "json" and crawl_report.commands_to_learn(found.summary):
                with closing(open_index(index)) as engine, engine.view() as view:
                    found = found._replace(is_read=crawl_report.has_files(view, crawl))
            yield from crawl_report.written(found, style)

        print_and_save(written(format), html, partial(written, "html"))
    return 0


def _without_lookups(index: Path, crawl: str) -> UnknownCrawl:
    """Return the error for a crawl that made no lookups: its files may be indexed all the same."""
    asking, others = _crawl_names(index)
    names = [*asking, *others]
    if not names:
        return UnknownCrawl(f"no crawl has looked up or reported in {index} while it ran")
    removed = removed_crawls(index)
    if crawl not in names:
        return UnknownCrawl(suggestion(crawl, names, removed))
    if crawl in removed:
        return UnknownCrawl(
            f"crawl {crawl[:200]!r} is known from its WARCs only, and their captures were purged: "
            "nothing is left to report"
        )
    return UnknownCrawl(
        f"crawl {crawl[:200]!r} is known from its WARCs only: it made no lookups that could be "
        f"reported; bin/list {shlex.quote(str(index))} --of-crawl {shlex.quote(crawl)} lists its "
        f"originals, bin/impact {shlex.quote(str(index))} --crawl {shlex.quote(crawl)} counts its "
        "revisits and their bytes, --compare NAME compares it with another crawl"
    )


def _against(index: Path, sources: list[str], **options: Any) -> int:
    """Print what a crawl would have saved; returns the exit status."""
    filters = [
        ReportFilter(mime, size, parse_age(age, "--max-age") if age else None)
        for mime, size, age in product(options["mime"], options["min_size"], options["max_age"])
    ]
    report = DuplicationReport(
        filters,
        by=options["by"] or "host",
        status=statuses(options["status"]),
        policy=read_policy(options["policy"]) if options["policy"] else NO_POLICY,
    )
    named = options["namespace"].encode("utf-8", "surrogateescape")
    namespaces = parse_namespaces(named) if named else ()
    with open_snapshot(index) as state:
        found = _found(sources, options)
        _read(report, found, options, state, namespaces)
        head = report.head(state.settings, state.view.counts().captures)
    warn(report.problems)
    for warning in report.warnings():
        say(f"warning: {warning}")
    _write(head, partial(report.groups, options["limit"]), group_table(head),
           options, (against_lines, partial(against_page, _title(sources))))  # fmt: skip
    return Damaged.exit_status if report.problems else 0


def _validators(index: Path, sources: list[str], **options: Any) -> int:
    """Print how well validators predict changes since what an index knows; returns the status."""
    report = ValidatorReport(options["by"] or "host", statuses(options["status"]))
    if options["policy"] or options["namespace"] or any(options["max_age"]):
        raise click.UsageError("--max-age, --policy and --namespace have no effect here")
    with open_snapshot(index) as state:
        require_visits(state.settings, Query(NO_DIGEST, b"-", Strategy.EXACT_URL))
        found = _found(sources, options)
        report.problems += found.problems
        reading = SourceOptions(columns=options["columns"], etag=True)
        with show_progress() as progress:
            for _, items in _opened(found, options["iterator"], reading, report, progress):
                for item in items:
                    capture = report.capture_of(item)
                    report.add(item, state.visits(capture.url) if capture is not None else ())
    warn(report.problems)
    _write(report.head(), partial(report.groups, options["limit"]), validator_table(report.by),
           options, (validator_lines, partial(validator_page, _title(sources))))  # fmt: skip
    return Damaged.exit_status if report.problems else 0


_Rendering = Callable[[dict[str, Any], Iterator[Row]], Iterator[str]]


def _found(sources: Sequence[str], options: dict[str, Any]) -> Expanded:
    """Return the files of a crawl; raises `BadSource`."""
    if indexes := [name for name in sources if is_index(name)]:
        raise BadSource(f"{indexes[0]} is an index; --against takes the files of a crawl")
    found = expand(sources, options["iterator"], columns=options["columns"])
    found.require_any(sources, "read")
    return found


def _write(
    head: dict[str, Any], groups: Callable[[], Iterator[Row]], table: Table,
    options: dict[str, Any], as_text_and_page: tuple[_Rendering, _Rendering],
) -> None:  # fmt: skip
    """Print a report in its format, and write its page if one is wanted."""
    lines, page = as_text_and_page
    pieces: dict[str, Callable[[], Iterator[str]]] = {
        "text": lambda: (line + "\n" for line in lines(head, groups())),
        "json": lambda: as_json(head, table, groups()),
        "csv": lambda: table.csv_lines(groups()),
        "html": lambda: page(head, groups()),
    }
    print_and_save(pieces[options["format"]](), options["html"], pieces["html"])


def _title(sources: list[str]) -> str:
    """Return the title of a page, with the names of the first sources."""
    return f"Report on {names_text(sources, 2)}"


def _read(
    report: DuplicationReport, found: Expanded, options: dict[str, Any], state: IndexSnapshot,
    namespaces: tuple[str, ...],
) -> None:  # fmt: skip
    """Look up all captures of the sources."""
    kind = options["iterator"]
    finder = state.snapshot.view_for(state.view, state.settings.keys(), "", namespaces)
    reading = SourceOptions(
        revisit_annotation=annotation(options["revisit_annotation"]), columns=options["columns"]
    )
    urlkey(b"http://[::1]:1/")  # keeps its imports for unusual URLs out of the lookup times
    report.problems += found.problems
    with show_progress() as progress:
        for source, items in _opened(found, kind, reading, report, progress):
            report.kinds.add("records" if source.reads_records else "rows")
            report.add(prefetched(items, state.view), finder, state.settings)


def _opened(
    found: Expanded, kind: str | None, reading: SourceOptions,
    report: DuplicationReport | ValidatorReport, on_progress: OnProgress,
) -> Iterator[tuple[Source, Iterator[Item]]]:  # fmt: skip
    """Yield each source of a crawl with its items, and report the progress of reading all."""
    unsized = any(map(is_stream, found.paths))
    sizes = {path: facts.size for path, facts in found.remote.items()}
    of = 0 if unsized else sum(sizes.get(path) or os.path.getsize(path) for path in found.paths)
    before = 0
    for path in found.paths:
        with open_source(path, kind, reading) as source:
            yield source, _watched(source, on_progress, before, of, report)
            before += max(source.size, 0)


def _watched(
    source: Source, progress: OnProgress, before: int, of: int,
    report: DuplicationReport | ValidatorReport,
) -> Iterator[Item]:  # fmt: skip
    """Yield the items of a source, and report the progress now and then."""
    for seen, item in enumerate(source.items(), 1):
        if not seen % _PROGRESS_EVERY:
            progress(ProgressUpdate("reading", before + source.position, of, report.records))
        yield item
