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


# Media types that the web is made of, so that an entry can name one in a byte.

MIMES: tuple[bytes, ...] = tuple(
    b"""
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
""".split()
)

MIMES = (b"", *MIMES)
MIME_CODES = {mime: code for code, mime in enumerate(MIMES)}
