"""A document as relations see it: metadata, and the shingles of its text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b

from dedupindex.expression.tree import OperandKind, Vocabulary

ATTRIBUTES = {
    "url": OperandKind.TEXT,
    "hostname": OperandKind.TEXT,
    "mime": OperandKind.TEXT,
    "title": OperandKind.TEXT,
    "timestamp": OperandKind.TIME,
    "status": OperandKind.NUMBER,
    "size": OperandKind.NUMBER,
}
MEASURES = ("containment", "jaccard", "dice")
PAIR = Vocabulary(ATTRIBUTES, ("a", "b"), {name: ("k",) for name in MEASURES})
ALONE = Vocabulary({**ATTRIBUTES, "quality": OperandKind.NUMBER})

# Scripts that put no spaces between words: each character is a term.
_DENSE = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
)
_LONGEST = 64  # characters of a term; of a longer one the beginning and a hash
_TERM = re.compile(f"[{_DENSE}]|[^\\W_{_DENSE}]+")


@dataclass(slots=True)
class Document:
    """One capture. What is not known is None; `size` counts bytes, `timestamp` has 14 digits."""

    id: str
    url: str
    timestamp: str | None
    text: str = ""
    mime: str | None = None
    title: str | None = None
    status: int | None = None
    size: int | None = None
    quality: float | None = None  # or popularity: whatever the user has, for the cost of keeping it
    container: str | None = None  # where it is stored, if that is known
    offset: int | None = None
    length: int | None = None
    of: tuple[str, int] | None = None  # of a revisit: container and offset of its original
    names: tuple[str, str] | None = None  # URL and timestamp of the same
    digest: str | None = None  # of its payload
    of_digest: str | None = None  # the same of a revisit, whose payload is elsewhere


def terms(text: str) -> list[str]:
    """Words in small letters, without what stands between them."""
    found = _TERM.findall(text.casefold())
    return found if max(map(len, found), default=0) <= _LONGEST else list(map(_short, found))


def _short(term: str) -> str:
    """No text has words of a megabyte, but data in pages do."""
    if len(term) <= _LONGEST:
        return term
    return term[:24] + blake2b(term.encode("utf-8", "replace"), digest_size=20).hexdigest()


def shingles(words: list[str], k: int) -> set[str]:
    """All runs of `k` terms; of a shorter text the one run that it is."""
    if len(words) <= k:
        return {" ".join(words)} if words else set()
    return {" ".join(words[at : at + k]) for at in range(len(words) - k + 1)}


def content_of(words: list[str]) -> str:
    """What is equal for equal terms in equal order; empty for none."""
    return (
        blake2b(" ".join(words).encode("utf-8", "replace"), digest_size=20).hexdigest()
        if words
        else ""
    )
