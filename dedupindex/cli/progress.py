"""How far a build is: a bar with rate on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dedupindex.cli.common import say
from dedupindex.tables import amount
from dedupindex.tally import Seen

PLAIN_EVERY = 10.0  # seconds


@contextmanager
def shown(*, verbose: bool) -> Iterator[Callable[[Seen], None]]:
    """Shows progress on stderr while the block runs; `verbose` adds plain lines every second."""
    if sys.stderr.isatty():
        with _bar() as update:
            yield update
    else:
        yield plain(1.0 if verbose else PLAIN_EVERY)


@contextmanager
def _bar() -> Iterator[Callable[[Seen], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} % {task.fields[rate]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as progress:
        task = progress.add_task("reading", total=None, rate="")
        start = time.monotonic()

        def update(seen: Seen) -> None:
            rate = f"{seen.records / max(time.monotonic() - start, 0.001):,.0f} records/s"
            progress.update(
                task,
                description=seen.phase,
                completed=seen.bytes,
                total=seen.of or None,
                rate=rate,
            )

        yield update


def plain(every: float) -> Callable[[Seen], None]:
    """Says a line on stderr now and then. A bar would take stdout too, where answers go."""
    start = last = time.monotonic()

    def update(seen: Seen) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= every:
            last = now
            done = f" of {amount(seen.of)}" if seen.of else ""
            counted = f"{seen.records:,} records, " if seen.records else ""
            rate = f", {seen.records / (now - start):,.0f}/s" if seen.records else ""
            say(f"{seen.phase}: {counted}{amount(seen.bytes)}{done}{rate}")

    return update
