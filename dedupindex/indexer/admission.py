"""Which captures may become originals. Every refusal has a reason, which is counted.

Sources refuse what is no usable capture (no HTTP, truncated, a digest that the payload
contradicts). This module applies the settings of an index (status, media type, size) and three
rules without a setting: only http and https URLs have originals, the empty payload is none, and a
digest cut at a zero byte (`digest.CUT`) may be that of several payloads.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from dedupindex.cache import Cache
from dedupindex.capture import Capture, Evidence, Revisit, Rows
from dedupindex.digest import CANONICAL, CUT, CUT_DIGEST, EMPTY, Digest, is_cut
from dedupindex.errors import BadInput
from dedupindex.index.identity import Settings
from dedupindex.indexer.encode_rows import CaptureColumns
from dedupindex.urlkey import is_http

_EMPTY = frozenset(digest.raw for digest in EMPTY)
_PRINTABLE = bytes(range(0x20, 0x7F))
_NEVER_WHOLE = {204: "empty", 205: "empty", 206: "partial", 304: "empty"}  # whatever is allowed
_UNUSUAL = re.compile(rb"[\x00-\x1f\x7f-\xff]")
_SCHEMES = (b"http://", b"https://")
_SAMPLE = Capture(Digest("sha1", b"\1" * 20), CANONICAL, b"http://a/", b"", Evidence.ROW)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

AdmissionFilter = Callable[[Capture], str]


@lru_cache(4)
def admission_filter(settings: Settings) -> AdmissionFilter:
    """Return a function from a capture to the reason of its refusal, "" for none.

    `settings.mime` is a regular expression for the beginning of the media type: what matches is
    refused, or with `whitelist` what does not. An unknown status or media type passes only if a
    revisit names the original; an unknown size always passes. Raises `BadInput`.
    """
    try:  # no expression matches nothing
        matches = re.compile(settings.mime or "(?!)", re.IGNORECASE).match
    except re.error as error:
        raise BadInput(f"--mime {settings.mime!r} is not a regular expression: {error}") from error
    whitelist, min_size = settings.whitelist, settings.min_size
    allowed = statuses(settings.status)
    cached = Cache[tuple[int, bytes], str]()  # admitted pairs of status and media type

    def refuse_kind(capture: Capture) -> str:
        named = capture.evidence == Evidence.NAMED
        if capture.status not in allowed and not (named and not capture.status):
            return "status"
        if capture.status in _NEVER_WHOLE:
            return _NEVER_WHOLE[capture.status]
        found = matches(capture.mime.decode("latin-1")) is not None
        if found is not whitelist and not (named and not capture.mime):
            return "mime"
        if not named:
            cached.keep((capture.status, capture.mime), "")
        return ""

    def refuse(capture: Capture) -> str:
        reason = cached.get((capture.status, capture.mime))
        if reason is None:
            reason = refuse_kind(capture)
        if reason:
            return reason
        if not is_http(capture.url):  # a page or tool might execute it
            return "not-http"
        if capture.url.translate(None, _PRINTABLE) and _is_unwritable(capture.url):
            return "bad-url"
        raw, size = capture.digest.raw, capture.size
        if raw in _EMPTY or (not size and not capture.size_of_record):
            return "empty"
        if is_cut(raw) or (capture.also and any(is_cut(other.raw) for other in capture.also)):
            return CUT_DIGEST
        if 0 <= size < min_size and not capture.size_of_record:
            return "too-small"
        return ""

    return refuse


def reasons(refuse: AdmissionFilter, rows: Rows) -> list[str]:
    """Return what `refuse` returns for each row, "" for none.

    `Rows` differ only in status, media type and digest, so it is called once for each such kind.
    """
    verdicts = {
        (status, mime): refuse(_SAMPLE._replace(status=status, mime=mime))
        for status, mime in set(rows.kinds)
    }
    found = list(map(verdicts.__getitem__, rows.kinds))
    if CUT in b"".join(rows.digests) or not _EMPTY.isdisjoint(rows.digests):
        for index, raw in enumerate(rows.digests):
            if not found[index] and (raw in _EMPTY or is_cut(raw)):
                found[index] = "empty" if raw in _EMPTY else CUT_DIGEST
    return found


def admits_all(refuse: AdmissionFilter, captures: CaptureColumns) -> bool:
    """Return whether `refuse` certainly refuses none of these captures.

    What it decides by is compared for the whole batch; it is called once for each pair of status
    and media type, with the smallest size.
    """
    digests = [digest.raw for digest in captures.digests]
    if (
        not all([url.startswith(_SCHEMES) for url in captures.urls])
        or b"".join(captures.urls).translate(None, _PRINTABLE)
        or CUT in b"".join(digests)
        or not _EMPTY.isdisjoint(digests)
        or any(captures.also)
    ):
        return False
    sample = _SAMPLE._replace(size=min(captures.sizes))
    kinds = set(zip(captures.statuses, captures.mimes, strict=True))
    return not any([refuse(sample._replace(status=status, mime=mime)) for status, mime in kinds])


def _is_unwritable(url: bytes) -> bool:
    """Return whether a URL cannot be written exactly in a header line or in JSON."""
    unusual = _UNUSUAL.search(url)
    if unusual is None:
        return not url
    if unusual[0] < b"\x80":
        return True
    try:
        return _CONTROL.search(url.decode()) is not None
    except UnicodeDecodeError:
        return True


def named_original(revisit: Revisit) -> Capture | None:
    """Return the capture that a revisit names as its original, None if it names none."""
    refers_to, itself = revisit.refers_to, revisit.capture
    if refers_to is None:
        return None
    return Capture(
        digest=itself.digest,
        spelling=itself.spelling,
        url=refers_to.url,
        date=refers_to.date,
        evidence=Evidence.NAMED,
        status=itself.status,
        mime=itself.mime,
        record_id=refers_to.record_id,
    )


def as_response(revisit: Revisit) -> Capture:
    """Return the response that a revisit stands for, so that it can be admitted or refused.

    The status of a 304 is not that of the payload.
    """
    itself = revisit.capture
    status = 0 if itself.status == 304 else itself.status
    return itself._replace(evidence=Evidence.NAMED, status=status)


def statuses(text: str) -> frozenset[int]:
    """Return the HTTP status codes of a list like ``200,203`` or ``2xx``; raises `BadInput`."""
    allowed: set[int] = set()
    for part in text.split(","):
        part = part.strip().lower()
        if re.fullmatch(r"[1-5]\d\d", part):
            allowed.add(int(part))
        elif re.fullmatch(r"[1-5]xx", part):
            allowed.update(range(int(part[0]) * 100, int(part[0]) * 100 + 100))
        else:
            raise BadInput(f"--status takes codes such as 200 or 2xx, not {part!r}")
    return frozenset(allowed)
