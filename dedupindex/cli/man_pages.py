"""Man pages of all commands, made from their help: ``python -m dedupindex.cli.man_pages docs/man``.

The pages are kept in docs/man, as a wheel is built without the packages that a command imports; a
test compares them with the help.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from dedupindex import __version__
from dedupindex.cli import COMMANDS, group
from dedupindex.cli.common import STATUSES, Command
from dedupindex.errors import as_installed

_NAME = "dedupindex"
_ENVIRONMENT = (
    ("DEDUPINDEX_CONFIG", "The settings file, as with --config."),
    ("DEDUPINDEX_COMMAND_OPTION", "The default of an option, such as DEDUPINDEX_INDEX_MIME."),
)


def write_man_pages(directory: Path) -> list[Path]:
    """Write a page for each command, and one for all, to a directory; return their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    context = click.Context(group, info_name=_NAME)
    pages = {_NAME: _overview()}
    for name in COMMANDS:
        command = group.get_command(context, name)
        assert isinstance(command, Command)
        pages[f"{_NAME}-{name}"] = _page(command, name)
    written = []
    for name, lines in pages.items():
        written.append(directory / f"{name}.1")
        written[-1].write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return written


def _overview() -> Iterator[str]:
    yield from _head(_NAME, inspect.cleandoc(group.help or ""))
    yield from (".SH SYNOPSIS", f".B {_NAME}", r"\fICOMMAND\fR [\fIARGUMENT\fR]...")
    yield ".SH COMMANDS"
    for name, about in COMMANDS.items():
        yield from (".TP", rf"\fB{_text(f'{_NAME}-{name}')}\fR(1)", _text(about))
    yield ".SH ENVIRONMENT"
    for name, about in _ENVIRONMENT:
        yield from (".TP", f".B {name}", _text(about))
    yield from _statuses()


def _page(command: Command, name: str) -> Iterator[str]:
    context = command.make_context(name, [], resilient_parsing=True)
    yield from _head(f"{_NAME}-{name}", COMMANDS[name])
    yield from (".SH SYNOPSIS", rf".B {_NAME} {_text(name)}")
    yield _text(" ".join(command.collect_usage_pieces(context)))
    yield ".SH DESCRIPTION"
    for number, paragraph in enumerate(inspect.cleandoc(command.help or "").split("\n\n")):
        yield from ([".PP"] if number else [])
        yield _text(" ".join(paragraph.split()))
    yield ".SH OPTIONS"
    for option in command.params:
        record = option.get_help_record(context)
        if isinstance(option, click.Option) and record is not None:
            choices = _text(record[0]).replace("|", r"|\:")  # a line may break there
            yield from (".TP", rf"\fB{choices}\fR", _text(record[1]))
    yield from (".SH EXAMPLES", ".nf", *map(_text, command.examples.strip().splitlines()), ".fi")
    yield from _statuses()
    yield from (".SH SEE ALSO", rf"\fB{_NAME}\fR(1)")


def _head(name: str, about: str) -> Iterator[str]:
    yield f'.TH "{_text(name.upper())}" 1 "" "{_NAME} {__version__}" "{_NAME}"'
    yield from (".nh", ".ad l")  # neither names nor commands are hyphenated
    yield from (".SH NAME", rf"{_text(name)} \- {_text(about.rstrip('.'))}")


def _statuses() -> Iterator[str]:
    yield ".SH EXIT STATUS"
    for status in " ".join(STATUSES.split()).split(" · "):
        number, _, meaning = status.partition(" ")
        yield from (".TP", f".B {number}", _text(meaning))


def _text(text: str) -> str:
    """Return text as troff takes it, with the commands as an installed package has them."""
    escaped = as_installed(text).replace("\\", r"\e").replace("-", r"\-").replace("~", r"\(ti")
    escaped = escaped.replace("'", r"\(aq").replace("^", r"\(ha").replace("`", r"\(ga")
    return rf"\&{escaped}" if escaped.startswith(".") else escaped


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("Usage: python -m dedupindex.cli.man_pages DIR")
    for path in write_man_pages(Path(sys.argv[1])):
        print(path)
