"""Captures of WARC and ARC files, which are their own metadata, and of those in a WACZ."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar

from dedupindex.corpus.capture_list import KINDS, Revisits, SourceContext, looked_at
from dedupindex.corpus.from_cdx import CdxFile, file_of, has_lines, select
from dedupindex.corpus.scanning import CorpusScanTask, scan
from dedupindex.corpus.spool import relation
from dedupindex.errors import BadSource
from dedupindex.object_store import RemoteFile, is_remote, local, opened
from dedupindex.runtime.workers import side_by_side
from dedupindex.sources.warc_files import find
from dedupindex.warc import wacz_members


@dataclass(frozen=True)
class OfContainers:
    """WARC and ARC files, which are read from their first byte to their last; those of a WACZ, too.

    In directories WACZ files are passed over: those of Browsertrix stand beside the files in them.
    """

    revisits: ClassVar[Revisits] = Revisits.ALL
    sources: tuple[str, ...]
    places: tuple[str, ...] = ()

    def relation(self, work: SourceContext) -> str:
        zips = [source for source in self.sources if is_wacz_file(source)]
        found = find([source for source in self.sources if source not in zips], elsewhere=True)
        work.problems.extend(found.problems)
        paths = [file.path for file in found.files] + [one for zip in zips for one in _in_wacz(zip)]
        if not paths:
            raise BadSource(f"there is no WARC or ARC file in {', '.join(self.sources)}; a WACZ is "
                            "to be named itself")  # fmt: skip
        tasks = [
            CorpusScanTask(path, work.home / f"{number}.rows")
            for number, path in enumerate(dict.fromkeys(paths))
        ]
        for scanned in side_by_side(scan, None, tasks, work.jobs):
            work.problems.extend(scanned.problems)
        return relation([task.spool for task in tasks])


@dataclass(frozen=True)
class OfWacz:
    """WACZ files: of each the index in it tells, or if that has no lines the files in it."""

    revisits: ClassVar[Revisits] = Revisits.LISTED
    sources: tuple[str, ...]
    places: tuple[str, ...] = ()

    def relation(self, work: SourceContext) -> str:
        lines: list[CdxFile] = []
        scanned: list[str] = []
        for number, path in enumerate(dict.fromkeys(map(_full, self.sources))):
            home = work.home / f"{number}"
            home.mkdir()
            told = _indexes(path, home)
            lines += [
                file_of(here, kind, head, path, home / f"{count}.text")
                for count, (here, kind, head) in enumerate(told)
            ]
            if not told:
                scanned.append(path)
        parts = [select(lines)] if lines else []
        if scanned:
            parts.append(OfContainers(tuple(scanned)).relation(work))
        return " UNION ALL ".join(parts)


def _indexes(path: str, home: Path) -> list[tuple[Path, str, bytes]]:
    """The indexes of a WACZ that tell, unpacked, with kind and beginning: those that have lines.

    Of both kinds those of CDXJ do, as they say more: the others will be of the same captures.
    """
    with _zipped(path) as file:
        unpacked = wacz_members.unpack_indexes(file, home)
    told = []
    for name, here in unpacked:
        kind, head = looked_at(str(here))
        if has_lines(head):
            if kind not in KINDS:
                raise BadSource(f"{path} has an index that is no CDX or CDXJ: {name}")
            told.append((here, kind, head))
    return [one for one in told if one[1] == "cdxj"] or told


def is_wacz_file(source: str) -> bool:
    if is_remote(source):
        return wacz_members.is_wacz(source)
    return os.path.isfile(local(source)) and looked_at(local(source))[0] == "wacz"


def _in_wacz(source: str) -> list[str]:
    """The containers in a WACZ; raises `BadSource`."""
    path = _full(source)
    with _zipped(path) as file:
        return wacz_members.containers(path, file)


def _full(source: str) -> str:
    return source if is_remote(source) else os.path.abspath(local(source))


@contextmanager
def _zipped(path: str) -> Iterator[BinaryIO | RemoteFile]:
    """A WACZ to be read; raises `BadSource` for all that is wrong with it."""
    try:
        with opened(path) as file:
            yield file
    except wacz_members.BROKEN as error:
        raise BadSource(f"{path} cannot be read as a WACZ: {error}") from error
