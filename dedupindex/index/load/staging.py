"""What a build has done so far, on disk: runs, container numbers and a journal of whole tasks.

A task (some containers, read to their ends) counts once its line is in the journal. Whatever
else a killed build left is not in the journal, and is removed when the next one starts.

    INDEX/staging/journal.jsonl   first line: what is built; then one line for every task done
    INDEX/staging/numbers.mdb     container name -> number, shared by all processes of the build
    INDEX/staging/<task>-<n>.run  see `runs`
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

import lmdb

from dedupindex.cache import MEGABYTE, Cache
from dedupindex.errors import Damaged, IndexUnavailable, SettingsConflict
from dedupindex.index.format.cells import sealed, sealed_text, unsealed, unsealed_text
from dedupindex.index.format.ledger import DEPENDENT
from dedupindex.index.format.tombstones import REVISIT


class Staging:
    """The staging directory of an index; the caller holds the index's write lock."""

    def __init__(self, index: Path, what: dict[str, Any], *, resume: bool) -> None:
        self.directory = index / "staging"
        self._gone = index / "staging.gone"
        self._journal = self.directory / "journal.jsonl"
        self.done: list[dict[str, Any]] = []
        if not (resume and self._take_up(what)):
            self.clear()
            self.directory.mkdir()
            self._append(what)

    def _take_up(self, what: dict[str, Any]) -> bool:
        """Read the journal of an earlier build of the same; whether there is one."""
        try:
            lines = self._journal.read_bytes().split(b"\n")
        except FileNotFoundError:
            return False
        entries = []
        for line in lines[:-1]:  # a line that was cut has no end: its task is done again
            try:
                entries.append(json.loads(unsealed_text(b"", line.decode())))
            except (ValueError, Damaged) as error:
                raise Damaged(f"{self._journal} is damaged; build without --resume") from error
        if len(entries) < 2:  # no task was done
            return False
        if others := [name for name in what if entries[0].get(name) != what[name]]:
            raise SettingsConflict(
                f"the build of {self.directory.parent} that was interrupted had other "
                f"{', '.join(others)}; run it as it was to resume it, or build without --resume, "
                "which gives up what it has read"
            )
        self.done = entries[1:]
        kept = {name for task in self.done for name in [*task["runs"], *task.get("ledger", ())]}
        for path in self.directory.iterdir():
            if path.suffix in (".run", ".part") and path.name not in kept:
                path.unlink()
        return True

    def finish(self, task: dict[str, Any]) -> None:
        """Note a task as done: its runs are on disk, its containers were read to the end."""
        self._append(task)
        self.done.append(task)

    def _append(self, entry: dict[str, Any]) -> None:
        with open(self._journal, "ab") as stream:
            stream.write(sealed_text(b"", json.dumps(entry)).encode() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())

    def runs(self) -> list[Path]:
        """The runs of all tasks done."""
        return [self.directory / name for task in self.done for name in task["runs"]]

    def ledger(self) -> list[Path]:
        """The runs of revisits of all tasks done."""
        return [self.directory / name for task in self.done for name in task.get("ledger", ())]

    def next_task(self) -> int:
        """The first task number whose run files are not there: tasks end in any order."""
        return 1 + max([int(path.name.split("-")[0]) for path in self.runs()], default=-1)

    def names(self) -> Iterator[tuple[int, str]]:
        """Every container number that was given out in this build."""
        path = self.directory / "numbers.mdb"
        if not path.exists():
            return
        with lmdb.open(os.fsencode(path), subdir=False, readonly=True, max_dbs=2) as env:
            names = env.open_db(b"names", create=False)
            with env.begin(db=names) as txn:
                for key, value in txn.cursor():
                    name = unsealed(key, value).decode("utf-8", "surrogateescape")
                    yield int.from_bytes(key, "big"), name

    def clear(self) -> None:
        """Remove everything; the build is over, or starts anew.

        It goes all at once: a journal that outlived its container numbers would be believed.
        """
        shutil.rmtree(self._gone, ignore_errors=True)
        with suppress(FileNotFoundError):
            self.directory.rename(self._gone)
        shutil.rmtree(self._gone, ignore_errors=True)


class Numbers:
    """Gives container names their numbers, the same in every process of a build.

    `known` looks a name up in the index (0 for unknown), `first` is the first free number there.
    The file is a temporary one: only its locking matters, so nothing is forced to disk but when
    a task ends.
    """

    def __init__(self, directory: Path, known: Callable[[str], int], first: int) -> None:
        self._path = directory / "numbers.mdb"
        with self._explained():
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
        return number or self._kept.keep(name, self._known(name) or self._give(name))

    def _give(self, name: str) -> int:
        text = name.encode("utf-8", "surrogateescape")
        key = blake2b(text, digest_size=16).digest()
        with self._explained(), self._env.begin(write=True) as txn:
            value = txn.get(key, db=self._numbers)
            if value is None:
                number = self._first + txn.stat(self._numbers)["entries"]
                value = number.to_bytes(4, "big")
                txn.put(key, sealed(key, value), db=self._numbers)
                txn.put(value, sealed(value, text), db=self._names)
                return number
        return int.from_bytes(unsealed(key, value), "big")

    def close(self) -> None:
        """Force what was given out to disk: runs that are done refer to it."""
        with self._explained():
            self._env.sync(True)
        self._env.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except lmdb.Error as error:
            raise IndexUnavailable(f"{self._path} cannot be written: {error}") from error


def renumbered(staged: bytes, lengths: list[int], given: list[int]) -> bytes:
    """A staged entry, or item of the ledger, with the number `given` for that of its container.

    `lengths` are those of keys (`Keys.lengths`). A mark, which has no container, stays as it is.
    """
    key = lengths[staged[0]]
    if staged[key] == DEPENDENT:
        at = key + 13
    elif staged[key] & 3 == REVISIT:
        return staged
    else:
        at = key + 17
    number = given[int.from_bytes(staged[at : at + 4], "big")]
    return b"%b%b%b" % (staged[:at], number.to_bytes(4, "big"), staged[at + 4 :])
