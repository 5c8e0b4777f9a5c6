"""A file from its beginning to its end: every record, and every byte that is none.

Behind damage in a gzip file reading goes on at the next certain beginning of a member
(`members`); a plain file gives no such certainty and is left there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

from dedupindex.verify import arc
from dedupindex.verify.bytes import File, Unreadable, opened
from dedupindex.verify.finding import Broken, Finding
from dedupindex.verify.members import MAGIC, Beginnings, Member, magics
from dedupindex.verify.records import Reader, Record

AnyRecord = Record | arc.Document
SUFFIXES = (".warc", ".warc.gz", ".arc", ".arc.gz")
_NAMED = re.compile(r"\.w?arc((?:\.[a-z0-9]+)*)$")
_BESIDE = frozenset(
    ["cdx", "cdxj", "idx", "md5", "sha1", "sha256", "sha512", "txt", "log", "json", "csv", "xml"]
)
_PLAIN = 1 << 18  # bytes read at once of a plain file
_START = 1 << 12


def is_archive(path: Path) -> bool:
    """Whether a file is to be looked at: by its name, else by what it begins with."""
    if path.name.startswith("."):
        return False
    if path.name.lower().endswith(SUFFIXES):
        return True
    try:
        with opened(path) as file:
            return file.size > 0 and kind_of(file) != ""
    except Unreadable:
        return False


def is_named(path: Path) -> bool:
    """Whether a file is an archive by its name or its bytes, though nobody here may read it.

    Such as zstd, or one of which the beginning is gone. Catalogues and sums beside it are none.
    """
    found = _NAMED.search(path.name.lower())
    return is_archive(path) or (found is not None and not _BESIDE & set(found[1].split(".")))


def kind_of(file: File) -> str:
    """``warc``, ``arc``, with ``.gz`` if compressed; "" for anything else."""
    start = file.read(0, _START)
    end = ""
    if start.startswith(MAGIC):
        end = ".gz"
        try:
            start = Member(file, 0).piece()
        except Broken:
            start = b""
    if start[:5].upper() == b"WARC/":
        return "warc" + end
    if arc.begins(start):
        return "arc" + end
    if end and file.path.name.lower().endswith(SUFFIXES):  # what is first may be empty, or damaged
        return "arc.gz" if ".arc" in file.path.suffixes else "warc.gz"
    return ""


class Container:
    """One file; a record at an offset, or all of them."""

    def __init__(self, file: File) -> None:
        self.file = file
        self.name = str(file.path)
        self.kind = kind_of(file)
        self.beginnings = Beginnings(file)
        self._walked = 0  # in a plain file, as far as records were followed

    @property
    def zipped(self) -> bool:
        return self.kind.endswith(".gz")

    def at(self, offset: int) -> tuple[AnyRecord, Member | None]:
        """The record that begins at `offset`, and the member that it is in; raises `Broken`."""
        if self.zipped:
            member = Member(self.file, offset)
            return self._next(Reader(member.piece), offset), member
        return self._next(Reader(_plain_pieces(self.file, offset)), offset), None

    def begins(self, offset: int) -> bool:
        """Whether a record certainly begins at `offset`."""
        if self.zipped:
            if self.beginnings.certain(offset):
                return True
            return self.beginnings.reached(0, offset)
        while self._walked < offset:
            try:
                record = self.at(self._walked)[0]
                record.close()
            except Broken:
                return False
            self._walked = record.end
            self.beginnings.add(record.end)
        return self.beginnings.known(offset)

    def _next(self, reader: Reader, offset: int) -> AnyRecord:
        if self.kind.startswith("arc"):
            return arc.Document(reader, offset)
        return Record(reader, offset)

    def each(self) -> Iterator[AnyRecord | Finding]:
        """Every record, and what is wrong between them. A record is read before the next."""
        if not self.file.size:
            yield self.finding("unreadable", 0, "it is empty: it holds no record")
        elif not self.kind:
            yield self.finding("unreadable", 0, "this is neither WARC nor ARC, gzip or plain")
        elif self.zipped:
            yield from self._members()
        else:
            yield from self._records(Reader(_plain_pieces(self.file, 0)), -1)

    def finding(self, reason: str, offset: int, message: str, record_id: bytes = b"") -> Finding:
        """A finding in this file."""
        return Finding(reason, self.name, offset, record_id.decode("utf-8", "replace"), message)

    def _records(self, reader: Reader, offset: int) -> Generator[AnyRecord | Finding, None, bool]:
        """The records of a plain file (`offset` -1) or of one member; True if it broke off."""
        first, more = True, True
        while more:
            start = reader.taken if offset < 0 else offset
            record_id = b""
            try:
                record = self._next(reader, start)
                record_id = record.record_id
                yield record
                odd, more = record.close(), record.more
            except Broken as broken:
                behind = "; nothing behind it in this file was read" if offset < 0 else ""
                yield self.finding(broken.reason, start, f"{broken}{behind}", record_id)
                return offset < 0 or broken.reason == "damaged-member"
            if not first and offset >= 0 and self.kind == "warc.gz":
                odd = odd or "it is not the first record of its gzip member"
            if odd:
                yield self.finding("not-exact", start, odd, record_id)
            first = False
        return False

    def _members(self) -> Iterator[AnyRecord | Finding]:
        position = 0
        while position < self.file.size:
            if self.file.read(position, len(MAGIC)) != MAGIC:
                position = yield from self._resumed(position, "not-a-member", "no gzip member")
                continue
            member = Member(self.file, position)
            reader = Reader(member.piece)
            try:
                if not reader.hold(1):
                    yield self.finding("not-exact", position, "an empty gzip member stands here")
                elif (yield from self._records(reader, position)):
                    position = yield from self._resumed(position)
                    continue
                while member.piece():
                    pass
            except Broken as broken:
                position = yield from self._resumed(position, broken.reason, str(broken))
                continue
            position = member.end

    def _resumed(
        self, position: int, reason: str = "", message: str = ""
    ) -> Generator[Finding, None, int]:
        """Where to go on behind damage; names what was left out, for a `reason`."""
        behind = self.behind(position)
        if reason:
            left = f"{message} ({behind - position:,} bytes were not read)"
            yield self.finding(reason, position, left)
        return behind

    def behind(self, position: int) -> int:
        """Where the next record certainly begins in a gzip file that is damaged at `position`."""
        for offset in magics(self.file, position + 1, self.file.size):
            if self._begins(offset) and self.beginnings.certain(offset):
                self.beginnings.add(offset)
                return offset
        return self.file.size

    def _begins(self, offset: int) -> bool:
        try:
            self.at(offset)
        except Broken:
            return False
        return True


def _plain_pieces(file: File, offset: int) -> Callable[[], bytes]:
    def piece() -> bytes:
        nonlocal offset
        data = file.read(offset, _PLAIN)
        offset += len(data)
        return data

    return piece
