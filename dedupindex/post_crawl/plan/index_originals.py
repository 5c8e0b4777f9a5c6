"""Look up the digests of a set in an index, for originals in other files.

An original in another file is accepted only if its record, read now, would be one in a manifest,
and if the index was made from its file, since the method of a request is known from the records
around it and not from rows of a CDX. What the index knows of revisits is in `index_references`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO

from dedupindex.capture import Capture, Evidence
from dedupindex.counts import OnProgress
from dedupindex.digest import Digest
from dedupindex.errors import BadDigest, BadSource, StrategyUnavailable
from dedupindex.index import open_index
from dedupindex.index.engine import View
from dedupindex.index.format.file_names import files_of
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
from dedupindex.post_crawl.plan.index_references import IndexReferences, real_path
from dedupindex.post_crawl.plan.manifest_input import ManifestInputs
from dedupindex.runtime.duckdb import Database, insert, literal, number, quoted, write_parquet
from dedupindex.runtime.progress import Say, watched
from dedupindex.runtime.tables import names_text
from dedupindex.sources.warc_files import status_of
from dedupindex.timestamps import digits_of_date, sort_key
from dedupindex.urlkey import urlkey
from dedupindex.warc.gzip_members import Damage, Filler
from dedupindex.warc.reader import is_padding, read
from dedupindex.warc.record import BrokenRecord, Record
from dedupindex.warc.window import Window
from dedupindex.warc.zstd_format import Dictionaries

LIMIT = 100  # captures of a digest that are looked at
TRIED = 8  # of these that are read
_BATCH = 1024
_MAY_HAVE = "not_rewritable_reason = '' AND digest <> '' AND covers <> 0"  # another original
_SHORT = 1 << 17  # bytes of a file that are read first for a record
_MARGIN = 64  # a record that ends this close to the end of these bytes may have been cut
_NO_URL_LIST = (
    "the index has no list of captures by URL, so its originals were not compared with other "
    "captures of their URL and second. That is fine unless a URL was captured twice within a "
    "second, with different content: some replay tools (OpenWayback, wabac.js) may then show the "
    "wrong one. To rule that out, build an index with bin/index --by-url and use that one"
)
_NOT_READ = (
    "captures known only from a CDX, a log or a crawler, which are no originals: {:,}. Whether "
    "they answer a POST is in their WARC files alone (bin/index --add these)"
)
_PACKED = (
    "captures in WACZ files, which are no originals, as these are read from WARC files only: {:,}. "
    "To use them, unpack the WARCs in {} and add these to the index"
)
_NO_PATH = (
    "captures in files of which the index knows the name only, which are no originals, as no "
    "source has that name: {:,}. bin/index --add these files: {}"
)
_UNREAD = (
    "warning: captures that may stay whole because their originals cannot be read: {:,}. Files "
    "that are not where the index has them, or not readable: {:,} ({}). If they moved, run "
    "bin/index --replace NEW INDEX --instead-of OLD, where OLD and NEW are directories, then "
    "this again"
)
_CHANGED = (
    "warning: captures that may stay whole because the files of their originals have other content "
    "than when they were indexed: {:,}. Such files: {:,} ({}). Run bin/index --replace FILE... "
    "INDEX on these, then this again"
)
_NAMED = 3  # files
Form = tuple[Any, ...]  # values of the columns that make payloads equal, without the digest


def find_originals(
    database: Database, inputs: ManifestInputs, index: Path, rule: GroupingRule, home: Path,
    warn: Say, on_progress: OnProgress,
) -> UnreadOriginals:  # fmt: skip
    """Add originals in other files, and references to the set that the index knows.

    The views must be created again then. Fills ``answered``.
    """
    unread = UnreadOriginals(database)
    columns = tuple(name for name in rule.criteria.columns() if name != "digest")
    with (
        closing(open_index(index)) as engine,
        engine.view() as view,
        IndexReferences(index, engine, view) as references,
    ):
        lines = references.from_ledger(frozenset(map(real_path, inputs.numbers)))
        inputs.index_references = _write_references(database, lines, home, on_progress)
        finder = _IndexOriginalFinder(view, columns, inputs, unread)
        with closing(_OutsideOriginals(view, inputs, rule, home)) as outside:
            _insert_all(database, references.possible_former_answers())
            digests = _digests(database.cursor(), columns)
            count = number(database, f"SELECT count(DISTINCT digest) FROM part WHERE {_MAY_HAVE}")
            for text, forms in watched(digests, "asking the index", count, on_progress):
                try:
                    digest = Digest.parse(text.decode("latin-1"))
                except BadDigest:
                    continue
                for path, line in finder.originals(digest, text, forms):
                    outside.add(path, line)
                _insert_all(database, references.possible_answers(digest))
            outside.finish(database)
        for reason in (*finder.reasons(), references.why_kept):
            if reason:
                warn(reason)
    return unread


def _insert_all(database: Database, replay_keys: Iterator[int]) -> None:
    while batch := list(islice(replay_keys, _BATCH)):
        insert(database, "answered", [(key,) for key in batch])


def _write_references(
    database: Database, lines: Iterator[Line], home: Path, on_progress: OnProgress
) -> Path:
    """Write what the revisits in the ledger refer to, as a manifest has references."""
    target = home / "references.parquet"
    writer = ParquetWriter(target)
    lines = watched(lines, "reading revisits of the index", 0, on_progress)
    while batch := list(islice(lines, _BATCH)):
        writer.add(batch)
    writer.finish(database)
    return target


class _OutsideOriginals:
    """Originals in files outside of the set, for `ManifestInputs`."""

    def __init__(self, view: View, inputs: ManifestInputs, rule: GroupingRule, home: Path) -> None:
        self._view, self._inputs, self._partition = view, inputs, rule.partition
        self._containers: dict[str, ManifestContainer] = {}  # by path
        self._found, self._used = home / "found.parquet", home / "outside.parquet"
        self._writer = ParquetWriter(self._found)

    def close(self) -> None:
        self._writer.drop()

    def add(self, path: str, line: Line) -> None:
        if path not in self._containers:  # no other part of the plan gives its number to another
            part, parts = self._partition
            number = len(self._inputs.containers) + part + len(self._containers) * parts
            self._containers[path] = _container(self._view, path, number)
        self._writer.add([line._replace(container=self._containers[path].number)])

    def finish(self, database: Database) -> None:
        """Give the originals to the inputs.

        One with the urlkey and second of a record of the set is left out: it would only make that
        record ambiguous. So an index never takes an original from the set.
        """
        self._writer.finish(database)
        if not self._containers:
            return
        rows = (
            f"SELECT * FROM read_parquet({quoted(literal(self._found))}) "
            "ANTI JOIN lines USING (replay_key)"
        )
        write_parquet(database, rows, self._used)
        query = f"SELECT DISTINCT container FROM read_parquet({quoted(literal(self._used))})"
        numbers = {number for (number,) in fetch_rows(database, query)}
        self._inputs.outside = [
            container for container in self._containers.values() if container.number in numbers
        ]
        self._inputs.outside_lines = self._used if numbers else None


def _digests(database: Database, columns: tuple[str, ...]) -> Iterator[tuple[bytes, set[Form]]]:
    """Yield each digest of lines that may become revisits, with the forms of its payloads."""
    query = f"""
        SELECT DISTINCT digest, {", ".join(columns)} FROM part WHERE {_MAY_HAVE} ORDER BY digest"""
    rows = fetch_rows(database, query)
    for text, group in groupby(rows, key=itemgetter(0)):
        yield text.encode("latin-1"), {row[1:] for row in group}


class UnreadOriginals:
    """Captures that an index has in files that are gone, cannot be read or have changed."""

    def __init__(self, database: Database) -> None:
        self._database, self._rows = database, list[tuple[str, str, int]]()
        self._files: dict[tuple[str, bool], int] = {}  # numbers, as a name need not be UTF-8
        database.execute("CREATE TABLE unread (digest VARCHAR, date VARCHAR, file INTEGER)")

    def add(self, digest: bytes, capture: Capture, *, changed: bool) -> None:
        """Add a capture, under the text of a digest as the set has it."""
        file = self._files.setdefault((capture.container, changed), len(self._files))
        self._rows.append((digest.decode("latin-1"), capture.date.decode("latin-1"), file))
        if len(self._rows) >= _BATCH:
            self._insert()

    def _insert(self) -> None:
        insert(self._database, "unread", self._rows)
        self._rows.clear()

    def count(self, first_place: int, rule: GroupingRule, warn: Say) -> int:
        """Return how many captures of the set stay whole for lack of these, and warn of them.

        Needs ``outcomes``: a capture that has become a copy of another one is not counted.
        """
        self._insert()
        if not self._files:
            return 0
        self._database.execute(f"""
            CREATE TABLE lacking AS
            SELECT place, file FROM part JOIN unread USING (digest)
            WHERE place >= {first_place} AND not_rewritable_reason = '' AND covers <> 0
              AND ({rule.later} OR left(part.date, 19) > left(unread.date, 19))
              AND place NOT IN (
                SELECT place FROM outcomes
                WHERE outcome NOT IN ('original', 'no-original', 'no-earlier-original'))""")
        rows = fetch_rows(self._database, "SELECT DISTINCT file FROM lacking")
        found, files = {file for (file,) in rows}, list(self._files)
        for text, changed in ((_UNREAD, False), (_CHANGED, True)):
            numbers = [file for file in found if files[file][1] is changed]
            if missed := sorted(files[file][0] for file in numbers):
                among = ", ".join(map(str, numbers))
                query = f"SELECT count(DISTINCT place) FROM lacking WHERE file IN ({among})"
                count = number(self._database, query)
                warn(text.format(count, len(missed), names_text(missed, _NAMED)))
        return number(self._database, "SELECT count(DISTINCT place) FROM lacking")


class _IndexOriginalFinder:
    def __init__(
        self, view: View, columns: tuple[str, ...], inputs: ManifestInputs, unread: UnreadOriginals
    ) -> None:
        self._view, self._columns, self._unread = view, columns, unread
        self._set = {real_path(path) for path in inputs.numbers}
        self._set_names = {os.path.basename(path) for path in inputs.numbers}
        self._was_read: dict[str, bool] = {}  # by container
        self._damage: dict[str, int] = {}  # by path: see `first_damage`
        self._packed = Counter[str]()  # captures in WACZ files
        self._no_url_list = False  # whether the index lacks captures by URL
        self._not_read = 0  # captures in files that the index was not made from
        self._no_path = Counter[str]()  # captures in files of which only the name is known

    def reasons(self) -> Iterator[str]:
        """Yield why there may be fewer originals than the index has captures."""
        if self._no_url_list:
            yield _NO_URL_LIST
        if self._not_read:
            yield _NOT_READ.format(self._not_read)
        if self._packed:
            files = names_text(sorted(self._packed), _NAMED)
            yield _PACKED.format(self._packed.total(), files)
        if self._no_path:
            files = names_text(sorted(self._no_path), _NAMED)
            yield _NO_PATH.format(self._no_path.total(), files)

    def originals(
        self, digest: Digest, text: bytes, forms: set[Form]
    ) -> Iterator[tuple[str, Line]]:
        """Yield the earliest original of each form, with the path of its file."""
        wanted, unread = set(forms), list[tuple[Capture, bool]]()
        for path, capture in self._candidates(digest)[:TRIED]:
            if not wanted:
                return
            try:
                line = read_line(path, capture.offset)
                if self._is_behind_damage(path, capture):
                    continue
            except (BadSource, BrokenRecord) as error:
                is_gone = isinstance(error.__cause__, OSError)  # the file, not the record
                if is_gone or self._has_changed(capture, path):
                    unread.append((capture, not is_gone))
                continue
            if (line.url, line.date) != (capture.url, capture.date) or line.digest != text:
                if self._has_changed(capture, path):
                    unread.append((capture, True))
                continue  # another record, whose request the index has not seen
            form = self._form(line)
            fits = form in wanted and not line.not_original_reason
            if fits and not self._is_ambiguous(line):
                wanted.discard(form)
                yield path, line._replace(not_rewritable_reason="outside")
        for capture, changed in unread if wanted else ():
            self._unread.add(text, capture, changed=changed)

    def _has_changed(self, capture: Capture, path: str) -> bool:
        """Whether a file has another size or time than when it was indexed."""
        known = self._view.container(capture.container)
        now = None
        with suppress(BadSource):
            now = status_of(path)
        if known is None or now is None:
            return False
        return (known.size, known.modified) != now[:2]

    def _candidates(self, digest: Digest) -> list[tuple[str, Capture]]:
        """Return captures outside of the set that may be originals, with the paths of their files.

        A file of which the index knows only the name is one of the set if that has the name.
        """
        found = []
        for capture in sorted(self._view.any(digest, LIMIT), key=lambda one: sort_key(one.date)):
            name, path = capture.container, real_path(capture.container)
            if path in self._set or ("/" not in name and name in self._set_names):
                continue
            if not (is_remote(name) or os.path.isabs(name)):
                self._no_path[name] += 1
            elif self._is_verified(capture):
                found.append((path, capture))
        return found

    def _is_verified(self, capture: Capture) -> bool:
        """Whether the index was made from the record and all requests in its file."""
        if capture.evidence > Evidence.ROW:
            return False
        name = capture.container
        if name not in self._was_read:
            self._was_read[name] = self._view.container(name) is not None
        if not self._was_read[name]:
            around = (file for file in files_of(name) if self._view.container(file) is not None)
            if packed := next(around, ""):
                self._packed[packed] += 1
                return False
        verified = capture.evidence is Evidence.RECORD and self._was_read[name]
        self._not_read += not verified
        return verified

    def _is_behind_damage(self, path: str, capture: Capture) -> bool:
        """Whether replay tools stop before a record; raises `BadSource`.

        A file is read for that once, if the index has found something wrong in it.
        """
        container = self._view.container(capture.container)
        if container is None or not container.damaged:
            return False
        if path not in self._damage:
            self._damage[path] = first_damage(path)
        return 0 <= self._damage[path] < capture.offset

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
            self._no_url_list = True
            return False


def read_line(path: str, offset: int) -> Line:
    """Return the line of the response at an offset; raises `BadSource` or `BrokenRecord`."""
    with _opened(path) as file:
        rest = max(file.seek(0, os.SEEK_END) - max(offset, 0), 0)
        if rest > _SHORT:  # a window of the whole file reads and hashes a mebibyte
            with suppress(BadSource, BrokenRecord):
                line = _response(Window(file, path, base=max(offset, 0), size=_SHORT), offset)
                if line.stored < _SHORT - _MARGIN:
                    return line
        return _response(Window(file, path, base=max(offset, 0)), offset)


def first_damage(path: str) -> int:
    """Return the offset of the first damage in a file, -1 if there is none; raises `BadSource`."""
    with _opened(path) as file:
        window = Window(file, path)
        for event in read(window):
            padding = isinstance(event, Filler) and is_padding(window, event)
            if padding or isinstance(event, Damage):
                return event.offset
    return -1


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    """Yield a file or an object; raises `BadSource` also if it cannot be read meanwhile."""
    try:
        with RemoteFile(path) if is_remote(path) else open(path, "rb") as file:
            yield file
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
