"""``bin/serve``: answer lookups over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dedupindex.cli.common import Command, print_json, printable, say

EXAMPLES = """
bin/serve my-index
bin/serve my-index --port 0 --json             a free port, said on stdout
curl 'http://127.0.0.1:8484/lookup?digest=sha1:FKXGYNOJJ7H3IFO35FPUBC445EPOQRXN'
"""

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("index", type=click.Path(path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8484,
    show_default=True,
    help="Port to listen on; 0 takes a free one.",
)
@click.option(
    "--workers",
    type=click.IntRange(0, 64),
    default=0,
    help="Processes that answer; 0 is one for each core, at most 4.",
)
@click.option("--access-log", is_flag=True, help="Log every request on stderr.")
@click.option(
    "--max-body",
    type=click.IntRange(1),
    default=16 << 20,
    show_default=True,
    help="Largest JSON batch, in bytes; JSON lines may be of any length.",
)
@click.option(
    "--max-batch",
    type=click.IntRange(1),
    default=100_000,
    show_default=True,
    help="Most lookups in a JSON batch.",
)
@click.option(
    "--max-line",
    type=click.IntRange(1),
    default=1 << 20,
    show_default=True,
    help="Longest of the JSON lines, in bytes.",
)
@click.option(
    "--max-connections",
    type=click.IntRange(1),
    default=4096,
    show_default=True,
    help="Connections of one worker, idle ones included; more wait.",
)
@click.option(
    "--stop-timeout",
    type=click.IntRange(1),
    default=30,
    show_default=True,
    help="Seconds to finish requests in when stopping.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout when ready.")
def command(index: Path, as_json: bool, **chosen: Any) -> int:
    """Answer lookups from INDEX over HTTP until told to stop (SIGTERM, Ctrl-C)."""
    from server.config import Config, default_workers
    from server.run import Started, serve

    def ready(started: Started) -> None:
        if as_json:
            print_json(
                {
                    "url": started.url,
                    "index": printable(str(index)),
                    "captures": started.counts.captures,
                    "workers": started.workers,
                }
            )
        say(
            f"serving {index} ({started.counts.captures:,} captures) at {started.url}, "
            f"{started.workers} workers"
        )

    if chosen["host"] not in _LOOPBACK:
        say(f"{chosen['host']} is not loopback: whoever reaches this address may ask the index")
    chosen["workers"] = chosen["workers"] or default_workers()
    serve(Config(index, **chosen), ready)
    say("stopped")
    return 0
