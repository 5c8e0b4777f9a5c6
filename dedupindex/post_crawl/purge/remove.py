"""Remove captures from an index, so that the next surviving copies become the originals.

A purge is a load of tombstones for what goes, and of the copies that the ledger has under the same
keys. So it is atomic and can be repeated, and what was purged stays away: neither a revisit, a CDX
row nor its own container, when read again, brings it back.
"""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from blake3 import blake3

from dedupindex.counts import OnProgress, silent
from dedupindex.crawls import lifecycle, merge_crawls, statistics
from dedupindex.crawls.crawl import Crawl, CrawlState
from dedupindex.crawls.crawl_captures import drop_entries
from dedupindex.crawls.store import Held, Reading, Store, Writing
from dedupindex.crawls.stores import open_store
from dedupindex.crawls.unread_crawls import WITHOUT_WARCS, absent_files, unread_crawls
from dedupindex.errors import (
    BadInput,
    CrawlEnded,
    Damaged,
    HasDependents,
    SettingsConflict,
    UnknownCrawl,
)
from dedupindex.index import open_index, summary
from dedupindex.index.engine import Engine, Load, View, reread
from dedupindex.index.format.cells import ALSO, container_of, decode, entries_of
from dedupindex.index.format.tombstones import NAMED
from dedupindex.index.format.visits import Visit
from dedupindex.index.identity import Settings, read_identity
from dedupindex.index.load.merge_rule import MergeRule
from dedupindex.index.load.runs import RunWriter
from dedupindex.indexer import spot_check
from dedupindex.lookup.render_json import original_as_json, url_as_json
from dedupindex.post_crawl.purge.impact import (
    Amount,
    Impact,
    Item,
    OnItem,
    OutdatedFile,
    RemovedCopy,
    RemovedOriginal,
    RemovedRevisit,
    UnmergedCapture,
)
from dedupindex.post_crawl.purge.live_impact import LiveCell, LiveImpact
from dedupindex.post_crawl.purge.survey_impact import ImpactSurvey
from dedupindex.post_crawl.purge.target import (
    CaptureTarget,
    ResolvedTarget,
    Target,
    TargetKind,
    resolve,
)
from dedupindex.runtime.bounded_counter import Sums
from dedupindex.runtime.files import exclusive_in_turn
from dedupindex.runtime.tables import names_text, printable, singular

SCRATCH = "purging"
LISTED = 1000  # containers and crawls in JSON
RUN_BYTES = 32 << 20  # staged in memory, before it goes to disk
_MAX_NAMED = 5  # crawls or files in a sentence
_REMEMBERED = 20  # names in the history of purges
_LIVE_AT_ONCE = 1000  # captures of crawls


class _Allowed(NamedTuple):
    """What a purge may do."""

    force: bool  # remove what revisits depend on, or may depend on
    expected: str  # only what a survey of this `fingerprint` has shown; "" for anything


@dataclass
class PurgeSurvey:
    impact: Impact
    live: int  # captures of crawls that are not merged yet
    found: set[int]  # texts or captures of the target, by their positions
    unread: dict[str, int]  # see `unread_crawls`
    outdated: list[OutdatedFile] = field(default_factory=list)  # see `ImpactSurvey.outdated`
    unindexed: set[str] = field(default_factory=set)  # see `ResolvedTarget.unindexed`
    elsewhere: dict[str, str] = field(default_factory=dict)  # paths not read -> files that were
    open_crawls: list[str] = field(default_factory=list)  # that are named: a purge ends them
    absent: list[str] = field(default_factory=list)  # files of `unread` that nobody has read

    @property
    def is_empty(self) -> bool:
        """Whether a purge changes nothing: no capture, revisit or open crawl of what was found."""
        impact = self.impact
        gone = impact.originals.captures + impact.copies.captures + impact.revisits.captures
        return not gone and not self.live and not self.open_crawls


class _OfCrawls(NamedTuple):
    """Fields of `PurgeSurvey`."""

    live: int
    unread: dict[str, int]
    absent: list[str]


