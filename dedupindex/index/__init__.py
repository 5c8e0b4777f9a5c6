"""The index: which captures are originals, found by digest, URL and urlkey.

`open_index` is the door: everything above this package speaks to the `protocol` only. Engines are
imported when an index is theirs: Whoosh takes 50 ms.
"""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dedupindex.errors import BadInput, SettingsConflict
from dedupindex.index.address import Address, is_cluster, shown
from dedupindex.index.engine import Engine
from dedupindex.index.identity import FILE, FORMAT, read_identity, same_engine

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
        from dedupindex.index.engines.lmdb.lmdb_engine import LmdbEngine

        return LmdbEngine(index, write=write)
    if engine == "whoosh":
        from dedupindex.index.engines.whoosh.whoosh_engine import WhooshEngine

        return WhooshEngine(index, write=write)
    if is_cluster(engine):
        from dedupindex.index.engines.cassandra.cassandra_engine import CassandraEngine

        return CassandraEngine(index, write=write)
    raise BadInput(
        f"the index at {index} is on engine {shown(engine)!r}; this version has {ENGINES}"
    )


def adopt(index: Path, address: Address) -> None:
    """Let a directory say what the index in a cluster is, and how it is to be reached from here.

    Where the cluster holds none yet, nothing is said. Raises `SettingsConflict` if the directory
    speaks of another index, `IndexUnavailable`.
    """
    engine = str(address)
    said = mine = read_identity(index) if (index / FILE).exists() else None
    if mine is not None and not same_engine(mine.engine, engine):
        raise SettingsConflict(
            f"the index at {index} is on engine {shown(mine.engine)}, not {engine}; "
            "leave --engine out, or name another directory"
        )
    if mine is None or not mine.generation:
        from dedupindex.index.engines.cassandra.cassandra_engine import identity_at

        mine = identity_at(address) or mine
    mine = replace(mine, engine=engine) if mine is not None else None
    if mine is not None and mine != said:
        mine.write(index)


def home_of(index: str | Path) -> Path:
    """The directory of an index: what is given, or what an address of a cluster has here.

    That is made if need be, below ``$XDG_STATE_HOME``, by default ``~/.local/state``.
    """
    if isinstance(index, Path) or not is_cluster(index):
        return Path(index)
    address = Address.parse(index)
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    home = Path(state) / "dedupindex" / address.slug
    home.mkdir(parents=True, exist_ok=True)
    adopt(home, address)
    return home


def stats_of(engine: Engine) -> dict[str, Any]:
    """What ``GET /stats`` answers: how much an index holds, and how it was built."""
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
