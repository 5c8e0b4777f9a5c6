"""The listening sockets, one for each worker, and how to close them without a reset.

All listen on one port (SO_REUSEPORT), and the kernel distributes connections among workers. The
main process holds the sockets open: when a worker dies, its successor accepts the connections that
wait.
"""

from __future__ import annotations

import ctypes
import errno
import socket
import ssl
import struct
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from granian.constants import SSLProtocols

from dedupindex.errors import BadInput, DedupError

BACKLOG = 1024
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27  # Linux; the socket module has no names for them
_DROP = struct.pack("HBBI", 0x06, 0, 0, 0)  # a filter of one instruction: keep 0 bytes (BPF_RET)


class CannotListen(DedupError):
    """The address cannot be bound."""

    code = "cannot_listen"


def listen(host: str, port: int, count: int) -> list[socket.socket]:
    """Return `count` sockets that listen on one port, a free one for 0; raises `CannotListen`."""
    try:
        # Sockets with SO_REUSEPORT would share the port of a server that runs already; a socket
        # without it fails then.
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, port), family=family) as alone:
            address = host, alone.getsockname()[1]
        shared = partial(socket.create_server, address, family=family, reuse_port=True)
        return [shared(backlog=BACKLOG) for _ in range(count)]
    except (OSError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise CannotListen(
                f"port {port} is in use, perhaps by a server of this index; choose another --port "
                "(0: a free one), which crawlers must then ask"
            ) from error
        reason = getattr(error, "strerror", None) or error
        raise CannotListen(f"cannot listen on {host}, port {port}: {reason}") from error


def shut(sockets: list[socket.socket]) -> None:
    """Let no new connection in, while the workers accept those that wait.

    A worker that ends closes connections that it has not read from, so there must be no new ones
    shortly before. Their packets are dropped; clients repeat them within a second. If no socket
    listens any more then, they get "connection refused"; after `reopen`, they are accepted.
    """
    if sys.platform != "linux":
        return
    program = ctypes.create_string_buffer(_DROP, len(_DROP))
    pointer = struct.pack("HP", 1, ctypes.addressof(program))  # struct sock_fprog
    for listener in sockets:
        with suppress(OSError):
            listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, pointer)


def reopen(listener: socket.socket) -> None:
    """Let connections in again, after `shut`."""
    with suppress(OSError):
        listener.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)


# TLS by Granian; the files are checked first, for clear error messages.

_PKCS8 = b"-----BEGIN PRIVATE KEY-----"


class Tls(NamedTuple):
    """A certificate and its key. Workers read the files when they start."""

    cert: Path
    key: Path

    def check(self) -> None:
        """Raise `BadInput` for files that cannot be used."""
        _read(self.cert)
        if _PKCS8 not in _read(self.key):  # the only form that Granian reads
            raise BadInput(
                f"{self.key} is no PKCS#8 key without a password: "
                "openssl pkcs8 -topk8 -nocrypt -in OLD -out NEW"
            )
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.cert, self.key)
        except (ssl.SSLError, OSError) as error:
            reason = getattr(error, "reason", None) or error
            raise BadInput(f"{self.cert} and {self.key} do not serve: {reason}") from error

    def options(self) -> dict[str, Any]:
        """Return the options of Granian; its TLS 1.2 has no weak ciphers."""
        return {"ssl_cert": self.cert, "ssl_key": self.key, "ssl_protocol_min": SSLProtocols.tls12}


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from error
