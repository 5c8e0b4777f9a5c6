"""Read a Whoosh index: views, which are open readers of one commit."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, NoReturn

from whoosh.index import EmptyIndexError
from whoosh.reading import TermNotFound
from whoosh.searching import Searcher

from dedupindex.cache import Cache
from dedupindex.capture import Capture
from dedupindex.errors import Damaged, DedupError, IndexUnavailable, StrategyUnavailable
from dedupindex.index.engine import IndexCounts, IndexedContainer
from dedupindex.index.engines.cell_view import CellTally
from dedupindex.index.engines.file_engine import META, FileView
from dedupindex.index.engines.whoosh import whoosh_files as files
from dedupindex.index.format import cells
from dedupindex.index.format.cells import ContainerRef, Keys


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

    def __init__(self, reader: Any, keys: Keys, places: Cache[int, ContainerRef]) -> None:
        super().__init__(keys, places)
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

    def terms(self, field: str, prefix: bytes) -> Iterator[bytes]:
        """Yield the terms of a field with a prefix, in order; also those of deleted documents."""
        if not self.leaves:
            return
        with suppress(TermNotFound):
            for other, term in self.reader.terms_from(field, prefix):
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
        absent = {"ledger": [], "own_digests": False}  # of the first indexes of format 2
        return absent | found[1] if found else META | {"containers": 0}

    def close(self) -> None:
        self.reader.close()

    # --- what all engines answer; the errors of Whoosh are translated -----------------------------

    def cell(self, key: bytes) -> bytes | None:
        with reading(f"the entry under {key.hex()}"):
            entries = [entry for _, entry in self.entries(key)]
            return cells.cell_of(entries) if entries else None

    def cells(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        with reading("the index"):
            for key in self.terms("key", prefix):
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
        """Yield date (6 bytes) and content of each capture that matches a query of Whoosh.

        Entries under further digests are copies of a capture: they are left out unless `also`.
        """
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


def problems(view: WhooshView) -> list[str]:
    """Read all documents back; return what is wrong with them, a sentence each."""
    wrong: list[str] = []
    tally = CellTally()
    for key in view.terms("key", b""):
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
