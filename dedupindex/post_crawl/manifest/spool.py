"""Lines of one container on their way to Parquet.

They are spooled as tab-separated text, because that is what DuckDB reads fast and without a second
library. Where a value holds a byte that such text cannot, all values of its line go as hex.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from dedupindex.post_crawl.manifest.lines import TYPES, Line
from dedupindex.runtime.duckdb import Database, literal, quoted, write_parquet

_ODD = re.compile(rb'[\x00-\x08\x0a-\x1f"\x7f]').search
_TEXTS = (
    "record_id",
    "url",
    "date",
    "digest",
    "coding",
    "content_type",
)  # of bytes that came from the web
_COLUMNS = {
    **{name: "VARCHAR" if kind == "BLOB" else kind for name, kind in TYPES.items()},
    "odd": "VARCHAR",  # these texts in hex, separated by commas; empty where all is as usual
}
_LONGEST = 1 << 22  # bytes of a line: all values of a header of a mebibyte, in hex
_NO_NULL = "\x01"  # an empty value is one, and what this spells never comes bare


def _select(spool: Path) -> str:
    """SQL for what stands in a spool."""
    values = []
    for name, kind in TYPES.items():
        value = f"unhex({name})" if kind == "BLOB" else f'"{name}"'
        if name in _TEXTS:
            part = f"split_part(odd, ',', {_TEXTS.index(name) + 1})"
            usual = f"replace({name}, '|', chr(10))" if name == "coding" else name
            value = f"CASE WHEN odd = '' THEN {usual} ELSE decode(unhex({part})) END"
        values.append(f'{value} AS "{name}"')
    columns = ", ".join(f"'{name}': '{kind}'" for name, kind in _COLUMNS.items())
    return (
        f"SELECT {', '.join(values)} FROM read_csv({quoted(literal(spool))}, auto_detect = false, "
        f"header = false, delim = '\t', new_line = '\\n', quote = '', escape = '', "
        f"nullstr = '{_NO_NULL}', max_line_size = {_LONGEST}, buffer_size = {2 * _LONGEST}, "
        f"columns = {{{columns}}})"
    )


class ParquetWriter:
    """Takes lines in order of offset; `finish` makes a Parquet file of them that is whole."""

    def __init__(self, target: Path) -> None:
        self.lines = 0
        self._target = target
        self._path = target.with_name(f".{target.name}.{os.getpid()}.tsv")
        self._stream: TextIO = open(  # noqa: SIM115 (`finish` and `drop` close it)
            self._path, "w", encoding="utf-8", newline=""
        )

    def add(self, lines: Iterable[Line]) -> None:
        rows = [row_of(line) for line in lines]
        self.lines += len(rows)
        self._stream.write("".join(rows))

    def finish(self, database: Database, *, stay: str = "") -> None:
        """Write the file; `stay` is the reason of every line that has none yet, if there is one."""
        self._stream.close()
        rows = _select(self._path)
        if stay:
            rows = f"SELECT * REPLACE (if(stay = '', {quoted(stay)}, stay) AS stay) FROM ({rows})"
        write_parquet(database, rows, self._target)
        self.drop()

    def drop(self) -> None:
        self._stream.close()
        self._path.unlink(missing_ok=True)


def nothing() -> str:
    """SQL for no lines, with all their columns."""
    columns = ", ".join(f'NULL::{kind} AS "{name}"' for name, kind in TYPES.items())
    return f"SELECT {columns} WHERE false"


def row_of(line: Line) -> str:
    """A line of the spool."""
    (container, offset, stored, record_id, url, date, digest, payload, covers, strong, length,
     status, coding, content_type, moment, stay, unfit, header) = line  # fmt: skip
    text = b"%b\t%b\t%b\t%b" % (record_id, url, date, digest)
    codes = coding.replace(b"\n", b"|", 1)
    odd = ""
    if (
        _ODD(text)
        or text.count(b"\t") != 3
        or (len(codes) > 1 and _odd_codes(codes))
        or (content_type and (_ODD(content_type) or b"\t" in content_type))
    ):
        values = (record_id, url, date, digest, coding, content_type)
        odd = ",".join([value.decode("latin-1").encode().hex() for value in values])
        text, codes, content_type = b"\t\t\t", b"", b""
    return (
        f"{container}\t{offset}\t{stored}\t{text.decode('latin-1')}\t{payload.hex()}\t{covers}\t"
        f"{strong.hex()}\t{length}\t{status}\t{codes.decode('latin-1')}\t"
        f"{content_type.decode('latin-1')}\t{moment}\t{stay}\t{unfit}\t{header.hex()}\t{odd}\n"
    )


def _odd_codes(codes: bytes) -> bool:
    return bool(_ODD(codes)) or b"\t" in codes or codes.count(b"|") != 1
