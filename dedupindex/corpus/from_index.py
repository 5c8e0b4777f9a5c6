"""The originals of an index, as captures of a corpus and as originals of its revisits."""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from dedupindex.capture import Capture
from dedupindex.corpus.capture_list import Revisits, SourceContext, jsonl_writer, relation
from dedupindex.corpus.row import as_text
from dedupindex.digest import Digest
from dedupindex.errors import BadDigest
from dedupindex.index import open_index
from dedupindex.index.engine import AHEAD
from dedupindex.lookup.decide import Query, find
from dedupindex.runtime.duckdb import Database
from dedupindex.timestamps import digits_of_date
from dedupindex.urlkey import urlkey


@dataclass(frozen=True)
class IndexCaptures:
    """The originals of an index, which has no revisits."""

    revisits: ClassVar[Revisits] = Revisits.NONE
    index: Path
    containers: tuple[str, ...] = ()

    @property
    def sources(self) -> tuple[str, ...]:
        return (str(self.index),)

    def relation(self, context: SourceContext) -> str:
        path = context.home / "index.rows"
        with (
            closing(open_index(self.index)) as engine,
            engine.view() as view,
            jsonl_writer(path) as add,
        ):
            for digest, capture in view.captures():
                if digest == capture.digest:  # else it is listed again under another digest
                    spelled = digest.spelled(capture.spelling).removeprefix("sha1:")
                    surt = as_text(urlkey(capture.url))
                    add(surt=surt, digest=spelled, **_columns(capture))
        return relation([path])


FOUND = "found"
"""The table of originals from an index, with the columns of ``originals``."""


def found_in(index: Path, database: Database) -> None:
    """Look up the originals that ``wanted`` has and ``originals`` lacks."""
    rows = database.cursor().execute(
        "SELECT k FROM wanted WHERE k NOT IN (SELECT k FROM originals)"
    )
    with closing(open_index(index)) as engine, engine.view() as view:
        settings = engine.identity.settings
        while keys := [key for (key,) in rows.fetchmany(AHEAD)]:
            digests: dict[str, Digest] = {}
            for key in keys:
                with suppress(BadDigest):  # the index cannot have it
                    digests[key] = Digest.parse(key, unlabelled="sha1")
            view.prefetch(digests.values())
            for key, digest in digests.items():
                answer = find(view, settings, Query(digest))
                if answer is not None and answer.original.container:
                    values = {"k": key, **_columns(answer.original)}
                    row = ", ".join(f'? AS "{name}"' for name in values)
                    insert = f"INSERT INTO {FOUND} BY NAME SELECT {row}"
                    database.execute(insert, list(values.values()))


def _columns(original: Capture) -> dict[str, str | int | None]:
    """Return the columns of ``originals`` that an index knows."""
    return {
        "url": as_text(original.url),
        "timestamp": digits_of_date(original.date).decode(),
        "mime": original.mime.decode("latin-1") or None,
        "status": original.status or None,
        "container": original.container or None,
        "offset": original.offset if original.offset >= 0 else None,
        "length": original.size if original.size_of_record and original.size >= 0 else None,
    }
