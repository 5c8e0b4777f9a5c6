"""Ports for programs that cannot be told to take any that is free."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from random import SystemRandom

_KEPT = range(20_000, 32_000)  # which Linux gives to nobody who asks for any


def free_port(*addresses: str) -> int:
    """A port that is free on all addresses, and that only who asks for its number can take.

    It may be long until it is used, and longer until it is on the last address. Without addresses
    it is one of loopback.
    """
    for port in SystemRandom().sample(_KEPT, 100):
        with ExitStack() as stack:
            try:
                for address in addresses or ("127.0.0.1",):
                    stack.enter_context(socket.create_server((address, port)))
            except OSError:
                continue
            return port
    raise OSError("no port is free")
