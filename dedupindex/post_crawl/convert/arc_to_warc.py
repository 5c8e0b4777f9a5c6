"""Convert ARC files to WARC files that replace them, and back.

An ARC file is read from its first byte to its last. If anything in it is not to the letter, the
whole file is left alone. The WARC file gets its name once the ARC file has been reproduced from it.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
import zlib
from base64 import b32encode
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from tempfile import SpooledTemporaryFile, TemporaryFile
from typing import BinaryIO
from urllib.parse import quote
from uuid import NAMESPACE_URL, uuid5

import blake3

from dedupindex import __version__
from dedupindex.errors import BadDate
from dedupindex.post_crawl.convert.conversion import (
    Conversion,
    ConvertOutcome,
    ConvertTask,
    NotConverted,
    convert_file,
    name_clash,
)
from dedupindex.post_crawl.convert.warc_to_arc import (
    CONTENT_TYPE,
    DEFAULT_SETTINGS,
    LayoutEnd,
    NoLayout,
    NotReproduced,
    check,
    examine,
    find_settings,
    rebuild,
    write_kept,
    write_line,
)
from dedupindex.runtime.atomic_replace import (
    copy_metadata,
    create_file,
    open_for_reading,
    open_part,
    part_path,
    remove_stale_parts,
    removing,
    same_bytes,
)
from dedupindex.sources.warc_files import Sources, find
from dedupindex.timestamps import check_digits, date_of_digits
from dedupindex.urlkey import is_http
from dedupindex.warc import gzip_members
from dedupindex.warc.arc import DOCUMENT, HEADER, ArcFraming, date_of_header, fields_of
from dedupindex.warc.gzip_members import Damage, Filler, LongMember, Member, members
from dedupindex.warc.headers import BadHead
from dedupindex.warc.reader import START, framing_of, gzip_framing
from dedupindex.warc.record import PIECE, BrokenRecord, Record
from dedupindex.warc.record_facts import Block, divided
from dedupindex.warc.window import Cursor, Window, cursor_at, open_window

_LINE_ENDS = re.compile(rb"[\r\n]+")
_MAX_LINE_ENDS = 1 << 20  # bytes between two documents
_MEDIA_TYPE = re.compile(rb"[\w!#$&^.+-]+/[\w!#$&^.+-]+(?:\s*;[\x20-\x7e]*)?", re.ASCII)
_UNKNOWN_TYPE = b"application/octet-stream"
_HTTP_TYPE = b"application/http; msgtype=response"
_CONFORMS_TO = b"http://bibnum.bnf.fr/WARC/WARC_ISO_28500_version1_latestdraft.pdf"
_LEVEL = 6  # of deflate, as most crawlers compress
_GZIP_HEADER = "1f8b0800000000000003"
_IN_MEMORY = 1 << 20  # bytes of a document that are not written to a temporary file
_LONGEST_NAME = 255  # bytes
_SUFFIX = re.compile(r"\.arc(?:\.gz)?$", re.IGNORECASE)
_Fields = list[tuple[bytes, bytes]]


def convert(task: ConvertTask) -> ConvertOutcome:
    """Convert one ARC file; see `convert_file`."""
    return convert_file(task, _ArcConversion)


class _ArcConversion(Conversion):
    refused_target = "exists already, and was not made from it"

    def __init__(self, task: ConvertTask, window: Window, outcome: ConvertOutcome) -> None:
        super().__init__(task, window, outcome)
        framing, self._zipped = arc_framing(window)
        if framing is None:
            raise NotConverted("it is not an ARC file")
        self._framing = framing

    @cached_property
    def _content(self) -> str:
        return self.window.content_hash()

    def write(self, file: BinaryIO) -> None:
        with TemporaryFile(dir=self.task.target.parent) as spool:
            warc = _WarcWriter(file, f"blake3:{self._content}", zipped=self._zipped)
            _Converter(self.task, self.window, self._framing, warc, spool, self.outcome).run()

    def check(self, path: Path) -> None:
        check(path, self._content)


class _LineEndCursor(Cursor):
    """Collects the line ends that it skips."""

    skipped = b""

    def skip_line_ends(self) -> int:
        count = 0
        while self.hold(1) and (match := _LINE_ENDS.match(self.buffer, self.at)):
            self.skipped += match[0]
            self.at = match.end()
            count += len(match[0])
            if len(self.skipped) > _MAX_LINE_ENDS:
                raise BadHead("more than a mebibyte of line ends")
        return count


def arc_framing(window: Window) -> tuple[ArcFraming | None, bool]:
    """Return the framing of an ARC file (None for other files), and whether it is gzipped."""
    framing = gzip_framing(window)
    zipped = framing is not None
    framing = framing or framing_of(window.read(0, START))
    return framing if isinstance(framing, ArcFraming) else None, zipped


class _WarcWriter:
    """Writes WARC/1.0 records (ISO 28500; guidelines of the IIPC, 2016), gzipped like the ARC."""

    def __init__(self, file: BinaryIO, seed: str, *, zipped: bool) -> None:
        self._file, self._seed, self.zipped = file, seed, zipped
        self._count = 0
        self.warcinfo_id = b""  # of the first record, empty before it is written

    def write(
        self, kind: bytes, date: bytes, names: _Fields, content_type: bytes,
        pieces: Iterable[bytes], length: int, digests: _Fields,
    ) -> None:  # fmt: skip
        """Append a record; its id is the same in each conversion of a file."""
        self._count += 1
        record_id = f"<{uuid5(NAMESPACE_URL, f'{self._seed}#{self._count}').urn}>".encode()
        fields = [(b"WARC-Type", kind), (b"WARC-Record-ID", record_id), (b"WARC-Date", date)]
        fields += names
        if self.warcinfo_id:
            fields.append((b"WARC-Warcinfo-ID", self.warcinfo_id))
        fields += [(b"Content-Type", content_type), *digests, (b"Content-Length", b"%d" % length)]
        header = _field_lines(fields)
        self.warcinfo_id = self.warcinfo_id or record_id
        compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, 31) if self.zipped else None
        for data in chain([b"WARC/1.0\r\n" + header + b"\r\n"], pieces, [b"\r\n\r\n"]):
            self._file.write(compressor.compress(data) if compressor else data)
        if compressor:
            self._file.write(compressor.flush())


class _Document:
    """A document that was read once, with its digests; a long one is spooled to a file."""

    def __init__(self, record: Record, url: bytes, mime: bytes, beside: Path) -> None:
        self.length = record.length
        pieces = record.pieces()
        answer, body, _ = divided(pieces) if is_http(url) else Block(None, pieces)
        header = answer.head if answer else b""
        is_response = answer is not None and answer.status > 0
        self.kind = b"response" if is_response else b"resource"
        media_type = mime if _MEDIA_TYPE.fullmatch(mime) else _UNKNOWN_TYPE
        self.content_type = _HTTP_TYPE if is_response else media_type
        block, payload = hashlib.sha1(), hashlib.sha1()
        left = len(header) if is_response else 0  # bytes of the HTTP header still to come
        empty = self.length == left
        self._spool = SpooledTemporaryFile(_IN_MEMORY, dir=str(beside))  # noqa: SIM115
        for piece in chain([header] if header else [], body):
            block.update(piece)
            payload.update(memoryview(piece)[left:])
            left = max(left - len(piece), 0)
            self._spool.write(piece)
        self.digests = [_block_digest(block.digest())]
        # Tools do not agree on what the digest of a chunked body covers, so none is stated.
        if not empty and not (is_response and answer and answer.coding):
            self.digests.insert(0, (b"WARC-Payload-Digest", _sha1_field(payload.digest())))

    def pieces(self) -> Iterator[bytes]:
        self._spool.seek(0)
        return iter(lambda: self._spool.read(PIECE), b"")

    def close(self) -> None:
        self._spool.close()


class _Converter:
    def __init__(
        self, task: ConvertTask, window: Window, framing: ArcFraming, warc: _WarcWriter,
        spool: BinaryIO, outcome: ConvertOutcome,
    ) -> None:  # fmt: skip
        self._task, self._window, self._framing = task, window, framing
        self._warc, self._spool, self._outcome = warc, spool, outcome
        self._layout = partial(write_line, spool)
        self._exact = True
        self._settings = DEFAULT_SETTINGS  # of the last member
        self._content = blake3.blake3()
        self._date = b""

    def run(self) -> None:
        """Read the file without a gap and write all records; raises `NotConverted`."""
        if self._warc.zipped:
            for item in members(self._window):
                self._gzip_item(item)
        else:
            plain = cursor_at(self._window, 0, hashed=True)
            self._records(_LineEndCursor(partial(plain.take, PIECE)), -1)
        if not self._warc.warcinfo_id:
            raise NotConverted("it is empty")
        self._write_layout()

    def _gzip_item(self, item: Member | LongMember | Filler | Damage) -> None:
        if isinstance(item, Damage):
            raise NotConverted(f"at {item.offset}: {item.message}")
        if isinstance(item, Filler):
            self._layout("zeros", item.stored)
            return
        self._member(item.offset)
        if isinstance(item, Member):
            self._records(_LineEndCursor(bytes, item.data), item.offset)
            return
        cursor = _LineEndCursor(item.piece, item.start, sound=lambda: not item.broken)
        self._records(cursor, item.offset)
        while item.piece():
            pass
        if item.broken:
            raise NotConverted(f"at {item.offset}: a gzip member is damaged")

    def _records(self, cursor: _LineEndCursor, offset: int) -> None:
        """Write the records of an uncompressed file (`offset` -1) or of a member."""
        while True:
            begin = cursor.position
            try:
                cursor.skip_line_ends()
                self._text(cursor.skipped)
                cursor.skipped = b""
                if not cursor.hold(1):
                    return
                begin = cursor.position
                record = self._framing.record(cursor, begin if offset < 0 else offset)
                if record.special:
                    raise BadHead("a URL record can be read in two ways")
                if record.type == HEADER:
                    self._version_block(record)
                else:
                    self._document(record)
                record.finish()
            except (BadHead, BrokenRecord) as error:
                raise NotConverted(f"at {begin if offset < 0 else offset}: {error}") from error
            if record.type == DOCUMENT:
                closing_size = record.end - begin - record.start - record.length
                cursor.skipped = (b"", b"\n", b"\r\n")[closing_size] + cursor.skipped

    def _text(self, data: bytes) -> None:
        if data:
            self._content.update(data)
            self._layout("text", data.decode("latin-1"))

    def _member(self, offset: int) -> None:
        """Write how to reproduce a member."""
        found = find_settings(self._window, offset, self._settings)
        if found is not None:
            header, self._settings = found
            self._layout("made", header.hex(), *self._settings)
        elif not self._task.keep:
            self._exact = False
            self._layout("made", _GZIP_HEADER, *DEFAULT_SETTINGS)
        else:
            end = gzip_members.examine(self._window, offset).end
            write_kept(self._spool, self._window, offset, end)
            self._outcome.kept += max(end - offset, 0)

    def _version_block(self, record: Record) -> None:
        """Write the version block, which becomes a metadata record."""
        data = bytes(record.data or b"")
        self._begin_record(date_of_header(data), record.offset)
        url = data[: data.find(b"\n")].split(b" ")[0]
        names = [(b"WARC-Target-URI", url)] if url.isascii() else []
        self._content.update(data)
        self._layout("block", len(data))
        digests = [_block_digest(hashlib.sha1(data).digest())]
        self._warc.write(b"metadata", self._date, names, b"text/plain", [data], len(data), digests)

    def _document(self, record: Record) -> None:
        line = fields_of(record.text, self._framing.at_end)
        if line.url != line.url.strip() or any(byte < 32 or byte == 127 for byte in line.url):
            raise NotConverted(
                f"at {record.offset}: a control character, or a space at the end, of a URL"
            )
        date = self._begin_record(line.digits, record.offset)
        self._text(record.text)
        try:
            read = _Document(record, line.url, line.mime, self._task.target.parent)
        except BrokenRecord as error:
            raise NotConverted(f"at {record.offset}: {error}") from error
        with closing(read) as document:
            names = [(b"WARC-Target-URI", line.url)]
            if ip := _ip_address(line.ip):
                names.append((b"WARC-IP-Address", ip))
            self._warc.write(
                document.kind, date, names, document.content_type,
                self._hashed(document.pieces()), document.length, document.digests,
            )  # fmt: skip
            self._layout("block", document.length)
            self._outcome.responses += document.kind == b"response"
            self._outcome.resources += document.kind == b"resource"

    def _begin_record(self, digits: bytes, offset: int) -> bytes:
        """Return the WARC-Date of a timestamp; writes the warcinfo before the first record."""
        try:
            date = date_of_digits(check_digits(digits))
        except BadDate as error:
            raise NotConverted(f"at {offset}: {error}") from error
        if not self._warc.warcinfo_id:
            self._date = date
            self._write_warcinfo()
        return date

    def _write_warcinfo(self) -> None:
        name = quote(os.fsencode(self._task.target.name), safe=" +,()[]@=")
        fields = [
            (b"software", b"dedupindex/" + __version__.encode()),
            (b"format", b"WARC File Format 1.0"),
            (b"conformsTo", _CONFORMS_TO),
            (b"description", b"made of an ARC file; its last record says how it was"),
        ]
        block = _field_lines(fields)
        self._warc.write(
            b"warcinfo", self._date, [(b"WARC-Filename", name.encode("ascii"))],
            b"application/warc-fields", [block], len(block),
            [_block_digest(hashlib.sha1(block).digest())],
        )  # fmt: skip

    def _hashed(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            self._content.update(piece)
            yield piece

    def _write_layout(self) -> None:
        """Write the last record."""
        window, spool = self._window, self._spool
        name, content = os.path.basename(self._task.path), self._content.hexdigest()
        end = LayoutEnd(name, window.size, window.content_hash(), content, self._exact)
        self._layout("end", end._asdict())
        length = spool.tell()
        spool.seek(0)
        digest = hashlib.file_digest(spool, "sha1").digest()  # type: ignore[arg-type]  # a file
        spool.seek(0)
        self._warc.write(
            b"metadata", self._date, [(b"WARC-Target-URI", b"metadata://dedupindex/arc-layout")],
            CONTENT_TYPE, iter(lambda: spool.read(PIECE), b""), length, [_block_digest(digest)],
        )  # fmt: skip


def _sha1_field(raw: bytes) -> bytes:
    return b"sha1:" + b32encode(raw)


def _block_digest(raw: bytes) -> tuple[bytes, bytes]:
    return b"WARC-Block-Digest", _sha1_field(raw)


def _field_lines(fields: _Fields) -> bytes:
    return b"".join(b"%b: %b\r\n" % field for field in fields)


def _ip_address(text: bytes) -> bytes:
    """The IP address of a URL record; empty for none, and for 0.0.0.0, which stands for none."""
    try:
        found = ipaddress.ip_address(text.decode("ascii"))
    except ValueError:
        return b""
    return b"" if found.is_unspecified else text


def conversion_tasks(
    sources: Sequence[str], out: Path, *, keep: bool
) -> tuple[list[ConvertTask], Sources]:
    """Return tasks for ARC files, the largest first; raises `BadInput` if two get one name."""
    found = find(sources)
    tasks: dict[Path, ConvertTask] = {}
    for file in found.files:
        with closing(open_window(file.path, file.path)) as window:
            framing, zipped = arc_framing(window)
        if framing is None:
            found.skipped += 1
            continue
        target = out / (_SUFFIX.sub("", file.name) + (".warc.gz" if zipped else ".warc"))
        if target in tasks:
            raise name_clash(file.path, tasks[target])
        tasks[target] = ConvertTask(file.path, target, keep, file.size)
    return sorted(tasks.values(), key=lambda task: -task.size), found


def restore_tasks(sources: Sequence[str], out: Path) -> tuple[list[ConvertTask], Sources]:
    """Return tasks for all files that may have been ARC files; their targets are directories."""
    found = find(sources)
    tasks = [
        ConvertTask(file.path, out / os.path.dirname(file.name), size=file.size, named=False)
        for file in found.files
    ]
    return tasks, found


def restore_arc(task: ConvertTask) -> ConvertOutcome:
    """Make the ARC file again that a WARC file was made of, in the directory `task.target`."""
    outcome = ConvertOutcome(task.path, "left_alone")
    path, folder = Path(task.path), task.target
    part = part_path(folder / path.name)
    try:
        outcome.bytes_before = path.stat().st_size
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder) as spool, removing(part):
            kinds = examine(path, spool)
            remove_stale_parts([folder / path.name])  # remove what interrupted runs left
            with open_part(part, -1) as file, open_for_reading(path) as source:
                end = rebuild(path, spool, file.write)
                file.flush()
                copy_metadata(source, file)
                os.fsync(file.fileno())
                if not _is_file_name(end.name):
                    raise NotReproduced(f"{path}: its layout has no valid file name")
                outcome.state = _put(part, file, folder / end.name, exact=end.exact)
            outcome.responses, outcome.resources = kinds[b"response"], kinds[b"resource"]
            outcome.bytes_after = (folder / end.name).stat().st_size
    except NoLayout:
        outcome.state = "skipped"
    except NotReproduced as error:
        outcome.problem = str(error)
    return outcome


def _is_file_name(name: str) -> bool:
    try:
        stored = os.fsencode(name)
    except UnicodeEncodeError:
        return False
    valid = 0 < len(stored) <= _LONGEST_NAME and not {*b"/\0"} & {*stored}
    return valid and name not in (".", "..")


def _put(part: Path, file: BinaryIO, target: Path, *, exact: bool) -> str:
    """Rename a part to `target` unless that exists; returns the state of the outcome."""
    try:
        create_file(part, file, target)
    except FileExistsError:  # perhaps of another process
        with open_for_reading(target) as other:
            if not same_bytes(file, other):
                raise NotReproduced(f"{target} exists already, with other content") from None
        return "existing"
    return "exact" if exact else "content"
