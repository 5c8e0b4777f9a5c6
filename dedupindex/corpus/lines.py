"""CDX and CDXJ files as DuckDB reads them: SQL for their lines, whole or refused.

Letters of a CDX header say which column holds what (`sources.cdxlayout`). A line that has not the
columns it should have, no URL or no time is refused, and counted: it comes with ``good`` false, or
DuckDB notes it among its rejects.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path

from dedupindex.corpus.captures import COLUMNS
from dedupindex.errors import BadSource
from dedupindex.manifest.spool import literal, quoted
from dedupindex.sources.cdxlayout import NO_HEADER, Layout, guess, header, layout_of
from dedupindex.sources.text import GZIP, gunzip

LONGEST = 1 << 21  # bytes of a line
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
_NUMBERS = ("status", "length", "offset", "at_length", "at_offset")


def select(path: Path, kind: str, head: bytes, beside: str) -> str:
    """SQL for the captures of a file that begins with `head`; raises `BadSource`."""
    if head.startswith(GZIP):
        head = _inflated(head)
    end = "\\r\\n" if head.partition(b"\n")[0].endswith(b"\r") else "\\n"
    if kind == "cdxj":
        return _of_cdxj(path, end, beside)
    lines = head.split(b"\n")
    skipped, layout = 0, None
    while skipped < len(lines) and (stated := header(lines[skipped].removesuffix(b"\r"))):
        skipped, layout = skipped + 1, layout_of(*stated)
    if not skipped and lines:
        layout = guess(lines[0].removesuffix(b"\r"))
    if layout is None:
        raise BadSource(f"{path} is {NO_HEADER}")
    return _of_cdx(path, layout, skipped, end, beside)


def _of_cdx(path: Path, layout: Layout, skipped: int, end: str, beside: str) -> str:
    width = len(layout.letters)
    names = [f"c{number}" for number in range(width)]
    found = {
        _CDX[letter]: name
        for letter, name in zip(layout.letters, names, strict=True)
        if letter in _CDX
    }
    if width == _WITH_ORIGINAL and layout.letters[-3:] == ("-",) * 3:
        found.update(zip(("at_length", "at_offset", "at_container"), names[-3:], strict=True))
    found = {column: f"nullif({name}, '-')" for column, name in found.items()}
    rows = _read(path, names, layout.delimiter.decode("latin-1"), skipped, end)
    return _select(found, f"FROM {rows}", beside)


def _of_cdxj(path: Path, end: str, beside: str) -> str:
    found = {
        column: f"nullif(json_extract_string(said, '$.{key}'), '-')"
        for column, key in _CDXJ.items()
    }
    found["surt"] = "split_part(line, ' ', 1)"
    found["timestamp"] = "split_part(line, ' ', 2)"
    # what is no JSON says nothing, and so has no URL
    said = "CASE WHEN json_valid(rest) THEN rest END AS said"
    rest = "substr(line, strpos(line, '{')) AS rest"
    lines = f"SELECT line, {rest} FROM {_read(path, ['line'], _BARE, 0, end)}"
    wanted = "WHERE line <> '' AND NOT starts_with(line, '!') AND NOT starts_with(line, '@alias ')"
    return _select(found, f"FROM (SELECT line, {said} FROM ({lines} {wanted}))", beside)


def _select(found: Mapping[str, str], rows: str, beside: str) -> str:
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
        "mime": f"nullif(lower({found['mime']}), 'warc/revisit')" if "mime" in found else "NULL",
        "beside": quoted(beside),
        "good": f"coalesce({url} <> '' AND {is_time}, false)",
    }
    for name in _NUMBERS:
        if name in values:
            values[name] = f"TRY_CAST({values[name]} AS {COLUMNS[name]})"
    columns = [f'{values.get(name, "NULL")}::{kind} AS "{name}"' for name, kind in COLUMNS.items()]
    return f"SELECT {', '.join(columns)} {rows}"


def _read(path: Path, names: list[str], delimiter: str, skipped: int, end: str) -> str:
    columns = ", ".join(f"'{name}': 'VARCHAR'" for name in names)
    return (
        f"read_csv({quoted(literal(path))}, auto_detect = false, header = false, "
        f"delim = {quoted(delimiter)}, quote = '', escape = '', new_line = '{end}', "
        f"nullstr = '{_NO_NULL}', skip = {skipped}, max_line_size = {LONGEST}, "
        f"buffer_size = {4 * LONGEST}, compression = {quoted(_compression(path))}, "
        f"store_rejects = true, rejects_limit = 0, columns = {{{columns}}})"
    )


def _compression(path: Path) -> str:
    with open(path, "rb") as stream:
        return "gzip" if stream.read(2) == GZIP else "none"


def _inflated(head: bytes) -> bytes:
    text = b""
    try:
        for data in gunzip([head]):
            text += data
    except zlib.error:  # cut by us
        pass
    return text
