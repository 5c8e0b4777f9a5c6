"""Manifests of lines that tests make up."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha1
from pathlib import Path

import duckdb
from blake3 import blake3

from dedupindex.post_crawl.manifest.parquet import (
    CONTAINERS,
    FILE,
    FORMAT,
    LINES,
    REFERENCES,
    Line,
    ManifestContainer,
    ParquetWriter,
    lines_file,
    references_file,
)

SIZE = 1 << 20  # bytes of a made-up container


def container(
    number: int, name: str, root: str = "/set", content_hash: str = ""
) -> ManifestContainer:
    return ManifestContainer(
        number, root, name, SIZE, 0, number, 1, content_hash or f"hash of {name}"
    )


def line(place: int, offset: int, body: bytes = b"body", **more: object) -> Line:
    """A response that may be anything, unless `more` says otherwise."""
    values: dict[str, object] = {
        "container": place,
        "offset": offset,
        "stored": 100,
        "record_id": f"urn:uuid:{place}-{offset}".encode(),
        "url": b"http://a.test/",
        "date": b"2026-01-01T00:00:00Z",
        "digest": b"sha1:" + sha1(body).hexdigest().encode(),
        "payload": sha1(body).digest(),
        "covers": 3,
        "strong": blake3(body).digest(),
        "length": len(body),
        "status": 200,
        "coding": b"\n",
        "content_type": b"text/html",
        "replay_key": 1000 * place + offset,
        "not_rewritable_reason": "",
        "not_original_reason": "",
    }
    return Line(**{**values, **more})  # type: ignore[arg-type]


def write_manifest(top: Path, contents: Mapping[ManifestContainer, Sequence[Line]]) -> Path:
    """Write a finished manifest; the lines of each container in order of offset."""
    for name in (LINES, REFERENCES):
        (top / name).mkdir(parents=True)
    with duckdb.connect(config={"threads": 1}) as database:
        for empty in (lines_file(top, 0), references_file(top, 0)):
            ParquetWriter(empty).finish(database)
        for place, lines in contents.items():
            spool = ParquetWriter(lines_file(top, place.number))
            spool.add(sorted(lines, key=lambda line: line.offset))
            spool.finish(database)
    rest: dict[str, object] = {"records": {}, "problems": []}
    said = [
        json.dumps({**place._asdict(), "lines": len(lines), **rest}) + "\n"
        for place, lines in contents.items()
    ]
    (top / CONTAINERS).write_text("".join(said))
    about = {"format": FORMAT, "algorithm": "sha1", "complete": True}
    (top / FILE).write_text(json.dumps(about))
    return top
