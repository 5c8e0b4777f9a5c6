"""A collection of odd files, each a case of its own, and the stages run over it as a user would.

A case states for each piece of its files what must become of it. Pieces and the expected revisits
are built here with string operations, independently of the code under test.
"""

from __future__ import annotations

import json
import re
import shutil
import zlib
from base64 import b32encode
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from hashlib import sha1 as new_sha1
from io import BytesIO, TextIOWrapper
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import zstandard

from dedupindex.cli import main
from tests.support.warc_cases import gz, response
from tests.support.zstd_files import dictionary_frame, zst

DAY = b"20%02d-11-20T09:14:17Z"
_HTTP_HEADER = re.compile(rb"\A.*?\n\r?\n", re.DOTALL)


class Piece(NamedTuple):
    """Some bytes of a file, mostly one member."""

    stored: bytes
    word: str = ""  # what becomes of the response in it: revisit, original, unique, or why it stays
    record: bytes = b""  # inflated
    first: bytes = b""  # the record of its original, if it becomes a revisit
    refers: bool = True  # whether the revisit names the record id of its original


@dataclass
class Case:
    """Some files in a folder of their own. No body in them occurs in another case."""

    name: str
    number: int
    packed: bool = True
    zstd: bytes | None = None  # the dictionary of zstd frames, b"" for none; None: gzip members
    files: dict[str, list[Piece]] = field(default_factory=dict)
    damaged: set[str] = field(default_factory=set)  # files that are named, and left as they are
    remarks: set[str] = field(default_factory=set)  # of bin/verify, on revisits as they must be
    _original: bytes = b""

    @property
    def body(self) -> bytes:
        """The body that the case repeats; not compressible, so that a revisit is smaller."""
        return b"<!-- " + Random(self.name).randbytes(700).hex().encode() + b" -->"

    @property
    def other(self) -> bytes:
        """A body that occurs nowhere else."""
        return b"something else: " + self.name.encode()

    def pack(self, data: bytes) -> bytes:
        if not self.packed:
            return data
        return gz(data) if self.zstd is None else zst(data, self.zstd)

    @property
    def start(self) -> bytes:
        """What each file begins with: the frame of its dictionary."""
        return dictionary_frame(self.zstd, compressed=self.number % 2 == 0) if self.zstd else b""

    def record(self, year: int, body: bytes | None = None, **options: Any) -> bytes:
        """A response: its year, URL and record id have the number `year` (1 to 25) in them."""
        options.setdefault("Target_URI", b"http://c%d.test/%d" % (self.number, year))
        options.setdefault("Date", DAY % year)
        options.setdefault("number", self.number * 100 + year)
        more = options.pop("more", ())
        return response(self.body if body is None else body, *more, **options)

    def kept(self, word: str, record: bytes) -> Piece:
        """A member that must not change."""
        return Piece(self.pack(record), word, record)

    def original(self, word: str = "original", year: int = 1, **options: Any) -> Piece:
        """A response that later revisits of this case refer to."""
        self._original = self.record(year, **options)
        return self.kept(word, self._original)

    def copy(self, year: int = 2, *, refers: bool = True, **options: Any) -> Piece:
        """A response that becomes a revisit of the last original."""
        record = self.record(year, **options)
        return Piece(self.pack(record), "revisit", record, self._original, refers)

    def turns(self, record: bytes) -> Piece:
        """Any record that becomes a revisit of the last original."""
        return Piece(self.pack(record), "revisit", record, self._original)

    def file(self, name: str, *pieces: Piece | bytes, damaged: bool = False) -> None:
        """Add a file, packed or not as its pieces are."""
        self.files[name] = [piece if isinstance(piece, Piece) else Piece(piece) for piece in pieces]
        if damaged:
            self.damaged.add(name)

    def words(self) -> Counter[str]:
        """Count the outcomes of all responses that a manifest lists."""
        return Counter(piece.word for file in self.files.values() for piece in file if piece.word)

    def write(self, top: Path) -> None:
        for name, pieces in self.files.items():
            path = top / self.name / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.start + b"".join(piece.stored for piece in pieces))

    def check(self, top: Path) -> None:
        """Check every file byte for byte."""
        for name, pieces in self.files.items():
            new = (top / self.name / name).read_bytes()
            place = f"{self.name}/{name}"
            assert new.startswith(self.start), f"{place}: its dictionary is not as it was"
            new = new[len(self.start) :]
            for piece in pieces:
                if piece.word != "revisit":
                    assert new.startswith(piece.stored), f"{place}: a piece is not as it was"
                    new = new[len(piece.stored) :]
                    continue
                expected = becomes(piece)
                if self.packed:
                    new, content = _member(new, self.zstd)
                    assert content == expected, place
                else:
                    assert new.startswith(expected), place
                    new = new[len(expected) :]
            assert not new, f"{place}: there is more than there was"


def _member(data: bytes, dictionary: bytes | None) -> tuple[bytes, bytes]:
    """Return the data after the first gzip member or zstd frame, and its content."""
    if dictionary is None:
        inflater = zlib.decompressobj(31)
        content = inflater.decompress(data)
        assert inflater.eof
        return inflater.unused_data, content
    words = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
    frame = zstandard.ZstdDecompressor(dict_data=words).decompressobj()
    content = frame.decompress(data)
    assert frame.eof
    used = zstandard.get_frame_parameters(data)
    assert used.has_checksum and used.content_size == len(content)
    assert used.dict_id == (words.dict_id() if words else 0)
    return frame.unused_data, content


