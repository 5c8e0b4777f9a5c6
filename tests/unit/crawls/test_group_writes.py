"""Writes of many threads to a file of crawls, which are forced to disk together."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from pathlib import Path

from dedupindex.crawls import lifecycle
from dedupindex.crawls.store import Writing
from dedupindex.crawls.stores.lmdb_crawl_store import GroupWriter, LmdbStore

PATIENCE = 20.0  # seconds


class Preempted(threading.Condition):
    """A condition; the thread "second" stops for a while when it first releases it."""

    def __init__(self) -> None:
        super().__init__(threading.Lock())
        self.queued, self.resumed = threading.Event(), threading.Event()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[arg-type]
        if threading.current_thread().name == "second" and not self.queued.is_set():
            self.queued.set()
            self.resumed.wait(PATIENCE)


def test_a_thread_may_learn_that_it_writes_next_before_it_waits(tmp_path: Path) -> None:
    """On a busy machine a thread may stop just after it has queued its write."""
    changed, leading = Preempted(), threading.Event()
    results: dict[str, object] = {}

    def write(name: str) -> None:
        def change(writing: Writing) -> str:
            leading.set()
            end = time.monotonic() + PATIENCE
            while name == "first" and len(writer._jobs) < 2 and time.monotonic() < end:
                time.sleep(0.01)
            return lifecycle.begin(writing, name).name

        try:
            results[name] = writer.write(change)
        except Exception as error:
            results[name] = error

    with closing(LmdbStore(tmp_path)) as store:
        writer = GroupWriter(store)
        writer._changed = changed
        first, second, third = (
            threading.Thread(target=write, args=(name,), name=name, daemon=True)
            for name in ("first", "second", "third")
        )
        for thread, event in ((first, leading), (second, changed.queued)):
            thread.start()
            assert event.wait(PATIENCE)
        third.start()
        first.join(PATIENCE)  # by then it has handed over to the second
        changed.resumed.set()
        for thread in (second, third):
            thread.join(PATIENCE)
        assert results == {name: name for name in ("first", "second", "third")}
