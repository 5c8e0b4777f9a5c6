"""The responses that make up nearly all of an archive, to captures in one step.

Whatever is unusual about one, it is left to `sources.responses`, which would say the same.
"""

from __future__ import annotations

from hashlib import sha1

from dedupindex.capture import Capture, Covers, Evidence
from dedupindex.digest import CANONICAL, FROM_BASE32, Digest
from dedupindex.warc import http
from dedupindex.warc.record import Sound
from dedupindex.warc.record_facts import is_http_type

_PLAIN, _MEDIA_TYPES = http.PLAIN.match, http.MEDIA_TYPES
_SCHEMES = (b"http://", b"https://")
_LESS, _GREATER = b"<>"
_STATUSES = {b"%03d" % status: status for status in range(1000) if status != 206}
_MINUTES = frozenset(b"T%02d:%02d:" % divmod(minute, 60) for minute in range(24 * 60))
_SECONDS = frozenset(b"%02dZ" % second for second in range(61))
_days: set[bytes] = set()  # found in dates that were checked
_new = tuple.__new__
_RECORD, _BOTH = Evidence.RECORD, Covers.BOTH


class Usual:
    """Makes the captures of one container."""

    def __init__(self, container: str) -> None:
        self._container = container

    def learn_day(self, date: bytes) -> None:
        """Know the day of a date that was checked."""
        if len(_days) < 10000:
            _days.add(date[:10])

    def capture(self, record: Sound) -> Capture | None:
        """The capture that most responses are, None for all that need to be asked more.

        That is what is short, not chunked, not partial, and states a SHA-1 in base32 which is
        right. Nothing is refused here: `Responses.response` says the same of every record.
        """
        url, date, record_id, content_type, stated, _, _ = record.values
        data, stop = record.data, record.start + record.length
        assert data is not None
        match = _PLAIN(data, record.start, stop)
        if (
            match is None
            or stated[:5] != b"sha1:"
            or len(stated) != 37
            or not is_http_type(content_type)
            or not url.startswith(_SCHEMES)
            or date[:10] not in _days
            or date[10:17] not in _MINUTES
            or date[17:] not in _SECONDS
        ):
            return None
        at, (code, line) = match.end(), match.groups()
        raw = sha1(memoryview(data)[at:stop], usedforsecurity=False).digest()
        try:
            if raw != int(stated[5:].translate(FROM_BASE32), 32).to_bytes(20):
                return None
            if at == stop or record_id[0] != _LESS or record_id[-1] != _GREATER:
                return None
            if len(record_id) < 3:
                return None
            return _new(Capture, (
                _new(Digest, ("sha1", raw)), CANONICAL, url, date, _RECORD, _BOTH,
                _STATUSES[code], _MEDIA_TYPES[line], stop - at, False, record_id[1:-1],
                self._container, record.offset, b"", b"", (), "",
            ))  # fmt: skip
        except (KeyError, ValueError, IndexError):
            return None
