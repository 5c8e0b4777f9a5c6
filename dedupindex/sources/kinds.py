"""What kind of source some bytes are: told by the bytes, never by the name of the file."""

from __future__ import annotations

from typing import BinaryIO
from zipfile import BadZipFile, ZipFile

from dedupindex.errors import BadSource
from dedupindex.sources import cdx_columns, crawl_log
from dedupindex.sources.line_source import GZIP, inflated

KINDS = ("warc", "arc", "wacz", "cdx", "cdxj", "crawllog", "browsertrix")
HEAD = 1 << 15  # bytes of a file that are looked at
ZIP = (b"PK\x03\x04", b"PK\x05\x06")
ZSTD = (b"\x28\xb5\x2f\xfd", b"\x5d\x2a\x4d\x18")  # a frame, and the dictionary before .warc.zst
NO_ZSTD = (
    "is compressed with zstd, which is not supported; decompress it first "
    "(zstd -d, or warc.zst tools where it carries a dictionary)"
)
_ALIASES = {"warciterator": "warc", "crawllogiterator": "crawllog", "arc": "warc"}
_LINES = 100  # looked at; the first that says what it is decides


def kind_named(name: str) -> str:
    """The kind that an option names: one of `KINDS`, or a class of the DeDuplicator.

    ``is.landsbokasafn.deduplicator.indexer.CrawlLogIterator`` is ``crawllog``. ARC and WARC are
    read by one reader, so ``arc`` is ``warc``. Raises `BadSource`.
    """
    plain = name.rpartition(".")[2].lower()
    kind = _ALIASES.get(plain, plain)
    if kind not in KINDS:
        raise BadSource(f"no kind of source {name!r}; there are {', '.join(KINDS)}")
    return kind


def kind_of(head: bytes, whole: BinaryIO | None = None) -> str:
    """The kind of a source that begins with `head`; "" if it is none that is known.

    A zip file is a WACZ only if it holds what one must; `whole` is where to look.
    """
    if head.startswith(ZIP):
        return "wacz" if whole is None or _is_wacz(whole) else ""
    if head.startswith(GZIP):
        head = inflated(head, HEAD)
    if head.lstrip()[:5].upper() == b"WARC/" or head.startswith(b"filedesc:"):
        return "warc"
    lines = [line.removesuffix(b"\r") for line in head.split(b"\n")]
    if len(lines) > 1:
        lines.pop()  # perhaps cut
    for line in lines[:_LINES]:
        kind = _kind_of_line(line.removeprefix(b"\xef\xbb\xbf"))
        if kind:
            return kind
    return ""


def _kind_of_line(line: bytes) -> str:
    if crawl_log.recognise(line):
        return "crawllog"
    parts = line.split(b" ", 2)
    if len(parts) == 3 and parts[2].startswith(b"{") and parts[1].isdigit():
        return "cdxj" if len(parts[1]) in (14, 17) else ""
    return "cdx" if cdx_columns.recognise([line]) else ""


def _is_wacz(whole: BinaryIO) -> bool:
    try:
        with ZipFile(whole) as container:
            names = container.namelist()
    except (BadZipFile, OSError, ValueError):
        return False
    return any(name == "datapackage.json" or name.startswith("archive/") for name in names)
