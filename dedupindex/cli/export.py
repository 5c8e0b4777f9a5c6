"""``bin/export``: an index in a form that a crawler reads by itself."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, BinaryIO

import click

from dedupindex.cli import subset
from dedupindex.cli.common import Command, print_json, say
from dedupindex.cli.index_location import any_index
from dedupindex.export import browsertrix_redis as browsertrix_keys
from dedupindex.export import wget_cdx
from dedupindex.export.browsertrix_redis import writing
from dedupindex.index import open_index
from dedupindex.runtime.files import atomic_file
from dedupindex.runtime.tables import printable

EXAMPLES = """
bin/export --wget my-index --seeds seeds.txt --out dedup.cdx
wget --warc-file=harvest --warc-cdx --warc-dedup=dedup.cdx --input-file=seeds.txt
bin/export --redis redis://127.0.0.1:6379/0 my-index
bin/export --redis redis://127.0.0.1:6379/0 --cancel my-index
bin/export --self-contained my-warcs --url http://example.org/docs/ -o docs.warc.gz
bin/export --self-contained new-crawl --originals my-warcs --from 2026-11 -o november
"""


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("sources", nargs=-1, metavar="[INDEX | SOURCE...]")
@click.option(
    "--wget", is_flag=True, allow_from_autoenv=False, help="The CDX that wget --warc-dedup takes."
)
@click.option(
    "--redis",
    metavar="URL",
    help="The keys of Browsertrix, into a Redis: redis://[USER:PASSWORD@]HOST:PORT/DATABASE.",
)
@click.option(
    "--self-contained", is_flag=True, allow_from_autoenv=False,
    help="Records of WARC and ARC files, with the originals of their revisits.",
)  # fmt: skip
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), allow_from_autoenv=False,
    help="Write here, whole or not at all. --wget: a file; default: standard output. "
    "--self-contained: NAME.warc.gz, or a directory for files of the names that they have.",
)  # fmt: skip
@subset.options
@click.option(
    "--seeds",
    "--seed",
    type=click.File("rb"),
    help="URLs, one a line: where a digest has several URLs, one of these is written.",
)
@click.option(
    "--hosts",
    type=click.File("rb"),
    help="Hosts, one a line: next after seeds, a URL of one of these or below it is written.",
)
@click.option(
    "--bridge", is_flag=True, help="Also originals whose own record spells the digest otherwise."
)
@click.option(
    "--crawl", "crawls", multiple=True, metavar="NAME", help="--redis: only these crawls."
)
@click.option(
    "--as",
    "other",
    metavar="NAME",
    help="--redis: the crawl of captures of no crawl. Default: the name of INDEX.",
)
@click.option(
    "--algorithm",
    type=click.Choice(list(browsertrix_keys.ENCODINGS)),
    default="sha256",
    show_default=True,
    help="--redis: of the digests that the crawler makes.",
)
@click.option(
    "--commit", metavar="CRAWL", allow_from_autoenv=False, help="--redis: commit this crawl."
)
@click.option(
    "--cancel", metavar="CRAWL", allow_from_autoenv=False, help="--redis: take this crawl away."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(
    sources: tuple[str, ...], wget: bool, redis: str | None, self_contained: bool, **options: Any
) -> int:
    """Write the originals in INDEX for a crawler: --wget or --redis.

    Or, with --self-contained, write records of SOURCEs as the bytes they are, and with them the
    originals that their revisits need. The exit status is 8 if a revisit has none.
    """
    if self_contained:
        if wget or redis:
            raise click.UsageError("--self-contained goes with neither --wget nor --redis")
        return subset.write(sources, options)
    subset.check_none(options)
    if len(sources) > 1:
        raise click.UsageError("name one INDEX")
    index = any_index(sources[0]) if sources else None
    ended = [name for name in ("commit", "cancel") if options[name]]
    if not wget and not redis:
        raise click.UsageError("say what for: --wget, --redis or --self-contained")
    if ended and (wget or index or len(ended) > 1):
        raise click.UsageError(f"--{ended[0]} takes --redis and a crawl, and no INDEX")
    if ended:
        return _end(redis or "", ended[0], options[ended[0]], as_json=options["as_json"])
    if index is None:
        raise click.UsageError("name an INDEX")
    if wget:
        return _wget(index, options)
    if options["out"]:
        raise click.UsageError("--out is for --wget")
    return _redis(index, redis or "", options)


def _wget(index: Path, options: dict[str, Any]) -> int:
    out: Path | None = options["out"]
    if out is not None and out.is_dir():
        raise click.UsageError(f"{out} is a directory")
    seeds: BinaryIO | None = options["seeds"]
    hosts: BinaryIO | None = options["hosts"]
    if options["as_json"] and out is None:
        raise click.UsageError("--json needs --out: standard output carries the CDX")
    wanted = wget_cdx.CrawlScope.of(seeds or (), hosts or ())
    exported = wget_cdx.WgetExport()
    with ExitStack() as stack:
        engine = stack.enter_context(closing(open_index(index)))
        view = stack.enter_context(engine.view())
        stream = stack.enter_context(atomic_file(out)) if out else sys.stdout.buffer
        bridge = options["bridge"]
        stream.writelines(wget_cdx.lines(view.captures(), wanted, exported, bridge=bridge))
    if out is None:
        sys.stdout.buffer.flush()
    if options["as_json"]:
        print_json({**vars(exported), "left_out": dict(exported.left_out)})
        return 0
    say(
        f"{exported.written:,} originals written, {exported.for_seeds:,} of them with the URL of "
        f"a seed, {exported.for_hosts:,} of a wanted host"
    )
    if exported.other_urls:
        say(f"  {exported.other_urls:,} captures at other URLs: wget takes one URL for a digest")
    _tell_left_out(exported.left_out)
    return 0


def _redis(index: Path, address: str, options: dict[str, Any]) -> int:
    home = index.resolve()
    choice = browsertrix_keys.ExportChoice(
        options["other"] or home.name,
        frozenset(options["crawls"]),
        options["algorithm"],
        options["bridge"],
    )
    exported = browsertrix_keys.BrowsertrixExport()
    with ExitStack() as stack:
        engine = stack.enter_context(closing(open_index(index)))
        view = stack.enter_context(engine.view())
        database = stack.enter_context(writing(address))
        files = browsertrix_keys.ContainerFiles(view.container)
        found = browsertrix_keys.originals(view.captures(), files, choice, exported)
        database.export(found, os.fsencode(home), choice.crawls)
    if options["as_json"]:
        print_json({**vars(exported), "left_out": dict(exported.left_out)})
        return 0
    say(f"{exported.written:,} originals written and committed")
    for crawl, count in sorted(exported.crawls.items()):
        say(f"  crawl {crawl}: {count:,}")
    if exported.bridged:
        say(
            f"  {exported.bridged:,} are bridged: a revisit of one states another digest than its "
            "original, and replay that seeks digests (pywb) does not find it"
        )
    _tell_left_out(exported.left_out)
    if not exported.written and exported.left_out["spelled-otherwise"]:
        say(f"their records state other digests than {choice.algorithm}; --bridge takes them too")
    elif not exported.written:
        say(
            f"has the index digests in {choice.algorithm}? bin/index --also-digest "
            f"{choice.algorithm} makes them, of WARCs"
        )
    return 0


def _end(address: str, action: str, crawl: str, *, as_json: bool) -> int:
    """Commit or cancel a crawl in a Redis."""
    with writing(address) as database:
        getattr(database, action)(crawl)
    state = "committed" if action == "commit" else "cancelled"
    if as_json:
        print_json({"crawl": crawl, "state": state})
    else:
        say(f"crawl {printable(crawl)} is {state}")
    return 0


def _tell_left_out(left_out: dict[str, int]) -> None:
    for reason, count in sorted(left_out.items()):
        say(f"  left out: {reason:<18}{count:>12,}")
