"""Build an index: lock, plan, stage in several processes, load, account for every record."""

from __future__ import annotations

import errno
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from shutil import rmtree
from typing import Any

from dedupindex.capture import Problem
from dedupindex.counts import BuildTally, OnProgress, ProgressUpdate
from dedupindex.digest import SIZES
from dedupindex.errors import SOURCE_ERRORS, BadInput, BadSource, IndexExists, IndexUnavailable
from dedupindex.index import home_of, identity_at, open_index, refer_to
from dedupindex.index.address import Address, is_cluster
from dedupindex.index.engine import Engine, Load, reread
from dedupindex.index.format.cells import ContainerRef
from dedupindex.index.identity import (
    FILE,
    Identity,
    Settings,
    existing_identity,
    read_identity,
    unfinished,
)
from dedupindex.index.load.merge_rule import MergeOutcome
from dedupindex.index.load.staging import NAMES as STAGING
from dedupindex.index.load.staging import Staging
from dedupindex.indexer import disproved_reports, spot_check
from dedupindex.indexer.admission import admission_filter
from dedupindex.indexer.stage import Staged, StageTask, run_task
from dedupindex.indexer.stage_spark import stage_on
from dedupindex.indexer.tasks import BuildPlan, crawls_of_files, make_plan
from dedupindex.lookup.conditions import check_crawl_name
from dedupindex.object_store import is_remote, local, redacted
from dedupindex.runtime.files import NO_SPACE, exclusive_in_turn
from dedupindex.runtime.spark import Cluster, spark_session
from dedupindex.runtime.workers import read_all
from dedupindex.sources import Expanded, SourceOptions, expand, is_stream, service_of
from dedupindex.sources.source import annotation
from dedupindex.sources.table_columns import NO_NAMES

_RECORDED = 20  # containers that show whether an interrupted load was finished


@dataclass(frozen=True)
class Build:
    """What to build; every field is an option of ``bin/index``."""

    sources: list[str]  # none: an empty index
    index: Path
    settings: Settings = field(default_factory=Settings)
    engine: str = "lmdb"
    kind: str | None = None
    options: SourceOptions = field(default_factory=SourceOptions)
    add: bool = False
    replace: bool = False
    resume: bool = False
    reread: bool = False  # read known containers again, for another crawl if it is one
    # by source, other containers whose captures are removed, if the source can be read
    instead_of: Mapping[str, frozenset[str]] = field(default_factory=dict)
    jobs: int = 1
    crawl: str = ""
    spark: str = ""  # master of the Spark cluster that reads the containers

    def signature(self) -> dict[str, Any]:
        """Return what identifies a build: repeated with the same signature, it has no effect."""
        return {
            "sources": [_recorded_name(source) for source in self.sources],
            "settings": asdict(self.settings),
            "engine": self.engine,
            "kind": self.kind,
            "crawl": self.crawl,
            **({"columns": dict(self.options.columns)} if self.options.columns else {}),
        }


def source_options(settings: Settings, columns: Mapping[str, str] = NO_NAMES) -> SourceOptions:
    """Return how sources are read for an index with these settings; raises `BadInput`."""
    return SourceOptions(
        also=tuple(filter(None, settings.also_digest.split(","))),
        etag=settings.etag,
        revisit_annotation=annotation(settings.revisit_annotation),
        columns=columns,
    )


def also_names(names: str) -> str:
    """Return the algorithms of ``--also-digest``, sorted and comma-separated; or `BadInput`."""
    also = {name for name in names.replace("-", "").lower().split(",") if name}
    for name in sorted(also):
        if name not in SIZES:
            raise BadInput(f"--also-digest knows {', '.join(SIZES)}; not {name!r}")
    return ",".join(sorted(also))


