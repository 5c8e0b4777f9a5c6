"""The engine in pure Python that people can search: documents in Whoosh, a commit for every load.

``INDEX/whoosh`` is a Whoosh index. Its table of contents appears by rename when all it names is
on disk, so that a load is there whole or not at all; counts, names and registrations are documents
of the same commit. Beside each segment stands the CRC-32 of its file. A value column of Whoosh
ends at 2 GB, so an index does at about 20 million captures; LMDB is the engine for more.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from whoosh.index import TOC, FileIndex

from dedupindex.cache import Cache
from dedupindex.errors import Damaged, DedupError, IndexUnavailable
from dedupindex.index.engine import PLACES_KEPT, Load, numbers_of
from dedupindex.index.engines.whoosh.whoosh_files import SCHEMA, CommitWriter, Storage, crc_of, sync
from dedupindex.index.engines.whoosh.whoosh_load import WhooshLoader, register
from dedupindex.index.engines.whoosh.whoosh_view import WhooshSnapshot, WhooshView, reading
from dedupindex.index.format import ledger
from dedupindex.index.format.cells import (
    ContainerRef,
    answers,
    digest_of_key,
    digest_prefix,
    is_sound,
    unsealed,
)
from dedupindex.index.format.ledger import Keeper, drops_of
from dedupindex.index.identity import read_identity, unfinished
from dedupindex.index.load.merge_rule import MergeOutcome, MergeRule, checksum
from dedupindex.index.load.runs import merge_files
from dedupindex.runtime.files import sync_directory

# Reading a whole Whoosh index back: is what is stored what was written?.


def problems(view: WhooshView) -> list[str]:
    """What is wrong with the documents, in sentences; files are checked by the engine."""
    wrong: list[str] = []
    keys, captures, total, digests, last = view.snapshot.keys, 0, 0, 0, b""
    for key in view.snapshot.keys_from(b""):
        for _, stored in view.snapshot.stored("key", key):
            if not is_sound(b"", stored):
                wrong.append(f"the entry under {key.hex()} is damaged")
                continue
            content = unsealed(b"", stored)
            total += checksum([(content, b"")])
            if not content.startswith(key):
                wrong.append(f"the document under {key.hex()} belongs under another key")
                continue
            if not answers(view.snapshot.entry(content)):
                continue
            try:
                capture = view.decoded(content)
            except (Damaged, KeyError) as error:
                wrong.append(str(error))
                continue
            if keys.of(digest_of_key(key), capture.url) != key:
                wrong.append(f"the entry under {key.hex()} belongs under another key")
            captures += 1
            digest = digest_prefix(digest_of_key(key))
            digests += digest != last
            last = digest
    meta, containers = view.snapshot.meta(), sum(1 for _ in view.containers())
    found = {"captures": captures, "digests": digests, "containers": containers}
    for name, count in found.items():
        if count != meta[name]:
            wrong.append(f"{count} {name} are there, {meta[name]} were counted")
    if total % (1 << 64) != meta["checksum"]:
        wrong.append("what is stored is not what was written (its checksum is another)")
    return wrong


NAME = "MAIN"
SNAPSHOTS_KEPT = 8  # open readers that wait for a view
COPIES_TRIED = 10


class WhooshEngine:
    """An open Whoosh index; `write` asks for the right to load."""

    def __init__(self, index: Path, *, write: bool = False) -> None:
        self.index, self.directory = index, index / "whoosh"
        self.identity = read_identity(index)
        self._places = Cache[int, ContainerRef](PLACES_KEPT)
        self._idle: deque[WhooshSnapshot] = deque()
        self._index: Any = None
        if self.identity.generation:
            with reading(f"the index at {index}"):
                self._index = FileIndex(Storage(str(self.directory)), SCHEMA, NAME)

    def view(self) -> WhooshView:
        """The state of the last commit; see `protocol.View`."""
        if self._index is None:
            raise IndexUnavailable(unfinished(self.index))
        return WhooshView(self._borrow, self._give_back, self._places)

    def _borrow(self) -> WhooshSnapshot:
        """A snapshot of the last commit: opening one takes a millisecond, so they are kept."""
        if self._index is None:
            raise IndexUnavailable(f"the index at {self.index} is closed")
        with reading(f"the index at {self.index}"):
            latest = self._index.latest_generation()
            while self._idle:
                with suppress(IndexError):  # another thread was faster
                    snapshot = self._idle.pop()
                    if snapshot.generation == latest:
                        return snapshot
                    snapshot.close()
            return WhooshSnapshot(self._index.reader(), self.identity.settings.keys())

    def _give_back(self, snapshot: WhooshSnapshot) -> None:
        if self._index is None or len(self._idle) >= SNAPSHOTS_KEPT:
            snapshot.close()
        else:
            self._idle.append(snapshot)

    def number_of(self, place: ContainerRef) -> int:
        if self._index is None:
            return 0
        with self.view() as view:
            return view.number_of(place)

    def next_number(self) -> int:
        return int(self._meta().get("next_number", 1))

    def note(self) -> dict[str, Any]:
        return dict(self._meta().get("note", {}))

    def _meta(self) -> dict[str, Any]:
        if self._index is None:
            return {}
        with self.view() as view, reading("the index"):
            return view.snapshot.meta()

    def load(self, load: Load) -> MergeOutcome:
        """Take in a load; see `protocol.Engine.load`."""
        load = load._replace(places=list(load.places))  # it is read twice
        with self._keeper(load) as keeper, self._writing() as writer, self._before() as before:
            gone = numbers_of(before, load.dropped) if before is not None else set()
            state = before.snapshot if before is not None else None
            loader = WhooshLoader(writer, state, self._rule(load, before), gone, keeper)
            scratch = load.runs[0].parent if load.runs else self.index
            outcome = loader.run(merge_files(load.runs, scratch))
            register(writer, state, load, outcome, keeper.names())
            writer.commit()
        if not self.identity.generation:
            identity = self.identity.next_generation()
            identity.write(self.index)
            self.identity = identity
        return outcome

    def _keeper(self, load: Load) -> Keeper:
        names: list[str] = []
        gone: set[int] = set()
        if self._index is not None:
            with self.view() as view:
                names, gone = view.ledger(), numbers_of(view, load.dropped)
        drops, keys = drops_of(gone, load.drops), self.identity.settings.keys()
        return Keeper(self.index, names, load.ledger, drops, keys)

    def _rule(self, load: Load, before: WhooshView | None) -> MergeRule:
        fresh = dict(load.places)
        settings = self.identity.settings

        def place_of(number: int) -> ContainerRef:
            place = fresh.get(number)
            if place is None:
                if before is None:
                    raise KeyError(f"container number {number} has no name")
                place = before.place_of(number)
            return place

        return MergeRule(settings.keys(), settings.keep == "latest", place_of)

    @contextmanager
    def _before(self) -> Iterator[WhooshView | None]:
        """The state that a load adds to, None if it is the first."""
        if not self.identity.generation:
            yield None
            return
        with self.view() as view:
            yield view

    @contextmanager
    def _writing(self) -> Iterator[CommitWriter]:
        """A writer, which the body commits; on any failure nothing has changed."""
        writer = None
        try:
            if not self.identity.generation:
                shutil.rmtree(self.directory, ignore_errors=True)
                self.directory.mkdir()
                self._index = FileIndex.create(Storage(str(self.directory)), SCHEMA, NAME)
            writer = CommitWriter(self._index)
            yield writer
        except BaseException as error:
            if writer is not None:
                writer.cancel()
            if not self.identity.generation:
                self._index = None
            self.clear_leftovers()
            if isinstance(error, DedupError) or not isinstance(error, Exception):
                raise
            raise IndexUnavailable(f"{self.directory}: {error!r}; nothing was changed") from error

    def compact(self) -> None:
        """Merge all segments into one, leaving out what was deleted; readers go on meanwhile."""
        if self._index is None:
            self.load(Load([], (), []))
            return
        with self._writing() as writer:
            writer.commit(optimize=True)

    def forget_dead_readers(self) -> None:
        """See `protocol.Engine`; nothing is kept for readers here."""

    def check(self) -> list[str]:
        """Read everything back; see `protocol.Engine.check`."""
        wrong: list[str] = []
        try:
            for segment in self._segments():
                path = self.directory / segment
                if path.suffix == ".seg" and crc_of(path) != int(
                    path.with_suffix(".crc").read_text()
                ):
                    wrong.append(f"{path} is not what was written (its CRC is another)")
            with self.view() as view:
                wrong += problems(view)
                wrong += ledger.problems(self.index, view.ledger())
        except (DedupError, OSError) as error:
            wrong.append(str(error))
        except Exception as error:  # see `reading`
            wrong.append(f"the index cannot be read to its end: {error!r}")
        return wrong

    def _segments(self) -> list[str]:
        """Names of the files of the last commit."""
        with reading(f"the index at {self.index}"):
            toc = TOC.read(self._index.storage, NAME, schema=SCHEMA)
            files = [TOC._filename(NAME, toc.generation)]
            for segment in toc.segments:
                files += [f"{segment.segment_id()}.seg", f"{segment.segment_id()}.crc"]
            return files

    def copy(self, target: Path) -> None:
        """A copy of one consistent state, made while others read and write."""
        if self._index is None:
            raise IndexUnavailable(unfinished(self.index))
        directory = target / "whoosh"
        for _ in range(COPIES_TRIED):
            try:
                shutil.rmtree(directory, ignore_errors=True)
                directory.mkdir()
                for name in self._segments():
                    shutil.copyfile(self.directory / name, directory / name)
                    sync(directory / name)
                ledger.copy(self.index, self._ledger_of(directory), target)
                break
            except FileNotFoundError:  # a commit came between: copy its state instead
                continue
            except OSError as error:
                raise IndexUnavailable(f"copying to {target} failed: {error}") from error
        else:
            raise IndexUnavailable(f"copying {self.index} failed: it changes all the time")
        sync_directory(directory)
        self.identity.write(target)

    def _ledger_of(self, directory: Path) -> list[str]:
        """The files of the ledger that a copy names."""
        copied = FileIndex(Storage(str(directory)), SCHEMA, NAME)
        with closing(WhooshSnapshot(copied.reader(), self.identity.settings.keys())) as snapshot:
            return list(snapshot.meta().get("ledger", []))

    def close(self) -> None:
        self._index = None
        self._places.clear()
        while self._idle:
            self._idle.pop().close()

    def clear_leftovers(self) -> None:
        """Remove files that a killed load left behind (the caller holds the write lock)."""
        if not self.identity.generation:
            shutil.rmtree(self.directory, ignore_errors=True)
            return
        if self._index is None:
            return
        with self._keeper(Load([], (), [])):
            pass  # it does so for the ledger
        used = set(self._segments())
        for path in self.directory.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name not in used:
                path.unlink(missing_ok=True)
