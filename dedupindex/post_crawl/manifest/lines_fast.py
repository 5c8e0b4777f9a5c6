"""The responses that make up nearly all of an archive, to lines in one step.

Whatever is unusual about one is left to `manifest.judge`, which would say the same.
"""

from __future__ import annotations

from hashlib import sha1

from blake3 import blake3
from xxhash import xxh64_intdigest

from dedupindex.capture import Covers
from dedupindex.digest import FROM_BASE32
from dedupindex.post_crawl.manifest.lines import Line, header_hash
from dedupindex.post_crawl.manifest.record_lines import LINE_VERSIONS, ManifestOptions
from dedupindex.timestamps import digits_of_date
from dedupindex.urlkey import urlkey
from dedupindex.warc import http
from dedupindex.warc.record import Sound
from dedupindex.warc.record_facts import Refused, checked, is_http_type

_PLAIN = http.PLAIN.match
_CHUNKED = b"chunked"
_SCHEMES = (b"http://", b"https://")
_LESS, _GREATER = b"<>"
_STATUSES = {
    b"%03d" % status: status for status in range(200, 600) if status // 100 != 3 and status != 206
}
del _STATUSES[b"204"]
_new = tuple.__new__
_STORED, _ENTITY, _BOTH = int(Covers.STORED), int(Covers.ENTITY), int(Covers.BOTH)
_LONG = 1 << 16  # bytes of a header that has no surprises


class Usual:
    """Makes the lines of one container."""

    def __init__(self, container: int, options: ManifestOptions) -> None:
        self._container = container
        self._able = options.algorithm == "sha1" and not options.force
        self._date = b""  # the last that was checked
        self._digits = b""  # of it
        self._entities = True  # whether the last digest of a chunked body was of its entity

    def line(self, record: Sound) -> Line | None:
        """The line of a response without surprises, None for one that needs to be asked more.

        That is one of WARC 1.0 or 1.1, whole and not empty, that states a SHA-1 in base32 which is
        right, of a status that has a body. It may become a revisit, and be an original.
        """
        url, date, record_id, content_type, stated, _, _ = record.values
        data, start = record.data, record.start
        stop = start + record.length
        if (
            not self._able
            or data is None
            or stated[:5] != b"sha1:"
            or len(stated) != 37
            or not data.startswith(LINE_VERSIONS)
            or not is_http_type(content_type)
            or not url.startswith(_SCHEMES)
            or not (date == self._date or self._is_date(date))
        ):
            return None
        try:
            if record_id[0] != _LESS or record_id[-1] != _GREATER or len(record_id) < 3:
                return None
            raw = int(stated[5:].translate(FROM_BASE32), 32).to_bytes(20)
            match = _PLAIN(data, start, stop)
            if match is None:
                return self._chunked(record, raw)
            at, status = match.end(), _STATUSES[match[1]]
        except (KeyError, ValueError, IndexError):
            return None
        body = memoryview(data)[at:stop]
        if at == stop or sha1(body, usedforsecurity=False).digest() != raw:
            return None
        return self._made(record, raw, _BOTH, body, status, data[start:at])

    def _chunked(self, record: Sound, raw: bytes) -> Line | None:
        """The tool that wrote a file always hashes the same bytes, either as stored or the entity.

        So one hash is enough for nearly all of them.
        """
        data, stop = record.data, record.start + record.length
        assert data is not None
        if not data.startswith(b"HTTP/", record.start):
            return None
        answer = http.parse(data, record.start, stop)
        if answer is None or answer.coding != _CHUNKED or answer.partial:
            return None
        status = _STATUSES[b"%03d" % answer.status]
        pieces = http.plain_chunks(data, answer.body, stop)
        if not pieces:
            return None
        body = memoryview(data)[answer.body : stop]
        running = sha1(usedforsecurity=False)
        for piece in pieces if self._entities else [body]:
            running.update(piece)
        if running.digest() != raw:
            self._entities = not self._entities
            return None
        covers = _ENTITY if self._entities else _STORED
        return self._made(record, raw, covers, body, status, answer.head)

    def _made(
        self, record: Sound, raw: bytes, covers: int, body: memoryview, status: int, head: bytes
    ) -> Line | None:
        url, date, record_id, _, stated, _, _ = record.values
        codings, content_type = http.codings(head), http.content_types(head)
        if record.start > _LONG or len(codings) + len(content_type) > _LONG:
            return None
        moment = xxh64_intdigest(urlkey(url) + self._digits)
        return _new(Line, (
            self._container, record.offset, record.stored, record_id[1:-1], url, date, stated, raw,
            covers, blake3(body).digest(), len(body), status, codings,
            content_type, moment, "", "", header_hash(head),
        ))  # fmt: skip

    def _is_date(self, date: bytes) -> bool:
        try:
            self._date = checked(date)
        except Refused:
            return False
        self._digits = digits_of_date(date)
        return True
