"""Read records of containers: in their files, or where files of other machines can be read.

A manifest names a file by path, and perhaps by host. A file that is not on this machine is read by
range from the URLs that a table has for it, or below base URLs. Nothing that is read in this way is
believed: whoever reads a record compares it with what the manifest says.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple
from urllib.parse import quote

from dedupindex.errors import SOURCE_ERRORS, BadInput, BadSource, StoreUnavailable
from dedupindex.object_store import RemoteFile, is_lasting, is_remote, with_retries
from dedupindex.post_crawl.manifest.parquet import ManifestContainer, fetch_rows
from dedupindex.runtime.duckdb import Database, errors_as, insert, literal, one_thread, quoted
from dedupindex.warc.reader import read
from dedupindex.warc.record import BrokenRecord, Record
from dedupindex.warc.window import Window
from dedupindex.warc.zstd_format import Dictionaries, DictionaryCache

if TYPE_CHECKING:
    from dedupindex.object_store.http_ranges import HttpRanges

HOST = "{host}"
"""In a base URL: where the name of the file's host stands."""
_SYNTAX = {".csv": "delim = ',', quote = '\"'", ".tsv": "delim = '\t', quote = ''"}
"""How DuckDB reads a table of URLs, by the ending of its name."""


class ContainerUrls(NamedTuple):
    """Where containers are that are not on this machine."""

    bases: tuple[str, ...] = ()  # URLs; below these files have their names
    listed: Mapping[int, tuple[str, ...]] = {}  # URLs of a table, by number of the container
    host: str = ""  # the name of this machine, if containers have hosts
    trusted: bool = False  # files of other hosts are not read: their manifests are believed
    stores: bool = False  # objects that other hosts have scanned are read at their addresses

    @property
    def reads_elsewhere(self) -> bool:
        """Whether originals of other hosts can be read, or need not be."""
        return bool(self.bases or self.listed or self.trusted)

    def is_here(self, container: ManifestContainer) -> bool:
        """Whether the path of a container is one of this machine."""
        return container.host in ("", self.host)

    def of(self, container: ManifestContainer) -> list[str]:
        """Return the URLs of a container, in the order in which they are tried."""
        name = quote(os.fsencode(container.name))
        below = [
            f"{base.replace(HOST, quote(container.host, safe='')).rstrip('/')}/{name}"
            for base in self.bases
        ]
        at = self.stores and not self.is_here(container) and is_remote(container.path)
        own = [container.path] if at else []
        return [*self.listed.get(container.number, ()), *below, *own]


def container_urls(
    containers: Iterable[ManifestContainer], bases: tuple[str, ...], table: Path | None, host: str
) -> ContainerUrls:
    """Return where containers are that are not on this machine, which is `host`.

    Raises `BadInput` for a base that is not a URL, and for what is not a table of URLs.
    """
    for base in bases:
        if not base.startswith(("http://", "https://")):
            raise BadInput(f"--base-url {base} begins neither with http:// nor https://")
    listed = {} if table is None else _read_table(table, list(containers))
    return ContainerUrls(bases, listed, host, stores=True)


def _read_table(table: Path, containers: list[ManifestContainer]) -> dict[int, tuple[str, ...]]:
    """Return the URLs that a table has for containers, by number; raises `BadInput`.

    A row is for the file of that path, of that name below its source, or of that file name. What
    several containers are called is taken for none of them. Only rows of containers are held,
    whatever the length of the table.
    """
    found: defaultdict[int, list[tuple[int, str]]] = defaultdict(list)
    rows = _rows_of(table)
    try:
        with one_thread() as database, errors_as(BadInput):
            for number, rank, url in _joined(database, rows, containers):
                if not is_remote(url):
                    raise BadInput(f"{url[:200]} is not a URL")
                found[number].append((rank, url))
    except BadInput as error:
        raise BadInput(f"--urls {table}: {error}") from error
    return {
        number: tuple(url for _, url in sorted(urls, key=lambda pair: pair[0]))
        for number, urls in found.items()
    }


