"""A record that became a revisit, beside what it was: the recipe field by field, and the rebuild.

The header block of the revisit and the body of its original, both read now, must give the block
of the record that was, bit for bit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path

from dedupindex.verify import http, revisits
from dedupindex.verify.block_facts import Note, bare, examine, start_of
from dedupindex.verify.collection import archives_below, in_order, size_of
from dedupindex.verify.file_bytes import MemberReader, UnreadableFile, opened
from dedupindex.verify.http_blocks import is_usual, read
from dedupindex.verify.issues import Broken, Finding
from dedupindex.verify.locate_originals import (
    FindOriginal,
    OriginalReference,
    OriginalsIndex,
    Shelf,
    places,
)
from dedupindex.verify.parse_records import CheckedRecord, RecordHead
from dedupindex.verify.walk_file import AnyRecord, Container

_CHANGES = frozenset((b"warc-type", b"content-length", b"warc-block-digest"))
_NAMES = {
    name.lower(): name
    for name in (
        b"WARC-Type",
        b"Content-Length",
        b"WARC-Block-Digest",
        b"WARC-Payload-Digest",
        b"WARC-Profile",
        b"WARC-Truncated",
        b"WARC-Refers-To",
        b"WARC-Refers-To-Target-URI",
        b"WARC-Refers-To-Date",
    )
}
_ADDED = frozenset(_NAMES)
_OWN_REASON = {
    b"warc-record-id": "id-changed",
    b"warc-date": "date-changed",
    b"warc-target-uri": "uri-changed",
}
Ends = tuple[int, int]
Opened = tuple[AnyRecord, MemberReader | None]


class Sides:
    """A file before and after, and the shelf from which originals are taken."""

    def __init__(self, old: Container, new: Container, find_original: FindOriginal) -> None:
        self.old, self.new = old, new
        self._shelf = Shelf(find_original)

    def close(self) -> None:
        self._shelf.close()

    def compare(
        self, at: int, there: int, opened: tuple[Opened | None, Opened | None]
    ) -> Generator[Finding, None, Ends | None]:
        """Compare two records; returns where to go on, None if that cannot be told."""
        try:
            before, old_member = opened[0] or self.old.at(at)
            after, new_member = opened[1] or self.new.at(there)
            notes: list[Note] = []
            if after.kind == b"revisit" and before.kind != b"revisit":
                notes.extend(self._revisit(before, after, at))
            else:
                notes.extend(_unlike(before, after))
                if not notes:
                    notes.append(("recompressed", "its record is as it was, its bytes are not"))
            record_id = after.record_id
            ends = closed(self.old, before, old_member), closed(self.new, after, new_member)
            if after.kind == b"revisit" and ends[1] - there >= ends[0] - at:
                notes.append(("larger", "the revisit takes no less room than the record did"))
        except Broken as broken:
            hurt, goes_on = self._hurt(at), self.old.zipped and self.new.zipped
            if hurt:
                message = f"it differs from {self.old.name} where that is damaged: {hurt}"
                yield self.new.finding("bytes-changed", there, message)
            else:
                behind = "" if goes_on else "; nothing behind it in this file was compared"
                yield self.new.finding(broken.reason, there, f"{broken}{behind}")
            return (_behind(self.old, at), _behind(self.new, there)) if goes_on else None
        for reason, message in notes:
            yield self.new.finding(reason, there, message, record_id)
        return ends

    def _hurt(self, at: int) -> str:
        """What is wrong with the old record; nothing if it is sound."""
        try:
            closed(self.old, *self.old.at(at))
        except Broken as broken:
            return str(broken)
        return ""

    def _revisit(self, before: AnyRecord, after: AnyRecord, at: int) -> Iterator[Note]:
        assert isinstance(before, CheckedRecord) and isinstance(after, CheckedRecord)
        yield from heads(before.head, after.head)
        if before.kind != b"response":
            kind = before.kind.decode("ascii", "replace")
            yield "unfit-revisit", f"it was of the type {kind}, and should have stayed"
        notes: list[Note] = []
        facts, message = examine(after, notes)
        notes.extend(revisits.alone(after, facts))
        notes.extend(revisits.headers(message, facts))
        yield from notes
        start, rest = start_of(before)
        was = http.read(start)
        size = len(was.head) if was is not None and was.closed else 0
        if facts.length or (message.head if message else b"") != start[:size]:
            yield "headers-changed", "its block is not the HTTP header that was stored"
        wanted = OriginalReference(bare(facts.to_url) or facts.url, facts.to_date, facts.to_id)
        found = False
        for original in self._shelf.take(wanted):
            if found:  # a further one: read anew what was read
                start, rest = start_of(self.old.at(at)[0])
            found = True
            if _equal(chain([start[size:]], rest), original.body()):
                for reason, text in revisits.beside(facts, original.facts()):
                    if reason != "claimed-length":  # the same claim stood above the same body
                        yield reason, text
                return
        if found:
            yield "not-rebuilt", "its original's body is not the one that was stored"
        else:
            yield (
                "original-missing",
                "no full record of the URL, date and id that it names is found",
            )


def heads(old: RecordHead, new: RecordHead) -> Iterator[Note]:
    """What differs between two headers and should not."""
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
        elif name not in _CHANGES and not (name == b"content-type" and not new.has(name)):
            yield (
                _OWN_REASON.get(name, "field-changed" if new.has(name) else "field-lost"),
                (f"{name.decode('ascii', 'replace')} was {value[:200].decode('utf-8', 'replace')}"),
            )
    if (
        old.has(b"content-type")
        and not new.has(b"content-type")
        and new.get(b"content-length") != b"0"
    ):
        yield "field-lost", "its Content-Type"
    mine, theirs = read(old.get(b"warc-block-digest")), read(new.get(b"warc-block-digest"))
    if mine and theirs and mine.algorithm != theirs.algorithm:
        yield "digest-form", f"its block digest is {theirs.algorithm}, it was {mine.algorithm}"
    for (name, value), line in zip(new.fields, new.lines, strict=True):
        if not left[line]:
            continue
        shown = name.decode("ascii", "replace")
        if name not in _ADDED and not old.has(name):
            yield "field-added", shown
        elif line != _NAMES.get(name, line.partition(b":")[0]) + b": " + value + b"\r\n":
            yield "not-exact", f"its {shown} is spelled or closed in an unusual way"
        elif name == b"warc-block-digest" and not is_usual(value):
            yield "digest-form", "its block digest is spelled in an unusual way"


def _unlike(before: AnyRecord, after: AnyRecord) -> Iterator[Note]:
    """How a record that should have stayed differs; nothing if only its compression does."""
    if isinstance(before, CheckedRecord) and isinstance(after, CheckedRecord):
        for (name, value), line in zip(before.head.fields, before.head.lines, strict=True):
            if name in _OWN_REASON and line not in after.head.lines:
                shown = value[:200].decode("utf-8", "replace")
                yield _OWN_REASON[name], f"{name.decode('ascii')} was {shown}"
        same = before.head == after.head
        if not same or not _equal(before.pieces(), after.pieces()):
            what = "block" if same else "header"
            yield "record-changed", f"its {what} is not what it was"


def _behind(container: Container, offset: int) -> int:
    """Where to go on behind the record at `offset` of a gzip file, damaged or not."""
    try:
        return closed(container, *container.at(offset))
    except Broken:
        return container.behind(offset)


def _equal(one: Iterator[bytes], other: Iterator[bytes]) -> bool:
    """Whether two streams of pieces are the same bytes; stops at the first that are not."""
    mine = theirs = b""
    while True:
        mine, theirs = mine or next(one, b""), theirs or next(other, b"")
        size = min(len(mine), len(theirs))
        if mine[:size] != theirs[:size]:
            return False
        if not size:
            return mine == theirs
        mine, theirs = mine[size:], theirs[size:]


def closed(container: Container, record: AnyRecord, member: MemberReader | None) -> int:
    """Where the next record begins; raises `Broken` if this one is not whole, or not alone."""
    record.close()
    if member is None:
        return record.end
    if record.more:
        raise Broken("misframed", "another record follows in its gzip member")
    while member.piece():
        pass
    container.beginnings.add(member.end)
    return member.end


# Revisits taken one by one: the block that each stands for, put together as replay tools do.


class Sample:
    """Finds originals among archives by URL and date, wherever they are."""

    def __init__(self, folders: Iterable[Path], beside: Path) -> None:
        files = [path for folder in folders for path in archives_below(folder)]
        self._originals = OriginalsIndex(beside / "places.sqlite")
        self._originals.write(in_order(places, files, size_of(files)))

    def block(self, path: Path, offset: int) -> Iterator[bytes]:
        """The HTTP header of the revisit at `offset` and the body of the original that it names.

        Raises `Broken` if there is no revisit, or no such original.
        """
        try:
            with opened(path) as file, closing(Shelf(self._originals.find)) as shelf:
                record = Container(file).at(offset)[0]
                if not isinstance(record, CheckedRecord) or record.kind != b"revisit":
                    raise Broken("record-changed", "no revisit stands there")
                facts, message = examine(record, [])
                wanted = OriginalReference(
                    bare(facts.to_url) or facts.url, facts.to_date, facts.to_id
                )
                original = next(iter(shelf.take(wanted)), None)
                if original is None:
                    raise Broken("original-missing", "no full record of its URL and date is found")
                yield message.head if message else b""
                yield from original.body()
        except UnreadableFile as error:
            raise Broken("unreadable", str(error)) from error