@dataclass
class Built:
    """What `dedupindex.build` did.

    tally     counts of the records that were read; ``tally.refused`` by reason
    problems  what was damaged and left out, by file and offset in bytes
    skipped   number of files in directories that are of no known kind
    skipped_files  paths of the first of these, at most 1,000 of each source
    elsewhere  of the known files, how many were read for which other crawl, "" for none
    defective  known files of which something was left out when they were read
    moved     how many known files were moved from which other crawl, "" for none
    renamed   known files that are gone, and whose content files that were read now have; not on a
        cluster
    reported  crawls that have captures in files of the names of those that were read for another
        crawl or none, with these files; merged crawls only, and not on a cluster
    disproved  reports of the crawl that its files do not have, and that are originals no longer
    nothing_taken  files of which no response was taken, as most have a defect, with the number of
        refused ones by reason
    removed   originals of the index that files which were read again do not have any more; None if
        not known, as in an index with further digests

    >>> built = dedupindex.build("warcs", "another-index", mime=".*", whitelist=True)
    >>> built.tally.records, built.tally.added, built.tally.refused["request-record"]
    (6, 1, 2)
    """

    tally: BuildTally
    problems: list[Problem]
    skipped: int
    skipped_files: list[str] = field(default_factory=list)
    elsewhere: Counter[str] = field(default_factory=Counter)
    reported: dict[str, list[str]] = field(default_factory=dict)
    disproved: int = 0
    removed: int | None = 0
    nothing_taken: dict[str, dict[str, int]] = field(default_factory=dict)
    moved: Counter[str] = field(default_factory=Counter)
    defective: int = 0
    renamed: list[str] = field(default_factory=list)


def build(job: Build, on_progress: OnProgress = lambda seen: None) -> Built:
    """Build an index, or add to one.

    An interrupted build that is repeated makes the same index as one undisturbed run.
    Raises `DedupError`; the index is then unchanged.
    """
    start = time.monotonic()
    found = _find_sources(job)
    _check_target(job.index)
    _check_added(job)
    _check_crawl(job)
    job.index.mkdir(parents=True, exist_ok=True)
    with (
        exclusive_in_turn(job.index / "lock", f"the index at {job.index}", on_progress),
        _cleanup(job.index, adds=job.add or job.replace),
        spark_session(job.spark) if job.spark else nullcontext() as cluster,
    ):
        if cluster is not None:
            job = replace(job, jobs=cluster.cores)
        _prepare(job)
        staging = _staging(job)
        done = [Staged.from_json(task) for task in staging.done]
        plan = _plan(job, found, done)
        for staged in _stage_all(job, plan, staging, cluster, on_progress):
            staging.finish(staged.as_json())
            done.append(staged)
        problems = [*found.problems, *(problem for staged in done for problem in staged.problems)]
        _check_read(job, done, problems)
        read = _owe_comparison(job, done)
        plan.dropped |= _replaced(job, done, problems)
        outcome, removed, unconfirmed = _load(job, plan, staging, done, cluster, on_progress)
        disproved = disproved_reports.settle(job.index, read)
        staging.clear()
        spot_check.confirm_load(job.index, unconfirmed)
    tally = _account(done, outcome)
    tally.known, tally.purged, tally.seconds = plan.known, plan.purged, time.monotonic() - start
    return Built(
        tally,
        problems,
        found.skipped,
        found.skipped_files,
        plan.elsewhere,
        plan.reported,
        disproved,
        removed,
        {name: reasons for staged in done for name, reasons in staged.nothing_taken.items()},
        plan.moved,
        len(plan.defective),
        _renamed(job, done),
    )


def build_index(
    sources: str | Path | Iterable[str | Path],
    index: str | Path,
    *,
    add: bool = False,
    replace: bool = False,
    engine: str = "",
    kind: str | None = None,
    crawl: str = "",
    jobs: int = 0,
    columns: Mapping[str, str] = NO_NAMES,
    **settings: Any,
) -> Built:
    """Build an index of originals, or add to one, as ``bin/index`` does; return how it went.

    sources   WARC, ARC, WACZ, CDX, CDXJ files, Parquet tables, crawl logs, directories, globs or
              addresses; none: an empty index, for crawls to write to
    index     a directory, new or empty, or ``cassandra://host,host/keyspace``
    add       add to an existing index, with its settings; known files are skipped
    replace   the same, and replace the captures of files that have changed
    engine    lmdb (the default) or whoosh
    kind      kind of the sources; by default detected from their content
    crawl     name of the crawl that wrote the files
    jobs      parallel processes; 0: one for each core
    columns   columns of Parquet tables, by the names of Common Crawl's, if they have other names
    settings  fields of the index's settings: mime, whitelist, status, min_size (bytes), url_index,
              canonical, by_url, etag, also_digest, keep, revisit_annotation. By default text is
              left out; ``mime=".*", whitelist=True`` takes everything

    The result has `tally` (counts; ``tally.refused`` by reason), `problems` (damaged input that was
    left out) and `skipped` (files of unknown kind). An interrupted build is completed by repeating
    the call.

    Raises `BadInput` (also if nothing could be read for a new index), `IndexExists`,
    `SettingsConflict`, `IndexBusy`, `IndexUnavailable`; the index is then unchanged.

    >>> built = dedupindex.build("warcs", "new-index", mime=".*", whitelist=True)
    >>> built.tally.added, built.problems
    (1, [])
    """
    home = home_of(index)
    paths = [sources] if isinstance(sources, str | Path) else list(sources)
    if isinstance(index, str) and is_cluster(index):
        engine = str(Address.parse(index))
    chosen, engine = _complete(home, settings, engine, add or replace)
    job = Build(
        [str(path) for path in paths], home, chosen, engine, kind, source_options(chosen, columns),
        add=add, replace=replace, crawl=crawl, jobs=jobs or len(os.sched_getaffinity(0)),
    )  # fmt: skip
    return build(job)


