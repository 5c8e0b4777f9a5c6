"""A sample of what was written, looked up through the door that servers use.

A load or merge draws some of the entries that it brings, before it writes them. When it has
finished, the index is opened anew and asked for each: the answer must be that capture, or a better
one of its URL and digest. A copy must answer as its source does. A purge draws some of what goes,
which must not be found any more, and some of what stays, which must be found as before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar

from dedupindex.capture import Capture, Evidence
from dedupindex.digest import EMPTY
from dedupindex.errors import Damaged, IndexUnavailable, NotAnswered
from dedupindex.index import open_index
from dedupindex.index.address import is_cluster
from dedupindex.index.engine import Load, View, retry
from dedupindex.index.format.cells import (
    CODES,
    ContainerRef,
    Keys,
    answers,
    decode,
    digest_of_key,
    entries_of,
    sealed_text,
    unsealed_text,
    url_of,
)
from dedupindex.index.format.fast_answer import BROKEN
from dedupindex.index.format.tombstones import REVISIT, bare, container_in, encode_purged, is_purged
from dedupindex.index.identity import Settings, read_identity
from dedupindex.index.load.runs import evenly, read_run
from dedupindex.lookup.decide import Query, find
from dedupindex.runtime.files import write_file
from dedupindex.timestamps import sort_key

CHUNKS, EACH = 16, 12  # chunks of runs, and entries of each
MOST = CHUNKS * EACH
_STEPS, _AT_EACH = 64, 3  # places in the order of digests at which an index is sampled, and keys
UNCONFIRMED = "unconfirmed.json"  # in an index, from before a load until it is confirmed
_LAST = "\U0010ffff"

_T = TypeVar("_T")
Answered = Capture | str | None  # the capture, the text of an error, or nothing


class Drawn(NamedTuple):
    """An entry that a load brings."""

    key: bytes
    entry: bytes
    place: ContainerRef | None  # of its container; None: the load does not bring the name


class SampledKey(NamedTuple):
    """What an index is asked for."""

    key: bytes
    url: bytes


class Purge(NamedTuple):
    """Of a purge what goes and what stays, each with what answered before."""

    gone: list[tuple[SampledKey, Answered]]
    stays: list[tuple[SampledKey, Answered]]


class Unconfirmed(NamedTuple):
    """What a load brings that is not confirmed yet, as a file beside the index keeps it."""

    drawn: list[Drawn]
    containers: list[tuple[str, str]]  # some of the load's: name and content hash
    repair: str

    def remember(self, index: Path) -> None:
        """Keep it until it is confirmed: a load may be killed before it has looked."""
        drawn = [[one.key.hex(), one.entry.hex(), one.place] for one in self.drawn]
        content = [drawn, self.containers, self.repair]
        write_file(index / UNCONFIRMED, sealed_text(b"", json.dumps(content)).encode())


NOTHING = Unconfirmed([], [], "")


def recalled(index: Path, view: View) -> Unconfirmed:
    """What an earlier load has brought and nobody has confirmed; nothing if it was not finished.

    Raises `Damaged`.
    """
    path = index / UNCONFIRMED
    try:
        drawn, containers, repair = json.loads(unsealed_text(b"", path.read_text()))
    except FileNotFoundError:
        return NOTHING
    except (ValueError, Damaged) as error:
        raise Damaged(
            f"{path} is damaged, so what an interrupted load wrote cannot be looked up; remove it, "
            f"and let bin/index --check {index} read everything back"
        ) from error
    known = [view.container(name) for name, _ in containers]
    if any(
        found is None or found.content_hash != content
        for found, (_, content) in zip(known, containers, strict=True)
    ):
        path.unlink()
        return NOTHING
    found = [
        Drawn(
            bytes.fromhex(key),
            bytes.fromhex(entry),
            None if place is None else ContainerRef(*place),
        )
        for key, entry, place in drawn
    ]
    return Unconfirmed(found, [(name, content) for name, content in containers], repair)


def confirm_recalled(index: Path, what: Unconfirmed) -> None:
    """As `confirm`; if it does not raise, nothing is left to confirm."""
    confirm(index, what.drawn, what.repair)
    (index / UNCONFIRMED).unlink(missing_ok=True)


# --- drawing -------------------------------------------------------------------------------------


def of_load(load: Load, keys: Keys) -> list[Drawn]:
    """Captures that a load brings, spread over its runs; its places must be a list."""
    staged = _staged(load.runs, keys)
    chosen = [(key, bare(entry)) for key, entry in staged if entry[0] & 3 != REVISIT]
    wanted = {container_in(entry) for _, entry in chosen}
    names = {number: place for number, place in load.places if number in wanted}
    return [Drawn(key, entry, names.get(container_in(entry))) for key, entry in chosen]


def of_index(view: View) -> list[SampledKey]:
    """Captures that an index in a directory holds, spread over it."""
    chosen = [asked for pair in _cells(view) for asked in _asked(*pair)]
    if len(chosen) < _STEPS:  # it is small
        chosen = [asked for pair in islice(view.cells(), MOST) for asked in _asked(*pair)]
    return chosen


def of_purge(view: View, settings: Settings, runs: Sequence[Path]) -> Purge:
    """What the marks in runs will take out of an index, and what stays beside it."""
    gone = []
    for key, mark in _staged(runs, settings.keys()):
        if is_purged(mark):
            for entry in filter(answers, _entries(view, key)):
                if mark in (
                    encode_purged(entry, anywhere=True),
                    encode_purged(entry, anywhere=False),
                ):
                    gone.append(SampledKey(key, url_of(entry)))
    stays = of_index(view)
    return Purge(
        list(zip(gone, _answers(view, settings, gone), strict=True)),
        list(zip(stays, _answers(view, settings, stays), strict=True)),
    )


def _staged(runs: Sequence[Path], keys: Keys) -> Iterator[tuple[bytes, bytes]]:
    """Keys and entries of a few chunks."""
    lengths, chosen = keys.lengths(), evenly(runs, CHUNKS)
    for path in chosen:
        for chunk in read_run(path, CHUNKS // len(chosen)):
            for staged in evenly(chunk, EACH):
                end = lengths[staged[0]]
                yield staged[:end], staged[end:]


def _cells(view: View) -> Iterator[tuple[bytes, bytes]]:
    """Some keys and cells from many places in the order of digests."""
    for code in filter(sum, CODES.values()):
        if next(iter(view.cells(code)), None) is not None:
            for step in range(_STEPS):
                prefix = code + bytes([step * 256 // _STEPS])
                yield from islice(view.cells(prefix), _AT_EACH)


def _asked(key: bytes, cell: bytes) -> Iterator[SampledKey]:
    return (SampledKey(key, url_of(entry)) for entry in entries_of(cell) if answers(entry))


# --- asking --------------------------------------------------------------------------------------


def confirm(index: Path, drawn: Sequence[Drawn], repair: str) -> None:
    """Ask the index that is there now for what a load brought; `repair` is a whole sentence.

    Raises:
        NotAnswered: a capture is not answered as it must be.
        IndexUnavailable: a cluster does not answer at all.
    """

    def wrong(view: View, settings: Settings) -> list[str]:
        view.prefetch(digest_of_key(one.key) for one in drawn)
        return [said for one in drawn if (said := _wrong(view, settings, one))]

    if drawn:
        _raise_if(index, len(drawn), _opened(index, wrong), repair)


def confirm_purge(index: Path, purge: Purge, repair: str) -> None:
    """Ask for what a purge took out of an index, and for what it left; see `confirm`."""

    def wrong(view: View, settings: Settings) -> list[str]:
        gone, stays = [one for one, _ in purge.gone], [one for one, _ in purge.stays]
        still = zip(purge.gone, _answers(view, settings, gone), strict=True)
        said = [
            f"{_shown(one)}: it was purged, and is still found"
            for (one, before), now in still
            if now == before
        ]
        for (one, before), now in zip(purge.stays, _answers(view, settings, stays), strict=True):
            if now != before and not any(map(is_purged, _entries(view, one.key))):
                said.append(f"{_shown(one)}: it was not purged, and is answered otherwise")
        return said

    _raise_if(index, len(purge.gone) + len(purge.stays), _opened(index, wrong), repair)


def answered(index: Path, asked: Sequence[SampledKey]) -> list[Answered]:
    """What an index answers now."""
    return _opened(index, lambda view, settings: _answers(view, settings, asked))


def check_source(index: Path, asked: Sequence[SampledKey]) -> list[Answered]:
    """What an index that is to be copied answers; raises `Damaged` if that is an error."""
    found = answered(index, asked)
    for one, answer in zip(asked, found, strict=True):
        if isinstance(answer, str):
            raise Damaged(
                f"{index} cannot answer {_shown(one)}: {answer}; it was not copied, and "
                "bin/index --check says what is wrong with it"
            )
    return found


def confirm_copy(
    source: Path, target: Path, asked: Sequence[SampledKey], before: list[Answered], repair: str
) -> None:
    """Ask a copy for what its source answered `before`; see `confirm`.

    Where the source answers otherwise by now, there is no telling what the copy must answer.
    """
    there = answered(target, asked)
    if there == before:
        return
    now = answered(source, asked)
    wrong = [
        f"{_shown(one)}: the source answers it otherwise"
        for one, old, copied, new in zip(asked, before, there, now, strict=True)
        if copied not in (old, new) and (old == new or isinstance(copied, str))
    ]
    _raise_if(target, len(asked), wrong, repair)


def _opened(index: Path, work: Callable[[View, Settings], list[_T]]) -> list[_T]:
    """Do something with an index that is opened anew; a cluster may be away for a moment."""

    def once() -> list[_T]:
        with closing(open_index(index)) as engine, engine.view() as view:
            return work(view, engine.identity.settings)

    if not is_cluster(read_identity(index).engine):
        return once()
    try:
        return retry(once)
    except IndexUnavailable as error:
        raise IndexUnavailable(
            f"what was written is there, but the cluster does not answer a sample of it: {error}; "
            "bin/index --check reads it back"
        ) from error


def _answers(view: View, settings: Settings, asked: Sequence[SampledKey]) -> list[Answered]:
    found: list[Answered] = []
    for one in asked:
        try:
            answer = find(view, settings, Query(digest_of_key(one.key), one.url, bridge=True))
        except (Damaged, *BROKEN) as error:
            found.append(str(error))
        else:
            found.append(answer.original if answer else None)
    return found


def _wrong(view: View, settings: Settings, one: Drawn) -> str:
    """How the answer for an entry is wrong, "" if it is right."""
    digest = digest_of_key(one.key)
    asked = SampledKey(one.key, url_of(one.entry))
    if digest in EMPTY:
        return ""
    try:
        wanted = decode(one.key, one.entry, lambda number: one.place or view.place_of(number))
        answer = find(view, settings, Query(digest, asked.url, bridge=True))
        marks = [each for each in _entries(view, one.key) if each[0] & 3 == REVISIT]
    except (Damaged, *BROKEN) as error:
        return f"{_shown(asked)}: {error}"
    found = answer.original if answer else None
    if found is None or (settings.url_index and found.url != wanted.url):
        refused = any(map(is_purged, marks)) or (marks and wanted.evidence != Evidence.RECORD)
        return "" if refused else f"{_shown(asked)}: it is not found"
    if not marks and not _as_good(found, wanted, settings.keep == "latest"):
        return f"{_shown(asked)}: another capture is found in its place, {_place(found)}"
    return ""


def _as_good(found: Capture, wanted: Capture, latest: bool) -> bool:
    """Whether of two captures of a URL and digest `found` may stay; see `index.settle`."""
    if latest and Evidence.NAMED in (found.evidence, wanted.evidence):
        if found.evidence != wanted.evidence:
            return found.evidence < wanted.evidence
        latest = False
    date, other = sort_key(found.date), sort_key(wanted.date)
    if date[:19] != other[:19]:
        return (date < other) is not latest
    if found.evidence != wanted.evidence:
        return found.evidence < wanted.evidence
    if date != other:
        return (date < other) is not latest
    return _place(found) <= _place(wanted)


def _place(capture: Capture) -> tuple[str, int]:
    return capture.container or _LAST, capture.offset if capture.offset >= 0 else 1 << 62


def _cell(view: View, key: bytes) -> bytes | None:
    return next((cell for found, cell in view.cells(key) if found == key), None)


def _entries(view: View, key: bytes) -> Iterator[bytes]:
    cell = _cell(view, key)
    return entries_of(cell) if cell else iter(())


def _shown(one: SampledKey) -> str:
    return f"{digest_of_key(one.key)} {one.url.decode('utf-8', 'backslashreplace')}"


def _raise_if(index: Path, asked: int, wrong: list[str], repair: str) -> None:
    if wrong:
        engine = read_identity(index).engine
        raise NotAnswered(
            f"{engine if is_cluster(engine) else index} does not answer what was written: "
            f"{len(wrong)} of a sample of {asked}, first {wrong[0]}. {repair}"
        )
