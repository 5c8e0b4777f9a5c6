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
from glob import has_magic
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
from dedupindex.index.format.cells import DEPENDENT, NOWHERE, answers, container_of, entries_of
from dedupindex.index.format.ledger import split_items
from dedupindex.index.identity import Identity, Settings, read_identity
from dedupindex.index.load.merge_rule import MergeOutcome, MergeRule
from dedupindex.index.load.runs import RunWriter
from dedupindex.indexer.pipeline import Build, build, source_options, unusable
from dedupindex.object_store import check_address, is_remote, local, meant_address, redacted
from dedupindex.post_crawl.purge.remove import RUN_BYTES, remove_live, scratch_of
from dedupindex.post_crawl.purge.target import ResolvedTarget, Target, TargetKind
from dedupindex.runtime.files import exclusive_in_turn
from dedupindex.runtime.tables import printable, singular
from dedupindex.sources.discover import NO_RECORD, detect_kind, is_archive_name
from dedupindex.sources.warc_files import SourceFile, find, nothing_found


class ChangedFile(NamedTuple):
    """A file of a set and its result, by absolute paths or addresses; the same in place."""

    before: str
    result: str

    def names(self) -> set[str]:
        """Return the names by which an index or a crawler may know the file before."""
        return {*_whole_names(self.before), os.path.basename(self.before)}


class IndexUpdate(NamedTuple):
    """What was read in place of other files."""

    read: int  # results
    problems: list[Problem]  # what could not be read
    names: set[str]  # of files before, whose captures were to be dropped
    replaced: int  # files before of which the index knew one of these, and whose result was read


class IndexedResults(NamedTuple):
    """What `index_results` has done."""

    read: int  # results
    replaced: int  # files that the index knew, and whose result was read
    problems: list[Problem]  # what could not be read
    remaining: list[str]  # files without a result that could be read, which the index still has
    unread: list[str]  # of these, those with a result

    def remaining_text(self) -> Iterator[str]:
        """Say which files the index still has, and why."""
        lacking = sorted(set(self.remaining) - set(self.unread))
        lists = [name for name in lacking if not is_archive_name(name)]
        lacking = [name for name in lacking if is_archive_name(name)]
        if lists:
            count = "1 list" if len(lists) == 1 else f"{len(lists):,} lists"
            stays = "a CDX file or a log, stays" if len(lists) == 1 else "CDX files or logs, stay"
            yield (
                f"{count}, such as {stays} in the index, as {printable(lists[0])}: only archives "
                "take the place of others"
            )
        for files, why in (
            (lacking, "that the index has, and goes on answering with: no SOURCE has their result"),
            (self.unread, "of which the index keeps what it has: the result is damaged at its "
             "beginning, or has no record that could be read"),
        ):  # fmt: skip
            if files:
                count = singular(f"{len(files):,} files")
                yield f"{count} {why}, as that of {printable(files[0])}"


@dataclass
class _CrawlFiles:
    """The results of the files of one crawl, and by result the names whose captures are dropped."""

    files: list[ChangedFile] = field(default_factory=list)
    instead_of: dict[str, frozenset[str]] = field(default_factory=dict)


