"""Compare a rewritten file with the file it was made from: nothing may be lost.

Equal bytes are not parsed: from offsets where members begin in both files, equal bytes are equal
members. At a difference, the beginning of its member is searched backwards and proven
(`file_bytes.Beginnings`), and its record is compared with the one in the other file. No map of
offsets is needed, and none is trusted. Of a record that became a revisit, the HTTP header in the
revisit and the body of its original, read from their files, must give the old block bit for bit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from itertools import chain, islice
from typing import NamedTuple

from dedupindex.verify import revisits
from dedupindex.verify.block_facts import (
    Facts,
    examine,
    is_standard_spelling,
    open_body,
    read_digest,
)
from dedupindex.verify.file_bytes import (
    MAGIC,
    Joined,
    Place,
    UnreadableFile,
    candidates,
    common,
    opened,
)
from dedupindex.verify.issues import Broken, Finding, Issue
from dedupindex.verify.locate_originals import (
    FindOriginal,
    OriginalReader,
    UnusableOriginal,
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
REBUILT = "revisits_rebuilt"  # of counts: the old block came out again, bit for bit
IN_FULL = "revisits_in_full"  # revisits of the file before that are whole records now
_MAX_CANDIDATES = 64  # offsets tried as the beginning of the differing member
_MAX_AHEAD = 64  # records of each file that are searched for the next common one


def verify_pair(
    old: Place | Joined,
    new: Place,
    find_original: FindOriginal,
    members: Iterable[tuple[int, int]] = (),
    part: ComparedPart | None = None,
    counts: Counter[str] | None = None,
) -> Iterator[Finding]:
    """Compare `new` with `old`, whose copy it should be but for records that became revisits.

    `members` are offsets and ends of some members of `old`, known by reading the file from its
    beginning. Without them they are proven here, which takes longer. With a `part`, only that is
    compared: if nothing but remarks is found in parts that follow each other from the beginnings
    to the ends of both files, the same is found in the whole files. `counts` gets how many records
    were rebuilt from a revisit (`REBUILT`).
    """
    # Each difference leads back to the beginning of its record.
    with opened(old, scattered=True) as before, opened(new, scattered=True) as after:
        container, other = Container(before), Container(after)
        for offset, end in members:
            container.beginnings.learn(offset, end)
        with closing(OriginalReader(find_original)) as originals:
            pair = _Pair(container, other, originals, Counter() if counts is None else counts)
            if part is not None:
                pair.restrict(part)
            yield from pair.findings()


class ComparedPart(NamedTuple):
    """Ranges of two files, the bytes of the one to be compared with those of the other.

    They may be wrong: that leads to findings, since a comparison must end with both ranges.
    """

    old: range  # begins at the beginning of the file, or at one of the known members
    new: range
    last: bool  # it reaches to the ends of both files, wherever these are


class _Pair:
    def __init__(
        self, old: Container, new: Container, originals: OriginalReader, counts: Counter[str]
    ) -> None:
        self._old, self._new, self._originals, self._counts = old, new, originals, counts
        self._at, self._there = 0, 0  # where records begin in the old and the new file

    def restrict(self, part: ComparedPart) -> None:
        """Compare only a part; raises `UnreadableFile` if a file ends before it."""
        self._at, self._there = part.old.start, part.new.start
        for container, place in ((self._old, part.old), (self._new, part.new)):
            if place.start > container.file.size:
                raise UnreadableFile("it is shorter than it should be")
            if not part.last:
                container.file.end_at(place.stop)

    def findings(self) -> Iterator[Finding]:
        old, new = self._old, self._new
        while True:
            length = common(old.file, self._at, new.file, self._there)
            if self._at + length == old.file.size and self._there + length == new.file.size:
                return
            if old.kind != new.kind or not old.kind.startswith("warc"):
                kind = old.kind or "no archive"
                message = f"it differs from {old.name} ({kind}), which is never rewritten"
                yield new.finding("bytes-changed", self._there + length, message)
                return
            begin = self._beginning(length)
            self._at, self._there = self._at + begin, self._there + begin
            end = _end_of(self._old, self._at)
            if self._at < end <= self._at + length - begin:  # damage after the record differs
                self._at, self._there = end, self._there + end - self._at
            elif not (yield from self._differing()):
                return

    def _beginning(self, length: int) -> int:
        """How far on the record begins that holds the first difference, `length` bytes on."""
        position, stop = self._at, self._at + length
        if self._old.kind == "warc.gz":
            beginnings, file = self._old.beginnings, self._old.file
            beginnings.add(position)
            offsets = chain([stop], candidates(file, position, stop))
            for offset in islice(offsets, _MAX_CANDIDATES):
                # The bytes before are equal, so what begins in one file begins in the other.
                if file.read(offset, len(MAGIC)) == MAGIC and beginnings.certain(offset):
                    return offset - position
        while position < stop:  # follow the records, or frames
            end = _end_of(self._old, position)
            if not position < end <= stop:
                break
            position = end
        return position - self._at

    def _differing(self) -> Generator[Finding, None, bool]:
        """Compare the records that begin here in both files; returns whether to go on."""
        if (yield from self._skippable()):
            return True
        try:
            mine, theirs = self._old.at(self._at), self._new.at(self._there)
        except Broken:  # damaged, or the end of a file
            return (yield from self._at_an_end())
        same_url = mine.url == theirs.url
        if mine.record_id == theirs.record_id and (mine.record_id or same_url):
            return (yield from self._compare(mine, theirs))
        olds, news = self._ahead(self._old, self._at), self._ahead(self._new, self._there)
        skipped = _first_common(olds, news)
        if skipped is None and not same_url:
            skipped = 1, 1
        if skipped is None or not (olds or news) or (skipped[0] == skipped[1] and same_url):
            return (yield from self._compare(mine, theirs))
        yield from self._skip(olds[: skipped[0]], news[: skipped[1]])
        return True

    def _skippable(self) -> Generator[Finding, None, bool]:
        """Report skippable frames (of a dictionary) that differ; returns whether there are any."""
        at, there = self._at, self._there
        try:
            self._at = self._old.beginnings.skipped(at)
            self._there = self._new.beginnings.skipped(there)
        except Broken:
            return False
        if (self._at, self._there) == (at, there):
            return False
        message = "its skippable frames (the dictionary) are not what they were"
        yield self._new.finding("bytes-changed", there, message)
        return True

    def _at_an_end(self) -> Generator[Finding, None, bool]:
        """Report what only one of the files has, if the other ends or cannot be read on."""
        old, new = self._old, self._new
        if self._at < old.file.size and self._there < new.file.size:
            return (yield from self._compare())
        olds, news = self._ahead(old, self._at), self._ahead(new, self._there)
        yield from self._skip(olds, news)
        if not olds and not news:
            rest = old.file.size - self._at + new.file.size - self._there
            message = f"{rest:,} bytes that are no record are there in only one of the files"
            yield new.finding("bytes-changed", self._there, message)
        return bool(olds or news)

    def _skip(self, olds: list[_RecordRange], news: list[_RecordRange]) -> Iterator[Finding]:
        """Report records that only one of the files has, and go on after them."""
        for record in olds:
            message = f"the record at {record.offset} of {self._old.name} is not here"
            yield self._new.finding("record-missing", self._there, message, record.record_id)
            self._at = record.end
        for record in news:
            message = "the file before has no such record here"
            yield self._new.finding("record-extra", record.offset, message, record.record_id)
            self._there = record.end

    def _ahead(self, container: Container, offset: int) -> list[_RecordRange]:
        """The next records from `offset` on, as far as they can be read."""
        found: list[_RecordRange] = []
        while offset < container.file.size and len(found) < _MAX_AHEAD:
            try:
                record = container.at(offset)
                end = container.end_of(record)
            except Broken:
                break
            found.append(_RecordRange(offset, end, record.record_id))
            offset = end
        return found

    def _compare(
        self, before: AnyRecord | None = None, after: AnyRecord | None = None
    ) -> Generator[Finding, None, bool]:
        """Compare the records that begin here, perhaps opened; returns whether to go on."""
        at, there = self._at, self._there
        try:
            before, after = before or self._old.at(at), after or self._new.at(there)
            issues: list[Issue] = []
            if after.kind == b"revisit" and before.kind != b"revisit":
                issues.extend(self._revisit(before, after, at))
            else:
                if before.kind == b"revisit" and after.kind != b"revisit":
                    self._counts[IN_FULL] += 1
                issues.extend(_differences(before, after))
                if not issues:
                    issues.append(("recompressed", "its record is as it was, its bytes are not"))
            self._at, self._there = self._old.end_of(before), self._new.end_of(after)
            if after.kind == b"revisit" and self._there - there >= self._at - at:
                issues.append(("larger", "the revisit takes no less room than the record did"))
        except Broken as broken:
            damage, resumable = self._damage(at), self._old.zipped
            if damage:
                message = f"it differs from {self._old.name} where that is damaged: {damage}"
                yield self._new.finding("bytes-changed", there, message)
            else:
                rest = "" if resumable else "; nothing after it in this file was compared"
                yield self._new.finding(broken.reason, there, f"{broken}{rest}")
            if resumable:
                self._at = _end_or_resume(self._old, at)
                self._there = _end_or_resume(self._new, there)
            return resumable
        for reason, message in issues:
            yield self._new.finding(reason, there, message, after.record_id)
        return True

    def _damage(self, at: int) -> str:
        """What is wrong with the old record; "" if it is sound."""
        try:
            self._old.end_of(self._old.at(at))
        except Broken as broken:
            return str(broken)
        return ""

    def _revisit(self, before: AnyRecord, after: AnyRecord, at: int) -> Iterator[Issue]:
        assert isinstance(before, CheckedRecord) and isinstance(after, CheckedRecord)
        yield from _header_differences(before.head, after.head)
        if before.kind != b"response":
            kind = before.kind.decode("ascii", "replace")
            yield "invalid-replacement", f"it was of the type {kind}, which is never replaced"
        issues: list[Issue] = []
        facts, new_http = examine(after, issues)
        issues.extend(revisits.own_issues(after, facts))
        issues.extend(revisits.http_issues(new_http, facts))
        yield from issues
        old_http, body = open_body(before)
        heads = [message.head if message else b"" for message in (old_http, new_http)]
        if facts.length or heads[0] != heads[1]:
            yield "headers-changed", "its block is not the HTTP header that was stored"
        yield from self._rebuilt(facts, body, at)

    def _rebuilt(self, facts: Facts, body: Iterator[bytes], at: int) -> Iterator[Issue]:
        """Compare the body of the old record at `at` with those of the originals of a revisit."""
        wanted = reference(facts)
        url, date = (text.decode("utf-8", "replace") for text in (wanted.url, wanted.date))
        found = (
            "original-missing",
            f"no full record of the URL, date and id that it names is found: {url} of {date}",
        )
        unusable: UnusableOriginal | None = None
        for number, original in enumerate(self._originals.read(wanted)):
            if number:  # read the old record again
                _, body = open_body(self._old.at(at))
            try:
                if not equal_pieces(body, original.body()):
                    found = (
                        "not-rebuilt",
                        f"its original, {original.place}, has another body than the one that was "
                        "stored",
                    )
                    continue
                issues = list(revisits.original_issues(facts, original.facts()))
            except UnusableOriginal as error:  # a copy of it may be sound
                unusable = unusable or error
                continue
            self._counts[REBUILT] += 1
            # The claimed length was above the same body before.
            for reason, message in issues:
                if reason != "claimed-length":
                    yield reason, f"{message} ({original.place})"
            return
        yield (unusable.reason, str(unusable)) if unusable else found


class _RecordRange(NamedTuple):
    offset: int
    end: int
    record_id: bytes


def _first_common(olds: list[_RecordRange], news: list[_RecordRange]) -> tuple[int, int] | None:
    """The fewest records to skip in each file until both have the same one; None if never."""
    numbers = {record.record_id: number for number, record in reversed(list(enumerate(olds)))}
    found = [
        (numbers[record.record_id], number)
        for number, record in enumerate(news)
        if record.record_id and record.record_id in numbers
    ]
    return min(found, key=sum, default=None)


def _end_of(container: Container, offset: int) -> int:
    """The end of the member at `offset`, or record in an uncompressed file; -1 if uncertain.

    Of a zstd frame, it is the end that its blocks state: it need not be sound.
    """
    try:
        if container.zipped:
            return container.beginnings.end(offset)
        record = container.at(offset)
        if not isinstance(record, CheckedRecord):
            return -1
        end = offset + record.head_size + record.length
        if container.file.read(end, 4) == b"\r\n\r\n":
            return end + 4
        return container.end_of(record)
    except Broken:
        return -1


def _header_differences(old: RecordHead, new: RecordHead) -> Iterator[Issue]:
    """Yield what differs between the headers of a record and its revisit, but should not."""
    if old.version != new.version:
        yield "version-changed", f"it was of {old.version.decode('ascii', 'replace')}"
    if old.has(b"warc-truncated") or old.has(b"warc-segment-number"):
        yield "invalid-replacement", "it was truncated or a segment, which is never replaced"
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


def _differences(before: AnyRecord, after: AnyRecord) -> Iterator[Issue]:
    """Yield how a record that should be the same differs; nothing if only its compression does."""
    if isinstance(before, CheckedRecord) and isinstance(after, CheckedRecord):
        for (name, value), line in zip(before.head.fields, before.head.lines, strict=True):
            if name in _CHANGE_REASONS and line not in after.head.lines:
                yield _CHANGE_REASONS[name], _was(name, value)
        same = before.head == after.head
        if not same or not equal_pieces(before.pieces(), after.pieces()):
            what = "block" if same else "header"
            yield "record-changed", f"its {what} is not what it was"


def _end_or_resume(container: Container, offset: int) -> int:
    """Where to resume after the record at `offset` of a gzip file, damaged or not."""
    try:
        return container.end_of(container.at(offset))
    except Broken:
        return container.resume(offset)


def equal_pieces(one: Iterator[bytes], other: Iterator[bytes]) -> bool:
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
