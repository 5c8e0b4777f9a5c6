"""How an index on a cluster is named: ``cassandra://host[:port],host/keyspace[?option=value&…]``.

    consistency       of writes: LOCAL_QUORUM, QUORUM, EACH_QUORUM, ALL, TWO, …
    read_consistency  of reads; by default that of writes
    replication       of a keyspace that is made: copies in each datacenter, 3, or dc1:3,dc2:2
    datacenter        whose nodes are asked; by default that of the host that answers first
    timeout           seconds until an answer that does not come is an outage
    tls               all is encrypted, and a certificate names its node (node), or it is enough
                      that an authority that we trust has signed it (authority)

The options are those of a connection, and no part of what the index is. User and password come from
the environment (`USER`, `PASSWORD`) and are kept nowhere; so do the names of files for TLS
(`AUTHORITY`, `CERTIFICATE`, `KEY`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

from dedupindex.errors import BadInput

SCHEME = "cassandra://"
USER, PASSWORD = "DEDUPINDEX_CASSANDRA_USER", "DEDUPINDEX_CASSANDRA_PASSWORD"
AUTHORITY, CERTIFICATE, KEY = (
    f"DEDUPINDEX_CASSANDRA_{name}" for name in ("AUTHORITY", "CERTIFICATE", "KEY")
)
ENVIRONMENT = (USER, PASSWORD, AUTHORITY, CERTIFICATE, KEY)
NODE, SIGNED = "node", "authority"  # whom `tls` believes
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
    """An address, read. Two with the same `where` name the same index."""

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
        """Read an address; raises `BadInput` that says what is wrong with it."""
        parts = urlsplit(text)
        if "@" in parts.netloc:  # said without the text, which may hold a password
            raise BadInput(
                "an address of a cluster holds no user and password: set the environment "
                f"variables {USER} and {PASSWORD}"
            )
        keyspace = parts.path.removeprefix("/")
        if not text.startswith(SCHEME) or not parts.netloc or not _KEYSPACE.fullmatch(keyspace):
            raise BadInput(
                f"{shown(text)!r} is no address of a cluster: write {SCHEME}host,host/keyspace, "
                "the keyspace of at most 48 small letters, digits and _"
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
        """The address as it is kept: what is at its default is left out."""
        port = f":{self.port}" if self.port != PORT else ""
        default = Address(self.hosts, self.keyspace)
        options = "&".join(
            f"{name}={quote(_text(getattr(self, name)), safe=':,')}"
            for name in _READ
            if getattr(self, name) != getattr(default, name)
        )
        hosts = ",".join(host + port for host in self.hosts)
        return f"{SCHEME}{hosts}/{self.keyspace}{'?' if options else ''}{options}"

    @property
    def where(self) -> tuple[frozenset[str], int, str]:
        """What the index is known by."""
        return frozenset(self.hosts), self.port, self.keyspace

    @property
    def slug(self) -> str:
        """A name for files."""
        hosts = ",".join(sorted(f"{host}-{self.port}" for host in self.hosts))
        return re.sub(r"[^A-Za-z0-9_.,-]", "_", f"{hosts}-{self.keyspace}")

    @property
    def reading(self) -> str:
        """The consistency of reads."""
        return self.read_consistency or self.consistency


def is_cluster(text: str) -> bool:
    """Whether an engine's or index's name is an address of a cluster."""
    return text[: len(SCHEME)].lower() == SCHEME


def shown(text: str) -> str:
    """What was given as an address, as it may be printed: without what may be a password.

    That is what stands before an @, and the values of options that there are not.
    """
    plain, question, query = _USER.sub(r"\1…@", text).partition("#")[0].partition("?")
    options = []
    for part in query.split("&") if question else ():
        name, is_value, _ = part.partition("=")
        options.append(part if name in _READ else f"{name}=…" if is_value else "…")
    return plain + question + "&".join(options)


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _host(text: str) -> tuple[str, int]:
    host, _, port = (
        text.rpartition(":") if re.search(r"[^:\]]:\d+$|\]:\d+$", text) else (text, "", "")
    )
    if not _HOST.fullmatch(host) or not (port == "" or 0 < int(port) < 65536):
        raise BadInput(f"{text!r} is no host, or host:port, of a cluster")
    return host.strip("[]"), int(port or 0)


def _level(text: str) -> str:
    if text.upper() not in LEVELS:
        raise ValueError(f"one of {', '.join(LEVELS)}")
    return text.upper()


def _tls(text: str) -> str:
    if text not in (NODE, SIGNED):
        raise ValueError(f"{NODE} or {SIGNED}")
    return text


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 600:
        raise ValueError("a number of seconds, from 0.1 to 600")
    return seconds


def _replication(text: str) -> str:
    if not _REPLICATION.fullmatch(text):
        raise ValueError("a number of copies, or datacenter:copies, with commas between")
    return text


_READ: dict[str, Callable[[str], Any]] = {
    "consistency": _level,
    "read_consistency": _level,
    "replication": _replication,
    "datacenter": str,
    "timeout": _seconds,
    "tls": _tls,
}
_FORMER = {("driver", "cassandra-driver"), ("driver", "acsylla")}  # kept addresses may have them


def _options(text: str, options: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in options.items():
        if (name, value) in _FORMER:
            continue
        if name not in _READ:
            raise BadInput(f"{text!r}: there is no option {name}, but {', '.join(_READ)}")
        try:
            found[name] = _READ[name](value)
        except ValueError as error:
            raise BadInput(f"{text!r}: {name} is {error}, not {value!r}") from None
    return found
