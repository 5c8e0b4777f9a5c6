"""The last capture of a URL, and the conditions on which a crawler need not fetch it again.

A 304 (RFC 9110 section 15.4.5) says that the response which had these validators is still the
current one. The crawler then writes a revisit of profile server-not-modified (WARC 1.1 section
6.7.3), whose payload is that of the original. So the conditions are made as follows:

* They are of the exact URL: a validator says nothing of another one (RFC 9110 section 8.8).
* They are those that the server stated when it answered last, to the letter, never a date that was
  made up. Of an earlier answer they are used only if the last one was a revisit of the same payload
  and stated none. An earlier Last-Modified is not safe: if a page was changed and changed back,
  some servers answer 304 to a date that is later than theirs, whatever they serve.
* A validator that the URL has stated for two payloads has lied, and is not used again.
* A Last-Modified must be older than the answer (`_SETTLED`). A resource may change twice in a
  second, or while it is sent (RFC 9110 section 8.8.2.2).
* There are none without an original that a lookup of the payload with the strategy EXACT_URL would
  answer. So policies, namespaces and purges apply, and a revisit has something to refer to. If the
  URL was only stored as a revisit of another one, there is none: a revisit for a 304 has the
  payload of the record "from which a Last-Modified or ETag value was taken", and that one is a
  revisit, which nothing may refer to. The record of the other URL has other HTTP headers, which
  replay shows if the block of the revisit is empty, as Heritrix writes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

from dedupindex.capture import Capture, Uncommitted
from dedupindex.digest import CANONICAL, Digest, Spelling
from dedupindex.errors import BadQuery, StrategyUnavailable
from dedupindex.index.engine import Finder
from dedupindex.index.format.visits import Visit, url_prefix, urlkey_prefix
from dedupindex.index.identity import Settings
from dedupindex.lookup.decide import Query, Strategy, decide, require_strategy
from dedupindex.lookup.render_json import header_lines, original_as_json, url_as_json
from dedupindex.timestamps import seconds
from dedupindex.urlkey import urlkey

_SETTLED = 60  # seconds between Last-Modified and the capture, of which the clocks may differ
_ETAG = re.compile(rb'(?:W/)?"[\x21\x23-\x7e]*"')  # RFC 9110 section 8.8.3, without obs-text
_HTTP_DATE = re.compile(  # RFC 9110 section 5.6.7, IMF-fixdate
    rb"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d (?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) "
    rb"\d{4} \d\d:\d\d:\d\d GMT"
)


class LastCapture(NamedTuple):
    """The last capture of a URL that an index knows."""

    visit: Visit
    etag: bytes  # as it was stated last for this payload
    last_modified: bytes
    original: Capture | None  # of a revisit, if the URL has not changed
    conditions: dict[str, str]  # header fields of the request; empty: fetch it in full


def require_visits(settings: Settings, query: Query) -> None:
    """Raise `StrategyUnavailable` or `BadQuery` if an index cannot answer a query for a URL."""
    if not query.url:
        raise BadQuery("the last capture of what? give a url")
    if query.strategy is Strategy.DIGEST_ANY:
        raise BadQuery("the strategy is EXACT_URL or CANONICAL_URL")
    require_strategy(settings, query.strategy)
    if not settings.etag:
        raise StrategyUnavailable(
            "this index does not keep what URLs answered last: it was built without --etag; "
            "bin/index --etag builds one that does"
        )


def prefix_of(settings: Settings, query: Query) -> bytes:
    """Return what the URL parts of the keys of the visits begin with that `query` asks for."""
    if query.strategy is Strategy.CANONICAL_URL:
        return urlkey_prefix(urlkey(query.url))
    return url_prefix(settings.keys(), query.url)


def last_capture(
    bodies: Iterable[bytes], view: Finder, settings: Settings, query: Query
) -> LastCapture | None:
    """Return the last capture of the URL of a query, None if no visit among `bodies` is of it.

    `query` needs no digest. Raises as `decide`, and `Damaged` for a visit that cannot be read.
    """
    visits = list(_of_url(bodies, query))
    if not visits:
        return None
    visit = max(
        visits, key=lambda item: (item.date, item.url, bool(item.etag + item.last_modified))
    )
    etag, modified = _validators(visit, visits)
    last = LastCapture(visit, etag, modified, None, {})
    at_once = {other.digest for other in visits if other.date == visit.date}
    if not (200 <= visit.status <= 299 or visit.status in (0, 304)) or len(at_once) > 1:
        return last
    asked = query._replace(
        digest=visit.digest,
        url=visit.url,
        strategy=Strategy.EXACT_URL,
        accepts=lambda capture: (
            not isinstance(capture, Uncommitted) or capture.crawl == query.crawl
        ),
    )
    answer = decide(view, settings, asked).answer
    if answer is None:
        return last
    original = answer.original
    rules = query.policy.rules_for(visit.url, query.mime)
    if visit.url != query.url or rules.distrusts_validators(original):
        return last._replace(original=original)
    others = [other for other in visits if _is_other_payload(other, visit)]
    etag = b"" if any(opaque(other.etag) == opaque(etag) for other in others) else etag
    modified = b"" if any(other.last_modified == modified for other in others) else modified
    return last._replace(original=original, conditions=_conditions(visit, etag, modified))


def _of_url(bodies: Iterable[bytes], query: Query) -> Iterator[Visit]:
    canonical = query.strategy is Strategy.CANONICAL_URL
    key = urlkey(query.url) if canonical else b""
    for body in bodies:
        visit = Visit.parse(body)
        if visit.url == query.url or (canonical and urlkey(visit.url) == key):
            yield visit


def _validators(visit: Visit, visits: list[Visit]) -> tuple[bytes, bytes]:
    """Return the validators of the last visit, or those that a revisit leaves as they were."""
    if visit.etag or visit.last_modified or not visit.revisit:
        return visit.etag, visit.last_modified
    alike = [
        other
        for other in visits
        if (other.url, other.digest) == (visit.url, visit.digest)
        and (other.etag or other.last_modified)
    ]
    before = max(alike, key=lambda other: other.date, default=visit)
    return before.etag, before.last_modified


def _is_other_payload(other: Visit, visit: Visit) -> bool:
    same = other.digest == visit.digest
    return other.url == visit.url and not same and other.digest.algorithm == visit.digest.algorithm


def opaque(etag: bytes) -> bytes:
    """Return what is compared of an ETag: a weak one equals the strong one (RFC 9110)."""
    return etag.removeprefix(b"W/")


def _conditions(visit: Visit, etag: bytes, modified: bytes) -> dict[str, str]:
    """Return If-None-Match and If-Modified-Since, each only if it is safe."""
    found: dict[str, str] = {}
    if _ETAG.fullmatch(etag):
        found["If-None-Match"] = etag.decode("ascii")
    if _HTTP_DATE.fullmatch(modified) and _settled(modified, visit.date):
        found["If-Modified-Since"] = modified.decode("ascii")
    return found


def why_in_full(last: LastCapture) -> str:
    """Return why there are no conditions for the next request of a URL."""
    if last.original is None:
        return "its last answer has no original that a revisit could refer to"
    if not last.etag and not last.last_modified:
        return "it stated neither ETag nor Last-Modified"
    modified = last.last_modified
    if not last.etag and _HTTP_DATE.fullmatch(modified) and not _settled(modified, last.visit.date):
        return (
            f"Last-Modified is less than {_SETTLED} s before the capture: it may have changed since"
        )
    return "its validators are malformed, of two payloads or another URL, or distrusted by policy"


def _settled(modified: bytes, captured: bytes) -> bool:
    try:
        stated = parsedate_to_datetime(modified.decode("ascii")).timestamp()
    except ValueError:  # there is no such day
        return False
    return seconds(captured) - stated >= _SETTLED


def _labelled(digest: Digest, spelling: Spelling) -> str:
    """Return a digest as a WARC record states it, with its algorithm, which rows leave out."""
    return digest.spelled(spelling if spelling.label else CANONICAL)


def last_as_json(last: LastCapture | None) -> dict[str, Any]:
    """Return the JSON object of ``GET /last``."""
    if last is None:
        return {"known": False}
    visit = last.visit
    stored = last.original
    spelling = CANONICAL if stored is None else stored.spelling
    return {
        "known": True,
        **url_as_json(visit.url),
        "date": visit.date.decode(),
        "digest": _labelled(visit.digest, spelling),
        "status": visit.status or None,
        "revisit": visit.revisit,
        "etag": last.etag.decode("latin-1") or None,
        "last_modified": last.last_modified.decode("latin-1") or None,
        "original": None if stored is None else original_as_json(stored),
        "conditions": last.conditions,
    }


def last_as_lines(last: LastCapture | None) -> bytes:
    """Return the conditions as header lines, and those of the revisit on a 304; CRLF.

    Empty: fetch the URL in full. Raises `Damaged` as `header_lines`.
    """
    if last is None or last.original is None or not last.conditions:
        return b""
    original = last.original
    conditions = "".join(f"{name}: {value}\r\n" for name, value in last.conditions.items())
    digest = _labelled(original.digest, original.spelling)
    lines = [conditions, f"WARC-Payload-Digest: {digest}\r\n"]
    if original.mime.isascii() and original.mime.decode().isprintable() and original.mime:
        lines.append(f"Dedup-Original-Type: {original.mime.decode()}\r\n")
    if original.size >= 0 and not original.size_of_record:
        lines.append(f"Dedup-Original-Size: {original.size}\r\n")
    return "".join(lines).encode("ascii") + header_lines(original)
