"""Read the records of captures by range: headers, and payload."""

from __future__ import annotations

import os
from collections import OrderedDict
from functools import partial
from typing import BinaryIO, NamedTuple

from dedupindex.corpus.row import CorpusRow, RecordPlace, as_text
from dedupindex.digest import Digest
from dedupindex.errors import BadDigest, BadSource
from dedupindex.object_store import RemoteFile, open_anywhere
from dedupindex.urlkey import unbracket, urlkey
from dedupindex.warc import http, record_facts, wacz_members
from dedupindex.warc.arc import DOCUMENT
from dedupindex.warc.headers import field_pairs
from dedupindex.warc.payload_digests import Payload
from dedupindex.warc.random_access import RecordAt, Unreadable, record_at
from dedupindex.warc.record import Record
from dedupindex.warc.record_facts import refers_to, says_not_modified, timestamp14
from dedupindex.warc.zstd_format import DictionaryCache

MAX_RECORD = 64 << 20  # bytes of a record in memory, stored or inflated
_MAX_OPEN = 16  # WARC files
_OF_PAYLOAD = ("content-encoding", "transfer-encoding", "content-type")  # HTTP header fields


class MissingRecord(Exception):
    """A record cannot be read; the message says why."""


class RecordParts(NamedTuple):
    """The parts of a record. Without an HTTP header the whole block is the payload."""

    record_header: dict[str, str]
    status_line: str | None
    http_header: dict[str, str] | None
    payload: bytes  # without transfer coding


class Containers:
    """Read records, and count them; one for each process."""

    def __init__(self, max_record: int = MAX_RECORD) -> None:
        self.max_record = max_record
        self.opened = self.records = self.bytes = 0
        self._open: OrderedDict[str, _OpenContainer] = OrderedDict()
        self._dictionaries = DictionaryCache()
        self._failed: dict[str, str] = {}  # error messages of files that could not be opened

    def stored(self, capture: CorpusRow) -> RecordParts:
        """Return a record's parts, a revisit's with its original's payload; or `MissingRecord`."""
        own = self.own(capture)
        header = _header_of(own.record)
        if own.record.type != b"revisit":
            return RecordParts(header, *_split(own))
        status, fields, _ = _split(own)
        if capture.payload is None:
            raise MissingRecord("its original is not known")
        original = self.original(capture, own.record)
        original_status, original_fields, payload = _split(original)
        if fields and original_fields:  # the header of the payload states its codings
            original_fields |= {
                name: value for name, value in fields.items() if name.lower() not in _OF_PAYLOAD
            }
        return RecordParts(header, status or original_status, original_fields or fields, payload)

    def own(self, capture: CorpusRow) -> RecordAt:
        """Return the record of a capture itself; raises `MissingRecord`."""
        if capture.container and not capture.record.container:
            raise MissingRecord(f"{capture.container} was not found: name its directory with "
                                "--containers, or containers=")  # fmt: skip
        found = self.ranged(capture.record)
        _check_own(found.record, capture)
        return found

    def original(self, capture: CorpusRow, revisit: Record) -> RecordAt:
        """Return the record with the payload of a revisit; raises `MissingRecord`."""
        assert capture.payload is not None
        found = self.ranged(capture.payload)
        if found.record.type == b"revisit":
            raise MissingRecord("the record found as its original is a revisit")
        fields = revisit.head.fields
        unmodified = says_not_modified(fields)
        named = any(refers_to(fields)[:2])
        if unmodified and not capture.unmodified and (named or capture.status != 304):
            _check_named(
                found.record, revisit
            )  # the metadata do not say that it is server-not-modified
        is_payload = not unmodified and _check_payload(found, capture.digest)
        if capture.to_url or not is_payload:
            check(found.record, capture.to_url or capture.url, "another record than its original")
        return found

    def ranged(self, place: RecordPlace) -> RecordAt:
        """Return the record at a place; raises `MissingRecord`."""
        if not place.container:
            raise MissingRecord("its container is not known, or nowhere to be found")
        if place.offset < 0:
            raise MissingRecord("its offset in its container is not known")
        file = self._file(place.container)
        try:
            read = partial(self._read, file)
            dictionaries = partial(self._dictionaries.get, place.container, read)
            found = record_at(read, place.offset, place.length, self.max_record, dictionaries)
        except Unreadable as error:
            at = f"{place.container} at {place.offset}"
            raise MissingRecord(f"no record can be read in {at}: {error}") from error
        except (OSError, BadSource) as error:
            raise MissingRecord(str(error)) from error
        self.records += 1
        return found

    def close(self) -> None:
        for container in self._open.values():
            container.file.close()
        self._open.clear()

    def _file(self, path: str) -> _OpenContainer:
        if path in self._failed:
            raise MissingRecord(self._failed[path])
        if path not in self._open:
            try:
                container = _opened(path)
            except (OSError, BadSource) as error:
                self._failed[path] = f"{path} cannot be read: {error}"
                raise MissingRecord(self._failed[path]) from error
            self.opened += 1
            self._open[path] = container
            if len(self._open) > _MAX_OPEN:
                self._open.popitem(last=False)[1].file.close()
        self._open.move_to_end(path)
        return self._open[path]

    def _read(self, container: _OpenContainer, offset: int, count: int) -> bytes:
        file, begin, size = container
        if size is not None:
            count = max(min(count, size - offset), 0)
        if isinstance(file, RemoteFile):
            data = file.range(count, begin + offset)
        else:
            data = os.pread(file.fileno(), count, begin + offset)
        self.bytes += len(data)
        return data


