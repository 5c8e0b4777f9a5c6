"""Originals of revisits that the metadata itself does not have, found in an index."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from dedupindex.capture import Capture
from dedupindex.digest import Digest
from dedupindex.errors import BadDigest
from dedupindex.index import open_index
from dedupindex.index.engine import AHEAD, look_ahead
from dedupindex.lookup.decide import Query, find
from dedupindex.lookup.render_json import url_as_json
from dedupindex.runtime.duckdb import Database
from dedupindex.timestamps import digits_of_date

FOUND = "found"
"""The table that they go to, with the columns of ``originals``."""


def found_in(index: Path, database: Database) -> None:
    """Look up what ``wanted`` has and ``originals`` has not."""
    rows = database.cursor().execute(
        "SELECT k FROM wanted WHERE k NOT IN (SELECT k FROM originals)"
    )
    with closing(open_index(index)) as engine, engine.view() as view:
        settings = engine.identity.settings
        while keys := [key for (key,) in rows.fetchmany(AHEAD)]:
            digests = dict(_digests(keys))
            look_ahead(view, digests.values())
            for key, digest in digests.items():
                answer = find(view, settings, Query(digest))
                if answer is not None and answer.original.container:
                    _insert(database, key, answer.original)


def _digests(keys: list[str]) -> Iterator[tuple[str, Digest]]:
    for key in keys:
        try:
            yield key, Digest.parse(key, unlabelled="sha1")
        except BadDigest:
            continue  # nothing is known of it


def _insert(database: Database, key: str, original: Capture) -> None:
    offset = original.offset if original.offset >= 0 else None
    length = original.size if original.size_of_record and original.size >= 0 else None
    database.execute(
        f"INSERT INTO {FOUND} VALUES (?, ?, ?, ?, ?, NULL, ?, ?, ?)",
        (
            key, url_as_json(original.url)["url"], digits_of_date(original.date).decode(),
            original.mime.decode("latin-1") or None, original.status or None,
            original.container, offset, length,
        ),
    )  # fmt: skip
