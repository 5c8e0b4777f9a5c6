"""The listening sockets, one for each worker, and how to close them so that nobody is cut off.

All listen on one port (SO_REUSEPORT), so that the kernel shares out connections among workers. The
main process holds them open: a connection that waits when a worker dies is not reset, but taken up
by the worker's successor.
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
    """The address cannot be had."""

    code = "cannot_listen"


def listen(host: str, port: int, count: int) -> list[socket.socket]:
    """`count` sockets that listen on one port, a free one if it is 0; raises `CannotListen`."""
    try:
        # Sockets that share a port would also share it with those of a server that runs already;
        # one that does not share finds that out.
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
    """Let no new connection in, while those that wait are still taken up by the workers.

    A worker that ends resets the connections that wait for it or that it has not yet read from. So
    for a moment before that there must be no new ones. Their first packet is dropped, which their
    sender repeats after a second; by then nobody listens, and it is told so.
    """
    if sys.platform != "linux":
        return
    program = ctypes.create_string_buffer(_DROP, len(_DROP))
    pointer = struct.pack("HP", 1, ctypes.addressof(program))  # struct sock_fprog
    for listener in sockets:
        with suppress(OSError):
            listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, pointer)
