"""Write the SQLite database in which warcprox 2 looks up payloads (``--dedup-db-file``).

It has one row for each digest, and warcprox compares the text (warcprox/dedup.py, DedupDb):

    key     "sha1:…|", in hex, or with warcprox --base32 in base32; after the bar a bucket
    value   {"id": "<urn:uuid:…>", "url": …, "date": …}, all in Latin-1

`sources.warcprox_db` reads such a database.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from dedupindex.capture import Capture, Covers
from dedupindex.digest import CUT_DIGEST, Digest, Spelling, is_cut
from dedupindex.errors import BadInput
from dedupindex.timestamps import sort_key

_BASE32, _HEX = 0, 2  # encodings of `Spelling`, as warcprox writes them
_TABLE = "CREATE TABLE dedup (key varchar(300) primary key, value varchar(4000))"
_INSERT = "INSERT INTO dedup (key, value) VALUES (?, ?)"


@dataclass
class WarcproxExport:
    """What was written, and what was left out, by reason; counted while rows are taken."""

    written: int = 0
    left_out: Counter[str] = field(default_factory=Counter)


def rows(
    captures: Iterable[tuple[Digest, Capture]], exported: WarcproxExport, *, bridge: bool = False
) -> Iterator[tuple[str, str]]:
    """Yield key and value of each digest, of captures sorted by digest; holds one at a time.

    A digest has a row in each encoding in which a record states it; with `bridge`, in both.
    """
    for digest, group in groupby(captures, itemgetter(0)):
        best: dict[int, Capture] = {}
        for _, capture in group:
            if reason := _unusable_reason(digest, capture, bridge):
                exported.left_out[reason] += 1
                continue
            for encoding in (_HEX, _BASE32) if bridge else (capture.spelling.encoding,):
                best[encoding] = min(best.get(encoding, capture), capture, key=_order)
        for encoding, capture in best.items():
            exported.written += 1
            value = {
                "id": f"<{capture.record_id.decode('latin-1')}>",
                "url": capture.url.decode("latin-1"),
                "date": capture.date.decode("latin-1"),
            }
            key = digest.spelled(Spelling(1, encoding))
            yield f"{key}|", json.dumps(value, separators=(",", ":"))


def write_database(path: Path, found: Iterable[tuple[str, str]]) -> None:
    """Write a new database, which is not yet forced to disk; raises `BadInput`."""
    try:
        with closing(sqlite3.connect(path)) as database:
            database.execute("PRAGMA journal_mode = OFF")  # the file appears whole or not at all
            database.execute("PRAGMA synchronous = OFF")
            with database:
                database.execute(_TABLE)
                database.executemany(_INSERT, found)
    except sqlite3.Error as error:  # such as a full disk
        raise BadInput(f"the database cannot be written: {error}") from error


def _unusable_reason(digest: Digest, capture: Capture, bridge: bool) -> str:
    """Return why warcprox cannot use a capture, "" if it can."""
    if is_cut(digest.raw):
        return CUT_DIGEST
    stated = capture.digest == digest and capture.spelling.encoding in (_HEX, _BASE32)
    if not (stated or bridge):
        return "spelled-otherwise"
    if capture.covers == Covers.STORED:
        return "chunked"  # its digest covers the chunks, that of warcprox never does
    return "" if capture.record_id else "no-record-id"


def _order(capture: Capture) -> tuple[int, bytes, bytes]:
    """Order captures of one digest, the best first: records that were read, then the earliest."""
    return capture.evidence, sort_key(capture.date), capture.url
