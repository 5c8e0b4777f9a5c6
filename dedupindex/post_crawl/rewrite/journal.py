"""What a run did to each container, kept beside the containers: ``.rewrite/`` in their directory.

    lock                 held while a run writes here
    KEY.jsonl            what became of one container; KEY is a hash of its name
    KEY.dropped          in place only, until ``--commit``: the dropped members, end to end
    KEY.N.committed      the KEY.jsonl of a run whose dropped members are gone
    KEY.pins             what revisits refer to in it (`rewrite.pins`)

The first line of a KEY.jsonl says what the container was, the last what it is now; between them
there is a line for each record that became a revisit, in order of offset. What is not named there
was copied, so the lines are also the map from old offsets to new ones. A file that ends in
``.part`` or a KEY.dropped without its KEY.jsonl is what a killed run left, and means nothing.
"""

from __future__ import annotations

import json
import os
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import blake3

from dedupindex.errors import Damaged
from dedupindex.post_crawl.rewrite.protected_records import Holder, Pins, unpin
from dedupindex.runtime.atomic_replace import FileSink
from dedupindex.runtime.files import sync_directory

DIRECTORY = ".rewrite"
_FORMAT = 2  # 1 did not say with which options and plan


class Was(NamedTuple):
    """A container before it was rewritten."""

    name: str
    size: int
    mtime_ns: int
    content_hash: str
    options: str = ""  # of the run, as they are typed; empty if that is not known
    plan: str = ""  # `Plan.made_of` of its plan


class JournalEntry(NamedTuple):
    """A record that became a revisit. Texts of bytes are their Latin-1."""

    offset: int
    stored: int
    new_offset: int
    new_stored: int
    header: str  # WARC header of the record that was dropped, blank line included
    sha256: str  # of this record, inflated
    root: str  # of the original's container; empty for the directory of this journal
    name: str
    original: int  # its offset there, when its container was scanned
    original_stored: int
    original_size: int  # of its container then


class Pin(NamedTuple):
    """The record that a revisit refers to; see `rewrite.pins`."""

    key: bytes
    outside: tuple[int, int] | None  # device and inode of its container, if that is not of the set


class Ended(NamedTuple):
    """A container after it was rewritten."""

    revisits: int
    size: int


class Journal:
    """The journal of one container."""

    def __init__(self, directory: Path, name: str) -> None:
        key = blake3.blake3(name.encode("utf-8", "surrogateescape")).hexdigest()[:32]
        self.name = name
        self.directory = directory / DIRECTORY
        self.lines = self.directory / f"{key}.jsonl"
        self.dropped = self.directory / f"{key}.dropped"

    def exists(self) -> bool:
        return self.lines.exists()

    def summary(self) -> tuple[Was, Ended]:
        return summary(self.lines)

    def of_size(self, after: int, before: int = -1) -> Path | None:
        """The journal, committed or not, of a run that left the container with `after` bytes.

        `before` is how many it had, if that is known.
        """
        for path in (self.lines, *self.committed()):
            if path.exists():
                was, ended = summary(path)
                if ended.size == after and before in (-1, was.size):
                    return path
        return None

    def committed(self) -> list[Path]:
        """The journals of runs whose dropped members are gone."""
        return sorted(self.directory.glob(f"{self.lines.stem}.*.committed"))

    def clear(self) -> None:
        """Forget the container, which has no revisits any more; what is told last goes first."""
        if not self.committed():  # else revisits are there, and what they refer to stays pinned
            with suppress(FileNotFoundError, Damaged):
                holders = {Holder(entry.root, entry.name) for entry in entries(self.lines)}
                unpin(self.directory.parent, self.name, holders)
        self.lines.unlink(missing_ok=True)
        sync_directory(self.directory)
        self.dropped.unlink(missing_ok=True)

    def discard_parts(self) -> None:
        """Remove what a killed run left."""
        for part in (_part(self.lines), _part(self.dropped)):
            part.unlink(missing_ok=True)
        if not self.lines.exists():
            self.dropped.unlink(missing_ok=True)

    def commit(self) -> int:
        """Let go of the dropped members, for ever; returns their bytes."""
        freed = self.dropped.stat().st_size
        self.set_aside()
        self.dropped.unlink()
        return freed

    def set_aside(self) -> None:
        """Make room for the journal of another run, as for one that was committed."""
        number = 1
        while (kept := self.lines.with_suffix(f".{number}.committed")).exists():
            number += 1
        os.replace(self.lines, kept)
        sync_directory(self.directory)

    def stretches(self, now: Path) -> Iterator[tuple[Path, int, int]]:
        """Of what the container was made that is in the file `now`: ranges of files, in order."""
        taken = position = 0
        for entry in entries(self.lines):
            if entry.new_offset > position:
                yield now, position, entry.new_offset - position
            yield self.dropped, taken, entry.stored
            taken += entry.stored
            position = entry.new_offset + entry.new_stored
        if (size := now.stat().st_size) > position:
            yield now, position, size - position

    def offsets(self) -> Offsets:
        """The map from old offsets to new ones."""
        return Offsets(entries(self.lines))


