"""The CDX that ``wget --warc-dedup`` takes: one original for each digest.

wget keeps one URL for each digest, that of the last line, and makes a revisit only where it
fetches exactly this URL (src/warc.c, warc_load_cdx_dedup_file and warc_find_duplicate_cdx_record).
So the URL that the next crawl will fetch has to be the one that is written.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter

from dedupindex.capture import Capture
from dedupindex.digest import CANONICAL, CUT_DIGEST, Digest, is_cut
from dedupindex.urlkey import host_of

HEADER = b" CDX a k u\n"
_UNWRITABLE = re.compile(rb"[\x00-\x20\x7f]")  # would end a column or a line
_BARE = re.compile(rb"[a-z][a-z0-9+.-]*://[^/?#]+", re.IGNORECASE)
_SEED, _HOST, _OTHER = range(3)


@dataclass(frozen=True)
class CrawlScope:
    """What the next crawl will fetch: URLs, and hosts with all below them."""

    seeds: frozenset[bytes] = frozenset()
    hosts: frozenset[bytes] = frozenset()

    @classmethod
    def of(cls, seeds: Iterable[bytes] = (), hosts: Iterable[bytes] = ()) -> CrawlScope:
        """From lines of two lists, as wget takes seeds; blank lines and ``#`` lines are passed."""
        urls = frozenset(_as_fetched(line) for line in _lines(seeds))
        named = frozenset(line.lower().strip(b".") for line in _lines(hosts))
        return cls(urls, named | {host_of(url) for url in urls})

    def rank(self, url: bytes) -> int:
        """How much a URL is wanted, the lower the more."""
        if url in self.seeds:
            return _SEED
        host = host_of(url) if self.hosts else b""
        while host:
            if host in self.hosts:
                return _HOST
            host = host.partition(b".")[2]
        return _OTHER


@dataclass
class WgetExport:
    """What was written, and what was left out, by reason; filled while lines are taken."""

    written: int = 0
    for_seeds: int = 0  # of them, with the URL of a seed
    for_hosts: int = 0  # with a wanted host
    other_urls: int = 0  # captures whose digest is written with another URL
    left_out: Counter[str] = field(default_factory=Counter)


def lines(
    captures: Iterable[tuple[Digest, Capture]],
    wanted: CrawlScope,
    exported: WgetExport,
    *,
    bridge: bool = False,
) -> Iterator[bytes]:
    """The lines of the CDX, of captures in the order of digests; holds one at a time.

    `bridge`: also originals whose own record spells this digest otherwise, or states another.
    """
    yield HEADER
    for digest, group in groupby(captures, itemgetter(0)):
        best: Capture | None = None
        order: tuple[int, bytes, bytes] = (0, b"", b"")
        for _, capture in group:
            if reason := _unfit(digest, capture, bridge):
                exported.left_out[reason] += 1
                continue
            # Of URLs that are wanted alike, the one seen last is the likeliest to be there still.
            place = (-wanted.rank(capture.url), capture.date, capture.url)
            exported.other_urls += best is not None
            if best is None or place > order:
                best, order = capture, place
        if best is not None:
            exported.written += 1
            exported.for_seeds += order[0] == -_SEED
            exported.for_hosts += order[0] == -_HOST
            value = str(digest).partition(":")[2].encode()
            yield b"%b %b <%b>\n" % (best.url, value, best.record_id)


def _unfit(digest: Digest, capture: Capture, bridge: bool) -> str:
    """Why wget cannot use a capture, "" if it can."""
    if digest.algorithm != "sha1":
        return "not-sha1"
    if is_cut(digest.raw):
        return CUT_DIGEST
    own = capture.digest == digest and capture.spelling.encoding == CANONICAL.encoding
    if not (own or bridge):
        return "spelled-otherwise"
    if not capture.record_id or _UNWRITABLE.search(capture.record_id):
        return "no-record-id"
    if _UNWRITABLE.search(capture.url):
        return "url-with-spaces"
    return ""


def _lines(given: Iterable[bytes]) -> Iterator[bytes]:
    for line in given:
        line = line.strip()
        if line and not line.startswith(b"#"):
            yield line


def _as_fetched(url: bytes) -> bytes:
    """A seed as wget asks for it: without fragment, with a path, its host in lower case."""
    url = url.partition(b"#")[0]
    if not _BARE.match(url):
        url = b"http://" + url
    origin = _BARE.match(url)
    assert origin, "it has one now"
    rest = url[origin.end() :]
    return origin[0].lower() + (rest if rest.startswith(b"/") else b"/" + rest)
