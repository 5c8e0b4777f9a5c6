"""Progress of long steps: of what is iterated over, and of what another thread can measure."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from dedupindex.counts import OnProgress, ProgressUpdate

Say = Callable[[str], None]
_T = TypeVar("_T")
_STEP = 512  # items between two reports
_EVERY = 0.5  # seconds between two measurements


def watched(items: Iterable[_T], phase: str, total: int, on_progress: OnProgress) -> Iterator[_T]:
    """Yield items, and report now and then how many of `total` (0: not known) they were."""
    for count, item in enumerate(items):
        if not count % _STEP:
            part = count / total if total else None
            on_progress(ProgressUpdate(phase, records=count, part=part))
        yield item


def finished(
    results: Iterable[_T], phase: str, total: int, on_progress: OnProgress
) -> Iterator[_T]:
    """Yield the results of `total` tasks that take long, and report each."""
    on_progress(ProgressUpdate(phase, part=0.0))
    for count, result in enumerate(results, 1):
        on_progress(ProgressUpdate(phase, part=count / max(total, 1)))
        yield result


@contextmanager
def measured(
    measure: Callable[[], ProgressUpdate | None], on_progress: OnProgress
) -> Iterator[None]:
    """Report what `measure` returns, unless it is None, from a thread while the block runs.

    Worker processes start slowly beside a thread: none should be started in the block.
    """
    ended = threading.Event()

    def report() -> None:
        while not ended.wait(_EVERY):
            if (update := measure()) is not None:
                on_progress(update)

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
