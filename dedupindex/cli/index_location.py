"""The INDEX argument: a directory, or the address of a cluster.

An address has a directory on this machine, for staging, locks and tokens:
``$XDG_STATE_HOME/dedupindex/…``, by default in ``~/.local/state``. Code below the command line
takes directories.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from glob import has_magic
from pathlib import Path
from typing import Any, TypeVar

import click

from dedupindex.cli.common import AS_INDEX, TYPED, check_no_address, setting_source, wrong_order
from dedupindex.cli.options import option
from dedupindex.cli.usage_remedies import MISSING_INDEX
from dedupindex.errors import SettingsConflict
from dedupindex.index import ENGINES, home_of, refer_to
from dedupindex.index.address import SCHEME, Address, is_cluster, shown
from dedupindex.index.identity import FILE, read_identity, same_engine
from dedupindex.runtime.tables import printable

_ADDRESS = "dedupindex.address"  # key of a context: the address given as INDEX
_ENGINE_HELP = f"Instead of INDEX: {SCHEME}host,host/keyspace."
_Command = TypeVar("_Command", bound=Callable[..., Any])


def any_index(text: str) -> Path:
    """Convert an INDEX argument to a directory; an address to its directory on this machine."""
    if is_cluster(text):
        return _home_of_index(text)
    context = click.get_current_context()
    context.meta[AS_INDEX] = text
    if "://" in text and "sources" in {param.name for param in context.command.params}:
        context.meta[TYPED] = text  # a path would lose a slash
    return Path(text)


def any_engine(text: str) -> str:
    """Convert an --engine: a name, or the address of a cluster."""
    if text and text not in ENGINES and not is_cluster(text):
        raise click.BadParameter(f"{shown(text)!r} is not one of {', '.join(ENGINES)}, {SCHEME}…")
    return str(Address.parse(text)) if is_cluster(text) else text


def optional_index(command: _Command) -> _Command:
    """Add INDEX, which may be left out, and --engine, for `index_or_engine`."""
    add = option("--engine", type=any_engine, default="", metavar="ADDRESS", help=_ENGINE_HELP)
    return click.argument("index", type=any_index, required=False)(add(command))


def _home_of_index(address: str) -> Path:
    """Return the directory of the address given as INDEX, its identity taken from the cluster."""
    click.get_current_context().meta[_ADDRESS] = str(Address.parse(address))
    return home_of(address)


def given_address() -> str:
    """Return the address that was given as INDEX, "" for a directory."""
    return str(click.get_current_context().meta.get(_ADDRESS, ""))


def index_or_engine(index: Path | None, engine: str) -> Path:
    """Return the directory of INDEX or, without one, of the address in `engine`.

    Raises `SettingsConflict` if both are given and disagree.
    """
    if index is None:
        if not is_cluster(engine):
            raise click.UsageError(MISSING_INDEX)
        return _home_of_index(engine)
    if engine:
        if is_cluster(engine) and not (index / FILE).exists() and index.is_dir():
            refer_to(index, Address.parse(engine))
        found = read_identity(index).engine
        if not same_engine(found, engine):
            raise SettingsConflict(
                f"the index at {index} is on engine {shown(found)}, not {engine}; "
                "leave --engine out"
            )
    return index


def check_order(index: Path, others: Sequence[str], option: str = "") -> None:
    """Raise `UsageError` if INDEX is none, and an argument behind it is one.

    `option` takes what was given as INDEX if there is no such file.
    """
    option = "" if os.path.lexists(index) else option
    for name in [] if given_address() else others:
        if wrong := wrong_order(click.get_current_context(), index, name, option):
            raise click.UsageError(wrong)


def index_name(index: Path) -> str:
    """Return the index as it was named on the command line."""
    return given_address() or str(index)


def sources_and_index(
    sources: tuple[str, ...], index: Path | None, options: dict[str, Any], missing: str
) -> tuple[tuple[str, ...], Path]:
    """Return the sources and the directory of the index; sets ``options["engine"]`` to its address.

    Raises `UsageError` with the message `missing`, or that INDEX is, if there is no index.

    If the engine is an address, INDEX may be left out, and the last argument may be a source.
    """
    address = given_address()
    if options["copy"] and index is not None:
        pass  # --engine is for the copy
    elif address:
        if setting_source("engine") is not None and not same_engine(options["engine"], address):
            raise SettingsConflict(f"INDEX is {address}, and --engine another; leave --engine out")
        options["engine"] = address
    elif is_cluster(options["engine"]):
        typed = click.get_current_context().meta.pop(TYPED, str(index))
        if index is None or _is_source(typed):
            sources = sources if index is None else (*sources, typed)
            index = _home_of_index(options["engine"])
        elif index.is_dir() or options["add"] or options["replace"]:
            new = not index.exists()
            index.mkdir(parents=True, exist_ok=True)
            try:
                refer_to(index, Address.parse(options["engine"]))
            finally:
                if new:
                    with suppress(OSError):  # it is not empty: the cluster has an index
                        index.rmdir()
    if index is None:
        raise click.UsageError(missing or MISSING_INDEX)
    check_no_address(index)
    return sources, index


def renamed_text(files: Sequence[str], index: str) -> str:
    """Say that files which are gone were read at another path now, and what makes them one."""
    count = "1 file that the index has is gone"
    if len(files) > 1:
        count = f"{len(files):,} files that the index has are gone"
    old = printable(shlex.quote(os.path.dirname(files[0])))
    return (
        f"note: {count}, such as {printable(files[0])}, and was read at another path now. If it "
        f"was moved, let it take its place: bin/index --replace NEW {shlex.quote(index)} "
        f"--instead-of {old}"
    )


def check_new_index(sources: Sequence[str], index: Path) -> None:
    """Raise `UsageError` if INDEX, an archive it seems, and a source were given in wrong order.

    The source is an index then, or does not exist.
    """
    name = sources[0] if len(sources) == 1 and not given_address() else ""
    is_index = bool(name) and os.path.isfile(Path(name) / FILE)  # not if it cannot be read
    if is_index and index.exists() and _is_source(str(index)):
        raise click.UsageError(f"{name} is an index; the sources come first, the index last")
    if not name or os.path.lexists(name) or _is_source(name) or not os.access(index, os.X_OK):
        return
    if index.is_dir() and _is_source(str(index)):
        every = "--all " if click.get_current_context().params.get("all") else ""
        right = f"{every}{shlex.quote(str(index))} {shlex.quote(name)}"
        raise click.UsageError(
            f"{name} does not exist, and {index} is no index: the index comes last, as in "
            f"bin/index {right}"
        )


def _is_source(typed: str) -> bool:
    """Whether the last argument is a source rather than an INDEX."""
    from dedupindex.object_store import is_remote, local  # lookups need not wait for them
    from dedupindex.sources import is_stream

    path = Path(local(typed))
    if path.is_dir():
        return not (path / FILE).exists() and any(path.iterdir())
    return path.exists() or typed == "-" or is_stream(typed) or is_remote(typed) or has_magic(typed)
