"""Captures on their way to DuckDB: lines of JSON, which it reads without another library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import orjson

from dedupindex.corpus.row import COLUMNS
from dedupindex.runtime.duckdb import from_json
from dedupindex.runtime.files import check_name, writing

_LONGEST = 1 << 23  # bytes of a line
_BATCH = 1000


class JsonlWriter:
    """Takes captures; what is not known of one is left out."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stream: BinaryIO = open(path, "wb")  # noqa: SIM115 (the block closes it)
        self._lines: list[bytes] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        try:
            self._flush()
        finally:
            with writing(self._path):
                self._stream.close()

    def add(self, **values: str | int | bool | None) -> None:
        """Take one; raises `BadInput` for a container that cannot be spelled."""
        try:
            line = orjson.dumps({"revisit": False, "good": True, **values})
        except TypeError:
            check_name(str(values.get("container")))
            raise
        self._lines.append(line + b"\n")
        if len(self._lines) >= _BATCH:
            self._flush()

    def _flush(self) -> None:
        with writing(self._path):
            self._stream.write(b"".join(self._lines))
        self._lines.clear()


def relation(spools: Sequence[Path]) -> str:
    """SQL for all that is in spools."""
    return f"SELECT * FROM {from_json(spools, COLUMNS, _LONGEST)}"
