"""Open a source: detect its kind from the first bytes, and choose the reader."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from typing import BinaryIO

from dedupindex.capture import Item, Problem
from dedupindex.errors import BadSource
from dedupindex.object_store import RemoteFile, is_remote, redacted
from dedupindex.sources.browsertrix import BrowsertrixSource
from dedupindex.sources.cdx import CdxSource
from dedupindex.sources.cdx_columns import NO_HEADER
from dedupindex.sources.cdxj import CdxjSource
from dedupindex.sources.crawl_log import CrawlLogSource
from dedupindex.sources.discover import (
    HEAD,
    KINDS,
    NO_RECORD,
    STDIN,
    ZIP,
    check_regular_file,
    is_archive_name,
    kind_named,
    kind_of,
    zstd_problem,
)
from dedupindex.sources.line_source import TextSource
from dedupindex.sources.outbackcdx import OutbackCdxSource
from dedupindex.sources.plugins import PluginSource
from dedupindex.sources.service_address import ServiceAddress, service_of
from dedupindex.sources.source import DEFAULTS, Source, SourceOptions
from dedupindex.sources.table_columns import MAGIC
from dedupindex.sources.wacz import WaczSource
from dedupindex.sources.warc_records import WarcSource
from dedupindex.sources.warcprox_db import WarcproxSource

_TEXT: dict[str, type[TextSource]] = {
    "cdx": CdxSource,
    "cdxj": CdxjSource,
    "crawllog": CrawlLogSource,
}


def _parquet(name: str, source: str | BinaryIO, options: SourceOptions) -> Source:
    from dedupindex.sources.parquet_table import ParquetSource  # slow: it imports DuckDB

    return ParquetSource(name, source, options)


_ARCHIVES: dict[str, Callable[[str, str | BinaryIO, SourceOptions], Source]] = {
    "warc": WarcSource,
    "arc": WarcSource,
    "wacz": WaczSource,
    "warcprox": WarcproxSource,
    "parquet": _parquet,
}

_SERVICES: dict[str, Callable[[ServiceAddress, SourceOptions], Source]] = {
    "browsertrix": lambda service, options: BrowsertrixSource(service.address),
    "outbackcdx": lambda service, options: OutbackCdxSource(service.name, service.address, options),
}
_WRITTEN = {"browsertrix": "redis://…", "outbackcdx": "outbackcdx+http://…"}


def open_source(path: str, kind: str | None = None, options: SourceOptions = DEFAULTS) -> Source:
    """Open a file, an address, or standard input (``-``), as `kind` or as its content shows.

    The address of a service is opened as its kind says, see `service_address`.

    Raises `BadSource`: missing, unreadable, of unknown kind, or clearly not of `kind`.
    """
    forced = kind_named(kind) if kind else ""
    if service := service_of(path):
        return _open_service(service, forced, options)
    if forced in _SERVICES:
        raise BadSource(
            f"{path} is no service; {forced} is read from an address, {_WRITTEN[forced]}"
        )
    if forced and forced not in KINDS:
        return _open_for_plugin(forced, path, options)
    name, size, stream = _open(path)
    try:
        head = stream.read(HEAD)
        if problem := zstd_problem(head, stream if size >= 0 else None):
            raise BadSource(f"{name} {problem}")
        if head.startswith((*ZIP, MAGIC)) and size < 0:
            what = "Parquet table" if head.startswith(MAGIC) else "WACZ"
            raise BadSource(f"a {what} cannot be read from a pipe; give its file name")
        detected = kind_of(head, stream if size >= 0 else None, options.columns)
        if size >= 0:
            stream.seek(0)
        whole = stream if size >= 0 else io.BufferedReader(_Rewound(stream, head))
        if not head:
            return _Empty(name, whole, size=size)
        chosen = _choose(name, detected, forced, head)
        if chosen in _TEXT:
            return _TEXT[chosen](name, whole, size=size, options=options)
        opened = whole if size < 0 or isinstance(stream, RemoteFile) else name
        if opened is name:
            stream.close()
        return _ARCHIVES[chosen](name, opened, options)
    except BaseException:
        if size >= 0:
            stream.close()
        raise


def _open_service(service: ServiceAddress, forced: str, options: SourceOptions) -> Source:
    if forced not in ("", service.kind):
        raise BadSource(f"{service.name} can only be read as {service.kind}, not as {forced}")
    if service.kind in _SERVICES:
        return _SERVICES[service.kind](service, options)
    if service.kind in KINDS:
        raise BadSource(
            f"{service.name}: {service.kind} is read from files, without {service.kind}+"
        )
    return PluginSource(kind_named(service.kind), service.name, service.address, options)


def _open_for_plugin(kind: str, path: str, options: SourceOptions) -> Source:
    if path == STDIN or is_remote(path):
        raise BadSource(
            f"{redacted(path)}: {kind} reads files of this machine; an address that it opens "
            f"itself is written {kind}+ADDRESS"
        )
    name = check_regular_file(os.path.abspath(path))
    return PluginSource(kind, name, name, options)


def _open(path: str) -> tuple[str, int, BinaryIO]:
    if path == STDIN:
        return STDIN, -1, sys.stdin.buffer
    if is_remote(path):
        remote = RemoteFile(path)
        return remote.name, remote.size, remote
    name = check_regular_file(os.path.abspath(path))
    try:
        stream = open(name, "rb")  # noqa: SIM115  # the source closes it
        return name, os.fstat(stream.fileno()).st_size, stream
    except OSError as error:
        raise BadSource(f"{name} cannot be read: {error.strerror}") from error


def _choose(name: str, detected: str, forced: str, head: bytes) -> str:
    """Return the kind to read a source as; only a text kind can be forced, on a text."""
    if not detected and not forced:
        if is_archive_name(name):
            raise BadSource(f"{name} {NO_RECORD}")
        hint = f": {NO_HEADER}" if 6 <= head.split(b"\n")[0].count(b" ") <= 13 else ""
        raise BadSource(f"{name} is of no known kind ({', '.join(KINDS)}){hint}")
    if not detected and forced == "cdx" and head.split(b"\n")[0].strip():
        raise BadSource(f"{name} is {NO_HEADER}")
    if detected and forced and detected != forced and not {detected, forced} <= _TEXT.keys():
        raise BadSource(f"{name} is {detected}, not {forced}")
    return forced or detected


class _Empty(TextSource):
    """An empty file, most often a failed transfer."""

    def items(self) -> Iterator[Item]:
        yield from super().items()
        if not self.changed:
            yield Problem(self.name, 0, "is empty")


class _Rewound(io.RawIOBase):
    """A pipe with the `head` that was read from it. Closing it leaves the pipe open."""

    def __init__(self, stream: BinaryIO, head: bytes) -> None:
        self._stream, self._head = stream, head

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # as io documents it
        data = self._head[: len(buffer)] or self._stream.read(len(buffer))
        self._head = self._head[len(data) :]
        buffer[: len(data)] = data
        return len(data)
