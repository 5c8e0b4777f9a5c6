"""``bin/export --self-contained``: a part of a collection that stands on its own."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from dedupindex.cli.common import print_json, say, warn
from dedupindex.errors import BadInput, Damaged
from dedupindex.post_crawl.subset.choose_records import SubsetFilter
from dedupindex.post_crawl.subset.write_subset import SubsetReport, export
from dedupindex.runtime.tables import amount, printable, singular
from dedupindex.verify.issues import DAMAGE, REASONS, REMARK, Finding

UNSOUND = 8  # exit status: as that of bin/verify
_OPTIONS = {
    "urls": click.option(
        "--url", "urls", multiple=True, metavar="PREFIX", allow_from_autoenv=False,
        help="--self-contained: only URLs that begin so; may be given again.",
    ),
    "host": click.option(
        "--host", multiple=True, metavar="NAME", allow_from_autoenv=False,
        help="--self-contained: or of this host, or of one below it.",
    ),
    "begin": click.option(
        "--from", "begin", metavar="DATE", allow_from_autoenv=False,
        help="--self-contained: only captures of this year, day or second, or later.",
    ),
    "end": click.option(
        "--to", "end", metavar="DATE", allow_from_autoenv=False,
        help="--self-contained: only captures of this year, day or second, or earlier.",
    ),
    "originals": click.option(
        "--originals", multiple=True, metavar="SOURCE", allow_from_autoenv=False,
        help="--self-contained: where originals may be that are not in SOURCE.",
    ),
    "jobs": click.option(
        "--jobs", type=click.IntRange(0), default=0, show_default="number of cores",
        allow_from_autoenv=False, help="--self-contained: processes that read files side by side.",
    ),
}  # fmt: skip
_FIRST = "00010101000000"  # the first moment of a year
_DIGITS = re.compile(r"[0-9]{4}(?:[0-9]{2}){0,5}")
_Command = Callable[..., int]


def options(command: _Command) -> _Command:
    """Give a command the options of a subset."""
    for option in reversed(_OPTIONS.values()):
        command = option(command)
    return command


def check_none(options: dict[str, Any]) -> None:
    """Raise `UsageError` if one of them is given where it means nothing."""
    for name in _OPTIONS:
        if options[name]:
            raise click.UsageError(f"--{name.removesuffix('s')} takes --self-contained")


def write(sources: tuple[str, ...], options: dict[str, Any]) -> int:
    """Write a subset; returns the exit status."""
    out: Path | None = options["out"]
    if out is None or not sources:
        raise click.UsageError("--self-contained takes a SOURCE, and -o for where to write")
    wanted = SubsetFilter(
        tuple(map(os.fsencode, options["urls"])),
        tuple(host.lower().strip(".").encode("idna") for host in options["host"]),
        _moment(options["begin"], "00000101000000"),
        _moment(options["end"], "99999999999999"),
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # leave no file that is not whole
    processes = options["jobs"] or len(os.sched_getaffinity(0))
    exported = export(sources, options["originals"], wanted, out, processes, _name)
    warn(exported.problems)
    return _tell(exported, out, as_json=options["as_json"])


def _moment(text: str | None, rest: str) -> bytes:
    """14 digits of a date that may end after the year, month, day, ...; raises `BadInput`."""
    if text is None:
        return b""
    digits = re.sub(r"[-T:Z]", "", text)
    try:
        if _DIGITS.fullmatch(digits) is None:
            raise ValueError
        datetime.strptime(digits + _FIRST[len(digits) :], "%Y%m%d%H%M%S")  # is there such a day?
    except ValueError:
        raise BadInput(
            f"a date is written 2026, 2026-11, 2026-11-20 or in digits, not {text!r}"
        ) from None
    return (digits + rest[len(digits) :]).encode("ascii")


def _name(finding: Finding) -> None:
    say(f"warning: {finding.file} at {finding.offset}: {finding.reason}: {finding.message}")


def _tell(exported: SubsetReport, out: Path, *, as_json: bool) -> int:
    if not exported.records:
        say("nothing was written: no record is wanted of all that was read")
    if as_json:
        print_json(exported.as_json())
    elif exported.records:
        click.echo(
            singular(
                f"{exported.records:,} records, {exported.originals:,} originals for "
                f"{exported.revisits:,} revisits, of which {exported.dangling:,} have none; "
                f"{amount(exported.bytes)} in "
            )
            + printable(str(out))
        )
        for reason, count in sorted(exported.findings.items()):
            click.echo(f"  {REASONS[reason]}: {reason:<24}{count:>12,}")
    if exported.dangling:
        say("name with --originals where the originals may be that are in none of the SOURCEs")
    levels = {REASONS[reason] for reason in exported.findings}
    if exported.problems or DAMAGE in levels:
        return Damaged.exit_status
    return UNSOUND if exported.dangling or levels - {REMARK} else 0
