"""The state of a build on disk, so that it can be resumed.

A task (reading some containers to their ends) is done when its line is in the journal. Files of an
interrupted build that the journal does not name are removed when the next build starts.

    INDEX/staging/journal.jsonl   first line: the build's signature; then a line for each task done
    INDEX/staging/numbers.mdb     container name -> number, shared by all processes of the build
    INDEX/staging/<task>-<n>.run  see `runs`
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

import lmdb

from dedupindex.cache import MEGABYTE, Cache
from dedupindex.errors import Damaged, IndexUnavailable, SettingsConflict
from dedupindex.index.format import cells
from dedupindex.index.load.runs import chunked, in_order, read_run, write_run
from dedupindex.runtime.files import atomic_file
from dedupindex.runtime.lmdb_disk import full_hint, reserve_lock

NAMES = ("staging", "staging.gone", "staging.new")
"""Directories in an index that a build may leave."""


class Staging:
    """The staging directory of an index; the caller holds the index's write lock."""

    def __init__(self, index: Path, signature: dict[str, Any], *, resume: bool) -> None:
        """Start or `resume` a build; raises `Damaged`, or `SettingsConflict` if it was another."""
        self.directory, self._gone, self._new = (index / name for name in NAMES)
        self._journal = self.directory / "journal.jsonl"
        self.done: list[dict[str, Any]] = []
        if not (resume and self._resume(signature)):
            self.clear()
            self.directory.mkdir()
            self._append(signature)

    def _resume(self, signature: dict[str, Any]) -> bool:
        """Read the journal of an interrupted build; return whether it has done any task.

        Raises `SettingsConflict` if it was another build, whether it has done any or not.
        """
        try:
            lines = self._journal.read_bytes().split(b"\n")
        except FileNotFoundError:
            return False
        entries = []
        for line in lines[:-1]:  # a cut line has no line end: its task is repeated
            try:
                entries.append(json.loads(cells.unsealed_text(b"", line.decode())))
            except (ValueError, Damaged) as error:
                raise Damaged(f"{self._journal} is damaged; build without --resume") from error
        if not entries:
            return False
        if others := [name for name in signature if entries[0].get(name) != signature[name]]:
            raise SettingsConflict(
                f"the build of {self.directory.parent} that was interrupted had other "
                f"{', '.join(others)}; run it as it was to resume it, or build without --resume, "
                "which gives up what it has read"
            )
        self.done = entries[1:]
        if not self.done:  # without tasks, its container numbers may be of other containers now
            return False
        kept = {*self.runs(), *self.ledger()}
        for path in self.directory.iterdir():
            if path.suffix in (".run", ".part") and path not in kept:
                path.unlink()
        return True

    def finish(self, task: dict[str, Any]) -> None:
        """Record a task whose containers were read to the end and whose runs are on disk."""
        self._append(task)
        self.done.append(task)

    def _append(self, entry: dict[str, Any]) -> None:
        with open(self._journal, "ab") as stream:
            stream.write(cells.sealed_text(b"", json.dumps(entry)).encode() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())

    def runs(self) -> list[Path]:
        """Return the runs of all tasks done."""
        return [self.directory / name for task in self.done for name in task["runs"]]

    def ledger(self) -> list[Path]:
        """Return the runs of revisits of all tasks done."""
        return [self.directory / name for task in self.done for name in task.get("ledger", ())]

    def next_task(self) -> int:
        """Return the first number above those of all tasks done, which ended in any order."""
        names = [path.name for path in (*self.runs(), *self.ledger())]
        return 1 + max([int(name.split("-")[0]) for name in names], default=-1)

    def names(self) -> Iterator[tuple[int, str]]:
        """Yield every container number assigned in this build, and the name."""
        path = self.directory / "numbers.mdb"
        if not path.exists():
            return
        with lmdb.open(os.fsencode(path), subdir=False, readonly=True, max_dbs=2) as env:
            names = env.open_db(b"names", create=False)
            with env.begin(db=names) as txn:
                for key, value in txn.cursor():
                    name = cells.unsealed(key, value).decode("utf-8", "surrogateescape")
                    yield int.from_bytes(key, "big"), name

    def renumber(self, lengths: list[int], known: Callable[[str], int], first: int) -> None:
        """Number containers anew if the index has given a number of theirs to another meanwhile.

        Between a kill and `--resume`, crawls may have been merged. `lengths` are those of keys,
        `known` and `first` as of `Numbers`.
        """
        before = dict(self.names())
        if min(before, default=first) >= first:
            return
        shutil.rmtree(self._new, ignore_errors=True)
        self._new.mkdir()
        with closing(Numbers(self._new, known, first)) as numbers:
            now = {number: numbers(name) for number, name in sorted(before.items())}
        if all(number == other for number, other in now.items()):  # they are loaded already
            shutil.rmtree(self._new)
            return

        def given(number: int) -> int:
            return now.get(number, number)

        for path in (*self.runs(), *self.ledger()):
            staged = (renumbered(one, lengths, given) for chunk in read_run(path) for one in chunk)
            write_run(self._new / path.name, chunked(in_order(staged, self._new)))
        with atomic_file(self._new / self._journal.name) as stream:
            stream.write(self._journal.read_bytes())
        shutil.rmtree(self._gone, ignore_errors=True)
        self.directory.rename(self._gone)
        self._new.rename(self.directory)
        shutil.rmtree(self._gone, ignore_errors=True)

    def clear(self) -> None:
        """Remove everything, in one rename: a journal must not outlive its container numbers."""
        shutil.rmtree(self._gone, ignore_errors=True)
        with suppress(FileNotFoundError):
            self.directory.rename(self._gone)
        for directory in (self._gone, self._new):
            shutil.rmtree(directory, ignore_errors=True)


