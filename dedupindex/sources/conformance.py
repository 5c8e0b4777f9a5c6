"""What every source keeps to, as checks: for the tests of ours and of those that packages add."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from dedupindex.capture import (
    Capture,
    Covers,
    Evidence,
    Item,
    Problem,
    RefersTo,
    Refusal,
    Revisit,
    Rows,
)
from dedupindex.digest import SIZES, Digest, Spelling
from dedupindex.errors import BadDate
from dedupindex.sources.source import Source
from dedupindex.timestamps import check_date

_REASON = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_HASH = re.compile(r"[0-9a-f]{64}")
_MOST_BYTES = 1 << 63
_TYPES: dict[str, type] = {
    "url": bytes, "date": bytes, "evidence": Evidence, "covers": Covers, "status": int,
    "mime": bytes, "size": int, "size_of_record": bool, "record_id": bytes, "container": str,
    "offset": int, "etag": bytes, "last_modified": bytes, "also": tuple, "crawl": str,
}  # fmt: skip


class NotConforming(AssertionError):
    """What is wrong with a source, as the rest of a sentence about it or one of its items."""


def check_source(open_again: Callable[[], Source]) -> list[Item]:
    """Read a source in all ways; return its items.

    `open_again` opens it, each time with the same content. Raises `NotConforming`.
    """
    found, first = _read(open_again, lambda source: source.items())
    again, second = _read(open_again, lambda source: source.items())
    _demand(found == again, "yields other items when it is read again")
    _demand(first == second, "has another content hash when it is read again")
    batched, third = _read(open_again, _of_batches)
    _demand(Counter(found) == Counter(batched), "yields other items in batches")
    _demand(first == third, "has another content hash when it is read in batches")
    return found


def _read(
    open_again: Callable[[], Source], read: Callable[[Source], Iterator[Item]]
) -> tuple[list[Item], str]:
    found, position = [], 0
    with open_again() as source:
        _demand(isinstance(source.name, str) and source.name != "", "has no name")
        for item in read(source):
            check_item(item)
            found.append(item)
            _demand(source.position >= position, "has a position that goes back")
            position = source.position
        if source.size >= 0:
            ended = source.position == source.size
            _demand(ended, f"ends at {source.position:,} of {source.size:,} bytes")
        known = _HASH.fullmatch(source.content_hash) is not None
        _demand(known, f"has the content hash {source.content_hash!r}: no BLAKE3 in hex")
        _demand(not source.changed, "was changed while it was read")
        return found, source.content_hash


def _of_batches(source: Source) -> Iterator[Item]:
    for batch in source.batches():
        yield from batch.captures() if isinstance(batch, Rows) else batch


def check_item(item: Any) -> None:
    """Raise `NotConforming` unless this is a valid `Item`."""
    kind = type(item)  # what reads items asks for no subclass
    if kind is Capture:
        _check_capture(item)
        _demand(item.evidence != Evidence.REVISIT, "is a capture with the evidence of a revisit")
    elif kind is Revisit:
        _demand(isinstance(item.capture, Capture), "is a revisit without a capture")
        _check_capture(item.capture)
        if item.refers_to is not None:
            _check_refers_to(item.refers_to)
    elif kind is Refusal:
        known = isinstance(item.reason, str) and _REASON.fullmatch(item.reason) is not None
        _demand(known, f"is refused for {item.reason!r}: a reason is small letters with hyphens")
        if item.itself is not None:
            _demand(isinstance(item.itself, Capture), "has no capture in `itself`")
            _check_capture(item.itself)
    elif kind is Problem:
        known = tuple(map(type, item)) == (str, int, str)
        _demand(known, f"is a problem with {item!r}: its fields are str, int and str")
        _check_name(item.container)
    else:
        kinds = "Capture, Revisit, Refusal nor Problem"
        _demand(False, f"is neither {kinds}, but {kind.__name__}")


def _check_capture(capture: Capture) -> None:
    _check_digest(capture.digest)
    spelling = capture.spelling
    _demand(isinstance(spelling, Spelling), f"has the spelling {spelling!r}, which is no Spelling")
    for name, wanted in _TYPES.items():
        value = getattr(capture, name)
        _demand(
            isinstance(value, wanted), f"has the {name} {value!r}, which is no {wanted.__name__}"
        )
    _check_date(capture.date)
    _check_name(capture.container)
    _demand(capture.url != b"", "has no URL")
    _demand(0 <= capture.status <= 99999, f"has the status {capture.status}")
    for name in ("size", "offset"):
        value = getattr(capture, name)
        _demand(-1 <= value < _MOST_BYTES, f"has the {name} {value}: -1 is for what is not known")
    _demand(
        capture.mime == capture.mime.lower(), f"has the media type {capture.mime!r}: lower case"
    )
    for digest in capture.also:
        _check_digest(digest)


def _check_name(container: str) -> None:
    try:
        container.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise NotConforming(f"has the container {container!r}, which is no text") from error


def _check_refers_to(refers_to: RefersTo) -> None:
    known = isinstance(refers_to, RefersTo) and all(isinstance(text, bytes) for text in refers_to)
    _demand(known, f"refers to {refers_to!r}: a RefersTo is of bytes")
    _check_date(refers_to.date)


def _check_digest(digest: Digest) -> None:
    known = (
        isinstance(digest, Digest)
        and isinstance(digest.raw, bytes)
        and SIZES.get(digest.algorithm) == len(digest.raw)
    )
    _demand(known, f"has the digest {digest!r}: a Digest has as many bytes as its algorithm")


def _check_date(date: bytes) -> None:
    try:
        check_date(date)
    except BadDate as error:
        raise NotConforming(f"has the date {date!r}: {error}") from error


def _demand(holds: bool, what: str) -> None:
    if not holds:
        raise NotConforming(what)
