"""Write the CDX file that ``wget --warc-dedup`` reads: one original for each digest.

wget keeps one URL for each digest, that of the last line, and makes a revisit only if it fetches
exactly this URL (src/warc.c, warc_load_cdx_dedup_file and warc_find_duplicate_cdx_record). So the
URL to write is one that the next crawl will fetch.
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
from dedupindex.errors import BadInput
from dedupindex.timestamps import sort_key
from dedupindex.urlkey import host_name, host_of, meant_host

HEADER = b" CDX a k u\n"
_NOT_IN_COLUMN = re.compile(rb"[\x00-\x20\x7f]")
_ORIGIN = re.compile(
    rb"[a-z][a-z0-9+.-]*://[^/?#:@\x00-\x20\x7f][^/?#\x00-\x20\x7f]*(?=[/?#]|\Z)", re.IGNORECASE
)
_OTHER_SCHEME = re.compile(rb"[a-z][a-z0-9+.-]*:(?!//|\d)", re.IGNORECASE)  # ``mailto:``
_SHOWN = 80  # bytes of a line in an error
_SEED, _HOST, _OTHER = range(3)


@dataclass(frozen=True)
class CrawlScope:
    """What the next crawl will fetch: URLs, and hosts with all below them."""

    seeds: frozenset[bytes]
    hosts: frozenset[bytes]

    def rank(self, url: bytes) -> int:
        """The rank of a URL: a seed, of a wanted host, or another; the lowest is the best."""
        if url in self.seeds:
            return _SEED
        host = host_of(url) if self.hosts else b""
        while host:
            if host in self.hosts:
                return _HOST
            host = host.partition(b".")[2]
        return _OTHER


def read_scope(seeds: Iterable[bytes] = (), hosts: Iterable[bytes] = ()) -> CrawlScope:
    """Read a URL or host from each line; blank lines and lines that begin with # are skipped.

    Raises `BadInput` for a line that is none.
    """
    urls = frozenset(_as_fetched(number, line) for number, line in _lines(seeds))
    named = frozenset(_as_host(number, line) for number, line in _lines(hosts))
    return CrawlScope(urls, named | {host_of(url) for url in urls})


@dataclass
class WgetExport:
    """What was written, and what was left out, by reason; counted while lines are taken."""

    written: int = 0
    for_seeds: int = 0  # of them, URLs of seeds
    for_hosts: int = 0  # of them, other URLs of wanted hosts
    other_urls: int = 0  # captures whose digest is written with another URL
    left_out: Counter[str] = field(default_factory=Counter)


def lines(
    captures: Iterable[tuple[Digest, Capture]], wanted: CrawlScope, exported: WgetExport, *,
    bridge: bool = False,
) -> Iterator[bytes]:  # fmt: skip
    """Yield the lines of the CDX file, of captures sorted by digest; holds one at a time.

    `bridge`: also originals whose record states another digest, or spells it otherwise.
    """
    yield HEADER
    for digest, group in groupby(captures, itemgetter(0)):
        best: Capture | None = None
        order: tuple[int, bytes, bytes] = (0, b"", b"")
        for _, capture in group:
            if reason := _unusable_reason(digest, capture, bridge):
                exported.left_out[reason] += 1
                continue
            # Of URLs of one rank, that of the latest capture is the likeliest to exist still.
            key = (-wanted.rank(capture.url), sort_key(capture.date), capture.url)
            exported.other_urls += best is not None
            if best is None or key > order:
                best, order = capture, key
        if best is not None:
            exported.written += 1
            exported.for_seeds += order[0] == -_SEED
            exported.for_hosts += order[0] == -_HOST
            value = str(digest).partition(":")[2].encode()
            yield b"%b %b <%b>\n" % (best.url, value, best.record_id)


def _unusable_reason(digest: Digest, capture: Capture, bridge: bool) -> str:
    """Why wget cannot use a capture, "" if it can."""
    if digest.algorithm != "sha1":
        return "not-sha1"
    if is_cut(digest.raw):
        return CUT_DIGEST
    stated = capture.digest == digest and capture.spelling.encoding == CANONICAL.encoding
    if not (stated or bridge):
        return "spelled-otherwise"
    if not capture.record_id or _NOT_IN_COLUMN.search(capture.record_id):
        return "no-record-id"
    if _NOT_IN_COLUMN.search(capture.url):
        return "url-with-spaces"
    return ""


def _lines(given: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not skipped, with their numbers."""
    for number, line in enumerate(map(bytes.strip, given), 1):
        if line and not line.startswith(b"#"):
            yield number, line


def _as_host(number: int, line: bytes) -> bytes:
    try:
        host_name(line.decode())
        if hint := meant_host(line.decode()):
            raise BadInput(f"{_shown(line)} is not a host name: give {hint}")
    except UnicodeDecodeError as error:
        raise BadInput(f"line {number} of the hosts is not a host name: {_shown(line)}") from error
    except BadInput as error:
        raise BadInput(f"line {number} of the hosts: {error}") from error
    return line.lower().strip(b".")


def _shown(line: bytes) -> str:
    return repr(line[:_SHOWN].decode("utf-8", "replace"))


def _as_fetched(number: int, line: bytes) -> bytes:
    """A seed as wget fetches it: without fragment, with a path, the host in lower case."""
    url = line.partition(b"#")[0]
    if b"://" not in url and not _OTHER_SCHEME.match(url):
        url = b"http://" + url
    origin = _ORIGIN.match(url)
    if not origin:
        raise BadInput(
            f"line {number} of the seeds is not a URL: {_shown(line)}; give each as wget gets it, "
            "such as http://example.com/"
        )
    rest = url[origin.end() :]
    return origin[0].lower() + (rest if rest.startswith(b"/") else b"/" + rest)