def survey(
    index: Path, target: Target, on_item: OnItem | None = None, on_progress: OnProgress = silent
) -> PurgeSurvey:
    """Return what a purge would do; `on_item` gets all that it counts. Takes no lock."""
    store = open_store(index)
    with closing(open_index(index)) as engine, engine.view() as view:
        _require_ledger(engine)
        resolved = resolve(target, view, engine.identity.settings.keys())
        survey = ImpactSurvey(view, resolved, engine.identity.settings, on_item=on_item)
        survey.run(on_progress)
        with closing(store) if store is not None else nullcontext():
            return _surveyed(survey, _count_live(store, view, survey, on_item))


def purge(
    index: Path,
    target: Target,
    *,
    force: bool,
    expected: str = "",
    on_item: OnItem | None = None,
    on_progress: OnProgress = silent,
) -> PurgeSurvey:
    """Remove captures from an index and its crawls, durably.

    Changes nothing, and raises `HasDependents` if a revisit depends on what would go, or a file or
    crawl may have such revisits (`PurgeSurvey.outdated`, `unread`), unless `force`. Raises
    `BadInput` if `expected` is the `fingerprint` of another survey, `IndexBusy` while another
    process writes, and other `DedupError`.
    """
    read_identity(index)  # before a lock file is created
    with exclusive_in_turn(index / "lock", f"the index at {index}", on_progress):
        with (
            closing(open_index(index, write=True)) as engine,
            engine.writing(),
            scratch_of(index) as scratch,
        ):
            _require_ledger(engine)
            allowed = _Allowed(force, expected)
            found, sample = _purge(index, engine, target, allowed, scratch, on_item, on_progress)
        spot_check.confirm_purge(
            index,
            sample,
            "Run the same bin/purge again; captures removed by mistake are restored by "
            f"{reread(str(index), ['SOURCE...'])}",
        )
        (index / summary.FILE).unlink(missing_ok=True)  # it may name a host that is gone
    return found


@contextmanager
def scratch_of(index: Path) -> Iterator[Path]:
    """Make an empty directory for what a load brings; the caller holds the write lock."""
    scratch = index / SCRATCH
    shutil.rmtree(scratch, ignore_errors=True)  # of a killed process
    scratch.mkdir()
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _require_ledger(engine: Engine) -> None:
    """Raise `SettingsConflict` for an index that may not know all copies and dependents."""
    if gap := engine.ledger_gap():
        raise SettingsConflict(gap)


def _purge(
    index: Path,
    engine: Engine,
    target: Target,
    allowed: _Allowed,
    scratch: Path,
    on_item: OnItem | None,
    on_progress: OnProgress,
) -> tuple[PurgeSurvey, spot_check.PurgeSample]:
    settings = engine.identity.settings
    writer = RunWriter(scratch, "purged", run_bytes=RUN_BYTES)
    store = open_store(index)
    with closing(store) if store is not None else nullcontext():
        with engine.view() as view:
            resolved = resolve(target, view, settings.keys())
            survey = ImpactSurvey(view, resolved, settings, writer=writer, on_item=on_item)
            survey.run(on_progress)
            found = _surveyed(survey, _count_live(store, view, survey, on_item))
            _check_allowed(found, allowed)
            writer.flush()
            sample = spot_check.sample_purge(view, settings, writer.paths)
        purged = [container._replace(purged=True) for container in resolved.registered]
        drops = resolved.takes_item if survey.rewrites else None
        done = [] if found.is_empty else [_remembered(target, found, force=allowed.force)]
        if writer.paths or purged or drops or done:
            load = Load(writer.paths, (), purged, purges=done, drops=drops, own_digests=True)
            engine.load(load._replace(on_progress=on_progress))
        if store is not None:  # last: until then an interrupted purge can be repeated
            remove_live(store, resolved, settings)
            _remove_visits(store, resolved)
            for name in target.texts if target.kind is TargetKind.CRAWL else ():
                with suppress(UnknownCrawl):  # it never wrote while it ran
                    while store.write(partial(_drop_statistics, name=name)):
                        pass
    return found, sample


def history(index: Path) -> list[dict[str, Any]]:
    """Return the last purges of an index, at most `PURGES_KEPT`, the oldest first.

    Each has ``time`` (RFC 3339), ``by`` (user and host), ``kind``, ``names`` (at most `_REMEMBERED`
    names, URLs or captures) and how many ``of`` them there were, whether it was ``forced``, and the
    counts of what was removed.
    """
    with closing(open_index(index)) as engine:
        return engine.purges()


