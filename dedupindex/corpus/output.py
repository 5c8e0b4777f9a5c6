"""Save a corpus as lines of JSON, Parquet or CDXJ; each file is written whole or not at all."""

from __future__ import annotations

import os
import re
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from dedupindex.corpus.enrich import Entry, flat
from dedupindex.corpus.extract import KeptCapture
from dedupindex.corpus.row import CorpusRow, RecordPlace, time_of
from dedupindex.errors import BadInput, BadSource
from dedupindex.index.identity import check_outside_index
from dedupindex.object_store import is_remote, local
from dedupindex.runtime.duckdb import from_json, open_database, write_parquet
from dedupindex.runtime.external_sort import sorted_lines
from dedupindex.runtime.files import (
    already_exists,
    atomic_file,
    check_name,
    named_errors,
    require_directory,
)
from dedupindex.sources.discover import detect_kind

WARC = ".warc.gz"
"""The ending of the name of a WARC."""

_MIN_LINE = 1 << 20  # bytes that DuckDB allows for a line


def write_lines(lines: Iterable[bytes], path: Path, *, first: bytes = b"") -> None:
    """Write lines, plain, gzip or zstd by the ending of the name.

    `first` is a line before them, if it is not empty.
    """
    with atomic_file(path) as stream, compressed(stream, path.name) as write:
        if first:
            write(first + b"\n")
        for line in lines:
            write(line + b"\n")


@contextmanager
def compressed(stream: BinaryIO, name: str) -> Iterator[Callable[[bytes], object]]:
    """Yield a function that writes to a stream, compressed by the ending of the name."""
    if name.endswith(".zst"):
        import zstandard  # most runs need none

        with zstandard.ZstdCompressor().stream_writer(stream, closefd=False) as writer:
            yield writer.write
    elif name.endswith(".gz"):
        packer = zlib.compressobj(6, zlib.DEFLATED, 31)
        yield lambda data: stream.write(packer.compress(data))
        stream.write(packer.flush())
    else:
        yield stream.write


_KNOWN = {
    "surtUrl": "VARCHAR", "timestamp": "TIMESTAMP", "originalUrl": "VARCHAR", "mime": "VARCHAR",
    "status": "INTEGER", "digest": "VARCHAR", "redirectUrl": "VARCHAR", "meta": "VARCHAR",
    "compressedSize": "BIGINT", "error": "VARCHAR",
}  # fmt: skip
_TYPES = {str: "VARCHAR", bool: "BOOLEAN", int: "BIGINT", float: "DOUBLE"}
_TIME = time_of("regexp_replace(\"timestamp\", '[^0-9]', '', 'g')") + ' AS "timestamp"'
_MAX_BIGINT = (1 << 63) - 1


def write_table(
    captures: Iterable[KeptCapture], path: Path, *, work: Path | None, memory: str,
    metadata: Mapping[str, str],
) -> None:  # fmt: skip
    """Write captures, rendered by `as_row`, as Parquet: a column for each name in their rows.

    Lists, objects, and values of several types become JSON.
    """
    directory = work or Path(tempfile.gettempdir())
    with tempfile.TemporaryDirectory(prefix=".corpus-", dir=directory) as home:
        rows = Path(home, "rows")
        types, longest = dict(_KNOWN), _MIN_LINE
        with named_errors(rows), open(rows, "wb") as stream:
            for kept in captures:
                for name, value in orjson.loads(kept.rendered).items():
                    if name not in _KNOWN and value is not None:
                        column = _column_type(value)
                        types[name] = column if types.get(name, column) == column else "JSON"
                stream.write(kept.rendered + b"\n")
                longest = max(longest, len(kept.rendered) + 1)
        with open_database(directory, memory, 0) as (database, _):
            text = types | {"timestamp": "VARCHAR"}  # may have a leap second
            query = f"SELECT * REPLACE ({_TIME}) FROM {from_json([rows], text, longest)}"
            write_parquet(database, query, path, metadata)


def check_columns(paths: Iterable[str]) -> None:
    """Raise `BadInput` if the names of columns differ only in case."""
    columns = {name.lower(): name for name in _KNOWN}
    for path in paths:
        other = columns.setdefault(path.lower(), path)
        if other != path or path in _KNOWN:
            raise BadInput(
                f"{path} and {other} would be one column of a Parquet file: rename one, "
                "or write .jsonl"
            )


def _column_type(value: Any) -> str:
    too_large = isinstance(value, int) and value > _MAX_BIGINT
    return "JSON" if too_large else _TYPES.get(type(value), "JSON")


def as_row(entry: Entry) -> bytes:
    """Render the fields of ``record``, ``error``, and each value by its path."""
    return orjson.dumps(flat(entry))


def write_cdxj(captures: Iterable[KeptCapture], path: Path) -> None:
    """Write a sorted CDXJ as pywb does, with the file names of WARC files, or their paths."""

    def line_of(capture: CorpusRow, container: str) -> bytes:
        return cdxj_line(capture, revisit=capture.revisit, container=container)

    _write_list(captures, path, line_of, _shorten)


def write_cdx(captures: Iterable[KeptCapture], path: Path) -> None:
    """Write a sorted CDX of 11 columns, with the file names of WARC files, or their paths.

    Raises `BadInput` for a name with space, which a CDX cannot hold.
    """
    _write_list(captures, path, _cdx_line, _shorten_column, CDX_HEADER)


