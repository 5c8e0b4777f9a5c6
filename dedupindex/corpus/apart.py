"""What is written must take the place of nothing that is read."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from dedupindex.errors import BadInput
from dedupindex.index.identity import FILE
from dedupindex.object_store import is_remote, local
from dedupindex.runtime.files import check_name, taken

_ARCHIVE = re.compile(r"\.(w?arc|wacz|cdxj?)(\.gz|\.zst)?$", re.IGNORECASE)
_OURS = re.compile(r"\.(jsonl?|ndjson|parquet|csv|html?)(\.gz|\.zst)?$", re.IGNORECASE)


def keep_apart(outputs: Sequence[Path], sources: Iterable[str]) -> None:
    """Refuse outputs that are one file, are a source, or would take the place of an archive.

    Or that have no directory to be in, or that of an index.

    Files that are there are written anew if they are as this project writes them; archives and
    their lists never are, whoever wrote them. Raises `BadInput`.
    """
    places = [output.resolve() for output in outputs]
    for number, (output, place) in enumerate(zip(outputs, places, strict=True)):
        check_name(str(output))
        if place in places[:number]:
            raise BadInput(f"{output} is named for two things to write: name another")
        if not place.parent.is_dir():
            raise BadInput(f"{output} cannot be written: there is no directory {output.parent}")
        if (place.parent / FILE).exists():
            raise BadInput(f"{output} is in the directory of an index: name another place")
        if not place.exists():
            continue
        if _ARCHIVE.search(place.name) or _ARCHIVE.search(output.name):
            raise taken(output)
        for source in map(Path, (local(one) for one in sources if not is_remote(local(one)))):
            if not source.exists():
                continue
            below = source.is_dir() and place.is_relative_to(source.resolve())
            if os.path.samefile(source, place) or (below and not _OURS.search(place.name)):
                raise BadInput(f"{output} is read as a SOURCE: name another to write to")
