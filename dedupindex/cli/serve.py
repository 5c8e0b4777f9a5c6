"""``bin/serve``: answer lookups over HTTP."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dedupindex.cli.common import Command, print_item, say
from dedupindex.cli.index_location import index_name, index_or_engine, optional_index
from dedupindex.cli.options import COUNT, FILE, PATH, POSITIVE, Number, flag, option, shared_options
from dedupindex.errors import BadInput
from dedupindex.index.identity import read_identity
from dedupindex.index.tokens import read_tokens
from dedupindex.lookup.policy import NO_POLICY, read_policy
from dedupindex.runtime.tables import printable, singular

if TYPE_CHECKING:
    from server.listeners import Tls

EXAMPLES = """
bin/serve my-index
bin/serve my-index --port 0 --json             # a free port, printed on stdout
curl 'http://127.0.0.1:8484/lookup?digest=sha1:FKXGYNOJJ7H3IFO35FPUBC445EPOQRXN'
"""

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@click.command(cls=Command, examples=EXAMPLES, own_signals=True)
@optional_index
@option("--host", default="127.0.0.1", help="Address to listen on.")
@option(
    "--host-name", "host_names", multiple=True, default=(), metavar="NAME",
    help="A host name that clients use for this server; repeatable. IP addresses need none.",
)  # fmt: skip
@option("--port", type=Number(0, 65535), default=8484, help="Port to listen on; 0: a free one.")
@option(
    "--workers", type=Number(0, 64), default=0,
    help="Worker processes; 0: one a core, at most 4.",
)  # fmt: skip
@flag("--private", help="Lookups need a token, too.")
@flag("--open", "for_all", help="Listen beyond loopback without any token.")
@option("--tls-cert", type=PATH, help="Certificate chain for HTTPS, PEM; read again on SIGHUP.")
@option("--tls-key", type=PATH, help="Its key, PEM, PKCS#8, not encrypted.")
@option("--policy", type=FILE, help="Rules for what may become a revisit: TOML or JSON.")
@flag("--access-log", help="Log every request on stderr.")
@option(
    "--log-format", type=click.Choice(["text", "json"]), default="text",
    help="Log lines as text or as JSON objects.",
)  # fmt: skip
@option(
    "--rate-limit", type=COUNT, default=0,
    help="Requests a second from a client to a worker; 0: no limit.",
)  # fmt: skip
@option(
    "--filter-memory", type=COUNT, default=0,
    help="Most bytes of a filter of all digests, with which an index on a cluster answers lookups "
    "of new payloads without asking it; 0: none.",
)  # fmt: skip
@option(
    "--dry-run-dir", "dry_run_dirs", type=PATH, multiple=True, default=(), metavar="DIR",
    help="A directory whose archives the page of a dry run may read; repeatable. Default: none.",
)  # fmt: skip
@option(
    "--max-body", type=POSITIVE, default=16 << 20,
    help="Largest JSON body, in bytes; 64 times as much for JSON lines of captures, no limit for "
    "those of lookups.",
)  # fmt: skip
@option(
    "--max-batch", type=POSITIVE, default=100_000,
    help="Most lookups, captures or records in a body.",
)  # fmt: skip
@option("--max-line", type=POSITIVE, default=1 << 20, help="Longest JSON line, in bytes.")
@option(
    "--body-timeout", type=Number(1, 3600), default=60,
    help="Seconds in which each 64 KiB of a body, or the rest, must arrive.",
)  # fmt: skip
@option(
    "--max-connections", type=POSITIVE, default=4096,
    help="Connections of one worker, idle ones included; more wait.",
)  # fmt: skip
@option(
    "--stop-timeout", type=POSITIVE, default=30, help="Seconds to finish requests when stopping."
)
@shared_options("--json", help="One JSON object on stdout when ready.")
def command(index: Path | None, engine: str, **chosen: Any) -> int:
    """Answer lookups from INDEX over HTTP until SIGTERM or Ctrl-C."""
    where = index_or_engine(index, engine)
    read_identity(where)  # what is no index is said before anything is started
    name = index_name(where)
    from server.config import Config, default_workers
    from server.logs import LOGGER, configure
    from server.request_checks import host_name
    from server.run import Started, serve  # slow: Flask and Granian; the library must not need them

    log = LOGGER.info if chosen["log_format"] == "json" else say

    def ready(started: Started) -> None:
        captures, workers = started.counts.captures, started.workers
        about = {"index": printable(name), "captures": captures, "workers": workers}
        print_item({"url": started.url, **about}, ())
        held, processes = singular(f"{captures:,} originals"), singular(f"{workers} workers")
        log(f"serving {name} ({held}) at {started.url} with {processes}")

    for directory in chosen["dry_run_dirs"]:
        if not directory.is_dir():
            raise BadInput(f"--dry-run-dir {directory} is no directory")
    for_all = chosen.pop("for_all")
    chosen["guarded"] = chosen["host"] not in _LOOPBACK and not for_all
    chosen["host_names"] = tuple(map(host_name, chosen["host_names"]))
    chosen["tls"] = _tls(chosen.pop("tls_cert"), chosen.pop("tls_key"))
    configure(chosen["log_format"])
    _check_exposure(where, chosen["host"], for_all, log, chosen)
    chosen["workers"] = chosen["workers"] or default_workers()
    chosen["policy"] = read_policy(chosen["policy"]) if chosen["policy"] else NO_POLICY
    serve(Config(where, **chosen), ready)
    log("stopped")
    return 0


def _tls(cert: Path | None, key: Path | None) -> Tls | None:
    """Return the certificate for HTTPS, if any; raises `BadInput`."""
    from server.listeners import Tls  # as above

    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise BadInput("--tls-cert and --tls-key go together")
    tls = Tls(cert, key)
    tls.check()
    return tls


def _check_exposure(
    index: Path, host: str, for_all: bool, log: Callable[[str], None], chosen: dict[str, Any]
) -> None:
    """Raise `BadInput` if anyone could write to the index without --open."""
    private, tokens, named = chosen["private"], read_tokens(index), shlex.quote(str(index))
    if private and not tokens:
        raise BadInput(f"--private needs a token: bin/token {named} --add NAME --role read")
    if host in _LOOPBACK:
        return
    if not tokens and not for_all:
        raise BadInput(
            f"{host} is not loopback, and anyone who reaches it could write to the index: make a "
            f"token with bin/token {named} --add NAME, or say --open"
        )
    if not private:
        log(f"{host} is not loopback: anyone who reaches this address may look up captures")
    if chosen["tls"] is None:
        log(
            f"{host} is not loopback, and there is no TLS: tokens and URLs travel unencrypted; "
            "give --tls-cert and --tls-key, or let a proxy do it"
        )