def _remembered(target: Target, found: PurgeSurvey, *, force: bool) -> dict[str, Any]:
    """Return what an index remembers of a purge, see `history`.

    Names of which it has nothing are left out.
    """
    texts = [printable(text) for at, text in enumerate(target.texts) if at in found.found]
    captures = [one for at, one in enumerate(target.captures) if at in found.found]
    names = [*texts, *map(capture_name, captures)][:_REMEMBERED]
    impact = found.impact
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # it has no name, as in a container
        user = str(os.getuid())
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "by": f"{user}@{socket.gethostname()}",
        "kind": target.kind.value,
        "names": names,
        "of": len(texts) + len(captures),
        "forced": force,
        "originals": impact.originals.captures,
        "copies": impact.copies.captures,
        "revisits": impact.revisits.captures,
        "unmerged": found.live,
        "dependents": impact.dependents.captures,
    }


def capture_name(capture: CaptureTarget) -> str:
    """Return how the history names a capture."""
    url, date = capture.url.decode("utf-8", "backslashreplace"), capture.date.decode()
    return f"{capture.digest} {url} {date}".rstrip()


def _surveyed(survey: ImpactSurvey, crawls: _OfCrawls) -> PurgeSurvey:
    target = survey.target
    return PurgeSurvey(
        survey.impact, crawls.live, target.found, crawls.unread, survey.outdated(),
        target.unindexed, target.elsewhere, target.open_crawls, crawls.absent,
    )  # fmt: skip


def _check_allowed(found: PurgeSurvey, allowed: _Allowed) -> None:
    """Raise `HasDependents` or `BadInput` for what must not be removed."""
    dependents = found.impact.dependents.captures
    if dependents and not allowed.force:
        raise HasDependents(
            singular(f"{dependents:,} revisits ")
            + f"of other captures {'depends' if dependents == 1 else 'depend'} on what would be "
            "removed, and nothing was purged; bin/impact --list names them, and --force removes "
            "what they depend on nevertheless"
        )
    for unknown in (outdated_as_text(found), unread_as_text(found)):
        if unknown and not allowed.force:
            raise HasDependents(
                f"nothing was purged: {unknown}, or purge nevertheless with --force"
            )
    if allowed.expected not in ("", fingerprint(found)):
        raise BadInput(
            "what would be removed has changed since it was shown; nothing was removed: "
            "look at it again (bin/impact)"
        )


def _count_live(
    store: Store | None, view: View, survey: ImpactSurvey, on_item: OnItem | None
) -> _OfCrawls:
    """Return what crawls have; raises `BadInput`, see `ResolvedTarget.check`."""
    live, unread, absent, resolved = 0, dict[str, int](), list[str](), survey.target
    with store.reading() if store is not None else nullcontext() as reading:
        if reading is not None:
            live = _count_captures(reading, survey, on_item)
        resolved.check()
        impact = survey.impact
        # Crawls get originals only, and copies that were originals before: nothing refers to what
        # else goes, so nobody needs to know the revisits of crawls then.
        if reading is not None and (live or impact.originals.captures or impact.copies.captures):
            removed = resolved.target.texts if resolved.target.kind is TargetKind.CRAWL else ()
            unread = unread_crawls(view, reading, but=removed)
            named = [one for one in reading.crawls() if one.name in unread] if unread else []
            for crawl in named[:_MAX_NAMED]:
                absent += absent_files(view, reading, crawl)
    return _OfCrawls(live, unread, absent)


def _drop_statistics(writing: Writing, name: str) -> int:
    """Drop some statistics of a crawl, as many as a short transaction can; 0 at the end."""
    return statistics.drop(writing, lifecycle.forget(writing, name))


def fingerprint(found: PurgeSurvey) -> str:
    """Return a hash of all counts of a survey, so that a purge can insist on what was shown.

    Crawls that are not read count by name: their lookups go on while somebody decides.
    """
    content = [sorted(found.found), impact_as_json(found) | {"unread": sorted(found.unread)}]
    return blake3(orjson.dumps(content)).hexdigest(length=16)


