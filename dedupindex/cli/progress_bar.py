"""Progress on stderr: a bar on a terminal, otherwise a line from time to time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dedupindex.cli.common import say
from dedupindex.counts import ProgressUpdate
from dedupindex.runtime.tables import amount

PLAIN_EVERY = 10.0  # seconds
_BAR_EVERY = 0.1
_MINIMUM_SHARE = 0.02  # of a phase; before that the remaining time is not estimated


@contextmanager
def show_progress(*, verbose: bool) -> Iterator[Callable[[ProgressUpdate], None]]:
    """Show progress while the block runs: a bar, or lines, with `verbose` one each second."""
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
        auto_refresh=False,  # by a thread, beside which worker processes start slowly
    ) as progress:
        task = progress.add_task("reading", total=None, rate="")
        started = shown = time.monotonic()
        phase = ""

        def update(seen: ProgressUpdate) -> None:
            nonlocal started, shown, phase, task
            if seen.phase != phase:  # each phase has its own rate
                started, phase = time.monotonic(), seen.phase
                progress.remove_task(task)
                task = progress.add_task(phase, total=None, rate="")
            rate = seen.records / max(time.monotonic() - started, 0.001)
            progress.update(
                task,
                completed=seen.share or 0,
                total=1 if (seen.share or 0) > _MINIMUM_SHARE else None,
                rate=f"{rate:,.0f} records/s" if seen.records else "",
            )
            if time.monotonic() - shown >= _BAR_EVERY:
                progress.refresh()
                shown = time.monotonic()

        yield update


def plain(every: float) -> Callable[[ProgressUpdate], None]:
    """Return a callback that prints a line at most every `every` seconds."""
    last = started = time.monotonic()
    phase = ""

    def update(seen: ProgressUpdate) -> None:
        nonlocal last, started, phase
        now = time.monotonic()
        if seen.phase != phase:
            phase, started = seen.phase, now
        if now - last >= every:
            last = now
            done = f" of {amount(seen.of)}" if seen.of else ""
            rate = seen.records / max(now - started, 0.001)
            parts = (
                f"{seen.records:,} records" if seen.records else "",
                f"{amount(seen.bytes)}{done}" if seen.bytes or seen.of else "",
                f"{rate:,.0f}/s" if seen.records else "",
                _remaining(seen.share, now - started),
            )
            say(f"{seen.phase}: {', '.join(filter(None, parts))}")

    return update


def _remaining(share: float | None, seconds: float) -> str:
    """Return the share done and the estimated seconds left, for a line."""
    if share is None:
        return ""
    left = seconds / share * (1 - share) if share > _MINIMUM_SHARE else 0
    return f"{share:.0%}" + (f", about {left:,.0f} s left" if left >= 1 else "")
