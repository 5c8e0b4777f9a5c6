"""How far a build is: a bar with rate on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dedupindex.cli.common import say
from dedupindex.counts import ProgressUpdate
from dedupindex.runtime.tables import amount

PLAIN_EVERY = 10.0  # seconds
_TOLD = 0.02  # of a phase, before which nobody guesses what the rest will take


@contextmanager
def show_progress(*, verbose: bool) -> Iterator[Callable[[ProgressUpdate], None]]:
    """Shows progress on stderr while the block runs; `verbose` adds plain lines every second."""
    if sys.stderr.isatty():
        with _bar() as update:
            yield update
    else:
        yield plain(1.0 if verbose else PLAIN_EVERY)


@contextmanager
def _bar() -> Iterator[Callable[[ProgressUpdate], None]]:
    from rich.console import Console  # slow, and for terminals only
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
        begun, phase = time.monotonic(), ""

        def update(seen: ProgressUpdate) -> None:
            nonlocal begun, phase, task
            if seen.phase != phase:  # what is left is guessed of the speed of this one
                begun, phase = time.monotonic(), seen.phase
                progress.remove_task(task)
                task = progress.add_task(phase, total=None, rate="")
            rate = seen.records / max(time.monotonic() - begun, 0.001)
            progress.update(
                task,
                completed=seen.share or 0,
                total=1 if (seen.share or 0) > _TOLD else None,
                rate=f"{rate:,.0f} records/s" if seen.records else "",
            )

        yield update


def plain(every: float) -> Callable[[ProgressUpdate], None]:
    """Says a line on stderr now and then. A bar would take stdout too, where answers go."""
    last = begun = time.monotonic()
    phase = ""

    def update(seen: ProgressUpdate) -> None:
        nonlocal last, begun, phase
        now = time.monotonic()
        if seen.phase != phase:
            phase, begun = seen.phase, now
        if now - last >= every:
            last = now
            done = f" of {amount(seen.of)}" if seen.of else ""
            rate = seen.records / max(now - begun, 0.001)
            parts = (
                f"{seen.records:,} records" if seen.records else "",
                f"{amount(seen.bytes)}{done}" if seen.bytes or seen.of else "",
                f"{rate:,.0f}/s" if seen.records else "",
                _left(seen.share, now - begun),
            )
            say(f"{seen.phase}: {', '.join(filter(None, parts))}")

    return update


def _left(share: float | None, seconds: float) -> str:
    """How far a phase is that has taken so long, and what that lets expect."""
    if share is None:
        return ""
    left = seconds / share * (1 - share) if share > _TOLD else 0
    return f"{share:.0%}" + (f", about {left:,.0f} s left" if left >= 1 else "")