class Numbers:
    """Assigns numbers to container names, the same in every process of a build."""

    def __init__(self, directory: Path, known: Callable[[str], int], first: int) -> None:
        """`known`: looks a name up in the index, 0 for none; `first`: the first free number."""
        self._path = directory / "numbers.mdb"
        with self._errors():
            reserve_lock(self._path)
            self._env = lmdb.open(
                os.fsencode(self._path), subdir=False, map_size=1 << 36, max_dbs=2, sync=False
            )
            self._numbers = self._env.open_db(b"numbers")  # hash of a name -> number
            self._names = self._env.open_db(b"names")
        self._known, self._first = known, first
        self._kept = Cache[str, int](16 * MEGABYTE)

    def __call__(self, name: str) -> int:
        if not name:
            return 0
        number = self._kept.get(name)
        return number or self._kept.keep(name, self._known(name) or self._assign(name))

    def _assign(self, name: str) -> int:
        text = name.encode("utf-8", "surrogateescape")
        key = blake2b(text, digest_size=16).digest()
        with self._errors(), self._env.begin(write=True) as txn:
            value = txn.get(key, db=self._numbers)
            if value is None:
                number = self._first + txn.stat(self._numbers)["entries"]
                value = number.to_bytes(4, "big")
                txn.put(key, cells.sealed(key, value), db=self._numbers)
                txn.put(value, cells.sealed(value, text), db=self._names)
                return number
        return int.from_bytes(cells.unsealed(key, value), "big")

    def close(self) -> None:
        """Force all numbers to disk, which the runs of a task refer to, and close the file."""
        with self._errors():
            self._env.sync(True)
        self._env.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except lmdb.Error as error:
            why = f"{error}{full_hint(self._path)}"
            raise IndexUnavailable(f"{self._path} cannot be written: {why}") from error


def renumbered(staged: bytes, lengths: list[int], given: Callable[[int], int]) -> bytes:
    """Return a staged entry or ledger item with container number `given(n)` in place of n."""
    end = lengths[staged[0]]
    body = staged[end:]
    return staged[:end] + cells.with_container(body, given(cells.container_of(body)))