def _write_list(
    captures: Iterable[KeptCapture],
    path: Path,
    line_of: Callable[[CorpusRow, str], bytes],
    shorten: Callable[[bytes, dict[str, set[str]]], bytes],
    header: bytes = b"",
) -> None:
    containers: dict[str, set[str]] = {}  # by file name

    def lines() -> Iterator[bytes]:
        for capture, *_ in captures:
            container = capture.record.container or capture.container or ""
            containers.setdefault(os.path.basename(container), set()).add(container)
            yield line_of(capture, container)

    with atomic_file(path, new=True) as stream, compressed(stream, path.name) as write:
        write(header)
        for line in sorted_lines(lines()):
            write(shorten(line, containers))


CDX_HEADER = b" CDX N b a m s k r M S V g\n"
_SPACE = re.compile(rb"[\x00-\x20\x7f]")


def _cdx_line(capture: CorpusRow, container: str) -> bytes:
    """Return the line of a capture; space in a value is percent-encoded."""
    name = container.encode("utf-8", "surrogateescape")
    if _SPACE.search(name):
        raise BadInput(f"{container}: a CDX cannot hold a file name with space: write .cdxj")
    mime = "warc/revisit" if capture.revisit else capture.mime
    # of a revisit 304 means that the digest is not the payload's
    status = (304 if capture.unmodified else None) if capture.revisit else capture.status
    place = capture.record
    values = (
        capture.key, capture.timestamp, capture.url, mime, status, capture.digest,
        capture.redirect, capture.meta, place.length if place.length >= 0 else None,
        place.offset if place.offset >= 0 else None,
    )  # fmt: skip
    columns = [_column(value) for value in values]
    return b" ".join((*columns, name or b"-")) + b"\n"


def _column(value: str | int | None) -> bytes:
    data = "" if value is None else str(value)
    return _SPACE.sub(lambda at: b"%%%02X" % at[0][0], data.encode("utf-8", "replace")) or b"-"


def _shorten_column(line: bytes, containers: dict[str, set[str]]) -> bytes:
    """Replace the path of a WARC file in the last column by its name, if that is unique."""
    rest, path = line.rstrip(b"\n").rsplit(b" ", 1)
    name = os.path.basename(path)
    unique = len(containers.get(os.fsdecode(name), ())) == 1
    return b"%b %b\n" % (rest, name if unique else path)


def _shorten(line: bytes, containers: dict[str, set[str]]) -> bytes:
    """Replace the path of a WARC file by its name, if that is unique."""
    key, timestamp, rest = line.split(b" ", 2)
    fields = orjson.loads(rest)
    if "filename" in fields:
        name = os.path.basename(fields["filename"])
        if len(containers[name]) == 1:
            fields["filename"] = name
    return b"%b %b %b\n" % (key, timestamp, orjson.dumps(fields))


def cdxj_line(
    capture: CorpusRow, place: RecordPlace | None = None, *, revisit: bool, container: str = ""
) -> bytes:
    """Return the line of a capture, at `place` if it was moved.

    Space in the canonical URL is percent-encoded.
    """
    path, offset, length = place or capture.record
    status = capture.status
    if revisit:  # 304 means that the digest is not the payload's
        status = 304 if capture.unmodified else None
    fields: dict[str, str | None] = {
        "url": capture.url,
        "mime": "warc/revisit" if revisit else capture.mime or "unk",
        "status": None if status is None else str(status),
        "digest": capture.digest,
        "length": str(length) if length >= 0 else None,
        "offset": str(offset) if offset >= 0 else None,
        "filename": container or path or None,
    }
    json = orjson.dumps({name: value for name, value in fields.items() if value is not None})
    return b"%b %b %b\n" % (_column(capture.key), capture.timestamp.encode(), json)


_ARCHIVE = re.compile(r"\.(w?arc|wacz|cdxj?)(\.gz|\.zst)?$", re.IGNORECASE)
_OURS = re.compile(r"\.(jsonl?|ndjson|parquet|csv|html?)(\.gz|\.zst)?$", re.IGNORECASE)


def check_outputs(outputs: Sequence[Path], sources: Iterable[str]) -> None:
    """Raise `BadInput` for outputs that are equal, a source, in an index, or without a directory.

    Existing files of the kinds that this project writes are overwritten; archives and their lists
    never are.
    """
    places = [output.resolve() for output in outputs]
    for number, (output, place) in enumerate(zip(outputs, places, strict=True)):
        check_name(str(output))
        if place in places[:number]:
            raise BadInput(f"{output} is named for two things to write: name another")
        require_directory(place)
        check_outside_index(output)
        if not place.exists():
            continue
        if _ARCHIVE.search(place.name) or _ARCHIVE.search(output.name):
            raise already_exists(output)
        for source in map(Path, (path for path in map(local, sources) if not is_remote(path))):
            if not source.exists():
                continue
            below = source.is_dir() and place.is_relative_to(source.resolve())
            if os.path.samefile(source, place) or (below and not _OURS.search(place.name)):
                raise BadInput(f"{output} is read as a SOURCE: name another to write to")
        if _is_archive(place):
            raise already_exists(output)


def _is_archive(path: Path) -> bool:
    """Return whether a file is an archive or a list of one by its content, whatever its name."""
    with suppress(BadSource):  # such as JSON in zstd
        return detect_kind(str(path))[0] in ("warc", "wacz", "cdx", "cdxj")
    return False
