"""What a plan is computed from: ``inputs.toml``, and what a file of the user says otherwise."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

from dedupindex.errors import BadInput

HOURS_A_MONTH = 730

Table = dict[str, Any]


def default() -> Table:
    """What is measured and assumed here."""
    text = files("dedupindex.capacity").joinpath("inputs.toml").read_text("utf-8")
    return tomllib.loads(text)


def load(path: Path | None) -> Table:
    """The defaults, with what the file `path` says in their place; raises `BadInput`.

    A list of instances or nodes replaces the whole list.
    """
    inputs = default()
    if path is None:
        return inputs
    try:
        said = tomllib.loads(path.read_text())
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is not TOML: {error}") from error
    for name, value in said.items():
        if name not in inputs:
            raise BadInput(f"{path} has {name}, but there are only {', '.join(inputs)}")
        inputs[name] = _merged(f"{path}: {name}", inputs[name], value)
    return inputs


def _merged(place: str, known: Any, said: Any) -> Any:
    """`said` in the place of what is known, if it is of the same kind."""
    if isinstance(known, dict) and isinstance(said, dict):
        for name in said:
            if name not in known:
                raise BadInput(f"{place} has no {name}, but {', '.join(known)}")
        both = {name: _merged(f"{place}.{name}", known[name], said[name]) for name in said}
        return {**known, **both}
    if isinstance(known, list) and isinstance(said, list) and said:
        return [_merged(place, known[0], one) for one in said]
    if isinstance(known, str) and isinstance(said, str):
        return said
    if isinstance(known, int | float) and isinstance(said, int | float) and said >= 0:
        return said
    raise BadInput(f"{place} is to be like {known!r}, not {said!r}")
