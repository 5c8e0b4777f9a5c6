"""Manifests as text, as warcsum and warccollres of Bibliotheca Alexandrina write them.

    FILE OFFSET LENGTH URI DATE ALGORITHM:HEX [EXTENSION [COPY URI DATE]]

One space between fields, one line feed behind each line, no quotes. The file is named without its
directory. Space and control characters, which the format cannot hold, are written as %20 and the
like. What such a line says is a hint: who acts on one reads the record.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dedupindex.digest import SIZES, Digest
from dedupindex.errors import BadInput
from dedupindex.post_crawl.manifest.lines import Line, ManifestContainer
from dedupindex.urlkey import unbracket

_UNSAFE = re.compile(rb"[\x00-\x20\x7f]")
_LINE = re.compile(
    rb"(.+) ([0-9]{1,19}) ([0-9]{1,19}) (\S+) (\S+) ([a-z0-9]+):([0-9a-fA-F]+)"
    rb"(?: ([0-9]{1,18})(?: ([0-9]{1,18}) \S+ \S+)?)?"
)


class Hint(NamedTuple):
    """What a line of text says of a response."""

    file: bytes  # name without directory, as written
    offset: int
    length: int  # bytes of the record as stored
    url: bytes  # without angle brackets
    date: bytes
    digest: Digest  # of the body
    extension: int = 0  # which of the payloads with this digest, from 1; 0: not said
    copy: int = 0  # from 1; 0: not said


def text_line(container: ManifestContainer, line: Line, algorithm: str) -> bytes:
    """A line of six fields, as warcsum writes it."""
    name = in_text(os.fsencode(os.path.basename(container.name)))
    return b"%b %d %d %b %b %b:%b\n" % (
        name, line.offset, line.stored, in_text(line.url) or b"-", in_text(line.date) or b"-",
        algorithm.encode(), line.payload.hex().encode(),
    )  # fmt: skip


def resolved_line(six: bytes, extension: int, copy: int, url: bytes, date: bytes) -> bytes:
    """The ten fields of warccollres for a line of six; `url` and `date` are the original's."""
    if copy == 1:
        return b"%b %d 1 - -\n" % (six[:-1], extension)
    return b"%b %d %d %b %b\n" % (
        six[:-1], extension, copy, in_text(url) or b"-", in_text(date) or b"-",
    )  # fmt: skip


def read_text(lines: Iterable[bytes]) -> Iterator[Hint]:
    """Read lines of 6, 7 or 10 fields; raises `BadInput` with the number of the line.

    References (fields 9 and 10) are left out: warccollres writes each copy's own URI there. A
    digest of 40 hex digits is a SHA-1 whatever its label: warcsum mislabels them.
    """
    for number, line in enumerate(lines, 1):
        match = _LINE.fullmatch(line.rstrip(b"\r\n"))
        hint = _hint(match) if match is not None else None
        if hint is None:
            raise BadInput(
                f"line {number} of the manifest is not FILE OFFSET LENGTH URI DATE DIGEST: "
                f"{line[:80]!r}"
            )
        yield hint


def _hint(match: re.Match[bytes]) -> Hint | None:
    name, offset, length, url, date, label, digits, extension, copy = match.groups()
    algorithm = "sha1" if len(digits) == 2 * SIZES["sha1"] else label.decode()
    if len(digits) != 2 * SIZES.get(algorithm, 0):
        return None
    digest, url = Digest(algorithm, bytes.fromhex(digits.decode())), unbracket(url)
    return Hint(
        name, int(offset), int(length), url, date, digest, int(extension or 0), int(copy or 0)
    )


def in_text(text: bytes) -> bytes:
    """A value as the format can hold it."""
    return _UNSAFE.sub(lambda match: b"%%%02X" % ord(match[0]), text)
