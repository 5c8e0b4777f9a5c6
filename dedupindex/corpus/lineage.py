"""How a corpus was made: what it says of its sources and steps, so that it can be made again.

ArchiveSpark asks for this of every corpus (Holzmann, Goel, Anand: ArchiveSpark, JCDL 2016, §4.5).
Parquet files have it as metadata under the key `KEY`, WARC files in their warcinfo record, and
lines of JSON, by choice, in the first line.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
from blake3 import blake3

from dedupindex import __version__
from dedupindex.errors import BadInput, DedupError
from dedupindex.index import open_index
from dedupindex.index.identity import FILE
from dedupindex.indexer.tasks import hash_of
from dedupindex.object_store import facts, is_remote
from dedupindex.runtime.duckdb import errors_as, literal, one_thread, quoted
from dedupindex.sources.discover import expand

KEY = "dedupindex-lineage"
_FIRST = 1 << 24  # bytes of the first line or record that are read


def lineage(
    sources: Iterable[str], steps: Sequence[str], revisits: str, arguments: Sequence[str]
) -> dict[str, Any]:
    """Return what describes a corpus; reads all local sources. Raises `BadSource`.

    `steps` are the operations as they are written in Python, `arguments` those of ``bin/corpus``,
    none if a program made the corpus.
    """
    return {
        "software": f"dedupindex/{__version__}",
        "made": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "directory": os.getcwd(),
        "arguments": list(arguments),
        "steps": list(steps),
        "revisits": revisits,
        "sources": list(map(_facts, sources)),
    }


def _facts(source: str) -> dict[str, Any]:
    """Return what shows later whether a source is the same."""
    if (Path(source) / FILE).is_file():
        with closing(open_index(Path(source))) as engine, engine.view() as view:
            held = view.counts()._asdict()  # what is added leaves the generation as it is
            return {
                "index": os.path.abspath(source), "generation": engine.identity.generation, **held
            }  # fmt: skip
    if is_remote(source):
        with suppress(DedupError):  # a CDX server, or a pattern
            found = facts(source)
            return {"name": source, "bytes": found.size, "version": found.version}
        return {"name": source}
    name = os.path.abspath(source)
    if os.path.isfile(name):
        return {"name": name, "bytes": os.path.getsize(name), "blake3": hash_of(name)}
    hasher, size, paths = blake3(), 0, sorted(expand([source]).paths)
    for path in paths:
        length = os.path.getsize(path)
        hasher.update(f"{hash_of(path)} {length} {os.path.relpath(path, name)}\n".encode(
            "utf-8", "surrogateescape"
        ))  # fmt: skip
        size += length
    return {"name": name, "files": len(paths), "bytes": size, "blake3": hasher.hexdigest()}


def changed_sources(made: dict[str, Any]) -> Iterator[str]:
    """Yield a sentence for each source that is not as it was; raises `BadSource`."""
    before = {one.get("name") or one.get("index"): one for one in made["sources"]}
    for name, fields in before.items():
        try:
            now = _facts(name)
        except (DedupError, OSError) as error:
            yield f"{name} cannot be read any more: {error}"
            continue
        if now != fields:
            yield f"{name} has changed since the corpus was made"


def read_lineage(path: Path) -> dict[str, Any]:
    """Return the lineage of a corpus; raises `BadInput` if the file has none."""
    readers: list[tuple[str, Callable[[Path], bytes]]] = [
        (".parquet", _of_parquet), (".warc.gz", _of_warc), ("", _of_lines)
    ]  # fmt: skip
    read = next(reader for ending, reader in readers if path.name.endswith(ending))
    try:
        found = orjson.loads(read(path) or b"{}")
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from error
    except (orjson.JSONDecodeError, zlib.error, EOFError):
        found = {}
    made = found.get(KEY, found) if isinstance(found, dict) else {}
    if not _is_lineage(made):
        raise BadInput(
            f"{path} does not say how it was made: bin/corpus writes that into Parquet and WARC "
            "files, and into lines of JSON with --lineage"
        )
    return dict(made)


def _is_lineage(made: Any) -> bool:
    """Whether all that `bin/corpus --again` uses is there; a file may hold anything."""
    if not isinstance(made, dict) or not isinstance(made.get("directory"), str):
        return False
    arguments, sources = made.get("arguments"), made.get("sources")
    return (
        isinstance(arguments, list)
        and all(isinstance(word, str) and word != "--again" for word in arguments)
        and isinstance(sources, list)
        and all(
            isinstance(one, dict) and isinstance(one.get("name") or one.get("index"), str)
            for one in sources
        )
    )


def _of_parquet(path: Path) -> bytes:
    with one_thread() as database, errors_as(BadInput):
        query = f"SELECT value FROM parquet_kv_metadata({quoted(literal(path))}) WHERE key = ?"
        row = database.execute(query, [KEY.encode()]).fetchone()
    return bytes(row[0]) if row else b""


def _of_warc(path: Path) -> bytes:
    with open(path, "rb") as stream:
        text = zlib.decompressobj(31).decompress(stream.read(_FIRST), _FIRST)
    begin = text.find(f"\r\n{KEY}: ".encode())
    return text[begin + len(KEY) + 4 :].partition(b"\r\n")[0] if begin >= 0 else b""


def _of_lines(path: Path) -> bytes:
    with open(path, "rb") as stream:
        if path.name.endswith(".zst"):
            import zstandard  # most runs need none

            try:
                data = zstandard.ZstdDecompressor().stream_reader(stream).read(_FIRST)
            except zstandard.ZstdError as error:
                raise EOFError from error
        else:
            data = stream.read(_FIRST)
    if path.name.endswith(".gz"):
        data = zlib.decompressobj(31).decompress(data, _FIRST)
    return data.partition(b"\n")[0]


def as_first_line(made: dict[str, Any]) -> bytes:
    """Return the lineage as the first line of JSON lines."""
    return orjson.dumps({KEY: made})


def as_text(made: dict[str, Any]) -> str:
    """Return the lineage as one line of ASCII."""
    return json.dumps(made, separators=(",", ":"))
