"""What every command shares: the settings file, help that ends with examples, one way to print."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import orjson

from dedupindex.capture import Problem
from dedupindex.errors import BadInput

STATUSES = """\
0 done · 1 crash · 2 wrong usage · 3 other failure · 4 input that cannot be read ·
5 settings conflict · 6 index unavailable or busy · 7 damaged data left out"""


class Command(click.Command):
    """A command with ``--config``, whose help ends with examples and exit statuses.

    A setting comes from the command line, else from the environment
    (``DEDUPINDEX_<COMMAND>_<OPTION>``), else from the settings file, else it is the default.
    """

    def __init__(self, *args: Any, examples: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._examples = examples
        self.params.append(
            click.Option(
                ["--config"],
                type=click.Path(dir_okay=False),
                envvar="DEDUPINDEX_CONFIG",
                is_eager=True,
                expose_value=False,
                callback=_configure,
                help="Settings file (TOML); conf/dedupindex.toml documents every setting.",
            )
        )

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, text in (("Examples", self._examples), ("Exit status", STATUSES)):
            if text:
                with formatter.section(title):
                    for line in text.strip().splitlines():
                        formatter.write(f"  {line}\n")


def _configure(ctx: click.Context, option: click.Parameter, path: str | None) -> None:
    """Make the command's section of a settings file the defaults of its options."""
    if path is None:
        return
    content = read_config(Path(path))
    section = content.get(ctx.info_name or "", {})
    names = {param.name for param in ctx.command.params if param.param_type_name == "option"}
    values = {name.replace("-", "_"): value for name, value in section.items()}
    if unknown := sorted(set(values) - {name for name in names if name}):
        raise BadInput(f"{path}: [{ctx.info_name}] has no setting {unknown[0]!r}")
    ctx.default_map = {**(ctx.default_map or {}), **values}


def read_config(path: Path) -> dict[str, dict[str, Any]]:
    """The sections of a settings file; raises `BadInput`."""
    try:
        content = tomllib.loads(path.read_text())
    except OSError as error:
        raise BadInput(f"settings file {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"settings file {path} is not TOML: {error}") from error
    if not all(isinstance(section, dict) for section in content.values()):
        raise BadInput(f"settings file {path}: every setting belongs in a section, as [index]")
    return content


def print_json(value: Any) -> None:
    """One JSON value on one line of stdout."""
    click.echo(orjson.dumps(value))


def say(text: str) -> None:
    """Talk: one line on stderr, with control characters of the web made visible."""
    click.echo(printable(text), err=True)


def warn(problems: Iterable[Problem]) -> None:
    """Name damaged input on stderr, a line for each."""
    for container, offset, message in problems:
        place = f"{container} at {offset}" if offset >= 0 else container
        say(f"warning: {place}: {message}")


def printable(text: str) -> str:
    """Text from the web as a terminal may show it: no control characters, no lone surrogates."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode()
        for char in text
    )


def amount(count: float) -> str:
    """Bytes for people: ``1.4 MB``."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return ""
