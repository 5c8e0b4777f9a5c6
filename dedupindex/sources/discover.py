"""Find the containers that a user names, and detect their kind from their content.

Names are those of files, directories, globs, addresses, and ``-``. The name of a file does not
determine its kind.
"""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple
from zipfile import BadZipFile, ZipFile

from dedupindex.capture import Problem
from dedupindex.errors import BadSource
from dedupindex.object_store import (
    AT_ONCE,
    FoundObject,
    ObjectFacts,
    RemoteFile,
    facts,
    find_objects,
    is_many,
    is_remote,
    local,
    meant_address,
    open_anywhere,
    redacted,
)
from dedupindex.runtime.walk_directories import OnError, matches, walk_visible
from dedupindex.sources.cdx_columns import is_cdx
from dedupindex.sources.crawl_log import has_uri, is_crawl_log
from dedupindex.sources.line_source import GZIP, inflated
from dedupindex.sources.plugins import plugin_kinds
from dedupindex.sources.service_address import service_of
from dedupindex.sources.table_columns import MAGIC, NO_NAMES, Names, is_table
from dedupindex.sources.warcprox_db import is_warcprox_database
from dedupindex.sources.zipnum import ZipNumCluster, is_cluster
from dedupindex.warc.zstd_format import UnreadableFrame, content_start, is_zstd

KINDS = (
    "warc", "arc", "wacz", "cdx", "cdxj", "parquet", "crawllog", "browsertrix", "outbackcdx",
    "warcprox",
)  # fmt: skip
HEAD = 1 << 15  # bytes of a file that are examined
ZIP = (b"PK\x03\x04", b"PK\x05\x06")
NO_ZSTD = "is compressed with zstd and was not read: "
"""The beginning of the problem of such a file."""
_ALIASES = {"warciterator": "warc", "crawllogiterator": "crawllog", "arc": "warc"}
_LINES = 100  # examined; the first that is recognised decides
STDIN = "-"
WORKING = ".dedup"  # ending of a directory of working files
UNFINISHED = (".part", ".open")  # endings of files that are still being written
_LISTS = re.compile(r"\.(log|cdxj?|json|parquet|sqlite|db)(\.[a-z0-9]+)*$", re.IGNORECASE)
_ARCHIVES = re.compile(r"\.w?arc(\.[a-z0-9]+)*$", re.IGNORECASE)
_ARCHIVE = re.compile(r"\.w?arc(\.(gz|zst))?$", re.IGNORECASE)  # not its .md5, for example
_SIDECARS = ("*.idx", "*-errors.log*")  # Heritrix repeats lines of crawl.log in its error logs
NO_RECORD = "is named like an archive and does not begin with a record: its beginning is damaged"
_CRAWL_LOG = re.compile(r"crawl\.log(\.cp\d+-\d+)?(\.gz)?")  # Heritrix's, and its rotated parts
_NO_LINE = "is named like a crawl log and does not begin with its lines: its beginning is damaged"
_OF_CAPTURES = re.compile(r"\.(wacz|cdxj?|parquet|sqlite|db)(\.[a-z0-9]+)?$", re.IGNORECASE)
_EMPTY = "is empty"
_INDEX = ("index.json", b'"canonicaliser"')  # a file of our indexes, and what it contains
_NAMED = 1000  # skipped files
_UNFINISHED = ".open"  # what Heritrix and warcprox add to the name of a file while they write it


def unfinished_hint(skipped: Sequence[str]) -> str:
    """Return what to do about skipped files that a crawler is writing, "" if there are none."""
    names = (path.removesuffix(_UNFINISHED) for path in skipped if path.endswith(_UNFINISHED))
    count = sum(bool(_ARCHIVE.search(name)) for name in names)
    if not count:
        return ""
    which = "1 ends in .open: its" if count == 1 else f"{count:,} end in .open: their"
    it = "it" if count == 1 else "them"
    return f"{which} crawler has not closed {it}; once it has ended, rename {it} without .open"


