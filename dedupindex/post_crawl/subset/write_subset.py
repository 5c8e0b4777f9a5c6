"""A subset to a file of its own, or to a directory of files, as the bytes it is.

What was written is read afresh by the code of `verify` before it gets its name.
"""

from __future__ import annotations

import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

from dedupindex.capture import Problem
from dedupindex.errors import BadInput, DedupError
from dedupindex.post_crawl.rewrite.part_files import PART, new_part, part_of, put_new, sweep
from dedupindex.post_crawl.subset.choose_records import (
    RecordChoice,
    RecordSpan,
    ScannedFile,
    SubsetFilter,
    SubsetScanTask,
    rows,
    scan,
)
from dedupindex.runtime.atomic_replace import FileSink, check_room, open_for_reading
from dedupindex.runtime.workers import side_by_side
from dedupindex.sources.warc_files import SourceFile, find
from dedupindex.verify.collection import Collection
from dedupindex.verify.issues import REMARK, Finding

_SUFFIX = ".warc.gz"
_PIECE = 1 << 20
_PART = re.compile(r"(?<![^/\s])" + PART.pattern + r"\b")
_LEVEL = 6  # of deflate, for records of plain files


@dataclass
class SubsetReport:
    """What a subset has, and what is wrong with it."""

    files: int = 0  # written
    records: int = 0  # wanted, with all that is in one member with them
    revisits: int = 0  # of these, and of what they refer to
    originals: int = 0  # records that are there for revisits alone
    dangling: int = 0  # revisits whose original is nowhere
    bytes: int = 0
    findings: Counter[str] = field(default_factory=Counter)  # what `verify` says, by reason
    problems: list[Problem] = field(default_factory=list)  # of the sources

    def as_json(self) -> dict[str, Any]:
        said = {name: value for name, value in vars(self).items() if name != "problems"}
        return {**said, "findings": dict(sorted(self.findings.items()))}


class _Places:
    """Where each file goes: one for all, or each to its own name below a directory."""

    def __init__(self, out: Path, files: list[SourceFile], scanned: list[ScannedFile]) -> None:
        self.single = out if out.name.lower().endswith(_SUFFIX) else None
        self._out, self._files, self._scanned = out, files, scanned

    def of(self, number: int) -> Path:
        """Raises `BadInput` if the file cannot go there."""
        file = self._files[number]
        if self.single is not None:
            if self._scanned[number].arc:
                raise BadInput(
                    f"{file.path} is an ARC file, which does not go into {self.single}: "
                    "bin/convert it first, or name a directory"
                )
            return self.single
        return self._out / file.name

    def line_ends(self, number: int) -> bytes:
        """What is to stand behind each record of a plain file."""
        scanned = self._scanned[number]
        return b"" if scanned.zipped else b"\n" if scanned.arc else b"\r\n\r\n"

    def packed(self, number: int) -> bool:
        """Whether its records have to be compressed."""
        return self.single is not None and not self._scanned[number].zipped


def export(
    sources: Sequence[str],
    originals: Sequence[str],
    wanted: SubsetFilter,
    out: Path,
    processes: int = 1,
    on_finding: Callable[[Finding], None] = lambda finding: None,
) -> SubsetReport:
    """Write the records of `sources` that are wanted, and those that their revisits refer to.

    Raises `BadSource`, `BadInput` if something is where the subset would go, `DedupError`.
    """
    if out.name.lower().endswith(_SUFFIX) and os.path.lexists(out):
        raise BadInput(f"{out} is there already")
    found, others = find(sources), find(originals)
    paths = {file.path for file in found.files}
    files = [*found.files, *(file for file in others.files if file.path not in paths)]
    exported = SubsetReport(problems=found.problems + others.problems)
    with TemporaryDirectory(prefix="dedupindex-export-") as beside:
        tasks = [
            SubsetScanTask(
                file, Path(beside) / str(number), wanted if number < len(found.files) else None
            )
            for number, file in enumerate(files)
        ]
        with closing(RecordChoice(Path(beside) / "records.sqlite")) as choice:
            scanned = list(_scanned(tasks, processes))
            for number, one in enumerate(scanned):
                choice.add(number, rows(one.spool))
                one.spool.unlink()
                path = files[number].path
                exported.problems += [Problem(path, *problem) for problem in one.problems]
            choice.resolve()
            exported.records, exported.revisits = choice.wanted, choice.revisits
            exported.originals, exported.dangling = choice.originals, choice.dangling
            places = _Places(out, files, scanned)
            if choice.wanted:
                _write(choice, files, places, exported, on_finding)
    return exported


