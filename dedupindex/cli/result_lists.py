"""The lists that commands write of their results, and the command that an index needs then."""

from __future__ import annotations

import os
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory

from dedupindex.capture import Problem
from dedupindex.cli.common import say, warn
from dedupindex.cli.options import require_parent, with_dictionaries
from dedupindex.cli.output_files import CDXJ, OFFSETS, PAGE, check_output
from dedupindex.cli.progress_bar import show_progress
from dedupindex.counts import OnProgress
from dedupindex.errors import BadInput
from dedupindex.object_store import is_remote, redacted
from dedupindex.post_crawl.rewrite.offset_map import offset_lines
from dedupindex.post_crawl.rewrite.stored_journal import mirror_journals
from dedupindex.runtime.external_sort import sorted_lines
from dedupindex.runtime.files import (
    atomic_file,
    check_writable,
    is_utf8,
)
from dedupindex.runtime.tables import printable
from dedupindex.sources.warc_files import find

INDEX_PAGE = "docs/post-crawl.md#originals-outside-of-the-sources"
_MOST_STEPS, _MOST_RESULTS = 5, 20  # commands for an index, and results that one names
_NO_NAME = "its captures are not in the CDXJ: its name is not UTF-8"


def check_outputs(offsets: Path | None, cdxj: Path | None, html: Path | None = None) -> None:
    """Raise if a list cannot be written, or would replace another file, before hours of work.

    Raises `UsageError`, `BadInput` or `OSError`.
    """
    seen = set[Path]()
    for path, form in ((offsets, OFFSETS), (cdxj, CDXJ), (html, PAGE)):
        if path is None:
            continue
        if (target := path.resolve()) in seen:
            raise BadInput(f"two options name {path}, each to be written: choose another for one")
        seen.add(target)
        require_parent(path)
        check_output(path, form)
        check_writable(path)


def index_steps(out: str, files: Iterable[tuple[str, str]], spark: str = "") -> list[str]:
    """Return what an index needs that has `files`, whose results are below `out` now.

    These are pairs of a root and a name below it. If there are several roots, an index may have
    files of one name below two of them: then each root, and directory below it, has a command
    that names its results. If these are too many, one command names all roots; it is refused if
    the index has two such files.
    """
    by_root = defaultdict[str, list[str]](list)
    for root, name in sorted(files):
        by_root[root].append(name)
    if len(by_root) == 1:
        return [index_step([out], list(by_root), spark)]
    by_place = defaultdict[str, list[str]](list)
    for root, names in by_root.items():
        for name in names:
            place = f"{root}/{os.path.dirname(name)}".rstrip("/")
            by_place[place].append(f"{out.rstrip('/')}/{name}")
    if len(by_place) > _MOST_STEPS or max(map(len, by_place.values()), default=0) > _MOST_RESULTS:
        return [index_step([out], list(by_root), spark)]
    return [index_step(results, [place], spark) for place, results in by_place.items()]


def absolute(place: str) -> str:
    """Return a path or glob from the root on, so that a command with it works anywhere."""
    return place if is_remote(place) else os.path.abspath(place)


def restore_step(results: str, state: Path | None) -> str:
    """Return what restores the records of results, in another place."""
    more = f" --state {shlex.quote(str(state))}" if state else ""
    return f"restore the records: bin/undedup {shlex.quote(results)}{more} --out OTHER"


def reread_step(files: str) -> str:
    """Return what an index needs whose files were replaced in place, or restored."""
    command = with_dictionaries(f"bin/index --replace {files} INDEX")
    return printable(f"an index that has these files is outdated: {command}")


def index_step(results: Sequence[str], places: Sequence[str], spark: str = "") -> str:
    """Return what an index needs that has files below `places`, which are elsewhere now."""
    of = " ".join(f"--instead-of {shlex.quote(redacted(place))}" for place in places)
    more = f" --spark {shlex.quote(spark)}" if spark else ""
    named = " ".join(shlex.quote(redacted(result)) for result in map(absolute, results))
    return printable(
        "an index that has these files goes on answering with captures in "
        f"{' '.join(map(redacted, places))}: before you delete anything there, "
        + with_dictionaries(f"bin/index --replace {named} INDEX {of}{more}")
    )


def write_offsets(roots: Iterable[Path | str], target: Path | None) -> None:
    """Write the map of offsets of directories or prefixes with journals, if it is wanted."""
    if target is None:
        return
    with ExitStack() as mirrors, atomic_file(target) as stream:
        directories = list[Path]()
        for root in roots:
            directory = Path(root)
            if is_remote(str(root)):
                directory = Path(mirrors.enter_context(TemporaryDirectory()))
                mirror_journals(str(root), directory)
            directories.append(directory)
        stream.writelines(offset_lines(directories))


def write_cdxj(names: Mapping[str, str], target: Path, jobs: int) -> bool:
    """Write a CDXJ of files, by path; returns whether nothing is missing in it.

    Files of names that are not UTF-8 are left out: no line could state where their records are.
    """
    problems = [Problem(path, -1, _NO_NAME) for path in names if not is_utf8(path)]
    names = {path: name for path, name in names.items() if is_utf8(path)}
    with atomic_file(target) as stream:
        if names:
            with show_progress() as progress:
                stream.writelines(_cdxj(names, jobs, problems, progress))
    if problems:
        say(f"what {printable(str(target))} leaves out, also if it was named above:")
    warn(problems)
    return not problems


def _cdxj(
    names: Mapping[str, str], jobs: int, problems: list[Problem], on_progress: OnProgress
) -> Iterator[bytes]:
    """Yield the lines of a CDXJ of WARC files, sorted as bytes: of all their captures.

    `names` has the file names that the lines state, by the paths of the files. What cannot be read
    is added to `problems`. `jobs` processes read, 0: one per core.
    """
    from dedupindex.corpus.archive import Corpus  # slow: DuckDB
    from dedupindex.corpus.extract import nothing
    from dedupindex.corpus.extract_report import CorpusReport
    from dedupindex.corpus.output import cdxj_line

    corpus = Corpus.from_warcs(*names).having(jobs=jobs, on_progress=on_progress)
    with closing(corpus.kept(CorpusReport(problems=problems), nothing)) as captures:
        yield from sorted_lines(
            cdxj_line(capture, revisit=capture.revisit, container=names[capture.record.container])
            for capture, *_ in captures
        )


def names_below(places: Sequence[str]) -> dict[str, str]:
    """Return the names of the WARC files in some places, by path, for `write_cdxj`.

    They are those below the place, or below what several places have in common.
    """
    files = find(list(places)).files
    top = os.path.commonpath([file.root for file in files]) if files else ""
    return {file.path: os.path.relpath(file.path, top) for file in files}