def _complete(
    home: Path, settings: dict[str, Any], engine: str, adds: bool
) -> tuple[Settings, str]:
    """Return the settings and engine of a build; when adding, defaults are those of the index."""
    if "also_digest" in settings:
        settings["also_digest"] = also_names(settings["also_digest"])
    if settings.get("url_index") is False:
        settings.setdefault("canonical", False)
    own = existing_identity(home) if adds else None
    if own is not None and own.generation:
        return Settings(**{**asdict(own.settings), **settings}), engine or own.engine
    return Settings(**settings), engine or "lmdb"


def _recorded_name(source: str) -> str:
    """Return a source as an index records it: an absolute path, or an address without password."""
    if service := service_of(source):
        return service.name
    return redacted(source) if is_remote(source) else os.path.abspath(local(source))


def _find_sources(job: Build) -> Expanded:
    """Find the containers; raises `DedupError` for bad options before anything is written."""
    admission_filter(job.settings)
    found = expand(job.sources, job.kind, columns=job.options.columns)
    if job.sources and not found.paths and not found.problems:
        for name in job.sources:
            if (Path(name) / FILE).is_file():
                raise BadSource(f"{name} is an index; the sources come first, the index last")
        found.require_any(job.sources, "index")
    return found


def _check_target(index: Path) -> None:
    """Raise `IndexExists` if the target is not an index and not an empty directory."""
    if not index.exists() or (index / FILE).exists():
        return
    if not index.is_dir():
        raise IndexExists(f"{index} is a file; the index, which comes last, is a directory")
    others = {path.name for path in index.iterdir()} - {"lock", *STAGING}
    others = {name for name in others if not name.startswith(f".{FILE}.")}
    if others:
        raise IndexExists(
            f"{index} is not empty and not an index (it holds {min(others)}); "
            "name a new or empty directory; the index comes last"
        )


def _check_added(job: Build) -> None:
    """Raise `IndexUnavailable` if the index to add to has no finished build."""
    if not (job.add or job.replace):
        return
    where = str(job.index)
    identity = existing_identity(job.index)
    if is_cluster(job.engine) and (identity is None or not identity.generation):
        address = Address.parse(job.engine)
        where, identity = str(address), identity_at(address) or identity
    if identity is None:
        raise IndexUnavailable(
            f"there is no index at {where} to add to: bin/index SOURCE... {where} makes one, "
            f"bin/index --empty {where} one with nothing in it"
        )
    if not identity.generation:
        raise IndexUnavailable(f"{unfinished(job.index)}; then add to it")


def _check_crawl(job: Build) -> None:
    """Raise `BadInput` for a name that a server refuses, unless the index has a crawl of it."""
    try:
        check_crawl_name(job.crawl or "none")
    except BadInput:
        identity = existing_identity(job.index)
        if identity is None or not identity.generation:
            raise
        with closing(open_index(job.index)) as engine, engine.view() as view:
            read = (container.crawl for container in view.containers())
            if job.crawl not in chain(read, (place.crawl for _, place in view.places())):
                raise


def _check_read(job: Build, done: list[Staged], problems: list[Problem]) -> None:
    """Raise `BadSource` if nothing could be read for a new index.

    An index would keep its settings, and not take the right ones when the sources are mended.
    """
    records = sum(staged.tally.records for staged in done)
    if not problems or records or read_identity(job.index).generation:
        return
    first, others = problems[0], len(problems) - 1
    more = f"; and {others:,} more {'file' if others == 1 else 'files'}" if others else ""
    raise BadSource(
        f"no file could be read, so no index was made: {first.container} {first.message}{more}"
    )


