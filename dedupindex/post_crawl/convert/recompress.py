"""Compress WARC files anew, with gzip or zstd; the records stay as they are.

Headers and blocks are copied byte for byte, one record in a member or frame, each with two line
ends after it. Empty members and skippable frames are left out. A file gets its name once `verify`,
which shares no code with the reader used here, has read the same records from it and from the file
before. A file with any damage is left alone.

In a ``.warc.zst``, frames have a checksum and state the size of their content, and a dictionary is
in a skippable frame at the beginning, compressed
(https://iipc.github.io/warc-specifications/specifications/warc-zstd/).
"""

from __future__ import annotations

import os
import random
import re
import shutil
import zlib
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain, zip_longest
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO

from dedupindex.post_crawl.convert.arc_to_warc import arc_framing
from dedupindex.post_crawl.convert.conversion import (
    Conversion,
    ConvertOutcome,
    ConvertTask,
    NotConverted,
    convert_file,
    name_clash,
)
from dedupindex.post_crawl.rewrite import offset_map
from dedupindex.sources.warc_files import Sources, find
from dedupindex.verify.compare_files import equal_pieces
from dedupindex.verify.file_bytes import UnreadableFile, opened
from dedupindex.verify.issues import DAMAGE, Broken, Finding
from dedupindex.verify.parse_records import CheckedRecord
from dedupindex.verify.walk_file import Container
from dedupindex.warc.gzip_members import MAGIC, Damage
from dedupindex.warc.reader import read
from dedupindex.warc.record import Record
from dedupindex.warc.window import Window, open_window
from dedupindex.warc.zstd_format import Dictionaries

GZIP, ZSTD = "gzip", "zstd"
ENDINGS = {GZIP: ".warc.gz", ZSTD: ".warc.zst"}
_SUFFIX = re.compile(r"\.warc(?:\.gz|\.zst)?$", re.IGNORECASE)
_END = b"\r\n\r\n"  # of a record
_GZIP_LEVEL = 6  # as most crawlers compress
_DICTIONARY = 112_640  # bytes at most, as the zstd program trains it
_SAMPLES = 100 * _DICTIONARY  # bytes of samples at most; more does not help
_SAMPLE = 1 << 14  # bytes of a record at most; a dictionary helps only with its beginning
_SAMPLES_PER_DICTIONARY = 8  # bytes of samples for a byte of dictionary, at least
_CHECKED = 4  # of so many samples, one is kept from the training to see if the dictionary pays
_Sample = bytes | bytearray | memoryview


class _Writer(ABC):
    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def begin(self, window: Window) -> None:
        """Write what precedes the records."""
        return

    @abstractmethod
    def write(self, pieces: Iterable[bytes | memoryview], length: int) -> None:
        """Append a record of `length` bytes."""


class _GzipWriter(_Writer):
    def write(self, pieces: Iterable[bytes | memoryview], length: int) -> None:
        compressor = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, 31)
        for piece in pieces:
            self._file.write(compressor.compress(piece))
        self._file.write(compressor.flush())


class _ZstdWriter(_Writer):
    def begin(self, window: Window) -> None:
        """Write a dictionary if it makes the file smaller."""
        dictionary = train(window)
        self._file.write(dictionary.frame())
        self._compressor = dictionary.compressor()

    def write(self, pieces: Iterable[bytes | memoryview], length: int) -> None:
        self._compressor.set_pledged_input_size(length)
        for piece in pieces:
            self._file.write(self._compressor.compress(piece))
        self._file.write(self._compressor.flush())


_WRITERS: dict[str, type[_Writer]] = {GZIP: _GzipWriter, ZSTD: _ZstdWriter}


