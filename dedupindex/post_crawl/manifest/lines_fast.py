"""Fast path: the lines of usual responses, see `record_facts.FastFacts`."""

from __future__ import annotations

from blake3 import blake3
from xxhash import xxh64_intdigest

from dedupindex.post_crawl.manifest.lines import Line, header_hash
from dedupindex.post_crawl.manifest.record_lines import LINE_VERSIONS, ManifestOptions
from dedupindex.timestamps import digits_of_date
from dedupindex.urlkey import urlkey
from dedupindex.warc import http
from dedupindex.warc.record import Sound
from dedupindex.warc.record_facts import FastFacts

_STATUSES = {*range(200, 300), *range(400, 600)} - {204, 206}
_new = tuple.__new__
_LONG = 1 << 16  # bytes of a header that has no surprises


class FastLines:
    """Makes the lines of one container."""

    def __init__(self, container: int, options: ManifestOptions) -> None:
        self._container = container
        self._able = not options.force
        self._date = self._digits = b""  # the last date, and its 14 digits
        self._read = FastFacts(_STATUSES, options.algorithm).read

    def line(self, record: Sound) -> Line | None:
        """Return the line of a response; None if `Judge.line` must read it, which returns the same.

        The record is of WARC 1.0 or 1.1 and of a status that has a body: it may become a revisit,
        and be an original.
        """
        data, start = record.data, record.start
        if not self._able or data is None or not data.startswith(LINE_VERSIONS) or start > _LONG:
            return None
        facts = self._read(record)
        if facts is None:
            return None
        digest, _, covers, status, _, body = facts
        head = data[start : start + record.length - len(body)]
        codings, content_type = http.codings(head), http.content_types(head)
        if len(codings) + len(content_type) > _LONG:
            return None
        url, date, record_id, _, stated, _, _ = record.values
        if date != self._date:
            self._date, self._digits = date, digits_of_date(date)
        moment = xxh64_intdigest(urlkey(url) + self._digits)
        return _new(Line, (
            self._container, record.offset, record.stored, record_id[1:-1], url, date, stated,
            digest.raw, int(covers), blake3(body).digest(), len(body), status, codings,
            content_type, moment, "", "", header_hash(head),
        ))  # fmt: skip