@dataclass
class Expanded:
    """The containers that were found."""

    paths: list[str] = field(default_factory=list)  # absolute, "-", or an address
    skipped: int = 0  # files of directories and globs that are not sources
    skipped_files: list[str] = field(default_factory=list)  # the first `_NAMED` of them
    problems: list[Problem] = field(
        default_factory=list
    )  # such files that may be sources, and directories
    unlisted: set[str] = field(default_factory=set)  # directories among them, not listed
    archives: list[str] = field(default_factory=list)  # both, if they are named like archives
    remote: dict[str, ObjectFacts] = field(default_factory=dict)  # of objects, by address
    columns: Names = field(default_factory=dict)  # of tables, see `table_columns`

    def skip(self, path: str) -> None:
        """Count a file that is not a source, and name it if it is one of the first."""
        self.skipped += 1
        if len(self.skipped_files) < _NAMED:
            self.skipped_files.append(path)

    def require_any(self, sources: Sequence[str], purpose: str) -> None:
        """Raise `BadSource` if nothing was found in sources, not even damage."""
        if self.paths or self.problems:
            return
        files = "1 file" if self.skipped == 1 else f"{self.skipped:,} files"
        hint = unfinished_hint(self.skipped_files)
        more = f"; {hint}" if hint else ""
        passed = f" ({files} of no known kind passed over{more})" if self.skipped else ""
        raise BadSource(
            f"nothing to {purpose} in {', '.join(sources)}: no WARC, ARC, WACZ, CDX, CDXJ, "
            f"Parquet table or crawl log was found{passed}"
        )


def expand(sources: Sequence[str], *kinds: str | None, columns: Names = NO_NAMES) -> Expanded:
    """Find the containers that `sources` name.

    The index of a ZipNum cluster that the user names is replaced by its parts. Directories are
    searched recursively, in the order of names. Hidden and unfinished files and indexes are left
    out; files of other kinds than `kinds` are counted. Files whose kind cannot be detected
    (unreadable, some with zstd, empty or damaged ones whose name says a kind) are problems. A file
    named by the user is always included. Raises `BadSource` for a source that does not exist or is
    not a file.
    """
    wanted = frozenset(map(kind_named, filter(None, kinds))) or frozenset(KINDS)
    found = Expanded(columns=columns)
    visited: set[tuple[int, int]] = set()
    for source in map(local, sources):
        if is_stream(source):
            found.paths.append(source)
        elif not (is_remote(source) and is_many(source)) and is_cluster(source):
            with ZipNumCluster(source) as cluster:
                _add_named(cluster.parts(), found)
        elif is_remote(source):
            _find_remote(source, wanted, found)
        elif os.path.isdir(source):
            _search(os.path.abspath(source), wanted, found, visited)
        elif meant := meant_address(source):
            raise BadSource(f"{source} does not exist: did you mean {redacted(meant)}?")
        elif os.path.lexists(source) or not glob.has_magic(source):
            _add_named([source], found)
        else:
            _find_by_glob(source, wanted, found, visited)
    found.paths = list(dict.fromkeys(found.paths))
    return found


def _add_named(paths: Sequence[str], found: Expanded) -> None:
    """Add files and objects that the user, or an index that the user named, names."""
    for path in paths:
        if is_remote(path):
            found.remote[path] = facts(path)
            found.paths.append(path)
        else:
            found.paths.append(check_regular_file(os.path.abspath(path)))


def is_stream(path: str) -> bool:
    """Return whether a source is standard input or a service, which differ each time."""
    return path == STDIN or service_of(path) is not None


def is_unfinished(path: str) -> bool:
    """Return whether the name of a file says that it is still being written."""
    return path.endswith(UNFINISHED)


def is_archive_name(path: str) -> bool:
    """Return whether a file is named like a WARC, ARC or WACZ file."""
    name = os.path.basename(path).lower()
    return name.endswith(".wacz") or _ARCHIVES.search(name) is not None


def is_list_name(path: str) -> bool:
    """Return whether a file is named like a log, CDX file or another list of captures."""
    name = os.path.basename(path).lower()
    is_archive = name.endswith(".wacz") or _ARCHIVE.search(name) is not None
    return not is_archive and _LISTS.search(name) is not None


