"""Read a file from its beginning to its end: all records, and all bytes outside of records.

After damage, reading resumes at the next offset where a gzip member or zstd frame certainly begins
(`file_bytes.Beginnings`), or, in an uncompressed file, at the first offset from which records to
the letter follow each other to its end.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from dedupindex.verify.file_bytes import (
    MAGIC,
    Beginnings,
    File,
    GzipMembers,
    MemberReader,
    Place,
    UnreadableFile,
    opened,
)
from dedupindex.verify.issues import Broken, Finding, Issue
from dedupindex.verify.parse_records import (
    AnyRecord,
    ArcDocument,
    CheckedRecord,
    PieceReader,
    fields_of,
    is_arc,
)
from dedupindex.verify.walk_frames import ZstdFrames

SUFFIXES = (".warc", ".warc.gz", ".warc.zst", ".arc", ".arc.gz")
_ARCHIVE_NAME = re.compile(r"\.w?arc((?:\.[a-z0-9]+)*)$")
_SIDECAR_SUFFIXES = frozenset(
    ["cdx", "cdxj", "idx", "md5", "sha1", "sha256", "sha512", "txt", "log", "json", "csv", "xml"]
)
_PIECE = 1 << 18  # bytes read at once of an uncompressed file
_START = 1 << 16  # bytes that show what a file is
_RECORD = re.compile(rb"\r\n\r\n(?=WARC/[0-9])")
_DOCUMENT = re.compile(rb"\n(?=(?:https?|ftp|dns|filedesc|whois|gopher|nntp|mms|rtsp):)")
_ZSTD = re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")
_OVERLAP = 16  # bytes; no match of these is longer


def is_archive(path: Place) -> bool:
    """Whether a file is an archive, by its name or its first bytes; hidden files are not."""
    if path.name.startswith("."):
        return False
    if path.name.lower().endswith(SUFFIXES):
        return True
    try:
        with opened(path) as file:
            return file.size > 0 and kind_of(file) != ""
    except UnreadableFile:
        return False


def is_named(path: Place) -> bool:
    """As `is_archive`, and for archives that cannot be read, by name; not for files beside them."""
    found = _ARCHIVE_NAME.search(path.name.lower())
    return is_archive(path) or (
        found is not None and not _SIDECAR_SUFFIXES & set(found[1].split("."))
    )


def _members_of(file: File) -> tuple[Beginnings, str]:
    """The members of a file, and the ending of its kind, "" if it is not compressed."""
    if _ZSTD.match(file.read(0, 4)):
        return ZstdFrames(file), ".zst"
    start = file.read(0, _START)
    return GzipMembers(file), ".gz" if start.lstrip(b"\0").startswith(MAGIC) else ""


def kind_of(file: File) -> str:
    """``warc``, ``arc``, with ``.gz`` or ``.zst`` if compressed; "" for anything else."""
    start = file.read(0, _START)
    members, end = _members_of(file)
    if end:
        start = _first_text(members, len(start) - len(start.lstrip(b"\0")))
    start = start.lstrip(b"\r\n\0")
    if start[:5].upper() == b"WARC/":
        return "warc" + end
    if is_arc(start):
        return "arc" + end
    if file.path.name.lower().endswith(SUFFIXES) and (start or end):
        # Its beginning may be empty or damaged.
        return ("arc" if ".arc" in Path(file.path.name).suffixes else "warc") + end
    return ""


def _first_text(members: Beginnings, offset: int) -> bytes:
    """The first decompressed bytes that are not only line ends and zeros."""
    try:
        offset = members.skipped(offset)
        while members.is_at(offset):
            member = members.open(offset)
            while piece := member.piece():
                if piece.strip(b"\r\n\0"):
                    return piece
            offset = members.skipped(member.end)
    except Broken:
        pass
    return b""


class Container:
    def __init__(self, file: File) -> None:
        self.file = file
        self.name = str(file.path)
        self.kind = kind_of(file)
        self.beginnings = _members_of(file)[0]
        self._followed = 0  # in an uncompressed file, the offset up to which records were followed
        self._fields = -1  # of an ARC file, once its version block was read

    @property
    def zipped(self) -> bool:
        return self.kind.endswith((".gz", ".zst"))

    def at(self, offset: int) -> AnyRecord:
        """Return the record at `offset`; raises `Broken`."""
        member = self.beginnings.open(offset) if self.zipped else None
        record = self._next(self._reader(offset, member), offset)
        record.member = member
        return record

    def end_of(self, record: AnyRecord) -> int:
        """Close a record from `at`; returns its end. Raises `Broken` if it shares its member."""
        record.close()
        if record.member is None:
            return record.end
        if record.more:
            raise Broken("misframed", f"another record follows in its {self.beginnings.unit}")
        record.member.skip()
        self.beginnings.add(record.member.end)
        return record.member.end

    def _reader(self, offset: int, member: MemberReader | None = None) -> PieceReader:
        if member:
            return PieceReader(member.piece, member.proceed)
        return PieceReader(partial(next, _plain_pieces(self.file, offset), b""))

    def begins(self, offset: int) -> bool:
        """Whether a record certainly begins at `offset`."""
        if self.zipped:
            return self.beginnings.certain(offset) or self.beginnings.reached(0, offset)
        while self._followed < offset:
            try:
                record = self.at(self._followed)
                record.close()
                self._followed = record.end
            except Broken:
                self._followed = self._resume_plain(self._followed)
            self.beginnings.add(self._followed)
        return self.beginnings.known(offset)

    def _next(self, reader: PieceReader, offset: int) -> AnyRecord:
        if self.kind.startswith("arc"):
            if self._fields < 0:
                member = self.beginnings.open(0) if self.zipped else None
                self._fields = fields_of(self._reader(0, member))
            document = ArcDocument(reader, offset, self._fields)
            self._fields = document.fields
            document.has_line_end_before |= offset > 0 and not self.zipped
            return document
        return CheckedRecord(reader, offset)

    def each(self) -> Iterator[AnyRecord | Finding]:
        """Yield all records, and findings between them. Close a record before taking the next."""
        if not self.file.size:
            yield self.finding("unreadable", 0, "it is empty: it holds no record")
        elif not self.kind:
            message = "this is neither WARC nor ARC, gzip, zstd or plain"
            yield self.finding("unreadable", 0, message)
        elif self.zipped:
            yield from self._members()
        else:
            yield from self._plain()

    def finding(self, reason: str, offset: int, message: str, record_id: bytes = b"") -> Finding:
        return Finding(reason, self.name, offset, record_id.decode("utf-8", "replace"), message)

    def _plain(self) -> Iterator[AnyRecord | Finding]:
        position = 0
        while position < self.file.size:
            padding = _zeros_end(self.file, position)
            if padding > position:
                text = f"{padding - position:,} zero bytes are where a record should be"
                yield self.finding("misframed", position, text)
                position = padding
                continue
            position = yield from self._plain_records(self._reader(position), position)

    def _plain_records(
        self, reader: PieceReader, base: int
    ) -> Generator[AnyRecord | Finding, None, int]:
        """Yield records of an uncompressed file up to damage; returns where to resume."""
        reader.line_ends()
        while reader.hold(1) and reader.buffer[reader.at]:
            start, record_id = base + reader.consumed, b""
            try:
                record = self._next(reader, start)
                record_id = record.record_id
                yield record
                odd = record.close()
            except Broken as broken:
                after = self._resume_plain(start)
                left = "nothing after it in this file was read"
                if after < self.file.size:
                    left = f"{after - start:,} bytes were not read"
                yield self.finding(broken.reason, start, f"{broken}; {left}", record_id)
                return after
            if odd:
                yield self.finding(_reason(record), start, odd, record_id)
        return base + reader.consumed

    def _in_member(
        self, member: MemberReader, offset: int
    ) -> Generator[AnyRecord | Finding, None, bool]:
        """Yield the records of a member; returns whether it cannot be read to its end."""
        reader, unit = self._reader(offset, member), self.beginnings.unit
        line_ends_before, first = bool(reader.line_ends()), True
        more = reader.hold(1)
        if not more:
            yield self.finding("not-exact", offset, f"a {unit} without a record is here")
        while more:
            record_id = b""
            try:
                record = self._next(reader, offset)
                record_id = record.record_id
                yield record
                odd, more = record.close(), record.more
            except Broken as broken:
                yield self.finding(broken.reason, offset, str(broken), record_id)
                member.rewind()
                return broken.reason == "damaged-member"
            if self.kind.startswith("warc") and not first:
                odd = odd or f"it is not the first record of its {unit}"
            elif self.kind.startswith("warc") and line_ends_before:
                odd = odd or f"line ends precede it in its {unit}"
            elif member.frames > 1:
                odd = odd or f"it takes {member.frames:,} zstd frames"
            if odd:
                yield self.finding(_reason(record), offset, odd, record_id)
            first = False
        return False

    def _members(self) -> Iterator[AnyRecord | Finding]:
        position = 0
        if self.beginnings.only_skippable():
            yield self.finding("unreadable", 0, "it holds no record")
        while position < self.file.size:
            try:
                after = self.beginnings.skipped(position, 1)
                if after > position:
                    yield from self._issues(position, self.beginnings.skipped_issues(position))
                    position = after
                    continue
                if not self.beginnings.is_at(position):
                    after = self._padding_end(position)
                    if after == position:
                        raise Broken("not-a-member", f"no {self.beginnings.unit}")
                    text = f"{after - position:,} zero bytes are where a member should be"
                    yield self.finding("not-a-member", position, text)
                    self.beginnings.add(after)
                    position = after
                    continue
                member = self.beginnings.open(position)
                if (yield from self._in_member(member, position)):
                    position = self.resume(position)
                    continue
                member.skip()
                yield from self._issues(position, member.issues)
            except Broken as broken:
                if broken.reason == "no-dictionary":
                    position = yield from self._undecoded(position, str(broken))
                else:
                    position = yield from self._resumed(position, broken.reason, str(broken))
                continue
            position = member.end

    def _padding_end(self, position: int) -> int:
        """The end of the zero bytes at `position`, if a member or the end of the file follows."""
        end = _zeros_end(self.file, position)
        return end if end == self.file.size or self.beginnings.is_at(end) else position

    def _issues(self, position: int, issues: Iterable[Issue]) -> Iterator[Finding]:
        for reason, message in issues:
            yield self.finding(reason, position, message)

    def _undecoded(self, position: int, message: str) -> Generator[Finding, None, int]:
        """Yield one finding for the frames that need the same dictionary; returns their end."""
        after, count = self.beginnings.alike(position)
        if not count:  # its blocks are damaged as well
            return (yield from self._resumed(position, "no-dictionary", message))
        frames = f"{count:,} frames ({after - position:,} bytes) were not read"
        yield self.finding("no-dictionary", position, f"{message}; {frames}")
        return after

    def _resumed(self, position: int, reason: str, message: str) -> Generator[Finding, None, int]:
        """Yield what was not read; returns where to resume."""
        after = self.resume(position)
        left = f"{message} ({after - position:,} bytes were not read)"
        yield self.finding(reason, position, left)
        return after

    def resume(self, position: int) -> int:
        """Where the next record certainly begins in a compressed file, damaged at `position`."""
        for offset in self.beginnings.magics(position + 1, self.file.size):
            with suppress(Broken):
                self.at(offset)
                if self.beginnings.certain(offset):
                    self.beginnings.add(offset)
                    return offset
        return self.file.size

    def _resume_plain(self, broken: int) -> int:
        """Where to resume in an uncompressed file: from where records to the letter reach its end.

        It is the size of the file if there is no such offset. The stated end is tried first.
        """
        stated = self._stated_end(broken)
        if stated >= 0 and self._followed_from(stated) >= self.file.size:
            return stated
        at = broken + 1
        while (found := self._candidate(at)) < self.file.size:
            end = self._followed_from(found)
            if end >= self.file.size:
                return found
            at = max(end, found + 1)
        return self.file.size

    def _stated_end(self, offset: int) -> int:
        """The stated end of a broken record; -1 if it is not in the file."""
        record, end = self._block_end(offset)
        if self.kind == "arc":
            return end if end == self.file.size else -1
        if record is None or end > self.file.size:
            return -1
        return self._skip_line_ends(end)

    def _skip_line_ends(self, offset: int) -> int:
        reader = self._reader(offset)
        reader.line_ends()
        return offset + reader.consumed

    def _block_end(self, offset: int) -> tuple[AnyRecord | None, int]:
        """Return the record at `offset` and the stated end of its block, or (None, -1)."""
        reader = self._reader(offset)
        try:
            if not reader.hold(1) or reader.buffer[reader.at] in b"\r\n":
                return None, -1
            record = self._next(reader, offset)
        except Broken:
            return None, -1
        return record, offset + reader.consumed + record.length

    def _followed_from(self, offset: int) -> int:
        """The end of the records to the letter that follow each other from `offset` on."""
        while offset < self.file.size:
            record, end = self._block_end(offset)
            if record is None or end > self.file.size:
                break
            closing = self.file.read(end, 4)
            if record.kind == b"arc-header":
                offset = self._skip_line_ends(end)
            elif isinstance(record, ArcDocument) and closing[:1] in (b"", b"\n"):
                offset = end + len(closing[:1])
            elif isinstance(record, CheckedRecord) and closing == b"\r\n\r\n":
                offset = _end_or_zeros(self.file, end + 4)
            elif isinstance(record, CheckedRecord) and record.bare and closing[:2] == b"\n\n":
                offset = _end_or_zeros(self.file, end + 2)
            else:
                break
        return offset

    def _candidate(self, offset: int) -> int:
        """The first offset from `offset` on where a record may begin, or the size of the file."""
        expression = _DOCUMENT if self.kind == "arc" else _RECORD
        base = max(offset - _OVERLAP, 0)
        while data := self.file.read(base, _PIECE):
            for match in expression.finditer(data):
                if base + match.end() >= offset:
                    return base + match.end()
            if base + len(data) >= self.file.size:
                break
            base += len(data) - _OVERLAP
        return self.file.size


def _zeros_end(file: File, offset: int) -> int:
    """The end of the zero bytes at `offset`, if any."""
    for data in _plain_pieces(file, offset):
        rest = data.lstrip(b"\0")
        offset += len(data) - len(rest)
        if rest:
            break
    return offset


def _end_or_zeros(file: File, offset: int) -> int:
    """The size of the file if only zeros follow `offset`, else `offset`."""
    return file.size if _zeros_end(file, offset) == file.size else offset


def _plain_pieces(file: File, offset: int) -> Iterator[bytes]:
    while data := file.read(offset, _PIECE):
        offset += len(data)
        yield data


def _reason(record: AnyRecord) -> str:
    """Return the reason of a finding for a record that is not exact."""
    return "runs-on" if record.runs_on else "not-exact"
