"""One ARC file to a WARC file, which gets its name when the ARC file was made of it again."""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
import zlib
from base64 import b32encode
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO, NamedTuple
from urllib.parse import quote
from uuid import NAMESPACE_URL, uuid5

import blake3

from dedupindex import __version__
from dedupindex.errors import BadDate, BadSource
from dedupindex.post_crawl.convert.arc_layout import (
    CONTENT_TYPE,
    USUAL,
    End,
    LayoutWriter,
    MemberSettings,
    Search,
    size_of,
)
from dedupindex.post_crawl.convert.arc_steps import (
    MemberBegins,
    Odd,
    Text,
    Zeros,
    arc_framing,
    walk,
)
from dedupindex.post_crawl.convert.warc_to_arc import NotBack, check
from dedupindex.post_crawl.rewrite.part_files import (
    new_part,
    part_of,
    put_new,
    removed,
    sealed,
    sweep,
)
from dedupindex.runtime.atomic_replace import being_written, keep_metadata
from dedupindex.timestamps import check_digits, date_of_digits
from dedupindex.urlkey import is_http
from dedupindex.warc.arc import HEADER, ArcFraming, date_of_header, fields_of
from dedupindex.warc.record import PIECE, BrokenRecord, Record
from dedupindex.warc.record_facts import Block, divided
from dedupindex.warc.window import Window, open_window

# Documents of an ARC file as WARC/1.0 records (ISO 28500; guidelines of the IIPC, 2016).

_MEDIA_TYPE = re.compile(rb"[\w!#$&^.+-]+/[\w!#$&^.+-]+(?:\s*;[\x20-\x7e]*)?", re.ASCII)
_UNKNOWN = b"application/octet-stream"
_HTTP = b"application/http; msgtype=response"
_LEVEL = 6  # of deflate, as most crawlers compress
Fields = list[tuple[bytes, bytes]]


class ConvertedDocument:
    """A document that was read once, with its digests; a long one is spooled."""

    def __init__(self, record: Record, url: bytes, mime: bytes, beside: Path) -> None:
        self.length = record.length
        pieces = record.pieces()
        answer, body, _ = divided(pieces) if is_http(url) else Block(None, pieces)
        header = answer.head if answer else b""
        self.http = answer is not None and answer.status > 0
        self.kind = b"response" if self.http else b"resource"
        typed = mime if _MEDIA_TYPE.fullmatch(mime) else _UNKNOWN
        self.mime = _HTTP if self.http else typed
        block, payload = hashlib.sha1(), hashlib.sha1()
        left = len(header) if self.http else 0  # bytes of the HTTP header still to come
        empty = self.length == left
        self._short = record.data is not None
        self._pieces: list[bytes | memoryview] = []
        self._spool = None if self._short else TemporaryFile(dir=beside)  # noqa: SIM115
        for piece in chain([header] if header else [], body):
            block.update(piece)
            payload.update(memoryview(piece)[left:])
            left = max(left - len(piece), 0)
            if self._spool is None:
                self._pieces.append(piece)
            else:
                self._spool.write(piece)
        self.block_digest = spelled(block.digest())
        # What a digest of a chunked body covers, tools do not agree on: none is right for all.
        stated = not empty and not (self.http and answer and answer.coding)
        self.payload_digest = spelled(payload.digest()) if stated else b""

    def pieces(self) -> Iterator[bytes | memoryview]:
        """The block, once more."""
        if self._spool is None:
            yield from self._pieces
            return
        self._spool.seek(0)
        while data := self._spool.read(PIECE):
            yield data

    def close(self) -> None:
        if self._spool is not None:
            self._spool.close()


def spelled(raw: bytes) -> bytes:
    """A SHA-1 as records state it."""
    return b"sha1:" + b32encode(raw)


def digest_of(data: bytes) -> bytes:
    """The SHA-1 of some bytes."""
    return spelled(hashlib.sha1(data).digest())


def address(text: bytes) -> bytes:
    """The IP address of a URL record; empty for none, and for the 0.0.0.0 that means none."""
    try:
        found = ipaddress.ip_address(text.decode("ascii"))
    except ValueError:
        return b""
    return b"" if found.is_unspecified else text


