"""The engine that people can search: in pure Python, on Whoosh, a commit for each load.

``INDEX/whoosh`` is a Whoosh index. A load is one commit: its table of contents is renamed when all
files that it names are on disk. The CRC-32 of each segment is in a file beside it. A value column
of Whoosh has at most 2 GB, about 20 million captures; LMDB is the engine for more.
"""

from __future__ import annotations

import json
import shutil
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from heapq import merge as merge_sorted
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from whoosh.index import TOC, EmptyIndexError, FileIndex
from whoosh.reading import TermNotFound
from whoosh.searching import Searcher

from dedupindex.cache import Cache
from dedupindex.capture import Capture
from dedupindex.counts import OnProgress, silent
from dedupindex.errors import Damaged, DedupError, IndexUnavailable, StrategyUnavailable
from dedupindex.index.engine import IndexCounts, IndexedContainer, Load
from dedupindex.index.engines.engine_base import (
    META,
    CellTally,
    FileEngine,
    FileView,
    meta_after,
)
from dedupindex.index.engines.whoosh import whoosh_files as files
from dedupindex.index.engines.whoosh.whoosh_files import CommitWriter, Storage
from dedupindex.index.format import cells, ledger
from dedupindex.index.format.cells import ContainerRef, Keys, answers, container_of, entries_of
from dedupindex.index.format.ledger import LedgerWriter
from dedupindex.index.identity import unfinished
from dedupindex.index.load.merge_rule import MergeOutcome, MergeRule, checksum, grouped, mark_each
from dedupindex.runtime.files import sync_directory
from dedupindex.runtime.progress import watched

