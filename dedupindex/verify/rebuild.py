"""Compare a revisit with the record that it replaced, and rebuild that record.

The HTTP header in the revisit and the body of its original, read from their files, must give the
block of the replaced record bit for bit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path

from dedupindex.verify import http, revisits
from dedupindex.verify.block_facts import Note, examine, is_standard_spelling, read_digest, start_of
from dedupindex.verify.collection import archives_below
from dedupindex.verify.file_bytes import MemberReader, UnreadableFile, opened
from dedupindex.verify.issues import Broken, Finding
from dedupindex.verify.locate_originals import (
    FindOriginal,
    OriginalReader,
    OriginalsIndex,
    reference,
)
from dedupindex.verify.parse_records import AnyRecord, CheckedRecord, RecordHead
from dedupindex.verify.walk_file import Container

_CHANGED = frozenset((b"warc-type", b"content-length", b"warc-block-digest"))
_ADDED = {  # fields of a revisit that the record may not have had
    name.lower(): name
    for name in (
        b"WARC-Type Content-Length WARC-Block-Digest WARC-Payload-Digest WARC-Profile "
        b"WARC-Truncated WARC-Refers-To WARC-Refers-To-Target-URI WARC-Refers-To-Date"
    ).split()
}
_CHANGE_REASONS = {
    b"warc-record-id": "id-changed",
    b"warc-date": "date-changed",
    b"warc-target-uri": "uri-changed",
}
Opened = tuple[AnyRecord, MemberReader | None]


class RecordPair:
    """Compares records of a file before and after it was rewritten."""

    def __init__(self, old: Container, new: Container, find_original: FindOriginal) -> None:
        self.old, self.new = old, new
        self._originals = OriginalReader(find_original)

    def close(self) -> None:
        self._originals.close()

    def compare(
        self, at: int, there: int, opened: tuple[Opened | None, Opened | None]
    ) -> Generator[Finding, None, tuple[int, int] | None]:
        """Compare the records at two offsets; returns where they end, None if that is unknown."""
        try:
            before, old_member = opened[0] or self.old.at(at)
            after, new_member = opened[1] or self.new.at(there)
            notes: list[Note] = []
            if after.kind == b"revisit" and before.kind != b"revisit":
                notes.extend(self._revisit(before, after, at))
            else:
                notes.extend(_differences(before, after))
                if not notes:
                    notes.append(("recompressed", "its record is as it was, its bytes are not"))
            record_id = after.record_id
            ends = (
                record_end(self.old, before, old_member),
                record_end(self.new, after, new_member),
            )
            if after.kind == b"revisit" and ends[1] - there >= ends[0] - at:
                notes.append(("larger", "the revisit takes no less room than the record did"))
        except Broken as broken:
            damage, resumable = self._damage(at), self.old.zipped and self.new.zipped
            if damage:
                message = f"it differs from {self.old.name} where that is damaged: {damage}"
                yield self.new.finding("bytes-changed", there, message)
            else:
                rest = "" if resumable else "; nothing behind it in this file was compared"
                yield self.new.finding(broken.reason, there, f"{broken}{rest}")
            return (_behind(self.old, at), _behind(self.new, there)) if resumable else None
        for reason, message in notes:
            yield self.new.finding(reason, there, message, record_id)
        return ends

    def _damage(self, at: int) -> str:
        """What is wrong with the old record; "" if it is sound."""
        try:
            record_end(self.old, *self.old.at(at))
        except Broken as broken:
            return str(broken)
        return ""

    def _revisit(self, before: AnyRecord, after: AnyRecord, at: int) -> Iterator[Note]:
        assert isinstance(before, CheckedRecord) and isinstance(after, CheckedRecord)
        yield from _header_differences(before.head, after.head)
        if before.kind != b"response":
            kind = before.kind.decode("ascii", "replace")
            yield "unfit-revisit", f"it was of the type {kind}, and should have stayed"
        notes: list[Note] = []
        facts, new_http = examine(after, notes)
        notes.extend(revisits.alone(after, facts))
        notes.extend(revisits.headers(new_http, facts))
        yield from notes
        start, rest = start_of(before)
        old_http = http.read_response(start)
        size = len(old_http.head) if old_http is not None and old_http.closed else 0
        if facts.length or (new_http.head if new_http else b"") != start[:size]:
            yield "headers-changed", "its block is not the HTTP header that was stored"
        found = False
        for original in self._originals.read(reference(facts)):
            if found:  # read the old record again
                start, rest = start_of(self.old.at(at)[0])
            found = True
            if _equal(chain([start[size:]], rest), original.body()):
                for reason, text in revisits.beside(facts, original.facts()):
                    if reason != "claimed-length":  # so it was before, above the same body
                        yield reason, text
                return
        if found:
            yield "not-rebuilt", "its original's body is not the one that was stored"
        else:
            message = "no full record of the URL, date and id that it names is found"
            yield "original-missing", message


def _header_differences(old: RecordHead, new: RecordHead) -> Iterator[Note]:
    """Yield what differs between the headers of a record and its revisit, but should not."""
    if old.version != new.version:
        yield "version-changed", f"it was of {old.version.decode('ascii', 'replace')}"
    if old.has(b"warc-truncated") or old.has(b"warc-segment-number"):
        yield "unfit-revisit", "it was truncated or a segment, and should have stayed"
    left = Counter(new.lines)
    for (name, value), line in zip(old.fields, old.lines, strict=True):
        if left[line]:
            left[line] -= 1
        elif name == b"warc-block-digest":
            if not new.has(name):
                yield "field-lost", "its WARC-Block-Digest"
        elif name not in _CHANGED and not (name == b"content-type" and not new.has(name)):
            reason = "field-changed" if new.has(name) else "field-lost"
            yield _CHANGE_REASONS.get(name, reason), _was(name, value)
    lost = old.has(b"content-type") and not new.has(b"content-type")
    if lost and new.get(b"content-length") != b"0":
        yield "field-lost", "its Content-Type"
    before, after = (read_digest(head.get(b"warc-block-digest")) for head in (old, new))
    if before and after and before.algorithm != after.algorithm:
        yield "digest-form", f"its block digest is {after.algorithm}, it was {before.algorithm}"
    for (name, value), line in zip(new.fields, new.lines, strict=True):
        if not left[line]:
            continue
        shown = name.decode("ascii", "replace")
        if name not in _ADDED and not old.has(name):
            yield "field-added", shown
        elif line != _ADDED.get(name, line.partition(b":")[0]) + b": " + value + b"\r\n":
            yield "not-exact", f"its {shown} is spelled or closed in an unusual way"
        elif name == b"warc-block-digest" and not is_standard_spelling(value):
            yield "digest-form", "its block digest is spelled in an unusual way"


def _was(name: bytes, value: bytes) -> str:
    return f"{name.decode('ascii', 'replace')} was {value[:200].decode('utf-8', 'replace')}"


def _differences(before: AnyRecord, after: AnyRecord) -> Iterator[Note]:
    """Yield how a record that should be the same differs; nothing if only its compression does."""
    if isinstance(before, CheckedRecord) and isinstance(after, CheckedRecord):
        for (name, value), line in zip(before.head.fields, before.head.lines, strict=True):
            if name in _CHANGE_REASONS and line not in after.head.lines:
                yield _CHANGE_REASONS[name], _was(name, value)
        same = before.head == after.head
        if not same or not _equal(before.pieces(), after.pieces()):
            what = "block" if same else "header"
            yield "record-changed", f"its {what} is not what it was"


def _behind(container: Container, offset: int) -> int:
    """Where to resume behind the record at `offset` of a gzip file, damaged or not."""
    try:
        return record_end(container, *container.at(offset))
    except Broken:
        return container.behind(offset)


def _equal(one: Iterator[bytes], other: Iterator[bytes]) -> bool:
    """Whether two streams are the same bytes; stops at the first difference."""
    mine = theirs = b""
    while True:
        mine, theirs = mine or next(one, b""), theirs or next(other, b"")
        size = min(len(mine), len(theirs))
        if mine[:size] != theirs[:size]:
            return False
        if not size:
            return mine == theirs
        mine, theirs = mine[size:], theirs[size:]


def record_end(container: Container, record: AnyRecord, member: MemberReader | None) -> int:
    """Close a record; returns its end. Raises `Broken` if it is not whole, or shares a member."""
    record.close()
    if member is None:
        return record.end
    if record.more:
        raise Broken("misframed", "another record follows in its gzip member")
    member.skip()
    container.beginnings.add(member.end)
    return member.end


class RevisitReader:
    """Rebuilds records from revisits as replay tools do, with originals by URL and date."""

    def __init__(self, folders: Iterable[Path], beside: Path) -> None:
        self._originals = OriginalsIndex(beside / "places.sqlite")
        self._originals.add_files([path for folder in folders for path in archives_below(folder)])

    def block(self, path: Path, offset: int) -> Iterator[bytes]:
        """Yield the HTTP header of the revisit at `offset` and the body of its original.

        Raises `Broken` if there is no revisit, or no such original.
        """
        try:
            with (
                opened(path) as file,
                closing(OriginalReader(self._originals.find)) as originals,
            ):
                record = Container(file).at(offset)[0]
                if record.kind != b"revisit":
                    raise Broken("record-changed", "no revisit stands there")
                facts, message = examine(record, [])
                original = next(originals.read(reference(facts)), None)
                if original is None:
                    raise Broken("original-missing", "no full record of its URL and date is found")
                yield message.head if message else b""
                yield from original.body()
        except UnreadableFile as error:
            raise Broken("unreadable", str(error)) from error
