"""``bin/token``: who may write to a served index, or read it."""

from __future__ import annotations

from pathlib import Path

import click

from dedupindex.cli.common import Command, is_typed, print_result
from dedupindex.cli.index_location import any_index
from dedupindex.cli.options import option, shared_options
from dedupindex.index import tokens
from dedupindex.index.identity import read_identity
from dedupindex.index.tokens import Role

EXAMPLES = """
bin/token my-index --add heritrix              # prints the token, once
bin/token my-index --add nla --crawls 'nla-*'  # for crawls of these names only
bin/token my-index                             # names and roles
bin/token my-index --remove heritrix
"""

_NO_TOKENS = "no tokens: anyone who reaches the server may read and write"
_LAST = (
    "this was the last token: a server on loopback now lets every program on the machine write; "
    "one on the network answers nobody until there is a token"
)
_ROLES = [role.name.lower() for role in Role]


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("index", type=any_index)
@option(
    "--add", metavar="NAME",
    help="Make a token and print it alone on stdout: token=$(bin/token my-index --add heritrix).",
)  # fmt: skip
@option("--remove", metavar="NAME", help="Remove a token; servers notice within a second.")
@option(
    "--role", type=click.Choice(_ROLES), default="write",
    help="read: look up; write: report to its crawls as well; admin: to all.",
)  # fmt: skip
@option("--crawls", default="*", help="Pattern of the crawls that it may write to.")
@option(
    "--namespaces", default="*",
    help="Pattern of the namespaces that it may write to and, with bin/serve --private, read.",
)  # fmt: skip
@shared_options("--json")
def command(
    index: Path,
    add: str | None,
    remove: str | None,
    role: str,
    crawls: str,
    namespaces: str,
) -> int:
    """Make, list or remove the bearer tokens of INDEX.

    Without tokens a server answers anyone who reaches it, and listens on loopback only.
    """
    if add and remove:
        raise click.UsageError("give either --add or --remove")
    unused = [name for name in ("role", "crawls", "namespaces") if not add and is_typed(name)]
    if unused:
        raise click.UsageError(f"--{unused[0]} needs --add")
    if add and role == "admin" and (crawls, namespaces) != ("*", "*"):
        raise click.UsageError("--crawls and --namespaces do not limit an admin: give another role")
    if add and role == "read" and crawls != "*":
        raise click.UsageError(
            "--crawls is a pattern of crawls that a token may write to, and --role read writes to "
            "none; --namespaces says what it may read with bin/serve --private"
        )
    read_identity(index)
    if add:
        secret = tokens.add(index, add, Role[role.upper()], crawls, namespaces)
        note = "send it as  Authorization: Bearer <token>; it is not shown again"
        print_result({"name": add, "token": secret}, [secret], [note])
    elif remove:
        tokens.remove(index, remove)
        rest = tokens.read_tokens(index)
        print_result({"removed": remove}, [], [] if rest else [_LAST])
    else:
        _list(index)
    return 0


def _list(index: Path) -> None:
    names = ("name", "role", "crawls", "namespaces")
    rows = [
        (
            *(token.name, token.role.name.lower()),
            token.crawls if token.role >= Role.WRITE else None,
            token.namespaces,
        )
        for token in tokens.read_tokens(index)
    ]
    lines = [
        f"{name:<24}{role:<8}{crawls or '-':<24}{namespaces}".rstrip()
        for name, role, crawls, namespaces in ([names] if rows else []) + rows
    ]
    notes = [] if rows else [_NO_TOKENS]
    content = [dict(zip(names, row, strict=True)) for row in rows]
    if any(row["role"] == "read" for row in content):
        notes.append("a token with the role read writes to no crawl")
    print_result({"tokens": content}, lines, notes)
