"""``bin/export``: an index in a form that a crawler reads by itself."""

from __future__ import annotations

import sys
from contextlib import ExitStack, closing
from pathlib import Path
from typing import BinaryIO

import click

from dedupindex.cli.common import Command, print_json, say
from dedupindex.export import wget as wget_cdx
from dedupindex.files import whole
from dedupindex.index import open_index

EXAMPLES = """
bin/export --wget my-index --seeds seeds.txt --out dedup.cdx
wget --warc-file=harvest --warc-cdx --warc-dedup=dedup.cdx --input-file=seeds.txt
"""


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("index", type=click.Path(path_type=Path))
@click.option(
    "--wget", is_flag=True, allow_from_autoenv=False, help="The CDX that wget --warc-dedup takes."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    allow_from_autoenv=False,
    help="Write to this file, whole or not at all. Default: standard output.",
)
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
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout; needs --out.")
def command(
    index: Path,
    wget: bool,
    out: Path | None,
    seeds: BinaryIO | None,
    hosts: BinaryIO | None,
    bridge: bool,
    as_json: bool,
) -> int:
    """Write the originals in INDEX for a crawler: --wget."""
    if not wget:
        raise click.UsageError("say what for: --wget")
    if as_json and out is None:
        raise click.UsageError("--json needs --out: standard output carries the CDX")
    wanted = wget_cdx.Wanted.of(seeds or (), hosts or ())
    exported = wget_cdx.Exported()
    with ExitStack() as stack:
        engine = stack.enter_context(closing(open_index(index)))
        view = stack.enter_context(engine.view())
        stream = stack.enter_context(whole(out)) if out else sys.stdout.buffer
        stream.writelines(wget_cdx.lines(view.captures(), wanted, exported, bridge=bridge))
    if out is None:
        sys.stdout.buffer.flush()
    if as_json:
        print_json({**vars(exported), "left_out": dict(exported.left_out)})
    else:
        _tell(exported)
    return 0


def _tell(exported: wget_cdx.Exported) -> None:
    say(
        f"{exported.written:,} originals written, {exported.for_seeds:,} of them with the URL of "
        f"a seed, {exported.for_hosts:,} of a wanted host"
    )
    if exported.other_urls:
        say(f"  {exported.other_urls:,} captures at other URLs: wget takes one URL for a digest")
    for reason, count in sorted(exported.left_out.items()):
        say(f"  left out: {reason:<18}{count:>12,}")
