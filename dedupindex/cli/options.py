"""Declare the options of commands, and those that several commands share."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from dedupindex.cli.output_files import PAGE, check_output
from dedupindex.errors import BadInput, BadSource
from dedupindex.runtime.files import check_writable, require_directory
from dedupindex.sources.table_columns import parse_names

_Command = TypeVar("_Command", bound=Callable[..., Any])
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]?)i?B?", re.IGNORECASE)
_MEMORY = re.compile(r"(?=[^a-z%]*[1-9])\d*\.?\d+ ?([KMGT]i?B?|%)", re.IGNORECASE)
_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_JSON = "dedupindex.json"  # key of a context: whether --json was given
_DICTIONARIES = "dedupindex.zstd_dictionary"  # likewise: the paths of --zstd-dictionary


class Number(click.IntRange):
    """A whole number of at least `min`, and at most `max` unless that is None."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        _check_number(self, int, value, param, ctx)
        return super().convert(value, param, ctx)


class RealNumber(click.FloatRange):
    """A number with decimals, likewise."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        _check_number(self, float, value, param, ctx)
        return super().convert(value, param, ctx)


def _check_number(
    kind: Number | RealNumber, parse: Callable[[Any], float], value: Any,
    param: click.Parameter | None, ctx: click.Context | None,
) -> None:  # fmt: skip
    """Refuse what is no number at all, and say between which bounds it must be."""
    try:
        number = parse(value)
        if number != number:
            raise ValueError(value)  # nan is neither below a bound nor above it
    except ValueError:
        most = "" if kind.max is None else f" and at most {kind.max:,}"
        kind.fail(f"{value!r} is not a number of at least {kind.min:,}{most}", param, ctx)


COUNT, POSITIVE = Number(0), Number(1)
PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)
PATH_OR_DASH = click.Path(path_type=Path, allow_dash=True)


def path_or_address(value: str) -> Path | str:
    """Return a path, or as text the address of an object or directory in a store."""
    from dedupindex.object_store import is_remote  # commands need not wait for it

    scheme, slash, rest = value.partition(":/")
    if (
        slash
        and not rest.startswith("/")
        and is_remote(f"{scheme}://")
        and not Path(value).exists()
    ):
        raise click.BadParameter(
            f"an address has two slashes: did you mean {scheme.lower()}://{rest}?"
        )
    return value if is_remote(value) else Path(value)


def results_of(out: Path | str | None, state: Path | None) -> tuple[Path | None, str]:
    """Return the directory of results, or that of their journals and the address of the results.

    Raises `UsageError` if these do not go together, `BadSource` for an address that is not of S3.
    """
    if not isinstance(out, str):
        if state is not None:
            raise click.UsageError("--state goes with results in an object store")
        for one in (out, *out.absolute().parents) if out is not None else ():
            if one.exists() and not one.is_dir():
                raise BadInput(f"--out {out} cannot be a directory: {one} is a file")
        return out, ""
    from dedupindex.object_store import check_creatable, redacted  # slow: HTTP

    check_creatable(out)
    if state is None:
        raise click.UsageError(
            f"--out {redacted(out)} goes with --state DIR: a directory of this machine that keeps "
            "the journals, with room for two files of each process"
        )
    return state, out.rstrip("/")


class SingleOption(click.Option):
    """An option with one value; refused if given twice, as nobody knows which was meant."""

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        self.multiple = True  # so that the parser keeps all values
        try:
            super().add_to_parser(parser, ctx)
        finally:
            self.multiple = False

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, Any]:
        values = opts.get(self.name or "")
        if isinstance(values, list):
            if len(values) > 1 and not ctx.resilient_parsing:
                raise click.UsageError(f"{self.opts[0]} is given twice; it takes one value", ctx)
            opts = {**opts, self.name or "": values[-1]}
        return super().consume_value(ctx, opts)


def option(*names: str, setting: bool = True, **details: Any) -> Callable[[_Command], _Command]:
    """Add an option, with its default in its help, to a command.

    With `setting` False it is for the command line only, not for settings files.
    """
    is_text = "type" not in details and isinstance(details.get("default", ""), str | None)
    if is_text and not details.get("is_flag") and not details.get("count"):
        long = max((name for name in names if name.startswith("-")), key=len)
        is_size = details.get("callback") in (parse_size, _check_memory)
        name = "SIZE" if is_size else long.removeprefix("--").upper().replace("-", "_")
        details.setdefault("metavar", name)
    details.setdefault("show_default", details.get("default") not in (None, "", ()))
    if not details.get("multiple") and not details.get("is_flag") and not details.get("count"):
        details.setdefault("cls", SingleOption)
    return click.option(*names, allow_from_autoenv=setting, **details)


def flag(*names: str, **details: Any) -> Callable[[_Command], _Command]:
    """Add an option without a value to a command."""
    return option(*names, is_flag=True, **details)


def shared_options(*names: str, help: str = "") -> Callable[[_Command], _Command]:
    """Add options of `_SHARED` by their names, with `help` in place of the usual help."""

    def add(command: _Command) -> _Command:
        for name in reversed(names):
            command = _SHARED[name](**({"help": help} if help else {}))(command)
        return command

    return add


def wants_json() -> bool:
    """Return whether the running command was given ``--json``."""
    return bool(click.get_current_context().meta.get(_JSON))


def parse_size(context: click.Context, option: click.Parameter, value: str) -> int:
    """Parse a number of bytes with KiB, MiB, GiB or TiB."""
    match = _SIZE.fullmatch(value)
    if match is None:
        raise click.BadParameter(f"{value} is not a size: write a number with KiB, MiB or GiB")
    return round(float(match[1]) * int(1024 ** _UNITS[match[2].upper()]))


def _check_memory(context: click.Context, option: click.Parameter, value: str) -> str:
    """Refuse what DuckDB does not read, before hours are spent on what comes before DuckDB."""
    if not _MEMORY.fullmatch(value):
        raise click.BadParameter(f"{value} is no amount of memory: write a number with MB or GB")
    return value


def require_parent(path: Path) -> None:
    """Raise `UsageError` if there is no directory in which a file named by an option can be."""
    try:
        require_directory(path)
    except BadInput as error:
        raise click.UsageError(str(error)) from error


def _page_to_write(
    context: click.Context, option: click.Parameter, path: Path | None
) -> Path | None:
    """Refuse a page that cannot be written, or that would replace another file.

    Raises the `OSError` of writing it.
    """
    if path is None:
        return None
    require_parent(path)
    try:
        check_output(path, PAGE)
    except BadInput as error:
        raise click.BadParameter(str(error)) from error
    if not context.resilient_parsing:
        check_writable(path)  # what is reported may take hours
    return path


def _note_json(context: click.Context, option: click.Parameter, given: bool) -> None:
    context.meta[_JSON] = given


def _give_dictionaries(
    context: click.Context, option: click.Parameter, files: tuple[Path, ...]
) -> None:
    """Let this process and those that it starts read zstd with dictionaries; see `VARIABLE`."""
    if not files:
        return
    from dedupindex.warc import zstd_format  # most runs need none

    paths = [os.path.abspath(file) for file in files]
    context.meta[_DICTIONARIES] = paths
    try:
        zstd_format.give_dictionaries(paths)
    except zstd_format.UnreadableFrame as error:
        raise BadSource(f"--zstd-dictionary: {error}") from error


def with_dictionaries(command: str) -> str:
    """Return a command on the same files, with the --zstd-dictionary that was given to this one."""
    paths = click.get_current_context().meta.get(_DICTIONARIES, ())
    return " ".join([command, *(f"--zstd-dictionary {shlex.quote(path)}" for path in paths)])


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


_CONTAINERS = (
    "Where WARC files are, if not beside the CDX: a directory, file, or address that ends with /."
)
_ANNOTATION = "crawl.log: further annotations that mark duplicates."
_COLUMNS = "Columns of Parquet tables that have other names than usual (docs/formats.md)."
_MIN_SIZE = "Smallest body to replace, in bytes."
_MIN_GAIN = "Smallest gain of a revisit, in bytes."
_NUMBER: dict[str, Any] = {
    "type": COUNT,
    "default": 0,
    "show_default": "number of cores",
}
_LET_NO = "Let no record be a revisit of one with"
_LET_ANY = "Let a record be a revisit of one with another HTTP status, such as 404 of 200."
_SPARK = "Run on Apache Spark: spark://HOST:7077, yarn, local[4], … (docs/batch.md)."
_WHERE = "Only captures whose metadata meet this (docs/corpus.md); repeatable, all must hold."
_BASE_URL = (
    "Where to read files that are not on this machine, under their paths relative to the sources; "
    "{host} stands for their host. Several are tried in turn."
)
_URLS = "A table of file names and their URLs (TSV, CSV, Parquet), tried before --base-url."
_HOST = "This machine, if the manifests were made with --host: files of others are read by URL."
OUT = "Write the files below this directory, or below s3://BUCKET/PREFIX."
_STATE = "With results in an object store: the local directory of their journals."
_DICTIONARY = "A dictionary of .warc.zst files that do not hold theirs; repeatable, chosen by id."
_SHARED = {
    next(name for name in added.args if name.startswith("--")): added
    for added in (
        partial(flag, "--any-status", help=_LET_ANY),
        partial(flag, "--same-type", help=f"{_LET_NO} another HTTP Content-Type."),
        partial(flag, "--other-second", help=f"{_LET_NO} its own URL and second (OutbackCDX)."),
        partial(flag, "--in-place", help="Replace the files, with a journal to undo it."),
        partial(flag, "--json", help="One JSON object on stdout.",
                expose_value=False, callback=_note_json),
        partial(option, "--html", type=FILE, callback=_page_to_write, metavar="FILE",
                help="Also write the report as a page with pictures."),
        partial(flag, "-v", "--verbose", help="Progress every second."),
        partial(option, "--jobs", **_NUMBER, help="Processes.",
                callback=lambda context, option, number: number or cores()),
        partial(option, "--threads", **_NUMBER, help="Threads of DuckDB."),
        partial(option, "--memory", default="1GB", callback=_check_memory,
                help="Memory for DuckDB."),
        partial(option, "--min-size", type=COUNT, default=0, help=_MIN_SIZE),
        partial(option, "--min-gain", type=POSITIVE, default=1, help=_MIN_GAIN),
        partial(option, "--offsets", type=PATH, help="Write a map of old to new offsets here."),
        partial(option, "--cdxj", type=PATH, help="Write a CDXJ of the results here."),
        partial(option, "--out", type=path_or_address, metavar="DIR", help=OUT),
        partial(option, "--state", type=PATH, metavar="DIR", setting=False, help=_STATE),
        partial(option, "--base-url", "base_urls", multiple=True, metavar="URL", help=_BASE_URL),
        partial(option, "--urls", type=FILE, metavar="TABLE", help=_URLS),
        partial(option, "--host", default="", metavar="NAME", help=_HOST),
        partial(option, "--spark", default="", metavar="MASTER", help=_SPARK),
        partial(option, "--containers", multiple=True, metavar="WHERE", help=_CONTAINERS),
        partial(option, "--revisit-annotation", default="", metavar="REGEX", help=_ANNOTATION),
        partial(option, "--zstd-dictionary", multiple=True, type=FILE, metavar="FILE",
                help=_DICTIONARY, expose_value=False, callback=_give_dictionaries),
        partial(option, "--columns", default="", metavar="NAME=COLUMN,…", help=_COLUMNS,
                callback=lambda context, option, text: parse_names(text)),
        partial(option, "--where", multiple=True, metavar="EXPR", help=_WHERE),
    )
}  # fmt: skip