def _field(record: bytes, name: bytes) -> bytes:
    """The value of a field, without angle brackets."""
    header = record.partition(b"\r\n\r\n")[0]
    match = re.search(rb"(?im)^%b[ \t]*:[ \t]*(.*?)[ \t]*\r?$" % name, header)
    return match[1].strip(b"<>") if match else b""


def becomes(piece: Piece) -> bytes:
    """The revisit that a response turns into, field by field; its block can be rebuilt."""
    header, _, rest = piece.record.partition(b"\r\n\r\n")
    block = rest.removesuffix(b"\r\n\r\n")
    first_block = piece.first.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n\r\n")
    http, first_http = (_HTTP_HEADER.match(one)[0] for one in (block, first_block))  # type: ignore[index]
    assert http + first_block[len(first_http) :] == block, "these two are no duplicates"
    new_digest = b"sha1:" + b32encode(new_sha1(http).digest())
    for name, value in (
        (b"WARC-Type", b"revisit"),
        (b"Content-Length", b"%d" % len(http)),
        (b"WARC-Block-Digest", new_digest),
    ):
        header = re.sub(rb"(?im)^(%b[ \t]*:[ \t]*)[^\r]*" % name, rb"\g<1>" + value, header)
    added = (
        []
        if _field(header, b"WARC-Payload-Digest")
        else [(b"WARC-Payload-Digest", _field(piece.first, b"WARC-Payload-Digest"))]
    )
    version = header[5:8]
    profile = b"http://netpreserve.org/warc/%b/revisit/identical-payload-digest" % version
    added += [(b"WARC-Profile", profile), (b"WARC-Truncated", b"length")]
    if piece.refers:
        added.append((b"WARC-Refers-To", b"<%b>" % _field(piece.first, b"WARC-Record-ID")))
    added.append((b"WARC-Refers-To-Target-URI", _field(piece.first, b"WARC-Target-URI")))
    date = _field(piece.first, b"WARC-Date")
    if version == b"1.0":  # its dates have no fractions
        date = re.sub(rb"\.[0-9]+", b"", date)
    added.append((b"WARC-Refers-To-Date", date))
    lines = b"".join(b"\r\n%b: %b" % pair for pair in added)
    return header + lines + b"\r\n\r\n" + http + b"\r\n\r\n"


class CommandResult(NamedTuple):
    """Exit status and output of a command."""

    status: int
    out: str
    err: str

    @property
    def totals(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        return found


def typed(*words: object) -> CommandResult:
    """Run a command of this project, with --json."""
    out, err = (TextIOWrapper(BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with redirect_stdout(out), redirect_stderr(err):
        status = main([*map(str, words), "--json"])
    output, messages = (stream.buffer.getvalue().decode() for stream in (out, err))  # type: ignore[attr-defined]
    return CommandResult(status, output, messages)


def findings(result: CommandResult, top: Path) -> dict[str, Counter[tuple[str, str]]]:
    """Count what bin/verify found, by file: reasons and record ids."""
    counts: dict[str, Counter[tuple[str, str]]] = {}
    for line in result.out.splitlines()[:-1]:
        finding = json.loads(line)
        name = str(Path(finding["file"]).relative_to(top))
        counts.setdefault(name, Counter())[finding["reason"], finding["record_id"]] += 1
    return counts


@dataclass
class Run:
    """All stages over a collection: the result of each command, and its files."""

    top: Path
    results: dict[str, CommandResult] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.source, self.manifest, self.plan = (
            self.top / name for name in ("in", "manifest", "plan")
        )
        self.out, self.placed = self.top / "out", self.top / "placed"

    def do(self, name: str, *words: object) -> CommandResult:
        self.results[name] = result = typed(*words)
        return result

    def prepare(self, *options: object) -> None:
        """Verify the source, and make manifest and plan."""
        self.do("before", "verify", "--remarks", self.source)
        self.do("manifest", "manifest", self.source, "-o", self.manifest)
        self.do("resolve", "resolve", self.manifest, "-o", self.plan, *options)

    def to_directory(self) -> None:
        """Rewrite to ``out``, and verify it."""
        self._rewrite("out", "--out", self.out)
        self.do("out verify", "verify", "--remarks", self.out)
        self.do("out against", "verify", "--remarks", "--against", self.source, self.out)

    def in_place(self) -> None:
        """Rewrite in place, copy the results to ``placed``, verify them, and undo the rewriting."""
        shutil.copytree(self.source, self.top / "before")
        self._rewrite("placed", "--in-place")
        shutil.copytree(self.source, self.placed)
        self.do("placed verify", "verify", "--remarks", self.placed)
        self.do(
            "placed against", "verify", "--remarks", "--against", self.top / "before", self.placed
        )
        self.do("undo", "rewrite", self.plan, "--undo")

    def _rewrite(self, name: str, *where: object) -> None:
        self.do(f"{name} dry", "rewrite", self.plan, *where, "--dry-run")
        self.do(name, "rewrite", self.plan, *where)


def tree(top: Path) -> dict[str, bytes]:
    """Every file below a directory but those of journals."""
    return dict(_tree(top))


def _tree(top: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(top.rglob("*")):
        if path.is_file() and ".rewrite" not in path.parts:
            yield str(path.relative_to(top)), path.read_bytes()


Make = Callable[[Case], None]
