"""Compare a rewritten file with the file it was made from: nothing may be lost.

Equal bytes are not parsed: from offsets where members begin in both files, equal bytes are equal
members. At a difference, the beginning of its member is searched backwards and proven
(`file_bytes.Beginnings`), and its record is compared with the one in the other file. No map of
offsets is needed, and none is trusted.
"""

from __future__ import annotations

import marshal
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from functools import partial
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from dedupindex.counts import OnProgress, ProgressUpdate
from dedupindex.errors import BadSource
from dedupindex.verify.collection import archives_below, in_order, size_of
from dedupindex.verify.file_bytes import MAGIC, Joined, UnreadableFile, candidates, common, opened
from dedupindex.verify.issues import Broken, Finding
from dedupindex.verify.locate_originals import FindOriginal, OriginalsIndex
from dedupindex.verify.parse_records import CheckedRecord
from dedupindex.verify.rebuild import Opened, RecordPair, record_end
from dedupindex.verify.walk_file import Container, is_named

_MAX_CANDIDATES = 64  # offsets tried as the beginning of the differing member
_MAX_AHEAD = 64  # records of each file that are searched for the next common one


def verify_pair(
    old: Path | Joined,
    new: Path,
    find_original: FindOriginal,
    members: Iterable[tuple[int, int]] = (),
) -> Iterator[Finding]:
    """Compare `new` with `old`, whose copy it should be but for records that became revisits.

    `members` are offsets and ends of some members of `old`, known by reading the file from its
    beginning. Without them they are proven here, which takes longer.
    """
    with opened(old) as before, opened(new) as after:
        container = Container(before)
        for offset, end in members:
            container.beginnings.learn(offset, end)
        with closing(RecordPair(container, Container(after), find_original)) as records:
            yield from _Pair(records).findings()


class _Pair:
    def __init__(self, records: RecordPair) -> None:
        self._records, self._old, self._new = records, records.old, records.new
        self._end_of = _member_end if self._old.zipped else _plain_end
        self._at, self._there = 0, 0  # where records begin in the old and the new file

    def findings(self) -> Iterator[Finding]:
        old, new = self._old, self._new
        while True:
            length = common(old.file, self._at, new.file, self._there)
            if self._at + length == old.file.size and self._there + length == new.file.size:
                return
            if old.kind != new.kind or old.kind not in ("warc", "warc.gz"):
                kind = old.kind or "no archive"
                message = f"it differs from {old.name} ({kind}), which nobody should rewrite"
                yield new.finding("bytes-changed", self._there + length, message)
                return
            begin = self._beginning(length)
            self._at, self._there = self._at + begin, self._there + begin
            end = self._end_of(self._old, self._at)
            if self._at < end <= self._at + length - begin:  # damage behind the record differs
                self._at, self._there = end, self._there + end - self._at
            elif not (yield from self._differing()):
                return

    def _beginning(self, length: int) -> int:
        """How far on the record begins that holds the first difference, `length` bytes on."""
        position, stop = self._at, self._at + length
        if self._old.zipped:
            beginnings, file = self._old.beginnings, self._old.file
            beginnings.add(position)
            offsets = chain([stop], candidates(file, position, stop))
            for offset in islice(offsets, _MAX_CANDIDATES):
                # The bytes before are equal, so what begins in one file begins in the other.
                if file.read(offset, len(MAGIC)) == MAGIC and beginnings.certain(offset):
                    return offset - position
        while position < stop:  # follow the records
            end = self._end_of(self._old, position)
            if not position < end <= stop:
                break
            position = end
        return position - self._at

    def _differing(self) -> Generator[Finding, None, bool]:
        """Compare the records that begin here in both files; returns whether to go on."""
        here = _opened(self._old, self._at), _opened(self._new, self._there)
        if here[0] is None or here[1] is None:  # damaged, or the end of a file
            return (yield from self._at_an_end())
        mine, theirs = here[0][0], here[1][0]
        same_url = mine.url == theirs.url
        if mine.record_id == theirs.record_id and (mine.record_id or same_url):
            return (yield from self._compared(here))
        olds, news = self._ahead(self._old, self._at), self._ahead(self._new, self._there)
        skipped = _first_common(olds, news)
        if skipped is None and not same_url:
            skipped = 1, 1
        if skipped is None or not (olds or news) or (skipped[0] == skipped[1] and same_url):
            return (yield from self._compared(here))
        yield from self._skip(olds[: skipped[0]], news[: skipped[1]])
        return True

    def _compared(
        self, here: tuple[Opened | None, Opened | None] = (None, None)
    ) -> Generator[Finding, None, bool]:
        ends = yield from self._records.compare(self._at, self._there, here)
        if ends is not None:
            self._at, self._there = ends
        return ends is not None

    def _at_an_end(self) -> Generator[Finding, None, bool]:
        """Report what only one of the files has, if the other ends or cannot be read on."""
        old, new = self._old, self._new
        if self._at < old.file.size and self._there < new.file.size:
            return (yield from self._compared())
        olds, news = self._ahead(old, self._at), self._ahead(new, self._there)
        yield from self._skip(olds, news)
        if not olds and not news:
            rest = old.file.size - self._at + new.file.size - self._there
            message = f"{rest:,} bytes that are no record are there in only one of the files"
            yield new.finding("bytes-changed", self._there, message)
        return bool(olds or news)

    def _skip(self, olds: list[_RecordPlace], news: list[_RecordPlace]) -> Iterator[Finding]:
        """Report records that only one of the files has, and go on behind them."""
        for record in olds:
            message = f"the record at {record.offset} of {self._old.name} is not here"
            yield self._new.finding("record-missing", self._there, message, record.record_id)
            self._at = record.end
        for record in news:
            message = "no such record stands here in the file before"
            yield self._new.finding("record-extra", record.offset, message, record.record_id)
            self._there = record.end

    def _ahead(self, container: Container, offset: int) -> list[_RecordPlace]:
        """The next records from `offset` on, as far as they can be read."""
        found: list[_RecordPlace] = []
        while offset < container.file.size and len(found) < _MAX_AHEAD:
            try:
                record, member = container.at(offset)
                end = record_end(container, record, member)
            except Broken:
                break
            found.append(_RecordPlace(offset, end, record.record_id))
            offset = end
        return found