class JournalWriter:
    """Writes the journal of a container; it counts once `finish` has come back."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._lines: FileSink | None = None
        self._dropped: FileSink | None = None
        self._count = 0
        self._pins = Pins(journal.directory.parent, journal.name)

    def begin(self, was: Was, *, keep_dropped: bool) -> None:
        """Open the files, under names that mean nothing."""
        self._journal.directory.mkdir(exist_ok=True)
        self._lines = _new(self._journal.lines)
        self._put({"format": _FORMAT, **was._asdict()})
        if keep_dropped:
            self._dropped = _new(self._journal.dropped)

    def add(self, entry: JournalEntry, source: BinaryIO, pin: Pin) -> None:
        """Note a revisit; the dropped member is copied from `source`."""
        self._put(entry._asdict())
        self._pins.add(Holder(entry.root, entry.name, pin.outside), pin.key)
        self._count += 1
        if self._dropped is not None:
            self._dropped.copy(source, entry.offset, entry.stored)

    def finish(self, size: int) -> None:
        """Force everything to disk, under its names. `size` is that of the new container.

        Raises `Left` if an original outside of the set is going away.
        """
        self._pins.finish()
        self._put(Ended(self._count, size)._asdict())
        journal = self._journal
        if self._dropped is not None:
            os.fsync(self._dropped.file.fileno())
            os.replace(_part(journal.dropped), journal.dropped)
        assert self._lines is not None
        os.fsync(self._lines.file.fileno())
        os.replace(_part(journal.lines), journal.lines)
        sync_directory(journal.directory)
        self._pins.stay()

    def close(self) -> None:
        """Close the files, and remove what was not finished."""
        for sink in (self._lines, self._dropped):
            if sink is not None:
                sink.file.close()
        if not self._journal.exists() and not self._journal.committed():
            self._pins.close()
        self._journal.discard_parts()

    def _put(self, value: dict[str, Any]) -> None:
        assert self._lines is not None
        self._lines.write(json.dumps(value).encode("ascii") + b"\n")


def _new(path: Path) -> FileSink:
    return FileSink(open(_part(path), "wb", buffering=0))


def entries(path: Path) -> Iterator[JournalEntry]:
    """The revisits in a journal, in order of offset; raises `Damaged`."""
    with open(path, "rb") as lines:
        next(lines)
        for line in lines:
            try:
                said = json.loads(line)
                if "offset" not in said:
                    return
                entry = JournalEntry(**said)
            except (ValueError, TypeError) as error:
                raise Damaged(f"{path} has a line that cannot be read: {error}") from error
            yield entry


def summary(path: Path) -> tuple[Was, Ended]:
    """The first and the last line of a journal; raises `Damaged`."""
    try:
        with open(path, "rb") as lines:
            first = json.loads(next(lines))
            at = max(path.stat().st_size - 200, 0)
            lines.seek(at)
            last = json.loads(lines.read().splitlines()[-1])
        if first.pop("format") in range(1, _FORMAT + 1):
            return Was(**first), Ended(**last)
    except (ValueError, TypeError, LookupError, AttributeError, StopIteration) as error:
        raise Damaged(f"{path} is no whole journal: {error}") from error
    raise Damaged(f"{path} is no journal that this version can read")


def begun(directory: Path) -> Iterator[Journal]:
    """The journals that killed runs have begun there and not finished."""
    for part in sorted((directory / DIRECTORY).glob("*.jsonl.part")):
        with open(part, "rb") as lines:
            first = lines.readline()
        if first.endswith(b"\n"):  # else nothing else was begun
            with suppress(ValueError, TypeError, LookupError):
                yield Journal(directory, json.loads(first)["name"])


def journals(directory: Path) -> Iterator[Journal]:
    """All that a directory has journals of; raises `Damaged`."""
    for lines in sorted((directory / DIRECTORY).glob("*.jsonl")):
        yield Journal(directory, name_of(lines))


def name_of(path: Path) -> str:
    """Of which container a journal tells; raises `Damaged`."""
    try:
        with open(path, "rb") as lines:
            return str(json.loads(next(lines))["name"])
    except (ValueError, TypeError, LookupError, StopIteration) as error:
        raise Damaged(f"{path} is no journal: {error}") from error


def _part(path: Path) -> Path:
    return path.with_name(path.name + ".part")


# Where records of a container went when others in it became revisits.


class Offsets:
    """Where what stood at an old offset, and did not become a revisit, stands now."""

    def __init__(self, revisits: Iterable[JournalEntry]) -> None:
        self._begins, self._shifts = array("q"), array("q", [0])
        for entry in revisits:
            self._begins.append(entry.offset)
            self._shifts.append(entry.new_offset + entry.new_stored - entry.offset - entry.stored)

    def now(self, offset: int) -> int:
        """The new offset."""
        return offset + self._shifts[bisect_left(self._begins, offset)]

    def became(self, offset: int) -> bool:
        """Whether what stood there became a revisit."""
        at = bisect_left(self._begins, offset)
        return at < len(self._begins) and self._begins[at] == offset
