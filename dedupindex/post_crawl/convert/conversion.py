"""What all conversions have in common: a file appears whole and verified, or not; their CDXJ."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar, NamedTuple

from dedupindex.errors import BadSource
from dedupindex.runtime.atomic_replace import (
    being_written,
    copy_metadata,
    create_file,
    open_part,
    part_path,
    remove_stale_parts,
    removing,
    reopen_read_only,
)
from dedupindex.warc.record import BrokenRecord
from dedupindex.warc.window import Window, open_window


class ConvertTask(NamedTuple):
    path: str
    target: Path
    keep: bool = True  # the stored bytes of members that zlib does not reproduce
    size: int = 0  # bytes of the file
    kind: str = ""  # the compression that `recompress` writes
    name: str = ""  # the file in a map of offsets
    offsets: Path | None = None  # where `recompress` writes such a map
    chains: tuple[Path, int] | None = None  # for `repoint`: Parquet file, number of the container


@dataclass
class ConvertOutcome:
    """What became of one file."""

    name: str
    state: str  # converted, existing (of an earlier run) or left_alone
    problem: str = ""  # why it was left alone
    records: int = 0  # that `recompress` copied
    repointed: int = 0  # revisits that `repoint` changed
    responses: int = 0
    resources: int = 0
    kept: int = 0  # stored bytes of members that zlib does not reproduce
    bytes_before: int = 0
    bytes_after: int = 0


class NotConverted(Exception):
    """The file cannot be converted; the text says where and why."""


class Conversion(ABC):
    """A conversion of one open file. All methods may raise `NotConverted`."""

    refused_target: ClassVar[str] = "exists already"
    """What to say of a target that fails `check`."""

    def __init__(self, task: ConvertTask, window: Window, outcome: ConvertOutcome) -> None:
        self.task, self.window, self.outcome = task, window, outcome

    @abstractmethod
    def write(self, file: BinaryIO) -> None:
        """Write the result."""

    @abstractmethod
    def check(self, path: Path) -> None:
        """Check that a file is what the conversion makes."""

    def run(self) -> str:
        """Return the state of the outcome."""
        if being_written(self.window.file):
            raise NotConverted("another process is writing to it")
        target = self.task.target
        remove_stale_parts([target])  # remove what interrupted runs left
        if target.exists():
            try:
                self.check(target)
            except NotConverted as error:
                raise NotConverted(f"{target} {self.refused_target}: {error}") from error
            return "existing"
        target.parent.mkdir(parents=True, exist_ok=True)
        part = part_path(target)
        with removing(part):
            with open_part(part, -1) as file:
                self.write(file)
                file.flush()
                copy_metadata(self.window.file, file)
                os.fsync(file.fileno())
                whole = reopen_read_only(part, file)
            with whole:
                self.check(part)
                if self.window.changed():
                    raise NotConverted("it was changed while it was read")
                try:
                    create_file(part, whole, target)
                except FileExistsError as error:  # of another process
                    raise NotConverted(
                        f"{target} was created by another process meanwhile"
                    ) from error
        return "converted"


def convert_file(task: ConvertTask, kind: type[Conversion]) -> ConvertOutcome:
    """Convert one file; raises `OSError` where writing fails, and leaves no file then."""
    outcome = ConvertOutcome(task.path, "left_alone")
    try:
        with closing(open_window(task.path, task.path)) as window:
            outcome.bytes_before = window.size
            outcome.state = kind(task, window, outcome).run()
            outcome.bytes_after = task.target.stat().st_size
    except (NotConverted, BadSource, BrokenRecord) as error:
        outcome.problem = str(error)
    return outcome