class Warc:
    """The WARC file that is being written, a record after the other, compressed like the ARC."""

    def __init__(self, file: BinaryIO, seed: str, *, zipped: bool) -> None:
        self._file, self._seed, self._zipped = file, seed, zipped
        self._count = 0

    def write(
        self, kind: bytes, fields: Fields, pieces: Iterable[bytes | memoryview], length: int
    ) -> bytes:
        """Append a record; returns its id, which is the same whenever the file is made again."""
        self._count += 1
        record_id = f"<{uuid5(NAMESPACE_URL, f'{self._seed}#{self._count}').urn}>".encode()
        named = [(b"WARC-Type", kind), (b"WARC-Record-ID", record_id), *fields]
        named.append((b"Content-Length", b"%d" % length))
        head = b"".join(b"%b: %b\r\n" % field for field in named)
        packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, 31) if self._zipped else None
        written = 0
        for data in chain([b"WARC/1.0\r\n" + head + b"\r\n"], pieces, [b"\r\n\r\n"]):
            self._file.write(packer.compress(data) if packer else data)
            written += len(data)
        if packer:
            self._file.write(packer.flush())
        return record_id


_FORMAT = b"http://bibnum.bnf.fr/WARC/WARC_ISO_28500_version1_latestdraft.pdf"
_USUAL_HEADER = bytes.fromhex("1f8b0800000000000003")


class ConvertTask(NamedTuple):
    """One ARC file to convert."""

    path: str
    target: Path
    keep: bool = True  # the stored bytes of members that zlib does not make again


@dataclass
class ConvertOutcome:
    """What became of one file."""

    name: str
    state: str  # converted, there (done by an earlier run) or left
    problem: str = ""  # why it was left alone
    responses: int = 0
    resources: int = 0
    kept: int = 0  # stored bytes of members that zlib does not make again
    bytes_before: int = 0
    bytes_after: int = 0


def convert(task: ConvertTask) -> ConvertOutcome:
    """Convert one file; raises `OSError` where writing fails, and then nothing is there."""
    outcome = ConvertOutcome(task.path, "left")
    try:
        with closing(open_window(task.path, task.path)) as window:
            outcome.bytes_before = window.size
            outcome.state = _convert(task, window, outcome)
            outcome.bytes_after = task.target.stat().st_size
    except (Odd, NotBack, BadSource) as error:
        outcome.problem = str(error)
    return outcome


def _convert(task: ConvertTask, window: Window, outcome: ConvertOutcome) -> str:
    """Returns the state of the outcome; raises `Odd`, `NotBack` or `BadSource`."""
    framed = arc_framing(window)
    if framed is None:
        raise Odd("it is no ARC file")
    if being_written(window.file):
        raise Odd("some other process is writing to it")
    target, content = task.target, window.content_hash()
    if target.exists():
        try:
            check(target, content)
        except NotBack as error:
            raise Odd(f"{target} is there already, and is not made of it: {error}") from error
        return "there"
    target.parent.mkdir(parents=True, exist_ok=True)
    sweep([target])  # what a killed run left
    part = part_of(target)
    with removed(part):
        with new_part(part, -1) as file, _Converter(task, window, file, framed) as converter:
            converter.run(outcome)
            file.flush()
            keep_metadata(window.file, file)
            os.fsync(file.fileno())
            whole = sealed(part, file)
        with whole:
            check(part, content)
            if window.changed():
                raise Odd("it was changed while it was read")
            try:
                put_new(part, whole, target)
            except FileExistsError as error:  # by another process, since
                raise Odd(f"{target} is there already, and was not when this began") from error
    return "converted"


