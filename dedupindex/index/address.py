"""The address of an index on a cluster: ``cassandra://host[:port],host/keyspace[?option=value&…]``.

    consistency       of writes: LOCAL_QUORUM, QUORUM, EACH_QUORUM, ALL, TWO, …
    read_consistency  of reads; by default that of writes
    replication       of a new keyspace: copies in each datacenter, 3, or dc1:3,dc2:2
    datacenter        whose nodes are used; by default that of the first host that answers
    timeout           seconds to wait for an answer
    tls               encrypt connections; a node's certificate must name its host (node), or only
                      be signed by a trusted authority (authority)

Options belong to a connection, not to the index. User, password and the names of files for TLS are
read from the environment (`ENVIRONMENT`) and stored nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

from dedupindex.errors import BadInput

SCHEME = "cassandra://"
USER, PASSWORD = "DEDUPINDEX_CASSANDRA_USER", "DEDUPINDEX_CASSANDRA_PASSWORD"
AUTHORITY, CERTIFICATE, KEY = (
    f"DEDUPINDEX_CASSANDRA_{name}" for name in ("AUTHORITY", "CERTIFICATE", "KEY")
)
ENVIRONMENT = (USER, PASSWORD, AUTHORITY, CERTIFICATE, KEY)
NODE, SIGNED = "node", "authority"  # values of `tls`
LEVELS = (
    "LOCAL_QUORUM", "QUORUM", "EACH_QUORUM", "ALL", "LOCAL_ONE", "ONE", "TWO", "THREE"
)  # fmt: skip
PORT = 9042

_KEYSPACE = re.compile(r"[a-z][a-z0-9_]{0,47}")
_HOST = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")
_USER = re.compile(r"^(\w+:/*)?.*@")
_REPLICATION = re.compile(r"[1-9]\d?|[A-Za-z0-9_.-]+:[1-9]\d?(,[A-Za-z0-9_.-]+:[1-9]\d?)*")


@dataclass(frozen=True)
class Address:
    """A parsed address. Two with the same `where` name the same index."""

    hosts: tuple[str, ...]
    keyspace: str
    port: int = PORT
    consistency: str = "LOCAL_QUORUM"
    read_consistency: str = ""
    replication: str = "3"
    datacenter: str = ""
    timeout: float = 5.0
    tls: str = ""

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse an address; raises `BadInput`."""
        try:
            parts = urlsplit(text)
        except ValueError as error:
            wrong = f"{shown(text)!r} is not an address of a cluster: a host cannot be read"
            raise BadInput(wrong) from error
        if "@" in parts.netloc:  # the message leaves out the text, which may hold a password
            raise BadInput(
                "an address of a cluster holds no user and password: set the environment "
                f"variables {USER} and {PASSWORD}"
            )
        keyspace = parts.path.removeprefix("/")
        if not text.startswith(SCHEME) or not parts.netloc or not _KEYSPACE.fullmatch(keyspace):
            raise BadInput(
                f"{shown(text)!r} is not an address of a cluster: write "
                f"{SCHEME}host,host/keyspace, the keyspace of at most 48 small "
                "letters, digits and _"
            )
        hosts, ports = zip(*map(_host, parts.netloc.split(",")), strict=True)
        stated = {port for port in ports if port}
        if len(stated) > 1:
            raise BadInput(
                f"{shown(text)!r}: the nodes of a cluster listen on one port, not on several"
            )
        if any("=" not in part for part in parts.query.split("&") if part):
            raise BadInput(f"{shown(text)!r}: options are name=value, with & between")
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        return cls(hosts, keyspace, *stated or (PORT,), **_options(shown(text), options))

    def __str__(self) -> str:
        """Return the address without options at their defaults."""
        port = f":{self.port}" if self.port != PORT else ""
        default = Address(self.hosts, self.keyspace)
        options = "&".join(
            f"{name}={quote(f'{value:g}' if isinstance(value, float) else value, safe=':,')}"
            for name, value in asdict(self).items()
            if name in _PARSERS and value != getattr(default, name)
        )
        hosts = ",".join((f"[{host}]" if ":" in host else host) + port for host in self.hosts)
        return f"{SCHEME}{hosts}/{self.keyspace}{'?' if options else ''}{options}"

    @property
    def where(self) -> tuple[frozenset[str], int, str]:
        """What identifies the index."""
        return frozenset(self.hosts), self.port, self.keyspace

    @property
    def slug(self) -> str:
        """A file name."""
        hosts = ",".join(sorted(f"{host}-{self.port}" for host in self.hosts))
        return re.sub(r"[^A-Za-z0-9_.,-]", "_", f"{hosts}-{self.keyspace}")

    @property
    def reading(self) -> str:
        """The consistency of reads."""
        return self.read_consistency or self.consistency


def is_cluster(text: str) -> bool:
    """Return whether the name of an engine or index is an address of a cluster."""
    return text[: len(SCHEME)].lower() == SCHEME


def shown(text: str) -> str:
    """Return an address for a message, without text before an @ and values of unknown options."""
    plain, question, query = _USER.sub(r"\1…@", text).partition("#")[0].partition("?")
    options = []
    for part in query.split("&") if question else ():
        name, is_value, _ = part.partition("=")
        options.append(part if name in _PARSERS else f"{name}=…" if is_value else "…")
    return plain + question + "&".join(options)


def _host(text: str) -> tuple[str, int]:
    host, _, port = (
        text.rpartition(":") if re.search(r"[^:\]]:\d+$|\]:\d+$", text) else (text, "", "")
    )
    if not _HOST.fullmatch(host) or not (port == "" or 0 < int(port) < 65536):
        raise BadInput(f"{text!r} is not a host, or host:port, of a cluster")
    return host.strip("[]"), int(port or 0)


def _level(text: str) -> str | None:
    return text.upper() if text.upper() in LEVELS else None


def _seconds(text: str) -> float | None:
    with suppress(ValueError):
        if 0.1 <= float(text) <= 600:
            return float(text)
    return None


_PARSERS: dict[str, tuple[Callable[[str], Any], str]] = {  # None is no value; what a value is
    "consistency": (_level, f"one of {', '.join(LEVELS)}"),
    "read_consistency": (_level, f"one of {', '.join(LEVELS)}"),
    "replication": (
        lambda text: text if _REPLICATION.fullmatch(text) else None,
        "a number of copies, or datacenter:copies, with commas between",
    ),
    "datacenter": (str, "a name"),
    "timeout": (_seconds, "a number of seconds, from 0.1 to 600"),
    "tls": (lambda text: text if text in (NODE, SIGNED) else None, f"{NODE} or {SIGNED}"),
}
_FORMER = {("driver", "cassandra-driver"), ("driver", "acsylla")}  # in stored addresses; ignored


def _options(text: str, options: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in options.items():
        if (name, value) in _FORMER:
            continue
        if name not in _PARSERS:
            raise BadInput(f"{text!r}: there is no option {name}, but {', '.join(_PARSERS)}")
        parse, meaning = _PARSERS[name]
        found[name] = parse(value)
        if found[name] is None:
            raise BadInput(f"{text!r}: {name} is {meaning}, not {value!r}")
    return found
