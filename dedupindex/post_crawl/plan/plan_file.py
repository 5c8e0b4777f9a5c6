"""The plan: which records become revisits, and of which originals. All of it is a hint to verify.

    PLAN/part-1-of-1/       the result of one run; N parts if N runs shared the digests
      part.json             format, options, totals; written last
      containers.jsonl      all containers, in the order of their numbers
      copies-000000.parquet ...: a row for each record to rewrite, by container and offset
      originals.parquet     container and offset of each record that must stay, likewise

Containers have numbers of the plan's own, their positions among all paths in order. So a plan does
not depend on the order in which manifests are named, and the parts of one plan fit together.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from dedupindex.errors import BadInput, FormatFromFuture
from dedupindex.post_crawl.manifest.lines import TYPES, Line, ManifestContainer
from dedupindex.post_crawl.manifest.parquet import line_of
from dedupindex.runtime.duckdb import literal, one_thread


class MatchCriteria(NamedTuple):
    """What two payloads must have in common, so that one record may become a revisit of the other.

    That is in addition to equal bytes, equal digests as text, and equal Transfer-Encoding and
    Content-Encoding.
    """

    any_status: bool = False  # the HTTP status may differ
    same_type: bool = False  # the HTTP Content-Type must be equal
    other_second: bool = False  # not both the URL and the second may be equal

    def columns(self) -> tuple[str, ...]:
        """Return the columns of a manifest in which two lines must be equal."""
        status = () if self.any_status else ("status",)
        content_type = ("content_type",) if self.same_type else ()
        return ("digest", "strong", "length", "coding", *status, *content_type)


# Format 1 had no criteria, 2 no hashes of HTTP headers, 3 other names of columns and options.
FORMAT = 4
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
_BATCH = 2048  # rows
_PRELOADED = 50_000  # copies of a plan that is held in memory: 100 MB


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


@dataclass
class Totals:
    """What became of the lines: unique + originals + copies + the sum of stayed = lines."""

    lines: int = 0
    unique: int = 0  # nothing else has this payload in this form
    originals: int = 0  # that have copies in the plan
    copies: int = 0
    stayed: Counter[str] = field(default_factory=Counter)  # have an equal but stay, by reason
    outside: int = 0  # copies whose original is known from the index only
    stored: int = 0  # bytes of the copies in their files
    collisions: int = 0  # digests that several payloads have
    collided: int = 0  # payloads that these have
    reframed: int = 0  # digests whose payloads differ in their chunks, as far as known
    compared: Counter[str] = field(default_factory=Counter)  # see `compare_payloads`

    def add(self, other: Totals) -> None:
        """Add the totals of another part of the plan."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def as_json(self) -> dict[str, Any]:
        return {
            name: dict(sorted(value.items())) if isinstance(value, dict) else value
            for name, value in vars(self).items()
        }


