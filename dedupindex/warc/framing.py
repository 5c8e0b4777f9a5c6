"""Where WARC records begin and end in a stream: header, block, two line ends.

A record is believed only if something that may follow a record follows it: another one, or the
end. A wrong Content-Length so cannot shift the frame unnoticed (WARC 1.1 sections 4 and 6.1).
"""

from __future__ import annotations

import re
from typing import ClassVar, Protocol

from dedupindex.warc.gzip_members import SHORT, zeros_end
from dedupindex.warc.headers import (
    BLANK_LINE,
    LONGEST,
    BadHead,
    Form,
    Head,
    NoRecord,
    Values,
    form_of,
    parse,
)
from dedupindex.warc.record import (
    BARE,
    CUT,
    EXTRA,
    LOWER_CASE,
    MISSING,
    BrokenRecord,
    Record,
)
from dedupindex.warc.window import Cursor, Window

_LINE_ENDS = re.compile(rb"[\r\n]*")
_CLOSING = re.compile(rb"(?:\r?\n){0,2}")
_VERSION_LINE = re.compile(rb"WARC/[0-9]{1,4}\.[0-9]{1,4}[ \t]*\r?\n", re.IGNORECASE)
_LONGEST_VERSION = 32  # bytes
_FORMS_TRIED = 8
_OVERLAP = 16  # bytes; no match of `Framing.candidates` is longer
UNCLOSED = "a record is followed by neither line ends nor a record where its Content-Length ends"
ASTRAY = "a record is followed by something that is no record"


class Framing(Protocol):
    """What tells the records of a kind of file apart."""

    candidates: ClassVar[re.Pattern[bytes]]
    """Matches end where a record may begin in a plain file."""

    def record(self, cursor: Cursor, offset: int) -> Record:
        """The record at the cursor; raises `BadHead` or `BrokenRecord`."""

    def after(self, window: Window, offset: int) -> int:
        """Where the next record begins if one stands in full at `offset`, else -1.

        Nothing is tolerated here: this decides what is believed behind damage.
        """

    def stated_end(self, window: Window, offset: int) -> int:
        """Where the record at `offset`, broken as it is, says it ends; -1 if it does not say."""

    def form(self, data: bytes, at: int = 0) -> tuple[Form, re.Match[bytes]] | None:
        """A form that the record at `at` has, if records of this kind have forms."""


class WarcFraming:
    """WARC 0.17 to 1.2."""

    candidates: ClassVar[re.Pattern[bytes]] = re.compile(rb"\r\n\r\n(?=WARC/[0-9])")

    def __init__(self) -> None:
        self._forms: list[Form] = []  # the last used first

    def record(self, cursor: Cursor, offset: int) -> Record:
        """See `Framing.record`."""
        found = self.form(cursor.buffer, cursor.at)
        if found is not None:
            form, match = found
            values = match.group(*form.groups)
            record = _new_record(offset, form, values, match.end() - cursor.at)
            return _complete(cursor, record)
        head, size = _read_head(cursor)
        form_or_none = form_of(head, cursor.buffer[cursor.at : cursor.at + size])
        if form_or_none is not None and form_or_none not in self._forms:
            self._forms.insert(0, form_or_none)
            del self._forms[_FORMS_TRIED:]
        record = _new_record(offset, head, head.values, size)
        if not cursor.buffer.startswith(b"WARC", cursor.at):
            record.remark = LOWER_CASE
        elif not head.crlf:
            record.remark = BARE
        return _complete(cursor, record)

    def form(self, data: bytes, at: int = 0) -> tuple[Form, re.Match[bytes]] | None:
        """See `Framing.form`."""
        for index, form in enumerate(self._forms):
            match = form.match(data, at)
            if match is not None:
                if index:
                    self._forms.insert(0, self._forms.pop(index))
                return form, match
        return None

    def after(self, window: Window, offset: int) -> int:
        """See `Framing.after`."""
        try:
            head, size = _head_at(window, offset)
        except BadHead:
            return -1
        end = offset + size + head.length
        closing = window.read(end, 4)
        if closing == b"\r\n\r\n":
            end += 4
        elif not head.crlf and closing.startswith(b"\n\n"):
            end += 2
        else:
            return -1
        return window.size if zeros_end(window, end) == window.size else end

    def stated_end(self, window: Window, offset: int) -> int:
        """See `Framing.stated_end`."""
        try:
            head, size = _head_at(window, offset)
        except BadHead:
            return -1
        end = offset + size + head.length
        return skip_line_ends(window, end) if end <= window.size else -1


def _head_at(window: Window, offset: int) -> tuple[Head, int]:
    def piece() -> bytes:
        nonlocal offset
        data = window.read(offset, 1 << 14)
        offset += len(data)
        return data

    return _read_head(Cursor(piece))


