"""Directories that a JSON file with a format number describes: manifests, plans, working files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dedupindex.errors import BadInput, FormatFromFuture
from dedupindex.runtime.files import check_name


def read_description(file: Path, what: str, known: int) -> dict[str, Any]:
    """Return the object in a JSON file of `what`; raises `BadInput` or `FormatFromFuture`."""
    try:
        fields: dict[str, Any] = json.loads(file.read_bytes())
        number = int(fields["format"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{what} cannot be read: {error}") from error
    if number > known:
        raise FormatFromFuture(f"{what} has format {number}, this version reads {known}")
    return fields


def check_new_or_ours(file: Path, others: tuple[str, ...], hint: str) -> None:
    """Raise `BadInput` if the directory of `file` lacks it, but has more than `others`.

    Also if its name is not UTF-8, which DuckDB cannot write to.
    """
    top = file.parent
    check_name(str(top))
    if file.exists() or not top.exists():
        return
    if not top.is_dir() or not all(
        path.name in others or path.name.startswith(f".{file.name}.") for path in top.iterdir()
    ):
        raise BadInput(f"{top} contains something else; {hint}")
