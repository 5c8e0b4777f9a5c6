"""Which records with equal payloads may stand for each other: options of two commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])

_ANY_STATUS = click.option(
    "--any-status", is_flag=True,
    help="Let a record be a revisit of one with another HTTP status, such as 404 of 200.",
)  # fmt: skip
_SAME_TYPE = click.option(
    "--same-type", is_flag=True,
    help="Let no record be a revisit of one with another HTTP Content-Type.",
)  # fmt: skip


def alike_options(command: _Command) -> _Command:
    """``--any-status`` and ``--same-type``: the fields of `resolve.alike.Alike`."""
    return _ANY_STATUS(_SAME_TYPE(command))
