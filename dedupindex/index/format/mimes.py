"""Media types that the web is made of, so that an entry can name one in a byte.

Part of the index format: new types are only ever appended, and none moves. Place 0 is "unknown".
"""

from __future__ import annotations

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