class _OpenContainer(NamedTuple):
    """An open WARC file, or its part of a WACZ."""

    file: BinaryIO | RemoteFile
    begin: int = 0
    size: int | None = None  # None: to its end


def _opened(path: str) -> _OpenContainer:
    """Open a WARC file, or a member of a WACZ; raises `OSError` or `BadSource`."""
    parts = wacz_members.within(path)
    outer, name = parts or (path, "")
    file = open_anywhere(outer)
    if not name:
        return _OpenContainer(file)
    try:
        return _OpenContainer(file, *wacz_members.find(name, file))
    except wacz_members.BROKEN as error:
        file.close()
        raise BadSource(str(error)) from error


def _check_own(record: Record, capture: CorpusRow) -> None:
    """Raise `MissingRecord` for a record of another URL, or of another time and payload.

    Two files of the same name may have captures of one URL at the same offset.
    """
    check(record, capture.url, "another capture")
    digits = timestamp14(record.values[1]).decode()
    if not digits:
        return  # the record does not state its time
    stated, expected = _digest(as_text(record.values[4])), _digest(capture.digest or "")
    if digits != capture.timestamp and (stated is None or stated != expected):
        raise MissingRecord(f"at the offset in its metadata is another capture, of {digits}")


def check(record: Record, url: str, what: str) -> None:
    """Raise `MissingRecord` if a record is not of this URL, as with metadata of another file."""
    found = unbracket(record.values[0])
    if as_text(found) != url and urlkey(found) != urlkey(url.encode()):
        raise MissingRecord(f"at the offset in its metadata is {what}: {as_text(found)}")


def _check_named(original: Record, revisit: Record) -> None:
    """Raise `MissingRecord` unless an unmodified revisit refers to this record."""
    named = refers_to(revisit.head.fields)
    url = named.url or unbracket(revisit.values[0])
    check(original, as_text(url), "another record than its original")
    second = timestamp14(named.date)
    if named.date and not (second and second == timestamp14(original.values[1])):
        raise MissingRecord("the record found as its original has another date")


def _check_payload(found: RecordAt, digest: str | None) -> bool:
    """Raise `MissingRecord` if the payload has another digest; False if it cannot be checked."""
    stated = _digest(digest or "")
    if stated is None:
        return False
    block = found.block()
    answer = http.parse(block, 0, len(block))
    try:
        payload = Payload(stated.algorithm, (), answer.coding if answer else b"")
    except BadDigest:
        return False
    payload.update(memoryview(block)[answer.body if answer else 0 :])
    if payload.match(stated) is None:
        raise MissingRecord("the record found as its original has another payload")
    return True


def _digest(text: str) -> Digest | None:
    """Parse a digest, of SHA-1 with or without its prefix; None if it is invalid."""
    for prefix in ("", "sha1:"):
        try:
            return record_facts.stated_digest(f"{prefix}{text}".encode())[0]
        except record_facts.Refused:
            pass
    return None


def _split(found: RecordAt) -> tuple[str | None, dict[str, str] | None, bytes]:
    """Return status line, header fields and payload; raises `MissingRecord`."""
    try:
        block = found.block()
    except Unreadable as error:
        raise MissingRecord(f"its record is damaged: {error}") from error
    if not block.startswith(b"HTTP/"):
        return None, None, block
    end = b"\r\n\r\n" if found.record.type == b"revisit" else b""  # some lack the last line end
    answer = http.parse(block + end, 0, len(block) + len(end))
    if answer is None:
        raise MissingRecord("its HTTP header does not end")
    first, _, rest = answer.head.rstrip(b"\r\n").partition(b"\n")
    body = block[answer.body :]
    if answer.coding == b"chunked":
        body = _dechunked(body)
    return as_text(first.rstrip(b"\r")), _fields(field_pairs(rest)), body


def _dechunked(body: bytes) -> bytes:
    """Decode chunked data as far as it goes; data without chunks are returned unchanged."""
    dechunker = http.Dechunker()
    pieces = dechunker.feed(body)
    is_chunked = dechunker.complete or (dechunker.cut and pieces)
    return b"".join(pieces) if is_chunked else body


def _fields(pairs: list[tuple[bytes, bytes]]) -> dict[str, str]:
    """Decode header fields; repeated ones are joined by commas under their first spelling."""
    fields: dict[str, str] = {}
    spellings: dict[str, str] = {}
    for name, value in ((_header_text(name), _header_text(value)) for name, value in pairs):
        name = spellings.setdefault(name.lower(), name)
        fields[name] = f"{fields[name]}, {value}" if name in fields else value
    return fields


def _header_text(data: bytes) -> str:
    try:
        return data.decode().strip()
    except UnicodeDecodeError:
        return data.decode("latin-1").strip()


def _header_of(record: Record) -> dict[str, str]:
    """Return the WARC header; of an ARC document the equivalent fields."""
    if record.type == DOCUMENT:
        names = ("WARC-Target-URI", "WARC-Date")
        return dict(zip(names, map(as_text, record.values[:2]), strict=True))
    return _fields(record.head.pairs)
