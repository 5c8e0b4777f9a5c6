"""Shared by all commands: the settings file, help with examples, printing."""

from __future__ import annotations

import os
import re
import select
import signal
import stat
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import IO, Any, BinaryIO

import click
from click.core import ParameterSource

from dedupindex import __version__
from dedupindex.capture import Problem
from dedupindex.cli import COMMANDS
from dedupindex.cli.options import SingleOption, wants_json
from dedupindex.cli.usage_remedies import bad_value, unexpected, with_remedy
from dedupindex.errors import (
    STDOUT,
    BadInput,
    Damaged,
    DedupError,
    as_called,
    as_named,
    help_as_called,
)
from dedupindex.runtime import html_page
from dedupindex.runtime.files import atomic_file
from dedupindex.runtime.tables import UNKNOWN, amount, json_bytes, printable

_FILE = "dedupindex.settings"  # key of a context: its settings file
_LINES_SHOWN = 10  # bad lines of a file that are printed; the rest are counted
TYPED = "dedupindex.typed"  # key of a context: the last argument as typed, perhaps a source
AS_INDEX = "dedupindex.as_index"  # key of a context: INDEX as typed; an address as a path loses "/"
_HYPHEN = "\N{NON-BREAKING HYPHEN}"  # while lines are broken
_DIGEST = re.compile(r"(?:md5|sha-?\d+|blake3):.*|\w{32}|\w{40}", re.IGNORECASE)
_EVERY_SETTING = "conf/dedupindex.toml has every setting, to copy from"
_NAME_TYPES = {"path", "file", "directory", "filename", "path_or_address", "any_index"}
_NAME_METAVARS = {"SOURCE", "WHERE", "PATH"}  # of options that take text
UNSOUND = 8  # exit status: something is lost or will not replay
NOTHING_FOUND = 10  # exit status of a question to which the index has no answer
RESUMED = "run the same command again to resume"
bars: list[Callable[[], AbstractContextManager[None]]] = []  # hide each that is on the terminal
STATUSES = """\
0 done · 1 crash · 2 wrong usage · 3 other failure · 4 input that cannot be read ·
5 settings conflict · 6 index unavailable or busy · 7 damaged data left out ·
8 something is lost or will not replay, perhaps besides damage ·
9 spot check failed (index, purge) ·
10 nothing found (lookup, list, search, impact, purge) ·
130 interrupted · 141 output closed by its reader"""


class _Formatter(click.HelpFormatter):
    """Breaks lines between words only: no name of a file or an option is cut at a hyphen."""

    def write_text(self, text: str) -> None:
        super().write_text(_held(text))

    def write_dl(self, rows: Iterable[tuple[str, str]], *widths: Any, **more: Any) -> None:
        super().write_dl([(first, _held(second)) for first, second in rows], *widths, **more)

    def getvalue(self) -> str:
        return super().getvalue().replace(_HYPHEN, "-")


def _held(text: str) -> str:
    """Return a text with hyphens at which no line is broken."""
    return text.replace("-", _HYPHEN)


class _Context(click.Context):
    formatter_class = _Formatter

    @property
    def command_path(self) -> str:
        """The command, for its help and for usage errors."""
        return as_named(f"bin/{self.info_name}")


def print_and_save(
    pieces: Iterable[str], target: Path | None, page: Callable[[], Iterable[str]]
) -> None:
    """Print a report, and write its page if one is wanted; each also if the other one fails."""
    try:
        for piece in pieces:
            click.echo(piece, nl=False)
    finally:
        if target is not None:
            html_page.save(target, page())


def check_no_address(path: Path) -> None:
    """Raise `BadSource` if an address was given where a path is needed."""
    if ":/" in str(path):
        from dedupindex.object_store import check_path  # commands need not wait for it

        check_path(path)


