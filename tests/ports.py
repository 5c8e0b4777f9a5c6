"""Ports for programs that cannot be told to take any that is free."""

from __future__ import annotations

import socket
from random import SystemRandom

_KEPT = range(20_000, 32_000)  # which Linux gives to nobody who asks for any


def free_port() -> int:
    """A port of loopback that is free, and that only who asks for it by its number can take."""
    for port in SystemRandom().sample(_KEPT, 100):
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
    raise OSError("no port is free")
