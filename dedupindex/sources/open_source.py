"""One door to all sources: look at the first bytes, hand the file to the reader of its kind."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from typing import BinaryIO

from dedupindex.capture import Item, Problem
from dedupindex.errors import BadSource
from dedupindex.object_store import RemoteFile, is_remote
from dedupindex.sources.browsertrix import BrowsertrixSource, is_address, shown
from dedupindex.sources.cdx import CdxSource
from dedupindex.sources.cdx_columns import NO_HEADER
from dedupindex.sources.cdxj import CdxjSource
from dedupindex.sources.crawl_log import CrawlLogSource
from dedupindex.sources.discover import STDIN, regular
from dedupindex.sources.kinds import HEAD, KINDS, NO_ZSTD, ZIP, ZSTD, kind_named, kind_of
from dedupindex.sources.line_source import TextSource
from dedupindex.sources.source import Source, SourceOptions
from dedupindex.sources.wacz import WaczSource
from dedupindex.sources.warc import WarcSource

_TEXT: dict[str, type[TextSource]] = {
    "cdx": CdxSource,
    "cdxj": CdxjSource,
    "crawllog": CrawlLogSource,
}


def open_source(path: str, kind: str | None = None, options: SourceOptions | None = None) -> Source:
    """Open a file, or standard input for ``-``, as the kind its content tells, or as `kind`.

    An object in a store or on a web server is opened by its address as a file is by its path. That
    of a Redis is opened as ``browsertrix``, the only kind of source that is one.

    Raises `BadSource`: missing, unreadable, of no known kind, or plainly not what `kind` says.
    """
    forced = kind_named(kind) if kind else ""
    options = options or SourceOptions()
    if is_address(path):
        if forced not in ("", "browsertrix"):
            raise BadSource(f"{shown(path)} can only be read as browsertrix, not as {forced}")
        return BrowsertrixSource(path)
    if forced == "browsertrix":
        raise BadSource(f"{path} is a file; browsertrix is read from an address, redis://…")
    name, size, stream = _open(path)
    try:
        head = stream.read(HEAD)
        told = _told(name, head, stream if size >= 0 else None)
        if not head:
            return _Empty(name, _again(stream, head, size), size=size)
        chosen = _choose(name, told, forced, head)
        if chosen not in _TEXT:
            return _open_binary(chosen, name, stream, head, size, options)
        again = _again(stream, head, size)
        return _TEXT[chosen](name, again, size=size, options=options)
    except BaseException:
        if size >= 0:
            stream.close()
        raise


def _open(path: str) -> tuple[str, int, BinaryIO]:
    if path == STDIN:
        return STDIN, -1, sys.stdin.buffer
    if is_remote(path):
        remote = RemoteFile(path)
        return remote.name, remote.size, remote
    name = regular(os.path.abspath(path))
    try:
        stream = open(name, "rb")  # noqa: SIM115  # the source closes it
        return name, os.fstat(stream.fileno()).st_size, stream
    except OSError as error:
        raise BadSource(f"{name} cannot be read: {error.strerror}") from error


def _told(name: str, head: bytes, whole: BinaryIO | None) -> str:
    if head.startswith(ZSTD):
        raise BadSource(f"{name} {NO_ZSTD}")
    if head.startswith(ZIP) and whole is None:
        raise BadSource("a WACZ cannot be read from a pipe; give its file name")
    return kind_of(head, whole)


def _choose(name: str, told: str, forced: str, head: bytes) -> str:
    """The kind to read a source as; a text may be forced into another text kind, no more."""
    if not told and not forced:
        hint = f": {NO_HEADER}" if 6 <= head.split(b"\n")[0].count(b" ") <= 13 else ""
        raise BadSource(f"{name} is of no known kind ({', '.join(KINDS)}){hint}")
    if not told and forced == "cdx" and head.split(b"\n")[0].strip():
        raise BadSource(f"{name} is {NO_HEADER}")
    if told and forced and told != forced and not (told in _TEXT and forced in _TEXT):
        raise BadSource(f"{name} is {told}, not {forced}")
    return forced or told


class _Empty(TextSource):
    """A file without a byte in it: most often a transfer that failed."""

    def items(self) -> Iterator[Item]:
        yield from super().items()
        if not self.changed:
            yield Problem(self.name, 0, "is empty")


def _open_binary(
    kind: str, name: str, stream: BinaryIO, head: bytes, size: int, options: SourceOptions
) -> Source:
    """WARC, ARC and WACZ find their way in the file by themselves; a pipe they spool."""
    source = stream if isinstance(stream, RemoteFile) else name
    if kind == "wacz":
        if source is name:
            stream.close()
        return WaczSource(name, source, also=options.also, etag=options.etag)
    if size < 0:
        pipe = _again(stream, head, size)
        return WarcSource(name, pipe, also=options.also, etag=options.etag)
    if source is name:
        stream.close()
    return WarcSource(name, source, also=options.also, etag=options.etag)


def _again(stream: BinaryIO, head: bytes, size: int) -> BinaryIO:
    """The stream from its beginning, `head` having been read from it."""
    if size >= 0:
        stream.seek(0)
        return stream
    return io.BufferedReader(_Rest(stream, head))


class _Rest(io.RawIOBase):
    """A pipe, and before it what was read from it already. Closing it leaves the pipe open."""

    def __init__(self, stream: BinaryIO, head: bytes) -> None:
        self._stream, self._head = stream, head

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # as io documents it
        data = self._head[: len(buffer)] or self._stream.read(len(buffer))
        self._head = self._head[len(data) :]
        buffer[: len(data)] = data
        return len(data)