def _new_record(offset: int, head: Form | Head, values: Values, size: int) -> Record:
    return Record(offset, 0, head.type, values, head.special, None, size, int(values[-1]))


def _complete(cursor: Cursor, record: Record) -> Record:
    """Hold a short record in full, leave a long one to be streamed."""
    whole = record.start + record.length
    if whole > SHORT:
        text = cursor.buffer[cursor.at : cursor.at + record.start]
        cursor.at += record.start
        record.stream(text, cursor, lambda record: close(cursor, record))
        return record
    if not cursor.hold(whole):
        raise BrokenRecord(CUT)
    record.data = cursor.buffer[cursor.at : cursor.at + whole]
    cursor.at += whole
    if wrong := close(cursor, record):
        raise BrokenRecord(wrong)
    return record


def _read_head(cursor: Cursor) -> tuple[Head, int]:
    """The header at the cursor, and its size with the blank line; raises `BadHead`."""
    if not cursor.hold(5) or cursor.buffer[cursor.at : cursor.at + 5].upper() != b"WARC/":
        raise NoRecord("no record begins where one should")
    while (blank := BLANK_LINE.search(cursor.buffer, cursor.at)) is None:
        if cursor.held > LONGEST:
            break
        if not cursor.hold(cursor.held + 1):
            raise BadHead("a record's header has no end")
    if blank is None or blank.end() - cursor.at > LONGEST:
        raise BadHead("a record's header is longer than a mebibyte")
    return parse(cursor.buffer[cursor.at : blank.start()]), blank.end() - cursor.at


def close(cursor: Cursor, record: Record) -> str:
    """Pass over the line ends behind a block; returns what is wrong there, or "".

    Two CRLF must stand there. A record with other line ends, too few or too many, is whole all the
    same, because Content-Length says where its block ends: it gets a remark. Where line ends are
    missing, only the end of the stream or a version line proves that the length is right.
    """
    if cursor.buffer.startswith(b"\r\n\r\nWARC/", cursor.at):  # as nearly always
        cursor.at += 4
        record.end = cursor.position
        return ""
    cursor.hold(4)
    closing = _CLOSING.match(cursor.buffer, cursor.at)
    assert closing is not None
    lines = closing[0].count(b"\n")
    cursor.at = closing.end()
    record.end = cursor.position
    extra = cursor.skip_line_ends()
    if lines < 2:
        record.remark = MISSING
    elif extra:
        record.remark = record.remark or EXTRA
    elif len(closing[0]) < 4:
        record.remark = record.remark or BARE
    if not cursor.hold(1):
        return "" if cursor.sound() else CUT
    if lines < 2:
        return "" if _version_follows(cursor) else UNCLOSED
    cursor.hold(5)
    start = cursor.buffer[cursor.at : cursor.at + 5].upper()
    return "" if start == b"WARC/" or start[:1] in b"\0\x1f" else ASTRAY


def _version_follows(cursor: Cursor) -> bool:
    cursor.hold(_LONGEST_VERSION)
    return _VERSION_LINE.match(cursor.buffer, cursor.at) is not None


def skip_line_ends(window: Window, offset: int) -> int:
    """Where the line ends that may stand at `offset` stop."""
    while feed := window.read(offset, 64):
        match = _LINE_ENDS.match(feed)
        assert match is not None
        offset += match.end()
        if match.end() < len(feed):
            break
    return offset


def next_framed(window: Window, framing: Framing, broken: int) -> int:
    """The first position behind the record at `broken` from which records run to the end.

    The size of the file if there is none; see `recovery.next_sound`, which is alike. What a broken
    record itself states as its end is tried first: if the file ends there too, nothing in it can
    be a record. A WARC file that is its payload does not pass for records, because it has its own
    line ends before those of the record that holds it.
    """
    stated = framing.stated_end(window, broken)
    if stated >= 0 and _break_of_chain(window, framing, stated) >= window.size:
        return stated
    offset = broken + 1
    while (candidate := _find(window, framing, offset)) < window.size:
        end = _break_of_chain(window, framing, candidate)
        if end >= window.size:
            return candidate
        offset = max(end, candidate + 1)
    return window.size


def _break_of_chain(window: Window, framing: Framing, offset: int) -> int:
    """Where the records that begin at `offset` break off; the size of the file if they do not."""
    while offset < window.size:
        following = framing.after(window, offset)
        if following < 0:
            break
        offset = following
    return offset


def _find(window: Window, framing: Framing, offset: int) -> int:
    base = max(offset - _OVERLAP, 0)
    while feed := window.read(base, 1 << 20):
        for match in framing.candidates.finditer(feed):
            if base + match.end() >= offset:
                return base + match.end()
        if base + len(feed) >= window.size:
            break
        base += len(feed) - _OVERLAP
    return window.size
