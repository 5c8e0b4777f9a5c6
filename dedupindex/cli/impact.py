"""``bin/impact``: what depends on captures, before they are taken away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dedupindex.cli.common import Command
from dedupindex.cli.purging import index_argument, lister, meant, target_of, tell
from dedupindex.post_crawl.purge.remove import survey

EXAMPLES = """
bin/impact my-index --container crawl-1.warc.gz    what names its records, in which files
bin/impact my-index --crawl weekly-7 --json
bin/impact my-index --url http://example.com/secret/ --prefix --list
"""


@click.command(cls=Command, examples=EXAMPLES)
@index_argument
@meant
@click.option("--list", "listed", is_flag=True, help="First a line of JSON for each of them.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(index: Path, listed: bool, as_json: bool, **options: Any) -> int:
    """Say what would become of INDEX without some captures, and which revisits name them.

    Changes nothing. Reads the whole index once; for single captures mostly only their digests.
    """
    target = target_of(options)
    found = survey(index, target, lister(listed))
    tell(target, found, purged=False, as_json=as_json)
    return 0
