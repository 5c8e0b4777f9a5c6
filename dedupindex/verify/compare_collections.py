"""Compare files or directories with what they were rewritten from, file by file.

See `compare_files` for how two files are compared. `Against` pairs them by name, and writes where
all full records are, since the original of a revisit may be in any of them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from functools import partial
from glob import has_magic
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from dedupindex.counts import OnProgress, ProgressUpdate
from dedupindex.errors import BadSource
from dedupindex.runtime.walk_directories import OnError, is_file, matches, walk_visible
from dedupindex.verify.collection import (
    ExecutorRows,
    archives_below,
    check_exists,
    files_below,
    in_order,
    resolved,
    unreadable_to,
)
from dedupindex.verify.compare_files import IN_FULL, REBUILT, verify_pair
from dedupindex.verify.file_bytes import Place, UnreadableFile
from dedupindex.verify.issues import Finding
from dedupindex.verify.locate_originals import FindOriginal, KnownOriginals, OriginalsIndex
from dedupindex.verify.walk_file import is_named

_UNFINISHED = (".open", ".part")  # endings of names of files that are still being written


class Against:
    """Compares the files below `old` with those of the same names below one of `new`."""

    def __init__(
        self, old: Place, new: Iterable[Place], originals: Iterable[Place] = (),
        on_progress: OnProgress = lambda seen: None, rows: ExecutorRows | None = None,
    ) -> None:  # fmt: skip
        """`old` may also be a glob of files or directories, as of `bin/dedup`.

        With `rows` executors read the files, else processes of this machine.
        """
        self._on_progress = on_progress
        self._glob = str(old) if isinstance(old, Path) and not os.path.exists(old) else ""
        self._old, self._new = _top(old) if has_magic(self._glob) else old, list(new)
        self._rows = rows
        self._others = list(originals)
        for path in (self._old, *self._new, *self._others):
            check_exists(path)
        if any(path.is_dir() != self._old.is_dir() for path in self._new):
            raise BadSource("compare a folder with folders, or a file with a file")
        self.files = 0  # compared
        self.not_compared: list[str] = []  # names of files before that are no archives
        self._counts = Counter[str]()

    def findings(self) -> Iterator[Finding]:
        """Yield what was changed and what cannot be rebuilt, file by file."""
        pairs, unpaired = self._pairs()
        self.files = len(pairs)
        yield from unpaired
        with TemporaryDirectory(prefix="dedupindex-verify-") as beside:
            originals = OriginalsIndex(Path(beside) / "places.sqlite")
            folders = [*self._new, *self._others]
            unreadable = list[Finding]()
            on_error = unreadable_to(unreadable)
            found = (file for folder in folders for file in archives_below(folder, on_error))
            files = list(dict.fromkeys(map(resolved, found)))
            yield from (finding for finding in unreadable if finding not in unpaired)
            originals.add_files(files, self._rows)
            for result in self._compared(pairs, files, originals):
                if isinstance(result, Finding):
                    yield result
                else:
                    self._counts += result

    @property
    def swapped(self) -> int:
        """Revisits before that are whole records now, after `findings`."""
        return self._counts[IN_FULL]

    def _compared(
        self, pairs: list[tuple[Place, Place]], files: list[Place], originals: OriginalsIndex
    ) -> Iterator[Finding | Counter[str]]:
        news = [new for _, new in pairs]
        if (rows := self._rows) is None:
            compare = partial(_compare, originals.find)
            yield from (found for _, found in in_order(compare, pairs, news, self._report))
            return
        numbers = {file: number for number, file in enumerate(files)}
        task_of = partial(_pair_task, originals, numbers)
        tasks = map(task_of, pairs)
        for number, found in in_order(_compare_task, tasks, news, self._report, rows):
            yield from _completed(rows, partial(task_of, pairs[number]), found, frozenset())

    def totals(self) -> dict[str, int]:
        return {"files": self.files, REBUILT: self._counts[REBUILT]}

    def _report(self, done: int, total: int) -> None:
        self._on_progress(ProgressUpdate("comparing", done, total, 0))

    def _pairs(self) -> tuple[list[tuple[Place, Place]], list[Finding]]:
        if not self._old.is_dir():
            return [(self._old, new) for new in self._new], []
        pairs: list[tuple[Place, Place]] = []
        findings = list[Finding]()
        on_error = unreadable_to(findings)
        if self._glob:
            before = dict(_matched(self._glob, str(self._old), on_error))
        else:
            before = dict(files_below(self._old, lambda _: True, on_error))
        self.not_compared = [name for name, old in before.items() if not is_named(old)]
        for name in self.not_compared:
            del before[name]
        after = [dict(files_below(folder, lambda _: True, on_error)) for folder in self._new]
        for name, old in before.items():
            there = [files[name] for files in after if name in files]
            pairs += [(old, path) for path in there]
            if not there:
                message = f"it is not there, and {old} is"
                if other := _other_form(name, after):
                    message += f"; files are compared by name, and {other} is there"
                if name.endswith(_UNFINISHED):
                    message += "; bin/dedup leaves out what is still being written by its name"
                findings.append(Finding("file-missing", f"{self._new[0]}/{name}", -1, "", message))
        for files in after:
            for name, path in files.items():
                if name not in before and is_named(path):
                    message = f"there is no such file below {self._old}"
                    findings.append(Finding("file-extra", str(path), -1, "", message))
        return pairs, findings


def _top(pattern: Place) -> Path:
    """Return the directory above all that a glob matches."""
    top = os.path.dirname(os.path.abspath(str(pattern)))
    while has_magic(top):
        top = os.path.dirname(top)
    return Path(top)


def _matched(pattern: str, top: str, on_error: OnError) -> Iterator[tuple[str, Place]]:
    """Yield the files that a glob matches, or that are below what it matches, as `bin/dedup` does.

    Each has its name below `top`. Raises `BadSource` if there is no match, and it is known that
    there is none.
    """
    errors = list[OSError]()
    matching = matches(pattern, errors.append)
    for error in errors:
        on_error(error)
    if not matching and not errors:
        raise BadSource(f"nothing matches {pattern}")
    visited = set[tuple[int, int]]()
    for match in map(os.path.abspath, matching):
        files: Iterable[str] = ()
        if not os.path.isdir(match):
            files = [] if os.path.basename(match).startswith(".") else [match]
        elif "**" not in pattern:  # which matches all files below, too
            files = walk_visible(match, on_error, visited)
        for path in files:
            if is_file(path, on_error):
                yield os.path.relpath(path, top), Path(path)


def _other_form(name: str, after: Iterable[Mapping[str, Place]]) -> str:
    """Return the name of a file that may be the same one, compressed otherwise; empty if none."""
    plain = name.removesuffix(".gz").removesuffix(".zst")
    others = (plain, f"{plain}.gz", f"{plain}.zst")
    return next((one for files in after for one in others if one in files), "")


def _compare(
    find_original: FindOriginal, pair: tuple[Place, Place]
) -> Iterator[Finding | Counter[str]]:
    """Yield the findings of a pair of files, then what was counted."""
    counts = Counter[str]()
    try:
        yield from verify_pair(*pair, find_original, counts=counts)
        yield counts
    except UnreadableFile as error:
        message = f"this, or the file before, cannot be compared: {error}"
        yield Finding("unreadable", str(pair[1]), -1, "", message)


class _PairTask(NamedTuple):
    """What an executor needs to compare a file with the file before."""

    pair: tuple[Place, Place]
    originals: KnownOriginals


class _MissingOriginals(NamedTuple):
    """The keys of originals that comparing a pair asked for, and that were not sent with it."""

    keys: set[bytes]


def _compare_task(task: _PairTask) -> Iterator[Finding | Counter[str] | _MissingOriginals]:
    """Yield what `_compare` does; only `_MissingOriginals` if some are.

    In damaged files the comparison may find other revisits than the list of their records has.
    """
    found = list(_compare(task.originals.find, task.pair))
    if task.originals.missing:
        yield _MissingOriginals(task.originals.missing)
    else:
        yield from found


def _pair_task(
    originals: OriginalsIndex, numbers: dict[Place, int], pair: tuple[Place, Place],
    more: Set[bytes] = frozenset(),
) -> _PairTask:  # fmt: skip
    return _PairTask(pair, originals.known_to(numbers.get(pair[1], -1), more))


def _completed(
    rows: ExecutorRows, task_of: Callable[[Set[bytes]], _PairTask],
    found: Finding | Counter[str] | _MissingOriginals, asked: Set[bytes],
) -> Iterator[Finding | Counter[str]]:  # fmt: skip
    """Yield a result of a task, or those of the same task with what it was lacking."""
    if isinstance(found, _MissingOriginals):
        asked = asked | found.keys
        for result in rows(_compare_task, [task_of(asked)]):
            yield from _completed(rows, task_of, result, asked)
    else:
        yield found
