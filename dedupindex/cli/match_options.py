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
_OTHER_SECOND = click.option(
    "--other-second", is_flag=True,
    help="Let no record be a revisit of one with its own URL and second (for OutbackCDX).",
)  # fmt: skip


def alike_options(command: _Command) -> _Command:
    """The options that are the fields of `resolve.alike.MatchCriteria`."""
    return _ANY_STATUS(_SAME_TYPE(_OTHER_SECOND(command)))
