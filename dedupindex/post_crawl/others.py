"""Files that are named as archives are but cannot be read as such: copied as the bytes they are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from dedupindex.errors import Damaged
from dedupindex.post_crawl.rewrite.part_files import new_part, part_of, put_new, removed, sweep
from dedupindex.post_crawl.rewrite.rewrite_file import Left
from dedupindex.post_crawl.rewrite.rewrite_output import ANOTHER
from dedupindex.runtime.atomic_replace import (
    FileSink,
    being_written,
    identity,
    keep_metadata,
    open_for_reading,
    same_bytes,
)
from dedupindex.sources.discover import is_unfinished
from dedupindex.sources.warc_files import SourceFile


def awaited(file: SourceFile, out: Path | None) -> bool:
    """Whether a file is to be copied below `out` and is not there yet."""
    return out is not None and not is_unfinished(file.name) and not (out / file.name).exists()


def copy(file: SourceFile, out: Path, *, dry: bool = False) -> None:
    """Copy a file below `out`, whole or not at all; in a dry run only see whether that would do.

    Raises `Left` for what changes meanwhile, cannot be read, or is there with another content;
    `OSError` where writing fails.
    """
    target = out / file.name
    try:
        source = open_for_reading(file.path)
    except OSError as error:
        raise Left(f"it cannot be read: {error.strerror}") from error
    with source:
        if being_written(source):
            raise Left("some other process is writing to it")
        if target.exists():
            with open_for_reading(target) as there:
                if not same_bytes(source, there):
                    raise Left(f"{target} is there already, with another content: {ANOTHER}")
            return
        if dry:
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        sweep([target])  # of a killed run
        part = part_of(target)
        before = os.fstat(source.fileno())
        with removed(part), new_part(part) as into:
            _copied(source, into, before.st_size)
            keep_metadata(source, into)
            os.fsync(into.fileno())
            if identity(os.stat(file.path)) != identity(before):
                raise Left("it was changed while it was copied")
            try:
                put_new(part, into, target)
            except FileExistsError as error:  # by another process, since
                raise Left(f"{target} is there already: {ANOTHER}") from error


def _copied(source: BinaryIO, into: BinaryIO, size: int) -> None:
    try:
        FileSink(into).copy(source, 0, size)
    except Damaged as error:
        raise Left("it became shorter while it was copied") from error