class Plan:
    """A whole plan, all its parts together."""

    def __init__(self, path: Path, parts: list[Path], about: list[dict[str, Any]]) -> None:
        self.path = path
        self._parts = parts
        self.criteria = MatchCriteria(**about[0]["criteria"])  # the same in all parts
        self.made_of: str = about[0]["made_of"]  # hash of the files and of the options
        self.totals = Totals()
        self._loaded: tuple[dict[int, list[Planned]], dict[int, list[int]]] | None = None
        for fields in about:
            totals = fields["totals"]
            counters = {name: Counter(totals[name]) for name in ("stayed", "compared")}
            self.totals.add(Totals(**{**totals, **counters}))
        self._containers: dict[int, ManifestContainer] = {}
        self._outside: dict[int, ManifestContainer] = {}
        for part in parts:  # all name the same set, and each its own files outside of it
            for text in (part / CONTAINERS).read_text("ascii").splitlines():
                fields = json.loads(text)
                containers = self._outside if fields.pop("outside") else self._containers
                containers[fields["number"]] = ManifestContainer(**fields)

    def containers(self) -> dict[int, ManifestContainer]:
        """Return the containers of the set, by number, with or without anything to rewrite."""
        return self._containers

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

    def copies(self, container: int) -> Iterator[Planned]:
        """Return what is to be rewritten in a container, in order of offset."""
        if self._loaded is not None:
            return iter(self._loaded[0].get(container, ()))
        return map(_planned, self._rows(COPIES, COLUMNS, container))

    def protected(self, container: int) -> Iterator[int]:
        """Return the offsets of records that are originals or that an index names, in order."""
        if self._loaded is not None:
            return iter(self._loaded[1].get(container, ()))
        return (row[0] for row in self._rows(ORIGINALS, 'DISTINCT "offset"', container))

    def _rows(self, file: str, columns: str, container: int = -1) -> Iterator[tuple[Any, ...]]:
        """Yield rows of one container, or of all with -1, in order of offset."""
        files = [f"{literal(part)}/{file}" for part in self._parts]
        where = "" if container < 0 else f"WHERE container = {container:d}"
        with one_thread() as database:
            found = database.execute(
                f'SELECT {columns} FROM read_parquet(?) {where} ORDER BY "offset"', [files]
            )
            while rows := found.fetchmany(_BATCH):
                yield from rows


def _planned(row: tuple[Any, ...]) -> Planned:
    count = len(TYPES)
    line = line_of(row[:count])
    copy, extension, *own = row[count:]
    fields = dict(zip(ORIGINALS_OWN, own, strict=True))
    for name in ("record_id", "url", "date", "content_type"):
        fields[name] = fields[name].encode("latin-1")
    return Planned(line, copy, extension, line._replace(**fields))


def open_plan(path: str | os.PathLike[str]) -> Plan:
    """Raises `BadInput` for what is no plan or lacks a part, `FormatFromFuture`."""
    top = Path(path)
    try:
        found = {part: match for part in top.iterdir() if (match := _NAME.fullmatch(part.name))}
    except OSError as error:
        raise BadInput(f"{top} is no plan: {error.strerror}") from error
    if not found:
        hint = f"; {top / 'plan'} is meant" if (top / "plan").is_dir() else ""  # of bin/dedup
        raise BadInput(f"{top} is no plan: there is no part-1-of-1 in it, nor another part{hint}")
    counts = {int(match[2]) for match in found.values()}
    if len(counts) > 1:
        raise BadInput(f"the plan {top} has parts of several plans: remove those of one")
    (count,) = counts
    if missing := sorted({*range(1, count + 1)} - {int(match[1]) for match in found.values()}):
        raise BadInput(
            f"the plan {top} is not whole: of its {count} parts {missing} are missing; run "
            "bin/resolve for them, or bring them here"
        )
    parts = sorted(found, key=lambda part: int(found[part][1]))
    about = [read_part(part) for part in parts]
    for part, fields in zip(parts, about, strict=True):
        if fields["made_of"] != about[0]["made_of"]:
            raise BadInput(f"{part} was made of other manifests, or with other options")
    return Plan(top, parts, about)


def part_name(partition: tuple[int, int]) -> str:
    """Return the name of a part's directory."""
    return "part-{}-of-{}".format(*partition)


def read_part(part: Path) -> dict[str, Any]:
    """Return ``part.json``; raises `BadInput` or `FormatFromFuture`."""
    try:
        fields: dict[str, Any] = json.loads((part / PART).read_bytes())
        number = int(fields["format"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{part} is no part of a plan of ours: {error}") from error
    if number > FORMAT:
        raise FormatFromFuture(f"the plan {part} has format {number}, this knows {FORMAT}")
    if number < FORMAT:
        raise BadInput(
            f"the plan {part} is of an earlier version: make it again, and bring back what was "
            "rewritten in place with bin/undedup DIR --in-place"
        )
    return fields
