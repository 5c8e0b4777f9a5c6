"""Write the originals of an index as a sorted CDX or CDXJ file, as OutbackCDX and pywb load them.

Both have the columns ``N b a m s k r M S V g``, in the order of bytes (``LC_ALL=C sort``). What
the index does not know is ``-`` in a CDX and absent in CDXJ. Redirect (r) and robot flags (M) it
never knows, the size of the record (S) only if a row stated it.

A capture without a place, its file and offset, has no row: in a CDX the file name ``-`` means a
revisit, and OutbackCDX refuses a whole load with an offset ``-``.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from urllib.parse import quote

import orjson
from xxhash import xxh3_64_intdigest

from dedupindex.cache import MEGABYTE, Cache
from dedupindex.capture import Capture, Evidence
from dedupindex.counts import OnProgress, silent
from dedupindex.digest import CANONICAL, Digest, Spelling
from dedupindex.index.engine import View
from dedupindex.index.format.file_names import files_of
from dedupindex.lookup.render_json import stated_validators
from dedupindex.runtime.external_sort import sorted_lines
from dedupindex.runtime.progress import watched
from dedupindex.timestamps import digits_of_date
from dedupindex.urlkey import urlkey

HEADER = b" CDX N b a m s k r M S V g\n"
NO_PLACE = "no-place"
_NONE = b"-"
_BASE32 = (0, 1, 5)  # encodings of `Spelling`
_NOT_IN_COLUMN = re.compile(rb"[\x00-\x20\x7f]")
_CACHED = 16 * MEGABYTE  # of names of files, and what the index says of them
_PRINTABLE = "!\"#$%&'()*+,/:;<=>?@[]^`{|}~"  # besides letters, digits and "_.-~"


@dataclass(frozen=True)
class CdxForm:
    """What a row looks like."""

    json: bool = False  # CDXJ
    base32: bool = False  # every SHA-1, whatever its record states
    placeless: bool = False  # CDXJ: also rows of captures without a place


@dataclass
class CdxExport:
    """What was written, and what was left out, by reason; counted while lines are taken."""

    written: int = 0
    placeless: int = 0  # of them, without file and offset
    no_size: int = 0  # of them, without the size of the record
    not_base32: int = 0  # of them, whose digest is no SHA-1 in base32
    not_ascii: int = 0  # of them, whose URL or file name is not ASCII
    full_names: int = 0  # of them, with the file's full name, because another has its last part
    left_out: Counter[str] = field(default_factory=Counter)


def rows(
    view: View, form: CdxForm, exported: CdxExport, on_progress: OnProgress = silent
) -> Iterator[bytes]:
    """Yield the lines of the file, sorted; sorted runs are in temporary files."""
    if not form.json:
        yield HEADER
    captures = watched(view.captures(), "reading", view.counts().captures, on_progress)
    yield from sorted_lines(_unsorted(captures, _FileNames(view), form, exported))


def _unsorted(
    captures: Iterable[tuple[Digest, Capture]], names: _FileNames, form: CdxForm,
    exported: CdxExport,
) -> Iterator[bytes]:  # fmt: skip
    for digest, capture in captures:
        if digest != capture.digest:  # stored under a further digest, too
            continue
        name = names.of_place(capture)
        if reason := _unwritable_reason(capture, name, form):
            exported.left_out[reason] += 1
            continue
        text, is_base32 = _digest(capture, form)
        size = capture.size if capture.size_of_record else -1
        exported.written += 1
        exported.placeless += not name
        exported.no_size += size < 0
        exported.not_base32 += not is_base32
        exported.not_ascii += not (capture.url.isascii() and name.isascii())
        exported.full_names += "/" in name
        key = _column(urlkey(capture.url)), digits_of_date(capture.date)
        kind = _column(capture.mime), b"%d" % capture.status if capture.status else _NONE
        place = _number(size), _number(capture.offset) if name else _NONE
        if form.json:
            yield b"%b %b %b\n" % (*key, _json(capture, *kind, text, *place, name))
        else:
            written = name.encode("utf-8", "surrogateescape")
            columns = *key, capture.url, *kind, text.encode(), _NONE, _NONE, *place, written
            yield b" ".join(columns) + b"\n"


def _json(
    capture: Capture, mime: bytes, status: bytes, digest: str, size: bytes, offset: bytes, name: str
) -> bytes:
    """Return the object of a row; all values are text, as pywb writes them."""
    known = {
        "mime": mime.decode(),
        "status": status.decode(),
        "digest": digest,
        "length": size.decode(),
        "offset": offset.decode(),
        "filename": name or "-",
    }
    row = {"url": capture.url.decode()}
    row |= {key: value for key, value in known.items() if value != "-"}
    return orjson.dumps(row | stated_validators(capture))


class _FileNames:
    """The names of files as rows have them: without a directory, because replay tools add theirs.

    A name that several files of the index have, and that of a file in a WACZ, is written in full:
    replay must not open another file of that name.
    """

    def __init__(self, view: View) -> None:
        self._view = view
        self._shared = _shared_names(place.container for _, place in view.places())
        self._registered = Cache[str, bool](_CACHED)
        self._in_wacz = Cache[str, bool](_CACHED)

    def _is_registered(self, name: str) -> bool:
        known = self._registered.get(name)
        if known is None:
            known = self._registered.keep(name, self._view.container(name) is not None)
        return known

    def _is_in_wacz(self, name: str) -> bool:
        known = self._in_wacz.get(name)
        if known is None:
            known = any(map(self._is_registered, islice(files_of(name), 1, None)))
            self._in_wacz.keep(name, known)
        return known

    def _is_shared(self, last: str) -> bool:
        hashed = _hash(last)
        at = bisect_left(self._shared, hashed)
        return at < len(self._shared) and self._shared[at] == hashed

    def of_place(self, capture: Capture) -> str:
        """Return the name of a capture's file, "" if its place is not known."""
        name = capture.container
        if not name or capture.offset < 0:
            return ""
        if capture.evidence == Evidence.ROW and self._is_registered(name):
            return ""  # the row named no file: this is the file that it is in
        last = name.rpartition("/")[2]
        return name if self._is_shared(last) or self._is_in_wacz(name) else last