def update_index(
    index: Path,
    files: Iterable[ChangedFile],
    others: Iterable[str],
    jobs: int,
    on_progress: OnProgress,
    spark: str = "",
) -> IndexUpdate:
    """Read changed files into an index; captures stay if a result cannot be read.

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
        problems = _without_record(changed, view)
        without = unusable(problems)
        by_crawl = _by_crawl([one for one in changed if one.result not in without], view)
    read, names, done = 0, set[str](), set[ChangedFile]()
    for (crawl, reread), found in sorted(by_crawl.items(), key=itemgetter(0)):
        job = Build(
            sorted(one.result for one in found.files), index, identity.settings, identity.engine,
            options=source_options(identity.settings), replace=True, reread=reread, jobs=jobs,
            crawl=crawl, instead_of=found.instead_of, spark=spark,
        )  # fmt: skip
        built = build(job, on_progress)
        read += built.tally.containers
        problems += built.problems
        names.update(*found.instead_of.values())
        done.update(_read_of(index, found.files, built.problems))
    if changed:
        _restore_copies(index, identity)
        _remove_reports(index, sorted(one.before for one in done), identity.settings)
    replaced = sum(
        1 for files in by_crawl.values() for one in files.files
        if one in done and files.instead_of[one.result]
    )  # fmt: skip
    return IndexUpdate(read, problems, names, replaced)


def _without_record(files: Iterable[ChangedFile], view: View) -> list[Problem]:
    """Return the problems of results that do not begin as any kind of file does."""
    results = dict.fromkeys(file.result for file in files)
    return [
        Problem(result, 0, NO_RECORD)
        for result in results
        if view.container(result) is None and not detect_kind(result)[0]
    ]


def _read_of(
    index: Path, files: Iterable[ChangedFile], problems: Iterable[Problem]
) -> Iterator[ChangedFile]:
    """Yield the files whose results the index has now, with a record."""
    without = unusable(problems)
    with closing(open_index(index)) as engine, engine.view() as view:
        for file in files:
            container = view.container(file.result)
            if container is not None and container.records and file.result not in without:
                yield file


def _remove_reports(index: Path, files: Sequence[str], settings: Settings) -> None:
    """Remove what crawls that are not merged have of files."""
    store = open_store(index) if files else None
    if store is not None:
        with closing(store):
            target = Target(TargetKind.CONTAINER, tuple(files))
            remove_live(store, ResolvedTarget(target, settings.keys()), settings)


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
    Raises `DedupError`, before anything is read for a place below which the index has no file.
    """
    tops = list(dict.fromkeys(map(_checked_place, places)))
    found = find(sources)
    if not found.files:
        raise nothing_found(sources)
    if same := sorted({file.root for file in found.files} & set(tops)):
        raise BadInput(
            f"{redacted(same[0])} is named as source and with --instead-of: files that were "
            "replaced in place are read again with --replace alone"
        )
    below = tuple(f"{name}/" for top in tops for name in _whole_names(top))
    with closing(open_index(index)) as engine, engine.view() as view:
        known = set(_known_names(view))
        is_repeated = all(view.container(file.path) is not None for file in found.files)
        if not is_repeated:
            for top in tops:
                _check_known(index, top, found.files, known)
    known = {name for name in known if name.startswith(below)}
    changed = [ChangedFile(_before(file.name, tops, known), file.path) for file in found.files]
    done = update_index(index, changed, (), jobs, on_progress, spark)
    results = {name for file in found.files for name in _whole_names(file.path)}
    remaining = [name for name in _remaining(index, below, done.names) if name not in results]
    named = {name for file in changed for name in _whole_names(file.before)}
    broken = {os.path.basename(problem.container) for problem in found.problems}
    unread = [name for name in remaining if name in named or os.path.basename(name) in broken]
    problems = [*found.problems, *done.problems]
    # Files that crawls reported are known by their last names, wherever these are.
    replaced = 0 if is_repeated and not known else done.replaced
    return IndexedResults(done.read, replaced, problems, remaining, unread)


def _known_names(view: View) -> Iterator[str]:
    """Yield the names of files that an index has read, or has had captures of, some repeatedly."""
    yield from (one.name for one in view.containers() if not one.purged)
    yield from (place.container for _, place in view.places())


def _checked_place(place: str) -> str:
    """Return a directory, absolute, or an address; raises `BadInput` if it cannot be one."""
    if not place:
        raise BadInput("--instead-of is empty: name the directory or address of the files before")
    if meant := meant_address(place):
        raise BadInput(f"{place} is no address: did you mean {redacted(meant)}?")
    if is_remote(place):
        check_address(place)
        return place.rstrip("/")
    return os.path.abspath(local(place))


