"""``bin/purge``: take captures out of an index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dedupindex.cli.common import Command
from dedupindex.cli.purging import index_argument, lister, meant, target_of, tell
from dedupindex.post_crawl.purge.remove import purge

EXAMPLES = """
bin/impact my-index --crawl weekly-7               first: what depends on it?
bin/purge my-index --crawl weekly-7
bin/purge my-index --url http://example.com/secret --force
"""


@click.command(cls=Command, examples=EXAMPLES)
@index_argument
@meant
@click.option("--force", is_flag=True, help="Even if revisits name what goes.")
@click.option("--list", "listed", is_flag=True, help="First a line of JSON for each of them.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(index: Path, force: bool, listed: bool, as_json: bool, **options: Any) -> int:
    """Take captures out of INDEX; the next copies that it knows become the originals.

    Refused if revisits name what would go, unless forced. What was purged stays away.
    """
    target = target_of(options)
    found = purge(index, target, force=force, seen=lister(listed))
    tell(target, found, purged=True, as_json=as_json)
    return 0
