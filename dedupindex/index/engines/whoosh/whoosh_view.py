"""Reading a Whoosh index: snapshots, which are open readers of one commit, and views of them."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, NamedTuple

from whoosh.index import EmptyIndexError
from whoosh.reading import TermNotFound
from whoosh.searching import Searcher

from dedupindex.cache import Cache
from dedupindex.capture import Capture
from dedupindex.digest import Digest
from dedupindex.errors import Damaged, DedupError, IndexUnavailable, StrategyUnavailable
from dedupindex.index.engine import IndexCounts, IndexedContainer
from dedupindex.index.engines.whoosh.whoosh_files import (
    META,
    NO_CAPTURE,
    container_key,
    number_key,
    place_key,
)
from dedupindex.index.format.cells import (
    ALSO,
    ContainerRef,
    Keys,
    answers,
    canonical_prefix,
    cell_of,
    damaged,
    decode,
    digest_of_key,
    digest_prefix,
    is_sound,
    unsealed,
)
from dedupindex.index.format.tombstones import denied
from dedupindex.urlkey import urlkey


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Failures of Whoosh in our words: missing files are an outage, the rest is damage.

    Whoosh unpickles and trusts what it reads, so damage shows as any exception at all.
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
    """A segment: its reader, its first document's number, its column of contents."""

    reader: Any
    base: int
    content: Any


class WhooshSnapshot:
    """An open reader of one commit; for one thread at a time."""

    def __init__(self, reader: Any, keys: Keys) -> None:
        self.reader, self.keys = reader, keys
        self.lengths = keys.lengths()
        self.generation = reader.generation()
        self.leaves: list[_Leaf] = []
        for leaf, base in reader.leaf_readers():
            if leaf.doc_count_all():
                column = leaf.column_reader("content", translate=False)
                self.leaves.append(_Leaf(leaf, base, column))

    def documents(self, field: str, term: bytes) -> Iterator[tuple[int, bytes]]:
        """Numbers and contents of the documents with a term, those deleted left out.

        Raises `Damaged`.
        """
        for number, stored in self.stored(field, term):
            if not is_sound(b"", stored):
                raise damaged(term)
            yield number, unsealed(b"", stored)

    def entries(self, key: bytes) -> Iterator[tuple[int, bytes]]:
        """Numbers and entries of the documents under a key; raises `Damaged`."""
        for number, content in self.documents("key", key):
            if not content.startswith(key):
                raise Damaged(f"the document under {key.hex()} belongs under another key")
            yield number, content[len(key) :]

    def stored(self, field: str, term: bytes) -> Iterator[tuple[int, bytes]]:
        """As `documents`, but as stored, unchecked."""
        for leaf, base, content in self.leaves:
            try:
                matcher = leaf.postings(field, term)
            except TermNotFound:
                continue
            for number in matcher.all_ids():
                yield base + number, content[number]

    def keys_from(self, prefix: bytes) -> Iterator[bytes]:
        """Keys that begin with `prefix`, in order; some may have no document any more."""
        return self.terms("key", prefix)

    def terms(self, field: str, prefix: bytes) -> Iterator[bytes]:
        """Terms of a field that begin with `prefix`, in order, likewise."""
        if not self.leaves:
            return
        with suppress(TermNotFound):
            for other, term in self.reader.terms_from(field, prefix):
                if other != field or not term.startswith(prefix):
                    return
                yield term

    def content(self, number: int) -> bytes:
        """The content of the document with a number."""
        leaf = self.leaves[bisect_right(self.leaves, number, key=lambda leaf: leaf.base) - 1]
        return unsealed(b"", bytes(leaf.content[number - leaf.base]))

    def contents(self) -> Iterator[tuple[int, bytes]]:
        """Every document that is not deleted, in no order that means anything."""
        for leaf, base, content in self.leaves:
            deleted = leaf.deleted_docs_set
            for number in range(leaf.doc_count_all()):
                if number not in deleted:
                    yield base + number, unsealed(b"", content[number])

    def entry(self, content: bytes) -> bytes:
        """The entry in the content of a capture's document."""
        return content[self.lengths[content[0]] :]

    def about(self, term: bytes) -> tuple[int, Any] | None:
        """The document that is about something, and what it says."""
        for number, content in self.documents("about", term):
            terms, value = json.loads(content[1:])
            if term.hex() not in terms:
                raise Damaged(f"the document about {term.hex()} is about something else")
            return number, value
        return None

    def meta(self) -> dict[str, Any]:
        """Counts, checksum, note and the next number."""
        found = self.about(META)
        if found is None:
            raise KeyError("there are no counts")
        return dict(found[1])

    def close(self) -> None:
        self.reader.close()


