"""Where documents come from: lines of JSON, and archives through `corpus`."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

from dedupindex.cover.preparing import Line
from dedupindex.errors import BadSource

_GZIP = b"\x1f\x8b"


def lines_of(paths: Iterable[Path]) -> Iterator[Line]:
    """Every line of files, with its place; files may be compressed with gzip."""
    for path in paths:
        with _opened(path) as stream:
            try:
                for number, line in enumerate(stream, 1):
                    if line.strip():
                        yield f"{path} line {number}", line
            except (OSError, EOFError) as error:
                raise BadSource(f"{path} cannot be read: {error}") from error


def _opened(path: Path) -> BinaryIO:
    try:
        with open(path, "rb") as stream:
            head = stream.read(2)
        return cast(BinaryIO, gzip.open(path)) if head == _GZIP else open(path, "rb")
    except OSError as error:
        raise BadSource(f"{path} cannot be read: {error.strerror}") from error


def is_lines(source: str) -> bool:
    """Whether a source is lines of JSON, by its name."""
    name = os.path.basename(source).removesuffix(".gz")
    return name.endswith((".json", ".jsonl", ".ndjson"))
