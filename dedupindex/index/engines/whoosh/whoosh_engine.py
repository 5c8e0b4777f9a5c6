"""The engine that people can search: in pure Python, on Whoosh, a commit for each load.

``INDEX/whoosh`` is a Whoosh index. A load is one commit: its table of contents is renamed when all
files that it names are on disk. The CRC-32 of each segment is in a file beside it. A value column
of Whoosh has at most 2 GB, about 20 million captures; LMDB is the engine for more.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from heapq import merge as merge_sorted
from itertools import groupby
from pathlib import Path
from typing import Any

from whoosh.index import TOC, FileIndex

from dedupindex.cache import Cache
from dedupindex.errors import DedupError, IndexUnavailable
from dedupindex.index.engine import Load
from dedupindex.index.engines.file_engine import FileEngine, meta_after
from dedupindex.index.engines.whoosh import whoosh_files as files
from dedupindex.index.engines.whoosh.whoosh_files import CommitWriter, Storage
from dedupindex.index.engines.whoosh.whoosh_view import WhooshView, problems, reading
from dedupindex.index.format import cells, ledger
from dedupindex.index.format.cells import answers, container_of, entries_of
from dedupindex.index.format.ledger import LedgerWriter
from dedupindex.index.identity import unfinished
from dedupindex.index.load.merge_rule import MergeOutcome, MergeRule, checksum, grouped, mark_each
from dedupindex.runtime.files import sync_directory

NAME = "MAIN"
VIEWS_KEPT = 8  # open readers that wait to be used again


class WhooshEngine(FileEngine):
    """An open Whoosh index."""

    def __init__(self, index: Path) -> None:
        super().__init__(index)
        self.directory = index / "whoosh"
        self._idle: deque[WhooshView] = deque()
        self._index: Any = None
        if self.identity.generation:
            with reading(f"the index at {index}"):
                self._index = FileIndex(Storage(str(self.directory)), files.SCHEMA, NAME)

    def view(self) -> AbstractContextManager[WhooshView]:
        if self._index is None:
            raise IndexUnavailable(unfinished(self.index))
        return self._pooled_view()

    @contextmanager
    def _pooled_view(self) -> Iterator[WhooshView]:
        view = self._borrow()
        try:
            yield view
        finally:
            if self._index is None or len(self._idle) >= VIEWS_KEPT:
                view.close()
            else:
                self._idle.append(view)

    def _borrow(self) -> WhooshView:
        """Return a view of the last commit; they are pooled, since opening one takes 1 ms."""
        if self._index is None:
            raise IndexUnavailable(f"the index at {self.index} is closed")
        with reading(f"the index at {self.index}"):
            latest = self._index.latest_generation()
            while self._idle:
                with suppress(IndexError):  # another thread was faster
                    view = self._idle.pop()
                    if view.generation == latest:
                        return view
                    view.close()
            return WhooshView(self._index.reader(), self.keys, self._places)

    def load(self, load: Load) -> MergeOutcome:
        with (
            self._ledger_writer(load) as ledger_writer,
            self._writing() as writer,
            self.view() as before,
        ):
            rule = load.rule(self.identity.settings, before.place_of)
            gone = load.gone(before)
            loader = WhooshLoader(writer, before, rule, gone, ledger_writer)
            outcome = loader.run(load.merged())
            register(writer, before, load, outcome, ledger_writer.write())
            writer.commit()
        if not self.identity.generation:
            self.identity = self.identity.next_generation()
            self.identity.write(self.index)
        return outcome

    @contextmanager
    def _writing(self) -> Iterator[CommitWriter]:
        """Yield a writer, which the caller commits; any error leaves the index unchanged."""
        writer = None
        try:
            if not self.identity.generation:
                shutil.rmtree(self.directory, ignore_errors=True)
                self.directory.mkdir()
                self._index = FileIndex.create(Storage(str(self.directory)), files.SCHEMA, NAME)
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
        """Merge all segments into one without deleted documents, while others read."""
        if self._index is None:
            self.load(Load())
            return
        with self._writing() as writer:
            writer.commit(optimize=True)

    def check(self) -> list[str]:
        wrong: list[str] = []
        try:
            for segment in self._segments():
                path = self.directory / segment
                if path.suffix == ".seg" and files.crc_of(path) != int(
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
        """Return the names of the files of the last commit."""
        with reading(f"the index at {self.index}"):
            toc = TOC.read(self._index.storage, NAME, schema=files.SCHEMA)
            names = [TOC._filename(NAME, toc.generation)]
            for segment in toc.segments:
                names += [f"{segment.segment_id()}.seg", f"{segment.segment_id()}.crc"]
            return names

    def _copy_data(self, target: Path) -> list[str]:
        directory = target / "whoosh"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        for name in self._segments():
            shutil.copyfile(self.directory / name, directory / name)
            files.sync(directory / name)
        sync_directory(directory)
        copied = FileIndex(Storage(str(directory)), files.SCHEMA, NAME)
        with closing(WhooshView(copied.reader(), self.keys, Cache())) as view:
            return list(view.recorded()["ledger"])

    def close(self) -> None:
        self._index = None
        self._places.clear()
        while self._idle:
            self._idle.pop().close()

    def clear_leftovers(self) -> None:
        if not self.identity.generation:
            shutil.rmtree(self.directory, ignore_errors=True)
            return
        if self._index is None:
            return
        self._clear_ledger()
        used = set(self._segments())
        for path in self.directory.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name not in used:
                path.unlink(missing_ok=True)


class WhooshLoader:
    """One load: `writer` takes the changes, `before` is the state that they are made to."""

    def __init__(
        self,
        writer: CommitWriter,
        before: WhooshView,
        rule: MergeRule,
        gone: set[int],
        ledger_writer: LedgerWriter,
    ) -> None:
        self._ledger_writer = ledger_writer
        self._writer, self._before, self._rule, self._gone = writer, before, rule, gone
        self.outcome = MergeOutcome()
        self._digest = b""
        self._old = self._new = 0  # captures of the digest under the keys done: before, after
        self._touched: set[int] = set()  # documents of these keys

    def run(self, batches: Iterator[list[bytes]]) -> MergeOutcome:
        """Load staged entries, which come in order, and remove those of containers `gone`."""
        staged = grouped(batches, self._rule.keys.lengths())
        dropped = ((key, list[bytes]()) for key in self._keys_of_dropped())
        for key, groups in groupby(merge_sorted(staged, dropped), lambda pair: pair[0]):
            if not self._digest or not key.startswith(self._digest):
                self._end_digest()
                self._digest = cells.split_key(key)[0]
            self._merge(key, [entry for _, entries in groups for entry in entries])
            self._ledger_writer.add(self.outcome.lost)
        self._end_digest()
        return self.outcome

    def _keys_of_dropped(self) -> list[bytes]:
        """Return the keys of entries of containers `gone`, in order."""
        if not self._gone:
            return []
        keys = set()
        for _, content in self._before.contents():
            if content[0]:
                entry = self._before.entry(content)
                if container_of(entry) in self._gone:
                    keys.add(content[: len(content) - len(entry)])
        return sorted(keys)

    def _merge(self, key: bytes, incoming: list[bytes]) -> None:
        """Merge incoming entries with the documents of their key."""
        old = {entry: number for number, entry in self._before.entries(key)}
        self._old += sum(map(answers, old))
        kept = [entry for entry in old if container_of(entry) not in self._gone]
        outcome, count = self.outcome, self.outcome.captures
        cell = self._rule.settle(key, mark_each(kept) + incoming, outcome)
        new = list(entries_of(cell)) if cell else []
        for entry in old.keys() - new:
            self._writer.delete_document(old[entry])
            outcome.checksum -= checksum([(key, entry)])
        for entry in new:
            if entry not in old:
                capture = cells.decode(key, entry, self._rule.place_of) if answers(entry) else None
                self._writer.add_document(**files.document(key, entry, capture))
                outcome.checksum += checksum([(key, entry)])
        self._new += outcome.captures - count
        outcome.captures -= sum(map(answers, old))
        self._touched.update(old.values())

    def _end_digest(self) -> None:
        """Count the digest whose keys are done."""
        if bool(self._old) != bool(self._new) and not self._has_others():
            self.outcome.digests += 1 if self._new else -1
        self._old = self._new = 0
        self._touched.clear()

    def _has_others(self) -> bool:
        """Return whether the digest has captures under keys that this load does not touch."""
        return any(
            number not in self._touched and answers(entry)
            for key in self._before.terms("key", self._digest)
            for number, entry in self._before.entries(key)
        )


def register(
    writer: CommitWriter,
    before: WhooshView,
    load: Load,
    outcome: MergeOutcome,
    ledger: list[str],
) -> None:
    """Write all of a load but captures, in the same commit."""
    meta = before.recorded()
    for number, place in load.places:
        if before.about(files.number_key(number)) is None:
            about = (files.number_key(number), files.place_key(place))
            writer.add_document(**files.note_document(about, [number, *place]))
    fresh = {container.name: container for container in load.containers}
    for name in {*load.dropped, *fresh}:
        meta["containers"] -= _delete(writer, before, files.container_key(name))
    for name, container in fresh.items():
        registration = {"container": container._asdict()}
        writer.add_document(**files.note_document((files.container_key(name),), registration))
        meta["containers"] += 1
    _delete(writer, before, files.META)
    after = meta_after(meta, load, outcome, ledger)
    writer.add_document(**files.note_document((files.META,), after))


def _delete(writer: CommitWriter, before: WhooshView, about: bytes) -> bool:
    """Delete the document with this term; return whether there was one."""
    found = before.about(about)
    if found is not None:
        writer.delete_document(found[0])
    return found is not None
