"""Captures of a URL, a prefix, a host or a domain in a ZipNum cluster: only their blocks are read.

The query is that of a CDX server: ``cluster.idx?url=example.com/*``, with ``matchType`` if the URL
does not say it by an asterisk.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import parse_qsl, urlsplit

from dedupindex.capture import Problem
from dedupindex.corpus.capture_list import KINDS, Revisits, SourceContext
from dedupindex.corpus.from_cdx import file_of, select
from dedupindex.errors import BadInput, BadSource
from dedupindex.object_store import local
from dedupindex.sources.cdx_columns import header
from dedupindex.sources.discover import HEAD, kind_of
from dedupindex.sources.line_source import gunzip, parted, whole_lines
from dedupindex.sources.zipnum import ENDING, ZipNumBlock, ZipNumCluster, read_blocks
from dedupindex.urlkey import urlkey

_MATCHES = ("exact", "prefix", "host", "domain")
_PARAMETERS = ("url", "matchType")


@dataclass(frozen=True)
class ZipNumCaptures:
    """The captures of a query in a cluster, here or in an object store."""

    revisits: ClassVar[Revisits] = Revisits.LISTED
    index: str
    query: tuple[tuple[str, str], ...]
    containers: tuple[str, ...] = ()

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.index,)

    def relation(self, context: SourceContext) -> str:
        prefixes = key_prefixes(dict(self.query))
        lines = context.home / "cluster.lines"
        with ZipNumCluster(self.index) as cluster, open(lines, "wb") as output:
            first = next(cluster.blocks(), None)
            if first is not None:
                output.write(_header(cluster, first))
            blocks = {block for prefix in prefixes for block in cluster.blocks_of(prefix)}
            for part in sorted({block.part for block in blocks}):
                path = cluster.path_of(part)
                wanted = [block for block in blocks if block.part == part]
                for line in _lines(path, wanted, context.problems):
                    if line.startswith(prefixes):
                        output.write(line)
        with open(lines, "rb") as stream:
            head = stream.read(HEAD)
        kind = kind_of(head) or "cdxj"
        if kind not in KINDS:
            raise BadSource(f"{self.index} is of a {kind}, not of a CDX or CDXJ")
        origin = self.index.rpartition("/")[0]
        return select([file_of(lines, kind, head, origin, context.home / "cluster.text")])


def query_of(source: str) -> tuple[str, tuple[tuple[str, str], ...]] | None:
    """Return index and parameters of ``….idx?url=…``; None for another source."""
    path, mark, query = source.partition("?")
    if not mark or not path.endswith(ENDING) or os.path.lexists(source):
        return None
    return local(path), tuple(parse_qsl(query))


def key_prefixes(query: Mapping[str, str]) -> tuple[bytes, ...]:
    """Return what the rows of a query begin with; raises `BadInput`.

    Keys are those of `urlkey`, to which clusters of pywb and Common Crawl are sorted.
    """
    other = sorted(query.keys() - set(_PARAMETERS))
    if other or not query.get("url"):
        raise BadInput(
            f"a query of a ZipNum cluster has a url and perhaps a matchType, not "
            f"{', '.join(other) or 'neither'}: select the rest with --where"
        )
    url, match = query["url"], query.get("matchType", "")
    if not match and url.startswith("*."):
        url, match = url[2:], "domain"
    elif not match and url.endswith("*"):
        url, match = url[:-1], "prefix"
    if (match or "exact") not in _MATCHES:
        raise BadInput(f"matchType is one of {', '.join(_MATCHES)}, not {match!r}")
    if "://" not in url:
        url = f"http://{url}"
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise BadInput(f"the url of a query is one of http or https, not {query['url']!r}")
    key = urlkey(url.encode())
    site, end, path = key.partition(b")")
    if match in ("host", "domain"):
        port = site + b":" if b":" not in site else site + end
        return (site + end, port, *((site + b",",) if match == "domain" else ()))
    if match != "prefix":
        return (key + b" ",)
    if url.endswith("/") and path != b"/":  # which a key does not have
        return (key + b"/", key + b"?", key + b" ")
    return (key,)


def _header(cluster: ZipNumCluster, first: ZipNumBlock) -> bytes:
    """Return the header line with which a CDX begins, empty if there is none."""
    line = next(_lines(cluster.path_of(first.part), [first], []), b"")
    return line if header(line.rstrip(b"\r\n")) else b""


def _lines(path: str, blocks: list[ZipNumBlock], problems: list[Problem]) -> Iterator[bytes]:
    """Yield the lines of blocks with their ends; damage is a problem."""
    for offset, data in read_blocks(path, blocks, problems):
        try:
            for text in whole_lines(parted(gunzip([data]))):
                for line in text.split(b"\n"):
                    if line:
                        yield line + b"\n"
        except zlib.error as error:
            problems.append(Problem(path, offset, f"gzip data is damaged: {error}"))