def train(window: Window) -> Dictionaries:
    """Return a dictionary of the records of a file; none if the file is smaller without one.

    It depends only on the records. Raises `NotConverted`.
    """
    samples, count = _samples(window)
    checked = samples[::_CHECKED]
    del samples[::_CHECKED]
    size = min(_DICTIONARY, sum(map(len, samples)) // _SAMPLES_PER_DICTIONARY)
    none, found = Dictionaries(), Dictionaries.train(samples, size)
    saved = _compressed_size(none, checked) - _compressed_size(found, checked)
    pays = saved * count > len(found.frame()) * len(checked)
    return found if pays else none


def _compressed_size(dictionary: Dictionaries, samples: Iterable[_Sample]) -> int:
    """Return the bytes of a frame for each sample."""
    compressor, size = dictionary.compressor(), 0
    for sample in samples:
        compressor.set_pledged_input_size(len(sample))
        size += len(compressor.compress(sample)) + len(compressor.flush())
    return size


def _samples(window: Window) -> tuple[list[_Sample], int]:
    """Beginnings of some records, any as likely as the others, and the number of all."""
    chosen, held, count = list[_Sample](), 0, 0
    choice = random.Random(0)  # noqa: S311
    for count, record in enumerate(undamaged_records(window), 1):
        sample = record.text
        for piece in record.pieces():
            sample += piece[: _SAMPLE - len(sample)]
            if len(sample) >= _SAMPLE:
                break
        if held < _SAMPLES:
            chosen.append(sample[:_SAMPLE])
            held += len(chosen[-1])
        elif (at := choice.randrange(count)) < len(chosen):
            held += len(sample[:_SAMPLE]) - len(chosen[at])
            chosen[at] = sample[:_SAMPLE]
    choice.shuffle(chosen)
    return chosen, count


def undamaged_records(window: Window) -> Iterator[Record]:
    """All records of a file; raises `NotConverted` for damage."""
    for event in read(window):
        if isinstance(event, Damage):
            raise NotConverted(f"at {event.offset}: {event.message}")
        if isinstance(event, Record):
            yield event


def recompress_tasks(
    sources: Sequence[str], out: Path, kind: str, maps: Path | None
) -> tuple[list[ConvertTask], Sources]:
    """Return tasks for WARC files, the largest first; raises `BadInput` if two get one name.

    Files that are gzipped already are skipped if `kind` is `GZIP`. Maps of offsets are written in
    the directory `maps`.
    """
    found = find(sources)
    tasks: dict[Path, ConvertTask] = {}
    for number, file in enumerate(found.files):
        with closing(open_window(file.path, file.path)) as window:
            is_arc = arc_framing(window)[0] is not None
            done = kind == GZIP and window.read(0, len(MAGIC)) == MAGIC
        if is_arc or done:
            found.skipped += 1
            continue
        target = out / (_SUFFIX.sub("", file.name) + ENDINGS[kind])
        if target in tasks:
            raise name_clash(file.path, tasks[target])
        offsets = None if maps is None else maps / str(number)
        tasks[target] = ConvertTask(
            file.path, target, size=file.size, kind=kind, name=file.name, offsets=offsets
        )
    return sorted(tasks.values(), key=lambda task: -task.size), found


def recompress(task: ConvertTask) -> ConvertOutcome:
    """Compress one file anew; see `convert_file`."""
    return convert_file(task, _Recompression)


class _Recompression(Conversion):
    def write(self, file: BinaryIO) -> None:
        writer = _WRITERS[self.task.kind](file)
        writer.begin(self.window)
        for record in undamaged_records(self.window):
            length = len(record.text) + record.length + len(_END)
            writer.write(chain([record.text], record.pieces(), [_END]), length)

    def check(self, path: Path) -> None:
        self.outcome.records = compare(self.task, path)


def compare(task: ConvertTask, path: Path) -> int:
    """Return the number of records, which must be the same in `path`; raises `NotConverted`.

    Writes the map of offsets of the task.
    """
    count = 0
    with (
        _MapWriter(task) as offsets,
        closing(sound_records(Path(task.path))) as olds,
        closing(sound_records(path)) as news,
    ):
        for old, new in zip_longest(olds, news):
            count += 1
            if old is None or new is None:
                raise NotConverted(f"{path} has not as many records as {task.path}")
            same = old.head_size == new.head_size and old.head == new.head
            if not same or not equal_pieces(old.pieces(), new.pieces()):
                raise NotConverted(
                    f"the record at {old.offset} is not the one at {new.offset} of {path}"
                )
            offsets.add(old.offset, new.offset)
        if not count:
            raise NotConverted("it holds no record")
        offsets.finish(path)
    return count


def sound_records(path: Path) -> Generator[CheckedRecord, None, None]:
    """All records as `verify` reads them; raises `NotConverted` for damage."""
    try:
        with opened(path) as file:
            for item in Container(file).each():
                if isinstance(item, CheckedRecord):
                    yield item
                elif not isinstance(item, Finding) or item.level == DAMAGE:
                    why = item.message if isinstance(item, Finding) else "it is no WARC record"
                    raise NotConverted(f"at {item.offset}: {why}")
    except (UnreadableFile, Broken) as error:
        raise NotConverted(f"{path}: {error}") from error


class _MapWriter:
    """Writes where the records of a file are in another, see `offset_map.HEADER`.

    The bytes of a record are those up to the next one. Of several records in a member only the
    first has a line: no offset leads to the others.
    """

    def __init__(self, task: ConvertTask) -> None:
        self._task = task
        self._name = offset_map.quoted_name(task.name)
        self._lines = None if task.offsets is None else TemporaryFile(dir=task.offsets.parent)  # noqa: SIM115
        self._old = self._new = self._new_end = -1

    def __enter__(self) -> _MapWriter:
        return self

    def __exit__(self, *error: object) -> None:
        if self._lines is not None:
            self._lines.close()

    def add(self, old: int, new: int) -> None:
        if self._new_end < 0:
            self._new_end = new
        if old == self._old:
            return
        self._write(old)
        self._old, self._new, self._new_end = old, new, -1

    def finish(self, path: Path) -> None:
        """Write the last line, and the file; `path` is the new file."""
        if self._new_end < 0:
            self._new_end = path.stat().st_size
        self._write(os.path.getsize(self._task.path))
        if self._lines is not None and self._task.offsets is not None:
            self._lines.seek(0)
            with open(self._task.offsets, "wb") as whole:
                shutil.copyfileobj(self._lines, whole)

    def _write(self, old_end: int) -> None:
        if self._lines is not None and self._old >= 0:
            self._lines.write(
                offset_map.ROW
                % (self._name, self._old, old_end - self._old, self._new,
                   self._new_end - self._new)
            )  # fmt: skip


def map_lines(tasks: Iterable[ConvertTask]) -> Iterator[bytes]:
    """Yield the map of offsets of the files that were converted, by name."""
    yield offset_map.HEADER
    for task in sorted(tasks, key=lambda task: task.name):
        if task.offsets is not None and task.offsets.exists():
            with open(task.offsets, "rb") as lines:
                yield from lines
