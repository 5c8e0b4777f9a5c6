"""What to type instead, added to what click says of a wrong usage."""

from __future__ import annotations

import re

import click

MISSING_INDEX = (
    "Missing argument 'INDEX': give the directory that bin/index made, or the address of a cluster"
)
_NUMBERS = {type(click.INT), type(click.FLOAT)}  # whose bounds click does not name
_ARGUMENTS = re.compile(r"^\[|\]$")  # of a metavar: the argument may be left out


def with_remedy(error: click.UsageError, ctx: click.Context, example: str) -> click.UsageError:
    """Return an error on options or missing arguments that says what to type.

    `example` is one of its command.
    """
    said = error.format_message().rstrip(".")
    if isinstance(error, click.NoSuchOption):
        if error.possibilities:
            return error
        return click.UsageError(
            f"{said}; {ctx.command_path} --help names those that there are", ctx
        )
    if isinstance(error, click.BadOptionUsage):  # of the parser, which does not know the command
        option = _option(ctx.command, error.option_name)
        typed = _typed(option, ctx) if option is not None else error.option_name
        return click.UsageError(f"{said}: give {typed}", ctx)
    if isinstance(error, click.MissingParameter) and isinstance(error.param, click.Option):
        return click.UsageError(f"{said}: give {_typed(error.param, ctx)}", ctx)
    return click.UsageError(f"{said}, as in {example}" if example else said, ctx)


def bad_value(error: click.BadParameter, ctx: click.Context) -> click.BadParameter:
    """Return an error on a value that says what to give instead."""
    param, said = error.param, error.message.rstrip(".")
    if isinstance(param, click.Option) and type(param.type) in _NUMBERS:
        said += f"; give {_typed(param, ctx)}"
    elif isinstance(param, click.Argument) and isinstance(param.type, click.Path):
        said += f"; give the name of a {'file' if param.type.file_okay else 'directory'}"
    else:
        return error
    return click.BadParameter(said, ctx, param)


def unexpected(other: str, option: str, ctx: click.Context) -> str:
    """Return the sentence on an argument that a command does not take.

    `option` takes a value of this form; "" if none does.
    """
    if option:
        return f"unexpected argument {other}; did you mean {option} {other}?"
    names = [
        _ARGUMENTS.sub("", one.make_metavar(ctx))
        for one in ctx.command.params
        if isinstance(one, click.Argument)
    ]
    taken = " ".join(("give", *names, "and options only")) if names else "give options only"
    return f"unexpected argument {other}; {taken}"


def _option(command: click.Command, name: str) -> click.Option | None:
    options = (one for one in command.params if isinstance(one, click.Option))
    return next((one for one in options if name in (*one.opts, *one.secondary_opts)), None)


def _typed(option: click.Option, ctx: click.Context) -> str:
    """Return an option as it is typed: ``--limit N``."""
    name = max(option.opts, key=len)
    return name if option.is_flag else f"{name} {option.make_metavar(ctx)}"
