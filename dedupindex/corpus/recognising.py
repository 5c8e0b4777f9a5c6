"""What it is that a user names: an index, CDX files, WARC files or WACZ files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from dedupindex.corpus.capture_list import CaptureSource
from dedupindex.corpus.from_index import OfIndex
from dedupindex.corpus.from_warc import OfContainers, OfWacz, is_wacz_file
from dedupindex.corpus.listed import OfLines, line_files
from dedupindex.errors import BadSource
from dedupindex.index.identity import FILE
from dedupindex.object_store import is_many, is_remote, local
from dedupindex.sources.warc_files import find


def recognised(sources: Sequence[str], places: Sequence[str]) -> CaptureSource:
    """What these are: an index, WACZ files, CDX and CDXJ files, or else WARC and ARC files.

    Where directories hold both, the WARC files tell, because nobody knows whether a CDX there is of
    all of them, and of all that is in them. Raises `BadSource`.
    """
    if any((Path(source) / FILE).is_file() for source in sources):
        if len(sources) > 1:
            raise BadSource("an index stands alone: it knows where its captures are")
        return OfIndex(Path(sources[0]), tuple(places))
    if all(map(is_wacz_file, sources)):
        return OfWacz(tuple(sources), tuple(places))
    several = [source for source in sources if _is_directory(source)]
    others = [source for source in sources if source not in several]
    if line_files(others or sources, [])[0] and (others or not find(several, elsewhere=True).files):
        directories = [source for source in map(local, sources) if os.path.isdir(source)]
        return OfLines(tuple(sources), (*places, *directories))
    return OfContainers(tuple(sources), tuple(places))


def _is_directory(source: str) -> bool:
    return is_many(source) if is_remote(source) else os.path.isdir(local(source))
