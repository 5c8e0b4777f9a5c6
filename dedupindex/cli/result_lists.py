"""The lists that commands write of their results: a CDXJ, and a map of offsets."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from dedupindex.capture import Problem
from dedupindex.cli.common import warn
from dedupindex.errors import BadInput
from dedupindex.post_crawl.result_cdxj import cdxj
from dedupindex.runtime.files import already_exists, atomic_file
from dedupindex.sources.discover import detect_kind
from dedupindex.sources.warc_files import find


def check_outputs(paths: Iterable[Path | None]) -> None:
    """Raise `BadInput` if a list cannot be written to one of the paths, before hours of work."""
    for path in filter(None, paths):
        if not path.absolute().parent.is_dir():
            raise BadInput(f"{path} cannot be written: its directory does not exist")
        if path.exists() and detect_kind(str(path))[0] in ("warc", "arc", "wacz"):
            raise already_exists(path)


def write_cdxj(names: Mapping[str, str], target: Path, jobs: int) -> bool:
    """Write a CDXJ of files, by path; returns whether nothing is missing in it."""
    problems: list[Problem] = []
    with atomic_file(target) as stream:
        if names:
            stream.writelines(cdxj(names, jobs, problems))
    warn(problems)
    return not problems


def names_below(places: Sequence[str]) -> dict[str, str]:
    """Return the names of the WARC files in some places, by path, for `write_cdxj`.

    They are those below the place, or below what several places have in common.
    """
    files = find(list(places)).files
    top = os.path.commonpath([file.root for file in files]) if files else ""
    return {file.path: os.path.relpath(file.path, top) for file in files}