def _rows_of(table: Path) -> str:
    path, name = quoted(literal(table)), table.name.lower()
    if name.endswith(".parquet"):
        return f"read_parquet({path})"
    ending = os.path.splitext(name.removesuffix(".gz").removesuffix(".zst"))[1]
    if ending not in _SYNTAX:
        raise BadInput(f"--urls {table}: its name ends in .parquet, .tsv, .csv, .tsv.gz or .csv.gz")
    return f"read_csv({path}, header = true, all_varchar = true, {_SYNTAX[ending]})"


def _joined(
    database: Database, rows: str, containers: list[ManifestContainer]
) -> Iterator[tuple[int, int, str]]:
    """Yield number and rank of a container with a URL, in the order of the table."""
    described = database.execute(f"DESCRIBE SELECT * FROM {rows}").fetchall()
    columns = {row[0].lower() for row in described}
    if missing := [name for name in ("name", "url") if name not in columns]:
        raise BadInput(
            f"it has no column {missing[0]}: its columns are name and url, and host where files of "
            "several hosts have one name"
        )
    by_host = "host" in columns
    _create_wanted(database, containers, by_host=by_host)
    same_host = "AND CAST(t.host AS VARCHAR) = w.host" if by_host else ""
    database.execute("SET disabled_optimizers = 'join_order,build_side_probe_side'")
    yield from fetch_rows(
        database,
        f"""
        SELECT w.number, w.rank, CAST(t.url AS VARCHAR) FROM {rows} AS t
        JOIN wanted AS w ON CAST(t.name AS VARCHAR) = w.name {same_host}
        WHERE t.url IS NOT NULL""",
    )


def _create_wanted(
    database: Database, containers: list[ManifestContainer], *, by_host: bool
) -> None:
    """Create ``wanted``: the names that rows may have for a container, the best of rank 0."""
    names: dict[tuple[str, str], tuple[int, int]] = {}
    several = set()
    for one in containers:
        host = one.host if by_host else ""
        for rank, name in enumerate(
            dict.fromkeys((one.path, one.name, os.path.basename(one.name)))
        ):
            try:
                name.encode()
            except UnicodeEncodeError:  # no table has it
                continue
            if (host, name) in names:
                several.add((host, name))
            names[host, name] = one.number, rank
    database.execute(
        "CREATE TABLE wanted (name VARCHAR, host VARCHAR, number INTEGER, rank INTEGER)"
    )
    rows = [
        (name, host, *place) for (host, name), place in names.items() if (host, name) not in several
    ]
    insert(database, "wanted", rows)


