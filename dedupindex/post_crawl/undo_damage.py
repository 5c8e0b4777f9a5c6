"""Restore a file whose undo data is damaged, record by record.

Nothing in the undo data is trusted: a record is written if it has the SHA-256 of an entry that can
still be read. Without one it is made from the revisit's own header and the payload of the original,
which must have the digest that the revisit states: then its header is not proven, and it is named.
Originals are found by URL and second, in whatever file is at hand.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from functools import lru_cache
from itertools import chain
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, BinaryIO, NamedTuple

import blake3

from dedupindex.digest import Hash, new_hash
from dedupindex.errors import BadDigest, BadSource, Damaged
from dedupindex.post_crawl.rewrite.journal import (
    Journal,
    JournalEntry,
    protections,
    summary,
)
from dedupindex.post_crawl.rewrite.protection import (
    entries_in,
    record_key,
    referrer_at,
    referrer_below,
)
from dedupindex.post_crawl.rewrite.revisit_record import END, headers_before, is_written
from dedupindex.post_crawl.rewrite.undo_directory import DIRECTORY, names_of
from dedupindex.post_crawl.undo_records import (
    LEVEL,
    OriginalFinder,
    RewriteRun,
    WrittenRevisit,
    body_of,
    check_entry,
    checked_entries,
    revisits,
)
from dedupindex.runtime.atomic_replace import Sink, Untouched
from dedupindex.runtime.walk_directories import OnError
from dedupindex.urlkey import unbracket
from dedupindex.verify.collection import archives_below
from dedupindex.verify.file_bytes import Place
from dedupindex.verify.issues import Broken
from dedupindex.verify.locate_originals import OriginalReader, OriginalReference, OriginalsIndex
from dedupindex.warc import http
from dedupindex.warc.headers import BadHead, Head, parse
from dedupindex.warc.random_access import ExactRecord, NotExact
from dedupindex.warc.reader import read
from dedupindex.warc.record import BrokenRecord, Record
from dedupindex.warc.record_facts import Refused, refers_to, stated_digest
from dedupindex.warc.window import open_window

_HELD = 1 << 23  # bytes of a payload above which it is in a temporary file
_PIECE = 1 << 18
_UNPROVEN = (
    "its payload has the digest that the revisit states, but nothing in the undo data proves its "
    "WARC header"
)
_FOREIGN = (
    "the undo data has no entry of it, and does not protect its original: another run wrote it"
)


_ABSENT = "the undo data lists a revisit there, which is not in the file"
_Line = tuple[Path, int]  # a journal, and the offset of a line in it


class RecordFinding(NamedTuple):
    """A record that is not restored, or not proven to be as it was, bit for bit."""

    offset: int  # of the revisit
    record_id: str
    restored: bool  # False: the revisit is left as it is
    message: str


class RestoredRecords(NamedTuple):
    records: int  # restored, with those that are not proven
    stay: int  # revisits that are not restored
    findings: list[RecordFinding]


def index_originals(
    database: Path, places: Iterable[Place], directories: Iterable[Path], on_error: OnError
) -> None:
    """List all full records of files, and of the removed records in directories with journals."""
    found = (archives_below(place, on_error) for place in places)
    files = dict.fromkeys(chain.from_iterable(found))
    for directory in directories:
        files.update(dict.fromkeys(sorted((directory / DIRECTORY).glob("*.dropped"))))
    OriginalsIndex(database).add_files(list(files))


def known_hosts(directories: Iterable[Path]) -> set[str]:
    """Return the hosts of originals that the journals in some directories name."""
    return {
        entry.host
        for directory in directories
        for pattern in ("*.jsonl", "*.committed")
        for journal in (directory / DIRECTORY).glob(pattern)
        for _, entry in _sound_entries(journal)
        if entry.host
    }


def is_rewritten(path: Path) -> bool:
    """Whether an original is protected for a revisit in a file: then a run wrote revisits there."""
    at = referrer_at(path)
    for directory, name in names_of(path):
        with suppress(OSError):  # it has no undo data
            changed = (directory / DIRECTORY).stat().st_mtime_ns
            if not _referrers(directory, changed).keys().isdisjoint((at, referrer_below(name))):
                return True
    return False


def unlisted_revisit(path: Path, source: BinaryIO, runs: list[RewriteRun]) -> int | None:
    """Return where a run wrote a revisit in a file that is none of `runs`: its journal is missing.

    The file is read only if more originals are protected for it than these runs have protected.
    """
    at, protected = referrer_at(path), 0
    for directory, name in {(one.resolve(), below) for one, below in names_of(path)}:
        with suppress(OSError):
            changed = (directory / DIRECTORY).stat().st_mtime_ns
            counts = _referrers(directory, changed)
            protected += sum(counts.get(one, 0) for one in {at, referrer_below(name)})
    if protected <= sum(protections(checked_entries(run.journal)) for run in runs):
        return None
    keys, listed = _protected_for(path), revisits(runs)
    last = next(listed, None)
    for offset, stored in _records(source, b"revisit"):
        while last is not None and last.offset < offset:
            last = next(listed, None)
        if last is not None and last.offset == offset:
            continue
        with suppress(NotExact):
            found = ExactRecord(source, offset, stored)
            named = refers_to(found.head.fields)
            if is_written(found.header) and record_key(named.url, named.date) in keys:
                return offset
    return None


@lru_cache(64)
def _referrers(directory: Path, _: int) -> Counter[bytes]:
    """Return the hashes of the files for whose revisits originals are protected in a directory.

    With each is the number of its entries. A run or an undo changes the time of the directory,
    which is the second argument.
    """
    return Counter(referrer for _, referrer in entries_in(directory))


def _protected_for(path: Path) -> frozenset[bytes]:
    """Return the `record_key`s of originals that are protected for revisits in a file."""
    at = referrer_at(path)
    return frozenset(
        key
        for directory, name in names_of(path)
        for key, referrer in entries_in(directory)
        if referrer in (at, referrer_below(name))
    )


def _journals(path: Path) -> list[Path]:
    """Return the journals of a file, whatever state they are in."""
    found = []
    for directory, name in names_of(path):
        journal = Journal(directory, name)
        found += [journal.lines] if journal.exists() else []
        found += journal.committed()
    return found


class _Entries:
    """The entries of all journals of a file that can be read, by record and by offset.

    Only hashes and the places of lines are held.
    """

    def __init__(self, path: Path) -> None:
        self._lines = defaultdict[bytes | int, list[_Line]](list)
        self._unused = dict[_Line, None]()
        self._expected: int | None = None  # revisits in the file, if all journals say
        with suppress(Damaged, OSError):
            self._expected = sum(summary(journal)[1].revisits for journal in _journals(path))
        for journal in _journals(path):
            with suppress(OSError):
                for line, entry in _sound_entries(journal):
                    self._unused[journal, line] = None
                    self._lines[entry.new_offset].append((journal, line))
                    if key := _key_of(entry):
                        self._lines[key].append((journal, line))

    def of(self, revisit: ExactRecord) -> list[tuple[JournalEntry, Path]]:
        """Return what may be the entry of a revisit, with the directory of its journal."""
        own = self._lines.get(_key(revisit.head), [])
        at_offset = self._lines.get(revisit.offset, [])
        for place in own or at_offset:
            self._unused.pop(place, None)
        found = []
        for journal, line in dict.fromkeys((*own, *at_offset)):
            if (entry := _entry_at(journal, line)) is not None:
                found.append((entry, journal.parent.parent))
        return found

    def all_in_full(self, source: BinaryIO) -> bool:
        """Whether the file has each record that the journals list in place of its revisit."""
        return self._expected is not None and next(self.missing(source, 0), None) is None

    def missing(self, source: BinaryIO, seen: int) -> Iterator[RecordFinding]:
        """Yield what the journals list and is not in the file, in which so many revisits are.

        A record that is there in full instead, as it was, is not missing.
        """
        count, in_full = 0, self._in_full(source)
        # Of each journal by itself: a later run may list the same record again, once it is undone.
        left = defaultdict[Path, Counter[str]](in_full.copy)
        for journal, line in self._unused:
            if (entry := _entry_at(journal, line)) is not None:
                count += 1
                if left[journal][entry.sha256] > 0:
                    left[journal][entry.sha256] -= 1
                    continue
                head = _head_of(entry)
                field = head.fields.get(b"WARC-Record-ID", b"") if head else b""
                record_id = unbracket(field).decode("latin-1")
                yield RecordFinding(entry.new_offset, record_id, restored=False, message=_ABSENT)
        if self._expected is not None and seen + count < self._expected:
            message = f"{_ABSENT}; so are {self._expected - seen - count:,} that have no entry"
            yield RecordFinding(-1, "", restored=False, message=message)

    def _in_full(self, source: BinaryIO) -> Counter[str]:
        """Count the records in the file that may be those of unused entries, by SHA-256."""
        entries = (_entry_at(journal, line) for journal, line in self._unused)
        wanted = {_key_of(entry) for entry in entries if entry is not None}
        found = Counter[str]()
        for offset, stored in _records(source, b"response") if wanted else ():
            with suppress(NotExact):
                record = ExactRecord(source, offset, stored)
                if _key(record.head) in wanted:
                    found[_hash_of(record)] += 1
        return found


def is_put_back(path: Path, source: BinaryIO) -> bool:
    """Whether a file has all records that its journals list in full, and no revisit of any run.

    So a revisit whose journal is missing is not passed over.
    """
    return _Entries(path).all_in_full(source) and not _has_written(source)


def _has_written(source: BinaryIO) -> bool:
    """Whether a file has a revisit as a run writes it."""
    for offset, stored in _records(source, b"revisit"):
        with suppress(NotExact):
            if is_written(ExactRecord(source, offset, stored).header):
                return True
    return False


def _hash_of(record: ExactRecord) -> str:
    running = hashlib.sha256(record.header)
    for piece in record.block():
        running.update(piece)
    running.update(END)
    return running.hexdigest()


def _entry_at(journal: Path, line: int) -> JournalEntry | None:
    with suppress(OSError), open(journal, "rb") as file:
        file.seek(line)
        return _entry(file.readline())
    return None


def _head_of(entry: JournalEntry) -> Head | None:
    """Return the header of the record that an entry is of; None if it is damaged."""
    try:
        return parse(entry.header.encode("latin-1")[: -len(END)])
    except BadHead:
        return None


def _key_of(entry: JournalEntry) -> bytes:
    """Return the `_key` of the record that an entry is of; empty if its header is damaged."""
    head = _head_of(entry)
    return _key(head) if head else b""


def _key(head: Head) -> bytes:
    get = head.fields.get
    fields = (get(b"WARC-Record-ID", b""), get(b"WARC-Target-URI", b""), get(b"WARC-Date", b""))
    return blake3.blake3(b"\0".join(fields)).digest(16)


def _sound_entries(journal: Path) -> Iterator[tuple[int, JournalEntry]]:
    with open(journal, "rb") as lines:
        position = 0
        for line in lines:
            if (entry := _entry(line)) is not None:
                yield position, entry
            position += len(line)


def _entry(line: bytes) -> JournalEntry | None:
    """Return the entry in a line of a journal; None if it is another line, or damaged."""
    try:
        entry = JournalEntry(**json.loads(line))
        check_entry(entry)
    except (ValueError, TypeError):
        return None
    return entry


class _Body:
    """The body of an original, with its size and its digests; use it as a context."""

    def __init__(self, pieces: Iterable[bytes | memoryview], http_header: bytes) -> None:
        self.size, self._header = 0, http_header
        self._file: IO[bytes] = SpooledTemporaryFile(_HELD)  # noqa: SIM115
        try:
            for piece in pieces:
                self._file.write(piece)
                self.size += len(piece)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._file.close()

    def pieces(self) -> Iterator[bytes]:
        self._file.seek(0)
        while data := self._file.read(_PIECE):
            yield data

    def block_hash(self, algorithm: str) -> bytes:
        """Return the digest of the block that the header and this body make."""
        running = new_hash(algorithm)
        running.update(self._header)
        return self._hashed(running)

    def has_digest(self, text: bytes) -> bool:
        """Whether a stated payload digest is that of the body, stored or without chunks."""
        try:
            digest, _ = stated_digest(text)
        except Refused:
            return False
        if digest is None:
            return False
        if self._hashed(new_hash(digest.algorithm)) == digest.raw:
            return True
        chunks, running = http.Dechunker(), new_hash(digest.algorithm)
        for data in self.pieces():
            for piece in chunks.feed(data):
                running.update(piece)
        return chunks.complete and running.digest() == digest.raw

    def _hashed(self, running: Hash) -> bytes:
        for data in self.pieces():
            running.update(data)
        return running.digest()


class RecordRestorer:
    """Restores the revisits of one file, each by itself."""

    def __init__(self, path: Path, finder: OriginalFinder, database: Path) -> None:
        """`database` is that of `index_originals`."""
        self._entries, self._finder = _Entries(path), finder
        self._protected = _protected_for(path)
        self._reader = OriginalReader(OriginalsIndex(database).find)

    def close(self) -> None:
        self._reader.close()

    def write(self, source: BinaryIO, sink: Sink) -> RestoredRecords:
        """Write a file with all records restored for which that is possible.

        Raises `Untouched` if an original is on a host that was not named: nothing is damaged then.
        """
        count, position, findings = 0, 0, list[RecordFinding]()
        for offset, stored in _records(source, b"revisit"):
            try:
                revisit = ExactRecord(source, offset, stored)
            except NotExact:
                continue  # no run writes such a one
            entries = self._entries.of(revisit)
            if not (entries or is_written(revisit.header)):
                continue
            sink.copy(source, position, offset - position)
            position = offset
            try:
                message = self._restore(revisit, entries, sink)
            except NotExact as error:
                if any(self._finder.lacks_host(entry) for entry, _ in entries):
                    message = f"the record at {offset} cannot be restored: {error}"
                    raise Untouched(message) from error
                findings.append(_finding(revisit, str(error), restored=False))
                continue
            count, position = count + 1, offset + stored
            if message:
                findings.append(_finding(revisit, message, restored=True))
        sink.copy(source, position, os.fstat(source.fileno()).st_size - position)
        stay = sum(not one.restored for one in findings)
        findings += self._entries.missing(source, count + stay)
        return RestoredRecords(count, stay, findings)

    def _restore(
        self, revisit: ExactRecord, entries: list[tuple[JournalEntry, Path]], sink: Sink
    ) -> str:
        """Write one record; returns why it is not proven, if so. Raises `NotExact`."""
        http_header = b"".join(map(bytes, revisit.block()))
        stated = revisit.head.fields.get(b"WARC-Payload-Digest", b"")
        named = refers_to(revisit.head.fields)
        unknown = not entries and bool(self._protected)
        if unknown and record_key(named.url, named.date) not in self._protected:
            raise NotExact(_FOREIGN)
        problems: list[str] = []
        for place, pieces in self._bodies(revisit, entries, problems):
            try:
                body = _Body(pieces, http_header)
            except (Broken, NotExact) as error:
                problems.append(str(error))
                continue
            with closing(body):
                guesses = _headers(revisit, http_header, body)
                # An entry of its offset may be of another revisit: of that only the hash counts.
                own = (one for one, _ in entries if _key_of(one) == _key(revisit.head))
                for header in chain((one.header.encode("latin-1") for one in own), guesses):
                    digest = _sha256(header, http_header, body)
                    if any(entry.sha256 == digest for entry, _ in entries):
                        _write(revisit, header, http_header, body, sink)
                        return ""
                if guesses and body.has_digest(stated):
                    _write(revisit, guesses[0], http_header, body, sink)
                    return f"{_UNPROVEN}; its original is {place}"
                problems.append(
                    f"its original, {place}, has another payload than the digest that it states"
                )
        if not problems:
            url, date = (text.decode("utf-8", "replace") for text in (named.url, named.date))
            problems.append(f"its original, {url} of {date}, is not found")
        raise NotExact("; ".join(dict.fromkeys(problems)))

    def _bodies(
        self, revisit: ExactRecord, entries: list[tuple[JournalEntry, Path]], problems: list[str]
    ) -> Iterator[tuple[str, Iterator[bytes | memoryview]]]:
        """Yield places and bodies of what may have the payload; adds why others have not."""
        for entry, root in entries:
            written = WrittenRevisit(revisit.offset, entry, root, None)
            try:
                original = self._finder.original(written, revisit)
            except NotExact as error:
                problems.append(str(error))
            except (Damaged, BadSource, OSError) as error:
                why = getattr(error, "strerror", None) or error  # of an OSError
                problems.append(f"its original, {entry.name} at {entry.original}: {why}")
            else:
                yield f"{entry.name} at {entry.original}", body_of(original)
        get, named = revisit.head.fields.get, refers_to(revisit.head.fields)
        url = unbracket(get(b"WARC-Target-URI", b""))
        own = OriginalReference(url, get(b"WARC-Date", b""), unbracket(get(b"WARC-Record-ID", b"")))
        for wanted in (own, OriginalReference(named.url or url, named.date, named.record_id)):
            for found in self._reader.read(wanted):
                yield found.place, found.body()


def _finding(revisit: ExactRecord, message: str, *, restored: bool) -> RecordFinding:
    record_id = unbracket(revisit.head.fields.get(b"WARC-Record-ID", b""))
    return RecordFinding(revisit.offset, record_id.decode("utf-8", "replace"), restored, message)


def _headers(revisit: ExactRecord, http_header: bytes, body: _Body) -> list[bytes]:
    """Return the headers that the record may have had, the likeliest first."""
    try:
        size = len(http_header) + body.size
        return list(headers_before(revisit.header, size, body.block_hash))
    except BadDigest:
        return []


def _sha256(header: bytes, http_header: bytes, body: _Body) -> str:
    running = hashlib.sha256(header + http_header)
    for data in body.pieces():
        running.update(data)
    running.update(END)
    return running.hexdigest()


def _write(
    revisit: ExactRecord, header: bytes, http_header: bytes, body: _Body, sink: Sink
) -> None:
    size = len(header) + len(http_header) + body.size + len(END)
    packer = revisit.packer(size, LEVEL)
    for data in chain([header + http_header], body.pieces(), [END]):
        sink.write(packer.compress(data) if packer else data)
    if packer:
        sink.write(packer.flush())


def _records(source: BinaryIO, kind: bytes) -> Iterator[tuple[int, int]]:
    """Yield offset and stored bytes of the records of a type, as far as a file can be read."""
    last: Record | None = None  # its size is known when the next record begins
    with (
        suppress(BadSource),
        closing(open_window(source.name, f"/proc/self/fd/{source.fileno()}")) as window,
    ):
        for event in chain(read(window), [None]):
            if last is not None:
                with suppress(BrokenRecord):
                    last.finish()
                    yield last.offset, last.stored
            last = event if isinstance(event, Record) and event.type == kind else None
