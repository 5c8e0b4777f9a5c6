"""Fast path: the captures of usual responses, see `record_facts.FastFacts`."""

from __future__ import annotations

from dedupindex.capture import Capture, Evidence
from dedupindex.warc.record import Record
from dedupindex.warc.record_facts import FastFacts

_STATUSES = [status for status in range(1000) if status != 206]
_new = tuple.__new__
_RECORD = Evidence.RECORD


class FastCaptures:
    """Makes the captures of one container."""

    def __init__(self, container: str) -> None:
        self._container = container
        self._read = FastFacts(_STATUSES).read

    def capture(self, record: Record) -> Capture | None:
        """Return the capture of a response; None if `Responses.response` must read it.

        Nothing is refused here. `Responses.response` returns the same for every record.
        """
        facts = self._read(record)
        if facts is None:
            return None
        digest, spelling, covers, status, mime, body = facts
        url, date, record_id, _, _, _, _ = record.values
        return _new(Capture, (
            digest, spelling, url, date, _RECORD, covers, status, mime,
            len(body), False, record_id[1:-1],
            self._container, record.offset, b"", b"", (), "",
        ))  # fmt: skip
