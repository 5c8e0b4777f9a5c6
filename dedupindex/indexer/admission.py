"""Which captures may become originals. Every refusal has a name that is counted.

Sources refuse what is no usable capture (no HTTP, truncated, digest that its payload
contradicts); this module applies what the user and the manual decide: status, media type, size,
and the rules that have no option: only the web has originals, the empty payload is none, and a
digest that was cut at a zero byte (`digest.CUT`) says of no payload which it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from dedupindex.cache import Cache
from dedupindex.capture import Capture, Evidence, Revisit, Rows
from dedupindex.digest import CANONICAL, CUT, CUT_DIGEST, EMPTY, Digest, is_cut
from dedupindex.errors import BadInput
from dedupindex.index.identity import Settings
from dedupindex.urlkey import is_http

_EMPTY = frozenset(digest.raw for digest in EMPTY)
_PLAIN = bytes(range(0x20, 0x7F))  # what any URL may hold
_NOT_WHOLE = {204: "empty", 205: "empty", 206: "partial", 304: "empty"}  # whatever is allowed
_ODD = re.compile(rb"[\x00-\x1f\x7f-\xff]")
_ANY = Capture(Digest("sha1", b"\1" * 20), CANONICAL, b"http://a/", b"", Evidence.ROW)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

Judge = Callable[[Capture], str]


def make_judge(*, mime: str, whitelist: bool, status: str, min_size: int) -> Judge:
    """A function from a capture to the reason of its refusal, "" for none.

    `mime` is a regular expression for whole-or-beginning matches as in the DeDuplicator's manual:
    what matches is refused, or with `whitelist` what does not. `status` is a comma-separated list
    (``200,203`` or ``2xx``). `min_size` counts payload bytes; a size that is not known passes.
    A status or media type that is not known passes only where a revisit names the original.
    """
    matches = _compile(mime or "(?!)").match  # no expression matches nothing
    allowed = statuses(status)
    verdicts = Cache[tuple[int, bytes], str]()

    def verdict(capture: Capture) -> str:
        """The verdict on status and media type, which few captures differ in."""
        named = capture.evidence == Evidence.NAMED
        if capture.status not in allowed and not (named and not capture.status):
            return "status"
        if capture.status in _NOT_WHOLE:
            return _NOT_WHOLE[capture.status]
        found = matches(capture.mime.decode("latin-1")) is not None
        if found is not whitelist and not (named and not capture.mime):
            return "mime"
        if not named:
            verdicts.keep((capture.status, capture.mime), "")
        return ""

    def judge(capture: Capture) -> str:
        reason = verdicts.get((capture.status, capture.mime))
        if reason is None:
            reason = verdict(capture)
        if reason:
            return reason
        if not is_http(capture.url):  # a page or tool might run what stands in it
            return "not-http"
        if capture.url.translate(None, _PLAIN) and _unspeakable(capture.url):
            return "bad-url"
        raw, size = capture.digest.raw, capture.size
        if raw in _EMPTY or (not size and not capture.size_of_record):
            return "empty"
        if is_cut(raw) or (capture.also and any(is_cut(other.raw) for other in capture.also)):
            return CUT_DIGEST
        if 0 <= size < min_size and not capture.size_of_record:
            return "too-small"
        return ""

    return judge


def reasons(judge: Judge, rows: Rows) -> list[str]:
    """What `judge` says of each row; it is asked once for each status and media type.

    Nothing else can tell plain rows apart but their digests: see `Rows`.
    """
    verdicts = {
        (status, mime): judge(_ANY._replace(status=status, mime=mime))
        for status, mime in set(rows.kinds)
    }
    found = list(map(verdicts.__getitem__, rows.kinds))
    if CUT in b"".join(rows.digests) or not _EMPTY.isdisjoint(rows.digests):
        pairs = zip(found, rows.digests, strict=True)
        return [reason or _without_payload(digest) for reason, digest in pairs]
    return found


def _without_payload(raw: bytes) -> str:
    """Return why a digest can be of no original, "" if it can."""
    if raw in _EMPTY:
        return "empty"
    return CUT_DIGEST if is_cut(raw) else ""


def _unspeakable(url: bytes) -> bool:
    """Whether a revisit could not name this URL to the letter, in a header line and in JSON."""
    odd = _ODD.search(url)
    if odd is None:
        return not url
    if odd[0] < b"\x80":
        return True
    try:
        return _CONTROL.search(url.decode()) is not None
    except UnicodeDecodeError:
        return True


def named_original(revisit: Revisit) -> Capture | None:
    """The capture that a revisit names as its original, None if it names none."""
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


def _compile(mime: str) -> re.Pattern[str]:
    try:
        return re.compile(mime, re.IGNORECASE)
    except re.error as error:
        raise BadInput(f"--mime {mime!r} is not a regular expression: {error}") from error


def statuses(text: str) -> frozenset[int]:
    """HTTP codes of ``200,203`` or ``2xx``; raises `BadInput`."""
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


# The admission filters that belong to the settings an index was built with.

_filters: dict[Settings, Judge] = {}  # one, unless the index is replaced


def admission_filter(settings: Settings) -> Judge:
    """Return the filter that decides which captures an index with these settings takes."""
    found = _filters.get(settings)
    if found is None:
        found = _filters[settings] = make_judge(
            mime=settings.mime,
            whitelist=settings.whitelist,
            status=settings.status,
            min_size=settings.min_size,
        )
    return found
