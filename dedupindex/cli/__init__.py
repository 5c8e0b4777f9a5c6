"""The command line: ``dedupindex COMMAND``, and ``bin/COMMAND`` for each.

Answers go to stdout, talk to stderr. Every failure we can explain is one sentence and the exit
status of its class (`errors`); commands are imported when they are called.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from importlib import import_module

import click

from dedupindex import __version__
from dedupindex.errors import DedupError

COMMANDS = {  # in the order of the work
    "index": "Build an index of originals, or add to one.",
    "serve": "Answer lookups over HTTP.",
    "lookup": "Look digests up.",
    "report": "Say what a crawl would have saved.",
    "token": "Say who may write to a served index, or read it.",
    "export": "Write an index for a crawler that reads a file, or Redis.",
    "search": "Search an index as a person would.",
}
ONCE = {  # what is done once, and has no settings that stay
    "dedup": "Turn duplicates in archives into revisits, and verify that.",
    "rehearse": "Try on copies what dedup would do, step by step.",
    "convert": "Make WARC files of ARC files, and ARC files of these again.",
    "manifest": "List every response of WARC and ARC files.",
    "resolve": "Say which records are to become revisits, and of what.",
    "rewrite": "Turn the copies that a plan names into revisits.",
    "undedup": "Turn revisits back into the records that they stand for.",
    "verify": "Say what is damaged or lost in archives, and what will not replay.",
    "cover": "Find the least documents that cover all others.",
    "impact": "Say what depends on captures that are to go.",
    "purge": "Take captures out of an index.",
    "heritrix-profile": "Make a Heritrix job that asks.",
    "hash_documents": "Hash every object that a glob names, into shards.",
    "dedup_hashes": "Keep one path of each hash in such shards.",
    "run_pipeline": "Do both on this machine.",
    "generate_corpus": "Make files to try that on.",
    "corpus": "Cut a corpus out of an archive, by metadata first.",
    "plan": "Say how many machines, hours and dollars it takes.",
}
_ELSEWHERE = {"impact": "purge:impact"}  # commands in the module of another


class _Commands(click.Group):
    """Imports a command's module when it is wanted: ``lookup`` must not wait for ``serve``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *ONCE]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS and cmd_name not in ONCE:
            return None
        module, _, name = _ELSEWHERE.get(cmd_name, cmd_name.replace("-", "_")).partition(":")
        command: click.Command = getattr(
            import_module(f"dedupindex.cli.{module}"), name or "command"
        )
        return command

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # here, since click ends with 1 then
            # Whoever read our answers has seen enough; a second complaint at exit helps nobody.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([*COMMANDS.items(), *ONCE.items()])


@click.command(
    cls=_Commands,
    context_settings={"auto_envvar_prefix": "DEDUPINDEX", "help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, message="dedupindex %(version)s")
def group() -> None:
    """One deduplication index for every crawler of a web archive."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit status."""
    try:
        status = group.main(argv, prog_name="dedupindex", standalone_mode=False)
    except DedupError as error:
        click.echo(f"dedupindex: {error}", err=True)
        failed = error.exit_status
    except click.ClickException as error:
        error.show()
        failed = error.exit_code
    except OSError as error:
        named = f"{error.filename}: " if error.filename else ""
        click.echo(f"dedupindex: {named}{error.strerror or error}", err=True)
        failed = DedupError.exit_status
    except (KeyboardInterrupt, click.Abort):
        click.echo("dedupindex: interrupted", err=True)
        failed = 130
    else:
        return status if isinstance(status, int) else 0
    if argv is None:  # this process is the command's own
        _leave_workers(failed)
    return failed


def _leave_workers(status: int) -> None:
    """End here if processes are still at tasks of which nobody wants to know any more.

    All that this one held is let go of by now, and they end with it. Python would wait for them;
    and where the thread of their pool closes its pipe meanwhile, Python 3.11 writes to that pipe
    at exit and prints a traceback. That thread has not ended as long as either is possible.
    """
    multiprocessing = sys.modules.get("multiprocessing")
    others = [one for one in threading.enumerate() if one is not threading.main_thread()]
    pools = any(not thread.daemon for thread in others)
    if pools or (multiprocessing is not None and multiprocessing.active_children()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