class WhooshView:
    """A snapshot that is borrowed; see `protocol.View`. Enter it with ``with``."""

    __slots__ = ("_borrow", "_give_back", "_places", "snapshot")

    def __init__(
        self,
        borrow: Callable[[], WhooshSnapshot],
        give_back: Callable[[WhooshSnapshot], None],
        places: Cache[int, ContainerRef],
    ) -> None:
        self._borrow, self._give_back, self._places = borrow, give_back, places

    def __enter__(self) -> WhooshView:
        self.snapshot = self._borrow()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._give_back(self.snapshot)

    def plain(self) -> None:
        """See `View`."""

    def exact(self, digest: Digest, url: bytes) -> list[Capture]:
        found = self._under(self.snapshot.keys.of(digest, url))
        return [capture for capture in found if capture.url == url]

    def canonical(self, digest: Digest, key: bytes, limit: int) -> list[Capture]:
        found = self._range(canonical_prefix(digest, key), limit)
        return [capture for capture in found if urlkey(capture.url) == key]

    def any(self, digest: Digest, limit: int) -> list[Capture]:
        return self._range(digest_prefix(digest), limit)

    def denies(self, digest: Digest, capture: Capture) -> bool:
        key = self.snapshot.keys.of(digest, capture.url)
        with reading(f"the entry under {key.hex()}"):
            return denied([entry for _, entry in self.snapshot.entries(key)], capture)

    def at_url(self, url: bytes) -> Iterator[Capture]:
        raise StrategyUnavailable("engine whoosh cannot list the captures of a URL; lmdb can")

    def at_urlkey(self, key: bytes) -> Iterator[Capture]:
        return self.at_url(key)

    def _range(self, prefix: bytes, limit: int) -> list[Capture]:
        found: list[Capture] = []
        with reading("the index"):
            for key in self.snapshot.keys_from(prefix):
                if limit <= 0:
                    break
                limit -= 1
                found += self._under(key)
        return found

    def _under(self, key: bytes) -> list[Capture]:
        with reading(f"the entry under {key.hex()}"):
            return [
                decode(key, entry, self.place_of)
                for _, entry in self.snapshot.entries(key)
                if answers(entry)
            ]

    def decoded(self, content: bytes) -> Capture:
        """The capture in a document's content."""
        length = self.snapshot.lengths[content[0]]
        return decode(content[:length], content[length:], self.place_of)

    def place_of(self, number: int) -> ContainerRef:
        """What a container number stands for."""
        place = self._places.get(number)
        if place is None:
            found = self.snapshot.about(number_key(number))
            if found is None:
                raise KeyError(f"container number {number} has no name")
            place = ContainerRef(*found[1][1:])
            self._places.keep(number, place)
        return place

    def number_of(self, place: ContainerRef) -> int:
        """The container number of a place, 0 if it has none."""
        with reading("the index"):
            found = self.snapshot.about(place_key(place))
        return int(found[1][0]) if found else 0

    def places(self) -> Iterator[tuple[int, ContainerRef]]:
        """Every container number, and what it stands for."""
        with reading("the index"):
            for term in self.snapshot.terms("about", b"#"):
                number = int.from_bytes(term[1:], "big")
                yield number, self.place_of(number)

    def matching(self, query: Any, further: bool) -> Iterator[tuple[bytes, bytes]]:
        """Date (6 bytes) and content of each capture that matches a query of Whoosh.

        A capture stands under its own digest and maybe under `further` ones: only for those who
        ask for digests is that more than one capture.
        """
        snapshot = self.snapshot
        for number in Searcher(snapshot.reader).docs_for_query(query):
            content = snapshot.content(number)
            if content[0]:
                entry = snapshot.entry(content)
                if answers(entry) and (further or not entry[1] & ALSO):
                    yield entry[2:8], content

    def cells(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """The keys that begin so, in order, and what is under each as one cell."""
        with reading("the index"):
            for key in self.snapshot.keys_from(prefix):
                entries = [entry for _, entry in self.snapshot.entries(key)]
                if entries:
                    yield key, cell_of(entries)

    def ledger(self) -> list[str]:
        """The files of the ledger."""
        with reading("the index"):
            return list(self.snapshot.meta().get("ledger", []))

    def captures(self) -> Iterator[tuple[Digest, Capture]]:
        with reading("the index"):
            for key in self.snapshot.keys_from(b""):
                for capture in self._under(key):
                    yield digest_of_key(key), capture

    def containers(self) -> Iterator[IndexedContainer]:
        with reading("the index"):
            values = (
                json.loads(content[1:])[1]
                for _, content in self.snapshot.contents()
                if content.startswith(NO_CAPTURE)
            )
            yield from sorted(
                IndexedContainer(**value["container"])
                for value in values
                if isinstance(value, dict) and "container" in value
            )

    def container(self, name: str) -> IndexedContainer | None:
        with reading("the index"):
            found = self.snapshot.about(container_key(name))
            return IndexedContainer(**found[1]["container"]) if found else None

    def own_digests(self) -> bool:
        with reading("the index"):
            return bool(self.snapshot.meta().get("own_digests"))

    def counts(self) -> IndexCounts:
        with reading("the index"):
            meta = self.snapshot.meta()
            return IndexCounts(meta["captures"], meta["digests"], meta["containers"])
