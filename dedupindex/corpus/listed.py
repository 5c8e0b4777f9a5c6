"""Captures of CDX and CDXJ files.

DuckDB reads them where they are, so that what a filter leaves out costs no more than to be looked
at.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from dedupindex.capture import Problem
from dedupindex.corpus.capture_list import KINDS, Revisits, SourceContext, looked_at
from dedupindex.corpus.from_cdx import file_of, select
from dedupindex.errors import BadSource
from dedupindex.object_store import RemoteFile, is_remote
from dedupindex.sources import expand


@dataclass(frozen=True)
class OfLines:
    """CDX and CDXJ files, plain or gzipped; those elsewhere are brought here first."""

    revisits: ClassVar[Revisits] = Revisits.LISTED
    sources: tuple[str, ...]
    places: tuple[str, ...] = ()

    def relation(self, work: SourceContext) -> str:
        files, others = line_files(self.sources, work.problems)
        if others:
            raise BadSource(f"{others[0]} is no CDX or CDXJ file, as other SOURCEs are: if these "
                            "tell of it, give it to --containers, or containers=; if not, make a "
                            "corpus of each kind")  # fmt: skip
        if not files:
            raise BadSource(f"there is no CDX or CDXJ file in {', '.join(self.sources)}")
        lines = []
        for number, (path, (kind, head)) in enumerate(files.items()):
            here = _fetched(path, work.home / f"{number}.lines") if is_remote(path) else Path(path)
            spare = work.home / f"{number}.text"
            lines.append(file_of(here, kind, head, path.rpartition("/")[0], spare))
        return select(lines)


def line_files(
    sources: Sequence[str], problems: list[Problem]
) -> tuple[dict[str, tuple[str, bytes]], list[str]]:
    """The CDX and CDXJ files in what is named, with kind and beginning; and what else was named."""
    found: dict[str, tuple[str, bytes]] = {}
    others = []
    for source in sources:
        for kind in KINDS:
            expanded = expand([source], kind)
            problems.extend(one for one in expanded.problems if one not in problems)
            for path in expanded.paths:
                if path not in found:
                    looked = looked_at(path)
                    if looked[0] in KINDS:
                        found[path] = looked
                    else:
                        others.append(path)
    return found, others


def _fetched(address: str, here: Path) -> Path:
    with RemoteFile(address, in_order=True) as stream, open(here, "wb") as file:
        shutil.copyfileobj(stream, file, 1 << 20)
    return here
