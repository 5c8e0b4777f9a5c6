"""The listening sockets, one for each worker, and how to close them without a reset.

All listen on one port (SO_REUSEPORT), and the kernel distributes connections among workers. The
main process holds the sockets open: when a worker dies, its successor accepts the connections that
wait.
"""

from __future__ import annotations

import ctypes
import errno
import socket
import struct
import sys
from contextlib import suppress

from dedupindex.errors import DedupError

BACKLOG = 1024
_SO_ATTACH_FILTER = 26  # Linux; the socket module has no name for it
_DROP = struct.pack("HBBI", 0x06, 0, 0, 0)  # a filter of one instruction: keep 0 bytes (BPF_RET)


class CannotListen(DedupError):
    """The address cannot be bound."""

    code = "cannot_listen"


def listen(host: str, port: int, count: int) -> list[socket.socket]:
    """Return `count` sockets that listen on one port, a free one for 0; raises `CannotListen`."""
    try:
        # Sockets with SO_REUSEPORT would share the port of a server that runs already; a socket
        # without it fails then.
        with socket.create_server((host, port), family=_family(host)) as alone:
            port = alone.getsockname()[1]
        return [_open(host, port) for _ in range(count)]
    except (OSError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise CannotListen(f"port {port} is in use; give --port 0 for a free one") from error
        reason = getattr(error, "strerror", None) or error
        raise CannotListen(f"cannot listen on {host}, port {port}: {reason}") from error


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _open(host: str, port: int) -> socket.socket:
    return socket.create_server(
        (host, port), family=_family(host), reuse_port=True, backlog=BACKLOG
    )


def shut(sockets: list[socket.socket]) -> None:
    """Refuse new connections, while the workers accept those that wait.

    A worker that ends resets connections that it has not read from, so there must be no new ones
    shortly before. Their first packet is dropped; clients repeat it after a second, when no socket
    listens any more, and get "connection refused".
    """
    if sys.platform != "linux":
        return
    program = ctypes.create_string_buffer(_DROP, len(_DROP))
    pointer = struct.pack("HP", 1, ctypes.addressof(program))  # struct sock_fprog
    for listener in sockets:
        with suppress(OSError):
            listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, pointer)
