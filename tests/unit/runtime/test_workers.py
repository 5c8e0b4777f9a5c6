"""Pools of processes: what is forked, and what is sent to a process that is not."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from operator import call
from pathlib import Path
from threading import Timer
from typing import Any

import duckdb
import pytest

from dedupindex.corpus import Corpus
from dedupindex.errors import BadInput
from dedupindex.post_crawl.manifest.make_manifest import make
from dedupindex.post_crawl.manifest.record_lines import ManifestOptions
from dedupindex.runtime import workers
from tests.unit.corpus.test_corpus import news

SCRIPT = """
import threading, time
from dedupindex.runtime.workers import side_by_side

def double(shared, task):
    return 2 * task

def run():
    print(sorted(side_by_side(double, None, [1, 2, 3], 2)))

threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
"""


ENDED_EARLY = """
import os, signal
from dedupindex.errors import DedupError
from dedupindex.runtime.workers import workers

os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))
signal.signal(signal.SIGTERM, signal.default_int_handler)  # as commands do
try:
    with workers(2) as pool:
        print(pool.submit(int).result())
except DedupError as error:
    print(error)
"""


@pytest.fixture
def thread() -> Iterator[None]:
    """A second thread of this process."""
    end = threading.Event()
    waiting = threading.Thread(target=end.wait)
    waiting.start()
    yield
    end.set()
    waiting.join()


def lost(task: int) -> Iterator[Any]:
    """What comes of a task that kills its process."""
    raise AssertionError(task)


def _forked(shared: object, task: int) -> bool:
    return "spawn_main" not in Path("/proc/self/cmdline").read_text()


def forked() -> bool:
    (same,) = set(workers.side_by_side(_forked, None, range(4), 2))
    return same


def test_a_process_of_one_thread_forks() -> None:
    assert workers.count_threads() == 1 and forked()
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()  # which returns a moment before the thread has ended
    assert forked()


def test_a_process_with_another_thread_forks_nothing(
    thread: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> int:
        raise AssertionError("forked")

    monkeypatch.setattr("os.fork", refuse)
    assert sorted(workers.side_by_side(divmod, 7, [2, 3], 2)) == [(2, 1), (3, 1)]
    assert list(workers.map_in_order(divmod, 7, [2, 3], 2, lost)) == [(3, 1), (2, 1)]
    assert list(workers.run_alone(divmod, 7, 2, lost)) == [(3, 1)]


def test_threads_that_python_does_not_know_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fork", lambda: pytest.fail("forked"))
    known = threading.active_count()
    with closing(duckdb.connect(config={"threads": 3})) as database:
        database.execute("SELECT 1")
        assert threading.active_count() == known and workers.count_threads() > 1
        assert sorted(workers.side_by_side(divmod, 7, [2, 3], 2)) == [(2, 1), (3, 1)]


def test_objects_that_the_caller_has_frozen_stay_frozen() -> None:
    """Those of a process that has frozen none are thawed again."""

    def frozen_while_reading() -> list[int]:
        read = workers.read_all(lambda task, count: gc.get_freeze_count(), [1], 1, 0, print)
        return [*read, gc.get_freeze_count()]

    gc.freeze()
    own = gc.get_freeze_count()
    try:
        assert min(frozen_while_reading()) > own // 2  # some of them may end meanwhile
        gc.unfreeze()
        during, after = frozen_while_reading()
        assert during > 0 == after
    finally:
        gc.freeze()


def test_without_proc_the_threads_are_unknown() -> None:
    code = (
        "import os; from dedupindex.runtime import workers; os.listdir = lambda path: open('');"
        "print(workers._context().get_start_method())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "spawn\n", done.stderr


def test_functions_of_users_reach_processes_that_are_not_forked(thread: None) -> None:
    seven = 7
    found = workers.map_in_order(call, lambda task: task + seven, range(5), 2, lost)
    assert list(found) == [7, 8, 9, 10, 11]


def test_what_cannot_be_copied_is_refused(thread: None) -> None:
    lock = threading.Lock()
    with pytest.raises(BadInput, match="lock.*jobs=1"):
        list(workers.map_in_order(call, lambda task: lock, range(5), 2, lost))


@pytest.mark.parametrize("guarded", [True, False])
def test_a_script_with_threads(tmp_path: Path, guarded: bool) -> None:
    """Its processes import it, and must not start to work in its place."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + ('if __name__ == "__main__":\n    ' if guarded else "") + "run()\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    if guarded:
        assert (done.returncode, done.stdout, done.stderr) == (0, "[2, 4, 6]\n", "")
    else:
        assert done.returncode != 0 and done.stdout == ""
        assert 'a script must do its work below `if __name__ == "__main__":`' in done.stderr


def test_no_database_is_open_while_records_are_read_for_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its threads would make the worker processes start slowly."""
    monkeypatch.setattr(workers, "_has_other_threads", lambda: workers.count_threads() > 1)
    methods: list[str | None] = []
    context = workers._context

    def chosen() -> object:
        found = context()
        methods.append(found.get_start_method())
        return found

    monkeypatch.setattr(workers, "_context", chosen)
    corpus = Corpus.from_cdx(news(tmp_path)).having(jobs=2, work=tmp_path)
    corpus.map("payload", "pid", lambda data: os.getpid()).save_as_parquet(tmp_path / "o.parquet")
    assert methods == ["fork"]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_manifest_leaves_no_thread(tmp_path: Path, jobs: int) -> None:
    """The next stage of a run forks, too."""
    news(tmp_path / "in")
    make([str(tmp_path / "in")], tmp_path / "manifest", ManifestOptions(), jobs=jobs)
    assert forked()


def _less(shared: int, task: int) -> int:
    return task - shared


def test_a_process_that_is_killed_at_the_end_keeps_no_other_waiting() -> None:
    """It has the lock of their queue; a pool that is being shut down does not notice."""
    context = get_context("fork")
    lock = context.Lock()

    def wait_for_task() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as those of a pool do
        lock.acquire()
        signal.pause()

    processes = {context.Process(target=wait_for_task) for _ in range(2)}
    for process in processes:
        process.start()
    while lock.acquire(block=False):
        lock.release()
    with ProcessPoolExecutor(1) as pool:
        waker = Timer(0.1, next(iter(processes)).kill)
        waker.start()
        workers._await_end(pool, processes)
    waker.join()
    assert {process.exitcode for process in processes} == {-signal.SIGKILL, -signal.SIGTERM}


def test_a_process_that_is_ended_right_after_its_fork_ends() -> None:
    """So a pool ends the others if one is killed; one that went on would wait for ever."""
    line = [sys.executable, "-c", ENDED_EARLY]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == (f"{workers._KILLED}\n", "")


@pytest.mark.parametrize("jobs", [1, 2])
def test_tasks_may_follow_from_results(jobs: int) -> None:
    found = workers.side_by_side(_less, 1, [3, 2], jobs, lambda left: [left] if left else [])
    assert sorted(found) == [0, 0, 1, 1, 2]
