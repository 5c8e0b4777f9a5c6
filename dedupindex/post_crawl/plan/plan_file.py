"""The plan: which records become revisits, and of which originals. All of it is a hint to verify.

    PLAN/part-1-of-1/       the result of one run; N parts if N runs shared the digests
      part.json             format, options, totals; written last
      containers.jsonl      all containers, in the order of their numbers
      copies-1-40.parquet ... a row for each record to rewrite in the containers 1 to 40,
                              by container and offset
      originals.parquet     container and offset of each record that must stay, likewise

Containers have numbers of the plan's own, their positions among all paths and hosts in order. So a
plan does not depend on the order in which manifests are named, and the parts of one plan fit
together. A part is written whole or not at all.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from dedupindex.errors import BadInput
from dedupindex.post_crawl.directory_format import read_description
from dedupindex.post_crawl.manifest.parquet import (
    TYPES,
    Line,
    ManifestContainer,
    fetch_rows,
    line_of,
)
from dedupindex.post_crawl.plan.manifest_input import ManifestInputs
from dedupindex.runtime.duckdb import Database, literal, number, one_thread, quoted
from dedupindex.runtime.files import sync_directory, write_file
from dedupindex.sources.warc_files import is_index


class MatchCriteria(NamedTuple):
    """What two payloads have in common, besides bytes, digest text and codings, to be equal."""

    any_status: bool = False  # the HTTP status may differ
    same_type: bool = False  # the HTTP Content-Type must be equal
    other_second: bool = False  # not both the URL and the second may be equal

    def columns(self) -> tuple[str, ...]:
        """Return the columns of a manifest in which two lines must be equal."""
        status = () if self.any_status else ("status",)
        content_type = ("content_type",) if self.same_type else ()
        return ("digest", "strong", "length", "coding", *status, *content_type)


# Format 1 had no criteria, 2 no hashes of HTTP headers, 3 other names of columns and options, 4 no
# hosts.
FORMAT = 5
_OLDEST = 4  # that is read: as a plan without hosts
_RENAMED = {  # reasons in plans of this format, before and after they were renamed
    "same-moment": "same-second",
    "earlier": "no-earlier-original",
    "others-stay": "unused-original",
    "referred": "referred-to",
    "unlike": "hash-collision",
}
PART, CONTAINERS, COPIES, ORIGINALS = (
    "part.json", "containers.jsonl", "copies-*.parquet", "originals.parquet",
)  # fmt: skip
ORIGINALS_OWN = (
    "container", "offset", "stored", "record_id", "url", "date", "covers", "status",
    "content_type", "replay_key", "header",
)  # fmt: skip
"""Columns of the original in the row of a copy, where their names begin with "original_".

