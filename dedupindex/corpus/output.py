"""Where a corpus goes: lines of JSON, a table, a CDXJ. Each appears whole or not at all."""

from __future__ import annotations

import os
import re
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import orjson

from dedupindex.corpus.enrich import Entry, flat
from dedupindex.corpus.extract import KeptCapture, nested, nothing
from dedupindex.corpus.extract_report import CorpusReport
from dedupindex.corpus.row import CorpusRow, RecordPlace
from dedupindex.errors import BadInput, to_install
from dedupindex.index.identity import FILE
from dedupindex.object_store import is_remote, local
from dedupindex.runtime.duckdb import from_json, open_database, write_parquet
from dedupindex.runtime.external_sort import sorted_lines
from dedupindex.runtime.files import already_exists, atomic_file, check_name, named_errors

WARC = ".warc.gz"
"""How the name of a WARC ends."""

_LEAST = 1 << 20  # bytes that DuckDB makes room for in a line


class Kepts(Protocol):
    """What is asked of a `corpus.GeneratedCorpus`."""

    @property
    def settings(self) -> Any: ...
    @property
    def paths(self) -> tuple[str, ...]: ...
    def kept(
        self, report: CorpusReport, render: Callable[[Entry], bytes] = nested
    ) -> Iterator[KeptCapture]: ...


Save = Callable[[Any, Path, CorpusReport], None]


def as_lines(corpus: Kepts, path: Path, report: CorpusReport) -> None:
    """Lines of JSON, plain, gzip or zstd by the ending of the name."""
    with atomic_file(path) as stream, compressed(stream, path.name) as write:
        for kept in corpus.kept(report):
            write(kept.made + b"\n")
    report.bytes = path.stat().st_size


@contextmanager
def compressed(stream: BinaryIO, name: str) -> Iterator[Callable[[bytes], None]]:
    """Writes to a stream in the form that a name's ending says."""
    if name.endswith(".zst"):
        try:
            import zstandard  # an extra
        except ImportError as error:
            raise BadInput(f"{name} needs a package: {to_install('corpus')}") from error
        with zstandard.ZstdCompressor().stream_writer(stream, closefd=False) as writer:
            yield lambda data: _ignored(writer.write(data))
    elif name.endswith(".gz"):
        packer = zlib.compressobj(6, zlib.DEFLATED, 31)
        yield lambda data: _ignored(stream.write(packer.compress(data)))
        stream.write(packer.flush())
    else:
        yield lambda data: _ignored(stream.write(data))


def _ignored(_: object) -> None:
    pass


_KNOWN = {
    "surtUrl": "VARCHAR", "timestamp": "TIMESTAMP", "originalUrl": "VARCHAR", "mime": "VARCHAR",
    "status": "INTEGER", "digest": "VARCHAR", "redirectUrl": "VARCHAR", "meta": "VARCHAR",
    "compressedSize": "BIGINT", "error": "VARCHAR",
}  # fmt: skip
_TYPES = {str: "VARCHAR", bool: "BOOLEAN", int: "BIGINT", float: "DOUBLE"}
_MOST = (1 << 63) - 1  # of a BIGINT


def as_parquet(corpus: Kepts, path: Path, report: CorpusReport) -> None:
    """A column for each field of ``record``, ``error``, and one for each value by its path.

    Values that are lists or objects, or of several types, are JSON. Raises `BadInput` for columns
    whose names differ in nothing but case: in SQL they would be one.
    """
    _check_columns(corpus.paths)
    beside = corpus.settings.work or Path(tempfile.gettempdir())
    with open_database(beside, corpus.settings.memory, 0) as (database, home):
        rows = home / "rows"
        types, longest = dict(_KNOWN), _LEAST
        with named_errors(rows), open(rows, "wb") as stream:
            for kept in corpus.kept(report, render=_row):
                for name, value in orjson.loads(kept.made).items():
                    if name not in _KNOWN and value is not None:
                        kind = _kind(value)
                        types[name] = kind if types.get(name, kind) == kind else "JSON"
                stream.write(kept.made + b"\n")
                longest = max(longest, len(kept.made) + 1)
        write_parquet(database, f"SELECT * FROM {from_json([rows], types, longest)}", path)
    report.bytes = path.stat().st_size


