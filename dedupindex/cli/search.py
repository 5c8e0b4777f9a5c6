"""``bin/search``: search a Whoosh index."""

from __future__ import annotations

from pathlib import Path

import click

from dedupindex.cli.common import NOTHING_FOUND, Command, print_item, say
from dedupindex.cli.index_location import any_index
from dedupindex.cli.list import line_of
from dedupindex.cli.options import COUNT, option, shared_options
from dedupindex.cli.progress_bar import show_progress
from dedupindex.index.engines.whoosh.whoosh_search import LIMIT, search
from dedupindex.lookup.render_json import original_as_json

EXAMPLES = """
bin/search my-index annual report host:example.org
bin/search my-index 'mime:image/* date:[2026-10-01 TO 2026-11]'
bin/search my-index --limit 0 --json digest:sha1:FKXGYNOJJ7H3IFO35FPUBC445EPOQRXN
bin/search my-index 'http://www.example.org/docs/*'
"""


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("index", type=any_index)
@click.argument("query", nargs=-1, required=True)
@option("--limit", type=COUNT, default=LIMIT, help="Captures to show, earliest first; 0 for all.")
@shared_options("--json", help="One JSON object a capture on stdout.")
def command(index: Path, query: tuple[str, ...], limit: int) -> int:
    """Search INDEX, built with --engine whoosh, for captures that match QUERY.

    Words are searched for in URLs. Fields: host, url, mime, status, date, size, digest, container;
    AND, OR, NOT, brackets, [a TO b] and * as in docs/search.md. Several arguments are one query.
    """
    with show_progress() as progress:
        found = search(index, " ".join(query), limit, progress)
    for capture in found.captures:
        print_item(original_as_json(capture), [line_of(capture)])
    shown = len(found.captures)
    more = f", the earliest {shown:,} are shown" if shown < found.total else ""
    matched = "1 capture matches" if found.total == 1 else f"{found.total:,} captures match"
    say(f"{matched}{more}")
    return 0 if found.total else NOTHING_FOUND
