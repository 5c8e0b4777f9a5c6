"""``bin/heritrix-profile``: make a Heritrix job that asks dedupindex."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dedupindex.cli.common import Command, print_json
from dedupindex.cli.heritrix import HeritrixJob, make_job
from dedupindex.lookup.decide import Strategy
from dedupindex.runtime.tables import printable

EXAMPLES = """
bin/heritrix-profile ~/heritrix-3.13.0 ~/jobs/weekly \\
    --seed http://example.org/ --contact http://archive.example/crawler.html
"""


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("heritrix", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("job", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--server",
    default="http://127.0.0.1:8484",
    show_default=True,
    help="Where bin/serve answers.",
)
@click.option("--token", default="", metavar="TOKEN", help="What bin/token printed, if it did.")
@click.option("--seed", "seeds", multiple=True, required=True, help="Where to begin; repeatable.")
@click.option(
    "--contact", required=True, metavar="URL", help="Page that tells webmasters who you are."
)
@click.option(
    "--strategy",
    type=click.Choice([one.value for one in Strategy]),
    default=Strategy.DIGEST_ANY.value,
    show_default=True,
    help="What is a duplicate.",
)
@click.option("--everything", is_flag=True, help="Look text up, too: for an index with -w -m '.*'.")
@click.option("--http2", is_flag=True, help="Fetch with FetchHTTP2 in place of FetchHTTP.")
@click.option("--no-delay", is_flag=True, help="Fetch without pauses: only from your own server.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(heritrix: Path, job: Path, no_delay: bool, as_json: bool, **chosen: Any) -> int:
    """Make the directory JOB of a crawl by HERITRIX, an unpacked Heritrix 3, that asks dedupindex.

    Its profile is the one that Heritrix brings along, with the edits of docs/crawlers.md.
    """
    name = job.resolve().name
    make_job(heritrix, job, HeritrixJob(name=name, delay=not no_delay, **chosen))
    if as_json:
        print_json({"job": printable(str(job)), "name": name, "server": chosen["server"]})
    else:
        click.echo(f"{printable(str(job))} is ready; build and launch the job {name} in Heritrix")
    return 0
