"""The plan: which records become revisits, and of what. Everything in it is a hint to verify.

    PLAN/part-1-of-1/       what one run made; there are N of them where N runs shared the digests
      part.json             format, options, totals; written last
      containers.jsonl      all containers, in the order of their numbers
      copies-000000.parquet and so on: a row for each record to rewrite, by container and offset
      originals.parquet     container and offset of each record that must stay, likewise

Containers have numbers of the plan's own: their places among all paths in order. So plans do not
depend on the order in which manifests are named, and the parts of one plan fit together.
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

# What two payloads must have in common, so that one record may become a revisit of the other.


class MatchCriteria(NamedTuple):
    """Beyond equal bytes, equal digests as text, and equal Transfer- and Content-Encoding."""

    any_status: bool = False  # a page may be a revisit of the same one with another HTTP status
    same_type: bool = False  # but none of one with another HTTP Content-Type
    other_second: bool = False  # and none of one with its own URL and second

    def columns(self) -> tuple[str, ...]:
        """The columns of a manifest in which two lines must be equal."""
        status = () if self.any_status else ("status",)
        content_type = ("content_type",) if self.same_type else ()
        return ("digest", "strong", "length", "coding", *status, *content_type)


FORMAT = 3  # 1 did not say what equal payloads have in common, 2 not the hashes of HTTP headers
PART, CONTAINERS, COPIES, ORIGINALS = (
    "part.json", "containers.jsonl", "copies-*.parquet", "originals.parquet",
)  # fmt: skip
ORIGINALS_OWN = (
    "container", "offset", "stored", "record_id", "url", "date", "covers", "status",
    "content_type", "moment", "header",
)  # fmt: skip
"""Columns that a copy's row has twice, for its original with "original_" before the name.

