"""Several manifests as one view of lines, with containers numbered by paths and hosts."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from dedupindex.errors import BadInput
from dedupindex.post_crawl.manifest.parquet import Manifest, ManifestContainer, lines_file
from dedupindex.post_crawl.manifest.record_lines import DAMAGED_RECORD, REVISIT, REVISIT_TARGET
from dedupindex.runtime.duckdb import Database, insert, literal, quoted

ANY_DIGEST = "*"
"""Before the algorithm, as the digest of a reference that an index knows: `payload` has it, raw."""


class ContainerBatch(NamedTuple):
    """Some containers that follow one another."""

    lines: str  # SQL for their lines
    places: range  # of their lines, see `ManifestInputs.create_views`
    containers: range  # their numbers


class ManifestInputs:
    """The containers of several manifests; a file that is in two of them is taken once.

    A file is known by host and path. Raises `BadInput` if only some of the manifests name a host.
    """

    def __init__(self, manifests: Sequence[Manifest]) -> None:
        self._manifests = manifests
        first: dict[tuple[bytes, str], tuple[int, ManifestContainer]] = {}
        for number, manifest in enumerate(manifests):
            for container in manifest.containers().values():
                _, known = first.setdefault(container.key, (number, container))
                if known.content_hash != container.content_hash:
                    raise BadInput(
                        f"{container.place} is in two manifests with different content: run "
                        "bin/manifest again, for files of several hosts with --host NAME"
                    )
        self._found = [first[key] for key in sorted(first)]
        self.hosts = sorted({container.host for _, container in self._found})
        if self.hosts[1:] and not self.hosts[0]:
            raise BadInput(
                f"some manifests are of the host {self.hosts[1]}, others of none: make all of them "
                "with bin/manifest --host NAME"
            )
        self.containers = [
            container._replace(number=number)
            for number, (_, container) in enumerate(self._found, start=1)
        ]
        self.numbers = {container.path: container.number for container in self.containers}
        self.outside: list[ManifestContainer] = []  # other files with originals
        self.outside_lines: Path | None = None  # Parquet file of these
        self.index_references: Path | None = None  # Parquet file of what an index knows
        self.unread_originals = 0  # see `Totals`
        self.first_place = 0  # of the set; places before it are outside
        self._bases: dict[int, int] = {}  # the places at which containers of the set begin

    def algorithms(self) -> dict[int, str]:
        """Return the algorithm of `Line.payload` for each container."""
        return {
            container.number: self._manifests[manifest].algorithm
            for container, (manifest, _) in zip(self.containers, self._found, strict=True)
        }

    def made_of(self, **options: object) -> str:
        """Return a hash of the files and options, which the parts of one plan have in common."""
        files = [
            (one.path, one.content_hash, *([one.host] if one.host else []))
            for one in self.containers
        ]
        text = json.dumps([files, options], sort_keys=True)
        return sha256(text.encode()).hexdigest()

    def create_views(self, database: Database) -> None:
        """Create or replace the views ``lines``, ``referred`` and ``standing``.

        ``lines`` has the columns of manifests and `place`: the position of the record if all files
        are laid end to end in the order of their paths and hosts. Files outside of the set come
        first, so that of two records of the same instant theirs is the original. ``referred`` has
        what the revisits of the set, and those that an index knows, refer to; ``standing`` has the
        revisits of the set themselves, and its damaged records.
        """
        rows, place = [], 0
        for container in sorted(self.outside, key=lambda one: os.fsencode(one.path)):
            rows.append((-1, container.number, container.number, place))
            place += container.size + 1
        self.first_place = place
        for (manifest, old), container in zip(self._found, self.containers, strict=True):
            rows.append((manifest, old.number, container.number, place))
            self._bases[container.number] = place
            place += container.size + 1
        database.execute(
            "CREATE OR REPLACE TABLE places (manifest INTEGER, old INTEGER, number INTEGER, "
            "base BIGINT)"
        )
        insert(database, "places", rows)
        files = [(number, manifest.parquet) for number, manifest in enumerate(self._manifests)]
        if self.outside_lines:
            files.append((-1, str(self.outside_lines)))
        selects = [_select(number, [glob]) for number, glob in files]
        database.execute(f"CREATE OR REPLACE VIEW lines AS {' UNION ALL '.join(selects)}")
        references = [manifest.references for manifest in self._manifests]
        if self.index_references:
            references.append(literal(self.index_references))
        for name, kinds in (
            ("referred", quoted(REVISIT_TARGET)),
            ("standing", f"{quoted(REVISIT)}, {quoted(DAMAGED_RECORD)}"),
        ):
            selects = [
                "SELECT record_id, url, digest, payload, replay_key FROM "
                f"read_parquet({quoted(glob)}) WHERE not_rewritable_reason IN ({kinds})"
                for glob in references
            ]
            database.execute(f"CREATE OR REPLACE VIEW {name} AS {' UNION ALL '.join(selects)}")

    def batches(self, most: int) -> Iterator[ContainerBatch]:
        """Yield the set in batches; there is at least one.

        A batch has `most` lines and up to one container more.
        """
        files: defaultdict[int, list[str]] = defaultdict(list)
        count, place, first = 0, self.first_place, 1
        for (manifest, old), container in zip(self._found, self.containers, strict=True):
            source = self._manifests[manifest]
            files[manifest].append(literal(lines_file(source.path, old.number)))
            count += source.entries[old.number].lines
            end = self._bases[container.number] + container.size + 1
            if count >= most or container.number == len(self._found):
                parts = [_select(number, names) for number, names in files.items()]
                numbers = range(first, container.number + 1)
                yield ContainerBatch(" UNION ALL ".join(parts), range(place, end), numbers)
                files.clear()
                count, place, first = 0, end, container.number + 1
        if not self._found:
            yield ContainerBatch("SELECT * FROM lines", range(1), range(1))


def check_host(host: str, hosts: Sequence[str], what: str) -> None:
    """Raise `BadInput` unless the files of `what` are of a host, or of none if it is empty."""
    if host not in (hosts or [""]):
        names = ", ".join(filter(None, hosts)) or "no host"
        given = f"--host {host}" if host else "no --host was given"
        raise BadInput(f"{given}: the files of {what} are of {names}")


def _select(manifest: int, files: Sequence[str]) -> str:
    """Return SQL for the lines in files of one manifest, as the view ``lines`` has them."""
    return f"""
        SELECT base + "offset" AS place, number AS container, l.* EXCLUDE (container)
        FROM read_parquet([{", ".join(map(quoted, files))}]) AS l
        JOIN places ON manifest = {manifest} AND old = l.container"""