NAME = "MAIN"
VIEWS_KEPT = 8  # open readers that wait to be used again


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Translate errors of Whoosh: a missing file is `IndexUnavailable`, all else `Damaged`.

    Whoosh unpickles and trusts what it reads, so damage may raise any exception.
    """
    try:
        yield
    except (DedupError, GeneratorExit):
        raise
    except (OSError, EmptyIndexError) as error:
        raise IndexUnavailable(f"{what} cannot be read: {error}") from error
    except Exception as error:
        raise Damaged(f"{what} is damaged: {error!r}; restore it from a copy") from error


class _Leaf(NamedTuple):
    """A segment."""

    reader: Any
    base: int  # number of its first document
    content: Any  # column


class WhooshView(FileView):
    """An open reader of one commit; for one thread at a time."""

    __slots__ = ("generation", "leaves", "lengths", "reader")

    def __init__(
        self, index: Path, reader: Any, keys: Keys, places: Cache[int, ContainerRef]
    ) -> None:
        super().__init__(index, keys, places)
        self.reader, self.lengths = reader, keys.lengths()
        self.generation = reader.generation()
        self.leaves: list[_Leaf] = []
        for leaf, base in reader.leaf_readers():
            if leaf.doc_count_all():
                column = leaf.column_reader("content", translate=False)
                self.leaves.append(_Leaf(leaf, base, column))

    def documents(self, field: str, term: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield numbers and contents of the documents with a term; raises `Damaged`."""
        for number, stored in self.stored(field, term):
            if not cells.is_sound(b"", stored):
                raise cells.damaged(term)
            yield number, cells.unsealed(b"", stored)

    def entries(self, key: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield numbers and entries of the documents under a key; raises `Damaged`."""
        for number, content in self.documents("key", key):
            if not content.startswith(key):
                raise Damaged(f"the document under {key.hex()} belongs under another key")
            yield number, content[len(key) :]

    def stored(self, field: str, term: bytes) -> Iterator[tuple[int, bytes]]:
        """Like `documents`, but yields contents with their checksums, unchecked."""
        for leaf, base, content in self.leaves:
            try:
                matcher = leaf.postings(field, term)
            except TermNotFound:
                continue
            for number in matcher.all_ids():
                yield base + number, content[number]

    def terms(self, field: str, prefix: bytes, begin: bytes = b"") -> Iterator[bytes]:
        """Yield the terms of a field with a prefix, in order; also those of deleted documents.

        Without a prefix they are yielded from `begin` on.
        """
        if not self.leaves:
            return
        with suppress(TermNotFound):
            for other, term in self.reader.terms_from(field, prefix or begin):
                if other != field or not term.startswith(prefix):
                    return
                yield term

    def content(self, number: int) -> bytes:
        """Return the content of a document."""
        leaf = self.leaves[bisect_right(self.leaves, number, key=lambda leaf: leaf.base) - 1]
        return cells.unsealed(b"", bytes(leaf.content[number - leaf.base]))

    def contents(self) -> Iterator[tuple[int, bytes]]:
        """Yield the number and content of every document that is not deleted, in any order."""
        for leaf, base, content in self.leaves:
            deleted = leaf.deleted_docs_set
            for number in range(leaf.doc_count_all()):
                if number not in deleted:
                    yield base + number, cells.unsealed(b"", content[number])

    def entry(self, content: bytes) -> bytes:
        """Return the entry in the content of a capture's document."""
        return content[self.lengths[content[0]] :]

    def about(self, term: bytes) -> tuple[int, Any] | None:
        """Return number and value of the document that is not a capture and has this term."""
        for number, content in self.documents("about", term):
            terms, value = json.loads(content[1:])
            if term.hex() not in terms:
                raise Damaged(f"the document about {term.hex()} is about something else")
            return number, value
        return None

    def recorded(self) -> dict[str, Any]:
        """Return counts, checksum, metadata of the last load and the next container number."""
        found = self.about(files.META)
        if found is None and self.leaves:
            raise KeyError("there are no counts")
        # of the first indexes of format 2
        absent = {"ledger": [], "own_digests": False, "purges": []}
        return absent | found[1] if found else META | {"containers": 0}

    def close(self) -> None:
        self.reader.close()

    # --- what all engines answer; the errors of Whoosh are translated -----------------------------

    def cell(self, key: bytes) -> bytes | None:
        with reading(f"the entry under {key.hex()}"):
            entries = [entry for _, entry in self.entries(key)]
            return cells.cell_of(entries) if entries else None

    def cells(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        return self._cells(self.terms("key", prefix))

    def cells_from(self, begin: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._cells(self.terms("key", b"", begin))

    def _cells(self, keys: Iterator[bytes]) -> Iterator[tuple[bytes, bytes]]:
        with reading("the index"):
            for key in keys:
                if cell := self.cell(key):
                    yield key, cell

    def cells_at(self, tail: bytes) -> NoReturn:
        raise StrategyUnavailable("engine whoosh cannot list the captures of a URL; lmdb can")

    def at_urlkey(self, key: bytes) -> Iterator[Capture]:
        return self.at_url(key)

    def capture_in(self, content: bytes) -> Capture:
        """Return the capture in a document's content."""
        length = self.lengths[content[0]]
        return cells.decode(content[:length], content[length:], self.place_of)

    def _read_place(self, number: int) -> ContainerRef:
        found = self.about(files.number_key(number))
        if found is None:
            raise KeyError(f"container number {number} has no name")
        return ContainerRef(*found[1][1:])

    def number_of(self, place: ContainerRef) -> int:
        with reading("the index"):
            found = self.about(files.place_key(place))
        return int(found[1][0]) if found else 0

    def places(self) -> Iterator[tuple[int, ContainerRef]]:
        with reading("the index"):
            for term in self.terms("about", b"#"):
                number = int.from_bytes(term[1:], "big")
                yield number, self.place_of(number)

    def matching(self, query: Any, also: bool) -> Iterator[tuple[bytes, bytes]]:
        """Yield date and content of each match; its copies under further digests only if `also`."""
        for number in Searcher(self.reader).docs_for_query(query):
            content = self.content(number)
            if content[0]:
                entry = self.entry(content)
                if cells.answers(entry) and (also or not entry[1] & cells.ALSO):
                    yield entry[2:8], content

    def containers(self) -> Iterator[IndexedContainer]:
        with reading("the index"):
            values = (
                json.loads(content[1:])[1]
                for _, content in self.contents()
                if content.startswith(files.NO_CAPTURE)
            )
            yield from sorted(
                IndexedContainer(**value["container"])
                for value in values
                if isinstance(value, dict) and "container" in value
            )

    def container(self, name: str) -> IndexedContainer | None:
        with reading("the index"):
            found = self.about(files.container_key(name))
            return IndexedContainer(**found[1]["container"]) if found else None

    def counts(self) -> IndexCounts:
        return IndexCounts(*map(self.meta, IndexCounts._fields))

    def meta(self, name: str) -> Any:
        with reading("the index"):
            return self.recorded()[name]


def problems(view: WhooshView, on_progress: OnProgress) -> list[str]:
    """Read all documents back; return what is wrong with them, a sentence each."""
    wrong: list[str] = []
    tally = CellTally()
    for key in watched(view.terms("key", b""), "checking", 0, on_progress):
        for _, stored in view.stored("key", key):
            if not cells.is_sound(b"", stored):
                wrong.append(f"the entry under {key.hex()} is damaged")
            elif not stored.startswith(key):
                wrong.append(f"the document under {key.hex()} belongs under another key")
            elif defect := view.defect(key, entry := view.entry(cells.unsealed(b"", stored))):
                wrong.append(defect)
            else:
                tally.add(key, entry)
    containers = sum(1 for _ in view.containers())
    wrong += tally.differences(containers, view.counts(), view.recorded()["checksum"])
    return wrong


# --- the engine -----------------------------------------------------------------------------------


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
            return WhooshView(self.index, self._index.reader(), self.keys, self._places)

    def _load(self, load: Load) -> MergeOutcome:
        with (
            self._ledger_writer(load) as ledger_writer,
            self._writing() as writer,
            self.view() as before,
        ):
            rule = load.rule(self.identity.settings, before.place_of, load.gone(before))
            loader = WhooshLoader(writer, before, rule, ledger_writer)
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

    def compact(self, on_progress: OnProgress = silent) -> None:
        """Merge all segments into one without deleted documents, while others read."""
        if self._index is None:
            self.load(Load())
            return
        with self._writing() as writer:
            writer.commit(optimize=True)

    def check(self, on_progress: OnProgress = silent) -> list[str]:
        wrong: list[str] = []
        try:
            for segment in self._segments():
                path = self.directory / segment
                if path.suffix == ".seg" and files.crc_of(path) != int(
                    path.with_suffix(".crc").read_text()
                ):
                    wrong.append(f"{path} is not what was written (its CRC is another)")
            with self.view() as view:
                wrong += problems(view, on_progress)
                wrong += ledger.problems(self.index, view.ledger_files())
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
        with closing(WhooshView(target, copied.reader(), self.keys, Cache())) as view:
            return list(view.recorded()["ledger"])

    def close(self) -> None:
        self._index = None
        self._places.clear()
        while self._idle:
            self._idle.pop().close()

    def clear_leftovers(self, on_progress: OnProgress = silent) -> None:
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
        ledger_writer: LedgerWriter,
    ) -> None:
        self._ledger_writer = ledger_writer
        self._writer, self._before, self._rule = writer, before, rule
        self.outcome = MergeOutcome()
        self._digest = b""
        self._old = self._new = 0  # captures of the digest under the keys done: before, after
        self._touched: set[int] = set()  # documents of these keys

    def run(self, batches: Iterator[list[bytes]]) -> MergeOutcome:
        """Load staged entries, which come in order, and remove what the rule drops."""
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
        """Return the keys of entries of containers that are gone, in order."""
        if not self._rule.gone:
            return []
        keys = set()
        for _, content in self._before.contents():
            if content[0]:
                entry = self._before.entry(content)
                if container_of(entry) in self._rule.gone:
                    keys.add(content[: len(content) - len(entry)])
        return sorted(keys)

    def _merge(self, key: bytes, incoming: list[bytes]) -> None:
        """Merge incoming entries with the documents of their key."""
        old = {entry: number for number, entry in self._before.entries(key)}
        self._old += sum(map(answers, old))
        outcome, count = self.outcome, self.outcome.captures
        cell = self._rule.settle(key, mark_each(old) + incoming, outcome)
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
