"""Lines of documents on their way to DuckDB: their metadata as JSON, their shingles as text.

Both are spooled, because that is what DuckDB reads fast and without a second library. It is done in
batches, side by side where there are processes for it.
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any, BinaryIO, NamedTuple, cast

import orjson

from dedupindex.corpus.archive import Corpus
from dedupindex.corpus.capture_list import Revisits
from dedupindex.corpus.enrich import Entry, Failed
from dedupindex.corpus.extract_report import CorpusReport
from dedupindex.corpus.row import CorpusRow
from dedupindex.corpus.select import Spooled
from dedupindex.counts import OnProgress
from dedupindex.cover.document_lines import document
from dedupindex.cover.relation import Document, content_of, shingles, terms
from dedupindex.errors import BadInput, BadSource, to_install
from dedupindex.expression.evaluate import hostname
from dedupindex.runtime.files import named_errors
from dedupindex.timestamps import date_of_digits, seconds

MOST = 500  # lines of a batch
_MOST_BYTES = 4 << 20  # the same, of longer ones
_KNOWN = 100_000  # texts that are known to have been prepared

Line = tuple[str, bytes]  # where it stands, and what it says


class LineBatch(NamedTuple):
    """Lines; the first is document number `first`."""

    first: int
    lines: list[Line]
    ks: tuple[int, ...]
    run: str  # tells runs apart


class Prepared(NamedTuple):
    """What a batch comes to: rows for `store`."""

    documents: bytes
    shingles: dict[int, bytes]
    lines: int
    empty: int  # documents without text
    size: int  # bytes of these lines


def batches(lines: Iterable[Line], first: int, ks: tuple[int, ...]) -> Iterator[LineBatch]:
    """All lines, so many at a time."""
    run = token_hex()
    held: list[Line] = []
    size = 0
    for line in lines:
        held.append(line)
        size += len(line[1])
        if len(held) >= MOST or size >= _MOST_BYTES:
            yield LineBatch(first, held, ks, run)
            first += len(held)
            held, size = [], 0
    if held:
        yield LineBatch(first, held, ks, run)


_known: set[str] = set()  # contents whose shingles this process has prepared
_run = [""]  # in which run


def prepare(batch: LineBatch) -> Prepared:
    """Do a batch; raises `BadSource`.

    Of equal texts the shingles are wanted of the first; batches come in order, so that it is never
    the first that a process leaves out.
    """
    rows: list[bytes] = []
    spools: dict[int, list[str]] = {k: [] for k in batch.ks}
    empty = size = 0
    if _run != [batch.run] or len(_known) > _KNOWN:
        _run[:] = [batch.run]
        _known.clear()
    for n, (where, line) in enumerate(batch.lines, batch.first):
        size += len(line)
        found = document(line, where)
        words = terms(found.text) if batch.ks else []
        content = content_of(words)
        empty += not words
        row = row_of(n, found, content)
        for k in batch.ks:
            some = shingles(words, k)
            row[f"s{k}"] = len(some)
            if some and content not in _known:
                spools[k].append(f"{n}\t" + f"\n{n}\t".join(some) + "\n")
        if content:
            _known.add(content)
        rows.append(orjson.dumps(row))
    made = {k: "".join(spool).encode() for k, spool in spools.items()}
    return Prepared(b"\n".join(rows) + b"\n", made, len(rows), empty, size)


def row_of(n: int, found: Document, content: str) -> dict[str, Any]:
    """A document as `store` takes it."""
    moment = found.timestamp
    return {
        "n": n,
        "id": _clean(found.id),
        "url": _clean(found.url),
        "hostname": _clean(hostname(found.url)),
        "mime": _clean(found.mime),
        "title": _clean(found.title),
        "timestamp": seconds(date_of_digits(moment.encode())) if moment else None,
        "digits": moment,
        "status": found.status,
        "size": found.size,
        "quality": found.quality,
        "container": _clean(found.container),
        "offset": found.offset,
        "length": found.length,
        "of_container": _clean(found.of[0]) if found.of else None,
        "of_offset": found.of[1] if found.of else None,
        "of_url": _clean(found.names[0]) if found.names else None,
        "of_digits": found.names[1] if found.names else None,
        "digest": found.digest,
        "of_digest": found.of_digest,
        "content": content,
    }


def _clean(text: str | None) -> str | None:
    """Without what JSON or DuckDB cannot hold."""
    if text is None:
        return None
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


# Where documents come from: lines of JSON, and archives through `corpus`.

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_TEXT, _TITLE = "payload.string.text", "payload.string.html.title"


class Archives(NamedTuple):
    """How archives are read."""

    where: tuple[str, ...] = ()  # conditions on the metadata of captures
    containers: tuple[str, ...] = ()  # where these are
    originals: Path | None = None  # an index in which those of revisits are looked up, too
    jobs: int = 1
    memory: str = "1GB"


class Gathered(NamedTuple):
    """What sources come to."""

    files: list[Path]  # of lines
    left_out: list[Path]  # of revisits that conditions leave out; see `needs`
    report: CorpusReport
    all_revisits: bool = True  # whether for certain all that the sources hold were told


def gather(
    sources: Sequence[str],
    how: Archives,
    home: Path,
    on_progress: OnProgress,
    *,
    listing: bool = False,
) -> Gathered:
    """Files of lines of JSON: those among the sources, and one of what archives hold.

    `listing` needs revisits, which an index does not know. Raises `BadInput`, `BadSource`.
    """
    lines = [Path(source) for source in sources if is_lines(source)]
    archives = [source for source in sources if not is_lines(source)]
    report = CorpusReport()
    if not archives:
        if how.where or how.containers or how.originals:
            raise BadInput("--where, --containers and --originals are of archives, and lines of "
                           "JSON are none")  # fmt: skip
        return Gathered(lines, [], report)
    spared = home / "spared"
    spared.mkdir()
    corpus = Corpus.of(*archives, containers=how.containers).having(
        originals=how.originals,
        jobs=how.jobs,
        memory=how.memory,
        work=home,
        spared=spared if how.where else None,
        on_progress=on_progress,
    )
    known = corpus.told.revisits
    if listing and known is Revisits.NONE:
        raise BadInput("--list: an index knows no revisits, and what they repeat would be on the "
                       "list: name the WARC files that it was made of")  # fmt: skip
    for condition in how.where:
        corpus = corpus.where(condition)
    found = home / "captures.jsonl"
    with named_errors(found), open(found, "wb") as stream:
        for kept in corpus.enrich("text", "html.title").kept(report, _as_line):
            stream.write(kept.made + b"\n")
    left_out = home / "left_out.jsonl"
    with open(left_out, "wb") as stream:
        for chunk in Spooled(spared) if how.where else ():
            for (capture,) in chunk.groups:
                stream.write(orjson.dumps(_told(capture)) + b"\n")
    return Gathered([*lines, found], [left_out], report, known is Revisits.ALL)


def is_lines(source: str) -> bool:
    """Whether a source is lines of JSON, by its name."""
    name = os.path.basename(source).removesuffix(".gz").removesuffix(".zst")
    return name.endswith((".json", ".jsonl", ".ndjson"))


def _as_line(entry: Entry) -> bytes:
    """A capture as `lines` reads it; a text that cannot be read is none, and the error counts."""
    text, title = _asked(entry, _TEXT) or "", _asked(entry, _TITLE)
    return orjson.dumps({**_told(entry.capture), "text": text, "title": title})


def _told(capture: CorpusRow) -> dict[str, Any]:
    """What the metadata of a capture say."""
    place, of = capture.record, capture.payload
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
        "of": [of.container, of.offset] if of is not None and of.container else None,
        "revisitOf": capture.revisit_of,
        "ofDigest": capture.digest if capture.revisit and not capture.unmodified else None,
    }


def _asked(entry: Entry, path: str) -> str | None:
    try:
        value = entry.value(path)
    except Failed as error:
        entry.fail(error)
        return None
    return value if isinstance(value, str) else None


def lines_of(paths: Iterable[Path]) -> Iterator[Line]:
    """Every line of files, with its place; files may be compressed with gzip or zstd."""
    for path in paths:
        with _opened(path) as stream:
            try:
                for number, line in enumerate(stream, 1):
                    if line.strip():
                        yield f"{path} line {number}", line
            except _damage() as error:
                raise BadSource(f"{path} cannot be read: {error}") from error


def size_of(paths: Iterable[Path]) -> int:
    """Bytes of all lines; 0 if compressed ones are among them, or what cannot be read."""
    size = 0
    for path in paths:
        try:
            with open(path, "rb") as stream:
                head = stream.read(4)
                size += stream.seek(0, os.SEEK_END)
        except OSError:  # which reading tells of
            return 0
        if head.startswith(_GZIP) or head == _ZSTD:
            return 0
    return size


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        stream = open(path, "rb")  # noqa: SIM115 (the block closes it)
    except OSError as error:
        raise BadSource(f"{path} cannot be read: {error.strerror}") from error
    with stream:
        head = stream.peek(4)[:4]
        if head.startswith(_GZIP):
            yield cast(BinaryIO, gzip.GzipFile(fileobj=stream))
        elif head == _ZSTD:
            yield _unzstded(stream, path)
        else:
            yield stream


def _unzstded(stream: BinaryIO, path: Path) -> BinaryIO:
    try:
        import zstandard  # an extra
    except ImportError as error:
        raise BadInput(f"{path} needs a package: {to_install('corpus')}") from error
    return io.BufferedReader(_Frames(stream, zstandard.ZstdDecompressor()), 1 << 20)


class _Frames(io.RawIOBase):
    """What zstd frames hold; one that does not end is `EOFError`, which its reader lets pass."""

    def __init__(self, stream: BinaryIO, decompressor: Any) -> None:
        self._stream, self._decompressor = stream, decompressor
        self._frame: Any = None
        self._rest = self._made = b""

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        while not self._made:
            data = self._rest or self._stream.read(1 << 17)
            if not data:
                if self._frame is not None:
                    raise EOFError("it ends within a compressed frame")
                return 0
            frame = self._frame or self._decompressor.decompressobj()
            self._made = frame.decompress(data)
            self._rest = frame.unused_data
            self._frame = None if frame.eof else frame
        count = min(len(self._made), len(into))
        into[:count], self._made = self._made[:count], self._made[count:]
        return count


def _damage() -> tuple[type[Exception], ...]:
    """What reading a damaged file raises."""
    found: tuple[type[Exception], ...] = (OSError, EOFError, zlib.error)
    try:
        import zstandard  # an extra
    except ImportError:
        return found
    return (*found, zstandard.ZstdError)