def impact_as_json(found: PurgeSurvey) -> dict[str, Any]:
    """The counts; and the containers and crawls with the most dependents, at most `LISTED`."""
    impact = found.impact
    return {
        "originals": impact.originals.as_json(),
        **{name: amount.as_json() for name, amount in impact.left.items()},
        "copies": impact.copies.as_json(),
        "revisits": impact.revisits.as_json(),
        "unmerged": found.live,
        "open_crawls": found.open_crawls,
        "dependents": impact.dependents.as_json(),
        "broken": impact.broken.as_json(),
        "by_digest": impact.by_digest.as_json(),
        "by_container": _rows(impact.by_container),
        "by_crawl": _rows(impact.by_crawl),
        "unread": [
            {"crawl": name, "duplicates": count}
            for name, count in _largest_first(found.unread)[:LISTED]
        ],
        "outdated": [file._asdict() for file in found.outdated[:LISTED]],
    }


def unread_as_text(found: PurgeSurvey) -> str:
    """A warning about crawls whose revisits are not known; "" if there are none."""
    if not found.unread:
        return ""
    largest = [f"{name} ({count:,})" for name, count in _largest_first(found.unread)]
    crawl = next(iter(found.unread)) if len(found.unread) == 1 else "NAME"
    count = sum(found.unread.values())
    lookups = singular(f"{count:,} lookups")
    files = names_text(found.absent, _MAX_NAMED)
    files = files and f"; of these nobody has read {files}"
    return (
        f"{lookups} of crawls whose WARCs have not all been read "
        f"{'was' if count == 1 else 'were'} answered with originals: "
        f"{names_text(largest, _MAX_NAMED)}. Their revisits are not "
        "counted here; commit or cancel those that are open, and read their WARCs first: "
        f"bin/index --add --crawl {crawl} FILE... INDEX{files} "
        f"({WITHOUT_WARCS.replace('NAME', crawl)})"
    )


def outdated_as_text(found: PurgeSurvey) -> str:
    """A warning about files that changed since they were indexed; "" if there are none."""
    if not found.outdated:
        return ""
    files = [f"{file} ({then:,} bytes then, {now:,} now)" for file, then, now in found.outdated]
    count = singular(f"{len(files):,} files")
    return (
        f"{count} changed since the index read {'it' if len(files) == 1 else 'them'}, as by "
        f"bin/dedup --in-place: {names_text(files, _MAX_NAMED)}. The copies counted there may be "
        "revisits now, also of what would be removed; read such files again first "
        "(bin/index --replace FILE... INDEX)"
    )


