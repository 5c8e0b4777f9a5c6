"""Taking captures out of an index, so that the next surviving copies become the originals.

What goes is remembered by marks in the cells, which settling obeys: a purge is a load of these
marks and of the copies that the ledger has under the same keys. So it happens wholly or not at all,
may be done again, and what was purged stays away: no revisit's claim and no row brings it back, nor
its container when it is read once more.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from contextlib import closing, nullcontext, suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from dedupindex.crawls import lifecycle, statistics
from dedupindex.crawls.store import Store, Writing
from dedupindex.crawls.stores import open_store
from dedupindex.errors import HasDependents, SettingsConflict, UnknownCrawl
from dedupindex.index import open_index
from dedupindex.index.address import is_cluster
from dedupindex.index.engine import Engine, IndexedContainer, Load, View, reread
from dedupindex.index.identity import read_identity
from dedupindex.index.load.runs import RunWriter
from dedupindex.indexer import spot_check
from dedupindex.lookup.render_json import original_as_json, url_as_json
from dedupindex.post_crawl.purge import live_crawls as live
from dedupindex.post_crawl.purge.impact import Depending, Going, Impact, Survey
from dedupindex.post_crawl.purge.live_crawls import unread
from dedupindex.post_crawl.purge.remove_entries import Settling
from dedupindex.post_crawl.purge.target import (
    ResolvedTarget,
    Target,
    TargetKind,
    chosen,
    registered,
)
from dedupindex.runtime.bounded_counter import Sums
from dedupindex.runtime.files import exclusive

Seen = Callable[[Going | Depending], None]
SCRATCH = "purging"
_STAGED = 32 << 20  # bytes of what is staged, before it goes to disk


@dataclass
class PurgeSurvey:
    """What a target means in an index."""

    impact: Impact
    live: int  # captures of crawls that the index has not taken in yet
    places: set[int]  # of the texts or captures in the target, that were found
    unread: dict[str, int]  # crawls whose revisits are not known, see `unread`


def _check_ledger(index: Path) -> None:
    """Refuse an index that does not know copies and dependents; raises `SettingsConflict`."""
    engine = read_identity(index).engine
    if is_cluster(engine):
        raise SettingsConflict(
            f"{engine} does not remember which revisits name its captures, nor further copies of "
            "them, so it cannot say what depends on any; keep an index on lmdb for that"
        )


def survey(index: Path, target: Target, seen: Seen | None = None) -> PurgeSurvey:
    """What would become of an index; `seen` hears of each original and each revisit.

    Changes nothing, and may be asked while others write. Raises `DedupError`.
    """
    store = open_store(index)
    _check_ledger(index)
    with closing(open_index(index)) as engine, engine.view() as view:
        keys = engine.identity.settings.keys()
        what = chosen(target, view, keys)
        impact = _surveyed(index, engine, view, what, None, seen).impact
        with closing(store) if store is not None else nullcontext():
            held = _held(store, what)
            return PurgeSurvey(impact, held, what.found, _unread(store, view, what))


def _held(store: Store | None, what: ResolvedTarget, writer: RunWriter | None = None) -> int:
    """How many captures of crawls go, too, staged as `live.counted` does it.

    Raises `BadInput`, see `ResolvedTarget.check`.
    """
    held = 0
    if store is not None:
        with store.reading() as reading:
            held = live.counted(reading, what, writer)
    what.check()
    return held


def _surveyed(
    index: Path,
    engine: Engine,
    view: View,
    what: ResolvedTarget,
    writer: RunWriter | None,
    seen: Seen | None,
) -> Survey:
    settling = Settling(engine.identity.settings, view.place_of)
    whole = Survey(index, view, what, settling, writer=writer, listed=seen is not None)
    for item in whole.items():
        if seen is not None:
            seen(item)
    return whole


def purge(index: Path, target: Target, *, force: bool, seen: Seen | None = None) -> PurgeSurvey:
    """Take captures out of an index and of its crawls, durably.

    Raises `HasDependents` if a revisit names what would go, unless `force`; nothing has changed
    then. Raises `IndexBusy` while something else writes, and other `DedupError`.
    """
    _check_ledger(index)  # where there is no index, no lock file is to be made
    scratch = index / SCRATCH
    with exclusive(index / "lock", f"the index at {index}"):
        with closing(open_index(index, write=True)) as engine:
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir()
            try:
                found, drawn = _purged(index, engine, target, force, scratch, seen)
            finally:
                with suppress(OSError):
                    shutil.rmtree(scratch)
        spot_check.confirm_purge(
            index,
            drawn,
            "Run the same bin/purge again; what should have stayed comes back with "
            f"{reread(str(index), ['SOURCE...'])}",
        )
    return found


def _purged(
    index: Path, engine: Engine, target: Target, force: bool, scratch: Path, seen: Seen | None
) -> tuple[PurgeSurvey, spot_check.Purge]:
    writer = RunWriter(scratch, "purged", run_bytes=_STAGED)
    with engine.view() as view:
        what = chosen(target, view, engine.identity.settings.keys())
        whole = _surveyed(index, engine, view, what, writer, seen)
        impact = whole.impact
        marked = [_purged_container(view, name) for name in registered(what, view)]
    if impact.dependents.captures and not force:
        raise HasDependents(
            f"{impact.dependents.captures:,} revisits name captures that would go; "
            "bin/impact lists them, and --force purges all the same"
        )
    store = open_store(index)
    with closing(store) if store is not None else nullcontext():
        held = _held(store, what, writer)
        writer.flush()
        with engine.view() as view:
            unknown = _unread(store, view, what)
            drawn = spot_check.of_purge(view, engine.identity.settings, writer.paths)
        drops = what.drops if whole.rewrites else None
        if writer.paths or marked or drops:
            engine.load(Load(writer.paths, (), marked, drops=drops, own_digests=True))
        if store is not None:  # last: until then what is to go can be found again
            live.remove(store, what, engine.identity.settings)
            if target.kind is TargetKind.CRAWL:
                _forget(store, target.texts)
    return PurgeSurvey(impact, held, what.found, unknown), drawn


def _unread(store: Store | None, view: View, what: ResolvedTarget) -> dict[str, int]:
    """Crawls whose revisits may name what goes, without the index knowing."""
    if store is None or not what.found:
        return {}
    goes = what.target.texts if what.target.kind is TargetKind.CRAWL else ()
    with store.reading() as reading:
        return unread(view, reading, but=goes)


def _forget(store: Store, names: Iterable[str]) -> None:
    """Take away the statistics of crawls, in short transactions; no more are counted."""
    for name in names:
        left = 1
        while left:
            left = 0
            with suppress(UnknownCrawl):  # it never wrote while it ran
                left = store.write(partial(_forgotten, name=name))


def _forgotten(writing: Writing, name: str) -> int:
    return statistics.drop(writing, lifecycle.forget(writing, name))


def _purged_container(view: View, name: str) -> IndexedContainer:
    container = view.container(name)
    assert container is not None
    return container._replace(purged=True)


__all__ = ["PurgeSurvey", "TargetKind", "purge", "survey"]


# What a survey found, as JSON.

LISTED = 1000  # containers and crawls
_NAMED = 5  # crawls, in a sentence


def impact_as_json(found: PurgeSurvey) -> dict[str, Any]:
    """The counts; of containers and crawls with dependents those with the most."""
    impact = found.impact
    return {
        "originals": asdict(impact.originals),
        **{name: asdict(amount) for name, amount in impact.left.items()},
        "copies": asdict(impact.copies),
        "live": found.live,
        "dependents": asdict(impact.dependents),
        "broken": asdict(impact.broken),
        "by_container": _rows(impact.by_container),
        "by_crawl": _rows(impact.by_crawl),
        "unread": [
            {"crawl": name, "duplicates": count}
            for name, count in islice(_most_first(found.unread), LISTED)
        ],
    }


def unread_as_text(found: PurgeSurvey) -> str:
    """A warning of crawls whose revisits are not known, "" if there are none."""
    crawls = len(found.unread)
    if not crawls:
        return ""
    names = ", ".join(
        f"{name} ({count:,})" for name, count in islice(_most_first(found.unread), _NAMED)
    )
    more = f" and {crawls - _NAMED:,} more" if crawls > _NAMED else ""
    return (
        f"{sum(found.unread.values()):,} lookups of crawls whose WARCs have not all been read were "
        f"answered with originals: {names}{more}. Their revisits are not counted here; read their "
        "WARCs first: bin/index --add --crawl NAME"
    )


def _most_first(counts: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda one: (-one[1], one[0]))


def _rows(sums: Sums) -> list[dict[str, Any]]:
    return [
        {
            "name": name.decode("utf-8", "backslashreplace") or None,
            "dependents": count,
            "bytes": size,
        }
        for name, (count, size) in sums.largest(LISTED, 0)
    ]


def going_as_json(item: Going | Depending) -> dict[str, Any]:
    """An original that goes, or a revisit that depends on one."""
    if isinstance(item, Going):
        becomes = original_as_json(item.becomes) if item.becomes else None
        return {
            "goes": original_as_json(item.capture), "payload": item.left, "becomes": becomes,
        }  # fmt: skip
    one = item.dependent
    return {
        "depends": {
            **url_as_json(one.url),
            "date": one.date.decode(),
            "digest": str(item.digest),
            "container": item.container or None,
            "crawl": item.crawl or None,
            "size": item.size if item.size >= 0 else None,
            "refers_to": {**url_as_json(one.names_url), "date": one.names_date.decode() or None},
        },
        "payload": item.left,
    }
