"""Which captures may become originals. Every refusal has a name that is counted.

Sources refuse what is no usable capture (no HTTP, truncated, digest that its payload
contradicts); this module applies what the user and the manual decide: status, media type, size,
and the one rule that has no option: the empty payload is never an original.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from dedupindex.capture import Capture, Evidence, Revisit
from dedupindex.digest import EMPTY
from dedupindex.errors import BadInput

_MIMES_KEPT = 10_000
_ODD = re.compile(rb"[\x00-\x1f\x7f-\xff]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

Judge = Callable[[Capture], str]


def make_judge(*, mime: str, whitelist: bool, status: str, min_size: int) -> Judge:
    """A function from a capture to the reason of its refusal, "" for none.

    `mime` is a regular expression for whole-or-beginning matches as in the DeDuplicator's manual:
    what matches is refused, or with `whitelist` what does not. `status` is a comma-separated list
    (``200,203`` or ``2xx``). `min_size` counts payload bytes; a size that is not known passes.
    A status or media type that is not known passes only where a revisit names the original.
    """
    matches = _compile(mime).match
    refused_mimes: dict[bytes, bool] = {}
    allowed = statuses(status)

    def judge(capture: Capture) -> str:
        named = capture.evidence == Evidence.NAMED
        if capture.status not in allowed and not (named and not capture.status):
            return "status"
        refused = refused_mimes.get(capture.mime)
        if refused is None:
            if len(refused_mimes) >= _MIMES_KEPT:
                refused_mimes.clear()
            found = matches(capture.mime.decode("latin-1")) is not None
            refused = refused_mimes[capture.mime] = found is not whitelist
        if refused and not (named and not capture.mime):
            return "mime"
        if _unspeakable(capture.url):
            return "bad-url"
        if capture.digest in EMPTY or not capture.size:
            return "empty"
        if 0 <= capture.size < min_size and not capture.size_of_record:
            return "too-small"
        return ""

    return judge


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
