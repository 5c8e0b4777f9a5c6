"""Pack URLs into fewer bytes, and media types into one: most of an index is URLs.

Four out of five characters of real URLs are lower-case letters, digits and some punctuation. They
take six bits; a capital takes twelve (a shift, then its letter). Common beginnings are part of the
code byte. A URL that would not get shorter is stored as it is.

    packed URL = code byte, rest
    code byte  = beginning (bits 0-2, index into BEGINNINGS) | 8 if the rest is in six bits
"""

from __future__ import annotations

import re
from binascii import a2b_base64, b2a_base64

BEGINNINGS = (b"", b"http://", b"https://", b"http://www.", b"https://www.")

SIXES = 8  # flag of the code byte; such a URL is ASCII without quotes, backslashes and controls

_SHIFT, _FILL = b"^", b"\0"
_SIXES = b"abcdefghijklmnopqrstuvwxyz0123456789/.-_?=&%:+,~()!@;#*$'[]|^<>\0"
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_TO_BASE64 = bytes.maketrans(_SIXES, _BASE64)
_FROM_BASE64 = bytes.maketrans(_BASE64, _SIXES)
_CAPITALS = re.compile(rb"(?=[A-Z])")
_SHIFTED = re.compile(rb"\^(.)", re.DOTALL)
_PACKABLE = _SIXES[:-1].replace(_SHIFT, b"")


def pack(url: bytes) -> bytes:
    """Return the packed form of a URL; any bytes can be packed."""
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
    """Return the exact URL that `pack` was given."""
    code = packed[0]
    if not code & SIXES:
        return BEGINNINGS[code] + packed[1:]
    sixes = b2a_base64(packed[1:] + _MISSING[len(packed) % 3])
    rest = sixes.translate(_FROM_BASE64).rstrip(_FILL_AND_NEWLINE)
    if 94 in rest:  # a shift; looking for a number takes a tenth of the time
        rest = _SHIFTED.sub(lambda match: match[1].upper(), rest)
    return BEGINNINGS[code & 7] + rest


_CODE = [bytes([code]) for code in range(16)]
_PADDING = (b"", b"///", b"//", b"/")  # base64 of the fill, to a multiple of four characters
_MISSING = (b"\xff", b"", b"\xff\xff")  # bytes missing to a multiple of three, by length modulo 3
_FILL_AND_NEWLINE = _FILL + b"\n"  # the end of decoded base64; no six-bit character is a newline
_SPARE = (None, -2, -1, None)  # end of the slice without the padding's bytes

# The common media types: an entry stores the index of one in a byte; 0 is unknown.
MIMES: tuple[bytes, ...] = (
    b"",
    *b"""
text/html image/jpeg image/png image/gif application/javascript text/css text/javascript
application/json application/x-javascript image/svg+xml text/plain application/pdf image/webp
font/woff2 font/woff application/font-woff application/font-woff2 application/xhtml+xml
application/xml text/xml application/rss+xml application/atom+xml image/x-icon
image/vnd.microsoft.icon application/octet-stream application/x-shockwave-flash video/mp4
audio/mpeg application/zip application/msword application/vnd.ms-excel
application/vnd.ms-powerpoint
application/vnd.openxmlformats-officedocument.wordprocessingml.document
application/vnd.openxmlformats-officedocument.spreadsheetml.sheet
application/vnd.openxmlformats-officedocument.presentationml.presentation
font/ttf font/otf application/x-font-ttf application/x-font-woff application/x-font-otf
application/vnd.ms-fontobject image/bmp image/tiff image/avif image/pjpeg image/jpg
video/webm video/quicktime video/x-flv video/mpeg video/mp2t video/x-msvideo video/x-ms-wmv
audio/mp4 audio/ogg audio/wav audio/x-wav audio/aac audio/webm audio/x-mpegurl
application/vnd.apple.mpegurl application/x-mpegurl application/dash+xml
application/x-gzip application/gzip application/x-tar application/x-bzip2 application/x-rar
application/x-rar-compressed application/x-7z-compressed application/java-archive
application/x-zip-compressed application/rtf application/postscript application/epub+zip
application/ld+json application/manifest+json application/geo+json application/rdf+xml
application/x-www-form-urlencoded application/x-msdownload application/x-httpd-php
application/vnd.oasis.opendocument.text application/vnd.oasis.opendocument.spreadsheet
application/vnd.oasis.opendocument.presentation application/wasm text/calendar text/csv
text/vcard text/x-vcard text/rtf text/markdown text/x-component text/vtt text/dns
application/opensearchdescription+xml application/text application/force-download
binary/octet-stream multipart/form-data application/soap+xml application/graphql
application/x-protobuf application/download application/unknown unknown/unknown image/apng
image/heic image/jxl model/gltf-binary application/vnd.google-earth.kml+xml
application/vnd.google-earth.kmz application/x-java-archive application/x-sh
application/x-bittorrent application/pgp-signature application/pkix-cert application/ecmascript
text/ecmascript text/x-json text/json application/x-json application/vnd.api+json
""".split(),
)
MIME_CODES = {mime: code for code, mime in enumerate(MIMES)}
