"""Folders of rewritten files beside the folders they were made from."""

from __future__ import annotations

import marshal
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from dedupindex.counts import OnProgress, ProgressUpdate
from dedupindex.errors import BadSource
from dedupindex.verify.collection import archives_below, in_order, size_of
from dedupindex.verify.compare_files import verify_pair
from dedupindex.verify.file_bytes import UnreadableFile
from dedupindex.verify.issues import Finding
from dedupindex.verify.locate_originals import OriginalsIndex, places
from dedupindex.verify.walk_file import is_named


class Against:
    """Pairs of files of the same name below `old` and below one of `new`."""

    def __init__(
        self,
        old: Path,
        new: Iterable[Path],
        originals: Iterable[Path] = (),
        on_progress: OnProgress = lambda seen: None,
    ) -> None:
        self._on_progress = on_progress
        self._old, self._new = old, list(new)
        self._others = list(originals)
        for path in (old, *self._new, *self._others):
            if not path.exists():
                raise BadSource(f"{path} does not exist")
        if any(path.is_dir() != old.is_dir() for path in self._new):
            raise BadSource("compare a folder with folders, or a file with a file")
        self.files = 0

    def findings(self) -> Iterator[Finding]:
        """Everything that is not as it was or cannot be rebuilt, file by file."""
        pairs, unpaired = self._pairs()
        self.files = len(pairs)
        yield from unpaired
        with TemporaryDirectory(prefix="dedupindex-verify-") as beside:
            originals = OriginalsIndex(Path(beside) / "places.sqlite")
            found_in = dict.fromkeys(
                found.resolve()
                for path in [*self._new, *self._others]
                for found in archives_below(path)
            )
            files = list(found_in)
            originals.write(in_order(places, files, size_of(files)))
            compare = partial(_compare, originals)
            tasks = [(*pair, Path(beside) / str(number)) for number, pair in enumerate(pairs)]
            size, done = size_of([new for _, new in pairs]), 0
            for number, spool in enumerate(in_order(compare, tasks, size)):
                yield from _spooled(spool)
                spool.unlink()
                done += size_of([pairs[number][1]])
                self._on_progress(ProgressUpdate("comparing", done, size, 0))

    def totals(self) -> dict[str, int]:
        """What was compared."""
        return {"files": self.files}

    def _pairs(self) -> tuple[list[tuple[Path, Path]], list[Finding]]:
        if not self._old.is_dir():
            return [(self._old, new) for new in self._new], []
        pairs, findings = [], []
        names = [path.relative_to(self._old) for path in archives_below(self._old, is_named)]
        for name in names:
            there = [folder / name for folder in self._new if (folder / name).is_file()]
            pairs += [(self._old / name, path) for path in there]
            if not there:
                message = f"{self._old / name} is in none of the places given"
                findings.append(Finding("file-missing", str(self._new[0] / name), -1, "", message))
        known = set(names)
        for folder in self._new:
            for path in archives_below(folder, is_named):
                if path.relative_to(folder) not in known:
                    message = f"there is no such file below {self._old}"
                    findings.append(Finding("file-extra", str(path), -1, "", message))
        return pairs, findings


def _compare(originals: OriginalsIndex, task: tuple[Path, Path, Path]) -> Path:
    old, new, spool = task
    with open(spool, "wb") as stream:
        try:
            for finding in verify_pair(old, new, originals.find):
                marshal.dump(tuple(finding), stream)
        except UnreadableFile as error:
            message = f"this, or the file before, cannot be compared: {error}"
            marshal.dump(tuple(Finding("unreadable", str(new), -1, "", message)), stream)
    return spool


def _spooled(spool: Path) -> Iterator[Finding]:
    with open(spool, "rb") as stream:
        while stream.peek(1):
            yield Finding(*marshal.load(stream))
