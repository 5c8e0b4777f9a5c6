"""The index: which captures are originals, found by digest, URL and urlkey.

Other packages open an index with `open_index` and use the protocols of `engine`. An engine is
imported when an index needs it: Whoosh takes 50 ms, the driver of Cassandra is an extra.
"""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dedupindex.errors import BadInput, SettingsConflict
from dedupindex.index.address import Address, is_cluster, shown
from dedupindex.index.engine import Engine
from dedupindex.index.identity import (
    FORMAT,
    Identity,
    existing_identity,
    read_identity,
    same_engine,
)


def _open_lmdb(index: Path, write: bool) -> Engine:
    from dedupindex.index.engines.lmdb.lmdb_engine import LmdbEngine

    return LmdbEngine(index, write=write)


def _open_whoosh(index: Path, write: bool) -> Engine:
    from dedupindex.index.engines.whoosh.whoosh_engine import WhooshEngine

    return WhooshEngine(index)


ENGINES = {"lmdb": _open_lmdb, "whoosh": _open_whoosh}
"""The engines of indexes in a directory, and what opens one; a cluster is named by its address."""


def open_index(index: Path, *, write: bool = False) -> Engine:
    """Open the index in a directory with the engine that it names; a writer must hold its lock.

    Raises `IndexUnavailable`, `Damaged`, `FormatFromFuture` or `FormatFromPast`; `SettingsConflict`
    if another canonicaliser made its urlkeys, so that captures would not be found.
    """
    identity = read_identity(index)
    if identity.settings.keys().canonical:
        identity.check_canonicaliser()
    engine = identity.engine
    if engine in ENGINES:
        return ENGINES[engine](index, write)
    if is_cluster(engine):
        from dedupindex.index.engines.cassandra.cassandra_engine import CassandraEngine

        return CassandraEngine(index)
    names = ", ".join(ENGINES)
    raise BadInput(f"the index at {index} is on engine {shown(engine)!r}; this version has {names}")


def identity_at(address: Address) -> Identity | None:
    """Return the identity of the index at an address, None if there is none yet."""
    from dedupindex.index.engines.cassandra import cassandra_engine

    return cassandra_engine.identity_at(address)


def refer_to(index: Path, address: Address) -> None:
    """Make a directory refer to the index at an address; raises `SettingsConflict` for another."""
    engine = str(address)
    written = identity = existing_identity(index)
    if identity is not None and not same_engine(identity.engine, engine):
        raise SettingsConflict(
            f"the index at {index} is on engine {shown(identity.engine)}, not {engine}; "
            "leave --engine out, or name another directory"
        )
    if identity is None or not identity.generation:
        identity = identity_at(address) or identity
    if identity is not None and replace(identity, engine=engine) != written:
        replace(identity, engine=engine).write(index)


def home_of(index: str | Path) -> Path:
    """Return the directory of an index; that of an address is made below ``$XDG_STATE_HOME``."""
    if isinstance(index, Path) or not is_cluster(index):
        return Path(index)
    address = Address.parse(index)
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    home = Path(state) / "dedupindex" / address.slug
    home.mkdir(parents=True, exist_ok=True)
    refer_to(home, address)
    return home


def stats_of(engine: Engine) -> dict[str, Any]:
    """Return the answer to ``GET /stats``: how much an index holds, and how it was built."""
    identity = engine.identity
    with engine.view() as view:
        counts = view.counts()._asdict()
    return {
        **counts,
        "engine": identity.engine,
        "generation": identity.generation,
        "format": FORMAT,
        "canonicaliser": identity.canonicaliser,
        "settings": asdict(identity.settings),
    }
