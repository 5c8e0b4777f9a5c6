"""`server.run`: the main loop of the server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

from server.run import MainLoop
from tests.support.paths import ROOT

# The handler interrupts every line of `wait`, as a signal may.
EVERYWHERE = """
import sys
from server.run import MainLoop

loop = MainLoop(lambda: None)
inside = False

def interrupt(frame, event, argument):
    global inside
    if not inside:
        inside = True
        loop.set()
        inside = False
    return interrupt

for _ in range(50):
    loop.clear()
    sys.settrace(interrupt)
    loop.wait()
    sys.settrace(None)
print("woken")
"""


def test_a_signal_may_come_at_any_line_of_waiting() -> None:
    """`threading.Event` would wait for its own lock for ever."""
    done = subprocess.run(
        [sys.executable, "-c", EVERYWHERE], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "woken\n", done.stderr


def test_workers_are_checked_while_nothing_happens() -> None:
    checked = threading.Event()
    loop = MainLoop(checked.set)
    handler = signal.signal(signal.SIGUSR1, lambda *_: loop.set())
    try:
        waker = threading.Thread(
            target=lambda: checked.wait(30) and os.kill(os.getpid(), signal.SIGUSR1)
        )
        waker.start()
        assert loop.wait()
        waker.join()
    finally:
        signal.signal(signal.SIGUSR1, handler)
    assert loop.is_set() and checked.is_set()
    loop.clear()
    assert not loop.is_set()
