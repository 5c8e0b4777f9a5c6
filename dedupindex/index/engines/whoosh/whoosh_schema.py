"""What a document of the Whoosh engine holds: an entry as bytes, and the terms that find it.

    key      the whole key of `cells`: lookups and digests find by it, or by its beginning
    about    of documents that are no captures: what they are about (`META`, a container, a name)
    content  a value column: key and entry, or 0x00 and JSON (what it is about, and the value) of a
             document that is no capture; then a checksum (`cells.sealed`)
    url word host mime status date size container    what people search by, see `search`

Only originals that may be answered carry what people search by: no marks of revisits, none in
reserve. All terms are ready-made bytes; nothing is tokenised, scored or stored twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any
from urllib.parse import unquote_to_bytes

from whoosh import fields, formats

from dedupindex.capture import Capture
from dedupindex.index.format.cells import ContainerRef, answers, sealed
from dedupindex.timestamps import digits_of_date
from dedupindex.urlkey import urlkey

META = b"meta"
NO_CAPTURE = b"\0"  # no algorithm has this code
LONGEST = 1000  # bytes of a term; longer ones are cut, there and in queries

_WORD = re.compile(r"[^\W_]+")
_HOST = re.compile(rb"[^:/?#]*://(?:[^/?#@]*@)?(\[[^\]/?#]*\]|[^/?#:]*)")


class Terms(fields.FieldType):  # type: ignore[misc]  # Whoosh has no types
    """A field of ready-made terms, given as bytes."""

    def __init__(self) -> None:
        super().__init__(formats.Existence(), None)

    def index(self, value: Iterable[bytes], **_: Any) -> list[tuple[bytes, int, float, bytes]]:
        return [(term, 1, 1.0, b"") for term in value]

    def to_bytes(self, value: str | bytes) -> bytes:
        return value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")

    def from_bytes(self, bs: bytes) -> str | bytes:
        return bs.decode("utf-8", "surrogateescape")


class KeyTerms(Terms):
    """Terms that are no text."""

    def from_bytes(self, bs: bytes) -> bytes:
        return bs


SEARCHED = ("url", "word", "host", "mime", "status", "date", "size", "container")

SCHEMA = fields.Schema(
    content=fields.COLUMN(),
    key=KeyTerms(),
    about=KeyTerms(),
    **{name: Terms() for name in SEARCHED},
)


def document(key: bytes, entry: bytes, capture: Capture | None) -> dict[str, Any]:
    """The fields of an entry; `capture` is what it says, None if it may not be answered."""
    found: dict[str, Any] = {"key": (key,), "content": sealed(b"", key + entry)}
    if capture is None or not answers(entry):
        return found
    url = capture.url
    found["url"] = (urlkey(url)[:LONGEST],)
    found["word"] = words(url)
    found["host"] = hosts(url)
    found["date"] = (digits_of_date(capture.date)[:8],)
    if capture.mime:
        found["mime"] = (capture.mime.lower()[:LONGEST],)
    if capture.status:
        found["status"] = (b"%d" % capture.status,)
    if capture.size >= 0 and not capture.size_of_record:
        found["size"] = (size_term(capture.size),)
    if capture.container:
        found["container"] = container_terms(capture.container)
    return found


def size_term(size: int) -> bytes:
    """Sizes as terms whose order is that of the numbers (up to 15 digits)."""
    return b"%015d" % size


def words(url: bytes) -> set[bytes]:
    """The words of a URL, lower case, percent-encoding undone; the scheme is none."""
    text = url.partition(b"://")[2] or url
    if b"%" in text:
        text = unquote_to_bytes(text)
    return {word.encode()[:LONGEST] for word in words_of(text.decode("utf-8", "replace"))}


def words_of(text: str) -> list[str]:
    """The words in a text, in order, as they are searched by."""
    return _WORD.findall(text.casefold())


def hosts(url: bytes) -> list[bytes]:
    """The host of a URL and all domains that it is in, longest first."""
    match = _HOST.match(url)
    host = match[1].lower().strip(b".")[:LONGEST] if match else b""
    if not host:
        return []
    if host.startswith(b"[") or host.replace(b".", b"").isdigit():
        return [host]
    labels = host.split(b".")
    return [b".".join(labels[at:]) for at in range(len(labels))]


def container_terms(name: str) -> set[bytes]:
    """A container's name and the last part of it, lower case."""
    whole = name.lower().encode("utf-8", "surrogateescape")
    return {whole[-LONGEST:], whole.rpartition(b"/")[2][-LONGEST:]}


def note_document(about: Iterable[bytes], value: Any) -> dict[str, Any]:
    """The fields of a document that is no capture."""
    terms = tuple(about)
    text = json.dumps([[term.hex() for term in terms], value]).encode()
    return {"about": terms, "content": sealed(b"", NO_CAPTURE + text)}


def container_key(name: str) -> bytes:
    """What the registration of a container is found by."""
    return b"@" + _hash(name)


def place_key(place: ContainerRef) -> bytes:
    """What the number of a place is found by."""
    return b"=" + _hash(f"{place.crawl}\0{place.container}" if place.crawl else place.container)


def number_key(number: int) -> bytes:
    """What a container number stands for is found by."""
    return b"#" + number.to_bytes(4, "big")


def _hash(name: str) -> bytes:
    return blake2b(name.encode("utf-8", "surrogateescape"), digest_size=20).digest()
