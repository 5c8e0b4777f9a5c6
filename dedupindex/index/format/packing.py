"""URLs in fewer bytes: most of what an index stores is URLs.

Four out of five characters of real URLs are lower-case letters, digits and a few marks. Those
take six bits each instead of eight; a capital takes two sixes (a shift, then its letter). The
common beginnings take no room at all. What does not get smaller so is kept as it is.

    packed URL = code byte, rest
    code byte  = beginning (bits 0-2, index into BEGINNINGS) | 8 if the rest is sixes
"""

from __future__ import annotations

import re
from binascii import a2b_base64, b2a_base64

BEGINNINGS = (b"", b"http://", b"https://", b"http://www.", b"https://www.")

SIXES = 8  # in the code byte; such a URL is ASCII without quotes, backslashes and controls

_SHIFT, _FILL = b"^", b"\0"
_SIXES = b"abcdefghijklmnopqrstuvwxyz0123456789/.-_?=&%:+,~()!@;#*$'[]|^<>\0"
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_TO_BASE64 = bytes.maketrans(_SIXES, _BASE64)
_FROM_BASE64 = bytes.maketrans(_BASE64, _SIXES)
_CAPITALS = re.compile(rb"(?=[A-Z])")
_SHIFTED = re.compile(rb"\^(.)", re.DOTALL)
_PACKABLE = _SIXES[:-1].replace(_SHIFT, b"")


def pack(url: bytes) -> bytes:
    """The shorter form; `unpack` gives back the same bytes, whatever they are."""
    if url[:7] == b"http://":
        beginning, rest = (3, url[11:]) if url[7:11] == b"www." else (1, url[7:])
    elif url[:8] == b"https://":
        beginning, rest = (4, url[12:]) if url[8:12] == b"www." else (2, url[8:])
    else:
        beginning, rest = 0, url
    if rest.translate(None, _PACKABLE):
        shifted = _SHIFT.join(_CAPITALS.split(rest)).lower()
        if len(shifted) * 3 >= len(rest) * 4 or b"^" in rest:
            return _CODE[beginning] + rest
        if shifted.translate(None, _PACKABLE + _SHIFT):
            return _CODE[beginning] + rest
        rest = shifted
    over = len(rest) & 3
    if not over:
        return _CODE[beginning | SIXES] + a2b_base64(rest.translate(_TO_BASE64))
    packed = a2b_base64(rest.translate(_TO_BASE64) + _PADDING[over])
    return _CODE[beginning | SIXES] + packed[: _SPARE[over]]


def unpack(packed: bytes) -> bytes:
    """The exact URL that `pack` was given."""
    code = packed[0]
    if not code & SIXES:
        return BEGINNINGS[code] + packed[1:]
    sixes = b2a_base64(packed[1:] + _MISSING[len(packed) % 3])
    rest = sixes.translate(_FROM_BASE64).rstrip(_FILL_AND_NEWLINE)
    if 94 in rest:  # a shift; sought as a number, because that takes a tenth of the time
        rest = _SHIFTED.sub(lambda match: match[1].upper(), rest)
    return BEGINNINGS[code & 7] + rest


_CODE = [bytes([code]) for code in range(16)]
_PADDING = (b"", b"///", b"//", b"/")  # the fill in base64: up to four sixes, which are three bytes
_MISSING = (b"\xff", b"", b"\xff\xff")  # of a packed URL's last three bytes, by its length
_FILL_AND_NEWLINE = _FILL + b"\n"  # what base64 ends with; no six is a newline
_SPARE = (None, -2, -1, None)  # bytes of the padding that need not be kept
