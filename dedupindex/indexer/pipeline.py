"""A whole build: lock, plan, stage in one or several processes, load, account for every record."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from shutil import rmtree
from typing import Any

from dedupindex.capture import Problem
from dedupindex.counts import BuildTally, OnProgress, ProgressUpdate
from dedupindex.digest import SIZES
from dedupindex.errors import BadInput, BadSource, IndexExists, IndexUnavailable
from dedupindex.index import adopt, home_of, identity_at, open_index
from dedupindex.index.address import Address, is_cluster
from dedupindex.index.engine import Engine, Load, reread
from dedupindex.index.format.cells import ContainerRef
from dedupindex.index.identity import FILE, Identity, Settings, read_identity, unfinished
from dedupindex.index.load.merge_rule import CHAINED, CONTRADICTED, PURGED, MergeOutcome
from dedupindex.index.load.staging import Staging
from dedupindex.indexer import spot_check
from dedupindex.indexer.stage import Staged, StageTask, judge_of, run_task
from dedupindex.indexer.stage_spark import stage_on
from dedupindex.indexer.tasks import BuildPlan, make_plan
from dedupindex.object_store import is_remote, local, redacted
from dedupindex.runtime.files import exclusive
from dedupindex.runtime.spark import Cluster, spark_session
from dedupindex.runtime.workers import read_all
from dedupindex.sources import Expanded, SourceOptions, expand, passing
from dedupindex.sources.browsertrix import is_address, shown
from dedupindex.sources.source import annotation

_NOTED = 20  # containers by which a load is known again


@dataclass(frozen=True)
class Build:
    """What to build; every field is an option of ``bin/index``."""

    sources: list[str]  # none: an index of nothing
    index: Path
    settings: Settings = field(default_factory=Settings)
    engine: str = "lmdb"
    kind: str | None = None
    options: SourceOptions = field(default_factory=SourceOptions)
    add: bool = False
    replace: bool = False
    resume: bool = False
    reread: bool = False  # containers that are known are read again
    jobs: int = 1
    crawl: str = ""
    spark: str = ""  # the master of a cluster that reads the containers

    def signature(self) -> dict[str, Any]:
        """What makes two builds the same: run again, the second has nothing left to do."""
        return {
            "sources": [_named(source) for source in self.sources],
            "settings": asdict(self.settings),
            "engine": self.engine,
            "kind": self.kind,
            "crawl": self.crawl,
        }


def source_options(settings: Settings) -> SourceOptions:
    """How sources are read for an index with these settings; raises `BadInput`."""
    return SourceOptions(
        also=tuple(filter(None, settings.also_digest.split(","))),
        etag=settings.etag,
        revisit_annotation=annotation(settings.revisit_annotation),
    )


def also_names(names: str) -> str:
    """The algorithms of ``also_digest`` as settings keep them; raises `BadInput`."""
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

    >>> built = dedupindex.build("warcs", "another-index", mime=".*", whitelist=True)
    >>> built.tally.records, built.tally.added, built.tally.refused["request-record"]
    (6, 1, 2)
    """

    tally: BuildTally
    problems: list[Problem]
    skipped: int


def build(job: Build, on_progress: OnProgress = lambda seen: None) -> Built:
    """Build an index, or add to one.

    Killed at any moment and run again, it ends in the same index as one undisturbed run.
    Raises `DedupError`; nothing of the index has then changed.
    """
    start = time.monotonic()
    found = _find(job)
    _check_target(job.index)
    _check_added(job)
    job.index.mkdir(parents=True, exist_ok=True)
    with (
        exclusive(job.index / "lock", f"the index at {job.index}"),
        _explained(job.index),
        _cluster(job) as cluster,
    ):
        if cluster is not None:
            job = replace(job, jobs=cluster.cores)
        _prepare(job)
        staging = Staging(job.index, job.signature(), resume=job.resume)
        done = [Staged.from_json(task) for task in staging.done]
        plan = _plan(job, found, done)
        for staged in _stage_all(job, plan, staging, cluster, on_progress):
            staging.finish(staged.as_json())
            done.append(staged)
        on_progress(ProgressUpdate("loading", 0, 0, sum(staged.tally.records for staged in done)))
        outcome, drawn = _load(job, plan, staging, done)
        staging.clear()
        spot_check.confirm_recalled(job.index, drawn)
    tally = _account(done, outcome)
    tally.known, tally.purged = plan.known, plan.purged
    tally.seconds = time.monotonic() - start
    problems = [*found.problems, *(problem for staged in done for problem in staged.problems)]
    return Built(tally, problems, found.skipped)


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
    **settings: Any,
) -> Built:
    """Build an index of originals, or add to one, as ``bin/index`` does; return how it went.

    sources   WARC, ARC, WACZ, CDX, CDXJ files, crawl logs, directories, globs or addresses; none:
              an index with nothing in it, for crawls to write to
    index     a directory, new or empty, or ``cassandra://host,host/keyspace``
    add       add to the index that is there, with its settings; known files are passed over
    replace   the same, but files that changed take the place of what they were
    engine    lmdb (the default) or whoosh
    kind      of the sources; by default their content tells
    crawl     remember that a crawl of this name made the files
    jobs      processes that read side by side; 0: one for each core
    settings  fields of the index's settings: mime, whitelist, status, min_size (bytes), url_index,
              canonical, by_url, etag, also_digest, keep, revisit_annotation. By default text is
              left out; ``mime=".*", whitelist=True`` takes everything

    The result has `tally` (counts; ``tally.refused`` by reason), `problems` (what was damaged and
    left out) and `skipped` (files of no known kind). Killed and run again, it ends in the same
    index.

    Raises `BadInput`, `IndexExists`, `SettingsConflict`, `IndexBusy`, `IndexUnavailable`; the index
    is then as it was.

    >>> built = dedupindex.build("warcs", "new-index", mime=".*", whitelist=True)
    >>> built.tally.added, built.problems
    (1, [])
    """
    home = home_of(index)
    given = [sources] if isinstance(sources, str | Path) else list(sources)
    if isinstance(index, str) and is_cluster(index):
        engine = str(Address.parse(index))
    chosen, engine = _chosen(home, settings, engine, add or replace)
    job = Build(
        [str(source) for source in given], home, chosen, engine, kind, source_options(chosen),
        add=add, replace=replace, crawl=crawl, jobs=jobs or len(os.sched_getaffinity(0)),
    )  # fmt: skip
    return build(job)


