"""Progress on stderr: a bar on a terminal, otherwise a line from time to time."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from dedupindex.capture import Capture
from dedupindex.cli.common import bars, is_file, say
from dedupindex.counts import OnProgress, ProgressUpdate
from dedupindex.digest import Digest
from dedupindex.index.engine import View
from dedupindex.runtime.progress import watched
from dedupindex.runtime.tables import amount, duration, rate

PLAIN_EVERY = 10.0  # seconds
_BAR_AFTER = 1.0  # seconds; most commands have ended then
_BAR_EVERY = 0.1
_BEAT = 0.5
_MINIMUM_SHARE, _MINIMUM_TIME = 0.05, 5.0  # of a phase, and seconds: before both have passed
# the remaining time is not estimated, as the first files tell little
_LENGTH, _SHORTEST = 24, 8  # columns of a bar; a shorter one is left out
_ERASE = "\r\x1b[K"


@contextmanager
def show_progress(*, verbose: bool = False, prints: bool = False) -> Iterator[OnProgress]:
    """Show progress while the block runs: a bar, or lines, with `verbose` one each second.

    With `prints` the block prints results on stdout: there is a bar only if they go to a file, as
    it would be mixed with them on a terminal or in a pager.
    """
    if not (sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"):
        yield plain(1.0 if verbose else PLAIN_EVERY)
    elif prints and not is_file(sys.stdout):
        yield lambda seen: None  # the results show it
    else:
        with ProgressBar(sys.stderr.fileno()) as update:
            yield update


def captures_of(
    view: View, phase: str, on_progress: OnProgress
) -> Iterator[tuple[Digest, Capture]]:
    """Yield every capture of a view with its digest, and report progress."""
    return watched(view.captures(), phase, view.counts().captures, on_progress)


class ProgressBar:
    """A line that is drawn again and again, without colours, while the context is open.

    A timer's signal draws it, so that it moves while nothing is reported. Worker processes would
    start slowly beside a thread, such as that of a library. It writes to the terminal at once: a
    signal may come while another line is being printed.
    """

    def __init__(self, terminal: int) -> None:
        self._terminal, self._drawn, self._hidden = terminal, False, False
        self._seen = ProgressUpdate("working")
        self._started = self._seen_at = self._last = time.monotonic()
        self._last += _BAR_AFTER - _BAR_EVERY

    def __enter__(self) -> OnProgress:
        bars.append(self.hidden)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGALRM, lambda *_: self._draw())
            signal.siginterrupt(signal.SIGALRM, False)  # system calls of libraries go on
            signal.setitimer(signal.ITIMER_REAL, _BAR_AFTER, _BEAT)
        return self.update

    def __exit__(self, *_: object) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
        bars.remove(self.hidden)
        self._erase()

    def update(self, seen: ProgressUpdate) -> None:
        """Show `seen` from now on."""
        now = time.monotonic()
        if _begins(seen, self._seen):
            self._started = now
        self._seen, self._seen_at = seen, now
        if now - self._last >= _BAR_EVERY:
            self._draw()

    def _draw(self) -> None:
        if self._hidden:
            return
        self._last, self._drawn = time.monotonic(), True
        with suppress(OSError):  # the terminal is gone
            os.write(self._terminal, f"{_ERASE}{self._line()}".encode())

    def _line(self) -> str:
        columns = os.get_terminal_size(self._terminal).columns or 80
        spent, since = self._seen_at - self._started, self._last - self._seen_at
        return bar_line(self._seen, spent, since, columns - 1)  # in the last one it might wrap

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Erase the line, and draw none while the block runs."""
        self._hidden = True  # first: a signal may come at any time
        self._erase()
        try:
            yield
        finally:
            self._hidden = False

    def _erase(self) -> None:
        if self._drawn:
            self._drawn = False
            with suppress(OSError):
                os.write(self._terminal, _ERASE.encode())


def bar_line(seen: ProgressUpdate, spent: float, since: float, columns: int) -> str:
    """Return the line for a terminal so many columns wide.

    `spent` is the time of the phase in seconds when it was `seen`, `since` the time since then.
    """
    share, facts = seen.share, _facts(seen, spent)
    if share is None:
        begin = f"{seen.phase}:"
        return (begin + _fitting([duration(spent + since), *facts], columns - len(begin)))[:columns]
    begin = f"{seen.phase} {share:4.0%} "
    if left := _remaining(share, spent, since):
        facts.insert(0, f"{left} left")
    end = _fitting(facts, columns - len(begin) - _LENGTH)
    length = min(columns - len(begin) - len(end), _LENGTH)
    bar = ("█" * round(length * share)).ljust(length, "░") if length >= _SHORTEST else ""
    return (begin + bar + end)[:columns]


def _fitting(facts: list[str], columns: int) -> str:
    """Return the facts that so many columns have room for, and the first in any case."""
    text = ""
    for fact in facts:
        longer = f"{text}, {fact}" if text else f" {fact}"
        if not text or len(longer) <= columns:
            text = longer
    return text


def plain(every: float) -> OnProgress:
    """Return a callback that prints a line at most every `every` seconds."""
    last = started = time.monotonic()
    before: ProgressUpdate | None = None

    def update(seen: ProgressUpdate) -> None:
        nonlocal last, started, before
        now = time.monotonic()
        if before is None or _begins(seen, before):
            started = now
        before = seen
        if now - last >= every:
            last = now
            facts, share = _facts(seen, now - started), seen.share
            if share is not None:
                facts.append(f"{share:.0%}")
                if left := _remaining(share, now - started):
                    facts.append(f"about {left} left")
            say(": ".join(filter(None, (seen.phase, ", ".join(facts)))))

    return update


def _begins(seen: ProgressUpdate, before: ProgressUpdate) -> bool:
    """Return whether a phase begins, or another query of it: each has its own rate."""
    now, then = seen.share, before.share
    return seen.phase != before.phase or (now is not None and then is not None and now < then)


def _facts(seen: ProgressUpdate, seconds: float) -> list[str]:
    """Return what was done, and how fast."""
    size = amount(seen.bytes) if seen.bytes or seen.of else ""
    facts = (
        f"{size} of {amount(seen.of)}" if seen.of else size,
        f"{seen.records:,} records" if seen.records else "",
        rate(seen.records, seconds, " records"),
    )
    return [fact for fact in facts if fact]


def _remaining(share: float, spent: float, since: float = 0) -> str:
    """Return the estimated time left, "" if it cannot be estimated or is nothing."""
    if share < _MINIMUM_SHARE or spent + since < _MINIMUM_TIME:
        return ""
    left = spent / share * (1 - share) - since
    return duration(left) if left >= 1 else ""
