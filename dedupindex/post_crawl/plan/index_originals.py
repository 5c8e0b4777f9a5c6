"""What an index knows of the digests of a set: originals elsewhere, and those that it names here.

An original elsewhere is believed only after its record was read now, and judged as a line of a
manifest is, and only if the index was made of its file: what a POST was answered is told by the
requests around it, which no row of a CDX knows. A record of the set that the index names stays as
it is: revisits of crawls that asked the index may name it.
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
from dedupindex.post_crawl.manifest.lines import TYPES, Line, ManifestContainer
from dedupindex.post_crawl.manifest.parquet import ParquetWriter
from dedupindex.post_crawl.manifest.record_lines import Judge, ManifestOptions
from dedupindex.post_crawl.plan.group_duplicates import GroupingRule
from dedupindex.post_crawl.plan.manifest_input import Inputs
from dedupindex.post_crawl.plan.plan_file import MatchCriteria
from dedupindex.runtime.duckdb import Database, insert
from dedupindex.runtime.progress import Say, ThrottledProgress
from dedupindex.timestamps import digits_of_date, sort_key
from dedupindex.urlkey import urlkey
from dedupindex.warc.reader import read
from dedupindex.warc.record import BrokenRecord, Record
from dedupindex.warc.window import Window

LIMIT = 100  # captures of a digest that are looked at
TRIED = 8  # of these that are read
_FETCHED = 1024
_NEAR = 1 << 17  # bytes of a file that are looked at first for a record
_MARGIN = 64  # of these: who ends before them ends for another reason than that they end
_BLIND = (
    "the index has no list of captures by URL (bin/index --by-url): whether its originals share "
    "their URL and second with another payload is told from the set alone"
)
_UNREAD = (
    "{:,} captures that only a CDX, a log or a crawler has told of are no originals: whether they "
    "answer a POST is in their WARC files alone (bin/index --add these)"
)
Form = tuple[Any, ...]  # of a payload: the values of `_fields`


def consult(
    database: Database,
    inputs: Inputs,
    index: Path,
    rule: GroupingRule,
    home: Path,
    say: Say,
    warn: Say,
) -> None:
    """Fill the table ``named``, and add what the index has elsewhere to the inputs.

    The views ``lines`` and ``part`` are there, and are to be made again after this.
    """
    numbers = {_real(path): number for path, number in inputs.numbers.items()}
    database.execute('CREATE TABLE seen (container INTEGER, "offset" BIGINT)')
    named: list[tuple[int | str, ...]] = []
    with closing(open_index(index)) as engine, engine.view() as view:
        spool = ParquetWriter(home / "outside.parquet")
        outside = _Outside(view, len(inputs.containers), rule.partition)
        looking, telling = _Looking(view, _fields(rule.alike)), ThrottledProgress(say)
        for asked, (text, forms) in enumerate(_wanted(database.cursor(), _fields(rule.alike))):
            telling("digests asked", asked)
            try:
                digest = Digest.parse(text.decode("latin-1"))
            except BadDigest:
                continue
            captures = sorted(view.any(digest, LIMIT), key=lambda found: sort_key(found.date))
            others = []
            for capture in captures:
                path = _real(capture.container)
                if path in numbers:
                    named.append((numbers[path], capture.offset))
                elif _is_place(capture.container) and looking.vouches(capture):
                    others.append((path, capture))
            for path, line in looking.originals(text, forms, others):
                spool.add([line._replace(container=outside.number(path))])
            if len(named) >= _FETCHED:
                insert(database, "seen", named)
                named.clear()
    if looking.blind:
        warn(_BLIND)
    if looking.unread:
        warn(_UNREAD.format(looking.unread))
    insert(database, "seen", named)
    spool.finish(database)
    if outside.found:
        inputs.add_outside(list(outside.found.values()), home / "outside.parquet")
    database.execute('INSERT INTO named SELECT DISTINCT container, "offset" FROM seen')


def _real(path: str) -> str:
    """A file has one path, whatever links lead to it."""
    return path if is_remote(path) else os.path.realpath(path)


def _is_place(name: str) -> bool:
    """Whether a container says where it is."""
    return is_remote(name) or os.path.isabs(name)


def _fields(alike: MatchCriteria) -> tuple[str, ...]:
    """What is asked of payloads beside their digest."""
    return tuple(name for name in alike.columns() if name != "digest")


def _wanted(database: Database, fields: tuple[str, ...]) -> Iterator[tuple[bytes, set[Form]]]:
    """Every digest of lines that may become revisits, with the forms that its payloads have."""
    found = database.execute(f"""
        SELECT DISTINCT digest, {", ".join(fields)} FROM part
        WHERE stay = '' AND digest <> '' AND covers <> 0 ORDER BY digest""")

    def rows() -> Iterator[tuple[Any, ...]]:
        while some := found.fetchmany(_FETCHED):
            yield from some

    for text, group in groupby(rows(), key=itemgetter(0)):
        yield text.encode("latin-1"), {row[1:] for row in group}


class _Looking:
    """Reads records that an index names."""

    def __init__(self, view: View, fields: tuple[str, ...]) -> None:
        self._fields = fields
        self.blind = False  # whether it has no list of captures by URL
        self.unread = 0  # captures in files that it has not read
        self._view = view
        self._known: dict[str, bool] = {}

    def vouches(self, capture: Capture) -> bool:
        """Whether the index has read the record, and all the requests in its file."""
        if capture.evidence > Evidence.ROW:
            return False
        name = capture.container
        if name not in self._known:
            self._known[name] = self._view.container(name) is not None
        vouched = capture.evidence is Evidence.RECORD and self._known[name]
        self.unread += not vouched
        return vouched

    def originals(
        self, text: bytes, forms: set[Form], captures: list[tuple[str, Capture]]
    ) -> Iterator[tuple[str, Line]]:
        """For each form the earliest capture whose record has it now, with the path of its file."""
        wanted = set(forms)
        for path, capture in captures[:TRIED]:
            if not wanted:
                return
            try:
                line = record_now(path, capture.offset)
            except (BadSource, BrokenRecord):
                continue
            form = self._form(line)
            if (line.url, line.date) != (capture.url, capture.date):
                continue  # of another record there, nobody has seen the requests
            if line.digest == text and form in wanted and not line.unfit and not self._shared(line):
                wanted.discard(form)
                yield path, line._replace(stay="outside")

    def _form(self, line: Line) -> Form:
        """As the database has it: texts are the Latin-1 of bytes."""
        values = ((name, getattr(line, name)) for name in self._fields)
        return tuple(
            value.decode("latin-1") if TYPES[name] == "VARCHAR" else value for name, value in values
        )

    def _shared(self, line: Line) -> bool:
        """Whether the index has another payload at the same urlkey and second."""
        digest, digits = Digest.parse(line.digest.decode("latin-1")), digits_of_date(line.date)
        try:
            return any(
                digits_of_date(other.date) == digits and other.digest != digest
                for other in self._view.at_urlkey(urlkey(line.url))
            )
        except StrategyUnavailable:
            self.blind = True
            return False


def record_now(path: str, offset: int) -> Line:
    """The line of the response at an offset of a file; raises `BadSource` or `BrokenRecord`.

    Most records are short, and a window of the whole file would read and hash a mebibyte.
    """
    try:
        with RemoteFile(path) if is_remote(path) else open(path, "rb") as file:
            rest = max(file.seek(0, os.SEEK_END) - max(offset, 0), 0)
            if rest > _NEAR:
                with suppress(BadSource, BrokenRecord):
                    line = _response(Window(file, path, base=max(offset, 0), size=_NEAR), offset)
                    if line.stored < _NEAR - _MARGIN:
                        return line
            return _response(Window(file, path, base=max(offset, 0)), offset)
    except OSError as error:
        raise BadSource(f"{path} cannot be read: {error.strerror}") from error


def _response(window: Window, offset: int) -> Line:
    events = read(window)
    record = next(events, None)
    if not isinstance(record, Record) or record.type != b"response" or offset < 0:
        raise BadSource(f"{window.file.name} at {offset}: no response begins there")
    line = Judge(0, ManifestOptions()).line(record)
    record.finish()
    behind = next(events, None)
    if record.shared or (isinstance(behind, Record) and behind.offset == record.offset):
        raise BadSource(f"{window.file.name} at {offset}: several records share a member")
    return line._replace(offset=offset, stored=record.stored)


class _Outside:
    """Files that hold originals and are not of the set, numbered as they are met."""

    def __init__(self, view: View, last: int, partition: tuple[int, int]) -> None:
        self.found: dict[str, ManifestContainer] = {}
        self._view, self._last = view, last
        self._part, self._parts = partition

    def number(self, path: str) -> int:
        """The number of a file; no other part of the plan gives it to another."""
        if path not in self.found:
            number = self._last + self._part + len(self.found) * self._parts
            self.found[path] = self._container(path, number)
        return self.found[path].number

    def _container(self, path: str, number: int) -> ManifestContainer:
        """The file as it is now; its hash is the index's if it has not changed since."""
        size, modified, inode, device = _now(path)
        known = self._view.container(path)
        same = known is not None and (known.size, known.modified) == (size, modified)
        return ManifestContainer(
            number, os.path.dirname(path), os.path.basename(path), size, modified, inode, device,
            known.content_hash if known is not None and same else "",
        )  # fmt: skip


def _now(path: str) -> tuple[int, int, int, int]:
    """Size, time of change, inode and device of a file, or what an object has in their place."""
    if is_remote(path):
        said = facts(path)
        return said.size, said.mark, 0, 0
    now = os.stat(path)
    return now.st_size, now.st_mtime_ns, now.st_ino, now.st_dev