def _check_columns(paths: Iterable[str]) -> None:
    there = {name.lower(): name for name in _KNOWN}
    for path in paths:
        other = there.setdefault(path.lower(), path)
        if other != path or path in _KNOWN:
            raise BadInput(
                f"{path} and {other} would be one column of a Parquet file: call one otherwise, "
                "or write .jsonl"
            )


def _kind(value: Any) -> str:
    """The type of a column that a value could be in."""
    too_large = isinstance(value, int) and value > _MOST
    return "JSON" if too_large else _TYPES.get(type(value), "JSON")


def _row(entry: Entry) -> bytes:
    return orjson.dumps(flat(entry))


def as_cdxj(corpus: Kepts, path: Path, report: CorpusReport) -> None:
    """As `pywb` writes it, sorted; containers by their last names, as far as these tell them apart.

    Else by their paths or addresses: which it is, is known once all lines are there to be sorted.
    """
    meant: dict[str, set[str]] = {}  # containers, by last name

    def lines() -> Iterator[bytes]:
        for kept in corpus.kept(report, render=nothing):
            capture = kept.capture
            container = capture.record.container or capture.container or ""
            meant.setdefault(os.path.basename(container), set()).add(container)
            yield cdxj_line(capture, revisit=capture.revisit, container=container)

    with atomic_file(path, new=True) as stream, compressed(stream, path.name) as write:
        for line in sorted_lines(lines()):
            write(_short(line, meant))
    report.bytes = path.stat().st_size


def _short(line: bytes, meant: dict[str, set[str]]) -> bytes:
    """A line with the last name of its container, if no other container is called so."""
    key, timestamp, rest = line.split(b" ", 2)
    said = orjson.loads(rest)
    if "filename" in said:
        last = os.path.basename(said["filename"])
        if len(meant[last]) == 1:
            said["filename"] = last
    return b"%b %b %b\n" % (key, timestamp, orjson.dumps(said))


def cdxj_line(
    capture: CorpusRow, place: RecordPlace | None = None, *, revisit: bool, container: str = ""
) -> bytes:
    """A line for a capture, which may be at another place now."""
    found, offset, length = place or capture.record
    status = capture.status
    if revisit:  # 304 says that it is not told by its digest
        status = 304 if capture.unmodified else None
    said: dict[str, str | None] = {
        "url": capture.url,
        "mime": "warc/revisit" if revisit else capture.mime or "unk",
        "status": None if status is None else str(status),
        "digest": capture.digest,
        "length": str(length) if length >= 0 else None,
        "offset": str(offset) if offset >= 0 else None,
        "filename": container or found or None,
    }
    told = orjson.dumps({name: value for name, value in said.items() if value is not None})
    return b"%b %b %b\n" % (capture.key.encode(), capture.timestamp.encode(), told)


# What is written must take the place of nothing that is read.

_ARCHIVE = re.compile(r"\.(w?arc|wacz|cdxj?)(\.gz|\.zst)?$", re.IGNORECASE)
_OURS = re.compile(r"\.(jsonl?|ndjson|parquet|csv|html?)(\.gz|\.zst)?$", re.IGNORECASE)


def keep_apart(outputs: Sequence[Path], sources: Iterable[str]) -> None:
    """Refuse outputs that are one file, are a source, or would take the place of an archive.

    Or that have no directory to be in, or that of an index.

    Files that are there are written anew if they are as this project writes them; archives and
    their lists never are, whoever wrote them. Raises `BadInput`.
    """
    places = [output.resolve() for output in outputs]
    for number, (output, place) in enumerate(zip(outputs, places, strict=True)):
        check_name(str(output))
        if place in places[:number]:
            raise BadInput(f"{output} is named for two things to write: name another")
        if not place.parent.is_dir():
            raise BadInput(f"{output} cannot be written: there is no directory {output.parent}")
        if (place.parent / FILE).exists():
            raise BadInput(f"{output} is in the directory of an index: name another place")
        if not place.exists():
            continue
        if _ARCHIVE.search(place.name) or _ARCHIVE.search(output.name):
            raise already_exists(output)
        for source in map(Path, (local(one) for one in sources if not is_remote(local(one)))):
            if not source.exists():
                continue
            below = source.is_dir() and place.is_relative_to(source.resolve())
            if os.path.samefile(source, place) or (below and not _OURS.search(place.name)):
                raise BadInput(f"{output} is read as a SOURCE: name another to write to")