def check_regular_file(path: str) -> str:
    """Return `path` if it is a regular file; raises `BadSource`."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise BadSource(f"{path} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(mode):
        raise BadSource(
            f"{path} is not a file; to read from a pipe, give - and redirect it to stdin"
        )
    return path


def _find_by_glob(
    pattern: str, wanted: frozenset[str], found: Expanded, visited: set[tuple[int, int]]
) -> None:
    known = len(found.problems)
    matching = matches(pattern, _unreadable(found))
    if not matching and len(found.problems) == known:
        raise BadSource(f"nothing matches {pattern}")
    for path in map(os.path.abspath, matching):
        if not os.path.isdir(path):
            _add(path, wanted, found)
        elif "**" not in pattern:  # which matches all files below, too
            _search(path, wanted, found, visited)


def has_working_files(directory: str) -> bool:
    """Return whether a directory is that in which `bin/dedup` keeps manifest and plan."""
    return directory.endswith(WORKING) and os.path.isfile(os.path.join(directory, "dedup.json"))


def _search(
    top: str, wanted: frozenset[str], found: Expanded, visited: set[tuple[int, int]]
) -> None:
    """Add every file below a directory; links are followed, no directory is entered twice."""

    def is_own(directory: str) -> bool:
        return _is_index(Path(directory)) or (directory != top and has_working_files(directory))

    for path in walk_visible(top, _unreadable(found), visited, leave_out=is_own):
        _add(path, wanted, found)


def _unreadable(found: Expanded) -> OnError:
    """Return what adds a directory that cannot be listed to the problems."""

    def add(error: OSError) -> None:
        path = os.path.abspath(error.filename)
        found.problems.append(Problem(path, -1, f"unreadable: {error.strerror}"))
        found.unlisted.add(path)

    return add


def _find_remote(source: str, wanted: frozenset[str], found: Expanded) -> None:
    if not is_many(source):
        _add_named([source], found)
        return
    hidden = [part for part in source.split("/") if part.startswith(".")]  # by intention
    objects = [each for each in find_objects(source) if _is_visible(each.address, hidden)]
    found.remote.update(objects)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        probing = partial(_probe_object, columns=found.columns)
        for (address, _), probe in zip(objects, pool.map(probing, objects), strict=True):
            _add(address, wanted, found, probe)


def _is_visible(address: str, hidden: list[str]) -> bool:
    """Return whether all hidden names of an address match one of the patterns `hidden`."""
    names = [part for part in address.split("/") if part.startswith(".")]
    return all(any(fnmatchcase(name, pattern) for pattern in hidden) for name in names)


def _add(path: str, wanted: frozenset[str], found: Expanded, probe: _Probe | None = None) -> None:
    """Add, skip or report a file that the user did not name itself."""
    name = os.path.basename(path)
    if name.startswith("."):
        return
    count = len(found.paths)
    if _is_sidecar(name):
        found.skip(path)
    else:
        _classify(path, name, wanted, found, probe or _probe(path, columns=found.columns))
    if len(found.paths) == count and _ARCHIVES.search(name):
        found.archives.append(path)


def _is_sidecar(name: str) -> bool:
    """Return whether a file is left out, whatever it contains."""
    return is_unfinished(name) or any(fnmatchcase(name, pattern) for pattern in _SIDECARS)


class _Probe(NamedTuple):
    """The beginning of a file."""

    kind: str = ""
    problem: str = ""  # why its kind cannot be detected
    error: str = ""  # why it cannot be read


def _probe(path: str, known: ObjectFacts | None = None, columns: Names = NO_NAMES) -> _Probe:
    """Read the beginning of a file, or of an object with `known` facts."""
    try:
        if known is None and not stat.S_ISREG(os.stat(path).st_mode):
            return _Probe(error="is not a regular file")
        with open(path, "rb") if known is None else RemoteFile(path, known) as stream:
            head = stream.read(HEAD)
            if not head:
                return _Probe(problem=_EMPTY)
            if problem := zstd_problem(head, stream):
                return _Probe(problem=problem)
            kind = kind_of(head, stream, columns)
            return _Probe("" if kind == "crawllog" and _is_other_log(path, head) else kind)
    except OSError as error:
        return _Probe(error=f"cannot be read: {error.strerror}")
    except BadSource as error:
        return _Probe(error=str(error).removeprefix(f"{redacted(path)} "))


def _is_other_log(path: str, head: bytes) -> bool:
    """Return whether a file only looks like a crawl log, as progress-statistics.log does."""
    is_named = _CRAWL_LOG.fullmatch(os.path.basename(path)) is not None
    return not is_named and not any(is_crawl_log(line) and has_uri(line) for line in _lines(head))


def _says_kind(name: str) -> bool:
    """Return whether a file is named like one of a known kind, which it is not if it is empty."""
    patterns = _CRAWL_LOG.fullmatch, _ARCHIVE.search, _OF_CAPTURES.search
    return any(pattern(name) is not None for pattern in patterns)


def _probe_object(found: FoundObject, columns: Names) -> _Probe:
    return _Probe() if _is_sidecar(os.path.basename(found.address)) else _probe(*found, columns)


def _classify(path: str, name: str, wanted: frozenset[str], found: Expanded, probe: _Probe) -> None:
    kind, problem, error = probe
    if error:
        found.problems.append(Problem(path, -1, error))
    elif wanted == {"warc"} and not kind and not _ARCHIVES.search(name):
        found.skip(path)  # it may be empty, but is not named like an archive
    elif problem == _EMPTY and not _says_kind(name):
        found.skip(path)  # such as logs of crawlers that had nothing to say, and lock files
    elif problem:
        found.problems.append(Problem(path, 0, problem))
    elif kind == "warcprox" and is_remote(path):
        found.skip(path)  # only a local database can be read
    elif kind in wanted or (not kind and not wanted & set(KINDS)):  # only a plugin may know it
        found.paths.append(path)
    elif not kind and "warc" in wanted and _ARCHIVE.search(name):
        found.problems.append(Problem(path, 0, NO_RECORD))
    elif not kind and "crawllog" in wanted and _CRAWL_LOG.fullmatch(name):
        found.problems.append(Problem(path, 0, _NO_LINE))
    else:
        found.skip(path)


def _is_index(directory: Path) -> bool:
    name, content = _INDEX
    try:
        return content in (directory / name).read_bytes()[:HEAD]
    except OSError:
        return False


def kind_named(name: str) -> str:
    """Return the kind that an option names.

    It is one of `KINDS`, an iterator class of Heritrix, or one that a package adds. ``arc`` is
    ``warc``, because one reader reads both. Raises `BadSource`.
    """
    plain = name.rpartition(".")[2].lower()
    kind = _ALIASES.get(plain, plain)
    if kind not in KINDS and kind not in (added := plugin_kinds()):
        raise BadSource(f"no kind of source {name!r}; there are {', '.join([*KINDS, *added])}")
    return kind


def detect_kind(path: str, columns: Names = NO_NAMES) -> tuple[str, bytes]:
    """Return the kind of a file, and its first `HEAD` bytes; raises `BadSource`."""
    try:
        with open_anywhere(path) as stream:
            head = stream.read(HEAD)
            if problem := zstd_problem(head, stream):
                raise BadSource(f"{path} {problem}")
            return kind_of(head, stream, columns), head
    except OSError as error:
        raise BadSource(f"{path} cannot be read: {error.strerror}") from error


def kind_of(head: bytes, whole: BinaryIO | None = None, columns: Names = NO_NAMES) -> str:
    """Return the kind of a source that begins with `head`, "" if unknown.

    A zip file is a WACZ only if `whole`, the file, has the members of one, and a Parquet file is
    a table of captures only if it has the columns of one, with `columns` in place of usual names.
    """
    if head.startswith(ZIP):
        return "wacz" if whole is None or _is_wacz(whole) else ""
    if is_warcprox_database(head):
        return "warcprox"
    if is_zstd(head):
        return "" if zstd_problem(head, whole) else "warc"
    if head.startswith(MAGIC):
        return "parquet" if whole is None or is_table(whole, columns) else ""
    if head.startswith(GZIP):
        head = inflated(head, HEAD)
    if _begins_with_record(head):
        return "warc"
    return next(filter(None, map(_kind_of_line, _lines(head))), "")


def _lines(head: bytes) -> list[bytes]:
    """Return the first lines of a file that begins with `head`, which may be compressed."""
    lines = (inflated(head, HEAD) if head.startswith(GZIP) else head).split(b"\n")
    if len(lines) > 1:
        lines.pop()  # it may be cut
    return [line.removesuffix(b"\r").removeprefix(b"\xef\xbb\xbf") for line in lines[:_LINES]]


def zstd_problem(head: bytes, whole: BinaryIO | None = None) -> str:
    """Return why a source that is compressed with zstd is not read.

    "" if it is a WARC or ARC, or not compressed with zstd. A WARC may be compressed with a
    dictionary that is longer than `head`; of a pipe, without `whole`, this is not found out.
    """
    if not is_zstd(head) or whole is None:
        return ""

    def read(offset: int, count: int) -> bytes:
        whole.seek(offset)
        return whole.read(count)

    try:
        if _begins_with_record(content_start(read, HEAD)):
            return ""
    except UnreadableFrame as error:
        return f"{NO_ZSTD}its frames {error}"
    return f"{NO_ZSTD}no WARC or ARC record begins in it"


def _begins_with_record(content: bytes) -> bool:
    return content.lstrip()[:5].upper() == b"WARC/" or content.startswith(b"filedesc:")


def _kind_of_line(line: bytes) -> str:
    if is_crawl_log(line):
        return "crawllog"
    parts = line.split(b" ", 2)
    if len(parts) == 3 and parts[2].startswith(b"{") and parts[1].isdigit():
        return "cdxj" if len(parts[1]) in (14, 17) else ""
    return "cdx" if is_cdx(line) else ""


def _is_wacz(whole: BinaryIO) -> bool:
    try:
        with ZipFile(whole) as container:
            names = container.namelist()
    except (BadZipFile, OSError, ValueError):
        return False
    return any(name == "datapackage.json" or name.startswith("archive/") for name in names)