def _shared_names(names: Iterator[str]) -> array[int]:
    """Return the hashes, sorted, of file names that are in several directories.

    A colliding hash only makes a name full that need not be.
    """
    parts = (name.rpartition("/") for name in names)
    hashes = sorted_lines(
        b"%016x %016x\n" % (_hash(last), _hash(directory))
        for directory, slash, last in parts
        if slash
    )
    shared, before = array("Q"), (b"", b"")
    for line in hashes:
        last, _, directory = line.partition(b" ")
        if last == before[0] and directory != before[1]:
            shared.append(int(last, 16))
        before = last, directory
    return shared


def _hash(name: str) -> int:
    return xxh3_64_intdigest(name.encode("utf-8", "surrogateescape"))


def _unwritable_reason(capture: Capture, name: str, form: CdxForm) -> str:
    """Return why a capture has no row, "" if it has one."""
    if not name and not form.placeless:
        return NO_PLACE
    if form.json:
        for text in (capture.url, name.encode("utf-8", "surrogateescape")):
            try:
                text.decode()
            except UnicodeDecodeError:
                return "not-utf-8"
        return ""
    if _NOT_IN_COLUMN.search(capture.url):
        return "url-with-spaces"
    if _NOT_IN_COLUMN.search(name.encode("utf-8", "surrogateescape")):
        return "file-with-spaces"
    return ""


def _digest(capture: Capture, form: CdxForm) -> tuple[str, bool]:
    """Return a digest as its record states it, and whether it is a SHA-1 in base32.

    A SHA-1 has no label, as in every CDX; all others need one.
    """
    label, encoding = capture.spelling
    if capture.digest.algorithm != "sha1":
        return capture.digest.spelled(Spelling(label or CANONICAL.label, encoding)), False
    encoding = CANONICAL.encoding if form.base32 else encoding
    return capture.digest.spelled(Spelling(0, encoding)), encoding in _BASE32


def _column(value: bytes) -> bytes:
    """Return a value, percent-encoded where it would break the line, "-" if it is empty."""
    if value.isascii() and not _NOT_IN_COLUMN.search(value):
        return value or _NONE
    return quote(value, safe=_PRINTABLE).encode()


def _number(value: int) -> bytes:
    return b"%d" % value if value >= 0 else _NONE
