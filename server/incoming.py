"""Bodies as they come: whole ones, and JSON lines in stretches, numbered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import orjson

from server.replies import RequestError

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