def _chosen(home: Path, settings: dict[str, Any], engine: str, adds: bool) -> tuple[Settings, str]:
    """The settings and the engine of a build: where it adds, the index's own if none is given."""
    if "also_digest" in settings:
        settings["also_digest"] = also_names(settings["also_digest"])
    if settings.get("url_index") is False:
        settings.setdefault("canonical", False)
    if adds and (home / FILE).exists():
        own = read_identity(home)
        if own.generation:
            return Settings(**{**asdict(own.settings), **settings}), engine or own.engine
    return Settings(**settings), engine or "lmdb"


@contextmanager
def _cluster(job: Build) -> Iterator[Cluster | None]:
    if not job.spark:
        yield None
        return
    with spark_session(job.spark) as cluster:
        yield cluster


def _named(source: str) -> str:
    """A source as an index may remember it: without a password."""
    if is_address(source):
        return shown(source)
    return redacted(source) if is_remote(source) else os.path.abspath(local(source))


def _find(job: Build) -> Expanded:
    """What there is to read; wrong options and sources are found before anything is written."""
    judge_of(job.settings)
    found = expand(job.sources, job.kind)
    if job.sources and not found.paths and not found.problems:
        passed = f" ({found.skipped} files of no known kind passed over)" if found.skipped else ""
        raise BadSource(
            f"nothing to index in {', '.join(job.sources)}: no WARC, ARC, WACZ, CDX, CDXJ or "
            f"crawl log was found{passed}"
        )
    return found


def _check_target(index: Path) -> None:
    """Refuse a target that is something else, before a lock file is put into it."""
    if not index.exists():
        return
    if not index.is_dir():
        raise IndexExists(f"{index} is a file; the index, which comes last, is a directory")
    if (index / FILE).exists():
        return
    others = {path.name for path in index.iterdir()} - {"lock", "staging", "staging.gone"}
    others = {name for name in others if not name.startswith(f".{FILE}.")}
    if others:
        raise IndexExists(
            f"{index} is not empty and not an index (it holds {min(others)}); "
            "name a new or empty directory; the index comes last"
        )


def _check_added(job: Build) -> None:
    """Adding needs an index whose first build has finished; raises `IndexUnavailable`."""
    if not (job.add or job.replace):
        return
    where = str(job.index)
    there = read_identity(job.index) if (job.index / FILE).exists() else None
    if is_cluster(job.engine) and (there is None or not there.generation):
        address = Address.parse(job.engine)
        where, there = str(address), identity_at(address) or there
    if there is None:
        raise IndexUnavailable(
            f"there is no index at {where} to add to: bin/index SOURCE... {where} makes one, "
            f"bin/index --empty {where} one with nothing in it"
        )
    if not there.generation:
        raise IndexUnavailable(f"{unfinished(job.index)}; then add to it")


@contextmanager
def _explained(index: Path) -> Iterator[None]:
    """A full disk and its like, said in a sentence. What was never begun leaves nothing behind."""
    try:
        yield
    except BadSource:
        _forget(index)
        raise
    except OSError as error:
        raise IndexUnavailable(
            f"building {index} failed: {error}; the index is as it was, "
            "run the same command again when there is room"
        ) from error


