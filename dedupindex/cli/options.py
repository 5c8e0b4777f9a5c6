"""Options that several commands have."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def jobs_option(help: str = "Processes.") -> Callable[[_Command], _Command]:
    """`--jobs`: a number of processes; 0 is passed on as the number of cores."""
    return click.option(
        "--jobs", type=click.IntRange(0), default=0, show_default="number of cores", help=help,
        callback=lambda context, option, number: number or cores(),
    )  # fmt: skip


def memory_option(help: str = "Memory for DuckDB.") -> Callable[[_Command], _Command]:
    """`--memory`: what DuckDB may allocate, as it writes sizes."""
    return click.option("--memory", default="1GB", show_default=True, help=help)


def match_options(command: _Command) -> _Command:
    """The options that are the fields of `MatchCriteria`."""
    for name, help in (
        ("--other-second", "one with its own URL and second (for OutbackCDX)."),
        ("--same-type", "one with another HTTP Content-Type."),
    ):
        help = f"Let no record be a revisit of {help}"
        command = click.option(name, is_flag=True, help=help)(command)
    return click.option(
        "--any-status", is_flag=True,
        help="Let a record be a revisit of one with another HTTP status, such as 404 of 200.",
    )(command)  # fmt: skip


json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
spark_option = click.option(
    "--spark", default="", metavar="MASTER",
    help="Run on Apache Spark: spark://HOST:7077, yarn, local[4], … (docs/batch.md).",
)  # fmt: skip
verbose_option = click.option("-v", "--verbose", is_flag=True, help="Progress every second.")