class _Converter:
    """Writes the records of one WARC file."""

    def __init__(
        self, task: ConvertTask, window: Window, file: BinaryIO, framed: tuple[ArcFraming, bool]
    ) -> None:
        self._exact = True
        self._task, self._window, (self._framing, self._zipped) = task, window, framed
        self._warc = Warc(file, f"blake3:{window.content_hash()}", zipped=self._zipped)
        self._spool = TemporaryFile(dir=task.target.parent)  # noqa: SIM115
        self._layout = LayoutWriter(self._spool)
        self._search = Search()
        self._content = blake3.blake3()
        self._date = self._info = b""  # of the warcinfo

    def __enter__(self) -> _Converter:
        return self

    def __exit__(self, *_: object) -> None:
        self._spool.close()

    def run(self, outcome: ConvertOutcome) -> None:
        """Write everything; raises `Odd`."""
        for step in walk(self._window, self._framing, zipped=self._zipped):
            if isinstance(step, Text):
                self._text(step.data)
            elif isinstance(step, Zeros):
                self._layout.zeros(step.size)
            elif isinstance(step, MemberBegins):
                outcome.kept += self._member(step.offset)
            elif step.type == HEADER:
                self._header(step)
            elif self._document(step) == b"response":
                outcome.responses += 1
            else:
                outcome.resources += 1
        if not self._info:
            raise Odd("there is nothing in it")
        self._end()

    def _text(self, data: bytes) -> None:
        self._content.update(data)
        self._layout.text(data)

    def _member(self, offset: int) -> int:
        """Note how a member is made again; returns how many bytes had to be kept for that."""
        found = self._search.at(self._window, offset)
        if found.settings is not None:
            self._layout.made(found)
        elif not self._task.keep:
            self._exact = False
            self._layout.made(MemberSettings(_USUAL_HEADER, USUAL))
        else:
            size = size_of(self._window, offset)
            self._layout.kept(_stored(self._window, offset, size))
            return size
        return 0

    def _header(self, record: Record) -> None:
        """A version block, which becomes a metadata record."""
        data = bytes(record.data or b"")
        self._begin(date_of_header(data), record.offset)
        url = data[: data.find(b"\n")].split(b" ")[0]
        fields = [
            (b"WARC-Date", self._date),
            *([(b"WARC-Target-URI", url)] if url.isascii() else []),
            (b"WARC-Warcinfo-ID", self._info),
            (b"Content-Type", b"text/plain"),
            (b"WARC-Block-Digest", digest_of(data)),
        ]
        self._content.update(data)
        self._layout.block(len(data))
        self._warc.write(b"metadata", fields, [data], len(data))

    def _document(self, record: Record) -> bytes:
        """A response or a resource; returns which."""
        line = record.text
        stated = fields_of(line, self._framing.at_end)
        if stated.url != stated.url.strip() or any(byte < 32 or byte == 127 for byte in stated.url):
            raise Odd(f"at {record.offset}: a control character, or a space at the end, of a URL")
        date = self._begin(stated.digits, record.offset)
        self._text(line)
        try:
            read = ConvertedDocument(record, stated.url, stated.mime, self._task.target.parent)
        except BrokenRecord as error:
            raise Odd(f"at {record.offset}: {error}") from error
        with closing(read) as document:
            fields = [(b"WARC-Date", date), (b"WARC-Target-URI", stated.url)]
            if ip := address(stated.ip):
                fields.append((b"WARC-IP-Address", ip))
            fields.append((b"WARC-Warcinfo-ID", self._info))
            fields.append((b"Content-Type", document.mime))
            if document.payload_digest:
                fields.append((b"WARC-Payload-Digest", document.payload_digest))
            fields.append((b"WARC-Block-Digest", document.block_digest))
            pieces = self._hashed(document.pieces())
            self._warc.write(document.kind, fields, pieces, document.length)
            self._layout.block(document.length)
            return document.kind

    def _begin(self, digits: bytes, offset: int) -> bytes:
        """The WARC-Date of some digits; the first record of all is the warcinfo."""
        try:
            date = date_of_digits(check_digits(digits))
        except BadDate as error:
            raise Odd(f"at {offset}: {error}") from error
        if not self._info:
            self._date = date
            self._info = self._warcinfo()
        return date

    def _warcinfo(self) -> bytes:
        name = quote(self._task.target.name, safe=" +,()[]@=")
        block = b"".join(
            b"%b: %b\r\n" % field
            for field in (
                (b"software", b"dedupindex/" + __version__.encode()),
                (b"format", b"WARC File Format 1.0"),
                (b"conformsTo", _FORMAT),
                (b"description", b"made of an ARC file; its last record says how it was"),
            )
        )
        fields: Fields = [
            (b"WARC-Date", self._date),
            (b"WARC-Filename", name.encode("ascii")),
            (b"Content-Type", b"application/warc-fields"),
            (b"WARC-Block-Digest", digest_of(block)),
        ]
        return self._warc.write(b"warcinfo", fields, [block], len(block))

    def _hashed(self, pieces: Iterator[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        for piece in pieces:
            self._content.update(piece)
            yield piece

    def _end(self) -> None:
        """The last record: how all of it was in the ARC file."""
        window = self._window
        content = self._content.hexdigest()
        name = os.path.basename(self._task.path)
        self._layout.end(End(name, window.size, window.content_hash(), content, self._exact))
        length = self._spool.tell()
        self._spool.seek(0)
        fields = [
            (b"WARC-Date", self._date),
            (b"WARC-Target-URI", b"metadata://dedupindex/arc-layout"),
            (b"WARC-Warcinfo-ID", self._info),
            (b"Content-Type", CONTENT_TYPE),
            (b"WARC-Block-Digest", spelled(hashlib.file_digest(self._spool, "sha1").digest())),
        ]
        self._spool.seek(0)
        pieces = iter(lambda: self._spool.read(PIECE), b"")
        self._warc.write(b"metadata", fields, pieces, length)


def _stored(window: Window, offset: int, size: int) -> Iterator[bytes]:
    end = offset + size
    while offset < end:
        data = window.read(offset, min(end - offset, 3 << 18))
        if not data:
            raise Odd("it became shorter while it was read")
        offset += len(data)
        yield data