def _scanned(tasks: list[SubsetScanTask], processes: int) -> Iterator[ScannedFile]:
    """In the order of the tasks."""
    done = {one.spool: one for one in side_by_side(scan, None, tasks, processes)}
    yield from (done[task.spool] for task in tasks)


def _write(
    choice: RecordChoice,
    files: list[SourceFile],
    places: _Places,
    exported: SubsetReport,
    on_finding: Callable[[Finding], None],
) -> None:
    """Write all pieces, verify what was written, and give it its names."""
    targets: dict[Path, int] = {}
    needed: Counter[Path] = Counter()
    for piece in choice.pieces():
        target = places.of(piece.file)
        if places.single is None and targets.setdefault(target, piece.file) != piece.file:
            raise BadInput(f"two files would both become {target}: export them in two runs")
        targets[target] = piece.file
        needed[target] += piece.stored
    for target in targets:
        if os.path.lexists(target):
            raise BadInput(f"{target} is there already")
    check_room(next(iter(targets)).parent, needed.total())
    for target in targets:
        target.parent.mkdir(parents=True, exist_ok=True)
    sweep(targets)  # what a killed run left
    with ExitStack() as parts:
        for target in targets:
            parts.callback(part_of(target).unlink, missing_ok=True)
        _copy(choice, files, places)
        _verify([part_of(target) for target in targets], exported, on_finding)
        for target in targets:
            exported.bytes += part_of(target).stat().st_size
            with open_for_reading(part_of(target)) as whole:
                try:
                    put_new(part_of(target), whole, target)
                except FileExistsError as error:  # by another process, since
                    raise BadInput(f"{target} is there already") from error
            exported.files += 1


def _copy(choice: RecordChoice, files: list[SourceFile], places: _Places) -> None:
    """Write the pieces, file by file, and force them to disk."""
    sink: FileSink | None = None
    with ExitStack() as whole:
        for number, pieces in groupby(choice.pieces(), lambda piece: piece.file):
            with ExitStack() as opened:
                source = opened.enter_context(_still(files[number]))
                if sink is None or places.single is None:
                    part = part_of(places.of(number))
                    sink = _sink(whole if places.single else opened, part)
                for piece in pieces:
                    if places.packed(number):
                        _pack(source, piece, sink)
                    else:
                        sink.copy(source, piece.offset, piece.stored)
                        if piece.open:  # so that every reader finds what comes behind it
                            sink.write(places.line_ends(number))


def _sink(opened: ExitStack, part: Path) -> FileSink:
    """A new file, on disk when it is closed."""
    file = opened.enter_context(new_part(part))
    opened.callback(os.fsync, file.fileno())
    return FileSink(file)


def _still(file: SourceFile) -> BinaryIO:
    """Open a source; raises `DedupError` if it is not what was read."""
    source = open_for_reading(file.path)
    now = os.fstat(source.fileno())
    if (now.st_size, now.st_mtime_ns, now.st_ino) != (file.size, file.mtime_ns, file.inode):
        source.close()
        raise DedupError(f"{file.path} was changed since it was read; nothing was written")
    return source


def _pack(source: BinaryIO, piece: RecordSpan, sink: FileSink) -> None:
    """A record of a plain file as a gzip member."""
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, 31)
    offset, end = piece.offset, piece.offset + piece.stored
    while data := os.pread(source.fileno(), min(end - offset, _PIECE), offset):
        sink.write(packer.compress(data))
        offset += len(data)
    sink.write(packer.flush())


def _verify(
    parts: list[Path], exported: SubsetReport, on_finding: Callable[[Finding], None]
) -> None:
    """Have every record read again, and each reference looked up within the subset alone."""
    known = exported.dangling
    for finding in Collection(parts).findings():
        exported.findings[finding.reason] += 1
        if finding.level != REMARK:
            file, message = (_PART.sub(r"\1", text) for text in (finding.file, finding.message))
            on_finding(finding._replace(file=file, message=message))
    exported.dangling = max(known, exported.findings["dangling"])
