"""Find where WARC records begin and end: header, block, two line ends.

A record is accepted only if another record or the end of the file follows it, so that a wrong
Content-Length is noticed (WARC 1.1 sections 4 and 6.1).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import ClassVar, Protocol

from dedupindex.warc.gzip_members import SHORT, chain_end, first_chain, zeros_end
from dedupindex.warc.headers import (
    BLANK_LINE,
    LONGEST,
    BadHead,
    FieldSet,
    Form,
    Head,
    NoRecord,
    Values,
    form_of,
    in_any_order,
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
from dedupindex.warc.window import Cursor, Window, cursor_at
from dedupindex.warc.zstd_format import is_zstd

_LINE_ENDS = re.compile(rb"[\r\n]*")
_CLOSING = re.compile(rb"(?:\r?\n){0,2}")
_VERSION_LINE = re.compile(rb"WARC/[0-9]{1,4}\.[0-9]{1,4}[ \t]*\r?\n", re.IGNORECASE)
_LONGEST_VERSION = 32  # bytes
_CONTENT_LENGTH = re.compile(rb"\nContent-Length: ([0-9]{1,18})\r?\n")
_END = b"\r\n\r\n"
_FORMS_TRIED = 8
_OVERLAP = 16  # bytes; no match of `Framing.candidates` is longer
UNCLOSED = "a record is followed by neither line ends nor a record where its Content-Length ends"
ASTRAY = "a record is followed by something that is not a record"


class Framing(Protocol):
    """How the records of a kind of file are found."""

    candidates: ClassVar[re.Pattern[bytes]]
    """Matches end where a record may begin in a plain file."""

    def record(self, cursor: Cursor, offset: int) -> Record:
        """Return the record at the cursor; raises `BadHead` or `BrokenRecord`."""

    def after(self, window: Window, offset: int) -> int:
        """Return where the next record begins if one is complete at `offset`, else -1.

        This is strict, because it decides where reading resumes after damage.
        """

    def stated_end(self, window: Window, offset: int) -> int:
        """Return the end that the broken record at `offset` states, -1 if it states none."""

    def form(self, data: bytes, at: int = 0) -> tuple[Form, re.Match[bytes]] | None:
        """Return the form of the record at `at`, and its match; None if it has none."""
        return None

    def in_any_order(self, data: bytes) -> tuple[FieldSet, Values, int] | None:
        """See `headers.in_any_order`; None if headers are not WARC's."""
        return None

    def record_length(self, start: bytes) -> int:
        """Return where the block of the record that begins `start` ends.

        0 if it cannot be told, -1 if more bytes are needed.
        """
        return 0


class WarcFraming(Framing):
    """WARC 0.17 to 1.2."""

    candidates: ClassVar[re.Pattern[bytes]] = re.compile(rb"\r\n\r\n(?=WARC/[0-9])")

    def __init__(self) -> None:
        self._forms: list[Form] = []  # the last used first

    def record(self, cursor: Cursor, offset: int) -> Record:
        found = self.form(cursor.buffer, cursor.at)
        if found is not None:
            form, match = found
            values = match.group(*form.groups)
            record = _new_record(offset, form, values, match.end() - cursor.at)
            return complete(cursor, record, close)
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
        return complete(cursor, record, close)

    def form(self, data: bytes, at: int = 0) -> tuple[Form, re.Match[bytes]] | None:
        for index, form in enumerate(self._forms):
            match = form.match(data, at)
            if match is not None:
                if index:
                    self._forms.insert(0, self._forms.pop(index))
                return form, match
        return None

    def in_any_order(self, data: bytes) -> tuple[FieldSet, Values, int] | None:
        return in_any_order(data)

    def record_length(self, start: bytes) -> int:
        begin = len(start) - len(start.lstrip(b"\r\n"))
        blank = BLANK_LINE.search(start, begin)
        if blank is None:
            version = start[begin : begin + 5].upper()
            begins = version != b"" and b"WARC/".startswith(version)
            return -1 if begins and len(start) <= LONGEST else 0
        stated = _CONTENT_LENGTH.search(start, begin, blank.start() + 2)
        if stated is not None and blank.end() + int(stated[1]) + len(_END) == len(start):
            return len(start) - len(_END)  # nearly always
        try:
            head = parse(start[begin : blank.start()])
        except BadHead:
            return 0
        return blank.end() + head.length

    def after(self, window: Window, offset: int) -> int:
        head, end = _head_and_end(window, offset)
        if head is None:
            return -1
        closing = window.read(end, 4)
        if closing == b"\r\n\r\n":
            end += 4
        elif not head.crlf and closing.startswith(b"\n\n"):
            end += 2
        else:
            return -1
        return window.size if zeros_end(window, end) == window.size else end

    def stated_end(self, window: Window, offset: int) -> int:
        _, end = _head_and_end(window, offset)
        return skip_line_ends(window, end) if 0 <= end <= window.size else -1


def _head_and_end(window: Window, offset: int) -> tuple[Head | None, int]:
    """Return the header at `offset` and where its block ends; None and -1 if there is none."""
    try:
        head, size = _read_head(cursor_at(window, offset))
    except BadHead:
        return None, -1
    return head, offset + size + head.length


def _new_record(offset: int, head: Form | Head, values: Values, size: int) -> Record:
    return Record(offset, 0, head.type, values, head.special, None, size, int(values[-1]))


def complete(cursor: Cursor, record: Record, close: Callable[[Cursor, Record], str]) -> Record:
    """Read a short record; prepare a long one to be streamed.

    `close` reads the line ends after the block. Raises `BrokenRecord`.
    """
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
    """Return the header at the cursor, and its size with the blank line; raises `BadHead`."""
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
    """Skip the line ends after a block; return what is wrong there, or "".

    They should be two CRLF. Other line ends, too few or too many, are a remark, because
    Content-Length tells where the block ends. If line ends are missing, only the end of the stream
    or a version line proves that the length is right.
    """
    if cursor.buffer.startswith(b"\r\n\r\nWARC/", cursor.at):  # nearly always
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
    cursor.hold(_LONGEST_VERSION)
    if lines < 2:
        return "" if _VERSION_LINE.match(cursor.buffer, cursor.at) else UNCLOSED
    start = cursor.buffer[cursor.at : cursor.at + 5].upper()
    expected = start == b"WARC/" or start[:1] in b"\0\x1f" or is_zstd(start)
    return "" if expected else ASTRAY


def skip_line_ends(window: Window, offset: int) -> int:
    """Return the position after any line ends at `offset`."""
    while feed := window.read(offset, 64):
        match = _LINE_ENDS.match(feed)
        assert match is not None
        offset += match.end()
        if match.end() < len(feed):
            break
    return offset


def next_framed(window: Window, framing: Framing, broken: int) -> int:
    """Return the first position after the record at `broken` from which records run to the end.

    The size of the file if there is none. The end that the broken record states is tried first: if
    the file ends there, nothing in the record can be another one. A WARC file in its payload is
    not mistaken for records, because its line ends come before those of the enclosing record.
    """
    after = partial(framing.after, window)
    stated = framing.stated_end(window, broken)
    if stated >= 0 and chain_end(window, stated, after) >= window.size:
        return stated
    return first_chain(window, broken + 1, partial(_find, window, framing), after)


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
