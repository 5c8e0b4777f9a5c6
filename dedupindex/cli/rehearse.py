"""``bin/rehearse``: try bin/dedup on copies, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from dedupindex.cli.common import UNSOUND, Command, print_item, say, status_7, warn
from dedupindex.cli.options import COUNT, PATH, option, shared_options
from dedupindex.cli.progress_bar import show_progress
from dedupindex.cli.sent_requests import sent_requests
from dedupindex.object_store import counted_requests
from dedupindex.post_crawl.rehearsal import RehearseOptions, Step, rehearse
from dedupindex.runtime.tables import amount, printable, singular

EXAMPLES = """
bin/rehearse ~/warcs --work /data/rehearsal               # seven steps; ~/warcs is not changed
bin/rehearse ~/warcs --work /data/rehearsal --sample 1000 --seed 7
"""

_UNITS = {  # of numbers whose names do not say what they count
    **dict.fromkeys(("copied", "converted", "undone", "committed"), "files"),
    "not_read": "files",
    "damaged": "places in which no record can be read",
    "names_taken": "files, copied since the sources have the name of their WARC",
    **dict.fromkeys(("gone", "new"), "records"),
    **dict.fromkeys(("sample", "replayed"), "revisits"),
}


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@option(
    "--work", required=True, type=PATH, metavar="DIR",
    help="Directory for the copies; needs four times the space of SOURCEs.",
)  # fmt: skip
@option("--sample", type=COUNT, default=100, help="Revisits to rebuild.")
@option("--seed", default=0, help="Chooses the sample.")
@shared_options("--zstd-dictionary")
@shared_options("--memory", "--jobs", "--verbose")
@shared_options("--json", help="JSON on stdout, a line for each step.")
def command(sources: tuple[str, ...], verbose: bool, **options: Any) -> int:
    """Run bin/dedup on copies of SOURCEs, and check every step.

    The steps: test, manifest, convert, validate, dedup, compare, commit. The exit status is 8 if
    one of them failed, else 7 if bin/dedup would leave files alone or keep their damage.
    """
    sound, left = True, False
    with show_progress(verbose=verbose) as progress:
        steps = rehearse(list(sources), RehearseOptions(**options), say, progress)
        while True:
            with counted_requests() as requests:
                step = next(steps, None)
                sent = sent_requests(requests)
            if step is None:
                break
            sound, left = sound and step.sound, left or bool(step.left)
            warn(step.left)
            print_item({**step.as_json(), **sent.as_json()}, [*_text_of(step), *sent.lines()])
    if not sound:
        return UNSOUND
    if left:
        return status_7("bin/dedup would leave the files named above alone, or keep their damage")
    return 0


def _text_of(step: Step) -> Iterator[str]:
    verdict = "passed" if step.sound else singular(f"failed: {step.failed:,} things")
    if None in step.numbers.values():
        verdict += "; replay was not compared: no pywb on PATH"
    yield f"{step.name}: {verdict} ({step.seconds:.1f} s)"
    for name, value in step.numbers.items():
        text = "no pywb on PATH" if value is None else str(value)
        if isinstance(value, dict):
            text = ", ".join(f"{what} {count:,}" for what, count in value.items()) or "none"
        elif isinstance(value, int):
            text = amount(value) if name.startswith("bytes") else f"{value:,}"
            text = singular(f"{text} {_UNITS[name]}") if name in _UNITS else text
        yield f"  {name.replace('_', ' '):<14} {text}"
    for problem in step.problems:
        yield f"  ! {printable(problem)}"
