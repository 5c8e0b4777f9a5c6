"""CDX and CDXJ files as DuckDB reads them: SQL for their lines, whole or refused.

Letters of a CDX header say which column holds what (`sources.cdxlayout`). A line that has not the
columns it should have, no URL or no time is refused, and counted: it comes with ``good`` false, or
DuckDB notes it among its rejects.
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple

from dedupindex.capture import Problem
from dedupindex.corpus.capture_list import KINDS, Revisits, SourceContext, looked_at
from dedupindex.corpus.row import COLUMNS
from dedupindex.errors import BadSource
from dedupindex.object_store import RemoteFile, is_remote
from dedupindex.runtime.duckdb import literal, quoted, refusal
from dedupindex.sources import expand
from dedupindex.sources.cdx_columns import NO_HEADER, Layout, guess, header, layout_of
from dedupindex.sources.line_source import GZIP, gunzip, inflated, parted

LONGEST = 1 << 21  # bytes of a line
_LOOK = 1 << 16  # bytes of a file in which mostly a line ends
_BARE = "\x1f"  # stands in no line, and so parts none
_NO_NULL = "\x01"
_WITH_ORIGINAL = 14  # columns of a CDX whose last three say where a revisit's payload is
_CDX = {  # letter -> our column
    "N": "surt", "b": "timestamp", "a": "url", "m": "mime", "s": "status", "k": "digest",
    "r": "redirect", "M": "meta", "S": "length", "V": "offset", "g": "container",
}  # fmt: skip
_CDXJ = {  # our column -> where the JSON has it
    "url": "url", "mime": "mime", "status": "status", "digest": "digest", "redirect": "redirect",
    "length": "length", "offset": "offset", "container": "filename",
    "at_length": '"orig.length"', "at_offset": '"orig.offset"', "at_container": '"orig.filename"',
}  # fmt: skip
_NO_CAPTURE = (b"!", b"@alias ")  # what lines of a CDXJ begin with that say something else
_NUMBERS = ("status", "length", "offset", "at_length", "at_offset")


class CdxFile(NamedTuple):
    """A file of lines."""

    path: Path
    kind: str  # cdx or cdxj
    head: bytes  # how it begins
    beside: str  # see `captures.COLUMNS`
    has_longer: bool | None = None  # lines than `LONGEST`, of a gzip file


def file_of(path: Path, kind: str, head: bytes, beside: str, spare: Path) -> CdxFile:
    """A file as DuckDB can read it.

    DuckDB joins rows that stand in two gzip members without a line end between them (ZipNum): then
    the text goes to `spare`, and is read there.
    """
    if not _is_gzip(path):
        return CdxFile(path, kind, head, beside)
    try:
        seams, longer = _looked_through(path)
        if seams:
            with open(path, "rb") as stream, open(spare, "wb") as text:
                for data in parted(gunzip(iter(partial(stream.read, _LOOK), b""))):
                    text.write(data)
            return CdxFile(spare, kind, head, beside)
    except zlib.error:  # DuckDB will say
        spare.unlink(missing_ok=True)
        longer = False
    return CdxFile(path, kind, head, beside, longer)


def _looked_through(path: Path) -> tuple[bool, bool]:
    """Of a gzip file: whether a member that is followed by another does not end with a line end,
    and whether a line is longer than `LONGEST`. Raises `zlib.error`.
    """
    since = 0  # bytes since the last line end
    seams = longer = seam = False
    with open(path, "rb") as stream:
        for data in gunzip(iter(partial(stream.read, _LOOK), b"")):
            if data is None:
                seam = since > 0
            elif data:
                seams, seam = seams or seam, False
                first = data.find(b"\n")
                longer = longer or since + (len(data) if first < 0 else first) > LONGEST
                since = since + len(data) if first < 0 else len(data) - data.rfind(b"\n") - 1
    return seams, longer


class _Form(NamedTuple):
    """What files have in common that are read together."""

    layout: Layout | None  # of a CDX
    skipped: int
    is_gzip: bool
    has_longer: bool  # lines than `LONGEST`


def select(files: Iterable[CdxFile]) -> str:
    """SQL for the captures of files; raises `BadSource`.

    Those of one form are read together: with a query for each DuckDB takes minutes for a thousand.
    """
    forms: dict[_Form, list[CdxFile]] = {}
    for file in files:
        forms.setdefault(_form_of(file), []).append(file)
    return " UNION ALL ".join(_captures(form, some) for form, some in forms.items())


def _form_of(file: CdxFile) -> _Form:
    path, head = file.path, file.head
    if head.startswith(GZIP):
        head = inflated(head, LONGEST)
    layout, skipped = None, 0
    if file.kind == "cdx":
        lines = head.split(b"\n")
        while skipped < len(lines) and (stated := header(lines[skipped].removesuffix(b"\r"))):
            skipped, layout = skipped + 1, layout_of(*stated)
        if not skipped and lines:
            layout = guess(lines[0].removesuffix(b"\r"))
        if layout is None:
            raise BadSource(f"{path} is {NO_HEADER}")
    is_gzip = _is_gzip(path)
    longer = _has_longer(path, LONGEST) if file.has_longer is None else file.has_longer
    return _Form(layout, skipped, is_gzip, longer)


def _captures(form: _Form, files: Sequence[CdxFile]) -> str:
    rows = ", ".join(f"({quoted(str(file.path))}, {quoted(file.beside)})" for file in files)
    source = (
        f"(SELECT line, beside, filename FROM {_read(form, [file.path for file in files])} "
        f"JOIN (VALUES {rows}) told(filename, beside) USING (filename))"
    )
    return _of_cdxj(source) if form.layout is None else _of_cdx(source, form.layout)


def has_lines(head: bytes) -> bool:
    """Whether a file that begins so has any besides headers."""
    if head.startswith(GZIP):
        head = inflated(head, LONGEST)
    lines = (line.removesuffix(b"\r") for line in head.split(b"\n"))
    return any(line and not line.startswith(_NO_CAPTURE) and not header(line) for line in lines)


def _of_cdx(source: str, layout: Layout) -> str:
    width = len(layout.letters)
    names = [f"c[{number}]" for number in range(1, width + 1)]
    found = {
        _CDX[letter]: name
        for letter, name in zip(layout.letters, names, strict=True)
        if letter in _CDX
    }
    if width == _WITH_ORIGINAL and layout.letters[-3:] == ("-",) * 3:
        found.update(zip(("at_length", "at_offset", "at_container"), names[-3:], strict=True))
    found = {column: f"nullif({name}, '-')" for column, name in found.items()}
    delimiter = quoted(layout.delimiter.decode("latin-1"))
    parted = f"string_split(line, {delimiter}) AS c"
    rows = f"FROM (SELECT {parted}, beside FROM {source} WHERE {_is_capture(layout, delimiter)})"
    if "a" in layout.letters:
        rows += f" WHERE c[{layout.letters.index('a') + 1}] IS DISTINCT FROM '-'"  # as of warcinfo
    return _select(found, f"len(c) = {width}", rows)


def _is_capture(layout: Layout, delimiter: str) -> str:
    """SQL for lines that are neither blank nor one more header, as of files put together.

    One that says other columns ends the query: what is below it would be read as what it is not.
    """
    again = quoted(" ".join(("CDX", *layout.letters)))
    other = refusal("filename", " has a header in its middle that says other columns than the "
                    "first: divide the file there")  # fmt: skip
    header = f"replace(trim(line, ' ' || {delimiter}), {delimiter}, ' ')"
    return (
        f"CASE WHEN NOT starts_with(ltrim(line, ' ' || {delimiter}), 'CDX' || {delimiter}) "
        f"THEN trim(line) <> '' WHEN {header} = {again} THEN false ELSE {other} END"
    )


def _of_cdxj(source: str) -> str:
    found = {
        column: f"nullif(json_extract_string(said, '$.{key}'), '-')"
        for column, key in _CDXJ.items()
    }
    found["surt"] = "split_part(line, ' ', 1)"
    found["timestamp"] = "split_part(line, ' ', 2)"
    # what is no JSON says nothing, and so has no URL
    said = "CASE WHEN json_valid(rest) THEN rest END AS said"
    rest = "substr(line, strpos(line, ' {') + 1) AS rest"  # keys have no spaces, but may have {
    lines = f"SELECT line, beside, {rest} FROM {source}"
    others = (f"NOT starts_with(line, {quoted(mark.decode())})" for mark in _NO_CAPTURE)
    wanted = f"WHERE trim(line) <> '' AND {' AND '.join(others)}"
    rows = f"FROM (SELECT line, beside, {said} FROM ({lines} {wanted}))"
    return _select(found, "said IS NOT NULL", rows)


def _select(found: Mapping[str, str], whole: str, rows: str) -> str:
    url = f"regexp_replace({found['url']}, '^<(.*)>$', '\\1')"
    stamp = f"substr({found['timestamp']}, 1, 14)"
    is_time = (
        f"regexp_full_match({found['timestamp']}, '[0-9]{{14}}(?:[0-9]{{3}})?') "
        f"AND try_strptime({stamp}, '%Y%m%d%H%M%S') IS NOT NULL"
    )
    values = {
        **found,
        "url": url,
        "timestamp": stamp,
        "revisit": f"coalesce({found.get('mime', 'NULL')} = 'warc/revisit', false)",
        "mime": _mime(found["mime"]) if "mime" in found else "NULL",
        "beside": "beside",
        "good": f"coalesce({whole} AND {url} <> '' AND {is_time}, false)",
    }
    for name in _NUMBERS:
        if name in values:
            values[name] = f"TRY_CAST({values[name]} AS {COLUMNS[name]})"
    columns = [f'{values.get(name, "NULL")}::{kind} AS "{name}"' for name, kind in COLUMNS.items()]
    return f"SELECT {', '.join(columns)} {rows}"


def _mime(column: str) -> str:
    """SQL for a media type; pywb calls one that is not known ``unk``."""
    return f"CASE WHEN lower({column}) NOT IN ('warc/revisit', 'unk') THEN lower({column}) END"


def _read(form: _Form, paths: Sequence[Path]) -> str:
    """SQL for the lines of files, whichever ends each has.

    Columns are not for DuckDB to part: it takes one kind of line end then, and of others gives up
    or reads lines twice. Buffers must be a multiple of lines, or it loses some between them.
    Several threads may lose a line that is too long; one alone counts it.
    """
    files = ", ".join(quoted(literal(path)) for path in paths)
    return (
        f"read_csv([{files}], filename = true, auto_detect = false, header = false, "
        f"delim = {quoted(_BARE)}, quote = '', escape = '', new_line = '\\n', "
        f"strict_mode = false, nullstr = '{_NO_NULL}', skip = {form.skipped}, "
        f"max_line_size = {LONGEST}, buffer_size = {4 * LONGEST}, "
        f"compression = {'gzip' if form.is_gzip else 'none'}, "
        f"parallel = {str(not form.has_longer).lower()}, "
        "store_rejects = true, rejects_limit = 0, "
        "columns = {'line': 'VARCHAR'})"
    )


def _is_gzip(path: Path) -> bool:
    with open(path, "rb") as stream:
        return stream.read(2) == GZIP


def _has_longer(path: Path, length: int) -> bool:
    """Whether there are so many bytes of one line; the file is read here and there only.

    Of shorter ones from half as many on it may say so, too.
    """
    step = length // 2
    with open(path, "rb") as stream:
        for at in range(0, os.fstat(stream.fileno()).st_size - step, step):
            if not any(b"\n" in os.pread(stream.fileno(), some, at) for some in (_LOOK, step)):
                return True
    return False


# Captures of CDX and CDXJ files.


@dataclass(frozen=True)
class OfLines:
    """CDX and CDXJ files, plain or gzipped; those elsewhere are brought here first."""

    revisits: ClassVar[Revisits] = Revisits.LISTED
    sources: tuple[str, ...]
    places: tuple[str, ...] = ()

    def relation(self, work: SourceContext) -> str:
        files, others = line_files(self.sources, work.problems)
        if others:
            raise BadSource(f"{others[0]} is no CDX or CDXJ file, as other SOURCEs are: if these "
                            "tell of it, give it to --containers, or containers=; if not, make a "
                            "corpus of each kind")  # fmt: skip
        if not files:
            raise BadSource(f"there is no CDX or CDXJ file in {', '.join(self.sources)}")
        lines = []
        for number, (path, (kind, head)) in enumerate(files.items()):
            here = _fetched(path, work.home / f"{number}.lines") if is_remote(path) else Path(path)
            spare = work.home / f"{number}.text"
            lines.append(file_of(here, kind, head, path.rpartition("/")[0], spare))
        return select(lines)


def line_files(
    sources: Sequence[str], problems: list[Problem]
) -> tuple[dict[str, tuple[str, bytes]], list[str]]:
    """The CDX and CDXJ files in what is named, with kind and beginning; and what else was named."""
    found: dict[str, tuple[str, bytes]] = {}
    others = []
    for source in sources:
        for kind in KINDS:
            expanded = expand([source], kind)
            problems.extend(one for one in expanded.problems if one not in problems)
            for path in expanded.paths:
                if path not in found:
                    looked = looked_at(path)
                    if looked[0] in KINDS:
                        found[path] = looked
                    else:
                        others.append(path)
    return found, others


def _fetched(address: str, here: Path) -> Path:
    with RemoteFile(address, in_order=True) as stream, open(here, "wb") as file:
        shutil.copyfileobj(stream, file, 1 << 20)
    return here
