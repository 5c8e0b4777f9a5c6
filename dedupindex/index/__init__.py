"""The index: which captures are originals, found by digest, URL and urlkey.

`open_index` is the door: everything above this package speaks to the `protocol` only.
"""

from __future__ import annotations

from pathlib import Path

from dedupindex.errors import BadInput
from dedupindex.index.address import is_cluster
from dedupindex.index.identity import read_identity
from dedupindex.index.protocol import Engine

ENGINES = ("lmdb", "whoosh")


def open_index(index: Path, *, write: bool = False) -> Engine:
    """Open the index in a directory with the engine that it names.

    Raises `IndexUnavailable` when there is none or it cannot be read, `FormatFromFuture`,
    `Damaged`, and `SettingsConflict` if its keys are made of other urlkeys than this version's:
    all captures would be missed. Writers must hold the index's lock.
    """
    identity = read_identity(index)
    if identity.settings.keys().canonical:
        identity.agree_on_urlkeys()
    engine = identity.engine
    if engine == "lmdb":
        from dedupindex.index.lmdb_engine import LmdbEngine

        return LmdbEngine(index, write=write)
    if engine == "whoosh":
        from dedupindex.index.whoosh_engine import WhooshEngine

        return WhooshEngine(index, write=write)
    if is_cluster(engine):
        from dedupindex.index.cassandra_engine import CassandraEngine

        return CassandraEngine(index, write=write)
    raise BadInput(f"the index at {index} is on engine {engine!r}; this version has {ENGINES}")
