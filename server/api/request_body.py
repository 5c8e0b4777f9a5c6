"""Reading of bodies: as a whole, or as numbered JSON lines in chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, BinaryIO, NamedTuple, cast

import orjson

from dedupindex.errors import IndexUnavailable
from server.responses import RequestError

_READ = 1 << 16  # bytes of a body that are taken at once
_CHUNK = 1000  # lines that are answered in one read transaction


def read_body(stream: BinaryIO, length: str, limit: int) -> bytes:
    """Return a body; raises `RequestError` as soon as it is known to exceed `limit` bytes.

    No byte beyond the stated length is read: each read waits for another thread.
    """
    whole = int(length) if length.isdigit() else -1
    if whole > limit:
        raise RequestError("too_large", f"a body has at most {limit} bytes; send JSON lines")
    pieces, size = [], 0
    while size != whole and (piece := stream.read(_READ)):
        size += len(piece)
        if size > limit:
            raise RequestError("too_large", f"a body has at most {limit} bytes; send JSON lines")
        pieces.append(piece)
    return b"".join(pieces)


@contextmanager
def spooled_body(stream: BinaryIO, length: int, folder: Path) -> Iterator[BinaryIO]:
    """Store a body of known length in an unnamed temporary file in `folder`, and open it.

    Raises `RequestError` if the body ends early, and `IndexUnavailable` if it cannot be written.
    """
    with ExitStack() as closing:
        with _disk_errors(folder):
            file = TemporaryFile(dir=folder)  # noqa: SIM115 (closed below, even if the disk is full)
        closing.callback(_close, file)
        left = length
        while left and (piece := stream.read(min(_READ, left))):
            left -= len(piece)
            with _disk_errors(folder):
                file.write(piece)
        if left:
            raise RequestError("bad_request", f"the body ended {left} bytes early")
        with _disk_errors(folder):
            file.seek(0)  # after what is still buffered was written
        yield cast(BinaryIO, file)


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        message = f"the body cannot be kept in {folder}, and nothing of it is done: {error}"
        raise IndexUnavailable(message) from error


def _close(file: IO[bytes]) -> None:
    with suppress(OSError):  # closing tries again to write what the disk refused
        file.close()


class Lines(NamedTuple):
    """Lines of a stream that are not blank."""

    items: list[Any]  # the decoded lines, or errors in their place
    numbers: Sequence[int]  # of the lines, from 1; blank ones count


def line_chunks(stream: BinaryIO, limit: int) -> Iterator[Lines]:
    """Yield the lines of a stream in chunks of at most `_CHUNK`; a long line is an error."""
    rest, skipping, seen = b"", False, 0
    while True:
        piece = stream.read(_READ)
        *complete, rest = (rest + piece if piece else rest + b"\n").split(b"\n")
        found: list[Any] = []
        blank = set[int]()
        for number, line in enumerate(complete, seen + 1):
            if skipping or len(line) > limit:
                found.append(RequestError("too_large", f"a line has at most {limit} bytes"))
                skipping = False
            elif line and not line.isspace():
                found.append(_loaded(line))
            else:
                blank.add(number)
        numbers: Sequence[int] = range(seen + 1, seen + 1 + len(complete))
        if blank:
            numbers = [number for number in numbers if number not in blank]
        seen += len(complete)
        if len(rest) > limit:
            rest, skipping = b"", True
        for at in range(0, len(found), _CHUNK):
            yield Lines(found[at : at + _CHUNK], numbers[at : at + _CHUNK])
        if not piece:
            return


def _loaded(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return RequestError("bad_request", f"not JSON: {error}")
