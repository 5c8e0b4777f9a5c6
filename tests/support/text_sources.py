"""What the tests of text sources share."""

from __future__ import annotations

import io
from pathlib import Path

from dedupindex.capture import Capture, Item, Problem, Refusal, Revisit
from dedupindex.sources import SourceOptions
from dedupindex.sources.cdx import CdxSource
from dedupindex.sources.cdxj import CdxjSource
from dedupindex.sources.crawl_log import CrawlLogSource
from dedupindex.sources.line_source import BLOCK, TextSource
from dedupindex.sources.source import DEFAULTS
from tests.support import paths

DATA = paths.DATA / "text"
BY_KIND: dict[str, type[TextSource]] = {
    "cdx": CdxSource,
    "cdxj": CdxjSource,
    "crawllog": CrawlLogSource,
}
BASE32 = "FKXGYNOJJ7H3IFO35FPUBC445EPOQRXN"  # and the same in hex:
HEX = "2aae6c35c94fcfb415dbe95f408b9ce91ee846ed"


def items(
    kind: str, data: bytes, *, block: int = BLOCK, options: SourceOptions = DEFAULTS
) -> list[Item]:
    """Return all items that a source of this kind reads from some bytes."""
    return list(BY_KIND[kind]("source", io.BytesIO(data), block=block, options=options).items())


def one(kind: str, line: str, options: SourceOptions = DEFAULTS) -> Item:
    """Return the item that a source reads from one line."""
    found = items(kind, line.encode() + b"\n", options=options)
    assert len(found) == 1, found
    return found[0]


def brief(item: Item) -> str:
    """An item in one line, to compare by eye."""
    if isinstance(item, Refusal):
        return f"refused {item.reason}"
    if isinstance(item, Problem):
        return f"problem {item.offset}"
    if isinstance(item, Revisit):
        to = item.refers_to
        named = f" -> {to.url.decode()} {to.date.decode()}" if to else " -> ?"
        return f"revisit {item.capture.url.decode()} {item.capture.date.decode()}{named}"
    assert isinstance(item, Capture)
    words = [item.url, item.date, item.status, item.mime or "-", item.size, item.offset]
    text = [word.decode() if isinstance(word, bytes) else str(word) for word in words]
    digest = item.digest.spelled(item.spelling)
    return " ".join(["capture", *text, Path(item.container).name, digest])


def records(found: list[Item]) -> list[Item]:
    return [item for item in found if not isinstance(item, Problem)]
