"""Parse and check the captures and counts that crawlers report, in JSON or a form."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Mapping
from typing import Any, NamedTuple

from dedupindex.cache import Cache
from dedupindex.capture import Capture, Covers, Evidence
from dedupindex.crawls.crawl import Crawl
from dedupindex.crawls.statistics_keys import MOST, NOT_REPORTED, StatisticsKind, key_of
from dedupindex.crawls.store import Reading, Writing
from dedupindex.digest import Digest, parse_spelled
from dedupindex.errors import BadInput
from dedupindex.timestamps import check_date
from dedupindex.urlkey import unbracket

NUMBERS = {"status": (3, 0), "size": (18, -1), "offset": (12, -1)}  # most digits, default
TEXTS = ("record_id", "container", "mime", "etag", "last_modified")
FIELDS = ("digest", "url", "url_base64", "date", *NUMBERS, *TEXTS, "also", "covers", "revisit")
REVISITS = ("identical-payload-digest", "server-not-modified")  # WARC 1.1 section 6.7
COVERS = {covers.name.lower(): covers for covers in Covers if covers}
_LONGEST = 4096  # bytes of a text other than a URL
_LONGEST_URL = 65_000
_MEDIA_TYPE = re.compile(r"[^\s;,\"]+")
_KNOWN = frozenset(FIELDS)
_mimes = Cache[str, bytes]()  # by media type as it is reported


def capture_of(given: Mapping[str, Any]) -> Capture:
    """Return the capture of a report; raises `BadInput`, which names the field.

    ``digest``, ``url`` (or ``url_base64``) and ``date`` are required. Numbers may be text. With
    ``revisit`` it is the capture of a revisit: its digest is that of its original.
    """
    if not given.keys() <= _KNOWN:
        name = next(name for name in given if name not in _KNOWN)
        raise BadInput(f"a capture has no field {name[:64]!r}; there are {', '.join(FIELDS)}")
    digest, spelling = parse_spelled(_text(given, "digest", needed=True))
    mime = _text(given, "mime")
    record_id = _text(given, "record_id").encode("utf-8", "replace")
    profile = _text(given, "revisit") if "revisit" in given else ""
    if profile and profile not in REVISITS:
        raise BadInput(f"revisit takes one of {', '.join(REVISITS)}")
    status = _number(given, "status")
    return Capture(
        digest=digest,
        spelling=spelling,
        url=_url(given),
        date=check_date(_text(given, "date", needed=True).encode()),
        evidence=Evidence.REVISIT if profile else Evidence.ROW,
        covers=_covers(given),
        status=304 if profile == "server-not-modified" else status,
        mime=_mimes.get(mime) or _mimes.keep(mime, _media_type(mime)),
        size=_number(given, "size"),
        record_id=unbracket(record_id),
        container=_text(given, "container"),
        offset=_number(given, "offset"),
        etag=_validator(given, "etag"),
        last_modified=_validator(given, "last_modified"),
        also=_also(given),
    )


def _media_type(text: str) -> bytes:
    match = _MEDIA_TYPE.match(text.strip())
    return match[0].lower().encode("utf-8", "replace") if match else b""


def _text(given: Mapping[str, Any], name: str, *, needed: bool = False) -> str:
    value = given.get(name)
    if value is None or value == "":
        if needed:
            raise BadInput(f"a capture needs {name}")
        return ""
    if not isinstance(value, str):
        raise BadInput(f"{name} must be a string")
    if len(value) > _LONGEST:
        raise BadInput(f"{name} has {len(value)} characters; {_LONGEST} are allowed")
    return value


def _validator(given: Mapping[str, Any], name: str) -> bytes:
    """Return a validator; nothing for one that is too long, for which no capture is refused."""
    value = given.get(name)
    if isinstance(value, str) and len(value) > _LONGEST:
        return b""
    return _text(given, name).encode("utf-8", "replace")


def _number(given: Mapping[str, Any], name: str) -> int:
    digits, none = NUMBERS[name]
    value = given.get(name)
    if type(value) is int and 0 <= value < 10**digits:
        return value
    if value is None or value == "":
        return none
    text = str(value) if type(value) in (int, str) else ""
    if not (text.isascii() and text.isdigit() and len(text) <= digits):
        raise BadInput(f"{name} must be a whole number of at most {digits} digits")
    return int(text)


def _url(given: Mapping[str, Any]) -> bytes:
    plain, encoded = given.get("url"), given.get("url_base64")
    if bool(plain) == bool(encoded):
        raise BadInput("a capture needs either url or url_base64")
    if not isinstance(plain or encoded, str):
        raise BadInput("url must be a string")
    try:
        url = plain.encode() if plain else b64decode(encoded, validate=True)  # type: ignore[arg-type]
    except ValueError as error:
        raise BadInput(f"the url cannot be read: {error}") from error
    if len(url) > _LONGEST_URL:
        raise BadInput(f"the url has {len(url)} bytes; {_LONGEST_URL} are allowed")
    return unbracket(url)


def _covers(given: Mapping[str, Any]) -> Covers:
    """Return which bytes the digest is of, where this differs within a crawl."""
    name = _text(given, "covers") if "covers" in given else ""
    if not name:
        return Covers.UNKNOWN
    if name not in COVERS:
        raise BadInput(f"covers takes one of {', '.join(COVERS)}")
    return COVERS[name]


def _also(given: Mapping[str, Any]) -> tuple[Digest, ...]:
    """Return digests of the same payload in other algorithms, from a list or text with commas."""
    value = given.get("also")
    if not value:
        return ()
    texts = value.split(",") if isinstance(value, str) else value
    if not isinstance(texts, list) or len(texts) > 8 or not all(isinstance(t, str) for t in texts):
        raise BadInput("also must be a list of digests")
    return tuple(Digest.parse(text) for text in texts)


# --- counts that only crawlers know: what they did not ask and could not report -----------------

_MOST_PROCESSES = 1000  # of one crawl


class SelfReport(NamedTuple):
    """What a crawl's own processes count; None if none has reported it."""

    not_looked_up: int | None = None
    not_reported: int | None = None
    answered_by_filter: int | None = None  # lookups that a digest filter answered, with misses
    left_out_by_rule: int | None = None  # responses that the crawler was told not to look up


NAMES = SelfReport._fields


def add_self_report(
    writing: Writing, crawl: Crawl, numbers: Mapping[str, int], who: str = ""
) -> None:
    """Store the counts, by `NAMES`, that the process `who` reports of a crawl.

    Those of a dropped crawl are ignored. Raises `BadInput` if too many processes report counts.
    """
    if not numbers or crawl.dropped:
        return
    key = key_of(crawl.number, StatisticsKind.SELF_REPORT, who.encode("utf-8", "surrogateescape"))
    reports = writing.statistics(key_of(crawl.number, StatisticsKind.SELF_REPORT))
    if writing.statistic(key) is None and sum(1 for _ in reports) >= _MOST_PROCESSES:
        raise BadInput(f"at most {_MOST_PROCESSES} processes of one crawl can report counts")
    writing.add(key, [min(numbers.get(name, NOT_REPORTED), MOST) for name in NAMES])


def self_report_of(reading: Reading, crawl: Crawl) -> SelfReport:
    """Return the sums of what the processes of a crawl have reported."""
    sums: list[int | None] = [None] * len(NAMES)
    for _, numbers in reading.statistics(key_of(crawl.number, StatisticsKind.SELF_REPORT)):
        for place, number in enumerate(numbers):
            if number != NOT_REPORTED:
                sums[place] = min((sums[place] or 0) + number, MOST)
    return SelfReport(*sums)