All other fields are the same for both, or empty.
"""
COLUMNS = ", ".join(
    f'"{name}"'
    for name in [*TYPES, "copy", "extension", *[f"original_{name}" for name in ORIGINALS_OWN]]
)
_NAME = re.compile(r"part-([0-9]+)-of-([0-9]+)")
_FETCHED = 2048  # rows at a time
_HELD = 50_000  # copies of a plan that is held: 100 MB


def check_is_plan(plan: Path) -> None:
    """Raise `BadInput` if what is there is more than parts of a plan, whole or begun."""
    names = os.listdir(plan) if plan.is_dir() else []
    if (plan.exists() and not plan.is_dir()) or not all(
        name[0] == "." or _NAME.fullmatch(name) for name in names
    ):
        raise BadInput(f"{plan} holds something else; name a directory that is not there yet")


class Planned(NamedTuple):
    """A record that is to become a revisit of another."""

    line: Line
    copy: int  # 2 and more; 1 is the original
    extension: int  # tells payloads apart that have the same digest: 1, and more in collisions
    original: Line  # its record id is empty where other records of the set have the same one


@dataclass
class Totals:
    """What became of the lines: unique + originals + copies + the sum of stayed = lines."""

    lines: int = 0
    unique: int = 0  # nothing else has this payload in this form
    originals: int = 0  # have copies in the plan
    copies: int = 0
    stayed: Counter[str] = field(default_factory=Counter)  # equal to another, by why they stay
    outside: int = 0  # copies whose original is in the index only
    stored: int = 0  # bytes that the records of the copies take in their files
    collisions: int = 0  # digests of several payloads
    collided: int = 0  # payloads that these have
    reframed: int = 0  # digests whose payloads differ in their chunks, as far as is known
    compared: Counter[str] = field(default_factory=Counter)  # see `compare`

    def add(self, other: Totals) -> None:
        """Count what another part of the plan has."""
        for name, value in vars(other).items():
            mine = getattr(self, name)
            if isinstance(mine, Counter):
                mine.update(value)
            else:
                setattr(self, name, mine + value)

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
        self.alike = MatchCriteria(**about[0]["alike"])  # the same in all parts
        self.made_of: str = about[0]["made_of"]  # a hash of the files and of the options
        self.totals = Totals()
        self._held: tuple[dict[int, list[Planned]], dict[int, list[int]]] | None = None
        for said in about:
            told = dict(said["totals"])
            for name in ("stayed", "compared"):
                told[name] = Counter(told[name])
            self.totals.add(Totals(**told))
        self._containers: dict[int, ManifestContainer] = {}
        self._outside: dict[int, ManifestContainer] = {}
        for part in parts:  # all name the same set, and each its own files outside of it
            for text in (part / CONTAINERS).read_text("ascii").splitlines():
                said = json.loads(text)
                places = self._outside if said.pop("outside") else self._containers
                places[said["number"]] = ManifestContainer(**said)

    def containers(self) -> dict[int, ManifestContainer]:
        """The containers of the set, by number, with or without anything to rewrite."""
        return self._containers

    def outside(self) -> dict[int, ManifestContainer]:
        """Containers that only hold originals which the index names: never to be touched."""
        return self._outside

    def place(self, number: int) -> ManifestContainer:
        """Any container that a line names."""
        return self._containers.get(number) or self._outside[number]

    def hold(self) -> None:
        """Read a plan that is small once and for all, also for processes that begin after this."""
        small = self.totals.copies <= _HELD and self.totals.lines <= 10 * _HELD
        if not small or self._held is not None:
            return
        copies: dict[int, list[Planned]] = {}
        pinned: dict[int, list[int]] = {}
        for row in self._rows(COPIES, COLUMNS):
            planned = _planned(row)
            copies.setdefault(planned.line.container, []).append(planned)
        for container, offset in self._rows(ORIGINALS, 'DISTINCT container, "offset"'):
            pinned.setdefault(container, []).append(offset)
        self._held = copies, pinned

    def of(self, container: int) -> Iterator[Planned]:
        """What is to be rewritten in a container, in order of offset."""
        if self._held is not None:
            return iter(self._held[0].get(container, ()))
        return map(_planned, self._rows(COPIES, COLUMNS, container))

    def pinned(self, container: int) -> Iterator[int]:
        """The offsets of records that are originals, or that an index names: they stay."""
        if self._held is not None:
            return iter(self._held[1].get(container, ()))
        return (row[0] for row in self._rows(ORIGINALS, 'DISTINCT "offset"', container))

    def _rows(self, file: str, columns: str, container: int = -1) -> Iterator[tuple[Any, ...]]:
        """Rows of one container, or of all, in order of offset."""
        files = [f"{literal(part)}/{file}" for part in self._parts]
        chosen = "" if container < 0 else f"WHERE container = {container:d}"
        with one_thread() as database:
            rows = database.execute(
                f'SELECT {columns} FROM read_parquet(?) {chosen} ORDER BY "offset"', [files]
            )
            while found := rows.fetchmany(_FETCHED):
                yield from found


def _planned(row: tuple[Any, ...]) -> Planned:
    count = len(TYPES)
    line = line_of(row[:count])
    (copy, extension, place, offset, stored, record_id, url, date, covers, status, content_type,
     moment, header) = row[count:]  # fmt: skip
    original = line._replace(
        container=place,
        offset=offset,
        stored=stored,
        record_id=record_id.encode("latin-1"),
        url=url.encode("latin-1"),
        date=date.encode("latin-1"),
        covers=covers,
        status=status,
        content_type=content_type.encode("latin-1"),
        moment=moment,
        header=header,
    )
    return Planned(line, copy, extension, original)


def open_plan(path: str | os.PathLike[str]) -> Plan:
    """Raises `BadInput` for what is no plan or lacks a part, `FormatFromFuture`."""
    top = Path(path)
    found = {part: match for part in _listed(top) if (match := _NAME.fullmatch(part.name))}
    if not found:
        meant = f"; {top / 'plan'} is meant" if (top / "plan").is_dir() else ""  # of bin/dedup
        raise BadInput(f"{top} is no plan: there is no part-1-of-1 in it, nor another part{meant}")
    counts = {int(match[2]) for match in found.values()}
    there = sorted(int(match[1]) for match in found.values())
    count = max(counts)
    if len(counts) > 1:
        raise BadInput(f"the plan {top} has parts of several plans: remove those of one")
    if there != list(range(1, count + 1)):
        missing = sorted(set(range(1, count + 1)) - set(there))
        raise BadInput(
            f"the plan {top} is not whole: of its {count} parts {missing} are missing; run "
            "bin/resolve for them, or bring them here"
        )
    parts = sorted(found, key=lambda part: int(found[part][1]))
    about = [read_part(part) for part in parts]
    for part, said in zip(parts, about, strict=True):
        if said["made_of"] != about[0]["made_of"]:
            raise BadInput(f"{part} was made of other manifests, or with other options")
    return Plan(top, parts, about)


def part_name(partition: tuple[int, int]) -> str:
    """The directory of a part."""
    return "part-{}-of-{}".format(*partition)


def read_part(part: Path) -> dict[str, Any]:
    """What ``part.json`` says; raises `BadInput` or `FormatFromFuture`."""
    try:
        said: dict[str, Any] = json.loads((part / PART).read_bytes())
        number = int(said["format"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{part} is no part of a plan of ours: {error}") from error
    if number > FORMAT:
        raise FormatFromFuture(f"the plan {part} has format {number}, this knows {FORMAT}")
    if number < FORMAT:
        raise BadInput(
            f"the plan {part} is of an earlier version: make it again, and bring back what was "
            "rewritten in place with bin/undedup DIR --in-place"
        )
    return said


def _listed(top: Path) -> list[Path]:
    try:
        return list(top.iterdir())
    except OSError as error:
        raise BadInput(f"{top} is no plan: {error.strerror}") from error