def _check_known(index: Path, top: str, results: Sequence[SourceFile], known: set[str]) -> None:
    """Raise `BadInput` if an index has no file below a place, with names of all that it has.

    A name without a directory, which rows of CDX files and reports of crawlers have, says nothing
    of the place; it is enough if the index knows a file of a result by such a name only.
    """
    tops = _whole_names(top)
    below = tuple(f"{name}/" for name in tops)
    if any(name.startswith(below) for name in known):
        return
    read = {file.path for file in results}
    elsewhere = {os.path.basename(name) for name in known if "/" in name and name not in read}
    bare = {os.path.basename(file.name) for file in results} & known
    if bare - elsewhere or any(name.startswith(below) for name in _reported_names(index)):
        return
    if has_magic(top):
        why = "give one directory or prefix, not a pattern; --instead-of may be repeated"
    elif not known.isdisjoint(tops):
        why = "it is a file of the index: give the directory or prefix in which it is"
    else:
        why = "is it the place that the index knows? bin/list shows files"
    raise BadInput(f"the index has no file below {redacted(top)}, so nothing was read: {why}")


def _reported_names(index: Path) -> Iterator[str]:
    """Yield the names of files of which crawls that are not merged have captures."""
    store = open_store(index)
    if store is None:
        return
    with closing(store):
        for stretch in store.batches():
            numbers = {container_of(entry) for *_, cell in stretch for entry in entries_of(cell)}
            with store.reading() as reading:
                yield from map(reading.container_name, sorted(numbers))


def _remaining(index: Path, below: tuple[str, ...], names: set[str]) -> list[str]:
    """Return the files that an index still has below places, and those of `names`, sorted.

    It has files that are registered, and others of which it has captures.
    """
    with closing(open_index(index)) as engine, engine.view() as view:
        found = {one.name for one in view.containers() if not one.purged}
        found = {name for name in found if name in names or name.startswith(below)}
        numbers = {
            number: place.container
            for number, place in view.places()
            if place.container in names or place.container.startswith(below)
        }
        for _, cell in view.cells_by_digest() if numbers else ():
            found.update(
                numbers[number]
                for entry in entries_of(cell)
                if answers(entry) and (number := container_of(entry)) in numbers
            )
    return sorted(found)


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
        exclusive_in_turn(index / "lock", f"the index at {index}"),
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


def _by_crawl(files: list[ChangedFile], view: View) -> dict[tuple[str, bool], _CrawlFiles]:
    """Divide files by crawl, "" for none, and by whether the index has the result in another.

    That is the crawl of the file before, as the index has read it. If it has none there, it is
    that of the result, else that of the captures that were reported.
    """
    by_name = defaultdict[str, list[ChangedFile]](list)
    for file in files:
        for name in file.names():
            by_name[name].append(file)
    stale = defaultdict[ChangedFile, set[str]](set)  # names that have captures
    reported = dict[ChangedFile, str]()
    for _, place in view.places():
        for file in _known_as(place.container, by_name):
            reported[file] = place.crawl
            stale[file].update({place.container} - {file.result})
    by_crawl = defaultdict[tuple[str, bool], _CrawlFiles](_CrawlFiles)
    for file in files:
        names = sorted({*file.names(), *stale[file]} - {file.result})
        before = [one for one in map(view.container, names) if one is not None]
        result = view.container(file.result)
        if any(one.purged for one in (*before, result) if one is not None):
            continue
        crawls = [one.crawl for one in (*before, result) if one is not None]
        crawl = next(filter(None, crawls), "") if crawls else reported.get(file, "")
        found = by_crawl[crawl, result is not None and result.crawl != crawl]
        found.files.append(file)
        found.instead_of[file.result] = frozenset(stale[file].union(one.name for one in before))
    return by_crawl


def _known_as(name: str, by_name: Mapping[str, list[ChangedFile]]) -> list[ChangedFile]:
    """Return the files that an index may know by a name, also one through a link."""
    if name not in by_name and os.path.isabs(name) and os.path.basename(name) in by_name:
        name = os.path.realpath(name)
    return by_name.get(name, [])
