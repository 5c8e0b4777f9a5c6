"""Parse WARC headers (WARC 1.1 section 4), leniently as to how they are spelled.

Within a file thousands of headers have the same fields in the same order. A `Form` is a compiled
expression of such an order, which parses a header in 0.7 µs where a loop over its lines takes 4. It
names every field once, so no header that matches repeats one.

Some programs (gowarc, with which Zeno writes) write the fields of each header in an order of its
own. `in_any_order` reads these.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

VERSIONS = frozenset(b"WARC/" + number for number in (b"0.17", b"0.18", b"1.0", b"1.1", b"1.2"))
LONGEST = 1 << 20  # bytes of a header

TYPE, LENGTH, CONCURRENT = b"WARC-Type", b"Content-Length", b"WARC-Concurrent-To"
COMMON = (
    b"WARC-Target-URI",
    b"WARC-Date",
    b"WARC-Record-ID",
    b"Content-Type",
    b"WARC-Payload-Digest",
    CONCURRENT,
    LENGTH,
)
"""The fields that `Head.values` holds, in this order; empty where the record has none."""

_SPECIAL = frozenset((b"WARC-Segment-Number", b"WARC-Truncated"))
_KNOWN = {
    name.lower(): name
    for name in (
        *COMMON,
        *_SPECIAL,
        TYPE,
        b"WARC-Block-Digest",
        b"WARC-Profile",
        b"WARC-Refers-To",
        b"WARC-Refers-To-Target-URI",
        b"WARC-Refers-To-Date",
    )
}
_SINGLE = frozenset(_KNOWN.values()) - {CONCURRENT}

BLANK_LINE = re.compile(rb"\r?\n\r?\n")
_SPACE = b" \t\r"
_DIGITS = 18  # of a Content-Length, at most
_NUMBER = re.compile(rb"[0-9]{1,%d}" % _DIGITS)
_VERSION = re.compile(rb"WARC/[0-9]+\.[0-9]+", re.IGNORECASE)
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_MIN_REPEATS = 4  # of an order: compiling a form costs as much as parsing 200 headers
_MAX_FORMS = 1024
_LONGEST_FORM = 4096  # bytes of a header that may have one

Values = tuple[bytes, ...]
Match = Callable[..., re.Match[bytes] | None]


class BadHead(Exception):
    """Bytes that are not a WARC header, or a header without the length of its record."""


class NoRecord(BadHead):
    """Bytes that are not the beginning of a record."""


class Head(NamedTuple):
    """A parsed header. Names are spelled as in the standard, values are stripped."""

    version: bytes
    type: bytes
    fields: dict[bytes, bytes]  # a repeated WARC-Concurrent-To is joined by spaces
    repeated: tuple[bytes, ...]  # single-valued fields that occur more than once
    length: int  # Content-Length
    crlf: bool  # False: some line ends with a bare line feed
    pairs: list[tuple[bytes, bytes]]  # all fields in order

    @property
    def values(self) -> Values:
        return tuple([self.fields.get(name, b"") for name in COMMON])

    @property
    def special(self) -> bool:
        """Whether fields other than the common ones matter, or the version is unknown."""
        return (
            bool(self.repeated)
            or self.version not in VERSIONS
            or not _SPECIAL.isdisjoint(self.fields)
        )


def parse(text: bytes) -> Head:
    """Parse a header from its version line on, without the blank line; raises `BadHead`."""
    first, _, rest = text.partition(b"\n")
    version = first.rstrip(_SPACE)
    if _VERSION.fullmatch(version) is None:
        raise BadHead("does not begin with a WARC version line")
    pairs = field_pairs(rest)
    fields: dict[bytes, bytes] = {}
    repeated = []
    for name, value in pairs:
        name = _KNOWN.get(name.lower(), name)
        if name not in fields:
            fields[name] = value
        elif name == CONCURRENT:
            fields[name] += b" " + value
        elif name in _SINGLE:
            repeated.append(name)
    length = fields.get(LENGTH)
    if length is None or LENGTH in repeated or _NUMBER.fullmatch(length) is None:
        how = "has no" if length is None else "has not one whole number as"
        raise BadHead(f"{how} Content-Length")
    return Head(
        version.upper(),
        fields.get(TYPE, b"").lower(),
        fields,
        tuple(repeated),
        int(length),
        text.count(b"\n") == text.count(b"\r\n"),
        pairs,
    )


def field_pairs(text: bytes) -> list[tuple[bytes, bytes]]:
    """Return names and values, folded lines joined by one space; other lines are ignored."""
    pairs: list[tuple[bytes, bytes]] = []
    for line in text.split(b"\n"):
        if line[:1] in (b" ", b"\t"):
            if pairs:
                name, value = pairs[-1]
                pairs[-1] = name, (value + b" " + line.strip(_SPACE)).strip(_SPACE)
            continue
        name, colon, value = line.partition(b":")
        if colon:
            pairs.append((name.strip(_SPACE), value.strip(_SPACE)))
    return pairs


class Form:
    """An order of fields; `match` captures `COMMON` in the groups of `groups`.

    `request` matches the same headers but captures only Content-Length, in half the time; it is
    None unless the record is a request that is not `special`.
    """

    __slots__ = ("groups", "match", "next", "request", "response", "special", "type")

    def __init__(self, head: Head) -> None:
        self.type = head.type
        self.special = head.special
        self.response = head.type == b"response" and not head.special
        self.next = self  # the form that followed last time
        names = [name for name, _ in head.pairs if name in COMMON]
        self.groups = tuple(
            [names.index(name) + 1 if name in names else len(names) + 1 for name in COMMON]
        )
        self.match = _compiled(head, COMMON)
        self.request: Match | None = None
        if head.type == b"request" and not head.special:
            self.request = _compiled(head, (LENGTH,))


def _compiled(head: Head, wanted: tuple[bytes, ...]) -> Match:
    """Compile a matcher of headers with the fields of `head` that captures `wanted` values.

    It matches no folded lines, because each line must begin with its name.
    """
    parts = [re.escape(head.version) + rb"\r\n"]
    for name, value in head.pairs:
        parts.append(re.escape(name + b": "))
        if name == LENGTH:
            parts.append(rb"(\d{1,18})")
        elif name in wanted:
            parts.append(rb"(?![ \t])(.*)(?<![ \t\r])")
        else:
            parts.append(re.escape(value) if name == TYPE else rb".*")
        parts.append(rb"\r\n")
    parts.append(rb"\r\n()")
    return re.compile(b"".join(parts)).match


NO_FORM = Form(Head(b"", b"", {}, (), 0, True, [(b"", b"")]))
"""A form that matches no record, from which a reader starts."""

_forms: dict[tuple[bytes, ...], Form | int | None] = {}


def form_of(head: Head, text: bytes) -> Form | None:
    """Return the form of a header; None if it has none, or none yet. `text` has the blank line."""
    if len(text) > _LONGEST_FORM:
        return None
    key = (head.version, head.type, *[name for name, _ in head.pairs])
    form = _forms.get(key, 0)
    if isinstance(form, int):
        if len(_forms) >= _MAX_FORMS:
            _forms.clear()
        form = _forms[key] = form + 1 if form < _MIN_REPEATS else _new_form(head)
    if isinstance(form, Form) and form.match(text) is not None:
        return form
    return None


def _new_form(head: Head) -> Form | None:
    """Return a form; None if a field is repeated or spelled unusually."""
    names = {name.lower(): name for name, _ in head.pairs}
    regular = len(names) == len(head.pairs) and all(map(_is_regular, names.values()))
    return Form(head) if regular else None


class FieldSet(NamedTuple):
    """What records are whose headers have the same fields; see `Form`."""

    type: bytes
    special: bool
    response: bool
    request: bool


_field_sets: dict[tuple[bytes, bytes | None, frozenset[bytes]], FieldSet | None] = {}


def in_any_order(data: bytes) -> tuple[FieldSet, Values, int] | None:
    """Return the kind of a record, the values of `COMMON`, and where its block begins.

    None unless each line of its header is ``Name: value``, no name occurs twice, and names are
    spelled as in the standard. `parse` returns the same.
    """
    end = data.find(b"\r\n\r\n", 0, _LONGEST_FORM)
    if end < 0:
        return None
    lines = data[:end].split(b"\r\n")
    if data.count(b"\n", 0, end) != len(lines) - 1:
        return None
    try:
        fields = dict([line.split(b": ", 1) for line in lines[1:]])
    except ValueError:
        return None
    key = lines[0], fields.get(TYPE), frozenset(fields)
    if key not in _field_sets:
        if len(_field_sets) >= _MAX_FORMS:
            _field_sets.clear()
        _field_sets[key] = _field_set(*key)
    found = _field_sets[key]
    if found is None or len(fields) != len(lines) - 1:
        return None
    values = tuple([fields.get(name, b"").strip(_SPACE) for name in COMMON])
    if not values[-1].isdigit() or len(values[-1]) > _DIGITS:
        return None
    return found, values, end + 4


def _field_set(version: bytes, kind: bytes | None, names: frozenset[bytes]) -> FieldSet | None:
    """Return the field set of a header; None if its version or a name is unusual."""
    if version not in VERSIONS or not all(map(_is_regular, names)):
        return None
    special = not _SPECIAL.isdisjoint(names)
    kind = (kind or b"").strip(_SPACE).lower()
    response, request = (not special and kind == one for one in (b"response", b"request"))
    return FieldSet(kind, special, response, request)


def _is_regular(name: bytes) -> bool:
    """Whether a name is a token, and spelled as in the standard if it has the field."""
    return _TOKEN.fullmatch(name) is not None and _KNOWN.get(name.lower(), name) == name
