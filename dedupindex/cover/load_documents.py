"""Read documents from archives and JSON lines, and prepare their metadata and shingles for DuckDB.

Batches of lines are prepared in parallel. Metadata become JSON and shingles text, which DuckDB
reads fast without another library.
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from io import FileIO, RawIOBase
from itertools import chain
from pathlib import Path
from secrets import token_hex
from typing import Any, BinaryIO, NamedTuple, cast

import orjson

from dedupindex.corpus.archive import Corpus
from dedupindex.corpus.capture_list import Revisits
from dedupindex.corpus.enrich import EnrichmentFailed, Entry
from dedupindex.corpus.extract_report import CorpusReport
from dedupindex.corpus.row import CorpusRow
from dedupindex.corpus.select import SpooledChunks
from dedupindex.counts import OnProgress
from dedupindex.cover.document_lines import document
from dedupindex.cover.relation import content_of, shingles, terms
from dedupindex.errors import BadInput, BadSource
from dedupindex.object_store import (
    RemoteFile,
    check_reader,
    find_objects,
    is_remote,
    local,
    open_anywhere,
    redacted,
)  # fmt: skip
from dedupindex.runtime.files import named_errors
from dedupindex.warc.zstd_format import MAGIC, FrameStream

BATCH_LINES, _BATCH_BYTES = 500, 4 << 20
_MAX_PREPARED = 100_000  # hashes of texts that a process remembers

Line = tuple[str, bytes]  # its place, for messages, and its bytes


class LineBatch(NamedTuple):
    """Lines; the first is document number `first`."""

    first: int
    lines: list[Line]
    ks: tuple[int, ...]
    run: str  # a token of the run


class Prepared(NamedTuple):
    """A prepared batch, for `document_store`."""

    documents: bytes  # lines of JSON
    shingles: dict[int, bytes]  # by k: lines of document number and shingle
    lines: int
    size: int  # bytes of the lines


def batches(lines: Iterable[Line], first: int, ks: tuple[int, ...]) -> Iterator[LineBatch]:
    run = token_hex()
    batch: list[Line] = []
    size = 0
    for line in lines:
        batch.append(line)
        size += len(line[1])
        if len(batch) >= BATCH_LINES or size >= _BATCH_BYTES:
            yield LineBatch(first, batch, ks, run)
            first += len(batch)
            batch, size = [], 0
    if batch:
        yield LineBatch(first, batch, ks, run)


_prepared: set[str] = set()  # contents whose shingles this process has written
_run = [""]  # in this run


def prepare(batch: LineBatch) -> Prepared:
    """Prepare a batch; raises `BadSource`.

    Only the first of equal texts needs its shingles. A process gets batches in order, so it never
    omits those of the first.
    """
    rows: list[bytes] = []
    spools: dict[int, list[str]] = {k: [] for k in batch.ks}
    size = 0
    if _run != [batch.run] or len(_prepared) > _MAX_PREPARED:
        _run[:] = [batch.run]
        _prepared.clear()
    for n, line in enumerate(batch.lines, batch.first):
        size += len(line[1])
        row, of_text = shingled(n, line, batch.ks)
        content = row["content"]
        for k, text_shingles in of_text.items():
            if text_shingles and content not in _prepared:
                spools[k].append(f"{n}\t" + f"\n{n}\t".join(text_shingles) + "\n")
        if content:
            _prepared.add(content)
        rows.append(orjson.dumps(row))
    encoded = {k: "".join(spool).encode() for k, spool in spools.items()}
    return Prepared(b"\n".join(rows) + b"\n", encoded, len(rows), size)


def shingled(n: int, line: Line, ks: Iterable[int]) -> tuple[dict[str, Any], dict[int, set[str]]]:
    """Return the row of a document, and its shingles by k; raises `BadSource`."""
    row = document(line[1], line[0])
    text = row.pop("text")
    words = terms(text) if ks else []
    found = {k: shingles(words, k) for k in ks}
    sizes = {f"s{k}": len(of_text) for k, of_text in found.items()}
    return {**row, "n": n, "content": content_of(words), **sizes}, found


# --- sources: lines of JSON, and archives through `corpus` ----------------------------------------

_GZIP = b"\x1f\x8b"
_CHANGED = "{} was changed while it was read"
_BUFFER = 1 << 17  # bytes of a file that are read at once
_LONGEST_LINE = 1 << 28  # bytes
_TEXT, _TITLE = "payload.string.text", "payload.string.html.title"


class ArchiveOptions(NamedTuple):
    where: tuple[str, ...] = ()  # conditions on the metadata of captures
    containers: tuple[str, ...] = ()  # the locations of WARC files
    originals: Path | None = None  # an index for originals of revisits that the sources lack
    jobs: int = 1
    memory: str = "1GB"
    sample: int = 0  # read only about so many captures; 0: all


class Gathered(NamedTuple):
    files: list[str]  # paths and addresses of JSON lines of documents
    left_out: list[str]  # JSON lines of revisits that conditions exclude
    report: CorpusReport
    all_revisits: bool = True  # False if the sources may hold revisits that their metadata lack


def gather(
    sources: Sequence[str],
    options: ArchiveOptions,
    home: Path,
    on_progress: OnProgress,
    *,
    listing: bool = False,
) -> Gathered:
    """Convert archives to JSON lines; sources that are JSON lines stay as they are.

    `listing` requires revisits, which an index does not have. Raises `BadInput`, `BadSource`.
    """
    lines = [name for source in sources if is_lines(source) for name in _expanded(source)]
    archives = [source for source in sources if not is_lines(source)]
    report = CorpusReport()
    if not archives:
        if options.where or options.containers or options.originals:
            raise BadInput("--where, --containers and --originals are of archives, and lines of "
                           "JSON are none")  # fmt: skip
        return Gathered(lines, [], report)
    excluded = home / "spared"
    excluded.mkdir()
    corpus = Corpus.of(*archives, containers=options.containers).having(
        originals=options.originals, jobs=options.jobs, memory=options.memory, work=home,
        sample=options.sample,
        excluded_revisits=excluded if options.where else None, on_progress=on_progress,
    )  # fmt: skip
    revisits = corpus.source.revisits
    if listing and revisits is Revisits.NONE:
        raise BadInput("--list: an index knows no revisits, and what they repeat would be on the "
                       "list: name the WARC files that it was made of")  # fmt: skip
    for condition in options.where:
        corpus = corpus.where(condition)
    captures = home / "captures.jsonl"
    with named_errors(captures), open(captures, "wb") as stream:
        for kept in corpus.enrich("text", "html.title").kept(report, _as_line):
            stream.write(kept.rendered + b"\n")
    left_out = home / "left_out.jsonl"
    with open(left_out, "wb") as stream:
        for chunk in SpooledChunks(excluded) if options.where else ():
            for (capture,) in chunk.groups:
                stream.write(orjson.dumps(_metadata(capture)) + b"\n")
    return Gathered([*lines, str(captures)], [str(left_out)], report, revisits is Revisits.ALL)


def is_lines(source: str) -> bool:
    """Return whether a source is JSON lines, by its name."""
    path = source.partition("?")[0] if is_remote(source) else source  # without a signature
    name = os.path.basename(path).removesuffix(".gz").removesuffix(".zst")
    return name.endswith((".json", ".jsonl", ".ndjson"))


def _expanded(source: str) -> list[str]:
    """Return the files of a source of lines: of an address that is a glob, all that match."""
    if not is_remote(source):
        return [local(source)]
    check_reader(source)
    return [found.address for found in find_objects(source)]


def _as_line(entry: Entry) -> bytes:
    """Render a capture as a flat line; its text is empty if it cannot be read."""
    text, title = _string(entry, _TEXT) or "", _string(entry, _TITLE)
    return orjson.dumps({**_metadata(entry.capture), "text": text, "title": title})


def _metadata(capture: CorpusRow) -> dict[str, Any]:
    place, original = capture.record, capture.payload
    return {
        "id": f"{capture.timestamp}/{capture.url}",
        "url": capture.url,
        "timestamp": capture.timestamp,
        "mime": capture.mime,
        "status": capture.status,
        "bytes": capture.length,
        "container": place.container or None,
        "offset": place.offset if place.offset >= 0 else None,
        "length": place.length if place.length >= 0 else None,
        "digest": None if capture.revisit else capture.digest,
        "of": [original.container, original.offset]
        if original is not None and original.container
        else None,
        "revisitOf": capture.revisit_of,
        "ofDigest": capture.digest if capture.revisit and not capture.unmodified else None,
    }


def _string(entry: Entry, path: str) -> str | None:
    try:
        value = entry.value(path)
    except EnrichmentFailed as error:
        entry.fail(error)
        return None
    return value if isinstance(value, str) else None


class FilePart(NamedTuple):
    """The lines of a file that begin in a range of its bytes."""

    file: str
    start: int = 0
    end: int = -1  # -1: the end of the file
    line: int = 0  # lines before
    first: int = 0  # documents before, in all files
    version: tuple[int, ...] = ()  # of the file, if it must be this one


def lines_of(files: Iterable[str]) -> Iterator[Line]:
    """Yield the lines of files here and elsewhere, plain or compressed with gzip or zstd.

    Raises `BadSource`, also if an object is changed while it is read.
    """
    return chain.from_iterable(lines_of_part(FilePart(file)) for file in files)


def lines_of_part(part: FilePart) -> Iterator[Line]:
    """As `lines_of`; only a file that is not compressed is divided."""
    name = redacted(part.file)
    return ((f"{name} line {at}", line) for at, line in numbered_lines(part) if line.strip())


def numbered_lines(part: FilePart) -> Iterator[tuple[int, bytes]]:
    """Yield all lines, also empty ones, with their numbers in the file."""
    name = redacted(part.file)
    with _opened(part.file) as (stream, raw):
        _check_version(raw, part)
        try:
            if part.start:
                stream.seek(part.start - 1)
                _skip_line(stream)  # the rest of a line that begins before
            at = stream.tell() if part.end >= 0 else -2
            lines = iter(partial(stream.readline, _LONGEST_LINE + 1), b"")
            for number, line in enumerate(lines, part.line + 1):
                if at >= part.end:
                    break
                if len(line) > _LONGEST_LINE:
                    most = f"{_LONGEST_LINE:,} bytes"
                    raise BadSource(f"{name} line {number} is longer than {most}: shorten its text")
                at += len(line) if part.end >= 0 else 0
                yield number, line
        except (OSError, EOFError, zlib.error) as error:
            raise BadSource(f"{name} cannot be read: {error}") from error
        _check_version(raw, part)
        if isinstance(raw, RemoteFile) and raw.changed():
            raise BadSource(_CHANGED.format(name))


def _skip_line(stream: BinaryIO) -> None:
    while (line := stream.readline(_BUFFER)) and not line.endswith(b"\n"):
        pass


def _version(raw: RawIOBase) -> tuple[int, ...]:
    if isinstance(raw, RemoteFile):
        return raw.version
    facts = os.stat(raw.fileno())
    return facts.st_size, facts.st_mtime_ns


def _check_version(raw: RawIOBase, part: FilePart) -> None:
    if part.version and _version(raw) != part.version:
        raise BadSource(_CHANGED.format(redacted(part.file)))


def parts_of(files: Iterable[str], size: int) -> Iterator[FilePart]:
    """Divide files into parts of about `size` bytes; compressed ones stay whole.

    Reading a part fails if the file is another one by then.
    """
    for file in files:
        with _opened(file) as (_, raw):
            version = _version(raw)
        length = size_of([file])
        ends = [*range(size, length, size), -1]
        for start, end in zip([0, *ends], ends, strict=False):
            yield FilePart(file, start, end, version=version)


def size_of(files: Iterable[str]) -> int:
    """Return the bytes of all files; 0 if some are compressed or unreadable."""
    size = 0
    for path in files:
        try:
            with open_anywhere(path) as stream:
                head = stream.read(4)
                size += stream.seek(0, os.SEEK_END)
        except (OSError, BadSource):  # which reading will report
            return 0
        if head.startswith(_GZIP) or head == MAGIC:
            return 0
    return size


@contextmanager
def _opened(path: str) -> Iterator[tuple[BinaryIO, RawIOBase]]:
    """Open a file; yield its content, decompressed, and the file itself."""
    try:
        raw = RemoteFile(path, in_order=True) if is_remote(path) else FileIO(path)
    except OSError as error:
        raise BadSource(f"{path} cannot be read: {error.strerror}") from error
    with io.BufferedReader(raw, _BUFFER) as stream:
        head = stream.peek(4)[:4]
        if head.startswith(_GZIP):
            yield cast(BinaryIO, gzip.GzipFile(fileobj=stream)), raw
        elif head == MAGIC:
            yield io.BufferedReader(FrameStream(stream), 1 << 20), raw
        else:
            yield stream, raw
