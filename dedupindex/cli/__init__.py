"""The command line: ``dedupindex COMMAND``, and ``bin/COMMAND`` for each.

Results go to stdout, messages to stderr. A `DedupError` is printed as one sentence and sets the
exit status. The module of a command is imported when the command is called.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Sequence
from importlib import import_module
from io import BufferedWriter, FileIO, StringIO, TextIOWrapper
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from dedupindex import __version__
from dedupindex.errors import SHIPPED, STDOUT, DedupError, as_called

if TYPE_CHECKING:
    from typing_extensions import Buffer

_FULL = ", where results, working files or temporary files (TMPDIR) are"
COMMANDS = {  # in the order of use
    "index": "Build an index of originals, or add to one.",
    "serve": "Answer lookups over HTTP.",
    "lookup": "Look digests up.",
    "list": "List the captures in an index.",
    "report": "Report what a crawl saved, or would have saved.",
    "token": "Make, list and remove tokens for reading and writing.",
    "export": "Write an index for wget or Browsertrix, or a part of a collection.",
    "search": "Search a Whoosh index.",
    "dedup": "Turn duplicates in archives into revisits, and verify the result.",
    "rehearse": "Try dedup on copies, step by step.",
    "convert": "Convert ARC files to WARC, and back.",
    "manifest": "List every response of WARC and ARC files.",
    "resolve": "Plan which records become revisits, and of which originals.",
    "rewrite": "Turn the copies of a plan into revisits.",
    "undedup": "Restore the records that revisits replaced.",
    "verify": "Find what is damaged or lost in archives, or will not replay.",
    "cover": "Find the smallest set of documents that covers all others.",
    "impact": "Report what depends on captures before a purge.",
    "purge": "Remove captures from an index.",
    "heritrix-profile": "Make a Heritrix job that asks dedupindex.",
    "hash_documents": "Hash every object that a glob matches, into shards.",
    "dedup_hashes": "Keep one path for each hash in shards.",
    "run_pipeline": "Hash and deduplicate documents on this machine.",
    "generate_corpus": "Make random files with duplicates, for tests.",
    "corpus": "Extract a corpus from an archive, by metadata first.",
    "plan": "Estimate machines, hours and dollars.",
}
_DEMO = "Harvest a small site twice, and show what is saved."  # of a package beside this one
_FUNCTIONS = {  # of commands that share a module; others are `command` in a module of their name
    "impact": "purge:impact",
    "hash_documents": "documents:hash_command",
    "dedup_hashes": "documents:dedup_command",
    "run_pipeline": "documents:pipeline_command",
    "generate_corpus": "documents:generate_command",
}


class _CommandGroup(click.Group):
    """Imports the module of a command when it is called: ``lookup`` need not wait for ``serve``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return ["demo", *COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "demo":
            demo: click.Command = import_module("demo.__main__").command
            return demo
        if cmd_name not in COMMANDS:
            return None
        module, _, name = _FUNCTIONS.get(cmd_name, cmd_name.replace("-", "_")).partition(":")
        command: click.Command = getattr(
            import_module(f"dedupindex.cli.{module}"), name or "command"
        )
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args[:1] == ["completion"]:  # as bin/completion: the commands of both forms are the same
            args = ["--completion", *args[1:]]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.list_commands(ctx) and not args[0].startswith("-"):
            from dedupindex.cli.common import meant  # --version need not wait for it

            near = meant(args[0], self.list_commands(ctx)) or "; dedupindex --help lists them"
            raise click.UsageError(f"there is no command {args[0]!r}{near}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # here, since click ends with 1 then
            # Avoid a second error when Python flushes stdout at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [  # without their modules
            CompletionItem(name, help=about)
            for name, about in (("demo", _DEMO), *COMMANDS.items())
            if name.startswith(incomplete)
        ]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([("demo", _DEMO), *COMMANDS.items()])
        with formatter.section("Files"):
            formatter.write(f"  settings, files for crawlers:  {SHIPPED}/conf\n")
            formatter.write(f"  the manual:                    {SHIPPED}/docs\n")


def _print_completion(context: click.Context, option: click.Parameter, shell: str | None) -> None:
    """Print the script for a shell, and exit."""
    if shell is not None and not context.resilient_parsing:
        from dedupindex.cli.completion import script  # commands need not wait for it

        click.echo(script(shell), nl=False)
        context.exit()


@click.command(
    cls=_CommandGroup,
    context_settings={"auto_envvar_prefix": "DEDUPINDEX", "help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, message="dedupindex %(version)s")
@click.option(
    "--completion",
    metavar="SHELL",
    is_eager=True,
    expose_value=False,
    callback=_print_completion,
    help="Print the script that completes commands in bash, zsh or fish.",
)
def group() -> None:
    """One deduplication index for every crawler of a web archive."""


class _StandardOutput(FileIO):
    """Standard output, which names itself in the `OSError` of a write."""

    def write(self, data: Buffer) -> int | None:  # type: ignore[override]
        try:
            return super().write(data)
        except OSError as error:
            error.filename = STDOUT
            # What is left in buffers must not fail again when Python flushes them at exit.
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
            raise


def _open_standard_streams() -> None:
    """Open /dev/null in place of closed standard streams, and name stdout in its errors.

    With stdout closed the next file that is opened would get its number, and what is printed.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)  # the lowest free one, which is that of `name`
            os.set_inheritable(number, True)
            stream = open(  # noqa: SIM115
                number, mode, encoding="utf-8", errors="backslashreplace", closefd=False
            )
            setattr(sys, name, stream)
    given = sys.stdout
    if isinstance(given, TextIOWrapper):
        file = BufferedWriter(_StandardOutput(given.fileno(), "w", closefd=False))
        kept = {name: getattr(given, name) for name in ("encoding", "errors", "line_buffering")}
        sys.stdout = TextIOWrapper(file, **kept, write_through=given.write_through)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit status."""
    if argv is None:  # this process is the command's own
        _open_standard_streams()
    if "_DEDUPINDEX_COMPLETE" in os.environ:
        import_module("dedupindex.cli.completion")  # commands need not wait for it
    try:
        status = group.main(argv, prog_name="dedupindex", standalone_mode=False)
        sys.stdout.flush()
    except DedupError as error:
        click.echo(as_called(f"dedupindex: {error}"), err=True)
        failed = error.exit_status
    except click.ClickException as error:
        shown = StringIO()
        error.show(shown)
        click.echo(as_called(shown.getvalue()), nl=False, err=True)
        failed = error.exit_code
    except OSError as error:
        full = "" if error.filename or error.errno != errno.ENOSPC else _FULL
        named = f"{error.filename}: " if error.filename else ""
        click.echo(f"dedupindex: {named}{error.strerror or error}{full}", err=True)
        failed = DedupError.exit_status
    except (KeyboardInterrupt, click.Abort) as error:
        if isinstance(error.__cause__, EOFError):  # click takes it for Ctrl-D
            raise error.__cause__ from None
        hint = str(error.__cause__ or "")
        click.echo(f"dedupindex: interrupted{hint and f'; {hint}'}", err=True)
        failed = 130
    else:
        return status if isinstance(status, int) else 0
    if argv is None:  # this process is the command's own
        _leave_workers(failed)
    return failed


def _leave_workers(status: int) -> None:
    """Exit at once if worker processes still run tasks whose results are not needed.

    Resources are released by now, and the workers end with this process. Python would wait for
    them, and Python 3.11 prints a traceback at exit if their pool's thread closes its pipe then.
    """
    multiprocessing = sys.modules.get("multiprocessing")
    main = threading.main_thread()
    pools = any(not thread.daemon for thread in threading.enumerate() if thread is not main)
    if pools or (multiprocessing is not None and multiprocessing.active_children()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
