"""Manifests as one view of lines, with containers numbered by their paths."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from dedupindex.errors import BadInput
from dedupindex.manifest.line import Container
from dedupindex.manifest.spool import quoted
from dedupindex.manifest.store import Manifest
from dedupindex.resolve.engine import Database, insert


class Inputs:
    """The containers of several manifests; a file that stands in two of them is taken once."""

    def __init__(self, manifests: Sequence[Manifest]) -> None:
        self._manifests = manifests
        self._outside = ""  # glob of lines of originals elsewhere
        first: dict[bytes, tuple[int, Container]] = {}
        for number, manifest in enumerate(manifests):
            for container in manifest.containers().values():
                path = os.fsencode(container.path)
                _, known = first.setdefault(path, (number, container))
                if known.content_hash != container.content_hash:
                    raise BadInput(
                        f"{container.path} stands in two manifests with other bytes: "
                        "run bin/manifest again"
                    )
        self._found = [first[path] for path in sorted(first)]
        self.containers = [
            container._replace(number=number)
            for number, (_, container) in enumerate(self._found, start=1)
        ]
        self.numbers = {container.path: container.number for container in self.containers}
        self.outside: list[Container] = []
        self.first_place = 0  # of the set; those before are outside

    def made_of(self, **options: object) -> str:
        """What the parts of one plan have in common: the files and the options."""
        files = [(container.path, container.content_hash) for container in self.containers]
        text = json.dumps([files, options], sort_keys=True)
        return sha256(text.encode()).hexdigest()

    def add_outside(self, containers: list[Container], lines: Path) -> None:
        """Take in originals of other files, in `lines` under the numbers that these have."""
        self.outside = containers
        self._outside = str(lines)

    def view(self, database: Database) -> None:
        """Make or replace the view ``lines``: the columns of manifests, and `place`.

        A place is where a record begins if all files are laid end to end in the order of their
        paths, those outside of the set first: of two of the same instant theirs is the original.
        """
        rows, place = [], 0
        for container in sorted(self.outside, key=lambda one: os.fsencode(one.path)):
            rows.append((-1, container.number, container.number, place))
            place += container.size + 1
        self.first_place = place
        for (manifest, old), container in zip(self._found, self.containers, strict=True):
            rows.append((manifest, old.number, container.number, place))
            place += container.size + 1
        database.execute(
            "CREATE OR REPLACE TABLE places (manifest INTEGER, old INTEGER, number INTEGER, "
            "base BIGINT)"
        )
        insert(database, "places", rows)
        globs = [(number, manifest.parquet) for number, manifest in enumerate(self._manifests)]
        if self._outside:
            globs.append((-1, self._outside))
        parts = [
            f"""SELECT base + "offset" AS place, number AS container, l.* EXCLUDE (container)
            FROM read_parquet({quoted(glob)}) AS l
            JOIN places ON manifest = {manifest} AND old = l.container"""
            for manifest, glob in globs
        ]
        database.execute(f"CREATE OR REPLACE VIEW lines AS {' UNION ALL '.join(parts)}")
