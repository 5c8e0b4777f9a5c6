"""Where a damaged gzip member ends, and where reading may safely go on behind it.

Only used once something is wrong, so it re-reads the file by itself and uses zlib, the reference,
whose verdict on a damaged stream counts more than its speed (RFC 1952 section 2.3).
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

from isal import isal_zlib
from isal.isal_zlib import decompressobj

from dedupindex.warc.window import Window

IsalError: type[Exception] = isal_zlib.IsalError  # type: ignore[assignment]  # of its stub
MAGIC = b"\x1f\x8b\x08"
RESERVED = 0xE0  # bits of the flags in a gzip header
_FEED = 1 << 16
_TRAILER = 8  # bytes: CRC-32 and length
_FEXTRA, _FNAME, _FCOMMENT, _FHCRC = 4, 8, 16, 2
LONGEST_HEADER = 1 << 18


class Verdict(NamedTuple):
    """What zlib makes of a member. `end` is -1 if its deflate data does not end cleanly."""

    end: int
    sound: bool  # checksum and length agree
    cut: bool  # nothing is wrong but that the file ends too early


def judge(window: Window, offset: int) -> Verdict:
    """Inflate the member at `offset` without its wrapper, then compare checksum and length."""
    position = offset + header_length(window.read(offset, LONGEST_HEADER))
    if position < offset:
        return Verdict(-1, sound=False, cut=False)
    inflater = zlib.decompressobj(-15)
    checksum = length = 0
    while not inflater.eof:
        feed = window.read(position, _FEED)
        if not feed:
            return Verdict(-1, sound=False, cut=True)
        try:
            data = inflater.decompress(feed)
        except zlib.error:
            return Verdict(-1, sound=False, cut=False)
        checksum = zlib.crc32(data, checksum)
        length += len(data)
        position += len(feed)
    position -= len(inflater.unused_data)
    trailer = window.read(position, _TRAILER)
    if len(trailer) < _TRAILER:
        return Verdict(-1, sound=False, cut=True)
    stated = int.from_bytes(trailer[:4], "little"), int.from_bytes(trailer[4:], "little")
    return Verdict(position + _TRAILER, stated == (checksum, length & 0xFFFFFFFF), cut=False)


def header_length(start: bytes) -> int:
    """Bytes of the gzip header that `start` begins with; -1 if it is none."""
    if not start.startswith(MAGIC) or len(start) < 10 or start[3] & RESERVED:
        return -1
    flags, at = start[3], 10
    if flags & _FEXTRA:
        at += 2 + int.from_bytes(start[at : at + 2], "little")
    for flag in (_FNAME, _FCOMMENT):
        if flags & flag:
            at = start.find(b"\0", at) + 1
            if not at:
                return -1
    return at + 2 if flags & _FHCRC else at


def zeros_end(window: Window, offset: int) -> int:
    """Where the run of zero bytes that may stand at `offset` ends."""
    while True:
        feed = window.read(offset, _FEED)
        rest = feed.lstrip(b"\0")
        offset += len(feed) - len(rest)
        if rest or not feed:
            return offset


def begins_cleanly(window: Window, offset: int) -> bool:
    """Whether a member, padding or the end of the file stands at `offset`."""
    start = window.read(offset, len(MAGIC))
    return not start.strip(b"\0") or start == MAGIC


def next_sound(window: Window, offset: int) -> int:
    """The first position from `offset` on from which sound members run to the end of the file.

    The size of the file if there is none. Each byte is inflated once: when the members that
    begin at one candidate break off at some place, those before that place were part of them.
    """
    while True:
        candidate = _find_magic(window, offset)
        if candidate >= window.size:
            return window.size
        broken = _break_of_chain(window, candidate)
        if broken >= window.size:
            return candidate
        offset = max(broken, candidate + 1)


def _find_magic(window: Window, offset: int) -> int:
    while feed := window.read(offset, 1 << 20):
        found = feed.find(MAGIC)
        if found >= 0:
            return offset + found
        if len(feed) < len(MAGIC):
            break
        offset += len(feed) - len(MAGIC) + 1
    return window.size


def _break_of_chain(window: Window, offset: int) -> int:
    """Where the members that begin at `offset` break off; the size of the file if they do not."""
    while offset < window.size:
        end = _end_if_sound(window, offset)
        if end < 0:
            padding = zeros_end(window, offset)
            if padding == offset:
                return offset
            end = padding
        offset = end
    return offset


def _end_if_sound(window: Window, offset: int) -> int:
    inflater = decompressobj(31)
    position = offset
    while not inflater.eof:
        feed = window.read(position, _FEED)
        if not feed:
            return -1
        try:
            inflater.decompress(feed)
        except IsalError:
            return -1
        position += len(feed)
    return position - len(inflater.unused_data)
