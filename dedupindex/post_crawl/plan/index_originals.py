"""Look up the digests of a set in an index: originals in other files, and records that it names.

An original in another file is accepted only if its record, read now, would be one in a manifest,
and if the index was made from its file, since the method of a request is known from the records
around it and not from rows of a CDX. A record of the set that the index names stays as it is,
because revisits of crawls that asked the index may refer to it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from dedupindex.capture import Capture, Evidence
from dedupindex.digest import Digest
from dedupindex.errors import BadDigest, BadSource, StrategyUnavailable
from dedupindex.index import open_index
from dedupindex.index.engine import View
from dedupindex.object_store import RemoteFile, facts, is_remote
from dedupindex.post_crawl.manifest.parquet import (
    TYPES,
    Line,
    ManifestContainer,
    ParquetWriter,
    fetch_rows,
)
from dedupindex.post_crawl.manifest.record_lines import LineReader, ManifestOptions
from dedupindex.post_crawl.plan.group_duplicates import GroupingRule
from dedupindex.post_crawl.plan.manifest_input import ManifestInputs
from dedupindex.runtime.duckdb import Database, insert
from dedupindex.runtime.progress import Say, ThrottledProgress
from dedupindex.timestamps import digits_of_date, sort_key
from dedupindex.urlkey import urlkey
from dedupindex.warc.reader import read
from dedupindex.warc.record import BrokenRecord, Record
from dedupindex.warc.window import Window
from dedupindex.warc.zstd_format import Dictionaries

LIMIT = 100  # captures of a digest that are looked at
TRIED = 8  # of these that are read
_BATCH = 1024
_SHORT = 1 << 17  # bytes of a file that are read first for a record
_MARGIN = 64  # a record that ends this close to the end of these bytes may have been cut
_NO_URL_LIST = (
    "the index has no list of captures by URL (bin/index --by-url): whether its originals share "
    "their URL and second with another payload is decided by the set alone"
)
_NOT_READ = (
    "{:,} captures known only from a CDX, a log or a crawler are no originals: whether they answer "
    "a POST is in their WARC files alone (bin/index --add these)"
)
Form = tuple[Any, ...]  # values of the columns that make payloads equal, without the digest


def find_originals(
    database: Database, inputs: ManifestInputs, index: Path, rule: GroupingRule, home: Path,
    say: Say, warn: Say,
) -> None:  # fmt: skip
    """Fill ``named``, and add originals in other files; then the views must be created again."""
    numbers = {_real(path): number for path, number in inputs.numbers.items()}
    named: list[tuple[int | str, ...]] = []
    columns = tuple(name for name in rule.criteria.columns() if name != "digest")
    with closing(open_index(index)) as engine, engine.view() as view:
        writer = ParquetWriter(home / "outside.parquet")
        outside: dict[str, ManifestContainer] = {}  # files that hold originals, by path
        part, parts = rule.partition
        finder, progress = _IndexOriginalFinder(view, columns), ThrottledProgress(say)
        for count, (text, forms) in enumerate(_digests(database.cursor(), columns)):
            progress("digests asked", count)
            try:
                digest = Digest.parse(text.decode("latin-1"))
            except BadDigest:
                continue
            candidates = []
            for capture in sorted(view.any(digest, LIMIT), key=lambda one: sort_key(one.date)):
                path = _real(capture.container)
                has_path = is_remote(capture.container) or os.path.isabs(capture.container)
                if path in numbers:
                    named.append((numbers[path], capture.offset))
                elif has_path and finder.is_verified(capture):
                    candidates.append((path, capture))
            for path, line in finder.originals(text, forms, candidates):
                if path not in outside:  # no other part of the plan gives its number to another
                    number = len(inputs.containers) + part + len(outside) * parts
                    outside[path] = _container(view, path, number)
                writer.add([line._replace(container=outside[path].number)])
            if len(named) >= _BATCH:
                insert(database, "named", named)
                named.clear()
    if finder.no_url_list:
        warn(_NO_URL_LIST)
    if finder.not_read:
        warn(_NOT_READ.format(finder.not_read))
    insert(database, "named", named)
    writer.finish(database)
    if outside:
        inputs.outside, inputs.outside_lines = [*outside.values()], home / "outside.parquet"


def _real(path: str) -> str:
    return path if is_remote(path) else os.path.realpath(path)


def _digests(database: Database, columns: tuple[str, ...]) -> Iterator[tuple[bytes, set[Form]]]:
    """Yield each digest of lines that may become revisits, with the forms of its payloads."""
    query = f"""
        SELECT DISTINCT digest, {", ".join(columns)} FROM part
        WHERE not_rewritable_reason = '' AND digest <> '' AND covers <> 0 ORDER BY digest"""
    rows = fetch_rows(database, query)
    for text, group in groupby(rows, key=itemgetter(0)):
        yield text.encode("latin-1"), {row[1:] for row in group}


class _IndexOriginalFinder:
    def __init__(self, view: View, columns: tuple[str, ...]) -> None:
        self.no_url_list = False  # whether the index lacks captures by URL
        self.not_read = 0  # captures in files that the index was not made from
        self._view, self._columns = view, columns
        self._was_read: dict[str, bool] = {}  # by container

    def is_verified(self, capture: Capture) -> bool:
        """Whether the index was made from the record and all requests in its file."""
        if capture.evidence > Evidence.ROW:
            return False
        name = capture.container
        if name not in self._was_read:
            self._was_read[name] = self._view.container(name) is not None
        verified = capture.evidence is Evidence.RECORD and self._was_read[name]
        self.not_read += not verified
        return verified

    def originals(
        self, text: bytes, forms: set[Form], captures: list[tuple[str, Capture]]
    ) -> Iterator[tuple[str, Line]]:
        """Yield the earliest original of each form, with the path of its file."""
        wanted = set(forms)
        for path, capture in captures[:TRIED]:
            if not wanted:
                return
            try:
                line = read_line(path, capture.offset)
            except (BadSource, BrokenRecord):
                continue
            if (line.url, line.date) != (capture.url, capture.date):
                continue  # another record, whose request the index has not seen
            form = self._form(line)
            fits = line.digest == text and form in wanted and not line.not_original_reason
            if fits and not self._is_ambiguous(line):
                wanted.discard(form)
                yield path, line._replace(not_rewritable_reason="outside")

    def _form(self, line: Line) -> Form:
        """Return the columns of a line as the database has them, texts decoded as Latin-1."""
        values = ((name, getattr(line, name)) for name in self._columns)
        return tuple(
            value.decode("latin-1") if TYPES[name] == "VARCHAR" else value for name, value in values
        )

    def _is_ambiguous(self, line: Line) -> bool:
        """Whether the index has another payload with the same urlkey and second."""
        digest, digits = Digest.parse(line.digest.decode("latin-1")), digits_of_date(line.date)
        try:
            return any(
                digits_of_date(other.date) == digits and other.digest != digest
                for other in self._view.at_urlkey(urlkey(line.url))
            )
        except StrategyUnavailable:
            self.no_url_list = True
            return False


def read_line(path: str, offset: int) -> Line:
    """Return the line of the response at an offset; raises `BadSource` or `BrokenRecord`."""
    try:
        with RemoteFile(path) if is_remote(path) else open(path, "rb") as file:
            rest = max(file.seek(0, os.SEEK_END) - max(offset, 0), 0)
            if rest > _SHORT:  # a window of the whole file reads and hashes a mebibyte
                with suppress(BadSource, BrokenRecord):
                    line = _response(Window(file, path, base=max(offset, 0), size=_SHORT), offset)
                    if line.stored < _SHORT - _MARGIN:
                        return line
            return _response(Window(file, path, base=max(offset, 0)), offset)
    except OSError as error:
        raise BadSource(f"{path} cannot be read: {error.strerror}") from error


def _response(window: Window, offset: int) -> Line:
    events = read(window, lambda: Dictionaries.read(Window(window.file, window.file.name).read))
    record = next(events, None)
    if not isinstance(record, Record) or record.type != b"response" or offset < 0:
        raise BadSource(f"{window.file.name} at {offset}: no response begins there")
    line = LineReader(0, ManifestOptions()).line(record)
    record.finish()
    following = next(events, None)
    if record.shared or (isinstance(following, Record) and following.offset == record.offset):
        raise BadSource(f"{window.file.name} at {offset}: several records share a member")
    return line._replace(offset=offset, stored=record.stored)


def _container(view: View, path: str, number: int) -> ManifestContainer:
    """Return a file as it is now, with the hash in the index unless it has changed since."""
    inode = device = 0
    if is_remote(path):
        remote = facts(path)
        size, modified = remote.size, remote.version
    else:
        now = os.stat(path)
        size, modified, inode, device = now.st_size, now.st_mtime_ns, now.st_ino, now.st_dev
    known = view.container(path)
    same = known is not None and (known.size, known.modified) == (size, modified)
    return ManifestContainer(
        number, os.path.dirname(path), os.path.basename(path), size, modified, inode, device,
        known.content_hash if known is not None and same else "",
    )  # fmt: skip