def _largest_first(counts: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _rows(sums: Sums) -> list[dict[str, Any]]:
    return [
        {
            "name": name.decode("utf-8", "backslashreplace") or None,
            "dependents": amounts[0],
            "bytes": Amount(*amounts).known_bytes,
            "unsized": amounts[2],
        }
        for name, amounts in sums.largest(LISTED, 0)
    ]


def item_as_json(item: Item) -> dict[str, Any]:
    """JSON of a capture or a revisit that is removed, or of a revisit that depends on one."""
    if isinstance(item, RemovedOriginal):
        successor = original_as_json(item.successor) if item.successor else None
        original = original_as_json(item.capture)
        return {"original": original, "payload": item.left, "next_original": successor}
    if isinstance(item, RemovedCopy | UnmergedCapture):
        name = "copy" if isinstance(item, RemovedCopy) else "unmerged"
        return {name: original_as_json(item.capture)}
    revisit = item.dependent
    content = {
        **url_as_json(revisit.url),
        "date": revisit.date.decode(),
        "digest": str(item.digest),
        "container": item.container or None,
        "crawl": item.crawl or None,
        "size": item.size if item.size >= 0 else None,
        "refers_to": {
            **url_as_json(revisit.names_url),
            "date": revisit.names_date.decode() or None,
        },
    }
    if isinstance(item, RemovedRevisit):
        return {"revisit": content}
    return {"dependent": content, "payload": item.left, "by_digest": item.by_digest}


def _count_captures(reading: Reading, survey: ImpactSurvey, on_item: OnItem | None) -> int:
    """Count the captures of a target in crawls that are not merged; updates its `found`."""
    resolved = survey.target
    by_crawl = resolved.target.kind is TargetKind.CRAWL
    if by_crawl:
        for text, name in enumerate(resolved.target.texts):
            with suppress(UnknownCrawl):
                if reading.crawl(name).state is CrawlState.OPEN:
                    resolved.open_crawls.append(name)
                resolved.found.add(text)
    crawls = {crawl.number: crawl for crawl in reading.crawls()}
    waiting = {
        crawl.number
        for crawl in crawls.values()
        if not crawl.merged and crawl.state is not CrawlState.CANCELLED
    }

    def going(prefix: bytes = b"") -> Iterator[LiveCell]:
        for held in reading.cells(prefix):
            if held[1] in waiting and (taken := _taken(reading, resolved, crawls, held)):
                yield LiveCell(held[0], held[1], taken)

    impact, found, count = LiveImpact(survey, going), going(), 0
    try:
        while batch := list(islice(found, _LIVE_AT_ONCE)):
            own = [(one.key, entry) for one in batch for entry in one.taken if not entry[1] & ALSO]
            count += len(own)
            if on_item is not None:
                for key, entry in own:
                    on_item(UnmergedCapture(decode(key, entry, reading.container_ref)))
            impact.add(batch)
    except Damaged:
        if not by_crawl:
            raise
        # A damaged crawl cannot be merged, but it can be removed as a whole.
        named = [crawls[n] for n in waiting if crawls[n].name in resolved.target.texts]
        return sum(reading.counts(crawl)[0] for crawl in named)
    return count


def remove_live(store: Store, resolved: ResolvedTarget, settings: Settings) -> None:
    """Remove the captures of a target; whole crawls end, and take no more reports."""
    if resolved.target.kind is TargetKind.CRAWL:
        for name in resolved.target.texts:
            with suppress(UnknownCrawl):
                merge_crawls.drop_all(store, store.write(partial(_end_crawl, name=name)))
        return
    for stretch in store.batches():
        with store.reading() as reading:
            crawls = {crawl.number: crawl for crawl in reading.crawls()}
            found = [held for held in stretch if _taken(reading, resolved, crawls, held)]
        for at in range(0, len(found), merge_crawls.DROPPED_AT_ONCE):
            batch = found[at : at + merge_crawls.DROPPED_AT_ONCE]
            store.write(partial(_remove, resolved=resolved, settings=settings, batch=batch))


def _remove_visits(store: Store, resolved: ResolvedTarget) -> None:
    """Remove what crawls keep of the answers of URLs that are purged."""
    if not resolved.target.has_urls:
        return
    with store.reading() as reading:
        found = (
            (key, crawl.number)
            for crawl in reading.crawls()
            for key, body in reading.visits(crawl.number)
            if resolved.takes_visit(Visit.parse(body).url)
        )
        while batch := list(islice(found, merge_crawls.DROPPED_AT_ONCE)):
            store.write(partial(_drop_visits, batch=batch))


def _drop_visits(writing: Writing, batch: list[tuple[bytes, int]]) -> None:
    for key, crawl in batch:
        writing.drop_visit(key, crawl)


def _end_crawl(writing: Writing, name: str) -> Crawl:
    crawl = writing.crawl(name)
    if crawl.merging:  # it was interrupted; what the index has of it goes, too
        writing.put_crawl(replace(crawl, merging=False))
    with suppress(CrawlEnded):  # it is merged, and only not swept yet
        lifecycle.drop(writing, name)
    return writing.crawl(name)


def _remove(
    writing: Writing, resolved: ResolvedTarget, settings: Settings, batch: list[Held]
) -> None:
    crawls = {crawl.number: crawl for crawl in writing.crawls()}
    rule = MergeRule(settings.keys(), settings.keep == "latest", writing.container_ref)
    for key, number, _ in batch:
        crawl = crawls[number]
        cell = writing.cell(key, crawl)  # as it is now
        if cell is not None:
            taken = _taken(writing, resolved, crawls, (key, number, cell))
            drop_entries(writing, crawl, key, taken, rule)


def _taken(
    reading: Reading, resolved: ResolvedTarget, crawls: dict[int, Crawl], held: Held
) -> list[bytes]:
    """The entries of a crawl's cell that go; updates `found`."""
    target, (key, number, cell) = resolved.target, held
    if target.kind is TargetKind.CRAWL:
        return list(entries_of(cell)) if crawls[number].name in target.texts else []
    if target.kind is not TargetKind.CONTAINER:
        if not resolved.may_hold(key):
            return []
        return [entry for entry in entries_of(cell) if resolved.takes(key, entry)]
    taken = []
    for entry in entries_of(cell):
        name = reading.container_name(container_of(entry))
        texts = resolved.texts_of(name) if name and entry[0] & 3 != NAMED else []
        if texts:
            resolved.found.update(texts)
            taken.append(entry)
    return taken