def _forget(index: Path) -> None:
    """Make a target that holds no index and no finished task what it was before."""
    identity = read_identity(index)
    if not identity.generation and not list((index / "staging").glob("*.run")):
        (index / FILE).unlink()
        for name in ("staging", "staging.gone"):
            rmtree(index / name, ignore_errors=True)
        (index / "lock").unlink()
        with suppress(OSError):
            index.rmdir()


def _prepare(job: Build) -> None:
    """Make sure that the target is an index that this build may write to."""
    if is_cluster(job.engine):
        adopt(job.index, Address.parse(job.engine))
    for leftover in job.index.glob(f".{FILE}.*.part"):  # of a killed build
        leftover.unlink()
    if not (job.index / FILE).exists():
        Identity(job.engine, job.settings).write(job.index)
    identity = read_identity(job.index)
    if not identity.generation:
        Identity(job.engine, job.settings).write(job.index)
        return
    with closing(open_index(job.index)) as engine:
        if not engine.identity.generation:  # the cluster has lost it, and its directory here not
            Identity(job.engine, job.settings).write(job.index)
            return
        again = engine.metadata() == job.signature() and not any(map(passing, job.sources))
        if not (job.add or job.replace or again):
            raise IndexExists(
                f"there is an index at {job.index}; give --add to add to it, "
                "or name another directory"
            )
    identity.agree(job.engine, job.settings)


def _plan(job: Build, found: Expanded, done: list[Staged]) -> BuildPlan:
    names = {
        container.name: (container.size, container.modified)
        for staged in done
        for container in staged.containers
    }
    chosen: Any = {
        "replace": job.replace,
        "reread": job.reread,
        "jobs": job.jobs,
        "done": names,
    }
    with closing(open_index(job.index)) as engine:
        if not engine.identity.generation:
            return make_plan(found, None, **chosen)
        with engine.view() as view:
            return make_plan(found, view, **chosen)


def _stage_all(
    job: Build, plan: BuildPlan, staging: Staging, cluster: Cluster | None, on_progress: OnProgress
) -> Iterator[Staged]:
    first = staging.next_task()
    tasks = [
        StageTask(
            first + number,
            inputs,
            job.index,
            staging.directory,
            job.settings,
            job.kind,
            job.options,
            job.crawl,
        )
        for number, inputs in enumerate(plan.tasks)
    ]
    total = sum(item.size for task in tasks for item in task.inputs)
    if cluster is None:
        threads = any(is_remote(item.path) for task in tasks for item in task.inputs)
        yield from read_all(run_task, tasks, job.jobs, total, on_progress, threads=threads)
        return
    read = records = 0
    for staged in stage_on(cluster, tasks):
        read += sum(container.size for container in staged.containers)
        records += staged.tally.records
        on_progress(ProgressUpdate("reading", read, total, records))
        yield staged


def _unconfirmed(job: Build, plan: BuildPlan, engine: Engine) -> spot_check.Unconfirmed:
    """What an earlier load has brought and nobody has confirmed, unless it goes now."""
    if not engine.identity.generation or plan.dropped:
        return spot_check.NOTHING
    with engine.view() as view:
        return spot_check.recalled(job.index, view)


def _repair(job: Build) -> str:
    shown_as = job.engine if is_cluster(job.engine) else str(job.index)
    command = reread(shown_as, job.sources, job.crawl)
    return (
        f"This repairs it: {command} (if it does not, build the index anew from its sources, under "
        "another name)"
    )


def _load(
    job: Build, plan: BuildPlan, staging: Staging, done: list[Staged]
) -> tuple[MergeOutcome, spot_check.Unconfirmed]:
    containers = [container for staged in done for container in staged.containers]
    with closing(open_index(job.index, write=True)) as engine:
        engine.clear_leftovers()  # also of a load that was killed after its commit
        before = _unconfirmed(job, plan, engine)
        if engine.identity.generation and not containers:
            return MergeOutcome(), before
        load = Load(
            staging.runs(),
            [(number, ContainerRef(name, job.crawl)) for number, name in staging.names()],
            containers,
            frozenset(plan.dropped),
            job.signature(),
            ledger=staging.ledger(),
            own_digests=not job.settings.also_digest,
        )
        drawn = spot_check.Unconfirmed(
            spot_check.of_load(load, job.settings.keys()) + before.drawn[: spot_check.MOST],
            [(one.name, one.content_hash) for one in containers[:_NOTED]],
            _repair(job),
        )
        drawn.remember(job.index)
        return engine.load(load), drawn


def _account(done: list[Staged], outcome: MergeOutcome) -> BuildTally:
    tally = BuildTally()
    for staged in done:
        tally.add(staged.tally)
    tally.added, tally.replaced = outcome.added, outcome.replaced
    tally.unchanged = outcome.unchanged
    if outcome.chained:
        tally.refused[CHAINED] += outcome.chained
    if outcome.contradicted:
        tally.refused[CONTRADICTED] += outcome.contradicted
    if outcome.purged:
        tally.refused[PURGED] += outcome.purged
    tally.check()
    return tally