class Command(click.Command):
    """A command with ``--config``, whose help ends with examples and exit statuses.

    A setting is taken from the command line, the environment (``DEDUPINDEX_<COMMAND>_<OPTION>``),
    the settings file or the default, in this order. It is named after its long option.

    SIGTERM and SIGHUP end it like Ctrl-C, so that temporary files are removed, unless it has
    `own_signals`.
    """

    context_class = _Context

    def __init__(
        self,
        *args: Any,
        examples: str = "",
        own_signals: bool = False,
        like: tuple[str, click.Command] | None = None,
        interrupted: str = "",
        **kwargs: Any,
    ) -> None:
        """`like` is another command whose options may be meant, and its name.

        `interrupted` says what to do after Ctrl-C.
        """
        super().__init__(*args, **kwargs)
        self._interrupted = interrupted
        self.examples, self._own_signals, self._like = examples, own_signals, like
        self.params += (
            SingleOption(
                ["--config"],
                type=click.Path(dir_okay=False),
                envvar="DEDUPINDEX_CONFIG",
                is_eager=True,
                allow_from_autoenv=False,
                expose_value=False,
                callback=_configure,
                help="Settings file (TOML); conf/dedupindex.toml documents every setting.",
            ),
            click.Option(
                ["--version"],
                is_flag=True,
                is_eager=True,
                allow_from_autoenv=False,
                expose_value=False,
                callback=_print_version,
                help="Print the version and exit.",
            ),
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        for name, option in settings_of(self).items():
            option.envvar = _variable(ctx, name)
        _warn_of_variables(ctx)
        ctx.allow_extra_args = True  # they are refused here, with what was meant
        words = tuple(args)  # click takes them away
        try:
            if empty := _empty_name(ctx, self, words):
                raise click.UsageError(empty, ctx)
            rest = super().parse_args(ctx, args)
            if rest and not ctx.resilient_parsing:
                raise click.UsageError(_unexpected(ctx, self, rest), ctx)
            if exchanged := _exchanged(ctx, self):
                raise click.UsageError(exchanged, ctx)
            for name, value in ctx.params.items():
                for one in value if isinstance(value, tuple) else (value,):
                    if isinstance(one, Path) and (name != "index" or TYPED not in ctx.meta):
                        check_no_address(one)
            return rest
        except click.NoSuchOption as error:
            name, command = self._like or ("", self)
            if error.option_name in _options_of(command):
                text = f"no such option: {error.option_name}; did you mean bin/{name} "
                raise click.UsageError(f"{text}{error.option_name}?", ctx) from None
            if word := _with_one_dash(words, _options_of(self)):
                text = f"no such option: {word}; did you mean -{word}?"
                raise click.UsageError(text, ctx) from None
            raise with_remedy(error, ctx, self._example()) from None
        except (click.BadOptionUsage, click.MissingParameter) as error:
            raise with_remedy(error, ctx, self._example()) from None
        except click.BadParameter as error:
            wrong, remedied = error.param, bad_value(error, ctx)
            if not isinstance(wrong, click.Option):
                raise remedied from None
            source = ctx.get_parameter_source(wrong.name or "")
            if source is ParameterSource.DEFAULT_MAP:
                raise BadInput(f"{_place(ctx, wrong)}: {error.message}") from error
            if source is ParameterSource.ENVIRONMENT:
                remedied.param_hint = f"{wrong.envvar} (environment)"
            raise remedied from None

    def _example(self) -> str:
        """Return the first of the examples, without what is said of it."""
        lines = self.examples.replace("\\\n", "").strip().splitlines()
        return " ".join(re.split(r"  #| > ", lines[0])[0].split()) if lines else ""

    def invoke(self, ctx: click.Context) -> Any:
        if "--jobs" in _options_of(self):  # then it reads files, and needs room
            _check_temporary()
        if not self._own_signals and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # nohup ignores it
                signal.signal(signal.SIGHUP, _on_hangup)
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise KeyboardInterrupt(self._interrupted) from error

    def get_help(self, ctx: click.Context) -> str:
        return help_as_called(super().get_help(ctx))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, text in (("Examples", self.examples), ("Exit status", STATUSES)):
            with formatter.section(title):
                for line in text.strip().splitlines():
                    formatter.write(f"  {line}\n")


def _on_hangup(number: int, frame: FrameType | None) -> None:
    """Raise `KeyboardInterrupt`; what is printed then on a terminal that is gone must not fail."""
    outputs = select.poll()
    outputs.register(1, 0)
    outputs.register(2, 0)
    for descriptor, event in outputs.poll(0):
        if event & select.POLLHUP:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, descriptor)
            os.close(null)
    raise KeyboardInterrupt


