"""CDX and CDXJ files and Parquet tables, read by DuckDB.

The letters of a CDX header name the columns (`sources.cdx_columns`). A line with other columns, or
without URL or time, is counted as refused: it gets ``good`` false, or DuckDB lists it as a reject.
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple

from dedupindex.capture import Problem
from dedupindex.corpus.capture_list import KINDS, TABLE, Revisits, SourceContext
from dedupindex.corpus.from_table import select_tables
from dedupindex.corpus.row import COLUMNS, time_of
from dedupindex.errors import BadSource
from dedupindex.object_store import RemoteFile, is_remote
from dedupindex.runtime.duckdb import literal, quoted, refusal
from dedupindex.sources import expand
from dedupindex.sources.cdx_columns import NO_HEADER, Layout, guess, header, layout_of
from dedupindex.sources.discover import detect_kind
from dedupindex.sources.line_source import GZIP, gunzip, inflated, parted
from dedupindex.sources.table_columns import MAGIC, NO_NAMES, Names

MAX_LINE = 1 << 21  # bytes of a line
_BLOCK = 1 << 16  # bytes, in which a line mostly ends
_NO_DELIMITER, _NO_NULL = "\x1f", "\x01"  # occur in no line
_WITH_ORIGINAL = 14  # columns of a CDX whose last three are the place of a revisit's original
_CDX = {  # our columns, by letter
    "N": "surt", "b": "timestamp", "a": "url", "m": "mime", "s": "status", "k": "digest",
    "r": "redirect", "M": "meta", "S": "length", "V": "offset", "g": "container",
}  # fmt: skip
_CDXJ = {  # JSON paths, by our column
    "url": "url", "mime": "mime", "status": "status", "digest": "digest", "redirect": "redirect",
    "meta": "robotflags", "length": "length", "offset": "offset", "container": "filename",
    "at_length": '"orig.length"', "at_offset": '"orig.offset"', "at_container": '"orig.filename"',
}  # fmt: skip
_NO_CAPTURE = (b"!", b"@alias ")  # the beginnings of other lines in a CDXJ
_NUMBERS = ("status", "length", "offset", "at_length", "at_offset")


class CdxFile(NamedTuple):
    path: Path
    kind: str  # cdx or cdxj
    head: bytes  # the beginning of the file
    origin: str  # see `row.COLUMNS`
    has_long_lines: bool  # perhaps longer than `MAX_LINE`


def file_of(path: Path, kind: str, head: bytes, origin: str, text: Path) -> CdxFile:
    """Return the file, or its lines in `text` if DuckDB would join rows.

    It does where a gzip member does not end with a line end, as in ZipNum.
    """
    if not _is_gzip(path):
        return CdxFile(path, kind, head, origin, _has_long_lines(path))
    try:
        open_members, has_long_lines = _examine(path)
        if open_members:
            with open(path, "rb") as stream, open(text, "wb") as output:
                output.writelines(parted(gunzip(iter(partial(stream.read, _BLOCK), b""))))
            return CdxFile(text, kind, head, origin, _has_long_lines(text))
    except zlib.error:  # DuckDB will report it
        text.unlink(missing_ok=True)
        has_long_lines = False
    return CdxFile(path, kind, head, origin, has_long_lines)


def _examine(path: Path) -> tuple[bool, bool]:
    """Return whether a gzip member ends within a line, and whether a line exceeds `MAX_LINE`."""
    since = 0  # bytes since the last line end
    open_members = has_long_lines = is_open = False
    with open(path, "rb") as stream:
        for data in gunzip(iter(partial(stream.read, _BLOCK), b"")):
            if data is None:
                is_open = since > 0
            elif data:
                open_members, is_open = open_members or is_open, False
                first = data.find(b"\n")
                has_long_lines |= since + (len(data) if first < 0 else first) > MAX_LINE
                since = since + len(data) if first < 0 else len(data) - data.rfind(b"\n") - 1
    return open_members, has_long_lines


class _CsvFormat(NamedTuple):
    """The properties that files must share to be read in one query."""

    layout: Layout | None  # of a CDX
    skipped: int  # header lines
    is_gzip: bool
    has_long_lines: bool


def select(files: Iterable[CdxFile]) -> str:
    """Return SQL for the captures of files; raises `BadSource`.

    Files of one format share a query: with one for each, DuckDB takes minutes for a thousand.
    """
    formats: dict[_CsvFormat, list[CdxFile]] = {}
    for file in files:
        formats.setdefault(_format_of(file), []).append(file)
    return " UNION ALL ".join(_captures(csv, group) for csv, group in formats.items())


def _format_of(file: CdxFile) -> _CsvFormat:
    path, head = file.path, file.head
    if head.startswith(GZIP):
        head = inflated(head, MAX_LINE)
    layout, skipped = None, 0
    if file.kind == "cdx":
        lines = head.split(b"\n")
        while skipped < len(lines) and (stated := header(lines[skipped].removesuffix(b"\r"))):
            skipped, layout = skipped + 1, layout_of(*stated)
        if not skipped and lines:
            layout = guess(lines[0].removesuffix(b"\r"))
        if layout is None:
            raise BadSource(f"{path} is {NO_HEADER}")
    return _CsvFormat(layout, skipped, _is_gzip(path), file.has_long_lines)


def _captures(csv: _CsvFormat, files: Sequence[CdxFile]) -> str:
    rows = ", ".join(f"({quoted(str(file.path))}, {quoted(file.origin)})" for file in files)
    source = (
        f"(SELECT line, origin, filename FROM {_read(csv, [file.path for file in files])} "
        f"JOIN (VALUES {rows}) listed(filename, origin) USING (filename))"
    )
    return _of_cdxj(source) if csv.layout is None else _of_cdx(source, csv.layout)


def has_lines(head: bytes) -> bool:
    """Return whether the beginning of a file has lines other than headers."""
    if head.startswith(GZIP):
        head = inflated(head, MAX_LINE)
    lines = (line.removesuffix(b"\r") for line in head.split(b"\n"))
    return any(line and not line.startswith(_NO_CAPTURE) and not header(line) for line in lines)


def _of_cdx(source: str, layout: Layout) -> str:
    width = len(layout.letters)
    names = [f"c[{number}]" for number in range(1, width + 1)]
    pairs = zip(layout.letters, names, strict=True)
    columns = {_CDX[letter]: name for letter, name in pairs if letter in _CDX}
    if width == _WITH_ORIGINAL and layout.letters[-3:] == ("-",) * 3:
        columns.update(zip(("at_length", "at_offset", "at_container"), names[-3:], strict=True))
    columns = {column: f"nullif({name}, '-')" for column, name in columns.items()}
    delimiter = quoted(layout.delimiter.decode("latin-1"))
    split = f"string_split(line, {delimiter}) AS c"
    rows = f"FROM (SELECT {split}, origin FROM {source} WHERE {_is_capture(layout, delimiter)})"
    if "a" in layout.letters:
        rows += (
            f" WHERE c[{layout.letters.index('a') + 1}] IS DISTINCT FROM '-'"  # such as warcinfo
        )
    return _select(columns, f"len(c) = {width}", rows)


def _is_capture(layout: Layout, delimiter: str) -> str:
    """Return SQL for lines that are neither blank nor a repeated header.

    A header with other columns ends the query, because the lines below it would be misread.
    """
    repeated = quoted(" ".join(("CDX", *layout.letters)))
    other = refusal("filename", " has a header in its middle that names other columns than the "
                    "first: divide the file there")  # fmt: skip
    header = f"replace(trim(line, ' ' || {delimiter}), {delimiter}, ' ')"
    return (
        f"CASE WHEN NOT starts_with(ltrim(line, ' ' || {delimiter}), 'CDX' || {delimiter}) "
        f"THEN trim(line) <> '' WHEN {header} = {repeated} THEN false ELSE {other} END"
    )


def _of_cdxj(source: str) -> str:
    columns = {
        column: f"nullif(json_extract_string(json, '$.{key}'), '-')"
        for column, key in _CDXJ.items()
    }
    columns["surt"] = "split_part(line, ' ', 1)"
    columns["timestamp"] = "split_part(line, ' ', 2)"
    # invalid JSON becomes NULL, and so has no URL
    json = "CASE WHEN json_valid(rest) THEN rest END AS json"
    rest = "substr(line, strpos(line, ' {') + 1) AS rest"  # keys have no spaces, but may have {
    lines = f"SELECT line, origin, {rest} FROM {source}"
    others = (f"NOT starts_with(line, {quoted(prefix.decode())})" for prefix in _NO_CAPTURE)
    wanted = f"WHERE trim(line) <> '' AND {' AND '.join(others)}"
    rows = f"FROM (SELECT line, origin, {json} FROM ({lines} {wanted}))"
    return _select(columns, "json IS NOT NULL", rows)


def _select(columns: Mapping[str, str], valid: str, rows: str) -> str:
    url = f"regexp_replace({columns['url']}, '^<(.*)>$', '\\1')"
    mime = f"lower({columns.get('mime', 'NULL')})"  # pywb writes ``unk`` for an unknown one
    stamp = f"substr({columns['timestamp']}, 1, 14)"
    is_time = (
        f"regexp_full_match({columns['timestamp']}, '[0-9]{{14}}(?:[0-9]{{3}})?') "
        f"AND {time_of(stamp)} IS NOT NULL"
    )
    values = {
        **columns,
        "url": url,
        "timestamp": stamp,
        "revisit": f"coalesce({columns.get('mime', 'NULL')} = 'warc/revisit', false)",
        "mime": f"CASE WHEN {mime} NOT IN ('warc/revisit', 'unk') THEN {mime} END",
        "origin": "origin",
        "good": f"coalesce({valid} AND {url} <> '' AND {is_time}, false)",
    }
    for name in _NUMBERS:
        if name in values:
            values[name] = f"TRY_CAST({values[name]} AS {COLUMNS[name]})"
    typed = [f'{values.get(name, "NULL")}::{kind} AS "{name}"' for name, kind in COLUMNS.items()]
    return f"SELECT {', '.join(typed)} {rows}"


def _read(csv: _CsvFormat, paths: Sequence[Path]) -> str:
    """Return SQL for the lines of files, whatever their line ends.

    DuckDB must not split columns: it would then accept only one kind of line end, and fail or read
    lines twice. The buffer must be a multiple of the line size, or lines between buffers get lost.
    A line that is too long is counted as a reject only by a single thread.
    """
    files = ", ".join(quoted(literal(path)) for path in paths)
    return (
        f"read_csv([{files}], filename = true, auto_detect = false, header = false, "
        f"delim = {quoted(_NO_DELIMITER)}, quote = '', escape = '', new_line = '\\n', "
        f"strict_mode = false, nullstr = '{_NO_NULL}', skip = {csv.skipped}, "
        f"max_line_size = {MAX_LINE}, buffer_size = {4 * MAX_LINE}, "
        f"compression = {'gzip' if csv.is_gzip else 'none'}, "
        f"parallel = {str(not csv.has_long_lines).lower()}, "
        "store_rejects = true, rejects_limit = 0, columns = {'line': 'VARCHAR'})"
    )


def _is_gzip(path: Path) -> bool:
    with open(path, "rb") as stream:
        return stream.read(2) == GZIP


def _has_long_lines(path: Path) -> bool:
    """Return whether a line may exceed `MAX_LINE`, or half of it, by samples of the file."""
    step = MAX_LINE // 2
    with open(path, "rb") as stream:
        for at in range(0, os.fstat(stream.fileno()).st_size - step, step):
            if not any(b"\n" in os.pread(stream.fileno(), count, at) for count in (_BLOCK, step)):
                return True
    return False


@dataclass(frozen=True)
class CdxCaptures:
    """CDX and CDXJ files, plain or gzipped, and tables. Remote text is downloaded first."""

    revisits: ClassVar[Revisits] = Revisits.LISTED
    sources: tuple[str, ...]
    containers: tuple[str, ...] = ()
    columns: Names = field(default_factory=dict)  # of tables, see `sources.table_columns`

    def relation(self, context: SourceContext) -> str:
        files, others = list_files(self.sources, context.problems, self.columns)
        if others:
            raise BadSource(
                f"{others[0]} is not a CDX or CDXJ file or table of captures, but other SOURCEs "
                "are: if these list its captures, give it to --containers, or containers=; if not, "
                "make a corpus of each kind"
            )
        if not files:
            sources = ", ".join(self.sources)
            raise BadSource(f"there is no CDX or CDXJ file or table of captures in {sources}")
        lines = []
        tables = [path for path, (kind, _) in files.items() if kind == TABLE]
        for number, (path, (kind, head)) in enumerate(files.items()):
            if kind == TABLE:
                continue
            file = Path(path)
            if is_remote(path):
                file = context.home / f"{number}.lines"
                with RemoteFile(path, in_order=True) as source, open(file, "wb") as target:
                    shutil.copyfileobj(source, target, 1 << 20)
            text = context.home / f"{number}.text"
            lines.append(file_of(file, kind, head, path.rpartition("/")[0], text))
        queries = [select(lines)] if lines else []
        return " UNION ALL ".join([*queries, *select_tables(tables, self.columns)])


def list_files(
    sources: Sequence[str], problems: list[Problem], columns: Names = NO_NAMES
) -> tuple[dict[str, tuple[str, bytes]], list[str]]:
    """Return the files that list captures, with kind and beginning, and all other files."""
    found: dict[str, tuple[str, bytes]] = {}
    others = []
    expanded = expand(sources, *KINDS, TABLE, columns=columns)
    problems.extend(expanded.problems)
    for path in expanded.paths:
        kind, head = detect_kind(path, columns)
        if head.startswith(MAGIC):
            found[path] = TABLE, head  # if it lacks a column, its query says so
        elif kind in KINDS:
            found[path] = kind, head
        else:
            others.append(path)
    return found, others
