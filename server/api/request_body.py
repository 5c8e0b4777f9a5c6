"""Bodies as they come: whole ones, and JSON lines in stretches, numbered."""

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
_STRETCH = 1000  # lines that are answered in one read transaction


def read_body(stream: BinaryIO, length: str, limit: int) -> bytes:
    """A whole body; raises `RequestError` as soon as it is known to be over `limit` bytes.

    Of a body that says its length nothing is read behind it: each read waits for another thread.
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
    """A whole body of known length, in a file in `folder` that has no name and is gone afterwards.

    Raises `RequestError` if it ends early, and `IndexUnavailable` if the disk does not take it.
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
    with suppress(OSError):  # closing tries once more to write what the disk did not take
        file.close()


class Stretch(NamedTuple):
    """Some lines of a stream that are not blank."""

    items: list[Any]  # what they say; what is wrong with one takes its place
    numbers: Sequence[int]  # of the lines, from 1, blank ones counted


def stretches(stream: BinaryIO, limit: int) -> Iterator[Stretch]:
    """The lines of a stream, in lists of no more than `_STRETCH`; an error for one too long."""
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
        for at in range(0, len(found), _STRETCH):
            yield Stretch(found[at : at + _STRETCH], numbers[at : at + _STRETCH])
        if not piece:
            return


def _loaded(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return RequestError("bad_request", f"not JSON: {error}")