def _check_temporary() -> None:
    """Say that temporary files are elsewhere than they were meant to be, as Python does not."""
    meant = os.environ.get("TMPDIR", "")
    if meant and not (os.path.isdir(meant) and os.access(meant, os.W_OK | os.X_OK)):
        from tempfile import gettempdir  # most runs need not wait for it

        why = "cannot be written to" if os.path.isdir(meant) else "is no directory"
        say(f"warning: TMPDIR {meant} {why}: temporary files go to {gettempdir()}")


def _options_of(command: click.Command) -> set[str]:
    return {name for param in command.params for name in param.opts}


def _empty_name(ctx: click.Context, command: click.Command, words: Sequence[str]) -> str:
    """Return the message if a file, directory or index is named "", else "".

    As a path that would be the working directory, and all of it would be read or written.
    """
    if ctx.resilient_parsing or not any(not word or word.endswith("=") for word in words):
        return ""
    given, _, _ = command.make_parser(ctx).parse_args(args=list(words))
    for param in command.params:
        values = given.get(param.name)
        if "" in (values if isinstance(values, list | tuple) else (values,)) and _is_name(param):
            word = param.opts[0] if isinstance(param, click.Option) else param.make_metavar(ctx)
            return (
                f"an empty name was given for {word.strip('[].')}: name a file or directory (a "
                "variable of the shell may not be set)"
            )
    return ""


def _is_name(param: click.Parameter) -> bool:
    """Return whether a parameter takes names of files, directories or indexes."""
    if isinstance(param, click.Argument):
        return param.name != "query"
    return param.type.name in _NAME_TYPES or param.metavar in _NAME_METAVARS


def _with_one_dash(words: Iterable[str], options: Collection[str]) -> str:
    """Return the first word that is an option but for its second dash; "" if there is none."""
    names = (word.partition("=")[0] for word in words)
    return next((name for name in names if len(name) > 2 and f"-{name}" in options), "")


def _unexpected(ctx: click.Context, command: click.Command, rest: Sequence[str]) -> str:
    """Return the message for arguments that a command does not take."""
    index, other = ctx.params.get("index"), rest[0]
    if isinstance(index, Path) and (
        wrong := wrong_order(ctx, index, other, _option_for(command, _typed_index(ctx, index)))
    ):
        return wrong
    option = _option_for(command, other)
    return unexpected(other, option, ctx)


def _exchanged(ctx: click.Context, command: click.Command) -> str:
    """Return the message if INDEX and the value of an option were exchanged, else ""."""
    index = ctx.params.get("index")
    if not isinstance(index, Path) or ctx.resilient_parsing:
        return ""
    option = _option_for(command, _typed_index(ctx, index))
    if not option:
        return ""
    value = ctx.params[option.removeprefix("--")]
    others = value if isinstance(value, tuple) else (value,)
    found = (wrong_order(ctx, index, one, option) for one in others if isinstance(one, str) and one)
    return next(filter(None, found), "")


def _typed_index(ctx: click.Context, index: Path) -> str:
    return str(ctx.meta.get(AS_INDEX, index))


def wrong_order(ctx: click.Context, index: Path, other: str, option: str = "") -> str:
    """Return that `other` is an index, and what was named before it is not; "" if that is wrong.

    `option` is the one that `index` was meant for, if any.
    """
    from dedupindex.index.identity import FILE  # only mistakes need it

    if not (Path(other) / FILE).is_file() or (index / FILE).exists():
        return ""
    typed = _typed_index(ctx, index)
    right = " ".join(filter(None, (ctx.command_path, other, option, typed)))
    return f"{other} is an index, and {typed} is not; the index comes first: {right}"


def _option_for(command: click.Command, text: str) -> str:
    """Return the option of a command that takes an argument of this form, "" if there is none."""
    shaped = {
        "--url": "://" in text,
        "--port": text.isdecimal(),
        "--digest": _DIGEST.fullmatch(text) is not None,
    }
    return next((name for name in _options_of(command) & shaped.keys() if shaped[name]), "")


def _variable(ctx: click.Context, setting: str) -> str:
    return f"DEDUPINDEX_{ctx.info_name}_{setting}".upper()


