"""Look up a sample of what was written, through the same interface as servers.

A load samples the entries that it brings before it writes them. Then the index is opened anew and
must answer with each capture, or a better one of its URL and digest. A copy must answer as its
source does. After a purge, removed captures must not be found, and others must be found as before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar

from dedupindex.capture import Capture, Evidence
from dedupindex.digest import EMPTY
from dedupindex.errors import Damaged, IndexUnavailable, SpotCheckFailed
from dedupindex.index import open_index
from dedupindex.index.address import is_cluster
from dedupindex.index.engine import Load, View, retry
from dedupindex.index.format import cells
from dedupindex.index.format.cells import ContainerRef, Keys
from dedupindex.index.format.fast_answer import BROKEN
from dedupindex.index.format.tombstones import REVISIT, encode_purged, is_purged
from dedupindex.index.identity import Settings, read_identity
from dedupindex.index.load.merge_rule import capture_order
from dedupindex.index.load.runs import read_run, spread
from dedupindex.lookup.decide import Query, find
from dedupindex.runtime.files import write_file

CHUNKS, EACH = 16, 12  # chunks of runs, and entries of each
MOST = CHUNKS * EACH
_RANGES, _KEYS_OF_RANGE = 64, 3  # of digests, in the sample of an index
UNCONFIRMED = "unconfirmed.json"  # in an index, from before a load until it is confirmed

_T = TypeVar("_T")
Result = Capture | str | None  # the original, the text of an error, or no answer


class SampledEntry(NamedTuple):
    """An entry that a load brings."""

    key: bytes
    entry: bytes
    container: ContainerRef | None  # None: it has no name in the load


class SampledKey(NamedTuple):
    """A lookup of a sample."""

    key: bytes
    url: bytes

    def __str__(self) -> str:
        return f"{cells.digest_of_key(self.key)} {self.url.decode('utf-8', 'backslashreplace')}"


class PurgeSample(NamedTuple):
    """Lookups of what a purge removes and of what it keeps, with their results before."""

    removed: list[tuple[SampledKey, Result]]
    kept: list[tuple[SampledKey, Result]]


class Unconfirmed(NamedTuple):
    """A sample of a load that is not confirmed yet, as a file in the index keeps it."""

    entries: list[SampledEntry]
    containers: list[list[str]]  # some of the load's: name and content hash
    repair: str

    def write(self, index: Path) -> None:
        """Write the file: a load may be killed before it is confirmed."""
        entries = [[key.hex(), entry.hex(), container] for key, entry, container in self.entries]
        content = [entries, self.containers, self.repair]
        write_file(index / UNCONFIRMED, cells.sealed_text(b"", json.dumps(content)).encode())


NOTHING = Unconfirmed([], [], "")


def read_unconfirmed(index: Path, view: View) -> Unconfirmed:
    """Return the sample of an earlier load, `NOTHING` if that was confirmed or never finished."""
    path = index / UNCONFIRMED
    try:
        entries, containers, repair = json.loads(cells.unsealed_text(b"", path.read_text()))
    except FileNotFoundError:
        return NOTHING
    except (ValueError, Damaged) as error:
        raise Damaged(
            f"{path} is damaged, so what an interrupted load wrote cannot be looked up; remove it, "
            f"and let bin/index --check {index} read everything back"
        ) from error
    for name, content in containers:
        found = view.container(name)
        if found is None or found.content_hash != content:
            path.unlink()
            return NOTHING
    sample = [
        SampledEntry(bytes.fromhex(key), bytes.fromhex(entry), named and ContainerRef(*named))
        for key, entry, named in entries
    ]
    return Unconfirmed(sample, containers, repair)


def confirm_load(index: Path, unconfirmed: Unconfirmed) -> None:
    """Confirm a load as `confirm` does, and remove the file of its sample."""
    confirm(index, unconfirmed.entries, unconfirmed.repair)
    (index / UNCONFIRMED).unlink(missing_ok=True)


def sample_load(load: Load, keys: Keys) -> list[SampledEntry]:
    """Return captures that a load brings, spread over its runs; its places must be a list."""
    staged = _staged(load.runs, keys)
    chosen = [(key, cells.strip_flags(entry)) for key, entry in staged if entry[0] & 3 != REVISIT]
    numbers = {cells.container_of(entry) for _, entry in chosen}
    names = {number: place for number, place in load.places if number in numbers}
    return [SampledEntry(key, entry, names.get(cells.container_of(entry))) for key, entry in chosen]


def sample_index(view: View) -> list[SampledKey]:
    """Return captures of an index, spread over the order of digests."""

    def sampled(found: Iterator[tuple[bytes, bytes]]) -> list[SampledKey]:
        return [
            SampledKey(key, cells.url_of(entry))
            for key, cell in found
            for entry in filter(cells.answers, cells.entries_of(cell))
        ]

    chosen = sampled(view.spread_cells(_RANGES, _KEYS_OF_RANGE))
    return chosen if len(chosen) >= _RANGES else sampled(islice(view.cells(), MOST))


def sample_purge(view: View, settings: Settings, runs: Sequence[Path]) -> PurgeSample:
    """Return lookups of what the tombstones in runs remove from an index, and of the rest."""
    removed = [
        SampledKey(key, cells.url_of(entry))
        for key, tombstone in _staged(runs, settings.keys())
        if is_purged(tombstone)
        for entry in filter(cells.answers, _entries(view, key))
        if tombstone in (encode_purged(entry, anywhere=True), encode_purged(entry, anywhere=False))
    ]
    kept = sample_index(view)
    results = [[(key, _result(view, settings, key)) for key in keys] for keys in (removed, kept)]
    return PurgeSample(*results)


def _staged(runs: Sequence[Path], keys: Keys) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and entries of a few chunks."""
    lengths, chosen = keys.lengths(), spread(runs, CHUNKS)
    for path in chosen:
        for chunk in read_run(path, CHUNKS // len(chosen)):
            for staged in spread(chunk, EACH):
                end = lengths[staged[0]]
                yield staged[:end], staged[end:]


def confirm(index: Path, sample: Sequence[SampledEntry], repair: str) -> None:
    """Look up the sample of a load; raises `SpotCheckFailed`, which says `repair`."""

    def defects(view: View, settings: Settings) -> list[str]:
        view.prefetch(cells.digest_of_key(entry.key) for entry in sample)
        return list(filter(None, (_defect(view, settings, entry) for entry in sample)))

    if sample:
        _raise_if(index, len(sample), _with_index(index, defects), repair)


def confirm_purge(index: Path, sample: PurgeSample, repair: str) -> None:
    """Look up the sample of a purge in the index; raises as `confirm`."""

    def defects(view: View, settings: Settings) -> list[str]:
        found = [
            f"{key}: it was purged, and is still found"
            for key, before in sample.removed
            if _result(view, settings, key) == before
        ]
        for key, before in sample.kept:
            purged = any(map(is_purged, _entries(view, key.key)))
            if not purged and _result(view, settings, key) != before:
                found.append(f"{key}: it was not purged, and is answered otherwise")
        return found

    _raise_if(index, len(sample.removed) + len(sample.kept), _with_index(index, defects), repair)


def look_up(index: Path, keys: Sequence[SampledKey]) -> list[Result]:
    """Return the results of lookups in an index."""
    return _with_index(index, lambda view, settings: [_result(view, settings, key) for key in keys])


def check_source(index: Path, keys: Sequence[SampledKey]) -> list[Result]:
    """Return the results of lookups in an index to be copied; raises `Damaged` for an error."""
    found = look_up(index, keys)
    for key, result in zip(keys, found, strict=True):
        if isinstance(result, str):
            raise Damaged(
                f"{index} cannot answer {key}: {result}; it was not copied, and "
                "bin/index --check says what is wrong with it"
            )
    return found


def confirm_copy(
    source: Path, target: Path, keys: Sequence[SampledKey], before: list[Result], repair: str
) -> None:
    """Look up a sample in a copy, whose source answered `before`; raises as `confirm`.

    A lookup that the source answers otherwise by now may have either result.
    """
    copied = look_up(target, keys)
    if copied == before:
        return
    now = look_up(source, keys)
    defects = [
        f"{key}: the source answers it otherwise"
        for key, old, new, result in zip(keys, before, now, copied, strict=True)
        if result not in (old, new) and (old == new or isinstance(result, str))
    ]
    _raise_if(target, len(keys), defects, repair)


def _with_index(index: Path, work: Callable[[View, Settings], list[_T]]) -> list[_T]:
    """Call `work` with an index that is opened anew; retry while a cluster is unavailable."""

    def call() -> list[_T]:
        with closing(open_index(index)) as engine, engine.view() as view:
            return work(view, engine.identity.settings)

    if not is_cluster(read_identity(index).engine):
        return call()
    try:
        return retry(call)
    except IndexUnavailable as error:
        raise IndexUnavailable(
            f"what was written is there, but the cluster does not answer a sample of it: {error}; "
            "bin/index --check reads it back"
        ) from error


def _result(view: View, settings: Settings, key: SampledKey) -> Result:
    try:
        answer = find(view, settings, Query(cells.digest_of_key(key.key), key.url, bridge=True))
    except (Damaged, *BROKEN) as error:
        return str(error)
    return answer.original if answer else None


def _defect(view: View, settings: Settings, sampled: SampledEntry) -> str:
    """Return what is wrong with the answer for an entry, "" if it is right."""
    key = SampledKey(sampled.key, cells.url_of(sampled.entry))
    if cells.digest_of_key(key.key) in EMPTY:
        return ""
    found = _result(view, settings, key)
    if isinstance(found, str):
        return f"{key}: {found}"
    try:
        wanted = cells.decode(
            key.key, sampled.entry, lambda number: sampled.container or view.place_of(number)
        )
        tombstones = [entry for entry in _entries(view, key.key) if entry[0] & 3 == REVISIT]
    except (Damaged, *BROKEN) as error:
        return f"{key}: {error}"
    if found is None or (settings.url_index and found.url != wanted.url):
        refused = any(map(is_purged, tombstones)) or (
            tombstones and wanted.evidence != Evidence.RECORD
        )
        return "" if refused else f"{key}: it is not found"
    order = partial(capture_order, latest=settings.keep == "latest")
    if not tombstones and order(found) > order(wanted):
        return f"{key}: another capture is found in its place, {found.container} {found.offset}"
    return ""


def _entries(view: View, key: bytes) -> Iterator[bytes]:
    for found, cell in view.cells(key):
        if found == key:
            yield from cells.entries_of(cell)


def _raise_if(index: Path, count: int, defects: list[str], repair: str) -> None:
    if defects:
        engine = read_identity(index).engine
        raise SpotCheckFailed(
            f"{engine if is_cluster(engine) else index} does not answer what was written: "
            f"{len(defects)} of a sample of {count}, first {defects[0]}. {repair}"
        )