@contextmanager
def _cleanup(index: Path, *, adds: bool) -> Iterator[None]:
    """Raise `OSError` as `IndexUnavailable`; after `BadSource`, remove an index without content."""
    try:
        yield
    except SOURCE_ERRORS:
        if not read_identity(index).generation and not list((index / "staging").glob("*.run")):
            (index / FILE).unlink()
            for name in STAGING:
                rmtree(index / name, ignore_errors=True)
            (index / "lock").unlink()
            with suppress(OSError):
                index.rmdir()
        raise
    except OSError as error:
        full = error.errno in NO_SPACE
        directory = Path(error.filename or index).parent
        closed = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
        closed = closed and not os.access(directory, os.W_OK)
        named = f"{error.filename}: " if error.filename else ""
        reason = f"{directory} is not writable" if closed else f"{named}{error.strerror or error}"
        remedy = "when there is room" if full else "when the cause is removed"
        kept = "the index is as it was" if adds else "there is no index yet"
        raise IndexUnavailable(
            f"{'adding to' if adds else 'building'} {index} failed: {reason}; {kept}, run the same "
            f"command again {remedy}"
        ) from error


def _prepare(job: Build) -> None:
    """Make sure that the target is an index to which this build may write."""
    if is_cluster(job.engine):
        refer_to(job.index, Address.parse(job.engine))
    for name in (FILE, spot_check.UNCONFIRMED):
        for leftover in job.index.glob(f".{name}.*.part"):  # of a killed build
            leftover.unlink()
    identity = existing_identity(job.index)
    if identity is None or not identity.generation:
        Identity(job.engine, job.settings).write(job.index)
        return
    with closing(open_index(job.index)) as engine:
        if not engine.identity.generation:  # the cluster has lost the index, its directory remains
            Identity(job.engine, job.settings).write(job.index)
            return
        repeated = engine.metadata() == job.signature() and not any(map(is_stream, job.sources))
        if not (job.add or job.replace or repeated):
            raise IndexExists(
                f"there is an index at {job.index}; give --add to add to it, "
                "or name another directory"
            )
    identity.check_settings(job.engine, job.settings)


def _staging(job: Build) -> Staging:
    """Return what an interrupted build has staged, with container numbers that are still free."""
    staging = Staging(job.index, job.signature(), resume=job.resume)
    if staging.done and not is_cluster(job.engine):  # a cluster numbers them when it loads
        with closing(open_index(job.index)) as engine:

            def known(name: str) -> int:
                return engine.number_of(ContainerRef(name, job.crawl))

            staging.renumber(job.settings.keys().lengths(), known, engine.next_number())
    return staging


def _plan(job: Build, found: Expanded, done: list[Staged]) -> BuildPlan:
    names = {
        container.name: (container.size, container.modified)
        for staged in done
        for container in staged.containers
    }
    with (
        closing(open_index(job.index)) as engine,
        engine.view() if engine.identity.generation else nullcontext() as view,
    ):
        plan = make_plan(
            found, view, replace=job.replace, reread=job.reread, jobs=job.jobs, done=names,
            drops=any(job.instead_of.values()), crawl=job.crawl,
            index=job.engine if is_cluster(job.engine) else str(job.index),
        )  # fmt: skip
        if view is not None and not (job.instead_of or is_cluster(job.engine)):
            plan.reported = crawls_of_files(plan, view, job.crawl)
        return plan


def _stage_all(
    job: Build, plan: BuildPlan, staging: Staging, cluster: Cluster | None, on_progress: OnProgress
) -> Iterator[Staged]:
    first = staging.next_task()
    common = (job.index, staging.directory, job.settings, job.kind, job.options, job.crawl)
    tasks = [StageTask(number, inputs, *common) for number, inputs in enumerate(plan.tasks, first)]
    total = sum(item.size for task in tasks for item in task.inputs)
    if cluster is None:
        yield from read_all(run_task, tasks, job.jobs, total, on_progress)
        return
    read = records = 0
    for staged in stage_on(cluster, tasks):
        read += sum(container.size for container in staged.containers)
        records += staged.tally.records
        on_progress(ProgressUpdate("reading", read, total, records))
        yield staged