def _warn_of_variables(ctx: click.Context) -> None:
    """Print a line for each variable of this command's settings that names none of them."""
    if ctx.resilient_parsing:
        return
    begin, known = _variable(ctx, ""), [name.upper() for name in settings_of(ctx.command)]
    others = [f"DEDUPINDEX_{name}_".upper() for name in COMMANDS]
    for name in sorted(os.environ):
        setting = name.removeprefix(begin)
        longest = max(filter(name.startswith, others), key=len, default="")
        if longest == begin and setting not in known:
            say(f"warning: {name} names no setting of this command{meant(setting, known)}")


class ComparingCommand(Command):
    """Accepts ``--compare sample 100`` as two words, too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        for at in range(len(args) - 2):
            if args[at : at + 2] == ["--compare", "sample"] and args[at + 2].isdecimal():
                args = [*args[: at + 1], f"sample {args[at + 2]}", *args[at + 3 :]]
                break
        return super().parse_args(ctx, args)


def settings_of(command: click.Command) -> dict[str, click.Option]:
    """Return the options that a settings file may set, by setting name.

    Options that are for the command line only (`options.option`) are not among them.
    """
    return {
        setting_name(param): param
        for param in command.params
        if isinstance(param, click.Option) and param.allow_from_autoenv
    }


def setting_name(option: click.Option) -> str:
    """Return the name of a setting, which is the long option: ``no_url_index``."""
    return max(option.opts, key=len).removeprefix("--").replace("-", "_")


def is_typed(name: str) -> bool:
    """Return whether a parameter of the running command was given on the command line."""
    source = click.get_current_context().get_parameter_source(name)
    return source is ParameterSource.COMMANDLINE


def setting_source(name: str) -> str | None:
    """Return where a setting of the running command comes from, None if it is at its default.

    "" is the command line; otherwise the settings file or environment variable, for messages.
    """
    context = click.get_current_context()
    option = settings_of(context.command)[name.replace("-", "_")]
    source = context.get_parameter_source(option.name or "")
    if source is ParameterSource.DEFAULT_MAP:
        return _place(context, option)
    if source is ParameterSource.ENVIRONMENT:
        return f"{option.envvar} (environment)"
    return "" if source is ParameterSource.COMMANDLINE else None


def _place(ctx: click.Context, option: click.Option) -> str:
    return f"{ctx.meta[_FILE]}: [{ctx.info_name}] {setting_name(option)}"


def _print_version(ctx: click.Context, option: click.Parameter, given: bool) -> None:
    if given and not ctx.resilient_parsing:
        click.echo(f"dedupindex {__version__}")
        ctx.exit()


def _configure(ctx: click.Context, option: click.Parameter, path: str | None) -> None:
    """Use the command's section of a settings file as the defaults of its options."""
    if path is None:
        return
    content = read_config(Path(path))
    if unknown := sorted(set(content) - set(COMMANDS)):
        near = meant(unknown[0], COMMANDS) or f", but {', '.join(COMMANDS)}"
        raise BadInput(f"{path}: there is no section [{unknown[0]}]{near}")
    known = settings_of(ctx.command)
    values: dict[str, Any] = {}
    for name, value in content.get(ctx.info_name or "", {}).items():
        chosen = known.get(name.replace("-", "_"))
        if chosen is None:
            near = meant(name.replace("-", "_"), known)
            raise BadInput(f"{path}: [{ctx.info_name}] has no setting {name!r}{near}")
        several = chosen.multiple and not isinstance(value, list)
        values[chosen.name or ""] = [value] if several else value
    ctx.meta[_FILE] = path
    ctx.default_map = {**(ctx.default_map or {}), **values}


def meant(name: str, names: Iterable[str]) -> str:
    """Return a question with the names that an unknown one is like, nothing if there is none."""
    from difflib import get_close_matches  # only mistakes need it

    near = get_close_matches(name, list(names))
    return f"; did you mean {' or '.join(near)}?" if near else ""