class _RecordPlace(NamedTuple):
    offset: int
    end: int
    record_id: bytes


def _opened(container: Container, offset: int) -> Opened | None:
    """The record at `offset`; None if no record begins there."""
    try:
        return container.at(offset)
    except Broken:
        return None


def _first_common(olds: list[_RecordPlace], news: list[_RecordPlace]) -> tuple[int, int] | None:
    """The fewest records to skip in each file until both have the same one; None if never."""
    numbers = {record.record_id: number for number, record in reversed(list(enumerate(olds)))}
    found = [
        (numbers[record.record_id], number)
        for number, record in enumerate(news)
        if record.record_id and record.record_id in numbers
    ]
    return min(found, key=sum, default=None)


def _member_end(container: Container, offset: int) -> int:
    try:
        return container.beginnings.end(offset)
    except Broken:
        return -1


def _plain_end(container: Container, offset: int) -> int:
    """The end of the record at `offset` in an uncompressed file; -1 if it is uncertain."""
    try:
        record = container.at(offset)[0]
        if not isinstance(record, CheckedRecord):
            return -1
        end = offset + record.head_size + record.length
        if container.file.read(end, 4) == b"\r\n\r\n":
            return end + 4
        return record_end(container, record, None)
    except Broken:
        return -1


class Against:
    """Compares the files below `old` with those of the same names below one of `new`."""

    def __init__(
        self, old: Path, new: Iterable[Path], originals: Iterable[Path] = (),
        on_progress: OnProgress = lambda seen: None,
    ) -> None:  # fmt: skip
        self._on_progress = on_progress
        self._old, self._new = old, list(new)
        self._others = list(originals)
        for path in (old, *self._new, *self._others):
            if not path.exists():
                raise BadSource(f"{path} does not exist")
        if any(path.is_dir() != old.is_dir() for path in self._new):
            raise BadSource("compare a folder with folders, or a file with a file")
        self.files = 0  # compared

    def findings(self) -> Iterator[Finding]:
        """Yield what was changed and what cannot be rebuilt, file by file."""
        pairs, unpaired = self._pairs()
        self.files = len(pairs)
        yield from unpaired
        with TemporaryDirectory(prefix="dedupindex-verify-") as beside:
            originals = OriginalsIndex(Path(beside) / "places.sqlite")
            folders = [*self._new, *self._others]
            found = (file.resolve() for folder in folders for file in archives_below(folder))
            originals.add_files(list(dict.fromkeys(found)))
            compare = partial(_compare, originals)
            tasks = [(*pair, Path(beside) / str(number)) for number, pair in enumerate(pairs)]
            size, done = size_of([new for _, new in pairs]), 0
            for number, spool in enumerate(in_order(compare, tasks, size)):
                yield from _spooled(spool)
                spool.unlink()
                done += size_of([pairs[number][1]])
                self._on_progress(ProgressUpdate("comparing", done, size, 0))

    def totals(self) -> dict[str, int]:
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
