"""What tells of captures: CDX and CDXJ files, WARC files themselves, an index.

Each becomes a relation of DuckDB with the columns of `captures`. CDX and CDXJ are read by DuckDB
where they are, so that what a filter leaves out costs no more than to be looked at.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from dedupindex.capture import Problem
from dedupindex.corpus.captures import shown
from dedupindex.corpus.lines import select
from dedupindex.corpus.scanning import Task, scan
from dedupindex.corpus.spool import Spool, relation
from dedupindex.errors import BadSource
from dedupindex.index import open_index
from dedupindex.index.identity import FILE
from dedupindex.manifest.finding import find
from dedupindex.original import url_as_json
from dedupindex.processes import side_by_side
from dedupindex.remote import RemoteFile, is_remote, local
from dedupindex.sources import expand
from dedupindex.sources.kinds import HEAD, kind_of
from dedupindex.timestamps import digits_of_date
from dedupindex.urlkey import urlkey

_KINDS = ("cdx", "cdxj")


class Work(NamedTuple):
    """What a source has to work with."""

    home: Path  # an empty directory of its own
    jobs: int
    problems: list[Problem]


class Told(Protocol):
    """Where captures are known from."""

    def relation(self, work: Work) -> str:
        """SQL that yields `captures.COLUMNS`; it may be run twice. Raises `BadSource`."""

    @property
    def places(self) -> tuple[str, ...]:
        """Where containers may be that have no path of their own."""


@dataclass(frozen=True)
class OfLines:
    """CDX and CDXJ files, plain or gzipped; those elsewhere are brought here first."""

    sources: tuple[str, ...]
    places: tuple[str, ...] = ()

    def relation(self, work: Work) -> str:
        files, others = _line_files(self.sources, work.problems)
        if others:
            raise BadSource(f"{others[0]} is no CDX or CDXJ file")
        if not files:
            raise BadSource(f"there is no CDX or CDXJ file in {', '.join(self.sources)}")
        parts = []
        for number, (path, (kind, head)) in enumerate(files.items()):
            here = _fetched(path, work.home / f"{number}.lines") if is_remote(path) else Path(path)
            parts.append(select(here, kind, head, path.rpartition("/")[0]))
        return " UNION ALL ".join(parts)


@dataclass(frozen=True)
class OfContainers:
    """WARC and ARC files, which are read from their first byte to their last."""

    sources: tuple[str, ...]
    places: tuple[str, ...] = ()

    def relation(self, work: Work) -> str:
        for source in self.sources:
            if os.path.isfile(source) and _looked_at(source)[0] == "wacz":
                raise BadSource(
                    f"{source} is a WACZ, which is not read here: unpack it, archive/ in it has "
                    "the WARC files and indexes/ a CDXJ"
                )
        found = find(self.sources, elsewhere=True)
        work.problems.extend(found.problems)
        tasks = [
            Task(file.path, work.home / f"{number}.rows") for number, file in enumerate(found.files)
        ]
        if not tasks:
            raise BadSource(f"there is no WARC or ARC file in {', '.join(self.sources)}")
        for scanned in side_by_side(scan, None, tasks, work.jobs):
            work.problems.extend(scanned.problems)
        return relation([task.spool for task in tasks])


@dataclass(frozen=True)
class OfIndex:
    """The originals that an index holds; it knows no revisits."""

    index: Path
    places: tuple[str, ...] = ()

    def relation(self, work: Work) -> str:
        spool = work.home / "index.rows"
        engine = open_index(self.index)
        try:
            with engine.view() as view, Spool(spool) as rows:
                for digest, capture in view.captures():
                    if digest != capture.digest:
                        continue  # it stands under further digests, too
                    rows.add(
                        surt=shown(urlkey(capture.url)),
                        timestamp=digits_of_date(capture.date).decode(),
                        url=url_as_json(capture.url)["url"],
                        mime=capture.mime.decode("latin-1") or None,
                        status=capture.status or None,
                        digest=capture.digest.spelled(capture.spelling).removeprefix("sha1:"),
                        length=capture.size if capture.size_of_record else None,
                        offset=capture.offset if capture.offset >= 0 else None,
                        container=capture.container or None,
                    )
        finally:
            engine.close()
        return relation([spool])


def told_by(sources: Sequence[str], places: Sequence[str]) -> Told:
    """What these are: an index, CDX and CDXJ files, or else WARC and ARC files.

    Where directories hold both, the CDX files tell. Raises `BadSource`.
    """
    if any((Path(source) / FILE).is_file() for source in sources):
        if len(sources) > 1:
            raise BadSource("an index stands alone: it knows where its captures are")
        return OfIndex(Path(sources[0]), tuple(places))
    if _line_files(sources, [])[0]:
        directories = [source for source in map(local, sources) if os.path.isdir(source)]
        return OfLines(tuple(sources), (*places, *directories))
    return OfContainers(tuple(sources), tuple(places))


def _line_files(
    sources: Sequence[str], problems: list[Problem]
) -> tuple[dict[str, tuple[str, bytes]], list[str]]:
    """The CDX and CDXJ files in what is named, with kind and beginning; and what else was named."""
    found: dict[str, tuple[str, bytes]] = {}
    others = []
    for source in sources:
        for kind in _KINDS:
            expanded = expand([source], kind)
            problems.extend(one for one in expanded.problems if one not in problems)
            for path in expanded.paths:
                if path not in found:
                    looked = _looked_at(path)
                    if looked[0] in _KINDS:
                        found[path] = looked
                    else:
                        others.append(path)
    return found, others


def _fetched(address: str, here: Path) -> Path:
    with RemoteFile(address, in_order=True) as stream, open(here, "wb") as file:
        shutil.copyfileobj(stream, file, 1 << 20)
    return here


def _looked_at(path: str) -> tuple[str, bytes]:
    """What kind of file it is, and how it begins."""
    try:
        with RemoteFile(path) if is_remote(path) else open(path, "rb") as stream:
            head = stream.read(HEAD)
            return kind_of(head, stream), head
    except OSError as error:
        raise BadSource(f"{path} cannot be read: {error.strerror}") from error
