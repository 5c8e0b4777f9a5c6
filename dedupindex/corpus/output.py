"""Where a corpus goes: lines of JSON, a table, a CDXJ. Each appears whole or not at all."""

from __future__ import annotations

import os
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import orjson

from dedupindex.corpus.captures import Capture, Place
from dedupindex.corpus.enriching import Entry, flat
from dedupindex.corpus.report import Report
from dedupindex.corpus.running import Kept, nested, nothing
from dedupindex.errors import BadInput
from dedupindex.files import whole
from dedupindex.manifest.spool import literal, quoted, write_parquet
from dedupindex.resolve.engine import working
from dedupindex.rewrite.cdxj import in_order

_LEAST = 1 << 20  # bytes that DuckDB makes room for in a line


class Kepts(Protocol):
    """What is asked of a `corpus.Corpus`."""

    @property
    def settings(self) -> Any: ...
    def kept(self, report: Report, render: Callable[[Entry], bytes] = nested) -> Iterator[Kept]: ...


Save = Callable[[Any, Path, Report], None]


def as_lines(corpus: Kepts, path: Path, report: Report) -> None:
    """Lines of JSON, plain, gzip or zstd by the ending of the name."""
    with whole(path) as stream, compressed(stream, path.name) as write:
        for kept in corpus.kept(report):
            write(kept.made + b"\n")
    report.bytes = path.stat().st_size


@contextmanager
def compressed(stream: BinaryIO, name: str) -> Iterator[Callable[[bytes], None]]:
    """Writes to a stream in the form that a name's ending says."""
    if name.endswith(".zst"):
        try:
            import zstandard
        except ImportError as error:
            raise BadInput(f"{name} needs a package: pip install 'dedupindex[corpus]'") from error
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


def as_parquet(corpus: Kepts, path: Path, report: Report) -> None:
    """A column for each field of ``record``, ``error``, and one for each value by its path.

    Values that are lists or objects, or of several types, are JSON.
    """
    beside = corpus.settings.work or Path(tempfile.gettempdir())
    with working(beside, corpus.settings.memory, 0) as (database, home):
        rows = home / "rows"
        types, longest = dict(_KNOWN), _LEAST
        with open(rows, "wb") as stream:
            for kept in corpus.kept(report, render=_row):
                for name, value in orjson.loads(kept.made).items():
                    if name not in _KNOWN and value is not None:
                        kind = _TYPES.get(type(value), "JSON")
                        types[name] = kind if types.get(name, kind) == kind else "JSON"
                stream.write(kept.made + b"\n")
                longest = max(longest, len(kept.made) + 1)
        columns = ", ".join(f"{quoted(name)}: '{kind}'" for name, kind in types.items())
        query = (
            f"SELECT * FROM read_json({quoted(literal(rows))}, format = 'newline_delimited', "
            f"maximum_object_size = {longest}, columns = {{{columns}}})"
        )
        write_parquet(database, query, path)
    report.bytes = path.stat().st_size


def _row(entry: Entry) -> bytes:
    return orjson.dumps(flat(entry))


def as_cdxj(corpus: Kepts, path: Path, report: Report) -> None:
    """As `pywb` writes it, sorted; containers by the names that the metadata give them."""
    lines = (
        cdxj_line(kept.capture, revisit=kept.capture.revisit)
        for kept in corpus.kept(report, render=nothing)
    )
    with whole(path) as stream, compressed(stream, path.name) as write:
        for line in in_order(lines):
            write(line)
    report.bytes = path.stat().st_size


def cdxj_line(capture: Capture, place: Place | None = None, *, revisit: bool = False) -> bytes:
    """A line for a capture, which may be at another place now."""
    container, offset, length = place or capture.record
    said: dict[str, str | None] = {
        "url": capture.url,
        "mime": "warc/revisit" if revisit else capture.mime or "unk",
        "status": None if revisit or capture.status is None else str(capture.status),
        "digest": capture.digest,
        "length": str(length) if length >= 0 else None,
        "offset": str(offset) if offset >= 0 else None,
        "filename": os.path.basename(container) or None,
    }
    told = orjson.dumps({name: value for name, value in said.items() if value is not None})
    return b"%b %b %b\n" % (capture.key.encode(), capture.timestamp.encode(), told)