class RecordReader:
    """Reads records from files of this machine, from object stores and from URLs."""

    def __init__(self, urls: ContainerUrls = ContainerUrls()) -> None:  # noqa: B008 (immutable)
        self._urls = urls
        self._ranges: HttpRanges | None = None
        self._preferred: dict[str, str] = {}  # the beginning of the URL that had a file, by root
        self._dictionaries = DictionaryCache()
        self.counts: Counter[str] = Counter()  # of records read here, in stores, from URLs
        self.fetching = 0.0  # seconds

    def close(self) -> None:
        if self._ranges is not None:
            self._ranges.close()

    def body(
        self, container: ManifestContainer, offset: int, stored: int, length: int
    ) -> Generator[bytes, None, None]:
        """Yield the last `length` bytes of the block of a record, in pieces; raises `BadSource`."""
        where = f"{container.place} at {offset}"
        with self._opened(container, offset, stored) as (file, base, origin):
            self.counts[origin] += 1
            window = Window(file, container.path, base=base, size=stored)
            record = next(read(window, partial(self.dictionaries, container)), None)
            if not isinstance(record, Record):
                raise BadSource(f"{where}: no record begins there")
            skipped = record.length - length
            if skipped < 0:
                raise BadSource(f"{where}: the record is shorter than it was")
            try:
                for piece in record.pieces():
                    if skipped < len(piece):
                        yield bytes(piece[skipped:] if skipped else piece)
                    skipped = max(skipped - len(piece), 0)
            except BrokenRecord as error:
                raise BadSource(f"{where}: {error}") from error

    def dictionaries(self, container: ManifestContainer) -> Dictionaries:
        """Return the zstd dictionaries of a container; raises `BadSource`."""
        return self._dictionaries.get(container.key, partial(self._range, container))

    def _range(self, container: ManifestContainer, offset: int, count: int) -> bytes:
        count = min(count, container.size - offset)
        if count <= 0:
            return b""
        with self._opened(container, offset, count) as (file, base, _):
            return Window(file, container.path, base=base, size=count).read(0, count)

    @contextmanager
    def _opened(
        self, container: ManifestContainer, offset: int, stored: int
    ) -> Iterator[tuple[BinaryIO, int, str]]:
        """Yield a file with a range of a container, its offset in that, and where it was read."""
        urls = self._urls.of(container)
        if is_remote(container.path) and not urls:
            with RemoteFile(container.path) as remote:
                yield remote, offset, "remote"
        elif self._urls.is_here(container) and (not urls or os.path.exists(container.path)):
            try:
                file: BinaryIO = open(container.path, "rb")  # noqa: SIM115
            except OSError as error:
                raise BadSource(f"{container.path} cannot be read: {error.strerror}") from error
            with file:
                yield file, offset, "local"
        else:
            with tempfile.TemporaryFile() as fetched:
                self.fetch(container, offset, stored, fetched)
                yield fetched, 0, "fetched"

    def fetch(
        self, container: ManifestContainer, offset: int, stored: int, target: BinaryIO
    ) -> None:
        """Write a range of a file to `target`, from the first URL that has it.

        Raises `BadSource`, or `StoreUnavailable` if a server does not answer.
        """
        place = f"{container.place} at {offset}"
        work = partial(self._fetch_once, container, offset, stored, target)
        with_retries(place, work, "fetched")

    def _fetch_once(
        self, container: ManifestContainer, offset: int, stored: int, target: BinaryIO
    ) -> None:
        """Try each URL; raises `OSError` if one of them may answer later."""
        from dedupindex.object_store.http_ranges import FAILURES, HttpRanges  # slow: HTTP

        failures, passing = list[str](), False
        self._ranges = self._ranges or HttpRanges()
        urls = self._urls.of(container)
        preferred = self._preferred.get(container.place)
        for url in sorted(urls, key=lambda url: url != preferred):
            target.seek(0)
            target.truncate()
            begin = time.monotonic()
            try:
                count = self._fetch_from(url, offset, stored, target)
            except (*FAILURES, *SOURCE_ERRORS) as error:
                failures.append(f"{url}: {error}")
                passing = passing or isinstance(error, StoreUnavailable) or not is_lasting(error)
                continue
            finally:
                self.fetching += time.monotonic() - begin
            if count == stored:
                target.flush()
                self._preferred[container.place] = url
                return
            failures.append(f"{url}: {count:,} bytes received, not {stored:,}")
        why = "; ".join(failures) or "it is on another machine, and no URL was given for it"
        if passing:
            raise OSError(why)
        raise BadSource(f"{container.place} at {offset} cannot be fetched: {why}")

    def _fetch_from(self, url: str, offset: int, stored: int, target: BinaryIO) -> int:
        if url.startswith(("http://", "https://")):
            assert self._ranges is not None
            return self._ranges.fetch(url, offset, stored, target)
        count = 0
        with RemoteFile(url) as remote:
            remote.seek(offset)
            while count < stored and (piece := remote.read(min(stored - count, 1 << 20))):
                count += target.write(piece)
        return count
