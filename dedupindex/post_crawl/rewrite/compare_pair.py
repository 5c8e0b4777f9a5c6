"""Decide whether one response may become a revisit of another, from the bytes of both, read now.

Manifests and plans are hints only, because a wrong revisit destroys a page for good. Bodies are
compared byte by byte, so that no digest has to be believed.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import OrderedDict
from collections.abc import Iterator, Set
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import BinaryIO, NamedTuple

from blake3 import blake3

from dedupindex.capture import Covers
from dedupindex.digest import Hash, new_hash
from dedupindex.errors import BadDigest, BadSource, Damaged
from dedupindex.object_store import ObjectFacts, PartialCopy, facts_or_none, is_remote
from dedupindex.post_crawl.manifest.parquet import Line, ManifestContainer, header_hash
from dedupindex.post_crawl.manifest.record_lines import LINE_VERSIONS
from dedupindex.post_crawl.plan.compare_payloads import in_step
from dedupindex.post_crawl.plan.plan_file import MatchCriteria, Plan, Planned
from dedupindex.post_crawl.plan.record_reader import ContainerUrls, RecordReader
from dedupindex.post_crawl.rewrite.journal import Journal, OffsetMap
from dedupindex.post_crawl.rewrite.revisit_record import (
    ADDED,
    END,
    Reference,
    refers_to_date,
    revisit,
)
from dedupindex.post_crawl.rewrite.stored_journal import stored_offsets
from dedupindex.runtime.atomic_replace import (
    being_written,
    content_hash,
    has_writer,
    open_for_reading,
)
from dedupindex.timestamps import digits_of_date
from dedupindex.urlkey import unbracket
from dedupindex.warc import http
from dedupindex.warc.headers import LENGTH, Head
from dedupindex.warc.payload_digests import Payload
from dedupindex.warc.random_access import ExactRecord, NotExact, read_range
from dedupindex.warc.record_facts import (
    Block,
    Refused,
    checked_date,
    divided,
    divided_at,
    http_url,
    is_http_type,
    stated_digest,
)
from dedupindex.warc.zstd_format import Dictionaries, is_zstd

_OPEN_FILES = 32
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
_CHANGED = {name.lower() for name in ADDED} | {
    b"warc-type", b"content-length", b"warc-block-digest", b"warc-payload-digest",
}  # fmt: skip


ORIGINAL_ELSEWHERE = "original-elsewhere"


class NotRewritable(Refused):
    """A copy stays a response; reports count the `reason`."""


class RecordOnDisk(NamedTuple):
    file: BinaryIO
    offset: int
    stored: int  # bytes in the file
    identity: tuple[int, int]  # device and inode
    dictionaries: Dictionaries | None = None  # of zstd frames that are in another file


class OriginalFiles:
    """Opens the files of originals, a bounded number at a time.

    A file of the set must be as it was scanned, or as its journal says that a run in place left
    it. No process may be writing to it. Of a file of another host the record alone is read.
    """

    def __init__(
        self, plan: Plan, *, locked: bool, busy: Set[int], urls: ContainerUrls,
        own: tuple[int, BinaryIO] | None = None,
    ) -> None:  # fmt: skip
        """`locked`: this run holds locks on the files of the set. `busy`: others write to these.

        `urls` say where files of other hosts are read. `own` is the number of the file with the
        copies, and that file, of which an object need not be read again.
        """
        self._plan, self._locked, self._busy, self._own = plan, locked, busy, own
        self._open: OrderedDict[int, tuple[BinaryIO, OffsetMap | None]] = OrderedDict()
        self._copies: OrderedDict[int, PartialCopy] = OrderedDict()  # of objects
        self._facts: dict[int, ObjectFacts] = {}  # of these, and of those that were closed
        self._moved: dict[int, OffsetMap] = {}  # in those that a run in place has replaced
        self._urls, self._reader = urls, RecordReader(urls)
        self._fetched: BinaryIO | None = None  # the record that was read last

    def locate(self, line: Line) -> RecordOnDisk:
        container = self._plan.container(line.container)
        if not self._urls.is_here(container):
            return self._fetch(container, line)
        if is_remote(container.path):
            if self._own is None or line.container != self._own[0]:
                return self._stored_now(container, line)
            status = os.fstat(self._own[1].fileno())
            identity = status.st_dev, status.st_ino
            return RecordOnDisk(self._own[1], line.offset, line.stored, identity)
        if line.container not in self._open:
            self._open[line.container] = self._opened(line.container)
            if len(self._open) > _OPEN_FILES:
                self._open.popitem(last=False)[1][0].close()
        self._open.move_to_end(line.container)
        file, moved = self._open[line.container]
        offset = moved.new(line.offset) if moved else line.offset
        status = os.fstat(file.fileno())
        return RecordOnDisk(file, offset, line.stored, (status.st_dev, status.st_ino))

    def is_trusted(self, line: Line) -> bool:
        """Whether a record of another host is not read, as its manifest is believed."""
        return self._urls.trusted and not self._urls.is_here(self._plan.container(line.container))

    def forget(self, line: Line) -> bool:
        """Let a record of an object store be read anew; return whether it is of one."""
        copy = self._copies.pop(line.container, None)
        self._moved.pop(line.container, None)
        self._facts.pop(line.container, None)
        if copy is not None:
            copy.close()
        return copy is not None

    def close(self) -> None:
        for file, _ in self._open.values():
            file.close()
        self._open.clear()
        for copy in self._copies.values():
            copy.close()
        self._copies.clear()
        if self._fetched is not None:
            self._fetched.close()
        self._reader.close()

    def _stored_now(self, container: ManifestContainer, line: Line) -> RecordOnDisk:
        """Read a record of an object store, once more if the object was replaced meanwhile."""
        try:
            return self._stored(container, line)
        except BadSource:
            if not self.forget(line):
                raise
        return self._stored(container, line)

    def _stored(self, container: ManifestContainer, line: Line) -> RecordOnDisk:
        """Read a record of an object store by range; raises `BadSource` if that does not answer."""
        copy = self._copies.get(line.container)
        if copy is None:
            found = self._facts.get(line.container) or facts_or_none(container.path)
            if found is None:
                raise NotRewritable("original-gone", f"{container.path} is not in the store")
            self._facts[line.container] = found
            copy = self._copies[line.container] = PartialCopy(container.path, found)
            if len(self._copies) > _OPEN_FILES:
                number, oldest = self._copies.popitem(last=False)
                self._moved.pop(number, None)
                oldest.close()
        self._copies.move_to_end(line.container)
        outside = line.container in self._plan.outside()  # the index does not know its size
        offset = line.offset
        if not outside and (copy.size, copy.version) != (container.size, container.mtime_ns):
            offset = self._moved_in(container, copy.size).new(offset)
        copy.need(offset, line.stored)
        return RecordOnDisk(copy.file, offset, line.stored, (-1, line.container))

    def _moved_in(self, container: ManifestContainer, size: int) -> OffsetMap:
        """Return the offsets in an object that a run in place has replaced."""
        moved = self._moved.get(container.number)
        if moved is None:
            with TemporaryDirectory(prefix="dedupindex-journal-") as beside:
                moved = stored_offsets(container, size, Path(beside))
            if moved is None:
                raise NotRewritable(
                    "original-changed", f"{container.path} is not as it was scanned"
                )
            self._moved[container.number] = moved
        return moved

    def _fetch(self, container: ManifestContainer, line: Line) -> RecordOnDisk:
        """Read a record of another host into a temporary file."""
        if self._fetched is not None:
            self._fetched.close()
        self._fetched = file = TemporaryFile(buffering=0)  # noqa: SIM115 (`close` closes it)
        try:
            self._reader.fetch(container, line.offset, line.stored, file)
            packed = is_zstd(read_range(file, 0, 4))
            dictionaries = self._reader.dictionaries(container) if packed else None
        except BadSource as error:
            raise NotRewritable(ORIGINAL_ELSEWHERE, str(error)) from error
        return RecordOnDisk(file, 0, line.stored, (-1, line.container), dictionaries)

    def _opened(self, number: int) -> tuple[BinaryIO, OffsetMap | None]:
        container = self._plan.container(number)
        try:
            file = open_for_reading(container.path)
        except OSError as error:
            raise NotRewritable("original-gone", f"{container.path}: {error.strerror}") from error
        outside = number in self._plan.outside()
        is_busy = has_writer if self._locked and not outside else being_written
        if number in self._busy or container.path.endswith(".open") or is_busy(file):
            file.close()
            raise NotRewritable("original-busy", f"a process is writing to {container.path}")
        if outside:  # the index does not know its size
            return file, None
        status = os.fstat(file.fileno())
        if status.st_size == container.size and (
            status.st_mtime_ns == container.mtime_ns or content_hash(file) == container.content_hash
        ):
            return file, None
        if moved := _moved_by_journal(container, status):
            return file, moved
        file.close()
        raise NotRewritable("original-changed", f"{container.path} is not as it was scanned")


def _moved_by_journal(container: ManifestContainer, now: os.stat_result) -> OffsetMap | None:
    """Return the offsets in a file that a run in place has replaced; None if no journal tells."""
    journal = Journal(Path(container.root), container.name)
    with suppress(Damaged):
        if journal.exists():
            before, after = journal.summary()
            expected = container.size, after.size, before.mtime_ns
            if expected == (before.size, now.st_size, now.st_mtime_ns):
                return journal.offsets()
    return None


class StoredResponse:
    """A response record in its file; every method raises `Refused` if it is not as it must be."""

    def __init__(
        self, file: BinaryIO, offset: int, stored: int, dictionaries: Dictionaries | None = None
    ) -> None:
        """Read the headers and check them; `stored` is the size of the record in the file."""
        try:
            self.single = ExactRecord(file, offset, stored, dictionaries=dictionaries)
        except NotExact as error:
            raise NotRewritable("not-exact", str(error)) from error
        self.header = self.single.header
        head = self.single.head
        _check_header(self.header, head)
        fields = head.fields
        self.url = http_url(fields.get(b"WARC-Target-URI", b""))
        self.date = checked_date(fields.get(b"WARC-Date", b""))
        self.record_id = unbracket(fields.get(b"WARC-Record-ID", b""))
        self.digest = fields.get(b"WARC-Payload-Digest", b"")
        if not self.record_id:
            raise NotRewritable("no-record-id")
        if _CONTROL.search(self.url) or _CONTROL.search(self.record_id):
            raise NotRewritable("control-character")
        self.length = head.length  # bytes of the block
        self._stated = stated_digest(self.digest)[0]
        self._block_digest = stated_digest(fields.get(b"WARC-Block-Digest", b""))[0]
        answer, self.body, reason = self._divided()  # the body, once, in pieces
        if answer is None:
            raise NotRewritable(reason)
        if answer.status == 206 or answer.partial:
            raise NotRewritable("partial")
        if 300 <= answer.status < 400:
            raise NotRewritable("redirect")
        if answer.status < 200 or answer.status == 204:
            raise NotRewritable("status")
        if len(answer.head) == self.length:
            raise NotRewritable("empty")
        self.http, self.status, self._coding = answer.head, answer.status, answer.coding
        self.content_type = http.content_types(answer.head)
        self.codings = http.codings(answer.head)
        self.body_length = self.length - len(self.http)

    def _divided(self) -> Block:
        data, start = self.single.data, len(self.header)
        if data is None:
            return divided(self._block())
        return divided_at(data, start, start + self.length)

    def _block(self) -> Iterator[bytes | memoryview]:
        try:
            yield from self.single.block()
        except NotExact as error:
            raise NotRewritable("not-exact", str(error)) from error

    def payload(self) -> Payload:
        return Payload(self._stated.algorithm if self._stated else "sha1", (), self._coding)

    def block_hash(self) -> Hash | None:
        """Return what takes the block digest, fed with the HTTP header; None if none is stated."""
        if self._block_digest is None:
            return None
        running = new_hash(self._block_digest.algorithm)
        running.update(self.http)
        return running

    def verify(self, payload: Payload, block: Hash | None) -> None:
        """Compare the digests that were taken with those that the record states."""
        if payload.empty:
            raise NotRewritable("empty")
        verdict = payload.match(self._stated)
        if verdict is None and payload.was_cut(self._stated):
            raise NotRewritable("cut-digest")
        if verdict is None or verdict[0] is Covers.UNKNOWN:
            raise NotRewritable("digest-mismatch")
        if self._block_digest and block and block.digest() != self._block_digest.raw:
            raise NotRewritable("digest-mismatch")


def _check_header(header: bytes, head: Head) -> None:
    if head.type != b"response":
        raise NotRewritable("not-a-response")
    if not header.startswith(LINE_VERSIONS):
        raise NotRewritable("unknown-version")
    if head.repeated:
        raise NotRewritable("repeated-field")
    names = head.fields.keys()  # known ones are spelled as in the standard
    if b"WARC-Truncated" in names:
        raise NotRewritable("truncated")
    if b"WARC-Segment-Number" in names:
        raise NotRewritable("segmented")
    if not names.isdisjoint(ADDED):
        raise NotRewritable("unexpected-field")
    if not is_http_type(head.fields.get(b"Content-Type", b"")):
        raise NotRewritable("not-http")


class TrustedOriginal(NamedTuple):
    """A response of another host, as its manifest describes it."""

    url: bytes
    date: bytes
    record_id: bytes
    digest: bytes
    status: int
    content_type: bytes
    codings: bytes
    body_length: int
    http: bytes | None  # the HTTP header; None if it is another than that of the copy


class CheckedPair(NamedTuple):
    """A response that may become a revisit."""

    response: StoredResponse
    original: StoredResponse | TrustedOriginal
    record: bytes  # the revisit
    sha256: str  # in hex, of the dropped record, decompressed


def check_pair(
    planned: Planned, candidate: RecordOnDisk, original: RecordOnDisk, criteria: MatchCriteria,
    *, min_size: int = 0,
) -> CheckedPair:  # fmt: skip
    """Return the revisit that a response becomes.

    Raises `NotRewritable` or `Refused` with the reason why the response is kept; reasons about the
    original begin with ``original-``. Bodies of less than `min_size` bytes are kept. Both
    records must be those that the plan means, since some facts, such as the method of the
    request, are known from it alone.
    """
    if candidate[1:4] == original[1:4]:
        raise NotRewritable("same-record")
    response = _planned_response(planned, candidate, min_size)
    try:
        first = StoredResponse(*original[:3], original.dictionaries)
    except Refused as refused:
        raise NotRewritable("original-" + refused.reason, refused.problem) from refused
    if not _is_planned(first, planned.original):
        raise NotRewritable("original-changed")
    _check_headers(response, first, criteria)
    sha256 = _compare_bodies(response, first)
    named = first.record_id if planned.original.record_id else b""  # empty if ambiguous
    reference = Reference(first.url, first.date, named, first.digest)
    return CheckedPair(response, first, _revisit(response, reference), sha256)


def check_trusted(
    planned: Planned, candidate: RecordOnDisk, criteria: MatchCriteria, *, min_size: int = 0
) -> CheckedPair:
    """Return the revisit that a response becomes whose original is not read.

    What the plan has of the original is believed, as its host computed it: that its body has the
    BLAKE3 that the body of the response has now. Raises as `check_pair`.
    """
    response = _planned_response(planned, candidate, min_size)
    first = _trusted_original(planned, response)
    _check_headers(response, first, criteria)
    payload, block, strong = response.payload(), response.block_hash(), blake3()
    whole = hashlib.sha256(response.header + response.http)
    for piece in response.body:
        payload.update(piece)
        whole.update(piece)
        strong.update(piece)
        if block is not None:
            block.update(piece)
    if strong.digest() != planned.original.strong:
        raise NotRewritable("body-differs")
    response.verify(payload, block)
    whole.update(END)
    reference = Reference(first.url, first.date, first.record_id, first.digest)
    return CheckedPair(response, first, _revisit(response, reference), whole.hexdigest())


def _revisit(response: StoredResponse, reference: Reference) -> bytes:
    try:
        return revisit(response.header, response.http, reference)
    except BadDigest as error:  # a value whose lines do not say what its field was read as
        raise NotRewritable("bad-digest", str(error)) from error


def _trusted_original(planned: Planned, response: StoredResponse) -> TrustedOriginal:
    """Return what the plan has of an original; raises `Refused` if that is not enough."""
    line = planned.original  # digest, strong, length and coding are those of the copy, too
    if not line.record_id or line.covers == Covers.UNKNOWN or not line.strong:
        raise NotRewritable(ORIGINAL_ELSEWHERE, "its manifest does not identify it")
    try:
        url, date = http_url(line.url), checked_date(line.date)
        if _CONTROL.search(line.url) or _CONTROL.search(line.record_id):
            raise NotRewritable("control-character")
        if not 200 <= line.status < 300 and line.status < 400:
            raise NotRewritable("status")
    except Refused as refused:
        raise NotRewritable("original-" + refused.reason) from refused
    same_header = line.header and line.header == header_hash(response.http)
    return TrustedOriginal(
        url, date, line.record_id, line.digest, line.status, line.content_type, line.coding,
        line.length, response.http if same_header else None,
    )  # fmt: skip


def _planned_response(planned: Planned, candidate: RecordOnDisk, min_size: int) -> StoredResponse:
    response = StoredResponse(*candidate[:3])
    if not _is_planned(response, planned.line):
        raise NotRewritable("changed")
    if response.body_length < min_size:
        raise NotRewritable("small")
    return response


def _is_planned(response: StoredResponse, line: Line) -> bool:
    same = response.url == line.url and response.date == line.date
    return same and line.record_id in (b"", response.record_id)


def _check_headers(
    response: StoredResponse, first: StoredResponse | TrustedOriginal, criteria: MatchCriteria
) -> None:
    if response.record_id == first.record_id:
        raise NotRewritable("same-record")
    if not first.digest:
        raise NotRewritable("original-no-digest")
    if response.digest not in (b"", first.digest):
        raise NotRewritable("digest-differs")
    if response.status != first.status and not criteria.any_status:
        raise NotRewritable("status-differs")
    if response.content_type != first.content_type and criteria.same_type:
        raise NotRewritable("type-differs")
    if response.codings != first.codings:
        raise NotRewritable("coding-differs")
    if response.body_length != first.body_length:
        raise NotRewritable("body-differs")
    same_second = digits_of_date(response.date) == digits_of_date(first.date)
    if response.url == first.url and same_second and response.http != first.http:
        raise NotRewritable("same-second")  # replay shows the header of either


def _compare_bodies(response: StoredResponse, first: StoredResponse) -> str:
    """Return the SHA-256 of the response if the bodies are equal and all digests match."""
    payload = first.payload()
    blocks = response.block_hash(), first.block_hash()
    whole = hashlib.sha256(response.header + response.http)
    for piece, other in in_step(response.body, first.body):
        if piece.tobytes() != other.tobytes():  # memoryviews are compared item by item
            raise NotRewritable("body-differs")
        payload.update(piece)
        whole.update(piece)
        for block in blocks:
            if block is not None:
                block.update(piece)
    response.verify(payload, blocks[0])
    try:
        first.verify(payload, blocks[1])
    except Refused as refused:
        raise NotRewritable("original-" + refused.reason) from refused
    whole.update(END)
    return whole.hexdigest()


def restores(stored: ExactRecord, pair: CheckedPair) -> bool:
    """Whether a revisit, read back, makes the block that was dropped; the bodies are equal."""
    response, first = pair.response, pair.original
    try:
        block = b"".join(stored.block())
    except NotExact:
        return False
    fields = stored.head.fields
    return (
        stored.head.type == b"revisit"
        and not stored.head.repeated
        and block == response.http
        and len(block) + first.body_length == response.length
        and fields[LENGTH] == b"%d" % len(block)
        and fields.get(b"WARC-Payload-Digest") == first.digest
        and fields.get(b"WARC-Refers-To-Target-URI") == first.url
        and fields.get(b"WARC-Refers-To-Date") == refers_to_date(response.header, first.date)
        and _unchanged_fields(response.single.head) == _unchanged_fields(stored.head)
    )


def _unchanged_fields(head: Head) -> list[tuple[bytes, bytes]]:
    return [pair for pair in head.pairs if pair[0].lower() not in _CHANGED]
