"""Tell an index what a run of `dedup_all` has changed: which records are revisits now, and where.

The results are read, and in the same load the captures of the files before are dropped; then those
of crawls that are not merged. Each file keeps its crawl. The revisits that are read also refute
rows of CDX files. Captures of any file that had lost to a dropped one are taken from the ledger.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from dedupindex.capture import Problem
from dedupindex.counts import OnProgress
from dedupindex.crawls.stores import open_store
from dedupindex.errors import BadInput
from dedupindex.index import open_index
from dedupindex.index.engine import Load, View
from dedupindex.index.format.cells import DEPENDENT, NOWHERE
from dedupindex.index.format.ledger import split_items
from dedupindex.index.identity import Identity, Settings, read_identity
from dedupindex.index.load.merge_rule import MergeOutcome, MergeRule
from dedupindex.index.load.runs import RunWriter
from dedupindex.indexer.pipeline import Build, build, source_options
from dedupindex.object_store import is_remote, local, redacted
from dedupindex.post_crawl.purge.remove import RUN_BYTES, remove_live, scratch_of
from dedupindex.post_crawl.purge.target import ResolvedTarget, Target, TargetKind
from dedupindex.runtime.files import exclusive
from dedupindex.sources.warc_files import find, nothing_found


class ChangedFile(NamedTuple):
    """A file of a set and its result, by absolute paths or addresses; the same in place."""

    before: str
    result: str

    def names(self) -> set[str]:
        """Return the names by which an index or a crawler may know the file before."""
        return {*_whole_names(self.before), os.path.basename(self.before)}


class IndexedResults(NamedTuple):
    """What was read in place of other files."""

    read: int  # results
    problems: list[Problem]  # what could not be read
    remaining: list[str]  # files of which no result was named, whose captures the index still has


@dataclass
class _CrawlFiles:
    """The results of the files of one crawl, and the names whose captures are dropped."""

    results: list[str] = field(default_factory=list)
    dropped: set[str] = field(default_factory=set)


def update_index(
    index: Path,
    files: Iterable[ChangedFile],
    others: Iterable[str],
    jobs: int,
    on_progress: OnProgress,
    spark: str = "",
) -> tuple[int, list[Problem]]:
    """Read changed files into an index; return how many were read, and what could not be.

    `spark` is the master of the cluster that reads them, "" for processes here.

    Of the `others` of the set, which have not changed, those are read that the index lacks. What
    the index has as it is now is not read again, so an interrupted update is repeated. Files
    whose captures were purged are left out. Raises `DedupError`.
    """
    changed, identity = list(files), read_identity(index)
    with closing(open_index(index)) as engine, engine.view() as view:
        for path in others:
            if not any(map(view.container, _whole_names(path))):
                changed.append(ChangedFile(path, path))
        by_crawl = _by_crawl(changed, view)
    read, problems = 0, list[Problem]()
    for crawl, found in sorted(by_crawl.items()):
        job = Build(
            sorted(found.results), index, identity.settings, identity.engine,
            options=source_options(identity.settings), replace=True, jobs=jobs, crawl=crawl,
            dropped=frozenset(found.dropped), spark=spark,
        )  # fmt: skip
        built = build(job, on_progress)
        read += built.tally.containers
        problems += built.problems
    if changed:
        _restore_copies(index, identity)
    store = open_store(index) if changed else None
    if store is not None:
        with closing(store):
            target = Target(TargetKind.CONTAINER, tuple(file.before for file in changed))
            settings = identity.settings
            remove_live(store, ResolvedTarget(target, settings.keys()), settings)
    return read, problems


def index_results(
    index: Path,
    sources: Sequence[str],
    places: Sequence[str],
    jobs: int,
    on_progress: OnProgress,
    spark: str = "",
) -> IndexedResults:
    """Read results into an index in place of the files that they were made from.

    These have the same names below `places`, directories or addresses that need not exist any more.
    Raises `DedupError`.
    """
    found = find(sources)
    files = [*found.files, *found.others]
    if not files:
        raise nothing_found(sources)
    tops = list(dict.fromkeys(one.rstrip("/") if is_remote(one) else os.path.abspath(one)
                              for one in map(local, places)))  # fmt: skip
    if same := sorted({file.root for file in files} & set(tops)):
        raise BadInput(
            f"{redacted(same[0])} is named as source and with --instead-of: files that were "
            "replaced in place are read again with --replace alone"
        )
    below = tuple(f"{name}/" for top in tops for name in _whole_names(top))
    with closing(open_index(index)) as engine, engine.view() as view:
        names = [one.name for one in view.containers() if not one.purged]
        known = {name for name in names if name.startswith(below)}
        known.update(ref.container for _, ref in view.places() if ref.container.startswith(below))
    changed = [ChangedFile(_before(file.name, tops, known), file.path) for file in files]
    read, problems = update_index(index, changed, (), jobs, on_progress, spark)
    remaining = known.difference(*(file.names() for file in changed))
    return IndexedResults(read, [*found.problems, *problems], sorted(remaining))


def _before(name: str, tops: Sequence[str], known: set[str]) -> str:
    """Return the file of a name below one of `tops`, the one that an index has; or `BadInput`."""
    candidates = [f"{top}/{name}" for top in tops]
    found = [one for one in candidates if not known.isdisjoint(_whole_names(one))]
    if len(found) > 1:
        raise BadInput(
            f"the index has {found[0]} and {found[1]}, and only one file of that name is named: "
            "give each --instead-of with its own results"
        )
    return (found or candidates)[0]


def _whole_names(path: str) -> set[str]:
    """Return the paths by which a file may be known, also through a link; of an object one."""
    return {path} if is_remote(path) else {path, os.path.realpath(path)}


def _restore_copies(index: Path, identity: Identity) -> None:
    """Load the copies in the ledger that no capture of the index is preferred to any more."""
    settings = identity.settings
    with (
        exclusive(index / "lock", f"the index at {index}"),
        closing(open_index(index, write=True)) as engine,
        scratch_of(index) as scratch,
    ):
        writer = RunWriter(scratch, "restored", run_bytes=RUN_BYTES)
        with engine.view() as view:
            for staged in _lost_without_winner(view, settings):
                writer.extend(staged)
        writer.flush()
        if writer.paths:
            engine.load(Load(writer.paths, own_digests=not settings.also_digest))


def _lost_without_winner(view: View, settings: Settings) -> Iterator[list[bytes]]:
    """Yield, as staged, the copies under each key whose cell is not what a merge would leave."""
    keys = settings.keys()
    rule = MergeRule(
        keys, settings.keep == "latest", lambda number: view.place_of(number) if number else NOWHERE
    )
    for key, group in groupby(split_items(view.ledger(), keys), itemgetter(0)):
        copies = [body for _, body in group if body[0] != DEPENDENT]
        if copies:
            cell = view.cell(key)
            if rule.replace(key, cell, copies, MergeOutcome())[0] != cell:
                yield [key + copy for copy in copies]


def _by_crawl(files: list[ChangedFile], view: View) -> dict[str, _CrawlFiles]:
    """Divide files by the crawls under which the index has them, "" for none."""
    by_name = defaultdict[str, list[ChangedFile]](list)
    for file in files:
        for name in file.names():
            by_name[name].append(file)
    stale = defaultdict[ChangedFile, set[str]](set)  # names that have captures
    crawls = dict[ChangedFile, str]()
    for _, place in view.places():
        for file in _known_as(place.container, by_name):
            crawls[file] = place.crawl
            stale[file].update({place.container} - {file.result})
    by_crawl = defaultdict[str, _CrawlFiles](_CrawlFiles)
    for file in files:
        names = {*file.names(), *stale[file], file.result}
        known = [view.container(name) for name in sorted(names)]
        registered = [container for container in known if container is not None]
        if any(container.purged for container in registered):
            continue
        crawl = registered[0].crawl if registered else crawls.get(file, "")
        by_crawl[crawl].results.append(file.result)
        by_crawl[crawl].dropped |= stale[file]
    return by_crawl


def _known_as(name: str, by_name: Mapping[str, list[ChangedFile]]) -> list[ChangedFile]:
    """Return the files that an index may know by a name, also one through a link."""
    if name not in by_name and os.path.isabs(name) and os.path.basename(name) in by_name:
        name = os.path.realpath(name)
    return by_name.get(name, [])