def _repair(job: Build) -> str:
    index = job.engine if is_cluster(job.engine) else str(job.index)
    command = reread(index, job.sources, job.crawl)
    return (
        f"This repairs it: {command} (if it does not, build the index anew from its sources, under "
        "another name)"
    )


def _load(
    job: Build,
    plan: BuildPlan,
    staging: Staging,
    done: list[Staged],
    cluster: Cluster | None,
    on_progress: OnProgress,
) -> tuple[MergeOutcome, int | None, spot_check.Unconfirmed]:
    """Load what was staged; also return `Built.removed`, and what is to be looked up."""
    containers = [container for staged in done for container in staged.containers]
    with closing(open_index(job.index, write=True)) as engine:
        engine.clear_leftovers(on_progress)  # also of a load that was killed after its commit
        before = spot_check.NOTHING  # what an interrupted load brought, unless it is removed now
        if engine.identity.generation and not plan.dropped:
            with engine.view() as view:
                before = spot_check.read_unconfirmed(job.index, view)
        if engine.identity.generation and not containers:
            return MergeOutcome(), 0, before
        load = Load(
            staging.runs(),
            [(number, ContainerRef(name, job.crawl)) for number, name in staging.names()],
            containers,
            frozenset(plan.dropped),
            job.signature(),
            ledger=staging.ledger(),
            own_digests=not job.settings.also_digest,
            on_progress=on_progress,
            entries=sum(one.tally.records - one.tally.refused.total() for one in done),
        )
        unconfirmed = spot_check.Unconfirmed(
            spot_check.sample_load(load, job.settings.keys()) + before.entries[: spot_check.MOST],
            [[container.name, container.content_hash] for container in containers[:_RECORDED]],
            _repair(job),
        )
        unconfirmed.write(job.index)
        held = _originals(engine) if plan.dropped else 0
        outcome = engine.load(load) if cluster is None else engine.load_on(load, cluster)
        removed: int | None = 0
        if plan.dropped:  # under further digests, what is added is not counted
            counted = not job.settings.also_digest
            removed = max(held + outcome.added - _originals(engine), 0) if counted else None
        return outcome, removed, unconfirmed


def unusable(problems: Iterable[Problem]) -> set[str]:
    """Return the names of containers that have a problem at their beginning, or as a whole."""
    return {problem.container for problem in problems if problem.offset <= 0}


def _replaced(job: Build, done: list[Staged], problems: list[Problem]) -> set[str]:
    """Return the containers of `Build.instead_of` in whose place others were read.

    What stands for a container that could not be read stays as it is.
    """
    read = {container.name for staged in done for container in staged.containers
            if container.records} - unusable(problems)  # fmt: skip
    return {name for source in read for name in job.instead_of.get(source, ())}


def _renamed(job: Build, done: list[Staged]) -> list[str]:
    """Return `Built.renamed`."""
    read = {one.content_hash: one.name for staged in done for one in staged.containers}
    if job.instead_of or is_cluster(job.engine) or not (job.add or job.replace):
        return []
    with closing(open_index(job.index)) as engine, engine.view() as view:
        return sorted(
            one.name
            for one in view.containers()
            if read.get(one.content_hash, one.name) != one.name
            and not one.purged
            and os.path.isabs(one.name)
            and not os.path.lexists(one.name)
        )


def _originals(engine: Engine) -> int:
    with engine.view() as view:
        return view.counts().captures


def _owe_comparison(job: Build, done: list[Staged]) -> set[str]:
    """Note that reports of the crawl are to be compared; return the names of the files read."""
    disproved_reports.settle(job.index)  # of a build that was killed
    read = {container.name for staged in done for container in staged.containers}
    can_have_reports = not is_cluster(job.engine) and read_identity(job.index).generation
    if job.crawl and read and can_have_reports:
        disproved_reports.owe(job.index, job.crawl)
    return read


def _account(done: list[Staged], outcome: MergeOutcome) -> BuildTally:
    tally = BuildTally()
    for staged in done:
        tally.add(staged.tally)
    tally.added, tally.replaced = outcome.added, outcome.replaced
    tally.replaced_by_name, tally.unchanged = outcome.replaced_by_name, outcome.unchanged
    tally.refused.update(+Counter(outcome.refused()))
    tally.check()
    return tally