def read_config(path: Path) -> dict[str, dict[str, Any]]:
    """Return the sections of a settings file; raises `BadInput`."""
    import tomllib  # most runs have no such file

    try:
        content = tomllib.loads(path.read_text())
    except OSError as error:
        why = f"settings file {path} cannot be read: {error.strerror}"
        raise BadInput(f"{why}; {_EVERY_SETTING}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        why = f"settings file {path} is not TOML: {error}"
        raise BadInput(f"{why}; {_EVERY_SETTING}") from error
    if not all(isinstance(section, dict) for section in content.values()):
        raise BadInput(f"settings file {path}: every setting belongs in a section, as [index]")
    return content


def print_line(line: str | bytes, *, err: bool = False, nl: bool = True) -> None:
    """Print a line on stdout, or on stderr; a bar is hidden meanwhile, unless it goes to a file."""
    with ExitStack() as hidden:
        for hide in bars if err or not is_file(sys.stdout) else ():  # it would be erased each time
            hidden.enter_context(hide())
        click.echo(line, err=err, nl=nl)


def is_file(stream: IO[Any]) -> bool:
    """Return whether a stream is a regular file, not a terminal or a pipe."""
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except OSError:  # it has none
        return False


def print_json(value: Any) -> None:
    """Print a value or a dataclass as JSON on one line of stdout."""
    print_line(json_bytes(value))


@contextmanager
def text_output(path: Path) -> Iterator[BinaryIO]:
    """Open stdout for ``-``, otherwise a file that appears when the block ends without error."""
    if path == Path("-"):
        yield sys.stdout.buffer
    else:
        with atomic_file(path) as stream:
            yield stream


def print_item(content: Any, lines: Iterable[str]) -> None:
    """Print one of several results on stdout, with ``--json`` as JSON, otherwise as lines."""
    if wants_json():
        print_json(content)
        return
    for line in lines:
        print_line(as_called(line))


def print_result(content: Any, lines: Iterable[str] = (), notes: Iterable[str] = ()) -> None:
    """Print a result on stdout, with ``--json`` as JSON, otherwise as lines of text.

    `notes` are printed on stderr, and only with the text. Raises `DedupError` as `work_done`.
    """
    with work_done():
        print_item(content, lines)
    for note in () if wants_json() else notes:
        say(note)


@contextmanager
def work_done() -> Iterator[None]:
    """Raise `DedupError` if stdout cannot be written to in the block, as a disk is full.

    It says that the command has done its work by then.
    """
    try:
        yield
    except OSError as error:
        if error.filename != STDOUT or isinstance(error, BrokenPipeError):
            raise
        raise DedupError(
            f"{STDOUT}: {error.strerror}: the command has done its work, and only its answer could "
            "not be written"
        ) from error


def count_lines(
    label: str, counts: Mapping[str, int], meanings: Mapping[str, str] | None = None,
    sizes: Mapping[str, int] | None = None,
) -> Iterator[str]:  # fmt: skip
    """Yield a line for each count, sorted by name, with its bytes and what the name means."""
    for name, count in sorted(counts.items()):
        meaning = (meanings or {}).get(name, "")
        if sizes is not None:
            size = amount(sizes[name]) if name in sizes else UNKNOWN
            meaning = f"{size:>10}  {meaning}"
        yield f"  {label + name:<28}{count:>12,}  {meaning}".rstrip()


def file_lines(lines: Sequence[str], count: int, shown: int = 5) -> Iterator[str]:
    """Yield the first of `count` files, of which `lines` name some, and how many more there are."""
    for line in lines[:shown]:
        yield f"  {printable(line)}"
    if count > shown:
        yield f"  and {count - shown:,} more (see --json)"


def say(text: str) -> None:
    """Print a line on stderr, with control characters made visible."""
    print_line(printable(as_called(text)), err=True)


def status_7(message: str) -> int:
    """Print why a command ends with status 7, and return it."""
    say(f"status {Damaged.exit_status}: {message}")
    return Damaged.exit_status


def warn(problems: Iterable[Problem]) -> None:
    """Print a line on stderr for each damaged input; of the lines of a text, the first few."""
    lines = Counter[str]()
    for container, offset, message in problems:
        if message.startswith("line "):
            lines[container] += 1
            if lines[container] > _LINES_SHOWN:
                continue
        place = f"{container} at {offset}" if offset >= 0 else container
        say(f"warning: {place}: {message}")
    for container, count in lines.items():
        if count > _LINES_SHOWN:
            say(f"warning: {container}: and {count - _LINES_SHOWN:,} more lines like these")


def warn_of_lines(refused: int) -> None:
    """Print how many lines of a CDX were not read as captures."""
    if refused:
        say(f"CDX lines skipped, not captures: {refused:,}")