All other fields of the original are equal to those of the copy, or empty.
"""
COLUMNS = ", ".join(
    f'"{name}"'
    for name in [*TYPES, "copy", "extension", *[f"original_{name}" for name in ORIGINALS_OWN]]
)
_NAME = re.compile(r"part-([0-9]+)-of-([0-9]+)")
_COPIES_NAME = re.compile(r"copies-([0-9]+)-([0-9]+)\.parquet")
_PRELOADED = 50_000  # copies of a plan that is held in memory: 100 MB
_PARTS = 8  # for each process, into which its work is divided
_MIN_PART = 1 << 21  # of work, counted as bytes of copies: 50 ms
_WORK = 12_000  # of a copy besides its bytes: as much as so many bytes
_MIN_TASK = 1 << 25  # likewise, of a part that another machine gets: a second, and its requests
LINE = "l.* EXCLUDE (place)"
"""SQL of the columns `TYPES` of the view ``lines`` under the name ``l``."""
_ROWS = 20480  # in a row group, all of which are read to find one container
_NARROW_ROWS = 122_880  # likewise, of two columns: fewer groups, whose list is read each time
BATCH = 1_000_000  # lines that are joined with the chosen copies at once


def check_is_plan(plan: Path) -> None:
    """Raise `BadInput` if there is anything else at `plan` than parts of a plan."""
    names = os.listdir(plan) if plan.is_dir() else []
    if (plan.exists() and not plan.is_dir()) or not all(
        name[0] == "." or _NAME.fullmatch(name) for name in names
    ):
        raise BadInput(f"{plan} holds something else; name a directory that is not there yet")


class Planned(NamedTuple):
    """A record that is to become a revisit of another."""

    line: Line
    copy: int  # 2 and more; 1 is the original
    extension: int  # numbers the payloads of one digest: 1, and more in collisions
    original: Line  # its record id is empty if another record of the set has the same one


class CopyTotals(NamedTuple):
    """The copies of a plan, or of a part of it."""

    copies: int
    stored: int  # bytes in their files


@dataclass
class Totals:
    """What became of the lines: unique + originals + copies + the sum of kept = lines."""

    lines: int = 0
    unique: int = 0  # nothing else has this payload in this form
    originals: int = 0  # that have copies in the plan
    copies: int = 0
    kept: Counter[str] = field(default_factory=Counter)  # duplicates that stay whole, by reason
    kept_bytes: Counter[str] = field(default_factory=Counter)  # that these take in their files
    outside: int = 0  # copies whose original is known from the index only
    unread_originals: int = 0  # lines that stay, as files of the index are gone or changed
    stored: int = 0  # bytes of the copies in their files
    collisions: int = 0  # digests that several payloads have
    collided: int = 0  # payloads that these have
    reframed: int = 0  # digests whose payloads differ in their chunks, as far as known
    compared: Counter[str] = field(default_factory=Counter)  # see `compare_payloads`

    def add(self, other: Totals) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def as_json(self) -> dict[str, Any]:
        return {
            name: dict(sorted(value.items())) if isinstance(value, dict) else value
            for name, value in vars(self).items()
        }


class Plan:
    def __init__(self, path: Path, parts: list[Path], about: list[dict[str, Any]]) -> None:
        self.path = path
        self._parts = parts
        # Each has few of the containers, so few are opened for one of them.
        self._copies = [(copies_range(file), file) for part in parts for file in part.glob(COPIES)]
        self.criteria = MatchCriteria(**about[0]["criteria"])  # the same in all parts
        self.made_of: str = about[0]["made_of"]  # hash of the files and of the options
        self.totals = Totals()
        self._loaded: tuple[dict[int, list[Planned]], dict[int, list[int]]] | None = None
        for fields in about:
            totals = fields["totals"]
            # Plans of earlier versions do not have the bytes.
            names = ("kept", "kept_bytes", "compared")
            counters = {name: Counter(totals.get(name, {})) for name in names}
            self.totals.add(Totals(**{**totals, **counters}))
        self._containers: dict[int, ManifestContainer] = {}
        self._outside: dict[int, ManifestContainer] = {}
        for part in parts:  # all name the same set, and each its own files outside of it
            try:
                self._add_containers((part / CONTAINERS).read_text("ascii"))
            except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
                raise BadInput(
                    f"{part / CONTAINERS} is damaged ({error}): remove the plan {path} and make "
                    "it again"
                ) from error

    def _add_containers(self, lines: str) -> None:
        for text in lines.splitlines():
            fields = json.loads(text)
            containers = self._outside if fields.pop("outside") else self._containers
            containers[fields["number"]] = ManifestContainer(**fields)

    def containers(self) -> dict[int, ManifestContainer]:
        """Return the containers of the set, by number, with or without anything to rewrite."""
        return self._containers

    def hosts(self) -> list[str]:
        """Return the hosts of the containers, sorted; "" for containers without one."""
        return sorted({one.host for one in self.containers().values()})

    def of_host(self, host: str) -> dict[int, ManifestContainer]:
        """Return the containers of one host by number; those without a host if it is empty."""
        return {number: one for number, one in self.containers().items() if one.host == host}

    def copies_of(self, host: str) -> CopyTotals:
        """Return the sums of the copies of one host."""
        own = self.of_host(host)
        if len(own) == len(self.containers()):
            return CopyTotals(self.totals.copies, self.totals.stored)
        numbers = ", ".join(map(str, own)) or "0"
        files = [f"{literal(part)}/{COPIES}" for part in self._parts]
        with one_thread() as database:
            query = (
                f"SELECT count(*), sum(stored) FROM read_parquet(?) WHERE container IN ({numbers})"
            )
            copies, stored = next(fetch_rows(database, query, [files]))
        return CopyTotals(copies, int(stored or 0))

    def relocate(self, directories: Mapping[str, str], host: str = "") -> None:
        """Use a copy of the files: what is below a key of `directories` is below its value there.

        Raises `BadInput` if no source of a host is in or below one of the directories.
        """
        unused = set(directories)
        for containers in (self._containers, self._outside):
            for key, container in containers.items():
                for old, new in directories.items():
                    below = container.root.removeprefix(old.rstrip("/"))
                    is_below = below != container.root and below[:1] in ("", "/")
                    if is_below and container.host in ("", host):
                        containers[key] = container._replace(root=new.rstrip("/") + below)
                        unused.discard(old)
                        break
        if unused:
            raise BadInput(f"the plan has no source in {', '.join(sorted(unused))}")

    def referred_elsewhere(self, host: str) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield container, URL and date of originals of a host that copies of others refer to."""
        own = ", ".join(map(str, self.of_host(host))) or "0"
        files = [f"{literal(part)}/{COPIES}" for part in self._parts]
        with one_thread() as database:
            query = f"""
                SELECT DISTINCT original_container, original_url, original_date
                FROM read_parquet(?) WHERE original_container IN ({own})
                  AND container NOT IN ({own}) ORDER BY original_container"""
            for container, url, date in fetch_rows(database, query, [files]):
                yield container, url.encode("latin-1"), date.encode("latin-1")

    def outside(self) -> dict[int, ManifestContainer]:
        """Return containers that hold originals known from an index; they are never changed."""
        return self._outside

    def container(self, number: int) -> ManifestContainer:
        """Return a container of the set, or one outside of it."""
        return self._containers.get(number) or self._outside[number]

    def preload(self) -> None:
        """Read a small plan into memory, also for processes that are started after this."""
        small = self.totals.copies <= _PRELOADED and self.totals.lines <= 10 * _PRELOADED
        if not small or self._loaded is not None:
            return
        copies: dict[int, list[Planned]] = {}
        protected: dict[int, list[int]] = {}
        for row in self._rows(COPIES, COLUMNS):
            planned = _planned(row)
            copies.setdefault(planned.line.container, []).append(planned)
        for container, offset in self._rows(ORIGINALS, 'DISTINCT container, "offset"'):
            protected.setdefault(container, []).append(offset)
        self._loaded = copies, protected

    def of_container(self, number: int, part: range | None = None) -> Plan:
        """Return the plan of a container or a part of it, in memory; other machines can use it."""
        copies = list(self.copies(number, part))
        needed = {number, *(planned.original.container for planned in copies)}
        chosen = copy(self)
        protected = [] if part else list(self.protected(number))  # needed to write the file
        chosen._loaded = {number: copies}, {number: protected}
        chosen._copies = []  # of a large plan, longer than what is sent
        chosen._containers, chosen._outside = (
            {other: one for other, one in containers.items() if other in needed}
            for containers in (self._containers, self._outside)
        )
        return chosen

    def copies(self, container: int, part: range | None = None) -> Iterator[Planned]:
        """Return what is to be rewritten in a container, in order of offset.

        `part` is one of its `parts`; None is all of it.
        """
        if self._loaded is None:
            return map(_planned, self._rows(COPIES, COLUMNS, container, part))
        copies = self._loaded[0].get(container, [])
        if part is not None:
            first, last = (
                bisect_left(copies, offset, key=_offset_of) for offset in (part.start, part.stop)
            )
            copies = copies[first:last]
        return iter(copies)

    def parts(self, jobs: int) -> dict[int, list[range]]:
        """Divide each container for `jobs` processes into ranges of offsets with as much work.

        All ranges but the first begin at a copy. A container is one range if its copies are few,
        or if the plan is not in memory.
        """
        whole = {number: [range(file.size)] for number, file in self._containers.items()}
        if self._loaded is None or jobs <= 1:
            return whole
        work = {
            number: sum(planned.line.stored + _WORK for planned in copies)
            for number, copies in self._loaded[0].items()
        }
        return whole | self._parts_of(work, jobs, _MIN_PART)

    def task_parts(self, cores: int, numbers: Set[int]) -> dict[int, list[range]]:
        """Divide those containers of a run that a core of a cluster would have long work with.

        They are divided as by `parts`, others are left out. A plan on disk is divided, too.
        """
        files = [f"{literal(part)}/{COPIES}" for part in self._parts]
        query = f"""
            SELECT container, sum(stored + {_WORK}) FROM read_parquet(?)
            GROUP BY container ORDER BY container"""
        with one_thread() as database:
            rows = fetch_rows(database, query, [files])
            work = {container: int(sum_of) for container, sum_of in rows if container in numbers}
        return self._parts_of(work, cores, _MIN_TASK)

    def _parts_of(self, work: dict[int, int], jobs: int, least: int) -> dict[int, list[range]]:
        """Divide the containers with more work than a part has: a share of all, `least` or more."""
        most = max(least, sum(work.values()) // (_PARTS * jobs))
        divided = {
            number: _divided(self._containers[number].size, self._places(number), most)
            for number, own in work.items() if own > most
        }  # fmt: skip
        return {number: parts for number, parts in divided.items() if len(parts) > 1}

    def _places(self, container: int) -> Iterator[tuple[int, int]]:
        """Return offsets and sizes of copies, in order."""
        if self._loaded is not None:
            copies = self._loaded[0].get(container, ())
            return ((planned.line.offset, planned.line.stored) for planned in copies)
        return ((row[0], row[1]) for row in self._rows(COPIES, '"offset", stored', container))

    def protected(self, container: int) -> Iterator[int]:
        """Return the offsets of records that are originals, in order."""
        if self._loaded is not None:
            return iter(self._loaded[1].get(container, ()))
        return (row[0] for row in self._rows(ORIGINALS, 'DISTINCT "offset"', container))

    def _rows(
        self, file: str, columns: str, container: int = -1, part: range | None = None
    ) -> Iterator[tuple[Any, ...]]:
        """Yield rows of one container, or of all with -1, in order of offset."""
        if file == COPIES and container >= 0:
            files = [literal(path) for numbers, path in self._copies if container in numbers]
        else:
            files = [f"{literal(one)}/{file}" for one in self._parts]
        if not files:
            return
        where = "" if container < 0 else f"WHERE container = {container:d}"
        if part is not None:
            where += f' AND "offset" >= {part.start:d} AND "offset" < {part.stop:d}'
        with one_thread() as database:
            query = f'SELECT {columns} FROM read_parquet(?) {where} ORDER BY "offset"'
            yield from fetch_rows(database, query, [files])


def _offset_of(planned: Planned) -> int:
    return planned.line.offset


def _divided(size: int, copies: Iterable[tuple[int, int]], most: int) -> list[range]:
    """Divide a container at copies, so that a range has at most `most` work, or one copy.

    `copies` are offsets and sizes, in order.
    """
    parts, start, work = [], 0, 0
    for offset, stored in copies:
        more = stored + _WORK
        if work and work + more > most and offset > start:
            parts.append(range(start, offset))
            start, work = offset, 0
        work += more
    return [*parts, range(start, size)]


def _planned(row: tuple[Any, ...]) -> Planned:
    count = len(TYPES)
    line = line_of(row[:count])
    copy, extension, *own = row[count:]
    fields = dict(zip(ORIGINALS_OWN, own, strict=True))
    for name in ("record_id", "url", "date", "content_type"):
        fields[name] = fields[name].encode("latin-1")
    return Planned(line, copy, extension, line._replace(**fields))


def open_plan(path: str | os.PathLike[str]) -> Plan:
    """Raises `BadInput` for what is not a plan or lacks a part, `FormatFromFuture`."""
    top = Path(path)
    try:
        found = {part: match for part in top.iterdir() if (match := _NAME.fullmatch(part.name))}
    except OSError as error:
        raise BadInput(f"{top} is not a plan: {error.strerror}") from error
    if not found:
        if is_index(top):
            raise BadInput(f"{top} is an index, not a plan; bin/resolve makes one")
        hint = "bin/resolve makes one, and bin/dedup one in its working directory"
        if (top / "plan").is_dir():  # of bin/dedup
            hint = f"{top / 'plan'} is meant"
        raise BadInput(f"{top} is not a plan, which has files such as part-1-of-1: {hint}")
    counts = {int(match[2]) for match in found.values()}
    if len(counts) > 1:
        raise BadInput(f"the plan {top} has parts of several plans: remove those of one")
    (count,) = counts
    if missing := sorted({*range(1, count + 1)} - {int(match[1]) for match in found.values()}):
        raise BadInput(
            f"the plan {top} is not whole: of its {count} parts {missing} are missing; run "
            "bin/resolve for them, or bring them here"
        )
    parts, about = sorted(found, key=lambda part: int(found[part][1])), []
    for part in parts:
        about.append(fields := read_description(part / PART, f"the plan {part}", FORMAT))
        if fields["format"] < _OLDEST:
            raise BadInput(
                f"the plan {part} is of an earlier version: make it again, and bring back what was "
                "rewritten in place with bin/undedup DIR --in-place"
            )
        totals = fields["totals"]
        if "stayed" in totals:  # as earlier versions wrote it
            counts = totals.pop("stayed")
            totals["kept"] = {_RENAMED.get(name, name): counts[name] for name in counts}
        if fields["made_of"] != about[0]["made_of"]:
            raise BadInput(f"{part} was made of other manifests, or with other options")
    return Plan(top, parts, about)


def part_name(partition: tuple[int, int]) -> str:
    return "part-{}-of-{}".format(*partition)


def _write_rows(
    database: Database, inputs: ManifestInputs, criteria: MatchCriteria, part: Path, home: Path
) -> None:
    """Write the rows of the plan from ``outcomes`` and ``equal``, and make the view ``planned``.

    The chosen copies are first joined with their originals, which may be in any container, and
    sorted; then with their own lines, a batch of containers at a time. Here the values themselves
    are compared, of which only the hashes are known to be equal.
    """
    _choose(database)
    same = criteria.columns()
    chosen = quoted(literal(home / "chosen.parquet"))
    wanted = ", ".join(
        f'o."{name}" AS original_{name}' for name in dict.fromkeys((*ORIGINALS_OWN, *same))
    )
    database.execute(f"""
        COPY (
          SELECT c.place, c.copy, c.extension, {wanted}
          FROM chosen AS c JOIN (
            SELECT * REPLACE (
              if(hash(record_id) IN (SELECT record FROM shared), '', record_id) AS record_id)
            FROM lines WHERE place IN (SELECT DISTINCT original FROM chosen)) AS o
          ON o.place = c.original ORDER BY c.place)
        TO {quoted(str(home / "chosen.parquet"))} (FORMAT parquet, COMPRESSION lz4_raw)""")
    own = ", ".join(f"c.original_{name}" for name in ORIGINALS_OWN)
    equal = " AND ".join(f"l.{name} = c.original_{name}" for name in same)
    for lines, places, containers in inputs.batches(BATCH):
        rows = f"""
            SELECT {LINE}, c.copy, c.extension, {own} FROM ({lines}) AS l
            JOIN (
              SELECT * FROM read_parquet({chosen})
              WHERE place >= {places.start} AND place < {places.stop}) AS c
            ON l.place = c.place AND {equal}"""
        _copy(database, rows, copies_file(part, containers), _ROWS)
    database.execute(
        f"CREATE VIEW planned AS SELECT * FROM read_parquet({quoted(f'{literal(part)}/{COPIES}')})"
    )


def copies_file(part: Path, containers: range) -> Path:
    return part / COPIES.replace("*", f"{containers[0]}-{containers[-1]}")


def copies_range(file: Path) -> range:
    """Return the numbers of the containers that a `copies_file` may have rows of."""
    found = _COPIES_NAME.fullmatch(file.name)
    if found is None:  # of an earlier version, which did not name them
        return range(sys.maxsize)
    return range(int(found[1]), int(found[2]) + 1)


def _choose(database: Database) -> None:
    """Create ``chosen``, all copies and the places of their originals, and ``shared``.

    ``shared`` has the hashes of those record ids of originals that other lines have, too.
    """
    database.execute("""
        CREATE TABLE chosen AS
        SELECT place, original, coalesce(extension, 1) AS extension,
          1 + row_number() OVER (PARTITION BY original ORDER BY key) AS copy
        FROM outcomes LEFT JOIN (
          SELECT place, extension FROM equal JOIN extensions USING (label, form)) USING (place)
        WHERE outcome = 'copy'""")
    database.execute("""
        CREATE TABLE shared AS
        SELECT hash(record_id) AS record FROM lines
        WHERE hash(record_id) IN (
          SELECT record FROM equal WHERE place IN (SELECT DISTINCT original FROM chosen))
        GROUP BY 1 HAVING count(*) > 1""")


def _totals(database: Database, inputs: ManifestInputs) -> Totals:
    """Count the outcomes of all lines of this part that are in the set."""
    ours = f"place >= {inputs.first_place}"
    totals = Totals(number(database, f"SELECT count(*) FROM part WHERE {ours}"))
    query = f"SELECT outcome, count(*) FROM outcomes WHERE {ours} GROUP BY outcome"
    kept = Counter(dict(fetch_rows(database, query)))
    query = f"""
        SELECT outcome, sum(stored) FROM outcomes JOIN (
          SELECT place, stored FROM lines WHERE stored > 0) USING (place)
        WHERE {ours} GROUP BY outcome"""  # records of one member share a place, and have no size
    stored = Counter({outcome: int(size) for outcome, size in fetch_rows(database, query)})
    totals.unique = totals.lines - kept.total()
    originals, copies = kept.pop("original", 0), kept.pop("copy", 0)
    of_originals, of_copies = stored.pop("original", 0), stored.pop("copy", 0)
    query = f"""
        SELECT count(*), count(*) FILTER (outside), sum(stored),
          count(DISTINCT hash(original_container, original_offset)) FILTER (NOT outside)
        FROM (SELECT *, original_container > {len(inputs.containers)} AS outside FROM planned)"""
    row = next(fetch_rows(database, query))
    totals.copies, totals.outside, totals.stored, totals.originals = (int(n or 0) for n in row)
    kept["unused-original"] = originals - totals.originals
    kept["hash-collision"] = copies - totals.copies
    query = f"""
        SELECT sum(original_stored) FROM (
          SELECT DISTINCT original_container, original_offset, original_stored FROM planned
          WHERE original_container <= {len(inputs.containers)})"""
    stored["unused-original"] = of_originals - number(database, query)
    stored["hash-collision"] = of_copies - totals.stored
    totals.kept, totals.kept_bytes = +kept, +stored
    totals.unread_originals = inputs.unread_originals
    query = """
        SELECT count(*) FILTER (NOT reframed), count(*) FILTER (reframed),
          (SELECT count(*) FROM extensions
           WHERE label IN (SELECT label FROM colliding WHERE NOT reframed))
        FROM colliding"""
    totals.collisions, totals.reframed, totals.collided = next(fetch_rows(database, query))
    return totals


def write_part(
    database: Database,
    inputs: ManifestInputs,
    criteria: MatchCriteria,
    part: Path,
    about: dict[str, Any],
    compared: Counter[str],
    home: Path,
) -> Totals:
    """Write the part, force it to disk, then rename it; `home` is for temporary files."""
    beside = part.with_name(f".{part.name}.{os.getpid()}.part")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        _write_rows(database, inputs, criteria, beside, home)
        totals = _totals(database, inputs)
        totals.compared = compared
        protected = (
            'SELECT DISTINCT original_container AS container, original_offset AS "offset" '
            "FROM planned"
        )
        _copy(database, protected, beside / ORIGINALS, _NARROW_ROWS)
        lines = [
            json.dumps({**container._asdict(), "outside": outside})
            for outside, containers in ((False, inputs.containers), (True, inputs.outside))
            for container in containers
        ]
        write_file(beside / CONTAINERS, "".join(f"{line}\n" for line in lines).encode("ascii"))
        fields = {"format": FORMAT, **about, "totals": totals.as_json()}
        write_file(beside / PART, json.dumps(fields, indent=1).encode() + b"\n")
        os.rename(beside, part)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    sync_directory(part.parent)
    return totals


def _copy(database: Database, rows: str, target: Path, group: int) -> None:
    """Write rows by container and offset, `group` of them in each row group."""
    database.execute(
        f'COPY ({rows} ORDER BY container, "offset") TO {quoted(str(target))} '
        f"(FORMAT parquet, COMPRESSION lz4_raw, ROW_GROUP_SIZE {group})"
    )
    with open(target, "rb") as stream:
        os.fsync(stream.fileno())
